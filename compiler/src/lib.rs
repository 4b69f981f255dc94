//! onnxc: an ahead-of-time compiler from ONNX models to native object files.
//!
//! [`compile`] is the whole pipeline. Data flows one way: bytes, protobuf structs, a graph of primitives, passes,
//! a schedule of fusion groups, loop nests, machine code, an object. Everything but `files`, `cli`, `native` and
//! `build` is pure: bytes in, bytes out, no global state, the same object bit for bit from the same input.

pub mod build;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod files;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod native;
#[cfg(test)]
mod tests;

pub use build::build;
pub use onnxc_backend::Counter;
pub use onnxc_import::train_graph::{Label, Lora, Loss, Optimizer, TrainOptions};
pub use onnxc_import::{
    DimPin, ExternalData, ImportOptions, InputDim, InputShape, Limits, NoExternalData, Warning,
};
pub use onnxc_ir::error::{Error, Kind, NodeRef, Result, Stage};
pub use onnxc_machine::target::{Goal, Target};
pub use onnxc_object::emit::Artifact;
pub use onnxc_passes::Precision;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

use onnxc_backend::codegen::kernels::Kernels;
use onnxc_import as import;
use onnxc_import::training::Role;
use onnxc_ir::graph::{Graph, borders};
use onnxc_object::emit::Source;
use onnxc_object::emit::outline::{Outline, outline};
use onnxc_object::{emit, host};
use onnxc_ops::Table;
use onnxc_passes as pass;
use onnxc_schedule::{self as schedule, Program};

/// How a model is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every symbol; made a C identifier.
    pub name: String,
    pub target: Target,
    /// 0 (required passes only) to 3.
    pub opt_level: u8,
    /// Without what rounds otherwise than the model says for the sake of speed; see `book/src/floats.md`.
    pub exact: bool,
    /// Whether code and weights are to be fast or small.
    pub goal: Goal,
    /// What the operands of products of floats are rounded to.
    pub precision: Precision,
    pub import: ImportOptions,
    /// Compile in a call of `step_done` after every step.
    pub profile: bool,
    /// Records for unwinders, where those of the system can do without (`.eh_frame` of ELF objects): for debuggers, crash handlers and
    /// profilers that walk the stack.
    pub unwind: bool,
}

impl Options {
    /// What the command compiles with where no flag says otherwise.
    pub fn new(name: impl Into<String>, target: Target) -> Options {
        Options {
            name: name.into(),
            target,
            opt_level: 3,
            exact: false,
            goal: Goal::Speed,
            precision: Precision::F32,
            import: ImportOptions::default(),
            profile: false,
            unwind: true,
        }
    }
}

/// Hears of the pipeline's progress; every method may be left as it is.
pub trait Observer {
    /// A pass is done.
    fn pass(&mut self, _name: &str, _graph: &Graph, _time: Duration) {}
    /// A stage is done.
    fn stage(&mut self, _name: &str, _time: Duration) {}
    /// Counts kernels while they are compiled.
    fn counter(&self) -> Arc<Counter> {
        Arc::default()
    }
}

/// An observer that listens to nothing.
pub struct Quiet;

impl Observer for Quiet {}

/// A model up to its schedule.
#[doc(hidden)]
#[derive(Debug)]
pub struct Frontend {
    pub graph: Graph,
    pub program: Program,
    /// What the model holds that has no influence on the result.
    pub notes: Vec<String>,
    /// What it breaks, and is compiled all the same.
    pub warnings: Vec<Warning>,
    /// What trains it, where that is asked for.
    pub entries: Vec<EntryFrontend>,
}

/// A program of a model beside the one that infers, up to its schedule.
#[derive(Debug)]
pub struct EntryFrontend {
    /// What follows the model's name in the names of its functions.
    pub suffix: String,
    pub role: Role,
    pub graph: Graph,
    pub program: Program,
}

/// A program of a compiled model beside the one that infers.
pub struct CompiledEntry {
    /// What follows the model's name in the names of its functions.
    pub suffix: String,
    pub role: Role,
    pub graph: Arc<Graph>,
    pub program: Program,
    pub kernels: Kernels,
}

