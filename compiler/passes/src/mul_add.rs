//! Products that something is added to, in one operation, where the sum is rounded to an integer.
//!
//! Values are quantized so: what a contraction adds up is scaled, and a bias added. Processors multiply and add at once with one
//! rounding, which is nearer to the exact sum, and only the rounded integer is kept. Elsewhere a product is rounded as the model has
//! it, with the results of other engines bit for bit; so is that of an integer of more than 8 bits (`steps`).

use crate::Options;
use crate::rewrite::{bodies, operation, reshaped, rewrite, splat};
use crate::steps::Spans;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, MapFn, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact {
        return Ok(());
    }
    let spans = Spans::of(graph);
    rewrite(graph, |b, id| {
        let node = &b.graph.nodes[id];
        if node.op != Op::Map(MapFn::Unary(UnaryFn::Round)) || b.dtype(node.outputs[0]) != DType::F32 {
            return Ok(None);
        }
        if !spans.may_join(id) {
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
        // The zero point of either operand is in what both add.
        let (bytes, shift) = match (difference(b, x), splat(b.graph, factor)) {
            (Some((bytes, zero)), Some(scale)) => (bytes, -zero * scale),
            _ => (x, 0.0),
        };
        let addend = match dequantized(b, addend, shift)? {
            Some(sum) => {
                x = bytes;
                sum
            }
            None => addend,
        };
        let sum = b.emit1(Op::Map(MapFn::MulAdd), &[x, factor, addend])?;
        return b.unary(UnaryFn::Round, sum).map(Some);
    }
    Ok(None)
}

/// `(x - zero) * scale` of bytes as `x * scale - zero * scale`, one operation, and `shift` added to it. Bytes are so small that the
/// rounding error of what is added is no greater than that of the first form.
fn dequantized(b: &mut Builder, value: ValueId, shift: f64) -> Result<Option<ValueId>> {
    let Some((Op::Map(MapFn::Binary(BinaryFn::Mul)), &[x, scale])) = operation(b.graph, value) else {
        return Ok(None);
    };
    let (Some((x, zero)), Some(scale)) = (difference(b, x), splat(b.graph, scale)) else { return Ok(None) };
    if b.shape(x) != b.shape(value) {
        return Ok(None);
    }
    let [scale, offset] = [scale, shift - zero * scale].map(|number| b.scalar(DType::F32, number));
    b.emit1(Op::Map(MapFn::MulAdd), &[x, scale, offset]).map(Some)
}

/// Bytes as floats, and the zero point that is subtracted from them.
fn difference(b: &Builder, value: ValueId) -> Option<(ValueId, f64)> {
    let (Op::Map(MapFn::Binary(BinaryFn::Sub)), &[x, zero]) = operation(b.graph, value)? else { return None };
    let (zero, (Op::Map(MapFn::Cast { .. }), &[bytes])) = (splat(b.graph, zero)?, operation(b.graph, x)?)
    else {
        return None;
    };
    let of_bytes = matches!(b.dtype(bytes), DType::U8 | DType::I8) && zero.abs() <= f64::from(u8::MAX);
    (of_bytes && b.shape(x) == b.shape(value)).then_some((x, zero))
}
