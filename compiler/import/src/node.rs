//! One node at a time: names to values, the row and its signature, lowering.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use onnxc_proto::{AttributeProto, NodeProto};

use super::body::Closure;
use super::check::{check_inputs, check_outputs, check_signature};
use super::external::CustomOp;
use super::fork::Next;
use super::names::named;
use super::names::{own_name, shortened};
use super::opsets::Opsets;
use super::scope::{Binding, Scope, count_nodes};
use super::{Given, Importer, attr, domain_name, kinds, normal_domain};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, NodeRef, Result, Stage, without};
use onnxc_ir::graph::Origin;
use onnxc_ir::rules::Rule;
use onnxc_ir::words::did_you_mean;
use onnxc_ops::item::{Item, Layout, Part};
use onnxc_ops::{Arity, Attr, AttrKind, NodeCx, OpDef, Subgraph};

/// Domains with a row for every operator that there is.
const STANDARD: &[&str] = &["", "ai.onnx.ml"];

fn malformed<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Import, message))
}

impl Given<'_> {
    /// The node for messages.
    pub(super) fn site(&self, b: &Builder<'_>, index: usize, node: &NodeProto, scope: &Scope<'_>) -> NodeRef {
        let domain = normal_domain(node.domain());
        let opset = scope.env.opsets.get(domain);
        let input = |name: &String| match scope.get(name) {
            Some(Binding::Value(item)) => format!("{name}: {}", item.text(b)),
            _ if name.is_empty() => "-".to_string(),
            _ => format!("{name}: ?"),
        };
        NodeRef {
            name: label(node, index, scope),
            domain: domain.to_string(),
            op_type: node.op_type().to_string(),
            version: opset
                .and_then(|opset| self.table.find(domain, node.op_type(), opset))
                .map(|row| row.since),
            index,
            inputs: shortened(node.input.len(), node.input.iter().map(input)),
        }
    }

    /// The row of a node's operator.
    pub(super) fn row(&self, node: &NodeProto, opsets: &Opsets) -> Result<&'static OpDef> {
        let (domain, name) = (normal_domain(node.domain()), node.op_type());
        let Some(opset) = opsets.get(domain) else {
            let imports = imports(opsets);
            let (is_known, domain) =
                (self.table.lookup(domain, name, u32::MAX).is_some(), domain_name(domain));
            return match is_known {
                true => malformed(format!("no version of `{domain}` is imported; imported: {imports}")),
                false => Err(Error::unsupported(
                    Stage::Import,
                    format!(
                        "operator {name} of {domain} (no version of it is imported; imported: {imports}); a function of the model can define it, or one of your program compute it: --custom-op {domain}.{name}=FUNCTION"
                    ),
                )),
            };
        };
        if let Some(row) = self.table.find(domain, name, opset) {
            return Ok(row);
        }
        if let Some(feature) = self.table.feature_of(domain) {
            let what = without(&format!("operators of {domain}"), feature);
            return Err(Error::new(Stage::Import, Kind::Usage, format!("operator {name}: {what}")));
        }
        let mut message = format!("operator {name} of {} opset {opset}", domain_name(domain));
        let newest = self.table.lookup(domain, name, u32::MAX);
        if let Some(newest) = newest {
            message += &format!(" (known from version {} or earlier on)", newest.since);
        }
        if !node.overload().is_empty() {
            message += &format!(", and no function with overload `{}`", node.overload());
        }
        if newest.is_some() {
            return Err(Error::unsupported(Stage::Import, message));
        }
        let names = self.table.rows().filter(|row| row.domain == domain).map(|row| row.name);
        let hint = did_you_mean(name, names);
        // All operators of the standard are known, those of other domains are not.
        if !STANDARD.contains(&domain) {
            let custom =
                format!("; a function of your program can compute it: --custom-op {domain}.{name}=FUNCTION");
            return Err(Error::unsupported(Stage::Import, message + &hint + &custom));
        }
        malformed(format!(
            "{message}: there is no operator of this name{hint}; a function of the model can define it"
        ))
    }
}

