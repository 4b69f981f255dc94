//! Products of integers that are bytes less a zero point, as products of the bytes.
//!
//! With `l = x - zl` and `r = y - zr`, the sum of the products over `k` terms is
//! `sum(x y) - zl sum(y) - zr sum(x) + k zl zr`: the contraction of the bytes, less the sums of the columns of `y`, which
//! are constants where `y` is, and of the rows of `x`. All of it wraps as the products of i32 do, so it is exact. `x` is made
//! u8, or i8 where the machine's products are of signed bytes, and `y` i8, as [`onnxc_ir::scalar::BinaryFn::Dot`] or
//! [`onnxc_ir::scalar::BinaryFn::DotSigned`] wants them: 128 more or less changes the zero point as well.

use super::range::{LOOKS, Range, range};
use crate::PackPolicy;
use crate::planes::Windows;
use crate::rewrite::{operation, producer, splat};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::panels::missing_steps;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, MapFn, Node, NodeId, Op, RhsLayout, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// An i32 tensor is `value - zero`.
pub(crate) struct Bytes {
    /// Of u8 or i8.
    pub value: ValueId,
    /// A scalar of i32; zero where there is none.
    pub zero: Option<ValueId>,
}

pub(super) fn in_bytes(b: &mut Builder, id: NodeId, policy: &PackPolicy) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, outputs, .. } =
        &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
    let shape = &b.ty(lhs).shape;
    let inner = &shape[batch + m..];
    let worth = policy.in_bytes(inner);
    // A size may be known of one operand only.
    let alike = *inner == b.ty(rhs).shape[batch..batch + k];
    let (Some(terms), true) = (product(inner).as_const(), worth && alike) else { return Ok(None) };
    if [b.dtype(outputs[0]), b.dtype(lhs)] != [DType::I32; 2] {
        return Ok(None);
    }
    let left = if policy.signed_bytes { DType::I8 } else { DType::U8 };
    let Some(x) = bytes(b, lhs, Some(left), &mut { LOOKS })? else { return Ok(None) };
    let Some(y) = bytes(b, rhs, Some(DType::I8), &mut { LOOKS })? else { return Ok(None) };
    let (x, y, k) = match by_planes(b, (&x, &y), [batch, m, k])? {
        Some((x, y)) => (x, y, k),
        None => (x, y, k),
    };
    let (x, y, k) = without_units(b, (x, y), [batch, m, k])?;
    let inner: Vec<i64> = b.shape(x.value)[batch + m..].iter().filter_map(Dim::as_const).collect();
    let missing = inner.last().and_then(|&last| missing_steps(&Dim::from(last), DOT_DEPTH)?.as_const());
    let missing = missing.unwrap_or(0);
    let (left, right) = match missing {
        0 => (x.value, y.value),
        _ => (
            reach_further(b, x.value, batch + m + k - 1, missing)?,
            fill_up(b, y.value, batch + k - 1, missing)?,
        ),
    };
    let mut sum = b.emit1(Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, &[left, right])?;
    if let Some(zero) = x.zero {
        sum = less_columns(b, sum, y.value, [batch, m, k], zero)?;
    }
    if let Some(zero) = y.zero {
        let rows = sums(b, x.value, batch + m..batch + m + k)?;
        let mut shape = b.shape(rows);
        shape.splice(batch + m.., [Dim::ONE]);
        let rows = b.reshape(rows, shape)?;
        // Of the row's own bytes less their zero point: both parts that the zero point of the columns has.
        let rows = match x.zero {
            Some(zero) => {
                let count = b.constant(Tensor::scalar(terms as i32));
                let all = b.binary(BinaryFn::Mul, zero, count)?;
                b.binary(BinaryFn::Sub, rows, all)?
            }
            None => rows,
        };
        let part = b.binary(BinaryFn::Mul, rows, zero)?;
        sum = b.binary(BinaryFn::Sub, sum, part)?;
    }
    Ok(Some(sum))
}

