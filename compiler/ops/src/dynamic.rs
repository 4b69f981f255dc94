//! What rows share where run-time data decide a shape: tiny computations on vectors of sizes and axes, whose results
//! become the dims of results.

use std::sync::Arc;

use super::row::*;
use onnxc_ir::build::unknown_count;
use onnxc_ir::graph::{MapFn, Op, Tensor};

/// The values of `dims` as an i64 vector.
pub(crate) fn dims_vector(cx: &mut NodeCx<'_, '_>, dims: &[Dim]) -> Result<ValueId> {
    cx.b.emit1(Op::DimValues { dims: dims.to_vec() }, &[])
}

/// `value`, or -1 where `valid` does not hold: as a size it then fails the run.
pub(crate) fn valid_or_negative(cx: &mut NodeCx<'_, '_>, valid: ValueId, value: ValueId) -> Result<ValueId> {
    let negative = cx.b.scalar(DType::I64, -1.0);
    cx.b.select(valid, value, negative)
}

fn compare_scalar(cx: &mut NodeCx<'_, '_>, function: CompareFn, x: ValueId, value: f64) -> Result<ValueId> {
    let scalar = cx.b.scalar(cx.b.dtype(x), value);
    cx.b.compare(function, x, scalar)
}

/// Axes with negative ones counted from the end of `rank`, i64.
fn wrapped(cx: &mut NodeCx<'_, '_>, axes: ValueId, rank: usize) -> Result<ValueId> {
    let axes = cx.b.cast(axes, DType::I64)?;
    let negative = compare_scalar(cx, CompareFn::Lt, axes, 0.0)?;
    let moved = cx.b.binary_scalar(BinaryFn::Add, axes, rank as f64)?;
    cx.b.select(negative, moved, axes)
}

/// Which of `rank` axes a vector of axes names.
pub(crate) struct AxisMask {
    /// bool `[rank]`.
    pub named: ValueId,
    /// bool scalar: every axis is in range and none is repeated.
    pub valid: ValueId,
    /// What a run says in which it is false.
    rule: Arc<str>,
}

impl AxisMask {
    /// Has the run check the axes, where no size that they decide shows it.
    pub(crate) fn require_valid(&self, cx: &mut NodeCx<'_, '_>) -> Result<()> {
        let valid = cx.b.cast(self.valid, DType::I64)?;
        let valid = cx.b.sizes(valid, &|_| Some(Dim::ONE))?.remove(0);
        cx.b.require(Requirement::equal(valid, Dim::ONE).stated(self.rule.clone(), &[]))
    }

    /// The same mask, valid only where the axes of `shape` that it names have size 1. A reshape checks that only for tensors with elements.
    pub(crate) fn of_units(self, cx: &mut NodeCx<'_, '_>, shape: &[Dim]) -> Result<AxisMask> {
        let (sizes, one) = (dims_vector(cx, shape)?, cx.b.scalar(DType::I64, 1.0));
        let named = cx.b.select(self.named, sizes, one)?;
        let units = cx.b.compare(CompareFn::Eq, named, one)?;
        let units = cx.b.reduce(ReduceFn::And, units, &[0])?;
        let units = to_scalar(cx, units)?;
        let rule = format!("{}, and each must be of size 1", self.rule).into();
        Ok(AxisMask { valid: cx.b.binary(BinaryFn::And, self.valid, units)?, rule, ..self })
    }

    /// `values` as sizes: not even -1, so that the run fails and says why, where the axes are not valid.
    fn valid_sizes(
        &self,
        cx: &mut NodeCx<'_, '_>,
        values: ValueId,
        bound: &dyn Fn(usize) -> Option<Dim>,
    ) -> Result<Vec<Dim>> {
        let values = valid_or_negative(cx, self.valid, values)?;
        cx.b.saying(Says::Text(self.rule.clone()), |b| b.sizes(values, bound))
    }
}

/// `named[i] = some axis is i`.
pub(crate) fn axis_mask(cx: &mut NodeCx<'_, '_>, axes: ValueId, rank: usize) -> Result<AxisMask> {
    let count = cx.b.ty(axes).elements();
    let hits = axis_hits(cx, axes, rank)?;
    let named = cx.b.reduce(ReduceFn::Or, hits, &[1])?;
    let named = cx.b.reshape(named, vec![Dim::from(rank)])?;
    let ones = cx.b.cast(named, DType::I64)?;
    let total = cx.b.reduce(ReduceFn::Sum, ones, &[0])?;
    let total = to_scalar(cx, total)?;
    let count = dim(cx, &count)?;
    let rule = format!(
        "an axis in {} is out of range or there twice: axes must be between {} and {}, each of them once",
        cx.b.operand_text(axes).unwrap_or_else(|| "axes".into()),
        -(rank as i64),
        rank as i64 - 1
    );
    Ok(AxisMask { named, valid: cx.b.compare(CompareFn::Eq, total, count)?, rule: rule.into() })
}

