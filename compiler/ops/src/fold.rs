//! Inverses of windows and pools: Col2Im sums overlapping blocks into an image, MaxUnpool puts maxima back.

use super::row::*;
use super::sample::constant_dim;
use super::spatial::{checked_extents, explicit_pads, extents, reach};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, Requirement};

pub const ROWS: &[OpDef] = &[
    op("Col2Im", 18, col_to_im)
        .inputs(&[
            req("input", "T"),
            req("image_shape", "tensor(int64)"),
            req("block_shape", "tensor(int64)"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[optional("dilations", Ints), optional("pads", Ints), optional("strides", Ints)])
        .types(&[("T", ALL_BF16)])
        .shapes(COL2_IM_SHAPES)
        .doc("Columns of overlapping blocks summed into an image"),
    MAX_UNPOOL,
    MAX_UNPOOL.since(11),
    MAX_UNPOOL.since(22).types(&[("T1", FLOATS), ("T2", I64S)]),
];

const MAX_UNPOOL: OpDef = op("MaxUnpool", 9, max_unpool)
    .inputs(&[req("X", "T1"), req("I", "T2"), opt("output_shape", "T2")])
    .outputs(&[req("output", "T1")])
    .attributes(UNPOOL)
    .types(&[("T1", FLOATS_F16), ("T2", I64S)])
    .shapes(MAX_UNPOOL_SHAPES)
    .doc("Maxima put back where they were, zeros elsewhere");

const COL2_IM_SHAPES: &[&str] = &["input[_, _, _]", "image_shape[R]", "block_shape[R]"];

const MAX_UNPOOL_SHAPES: &[&str] =
    &["X[D..]", "I[D..]", "len(kernel_shape) = rank(X) - 2", "output_shape[rank(X)]"];

const UNPOOL: &[AttrDef] =
    &[required("kernel_shape", Ints), optional("pads", Ints), optional("strides", Ints)];

/// One spatial axis of Col2Im.
struct Axis {
    image: Dim,
    block: usize,
    stride: usize,
    dilation: usize,
    lo: i64,
    /// Number of blocks.
    count: Dim,
}

/// `[N, C * blocks.., L]` gives `[N, C, image..]`; the parts of complex numbers are summed on their own.
fn col_to_im(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let Some((real, imaginary)) = cx.b.parts(x)? else { return Ok(vec![summed_blocks(cx, x)?]) };
    let (real, imaginary) = (summed_blocks(cx, real)?, summed_blocks(cx, imaginary)?);
    Ok(vec![cx.b.complex(cx.b.dtype(x), real, imaginary)?])
}

fn summed_blocks(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let block = cx.input("block_shape")?;
    let points = cx.b.ty(block).elements().as_const().map(|points| points as usize);
    let points = points.or(cx.declared_rank(0).and_then(|rank| rank.checked_sub(2)));
    cx.with_count("image_shape", points)?;
    cx.with_count("block_shape", points)?;
    let image = cx.sizes_input("image_shape")?;
    let rank = image.len();
    let block = cx.input("block_shape")?;
    if cx.b.known(block).is_none_or(|block| block.iter().any(|extent| !extent.is_const())) {
        return scattered_blocks(cx, x, &image);
    }
    let block = checked_extents("block_shape", &cx.const_input("block_shape")?, rank)?;
    let (strides, dilations) = (extents(cx, "strides", rank, 1)?, extents(cx, "dilations", rank, 1)?);
    let (lo, hi) = explicit_pads(cx, rank)?;
    let mut axes = Vec::with_capacity(rank);
    for (axis, image) in image.into_iter().enumerate() {
        let padded = image.clone() + Dim::from(lo[axis] + hi[axis]);
        let room = padded - Dim::from(reach(block[axis], dilations[axis]));
        if room.as_const().is_some_and(|room| room < 0) {
            return malformed(format!("a block of {} does not fit {image} points", block[axis]));
        }
        let count = room.floor_div(&Dim::from(strides[axis])).unwrap_or(Dim::ZERO) + Dim::ONE;
        axes.push(Axis {
            image,
            block: block[axis],
            stride: strides[axis],
            dilation: dilations[axis],
            lo: lo[axis],
            count,
        });
    }
    let b = &mut *cx.b;
    let shape = b.shape(x);
    let blocks = Dim::from(block.iter().product::<usize>());
    let counts: Vec<Dim> = axes.iter().map(|axis| axis.count.clone()).collect();
    let (Some(rows), 3) = (shape.get(1), shape.len()) else {
        return malformed(format!("columns {} of blocks {block:?}", b.ty(x)));
    };
    let channels = b.divided(rows, blocks, "rows must divide into blocks")?;
    if let (Some(given), Some(wanted)) = (shape[2].as_const(), product(&counts).as_const())
        && given != wanted
    {
        return malformed(format!("{given} blocks, where the image has room for {wanted}"));
    }
    let mut split = vec![shape[0].clone(), channels];
    split.extend(block.iter().map(|&extent| Dim::from(extent)));
    split.extend(counts);
    let mut y = b.reshape(x, split)?;
    for (at, axis) in axes.iter().enumerate() {
        y = fold(b, y, axis, rank - at)?;
    }
    Ok(y)
}

/// As [`summed_blocks`], with blocks of sizes known only at run time: every element is added where it belongs, or to one more
/// point if that lies in the padding.
fn scattered_blocks(cx: &mut NodeCx<'_, '_>, x: ValueId, image: &[Dim]) -> Result<ValueId> {
    let rank = image.len();
    let block = cx.sizes_input("block_shape")?;
    let (strides, dilations) = (extents(cx, "strides", rank, 1)?, extents(cx, "dilations", rank, 1)?);
    let (lo, hi) = explicit_pads(cx, rank)?;
    let b = &mut *cx.b;
    let shape = b.shape(x);
    if shape.len() != 3 || block.len() != rank {
        return malformed(format!("columns {} of blocks {block:?}", b.ty(x)));
    }
    let mut counts = Vec::with_capacity(rank);
    for axis in 0..rank {
        let reach = (block[axis].clone() - Dim::ONE) * Dim::from(dilations[axis]) + Dim::ONE;
        let room = image[axis].clone() + Dim::from(lo[axis] + hi[axis]) - reach;
        counts.push(room.floor_div(&Dim::from(strides[axis])).unwrap_or(Dim::ZERO) + Dim::ONE);
    }
    // [blocks.., counts..]: the point of the image, or the one more.
    let points = product(image);
    let spare = constant_dim(b, &points)?;
    let grid: Vec<Dim> = block.iter().chain(&counts).cloned().collect();
    let image_strides = onnxc_ir::graph::dim::row_major_strides(image);
    let (mut place, mut inside): (Option<ValueId>, Option<ValueId>) = (None, None);
    for axis in 0..rank {
        let (tap, step) = (b.iota(grid.clone(), axis)?, b.iota(grid.clone(), rank + axis)?);
        let tap = b.binary_scalar(BinaryFn::Mul, tap, dilations[axis] as f64)?;
        let step = b.binary_scalar(BinaryFn::Mul, step, strides[axis] as f64)?;
        let at = b.binary(BinaryFn::Add, tap, step)?;
        let at = b.binary_scalar(BinaryFn::Sub, at, lo[axis] as f64)?;
        let (zero, extent) = (b.scalar(DType::I64, 0.0), constant_dim(b, &image[axis])?);
        let (low, high) = (b.compare(CompareFn::Ge, at, zero)?, b.compare(CompareFn::Lt, at, extent)?);
        let here = b.binary(BinaryFn::And, low, high)?;
        let stride = constant_dim(b, &image_strides[axis])?;
        let part = b.binary(BinaryFn::Mul, at, stride)?;
        place = Some(match place {
            None => part,
            Some(place) => b.binary(BinaryFn::Add, place, part)?,
        });
        inside = Some(match inside {
            None => here,
            Some(inside) => b.binary(BinaryFn::And, inside, here)?,
        });
    }
    let (Some(place), Some(inside)) = (place, inside) else { return malformed("an image without axes") };
    let place = b.select(inside, place, spare)?;
    let taps = product(&block);
    let channels = b.divided(&shape[1], taps.clone(), "rows must divide into blocks")?;
    let rows = shape[0].clone() * channels.clone();
    let columns = taps * product(&counts);
    let place = b.reshape(place, vec![Dim::ONE, columns.clone()])?;
    let place = b.expand(place, vec![rows.clone(), columns.clone()])?;
    let updates = b.reshape(x, vec![rows.clone(), columns])?;
    let zero = zero(b, x)?;
    let empty = b.expand(zero, vec![rows, points.clone() + Dim::ONE])?;
    let combine = Some(if b.dtype(x) == DType::Bool { BinaryFn::Or } else { BinaryFn::Add });
    let y = b.emit1(Op::ScatterElements { axis: 1, combine }, &[empty, place, updates])?;
    let y = b.slice_axis(y, 1, Dim::ZERO, points)?;
    let mut result = vec![shape[0].clone(), channels];
    result.extend_from_slice(image);
    b.reshape(y, result)
}

/// Folds the first of `left` axes of blocks with the first of `left` axes of positions, into an axis of the image:
/// `[N, C, k, .., n, .., image..]` gives `[N, C, .., .., image.., own]`.
fn fold(b: &mut Builder<'_>, x: ValueId, axis: &Axis, left: usize) -> Result<ValueId> {
    let mut perm: Vec<usize> = (0..b.rank(x)).filter(|&at| at != 2 && at != 2 + left).collect();
    perm.extend([2, 2 + left]);
    let x = b.transpose(x, &perm)?;
    let x = spread(b, x, axis.stride)?;
    overlap(b, x, axis)
}

/// The last axis with `stride - 1` zeros after each element.
fn spread(b: &mut Builder<'_>, x: ValueId, stride: usize) -> Result<ValueId> {
    if stride == 1 {
        return Ok(x);
    }
    let mut shape = b.shape(x);
    let rank = shape.len();
    let wide = b.unsqueeze(x, &[rank])?;
    let zero = zero(b, x)?;
    let mut hi = vec![Dim::ZERO; rank + 1];
    hi[rank] = Dim::from(stride - 1);
    let wide = b.pad(wide, zero, vec![Dim::ZERO; rank + 1], hi)?;
    shape[rank - 1] = shape[rank - 1].clone() * Dim::from(stride);
    b.reshape(wide, shape)
}

/// The zero of the element type; strings and complex numbers have none.
fn zero(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    match b.dtype(x) {
        dtype @ (DType::Str | DType::C64 | DType::C128) => unsupported(format!("sums of {dtype}")),
        dtype => Ok(b.scalar(dtype, 0.0)),
    }
}

/// `x: [.., k, n]` gives `[.., image]`: element `i` is the sum over `k` of `x[k, i + lo - k * dilation]`, zero where
/// that lies outside.
fn overlap(b: &mut Builder<'_>, x: ValueId, axis: &Axis) -> Result<ValueId> {
    let shape = b.shape(x);
    let (rows, last) = (shape.len() - 2, shape.len() - 1);
    let zero = zero(b, x)?;
    let lead = Dim::from((axis.block - 1) * axis.dilation);
    let needed = axis.image.clone() + Dim::from(axis.lo);
    let (mut lo, mut hi) = (vec![Dim::ZERO; shape.len()], vec![Dim::ZERO; shape.len()]);
    lo[last] = lead.clone();
    hi[last] = (needed - shape[last].clone()).max_dim(&Dim::ZERO);
    let padded = b.pad(x, zero, lo, hi)?;
    let combine = if b.dtype(x) == DType::Bool { BinaryFn::Or } else { BinaryFn::Add };
    let mut sum: Option<ValueId> = None;
    for tap in 0..axis.block {
        let row = b.slice_axis(padded, rows, Dim::from(tap), Dim::ONE)?;
        let start = Dim::from(axis.lo) + lead.clone() - Dim::from(tap * axis.dilation);
        let row = b.slice_axis(row, last, start, axis.image.clone())?;
        let row = b.squeeze(row, &[rows])?;
        sum = Some(match sum {
            None => row,
            Some(sum) => b.binary(combine, sum, row)?,
        });
    }
    sum.map_or_else(|| malformed("a block of no elements"), Ok)
}

/// Indices count elements of the image that the attributes imply. A larger `output_shape` only adds zeros after that
/// image, as in the reference and in the official tests.
fn max_unpool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices) = (cx.input("X")?, cx.input("I")?);
    let shape = cx.b.shape(x);
    let Some(rank) = shape.len().checked_sub(2).filter(|&rank| rank > 0) else {
        return malformed(format!("{} has no spatial axes", cx.b.ty(x)));
    };
    let kernel = checked_extents("kernel_shape", &cx.ints("kernel_shape")?.unwrap_or_default(), rank)?;
    let strides = extents(cx, "strides", rank, 1)?;
    let (lo, hi) = explicit_pads(cx, rank)?;
    let mut image = shape[..2].to_vec();
    for axis in 0..rank {
        let windows = (shape[2 + axis].clone() - Dim::ONE) * Dim::from(strides[axis]);
        let extent = windows + Dim::from(kernel[axis]) - Dim::from(lo[axis] + hi[axis]);
        if extent.as_const().is_some_and(|extent| extent < 0) {
            return malformed(format!("spatial axis {axis} of the result has {extent} points"));
        }
        image.push(extent);
    }
    let wanted = match cx.optional("output_shape") {
        Some(_) => {
            cx.with_count("output_shape", Some(shape.len()))?;
            Some(cx.sizes_input("output_shape")?)
        }
        None => None,
    };
    let zero = zero(cx.b, x)?;
    let empty = cx.b.expand(zero, vec![product(&image)])?;
    let count = vec![product(&shape)];
    let (places, values) = (cx.b.reshape(indices, count.clone())?, cx.b.reshape(x, count)?);
    let flat = cx.b.emit1(Op::ScatterElements { axis: 0, combine: None }, &[empty, places, values])?;
    let mut y = cx.b.reshape(flat, image.clone())?;
    if let Some(wanted) = wanted {
        if wanted.len() != image.len() {
            return malformed(format!("output_shape {wanted:?} of {image:?}"));
        }
        for (axis, (to, from)) in wanted.iter().zip(&image).enumerate() {
            let rule = format!("dimension {axis} of the image, which it must not cut");
            let name = format!("element {axis} of {}", cx.operand_name("output_shape"));
            cx.b.require(Requirement::at_most(from.clone(), to.clone()).says_at_least(name, rule))?;
        }
        let missing = |(to, from): (&Dim, &Dim)| match to.clone() - from.clone() {
            missing if missing.is_const() => missing,
            missing => missing.max_dim(&Dim::ZERO),
        };
        let missing: Vec<Dim> = wanted.iter().zip(&image).map(missing).collect();
        y = cx.b.pad(y, zero, vec![Dim::ZERO; image.len()], missing)?;
        for (axis, size) in wanted.into_iter().enumerate() {
            y = cx.b.slice_axis(y, axis, Dim::ZERO, size)?;
        }
    }
    Ok(vec![y])
}

