//! Geometry of sliding windows: what convolutions and pools of every version share. It turns attributes into
//! kernel extents, strides, dilations and pads per spatial axis.

use super::NodeCx;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;

/// Largest kernel extent, stride, dilation or pad that is taken for real: products of two stay in range.
const MAX_EXTENT: i64 = 1 << 24;

/// A sliding window over the spatial axes, one entry per axis.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Its extents; of weights that the run gives, they may be symbols.
    pub kernel: Vec<Dim>,
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    /// Padding before each axis.
    pub lo: Vec<Dim>,
    /// Padding after each axis, as the node states it.
    pub hi: Vec<Dim>,
    /// Elements past `hi` that only the last window of `ceil_mode` reaches.
    pub extra: Vec<Dim>,
    /// Number of windows.
    pub out: Vec<Dim>,
}

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// An attribute of one positive extent per spatial axis; absent: all `default`.
pub fn extents(cx: &NodeCx<'_, '_>, name: &str, rank: usize, default: usize) -> Result<Vec<usize>> {
    let given = if cx.has(name) { cx.ints(name)? } else { None };
    match given {
        None => Ok(vec![default; rank]),
        Some(values) if values.is_empty() => Ok(vec![default; rank]),
        Some(values) => checked_extents(name, &values, rank),
    }
}

/// `values` as one positive extent per axis.
pub fn checked_extents(name: &str, values: &[i64], rank: usize) -> Result<Vec<usize>> {
    if values.len() != rank || values.iter().any(|value| !(1..=MAX_EXTENT).contains(value)) {
        return malformed(format!(
            "{name} is {values:?}; for {rank} spatial axes it must be {rank} numbers from 1 to {MAX_EXTENT}"
        ));
    }
    Ok(values.iter().map(|&value| value as usize).collect())
}

/// The `pads` attribute: `(before, after)` per spatial axis; absent: zeros.
pub fn explicit_pads(cx: &NodeCx<'_, '_>, rank: usize) -> Result<(Vec<i64>, Vec<i64>)> {
    match cx.ints("pads")? {
        None => Ok((vec![0; rank], vec![0; rank])),
        Some(pads) if pads.is_empty() => Ok((vec![0; rank], vec![0; rank])),
        Some(pads) => {
            if pads.len() != 2 * rank || pads.iter().any(|pad| !(0..=MAX_EXTENT).contains(pad)) {
                return malformed(format!(
                    "pads is {pads:?}; for {rank} spatial axes it must be {} numbers from 0 to {MAX_EXTENT}",
                    2 * rank
                ));
            }
            Ok((pads[..rank].to_vec(), pads[rank..].to_vec()))
        }
    }
}

/// Values of `auto_pad`.
pub const AUTO_PADS: &str = "NOTSET, VALID, SAME_UPPER, SAME_LOWER";

/// Spatial extents of a channels-first tensor, which has at least one.
pub fn spatial_dims(b: &Builder<'_>, x: ValueId) -> Result<Vec<Dim>> {
    let shape = b.shape(x);
    if shape.len() < 3 {
        return malformed(format!("{} has no spatial axes", b.ty(x)));
    }
    Ok(shape[2..].to_vec())
}

