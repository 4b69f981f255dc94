//! Convolutions. They compute channels-last: a window view contracted with a `[kernel.., C, M]` weight,
//! between two transposes that later passes cancel.

use super::AttrDefault::{Int, Optional, Str};
use super::row::{share, unsupported};
use super::spatial::{
    Geometry, channels_first, channels_last, checked_extents, explicit_pads, extents, geometry, reach,
    spatial_dims,
};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, opt, req};
use crate::error::{Error, Result, Stage};
use crate::graph::dim::product;
use crate::graph::{Builder, Dim, Op, RhsLayout, ValueId};
use crate::scalar::{BinaryFn, ReduceFn};

pub const ROWS: &[OpDef] = &[
    CONV,
    OpDef { since: 11, ..CONV },
    OpDef { since: 22, types: &[("T", FLOATS)], ..CONV },
    CONV_TRANSPOSE,
    OpDef { since: 11, ..CONV_TRANSPOSE },
    OpDef { since: 22, types: &[("T", FLOATS)], ..CONV_TRANSPOSE },
];

const CONV: OpDef = OpDef {
    domain: "",
    name: "Conv",
    since: 1,
    inputs: &[req("X", "T"), req("W", "T"), opt("B", "T")],
    outputs: &[req("Y", "T")],
    attributes: &[
        attr("auto_pad", Str("NOTSET")),
        attr("dilations", Optional(AttrKind::Ints)),
        attr("group", Int(1)),
        attr("kernel_shape", Optional(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ],
    types: &[("T", FLOATS_F16)],
    lower: conv,
    doc: "convolution plus bias",
};

const CONV_TRANSPOSE: OpDef = OpDef {
    domain: "",
    name: "ConvTranspose",
    since: 1,
    inputs: &[req("X", "T"), req("W", "T"), opt("B", "T")],
    outputs: &[req("Y", "T")],
    attributes: &[
        attr("auto_pad", Str("NOTSET")),
        attr("dilations", Optional(AttrKind::Ints)),
        attr("group", Int(1)),
        attr("kernel_shape", Optional(AttrKind::Ints)),
        attr("output_padding", Optional(AttrKind::Ints)),
        attr("output_shape", Optional(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ],
    types: &[("T", FLOATS_F16)],
    lower: conv_transpose,
    doc: "transposed convolution (the gradient of Conv) plus bias",
};

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

fn conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w, bias) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let plan = plan(cx, x, w)?;
    let y = convolve(cx.b, x, w, &plan)?;
    let y = match bias {
        Some(bias) => cx.b.binary(BinaryFn::Add, y, bias)?,
        None => y,
    };
    Ok(vec![channels_first(cx.b, y)?])
}

/// What a convolution needs besides its operands.
pub struct Plan {
    pub geometry: Geometry,
    pub groups: usize,
}

/// Reads the attributes of a convolution of `x: [N, C, s..]` with `w: [M, C/group, k..]` and checks that
/// they fit.
pub fn plan(cx: &NodeCx<'_, '_>, x: ValueId, w: ValueId) -> Result<Plan> {
    let sizes = spatial_dims(cx.b, x)?;
    let kernel = kernel_dims(cx, w, sizes.len())?;
    let groups = groups(cx)?;
    let (x_ty, w_ty) = (cx.b.ty(x), cx.b.ty(w));
    if let (Some(channels), Some(per_group)) = (x_ty.shape[1].as_const(), w_ty.shape[1].as_const())
        && per_group.checked_mul(groups as i64) != Some(channels)
    {
        return malformed(format!("convolution of {x_ty} with weights {w_ty} in {groups} groups"));
    }
    if w_ty.shape[0].as_const().is_some_and(|count| count % groups as i64 != 0) {
        return malformed(format!("weights {w_ty} do not divide into {groups} groups"));
    }
    Ok(Plan { geometry: geometry(cx, &sizes, kernel)?, groups })
}

fn groups(cx: &NodeCx<'_, '_>) -> Result<usize> {
    match cx.int("group")? {
        count @ 1..=0x7fff_ffff => Ok(count as usize),
        other => malformed(format!("group {other}")),
    }
}

/// Kernel extents: those of the weights, which `kernel_shape` must repeat.
pub fn kernel_extents(cx: &NodeCx<'_, '_>, w: ValueId, rank: usize) -> Result<Vec<usize>> {
    let kernel = kernel_dims(cx, w, rank)?;
    let known: Option<Vec<i64>> = kernel.iter().map(Dim::as_const).collect();
    match known {
        Some(known) => checked_extents("kernel", &known, rank),
        None => unsupported(format!("a kernel of symbolic extents: weights {}", cx.b.ty(w))),
    }
}

/// [`kernel_extents`], symbols where neither the weights nor the attribute tell them.
fn kernel_dims(cx: &NodeCx<'_, '_>, w: ValueId, rank: usize) -> Result<Vec<Dim>> {
    let ty = cx.b.ty(w);
    if ty.rank() != rank + 2 {
        return malformed(format!("weights {ty} for {rank} spatial axes"));
    }
    let stated = cx.ints("kernel_shape")?.filter(|kernel| !kernel.is_empty());
    let actual: Option<Vec<i64>> = ty.shape[2..].iter().map(Dim::as_const).collect();
    match (stated, actual) {
        (Some(stated), Some(actual)) if stated != actual => {
            malformed(format!("kernel_shape {stated:?} with weights {ty}"))
        }
        (_, Some(kernel)) | (Some(kernel), None) => {
            Ok(checked_extents("kernel", &kernel, rank)?.into_iter().map(Dim::from).collect())
        }
        (None, None) => Ok(ty.shape[2..].to_vec()),
    }
}

/// The convolution without bias, channels-last: `[N, out.., M]`.
pub fn convolve(b: &mut Builder<'_>, x: ValueId, w: ValueId, plan: &Plan) -> Result<ValueId> {
    let x = channels_last(b, x)?;
    let w_shape = b.shape(w);
    match plan.groups {
        1 => dense(b, x, w, &plan.geometry),
        groups => {
            let one_each = w_shape[1] == Dim::ONE && w_shape[0] == Dim::from(groups);
            if one_each { depthwise(b, x, w, &plan.geometry) } else { grouped(b, x, w, plan) }
        }
    }
}

fn zero(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    b.scalar(b.dtype(x), 0.0)
}

fn dense(b: &mut Builder<'_>, x: ValueId, w: ValueId, geometry: &Geometry) -> Result<ValueId> {
    let spatial = geometry.kernel.len();
    let fill = zero(b, x);
    let padded = geometry.pad(b, x, 1, fill)?;
    let rhs = kernel_major(b, w)?;
    if geometry.is_pointwise() {
        let shape = b.shape(rhs)[spatial..].to_vec();
        let rhs = b.reshape(rhs, shape)?;
        let op = Op::Contract { batch: 0, m: 1 + spatial, k: 1, rhs: RhsLayout::Plain };
        return b.emit1(op, &[padded, rhs]);
    }
    let windows = geometry.windows(b, padded, 1)?;
    let op = Op::Contract { batch: 0, m: 1 + spatial, k: spatial + 1, rhs: RhsLayout::Plain };
    b.emit1(op, &[windows, rhs])
}

/// `[M, C, k..] -> [k.., C, M]`
fn kernel_major(b: &mut Builder<'_>, w: ValueId) -> Result<ValueId> {
    let mut perm: Vec<usize> = (2..b.rank(w)).collect();
    perm.extend([1, 0]);
    b.transpose(w, &perm)
}

/// One filter per channel: a product and a sum over the kernel, vectors along the channels. Rounded once, as a
/// contraction is.
fn depthwise(b: &mut Builder<'_>, x: ValueId, w: ValueId, geometry: &Geometry) -> Result<ValueId> {
    let spatial = geometry.kernel.len();
    let fill = zero(b, x);
    let padded = geometry.pad(b, x, 1, fill)?;
    let windows = geometry.windows(b, padded, 1)?;
    let rhs = kernel_major(b, w)?;
    let rhs = b.squeeze(rhs, &[spatial])?;
    let (dtype, windows, rhs) = (b.dtype(x), b.widened(windows)?, b.widened(rhs)?);
    let products = b.binary(BinaryFn::Mul, windows, rhs)?;
    let axes: Vec<usize> = (1 + spatial..1 + 2 * spatial).collect();
    let sums = b.reduce(ReduceFn::Sum, products, &axes)?;
    let sums = b.cast(sums, dtype)?;
    b.squeeze(sums, &axes)
}

/// `[.., G*c] -> [G, .., c]`
fn split_groups(b: &mut Builder<'_>, x: ValueId, groups: usize, each: Dim) -> Result<ValueId> {
    let mut shape = b.shape(x);
    let last = shape.len() - 1;
    shape[last] = Dim::from(groups);
    shape.push(each);
    let x = b.reshape(x, shape)?;
    let mut perm: Vec<usize> = (0..=last + 1).collect();
    perm.remove(last);
    perm.insert(0, last);
    b.transpose(x, &perm)
}

/// `[G, .., m] -> [.., G*m]`
fn join_groups(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let rank = b.rank(x);
    let mut perm: Vec<usize> = (1..rank).collect();
    perm.insert(rank - 2, 0);
    let x = b.transpose(x, &perm)?;
    let mut shape = b.shape(x);
    let tail = shape.split_off(rank - 2);
    shape.push(product(&tail));
    b.reshape(x, shape)
}

fn grouped(b: &mut Builder<'_>, x: ValueId, w: ValueId, plan: &Plan) -> Result<ValueId> {
    let (geometry, groups) = (&plan.geometry, plan.groups);
    let spatial = geometry.kernel.len();
    let w_shape = b.shape(w);
    let x = split_groups(b, x, groups, w_shape[1].clone())?;
    let fill = zero(b, x);
    let padded = geometry.pad(b, x, 2, fill)?;
    let windows = geometry.windows(b, padded, 2)?;
    let rhs = grouped_filters(b, w, groups)?;
    // [G, M/G, C/G, k..] -> [G, k.., C/G, M/G]
    let mut perm = vec![0];
    perm.extend(3..3 + spatial);
    perm.extend([2, 1]);
    let rhs = b.transpose(rhs, &perm)?;
    let op = Op::Contract { batch: 1, m: 1 + spatial, k: spatial + 1, rhs: RhsLayout::Plain };
    let y = b.emit1(op, &[windows, rhs])?;
    join_groups(b, y)
}

/// The error for weights whose first axis does not divide.
fn undivided<T>(b: &Builder<'_>, w: ValueId, groups: usize) -> Result<T> {
    malformed(format!("weights {} do not divide into {groups} groups", b.ty(w)))
}

/// The first axis of `w` split into `[G, each]`.
fn grouped_filters(b: &mut Builder<'_>, w: ValueId, groups: usize) -> Result<ValueId> {
    let mut shape = b.shape(w);
    let Some(each) = share(&shape[0], groups) else {
        return undivided(b, w, groups);
    };
    shape[0] = each;
    shape.insert(0, Dim::from(groups));
    b.reshape(w, shape)
}

/// Sizes of a transposed convolution along one axis.
struct Transposed {
    kernel: usize,
    stride: usize,
    dilation: usize,
    /// Elements cut from the front of the full result.
    lo: Dim,
    out: Dim,
}

impl Transposed {
    /// Windows over the input that one output phase sees.
    fn taps(&self) -> usize {
        reach(self.kernel, self.dilation).div_ceil(self.stride)
    }
}

fn conv_transpose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w, bias) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let sizes = spatial_dims(cx.b, x)?;
    let kernel = kernel_extents(cx, w, sizes.len())?;
    let groups = groups(cx)?;
    let (x_ty, w_ty) = (cx.b.ty(x), cx.b.ty(w));
    let channels = w_ty.shape[0].clone();
    if x_ty.shape[1].is_const() && channels.is_const() && x_ty.shape[1] != channels {
        return malformed(format!("transposed convolution of {x_ty} with weights {w_ty}"));
    }
    let Some(per_group) = share(&channels, groups) else {
        return undivided(cx.b, w, groups);
    };
    let axes = transposed_axes(cx, &sizes, &kernel)?;
    let b = &mut *cx.b;
    let x = channels_last(b, x)?;
    let x = split_groups(b, x, groups, per_group)?;
    let y = sub_pixels(b, x, w, groups, &axes)?;
    let mut y = crop(b, y, &axes)?;
    if let Some(bias) = bias {
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    Ok(vec![channels_first(b, y)?])
}

/// Output sizes and leading cuts, from pads, `auto_pad`, `output_padding` and `output_shape`.
fn transposed_axes(cx: &NodeCx<'_, '_>, sizes: &[Dim], kernel: &[usize]) -> Result<Vec<Transposed>> {
    let rank = sizes.len();
    let strides = extents(cx, "strides", rank, 1)?;
    let dilations = extents(cx, "dilations", rank, 1)?;
    let adjust = match cx.ints("output_padding")? {
        Some(values) if !values.is_empty() => values,
        _ => vec![0; rank],
    };
    if adjust.len() != rank || adjust.iter().any(|value| !(0..=1 << 24).contains(value)) {
        return malformed(format!("output_padding {adjust:?} of {rank} spatial axes"));
    }
    let (lo, hi) = explicit_pads(cx, rank)?;
    let auto_pad = cx.str("auto_pad")?;
    let shape = cx.ints("output_shape")?.filter(|shape| !shape.is_empty());
    let shape = match shape {
        // Some exporters state the batch and channels too.
        Some(shape) if shape.len() == rank + 2 => Some(shape[2..].to_vec()),
        Some(shape) if shape.len() != rank => {
            return malformed(format!("output_shape {shape:?} of {rank} spatial axes"));
        }
        shape => shape,
    };
    let mut axes = Vec::with_capacity(rank);
    for axis in 0..rank {
        let (stride, reach) = (Dim::from(strides[axis]), reach(kernel[axis], dilations[axis]));
        let full =
            (sizes[axis].clone() - Dim::ONE) * stride.clone() + Dim::from(reach) + Dim::from(adjust[axis]);
        let wanted = match (&shape, auto_pad.as_str()) {
            (Some(shape), _) => Some(Dim::from(shape[axis])),
            (None, "SAME_UPPER" | "SAME_LOWER") => Some(sizes[axis].clone() * stride),
            (None, "" | "NOTSET" | "VALID") => None,
            (None, other) => return malformed(format!("auto_pad `{other}`")),
        };
        let (lo, out) = match wanted {
            Some(out) => {
                let total = (full - out.clone()).max_dim(&Dim::ZERO);
                let half = total.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO);
                (if auto_pad == "SAME_UPPER" { half } else { total - half }, out)
            }
            None if auto_pad == "VALID" => (Dim::ZERO, full),
            None => (Dim::from(lo[axis]), full - Dim::from(lo[axis]) - Dim::from(hi[axis])),
        };
        if out.as_const().is_some_and(|out| out < 0) {
            return malformed(format!("output of {out} elements along spatial axis {axis}"));
        }
        let (kernel, stride, dilation) = (kernel[axis], strides[axis], dilations[axis]);
        axes.push(Transposed { kernel, stride, dilation, lo, out });
    }
    Ok(axes)
}

