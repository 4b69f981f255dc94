//! Objects for Windows, whose programs wine runs here.

use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc_tests::machine::Machine;
use onnxc_tests::object::{include_dir, must, source};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn windows() -> Option<&'static Machine> {
    Machine::named("windows").ok().filter(|windows| windows.is_there())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// Compiles the digits example for Windows into `<name>.o` and `<name>.h`, with these flags besides.
fn digits(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let object = folder.join(format!("{name}.o"));
    let mut onnxc = Command::new(ONNXC);
    onnxc.arg(examples().join("digits/digits.onnx")).args(["--target", "x86_64-pc-windows-gnu"]);
    must(onnxc.args(flags).args(["--name", name]).arg("-o").arg(&object));
    object
}

/// Links objects with C source into a program.
fn program(windows: &Machine, folder: &Path, source: &Path, objects: &[PathBuf]) -> PathBuf {
    let program = folder.join("program.exe");
    let mut compiler = Command::new(windows.compiler[0]);
    compiler.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror"]);
    for include in [include_dir(), folder.to_path_buf(), examples().join("digits")] {
        compiler.arg("-I").arg(include);
    }
    must(compiler.arg(source).args(objects).arg("-o").arg(&program));
    program
}

/// An object for no processor in particular has code for the same levels as on other systems, and chooses when it runs.
#[test]
fn the_example_predicts_at_every_level() {
    let Some(windows) = windows() else { return };
    let folder = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["--mcpu", "x86-64"], &["--vector-width", "256"], &["-Os"]] {
        let object = digits(folder.path(), "digits", flags);
        let symbols = String::from_utf8(must(Command::new("nm").arg(&object)).stdout).unwrap();
        let levels = ["x86_64_v3", "x86_64_v4"].map(|level| symbols.matches(level).count());
        match flags {
            [] => assert!(levels[0] >= 2 && levels[1] >= 2, "{levels:?}"),
            ["--vector-width", ..] => assert!(levels[0] >= 2 && levels[1] == 0, "{levels:?}"),
            _ => assert_eq!(levels, [0, 0], "{flags:?}"),
        }
        let program = program(windows, folder.path(), &examples().join("c/main.c"), &[object]);
        let output = must(&mut windows.command(&program));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("predicted 9 (probability "), "{flags:?}: {text}");
    }
}

/// From every instruction of a run there is a way back to the caller, with the registers that it left: what an exception in a
/// run, a debugger and a profiler need. All functions have a record.
#[test]
fn the_stack_unwinds_from_every_instruction() {
    let Some(windows) = windows() else { return };
    let folder = tempfile::tempdir().unwrap();
    let objects: Vec<PathBuf> = [("least", "x86-64"), ("avx2", "x86-64-v3"), ("avx512", "x86-64-v4")]
        .map(|(name, cpu)| digits(folder.path(), name, &["--mcpu", cpu]))
        .into();
    let program = program(windows, folder.path(), &source("unwind.c"), &objects);
    let run = windows.command(&program).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{} {text} {}", run.status, String::from_utf8_lossy(&run.stderr));
    let mut versions = vec![];
    for line in text.lines() {
        let [name, tried, without_record] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert!(tried.parse::<usize>().unwrap() > 500, "{line}");
        assert_eq!(without_record, "0", "{line}");
        versions.push(name);
    }
    assert_eq!(versions[0], "least");
    println!("{text}");
}
