//! Floats of 16 bits and less, which are held as the f32 of the same value. Where the machine converts none, integer
//! instructions do: a code is the bits of such a float in a lane of 32.

use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::{DType, FloatFormat, Nan};
use onnxc_machine::vector::ir::{Binary, Compare, Lanes, Op, Small, Unary};

const INFINITY: i32 = 0x7f80_0000;
const QUIET: i32 = 0x0040_0000;

/// Whether elements differ from their value in lanes.
pub(super) fn is_narrow(dtype: DType) -> bool {
    dtype.is_float() && dtype.size() < 4
}

impl Select<'_> {
    /// Whether the machine converts floats of a narrow type itself.
    pub fn converts(&self, dtype: DType) -> bool {
        dtype == DType::F16 && self.isa.has(Op::Unpack(Lanes::X1))
    }

    /// An f32 rounded to the values of a narrow type.
    pub fn narrow(&mut self, x: Val, to: DType, saturate: bool) -> Selected<Val> {
        if !is_narrow(to) {
            return Ok(x);
        }
        if self.converts(to) {
            let packed = self.apply(|lanes| Op::Pack(Small::F16, lanes), &[x])?;
            let value = self.apply(Op::Unpack, &[packed])?;
            return Ok(Val { not_nan: x.not_nan, packed: packed.register(), ..value });
        }
        if to == DType::BF16 {
            return self.round_bf16(x);
        }
        let code = self.encode(x, to, saturate)?;
        let value = self.decode(code, to)?;
        Ok(Val { not_nan: x.not_nan, packed: code.register(), ..value })
    }

    fn round_bf16(&mut self, x: Val) -> Selected<Val> {
        if self.isa.has(Op::Unary(Unary::RoundBf16, Lanes::X1)) {
            let rounded = self.simple(Unary::RoundBf16, x)?;
            return Ok(Val { not_nan: x.not_nan, ..rounded });
        }
        let high = Val::int(0xffff_0000_u32 as i32);
        let odd = self.simple(Unary::Shr(16), x)?;
        let odd = self.pair(Binary::And, odd, Val::int(1))?;
        let rounded = self.pair(Binary::IntAdd, x, Val::int(0x7fff))?;
        let rounded = self.pair(Binary::IntAdd, rounded, odd)?;
        let rounded = self.pair(Binary::And, rounded, high)?;
        if x.not_nan {
            return Ok(Val { not_nan: true, ..rounded });
        }
        let quiet = self.pair(Binary::Or, x, Val::int(QUIET))?;
        let quiet = self.pair(Binary::And, quiet, high)?;
        let nan = self.test(Compare::Ne, x, x)?;
        self.choose(Form::Single, nan, quiet, rounded)
    }

    /// The code of a value of the type.
    pub fn encode_exact(&mut self, x: Val, dtype: DType) -> Selected<Val> {
        match dtype {
            DType::BF16 => self.simple(Unary::Shr(16), x),
            // The least value is a subnormal f32, whose exponent field is its code, 0.
            DType::F8E8M0 => {
                let magnitude = self.pair(Binary::And, x, Val::int(i32::MAX))?;
                self.simple(Unary::Shr(23), magnitude)
            }
            _ => self.encode(x, dtype, false),
        }
    }

    /// Code of an f32 rounded to nearest, ties to even. Formats of 8 bits and fewer give their largest value for what is out
    /// of range with `saturate`, else infinity or NaN.
    fn encode(&mut self, x: Val, dtype: DType, saturate: bool) -> Selected<Val> {
        let magnitude = self.pair(Binary::And, x, Val::int(i32::MAX))?;
        if dtype == DType::F8E8M0 {
            return self.encode_exponent(magnitude, saturate);
        }
        let Some(f) = dtype.float_format() else { return refuse(format!("codes of {dtype}")) };
        let code = self.round_code(magnitude, &f)?;

        let over = match (f.infinity, f.nan) {
            (Some(infinity), Nan::Payload) => infinity,
            (_, Nan::Absent) => f.max,
            _ if saturate => f.max,
            (Some(infinity), _) => infinity,
            (None, Nan::Code(code)) => code,
            (None, _) => 1 << f.sign,
        };
        let too_large = self.test(Compare::IntGt, code, Val::int(f.max.into()))?;
        let code = self.choose(Form::Int, too_large, Val::int(over.into()), code)?;

        let sign = self.pair(Binary::And, x, Val::int(i32::MIN))?;
        let sign = self.simple(Unary::Shr(31 - f.sign), sign)?;
        let is_nan = self.test(Compare::IntGt, magnitude, Val::int(INFINITY))?;
        match f.nan {
            Nan::Payload => {
                let payload = self.simple(Unary::Shr(23 - f.mantissa), magnitude)?;
                let payload = self.pair(Binary::And, payload, Val::int((1 << f.mantissa) - 1))?;
                let nan = self.pair(Binary::Or, payload, Val::int(0x7e00))?;
                let code = self.choose(Form::Int, is_nan, nan, code)?;
                self.pair(Binary::Or, code, sign)
            }
            Nan::Code(nan) => {
                let code = self.choose(Form::Int, is_nan, Val::int(nan.into()), code)?;
                self.pair(Binary::Or, code, sign)
            }
            Nan::NegativeZero => {
                let nan = Val::int(1 << f.sign);
                let signed = self.pair(Binary::Or, code, sign)?;
                let is_zero = self.test(Compare::IntEq, code, Val::int(0))?;
                let code = self.choose(Form::Int, is_zero, Val::int(0), signed)?;
                // What is out of range without `saturate` is NaN, which has one code.
                let code = if saturate { code } else { self.choose(Form::Int, too_large, nan, code)? };
                self.choose(Form::Int, is_nan, nan, code)
            }
            Nan::Absent => {
                let opposite = self.pair(Binary::Xor, sign, Val::int(1 << f.sign))?;
                let signed = self.pair(Binary::Or, code, sign)?;
                self.choose(Form::Int, is_nan, opposite, signed)
            }
        }
    }

    /// Code of the nearest magnitude in a format without upper limit.
    fn round_code(&mut self, magnitude: Val, f: &FloatFormat) -> Selected<Val> {
        // Normal: add half a unit less one, and one more if the kept part is odd; a carry lands in the exponent, where it
        // belongs.
        let shift = 23 - f.mantissa;
        let kept = self.simple(Unary::Shr(shift), magnitude)?;
        let odd = self.pair(Binary::And, kept, Val::int(1))?;
        let rounded = self.pair(Binary::IntAdd, magnitude, Val::int((1 << (shift - 1)) - 1))?;
        let rounded = self.pair(Binary::IntAdd, rounded, odd)?;
        let normal = self.simple(Unary::Shr(shift), rounded)?;
        let normal = self.pair(Binary::IntAdd, normal, Val::int(-((127 - f.bias) << f.mantissa)))?;
        // Subnormal: the addition of a number whose last bit is the format's unit rounds.
        let unit = 1 - f.bias - i32::from(f.mantissa);
        let magic = (unit + 23 + 127) << 23;
        let sum = self.pair(Binary::Add, magnitude, Val::single(f32::from_bits(magic as u32)))?;
        let subnormal = self.pair(Binary::IntAdd, sum, Val::int(-magic))?;
        let is_subnormal = self.test(Compare::IntGt, Val::int((128 - f.bias) << 23), magnitude)?;
        self.choose(Form::Int, is_subnormal, subnormal, normal)
    }

    /// Powers of two without sign: rounded up.
    fn encode_exponent(&mut self, magnitude: Val, saturate: bool) -> Selected<Val> {
        let above = self.pair(Binary::IntAdd, magnitude, Val::int(0x7f_ffff))?;
        let up = self.simple(Unary::Shr(23), above)?;
        // Among the subnormals is the least value, 2^-127, whose code is 0.
        let is_above = self.test(Compare::IntGt, magnitude, Val::int(QUIET))?;
        let up = self.choose(Form::Int, is_above, up, Val::int(0))?;
        let is_nan = self.test(Compare::IntGt, magnitude, Val::int(INFINITY))?;
        let nan = Val::int(0xff);
        if !saturate {
            let special = self.test(Compare::IntGt, magnitude, Val::int(INFINITY - 1))?;
            return self.choose(Form::Int, special, nan, up);
        }
        let field = self.simple(Unary::Shr(23), magnitude)?;
        let too_large = self.test(Compare::IntGt, field, Val::int(0xfd))?;
        let code = self.choose(Form::Int, too_large, Val::int(0xfe), up)?;
        self.choose(Form::Int, is_nan, nan, code)
    }

    /// The f32 of a code.
    pub fn decode(&mut self, code: Val, dtype: DType) -> Selected<Val> {
        match dtype {
            DType::BF16 => return self.simple(Unary::Shl(16), code),
            DType::F8E8M0 => {
                let bits = self.simple(Unary::Shl(23), code)?;
                let is_least = self.test(Compare::IntEq, code, Val::int(0))?;
                let bits = self.choose(Form::Int, is_least, Val::int(QUIET), bits)?;
                let is_nan = self.test(Compare::IntEq, code, Val::int(0xff))?;
                return self.choose(Form::Int, is_nan, Val::int(INFINITY | QUIET), bits);
            }
            _ => {}
        }
        let Some(f) = dtype.float_format() else { return refuse(format!("codes of {dtype}")) };
        if f.nan == Nan::Payload {
            return self.decode_standard(code, &f);
        }
        let magnitude = self.pair(Binary::And, code, Val::int((1 << f.sign) - 1))?;
        let shifted = self.simple(Unary::Shl(23 - f.mantissa), magnitude)?;
        let normal = self.pair(Binary::IntAdd, shifted, Val::int((127 - f.bias) << 23))?;
        let count = self.simple(Unary::FromInt, magnitude)?;
        let unit = 2f32.powi(1 - f.bias - i32::from(f.mantissa));
        let subnormal = self.pair(Binary::Mul, count, Val::single(unit))?;
        let is_subnormal = self.test(Compare::IntGt, Val::int(1 << f.mantissa), magnitude)?;
        let mut bits = self.choose(Form::Int, is_subnormal, subnormal, normal)?;
        if let Some(infinity) = f.infinity {
            let special = self.test(Compare::IntGt, magnitude, Val::int(f.max.into()))?;
            let value = self.pair(Binary::Or, shifted, Val::int(INFINITY))?;
            let is_nan = self.test(Compare::IntGt, magnitude, Val::int(infinity.into()))?;
            let quiet = self.pair(Binary::Or, value, Val::int(QUIET))?;
            let value = self.choose(Form::Int, is_nan, quiet, value)?;
            bits = self.choose(Form::Int, special, value, bits)?;
        } else if let Nan::Code(nan) = f.nan {
            let is_nan = self.test(Compare::IntEq, magnitude, Val::int(nan.into()))?;
            bits = self.choose(Form::Int, is_nan, Val::int(INFINITY | QUIET), bits)?;
        }
        let sign = self.pair(Binary::And, code, Val::int(1 << f.sign))?;
        let sign = self.simple(Unary::Shl(31 - f.sign), sign)?;
        bits = self.pair(Binary::Or, bits, sign)?;
        if f.nan == Nan::NegativeZero {
            let is_nan = self.test(Compare::IntEq, code, Val::int(1 << f.sign))?;
            bits = self.choose(Form::Int, is_nan, Val::int(INFINITY | QUIET), bits)?;
        }
        Ok(Val { not_nan: false, ..bits })
    }

    /// The f32 of a code of a format like f32 itself, without a subnormal operand: processors are slow with these, and a program may
    /// have set its processor to take them for 0.
    fn decode_standard(&mut self, code: Val, f: &FloatFormat) -> Selected<Val> {
        let (shift, widest) = (23 - f.mantissa, (127 - f.bias) << 23);
        let magnitude = self.pair(Binary::And, code, Val::int((1 << f.sign) - 1))?;
        let shifted = self.simple(Unary::Shl(shift), magnitude)?;
        let is_subnormal = self.test(Compare::IntGt, Val::int(1 << 23), shifted)?;
        let is_subnormal = self.mask_as_bits(is_subnormal)?;
        let is_special = self.test(Compare::IntGt, shifted, Val::int(i32::from(f.max) << shift))?;
        let is_special = self.mask_as_bits(is_special)?;
        let bits = self.pair(Binary::IntAdd, shifted, Val::int(widest))?;
        // The greatest exponent becomes the greatest one.
        let rest = self.pair(Binary::And, is_special, Val::int(widest))?;
        let bits = self.pair(Binary::IntAdd, bits, rest)?;
        // A subnormal as the mantissa of the least normal number, which is taken away again. For all others that is 0, and the
        // subtraction makes NaNs quiet.
        let least = self.pair(Binary::And, is_subnormal, Val::int(1 << 23))?;
        let bits = self.pair(Binary::IntAdd, bits, least)?;
        let excess = self.pair(Binary::And, is_subnormal, Val::int(widest + (1 << 23)))?;
        let value = self.pair(Binary::Sub, bits, excess)?;
        let sign = self.pair(Binary::And, code, Val::int(1 << f.sign))?;
        let sign = self.simple(Unary::Shl(31 - f.sign), sign)?;
        let value = self.pair(Binary::Or, value, sign)?;
        Ok(Val { not_nan: false, ..value })
    }
}
