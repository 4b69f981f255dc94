//! Numbers in blocks of bytes, which have a scale or two and codes of a few bits: rows of an embedding table as GGUF files have
//! them, and the weights of MatMulFpQ4. Numbers of several bytes are little-endian.

use super::blockwise::{ascending, real_product, unpacked};
use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{BF16, F16, F32, I8, I64, U8, U16, U32};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{MapFn, Op, Requirement, Tensor};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    own("GatherPacked", gather_packed)
        .inputs(&[req("data", "T1"), req("indices", "Tind")])
        .outputs(&[req("output", "T2")])
        .attributes(&[required("K", Int), int("output_dtype", 16), required("packed_type", Int)])
        .types(&[("T1", &[U8]), ("T2", &[BF16, F16, F32]), ("Tind", INDICES)])
        .shapes(&["data[_, _]"])
        .doc("rows of a table in blocks of few bits, as reals"),
    own("MatMulFpQ4", mat_mul_q4)
        .inputs(&[req("A", "T1"), req("B", "T2"), req("B_shape", "T3")])
        .outputs(&[req("Y", "T1")])
        .attributes(&[int("blk_quant_type", 1)])
        .types(&[("T1", &[F32]), ("T2", &[U8]), ("T3", I64S)])
        .shapes(&["A[.., _]", "B[_]", "B_shape[2]"])
        .doc("matrix product with weights of 4 bits in one block of bytes"),
];

/// How numbers are packed.
#[derive(Clone, Copy)]
enum Format {
    Float(DType),
    Q2_0,
    Q4_0,
    Q5_0,
    Q8_0,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

impl Format {
    /// By its number in GGUF files.
    fn numbered(number: i64) -> Result<Format> {
        Ok(match number {
            0 => Format::Float(F32),
            1 => Format::Float(F16),
            2 => Format::Q4_0,
            6 => Format::Q5_0,
            8 => Format::Q8_0,
            13 => Format::Q5K,
            14 => Format::Q6K,
            20 => Format::Iq4Nl,
            23 => Format::Iq4Xs,
            30 => Format::Float(BF16),
            42 => Format::Q2_0,
            16 | 17 | 18 | 22 => {
                return unsupported(format!(
                    "packed_type {number}, whose codes are places in a table of vectors"
                ));
            }
            other => return not_one_of("packed_type", other, "0, 1, 2, 6, 8, 13, 14, 20, 23, 30, 42"),
        })
    }

