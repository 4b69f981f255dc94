//! An installed onnxc, as `make install` leaves it, out of what the tests were built with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::object::{images_runtime, must, runtime};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// Folder with `bin`, `include`, `lib` and `share`, made once per process; `compiler` is the command.
pub fn prefix(compiler: &str) -> &'static Path {
    static PREFIX: OnceLock<TempDir> = OnceLock::new();
    PREFIX.get_or_init(|| install(compiler)).path()
}

fn install(compiler: &str) -> TempDir {
    let (built, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let images = images_runtime();
    let shared = images.with_extension(std::env::consts::DLL_EXTENSION);
    let place = |file: &Path, name: &str| fs::copy(file, built.path().join(name)).unwrap();
    place(Path::new(compiler), "onnxc");
    for library in [runtime(), images, shared] {
        place(&library, &library.file_name().unwrap().to_string_lossy());
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(root()).args(["--silent", "--no-print-directory", "place"]);
    make.arg(format!("BUILT={}", built.path().display()));
    must(make.arg(format!("PREFIX={}", prefix.path().display())));
    prefix
}
