//! Pools of regions of interest: RoiAlign and MaxRoiPool.

use super::row::*;
use super::sample::{Table, Taps, arithmetic, combine, constant_dim, dim_as};
use super::spatial::channels_last;
use crate::graph::{Builder, Op};

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("RoiAlign", 10, &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2")], &[req("Y", "T1")],
        &[string("mode", "avg"), int("output_height", 1), int("output_width", 1), int("sampling_ratio", 0),
          float("spatial_scale", 1.0)],
        &[("T1", FLOATS_F16), ("T2", I64S)], roi_align, "Regions of interest, sampled between points and pooled"),
    row("RoiAlign", 16, &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2")], &[req("Y", "T1")],
        &[string("coordinate_transformation_mode", "half_pixel"), string("mode", "avg"), int("output_height", 1),
          int("output_width", 1), int("sampling_ratio", 0), float("spatial_scale", 1.0)],
        &[("T1", FLOATS_F16), ("T2", I64S)], roi_align, "Regions of interest, sampled between points and pooled"),
    row("RoiAlign", 22, &[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2")], &[req("Y", "T1")],
        &[string("coordinate_transformation_mode", "half_pixel"), string("mode", "avg"), int("output_height", 1),
          int("output_width", 1), int("sampling_ratio", 0), float("spatial_scale", 1.0)],
        &[("T1", FLOATS), ("T2", I64S)], roi_align, "Regions of interest, sampled between points and pooled"),
    row("MaxRoiPool", 1, &[req("X", "T"), req("rois", "T")], &[req("Y", "T")],
        &[required("pooled_shape", Ints), float("spatial_scale", 1.0)], &[("T", FLOATS_F16)], max_roi_pool,
        "Regions of interest, cut into bins and maximized"),
    row("MaxRoiPool", 22, &[req("X", "T"), req("rois", "T")], &[req("Y", "T")],
        &[required("pooled_shape", Ints), float("spatial_scale", 1.0)], &[("T", FLOATS)], max_roi_pool,
        "Regions of interest, cut into bins and maximized"),
];

/// Largest number of bins, or of samples of a bin, along an axis.
const MAX_COUNT: i64 = 1 << 16;

fn count(name: &str, value: i64) -> Result<usize> {
    match value {
        1..=MAX_COUNT => Ok(value as usize),
        other => malformed(format!("{name} {other}")),
    }
}

/// Coordinate `at` of each of the regions `[R, n]`, times `scale`, as `[R, 1]`.
fn edge(b: &mut Builder<'_>, rois: ValueId, at: usize, scale: f32) -> Result<ValueId> {
    let edge = b.slice_axis(rois, 1, Dim::from(at), Dim::ONE)?;
    b.binary_scalar(BinaryFn::Mul, edge, f64::from(scale))
}

/// What the samples of all regions have in common.
struct Samples {
    half_pixel: bool,
    scale: f32,
    /// Samples of a bin along an axis.
    ratio: usize,
}

