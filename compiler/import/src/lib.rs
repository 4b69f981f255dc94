//! The importer: an ONNX model to a graph of primitives.
//!
//! Nodes are walked in order. Each is resolved to a row of the operator table (or a function of the
//! model, which is inlined), checked against the row's signature and lowered by it. A problem at one node
//! does not stop the walk: its outputs are poisoned, what depends on them is only checked as far as types
//! are not needed, and all problems are given at once.
//!
//! Only this module reads protobuf structs. It opens no file: tensors that the model keeps
//! in other files come through [`ExternalData`].

mod attr;
mod blocks;
mod body;
mod budget;
mod check;
mod compound;
mod devices;
pub mod diagnostics;
mod draws;
mod external;
mod fork;
pub mod format;
mod function;
mod gradient;
mod in_place;
mod interface;
mod kinds;
mod lengths;
mod map;
mod names;
mod node;
mod opsets;
mod order;
mod problems;
mod ranks;
mod scope;
mod shapes;
pub mod shard;
pub mod state;
mod tensor;
pub mod train_graph;
pub mod training;
mod types;
mod validate;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use budget::Budget;
use bytes::Bytes;
use draws::Draws;
use fork::Forks;
use onnxc_proto::{FunctionProto, ModelProto};
use problems::Problems;

pub use diagnostics::{Warning, summary};
pub use external::CustomOp;
pub use ranks::open_inputs;
pub use shapes::{InputDim, InputShape};
pub use types::DimPin;

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_ops::Table;
use scope::Env;
use state::Choice;
use tensor::Constants;
use types::Types;

/// The domains whose operators the table knows, each with the newest version of it.
const NEWEST: &[(&str, u32)] = &[
    ("", 28),
    ("ai.onnx.contrib", 1),
    ("ai.onnx.ml", 5),
    ("ai.onnx.preview.training", 1),
    ("com.microsoft", 1),
    ("com.microsoft.nchwc", 1),
];

/// The newest version of a domain whose operators the table knows.
fn newest(domain: &str) -> Option<u32> {
    NEWEST.iter().find(|(known, _)| *known == domain).map(|&(_, newest)| newest)
}

/// What importing may use beyond what the model file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Primitives that the nodes of functions, bodies and derivatives become, each node counted as often as it is brought in, and
    /// as one at least; and once more for each time that a body it is in is copied. Of those that a node of the model's own
    /// graph becomes the first few are not counted: the file pays for them.
    pub primitives: u64,
    /// Maximum nesting of functions and bodies. The import and the later stages recurse to this depth; each level takes some 6 KiB of
    /// stack. The default fits 2 MiB, the stack of a thread.
    pub nesting: u32,
    /// Bytes of constants that are larger than in the file: sparse tensors and types below 8 bits.
    pub expanded_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { primitives: 1 << 17, nesting: 64, expanded_bytes: 16 << 30 }
    }
}

/// How to import a model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImportOptions {
    /// Sizes given to dims of the inputs.
    pub input_dims: Vec<DimPin>,
    /// Shapes given to inputs, in place of the declared ones.
    pub input_shapes: Vec<InputShape>,
    /// Leave initializers that are also inputs to the caller, who may override them. Else they are constants, which is how
    /// exporters that list every initializer as an input mean them.
    pub overridable_defaults: bool,
    /// Treat warnings as errors.
    pub strict: bool,
    /// Channels per block of the layout `com.microsoft.nchwc`, for models that do not determine it.
    pub nchwc_block: Option<usize>,
    /// Outputs to compute, all if there are none. Those that become state stay.
    pub outputs: Vec<String>,
    /// What of the model is state.
    pub state: Choice,
    /// Compile what trains the model, too: what that changes becomes state.
    pub training: bool,
    /// Operators that functions of the caller's program compute.
    pub custom_ops: Vec<CustomOp>,
    /// The device configuration to follow: its name.
    pub configuration: Option<String>,
    pub limits: Limits,
}

/// Where tensors outside the model file come from.
pub trait ExternalData {
    /// `length` bytes (`None`: all that follow) from `offset` of the file at `location`, a path relative to
    /// the model's folder. The importer checks nothing about the path: it is as the model gives it.
    fn read(&self, location: &str, offset: u64, length: Option<u64>) -> Result<Bytes>;

    /// The SHA-1 of the file at `location`.
    fn sha1(&self, location: &str) -> Result<[u8; 20]> {
        Ok(onnxc_ir::digest::sha1(&self.read(location, 0, None)?))
    }
}

