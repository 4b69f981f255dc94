//! The order of nodes. The specification asks for a topological one; files of some tools have another. What is then
//! imported first is found here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use onnxc_proto::NodeProto;

use super::scope::{Scope, bodies, free_names, superseded};
use super::{Importer, gradient, names};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Stage};
use onnxc_ir::rules::Rule;

/// Nodes of a cycle that a message names.
const MAX_NAMED: usize = 8;

impl Importer<'_> {
    /// Positions of `nodes` in the order in which they are imported: theirs where each value is defined before it is used,
    /// else the topological order in which a node comes as early as those before it in the list allow. What is in a cycle,
    /// and what follows from it, comes last, and its values are taken for poisoned.
    pub(super) fn order(
        &mut self,
        b: &Builder<'_>,
        nodes: &[NodeProto],
        scope: &mut Scope<'_>,
    ) -> Vec<usize> {
        let superseded = superseded(nodes);
        for (index, node) in nodes.iter().enumerate().filter(|(index, _)| superseded.contains(index)) {
            let message = format!("a later Constant defines `{}` again, and counts", node.output[0]);
            let site = self.given.site(b, index, node, scope);
            self.problems.warn(Rule::ConstantTwice, message, Some(site));
        }
        let needs = needs(nodes, &superseded, scope);
        let late = |at: usize| needs[at].iter().find(|(definer, _)| *definer > at);
        let counts = |at: &usize| !superseded.contains(at);
        if (0..nodes.len()).all(|at| late(at).is_none()) {
            return (0..nodes.len()).filter(counts).collect();
        }
        let (order, rest) = sorted(&needs);
        for cycle in cycles(&needs, &rest) {
            let name = |&at: &usize| format!("{at} `{}`", names::own_name(&nodes[at], at));
            let mut names: Vec<String> = cycle.iter().take(MAX_NAMED).map(name).collect();
            if cycle.len() > MAX_NAMED {
                names.push(format!("and {} more", cycle.len() - MAX_NAMED));
            }
            let message =
                format!("nodes form a cycle, each taking a result of the next: {}", names.join(", "));
            let site = self.given.site(b, cycle[0], &nodes[cycle[0]], scope);
            self.problems.report(Error::malformed(Stage::Import, message).at(site));
        }
        let outputs = rest.iter().flat_map(|&at| &nodes[at].output);
        scope.cyclic = outputs.filter(|name| !name.is_empty()).cloned().collect();
        let is_rest: HashSet<usize> = rest.iter().copied().collect();
        for (at, node) in nodes.iter().enumerate().filter(|(at, _)| !is_rest.contains(at)) {
            let Some((definer, name)) = late(at) else { continue };
            let message = format!(
                "input `{name}` is used before node {definer} `{}` defines it: the nodes are sorted into topological order",
                names::own_name(&nodes[*definer], *definer)
            );
            let site = self.given.site(b, at, node, scope);
            self.problems.warn(Rule::NodeOrder, message, Some(site));
        }
        order.into_iter().chain(rest).filter(counts).collect()
    }
}

/// For each node, the other nodes that define what it takes, and the names of that. What the scope has bound already does not
/// count, nor do nodes that are superseded.
fn needs<'p>(
    nodes: &'p [NodeProto],
    superseded: &HashSet<usize>,
    scope: &Scope<'_>,
) -> Vec<Vec<(usize, &'p str)>> {
    let mut definers: HashMap<&str, usize> = HashMap::new();
    for (at, node) in nodes.iter().enumerate().filter(|(at, _)| !superseded.contains(at)) {
        for name in node.output.iter().filter(|name| !name.is_empty() && scope.get(name).is_none()) {
            definers.entry(name).or_insert(at);
        }
    }
    let of_node = |(at, node): (usize, &'p NodeProto)| {
        let names = node.input.iter().map(String::as_str).chain(gradient::target(node));
        let names = names.chain(bodies(node).flat_map(free_names));
        names
            .filter_map(|name| Some((*definers.get(name)?, name)))
            .filter(|(definer, _)| *definer != at)
            .collect()
    };
    nodes.iter().enumerate().map(of_node).collect()
}

/// Kahn's algorithm, which takes the first node of the list that is ready: the nodes that can be ordered, and the rest.
fn sorted(needs: &[Vec<(usize, &str)>]) -> (Vec<usize>, Vec<usize>) {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    let mut open: Vec<usize> = needs.iter().map(Vec::len).collect();
    for (at, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|(definer, _)| users[*definer].push(at));
    }
    let mut ready: BinaryHeap<_> = (0..needs.len()).filter(|&at| open[at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &user in &users[at] {
            open[user] -= 1;
            if open[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    let rest = (0..needs.len()).filter(|&at| open[at] > 0).collect();
    (order, rest)
}

/// Cycles among nodes that cannot be ordered: each of these takes a result of another one of them.
fn cycles(needs: &[Vec<(usize, &str)>], rest: &[usize]) -> Vec<Vec<usize>> {
    let open: HashSet<usize> = rest.iter().copied().collect();
    let (mut seen, mut cycles) = (HashSet::new(), Vec::new());
    for &first in rest {
        let (mut path, mut at) = (Vec::new(), first);
        while seen.insert(at) {
            path.push(at);
            let next = needs[at].iter().find(|(definer, _)| open.contains(definer));
            at = next.expect("a node that cannot be ordered waits for another one").0;
        }
        if let Some(start) = path.iter().position(|&on_path| on_path == at) {
            cycles.push(path.split_off(start));
        }
    }
    cycles
}