#[cfg(test)]
mod tests {

    use crate::node_case::{Case, parts};

    /// Four blocks of two by two elements.
    fn four_blocks() -> Case {
        let ramp: Vec<f32> = (0..16).map(|value| value as f32).collect();
        Case::new("Col2Im", 18).input::<f32>(&[1, 4, 4], &ramp)
    }

    /// Their sums in an image of three by three.
    const SUMS: [f64; 9] = [0.0, 5.0, 5.0, 10.0, 30.0, 20.0, 10.0, 25.0, 15.0];

    #[test]
    fn blocks_overlap_with_strides_pads_and_dilations() {
        let case = four_blocks().constant::<i64>(&[2], &[3, 3]).constant::<i64>(&[2], &[2, 2]);
        case.gives(0, &[1, 1, 3, 3], &SUMS);
        let case = Case::new("Col2Im", 18)
            .input::<i32>(&[1, 2, 3], &[1, 2, 3, 4, 5, 6])
            .constant::<i64>(&[1], &[5])
            .constant::<i64>(&[1], &[2])
            .ints("strides", &[2])
            .ints("dilations", &[2])
            .ints("pads", &[1, 1]);
        case.gives(0, &[1, 1, 5], &[0.0, 6.0, 0.0, 8.0, 0.0]);
    }

