//! `training_info`: what initializes a model and what trains it, as graphs beside the one that infers.
//!
//! An initialization is a graph of its own without inputs. A step is the graph of the model with that of the algorithm behind it, in
//! one namespace, as the specification says. Initializers that are keys of bindings are variables: they become state that all graphs
//! have in common ([`crate::state::shared`]), with the initializers' values for initial ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use onnxc_proto::tensor_shape_proto::dimension::Value as DimProto;
use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto, ValueInfoProto, build};

use super::names::first_few;
use super::opsets::Opsets;
use super::problems::Problems;
use super::tensor::Constants;
use super::validate::{self, defined_values};
use super::{DimPin, ExternalData, Import, ImportOptions, Warning, as_errors, import_with};
use crate::state::Choice;
use crate::state::shared::{Shared, Uses, share};
use crate::usage;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_ir::graph::{DType, Graph};
use onnxc_ops::Table;

/// What calls of a model do, but for inference, which its own graph does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Gives variables the values of an initialization.
    Initialize,
    /// Trains on one batch.
    Step,
}

/// One more program of a model, over the state that all have in common.
#[derive(Debug)]
pub struct Entry {
    pub role: Role,
    /// The number of the training information, if there are several.
    pub number: Option<usize>,
    pub graph: Graph,
    /// What the device configuration says that is followed.
    pub devices: Option<Arrangement>,
}

impl Entry {
    /// What follows the model's name in the names of its functions.
    pub fn suffix(&self) -> String {
        let name = match self.role {
            Role::Initialize => "train_initialize",
            Role::Step => "train_step",
        };
        self.number.map_or(name.to_string(), |number| format!("{name}_{number}"))
    }

    /// What the program takes, gives and changes.
    pub(super) fn described(&self) -> String {
        const NAMED: usize = 6;
        let list = |names: Vec<&str>| match names.len() {
            0 => "nothing".to_string(),
            count => first_few(NAMED, count, names.iter().map(|name| format!("`{name}`"))).join(", "),
        };
        let graph = &self.graph;
        let inputs = graph.inputs.iter().take(graph.given_inputs()).map(|input| input.name.as_str());
        let outputs = graph.outputs.iter().take(graph.given_outputs()).map(|(name, _)| name.as_str());
        let states = graph.inputs.iter().skip(graph.given_inputs()).enumerate();
        let changed = states.filter(|&(at, _)| !graph.is_kept(at)).map(|(_, input)| input.name.as_str());
        let [inputs, outputs, changed] = [inputs.collect(), outputs.collect(), changed.collect()].map(list);
        format!("{} takes {inputs}, gives {outputs} and changes {changed}", self.suffix())
    }
}

/// A binding, and where it stands.
struct Bound<'m> {
    key: &'m str,
    value: &'m str,
    info: usize,
    list: &'static str,
}

impl Bound<'_> {
    fn about(&self) -> String {
        format!("{} of training_info[{}]", self.list, self.info)
    }
}

/// An initializer that bindings change.
struct Variable<'m> {
    proto: &'m TensorProto,
    /// The training information whose algorithm has it; an initializer of the model's own graph has none.
    owner: Option<usize>,
}

const INITIALIZATION: &str = "initialization_binding";
const UPDATE: &str = "update_binding";

