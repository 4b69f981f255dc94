//! What the subcommands share: the model file, the options, progress, and models made native in this process.

use crate::cli::args::{CodeArgs, ModelArgs};
use crate::cli::functions::Functions;
use crate::cli::progress::Line;
use crate::cli::{NESTING, note, output, weights};
use crate::files::external::ExternalFiles;
use crate::files::{Mapped, io_error};
use crate::native::{self, Models};
use crate::{Compiled, CompiledEntry, Counter, Frontend, Observer, Options, WeightsApart};
use bytes::Bytes;
use onnxc_backend::codegen::kernels::Kernels;
use onnxc_import as import;
use onnxc_import::state::Choice;
use onnxc_import::training::Role;
use onnxc_import::{DimPin, Import, ImportOptions, InputShape, Limits, Warning};
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{Graph, external};
use onnxc_ir::words::did_you_mean;
use onnxc_machine::target::{Goal, Target};
use onnxc_object::emit::{Stats, StepInfo};
use onnxc_passes as pass;
use onnxc_schedule::{Program, Recompute};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target_lexicon::Triple;
use tempfile::TempDir;

/// Every problem found.
pub type Problems = Vec<Error>;

/// A single problem as several.
pub fn one(error: Error) -> Problems {
    vec![error]
}

pub fn usage(message: String) -> Error {
    Error::new(Stage::Io, Kind::Usage, message)
}

/// Of a file that has no name for others.
pub fn temporary_error(error: &std::io::Error) -> Error {
    let folder = std::env::temp_dir();
    let message = format!("a temporary file in {}: {error}; TMPDIR names another folder", folder.display());
    Error::new(Stage::Io, Kind::Io, message)
}

/// Prints on standard error the rules that a model breaks, each kind once, and the parts without influence on the result; nothing with
/// `--quiet`.
pub fn print_warnings(warnings: &[Warning], notes: &[String]) {
    import::summary(warnings).iter().for_each(|warning| note(format_args!("warning: {warning}")));
    notes.iter().for_each(|text| note(format_args!("note: {text}")));
}

/// The path that stands for standard input.
const STDIN: &str = "-";

/// A model file and where its external data is.
pub struct Source {
    file: Mapped,
    external: ExternalFiles,
    path: PathBuf,
}

impl Source {
    /// The model at a path; external data below its folder, or below `root` if that is given.
    pub fn open(path: &Path, root: Option<&Path>) -> Result<Source> {
        let file = match path == Path::new(STDIN) {
            true => Mapped::read(&mut std::io::stdin().lock())
                .map_err(|error| io_error(Path::new("standard input"), &error))?,
            false => Mapped::open(path)?,
        };
        // The folder of a plain file name is the empty path.
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Source { file, external: ExternalFiles::new(folder, root)?, path: path.to_path_buf() })
    }

    pub fn bytes(&self) -> Bytes {
        self.file.bytes()
    }

    pub fn external(&self) -> &ExternalFiles {
        &self.external
    }

    /// The files that were read: the model but from standard input, and external data once the model is imported, in the order of
    /// their names.
    pub fn read_files(&self) -> Vec<PathBuf> {
        let mut files = self.external.read_files();
        files.sort();
        if self.path != Path::new(STDIN) {
            files.insert(0, self.path.clone());
        }
        files
    }
}

fn needs_library(symbol: &str) -> Error {
    usage(format!(
        "the model calls the function `{symbol}`: --custom-library FILE names the shared library that has it"
    ))
}

/// A model file and how it is imported.
pub struct Session {
    source: Source,
    import: ImportOptions,
    /// How many of its input shapes are those of flags.
    flag_shapes: usize,
    /// Those that compute operators of the user's.
    functions: Functions,
    /// See [`Session::weights`].
    weights: Option<PathBuf>,
}

impl Session {
    pub fn open(args: &ModelArgs) -> Result<Session> {
        let pins = args.input_dims.iter().map(|text| DimPin::from_str(text)).collect::<Result<_>>()?;
        let shapes: Vec<InputShape> =
            args.input_shapes.iter().map(|text| InputShape::from_str(text)).collect::<Result<_>>()?;
        let source = Source::open(&args.model, args.external_data_root.as_deref())?;
        let flag_shapes = shapes.len();
        let functions = Functions::open(&args.custom_libraries)?;
        Ok(Session {
            source,
            import: ImportOptions {
                input_dims: pins,
                input_shapes: shapes,
                overridable_defaults: args.overridable_defaults,
                strict: args.strict,
                nchwc_block: args.nchwc_block.map(|block| block as usize),
                outputs: vec![],
                state: Choice::parse(&args.state, args.state_capacity)?,
                training: args.training,
                custom_ops: functions.declared(args)?,
                configuration: None,
                limits: Limits { nesting: NESTING, ..Limits::default() },
            },
            flag_shapes,
            functions,
            weights: None,
        })
    }

