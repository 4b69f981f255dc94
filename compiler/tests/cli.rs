//! The program's behaviour: files, messages and exit codes.

#[path = "cli/archive.rs"]
mod archive;
#[path = "cli/commands.rs"]
mod commands;
#[path = "cli/many.rs"]
mod many;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/mistakes.rs"]
mod mistakes;
#[path = "cli/outputs.rs"]
mod outputs;
#[path = "cli/ranks.rs"]
mod ranks;
#[path = "cli/small.rs"]
mod small;
#[path = "cli/targets.rs"]
mod targets;
#[path = "cli/training.rs"]
mod training;
#[path = "cli/values.rs"]
mod values;
#[path = "cli/verdicts.rs"]
mod verdicts;
#[path = "cli/warnings.rs"]
mod warnings;
#[path = "cli/weights.rs"]
mod weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use onnxc::cli::files;
use onnxc_ir::graph::Tensor;
use onnxc_proto::build;
use prost::Message;
use tempfile::TempDir;

struct Run {
    code: i32,
    out: String,
    err: String,
}

fn onnxc(folder: &Path, arguments: &[&str]) -> Run {
    onnxc_with(folder, arguments, &[])
}

fn onnxc_with(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onnxc"));
    command.args(arguments).current_dir(folder).envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    Run {
        code: status.code().expect("the compiler ends by itself"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx").canonicalize().unwrap()
}

/// A folder with the digits model in it.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(digits(), folder.path().join("digits.onnx")).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn objects_come_with_their_header() {
    let folder = folder();
    let run = onnxc(folder.path(), &["digits.onnx"]);
    assert_eq!((run.code, run.out.as_str()), (0, ""), "{}", run.err);
    assert_eq!(names(folder.path()), ["digits.h", "digits.o", "digits.onnx"]);
    assert!(fs::read(folder.path().join("digits.o")).unwrap().starts_with(b"\x7fELF"));
    assert!(fs::read_to_string(folder.path().join("digits.h")).unwrap().contains("digits_run"));
    let object = fs::read(folder.path().join("digits.o")).unwrap();
    let again = onnxc(folder.path(), &["digits.onnx", "-o", "other/../digits.o"]);
    assert_eq!(again.code, 1, "a folder that does not exist");
    assert_eq!(onnxc(folder.path(), &["compile", "digits.onnx"]).code, 0);
    assert_eq!(fs::read(folder.path().join("digits.o")).unwrap(), object, "the same bytes each time");
}

#[test]
fn names_come_from_the_output_or_the_flag() {
    let folder = folder();
    let header = |arguments: &[&str], file: &str| {
        let run = onnxc(folder.path(), arguments);
        assert_eq!(run.code, 0, "{}", run.err);
        fs::read_to_string(folder.path().join(file)).unwrap()
    };
    assert!(header(&["digits.onnx", "-o", "7-net.o"], "7-net.h").contains("m7_net_run"));
    assert!(header(&["digits.onnx", "-o", "x.o", "--name", "mine"], "x.h").contains("mine_run"));
}

#[test]
fn failures_leave_no_file() {
    let folder = folder();
    fs::write(folder.path().join("bad.onnx"), b"this is not a model").unwrap();
    let run = onnxc(folder.path(), &["bad.onnx"]);
    assert_eq!(run.code, 1);
    assert!(run.err.starts_with("error: "), "{}", run.err);
    let run = onnxc(folder.path(), &["missing.onnx"]);
    assert_eq!(run.code, 1);
    assert!(run.err.starts_with("error: missing.onnx: "), "{}", run.err);
    // The output's place cannot be taken.
    fs::create_dir(folder.path().join("taken.o")).unwrap();
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "taken.o"]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert_eq!(names(folder.path()), ["bad.onnx", "digits.onnx", "taken.o"]);
    let run =
        onnxc(folder.path(), &["digits.onnx", "--emit", "so", "-o", "d.so", "--linker", "no-such-compiler"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("cannot run the C compiler `no-such-compiler`"), "{}", run.err);
    assert_eq!(names(folder.path()), ["bad.onnx", "digits.onnx", "taken.o"]);
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let folder = folder();
    for arguments in [
        &["--no-such-flag", "digits.onnx"][..],
        &[],
        &["digits.onnx", "-O", "9"],
        &["digits.onnx", "--input-dim", "batch"],
        &["digits.onnx", "--input-shape", "image"],
        &["digits.onnx", "--target", "no-such-machine"],
        &["digits.onnx", "--mcpu", "z80"],
        &["digits.onnx", "-o", "-"],
        &["digits.onnx", "--print-ir-after", "nothing"],
        &["run", "digits.onnx", "--input", "no=such=input"],
        &["verify", "digits.onnx"],
    ] {
        let run = onnxc(folder.path(), arguments);
        assert_eq!(run.code, 2, "{arguments:?} {}", run.err);
        assert!(!run.err.is_empty(), "{arguments:?}");
    }
    assert_eq!(names(folder.path()), ["digits.onnx"]);
}

#[test]
fn libraries_and_texts() {
    let folder = folder();
    for (emit, file, start) in [("so", "digits.so", &b"\x7fELF"[..]), ("lib", "digits.a", b"!<arch>")] {
        let run = onnxc(folder.path(), &["digits.onnx", "--emit", emit]);
        assert_eq!(run.code, 0, "{emit} {}", run.err);
        assert!(fs::read(folder.path().join(file)).unwrap().starts_with(start), "{emit}");
    }
    for (emit, part) in [
        ("header", "digits_run"),
        ("graph", "contract"),
        ("schedule", "g0 contract ("),
        ("host", "function \"run\" run("),
        ("loops", "kernel "),
        ("clif", "function "),
        ("asm", "ret"),
    ] {
        let run = onnxc(folder.path(), &["digits.onnx", "--emit", emit, "-o", "-", "--name", "digits"]);
        assert_eq!(run.code, 0, "{emit} {}", run.err);
        assert!(run.out.contains(part), "{emit}: {}", run.out);
    }
    let run =
        onnxc(folder.path(), &["digits.onnx", "--emit", "graph", "--time-passes", "--print-ir-after", "cse"]);
    assert!(run.err.contains("pass dce") && run.err.contains("// after cse"), "{}", run.err);
    let run = onnxc(folder.path(), &["digits.onnx", "-o", "timed.o", "--time-passes"]);
    let stages =
        ["decode", "import", "borders", "schedule", "kernels", "folder", "emit", "header", "write", "commit"];
    for stage in stages.map(|stage| format!(" ms  stage {stage}\n")) {
        assert!(run.err.contains(&stage), "{stage}: {}", run.err);
    }
    assert!(run.err.trim_end().ends_with(" ms  total"), "{}", run.err);
}

#[test]
fn check_lists_problems() {
    let folder = folder();
    let run = onnxc(folder.path(), &["check", "digits.onnx"]);
    assert_eq!((run.code, run.out.as_str()), (0, "no problems\n"), "{}", run.err);
    fs::write(folder.path().join("bad.onnx"), b"\x3a\xff").unwrap();
    let run = onnxc(folder.path(), &["check", "bad.onnx", "--json"]);
    assert_eq!(run.code, 1);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["problems"][0]["stage"], "decode");
    assert!(report["problems"][0]["text"].is_string());
}

