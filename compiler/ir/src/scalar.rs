//! The scalar functions that both IRs share: what one element of a `Map` computes.
//!
//! Semantics are those of the reference evaluator (`interp`): IEEE 754 for floats, wrapping two's
//! complement for integers. A function has one meaning for each dtype it accepts, stated here once.

use std::fmt;

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// Name in the text forms of both IRs.
            pub fn name(self) -> &'static str { match self { $($name::$variant => $text),* } }
            /// Inverse of `name`.
            pub fn from_name(name: &str) -> Option<$name> {
                match name { $($text => Some($name::$variant),)* _ => None }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.name()) }
        }
    };
}

/// Below, a power of two is nearer to 2^-127 than to 2^-126, the smallest normal one of f32: -126.5 ln 2.
pub const DECAY_LEAST: f32 = -87.683_12;

named_enum! {
    /// Functions of one operand; the result has the operand's dtype unless stated otherwise.
    UnaryFn {
        Neg = "neg",
        Abs = "abs",
        /// -1, 0 or 1; NaN stays NaN.
        Sign = "sign",
        Ceil = "ceil",
        Floor = "floor",
        /// Round half to even.
        Round = "round",
        Trunc = "trunc",
        Sqrt = "sqrt",
        /// 1 / x.
        Recip = "recip",
        Exp = "exp",
        /// exp(min(x, 0)), but 0 below [`DECAY_LEAST`], so that few results are subnormal, which are slow to compute with.
        Decay = "decay",
        Log = "log",
        /// log(1 + x), accurate near 0.
        Log1p = "log1p",
        /// exp(x) - 1, accurate near 0.
        Expm1 = "expm1",
        Sin = "sin",
        Cos = "cos",
        Tan = "tan",
        Asin = "asin",
        Acos = "acos",
        Atan = "atan",
        Sinh = "sinh",
        Cosh = "cosh",
        Tanh = "tanh",
        Asinh = "asinh",
        Acosh = "acosh",
        Atanh = "atanh",
        Erf = "erf",
        /// 1 / (1 + exp(-x)).
        Sigmoid = "sigmoid",
        /// Logical not of a bool.
        Not = "not",
        /// Bitwise not of an integer.
        BitNot = "bitnot",
        /// A complex number whose real part is the operand's imaginary part, and the other way around.
        Swap = "swap",
        /// Float to bool.
        IsNan = "isnan",
        /// Float to bool: plus infinity.
        IsPosInf = "isposinf",
        /// Float to bool: minus infinity.
        IsNegInf = "isneginf",
    }
}

named_enum! {
    /// Functions of two operands of one dtype, with a result of that dtype.
    BinaryFn {
        Add = "add",
        Sub = "sub",
        Mul = "mul",
        /// Floats: IEEE. Integers: truncated towards zero; a zero divisor gives 0, MIN / -1 gives MIN.
        Div = "div",
        /// Remainder with the sign of the divisor (Python's `%`); a zero divisor of integers gives 0.
        Mod = "mod",
        /// Remainder with the sign of the dividend (C's `fmod` and `%`); a zero divisor of integers gives 0.
        Rem = "rem",
        /// Floats: as C's `pow`. Integers: wrapping; a negative exponent gives the truncated quotient.
        Pow = "pow",
        /// NaN if either is NaN (IEEE 754-2019 `maximum`; the sign of zeros is not ordered).
        Max = "max",
        /// NaN if either is NaN.
        Min = "min",
        And = "and",
        Or = "or",
        Xor = "xor",
        BitAnd = "bitand",
        /// Also of the bits of complex numbers, which joins one that is real and one that is imaginary.
        BitOr = "bitor",
        BitXor = "bitxor",
        /// Shift left; a count of the width or more gives 0.
        Shl = "shl",
        /// Shift right: arithmetic for signed, logical for unsigned; counts as for `shl`.
        Shr = "shr",
        Atan2 = "atan2",
        /// Of i32 that stand for four bytes each: the sum of the products of the first one's bytes, unsigned, and the second
        /// one's, signed.
        Dot = "dot",
        /// The same of bytes that are all signed.
        DotSigned = "dot_signed",
        /// The same, where no byte of the second one is -128: the sum of two products fits 16 bits.
        DotNarrow = "dot_narrow",
        /// As `dot`, where the products of the first two bytes and those of the last two have sums that fit 16 bits, for any bytes of the
        /// first one.
        DotShort = "dot_short",
        /// Of i32 that stand for two integers of 16 bits each: the sum of the products of the first ones and of the second ones.
        DotPairs = "dot_pairs",
        /// Of f32 whose bits stand for two bf16 each: the sum of the products of the first ones and of the second ones.
        DotBf16 = "dot_bf16",
    }
}

