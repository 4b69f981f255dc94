//! The bodies of Gradient nodes. Such a node names the graph that it differentiates: its inputs are `xs` and `zs`, its result is `y`.
//! Between these lie other nodes of the same list. Copies of them become a body of the node, which has
//! all that it needs from there on, also where a Gradient of a Gradient copies the node itself.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use onnxc_proto::{AttributeProto, GraphProto, NodeProto, build};

use super::scope::{Binding, Scope, bodies, count_nodes, definers, free_names};
use super::{Importer, attr, names, normal_domain};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ops::training::{BODY, DOMAIN};

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Import, message))
}

/// Primitives that the copy of a node counts as: with its attributes it takes as much memory as two.
const COPY: u64 = 2;

fn is_gradient(node: &NodeProto) -> bool {
    node.op_type() == "Gradient" && normal_domain(node.domain()) == DOMAIN
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

/// What a Gradient node differentiates: it follows what defines that, though it does not take it.
pub(super) fn target(node: &NodeProto) -> Option<&str> {
    std::str::from_utf8(attribute(node, "y").filter(|_| is_gradient(node))?.s()).ok()
}

fn texts(node: &NodeProto, name: &str) -> Result<Vec<String>> {
    let Some(attribute) = attribute(node, name) else { return Ok(vec![]) };
    attribute.strings.iter().map(|bytes| attr::text(attribute, bytes)).collect()
}

impl Importer<'_> {
    /// The nodes, with its body each that needs one. Where that is not possible, it is reported, and results are taken for
    /// poisoned.
    pub(super) fn with_bodies<'n>(
        &mut self,
        b: &Builder<'_>,
        nodes: &'n [NodeProto],
        scope: &mut Scope<'_>,
    ) -> Cow<'n, [NodeProto]> {
        let needs_body = |node: &NodeProto| target(node).is_some() && attribute(node, BODY).is_none();
        if !nodes.iter().any(needs_body) {
            return Cow::Borrowed(nodes);
        }
        let definers = definers(nodes);
        let mut complete = nodes.to_vec();
        // Bodies of Gradient nodes inside each other, in each node.
        let mut depths = vec![0; nodes.len()];
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| needs_body(node)) {
            if self.problems.stopped {
                break;
            }
            match self.differentiated(&complete, at, &definers, &mut depths, scope) {
                Ok(body) => complete[at].attribute.push(build::subgraph(BODY, body)),
                Err(error) => {
                    let site = self.given.site(b, at, node, scope);
                    self.problems.report(error.at(site));
                    scope.define(BODY, Binding::Poisoned);
                    complete[at].input = vec![BODY.to_string()];
                }
            }
        }
        Cow::Owned(complete)
    }

    /// What the node at `at` differentiates.
    fn differentiated(
        &mut self,
        nodes: &[NodeProto],
        at: usize,
        definers: &HashMap<&str, usize>,
        depths: &mut [u32],
        scope: &Scope<'_>,
    ) -> Result<GraphProto> {
        let inputs = [texts(&nodes[at], "xs")?, texts(&nodes[at], "zs")?].concat();
        let y = target(&nodes[at]).unwrap_or_default();
        let mut given: HashSet<&str> = HashSet::new();
        for name in &inputs {
            if !definers.contains_key(name.as_str()) && scope.get(name).is_none() {
                return malformed(format!("xs or zs names `{name}`, which is not a value of this graph"));
            }
            if !given.insert(name) {
                return malformed(format!("xs and zs name `{name}` twice"));
            }
        }
        if !definers.contains_key(y) && !given.contains(y) {
            return malformed(format!("y names `{y}`, which no node of this graph computes"));
        }
        let between = self.between(nodes, y, &given, definers)?;
        if between.contains(&at) {
            return malformed(format!("y names `{y}`, which depends on the node itself"));
        }
        depths[at] = 1 + between.iter().map(|&at| depths[at]).max().unwrap_or(0);
        let limit = self.budget.nesting;
        if depths[at] > limit {
            let message = format!("derivatives of derivatives nest deeper than {limit}");
            return Err(Error::new(Stage::Import, Kind::Budget, message));
        }
        let inside = |&at: &usize| bodies(&nodes[at]).map(count_nodes).sum::<u64>();
        self.charge(COPY * (between.len() as u64 + between.iter().map(inside).sum::<u64>()))?;
        let mut body = GraphProto { name: Some(y.to_string()), ..Default::default() };
        for &index in &between {
            let mut node = nodes[index].clone();
            // As they are called without a name of their own.
            node.name = Some(names::own_name(&node, index));
            let declared = node.output.iter().filter_map(|name| scope.declared.get(name.as_str()));
            body.value_info.extend(declared.map(|info| (*info).clone()));
            body.node.push(node);
        }
        body.input = inputs.iter().map(|name| build::untyped(name)).collect();
        body.output = vec![build::untyped(y)];
        Ok(body)
    }

    /// Positions of the nodes that `y` depends on and that depend on one of `given`, rising.
    fn between(
        &mut self,
        nodes: &[NodeProto],
        y: &str,
        given: &HashSet<&str>,
        definers: &HashMap<&str, usize>,
    ) -> Result<Vec<usize>> {
        let needs = |at: usize| -> Vec<&str> {
            let node: &NodeProto = &nodes[at];
            node.input.iter().map(String::as_str).chain(bodies(node).flat_map(free_names)).collect()
        };
        let definer = |name: &str| definers.get(name).copied().filter(|_| !given.contains(name));
        // Nodes seen, and whether they depend on what is given; those that are open have other nodes to be seen first.
        let mut depends: HashMap<usize, bool> = HashMap::new();
        let mut open: Vec<(usize, bool)> = definer(y).map(|at| (at, false)).into_iter().collect();
        while let Some((at, seen)) = open.pop() {
            let needs = needs(at);
            if seen {
                let of_node = |name: &&str| definer(name).is_some_and(|at| depends.get(&at) == Some(&true));
                let found = needs.iter().any(|name| given.contains(name) || of_node(name));
                depends.insert(at, found);
            } else if let Entry::Vacant(slot) = depends.entry(at) {
                slot.insert(false);
                self.charge(1)?;
                open.push((at, true));
                open.extend(needs.into_iter().filter_map(definer).map(|at| (at, false)));
            }
        }
        let mut between: Vec<usize> =
            depends.into_iter().filter(|(_, depends)| *depends).map(|(at, _)| at).collect();
        between.sort_unstable();
        Ok(between)
    }
}