    /// Numbers of a block, and its bytes.
    fn sizes(self) -> (i64, i64) {
        match self {
            Format::Float(F32) => (1, 4),
            Format::Float(_) => (1, 2),
            Format::Q2_0 => (64, 18),
            Format::Q4_0 | Format::Iq4Nl => (32, 18),
            Format::Q5_0 => (32, 22),
            Format::Q8_0 => (32, 34),
            Format::Q5K => (256, 176),
            Format::Q6K => (256, 210),
            Format::Iq4Xs => (256, 136),
        }
    }
}

/// What codes of the 4 bits of IQ4_NL and IQ4_XS stand for.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

fn gather_packed(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (data, indices) = (cx.input("data")?, cx.input("indices")?);
    let format = Format::numbered(cx.int("packed_type")?)?;
    let to = match cx.int("output_dtype")? {
        1 => F32,
        10 => F16,
        16 => BF16,
        other => return not_one_of("output_dtype", other, "1 (f32), 10 (f16), 16 (bf16)"),
    };
    let (size, bytes) = format.sizes();
    let width = match cx.int("K")? {
        width if (1..=0x7fff_ffff).contains(&width) && width % size == 0 => width,
        other => {
            return malformed(format!(
                "K is {other}; it must be a multiple of {size}, the numbers of a block"
            ));
        }
    };
    let b = &mut *cx.b;
    let (shape, wanted) = (b.shape(data), Dim::from(width / size * bytes));
    let rule = format!("the bytes of {width} numbers");
    b.require(Requirement::equal(shape[1].clone(), wanted).says("dimension 1 of data", rule))?;
    // An index outside of the table is that of its first row.
    let index = b.cast(indices, I64)?;
    let (rows, zero) = (b.dim_scalar(&shape[0])?, b.scalar(I64, 0.0));
    let (low, high) = (b.compare(CompareFn::Le, zero, index)?, b.compare(CompareFn::Lt, index, rows)?);
    let inside = b.binary(BinaryFn::And, low, high)?;
    let index = b.select(inside, index, zero)?;
    let mut result = b.shape(index);
    let taken = product(&result);
    let packed = b.emit1(Op::Gather { axis: 0 }, &[data, index])?;
    let blocks = b.reshape(packed, vec![taken, Dim::from(width / size), Dim::from(bytes)])?;
    let y = Blocks { bytes: blocks }.numbers(b, format)?;
    result.push(Dim::from(width));
    let y = b.reshape(y, result)?;
    Ok(vec![b.cast(y, to)?])
}

/// A column of weights lies behind the other, in blocks of 32, the last one filled up: the scale, f32, with `blk_quant_type` 1 the code
/// of zero, and 16 bytes of codes.
fn mat_mul_q4(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, packed) = (cx.input("A")?, cx.input("B")?);
    let has_zeros = match cx.int("blk_quant_type")? {
        0 => false,
        1 => true,
        // Its schema says blocks of 64 without a code of zero, its kernel takes it for 1.
        2 => return unsupported("blk_quant_type 2"),
        other => return not_one_of("blk_quant_type", other, "0, 1, 2"),
    };
    let sizes = cx.const_input("B_shape")?;
    let [depth, columns] = sizes[..] else { return malformed("B_shape without two numbers") };
    if ![depth, columns].iter().all(|size| (1..=0x7fff_ffff).contains(size)) {
        return malformed(format!("B_shape is {depth}, {columns}; both must be positive"));
    }
    let (blocks, bytes): (i64, usize) = ((depth + 31) / 32, if has_zeros { 21 } else { 20 });
    let b = &mut *cx.b;
    let own = b.shape(x).pop().unwrap_or(Dim::ONE);
    b.require(
        Requirement::equal(own, Dim::from(depth)).says("the last dimension of A", "the first of B_shape"),
    )?;
    let shape = vec![Dim::from(columns), Dim::from(blocks), Dim::from(bytes)];
    let rule = format!("{columns} columns of {blocks} blocks of {bytes} bytes");
    let requirement = Requirement::equal(b.shape(packed)[0].clone(), product(&shape));
    b.require(requirement.says("the number of bytes of B", rule))?;
    let packed = Blocks { bytes: b.reshape(packed, shape)? };
    let scales = packed.part(b, 0, 4, 1)?;
    let scales = float(b, scales, F32)?;
    let zeros = match has_zeros {
        true => {
            let zeros = packed.part(b, 4, 1, 1)?;
            b.cast(zeros, F32)?
        }
        false => b.scalar(F32, 8.0),
    };
    let codes = packed.part(b, bytes - 16, 16, 1)?;
    let codes = planes(b, codes, 4)?;
    let codes = b.cast(codes, F32)?;
    let weights = b.binary(BinaryFn::Sub, codes, zeros)?;
    let weights = b.binary(BinaryFn::Mul, weights, scales)?;
    let weights = b.reshape(weights, vec![Dim::from(columns), Dim::from(blocks * 32)])?;
    let weights = b.slice_axis(weights, 1, Dim::ZERO, Dim::from(depth))?;
    let weights = b.transpose(weights, &[1, 0])?;
    Ok(vec![real_product(b, x, weights, None)?])
}

/// u8 `[rows, blocks, bytes]`
struct Blocks {
    bytes: ValueId,
}

impl Blocks {
    /// `count` bytes of each block from `start` on, with an axis of `groups` before them.
    fn part(&self, b: &mut Builder<'_>, start: usize, count: usize, groups: usize) -> Result<ValueId> {
        let part = b.slice_axis(self.bytes, 2, Dim::from(start), Dim::from(count))?;
        let mut shape = b.shape(part);
        shape.splice(2.., [Dim::from(groups), Dim::from(count / groups)]);
        b.reshape(part, shape)
    }

    /// The f16 at byte `start`, as f32 `[rows, blocks, 1, 1]`.
    fn half(&self, b: &mut Builder<'_>, start: usize) -> Result<ValueId> {
        let part = self.part(b, start, 2, 1)?;
        float(b, part, F16)
    }

