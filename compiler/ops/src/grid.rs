//! Sampling by a flow field: GridSample, and AffineGrid that makes such fields.

use super::row::*;
use super::sample::{
    Product, Table, Taps, arithmetic, clamp, combine, constant_dim, cubic_taps, dim_as, linear_taps,
    split_coordinate,
};
use super::spatial::{channels_first, channels_last, spatial_dims};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::dim::product;

pub const ROWS: &[OpDef] = &[
    GRID_SAMPLE,
    GRID_SAMPLE
        .since(20)
        .attributes(&[int("align_corners", 0), string("mode", "linear"), string("padding_mode", "zeros")])
        .shapes(GRID_SAMPLE_SHAPES_20),
    GRID_SAMPLE
        .since(22)
        .attributes(&[int("align_corners", 0), string("mode", "linear"), string("padding_mode", "zeros")])
        .types(&[("T1", ALL_BF16), ("T2", FLOATS)])
        .shapes(GRID_SAMPLE_SHAPES_20),
    op("AffineGrid", 20, affine_grid)
        .inputs(&[req("theta", "T1"), req("size", "T2")])
        .outputs(&[req("grid", "T1")])
        .attributes(&[int("align_corners", 0)])
        .types(&[("T1", FLOATS), ("T2", I64S)])
        .shapes(AFFINE_GRID_SHAPES)
        .doc("A flow field from affine matrices"),
];

const GRID_SAMPLE: OpDef = op("GridSample", 16, grid_sample)
    .inputs(&[req("X", "T1"), req("grid", "T2")])
    .outputs(&[req("Y", "T1")])
    .attributes(&[int("align_corners", 0), string("mode", "bilinear"), string("padding_mode", "zeros")])
    .types(&[("T1", ALL), ("T2", FLOATS_F16)])
    .shapes(GRID_SAMPLE_SHAPES_16)
    .doc("Values between the points of X, where a flow field says");

const GRID_SAMPLE_SHAPES_16: &[&str] = &["X[N, _, _, _]", "grid[N, _, _, 2]"];

const GRID_SAMPLE_SHAPES_20: &[&str] = &["X[N, _, D..]", "grid[N, O.., len(D)]", "len(O) = len(D)"];

