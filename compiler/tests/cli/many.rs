//! `onnxc check` of many models: what is said of each, and what they have in common. Kinds that occur often are counted.

use std::fs;
use std::path::Path;

use onnxc_proto::{GraphProto, TensorAnnotation, build};
use prost::Message;

use crate::onnxc;

/// A graph of one operator on `x: f32[size]`.
fn graph(operator: &str, size: usize) -> GraphProto {
    let value = |name| build::f32_value(name, &[size]);
    build::graph(vec![value("x")], vec![build::node(operator, &["x"], &["y"])], vec![value("y")])
}

fn write(folder: &Path, name: &str, graph: GraphProto) {
    fs::write(folder.join(name), build::model(19, graph).encode_to_vec()).unwrap();
}

/// A good model, one that is warned of, two of an unknown operator, one of them in a folder inside, and text.
fn models() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    write(folder.path(), "good.onnx", graph("Relu", 2));
    write(folder.path(), "warned.onnx", GraphProto { name: None, ..graph("Relu", 2) });
    write(folder.path(), "bad.onnx", graph("Nope", 3));
    write(folder.path(), "sub/bad.onnx", graph("Nope", 4));
    fs::write(folder.path().join("text.onnx"), "hello").unwrap();
    fs::write(folder.path().join("notes.txt"), "no model").unwrap();
    folder
}

#[test]
fn a_folder_is_walked_and_summed_up() {
    let folder = models();
    let run = onnxc(folder.path(), &["check", "."]);
    assert_eq!((run.code, run.err.as_str()), (1, ""), "{}", run.out);
    let lines: Vec<&str> = run.out.lines().collect();
    let found = |line: &str| assert!(lines.contains(&line), "{line} is not in:\n{}", run.out);
    found("./good.onnx: no problems");
    found("./warned.onnx: accepted with warnings");
    found("  warning: the graph has no name; each graph must have one");
    found("./sub/bad.onnx: refused");
    found(
        "  error: node 0 `Nope_0` (ai.onnx.Nope) with x: f32[4]: operator Nope of ai.onnx opset 19: there is no operator of this name; a function of the model can define it",
    );
    found("5 models: 2 accepted, 1 of them with warnings; 3 refused");
    found(
        "refused, 2 in 2 models: ai.onnx.Nope: operator Nope of ai.onnx opset N: there is no operator of this name; a function of the model can define it (./bad.onnx, ./sub/bad.onnx)",
    );
    found("refused, 1 in 1 models: not an ONNX file: it is text that begins with `_` (./text.onnx)");
    found("warned of, 1 in 1 models: A graph, a body or a function has no name. (./warned.onnx)");
}

#[test]
fn a_summary_is_json_too() {
    let folder = models();
    let run = onnxc(folder.path(), &["check", "--json", "good.onnx", "sub", "warned.onnx", "gone.onnx"]);
    assert_eq!(run.code, 1);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let summary = &report["summary"];
    assert_eq!(
        [&summary["files"], &summary["accepted"], &summary["with_warnings"], &summary["refused"]],
        [4, 2, 1, 2]
    );
    let refusals = summary["refusals"].as_array().unwrap();
    let of = |operator: &str| refusals.iter().find(|reason| reason["operator"] == operator).unwrap();
    assert_eq!(
        of("ai.onnx.Nope")["reason"],
        "operator Nope of ai.onnx opset N: there is no operator of this name; a function of the model can define it"
    );
    assert_eq!(of("ai.onnx.Nope")["named"][0], "sub/bad.onnx");
    assert!(
        refusals.iter().any(|reason| reason["reason"].as_str().unwrap().contains("gone.onnx")),
        "{refusals:?}"
    );
    assert_eq!(summary["warnings"][0]["rule"], "graph_name");
    let files = report["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == "warned.onnx").unwrap();
    assert!(file["accepted"] == true && file["warnings"][0]["rule"] == "graph_name", "{file}");
}

#[test]
fn all_good_is_code_0_and_strict_holds_for_all() {
    let folder = models();
    assert_eq!(onnxc(folder.path(), &["check", "good.onnx", "warned.onnx"]).code, 0);
    let run = onnxc(folder.path(), &["check", "good.onnx", "warned.onnx", "--strict"]);
    assert!(
        run.code == 1 && run.out.contains("2 models: 1 accepted, 0 of them with warnings; 1 refused"),
        "{}",
        run.out
    );
}

#[test]
fn kinds_are_listed_to_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let mut many = graph("Relu", 2);
    many.value_info = (0..251).map(|_| build::f32_value("y", &["2"])).collect();
    let annotation = || TensorAnnotation { tensor_name: Some("x".into()), ..Default::default() };
    many.quantization_annotation = (0..200_000).map(|_| annotation()).collect();
    write(folder.path(), "m.onnx", many);
    let note = "quantization annotation of `x` is ignored (and 199999 others like it)";
    let text = "value_info of graph `g` describes `y` twice; the last one is read";
    let run = onnxc(folder.path(), &["check", "m.onnx"]);
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines.len(), 100 + 3, "{}", run.out);
    assert_eq!(lines[99], format!("warning: {text}"));
    assert!(lines[100].starts_with("warning: and 150 more of this kind: "), "{}", lines[100]);
    assert_eq!(lines[101..], [&format!("note: {note}"), "no problems"]);
    let run = onnxc(folder.path(), &["m.onnx"]);
    let others = "(and 249 others like it, which `onnxc check` lists)";
    assert_eq!((run.code, run.err), (0, format!("warning: {text} {others}\nnote: {note}\n")));
    let run = onnxc(folder.path(), &["check", "--json", "m.onnx"]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.len() == 100 && warnings[99]["more"] == 150, "{}", warnings[99]);
    let run = onnxc(folder.path(), &["m.onnx", "--strict"]);
    assert!(run.code == 1 && run.err.lines().count() == 101, "{}", run.err);
}