/// Reads strides, dilations, pads, `auto_pad` and `ceil_mode` for windows of `kernel` over `sizes`.
pub fn geometry(cx: &NodeCx<'_, '_>, sizes: &[Dim], kernel: Vec<Dim>) -> Result<Geometry> {
    let rank = sizes.len();
    let strides = extents(cx, "strides", rank, 1)?;
    let dilations = extents(cx, "dilations", rank, 1)?;
    let auto_pad = cx.str("auto_pad")?;
    let ceil = cx.has("ceil_mode") && cx.int("ceil_mode")? != 0;
    let (mut lo, mut hi) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    match auto_pad.as_str() {
        "" | "NOTSET" => {
            let (before, after) = explicit_pads(cx, rank)?;
            lo = before.into_iter().map(Dim::from).collect();
            hi = after.into_iter().map(Dim::from).collect();
        }
        "VALID" => {}
        "SAME_UPPER" | "SAME_LOWER" => {
            for axis in 0..rank {
                let total = same_padding(&sizes[axis], &kernel[axis], strides[axis], dilations[axis]);
                let half = total.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO);
                let rest = total - half.clone();
                (lo[axis], hi[axis]) = if auto_pad == "SAME_UPPER" { (half, rest) } else { (rest, half) };
            }
        }
        other => return super::not_one_of("auto_pad", other, AUTO_PADS),
    }
    let (mut extra, mut out) = (vec![Dim::ZERO; rank], Vec::with_capacity(rank));
    for axis in 0..rank {
        let stride = Dim::from(strides[axis]);
        let reach = reach_of(&kernel[axis], dilations[axis]);
        let padded = sizes[axis].clone() + lo[axis].clone() + hi[axis].clone();
        let room = padded.clone() - reach.clone();
        let divided = if ceil { room.ceil_div(&stride) } else { room.floor_div(&stride) };
        let count = divided.unwrap_or(Dim::ZERO) + Dim::ONE;
        // A window that is too wide by less than a stride has no place; a wider one is an error.
        if count.as_const().is_some_and(|count| count < 0) {
            return malformed(format!(
                "a window of {reach} does not fit spatial axis {axis} of size {} with pads {} and {}: with stride {stride} it would \
                 have {count} places",
                sizes[axis], lo[axis], hi[axis]
            ));
        }
        if !ceil {
            out.push(count);
            continue;
        }
        // A window that starts past the data and the leading pads is dropped.
        let starts = sizes[axis].clone() + lo[axis].clone() - Dim::ONE;
        let spare = reach.clone() - hi[axis].clone() - stride.clone();
        let fits = spare.as_const().is_some_and(|spare| spare >= 0);
        let count = match fits {
            true => count,
            false => count.min_dim(&(starts.floor_div(&stride).unwrap_or(Dim::ZERO) + Dim::ONE)),
        };
        let end = (count.clone() - Dim::ONE) * stride + reach;
        extra[axis] = (end - padded).max_dim(&Dim::ZERO);
        out.push(count);
    }
    Ok(Geometry { kernel, strides, dilations, lo, hi, extra, out })
}

/// Elements that a dilated kernel spans.
pub fn reach(kernel: usize, dilation: usize) -> usize {
    (kernel - 1) * dilation + 1
}

/// [`reach`] of a kernel whose extent may be a symbol.
pub fn reach_of(kernel: &Dim, dilation: usize) -> Dim {
    (kernel.clone() - Dim::ONE) * Dim::from(dilation) + Dim::ONE
}

/// Total padding for `ceil(size / stride)` windows.
fn same_padding(size: &Dim, kernel: &Dim, stride: usize, dilation: usize) -> Dim {
    let stride = Dim::from(stride);
    let count = size.ceil_div(&stride).unwrap_or(Dim::ZERO);
    let end = (count - Dim::ONE) * stride + reach_of(kernel, dilation);
    (end - size.clone()).max_dim(&Dim::ZERO)
}

impl Geometry {
    /// Whether every window is one element and every element one window.
    pub fn is_pointwise(&self) -> bool {
        self.kernel.iter().all(|extent| *extent == Dim::ONE) && self.strides.iter().all(|&stride| stride == 1)
    }

    /// `x` with `fill` around the axes `first..`.
    pub fn pad(&self, b: &mut Builder<'_>, x: ValueId, first: usize, fill: ValueId) -> Result<ValueId> {
        let rank = b.rank(x);
        let (mut lo, mut hi) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
        for axis in 0..self.kernel.len() {
            lo[first + axis] = self.lo[axis].clone();
            hi[first + axis] = self.hi[axis].clone() + self.extra[axis].clone();
        }
        b.pad(x, fill, lo, hi)
    }

    /// The extents of a kernel that is known.
    pub fn known_kernel(&self) -> Result<Vec<usize>> {
        known_extents(&self.kernel).ok_or_else(|| {
            Error::unsupported(Stage::Infer, format!("a kernel of the symbolic extents {:?}", self.kernel))
        })
    }

