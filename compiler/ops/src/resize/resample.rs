//! One axis after the other at its new positions: coordinates in the input, the taps there and their weights.

use super::{Axis, Coordinates, Method, Mode, Nearest, float_dim, malformed};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{F32, F64, I64};
use onnxc_ir::graph::{Dim, Op, RhsLayout, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Resamples axis after axis. Interpolation of integers and half precision is computed in f32, that of complex numbers in their
/// parts.
pub(super) fn resample(b: &mut Builder<'_>, x: ValueId, axes: Vec<Axis>, method: &Method) -> Result<ValueId> {
    let Some((real, imaginary)) = b.parts(x)? else { return resample_reals(b, x, &axes, method) };
    // What lies outside is a real number.
    let of_imaginary = Method { extrapolation: 0.0, ..*method };
    let real = resample_reals(b, real, &axes, method)?;
    let imaginary = resample_reals(b, imaginary, &axes, &of_imaginary)?;
    b.complex(b.dtype(x), real, imaginary)
}

fn resample_reals(b: &mut Builder<'_>, x: ValueId, axes: &[Axis], method: &Method) -> Result<ValueId> {
    let dtype = b.dtype(x);
    if axes.iter().any(|axis| axis.size.as_const() == Some(0)) {
        return malformed(format!("resampling of the empty {}", b.ty(x)));
    }
    let crops = method.coordinates == Coordinates::TfCropAndResize;
    let interpolates = method.mode != Mode::Nearest;
    let mut moved: Vec<&Axis> =
        axes.iter().filter(|axis| crops || axis.scale != Some(1.0) || axis.out != axis.size).collect();
    // What shrinks comes first: the others then have less to do. Of what grows, the innermost: along that axis elements are
    // gathered one by one, along all others in rows.
    moved.sort_by_key(|axis| match axis.scale {
        Some(scale) if scale < 1.0 => (0, axis.axis),
        _ => (1, usize::MAX - axis.axis),
    });
    let mut y = x;
    if interpolates && dtype != F64 {
        y = b.cast(y, F32)?;
    }
    let mut outside = Vec::new();
    for axis in moved {
        if let Some(repeats) = repeats(axis, method) {
            y = repeat(b, y, axis, repeats)?;
            continue;
        }
        let position = coordinates(b, axis, method)?;
        if crops {
            outside.push((axis.axis, beyond(b, axis, position)?));
        }
        y = match interpolates {
            false => {
                let index = nearest(b, axis, method, position)?;
                b.emit1(Op::Gather { axis: axis.axis }, &[y, index])?
            }
            true if method.antialias && axis.scale.is_none() => filtered(b, y, axis, method, position)?,
            true => interpolate(b, y, axis, method, position)?,
        };
    }
    for (axis, mask) in outside {
        let mut shape = vec![Dim::ONE; b.rank(y)];
        shape[axis] = b.shape(mask)[0].clone();
        let mask = b.reshape(mask, shape)?;
        let fill = b.scalar(b.dtype(y), method.extrapolation);
        y = b.select(mask, fill, y)?;
    }
    b.cast(y, dtype)
}

/// The factor, where every element is just repeated: enlarging by an integer, to the nearest.
fn repeats(axis: &Axis, method: &Method) -> Option<usize> {
    let scale = axis.scale.filter(|scale| method.mode == Mode::Nearest && scale.fract() == 0.0)?;
    if axis.out != axis.size.clone() * Dim::from(scale as i64) {
        return None;
    }
    let shift = match method.coordinates {
        Coordinates::HalfPixel | Coordinates::HalfPixelSymmetric => 0.5 / scale - 0.5,
        // A result of one element is a special case of this mode.
        Coordinates::PytorchHalfPixel if scale > 1.0 => 0.5 / scale - 0.5,
        Coordinates::TfHalfPixelForNn => 0.5 / scale,
        Coordinates::Asymmetric => 0.0,
        _ => return None,
    };
    // Positions ascend: what holds for the first and the last repetition holds between.
    let all_first = [0.0, scale - 1.0].into_iter().all(|at| {
        let position = at / scale + shift;
        let index = match method.nearest {
            None | Some(Nearest::Floor) => position.floor(),
            Some(Nearest::Ceil) => position.ceil(),
            Some(Nearest::RoundPreferFloor) => (position - 0.5).ceil(),
            Some(Nearest::RoundPreferCeil) => (position + 0.5).floor(),
        };
        index == 0.0
    });
    all_first.then_some(scale as usize)
}

fn repeat(b: &mut Builder<'_>, x: ValueId, axis: &Axis, count: usize) -> Result<ValueId> {
    let mut shape = b.shape(x);
    let at = axis.axis;
    let wide = b.unsqueeze(x, &[at + 1])?;
    let mut expanded = b.shape(wide);
    expanded[at + 1] = Dim::from(count);
    let wide = b.expand(wide, expanded)?;
    shape[at] = axis.out.clone();
    b.reshape(wide, shape)
}

/// Largest output extent whose positions are tabulated.
const MAX_TABLE: i64 = 1 << 20;

/// The output positions `0, 1, ..` as f32.
fn positions(b: &mut Builder<'_>, out: &Dim) -> Result<ValueId> {
    if let Some(count) = out.as_const().filter(|count| (0..=MAX_TABLE).contains(count)) {
        let values: Vec<f32> = (0..count).map(|at| at as f32).collect();
        return Ok(b.constant(Tensor::from_slice(&[values.len()], &values)));
    }
    let index = b.iota(vec![out.clone()], 0)?;
    b.cast(index, F32)
}

/// Input coordinate of every output position, f32 `[out]`.
fn coordinates(b: &mut Builder<'_>, axis: &Axis, method: &Method) -> Result<ValueId> {
    let at = positions(b, &axis.out)?;
    let half_pixel = |b: &mut Builder<'_>| {
        let centre = b.binary_scalar(BinaryFn::Add, at, 0.5)?;
        let scaled = b.binary(BinaryFn::Div, centre, axis.scale_value)?;
        b.binary_scalar(BinaryFn::Sub, scaled, 0.5)
    };
    match method.coordinates {
        Coordinates::HalfPixel => half_pixel(b),
        Coordinates::PytorchHalfPixel => {
            let position = half_pixel(b)?;
            alone_at(b, axis, position, None)
        }
        Coordinates::HalfPixelSymmetric => {
            let position = half_pixel(b)?;
            // The result's true extent against the scaled one, spread evenly on both sides.
            let (out, size) = (float_dim(b, &axis.out)?, float_dim(b, &axis.size)?);
            let ideal = b.binary(BinaryFn::Mul, size, axis.scale_value)?;
            let ratio = b.binary(BinaryFn::Div, out, ideal)?;
            let one = b.scalar(F32, 1.0);
            let rest = b.binary(BinaryFn::Sub, one, ratio)?;
            let centre = b.binary_scalar(BinaryFn::Mul, size, 0.5)?;
            let offset = b.binary(BinaryFn::Mul, centre, rest)?;
            b.binary(BinaryFn::Add, position, offset)
        }
        Coordinates::Asymmetric => b.binary(BinaryFn::Div, at, axis.scale_value),
        Coordinates::TfHalfPixelForNn => {
            let centre = b.binary_scalar(BinaryFn::Add, at, 0.5)?;
            b.binary(BinaryFn::Div, centre, axis.scale_value)
        }
        Coordinates::AlignCorners => {
            let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
            let steps = if scales_exactly(axis) {
                float_dim(b, &(axis.out.clone() - Dim::ONE))?
            } else {
                // The extent that the scale asks for, not rounded to whole elements: so ONNX's own tests.
                let size = float_dim(b, &axis.size)?;
                let extent = b.binary(BinaryFn::Mul, size, axis.scale_value)?;
                b.binary_scalar(BinaryFn::Sub, extent, 1.0)?
            };
            let scaled = b.binary(BinaryFn::Mul, at, last)?;
            let position = b.binary(BinaryFn::Div, scaled, steps)?;
            alone_at(b, axis, position, None)
        }
        Coordinates::TfCropAndResize => {
            let Some((start, end)) = axis.roi else { return malformed("roi is missing".to_string()) };
            let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
            let steps = float_dim(b, &(axis.out.clone() - Dim::ONE))?;
            let extent = b.binary(BinaryFn::Sub, end, start)?;
            let extent = b.binary(BinaryFn::Mul, extent, last)?;
            let step = b.binary(BinaryFn::Div, extent, steps)?;
            let first = b.binary(BinaryFn::Mul, start, last)?;
            let walked = b.binary(BinaryFn::Mul, at, step)?;
            let position = b.binary(BinaryFn::Add, first, walked)?;
            let both = b.binary(BinaryFn::Add, start, end)?;
            let middle = b.binary_scalar(BinaryFn::Mul, both, 0.5)?;
            let middle = b.binary(BinaryFn::Mul, middle, last)?;
            alone_at(b, axis, position, Some(middle))
        }
    }
}

