//! Identities of arithmetic with bit-identical results for every operand: zeros keep their signs, and infinities and NaN are preserved. So
//! `x + 0` goes only where `x` is not -0 (`-0 + 0` is +0), and `x * 0` and `x - x`, which may be NaN, stay. The payload of a NaN does not
//! count. `tests.rs` tries each on all floats of 16 bits; the table in `book/src/floats.md` lists them.

use crate::Options;
use crate::rewrite::{bodies, fixpoint, is_one, producer, rewrite, splat};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::signs::has_no_minus_zero;
use onnxc_ir::graph::{DType, Graph, MapFn, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

#[cfg(test)]
mod tests;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    fixpoint(4, || rewrite(graph, simplify))?;
    bodies(graph, options, run)
}

fn simplify(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    if let Some(dims) = known_dims(b, id)? {
        return Ok(Some(dims));
    }
    let node = &b.graph.nodes[id];
    let inputs = node.inputs.clone();
    match &node.op {
        Op::Map(MapFn::Unary(function)) => unary(b, *function, inputs[0]),
        Op::Map(MapFn::Binary(function)) => binary(b, *function, inputs[0], inputs[1]),
        Op::Map(MapFn::Cast { to, saturate }) => cast(b, *to, *saturate, inputs[0]),
        Op::Map(MapFn::Bitcast { to }) if b.dtype(inputs[0]) == *to => Ok(Some(inputs[0])),
        Op::Map(MapFn::Select) => select(b, inputs[0], inputs[1], inputs[2]),
        Op::Reduce { op, axes } => {
            let shape = &b.ty(inputs[0]).shape;
            let kept: Vec<usize> = axes.iter().copied().filter(|&axis| !is_one(&shape[axis])).collect();
            if kept.len() == axes.len() {
                return Ok(None);
            }
            let (op, x) = (*op, inputs[0]);
            if kept.is_empty() && op == ReduceFn::Sum && !has_no_minus_zero(b.graph, x) {
                // Sums begin with +0.
                return b.binary_scalar(BinaryFn::Add, x, 0.0).map(Some);
            }
            b.reduce(op, x, &kept).map(Some)
        }
        _ => Ok(None),
    }
}

/// Replaces shape arithmetic whose elements are known as dims by those dims.
fn known_dims(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let [result] = node.outputs[..] else { return Ok(None) };
    let canonical = match &node.op {
        Op::DimValues { .. } | Op::Iota { .. } => true,
        Op::Reshape { .. } => {
            producer(b.graph, node.inputs[0]).is_some_and(|source| matches!(source.op, Op::DimValues { .. }))
        }
        _ => false,
    };
    let Some(known) = b.known(result).filter(|_| !canonical && b.dtype(result) == DType::I64) else {
        return Ok(None);
    };
    let shape = b.shape(result);
    let dims = b.emit1(Op::DimValues { dims: known.to_vec() }, &[])?;
    b.reshape(dims, shape).map(Some)
}

/// The operand of `value` when that is `function` of something.
fn operand_of(b: &Builder, value: ValueId, function: UnaryFn) -> Option<ValueId> {
    let node = producer(b.graph, value)?;
    (node.op == Op::Map(MapFn::Unary(function))).then(|| node.inputs[0])
}

