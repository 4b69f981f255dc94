//! `Leaves`: each row through each tree, a node at a time.

use super::internal;
use super::lane::Lane;
use crate::error::Result;
use crate::graph::{Tensor, Trees};

fn floats(of: &Tensor) -> Result<Vec<f64>> {
    match Lane::f64(of.dtype) {
        Some(lane) => Ok(lane.read(of).collect()),
        None => internal(format!("rows or bounds of {}", of.dtype)),
    }
}

fn numbers(of: &Tensor) -> Result<Vec<usize>> {
    match of.to_i64s() {
        Some(numbers) => Ok(numbers.into_iter().map(|number| number as usize).collect()),
        None => internal(format!("nodes of {}", of.dtype)),
    }
}

/// The number of a category; see [`crate::graph::trees::Operands`].
fn category(x: f64, limit: usize) -> usize {
    match x {
        x if x.is_nan() => limit + 1,
        x if x >= 0.0 && x < limit as f64 && x.fract() == 0.0 => x as usize,
        _ => limit,
    }
}

/// `shape`: that of the result. Inference has checked the operands' types.
pub(in crate::primitives) fn leaves(inputs: &[&Tensor], trees: &Trees, shape: &[usize]) -> Result<Tensor> {
    let Some(operands) = trees.operands(inputs) else {
        return internal(format!("{} operands", inputs.len()));
    };
    let (x, lows) = (floats(operands.x)?, floats(operands.lows)?);
    let highs = operands.highs.map(floats).transpose()?;
    let starts = operands.starts.map(numbers).transpose()?;
    let (columns, limits) = (numbers(operands.columns)?, numbers(operands.limits)?);
    let (roots, levels, leaves) =
        (numbers(operands.roots)?, numbers(operands.levels)?, numbers(operands.leaves)?);
    let (places, next) = (numbers(operands.places)?, numbers(operands.next)?);
    let of_categories = columns.len() - limits.len();
    let mut reached = Vec::with_capacity(shape.iter().product());
    for row in x.chunks(operands.x.shape[1].max(1)).take(shape[0]) {
        // What steps compare, and the number of its category.
        let column = |at: usize| match columns[at] {
            feature if at < trees.plain => (row[feature], 0),
            feature if at < of_categories => (-row[feature], 0),
            feature => (0.0, category(row[feature], limits[at - of_categories])),
        };
        for (&root, &levels) in roots.iter().zip(&levels) {
            let mut node = root;
            for _ in 0..levels {
                let place = places[node];
                let (value, number) = if trees.copied { column(place) } else { (row[place], 0) };
                let bound = starts.as_ref().map_or(node, |starts| starts[node]) + number;
                let right = value >= lows[bound] && highs.as_ref().is_none_or(|highs| value <= highs[bound]);
                node = next[node] + usize::from(right);
            }
            reached.push(leaves[node] as i32);
        }
    }
    Ok(Tensor::from_slice(shape, &reached))
}
