//! Tensors of the file: element types and fields, external data, sparse tensors.

use bytes::Bytes;
use onnxc_proto::tensor_proto::{DataLocation, DataType, Segment};
use onnxc_proto::{SparseTensorProto, StringStringEntryProto, TensorProto, build};

use super::*;

/// `y = Identity(w)` of this tensor.
fn identity(tensor: TensorProto) -> ModelProto {
    let dims: Vec<String> = tensor.dims.iter().map(|&dim| dim.max(0).to_string()).collect();
    let output = build::value("y", tensor.data_type(), &dims);
    let mut graph = build::graph(vec![], vec![build::node("Identity", &["w"], &["y"])], vec![output]);
    graph.initializer = vec![TensorProto { name: Some("w".into()), ..tensor }];
    let mut model = build::model(25, graph);
    model.ir_version = Some(13);
    model
}

fn tensor(ty: DataType, dims: &[i64]) -> TensorProto {
    TensorProto { data_type: Some(ty as i32), dims: dims.to_vec(), ..Default::default() }
}

fn bytes(ty: DataType, dims: &[i64], data: &[u8]) -> TensorProto {
    TensorProto { raw_data: Some(Bytes::copy_from_slice(data)), ..tensor(ty, dims) }
}

/// A row of a tensor.
fn is(number: u32, clause: &'static str, statement: &str, tensor: TensorProto, verdict: Verdict) -> Row {
    of(number, clause, statement, identity(tensor), verdict)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = storage_rows();
    rows.extend(fault_rows());
    rows.extend(external_rows());
    rows.extend(sparse_rows());
    rows
}

/// Each element type by raw data and by the list that the specification has for it, from row 223 on.
fn storage_rows() -> Vec<Row> {
    use DataType::*;
    let floats = |t: &mut TensorProto| t.float_data = vec![1.0, -2.0];
    let doubles = |t: &mut TensorProto| t.double_data = vec![1.0, -2.0];
    let ints = |t: &mut TensorProto| t.int32_data = vec![1, 0];
    type Fill = fn(&mut TensorProto);
    // The type, bits of an element, the list, and whether a row about its Cast follows.
    let plain: [(DataType, i64, Fill, bool); 19] = [
        (Float, 32, floats, false),
        (Uint8, 8, ints, false),
        (Int8, 8, ints, false),
        (Uint16, 16, ints, false),
        (Int16, 16, ints, false),
        (Int32, 32, ints, false),
        (Int64, 64, |t| t.int64_data = vec![1, -2], false),
        (Bool, 8, ints, false),
        (Double, 64, doubles, false),
        (Uint32, 32, |t| t.uint64_data = vec![1, 2], false),
        (Uint64, 64, |t| t.uint64_data = vec![1, 2], false),
        (Float16, 16, ints, false),
        (Bfloat16, 16, ints, false),
        (Float8e4m3fn, 8, ints, true),
        (Float8e4m3fnuz, 8, ints, true),
        (Float8e5m2, 8, ints, true),
        (Float8e5m2fnuz, 8, ints, true),
        (Float8e8m0, 8, ints, true),
        (Uint4, 4, |t| t.int32_data = vec![0x21, 3], false),
    ];
    let packed: [(DataType, i64, Fill); 4] = [
        (Int4, 4, |t| t.int32_data = vec![0x21, 3]),
        (Float4e2m1, 4, |t| t.int32_data = vec![0x21, 3]),
        (Uint2, 2, |t| t.int32_data = vec![0x1b]),
        (Int2, 2, |t| t.int32_data = vec![0x1b]),
    ];
    let complex: [(DataType, i64, Fill); 2] = [
        (Complex64, 64, |t| t.float_data = vec![1.0, 2.0, 3.0, 4.0]),
        (Complex128, 128, |t| t.double_data = vec![1.0, 2.0, 3.0, 4.0]),
    ];
    let others = packed.into_iter().chain(complex).map(|(ty, bits, fill)| (ty, bits, fill, false));
    let (mut rows, mut number) = (vec![], 223);
    for (ty, bits, fill, casts) in plain.into_iter().chain(others) {
        let count = if bits < 8 { 3 } else { 2 };
        let raw = vec![1; ((count * bits) as usize).div_ceil(8)];
        let mut typed = tensor(ty, &[count]);
        fill(&mut typed);
        rows.push(is(
            number,
            "Tensor",
            &format!("{} as raw_data", ty.as_str_name()),
            bytes(ty, &[count], &raw),
            Accepted,
        ));
        rows.push(is(number + 1, "Tensor", &format!("{} as a list", ty.as_str_name()), typed, Accepted));
        number += 2;
        if casts {
            let mut model = identity(bytes(ty, &[count], &raw));
            let cast = build::node("Cast", &["w"], &["y"]).with(build::int("to", 1));
            graph(&mut model).node = vec![cast];
            graph(&mut model).output = vec![build::f32_value("y", &["2"])];
            rows.push(of(number, "Tensor", &format!("{} cast to f32", ty.as_str_name()), model, Accepted));
            number += 1;
        }
    }
    assert_eq!(number, 278);
    let texts = TensorProto { string_data: vec!["a".into(), "b".into()], ..tensor(String, &[2]) };
    rows.push(is(278, "Tensor.STRING", "string_data", texts, Accepted));
    rows
}

