//! Normalizations, in primitives: means, differences, products. Half precision is computed in f32.

use super::AttrDefault::{Float, Int, Ints, Optional, Required};
use super::pool::{power, root};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, normalize_axes, normalize_axis, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{BF16, F32};
use onnxc_ir::graph::{DType, Dim, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    BATCH_NORMALIZATION,
    BATCH_NORMALIZATION_6,
    BATCH_NORMALIZATION_7,
    BATCH_NORMALIZATION_9,
    BATCH_NORMALIZATION_14,
    BATCH_NORMALIZATION_14
        .since(15)
        .inputs(&[
            req("X", "T"),
            req("scale", "T1"),
            req("B", "T1"),
            req("input_mean", "T2"),
            req("input_var", "T2"),
        ])
        .outputs(&[req("Y", "T"), opt("running_mean", "T2"), opt("running_var", "T2")])
        .types(&[("T", FLOATS), ("T1", FLOATS), ("T2", FLOATS)]),
    INSTANCE_NORMALIZATION,
    INSTANCE_NORMALIZATION_6,
    INSTANCE_NORMALIZATION_6.since(22).types(&[("T", FLOATS)]),
    LAYER_NORMALIZATION,
    GROUP_NORMALIZATION,
    GROUP_NORMALIZATION
        .since(21)
        .attributes(&[
            attr("epsilon", Float(1e-05)),
            attr("num_groups", Required(AttrKind::Int)),
            attr("stash_type", Int(1)),
        ])
        .shapes(&["X[_, C, ..]", "C % num_groups = 0", "scale[C]", "bias[C]"]),
    RMS_NORMALIZATION,
    MEAN_VARIANCE_NORMALIZATION,
    MEAN_VARIANCE_NORMALIZATION.since(13).types(&[("T", FLOATS)]),
    LP_NORMALIZATION,
    LP_NORMALIZATION.since(22).types(&[("T", FLOATS)]),
    LRN,
    LRN.since(13).types(&[("T", FLOATS)]),
];