/// bool `[rank, axes]`: whether axis number `j` is `i`.
fn axis_hits(cx: &mut NodeCx<'_, '_>, axes: ValueId, rank: usize) -> Result<ValueId> {
    let count = cx.b.ty(axes).elements();
    let axes = wrapped(cx, axes, rank)?;
    let axes = cx.b.reshape(axes, vec![Dim::ONE, count])?;
    let place = cx.b.iota(vec![Dim::from(rank), Dim::ONE], 0)?;
    cx.b.compare(CompareFn::Eq, place, axes)
}

/// `out[axes[j]] = values[j]`, and `default` where no axis points: i64 `[rank]`. The axes must be valid, which [`AxisMask`] checks.
pub(crate) fn spread(
    cx: &mut NodeCx<'_, '_>,
    axes: ValueId,
    values: ValueId,
    default: ValueId,
    rank: usize,
) -> Result<ValueId> {
    let count = cx.b.ty(axes).elements();
    let given = cx.b.ty(values).elements();
    // Whether symbolic numbers agree shows when the model runs: the reshape has it checked.
    if given.is_const() && count.is_const() && given != count {
        return malformed(format!("{} for axes {}", cx.b.ty(values), cx.b.ty(axes)));
    }
    let values = cx.b.cast(values, DType::I64)?;
    let row = cx.b.reshape(values, vec![Dim::ONE, count])?;
    let hits = axis_hits(cx, axes, rank)?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let picked = cx.b.select(hits, row, zero)?;
    let sum = cx.b.reduce(ReduceFn::Sum, picked, &[1])?;
    let sum = cx.b.reshape(sum, vec![Dim::from(rank)])?;
    let named = cx.b.reduce(ReduceFn::Or, hits, &[1])?;
    let named = cx.b.reshape(named, vec![Dim::from(rank)])?;
    cx.b.select(named, sum, default)
}

/// The elements of the i64 vector `values` of `size` elements where `keep` holds, in their order: `room` elements, cut or filled with 0.
fn compacted(cx: &mut NodeCx<'_, '_>, values: ValueId, keep: ValueId, room: &Dim) -> Result<ValueId> {
    let ones = cx.b.cast(keep, DType::I64)?;
    let before = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: true, reverse: false };
    let place = cx.b.emit1(before, &[ones])?;
    // What is not kept goes to one more element, which is then cut off.
    let spare = dim(cx, room)?;
    let place = cx.b.binary(BinaryFn::Min, place, spare)?;
    let place = cx.b.select(keep, place, spare)?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let empty = cx.b.expand(zero, vec![room.clone() + Dim::ONE])?;
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    let filled = cx.b.emit1(scatter, &[empty, place, values])?;
    cx.b.slice_axis(filled, 0, Dim::ZERO, room.clone())
}

/// Positions of the true elements of a bool vector, in their order, as an i64 vector of a length that data decide.
pub(crate) fn true_positions(cx: &mut NodeCx<'_, '_>, condition: ValueId) -> Result<ValueId> {
    let size = cx.b.ty(condition).shape[0].clone();
    let ones = cx.b.cast(condition, DType::I64)?;
    let count = cx.b.reduce(ReduceFn::Sum, ones, &[0])?;
    let count = cx.b.sizes(count, &|_| Some(size.clone()))?.remove(0);
    let index = cx.b.iota(vec![size.clone()], 0)?;
    let all = compacted(cx, index, condition, &size)?;
    cx.b.slice_axis(all, 0, Dim::ZERO, count)
}

