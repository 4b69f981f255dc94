//! CropAndResize: regions of images, sampled on grids that share the corners of the region.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::Op;
use onnxc_ops::grid::sampled;
use onnxc_ops::row::*;
use onnxc_ops::sample::{Table, Taps, combine, constant_dim, dim_as, linear_taps, split_coordinate};
use onnxc_ops::spatial::{channels_first, channels_last};
use onnxc_ops::types::FLOATS_F16;

pub const ROWS: &[OpDef] = &[own("CropAndResize", crop_and_resize)
    .inputs(&[req("X", "T1"), req("rois", "T1"), req("batch_indices", "T2"), req("crop_size", "T2")])
    .outputs(&[req("Y", "T1")])
    .attributes(&[float("extrapolation_value", 0.0), string("mode", "bilinear")])
    .types(&[("T1", FLOATS_F16), ("T2", &[DType::I32])])
    .shapes(&["X[_, _, _, _]", "rois[R, 4]", "batch_indices[R]", "crop_size[2]"])
    .doc("regions of images, resampled to one size")];

/// Places of `count` samples along an axis between two edges, `[R, count]`: the middle of a region for a single one.
fn places(b: &mut Builder<'_>, rois: ValueId, axis: usize, size: &Dim, count: &Dim) -> Result<ValueId> {
    let dtype = b.dtype(rois);
    let start = b.slice_axis(rois, 1, Dim::from(axis), Dim::ONE)?;
    let end = b.slice_axis(rois, 1, Dim::from(axis + 2), Dim::ONE)?;
    let last = dim_as(b, &(size.clone() - Dim::ONE), dtype)?;
    let (start, end) = (b.binary(BinaryFn::Mul, start, last)?, b.binary(BinaryFn::Mul, end, last)?);
    let sum = b.binary(BinaryFn::Add, start, end)?;
    let middle = b.binary_scalar(BinaryFn::Mul, sum, 0.5)?;
    let steps = dim_as(b, &(count.clone() - Dim::ONE), dtype)?;
    let one = b.scalar(dtype, 1.0);
    let several = b.compare(CompareFn::Ge, steps, one)?;
    let divisor = b.binary(BinaryFn::Max, steps, one)?;
    let span = b.binary(BinaryFn::Sub, end, start)?;
    let step = b.binary(BinaryFn::Div, span, divisor)?;
    let index = b.iota(vec![Dim::ONE, count.clone()], 1)?;
    let index = b.cast(index, dtype)?;
    let offset = b.binary(BinaryFn::Mul, index, step)?;
    let place = b.binary(BinaryFn::Add, start, offset)?;
    b.select(several, place, middle)
}

fn crop_and_resize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, rois, images) = (cx.input("X")?, cx.input("rois")?, cx.input("batch_indices")?);
    let nearest = match cx.str("mode")?.as_str() {
        "bilinear" => false,
        "nearest" => true,
        other => return not_one_of("mode", other, "bilinear, nearest"),
    };
    let beyond = f64::from(cx.float("extrapolation_value")?);
    cx.with_count("crop_size", Some(2))?;
    let counts = cx.sizes_input("crop_size")?;
    let b = &mut *cx.b;
    let (dtype, shape) = (b.dtype(x), b.shape(x));
    let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let regions = b.shape(rois)[0].clone();
    let rois = b.cast(rois, work)?;
    let points = counts[0].clone() * counts[1].clone();
    let (mut taps, mut outside) = (Vec::new(), b.scalar(DType::Bool, 0.0));
    for axis in 0..2 {
        let size = &shape[2 + axis];
        let place = places(b, rois, axis, size, &counts[axis])?;
        let place = b.unsqueeze(place, &[2 - axis])?;
        let place = b.expand(place, vec![regions.clone(), counts[0].clone(), counts[1].clone()])?;
        let place = b.reshape(place, vec![regions.clone(), points.clone()])?;
        let (zero, last) = (b.scalar(work, 0.0), dim_as(b, &(size.clone() - Dim::ONE), work)?);
        let (low, high) = (b.compare(CompareFn::Ge, place, zero)?, b.compare(CompareFn::Le, place, last)?);
        let inside = b.binary(BinaryFn::And, low, high)?;
        let own = b.unary(UnaryFn::Not, inside)?;
        outside = b.binary(BinaryFn::Or, outside, own)?;
        taps.push(if nearest {
            let place = b.binary_scalar(BinaryFn::Add, place, 0.5)?;
            let (index, _) = split_coordinate(b, place, size, 1.0)?;
            Taps { index: b.unsqueeze(index, &[2])?, weight: None }
        } else {
            let (floor, rest) = split_coordinate(b, place, size, 1.0)?;
            linear_taps(b, floor, rest)?
        });
    }
    let values = channels_last(b, x)?;
    let values = b.cast(values, work)?;
    let table = Table::new(b, values)?;
    // An image that there is not fails the run: the numbers are looked up among those that there are.
    let images = b.cast(images, DType::I64)?;
    let (zero, most) = (b.scalar(DType::I64, 0.0), constant_dim(b, &shape[0])?);
    let negative = b.compare(CompareFn::Lt, images, zero)?;
    let images = b.select(negative, most, images)?;
    let known = b.iota(vec![shape[0].clone()], 0)?;
    let images = b.emit1(Op::Gather { axis: 0 }, &[known, images])?;
    let rows = constant_dim(b, &(shape[2].clone() * shape[3].clone()))?;
    let base = b.binary(BinaryFn::Mul, images, rows)?;
    let base = b.unsqueeze(base, &[1, 2])?;
    let combined = combine(b, &table, &taps, &shape[2..], Some(base), false)?;
    let y = sampled(b, &table, &combined)?;
    let outside = b.unsqueeze(outside, &[2])?;
    let beyond = b.scalar(work, beyond);
    let y = b.select(outside, beyond, y)?;
    let y = b.cast(y, dtype)?;
    let y = b.reshape(y, vec![regions, counts[0].clone(), counts[1].clone(), shape[1].clone()])?;
    Ok(vec![channels_first(b, y)?])
}