/// Imports a model with its training information.
pub(super) fn import(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
) -> std::result::Result<Import, Vec<Error>> {
    if model.training_info.is_empty() {
        let message = "--training: the model has no training_info, which says how it is trained";
        return Err(vec![usage(message.to_string())]);
    }
    if options.state != Choice::default() {
        let message =
            "--state beside --training: the state of a model that is trained is what its training changes";
        return Err(vec![usage(message.to_string())]);
    }
    let Some(graph) = &model.graph else {
        return Err(vec![Error::malformed(Stage::Import, "the model has no graph")]);
    };
    let (mut warnings, mut notes) = check(model, options, table)?;
    let bounds = bounds(model);
    let variables = variables(model, graph, &bounds)?;
    let tensors = tensors(&variables, options, external)?;
    let mut programs = vec![(None, inference(graph, &variables))];
    let number = |info: usize| (model.training_info.len() > 1).then_some(info);
    for (info, own) in model.training_info.iter().enumerate() {
        let binds = |list: &str| bounds.iter().any(|bound| (bound.info, bound.list) == (info, list));
        if let Some(initialization) = own.initialization.as_ref().filter(|_| binds(INITIALIZATION)) {
            programs.push((Some((Role::Initialize, info)), initialization.clone()));
        }
        if let Some(algorithm) = own.algorithm.as_ref().filter(|own| !own.node.is_empty() || binds(UPDATE)) {
            programs.push((Some((Role::Step, info)), step(graph, algorithm, info, &variables)));
        }
    }
    let given: Vec<Vec<bool>> = options
        .input_dims
        .iter()
        .map(|pin| programs.iter().map(|(_, graph)| pins(pin, graph)).collect())
        .collect();
    let shaped: Vec<Vec<bool>> = options
        .input_shapes
        .iter()
        .map(|shape| programs.iter().map(|(_, graph)| has_input(graph, &shape.input)).collect())
        .collect();
    // What all programs have of the model: all but its graphs.
    let shell = ModelProto { graph: None, training_info: vec![], ..model.clone() };
    let (mut own, mut own_devices, mut entries) = (None, None, vec![]);
    for (at, (role, proto)) in programs.into_iter().enumerate() {
        // What fits no graph is reported for the model's own.
        let fits = |table: &Vec<bool>| table[at] || at == 0 && table.iter().all(|fits| !fits);
        let input_dims = options.input_dims.iter().zip(&given).filter(|(_, table)| fits(table));
        let input_shapes = options.input_shapes.iter().zip(&shaped).filter(|(_, table)| fits(table));
        let options = ImportOptions {
            training: false,
            outputs: if at == 0 { options.outputs.clone() } else { vec![] },
            input_dims: input_dims.map(|(pin, _)| pin.clone()).collect(),
            input_shapes: input_shapes.map(|(shape, _)| shape.clone()).collect(),
            ..options.clone()
        };
        let program = ModelProto { graph: Some(proto), ..shell.clone() };
        let mut found =
            import_with(&program, &options, external, table).map_err(|errors| place(role, errors))?;
        share(&mut found.graph, &tensors, &uses(role, &variables, &bounds, model))
            .map_err(|errors| place(role, errors))?;
        let is_new = |warning: &Warning, known: &[Warning]| {
            known.iter().all(|other| !super::diagnostics::same_problem(&other.problem, &warning.problem))
        };
        for warning in found.warnings {
            if is_new(&warning, &warnings) {
                warnings.push(warning);
            }
        }
        for note in found.notes {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        match role {
            None => (own, own_devices) = (Some(found.graph), found.devices),
            Some((role, info)) => {
                if role == Role::Initialize && found.graph.given_inputs() > 0 {
                    let input = &found.graph.inputs[0].name;
                    let message = format!(
                        "training_info[{info}]: the initialization takes `{input}`; it may take nothing"
                    );
                    return Err(vec![Error::malformed(Stage::Import, message)]);
                }
                let entry = Entry { role, number: number(info), graph: found.graph, devices: found.devices };
                notes.push(entry.described());
                entries.push(entry);
            }
        }
    }
    match own {
        Some(graph) => Ok(Import { graph, notes, warnings, entries, devices: own_devices }),
        None => Err(vec![Error::internal(Stage::Import, "the model's own graph has gone")]),
    }
}

fn malformed(message: String) -> Error {
    Error::malformed(Stage::Import, message)
}

/// Says which graph errors are in.
fn place(role: Option<(Role, usize)>, errors: Vec<Error>) -> Vec<Error> {
    let Some((role, info)) = role else { return errors };
    let what = match role {
        Role::Initialize => "the initialization",
        Role::Step => "the step",
    };
    let about = format!("{what} of training_info[{info}]: ");
    errors.into_iter().map(|error| error.reworded(|message| format!("{about}{message}"))).collect()
}

/// What the text of the whole model breaks: warnings and notes.
fn check(
    model: &ModelProto,
    options: &ImportOptions,
    table: &Table,
) -> std::result::Result<(Vec<Warning>, Vec<String>), Vec<Error>> {
    let mut problems = Problems::default();
    problems.log.followed.clone_from(&options.configuration);
    let opsets: Opsets = problems.opsets(&model.opset_import, "the model");
    let found = validate::validate(model, &opsets, table, std::mem::take(&mut problems.log), true);
    let mut errors = problems.errors;
    errors.extend(found.errors);
    let (warnings, notes) = found.log.finish();
    if options.strict {
        errors.extend(warnings.iter().flat_map(as_errors));
    }
    if errors.is_empty() { Ok((warnings, notes)) } else { Err(errors) }
}

fn bounds<'m>(model: &'m ModelProto) -> Vec<Bound<'m>> {
    let mut all = vec![];
    for (info, own) in model.training_info.iter().enumerate() {
        for (list, bindings) in [(INITIALIZATION, &own.initialization_binding), (UPDATE, &own.update_binding)]
        {
            let bound =
                |own: &'m StringStringEntryProto| Bound { key: own.key(), value: own.value(), info, list };
            all.extend(bindings.iter().map(bound));
        }
    }
    all
}

