//! What family files share: constructors that keep rows of the table short, and small steps that many
//! lowerings take.

pub use super::AttrKind::*;
pub use super::agreement::ANY;
pub use super::item::{ALL_KINDS, Item, ItemKind, SEQUENCES};
pub use super::sets::*;
pub use super::types::*;
pub use super::{
    AttrDef, NodeCx, OpDef, Param, normalize_axes, normalize_axis, not_one_of, op, opt, req, var,
};
use super::{AttrDefault, AttrKind, InputKey};
use onnxc_ir::build::Builder;
pub use onnxc_ir::error::{Error, Result, Stage};
pub use onnxc_ir::graph::claim::{self, V};
use onnxc_ir::graph::claim::{Fault, Operand};
pub use onnxc_ir::graph::data::Says;
pub use onnxc_ir::graph::{DType, Dim, Requirement, ValueId};
pub use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Agreements of operators whose inputs `A` and `B` broadcast against each other.
pub const BROADCAST: &[&str] = &["broadcast(A, B)"];

/// The same before opset 7: `B` broadcasts only where `broadcast` asks, from `axis` on.
pub const LEGACY: &[&str] = &[
    "if broadcast = 0: rank(A) = rank(B)",
    "if broadcast = 0: broadcast(A, B)",
    "if broadcast != 0 and !axis: broadcast(B -> A)",
    "if broadcast != 0 and axis: A[..axis, T..rank(B), ..]",
    "if broadcast != 0 and axis: broadcast(B -> T)",
];

pub const fn required(name: &'static str, kind: AttrKind) -> AttrDef {
    AttrDef { name, default: AttrDefault::Required(kind) }
}

pub const fn optional(name: &'static str, kind: AttrKind) -> AttrDef {
    AttrDef { name, default: AttrDefault::Optional(kind) }
}

pub const fn int(name: &'static str, default: i64) -> AttrDef {
    AttrDef { name, default: AttrDefault::Int(default) }
}

pub const fn float(name: &'static str, default: f32) -> AttrDef {
    AttrDef { name, default: AttrDefault::Float(default) }
}

pub const fn string(name: &'static str, default: &'static str) -> AttrDef {
    AttrDef { name, default: AttrDefault::Str(default) }
}

/// An attribute of the first opset that hinted at in-place execution; it means nothing here.
pub const CONSUMED: AttrDef = optional("consumed_inputs", AttrKind::Ints);

pub fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

pub fn unsupported<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::unsupported(Stage::Infer, message))
}

/// `function` of the first input.
pub fn unary(cx: &mut NodeCx<'_, '_>, function: UnaryFn) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    Ok(vec![cx.b.unary(function, x)?])
}

/// `function` of the first two inputs, broadcast against each other.
pub fn binary(cx: &mut NodeCx<'_, '_>, function: BinaryFn) -> Result<Vec<ValueId>> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![cx.b.binary(function, a, b)?])
}

/// [`binary`] as before opset 7: the second input broadcasts only where `broadcast` asks, from `axis` on.
pub fn legacy(cx: &mut NodeCx<'_, '_>, function: BinaryFn) -> Result<Vec<ValueId>> {
    let (a, b) = legacy_operands(cx)?;
    Ok(vec![cx.b.binary(function, a, b)?])
}

/// The operands of a binary operator before opset 7, ready for NumPy broadcasting: `b`'s axes match the
/// axes of `a` from `axis` on, or its last ones.
pub fn legacy_operands(cx: &mut NodeCx<'_, '_>) -> Result<(ValueId, ValueId)> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (rank, mut shape) = (cx.b.rank(a), cx.b.shape(b));
    if cx.int("broadcast")? == 0 {
        return Ok((a, b));
    }
    let axis = match cx.optional_int("axis")? {
        Some(axis) if !shape.is_empty() => normalize_axis(axis, rank)?,
        _ => rank - shape.len(),
    };
    shape.resize(rank - axis, Dim::ONE);
    Ok((a, cx.b.reshape(b, shape)?))
}

/// A one-element value as a scalar.
pub fn to_scalar(cx: &mut NodeCx<'_, '_>, value: ValueId) -> Result<ValueId> {
    cx.b.reshape(value, vec![])
}