    #[test]
    fn columns_of_symbolic_sizes() {
        let columns = |rows: usize| {
            let ramp: Vec<i32> = (1..=2 * rows as i32).collect();
            Case::new("Col2Im", 18)
                .symbolic(&["n", "rows", "blocks"], &[1, rows, 2], &ramp)
                .constant::<i64>(&[1], &[4])
                .constant::<i64>(&[1], &[2])
                .ints("strides", &[2])
        };
        columns(4).gives(0, &[1, 2, 4], &[1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]);
        assert!(columns(3).run().is_err());
    }

    /// The block alone has a known number of sizes.
    #[test]
    fn as_many_axes_as_the_block_has() {
        let case = four_blocks();
        let case = case.symbolic::<i64>(&["axes"], &[2], &[3, 3]).constant::<i64>(&[2], &[2, 2]);
        case.gives(0, &[1, 1, 3, 3], &SUMS);
    }

    #[test]
    fn an_unpooled_image_has_a_size_for_each_axis() {
        let case =
            Case::new("MaxUnpool", 11).ramp(&[1, 1, 2, 2], 1).input::<i64>(&[1, 1, 2, 2], &[5, 7, 13, 15]);
        let case =
            case.constant::<i64>(&[3], &[1, 1, 4]).ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2]);
        let message = case.run().unwrap_err().message;
        assert!(message.contains("output_shape"), "{message}");
    }

    /// The declared rank determines how many axes an image and its blocks have.
    #[test]
    fn as_many_axes_as_the_declared_rank_has() {
        let case = four_blocks().of_rank(4);
        let case = case.symbolic::<i64>(&["axes"], &[2], &[3, 3]).symbolic::<i64>(&["axes"], &[2], &[2, 2]);
        case.gives(0, &[1, 1, 3, 3], &SUMS);
    }

    #[test]
    fn complex_blocks() {
        let columns: Vec<f32> = (0..6).flat_map(|value| [value as f32, -10.0 * value as f32]).collect();
        let case = Case::new("Col2Im", 18)
            .complex(&[1, 2, 3], &columns)
            .constant::<i64>(&[1], &[4])
            .constant::<i64>(&[1], &[2]);
        let found = case.run().unwrap().remove(0);
        assert_eq!(found.shape, [1, 1, 4]);
        assert_eq!(parts(&found), [0.0, 0.0, 4.0, -40.0, 6.0, -60.0, 5.0, -50.0]);
    }

    #[test]
    fn unpooled_maxima_and_a_larger_result() {
        let case = || {
            Case::new("MaxUnpool", 11)
                .input::<f32>(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0])
                .input::<i64>(&[1, 1, 2, 2], &[5, 7, 13, 15])
                .ints("kernel_shape", &[2, 2])
                .ints("strides", &[2, 2])
        };
        let row = [0.0, 1.0, 0.0, 2.0];
        let zeros = [0.0; 4];
        case().gives(0, &[1, 1, 4, 4], &[zeros, row, zeros, [0.0, 3.0, 0.0, 4.0]].concat());
        let wide = case().constant::<i64>(&[4], &[1, 1, 4, 5]);
        let rows = [[0.0; 5], [0.0, 1.0, 0.0, 2.0, 0.0], [0.0; 5], [0.0, 3.0, 0.0, 4.0, 0.0]];
        wide.gives(0, &[1, 1, 4, 5], &rows.concat());
        let narrow = case().constant::<i64>(&[4], &[1, 1, 4, 3]);
        let message = narrow.lower().unwrap_err().message;
        assert!(message.contains("is 3; it must be at least dimension 3 of the image"), "{message}");
        let late = |last| case().input::<i64>(&[4], &[1, 1, 4, last]);
        late(5).gives(0, &[1, 1, 4, 5], &rows.concat());
        assert!(late(3).run().is_err());
    }
}
