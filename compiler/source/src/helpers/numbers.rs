//! Arithmetic of single numbers, without undefined behaviour and without the C library.

use super::Helpers;
use onnxc_ir::graph::DType;

/// Short name of the C type that holds a value: narrow floats are held as f32, integers of less than 8 bits as bytes.
pub(crate) fn held(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "f64",
        _ if dtype.is_float() => "f32",
        DType::I2 | DType::I4 | DType::I8 => "i8",
        DType::U2 | DType::U4 | DType::U8 => "u8",
        DType::I16 => "i16",
        DType::U16 => "u16",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::U64 => "u64",
        _ => "i64",
    }
}

/// The unsigned type in which integers are computed: that of 32 bits for smaller ones, which C would promote to signed ones.
pub(crate) fn computed(element: &str) -> &'static str {
    if element.ends_with("64") { "uint64_t" } else { "uint32_t" }
}

impl Helpers {
    /// The bits of a float, and the float of bits: `ox_bits_of_f32`, `ox_f32_of_bits`.
    pub(crate) fn bits(&mut self, float: &str) {
        let (ty, bits) = if float == "f64" { ("double", "uint64_t") } else { ("float", "uint32_t") };
        self.add(&format!("bits_{float}"), |_| {
            format!(
                "static inline OX_UNUSED {bits} ox_bits_of_{float}({ty} x) {{\n    {bits} bits;\n    memcpy(&bits, &x, sizeof bits);\n    \
                 return bits;\n}}\n\nstatic inline OX_UNUSED {ty} ox_{float}_of_bits({bits} bits) {{\n    {ty} x;\n    memcpy(&x, &bits, sizeof x);\n    \
                 return x;\n}}\n"
            )
        });
    }

    /// `ox_fma_f32`: with one rounding where the processor has the instruction, else two.
    pub(crate) fn fma(&mut self, float: &str) {
        let (test, function) = match float {
            "f64" => ("defined(__FP_FAST_FMA) || defined(__FMA__) || defined(__aarch64__)", "__builtin_fma"),
            _ => (
                "defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)",
                "__builtin_fmaf",
            ),
        };
        self.add(&format!("fma_{float}"), |_| {
            format!(
                "/* With one rounding where the processor has that instruction, else with two. */\n#if {test}\n#define ox_fma_{float}(a, b, c) \
                 {function}(a, b, c)\n#else\n#define ox_fma_{float}(a, b, c) ((a) * (b) + (c))\n#endif\n"
            )
        });
    }

    /// A function of one float: `abs`, `sign`, `floor`, `ceil`, `trunc`, `round` or `sqrt`.
    pub(crate) fn float_unary(&mut self, op: &str, float: &str) {
        let name = format!("{op}_{float}");
        let (ty, bits, suffix, wide) = match float {
            "f64" => ("double", "uint64_t", "", "4503599627370496.0"),
            _ => ("float", "uint32_t", "f", "8388608.0f"),
        };
        let (zero, one) = if float == "f64" { ("0.0", "1.0") } else { ("0.0f", "1.0f") };
        match op {
            "abs" => self.add(&name, |helpers| {
                helpers.bits(float);
                let mask = if float == "f64" { "UINT64_C(0x7fffffffffffffff)" } else { "UINT32_C(0x7fffffff)" };
                format!(
                    "static inline OX_UNUSED {ty} ox_abs_{float}({ty} x) {{\n    return ox_{float}_of_bits(ox_bits_of_{float}(x) & {mask});\n}}\n"
                )
            }),
            "sign" => self.add(&name, |_| {
                format!(
                    "static inline OX_UNUSED {ty} ox_sign_{float}({ty} x) {{\n    return x > {zero} ? {one} : x < {zero} ? -{one} : x != x ? x : {zero};\n}}\n"
                )
            }),
            "sqrt" => self.sqrt(float),
            _ => self.add(&name, |helpers| {
                helpers.float_unary("abs", float);
                helpers.bits(float);
                let builtin = if op == "round" { "rint" } else { op };
                let sign = if float == "f64" { "UINT64_C(0x8000000000000000)" } else { "UINT32_C(0x80000000)" };
                let exact = match float {
                    "f64" => "defined(__SSE4_1__) || defined(__aarch64__) || defined(__wasm__)",
                    _ => {
                        "defined(__SSE4_1__) || defined(__aarch64__) || defined(__wasm__) || \
                         (defined(__ARM_FEATURE_DIRECTED_ROUNDING) && defined(__ARM_FP))"
                    }
                };
                let correct = match op {
                    "round" => "nearest".to_string(),
                    "trunc" => format!("nearest > size ? nearest - {one} : nearest"),
                    "floor" => {
                        format!("x < {zero} ? (nearest < size ? nearest + {one} : nearest) : nearest > size ? nearest - {one} : nearest")
                    }
                    _ => {
                        format!("x < {zero} ? (nearest > size ? nearest - {one} : nearest) : nearest < size ? nearest + {one} : nearest")
                    }
                };
                format!(
                    "\n#if {exact}\n#define ox_{name} __builtin_{builtin}{suffix}\n#else\n/* A magnitude with a fraction is less than {wide}; \
                     added to that number it is rounded to the nearest. Zeros keep their sign. */\nstatic inline OX_UNUSED {ty} ox_{name}({ty} x) {{\n    \
                     {ty} size = ox_abs_{float}(x), nearest = (size + {wide}) - {wide}, result;\n    {bits} sign = ox_bits_of_{float}(x) & {sign};\n    \
                     if (!(size < {wide})) {{\n        return x;\n    }}\n    result = {correct};\n    \
                     return ox_{float}_of_bits(ox_bits_of_{float}(result) | sign);\n}}\n#endif\n"
                )
            }),
        }
    }

