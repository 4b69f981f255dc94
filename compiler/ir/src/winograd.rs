//! The matrices of Winograd's minimal filtering for 3x3 kernels.
//!
//! `F(m x m, 3 x 3)` computes an `m x m` tile of a correlation from a `(m+2) x (m+2)` tile of the input with one
//! product per element of the latter: `Y = A^T [(G g G^T) * (B^T d B)] A` (Lavin and Gray, "Fast algorithms for
//! convolutional neural networks", 2016). The matrices follow from `m + 1` interpolation points, and infinity, as in
//! Toom and Cook's multiplication of polynomials.
//!
//! Of integers all of it is exact: with points that are integers, `B^T` has no fractions, and the denominators of the rows of
//! `G` go to the columns of `A^T`, as far as they divide one number, the scale. The transforms of bytes fit 16 bits then. What
//! follows may wrap: `scale^2 Y` is known modulo 2^32, which is enough to divide it, while `Y` is small.

use crate::graph::DType;

/// Rows and columns of the kernels.
pub const KERNEL: usize = 3;

/// The points for floats, for tiles of 2 and 4. They are exact as binary fractions, and so is all of the input and output
/// matrices; the larger ones keep the rounding error least among such (two to five times that of the direct sum, where 1 and 2
/// in their place give twice that).
const FLOAT_POINTS: [(usize, &[f64]); 2] = [(2, &[0.0, 1.0, -1.0]), (4, &[0.0, 0.625, -0.625, 1.5, -1.5])];

/// Those for integers: the smallest ones.
const INT_POINTS: [(usize, &[f64]); 2] = [(2, &[0.0, 1.0, -1.0]), (4, &[0.0, 1.0, -1.0, 2.0, -2.0])];

/// Tile sizes that there are.
pub fn tiles() -> impl Iterator<Item = usize> {
    FLOAT_POINTS.iter().map(|(tile, _)| *tile)
}

/// Element type of the transform of an input of a type.
pub fn of_input(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F32 | DType::F64 => Some(dtype),
        DType::I8 | DType::U8 => Some(DType::I16),
        _ => None,
    }
}

/// The same of weights. Those of bytes are i32 before, their zero point taken away.
pub fn of_filter(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F32 | DType::F64 => Some(dtype),
        DType::I32 => Some(DType::I16),
        _ => None,
    }
}

/// Whether results are made of sums of a type.
pub fn has_results(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32)
}

/// Rows of a matrix.
pub type Matrix = Vec<Vec<f64>>;

/// The three matrices of a tile size `m`, with `t = m + 2`.
pub struct Matrices {
    /// `B^T`, `[t, t]`.
    pub input: Matrix,
    /// `G`, `[t, 3]`.
    pub filter: Matrix,
    /// `A^T`, `[m, t]`.
    pub output: Matrix,
    /// What the output matrix has too much from either side: 1 of floats.
    pub scale: i32,
}

/// The matrices for tiles of `tile` by `tile` results, of floats or of integers.
pub fn matrices(tile: usize, floats: bool) -> Option<Matrices> {
    let points = if floats { FLOAT_POINTS } else { INT_POINTS };
    let (_, points) = points.iter().find(|(size, _)| *size == tile)?;
    let without = |skip: usize| -> Vec<f64> {
        points.iter().enumerate().filter(|(at, _)| *at != skip).map(|(_, point)| *point).collect()
    };
    let size = tile + KERNEL - 1;
    let mut filter: Matrix = Vec::with_capacity(size);
    let mut input: Matrix = Vec::with_capacity(size);
    let mut denominators = Vec::with_capacity(size);
    for (at, &point) in points.iter().enumerate() {
        let others = without(at);
        denominators.push(others.iter().map(|other| point - other).product::<f64>());
        filter.push((0..KERNEL).map(|power| point.powi(power as i32)).collect());
        input.push(polynomial(&others, size));
    }
    denominators.push(1.0);
    filter.push((0..KERNEL).map(|power| f64::from(u8::from(power == KERNEL - 1))).collect());
    input.push(polynomial(points, size));
    let mut output: Matrix = (0..tile)
        .map(|power| {
            let infinity = f64::from(u8::from(power == tile - 1));
            points.iter().map(|point| point.powi(power as i32)).chain([infinity]).collect()
        })
        .collect();
    let mut scale = 1;
    if floats {
        for (row, denominator) in filter.iter_mut().zip(&denominators) {
            row.iter_mut().for_each(|factor| *factor /= denominator);
        }
    } else {
        let fits = |scale: &i32| denominators.iter().all(|by| f64::from(*scale) % by == 0.0);
        scale = (1..).find(fits)?;
        for row in &mut output {
            let columns = row.iter_mut().zip(&denominators);
            columns.for_each(|(factor, denominator)| *factor *= f64::from(scale) / denominator);
        }
    }
    Some(Matrices { input, filter, output, scale })
}

/// How a multiple of a number is divided by it where it is known modulo 2^32: `y * inverse`, which wraps, `>> shift`.
#[derive(Clone, Copy, Debug)]
pub struct Quotient {
    /// Of the odd part of the divisor, modulo 2^32.
    pub inverse: i32,
    pub shift: u32,
}

impl Quotient {
    pub fn of(self, y: i32) -> i32 {
        y.wrapping_mul(self.inverse) >> self.shift
    }

    /// The greatest magnitude of a quotient.
    pub fn limit(self) -> i64 {
        i64::from(i32::MAX >> self.shift)
    }
}

