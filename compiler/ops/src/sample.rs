//! Samples between the points of a grid: what GridSample, RoiAlign and DeformConv share.
//!
//! The image becomes a table of rows, one per point with all its channels, and a last row of zeros for what lies
//! outside. A sample is the sum of a few rows, its taps, each times a weight. Places and weights of the taps are
//! computed once per sample for all channels, which are then the inner loop.

use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Op, Tensor};

/// Taps per axis that samples between points have, and what outside points count for.
pub struct Taps {
    /// Where each tap lies along the axis, i64 `[p.., t]`; may lie outside.
    pub index: ValueId,
    /// Its weight, `[p.., t]`; `None` for a single tap of weight 1.
    pub weight: Option<ValueId>,
}

/// The type in which values of `dtype` are interpolated.
pub fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64 => DType::F64,
        _ => DType::F32,
    }
}

/// A dim as a scalar of `dtype`.
pub fn dim_as(b: &mut Builder<'_>, dim: &Dim, dtype: DType) -> Result<ValueId> {
    match dim.as_const() {
        Some(value) => Ok(b.scalar(dtype, value as f64)),
        None => {
            let scalar = b.dim_scalar(dim)?;
            b.cast(scalar, dtype)
        }
    }
}

/// A dim as an i64 scalar.
pub fn constant_dim(b: &mut Builder<'_>, dim: &Dim) -> Result<ValueId> {
    match dim.as_const() {
        Some(value) => Ok(b.constant(Tensor::scalar(value))),
        None => b.dim_scalar(dim),
    }
}

/// `max(low, min(x, high))`
pub fn clamp(b: &mut Builder<'_>, x: ValueId, low: ValueId, high: ValueId) -> Result<ValueId> {
    let x = b.binary(BinaryFn::Min, x, high)?;
    b.binary(BinaryFn::Max, x, low)
}

/// `x` with an axis of size 1 at its end.
fn with_last_axis(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let rank = b.rank(x);
    b.unsqueeze(x, &[rank])
}

/// The whole number below each coordinate, as i64, and what is left. Coordinates are cut to `[-reach, size + reach]`,
/// beyond which nothing changes, so that they fit an integer; one that is NaN lies outside.
pub fn split_coordinate(
    b: &mut Builder<'_>,
    x: ValueId,
    size: &Dim,
    reach: f64,
) -> Result<(ValueId, ValueId)> {
    let dtype = b.dtype(x);
    let nan = b.unary(UnaryFn::IsNan, x)?;
    let (low, high) = (b.scalar(dtype, -reach), dim_as(b, &(size.clone() + Dim::from(reach as i64)), dtype)?);
    let x = b.select(nan, low, x)?;
    let x = clamp(b, x, low, high)?;
    let floor = b.unary(UnaryFn::Floor, x)?;
    let rest = b.binary(BinaryFn::Sub, x, floor)?;
    Ok((b.cast(floor, DType::I64)?, rest))
}

/// Two taps with weights `1 - t` and `t`.
pub fn linear_taps(b: &mut Builder<'_>, floor: ValueId, t: ValueId) -> Result<Taps> {
    let (floor, t) = (with_last_axis(b, floor)?, with_last_axis(b, t)?);
    let step = b.i64s(&[0, 1]);
    let index = b.binary(BinaryFn::Add, floor, step)?;
    let weight = polynomial(b, t, &[[1.0, 0.0], [-1.0, 1.0]])?;
    Ok(Taps { index, weight: Some(weight) })
}

/// Four taps with the weights of Keys' cubic convolution with `a = -0.75`.
pub fn cubic_taps(b: &mut Builder<'_>, floor: ValueId, t: ValueId) -> Result<Taps> {
    const A: f64 = -0.75;
    let (floor, t) = (with_last_axis(b, floor)?, with_last_axis(b, t)?);
    let step = b.i64s(&[-1, 0, 1, 2]);
    let index = b.binary(BinaryFn::Add, floor, step)?;
    let coefficients = [
        [0.0, 1.0, 0.0, 0.0],
        [A, 0.0, -A, 0.0],
        [-2.0 * A, -(A + 3.0), 2.0 * A + 3.0, A],
        [A, A + 2.0, -(A + 2.0), -A],
    ];
    let weight = polynomial(b, t, &coefficients)?;
    Ok(Taps { index, weight: Some(weight) })
}

/// `sum over i of coefficients[i][k] * t^i` for each tap `k`; `t: [p.., 1]`.
fn polynomial<const N: usize>(b: &mut Builder<'_>, t: ValueId, coefficients: &[[f64; N]]) -> Result<ValueId> {
    let dtype = b.dtype(t);
    let mut sum: Option<ValueId> = None;
    for row in coefficients.iter().rev() {
        let wide = b.constant(Tensor::from_slice(&[N], row));
        let row = b.cast(wide, dtype)?;
        sum = Some(match sum {
            None => row,
            Some(sum) => {
                let product = b.binary(BinaryFn::Mul, sum, t)?;
                b.binary(BinaryFn::Add, product, row)?
            }
        });
    }
    sum.map_or_else(|| malformed("a polynomial of no terms"), Ok)
}

