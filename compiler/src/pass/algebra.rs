//! Identities of arithmetic. All are exact for every operand, up to the sign of a zero and the last bit of
//! `pow`. What changes a NaN or an infinity is left alone: `x * 0` stays, `pow(x, 0.5)` becomes `sqrt` only
//! where the sign of `x` is known to be clear (`pow(-inf, 0.5)` is infinity, `sqrt(-inf)` is NaN).

use crate::error::Result;
use crate::graph::{Builder, DType, Graph, MapFn, NodeId, Op, ValueId};
use crate::pass::Options;
use crate::pass::rewrite::{bodies, fixpoint, is_one, producer, rewrite, splat};
use crate::scalar::{BinaryFn, ReduceFn, UnaryFn};

#[cfg(test)]
mod tests;

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
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
            let op = *op;
            b.reduce(op, inputs[0], &kept).map(Some)
        }
        _ => Ok(None),
    }
}

/// Shape arithmetic whose elements are known as dims is those dims, whatever computed them.
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
        Add if right == Some(0.0) => return Ok(Some(x)),
        Add if left == Some(0.0) => return Ok(Some(y)),
        Sub if right == Some(0.0) => return Ok(Some(x)),
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
        Pow => return right.map_or(Ok(None), |exponent| power(b, x, exponent)),
        _ => {}
    }
    merge_integers(b, function, x, y)
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

fn power(b: &mut Builder, x: ValueId, exponent: f64) -> Result<Option<ValueId>> {
    let float = b.dtype(x).is_float();
    let result = match exponent {
        1.0 => x,
        2.0 => b.binary(BinaryFn::Mul, x, x)?,
        3.0 => {
            let square = b.binary(BinaryFn::Mul, x, x)?;
            b.binary(BinaryFn::Mul, square, x)?
        }
        -1.0 if float => b.unary(UnaryFn::Recip, x)?,
        0.5 if float && sign_is_clear(b.graph, x, 8) => b.unary(UnaryFn::Sqrt, x)?,
        -0.5 if float && sign_is_clear(b.graph, x, 8) => {
            let root = b.unary(UnaryFn::Sqrt, x)?;
            b.unary(UnaryFn::Recip, root)?
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Whether no element of a float value has its sign bit set (NaNs aside): it is at least +0.
fn sign_is_clear(graph: &Graph, value: ValueId, depth: usize) -> bool {
    use BinaryFn::*;
    use UnaryFn::*;
    if let Some(constant) = splat(graph, value) {
        return constant.is_sign_positive();
    }
    let Some(node) = producer(graph, value).filter(|_| depth > 0) else { return false };
    let clear = |at: usize| sign_is_clear(graph, node.inputs[at], depth - 1);
    match &node.op {
        Op::Map(MapFn::Unary(Abs | Exp | Sigmoid)) => true,
        Op::Map(MapFn::Unary(Sqrt | Recip | Ceil | Floor | Round | Trunc)) => clear(0),
        Op::Map(MapFn::Binary(Mul)) => node.inputs[0] == node.inputs[1] || (clear(0) && clear(1)),
        Op::Map(MapFn::Binary(Add | Div)) => clear(0) && clear(1),
        Op::Map(MapFn::Binary(Max)) => {
            let positive = |at: usize| splat(graph, node.inputs[at]).is_some_and(|value| value > 0.0);
            positive(0) || positive(1) || (clear(0) && clear(1))
        }
        Op::Map(MapFn::Select) => clear(1) && clear(2),
        Op::Reduce { op: ReduceFn::Sum | ReduceFn::Prod, .. } => clear(0),
        op if op.is_view() => clear(0),
        _ => false,
    }
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