    /// Fails where an output may not be put, such as over a file that has been read: the model, and external data once the
    /// model is imported.
    pub fn check_place(&self, place: &Path) -> Result<()> {
        output::check_place(place, &self.read_files())
    }

    /// See [`Source::read_files`].
    pub fn read_files(&self) -> Vec<PathBuf> {
        self.source.read_files()
    }

    /// The model's folder.
    pub fn folder(&self) -> &Path {
        match self.source.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// The model's file name without extension.
    pub fn stem(&self) -> String {
        let stem = self.source.path.file_stem().filter(|_| self.source.path != Path::new(STDIN));
        stem.map_or("model".into(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Options for this model.
    pub fn options(&self, code: &CodeArgs, name: &str) -> Result<Options> {
        Ok(Options { name: name.to_string(), import: self.import.clone(), ..Session::code_options(code)? })
    }

    /// Those that compute operators of the user's.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    pub fn import_options(&self) -> ImportOptions {
        self.import.clone()
    }

    /// Options of the code, for any model.
    pub fn code_options(code: &CodeArgs) -> Result<Options> {
        let (opt_level, goal) = code.opt_level.parts();
        Ok(Options {
            name: String::new(),
            target: target(code)?.for_goal(goal),
            opt_level,
            exact: code.exact,
            precision: code.precision,
            goal,
            import: ImportOptions::default(),
            rank: None,
            profile: false,
            trace: !code.no_trace && goal == Goal::Speed,
            unwind: !code.no_unwind && goal == Goal::Speed,
            listing: None,
            recompute: code.recompute.map_or(Recompute::Nothing, Recompute::asked),
            weights_apart: code
                .weights_file
                .as_ref()
                .map(|_| WeightsApart { least: code.weights_from, ..WeightsApart::default() }),
        })
    }

    /// How many ranks the device configuration has that is to be followed.
    pub fn rank_count(&self, import: &ImportOptions) -> std::result::Result<usize, Problems> {
        let proto = self.decode().map_err(one)?;
        let name = import.configuration.as_deref().unwrap_or_default();
        onnxc_import::ranks_of(&proto, name).map_err(one)
    }

    /// How a device configuration arranges the model.
    pub fn ranks(&self, options: &Options) -> std::result::Result<Vec<String>, Problems> {
        crate::ranks(self.source.bytes(), self.source.external(), options)
    }

    pub fn decode(&self) -> Result<onnxc_proto::ModelProto> {
        crate::decode(self.source.file.bytes())
    }

    /// Gives inputs shapes beside those that flags give, in place of those that an earlier call gave; gives these back.
    pub fn set_shapes(&mut self, shapes: Vec<InputShape>) -> Vec<InputShape> {
        let earlier = self.import.input_shapes.split_off(self.flag_shapes);
        self.import.input_shapes.extend(shapes);
        earlier
    }

    /// The graph as imported, without any pass.
    pub fn import(&self) -> std::result::Result<Import, Problems> {
        let proto = self.decode().map_err(one)?;
        import::import(&proto, &self.import, &self.source.external, crate::operators())
    }

    pub fn frontend(
        &self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Frontend, Problems> {
        crate::frontend(self.source.file.bytes(), &self.source.external, options, observer)
    }

    /// Compiles the model; afterwards the pages of its file need not stay in memory.
    pub fn compile(
        &self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> std::result::Result<Compiled, Problems> {
        let mut observer = Releasing { file: &self.source.file, observer };
        let compiled =
            crate::compile(self.source.file.bytes(), &self.source.external, options, &mut observer);
        self.source.file.release();
        compiled
    }

    /// Compiles the model for this machine and loads it.
    pub fn load(&self, options: &Options) -> std::result::Result<Loaded, Problems> {
        if let Some(custom) = options.import.custom_ops.iter().find(|custom| custom.late) {
            return Err(one(needs_library(&custom.function)));
        }
        let start = Instant::now();
        let compiled = self.compile(options, &mut Progress::new(false, false, vec![]))?;
        Loaded::with_weights(compiled, (&self.functions, self.weights.as_deref()), start).map_err(one)
    }

    /// The file of weights that runs use, of a model that has them apart.
    pub fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    /// See [`Session::weights`].
    pub fn use_weights(&mut self, file: Option<&Path>) {
        self.weights = file.map(Path::to_path_buf);
    }
}

/// The target that flags name.
fn target(code: &CodeArgs) -> Result<Target> {
    let mcpu = code.mcpu.as_deref();
    let target = match &code.target {
        Some(triple) => Target::parse(triple, mcpu)?,
        None => Target::new(Triple::host(), mcpu)?,
    };
    let target = match &code.levels {
        Some(levels) => target.with_levels(levels)?,
        None => target,
    };
    match code.vector_width {
        Some(bits) => target.with_vector_width(bits),
        None => Ok(target),
    }
}

/// Name prefix of models that this process makes for itself.
const NAME: &str = "model";

/// Options for a model that runs in this process: its own machine's target, unless one is named.
pub fn native_options(session: &Session, code: &CodeArgs) -> Result<Options> {
    let mut code = code.clone();
    if let Some(file) = &code.weights_file {
        code = weights::recorded(file)?.code;
    } else if code.mcpu.is_none() && code.target.is_none() && code.levels.is_none() {
        code.mcpu = Some("native".to_string());
    }
    let options = session.options(&code, NAME)?;
    let (host, triple) = (Triple::host(), &options.target.triple);
    let machine = |triple: &Triple| (triple.architecture, triple.operating_system, triple.binary_format);
    match machine(&host) == machine(triple) {
        true => Ok(options),
        false => Err(usage(format!(
            "code for {triple} does not run on this machine, which is {host}; leave --target out, or compile only"
        ))),
    }
}

/// A program of a loaded model beside the one that infers.
pub struct LoadedEntry {
    pub suffix: String,
    pub role: Role,
    pub graph: std::sync::Arc<Graph>,
}

/// A compiled model, linked and loaded.
pub struct Loaded {
    pub graph: std::sync::Arc<Graph>,
    pub notes: Vec<String>,
    pub warnings: Vec<Warning>,
    pub steps: Vec<StepInfo>,
    pub stats: Stats,
    pub program: Program,
    pub kernels: Kernels,
    pub object_bytes: u64,
    /// From the start of compiling to the object on disk.
    pub compile_time: Duration,
    pub load_time: Duration,
    /// What trains the model, where that is compiled.
    pub entries: Vec<LoadedEntry>,
    models: Models,
    /// Holds the library's file.
    _folder: TempDir,
}

impl Loaded {
    /// `start` is when compiling began.
    pub fn new(compiled: Compiled, start: Instant) -> Result<Loaded> {
        Loaded::with(compiled, &Functions::default(), start)
    }

    /// [`Loaded::new`] of a model that calls functions of the user's.
    pub fn with(compiled: Compiled, functions: &Functions, start: Instant) -> Result<Loaded> {
        Loaded::with_weights(compiled, (functions, None), start)
    }

    /// [`Loaded::with`] with the weights of this file, in place of the model's own, where they are apart.
    pub fn with_weights(
        compiled: Compiled,
        (functions, weights): (&Functions, Option<&Path>),
        start: Instant,
    ) -> Result<Loaded> {
        let entries = compiled.entries.iter().map(|entry| &*entry.graph);
        let called = external::functions(entries.chain([&*compiled.graph]));
        let linked = called.iter().find(|(_, function)| !function.late);
        if let (Some((symbol, _)), []) = (linked, functions.libraries()) {
            return Err(needs_library(symbol));
        }
        let folder = tempfile::tempdir().map_err(|error| temporary_error(&error))?;
        let (object, library) = (folder.path().join("model.o"), folder.path().join("model.so"));
        let artifact = compiled.artifact()?;
        let (steps, stats) = (artifact.steps.clone(), artifact.stats);
        let own = folder.path().join("model.weights");
        if let (Some(file), None) = (&artifact.weights_file, weights) {
            file.write(File::create(&own).map_err(|error| temporary_error(&error))?)?;
        }
        let weights = artifact.weights_file.is_some().then(|| weights.unwrap_or(&own));
        let mut file = File::create(&object).map_err(|error| temporary_error(&error))?;
        artifact.write_object(&mut file)?;
        let object_bytes = file.metadata().map_err(|error| temporary_error(&error))?.len();
        let compile_time = start.elapsed();
        native::link_with(std::slice::from_ref(&object), functions.libraries(), &library)?;
        std::fs::remove_file(&object).map_err(|error| temporary_error(&error))?;
        let start = Instant::now();
        let shown = library.display().to_string();
        let mut models = Models::load(&library)
            .map_err(|error| error.reworded(|message| message.replace(&shown, "the linked model")))?;
        models.get(NAME)?;
        if let Some(weights) = weights {
            models.use_weights(NAME, weights)?;
        }
        let entries = compiled.entries.into_iter();
        let entries =
            entries.map(|CompiledEntry { suffix, role, graph, .. }| LoadedEntry { suffix, role, graph });
        let entries = entries.collect();
        Ok(Loaded {
            graph: compiled.graph,
            notes: compiled.notes,
            warnings: compiled.warnings,
            steps,
            stats,
            program: compiled.program,
            kernels: compiled.kernels,
            object_bytes,
            compile_time,
            load_time: start.elapsed(),
            entries,
            models,
            _folder: folder,
        })
    }

    pub fn model(&self) -> Result<native::Model<'_>> {
        self.models.get(NAME)
    }

    /// The program of an entry.
    pub fn entry(&self, entry: &LoadedEntry) -> Result<native::Model<'_>> {
        self.models.get(&format!("{NAME}_{}", entry.suffix))
    }
}

/// Stages and passes on standard error.
pub struct Progress {
    time_passes: bool,
    verbose: bool,
    /// Passes to print the graph after; `all` is each.
    print_after: Vec<String>,
    start: Instant,
    line: Option<Line>,
    counter: Arc<Counter>,
}

impl Progress {
    pub fn new(time_passes: bool, verbose: bool, print_after: Vec<String>) -> Progress {
        let counter = Arc::<Counter>::default();
        let line = Line::new(counter.clone());
        Progress { time_passes, verbose, print_after, start: Instant::now(), line, counter }
    }

    /// A usage error for a pass that does not exist.
    pub fn check_passes(names: &[String]) -> Result<()> {
        let known = |name: &String| name == "all" || pass::by_name(name).is_some();
        match names.iter().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) => {
                let mut passes: Vec<&str> = pass::passes().map(|pass| pass.name).collect();
                passes.sort_unstable();
                passes.dedup();
                let near = did_you_mean(name, passes.iter().copied());
                Err(usage(format!(
                    "no pass is called `{name}`{near}; there are {} and all",
                    passes.join(", ")
                )))
            }
        }
    }

    fn done(&mut self, what: &str, name: &str, time: Duration) {
        if self.time_passes {
            self.print(&format!("{:>10.3} ms  {what} {name}", time.as_secs_f64() * 1e3));
        } else if self.verbose {
            self.print(&format!("{what} {name}"));
        }
        if let Some(line) = &self.line {
            line.set(format!("{what} {name} done"));
        }
    }

    /// Runs a stage.
    pub fn time<T>(&mut self, stage: &str, run: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = run();
        self.stage(stage, start.elapsed());
        result
    }

    /// Ends the line of progress: what follows may write to the terminal.
    pub fn hide(&mut self) {
        self.verbose = false;
        self.line = None;
    }

    /// All that the passes and stages took, and what lay between them.
    pub fn total(&mut self) {
        if self.time_passes {
            self.print(&format!("{:>10.3} ms  total", self.start.elapsed().as_secs_f64() * 1e3));
        }
    }

    fn print(&self, text: &str) {
        match &self.line {
            Some(line) => line.print(text),
            None => note(format_args!("{text}")),
        }
    }
}

/// Gives the pages of a model's file back once it is decoded: lists are in the structs then, and weights are read from the file
/// again, if at all.
struct Releasing<'s> {
    file: &'s Mapped,
    observer: &'s mut dyn Observer,
}

impl Observer for Releasing<'_> {
    fn pass(&mut self, name: &str, graph: &Graph, time: Duration) {
        self.observer.pass(name, graph, time);
    }

    fn stage(&mut self, name: &str, time: Duration) {
        self.observer.stage(name, time);
        if name == "decode" {
            self.file.release();
        }
    }

    fn counter(&self) -> Arc<Counter> {
        self.observer.counter()
    }
}

impl Observer for Progress {
    fn pass(&mut self, name: &str, graph: &Graph, time: Duration) {
        self.done("pass", name, time);
        if self.print_after.iter().any(|wanted| wanted == name || wanted == "all") {
            self.print(&format!("// after {name}\n{graph}"));
        }
    }

    fn stage(&mut self, name: &str, time: Duration) {
        self.done("stage", name, time);
    }

    fn counter(&self) -> Arc<Counter> {
        self.counter.clone()
    }
}