    fn sqrt(&mut self, float: &str) {
        self.add(&format!("sqrt_{float}"), |helpers| {
            helpers.bits(float);
            let (ty, bits, sse, neon, riscv, register) = match float {
                "f64" => ("double", "uint64_t", "_mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)))", "8", "64", "d"),
                _ => ("float", "uint32_t", "_mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)))", "4", "32", "s"),
            };
            let soft = match float {
                "f64" => SOFT_SQRT.replace("FLOAT", "f64").replace("TYPE", ty).replace("BITS", bits)
                    .replace("MANTISSA", "52").replace("BIAS", "1023").replace("INFINITY", "UINT64_C(0x7ff0000000000000)")
                    .replace("ONE", "UINT64_C(1)").replace("NAN", "UINT64_C(0x7ff8000000000000)").replace("SIGN", "63"),
                _ => SOFT_SQRT.replace("FLOAT", "f32").replace("TYPE", ty).replace("BITS", bits)
                    .replace("MANTISSA", "23").replace("BIAS", "127").replace("INFINITY", "UINT32_C(0x7f800000)")
                    .replace("ONE", "UINT32_C(1)").replace("NAN", "UINT32_C(0x7fc00000)").replace("SIGN", "31"),
            };
            format!(
                "\n#if defined(__SSE2__)\n#include <emmintrin.h>\nstatic inline OX_UNUSED {ty} ox_sqrt_{float}({ty} x) {{\n    return {sse};\n}}\n\
                 #elif defined(__aarch64__) && defined(__GNUC__)\nstatic inline OX_UNUSED {ty} ox_sqrt_{float}({ty} x) {{\n    {ty} root;\n    \
                 __asm__(\"fsqrt %{register}0, %{register}1\" : \"=w\"(root) : \"w\"(x));\n    return root;\n}}\n\
                 #elif defined(__ARM_FP) && (__ARM_FP & {neon}) && defined(__GNUC__) && !defined(__SOFTFP__)\n\
                 static inline OX_UNUSED {ty} ox_sqrt_{float}({ty} x) {{\n    {ty} root;\n    __asm__(\"vsqrt.f{riscv} %{arm}0, %{arm}1\" : \"=w\"(root) : \"w\"(x));\n    \
                 return root;\n}}\n\
                 #elif defined(__riscv_flen) && __riscv_flen >= {riscv} && defined(__GNUC__)\nstatic inline OX_UNUSED {ty} ox_sqrt_{float}({ty} x) {{\n    {ty} root;\n    \
                 __asm__(\"fsqrt.{register} %0, %1\" : \"=f\"(root) : \"f\"(x));\n    return root;\n}}\n\
                 #elif defined(__wasm__) && defined(__clang__)\nstatic inline OX_UNUSED {ty} ox_sqrt_{float}({ty} x) {{\n    {ty} root;\n    \
                 __asm__(\"local.get %1\\n\\tf{riscv}.sqrt\\n\\tlocal.set %0\" : \"=r\"(root) : \"r\"(x));\n    return root;\n}}\n\
                 #else\n{soft}#endif\n",
                arm = if float == "f64" { "P" } else { "" }
            )
        });
    }

