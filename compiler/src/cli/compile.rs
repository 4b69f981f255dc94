//! `onnxc MODEL`: objects, libraries and headers, and the compiler's intermediate forms as text.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use target_lexicon::Triple;

use crate::backend::Levels;
use crate::cli::args::{CompileArgs, Emit};
use crate::cli::depfile;
use crate::cli::linker::{self, Library, Tools};
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Progress, Session, one, tell, usage};
use crate::codegen::emit::{Artifact, identifier};
use crate::error::{Error, Kind, Result, Stage};
use crate::files::io_error;
use crate::graph::Graph;
use crate::schedule::{Program, Step};
use crate::{Compiled, Frontend, Options};

/// One file to write, or standard output.
struct Job {
    emit: Emit,
    place: PathBuf,
}

/// What a compilation is asked for.
struct Plan {
    jobs: Vec<Job>,
    /// The header that comes with machine code, or alone.
    header: Option<PathBuf>,
    depfile: Option<PathBuf>,
}

pub fn run(args: &CompileArgs) -> std::result::Result<(), Problems> {
    Progress::check_passes(&args.print_ir_after).map_err(one)?;
    let options = Session::code_options(&args.code).map_err(one)?;
    let kinds = what_to_emit(&args.emit, args.output.as_deref(), &options.target.triple).map_err(one)?;
    let session = Session::open(&args.model).map_err(one)?;
    let plan = Plan::new(args, &kinds, &session, &options.target.triple).map_err(one)?;
    let check_places = || plan.files().iter().try_for_each(|place| session.check_place(place)).map_err(one);
    check_places()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => plan.name(&session),
    };
    let options = Options { name: identifier(&name), import: session.import_options(), ..options };
    let mut progress = Progress::new(args.time_passes, args.verbose, args.print_ir_after.clone());
    let made = Made::new(&session, &options, &kinds, &mut progress)?;
    drop(progress);
    if let Some(compiled) = made.compiled() {
        tell(&compiled.warnings, &compiled.notes);
        if args.verbose {
            eprintln!("{}", compiled.program.stats());
        }
    }
    let tools = Tools::new(&options.target.triple, args.linker.as_deref());
    check_places()?;
    plan.write(&made, &options, &tools, &session).map_err(one)
}

/// A model as far as it is compiled.
enum Made {
    Frontend(Frontend),
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
            false => session.frontend(options, progress).map(Made::Frontend),
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

    /// A form that is text.
    fn text(&self, emit: Emit, options: &Options) -> Result<String> {
        let (graph, program) = self.parts();
        match emit {
            Emit::Graph => Ok(graph.to_string()),
            Emit::Host => Ok(self.code()?.host()?.to_string()),
            Emit::Header => Ok(self.code()?.artifact()?.header),
            _ => kernels_text(graph, program, options, emit),
        }
    }
}

