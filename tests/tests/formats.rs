//! Objects for systems that this machine is not, as independent tools see them: LLVM's readers find nothing wrong, and its
//! linkers make libraries of them that need nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc_tests::object::{include_dir, must, source};

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// A tool of LLVM, perhaps with its version behind its name. Without it, what needs it is left out.
fn tool(name: &str) -> Option<String> {
    let names =
        std::iter::once(name.to_string()).chain((14..30).rev().map(|version| format!("{name}-{version}")));
    let found = names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    if found.is_none() {
        println!("skipped: {name} (Debian: llvm, lld) is not installed");
    }
    found
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn digits(folder: &Path, triple: &str) -> PathBuf {
    let object = folder.join("digits.o");
    let model = examples().join("digits/digits.onnx");
    must(Command::new(ONNXC).arg(model).args(["--target", triple, "-o"]).arg(&object));
    object
}

/// What a tool prints, which finds nothing wrong.
fn read(tool: &str, flags: &[&str], file: &Path) -> String {
    let output = must(Command::new(tool).args(flags).arg(file));
    assert!(output.stderr.is_empty(), "{tool} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every function of a COFF object has a record for unwinders, which LLVM decodes.
#[test]
fn coff_objects_are_well_formed() {
    let (Some(readobj), Some(objdump)) = (tool("llvm-readobj"), tool("llvm-objdump")) else { return };
    let folder = tempfile::tempdir().unwrap();
    for (triple, machine) in [
        ("x86_64-pc-windows-msvc", "IMAGE_FILE_MACHINE_AMD64"),
        ("x86_64-pc-windows-gnu", "IMAGE_FILE_MACHINE_AMD64"),
        ("x86_64-unknown-uefi", "IMAGE_FILE_MACHINE_AMD64"),
        ("aarch64-pc-windows-msvc", "IMAGE_FILE_MACHINE_ARM64"),
        ("aarch64-pc-windows-gnullvm", "IMAGE_FILE_MACHINE_ARM64"),
    ] {
        let object = digits(folder.path(), triple);
        let text = read(&readobj, &["--file-headers", "--sections", "--relocations", "--symbols"], &object);
        assert!(text.contains(machine), "{triple}: {text}");
        let functions = functions(&text);
        assert!(functions > 10, "{triple}: {functions}");
        let unwind = read(&readobj, &["--unwind"], &object);
        let records = unwind.matches("RuntimeFunction {").count();
        // The test of the processor needs none.
        let level = usize::from(text.contains("digits.level"));
        assert_eq!(records, functions - level, "{triple}");
        let code = read(&objdump, &["-d", "--no-show-raw-insn"], &object);
        assert!(code.contains("<digits_run>:") || code.contains("<digits.run>:"), "{triple}: {code}");
    }
}

/// Local functions in the symbols that `llvm-readobj` prints: those of the code's section, each once.
fn functions(text: &str) -> usize {
    let symbols = text.split("Symbol {").skip(1);
    let local = symbols.filter(|symbol| {
        let has = |part: &str| symbol.contains(part);
        has("Section: .text (") && has("StorageClass: Static") && has("ComplexType: Function")
    });
    local.count()
}

/// A DLL of an object imports nothing. That for aarch64 runs, by a program that loads it, where there is an emulator.
#[test]
fn coff_objects_link_into_libraries() {
    let (Some(linker), Some(readobj)) = (tool("lld-link"), tool("llvm-readobj")) else { return };
    let folder = tempfile::tempdir().unwrap();
    for (triple, machine) in [("x86_64-pc-windows-msvc", "x64"), ("aarch64-pc-windows-msvc", "arm64")] {
        let (object, dll) = (digits(folder.path(), triple), folder.path().join("digits.dll"));
        let out = format!("/out:{}", dll.display());
        let flags = ["/dll", "/noentry", "/nodefaultlib", "/export:digits_model", &out];
        let linked = must(Command::new(&linker).args(flags).arg(format!("/machine:{machine}")).arg(&object));
        assert!(linked.stderr.is_empty(), "{}", String::from_utf8_lossy(&linked.stderr));
        let checked = |dll: &Path| {
            let text = read(&readobj, &["--coff-imports", "--coff-exports", "--unwind"], dll);
            assert!(text.contains("digits_model") && !text.contains("Import {"), "{triple}: {text}");
            assert!(text.matches("RuntimeFunction {").count() > 10, "{triple}: {text}");
            if machine == "arm64" {
                run_under_emulation(folder.path(), dll);
            }
        };
        checked(&dll);
        // The one that the compiler writes without a linker.
        let own = folder.path().join("own.dll");
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(examples().join("digits/digits.onnx")).args(["--target", triple, "--name", "digits", "-o"]);
        must(onnxc.arg(&own).env("PATH", ""));
        checked(&own);
    }
}

fn run_under_emulation(folder: &Path, dll: &Path) {
    let (compiler, emulator) = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static");
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !runs(compiler) || !runs(emulator) {
        println!("not run: {compiler} and {emulator} are not installed");
        return;
    }
    let program = folder.join("pe");
    let mut build = Command::new(compiler);
    build.args(["-static", "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include_dir());
    build.arg("-I").arg(examples().join("digits")).arg(source("pe.c")).arg("-o").arg(&program);
    must(&mut build);
    let output = must(Command::new(emulator).arg(&program).arg(dll).arg("digits_model"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("predicted 9 (probability "), "{text}");
}

#[test]
fn mach_o_objects_are_well_formed() {
    let (Some(readobj), Some(objdump)) = (tool("llvm-readobj"), tool("llvm-objdump")) else { return };
    let linker = tool("ld64.lld");
    let folder = tempfile::tempdir().unwrap();
    for (triple, cpu, arch) in
        [("x86_64-apple-darwin", "X86-64", "x86_64"), ("aarch64-apple-darwin", "Arm64", "arm64")]
    {
        let object = digits(folder.path(), triple);
        let text = read(&readobj, &["--file-headers", "--sections", "--relocations", "--symbols"], &object);
        assert!(text.contains(&format!("CpuType: {cpu}")), "{triple}: {text}");
        let code = read(&objdump, &["-d", "--no-show-raw-insn"], &object);
        assert!(code.contains("_digits_run") || code.contains("_digits.run"), "{triple}");
        let Some(linker) = &linker else { continue };
        let library = folder.path().join("digits.dylib");
        let mut link = Command::new(linker);
        link.args(["-arch", arch, "-platform_version", "macos", "11.0", "11.0", "-dylib", "-o"]);
        let linked = must(link.arg(&library).arg(&object));
        assert!(linked.stderr.is_empty(), "{triple}: {}", String::from_utf8_lossy(&linked.stderr));
        let text = read(&readobj, &["--file-headers", "--symbols"], &library);
        assert!(text.contains("_digits_run") && !text.contains("\n    Type: Undef"), "{triple}: {text}");
    }
}