/// A product less what the zero point of its left-hand side adds: that times the sums of the columns of the right-hand side.
pub(crate) fn less_columns(
    b: &mut Builder,
    product: ValueId,
    rhs: ValueId,
    [batch, m, k]: [usize; 3],
    zero: ValueId,
) -> Result<ValueId> {
    let columns = sums(b, rhs, batch..batch + k)?;
    let mut shape = b.shape(columns);
    shape.splice(batch..batch + k, vec![Dim::ONE; m]);
    let columns = b.reshape(columns, shape)?;
    let part = b.binary(BinaryFn::Mul, columns, zero)?;
    b.binary(BinaryFn::Sub, product, part)
}

/// Windows of an image with few channels, which do not fill words: the channels as planes, so that words are neighbours
/// within a row of the image. Also spares the image a transposition where it comes in planes.
fn by_planes(b: &mut Builder, (x, y): (&Bytes, &Bytes), sizes: [usize; 3]) -> Result<Option<(Bytes, Bytes)>> {
    let windows = Windows::of(b.graph, x.value, sizes, DOT_DEPTH as i64 - 1);
    let Some(windows) = windows.filter(Windows::has_neighbours) else { return Ok(None) };
    let (of_x, of_y) = windows.of_planes(b, y.value)?;
    Ok(Some((Bytes { value: of_x, ..*x }, Bytes { value: of_y, ..*y })))
}

/// Operands without the inner axes of one element behind the last of more: words are made along that one.
fn without_units(
    b: &mut Builder,
    (x, y): (Bytes, Bytes),
    [batch, m, k]: [usize; 3],
) -> Result<(Bytes, Bytes, usize)> {
    let (mut of_x, mut of_y) = (b.shape(x.value), b.shape(y.value));
    let inner = &of_x[batch + m..];
    let units = inner[1..].iter().rev().take_while(|dim| **dim == Dim::ONE).count();
    if units == 0 {
        return Ok((x, y, k));
    }
    of_x.truncate(of_x.len() - units);
    of_y.drain(batch + k - units..batch + k);
    let (left, right) = (b.reshape(x.value, of_x)?, b.reshape(y.value, of_y)?);
    Ok((Bytes { value: left, ..x }, Bytes { value: right, ..y }, k - units))
}

/// Sums of bytes along axes, which stay with size 1.
fn sums(b: &mut Builder, value: ValueId, axes: std::ops::Range<usize>) -> Result<ValueId> {
    let wide = b.cast(value, DType::I32)?;
    b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: axes.collect() }, &[wide])
}

/// An i32 tensor as bytes of type `wanted`, or of either, moved as it is, and what they are more than it.
pub(crate) fn bytes(
    b: &mut Builder,
    value: ValueId,
    wanted: Option<DType>,
    looks: &mut usize,
) -> Result<Option<Bytes>> {
    if *looks == 0 {
        return Ok(None);
    }
    *looks -= 1;
    let Some((op, inputs)) = operation(b.graph, value) else {
        return match b.graph.constant_data(value) {
            Some(_) => numbers(b, value, wanted, looks),
            None => Ok(None),
        };
    };
    let (op, inputs) = (op.clone(), inputs.to_vec());
    match op {
        Op::Map(MapFn::Cast { .. }) => of_type(b, inputs[0], wanted),
        Op::Map(MapFn::Binary(BinaryFn::Sub)) if b.shape(inputs[0]) == b.shape(value) => {
            if b.ty(inputs[1]).elements() != Dim::ONE {
                return Ok(None);
            }
            let Some(x) = bytes(b, inputs[0], wanted, looks)? else { return Ok(None) };
            let zero = b.reshape(inputs[1], vec![])?;
            let zero = more(b, x.zero, zero)?;
            Ok(Some(Bytes { zero, ..x }))
        }
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Window { .. } => {
            let Some(x) = bytes(b, inputs[0], wanted, looks)? else { return Ok(None) };
            Ok(Some(Bytes { value: b.emit1(op, &[x.value])?, ..x }))
        }
        Op::Pad { .. } => {
            let Some(x) = bytes(b, inputs[0], wanted, looks)? else { return Ok(None) };
            let fill = match x.zero {
                Some(zero) => more(b, Some(inputs[1]), zero)?.unwrap_or(inputs[1]),
                None => inputs[1],
            };
            let own = b.dtype(x.value);
            let all = Range::of(own);
            let fits =
                range(b.graph, fill, looks).is_some_and(|fill| all.is_some_and(|all| all.or(fill) == all));
            if !fits {
                return Ok(None);
            }
            let fill = b.cast(fill, own)?;
            Ok(Some(Bytes { value: b.emit1(op, &[x.value, fill])?, ..x }))
        }
        _ => Ok(None),
    }
}

