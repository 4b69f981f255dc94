//! Powers with a known exponent as products, reciprocals and roots, which are faster and rounded better than a general power. At every
//! level, so that results have the same bits at each.
//!
//! `x^1`, `x^2` and `x^-1` are the exact power rounded once. `x^3`, of two products, and `x^-0.5`, the reciprocal of a root, are rounded
//! twice; floats of 16 bits once, from f32. `x^0.5` is a root only where `x` is known to be +0 or above: `(-inf)^0.5` is infinity and
//! `(-0)^0.5` is +0, where the roots are NaN and -0.

use crate::Options;
use crate::rewrite::{bodies, rewrite, splat};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::signs::are_clear;
use onnxc_ir::graph::{MapFn, Node, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

pub(crate) fn run(graph: &mut onnxc_ir::graph::Graph, options: &Options) -> Result<()> {
    rewrite(graph, power)?;
    bodies(graph, options, run)
}

fn power(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { op: Op::Map(MapFn::Binary(BinaryFn::Pow)), inputs, .. } = &b.graph.nodes[id] else {
        return Ok(None);
    };
    let (x, Some(exponent)) = (inputs[0], splat(b.graph, inputs[1])) else { return Ok(None) };
    let (dtype, is_float) = (b.dtype(x), b.dtype(x).is_float());
    let result = match exponent {
        1.0 => x,
        2.0 => b.binary(BinaryFn::Mul, x, x)?,
        3.0 => {
            let x = b.widened(x)?;
            let square = b.binary(BinaryFn::Mul, x, x)?;
            b.binary(BinaryFn::Mul, square, x)?
        }
        -1.0 if is_float => b.unary(UnaryFn::Recip, x)?,
        0.5 if is_float && are_clear(b.graph, x) => b.unary(UnaryFn::Sqrt, x)?,
        -0.5 if is_float && are_clear(b.graph, x) => {
            let x = b.widened(x)?;
            let root = b.unary(UnaryFn::Sqrt, x)?;
            b.unary(UnaryFn::Recip, root)?
        }
        _ => return Ok(None),
    };
    b.cast(result, dtype).map(Some)
}
