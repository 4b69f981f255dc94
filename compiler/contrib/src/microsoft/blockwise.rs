//! Weights of few bits with a scale for each block of them. They become reals by maps over the packed bytes, before a
//! product of reals or after a gather.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{
    BF16, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F16, F32, I4, I32, I64, U4, U8,
};
use onnxc_ir::graph::{Dim, Op, Requirement, Tensor, ValueId};
use onnxc_ir::scalar::BinaryFn;
use onnxc_ops::AttrDefault::{Int, Required};
use onnxc_ops::matmul::product;
use onnxc_ops::quantize::Granularity;
use onnxc_ops::{AttrKind, NodeCx, OpDef, attr, normalize_axis, not_one_of, opt, req};

pub const ROWS: &[OpDef] = &[
    own("MatMulNBits", mat_mul_n_bits)
        .inputs(&[
            req("A", "T1"),
            req("B", "T2"),
            req("scales", "T1"),
            opt("zero_points", "T3"),
            opt("g_idx", "T4"),
            opt("bias", "T1"),
        ])
        .outputs(&[req("Y", "T1")])
        .attributes(&[
            attr("K", Required(AttrKind::Int)),
            attr("N", Required(AttrKind::Int)),
            attr("accuracy_level", Int(0)),
            attr("bits", Int(4)),
            attr("block_size", Required(AttrKind::Int)),
            attr("weight_prepacked", Int(0)),
        ])
        .types(&[("T1", &[F32, F16, BF16]), ("T2", &[U8]), ("T3", &[U8, F16, F32, BF16]), ("T4", &[I32])])
        .shapes(&[
            "A[.., K]",
            "B[N, ceil(K / block_size), ceil(block_size * bits / 8)]",
            "scales[N * ceil(K / block_size)] | [N, ceil(K / block_size)]",
            "zero_points[_] | [N, _]",
            "g_idx[K|ceil(K / block_size) * block_size]",
            "bias[N]",
        ])
        .doc("matrix product with weights of 2, 4 or 8 bits in blocks, plus bias"),
    own("MatMulBnb4", mat_mul_bnb4)
        .inputs(&[req("A", "T1"), req("B", "T2"), req("absmax", "T1")])
        .outputs(&[req("Y", "T1")])
        .attributes(&[
            attr("K", Required(AttrKind::Int)),
            attr("N", Required(AttrKind::Int)),
            attr("block_size", Required(AttrKind::Int)),
            attr("quant_type", Required(AttrKind::Int)),
            attr("training_mode", Int(0)),
            attr("transB", Int(1)),
        ])
        .types(&[("T1", &[F32, F16, BF16]), ("T2", &[U8])])
        .shapes(&[
            "if transB != 0: A[.., K]",
            "if transB = 0: A[.., N]",
            "count(B) = ceil(N * K / 2)",
            "count(absmax) = ceil(N * K / block_size)",
        ])
        .doc("matrix product with weights of 4-bit floats or normal floats in blocks"),
    own("GatherBlockQuantized", gather_block_quantized)
        .inputs(&[req("data", "T1"), req("indices", "Tind"), req("scales", "T2"), opt("zero_points", "T1")])
        .outputs(&[req("output", "T2")])
        .attributes(&[
            attr("bits", Int(4)),
            attr("block_size", Int(128)),
            attr("gather_axis", Int(0)),
            attr("quantize_axis", Int(1)),
        ])
        .types(&[
            ("T1", &[I4, U4, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1]),
            ("T2", &[F32, F16, BF16]),
            ("Tind", &[I32, I64]),
        ])
        .shapes(&[
            "data[..gather_axis, _, ..]",
            "data[..quantize_axis, _, ..]",
            "rank(scales) = rank(data)",
            "rank(zero_points) = rank(data)",
        ])
        .doc("slices of a tensor that is quantized in blocks, as reals"),
];

/// Sizes beyond this are not taken for real: products of two stay in range.
const MAX_SIZE: i64 = 1 << 31;

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// An attribute that is a size.
fn size(cx: &NodeCx<'_, '_>, name: &str) -> Result<i64> {
    match cx.int(name)? {
        size @ 1..MAX_SIZE => Ok(size),
        other => malformed(format!("{name} is {other}; it must be from 1 to {}", MAX_SIZE - 1)),
    }
}

fn bits(cx: &NodeCx<'_, '_>) -> Result<i64> {
    match cx.int("bits")? {
        bits @ (2 | 4 | 8) => Ok(bits),
        other => not_one_of("bits", other, "2, 4, 8"),
    }
}

