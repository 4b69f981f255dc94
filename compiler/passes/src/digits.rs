//! The left-hand side of a product with weights of few bits as fixed-point numbers, whose products with the codes are
//! exact sums of bytes.
//!
//! The elements that meet one part of the weights, whose steps share a scale, share a unit: a power of two, such that the
//! largest of them fits the digits. An element is rounded to a multiple of the unit, and that integer is written in balanced
//! digits of base 256, from -128 to 127: bytes with a sign, as products of bytes want them. With `n` digits the
//! error of an element is at most `2^(1 - 8 n)` of the largest one of its part.
//!
//! Parts without such a form stay floats: those with an element that is not finite, and those with elements so small that their unit would
//! not be a normal number. Their unit is infinity.

use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, MapFn, Op, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Bits of the exponent of an f32, and its value at 1.
const EXPONENT: i32 = 0x7f80_0000;
const MANTISSA_BITS: i32 = 23;
const BIAS: i32 = 127;

/// Balanced digits reach `127 (256^n - 1) / 255`, a little less than half of `256^n`: the largest element is taken for
/// larger by this factor, so that it stays below.
const ROOM: f64 = 1.0 + 1.0 / 128.0;

/// The operands of a contraction besides those of floats: the unit, the totals, and `count` digits of `x`
/// `[rows.., parts, steps]`, f32; see [`Op::Contract`].
pub fn digits(b: &mut Builder, x: ValueId, count: usize) -> Result<Vec<ValueId>> {
    let steps = b.rank(x) - 1;
    // Magnitudes are in the order of their bits, infinity above numbers and NaN above that.
    let bits = b.emit1(Op::Map(MapFn::Bitcast { to: DType::I32 }), &[x])?;
    let magnitude = b.binary_scalar(BinaryFn::BitAnd, bits, f64::from(i32::MAX))?;
    let largest = b.reduce(ReduceFn::Max, magnitude, &[steps])?;
    let size = b.emit1(Op::Map(MapFn::Bitcast { to: DType::F32 }), &[largest])?;
    let (unit, per_unit) = units(b, size, count)?;
    let scaled = b.binary(BinaryFn::Mul, x, per_unit)?;
    let scaled = b.unary(UnaryFn::Round, scaled)?;
    // Where it does not fit, the digits are not read.
    let to_int = MapFn::Cast { to: DType::I32, saturate: false };
    let number = b.emit1(Op::Map(to_int), &[scaled])?;
    let mut shape = b.shape(x);
    shape.pop();
    let mut operands = vec![b.reshape(unit, shape.clone())?];
    let rests = (0..count).map(|digit| above(b, number, digit)).collect::<Result<Vec<_>>>()?;
    for pair in pairs(b, &rests)? {
        let total = b.reduce(ReduceFn::Sum, pair, &[steps])?;
        operands.push(b.reshape(total, shape.clone())?);
    }
    for rest in rests {
        operands.push(b.cast(rest, DType::I8)?);
    }
    Ok(operands)
}

/// The unit of parts whose largest elements are `size`, and its reciprocal.
fn units(b: &mut Builder, size: ValueId, count: usize) -> Result<(ValueId, ValueId)> {
    let int = |b: &mut Builder, value: i32| b.constant(Tensor::scalar(value));
    // Digits hold integers below 2^below.
    let below = 8 * count as i32 - 1;
    let larger = b.binary_scalar(BinaryFn::Mul, size, ROOM)?;
    let bits = b.emit1(Op::Map(MapFn::Bitcast { to: DType::I32 }), &[larger])?;
    let mask = int(b, EXPONENT);
    let exponent = b.binary(BinaryFn::BitAnd, bits, mask)?;
    let [least, by, sum] =
        [below, below - 1, 2 * BIAS + below - 1].map(|exponent| int(b, exponent << MANTISSA_BITS));
    let used = b.binary(BinaryFn::Max, exponent, least)?;
    let unit = b.binary(BinaryFn::Sub, used, by)?;
    let per_unit = b.binary(BinaryFn::Sub, sum, used)?;
    let [unit, per_unit] =
        [unit, per_unit].map(|bits| b.emit1(Op::Map(MapFn::Bitcast { to: DType::F32 }), &[bits]));
    let (unit, per_unit) = (unit?, per_unit?);
    // Nothing but zeros fits every unit.
    let [zero, infinity] = [0.0, f64::INFINITY].map(|value| b.scalar(DType::F32, value));
    let is_zero = b.compare(CompareFn::Eq, size, zero)?;
    let is_small = b.compare(CompareFn::Lt, exponent, least)?;
    let is_infinite = b.compare(CompareFn::Eq, exponent, mask)?;
    let none = b.binary(BinaryFn::Or, is_small, is_infinite)?;
    let other = b.select(none, infinity, unit)?;
    let unit = b.select(is_zero, unit, other)?;
    Ok((unit, per_unit))
}

/// The integers made of the balanced digits of `number` from digit `digit` on.
fn above(b: &mut Builder, number: ValueId, digit: usize) -> Result<ValueId> {
    if digit == 0 {
        return Ok(number);
    }
    // What the digits below come to, at most, is less than half of the next one's unit.
    let half: i64 = (0..digit as u32).map(|below| 128 << (8 * below)).sum();
    let number = b.binary_scalar(BinaryFn::Add, number, half as f64)?;
    b.binary_scalar(BinaryFn::Shr, number, (8 * digit) as f64)
}

/// `digit0 + 256 digit1`, `digit2 + 256 digit3`, as far as there are digits; `rests` has the result of `above` for each digit.
fn pairs(b: &mut Builder, rests: &[ValueId]) -> Result<Vec<ValueId>> {
    let &[number, _, high, ..] = rests else { return Ok(vec![rests[0]]) };
    let from = b.binary_scalar(BinaryFn::Shl, high, 16.0)?;
    let low = b.binary(BinaryFn::Sub, number, from)?;
    Ok(vec![low, high])
}
