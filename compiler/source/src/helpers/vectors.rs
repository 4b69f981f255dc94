//! Vectors, as the extension of GNU C has them. What that has no operator for is done lane by lane, in arrays that compilers put into
//! registers again.

use super::{Helpers, c_name, element_bytes, vector_name};
use onnxc_ir::graph::DType;

impl Helpers {
    /// A type of vectors: `ox_f32x8`, and `ox_f32x8_u` for loads and stores.
    pub(crate) fn vector(&mut self, element: &str, lanes: usize) -> String {
        let name = vector_name(element, lanes);
        let (ty, width) = (c_name(element), element_bytes(element));
        self.add(&name, |_| {
            let bytes = lanes * width;
            format!(
                "typedef {ty} {name} __attribute__((vector_size({bytes})));\ntypedef {ty} {name}_u __attribute__((vector_size({bytes}), aligned({width}), \
                 may_alias));\n"
            )
        });
        name
    }

    /// The vector that masks of elements of these bytes are.
    pub(crate) fn mask(&mut self, bytes: usize, lanes: usize) -> String {
        self.vector(&format!("i{}", 8 * bytes), lanes)
    }

    pub(crate) fn splat(&mut self, element: &str, lanes: usize) -> String {
        let (vector, ty) = (self.vector(element, lanes), c_name(element));
        let name = format!("ox_splat_{element}x{lanes}");
        let all = vec!["x"; lanes].join(", ");
        self.fixed(
            &name,
            &format!("OX_INLINE {vector} {name}({ty} x) {{\n    return ({vector}){{{all}}};\n}}\n"),
        );
        name
    }

    /// The first operand where the mask says yes, else the second.
    pub(crate) fn select(&mut self, element: &str, lanes: usize) -> String {
        let (vector, mask) = (self.vector(element, lanes), self.mask(element_bytes(element), lanes));
        let name = format!("ox_select_{element}x{lanes}");
        self.fixed(
            &name,
            &format!(
                "OX_INLINE {vector} {name}({mask} mask, {vector} a, {vector} b) {{\n    return ({vector})((mask & ({mask})a) | (~mask & \
                 ({mask})b));\n}}\n"
            ),
        );
        name
    }

    /// A function of single numbers on each lane; `operands` and `result` are elements.
    pub(crate) fn lane_by_lane(
        &mut self,
        scalar: &str,
        operands: &[&str],
        result: &str,
        lanes: usize,
    ) -> String {
        let types: Vec<String> = operands.iter().map(|element| self.vector(element, lanes)).collect();
        let to = self.vector(result, lanes);
        let base = scalar.strip_prefix("ox_").unwrap_or(scalar);
        let name = format!("ox_{base}_x{lanes}");
        let letters = ["a", "b", "c"];
        let params: Vec<String> =
            types.iter().zip(letters).map(|(ty, name)| format!("{ty} {name}")).collect();
        let mut text = format!("OX_INLINE {to} {name}({}) {{\n", params.join(", "));
        for (element, letter) in operands.iter().zip(letters) {
            text += &format!("    {} {letter}_lanes[{lanes}];\n", c_name(element));
        }
        text += &format!("    {} lanes[{lanes}];\n    {to} result;\n    int i;\n", c_name(result));
        for (_, letter) in operands.iter().zip(letters) {
            text += &format!("    memcpy({letter}_lanes, &{letter}, sizeof {letter});\n");
        }
        let args: Vec<String> =
            operands.iter().zip(letters).map(|(_, letter)| format!("{letter}_lanes[i]")).collect();
        text += &format!(
            "    for (i = 0; i < {lanes}; i++) {{\n        lanes[i] = {scalar}({});\n    }}\n    memcpy(&result, lanes, sizeof result);\n    \
             return result;\n}}\n",
            args.join(", ")
        );
        self.fixed(&name, &text);
        name
    }

    /// Roots, for which x86 has instructions that compilers take for functions of the C library only.
    pub(crate) fn vector_sqrt(&mut self, element: &str, lanes: usize) -> String {
        self.float_unary("sqrt", element);
        let bytes = lanes * element_bytes(element);
        let (test, register, function) = match (bytes, element) {
            (16, "f32") => ("__SSE2__", "__m128", "_mm_sqrt_ps"),
            (32, "f32") => ("__AVX__", "__m256", "_mm256_sqrt_ps"),
            (64, "f32") => ("__AVX512F__", "__m512", "_mm512_sqrt_ps"),
            (16, _) => ("__SSE2__", "__m128d", "_mm_sqrt_pd"),
            (32, _) => ("__AVX__", "__m256d", "_mm256_sqrt_pd"),
            (64, _) => ("__AVX512F__", "__m512d", "_mm512_sqrt_pd"),
            _ => return self.lane_by_lane(&format!("ox_sqrt_{element}"), &[element], element, lanes),
        };
        let plain = self.lane_by_lane(&format!("ox_sqrt_{element}"), &[element], element, lanes);
        let (name, vector) = (format!("ox_roots_{element}x{lanes}"), self.vector(element, lanes));
        self.fixed(
            &name,
            &format!(
                "\n#if defined({test})\n#include <immintrin.h>\n#define {name}(x) (({vector}){function}(({register})(x)))\n#else\n#define {name}(x) \
                 {plain}(x)\n#endif\n"
            ),
        );
        name
    }