/// Fields of `bits` bits of the bytes of a u8 tensor, along the last axis. `shifts` has the first bit of each in a byte.
pub(super) fn unpacked(b: &mut Builder<'_>, x: ValueId, bits: i64, shifts: &[u8]) -> Result<ValueId> {
    if shifts.len() == 1 {
        return Ok(x);
    }
    let mut shape = b.shape(x);
    let rank = shape.len();
    let wide = b.unsqueeze(x, &[rank])?;
    let shifts_value = b.constant(Tensor::from_slice(&[shifts.len()], shifts));
    let parts = b.binary(BinaryFn::Shr, wide, shifts_value)?;
    let parts = b.binary_scalar(BinaryFn::BitAnd, parts, ((1 << bits) - 1) as f64)?;
    shape[rank - 1] = shape[rank - 1].clone() * Dim::from(shifts.len());
    b.reshape(parts, shape)
}

/// Where the elements of a byte begin, the first in the lowest bits.
pub(super) fn ascending(bits: i64) -> Vec<u8> {
    (0..8).step_by(bits as usize).collect()
}

/// The first `size` elements along an axis, which may have more.
pub(super) fn first(b: &mut Builder<'_>, x: ValueId, axis: usize, size: Dim) -> Result<ValueId> {
    if b.ty(x).shape[axis] == size { Ok(x) } else { b.slice_axis(x, axis, Dim::ZERO, size) }
}

fn mat_mul_n_bits(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, packed, scales) = (cx.input("A")?, cx.input("B")?, cx.input("scales")?);
    let (zero_points, group, bias) = (cx.optional("zero_points"), cx.optional("g_idx"), cx.optional("bias"));
    let (k, n, block, bits) = (size(cx, "K")?, size(cx, "N")?, size(cx, "block_size")?, bits(cx)?);
    if cx.int("weight_prepacked")? != 0 {
        let message = format!(
            "weight_prepacked {}: weights in the order of one vendor's kernels",
            cx.int("weight_prepacked")?
        );
        return Err(Error::unsupported(Stage::Infer, message));
    }
    let blocks = (k + block - 1) / block;
    let b = &mut *cx.b;
    if let Some(zero_points) = zero_points
        && ![U8, b.dtype(x)].contains(&b.dtype(zero_points))
    {
        let (found, wanted) = (b.dtype(zero_points), b.dtype(x));
        return malformed(format!("zero_points are {found}; they must be u8 or {wanted}, as A is"));
    }
    let bytes = (block * bits + 7) / 8;
    let packed = b.reshape(packed, vec![Dim::from(n), Dim::from(blocks), Dim::from(bytes)])?;
    let weights = unpacked(b, packed, bits, &ascending(bits))?;
    let weights = first(b, weights, 2, Dim::from(block))?;
    let weights = b.cast(weights, F32)?;
    let table = vec![Dim::from(n), Dim::from(blocks)];
    let scales = b.cast(scales, F32)?;
    let scales = b.reshape(scales, table.clone())?;
    let zero_points = match zero_points {
        None => b.scalar(F32, (1 << (bits - 1)) as f64),
        Some(given) if b.dtype(given) == U8 => {
            let row = Dim::from((blocks * bits + 7) / 8);
            let given = b.reshape(given, vec![Dim::from(n), row])?;
            let given = unpacked(b, given, bits, &ascending(bits))?;
            let given = first(b, given, 1, Dim::from(blocks))?;
            b.cast(given, F32)?
        }
        Some(given) => {
            let given = b.cast(given, F32)?;
            b.reshape(given, table)?
        }
    };
    let weights = match group {
        None => {
            let zero_points =
                if b.rank(zero_points) == 0 { zero_points } else { b.unsqueeze(zero_points, &[2])? };
            let scales = b.unsqueeze(scales, &[2])?;
            let weights = b.binary(BinaryFn::Sub, weights, zero_points)?;
            let weights = b.binary(BinaryFn::Mul, weights, scales)?;
            let weights = b.reshape(weights, vec![Dim::from(n), Dim::from(blocks * block)])?;
            first(b, weights, 1, Dim::from(k))?
        }
        Some(group) => {
            let group = first(b, group, 0, Dim::from(k))?;
            let weights = b.reshape(weights, vec![Dim::from(n), Dim::from(blocks * block)])?;
            let weights = first(b, weights, 1, Dim::from(k))?;
            let mut each = [zero_points, scales];
            for value in each.iter_mut() {
                if b.rank(*value) != 0 {
                    *value = b.emit1(Op::Gather { axis: 1 }, &[*value, group])?;
                }
            }
            let weights = b.binary(BinaryFn::Sub, weights, each[0])?;
            b.binary(BinaryFn::Mul, weights, each[1])?
        }
    };
    let weights = b.transpose(weights, &[1, 0])?;
    Ok(vec![real_product(b, x, weights, bias)?])
}

