//! Checks of a node against its row: those that need no types, also for bodies that are never lowered, and
//! those of the input types.

use std::collections::HashMap;
use std::sync::Arc;

use onnxc_proto::NodeProto;

use super::function::check_call;
use super::names::{named, own_name};
use super::opsets::{Opsets, plain_opsets};
use super::scope::bodies;
use super::{Importer, attr, normal_domain};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, NodeRef, Result, Stage};
use onnxc_ir::graph::DType;
use onnxc_ops::item::{Item, ItemKind};
use onnxc_ops::{Arity, AttrKind, OpDef, Param};

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Import, message))
}

/// Nodes still to be looked at, with the opsets they import.
type Open<'p> = Vec<(&'p [NodeProto], Arc<Opsets>)>;

impl Importer<'_> {
    /// Reports what can be checked without types in the bodies of a node that is not lowered: operators and
    /// signatures, also inside the functions they call.
    pub(super) fn check_bodies(&mut self, node: &NodeProto, opsets: &Opsets) {
        let mut open: Open<'_> = Vec::new();
        let opsets = Arc::new(opsets.clone());
        push_bodies(&mut open, node, &opsets);
        while let Some((nodes, opsets)) = open.pop() {
            for (index, node) in nodes.iter().enumerate() {
                let checked = match self.given.callee(node) {
                    Some((key, function)) => {
                        if self.calls.checked.insert(key) {
                            open.push((&function.node, Arc::new(plain_opsets(&function.opset_import))));
                        }
                        check_call(function, node)
                    }
                    None => {
                        let row = self.given.row(node, &opsets);
                        row.and_then(|row| check_signature(row, node))
                    }
                };
                if let Err(error) = checked {
                    self.problems.report(error.at(unresolved_site(node, index)));
                }
                push_bodies(&mut open, node, &opsets);
            }
        }
    }
}

fn push_bodies<'p>(open: &mut Open<'p>, node: &'p NodeProto, opsets: &Arc<Opsets>) {
    let found: Vec<_> = bodies(node).collect();
    // The last one pushed is the first one checked.
    open.extend(found.into_iter().rev().map(|body| (body.node.as_slice(), opsets.clone())));
}

/// A node of a body that nothing is known about but its text.
fn unresolved_site(node: &NodeProto, index: usize) -> NodeRef {
    NodeRef {
        name: own_name(node, index),
        domain: normal_domain(node.domain()).to_string(),
        op_type: node.op_type().to_string(),
        version: None,
        index,
        inputs: node.input.iter().map(|name| format!("{name}: ?")).collect(),
    }
}

/// Control flow: its variadic parameters may be empty and of many types.
fn is_control_flow(row: &OpDef) -> bool {
    row.attributes.iter().any(|attribute| attribute.default.kind() == AttrKind::Graph)
}

/// Checks numbers of inputs and outputs, and attributes, as far as the node alone determines them.
pub(crate) fn check_signature(row: &OpDef, node: &NodeProto) -> Result<()> {
    check_count("inputs", row.inputs, named(&node.input))?;
    check_count("outputs", row.outputs, named(&node.output))?;
    attr::check_names(row, node)
}

fn check_count(what: &str, params: &[Param], given: usize) -> Result<()> {
    let variadic = params.last().is_some_and(|param| param.arity.is_variadic());
    if given > params.len() && !variadic {
        return malformed(format!("{given} {what} where at most {} are taken", params.len()));
    }
    Ok(())
}

