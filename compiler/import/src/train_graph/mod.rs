//! `training_info` for a model that has none: a loss behind one of its values, the derivatives by its parameters, and a step of an
//! optimizer. All is ONNX to ONNX: the model that comes out infers as before.

mod initialize;
mod lora;
mod loss;
mod names;
mod optimizer;
mod parameters;
mod writer;

use std::collections::HashSet;

use onnxc_proto::tensor_shape_proto::dimension::Value as DimProto;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{
    GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto, TrainingInfoProto,
    ValueInfoProto, build,
};

pub use lora::Lora;
pub use loss::{Label, Loss};
pub use optimizer::Optimizer;

use initialize::First;
use loss::Chosen;
use names::Names;
use optimizer::Parameter;
use parameters::{Candidate, Choice, choose, promote, reached};
use writer::{Writer, floats, text, texts};

use super::names::first_few;
use super::scope::{bodies, definers};
use super::types::is_untyped;
use super::{ExternalData, Import, ImportOptions, Warning, import, normal_domain};
use crate::usage;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType;
use onnxc_ir::words::did_you_mean;
use onnxc_ops::Table;
use onnxc_ops::training::DOMAIN;

/// How a model is to learn.
#[derive(Clone, PartialEq, Debug)]
pub struct TrainOptions {
    pub loss: Loss,
    pub optimizer: Optimizer,
    /// Kept in the state, where callers may change it; `None` makes it an input of the step.
    pub learning_rate: Option<f64>,
    pub weight_decay: f64,
    /// What the loss is of: an output, or another value of the graph. Without it the model's only output.
    pub output: Option<String>,
    /// The type of what is wanted of the output; without it that of the loss.
    pub label: Option<Label>,
    /// The axis of classes for cross entropy.
    pub class_axis: i64,
    /// Patterns of initializers that learn; without any all do that are weights.
    pub learn: Vec<String>,
    /// Patterns of those that do not.
    pub freeze: Vec<String>,
    pub lora: Option<Lora>,
    /// Also write an initialization that draws parameters anew.
    pub initialize: bool,
    /// Of the first values of factors.
    pub seed: u64,
}

impl TrainOptions {
    /// Options with the usual rate of an optimizer.
    pub fn new(loss: Loss, optimizer: Optimizer) -> TrainOptions {
        let (rate, weight_decay) = match optimizer {
            Optimizer::Sgd | Optimizer::Momentum { .. } | Optimizer::Adagrad { .. } => (0.01, 0.0),
            Optimizer::Adam { .. } => (0.001, 0.0),
            Optimizer::AdamW { .. } => (0.001, 0.01),
        };
        TrainOptions {
            loss,
            optimizer,
            learning_rate: Some(rate),
            weight_decay,
            output: None,
            label: None,
            class_axis: 1,
            learn: vec![],
            freeze: vec![],
            lora: None,
            initialize: false,
            seed: 0,
        }
    }
}

/// A model with its training.
#[derive(Debug)]
pub struct TrainGraph {
    pub model: ModelProto,
    /// Names of the initializers that learn.
    pub parameters: Vec<String>,
    pub notes: Vec<String>,
    /// What the model breaks, and is trained all the same.
    pub warnings: Vec<Warning>,
}

/// The IR version that training came with.
const IR_VERSION: i64 = 7;
/// The version of `ai.onnx` that broadcasts as numpy does.
const BROADCASTS: i64 = 7;
/// Tensors named in a note.
const NAMED: usize = 6;

fn bound(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.to_string()), value: Some(value.to_string()) }
}

/// Gives a model training information.
pub fn train_graph(
    model: &ModelProto,
    options: &TrainOptions,
    external: &dyn ExternalData,
    table: &Table,
) -> std::result::Result<TrainGraph, Vec<Error>> {
    let work = Work { options, external, table };
    work.run(model.clone())
}