/// Rows that taps are read from.
pub struct Table {
    /// `[rows + 1, channels]`, the last row all zero.
    pub rows: ValueId,
    /// Its number.
    pub zero: Dim,
}

impl Table {
    /// The rows of `x: [.., channels]`.
    pub fn new(b: &mut Builder<'_>, x: ValueId) -> Result<Table> {
        let shape = b.shape(x);
        let Some((channels, lead)) = shape.split_last() else { return malformed("rows of a scalar") };
        let count = onnxc_ir::graph::dim::product(lead);
        let flat = b.reshape(x, vec![count.clone(), channels.clone()])?;
        let fill = b.scalar(b.dtype(x), 0.0);
        let rows = b.pad(flat, fill, vec![Dim::ZERO; 2], vec![Dim::ONE, Dim::ZERO])?;
        Ok(Table { rows, zero: count })
    }

    /// The rows at `index`, i64 of any shape: `[index.., channels]`. A row is picked as a whole, regardless of the layouts that the
    /// neighbours prefer: its channels share the work on the index, and the cache line.
    pub fn take(&self, b: &mut Builder<'_>, index: ValueId) -> Result<ValueId> {
        let index = with_last_axis(b, index)?;
        b.emit1(Op::GatherNd { batch: 0 }, &[self.rows, index])
    }

    /// `[index.., t] -> [index.., channels]`: the taps reduced, each times its weight.
    pub fn reduce(&self, b: &mut Builder<'_>, taps: &Product, function: ReduceFn) -> Result<ValueId> {
        let mut values = self.take(b, taps.row)?;
        let axis = b.rank(taps.row) - 1;
        if let Some(weight) = taps.weight {
            let weight = b.cast(weight, b.dtype(values))?;
            let weight = with_last_axis(b, weight)?;
            values = b.binary(BinaryFn::Mul, values, weight)?;
        }
        let sum = b.reduce(function, values, &[axis])?;
        b.squeeze(sum, &[axis])
    }
}

/// Taps over all axes of a grid.
pub struct Product {
    /// Row of each tap, i64 `[p.., t]`.
    pub row: ValueId,
    /// `[p.., t]`
    pub weight: Option<ValueId>,
}

/// Which row each combination of taps along the axes is: `base + sum of index * stride`, or the table's row of zeros
/// where an index lies outside its axis (`bounded`: none does). `base` broadcasts against `[p.., 1]`.
///
/// What the axes give is combined by few operations, so that the kernel that reads the rows may do it on the way: the
/// part of an axis that is outside is the row of zeros by itself, and the sum is cut there.
pub fn combine(
    b: &mut Builder<'_>,
    table: &Table,
    axes: &[Taps],
    sizes: &[Dim],
    base: Option<ValueId>,
    bounded: bool,
) -> Result<Product> {
    let strides = onnxc_ir::graph::dim::row_major_strides(sizes);
    let none = constant_dim(b, &table.zero)?;
    let (mut row, mut weight): (Option<ValueId>, Option<ValueId>) = (None, None);
    for (axis, taps) in axes.iter().enumerate() {
        let stride = constant_dim(b, &strides[axis])?;
        let mut part = b.binary(BinaryFn::Mul, taps.index, stride)?;
        if let Some(base) = base.filter(|_| axis == 0) {
            part = b.binary(BinaryFn::Add, part, base)?;
        }
        if !bounded {
            let (zero, size) = (b.scalar(DType::I64, 0.0), constant_dim(b, &sizes[axis])?);
            let low = b.compare(CompareFn::Ge, taps.index, zero)?;
            let high = b.compare(CompareFn::Lt, taps.index, size)?;
            let inside = b.binary(BinaryFn::And, low, high)?;
            part = b.select(inside, part, none)?;
        }
        row = Some(joined(b, row, part, BinaryFn::Add)?);
        if let Some(own) = taps.weight {
            weight = Some(joined(b, weight, own, BinaryFn::Mul)?);
        }
    }
    let Some(mut row) = row else { return malformed("samples of a grid without axes") };
    if !bounded {
        row = b.binary(BinaryFn::Min, row, none)?;
    }
    Ok(Product { row, weight })
}

/// `[p.., s]` and `[p.., t]` combined as `[p.., s * t]`.
fn joined(
    b: &mut Builder<'_>,
    outer: Option<ValueId>,
    inner: ValueId,
    function: BinaryFn,
) -> Result<ValueId> {
    let Some(outer) = outer else { return Ok(inner) };
    let rank = b.rank(inner);
    let outer = b.unsqueeze(outer, &[rank])?;
    let inner = b.unsqueeze(inner, &[rank - 1])?;
    let both = b.binary(function, outer, inner)?;
    let mut shape = b.shape(both);
    let last = shape.pop().unwrap_or(Dim::ONE);
    let before = shape.pop().unwrap_or(Dim::ONE);
    shape.push(before * last);
    b.reshape(both, shape)
}
