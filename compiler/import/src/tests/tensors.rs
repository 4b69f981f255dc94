//! Constants: every storage form.

use onnxc_proto::{SparseTensorProto, StringStringEntryProto};

use super::*;
use crate::tensor::Constants;

fn tensor(dtype: DType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some("w".into()),
        data_type: Some(dtype.to_onnx()),
        dims: dims.to_vec(),
        ..Default::default()
    }
}

fn raw(dtype: DType, dims: &[i64], data: &[u8]) -> TensorProto {
    TensorProto { raw_data: Some(Bytes::copy_from_slice(data)), ..tensor(dtype, dims) }
}

fn ints(dtype: DType, dims: &[i64], values: &[i32]) -> TensorProto {
    TensorProto { int32_data: values.to_vec(), ..tensor(dtype, dims) }
}

fn read(proto: &TensorProto) -> Result<Tensor> {
    Constants::new(&NoExternalData, 1 << 20).dense(proto)
}

fn bytes(proto: &TensorProto) -> Vec<u8> {
    read(proto).unwrap().data.to_vec()
}

fn fails(proto: &TensorProto, kind: Kind, text: &str) {
    let error = read(proto).unwrap_err();
    assert!(error.kind == kind && error.message.contains(text), "{error}");
}

#[test]
fn raw_data_is_shared() {
    let proto = raw(DType::F32, &[2], &[0, 0, 128, 63, 0, 0, 0, 64]);
    let tensor = read(&proto).unwrap();
    assert_eq!(tensor.values::<f32>(), [1.0, 2.0]);
    assert_eq!(tensor.data.as_ptr(), proto.raw_data.unwrap().as_ptr());
    assert_eq!(bytes(&raw(DType::Bool, &[3], &[0, 1, 7])), [0, 1, 1]);
    assert_eq!(read(&raw(DType::F32, &[0, 3], &[])).unwrap().shape, [0, 3]);
}

#[test]
fn typed_lists_are_read_for_every_element_type() {
    let floats = TensorProto { float_data: vec![1.0, 2.0], ..tensor(DType::F32, &[2]) };
    assert_eq!(read(&floats).unwrap().values::<f32>(), [1.0, 2.0]);
    let complex = TensorProto { float_data: vec![1.0, 2.0], ..tensor(DType::C64, &[1]) };
    assert_eq!(bytes(&complex), [0, 0, 128, 63, 0, 0, 0, 64]);
    let doubles = TensorProto { double_data: vec![-1.5], ..tensor(DType::F64, &[]) };
    assert_eq!(read(&doubles).unwrap().values::<f64>(), [-1.5]);
    let longs = TensorProto { int64_data: vec![-5], ..tensor(DType::I64, &[1]) };
    assert_eq!(read(&longs).unwrap().values::<i64>(), [-5]);
    let unsigned = TensorProto { uint64_data: vec![u64::from(u32::MAX)], ..tensor(DType::U32, &[1]) };
    assert_eq!(read(&unsigned).unwrap().values::<u32>(), [u32::MAX]);
    let unsigned = TensorProto { uint64_data: vec![u64::MAX], ..tensor(DType::U64, &[1]) };
    assert_eq!(read(&unsigned).unwrap().values::<u64>(), [u64::MAX]);
    assert_eq!(read(&ints(DType::I32, &[1], &[-7])).unwrap().values::<i32>(), [-7]);
    assert_eq!(read(&ints(DType::I16, &[1], &[-7])).unwrap().values::<i16>(), [-7]);
    assert_eq!(read(&ints(DType::U16, &[1], &[65535])).unwrap().values::<u16>(), [65535]);
    assert_eq!(bytes(&ints(DType::I8, &[2], &[-1, 127])), [255, 127]);
    assert_eq!(bytes(&ints(DType::U8, &[2], &[255, 1])), [255, 1]);
    assert_eq!(bytes(&ints(DType::Bool, &[3], &[0, 1, 2])), [0, 1, 1]);
    let halves = read(&ints(DType::F16, &[2], &[0x3c00, 0xc000])).unwrap();
    assert_eq!(halves.to_f64s().unwrap(), [1.0, -2.0]);
    assert_eq!(read(&ints(DType::BF16, &[1], &[0x3f80])).unwrap().to_f64s().unwrap(), [1.0]);
    for dtype in [DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F8E8M0] {
        assert_eq!(bytes(&ints(dtype, &[1], &[0xb8])), [0xb8]);
    }
}