/// Whether `size * scale` is a whole number of elements.
fn scales_exactly(axis: &Axis) -> bool {
    match (axis.scale, axis.size.as_const(), axis.out.as_const()) {
        (None, _, _) => !axis.late,
        (Some(scale), Some(size), Some(out)) => (size as f32 * scale - out as f32).abs() < 1e-3,
        (Some(scale), _, _) => scale.fract() == 0.0,
    }
}

/// `position`, or for a result of one element `alone` (absent: 0).
fn alone_at(b: &mut Builder<'_>, axis: &Axis, position: ValueId, alone: Option<ValueId>) -> Result<ValueId> {
    let alone = alone.unwrap_or_else(|| b.scalar(F32, 0.0));
    match axis.out.as_const() {
        Some(1) => b.expand(alone, vec![Dim::ONE]),
        Some(_) => Ok(position),
        None => {
            let (out, one) = (b.dim_scalar(&axis.out)?, b.scalar(I64, 1.0));
            let is_alone = b.compare(CompareFn::Eq, out, one)?;
            b.select(is_alone, alone, position)
        }
    }
}

/// Whether a position is outside the input.
fn beyond(b: &mut Builder<'_>, axis: &Axis, position: ValueId) -> Result<ValueId> {
    let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
    let zero = b.scalar(F32, 0.0);
    let below = b.compare(CompareFn::Lt, position, zero)?;
    let above = b.compare(CompareFn::Gt, position, last)?;
    b.binary(BinaryFn::Or, below, above)
}

