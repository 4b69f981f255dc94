//! Conversions of single numbers.

use super::Helpers;
use onnxc_ir::graph::{DType, FloatFormat, Nan};

/// The initializer of an `ox_f8`, in the order of its fields. A type without infinity has -1 there. For NaN, -1 is the code of negative
/// zero, and -2 a type without NaN.
fn format(dtype: DType) -> Option<[i32; 6]> {
    let FloatFormat { mantissa, bias, sign, max, infinity, nan } = dtype.byte_format()?;
    let nan = match nan {
        Nan::Code(code) => i32::from(code),
        Nan::NegativeZero => -1,
        Nan::Absent | Nan::Payload => -2,
    };
    Some([i32::from(mantissa), bias, 1 << sign, i32::from(max), infinity.map_or(-1, i32::from), nan])
}

impl Helpers {
    /// The function that makes a code of an f32, and the one back, of a float of 16 bits or less.
    pub(crate) fn narrow(&mut self, dtype: DType) {
        let name = format!("narrow_{dtype}");
        match dtype {
            DType::F16 => self.add(&name, |helpers| {
                helpers.bits("f32");
                F16.to_string()
            }),
            DType::BF16 => self.add(&name, |helpers| {
                helpers.bits("f32");
                BF16.to_string()
            }),
            DType::F8E8M0 => self.add(&name, |helpers| {
                helpers.bits("f32");
                E8M0.to_string()
            }),
            _ => self.add(&name, |helpers| {
                helpers.fixed("f8", F8);
                let format = format(dtype).unwrap_or_default().map(|number| number.to_string()).join(", ");
                format!(
                    "static inline OX_UNUSED uint8_t ox_{dtype}_of(float x, int saturate) {{\n    static const ox_f8 format = {{{format}}};\n    return ox_f8_encode(&format, x, \
                     saturate);\n}}\n\nstatic inline OX_UNUSED float ox_f32_of_{dtype}(uint8_t code) {{\n    static const ox_f8 format = {{{format}}};\n    \
                     return ox_f8_decode(&format, code);\n}}\n"
                )
            }),
        }
        if format(dtype).is_some() {
            // `f8` uses these.
            self.bits("f32");
        }
    }

    /// An f64 as the code of an f16, rounded once.
    pub(crate) fn f16_of_f64(&mut self) {
        self.add("f16_of_f64", |helpers| {
            helpers.narrow(DType::F16);
            helpers.bits("f64");
            "/* What f32 does not hold is cut to what it does, with the last bit set if anything was lost: it rounds once. */\nstatic inline OX_UNUSED uint16_t \
             ox_f16_of_f64(double x) {\n    uint64_t bits = ox_bits_of_f64(x), low = bits & ((UINT64_C(1) << 41) - 1);\n    if (low != 0) {\n        \
             bits = (bits ^ low) | UINT64_C(1) << 40;\n    }\n    return ox_f16_of((float)ox_f64_of_bits(bits));\n}\n"
                .to_string()
        });
    }

    /// A float as an integer: toward zero, to 64 bits, whose lower ones are kept. NaN is 0, and what 64 bits do not hold is the nearest
    /// that they do.
    pub(crate) fn int_of_float(&mut self, float: &str, signed: bool, long: bool) {
        let ty = super::c_name(float);
        let suffix = if float == "f64" { "" } else { "f" };
        let bits = if long { "64" } else { "32" };
        let kind = if signed { 'i' } else { 'u' };
        let result = if signed { format!("int{bits}_t") } else { format!("uint{bits}_t") };
        self.add(&format!("{kind}{bits}_of_{float}"), |helpers| {
            if !long {
                helpers.int_of_float(float, signed, true);
                return format!(
                    "static inline OX_UNUSED {result} ox_{kind}32_of_{float}({ty} x) {{\n    return ({result})(x > -2147483648.0{suffix} && x < 2147483648.0{suffix} ? \
                     (int32_t)x : (int32_t)ox_{kind}64_of_{float}(x));\n}}\n"
                );
            }
            let top = format!("9223372036854775808.0{suffix}");
            if signed {
                return format!(
                    "static inline OX_UNUSED int64_t ox_i64_of_{float}({ty} x) {{\n    if (x != x) {{\n        return 0;\n    }}\n    return x >= {top} ? INT64_MAX : \
                     x < -{top} ? INT64_MIN : (int64_t)x;\n}}\n"
                );
            }
            helpers.int_of_float(float, true, true);
            format!(
                "static inline OX_UNUSED uint64_t ox_u64_of_{float}({ty} x) {{\n    if (x >= {top}) {{\n        return x >= 18446744073709551616.0{suffix} ? UINT64_MAX : \
                 (uint64_t)x;\n    }}\n    return (uint64_t)ox_i64_of_{float}(x);\n}}\n"
            )
        });
    }