#[test]
fn packed_types_become_one_element_per_byte() {
    for proto in [raw(DType::U4, &[3], &[0xa1, 0x0f]), ints(DType::U4, &[3], &[0xa1, 0x0f])] {
        assert_eq!(bytes(&proto), [1, 10, 15]);
    }
    assert_eq!(read(&raw(DType::I4, &[3], &[0xa1, 0x0f])).unwrap().to_i64s().unwrap(), [1, -6, -1]);
    assert_eq!(bytes(&raw(DType::F4E2M1, &[2], &[0xe3])), [3, 14]);
    for dtype in [DType::F6E2M3, DType::F6E3M2] {
        let codes = [1, 2, 63, 32, 5];
        assert_eq!(bytes(&raw(dtype, &[5], &[129, 240, 131, 5])), codes);
        assert_eq!(bytes(&ints(dtype, &[5], &codes.map(i32::from))), codes);
        assert_eq!(read(&ints(dtype, &[1], &[64])).unwrap_err().kind, Kind::Malformed);
    }
    assert_eq!(bytes(&raw(DType::U2, &[5], &[0b11_10_01_00, 0b10])), [0, 1, 2, 3, 2]);
    assert_eq!(read(&raw(DType::I2, &[4], &[0b11_10_01_00])).unwrap().to_i64s().unwrap(), [0, 1, -2, -1]);
    let error = Constants::new(&NoExternalData, 2).dense(&raw(DType::U4, &[3], &[0, 0])).unwrap_err();
    assert_eq!(error.kind, Kind::Budget);
}

#[test]
fn malformed_tensors_are_refused() {
    fails(
        &raw(DType::F32, &[2], &[0; 7]),
        Kind::Malformed,
        "tensor `w`: 7 bytes of data for f32[2], which takes 8",
    );
    fails(&tensor(DType::F32, &[2]), Kind::Malformed, "0 bytes of data");
    fails(&raw(DType::F32, &[-2], &[]), Kind::Malformed, "negative");
    fails(&raw(DType::F32, &[1 << 40, 1 << 40], &[]), Kind::Budget, "too large");
    fails(&raw(DType::F32, &[1 << 40, 1 << 40, 0], &[]), Kind::Budget, "too large");
    fails(&raw(DType::C128, &[i64::MAX], &[]), Kind::Budget, "too large");
    fails(&ints(DType::I8, &[1], &[256]), Kind::Malformed, "256 does not fit i8");
    fails(&ints(DType::U8, &[1], &[-129]), Kind::Malformed, "does not fit");
    let wide = TensorProto { uint64_data: vec![1 << 32], ..tensor(DType::U32, &[1]) };
    fails(&wide, Kind::Malformed, "is not a u32");
    fails(&tensor(DType::Str, &[1]), Kind::Malformed, "0 strings for a tensor of shape [1]");
    fails(&raw(DType::Str, &[0], &[1]), Kind::Malformed, "raw or external");
    let latin = TensorProto { string_data: vec![vec![0xe9].into()], ..tensor(DType::Str, &[1]) };
    fails(&latin, Kind::Malformed, "is not UTF-8");
    fails(&TensorProto { data_type: Some(99), ..tensor(DType::F32, &[]) }, Kind::Malformed, "99");
    fails(&TensorProto { data_type: None, ..tensor(DType::F32, &[]) }, Kind::Malformed, "missing");
    let segment = TensorProto { segment: Some(Default::default()), ..raw(DType::U8, &[1], &[0]) };
    fails(&segment, Kind::Unsupported, "segments");
}

