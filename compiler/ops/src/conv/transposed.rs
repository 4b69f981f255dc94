//! Transposed convolutions. With a kernel whose extents are known each is an ordinary convolution that computes one
//! block of outputs per position; else zeros go between the inputs, and windows of the run's extents over them.

use super::{FILTERS, grouped_filters, groups, join_groups, kernel_dims, split_groups, zero};
use crate::NodeCx;
use crate::row::malformed;
use crate::spatial::{
    channels_first, channels_last, explicit_pads, extents, known_extents, reach, reach_of, spatial_dims,
    windows,
};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Op, Requirement, RhsLayout, ValueId};
use onnxc_ir::scalar::BinaryFn;

/// Sizes of a transposed convolution along one axis.
struct Transposed {
    kernel: Dim,
    stride: usize,
    dilation: usize,
    /// Elements cut from the front of the full result.
    lo: Dim,
    out: Dim,
}

/// A known kernel along one axis.
struct Filter {
    kernel: usize,
    stride: usize,
    dilation: usize,
}

impl Filter {
    /// Windows over the input that one output phase sees.
    fn taps(&self) -> usize {
        reach(self.kernel, self.dilation).div_ceil(self.stride)
    }
}

pub fn conv_transpose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let pads = match cx.has("pads") {
        true => {
            let (lo, hi) = explicit_pads(cx, cx.b.rank(cx.input(0)?).saturating_sub(2))?;
            lo.into_iter().chain(hi).map(Dim::from).collect()
        }
        // What data decide may be pads, too.
        false => match cx.optional(2) {
            Some(_) => {
                let rank = cx.b.rank(cx.input(0)?).saturating_sub(2);
                cx.with_count(2, Some(2 * rank))?;
                cx.sizes_input(2)?
            }
            None => vec![Dim::ZERO; 2 * cx.b.rank(cx.input(0)?).saturating_sub(2)],
        },
    };
    let bias = cx.optional(if cx.has("pads") { 2 } else { 3 });
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let sizes = spatial_dims(cx.b, x)?;
    let kernel = kernel_dims(cx, w, sizes.len())?;
    let groups = groups(cx)?;
    let (x_ty, w_ty) = (cx.b.ty(x), cx.b.ty(w));
    let channels = w_ty.shape[0].clone();
    if x_ty.shape[1].is_const() && channels.is_const() && x_ty.shape[1] != channels {
        return malformed(format!("transposed convolution of {x_ty} with weights {w_ty}"));
    }
    let per_group = cx.b.divided(&channels, groups, FILTERS)?;
    let axes = transposed_axes(cx, &sizes, &kernel, &pads)?;
    let b = &mut *cx.b;
    let x = channels_last(b, x)?;
    let x = split_groups(b, x, groups, per_group)?;
    let y = match known_extents(&kernel) {
        Some(kernel) => {
            let filter = |(axis, kernel): (&Transposed, usize)| Filter {
                kernel,
                stride: axis.stride,
                dilation: axis.dilation,
            };
            let filters: Vec<Filter> = axes.iter().zip(kernel).map(filter).collect();
            sub_pixels(b, x, w, groups, &filters)?
        }
        None => spaced_inputs(b, x, w, groups, &axes)?,
    };
    let mut y = crop(b, y, &axes)?;
    if let Some(bias) = bias {
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    Ok(vec![channels_first(b, y)?])
}

