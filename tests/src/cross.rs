//! The runtime library for a [`Machine`] that this one is not, built by a Rust that has the machine's standard library, or
//! its sources.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::expected::Outcome;
use crate::machine::Machine;
use crate::object::cargo;
use crate::onnx_env::target_dir;

/// Compilers that are asked, in this order: the one in use, and Debian's, whose sources are a package.
const COMPILERS: [&str; 2] = ["rustc", "/usr/bin/rustc"];

/// The library of strings and images for a machine, built once per process; or what becomes of tests that need it.
pub fn runtime(machine: &Machine) -> Result<PathBuf, Outcome> {
    static BUILT: Mutex<BTreeMap<&str, Result<PathBuf, Outcome>>> = Mutex::new(BTreeMap::new());
    // Whoever comes meanwhile waits for the one build.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(machine.triple).or_insert_with(|| build(machine.triple)).clone()
}

/// A compiler of Rust for a triple.
struct Compiler {
    path: &'static str,
    /// Its standard library for the triple is made of its sources first.
    of_sources: bool,
}

fn compiler(triple: &str) -> Option<Compiler> {
    let has_library = |path: &&str| {
        answer(path, &["--print", "target-libdir", "--target", triple]).is_some_and(|folder| folder.is_dir())
    };
    let has_sources = |path: &&str| {
        let library = "lib/rustlib/src/rust/library/std/Cargo.toml";
        answer(path, &["--print", "sysroot"]).is_some_and(|root| root.join(library).exists())
    };
    let with = |has: &dyn Fn(&&str) -> bool, of_sources| {
        COMPILERS.into_iter().find(|path| has(path)).map(|path| Compiler { path, of_sources })
    };
    with(&has_library, false).or_else(|| with(&has_sources, true))
}

/// The path that a compiler prints.
fn answer(compiler: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output =
        Command::new(compiler).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn build(triple: &str) -> Result<PathBuf, Outcome> {
    let compiler = compiler(triple).ok_or_else(|| {
        let why = "it calls the runtime library, and no Rust here has the machine's standard library or its sources \
                   (Debian: rustc-web rust-web-src)";
        Outcome::LeftOut(why.into())
    })?;
    let folder = target_dir().join("cross");
    let mut command = cargo();
    command.args(["rustc", "--quiet", "--release", "--package", "onnxc-runtime-images"]);
    command.args(["--crate-type", "staticlib"]);
    command.args(["--target", triple, "--target-dir"]).arg(&folder).env("RUSTC", compiler.path);
    // What models never call is left out: of users and hosts, whose functions a linker warns of in a static program.
    command.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    if compiler.of_sources {
        command.args(["-Z", "build-std=std,panic_unwind"]).env("RUSTC_BOOTSTRAP", "1");
    }
    let output = command.output().map_err(|error| Outcome::Failed(format!("cargo: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Outcome::Failed(format!("its runtime library does not build: {text}")));
    }
    Ok(folder.join(triple).join("release/libonnxc_runtime_images.a"))
}
