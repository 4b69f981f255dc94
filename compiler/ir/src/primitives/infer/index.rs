//! Elements that are picked or replaced by their indices.

use super::{Types, arity, check_axis, fail, one};
use crate::error::{Error, Result, Stage};
use crate::graph::{DType, Dim, Op, TensorType};

pub(in crate::primitives) fn gather(op: &Op, inputs: &[&TensorType], axis: usize) -> Types {
    arity(op, inputs, 2)?;
    check_axis(axis, inputs[0])?;
    if inputs[1].dtype != DType::U8 {
        check_indices(inputs[1])?;
    }
    let mut shape = inputs[0].shape[..axis].to_vec();
    shape.extend_from_slice(&inputs[1].shape);
    shape.extend_from_slice(&inputs[0].shape[axis + 1..]);
    one(inputs[0].dtype, shape)
}

pub(in crate::primitives) fn gather_elements(op: &Op, inputs: &[&TensorType], axis: usize) -> Types {
    arity(op, inputs, 2)?;
    check_axis(axis, inputs[0])?;
    check_indices(inputs[1])?;
    if inputs[0].rank() != inputs[1].rank() {
        return fail(format!("gather_elements of {} by {}", inputs[0], inputs[1]));
    }
    one(inputs[0].dtype, inputs[1].shape.clone())
}

pub(in crate::primitives) fn gather_nd(op: &Op, inputs: &[&TensorType], batch: usize) -> Types {
    arity(op, inputs, 2)?;
    check_indices(inputs[1])?;
    let (data, indices) = (inputs[0], inputs[1]);
    let Some(depth) = indices.shape.last().and_then(Dim::as_const) else {
        return Err(Error::unsupported(Stage::Infer, format!("gather_nd with indices {indices}")));
    };
    let depth = depth as usize;
    if batch >= indices.rank() || batch + depth > data.rank() {
        return fail(format!("gather_nd of {data} by {indices} with {batch} batch axes"));
    }
    let mut shape = indices.shape[..indices.rank() - 1].to_vec();
    shape.extend_from_slice(&data.shape[batch + depth..]);
    one(data.dtype, shape)
}

pub(in crate::primitives) fn scatter_elements(op: &Op, inputs: &[&TensorType], axis: usize) -> Types {
    arity(op, inputs, 3)?;
    check_axis(axis, inputs[0])?;
    check_indices(inputs[1])?;
    let (indices, updates) = (&inputs[1].shape, &inputs[2].shape);
    let differ = |(a, b): (&Dim, &Dim)| a.is_const() && b.is_const() && a != b;
    if indices.len() != inputs[0].rank()
        || indices.len() != updates.len()
        || indices.iter().zip(updates).any(differ)
    {
        return fail(format!("scatter_elements of {} into {} at {}", inputs[2], inputs[0], inputs[1]));
    }
    one(inputs[0].dtype, inputs[0].shape.clone())
}

pub(in crate::primitives) fn scatter_nd(op: &Op, inputs: &[&TensorType]) -> Types {
    arity(op, inputs, 3)?;
    check_indices(inputs[1])?;
    let depth = inputs[1].shape.last().and_then(Dim::as_const);
    let fits = |depth: i64| {
        depth as usize <= inputs[0].rank()
            && inputs[2].rank() + 1 + depth as usize == inputs[1].rank() + inputs[0].rank()
    };
    match depth {
        Some(depth) if fits(depth) => {}
        None if inputs[1].rank() > 0 => {
            let message = format!("scatter_nd with indices {}", inputs[1]);
            return Err(Error::unsupported(Stage::Infer, message));
        }
        _ => {
            let (data, indices, updates) = (inputs[0], inputs[1], inputs[2]);
            return fail(format!("scatter_nd of {updates} into {data} at {indices}"));
        }
    }
    one(inputs[0].dtype, inputs[0].shape.clone())
}

pub(in crate::primitives) fn append(
    op: &Op,
    inputs: &[&TensorType],
    axis: usize,
    panel: Option<usize>,
) -> Types {
    arity(op, inputs, 2)?;
    let (state, new) = (inputs[0], inputs[1]);
    check_axis(axis, new)?;
    let rank = new.rank() + usize::from(panel.is_some());
    let columns = panel.map(Dim::from);
    if new.dtype != state.dtype
        || state.rank() != rank
        || columns.is_some_and(|columns| state.shape.last() != Some(&columns) || columns == Dim::ZERO)
    {
        return fail(format!("{new} appended to {state}"));
    }
    one(state.dtype, state.shape.clone())
}

fn check_indices(ty: &TensorType) -> Result<()> {
    match ty.dtype {
        DType::I32 | DType::I64 => Ok(()),
        _ => fail(format!("indices of type {ty}")),
    }
}
