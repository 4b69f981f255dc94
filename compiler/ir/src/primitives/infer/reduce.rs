//! What combines or ranks elements along axes.

use super::{Types, arity, check_axis, fail, one};
use crate::graph::{DType, Dim, Op, TensorType};
use crate::scalar::ReduceFn;

pub(in crate::primitives) fn reduce(
    op: &Op,
    inputs: &[&TensorType],
    function: ReduceFn,
    axes: &[usize],
) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    if matches!(function, ReduceFn::And | ReduceFn::Or) != (ty.dtype == DType::Bool) {
        return fail(format!("reduce {function} of {ty}"));
    }
    let mut shape = ty.shape.clone();
    for &axis in axes {
        check_axis(axis, ty)?;
        shape[axis] = Dim::ONE;
    }
    one(ty.dtype, shape)
}

pub(in crate::primitives) fn arg_reduce(op: &Op, inputs: &[&TensorType], axis: usize) -> Types {
    arity(op, inputs, 1)?;
    check_axis(axis, inputs[0])?;
    let mut shape = inputs[0].shape.clone();
    shape[axis] = Dim::ONE;
    one(DType::I64, shape)
}

pub(in crate::primitives) fn cumulate(op: &Op, inputs: &[&TensorType], axis: usize) -> Types {
    arity(op, inputs, 1)?;
    check_axis(axis, inputs[0])?;
    one(inputs[0].dtype, inputs[0].shape.clone())
}

pub(in crate::primitives) fn sort(op: &Op, inputs: &[&TensorType], axis: usize, take: &Dim) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    check_axis(axis, ty)?;
    let room = ty.shape[axis].clone() - take.clone();
    if take.as_const().is_some_and(|count| count < 0) || room.as_const().is_some_and(|room| room < 0) {
        return fail(format!("the first {take} elements along axis {axis} of {ty}"));
    }
    let mut shape = ty.shape.clone();
    shape[axis] = take.clone();
    Ok(vec![TensorType::new(ty.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
}

pub(in crate::primitives) fn suppress(op: &Op, inputs: &[&TensorType], take: &Dim) -> Types {
    arity(op, inputs, 6)?;
    let [boxes @ .., candidate, limit] = inputs else { unreachable!("the arity is checked") };
    let wanted = |ty: &TensorType, dtype| ty.dtype == dtype && ty.rank() == candidate.rank();
    let fits = candidate.rank() > 0
        && boxes.iter().all(|ty| wanted(ty, DType::F32))
        && wanted(candidate, DType::Bool)
        && limit.dtype == DType::F32
        && limit.rank() == 0
        && take.as_const().is_none_or(|take| take >= 0);
    if !fits {
        return fail(format!("suppression of {inputs:?}, {take} kept"));
    }
    let mut shape = candidate.shape.clone();
    *shape.last_mut().expect("the rank is checked") = take.clone();
    one(DType::I64, shape)
}