    /// From codes of 16 bits to f32.
    pub(crate) fn widened(&mut self, dtype: DType, lanes: usize) -> String {
        self.narrow(dtype);
        let (codes, floats) = (self.vector("u16", lanes), self.vector("f32", lanes));
        let name = format!("ox_f32_of_{dtype}x{lanes}");
        if dtype == DType::BF16 {
            let words = self.vector("u32", lanes);
            self.fixed(
                &name,
                &format!(
                    "OX_INLINE {floats} {name}({codes} codes) {{\n    return ({floats})(__builtin_convertvector(codes, {words}) << 16);\n}}\n"
                ),
            );
            return name;
        }
        let plain = self.lane_by_lane("ox_f32_of_f16", &["u16"], "f32", lanes);
        self.f16c(&name, &plain, lanes, "_cvtph_ps", (&codes, &floats));
        name
    }

    /// From f32 to codes of 16 bits.
    pub(crate) fn narrowed(&mut self, dtype: DType, lanes: usize) -> String {
        self.narrow(dtype);
        let (codes, floats) = (self.vector("u16", lanes), self.vector("f32", lanes));
        let name = format!("ox_{dtype}_ofx{lanes}");
        if dtype == DType::BF16 {
            let (words, masks) = (self.vector("u32", lanes), self.vector("i32", lanes));
            self.fixed(
                &name,
                &format!(
                    "OX_INLINE {codes} {name}({floats} x) {{\n    {words} bits = ({words})x, nan = ({words})({masks})(x != x);\n    {words} rounded = (bits + \
                     0x7fffu + (bits >> 16 & 1u)) >> 16;\n    return __builtin_convertvector((nan & (bits >> 16 | 0x40u)) | (~nan & rounded), \
                     {codes});\n}}\n"
                ),
            );
            return name;
        }
        let plain = self.lane_by_lane("ox_f16_of", &["f32"], "u16", lanes);
        self.f16c(&name, &plain, lanes, "_cvtps_ph", (&floats, &codes));
        name
    }

    fn f16c(&mut self, name: &str, plain: &str, lanes: usize, function: &str, (from, to): (&str, &str)) {
        let (test, prefix, wide) = match lanes {
            8 => ("__F16C__", "_mm256", "__m256"),
            16 => ("__AVX512F__", "_mm512", "__m512"),
            _ => {
                self.fixed(name, &format!("#define {name}(x) {plain}(x)\n"));
                return;
            }
        };
        let half = if lanes == 8 { "__m128i" } else { "__m256i" };
        let call = match function {
            "_cvtph_ps" => format!("(({to}){prefix}{function}(({half})(x)))"),
            _ => format!("(({to}){prefix}{function}(({wide})(x), 0))"),
        };
        let _ = from;
        self.fixed(
            name,
            &format!("\n#if defined({test})\n#include <immintrin.h>\n#define {name}(x) {call}\n#else\n#define {name}(x) {plain}(x)\n#endif\n"),
        );
    }

