//! The programs of `examples/`, built and run as their users do, and Rust wrappers compiled by `rustc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::build::Builder;
use onnxc_proto::build;
use onnxc_tests::object::{host, must, runtime, runtime_crate};
use prost::Message;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(must(command).stdout).unwrap()
}

fn assert_predicted(output: &str) {
    let line = output.lines().last().unwrap_or_default();
    assert!(line.starts_with("predicted 9 (probability ") && line.ends_with("), label 9"), "{output}");
}

#[test]
fn c_program_by_make() {
    let dir = tempfile::tempdir().unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(examples().join("c")).arg(format!("ONNXC={ONNXC}"));
    make.arg(format!("BUILD={}", dir.path().display())).arg("CFLAGS=-O1 -pedantic -Werror").arg("--silent");
    assert_predicted(&stdout(make.arg("--no-print-directory").arg("run")));
}

/// The classes of sentences that the model was not trained on are those that ONNX Runtime gives, see `lines.txt`.
#[test]
fn text_classifier_by_make() {
    let dir = tempfile::tempdir().unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(examples().join("text")).arg(format!("ONNXC={ONNXC}"));
    make.arg(format!("RUNTIME={}", runtime().display())).arg(format!("BUILD={}", dir.path().display()));
    make.args(["CFLAGS=-O1 -pedantic -Werror", "--silent", "--no-print-directory", "run"]);
    assert!(stdout(&mut make).starts_with("iris (probability "));
    let lines = std::fs::read_to_string(examples().join("text/lines.txt")).unwrap();
    assert!(lines.lines().count() > 30);
    for line in lines.lines() {
        let (class, sentence) = line.split_once('\t').unwrap();
        let found = stdout(Command::new(dir.path().join("text")).arg(sentence));
        assert!(found.starts_with(&format!("{class} (")), "{sentence}: {found}, not {class}");
    }
}

#[test]
fn c_program_by_cmake() {
    if Command::new("cmake").arg("--version").output().is_err() {
        eprintln!("cmake is not installed: its example is not tried");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(examples().join("c")).arg("-B").arg(dir.path()).arg(format!("-DONNXC={ONNXC}"));
    must(&mut configure);
    must(Command::new("cmake").arg("--build").arg(dir.path()));
    assert_predicted(&stdout(&mut Command::new(dir.path().join("digits"))));
}

/// The output of `main.rs` with the wrapper of a model in `OUT_DIR`.
fn run_rust(model: &Path, main: &Path, dir: &Path) -> String {
    run_built(Builder::new(model), main, dir)
}

/// As [`run_rust`], with what else the model is compiled with.
fn run_built(builder: Builder, main: &Path, dir: &Path) -> String {
    let files = builder.target(host().triple.to_string()).cpu("native").out_dir(dir).generate().unwrap();
    let program = dir.join("program");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.env("OUT_DIR", dir).args(["--edition", "2021", "--deny", "warnings"]);
    command.arg("-L").arg(format!("native={}", dir.display()));
    command.arg("-l").arg(format!("static={}", files.name));
    command.arg("--extern").arg(format!("onnxc_runtime_support={}", runtime_crate().display()));
    must(command.arg(main).arg("-o").arg(&program));
    stdout(&mut Command::new(&program))
}

#[test]
fn rust_program_with_a_static_model() {
    let dir = tempfile::tempdir().unwrap();
    let main = examples().join("rust/src/main.rs");
    assert_predicted(&run_rust(&examples().join("digits/digits.onnx"), &main, dir.path()));
}

const STATE_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/sums.rs"));

fn main() -> Result<(), sums::Error> {
    let mut model = sums::Sums::new();
    let mut state = sums::State::new(5)?;
    let first = model.run(&mut state, 2, &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0])?;
    assert_eq!(*first.y, [11.0, 22.0, 33.0]);
    let mut other = state.clone();
    let saved = state.as_bytes().to_vec();
    assert_eq!(*model.run(&mut state, 1, &[100.0, 0.0, 0.0])?.y, [111.0, 22.0, 33.0]);
    assert_eq!(*model.run(&mut other, 1, &[0.0, 0.0, 7.0])?.y, [11.0, 22.0, 40.0]);
    assert_eq!((state.past(), other.past()), (3, 3));
    state.truncate_past(1);
    assert_eq!(*model.run(&mut state, 0, &[])?.y, [1.0, 2.0, 3.0]);
    assert!(state.restore(&saved) && !state.restore(&saved[1..]));
    let full = model.run(&mut state, 4, &[0.0; 12]).err().unwrap();
    assert_eq!((full.status, full.message.as_str()), (18, "the state is full: `past` would become 6, and there is room for 5"));
    assert_eq!(*model.run(&mut state, 0, &[])?.y, [11.0, 22.0, 33.0]);
    state.reset();
    assert_eq!(state.past(), 0);
    assert!(sums::State::new(usize::MAX / 2).is_err());
    println!("good");
    Ok(())
}
"#;

#[test]
fn rust_program_with_state() {
    let value = build::f32_value;
    let nodes = vec![
        build::node("Concat", &["rows", "x"], &["more"]).with(build::int("axis", 0)),
        build::node("ReduceSum", &["more"], &["y"])
            .with(build::ints("axes", &[0]))
            .with(build::int("keepdims", 0)),
    ];
    let inputs = vec![value("x", &["new", "3"]), value("rows", &["past", "3"])];
    let outputs = vec![value("more", &["all", "3"]), value("y", &["3"])];
    let model = build::model(12, build::graph(inputs, nodes, outputs)).encode_to_vec();
    let dir = tempfile::tempdir().unwrap();
    let (path, main) = (dir.path().join("sums.onnx"), dir.path().join("main.rs"));
    std::fs::write(&path, model).unwrap();
    std::fs::write(&main, STATE_MAIN).unwrap();
    assert_eq!(run_built(Builder::new(&path).state("rows=more"), &main, dir.path()), "good\n");
}

