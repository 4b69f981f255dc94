//! Ranks that are not static: of inputs, given by an option or by the data, and of outputs, decided by the run.

use std::fs;
use std::path::Path;

use onnxc_proto::{GraphProto, ModelProto, ValueInfoProto, build, type_proto};
use prost::Message;

use crate::onnxc;

/// A tensor of f32 without a shape.
fn open(name: &str) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(1), shape: None };
    build::typed(name, type_proto::Value::TensorType(tensor))
}

/// `y = Abs(x)`, about whose shapes nothing is declared, with data of shape `[2, 1, 3]`.
fn folder() -> tempfile::TempDir {
    let nodes = vec![build::node("Abs", &["x"], &["y"])];
    in_folder(build::model(17, build::graph(vec![open("x")], nodes, vec![open("y")])), &[2, 1, 3])
}

/// Data for an output of shape `dims`, all 1.
fn in_folder(model: ModelProto, dims: &[i64]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    write_set(folder.path(), &[2, 1, 3], dims);
    folder
}

fn write_set(folder: &Path, input: &[i64], output: &[i64]) {
    let set = folder.join("test_data_set_0");
    fs::create_dir_all(&set).unwrap();
    let ones = |dims: &[i64]| {
        let count = dims.iter().product::<i64>() as usize;
        build::f32_tensor("", dims, vec![1.0; count]).encode_to_vec()
    };
    fs::write(set.join("input_0.pb"), ones(input)).unwrap();
    fs::write(set.join("output_0.pb"), ones(output)).unwrap();
}

#[test]
fn an_input_without_a_shape_is_given_one() {
    let folder = folder();
    let run = |arguments: &[&str]| onnxc(folder.path(), arguments);
    for command in ["compile", "check", "inspect"] {
        let failed = run(&[command, "m.onnx"]);
        let said = format!("{}{}", failed.out, failed.err);
        assert!(
            said.contains("its rank is unknown: give its shape, --input-shape x=DIM,..."),
            "{command}: {said}"
        );
        assert_eq!(failed.code, 1);
        assert_eq!(run(&[command, "m.onnx", "--input-shape", "x=n,3"]).code, 0, "{command}");
    }
    let text = run(&["inspect", "m.onnx", "--input-shape", "x=n,3"]).out;
    assert!(text.contains("input x: f32[n, 3]\noutput y: f32[n, 3]\n"), "{text}");
    let pinned = run(&["check", "m.onnx", "--input-dim", "x:0=2"]);
    assert!(
        pinned.out.contains("--input-dim x:0=2: its rank is unknown: give its shape, --input-shape x=DIM")
    );
    for wrong in ["x", "x=1,-2", "q=1"] {
        let run = run(&["compile", "m.onnx", "--input-shape", wrong]);
        assert_eq!(run.code, 2, "{wrong}: {}", run.err);
    }
}

#[test]
fn an_input_without_a_shape_has_the_rank_of_the_data() {
    let folder = folder();
    let run = |arguments: &[&str]| {
        let run = onnxc(folder.path(), arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {} {}", run.out, run.err);
        run.out
    };
    let data = "test_data_set_0/input_0.pb";
    for input in [data.to_string(), format!("x={data}")] {
        let text = run(&["run", "m.onnx", "--input", &input]);
        assert_eq!(text, "y: f32[2, 1, 3] = 1, 1, 1, 1, 1, 1\n");
    }
    assert!(run(&["run", "m.onnx", "--data", "test_data_set_0"]).starts_with("y: f32[2, 1, 3]"));
    assert!(run(&["verify", "m.onnx"]).contains("y: exact"));
    assert!(run(&["verify", "m.onnx", "--bisect"]).contains("no stage differs"));
    assert!(run(&["bench", "m.onnx", "--seconds", "0"]).contains("min "));
    assert!(run(&["bench", "m.onnx", "--seconds", "0", "--data", "test_data_set_0"]).contains("min "));
    run(&["report", "m.onnx", "--seconds", "0", "-o", "m.html"]);
    // What an option says holds.
    let given = onnxc(folder.path(), &["run", "m.onnx", "--input", data, "--input-shape", "x=?,3"]);
    assert_ne!(given.code, 0);
    // Nothing to run on but random numbers.
    let random = onnxc(folder.path(), &["run", "m.onnx", "--random", "1"]);
    assert!(random.code == 1 && random.err.contains("--input-shape x=DIM,..."), "{}", random.err);
}

/// `y` is `x: f32[2, n, 3]` without the axis of size `n` where that is 1.
fn squeezed() -> ModelProto {
    let body = |op: &str, inputs: &[&str]| -> GraphProto {
        build::graph(vec![], vec![build::node(op, inputs, &["r"])], vec![build::untyped("r")])
    };
    let nodes = vec![
        build::node("Shape", &["x"], &["sizes"]),
        build::node("Gather", &["sizes", "one"], &["size"]),
        build::node("Equal", &["size", "one"], &["is_one"]),
        build::node("If", &["is_one"], &["y"])
            .with(build::subgraph("then_branch", body("Squeeze", &["x", "one"])))
            .with(build::subgraph("else_branch", body("Identity", &["x"]))),
    ];
    let mut graph = build::graph(vec![build::f32_value("x", &["2", "n", "3"])], nodes, vec![open("y")]);
    graph.initializer = vec![build::i64_tensor("one", &[1], vec![1])];
    build::model(17, graph)
}

#[test]
fn an_output_has_the_rank_of_the_run() {
    let folder = in_folder(squeezed(), &[2, 3]);
    let run = |arguments: &[&str], code: i32| {
        let run = onnxc(folder.path(), arguments);
        assert_eq!(run.code, code, "{arguments:?}: {} {}", run.out, run.err);
        run.out
    };
    let text = run(&["inspect", "m.onnx"], 0);
    assert!(text.contains("; the run decides its rank, 2 or 3\n"), "{text}");
    assert!(run(&["inspect", "m.onnx", "--json"], 0).contains("\"least_rank\": 2"));
    run(&["m.onnx", "-o", "m.o"], 0);
    let header = fs::read_to_string(folder.path().join("m.h")).unwrap();
    assert!(header.contains("M_OUTPUT_Y_LEAST_RANK 2\n") && !header.contains("m_predict"), "{header}");
    for level in ["0", "3"] {
        assert!(run(&["verify", "m.onnx", "-O", level], 0).contains("y: exact"));
    }
    assert!(run(&["verify", "m.onnx", "--bisect"], 0).contains("no stage differs"));
    assert!(run(&["verify", "m.onnx", "--per-node"], 0).contains("named values agree"));
    assert!(run(&["bench", "m.onnx", "--seconds", "0"], 0).contains("min "));
    run(&["run", "m.onnx", "--data", "test_data_set_0", "--output", "out"], 0);
    let written = onnxc::cli::files::read_tensor(&folder.path().join("out/y.npy"), None).unwrap();
    assert_eq!(written.shape, [2, 3]);
    write_set(folder.path(), &[2, 2, 3], &[2, 2, 3]);
    assert!(run(&["verify", "m.onnx"], 0).contains("y: exact"));
    write_set(folder.path(), &[2, 2, 3], &[4, 3]);
    assert!(run(&["verify", "m.onnx"], 1).contains("WRONG"));
}
