//! Where the outputs of a compilation belong: from kinds and names on the command line to files.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use target_lexicon::{Architecture, Triple};

use crate::cli::args::{CompileArgs, Emit};
use crate::cli::linker;
use crate::cli::session::{Session, usage};
use onnxc_ir::error::Result;
use onnxc_machine::target::Target;

/// One file to write, or standard output.
pub(super) struct Job {
    pub emit: Emit,
    pub place: PathBuf,
}

/// What a compilation is asked for.
pub(super) struct OutputPlan {
    pub jobs: Vec<Job>,
    /// The header that comes with machine code, or alone.
    pub header: Option<PathBuf>,
    pub depfile: Option<PathBuf>,
    /// What the object's line tables lead to.
    pub listing: Option<PathBuf>,
    /// What runs a module of WebAssembly: an ES module and its types.
    pub script: Option<Script>,
    /// The file of weights that are apart, where code is written.
    pub weights: Option<PathBuf>,
}

/// The ES module beside a module of WebAssembly.
pub(super) struct Script {
    pub module: PathBuf,
    pub types: PathBuf,
}

impl Script {
    fn beside(module: &Path) -> Script {
        Script { module: module.with_extension("mjs"), types: module.with_extension("d.mts") }
    }
}

impl OutputPlan {
    /// All kinds but the one that `-o` names take their places beside it, and without `-o` in the current folder.
    pub(super) fn new(
        args: &CompileArgs,
        kinds: &[Emit],
        session: &Session,
        triple: &Triple,
        rank: Option<usize>,
    ) -> Result<OutputPlan> {
        let output = args.output.as_deref();
        let to_stdout = output == Some(Path::new("-"));
        let named = output.filter(|_| !to_stdout);
        let of_rank = || rank.map_or_else(|| session.stem(), |rank| format!("{}.rank{rank}", session.stem()));
        let base = named.map_or_else(of_rank, |output| stem(output, kinds));
        let beside = |emit: Emit| {
            let name = format!("{base}.{}", emit.extension(triple));
            named.map_or_else(|| PathBuf::from(&name), |output| output.with_file_name(&name))
        };
        let to_terminal =
            kinds.len() == 1 && kinds[0].is_text() && !matches!(kinds[0], Emit::Header | Emit::C);
        let place = |emit: Emit| match named {
            Some(output) if kinds.len() == 1 || said(output) == Some(emit) => output.to_path_buf(),
            None if to_stdout || to_terminal => PathBuf::from("-"),
            _ => beside(emit),
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
        let has_header = |emit: Emit| emit.is_code() && emit != Emit::Wasm;
        if let Some(job) = jobs.iter().find(|job| has_header(job.emit) && job.place != Path::new("-")) {
            let stem = stem(&job.place, &[job.emit]);
            header.get_or_insert_with(|| job.place.with_file_name(format!("{stem}.h")));
        }
        // What build systems look at comes last.
        jobs.sort_by_key(|job| job.emit.is_code());
        let last = jobs.last().map(|job| job.place.clone()).or(header.clone());
        let depfile = match (&args.depfile, last) {
            (None, _) => None,
            (Some(Some(file)), _) => Some(file.clone()),
            (Some(None), Some(last)) if last != Path::new("-") => Some(last.with_extension("d")),
            (Some(None), _) => {
                return Err(usage("standard output has no dependency file; --depfile=FILE names one".into()));
            }
        };
        let object =
            jobs.iter().find(|job| job.emit.is_binary() && job.emit != Emit::Wasm).map(|job| &job.place);
        let listing = match (&args.listing, object) {
            (None, _) => None,
            (Some(_), None) => {
                return Err(usage("--listing is for objects and libraries, and none is written".into()));
            }
            (Some(Some(file)), _) => Some(file.clone()),
            (Some(None), Some(object)) => Some(object.with_extension("lst")),
        };
        let script = jobs.iter().find(|job| job.emit == Emit::Wasm).map(|job| Script::beside(&job.place));
        let weights = args.code.weights_file.clone().filter(|_| jobs.iter().any(|job| has_header(job.emit)));
        Ok(OutputPlan { jobs, header, depfile, listing, script, weights })
    }

    /// Prefix of the symbols: the name of the file that is machine code, or of the first one.
    pub(super) fn name(&self, session: &Session) -> String {
        let job = self.jobs.iter().rev().find(|job| job.place != Path::new("-"));
        match (job, &self.header) {
            (Some(job), _) => stem(&job.place, &[job.emit]),
            (None, Some(header)) => stem(header, &[Emit::Header]),
            (None, None) => session.stem(),
        }
    }

    /// The files that are written, in the order in which they take their places.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let places = self.jobs.iter().map(|job| &job.place).filter(|place| **place != Path::new("-"));
        let scripts = self.script.iter().flat_map(|script| [&script.types, &script.module]);
        let beside = self.depfile.iter().chain(&self.listing).chain(&self.weights).chain(&self.header);
        beside.chain(scripts).chain(places).cloned().collect()
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
    ("c", Emit::C),
    ("wasm", Emit::Wasm),
    ("h", Emit::Header),
    ("s", Emit::Asm),
    ("clif", Emit::Clif),
    ("vector", Emit::Vector),
    ("loops", Emit::Loops),
    ("host", Emit::Host),
    ("schedule", Emit::Schedule),
    ("graph", Emit::Graph),
];

/// The kind that a file's extension says.
fn said(file: &Path) -> Option<Emit> {
    let extension = file.extension()?;
    EXTENSIONS.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|row| row.1)
}

