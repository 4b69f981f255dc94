//! What the program says of models that break the specification and are compiled all the same, and random numbers.

use std::fs;

use onnxc::cli::files;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, GraphProto, NodeProto, build};
use prost::Message;
use tempfile::TempDir;

use crate::onnxc;

fn folder(graph: GraphProto) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.onnx"), build::model(19, graph).encode_to_vec()).unwrap();
    folder
}

/// Nodes in the wrong order, and two values that are declared as what they are not.
fn broken() -> TempDir {
    let value = |name, size| build::f32_value(name, &[size]);
    let named = |name: &str, input, output| NodeProto {
        name: Some(name.into()),
        ..build::node("Neg", &[input], &[output])
    };
    let nodes = vec![named("last", "b", "y"), named("first", "x", "a"), named("second", "a", "b")];
    let mut graph = build::graph(vec![value("x", "4")], nodes, vec![value("y", "4")]);
    graph.value_info = vec![value("a", "5"), value("b", "6")];
    folder(graph)
}

const A: &str = "node 1 `first` (ai.onnx.Neg since 13) with x: f32[4]: `a` is declared as f32[5], and its type is f32[4], which holds";
const B: &str = "node 2 `second` (ai.onnx.Neg since 13) with a: f32[4]: `b` is declared as f32[6], and its type is f32[4], which holds";
const ORDER: &str = "node 0 `last` (ai.onnx.Neg since 13) with b: ?: input `b` is used before node 2 `second` defines it: the \
                     nodes are sorted into topological order";

#[test]
fn each_kind_is_told_once_and_check_lists_all() {
    let folder = broken();
    let first = format!("warning: {A} (and 1 other like it, which `onnxc check` lists)\nwarning: {ORDER}\n");
    let run = onnxc(folder.path(), &["m.onnx"]);
    assert_eq!((run.code, run.err.as_str()), (0, first.as_str()));
    let run = onnxc(folder.path(), &["run", "m.onnx", "--random", "1"]);
    assert_eq!((run.code, run.err.as_str()), (0, first.as_str()));
    let run = onnxc(folder.path(), &["check", "m.onnx"]);
    let all = format!("warning: {ORDER}\nwarning: {A}\nwarning: {B}\nno problems\n");
    assert_eq!((run.code, run.out.as_str()), (0, all.as_str()));
    let run = onnxc(folder.path(), &["check", "m.onnx", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    let kinds: Vec<&str> = warnings.iter().map(|warning| warning["rule"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["node_order", "declared_shape", "declared_shape"]);
    assert_eq!(warnings[1]["text"], A);
    assert_eq!(warnings[1]["node"]["name"], "first");
}

#[test]
fn strict_refuses_what_is_warned_of() {
    let folder = broken();
    for command in [&["m.onnx"][..], &["run", "m.onnx", "--random", "1"], &["inspect", "m.onnx"]] {
        let run = onnxc(folder.path(), &[command, &["--strict"]].concat());
        assert_eq!(run.code, 1, "{command:?}");
        assert_eq!(run.err, format!("error: {ORDER}\nerror: {A}\nerror: {B}\n"), "{command:?}");
    }
    let run = onnxc(folder.path(), &["check", "m.onnx", "--strict"]);
    assert_eq!(run.code, 1);
    assert!(run.out.ends_with("3 problems\n"), "{}", run.out);
}

#[test]
fn coefficients_that_are_not_read_are_told() {
    let mut node = build::node("LinearRegressor", &["x"], &["y"]);
    node.domain = Some("ai.onnx.ml".into());
    let coefficients = AttributeProto {
        floats: vec![1.0, 2.0, 3.0, 4.0],
        ..build::attribute("coefficients", AttributeType::Floats)
    };
    node.attribute = vec![coefficients];
    let graph = build::graph(
        vec![build::f32_value("x", &["n", "3"])],
        vec![node],
        vec![build::f32_value("y", &["n", "1"])],
    );
    let mut model = build::model(19, graph);
    model.opset_import.push(build::opset("ai.onnx.ml", 3));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    let text = "4 coefficients are given, and 3 features for each of 1 targets take 3: the first are taken";
    let run = onnxc(folder.path(), &["check", "m.onnx"]);
    assert_eq!(run.code, 0, "{}", run.out);
    assert!(run.out.starts_with("warning: node 0 `LinearRegressor") && run.out.contains(text), "{}", run.out);
    let run = onnxc(folder.path(), &["check", "m.onnx", "--strict"]);
    assert!(run.code == 1 && run.out.contains(text), "{}", run.out);
}

#[test]
fn runs_with_a_seed_repeat_their_random_numbers() {
    let draw = NodeProto {
        attribute: vec![build::ints("shape", &[8])],
        ..build::node("RandomUniform", &[], &["y"])
    };
    let folder = folder(build::graph(vec![], vec![draw], vec![build::f32_value("y", &["8"])]));
    let drawn = |arguments: &[&str]| {
        let run = onnxc(folder.path(), &[&["run", "m.onnx", "--output", "out"], arguments].concat());
        assert_eq!(run.code, 0, "{}", run.err);
        files::read_tensor(&folder.path().join("out/y.npy"), None).unwrap().to_f64s().unwrap()
    };
    let one = drawn(&["--seed", "1"]);
    assert!(one.len() == 8 && one == drawn(&["--seed", "1"]) && one != drawn(&["--seed", "2"]));
    assert_eq!(drawn(&[]), drawn(&["--seed", "0"]));
}
