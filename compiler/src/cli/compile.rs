//! `onnxc MODEL`: objects, libraries and headers, and the compiler's intermediate forms as text.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::backend::Levels;
use crate::cli::args::{CompileArgs, Emit};
use crate::cli::files;
use crate::cli::session::{Problems, Progress, Session, io_error, one, usage};
use crate::codegen::emit::{Artifact, identifier};
use crate::error::Result;
use crate::graph::Graph;
use crate::schedule::{Program, Step};
use crate::{Compiled, Frontend, Options, native};

pub fn run(args: &CompileArgs) -> std::result::Result<(), Problems> {
    Progress::check_passes(&args.print_ir_after).map_err(one)?;
    let session = Session::open(&args.model).map_err(one)?;
    let output = output_path(args, &session);
    let to_stdout = output == Path::new("-");
    let binary = matches!(args.emit, Emit::Obj | Emit::Lib | Emit::So);
    if to_stdout && binary {
        return Err(one(usage("objects and libraries are not written to standard output".to_string())));
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None if to_stdout => session.stem(),
        None => output.file_stem().unwrap_or(OsStr::new("")).to_string_lossy().into_owned(),
    };
    let options = session.options(&args.code, &identifier(&name)).map_err(one)?;
    let mut progress = Progress::new(args.time_passes, args.verbose, args.print_ir_after.clone());
    let text = match args.emit {
        Emit::Obj | Emit::Lib | Emit::So | Emit::Header => {
            let compiled = session.compile(&options, &mut progress)?;
            drop(progress);
            report(args, &compiled);
            let artifact = compiled.artifact().map_err(one)?;
            if binary {
                return write_binary(artifact, args.emit, &output).map_err(one);
            }
            artifact.header
        }
        Emit::Graph => session.frontend(&options, &mut progress)?.graph.to_string(),
        Emit::Loops | Emit::Clif | Emit::Asm => {
            let frontend = session.frontend(&options, &mut progress)?;
            kernels_text(&frontend, &options, args.emit).map_err(one)?
        }
    };
    write_text(&output, &text).map_err(one)
}

fn report(args: &CompileArgs, compiled: &Compiled) {
    for note in &compiled.notes {
        eprintln!("note: {note}");
    }
    if args.verbose {
        eprintln!("{}", compiled.program.stats());
    }
}

/// The output given, or the model's name with the extension of what is emitted, in the current folder.
fn output_path(args: &CompileArgs, session: &Session) -> PathBuf {
    let extension = match args.emit {
        Emit::Obj => "o",
        Emit::Lib => "a",
        Emit::So => "so",
        Emit::Header => "h",
        Emit::Graph | Emit::Loops | Emit::Clif | Emit::Asm => {
            return args.output.clone().unwrap_or("-".into());
        }
    };
    args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.{extension}", session.stem())))
}

fn write_text(output: &Path, text: &str) -> Result<()> {
    if output != Path::new("-") {
        return files::write_bytes(output, text.as_bytes());
    }
    say!("{}", text.trim_end());
    Ok(())
}

/// Writes the object or library, then the header beside it.
fn write_binary(artifact: Artifact, emit: Emit, output: &Path) -> Result<()> {
    let header = output.with_extension("h");
    if header == output {
        return Err(usage(format!("{}: the name is that of the header", output.display())));
    }
    let text = artifact.header.clone();
    let mut artifact = Some(artifact);
    let mut write_object = |file: &mut std::fs::File| match artifact.take() {
        Some(artifact) => artifact.write_object(file),
        None => Ok(()),
    };
    if emit == Emit::Obj {
        files::write_file(output, &mut write_object)?;
    } else {
        let folder = tempfile::tempdir().map_err(|error| io_error(&std::env::temp_dir(), &error))?;
        let object =
            folder.path().join(output.with_extension("o").file_name().unwrap_or(OsStr::new("model.o")));
        files::write_file(&object, &mut write_object)?;
        let built = folder.path().join("library");
        match emit {
            Emit::So => native::link(std::slice::from_ref(&object), &built)?,
            _ => archive(&object, &built)?,
        }
        files::write_file(output, &mut |file| {
            let mut source = std::fs::File::open(&built).map_err(|error| io_error(&built, &error))?;
            std::io::copy(&mut source, file).map_err(|error| io_error(output, &error))?;
            Ok(())
        })?;
    }
    files::write_bytes(&header, text.as_bytes())
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

/// Loop IR, Cranelift IR or assembly of every kernel, bodies included.
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