    /// The numbers, f32 `[rows, blocks, groups, size of a block / groups]`.
    fn numbers(&self, b: &mut Builder<'_>, format: Format) -> Result<ValueId> {
        match format {
            Format::Float(kind) => {
                let bytes = if kind == F32 { 4 } else { 2 };
                let part = self.part(b, 0, bytes, 1)?;
                float(b, part, kind)
            }
            Format::Q2_0 => {
                let codes = self.part(b, 2, 16, 1)?;
                let codes = unpacked(b, codes, 2, &ascending(2))?;
                self.scaled(b, 0, codes, -1.0)
            }
            Format::Q4_0 => {
                let codes = self.part(b, 2, 16, 1)?;
                let codes = planes(b, codes, 4)?;
                self.scaled(b, 0, codes, -8.0)
            }
            Format::Q5_0 => {
                let (codes, above) = (self.part(b, 6, 16, 1)?, self.part(b, 2, 4, 1)?);
                let (codes, above) = (planes(b, codes, 4)?, unpacked(b, above, 1, &ascending(1))?);
                let codes = joined(b, codes, above, 16.0)?;
                self.scaled(b, 0, codes, -16.0)
            }
            Format::Q8_0 => {
                let codes = self.part(b, 2, 32, 1)?;
                let codes = b.emit1(Op::Map(MapFn::Bitcast { to: I8 }), &[codes])?;
                self.scaled(b, 0, codes, 0.0)
            }
            Format::Iq4Nl => {
                let codes = self.part(b, 2, 16, 1)?;
                let levels = levels(b, codes)?;
                self.scaled(b, 0, levels, 0.0)
            }
            Format::Iq4Xs => {
                // Each of 8 groups has a scale of 6 bits.
                let (low, high) = (self.part(b, 4, 4, 1)?, self.part(b, 2, 2, 1)?);
                let (low, high) = (unpacked(b, low, 4, &ascending(4))?, unpacked(b, high, 2, &ascending(2))?);
                let scales = joined(b, low, high, 16.0)?;
                let scales = self.scaled(b, 0, scales, -32.0)?;
                let scales = b.transpose(scales, &[0, 1, 3, 2])?;
                let codes = self.part(b, 8, 128, 8)?;
                let levels = levels(b, codes)?;
                b.binary(BinaryFn::Mul, scales, levels)
            }
            Format::Q5K => {
                // Of 8 groups each has a scale and a least number of 6 bits.
                let words = [4, 8, 12].map(|start| self.part(b, start, 4, 1));
                let [scales, mins, rest] = words;
                let (scales, mins, rest) = (scales?, mins?, rest?);
                let low = b.binary_scalar(BinaryFn::BitAnd, rest, 15.0)?;
                let high = b.binary_scalar(BinaryFn::Shr, rest, 4.0)?;
                let mut of_groups = |first: ValueId, second: ValueId, start: usize| {
                    let few = b.binary_scalar(BinaryFn::BitAnd, first, 63.0)?;
                    let above = b.binary_scalar(BinaryFn::Shr, first, 6.0)?;
                    let many = joined(b, second, above, 16.0)?;
                    let few = b.cast(few, F32)?;
                    let all = b.concat(&[few, many], 3)?;
                    let all = self.scaled(b, start, all, 0.0)?;
                    b.transpose(all, &[0, 1, 3, 2])
                };
                let (scales, mins) = (of_groups(scales, low, 0)?, of_groups(mins, high, 2)?);
                let codes = self.part(b, 48, 128, 4)?;
                let codes = planes(b, codes, 4)?;
                let shape = b.shape(self.bytes);
                let grouped = vec![shape[0].clone(), shape[1].clone(), Dim::from(8usize), Dim::from(32usize)];
                let codes = b.reshape(codes, grouped.clone())?;
                let above = self.part(b, 16, 32, 1)?;
                let above = planes(b, above, 1)?;
                let above = b.reshape(above, grouped)?;
                let codes = joined(b, codes, above, 16.0)?;
                let y = b.binary(BinaryFn::Mul, scales, codes)?;
                b.binary(BinaryFn::Sub, y, mins)
            }
            Format::Q6K => {
                let (codes, above) = (self.part(b, 0, 128, 2)?, self.part(b, 128, 64, 2)?);
                let (codes, above) = (planes(b, codes, 4)?, planes(b, above, 2)?);
                let codes = joined(b, codes, above, 16.0)?;
                let codes = b.binary_scalar(BinaryFn::Sub, codes, 32.0)?;
                let shape = b.shape(self.bytes);
                let grouped =
                    vec![shape[0].clone(), shape[1].clone(), Dim::from(16usize), Dim::from(16usize)];
                let codes = b.reshape(codes, grouped)?;
                let scales = self.part(b, 192, 16, 16)?;
                let scales = b.emit1(Op::Map(MapFn::Bitcast { to: I8 }), &[scales])?;
                let scales = self.scaled(b, 208, scales, 0.0)?;
                b.binary(BinaryFn::Mul, scales, codes)
            }
        }
    }

