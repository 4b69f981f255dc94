//! Values other than tensors, from a model to a C program; values that levels of optimization may not change.

use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::type_proto::{self, Value};
use onnxc_proto::{GraphProto, TensorProto, TypeProto, build};
use onnxc_tests::compile::{Code, compile_for, compile_to};
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::interpreted::Interpreted;
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

/// Zeros of both signs, for which 1 / x differs, and what underflows to them.
const ZEROS: [f32; 8] = [0.0, -0.0, 2.0, -2.0, 1e-40, -1e-40, f32::INFINITY, f32::NEG_INFINITY];

type Expression = (&'static str, &'static str, &'static [&'static str], fn(f32) -> f32);

/// Expressions of `x` that are not `x` for -0, and some that are; operands are named in `graph_of`.
const EXPRESSIONS: [Expression; 9] = [
    ("x + 0", "Add", &["x", "zero"], |x| x + 0.0),
    ("0 + x", "Add", &["zeros", "x"], |x| 0.0 + x),
    ("x + -0", "Add", &["x", "minus"], |x| x + -0.0),
    ("x - 0", "Sub", &["x", "zero"], |x| x - 0.0),
    ("x - -0", "Sub", &["x", "minus"], |x| x - -0.0),
    ("0 - x", "Sub", &["zero", "x"], |x| 0.0 - x),
    ("x + 0 + 0", "Sum", &["x", "zeros", "zero"], |x| x + 0.0),
    ("x + -0 + -0", "Sum", &["x", "minus", "minus"], |x| x),
    ("x * -1", "Mul", &["x", "negative"], |x| -x),
];

const SUM: Expression = ("the sum of one element", "ReduceSum", &["x"], |x| x + 0.0);

/// The reciprocals of all expressions, and of a sum over one element.
fn graph_of(element: DataType) -> GraphProto {
    let value = |name: &str| build::value(name, element as i32, &[ZEROS.len() as i64]);
    let constant = |name: &str, dims: &[i64], number: f32| {
        let count = dims.iter().product::<i64>() as usize;
        let tensor =
            interp::cast(&Tensor::from_slice(&[count], &vec![number; count]), dtype_of(element), true);
        TensorProto {
            name: Some(name.into()),
            data_type: Some(element as i32),
            dims: dims.to_vec(),
            raw_data: Some(tensor.data),
            ..Default::default()
        }
    };
    let (mut nodes, mut outputs) = (vec![], vec![]);
    for (at, (_, op, operands, _)) in EXPRESSIONS.iter().enumerate() {
        let (inner, outer) = (format!("a{at}"), format!("y{at}"));
        nodes.push(build::node(op, operands, &[&inner]));
        nodes.push(build::node("Reciprocal", &[&inner], &[&outer]));
        outputs.push(value(&outer));
    }
    nodes.push(build::node("Unsqueeze", &["x", "one"], &["column"]));
    nodes.push(build::node("ReduceSum", &["column", "one"], &["sum"]).with(build::int("keepdims", 0)));
    nodes.push(build::node("Reciprocal", &["sum"], &["y_sum"]));
    outputs.push(value("y_sum"));
    let length = [ZEROS.len() as i64];
    let mut graph = build::graph(vec![value("x")], nodes, outputs);
    graph.initializer = vec![
        constant("zero", &[], 0.0),
        constant("minus", &[], -0.0),
        constant("zeros", &length, 0.0),
        constant("negative", &[1], -1.0),
        build::i64_tensor("one", &[1], vec![1]),
    ];
    graph
}

fn dtype_of(element: DataType) -> DType {
    match element {
        DataType::Float16 => DType::F16,
        DataType::Double => DType::F64,
        _ => DType::F32,
    }
}

/// What differs in the sign of a zero, by its reciprocal.
#[test]
fn zeros_keep_their_signs_at_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    let target = Target::host().unwrap();
    for element in [DataType::Float, DataType::Double, DataType::Float16] {
        std::fs::write(&model, build::model(17, graph_of(element)).encode_to_vec()).unwrap();
        let dtype = dtype_of(element);
        let x = interp::cast(&Tensor::from_slice(&[ZEROS.len()], &ZEROS), dtype, true);
        let numbers = |tensor: &Tensor| interp::cast(tensor, DType::F64, true).to_f64s().unwrap();
        for opt_level in [0, 3] {
            let compiled = compile_for(&model, "zeros", &Code { target: target.clone(), opt_level }).unwrap();
            let shapes = vec![Some(vec![ZEROS.len()]); EXPRESSIONS.len() + 1];
            let found = Interpreted::new(&compiled).unwrap().run(&[Some(x.clone())], &shapes).unwrap();
            for ((name, .., function), found) in EXPRESSIONS.iter().chain([&SUM]).zip(&found) {
                // Numbers that f64 and f16 have, too, or that are 0 in f16.
                let wanted = numbers(&x).into_iter().map(|x| 1.0 / f64::from(function(x as f32)));
                for (x, (found, wanted)) in ZEROS.iter().zip(numbers(found).into_iter().zip(wanted)) {
                    let alike = found == wanted || (found - wanted).abs() <= 1e-6 * wanted.abs();
                    let same = alike && found.is_sign_negative() == wanted.is_sign_negative();
                    let overflows =
                        found.is_infinite() && wanted.abs() > 6e4 && found.signum() == wanted.signum();
                    assert!(
                        same || overflows,
                        "1 / ({name}) of {x} in {dtype} at -O{opt_level}: {found}, not {wanted}"
                    );
                }
            }
        }
    }
}

/// Models whose outputs are beside them, where that folder is: see `../shared/faults/README.md`.
#[test]
fn values_of_reported_models_are_right_at_every_level() {
    let Some(models) = onnxc_tests::suite::models_folder() else { return };
    let faults = models.with_file_name("faults");
    for name in [
        "values/480_add_zero_then_reciprocal",
        "values/483_add_zero_vector_then_div",
        "models/304_tree_leaf_base_values_logistic",
    ] {
        let model = faults.join(name).join("model.onnx");
        for flags in [&["-O0"][..], &["-O3"], &["--exact"], &["-O0", "--exact"]] {
            if model.exists() {
                let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_onnxc_driver"));
                let output = command.arg("verify").arg(&model).args(flags).output().unwrap();
                assert!(
                    output.status.success(),
                    "{name} {flags:?}: {}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
        }
    }
}