/// The whole number `x`, f32, as an index held within `[0, size - 1]`. Held there as an integer too, where no size is
/// rounded: a gather then needs no more checks.
fn clamped(b: &mut Builder<'_>, axis: &Axis, x: ValueId) -> Result<ValueId> {
    let last = axis.size.clone() - Dim::ONE;
    let most = float_dim(b, &last)?;
    let low = b.binary_scalar(BinaryFn::Max, x, 0.0)?;
    let inside = b.binary(BinaryFn::Min, low, most)?;
    let index = b.cast(inside, I64)?;
    let low = b.binary_scalar(BinaryFn::Max, index, 0.0)?;
    let last = b.dim_scalar(&last)?;
    b.binary(BinaryFn::Min, low, last)
}

fn nearest(b: &mut Builder<'_>, axis: &Axis, method: &Method, position: ValueId) -> Result<ValueId> {
    if method.nearest.is_none() && axis.late {
        // Only the run shows which of the two it is.
        let one = b.scalar(F32, 1.0);
        let shrinks = b.compare(CompareFn::Lt, axis.scale_value, one)?;
        let (up, down) = (b.unary(UnaryFn::Ceil, position)?, b.unary(UnaryFn::Floor, position)?);
        let rounded = b.select(shrinks, up, down)?;
        return clamped(b, axis, rounded);
    }
    let shrinks = axis.scale.is_some_and(|scale| scale < 1.0);
    let rounding = method.nearest.unwrap_or(if shrinks { Nearest::Ceil } else { Nearest::Floor });
    let rounded = match rounding {
        Nearest::Floor => b.unary(UnaryFn::Floor, position)?,
        Nearest::Ceil => b.unary(UnaryFn::Ceil, position)?,
        Nearest::RoundPreferFloor => {
            let shifted = b.binary_scalar(BinaryFn::Sub, position, 0.5)?;
            b.unary(UnaryFn::Ceil, shifted)?
        }
        Nearest::RoundPreferCeil => {
            let shifted = b.binary_scalar(BinaryFn::Add, position, 0.5)?;
            b.unary(UnaryFn::Floor, shifted)?
        }
    };
    clamped(b, axis, rounded)
}

