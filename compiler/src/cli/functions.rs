//! Functions of the user's own that compute operators: how options and files name them, and the libraries that have them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use libloading::Library;

use crate::cli::args::ModelArgs;
use crate::cli::session::usage;
use crate::files::io_error;
use onnxc_import::CustomOp;
use onnxc_ir::error::Result;
use onnxc_ir::graph::external::Address;

/// Shared libraries with functions, loaded for as long as models are evaluated in this process.
#[derive(Default)]
pub struct Functions {
    paths: Vec<PathBuf>,
    libraries: Vec<Library>,
}

impl Functions {
    pub fn open(paths: &[PathBuf]) -> Result<Functions> {
        let mut functions = Functions::default();
        for path in paths {
            // A path without a folder would be looked for in those of the system.
            let path = std::fs::canonicalize(path).map_err(|error| io_error(path, &error))?;
            // SAFETY: the user names the library to have its functions called, and so its initializers, too.
            let library = unsafe { Library::new(&path) }
                .map_err(|error| usage(format!("--custom-library {}: {error}", path.display())))?;
            functions.paths.push(path);
            functions.libraries.push(library);
        }
        Ok(functions)
    }

    /// The files of the libraries.
    pub fn libraries(&self) -> &[PathBuf] {
        &self.paths
    }

    fn address(&self, symbol: &str) -> Option<Address> {
        let find = |library: &Library| {
            // SAFETY: nothing is called here, and the address is of no type.
            unsafe { library.get::<*const u8>(symbol.as_bytes()) }.ok().map(|found| *found as usize)
        };
        self.libraries.iter().find_map(find).map(Address)
    }

    /// The operators that options and files name, with the addresses of their functions as far as libraries have them.
    pub fn declared(&self, args: &ModelArgs) -> Result<Vec<CustomOp>> {
        let mut all = vec![];
        for text in &args.custom_ops {
            all.push(CustomOp::from_str(text)?);
        }
        for text in &args.overrides {
            all.push(CustomOp { overrides: true, ..CustomOp::from_str(text)? });
        }
        for path in &args.custom_ops_file {
            let text = std::fs::read_to_string(path).map_err(|error| io_error(path, &error))?;
            all.extend(of_file(path, &text)?);
        }
        self.resolve(&mut all)?;
        Ok(all)
    }

    /// Finds the addresses of functions. Fails where there are libraries and none has one. Where there are libraries, no function is late.
    pub fn resolve(&self, all: &mut [CustomOp]) -> Result<()> {
        for custom in all {
            if custom.late && !self.libraries.is_empty() {
                // The libraries have what the options of a program would give.
                custom.late = false;
                let shapes = custom.late_shapes();
                custom.shapes =
                    custom.shapes.take().or(Some(shapes).filter(|symbol| self.address(symbol).is_some()));
            }
            custom.addresses.clear();
            for symbol in std::iter::once(&custom.function).chain(&custom.shapes) {
                match self.address(symbol) {
                    Some(address) => custom.addresses.push((symbol.clone(), address)),
                    None if self.libraries.is_empty() => {}
                    // The linker would say so in other words.
                    None => {
                        let libraries: Vec<String> =
                            self.paths.iter().map(|path| path.display().to_string()).collect();
                        return Err(usage(format!("no function `{symbol}` is in {}", libraries.join(", "))));
                    }
                }
            }
        }
        Ok(())
    }
}

fn of_file(path: &Path, text: &str) -> Result<Vec<CustomOp>> {
    let mut all = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (overrides, line) = match line.strip_prefix("override ") {
            Some(line) => (true, line.trim()),
            None => (false, line),
        };
        let custom = CustomOp::from_str(line).map_err(|error| {
            error.reworded(|message| format!("{} line {}: {message}", path.display(), number + 1))
        })?;
        all.push(CustomOp { overrides, ..custom });
    }
    Ok(all)
}
