//! `onnxc MODEL`: objects, libraries and headers, and the compiler's intermediate forms as text.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use crate::cli::args::{CompileArgs, Emit};
use crate::cli::check::to_json;
use crate::cli::depfile;
use crate::cli::linker::{Library, Tools};
use crate::cli::note;
use crate::cli::output::{self, Outputs};
use crate::cli::plan::{self, Job, OutputPlan, Script, what_to_emit};
use crate::cli::session::{Problems, Progress, Session, one, print_warnings, usage};
use crate::cli::web::{self, Module};
use crate::cli::weights;
use crate::files::io_error;
use crate::{Compiled, Frontend, Options, WeightsFile};
use onnxc_backend::Levels;
use onnxc_import as import;
use onnxc_import::ImportOptions;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::Graph;
use onnxc_object::emit::{Artifact, Listing, identifier};
use onnxc_schedule::{Program, Step};

pub(super) fn run(args: &CompileArgs) -> std::result::Result<(), Problems> {
    if !args.all_ranks {
        return compile(args, args.ranks.rank);
    }
    let session = Session::open(&args.model).map_err(one)?;
    let import =
        ImportOptions { configuration: args.ranks.configuration.clone(), ..session.import_options() };
    let count = session.rank_count(&import)?;
    drop(session);
    (0..count).try_for_each(|rank| {
        let mut own = args.clone();
        own.output = args.output.as_deref().map(|output| of_rank(output, rank));
        own.name = args.name.as_ref().map(|name| format!("{name}_rank{rank}"));
        own.ranks.rank = Some(rank);
        own.code.weights_file = args.code.weights_file.as_deref().map(|file| of_rank(file, rank));
        if let Some(Some(file)) = &args.depfile {
            own.depfile = Some(Some(of_rank(file, rank)));
        }
        compile(&own, Some(rank))
    })
}

/// `net.rank0.o` of `net.o`.
fn of_rank(file: &Path, rank: usize) -> PathBuf {
    if file == Path::new("-") {
        return file.to_path_buf();
    }
    let rank = format!("rank{rank}");
    let extension = file.extension().map(|extension| extension.to_string_lossy().into_owned());
    file.with_extension(extension.map_or_else(|| rank.clone(), |extension| format!("{rank}.{extension}")))
}

fn compile(args: &CompileArgs, rank: Option<usize>) -> std::result::Result<(), Problems> {
    Progress::check_passes(&args.print_ir_after).map_err(one)?;
    let (options, kinds) = code_of(args).map_err(one)?;
    let start = Instant::now();
    let session = Session::open(&args.model).map_err(one)?;
    let plan = OutputPlan::new(args, &kinds, &session, &options.target.triple, rank).map_err(one)?;
    if args.json && plan.jobs.iter().any(|job| job.place == Path::new("-")) {
        return Err(one(usage("--json takes standard output; `-o FILE` names a file for the text".into())));
    }
    let check_places = || plan.files().iter().try_for_each(|place| session.check_place(place)).map_err(one);
    check_places()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => plan.name(&session),
    };
    let import = import_of(args, &session);
    let listing = plan.listing.as_deref().map(listing);
    let options = Options { name: identifier(&name), import, rank, listing, ..options };
    let mut progress = Progress::new(args.time_passes, args.verbose, args.print_ir_after.clone());
    let made = Made::new(&session, &options, &kinds, &mut progress)?;
    progress.hide();
    if let Some(compiled) = made.compiled() {
        // JSON has them.
        if !args.json {
            print_warnings(&compiled.warnings, &compiled.notes);
        }
        if args.verbose {
            note(format_args!("{}", compiled.program.stats()));
        }
    }
    let tools = Tools::new(&options.target.triple, args.linker.as_deref());
    let tools = tools.against(session.functions().libraries());
    check_places()?;
    plan.write(&made, &options, &tools, &session, &mut progress).map_err(one)?;
    progress.total();
    if args.json {
        say!("{}", to_json(&Written::new(&plan, &made, start)));
    }
    Ok(())
}

