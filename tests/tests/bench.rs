//! The benchmark of peers from end to end with onnxc alone, and the operators of the accuracy table's reference.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use onnxc_proto::build;
use onnxc_tests::onnx_env;
use prost::Message;
use serde_json::Value;

fn command(out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["--peers", "none", "--rounds", "2", "--seconds", "0.02", "--out"]).arg(out);
    command
}

fn bench(model: &Path, out: &Path, arguments: &[&str]) -> Output {
    command(out).args(arguments).arg(model).output().unwrap()
}

fn rows(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("benchmarks.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["failures"], serde_json::json!([]));
    report["rows"].as_array().unwrap().clone()
}

fn assert_figures(row: &Value) {
    let rounds = row["engines"][0]["rounds"].as_array().unwrap();
    assert_eq!((row["engines"].as_array().unwrap().len(), rounds.len()), (1, 2), "{row}");
    for round in rounds {
        let figure = |name: &str| round[name].as_f64().unwrap();
        assert!(0.0 < figure("min_ms") && figure("min_ms") <= figure("median_ms"), "{round}");
        assert!(figure("first_ms") > 0.0 && figure("runs") >= 5.0, "{round}");
        if cfg!(target_os = "linux") {
            assert!(figure("bytes") > 0.0, "{round}");
        }
    }
    assert!(row["compiled"]["compile_ms"].as_f64().unwrap() > 0.0, "{row}");
}

#[test]
fn digits_with_one_and_two_threads() {
    let out = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    let run = bench(&model, out.path(), &["--threads", "1,2"]);
    let table = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{table}{}", String::from_utf8_lossy(&run.stderr));
    let rows = rows(out.path());
    assert_eq!(rows.len(), 2);
    for (row, threads) in rows.iter().zip([1, 2]) {
        assert_eq!((row["model"].as_str(), row["threads"].as_i64()), (Some("digits"), Some(threads)));
        assert_figures(row);
    }
    let document = fs::read_to_string(out.path().join("benchmarks.md")).unwrap();
    assert!(document.contains("| digits ") && document.contains(table.lines().nth(2).unwrap()), "{document}");
    let chart = fs::read_to_string(out.path().join("benchmarks.svg")).unwrap();
    assert!(chart.starts_with("<svg ") && chart.contains(">digits</text>") && chart.ends_with("</svg>\n"));
}

/// `y = x * x`, `x` f32[batch, seq].
fn symbolic_model() -> Vec<u8> {
    let value = |name| build::f32_value(name, &["batch", "seq"]);
    let graph =
        build::graph(vec![value("x")], vec![build::node("Mul", &["x", "x"], &["y"])], vec![value("y")]);
    build::model(17, graph).encode_to_vec()
}

#[test]
fn symbolic_dims_are_pinned_or_swept() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("square.onnx");
    fs::write(&model, symbolic_model()).unwrap();
    assert!(bench(&model, folder.path(), &["--dim", "7"]).status.success());
    let pinned = rows(folder.path());
    assert_eq!(pinned.len(), 1);
    assert_eq!(pinned[0]["compiled"]["output_shapes"], serde_json::json!([[[1, 7]]]));
    assert!(bench(&model, folder.path(), &["--sizes", "2x3,5"]).status.success());
    let swept = rows(folder.path());
    let sizes: Vec<&str> = swept.iter().filter_map(|row| row["sizes"].as_str()).collect();
    assert_eq!(sizes, ["2x3", "5"]);
    assert_eq!(swept[0]["compiled"]["output_shapes"], serde_json::json!([[[2, 3]], [[5, 5]]]));
    swept.iter().for_each(assert_figures);
}

#[test]
fn products_are_shares_of_the_peak() {
    let out = tempfile::tempdir().unwrap();
    let run = command(out.path()).args(["--gemm", "16x64x32,5x7x3"]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = fs::read_to_string(out.path().join("gemm.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let lines = report["lines"].as_array().unwrap();
    assert_eq!((lines.len(), &report["failures"]), (2, &serde_json::json!([])));
    for (line, shape) in lines.iter().zip([[16, 32], [5, 3]]) {
        assert_figures(&line["row"]);
        assert_eq!(line["row"]["compiled"]["output_shapes"], serde_json::json!([[shape]]));
        // A core without FMA has no such peak.
        assert!(line["peak"].is_null() || line["peak"].as_f64().unwrap() > 0.0, "{line}");
    }
    let document = fs::read_to_string(out.path().join("gemm.md")).unwrap();
    assert!(document.contains("| 16x64x32 ") && document.contains("| 5x7x3 "), "{document}");
    let refused = command(out.path()).args(["--gemm", "16x64"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("ROWSxINNERxCOLUMNS"), "{refused:?}");
}

#[test]
fn what_does_not_compile_has_no_figures() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("broken.onnx");
    fs::write(&model, b"no model").unwrap();
    let run = bench(&model, folder.path(), &[]);
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("no figures: "), "{run:?}");
    let document = fs::read_to_string(folder.path().join("benchmarks.md")).unwrap();
    assert!(document.contains("## Without figures") && document.contains("broken.onnx"), "{document}");
}

#[test]
fn the_reference_agrees_with_the_package() {
    let text = onnx_env::run_script("reference.py", &["--self-test"]).unwrap();
    assert!(text.ends_with(" operators agree\n"), "{text}");
}
