use std::path::Path;

use super::*;

fn model() -> ModelProto {
    let tensor = TensorProto {
        dims: vec![2],
        data_type: Some(tensor_proto::DataType::Float as i32),
        name: Some("w".into()),
        raw_data: Some(Bytes::from_static(&[0, 0, 128, 63, 0, 0, 0, 64])),
        ..Default::default()
    };
    let attribute = AttributeProto { name: Some("axes".into()), ints: vec![-1, 300], ..Default::default() };
    let node = NodeProto {
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        op_type: Some("Add".into()),
        attribute: vec![attribute],
        ..Default::default()
    };
    let graph =
        GraphProto { node: vec![node.clone(), node], initializer: vec![tensor], ..Default::default() };
    ModelProto { ir_version: Some(9), graph: Some(graph), ..Default::default() }
}

fn field(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(number << 3 | 2, &mut out);
    prost::encoding::encode_varint(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

fn fault(bytes: &[u8]) -> DecodeError {
    decode(Bytes::copy_from_slice(bytes), &Budget::default()).unwrap_err()
}

/// The files of `src/generated` were made of these schemas, and of nothing else.
#[test]
fn generated_code_is_what_the_schema_gives() {
    let kept = include_str!("generated/digests.txt");
    let found = digest::of_files(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert_eq!(
        kept.replace('\r', ""),
        found,
        "run `cargo run --manifest-path proto/generate/Cargo.toml` after a change of the schema"
    );
}

#[test]
fn round_trip_keeps_presence_and_shares_the_data() {
    let bytes = Bytes::from(model().encode_to_vec());
    let decoded = decode(bytes.clone(), &Budget::default()).unwrap();
    assert_eq!(decoded, model());
    assert_eq!(decoded.producer_name, None);
    let raw = decoded.graph.unwrap().initializer[0].raw_data.clone().unwrap();
    assert!(bytes.as_ptr_range().contains(&raw.as_ptr()), "raw_data was copied");
}

#[test]
fn every_truncation_is_an_error_or_a_prefix_of_fields() {
    let bytes = model().encode_to_vec();
    let mut errors = 0;
    for length in 0..bytes.len() {
        errors += usize::from(decode(Bytes::copy_from_slice(&bytes[..length]), &Budget::default()).is_err());
    }
    // Only the cuts between the root's two fields leave whole fields.
    assert_eq!(errors, bytes.len() - 2);
}

#[test]
fn no_corruption_panics_and_prost_agrees_with_the_walk() {
    let bytes = model().encode_to_vec();
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 8] {
            let mut broken = bytes.clone();
            broken[at] = value;
            if let Err(DecodeError { fault: Fault::Structure(message), .. }) =
                decode(Bytes::from(broken), &Budget::default())
            {
                panic!("the walk passed what prost refuses at byte {at}: {message}");
            }
        }
    }
}

#[test]
fn errors_name_the_path() {
    // graph.node[1].attribute[0] with an `ints` list that ends inside a number.
    let attribute = field(8, &[0x80]);
    let node = field(5, &attribute);
    let graph = [field(1, &[]), field(1, &node)].concat();
    let error = fault(&field(7, &graph));
    assert_eq!((error.path.as_str(), error.fault.clone()), ("graph.node[1].attribute[0]", Fault::Truncated));
    assert!(error.to_string().contains("in graph.node[1].attribute[0]"));
}

#[test]
fn malformed_fields_are_told_apart() {
    assert_eq!(fault(&[0x80; 11]).fault, Fault::Varint);
    assert_eq!(fault(&[0x02, 0]).fault, Fault::FieldNumber(0));
    assert_eq!(fault(&[0x0b]).fault, Fault::FieldType { field: "ir_version", wire: 3 });
    assert_eq!(fault(&[30 << 3 & 0x7f | 0x83, 1]).fault, Fault::WireType(3));
    assert_eq!(fault(&[0x3a, 5, 0]).fault, Fault::Overrun { field: "graph", length: 5, left: 1 });
    assert_eq!(fault(&field(2, &[0xff])).fault, Fault::Utf8("producer_name"));
    let tensor = field(7, &field(5, &field(4, &[0; 6])));
    assert_eq!(fault(&tensor).fault, Fault::Ragged { field: "float_data", width: 4, length: 6 });
    // A documentation string may hold anything, and so may fields of the future.
    decode(Bytes::from([field(6, &[0xff]), field(99, &[0xff])].concat()), &Budget::default()).unwrap();
}

/// A file of messages inside each other: graph > node > attribute > graph > ...
fn nested(levels: usize) -> Bytes {
    let inner = (0..levels - 1).rev().fold(Vec::new(), |bytes, level| field([1, 5, 6][level % 3], &bytes));
    Bytes::from(field(7, &inner))
}

#[test]
fn nesting_is_bounded() {
    decode(nested(100), &Budget::default()).unwrap();
    for levels in [101, 5000] {
        let error = decode(nested(levels), &Budget::default()).unwrap_err();
        assert_eq!(error.fault, Fault::Budget { unit: "nested messages", limit: 100 });
        assert!(error.path.starts_with("graph.node[0].attribute[0].g.node[0]"), "{}", error.path);
    }
}

#[test]
fn budgets_are_enforced() {
    let bytes = Bytes::from(model().encode_to_vec());
    let limit = |budget: Budget| match decode(bytes.clone(), &budget).unwrap_err().fault {
        Fault::Budget { unit, .. } => unit,
        other => panic!("{other}"),
    };
    let budget = Budget::default();
    assert_eq!(limit(Budget { bytes: 10, ..budget }), "bytes");
    assert_eq!(limit(Budget { memory: 100, memory_per_byte: 1, ..budget }), "bytes of memory");
    assert_eq!(limit(Budget { elements: 5, ..budget }), "elements");
    assert_eq!(limit(Budget { nesting: 1, ..budget }), "nested messages");
}

/// Two bytes in the file are a struct of hundreds in memory.
#[test]
fn empty_messages_by_the_million_are_refused_before_they_are_built() {
    let empty = |number: u64| field(number, &[]).repeat(2 << 20);
    for content in [field(1, &empty(5)), empty(1), empty(5), empty(11)] {
        let error = fault(&field(7, &content));
        assert!(matches!(error.fault, Fault::Budget { unit: "bytes of memory", .. }), "{error}");
    }
    // The same number of bytes in weights is accepted.
    let weights = field(7, &field(5, &field(9, &vec![0; 1 << 21])));
    decode(Bytes::from(weights), &Budget::default()).unwrap();
}

#[test]
fn real_models_decode() {
    let Some(folder) = std::env::var_os("ONNXC_MODELS") else { return };
    let mut models = 0;
    for entry in Path::new(&folder).read_dir().unwrap() {
        let path = entry.unwrap().path().join("model.onnx");
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let model = decode(Bytes::from(bytes), &Budget::default())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!model.graph.unwrap().node.is_empty(), "{}", path.display());
        models += 1;
    }
    assert!(models > 0, "ONNXC_MODELS holds no model");
}