    /// `max` and `min` of floats: NaN if either is NaN.
    pub(crate) fn float_extreme(&mut self, op: &str, float: &str) {
        let (ty, sign) = (super::c_name(float), if op == "max" { ">" } else { "<" });
        self.add(&format!("{op}_{float}"), |_| {
            format!(
                "static inline OX_UNUSED {ty} ox_{op}_{float}({ty} a, {ty} b) {{\n    return a != a || a {sign} b ? a : b;\n}}\n"
            )
        });
    }

    /// `rem`, C's `fmod`, and `mod`, which has the sign of the divisor.
    pub(crate) fn float_rest(&mut self, op: &str, float: &str) {
        let ty = super::c_name(float);
        if op == "mod" {
            self.add(&format!("mod_{float}"), |helpers| {
                helpers.float_rest("rem", float);
                helpers.bits(float);
                let (zero, sign) = match float {
                    "f64" => ("0.0", "UINT64_C(0x8000000000000000)"),
                    _ => ("0.0f", "UINT32_C(0x80000000)"),
                };
                format!(
                    "static inline OX_UNUSED {ty} ox_mod_{float}({ty} a, {ty} b) {{\n    {ty} rest = ox_rem_{float}(a, b);\n    if (rest == {zero}) {{\n        \
                     return ox_{float}_of_bits(ox_bits_of_{float}(b) & {sign});\n    }}\n    return (rest < {zero}) != (b < {zero}) ? rest + b : rest;\n}}\n"
                )
            });
            return;
        }
        self.add(&format!("rem_{float}"), |helpers| {
            helpers.bits(float);
            let text = SOFT_REM.replace("FLOAT", float).replace("TYPE", &ty);
            match float {
                "f64" => text
                    .replace("BITS", "uint64_t")
                    .replace("MANTISSA", "52")
                    .replace("FIELD", "2047")
                    .replace("ONE", "UINT64_C(1)"),
                _ => text
                    .replace("BITS", "uint32_t")
                    .replace("MANTISSA", "23")
                    .replace("FIELD", "255")
                    .replace("ONE", "UINT32_C(1)"),
            }
        });
    }

    /// A function of one integer: `abs` or `sign`.
    pub(crate) fn int_unary(&mut self, op: &str, element: &str) {
        let ty = super::c_name(element);
        let body = match (op, element.starts_with('u')) {
            ("abs", true) => "x".to_string(),
            ("abs", false) => format!("({ty})(x < 0 ? ({ty})(0u - ({})x) : x)", computed(element)),
            (_, true) => format!("({ty})(x != 0)"),
            _ => format!("({ty})((x > 0) - (x < 0))"),
        };
        self.add(&format!("{op}_{element}"), |_| {
            format!("static inline OX_UNUSED {ty} ox_{op}_{element}({ty} x) {{\n    return {body};\n}}\n")
        });
    }

    /// A function of two integers that C leaves partly undefined.
    pub(crate) fn int_binary(&mut self, op: &str, element: &str) {
        let (ty, wide) = (super::c_name(element), computed(element));
        let signed = !element.starts_with('u');
        let bits = 8 * super::element_bytes(element);
        let divide = |operator: &str, minus_one: &str| match signed {
            true => format!("({ty})(b == 0 ? 0 : b == -1 ? {minus_one} : a {operator} b)"),
            false => format!("({ty})(b == 0 ? 0 : a {operator} b)"),
        };
        let negated = format!("({ty})(0u - ({wide})a)");
        let body = match op {
            "div" => format!("return {};", divide("/", &negated)),
            "rem" => format!("return {};", divide("%", "0")),
            "mod" if signed => format!(
                "{ty} rest = {};\n    return rest != 0 && (rest < 0) != (b < 0) ? ({ty})(rest + b) : rest;",
                divide("%", "0")
            ),
            "mod" => format!("return {};", divide("%", "0")),
            "max" => "return a > b ? a : b;".to_string(),
            "min" => "return a < b ? a : b;".to_string(),
            "shl" => format!("return ({ty})(({wide})b < {bits}u ? ({wide})a << b : 0);"),
            "shr" => format!("return ({ty})(({wide})b < {bits}u ? a >> b : 0);"),
            _ => {
                let negative =
                    "if (b < 0) {\n        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;\n    }\n    ";
                let negative = if signed { negative } else { "" };
                format!(
                    "{wide} result = 1, square = ({wide})a;\n    {negative}while (b > 0) {{\n        if (b & 1) {{\n            result *= square;\n        \
                     }}\n        square *= square;\n        b = ({ty})(b >> 1);\n    }}\n    return ({ty})result;"
                )
            }
        };
        self.add(&format!("{op}_{element}"), |_| {
            format!("static inline OX_UNUSED {ty} ox_{op}_{element}({ty} a, {ty} b) {{\n    {body}\n}}\n")
        });
    }