/// `X: [N, C, H, W]`, `rois: [R, 4]` gives `[R, C, output_height, output_width]`.
fn roi_align(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, rois, images) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let half_pixel = match cx.has("coordinate_transformation_mode") {
        false => false,
        true => match cx.str("coordinate_transformation_mode")?.as_str() {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => return malformed(format!("coordinate_transformation_mode `{other}`")),
        },
    };
    let average = match cx.str("mode")?.as_str() {
        "avg" => true,
        "max" => false,
        other => return malformed(format!("mode `{other}`")),
    };
    let bins =
        [count("output_height", cx.int("output_height")?)?, count("output_width", cx.int("output_width")?)?];
    let ratio = match cx.int("sampling_ratio")? {
        0 => return unsupported("sampling_ratio 0: only run-time data tells how many samples a bin has"),
        ratio => count("sampling_ratio", ratio)?,
    };
    let samples = Samples { half_pixel, scale: cx.float("spatial_scale")?, ratio };
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    if shape.len() != 4 || b.rank(rois) != 2 || b.rank(images) != 1 {
        return malformed(format!("{} with regions {} of images {}", b.ty(x), b.ty(rois), b.ty(images)));
    }
    let regions = b.shape(rois)[0].clone();
    let work = arithmetic(dtype);
    let rois = b.cast(rois, work)?;
    let mut taps = Vec::with_capacity(2);
    for axis in 0..2 {
        let place = sample_places(b, rois, 1 - axis, bins[axis], &samples)?;
        let own = border_taps(b, place, &shape[2 + axis])?;
        // [R, y, 1, 2] and [R, 1, x, 2]
        taps.push(Taps {
            index: b.unsqueeze(own.index, &[2 - axis])?,
            weight: own.weight.map(|weight| b.unsqueeze(weight, &[2 - axis])).transpose()?,
        });
    }
    let values = channels_last(b, x)?;
    let values = b.cast(values, work)?;
    let table = Table::new(b, values)?;
    let points = constant_dim(b, &(shape[2].clone() * shape[3].clone()))?;
    let base = b.binary(BinaryFn::Mul, images, points)?;
    let base = b.reshape(base, vec![regions.clone(), Dim::ONE, Dim::ONE, Dim::ONE])?;
    let mut product = combine(b, &table, &taps, &shape[2..], Some(base), false)?;
    product.row = by_bin(b, product.row, bins, ratio)?;
    product.weight = match product.weight {
        Some(weight) if average => {
            let share = b.binary_scalar(BinaryFn::Mul, weight, 1.0 / (ratio * ratio) as f64)?;
            Some(by_bin(b, share, bins, ratio)?)
        }
        Some(weight) => Some(by_bin(b, weight, bins, ratio)?),
        None => None,
    };
    // The maximum is that of the weighted taps, as in the reference and in the official tests; the document can be
    // read as one of the samples.
    let y = table.reduce(b, &product, if average { ReduceFn::Sum } else { ReduceFn::Max })?;
    let y = b.cast(y, dtype)?;
    let y = b.reshape(y, vec![regions, Dim::from(bins[0]), Dim::from(bins[1]), shape[1].clone()])?;
    Ok(vec![b.transpose(y, &[0, 3, 1, 2])?])
}

/// Where the samples of every bin lie along an axis: `[R, bins * ratio]`. `first` is the number of the region's
/// coordinate where it starts.
fn sample_places(
    b: &mut Builder<'_>,
    rois: ValueId,
    first: usize,
    bins: usize,
    samples: &Samples,
) -> Result<ValueId> {
    let dtype = b.dtype(rois);
    let (mut start, end) = (edge(b, rois, first, samples.scale)?, edge(b, rois, first + 2, samples.scale)?);
    let mut extent = b.binary(BinaryFn::Sub, end, start)?;
    if samples.half_pixel {
        start = b.binary_scalar(BinaryFn::Sub, start, 0.5)?;
    } else {
        extent = b.binary_scalar(BinaryFn::Max, extent, 1.0)?;
    }
    let count = bins * samples.ratio;
    let step = b.binary_scalar(BinaryFn::Div, extent, count as f64)?;
    let index = b.iota(vec![Dim::from(count)], 0)?;
    let index = b.cast(index, dtype)?;
    let center = b.binary_scalar(BinaryFn::Add, index, 0.5)?;
    let offset = b.binary(BinaryFn::Mul, center, step)?;
    b.binary(BinaryFn::Add, start, offset)
}

/// Two taps for each place, `[.., 2]`: the outermost points reach one step further out, beyond which a place has no
/// taps (index -1).
fn border_taps(b: &mut Builder<'_>, place: ValueId, size: &Dim) -> Result<Taps> {
    let dtype = b.dtype(place);
    let rank = b.rank(place);
    let place = b.unsqueeze(place, &[rank])?;
    let (minus, extent) = (b.scalar(dtype, -1.0), dim_as(b, size, dtype)?);
    let (low, high) = (b.compare(CompareFn::Ge, place, minus)?, b.compare(CompareFn::Le, place, extent)?);
    let near = b.binary(BinaryFn::And, low, high)?;
    let (zero, last) = (b.scalar(dtype, 0.0), dim_as(b, &(size.clone() - Dim::ONE), dtype)?);
    // What is not near, NaN included, becomes a number first.
    let inside = b.select(near, place, zero)?;
    let inside = super::sample::clamp(b, inside, zero, last)?;
    let floor = b.unary(UnaryFn::Floor, inside)?;
    let t = b.binary(BinaryFn::Sub, inside, floor)?;
    let floor = b.cast(floor, DType::I64)?;
    let (floor, t) = (b.squeeze(floor, &[rank])?, b.squeeze(t, &[rank])?);
    let taps = super::sample::linear_taps(b, floor, t)?;
    let last = constant_dim(b, &(size.clone() - Dim::ONE))?;
    let index = b.binary(BinaryFn::Min, taps.index, last)?;
    let none = b.scalar(DType::I64, -1.0);
    Ok(Taps { index: b.select(near, index, none)?, weight: taps.weight })
}

