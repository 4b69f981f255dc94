//! Weights of sums of small integers, in few bits.
//!
//! A sum over a map multiplication is one of i32 or of floats that hold every sum, whose operands are widened: what it reads of
//! bytes by a conversion that its kernel does, and constants by one that was done when they were computed. Where kernels multiply
//! integers of 16 bits, these are stored in 16 bits, which the kernel takes as they are: bytes would be widened again for each tile.
//! Elsewhere a conversion to floats is a small part of the tile that reads it, and the object has bytes in place of floats.

use crate::Options;
use crate::integers::{LOOKS, Range, range};
use crate::rewrite::{bodies, operation, rewrite, sum_of_products};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, MapFn, NodeId, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let (sums, stored): (DType, &[DType]) = match options.pack.half_products {
        true => (DType::I32, &[DType::I16]),
        false => (DType::F32, &[DType::I8, DType::I16]),
    };
    rewrite(graph, |b, id| narrowed(b, id, sums, stored))?;
    if options.pack.joined_bytes {
        rewrite(graph, |b, id| narrowed(b, id, DType::I32, &[DType::I8]))?;
    }
    bodies(graph, options, run)
}

/// The sum of a node over weights of the first type that holds them, if it is one of `sums` and `stored` has such a type.
fn narrowed(b: &mut Builder, id: NodeId, sums: DType, stored: &[DType]) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let Some(([x, weights], _)) = sum_of_products(b.graph, node) else { return Ok(None) };
    let sum = node.op.clone();
    if b.dtype(x) != sums {
        return Ok(None);
    }
    let (x, weights) = match [x, weights].map(|input| b.graph.is_constant(input)) {
        [false, true] => (x, weights),
        [true, false] => (weights, x),
        _ => return Ok(None),
    };
    let is_small = match operation(b.graph, x) {
        Some((Op::Map(MapFn::Cast { .. }), &[bytes])) => matches!(b.dtype(bytes), DType::I8 | DType::U8),
        _ => false,
    };
    let Some(known) = range(b.graph, weights, &mut { LOOKS }) else { return Ok(None) };
    let fits = |dtype: &DType| Range::of(*dtype).is_some_and(|all| all.or(known) == all);
    let Some(&stored) = stored.iter().find(|dtype| fits(dtype)).filter(|_| is_small) else {
        return Ok(None);
    };
    let narrow = b.cast(weights, stored)?;
    let wide = b.unfolded(Op::Map(MapFn::Cast { to: sums, saturate: true }), &[narrow])?;
    let product = b.binary(BinaryFn::Mul, x, wide)?;
    b.emit1(sum, &[product]).map(Some)
}