const AFFINE_GRID_SHAPES: &[&str] = &["theta[_, R, R + 1]", "size[R + 2]"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// How samples are taken along every axis.
struct Rule {
    mode: Mode,
    outside: Outside,
    align_corners: bool,
}

impl Rule {
    fn of(cx: &NodeCx<'_, '_>) -> Result<Rule> {
        let mode = match (cx.str("mode")?.as_str(), cx.def.since) {
            ("nearest", _) => Mode::Nearest,
            ("bilinear", ..20) | ("linear", 20..) => Mode::Linear,
            ("bicubic", ..20) | ("cubic", 20..) => Mode::Cubic,
            (other, ..20) => return not_one_of("mode", other, "bilinear, nearest, bicubic"),
            (other, _) => return not_one_of("mode", other, "linear, nearest, cubic"),
        };
        let outside = match cx.str("padding_mode")?.as_str() {
            "zeros" => Outside::Zeros,
            "border" => Outside::Border,
            "reflection" => Outside::Reflection,
            other => return not_one_of("padding_mode", other, "zeros, border, reflection"),
        };
        Ok(Rule { mode, outside, align_corners: cx.int("align_corners")? != 0 })
    }
}

/// `X: [N, C, d..]`, `grid: [N, o.., r]` gives `[N, C, o..]`. Interpolation runs in f32, or in f64 for values or
/// coordinates that f32 cannot hold; integers are cut off at the end.
pub fn grid_sample(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let Some((real, imaginary)) = cx.b.parts(x)? else { return Ok(vec![sampled_reals(cx, x)?]) };
    let (real, imaginary) = (sampled_reals(cx, real)?, sampled_reals(cx, imaginary)?);
    Ok(vec![cx.b.complex(cx.b.dtype(x), real, imaginary)?])
}

fn sampled_reals(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let grid = cx.input(1)?;
    let rule = Rule::of(cx)?;
    let b = &mut *cx.b;
    let sizes = spatial_dims(b, x)?;
    let (rank, dtype) = (sizes.len(), b.dtype(x));
    let grid_shape = b.shape(grid);
    if grid_shape.len() != rank + 2 || grid_shape[rank + 1].as_const().is_some_and(|r| r != rank as i64) {
        return malformed(format!("grid {} for {}", b.ty(grid), b.ty(x)));
    }
    let count = product(&grid_shape[1..=rank]);
    let batch = b.shape(x)[0].clone();
    let grid = b.reshape(grid, vec![batch.clone(), count.clone(), Dim::from(rank)])?;
    let precise = b.dtype(grid) == DType::F64;
    let grid = b.cast(grid, if precise { DType::F64 } else { DType::F32 })?;
    let mut taps = Vec::with_capacity(rank);
    for (axis, size) in sizes.iter().enumerate() {
        // The coordinates of the innermost axis come first.
        let place = b.slice_axis(grid, 2, Dim::from(rank - 1 - axis), Dim::ONE)?;
        let place = b.squeeze(place, &[2])?;
        taps.push(axis_taps(b, place, size, &rule)?);
    }
    let work = if rule.mode == Mode::Nearest { dtype } else { arithmetic(dtype) };
    let values = channels_last(b, x)?;
    let values = b.cast(values, work)?;
    let table = Table::new(b, values)?;
    let first = b.iota(vec![batch.clone(), Dim::ONE, Dim::ONE], 0)?;
    let points = constant_dim(b, &product(&sizes))?;
    let base = b.binary(BinaryFn::Mul, first, points)?;
    let base = if batch == Dim::ONE { None } else { Some(base) };
    let combined = combine(b, &table, &taps, &sizes, base, rule.outside != Outside::Zeros)?;
    let y = sampled(b, &table, &combined)?;
    let y = b.cast(y, dtype)?;
    let mut shape = vec![batch];
    shape.extend_from_slice(&grid_shape[1..=rank]);
    shape.push(b.shape(x)[1].clone());
    let y = b.reshape(y, shape)?;
    channels_first(b, y)
}

/// `[N, p, t]` taps to `[N, p, C]` values.
pub fn sampled(b: &mut Builder<'_>, table: &Table, taps: &Product) -> Result<ValueId> {
    if taps.weight.is_some() {
        return table.reduce(b, taps, ReduceFn::Sum);
    }
    let row = b.squeeze(taps.row, &[2])?;
    table.take(b, row)
}

/// The taps along an axis of `size` points for normalized coordinates.
fn axis_taps(b: &mut Builder<'_>, place: ValueId, size: &Dim, rule: &Rule) -> Result<Taps> {
    let dtype = b.dtype(place);
    let extent = dim_as(b, size, dtype)?;
    let one = b.scalar(dtype, 1.0);
    let from_zero = b.binary(BinaryFn::Add, place, one)?;
    let x = if rule.align_corners {
        let half = b.binary_scalar(BinaryFn::Mul, from_zero, 0.5)?;
        let steps = b.binary(BinaryFn::Sub, extent, one)?;
        b.binary(BinaryFn::Mul, half, steps)?
    } else {
        let wide = b.binary(BinaryFn::Mul, from_zero, extent)?;
        let shifted = b.binary(BinaryFn::Sub, wide, one)?;
        b.binary_scalar(BinaryFn::Mul, shifted, 0.5)?
    };
    if rule.mode == Mode::Nearest {
        let whole = b.unary(UnaryFn::Round, x)?;
        let whole = bring_inside(b, whole, size, rule)?;
        let (index, _) = split_coordinate(b, whole, size, 4.0)?;
        let rank = b.rank(index);
        let index = b.unsqueeze(index, &[rank])?;
        return Ok(Taps { index: tap_inside(b, index, size, rule)?, weight: None });
    }
    // Of a cubic sample near the border or beyond, each tap is moved to the border, as PyTorch and ONNX Runtime have it; the
    // reference evaluator moves the sample.
    let x = match (rule.mode, rule.outside) {
        (Mode::Cubic, Outside::Border) => x,
        _ => bring_inside(b, x, size, rule)?,
    };
    let (floor, t) = split_coordinate(b, x, size, 4.0)?;
    let mut taps = match rule.mode {
        Mode::Cubic => cubic_taps(b, floor, t)?,
        _ => linear_taps(b, floor, t)?,
    };
    taps.index = tap_inside(b, taps.index, size, rule)?;
    Ok(taps)
}

/// A coordinate that lies outside the image moved to its border, or reflected there until it lies inside.
fn bring_inside(b: &mut Builder<'_>, x: ValueId, size: &Dim, rule: &Rule) -> Result<ValueId> {
    let dtype = b.dtype(x);
    if rule.outside == Outside::Zeros {
        return Ok(x);
    }
    // Where the image ends: at its outermost points, or half a step beyond.
    let low = b.scalar(dtype, if rule.align_corners { 0.0 } else { -0.5 });
    let span = size.clone() - if rule.align_corners { Dim::ONE } else { Dim::ZERO };
    let span = dim_as(b, &span, dtype)?;
    let high = b.binary(BinaryFn::Add, low, span)?;
    let (under, over) = (b.compare(CompareFn::Lt, x, low)?, b.compare(CompareFn::Gt, x, high)?);
    let outside = b.binary(BinaryFn::Or, under, over)?;
    let moved = if rule.outside == Outside::Border {
        let (first, last) = (b.scalar(dtype, 0.0), dim_as(b, &(size.clone() - Dim::ONE), dtype)?);
        clamp(b, x, first, last)?
    } else {
        // A wave of period `2 * span` that rises from the lower border to the upper one and falls again.
        let period = b.binary_scalar(BinaryFn::Mul, span, 2.0)?;
        let from_low = b.binary(BinaryFn::Sub, x, low)?;
        let distance = b.unary(UnaryFn::Abs, from_low)?;
        let phase = b.binary(BinaryFn::Rem, distance, period)?;
        let falling = b.binary(BinaryFn::Sub, period, phase)?;
        let wave = b.binary(BinaryFn::Min, phase, falling)?;
        b.binary(BinaryFn::Add, low, wave)?
    };
    b.select(outside, moved, x)
}

/// Taps beyond the border, of samples near it, by the same rule. With zeros they stay where they are.
fn tap_inside(b: &mut Builder<'_>, index: ValueId, size: &Dim, rule: &Rule) -> Result<ValueId> {
    let (zero, one) = (b.scalar(DType::I64, 0.0), b.scalar(DType::I64, 1.0));
    let extent = constant_dim(b, size)?;
    let last = b.binary(BinaryFn::Sub, extent, one)?;
    match rule.outside {
        Outside::Zeros => Ok(index),
        Outside::Border => clamp(b, index, zero, last),
        Outside::Reflection => {
            // About points of the grid where corners are aligned, else about the edges half a step outside.
            let (span, back) = if rule.align_corners { (last, zero) } else { (extent, one) };
            let period = b.binary(BinaryFn::Add, span, span)?;
            let phase = b.binary(BinaryFn::Mod, index, period)?;
            let falling = b.binary(BinaryFn::Sub, period, phase)?;
            let falling = b.binary(BinaryFn::Sub, falling, back)?;
            let wave = b.binary(BinaryFn::Min, phase, falling)?;
            // A single point whose corners are aligned has no period.
            clamp(b, wave, zero, last)
        }
    }
}

/// `theta: [N, r, r + 1]` applied to the positions of a grid of `size` between -1 and 1: `[N, d.., r]`.
fn affine_grid(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let theta = cx.input("theta")?;
    cx.with_count("size", cx.declared_rank(0))?;
    let size = cx.sizes_input("size")?;
    let align = cx.int("align_corners")? != 0;
    let b = &mut *cx.b;
    let Some(rank) = size.len().checked_sub(2).filter(|rank| (2..=3).contains(rank)) else {
        return malformed(format!("size {size:?} is neither [N, C, H, W] nor [N, C, D, H, W]"));
    };
    let (batch, dtype) = (size[0].clone(), b.dtype(theta));
    let sizes = &size[2..];
    let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let theta = b.cast(theta, work)?;
    let theta = b.reshape(theta, vec![batch.clone(), Dim::from(rank), Dim::from(rank + 1)])?;
    // Result [N, d.., r]; column `at` of theta is [N, 1.., r].
    let column = |b: &mut Builder<'_>, at: usize| -> Result<ValueId> {
        let column = b.slice_axis(theta, 2, Dim::from(at), Dim::ONE)?;
        let mut shape = vec![Dim::ONE; rank + 2];
        shape[0] = batch.clone();
        shape[rank + 1] = Dim::from(rank);
        b.reshape(column, shape)
    };
    let mut sum = column(b, rank)?;
    for (axis, extent) in sizes.iter().enumerate() {
        let mut shape = vec![Dim::ONE; rank + 2];
        shape[1 + axis] = extent.clone();
        let position = positions(b, extent, shape, 1 + axis, align, work)?;
        // The first column belongs to the innermost axis.
        let factor = column(b, rank - 1 - axis)?;
        let part = b.binary(BinaryFn::Mul, factor, position)?;
        sum = b.binary(BinaryFn::Add, sum, part)?;
    }
    Ok(vec![b.cast(sum, dtype)?])
}