/// The full transposed convolution of `x: [G, N, s.., c]`, as an ordinary convolution that computes one
/// `stride`-sized block of outputs per position: `[N, (s + taps - 1) * stride.., M]`. No product is wasted.
fn sub_pixels(
    b: &mut Builder<'_>,
    x: ValueId,
    w: ValueId,
    groups: usize,
    axes: &[Transposed],
) -> Result<ValueId> {
    let rank = axes.len();
    let rhs = phase_filters(b, w, groups, axes)?;
    let fill = zero(b, x);
    let mut pads = vec![Dim::ZERO; rank + 3];
    for (at, axis) in axes.iter().enumerate() {
        pads[2 + at] = Dim::from(axis.taps() - 1);
    }
    let padded = b.pad(x, fill, pads.clone(), pads)?;
    let kernel = axes.iter().map(Transposed::taps).collect();
    let ones = vec![1; rank];
    let windows =
        b.emit1(Op::Window { first: 2, kernel, strides: ones.clone(), dilations: ones }, &[padded])?;
    let op = Op::Contract { batch: 1, m: 1 + rank, k: rank + 1, rhs: RhsLayout::Plain };
    let blocks = b.emit1(op, &[windows, rhs])?;
    // [G, N, j.., stride.. * m] -> [N, j0, stride0, j1, stride1, .., G, m] -> [N, j*stride.., M]
    let mut shape = b.shape(blocks);
    shape.pop();
    let count = shape[2..].to_vec();
    shape.extend(axes.iter().map(|axis| Dim::from(axis.stride)));
    let each = b.shape(w)[1].clone();
    shape.push(each.clone());
    let blocks = b.reshape(blocks, shape)?;
    let mut perm = vec![1];
    for at in 0..rank {
        perm.extend([2 + at, 2 + rank + at]);
    }
    perm.extend([0, 2 + 2 * rank]);
    let blocks = b.transpose(blocks, &perm)?;
    let mut shape = vec![b.shape(blocks)[0].clone()];
    shape.extend(count.into_iter().zip(axes).map(|(count, axis)| count * Dim::from(axis.stride)));
    shape.push(Dim::from(groups) * each);
    b.reshape(blocks, shape)
}

