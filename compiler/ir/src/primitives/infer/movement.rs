//! What moves elements: views, borders and joins.

use super::{Types, arity, check_axis, fail, one};
use crate::graph::dim::product;
use crate::graph::{Dim, Op, TensorType};

pub(in crate::primitives) fn reshape(op: &Op, inputs: &[&TensorType], shape: &[Dim]) -> Types {
    arity(op, inputs, 1)?;
    let (from, to) = (inputs[0].elements(), product(shape));
    if let (Some(a), Some(b)) = (from.as_const(), to.as_const())
        && a != b
    {
        return fail(format!("reshape of {} ({a} elements) to {shape:?} ({b} elements)", inputs[0]));
    }
    one(inputs[0].dtype, shape.to_vec())
}

pub(in crate::primitives) fn transpose(op: &Op, inputs: &[&TensorType], perm: &[usize]) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted != (0..ty.rank()).collect::<Vec<_>>() {
        return fail(format!("permutation {perm:?} of the axes of {ty}"));
    }
    one(ty.dtype, perm.iter().map(|&axis| ty.shape[axis].clone()).collect())
}

pub(in crate::primitives) fn expand(op: &Op, inputs: &[&TensorType], shape: &[Dim]) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let fits = ty.rank() <= shape.len()
        && ty.shape.iter().rev().zip(shape.iter().rev()).all(|(from, to)| {
            from == to || from.as_const() == Some(1) || !(from.is_const() && to.is_const())
        });
    if !fits {
        return fail(format!("{ty} does not broadcast to {shape:?}"));
    }
    one(ty.dtype, shape.to_vec())
}

pub(in crate::primitives) fn slice(
    op: &Op,
    inputs: &[&TensorType],
    (starts, steps, sizes): (&[Dim], &[i64], &[Dim]),
) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    if [starts.len(), steps.len(), sizes.len()] != [ty.rank(); 3] {
        return fail(format!("slice of {ty} needs one entry per axis"));
    }
    for axis in 0..ty.rank() {
        if let (Some(start), Some(size), Some(extent)) =
            (starts[axis].as_const(), sizes[axis].as_const(), ty.shape[axis].as_const())
        {
            let last = start.saturating_add(size.saturating_sub(1).saturating_mul(steps[axis]));
            let inside = |index: i64| (0..extent).contains(&index);
            if size < 0 || (size > 0 && !(inside(start) && inside(last))) {
                return fail(format!("slice of axis {axis} of {ty}: {size} elements from {start}"));
            }
        }
    }
    one(ty.dtype, sizes.to_vec())
}

pub(in crate::primitives) fn pad(op: &Op, inputs: &[&TensorType], (lo, hi): (&[Dim], &[Dim])) -> Types {
    arity(op, inputs, if matches!(op, Op::Pad { .. }) { 2 } else { 1 })?;
    let (ty, fill) = (inputs[0], inputs.get(1));
    if lo.len() != ty.rank()
        || hi.len() != ty.rank()
        || fill.is_some_and(|fill| fill.dtype != ty.dtype || fill.rank() != 0)
    {
        let fill = fill.map_or("zeros".to_string(), |fill| fill.to_string());
        return fail(format!("pad of {ty} by {lo:?} and {hi:?} with {fill}"));
    }
    if lo.iter().chain(hi).any(|pad| pad.as_const().is_some_and(|value| value < 0)) {
        return fail(format!("negative pads {lo:?}, {hi:?}"));
    }
    let shape =
        ty.shape.iter().zip(lo.iter().zip(hi)).map(|(dim, (lo, hi))| dim.clone() + lo.clone() + hi.clone());
    one(ty.dtype, shape.collect())
}

pub(in crate::primitives) fn concat(inputs: &[&TensorType], axis: usize) -> Types {
    let Some(first) = inputs.first() else { return fail("concatenation of nothing") };
    check_axis(axis, first)?;
    let mut shape = first.shape.clone();
    for ty in &inputs[1..] {
        if ty.dtype != first.dtype || ty.rank() != first.rank() {
            return fail(format!("concatenation of {first} and {ty}"));
        }
        for (at, dim) in ty.shape.iter().enumerate() {
            if at == axis {
                shape[at] = shape[at].clone() + dim.clone();
            } else if shape[at] != *dim {
                if shape[at].is_const() && dim.is_const() {
                    return fail(format!("concatenation along axis {axis} of {first} and {ty}"));
                } else if dim.is_const() {
                    shape[at] = dim.clone();
                }
            }
        }
    }
    one(first.dtype, shape)
}

pub(in crate::primitives) fn window(
    op: &Op,
    inputs: &[&TensorType],
    first: usize,
    (kernel, strides, dilations): (&[usize], &[usize], &[usize]),
) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let rank = kernel.len();
    if first + rank > ty.rank() || strides.len() != rank || dilations.len() != rank {
        return fail(format!("window {kernel:?} over {ty}"));
    }
    let mut shape = ty.shape[..first].to_vec();
    for at in 0..rank {
        if strides[at] == 0 || kernel[at] == 0 || dilations[at] == 0 {
            return fail("a window's kernel, strides and dilations must be positive");
        }
        let reach = (kernel[at] - 1).saturating_mul(dilations[at]).saturating_add(1);
        let room = ty.shape[first + at].clone() - Dim::from(reach);
        let steps = room.floor_div(&Dim::from(strides[at])).expect("strides are positive");
        let places = steps + Dim::ONE;
        // By less than a stride too wide, it has no place.
        if places.as_const().is_some_and(|places| places < 0) {
            return fail(format!("a window of {reach} does not fit axis {} of {ty}", first + at));
        }
        shape.push(places);
    }
    shape.extend(kernel.iter().map(|&size| Dim::from(size)));
    shape.extend_from_slice(&ty.shape[first + rank..]);
    one(ty.dtype, shape)
}
