//! What the text of a model breaks: checks that need no types, done once and before the walk that imports. Names and versions are
//! here, nodes and their attributes in [`node`], training information in [`training`], device configurations in [`device`].
//!
//! What needs types, values or the order of nodes is checked by the walk, as it meets it.

mod device;
mod node;
mod training;

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{
    DeviceConfigurationProto, FunctionProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto,
    TypeProto, ValueInfoProto,
};

use super::diagnostics::{LISTED, Log};
use super::function::function_key;
use super::opsets::{Opsets, plain_opsets};
use super::scope::bodies;
use super::types::negative_size;
use super::{FunctionKey, NEWEST, domain_name, normal_domain};
use onnxc_ir::error::{Error, NodeRef, Stage};
use onnxc_ir::rules::Rule;
use onnxc_ops::Table;

/// What is found: errors, and warnings and notes to which the walk adds.
pub(super) struct Findings {
    pub errors: Vec<Error>,
    pub log: Log,
}

/// Checks a model whose imported versions are `opsets`; `log` has what was found in these.
pub(super) fn validate<'m>(
    model: &'m ModelProto,
    opsets: &Opsets,
    table: &'m Table,
    log: Log,
    trains: bool,
) -> Findings {
    let functions = model.functions.iter().map(|function| (function_key(function), function)).collect();
    let mut validator = Validator {
        model,
        table,
        functions,
        errors: BTreeMap::new(),
        log,
        not_imported: HashSet::new(),
        configurations: model.configuration.iter().map(|own| (own.name(), own)).collect(),
        ranks: OnceCell::new(),
        trains,
    };
    validator.model(opsets);
    let errors = validator.errors.into_values().flat_map(|(mut listed, more)| {
        if more > 0 {
            let entry = listed[0].rule.and_then(onnxc_ir::rules::by_id);
            let text = entry.map_or("", |entry| entry.text);
            listed.push(listed[0].clone().further(more, text));
        }
        listed
    });
    Findings { errors: errors.collect(), log: validator.log }
}

/// Where nodes are.
#[derive(Clone)]
struct NodeScope<'m> {
    opsets: Arc<Opsets>,
    /// The function that they are in.
    function: Option<&'m FunctionProto>,
    /// What is before their names in messages.
    prefix: String,
    role: Role,
}

/// What nodes are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// They are imported.
    Compiled,
    /// They are in a function that nothing calls.
    Unused,
    /// They are in training information.
    Training,
}

/// Names that are defined at a point of the walk, with how deep in bodies the graph is that defines each.
#[derive(Default)]
struct Names<'m> {
    depths: HashMap<&'m str, usize>,
    depth: usize,
    /// Those of the graphs around this point, in the order of their definitions.
    defined: Vec<&'m str>,
}

impl<'m> Names<'m> {
    /// Defines a name; whether a graph around has defined it before.
    fn define(&mut self, name: &'m str) -> bool {
        if name.is_empty() {
            return false;
        }
        match self.depths.get(name) {
            Some(&depth) => depth < self.depth,
            None => {
                self.depths.insert(name, self.depth);
                self.defined.push(name);
                false
            }
        }
    }
}

struct Validator<'m> {
    model: &'m ModelProto,
    table: &'m Table,
    functions: HashMap<FunctionKey<'m>, &'m FunctionProto>,
    /// The first few errors of each kind, and how many more there are.
    errors: BTreeMap<Rule, (Vec<Error>, u64)>,
    log: Log,
    /// Known domains that are used without being imported.
    not_imported: HashSet<&'m str>,
    configurations: HashMap<&'m str, &'m DeviceConfigurationProto>,
    /// Ranks of the values of the model's graph, as far as they are declared: for nodes that are sharded.
    ranks: OnceCell<HashMap<&'m str, i64>>,
    /// Training information is compiled.
    trains: bool,
}

fn malformed(message: String) -> Error {
    Error::malformed(Stage::Import, message)
}