/// The product with f32 weights, plus bias, rounded once to the type of `x`.
pub(super) fn real_product(
    b: &mut Builder<'_>,
    x: ValueId,
    weights: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let x = b.cast(x, F32)?;
    let mut y = product(b, x, weights)?;
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    b.cast(y, dtype)
}

/// Values of a 4-bit float with a bias of 3, divided by the greatest, 12: as they were published with the format.
const FP4: [f32; 16] = [
    0.0,
    5.208_333_3e-3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    0.0,
    -5.208_333_3e-3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// Quantiles of the normal distribution, scaled to the range from -1 to 1.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

fn mat_mul_bnb4(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, packed, scales) = (cx.input("A")?, cx.input("B")?, cx.input("absmax")?);
    let (k, n, block) = (size(cx, "K")?, size(cx, "N")?, size(cx, "block_size")?);
    let table = match cx.int("quant_type")? {
        0 => FP4,
        1 => NF4,
        other => return not_one_of("quant_type", other, "0 (FP4), 1 (NF4)"),
    };
    let transposed = cx.int("transB")? != 0;
    let count = n * k;
    let blocks = count.div_euclid(block) + i64::from(count % block != 0);
    let b = &mut *cx.b;
    let packed = b.reshape(packed, vec![Dim::from(count / 2 + count % 2)])?;
    // The first of a byte is in its highest bits.
    let codes = unpacked(b, packed, 4, &[4, 0])?;
    let codes = first(b, codes, 0, Dim::from(count))?;
    let codes = b.cast(codes, I32)?;
    let table = b.constant(Tensor::from_slice(&[16], &table));
    let weights = b.emit1(Op::Gather { axis: 0 }, &[table, codes])?;
    let scales = b.cast(scales, F32)?;
    let scales = b.reshape(scales, vec![Dim::from(blocks)])?;
    let shape = b.shape(weights);
    let scales = Granularity { axis: 0, block }.aligned(b, scales, &shape)?;
    let weights = b.binary(BinaryFn::Mul, weights, scales)?;
    let weights = b.reshape(weights, vec![Dim::from(n), Dim::from(k)])?;
    let weights = if transposed { b.transpose(weights, &[1, 0])? } else { weights };
    Ok(vec![real_product(b, x, weights, None)?])
}

/// A tensor that is quantised in blocks along one axis.
struct Blocks {
    data: ValueId,
    scales: ValueId,
    zero_points: Option<ValueId>,
    axis: usize,
    /// 0: one block.
    block: i64,
    /// Of the elements of u8 data.
    bits: i64,
}