/// A constant of few elements, by its numbers.
fn numbers(
    b: &mut Builder,
    value: ValueId,
    wanted: Option<DType>,
    looks: &mut usize,
) -> Result<Option<Bytes>> {
    let Some(known) = range(b.graph, value, looks) else { return Ok(None) };
    let fits = |dtype| Range::of(dtype).filter(|all| all.or(known) == *all).map(|_| dtype);
    let Some(dtype) = wanted.and_then(fits).or(fits(DType::U8)).or(fits(DType::I8)) else { return Ok(None) };
    let narrow = b.cast(value, dtype)?;
    of_type(b, narrow, wanted)
}

/// The value as bytes of the wanted type, or of either type.
fn of_type(b: &mut Builder, value: ValueId, wanted: Option<DType>) -> Result<Option<Bytes>> {
    let own = b.dtype(value);
    let wanted = wanted.unwrap_or(own);
    let shift = match (own, wanted) {
        (DType::I8 | DType::U8, _) if own == wanted => return Ok(Some(Bytes { value, zero: None })),
        (DType::I8, DType::U8) => 128,
        (DType::U8, DType::I8) => -128,
        _ => return Ok(None),
    };
    let by = b.constant(Tensor::scalar(shift));
    let value = match shifted_before(b, value, wanted, (shift, by))? {
        Some(value) => value,
        None => shifted(b, value, wanted, by)?,
    };
    Ok(Some(Bytes { value, zero: Some(by) }))
}

/// Bytes as those of the other type, all greater by a constant of i32.
fn shifted(b: &mut Builder, value: ValueId, wanted: DType, by: ValueId) -> Result<ValueId> {
    let wide = b.cast(value, DType::I32)?;
    let shifted = b.binary(BinaryFn::Add, wide, by)?;
    b.cast(shifted, wanted)
}

/// Likewise by a number that is known, where floats are quantized to them, before they are padded or moved.
fn shifted_before(
    b: &mut Builder,
    value: ValueId,
    wanted: DType,
    (shift, by): (i32, ValueId),
) -> Result<Option<ValueId>> {
    let Some((op, inputs)) = operation(b.graph, value) else { return Ok(None) };
    let (op, mut inputs) = (op.clone(), inputs.to_vec());
    match op {
        Op::Map(MapFn::Cast { .. }) => match Quantized::of(b.graph, value) {
            Some(quantized) => quantized.shifted_to(b, wanted, f64::from(shift)),
            None => Ok(None),
        },
        Op::Pad { .. } | Op::Transpose { .. } | Op::Reshape { .. } => {
            let Some(inner) = shifted_before(b, inputs[0], wanted, (shift, by))? else { return Ok(None) };
            inputs[0] = inner;
            if let Some(fill) = inputs.get_mut(1) {
                *fill = shifted(b, *fill, wanted, by)?;
            }
            b.emit1(op, &inputs).map(Some)
        }
        _ => Ok(None),
    }
}

/// Floats that are quantized to bytes: `min(max(rounded + zero, least), most)`, where `rounded` is a whole number.
pub(super) struct Quantized {
    pub rounded: ValueId,
    pub zero: f64,
}

