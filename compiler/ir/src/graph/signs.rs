//! What the operations that compute floats say about the signs of their results. `x + 0` is `x` but where that is -0, and the square
//! root is the power of 1/2 but for -0 and below: the identities of `passes/algebra.rs` need to know this of their operands.
//!
//! NaN has no sign that counts. Results hold for kernels, which multiply and add with one rounding in sums of products, as well as
//! for the evaluator.

use super::{DType, Graph, MapFn, Op, Tensor, ValueId, Weight};
use crate::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// Operations behind one another that are looked at.
const DEPTH: usize = 8;

/// Constants with at most this many elements are looked at.
const MAX_ELEMENTS: usize = 1 << 16;

/// Whether every element of a float value is +0 or above, or NaN.
pub fn are_clear(graph: &Graph, value: ValueId) -> bool {
    clear(graph, value, DEPTH)
}

/// Whether no element of a value is -0.
pub fn has_no_minus_zero(graph: &Graph, value: ValueId) -> bool {
    no_minus_zero(graph, value, DEPTH)
}

/// Whether `test` holds for all elements of a constant that are not NaN.
pub fn all_elements(graph: &Graph, value: ValueId, test: &dyn Fn(f64) -> bool) -> bool {
    graph.is_made_of(value, &|tensor: &Tensor| {
        let elements = if tensor.len() <= MAX_ELEMENTS { tensor.to_f64s() } else { None };
        elements.is_some_and(|elements| elements.into_iter().all(|element| element.is_nan() || test(element)))
    })
}

/// Whether no element of a constant is -0.
pub fn is_without_minus_zero(graph: &Graph, value: ValueId) -> bool {
    let apart = |weight: &Weight| !weight.has_minus_zero();
    let of = |value: f64| value != 0.0 || value.is_sign_positive() || value.is_nan();
    let holds = |tensor: &Tensor| {
        let elements = if tensor.len() <= MAX_ELEMENTS { tensor.to_f64s() } else { None };
        elements.is_some_and(|elements| elements.into_iter().all(of))
    };
    graph.is_made(value, &holds, &apart)
}

fn operation(graph: &Graph, value: ValueId) -> Option<(&Op, &[ValueId])> {
    let node = &graph.nodes[graph.producer(value)?];
    Some((&node.op, &node.inputs))
}

fn clear(graph: &Graph, value: ValueId, depth: usize) -> bool {
    use BinaryFn::*;
    use UnaryFn::*;
    if graph.is_constant(value) {
        return all_elements(graph, value, &f64::is_sign_positive);
    }
    let Some((op, inputs)) = operation(graph, value).filter(|_| depth > 0) else { return false };
    if !has_nan(graph.ty(value).dtype) {
        return false;
    }
    let of = |at: usize| clear(graph, inputs[at], depth - 1);
    match op {
        Op::Map(MapFn::Unary(Abs | Exp | Sigmoid)) => true,
        Op::Map(MapFn::Unary(Sqrt | Recip | Ceil | Floor | Round | Trunc)) => of(0),
        Op::Map(MapFn::Binary(Mul)) => inputs[0] == inputs[1] || (of(0) && of(1)),
        Op::Map(MapFn::Binary(Add | Div)) => of(0) && of(1),
        Op::Map(MapFn::Binary(Max)) => {
            let above = |at: usize| all_elements(graph, inputs[at], &|element| element > 0.0);
            above(0) || above(1) || (of(0) && of(1))
        }
        Op::Map(MapFn::Select) => of(1) && of(2),
        Op::Map(MapFn::Cast { .. }) => graph.ty(inputs[0]).dtype.is_float() && of(0),
        Op::Reduce { op: ReduceFn::Sum | ReduceFn::Prod, .. } => of(0),
        op => moves(op, inputs.len()).is_some_and(|moved| moved.into_iter().all(of)),
    }
}

fn no_minus_zero(graph: &Graph, value: ValueId, depth: usize) -> bool {
    use BinaryFn::*;
    use UnaryFn::*;
    if !has_minus_zero(graph.ty(value).dtype) {
        return true;
    }
    if graph.is_constant(value) {
        return is_without_minus_zero(graph, value);
    }
    let Some((op, inputs)) = operation(graph, value).filter(|_| depth > 0) else { return false };
    if !has_nan(graph.ty(value).dtype) {
        return false;
    }
    let of = |at: usize| no_minus_zero(graph, inputs[at], depth - 1);
    let known = match op {
        Op::Map(MapFn::Unary(Sign)) => true,
        Op::Map(MapFn::Unary(Sqrt | Floor)) => of(0),
        // A sum is -0 where both operands are, a difference where the first one is and the other is +0: numbers of one type have
        // no sum that is nearer to 0 than every number but 0.
        Op::Map(MapFn::Binary(Add)) => of(0) || of(1),
        Op::Map(MapFn::Binary(Sub)) => of(0),
        Op::Map(MapFn::Binary(Max | Min)) => of(0) && of(1),
        Op::Map(MapFn::Select) => of(1) && of(2),
        // Small numbers become -0 in a narrower type.
        Op::Map(MapFn::Cast { to, .. }) => {
            let from = graph.ty(inputs[0]).dtype;
            !from.is_float() || (to.size() > from.size() && of(0))
        }
        // Sums begin with +0. What is added may round to -0 with its last product only.
        Op::Reduce { op: ReduceFn::Sum, .. } => !is_product(graph, inputs[0]),
        Op::Reduce { op: ReduceFn::Max | ReduceFn::Min, .. } => of(0),
        op => moves(op, inputs.len()).is_some_and(|moved| moved.into_iter().all(of)),
    };
    known || clear(graph, value, depth)
}

/// The operands of an operation whose elements are the results'.
fn moves(op: &Op, operands: usize) -> Option<std::ops::Range<usize>> {
    match op {
        Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => Some(0..1),
        Op::Concat { .. } | Op::Pad { .. } => Some(0..operands),
        op => op.is_view().then_some(0..1),
    }
}

fn has_minus_zero(dtype: DType) -> bool {
    dtype.is_float() && !matches!(dtype, DType::F8E4M3FNUZ | DType::F8E5M2FNUZ | DType::F8E8M0)
}

/// Of the others, a result that would be NaN is a zero with either sign.
fn has_nan(dtype: DType) -> bool {
    !matches!(dtype, DType::F6E2M3 | DType::F6E3M2 | DType::F4E2M1)
}

/// Whether a value is computed by an operation that a sum may absorb as the product that it adds.
fn is_product(graph: &Graph, mut value: ValueId) -> bool {
    for _ in 0..DEPTH {
        match operation(graph, value) {
            Some((op, inputs)) if op.is_view() => value = inputs[0],
            Some((Op::Map(MapFn::Binary(BinaryFn::Mul | BinaryFn::Div) | MapFn::MulAdd), _)) => return true,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