/// `[R, h * ratio, w * ratio, t]` as `[R, h * w, ratio * ratio * t]`.
fn by_bin(b: &mut Builder<'_>, x: ValueId, bins: [usize; 2], ratio: usize) -> Result<ValueId> {
    let shape = b.shape(x);
    let [h, w] = bins.map(Dim::from);
    let (ratio, taps) = (Dim::from(ratio), shape[3].clone());
    let split = vec![shape[0].clone(), h.clone(), ratio.clone(), w.clone(), ratio.clone(), taps.clone()];
    let x = b.reshape(x, split)?;
    let x = b.transpose(x, &[0, 1, 3, 2, 4, 5])?;
    b.reshape(x, vec![shape[0].clone(), h * w, ratio.clone() * ratio * taps])
}

/// `X: [N, C, H, W]`, `rois: [R, 5]` gives `[R, C, pooled..]`. One axis is maximized after the other; a bin of no
/// points gives 0.
fn max_roi_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, rois) = (cx.input(0)?, cx.input(1)?);
    let pooled = cx.ints("pooled_shape")?.unwrap_or_default();
    let scale = cx.float("spatial_scale")?;
    let &[height, width] = pooled.as_slice() else { return malformed(format!("pooled_shape {pooled:?}")) };
    let bins = [count("pooled_shape", height)?, count("pooled_shape", width)?];
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    if shape.len() != 4 || b.rank(rois) != 2 {
        return malformed(format!("{} with regions {}", b.ty(x), b.ty(rois)));
    }
    let regions = b.shape(rois)[0].clone();
    let rois = b.cast(rois, arithmetic(dtype))?;
    let image = edge(b, rois, 0, 1.0)?;
    let image = b.cast(image, DType::I64)?;
    let image = b.reshape(image, vec![regions])?;
    let x = channels_last(b, x)?;
    // [R, H, W, C]
    let mut values = b.emit1(Op::Gather { axis: 0 }, &[x, image])?;
    let lowest = b.scalar(dtype, f64::NEG_INFINITY);
    let mut empty: Option<ValueId> = None;
    for axis in [1, 0] {
        let (from, to) = bin_ranges(b, rois, 2 - axis, bins[axis], &shape[2 + axis], scale)?;
        // Bins [R, bins] against positions: a new axis of bins before the one that is maximized.
        let mut lead = b.shape(from);
        let at = 1 + axis;
        lead.splice(1..1, vec![Dim::ONE; axis]);
        lead.resize(b.rank(values) + 1, Dim::ONE);
        let (low, high) = (b.reshape(from, lead.clone())?, b.reshape(to, lead)?);
        let index = index_in(b, &shape[2 + axis], at + 1, b.rank(values) + 1)?;
        let (after, before) = (b.compare(CompareFn::Ge, index, low)?, b.compare(CompareFn::Lt, index, high)?);
        let inside = b.binary(BinaryFn::And, after, before)?;
        let wide = b.unsqueeze(values, &[at])?;
        let kept = b.select(inside, wide, lowest)?;
        let most = b.reduce(ReduceFn::Max, kept, &[at + 1])?;
        values = b.squeeze(most, &[at + 1])?;
        let none = b.compare(CompareFn::Ge, from, to)?;
        let none = b.unsqueeze(none, &[2 - axis])?;
        empty = Some(match empty {
            None => none,
            Some(other) => b.binary(BinaryFn::Or, none, other)?,
        });
    }
    if let Some(empty) = empty {
        let empty = b.unsqueeze(empty, &[3])?;
        let zero = b.scalar(dtype, 0.0);
        values = b.select(empty, zero, values)?;
    }
    Ok(vec![b.transpose(values, &[0, 3, 1, 2])?])
}

