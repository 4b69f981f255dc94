//! What `onnxc verify` makes of outputs that are not those expected.

use std::fs;
use std::path::Path;

use onnxc_proto::{TensorProto, build};
use prost::Message;

use crate::{Run, onnxc};

/// Verifies `model` with one input and one expected output.
fn verify(model: onnxc_proto::GraphProto, input: TensorProto, output: TensorProto, flags: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("test_data_set_0");
    fs::create_dir(&set).unwrap();
    let write = |path: &Path, bytes: Vec<u8>| fs::write(path, bytes).unwrap();
    write(&folder.path().join("m.onnx"), build::model(19, model).encode_to_vec());
    write(&set.join("input_0.pb"), input.encode_to_vec());
    write(&set.join("output_0.pb"), output.encode_to_vec());
    onnxc(folder.path(), &[&["verify", "m.onnx"], flags].concat())
}

fn relu() -> onnxc_proto::GraphProto {
    let value = |name| build::f32_value(name, &["4"]);
    build::graph(vec![value("x")], vec![build::node("Relu", &["x"], &["y"])], vec![value("y")])
}

/// `y = QuantizeLinear(x, 0.5, 10)`, of 1000 elements.
fn quantise() -> onnxc_proto::GraphProto {
    let node = build::node("QuantizeLinear", &["x", "scale", "zero"], &["y"]);
    let (x, y) = (build::f32_value("x", &["1000"]), build::value("y", 2, &["1000"]));
    let mut graph = build::graph(vec![x], vec![node], vec![y]);
    let zero = TensorProto {
        data_type: Some(2),
        int32_data: vec![10],
        name: Some("zero".into()),
        ..Default::default()
    };
    graph.initializer = vec![build::f32_tensor("scale", &[], vec![0.5]), zero];
    graph
}

fn bytes(values: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: vec![values.len() as i64],
        data_type: Some(2),
        raw_data: Some(values.into()),
        ..Default::default()
    }
}

#[test]
fn floats_are_exact_close_or_wrong() {
    let x = || build::f32_tensor("x", &[4], vec![1.0, -2.0, 3.0, 4.0]);
    let y = |last: f32| build::f32_tensor("y", &[4], vec![1.0, 0.0, 3.0, last]);
    for (last, verdict, code) in [(4.0, "exact", 0), (4.001, "within tolerance", 0), (4.1, "WRONG", 1)] {
        let run = verify(relu(), x(), y(last), &[]);
        assert_eq!(run.code, code, "{}{}", run.out, run.err);
        assert!(run.out.starts_with(&format!("test_data_set_0 y: {verdict}, max abs ")), "{}", run.out);
        for part in ["ULP, norm-relative ", ", cosine "] {
            assert!(run.out.contains(part), "{}", run.out);
        }
    }
    assert_eq!(verify(relu(), x(), y(4.1), &["--atol", "0.2"]).code, 0);
}

#[test]
fn steps_of_quantisation_are_noise() {
    let x = || build::f32_tensor("x", &[1000], (0..1000).map(|at| (at % 100) as f32).collect());
    let y = |off: usize, by: u8| {
        let mut values: Vec<u8> = (0..1000).map(|at| (at % 100) as u8 * 2 + 10).collect();
        values[..off].iter_mut().for_each(|value| *value += by);
        bytes(values)
    };
    let run = verify(quantise(), x(), y(0, 0), &[]);
    assert!(run.code == 0 && run.out.contains("y: exact"), "{}{}", run.out, run.err);
    let run = verify(quantise(), x(), y(3, 1), &[]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(
        run.out.contains("y: noise") && run.out.contains("3 of 1000 elements differ by one step"),
        "{}",
        run.out
    );
    // Whoever says how near is near enough has it so.
    assert_eq!(verify(quantise(), x(), y(3, 1), &["--atol", "0"]).code, 1);
    let run = verify(quantise(), x(), y(3, 40), &[]);
    assert!(run.code == 1 && run.out.contains("y: WRONG"), "{}", run.out);
}