impl Matrices {
    /// The division of integers by `scale^2`.
    pub fn quotient(&self) -> Quotient {
        let by = self.scale * self.scale;
        let shift = by.trailing_zeros();
        let odd = by >> shift;
        // An odd number is its own inverse modulo 8; each step of Newton's doubles the bits that are right.
        let better = |x: i32| x.wrapping_mul(2i32.wrapping_sub(odd.wrapping_mul(x)));
        Quotient { inverse: (0..4).fold(odd, |x, _| better(x)), shift }
    }
}

/// What a transform by a matrix from both sides multiplies the greatest magnitude by, at most.
pub fn growth(matrix: &Matrix) -> f64 {
    let sums = matrix.iter().map(|row| row.iter().map(|factor| factor.abs()).sum::<f64>());
    let most = sums.fold(0.0, f64::max);
    most * most
}

/// Coefficients of `product of (x - root)`, the constant first, in `len` places.
fn polynomial(roots: &[f64], len: usize) -> Vec<f64> {
    let mut coefficients = vec![0.0; len];
    coefficients[0] = 1.0;
    for root in roots {
        for power in (0..len).rev() {
            let lower = if power > 0 { coefficients[power - 1] } else { 0.0 };
            coefficients[power] = lower - root * coefficients[power];
        }
    }
    coefficients
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `A^T [(G g) * (B^T d)]` is the correlation of `d` with `g`, for every tile size.
    #[test]
    fn minimal_filtering_is_correlation() {
        let apply = |matrix: &Matrix, x: &[f64]| -> Vec<f64> {
            matrix.iter().map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum()).collect()
        };
        for tile in tiles() {
            let Matrices { input, filter, output, scale } = matrices(tile, true).unwrap();
            assert_eq!(scale, 1);
            let d: Vec<f64> = (0..tile + 2).map(|at| ((at * 7 + 3) % 11) as f64 - 4.5).collect();
            let g = [0.75, -2.0, 1.25];
            let products: Vec<f64> =
                apply(&filter, &g).iter().zip(apply(&input, &d)).map(|(g, d)| g * d).collect();
            for (at, y) in apply(&output, &products).into_iter().enumerate() {
                let wanted: f64 = (0..3).map(|k| g[k] * d[at + k]).sum();
                assert!((y - wanted).abs() < 1e-12, "tile {tile}, result {at}: {y}, not {wanted}");
            }
        }
        assert!(matrices(3, true).is_none() && matrices(3, false).is_none());
    }

    /// All that meets data at run time is exact in f32.
    #[test]
    fn coefficients_are_exact() {
        for tile in tiles() {
            let Matrices { input, output, .. } = matrices(tile, true).unwrap();
            for value in input.iter().chain(&output).flatten() {
                assert_eq!(f64::from(*value as f32), *value, "tile {tile}");
            }
        }
    }

    /// Of bytes and their weights, transforms fit 16 bits, and results are exact, also where the sums before them wrap.
    #[test]
    fn integers_are_exact() {
        let both = |matrix: &Matrix, x: &[i64], size: usize| -> Vec<i64> {
            let at = |i: usize, j: usize| x[i * size + j];
            let mut out = vec![];
            for left in matrix {
                for right in matrix {
                    let terms = (0..size * size).map(|k| {
                        let (i, j) = (k / size, k % size);
                        (left[i] * right[j]) as i64 * at(i, j)
                    });
                    out.push(terms.sum());
                }
            }
            out
        };
        let mut seed = 7u64;
        let mut below = |count: i64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as i64 % count
        };
        let mut has_wrapped = [false; 5];
        for tile in tiles() {
            let matrices = matrices(tile, false).unwrap();
            let (size, quotient) = (tile + KERNEL - 1, matrices.quotient());
            for turn in 0..40 {
                let mut sums = vec![0i32; size * size];
                let mut wanted = vec![0i64; tile * tile];
                let extreme = turn % 4 == 0;
                for _ in 0..64 {
                    let d: Vec<i64> =
                        (0..size * size).map(|_| if extreme { 255 } else { below(256) }).collect();
                    let g: Vec<i64> = (0..9).map(|_| if extreme { 127 } else { below(256) - 128 }).collect();
                    let (input, filter) =
                        (both(&matrices.input, &d, size), both(&matrices.filter, &g, KERNEL));
                    for ((sum, d), g) in sums.iter_mut().zip(input).zip(filter) {
                        assert!(i16::try_from(d).is_ok() && i16::try_from(g).is_ok(), "{d} and {g}");
                        *sum = sum.wrapping_add((d * g) as i32);
                    }
                    for (at, wanted) in wanted.iter_mut().enumerate() {
                        let place = |k: usize| (at / tile + k / 3) * size + at % tile + k % 3;
                        *wanted += (0..9).map(|k| d[place(k)] * g[k]).sum::<i64>();
                    }
                }
                let sums: Vec<i64> = sums.into_iter().map(i64::from).collect();
                for (y, wanted) in both(&matrices.output, &sums, size).into_iter().zip(wanted) {
                    assert!(wanted.abs() <= quotient.limit());
                    assert_eq!(i64::from(quotient.of(y as i32)), wanted, "tile {tile}");
                    has_wrapped[tile] |= i32::try_from(y).is_err();
                }
            }
            assert!(growth(&matrices.input) * 255.0 <= f64::from(i16::MAX));
        }
        assert!(has_wrapped[4]);
    }
}