/// Options of the code, and what is written.
fn code_of(args: &CompileArgs) -> Result<(Options, Vec<Emit>)> {
    let mut code = args.code.clone();
    if plan::asks_for_module(&args.emit, args.output.as_deref()) {
        code.target.get_or_insert_with(|| web::TARGET.to_string());
        if code.weights_file.is_some() {
            return Err(usage(
                "--weights-file is for objects, libraries and C; a module of WebAssembly has its weights"
                    .into(),
            ));
        }
    }
    let mut options = Session::code_options(&code)?;
    let kinds = what_to_emit(&args.emit, args.output.as_deref(), &options.target)?;
    let is_source = kinds.iter().any(|kind| kind.is_source()) || options.target.is_source_only();
    if is_source {
        options.target = options.target.for_source();
    }
    if let Some(apart) = &mut options.weights_apart {
        let with = CompileArgs { code, emit: kinds.clone(), ..args.clone() };
        apart.note = serde_json::to_string(&weights::flags(&with)).unwrap_or_default();
    }
    Ok((options, kinds))
}

fn import_of(args: &CompileArgs, session: &Session) -> ImportOptions {
    ImportOptions {
        outputs: args.only_output.clone(),
        configuration: args.ranks.configuration.clone(),
        ..session.import_options()
    }
}

/// What flags mean for the code of a model.
pub(super) fn options_of(args: &CompileArgs, session: &Session, rank: Option<usize>) -> Result<Options> {
    let (options, _) = code_of(args)?;
    Ok(Options { import: import_of(args, session), rank, ..options })
}

impl CompileArgs {
    /// Whether C is written.
    pub fn is_source(&self) -> bool {
        self.emit.contains(&Emit::C)
    }
}

/// A listing at this place, which debuggers look for from the current folder on, as they do for sources of C.
fn listing(place: &Path) -> Listing {
    let folder = std::env::current_dir().unwrap_or_default();
    Listing { file: place.to_string_lossy().into_owned(), folder: folder.to_string_lossy().into_owned() }
}

/// What was made, for JSON.
#[derive(Serialize)]
struct Written {
    files: Vec<WrittenFile>,
    /// From opening the model to its files in place.
    ms: f64,
    warnings: Vec<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct WrittenFile {
    path: PathBuf,
    bytes: u64,
}

impl Written {
    fn new(plan: &OutputPlan, made: &Made, start: Instant) -> Written {
        let file = |path: PathBuf| WrittenFile {
            bytes: std::fs::metadata(&path).map_or(0, |file| file.len()),
            path,
        };
        let (warnings, notes) = match made {
            Made::Frontend(made) => (&made.warnings, &made.notes),
            Made::Compiled(made) => (&made.warnings, &made.notes),
        };
        Written {
            files: plan.files().into_iter().map(file).collect(),
            ms: start.elapsed().as_secs_f64() * 1e3,
            warnings: import::summary(warnings).iter().map(ToString::to_string).collect(),
            notes: notes.clone(),
        }
    }
}

/// A model as far as it is compiled.
enum Made {
    Frontend(Box<Frontend>),
    Compiled(Box<Compiled>),
}

impl Made {
    fn new(
        session: &Session,
        options: &Options,
        kinds: &[Emit],
        progress: &mut Progress,
    ) -> std::result::Result<Made, Problems> {
        match kinds.iter().any(|kind| kind.needs_code()) {
            true => session.compile(options, progress).map(|compiled| Made::Compiled(Box::new(compiled))),
            false => session.frontend(options, progress).map(|frontend| Made::Frontend(Box::new(frontend))),
        }
    }

    fn compiled(&self) -> Option<&Compiled> {
        match self {
            Made::Frontend(_) => None,
            Made::Compiled(compiled) => Some(compiled),
        }
    }

