//! The transforms of Winograd's convolutions, square by square in f64, in which those of integers are exact, too.

use super::lane::Lane;
use super::movement::zeroed;
use super::{Tensor, cast, internal};
use crate::error::Result;
use crate::graph::DType;
use crate::winograd::{KERNEL, Matrix, matrices, of_filter, of_input};
use bytes::Bytes;

/// `M x M^T` of the square `x`, both row-major.
fn both_sides(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    let size = matrix[0].len();
    let rows: Vec<f64> = matrix
        .iter()
        .flat_map(|row| (0..size).map(move |j| (0..size).map(|i| row[i] * x[i * size + j]).sum::<f64>()))
        .collect();
    let mut out = Vec::with_capacity(matrix.len() * matrix.len());
    for left in rows.chunks(size) {
        out.extend(matrix.iter().map(|right| left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>()));
    }
    out
}

/// `[n, h, w, c] -> [n, th, tw, (tile+2)^2, c]`, see `Op::WinogradInput`.
pub(in crate::primitives) fn input(x: &Tensor, tile: usize, shape: &[usize]) -> Result<Tensor> {
    let (Some(to), Some(matrices)) = (of_input(x.dtype), matrices(tile, x.dtype.is_float())) else {
        return internal(format!("a Winograd transform of {} in tiles of {tile}", x.dtype));
    };
    let (wide, lane) = wide(x)?;
    let size = tile + KERNEL - 1;
    let (h, w, c) = (x.shape[1], x.shape[2], x.shape[3]);
    let mut data = zeroed(DType::F64, shape)?;
    for (at, index) in crate::primitives::infer::indices(&[shape[0], shape[1], shape[2], c]).enumerate() {
        let (n, y, x0, channel) = (index[0], index[1] * tile, index[2] * tile, index[3]);
        let square: Vec<f64> = (0..size * size)
            .map(|k| lane.get(&wide.data, ((n * h + y + k / size) * w + x0 + k % size) * c + channel))
            .collect();
        for (k, value) in both_sides(&matrices.input, &square).into_iter().enumerate() {
            lane.put(&mut data, (at / c * size * size + k) * c + channel, value);
        }
    }
    Ok(cast(&Tensor::new(DType::F64, shape.to_vec(), Bytes::from(data)), to, true))
}

/// A tensor in f64.
fn wide(x: &Tensor) -> Result<(Tensor, Lane<f64>)> {
    match Lane::f64(DType::F64) {
        Some(lane) => Ok((cast(x, DType::F64, true), lane)),
        None => internal("no elements of f64".to_string()),
    }
}

/// Kernels that are transformed side by side.
const KERNELS: usize = 256;

/// `[9, ..] -> [(tile+2)^2, ..]`, see `Op::WinogradFilter`.
pub(in crate::primitives) fn filter(weights: &Tensor, tile: usize, shape: &[usize]) -> Result<Tensor> {
    let (Some(to), Some(matrices)) = (of_filter(weights.dtype), matrices(tile, weights.dtype.is_float()))
    else {
        return internal(format!("a Winograd transform of {} in tiles of {tile}", weights.dtype));
    };
    let (wide, lane) = wide(weights)?;
    let kernels: usize = shape[1..].iter().product();
    let mut data = zeroed(DType::F64, shape)?;
    // Some kernels at a time, which stay in a cache.
    for first in (0..kernels).step_by(KERNELS) {
        let some = first..kernels.min(first + KERNELS);
        let taps: Vec<Vec<f64>> = (0..KERNEL * KERNEL)
            .map(|tap| some.clone().map(|at| lane.get(&wide.data, tap * kernels + at)).collect())
            .collect();
        let sum = |row: &[f64], terms: [&[f64]; KERNEL]| -> Vec<f64> {
            let mut sums = vec![0.0; some.len()];
            for (factor, terms) in row.iter().zip(terms) {
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += factor * term);
            }
            sums
        };
        for (row, left) in matrices.filter.iter().enumerate() {
            let columns: [Vec<f64>; KERNEL] = std::array::from_fn(|column| {
                sum(left, std::array::from_fn(|at| &taps[at * KERNEL + column][..]))
            });
            for (column, right) in matrices.filter.iter().enumerate() {
                let values = sum(right, std::array::from_fn(|at| &columns[at][..]));
                let place = (row * matrices.filter.len() + column) * kernels + first;
                values.iter().enumerate().for_each(|(at, &value)| lane.put(&mut data, place + at, value));
            }
        }
    }
    Ok(cast(&Tensor::new(DType::F64, shape.to_vec(), Bytes::from(data)), to, true))
}

/// `[(tile+2)^2, n, th, tw, c] -> [n, height, width, c]`, see `Op::WinogradOutput`.
pub(in crate::primitives) fn output(m: &Tensor, tile: usize, shape: &[usize]) -> Result<Tensor> {
    let Some(matrices) = matrices(tile, m.dtype.is_float()) else {
        return internal(format!("a Winograd transform of {} in tiles of {tile}", m.dtype));
    };
    let quotient = (m.dtype == DType::I32).then(|| matrices.quotient());
    let (wide, lane) = wide(m)?;
    let (height, width, c) = (shape[1], shape[2], shape[3]);
    let per_square: usize = m.shape[1..].iter().product();
    let mut data = zeroed(DType::F64, shape)?;
    for (at, index) in crate::primitives::infer::indices(&m.shape[1..]).enumerate() {
        let (n, y, x, channel) = (index[0], index[1] * tile, index[2] * tile, index[3]);
        let square: Vec<f64> = (0..m.shape[0]).map(|k| lane.get(&wide.data, k * per_square + at)).collect();
        for (k, value) in both_sides(&matrices.output, &square).into_iter().enumerate() {
            let (y, x) = (y + k / tile, x + k % tile);
            if y < height && x < width {
                let value = match quotient {
                    Some(quotient) => f64::from(quotient.of(value as i64 as i32)),
                    None => value,
                };
                lane.put(&mut data, ((n * height + y) * width + x) * c + channel, value);
            }
        }
    }
    Ok(cast(&Tensor::new(DType::F64, shape.to_vec(), Bytes::from(data)), m.dtype, true))
}
