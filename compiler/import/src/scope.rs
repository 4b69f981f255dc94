//! Names: what they stand for inside one graph or function, and what a body sees of the graphs around it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use onnxc_proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};

use super::opsets::Opsets;
use super::{normal_domain, types};
use onnxc_ir::graph::{TensorType, ValueId};
use onnxc_ops::item::Item;
use onnxc_ops::{Attr, keeps_shape};

/// What a name stands for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Binding {
    Value(Item),
    /// An optional input that the caller of a function left out.
    Omitted,
    /// The result of something that was reported already.
    Poisoned,
}

impl From<ValueId> for Binding {
    fn from(value: ValueId) -> Binding {
        Binding::Value(Item::Tensor(value))
    }
}

impl Binding {
    /// The value, if it is a tensor.
    pub(crate) fn tensor(&self) -> Option<ValueId> {
        match self {
            Binding::Value(item) => item.tensor(),
            _ => None,
        }
    }
}

/// What the nodes of a model, or of one call of a function, resolve against besides names.
#[derive(Debug, Default)]
pub(crate) struct Env {
    /// Opset versions; `ai.onnx` is the empty domain.
    pub opsets: Opsets,
    /// Values of the function's attributes; `None` outside functions, where none may be referred to.
    pub attributes: Option<HashMap<String, Attr<'static>>>,
}

/// The names of one graph or function body.
pub(crate) struct Scope<'p> {
    names: HashMap<String, Entry>,
    pub env: Arc<Env>,
    /// Calls that lead here, as `outer/inner/`.
    pub prefix: String,
    /// Declared types of values.
    pub declared: HashMap<&'p str, &'p ValueInfoProto>,
    /// Declared types of the model's outputs.
    pub declared_outputs: HashMap<String, TensorType>,
    /// Ranks of values, as far as they follow from declared ones.
    pub ranks: HashMap<String, usize>,
    /// Outputs that may have a rank which only the run decides, unless a node reads them.
    any_rank: HashSet<String>,
    /// Those of them that nodes read.
    read: HashSet<String>,
    /// Which node defines a name, for messages.
    pub definers: HashMap<&'p str, usize>,
    /// Results of nodes in a cycle, and of what follows from one.
    pub cyclic: HashSet<String>,
}

struct Entry {
    binding: Binding,
    /// Bound by a graph around this one: a definition here may hide it.
    outer: bool,
}

impl<'p> Scope<'p> {
    pub(crate) fn new(env: Arc<Env>, prefix: String, nodes: &'p [NodeProto]) -> Scope<'p> {
        Scope {
            names: HashMap::new(),
            env,
            prefix,
            declared: HashMap::new(),
            declared_outputs: HashMap::new(),
            ranks: HashMap::new(),
            any_rank: HashSet::new(),
            read: HashSet::new(),
            definers: definers(nodes),
            cyclic: HashSet::new(),
        }
    }

    /// Adds the types that `graph` declares.
    pub(crate) fn declare(&mut self, graph: &'p GraphProto) {
        for info in graph.value_info.iter().chain(&graph.output).filter(|info| !info.name().is_empty()) {
            self.declared.insert(info.name(), info);
        }
    }

    /// Finds the ranks that are declared, and from them those of operands of `nodes` that keep their shape.
    pub(crate) fn find_ranks<'n>(&mut self, nodes: impl DoubleEndedIterator<Item = &'n NodeProto>) {
        let declared = self.declared.iter().filter_map(|(name, info)| Some((*name, types::rank(info)?)));
        let outputs = self.declared_outputs.iter().map(|(name, ty)| (name.as_str(), ty.rank()));
        for (name, rank) in declared.chain(outputs) {
            self.ranks.insert(name.to_string(), rank);
        }
        for node in nodes.rev() {
            let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else { continue };
            let rank = self.ranks.get(output).copied();
            if let Some(rank) = rank.filter(|_| keeps_shape(normal_domain(node.domain()), node.op_type()))
                && !input.is_empty()
            {
                self.ranks.entry(input.clone()).or_insert(rank);
            }
        }
    }

    /// Lets outputs have ranks that only the run decides, each where `open` says so.
    pub(crate) fn leave_ranks_open<'n>(&mut self, outputs: impl Iterator<Item = &'n str>, open: &[bool]) {
        let mut fixed = vec![];
        for (name, &open) in outputs.zip(open) {
            if open {
                self.any_rank.insert(name.to_string());
            } else {
                fixed.push(name);
            }
        }
        // A body may give one value as several results.
        self.any_rank.retain(|name| !fixed.contains(&name.as_str()));
    }

    /// Notes which outputs `nodes` read, which are imported next.
    pub(crate) fn note_reads(&mut self, nodes: &[NodeProto]) {
        self.read.clear();
        if self.any_rank.is_empty() {
            return;
        }
        for node in nodes {
            let inside = bodies(node).flat_map(referenced_names);
            for name in node.input.iter().map(String::as_str).chain(inside) {
                if self.any_rank.contains(name) {
                    self.read.insert(name.to_string());
                }
            }
        }
    }

    /// Whether the rank of a result may be left to the run.
    pub(crate) fn may_have_any_rank(&self, name: &str) -> bool {
        self.any_rank.contains(name) && !self.read.contains(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Binding> {
        self.names.get(name).map(|entry| entry.binding.clone())
    }

    /// Binds a name here; false when this scope has bound it already.
    pub(crate) fn define(&mut self, name: &str, binding: Binding) -> bool {
        let previous = self.names.insert(name.to_string(), Entry { binding, outer: false });
        previous.is_none_or(|entry| entry.outer)
    }

    /// Takes a definition back.
    pub(crate) fn undefine(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Binds a name as something of the graph around.
    pub(crate) fn capture(&mut self, name: &str, binding: Binding) {
        self.names.insert(name.to_string(), Entry { binding, outer: true });
    }
}

/// Positions of the nodes that define names, the first of each.
pub(crate) fn definers(nodes: &[NodeProto]) -> HashMap<&str, usize> {
    let mut definers = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|output| !output.is_empty()) {
            definers.entry(output.as_str()).or_insert(index);
        }
    }
    definers
}