fn fault_rows() -> Vec<Row> {
    use DataType::{Bool, Float, Int4, Int8, Int64, Undefined};
    let text = |data: &'static [u8]| TensorProto {
        string_data: vec![data.into()],
        ..tensor(DataType::String, &[1])
    };
    let floats =
        |dims: &[i64], count: usize| TensorProto { float_data: vec![1.0; count], ..tensor(Float, dims) };
    let both = TensorProto { float_data: vec![1.0, 2.0], ..bytes(Float, &[2], &[0; 8]) };
    let other = TensorProto { int64_data: vec![1, 2], ..floats(&[2], 2) };
    let segment = TensorProto { segment: Some(Segment { begin: Some(0), end: Some(2) }), ..floats(&[2], 2) };
    let documented = TensorProto { doc_string: Some("d".into()), ..floats(&[2], 2) };
    vec![
        is(
            279,
            "Tensor.STRING",
            "not as raw_data",
            bytes(DataType::String, &[1], b"a"),
            Refused("strings as raw or external data"),
        ),
        is(280, "Tensor.STRING", "UTF-8", text(&[0xff, 0xfe]), Refused("is not UTF-8")),
        is(
            281,
            "Tensor.data_type",
            "UNDEFINED is none",
            tensor(Undefined, &[2]),
            Refused("the element type is missing"),
        ),
        is(
            282,
            "Tensor.data_type",
            "absent",
            TensorProto { data_type: None, ..floats(&[2], 2) },
            Refused("the element type is missing"),
        ),
        is(
            283,
            "Tensor.data_type",
            "unknown",
            TensorProto { data_type: Some(99), ..floats(&[2], 2) },
            Refused("element type number 99 is not known"),
        ),
        is(
            284,
            "Tensor",
            "i64 in int32_data",
            TensorProto { int32_data: vec![1, 2], ..tensor(Int64, &[2]) },
            Refused("0 bytes of data for i64[2]"),
        ),
        is(
            285,
            "Tensor",
            "floats in double_data",
            TensorProto { double_data: vec![1.0, 2.0], ..tensor(Float, &[2]) },
            Refused("0 bytes of data for f32[2]"),
        ),
        is(286, "Tensor", "one field only", both, Warned("tensor_fields")),
        is(286, "Tensor", "one field only, also of another type", other, Warned("tensor_fields")),
        is(287, "Tensor", "no data", tensor(Float, &[2]), Refused("0 bytes of data for f32[2]")),
        is(288, "Tensor", "no elements, with data", floats(&[0], 1), Refused("4 bytes of data for f32[0]")),
        is(289, "Tensor", "no elements", tensor(Float, &[0]), Accepted),
        is(290, "Tensor", "too few", floats(&[3], 1), Refused("4 bytes of data for f32[3]")),
        is(291, "Tensor", "too many", floats(&[3], 5), Refused("20 bytes of data for f32[3]")),
        is(
            292,
            "Tensor",
            "raw_data too short",
            bytes(Float, &[3], &[0; 8]),
            Refused("8 bytes of data for f32[3]"),
        ),
        is(
            293,
            "Tensor",
            "raw_data too long",
            bytes(Float, &[3], &[0; 16]),
            Refused("16 bytes of data for f32[3]"),
        ),
        is(
            294,
            "Tensor",
            "raw_data of a packed type too long",
            bytes(Int4, &[3], &[0; 3]),
            Refused("3 bytes of data for i4[3]"),
        ),
        is(295, "Tensor.dims", "negative", tensor(Float, &[-1]), Refused("has a negative dim")),
        is(296, "Tensor.dims", "a scalar", floats(&[], 1), Accepted),
        is(297, "Tensor", "bools are 0 or 1", bytes(Bool, &[2], &[1, 7]), Warned("bool_bytes")),
        is(
            298,
            "Tensor",
            "a value outside of its type",
            TensorProto { int32_data: vec![300], ..tensor(Int8, &[1]) },
            Refused("300 does not fit i8"),
        ),
        is(
            299,
            "Tensor.segment",
            "no consumer has it",
            segment,
            Refused("stored in segments").since("no tool writes or reads segments"),
        ),
        is(300, "Tensor", "doc_string and metadata", documented, Accepted),
    ]
}