impl Plan {
    /// All kinds but the one that `-o` names take their places beside it, and without `-o` in the current folder.
    fn new(args: &CompileArgs, kinds: &[Emit], session: &Session, triple: &Triple) -> Result<Plan> {
        let output = args.output.as_deref();
        let to_stdout = output == Some(Path::new("-"));
        let named = output.filter(|_| !to_stdout);
        let base = named.map_or_else(|| PathBuf::from(session.stem()), Path::to_path_buf);
        let beside = |extension: &str| base.with_file_name(format!("{}.{extension}", stem(&base, kinds)));
        let place = |emit: Emit| match named {
            Some(output) if kinds.len() == 1 || said(output) == Some(emit) => output.to_path_buf(),
            None if to_stdout || (kinds.len() == 1 && emit.is_text()) => PathBuf::from("-"),
            None if emit == Emit::So => base.with_file_name(format!(
                "{}.{}",
                session.stem(),
                linker::shared_extension(triple).unwrap_or("so")
            )),
            None => base.with_file_name(format!("{}.{}", session.stem(), emit.extension())),
            Some(_) if emit == Emit::So => beside(linker::shared_extension(triple).unwrap_or("so")),
            Some(_) => beside(emit.extension()),
        };
        let is_header = |job: &Job| job.emit == Emit::Header && job.place != Path::new("-");
        let mut jobs: Vec<Job> = kinds.iter().map(|&emit| Job { emit, place: place(emit) }).collect();
        let mut header = jobs.iter().find(|job| is_header(job)).map(|job| job.place.clone());
        jobs.retain(|job| !is_header(job));
        if to_stdout && let Some(job) = jobs.iter().find(|job| job.emit.is_binary()) {
            return Err(usage(format!(
                "{} is not written to standard output; `-o FILE` names a file, and --emit a kind of text",
                job.emit.flag()
            )));
        }
        if to_stdout && jobs.len() > 1 {
            return Err(usage(
                "standard output takes one kind of text; `-o FILE` names a file for several".into(),
            ));
        }
        if let Some(job) = jobs.iter().find(|job| job.emit.is_binary()) {
            let stem = stem(&job.place, &[job.emit]);
            header.get_or_insert_with(|| job.place.with_file_name(format!("{stem}.h")));
        }
        // What build systems look at comes last.
        jobs.sort_by_key(|job| job.emit.is_binary());
        let last = jobs.last().map(|job| job.place.clone()).or(header.clone());
        let depfile = match (&args.depfile, last) {
            (None, _) => None,
            (Some(Some(file)), _) => Some(file.clone()),
            (Some(None), Some(last)) if last != Path::new("-") => Some(last.with_extension("d")),
            (Some(None), _) => {
                return Err(usage("standard output has no dependency file; --depfile=FILE names one".into()));
            }
        };
        Ok(Plan { jobs, header, depfile })
    }

    /// Prefix of the symbols: the name of the file that is machine code, or of the first one.
    fn name(&self, session: &Session) -> String {
        let job = self.jobs.iter().rev().find(|job| job.place != Path::new("-"));
        match (job, &self.header) {
            (Some(job), _) => stem(&job.place, &[job.emit]),
            (None, Some(header)) => stem(header, &[Emit::Header]),
            (None, None) => session.stem(),
        }
    }

    /// The files that are written, in the order in which they take their places.
    fn files(&self) -> Vec<PathBuf> {
        let places = self.jobs.iter().map(|job| &job.place).filter(|place| **place != Path::new("-"));
        self.depfile.iter().chain(&self.header).chain(places).cloned().collect()
    }

    fn write(&self, made: &Made, options: &Options, tools: &Tools, session: &Session) -> Result<()> {
        let mut outputs: Option<Outputs> = None;
        let text_into = |outputs: &mut Outputs, place: &Path, text: &str| {
            outputs.write(place, &mut |file| {
                file.write_all(text.as_bytes()).map_err(|error| io_error(place, &error))
            })
        };
        if let Some(header) = &self.header {
            let outputs = outputs.insert(Outputs::beside(header)?);
            text_into(outputs, header, &made.text(Emit::Header, options)?)?;
        }
        for Job { emit, place } in &self.jobs {
            if place == Path::new("-") {
                say!("{}", made.text(*emit, options)?.trim_end());
                continue;
            }
            let outputs = match &mut outputs {
                Some(outputs) => outputs,
                None => outputs.insert(Outputs::beside(place)?),
            };
            if emit.is_text() {
                text_into(outputs, place, &made.text(*emit, options)?)?;
                continue;
            }
            let artifact = made.code()?.artifact()?;
            if *emit == Emit::Obj {
                let mut artifact = Some(artifact);
                outputs.write(place, &mut |file| match artifact.take() {
                    Some(artifact) => write_object(artifact, file, place),
                    None => Ok(()),
                })?;
            } else {
                let library = Library::build(artifact, tools, *emit == Emit::So, place)?;
                outputs.write(place, &mut |file| library.copy_to(file, place))?;
            }
        }
        if let Some(depfile) = &self.depfile {
            let made = self.files().split_off(1);
            output::write_bytes(depfile, depfile::text(&made, &session.read_files()).as_bytes())?;
        }
        outputs.map_or(Ok(()), Outputs::commit)
    }
}

/// A file's name without extension, and of libraries without `lib`.
fn stem(place: &Path, kinds: &[Emit]) -> String {
    let stem = place.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_library = said(place).map_or_else(|| kinds.iter().any(|kind| kind.is_library()), Emit::is_library);
    match stem.strip_prefix("lib") {
        Some(rest) if is_library && !rest.is_empty() => rest.to_string(),
        _ => stem,
    }
}