const BATCH_NORMALIZATION: OpDef = op("BatchNormalization", 1, batch_normalization)
    .inputs(&[req("X", "T"), req("scale", "T"), req("B", "T"), req("mean", "T"), req("var", "T")])
    .outputs(&[
        req("Y", "T"),
        opt("mean", "T"),
        opt("var", "T"),
        opt("saved_mean", "T"),
        opt("saved_var", "T"),
    ])
    .attributes(&[
        attr("consumed_inputs", Required(AttrKind::Ints)),
        attr("epsilon", Float(1e-05)),
        attr("is_test", Int(0)),
        attr("momentum", Float(0.9)),
        attr("spatial", Int(1)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&[
        "if spatial != 0: X[_] | [_, C, ..]",
        "if spatial = 0: X[_, F..]",
        "if spatial != 0: scale[C]",
        "if spatial = 0: scale[F..]",
        "if spatial != 0: B[C]",
        "if spatial = 0: B[F..]",
        "if spatial != 0: mean[C]",
        "if spatial = 0: mean[F..]",
        "if spatial != 0: var[C]",
        "if spatial = 0: var[F..]",
    ])
    .doc("scale * (x - mean) / sqrt(var + epsilon) + B per channel");

const BATCH_NORMALIZATION_6: OpDef = BATCH_NORMALIZATION.since(6).attributes(&[
    attr("epsilon", Float(1e-05)),
    attr("is_test", Int(0)),
    attr("momentum", Float(0.9)),
    attr("spatial", Int(1)),
]);

const BATCH_NORMALIZATION_7: OpDef = BATCH_NORMALIZATION_6.since(7).attributes(&[
    attr("epsilon", Float(1e-05)),
    attr("momentum", Float(0.9)),
    attr("spatial", Int(1)),
]);

const BATCH_NORMALIZATION_9: OpDef = BATCH_NORMALIZATION_7
    .since(9)
    .attributes(&[attr("epsilon", Float(1e-05)), attr("momentum", Float(0.9))])
    .shapes(&["X[_] | [_, C, ..]", "scale[C]", "B[C]", "mean[C]", "var[C]"]);

const BATCH_NORMALIZATION_14: OpDef = BATCH_NORMALIZATION_9
    .since(14)
    .inputs(&[req("X", "T"), req("scale", "T"), req("B", "T"), req("input_mean", "U"), req("input_var", "U")])
    .outputs(&[req("Y", "T"), opt("running_mean", "U"), opt("running_var", "U")])
    .attributes(&[attr("epsilon", Float(1e-05)), attr("momentum", Float(0.9)), attr("training_mode", Int(0))])
    .types(&[("T", FLOATS), ("U", FLOATS)])
    .shapes(&["X[_] | [_, C, ..]", "scale[C]", "B[C]", "input_mean[C]", "input_var[C]"]);

const INSTANCE_NORMALIZATION: OpDef = op("InstanceNormalization", 1, instance_normalization)
    .inputs(&[req("input", "T"), req("scale", "T"), req("B", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("consumed_inputs", Optional(AttrKind::Ints)), attr("epsilon", Float(1e-05))])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["input[_, C, ..]", "scale[C]", "B[C]"])
    .doc("normalization over the spatial axes of each channel");

const INSTANCE_NORMALIZATION_6: OpDef =
    INSTANCE_NORMALIZATION.since(6).attributes(&[attr("epsilon", Float(1e-05))]);

const LAYER_NORMALIZATION: OpDef = op("LayerNormalization", 17, layer_normalization)
    .inputs(&[req("X", "T"), req("Scale", "T"), opt("B", "T")])
    .outputs(&[req("Y", "T"), opt("Mean", "U"), opt("InvStdDev", "U")])
    .attributes(&[attr("axis", Int(-1)), attr("epsilon", Float(1e-05)), attr("stash_type", Int(1))])
    .types(&[("T", FLOATS), ("U", &[F32, BF16])])
    .shapes(&["X[..axis, _, ..]", "broadcast(Scale -> X)", "broadcast(B -> X)"])
    .doc("normalization over the trailing axes");

const GROUP_NORMALIZATION: OpDef = op("GroupNormalization", 18, group_normalization)
    .inputs(&[req("X", "T"), req("scale", "T"), req("bias", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[attr("epsilon", Float(1e-05)), attr("num_groups", Required(AttrKind::Int))])
    .types(&[("T", FLOATS)])
    .shapes(&["X[_, C, ..]", "C % num_groups = 0", "scale[num_groups]", "bias[num_groups]"])
    .doc("normalization over groups of channels");

const RMS_NORMALIZATION: OpDef = op("RMSNormalization", 23, rms_normalization)
    .inputs(&[req("X", "T"), req("scale", "V")])
    .outputs(&[req("Y", "V")])
    .attributes(&[attr("axis", Int(-1)), attr("epsilon", Float(1e-05)), attr("stash_type", Int(1))])
    .types(&[("T", FLOATS), ("V", FLOATS)])
    .shapes(&["X[..axis, _, ..]", "broadcast(scale -> X)"])
    .doc("division by the root mean square over the trailing axes");

const MEAN_VARIANCE_NORMALIZATION: OpDef = op("MeanVarianceNormalization", 9, mean_variance_normalization)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[attr("axes", Ints(&[0, 2, 3]))])
    .types(&[("T", FLOATS_F16)])
    .doc("(x - mean) / standard deviation");

const LP_NORMALIZATION: OpDef = op("LpNormalization", 1, lp_normalization)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("axis", Int(-1)), attr("p", Int(2))])
    .types(&[("T", FLOATS_F16)])
    .doc("division by the Lp norm along an axis");

const LRN: OpDef = op("LRN", 1, lrn)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("alpha", Float(0.0001)),
        attr("beta", Float(0.75)),
        attr("bias", Float(1.0)),
        attr("size", Required(AttrKind::Int)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["X[_, _, ..]"])
    .doc("local response normalization across channels");

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// The type that statistics of `dtype` are computed in.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The type of `stash_type`, never narrower than the operand.
fn stash(cx: &NodeCx<'_, '_>, dtype: DType) -> Result<DType> {
    let stated = if cx.has("stash_type") { cx.int("stash_type")? } else { 1 };
    let stated = i32::try_from(stated).ok().and_then(DType::from_onnx).filter(|stated| stated.is_float());
    match stated {
        None => malformed(format!(
            "stash_type is {}; it must be a float type: 1 (float), 10 (float16), 11 (double) or 16 (bfloat16)",
            cx.int("stash_type")?
        )),
        Some(_) if dtype == DType::F64 => Ok(dtype),
        Some(stated) => Ok(wide(stated)),
    }
}

/// The type of statistics that are given as outputs.
fn stated(cx: &NodeCx<'_, '_>) -> Result<DType> {
    Ok(if cx.int("stash_type")? == 16 { BF16 } else { F32 })
}

/// `1 / sqrt(variance + epsilon)`
fn inverse_deviation(b: &mut Builder<'_>, variance: ValueId, epsilon: f32) -> Result<ValueId> {
    let shifted = b.binary_scalar(BinaryFn::Add, variance, f64::from(epsilon))?;
    let deviation = b.unary(UnaryFn::Sqrt, shifted)?;
    b.unary(UnaryFn::Recip, deviation)
}

/// `x / sqrt(mean(x * x) + epsilon)` over `axes`, and the inverse of the square root, in the type of `x`.
pub fn by_root_mean_square(
    b: &mut Builder<'_>,
    x: ValueId,
    axes: &[usize],
    epsilon: f32,
) -> Result<(ValueId, ValueId)> {
    let squares = b.binary(BinaryFn::Mul, x, x)?;
    let mean = b.mean(squares, axes)?;
    let inverse = inverse_deviation(b, mean, epsilon)?;
    Ok((b.binary(BinaryFn::Mul, x, inverse)?, inverse))
}

/// Mean and variance over `axes`, and `x - mean`.
pub(super) struct Moments {
    mean: ValueId,
    pub variance: ValueId,
    pub centred: ValueId,
}

pub(super) fn moments(b: &mut Builder<'_>, x: ValueId, axes: &[usize]) -> Result<Moments> {
    let mean = b.mean(x, axes)?;
    let centred = b.binary(BinaryFn::Sub, x, mean)?;
    let squares = b.binary(BinaryFn::Mul, centred, centred)?;
    let variance = b.mean(squares, axes)?;
    Ok(Moments { mean, variance, centred })
}

/// `(x - mean) / sqrt(variance + epsilon)` over `axes`, the mean, and the inverse of the square root.
pub fn normalized(
    b: &mut Builder<'_>,
    x: ValueId,
    axes: &[usize],
    epsilon: f32,
) -> Result<(ValueId, ValueId, ValueId)> {
    let found = moments(b, x, axes)?;
    let inverse = inverse_deviation(b, found.variance, epsilon)?;
    let y = b.binary(BinaryFn::Mul, found.centred, inverse)?;
    Ok((y, found.mean, inverse))
}

/// A `[C]` parameter against `[N, C, s..]` of rank `rank`: `[C, 1..]`.
fn per_channel(b: &mut Builder<'_>, parameter: ValueId, rank: usize) -> Result<ValueId> {
    let mut shape = b.shape(parameter);
    if shape.len() != 1 || rank == 0 {
        return malformed(format!("{} as a parameter per channel", b.ty(parameter)));
    }
    shape.resize(rank.max(2) - 1, Dim::ONE);
    b.reshape(parameter, shape)
}

/// `y = x * s + o` with `s = scale / sqrt(var + epsilon)`, `o = B - mean * s`, both per channel, in the widest type of the
/// operands and at least f32: `x * s` and `o` may cancel, and statistics may be beyond the type of `x`.
/// BatchNormalization, in training by the statistics of the batch, which outputs 3 and 4 are.
pub fn batch_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let epsilon = cx.float("epsilon")?;
    let rank = cx.b.rank(x);
    // Without `spatial`, statistics are per feature: their shape is that of one sample.
    let spatial = !cx.has("spatial") || cx.int("spatial")? != 0;
    let mut given = [x; 4];
    for (at, slot) in given.iter_mut().enumerate() {
        *slot = cx.input(at + 1)?;
    }
    let training = trains(cx)?;
    let momentum = cx.float("momentum")?;
    let b = &mut *cx.b;
    let has_double = [x].iter().chain(&given).any(|&value| b.dtype(value) == DType::F64);
    let dtype = if has_double { DType::F64 } else { DType::F32 };
    let mut flat = [x; 4];
    for (slot, value) in flat.iter_mut().zip(given) {
        *slot = b.cast(value, dtype)?;
    }
    if training {
        return train(cx, x, flat, spatial, epsilon, momentum);
    }
    let parameters = aligned(b, flat, rank, spatial)?;
    Ok(vec![affine(b, x, parameters, epsilon)?])
}

