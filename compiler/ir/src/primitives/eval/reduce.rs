//! Reductions, running combinations and contractions.
//!
//! Floats accumulate in f64 and round once at the end: the oracle gives the exact result as nearly as it
//! can, and implementations are held to it with a tolerance. Integers wrap.

use bytes::Bytes;

use super::elementwise::{undefined, with_wide_lane};
use super::lane::Lane;
use super::movement::{View, Walk, merge_axes, strides, zeroed};
use super::scalar::Work;
use crate::error::{Error, Result, Stage};
use crate::graph::dim::dims;
use crate::graph::panels::rows_of;
use crate::graph::{DType, Dim, PAIR_DEPTH, PanelPlaces, RhsLayout, Tensor};
use crate::scalar::ReduceFn;

/// A type that accumulates, with the identities of the reductions.
trait Accumulate: Work {
    /// `None` where the function does not apply to the type.
    fn identity(function: ReduceFn, dtype: DType) -> Option<Self>;
}

impl Accumulate for f64 {
    fn identity(function: ReduceFn, _: DType) -> Option<f64> {
        match function {
            ReduceFn::Sum => Some(0.0),
            ReduceFn::Prod => Some(1.0),
            ReduceFn::Max => Some(f64::NEG_INFINITY),
            ReduceFn::Min => Some(f64::INFINITY),
            ReduceFn::And | ReduceFn::Or => None,
        }
    }
}

impl Accumulate for i64 {
    fn identity(function: ReduceFn, dtype: DType) -> Option<i64> {
        match function {
            ReduceFn::Sum => Some(0),
            ReduceFn::Prod => Some(1),
            ReduceFn::Max => Some(i64::MIN >> (64 - dtype.bits())),
            ReduceFn::Min => Some(i64::MAX >> (64 - dtype.bits())),
            ReduceFn::And | ReduceFn::Or => None,
        }
    }
}

impl Accumulate for u64 {
    fn identity(function: ReduceFn, dtype: DType) -> Option<u64> {
        match function {
            ReduceFn::Sum | ReduceFn::Max => Some(0),
            ReduceFn::Prod => Some(1),
            ReduceFn::Min => Some(u64::MAX >> (64 - dtype.bits())),
            ReduceFn::And | ReduceFn::Or => None,
        }
    }
}

impl Accumulate for bool {
    fn identity(function: ReduceFn, _: DType) -> Option<bool> {
        match function {
            ReduceFn::Or | ReduceFn::Max => Some(false),
            ReduceFn::And | ReduceFn::Min => Some(true),
            ReduceFn::Sum | ReduceFn::Prod => None,
        }
    }
}

fn identity<W: Accumulate>(function: ReduceFn, dtype: DType) -> Result<(W, super::scalar::Binary<W>)> {
    match (W::identity(function, dtype), W::binary(function.combine())) {
        (Some(identity), Some(combine)) => Ok((identity, combine)),
        _ => undefined(&format!("reduce {function}"), dtype),
    }
}

/// `shape` is `x`'s with 1 on the reduced axes.
pub(in crate::primitives) fn reduce(
    function: ReduceFn,
    x: &Tensor,
    axes: &[usize],
    shape: &[usize],
) -> Result<Tensor> {
    if (function, x.dtype) == (ReduceFn::Sum, DType::I32) {
        // The sums of weights of 8 bits: a loop that knows its types takes a fraction of the time.
        let load = |element: &[u8]| element.try_into().map_or(0, i32::from_le_bytes);
        let store = |total: i32, out: &mut [u8]| out.copy_from_slice(&total.to_le_bytes());
        return reduce_with(0, load, i32::wrapping_add, store, x, axes, shape);
    }
    with_wide_lane!(x.dtype, function.name(), lane => reduce_in(lane, function, x, axes, shape))
}

fn reduce_in<W: Accumulate>(
    lane: Lane<W>,
    function: ReduceFn,
    x: &Tensor,
    axes: &[usize],
    shape: &[usize],
) -> Result<Tensor> {
    let (identity, combine) = identity::<W>(function, x.dtype)?;
    let bits = x.dtype.bits();
    reduce_with(identity, lane.load, |total, value| combine(total, value, bits), lane.store, x, axes, shape)
}