/// What the extensions of outputs say.
const EXTENSIONS: &[(&str, Emit)] = &[
    ("o", Emit::Obj),
    ("obj", Emit::Obj),
    ("a", Emit::Lib),
    ("so", Emit::So),
    ("dylib", Emit::So),
    ("dll", Emit::So),
    ("h", Emit::Header),
    ("s", Emit::Asm),
    ("clif", Emit::Clif),
    ("vector", Emit::Vector),
    ("loops", Emit::Loops),
    ("host", Emit::Host),
    ("graph", Emit::Graph),
];

/// The kind that a file's extension says.
fn said(file: &Path) -> Option<Emit> {
    let extension = file.extension()?;
    EXTENSIONS.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|row| row.1)
}

/// What to write: the kinds that are asked for, or the one that the output's extension says. Both must agree, and libraries must
/// have the extension of the target.
fn what_to_emit(asked: &[Emit], output: Option<&Path>, triple: &Triple) -> Result<Vec<Emit>> {
    let mut kinds: Vec<Emit> = Vec::new();
    asked.iter().for_each(|&kind| {
        if !kinds.contains(&kind) {
            kinds.push(kind)
        }
    });
    let file = output.filter(|&output| output != Path::new("-"));
    let said = file.and_then(said);
    match (file.map(Path::display), said) {
        (Some(shown), Some(said)) if !kinds.is_empty() && !kinds.contains(&said) => {
            let (asked, said) = (flags(&kinds), said.flag());
            return Err(usage(format!(
                "{shown}: the extension says --emit={said}, the flag --emit={asked}; give one of the two, or the same twice"
            )));
        }
        (Some(shown), None) if kinds.len() != 1 => {
            let known: Vec<String> = EXTENSIONS
                .iter()
                .map(|(extension, emit)| format!(".{extension} ({})", emit.flag()))
                .collect();
            let (known, several) =
                (known.join(", "), if kinds.is_empty() { ", or --emit says it" } else { "" });
            return Err(usage(format!(
                "{shown}: the extension does not say what to write; it may be {known}{several}"
            )));
        }
        (None, _) if kinds.is_empty() => kinds.push(Emit::Obj),
        (Some(_), Some(said)) if kinds.is_empty() => kinds.push(said),
        _ => {}
    }
    if kinds.contains(&Emit::So) {
        let Some(wanted) = linker::shared_extension(triple) else {
            return Err(usage(format!(
                "target `{triple}` has no shared libraries; .o and .a are for any program"
            )));
        };
        let extension = file.filter(|_| said == Some(Emit::So)).and_then(Path::extension);
        if let (Some(file), Some(extension)) = (file, extension)
            && !extension.eq_ignore_ascii_case(wanted)
        {
            return Err(usage(format!(
                "{}: shared libraries of the target `{triple}` are .{wanted} files; --target names another target",
                file.display()
            )));
        }
    }
    Ok(kinds)
}

fn flags(kinds: &[Emit]) -> String {
    kinds.iter().map(|kind| kind.flag()).collect::<Vec<_>>().join(",")
}

impl Emit {
    /// Its name on the command line.
    fn flag(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// The usual extension of its files.
    fn extension(self) -> &'static str {
        EXTENSIONS.iter().find(|row| row.1 == self).map_or("txt", |row| row.0)
    }

    /// Whether it is machine code, which comes with a header beside it.
    fn is_binary(self) -> bool {
        matches!(self, Emit::Obj | Emit::Lib | Emit::So)
    }

    fn is_library(self) -> bool {
        matches!(self, Emit::Lib | Emit::So)
    }

    fn is_text(self) -> bool {
        !self.is_binary()
    }

    /// Whether it is made of machine code, not of the schedule.
    fn needs_code(self) -> bool {
        self.is_binary() || matches!(self, Emit::Header | Emit::Host)
    }
}

/// Writes an object into `file`, which belongs at `place`.
fn write_object(artifact: Artifact, file: &mut File, place: &Path) -> Result<()> {
    artifact.write_object(file).map_err(|error| match error.kind {
        Kind::Io => Error { message: format!("{}: {}", place.display(), error.message), ..error },
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