/// `i64` values of `dims`, as scalars.
pub fn dim(cx: &mut NodeCx<'_, '_>, dim: &Dim) -> Result<ValueId> {
    match dim.as_const() {
        Some(value) => Ok(cx.b.constant(onnxc_ir::graph::Tensor::scalar(value))),
        None => cx.b.dim_scalar(dim),
    }
}

/// The index along `axis` in a tensor of `rank` axes, all others of size 1.
pub fn index_along(cx: &mut NodeCx<'_, '_>, size: Dim, axis: usize, rank: usize) -> Result<ValueId> {
    let mut shape = vec![Dim::ONE; rank];
    shape[axis] = size;
    cx.b.iota(shape, axis)
}

/// The elements of a constant float input, as f64.
pub fn const_floats(cx: &NodeCx<'_, '_>, at: usize) -> Result<Vec<f64>> {
    let data = cx.b.graph.constant_data(cx.input(at)?);
    match data.and_then(|tensor| tensor.to_f64s().or_else(|| integers_as_floats(tensor))) {
        Some(values) => Ok(values),
        None => {
            let name = cx.def.inputs[at].name;
            unsupported(format!("input {at} ({name}) decides the result's shape and is not constant"))
        }
    }
}

fn integers_as_floats(tensor: &onnxc_ir::graph::Tensor) -> Option<Vec<f64>> {
    Some(tensor.to_i64s()?.into_iter().map(|value| value as f64).collect())
}

/// The only element of an integer input that must be known: an axis, a depth, a size.
pub fn known_scalar(cx: &NodeCx<'_, '_>, at: usize) -> Result<Dim> {
    match cx.known_input(at)?.as_slice() {
        [only] => Ok(only.clone()),
        many => {
            malformed(format!("input {at} ({}) has {} elements, not 1", cx.def.inputs[at].name, many.len()))
        }
    }
}

/// What an index is above the element that it says to be wrong.
const FAR_ABOVE: i64 = 1 << 62;

/// Indices that are `inside` where `valid` holds, otherwise out of range. A run in which they are used then fails and says of
/// the element of `value`, i64 of the same shape, which messages call `name`, that it is wrong by `text`: with its number, or not
/// where the number is that of a string.
pub fn indices_or_fault(
    b: &mut Builder<'_>,
    [valid, inside, value]: [ValueId; 3],
    (name, text): (String, String),
    has_number: bool,
) -> Result<ValueId> {
    let (far, most) = (FAR_ABOVE as f64, (FAR_ABOVE / 2) as f64);
    let near = b.binary_scalar(BinaryFn::Max, value, -most)?;
    let near = b.binary_scalar(BinaryFn::Min, near, most)?;
    let beyond = b.binary_scalar(BinaryFn::Add, near, far)?;
    let index = b.select(valid, inside, beyond)?;
    let fault = Some(Fault { above: has_number.then_some(FAR_ABOVE), text: text.into() });
    b.operands.push((index, Operand { fault, ..Operand::new(name) }));
    Ok(index)
}

/// The only element of an integer input that is a size: known, or decided by data.
pub fn size_scalar(cx: &mut NodeCx<'_, '_>, at: impl InputKey) -> Result<Dim> {
    let at = at.position(cx.def);
    cx.with_count(at, Some(1))?;
    match cx.sizes_input(at)?.as_slice() {
        [only] => Ok(only.clone()),
        many => {
            malformed(format!("input {at} ({}) has {} elements, not 1", cx.def.inputs[at].name, many.len()))
        }
    }
}

/// The input that holds `axes`, where it is given and its elements are known only at run time.
pub fn late_axes(cx: &NodeCx<'_, '_>, at: usize) -> Option<ValueId> {
    if cx.has("axes") {
        return None;
    }
    cx.optional(at).filter(|&axes| cx.b.known(axes).is_none() && cx.b.ty(axes).elements() != Dim::ZERO)
}

/// `axes`, from the attribute in versions that have it, else from input `at`; `None` when not given.
pub fn axes(cx: &NodeCx<'_, '_>, at: usize) -> Result<Option<Vec<i64>>> {
    if cx.has("axes") {
        return cx.ints("axes");
    }
    cx.optional(at).map(|_| cx.const_input(at)).transpose()
}