/// Whether the statistics are those of the batch. Before version 14 a node that names their outputs trains;
/// `is_test` of the first versions is often left at its default 0 by models that only infer.
fn trains(cx: &NodeCx<'_, '_>) -> Result<bool> {
    if cx.has("training_mode") {
        return Ok(cx.int("training_mode")? != 0);
    }
    let tests = cx.has("is_test") && cx.int("is_test")? != 0;
    Ok(!tests && (1..cx.outputs).any(|at| cx.wants(at)))
}

fn aligned(b: &mut Builder<'_>, flat: [ValueId; 4], rank: usize, spatial: bool) -> Result<[ValueId; 4]> {
    let mut aligned = flat;
    if spatial {
        for slot in &mut aligned {
            *slot = per_channel(b, *slot, rank)?;
        }
    }
    Ok(aligned)
}

/// Scale, B, mean and variance applied to `x`; computed in their type, and rounded to that of `x`.
fn affine(b: &mut Builder<'_>, x: ValueId, parameters: [ValueId; 4], epsilon: f32) -> Result<ValueId> {
    let [scale, bias, mean, variance] = parameters;
    let shifted = b.binary_scalar(BinaryFn::Add, variance, f64::from(epsilon))?;
    let deviation = b.unary(UnaryFn::Sqrt, shifted)?;
    let factor = b.binary(BinaryFn::Div, scale, deviation)?;
    let product = b.binary(BinaryFn::Mul, mean, factor)?;
    let offset = b.binary(BinaryFn::Sub, bias, product)?;
    let samples = b.cast(x, b.dtype(factor))?;
    let y = b.binary(BinaryFn::Mul, samples, factor)?;
    let y = b.binary(BinaryFn::Add, y, offset)?;
    b.cast(y, b.dtype(x))
}