/// For x86-64, on any machine.
#[test]
fn objects_hold_versions_for_several_processors() {
    let folder = folder();
    let on = |arguments: &[&str]| {
        let mut all = vec!["digits.onnx", "--target", "x86_64-unknown-linux-gnu"];
        all.extend(arguments);
        let run = onnxc(folder.path(), &all);
        assert_eq!(run.code, 0, "{}", run.err);
        run.out
    };
    let text = on(&["--emit", "asm", "-o", "-"]);
    assert!(["", "-v3", "-v4"].iter().all(|level| text.contains(&format!("// x86-64{level}\n"))), "{text}");
    assert!(text.contains("mulps") && text.contains("vfmadd231ps") && text.contains("%zmm"), "{text}");
    let text = on(&["--emit", "asm", "-o", "-", "--vector-width", "256"]);
    assert!(text.contains("// x86-64-v3\n") && !text.contains("%zmm"), "{text}");
    for single in [&["--mcpu", "x86-64"], &["--vector-width", "128"]] {
        let text = on(&[&["--emit", "asm", "-o", "-"][..], single].concat());
        assert!(text.contains("mulps") && !text.contains("\tv") && !text.contains("// x86-64"), "{text}");
    }
    let loops = on(&["--emit", "loops", "-o", "-"]);
    assert!(loops.contains("// x86-64-v3\n") && loops.contains("// x86-64-v4\n"), "{loops}");
    let inspect = |arguments: &[&str]| {
        let all = [&["inspect", "digits.onnx", "--target", "x86_64-unknown-linux-gnu"], arguments].concat();
        onnxc(folder.path(), &all).out
    };
    let levels =
        "x86-64, x86-64-v3, x86-64-v3+vnni, x86-64-v4, x86-64-v4+vnni, x86-64-v4+vbmi, x86-64-v4+amx";
    assert!(inspect(&[]).contains(&format!(", for {levels}\n")), "{}", inspect(&[]));
    let few = ["--levels", "x86-64-v4,x86-64", "--versions"];
    let text = inspect(&few);
    assert!(
        text.contains(", for x86-64, x86-64-v4\n") && text.contains(" kernels for x86-64-v4: "),
        "{text}"
    );
    assert!(text.lines().any(|line| line.contains(": x86-64 ") && line.contains(", x86-64-v4 ")), "{text}");
    assert!(!text.contains("x86-64-v3"), "{text}");
    let wrong = onnxc(folder.path(), &["digits.onnx", "-o", "x.o", "--levels", "x86-64-v9"]);
    assert!(wrong.err.contains("there is no level `x86-64-v9`; known are "), "{}", wrong.err);
    assert!(inspect(&["--mcpu", "znver3"]).contains(", for znver3\n"));
    let bytes = |arguments: &[&str]| {
        on(&[&["-o", "digits.o"], arguments].concat());
        fs::read(folder.path().join("digits.o")).unwrap()
    };
    let holds = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    for wanted in [".x86_64_v3", ".x86_64_v4", "digits.known_level"] {
        assert!(holds(&bytes(&[]), wanted), "{wanted}");
    }
    let single = bytes(&["--mcpu", "x86-64-v3"]);
    assert!(!holds(&single, ".x86_64_v3") && !holds(&single, "digits.known_level"));
}