impl<'m> Validator<'m> {
    fn error(&mut self, rule: Rule, make: impl FnOnce() -> Error) {
        let (listed, more) = self.errors.entry(rule).or_default();
        match listed.len() < LISTED {
            true => listed.push(make().of_kind(rule.id())),
            false => *more += 1,
        }
    }

    fn warn(&mut self, rule: Rule, make: impl FnOnce() -> String) {
        self.log.found(rule, || malformed(make()));
    }

    fn model(&mut self, opsets: &Opsets) {
        let model = self.model;
        let Some(graph) = &model.graph else { return };
        self.versions(opsets);
        self.metadata("the model", &model.metadata_props);
        let place = NodeScope {
            opsets: Arc::new(opsets.clone()),
            function: None,
            prefix: String::new(),
            role: Role::Compiled,
        };
        self.interface(graph);
        self.graph(graph, &place, &mut Names::default());
        let called = self.called(graph);
        for function in &model.functions {
            let role = if called.contains(&function_key(function)) { Role::Compiled } else { Role::Unused };
            self.function(function, role);
        }
        self.training(graph, opsets);
        self.devices();
        self.annotations(graph);
    }

    fn versions(&mut self, opsets: &Opsets) {
        let model = self.model;
        match model.ir_version {
            None => self.error(Rule::IrMissing, || {
                malformed("the model has no ir_version, which says how its other fields are read".to_string())
            }),
            Some(version) if version <= 0 => self.warn(Rule::IrZero, || {
                format!(
                    "ir_version is {version}, and the first one is 1; the model is read as one of version 1"
                )
            }),
            Some(version) if version < 3 && !model.opset_import.is_empty() => {
                self.warn(Rule::OpsetBeforeIr3, || {
                    format!(
                        "ir_version is {version}, and operator sets are imported since 3; the imports hold"
                    )
                });
            }
            _ => {}
        }
        for &(domain, newest) in NEWEST {
            let Some(opset) = opsets.imported(domain).filter(|&opset| opset > newest) else { continue };
            self.log.note(Rule::FutureOpset, || {
                let domain = domain_name(domain);
                format!("opset {opset} of {domain} is newer than {newest}, the newest known: operators mean what they mean there")
            });
        }
    }

    fn metadata(&mut self, of: &str, entries: &'m [StringStringEntryProto]) {
        let mut keys = HashSet::new();
        for entry in entries {
            if !keys.insert(entry.key()) {
                self.warn(Rule::MetadataKeys, || {
                    format!("metadata_props of {of} has the key `{}` twice", entry.key())
                });
            }
        }
    }

    /// What holds for the model's own graph only.
    fn interface(&mut self, graph: &'m GraphProto) {
        let version = self.model.ir_version();
        if (1..4).contains(&version) {
            let inputs: HashSet<&str> = graph.input.iter().map(ValueInfoProto::name).collect();
            for tensor in graph.initializer.iter().filter(|tensor| !inputs.contains(tensor.name())) {
                self.warn(Rule::Ir3Initializer, || {
                    format!(
                        "initializer `{}` is not an input of the graph; in IR version {version} each must be one",
                        tensor.name()
                    )
                });
            }
        }
        for info in &graph.output {
            let value = info.r#type.as_ref().and_then(|ty| ty.value.as_ref());
            let missing = match value {
                None => "type",
                Some(TypeValue::TensorType(tensor)) if tensor.elem_type() == 0 => "type",
                Some(TypeValue::TensorType(tensor)) if tensor.shape.is_none() => "shape",
                _ => continue,
            };
            self.warn(Rule::OutputType, || {
                format!("output `{}` has no declared {missing}; the inferred one holds", info.name())
            });
        }
    }

