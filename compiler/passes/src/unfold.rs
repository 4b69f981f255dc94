//! Constants that would take the compiler too long to evaluate, as nodes that the run computes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::constants::data_bytes;
use crate::{Options, pack};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Constant, DType, Def, Graph, Node, Op, OriginId, TensorType, Value, ValueId};
use onnxc_ir::interp::{self, Budget};

/// Products among them are packed, as those of the run are.
pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    // Twice what `constants` may spend: most of it is spent on what that pass made.
    let mut budget = Budget::for_data(data_bytes(graph).saturating_mul(2));
    match unfold_within(graph, &mut budget) {
        true => pack::run(graph, options),
        false => Ok(()),
    }
}

/// Gives whether a product is among the new nodes.
fn unfold_within(graph: &mut Graph, budget: &mut Budget) -> bool {
    let mut checked: HashSet<ValueId> = HashSet::new();
    let mut nodes: HashMap<ValueId, ValueId> = HashMap::new();
    let old = std::mem::take(&mut graph.order);
    let mut replace = |graph: &mut Graph, value: ValueId, origin: OriginId| {
        let is_new = graph.is_constant(value) && checked.insert(value);
        if is_new && let Some(dear) = too_dear(graph, value, &nodes, budget) {
            dear.into_iter().for_each(|constant| as_node(graph, constant, origin, &mut nodes));
        }
        *nodes.get(&value).unwrap_or(&value)
    };
    for &id in &old {
        for at in 0..graph.nodes[id].inputs.len() {
            let (value, origin) = (graph.nodes[id].inputs[at], graph.nodes[id].origin);
            graph.nodes[id].inputs[at] = replace(graph, value, origin);
        }
        graph.order.push(id);
    }
    for at in 0..graph.outputs.len() {
        graph.outputs[at].1 = replace(graph, graph.outputs[at].1, OriginId::from_u32(0));
    }
    let is_product = |value: &ValueId| {
        graph.producer(*value).is_some_and(|node| matches!(graph.nodes[node].op, Op::Contract { .. }))
    };
    let mut multiplies = nodes.values().any(is_product);
    for id in old {
        for body in graph.nodes[id].op.bodies_mut() {
            multiplies |= unfold_within(body, budget);
        }
    }
    multiplies
}

/// The deferred constants behind one that the budget has no work for, or that reads one which is a node by now, each after
/// those it reads. `None` where the budget serves it, or what computes it has no machine code.
fn too_dear(
    graph: &Graph,
    value: ValueId,
    nodes: &HashMap<ValueId, ValueId>,
    budget: &mut Budget,
) -> Option<Vec<ValueId>> {
    let (mut order, mut seen, mut reads_node, mut work) = (vec![], HashSet::new(), false, 0u64);
    // (value, whether what it reads is already in the order)
    let mut open = vec![(value, false)];
    while let Some((at, ready)) = open.pop() {
        let Def::Const(Constant::Deferred { op, inputs }) = &graph.values[at].def else { continue };
        if ready {
            order.push(at);
        } else if nodes.contains_key(&at) {
            reads_node = true;
        } else if seen.insert(at) {
            let types: Vec<&TensorType> = inputs.iter().map(|&input| graph.ty(input)).collect();
            let own = interp::work(op, &types, &[graph.ty(at)]).unwrap_or(u64::MAX);
            work = work.saturating_add(own).saturating_add(1);
            open.push((at, true));
            open.extend(inputs.iter().map(|&input| (input, false)));
        }
    }
    let interpreted =
        |&value: &ValueId| matches!(graph.ty(value).dtype, DType::Str | DType::C64 | DType::C128);
    ((reads_node || !budget.spend(work)) && !order.iter().any(interpreted)).then_some(order)
}

/// A node that computes what a deferred constant is.
fn as_node(graph: &mut Graph, constant: ValueId, origin: OriginId, nodes: &mut HashMap<ValueId, ValueId>) {
    if nodes.contains_key(&constant) {
        return;
    }
    let Value { name, ty, def: Def::Const(Constant::Deferred { op, inputs }), known } =
        graph.values[constant].clone()
    else {
        return;
    };
    let node = graph.nodes.next_key();
    let output = graph.values.push(Value { name, ty, def: Def::Node(node, 0), known });
    let inputs = inputs.iter().map(|input| *nodes.get(input).unwrap_or(input)).collect();
    let op = Arc::unwrap_or_clone(op);
    graph.nodes.push(Node { op, inputs, outputs: vec![output], origin });
    graph.order.push(node);
    nodes.insert(constant, output);
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{Dim, MapFn, RhsLayout, Tensor};
    use onnxc_ir::scalar::{BinaryFn, UnaryFn};
    use onnxc_ir::verify::verify;

    fn empty() -> (Graph, OriginId) {
        let mut graph = Graph::default();
        let origin = onnxc_ir::graph::Origin::new("o", "Op", 0);
        let origin = graph.origins.push(origin);
        (graph, origin)
    }

    #[test]
    fn what_would_take_too_long_is_left_to_the_run() {
        let (mut graph, origin) = empty();
        let mut b = Builder::new(&mut graph, origin);
        let mut product = b.constant(Tensor::from_slice(&[256, 256], &[0.5f32; 1 << 16]));
        let first = product;
        for _ in 0..40 {
            product = b.matmul(product, first).unwrap();
        }
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(256usize)]), None);
        let y = b.binary(BinaryFn::Add, x, product).unwrap();
        let small = b.unary(UnaryFn::Neg, first).unwrap();
        graph.outputs = vec![("y".into(), y), ("z".into(), small), ("p".into(), product)];
        assert_eq!(graph.order.len(), 1, "all but the sum is deferred");
        run(&mut graph, &Options::default()).unwrap();
        assert_eq!(verify(&graph), Ok(()));
        let count =
            |wanted: fn(&Op) -> bool| graph.order.iter().filter(|&&id| wanted(&graph.nodes[id].op)).count();
        // Kernels read panels.
        let packed = |op: &Op| matches!(op, Op::Contract { rhs: RhsLayout::Panels { .. }, .. });
        assert_eq!((count(packed), count(|op| matches!(op, Op::Map(MapFn::Unary(_))))), (40, 0));
    }

    /// Its work is that of one row, however large the matrix is.
    #[test]
    fn the_product_of_a_row_is_affordable() {
        let (mut graph, origin) = empty();
        let mut b = Builder::new(&mut graph, origin);
        let size = 1024usize;
        let matrix = b.constant(Tensor::from_slice(&[size, size], &vec![0.5f32; size * size]));
        let row = b.constant(Tensor::from_slice(&[1, size], &vec![2.0f32; size]));
        let product = b.matmul(row, matrix).unwrap();
        let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(size)]), None);
        let y = b.binary(BinaryFn::Add, x, product).unwrap();
        graph.outputs = vec![("y".into(), y)];
        run(&mut graph, &Options::default()).unwrap();
        assert_eq!(graph.order.len(), 1, "{graph}");
    }
}
