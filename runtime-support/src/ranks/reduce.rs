//! What exchanges compute: numbers of two ranks combined, element by element.

use super::status;

/// `onnxc_reduction`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i64)]
pub enum Reduction {
    Sum = 0,
    Product = 1,
    /// NaN where either is.
    Max = 2,
    Min = 3,
    And = 4,
    Or = 5,
}

impl Reduction {
    pub const ALL: [Reduction; 6] =
        [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min, Reduction::And, Reduction::Or];
}

/// `onnxc_dtype`, those that can be combined.
mod dtype {
    pub(super) const FLOAT: i32 = 1;
    pub(super) const UINT8: i32 = 2;
    pub(super) const INT8: i32 = 3;
    pub(super) const UINT16: i32 = 4;
    pub(super) const INT16: i32 = 5;
    pub(super) const INT32: i32 = 6;
    pub(super) const INT64: i32 = 7;
    pub(super) const BOOL: i32 = 9;
    pub(super) const FLOAT16: i32 = 10;
    pub(super) const DOUBLE: i32 = 11;
    pub(super) const UINT32: i32 = 12;
    pub(super) const UINT64: i32 = 13;
    pub(super) const BFLOAT16: i32 = 16;
}

/// Bytes of an element of a type that can be combined.
pub fn element_bytes(dtype: i32) -> Option<usize> {
    Some(match dtype {
        dtype::UINT8 | dtype::INT8 | dtype::BOOL => 1,
        dtype::UINT16 | dtype::INT16 | dtype::FLOAT16 | dtype::BFLOAT16 => 2,
        dtype::FLOAT | dtype::INT32 | dtype::UINT32 => 4,
        dtype::INT64 | dtype::UINT64 | dtype::DOUBLE => 8,
        _ => return None,
    })
}

/// A reduction and the size of an element, by their numbers.
pub(super) fn checked(reduction: i64, dtype: i64) -> Result<(Reduction, usize), i32> {
    let reduction = Reduction::ALL.into_iter().find(|&known| known as i64 == reduction);
    let width = i32::try_from(dtype).ok().and_then(element_bytes);
    reduction.zip(width).ok_or(status::EXCHANGE_FAILED)
}

macro_rules! each {
    ($to:ident, $from:ident, $ty:ty, $combine:expr) => {{
        const WIDTH: usize = size_of::<$ty>();
        let combine = $combine;
        for (to, from) in $to.as_chunks_mut::<WIDTH>().0.iter_mut().zip($from.as_chunks::<WIDTH>().0) {
            *to = <$ty>::to_ne_bytes(combine(<$ty>::from_ne_bytes(*to), <$ty>::from_ne_bytes(*from)));
        }
    }};
}

macro_rules! integers {
    ($reduction:ident, $to:ident, $from:ident, $ty:ty) => {
        match $reduction {
            Reduction::Sum => each!($to, $from, $ty, <$ty>::wrapping_add),
            Reduction::Product => each!($to, $from, $ty, <$ty>::wrapping_mul),
            Reduction::Max => each!($to, $from, $ty, <$ty>::max),
            Reduction::Min => each!($to, $from, $ty, <$ty>::min),
            Reduction::And => each!($to, $from, $ty, |a: $ty, b: $ty| a & b),
            Reduction::Or => each!($to, $from, $ty, |a: $ty, b: $ty| a | b),
        }
    };
}

macro_rules! floats {
    ($reduction:ident, $to:ident, $from:ident, $bits:ty, $get:expr, $put:expr) => {{
        let (get, put) = ($get, $put);
        match $reduction {
            Reduction::Product => each!($to, $from, $bits, |a, b| put(get(a) * get(b))),
            Reduction::Max => {
                each!($to, $from, $bits, |a, b| {
                    let (x, y) = (get(a), get(b));
                    if x.is_nan() || x > y { a } else { b }
                })
            }
            Reduction::Min => {
                each!($to, $from, $bits, |a, b| {
                    let (x, y) = (get(a), get(b));
                    if x.is_nan() || x < y { a } else { b }
                })
            }
            _ => each!($to, $from, $bits, |a, b| put(get(a) + get(b))),
        }
    }};
}