/// Output sizes and leading cuts, from pads, `auto_pad`, `output_padding` and `output_shape`.
fn transposed_axes(
    cx: &NodeCx<'_, '_>,
    sizes: &[Dim],
    kernel: &[Dim],
    pads: &[Dim],
) -> Result<Vec<Transposed>> {
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
    if pads.len() != 2 * rank {
        return malformed(format!("{} pads of {rank} spatial axes", pads.len()));
    }
    let (lo, hi) = pads.split_at(rank);
    let auto_pad = cx.str("auto_pad")?;
    let shape = if cx.has("output_shape") { cx.ints("output_shape")? } else { None };
    let shape = shape.filter(|shape| !shape.is_empty());
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
        let (stride, reach) = (Dim::from(strides[axis]), reach_of(&kernel[axis], dilations[axis]));
        let full = (sizes[axis].clone() - Dim::ONE) * stride.clone() + reach + Dim::from(adjust[axis]);
        let wanted = match (&shape, auto_pad.as_str()) {
            (Some(shape), _) => Some(Dim::from(shape[axis])),
            (None, "SAME_UPPER" | "SAME_LOWER") => Some(sizes[axis].clone() * stride),
            (None, "" | "NOTSET" | "VALID") => None,
            (None, other) => {
                return crate::not_one_of("auto_pad", other, crate::spatial::AUTO_PADS);
            }
        };
        let (lo, out) = match wanted {
            Some(out) => {
                // Negative where the output is larger than all that the inputs reach: zeros on both sides.
                let total = full - out.clone();
                let half = total.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO);
                (if auto_pad == "SAME_UPPER" { half } else { total - half }, out)
            }
            None if auto_pad == "VALID" => (Dim::ZERO, full),
            None => (lo[axis].clone(), full - lo[axis].clone() - hi[axis].clone()),
        };
        if out.as_const().is_some_and(|out| out < 0) {
            return malformed(format!("output of {out} elements along spatial axis {axis}"));
        }
        let (kernel, stride, dilation) = (kernel[axis].clone(), strides[axis], dilations[axis]);
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
    axes: &[Filter],
) -> Result<ValueId> {
    let rank = axes.len();
    let rhs = phase_filters(b, w, groups, axes)?;
    let fill = zero(b, x);
    let mut pads = vec![Dim::ZERO; rank + 3];
    for (at, axis) in axes.iter().enumerate() {
        pads[2 + at] = Dim::from(axis.taps() - 1);
    }
    let padded = b.pad(x, fill, pads.clone(), pads)?;
    let kernel = axes.iter().map(Filter::taps).collect();
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
fn phase_filters(b: &mut Builder<'_>, w: ValueId, groups: usize, axes: &[Filter]) -> Result<ValueId> {
    let mut w = w;
    let fill = zero(b, w);
    for (at, axis) in axes.iter().enumerate() {
        w = spread(b, w, 2 + at, axis, fill)?;
    }
    // [G, C/G, m, taps0, stride0, taps1, stride1, ..]
    let mut shape = b.shape(w)[..2].to_vec();
    let each = b.divided(&shape[0], groups, FILTERS)?;
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
fn spread(b: &mut Builder<'_>, w: ValueId, at: usize, axis: &Filter, fill: ValueId) -> Result<ValueId> {
    let mut w = w;
    if axis.dilation > 1 && axis.kernel > 1 {
        w = space(b, w, at, axis.dilation, fill)?;
        w = b.slice_axis(w, at, Dim::ZERO, Dim::from(reach(axis.kernel, axis.dilation)))?;
    }
    let rank = b.rank(w);
    let mut hi = vec![Dim::ZERO; rank];
    hi[at] = Dim::from(axis.taps() * axis.stride - reach(axis.kernel, axis.dilation));
    b.pad(w, fill, vec![Dim::ZERO; rank], hi)
}

/// The full transposed convolution of `x: [G, N, s.., c]` by a kernel of any extents: `stride - 1` zeros after each
/// input, windows with the kernel's reach around them, and the kernel backwards. `[N, s * stride + reach - 1.., M]`
fn spaced_inputs(
    b: &mut Builder<'_>,
    x: ValueId,
    w: ValueId,
    groups: usize,
    axes: &[Transposed],
) -> Result<ValueId> {
    let rank = axes.len();
    let fill = zero(b, x);
    let mut x = x;
    let mut pads = vec![Dim::ZERO; rank + 3];
    for (at, axis) in axes.iter().enumerate() {
        x = space(b, x, 2 + at, axis.stride, fill)?;
        let name = format!("spatial dimension {at} of the weights");
        b.assume(Requirement::at_most(Dim::ONE, axis.kernel.clone()).says_at_least(name, 1));
        pads[2 + at] = reach_of(&axis.kernel, axis.dilation) - Dim::ONE;
    }
    let padded = b.pad(x, fill, pads.clone(), pads)?;
    let kernel: Vec<Dim> = axes.iter().map(|axis| axis.kernel.clone()).collect();
    let dilations: Vec<usize> = axes.iter().map(|axis| axis.dilation).collect();
    let windows = windows(b, padded, 2, &kernel, &vec![1; rank], &dilations)?;
    let rhs = grouped_filters(b, w, groups)?;
    // [G, C/G, m, k..] -> [G, k.., C/G, m], each k backwards
    let sizes = b.shape(rhs);
    let (mut starts, mut steps) = (vec![Dim::ZERO; rank + 3], vec![1; rank + 3]);
    for at in 3..rank + 3 {
        starts[at] = sizes[at].clone() - Dim::ONE;
        steps[at] = -1;
    }
    let rhs = b.emit1(Op::Slice { starts, steps, sizes }, &[rhs])?;
    let mut perm = vec![0];
    perm.extend(3..3 + rank);
    perm.extend([1, 2]);
    let rhs = b.transpose(rhs, &perm)?;
    let op = Op::Contract { batch: 1, m: 1 + rank, k: rank + 1, rhs: RhsLayout::Plain };
    let y = b.emit1(op, &[windows, rhs])?;
    join_groups(b, y)
}

/// `x` with `stride - 1` zeros after each element of an axis.
fn space(b: &mut Builder<'_>, x: ValueId, at: usize, stride: usize, fill: ValueId) -> Result<ValueId> {
    if stride == 1 {
        return Ok(x);
    }
    let mut shape = b.shape(x);
    let column = b.unsqueeze(x, &[at + 1])?;
    let mut hi = vec![Dim::ZERO; shape.len() + 1];
    hi[at + 1] = Dim::from(stride - 1);
    let wide = b.pad(column, fill, vec![Dim::ZERO; shape.len() + 1], hi)?;
    shape[at] = shape[at].clone() * Dim::from(stride);
    b.reshape(wide, shape)
}

/// Elements `lo..lo + out` of each spatial axis, zeros outside the full result.
fn crop(b: &mut Builder<'_>, y: ValueId, axes: &[Transposed]) -> Result<ValueId> {
    let rank = b.rank(y);
    let (mut before, mut after) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    for (at, axis) in axes.iter().enumerate() {
        let missing = axis.lo.clone() + axis.out.clone() - b.shape(y)[1 + at].clone();
        before[1 + at] = (Dim::ZERO - axis.lo.clone()).max_dim(&Dim::ZERO);
        after[1 + at] = missing.max_dim(&Dim::ZERO);
    }
    let fill = zero(b, y);
    let mut y = b.pad(y, fill, before.clone(), after)?;
    for (at, axis) in axes.iter().enumerate() {
        y = b.slice_axis(y, 1 + at, axis.lo.clone() + before[1 + at].clone(), axis.out.clone())?;
    }
    Ok(y)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, elements, ramp};

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

    /// More outputs than what the inputs reach: the specification's total padding is negative, and so is its half.
    #[test]
    fn transposed_outputs_beyond_all_inputs() {
        let case = |pads: &str| {
            Case::new("ConvTranspose", 13)
                .input(&[1, 1, 2], &[1f32, 2.0])
                .constant(&[1, 1, 1], &[3f32])
                .str("auto_pad", pads)
                .ints("strides", &[4])
        };
        let values = [0., 0., 3., 0., 0., 0., 6., 0.];
        case("SAME_UPPER").gives(0, &[1, 1, 8], &values);
        let values = [0., 3., 0., 0., 0., 6., 0., 0.];
        case("SAME_LOWER").gives(0, &[1, 1, 8], &values);
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

    /// As with a known kernel, under every attribute.
    #[test]
    fn transposed_kernels_whose_extents_the_run_tells() {
        type Setting = fn(Case) -> Case;
        let settings: [Setting; 6] = [
            |case| case,
            |case| case.ints("strides", &[2, 3]).ints("output_padding", &[1, 0]),
            |case| case.ints("strides", &[3, 1]).ints("dilations", &[1, 2]).ints("pads", &[1, 0, 1, 2]),
            |case| case.int("group", 2).ints("strides", &[1, 2]),
            |case| case.str("auto_pad", "SAME_UPPER").ints("strides", &[2, 2]),
            |case| case.ints("output_shape", &[8, 7]).ints("strides", &[2, 2]),
        ];
        for set in settings {
            let wanted = set(Case::new("ConvTranspose", 11).ramp(&[2, 4, 3, 3], 1).ramp(&[4, 2, 3, 2], 2));
            let wanted = &wanted.run().unwrap()[0];
            let case = Case::new("ConvTranspose", 11)
                .symbolic(&["n", "c", "h", "w"], &[2, 4, 3, 3], &ramp(72, 1))
                .symbolic(&["i", "m", "y", "x"], &[4, 2, 3, 2], &ramp(48, 2));
            set(case).gives(0, &wanted.shape, &elements(wanted));
        }
        let empty = Case::new("ConvTranspose", 11).ramp(&[1, 1, 3], 1).symbolic(
            &["", "", "k"],
            &[1, 1, 0],
            &[0f32; 0],
        );
        assert!(empty.run().is_err());
    }
}