/// For models that must hold all their tensors themselves.
pub struct NoExternalData;

impl ExternalData for NoExternalData {
    fn read(&self, location: &str, _: u64, _: Option<u64>) -> Result<Bytes> {
        let message = format!("the data is in the file `{location}`, and no folder is given to read it from");
        Err(Error::new(Stage::Import, Kind::Usage, message))
    }
}

/// A tensor of a file of its own (a test's input, a caller's constant).
pub fn dense_tensor(proto: &onnxc_proto::TensorProto) -> Result<onnxc_ir::graph::Tensor> {
    Constants::new(&NoExternalData, Limits::default().expanded_bytes).dense(proto)
}

/// The elements of a sparse tensor of a file of its own, and their indices `[n, rank]`.
pub fn sparse_parts(
    proto: &onnxc_proto::SparseTensorProto,
) -> Result<(onnxc_ir::graph::Tensor, onnxc_ir::graph::Tensor)> {
    Constants::new(&NoExternalData, Limits::default().expanded_bytes).sparse_parts(proto)
}

/// An imported model.
#[derive(Debug)]
pub struct Import {
    pub graph: Graph,
    /// What the model contains that has no influence on the result, one sentence each.
    pub notes: Vec<String>,
    /// What the model breaks, and is compiled all the same.
    pub warnings: Vec<Warning>,
    /// What trains the model, where that is asked for.
    pub entries: Vec<training::Entry>,
    /// What the device configuration says that is followed.
    pub devices: Option<Arrangement>,
}

/// Imports a model with the operators of `table`; on failure, all the problems it has.
pub fn import(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
) -> std::result::Result<Import, Vec<Error>> {
    if options.training {
        return training::import(model, options, external, table);
    }
    let Some((model, found)) = in_place::with_outputs(model) else {
        return import_with(model, options, external, table);
    };
    let mut import = import_with(&model, options, external, table)?;
    import.notes.extend(found);
    Ok(import)
}

/// [`import`] of one graph: its ranks and lengths are searched for where they are not given.
fn import_with(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
) -> std::result::Result<Import, Vec<Error>> {
    import_once(model, options, external, table)
        .or_else(|errors| ranks::search(model, options, external, table, errors))
        .or_else(|errors| lengths::search(model, options, external, table, &errors).ok_or(errors))
}

/// How many ranks a device configuration of a model has.
pub fn ranks_of(model: &ModelProto, configuration: &str) -> Result<usize> {
    devices::chosen(model, configuration).map(|own| own.ranks)
}

/// An error of what the caller asks for, not of the model.
fn usage(message: String) -> Error {
    Error::new(Stage::Import, Kind::Usage, message)
}

/// Key of a function: (domain, name, overload).
type FunctionKey<'m> = (&'m str, &'m str, &'m str);

/// [`import`] with the ranks and lengths that are given.
fn import_once(
    model: &ModelProto,
    options: &ImportOptions,
    external: &dyn ExternalData,
    table: &Table,
) -> std::result::Result<Import, Vec<Error>> {
    let ir_version = model.ir_version();
    if ir_version > onnxc_proto::IR_VERSION {
        return Err(vec![Error::unsupported(
            Stage::Import,
            format!("IR version {ir_version}; the newest known is {}", onnxc_proto::IR_VERSION),
        )]);
    }
    let Some(proto) = &model.graph else {
        return Err(vec![Error::malformed(Stage::Import, "the model has no graph")]);
    };
    let mut problems = Problems::default();
    let mut followed = None;
    if let Some(name) = &options.configuration {
        followed = Some(devices::chosen(model, name).map_err(|error| vec![error])?);
        problems.log.followed = Some(name.clone());
    }
    let mut opsets = problems.opsets(&model.opset_import, "the model");
    if opsets.is_empty() && ir_version < 3 {
        // Operator sets came with IR version 3; before, there was only the first.
        opsets.insert("", 1);
    }
    let found = validate::validate(model, &opsets, table, std::mem::take(&mut problems.log), false);
    problems.log = found.log;
    problems.errors.extend(found.errors);
    opsets.imply_newest();
    let functions = function::by_key(&model.functions, &mut problems);
    let block = blocks::of_graph(proto).or(options.nchwc_block);
    let given = Given { table, functions, options, ir_version, block };
    let mut importer = Importer { problems, devices: followed, ..Importer::new(given, external) };
    let env = Arc::new(Env { opsets, attributes: None });
    let mut graph = importer.main_graph(proto, env);
    for entry in &model.metadata_props {
        graph.metadata.push((entry.key().to_string(), entry.value().to_string()));
    }
    let unused = importer.unused_custom_ops();
    let Importer { mut problems, devices, .. } = importer;
    problems.errors.extend(unused);
    let (mut errors, log) = problems.finish();
    let (warnings, notes) = log.finish();
    if options.strict {
        errors.extend(warnings.iter().flat_map(as_errors));
    }
    if errors.is_empty() && !options.outputs.is_empty() {
        errors.extend(keep_outputs(&mut graph, options).err());
    }
    if errors.is_empty() && options.state != Choice::default() {
        let fixed = state::fixed_dims(&graph, &options.state).map_err(|error| vec![error])?;
        if !fixed.is_empty() {
            let mut options = options.clone();
            let pin = |(target, size)| DimPin { target, size };
            options.input_dims.extend(fixed.into_iter().map(pin));
            return import_once(model, &options, external, table);
        }
        errors.extend(state::keep(&mut graph, &options.state).err());
    }
    if errors.is_empty() {
        Ok(Import { graph, notes, warnings, entries: vec![], devices })
    } else {
        Err(errors)
    }
}