    /// Four bytes, or two halves, as a word, the first in the lowest bits.
    pub(crate) fn word(&mut self) {
        self.fixed(
            "word",
            "static inline OX_UNUSED int32_t ox_word(const void *from) {\n    const uint8_t *bytes = (const uint8_t *)from;\n    int32_t word;\n#if defined(__BYTE_ORDER__) && \
             __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__\n    memcpy(&word, bytes, sizeof word);\n#else\n    word = (int32_t)((uint32_t)bytes[0] | \
             (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);\n#endif\n    return word;\n}\n",
        );
    }

    /// Integers of less than 8 bits: `ox_i4(x)` and its kin keep the low bits.
    pub(crate) fn few_bits(&mut self, dtype: DType) {
        let bits = dtype.bits();
        let text = match dtype.is_signed_int() {
            true => format!(
                "static inline OX_UNUSED int8_t ox_low_{dtype}(int32_t x) {{\n    return (int8_t)((int8_t)((uint32_t)x << {0}) >> {0});\n}}\n",
                8 - bits
            ),
            false => format!(
                "static inline OX_UNUSED uint8_t ox_low_{dtype}(int32_t x) {{\n    return (uint8_t)(x & {});\n}}\n",
                (1 << bits) - 1
            ),
        };
        self.fixed(&format!("low_{dtype}"), &text);
    }
}

const F16: &str = r#"
#if defined(__F16C__)
#include <immintrin.h>
static inline OX_UNUSED uint16_t ox_f16_of(float x) {
    return (uint16_t)_cvtss_sh(x, 0);
}

static inline OX_UNUSED float ox_f32_of_f16(uint16_t code) {
    return _cvtsh_ss(code);
}
#else
static inline OX_UNUSED uint16_t ox_f16_of(float x) {
    uint32_t bits = ox_bits_of_f32(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    }
    if (size >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u);
    }
    if (size < 0x38800000u) {
        /* Below the normal numbers: units of 2^-24. */
        float units = ox_f32_of_bits(size) * 16777216.0f, nearest = (units + 8388608.0f) - 8388608.0f;
        return (uint16_t)(sign | (uint32_t)(int32_t)nearest);
    }
    size += 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | ((size >> 13) - 0x1c000u));
}

static inline OX_UNUSED float ox_f32_of_f16(uint16_t code) {
    uint32_t sign = (uint32_t)(code & 0x8000u) << 16, size = code & 0x7fffu;
    if (size >= 0x7c00u) {
        return ox_f32_of_bits(sign | (size << 13) | 0x7f800000u | (size > 0x7c00u ? 0x400000u : 0u));
    }
    if (size < 0x400u) {
        return ox_f32_of_bits(sign | ox_bits_of_f32((float)(int32_t)size * 5.9604644775390625e-8f));
    }
    return ox_f32_of_bits(sign | ((size << 13) + 0x38000000u));
}
#endif

static inline OX_UNUSED float ox_round_f16(float x) {
    return ox_f32_of_f16(ox_f16_of(x));
}
"#;

