//! Conversions of the floats that Rust has no type for: 8 bits and fewer.
//!
//! Their formats are data ([`FloatFormat`]); `f8e8m0` is a biased exponent only.

use crate::graph::{DType, FloatFormat, Nan};

/// Value of a code of a float type of 8, 6 or 4 bits (NaN for other types).
pub(super) fn decode(dtype: DType, code: u8) -> f32 {
    if dtype == DType::F8E8M0 {
        return if code == 0xff { f32::NAN } else { exp2(i32::from(code) - 127) };
    }
    let Some(format) = dtype.byte_format() else { return f32::NAN };
    let code = u16::from(code);
    let magnitude = code & (format.sign_code() - 1);
    let negative = code & format.sign_code() != 0;
    let value = if format.nan == Nan::NegativeZero && code == format.sign_code() {
        return f32::NAN;
    } else if magnitude <= format.max {
        let field = i32::from(magnitude >> format.mantissa);
        let fraction = i32::from(magnitude) & ((1 << format.mantissa) - 1);
        let hidden = if field == 0 { 0 } else { 1 << format.mantissa };
        let exponent = field.max(1) - format.bias - i32::from(format.mantissa);
        (fraction + hidden) as f32 * exp2(exponent)
    } else if format.infinity == Some(magnitude) {
        f32::INFINITY
    } else {
        f32::NAN
    };
    if negative { -value } else { value }
}

/// Code of `value` rounded to nearest, ties to even. Out of range, and infinities, give the largest finite
/// value with `saturate`, else infinity or NaN (those of 6 and 4 bits always saturate). `f8e8m0` ignores the sign and
/// rounds up, the default `round_mode` of ONNX `Cast`.
pub(super) fn encode(dtype: DType, value: f32, saturate: bool) -> u8 {
    if dtype == DType::F8E8M0 {
        return encode_exponent(value, saturate);
    }
    let Some(format) = dtype.byte_format() else { return 0 };
    let negative = format.sign_code();
    let sign = if value.is_sign_negative() { negative } else { 0 };
    let magnitude = f64::from(value.abs());
    let code = match format.nan {
        Nan::Code(code) if value.is_nan() => code | sign,
        Nan::NegativeZero if value.is_nan() => negative,
        Nan::Payload | Nan::Absent if value.is_nan() => sign ^ negative,
        _ => {
            let code = match magnitude.is_infinite() {
                true => u32::from(format.max) + 1,
                false => round_code(&format, magnitude),
            };
            match (u16::try_from(code), format.infinity, format.nan) {
                // Formats whose negative zero is NaN have one zero only.
                (Ok(0), _, Nan::NegativeZero) => 0,
                (Ok(code), ..) if code <= format.max => code | sign,
                (_, _, Nan::Absent) => format.max | sign,
                _ if saturate => format.max | sign,
                (_, Some(infinity), _) => infinity | sign,
                (_, None, Nan::Code(code)) => code | sign,
                (_, None, Nan::NegativeZero | Nan::Payload) => negative,
            }
        }
    };
    code as u8
}

/// Code of the nearest value of a format without upper limit.
fn round_code(format: &FloatFormat, magnitude: f64) -> u32 {
    let lowest = 1 - format.bias;
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(lowest);
    // Scaling by a power of two is exact, so the only rounding is the one asked for. A carry out of the
    // mantissa lands in the exponent field, where it belongs.
    let steps =
        (magnitude * f64::from(2f32).powi(i32::from(format.mantissa) - exponent)).round_ties_even() as u32;
    let shift = (exponent - lowest) as u32;
    (shift << format.mantissa) + steps
}

fn encode_exponent(value: f32, saturate: bool) -> u8 {
    let bits = value.to_bits();
    let (field, fraction) = ((bits >> 23) as u8, bits & 0x7f_ffff);
    match field {
        0xff if fraction != 0 || !saturate => 0xff,
        0xfe | 0xff if saturate => 0xfe,
        // Subnormals: 2^-127, the least value of the type, is the fraction with only its highest bit.
        0 => u8::from(fraction > 0x40_0000),
        _ => field + u8::from(fraction != 0),
    }
}

/// 2 to the power of an exponent in -149..=127.
fn exp2(exponent: i32) -> f32 {
    if exponent >= -126 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    } else {
        f32::from_bits(1 << (exponent + 149))
    }
}