/// Normalizes by the batch's own statistics; the running ones move towards them.
fn train(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    parameters: [ValueId; 4],
    spatial: bool,
    epsilon: f32,
    momentum: f32,
) -> Result<Vec<ValueId>> {
    let stated = [cx.b.dtype(cx.input(3)?), cx.b.dtype(cx.input(4)?)];
    let named = cx.wanted.len();
    let b = &mut *cx.b;
    let rank = b.rank(x);
    if rank < 2 {
        return malformed(format!("batch statistics of {}", b.ty(x)));
    }
    let [scale, bias, running_mean, running_variance] = parameters;
    let axes: Vec<usize> = (0..rank).filter(|&axis| if spatial { axis != 1 } else { axis == 0 }).collect();
    let dtype = b.dtype(running_mean);
    let samples = b.cast(x, dtype)?;
    let found = moments(b, samples, &axes)?;
    let shape = b.shape(running_mean);
    let mean = b.reshape(found.mean, shape.clone())?;
    let variance = b.reshape(found.variance, shape)?;
    let [scale, bias, ..] = aligned(b, [scale, bias, mean, variance], rank, spatial)?;
    let inverse = inverse_deviation(b, found.variance, epsilon)?;
    // The mean goes first: the product with it may be far larger than the difference.
    let y = b.binary(BinaryFn::Mul, found.centred, inverse)?;
    let y = b.binary(BinaryFn::Mul, y, scale)?;
    let y = b.binary(BinaryFn::Add, y, bias)?;
    let mut outputs = vec![b.cast(y, b.dtype(x))?];
    for (at, (running, batch)) in [(running_mean, mean), (running_variance, variance)].into_iter().enumerate()
    {
        let old = b.binary_scalar(BinaryFn::Mul, running, f64::from(momentum))?;
        let new = b.binary_scalar(BinaryFn::Mul, batch, 1.0 - f64::from(momentum))?;
        let moved = b.binary(BinaryFn::Add, old, new)?;
        outputs.push(b.cast(moved, stated[at])?);
    }
    for (at, saved) in [mean, variance].into_iter().enumerate() {
        if named > 3 + at {
            outputs.push(b.cast(saved, stated[at])?);
        }
    }
    Ok(outputs)
}

fn instance_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, bias) = (cx.input("input")?, cx.input("scale")?, cx.input("B")?);
    let epsilon = cx.float("epsilon")?;
    let b = &mut *cx.b;
    let (rank, dtype) = (b.rank(x), b.dtype(x));
    if rank < 3 {
        return malformed(format!("{} has no spatial axes", b.ty(x)));
    }
    let axes: Vec<usize> = (2..rank).collect();
    let x = b.cast(x, wide(dtype))?;
    let found = moments(b, x, &axes)?;
    let inverse = inverse_deviation(b, found.variance, epsilon)?;
    let y = b.binary(BinaryFn::Mul, found.centred, inverse)?;
    let y = scale_and_shift(b, y, scale, bias)?;
    Ok(vec![b.cast(y, dtype)?])
}