    /// Sums of products of the bytes, or of the halves, of words.
    pub(crate) fn dot(&mut self, op: &str) {
        self.fixed(
            &format!("{op}_i32"),
            match op {
                "dot" => DOT,
                "dot_signed" => {
                    "OX_INLINE int32_t ox_dot_signed_i32(int32_t a, int32_t b) {\n    uint32_t x = (uint32_t)a, y = (uint32_t)b;\n    return (int8_t)x * \
                     (int8_t)y + (int8_t)(x >> 8) * (int8_t)(y >> 8) +\n           (int8_t)(x >> 16) * (int8_t)(y >> 16) + (int8_t)(x >> 24) * (int8_t)(y >> 24);\n}\n"
                }
                _ => {
                    "static inline OX_UNUSED int32_t ox_dot_pairs_i32(int32_t a, int32_t b) {\n    uint32_t x = (uint32_t)a, y = (uint32_t)b;\n    return \
                     (int32_t)((uint32_t)((int16_t)x * (int16_t)y) + (uint32_t)((int16_t)(x >> 16) * (int16_t)(y >> 16)));\n}\n"
                }
            },
        );
    }

    /// Functions on sizes that only a run knows, of the bits of a pointer (`ox_size_min`) or of 64 (`ox_long_min`). Quotients are rounded
    /// toward minus infinity; by 0 nothing that is used is divided.
    pub(crate) fn sizes(&mut self, is_wide: bool) {
        let (name, text) = match is_wide {
            false => ("sizes", SIZES.to_string()),
            true => ("long_sizes", SIZES.replace("ptrdiff_t", "int64_t").replace("ox_size", "ox_long")),
        };
        self.fixed(name, &text);
    }

    /// Complex numbers, of f32 (`c64`) or f64 (`c128`).
    pub(crate) fn complex(&mut self, name: &str) {
        let (part, float) = if name == "c128" { ("double", "f64") } else { ("float", "f32") };
        self.add(name, |helpers| {
            helpers.bits(float);
            let or = |at: &str| format!("ox_{float}_of_bits(ox_bits_of_{float}(a.{at}) | ox_bits_of_{float}(b.{at}))");
            format!(
                "typedef struct OX_ALIAS ox_{name} {{\n    {part} re;\n    {part} im;\n}} ox_{name};\n\nstatic inline OX_UNUSED ox_{name} ox_{name}_of({part} re, \
                 {part} im) {{\n    ox_{name} x;\n    x.re = re;\n    x.im = im;\n    return x;\n}}\n\nstatic inline OX_UNUSED ox_{name} ox_or_{name}(ox_{name} a, \
                 ox_{name} b) {{\n    return ox_{name}_of({}, {});\n}}\n",
                or("re"),
                or("im")
            )
        });
    }
}

/// Digit by digit, rounded to the nearest: a root is never half way between two floats.
const SOFT_SQRT: &str = r#"static inline OX_UNUSED TYPE ox_sqrt_FLOAT(TYPE x) {
    BITS bits = ox_bits_of_FLOAT(x), mantissa, root = 0, bit = ONE << (MANTISSA + 1), sum = 0;
    int32_t exponent = (int32_t)(bits >> MANTISSA);
    if (x == 0 || x != x || bits == INFINITY) {
        return x;
    }
    if (bits >> SIGN) {
        return ox_FLOAT_of_bits(NAN);
    }
    mantissa = bits & ((ONE << MANTISSA) - 1);
    if (exponent == 0) {
        exponent = 1;
        while (!(mantissa >> MANTISSA)) {
            mantissa <<= 1;
            exponent -= 1;
        }
    }
    mantissa |= ONE << MANTISSA;
    exponent -= BIAS;
    if (exponent & 1) {
        mantissa <<= 1;
        exponent -= 1;
    }
    mantissa <<= 1;
    while (bit != 0) {
        if (sum + bit <= mantissa) {
            sum += bit;
            mantissa -= sum;
            sum += bit;
            root |= bit;
        }
        mantissa <<= 1;
        bit >>= 1;
    }
    root += root & (mantissa != 0);
    root = (root >> 1) + ((BITS)(exponent / 2 + BIAS - 1) << MANTISSA);
    return ox_FLOAT_of_bits(root);
}
"#;

