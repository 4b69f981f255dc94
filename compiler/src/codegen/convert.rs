//! Conversions between element types, with the semantics of ONNX `Cast` as the reference evaluator states
//! them. No target converts the narrow floats, so integer instructions do, on scalars and vectors alike.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};

use super::expr::Val;
use super::kernel::Gen;
use super::lane::{is_f32, is_narrow_float, rep_type, scalar_type};
use crate::error::Result;
use crate::graph::DType;

/// A float format with a sign, `exponent` and `mantissa` bits.
struct Format {
    mantissa: u32,
    bias: i64,
    /// Position of the sign.
    sign: u32,
    /// Code of the largest finite value.
    max: i64,
    /// Code of infinity.
    infinity: Option<i64>,
    nan: Nan,
}

#[derive(Clone, Copy, PartialEq)]
enum Nan {
    /// Codes above that of infinity; the highest bits of the NaN are kept.
    Payload,
    /// This code, with either sign.
    Code(i64),
    /// The code of negative zero, which the format lacks.
    NegativeZero,
    /// None: a NaN becomes zero of the other sign.
    Absent,
}

fn format(dtype: DType) -> Option<Format> {
    let row =
        |mantissa, bias, sign, max, infinity, nan| Some(Format { mantissa, bias, sign, max, infinity, nan });
    match dtype {
        DType::F16 => row(10, 15, 15, 0x7bff, Some(0x7c00), Nan::Payload),
        DType::F8E4M3FN => row(3, 7, 7, 0x7e, None, Nan::Code(0x7f)),
        DType::F8E4M3FNUZ => row(3, 8, 7, 0x7f, None, Nan::NegativeZero),
        DType::F8E5M2 => row(2, 15, 7, 0x7b, Some(0x7c), Nan::Code(0x7e)),
        DType::F8E5M2FNUZ => row(2, 16, 7, 0x7f, None, Nan::NegativeZero),
        DType::F6E2M3 => row(3, 1, 5, 0x1f, None, Nan::Absent),
        DType::F6E3M2 => row(2, 3, 5, 0x1f, None, Nan::Absent),
        DType::F4E2M1 => row(1, 1, 3, 0x07, None, Nan::Absent),
        _ => None,
    }
}

const SIGN: i64 = 0x8000_0000;
const INFINITY: i64 = 0x7f80_0000;
const QUIET: i64 = 0x0040_0000;

impl Gen<'_, '_> {
    pub fn cast(&mut self, x: Val, to: DType, saturate: bool) -> Result<Val> {
        let from = x.dtype;
        if from == to {
            return Ok(x);
        }
        let mut value = self.apply(&[x], to, &|g, v, lanes| g.convert(v[0], from, to, saturate, lanes))?;
        value.not_nan = x.not_nan || !to.is_float();
        Ok(value)
    }

    fn convert(
        &mut self,
        x: Value,
        from: DType,
        to: DType,
        saturate: bool,
        lanes: usize,
    ) -> Result<Option<Value>> {
        let ty = rep_type(to, lanes);
        if from.part().is_some() || to.part().is_some() {
            return Ok(if lanes > 1 { None } else { Some(self.real_part(x, from, to)) });
        }
        if to == DType::Bool {
            return Ok(Some(if from.is_float() {
                let zero = self.float(self.type_of(x), 0.0);
                self.fcmp(FloatCC::NotEqual, x, zero, lanes)
            } else {
                self.icmp_int(IntCC::NotEqual, x, 0)
            }));
        }
        if from == DType::Bool {
            if to.is_float() {
                let (one, zero) = (self.float(ty, 1.0), self.float(ty, 0.0));
                let mask = if lanes > 1 { self.mask_for(x, to, lanes) } else { x };
                return Ok(Some(self.choose(mask, one, zero)));
            }
            let bit = self.band_int(x, 1);
            return Ok(Some(if lanes > 1 { bit } else { self.resize(bit, ty, false) }));
        }
        match (from.is_float(), to.is_float()) {
            (false, false) => {
                let sized = if lanes > 1 { x } else { self.resize(x, ty, from.is_signed_int()) };
                Ok(Some(self.wrap(sized, to)))
            }
            (false, true) => self.int_to_float(x, from, to, saturate, lanes),
            (true, false) if lanes > 1 => self.vector_to_int(x, from, to, saturate, lanes),
            (true, false) => Ok(Some(self.float_to_int(x, to, saturate))),
            (true, true) => self.float_to_float(x, from, to, saturate, lanes).map(Some),
        }
    }

