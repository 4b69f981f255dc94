//! A model while it is being written: nodes get results with names of their own.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, f32_value, i64_tensor, untyped, value};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto};

const OPSET: i64 = 21;

#[derive(Default)]
pub(super) struct Sketch {
    graph: GraphProto,
    functions: Vec<FunctionProto>,
    names: usize,
}

impl Sketch {
    pub(super) fn new() -> Sketch {
        Sketch::default()
    }

    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    /// An input of f32.
    pub(super) fn input(&mut self, dims: &[impl ToString]) -> String {
        let name = self.fresh();
        self.graph.input.push(f32_value(&name, dims));
        name
    }

    pub(super) fn input_of(&mut self, dtype: DataType, dims: &[impl ToString]) -> String {
        let name = self.fresh();
        self.graph.input.push(value(&name, dtype as i32, dims));
        name
    }

    /// An initializer: a vector of i64.
    pub(super) fn i64s(&mut self, values: &[i64]) -> String {
        let name = self.fresh();
        self.graph.initializer.push(i64_tensor(&name, &[values.len() as i64], values.to_vec()));
        name
    }

    /// An initializer: an i64 scalar.
    pub(super) fn i64(&mut self, value: i64) -> String {
        let name = self.fresh();
        self.graph.initializer.push(i64_tensor(&name, &[], vec![value]));
        name
    }

    /// An initializer of f32.
    pub(super) fn f32s(&mut self, dims: &[i64], values: Vec<f32>) -> String {
        let name = self.fresh();
        self.graph.initializer.push(build::f32_tensor(&name, dims, values));
        name
    }

    /// A node of one result.
    pub(super) fn op(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.op_with(op_type, inputs, vec![])
    }

    pub(super) fn op_with(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let name = self.fresh();
        self.node(attributes.into_iter().fold(build::node(op_type, inputs, &[&name]), NodeProto::with));
        name
    }

    /// A node of several results.
    pub(super) fn ops(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
        results: usize,
    ) -> Vec<String> {
        let names: Vec<String> = (0..results).map(|_| self.fresh()).collect();
        let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
        self.node(attributes.into_iter().fold(build::node(op_type, inputs, &outputs), NodeProto::with));
        names
    }

    pub(super) fn node(&mut self, node: NodeProto) {
        self.graph.node.push(node);
    }

    pub(super) fn function(&mut self, function: FunctionProto) {
        self.functions.push(function);
    }

    pub(super) fn initializer(&mut self, tensor: TensorProto) {
        self.graph.initializer.push(tensor);
    }

    /// An output whose type is left to inference.
    pub(super) fn output(&mut self, name: &str) {
        self.graph.output.push(untyped(name));
    }

    pub(super) fn model(self) -> ModelProto {
        let functions = self.functions;
        let graph = GraphProto { name: Some("g".into()), ..self.graph };
        let mut model = ModelProto { functions, ..build::model(OPSET, graph) };
        if !model.functions.is_empty() {
            model.opset_import.push(build::opset("local", 1));
        }
        model
    }

    /// The model with one output.
    pub(super) fn giving(mut self, output: &str) -> ModelProto {
        self.output(output);
        self.model()
    }
}

/// A function of the domain `local`.
pub(super) fn function(
    name: &str,
    inputs: &[&str],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("local".into()),
        input: build::strings(inputs),
        output: build::strings(outputs),
        node: nodes,
        opset_import: vec![build::opset("", OPSET), build::opset("local", 1)],
        ..Default::default()
    }
}

/// A call of a function of the domain `local`.
pub(super) fn call(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("local".into()), ..build::node(name, inputs, outputs) }
}

/// A model with an operator of another domain.
pub(super) fn importing(mut model: ModelProto, domain: &str, version: i64) -> ModelProto {
    model.opset_import.push(build::opset(domain, version));
    model
}

pub(super) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        s: Some(value.to_string().into_bytes().into()),
        ..build::attribute(name, AttributeType::String)
    }
}

pub(super) fn texts(name: &str, values: impl IntoIterator<Item = String>) -> AttributeProto {
    AttributeProto {
        strings: values.into_iter().map(|value| value.into_bytes().into()).collect(),
        ..build::attribute(name, AttributeType::Strings)
    }
}

pub(super) fn floats(name: &str, values: Vec<f32>) -> AttributeProto {
    AttributeProto { floats: values, ..build::attribute(name, AttributeType::Floats) }
}

/// Borrowed names.
pub(super) fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