impl<'m> Importer<'m> {
    /// Walks the nodes of a graph, a body or a function, which has these outputs.
    pub(super) fn nodes(
        &mut self,
        b: &mut Builder<'_>,
        nodes: &[NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
    ) {
        let mut next = self.nodes_of(b, nodes, outputs, scope);
        while let Next::Nodes(body) = next {
            for (name, tensor) in self.initializers(&body) {
                self.define_constant(b.graph, scope, name, tensor);
            }
            next = self.nodes_of(b, &body.node, outputs, scope);
        }
    }

    /// Imports nodes up to one that is imported with all that follows it; gives the remaining ones.
    fn nodes_of(
        &mut self,
        b: &mut Builder<'_>,
        nodes: &[NodeProto],
        outputs: &[&str],
        scope: &mut Scope<'_>,
    ) -> Next {
        let nodes = &*self.with_bodies(b, nodes, scope);
        let order = self.order(b, nodes, scope);
        scope.note_reads(nodes);
        scope.find_ranks(order.iter().map(|&index| &nodes[index]));
        for (at, &index) in order.iter().enumerate() {
            let node = &nodes[index];
            if self.problems.stopped {
                return Next::End;
            }
            let (primitives, sizes, left) = (b.graph.nodes.len(), b.graph.data.len(), self.budget.left);
            let problems = (self.problems.errors.len(), self.problems.reports);
            self.node(b, index, node, scope);
            // The node itself, and of what it became all that neither the file nor the nodes inside it have paid for.
            let (own, free) = if self.budget.depth > 0 { (1, 0) } else { (0, PAID_BY_FILE) };
            let paid = own + (left - self.budget.left).max(free);
            let of_sizes = COST_OF_SIZE * b.graph.data.len().saturating_sub(sizes) as u64;
            let made = b.graph.primitives_from(primitives) + of_sizes;
            if let Err(error) = self.charge(own + made.saturating_sub(paid)) {
                self.problems.report(error.at(self.given.site(b, index, node, scope)));
            }
            if self.forks.wanted.is_none() {
                continue;
            }
            let rest: Vec<&NodeProto> = order[at + 1..].iter().map(|&index| &nodes[index]).collect();
            if let Some(next) = self.fork(b, (index, node), &rest, outputs, scope, problems) {
                return next;
            }
        }
        Next::End
    }

    /// Imports one node and binds its outputs.
    pub(super) fn node(
        &mut self,
        b: &mut Builder<'_>,
        index: usize,
        node: &NodeProto,
        scope: &mut Scope<'_>,
    ) {
        let label = label(node, index, scope);
        let op_type = node.op_type().to_string();
        self.draws.result = format!("{}{}", scope.prefix, node.output.first().map_or("", String::as_str));
        b.origin = b.graph.origins.push(Origin::new(label.clone(), op_type, index));
        let first = b.graph.nodes.len();
        let any_rank = node.output.iter().map(|name| scope.may_have_any_rank(name)).collect();
        let around = std::mem::replace(&mut self.open_ranks.of_node, any_rank);
        let inputs: Result<Vec<Binding>> = node.input.iter().map(|name| resolve(name, node, scope)).collect();
        let outputs = inputs.and_then(|inputs| match (self.custom(node, index), self.given.callee(node)) {
            (Some(custom), callee) => {
                let known = callee.is_some() || self.given.row(node, &scope.env.opsets).is_ok();
                check_override(custom, known)?;
                let standard = match (known, callee) {
                    (false, _) => vec![],
                    (true, Some(callee)) => self.call(b, callee, node, &inputs, scope, &label)?,
                    (true, None) => self.operator(b, index, node, &inputs, scope)?,
                };
                self.external(b, custom, node, &inputs, &standard, scope)
            }
            (None, Some(callee)) => self.call(b, callee, node, &inputs, scope, &label),
            (None, None) => self.operator(b, index, node, &inputs, scope),
        });
        self.open_ranks.of_node = around;
        let outputs = outputs.unwrap_or_else(|error| {
            let site = self.given.site(b, index, node, scope);
            self.problems.report(error.at(site));
            Vec::new()
        });
        for (at, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let binding = outputs.get(at).cloned().unwrap_or(Binding::Poisoned);
            if let Binding::Value(item) = &binding {
                name_columns(b, &format!("{}{name}", scope.prefix), item);
            }
            if let (Binding::Value(item), Some(info)) = (&binding, scope.declared.get(name.as_str()))
                && let Some((rule, message)) = kinds::item_deviation(info, item, b)
            {
                let site = self.given.site(b, index, node, scope);
                self.problems.warn(rule, message, Some(site));
            }
            if !scope.define(name, binding) {
                let site = self.given.site(b, index, node, scope);
                let message = format!("value `{name}` is defined twice");
                self.problems.report(Error::malformed(Stage::Import, message).at(site));
            }
        }
        self.note_devices(b.graph, first, node, scope);
    }

    /// Lowers one node of an operator. With a poisoned input, only what needs no types is checked.
    fn operator(
        &mut self,
        b: &mut Builder<'_>,
        index: usize,
        node: &NodeProto,
        inputs: &[Binding],
        scope: &Scope<'_>,
    ) -> Result<Vec<Binding>> {
        let opset = scope.env.opsets.get(normal_domain(node.domain()));
        let row =
            self.given.row(node, &scope.env.opsets).and_then(|row| check_signature(row, node).map(|()| row));
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                self.check_bodies(node, &scope.env.opsets);
                return Err(error);
            }
        };
        let known = node.attribute.iter().filter(|attribute| attr::is_known(row, attribute.name()));
        let attributes = self.attributes(known, scope)?;
        attr::check_values(row, &attributes)?;
        let poisoned = inputs.contains(&Binding::Poisoned)
            || attributes.values().any(|value| matches!(value, Attr::Graph(body) if body.is_poisoned()));
        if poisoned {
            self.check_bodies(node, &scope.env.opsets);
            return Ok(Vec::new());
        }
        let mut values: Vec<Option<Item>> = inputs
            .iter()
            .map(|input| match input {
                Binding::Value(item) => Some(item.clone()),
                _ => None,
            })
            .collect();
        while values.last() == Some(&None) {
            values.pop();
        }
        let opset = opset.unwrap_or(row.since);
        let tolerated = self.given.table.tolerated(row.domain, row.name, opset);
        if tolerated.is_some_and(|other| std::ptr::eq(other, row)) {
            let newer = self.given.table.lookup(row.domain, row.name, u32::MAX);
            let message = match newer {
                Some(newer) => format!(
                    "operator {} of ai.onnx is newer than opset {opset} (the newest version is {}); it is taken as ONNX Runtime takes it",
                    row.name, newer.since
                ),
                None => format!(
                    "operator {} is in no version of ai.onnx; it is taken as ONNX Runtime takes it",
                    row.name
                ),
            };
            let site = self.given.site(b, index, node, scope);
            self.problems.warn(Rule::Operator, message, Some(site));
        }
        // Problems inside a body count only if the row does not find another way.
        let (before, reports) = (std::mem::take(&mut self.problems.errors), self.problems.reports);
        let mut lowered = self.lower(b, row, opset, node, &values, &attributes, scope);
        if let (Err(error), Some(wider)) = (&lowered, tolerated.filter(|other| !std::ptr::eq(*other, row))) {
            let message = format!("{}; it is taken as ONNX Runtime takes it", error.message);
            lowered = self.lower(b, wider, opset, node, &values, &attributes, scope);
            if lowered.is_ok() {
                let site = self.given.site(b, index, node, scope);
                self.problems.warn(Rule::ElementType, message, Some(site));
            }
        }
        let inside = std::mem::replace(&mut self.problems.errors, before);
        if lowered.is_ok() {
            (self.forks.wanted, self.problems.reports) = (None, reports);
        }
        if lowered.is_err() {
            let site = self.given.site(b, index, node, scope);
            inside.into_iter().for_each(|error| self.problems.report(error.at(site.clone())));
            // The row gave up at the first body that failed.
            self.check_bodies(node, &scope.env.opsets);
        }
        lowered
    }

    fn lower(
        &mut self,
        b: &mut Builder<'_>,
        row: &'static OpDef,
        opset: u32,
        node: &NodeProto,
        inputs: &[Option<Item>],
        attributes: &HashMap<String, Attr<'_>>,
        scope: &Scope<'_>,
    ) -> Result<Vec<Binding>> {
        check_inputs(row, inputs, b)?;
        let outputs = &node.output[..named(&node.output)];
        let wanted: Vec<bool> = outputs.iter().map(|name| !name.is_empty()).collect();
        let declared: Vec<_> = outputs
            .iter()
            .map(|name| match scope.declared_outputs.get(name) {
                Some(ty) => Some(ty.clone()),
                None => scope.declared.get(name.as_str()).and_then(|info| self.types.declared(info)),
            })
            .collect();
        let ranks: Vec<_> = outputs.iter().map(|name| scope.ranks.get(name).copied()).collect();
        let compound = |(at, input): (usize, Option<Item>)| {
            let item = input.filter(|item| item.tensor().is_none())?;
            Some((at, item))
        };
        let mut cx = NodeCx {
            b,
            def: row,
            opset,
            inputs: inputs.iter().map(|input| input.as_ref()?.tensor()).collect(),
            compounds: inputs.iter().cloned().enumerate().filter_map(compound).collect(),
            given: Vec::new(),
            attributes,
            outputs: node.output.len(),
            wanted: &wanted,
            declared: &declared,
            ranks: &ranks,
            bodies: self,
            tolerated: Vec::new(),
        };
        let values = cx.lower()?;
        for (rule, message) in cx.tolerated {
            let site = self.given.site(b, b.graph.origins[b.origin].index, node, scope);
            self.problems.warn(rule, message, Some(site));
        }
        if values.len() < outputs.len() {
            let at = values.len();
            return match row.outputs.get(at).or(row.outputs.last()) {
                Some(param) if param.arity.is_variadic() => {
                    malformed(format!("{} outputs are named, and the inputs give {at}", outputs.len()))
                }
                Some(param) if matches!(param.arity, Arity::Optional) => malformed(format!(
                    "output {at} ({}) is named, and is not given with these attributes",
                    param.name
                )),
                _ => {
                    let message = format!("{} lowers to {at} results", row.name);
                    Err(Error::internal(Stage::Import, message))
                }
            };
        }
        check_outputs(row, &values[..outputs.len()], b)?;
        Ok(values.into_iter().map(Binding::Value).collect())
    }

    /// Decodes attributes; references to a function's attributes become their values, or nothing where the
    /// call gives none.
    pub(super) fn attributes<'p>(
        &mut self,
        attributes: impl Iterator<Item = &'p AttributeProto>,
        scope: &Scope<'_>,
    ) -> Result<HashMap<String, Attr<'p>>> {
        let mut values = HashMap::new();
        for attribute in attributes {
            let name = attribute.name();
            let reference = attribute.ref_attr_name();
            let value = match (&scope.env.attributes, reference) {
                (_, "") => Some(self.attribute(attribute, scope)?),
                (Some(values), _) => values.get(reference).cloned(),
                (None, _) => {
                    return malformed(format!("attribute {name} refers to `{reference}` outside a function"));
                }
            };
            if let Some(value) = value
                && values.insert(name.to_string(), value).is_some()
            {
                return malformed(format!("attribute {name} is given twice"));
            }
        }
        Ok(values)
    }

    fn attribute<'p>(&mut self, attribute: &'p AttributeProto, scope: &Scope<'_>) -> Result<Attr<'p>> {
        let missing = || {
            let message = format!("attribute {} has no value", attribute.name());
            Error::malformed(Stage::Import, message)
        };
        let in_attribute =
            |error: Error| error.reworded(|message| format!("attribute {}: {message}", attribute.name()));
        Ok(match attr::kind(attribute)? {
            AttrKind::Int => Attr::Int(attribute.i()),
            AttrKind::Float => Attr::Float(attribute.f()),
            AttrKind::Str => attr::string(attribute),
            AttrKind::Ints => Attr::Ints(Cow::Borrowed(&attribute.ints)),
            AttrKind::Floats => Attr::Floats(Cow::Borrowed(&attribute.floats)),
            AttrKind::Strs => Attr::Strs(attr::texts(attribute)?),
            AttrKind::Tensor => {
                let tensor = attribute.t.as_ref().ok_or_else(missing)?;
                Attr::Tensor(self.dense(tensor).map_err(in_attribute)?)
            }
            AttrKind::SparseTensor => {
                let tensor = attribute.sparse_tensor.as_ref().ok_or_else(missing)?;
                Attr::Tensor(self.sparse(tensor).map_err(in_attribute)?)
            }
            AttrKind::Graph => {
                let body = attribute.g.as_ref().ok_or_else(missing)?;
                self.charge(count_nodes(body))?;
                Attr::Graph(Arc::new(Subgraph(Box::new(Closure::new(body, scope, self.given.ir_version)))))
            }
            AttrKind::Type => {
                let ty = attribute.tp.as_ref().ok_or_else(missing)?;
                Attr::Type(kinds::element_type(ty).map_err(in_attribute)?)
            }
            kind @ (AttrKind::Tensors | AttrKind::Graphs) => Attr::Other(kind),
        })
    }
}