impl Quantized {
    pub(super) fn of(graph: &Graph, value: ValueId) -> Option<Quantized> {
        let range = Range::of(graph.ty(value).dtype)?;
        let Some((Op::Map(MapFn::Cast { .. }), &[clamped])) = operation(graph, value) else { return None };
        if graph.ty(clamped).dtype != DType::F32 {
            return None;
        }
        let above = with_number(graph, clamped, BinaryFn::Min, range.most as f64)?;
        let sum = with_number(graph, above, BinaryFn::Max, range.least as f64)?;
        let (rounded, zero) = match operation(graph, sum) {
            Some((Op::Map(MapFn::Binary(BinaryFn::Add)), &[x, c])) => match splat(graph, c) {
                Some(zero) if zero.fract() == 0.0 => (x, zero),
                _ => return None,
            },
            _ => (sum, 0.0),
        };
        let is_round = matches!(operation(graph, rounded), Some((Op::Map(MapFn::Unary(UnaryFn::Round)), _)));
        is_round.then_some(Quantized { rounded, zero })
    }

    /// Bytes of type `to` that are all greater by `shift`: the bounds are, too, so that nothing is shifted after. What NaN becomes
    /// is not specified.
    pub(super) fn shifted_to(&self, b: &mut Builder, to: DType, shift: f64) -> Result<Option<ValueId>> {
        let Some(range) = Range::of(to) else { return Ok(None) };
        let mut moved = match self.zero + shift {
            0.0 => self.rounded,
            zero => b.binary_scalar(BinaryFn::Add, self.rounded, zero)?,
        };
        moved = b.binary_scalar(BinaryFn::Max, moved, range.least as f64)?;
        moved = b.binary_scalar(BinaryFn::Min, moved, range.most as f64)?;
        b.cast(moved, to).map(Some)
    }
}

/// `x`, where a value is `function(x, number)`.
fn with_number(graph: &Graph, value: ValueId, function: BinaryFn, number: f64) -> Option<ValueId> {
    match operation(graph, value) {
        Some((Op::Map(MapFn::Binary(own)), &[x, bound])) if *own == function => {
            (splat(graph, bound) == Some(number)).then_some(x)
        }
        _ => None,
    }
}

/// The sum of two scalars, where there are two and none is zero.
fn more(b: &mut Builder, a: Option<ValueId>, c: ValueId) -> Result<Option<ValueId>> {
    let is_zero = |b: &Builder, value| splat(b.graph, value) == Some(0.0);
    match a {
        Some(a) if !is_zero(b, a) => match is_zero(b, c) {
            true => Ok(Some(a)),
            false => b.binary(BinaryFn::Add, a, c).map(Some),
        },
        _ if is_zero(b, c) => Ok(None),
        _ => Ok(Some(c)),
    }
}

/// `missing` more elements behind those of an axis, with any values: the other operand has zeros there. They go into the
/// image that windows are views of, since the windows together are much larger: behind its channels, or behind its rows,
/// which longer windows then reach.
fn reach_further(b: &mut Builder, value: ValueId, axis: usize, missing: i64) -> Result<ValueId> {
    if let Some(node) = producer(b.graph, value) {
        let (mut op, inputs) = (node.op.clone(), node.inputs.clone());
        match &mut op {
            Op::Window { first, kernel, .. } if axis >= *first + 2 * kernel.len() => {
                let image = reach_further(b, inputs[0], axis - kernel.len(), missing)?;
                return b.emit1(op, &[image]);
            }
            Op::Window { first, kernel, dilations, .. } if axis >= *first + kernel.len() => {
                let at = axis - *first - kernel.len();
                let image = reach_further(b, inputs[0], *first + at, missing * dilations[at] as i64)?;
                kernel[at] += missing as usize;
                return b.emit1(op, &[image]);
            }
            Op::Transpose { perm } => {
                let image = reach_further(b, inputs[0], perm[axis], missing)?;
                return b.emit1(op, &[image]);
            }
            Op::Pad { hi, .. } => {
                hi[axis] = hi[axis].clone() + Dim::from(missing);
                return b.emit1(op, &inputs);
            }
            _ => {}
        }
    }
    fill_up(b, value, axis, missing)
}

/// `missing` zeros behind the elements of an axis.
fn fill_up(b: &mut Builder, value: ValueId, axis: usize, missing: i64) -> Result<ValueId> {
    let fill = b.scalar(b.dtype(value), 0.0);
    let mut hi = vec![Dim::ZERO; b.rank(value)];
    hi[axis] = Dim::from(missing);
    b.pad(value, fill, vec![Dim::ZERO; b.rank(value)], hi)
}
