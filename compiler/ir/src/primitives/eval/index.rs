//! Gathers and scatters: copies whose addresses are data.

use bytes::Bytes;

use super::elementwise::{undefined, with_lane};
use super::lane::Lane;
use super::movement::{View, Walk, strides, zeroed};
use super::scalar::Work;
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::claim::{Fault, Operand};
use crate::graph::op::ScatterFn;
use crate::graph::{Op, Tensor};
use crate::scalar::BinaryFn;

/// A gather or scatter with a result of this shape; an error calls its indices `name`.
pub(in crate::primitives) fn eval(
    op: &Op,
    inputs: &[&Tensor],
    shape: &[usize],
    name: &Operand,
) -> Result<Tensor> {
    match op {
        Op::Gather { axis } => gather(inputs[0], inputs[1], *axis, shape, name),
        Op::GatherElements { axis } => gather_elements(inputs[0], inputs[1], *axis, name),
        Op::GatherNd { batch } => gather_nd(inputs[0], inputs[1], *batch, shape, name),
        Op::ScatterElements { axis, combine } => scatter_elements(inputs, *axis, *combine, name),
        Op::ScatterNd { combine } => scatter_nd(inputs, *combine, name),
        _ => Err(Error::internal(Stage::Run, format!("{} takes no indices", op.name()))),
    }
}

/// The indices, unresolved; the tensor is i32 or i64 (inference has checked).
fn index_values(indices: &Tensor) -> Result<Vec<i64>> {
    indices.to_i64s().ok_or_else(|| {
        Error::internal(Stage::Run, format!("indices of type {}{:?}", indices.dtype, indices.shape))
    })
}

/// Index number `at` of tensor `indices`, counted from the end when negative; an error names it by its place.
fn resolve(index: i64, extent: usize, indices: &Tensor, at: usize, name: &Operand) -> Result<usize> {
    let signed = extent as i64;
    let wrapped = if index < 0 { index.checked_add(signed) } else { Some(index) };
    match wrapped.map(usize::try_from) {
        Some(Ok(index)) if index < extent => Ok(index),
        _ => {
            let shape = name.shape.as_deref().unwrap_or(&indices.shape);
            let (mut place, mut rest) = (vec![String::new(); shape.len()], at);
            for (text, &size) in place.iter_mut().zip(shape).rev() {
                *text = (rest % size.max(1)).to_string();
                rest /= size.max(1);
            }
            let above = name.fault.as_ref().and_then(|fault: &Fault| fault.above).unwrap_or(0);
            let message = name.sentence(&place, [&(index.wrapping_sub(above)), &-signed, &(signed - 1)]);
            Err(Error::new(Stage::Run, Kind::Usage, message))
        }
    }
}

/// `shape` is the inferred `data.shape[..axis] ++ indices.shape ++ data.shape[axis+1..]`.
fn gather(data: &Tensor, indices: &Tensor, axis: usize, shape: &[usize], name: &Operand) -> Result<Tensor> {
    let mut out = zeroed(data.dtype, shape)?;
    // Nothing is read for any indices.
    if out.is_empty() {
        return Ok(Tensor::new(data.dtype, shape.to_vec(), Bytes::from(out)));
    }
    let extent = data.shape[axis];
    let picks = index_values(indices)?
        .into_iter()
        .enumerate()
        .map(|(at, index)| resolve(index, extent, indices, at, name))
        .collect::<Result<Vec<_>>>()?;
    let run = data.shape[axis + 1..].iter().product::<usize>() * data.dtype.size();
    let outer: usize = data.shape[..axis].iter().product();
    let mut runs = out.chunks_exact_mut(run);
    for lead in 0..outer {
        for (&pick, to) in picks.iter().zip(&mut runs) {
            let from = (lead * extent + pick) * run;
            to.copy_from_slice(&data.data[from..from + run]);
        }
    }
    Ok(Tensor::new(data.dtype, shape.to_vec(), Bytes::from(out)))
}

/// Calls `visit(position in the indices, element of data)` for every index of `GatherElements` or
/// `ScatterElements`.
fn each_element(
    data_shape: &[usize],
    indices: &Tensor,
    axis: usize,
    name: &Operand,
    mut visit: impl FnMut(usize, usize),
) -> Result<()> {
    for (at, (&from, &extent)) in indices.shape.iter().zip(data_shape).enumerate() {
        if at != axis && from > extent {
            return Err(Error::malformed(
                Stage::Run,
                format!("{} of shape {:?} exceed data of shape {data_shape:?}", name.name, indices.shape),
            ));
        }
    }
    let own = strides(data_shape);
    let mut view = View { offset: 0, strides: own.clone() };
    view.strides[axis] = 0;
    let mut walk = Walk::new(&indices.shape, [&view]);
    for (at, index) in index_values(indices)?.into_iter().enumerate() {
        let index = resolve(index, data_shape[axis], indices, at, name)?;
        visit(at, walk.offsets[0] as usize + index * own[axis] as usize);
        walk.advance();
    }
    Ok(())
}

fn gather_elements(data: &Tensor, indices: &Tensor, axis: usize, name: &Operand) -> Result<Tensor> {
    let mut out = zeroed(data.dtype, &indices.shape)?;
    let size = data.dtype.size();
    each_element(&data.shape, indices, axis, name, |at, from| {
        out[at * size..(at + 1) * size].copy_from_slice(&data.data[from * size..(from + 1) * size]);
    })?;
    Ok(Tensor::new(data.dtype, indices.shape.clone(), Bytes::from(out)))
}