struct Work<'o> {
    options: &'o TrainOptions,
    external: &'o dyn ExternalData,
    table: &'o Table,
}

/// What is known of the model that is to learn.
struct Known {
    model: ModelProto,
    chosen: Chosen,
    opset: i64,
    names: Names,
}

impl Work<'_> {
    fn run(&self, mut model: ModelProto) -> std::result::Result<TrainGraph, Vec<Error>> {
        let one = |error: Error| vec![error];
        let (opset, chosen, mut notes) = self.chosen(&mut model)?;
        let mut names = Names::of(&model);
        let mut factors = vec![];
        if let Some(graph) = &mut model.graph {
            promote(graph, &self.options.learn);
            if let Some(lora) = &self.options.lora {
                let of_loss = reached(graph, &chosen.name).into_iter().map(str::to_string).collect();
                factors =
                    lora::insert(graph, &of_loss, lora, self.options.seed, &mut names, opset).map_err(one)?;
            }
        }
        let only: Option<HashSet<String>> =
            self.options.lora.is_some().then(|| factors.iter().map(|(own, _)| own.name.clone()).collect());
        let candidates = {
            let Some(graph) = &model.graph else { return Err(one(no_graph())) };
            let of_loss = reached(graph, &chosen.name);
            let TrainOptions { learn, freeze, .. } = self.options;
            let choice = Choice { learn, freeze, only: only.as_ref() };
            let (candidates, left) = choose(graph, &of_loss, &choice).map_err(one)?;
            if candidates.is_empty() {
                return Err(one(nothing_learns(&chosen.name, &left)));
            }
            if !left.is_empty() {
                let of = |(name, why): &(String, String)| format!("`{name}`: {why}");
                let texts = first_few(NAMED, left.len(), left.iter().map(of));
                notes.push(format!("do not learn: {}", texts.join("; ")));
            }
            candidates
        };
        let known = Known { model, chosen, opset, names };
        let (made, found, candidates) = self.made(&known, candidates, &factors, &mut notes)?;
        let count: i64 = candidates.iter().map(|own| own.own.dims.iter().product::<i64>()).sum();
        let parameters: Vec<String> = candidates.into_iter().map(|own| own.own.name).collect();
        let shown = first_few(NAMED, parameters.len(), parameters.iter().map(|name| format!("`{name}`")));
        notes.push(format!("{count} numbers learn, in {}", shown.join(", ")));
        notes.extend(found.entries.iter().map(|entry| entry.described()));
        Ok(TrainGraph { model: made, parameters, notes, warnings: found.warnings })
    }

    /// The version of `ai.onnx`, what the loss is of, and notes about that.
    fn chosen(&self, model: &mut ModelProto) -> std::result::Result<(i64, Chosen, Vec<String>), Vec<Error>> {
        let one = |error: Error| vec![error];
        if let Some(first) = model.training_info.first() {
            let (count, name) =
                (model.training_info.len(), first.algorithm.as_ref().map_or("", |own| own.name()));
            let entries = if count == 1 { "entry" } else { "entries" };
            return Err(one(usage(format!(
                "the model has training_info already ({count} {entries}, the first with the algorithm `{name}`); `onnxc --training` compiles it"
            ))));
        }
        let own = model.opset_import.iter().filter(|import| normal_domain(import.domain()).is_empty());
        let opset = match own.map(|import| import.version()).max() {
            Some(version) if version < BROADCASTS => {
                return Err(one(usage(format!(
                    "the model imports version {version} of ai.onnx, and training needs {BROADCASTS} or newer: convert the model"
                ))));
            }
            Some(version) => version,
            None => {
                // All nodes are of other domains.
                model.opset_import.push(build::opset("", 17));
                17
            }
        };
        let Some(graph) = &model.graph else { return Err(one(no_graph())) };
        let mut notes = vec![];
        let asked = output(graph, self.options.output.as_deref()).map_err(one)?;
        let (name, note) = self.behind(&graph.node, &asked);
        notes.extend(note);
        let info = match graph.output.iter().find(|info| info.name() == asked).filter(|_| name == asked) {
            Some(info) if !is_untyped(info) => info.clone(),
            _ => build::untyped(&name),
        };
        let mut probe = model.clone();
        if let Some(graph) = &mut probe.graph {
            graph.output = vec![info];
        }
        let found = import(&probe, &ImportOptions::default(), self.external, self.table)?;
        let chosen = typed(model, &name, &found).map_err(one)?;
        if self.options.loss == Loss::CrossEntropy {
            let wanted = loss::class_axis_of(&chosen, self.options.class_axis).map_err(one)?;
            // A softmax along another axis would not be part of the loss.
            let axis = softmax_axis(&graph.node, &asked, chosen.dims.len(), opset);
            if name != asked && axis != Some(wanted as i64) {
                let shown = axis.map_or("several axes".to_string(), |axis| format!("axis {axis}"));
                return Err(one(usage(format!(
                    "`{asked}` is a softmax along {shown}, and the classes are along axis {wanted}: --class-axis names another"
                ))));
            }
        }
        Ok((opset, chosen, notes))
    }

    /// The scores that an output is made of, as the loss has the function at the end itself; and a note about that.
    fn behind(&self, nodes: &[NodeProto], asked: &str) -> (String, Option<String>) {
        let (wanted, known) = match self.options.loss {
            Loss::Mse => return (asked.to_string(), None),
            Loss::CrossEntropy => ("Softmax", "LogSoftmax"),
            Loss::Bce => ("Sigmoid", "Sigmoid"),
        };
        let definer = definers(nodes).get(asked).map(|&at| &nodes[at]);
        let definer = definer.filter(|node| normal_domain(node.domain()).is_empty());
        match definer.map(|node| (node.op_type(), node.input.first())) {
            Some((op, Some(scores))) if op == wanted => {
                let note =
                    format!("the loss is that of `{scores}`, the operand of {op} that gives `{asked}`");
                (scores.clone(), Some(note))
            }
            Some((op, _)) if op == known => (asked.to_string(), None),
            _ => {
                let note = format!("`{asked}` is taken for scores, as they are before {wanted}");
                (asked.to_string(), Some(note))
            }
        }
    }

    /// The model with training by those of the candidates that have a derivative, and its import.
    fn made(
        &self,
        known: &Known,
        candidates: Vec<Candidate>,
        factors: &lora::Factors,
        notes: &mut Vec<String>,
    ) -> std::result::Result<(ModelProto, Import, Vec<Candidate>), Vec<Error>> {
        let errors = match self.attempt(known, &candidates, factors) {
            Ok((model, found)) => {
                notes.extend(self.undrawn(&candidates, factors));
                return Ok((model, found, candidates));
            }
            Err(errors) => errors,
        };
        let mut refused = vec![];
        self.refused(known, &candidates, factors, &mut refused);
        let named: Vec<Error> = refused
            .iter()
            .filter(|(at, _)| candidates[*at].named)
            .map(|(at, error)| because(&candidates[*at].own.name, error))
            .collect();
        if !named.is_empty() {
            return Err(named);
        }
        if refused.is_empty() || refused.len() == candidates.len() {
            return Err(errors);
        }
        let texts = first_few(
            NAMED,
            refused.len(),
            refused.iter().map(|(at, error)| format!("`{}`: {error}", candidates[*at].own.name)),
        );
        notes.push(format!("do not learn: {}", texts.join("; ")));
        let gone: HashSet<usize> = refused.iter().map(|(at, _)| *at).collect();
        let kept = candidates.into_iter().enumerate().filter(|(at, _)| !gone.contains(at));
        let kept: Vec<Candidate> = kept.map(|(_, own)| own).collect();
        let (model, found) = self.attempt(known, &kept, factors)?;
        notes.extend(self.undrawn(&kept, factors));
        Ok((model, found, kept))
    }

    /// The candidates that cannot learn by themselves, each with the first error: halves of what fails are tried.
    fn refused(
        &self,
        known: &Known,
        candidates: &[Candidate],
        factors: &lora::Factors,
        refused: &mut Vec<(usize, Error)>,
    ) {
        let mut open = vec![(0, candidates.len())];
        while let Some((from, to)) = open.pop() {
            let Err(errors) = self.attempt(known, &candidates[from..to], factors) else { continue };
            if to - from > 1 {
                let middle = from.midpoint(to);
                open.extend([(middle, to), (from, middle)]);
            } else if let Some(error) = errors.into_iter().next() {
                refused.push((from, error));
            }
        }
    }

    fn attempt(
        &self,
        known: &Known,
        candidates: &[Candidate],
        factors: &lora::Factors,
    ) -> std::result::Result<(ModelProto, Import), Vec<Error>> {
        let model = self.assembled(known, candidates, factors).map_err(|error| vec![error])?;
        let options = ImportOptions { training: true, ..Default::default() };
        let found = import(&model, &options, self.external, self.table)?;
        Ok((model, found))
    }

    fn assembled(
        &self,
        known: &Known,
        candidates: &[Candidate],
        factors: &lora::Factors,
    ) -> Result<ModelProto> {
        let mut names = known.names.clone();
        let mut model = known.model.clone();
        let own: Vec<Parameter> = candidates.iter().map(|candidate| candidate.own.clone()).collect();
        let parameters: Vec<String> = own.iter().map(|own| own.name.clone()).collect();
        let graph = model.graph.as_mut().ok_or_else(no_graph)?;
        // What learns does not stay an input: a caller could not know its value.
        graph.input.retain(|info| !parameters.iter().any(|name| name == info.name()));
        let mut w = Writer::new("train_step", &mut names, known.opset);
        let written = loss::write(
            &mut w,
            self.options.loss,
            &known.chosen,
            self.options.label,
            self.options.class_axis,
        )?;
        let rate = w.names.fresh("learning_rate");
        let mut inputs = vec![written.target.clone()];
        let mut rates = vec![];
        match self.options.learning_rate {
            Some(value) => {
                w.graph.initializer.push(floats(DType::F32, &rate, &[], &[value]));
                let next = w.node("Identity", &[&rate], vec![], &format!("{rate}.next"));
                rates.push((Parameter { name: rate.clone(), dtype: DType::F32, dims: vec![] }, next));
            }
            None => inputs.push(build::f32_value(&rate, &[] as &[i64])),
        }
        let of_loss = reached(graph, &known.chosen.name);
        let constants: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
        let data = graph.input.iter().map(ValueInfoProto::name);
        let data = data.filter(|name| of_loss.contains(name) && !constants.contains(name));
        let zs: Vec<String> = data.map(str::to_string).chain([written.target.name().to_string()]).collect();
        let gradients: Vec<String> =
            parameters.iter().map(|name| w.names.fresh(&format!("{name}.gradient"))).collect();
        let attributes = vec![texts("xs", &parameters), texts("zs", &zs), text("y", &written.loss)];
        w.training("Gradient", &[&parameters[..], &zs].concat(), &gradients, attributes);
        let TrainOptions { optimizer, weight_decay, .. } = *self.options;
        let updates = optimizer::write(&mut w, optimizer, (&rate, weight_decay), &own, &gradients);
        w.output(build::value(&written.loss, written.dtype.to_onnx(), &[] as &[i64]));
        let mut update_binding = vec![];
        for (own, next) in updates.bound.iter().chain(&rates) {
            w.output(build::value(next, own.dtype.to_onnx(), &own.dims));
            update_binding.push(bound(&own.name, next));
        }
        w.graph.input = inputs;
        let algorithm = w.graph;
        let mut info = TrainingInfoProto { algorithm: Some(algorithm), update_binding, ..Default::default() };
        if self.options.initialize {
            let mut values: Vec<(Parameter, First)> = candidates
                .iter()
                .filter_map(|candidate| Some((candidate.own.clone(), first(candidate, factors)?)))
                .collect();
            values.extend(updates.zeroed.into_iter().map(|own| (own, First::All(0.0))));
            let w = Writer::new("initialization", &mut names, known.opset);
            let (graph, bindings) = initialize::write(w, &values);
            info.initialization = Some(graph);
            info.initialization_binding = bindings;
        }
        model.training_info = vec![info];
        model.ir_version = Some(model.ir_version().max(IR_VERSION));
        if !model.opset_import.iter().any(|import| import.domain() == DOMAIN) {
            model.opset_import.push(build::opset(DOMAIN, 1));
        }
        Ok(model)
    }

    /// A note of the parameters that the initialization does not draw.
    fn undrawn(&self, candidates: &[Candidate], factors: &lora::Factors) -> Option<String> {
        let left: Vec<&str> = candidates
            .iter()
            .filter(|own| self.options.initialize && first(own, factors).is_none())
            .map(|own| own.own.name.as_str())
            .collect();
        let names = first_few(NAMED, left.len(), left.iter().map(|name| format!("`{name}`")));
        (!left.is_empty()).then(|| {
            format!("--initialize leaves {} as they are: they are weights of no known kind", names.join(", "))
        })
    }
}

