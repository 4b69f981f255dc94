//! [`compile`] is the whole pipeline, from top to bottom.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

use onnxc_backend::Counter;
use onnxc_backend::codegen::kernels::Kernels;
use onnxc_import as import;
use onnxc_import::{ExternalData, ImportOptions, Warning, training};
use onnxc_ir::borders;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_ir::graph::apart;
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_machine::target::{Goal, Target};
use onnxc_object::emit::outline::{Outline, outline};
use onnxc_object::emit::{Listing, Source};
use onnxc_object::{emit, host};
use onnxc_ops::Table;
use onnxc_passes::{self as pass, Precision};
use onnxc_schedule::{self as schedule, Program, Recompute};
use onnxc_source::Constants;

/// How a model is compiled.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every symbol; made a C identifier.
    pub name: String,
    pub target: Target,
    /// 0 (required passes only), 1 (all but minimal filtering) or 2 (all passes); a larger number is 2.
    pub opt_level: u8,
    /// Without what rounds otherwise than the model says for the sake of speed; see `book/src/floats.md`.
    pub exact: bool,
    /// Whether code and weights are to be fast or small.
    pub goal: Goal,
    /// What the operands of products of floats are rounded to.
    pub precision: Precision,
    pub import: ImportOptions,
    /// Of a model with a device configuration ([`ImportOptions::configuration`]): the rank to compile.
    pub rank: Option<usize>,
    /// Compile in a call of `step_done` after every step.
    pub profile: bool,
    /// Names of kernels and nodes in the object, and what informs a caller who traces a run (`options->trace`) of each step; not for
    /// targets without an operating system.
    pub trace: bool,
    /// Records for unwinders, where those of the system can do without (`.eh_frame` of ELF and Mach-O objects): for debuggers, crash
    /// handlers and profilers that walk the stack.
    pub unwind: bool,
    /// Line tables (`.debug_line`) that lead debuggers and profilers from code of an ELF object to the lines of this file, which name
    /// steps, kernels and ONNX nodes; [`emit::Artifact::listing`] is its text.
    pub listing: Option<Listing>,
    /// What steps of training compute again instead of keeping it for the way back; of a model without entry points that train, what
    /// runs do.
    pub recompute: Recompute,
    /// Weights in a file of their own ([`emit::Artifact::weights_file`]), which programs map and may exchange for that of another training.
    pub weights_apart: Option<WeightsApart>,
}

/// What lies apart from the code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightsApart {
    /// Weights of this number of bytes and more. Scalars, texts, truth values and 64-bit integers stay in the object.
    pub least: usize,
    /// A note of how the model was compiled that the file keeps, on one line.
    pub note: String,
}

impl Default for WeightsApart {
    fn default() -> WeightsApart {
        WeightsApart { least: 8, note: String::new() }
    }
}

