//! The matrices of Winograd's minimal filtering for 3x3 kernels.
//!
//! `F(m x m, 3 x 3)` computes an `m x m` tile of a correlation from a `(m+2) x (m+2)` tile of the input with one
//! product per element of the latter: `Y = A^T [(G g G^T) * (B^T d B)] A` (Lavin and Gray, "Fast algorithms for
//! convolutional neural networks", 2016). The matrices follow from `m + 1` interpolation points, and infinity, as in
//! Toom and Cook's multiplication of polynomials.

/// Rows and columns of the kernels.
pub const KERNEL: usize = 3;

/// The points for tiles of 2 and 4. They are exact as binary fractions, and so is all of the input and output matrices;
/// the larger ones keep the rounding error least among such (about twice that of the direct sum, where 1 and 2
/// in their place give four times).
const POINTS: [(usize, &[f64]); 2] = [(2, &[0.0, 1.0, -1.0]), (4, &[0.0, 0.625, -0.625, 1.5, -1.5])];

/// Tile sizes that there are.
pub fn tiles() -> impl Iterator<Item = usize> {
    POINTS.iter().map(|(tile, _)| *tile)
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
}

/// The matrices for tiles of `tile` by `tile` results.
pub fn matrices(tile: usize) -> Option<Matrices> {
    let (_, points) = POINTS.iter().find(|(size, _)| *size == tile)?;
    let without = |skip: usize| -> Vec<f64> {
        points.iter().enumerate().filter(|(at, _)| *at != skip).map(|(_, point)| *point).collect()
    };
    let size = tile + KERNEL - 1;
    let mut filter: Matrix = Vec::with_capacity(size);
    let mut input: Matrix = Vec::with_capacity(size);
    for (at, &point) in points.iter().enumerate() {
        let others = without(at);
        let scale: f64 = others.iter().map(|other| point - other).product();
        filter.push((0..KERNEL).map(|power| point.powi(power as i32) / scale).collect());
        input.push(polynomial(&others, size));
    }
    filter.push((0..KERNEL).map(|power| f64::from(u8::from(power == KERNEL - 1))).collect());
    input.push(polynomial(points, size));
    let output = (0..tile)
        .map(|power| {
            let infinity = f64::from(u8::from(power == tile - 1));
            points.iter().map(|point| point.powi(power as i32)).chain([infinity]).collect()
        })
        .collect();
    Some(Matrices { input, filter, output })
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
            let Matrices { input, filter, output } = matrices(tile).unwrap();
            let d: Vec<f64> = (0..tile + 2).map(|at| ((at * 7 + 3) % 11) as f64 - 4.5).collect();
            let g = [0.75, -2.0, 1.25];
            let products: Vec<f64> =
                apply(&filter, &g).iter().zip(apply(&input, &d)).map(|(g, d)| g * d).collect();
            for (at, y) in apply(&output, &products).into_iter().enumerate() {
                let wanted: f64 = (0..3).map(|k| g[k] * d[at + k]).sum();
                assert!((y - wanted).abs() < 1e-12, "tile {tile}, result {at}: {y}, not {wanted}");
            }
        }
        assert!(matrices(3).is_none());
    }

    /// All that meets data at run time is exact in f32.
    #[test]
    fn coefficients_are_exact() {
        for tile in tiles() {
            let Matrices { input, output, .. } = matrices(tile).unwrap();
            for value in input.iter().chain(&output).flatten() {
                assert_eq!(f64::from(*value as f32), *value, "tile {tile}");
            }
        }
    }
}
