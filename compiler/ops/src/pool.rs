//! Pools: sliding windows over the spatial axes, reduced. They compute channels-last like the convolutions.

use super::AttrDefault::{Float, Int, Optional, Required, Str};
use super::spatial::{
    Geometry, channels_first, channels_last, checked_extents, geometry, lowest, spatial_dims,
};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{BF16, F16, F32, F64, I8, U8};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Op, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    MAX_POOL,
    MAX_POOL_8,
    MAX_POOL_10,
    MAX_POOL_10.since(11),
    MAX_POOL_12,
    MAX_POOL_12.since(22).types(&[("T", &[F32, F64, F16, BF16, I8, U8]), ("I", I64S)]),
    AVERAGE_POOL,
    AVERAGE_POOL_7,
    AVERAGE_POOL_10,
    AVERAGE_POOL_10.since(11),
    AVERAGE_POOL_19,
    AVERAGE_POOL_19.since(22).types(&[("T", FLOATS)]),
    LP_POOL,
    LP_POOL_2,
    LP_POOL_2.since(11),
    LP_POOL_18,
    LP_POOL_18.since(22).types(&[("T", FLOATS)]),
    GLOBAL_AVERAGE_POOL,
    GLOBAL_AVERAGE_POOL.since(22).types(&[("T", FLOATS)]),
    GLOBAL_MAX_POOL,
    GLOBAL_MAX_POOL.since(22).types(&[("T", FLOATS)]),
    GLOBAL_LP_POOL,
    GLOBAL_LP_POOL_2,
    GLOBAL_LP_POOL_2.since(22).types(&[("T", FLOATS)]),
];