    /// A complex number's real part, or the complex number with this real part. Its bits are the lower ones.
    fn real_part(&mut self, x: Value, from: DType, to: DType) -> Value {
        let ty = scalar_type(to);
        if from.part().is_some() {
            let bits = match self.type_of(x) {
                types::I128 => self.b.ins().isplit(x).0,
                _ => self.b.ins().ireduce(types::I32, x),
            };
            return self.bitcast(ty, bits);
        }
        let bits = self.bitcast(self.type_of(x).as_int(), x);
        match ty {
            types::I128 => {
                let zero = self.int(types::I64, 0);
                self.b.ins().iconcat(bits, zero)
            }
            _ => self.b.ins().uextend(ty, bits),
        }
    }

    fn int_to_float(
        &mut self,
        x: Value,
        from: DType,
        to: DType,
        saturate: bool,
        lanes: usize,
    ) -> Result<Option<Value>> {
        let is_double = to == DType::F64;
        let ty = rep_type(to, lanes);
        if lanes > 1 && (is_double || lanes != 4) {
            return Ok(None);
        }
        // A narrower unsigned integer in a wider lane is not negative; signed conversion is cheaper.
        let signed = from.is_signed_int() || from.bits() < self.type_of(x).lane_bits();
        let value =
            if signed { self.b.ins().fcvt_from_sint(ty, x) } else { self.b.ins().fcvt_from_uint(ty, x) };
        self.narrow(value, to, saturate).map(Some)
    }

    fn float_to_float(
        &mut self,
        x: Value,
        from: DType,
        to: DType,
        saturate: bool,
        lanes: usize,
    ) -> Result<Value> {
        if to == DType::F64 {
            return Ok(if lanes > 1 {
                self.b.ins().fvpromote_low(x)
            } else {
                self.b.ins().fpromote(types::F64, x)
            });
        }
        let mut value = x;
        if from == DType::F64 {
            if to == DType::F16 {
                value = self.round_to_odd(value);
            }
            value = if lanes > 1 {
                self.b.ins().fvdemote(value)
            } else {
                self.b.ins().fdemote(types::F32, value)
            };
        }
        self.narrow(value, to, saturate)
    }

    /// Keeps the 11 highest mantissa bits of an f64 and, below them, whether any other was set: the
    /// following conversions to f32 and f16 then round once.
    fn round_to_odd(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let bits = self.bitcast(ty.as_int(), x);
        let low = self.band_int(bits, (1 << 41) - 1);
        let high = self.b.ins().bxor(bits, low);
        let zero = self.int(ty.as_int(), 0);
        let inexact = self.icmp(IntCC::NotEqual, low, zero);
        let sticky = self.bor_int(high, 1 << 40);
        let odd = self.choose(inexact, sticky, high);
        self.bitcast(ty, odd)
    }

    /// An f32 rounded to the values of a dtype that is held as f32.
    fn narrow(&mut self, x: Value, to: DType, saturate: bool) -> Result<Value> {
        if !is_narrow_float(to) {
            return Ok(x);
        }
        let code = self.encode(x, to, saturate)?;
        self.decode(code, to)
    }

    /// The result of arithmetic, rounded to its dtype.
    pub fn round_to(&mut self, x: Value, dtype: DType) -> Result<Value> {
        self.narrow(x, dtype, true)
    }

