//! `onnxc MODEL`: objects, libraries and headers, and the compiler's intermediate forms as text.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use tempfile::TempDir;

use crate::backend::Levels;
use crate::cli::args::{CompileArgs, Emit};
use crate::cli::output::{self, Outputs};
use crate::cli::session::{Problems, Progress, Session, io_error, one, tell, usage};
use crate::codegen::emit::{Artifact, identifier};
use crate::error::{Error, Kind, Result};
use crate::graph::Graph;
use crate::schedule::{Program, Step};
use crate::{Compiled, Frontend, Options, native};

pub fn run(args: &CompileArgs) -> std::result::Result<(), Problems> {
    Progress::check_passes(&args.print_ir_after).map_err(one)?;
    let emit = what_to_emit(args.emit, args.output.as_deref()).map_err(one)?;
    let session = Session::open(&args.model).map_err(one)?;
    let output = output_path(args, emit, &session);
    let to_stdout = output == Path::new("-");
    if to_stdout && emit.is_binary() {
        return Err(one(usage(
            "objects and libraries are not written to standard output; `-o FILE` names a file, and --emit a kind of text"
                .to_string(),
        )));
    }
    let places = places(emit, &output);
    let check_places = || places.iter().try_for_each(|place| session.check_place(place)).map_err(one);
    check_places()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None if to_stdout => session.stem(),
        None => output.file_stem().unwrap_or(OsStr::new("")).to_string_lossy().into_owned(),
    };
    let options = session.options(&args.code, &identifier(&name)).map_err(one)?;
    let mut progress = Progress::new(args.time_passes, args.verbose, args.print_ir_after.clone());
    let text = match emit {
        Emit::Obj | Emit::Lib | Emit::So | Emit::Header => {
            let compiled = session.compile(&options, &mut progress)?;
            drop(progress);
            report(args, &compiled);
            let artifact = compiled.artifact().map_err(one)?;
            if emit.is_binary() {
                check_places()?;
                return write_binary(artifact, emit, &output).map_err(one);
            }
            artifact.header
        }
        Emit::Graph => session.frontend(&options, &mut progress)?.graph.to_string(),
        Emit::Host => session.compile(&options, &mut progress)?.host().map_err(one)?.to_string(),
        Emit::Loops | Emit::Vector | Emit::Clif | Emit::Asm => {
            let frontend = session.frontend(&options, &mut progress)?;
            kernels_text(&frontend, &options, emit).map_err(one)?
        }
    };
    check_places()?;
    write_text(&output, &text).map_err(one)
}

fn report(args: &CompileArgs, compiled: &Compiled) {
    tell(&compiled.warnings, &compiled.notes);
    if args.verbose {
        eprintln!("{}", compiled.program.stats());
    }
}

/// What the extensions of outputs say. Text of the compiler's own forms may go anywhere else.
const EXTENSIONS: &[(&str, Emit)] = &[
    ("o", Emit::Obj),
    ("obj", Emit::Obj),
    ("a", Emit::Lib),
    ("so", Emit::So),
    ("dylib", Emit::So),
    ("h", Emit::Header),
];

/// What to write: the kind that is asked for, or the one that the output's extension says. Both must agree.
fn what_to_emit(asked: Option<Emit>, output: Option<&Path>) -> Result<Emit> {
    let Some(output) = output.filter(|&output| output != Path::new("-")) else {
        return Ok(asked.unwrap_or(Emit::Obj));
    };
    let extension = output.extension().unwrap_or_default();
    let said = EXTENSIONS.iter().find(|(known, _)| extension.eq_ignore_ascii_case(known)).map(|row| row.1);
    let shown = output.display();
    match (asked, said) {
        (Some(asked), Some(said)) if asked != said => {
            let (asked, said) = (asked.flag(), said.flag());
            Err(usage(format!(
                "{shown}: the extension says --emit={said}, the flag --emit={asked}; give one of the two, or the same twice"
            )))
        }
        (Some(kind), _) | (None, Some(kind)) => Ok(kind),
        (None, None) => {
            let known: Vec<String> = EXTENSIONS
                .iter()
                .map(|(extension, emit)| format!(".{extension} ({})", emit.flag()))
                .collect();
            Err(usage(format!(
                "{shown}: the extension does not say what to write; it may be {}, or --emit says it",
                known.join(", ")
            )))
        }
    }
}