fn unary(b: &mut Builder, function: UnaryFn, x: ValueId) -> Result<Option<ValueId>> {
    use UnaryFn::*;
    match function {
        Neg | Not | BitNot => Ok(operand_of(b, x, function)),
        // Idempotent.
        Abs | Ceil | Floor | Round | Trunc | Sign if operand_of(b, x, function).is_some() => Ok(Some(x)),
        Ceil | Floor | Round | Trunc if b.dtype(x).is_int() => Ok(Some(x)),
        Abs => match operand_of(b, x, Neg) {
            Some(inner) => b.unary(Abs, inner).map(Some),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn binary(b: &mut Builder, function: BinaryFn, x: ValueId, y: ValueId) -> Result<Option<ValueId>> {
    use BinaryFn::*;
    let (left, right) = (splat(b.graph, x), splat(b.graph, y));
    match function {
        Add if adds_nothing(b, right, x) => return Ok(Some(x)),
        Add if adds_nothing(b, left, y) => return Ok(Some(y)),
        Sub if adds_nothing(b, right.map(|right| -right), x) => return Ok(Some(x)),
        Mul | Div if right == Some(1.0) => return Ok(Some(x)),
        Mul if left == Some(1.0) => return Ok(Some(y)),
        Max | Min | And | Or | BitAnd | BitOr if x == y => return Ok(Some(x)),
        Shl | Shr if right == Some(0.0) => return Ok(Some(x)),
        Add => {
            // a + (-b)
            if let Some(inner) = operand_of(b, y, UnaryFn::Neg) {
                return b.binary(Sub, x, inner).map(Some);
            }
        }
        Sub => {
            if let Some(inner) = operand_of(b, y, UnaryFn::Neg) {
                return b.binary(Add, x, inner).map(Some);
            }
            if left == Some(0.0) && b.dtype(y).is_signed_int() {
                return b.unary(UnaryFn::Neg, y).map(Some);
            }
        }
        Mul if right == Some(-1.0) && !b.dtype(x).is_unsigned_int() => {
            return b.unary(UnaryFn::Neg, x).map(Some);
        }
        Mul if left == Some(-1.0) && !b.dtype(x).is_unsigned_int() => {
            return b.unary(UnaryFn::Neg, y).map(Some);
        }
        Div if b.dtype(x).is_float() => {
            if left == Some(1.0) {
                return b.unary(UnaryFn::Recip, y).map(Some);
            }
            if let Some(divisor) = right
                && has_exact_reciprocal(b.dtype(x), divisor)
            {
                return b.binary_scalar(Mul, x, 1.0 / divisor).map(Some);
            }
        }
        _ => {}
    }
    merge_integers(b, function, x, y)
}

/// Whether `x + addend` is `x`: of -0 always, of +0 where `x` is not -0.
fn adds_nothing(b: &Builder, addend: Option<f64>, x: ValueId) -> bool {
    addend == Some(0.0) && (addend.is_some_and(f64::is_sign_negative) || has_no_minus_zero(b.graph, x))
}

/// `(x + c) + d` and `(x * c) * d` of wrapping integers; floats would round differently.
fn merge_integers(b: &mut Builder, function: BinaryFn, x: ValueId, y: ValueId) -> Result<Option<ValueId>> {
    if !matches!(function, BinaryFn::Add | BinaryFn::Mul) || !b.dtype(x).is_int() {
        return Ok(None);
    }
    let (x, constant) = if b.graph.is_constant(y) { (x, y) } else { (y, x) };
    let Some(node) = producer(b.graph, x).filter(|_| b.graph.is_constant(constant)) else { return Ok(None) };
    if node.op != Op::Map(MapFn::Binary(function)) {
        return Ok(None);
    }
    let (p, q) = (node.inputs[0], node.inputs[1]);
    let (rest, other) = if b.graph.is_constant(q) { (p, q) } else { (q, p) };
    if !b.graph.is_constant(other) {
        return Ok(None);
    }
    let merged = b.binary(function, other, constant)?;
    b.binary(function, rest, merged).map(Some)
}

/// Whether `x / divisor` and `x * (1 / divisor)` round alike for every `x`: a power of two whose reciprocal
/// is a normal number.
fn has_exact_reciprocal(dtype: DType, divisor: f64) -> bool {
    let limit = match dtype {
        DType::F32 | DType::BF16 => 126,
        DType::F64 => 1022,
        DType::F16 => 14,
        _ => return false,
    };
    let bits = divisor.to_bits();
    let (mantissa, exponent) = (bits & ((1 << 52) - 1), ((bits >> 52) & 0x7ff) as i64 - 1023);
    mantissa == 0 && exponent.abs() <= limit
}

/// Whether every value of `from` is a value of `to`.
fn is_lossless(from: DType, to: DType) -> bool {
    use DType::*;
    if from == Bool {
        return to.is_int() || matches!(to, F16 | BF16 | F32 | F64);
    }
    if from.is_int() && to.is_int() {
        let room = to.bits() - u32::from(to.is_signed_int());
        let need = from.bits() - u32::from(from.is_signed_int());
        return need <= room && (from.is_unsigned_int() || to.is_signed_int());
    }
    match to {
        F16 => matches!(from, F16) || (from.is_int() && from.bits() <= 8),
        F32 => matches!(from, F16 | BF16 | F32) || (from.is_int() && from.bits() <= 16),
        F64 => matches!(from, F16 | BF16 | F32 | F64) || (from.is_int() && from.bits() <= 32),
        _ => from == to,
    }
}

fn cast(b: &mut Builder, to: DType, saturate: bool, x: ValueId) -> Result<Option<ValueId>> {
    if b.dtype(x) == to {
        return Ok(Some(x));
    }
    let Some(node) = producer(b.graph, x) else { return Ok(None) };
    let Op::Map(MapFn::Cast { to: between, .. }) = node.op else { return Ok(None) };
    let source = node.inputs[0];
    let from = b.dtype(source);
    if !is_lossless(from, between) {
        return Ok(None);
    }
    if from == to {
        return Ok(Some(source));
    }
    b.emit1(Op::Map(MapFn::Cast { to, saturate }), &[source]).map(Some)
}

fn select(b: &mut Builder, condition: ValueId, then: ValueId, otherwise: ValueId) -> Result<Option<ValueId>> {
    if then == otherwise {
        return Ok(Some(then));
    }
    match splat(b.graph, condition) {
        Some(0.0) => return Ok(Some(otherwise)),
        Some(_) => return Ok(Some(then)),
        None => {}
    }
    match operand_of(b, condition, UnaryFn::Not) {
        Some(inner) => b.select(inner, otherwise, then).map(Some),
        None => Ok(None),
    }
}
