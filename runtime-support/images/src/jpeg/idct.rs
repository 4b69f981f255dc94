//! The inverse DCT: "islow" of libjpeg, by Loeffler, Ligtenberg and Moschytz ("Practical fast 1-D DCT algorithms with 11
//! multiplications", 1989), in integers.

use std::num::Wrapping;

/// What no valid stream makes overflow, and others may.
type Int = Wrapping<i32>;

const BITS: usize = 13;
const FIRST_BITS: usize = 2;

const FIX_0_298631336: Int = Wrapping(2446);
const FIX_0_390180644: Int = Wrapping(3196);
const FIX_0_541196100: Int = Wrapping(4433);
const FIX_0_765366865: Int = Wrapping(6270);
const FIX_0_899976223: Int = Wrapping(7373);
const FIX_1_175875602: Int = Wrapping(9633);
const FIX_1_501321110: Int = Wrapping(12299);
const FIX_1_847759065: Int = Wrapping(15137);
const FIX_1_961570560: Int = Wrapping(16069);
const FIX_2_053119869: Int = Wrapping(16819);
const FIX_2_562915447: Int = Wrapping(20995);
const FIX_3_072711026: Int = Wrapping(25172);

/// Eight values, scaled by 2^13, rounded to 2^(13 - `SHIFT`).
#[inline]
fn eight<const SHIFT: usize>(x: [Int; 8]) -> [Int; 8] {
    let z1 = (x[2] + x[6]) * FIX_0_541196100;
    let (even2, even3) = (z1 - x[6] * FIX_1_847759065, z1 + x[2] * FIX_0_765366865);
    let (even0, even1) = ((x[0] + x[4]) << BITS, (x[0] - x[4]) << BITS);
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];

    let z5 = (x[7] + x[3] + x[5] + x[1]) * FIX_1_175875602;
    let z1 = (x[7] + x[1]) * -FIX_0_899976223;
    let z2 = (x[5] + x[3]) * -FIX_2_562915447;
    let z3 = (x[7] + x[3]) * -FIX_1_961570560 + z5;
    let z4 = (x[5] + x[1]) * -FIX_0_390180644 + z5;
    let odd = [
        x[1] * FIX_1_501321110 + z1 + z4,
        x[3] * FIX_3_072711026 + z2 + z3,
        x[5] * FIX_2_053119869 + z2 + z4,
        x[7] * FIX_0_298631336 + z1 + z3,
    ];

    let round = Wrapping(1 << (SHIFT - 1));
    std::array::from_fn(|at| match at {
        0..4 => (even[at] + odd[at] + round) >> SHIFT,
        _ => (even[7 - at] - odd[7 - at] + round) >> SHIFT,
    })
}

/// A block of coefficients, row by row, to samples: rows that lie `stride` apart in `out`.
pub(super) fn idct(coefficients: &[i16; 64], quantization: &[u16; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[Wrapping(0); 8]; 8];
    for (at, column) in columns.iter_mut().enumerate() {
        let value = |row: usize| {
            let index = 8 * row + at;
            Wrapping(i32::from(coefficients[index])) * Wrapping(i32::from(quantization[index]))
        };
        *column = match (1..8).all(|row| coefficients[8 * row + at] == 0) {
            true => [value(0) << FIRST_BITS; 8],
            false => eight::<{ BITS - FIRST_BITS }>(std::array::from_fn(value)),
        };
    }
    for (at, row) in out.chunks_mut(stride).take(8).enumerate() {
        let samples = eight::<{ BITS + FIRST_BITS + 3 }>(std::array::from_fn(|column| columns[column][at]));
        for (out, sample) in row.iter_mut().zip(samples) {
            *out = (sample + Wrapping(128)).0.clamp(0, 255) as u8;
        }
    }
}