#[test]
fn sparse_tensors_become_dense() {
    let sparse = |indices: TensorProto, dims: &[i64]| SparseTensorProto {
        values: Some(f32s("w", &[2], &[5.0, 7.0])),
        indices: Some(indices),
        dims: dims.to_vec(),
    };
    let flat = |values: &[i64]| TensorProto { int64_data: values.to_vec(), ..tensor(DType::I64, &[2]) };
    let pairs = |values: &[i64]| TensorProto { int64_data: values.to_vec(), ..tensor(DType::I64, &[2, 2]) };
    let read = |proto: &SparseTensorProto| Constants::new(&NoExternalData, 1 << 20).sparse(proto);
    let expected = [0.0, 5.0, 0.0, 0.0, 7.0, 0.0];
    assert_eq!(read(&sparse(flat(&[1, 4]), &[2, 3])).unwrap().values::<f32>(), expected);
    assert_eq!(read(&sparse(pairs(&[0, 1, 1, 1]), &[2, 3])).unwrap().values::<f32>(), expected);
    assert_eq!(read(&sparse(flat(&[0, 1]), &[3])).unwrap().values::<f32>(), [5.0, 7.0, 0.0]);
    for (indices, text) in [
        (flat(&[4, 1]), "out of order"),
        (flat(&[4, 4]), "out of order"),
        (flat(&[1, 6]), "outside"),
        (flat(&[-1, 4]), "index -1"),
        (pairs(&[0, 1, 1, 3]), "index 3"),
        (tensor(DType::I64, &[0]), "indices of shape [0]"),
    ] {
        let error = read(&sparse(indices, &[2, 3])).unwrap_err();
        assert!(error.message.contains(text), "{error} does not say {text}");
    }
    assert_eq!(read(&sparse(flat(&[0, 1]), &[1 << 30, 1 << 10])).unwrap_err().kind, Kind::Budget);
    // A few bytes of file become no gigabyte, alone or together.
    let mut constants = Constants::new(&NoExternalData, 1 << 40);
    assert_eq!(constants.sparse(&sparse(flat(&[0, 1]), &[1 << 28])).unwrap_err().kind, Kind::Budget);
    assert!(constants.sparse(&sparse(flat(&[0, 1]), &[1 << 23])).is_ok());
    assert!(constants.sparse(&sparse(flat(&[0, 1]), &[1 << 23])).is_ok());
    assert_eq!(constants.sparse(&sparse(flat(&[0, 1]), &[1 << 23])).unwrap_err().kind, Kind::Budget);

    let mut model = model(vec![node("Add", &["x", "w"], &["y"])]);
    model.graph.as_mut().unwrap().sparse_initializer = vec![sparse(flat(&[1, 3]), &[4])];
    let graph = graph_of(&model);
    let constant = graph.values.iter().find(|(_, value)| value.name == "w").unwrap().0;
    assert_eq!(graph.constant_data(constant).unwrap().values::<f32>(), [0.0, 5.0, 0.0, 7.0]);
}

/// What has no entry is zero, or the empty text.
#[test]
fn sparse_tensors_are_of_every_type() {
    for dtype in DType::all() {
        let values = match dtype {
            DType::Str => TensorProto { string_data: vec!["a".into(), "ä".into()], ..tensor(dtype, &[2]) },
            DType::Bool => raw(dtype, &[2], &[1, 1]),
            _ => raw(dtype, &[2], &vec![0x11; (2 * dtype.bits() as usize).div_ceil(8)]),
        };
        let indices = TensorProto { int64_data: vec![1, 3], ..tensor(DType::I64, &[2]) };
        let sparse =
            SparseTensorProto { values: Some(values.clone()), indices: Some(indices), dims: vec![2, 2] };
        let mut constants = Constants::new(&NoExternalData, 1 << 10);
        let (dense, found) = (constants.dense(&values).unwrap(), constants.sparse(&sparse).unwrap());
        assert_eq!((found.dtype, found.shape.as_slice()), (dtype, &[2, 2][..]));
        if dtype == DType::Str {
            assert_eq!(found.texts(), ["", "a", "", "ä"]);
            continue;
        }
        let (zero, size) = (vec![0; dtype.size()], dtype.size());
        let wanted = [&zero, &dense.data[..size], &zero, &dense.data[size..]].concat();
        assert_eq!(found.data, wanted, "{dtype}");
    }
}