    /// `(codes + shift) * scale`, with the scale at byte `start`.
    fn scaled(&self, b: &mut Builder<'_>, start: usize, codes: ValueId, shift: f64) -> Result<ValueId> {
        let mut codes = b.cast(codes, F32)?;
        if shift != 0.0 {
            codes = b.binary_scalar(BinaryFn::Add, codes, shift)?;
        }
        let scale = self.half(b, start)?;
        b.binary(BinaryFn::Mul, codes, scale)
    }
}

/// The float whose bytes are the last axis, as f32; that axis then has one element.
fn float(b: &mut Builder<'_>, bytes: ValueId, kind: DType) -> Result<ValueId> {
    let axis = b.rank(bytes) - 1;
    let word = if kind == F32 { U32 } else { U16 };
    let mut all = None;
    for at in 0..kind.size() {
        let byte = b.slice_axis(bytes, axis, Dim::from(at), Dim::ONE)?;
        let byte = b.cast(byte, word)?;
        let byte = b.binary_scalar(BinaryFn::Shl, byte, 8.0 * at as f64)?;
        all = Some(match all {
            Some(all) => b.binary(BinaryFn::BitOr, all, byte)?,
            None => byte,
        });
    }
    let Some(all) = all else { return malformed("a float of no bytes") };
    let float = b.emit1(Op::Map(MapFn::Bitcast { to: kind }), &[all])?;
    b.cast(float, F32)
}

/// Codes of `bits` bits from the bytes of the last axis: the lowest of all bytes, then the next ones of all.
fn planes(b: &mut Builder<'_>, bytes: ValueId, bits: i64) -> Result<ValueId> {
    let shifts = ascending(bits);
    let (mut shape, axis) = (b.shape(bytes), b.rank(bytes) - 1);
    let bytes = b.unsqueeze(bytes, &[axis])?;
    let places = b.constant(Tensor::from_slice(&[shifts.len(), 1], &shifts));
    let codes = b.binary(BinaryFn::Shr, bytes, places)?;
    let codes = b.binary_scalar(BinaryFn::BitAnd, codes, ((1 << bits) - 1) as f64)?;
    shape[axis] = shape[axis].clone() * Dim::from(shifts.len());
    b.reshape(codes, shape)
}

/// `low + unit * high`, f32.
fn joined(b: &mut Builder<'_>, low: ValueId, high: ValueId, unit: f64) -> Result<ValueId> {
    let (low, high) = (b.cast(low, F32)?, b.cast(high, F32)?);
    let high = b.binary_scalar(BinaryFn::Mul, high, unit)?;
    b.binary(BinaryFn::Add, low, high)
}

