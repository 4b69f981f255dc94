//! Convolutions. They compute channels-last: a window view contracted with a `[kernel.., C, M]` weight,
//! between two transposes that later passes cancel.

pub mod transposed;

use super::AttrDefault::{Int, Optional, Str};
use super::spatial::{Geometry, channels_first, channels_last, checked_extents, geometry, spatial_dims};
use super::types::*;
use super::{AttrDef, AttrKind, NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Op, RhsLayout, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

pub const ROWS: &[OpDef] = &[
    CONV,
    CONV.since(11),
    CONV.since(22).types(&[("T", FLOATS)]),
    CONV_TRANSPOSE,
    CONV_TRANSPOSE.since(11),
    CONV_TRANSPOSE.since(22).types(&[("T", FLOATS)]),
];

/// The attributes of convolutions; [`plan`] reads them.
pub const ATTRIBUTES: &[AttrDef] = &[
    attr("auto_pad", Str("NOTSET")),
    attr("dilations", Optional(AttrKind::Ints)),
    attr("group", Int(1)),
    attr("kernel_shape", Optional(AttrKind::Ints)),
    attr("pads", Optional(AttrKind::Ints)),
    attr("strides", Optional(AttrKind::Ints)),
];

const CONV: OpDef = op("Conv", 1, conv)
    .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(ATTRIBUTES)
    .types(&[("T", FLOATS_F16)])
    .shapes(&[
        "X[N, C, D..]",
        "W[M, G, K..]",
        "W[_, _, kernel_shape..]",
        "len(K) = len(D)",
        "C = G * group",
        "M % group = 0",
        "B[M]",
    ])
    .doc("convolution plus bias");

const CONV_TRANSPOSE: OpDef = op("ConvTranspose", 1, transposed::conv_transpose)
    .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("auto_pad", Str("NOTSET")),
        attr("dilations", Optional(AttrKind::Ints)),
        attr("group", Int(1)),
        attr("kernel_shape", Optional(AttrKind::Ints)),
        attr("output_padding", Optional(AttrKind::Ints)),
        attr("output_shape", Optional(AttrKind::Ints)),
        attr("pads", Optional(AttrKind::Ints)),
        attr("strides", Optional(AttrKind::Ints)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&[
        "X[N, C, D..]",
        "W[C, G, K..]",
        "W[_, _, kernel_shape..]",
        "len(K) = len(D)",
        "C % group = 0",
        "B[G * group]",
    ])
    .doc("transposed convolution (the gradient of Conv) plus bias");

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

fn conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w) = (cx.input("X")?, cx.input("W")?);
    let y = biased(cx, x, w)?;
    Ok(vec![channels_first(cx.b, y)?])
}

/// The convolution of `x`, channels first, with `w`, plus the bias of input 2 if there is one, channels last.
pub fn biased(cx: &mut NodeCx<'_, '_>, x: ValueId, w: ValueId) -> Result<ValueId> {
    let plan = plan(cx, x, w)?;
    let y = convolve(cx.b, x, w, &plan)?;
    match cx.optional(2) {
        Some(bias) => cx.b.binary(BinaryFn::Add, y, bias),
        None => Ok(y),
    }
}

/// What a convolution needs besides its operands.
pub struct ConvPlan {
    pub geometry: Geometry,
    pub groups: usize,
}

/// Reads the attributes of a convolution of `x: [N, C, s..]` with `w: [M, C/group, k..]` and checks that
/// they fit.
pub fn plan(cx: &NodeCx<'_, '_>, x: ValueId, w: ValueId) -> Result<ConvPlan> {
    let sizes = spatial_dims(cx.b, x)?;
    let kernel = kernel_dims(cx, w, sizes.len())?;
    let groups = groups(cx)?;
    let (x_ty, w_ty) = (cx.b.ty(x), cx.b.ty(w));
    if let (Some(channels), Some(per_group)) = (x_ty.shape[1].as_const(), w_ty.shape[1].as_const())
        && per_group.checked_mul(groups as i64) != Some(channels)
    {
        return malformed(format!("convolution of {x_ty} with weights {w_ty} in {groups} groups"));
    }
    if let Some(count) = w_ty.shape[0].as_const().filter(|count| count % groups as i64 != 0) {
        let name = cx.b.operand_text(w).unwrap_or_else(|| "W".into());
        return malformed(format!("{name} has {count} output channels, not a multiple of group={groups}"));
    }
    Ok(ConvPlan { geometry: geometry(cx, &sizes, kernel)?, groups })
}

fn groups(cx: &NodeCx<'_, '_>) -> Result<usize> {
    match cx.int("group")? {
        count @ 1..=0x7fff_ffff => Ok(count as usize),
        other => malformed(format!("group {other}")),
    }
}

/// Kernel extents: those of the weights, which `kernel_shape` must repeat; symbols where neither is known.
pub fn kernel_dims(cx: &NodeCx<'_, '_>, w: ValueId, rank: usize) -> Result<Vec<Dim>> {
    let ty = cx.b.ty(w);
    if ty.rank() != rank + 2 {
        return malformed(format!("weights {ty} for {rank} spatial axes"));
    }
    let stated = cx.ints("kernel_shape")?.filter(|kernel| !kernel.is_empty());
    let actual: Option<Vec<i64>> = ty.shape[2..].iter().map(Dim::as_const).collect();
    match (stated, actual) {
        (Some(stated), Some(actual)) if stated != actual => {
            malformed(format!("kernel_shape is {stated:?}; by the weights {ty} it must be {actual:?}"))
        }
        (_, Some(kernel)) | (Some(kernel), None) => {
            Ok(checked_extents("kernel", &kernel, rank)?.into_iter().map(Dim::from).collect())
        }
        (None, None) => Ok(ty.shape[2..].to_vec()),
    }
}

/// The convolution without bias, channels-last: `[N, out.., M]`.
pub fn convolve(b: &mut Builder<'_>, x: ValueId, w: ValueId, plan: &ConvPlan) -> Result<ValueId> {
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

fn grouped(b: &mut Builder<'_>, x: ValueId, w: ValueId, plan: &ConvPlan) -> Result<ValueId> {
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

/// What is claimed of the first axis of weights.
const FILTERS: &str = "output channels of the weights must divide into groups";

/// The first axis of `w` split into `[G, each]`.
fn grouped_filters(b: &mut Builder<'_>, w: ValueId, groups: usize) -> Result<ValueId> {
    let mut shape = b.shape(w);
    shape[0] = b.divided(&shape[0], groups, FILTERS)?;
    shape.insert(0, Dim::from(groups));
    b.reshape(w, shape)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, ramp};

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
}
