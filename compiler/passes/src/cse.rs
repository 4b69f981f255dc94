//! Common subexpressions: nodes with equal operations and operands, and constants with equal data, become
//! one. Operands of commutative functions compare in any order. Of floats, the greater and the lesser do not commute: of +0 and -0,
//! which are equal, either may be given.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Options;
use crate::rewrite::{bodies, inherit, replace_operands, replace_results};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Constant, Def, Graph, MapFn, Node, NodeId, Op, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let mut same = merge_constants(graph);
    let mut seen: HashMap<(&'static str, Vec<ValueId>), Vec<NodeId>> = HashMap::new();
    for id in std::mem::take(&mut graph.order) {
        replace_operands(&mut graph.nodes[id], &same);
        let node = &graph.nodes[id];
        // Bodies are rarely equal, and comparing them is dear.
        if !node.op.is_hosted() {
            let mut inputs = node.inputs.clone();
            if is_commutative(graph, node) {
                inputs.sort_unstable();
            }
            let bucket = seen.entry((node.op.name(), inputs)).or_default();
            if let Some(&twin) = bucket.iter().find(|&&twin| is_twin(graph, twin, id)) {
                for at in 0..graph.nodes[id].outputs.len() {
                    let (old, new) = (graph.nodes[id].outputs[at], graph.nodes[twin].outputs[at]);
                    inherit(graph, old, new);
                    same.insert(old, new);
                }
                continue;
            }
            bucket.push(id);
        }
        graph.order.push(id);
    }
    replace_results(graph, &same);
    bodies(graph, options, run)
}

fn is_twin(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let (a, b) = (&graph.nodes[a], &graph.nodes[b]);
    let types =
        |node: &Node| -> Vec<_> { node.outputs.iter().map(|&output| graph.ty(output).clone()).collect() };
    a.op == b.op && types(a) == types(b)
}

fn is_commutative(graph: &Graph, node: &Node) -> bool {
    use BinaryFn::*;
    match &node.op {
        Op::Map(MapFn::Binary(Max | Min)) => !graph.ty(node.inputs[0]).dtype.is_float(),
        Op::Map(MapFn::Binary(function)) => {
            matches!(function, Add | Mul | And | Or | Xor | BitAnd | BitOr | BitXor)
        }
        Op::Map(MapFn::Compare(function)) => matches!(function, CompareFn::Eq | CompareFn::Ne),
        _ => false,
    }
}

/// Maps each constant that live nodes use to the first one with the same data.
fn merge_constants(graph: &Graph) -> HashMap<ValueId, ValueId> {
    let mut used: Vec<ValueId> =
        graph.order.iter().flat_map(|&id| graph.nodes[id].inputs.iter().copied()).collect();
    used.extend(graph.outputs.iter().map(|output| output.1));
    used.retain(|&value| graph.is_constant(value));
    // A deferred constant comes after its operands: their ids are smaller.
    used.sort_unstable();
    used.dedup();
    let mut seen: HashMap<u64, Vec<ValueId>> = HashMap::new();
    let mut same = HashMap::new();
    for value in used {
        let Def::Const(constant) = &graph.values[value].def else { continue };
        let bucket = seen.entry(fingerprint(constant)).or_default();
        match bucket.iter().find(|&&twin| is_equal_constant(graph, twin, value)) {
            Some(&twin) => {
                same.insert(value, twin);
            }
            None => bucket.push(value),
        }
    }
    same
}

fn is_equal_constant(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    graph.ty(a) == graph.ty(b) && graph.values[a].def == graph.values[b].def
}

/// A hash of a constant that reads a bounded part of its data.
fn fingerprint(constant: &Constant) -> u64 {
    let mut hasher = DefaultHasher::new();
    match constant {
        Constant::Data(tensor) => sample(tensor, &mut hasher),
        Constant::Deferred { op, inputs } => (op.name(), inputs).hash(&mut hasher),
        Constant::Apart(weight) => weight.number.hash(&mut hasher),
    }
    hasher.finish()
}

fn sample(tensor: &Tensor, hasher: &mut impl Hasher) {
    const CHUNK: usize = 64;
    (tensor.dtype, &tensor.shape).hash(hasher);
    let data = &tensor.data[..];
    let stride = (data.len() / 64).max(CHUNK);
    for start in (0..data.len()).step_by(stride) {
        data[start..data.len().min(start + CHUNK)].hash(hasher);
    }
}
