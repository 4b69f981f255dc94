//! Work of nodes and groups, for those who want to know: operations and bytes.

use crate::Group;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Graph, MapFn, NodeId, Op, ValueId};

/// Operations of a node without its bodies: two per multiply-add of a contraction, one per element of a reduction's operand and
/// of a float map's result; of other nodes none.
pub fn flops(graph: &Graph, node: NodeId) -> Dim {
    let node = &graph.nodes[node];
    let elements = |value: ValueId| graph.ty(value).elements();
    let (Some(&output), first) = (node.outputs.first(), node.inputs.first()) else { return Dim::ZERO };
    let is_float = graph.ty(output).dtype.is_float();
    match (&node.op, first) {
        (Op::Contract { batch, m, k, .. }, Some(&a)) => {
            let inner = &graph.ty(a).shape[batch + m..batch + m + k];
            elements(output) * product(inner) * Dim::from(2usize)
        }
        (Op::Reduce { .. }, Some(&x)) if is_float => elements(x),
        (Op::Map(MapFn::Unary(_) | MapFn::Binary(_)), _) if is_float => elements(output),
        _ => Dim::ZERO,
    }
}

impl Group {
    /// Operations of its kernel; see [`flops`].
    pub fn flops(&self, graph: &Graph) -> Dim {
        self.nodes.iter().fold(Dim::ZERO, |sum, &node| sum + flops(graph, node))
    }

    /// Bytes that its kernel reads and writes at the least: each of its operands and results once, but an operand that is only gathered
    /// from counts the bytes of the result.
    pub fn bytes(&self, graph: &Graph) -> Dim {
        let bytes = |value: ValueId| graph.ty(value).bytes();
        let gathered = |value: ValueId| {
            let mut readers = self.nodes.iter().filter(|&&node| graph.nodes[node].inputs.contains(&value));
            let first = readers.next().map(|&node| &graph.nodes[node])?;
            let only = readers.next().is_none() && first.inputs.first() == Some(&value);
            (only && matches!(first.op, Op::Gather { .. })).then(|| first.outputs[0])
        };
        let read = self.inputs.iter().map(|&value| bytes(gathered(value).unwrap_or(value)));
        read.chain(self.outputs.iter().map(|&value| bytes(value))).fold(Dim::ZERO, |sum, bytes| sum + bytes)
    }

    /// The ONNX operators that it computes, in their order, without those that follow one of the same.
    pub fn operators(&self, graph: &Graph) -> Vec<String> {
        let mut seen = vec![];
        let mut operators = vec![];
        for &node in &self.nodes {
            let origin = graph.nodes[node].origin;
            if !seen.contains(&origin) {
                seen.push(origin);
                operators.push(graph.origins[origin].op_type.clone());
            }
        }
        operators.dedup();
        operators
    }
}
