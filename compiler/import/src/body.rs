//! Bodies of control flow: a body is a closure over the graph around it, imported in place or as a graph of
//! its own when a row asks for it.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use onnxc_proto::GraphProto;

use super::scope::{Binding, Env, Scope, constants, referenced_names};
use super::{Importer, map, types};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Graph, Sym, TensorType};
use onnxc_ops::inner::Inner;
use onnxc_ops::item::{self, Item, ItemType};
use onnxc_ops::{Body, BodyImporter, BodySource, Fork, Stream, Subgraph};

/// A graph attribute, with the values around it that its names stand for.
#[derive(Debug)]
pub(crate) struct Closure {
    pub(super) proto: GraphProto,
    env: Arc<Env>,
    prefix: String,
    /// Names of the graph around that it refers to, and perhaps defines anew.
    captures: Vec<(String, Binding)>,
}

impl Closure {
    pub(super) fn new(proto: &GraphProto, scope: &Scope<'_>, ir_version: i64) -> Closure {
        let mut proto = proto.clone();
        if ir_version < 4 {
            // Where every initializer had to be an input as well, those are constants, and nothing is passed for them.
            let names: HashSet<String> =
                proto.initializer.iter().map(|tensor| tensor.name().to_string()).collect();
            proto.input.retain(|info| !names.contains(info.name()));
        }
        let mut captures = Vec::new();
        for name in referenced_names(&proto) {
            if let Some(binding) = scope.get(name) {
                captures.push((name.to_string(), binding));
            }
        }
        Closure { proto, env: scope.env.clone(), prefix: scope.prefix.clone(), captures }
    }

    fn scope(&self) -> Scope<'_> {
        let mut scope = Scope::new(self.env.clone(), self.prefix.clone(), &self.proto.node);
        scope.declare(&self.proto);
        scope
    }

    /// The body of the same surroundings that another graph says.
    pub(super) fn rewritten(&self, proto: GraphProto) -> Closure {
        let (env, prefix, captures) = (self.env.clone(), self.prefix.clone(), self.captures.clone());
        Closure { proto, env, prefix, captures }
    }

    pub(super) fn check_inputs(&self, given: usize) -> Result<()> {
        match given == self.inputs() {
            true => Ok(()),
            false => Err(Error::malformed(
                Stage::Import,
                format!(
                    "body `{}` takes {} inputs where {given} are given",
                    self.proto.name(),
                    self.inputs()
                ),
            )),
        }
    }
}

impl BodySource for Closure {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn continues(&self) -> bool {
        super::fork::mark(&self.proto).is_some()
    }

    fn knows_unit(&self) -> bool {
        super::fork::mark(&self.proto).is_some_and(|unit| !unit.is_empty())
    }

    fn inputs(&self) -> usize {
        self.proto.input.len()
    }

    fn input_rank(&self, at: usize) -> Option<usize> {
        use onnxc_proto::type_proto::Value;
        match self.proto.input.get(at)?.r#type.as_ref()?.value.as_ref()? {
            Value::TensorType(tensor) => Some(tensor.shape.as_ref()?.dim.len()),
            _ => None,
        }
    }

    fn input_type(&self, at: usize) -> Option<(DType, Vec<Option<Dim>>)> {
        let (dtype, dims) = types::tensor_type(self.proto.input.get(at)?).ok()?;
        let size = |dim| match types::declared_dim(dim) {
            types::Declared::Size(size) => Some(Dim::from(size)),
            _ => None,
        };
        Some((dtype, dims?.iter().map(size).collect()))
    }

    fn input_names(&self) -> Vec<&str> {
        self.proto.input.iter().map(|info| info.name()).collect()
    }

    fn output_names(&self) -> Vec<&str> {
        self.proto.output.iter().map(|info| info.name()).collect()
    }

    fn outputs(&self) -> usize {
        self.proto.output.len()
    }

    fn is_poisoned(&self) -> bool {
        self.captures.iter().any(|(_, binding)| *binding == Binding::Poisoned)
    }

    fn element_types(&self) -> Result<Vec<DType>> {
        self.proto.output.iter().map(map::element_type).collect()
    }

    fn over_elements(&self, sequences: &[bool]) -> Result<Subgraph> {
        self.check_inputs(sequences.len())?;
        Ok(Subgraph(Box::new(self.rewritten(map::mapped(&self.proto, sequences)?))))
    }
}

