//! Pools of regions of interest: RoiAlign and MaxRoiPool.

use super::row::*;
use super::sample::{Product, Table, Taps, arithmetic, combine, constant_dim, dim_as};
use super::spatial::channels_last;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Op, TensorType};

pub const ROWS: &[OpDef] = &[
    ROI_ALIGN,
    ROI_ALIGN.since(16).attributes(&[
        string("coordinate_transformation_mode", "half_pixel"),
        string("mode", "avg"),
        int("output_height", 1),
        int("output_width", 1),
        int("sampling_ratio", 0),
        float("spatial_scale", 1.0),
    ]),
    ROI_ALIGN
        .since(22)
        .attributes(&[
            string("coordinate_transformation_mode", "half_pixel"),
            string("mode", "avg"),
            int("output_height", 1),
            int("output_width", 1),
            int("sampling_ratio", 0),
            float("spatial_scale", 1.0),
        ])
        .types(&[("T1", FLOATS), ("T2", I64S)]),
    MAX_ROI_POOL,
    MAX_ROI_POOL.since(22).types(&[("T", FLOATS)]),
];

const ROI_ALIGN: OpDef = op("RoiAlign", 10, roi_align)
    .inputs(&[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2")])
    .outputs(&[req("Y", "T1")])
    .attributes(&[
        string("mode", "avg"),
        int("output_height", 1),
        int("output_width", 1),
        int("sampling_ratio", 0),
        float("spatial_scale", 1.0),
    ])
    .types(&[("T1", FLOATS_F16), ("T2", I64S)])
    .shapes(ROI_ALIGN_SHAPES)
    .doc("Regions of interest, sampled between points and pooled");

const MAX_ROI_POOL: OpDef = op("MaxRoiPool", 1, max_roi_pool)
    .inputs(&[req("X", "T"), req("rois", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[required("pooled_shape", Ints), float("spatial_scale", 1.0)])
    .types(&[("T", FLOATS_F16)])
    .shapes(MAX_ROI_POOL_SHAPES)
    .doc("Regions of interest, cut into bins and maximized");

const ROI_ALIGN_SHAPES: &[&str] = &["X[_, _, _, _]", "rois[R, 4]", "batch_indices[R]"];

const MAX_ROI_POOL_SHAPES: &[&str] = &["X[_, _, _, _]", "rois[_, 5]"];

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

/// What the bins of all regions have in common.
struct Bins {
    /// Height and width of a region in bins.
    counts: [usize; 2],
    half_pixel: bool,
    scale: f32,
    average: bool,
}

/// Points that samples are read from.
struct Image {
    table: Table,
    /// Height and width.
    sizes: [Dim; 2],
    /// Row of the table where each region's image starts, i64 `[R, 1, 1, 1]`.
    first: ValueId,
}

/// `X: [N, C, H, W]`, `rois: [R, 4]` gives `[R, C, output_height, output_width]`.
fn roi_align(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, rois, images) = (cx.input("X")?, cx.input("rois")?, cx.input("batch_indices")?);
    let half_pixel = match cx.has("coordinate_transformation_mode") {
        false => false,
        true => match cx.str("coordinate_transformation_mode")?.as_str() {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => {
                return not_one_of("coordinate_transformation_mode", other, "half_pixel, output_half_pixel");
            }
        },
    };
    let average = match cx.str("mode")?.as_str() {
        "avg" => true,
        "max" => false,
        other => return not_one_of("mode", other, "avg, max"),
    };
    let bins =
        [count("output_height", cx.int("output_height")?)?, count("output_width", cx.int("output_width")?)?];
    let ratio = match cx.int("sampling_ratio")? {
        0 => None,
        ratio => Some(count("sampling_ratio", ratio)?),
    };
    let bins = Bins { counts: bins, half_pixel, scale: cx.float("spatial_scale")?, average };
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    if shape.len() != 4 || b.rank(rois) != 2 || b.rank(images) != 1 {
        return malformed(format!("{} with regions {} of images {}", b.ty(x), b.ty(rois), b.ty(images)));
    }
    let regions = b.shape(rois)[0].clone();
    let work = arithmetic(dtype);
    let rois = b.cast(rois, work)?;
    let values = channels_last(b, x)?;
    let values = b.cast(values, work)?;
    let table = Table::new(b, values)?;
    let points = constant_dim(b, &(shape[2].clone() * shape[3].clone()))?;
    let image = b.iota(vec![shape[0].clone()], 0)?;
    let rows = b.binary(BinaryFn::Mul, image, points)?;
    // A run in which a region is of no image of the batch fails, as any index does that is outside.
    let first = b.emit1(Op::Gather { axis: 0 }, &[rows, images])?;
    let first = b.reshape(first, vec![regions.clone(), Dim::ONE, Dim::ONE, Dim::ONE])?;
    let image = Image { table, sizes: [shape[2].clone(), shape[3].clone()], first };
    let y = match ratio {
        Some(ratio) => samples_at_once(b, rois, &image, &bins, ratio)?,
        None => samples_in_turn(b, rois, &image, &bins)?,
    };
    let y = b.cast(y, dtype)?;
    let y =
        b.reshape(y, vec![regions, Dim::from(bins.counts[0]), Dim::from(bins.counts[1]), shape[1].clone()])?;
    Ok(vec![b.transpose(y, &[0, 3, 1, 2])?])
}

/// Every bin has `ratio` samples along an axis: `[R, h * w, C]`.
fn samples_at_once(
    b: &mut Builder<'_>,
    rois: ValueId,
    image: &Image,
    bins: &Bins,
    ratio: usize,
) -> Result<ValueId> {
    let mut places = [rois; 2];
    for (axis, place) in places.iter_mut().enumerate() {
        let Span { start, extent } = span(b, rois, 1 - axis, bins)?;
        let count = bins.counts[axis] * ratio;
        let step = b.binary_scalar(BinaryFn::Div, extent, count as f64)?;
        let index = b.iota(vec![Dim::from(count)], 0)?;
        let index = b.cast(index, b.dtype(rois))?;
        let center = b.binary_scalar(BinaryFn::Add, index, 0.5)?;
        let offset = b.binary(BinaryFn::Mul, center, step)?;
        *place = b.binary(BinaryFn::Add, start, offset)?;
    }
    let mut product = taps(b, image, places, None)?;
    product.row = by_bin(b, product.row, bins.counts, ratio)?;
    product.weight = match product.weight {
        Some(weight) if bins.average => {
            let share = b.binary_scalar(BinaryFn::Mul, weight, 1.0 / (ratio * ratio) as f64)?;
            Some(by_bin(b, share, bins.counts, ratio)?)
        }
        Some(weight) => Some(by_bin(b, weight, bins.counts, ratio)?),
        None => None,
    };
    image.table.reduce(b, &product, combination(bins))
}

/// How the taps of samples, and samples, are combined. The maximum is that of the weighted taps, as in the reference and
/// in the official tests; the document can be read as one of the samples.
fn combination(bins: &Bins) -> ReduceFn {
    if bins.average { ReduceFn::Sum } else { ReduceFn::Max }
}

/// The taps of samples at `[R, y]` and `[R, x]`: `[R, y, x, 4]`. Where a place is not `used`, it has none.
fn taps(
    b: &mut Builder<'_>,
    image: &Image,
    places: [ValueId; 2],
    used: Option<[ValueId; 2]>,
) -> Result<Product> {
    let mut both = Vec::with_capacity(2);
    for axis in 0..2 {
        let own = border_taps(b, places[axis], &image.sizes[axis], used.map(|used| used[axis]))?;
        // [R, y, 1, 2] and [R, 1, x, 2]
        both.push(Taps {
            index: b.unsqueeze(own.index, &[2 - axis])?,
            weight: own.weight.map(|weight| b.unsqueeze(weight, &[2 - axis])).transpose()?,
        });
    }
    combine(b, &image.table, &both, &image.sizes, Some(image.first), false)
}

/// Where the regions start along an axis and how far they reach, each `[R, 1]`.
struct Span {
    start: ValueId,
    extent: ValueId,
}

/// `first` is the number of the region's coordinate where it starts.
fn span(b: &mut Builder<'_>, rois: ValueId, first: usize, bins: &Bins) -> Result<Span> {
    let (mut start, end) = (edge(b, rois, first, bins.scale)?, edge(b, rois, first + 2, bins.scale)?);
    let mut extent = b.binary(BinaryFn::Sub, end, start)?;
    if bins.half_pixel {
        start = b.binary_scalar(BinaryFn::Sub, start, 0.5)?;
    } else {
        extent = b.binary_scalar(BinaryFn::Max, extent, 1.0)?;
    }
    Ok(Span { start, extent })
}

/// The bins of each region along an axis.
struct Grid {
    start: ValueId,
    /// Extent of a bin, `[R, 1]`.
    size: ValueId,
    /// Samples of a bin, i64 `[R, 1]`.
    samples: ValueId,
    /// The most of them, an i64 scalar.
    most: ValueId,
}

/// A bin has one sample per point of the image, rounded up; a bin of more points than fit an i32 has none.
fn grid(b: &mut Builder<'_>, rois: ValueId, axis: usize, bins: &Bins) -> Result<Grid> {
    let Span { start, extent } = span(b, rois, 1 - axis, bins)?;
    let dtype = b.dtype(rois);
    let size = b.binary_scalar(BinaryFn::Div, extent, bins.counts[axis] as f64)?;
    let whole = b.unary(UnaryFn::Ceil, size)?;
    let (zero, limit) = (b.scalar(dtype, 0.0), b.scalar(dtype, f64::from(i32::MAX)));
    let (some, few) = (b.compare(CompareFn::Gt, whole, zero)?, b.compare(CompareFn::Lt, whole, limit)?);
    let valid = b.binary(BinaryFn::And, some, few)?;
    let whole = b.select(valid, whole, zero)?;
    let samples = b.cast(whole, DType::I64)?;
    let most = b.reduce(ReduceFn::Max, samples, &[0, 1])?;
    let most = b.reshape(most, vec![])?;
    let most = b.binary_scalar(BinaryFn::Max, most, 0.0)?;
    Ok(Grid { start, size, samples, most })
}

/// Every region has samples of its own number: one sample of each bin after the other, `[R, h, w, C]`.
fn samples_in_turn(b: &mut Builder<'_>, rois: ValueId, image: &Image, bins: &Bins) -> Result<ValueId> {
    let work = b.dtype(rois);
    let grids = [grid(b, rois, 0, bins)?, grid(b, rois, 1, bins)?];
    let trip = b.binary(BinaryFn::Mul, grids[0].most, grids[1].most)?;
    let trip = b.sizes(trip, &|_| None)?.remove(0);
    let [h, w] = bins.counts.map(Dim::from);
    let shape = vec![b.shape(rois)[0].clone(), h, w, b.shape(image.table.rows)[1].clone()];
    let before = b.scalar(work, if bins.average { 0.0 } else { f64::NEG_INFINITY });
    let before = b.expand(before, shape)?;
    let number = b.scalar(DType::I64, 0.0);
    let body = one_sample(b, before, image, &grids, bins)?;
    let inputs = [&[number, before, image.table.rows, image.first][..], &captures(&grids)[..]].concat();
    let y = b.emit(Op::scan(body, trip, 2, 0, vec![]), &inputs)?[1];
    let samples = b.binary(BinaryFn::Mul, grids[0].samples, grids[1].samples)?;
    let samples = b.unsqueeze(samples, &[2, 3])?;
    if bins.average {
        let samples = b.binary_scalar(BinaryFn::Max, samples, 1.0)?;
        let samples = b.cast(samples, work)?;
        return b.binary(BinaryFn::Div, y, samples);
    }
    let (none, zero) = (b.scalar(DType::I64, 0.0), b.scalar(work, 0.0));
    let some = b.compare(CompareFn::Gt, samples, none)?;
    b.select(some, y, zero)
}

/// What the body of the loop over samples reads of each axis.
fn captures(grids: &[Grid; 2]) -> Vec<ValueId> {
    grids.iter().flat_map(|grid| [grid.start, grid.size, grid.samples, grid.most]).collect()
}

/// States: the number of the sample, and what the samples before it make of the bins, `[R, h, w, C]`.
fn one_sample(
    outer: &Builder<'_>,
    before: ValueId,
    image: &Image,
    grids: &[Grid; 2],
    bins: &Bins,
) -> Result<Graph> {
    let (mut body, origin) = outer.body();
    let mut b = Builder::new(&mut body, origin);
    let number = b.input("number", TensorType::new(DType::I64, vec![]), None);
    let mut taken = |value: ValueId| b.input("", outer.ty(value).clone(), None);
    let before = taken(before);
    let rows = taken(image.table.rows);
    let first = taken(image.first);
    let grids = grids.each_ref().map(|grid| {
        let [start, size, samples, most] = [grid.start, grid.size, grid.samples, grid.most].map(&mut taken);
        Grid { start, size, samples, most }
    });
    let table = Table { rows, zero: image.table.zero.clone() };
    let image = Image { table, sizes: image.sizes.clone(), first };
    let row = b.binary(BinaryFn::Div, number, grids[1].most)?;
    let column = b.binary(BinaryFn::Mod, number, grids[1].most)?;
    let (mut places, mut used) = ([number; 2], [number; 2]);
    for (axis, at) in [row, column].into_iter().enumerate() {
        places[axis] = places_of(&mut b, &grids[axis], at, bins.counts[axis])?;
        used[axis] = b.compare(CompareFn::Lt, at, grids[axis].samples)?;
    }
    let product = taps(&mut b, &image, places, Some(used))?;
    let sample = image.table.reduce(&mut b, &product, combination(bins))?;
    let after = if bins.average {
        b.binary(BinaryFn::Add, before, sample)?
    } else {
        let most = b.binary(BinaryFn::Max, before, sample)?;
        let here = b.binary(BinaryFn::And, used[0], used[1])?;
        let here = b.unsqueeze(here, &[2, 3])?;
        b.select(here, most, before)?
    };
    let next = b.binary_scalar(BinaryFn::Add, number, 1.0)?;
    body.outputs = vec![(String::new(), next), (String::new(), after)];
    Ok(body)
}

/// Where sample number `at` of each of `count` bins lies along an axis: `[R, count]`.
fn places_of(b: &mut Builder<'_>, grid: &Grid, at: ValueId, count: usize) -> Result<ValueId> {
    let dtype = b.dtype(grid.start);
    let bin = b.iota(vec![Dim::from(count)], 0)?;
    let bin = b.cast(bin, dtype)?;
    let bin = b.binary(BinaryFn::Mul, bin, grid.size)?;
    let at = b.cast(at, dtype)?;
    let center = b.binary_scalar(BinaryFn::Add, at, 0.5)?;
    let offset = b.binary(BinaryFn::Mul, center, grid.size)?;
    let samples = b.cast(grid.samples, dtype)?;
    let offset = b.binary(BinaryFn::Div, offset, samples)?;
    let place = b.binary(BinaryFn::Add, grid.start, bin)?;
    b.binary(BinaryFn::Add, place, offset)
}

/// Two taps for each place, `[.., 2]`: the outermost points reach one step further out, beyond which a place has no
/// taps (index -1), as one that is not `used`, `[R, 1]`.
fn border_taps(b: &mut Builder<'_>, place: ValueId, size: &Dim, used: Option<ValueId>) -> Result<Taps> {
    let dtype = b.dtype(place);
    let rank = b.rank(place);
    let place = b.unsqueeze(place, &[rank])?;
    let (minus, extent) = (b.scalar(dtype, -1.0), dim_as(b, size, dtype)?);
    let (low, high) = (b.compare(CompareFn::Ge, place, minus)?, b.compare(CompareFn::Le, place, extent)?);
    let mut near = b.binary(BinaryFn::And, low, high)?;
    if let Some(used) = used {
        let used = b.unsqueeze(used, &[rank])?;
        near = b.binary(BinaryFn::And, near, used)?;
    }
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
    let (x, rois) = (cx.input("X")?, cx.input("rois")?);
    let pooled = cx.ints("pooled_shape")?.unwrap_or_default();
    let scale = cx.float("spatial_scale")?;
    let &[height, width] = pooled.as_slice() else {
        return malformed(format!("pooled_shape is {pooled:?}; it must be [height, width]"));
    };
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
    use crate::node_case::Case;

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
    fn a_region_of_no_image_is_refused() {
        let of_image = |image: i64| {
            let case = Case::new("RoiAlign", 16).ramp(&[2, 1, 4, 5], 1).input::<f32>(&[1, 4], &ROIS[..4]);
            case.input::<i64>(&[1], &[image]).int("sampling_ratio", 2).run()
        };
        assert!(of_image(1).is_ok());
        assert!(of_image(2).unwrap_err().message.contains("is 2; it must be between -2 and 1"));
    }

    const AVERAGES: [f64; 24] = [
        0.4375, -0.203125, 0.275391, -0.365234, -0.140625, 0.765625, 0.126953, 0.066406, 0.0, 0.050878, 0.0,
        0.092593, 0.0, -0.249132, 0.0, -0.019676, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ];

    const MAXIMA: [f64; 24] = [
        0.683594, 0.546875, 0.410156, 0.234375, 0.273438, 0.957031, 0.390625, 0.410156, 0.0, 1.145833, 0.0,
        1.0, 0.0, 0.649306, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ];

    /// Before opset 16 there is no mode of coordinates: regions are not shifted by half a pixel, and have at least one
    /// point. Values of ONNX Runtime.
    #[test]
    fn version_10_has_no_half_pixels() {
        let first = aligned(10).run().unwrap();
        let second = aligned(16).str("coordinate_transformation_mode", "output_half_pixel").run().unwrap();
        assert_eq!(first[0].data, second[0].data);
        assert_ne!(first[0].data, aligned(16).run().unwrap()[0].data);
    }

    /// Regions of sizes of their own: of two bins of 1.5 by 0.75 points, of 2.5 by 5.5, and of none.
    #[test]
    fn samples_of_each_region_by_its_size() {
        let rois = [0.5, 1.0, 3.5, 2.5, -3.0, -2.0, 2.0, 9.0, 3.0, 3.0, 1.0, 1.0];
        let case = |mode: &str| {
            Case::new("RoiAlign", 22)
                .ramp(&[2, 2, 4, 5], 1)
                .symbolic::<f32>(&["r"], &[3, 4], &rois)
                .symbolic::<i64>(&["r"], &[3], &[1, 0, 1])
                .str("mode", mode)
                .int("output_height", 2)
                .int("output_width", 2)
        };
        case("avg").gives(0, &[3, 2, 2, 2], &AVERAGES);
        case("max").gives(0, &[3, 2, 2, 2], &MAXIMA);
    }

    /// Of each region other samples are the last: the additional samples of another region do not count for its maximum. Values of ONNX
    /// Runtime.
    #[test]
    fn samples_that_a_region_has_not() {
        let rois = [0.5, 1.0, 3.5, 2.5, 0.2, 0.2, 1.2, 3.4, 0.1, 0.1, 2.9, 1.3];
        let image: Vec<f32> = (1..=20).map(|value| -value as f32).collect();
        let case = Case::new("RoiAlign", 16)
            .input::<f32>(&[1, 1, 4, 5], &image)
            .input::<f32>(&[3, 4], &rois)
            .input::<i64>(&[3], &[0, 0, 0]);
        case.str("mode", "max").gives(0, &[3, 1, 1, 1], &[-0.0625, -0.04, 0.0]);
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