/// The variables, in the order of the initializers. Errors: a key that is bound twice, or is not a dense initializer; names that two
/// tensors have.
fn variables<'m>(
    model: &'m ModelProto,
    graph: &'m GraphProto,
    bounds: &[Bound<'m>],
) -> std::result::Result<Vec<Variable<'m>>, Vec<Error>> {
    let mut errors = vec![];
    let mut updated: HashMap<&str, &Bound<'_>> = HashMap::new();
    let mut initialized: HashSet<(&str, usize)> = HashSet::new();
    let mut wanted: HashSet<(&str, Option<usize>)> = HashSet::new();
    let dense =
        |graph: &'m GraphProto, key: &str| graph.initializer.iter().any(|tensor| tensor.name() == key);
    for bound in bounds {
        let (about, key) = (bound.about(), bound.key);
        let algorithm = model.training_info[bound.info].algorithm.as_ref();
        if bound.list == INITIALIZATION && !initialized.insert((key, bound.info)) {
            errors.push(malformed(format!("{about} binds `{key}` twice")));
        }
        if bound.list == UPDATE
            && let Some(other) = updated.insert(key, bound)
        {
            let other = other.about();
            errors.push(malformed(format!(
                "{about} binds `{key}`, which {other} binds, too: a variable has one new value"
            )));
        }
        if key.is_empty() {
            errors.push(malformed(format!("{about} has a key without a name")));
        } else if dense(graph, key) {
            wanted.insert((key, None));
        } else if algorithm.is_some_and(|algorithm| dense(algorithm, key)) {
            wanted.insert((key, Some(bound.info)));
        } else {
            errors.push(malformed(format!(
                "{about} binds `{key}`, which is a sparse initializer; variables are dense"
            )));
        }
    }
    let mut variables: Vec<Variable<'m>> = vec![];
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let algorithms =
        model.training_info.iter().enumerate().map(|(info, own)| (Some(info), own.algorithm.as_ref()));
    for (owner, own) in std::iter::once((None, Some(graph))).chain(algorithms) {
        for proto in own.iter().flat_map(|own| &own.initializer) {
            if !wanted.contains(&(proto.name(), owner)) {
                continue;
            }
            match numbers.get(proto.name()).map(|&at| &mut variables[at]) {
                // The last one of a name counts.
                Some(other) if other.owner == owner => other.proto = proto,
                Some(_) => errors.push(malformed(format!(
                    "the variable `{}` is an initializer of more than one algorithm: variables have names of their own",
                    proto.name()
                ))),
                None => {
                    numbers.insert(proto.name(), variables.len());
                    variables.push(Variable { proto, owner });
                }
            }
        }
    }
    let own = defined_values(graph);
    for (info, algorithm) in model.training_info.iter().enumerate() {
        let Some(algorithm) = &algorithm.algorithm else { continue };
        for tensor in algorithm.initializer.iter().filter(|tensor| own.contains(tensor.name())) {
            errors.push(malformed(format!(
                "the initializer `{}` of the algorithm of training_info[{info}] is a value of the graph, too, and both are in one namespace",
                tensor.name()
            )));
        }
    }
    if errors.is_empty() { Ok(variables) } else { Err(errors) }
}