impl BinaryFn {
    /// Whether it adds up products of the small numbers that words stand for.
    pub fn is_dot(self) -> bool {
        self.is_byte_dot() || matches!(self, BinaryFn::DotPairs | BinaryFn::DotBf16)
    }

    /// Whether these are bytes.
    pub fn is_byte_dot(self) -> bool {
        matches!(self, BinaryFn::Dot | BinaryFn::DotSigned | BinaryFn::DotNarrow | BinaryFn::DotShort)
    }
}

/// What [`BinaryFn::Dot`] and [`BinaryFn::DotShort`] compute.
pub fn dot(a: i32, b: i32) -> i32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.map(|(a, b)| i32::from(a) * i32::from(b as i8)).sum()
}

/// What [`BinaryFn::DotSigned`] and [`BinaryFn::DotNarrow`] compute.
pub fn dot_signed(a: i32, b: i32) -> i32 {
    let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    products.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum()
}

/// What [`BinaryFn::DotPairs`] computes; it wraps.
pub fn dot_pairs(a: i32, b: i32) -> i32 {
    let product = |shift: u32| i32::from((a >> shift) as i16) * i32::from((b >> shift) as i16);
    product(0).wrapping_add(product(16))
}

/// What [`BinaryFn::DotBf16`] computes, but that it is rounded once.
pub fn dot_bf16(a: f32, b: f32) -> f64 {
    let ([a, c], [b, d]) = (bf16_pair(a.to_bits()), bf16_pair(b.to_bits()));
    f64::from(a) * f64::from(b) + f64::from(c) * f64::from(d)
}

/// The two bf16 that a word stands for.
pub fn bf16_pair(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// A sum and the product of two bf16 as the instructions of processors for bf16 compute them: numbers below the normal ones are
/// zeros, as operands and as results, and the sum is rounded once, to nearest.
pub fn add_bf16_product(sum: f32, a: f32, b: f32) -> f32 {
    flushed(flushed(a).mul_add(flushed(b), flushed(sum)))
}

/// A sum and the products of two words each, pairs of bf16, as tiles compute them: those of the first and of the second ones have
/// sums for themselves.
pub fn add_tile_products(sum: f32, pairs: impl Iterator<Item = [u32; 2]>) -> f32 {
    let products = pairs.fold([0f32; 2], |sums, words| {
        let [a, b] = words.map(bf16_pair);
        [0, 1].map(|half| add_bf16_product(sums[half], a[half], b[half]))
    });
    flushed(flushed(sum) + flushed(products[0] + products[1]))
}

/// The bits of a bf16 as the instruction for it rounds, see [`add_bf16_product`].
pub fn bf16_of(x: f32) -> u16 {
    half::bf16::from_f32(flushed(x)).to_bits()
}

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

named_enum! {
    /// Comparisons of two operands of one dtype, with a bool result; false on NaN except `ne`.
    CompareFn {
        Eq = "eq",
        Ne = "ne",
        Lt = "lt",
        Le = "le",
        Gt = "gt",
        Ge = "ge",
    }
}

named_enum! {
    /// Associative combinations over an axis.
    ReduceFn {
        /// Begins with +0, of floats: the sum of nothing and that of -0 are +0.
        Sum = "sum",
        Prod = "prod",
        /// NaN if any is NaN. Identity: lowest value of the dtype (minus infinity for floats).
        Max = "max",
        /// NaN if any is NaN. Identity: highest value of the dtype (infinity for floats).
        Min = "min",
        /// Of bools.
        And = "and",
        /// Of bools.
        Or = "or",
    }
}

impl ReduceFn {
    /// The function of two operands that combines partial results.
    pub fn combine(self) -> BinaryFn {
        match self {
            ReduceFn::Sum => BinaryFn::Add,
            ReduceFn::Prod => BinaryFn::Mul,
            ReduceFn::Max => BinaryFn::Max,
            ReduceFn::Min => BinaryFn::Min,
            ReduceFn::And => BinaryFn::And,
            ReduceFn::Or => BinaryFn::Or,
        }
    }
}