/// `[C, m, k..] -> [G, taps.., C/G, stride.. * m]`: kernel offset `tap * stride + phase`, taps reversed.
fn phase_filters(b: &mut Builder<'_>, w: ValueId, groups: usize, axes: &[Transposed]) -> Result<ValueId> {
    let mut w = w;
    let fill = zero(b, w);
    for (at, axis) in axes.iter().enumerate() {
        w = spread(b, w, 2 + at, axis, fill)?;
    }
    // [G, C/G, m, taps0, stride0, taps1, stride1, ..]
    let mut shape = b.shape(w)[..2].to_vec();
    let Some(each) = share(&shape[0], groups) else {
        return undivided(b, w, groups);
    };
    shape[0] = each.clone();
    shape.insert(0, Dim::from(groups));
    let outputs = shape[2].clone();
    for axis in axes {
        shape.extend([Dim::from(axis.taps()), Dim::from(axis.stride)]);
    }
    let split = b.reshape(w, shape.clone())?;
    let mut steps = vec![1; shape.len()];
    let mut starts = vec![Dim::ZERO; shape.len()];
    for (at, axis) in axes.iter().enumerate() {
        steps[3 + 2 * at] = -1;
        starts[3 + 2 * at] = Dim::from(axis.taps() - 1);
    }
    let flipped = b.emit1(Op::Slice { starts, steps, sizes: shape }, &[split])?;
    let mut perm = vec![0];
    perm.extend((0..axes.len()).map(|at| 3 + 2 * at));
    perm.push(1);
    perm.extend((0..axes.len()).map(|at| 4 + 2 * at));
    perm.push(2);
    let rhs = b.transpose(flipped, &perm)?;
    let mut shape = vec![Dim::from(groups)];
    shape.extend(axes.iter().map(|axis| Dim::from(axis.taps())));
    let phases = axes.iter().fold(Dim::ONE, |product, axis| product * Dim::from(axis.stride));
    shape.extend([each, phases * outputs]);
    b.reshape(rhs, shape)
}