#[test]
fn inspect_and_ops_report() {
    let folder = folder();
    let run = onnxc(folder.path(), &["inspect", "digits.onnx", "--json"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert!(report["parameters"].as_u64().unwrap() > 0);
    assert_eq!(report["inputs"].as_array().unwrap().len(), 1);
    assert!(!report["operators"].as_object().unwrap().is_empty());
    assert!(onnxc(folder.path(), &["inspect", "digits.onnx"]).out.contains("parameters: "));
    let run = onnxc(folder.path(), &["ops", "--json"]);
    assert!(serde_json::from_str::<serde_json::Value>(&run.out).is_ok());
    assert!(onnxc(folder.path(), &["ops", "--markdown"]).out.contains("| "));
    assert!(onnxc(folder.path(), &["ops"]).out.contains("ai.onnx.MatMul since "));
}

#[test]
fn runs_read_and_write_npy() {
    let folder = folder();
    let run = onnxc(folder.path(), &["run", "digits.onnx", "--random", "7", "--output", "a"]);
    assert_eq!(run.code, 0, "{}", run.err);
    let outputs = names(&folder.path().join("a"));
    let first = files::read_tensor(&folder.path().join("a").join(&outputs[0]), None).unwrap();
    onnxc(folder.path(), &["run", "digits.onnx", "--random", "7", "--output", "b"]);
    let second = files::read_tensor(&folder.path().join("b").join(&outputs[0]), None).unwrap();
    assert_eq!(first, second);
    onnxc(folder.path(), &["run", "digits.onnx", "--random", "8", "--output", "c"]);
    assert_ne!(first, files::read_tensor(&folder.path().join("c").join(&outputs[0]), None).unwrap());

    let report = onnxc(folder.path(), &["inspect", "digits.onnx", "--json"]).out;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let size = |dim: &serde_json::Value| dim.as_str().unwrap().parse().unwrap_or(1);
    let shape: Vec<usize> = report["inputs"][0]["dims"].as_array().unwrap().iter().map(size).collect();
    let zeros = Tensor::from_slice(&shape, &vec![0f32; shape.iter().product()]);
    files::write_npy(&folder.path().join("x.npy"), &zeros).unwrap();
    let run = onnxc(folder.path(), &["run", "digits.onnx", "--input", "x.npy"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.contains("f32["), "{}", run.out);
    let named = format!("{}=x.npy", report["inputs"][0]["name"].as_str().unwrap());
    assert_eq!(onnxc(folder.path(), &["run", "digits.onnx", "--input", &named]).out, run.out);

    let wrong = Tensor::from_slice(&[1, 2], &[1i64, 2]);
    files::write_npy(&folder.path().join("wrong.npy"), &wrong).unwrap();
    let run = onnxc(folder.path(), &["run", "digits.onnx", "--input", "wrong.npy"]);
    assert_eq!(run.code, 2);
    assert!(run.err.starts_with("error: "), "{}", run.err);
    let run = onnxc(folder.path(), &["run", "digits.onnx"]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("is missing"), "{}", run.err);
}

#[test]
fn random_inputs_have_the_sizes_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    write_open_model(&folder.path().join("open.onnx"));
    let run = |sizes: &[&str]| {
        let mut arguments = vec!["run", "open.onnx", "--random", "1"];
        sizes.iter().for_each(|size| arguments.extend(["--size", size]));
        onnxc(folder.path(), &arguments)
    };
    for (sizes, shape) in [
        (&[][..], "f32[1, 4]"),
        (&["rows=3"], "f32[3, 4]"),
        (&["x:0=2"], "f32[2, 4]"),
        (&["rows=3", "x:0=5"], "f32[5, 4]"),
    ] {
        let run = run(sizes);
        assert!(run.code == 0 && run.out.contains(shape), "{sizes:?}: {}{}", run.out, run.err);
    }
    for size in ["columns=3", "x:1=3", "x:7=3", "y:0=3"] {
        let run = run(&[size]);
        let target = size.split_once('=').unwrap().0;
        let named = format!("size of `{target}`: the inputs have these open dims: rows");
        assert!(run.code == 2 && run.err.contains(&named), "{size}: {}", run.err);
    }
    assert_eq!(run(&["rows"]).code, 2);
    let run = onnxc(folder.path(), &["run", "open.onnx", "--size", "rows=3", "--data", "."]);
    assert!(run.code == 2 && run.err.contains("--data"), "{}", run.err);
    let arguments = ["bench", "open.onnx", "--json", "--seconds", "0.01", "--size", "rows=4096"];
    let run = onnxc(folder.path(), &arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["sizes"], serde_json::json!({ "rows": 4096 }));
    let run = onnxc(folder.path(), &["bench", "open.onnx", "--seconds", "0.01"]);
    assert!(run.out.contains("sizes rows=1 (--size"), "{}", run.out);
    let run = onnxc(folder.path(), &["bench", "open.onnx", "--seconds", "0.01", "--size", "columns=1"]);
    assert!(run.code == 2 && run.err.contains("open dims: rows"), "{}", run.err);
}

/// A model `y = Relu(x)` where `x` has any number of `rows` of four.
fn write_open_model(path: &Path) {
    let value = |name| build::f32_value(name, &["rows", "4"]);
    let graph = build::graph(vec![value("x")], vec![build::node("Relu", &["x"], &["y"])], vec![value("y")]);
    fs::write(path, build::model(17, graph).encode_to_vec()).unwrap();
}

#[test]
fn bench_leaves_data_of_other_sizes_aside() {
    let folder = folder();
    let set = folder.path().join("test_data_set_0");
    fs::create_dir(&set).unwrap();
    // A batch of two, where the model takes one.
    write_tensor(&set.join("input_0.pb"), &[2, 64]);
    write_tensor(&set.join("output_0.pb"), &[2, 10]);
    let run = onnxc(folder.path(), &["bench", "digits.onnx", "--seconds", "0.01"]);
    assert_eq!(run.code, 0, "{}", run.err);
}

/// A file of test data: zeros of type f32.
fn write_tensor(path: &Path, dims: &[i64]) {
    let tensor = onnxc_proto::TensorProto {
        dims: dims.to_vec(),
        data_type: Some(1),
        raw_data: Some(vec![0; 4 * dims.iter().product::<i64>() as usize].into()),
        ..Default::default()
    };
    fs::write(path, tensor.encode_to_vec()).unwrap();
}

#[test]
fn bench_reports_json() {
    let folder = folder();
    let arguments = ["bench", "digits.onnx", "--json", "--seconds", "0.02", "--threads", "2", "--per-node"];
    let run = onnxc(folder.path(), &arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    for key in [
        "load_ms",
        "first_ms",
        "min_ms",
        "median_ms",
        "runs",
        "workspace_bytes",
        "object_bytes",
        "compile_ms",
    ] {
        assert!(report[key].is_number(), "{key}");
    }
    assert!(!report["nodes"].as_array().unwrap().is_empty());
}