/// Where tensors of a model are outside of its file, each location once, in their order.
pub fn locations(model: &ModelProto) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut tensors: Vec<&TensorProto> = vec![];
    let mut nodes: Vec<&NodeProto> = model.functions.iter().flat_map(|function| &function.node).collect();
    let mut graphs: Vec<&GraphProto> = model.graph.iter().collect();
    for info in &model.training_info {
        graphs.extend(info.initialization.iter().chain(&info.algorithm));
    }
    loop {
        for graph in std::mem::take(&mut graphs) {
            let sparse = graph.sparse_initializer.iter();
            let sparse = sparse.flat_map(|tensor| tensor.values.iter().chain(&tensor.indices));
            tensors.extend(graph.initializer.iter().chain(sparse));
            nodes.extend(&graph.node);
        }
        for node in std::mem::take(&mut nodes) {
            for attribute in &node.attribute {
                let sparse = attribute.sparse_tensor.as_deref().into_iter().chain(&attribute.sparse_tensors);
                tensors.extend(sparse.flat_map(|tensor| tensor.values.iter().chain(&tensor.indices)));
                tensors.extend(attribute.t.as_deref().into_iter().chain(&attribute.tensors));
            }
            graphs.extend(bodies(node));
        }
        if graphs.is_empty() {
            break;
        }
    }
    let entries = tensors.iter().flat_map(|tensor| &tensor.external_data);
    let locations = entries.filter(|entry| entry.key() == "location").map(|entry| entry.value().to_string());
    locations.filter(|location| seen.insert(location.clone())).collect()
}

