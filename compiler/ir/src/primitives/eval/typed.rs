//! Casts and arithmetic by loops that know their types: tables of weights are large.

use std::ops::{Add, Mul, Sub};

use crate::graph::DType;
use crate::scalar::BinaryFn;

/// Converts the elements of `from` where both types have such a loop; else gives false, and leaves `to` as it was. The rules are those of
/// other casts: integers keep their low bits, floats are the nearest.
pub(super) fn cast(source: DType, from: &[u8], target: DType, to: &mut [u8]) -> bool {
    macro_rules! loops {
        ($source:ty => $($dtype:ident $target:ty),*) => {
            match target {
                $(DType::$dtype => {
                    let (values, _) = from.as_chunks::<{ size_of::<$source>() }>();
                    let (places, _) = to.as_chunks_mut::<{ size_of::<$target>() }>();
                    for (value, place) in values.iter().zip(places) {
                        *place = (<$source>::from_le_bytes(*value) as $target).to_le_bytes();
                    }
                    true
                })*
                _ => false,
            }
        };
        ($source:ty) => {
            loops!($source => I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64)
        };
    }
    match source {
        DType::I8 => loops!(i8),
        DType::U8 => loops!(u8),
        DType::I16 => loops!(i16),
        DType::U16 => loops!(u16),
        DType::I32 => loops!(i32),
        DType::U32 => loops!(u32),
        DType::I64 => loops!(i64),
        DType::U64 => loops!(u64),
        _ => false,
    }
}

/// Combines the elements of `a` and `b` where there is such a loop; else gives false, and leaves `out` as it was. Integers wrap.
pub(super) fn binary(function: BinaryFn, dtype: DType, [a, b]: [&[u8]; 2], out: &mut [u8]) -> bool {
    fn each<const N: usize>(
        [a, b]: [&[u8]; 2],
        out: &mut [u8],
        apply: impl Fn([u8; N], [u8; N]) -> [u8; N],
    ) -> bool {
        let operands = a.as_chunks().0.iter().zip(b.as_chunks().0);
        operands.zip(out.as_chunks_mut().0).for_each(|((a, b), out)| *out = apply(*a, *b));
        true
    }
    macro_rules! apply {
        ($type:ty, $function:expr) => {
            each([a, b], out, |a, b| {
                $function(<$type>::from_le_bytes(a), <$type>::from_le_bytes(b)).to_le_bytes()
            })
        };
    }
    macro_rules! loops {
        ($type:ty, $add:expr, $sub:expr, $mul:expr) => {
            match function {
                BinaryFn::Add => apply!($type, $add),
                BinaryFn::Sub => apply!($type, $sub),
                BinaryFn::Mul => apply!($type, $mul),
                _ => false,
            }
        };
        ($type:ty) => {
            loops!($type, <$type>::wrapping_add, <$type>::wrapping_sub, <$type>::wrapping_mul)
        };
    }
    match dtype {
        DType::I8 => loops!(i8),
        DType::U8 => loops!(u8),
        DType::I16 => loops!(i16),
        DType::U16 => loops!(u16),
        DType::I32 => loops!(i32),
        DType::U32 => loops!(u32),
        DType::I64 => loops!(i64),
        DType::U64 => loops!(u64),
        DType::F32 => loops!(f32, f32::add, f32::sub, f32::mul),
        DType::F64 => loops!(f64, f64::add, f64::sub, f64::mul),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::elementwise::{binary_in, with_lane};
    use super::super::lane::{Lane, reader, writer};
    use super::*;

    #[test]
    fn casts_of_known_types_are_those_of_all_types() {
        use DType::*;
        // Patterns of every length: extremes, ties of f32 and f64, and what a byte more would change.
        let mut words: Vec<u64> =
            (0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit).wrapping_sub(1), !0u64 << bit]).collect();
        words.extend([
            0x0100_0001,
            0x0100_0003,
            0x0020_0000_0000_0001,
            0x0020_0000_0000_0003,
            0x7fff_ff40_8000_0001,
            0x80ff_7f01,
        ]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut loops = 0;
        for source in [Bool, I8, U8, I16, U16, I32, U32, I64, U64, F32] {
            for target in [Bool, I8, U8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, I4] {
                let count = bytes.len() / source.size();
                let mut got = vec![0xa5; count * target.size()];
                if !cast(source, &bytes, target, &mut got) {
                    assert!(got.iter().all(|&byte| byte == 0xa5), "{source} to {target}");
                    continue;
                }
                loops += 1;
                let (read, write) = (reader(source).unwrap(), writer(target, true).unwrap());
                let mut want = vec![0; got.len()];
                for (from, to) in bytes.chunks_exact(source.size()).zip(want.chunks_exact_mut(target.size()))
                {
                    write(read(from), to);
                }
                assert!(got == want, "{source} to {target}");
            }
        }
        assert_eq!(loops, 8 * 10);
    }

    #[test]
    fn arithmetic_of_known_types_is_that_of_all_types() {
        use DType::*;
        let words: Vec<u64> = (0..64)
            .flat_map(|bit| [1u64 << bit, (1u64 << bit).wrapping_sub(1), !0u64 << bit])
            .chain([
                (-0.0f64).to_bits(),
                1.5f64.to_bits(),
                u64::from(1.5f32.to_bits()),
                0x7f80_0000_7f80_0000,
            ])
            .collect();
        let bytes =
            |words: &mut dyn Iterator<Item = u64>| words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
        // Every word beside every other one.
        let count = words.len();
        let a = bytes(&mut (0..count * count).map(|at| words[at / count]));
        let b = bytes(&mut (0..count * count).map(|at| words[at % count]));
        let mut loops = 0;
        for dtype in [Bool, I4, I8, U8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64] {
            for function in [BinaryFn::Add, BinaryFn::Sub, BinaryFn::Mul, BinaryFn::Div, BinaryFn::Max] {
                let mut got = vec![0xa5; a.len()];
                if !binary(function, dtype, [&a, &b], &mut got) {
                    assert!(got.iter().all(|&byte| byte == 0xa5), "{function} of {dtype}");
                    continue;
                }
                loops += 1;
                let mut want = vec![0; a.len()];
                with_lane!(dtype, "a test", lane => binary_in(lane, function, dtype, [&a, &b], &mut want))
                    .unwrap();
                let is_nan = |bytes: &[u8]| match dtype {
                    F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    _ => false,
                };
                let size = dtype.size();
                for (at, (got, want)) in got.chunks_exact(size).zip(want.chunks_exact(size)).enumerate() {
                    let same = got == want || is_nan(got) && is_nan(want);
                    assert!(same, "{function} of {dtype}, pair {at}: {got:?} for {want:?}");
                }
            }
        }
        assert_eq!(loops, 10 * 3);
    }
}