/// A body as this importer made it.
pub(super) fn source(body: &Subgraph) -> Result<&Closure> {
    let internal = || Error::internal(Stage::Import, "a body of another importer");
    body.as_any().downcast_ref().ok_or_else(internal)
}

impl Importer<'_> {
    /// Imports the content of a body whose captures are bound; gives its outputs, or the first problem.
    fn body_content(
        &mut self,
        b: &mut Builder<'_>,
        body: &Closure,
        inputs: &[Item],
        scope: &mut Scope<'_>,
    ) -> Result<Vec<Item>> {
        let proto = &body.proto;
        let (problems, reports, warnings) =
            (self.problems.errors.len(), self.problems.reports, self.problems.log.mark());
        let constants = constants(&proto.node);
        for (info, value) in proto.input.iter().zip(inputs) {
            self.problems.check_declared_item(info, value, b);
            if constants.contains_key(info.name()) {
                self.problems.superseded("body input", info.name());
                continue;
            }
            if !scope.define(info.name(), Binding::Value(value.clone())) {
                self.problems.malformed(format!("body input `{}` is defined twice", info.name()));
            }
        }
        for (name, tensor) in self.initializers(proto) {
            if constants.contains_key(name) {
                self.problems.superseded("initializer", name);
                continue;
            }
            self.define_constant(b.graph, scope, name, tensor);
        }
        let open = std::mem::take(&mut self.open_ranks.of_body);
        scope.leave_ranks_open(proto.output.iter().map(|info| info.name()), &open);
        let origin = b.origin;
        self.budget.depth += 1;
        let units = self.forks.open.len();
        let unit = super::fork::mark(proto).and_then(|unit| unit.parse::<usize>().ok());
        self.forks.open.extend(unit.filter(|&unit| unit < self.forks.units.len()));
        let names: Vec<&str> = proto.output.iter().map(|info| info.name()).collect();
        self.nodes(b, &proto.node, &names, scope);
        self.forks.open.truncate(units);
        self.budget.depth -= 1;
        b.origin = origin;
        let mut outputs = Vec::with_capacity(proto.output.len());
        for info in &proto.output {
            match scope.get(info.name()) {
                Some(Binding::Value(value)) => outputs.push(value),
                Some(Binding::Poisoned) => {}
                Some(Binding::Omitted) | None => {
                    self.problems.malformed(format!("body output `{}` is not defined", info.name()));
                }
            }
        }
        if self.problems.reports == reports && outputs.len() == proto.output.len() {
            return Ok(outputs);
        }
        // What is warned of may be of a try with other types than those of the model.
        self.problems.log.undo(warnings);
        // A second try may only repeat what the first one listed.
        let problem = self.problems.errors.get(problems).or(self.problems.errors.last()).cloned();
        Err(problem.unwrap_or_else(|| Error::malformed(Stage::Import, "a body uses what is not imported")))
    }

    /// Emits the nodes of a body of `outer` into a graph inside that one.
    fn inside(
        &mut self,
        outer: &Graph,
        inner: &mut Inner,
        body: &Closure,
        inputs: &[Item],
    ) -> Result<Vec<Item>> {
        body.check_inputs(inputs.len())?;
        self.budget.check_depth()?;
        let mut scope = body.scope();
        for (name, binding) in &body.captures {
            let binding = match binding {
                Binding::Value(value) => Binding::Value(value.map(|value| inner.take(outer, value))),
                other => other.clone(),
            };
            scope.capture(name, binding);
        }
        self.body_content(&mut inner.builder(), body, inputs, &mut scope)
    }

    /// As [`Importer::inside`] for the body of a loop; `iteration` is the number of the iteration, if something asks for it.
    fn repeated(
        &mut self,
        outer: &Graph,
        inner: &mut Inner,
        body: &Closure,
        inputs: &[Item],
        iteration: &mut Option<Sym>,
    ) -> Result<Vec<Item>> {
        self.draws.loops.push(*iteration);
        let outputs = self.inside(outer, inner, body, inputs);
        *iteration = self.draws.loops.pop().flatten();
        outputs
    }
}

