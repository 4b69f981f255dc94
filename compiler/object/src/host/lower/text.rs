//! How messages name nodes and values.

use crate::host::message::printable;
use onnxc_ir::graph::{Graph, NodeId, Sym, ValueId};

/// `node `name` (Op)`
pub(super) fn node_text(graph: &Graph, node: NodeId) -> String {
    match graph.origins.get(graph.nodes[node].origin) {
        Some(origin) => format!("node `{}` ({})", printable(&origin.name), printable(&origin.op_type)),
        None => format!("node {node}"),
    }
}

/// A value: by its name, or by the node that gives it.
pub(super) fn value_text(graph: &Graph, value: ValueId) -> String {
    match (graph.values[value].name.as_str(), graph.producer(value)) {
        ("", Some(node)) => format!("the result of {}", node_text(graph, node)),
        (name, _) => format!("value `{}`", printable(name)),
    }
}

/// Who writes to a block.
pub(super) fn writer_text(graph: &Graph, writer: Option<NodeId>) -> String {
    writer.map_or_else(|| "the output of a body".to_string(), |node| node_text(graph, node))
}

/// Who computes a value that decides a size: a node, or an input. The sizes that a body is given have no name of their own, but
/// the tensor beside them that has them does.
pub(super) fn source_text(graph: &Graph, value: ValueId, size: Sym) -> String {
    if let Some(node) = graph.producer(value) {
        return node_text(graph, node);
    }
    let is_named = |value: ValueId| !graph.values[value].name.is_empty();
    let has_it = |value: ValueId| graph.ty(value).shape.iter().any(|dim| dim.as_sym() == Some(size));
    let tensor =
        || graph.inputs.iter().map(|input| input.value).find(|&value| is_named(value) && has_it(value));
    match Some(value).filter(|&value| is_named(value)).or_else(tensor) {
        Some(value) => format!("`{}`", printable(&graph.values[value].name)),
        None => "an input of a body".to_string(),
    }
}