impl Emit {
    /// Its name on the command line.
    fn flag(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// Whether it is machine code, which comes with a header beside it.
    fn is_binary(self) -> bool {
        matches!(self, Emit::Obj | Emit::Lib | Emit::So)
    }
}

/// The output given, or the model's name with the extension of what is emitted, in the current folder; for text
/// standard output.
fn output_path(args: &CompileArgs, emit: Emit, session: &Session) -> PathBuf {
    if let Some(output) = &args.output {
        return output.clone();
    }
    match EXTENSIONS.iter().find(|row| row.1 == emit) {
        Some((extension, _)) => PathBuf::from(format!("{}.{extension}", session.stem())),
        None => PathBuf::from("-"),
    }
}

/// The files that are written, in the order in which they take their places: what build systems look at last.
fn places(emit: Emit, output: &Path) -> Vec<PathBuf> {
    match emit.is_binary() {
        true => vec![output.with_extension("h"), output.to_path_buf()],
        false if output == Path::new("-") => vec![],
        false => vec![output.to_path_buf()],
    }
}

fn write_text(output: &Path, text: &str) -> Result<()> {
    if output != Path::new("-") {
        return output::write_bytes(output, text.as_bytes());
    }
    say!("{}", text.trim_end());
    Ok(())
}

/// Writes the object or library, and the header beside it.
fn write_binary(artifact: Artifact, emit: Emit, output: &Path) -> Result<()> {
    let header = output.with_extension("h");
    let mut outputs = Outputs::beside(output)?;
    let text = artifact.header.clone();
    outputs.write(&header, &mut |file| {
        file.write_all(text.as_bytes()).map_err(|error| io_error(&header, &error))
    })?;
    if emit == Emit::Obj {
        let mut artifact = Some(artifact);
        outputs.write(output, &mut |file| match artifact.take() {
            Some(artifact) => write_object(artifact, file, output),
            None => Ok(()),
        })?;
    } else {
        let library = Library::build(artifact, emit, output)?;
        outputs.write(output, &mut |file| library.copy_to(file, output))?;
    }
    outputs.commit()
}

/// Writes an object into `file`, which belongs at `place`.
fn write_object(artifact: Artifact, file: &mut File, place: &Path) -> Result<()> {
    artifact.write_object(file).map_err(|error| match error.kind {
        Kind::Io => Error { message: format!("{}: {}", place.display(), error.message), ..error },
        _ => error,
    })
}

/// A library in a folder of its own.
struct Library {
    file: PathBuf,
    _folder: TempDir,
}

impl Library {
    /// `output` names the object in a static library.
    fn build(artifact: Artifact, emit: Emit, output: &Path) -> Result<Library> {
        let folder = tempfile::tempdir().map_err(|error| io_error(&std::env::temp_dir(), &error))?;
        let object =
            folder.path().join(output.with_extension("o").file_name().unwrap_or(OsStr::new("model.o")));
        let mut out = File::create(&object).map_err(|error| io_error(&object, &error))?;
        write_object(artifact, &mut out, &object)?;
        drop(out);
        let file = folder.path().join("library");
        match emit {
            Emit::So => native::link_library(&object, &file)?,
            _ => archive(&object, &file)?,
        }
        Ok(Library { file, _folder: folder })
    }

    fn copy_to(&self, out: &mut File, output: &Path) -> Result<()> {
        let mut source = File::open(&self.file).map_err(|error| io_error(&self.file, &error))?;
        std::io::copy(&mut source, out).map_err(|error| io_error(output, &error))?;
        Ok(())
    }
}

/// A static library of one object, through `$AR` or `ar`.
fn archive(object: &Path, library: &Path) -> Result<()> {
    let program = std::env::var_os("AR").filter(|name| !name.is_empty()).unwrap_or("ar".into());
    let output = Command::new(&program).arg("rcs").arg(library).arg(object).output().map_err(|error| {
        let program = program.to_string_lossy();
        native::io(format!("cannot run the archiver `{program}`, which makes static libraries: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(native::io(format!("{}: {} {}", program.to_string_lossy(), output.status, text.trim_end())))
}

/// Loop IR, vector IR, Cranelift IR or assembly of every kernel, bodies included.
fn kernels_text(frontend: &Frontend, options: &Options, emit: Emit) -> Result<String> {
    let levels = Levels::new(&options.target)?;
    let mut text = String::new();
    let mut open: Vec<(&Graph, &Program)> = vec![(&frontend.graph, &frontend.program)];
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
