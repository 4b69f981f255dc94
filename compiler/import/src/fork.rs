//! Choices between values of unlike ranks, such as an axis that is removed where its size is 1: what follows must be
//! imported once for each rank. It becomes part of the bodies: `y = If(c){a} else {b}; rest` is the same as
//! `If(c){y = a; rest} else {y = b; rest}`. A node whose rank depends on whether a dim is 1 is part of both bodies
//! itself: `If(dim != 1){y = f(x); rest} else {y = f(x); rest}`, where each branch knows the answer.
//!
//! Where nothing follows, or nothing that reads the value, the branches are joined: a result of the model may have a rank that only
//! the run decides (`op::item::rank`).

use std::collections::HashMap;

use onnxc_proto::{GraphProto, NodeProto, StringStringEntryProto, build};

use super::names::own_name;
use super::scope::Scope;
use super::{Importer, normal_domain};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::scalar::CompareFn;
use onnxc_ops::Fork;

/// Marks a body that holds what follows its node; the value is the number of what it knows of a dim, in
/// [`Forks::units`], or empty.
const MARK: &str = "onnxc.continues";

/// Nesting of bodies that each know whether a dim is 1: every one at least doubles the import.
const MAX_UNITS: usize = 4;

/// What is left to import of a list of nodes.
pub(super) enum Next {
    End,
    /// The nodes of a body, and all that followed the node that it belongs to.
    Nodes(Box<GraphProto>),
}

/// The value of the mark of a body that holds what follows its node.
pub(crate) fn mark(body: &GraphProto) -> Option<&str> {
    body.metadata_props.iter().find(|entry| entry.key() == MARK).map(|entry| entry.value())
}

/// Choices between values of unlike ranks.
#[derive(Default)]
pub(super) struct Forks {
    /// What a row asks for before it fails.
    pub wanted: Option<Fork>,
    /// Dims by which nodes are forked, and whether they are 1.
    pub units: Vec<(Dim, bool)>,
    /// Those of the bodies around the current node.
    pub open: Vec<usize>,
    /// Bodies taken apart so far.
    pub made: u64,
}

impl Forks {
    /// Whether a dim is 1, where a body around the current node is for one of the answers.
    pub(super) fn is_unit(&self, dim: &Dim) -> Option<bool> {
        let open = self.open.iter().map(|&unit| &self.units[unit]);
        open.rev().find(|(known, _)| known == dim).map(|(_, is_one)| *is_one)
    }
}

