//! The interface of the model's own graph: inputs, initializers and outputs around the walk of its nodes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use onnxc_proto::{GraphProto, SparseTensorProto, TensorProto, ValueInfoProto};

use super::names::shortened;
use super::scope::{Binding, Env, Scope, constants};
use super::{Importer, compound, kinds, types};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{Dim, Graph, Tensor, TensorType};
use onnxc_ir::rules::Rule;
use onnxc_ops::item::{Item, Layout};

/// Unlike symbolic dims of all inputs: every run checks each of them, in one function.
const MAX_SYMBOLS: usize = 512;

impl Importer<'_> {
    /// The model's own graph.
    pub(super) fn main_graph(&mut self, proto: &GraphProto, env: Arc<Env>) -> Graph {
        let mut graph = Graph { name: proto.name().to_string(), ..Graph::default() };
        let mut scope = Scope::new(env, String::new(), &proto.node);
        scope.declare(proto);
        for error in self.types.take(proto, self.given.options) {
            self.problems.report(error);
        }
        self.interface(&mut graph, proto, &mut scope);
        if graph.symbols.len() > MAX_SYMBOLS {
            let message = format!(
                "the inputs have {} symbolic dims; the most is {MAX_SYMBOLS}: give some a size (--input-dim)",
                graph.symbols.len()
            );
            self.problems.report(Error::new(Stage::Import, Kind::Budget, message));
        }
        let mut declared_outputs = HashMap::new();
        for info in &proto.output {
            if let Some(ty) = self.types.declared_output(&mut graph, info) {
                declared_outputs.insert(info.name().to_string(), ty);
            }
        }
        scope.declared_outputs = declared_outputs;
        let origin = graph.origins.next_key();
        let names: Vec<&str> = proto.output.iter().map(|info| info.name()).collect();
        scope.leave_ranks_open(names.iter().copied(), &vec![true; names.len()]);
        self.nodes(&mut Builder::new(&mut graph, origin), &proto.node, &names, &mut scope);
        self.outputs(&mut graph, proto, &scope);
        graph.keep_reachable();
        graph
    }

    /// Inputs and initializers. Before IR version 4 every initializer had to be an input as well, and is a
    /// constant all the same; since then such an input can be overridden.
    fn interface(&mut self, graph: &mut Graph, proto: &GraphProto, scope: &mut Scope<'_>) {
        let mut defaults: HashMap<String, Tensor> = HashMap::new();
        let declared: HashSet<&str> = proto.input.iter().map(|info| info.name()).collect();
        let constant = self.given.ir_version < 4 || !self.given.options.overridable_defaults;
        let constants = constants(&proto.node);
        for (name, tensor) in self.initializers(proto) {
            match tensor {
                _ if constants.contains_key(name) => self.problems.superseded("initializer", name),
                Some(tensor) if declared.contains(name) => {
                    defaults.insert(name.to_string(), tensor);
                }
                tensor => self.define_constant(graph, scope, name, tensor),
            }
        }
        if constant && self.given.ir_version >= 4 && !defaults.is_empty() {
            let mut names: Vec<&str> = defaults.keys().map(String::as_str).collect();
            names.sort_unstable();
            let names = shortened(names.len(), names.iter().map(|name| name.to_string())).join(", ");
            self.problems.log.note(Rule::DefaultIsConstant, || {
                format!("initializers that are also inputs are constants: {names}")
            });
        }
        for info in &proto.input {
            let name = info.name();
            if name.is_empty() {
                self.problems.malformed("a graph input has no name".to_string());
                continue;
            }
            if constants.contains_key(name) {
                self.problems.superseded("input", name);
                continue;
            }
            if scope.get(name).is_some() {
                // An initializer that failed to decode is reported; only a second input is news.
                if scope.get(name) != Some(Binding::Poisoned) {
                    self.problems.malformed(format!("input `{name}` is defined twice"));
                }
                continue;
            }
            let binding = match self.input(graph, info, defaults.remove(name), constant) {
                Ok(binding) => binding,
                Err(error) => {
                    self.problems.report(error);
                    Binding::Poisoned
                }
            };
            scope.define(name, binding);
        }
    }

    fn input(
        &mut self,
        graph: &mut Graph,
        info: &ValueInfoProto,
        default: Option<Tensor>,
        constant: bool,
    ) -> Result<Binding> {
        let origin = graph.origins.next_key();
        if let Some(tensor) = default {
            if constant && self.types.given_shape(info).is_some() {
                let (name, shape) = (info.name(), &tensor.shape);
                let message = format!(
                    "--input-shape of `{name}`: an initializer of shape {shape:?} has this name, and so it is a constant; \
                     --overridable-defaults leaves it to the caller"
                );
                return Err(Error::new(Stage::Import, Kind::Usage, message));
            }
            let shape = tensor.shape.iter().map(|&size| Dim::from(size)).collect();
            let found = TensorType::new(tensor.dtype, shape);
            if constant {
                self.problems.check_declared(info, &found);
                let value = Builder::new(graph, origin).constant(tensor);
                graph.values[value].name = info.name().to_string();
                return Ok(value.into());
            }
            if let Some((_, message)) = types::deviation(info, &found) {
                return Err(Error::malformed(Stage::Import, format!("initializer {message}")));
            }
            let ty = self.types.input(graph, info, Some(&tensor.shape))?;
            return Ok(Builder::new(graph, origin).input(info.name(), ty, Some(tensor)).into());
        }
        if !kinds::is_tensor(info) {
            let columns = self.types.compound_input(graph, info)?;
            return Ok(Binding::Value(compound::input(graph, info.name(), columns)?));
        }
        let ty = self.types.input(graph, info, None)?;
        if let Some(note) = self.types.overridden(info) {
            self.problems.log.note_of_option(Rule::InputShape, note);
        }
        Ok(Builder::new(graph, origin).input(info.name(), ty, None).into())
    }

    /// Decodes all initializers of a graph; `None` for one that is reported. Of several of one name and type the last one is
    /// given, in the place of the first.
    pub(super) fn initializers<'p>(&mut self, proto: &'p GraphProto) -> Vec<(&'p str, Option<Tensor>)> {
        let mut tensors: Vec<(&str, Option<Tensor>)> = Vec::with_capacity(proto.initializer.len());
        let mut places: HashMap<&str, usize> = HashMap::new();
        let dense = proto.initializer.iter().map(|tensor| (tensor.name(), self.dense(tensor)));
        let mut decoded: Vec<_> = dense.collect();
        for sparse in &proto.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name());
            decoded.push((name, self.sparse(sparse)));
        }
        for (name, tensor) in decoded {
            if name.is_empty() {
                self.problems.malformed("an initializer has no name".to_string());
            }
            let tensor = tensor.map_err(|error| self.problems.report(error)).ok();
            match places.get(name) {
                Some(&place) if !name.is_empty() => {
                    self.problems.redefine(name, &mut tensors[place].1, tensor)
                }
                _ => {
                    places.insert(name, tensors.len());
                    tensors.push((name, tensor));
                }
            }
        }
        tensors
    }

    /// A dense tensor of the model; what breaks rules and can be read gives warnings.
    pub(super) fn dense(&mut self, proto: &TensorProto) -> Result<Tensor> {
        let tensor = self.constants.dense(proto);
        self.tell_oddities();
        tensor
    }

    /// As [`Importer::dense`], for a sparse tensor.
    pub(super) fn sparse(&mut self, proto: &SparseTensorProto) -> Result<Tensor> {
        let tensor = self.constants.sparse(proto);
        self.tell_oddities();
        tensor
    }

    fn tell_oddities(&mut self) {
        for (rule, message) in std::mem::take(&mut self.constants.oddities) {
            self.problems.warn(rule, message, None);
        }
    }

    pub(super) fn define_constant(
        &mut self,
        graph: &mut Graph,
        scope: &mut Scope<'_>,
        name: &str,
        tensor: Option<Tensor>,
    ) {
        let binding = match tensor {
            Some(tensor) => {
                let origin = graph.origins.next_key();
                let value = Builder::new(graph, origin).constant(tensor);
                graph.values[value].name = name.to_string();
                value.into()
            }
            None => Binding::Poisoned,
        };
        if !scope.define(name, binding) {
            self.problems.malformed(format!("initializer `{name}` is defined twice"));
        }
    }

    fn outputs(&mut self, graph: &mut Graph, proto: &GraphProto, scope: &Scope<'_>) {
        if proto.output.is_empty() {
            self.problems.malformed("the graph has no outputs".to_string());
        }
        let mut listed = HashSet::with_capacity(proto.output.len());
        for info in &proto.output {
            let name = info.name();
            if let Err(error) = kinds::check_output(info) {
                self.problems.report(match scope.definers.get(name) {
                    Some(&index) => {
                        let origin = graph.origins.next_key();
                        error.at(self.given.site(
                            &Builder::new(graph, origin),
                            index,
                            &proto.node[index],
                            scope,
                        ))
                    }
                    None => error,
                });
                continue;
            }
            let item = match scope.get(name) {
                Some(Binding::Value(item)) => item,
                Some(Binding::Poisoned) => continue,
                Some(Binding::Omitted) | None => {
                    self.problems.malformed(format!("output `{name}` is not defined"));
                    continue;
                }
            };
            if !listed.insert(name) {
                self.problems.warn(
                    Rule::OutputTwice,
                    format!("output `{name}` is listed twice; it is given once"),
                    None,
                );
                continue;
            }
            let value = match item {
                Item::Tensor(value) => value,
                compound => {
                    let given = match compound.layout() {
                        Layout::AnyRank { least, most } => {
                            let data = compound.columns().last().map(|&data| graph.ty(data).clone());
                            data.iter().for_each(|found| self.types.name_symbols(graph, info, found));
                            compound::any_rank_output(graph, info, &compound, [least, most])
                        }
                        _ => compound::output(graph, info, &compound),
                    };
                    if let Err(error) = given {
                        self.problems.report(error);
                    }
                    continue;
                }
            };
            let found = graph.ty(value).clone();
            if !scope.definers.contains_key(name) {
                self.problems.check_declared(info, &found);
            }
            self.types.name_symbols(graph, info, &found);
            graph.outputs.push((name.to_string(), value));
        }
    }
}
