//! The graph that gives parameters first values.

use onnxc_ir::graph::DType;
use onnxc_proto::{GraphProto, NodeProto, StringStringEntryProto, build};

use super::bound;
use super::optimizer::Parameter;
use super::parameters::Role;
use super::writer::{Writer, float, floats};

/// First values of a parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum First {
    /// The same number everywhere.
    All(f64),
    /// Normal numbers with this deviation.
    Normal(f64),
    /// Numbers from minus this to this.
    Uniform(f64),
}

/// What a parameter of a role begins with; `None` where nothing is known.
pub(super) fn of_role(role: Role) -> Option<First> {
    let fan = |count: i64| (count.max(1) as f64).sqrt();
    match role {
        // He and others, "Delving deep into rectifiers", 2015.
        Role::Weight(count) => Some(First::Normal(std::f64::consts::SQRT_2 / fan(count))),
        Role::Table(length) => Some(First::Normal(1.0 / fan(length))),
        Role::Scale => Some(First::All(1.0)),
        Role::Shift => Some(First::All(0.0)),
        Role::Slope => Some(First::All(0.25)),
        Role::Unknown | Role::Fixed(_) => None,
    }
}

/// The graph and its bindings.
pub(super) fn write(
    mut w: Writer<'_>,
    values: &[(Parameter, First)],
) -> (GraphProto, Vec<StringStringEntryProto>) {
    let mut bindings = vec![];
    for (own, first) in values {
        let Parameter { name, dtype, dims } = own;
        let wanted = format!("{name}.first");
        let random = |op: &str, attributes: Vec<_>| {
            let mut node = build::node(op, &[], &[]);
            node.attribute = attributes;
            node.attribute.push(build::int("dtype", dtype.to_onnx().into()));
            node.attribute.push(build::ints("shape", dims));
            node
        };
        let mut node: NodeProto = match *first {
            First::Normal(scale) => random("RandomNormal", vec![float("scale", scale)]),
            First::Uniform(most) => random("RandomUniform", vec![float("low", -most), float("high", most)]),
            First::All(value) => {
                let mut node = build::node("ConstantOfShape", &[&shape(&mut w, dims, &wanted)], &[]);
                let mut tensor =
                    floats(if *dtype == DType::F64 { DType::F64 } else { DType::F32 }, "", &[1], &[value]);
                if *dtype == DType::I64 {
                    tensor = build::i64_tensor("", &[1], vec![value as i64]);
                }
                node.attribute.push(super::writer::tensor("value", tensor));
                node
            }
        };
        let result = w.names.fresh(&wanted);
        node.output = vec![result.clone()];
        w.push(node);
        w.output(build::value(&result, dtype.to_onnx(), dims));
        bindings.push(bound(name, &result));
    }
    (w.graph, bindings)
}

/// A shape as a value.
fn shape(w: &mut Writer<'_>, dims: &[i64], wanted: &str) -> String {
    let value = build::i64_tensor("", &[dims.len() as i64], dims.to_vec());
    w.node("Constant", &[], vec![super::writer::tensor("value", value)], &format!("{wanted}.shape"))
}
