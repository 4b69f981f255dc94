//! Modules of WebAssembly by `onnxc MODEL.onnx -o MODEL.wasm`, run by Node through the ES module beside them. `tests/web` has the scripts.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use onnxc_proto::{ModelProto, build};
use onnxc_tests::prefix::root;
use onnxc_tests::sample_models;
use prost::Message;
use tempfile::TempDir;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Whether there is what makes and runs modules.
fn is_installed() -> bool {
    let is_there = runs("node") && runs("clang") && runs("wasm-ld");
    if !is_there {
        eprintln!("NOT TESTED: Debian has clang, lld and nodejs");
    }
    is_there
}

fn onnxc(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(ONNXC).args(arguments).current_dir(folder).output().unwrap()
}

/// Compiles `NAME.onnx` in a folder to a module, the ES module and its types.
fn compile(folder: &TempDir, name: &str, flags: &[&str]) {
    let (model, module) = (format!("{name}.onnx"), format!("{name}.wasm"));
    let output = onnxc(folder.path(), &[&[model.as_str(), "-o", &module, "-q"], flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn write(folder: &TempDir, name: &str, model: &[u8]) {
    fs::write(folder.path().join(format!("{name}.onnx")), model).unwrap();
}

/// Runs a script of `tests/web` beside the modules.
fn script(folder: &TempDir, name: &str) {
    let (from, to) = (format!("tests/web/{name}.mjs"), format!("test_{name}.mjs"));
    fs::copy(root().join(from), folder.path().join(&to)).unwrap();
    let output = Command::new("node").arg(&to).current_dir(folder).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "done\n", "{out}{err}");
}

/// `2 NAME` is twice `NAME`, for each type; of a bool it is the opposite.
fn types() -> ModelProto {
    let types = [
        ("f32", 1),
        ("f64", 11),
        ("f16", 10),
        ("bf16", 16),
        ("i8", 3),
        ("u8", 2),
        ("i16", 5),
        ("u16", 4),
        ("i32", 6),
        ("u32", 12),
        ("i64", 7),
        ("u64", 13),
        ("bool", 9),
        ("a \"name\" of \\ more", 1),
    ];
    let (mut nodes, mut inputs, mut outputs) = (vec![], vec![], vec![]);
    for (name, dtype) in types {
        let output = format!("2 {name}");
        nodes.push(match dtype {
            9 => build::node("Not", &[name], &[&output]),
            _ => build::node("Add", &[name, name], &[&output]),
        });
        inputs.push(build::value(name, dtype, &["3"]));
        outputs.push(build::value(&output, dtype, &["3"]));
    }
    build::model(17, build::graph(inputs, nodes, outputs))
}

#[test]
fn every_type_goes_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    if !is_installed() {
        return;
    }
    write(&folder, "types", &types().encode_to_vec());
    for cpu in ["simd128", "mvp"] {
        compile(&folder, "types", &["--mcpu", cpu]);
        script(&folder, "types");
    }
    let types = fs::read_to_string(folder.path().join("types.d.mts")).unwrap();
    for line in [
        r#"    "i64": BigInt64Array | Given<BigInt64Array>;"#,
        r#"    "a \"name\" of \\ more": Float32Array | Given<Float32Array>;"#,
        r#"    "2 f16": Tensor<Uint16Array, "f16">;"#,
    ] {
        assert!(types.lines().any(|own| own == line), "{line} in {types}");
    }
}

/// Sizes that the data decides, packed elements, a sequence.
fn data() -> ModelProto {
    let nodes = vec![
        build::node("NonZero", &["x"], &["places"]),
        build::node("Cast", &["x"], &["small"]).with(build::int("to", 21)),
        build::node("SplitToSequence", &["x", "lengths"], &["pieces"]),
    ];
    let inputs = vec![build::value("x", 1, &["m"]), build::value("lengths", 7, &["k"])];
    let outputs = vec![
        build::value("places", 7, &["1", "q"]),
        build::value("small", 21, &["m"]),
        build::untyped("pieces"),
    ];
    build::model(21, build::graph(inputs, nodes, outputs))
}

#[test]
fn sizes_are_open() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "symbolic", &sample_models::symbolic());
    write(&folder, "data", &data().encode_to_vec());
    write(&folder, "rank", &sample_models::any_rank().encode_to_vec());
    ["symbolic", "data", "rank"].iter().for_each(|name| compile(&folder, name, &[]));
    script(&folder, "sizes");
}

