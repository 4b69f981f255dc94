//! Values other than tensors, in files and on the screen.

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

/// What `run` writes is what it reads, and what `verify` compares with.
#[test]
fn outputs_of_every_kind_are_written() {
    let folder = folder();
    let files = ["test_data_set_0/input_0.pb", "o=test_data_set_0/input_1.pb"];
    let arguments = ["run", "m.onnx", "--input", files[0], "--input", files[1], "--output", "."];
    let run = onnxc(folder.path(), &arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(
        run.out,
        "t: a sequence of 2 in ./t.pb\nh: bool[] in ./h.npy\np: an optional without an element in ./p.pb\n"
    );
    let again = onnxc(folder.path(), &["run", "m.onnx", "--input", "t.pb", "--input", "p.pb"]);
    assert!(again.out.starts_with("t: a sequence of 1\nt[0]: f32[1] = 1\n"), "{} {}", again.out, again.err);
    for (at, name) in [(0, "t"), (2, "p")] {
        let to = folder.path().join(format!("test_data_set_0/output_{at}.pb"));
        fs::copy(folder.path().join(format!("{name}.pb")), to).unwrap();
    }
    let verified = onnxc(folder.path(), &["verify", "m.onnx"]);
    assert_eq!(verified.code, 0, "{} {}", verified.out, verified.err);

    // Strings beside numbers, a map, and a list of maps.
    let keys = || build::ints("classlabels_int64s", &[3, 5]);
    let ml =
        |node: onnxc_proto::NodeProto| onnxc_proto::NodeProto { domain: Some("ai.onnx.ml".into()), ..node };
    let texts = |name: &str, texts: &[&'static str]| onnxc_proto::AttributeProto {
        strings: texts.iter().map(|text| bytes::Bytes::from_static(text.as_bytes())).collect(),
        ..build::attribute(name, onnxc_proto::attribute_proto::AttributeType::Strings)
    };
    let labels = ml(build::node("LabelEncoder", &["i"], &["s"]))
        .with(build::ints("keys_int64s", &[1, 2]))
        .with(texts("values_strings", &["x", "y\u{e9}"]));
    let nodes = vec![
        labels,
        build::node("Cast", &["i"], &["f"]).with(build::int("to", 1)),
        ml(build::node("ZipMap", &["z"], &["maps"])).with(keys()),
        build::node("Cast", &["f"], &["q"]).with(build::int("to", 22)),
    ];
    let map = Value::MapType(Box::new(type_proto::Map {
        key_type: Some(7),
        value_type: boxed(build::f32_value("", &[] as &[i64]).r#type.unwrap().value.unwrap()),
    }));
    let maps = Value::SequenceType(Box::new(type_proto::Sequence { elem_type: boxed(map) }));
    let outputs = vec![
        build::f32_value("f", &["2"]),
        build::value("s", 8, &["2"]),
        build::typed("maps", maps),
        build::value("q", 22, &["2"]),
    ];
    let inputs = vec![build::value("i", 7, &["2"]), build::f32_value("z", &["n", "2"])];
    let mut model = build::model(21, build::graph(inputs, nodes, outputs));
    model.opset_import.push(build::opset("ai.onnx.ml", 3));
    fs::write(folder.path().join("n.onnx"), model.encode_to_vec()).unwrap();
    let numbers = onnxc_ir::graph::Tensor::from_slice(&[2], &[2i64, 1]);
    onnxc::cli::files::write_npy(&folder.path().join("i.npy"), &numbers).unwrap();
    let rows = onnxc_ir::graph::Tensor::from_slice(&[1, 2], &[0.5f32, 0.25]);
    onnxc::cli::files::write_npy(&folder.path().join("z.npy"), &rows).unwrap();
    let arguments = ["run", "n.onnx", "--input", "i.npy", "--input", "z.npy", "--output", "out"];
    let run = onnxc(folder.path(), &arguments);
    assert_eq!(run.code, 0, "{}", run.err);
    assert_eq!(crate::names(&folder.path().join("out")), ["f.npy", "maps.pb", "q.npy", "s.pb"]);
    let read = |name: &str| bytes::Bytes::from(fs::read(folder.path().join("out").join(name)).unwrap());
    let strings = TensorProto::decode(read("s.pb")).unwrap();
    assert_eq!((strings.data_type, strings.dims), (Some(8), vec![2]));
    assert_eq!(strings.string_data, ["y\u{e9}".as_bytes(), b"x"]);
    let maps = SequenceProto::decode(read("maps.pb")).unwrap();
    assert_eq!((maps.elem_type, maps.map_values.len()), (Some(4), 1));
    let map = &maps.map_values[0];
    assert_eq!((map.key_type, map.keys.as_slice()), (Some(7), &[3, 5][..]));
    let values = &map.values.as_ref().unwrap().tensor_values;
    let raw: Vec<_> = values.iter().flat_map(|value| value.raw_data.clone().unwrap()).collect();
    assert_eq!(raw, [0.5f32, 0.25].map(f32::to_le_bytes).concat());
}