impl Blocks {
    /// Its elements as f32.
    fn reals(&self, b: &mut Builder<'_>) -> Result<ValueId> {
        let packs = b.dtype(self.data) == U8;
        let shifts = if packs { ascending(self.bits) } else { vec![0] };
        let data = unpacked(b, self.data, self.bits, &shifts)?;
        let shape = b.shape(data);
        let y = b.cast(data, F32)?;
        let granularity = Granularity { axis: self.axis as i64, block: self.block };
        let aligned = |b: &mut Builder<'_>, value: ValueId| match self.block {
            0 => Ok(value),
            _ => granularity.aligned(b, value, &shape),
        };
        let zero_points = match self.zero_points {
            Some(given) => {
                let given = unpacked(b, given, self.bits, &shifts)?;
                let counts = b.shape(self.scales);
                let given = first(b, given, self.axis, counts[self.axis].clone())?;
                let given = b.cast(given, F32)?;
                Some(aligned(b, given)?)
            }
            None if packs => Some(b.scalar(F32, (1 << (self.bits - 1)) as f64)),
            None => None,
        };
        let y = match zero_points {
            Some(zero_points) => b.binary(BinaryFn::Sub, y, zero_points)?,
            None => y,
        };
        let scales = b.cast(self.scales, F32)?;
        let scales = aligned(b, scales)?;
        b.binary(BinaryFn::Mul, y, scales)
    }

    /// Checks the sizes of scales and zero points.
    fn check(&self, b: &mut Builder<'_>) -> Result<()> {
        let (shape, scales) = (b.shape(self.data), b.shape(self.scales));
        let packs = b.dtype(self.data) == U8;
        let per_byte = if packs { 8 / self.bits } else { 1 };
        let broadcasts = b.dtype(self.data).is_float();
        for (axis, size) in shape.iter().enumerate() {
            let (wanted, rule) = match (axis == self.axis, self.block) {
                (false, _) => (size.clone(), format!("dimension {axis}")),
                (true, 0) => (Dim::ONE, "1 for each row".to_string()),
                (true, block) => {
                    let elements = size.clone() * Dim::from(per_byte);
                    let blocks = elements.ceil_div(&Dim::from(block)).unwrap_or(Dim::ONE);
                    (blocks, format!("the number of blocks of {block} along dimension {axis}"))
                }
            };
            let requirement = match broadcasts && axis != self.axis {
                true => Requirement::broadcasts(scales[axis].clone(), wanted),
                false => Requirement::equal(scales[axis].clone(), wanted),
            };
            b.require(requirement.says(format!("dimension {axis} of scales"), format!("{rule} of data")))?;
        }
        let Some(zero_points) = self.zero_points else { return Ok(()) };
        for (axis, size) in b.shape(zero_points).into_iter().enumerate() {
            let mut wanted = scales[axis].clone();
            if axis == self.axis {
                wanted = wanted.ceil_div(&Dim::from(per_byte)).unwrap_or(Dim::ONE);
            }
            let rule = if axis == self.axis && per_byte > 1 { "the bytes of those" } else { "that" };
            let name = format!("dimension {axis} of zero_points");
            b.require(Requirement::equal(size, wanted).says(name, format!("{rule} of scales")))?;
        }
        Ok(())
    }

    /// Slices along `axis`, which is not that of the blocks.
    fn gathered(&self, b: &mut Builder<'_>, axis: usize, indices: ValueId) -> Result<Blocks> {
        let rank = b.rank(indices);
        let mut values = [Some(self.data), Some(self.scales), self.zero_points];
        for value in values.iter_mut().flatten() {
            let mut shape = b.shape(*value);
            let shared = shape[axis] == Dim::ONE && b.shape(self.data)[axis] != Dim::ONE;
            *value = match shared {
                true => {
                    shape.splice(axis..=axis, vec![Dim::ONE; rank]);
                    b.reshape(*value, shape)?
                }
                false => b.emit1(Op::Gather { axis }, &[*value, indices])?,
            };
        }
        let own = if axis < self.axis { self.axis + rank - 1 } else { self.axis };
        let [data, scales, zero_points] = values;
        let (data, scales) = (data.unwrap_or(self.data), scales.unwrap_or(self.scales));
        Ok(Blocks { data, scales, zero_points, axis: own, ..*self })
    }
}

fn gather_block_quantized(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (data, indices, scales, zero_points) =
        (cx.input("data")?, cx.input("indices")?, cx.input("scales")?, cx.optional("zero_points"));
    let (rank, dtype) = (cx.b.rank(data), cx.b.dtype(data));
    let gather_axis = normalize_axis(cx.int("gather_axis")?, rank)?;
    let axis = normalize_axis(cx.int("quantize_axis")?, rank)?;
    let bits = if dtype == U8 { bits(cx)? } else { 8 };
    let block = match cx.int("block_size")? {
        0 if dtype.is_float() => 0,
        _ => size(cx, "block_size")?,
    };
    if dtype == U8 && axis + 1 != rank {
        return malformed(format!(
            "quantize_axis {axis} of packed bytes; it must be the last axis, {}",
            rank - 1
        ));
    }
    if dtype == U8 && gather_axis == axis {
        return malformed(format!("gather_axis is quantize_axis, {axis}, of packed bytes"));
    }
    if dtype.is_float() && zero_points.is_some() {
        return malformed(format!("zero_points of {dtype}, which has none"));
    }
    let b = &mut *cx.b;
    let to = b.dtype(scales);
    let blocks = Blocks { data, scales, zero_points, axis, block, bits };
    blocks.check(b)?;
    let y = match gather_axis == axis {
        true => {
            let reals = blocks.reals(b)?;
            b.emit1(Op::Gather { axis }, &[reals, indices])?
        }
        false => blocks.gathered(b, gather_axis, indices)?.reals(b)?,
    };
    Ok(vec![b.cast(y, to)?])
}