/// The shape that a Reshape asks for by an i64 vector; see `resolve_shape` in `movement`.
pub(crate) fn resolved_shape(
    cx: &mut NodeCx<'_, '_>,
    from: &[Dim],
    wanted: ValueId,
    allow_zero: bool,
) -> Result<Vec<Dim>> {
    let Some(&[count]) = cx.b.ty(wanted).static_shape().as_deref() else {
        return Err(unknown_count(cx.b.ty(wanted)));
    };
    let known = cx.b.known_elements(wanted)?;
    let (name, data) = (cx.operand_name(1), cx.operand_name(0));
    let rank = count.max(from.len());
    let pad = |cx: &mut NodeCx<'_, '_>, dims: &[Dim], by: i64| -> Result<ValueId> {
        let mut dims = dims.to_vec();
        dims.resize(rank, Dim::from(by));
        dims_vector(cx, &dims)
    };
    let wanted = match rank - count {
        0 => wanted,
        more => {
            let ones = cx.b.i64s(&vec![1; more]);
            cx.b.concat(&[wanted, ones], 0)?
        }
    };
    // A dim copied from an axis that is not there is negative, which fails as a size.
    let (copies, sizes) = (pad(cx, from, -1)?, pad(cx, from, 1)?);
    let never = cx.b.constant(Tensor::scalar(false));
    let copied = if allow_zero { never } else { compare_scalar(cx, CompareFn::Eq, wanted, 0.0)? };
    let free = compare_scalar(cx, CompareFn::Eq, wanted, -1.0)?;
    let one = cx.b.scalar(DType::I64, 1.0);
    let explicit = cx.b.binary(BinaryFn::Or, copied, free)?;
    let explicit = cx.b.select(explicit, one, wanted)?;
    let explicit = cx.b.reduce(ReduceFn::Prod, explicit, &[0])?;
    let left = cx.b.select(copied, one, sizes)?;
    let left = cx.b.reduce(ReduceFn::Prod, left, &[0])?;
    let rest = cx.b.binary(BinaryFn::Div, left, explicit)?;
    let holes = cx.b.cast(free, DType::I64)?;
    let holes = cx.b.reduce(ReduceFn::Sum, holes, &[0])?;
    let single = cx.b.compare(CompareFn::Le, holes, one)?;
    let rest = valid_or_negative(cx, single, rest)?;
    let shape = cx.b.select(copied, copies, wanted)?;
    let shape = cx.b.select(free, rest, shape)?;
    let mut dims = Vec::with_capacity(count);
    for (at, known) in known.into_iter().enumerate() {
        dims.push(match known {
            Some(dim) if dim == Dim::ZERO && !allow_zero && at < from.len() => from[at].clone(),
            Some(dim) if dim.bounds().0.is_some_and(|low| low >= 0) && dim != Dim::ZERO => dim,
            _ => {
                let size = cx.b.slice_axis(shape, 0, Dim::from(at), Dim::ONE)?;
                let text = format!(
                    "element {at} of {name} gives a size of {V}; sizes must be 0 or more, one of them may be -1, for \
                     what is left, and 0 stands for a dimension of {data}, which has {}",
                    from.len()
                );
                cx.b.saying(Says::Text(text.into()), |b| b.sizes(size, &|_| None))?.remove(0)
            }
        });
    }
    Ok(dims)
}

/// How a reduction over axes that data decide runs: `x` as `[kept0, reduced0, kept1, reduced1, ..]`, each axis of the
/// original being one of its two, and the other 1.
pub(crate) struct LateAxes {
    pub split: ValueId,
    /// The odd axes.
    pub reduced: Vec<usize>,
    /// Dims of the result with the reduced axes kept as 1.
    pub kept: Vec<Dim>,
    mask: AxisMask,
}

/// Splits each axis of `x` by whether `axes` names it. Without any axis all are named if `all_by_default`.
pub(crate) fn split_axes(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    axes: ValueId,
    all_by_default: bool,
) -> Result<LateAxes> {
    let shape = cx.b.shape(x);
    let rank = shape.len();
    let count = cx.b.ty(axes).elements();
    let mut mask = axis_mask(cx, axes, rank)?;
    if all_by_default && count.as_const().is_none() {
        let count = dim(cx, &count)?;
        let none = compare_scalar(cx, CompareFn::Eq, count, 0.0)?;
        mask.named = cx.b.binary(BinaryFn::Or, mask.named, none)?;
    }
    let (sizes, one) = (dims_vector(cx, &shape)?, cx.b.scalar(DType::I64, 1.0));
    let kept = cx.b.select(mask.named, one, sizes)?;
    let reduced = cx.b.select(mask.named, sizes, one)?;
    let bound = |at: usize| Some(shape[at].max_dim(&Dim::ONE));
    let (kept, reduced) = (mask.valid_sizes(cx, kept, &bound)?, cx.b.sizes(reduced, &bound)?);
    let split = kept.iter().zip(&reduced).flat_map(|(kept, reduced)| [kept.clone(), reduced.clone()]);
    let split = cx.b.reshape(x, split.collect())?;
    Ok(LateAxes { split, reduced: (0..rank).map(|axis| 2 * axis + 1).collect(), kept, mask })
}

