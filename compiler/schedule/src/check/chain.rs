//! What a chain promises to lowering: its stages follow each other row by row, and nothing between them has a buffer.

use std::collections::BTreeSet;

use super::{fault, materialised};
use crate::{Blocks, Group, GroupId, GroupKind, Program, scratch};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Graph, NodeId, Op, ValueId};

/// Only chains have stages.
pub(super) fn check(graph: &Graph, program: &Program, id: GroupId, group: &Group) -> Result<()> {
    if group.kind != GroupKind::Chain {
        let needs = scratch::bytes(graph, group);
        return match group.stages.is_empty() && group.scratch == needs {
            true => Ok(()),
            false => fault(format!("{id} is {:?} with stages or scratch", group.kind)),
        };
    }
    let kinds: Vec<GroupKind> = group.stages.iter().map(|stage| stage.kind).collect();
    if kinds != [GroupKind::Contract, GroupKind::Rows, GroupKind::Contract] {
        return fault(format!("the stages of the chain {id} are {kinds:?}"));
    }
    let (first, rows, last) = (&group.stages[0], &group.stages[1], &group.stages[2]);
    if (last.anchor, &last.outputs) != (group.anchor, &group.outputs) {
        return fault(format!("the last stage of {id} hands on {:?}", last.outputs));
    }
    let (&[scores], &[weights]) = (first.outputs.as_slice(), rows.outputs.as_slice()) else {
        return fault(format!("the stages of {id} hand on {:?} and {:?}", first.outputs, rows.outputs));
    };
    let lhs = graph.nodes[last.anchor].inputs[0];
    let narrow = graph.ty(scores).dtype == DType::F32 && graph.ty(lhs).dtype == DType::BF16;
    let lead = |value: ValueId| graph.ty(value).shape.split_last().map(|(_, lead)| lead);
    let alike = if narrow { lead(lhs) == lead(scores) } else { graph.ty(lhs) == graph.ty(scores) };
    if !alike || graph.ty(weights).dtype != graph.ty(lhs).dtype {
        return fault(format!("{id} hands on {} and {}", graph.ty(scores), graph.ty(lhs)));
    }
    let needs = Blocks::of_group(graph, group).map(|blocks| blocks.bytes());
    if needs.as_ref() != Some(&group.scratch) {
        return fault(format!("{id} has scratch of {} bytes, not {needs:?}", group.scratch));
    }
    let scored = made_of(graph, group, scores, weights);
    let mut weighted = made_of(graph, group, weights, lhs);
    weighted.insert(lhs);
    for &node in &group.nodes {
        let reads = |made: &BTreeSet<ValueId>| graph.nodes[node].inputs.iter().any(|x| made.contains(x));
        if reads(&scored) && !keeps_rows(graph, node, scores)
            || reads(&weighted) && !takes_weights(graph, node, last.anchor, &weighted, narrow)
        {
            return fault(format!("{node} of {id} reads another row than it computes"));
        }
    }
    match scored.iter().chain(&weighted).find(|&&value| materialised(program, value)) {
        Some(value) => fault(format!("{value} inside the chain {id} has a place")),
        None => Ok(()),
    }
}

/// `from` and what the nodes of a group make of it, but for `to` and what is made of that only.
fn made_of(graph: &Graph, group: &Group, from: ValueId, to: ValueId) -> BTreeSet<ValueId> {
    let mut made = BTreeSet::from([from]);
    for &node in &group.nodes {
        let data = &graph.nodes[node];
        if data.inputs.iter().any(|input| made.contains(input)) && !data.outputs.contains(&to) && from != to {
            made.extend(&data.outputs);
        }
    }
    made
}

/// Whether a node that reads rows of the length of the scores, or one element per row, gives rows of either form: element by element, by a
/// reduction of each row, or in other leading axes.
fn keeps_rows(graph: &Graph, node: NodeId, scores: ValueId) -> bool {
    let data = &graph.nodes[node];
    let shape = |value: ValueId| graph.ty(value).shape.as_slice();
    let Some((row, lead)) = shape(scores).split_last() else { return false };
    let is_rows = |shape: &[Dim]| {
        shape.split_last().is_some_and(|(own, own_lead)| {
            (own == row || *own == Dim::ONE) && product(own_lead) == product(lead)
        })
    };
    let fits = match &data.op {
        Op::Map(_) => true,
        Op::Reshape { .. } => shape(data.outputs[0]).last() == shape(data.inputs[0]).last(),
        Op::Reduce { axes, .. } => axes.as_slice() == [shape(data.inputs[0]).len() - 1],
        _ => false,
    };
    fits && is_rows(shape(data.outputs[0]))
}

/// Whether a node that reads weights, or a reshape of them, is a reshape of the leading axes, a padding behind each row of narrow
/// ones, or the contraction that multiplies them by something else.
fn takes_weights(
    graph: &Graph,
    node: NodeId,
    contraction: NodeId,
    weighted: &BTreeSet<ValueId>,
    narrow: bool,
) -> bool {
    let data = &graph.nodes[node];
    let shape = |value: ValueId| graph.ty(value).shape.last();
    match &data.op {
        Op::Reshape { .. } => shape(data.outputs[0]) == shape(data.inputs[0]),
        Op::Pad { lo, hi } => {
            let kept = hi.split_last().map_or(&[][..], |(_, kept)| kept);
            narrow && lo.iter().chain(kept).all(|size| *size == Dim::ZERO)
        }
        _ => node == contraction && !data.inputs[1..].iter().any(|input| weighted.contains(input)),
    }
}