/// A compiled model; [`Compiled::artifact`] gives the object and the header.
pub struct Compiled {
    pub graph: Arc<Graph>,
    pub program: Program,
    pub kernels: Kernels,
    pub notes: Vec<String>,
    pub warnings: Vec<Warning>,
    pub entries: Vec<CompiledEntry>,
    target: Target,
    options: emit::Options,
}

impl Compiled {
    /// The host program: what the model does outside of its kernels.
    pub fn host(&self) -> Result<host::ir::Program> {
        Ok(self.lowered()?.program)
    }

    /// The model for the interpreter of host programs.
    pub fn interpreted(&self) -> Result<host::interp::model::Model<'_>> {
        host::interp::model::Model::new(&self.graph, self.lowered()?)
    }

    fn lowered(&self) -> Result<host::lower::Lowered<'_>> {
        emit::lower(&self.graph, &self.program, &self.kernels, &self.options)
    }

    /// The object, to be written, and the header.
    pub fn artifact(&self) -> Result<emit::Artifact> {
        emit::emit(&self.sources(), &self.target, &self.options)
    }

    /// The model before it is written as C, with its header; of one that was compiled for a target that C is written for
    /// ([`Target::for_source`]).
    pub fn outline(&self) -> Result<Outline<'_>> {
        outline(&self.sources(), self.target.byte_order()?, &self.options)
    }

    /// Writes the C source.
    pub fn write_source(&self, outline: &Outline<'_>, out: &mut dyn std::io::Write) -> Result<()> {
        onnxc_source::write(outline, &self.target, out)
    }

    fn sources(&self) -> Vec<Source<'_>> {
        let own = Source { suffix: "", graph: &self.graph, program: &self.program, kernels: &self.kernels };
        let entries = self.entries.iter().map(|entry| {
            let CompiledEntry { suffix, graph, program, kernels, .. } = entry;
            Source { suffix, graph, program, kernels }
        });
        std::iter::once(own).chain(entries).collect()
    }
}

/// Compiles the bytes of an ONNX file. On failure: every separate problem of the model.
pub fn compile(
    model: Bytes,
    external: &dyn ExternalData,
    options: &Options,
    observer: &mut dyn Observer,
) -> std::result::Result<Compiled, Vec<Error>> {
    backend(frontend(model, external, options, observer)?, options, observer).map_err(|error| vec![error])
}

/// A model with what trains it.
#[derive(Debug)]
pub struct Trained {
    /// The bytes of an ONNX file. External data is where the model has it.
    pub model: Vec<u8>,
    /// Names of the initializers that learn.
    pub parameters: Vec<String>,
    /// What was decided.
    pub notes: Vec<String>,
    /// What the model breaks, and is trained all the same.
    pub warnings: Vec<Warning>,
    /// Where the model's tensors are outside of its file, each location once.
    pub locations: Vec<String>,
}

/// Writes `training_info` into the bytes of an ONNX file: a loss, its derivatives by the parameters, and a step of an optimizer. The model
/// infers as before; [`ImportOptions::training`] compiles the rest.
pub fn train_graph(
    model: Bytes,
    external: &dyn ExternalData,
    options: &TrainOptions,
) -> std::result::Result<Trained, Vec<Error>> {
    let proto = decode(model).map_err(|error| vec![error])?;
    let made = import::train_graph::train_graph(&proto, options, external, operators())?;
    let model = onnxc_proto::encode(&made.model);
    if model.len() as u64 >= MAX_FILE {
        let message = format!(
            "the model with its training has {} bytes, and a file of protobuf has less than {MAX_FILE}: keep weights as external data, or have fewer learn",
            model.len()
        );
        return Err(vec![Error::new(Stage::Import, Kind::Budget, message)]);
    }
    let locations = import::train_graph::locations(&made.model);
    let import::train_graph::TrainGraph { parameters, notes, warnings, .. } = made;
    Ok(Trained { model, parameters, notes, warnings, locations })
}

/// What implementations of protobuf read.
const MAX_FILE: u64 = 1 << 31;