/// Two floats in another file, with these entries.
fn external(entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.into()),
        value: Some(value.into()),
    };
    TensorProto {
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..tensor(DataType::Float, &[2])
    }
}

fn external_rows() -> Vec<Row> {
    // Of the floats 1 to 4, little-endian.
    const SHA1: &str = "c26df9440df999ae7d765499acd5ca855709702f";
    let file = ("location", "w.bin");
    let accepted = |number, statement: &str, entries: &[(&str, &str)]| {
        is(number, "External", statement, external(entries), Accepted)
    };
    let refused = |number, statement: &str, entries: &[(&str, &str)], text| {
        is(number, "External", statement, external(entries), Refused(text))
    };
    let doubled = TensorProto { float_data: vec![1.0, 2.0], ..external(&[file]) };
    let mut twice = identity(external(&[file]));
    graph(&mut twice)
        .initializer
        .push(TensorProto { name: Some("v".into()), ..external(&[file, ("offset", "8")]) });
    let mut constant = identity(external(&[file]));
    let initializer = graph(&mut constant).initializer.remove(0);
    let value = onnxc_proto::AttributeProto {
        t: Some(Box::new(initializer)),
        ..build::attribute("value", onnxc_proto::attribute_proto::AttributeType::Tensor)
    };
    graph(&mut constant).node = vec![build::node("Constant", &[], &["y"]).with(value)];
    let mut sparse = identity(external(&[file]));
    let values = graph(&mut sparse).initializer.remove(0);
    graph(&mut sparse).sparse_initializer = vec![SparseTensorProto {
        values: Some(values),
        indices: Some(build::i64_tensor("", &[2], vec![0, 1])),
        dims: vec![2],
    }];
    let packed = TensorProto { data_type: Some(DataType::Int4 as i32), ..external(&[file, ("length", "1")]) };
    let text = TensorProto { data_type: Some(DataType::String as i32), ..external(&[file]) };
    vec![
        accepted(301, "a file beside the model", &[file, ("length", "8")]),
        accepted(302, "offset and length", &[file, ("offset", "4"), ("length", "8")]),
        accepted(303, "offset without length", &[file, ("offset", "8")]),
        accepted(304, "an offset that is not aligned", &[file, ("offset", "1"), ("length", "8")]),
        accepted(305, "an aligned offset", &[file, ("offset", "0"), ("length", "8")]),
        accepted(306, "a file that is longer", &[file]),
        accepted(307, "the right checksum", &[file, ("checksum", SHA1)]),
        is(
            308,
            "External",
            "a wrong checksum",
            external(&[file, ("checksum", "0000000000000000000000000000000000000000")]),
            Warned("checksum"),
        ),
        refused(
            309,
            "a length that is not the tensor's",
            &[file, ("length", "12")],
            "external data of 12 bytes where 8 are needed",
        ),
        refused(310, "a file that is too short", &[file, ("offset", "12")], "no 8 bytes at offset 12"),
        refused(311, "a file that is missing", &[("location", "gone.bin")], "gone.bin"),
        refused(312, "a location is there", &[("length", "8")], "without a location"),
        is(313, "External", "no other data", doubled, Warned("external_fields")),
        refused(314, "no absolute path", &[("location", "/w.bin")], "must be a relative path"),
        refused(315, "no path upwards", &[("location", "../w.bin")], "must be a relative path"),
        refused(316, "an offset that is not a number", &[file, ("offset", "abc")], "offset `abc`"),
        refused(317, "a negative offset", &[file, ("offset", "-4")], "offset `-4`"),
        accepted(318, "unknown keys", &[file, ("own", "1")]),
        of(319, "External", "one file for several tensors", twice, Accepted),
        accepted(320, "a folder inside", &[("location", "sub/w.bin")]),
        of(321, "External", "of an attribute", constant, Accepted),
        of(322, "External", "values of a sparse initializer", sparse, Accepted),
        is(323, "External", "elements of 4 bits", packed, Accepted),
        is(324, "External", "no strings", text, Refused("strings as raw or external data")),
    ]
}