/// Fails where `--custom-op` names a known operator, and where `--override` names an unknown one.
fn check_override(custom: &CustomOp, known: bool) -> Result<()> {
    let (domain, name) = (domain_name(&custom.domain), &custom.name);
    let message = match (custom.overrides, known) {
        (false, true) => format!(
            "{domain}.{name} is known: --override has the function {} take its place",
            custom.function
        ),
        (true, false) => format!(
            "{domain}.{name} is not known: --custom-op, not --override, has {} compute it",
            custom.function
        ),
        _ => return Ok(()),
    };
    Err(Error::new(Stage::Import, Kind::Usage, message))
}

/// Primitives that a node of the model's own graph may become at no charge.
const PAID_BY_FILE: u64 = 16;

/// Primitives that a size which data decide counts as, with its checks and blocks.
const COST_OF_SIZE: u64 = 8;

/// The versions that a model imports, as text.
fn imports(opsets: &Opsets) -> String {
    let imports = opsets.iter().map(|(domain, version)| format!("{} {version}", domain_name(domain)));
    let mut imports = shortened(opsets.iter().len(), imports);
    imports.sort_unstable();
    if imports.is_empty() { "nothing".to_string() } else { imports.join(", ") }
}

fn label(node: &NodeProto, index: usize, scope: &Scope<'_>) -> String {
    format!("{}{}", scope.prefix, own_name(node, index))
}