    /// Float to integer, truncating. Floats outside of i64 (u64) saturate there, and the result wraps to
    /// narrower types; NaN is 0.
    fn float_to_int(&mut self, x: Value, to: DType, saturate: bool) -> Value {
        let ty = scalar_type(to);
        if !saturate && to.is_signed_int() {
            // Only values in range matter.
            let wide = if to.bits() <= 32 { types::I32 } else { types::I64 };
            let value = self.b.ins().fcvt_to_sint_sat(wide, x);
            let value = self.resize(value, ty, true);
            return self.wrap(value, to);
        }
        let signed = self.b.ins().fcvt_to_sint_sat(types::I64, x);
        let value = if to.is_signed_int() {
            signed
        } else {
            let unsigned = self.b.ins().fcvt_to_uint_sat(types::I64, x);
            let zero = self.float(self.type_of(x), 0.0);
            let negative = self.b.ins().fcmp(FloatCC::LessThan, x, zero);
            self.b.ins().select(negative, signed, unsigned)
        };
        let value = self.resize(value, ty, true);
        self.wrap(value, to)
    }

    /// Vectors of f32 to integers of up to 32 bits. Values outside of i32 are rare: they are converted one by
    /// one, off the main path; without `saturate` they give unspecified integers instead.
    fn vector_to_int(
        &mut self,
        x: Value,
        from: DType,
        to: DType,
        saturate: bool,
        lanes: usize,
    ) -> Result<Option<Value>> {
        if !is_f32(from) || lanes != 4 {
            return Ok(None);
        }
        let fast = if self.target.has_truncating_convert {
            self.b.ins().x86_cvtt2dq(types::I32X4, x)
        } else {
            self.b.ins().fcvt_to_sint_sat(types::I32X4, x)
        };
        let fast = self.wrap(fast, to);
        if !saturate {
            return Ok(Some(fast));
        }
        let magnitude = self.b.ins().fabs(x);
        let limit = self.float(types::F32X4, 2_147_483_648.0);
        let inside = self.b.ins().fcmp(FloatCC::LessThan, magnitude, limit);
        let all = self.b.ins().vall_true(inside);
        let (slow, after) = (self.b.create_block(), self.b.create_block());
        let result = self.b.append_block_param(after, types::I32X4);
        self.b.set_cold_block(slow);
        self.b.ins().brif(all, after, &[BlockArg::Value(fast)], slow, &[]);
        self.b.switch_to_block(slow);
        self.b.seal_block(slow);
        let exact = self
            .per_lane(&[x], &[DType::F32], to, lanes, &|g, v, _| Ok(Some(g.float_to_int(v[0], to, true))))?;
        self.b.ins().jump(after, &[BlockArg::Value(exact)]);
        self.b.switch_to_block(after);
        self.b.seal_block(after);
        Ok(Some(result))
    }

    /// Bits, in 32-bit integers, of a narrow float whose value is exact.
    pub fn encode_exact(&mut self, x: Value, dtype: DType) -> Result<Value> {
        if dtype == DType::F8E8M0 {
            // The least value is a subnormal f32, whose exponent field is its code, 0.
            let bits = self.bitcast(self.type_of(x).as_int(), x);
            let magnitude = self.band_int(bits, 0x7fff_ffff);
            return Ok(self.ushr(magnitude, 23));
        }
        self.encode(x, dtype, false)
    }