/// What the codes of 4 bits in bytes stand for.
fn levels(b: &mut Builder<'_>, bytes: ValueId) -> Result<ValueId> {
    let codes = planes(b, bytes, 4)?;
    let table = b.constant(Tensor::from_slice(&[16], &LEVELS));
    b.emit1(Op::Gather { axis: 0 }, &[table, codes])
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;

    /// Rows 1 and 9 of a table of two, of bytes that go up by 37 but for those of scales: the first and the last number of row 1,
    /// the first of row 0, which stands for row 9, and the sum of all, each times its place. Numbers of ONNX Runtime 1.32.
    #[test]
    fn rows_of_each_format() {
        for (format, width, block, scales, wanted) in [
            (0, 8, 4, &[3][..], [4.578663e-07, 1.209436e-07, 1.985465e-07, 3.448976e-05]),
            (1, 8, 2, &[1], [0.2722168, 0.2736816, 0.2526855, 37.74805]),
            (2, 64, 18, &[1], [0.2653809, -1.211914, -0.7580566, -1431.336]),
            (6, 64, 22, &[1], [1.375732, -2.004639, 2.27417, -986.0015]),
            (8, 64, 34, &[1], [12.48218, -34.09424, 21.47827, -9723.797]),
            (13, 256, 176, &[1, 3], [102.9785, 70.94678, 197.6895, 14093390.0]),
            (14, 256, 210, &[209], [-113.3757, -445.7031, -367.1829, 730543.4]),
            (20, 64, 18, &[1], [3.449951, -14.84595, -8.843994, -17359.44]),
            (23, 256, 136, &[1], [-100.4458, 400.9021, 16.42456, -638631.1]),
            (30, 8, 2, &[1], [2.039596e-07, 2.095476e-07, 1.294538e-07, 3.381632e-05]),
            (42, 64, 18, &[1], [0.5805664, -0.2902832, 0.0, 993.355]),
        ] {
            let (size, bytes) = super::Format::numbered(format).unwrap().sizes();
            assert_eq!(bytes, block as i64);
            let count = width / size as usize * block;
            let mut data: Vec<u8> = (0..2 * count).map(|at| (at * 37 + 11) as u8).collect();
            data.chunks_mut(block).for_each(|block| scales.iter().for_each(|&at| block[at] = 0x34));
            let case = crate::tests::case(DOMAIN, "GatherPacked", 1).input::<u8>(&[2, count], &data);
            let case = case.symbolic::<i64>(&["n"], &[2], &[1, 9]).int("packed_type", format);
            let case = case.int("K", width as i64).int("output_dtype", 1);
            let y = case.run().unwrap().remove(0);
            assert_eq!(y.shape, [2, width]);
            let y = y.to_f64s().unwrap();
            let sum = y.iter().enumerate().map(|(at, number)| number * (at + 1) as f64).sum();
            for (found, wanted) in [y[0], y[width - 1], y[width], sum].into_iter().zip(wanted) {
                assert!(
                    (found - wanted).abs() <= 1e-6 * wanted.abs(),
                    "format {format}: {found}, not {wanted}"
                );
            }
        }
    }

    /// One column of two blocks; the second has 2 weights: scales 0.5 and 2, codes of zero 3 and 8.
    #[test]
    fn weights_of_a_blob() {
        let of = |kind: i64, bytes: usize| {
            let mut blob = vec![0x41; bytes];
            let block = bytes / 2;
            blob[..4].copy_from_slice(&0.5f32.to_le_bytes());
            blob[block..block + 4].copy_from_slice(&2.0f32.to_le_bytes());
            if kind == 1 {
                (blob[4], blob[block + 4]) = (3, 8);
            }
            let mut x = vec![0.0f32; 3 * 34];
            // Elements 0, 16 and 33, which is the second of its block.
            (x[0], x[34 + 16], x[68 + 33]) = (1.0, 1.0, 1.0);
            let case = crate::tests::case(DOMAIN, "MatMulFpQ4", 1).symbolic::<f32>(&["n", ""], &[3, 34], &x);
            let case = case.constant::<u8>(&[bytes], &blob).constant::<i64>(&[2], &[34, 1]);
            case.int("blk_quant_type", kind)
        };
        of(1, 42).gives(0, &[3, 1], &[-1.0, 0.5, -14.0]);
        of(0, 40).gives(0, &[3, 1], &[-3.5, -2.0, -14.0]);
        let message = of(0, 42).lower().unwrap_err().message;
        assert!(
            message.contains("is 42; it must be 1 columns of 2 blocks of 20 bytes, which is 40"),
            "{message}"
        );
        let message = of(2, 42).lower().unwrap_err().message;
        assert!(message.contains("blk_quant_type 2"), "{message}");
    }

    #[test]
    fn other_tables_are_refused() {
        let of = |format: i64, width: i64, bytes: usize| {
            let case =
                crate::tests::case(DOMAIN, "GatherPacked", 1).input::<u8>(&[1, bytes], &vec![0; bytes]);
            let case = case.input::<i64>(&[1], &[0]).int("packed_type", format).int("K", width);
            case.lower().unwrap_err().message
        };
        assert!(of(12, 256, 144).contains("packed_type is `12`"), "{}", of(12, 256, 144));
        assert!(of(16, 256, 66).contains("places in a table of vectors"), "{}", of(16, 256, 66));
        assert!(of(8, 48, 51).contains("K is 48; it must be a multiple of 32"), "{}", of(8, 48, 51));
        assert!(
            of(8, 32, 33)
                .contains("dimension 1 of data is 33; it must be the bytes of 32 numbers, which is 34"),
            "{}",
            of(8, 32, 33)
        );
    }
}
