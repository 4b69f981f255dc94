//! Products that something is added to, in one operation, where the sum is rounded to an integer.
//!
//! Values are quantized so: what a contraction adds up is scaled, and a bias added. Processors multiply and add at once with one
//! rounding, which is nearer to the exact sum; of the sum only the integer is kept. Elsewhere a product is rounded as the model has
//! it, so that its results are those of other engines bit for bit.

use crate::error::Result;
use crate::graph::{Builder, DType, Graph, MapFn, NodeId, Op, ValueId};
use crate::pass::Options;
use crate::pass::rewrite::{bodies, operation, reshaped, rewrite, splat};
use crate::scalar::{BinaryFn, UnaryFn};

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact {
        return Ok(());
    }
    rewrite(graph, |b, id| {
        let node = &b.graph.nodes[id];
        if node.op != Op::Map(MapFn::Unary(UnaryFn::Round)) || b.dtype(node.outputs[0]) != DType::F32 {
            return Ok(None);
        }
        rounded(b, id)
    })?;
    bodies(graph, options, run)
}

fn rounded(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let sum = b.graph.nodes[id].inputs[0];
    let Some((Op::Map(MapFn::Binary(BinaryFn::Add)), &[left, right])) = operation(b.graph, sum) else {
        return Ok(None);
    };
    let shape = b.shape(sum);
    for (product, addend) in [(left, right), (right, left)] {
        let (mut at, mut is_reshaped) = (product, false);
        if let Some((Op::Reshape { .. }, &[x])) = operation(b.graph, at) {
            (at, is_reshaped) = (x, true);
        }
        let Some((Op::Map(MapFn::Binary(BinaryFn::Mul)), &[x, factor])) = operation(b.graph, at) else {
            continue;
        };
        let before = b.shape(at);
        if b.graph.is_constant(product) || b.shape(product) != shape || b.shape(x) != before {
            continue;
        }
        let (mut x, mut factor) = (x, factor);
        if is_reshaped {
            if !b.graph.is_constant(factor) {
                continue;
            }
            let Some(same) = reshaped(b, factor, &before, &shape)? else { continue };
            (x, factor) = (b.reshape(x, shape)?, same);
        }
        let addend = dequantized(b, addend)?.unwrap_or(addend);
        let sum = b.emit1(Op::Map(MapFn::MulAdd), &[x, factor, addend])?;
        return b.unary(UnaryFn::Round, sum).map(Some);
    }
    Ok(None)
}

/// `(x - zero) * scale` of bytes as `x * scale - zero * scale`, one operation. Bytes are so small that the second product's
/// rounding error is no greater than that of the first form.
fn dequantized(b: &mut Builder, value: ValueId) -> Result<Option<ValueId>> {
    let pair = |b: &Builder, value: ValueId, function: BinaryFn| match operation(b.graph, value) {
        Some((Op::Map(MapFn::Binary(own)), &[x, number])) if *own == function => {
            splat(b.graph, number).map(|number| (x, number))
        }
        _ => None,
    };
    let Some((difference, scale)) = pair(b, value, BinaryFn::Mul) else { return Ok(None) };
    let Some((x, zero)) = pair(b, difference, BinaryFn::Sub) else { return Ok(None) };
    let of_bytes = match operation(b.graph, x) {
        Some((Op::Map(MapFn::Cast { .. }), &[bytes])) => {
            matches!(b.dtype(bytes), DType::U8 | DType::I8)
        }
        _ => false,
    };
    if !of_bytes || zero.abs() > f64::from(u8::MAX) || b.shape(x) != b.shape(value) {
        return Ok(None);
    }
    let [scale, offset] = [scale, -zero * scale].map(|number| b.scalar(DType::F32, number));
    b.emit1(Op::Map(MapFn::MulAdd), &[x, scale, offset]).map(Some)
}