    /// Bits of a narrow float in 32-bit integers, rounded to nearest, ties to even. Formats of 8 bits and
    /// fewer give their largest value for what is out of range with `saturate`, else infinity or NaN.
    fn encode(&mut self, x: Value, dtype: DType, saturate: bool) -> Result<Value> {
        let ints = self.type_of(x).as_int();
        let bits = self.bitcast(ints, x);
        let magnitude = self.band_int(bits, 0x7fff_ffff);
        match dtype {
            DType::BF16 => return Ok(self.encode_bf16(bits, magnitude)),
            DType::F8E8M0 => return Ok(self.encode_exponent(magnitude, saturate)),
            _ => {}
        }
        let Some(f) = format(dtype) else {
            return Err(self.internal(format!("{dtype} has no narrow float form")));
        };
        let code = self.round_code(x, magnitude, &f);

        let limit = self.int(ints, f.max);
        let over = match (f.infinity, f.nan) {
            (Some(infinity), Nan::Payload) => infinity,
            (_, Nan::Absent) => f.max,
            _ if saturate => f.max,
            (Some(infinity), _) => infinity,
            (None, Nan::Code(code)) => code,
            (None, _) => 1 << f.sign,
        };
        let over = self.int(ints, over);
        let too_large = self.icmp(IntCC::SignedGreaterThan, code, limit);
        let code = self.choose(too_large, over, code);

        let sign = self.band_int(bits, SIGN);
        let sign = self.ushr(sign, 31 - f.sign);
        let infinity = self.int(ints, INFINITY);
        let is_nan = self.icmp(IntCC::SignedGreaterThan, magnitude, infinity);
        Ok(match f.nan {
            Nan::Payload => {
                let payload = self.ushr(magnitude, 23 - f.mantissa);
                let payload = self.band_int(payload, (1 << f.mantissa) - 1);
                let nan = self.bor_int(payload, 0x7e00);
                let code = self.choose(is_nan, nan, code);
                self.b.ins().bor(code, sign)
            }
            Nan::Code(nan) => {
                let nan = self.int(ints, nan);
                let code = self.choose(is_nan, nan, code);
                self.b.ins().bor(code, sign)
            }
            Nan::NegativeZero => {
                let zero = self.int(ints, 0);
                let nan = self.int(ints, 1 << f.sign);
                let signed = self.b.ins().bor(code, sign);
                let is_zero = self.icmp(IntCC::Equal, code, zero);
                let code = self.choose(is_zero, zero, signed);
                // What is out of range without `saturate` is NaN, which has one code.
                let code = if saturate { code } else { self.choose(too_large, nan, code) };
                self.choose(is_nan, nan, code)
            }
            Nan::Absent => {
                let other = self.int(ints, 1 << f.sign);
                let opposite = self.b.ins().bxor(sign, other);
                let signed = self.b.ins().bor(code, sign);
                self.choose(is_nan, opposite, signed)
            }
        })
    }

    /// Code of the nearest magnitude in a format without upper limit.
    fn round_code(&mut self, x: Value, magnitude: Value, f: &Format) -> Value {
        let ty = self.type_of(x);
        let ints = ty.as_int();
        // Normal: add half a unit less one, and one more if the kept part is odd; a carry lands in the
        // exponent, where it belongs.
        let shift = 23 - f.mantissa;
        let kept = self.ushr(magnitude, shift);
        let odd = self.band_int(kept, 1);
        let rounded = self.add_int(magnitude, (1i64 << (shift - 1)) - 1);
        let rounded = self.b.ins().iadd(rounded, odd);
        let normal = self.ushr(rounded, shift);
        let normal = self.add_int(normal, -((127 - f.bias) << f.mantissa));
        // Subnormal: the addition of a number whose last bit is the format's unit rounds.
        let unit = 1 - f.bias - i64::from(f.mantissa);
        let magic = f32::from_bits(((unit + 23 + 127) as u32) << 23);
        let positive = self.bitcast(ty, magnitude);
        let large = self.float(ty, f64::from(magic));
        let sum = self.b.ins().fadd(positive, large);
        let sum = self.bitcast(ints, sum);
        let subnormal = self.add_int(sum, -i64::from(magic.to_bits()));
        let least = self.int(ints, (128 - f.bias) << 23);
        let is_subnormal = self.icmp(IntCC::SignedLessThan, magnitude, least);
        self.choose(is_subnormal, subnormal, normal)
    }

    fn encode_bf16(&mut self, bits: Value, magnitude: Value) -> Value {
        let ints = self.type_of(bits);
        let high = self.ushr(bits, 16);
        let odd = self.band_int(high, 1);
        let rounded = self.add_int(bits, 0x7fff);
        let rounded = self.b.ins().iadd(rounded, odd);
        let rounded = self.ushr(rounded, 16);
        let quiet = self.bor_int(high, 0x40);
        let infinity = self.int(ints, INFINITY);
        let is_nan = self.icmp(IntCC::SignedGreaterThan, magnitude, infinity);
        self.choose(is_nan, quiet, rounded)
    }

