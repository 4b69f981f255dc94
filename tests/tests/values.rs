//! Values that are no tensors, from a model to a C program.

use onnxc::target::Target;
use onnxc_proto::type_proto::{self, Value};
use onnxc_proto::{TypeProto, build};
use onnxc_tests::compile::compile_to;
use onnxc_tests::object::{run_c, source};
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