/// `y = x + w` of a sparse `w`.
fn sparse(dims: &[i64], values: TensorProto, indices: TensorProto) -> ModelProto {
    let texts: Vec<std::string::String> = dims.iter().map(ToString::to_string).collect();
    let ty = values.data_type();
    let mut graph = build::graph(
        vec![build::value("x", ty, &texts)],
        vec![build::node("Add", &["x", "w"], &["y"])],
        vec![build::value("y", ty, &texts)],
    );
    graph.sparse_initializer =
        vec![SparseTensorProto { values: Some(values), indices: Some(indices), dims: dims.to_vec() }];
    build::model(22, graph)
}

fn sparse_rows() -> Vec<Row> {
    let values = |count: usize| build::f32_tensor("w", &[count as i64], vec![1.0; count]);
    let indices = |dims: &[i64], values: &[i64]| build::i64_tensor("", dims, values.to_vec());
    let of_floats = |number, statement: &str, dims: &[i64], at: (&[i64], &[i64]), verdict| {
        let count = at.0.first().map_or(0, |&count| count as usize);
        of(number, "Sparse", statement, sparse(dims, values(count), indices(at.0, at.1)), verdict)
    };
    let short =
        TensorProto { data_type: Some(6), int32_data: vec![0, 2], int64_data: vec![], ..indices(&[2], &[]) };
    let unnamed = TensorProto { name: None, ..values(1) };
    let texts = TensorProto {
        name: Some("w".into()),
        string_data: vec!["a".into()],
        ..tensor(DataType::String, &[1])
    };
    let mut strings = sparse(&[4], texts, indices(&[1], &[0]));
    graph(&mut strings).input.clear();
    graph(&mut strings).node = vec![build::node("Identity", &["w"], &["y"])];
    let mut huge = sparse(&[1 << 20, 1 << 20], values(1), indices(&[1], &[0]));
    graph(&mut huge).input = vec![build::f32_value("x", &["1"])];
    graph(&mut huge).output = vec![build::f32_value("y", &["?", "?"])];
    const ORDER: &str = "is out of order or outside";
    vec![
        of_floats(325, "linear indices", &[4], (&[2], &[0, 2]), Accepted),
        of_floats(326, "indices [NNZ, rank]", &[2, 2], (&[2, 2], &[0, 1, 1, 0]), Accepted),
        of_floats(327, "linear indices of a matrix", &[2, 2], (&[2], &[0, 3]), Accepted),
        of_floats(328, "all elements are zero", &[4], (&[0], &[]), Accepted),
        of_floats(329, "indices ascend", &[4], (&[2], &[2, 0]), Refused(ORDER)),
        of_floats(330, "indices without duplicates", &[4], (&[2], &[2, 2]), Refused(ORDER)),
        of_floats(331, "lexicographic order", &[2, 2], (&[2, 2], &[1, 0, 0, 1]), Refused(ORDER)),
        of_floats(332, "an index out of range", &[4], (&[2], &[0, 4]), Refused(ORDER)),
        of_floats(333, "a negative index", &[4], (&[1], &[-1]), Refused("index -1 is outside")),
        of_floats(334, "a tuple out of range", &[2, 2], (&[1, 2], &[2, 0]), Refused("index 2 is outside")),
        of(335, "Sparse", "indices are i64", sparse(&[4], values(2), short), Refused("indices i32[2]")),
        of(
            336,
            "Sparse",
            "equal numbers of values and indices",
            sparse(&[4], values(2), indices(&[3], &[0, 1, 2])),
            Refused("indices of shape [3] for 2 values"),
        ),
        of(
            337,
            "Sparse",
            "indices have the rank as second size",
            sparse(&[2, 2], values(2), indices(&[2, 1], &[0, 1])),
            Refused("indices of shape [2, 1] for 2 values"),
        ),
        of(
            338,
            "Sparse",
            "values have rank 1",
            sparse(&[4], build::f32_tensor("w", &[1, 2], vec![1.0; 2]), indices(&[2], &[0, 1])),
            Refused("values are f32[1, 2]"),
        ),
        of_floats(339, "the rank is not 0", &[], (&[1], &[2]), Refused(ORDER)),
        of_floats(340, "sizes are positive", &[0], (&[0], &[]), Warned("sparse_dims")),
        of(
            341,
            "Sparse",
            "an initializer has a name",
            sparse(&[4], unnamed, indices(&[1], &[0])),
            Refused("an initializer has no name"),
        ),
        of(342, "Sparse", "strings", strings, Accepted),
        of(
            343,
            "Sparse",
            "i64",
            sparse(&[4], build::i64_tensor("w", &[1], vec![5]), indices(&[1], &[0])),
            Accepted,
        ),
        of(
            344,
            "Sparse",
            "4 TiB of a few bytes",
            huge,
            Refused("64 times as large").since("a small file may not take all memory"),
        ),
    ]
}