/// `twice = concat(x, -x)` along the first axis, `x` f32[batch, 3].
fn symbolic_model() -> Vec<u8> {
    let nodes = vec![
        build::node("Neg", &["x"], &["minus"]),
        build::node("Concat", &["x", "minus"], &["twice"]).with(build::int("axis", 0)),
    ];
    let value = build::f32_value;
    let graph = build::graph(vec![value("x", &["batch", "3"])], nodes, vec![value("twice", &["rows", "3"])]);
    build::model(17, graph).encode_to_vec()
}

const SYMBOLIC_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/pairs.rs"));

fn main() -> Result<(), pairs::Error> {
    let mut model = pairs::Pairs::new();
    for batch in [2usize, 0, 5, 1] {
        let x: Vec<f32> = (0..3 * batch).map(|i| i as f32).collect();
        let outputs = model.run(batch, &x)?;
        assert_eq!(outputs.twice_dims, [2 * batch, 3]);
        let want: Vec<f32> = x.iter().copied().chain(x.iter().map(|v| -v)).collect();
        assert_eq!(outputs.twice, want);
    }
    let mut small = [0.0; 3];
    for error in [
        model.run(2, &[1.0; 5]).err(),
        model.run(usize::MAX, &[]).err(),
        model.run(usize::MAX / 4, &[]).err(),
        model.run_into(1, &[1.0; 3], &mut small).err(),
    ] {
        println!("{}", error.unwrap());
    }
    Ok(())
}
"#;

#[test]
fn rust_program_with_a_symbolic_model() {
    let dir = tempfile::tempdir().unwrap();
    let (model, main) = (dir.path().join("pairs.onnx"), dir.path().join("main.rs"));
    std::fs::write(&model, symbolic_model()).unwrap();
    std::fs::write(&main, SYMBOLIC_MAIN).unwrap();
    let output = run_rust(&model, &main, dir.path());
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 4, "{output}");
    assert_eq!(lines[0], "`x` has 5 elements, not those of [2, 3]");
    assert_eq!(lines[1], format!("the size `batch` of {} does not fit", usize::MAX));
    assert!(lines[2].contains("4611686018427387903") || lines[2].contains("64 bits"), "{output}");
    assert_eq!(lines[3], "`twice` has 3 elements, not those of [2, 3]");
}

/// Texts in and out, sizes that data decide, packed elements, a sequence.
fn model_of_all_kinds() -> Vec<u8> {
    let string = 8;
    let nodes = vec![
        build::node("StringConcat", &["words", "ending"], &["joined"]),
        build::node("StringSplit", &["line"], &["parts", "count"]),
        build::node("NonZero", &["x"], &["places"]),
        build::node("Cast", &["x"], &["small"]).with(build::int("to", 21)),
        build::node("SplitToSequence", &["x", "lengths"], &["pieces"]),
    ];
    let value = |name: &str, dtype, dims: &[&str]| build::value(name, dtype, dims);
    let inputs = vec![
        value("words", string, &["n"]),
        value("ending", string, &[]),
        value("line", string, &["1"]),
        value("x", 1, &["m"]),
        value("lengths", 7, &["k"]),
    ];
    let outputs = vec![
        value("joined", string, &["n"]),
        value("parts", string, &["1", "p"]),
        value("places", 7, &["1", "q"]),
        value("small", 21, &["m"]),
        build::untyped("pieces"),
    ];
    build::model(21, build::graph(inputs, nodes, outputs)).encode_to_vec()
}

const ALL_KINDS_MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/kinds.rs"));

fn main() -> Result<(), kinds::Error> {
    let mut model = kinds::Kinds::new();
    for repeat in [1, 3] {
        let words = vec!["é", "", "a longer one than sixteen bytes"].repeat(repeat);
        let x = [0.0, 2.0, 0.0, 15.0, 7.0];
        let outputs = model.run(words.len(), x.len(), 3, &words, &["!"], &["one two  three"], &x, &[2, 0, 3])?;
        assert_eq!(outputs.joined[..3], ["é!", "!", "a longer one than sixteen bytes!"]);
        assert_eq!(outputs.joined_dims, [3 * repeat]);
        assert_eq!((&outputs.parts[..], outputs.parts_dims), (&["one", "two", "three"].map(String::from)[..], [1, 3]));
        assert_eq!((&outputs.places[..], outputs.places_dims), (&[1, 3, 4][..], [1, 3]));
        assert_eq!(outputs.small, [0x20, 0xf0, 0x07]);
        let pieces: Vec<(Vec<usize>, &[f32])> = outputs.pieces().collect();
        assert_eq!(pieces, [(vec![2], &x[..2]), (vec![0], &[]), (vec![3], &x[2..])]);
    }
    let few = model.run(1, 1, 1, &[], &["!"], &[""], &[0.0], &[1]).err();
    println!("{}", few.unwrap());
    let unequal = model.run(0, 1, 1, &[], &["!"], &[""], &[0.0], &[2]).err();
    println!("{}", unequal.unwrap());
    Ok(())
}
"#;

#[test]
fn rust_program_with_values_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let (model, main) = (dir.path().join("kinds.onnx"), dir.path().join("main.rs"));
    std::fs::write(&model, model_of_all_kinds()).unwrap();
    std::fs::write(&main, ALL_KINDS_MAIN).unwrap();
    let output = run_rust(&model, &main, dir.path());
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2, "{output}");
    assert_eq!(lines[0], "`words` has 0 elements, not those of [1]");
    assert!(lines[1].contains("SplitToSequence"), "{output}");
}
