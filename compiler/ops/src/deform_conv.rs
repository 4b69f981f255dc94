//! Deformable convolution: every tap of the kernel reads where an offset says, between points.

use super::conv;
use super::row::*;
use super::sample::{Table, Taps, arithmetic, combine, constant_dim, linear_taps, split_coordinate};
use super::spatial::{channels_last, explicit_pads, extents, spatial_dims};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, Requirement, RhsLayout};

pub const ROWS: &[OpDef] = &[DEFORM_CONV, DEFORM_CONV.since(22).types(&[("T", FLOATS)])];

const DEFORM_CONV: OpDef = op("DeformConv", 19, deform_conv)
    .inputs(&[req("X", "T"), req("W", "T"), req("offset", "T"), opt("B", "T"), opt("mask", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(ATTRIBUTES)
    .types(&[("T", FLOATS_F16)])
    .shapes(DEFORM_CONV_SHAPES)
    .doc("Convolution whose taps lie at offsets, times a mask");

const DEFORM_CONV_SHAPES: &[&str] = &[
    "X[N, C, D..]",
    "W[M, G, K..]",
    "W[_, _, kernel_shape..]",
    "len(K) = len(D)",
    "C = G * group",
    "M % group = 0",
    "C % offset_group = 0",
    "offset[N, offset_group * len(K) * prod(K), O..]",
    "len(O) = len(D)",
    "B[M]",
    "mask[N, offset_group * prod(K), O..]",
];

const ATTRIBUTES: &[AttrDef] = &[
    optional("dilations", Ints),
    int("group", 1),
    optional("kernel_shape", Ints),
    int("offset_group", 1),
    optional("pads", Ints),
    optional("strides", Ints),
];

/// Sizes of one deformable convolution.
struct Shape {
    batch: Dim,
    channels: Dim,
    /// Input extents, kernel extents and output extents per spatial axis.
    sizes: Vec<Dim>,
    kernel: Vec<Dim>,
    out: Vec<Dim>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    lo: Vec<i64>,
    groups: usize,
    offset_groups: usize,
}

impl Shape {
    fn taps(&self) -> Dim {
        product(&self.kernel)
    }

    fn of(cx: &NodeCx<'_, '_>) -> Result<Shape> {
        let (x, w, offset) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let sizes = spatial_dims(cx.b, x)?;
        let rank = sizes.len();
        let kernel = conv::kernel_dims(cx, w, rank)?;
        let positive = |name: &str| match cx.int(name)? {
            count @ 1..=0x7fff_ffff => Ok(count as usize),
            other => malformed(format!("{name} {other}")),
        };
        let (groups, offset_groups) = (positive("group")?, positive("offset_group")?);
        let (x_shape, w_shape, offset_shape) = (cx.b.shape(x), cx.b.shape(w), cx.b.shape(offset));
        let filtered = w_shape[1].clone() * Dim::from(groups);
        let shape = Shape {
            batch: x_shape[0].clone(),
            channels: if w_shape[1].is_const() { filtered.clone() } else { x_shape[1].clone() },
            out: offset_shape.get(2..).unwrap_or_default().to_vec(),
            strides: extents(cx, "strides", rank, 1)?,
            dilations: extents(cx, "dilations", rank, 1)?,
            lo: explicit_pads(cx, rank)?.0,
            sizes,
            kernel,
            groups,
            offset_groups,
        };
        // What symbols leave open shows when the model runs: reshapes into groups have it checked.
        let agree = |a: &Dim, b: &Dim| a == b || !a.is_const() || !b.is_const();
        let offsets = shape.taps() * Dim::from(offset_groups) * Dim::from(rank);
        let fits = offset_shape.len() == rank + 2
            && agree(&offset_shape[1], &offsets)
            && agree(&x_shape[1], &filtered);
        if !fits {
            return malformed(format!(
                "deformable convolution of {} with weights {} and offsets {} in {groups} groups, {offset_groups} of \
                 offsets",
                cx.b.ty(x),
                cx.b.ty(w),
                cx.b.ty(offset)
            ));
        }
        Ok(shape)
    }
}

fn deform_conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let shape = Shape::of(cx)?;
    check_result(cx, &shape)?;
    let (x, w, offset) = (cx.input("X")?, cx.input("W")?, cx.input("offset")?);
    let (bias, mask) = (cx.optional("B"), cx.optional("mask"));
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let work = arithmetic(dtype);
    let offset = b.cast(offset, work)?;
    let columns = columns(b, x, offset, mask, &shape)?;
    let w = b.cast(w, work)?;
    let y = products(b, columns, w, &shape)?;
    let mut y = match bias {
        Some(bias) => {
            let bias = b.cast(bias, work)?;
            let mut per_channel = vec![Dim::ONE; shape.sizes.len() + 1];
            per_channel[0] = b.shape(w)[0].clone();
            let bias = b.reshape(bias, per_channel)?;
            b.binary(BinaryFn::Add, y, bias)?
        }
        None => y,
    };
    y = b.cast(y, dtype)?;
    Ok(vec![y])
}

/// Holds the points that `offset` has against those that strides and pads make.
fn check_result(cx: &mut NodeCx<'_, '_>, shape: &Shape) -> Result<()> {
    let (lo, hi) = explicit_pads(cx, shape.sizes.len())?;
    for (axis, found) in shape.out.iter().enumerate() {
        let reach = (shape.kernel[axis].clone() - Dim::ONE) * Dim::from(shape.dilations[axis]) + Dim::ONE;
        let room = shape.sizes[axis].clone() + Dim::from(lo[axis] + hi[axis]) - reach;
        let Some(steps) = room.floor_div(&Dim::from(shape.strides[axis])) else { continue };
        let name = format!("dimension {} of {}", axis + 2, cx.operand_name(2));
        let requirement = Requirement::equal(found.clone(), steps + Dim::ONE);
        cx.b.require(requirement.says(name, "that of the result"))?;
    }
    Ok(())
}

/// What the kernel's taps see: `[N, offset groups, taps, out.., C / offset groups]`, out as one axis.
fn columns(
    b: &mut Builder<'_>,
    x: ValueId,
    offset: ValueId,
    mask: Option<ValueId>,
    shape: &Shape,
) -> Result<ValueId> {
    let work = b.dtype(offset);
    let rank = shape.sizes.len();
    let (groups, taps, points) = (Dim::from(shape.offset_groups), shape.taps(), product(&shape.out));
    let lead = vec![shape.batch.clone(), groups.clone(), taps.clone()];
    let mut split = lead.clone();
    split.extend([Dim::from(rank), points.clone()]);
    let offset = b.reshape(offset, split)?;
    let mut axes = Vec::with_capacity(rank + 1);
    for axis in 0..rank {
        let own = b.slice_axis(offset, 3, Dim::from(axis), Dim::ONE)?;
        let own = b.squeeze(own, &[3])?;
        let regular = regular_places(b, axis, shape)?;
        let regular = b.cast(regular, work)?;
        let place = b.binary(BinaryFn::Add, own, regular)?;
        let (floor, t) = split_coordinate(b, place, &shape.sizes[axis], 4.0)?;
        axes.push(linear_taps(b, floor, t)?);
    }
    // Rows of the table: a point's channels, one row per group of offsets.
    let group = b.iota(vec![groups.clone(), Dim::ONE, Dim::ONE, Dim::ONE], 0)?;
    axes.push(Taps { index: group, weight: None });
    let mut sizes = shape.sizes.clone();
    sizes.push(groups.clone());
    let x = channels_last(b, x)?;
    let x = b.cast(x, work)?;
    let mut rows = vec![shape.batch.clone()];
    rows.extend_from_slice(&sizes);
    rows.push(b.divided(&shape.channels, groups, "channels must divide into groups of offsets")?);
    let x = b.reshape(x, rows)?;
    let table = Table::new(b, x)?;
    let image = b.iota(vec![shape.batch.clone(), Dim::ONE, Dim::ONE, Dim::ONE, Dim::ONE], 0)?;
    let stride = constant_dim(b, &product(&sizes))?;
    let base = b.binary(BinaryFn::Mul, image, stride)?;
    let mut combined = combine(b, &table, &axes, &sizes, Some(base), false)?;
    if let (Some(mask), Some(weight)) = (mask, combined.weight) {
        let mut each = lead;
        each.extend([points, Dim::ONE]);
        let mask = b.cast(mask, work)?;
        let mask = b.reshape(mask, each)?;
        combined.weight = Some(b.binary(BinaryFn::Mul, weight, mask)?);
    }
    table.reduce(b, &combined, ReduceFn::Sum)
}

/// Where the taps of an ordinary convolution lie along an axis: i64 `[taps, out points]`.
fn regular_places(b: &mut Builder<'_>, axis: usize, shape: &Shape) -> Result<ValueId> {
    let tap = b.iota(shape.kernel.clone(), axis)?;
    let tap = b.reshape(tap, vec![shape.taps(), Dim::ONE])?;
    let tap = b.binary_scalar(BinaryFn::Mul, tap, shape.dilations[axis] as f64)?;
    let out = b.iota(shape.out.clone(), axis)?;
    let out = b.reshape(out, vec![product(&shape.out)])?;
    let out = b.binary_scalar(BinaryFn::Mul, out, shape.strides[axis] as f64)?;
    let place = b.binary(BinaryFn::Add, tap, out)?;
    b.binary_scalar(BinaryFn::Sub, place, shape.lo[axis] as f64)
}

/// `[N, offset groups, taps, points, c]` times `W: [M, C / groups, k..]`: `[N, M, out..]`.
fn products(b: &mut Builder<'_>, columns: ValueId, w: ValueId, shape: &Shape) -> Result<ValueId> {
    let (groups, taps, points) = (Dim::from(shape.groups), shape.taps(), product(&shape.out));
    let w_shape = b.shape(w);
    let each = w_shape[1].clone();
    let filters = b.divided(&w_shape[0], groups.clone(), "filters must divide into groups")?;
    // [N, points, taps, C], then [G, N, points, taps, C / G]
    let x = b.transpose(columns, &[0, 3, 2, 1, 4])?;
    let x =
        b.reshape(x, vec![shape.batch.clone(), points.clone(), taps.clone(), groups.clone(), each.clone()])?;
    let x = b.transpose(x, &[3, 0, 1, 2, 4])?;
    let w = b.reshape(w, vec![groups.clone(), filters.clone(), each, taps])?;
    let w = b.transpose(w, &[0, 3, 2, 1])?;
    let op = Op::Contract { batch: 1, m: 2, k: 2, rhs: RhsLayout::Plain };
    let y = b.emit1(op, &[x, w])?;
    // [G, N, points, M / G] to [N, M, out..]
    let y = b.transpose(y, &[1, 0, 3, 2])?;
    let mut result = vec![shape.batch.clone(), w_shape[0].clone()];
    result.extend_from_slice(&shape.out);
    b.reshape(y, result)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, elements, ramp};

    #[test]
    fn groups_of_filters_and_of_offsets() {
        let case = Case::new("DeformConv", 19)
            .ramp(&[1, 2, 3, 3], 1)
            .constant_ramp(&[2, 1, 2, 2], 2)
            .ramp(&[1, 16, 2, 2], 3)
            .ramp(&[2], 4)
            .ramp(&[1, 8, 2, 2], 5)
            .int("group", 2)
            .int("offset_group", 2);
        case.gives(
            0,
            &[1, 2, 2, 2],
            &[-1.84375, -0.667969, -0.050781, -0.992188, 1.804688, 1.003906, 0.488281, 0.936523],
        );
    }

    #[test]
    fn without_offsets_it_is_a_convolution() {
        let conv = Case::new("Conv", 11)
            .ramp(&[2, 3, 5, 4], 1)
            .ramp(&[4, 3, 3, 2], 2)
            .ints("pads", &[1, 0, 2, 1])
            .ints("strides", &[2, 1])
            .ints("dilations", &[1, 2]);
        let wanted = &conv.run().unwrap()[0];
        let zeros = vec![0f32; 2 * 12 * wanted.shape[2] * wanted.shape[3]];
        let case = Case::new("DeformConv", 22)
            .ramp(&[2, 3, 5, 4], 1)
            .ramp(&[4, 3, 3, 2], 2)
            .symbolic(&["n", "", "y", "x"], &[2, 12, wanted.shape[2], wanted.shape[3]], &zeros)
            .ints("pads", &[1, 0, 2, 1])
            .ints("strides", &[2, 1])
            .ints("dilations", &[1, 2]);
        case.gives(0, &wanted.shape, &elements(wanted));
    }

    #[test]
    fn extents_and_channels_that_the_run_tells() {
        let attributes = |case: Case| {
            case.int("group", 2).int("offset_group", 2).ints("dilations", &[2, 1]).ints("pads", &[1, 1, 1, 0])
        };
        let known = Case::new("DeformConv", 19).ramp(&[2, 4, 5, 4], 1).ramp(&[6, 2, 2, 3], 2);
        let wanted =
            attributes(known.ramp(&[2, 24, 5, 3], 3).ramp(&[6], 4).ramp(&[2, 12, 5, 3], 5)).run().unwrap();
        let symbolic = |offsets: usize| {
            let case = Case::new("DeformConv", 19)
                .symbolic(&["n", "c", "h", "w"], &[2, 4, 5, 4], &ramp(160, 1))
                .symbolic(&["m", "i", "y", "x"], &[6, 2, 2, 3], &ramp(72, 2))
                .symbolic(&["n", "o", "p", "q"], &[2, offsets, 5, 3], &ramp(30 * offsets, 3));
            let case = case.symbolic(&["m"], &[6], &ramp(6, 4));
            attributes(case.symbolic(&["n", "k", "p", "q"], &[2, 12, 5, 3], &ramp(360, 5)))
        };
        symbolic(24).gives(0, &wanted[0].shape, &elements(&wanted[0]));
        assert!(symbolic(22).run().is_err());
    }
}
