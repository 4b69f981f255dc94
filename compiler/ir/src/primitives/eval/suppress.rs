//! `Suppress`: each candidate against every box kept before.

use bytes::Bytes;

use super::internal;
use super::movement::zeroed;
use crate::error::Result;
use crate::graph::{DType, Tensor};

/// `shape`: that of the result; the last axis is how many boxes are kept at most. Inference has checked the operands.
pub(in crate::primitives) fn suppress(inputs: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let Some((&take, rows)) = shape.split_last() else { return internal("picks without an axis".into()) };
    let rows: usize = rows.iter().product();
    let mut data = zeroed(DType::I64, shape)?;
    let ends: Vec<Vec<f32>> = inputs[..4].iter().map(|tensor| floats(tensor)).collect();
    let limit = floats(inputs[5])[0];
    let candidates = inputs[4].shape.last().copied().unwrap_or(0);
    for row in 0..rows {
        let mut kept: Vec<usize> = Vec::new();
        let base = row * candidates;
        let ends_of = |at: usize| [0, 1, 2, 3].map(|end| ends[end][base + at]);
        for at in (0..candidates).filter(|at| inputs[4].data[base + at] != 0) {
            if kept.len() < take && !kept.iter().any(|&other| overlap(ends_of(other), ends_of(at), limit)) {
                kept.push(at);
            }
        }
        let picks = kept.iter().map(|&at| at as i64).chain(std::iter::repeat(-1));
        for (element, pick) in data[row * take * 8..(row + 1) * take * 8].chunks_exact_mut(8).zip(picks) {
            element.copy_from_slice(&pick.to_le_bytes());
        }
    }
    Ok(Tensor::new(DType::I64, shape.to_vec(), Bytes::from(data)))
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor
        .data
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect()
}

/// Whether two boxes share more than `limit` of the area that they cover together.
fn overlap(a: [f32; 4], b: [f32; 4], limit: f32) -> bool {
    let area = |ends: [f32; 4]| (ends[1] - ends[0]) * (ends[3] - ends[2]);
    let shared = |axis: usize| (a[axis + 1].min(b[axis + 1]) - a[axis].max(b[axis])).max(0.0);
    let common = shared(0) * shared(2);
    let union = area(a) + area(b) - common;
    [common, area(a), area(b), union].into_iter().all(|size| size > 0.0) && common / union > limit
}