impl LateAxes {
    /// Dims of the result without the `count` axes that are named.
    pub(crate) fn squeezed(&self, cx: &mut NodeCx<'_, '_>, shape: &[Dim], count: usize) -> Result<Vec<Dim>> {
        squeezed_dims(cx, shape, &self.mask, count)
    }
}

/// The dims whose axes a mask of `count` axes does not name.
pub(crate) fn squeezed_dims(
    cx: &mut NodeCx<'_, '_>,
    shape: &[Dim],
    mask: &AxisMask,
    count: usize,
) -> Result<Vec<Dim>> {
    let Some(room) = shape.len().checked_sub(count) else {
        return malformed(format!("{count} axes of shape {shape:?}"));
    };
    if room == 0 {
        // No size is left to check the axes against.
        mask.require_valid(cx)?;
        return Ok(vec![]);
    }
    let keep = cx.b.emit1(Op::Map(MapFn::Unary(UnaryFn::Not)), &[mask.named])?;
    let sizes = dims_vector(cx, shape)?;
    let dims = compacted(cx, sizes, keep, &Dim::from(room))?;
    mask.valid_sizes(cx, dims, &|_| None)
}

/// The dims of `shape` with an axis of size 1 at each axis of the result that `axes`, a vector of `count`, names.
pub(crate) fn unsqueezed_dims(
    cx: &mut NodeCx<'_, '_>,
    shape: &[Dim],
    axes: ValueId,
    count: usize,
) -> Result<Vec<Dim>> {
    let mask = axis_mask(cx, axes, shape.len() + count)?;
    if shape.is_empty() {
        // All sizes are 1 for any axes.
        mask.require_valid(cx)?;
        return Ok(vec![Dim::ONE; count]);
    }
    let keep = cx.b.emit1(Op::Map(MapFn::Unary(UnaryFn::Not)), &[mask.named])?;
    let ones = cx.b.cast(keep, DType::I64)?;
    let before = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: true, reverse: false };
    let source = cx.b.emit1(before, &[ones])?;
    let source = cx.b.binary_scalar(BinaryFn::Min, source, (shape.len() - 1) as f64)?;
    let sizes = dims_vector(cx, shape)?;
    let taken = cx.b.emit1(Op::Gather { axis: 0 }, &[sizes, source])?;
    let one = cx.b.scalar(DType::I64, 1.0);
    let dims = cx.b.select(keep, taken, one)?;
    mask.valid_sizes(cx, dims, &|_| None)
}

/// `[before, size, after]`: `x` about an axis that data decide.
pub(crate) fn about_axis(cx: &mut NodeCx<'_, '_>, x: ValueId, axis: ValueId) -> Result<ValueId> {
    let shape = cx.b.shape(x);
    if shape.is_empty() {
        return malformed("an axis of a scalar");
    }
    let given = to_scalar(cx, axis)?;
    let place_of = wrapped(cx, given, shape.len())?;
    let rank = shape.len() as i64;
    let found = cx.b.integers(given)?.remove(0);
    let name = cx.b.operand_text(axis).unwrap_or_else(|| "axis".into());
    let text = format!("{name} is {V}; it must be between {} and {}", -rank, rank - 1);
    for (few, many) in [(Dim::from(-rank), found.clone()), (found.clone(), Dim::from(rank - 1))] {
        cx.b.require(Requirement::at_most(few, many).stated(text.clone(), &[&found]))?;
    }
    let (place, sizes) = (cx.b.iota(vec![Dim::from(shape.len())], 0)?, dims_vector(cx, &shape)?);
    let one = cx.b.scalar(DType::I64, 1.0);
    let mut parts = Vec::new();
    for function in [CompareFn::Lt, CompareFn::Eq, CompareFn::Gt] {
        let inside = cx.b.compare(function, place, place_of)?;
        let part = cx.b.select(inside, sizes, one)?;
        parts.push(cx.b.reduce(ReduceFn::Prod, part, &[0])?);
    }
    let parts = cx.b.concat(&parts, 0)?;
    let dims = cx.b.sizes(parts, &|_| None)?;
    cx.b.reshape(x, dims)
}