/// Positions of the points along an axis: from -1 to 1, or half a step inside of that. A single point of aligned
/// corners lies at -1, as in the reference; the operator's function would divide by zero.
fn positions(
    b: &mut Builder<'_>,
    extent: &Dim,
    shape: Vec<Dim>,
    axis: usize,
    align: bool,
    dtype: DType,
) -> Result<ValueId> {
    let index = b.iota(shape, axis)?;
    let index = b.cast(index, dtype)?;
    let twice = b.binary_scalar(BinaryFn::Mul, index, 2.0)?;
    let (offset, steps) =
        if align { (0.0, (extent.clone() - Dim::ONE).max_dim(&Dim::ONE)) } else { (1.0, extent.clone()) };
    let from_start = b.binary_scalar(BinaryFn::Add, twice, offset)?;
    let steps = dim_as(b, &steps, dtype)?;
    let part = b.binary(BinaryFn::Div, from_start, steps)?;
    b.binary_scalar(BinaryFn::Sub, part, 1.0)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, close, computes_parts, ramp};

    fn sampled(opset: u32, mode: &str, padding: &str, align: i64) -> Case {
        Case::new("GridSample", opset)
            .ramp(&[1, 2, 3, 3], 1)
            .ramp(&[1, 1, 3, 2], 2)
            .str("mode", mode)
            .str("padding_mode", padding)
            .int("align_corners", align)
    }

    #[test]
    fn complex_numbers_are_sampled_by_parts() {
        for (opset, modes) in [(16, ["bilinear", "bicubic", "nearest"]), (20, ["linear", "cubic", "nearest"])]
        {
            for mode in modes {
                let case = |case: Case, _| case.ramp(&[1, 1, 3, 2], 2).str("mode", mode);
                computes_parts(&[1, 2, 3, 3], case, "GridSample", opset);
            }
        }
    }

    #[test]
    fn bilinear_samples_near_and_beyond_the_border() {
        let aligned = [0.9375, 0.0, -0.9375, 0.1875, -0.75, 1.0625];
        let cut = [0.875, 0.0, -1.0, 0.125, -0.75, 1.0];
        sampled(16, "bilinear", "zeros", 0).gives(
            0,
            &[1, 2, 1, 3],
            &[0.765625, 0.0, -0.4375, 0.109375, -0.375, 0.4375],
        );
        sampled(20, "linear", "zeros", 1).gives(0, &[1, 2, 1, 3], &aligned);
        sampled(22, "linear", "border", 0).gives(0, &[1, 2, 1, 3], &cut);
        sampled(22, "linear", "reflection", 0).gives(0, &[1, 2, 1, 3], &cut);
        sampled(22, "linear", "reflection", 1).gives(0, &[1, 2, 1, 3], &aligned);
        let error = sampled(20, "bilinear", "zeros", 0).lower().unwrap_err();
        assert_eq!(error.message, "mode is `bilinear`; it may be one of linear, nearest, cubic");
    }

    #[test]
    fn cubic_and_nearest_samples() {
        let case = Case::new("GridSample", 20)
            .symbolic(&["n", "c", "h", "w"], &[1, 1, 3, 3], &ramp(9, 1))
            .symbolic(&["n", "y", "x"], &[1, 1, 3, 2], &ramp(6, 2))
            .str("mode", "cubic")
            .str("padding_mode", "border");
        case.gives(0, &[1, 1, 1, 3], &[1.099854, -0.09375, -1.182007]);
        let beyond = Case::new("GridSample", 20)
            .input(&[1, 1, 1, 4], &[1f32, 5.0, -2.0, 3.0])
            .input(&[1, 1, 3, 2], &[-1.2f32, 0.0, 0.9, 0.1, 9.0, 0.0])
            .str("mode", "cubic")
            .str("padding_mode", "border");
        beyond.gives(0, &[1, 1, 1, 3], &[0.973, 3.551247, 3.0]);
        let case = Case::new("GridSample", 20)
            .ramp(&[1, 1, 2, 3, 2], 1)
            .ramp(&[1, 1, 1, 3, 3], 2)
            .str("mode", "nearest")
            .str("padding_mode", "reflection");
        case.gives(0, &[1, 1, 1, 1, 3], &[0.75, -1.0, -1.0]);
    }

    #[test]
    fn what_is_no_place_gives_zero_and_spreads_nothing() {
        let case = Case::new("GridSample", 20)
            .input::<f32>(&[1, 1, 1, 2], &[f32::NAN, 1.0])
            .input::<f32>(&[1, 1, 3, 2], &[f32::NAN, 0.0, 1e30, 0.0, 0.5, 0.0]);
        case.gives(0, &[1, 1, 1, 3], &[0.0, 0.0, 1.0]);
    }

    #[test]
    fn affine_grids_of_double_precision() {
        let theta = [1.0 / 3.0, 0.2, 0.1, -0.7, 1.0 / 7.0, 1.0 / 9.0];
        let case = Case::new("AffineGrid", 20).input::<f64>(&[1, 2, 3], &theta);
        let found = case.constant::<i64>(&[4], &[1, 1, 2, 3]).run().unwrap().remove(0).to_f64s().unwrap();
        let wanted = [
            -0.22222222222222218,
            0.5063492063492063,
            0.0,
            0.03968253968253968,
            0.2222222222222222,
            -0.42698412698412697,
            -0.0222222222222222,
            0.6492063492063491,
            0.2,
            0.18253968253968253,
            0.42222222222222217,
            -0.28412698412698406,
        ];
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            assert!(close(*found, wanted, 1e-14), "{found}, not {wanted}");
        }
    }

    #[test]
    fn affine_grids() {
        let flat = Case::new("AffineGrid", 20).ramp(&[1, 2, 3], 1).constant::<i64>(&[4], &[1, 1, 2, 3]);
        flat.gives(
            0,
            &[1, 2, 3, 2],
            &[-0.041667, 0.0, -0.375, -0.5, -0.708333, -1.0, 1.208333, 1.0, 0.875, 0.5, 0.541667, 0.0],
        );
        let deep = Case::new("AffineGrid", 20).ramp(&[1, 3, 4], 1).constant::<i64>(&[5], &[1, 1, 2, 1, 2]);
        deep.gives(
            0,
            &[1, 2, 1, 2, 3],
            &[-0.625, 0.75, -0.625, -1.125, 1.75, -0.875, -0.375, -0.25, -0.125, -0.875, 0.75, -0.375],
        );
    }
}