/// Exact, by subtraction of shifted divisors.
const SOFT_REM: &str = r#"static inline OX_UNUSED TYPE ox_rem_FLOAT(TYPE a, TYPE b) {
    BITS x = ox_bits_of_FLOAT(a), y = ox_bits_of_FLOAT(b), sign;
    int32_t ex = (int32_t)(x >> MANTISSA) & FIELD, ey = (int32_t)(y >> MANTISSA) & FIELD;
    if (b == 0 || b != b || ex == FIELD) {
        return (a * b) / (a * b);
    }
    if (ey == FIELD) {
        return a;
    }
    sign = x >> (8 * sizeof(BITS) - 1) << (8 * sizeof(BITS) - 1);
    x ^= sign;
    y = y << 1 >> 1;
    if (x <= y) {
        return x == y ? ox_FLOAT_of_bits(sign) : a;
    }
    x = ex ? (x & ((ONE << MANTISSA) - 1)) | ONE << MANTISSA : x;
    y = ey ? (y & ((ONE << MANTISSA) - 1)) | ONE << MANTISSA : y;
    ex = ex ? ex : 1;
    ey = ey ? ey : 1;
    for (; ex > ey; ex--) {
        x = x >= y ? x - y : x;
        x <<= 1;
    }
    x = x >= y ? x - y : x;
    if (x == 0) {
        return ox_FLOAT_of_bits(sign);
    }
    for (; ex > 1 && !(x >> MANTISSA); ex--) {
        x <<= 1;
    }
    x = x >> MANTISSA ? (x - (ONE << MANTISSA)) | (BITS)ex << MANTISSA : x;
    return ox_FLOAT_of_bits(x | sign);
}
"#;

/// Four products of a byte without a sign and one with, by instructions for two halves of a word where there are.
const DOT: &str = r#"
#if defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__)
OX_INLINE int32_t ox_dot_i32(int32_t a, int32_t b) {
    int32_t a_even, a_odd, b_even, b_odd, sum;
    __asm__("uxtb16 %0, %1" : "=r"(a_even) : "r"(a));
    __asm__("uxtb16 %0, %1, ror #8" : "=r"(a_odd) : "r"(a));
    __asm__("sxtb16 %0, %1" : "=r"(b_even) : "r"(b));
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(b_odd) : "r"(b));
    __asm__("smuad %0, %1, %2" : "=r"(sum) : "r"(a_even), "r"(b_even));
    __asm__("smlad %0, %1, %2, %3" : "=r"(sum) : "r"(a_odd), "r"(b_odd), "r"(sum));
    return sum;
}
#else
OX_INLINE int32_t ox_dot_i32(int32_t a, int32_t b) {
    uint32_t x = (uint32_t)a, y = (uint32_t)b;
    return (int32_t)(x & 255) * (int8_t)y + (int32_t)(x >> 8 & 255) * (int8_t)(y >> 8) +
           (int32_t)(x >> 16 & 255) * (int8_t)(y >> 16) + (int32_t)(x >> 24) * (int8_t)(y >> 24);
}
#endif
"#;

const SIZES: &str = "static inline OX_UNUSED ptrdiff_t ox_size_div(ptrdiff_t a, ptrdiff_t b) {
    ptrdiff_t by = b == 0 ? 1 : b, quotient = a / by;
    return quotient - (a % by != 0 && (a < 0) != (by < 0));
}

static inline OX_UNUSED ptrdiff_t ox_size_mod(ptrdiff_t a, ptrdiff_t b) {
    return a - ox_size_div(a, b) * (b == 0 ? 1 : b);
}

static inline OX_UNUSED ptrdiff_t ox_size_min(ptrdiff_t a, ptrdiff_t b) {
    return a < b ? a : b;
}

static inline OX_UNUSED ptrdiff_t ox_size_max(ptrdiff_t a, ptrdiff_t b) {
    return a > b ? a : b;
}

static inline OX_UNUSED ptrdiff_t ox_size_broadcast(ptrdiff_t a, ptrdiff_t b) {
    return a <= 0 || b <= 0 ? 0 : ox_size_max(a, b);
}
";