    /// Names, and the nodes, of a graph or a body; `names` are those of the graphs around.
    fn graph(&mut self, graph: &'m GraphProto, place: &NodeScope<'m>, names: &mut Names<'m>) {
        let is_body = names.depth > 0;
        if graph.name().is_empty() {
            self.warn(Rule::GraphName, || match is_body {
                true => format!("{}a body has no name; each graph must have one", place.prefix),
                false => "the graph has no name; each graph must have one".to_string(),
            });
        }
        self.metadata(&format!("graph `{}`", graph.name()), &graph.metadata_props);
        self.value_infos(graph);
        let around = names.defined.len();
        let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
        let tensors = graph.initializer.iter().chain(sparse).map(|tensor| ("initializer", tensor.name()));
        for (what, name) in graph.input.iter().map(|info| ("input", info.name())).chain(tensors) {
            if names.define(name) {
                self.warn(Rule::ShadowedName, || {
                    format!(
                        "{what} `{name}` of body `{}` has the name of a value of the graph around; the body sees its own",
                        graph.name()
                    )
                });
            }
        }
        self.nodes(&graph.node, place, names);
        for info in &graph.output {
            let is_outer = names.depths.get(info.name()).is_some_and(|&depth| depth < names.depth);
            if is_outer && !graph.input.iter().any(|input| input.name() == info.name()) {
                self.warn(Rule::BodyOutput, || {
                    format!(
                        "output `{}` of body `{}` is a value of the graph around, which ONNX Runtime refuses; an Identity in the body \
                         gives it there",
                        info.name(),
                        graph.name()
                    )
                });
            }
        }
        for name in names.defined.drain(around..) {
            names.depths.remove(name);
        }
    }

    fn nodes(&mut self, nodes: &'m [NodeProto], place: &NodeScope<'m>, names: &mut Names<'m>) {
        let mut own = HashSet::new();
        for (index, node) in nodes.iter().enumerate() {
            if !node.name().is_empty() && !own.insert(node.name()) {
                self.log.found(Rule::NodeName, || {
                    malformed(format!("a node before it is called `{}`, too", node.name()))
                        .at(place.site(node, index))
                });
            }
            self.node(index, node, place);
            names.depth += 1;
            for body in bodies(node) {
                self.graph(body, place, names);
            }
            names.depth -= 1;
            for name in &node.output {
                if names.define(name) {
                    self.log.found(Rule::ShadowedByNode, || {
                        malformed(format!(
                            "output `{name}` has the name of a value that a graph around the body defines before; the body sees its own"
                        ))
                        .at(place.site(node, index))
                    });
                }
            }
        }
    }

