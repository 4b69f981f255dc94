//! Conversions of the floats that Rust has no type for: 8 bits and fewer.
//!
//! Encodings are those of the ONNX specification ("Float stored in 8 bits", "6 bit floating point", "4 bit floating point") and of
//! the OCP Microscaling formats: a sign, a biased exponent and a mantissa, with subnormals; `f8e8m0` is a
//! biased exponent only.

use crate::graph::DType;

/// What the encodings differ in.
struct Format {
    /// Bits of the mantissa field.
    mantissa: i32,
    bias: i32,
    /// Position of the sign.
    sign: u8,
    /// Code, without sign, of the largest finite value.
    max: u8,
    /// Code of infinity, where there is one.
    infinity: Option<u8>,
    nan: Nan,
}

#[derive(PartialEq)]
enum Nan {
    /// This code, with either sign.
    Code(u8),
    /// The code of negative zero, which the format lacks.
    NegativeZero,
    /// The format has none: a conversion gives zero with the opposite sign, as `ml_dtypes` does.
    None,
}

fn format(dtype: DType) -> Option<Format> {
    let row =
        |mantissa, bias, sign, max, infinity, nan| Some(Format { mantissa, bias, sign, max, infinity, nan });
    match dtype {
        DType::F8E4M3FN => row(3, 7, 0x80, 0x7e, None, Nan::Code(0x7f)),
        DType::F8E4M3FNUZ => row(3, 8, 0x80, 0x7f, None, Nan::NegativeZero),
        DType::F8E5M2 => row(2, 15, 0x80, 0x7b, Some(0x7c), Nan::Code(0x7e)),
        DType::F8E5M2FNUZ => row(2, 16, 0x80, 0x7f, None, Nan::NegativeZero),
        DType::F6E2M3 => row(3, 1, 0x20, 0x1f, None, Nan::None),
        DType::F6E3M2 => row(2, 3, 0x20, 0x1f, None, Nan::None),
        DType::F4E2M1 => row(1, 1, 0x08, 0x07, None, Nan::None),
        _ => None,
    }
}

/// Value of a code of a float type of 8, 6 or 4 bits (NaN for other types).
pub fn decode(dtype: DType, code: u8) -> f32 {
    if dtype == DType::F8E8M0 {
        return if code == 0xff { f32::NAN } else { exp2(i32::from(code) - 127) };
    }
    let Some(format) = format(dtype) else { return f32::NAN };
    let magnitude = code & (format.sign - 1);
    let negative = code & format.sign != 0;
    let value = if format.nan == Nan::NegativeZero && code == format.sign {
        return f32::NAN;
    } else if magnitude <= format.max {
        let field = i32::from(magnitude >> format.mantissa);
        let fraction = i32::from(magnitude) & ((1 << format.mantissa) - 1);
        let hidden = if field == 0 { 0 } else { 1 << format.mantissa };
        let exponent = field.max(1) - format.bias - format.mantissa;
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
pub fn encode(dtype: DType, value: f32, saturate: bool) -> u8 {
    if dtype == DType::F8E8M0 {
        return encode_exponent(value, saturate);
    }
    let Some(format) = format(dtype) else { return 0 };
    let sign = if value.is_sign_negative() { format.sign } else { 0 };
    if value.is_nan() {
        return match format.nan {
            Nan::Code(code) => code | sign,
            Nan::NegativeZero => format.sign,
            Nan::None => sign ^ format.sign,
        };
    }
    let magnitude = f64::from(value.abs());
    let code =
        if magnitude.is_infinite() { u32::from(format.max) + 1 } else { round_code(&format, magnitude) };
    let code = match u8::try_from(code) {
        Ok(code) if code <= format.max => code,
        _ if saturate || format.nan == Nan::None => format.max,
        _ => match (format.infinity, &format.nan) {
            (Some(infinity), _) => infinity,
            (None, Nan::Code(code)) => *code,
            (None, _) => return format.sign,
        },
    };
    // Formats whose negative zero is NaN have one zero only.
    if code == 0 && format.nan == Nan::NegativeZero { 0 } else { code | sign }
}

/// Code of the nearest value of a format without upper limit.
fn round_code(format: &Format, magnitude: f64) -> u32 {
    let lowest = 1 - format.bias;
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(lowest);
    // Scaling by a power of two is exact, so the only rounding is the one asked for. A carry out of the
    // mantissa lands in the exponent field, where it belongs.
    let steps = (magnitude * f64::from(2f32).powi(format.mantissa - exponent)).round_ties_even() as u32;
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
