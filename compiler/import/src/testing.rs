//! Models for tests, as text.

use onnxc_ir::error::Error;
use onnxc_ir::graph::{DType, Graph};
use onnxc_ops::Table;
use onnxc_proto::build;
use onnxc_proto::type_proto::{self, Value};
use onnxc_proto::{AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto};

use crate::{ImportOptions, NoExternalData, import};

/// `y z = Op(a, b)` as a node.
pub fn node(text: &str) -> NodeProto {
    let (outputs, call) = text.split_once(" = ").unwrap();
    let (op, inputs) = call.strip_suffix(')').unwrap().split_once('(').unwrap();
    let names = |text, separator| -> Vec<&str> { str::split(text, separator).map(str::trim).collect() };
    let inputs = if inputs.is_empty() { vec![] } else { names(inputs, ',') };
    build::node(op, &inputs, &names(outputs, ' '))
}

pub fn nodes(texts: &[&str]) -> Vec<NodeProto> {
    texts.iter().map(|text| node(text)).collect()
}

/// A name without type, or `name: bool[] | i64[n, 2] | seq(i64[n]) | optional(seq(i64*)) | map(i64, f32) ..`.
fn info(text: &str) -> ValueInfoProto {
    let Some((name, ty)) = text.split_once(": ") else { return build::untyped(text) };
    if ty.ends_with(')') {
        return build::typed(name, type_of(ty).value.unwrap());
    }
    tensor_info(name, ty)
}

fn type_of(text: &str) -> TypeProto {
    let inner = |ty: &str| Some(Box::new(type_of(ty)));
    let Some((wrapper, rest)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) else {
        return tensor_info("", text).r#type.unwrap();
    };
    let value = match wrapper {
        "seq" => Value::SequenceType(Box::new(type_proto::Sequence { elem_type: inner(rest) })),
        "optional" => Value::OptionalType(Box::new(type_proto::Optional { elem_type: inner(rest) })),
        "map" => {
            let (key, value) = rest.split_once(", ").unwrap();
            let key_type = Some(DType::from_name(key).unwrap().to_onnx());
            Value::MapType(Box::new(type_proto::Map { key_type, value_type: inner(value) }))
        }
        "sparse" => {
            let Some(Value::TensorType(tensor)) = type_of(rest).value else { panic!("{text}") };
            let (elem_type, shape) = (tensor.elem_type, tensor.shape);
            Value::SparseTensorType(type_proto::SparseTensor { elem_type, shape })
        }
        other => panic!("{other}"),
    };
    TypeProto { value: Some(value), denotation: None }
}

/// An attribute that holds a type, as [`info`] writes it.
pub fn type_of_attribute(name: &str, ty: &str) -> AttributeProto {
    let attribute = build::attribute(name, onnxc_proto::attribute_proto::AttributeType::TypeProto);
    AttributeProto { tp: Some(Box::new(type_of(ty))), ..attribute }
}

/// A tensor, whose rank is unknown with a star in place of dims.
fn tensor_info(name: &str, ty: &str) -> ValueInfoProto {
    if let Some(dtype) = ty.strip_suffix('*') {
        let elem_type = Some(DType::from_name(dtype).unwrap().to_onnx());
        return build::typed(name, Value::TensorType(type_proto::Tensor { elem_type, shape: None }));
    }
    let (dtype, dims) = ty.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dims: Vec<&str> = dims.split(", ").filter(|text| !text.is_empty()).collect();
    build::value(name, DType::from_name(dtype).unwrap().to_onnx(), &dims)
}

pub fn graph(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let infos = |texts: &[&str]| texts.iter().map(|text| info(text)).collect();
    build::graph(infos(inputs), nodes, infos(outputs))
}

/// i64 constants of a graph: a scalar, or a vector.
pub fn with_constants(mut graph: GraphProto, constants: &[(&str, &[i64], bool)]) -> GraphProto {
    for &(name, values, scalar) in constants {
        let dims = if scalar { vec![] } else { vec![values.len() as i64] };
        graph.initializer.push(build::i64_tensor(name, &dims, values.to_vec()));
    }
    graph
}

pub fn imported_at(version: i64, graph: GraphProto) -> std::result::Result<Graph, Vec<Error>> {
    import(&build::model(version, graph), &ImportOptions::default(), &NoExternalData, &Table::standard()).map(
        |import| {
            assert_eq!(onnxc_ir::verify::verify(&import.graph), Ok(()));
            let text = onnxc_ir::graph::print::to_text(&import.graph);
            assert_eq!(onnxc_ir::graph::print::to_text(&onnxc_ir::graph::parse::parse(&text).unwrap()), text);
            import.graph
        },
    )
}

pub fn imported(graph: GraphProto) -> Graph {
    imported_at(17, graph).unwrap()
}

pub fn refused(graph: GraphProto, text: &str) {
    let errors = imported_at(17, graph).unwrap_err();
    assert!(errors.iter().any(|error| error.to_string().contains(text)), "{errors:?}");
}