/// `x * scale + bias` per channel, in `x`'s dtype.
pub fn scale_and_shift(b: &mut Builder<'_>, x: ValueId, scale: ValueId, bias: ValueId) -> Result<ValueId> {
    let (rank, dtype) = (b.rank(x), b.dtype(x));
    let (scale, bias) = (b.cast(scale, dtype)?, b.cast(bias, dtype)?);
    let (scale, bias) = (per_channel(b, scale, rank)?, per_channel(b, bias, rank)?);
    let y = b.binary(BinaryFn::Mul, x, scale)?;
    b.binary(BinaryFn::Add, y, bias)
}

pub(super) fn layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let epsilon = cx.float("epsilon")?;
    let (rank, dtype) = (cx.b.rank(x), cx.b.dtype(x));
    let axis = normalize_axis(cx.int("axis")?, rank)?;
    let stash_dtype = stash(cx, dtype)?;
    let stated = stated(cx)?;
    let b = &mut *cx.b;
    let axes: Vec<usize> = (axis..rank).collect();
    let x = b.cast(x, stash_dtype)?;
    let (y, mean, inverse) = normalized(b, x, &axes, epsilon)?;
    let y = b.cast(y, b.dtype(scale))?;
    let mut y = b.binary(BinaryFn::Mul, y, scale)?;
    if let Some(bias) = bias {
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    Ok(vec![y, b.cast(mean, stated)?, b.cast(inverse, stated)?])
}

pub(super) fn rms_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let epsilon = cx.float("epsilon")?;
    let (rank, dtype) = (cx.b.rank(x), cx.b.dtype(x));
    let axis = normalize_axis(cx.int("axis")?, rank)?;
    let (stash_dtype, stated) = (stash(cx, dtype)?, stated(cx)?);
    let b = &mut *cx.b;
    let axes: Vec<usize> = (axis..rank).collect();
    let x = b.cast(x, stash_dtype)?;
    let (y, inverse) = by_root_mean_square(b, x, &axes, epsilon)?;
    let y = b.cast(y, b.dtype(scale))?;
    Ok(vec![b.binary(BinaryFn::Mul, y, scale)?, b.cast(inverse, stated)?])
}

/// `[N, C, s..]` with channels in groups, each normalized: `[N, groups, C / groups, s..]`.
pub fn normalized_groups(b: &mut Builder<'_>, x: ValueId, groups: i64, epsilon: f32) -> Result<ValueId> {
    let (rank, mut grouped) = (b.rank(x), b.shape(x));
    if rank < 2 || groups < 1 {
        return malformed(format!("{} in {groups} groups of channels", b.ty(x)));
    }
    grouped[1] = b.divided(&grouped[1], groups, "channels must divide into groups")?;
    grouped.insert(1, Dim::from(groups));
    let x = b.reshape(x, grouped)?;
    let axes: Vec<usize> = (2..=rank).collect();
    Ok(normalized(b, x, &axes, epsilon)?.0)
}

fn group_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, bias) = (cx.input("X")?, cx.input("scale")?, cx.input("bias")?);
    let (groups, epsilon) = (cx.int("num_groups")?, cx.float("epsilon")?);
    // The first version scales per group, the second per channel.
    let scales_groups = cx.def.since < 21;
    let dtype = cx.b.dtype(x);
    let stash_dtype = stash(cx, dtype)?;
    let b = &mut *cx.b;
    let shape = b.shape(x);
    let x = b.cast(x, stash_dtype)?;
    let y = normalized_groups(b, x, groups, epsilon)?;
    let y = b.cast(y, dtype)?;
    let y = if scales_groups {
        let y = scale_and_shift(b, y, scale, bias)?;
        b.reshape(y, shape)?
    } else {
        let y = b.reshape(y, shape)?;
        scale_and_shift(b, y, scale, bias)?
    };
    Ok(vec![y])
}

fn mean_variance_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let rank = cx.b.rank(x);
    let axes = normalize_axes(&cx.ints("axes")?.unwrap_or_default(), rank)?;
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let x = b.cast(x, wide(dtype))?;
    let found = moments(b, x, &axes)?;
    let deviation = b.unary(UnaryFn::Sqrt, found.variance)?;
    let deviation = b.binary_scalar(BinaryFn::Add, deviation, 1e-9)?;
    let y = b.binary(BinaryFn::Div, found.centred, deviation)?;
    Ok(vec![b.cast(y, dtype)?])
}