/// The initial values of the variables.
fn tensors(
    variables: &[Variable<'_>],
    options: &ImportOptions,
    external: &dyn ExternalData,
) -> std::result::Result<Vec<Shared>, Vec<Error>> {
    let mut constants = Constants::new(external, options.limits.expanded_bytes);
    let mut read = |variable: &Variable<'_>| -> Result<Shared> {
        let (name, initial) = (variable.proto.name().to_string(), constants.dense(variable.proto)?);
        if initial.dtype.is_packed() || initial.dtype == DType::Str {
            let message = format!(
                "the variable `{name}` is {}: only tensors of whole bytes can be trained",
                initial.dtype
            );
            return Err(Error::unsupported(Stage::Import, message));
        }
        Ok(Shared { name, initial })
    };
    let (mut found, mut errors) = (vec![], vec![]);
    for variable in variables {
        match read(variable) {
            Ok(tensor) => found.push(tensor),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// Turns variables that are initializers of a graph into inputs.
fn as_inputs(graph: &mut GraphProto, variables: &[Variable<'_>], is_own: impl Fn(&Variable<'_>) -> bool) {
    let own: Vec<&Variable<'_>> = variables.iter().filter(|variable| is_own(variable)).collect();
    let names: HashSet<&str> = own.iter().map(|variable| variable.proto.name()).collect();
    graph.initializer.retain(|tensor| !names.contains(tensor.name()));
    graph.input.retain(|info| !names.contains(info.name()));
    graph.input.extend(own.iter().map(|variable| declared(variable.proto)));
}

fn declared(tensor: &TensorProto) -> ValueInfoProto {
    build::value(tensor.name(), tensor.data_type(), &tensor.dims)
}

fn inference(graph: &GraphProto, variables: &[Variable<'_>]) -> GraphProto {
    let mut own = graph.clone();
    as_inputs(&mut own, variables, |variable| variable.owner.is_none());
    own
}

/// The graph of the model, and that of an algorithm behind it.
fn step(graph: &GraphProto, algorithm: &GraphProto, info: usize, variables: &[Variable<'_>]) -> GraphProto {
    let (mut own, more) = (graph.clone(), algorithm.clone());
    own.node.extend(more.node);
    own.initializer.extend(more.initializer);
    own.sparse_initializer.extend(more.sparse_initializer);
    own.input.extend(more.input);
    let listed: HashSet<String> = own.output.iter().map(|output| output.name().to_string()).collect();
    own.output.extend(more.output.into_iter().filter(|output| !listed.contains(output.name())));
    own.value_info.extend(more.value_info);
    own.quantization_annotation.extend(more.quantization_annotation);
    as_inputs(&mut own, variables, |variable| variable.owner.is_none_or(|owner| owner == info));
    own
}

/// What a program does with the variables.
fn uses(
    role: Option<(Role, usize)>,
    variables: &[Variable<'_>],
    bounds: &[Bound<'_>],
    model: &ModelProto,
) -> Uses {
    let Some((role, info)) = role else {
        let read = (0..variables.len()).filter(|&at| variables[at].owner.is_none());
        return Uses { read: read.collect(), ..Uses::default() };
    };
    let (list, reads) = match role {
        Role::Initialize => (INITIALIZATION, false),
        Role::Step => (UPDATE, true),
    };
    let numbered = variables.iter().enumerate();
    let own_variables: HashMap<&str, usize> = numbered
        .filter(|(_, variable)| variable.owner.is_none_or(|owner| owner == info))
        .map(|(at, variable)| (variable.proto.name(), at))
        .collect();
    let read = own_variables.values().copied().filter(|_| reads).collect();
    let own = bounds.iter().filter(|bound| (bound.info, bound.list) == (info, list));
    let mut replaced = BTreeMap::new();
    let mut hidden = BTreeSet::new();
    // What the model itself gives stays what it gives.
    let given: HashSet<&str> = model
        .graph
        .iter()
        .filter(|_| reads)
        .flat_map(|graph| &graph.output)
        .map(ValueInfoProto::name)
        .collect();
    for bound in own {
        if let Some(&at) = own_variables.get(bound.key) {
            replaced.insert(at, (bound.value.to_string(), bound.about()));
            if !given.contains(bound.value) {
                hidden.insert(bound.value.to_string());
            }
        }
    }
    Uses { read, replaced, hidden }
}

fn has_input(graph: &GraphProto, name: &str) -> bool {
    graph.input.iter().any(|info| info.name() == name)
}

/// Whether a graph has the size that a pin names.
fn pins(pin: &DimPin, graph: &GraphProto) -> bool {
    let of_input = pin.input_axis().is_some_and(|(input, _)| has_input(graph, input));
    let is_symbol = |info: &ValueInfoProto| {
        let Some(TypeValue::TensorType(tensor)) = info.r#type.as_ref().and_then(|ty| ty.value.as_ref())
        else {
            return false;
        };
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
        dims.filter_map(|dim| dim.value.as_ref()).any(|dim| *dim == DimProto::DimParam(pin.target.clone()))
    };
    of_input || graph.input.iter().any(is_symbol)
}
