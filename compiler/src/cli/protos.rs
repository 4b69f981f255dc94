//! ONNX values as protobuf messages: what `.npy` cannot hold.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use onnxc_proto::{MapProto, OptionalProto, SequenceProto, TensorProto};

use crate::cli::values::{Map, Value};
use crate::files::io_error;
use onnxc_ir::borders::pack_bits;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Tensor};

/// Numbers of `SequenceProto.DataType`, which are those of `OptionalProto.DataType` too.
const TENSOR: i32 = 1;
const SEQUENCE: i32 = 3;
const MAP: i32 = 4;

/// Writes a value into `file`, which belongs at `place`, as the message of its kind: `TensorProto`, `SequenceProto`,
/// `OptionalProto` or `MapProto`.
pub(super) fn write_to(file: &mut File, place: &Path, value: &Value) -> Result<()> {
    file.write_all(&encode(value)?).map_err(|error| io_error(place, &error))
}

fn encode(value: &Value) -> Result<Vec<u8>> {
    Ok(match value {
        Value::Tensor(of) => onnxc_proto::encode(&tensor(of)),
        Value::Sequence(of) => onnxc_proto::encode(&sequence(of)),
        Value::Optional(of) => onnxc_proto::encode(&optional(of.as_deref())?),
        Value::Map(of) => onnxc_proto::encode(&map(of)),
        Value::Records(of) => {
            let map_values = of.iter().map(map).collect();
            onnxc_proto::encode(&SequenceProto { elem_type: Some(MAP), map_values, ..Default::default() })
        }
        Value::Sparse(..) => return Err(no_output(value)),
    })
}

/// No model has such an output.
fn no_output(value: &Value) -> Error {
    Error::new(Stage::Io, Kind::Unsupported, format!("{} as an output", value.outline()))
}

fn tensor(tensor: &Tensor) -> TensorProto {
    let dims = tensor.shape.iter().map(|&size| size as i64).collect();
    let proto = TensorProto { dims, data_type: Some(tensor.dtype.to_onnx()), ..Default::default() };
    match tensor.dtype {
        DType::Str => TensorProto { string_data: tensor.texts(), ..proto },
        dtype if dtype.bits() < 8 => {
            TensorProto { raw_data: Some(pack_bits(dtype, &tensor.data).into()), ..proto }
        }
        _ => TensorProto { raw_data: Some(tensor.data.clone()), ..proto },
    }
}

fn sequence(elements: &[Tensor]) -> SequenceProto {
    let tensor_values = elements.iter().map(tensor).collect();
    SequenceProto { elem_type: Some(TENSOR), tensor_values, ..Default::default() }
}

fn optional(element: Option<&Value>) -> Result<OptionalProto> {
    let proto = OptionalProto::default();
    Ok(match element {
        None => proto,
        Some(Value::Tensor(of)) => {
            OptionalProto { elem_type: Some(TENSOR), tensor_value: Some(tensor(of)), ..proto }
        }
        Some(Value::Sequence(of)) => {
            OptionalProto { elem_type: Some(SEQUENCE), sequence_value: Some(sequence(of)), ..proto }
        }
        Some(other) => return Err(no_output(other)),
    })
}

/// Each value is a tensor of one element.
fn map(map: &Map) -> MapProto {
    let values: Vec<Tensor> = (0..map.values.len()).map(|at| map.values.part(at, &[])).collect();
    let proto = MapProto {
        key_type: Some(map.keys.dtype.to_onnx()),
        values: Some(sequence(&values)),
        ..Default::default()
    };
    match map.keys.dtype {
        DType::Str => MapProto { string_keys: map.keys.texts(), ..proto },
        _ => MapProto { keys: map.keys.to_i64s().unwrap_or_default(), ..proto },
    }
}