    /// The windows of an already padded `x` over the axes `first..`.
    pub fn windows(&self, b: &mut Builder<'_>, x: ValueId, first: usize) -> Result<ValueId> {
        let mut windows = windows(b, x, first, &self.kernel, &self.strides, &self.dilations)?;
        for axis in 0..self.kernel.len() {
            let same = b.ty(windows).shape[first + axis] == self.out[axis];
            if !same {
                windows = b.slice_axis(windows, first + axis, Dim::ZERO, self.out[axis].clone())?;
            }
        }
        Ok(windows)
    }
}

/// Extents that are all known.
pub fn known_extents(kernel: &[Dim]) -> Option<Vec<usize>> {
    kernel.iter().map(|extent| usize::try_from(extent.as_const()?).ok()).collect()
}

/// Windows of `x` over the axes `first..`, as [`Op::Window`] gives them. Where only the run knows their extents they are gathered.
pub fn windows(
    b: &mut Builder<'_>,
    x: ValueId,
    first: usize,
    kernel: &[Dim],
    strides: &[usize],
    dilations: &[usize],
) -> Result<ValueId> {
    if let Some(kernel) = known_extents(kernel) {
        let op = Op::Window { first, kernel, strides: strides.to_vec(), dilations: dilations.to_vec() };
        return b.emit1(op, &[x]);
    }
    let mut windows = x;
    for (axis, extent) in kernel.iter().enumerate() {
        let at = first + 2 * axis;
        let room = b.ty(windows).shape[at].clone() - reach_of(extent, dilations[axis]);
        let count = room.floor_div(&Dim::from(strides[axis])).unwrap_or(Dim::ZERO) + Dim::ONE;
        let start = b.iota(vec![count, Dim::ONE], 0)?;
        let start = b.binary_scalar(BinaryFn::Mul, start, strides[axis] as f64)?;
        let tap = b.iota(vec![extent.clone()], 0)?;
        let tap = b.binary_scalar(BinaryFn::Mul, tap, dilations[axis] as f64)?;
        let place = b.binary(BinaryFn::Add, start, tap)?;
        windows = b.emit1(Op::Gather { axis: at }, &[windows, place])?;
    }
    // Counts first, then extents.
    let (rank, spatial) = (b.rank(windows), kernel.len());
    let mut perm: Vec<usize> = (0..first).collect();
    perm.extend((0..spatial).map(|axis| first + 2 * axis));
    perm.extend((0..spatial).map(|axis| first + 2 * axis + 1));
    perm.extend(first + 2 * spatial..rank);
    b.transpose(windows, &perm)
}

/// `[N, C, s..] -> [N, s.., C]`
pub fn channels_last(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let rank = b.rank(x);
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.remove(1);
    perm.push(1);
    b.transpose(x, &perm)
}

/// `[N, s.., C] -> [N, C, s..]`
pub fn channels_first(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let rank = b.rank(x);
    let mut perm: Vec<usize> = (0..rank - 1).collect();
    perm.insert(1, rank - 1);
    b.transpose(x, &perm)
}

/// The least value of a dtype: the identity of the maximum.
pub fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I8 => f64::from(i8::MIN),
        DType::I16 => f64::from(i16::MIN),
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        dtype if dtype.is_unsigned_int() => 0.0,
        _ => f64::NEG_INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    /// Of no operator with windows or samples; ONNX's own inference of shapes refuses them as well.
    #[test]
    fn tensors_without_spatial_axes_are_refused() {
        let case = |name: &'static str, opset: u32| Case::new(name, opset).ramp(&[2, 3], 1);
        for case in [
            case("Conv", 11).constant_ramp(&[4, 3], 2),
            case("ConvTranspose", 11).constant_ramp(&[3, 4], 2),
            case("MaxPool", 12).ints("kernel_shape", &[]),
            case("AveragePool", 22).ints("kernel_shape", &[]),
            case("LpPool", 18).ints("kernel_shape", &[]),
            case("GridSample", 20).input::<f32>(&[2, 0], &[]),
        ] {
            let message = case.lower().unwrap_err().message;
            assert!(message.contains("f32[2, 3] has no spatial axes"), "{message}");
        }
    }
}