/// What a parameter begins with.
fn first(candidate: &Candidate, factors: &lora::Factors) -> Option<First> {
    let factor = factors.iter().find(|(own, _)| *own == candidate.own).map(|(_, first)| *first);
    factor.or_else(|| initialize::of_role(candidate.role))
}

fn no_graph() -> Error {
    Error::malformed(Stage::Import, "the model has no graph")
}

fn because(name: &str, error: &Error) -> Error {
    error.clone().reworded(|message| format!("`{name}` cannot learn: {message}"))
}

fn nothing_learns(output: &str, left: &[(String, String)]) -> Error {
    let of = |(name, why): &(String, String)| format!("`{name}`: {why}");
    let texts = first_few(NAMED, left.len(), left.iter().map(of));
    let why = if left.is_empty() {
        "it depends on no weights that are initializers".to_string()
    } else {
        texts.join("; ")
    };
    usage(format!("nothing that `{output}` depends on learns: {why}"))
}

/// The value that is asked for, or the only output.
fn output(graph: &GraphProto, asked: Option<&str>) -> Result<String> {
    let outputs: Vec<&str> = graph.output.iter().map(ValueInfoProto::name).collect();
    let Some(asked) = asked else {
        return match outputs[..] {
            [only] => Ok(only.to_string()),
            _ => Err(usage(format!(
                "the model has {} outputs ({}); --output names the one that learns",
                outputs.len(),
                first_few(NAMED, outputs.len(), outputs.iter().map(|name| format!("`{name}`"))).join(", ")
            ))),
        };
    };
    let computed = definers(&graph.node);
    if outputs.contains(&asked) || computed.contains_key(asked) {
        return Ok(asked.to_string());
    }
    let hint = did_you_mean(asked, outputs.iter().copied().chain(computed.keys().copied()));
    Err(usage(format!("--output {asked}: neither an output nor another result of a node{hint}")))
}