const BF16: &str = r#"
static inline OX_UNUSED uint16_t ox_bf16_of(float x) {
    uint32_t bits = ox_bits_of_f32(x);
    if (x != x) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline OX_UNUSED float ox_f32_of_bf16(uint16_t code) {
    return ox_f32_of_bits((uint32_t)code << 16);
}

static inline OX_UNUSED float ox_round_bf16(float x) {
    return ox_f32_of_bf16(ox_bf16_of(x));
}
"#;

const E8M0: &str = r#"
/* Rounded up; the sign is left out. */
static inline OX_UNUSED uint8_t ox_f8e8m0_of(float x, int saturate) {
    uint32_t bits = ox_bits_of_f32(x), field = bits >> 23 & 255u, fraction = bits & 0x7fffffu;
    if (field == 255u && (fraction != 0 || !saturate)) {
        return 255;
    }
    if (field >= 254u && saturate) {
        return 254;
    }
    return (uint8_t)(field == 0 ? fraction > 0x400000u : field + (fraction != 0));
}

static inline OX_UNUSED float ox_f32_of_f8e8m0(uint8_t code) {
    return ox_f32_of_bits(code == 255 ? 0x7fc00000u : code == 0 ? 0x400000u : (uint32_t)code << 23);
}
"#;

const F8: &str = r#"
/* A float of 8 bits or less; `nan` is the code of NaN, -1 if that is the code of the negative zero, -2 if there is no NaN. */
typedef struct ox_f8 {
    int mantissa;
    int bias;
    int sign;
    int max;
    int infinity;
    int nan;
} ox_f8;

static inline OX_UNUSED double ox_f8_power(int exponent) {
    double power = 1.0;
    for (; exponent > 0; exponent--) {
        power *= 2.0;
    }
    for (; exponent < 0; exponent++) {
        power *= 0.5;
    }
    return power;
}

static inline OX_UNUSED uint8_t ox_f8_encode(const ox_f8 *format, float x, int saturate) {
    uint32_t bits;
    int sign, code, exponent, lowest = 1 - format->bias;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 31 ? format->sign : 0;
    if (x != x) {
        return (uint8_t)(format->nan >= 0 ? format->nan | sign : format->nan == -1 ? format->sign : sign ^ format->sign);
    }
    if ((bits & 0x7fffffffu) == 0x7f800000u) {
        code = format->max + 1;
    } else {
        double size = x < 0 ? -(double)x : (double)x, steps, nearest;
        exponent = (int)(bits >> 23 & 255u) - 127;
        exponent = exponent < lowest ? lowest : exponent;
        /* A power of two scales exactly. A carry lands in the field of the exponent, where it belongs. */
        steps = size * ox_f8_power(format->mantissa - exponent);
        nearest = (steps + 4503599627370496.0) - 4503599627370496.0;
        code = ((exponent - lowest) << format->mantissa) + (int)nearest;
    }
    if (code > format->max) {
        if (saturate || format->nan == -2) {
            code = format->max;
        } else if (format->infinity >= 0) {
            code = format->infinity;
        } else if (format->nan >= 0) {
            code = format->nan;
        } else {
            return (uint8_t)format->sign;
        }
    }
    return (uint8_t)(code == 0 && format->nan == -1 ? 0 : code | sign);
}

static inline OX_UNUSED float ox_f8_decode(const ox_f8 *format, uint8_t code) {
    const uint32_t nan_bits = 0x7fc00000u, infinity_bits = 0x7f800000u;
    int size = code & (format->sign - 1), field = size >> format->mantissa;
    float value;
    if (format->nan == -1 && code == format->sign) {
        memcpy(&value, &nan_bits, sizeof value);
        return value;
    }
    if (size <= format->max) {
        int fraction = (size & ((1 << format->mantissa) - 1)) + (field == 0 ? 0 : 1 << format->mantissa);
        value = (float)(fraction * ox_f8_power((field == 0 ? 1 : field) - format->bias - format->mantissa));
    } else if (size == format->infinity) {
        memcpy(&value, &infinity_bits, sizeof value);
    } else {
        memcpy(&value, &nan_bits, sizeof value);
    }
    return code & format->sign ? -value : value;
}
"#;