    fn value_infos(&mut self, graph: &'m GraphProto) {
        let mut known = HashSet::new();
        for info in &graph.value_info {
            if !known.insert(info.name()) {
                self.warn(Rule::ValueInfoTwice, || {
                    format!(
                        "value_info of graph `{}` describes `{}` twice; the last one is read",
                        graph.name(),
                        info.name()
                    )
                });
            }
        }
        let values = [("input", &graph.input), ("output", &graph.output), ("value", &graph.value_info)];
        for (what, info) in
            values.into_iter().flat_map(|(what, infos)| infos.iter().map(move |info| (what, info)))
        {
            if let Some(size) = info.r#type.as_ref().and_then(negative_dim) {
                self.warn(Rule::NegativeDim, || {
                    format!(
                        "{what} `{}` is declared with a size of {size}; it is taken for an unknown one",
                        info.name()
                    )
                });
            }
        }
    }

    fn function(&mut self, function: &'m FunctionProto, role: Role) {
        let name = function.name();
        if name.is_empty() {
            self.warn(Rule::GraphName, || {
                format!("a function of domain `{}` has no name; nothing can call it", function.domain())
            });
        }
        self.metadata(&format!("function `{name}`"), &function.metadata_props);
        let defaults = function.attribute_proto.iter().map(|attribute| attribute.name());
        let mut known = HashSet::new();
        for attribute in function.attribute.iter().map(String::as_str).chain(defaults) {
            if !known.insert(attribute) {
                self.warn(Rule::FunctionAttributeTwice, || {
                    format!("function {name} lists attribute `{attribute}` twice")
                });
            }
        }
        let mut known = HashSet::new();
        for output in &function.output {
            if !known.insert(output) {
                self.error(Rule::FunctionOutputTwice, || {
                    malformed(format!(
                        "function {name} lists output `{output}` twice; outputs need names of their own"
                    ))
                });
            }
        }
        let place = NodeScope {
            opsets: Arc::new(plain_opsets(&function.opset_import)),
            function: Some(function),
            prefix: format!("{name}/"),
            role,
        };
        for attribute in &function.attribute_proto {
            let about = |message: String| malformed(format!("function {name}: {message}"));
            self.attribute(attribute, None, &about);
        }
        let mut names = Names::default();
        for input in &function.input {
            names.define(input);
        }
        self.nodes(&function.node, &place, &mut names);
    }

    /// The functions that the nodes of a graph call, also through each other.
    fn called(&self, graph: &'m GraphProto) -> HashSet<FunctionKey<'m>> {
        let (mut called, mut open) = (HashSet::new(), vec![graph.node.as_slice()]);
        let training =
            self.model.training_info.iter().flat_map(|info| [&info.initialization, &info.algorithm]);
        open.extend(training.flatten().map(|graph| graph.node.as_slice()));
        while let Some(nodes) = open.pop() {
            for node in nodes {
                if let Some(function) = self.callee(node)
                    && called.insert(function_key(function))
                {
                    open.push(&function.node);
                }
                open.extend(bodies(node).map(|body| body.node.as_slice()));
            }
        }
        called
    }

    fn callee(&self, node: &NodeProto) -> Option<&'m FunctionProto> {
        let key = (normal_domain(node.domain()), node.op_type(), node.overload());
        let functions: &HashMap<FunctionKey<'_>, &'m FunctionProto> = &self.functions;
        functions.get(&key).copied()
    }

    fn annotations(&mut self, graph: &'m GraphProto) {
        if graph.quantization_annotation.is_empty() {
            return;
        }
        let values = defined_values(graph);
        for annotation in &graph.quantization_annotation {
            let name = annotation.tensor_name();
            if !values.contains(name) {
                self.warn(Rule::QuantizationTarget, || {
                    format!("a quantization annotation is about `{name}`, which is not a value of the graph")
                });
            }
            self.log.note(Rule::QuantizationIgnored, || {
                format!("quantization annotation of `{name}` is ignored")
            });
        }
    }
}

impl NodeScope<'_> {
    /// A node without known types.
    fn site(&self, node: &NodeProto, index: usize) -> NodeRef {
        NodeRef {
            name: format!("{}{}", self.prefix, super::names::own_name(node, index)),
            domain: normal_domain(node.domain()).to_string(),
            op_type: node.op_type().to_string(),
            version: None,
            index,
            inputs: Vec::new(),
        }
    }
}

/// Inputs, initializers and results of nodes of a graph.
pub(super) fn defined_values(graph: &GraphProto) -> HashSet<&str> {
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| tensor.values.as_ref());
    let tensors = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
    let results = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let inputs = graph.input.iter().map(ValueInfoProto::name);
    tensors.chain(results).chain(inputs).filter(|name| !name.is_empty()).collect()
}

/// A negative size in a declared type, also of the elements of a sequence, a map or an optional value.
fn negative_dim(ty: &TypeProto) -> Option<i64> {
    let mut open = Some(ty);
    while let Some(value) = open.and_then(|ty| ty.value.as_ref()) {
        let shape = match value {
            TypeValue::TensorType(tensor) => tensor.shape.as_ref(),
            TypeValue::SparseTensorType(tensor) => tensor.shape.as_ref(),
            TypeValue::SequenceType(sequence) => {
                open = sequence.elem_type.as_deref();
                continue;
            }
            TypeValue::OptionalType(optional) => {
                open = optional.elem_type.as_deref();
                continue;
            }
            TypeValue::MapType(map) => {
                open = map.value_type.as_deref();
                continue;
            }
            TypeValue::OpaqueType(_) => None,
        };
        return shape?.dim.iter().find_map(negative_size);
    }
    None
}
