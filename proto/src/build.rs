//! ONNX structs in short form, for models that programs write.

use crate::attribute_proto::AttributeType;
use crate::tensor_proto::DataType;
use crate::tensor_shape_proto::{Dimension, dimension};
use crate::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};

pub fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// A node without attributes; an empty name is an input or output left out.
pub fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op_type.into()),
        input: strings(inputs),
        output: strings(outputs),
        ..Default::default()
    }
}

impl NodeProto {
    /// The node with one more attribute.
    pub fn with(mut self, attribute: AttributeProto) -> NodeProto {
        self.attribute.push(attribute);
        self
    }
}

/// An attribute without its value.
pub fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(kind as i32), ..Default::default() }
}

/// An attribute of one integer.
pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

/// An attribute of a list of integers.
pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// An attribute that holds a graph, such as the body of a Loop.
pub fn subgraph(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(graph)), ..attribute(name, AttributeType::Graph) }
}

/// A tensor of f32, row-major.
pub fn f32_tensor(name: &str, dims: &[i64], values: Vec<f32>) -> TensorProto {
    TensorProto { float_data: values, ..tensor(name, DataType::Float, dims) }
}

/// A tensor of i64, row-major.
pub fn i64_tensor(name: &str, dims: &[i64], values: Vec<i64>) -> TensorProto {
    TensorProto { int64_data: values, ..tensor(name, DataType::Int64, dims) }
}

fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(data_type as i32),
        ..Default::default()
    }
}

/// A value of a tensor type, whose elements are of ONNX's data type number `data_type`. A dim is a size, as a number or as
/// text, or the name of a symbol, or `?` for nothing known.
pub fn value(name: &str, data_type: i32, dims: &[impl ToString]) -> ValueInfoProto {
    let dim = |dim: &_| {
        let text = ToString::to_string(dim);
        let value = match (text.parse(), text.as_str()) {
            (Ok(size), _) => Some(dimension::Value::DimValue(size)),
            (_, "?") => None,
            _ => Some(dimension::Value::DimParam(text)),
        };
        Dimension { value, denotation: None }
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(data_type), shape: Some(shape) };
    typed(name, type_proto::Value::TensorType(tensor))
}

/// A value of f32, its dims as in [`value`].
pub fn f32_value(name: &str, dims: &[impl ToString]) -> ValueInfoProto {
    value(name, DataType::Float as i32, dims)
}

/// A value of any type.
pub fn typed(name: &str, ty: type_proto::Value) -> ValueInfoProto {
    let ty = TypeProto { value: Some(ty), denotation: None };
    ValueInfoProto { r#type: Some(ty), ..untyped(name) }
}

/// A value whose type is left to inference.
pub fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), ..Default::default() }
}

/// A graph without initializers.
pub fn graph(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, outputs: Vec<ValueInfoProto>) -> GraphProto {
    GraphProto { name: Some("g".into()), input: inputs, node: nodes, output: outputs, ..Default::default() }
}

/// The import of a version of a domain's operators; `ai.onnx` is the empty domain.
pub fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

/// A model of IR version 9 that imports a version of the operators of `ai.onnx`.
pub fn model(version: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(9),
        opset_import: vec![opset("", version)],
        graph: Some(graph),
        ..Default::default()
    }
}
