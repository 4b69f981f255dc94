//! Objects in tests: kernels from C source, linking with a C driver, running it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::onnx_env::target_dir;
use onnxc_backend::codegen::kernels::{Failure, KernelCode, KernelVersion, MachineCode};
use onnxc_ir::graph::Dim;
use onnxc_loops::work::Threads;
use onnxc_machine::target::Target;
use onnxc_object::emit::Artifact;

/// The machine that the tests run on.
pub fn host() -> Target {
    Target::host().unwrap()
}

/// Directory of `onnxc.h`.
pub fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/include")
}

/// A test's C source under `tests/c`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Runs a command that must succeed.
pub fn must(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A kernel compiled by the C compiler from the body of
/// `int32_t kernel(void *const *b, const int64_t *dims, int64_t lo, int64_t hi)`. The body may use integer
/// arithmetic, loops and memory only, so that the code refers to nothing outside itself.
pub fn c_kernel(dir: &Path, name: &str, range: Option<(Dim, Dim)>, body: &str) -> KernelCode {
    let (c, object, binary) = (dir.join("k.c"), dir.join("k.o"), dir.join("k.bin"));
    let text = format!(
        "#include <stdint.h>\nint32_t kernel(void *const *b, const int64_t *dims, int64_t lo, int64_t hi) {{\n\
         (void)b; (void)dims; (void)lo; (void)hi;\n{body}\nreturn 0; }}\n"
    );
    std::fs::write(&c, text).unwrap();
    let flags = [
        "-O1",
        "-fPIC",
        "-fno-builtin",
        "-fno-stack-protector",
        "-fno-tree-vectorize",
        "-fno-tree-loop-distribute-patterns",
        "-fno-asynchronous-unwind-tables",
    ];
    must(Command::new("cc").args(flags).arg("-c").arg(&c).arg("-o").arg(&object));
    must(Command::new("objcopy").args(["-O", "binary", "-j", ".text"]).arg(&object).arg(&binary));
    let bytes = std::fs::read(&binary).unwrap();
    assert!(!bytes.is_empty(), "{name}: no code");
    let code = MachineCode { bytes, alignment: 16, stack: 256, unwind: vec![] };
    KernelCode {
        name: name.to_string(),
        versions: vec![KernelVersion {
            level: 0,
            code,
            range,
            threads: Threads::Always,
            first_symbol: 0,
            refusal: None,
        }],
        failure: Failure::Unexplained,
    }
}

/// Writes `<name>.o` and `<name>.h`; gives the object's path.
pub fn write(artifact: Artifact, dir: &Path) -> PathBuf {
    let path = dir.join(format!("{}.o", artifact.name));
    std::fs::write(dir.join(format!("{}.h", artifact.name)), &artifact.header).unwrap();
    let mut bytes = vec![];
    artifact.write_object(&mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Compiles `source` with the strictest warnings, links it with `objects` and runs it.
pub fn run_c(dir: &Path, source: &Path, objects: &[PathBuf], flags: &[&str]) -> String {
    let program = dir.join(source.file_stem().unwrap());
    must(
        Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread"])
            .arg("-I")
            .arg(include_dir())
            .arg("-I")
            .arg(dir)
            .arg(source)
            .args(objects)
            .args(flags)
            .arg("-o")
            .arg(&program),
    );
    let output = must(&mut Command::new(&program));
    String::from_utf8(output.stdout).unwrap()
}

/// The library that models of strings are linked with.
pub fn runtime() -> PathBuf {
    built("onnxc-runtime-support", "libonnxc_runtime_support.a")
}

/// That library as a crate.
pub fn runtime_crate() -> PathBuf {
    built("onnxc-runtime-support", "libonnxc_runtime_support.rlib")
}

/// The library that models with images are linked with.
pub fn images_runtime() -> PathBuf {
    built("onnxc-runtime-images", "libonnxc_runtime_images.a")
}

/// The Cargo that runs the tests, in the repository.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    cargo
}

/// A library of a package, in a folder of its own: shared libraries have no hash of features in their names, and where one that is built
/// alone took the place of that of the workspace, Cargo built all crates above it again.
fn built(package: &str, file: &str) -> PathBuf {
    let mut build = cargo();
    build.args(["build", "--package", package, "--message-format", "json", "--target-dir"]);
    build.arg(target_dir().join("runtime"));
    let messages = String::from_utf8(must(&mut build).stdout).unwrap();
    let library = messages.split('"').find(|text| text.ends_with(file));
    library.expect("a library").into()
}
