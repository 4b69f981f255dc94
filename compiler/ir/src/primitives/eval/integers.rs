//! Casts of integers by loops that know both types: tables of weights are large.

use crate::graph::DType;

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

#[cfg(test)]
mod tests {
    use super::super::lane::{reader, writer};
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
}
