//! Modules of WebAssembly, from the C of a model by a clang with its linker. No C library is needed: what models call of one comes with
//! them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::cli::linker::Tools;
use crate::cli::session::temporary_error;
use crate::files::io_error;
use crate::{Compiled, Options};
use onnxc_ir::error::Result;
use onnxc_machine::target::Goal;
use onnxc_object::emit::outline::Outline;
use onnxc_source::web;

/// What modules are made for where no target is named.
pub(super) const TARGET: &str = "wasm32-unknown-unknown";

/// A module in a folder of its own.
pub(super) struct Module {
    file: PathBuf,
    _folder: TempDir,
}

impl Module {
    /// A module that will be `output`, with its constants.
    pub(super) fn build(
        made: &Compiled,
        outline: &Outline<'_>,
        options: &Options,
        tools: &Tools,
        output: &Path,
    ) -> Result<Module> {
        let temporary = |error: std::io::Error| temporary_error(&error);
        let folder = tempfile::tempdir().map_err(temporary)?;
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| fs::write(at(name), text).map_err(temporary);
        let source = format!("{}.c", outline.name);
        made.write_source_without_constants(outline, &mut File::create(at(&source)).map_err(temporary)?)?;
        write(&format!("{}.h", outline.name), &outline.header)?;
        write("onnxc.h", onnxc_runtime_support::HEADER)?;
        write("string.h", web::STRING_H)?;
        write("module_exports.c", &web::exports(outline))?;
        let mut sources = vec![at(&source), at("module_exports.c")];
        let constants = at("constants.bin");
        if let Some(text) = web::assembly(outline, &constants.to_string_lossy()) {
            write("constants.s", &text)?;
            web::constants(outline, &mut BufWriter::new(File::create(&constants).map_err(temporary)?))?;
            sources.push(at("constants.s"));
        }
        let file = at("module");
        let mut arguments: Vec<OsString> = flags(options).into_iter().map(OsString::from).collect();
        for (flag, path) in [("-I", folder.path()), ("-o", &file)] {
            arguments.extend([OsString::from(flag), path.into()]);
        }
        arguments.extend(sources.into_iter().map(PathBuf::into_os_string));
        tools.clang().run(&arguments, &[(&file, output)])?;
        Ok(Module { file, _folder: folder })
    }

    pub(super) fn copy_to(&self, out: &mut File, output: &Path) -> Result<()> {
        let copied = File::open(&self.file).and_then(|mut source| std::io::copy(&mut source, out));
        copied.map(drop).map_err(|error| io_error(output, &error))
    }
}

/// What clang is called with: features that came before vectors did, or none.
fn flags(options: &Options) -> Vec<&'static str> {
    let mut flags = vec![
        "--target=wasm32-unknown-unknown",
        "-std=gnu99",
        "-ffreestanding",
        "-nostdlib",
        "-fno-math-errno",
        "-ffp-contract=off",
        match (options.goal, options.opt_level) {
            (Goal::Size, _) => "-Oz",
            (_, 0) => "-O1",
            _ => "-O3",
        },
    ];
    flags.push("-mcpu=mvp");
    if options.target.core.is_leaf() {
        flags.extend(["-msimd128", "-mbulk-memory", "-mnontrapping-fptoint", "-msign-ext"]);
    }
    // A stack that overflows reaches the end of memory and not the constants.
    flags.extend(["-Wl,--no-entry", "-Wl,--stack-first", "-Wl,-z,stack-size=131072", "-Wl,--strip-all"]);
    flags
}
