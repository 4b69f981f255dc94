//! Weights of sums of small integers, where kernels multiply integers of 16 bits: these are stored in as many.
//!
//! A sum over a map multiplication is one of i32, whose operands are widened: what it reads of bytes by a conversion that its
//! kernel does, and constants by one that was done when they were computed. Here these become integers of 16 bits, which the
//! kernel takes as they are: bytes would be widened again for each tile.

use crate::error::Result;
use crate::graph::{Builder, DType, Graph, MapFn, NodeId, Op, ValueId};
use crate::pass::Options;
use crate::pass::integers::{LOOKS, Range, range};
use crate::pass::rewrite::{bodies, operation, rewrite, sum_of_products};
use crate::scalar::BinaryFn;

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if !options.pack.half_products {
        return Ok(());
    }
    rewrite(graph, narrowed)?;
    bodies(graph, options, run)
}

fn narrowed(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let Some(([x, weights], _)) = sum_of_products(b.graph, node) else { return Ok(None) };
    let (sum, inputs) = (node.op.clone(), [x, weights]);
    if b.dtype(x) != DType::I32 {
        return Ok(None);
    }
    let is_constant = inputs.map(|input| b.graph.is_constant(input));
    let (x, weights) = match is_constant {
        [false, true] => (x, weights),
        [true, false] => (weights, x),
        _ => return Ok(None),
    };
    let is_small = |b: &Builder, value| match operation(b.graph, value) {
        Some((Op::Map(MapFn::Cast { .. }), &[bytes])) => matches!(b.dtype(bytes), DType::I8 | DType::U8),
        _ => false,
    };
    let Some(known) = range(b.graph, weights, &mut { LOOKS }) else { return Ok(None) };
    let fits = Range::of(DType::I16).is_some_and(|all| all.or(known) == all);
    if !fits || !is_small(b, x) {
        return Ok(None);
    }
    let narrow = b.cast(weights, DType::I16)?;
    let wide = b.unfolded(Op::Map(MapFn::Cast { to: DType::I32, saturate: true }), narrow)?;
    let product = b.binary(BinaryFn::Mul, x, wide)?;
    b.emit1(sum, &[product]).map(Some)
}