/// Type and shape of a value, by the import of the model up to it.
fn typed(model: &ModelProto, name: &str, found: &Import) -> Result<Chosen> {
    let graph = &found.graph;
    let parts = graph.outputs.len() != 1 || !graph.output_parts.is_empty() || !graph.any_rank.is_empty();
    let Some(&(_, value)) = graph.outputs.first().filter(|_| !parts) else {
        return Err(usage(format!("`{name}` is not a tensor of known rank, so there is no loss of it")));
    };
    let ty = graph.ty(value);
    if ![DType::F32, DType::F64, DType::F16, DType::BF16].contains(&ty.dtype) {
        let dims: Vec<String> = ty.shape.iter().map(|dim| graph.dim_text(dim)).collect();
        return Err(usage(format!(
            "`{name}` is {}[{}], and a loss is of f32, f64, f16 or bf16: --output names another value",
            ty.dtype,
            dims.join(", ")
        )));
    }
    let symbols = symbols(model);
    let dim = |dim: &onnxc_ir::graph::Dim| match (dim.as_const(), dim.as_sym()) {
        (Some(size), _) => size.to_string(),
        (None, Some(sym)) if symbols.contains(graph.symbols[sym].name.as_str()) => {
            graph.symbols[sym].name.clone()
        }
        _ => "?".to_string(),
    };
    Ok(Chosen { name: name.to_string(), dtype: ty.dtype, dims: ty.shape.iter().map(dim).collect() })
}