/// Names that Constant nodes define, with the position of the last one of each name: that one counts.
pub(crate) fn constants(nodes: &[NodeProto]) -> HashMap<&str, usize> {
    let constants = nodes.iter().enumerate().filter(|(_, node)| is_constant(node));
    constants.filter_map(|(index, node)| Some((node.output.first()?.as_str(), index))).collect()
}

fn is_constant(node: &NodeProto) -> bool {
    node.op_type() == "Constant" && normal_domain(node.domain()).is_empty() && node.overload().is_empty()
}

/// Positions of Constant nodes that do not count, as a later one defines the same name.
pub(crate) fn superseded(nodes: &[NodeProto]) -> HashSet<usize> {
    let last = constants(nodes);
    let is_superseded = |(index, node): &(usize, &NodeProto)| {
        is_constant(node) && node.output.first().and_then(|name| last.get(name.as_str())) != Some(index)
    };
    let superseded = nodes.iter().enumerate().filter(is_superseded).map(|(index, _)| index);
    superseded.filter(|&index| !nodes[index].output.is_empty()).collect()
}

/// The bodies among a node's attributes.
pub(crate) fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(bodies_of)
}

fn bodies_of(attribute: &AttributeProto) -> impl Iterator<Item = &GraphProto> {
    attribute.g.as_deref().into_iter().chain(&attribute.graphs)
}

/// Nodes of a body and of the bodies inside it.
pub(crate) fn count_nodes(body: &GraphProto) -> u64 {
    let (mut count, mut open) = (0, vec![body]);
    while let Some(graph) = open.pop() {
        count += graph.node.len() as u64;
        open.extend(graph.node.iter().flat_map(bodies));
    }
    count
}

/// Every name that `body`, or a body inside it, refers to, sorted. Some of them it defines itself: a
/// definition hides what is captured.
pub(crate) fn referenced_names(body: &GraphProto) -> Vec<&str> {
    let mut names = HashSet::new();
    let mut open = vec![body];
    while let Some(graph) = open.pop() {
        names.extend(graph.output.iter().map(|info| info.name()));
        for node in &graph.node {
            names.extend(node.input.iter().map(String::as_str));
            open.extend(bodies(node));
        }
    }
    let mut names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names
}

/// Names that a body, or one inside it, takes from the graphs around it.
pub(crate) fn free_names(body: &GraphProto) -> Vec<&str> {
    // Names that a graph defines, and the graph around it.
    let mut levels: Vec<(HashSet<&str>, Option<usize>)> = Vec::new();
    let (mut open, mut free) = (vec![(body, None)], Vec::new());
    while let Some((graph, around)) = open.pop() {
        levels.push((defined(graph), around));
        let level = levels.len() - 1;
        let is_free = |name: &&str| {
            let mut at = Some(level);
            while let Some((names, around)) = at.map(|at| &levels[at]) {
                if names.contains(name) {
                    return false;
                }
                at = *around;
            }
            true
        };
        let inputs = graph.node.iter().flat_map(|node| node.input.iter().map(String::as_str));
        free.extend(inputs.chain(graph.output.iter().map(|info| info.name())).filter(is_free));
        open.extend(graph.node.iter().flat_map(bodies).map(|body| (body, Some(level))));
    }
    free
}

/// Names that a graph itself defines.
fn defined(graph: &GraphProto) -> HashSet<&str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
    let tensors = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
    let inputs = graph.input.iter().map(|info| info.name());
    let results = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    tensors.chain(inputs).chain(results).collect()
}

#[cfg(test)]
mod tests {
    use onnxc_proto::build::{self, subgraph};

    use super::*;

    #[test]
    fn nodes_of_bodies_count() {
        let leaf = || build::graph(vec![], vec![build::node("Neg", &["x"], &["y"])], vec![]);
        let choice = || {
            let node = build::node("If", &["c"], &["y"]);
            node.with(subgraph("then_branch", leaf())).with(subgraph("else_branch", leaf()))
        };
        let inner = build::graph(vec![], vec![choice(), choice()], vec![]);
        let outer = build::node("Loop", &[], &["y"]).with(subgraph("body", inner));
        assert_eq!(count_nodes(&build::graph(vec![], vec![outer, choice()], vec![])), 1 + 2 * 3 + 3);
    }
}