/// Keeps the outputs that are asked for, and those that become state.
fn keep_outputs(graph: &mut Graph, options: &ImportOptions) -> Result<()> {
    let mut names = options.outputs.clone();
    if options.state != Choice::default() {
        names.extend(state::outputs(graph, &options.state)?);
    }
    graph.keep_outputs(&names)
}

/// A warning as `strict` takes it.
fn as_errors(warning: &Warning) -> impl Iterator<Item = Error> {
    let more = (warning.more > 0).then(|| {
        let text = warning.rule.entry().text;
        warning.problem.clone().further(warning.more, text)
    });
    std::iter::once(warning.problem.clone()).chain(more)
}

fn domain_name(domain: &str) -> &str {
    if domain.is_empty() { "ai.onnx" } else { domain }
}

/// `ai.onnx` has two spellings.
fn normal_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// What is read: it stays as it is given.
struct Given<'m> {
    table: &'m Table,
    functions: HashMap<FunctionKey<'m>, &'m FunctionProto>,
    options: &'m ImportOptions,
    ir_version: i64,
    /// See [`onnxc_ops::BodyImporter::block`].
    block: Option<usize>,
}

/// Functions of the model as they are walked.
#[derive(Default)]
struct Calls<'m> {
    /// Those being inlined.
    open: Vec<FunctionKey<'m>>,
    /// Those whose nodes have been checked without types.
    checked: HashSet<FunctionKey<'m>>,
}

/// Whether results may have ranks that only the run decides; see [`onnxc_ops::BodyImporter::may_have_any_rank`].
#[derive(Default)]
struct OpenRanks {
    /// Of each result of the current node.
    of_node: Vec<bool>,
    /// Of each output of the body that is imported next.
    of_body: Vec<bool>,
}

/// State of one import: each field has one purpose, and the methods that need it alone. Those of the importer need several.
struct Importer<'m> {
    given: Given<'m>,
    constants: Constants<'m>,
    types: Types,
    problems: Problems,
    budget: Budget,
    calls: Calls<'m>,
    forks: Forks,
    draws: Draws,
    open_ranks: OpenRanks,
    /// Those of the caller's `custom_ops` that compute a node.
    used_custom_ops: HashSet<usize>,
    /// What the device configuration says that is followed.
    devices: Option<Arrangement>,
}

impl<'m> Importer<'m> {
    fn new(given: Given<'m>, external: &'m dyn ExternalData) -> Importer<'m> {
        let limits = given.options.limits;
        Importer {
            given,
            constants: Constants::new(external, limits.expanded_bytes),
            types: Types::default(),
            problems: Problems::default(),
            budget: Budget::new(&limits),
            calls: Calls::default(),
            forks: Forks::default(),
            draws: Draws::default(),
            open_ranks: OpenRanks::default(),
            used_custom_ops: HashSet::new(),
            devices: None,
        }
    }

    /// Takes primitives from the budget. Where there are not enough left, the import ends.
    fn charge(&mut self, primitives: u64) -> Result<()> {
        self.budget.charge(primitives).map_err(|error| self.problems.end(error))
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
