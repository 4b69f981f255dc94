//! The functions of `crate::scalar` on the types that arithmetic uses. `None` where a function is not
//! defined for the type.
//!
//! f32 functions other than the IEEE basic operations are computed in f64 and rounded once. Binary
//! functions take the width of the dtype, in bits, which only shifts need.

use super::erf::erf;
use crate::scalar::{self, BinaryFn, CompareFn, UnaryFn};

pub(super) type Unary<W> = fn(W) -> W;
pub(super) type Binary<W> = fn(W, W, u32) -> W;

/// What arithmetic on elements needs of a type.
pub(super) trait Work: Copy + PartialOrd + 'static {
    fn unary(function: UnaryFn) -> Option<Unary<Self>>;
    fn binary(function: BinaryFn) -> Option<Binary<Self>>;

    fn compare(function: CompareFn) -> fn(Self, Self) -> bool {
        match function {
            CompareFn::Eq => |a, b| a == b,
            CompareFn::Ne => |a, b| a != b,
            CompareFn::Lt => |a, b| a < b,
            CompareFn::Le => |a, b| a <= b,
            CompareFn::Gt => |a, b| a > b,
            CompareFn::Ge => |a, b| a >= b,
        }
    }
}

macro_rules! float_work {
    ($float:ty, $wide:ty) => {
        impl Work for $float {
            fn unary(function: UnaryFn) -> Option<Unary<$float>> {
                Some(match function {
                    UnaryFn::Neg => |x| -x,
                    UnaryFn::Abs => |x| x.abs(),
                    UnaryFn::Sign => |x| {
                        if x > 0.0 {
                            1.0
                        } else if x < 0.0 {
                            -1.0
                        } else if x.is_nan() {
                            x
                        } else {
                            0.0
                        }
                    },
                    UnaryFn::Ceil => |x| x.ceil(),
                    UnaryFn::Floor => |x| x.floor(),
                    UnaryFn::Round => |x| x.round_ties_even(),
                    UnaryFn::Trunc => |x| x.trunc(),
                    UnaryFn::Sqrt => |x| x.sqrt(),
                    UnaryFn::Recip => |x| 1.0 / x,
                    UnaryFn::Exp => |x| (x as $wide).exp() as $float,
                    UnaryFn::Decay => |x| match (x as $wide) < <$wide>::from(scalar::DECAY_LEAST) {
                        true => 0.0,
                        // Not `min`, which leaves NaN out.
                        false => {
                            if x > 0.0 {
                                1.0
                            } else {
                                (x as $wide).exp() as $float
                            }
                        }
                    },
                    UnaryFn::Log => |x| (x as $wide).ln() as $float,
                    UnaryFn::Log1p => |x| (x as $wide).ln_1p() as $float,
                    UnaryFn::Expm1 => |x| (x as $wide).exp_m1() as $float,
                    UnaryFn::Sin => |x| (x as $wide).sin() as $float,
                    UnaryFn::Cos => |x| (x as $wide).cos() as $float,
                    UnaryFn::Tan => |x| (x as $wide).tan() as $float,
                    UnaryFn::Asin => |x| (x as $wide).asin() as $float,
                    UnaryFn::Acos => |x| (x as $wide).acos() as $float,
                    UnaryFn::Atan => |x| (x as $wide).atan() as $float,
                    UnaryFn::Sinh => |x| (x as $wide).sinh() as $float,
                    UnaryFn::Cosh => |x| (x as $wide).cosh() as $float,
                    UnaryFn::Tanh => |x| (x as $wide).tanh() as $float,
                    UnaryFn::Asinh => |x| (x as $wide).asinh() as $float,
                    UnaryFn::Acosh => |x| (x as $wide).acosh() as $float,
                    UnaryFn::Atanh => |x| (x as $wide).atanh() as $float,
                    UnaryFn::Erf => |x| erf(x as $wide) as $float,
                    UnaryFn::Sigmoid => |x| (1.0 / (1.0 + (-(x as $wide)).exp())) as $float,
                    UnaryFn::Not
                    | UnaryFn::BitNot
                    | UnaryFn::Swap
                    | UnaryFn::IsNan
                    | UnaryFn::IsPosInf
                    | UnaryFn::IsNegInf => return None,
                })
            }

            fn binary(function: BinaryFn) -> Option<Binary<$float>> {
                Some(match function {
                    BinaryFn::Add => |a, b, _| a + b,
                    BinaryFn::Sub => |a, b, _| a - b,
                    BinaryFn::Mul => |a, b, _| a * b,
                    BinaryFn::Div => |a, b, _| a / b,
                    BinaryFn::Mod => |a, b, _| {
                        let rest = a % b;
                        if rest == 0.0 {
                            (0.0 as $float).copysign(b)
                        } else if (rest < 0.0) != (b < 0.0) {
                            rest + b
                        } else {
                            rest
                        }
                    },
                    BinaryFn::Rem => |a, b, _| a % b,
                    BinaryFn::Pow => |a, b, _| (a as $wide).powf(b as $wide) as $float,
                    BinaryFn::Max => |a, b, _| if a.is_nan() || a > b { a } else { b },
                    BinaryFn::Min => |a, b, _| if a.is_nan() || a < b { a } else { b },
                    BinaryFn::Atan2 => |a, b, _| (a as $wide).atan2(b as $wide) as $float,
                    BinaryFn::DotBf16 => |a, b, _| scalar::dot_bf16(a as f32, b as f32) as $float,
                    BinaryFn::And
                    | BinaryFn::Or
                    | BinaryFn::Xor
                    | BinaryFn::BitAnd
                    | BinaryFn::BitOr
                    | BinaryFn::BitXor
                    | BinaryFn::Shl
                    | BinaryFn::Shr
                    | BinaryFn::Dot
                    | BinaryFn::DotSigned
                    | BinaryFn::DotNarrow
                    | BinaryFn::DotShort
                    | BinaryFn::DotPairs => return None,
                })
            }
        }
    };
}
float_work!(f32, f64);
float_work!(f64, f64);

