//! Choices between values of unlike ranks, such as an axis that is removed where its size is 1: what follows must be
//! imported once for each rank. It becomes part of the bodies: `y = If(c){a} else {b}; rest` is the same as
//! `If(c){y = a; rest} else {y = b; rest}`.

use std::collections::HashMap;

use onnxc_proto::{GraphProto, NodeProto, StringStringEntryProto, ValueInfoProto};

use super::scope::{Binding, Scope};
use super::{Importer, normal_domain};
use crate::graph::Builder;

/// Marks a body that holds what follows its node; see [`super::Subgraph::continues`].
pub const MARK: &str = "onnxc.continues";

impl<'m> Importer<'m> {
    /// Imports the node at `index`, which has failed, again: with `rest`, all that follows it on the way to `outputs`, in
    /// its bodies; or, where it is known which body that is, the nodes of one body and then the rest. False where that
    /// would change nothing: the graph around may have more that follows. `problems` are the numbers of errors and reports
    /// before the node.
    pub(super) fn fork(
        &mut self,
        b: &mut Builder<'_>,
        (index, node): (usize, &NodeProto),
        rest: &[NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
        problems: (usize, u64),
    ) -> bool {
        let branch = |name: &str| -> Option<&GraphProto> {
            node.attribute.iter().find(|attribute| attribute.name() == name)?.g.as_ref()
        };
        let (Some(then), Some(otherwise)) = (branch("then_branch"), branch("else_branch")) else {
            self.wants_fork = false;
            return false;
        };
        if rest.is_empty() || !normal_domain(node.domain()).is_empty() {
            return false;
        }
        self.wants_fork = false;
        self.errors.truncate(problems.0);
        self.reports = problems.1;
        node.output.iter().for_each(|name| scope.undefine(name));
        let condition = match node.input.first().and_then(|name| scope.get(name)) {
            Some(Binding::Value(value)) => {
                b.graph.constant_data(value).and_then(|data| data.data.first().copied())
            }
            _ => None,
        };
        if let Some(condition) = condition {
            let body = self.spliced(if condition == 0 { otherwise } else { then }, node, rest);
            for (name, tensor) in self.initializers(&body) {
                self.define_constant(b.graph, scope, name, tensor);
            }
            self.nodes(b, &body.node, outputs, scope);
            return true;
        }
        let mut left: Vec<String> = vec![];
        for &name in outputs.iter().filter(|name| scope.get(name).is_none()) {
            if !left.iter().any(|other| other == name) {
                left.push(name.to_string());
            }
        }
        let mut fork = node.clone();
        fork.output = left.clone();
        for attribute in &mut fork.attribute {
            let body = match attribute.name() {
                "then_branch" => then,
                "else_branch" => otherwise,
                _ => continue,
            };
            let mut body = self.spliced(body, node, rest);
            let info = |name: &String| ValueInfoProto { name: Some(name.clone()), ..Default::default() };
            body.output = left.iter().map(info).collect();
            let mark = StringStringEntryProto { key: Some(MARK.to_string()), ..Default::default() };
            body.metadata_props.push(mark);
            attribute.g = Some(body);
        }
        self.node(b, index, &fork, scope);
        true
    }

    /// The nodes of a body under names of their own, what the outputs of its node are, and the nodes that follow.
    fn spliced(&mut self, body: &GraphProto, node: &NodeProto, rest: &[NodeProto]) -> GraphProto {
        self.forks += 1;
        let mut spliced = body.clone();
        rename(&mut spliced, &format!("{}/{}/", node.name(), self.forks));
        for (from, to) in spliced.output.iter().zip(&node.output).filter(|(_, to)| !to.is_empty()) {
            spliced.node.push(NodeProto {
                input: vec![from.name().to_string()],
                output: vec![to.clone()],
                op_type: Some("Identity".to_string()),
                ..Default::default()
            });
        }
        spliced.node.extend(rest.iter().cloned());
        spliced.output.clear();
        spliced
    }
}

/// Puts `prefix` before every name that a graph defines, in the bodies inside it, too.
fn rename(graph: &mut GraphProto, prefix: &str) {
    let names: HashMap<String, String> =
        defined(graph).map(|name| (name.to_string(), format!("{prefix}{name}"))).collect();
    apply(graph, &names);
}

/// Names that a graph itself defines, but for its inputs.
fn defined(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
    let tensors = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
    let results = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    tensors.chain(results).filter(|name| !name.is_empty())
}

fn apply(graph: &mut GraphProto, names: &HashMap<String, String>) {
    let swap = |name: &mut String| {
        if let Some(new) = names.get(name.as_str()) {
            name.clone_from(new);
        }
    };
    let sparse = graph.sparse_initializer.iter_mut().filter_map(|tensor| tensor.values.as_mut());
    for tensor in graph.initializer.iter_mut().chain(sparse) {
        tensor.name.iter_mut().for_each(swap);
    }
    for info in graph.value_info.iter_mut().chain(&mut graph.output) {
        info.name.iter_mut().for_each(swap);
    }
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(swap);
        for attribute in &mut node.attribute {
            for body in attribute.g.iter_mut().chain(&mut attribute.graphs) {
                let hidden: Vec<String> = defined(body)
                    .chain(body.input.iter().map(|info| info.name()))
                    .map(str::to_string)
                    .collect();
                let mut seen = names.clone();
                hidden.iter().for_each(|name| drop(seen.remove(name)));
                apply(body, &seen);
            }
        }
    }
}
