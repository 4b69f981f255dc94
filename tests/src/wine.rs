//! Windows programs on this machine: the C compiler that makes them, and wine, which runs them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::onnx_env::target_dir;

/// The C compiler, and what Debian has it in.
pub const COMPILER: &str = "x86_64-w64-mingw32-gcc";
const PACKAGES: &str = "gcc-mingw-w64-x86-64, wine64";

/// Where wine is; Debian puts that of 64 bits in a folder of its own.
const PROGRAMS: [&str; 3] = ["wine64", "wine", "/usr/lib/wine/wine64"];

pub struct Wine {
    program: &'static str,
    /// Folder of the made-up system that programs run in.
    prefix: PathBuf,
}

/// Wine with its system, which is made once beneath the target folder, where both it and the compiler are there. Where they are
/// not, tests are left out.
pub fn wine() -> Option<Wine> {
    let runs =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
    let program = PROGRAMS.into_iter().find(|program| runs(program)).filter(|_| runs(COMPILER));
    if program.is_none() {
        println!("skipped: {COMPILER} and wine (Debian: {PACKAGES}) are not installed");
    }
    let wine = Wine { program: program?, prefix: target_dir().join("wine") };
    wine.prepare().unwrap_or_else(|error| panic!("wine: {error}"));
    Some(wine)
}

impl Wine {
    fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.prefix)?;
        let lock = File::create(self.prefix.with_extension("wine-lock"))?;
        lock.lock()?;
        let stamp = self.prefix.join("made");
        if stamp.exists() {
            return Ok(());
        }
        let made = self.command(Path::new("wineboot")).arg("--init").output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        fs::write(stamp, "")
    }

    /// A program for Windows as a command of this machine.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(self.program);
        command.env("WINEPREFIX", &self.prefix).env("WINEDEBUG", "-all").arg(program);
        command
    }
}
