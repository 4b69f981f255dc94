//! Values that are no tensors, from a model to a C program.

use onnxc::target::Target;
use onnxc_proto::type_proto::{self, Value};
use onnxc_proto::{TypeProto, build};
use onnxc_tests::compile::{Code, compile_to};
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::object::{run_c, runtime, source};
use onnxc_tests::onnx_env;
use onnxc_tests::suite::Case;
use prost::Message;

fn boxed(ty: Value) -> Option<Box<TypeProto>> {
    Some(Box::new(TypeProto { value: Some(ty), denotation: None }))
}

fn vector(dim: &str) -> Value {
    build::f32_value("", &[dim]).r#type.unwrap().value.unwrap()
}

#[test]
fn a_c_program_reads_a_sequence_element_by_element() {
    let folder = tempfile::tempdir().unwrap();
    let sequence = || Value::SequenceType(Box::new(type_proto::Sequence { elem_type: boxed(vector("k")) }));
    let optional = Value::OptionalType(Box::new(type_proto::Optional { elem_type: boxed(vector("2")) }));
    let inputs =
        vec![build::typed("s", sequence()), build::f32_value("x", &["3"]), build::typed("o", optional)];
    let nodes = vec![
        build::node("SequenceInsert", &["s", "x"], &["t"]),
        build::node("OptionalHasElement", &["o"], &["h"]),
    ];
    let no_dims: [i64; 0] = [];
    let outputs = vec![build::typed("t", sequence()), build::value("h", 9, &no_dims)];
    let model = folder.path().join("model.onnx");
    std::fs::write(&model, build::model(18, build::graph(inputs, nodes, outputs)).encode_to_vec()).unwrap();
    let object = folder.path().join("values.o");
    if let Err(failure) = compile_to(&model, "values", &Target::host().unwrap().into(), &object) {
        panic!("{failure}");
    }
    assert_eq!(run_c(folder.path(), &source("values.c"), &[object], &[]), "good\n");
}

#[test]
fn a_c_program_gives_and_takes_strings() {
    let folder = tempfile::tempdir().unwrap();
    let string = |name: &str| build::value(name, 8, &["n"]);
    let node = build::node("StringConcat", &["x", "y"], &["z"]);
    let graph = build::graph(vec![string("x"), string("y")], vec![node], vec![string("z")]);
    let model = folder.path().join("model.onnx");
    std::fs::write(&model, build::model(20, graph).encode_to_vec()).unwrap();
    let object = folder.path().join("texts.o");
    if let Err(failure) = compile_to(&model, "texts", &Target::host().unwrap().into(), &object) {
        panic!("{failure}");
    }
    let libraries = ["-lpthread", "-ldl", "-lm"];
    assert_eq!(run_c(folder.path(), &source("texts.c"), &[object, runtime()], &libraries), "good\n");
}

/// Random programs that Python's lists and NumPy compute as well.
#[test]
fn programs_on_sequences_compute_what_lists_do() {
    const COUNT: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases");
    onnx_env::run_script("sequence_cases.py", &[&cases.to_string_lossy(), &COUNT.to_string()]).unwrap();
    let case =
        |at: usize| Case { id: at.to_string(), symbol: format!("t{at}"), folder: cases.join(at.to_string()) };
    let cases: Vec<Case> = (0..COUNT).map(case).filter(|case| case.folder.exists()).collect();
    assert!(cases.len() > COUNT / 2);
    let runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    let target = Target::host().unwrap();
    for code in [Code::from(target.clone()), Code { target, opt_level: 0 }] {
        let batch = folder.path().join(format!("{}", code.opt_level));
        std::fs::create_dir(&batch).unwrap();
        let (linked, mut outcomes) = link_batch(&cases, &code, &batch);
        outcomes.extend(runner.run(&linked, &batch));
        let failed: Vec<_> =
            outcomes.iter().filter(|(_, outcome)| !matches!(outcome, Outcome::Passed)).collect();
        assert!(failed.is_empty(), "{} of {} programs: {failed:?}", failed.len(), cases.len());
    }
}
