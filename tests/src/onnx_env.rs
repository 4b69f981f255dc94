//! Python packages as oracles and as peers: virtual environments with pinned versions, made once beneath the
//! build's target folder, and scripts of `tests/python` run in them.

use std::fs::{self, File};
use std::io::{self, Error};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment.
pub struct Environment {
    /// Its folder beneath the target folder.
    name: &'static str,
    /// Pinned versions, as of pip's requirements files.
    requirements: &'static str,
}

/// The ONNX package: schemas, reference evaluator, conformance tests.
pub const ONNX: Environment =
    Environment { name: "onnx-env", requirements: include_str!("../python/requirements.txt") };

/// The ONNX package before, whose release holds node tests that later ones dropped.
pub const ONNX_1_22: Environment =
    Environment { name: "onnx-1.22-env", requirements: include_str!("../python/requirements-1.22.txt") };

/// The ONNX package, and what builds the wheel of ours.
pub const WHEEL: Environment =
    Environment { name: "wheel-env", requirements: include_str!("../python/requirements-wheel.txt") };

/// The peers that the benchmark measures, and ONNX.
pub const PEERS: Environment =
    Environment { name: "bench-env", requirements: include_str!("../python/requirements-bench.txt") };

/// Runs a script of `tests/python` with `arguments` in the environment of the ONNX package; gives its standard output.
pub fn run_script(name: &str, arguments: &[&str]) -> io::Result<String> {
    ONNX.run_script(name, arguments)
}

/// Path of a script of `tests/python`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

impl Environment {
    /// Its pinned versions.
    pub fn requirements(&self) -> &'static str {
        self.requirements
    }

    /// Runs a script of `tests/python` with `arguments`; gives its standard output.
    pub fn run_script(&self, name: &str, arguments: &[&str]) -> io::Result<String> {
        run(Command::new(self.interpreter()?).arg(script(name)).args(arguments))
    }

    /// The environment's Python interpreter. The first caller of all processes installs the packages, others
    /// wait for it; the environment is made anew when the pinned versions change.
    pub fn interpreter(&self) -> io::Result<PathBuf> {
        let target = target_dir();
        fs::create_dir_all(&target)?;
        let lock = File::create(target.join(format!("{}.lock", self.name)))?;
        lock.lock()?;
        let root = target.join(self.name);
        let python = root.join("bin").join("python");
        // Written last: an installation that was cut short has none.
        let installed = root.join("installed.txt");
        if fs::read_to_string(&installed).is_ok_and(|versions| versions == self.requirements) {
            return Ok(python);
        }
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&root))?;
        let wanted = root.join("requirements.txt");
        fs::write(&wanted, self.requirements)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
        run(Command::new(&python).args(pip).arg(&wanted))?;
        fs::write(&installed, self.requirements)?;
        Ok(python)
    }
}

/// Cargo's target folder.
pub fn target_dir() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Cargo takes a relative one from where it was started, which for tests is not the current folder.
        Some(folder) => workspace.join(folder),
        None => workspace.join("target"),
    }
}

/// Standard output of a command that must succeed.
pub fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output().map_err(|error| Error::other(format!("{command:?}: {error}")))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(Error::other(format!("{command:?}: {}\n{message}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(Error::other)
}