/// `taken = table[index] + same`.
fn errors() -> ModelProto {
    let mut gather = build::node("Gather", &["table", "index"], &["rows"]);
    gather.name = Some("gather node".into());
    let nodes = vec![
        gather,
        build::node("Cast", &["same"], &["number"]).with(build::int("to", 1)),
        build::node("Add", &["rows", "number"], &["taken"]),
    ];
    let inputs = vec![
        build::f32_value("table", &["4"]),
        build::value("index", 7, &["n"]),
        build::value("same", 7, &["n"]),
    ];
    build::model(17, build::graph(inputs, nodes, vec![build::f32_value("taken", &["n"])]))
}

#[test]
fn errors_are_exceptions() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "errors", &errors().encode_to_vec());
    compile(&folder, "errors", &[]);
    script(&folder, "errors");
}

#[test]
fn instances_have_memory_of_their_own() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for file in ["digits.onnx", "sample.json"] {
        fs::copy(root().join("examples/digits").join(file), folder.path().join(file)).unwrap();
    }
    for flags in [&[][..], &["--mcpu", "mvp"], &["-O", "s"], &["--target", "wasm32-wasip1"]] {
        compile(&folder, "digits", flags);
        script(&folder, "instances");
    }
}

#[test]
fn state_stays_between_runs() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "sums", &sample_models::sums());
    compile(&folder, "sums", &["--state", "rows=more"]);
    script(&folder, "state");
    let types = fs::read_to_string(folder.path().join("sums.d.mts")).unwrap();
    assert!(types.contains("    \"past.capacity\": number;\n"), "{types}");
}

#[test]
fn a_model_learns() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let nodes = vec![
        build::node("MatMul", &["x", "slope"], &["steep"]),
        build::node("Add", &["steep", "height"], &["y"]),
    ];
    let value = build::f32_value;
    let mut graph = build::graph(vec![value("x", &["n", "1"])], nodes, vec![value("y", &["n", "1"])]);
    graph.initializer =
        vec![build::f32_tensor("slope", &[1, 1], vec![0.1]), build::f32_tensor("height", &[1], vec![0.0])];
    write(&folder, "plain", &build::model(17, graph).encode_to_vec());
    let arguments =
        ["train-graph", "plain.onnx", "--loss", "mse", "--optimizer", "sgd", "--learning-rate", "0.1"];
    let output = onnxc(folder.path(), &[&arguments[..], &["-o", "line.onnx"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    compile(&folder, "line", &["--training"]);
    script(&folder, "train");
}

/// The folder that a server is given, as the example's Makefile makes it; the page's strokes are read as the digits that they are.
#[test]
fn the_page_of_the_example_reads_digits() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(root().join("examples/web"));
    make.arg(format!("ONNXC={ONNXC}")).arg(format!("BUILD={}", folder.path().display()));
    let output = make.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(folder.path().join("index.html")).unwrap();
    for file in ["style.css", "page.mjs", "digits.wasm"] {
        assert!(page.contains(&format!("\"{file}\"")) && folder.path().join(file).is_file(), "{file}");
    }
    script(&folder, "ink");
}

/// What modules cannot have, and what is missing, is named; nothing is written.
#[test]
fn refusals_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "texts", &sample_models::all_kinds());
    write(&folder, "symbolic", &sample_models::symbolic());
    for (arguments, texts) in [
        (&["texts.onnx", "-o", "m.wasm"][..], &["strings", "64 bits"][..]),
        (
            &["symbolic.onnx", "-o", "m.wasm", "--linker", "no-such-clang"],
            &["no-such-clang", "install clang and lld", "CC_wasm32_unknown_unknown"],
        ),
        (
            &["symbolic.onnx", "-o", "m.wasm", "--target", "x86_64-unknown-linux-gnu"],
            &["wasm32-unknown-unknown", "x86_64-unknown-linux-gnu"],
        ),
        (&["symbolic.onnx", "-o", "m.wasm", "--mcpu", "native"], &["simd128", "mvp"]),
        (&["symbolic.onnx", "--emit", "wasm,obj", "-o", "m.wasm"], &["obj", "wasm"]),
        (&["symbolic.onnx", "-o", "-", "--emit", "wasm"], &["standard output"]),
    ] {
        let output = onnxc(folder.path(), arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        texts.iter().for_each(|text| assert!(message.contains(text), "{arguments:?}: {text} in {message}"));
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "{arguments:?}");
    }
}