/// Combines elements of `from` into those of `to`, of a type with [`element_bytes`]. Integers wrap; f16 and bf16 are rounded each time.
pub fn combine(reduction: Reduction, dtype: i32, to: &mut [u8], from: &[u8]) {
    match dtype {
        dtype::FLOAT => floats!(reduction, to, from, u32, f32::from_bits, f32::to_bits),
        dtype::DOUBLE => floats!(reduction, to, from, u64, f64::from_bits, f64::to_bits),
        dtype::FLOAT16 => floats!(reduction, to, from, u16, half_to_f32, f32_to_half),
        dtype::BFLOAT16 => floats!(reduction, to, from, u16, bfloat_to_f32, f32_to_bfloat),
        dtype::UINT8 | dtype::BOOL => integers!(reduction, to, from, u8),
        dtype::INT8 => integers!(reduction, to, from, i8),
        dtype::UINT16 => integers!(reduction, to, from, u16),
        dtype::INT16 => integers!(reduction, to, from, i16),
        dtype::UINT32 => integers!(reduction, to, from, u32),
        dtype::INT32 => integers!(reduction, to, from, i32),
        dtype::UINT64 => integers!(reduction, to, from, u64),
        dtype::INT64 => integers!(reduction, to, from, i64),
        _ => {}
    }
}

fn bfloat_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn f32_to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let odd = bits >> 16 & 1;
    (bits.wrapping_add(0x7fff + odd) >> 16) as u16
}

fn half_to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) =
        (u32::from(bits >> 15) << 31, bits >> 10 & 0x1f, u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        // Multiples of 2^-24 are exact.
        0 => (fraction as f32 * 5.960_464_5e-8).to_bits(),
        0x1f => 0x7f80_0000 | fraction << 13,
        exponent => (u32::from(exponent) + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

fn f32_to_half(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let bits = value.to_bits() & 0x7fff_ffff;
    if value.is_nan() {
        return sign | 0x7e00 | (bits >> 13) as u16 & 0x3ff;
    }
    if bits >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if bits < 0x3880_0000 {
        // Subnormal: the sum with a number whose last place is 2^-24 rounds to even.
        let sum = f32::from_bits(bits) + 0.5;
        return sign | (sum.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = bits >> 13 & 1;
    sign | ((bits - 0x3800_0000 + 0xfff + odd) >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_there_and_back() {
        for bits in 0..=u16::MAX {
            if half_to_f32(bits).is_nan() {
                assert!(half_to_f32(f32_to_half(half_to_f32(bits))).is_nan());
            } else {
                assert_eq!(f32_to_half(half_to_f32(bits)), bits, "{bits:#x}");
            }
            if !bfloat_to_f32(bits).is_nan() {
                assert_eq!(f32_to_bfloat(bfloat_to_f32(bits)), bits, "{bits:#x}");
            }
        }
        // Halfway goes to the even one, and what is too large to infinity.
        assert_eq!(f32_to_half(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f32_to_half(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f32_to_half(65519.0), 0x7bff);
        assert_eq!(f32_to_half(65520.0), 0x7c00);
        assert_eq!(f32_to_half(f32::from_bits(0x3300_0000)), 0);
        assert_eq!(f32_to_half(f32::from_bits(0x3300_0001)), 1);
        assert_eq!(f32_to_bfloat(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_bfloat(f32::MAX), 0x7f80);
    }

    #[test]
    fn nan_wins() {
        for reduction in [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min] {
            for (a, b) in [(f32::NAN, 1.0f32), (1.0, f32::NAN)] {
                let mut to = a.to_ne_bytes();
                combine(reduction, dtype::FLOAT, &mut to, &b.to_ne_bytes());
                assert!(f32::from_ne_bytes(to).is_nan(), "{reduction:?} of {a} and {b}");
            }
        }
    }
}
