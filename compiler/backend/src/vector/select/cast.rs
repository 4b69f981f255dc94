//! Conversions between element types, with the semantics of `Cast`. What the machine has no instruction for is put together
//! from what it has.

use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_loops::Expr;
use onnxc_machine::vector::ir::{Binary, Compare, Convert, Lanes, Logic, Op, Unary};

/// Bits of 2^52 as f64; an integer below it in its mantissa is added to it.
const TWO_52: i64 = 0x4330_0000_0000_0000;
/// Bits of 2^84 + 2^63 as f64: likewise the higher 32 bits of an i64, made positive.
const TWO_84_63: i64 = 0x4530_0000_8000_0000;
/// 2^84 + 2^63 + 2^52
const OFFSET: u64 = 0x4530_0000_8010_0000;
const TWO_31: f32 = 2_147_483_648.0;
const TWO_32: f64 = 4_294_967_296.0;
const TWO_63: f64 = 9_223_372_036_854_775_808.0;
const TWO_64: f64 = 18_446_744_073_709_551_616.0;

impl Select<'_> {
    /// The result of arithmetic in lanes that are wider than the type, as a value of the type.
    pub fn round(&mut self, x: Val, dtype: DType) -> Selected<Val> {
        let bits = 32 - dtype.bits().min(32) as u8;
        match dtype {
            _ if dtype.is_float() => self.narrow(x, dtype, true),
            _ if dtype.is_signed_int() && bits > 0 => {
                let high = self.simple(Unary::Shl(bits), x)?;
                self.simple(Unary::ShrArith(bits), high)
            }
            _ if dtype.is_int() && bits > 0 => {
                self.pair(Binary::And, x, Val::int(i32::MAX >> (31 - dtype.bits())))
            }
            _ => Ok(x),
        }
    }

    pub fn cast(&mut self, from: DType, to: DType, saturate: bool, x: Val) -> Selected<Val> {
        use Form::{Double, Int, Long, Mask, Pair, Single};
        if from == to {
            return Ok(x);
        }
        if from.part().is_some() || to.part().is_some() {
            return self.real_part(from, to, x);
        }
        let (before, after) = (Form::of(from)?, Form::of(to)?);
        match (before, after) {
            (Pair, _) | (_, Pair) => refuse(format!("a conversion of {from} to {to}")),
            (Mask, Mask) => Ok(x),
            (Single | Double, Mask) => self.test(Compare::Ne, x, Val::number(0, before)),
            (Int | Long, Mask) => {
                let zero = self.test(Compare::IntEq, x, Val::number(0, before))?;
                self.not(zero)
            }
            (Mask, _) => self.choose(after, x, Val::number(1, after), Val::number(0, after)),
            // A value of the one is one of the other.
            (Single, Single) if to == DType::F32 => Ok(Val { packed: None, ..x }),
            (Single, Single) => self.narrow(x, to, saturate),
            (Int, Int) => self.round(x, to),
            (Int, Single) => {
                let value = self.int_to_single(x, from)?;
                self.narrow(value, to, saturate)
            }
            (Int, Double) => {
                let value = self.convert(Convert::IntToDouble, x)?;
                if from != DType::U32 {
                    return Ok(value);
                }
                let above = self.pair(Binary::Add, value, Val::double(TWO_32))?;
                let negative = self.test(Compare::Lt, value, Val::double(0.0))?;
                self.choose(Double, negative, above, value)
            }
            (Int, Long) => {
                let value = self.convert(Convert::Extend, x)?;
                match from {
                    DType::U32 => self.pair(Binary::And, value, Val::long(0xffff_ffff)),
                    _ => Ok(value),
                }
            }
            (Long, Int) => {
                let value = self.convert(Convert::Truncate, x)?;
                self.round(value, to)
            }
            (Long, Long) | (Double, Double) => Ok(x),
            (Long, Double | Single) if from == DType::U64 => {
                // From 2^63 on: half of it, with the lowest bit kept for the rounding, and twice that.
                let half = self.simple(Unary::Shr(1), x)?;
                let lowest = self.pair(Binary::And, x, Val::long(1))?;
                let half = self.pair(Binary::Or, half, lowest)?;
                let wide = if after == Double { DType::F64 } else { DType::F32 };
                let large = self.cast(DType::I64, wide, saturate, half)?;
                let large = self.pair(Binary::Add, large, large)?;
                let small = self.cast(DType::I64, wide, saturate, x)?;
                let negative = self.test(Compare::IntGt, Val::long(0), x)?;
                let value = self.choose(after, negative, large, small)?;
                self.narrow(value, to, saturate)
            }
            (Long, Double) => self.long_to_double(x),
            (Long, Single) => {
                let value = self.long_to_single(x)?;
                self.narrow(value, to, saturate)
            }
            (Single, Double) => {
                let value = self.convert(Convert::Widen, x)?;
                Ok(Val { not_nan: x.not_nan, ..value })
            }
            (Double, Single) => {
                let x = if to == DType::F16 { self.round_to_odd(x)? } else { x };
                let value = self.convert(Convert::Narrow, x)?;
                self.narrow(Val { not_nan: x.not_nan, ..value }, to, saturate)
            }
            (Single, Int) if saturate && self.saturates() && !x.is_vector() => {
                let value = self.convert(Convert::Widen, x)?;
                self.double_to_int(value, to)
            }
            (Single, Int) => {
                let value = if saturate { self.single_to_int(x, to)? } else { self.simple(Unary::ToInt, x)? };
                self.round(value, to)
            }
            (Double, Int) if saturate => self.double_to_int(x, to),
            (Double, Int) => {
                let value = self.convert(Convert::DoubleToInt, x)?;
                self.round(value, to)
            }
            (Single, Long) => {
                let value = self.convert(Convert::Widen, x)?;
                self.double_to_integer(value, to, saturate)
            }
            (Double, Long) => self.double_to_integer(x, to, saturate),
        }
    }

    /// A float that is rounded, and perhaps clamped to integers then, as an integer: one instruction rounds and converts.
    /// Clamping first gives the same, as rounding keeps the order and integers.
    pub fn nearest_int(&mut self, x: &Expr, to: DType, saturate: bool) -> Selected<Option<Val>> {
        if !to.is_int() || to.bits() > 32 || self.kernel.dtype(x) != DType::F32 {
            return Ok(None);
        }
        let lanes = self.lanes(4)?;
        if !self.isa.has(Op::Unary(Unary::ToIntNearest, lanes)) {
            return Ok(None);
        }
        let (mut clamps, mut at) = (Vec::new(), x);
        let rounded = loop {
            match at {
                Expr::Unary { op: UnaryFn::Round, x } => break x,
                Expr::Binary { op: op @ (BinaryFn::Min | BinaryFn::Max), a, b } => match **b {
                    Expr::Const { bits, .. } if f32::from_bits(bits as u32).fract() == 0.0 => {
                        clamps.push((*op, Val::bits(bits, Form::Single)));
                        at = a;
                    }
                    _ => return Ok(None),
                },
                _ => return Ok(None),
            }
        };
        let mut value = self.eval(rounded)?;
        while let Some((op, limit)) = clamps.pop() {
            value = self.binary(op, DType::F32, value, limit)?;
        }
        if saturate && !(value.above && value.below && value.not_nan) {
            let value = self.unary(UnaryFn::Round, DType::F32, value)?;
            return self.cast(DType::F32, to, saturate, value).map(Some);
        }
        let value = self.simple(Unary::ToIntNearest, value)?;
        self.round(value, to).map(Some)
    }

    /// A complex number's real part, or the complex number with this real part. Its bits are the lower ones.
    fn real_part(&mut self, from: DType, to: DType, x: Val) -> Selected<Val> {
        match (from, to) {
            (DType::C64, DType::F32) => self.convert(Convert::Truncate, x),
            (DType::F32, DType::C64) => {
                let value = self.convert(Convert::Extend, x)?;
                self.pair(Binary::And, value, Val::long(0xffff_ffff))
            }
            (DType::C128, DType::F64) => {
                let reg = self.scalar(x)?;
                Ok(Val::scalar(self.vec(Op::Extract(0, Lanes::D1), vec![reg]), 8))
            }
            (DType::F64, DType::C128) => {
                let (low, zero) = (self.scalar(x)?, self.vec(Op::Splat(Lanes::D2, 0), vec![]));
                Ok(Val::scalar(self.vec(Op::Insert(0, Lanes::D2), vec![zero, low]), 16))
            }
            _ => refuse(format!("a conversion of {from} to {to}")),
        }
    }

    fn int_to_single(&mut self, x: Val, from: DType) -> Selected<Val> {
        if from != DType::U32 {
            return self.simple(Unary::FromInt, x);
        }
        // Both halves are exact, and the sum rounds once.
        let (high, low) = (self.simple(Unary::Shr(16), x)?, self.pair(Binary::And, x, Val::int(0xffff))?);
        let (high, low) = (self.simple(Unary::FromInt, high)?, self.simple(Unary::FromInt, low)?);
        let high = self.pair(Binary::Mul, high, Val::single(65536.0))?;
        self.pair(Binary::Add, high, low)
    }

    fn double_to_int(&mut self, x: Val, to: DType) -> Selected<Val> {
        let value =
            self.double_to_integer(x, if to.is_signed_int() { DType::I64 } else { DType::U64 }, true)?;
        let value = self.convert(Convert::Truncate, value)?;
        self.round(value, to)
    }

    /// To i64 or u64.
    fn double_to_integer(&mut self, x: Val, to: DType, saturate: bool) -> Selected<Val> {
        if to.is_signed_int() {
            return self.double_to_long(x, saturate);
        }
        let signed = self.unsigned_as_signed(x)?;
        let value = self.double_to_long(signed, true)?;
        let huge = self.test(Compare::Le, Val::double(TWO_64), x)?;
        self.choose(Form::Long, huge, Val::long(-1), value)
    }

    /// As f32 to i64, or to u64 for positive values and an unsigned type, keeping the lower half: what does not fit saturates there. NaN is
    /// 0.
    fn single_to_int(&mut self, x: Val, to: DType) -> Selected<Val> {
        let fast = self.simple(Unary::ToInt, x)?;
        if x.above && x.below {
            if x.not_nan {
                return Ok(fast);
            }
            let number = self.test(Compare::Eq, x, x)?;
            return self.choose(Form::Int, number, fast, Val::int(0));
        }
        // From 2^31 on, the mantissa is shifted to the left.
        let mantissa = self.pair(Binary::And, x, Val::int(0x007f_ffff))?;
        let mantissa = self.pair(Binary::Or, mantissa, Val::int(0x0080_0000))?;
        let exponent = self.simple(Unary::Shr(23), x)?;
        let exponent = self.pair(Binary::And, exponent, Val::int(0xff))?;
        let count = self.pair(Binary::IntSub, exponent, Val::int(150))?;
        let large = self.pair(Binary::ShlBy, mantissa, count)?;
        let sign = self.simple(Unary::ShrArith(31), x)?;
        let large = self.pair(Binary::Xor, large, sign)?;
        let large = self.pair(Binary::IntSub, large, sign)?;
        let limit = if to.is_signed_int() { TWO_63 } else { TWO_64 };
        let huge = self.test(Compare::Le, Val::single(limit as f32), x)?;
        let large = self.choose(Form::Int, huge, Val::int(-1), large)?;
        let magnitude = self.pair(Binary::And, x, Val::int(i32::MAX))?;
        let inside = self.test(Compare::Lt, magnitude, Val::single(TWO_31))?;
        self.choose(Form::Int, inside, fast, large)
    }

    /// What u64 holds but i64 does not, as the negative number with the same lower 64 bits.
    fn unsigned_as_signed(&mut self, x: Val) -> Selected<Val> {
        let above = self.test(Compare::Le, Val::double(TWO_63), x)?;
        let below = self.test(Compare::Lt, x, Val::double(TWO_64))?;
        let both = self.logic(Logic::And, above, below)?;
        let negative = self.pair(Binary::Sub, x, Val::double(TWO_64))?;
        self.choose(Form::Double, both, negative, x)
    }

    /// Toward zero. Beyond i64 the nearest, and 0 for NaN, if that is asked for.
    fn double_to_long(&mut self, x: Val, saturate: bool) -> Selected<Val> {
        if self.saturates() {
            return self.convert(Convert::SaturateToLong, x);
        }
        let mut value = match self.isa.has_long_arithmetic {
            true => self.convert(Convert::DoubleToLong, x)?,
            false => self.double_to_long_in_parts(x)?,
        };
        if !saturate {
            return Ok(value);
        }
        let above = self.test(Compare::Le, Val::double(TWO_63), x)?;
        value = self.choose(Form::Long, above, Val::long(i64::MAX), value)?;
        if !self.isa.has_long_arithmetic {
            let below = self.test(Compare::Lt, x, Val::double(-TWO_63))?;
            value = self.choose(Form::Long, below, Val::long(i64::MIN), value)?;
        }
        let number = self.test(Compare::Eq, x, x)?;
        self.choose(Form::Long, number, value, Val::long(0))
    }

    /// Whether a conversion of scalars saturates by itself.
    fn saturates(&self) -> bool {
        self.isa.has(Op::Convert(Convert::SaturateToLong, Lanes::D1))
    }

    /// The higher 32 bits and the lower ones on their own.
    fn double_to_long_in_parts(&mut self, x: Val) -> Selected<Val> {
        let whole = self.simple(Unary::Trunc, x)?;
        let high = self.pair(Binary::Mul, whole, Val::double(1.0 / TWO_32))?;
        let high = self.simple(Unary::Floor, high)?;
        let back = self.pair(Binary::Mul, high, Val::double(TWO_32))?;
        let low = self.pair(Binary::Sub, whole, back)?;
        let low = self.pair(Binary::Add, low, Val::bits(TWO_52 as u64, Form::Double))?;
        let low = self.pair(Binary::Xor, low, Val::long(TWO_52))?;
        let high = self.convert(Convert::DoubleToInt, high)?;
        let high = self.convert(Convert::Extend, high)?;
        let high = self.simple(Unary::Shl(32), high)?;
        self.pair(Binary::IntAdd, high, low)
    }

    fn long_to_double(&mut self, x: Val) -> Selected<Val> {
        if self.isa.has_long_arithmetic {
            return self.convert(Convert::LongToDouble, x);
        }
        let low = self.pair(Binary::And, x, Val::long(0xffff_ffff))?;
        let low = self.pair(Binary::Or, low, Val::long(TWO_52))?;
        let high = self.simple(Unary::Shr(32), x)?;
        let high = self.pair(Binary::Xor, high, Val::long(TWO_84_63))?;
        let high = self.pair(Binary::Sub, high, Val::bits(OFFSET, Form::Double))?;
        self.pair(Binary::Add, high, low)
    }

    /// Rounded once: what f64 does not hold exactly is cut to what it does, with the last bit set if anything was lost.
    fn long_to_single(&mut self, x: Val) -> Selected<Val> {
        let rest = self.pair(Binary::And, x, Val::long(0x7ff))?;
        let exact = self.test(Compare::IntEq, rest, Val::long(0))?;
        let high = self.pair(Binary::And, x, Val::long(!0x7ff))?;
        let sticky = self.pair(Binary::Or, high, Val::long(0x800))?;
        let cut = self.choose(Form::Long, exact, high, sticky)?;
        let above = self.test(Compare::IntGt, x, Val::long(1 << 53))?;
        let below = self.test(Compare::IntGt, Val::long(-(1 << 53)), x)?;
        let large = self.logic(Logic::Or, above, below)?;
        let value = self.choose(Form::Long, large, cut, x)?;
        let value = self.long_to_double(value)?;
        self.convert(Convert::Narrow, value)
    }

    /// Keeps the 11 highest bits of the mantissa of an f64 and, below them, whether any other was set, so that f32 and then
    /// f16 round once.
    fn round_to_odd(&mut self, x: Val) -> Selected<Val> {
        let low = self.pair(Binary::And, x, Val::long((1 << 41) - 1))?;
        let exact = self.test(Compare::IntEq, low, Val::long(0))?;
        let high = self.pair(Binary::Xor, x, low)?;
        let sticky = self.pair(Binary::Or, high, Val::long(1 << 40))?;
        let value = self.choose(Form::Double, exact, high, sticky)?;
        Ok(Val { not_nan: x.not_nan, ..value })
    }
}
