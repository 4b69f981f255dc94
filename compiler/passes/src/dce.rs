//! Dead code: nodes that no output needs leave the order, and control flow loses the results, scanned inputs and
//! captures that nothing reads. The states of a loop stay.

use std::collections::HashSet;

use crate::Options;
use crate::rewrite::{Uses, bodies};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Def, Graph, NodeId, Op, ValueId};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    sweep(graph);
    // Counted once until something goes: models have hundreds of loops.
    let mut uses = None;
    for id in graph.order.clone() {
        if !graph.nodes[id].op.is_control() {
            continue;
        }
        let known = uses.get_or_insert_with(|| graph.use_counts());
        if prune_outputs(graph, id, known) {
            uses = None;
        }
    }
    bodies(graph, options, run)?;
    for id in graph.order.clone() {
        prune_inputs(graph, id);
    }
    // An operand that no body reads any more may have been the last use of its producer.
    sweep(graph);
    Ok(())
}

/// Keeps the nodes that outputs depend on, in their order.
pub(crate) fn sweep(graph: &mut Graph) {
    graph.order = needed(graph);
}

/// The nodes that outputs depend on, in their order.
pub(crate) fn needed(graph: &Graph) -> Vec<NodeId> {
    let mut live: HashSet<ValueId> = graph.outputs.iter().map(|output| output.1).collect();
    live.extend(graph.output_needs());
    let mut order = graph.order.clone();
    order.reverse();
    order.retain(|&id| {
        let node = &graph.nodes[id];
        let needed = node.outputs.iter().any(|output| live.contains(output));
        if needed {
            live.extend(node.inputs.iter().copied());
            live.extend(graph.needs(id));
        }
        needed
    });
    order.reverse();
    order
}

/// Drops stacked outputs of a scan, and results of a choice, that nothing uses; gives whether there were any.
fn prune_outputs(graph: &mut Graph, id: NodeId, uses: &Uses) -> bool {
    let node = &mut graph.nodes[id];
    let before = node.outputs.len();
    let first = match &node.op {
        Op::Scan { states, .. } => *states,
        _ => 0,
    };
    for at in (first..node.outputs.len()).rev().filter(|&at| uses[node.outputs[at]] == 0).collect::<Vec<_>>()
    {
        node.outputs.remove(at);
        node.op.bodies_mut().iter_mut().for_each(|body| drop(body.outputs.remove(at)));
        let shapes = match &mut node.op {
            Op::Scan { states, scans, reverse, shapes, .. } => {
                reverse.remove(*scans + at - *states);
                shapes
            }
            Op::If { shapes, .. } => shapes,
            _ => return true,
        };
        let later = shapes.split_off(&at);
        shapes.extend(
            later.into_iter().filter(|&(number, _)| number > at).map(|(number, dims)| (number - 1, dims)),
        );
    }
    let is_shorter = node.outputs.len() < before;
    for (at, &output) in node.outputs.iter().enumerate() {
        graph.values[output].def = Def::Node(id, at);
    }
    is_shorter
}

/// Drops scanned inputs and captures that no body reads.
fn prune_inputs(graph: &mut Graph, id: NodeId) {
    let node = &mut graph.nodes[id];
    // The first input that may go, and by how much a body's input has a lower number.
    let (first, before) = match &node.op {
        Op::Scan { states, .. } => (*states, 0),
        Op::If { .. } => (1, 1),
        _ => return,
    };
    let uses: Vec<_> = node.op.bodies().iter().map(Graph::use_counts).collect();
    for at in (first..node.inputs.len()).rev() {
        let inputs = node.op.bodies().iter().map(|body| body.inputs[at - before].value);
        if uses.iter().zip(inputs).any(|(uses, value)| uses[value] > 0) {
            continue;
        }
        if let Op::Scan { states, scans, reverse, .. } = &mut node.op
            && at < *states + *scans
        {
            reverse.remove(at - *states);
            *scans -= 1;
        }
        node.inputs.remove(at);
        node.op.bodies_mut().iter_mut().for_each(|body| drop(body.inputs.remove(at - before)));
    }
    for body in node.op.bodies_mut() {
        for at in 0..body.inputs.len() {
            let value = body.inputs[at].value;
            body.values[value].def = Def::Input(at);
        }
    }
}