impl Options {
    /// What the command compiles with where no flag says otherwise.
    pub fn new(name: impl Into<String>, target: Target) -> Options {
        Options {
            name: name.into(),
            target,
            opt_level: pass::options::ALL_PASSES,
            exact: false,
            goal: Goal::Speed,
            precision: Precision::F32,
            import: ImportOptions::default(),
            rank: None,
            profile: false,
            trace: true,
            unwind: true,
            listing: None,
            recompute: Recompute::Nothing,
            weights_apart: None,
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
    pub role: training::Role,
    pub graph: Graph,
    pub program: Program,
}

/// A program of a compiled model beside the one that infers.
pub struct CompiledEntry {
    /// What follows the model's name in the names of its functions.
    pub suffix: String,
    pub role: training::Role,
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
        let lowered = self.lowered()?;
        let weights = emit::weight_bytes(&self.graph, &lowered)?;
        Ok(host::interp::model::Model::new(&self.graph, lowered, weights))
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
        onnxc_source::write(outline, &self.target, Constants::Inside, out)
    }

    /// Writes the C source without its constants. [`onnxc_source::web`] has the rest of a module of WebAssembly.
    pub fn write_source_without_constants(
        &self,
        outline: &Outline<'_>,
        out: &mut dyn std::io::Write,
    ) -> Result<()> {
        onnxc_source::write(outline, &self.target, Constants::Apart, out)
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

/// Everything after the schedule: machine code of every kernel.
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
    let emit = emit::Options {
        name: options.name.clone(),
        profile: options.profile,
        trace: options.trace && !options.target.is_freestanding(),
        unwind: options.unwind,
        listing: options.listing.clone(),
        settings: settings(options),
        note: options.weights_apart.as_ref().map_or(String::new(), |apart| apart.note.clone()),
    };
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

/// The options that decide how weights lie in memory.
fn settings(options: &Options) -> String {
    let Options { target, exact, goal, precision, weights_apart, .. } = options;
    let opt_level = level(options);
    let levels: Vec<&str> = target.levels().map(|level| level.cpu.as_str()).collect();
    let (triple, vector, l1, l2) =
        (&target.triple, target.core.vector_bytes, target.core.l1_bytes, target.core.l2_bytes);
    let least = weights_apart.as_ref().map_or(0, |apart| apart.least);
    format!(
        "onnxc {}\ntarget {triple} for {}, vectors of {vector} bytes, caches of {l1} and {l2} bytes\nlevel {opt_level} for {goal:?}, \
         exact {exact}, precision {precision:?}, weights from {least} bytes",
        env!("CARGO_PKG_VERSION"),
        levels.join(" ")
    )
}

/// Everything before loop nests: decode, import, passes, schedule.
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
    let import::Import { mut graph, notes, warnings, entries: mut imported, devices } =
        import::import(&proto, &options.import, external, operators())?;
    drop(proto);
    observer.stage("import", start.elapsed());
    if let Some(mut devices) = devices {
        let start = Instant::now();
        let rank = chosen(&devices, options.rank).map_err(|error| vec![error])?;
        let shared = |programs: &mut [(&mut Graph, &mut Arrangement)]| {
            agree(programs)?;
            programs.iter_mut().try_for_each(|(graph, devices)| {
                **graph = onnxc_partition::of_rank(graph, devices, rank)?;
                Ok(())
            })
        };
        shared(&mut programs(&mut graph, &mut devices, &mut imported)).map_err(|error: Error| vec![error])?;
        observer.stage("partition", start.elapsed());
    }
    let mut notes = notes;
    let all_kept = Options { recompute: Recompute::Nothing, ..options.clone() };
    let mut made = |graph: Graph, name: &str, is_trained: bool| -> Result<(Graph, Program)> {
        let options = if is_trained { options } else { &all_kept };
        let (graph, program) = optimize(graph, options, observer)?;
        notes.extend(too_large(options, name, &program));
        Ok((graph, program))
    };
    let one = |error: Error| vec![error];
    let (graph, program) = made(graph, "a run", imported.is_empty()).map_err(one)?;
    let mut entries = vec![];
    for entry in imported {
        let (suffix, role) = (entry.suffix(), entry.role);
        let (graph, program) = made(entry.graph, &suffix, role == training::Role::Step).map_err(one)?;
        entries.push(EntryFrontend { suffix, role, graph, program });
    }
    Ok(Frontend { graph, program, notes, warnings, entries })
}

/// A note where memory that was asked for is too little.
fn too_large(options: &Options, name: &str, program: &Program) -> Option<String> {
    let Recompute::Within(bytes) = options.recompute else { return None };
    let needed = program.arena.as_const().filter(|&needed| needed > bytes)?;
    Some(format!(
        "--recompute: {name} needs {needed} bytes for intermediate values, however much it computes again, and {bytes} are asked for"
    ))
}

/// The rank to compile.
fn chosen(devices: &Arrangement, rank: Option<usize>) -> Result<usize> {
    let usage = |message: String| Error::new(Stage::Import, Kind::Usage, message);
    let (name, ranks) = (&devices.name, devices.ranks);
    match rank {
        None => Err(usage(format!("device configuration `{name}` has {ranks} ranks, and none is chosen"))),
        Some(rank) if rank >= ranks => {
            Err(usage(format!("there is no rank {rank}: device configuration `{name}` has {ranks}")))
        }
        Some(rank) => Ok(rank),
    }
}

/// All programs of a model, each with what the device configuration says of it.
fn programs<'p>(
    graph: &'p mut Graph,
    devices: &'p mut Arrangement,
    entries: &'p mut [training::Entry],
) -> Vec<(&'p mut Graph, &'p mut Arrangement)> {
    let more = entries.iter_mut().filter_map(|entry| Some((&mut entry.graph, entry.devices.as_mut()?)));
    std::iter::once((graph, devices)).chain(more).collect()
}

/// Programs that share states have the same shares of them.
fn agree(programs: &mut [(&mut Graph, &mut Arrangement)]) -> Result<()> {
    if programs.len() == 1 {
        return Ok(());
    }
    let mut all: Vec<(&Graph, &mut Arrangement)> =
        programs.iter_mut().map(|(graph, devices)| (&**graph, &mut **devices)).collect();
    onnxc_partition::agree(&mut all)
}

/// How a device configuration arranges a model: a line about all ranks, and one about what each holds and sends.
pub fn ranks(
    model: Bytes,
    external: &dyn ExternalData,
    options: &Options,
) -> std::result::Result<Vec<String>, Vec<Error>> {
    let proto = decode(model).map_err(|error| vec![error])?;
    let import::Import { mut graph, devices, mut entries, .. } =
        import::import(&proto, &options.import, external, operators())?;
    let Some(mut devices) = devices else { return Ok(vec![]) };
    let names: Vec<String> = entries.iter().map(training::Entry::suffix).collect();
    let mut programs = programs(&mut graph, &mut devices, &mut entries);
    agree(&mut programs).map_err(|error| vec![error])?;
    let mut lines = vec![];
    for (at, (graph, devices)) in programs.into_iter().enumerate() {
        let partition = onnxc_partition::partition(graph, devices).map_err(|error| vec![error])?;
        let of_rank = |graph: &Graph| onnxc_partition::Holding::of(graph).map(|own| own.text(graph));
        let own = partition.graphs.iter().filter_map(of_rank);
        match at.checked_sub(1) {
            None => lines.extend(partition.arrangement.into_iter().chain(own)),
            Some(entry) => lines.extend(own.map(|line| format!("{}: {line}", names[entry]))),
        }
    }
    Ok(lines)
}

/// The operators that models may use.
pub fn operators() -> &'static Table {
    static OPERATORS: LazyLock<Table> = LazyLock::new(|| {
        let own = onnxc_ops::FAMILIES.iter().copied();
        #[cfg(feature = "contrib")]
        let table = Table::new(own.chain(onnxc_contrib::FAMILIES.iter().copied()));
        #[cfg(not(feature = "contrib"))]
        let table = Table::new(own)
            .without(&["ai.onnx.contrib", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"], "contrib");
        table
    });
    &OPERATORS
}

/// The model's protobuf structs.
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

/// The level of the passes.
fn level(options: &Options) -> u8 {
    options.opt_level.min(pass::options::ALL_PASSES)
}

pub(crate) fn pass_options(options: &Options) -> pass::Options {
    let target = &options.target;
    let pack = pass::PackPolicy::for_target(target);
    let precision = match options.precision {
        Precision::Auto if target.multiplies_bf16() => Precision::Bf16,
        Precision::Auto => Precision::F32,
        precision => precision,
    };
    let Options { exact, goal, .. } = *options;
    pass::Options { level: level(options), pack, exact, goal, precision }
}

pub(crate) fn schedule_options(options: &Options) -> schedule::Options {
    let fuse = options.opt_level > 0;
    let Options { goal, recompute, .. } = *options;
    schedule::Options { fuse, in_place: fuse, goal, recompute, ..Default::default() }
}

/// Passes and schedule.
pub fn optimize(
    mut graph: Graph,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<(Graph, Program)> {
    let start = Instant::now();
    if let Some(weights) = &options.weights_apart {
        apart::set_apart(&mut graph, weights.least);
    }
    borders::pack_borders(&mut graph)?;
    observer.stage("borders", start.elapsed());
    let passes = pass_options(options);
    pass::run_all(&mut graph, &passes, &mut |name, graph, time| observer.pass(name, graph, time))?;
    let start = Instant::now();
    let program = schedule::schedule(&graph, schedule_options(options))?;
    observer.stage("schedule", start.elapsed());
    Ok((graph, program))
}