    /// Floats of 32 or 64 bits as integers: `direct` where the lanes hold all of them, else those that do not fit one by one.
    pub(crate) fn vector_to_int(&mut self, float: &str, element: &str, lanes: usize, fits: bool) -> String {
        let (from, to) = (self.vector(float, lanes), self.vector(element, lanes));
        let width = element_bytes(element);
        let (signed, long) = (!element.starts_with('u'), width == 8);
        // What is converted in vectors: to integers of the float's size.
        let size = element_bytes(float);
        let middle = self.vector(if size == 8 { "i64" } else { "i32" }, lanes);
        let (select, mask) = (self.select(float, lanes), self.mask(size, lanes));
        let splat = self.splat(float, lanes);
        let (suffix, top) = if float == "f64" {
            ("", if long { "9223372036854775808.0" } else { "2147483648.0" })
        } else {
            ("f", "2147483648.0")
        };
        if fits {
            let name = format!("ox_fitting_{element}_of_{float}x{lanes}");
            self.fixed(
                &name,
                &format!(
                    "OX_INLINE {to} {name}({from} x) {{\n    return __builtin_convertvector(__builtin_convertvector({select}(({mask})(x == x), x, \
                     {splat}(0.0{suffix})), {middle}), {to});\n}}\n"
                ),
            );
            return name;
        }
        self.int_of_float(float, signed, long);
        let kind = if signed { 'i' } else { 'u' };
        let bits = if long { 64 } else { 32 };
        let scalar = format!("ox_{kind}{bits}_of_{float}");
        let name = format!("ox_{element}_of_{float}x{lanes}");
        let ty = c_name(element);
        self.fixed(
            &name,
            &format!(
                "OX_INLINE {to} {name}({from} x) {{\n    {mask} inside = ({mask})((x > {splat}(-{top}{suffix})) & (x < {splat}({top}{suffix})));\n    {to} result = \
                 __builtin_convertvector(__builtin_convertvector({select}(inside, x, {splat}(0.0{suffix})), {middle}), {to});\n    int i;\n    \
                 for (i = 0; i < {lanes}; i++) {{\n        if (!inside[i]) {{\n            result[i] = ({ty}){scalar}(x[i]);\n        }}\n    }}\n    return \
                 result;\n}}\n"
            ),
        );
        name
    }

    /// Sums of products of the bytes, or halves, of words.
    pub(crate) fn vector_dot(&mut self, op: &str, lanes: usize) -> String {
        let words = self.vector("i32", lanes);
        let name = format!("ox_{op}_i32x{lanes}");
        let (test, prefix, register) = match 4 * lanes {
            16 => ("__SSE2__", "_mm", "__m128i"),
            32 => ("__AVX2__", "_mm256", "__m256i"),
            64 => ("__AVX512BW__", "_mm512", "__m512i"),
            _ => ("OX_NOTHING", "", ""),
        };
        let madd = format!("{prefix}_madd_epi16");
        if op == "dot_pairs" {
            self.fixed(
                &name,
                &format!(
                    "\n#if defined({test})\n#include <immintrin.h>\n#define {name}(a, b) (({words}){madd}(({register})(a), ({register})(b)))\n#else\nOX_INLINE {words} {name}({words} a, {words} b) {{\n    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);\n}}\n#endif\n"
                ),
            );
            return name;
        }
        let signed = matches!(op, "dot_signed" | "dot_narrow");
        let halves = self.vector("i16", 2 * lanes);
        let unsigned = self.vector("u16", 2 * lanes);
        let (even_a, odd_a) = match signed {
            true => (format!("({halves})(({unsigned})({halves})a << 8) >> 8"), format!("({halves})a >> 8")),
            false => (
                format!("({halves})(({unsigned})({halves})a & 255)"),
                format!("({halves})(({unsigned})({halves})a >> 8)"),
            ),
        };
        let vnni = match (signed, 4 * lanes) {
            (false, 16 | 32 | 64) => format!(
                "#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || ({} && defined(__AVXVNNI__))\n#include <immintrin.h>\n#define {name}(a, b) \
                 (({words}){prefix}_dpbusd_epi32({prefix}_setzero_si{}(), ({register})(a), ({register})(b)))\n#else\n",
                if lanes == 16 { 0 } else { 1 },
                32 * lanes
            ),
            _ => "#if 1\n".to_string(),
        };
        let short = match (op, 4 * lanes) {
            ("dot_short", 16 | 32 | 64) => {
                let test = if lanes == 4 { "__SSSE3__" } else { test };
                format!(
                    "#if defined({test})\n#include <immintrin.h>\n    return ({words}){madd}({prefix}_maddubs_epi16(({register})a, ({register})b), \
                     {prefix}_set1_epi16(1));\n#else\n"
                )
            }
            _ => "#if 1\n".to_string(),
        };
        self.fixed(
            &name,
            &format!(
                "\n{vnni}OX_INLINE {words} {name}({words} a, {words} b) {{\n{short}    {halves} even_a = {even_a}, odd_a = {odd_a};\n    {halves} even_b = \
                 ({halves})(({unsigned})({halves})b << 8) >> 8, odd_b = ({halves})b >> 8;\n#if defined({test})\n    return ({words}){prefix}_add_epi32({madd}(({register})even_a, \
                 ({register})even_b), {madd}(({register})odd_a, ({register})odd_b));\n#else\n    {words} even = ({words})(even_a * even_b), odd = \
                 ({words})(odd_a * odd_b);\n    return (even << 16 >> 16) + (even >> 16) + (odd << 16 >> 16) + (odd >> 16);\n#endif\n#endif\n}}\n#endif\n"
            ),
        );
        name
    }
}
