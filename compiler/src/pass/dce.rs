//! Dead code: nodes that no output needs leave the order, and scans lose the stacked outputs, scanned inputs
//! and captures that nothing reads.

use std::collections::HashSet;

use crate::error::Result;
use crate::graph::{Def, Graph, NodeId, Op, ValueId};
use crate::pass::Options;
use crate::pass::rewrite::scan_bodies;

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    sweep(graph);
    for id in graph.order.clone() {
        prune_outputs(graph, id);
    }
    scan_bodies(graph, options, run)?;
    for id in graph.order.clone() {
        prune_inputs(graph, id);
    }
    // An operand that no body reads any more may have been the last use of its producer.
    sweep(graph);
    Ok(())
}

/// Keeps the nodes that outputs depend on, in their order.
pub fn sweep(graph: &mut Graph) {
    let mut live: HashSet<ValueId> = graph.outputs.iter().map(|output| output.1).collect();
    let mut order = std::mem::take(&mut graph.order);
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
    graph.order = order;
}

/// Drops stacked outputs of a scan that nothing uses.
fn prune_outputs(graph: &mut Graph, id: NodeId) {
    if !matches!(graph.nodes[id].op, Op::Scan { .. }) {
        return;
    }
    let uses = graph.use_counts();
    let node = &mut graph.nodes[id];
    let Op::Scan { body, states, scans, reverse, .. } = &mut node.op else { return };
    for at in (*states..node.outputs.len()).rev() {
        if uses[node.outputs[at]] == 0 {
            node.outputs.remove(at);
            body.outputs.remove(at);
            reverse.remove(*scans + at - *states);
        }
    }
    for (at, &output) in node.outputs.iter().enumerate() {
        graph.values[output].def = Def::Node(id, at);
    }
}

/// Drops scanned inputs and captures that the body of a scan does not read.
fn prune_inputs(graph: &mut Graph, id: NodeId) {
    let node = &mut graph.nodes[id];
    let Op::Scan { body, states, scans, reverse, .. } = &mut node.op else { return };
    let uses = body.use_counts();
    for at in (*states..node.inputs.len()).rev() {
        if uses[body.inputs[at].value] > 0 {
            continue;
        }
        if at < *states + *scans {
            reverse.remove(at - *states);
            *scans -= 1;
        }
        node.inputs.remove(at);
        body.inputs.remove(at);
    }
    for at in 0..body.inputs.len() {
        let value = body.inputs[at].value;
        body.values[value].def = Def::Input(at);
    }
}
