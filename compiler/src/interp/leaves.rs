//! `Leaves`: each row through each tree, a node at a time.

use super::internal;
use super::lane::Lane;
use crate::error::Result;
use crate::graph::Tensor;

/// `shape`: that of the result. Inference has checked the operands' types.
pub fn leaves(inputs: &[&Tensor], two_sided: bool, shape: &[usize]) -> Result<Tensor> {
    let floats = |at: usize| match Lane::f64(inputs[at].dtype) {
        Some(lane) => Ok(lane.read(inputs[at]).collect::<Vec<f64>>()),
        None => internal(format!("rows of {}", inputs[at].dtype)),
    };
    let places = |at: usize| match inputs[at].to_i64s() {
        Some(numbers) => Ok(numbers.into_iter().map(|number| number as usize).collect::<Vec<_>>()),
        None => internal(format!("nodes of {}", inputs[at].dtype)),
    };
    let (x, high) = (floats(0)?, floats(5)?);
    let low = if two_sided { Some(floats(6)?) } else { None };
    let (roots, levels, features, next) = (places(1)?, places(2)?, places(3)?, places(4)?);
    let columns = inputs[0].shape[1];
    let mut reached = Vec::with_capacity(shape.iter().product());
    for row in 0..inputs[0].shape[0] {
        for (&root, &levels) in roots.iter().zip(&levels) {
            let mut node = root;
            for _ in 0..levels {
                let Some(&feature) = features.get(node).filter(|&&feature| feature < columns) else {
                    return internal(format!("node {node} of {} trees", roots.len()));
                };
                let value = x[row * columns + feature];
                let inside = value <= high[node] && low.as_ref().is_none_or(|low| value >= low[node]);
                node = next[2 * node + usize::from(!inside)];
            }
            reached.push(node as i32);
        }
    }
    Ok(Tensor::from_slice(shape, &reached))
}
