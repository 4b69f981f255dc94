//! Nodes and constants of a graph that is written, in the form that the model's version of `ai.onnx` has.

use onnxc_ir::graph::DType;
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, build};

use super::names::Names;
use onnxc_ops::training::DOMAIN;

/// A graph in the making, which draws its names from those of a model.
pub(super) struct Writer<'n> {
    pub names: &'n mut Names,
    /// The version of `ai.onnx`.
    pub opset: i64,
    pub graph: GraphProto,
}

impl<'n> Writer<'n> {
    pub(super) fn new(name: &str, names: &'n mut Names, opset: i64) -> Writer<'n> {
        Writer { names, opset, graph: GraphProto { name: Some(name.to_string()), ..Default::default() } }
    }

    /// A node with one result, which gets the name `wanted` or one like it.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
        wanted: &str,
    ) -> String {
        let result = self.names.fresh(wanted);
        let mut node = build::node(op, inputs, &[&result]);
        node.attribute = attributes;
        self.push(node);
        result
    }

    /// A node of the operators for training.
    pub(super) fn training(
        &mut self,
        op: &str,
        inputs: &[String],
        outputs: &[String],
        attributes: Vec<AttributeProto>,
    ) {
        self.push(NodeProto {
            op_type: Some(op.to_string()),
            domain: Some(DOMAIN.to_string()),
            input: inputs.to_vec(),
            output: outputs.to_vec(),
            attribute: attributes,
            ..Default::default()
        });
    }

    /// Nodes have the names of their first results, for messages.
    pub(super) fn push(&mut self, mut node: NodeProto) {
        node.name = node.output.first().cloned();
        self.graph.node.push(node);
    }

    /// A constant of floats, f32 or f64.
    pub(super) fn floats(&mut self, dtype: DType, dims: &[i64], values: &[f64], wanted: &str) -> String {
        let name = self.names.fresh(wanted);
        self.graph.initializer.push(floats(dtype, &name, dims, values));
        name
    }

    pub(super) fn integers(&mut self, dims: &[i64], values: &[i64], wanted: &str) -> String {
        let name = self.names.fresh(wanted);
        self.graph.initializer.push(build::i64_tensor(&name, dims, values.to_vec()));
        name
    }

    pub(super) fn cast(&mut self, x: &str, to: DType, wanted: &str) -> String {
        self.node("Cast", &[x], vec![build::int("to", to.to_onnx().into())], wanted)
    }

    /// The mean of all elements, a scalar.
    pub(super) fn mean(&mut self, x: &str, wanted: &str) -> String {
        self.node("ReduceMean", &[x], vec![build::int("keepdims", 0)], wanted)
    }

    pub(super) fn output(&mut self, info: ValueInfoProto) {
        self.graph.output.push(info);
    }
}

pub(super) fn floats(dtype: DType, name: &str, dims: &[i64], values: &[f64]) -> TensorProto {
    let single: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let mut tensor = build::f32_tensor(name, dims, single);
    if dtype == DType::F64 {
        tensor.float_data = vec![];
        tensor.double_data = values.to_vec();
        tensor.data_type = Some(dtype.to_onnx());
    }
    tensor
}

/// A tensor of zeros, its bytes as they lie in memory.
pub(super) fn zeros(dtype: DType, name: &str, dims: &[i64]) -> TensorProto {
    let mut tensor = floats(dtype, name, dims, &[]);
    let count: i64 = dims.iter().product();
    let bytes = usize::try_from(count).unwrap_or(0) * dtype.size();
    tensor.raw_data = Some(vec![0; bytes].into());
    tensor
}

pub(super) fn float(name: &str, value: f64) -> AttributeProto {
    AttributeProto { f: Some(value as f32), ..build::attribute(name, AttributeType::Float) }
}

pub(super) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.to_string().into()), ..build::attribute(name, AttributeType::String) }
}

pub(super) fn texts(name: &str, values: &[String]) -> AttributeProto {
    let strings = values.iter().map(|value| value.clone().into()).collect();
    AttributeProto { strings, ..build::attribute(name, AttributeType::Strings) }
}

pub(super) fn tensor(name: &str, value: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(Box::new(value)), ..build::attribute(name, AttributeType::Tensor) }
}