/// Gives columns that have none the name of their value.
fn name_columns(b: &mut Builder<'_>, name: &str, item: &Item) {
    if let (Layout::AnyRank { .. }, &[rank, data]) = (item.layout(), item.columns()) {
        b.graph.values[rank].name = format!("{name}.rank");
        b.graph.values[data].name = name.to_string();
        return;
    }
    let parts = item.layout().parts();
    for (at, &column) in item.columns().iter().enumerate() {
        let own = &mut b.graph.values[column].name;
        match parts.get(at) {
            Some(_) if !own.is_empty() => {}
            Some(Part::Whole) => *own = name.to_string(),
            Some(part) => *own = format!("{name}.{}", part.name()),
            // An element of a list keeps the name of the node that gives it.
            None => {}
        }
    }
}

/// What an input name of a node stands for.
fn resolve(name: &str, node: &NodeProto, scope: &Scope<'_>) -> Result<Binding> {
    if name.is_empty() {
        return Ok(Binding::Omitted);
    }
    match scope.get(name) {
        Some(binding) => Ok(binding),
        None if node.output.iter().any(|output| output == name) => {
            malformed(format!("input `{name}` depends on the node itself"))
        }
        None if scope.cyclic.contains(name) => Ok(Binding::Poisoned),
        None => malformed(format!("input `{name}` is not defined")),
    }
}