impl<'m> Importer<'m> {
    /// Imports the node at `index`, which has failed, again, as it asked for: with `rest`, all that follows it on the way
    /// to `outputs`, in bodies; or, where it is known which body that is, gives the nodes of one body and then the rest.
    /// `None` where that would change nothing: the graph around may have more that follows. `problems` are the numbers of
    /// errors and reports before the node.
    pub(super) fn fork(
        &mut self,
        b: &mut Builder<'_>,
        (index, node): (usize, &NodeProto),
        rest: &[&NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
        problems: (usize, u64),
    ) -> Option<Next> {
        let by = self.forks.wanted.take()?;
        let branch = |name: &str| -> Option<&GraphProto> {
            node.attribute.iter().find(|attribute| attribute.name() == name)?.g.as_deref()
        };
        let branches = branch("then_branch").zip(branch("else_branch"));
        let possible = match by {
            Fork::Bodies => branches.is_some() && normal_domain(node.domain()).is_empty(),
            Fork::Unit(_) => self.forks.open.len() < MAX_UNITS,
        };
        if !possible {
            return None;
        }
        if rest.is_empty() {
            self.forks.wanted = Some(Fork::Bodies);
            return None;
        }
        let failures = self.problems.errors.split_off(problems.0.min(self.problems.errors.len()));
        self.problems.reports = problems.1;
        // All of them become part of the bodies.
        scope.note_reads(&[]);
        node.output.iter().for_each(|name| scope.undefine(name));
        match (by, branches) {
            (Fork::Unit(dim), _) => {
                self.fork_by_unit(b, (index, node), &dim, rest, outputs, scope);
                if self.problems.reports > problems.1 {
                    let at = problems.0.min(self.problems.errors.len());
                    let more = self.problems.errors.split_off(at);
                    self.problems.errors.extend(failures);
                    more.into_iter().for_each(|error| self.problems.report(error));
                }
                Some(Next::End)
            }
            (Fork::Bodies, Some((then, otherwise))) => {
                Some(self.fork_bodies(b, (index, node), [then, otherwise], rest, outputs, scope))
            }
            (Fork::Bodies, None) => None,
        }
    }

    fn fork_bodies(
        &mut self,
        b: &mut Builder<'_>,
        (index, node): (usize, &NodeProto),
        [then, otherwise]: [&GraphProto; 2],
        rest: &[&NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
    ) -> Next {
        let condition = match node.input.first().and_then(|name| scope.get(name)) {
            Some(binding) => {
                let data = binding.tensor().and_then(|value| b.graph.constant_data(value));
                data.and_then(|data| data.data.first().copied())
            }
            None => None,
        };
        if let Some(condition) = condition {
            let taken = if condition == 0 { otherwise } else { then };
            return Next::Nodes(Box::new(self.spliced(taken, node, rest)));
        }
        let mut fork = node.clone();
        fork.output = undefined(outputs, scope);
        for attribute in &mut fork.attribute {
            let body = match attribute.name() {
                "then_branch" => then,
                "else_branch" => otherwise,
                _ => continue,
            };
            let body = self.spliced(body, node, rest);
            attribute.g = Some(Box::new(continuation(body, &fork.output, String::new())));
        }
        self.node(b, index, &fork, scope);
        Next::End
    }

    /// Two bodies of the node and the rest, for a dim that is not 1 and for one that is. Where only one of them can be
    /// compiled, as what the model gives has another rank, it is the first: a symbolic dim is one that varies.
    fn fork_by_unit(
        &mut self,
        b: &mut Builder<'_>,
        (index, node): (usize, &NodeProto),
        dim: &Dim,
        rest: &[&NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
    ) {
        let condition = match is_not_one(b, dim) {
            Ok(condition) => condition,
            Err(error) => return self.problems.report(error),
        };
        self.forks.made += 1;
        let name = format!("{}/{}/is_not_one", node.name(), self.forks.made);
        scope.define(&name, condition.into());
        let output = undefined(outputs, scope);
        let mut body = GraphProto { node: vec![node.clone()], ..Default::default() };
        body.node.extend(rest.iter().copied().cloned());
        let branches = [("then_branch", false), ("else_branch", true)];
        let attribute = branches.map(|(name, is_one)| {
            self.forks.units.push((dim.clone(), is_one));
            let unit = (self.forks.units.len() - 1).to_string();
            build::subgraph(name, continuation(body.clone(), &output, unit))
        });
        let fork = NodeProto {
            name: Some(own_name(node, index)),
            op_type: Some("If".to_string()),
            input: vec![name],
            output,
            attribute: attribute.into(),
            ..Default::default()
        };
        self.node(b, index, &fork, scope);
    }

    /// The nodes of a body under names of their own, what the outputs of its node are, and the nodes that follow.
    fn spliced(&mut self, body: &GraphProto, node: &NodeProto, rest: &[&NodeProto]) -> GraphProto {
        self.forks.made += 1;
        let mut spliced = body.clone();
        rename(&mut spliced, &format!("{}/{}/", node.name(), self.forks.made));
        for (from, to) in spliced.output.iter().zip(&node.output).filter(|(_, to)| !to.is_empty()) {
            spliced.node.push(build::node("Identity", &[from.name()], &[to]));
        }
        spliced.node.extend(rest.iter().copied().cloned());
        spliced.output.clear();
        spliced
    }
}

/// The `outputs` that nothing in the scope has defined, each once.
fn undefined(outputs: &[&str], scope: &Scope<'_>) -> Vec<String> {
    let mut left: Vec<String> = vec![];
    for &name in outputs.iter().filter(|name| scope.get(name).is_none()) {
        if !left.iter().any(|other| other == name) {
            left.push(name.to_string());
        }
    }
    left
}

/// `body`, which ends with what follows its node, as a body that gives `outputs`.
fn continuation(mut body: GraphProto, outputs: &[String], unit: String) -> GraphProto {
    body.output = outputs.iter().map(|name| build::untyped(name)).collect();
    body.metadata_props.push(StringStringEntryProto { key: Some(MARK.to_string()), value: Some(unit) });
    body
}

/// Whether a dim is not 1: a bool scalar.
fn is_not_one(b: &mut Builder<'_>, dim: &Dim) -> Result<ValueId> {
    let (size, one) = (b.dim_scalar(dim)?, b.scalar(DType::I64, 1.0));
    b.compare(CompareFn::Ne, size, one)
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
            for body in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
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
