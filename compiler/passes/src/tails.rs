//! Zeros for the subnormal numbers of a softmax. A mask of -100 leaves `e^-100` behind, which is one, and a product with such an operand
//! takes a hundred times as long on Intel's processors. Beside the 1 of the maximum it is lost in every sum, so that where only
//! products read the softmax, it may as well be 0; `--exact` keeps it.
//!
//! Such a softmax multiplies by the inverse of the sum as well: one division for a row, where a division of a vector takes as long as all
//! that its exponentials take.

use std::collections::{HashMap, HashSet};

use crate::Options;
use crate::rewrite::{Readers, bodies, producer, readers, rewrite, softmax, splat};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, MapFn, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// Operations between a softmax and the products, at most.
const MOST: usize = 32;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact {
        return Ok(());
    }
    let readers = readers(graph);
    let found: HashMap<ValueId, ValueId> = (graph.order.iter())
        .filter_map(|&id| {
            let &[result] = &graph.nodes[id].outputs[..] else { return None };
            let (exp, sum) = softmax(graph, result)?;
            // Read by the sum and the quotient.
            let fits = graph.ty(exp).dtype == DType::F32 && readers[exp].len() == 2;
            (fits && producer(graph, sum).is_some() && only_products_read(graph, &readers, result))
                .then_some((exp, result))
        })
        .collect();
    if !found.is_empty() {
        let results: HashSet<ValueId> = found.values().copied().collect();
        rewrite(graph, |b, id| match (&b.graph.nodes[id].outputs[..], &b.graph.nodes[id].inputs[..]) {
            (&[exp], &[shifted]) if found.contains_key(&exp) => b.unary(UnaryFn::Decay, shifted).map(Some),
            (&[result], &[exp, sum]) if results.contains(&result) => {
                let inverse = b.unary(UnaryFn::Recip, sum)?;
                b.binary(BinaryFn::Mul, exp, inverse).map(Some)
            }
            _ => Ok(None),
        })?;
    }
    bodies(graph, options, run)
}

/// Whether a value, moved, scaled or selected, is only an operand of products.
fn only_products_read(graph: &Graph, readers: &Readers, result: ValueId) -> bool {
    let (mut values, mut at, mut products) = (vec![result], 0, false);
    while let Some(&value) = values.get(at) {
        at += 1;
        for &place in &readers[value] {
            let node = &graph.nodes[graph.order[place]];
            match &node.op {
                Op::Contract { .. } => products = true,
                Op::Map(
                    MapFn::Select
                    | MapFn::Cast { .. }
                    | MapFn::Binary(BinaryFn::Mul)
                    | MapFn::Unary(UnaryFn::IsNan),
                ) => values.extend(&node.outputs),
                Op::Pad { .. } if splat(graph, node.inputs[1]) == Some(0.0) => values.extend(&node.outputs),
                op if op.is_view() => values.extend(&node.outputs),
                _ => return false,
            }
        }
        if at > MOST {
            return false;
        }
    }
    let is_output = |value: &ValueId| {
        graph.outputs.iter().any(|output| output.1 == *value)
            || graph.data.values().any(|own| own.value == *value)
    };
    products && !values.iter().any(is_output)
}
