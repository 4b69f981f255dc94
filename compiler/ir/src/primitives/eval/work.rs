//! What it costs to evaluate operations, estimated from their types alone: constants are evaluated by the compiler as long as
//! that takes seconds. What costs more is left to the run.

use crate::graph::{Graph, Op, TensorType};

/// Work that every model may cause: about a second.
const BASE: u64 = 1 << 28;

/// More work for each byte of the model's constants, which are converted, transposed, transformed and packed.
const PER_BYTE: u64 = 64;

/// Evaluation of one node of a body, however small.
const PER_NODE: u64 = 256;

/// The work that may be spent on constants.
pub struct Budget {
    left: u64,
}

impl Budget {
    /// For a model with `bytes` bytes of constant data.
    pub fn for_data(bytes: u64) -> Budget {
        Budget { left: bytes.saturating_mul(PER_BYTE).saturating_add(BASE) }
    }

    /// Takes `work` away; `false`, and nothing is taken, where not so much is left.
    pub fn spend(&mut self, work: u64) -> bool {
        match self.left.checked_sub(work) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// Elements that `op` reads, computes or moves, each a few nanoseconds; `None` where a size is symbolic
/// or the runtime is called.
pub fn work(op: &Op, inputs: &[&TensorType], results: &[&TensorType]) -> Option<u64> {
    let total = |types: &[&TensorType]| {
        types.iter().try_fold(0u64, |sum, ty| Some(sum.saturating_add(elements(ty)?)))
    };
    let (read, written) = (total(inputs)?, total(results)?);
    let both = read.saturating_add(written);
    Some(match op {
        Op::Map(_) => written.saturating_mul(1 + inputs.len() as u64),
        Op::Contract { batch, m, .. } => {
            let shape = inputs[0].static_shape()?;
            let inner = shape[batch + m..].iter().map(|&size| size as u64).fold(1, u64::saturating_mul);
            both.saturating_add(written.saturating_mul(inner))
        }
        Op::WinogradInput { tile } | Op::WinogradFilter { tile } | Op::WinogradOutput { tile, .. } => {
            both.saturating_mul(2 * (*tile as u64 + 2))
        }
        Op::Sort { .. } => both.saturating_mul(1 + u64::from(read.max(1).ilog2())),
        // Each candidate against all that are kept, at worst.
        Op::Suppress { .. } => {
            let shape = results[0].static_shape()?;
            let take = shape.last().map_or(1, |&take| take as u64);
            both.saturating_add(elements(inputs[0])?.saturating_mul(take))
        }
        // Each tree to a depth that it may have.
        Op::Leaves(_) => both.saturating_add(written.saturating_mul(64)),
        Op::Scan { body, trip, .. } => {
            let turns = u64::try_from(trip.as_const()?).ok()?;
            both.saturating_add(turns.saturating_mul(of_body(body)?))
        }
        // Texts that it makes are numbers of the table of a run.
        Op::Call(_) | Op::External(_) | Op::Exchange(_) => return None,
        Op::If { bodies, .. } => both.saturating_add(of_body(&bodies[0])?.max(of_body(&bodies[1])?)),
        // Of the operand these read no more than they give.
        Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => written,
        op if op.is_view() => written,
        _ => both,
    })
}

fn of_body(body: &Graph) -> Option<u64> {
    body.order.iter().try_fold(PER_NODE, |sum, &id| {
        let node = &body.nodes[id];
        let types = |values: &[crate::graph::ValueId]| -> Vec<&TensorType> {
            values.iter().map(|&value| body.ty(value)).collect()
        };
        let own = work(&node.op, &types(&node.inputs), &types(&node.outputs))?;
        Some(sum.saturating_add(own).saturating_add(PER_NODE))
    })
}

fn elements(ty: &TensorType) -> Option<u64> {
    Some(ty.static_shape()?.into_iter().fold(1u64, |product, size| product.saturating_mul(size as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, Dim, RhsLayout};

    fn ty(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape.iter().map(|&size| Dim::from(size)).collect())
    }

    #[test]
    fn products_cost_their_inner_size() {
        let product = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
        let [a, b, y] = [ty(&[3, 50]), ty(&[50, 7]), ty(&[3, 7])];
        assert_eq!(work(&product, &[&a, &b], &[&y]), Some(150 + 350 + 21 + 3 * 7 * 50));
        let huge = ty(&[usize::MAX / 2, usize::MAX / 2]);
        assert_eq!(work(&Op::Reshape { shape: vec![] }, &[&huge], &[&huge]), Some(u64::MAX));
        let mut budget = Budget::for_data(1);
        assert!(!budget.spend(BASE + PER_BYTE + 1) && budget.spend(BASE) && budget.spend(PER_BYTE));
        assert!(!budget.spend(1));
    }
}