/// The index along `axis` as i64, all other axes of size 1.
fn index_in(b: &mut Builder<'_>, size: &Dim, axis: usize, rank: usize) -> Result<ValueId> {
    let mut shape = vec![Dim::ONE; rank];
    shape[axis] = size.clone();
    b.iota(shape, axis)
}

/// Half away from zero, as C's `round`.
fn rounded(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let size = b.unary(UnaryFn::Abs, x)?;
    let up = b.binary_scalar(BinaryFn::Add, size, 0.5)?;
    let whole = b.unary(UnaryFn::Floor, up)?;
    let sign = b.unary(UnaryFn::Sign, x)?;
    b.binary(BinaryFn::Mul, sign, whole)
}

/// First point of each bin along an axis and the one after its last, i64 `[R, bins]`.
fn bin_ranges(
    b: &mut Builder<'_>,
    rois: ValueId,
    first: usize,
    bins: usize,
    size: &Dim,
    scale: f32,
) -> Result<(ValueId, ValueId)> {
    let dtype = b.dtype(rois);
    let (start, end) = (edge(b, rois, first, scale)?, edge(b, rois, first + 2, scale)?);
    let (start, end) = (rounded(b, start)?, rounded(b, end)?);
    let extent = b.binary(BinaryFn::Sub, end, start)?;
    let extent = b.binary_scalar(BinaryFn::Add, extent, 1.0)?;
    let extent = b.binary_scalar(BinaryFn::Max, extent, 1.0)?;
    let step = b.binary_scalar(BinaryFn::Div, extent, bins as f64)?;
    let (zero, last) = (b.scalar(dtype, 0.0), dim_as(b, size, dtype)?);
    let mut bound = |offset: f64, function: UnaryFn| -> Result<ValueId> {
        let index = b.iota(vec![Dim::from(bins)], 0)?;
        let index = b.cast(index, dtype)?;
        let index = b.binary_scalar(BinaryFn::Add, index, offset)?;
        let edge = b.binary(BinaryFn::Mul, index, step)?;
        let edge = b.unary(function, edge)?;
        let edge = b.binary(BinaryFn::Add, edge, start)?;
        let edge = super::sample::clamp(b, edge, zero, last)?;
        b.cast(edge, DType::I64)
    };
    Ok((bound(0.0, UnaryFn::Floor)?, bound(1.0, UnaryFn::Ceil)?))
}

#[cfg(test)]
mod tests {
    use crate::op::node_case::Case;

    const ROIS: [f32; 8] = [0.5, 1.0, 3.5, 2.5, -3.0, -2.0, 2.0, 9.0];

    fn aligned(opset: u32) -> Case {
        Case::new("RoiAlign", opset)
            .ramp(&[2, 1, 4, 5], 1)
            .input::<f32>(&[2, 4], &ROIS)
            .input::<i64>(&[2], &[1, 0])
            .int("sampling_ratio", 2)
            .int("output_height", 2)
            .int("output_width", 2)
    }

    #[test]
    fn samples_inside_and_outside_of_the_image() {
        let average = [0.274414, -0.183594, -0.371094, -0.044922, 0.0, -0.0625, 0.0, 0.0];
        aligned(22).gives(0, &[2, 1, 2, 2], &average);
        let most = [0.820312, 0.244141, 0.492188, 0.355469, 0.0, 0.3125, 0.0, 0.0];
        aligned(16).str("mode", "max").gives(0, &[2, 1, 2, 2], &most);
        let coarse = aligned(10).int("sampling_ratio", 1).int("output_height", 1).float("spatial_scale", 0.5);
        coarse.gives(0, &[2, 1, 1, 2], &[0.34375, 0.625, 0.375, 0.0]);
    }

    #[test]
    fn bins_of_whole_points() {
        let image: Vec<f32> = (0..16).map(|value| value as f32 - 20.0).collect();
        let case = Case::new("MaxRoiPool", 1)
            .symbolic::<f32>(&["n", "c"], &[1, 1, 4, 4], &image)
            .symbolic::<f32>(&["r"], &[2, 5], &[0.0, 1.0, 0.0, 3.0, 2.0, 0.0, 3.0, 3.0, 9.0, 9.0])
            .ints("pooled_shape", &[2, 2]);
        case.gives(0, &[2, 1, 2, 2], &[-14.0, -13.0, -10.0, -9.0, -5.0, 0.0, 0.0, 0.0]);
    }
}
