//! Values that are no tensors, in files and on the screen.

use std::fs;

use onnxc_proto::type_proto::{self, Value};
use onnxc_proto::{OptionalProto, SequenceProto, TensorProto, TypeProto, build};
use prost::Message;

use crate::onnxc;

fn boxed(ty: Value) -> Option<Box<TypeProto>> {
    Some(Box::new(TypeProto { value: Some(ty), denotation: None }))
}

fn vector() -> Value {
    build::f32_value("", &["n"]).r#type.unwrap().value.unwrap()
}

fn sequence_type() -> Value {
    Value::SequenceType(Box::new(type_proto::Sequence { elem_type: boxed(vector()) }))
}

fn sequence(elements: &[&[f32]]) -> SequenceProto {
    let tensor = |values: &&[f32]| build::f32_tensor("", &[values.len() as i64], values.to_vec());
    SequenceProto {
        elem_type: Some(1),
        tensor_values: elements.iter().map(tensor).collect(),
        ..Default::default()
    }
}

/// `t` is `s` without its last element; `h` says whether `o` has one.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let optional = Value::OptionalType(Box::new(type_proto::Optional { elem_type: boxed(vector()) }));
    let nodes = vec![
        build::node("SequenceErase", &["s"], &["t"]),
        build::node("OptionalHasElement", &["o"], &["h"]),
        build::node("Identity", &["o"], &["p"]),
    ];
    let inputs = vec![build::typed("s", sequence_type()), build::typed("o", optional.clone())];
    let no_dims: [i64; 0] = [];
    let outputs =
        vec![build::typed("t", sequence_type()), build::value("h", 9, &no_dims), build::typed("p", optional)];
    let model = build::model(18, build::graph(inputs, nodes, outputs));
    fs::write(folder.path().join("m.onnx"), model.encode_to_vec()).unwrap();
    let set = folder.path().join("test_data_set_0");
    fs::create_dir(&set).unwrap();
    let write = |name: &str, bytes: Vec<u8>| fs::write(set.join(name), bytes).unwrap();
    write("input_0.pb", sequence(&[&[1.0], &[2.0, 3.0], &[]]).encode_to_vec());
    let absent = OptionalProto { elem_type: Some(1), ..Default::default() };
    write("input_1.pb", absent.encode_to_vec());
    write("output_0.pb", sequence(&[&[1.0], &[2.0, 3.0]]).encode_to_vec());
    let no = TensorProto { data_type: Some(9), int32_data: vec![0], ..Default::default() };
    write("output_1.pb", no.encode_to_vec());
    write("output_2.pb", absent.encode_to_vec());
    folder
}

#[test]
fn values_of_every_kind_are_verified() {
    let folder = folder();
    let run = onnxc(folder.path(), &["verify", "m.onnx"]);
    assert_eq!(run.code, 0, "{} {}", run.out, run.err);
    for name in ["t[0]", "t[1]", "h"] {
        assert!(run.out.contains(&format!("test_data_set_0 {name}: ")), "{}", run.out);
    }
    let wrong = sequence(&[&[1.0], &[2.0, 4.0]]).encode_to_vec();
    let output = folder.path().join("test_data_set_0/output_0.pb");
    fs::write(&output, wrong).unwrap();
    let run = onnxc(folder.path(), &["verify", "m.onnx"]);
    assert!(run.code == 1 && run.out.contains("t[1]: WRONG"), "{} {}", run.out, run.err);
    fs::write(&output, sequence(&[&[1.0]]).encode_to_vec()).unwrap();
    let run = onnxc(folder.path(), &["verify", "m.onnx"]);
    assert!(run.code == 1, "{}", run.out);
    assert!(run.out.contains("a sequence of 2 where a sequence of 1 is expected"), "{}", run.out);
}

#[test]
fn values_of_every_kind_are_run_on() {
    let folder = folder();
    let files = ["test_data_set_0/input_0.pb", "o=test_data_set_0/input_1.pb"];
    let run = onnxc(folder.path(), &["run", "m.onnx", "--input", files[0], "--input", files[1]]);
    assert_eq!(run.code, 0, "{}", run.err);
    let wanted = "t: a sequence of 2\nt[0]: f32[1] = 1\nt[1]: f32[2] = 2, 3\nh: bool[] = false\n\
                  p: an optional without an element\n";
    assert_eq!(run.out, wanted);
    // A tensor is what an optional has; a file of another kind is refused.
    let tensor = build::f32_tensor("", &[2], vec![5.0, 6.0]).encode_to_vec();
    let some = OptionalProto {
        elem_type: Some(1),
        tensor_value: Some(build::f32_tensor("", &[2], vec![5.0, 6.0])),
        ..Default::default()
    };
    fs::write(folder.path().join("some.pb"), some.encode_to_vec()).unwrap();
    let run = onnxc(folder.path(), &["run", "m.onnx", "--input", files[0], "--input", "o=some.pb"]);
    assert!(run.out.contains("h: bool[] = true\np: an optional: a tensor\np: f32[2] = 5, 6"), "{}", run.out);
    fs::write(folder.path().join("bad.pb"), tensor).unwrap();
    let run = onnxc(folder.path(), &["run", "m.onnx", "--input", "bad.pb", "--input", files[1]]);
    assert_eq!(run.code, 2, "{} {}", run.out, run.err);
    let random = onnxc(folder.path(), &["run", "m.onnx", "--random", "3"]);
    assert_eq!(random.code, 0, "{}", random.err);
    let twice = onnxc(folder.path(), &["run", "m.onnx", "--input", files[1], "--input", files[1]]);
    assert!(
        twice.code == 2 && twice.err.contains("no input is left") || twice.err.contains("given twice"),
        "{}",
        twice.err
    );
}