/// Everything after the schedule: machine code of every kernel.
#[doc(hidden)]
pub fn backend(frontend: Frontend, options: &Options, observer: &mut dyn Observer) -> Result<Compiled> {
    let Frontend { graph, program, notes, warnings, entries } = frontend;
    let start = Instant::now();
    let kernels = onnxc_backend::compile_kernels(&graph, &program, &options.target, &observer.counter())?;
    let mut compiled = vec![];
    for EntryFrontend { suffix, role, graph, program } in entries {
        let kernels = onnxc_backend::compile_kernels(&graph, &program, &options.target, &observer.counter())?;
        compiled.push(CompiledEntry { suffix, role, graph: Arc::new(graph), program, kernels });
    }
    observer.stage("kernels", start.elapsed());
    let emit = emit::Options { name: options.name.clone(), profile: options.profile, unwind: options.unwind };
    Ok(Compiled {
        graph: Arc::new(graph),
        program,
        kernels,
        notes,
        warnings,
        entries: compiled,
        target: options.target.clone(),
        options: emit,
    })
}

/// Everything before loop nests: decode, import, passes, schedule.
#[doc(hidden)]
pub fn frontend(
    model: Bytes,
    external: &dyn ExternalData,
    options: &Options,
    observer: &mut dyn Observer,
) -> std::result::Result<Frontend, Vec<Error>> {
    let start = Instant::now();
    let proto = decode(model).map_err(|error| vec![error])?;
    observer.stage("decode", start.elapsed());
    let start = Instant::now();
    let import::Import { graph, notes, warnings, entries: imported } =
        import::import(&proto, &options.import, external, operators())?;
    drop(proto);
    observer.stage("import", start.elapsed());
    let (graph, program) = optimize(graph, options, observer).map_err(|error| vec![error])?;
    let mut entries = vec![];
    for entry in imported {
        let (suffix, role) = (entry.suffix(), entry.role);
        let (graph, program) = optimize(entry.graph, options, observer).map_err(|error| vec![error])?;
        entries.push(EntryFrontend { suffix, role, graph, program });
    }
    Ok(Frontend { graph, program, notes, warnings, entries })
}

/// The operators that models may use.
#[doc(hidden)]
pub fn operators() -> &'static Table {
    static OPERATORS: LazyLock<Table> = LazyLock::new(|| {
        let own = onnxc_ops::FAMILIES.iter().copied();
        #[cfg(feature = "contrib")]
        let table = Table::new(own.chain(onnxc_contrib::FAMILIES.iter().copied()));
        #[cfg(not(feature = "contrib"))]
        let table =
            Table::new(own).without(&["ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"], "contrib");
        table
    });
    &OPERATORS
}

/// The model's protobuf structs.
#[doc(hidden)]
pub fn decode(model: Bytes) -> Result<onnxc_proto::ModelProto> {
    let malformed = |message: String| Error::new(Stage::Decode, Kind::Malformed, message);
    match onnxc_proto::decode(model.clone(), &onnxc_proto::Budget::default()) {
        Ok(proto) if proto.graph.is_some() => Ok(proto),
        // Other bytes may be what a message without a graph is.
        Ok(proto) => import::format::other(&model).map_or(Ok(proto), |what| Err(malformed(what))),
        Err(error) => {
            let what = import::format::other(&model);
            let what = what.or_else(|| import::format::cut_off(&error, model.len()));
            Err(malformed(what.unwrap_or_else(|| error.to_string())))
        }
    }
}

fn pass_options(options: &Options) -> pass::Options {
    let target = &options.target;
    let pack = pass::PackPolicy::for_target(target);
    let precision = match options.precision {
        Precision::Auto if target.multiplies_bf16() => Precision::Bf16,
        Precision::Auto => Precision::F32,
        precision => precision,
    };
    let Options { opt_level: level, exact, goal, .. } = *options;
    pass::Options { level, pack, exact, goal, precision }
}

fn schedule_options(options: &Options) -> schedule::Options {
    let fuse = options.opt_level > 0;
    schedule::Options { fuse, in_place: fuse, goal: options.goal, ..Default::default() }
}

/// Passes and schedule.
#[doc(hidden)]
pub fn optimize(
    mut graph: Graph,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<(Graph, Program)> {
    let start = Instant::now();
    borders::pack_borders(&mut graph)?;
    observer.stage("borders", start.elapsed());
    let passes = pass_options(options);
    pass::run_all(&mut graph, &passes, &mut |name, graph, time| observer.pass(name, graph, time))?;
    let start = Instant::now();
    let program = schedule::schedule(&graph, schedule_options(options))?;
    observer.stage("schedule", start.elapsed());
    Ok((graph, program))
}
