//! Conversions between element types, with the semantics of `Cast`. What the machine has no instruction for is put together
//! from what it has.

use super::value::{Form, Val};
use super::{Select, Selected};
use crate::graph::DType;
use crate::vector::ir::{Binary, Compare, Convert, Logic, Op, Small, Unary};

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
            DType::F16 => {
                let packed = self.apply(|lanes| Op::Pack(Small::F16, lanes), &[x])?;
                let value = self.apply(Op::Unpack, &[packed])?;
                Ok(Val { not_nan: x.not_nan, packed: packed.register(), ..value })
            }
            DType::BF16 => self.round_bf16(x),
            DType::I8 | DType::I16 => {
                let high = self.simple(Unary::Shl(bits), x)?;
                self.simple(Unary::ShrArith(bits), high)
            }
            DType::U8 => self.pair(Binary::And, x, Val::int(0xff)),
            DType::U16 => self.pair(Binary::And, x, Val::int(0xffff)),
            _ => Ok(x),
        }
    }

    fn round_bf16(&mut self, x: Val) -> Selected<Val> {
        let high = Val::int(0xffff_0000_u32 as i32);
        let odd = self.simple(Unary::Shr(16), x)?;
        let odd = self.pair(Binary::And, odd, Val::int(1))?;
        let rounded = self.pair(Binary::IntAdd, x, Val::int(0x7fff))?;
        let rounded = self.pair(Binary::IntAdd, rounded, odd)?;
        let rounded = self.pair(Binary::And, rounded, high)?;
        if x.not_nan {
            return Ok(Val { not_nan: true, ..rounded });
        }
        let quiet = self.pair(Binary::Or, x, Val::int(0x0040_0000))?;
        let quiet = self.pair(Binary::And, quiet, high)?;
        let nan = self.test(Compare::Ne, x, x)?;
        self.choose(Form::Single, nan, quiet, rounded)
    }

    pub fn cast(&mut self, from: DType, to: DType, saturate: bool, x: Val) -> Selected<Val> {
        use Form::{Double, Int, Long, Mask, Single};
        if from == to {
            return Ok(x);
        }
        let (before, after) = (Form::of(from)?, Form::of(to)?);
        match (before, after) {
            (Mask, Mask) => Ok(x),
            (Single | Double, Mask) => self.test(Compare::Ne, x, Val::number(0, before)),
            (Int | Long, Mask) => {
                let zero = self.test(Compare::IntEq, x, Val::number(0, before))?;
                self.not(zero)
            }
            (Mask, _) => self.choose(after, x, Val::number(1, after), Val::number(0, after)),
            // A value of the one is one of the other.
            (Single, Single) if to == DType::F32 => Ok(Val { packed: None, ..x }),
            (Single, Single) => self.round(x, to),
            (Int, Int) if to == DType::I32 => Ok(x),
            (Int, Int) => self.round(x, to),
            (Int, Single) => {
                let value = self.simple(Unary::FromInt, x)?;
                self.round(value, to)
            }
            (Int, Double) => self.convert(Convert::IntToDouble, x),
            (Int, Long) => self.convert(Convert::Extend, x),
            (Long, Int) => {
                let value = self.convert(Convert::Truncate, x)?;
                self.round(value, to)
            }
            (Long, Long) | (Double, Double) => Ok(x),
            (Long, Double) => self.long_to_double(x),
            (Long, Single) => {
                let value = self.long_to_single(x)?;
                self.round(value, to)
            }
            (Single, Double) => {
                let value = self.convert(Convert::Widen, x)?;
                Ok(Val { not_nan: x.not_nan, ..value })
            }
            (Double, Single) => {
                let x = if to == DType::F16 { self.round_to_odd(x)? } else { x };
                let value = self.convert(Convert::Narrow, x)?;
                self.round(Val { not_nan: x.not_nan, ..value }, to)
            }
            (Single, Int) => {
                let value = if saturate { self.single_to_int(x, to)? } else { self.simple(Unary::ToInt, x)? };
                self.round(value, to)
            }
            (Double, Int) if saturate => {
                let x = if to.is_signed_int() { x } else { self.unsigned_as_signed(x)? };
                let value = self.double_to_long(x, true)?;
                let value = self.convert(Convert::Truncate, value)?;
                self.round(value, to)
            }
            (Double, Int) => {
                let value = self.convert(Convert::DoubleToInt, x)?;
                self.round(value, to)
            }
            (Single, Long) => {
                let value = self.convert(Convert::Widen, x)?;
                self.double_to_long(value, saturate)
            }
            (Double, Long) => self.double_to_long(x, saturate),
        }
    }

    /// As f32 to i64, or to u64 for what is positive and goes to an unsigned type, of which the lower half is kept: what
    /// does not fit saturates there. NaN is 0.
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

    /// Rounded once: what f64 does not hold exactly is cut to what it does, with the last bit telling whether anything
    /// was lost.
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