    fn code(&self) -> Result<&Compiled> {
        self.compiled().ok_or_else(|| Error::internal(Stage::Emit, "no machine code was made"))
    }

    fn parts(&self) -> (&Graph, &Program) {
        match self {
            Made::Frontend(frontend) => (&frontend.graph, &frontend.program),
            Made::Compiled(compiled) => (&compiled.graph, &compiled.program),
        }
    }

    /// A text of the model, and behind it that of each entry point beside inference.
    fn with_entries(&self, mut own: String, text: impl Fn(&Graph, &Program) -> String) -> String {
        let entries: Vec<(&str, &Graph, &Program)> = match self {
            Made::Frontend(made) => {
                made.entries.iter().map(|own| (&*own.suffix, &own.graph, &own.program)).collect()
            }
            Made::Compiled(made) => {
                made.entries.iter().map(|own| (&*own.suffix, &*own.graph, &own.program)).collect()
            }
        };
        for (name, graph, program) in entries {
            own += &format!("\n; {name}\n{}", text(graph, program));
        }
        own
    }

    fn header(&self, options: &Options) -> Result<String> {
        match options.target.is_source {
            true => Ok(self.code()?.outline()?.header),
            false => Ok(self.code()?.artifact()?.header),
        }
    }

    /// A form that is text.
    fn text(&self, emit: Emit, options: &Options) -> Result<String> {
        let (graph, program) = self.parts();
        match emit {
            Emit::Graph => Ok(self.with_entries(graph.to_string(), |graph, _| graph.to_string())),
            Emit::Schedule => {
                Ok(self.with_entries(program.text(graph), |graph, program| program.text(graph)))
            }
            Emit::Host => Ok(self.code()?.host()?.to_string()),
            Emit::Header => self.header(options),
            Emit::C => {
                let mut text = vec![];
                let made = self.code()?;
                made.write_source(&made.outline()?, &mut text)?;
                String::from_utf8(text).map_err(|error| Error::internal(Stage::Emit, error.to_string()))
            }
            _ => kernels_text(graph, program, options, emit),
        }
    }
}

impl OutputPlan {
    /// Writes everything, which takes its place together.
    fn write(
        &self,
        made: &Made,
        options: &Options,
        tools: &Tools,
        session: &Session,
        progress: &mut Progress,
    ) -> Result<()> {
        let mut outputs: Option<Outputs> = None;
        // The header comes with the first of what is machine code.
        let mut ready = None;
        let text_into = |outputs: &mut Outputs, place: &Path, text: &str| {
            outputs.write(place, &mut |file| {
                file.write_all(text.as_bytes()).map_err(|error| io_error(place, &error))
            })
        };
        if let Some(header) = &self.header {
            let outputs = outputs.insert(progress.time("folder", || Outputs::beside(header))?);
            if options.target.is_source {
                let outline = progress.time("emit", || made.code()?.outline())?;
                progress.time("header", || text_into(outputs, header, &outline.header))?;
                self.write_weights(outputs, outline.weights_file.as_ref(), progress)?;
            } else {
                let artifact = progress.time("emit", || made.code()?.artifact())?;
                progress.time("header", || text_into(outputs, header, &artifact.header))?;
                self.write_weights(outputs, artifact.weights_file.as_ref(), progress)?;
                if let (Some(place), Some(text)) = (&self.listing, &artifact.listing) {
                    progress.time("listing", || text_into(outputs, place, text))?;
                }
                ready = Some(artifact);
            }
        }
        for Job { emit, place } in &self.jobs {
            if place == Path::new("-") {
                let text = progress.time("text", || made.text(*emit, options))?;
                say!("{}", text.trim_end());
                continue;
            }
            let outputs = match &mut outputs {
                Some(outputs) => outputs,
                None => outputs.insert(progress.time("folder", || Outputs::beside(place))?),
            };
            if *emit == Emit::C {
                let made = made.code()?;
                let mut write = |file: &mut File| made.write_source(&made.outline()?, file);
                progress.time("write", || outputs.write(place, &mut write))?;
                continue;
            }
            if *emit == Emit::Wasm {
                let made = made.code()?;
                let outline = made.outline()?;
                if let Some(Script { module, types }) = &self.script {
                    let file = place.file_name().unwrap_or_default().to_string_lossy();
                    text_into(outputs, types, &onnxc_source::web::types(&outline)?)?;
                    text_into(outputs, module, &onnxc_source::web::script(&outline, &file))?;
                }
                let module =
                    progress.time("clang", || Module::build(made, &outline, options, tools, place))?;
                progress.time("write", || outputs.write(place, &mut |file| module.copy_to(file, place)))?;
                continue;
            }
            if emit.is_text() {
                let text = progress.time("text", || made.text(*emit, options))?;
                progress.time("write", || text_into(outputs, place, &text))?;
                continue;
            }
            let artifact = match ready.take() {
                Some(artifact) => artifact,
                None => progress.time("emit", || made.code()?.artifact())?,
            };
            if *emit == Emit::Obj {
                let mut artifact = Some(artifact);
                let mut write = |file: &mut File| match artifact.take() {
                    Some(artifact) => write_object(artifact, file, place),
                    None => Ok(()),
                };
                progress.time("write", || outputs.write(place, &mut write))?;
            } else {
                let library =
                    progress.time("link", || Library::build(artifact, tools, *emit == Emit::So, place))?;
                progress.time("write", || outputs.write(place, &mut |file| library.copy_to(file, place)))?;
            }
        }
        if let Some(depfile) = &self.depfile {
            let mut made = self.files();
            made.retain(|file| file != depfile);
            let text = depfile::text(&made, &session.read_files());
            progress.time("depfile", || output::write_bytes(depfile, text.as_bytes()))?;
        }
        progress.time("commit", || outputs.map_or(Ok(()), Outputs::commit))
    }
}

impl OutputPlan {
    /// Writes the weights that are apart.
    fn write_weights(
        &self,
        outputs: &mut Outputs,
        weights: Option<&WeightsFile>,
        progress: &mut Progress,
    ) -> Result<()> {
        let Some(place) = &self.weights else { return Ok(()) };
        let Some(weights) = weights else {
            return Err(usage(format!("{}: the model has no weights that could be apart", place.display())));
        };
        progress.time("weights", || outputs.write(place, &mut |file| weights.write(file)))
    }
}

/// Writes an object into `file`, which belongs at `place`.
fn write_object(artifact: Artifact, file: &mut File, place: &Path) -> Result<()> {
    artifact.write_object(file).map_err(|error| match error.kind {
        Kind::Io => error.reworded(|message| format!("{}: {message}", place.display())),
        _ => error,
    })
}

/// Loop IR, vector IR, Cranelift IR or assembly of every kernel, bodies included.
fn kernels_text(graph: &Graph, program: &Program, options: &Options, emit: Emit) -> Result<String> {
    let levels = Levels::new(&options.target)?;
    let mut text = String::new();
    let mut open: Vec<(&Graph, &Program)> = vec![(graph, program)];
    while let Some((graph, program)) = open.pop() {
        for group in program.groups.keys() {
            for (level, built) in levels.build(graph, program, group)? {
                let backends = levels.get(level);
                if levels.are_several() {
                    text += &format!("// {}\n", backends.cpu());
                }
                text += &match emit {
                    Emit::Loops => built.kernel.to_string(),
                    Emit::Vector => backends.vector(&built),
                    Emit::Clif => backends.clif(graph, program, group)?,
                    _ => backends.assembly(&built)?,
                };
                text.push('\n');
            }
        }
        for step in &program.steps {
            if let Step::Control { node, bodies, .. } = step {
                open.extend(graph.nodes[*node].op.bodies().iter().zip(bodies));
            }
        }
    }
    Ok(text)
}