    /// Powers of two without sign: rounded up.
    fn encode_exponent(&mut self, magnitude: Value, saturate: bool) -> Value {
        let ints = self.type_of(magnitude);
        let field = self.ushr(magnitude, 23);
        let above = self.add_int(magnitude, 0x7f_ffff);
        let up = self.ushr(above, 23);
        // Among the subnormals is the least value, 2^-127, whose code is 0.
        let (zero, least) = (self.int(ints, 0), self.int(ints, QUIET));
        let is_least = self.icmp(IntCC::SignedLessThanOrEqual, magnitude, least);
        let up = self.choose(is_least, zero, up);
        let infinity = self.int(ints, INFINITY);
        let nan = self.int(ints, 0xff);
        if !saturate {
            let special = self.icmp(IntCC::SignedGreaterThanOrEqual, magnitude, infinity);
            return self.choose(special, nan, up);
        }
        let limit = self.int(ints, 0xfe);
        let too_large = self.icmp(IntCC::SignedGreaterThanOrEqual, field, limit);
        let code = self.choose(too_large, limit, up);
        let is_nan = self.icmp(IntCC::SignedGreaterThan, magnitude, infinity);
        self.choose(is_nan, nan, code)
    }

    /// The f32 of a narrow float's bits, given in 32-bit integers.
    pub fn decode(&mut self, code: Value, dtype: DType) -> Result<Value> {
        let ints = self.type_of(code);
        let floats = if ints.is_vector() { types::F32X4 } else { types::F32 };
        match dtype {
            DType::BF16 => {
                let bits = self.shl(code, 16);
                return Ok(self.bitcast(floats, bits));
            }
            DType::F8E8M0 => {
                let bits = self.shl(code, 23);
                let (zero, nan) = (self.int(ints, 0), self.int(ints, 0xff));
                let (least, nan_bits) = (self.int(ints, QUIET), self.int(ints, INFINITY | QUIET));
                let is_least = self.icmp(IntCC::Equal, code, zero);
                let bits = self.choose(is_least, least, bits);
                let is_nan = self.icmp(IntCC::Equal, code, nan);
                let bits = self.choose(is_nan, nan_bits, bits);
                return Ok(self.bitcast(floats, bits));
            }
            _ => {}
        }
        let Some(f) = format(dtype) else {
            return Err(self.internal(format!("{dtype} has no narrow float form")));
        };
        let magnitude = self.band_int(code, (1 << f.sign) - 1);
        let shifted = self.shl(magnitude, 23 - f.mantissa);
        let normal = self.add_int(shifted, (127 - f.bias) << 23);
        let count = self.b.ins().fcvt_from_sint(floats, magnitude);
        let unit = self.float(floats, f64::from(2f32).powi((1 - f.bias) as i32 - f.mantissa as i32));
        let subnormal = self.b.ins().fmul(count, unit);
        let subnormal = self.bitcast(ints, subnormal);
        let least = self.int(ints, 1 << f.mantissa);
        let is_subnormal = self.icmp(IntCC::SignedLessThan, magnitude, least);
        let mut bits = self.choose(is_subnormal, subnormal, normal);
        if let Some(infinity) = f.infinity {
            let limit = self.int(ints, f.max);
            let special = self.icmp(IntCC::SignedGreaterThan, magnitude, limit);
            let value = self.bor_int(shifted, INFINITY);
            let infinity = self.int(ints, infinity);
            let is_nan = self.icmp(IntCC::SignedGreaterThan, magnitude, infinity);
            let quiet = self.bor_int(value, QUIET);
            let value = self.choose(is_nan, quiet, value);
            bits = self.choose(special, value, bits);
        } else if let Nan::Code(nan) = f.nan {
            let (nan, value) = (self.int(ints, nan), self.int(ints, INFINITY | QUIET));
            let is_nan = self.icmp(IntCC::Equal, magnitude, nan);
            bits = self.choose(is_nan, value, bits);
        }
        let sign = self.band_int(code, 1 << f.sign);
        let sign = self.shl(sign, 31 - f.sign);
        bits = self.b.ins().bor(bits, sign);
        if f.nan == Nan::NegativeZero {
            let (nan, value) = (self.int(ints, 1 << f.sign), self.int(ints, INFINITY | QUIET));
            let is_nan = self.icmp(IntCC::Equal, code, nan);
            bits = self.choose(is_nan, value, bits);
        }
        Ok(self.bitcast(floats, bits))
    }
}