/// The sum over taps of gathered elements times weights, along one axis.
fn interpolate(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let mut sum = None;
    let mut shape = vec![Dim::ONE; b.rank(x)];
    shape[axis.axis] = axis.out.clone();
    for (index, weight) in taps(b, axis, method, position)? {
        let taken = b.emit1(Op::Gather { axis: axis.axis }, &[x, index])?;
        let weight = b.cast(weight, dtype)?;
        let weight = b.reshape(weight, shape.clone())?;
        let product = b.binary(BinaryFn::Mul, taken, weight)?;
        sum = Some(match sum {
            None => product,
            Some(sum) => b.binary(BinaryFn::Add, sum, product)?,
        });
    }
    sum.ok_or_else(|| Error::internal(Stage::Infer, "interpolation without taps"))
}

/// Antialiasing along an axis whose scale only the run shows, and with it the number of taps: a product with a matrix
/// of weights over the axis and what the filter reaches beyond its ends.
fn filtered(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<ValueId> {
    let (dtype, rank, at) = (b.dtype(x), b.rank(x), axis.axis);
    let filter_scale = b.binary_scalar(BinaryFn::Min, axis.scale_value, 1.0)?;
    let most = b.scalar(F32, support(method));
    let reach = b.binary(BinaryFn::Div, most, filter_scale)?;
    let reach = b.unary(UnaryFn::Ceil, reach)?;
    // An axis that shrinks to size 0 has no taps.
    let reach = b.binary_scalar(BinaryFn::Min, reach, MAX_TAPS)?;
    let reach = b.cast(reach, I64)?;
    let reach = b.scalar_sizes(&[reach], &|_| None)?.remove(0);
    let extent = axis.size.clone() + reach.clone() * Dim::from(2i64);
    let (index, before) = (b.iota(vec![extent.clone()], 0)?, b.dim_scalar(&reach)?);
    let index = b.binary(BinaryFn::Sub, index, before)?;
    let place = b.cast(index, F32)?;
    let place = b.reshape(place, vec![extent, Dim::ONE])?;
    let position = b.reshape(position, vec![Dim::ONE, axis.out.clone()])?;
    let distance = b.binary(BinaryFn::Sub, place, position)?;
    let distance = b.unary(UnaryFn::Abs, distance)?;
    let distance = b.binary(BinaryFn::Mul, distance, filter_scale)?;
    let weight = weight_of(b, axis, method, distance, place)?;
    let total = b.reduce(ReduceFn::Sum, weight, &[0])?;
    let weight = b.binary(BinaryFn::Div, weight, total)?;
    let weight = b.cast(weight, dtype)?;
    let last = b.dim_scalar(&(axis.size.clone() - Dim::ONE))?;
    let inside = b.binary_scalar(BinaryFn::Max, index, 0.0)?;
    let inside = b.binary(BinaryFn::Min, inside, last)?;
    let wide = b.emit1(Op::Gather { axis: at }, &[x, inside])?;
    let mut perm: Vec<usize> = (0..rank).filter(|&axis| axis != at).collect();
    perm.push(at);
    let rows = b.transpose(wide, &perm)?;
    let op = Op::Contract { batch: 0, m: rank - 1, k: 1, rhs: RhsLayout::Plain };
    let product = b.emit1(op, &[rows, weight])?;
    let back: Vec<usize> =
        (0..rank).map(|axis| perm.iter().position(|&own| own == axis).unwrap_or(0)).collect();
    b.transpose(product, &back)
}

/// Most taps of an antialiasing filter.
const MAX_TAPS: f64 = 4096.0;

/// Indices (i64) and weights (f32) of the elements around each position, both `[out]`.
fn taps(
    b: &mut Builder<'_>,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<Vec<(ValueId, ValueId)>> {
    let filter_scale = match axis.scale.filter(|_| method.antialias) {
        Some(scale) => f64::from(scale).min(1.0),
        None => 1.0,
    };
    // Infinite for an axis that shrinks to nothing.
    let reach = (support(method) / filter_scale).ceil();
    if 2.0 * reach > MAX_TAPS {
        return Err(Error::unsupported(Stage::Infer, format!("a filter of {} taps", 2.0 * reach)));
    }
    let (first, last) = (1 - reach as i64, reach as i64);
    let floor = b.unary(UnaryFn::Floor, position)?;
    let ratio = b.binary(BinaryFn::Sub, position, floor)?;
    let mut found = Vec::new();
    let mut total: Option<ValueId> = None;
    for offset in first..=last {
        let index = b.binary_scalar(BinaryFn::Add, floor, offset as f64)?;
        let distance = b.binary_scalar(BinaryFn::Sub, ratio, offset as f64)?;
        let distance = b.unary(UnaryFn::Abs, distance)?;
        let distance = b.binary_scalar(BinaryFn::Mul, distance, filter_scale)?;
        let weight = weight_of(b, axis, method, distance, index)?;
        total = Some(match total {
            None => weight,
            Some(total) => b.binary(BinaryFn::Add, total, weight)?,
        });
        found.push((clamped(b, axis, index)?, weight));
    }
    if let (true, Some(total)) = (method.exclude_outside || method.antialias, total) {
        for (_, weight) in &mut found {
            *weight = b.binary(BinaryFn::Div, *weight, total)?;
        }
    }
    Ok(found)
}

/// The distance from which on weights are zero.
fn support(method: &Method) -> f64 {
    if method.mode == Mode::Cubic { 2.0 } else { 1.0 }
}

/// Weight of the element at `place`, by its distance from a position.
fn weight_of(
    b: &mut Builder<'_>,
    axis: &Axis,
    method: &Method,
    distance: ValueId,
    place: ValueId,
) -> Result<ValueId> {
    let weight = match method.mode {
        Mode::Cubic => cubic_kernel(b, distance, method.cubic)?,
        _ => tent(b, distance)?,
    };
    if !method.exclude_outside {
        return Ok(weight);
    }
    let outside = beyond(b, axis, place)?;
    let zero = b.scalar(F32, 0.0);
    b.select(outside, zero, weight)
}

/// `max(1 - d, 0)`
fn tent(b: &mut Builder<'_>, distance: ValueId) -> Result<ValueId> {
    let one = b.scalar(F32, 1.0);
    let rest = b.binary(BinaryFn::Sub, one, distance)?;
    b.binary_scalar(BinaryFn::Max, rest, 0.0)
}

/// Keys' cubic convolution kernel at distance `d >= 0`:
/// `(a+2)d^3 - (a+3)d^2 + 1` up to 1, `a d^3 - 5a d^2 + 8a d - 4a` up to 2, 0 beyond.
fn cubic_kernel(b: &mut Builder<'_>, d: ValueId, a: f64) -> Result<ValueId> {
    let polynomial = |b: &mut Builder<'_>, coefficients: [f64; 4]| {
        let mut sum = b.scalar(F32, coefficients[0]);
        for coefficient in &coefficients[1..] {
            sum = b.binary(BinaryFn::Mul, sum, d)?;
            sum = b.binary_scalar(BinaryFn::Add, sum, *coefficient)?;
        }
        Ok::<ValueId, Error>(sum)
    };
    let near = polynomial(b, [a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = polynomial(b, [a, -5.0 * a, 8.0 * a, -4.0 * a])?;
    let (zero, one, two) = (b.scalar(F32, 0.0), b.scalar(F32, 1.0), b.scalar(F32, 2.0));
    let is_near = b.compare(CompareFn::Le, d, one)?;
    let is_far = b.compare(CompareFn::Lt, d, two)?;
    let far = b.select(is_far, far, zero)?;
    b.select(is_near, near, far)
}