macro_rules! int_work {
    ($int:ty, $pow:ident, $modulo:expr) => {
        impl Work for $int {
            fn unary(function: UnaryFn) -> Option<Unary<$int>> {
                Some(match function {
                    UnaryFn::Neg => |x| x.wrapping_neg(),
                    UnaryFn::Abs => |x| {
                        #[allow(unused_comparisons, reason = "one body serves both signednesses")]
                        if x < 0 { x.wrapping_neg() } else { x }
                    },
                    UnaryFn::Sign => |x| {
                        #[allow(unused_comparisons, reason = "one body serves both signednesses")]
                        if x < 0 { (0 as $int).wrapping_sub(1) } else { (x != 0) as $int }
                    },
                    UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc => |x| x,
                    UnaryFn::BitNot => |x| !x,
                    _ => return None,
                })
            }

            fn binary(function: BinaryFn) -> Option<Binary<$int>> {
                Some(match function {
                    BinaryFn::Add => |a, b, _| a.wrapping_add(b),
                    BinaryFn::Sub => |a, b, _| a.wrapping_sub(b),
                    BinaryFn::Mul => |a, b, _| a.wrapping_mul(b),
                    BinaryFn::Div => |a, b, _| if b == 0 { 0 } else { a.wrapping_div(b) },
                    BinaryFn::Mod => |a, b, _| if b == 0 { 0 } else { $modulo(a, b) },
                    BinaryFn::Rem => |a, b, _| if b == 0 { 0 } else { a.wrapping_rem(b) },
                    BinaryFn::Pow => |a, b, _| $pow(a, b),
                    BinaryFn::Max => |a, b, _| a.max(b),
                    BinaryFn::Min => |a, b, _| a.min(b),
                    BinaryFn::BitAnd => |a, b, _| a & b,
                    BinaryFn::BitOr => |a, b, _| a | b,
                    BinaryFn::BitXor => |a, b, _| a ^ b,
                    BinaryFn::Shl => |a, b, bits| match u32::try_from(b) {
                        Ok(count) if count < bits => a << count,
                        _ => 0,
                    },
                    BinaryFn::Shr => |a, b, bits| match u32::try_from(b) {
                        Ok(count) if count < bits => a >> count,
                        _ => 0,
                    },
                    BinaryFn::Dot | BinaryFn::DotShort => {
                        |a, b, _| i64::from(scalar::dot(a as i32, b as i32)) as $int
                    }
                    BinaryFn::DotSigned | BinaryFn::DotNarrow => {
                        |a, b, _| i64::from(scalar::dot_signed(a as i32, b as i32)) as $int
                    }
                    BinaryFn::DotPairs => |a, b, _| i64::from(scalar::dot_pairs(a as i32, b as i32)) as $int,
                    BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Atan2 | BinaryFn::DotBf16 => {
                        return None;
                    }
                })
            }
        }
    };
}
int_work!(i64, signed_pow, |a: i64, b: i64| {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
});
int_work!(u64, unsigned_pow, |a: u64, b: u64| a % b);

fn unsigned_pow(base: u64, exponent: u64) -> u64 {
    let (mut result, mut square, mut rest) = (1u64, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

/// Powers modulo 2^64 do not depend on signedness; a negative exponent leaves 1 / base^n, truncated.
fn signed_pow(base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (_, 0..) => unsigned_pow(base as u64, exponent as u64) as i64,
        (1, _) => 1,
        (-1, _) => 1 - 2 * (exponent & 1),
        _ => 0,
    }
}

impl Work for bool {
    fn unary(function: UnaryFn) -> Option<Unary<bool>> {
        match function {
            UnaryFn::Not => Some(|x| !x),
            _ => None,
        }
    }

    fn binary(function: BinaryFn) -> Option<Binary<bool>> {
        Some(match function {
            BinaryFn::And | BinaryFn::Min | BinaryFn::BitAnd => |a, b, _| a && b,
            BinaryFn::Or | BinaryFn::Max | BinaryFn::BitOr => |a, b, _| a || b,
            BinaryFn::Xor | BinaryFn::BitXor => |a, b, _| a != b,
            _ => return None,
        })
    }
}

/// The float classification functions, on any float widened to f64.
pub(super) fn classify(function: UnaryFn) -> Option<fn(f64) -> bool> {
    match function {
        UnaryFn::IsNan => Some(|x| x.is_nan()),
        UnaryFn::IsPosInf => Some(|x| x == f64::INFINITY),
        UnaryFn::IsNegInf => Some(|x| x == f64::NEG_INFINITY),
        _ => None,
    }
}