impl BodyImporter for Importer<'_> {
    fn fork(&mut self, by: Fork) {
        self.forks.wanted = Some(by);
    }

    fn may_have_any_rank(&self, output: usize) -> bool {
        self.open_ranks.of_node.get(output).copied().unwrap_or(false)
    }

    fn branch(&mut self, b: &mut Builder<'_>, body: &Subgraph) -> Result<Body> {
        // What the other branch asks for stays asked for.
        let asked = self.forks.wanted.take();
        self.open_ranks.of_body.clone_from(&self.open_ranks.of_node);
        let branch = self.graph(b, body, &[]);
        self.open_ranks.of_body.clear();
        self.forks.wanted = asked.or(self.forks.wanted.take());
        branch
    }

    fn inline_branch(&mut self, b: &mut Builder<'_>, body: &Subgraph) -> Result<Vec<Item>> {
        self.open_ranks.of_body.clone_from(&self.open_ranks.of_node);
        let results = self.inline(b, body, &[]);
        self.open_ranks.of_body.clear();
        results
    }

    fn is_unit(&self, dim: &Dim) -> Option<bool> {
        self.forks.is_unit(dim)
    }

    fn block(&self) -> Option<usize> {
        self.given.block
    }

    fn stream(&mut self, b: &mut Builder<'_>) -> Stream {
        self.draws.stream(b)
    }

    fn inline(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>> {
        let body = source(body)?;
        body.check_inputs(inputs.len())?;
        self.budget.check_depth()?;
        let mut scope = body.scope();
        for (name, binding) in &body.captures {
            scope.capture(name, binding.clone());
        }
        self.body_content(b, body, inputs, &mut scope)
    }

    fn recompute(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[Item]) -> Result<Vec<Item>> {
        let before = std::mem::replace(&mut self.draws.recomputes, true);
        let results = self.inline(b, body, inputs);
        self.draws.recomputes = before;
        results
    }

    fn charge(&mut self, primitives: u64) -> Result<()> {
        Importer::charge(self, primitives)
    }

    fn graph(&mut self, b: &mut Builder<'_>, body: &Subgraph, inputs: &[ItemType]) -> Result<Body> {
        let body = source(body)?;
        body.check_inputs(inputs.len())?;
        // A symbol means the same inside and outside: the body starts with the symbols there are, and what
        // it adds is kept.
        let mut inner = Inner::new(b);
        inner.graph.name = body.proto.name().to_string();
        let mut given: Vec<Item> = vec![];
        for (info, ty) in body.proto.input.iter().zip(inputs) {
            let mut column = |ty: &TensorType| inner.builder().input(info.name(), ty.clone(), None);
            given.push(Item::new(ty.layout.clone(), ty.columns.iter().map(&mut column).collect()));
        }
        // A body with inputs runs once for each iteration of a loop.
        let mut iteration = None;
        let outputs = match given.is_empty() {
            true => self.inside(b.graph, &mut inner, body, &given),
            false => self.repeated(b.graph, &mut inner, body, &given, &mut iteration),
        };
        let outputs = outputs.and_then(|outputs| {
            let mut b = inner.builder();
            outputs.iter().map(|item| item.packed(&mut b)).collect::<Result<Vec<Item>>>()
        });
        b.graph.adopt_symbols(&inner.graph);
        let outputs = outputs?;
        for (info, item) in body.proto.output.iter().zip(&outputs) {
            let columns = item.columns().iter().map(|&column| (info.name().to_string(), column));
            inner.graph.outputs.extend(columns);
        }
        Ok(Body { iteration, ..inner.finish(&item::columns(&given), &outputs) })
    }

    fn repeat(
        &mut self,
        outer: &Graph,
        inner: &mut Inner,
        body: &Subgraph,
        inputs: &[Item],
        iteration: Sym,
    ) -> Result<Vec<Item>> {
        self.repeated(outer, inner, source(body)?, inputs, &mut Some(iteration))
    }
}
