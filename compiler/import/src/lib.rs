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
mod check;
mod compound;
mod devices;
pub mod diagnostics;
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

use bytes::Bytes;
use diagnostics::Log;
use onnxc_proto::{FunctionProto, ModelProto, OperatorSetIdProto};

pub use diagnostics::{Warning, summary};
pub use external::CustomOp;
pub use ranks::open_inputs;
pub use shapes::{InputDim, InputShape};
pub use types::DimPin;

use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_ir::graph::{Dim, Graph, Sym};
use onnxc_ir::rules::Rule;
use onnxc_ops::{Fork, Table};
use opsets::Opsets;
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

/// Problems listed before the walk gives up.
const MAX_ERRORS: usize = 1000;

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
    let mut importer = Importer::new(options, external, table, ir_version);
    if let Some(name) = &options.configuration {
        importer.devices = Some(devices::chosen(model, name).map_err(|error| vec![error])?);
        importer.log.followed = Some(name.clone());
    }
    let mut opsets = importer.opsets(&model.opset_import, "the model");
    if opsets.is_empty() && ir_version < 3 {
        // Operator sets came with IR version 3; before, there was only the first.
        opsets.insert("", 1);
    }
    let found = validate::validate(model, &opsets, table, std::mem::take(&mut importer.log), false);
    importer.log = found.log;
    importer.errors.extend(found.errors);
    opsets.imply_newest();
    importer.index_functions(&model.functions);
    importer.block = blocks::of_graph(proto).or(options.nchwc_block);
    let env = Arc::new(Env { opsets, attributes: None });
    let mut graph = importer.main_graph(proto, env);
    for entry in &model.metadata_props {
        graph.metadata.push((entry.key().to_string(), entry.value().to_string()));
    }
    let unused = importer.unused_custom_ops();
    importer.errors.extend(unused);
    importer.errors.extend(importer.exhausted.take());
    if importer.stopped && importer.errors.is_empty() {
        let message = format!("the walk ended after {MAX_ERRORS} problems that each hide another one");
        importer.errors.push(Error::new(Stage::Import, Kind::Budget, message));
    }
    let Importer { mut errors, log, devices, .. } = importer;
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

/// Whether two errors say the same of one node. A body may be looked at both with and without the types
/// and the call path of its nodes.
fn same_problem(a: &Error, b: &Error) -> bool {
    let same_node = match (&a.node, &b.node) {
        (Some(a), Some(b)) => {
            (a.index, &a.op_type, &a.domain) == (b.index, &b.op_type, &b.domain)
                && (a.name.ends_with(&b.name) || b.name.ends_with(&a.name))
        }
        (None, None) => true,
        _ => false,
    };
    same_node && (a.kind, &a.message) == (b.kind, &b.message)
}

/// State of one import.
struct Importer<'m> {
    table: &'m Table,
    functions: HashMap<FunctionKey<'m>, &'m FunctionProto>,
    constants: Constants<'m>,
    types: Types,
    options: &'m ImportOptions,
    errors: Vec<Error>,
    /// Problems seen, repeated ones too.
    reports: u64,
    /// The walk has ended early; nothing more is reported.
    stopped: bool,
    /// What ended it, other than a problem of a node: reports may be taken back for another way to import a node.
    exhausted: Option<Error>,
    primitives_left: u64,
    /// Those of `options.custom_ops` that compute a node.
    used_custom_ops: HashSet<usize>,
    /// Functions and bodies around the current node.
    depth: u32,
    /// Functions whose nodes have been checked without types.
    checked: HashSet<FunctionKey<'m>>,
    /// Functions being inlined.
    calls: Vec<FunctionKey<'m>>,
    log: Log,
    ir_version: i64,
    /// What a row asks for before it fails.
    wants_fork: Option<Fork>,
    /// Dims by which nodes are forked, and whether they are 1.
    units: Vec<(Dim, bool)>,
    /// Those of the bodies around the current node.
    open_units: Vec<usize>,
    /// Bodies taken apart so far.
    forks: u64,
    /// Loops around the current node, the innermost one last: the number of the iteration, once something asks for it.
    loops: Vec<Option<Sym>>,
    /// Nodes so far that draw random numbers, and the number of each by its first output.
    streams: u32,
    streams_of: HashMap<String, u32>,
    /// The first output of the current node.
    result: String,
    /// Of each result of the current node, whether it may have a rank that only the run decides; see
    /// [`onnxc_ops::BodyImporter::may_have_any_rank`].
    any_rank: Vec<bool>,
    /// The same of the outputs of the body that is imported next.
    body_any_rank: Vec<bool>,
    /// Whether nodes are imported that others are copies of; see [`onnxc_ops::BodyImporter::recompute`].
    recomputes: bool,
    /// See [`onnxc_ops::BodyImporter::block`].
    block: Option<usize>,
    /// What the device configuration says that is followed.
    devices: Option<Arrangement>,
}

impl<'m> Importer<'m> {
    fn new(
        options: &'m ImportOptions,
        external: &'m dyn ExternalData,
        table: &'m Table,
        ir_version: i64,
    ) -> Importer<'m> {
        Importer {
            table,
            functions: HashMap::new(),
            constants: Constants::new(external, options.limits.expanded_bytes),
            types: Types::default(),
            options,
            errors: Vec::new(),
            reports: 0,
            stopped: false,
            exhausted: None,
            primitives_left: options.limits.primitives,
            used_custom_ops: HashSet::new(),
            depth: 0,
            checked: HashSet::new(),
            calls: Vec::new(),
            log: Log::default(),
            ir_version,
            wants_fork: None,
            units: Vec::new(),
            open_units: Vec::new(),
            forks: 0,
            loops: Vec::new(),
            streams: 0,
            streams_of: HashMap::new(),
            result: String::new(),
            any_rank: Vec::new(),
            body_any_rank: Vec::new(),
            recomputes: false,
            block: None,
            devices: None,
        }
    }

    /// Lists a problem, once.
    fn report(&mut self, error: Error) {
        self.reports += 1;
        // Where the budget was exceeded.
        if let Some(ended) = self.exhausted.as_mut().filter(|ended| ended.node.is_none())
            && ended.message == error.message
        {
            *ended = error;
            return;
        }
        if self.stopped || self.errors.iter().any(|other| same_problem(other, &error)) {
            return;
        }
        self.errors.push(error);
        self.stopped = self.errors.len() >= MAX_ERRORS;
    }

    fn malformed(&mut self, message: String) {
        self.report(Error::malformed(Stage::Import, message));
    }

    /// Imported opset version by domain.
    fn opsets(&mut self, imports: &[OperatorSetIdProto], owner: &str) -> Opsets {
        let mut opsets = Opsets::default();
        for import in imports {
            let domain = normal_domain(import.domain());
            let Ok(version) = u32::try_from(import.version()) else {
                self.malformed(format!("{owner} imports version {} of `{domain}`", import.version()));
                continue;
            };
            let Some(other) = opsets.insert(domain, version) else { continue };
            if other != version {
                let highest = other.max(version);
                opsets.insert(domain, highest);
                let domain = domain_name(domain);
                let message = format!(
                    "{owner} imports versions {other} and {version} of `{domain}`: {highest} is taken, as the specification says (ONNX Runtime takes the last one)"
                );
                self.warn(Rule::DomainTwice, message, None);
            }
        }
        opsets
    }

    fn index_functions(&mut self, functions: &'m [FunctionProto]) {
        for function in functions {
            let key = function::function_key(function);
            if self.functions.insert(key, function).is_some() {
                self.malformed(format!("function {}.{} `{}` is defined twice", key.0, key.1, key.2));
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
