//! What people type wrong, and the messages for it: one row for each mistake.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use onnxc::cli::files;
use onnxc_ir::graph::Tensor;
use onnxc_proto::{NodeProto, build};
use prost::Message;
use tempfile::TempDir;

use crate::{Run, digits, names, onnxc, write_open_model};

/// A command line, its exit code, what the message has, and what it has not.
type Row<'r> = (&'r [&'r str], i32, &'r [&'r str], &'r [&'r str]);

fn write_model(path: &Path, inputs: &[(&str, &[&str])], node: NodeProto, weights: &[(&str, &[i64])]) {
    let inputs = inputs.iter().map(|(name, dims)| build::f32_value(name, dims)).collect();
    let mut graph = build::graph(inputs, vec![node], vec![build::untyped("y")]);
    for (name, dims) in weights {
        let count = dims.iter().product::<i64>() as usize;
        graph.initializer.push(build::f32_tensor(name, dims, vec![0.5; count]));
    }
    fs::write(path, build::model(17, graph).encode_to_vec()).unwrap();
}

/// A folder with the models and the files of the table.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::copy(digits(), path("digits.onnx")).unwrap();
    // `rows` by 4, of f32.
    write_open_model(&path("open.onnx"));
    write_model(&path("typo.onnx"), &[("x", &["4"])], build::node("Reluu", &["x"], &["y"]), &[]);
    let custom = NodeProto { domain: Some("my.ops".into()), ..build::node("Frob", &["x"], &["y"]) };
    write_model(&path("custom.onnx"), &[("x", &["4"])], custom, &[]);
    let conv = build::node("Conv", &["x", "w"], &["y"]).with(build::int("group", 2));
    write_model(&path("conv.onnx"), &[("x", &["1", "4", "8", "8"])], conv, &[("w", &[3, 2, 1, 1])]);
    let whole = fs::read(digits()).unwrap();
    fs::write(path("half.onnx"), &whole[..whole.len() / 2]).unwrap();
    fs::write(path("m.ort"), b"\x28\0\0\0ORTM\0\0\0\0\0\0\0\0").unwrap();
    fs::write(path("m.gguf"), b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0").unwrap();
    fs::write(path("m.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let tensor = build::f32_tensor("t", &[2], vec![1.0, 2.0]);
    fs::write(path("t.pb"), tensor.encode_to_vec()).unwrap();
    files::write_npy(&path("x64.npy"), &Tensor::from_slice(&[2, 4], &[1.0f64; 8])).unwrap();
    files::write_npy(&path("x24.npy"), &Tensor::from_slice(&[2, 4], &[1.0f32; 8])).unwrap();
    folder
}

#[test]
fn messages_say_what_to_do() {
    let foreign = match cfg!(target_arch = "aarch64") {
        true => "x86_64-unknown-linux-gnu",
        false => "aarch64-unknown-linux-gnu",
    };
    let x86 = ["--target", "x86_64-unknown-linux-gnu"];
    let half = format!("it has {} bytes of ", fs::read(digits()).unwrap().len() / 2);
    let rows: &[Row] = &[
        (
            &["run", "open.onnx"],
            2,
            &["input `x` is missing", "--input x=FILE", "--size rows=N", "--random SEED"],
            &["s0"],
        ),
        (&["m.ort"], 1, &["ONNX Runtime's own format"], &["wire type"]),
        (&["m.gguf"], 1, &["GGUF", "export"], &["wire type"]),
        (&["m.safetensors"], 1, &["safetensors", "export"], &["wire type"]),
        (&["t.pb"], 1, &["TensorProto", "run MODEL.onnx --input"], &["wire type"]),
        (&["half.onnx"], 1, &["the file is cut off", &half], &["and 8"]),
        (
            &["typo.onnx"],
            1,
            &["operator Reluu of ai.onnx", "did you mean `Relu`?", "a function of the model can define it"],
            &["not supported yet"],
        ),
        (&["custom.onnx"], 1, &["operator Frob of my.ops", "a function of the model can define it"], &[]),
        (
            &["digits.onnx", x86[0], x86[1], "--mcpu", "skylakee"],
            2,
            &["unknown processor `skylakee`", "did you mean `skylake`?"],
            &["znver3"],
        ),
        (&["digits.onnx", "--target", "x86_64-unknown-linux-gun"], 2, &["x86_64-unknown-linux-gnu"], &[]),
        (
            &["run", "open.onnx", "--input", "x64.npy"],
            2,
            &["input `x` takes f32, and x64.npy has f64"],
            &["type 11"],
        ),
        (
            &["run", "open.onnx", "--input", "x=x64.npy"],
            2,
            &["input `x` takes f32, and x64.npy has f64"],
            &["type 11"],
        ),
        (
            &["run", "open.onnx", "--input", "y=x24.npy"],
            2,
            &["the model has no input `y`; it has x"],
            &["No such file"],
        ),
        (&["run", "digits.onnx", "--input", "imag=x24.npy"], 2, &["no input `imag`"], &[]),
        (
            &["digits.onnx", "-o", "no/folder/a.o"],
            1,
            &["no/folder/a.", "the folder `no/folder` does not exist"],
            &["staging", "onnxc-"],
        ),
        (
            &["digits.onnx", "--emit", "graph", "-o", "none/a.graph"],
            1,
            &["none/a.graph: the folder `none` does not exist"],
            &[],
        ),
        (
            &["bench", "digits.onnx", "--target", foreign],
            2,
            &["code for ", foreign, "does not run on this machine"],
            &["ld"],
        ),
        (&["run", "digits.onnx", "--random", "1", "--target", foreign], 2, &["does not run on this"], &[]),
        (&["verify", "digits.onnx", "--bisect", "--target", foreign], 2, &["does not run on this"], &[]),
        (&["report", "digits.onnx", "--target", foreign], 2, &["does not run on this machine"], &[]),
        (
            &["conv.onnx"],
            1,
            &["dimension 0 of W `w` is 3; it must be a multiple of group, which is 2"],
            &["mod", "must be 0"],
        ),
        // Mistyped names of every kind.
        (&["chek", "digits.onnx"], 2, &["did you mean `check`?"], &[]),
        (&["digits.onnx", "--optput", "a.o"], 2, &["--optput", "tip"], &[]),
        (&["digits.onnx", "--emit", "grpah"], 2, &["grpah", "'graph'"], &[]),
        (&["digits.onnx", "--print-ir-after", "csee"], 2, &["did you mean `cse`?"], &[]),
        (&["open.onnx", "--input-dim", "row=1"], 2, &["did you mean `rows`?"], &[]),
        (&["run", "open.onnx", "--size", "rwos=2"], 2, &["did you mean `rows`?"], &[]),
        (&["digits.onnx", "--input-shape", "imags=1,64"], 2, &["no input is `imags`"], &[]),
        (&["digits.onnx", "--state", "imags=out"], 2, &["no input is `imags`"], &[]),
    ];
    let folder = folder();
    let before = names(folder.path());
    for (arguments, code, has, has_not) in rows {
        let Run { code: found, out, err } = onnxc(folder.path(), arguments);
        assert_eq!(found, *code, "{arguments:?}: {out}{err}");
        for part in *has {
            assert!(err.contains(part), "{arguments:?}: no `{part}` in {err}");
        }
        for part in *has_not {
            assert!(!err.contains(part), "{arguments:?}: `{part}` in {err}");
        }
        assert_eq!(err.matches("error: ").count(), 1, "{arguments:?}: {err}");
    }
    assert_eq!(names(folder.path()), before, "no file is written");
}

/// The reader of standard error goes away at once, and the object is written all the same.
#[test]
fn a_closed_pipe_loses_no_object() {
    for flag in ["--time-passes", "-v", "--print-ir-after=all"] {
        let folder = folder();
        let mut child = Command::new(env!("CARGO_BIN_EXE_onnxc"))
            .args(["digits.onnx", flag])
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{flag}");
        assert!(folder.path().join("digits.o").exists() && folder.path().join("digits.h").exists(), "{flag}");
    }
}

/// `--size` alone asks for random inputs, and small models take microseconds.
#[test]
fn sizes_ask_for_random_inputs_and_times_have_units() {
    let folder = folder();
    let run = onnxc(folder.path(), &["run", "open.onnx", "--size", "rows=3"]);
    assert!(run.code == 0 && run.out.starts_with("y: f32[3, 4] = "), "{}{}", run.out, run.err);
    let run = onnxc(folder.path(), &["bench", "open.onnx", "--seconds", "0.01"]);
    assert!(run.code == 0 && !run.out.contains("min 0.000"), "{}{}", run.out, run.err);
    let least = run.out.split("min ").nth(1).unwrap().split(',').next().unwrap();
    assert!(least.ends_with(" us") || least.ends_with(" ns"), "{least}");
}

#[test]
fn every_command_has_json_and_quiet() {
    let folder = folder();
    let page = folder.path().join("page.html");
    let set = folder.path().join("test_data_set_0");
    fs::create_dir(&set).unwrap();
    let tensor = |name: &str, values: [f32; 8]| build::f32_tensor(name, &[2, 4], values.to_vec());
    let values = [1.0, -1.0, 0.0, 2.0, -2.0, 3.0, -3.0, 4.0];
    fs::write(set.join("input_0.pb"), tensor("x", values).encode_to_vec()).unwrap();
    fs::write(set.join("output_0.pb"), tensor("y", values.map(|value| value.max(0.0))).encode_to_vec())
        .unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let run = onnxc(folder.path(), &[arguments, &["--json", "--quiet"]].concat());
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{arguments:?}: {}", run.out);
        serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", run.out))
    };
    let made = json(&["open.onnx", "-o", "a.o"]);
    assert_eq!(made["files"][1]["path"], "a.o");
    let bytes = fs::metadata(folder.path().join("a.o")).unwrap().len();
    assert_eq!(made["files"][1]["bytes"], bytes);
    assert_eq!(json(&["check", "open.onnx"])["problems"], serde_json::json!([]));
    assert_eq!(json(&["inspect", "open.onnx"])["inputs"][0]["name"], "x");
    let ran = json(&["run", "open.onnx", "--data", "test_data_set_0"]);
    let wanted = serde_json::json!({
        "name": "y", "dtype": "f32", "shape": [2, 4], "elements": [1.0, 0.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0]
    });
    assert_eq!(ran["outputs"][0]["name"], wanted["name"]);
    assert_eq!(ran["outputs"][0]["shape"], wanted["shape"]);
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value["elements"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    assert_eq!(numbers(&ran["outputs"][0]), numbers(&wanted));
    let filed = json(&["run", "open.onnx", "--data", "test_data_set_0", "--output", "out"]);
    assert_eq!(filed["outputs"][0]["file"], "out/y.npy");
    let verified = json(&["verify", "open.onnx"]);
    assert_eq!((&verified["good"], &verified["outputs"][0]["verdict"]), (&true.into(), &"exact".into()));
    assert!(json(&["bench", "open.onnx", "--seconds", "0.01"])["min_ms"].as_f64().unwrap() > 0.0);
    assert!(json(&["report", "open.onnx", "--seconds", "0.01", "-o", "page.html"])["nodes"].is_array());
    assert!(page.exists());
    assert!(json(&["ops"]).is_array() || json(&["ops"]).is_object());
    // Without JSON, what is good says nothing.
    for arguments in [
        &["-q", "open.onnx", "-o", "b.o"][..],
        &["--quiet", "verify", "open.onnx"],
        &["verify", "open.onnx", "--quiet"],
        &["run", "open.onnx", "--random", "1", "--output", "out", "-q"],
    ] {
        let run = onnxc(folder.path(), arguments);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "", ""), "{arguments:?}");
    }
    fs::write(set.join("output_0.pb"), tensor("y", values).encode_to_vec()).unwrap();
    let run = onnxc(folder.path(), &["verify", "open.onnx", "-q"]);
    assert!(run.code == 1 && run.out.contains("WRONG"), "{}{}", run.out, run.err);
    let run = onnxc(folder.path(), &["verify", "open.onnx", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert!(
        run.code == 1 && report["good"] == false && report["outputs"][0]["verdict"] == "WRONG",
        "{report}"
    );
}

#[test]
fn help_has_what_people_look_for() {
    let folder = folder();
    let help = onnxc(folder.path(), &["--help"]).out;
    for part in ["-o FILE", "--mcpu", "--target", "--input-dim", "Exit codes: 0 success; 1 ", "--quiet"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    // Every option of every command has a text.
    for command in ["compile", "check", "inspect", "run", "verify", "bench", "report", "ops", "man"] {
        let help = onnxc(folder.path(), &[command, "--help"]).out;
        let lines: Vec<&str> = help.lines().collect();
        let options = lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with('-'));
        let mut count = 0;
        for (at, line) in options.filter(|(_, line)| line.starts_with("  -") || line.starts_with("      --"))
        {
            count += 1;
            let beside =
                line.trim_start().split("  ").any(|part| part.trim().contains(' ') && !part.starts_with('-'));
            let below = lines
                .get(at + 1)
                .is_some_and(|next| next.starts_with("          ") && !next.trim().is_empty());
            assert!(beside || below, "{command}: no text for {line}");
        }
        assert!(count > 1, "{command}: {help}");
    }
    // Manual pages have examples and exit codes, and name existing pages only.
    assert_eq!(onnxc(folder.path(), &["man", "--output", "man1"]).code, 0);
    let pages = names(&folder.path().join("man1"));
    for page in &pages {
        let text = fs::read_to_string(folder.path().join("man1").join(page)).unwrap();
        assert!(text.contains(".SH EXAMPLES") && text.contains(".SH \"EXIT STATUS\""), "{page}: {text}");
        for other in text.split("onnxc\\-").skip(1).filter_map(|rest| rest.split_once("(1)")) {
            let named = format!("onnxc-{}.1", other.0.replace("\\-", "-"));
            assert!(other.0.contains(' ') || pages.contains(&named), "{page} names {named}");
        }
    }
}