/// Names of sizes that the inputs of a model have. Those that are numbers would be taken for sizes.
fn symbols(model: &ModelProto) -> HashSet<&str> {
    let inputs = model.graph.iter().flat_map(|graph| &graph.input);
    let tensors = inputs.filter_map(|info| match info.r#type.as_ref()?.value.as_ref()? {
        TypeValue::TensorType(tensor) => tensor.shape.as_ref(),
        _ => None,
    });
    let names = tensors.flat_map(|shape| &shape.dim).filter_map(|dim| match &dim.value {
        Some(DimProto::DimParam(name)) => Some(name.as_str()),
        _ => None,
    });
    names.filter(|name| name.parse::<i64>().is_err()).collect()
}

/// The axis of the softmax that computes a value of some rank; `None` where it is along several.
fn softmax_axis(nodes: &[NodeProto], name: &str, rank: usize, opset: i64) -> Option<i64> {
    let node = definers(nodes).get(name).map(|&at| &nodes[at])?;
    let stated = node.attribute.iter().find(|own| own.name() == "axis").map(|own| own.i());
    let axis = stated.unwrap_or(if opset < 13 { 1 } else { -1 });
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    // Older versions take all axes from this one on together.
    (opset >= 13 || axis + 1 == rank as i64).then_some(axis)
}