/// One file, `data.bin`, of the bytes 0 to 15.
struct OneFile;

impl ExternalData for OneFile {
    fn read(&self, location: &str, offset: u64, length: Option<u64>) -> Result<Bytes> {
        assert_eq!(location, "data.bin");
        let (offset, length) =
            (offset as usize, length.map_or(16 - offset as usize, |length| length as usize));
        Ok(Bytes::from_iter(0..16u8).slice(offset..offset + length))
    }
}

#[test]
fn external_data_is_read_through_the_trait() {
    let external = |entries: &[(&str, &str)]| TensorProto {
        data_location: Some(1),
        external_data: entries
            .iter()
            .map(|(key, value)| StringStringEntryProto {
                key: Some(key.to_string()),
                value: Some(value.to_string()),
            })
            .collect(),
        ..tensor(DType::U8, &[3])
    };
    let read = |proto: &TensorProto| Constants::new(&OneFile, 0).dense(proto);
    let place = ("location", "data.bin");
    assert_eq!(read(&external(&[place])).unwrap().data.as_ref(), [0, 1, 2]);
    let full = external(&[place, ("offset", "4"), ("length", "3"), ("checksum", "?")]);
    assert_eq!(read(&full).unwrap().data.as_ref(), [4, 5, 6]);
    // coreutils' sha1sum of the bytes
    for (sum, oddities) in [("56178b86a57fac22899a9964185c2cc96e7da589", 0), ("00", 1)] {
        let mut constants = Constants::new(&OneFile, 0);
        constants.dense(&external(&[place, ("checksum", sum)])).unwrap();
        assert_eq!(constants.oddities.len(), oddities, "{:?}", constants.oddities);
    }
    for (entries, text) in [
        (vec![], "without a location"),
        (vec![place, ("offset", "-1")], "offset `-1`"),
        (vec![place, ("length", "4")], "4 bytes where 3 are needed"),
    ] {
        let error = read(&external(&entries)).unwrap_err();
        assert!(error.message.contains(text), "{error}");
    }
    let model = with_initializers(model(vec![node("Same", &["x"], &["y"])]), vec![full]);
    refuses(&model, Kind::Usage, "in the file `data.bin`");
}

#[test]
fn tensor_attributes_are_decoded() {
    let constant = |attribute: AttributeProto| {
        let nodes = vec![with(node("Const", &[], &["k"]), vec![attribute]), node("Add", &["x", "k"], &["y"])];
        model(nodes)
    };
    let find = |model: &ModelProto| {
        let graph = graph_of(model);
        let constant = graph.values.iter().find(|(_, value)| value.name == "k").unwrap().0;
        graph.constant_data(constant).unwrap().values::<f32>()
    };
    assert_eq!(find(&constant(a_tensor("value", f32s("", &[4], &[1.0; 4])))), [1.0; 4]);
    let sparse = SparseTensorProto {
        values: Some(f32s("", &[1], &[3.0])),
        indices: Some(TensorProto { int64_data: vec![2], ..tensor(DType::I64, &[1]) }),
        dims: vec![4],
    };
    let sparse = AttributeProto {
        sparse_tensor: Some(Box::new(sparse)),
        ..attribute("sparse_value", AttributeType::SparseTensor)
    };
    assert_eq!(find(&constant(sparse)), [0.0, 0.0, 3.0, 0.0]);
    let missing = attribute("value", AttributeType::Tensor);
    refuses(&constant(missing), Kind::Malformed, "attribute value has no value");
    let strings = a_tensor("value", tensor(DType::Str, &[1]));
    refuses(&constant(strings), Kind::Malformed, "attribute value: tensor `w`: 0 strings");
}