/// Kernel axis `at` with `dilation - 1` zeros between elements, zero-filled to `taps * stride`.
fn spread(b: &mut Builder<'_>, w: ValueId, at: usize, axis: &Transposed, fill: ValueId) -> Result<ValueId> {
    let mut w = w;
    if axis.dilation > 1 && axis.kernel > 1 {
        let mut shape = b.shape(w);
        w = b.unsqueeze(w, &[at + 1])?;
        let mut hi = vec![Dim::ZERO; shape.len() + 1];
        hi[at + 1] = Dim::from(axis.dilation - 1);
        w = b.pad(w, fill, vec![Dim::ZERO; shape.len() + 1], hi)?;
        shape[at] = Dim::from(axis.kernel * axis.dilation);
        w = b.reshape(w, shape)?;
        w = b.slice_axis(w, at, Dim::ZERO, Dim::from(reach(axis.kernel, axis.dilation)))?;
    }
    let rank = b.rank(w);
    let mut hi = vec![Dim::ZERO; rank];
    hi[at] = Dim::from(axis.taps() * axis.stride - reach(axis.kernel, axis.dilation));
    b.pad(w, fill, vec![Dim::ZERO; rank], hi)
}

/// Elements `lo..lo + out` of each spatial axis, zeros where the full result ends before.
fn crop(b: &mut Builder<'_>, y: ValueId, axes: &[Transposed]) -> Result<ValueId> {
    let rank = b.rank(y);
    let mut hi = vec![Dim::ZERO; rank];
    for (at, axis) in axes.iter().enumerate() {
        let missing = axis.lo.clone() + axis.out.clone() - b.shape(y)[1 + at].clone();
        hi[1 + at] = missing.max_dim(&Dim::ZERO);
    }
    let fill = zero(b, y);
    let mut y = b.pad(y, fill, vec![Dim::ZERO; rank], hi)?;
    for (at, axis) in axes.iter().enumerate() {
        y = b.slice_axis(y, 1 + at, axis.lo.clone(), axis.out.clone())?;
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use crate::op::node_case::{Case, ramp};

    #[test]
    fn asymmetric_pads_strides_dilations_and_bias() {
        let case = Case::new("Conv", 11)
            .ramp(&[1, 2, 4, 5], 1)
            .constant_ramp(&[2, 2, 2, 2], 2)
            .constant_ramp(&[2], 3)
            .ints("dilations", &[1, 2])
            .ints("pads", &[1, 0, 0, 2])
            .ints("strides", &[2, 1]);
        case.gives(
            0,
            &[1, 2, 2, 5],
            &[
                1.4375, 0.5625, 1.0625, -0.0625, 1.9375, 1.125, -0.375, 2.25, 2.3125, -1.125, -0.0625, 0.125,
                0.3125, -0.9375, 1.25, 0.625, -2.1875, 1.875, 0.9375, -2.125,
            ],
        );
    }

    #[test]
    fn groups_depthwise_and_with_multiplier() {
        let case =
            Case::new("Conv", 11).ramp(&[1, 4, 3, 3], 1).constant_ramp(&[4, 2, 2, 2], 2).int("group", 2);
        case.gives(
            0,
            &[1, 4, 2, 2],
            &[
                -0.8125, 1.125, -3.25, 1.4375, -0.375, 1.625, -2.625, 1.4375, -0.625, 2.125, -2.6875, 2.125,
                1.625, -0.375, 0.4375, 1.1875,
            ],
        );
        let case = Case::new("Conv", 1)
            .ramp(&[1, 3, 4, 4], 1)
            .constant_ramp(&[3, 1, 3, 3], 2)
            .int("group", 3)
            .ints("pads", &[1, 1, 1, 1])
            .ints("strides", &[2, 2]);
        case.gives(
            0,
            &[1, 3, 2, 2],
            &[0.1875, 0.8125, -2.875, 2.0, -1.0625, 0.3125, -2.125, 0.375, -0.5, 1.5, -1.75, 0.25],
        );
        let case =
            Case::new("Conv", 1).ramp(&[1, 2, 3, 3], 4).constant_ramp(&[4, 1, 2, 2], 2).int("group", 2);
        case.gives(
            0,
            &[1, 4, 2, 2],
            &[
                -2.0625, 0.875, 0.5625, 0.75, 1.25, -0.4375, 1.0, 0.0, 1.375, -0.125, 1.0, 0.1875, -0.5,
                0.25, -0.3125, -2.3125,
            ],
        );
    }

    #[test]
    fn pointwise_and_one_spatial_axis() {
        let case = Case::new("Conv", 11).ramp(&[1, 3, 2, 2], 1).constant_ramp(&[2, 3, 1, 1], 2);
        case.gives(0, &[1, 2, 2, 2], &[-1.125, -0.9375, 1.3125, -1.25, -1.1875, -0.9375, 1.375, -1.125]);
        let case =
            Case::new("Conv", 11).ramp(&[2, 2, 6], 1).constant_ramp(&[2, 2, 3], 2).ints("strides", &[2]);
        case.gives(0, &[2, 2, 2], &[-1.75, 3.25, 0.0625, 0.0625, -1.3125, -1.8125, -2.0, 0.0625]);
    }

    #[test]
    fn same_padding_with_symbolic_extents() {
        let case = Case::new("Conv", 11)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 5, 4], &ramp(20, 1))
            .constant_ramp(&[1, 1, 3, 2], 2)
            .str("auto_pad", "SAME_UPPER")
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 3, 2], &[-1.5, 1.8125, -1.0625, 1.1875, 0.125, -0.1875]);
        let case = Case::new("Conv", 11)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 5, 4], &ramp(20, 1))
            .constant_ramp(&[1, 1, 3, 2], 2)
            .str("auto_pad", "SAME_LOWER")
            .ints("strides", &[2, 2]);
        case.gives(0, &[1, 1, 3, 2], &[-1.5, 1.8125, -1.0625, 1.1875, 0.125, -0.1875]);
    }

    #[test]
    fn transposed_strides_pads_and_output_padding() {
        let case = Case::new("ConvTranspose", 11)
            .ramp(&[1, 2, 2, 3], 1)
            .constant_ramp(&[2, 1, 3, 3], 2)
            .constant_ramp(&[1], 3)
            .ints("output_padding", &[1, 0])
            .ints("pads", &[1, 0, 1, 1])
            .ints("strides", &[2, 2]);
        case.gives(
            0,
            &[1, 1, 4, 6],
            &[
                1.75, 0.5, 0.0625, 0.5, 2.125, 0.5, 2.5625, -0.125, -1.125, -0.125, 3.0, -0.125, 1.9375, 0.5,
                0.0625, 0.5, 2.125, 0.5, 2.4375, 1.0, 0.1875, 0.125, 1.875, 0.625,
            ],
        );
        let case = Case::new("ConvTranspose", 1)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 2, 2], &ramp(4, 1))
            .constant_ramp(&[1, 2, 2, 2], 2)
            .ints("strides", &[2, 2]);
        case.gives(
            0,
            &[1, 2, 4, 4],
            &[
                -0.125, 0.375, 0.3125, -0.9375, -0.5, 0.0, 1.25, 0.0, 0.0625, -0.1875, -0.1875, 0.5625, 0.25,
                0.0, -0.75, 0.0, 0.5, -0.375, -1.25, 0.9375, 0.125, 0.625, -0.3125, -1.5625, -0.25, 0.1875,
                0.75, -0.5625, -0.0625, -0.3125, 0.1875, 0.9375,
            ],
        );
    }

    #[test]
    fn transposed_groups_dilations_and_output_shape() {
        let case = Case::new("ConvTranspose", 11)
            .ramp(&[1, 2, 3], 1)
            .constant_ramp(&[2, 2, 2], 2)
            .ints("dilations", &[2])
            .int("group", 2)
            .ints("strides", &[1]);
        case.gives(
            0,
            &[1, 4, 5],
            &[
                -0.125, 0.3125, 0.4375, -0.9375, -0.1875, -0.5, 1.25, 0.25, 0.0, 0.0, 0.75, -1.0, -0.5625,
                0.75, 0.0, 0.1875, -0.25, 0.9375, -1.25, 0.0,
            ],
        );
        let case = Case::new("ConvTranspose", 11)
            .ramp(&[1, 1, 3, 3], 1)
            .constant_ramp(&[1, 1, 3, 3], 2)
            .str("auto_pad", "SAME_UPPER")
            .ints("output_shape", &[6, 5])
            .ints("strides", &[2, 2]);
        case.gives(
            0,
            &[1, 1, 6, 5],
            &[
                0.375, -0.1875, -0.9375, 1.3125, -0.1875, 0.5, -0.375, -1.25, 0.9375, -0.25, 1.1875, -1.0625,
                -2.3125, 1.5625, -0.3125, 0.75, -0.5625, -1.0, 0.75, 0.0, 1.6875, -1.4375, -1.8125, 1.1875,
                0.1875, 1.0, -0.75, -0.75, 0.5625, 0.25,
            ],
        );
    }
}
