//! How far the value that is rounded to an integer may be from the one that the model's own formula gives.
//!
//! Scales that are joined save operations: of `round(fl(fl(q * s) + fl(p * t)) / u)` remains `round(q * fl(s/u) + p * fl(t/u))`. Either
//! form rounds a few times; a value of magnitude `m`, counted in steps of the result, is off by at most [`ROUNDINGS`] `* 2^-24 * m` steps
//! from the exact one. What exceeds the result's type is clamped, so that `m` is at most the number of its steps, and that of a term
//! besides at most as much as the others can take away again. Where the error is small against a step, only a value next to a tie is
//! rounded to the other integer, one step away: of 8 bits one in some thousands. Of 16 bits it would be one in a hundred, and what reads
//! them in finer steps multiplies the difference; there the model's formula stays as it is.

use std::collections::HashMap;

use crate::integers::Range;
use crate::rewrite::operation;
use onnxc_ir::graph::{Graph, MapFn, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// Roundings that a value has in one of the forms and not in the other, at most: of two products of scales or a reciprocal, of a product
/// with an element, and of a sum.
const ROUNDINGS: f64 = 4.0;

/// The relative error of a rounding to f32.
const UNIT: f64 = 1.0 / (1u32 << 24) as f64;

/// Share of a step that the error may have.
pub(crate) const SHARE: f64 = 1.0 / 4096.0;

/// Operations between a rounding and the conversion to integers.
const MAX_STEPS: usize = 8;

/// Whether scales may be joined, terms being of at most this magnitude in steps of the result.
pub(crate) fn may_join(magnitude: f64) -> bool {
    ROUNDINGS * UNIT * magnitude <= SHARE
}

/// For each rounding whose result becomes integers of few bits, the number of steps between the least and the greatest of them.
pub(crate) struct Spans(HashMap<NodeId, f64>);

impl Spans {
    pub(crate) fn of(graph: &Graph) -> Spans {
        let mut spans = HashMap::new();
        for &id in &graph.order {
            let node = &graph.nodes[id];
            let (Op::Map(MapFn::Cast { to, .. }), Some(range)) =
                (&node.op, Range::of(graph.ty(node.outputs[0]).dtype))
            else {
                continue;
            };
            if let Some(round) = rounding(graph, node.inputs[0]).filter(|_| to.is_int()) {
                let span = (range.most - range.least) as f64;
                let known = spans.entry(round).or_insert(span);
                *known = span.max(*known);
            }
        }
        Spans(spans)
    }

    /// Whether what a rounding reads may be computed with joined scales.
    pub(crate) fn may_join(&self, round: NodeId) -> bool {
        self.0.get(&round).is_some_and(|&span| may_join(span))
    }
}

/// The rounding behind the zero point and the limits of a quantization.
fn rounding(graph: &Graph, mut value: ValueId) -> Option<NodeId> {
    for _ in 0..MAX_STEPS {
        let id = graph.producer(value)?;
        match operation(graph, value)? {
            (Op::Map(MapFn::Unary(UnaryFn::Round)), _) => return Some(id),
            (Op::Map(MapFn::Binary(BinaryFn::Add | BinaryFn::Min | BinaryFn::Max)), inputs) => {
                value = inputs[0]
            }
            (op, inputs) if op.is_view() => value = inputs[0],
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests;