/// The slices that index tuples of `GatherND` and `ScatterND` name.
struct Tuples {
    /// First element of each slice.
    starts: Vec<usize>,
    /// Elements of a slice.
    run: usize,
}

fn tuples(data_shape: &[usize], indices: &Tensor, batch: usize, name: &Operand) -> Result<Tuples> {
    let (&depth, lead) = indices
        .shape
        .split_last()
        .filter(|(depth, lead)| batch <= lead.len() && batch + **depth <= data_shape.len())
        .ok_or_else(|| {
            let message =
                format!("{} of shape {:?} for data of shape {data_shape:?}", name.name, indices.shape);
            Error::malformed(Stage::Run, message)
        })?;
    if lead[..batch] != data_shape[..batch] {
        let message = format!("batch axes of {} {lead:?} and data {data_shape:?} differ", name.name);
        return Err(Error::malformed(Stage::Run, message));
    }
    let run = data_shape[batch + depth..].iter().product::<usize>();
    let per_batch: usize = lead[batch..].iter().product();
    let batch_size: usize = data_shape[batch..].iter().product();
    let values = index_values(indices)?;
    let mut starts = Vec::with_capacity(lead.iter().product());
    for tuple in 0..lead.iter().product() {
        let mut at = 0;
        for axis in 0..depth {
            let extent = data_shape[batch + axis];
            let place = tuple * depth + axis;
            at = at * extent + resolve(values[place], extent, indices, place, name)?;
        }
        starts.push(tuple / per_batch * batch_size + at * run);
    }
    Ok(Tuples { starts, run })
}

fn gather_nd(
    data: &Tensor,
    indices: &Tensor,
    batch: usize,
    shape: &[usize],
    name: &Operand,
) -> Result<Tensor> {
    let mut out = zeroed(data.dtype, shape)?;
    // Nothing is read for any indices.
    if out.is_empty() {
        return Ok(Tensor::new(data.dtype, shape.to_vec(), Bytes::from(out)));
    }
    let Tuples { starts, run } = tuples(&data.shape, indices, batch, name)?;
    let size = data.dtype.size();
    for (tuple, start) in starts.into_iter().enumerate() {
        out[tuple * run * size..(tuple + 1) * run * size]
            .copy_from_slice(&data.data[start * size..(start + run) * size]);
    }
    Ok(Tensor::new(data.dtype, shape.to_vec(), Bytes::from(out)))
}

fn scatter_elements(inputs: &[&Tensor], axis: usize, combine: ScatterFn, name: &Operand) -> Result<Tensor> {
    let (data, indices, updates) = (inputs[0], inputs[1], inputs[2]);
    let mut targets = Vec::new();
    each_element(&data.shape, indices, axis, name, |_, to| targets.push(to))?;
    store(data, updates, &targets, 1, combine)
}

fn scatter_nd(inputs: &[&Tensor], combine: ScatterFn, name: &Operand) -> Result<Tensor> {
    let (data, indices, updates) = (inputs[0], inputs[1], inputs[2]);
    let Tuples { starts, run } = tuples(&data.shape, indices, 0, name)?;
    let depth = indices.shape.last().copied().unwrap_or(0);
    let mut wanted = indices.shape[..indices.shape.len() - 1].to_vec();
    wanted.extend_from_slice(&data.shape[depth..]);
    if updates.shape != wanted {
        return Err(Error::malformed(
            Stage::Run,
            format!(
                "scatter_nd: updates of shape {:?}, where data {:?} and indices {:?} call for {wanted:?}",
                updates.shape, data.shape, indices.shape
            ),
        ));
    }
    store(data, updates, &starts, run, combine)
}

/// `data` with each run of `updates`, in order, stored or combined at its target element.
fn store(
    data: &Tensor,
    updates: &Tensor,
    targets: &[usize],
    run: usize,
    combine: ScatterFn,
) -> Result<Tensor> {
    if updates.dtype != data.dtype {
        let message = format!("scatter of {} updates into {} data", updates.dtype, data.dtype);
        return Err(Error::malformed(Stage::Run, message));
    }
    let mut out = zeroed(data.dtype, &data.shape)?;
    out.copy_from_slice(&data.data);
    match combine {
        None => {
            let bytes = run * data.dtype.size();
            for (at, &target) in targets.iter().enumerate() {
                let to = target * data.dtype.size();
                out[to..to + bytes].copy_from_slice(&updates.data[at * bytes..(at + 1) * bytes]);
            }
        }
        Some(function) => with_lane!(data.dtype, function.name(), lane => {
            combine_in(lane, function, &mut out, updates, targets, run)
        })?,
    }
    Ok(Tensor::new(data.dtype, data.shape.clone(), Bytes::from(out)))
}

fn combine_in<W: Work>(
    lane: Lane<W>,
    function: BinaryFn,
    out: &mut [u8],
    updates: &Tensor,
    targets: &[usize],
    run: usize,
) -> Result<()> {
    let Some(apply) = W::binary(function) else { return undefined(function.name(), updates.dtype) };
    let bits = updates.dtype.bits();
    for (at, &target) in targets.iter().enumerate() {
        for step in 0..run {
            let (old, update) = (lane.get(out, target + step), lane.get(&updates.data, at * run + step));
            lane.put(out, target + step, apply(old, update, bits));
        }
    }
    Ok(())
}
