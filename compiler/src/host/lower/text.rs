//! How messages name nodes and values.

use crate::graph::{Assumption, Graph, NodeId, ValueId};
use crate::host::message::{A, B, printable};

/// `node `name` (Op)`
pub(super) fn node_text(graph: &Graph, node: NodeId) -> String {
    match graph.origins.get(graph.nodes[node].origin) {
        Some(origin) => format!("node `{}` ({})", printable(&origin.name), printable(&origin.op_type)),
        None => format!("node {node}"),
    }
}

/// Who writes to a block.
pub(super) fn writer_text(graph: &Graph, writer: Option<NodeId>) -> String {
    writer.map_or_else(|| "the output of a body".to_string(), |node| node_text(graph, node))
}

/// Who computes a value.
pub(super) fn source_text(graph: &Graph, value: ValueId) -> String {
    match graph.producer(value) {
        Some(node) => node_text(graph, node),
        None => format!("`{}`", printable(&graph.values[value].name)),
    }
}

/// Template of the message of an assumption that does not hold.
pub(super) fn violation(graph: &Graph, assumption: &Assumption) -> String {
    let sentence = assumption.sentence(&|dim| graph.dim_text(dim));
    format!("{}: {A} {} {B}", printable(&sentence), assumption.requirement.relation.negated())
}