/// Whether a module of WebAssembly is to be written, which has a target of its own.
pub(super) fn asks_for_module(asked: &[Emit], output: Option<&Path>) -> bool {
    asked.contains(&Emit::Wasm) || (asked.is_empty() && output.and_then(said) == Some(Emit::Wasm))
}

/// What to write: the kinds that are asked for, or the one that the output's extension says. Both must agree, and libraries must
/// have the extension of the target.
pub(super) fn what_to_emit(asked: &[Emit], output: Option<&Path>, target: &Target) -> Result<Vec<Emit>> {
    let (triple, c_only) = (&target.triple, target.is_source_only());
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
        (None, _) if kinds.is_empty() => kinds.push(if c_only { Emit::C } else { Emit::Obj }),
        (Some(_), Some(said)) if kinds.is_empty() => kinds.push(said),
        _ => {}
    }
    if c_only && let Some(kind) = kinds.iter().find(|kind| kind.is_machine_code()) {
        return Err(usage(format!(
            "target `{triple}` has no code generator (--emit={}): --emit c (or -o FILE.c) writes C for its compiler{}",
            kind.flag(),
            if triple.architecture == Architecture::Wasm32 {
                ", --emit wasm (or -o FILE.wasm) a module"
            } else {
                ""
            }
        )));
    }
    if kinds.contains(&Emit::Wasm) && triple.architecture != Architecture::Wasm32 {
        return Err(usage(format!(
            "modules of WebAssembly are for the target `wasm32-unknown-unknown`, not for `{triple}`; without --target they are made for it"
        )));
    }
    if kinds.contains(&Emit::C)
        && let Some(kind) = kinds.iter().find(|kind| kind.is_machine_code())
    {
        return Err(usage(format!(
            "--emit=c,{}: C is made for compilers, machine code for processors; compile the model once for each",
            kind.flag()
        )));
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

    /// The usual extension of its files for a target.
    fn extension(self, triple: &Triple) -> &'static str {
        let shared = linker::shared_extension(triple).filter(|_| self == Emit::So);
        let usual = EXTENSIONS.iter().find(|row| row.1 == self).map_or("txt", |row| row.0);
        shared.unwrap_or(usual)
    }

    /// Whether it is code, which comes with a header beside it.
    pub fn is_code(self) -> bool {
        self == Emit::C || self.is_binary()
    }

    /// Whether its files hold other bytes than text.
    pub fn is_binary(self) -> bool {
        matches!(self, Emit::Obj | Emit::Lib | Emit::So | Emit::Wasm)
    }

    /// Whether it is made by way of C.
    pub fn is_source(self) -> bool {
        matches!(self, Emit::C | Emit::Wasm)
    }

    /// Whether it is made by a code generator.
    fn is_machine_code(self) -> bool {
        matches!(self, Emit::Obj | Emit::Lib | Emit::So | Emit::Asm | Emit::Clif | Emit::Vector)
    }

    fn is_library(self) -> bool {
        matches!(self, Emit::Lib | Emit::So)
    }

    pub fn is_text(self) -> bool {
        !self.is_binary()
    }

    /// Whether it is made of machine code, not of the schedule.
    pub fn needs_code(self) -> bool {
        self.is_code() || matches!(self, Emit::Header | Emit::Host)
    }
}