/// The parameter that input or output `at` belongs to.
fn param(params: &'static [Param], at: usize) -> Option<&'static Param> {
    params.get(at).or_else(|| params.last().filter(|param| param.arity.is_variadic()))
}

/// Checks that required inputs are there and that types agree with the row's type variables.
pub(crate) fn check_inputs(row: &OpDef, inputs: &[Option<Item>], b: &Builder<'_>) -> Result<()> {
    for (at, param) in row.inputs.iter().enumerate() {
        let needed = match param.arity {
            Arity::Required => true,
            Arity::Variadic | Arity::Mixed => !is_control_flow(row),
            Arity::Optional => false,
        };
        if needed && inputs.get(at).is_none_or(Option::is_none) {
            return malformed(format!("input {at} ({}) is missing", param.name));
        }
    }
    let mut bound: HashMap<&str, (DType, usize)> = HashMap::new();
    for (at, value) in inputs.iter().enumerate() {
        let (Some(value), Some(param)) = (value, param(row.inputs, at)) else { continue };
        let dtype = value.dtype(b);
        check_kind(("input", at), param, value.kind())?;
        check_type(row, ("input", at), param, dtype)?;
        if param.arity == Arity::Mixed || param.arity == Arity::Variadic && is_control_flow(row) {
            continue;
        }
        match bound.insert(param.ty, (dtype, at)) {
            Some((other, first)) if other != dtype => {
                return malformed(format!(
                    "input {at} ({}) is {dtype} and input {first} is {other}; both are {}",
                    param.name, param.ty
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the types that a lowering gave its results: attributes may ask for one that the row does not have.
pub(crate) fn check_outputs(row: &OpDef, outputs: &[Item], b: &Builder<'_>) -> Result<()> {
    for (at, value) in outputs.iter().enumerate() {
        let Some(param) = param(row.outputs, at) else { continue };
        check_kind(("output", at), param, value.kind())?;
        check_type(row, ("output", at), param, value.dtype(b))?;
    }
    Ok(())
}

fn check_kind((what, at): (&str, usize), param: &Param, kind: ItemKind) -> Result<()> {
    if param.kinds.contains(&kind) {
        return Ok(());
    }
    let kinds: Vec<String> = param.kinds.iter().map(ItemKind::to_string).collect();
    malformed(format!("{what} {at} ({}) is {kind}; it must be {}", param.name, kinds.join(" or ")))
}

fn check_type(row: &OpDef, (what, at): (&str, usize), param: &Param, dtype: DType) -> Result<()> {
    let fixed = fixed_type(param.ty).map(|dtype| [dtype]);
    let variable = row.types.iter().find(|(name, _)| *name == param.ty).map(|(_, allowed)| *allowed);
    let Some(allowed) = variable.or(fixed.as_ref().map(<[DType; 1]>::as_slice)) else {
        let message = format!("{} has no type variable {}", row.name, param.ty);
        return Err(Error::internal(Stage::Import, message));
    };
    if allowed.contains(&dtype) {
        return Ok(());
    }
    let names: Vec<&str> = allowed.iter().map(|dtype| dtype.name()).collect();
    let (name, ty) = (param.name, param.ty);
    let names =
        if names.is_empty() { "no tensor".to_string() } else { format!("one of {}", names.join(", ")) };
    let message = format!("{what} {at} ({name}) is {dtype}; {ty} is {names}");
    Err(Error::unsupported(Stage::Import, message))
}

/// The type that a signature may name in place of a variable, in ONNX's spelling: `tensor(float)`.
fn fixed_type(text: &str) -> Option<DType> {
    match text.strip_prefix("tensor(")?.strip_suffix(')')? {
        "float" => Some(DType::F32),
        "double" => Some(DType::F64),
        "float16" => Some(DType::F16),
        "bfloat16" => Some(DType::BF16),
        "bool" => Some(DType::Bool),
        "string" => Some(DType::Str),
        "int8" => Some(DType::I8),
        "int16" => Some(DType::I16),
        "int32" => Some(DType::I32),
        "int64" => Some(DType::I64),
        "uint8" => Some(DType::U8),
        "uint16" => Some(DType::U16),
        "uint32" => Some(DType::U32),
        "uint64" => Some(DType::U64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_name_fixed_types_as_onnx_does() {
        let names =
            "float double float16 bfloat16 bool string int8 int16 int32 int64 uint8 uint16 uint32 uint64";
        let types: Vec<i32> =
            names.split(' ').map(|name| fixed_type(&format!("tensor({name})")).unwrap().to_onnx()).collect();
        // TensorProto.DataType
        assert_eq!(types, [1, 11, 10, 16, 9, 8, 3, 5, 6, 7, 2, 4, 12, 13]);
        assert_eq!(fixed_type("T"), None);
    }
}