fn reduce_with<W: Copy>(
    identity: W,
    load: impl Fn(&[u8]) -> W,
    combine: impl Fn(W, W) -> W,
    store: impl Fn(W, &mut [u8]),
    x: &Tensor,
    axes: &[usize],
    shape: &[usize],
) -> Result<Tensor> {
    let size = x.dtype.size();
    let mut data = zeroed(x.dtype, shape)?;
    let mut totals = vec![identity; data.len() / size];
    let mut to = View::whole(shape);
    axes.iter().for_each(|&axis| to.strides[axis] = 0);
    let (mut own, mut from) = (x.shape.clone(), strides(&x.shape));
    if !x.is_empty() {
        merge_axes(&mut own, &mut from, &mut to.strides);
    }
    // In runs of the innermost axis, which is all in one total, or an element of each.
    let run = own.pop().unwrap_or(1);
    let step = to.strides.pop().unwrap_or(0) as usize;
    let mut walk = Walk::new(&own, [&to]);
    for values in x.data.chunks_exact((run * size).max(1)) {
        let mut at = walk.offsets[0] as usize;
        for value in values.chunks_exact(size) {
            totals[at] = combine(totals[at], load(value));
            at += step;
        }
        walk.advance();
    }
    totals.iter().zip(data.chunks_exact_mut(size)).for_each(|(total, out)| store(*total, out));
    Ok(Tensor::new(x.dtype, shape.to_vec(), Bytes::from(data)))
}