/// A vector of norm zero stays zero.
fn lp_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let p = cx.int("p")?;
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    if !(1..=2).contains(&p) {
        return malformed(format!("norm of order {p}"));
    }
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    // Powers of half precision would overflow where their root does not.
    let x = b.widened(x)?;
    let powers = power(b, x, p as f64)?;
    let sum = b.reduce(ReduceFn::Sum, powers, &[axis])?;
    let norm = root(b, sum, p as f64)?;
    let (zero, one) = (b.scalar(b.dtype(x), 0.0), b.scalar(b.dtype(x), 1.0));
    let vanishes = b.compare(CompareFn::Eq, norm, zero)?;
    let norm = b.select(vanishes, one, norm)?;
    let y = b.binary(BinaryFn::Div, x, norm)?;
    Ok(vec![b.cast(y, dtype)?])
}

/// `y = x / (bias + alpha / size * sum of squares of the neighbouring channels)^beta`
fn lrn(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let (alpha, beta, bias) = (cx.float("alpha")?, cx.float("beta")?, cx.float("bias")?);
    let size = match cx.int("size")? {
        size @ 1..=0xff_ffff => size as usize,
        other => return malformed(format!("size {other}")),
    };
    let b = &mut *cx.b;
    let rank = b.rank(x);
    if rank < 2 {
        return malformed(format!("{} has no channels", b.ty(x)));
    }
    let dtype = b.dtype(x);
    let x = b.widened(x)?;
    let squares = b.binary(BinaryFn::Mul, x, x)?;
    let (mut lo, mut hi) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    lo[1] = Dim::from((size - 1) / 2);
    hi[1] = Dim::from(size / 2);
    let zero = b.scalar(b.dtype(x), 0.0);
    let padded = b.pad(squares, zero, lo, hi)?;
    let windows = b.emit1(
        Op::Window { first: 1, kernel: vec![size], strides: vec![1], dilations: vec![1] },
        &[padded],
    )?;
    let sums = b.reduce(ReduceFn::Sum, windows, &[2])?;
    let sums = b.squeeze(sums, &[2])?;
    let scaled = b.binary_scalar(BinaryFn::Mul, sums, f64::from(alpha) / size as f64)?;
    let base = b.binary_scalar(BinaryFn::Add, scaled, f64::from(bias))?;
    let divisor = if beta == 0.75 {
        // Two square roots are far cheaper than a general power.
        let half = b.unary(UnaryFn::Sqrt, base)?;
        let quarter = b.unary(UnaryFn::Sqrt, half)?;
        b.binary(BinaryFn::Mul, half, quarter)?
    } else {
        b.binary_scalar(BinaryFn::Pow, base, f64::from(beta))?
    };
    let y = b.binary(BinaryFn::Div, x, divisor)?;
    Ok(vec![b.cast(y, dtype)?])
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, ramp};

    #[test]
    fn batch_normalization_of_old_and_new_versions() {
        let case = Case::new("BatchNormalization", 7)
            .ramp(&[1, 2, 2, 2], 1)
            .constant_ramp(&[2], 2)
            .constant_ramp(&[2], 3)
            .constant_ramp(&[2], 4)
            .constant::<f32>(&[2], &[0.5, 2.0])
            .float("epsilon", 0.01);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[1.175035, 1.787657, 1.437587, 1.087517, -0.132252, 0.396757, 0.925766, 0.0],
        );
        let case = Case::new("BatchNormalization", 9)
            .ramp(&[1, 2, 2, 2], 1)
            .constant_ramp(&[2], 2)
            .constant_ramp(&[2], 3)
            .constant_ramp(&[2], 4)
            .constant::<f32>(&[2], &[0.5, 2.0])
            .float("epsilon", 0.01);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[1.175035, 1.787657, 1.437587, 1.087517, -0.132252, 0.396757, 0.925766, 0.0],
        );
        let case = Case::new("BatchNormalization", 15)
            .ramp(&[1, 2, 2, 2], 1)
            .constant_ramp(&[2], 2)
            .constant_ramp(&[2], 3)
            .constant_ramp(&[2], 4)
            .constant::<f32>(&[2], &[0.5, 2.0])
            .float("epsilon", 0.01);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[1.175035, 1.787657, 1.437587, 1.087517, -0.132252, 0.396757, 0.925766, 0.0],
        );
        let case = Case::new("BatchNormalization", 7)
            .ramp(&[2, 2, 2], 1)
            .constant_ramp(&[2, 2], 2)
            .constant_ramp(&[2, 2], 3)
            .constant_ramp(&[2, 2], 4)
            .constant::<f32>(&[2, 2], &[0.5, 1.0, 2.0, 3.0])
            .int("spatial", 0);
        case.gives(0, &[2, 2, 2], &[1.176775, -0.374998, -0.646448, 0.75, 1.7071, 0.562497, -1.530329, 0.75]);
    }

    /// Squares of 300 and 400 are beyond f16.
    #[test]
    fn squares_of_half_precision_are_those_of_single_precision() {
        let x = [300.0, -400.0].map(half::f16::from_f32);
        let norm = Case::new("LpNormalization", 22).input(&[2], &x).run().unwrap();
        assert_eq!(norm[0].to_f64s().unwrap(), [0.6, -0.8].map(|y| half::f16::from_f64(y).to_f64()));
        let lrn = Case::new("LRN", 13).input(&[1, 2, 1, 1], &x).int("size", 1).float("alpha", 1.0);
        let exact = [300.0f64, -400.0].map(|x| half::f16::from_f64(x / (1.0 + x * x).powf(0.75)).to_f64());
        let found = lrn.run().unwrap()[0].to_f64s().unwrap();
        assert!(
            found.iter().zip(exact).all(|(found, exact)| (found - exact).abs() < 1e-3 * exact.abs()),
            "{found:?}"
        );
    }

    #[test]
    fn batch_normalization_that_trains() {
        let case = Case::new("BatchNormalization", 15)
            .ramp(&[2, 2, 3], 1)
            .ramp(&[2], 2)
            .ramp(&[2], 3)
            .ramp(&[2], 4)
            .constant::<f32>(&[2], &[0.5, 2.0])
            .float("momentum", 0.75)
            .int("training_mode", 1)
            .outputs(3);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                0.807914, 1.384171, 1.054882, 0.576257, -1.152515, -0.164645, 0.643269, 1.219527, 0.890237,
                1.070192, -0.65858, 0.32929,
            ],
        );
        case.gives(1, &[2], &[-0.729167, 0.520833]);
        case.gives(2, &[2], &[0.519097, 1.644097]);
    }

    /// The widest type of the operands is computed in, and the result rounded once: a scale of 2e5 is beyond f16, a mean just below 3 is
    /// not an f32, and 2.859 * -0.687 and 1.966 cancel in bf16.
    #[test]
    fn batch_normalization_of_mixed_and_narrow_types() {
        let half = |x: f32| half::f16::from_f32(x);
        let mixed = Case::new("BatchNormalization", 15)
            .input(&[1, 1, 2], &[0.25, -0.5].map(half))
            .input(&[1], &[2e5f32])
            .input(&[1], &[1f32])
            .input(&[1], &[0.25f32])
            .input(&[1], &[1f32])
            .float("epsilon", 0.0);
        mixed.gives(0, &[1, 1, 2], &[1.0, f64::NEG_INFINITY]);
        let unit = 2f64.powi(30);
        let double = Case::new("BatchNormalization", 15)
            .input(&[1, 1, 1], &[3f32])
            .input(&[1], &[unit])
            .input(&[1], &[0f64])
            .input(&[1], &[3.0 - 1.0 / unit])
            .input(&[1], &[1f64])
            .float("epsilon", 0.0);
        double.gives(0, &[1, 1, 1], &[1.0]);
        let narrow = |x: f32| half::bf16::from_f32(x);
        let cancelling = Case::new("BatchNormalization", 15)
            .input(&[1, 1, 1], &[narrow(2.859375)])
            .input(&[1], &[narrow(-0.53125)])
            .input(&[1], &[narrow(1.7734375)])
            .input(&[1], &[narrow(0.28125)])
            .input(&[1], &[narrow(0.597_656_25)]);
        let found = cancelling.run().unwrap()[0].to_f64s().unwrap()[0];
        assert!((found - 0.0018116).abs() < 1e-5, "{found}");
    }

    /// What all samples have in common leaves nothing.
    #[test]
    fn batch_normalization_of_samples_that_do_not_differ() {
        let case = Case::new("BatchNormalization", 15)
            .input(&[1, 1], &[17.080_71f32])
            .input(&[1], &[2.603_344_2f32])
            .input(&[1], &[-0.135_262_65f32])
            .input(&[1], &[-1.118_189_8f32])
            .input(&[1], &[0.420_353f32])
            .int("training_mode", 1);
        assert_eq!(case.run().unwrap()[0], onnxc_ir::graph::Tensor::from_slice(&[1, 1], &[-0.135_262_65f32]));
    }

    #[test]
    fn instance_and_group_normalization() {
        let case = Case::new("InstanceNormalization", 6)
            .symbolic(&["n", "", "h", "w"], &[1, 2, 2, 2], &ramp(8, 1))
            .constant_ramp(&[2], 2)
            .constant_ramp(&[2], 3)
            .float("epsilon", 0.01);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[0.82075, 1.378417, 1.05975, 0.741083, -0.776751, 0.17925, 1.135251, -0.53775],
        );
        let case = Case::new("GroupNormalization", 18)
            .ramp(&[1, 4, 2], 1)
            .constant_ramp(&[2], 2)
            .constant_ramp(&[2], 4)
            .int("num_groups", 2);
        case.gives(
            0,
            &[1, 4, 2],
            &[-1.180723, -0.618474, -0.939759, -1.261044, -0.033132, 0.930723, 1.894578, 0.207831],
        );
        let case = Case::new("GroupNormalization", 21)
            .ramp(&[1, 4, 2], 1)
            .constant_ramp(&[4], 2)
            .constant_ramp(&[4], 4)
            .int("num_groups", 2);
        case.gives(
            0,
            &[1, 4, 2],
            &[-1.180723, -0.618474, 0.569277, 1.533132, 0.794176, -0.490964, -1.25, -1.25],
        );
    }

    #[test]
    fn layer_normalization_gives_its_moments() {
        let case = Case::new("LayerNormalization", 17)
            .ramp(&[2, 2, 3], 1)
            .constant_ramp(&[2, 3], 2)
            .constant_ramp(&[2, 3], 3)
            .int("axis", 1)
            .outputs(3);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                0.756648, -1.073612, -0.942741, 0.75, -1.337927, -1.464722, 0.756648, -1.073612, -0.942741,
                0.75, -1.337926, -1.464722,
            ],
        );
        case.gives(1, &[2, 1, 1], &[0.208333, -0.291667]);
        case.gives(2, &[2, 1, 1], &[1.374223, 1.374223]);
        let case = Case::new("LayerNormalization", 17).ramp(&[2, 4], 1).constant_ramp(&[4], 2);
        case.gives(0, &[2, 4], &[-0.180723, -1.144578, 0.240964, -0.0, 0.261044, 0.180723, -1.526104, 0.0]);
    }

    #[test]
    fn rms_mean_variance_and_lp_normalization() {
        let case = Case::new("RMSNormalization", 23).ramp(&[2, 4], 1).constant_ramp(&[4], 2);
        case.gives(0, &[2, 4], &[-0.160127, -1.200951, 0.320254, -0.0, 0.312345, -0.0, -1.24938, 0.0]);
        let case = Case::new("MeanVarianceNormalization", 13).ramp(&[1, 2, 2, 2], 1);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[-0.722897, 1.526117, 0.240966, -1.044185, 1.044185, -0.240966, -1.526117, 0.722897],
        );
        // What is added to the deviation, here as large as that.
        let case = Case::new("MeanVarianceNormalization", 13).input::<f32>(&[1, 2], &[1e-9, -1e-9]);
        case.ints("axes", &[0, 1]).gives(0, &[1, 2], &[0.5, -0.5]);
        let case = Case::new("LpNormalization", 1).ramp(&[2, 3], 1).int("axis", 0).int("p", 1);
        case.gives(0, &[2, 3], &[-0.4, 0.555556, 1.0, -0.6, 0.444444, 0.0]);
        let case = Case::new("LpNormalization", 1).ramp(&[2, 3], 1).int("p", 2);
        case.gives(0, &[2, 3], &[-0.365148, 0.912871, 0.182574, -0.6, 0.8, 0.0]);
    }

    #[test]
    fn local_response_normalization() {
        let case = Case::new("LRN", 13)
            .ramp(&[1, 4, 1, 2], 1)
            .float("alpha", 0.5)
            .float("beta", 0.75)
            .float("bias", 2.0)
            .int("size", 3);
        case.gives(
            0,
            &[1, 4, 1, 2],
            &[-0.291624, 0.657706, 0.137518, -0.394624, 0.527918, 0.0, -0.529685, 0.430891],
        );
        let case = Case::new("LRN", 13)
            .ramp(&[1, 4, 1, 2], 1)
            .float("alpha", 0.5)
            .float("beta", 0.6)
            .float("bias", 2.0)
            .int("size", 3);
        case.gives(
            0,
            &[1, 4, 1, 2],
            &[-0.324828, 0.747838, 0.15498, -0.448703, 0.599865, 0.0, -0.60147, 0.4814],
        );
    }
}