const MAX_POOL: OpDef = op("MaxPool", 1, max_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("auto_pad", Str("NOTSET")),
        attr("kernel_shape", Required(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, D..]", "len(kernel_shape) = len(D)"])
    .doc("maximum over sliding windows, and where it is");

const MAX_POOL_8: OpDef = MAX_POOL
    .since(8)
    .outputs(&[req("Y", "T"), opt("Indices", "I")])
    .attributes(&[
        attr("auto_pad", Str("NOTSET")),
        attr("kernel_shape", Required(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("storage_order", Int(0)),
        attr("strides", Optional(AttrKind::Ints)),
    ])
    .types(&[("T", FLOATS_F16), ("I", I64S)]);

const MAX_POOL_10: OpDef = MAX_POOL_8.since(10).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("ceil_mode", Int(0)),
    attr("dilations", Optional(AttrKind::Ints)),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("storage_order", Int(0)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const MAX_POOL_12: OpDef = MAX_POOL_10.since(12).types(&[("T", &[F32, F64, F16, I8, U8]), ("I", I64S)]);

const AVERAGE_POOL: OpDef = op("AveragePool", 1, average_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("auto_pad", Str("NOTSET")),
        attr("kernel_shape", Required(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, D..]", "len(kernel_shape) = len(D)"])
    .doc("mean over sliding windows");

const AVERAGE_POOL_7: OpDef = AVERAGE_POOL.since(7).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("count_include_pad", Int(0)),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const AVERAGE_POOL_10: OpDef = AVERAGE_POOL_7.since(10).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("ceil_mode", Int(0)),
    attr("count_include_pad", Int(0)),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const AVERAGE_POOL_19: OpDef = AVERAGE_POOL_10.since(19).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("ceil_mode", Int(0)),
    attr("count_include_pad", Int(0)),
    attr("dilations", Optional(AttrKind::Ints)),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const LP_POOL: OpDef = op("LpPool", 1, lp_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("auto_pad", Str("NOTSET")),
        attr("kernel_shape", Optional(AttrKind::Ints)),
        attr("p", Float(2.0)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, D..]", "len(kernel_shape) = len(D)"])
    .doc("Lp norm over sliding windows");

const LP_POOL_2: OpDef = LP_POOL.since(2).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("p", Int(2)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const LP_POOL_18: OpDef = LP_POOL_2.since(18).attributes(&[
    attr("auto_pad", Str("NOTSET")),
    attr("ceil_mode", Int(0)),
    attr("dilations", Optional(AttrKind::Ints)),
    attr("kernel_shape", Required(AttrKind::Ints)),
    attr("p", Int(2)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
]);

const GLOBAL_AVERAGE_POOL: OpDef = op("GlobalAveragePool", 1, global_average_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, ..]"])
    .doc("mean over the spatial axes");

const GLOBAL_MAX_POOL: OpDef = op("GlobalMaxPool", 1, global_max_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, ..]"])
    .doc("maximum over the spatial axes");

const GLOBAL_LP_POOL: OpDef = op("GlobalLpPool", 1, global_lp_pool)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[attr("p", Float(2.0))])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, ..]"])
    .doc("Lp norm over the spatial axes");

const GLOBAL_LP_POOL_2: OpDef = GLOBAL_LP_POOL.since(2).attributes(&[attr("p", Int(2))]);

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

pub fn pool_geometry(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<Geometry> {
    let sizes = spatial_dims(cx.b, x)?;
    let Some(kernel) = cx.ints("kernel_shape")? else {
        return malformed("kernel_shape is missing".to_string());
    };
    let kernel = checked_extents("kernel_shape", &kernel, sizes.len())?;
    geometry(cx, &sizes, kernel.into_iter().map(Dim::from).collect())
}

/// `[N, C, s..] -> [N, out.., kernel.., C]`, reduced over the kernel: `[N, out.., C]`.
fn pooled(
    b: &mut Builder<'_>,
    x: ValueId,
    geometry: &Geometry,
    fill: f64,
    function: ReduceFn,
) -> Result<ValueId> {
    let spatial = geometry.kernel.len();
    let fill = b.scalar(b.dtype(x), fill);
    let padded = geometry.pad(b, x, 1, fill)?;
    let windows = geometry.windows(b, padded, 1)?;
    let axes: Vec<usize> = (1 + spatial..1 + 2 * spatial).collect();
    let reduced = b.reduce(function, windows, &axes)?;
    b.squeeze(reduced, &axes)
}

fn max_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    max_pool_of(cx, x)
}

/// The maxima of windows over the spatial axes of `x`, channels first, and where they are.
pub fn max_pool_of(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<Vec<ValueId>> {
    let geometry = pool_geometry(cx, x)?;
    let column_major = cx.has("storage_order") && cx.int("storage_order")? != 0;
    let wants_indices = cx.wants(1);
    let b = &mut *cx.b;
    let least = lowest(b.dtype(x));
    let last = channels_last(b, x)?;
    let y = pooled(b, last, &geometry, least, ReduceFn::Max)?;
    let mut outputs = vec![channels_first(b, y)?];
    if wants_indices {
        outputs.push(max_indices(b, x, &geometry, column_major)?);
    }
    Ok(outputs)
}

/// Position of each window's first maximum in the flattened input, `[N, C, out..]` of i64. Column-major
/// positions count the spatial axes in reverse order.
fn max_indices(b: &mut Builder<'_>, x: ValueId, geometry: &Geometry, column_major: bool) -> Result<ValueId> {
    let spatial = geometry.kernel.len();
    let dims = b.shape(x);
    let fill = b.scalar(b.dtype(x), lowest(b.dtype(x)));
    let padded = geometry.pad(b, x, 2, fill)?;
    let windows = geometry.windows(b, padded, 2)?;
    let mut shape = b.shape(windows)[..2 + spatial].to_vec();
    let out = shape.clone();
    shape.push(product(&geometry.kernel));
    let windows = b.reshape(windows, shape)?;
    let best = b.emit1(Op::ArgReduce { max: true, axis: 2 + spatial, last: false }, &[windows])?;
    let mut rest = b.squeeze(best, &[2 + spatial])?;
    let mut offsets = vec![rest; spatial];
    let extents = geometry.known_kernel()?;
    for axis in (0..spatial).rev() {
        let kernel = extents[axis] as f64;
        offsets[axis] = b.binary_scalar(BinaryFn::Mod, rest, kernel)?;
        rest = b.binary_scalar(BinaryFn::Div, rest, kernel)?;
    }
    let order: Vec<usize> = if column_major { (0..spatial).rev().collect() } else { (0..spatial).collect() };
    let batch = b.iota(out.clone(), 0)?;
    let channels = b.dim_scalar(&dims[1])?;
    let channel = b.iota(out.clone(), 1)?;
    let mut flat = b.binary(BinaryFn::Mul, batch, channels)?;
    flat = b.binary(BinaryFn::Add, flat, channel)?;
    for axis in order {
        let window = b.iota(out.clone(), 2 + axis)?;
        let start = b.binary_scalar(BinaryFn::Mul, window, geometry.strides[axis] as f64)?;
        let offset = b.binary_scalar(BinaryFn::Mul, offsets[axis], geometry.dilations[axis] as f64)?;
        let lead = b.dim_scalar(&geometry.lo[axis])?;
        let position = b.binary(BinaryFn::Add, start, offset)?;
        let mut position = b.binary(BinaryFn::Sub, position, lead)?;
        if geometry.lo[axis] != Dim::ZERO {
            // Where no element is greater than the padding, the first one of the window is in it: the first tap that
            // is not, is meant.
            let dilation = geometry.dilations[axis] as f64;
            let ahead = b.binary_scalar(BinaryFn::Add, position, extents[axis] as f64 * dilation)?;
            let first = b.binary_scalar(BinaryFn::Mod, ahead, dilation)?;
            position = b.binary(BinaryFn::Max, position, first)?;
        }
        let size = b.dim_scalar(&dims[2 + axis])?;
        flat = b.binary(BinaryFn::Mul, flat, size)?;
        flat = b.binary(BinaryFn::Add, flat, position)?;
    }
    Ok(flat)
}

fn average_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    Ok(vec![averaged(cx, x)?])
}

/// The averages of windows over the spatial axes of `x`, channels first.
pub fn averaged(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let geometry = pool_geometry(cx, x)?;
    let include = cx.has("count_include_pad") && cx.int("count_include_pad")? != 0;
    let b = &mut *cx.b;
    let sizes = spatial_dims(b, x)?;
    let last = channels_last(b, x)?;
    let wide = b.widened(last)?;
    let sums = pooled(b, wide, &geometry, 0.0, ReduceFn::Sum)?;
    let is_zero = |pads: &[Dim]| pads.iter().all(|pad| *pad == Dim::ZERO);
    let full = is_zero(&geometry.extra) && (include || (is_zero(&geometry.lo) && is_zero(&geometry.hi)));
    let y = if full {
        let count: f64 = geometry.known_kernel()?.into_iter().map(|size| size as f64).product();
        b.binary_scalar(BinaryFn::Div, sums, count)?
    } else {
        let counts = window_counts(b, &geometry, &sizes, include)?;
        let counts = b.cast(counts, b.dtype(sums))?;
        b.binary(BinaryFn::Div, sums, counts)?
    };
    let y = b.cast(y, b.dtype(x))?;
    channels_first(b, y)
}

/// Elements per window that count, as f32 `[out.., 1]`: those of the data, and of the stated pads with
/// `include`. What only `ceil_mode` reaches never counts.
fn window_counts(b: &mut Builder<'_>, geometry: &Geometry, sizes: &[Dim], include: bool) -> Result<ValueId> {
    if let Some(counts) = static_counts(geometry, sizes, include) {
        return Ok(b.constant(counts));
    }
    let spatial = sizes.len();
    let (zero, one) = (b.scalar(F32, 0.0), b.scalar(F32, 1.0));
    let border = if include { one } else { zero };
    let mut counts = one;
    for axis in 0..spatial {
        let ones = b.expand(one, vec![sizes[axis].clone()])?;
        let padded = b.pad(ones, border, vec![geometry.lo[axis].clone()], vec![geometry.hi[axis].clone()])?;
        let padded = b.pad(padded, zero, vec![Dim::ZERO], vec![geometry.extra[axis].clone()])?;
        let alone = Geometry {
            kernel: vec![geometry.kernel[axis].clone()],
            strides: vec![geometry.strides[axis]],
            dilations: vec![geometry.dilations[axis]],
            lo: vec![Dim::ZERO],
            hi: vec![Dim::ZERO],
            extra: vec![Dim::ZERO],
            out: vec![geometry.out[axis].clone()],
        };
        let windows = alone.windows(b, padded, 0)?;
        let sums = b.reduce(ReduceFn::Sum, windows, &[1])?;
        let mut shape = vec![Dim::ONE; spatial + 1];
        shape[axis] = geometry.out[axis].clone();
        let sums = b.reshape(sums, shape)?;
        counts = b.binary(BinaryFn::Mul, counts, sums)?;
    }
    Ok(counts)
}

/// Most windows whose counts are tabulated; beyond, they are computed at run time.
const MAX_COUNTS: i64 = 1 << 20;

fn static_counts(geometry: &Geometry, sizes: &[Dim], include: bool) -> Option<Tensor> {
    let outs = geometry.out.iter().map(|out| out.as_const().map(|out| out.max(1)));
    outs.collect::<Option<Vec<i64>>>()?
        .into_iter()
        .try_fold(1i64, |count, out| count.checked_mul(out).filter(|&count| count <= MAX_COUNTS))?;
    let kernel = geometry.known_kernel().ok()?;
    let mut counts = vec![1f32];
    let mut shape = Vec::with_capacity(sizes.len() + 1);
    for (axis, size) in sizes.iter().enumerate() {
        let out = usize::try_from(geometry.out[axis].as_const()?).ok()?;
        let (lo, hi, size) = (geometry.lo[axis].as_const()?, geometry.hi[axis].as_const()?, size.as_const()?);
        let valid = if include { -lo..size + hi } else { 0..size };
        let along: Vec<f32> = (0..out)
            .map(|window| {
                let start = (window * geometry.strides[axis]) as i64 - lo;
                let (taps, step) = (kernel[axis] as i64, geometry.dilations[axis] as i64);
                // Taps before a position.
                let before = |position: i64| (position - start + step - 1).div_euclid(step).clamp(0, taps);
                (before(valid.end) - before(valid.start)).max(0) as f32
            })
            .collect();
        counts = counts.iter().flat_map(|&outer| along.iter().map(move |&inner| outer * inner)).collect();
        shape.push(out);
    }
    shape.push(1);
    Some(Tensor::from_slice(&shape, &counts))
}

/// The exponent, which is a float in the first versions.
fn exponent(cx: &NodeCx<'_, '_>) -> Result<f64> {
    let integer = cx.def.attributes.iter().any(|row| row.name == "p" && matches!(row.default, Int(_)));
    let p = if integer { cx.int("p")? as f64 } else { f64::from(cx.float("p")?) };
    if p > 0.0 { Ok(p) } else { malformed(format!("norm of order {p}")) }
}

/// `|x|^p`
pub fn power(b: &mut Builder<'_>, x: ValueId, p: f64) -> Result<ValueId> {
    if p == 2.0 {
        return b.binary(BinaryFn::Mul, x, x);
    }
    let magnitude = b.unary(UnaryFn::Abs, x)?;
    if p == 1.0 { Ok(magnitude) } else { b.binary_scalar(BinaryFn::Pow, magnitude, p) }
}

/// `x^(1/p)` of a sum of powers.
pub fn root(b: &mut Builder<'_>, x: ValueId, p: f64) -> Result<ValueId> {
    match p {
        1.0 => Ok(x),
        2.0 => b.unary(UnaryFn::Sqrt, x),
        _ => b.binary_scalar(BinaryFn::Pow, x, 1.0 / p),
    }
}

fn lp_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let geometry = pool_geometry(cx, x)?;
    let p = exponent(cx)?;
    let b = &mut *cx.b;
    let last = channels_last(b, x)?;
    // Powers of half precision would overflow where their root does not.
    let last = b.widened(last)?;
    let powers = power(b, last, p)?;
    let sums = pooled(b, powers, &geometry, 0.0, ReduceFn::Sum)?;
    let y = root(b, sums, p)?;
    let y = b.cast(y, b.dtype(x))?;
    Ok(vec![channels_first(b, y)?])
}

pub fn spatial_axes(b: &Builder<'_>, x: ValueId) -> Result<Vec<usize>> {
    match b.rank(x) {
        0 | 1 => malformed(format!("{} has no channels", b.ty(x))),
        rank => Ok((2..rank).collect()),
    }
}

fn global_average_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let axes = spatial_axes(cx.b, x)?;
    Ok(vec![cx.b.mean(x, &axes)?])
}

fn global_max_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let axes = spatial_axes(cx.b, x)?;
    Ok(vec![cx.b.reduce(ReduceFn::Max, x, &axes)?])
}

fn global_lp_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let p = exponent(cx)?;
    let axes = spatial_axes(cx.b, x)?;
    let wide = cx.b.widened(x)?;
    let powers = power(cx.b, wide, p)?;
    let sums = cx.b.reduce(ReduceFn::Sum, powers, &axes)?;
    let y = root(cx.b, sums, p)?;
    Ok(vec![cx.b.cast(y, cx.b.dtype(x))?])
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, ramp};

    #[test]
    fn max_pool_with_pads_dilations_and_ceil_mode() {
        let case = Case::new("MaxPool", 12)
            .ramp(&[1, 1, 5, 5], 1)
            .ints("dilations", &[2, 1])
            .ints("kernel_shape", &[2, 2])
            .ints("pads", &[1, 0, 0, 1])
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 2, 3], &[0.0, 0.75, -1.25, 1.0, 0.75, -0.25]);
        let case = Case::new("MaxPool", 10)
            .ramp(&[1, 1, 6, 6], 1)
            .int("ceil_mode", 1)
            .ints("kernel_shape", &[3, 3])
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 3, 3], &[1.25, 1.0, 1.0, 1.25, 1.0, 1.25, 1.0, 1.25, 1.25]);
        let case = Case::new("MaxPool", 10)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 6, 7], &ramp(42, 1))
            .int("ceil_mode", 1)
            .ints("kernel_shape", &[3, 2])
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 3, 4], &[1.25, 0.5, 1.25, 0.25, 1.0, 1.25, 1.0, 1.25, 0.75, 1.0, 0.75, 1.25]);
    }

    #[test]
    fn an_unknown_auto_pad_is_named() {
        let case = Case::new("MaxPool", 12).ramp(&[1, 1, 5, 5], 1).ints("kernel_shape", &[2, 2]);
        let error = case.str("auto_pad", "SAME").run().unwrap_err();
        let wanted = "auto_pad is `SAME`; it may be one of NOTSET, VALID, SAME_UPPER, SAME_LOWER";
        assert_eq!(error.message, wanted);
    }

    #[test]
    fn max_pool_indices_in_both_storage_orders() {
        let case = Case::new("MaxPool", 12)
            .ramp(&[1, 2, 3, 4], 1)
            .ints("kernel_shape", &[2, 2])
            .ints("pads", &[0, 1, 0, 0])
            .int("storage_order", 0)
            .outputs(2);
        case.gives(
            0,
            &[1, 2, 2, 4],
            &[1.0, 1.25, 1.25, 0.75, 1.0, 1.0, 0.5, 0.75, 1.25, 1.25, 0.75, 1.0, 0.0, 0.5, 0.75, 1.25],
        );
        case.gives(
            1,
            &[1, 2, 2, 4],
            &[4.0, 1.0, 1.0, 7.0, 4.0, 4.0, 10.0, 7.0, 12.0, 12.0, 18.0, 15.0, 16.0, 21.0, 18.0, 23.0],
        );
        let case = Case::new("MaxPool", 12)
            .ramp(&[1, 2, 3, 4], 1)
            .ints("kernel_shape", &[2, 2])
            .ints("pads", &[0, 1, 0, 0])
            .int("storage_order", 1)
            .outputs(2);
        case.gives(
            0,
            &[1, 2, 2, 4],
            &[1.0, 1.25, 1.25, 0.75, 1.0, 1.0, 0.5, 0.75, 1.25, 1.25, 0.75, 1.0, 0.0, 0.5, 0.75, 1.25],
        );
        case.gives(
            1,
            &[1, 2, 2, 4],
            &[1.0, 3.0, 3.0, 10.0, 1.0, 1.0, 8.0, 10.0, 12.0, 12.0, 19.0, 21.0, 13.0, 17.0, 19.0, 23.0],
        );
    }

    #[test]
    fn max_pool_indices_are_never_in_the_padding() {
        let case = Case::new("MaxPool", 12)
            .input::<u8>(&[1, 2, 3], &[0, 0, 5, 0, 0, 0])
            .ints("kernel_shape", &[2])
            .ints("pads", &[1, 0])
            .outputs(2);
        case.gives(1, &[1, 2, 3], &[0.0, 0.0, 2.0, 3.0, 3.0, 4.0]);
        let case = Case::new("MaxPool", 12)
            .input::<i8>(&[1, 1, 4], &[-128; 4])
            .ints("kernel_shape", &[3])
            .ints("dilations", &[2])
            .ints("pads", &[3, 3])
            .outputs(2);
        case.gives(1, &[1, 1, 6], &[1.0, 0.0, 1.0, 0.0, 1.0, 2.0]);
    }

    #[test]
    fn max_pool_of_bytes() {
        let case = Case::new("MaxPool", 12)
            .input::<u8>(&[1, 1, 5], &[3, 200, 7, 9, 1])
            .ints("kernel_shape", &[2])
            .ints("pads", &[1, 0]);
        case.gives(0, &[1, 1, 5], &[3.0, 200.0, 200.0, 9.0, 9.0]);
        let case = Case::new("MaxPool", 12)
            .input::<i8>(&[1, 1, 5], &[-3, -100, -7, -9, -1])
            .ints("kernel_shape", &[2])
            .ints("pads", &[1, 0]);
        case.gives(0, &[1, 1, 5], &[-3.0, -3.0, -7.0, -7.0, -1.0]);
    }

    #[test]
    fn average_pool_counts_pads_or_not() {
        let case = Case::new("AveragePool", 11)
            .ramp(&[1, 1, 3, 4], 1)
            .int("count_include_pad", 0)
            .ints("kernel_shape", &[2, 3])
            .ints("pads", &[1, 1, 0, 1]);
        case.gives(
            0,
            &[1, 1, 3, 4],
            &[
                0.375, 0.333333, 0.25, -0.25, 0.4375, 0.166667, 0.083333, -0.1875, -0.125, -0.166667, -0.25,
                -0.0625,
            ],
        );
        let case = Case::new("AveragePool", 11)
            .ramp(&[1, 1, 3, 4], 1)
            .int("count_include_pad", 1)
            .ints("kernel_shape", &[2, 3])
            .ints("pads", &[1, 1, 0, 1]);
        case.gives(
            0,
            &[1, 1, 3, 4],
            &[
                0.125, 0.166667, 0.125, -0.083333, 0.291667, 0.166667, 0.083333, -0.125, -0.083333,
                -0.166667, -0.25, -0.041667,
            ],
        );
        let case = Case::new("AveragePool", 7)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 5, 5], &ramp(25, 1))
            .str("auto_pad", "SAME_UPPER")
            .ints("kernel_shape", &[3, 3])
            .ints("strides", &[2, 2]);
        case.gives(
            0,
            &[1, 1, 3, 3],
            &[-0.0625, 0.041667, -0.3125, 0.0, 0.027778, -0.25, 0.0625, 0.166667, 0.5],
        );
    }

    #[test]
    fn average_pool_ceil_mode_never_counts_past_the_pads() {
        let case = Case::new("AveragePool", 19)
            .ramp(&[1, 1, 4, 4], 1)
            .int("ceil_mode", 1)
            .int("count_include_pad", 1)
            .ints("kernel_shape", &[3, 3])
            .ints("pads", &[1, 1, 0, 0])
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 2, 2], &[0.194444, 0.055556, 0.111111, -0.111111]);
        // The last window reaches one place beyond the pads.
        let case = Case::new("AveragePool", 19).input::<f32>(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]);
        let case = case.int("ceil_mode", 1).int("count_include_pad", 1).ints("kernel_shape", &[3]);
        case.ints("pads", &[1, 1]).ints("strides", &[2]).gives(0, &[1, 1, 3], &[1.0, 3.0, 2.0]);
    }

    #[test]
    fn lp_pool_of_order_one_two_and_three() {
        let case = Case::new("LpPool", 11).ramp(&[1, 1, 3, 4], 1).ints("kernel_shape", &[2, 2]).int("p", 1);
        case.gives(0, &[1, 1, 2, 3], &[2.75, 2.5, 2.75, 2.5, 2.75, 2.75]);
        let case = Case::new("LpPool", 11).ramp(&[1, 1, 3, 4], 1).ints("kernel_shape", &[2, 2]).int("p", 2);
        case.gives(0, &[1, 1, 2, 3], &[1.677051, 1.620185, 1.47902, 1.620185, 1.677051, 1.436141]);
        let case = Case::new("LpPool", 11).ramp(&[1, 1, 3, 4], 1).ints("kernel_shape", &[2, 2]).int("p", 3);
        case.gives(0, &[1, 1, 2, 3], &[1.454662, 1.437224, 1.229671, 1.437224, 1.454662, 1.186865]);
    }

    #[test]
    fn averages_of_half_precision_are_rounded_once() {
        let x = vec![half::f16::from_f32(30.0); 64 * 64];
        Case::new("GlobalAveragePool", 22).input(&[1, 1, 64, 64], &x).gives(0, &[1, 1, 1, 1], &[30.0]);
        let pool = Case::new("AveragePool", 22).ints("kernel_shape", &[64, 64]);
        pool.input(&[1, 1, 64, 64], &x).gives(0, &[1, 1, 1, 1], &[30.0]);
    }

    /// Squares of 300 are beyond f16, and those of 2^-13 below it.
    #[test]
    fn powers_of_half_precision_are_those_of_single_precision() {
        let x = [300.0, -300.0, 300.0, 300.0].map(half::f16::from_f32);
        let tiny = [2f32.powi(-13); 4].map(half::f16::from_f32);
        for (x, wanted) in [(x, 600.0), (tiny, 2f64.powi(-12))] {
            let input = |case: Case| case.input(&[1, 1, 2, 2], &x);
            let pool = input(Case::new("LpPool", 22)).ints("kernel_shape", &[2, 2]).int("p", 2);
            assert_eq!(pool.run().unwrap()[0].to_f64s().unwrap(), [wanted]);
            let pool = input(Case::new("GlobalLpPool", 22)).int("p", 2);
            assert_eq!(pool.run().unwrap()[0].to_f64s().unwrap(), [wanted]);
        }
    }

    #[test]
    fn global_pools() {
        let case =
            Case::new("GlobalAveragePool", 1).symbolic(&["n", "", "h", "w"], &[2, 2, 2, 3], &ramp(24, 1));
        case.gives(0, &[2, 2, 1, 1], &[0.208333, -0.291667, 0.125, 0.083333]);
        let case = Case::new("GlobalMaxPool", 1).symbolic(&["n", "", "h", "w"], &[2, 2, 2, 3], &ramp(24, 1));
        case.gives(0, &[2, 2, 1, 1], &[1.25, 0.75, 1.25, 1.25]);
        let case = Case::new("GlobalLpPool", 2).ramp(&[1, 2, 2, 2], 1).int("p", 2);
        case.gives(0, &[1, 2, 1, 1], &[1.561249, 1.600781]);
    }
}