/// The axis as the middle of three: (elements before, extent, elements after).
fn split(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// Index of the extreme element, 0 if there is none. A NaN counts as the extreme, as in NumPy.
pub(in crate::primitives) fn arg_reduce(
    x: &Tensor,
    max: bool,
    axis: usize,
    last: bool,
    shape: &[usize],
) -> Result<Tensor> {
    with_wide_lane!(x.dtype, "argreduce", lane => arg_reduce_in(lane, x, max, axis, last, shape))
}

fn arg_reduce_in<W: Work>(
    lane: Lane<W>,
    x: &Tensor,
    max: bool,
    axis: usize,
    last: bool,
    shape: &[usize],
) -> Result<Tensor> {
    let (outer, extent, inner) = split(&x.shape, axis);
    if extent == 0 {
        return Ok(Tensor::from_slice(shape, &vec![0i64; outer * inner]));
    }
    #[expect(clippy::eq_op, reason = "a value unequal to itself is NaN")]
    let is_nan = |value: W| value != value;
    let beats = |value: W, best: W| {
        if is_nan(best) || is_nan(value) {
            is_nan(value) && (!is_nan(best) || last)
        } else if value == best {
            last
        } else {
            (value > best) == max
        }
    };
    let mut result = Vec::with_capacity(outer * inner);
    for group in 0..outer * inner {
        let start = group / inner * extent * inner + group % inner;
        let (mut best, mut at) = (lane.get(&x.data, start), 0i64);
        for step in 1..extent {
            let value = lane.get(&x.data, start + step * inner);
            if beats(value, best) {
                (best, at) = (value, step as i64);
            }
        }
        result.push(at);
    }
    Ok(Tensor::from_slice(shape, &result))
}

pub(in crate::primitives) fn cumulate(
    function: ReduceFn,
    x: &Tensor,
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Result<Tensor> {
    with_wide_lane!(x.dtype, function.name(), lane => {
        cumulate_in(lane, function, x, axis, exclusive, reverse)
    })
}

fn cumulate_in<W: Accumulate>(
    lane: Lane<W>,
    function: ReduceFn,
    x: &Tensor,
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Result<Tensor> {
    let (identity, combine) = identity::<W>(function, x.dtype)?;
    let mut data = zeroed(x.dtype, &x.shape)?;
    if data.is_empty() {
        return Ok(Tensor::new(x.dtype, x.shape.clone(), Bytes::new()));
    }
    let (outer, extent, inner) = split(&x.shape, axis);
    for group in 0..outer * inner {
        let start = group / inner * extent * inner + group % inner;
        let mut total = identity;
        for step in 0..extent {
            let step = if reverse { extent - 1 - step } else { step };
            let at = start + step * inner;
            let next = combine(total, lane.get(&x.data, at), x.dtype.bits());
            lane.put(&mut data, at, if exclusive { total } else { next });
            total = next;
        }
    }
    Ok(Tensor::new(x.dtype, x.shape.clone(), Bytes::from(data)))
}

/// Extents of a contraction with the axes of each kind joined.
struct Extents {
    m: usize,
    k: usize,
    n: usize,
    /// Where one batch entry of the right-hand side has its elements.
    rhs: PanelPlaces,
}

/// Panels whose rows have an order, with each row in its place.
fn in_place(panels: &Tensor, order: &Tensor) -> Tensor {
    let (Some(&width), Some(&rows)) = (panels.shape.last(), rows_of(&panels.shape).last()) else {
        return panels.clone();
    };
    let mut data = vec![0; panels.data.len()];
    let places = order.data.as_chunks::<2>().0.iter().map(|&place| usize::from(u16::from_ne_bytes(place)));
    for (row, place) in places.enumerate() {
        let to = (row / rows * rows + place) * width;
        data[to..][..width].copy_from_slice(&panels.data[row * width..][..width]);
    }
    Tensor::new(panels.dtype, panels.shape.clone(), data.into())
}

/// `shape` is the inferred result `[batch.., m.., n]`.
pub(in crate::primitives) fn contract(
    inputs: &[&Tensor],
    batch: usize,
    m: usize,
    layout: &RhsLayout,
    shape: &[usize],
) -> Result<Tensor> {
    let placed = match inputs {
        [_, rhs, order] if matches!(layout, RhsLayout::Ordered { stays: false, .. }) => {
            Some(in_place(rhs, order))
        }
        _ => None,
    };
    let inputs = &[inputs[0], placed.as_ref().unwrap_or(inputs[1])];
    let n = shape.last().copied().unwrap_or(1);
    // Products of integers of up to 16 bits are added up in 32, those of floats in the wider type.
    let sum = if inputs[0].dtype.is_float() { inputs[0].dtype } else { DType::I32 };
    let alike = inputs[0].dtype == inputs[1].dtype;
    // Products of pairs are added up as f32.
    let pairs = alike && layout.depth() == PAIR_DEPTH && sum == DType::BF16;
    let sum = if pairs { DType::F32 } else { sum };
    let are_small = alike && matches!(inputs[0].dtype, DType::I8 | DType::I16);
    let adds_up = inputs[0].shape.len() > batch + m;
    let wide = (!alike || pairs || are_small && adds_up)
        .then(|| [inputs[0], inputs[1]].map(|operand| super::cast(operand, sum, true)));
    let inputs = match &wide {
        Some([lhs, rhs]) => &[lhs, rhs],
        None => inputs,
    };
    let (lhs, rhs) = (inputs[0], inputs[1]);
    let k = lhs.shape[batch + m..].iter().product();
    let packed = dims(&rhs.shape);
    let places = match layout.of_packed(&packed, batch).map(|panels| panels.with_columns(Dim::from(n))) {
        None => Some(PanelPlaces::plain(k, n)),
        Some(panels) => panels.places().filter(|_| panels.packed() == Some(packed)),
    };
    let Some(places) = places else {
        let message = format!("{layout:?} for {n} columns in a tensor {:?}", rhs.shape);
        return Err(Error::internal(Stage::Run, message));
    };
    let extents = Extents { m: lhs.shape[batch..batch + m].iter().product(), k, n, rhs: places };
    if let Some(lane) = Lane::f64(lhs.dtype) {
        contract_in(lane, |sum, a, b| sum + a * b, 0.0, inputs, batch, &extents, shape)
    } else if let Some(lane) = Lane::i64(lhs.dtype) {
        let step = |sum: i64, a: i64, b: i64| sum.wrapping_add(a.wrapping_mul(b));
        contract_in(lane, step, 0, inputs, batch, &extents, shape)
    } else if let Some(lane) = Lane::u64(lhs.dtype) {
        let step = |sum: u64, a: u64, b: u64| sum.wrapping_add(a.wrapping_mul(b));
        contract_in(lane, step, 0, inputs, batch, &extents, shape)
    } else {
        undefined("contract", lhs.dtype)
    }
}

fn contract_in<W: Work>(
    lane: Lane<W>,
    step: impl Fn(W, W, W) -> W,
    zero: W,
    inputs: &[&Tensor],
    batch: usize,
    extents: &Extents,
    shape: &[usize],
) -> Result<Tensor> {
    let (lhs, rhs) = (inputs[0], inputs[1]);
    let &Extents { m, k, n, rhs: places } = extents;
    let mut data = zeroed(lhs.dtype, shape)?;
    if data.is_empty() {
        return Ok(Tensor::new(lhs.dtype, shape.to_vec(), Bytes::new()));
    }
    let rhs_values: Vec<W> = lane.read(rhs).collect();
    let entries: usize = shape[..batch].iter().product();
    let views = [lhs, rhs].map(|operand| batch_view(&operand.shape[..batch], &shape[..batch]));
    let mut walk = Walk::new(&shape[..batch], [&views[0], &views[1]]);
    let mut row = vec![zero; n];
    for entry in 0..entries {
        let [a, b] = walk.offsets.map(|offset| offset as usize);
        let rhs_values = &rhs_values[b * places.len()..(b + 1) * places.len()];
        for i in 0..m {
            row.fill(zero);
            for p in 0..k {
                let value = lane.get(&lhs.data, (a * m + i) * k + p);
                for (panel, sums) in row.chunks_mut(places.nr).enumerate() {
                    let weights = &rhs_values[places.at(p, panel * places.nr)..];
                    for (sum, &weight) in sums.iter_mut().zip(weights.iter().step_by(places.depth)) {
                        *sum = step(*sum, value, weight);
                    }
                }
            }
            for (j, &sum) in row.iter().enumerate() {
                lane.put(&mut data, (entry * m + i) * n + j, sum);
            }
        }
        walk.advance();
    }
    Ok(Tensor::new(lhs.dtype, shape.to_vec(), Bytes::from(data)))
}

/// Number of the batch entry that serves each entry of the broadcast batch.
fn batch_view(own: &[usize], shape: &[usize]) -> View {
    let mut strides = strides(own);
    for axis in 0..own.len() {
        if own[axis] == 1 && shape[axis] != 1 {
            strides[axis] = 0;
        }
    }
    View { offset: 0, strides }
}
