//! Machines that this one is not: what code for them is made for, the C compiler that links it, and the emulator that runs it.
//! A new one is an entry of [`MACHINES`].

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use onnxc_machine::target::Target;

use crate::onnx_env::target_dir;

/// A machine with an emulator.
#[derive(Debug)]
pub struct Machine {
    pub name: &'static str,
    /// What is compiled for: a triple, and a processor if not any of the architecture.
    pub triple: &'static str,
    pub cpu: Option<&'static str>,
    /// The C compiler that makes programs for it, with its options.
    pub compiler: &'static [&'static str],
    pub rust: Rust,
    /// The command that stands before such a program.
    pub emulator: &'static [&'static str],
    /// The first version of it that runs what the machine has; 0 for any.
    pub emulator_version: u32,
    /// Debian's packages that have both.
    pub packages: &'static str,
}

/// What Rust's standard library, and so the runtime library, calls on a system.
#[derive(Debug)]
pub struct Rust {
    /// As options of the C compiler.
    pub libraries: &'static [&'static str],
    /// Shared libraries that the emulator lacks; their sources are in `c/`.
    pub lacking: &'static [&'static str],
}

/// Programs are static: the emulator needs no libraries of the machine.
const AARCH64_GCC: &[&str] = &["aarch64-linux-gnu-gcc", "-static"];
const AARCH64_PACKAGES: &str = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";
const S390X_GCC: &[&str] = &["s390x-linux-gnu-gcc", "-static"];
const S390X_PACKAGES: &str = "gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user-static";

const RISCV64_GCC: &[&str] = &["riscv64-linux-gnu-gcc", "-static"];
const RISCV64_PACKAGES: &str = "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user-static";

const RUST_ON_LINUX: Rust = Rust { libraries: &["-lgcc_eh", "-lm", "-lc"], lacking: &[] };
const RUST_ON_WINDOWS: Rust = Rust {
    libraries: &["-lkernel32", "-lntdll", "-luserenv", "-lws2_32", "-ldbghelp"],
    lacking: &["bcryptprimitives"],
};

/// Older ones end at conversions of vectors (QEMU's issue 1441).
const QEMU_WITH_V: u32 = 8;

pub const MACHINES: &[Machine] = &[
    Machine {
        name: "aarch64",
        triple: "aarch64-unknown-linux-gnu",
        cpu: None,
        compiler: AARCH64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-aarch64-static", "-cpu", "cortex-a53"],
        emulator_version: 0,
        packages: AARCH64_PACKAGES,
    },
    // The same objects where they find products of bytes.
    Machine {
        name: "aarch64-dot",
        triple: "aarch64-unknown-linux-gnu",
        cpu: None,
        compiler: AARCH64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-aarch64-static", "-cpu", "cortex-a76"],
        emulator_version: 0,
        packages: AARCH64_PACKAGES,
    },
    // And conversions to bf16.
    Machine {
        name: "aarch64-bf16",
        triple: "aarch64-unknown-linux-gnu",
        cpu: None,
        compiler: AARCH64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-aarch64-static", "-cpu", "max"],
        emulator_version: 0,
        packages: AARCH64_PACKAGES,
    },
    Machine {
        name: "s390x",
        triple: "s390x-unknown-linux-gnu",
        cpu: None,
        compiler: S390X_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-s390x-static", "-cpu", "qemu"],
        emulator_version: 0,
        packages: S390X_PACKAGES,
    },
    // With vector-enhancements facility 2.
    Machine {
        name: "s390x-z15",
        triple: "s390x-unknown-linux-gnu",
        cpu: Some("z15"),
        compiler: S390X_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-s390x-static", "-cpu", "max"],
        emulator_version: 0,
        packages: S390X_PACKAGES,
    },
    // The processor is this one.
    Machine {
        name: "windows",
        triple: "x86_64-pc-windows-gnu",
        cpu: None,
        compiler: &["x86_64-w64-mingw32-gcc", "-static"],
        rust: RUST_ON_WINDOWS,
        emulator: &[WINE],
        emulator_version: 0,
        packages: "gcc-mingw-w64-x86-64 wine64",
    },
    // No vectors.
    Machine {
        name: "riscv64",
        triple: "riscv64gc-unknown-linux-gnu",
        cpu: None,
        compiler: RISCV64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-riscv64-static", "-cpu", "sifive-u54"],
        emulator_version: 0,
        packages: RISCV64_PACKAGES,
    },
    Machine {
        name: "riscv64-v",
        triple: "riscv64gc-unknown-linux-gnu",
        cpu: Some("rv64gcv"),
        compiler: RISCV64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-riscv64-static", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"],
        emulator_version: QEMU_WITH_V,
        packages: RISCV64_PACKAGES,
    },
    // Registers of twice the length, and bit manipulation.
    Machine {
        name: "riscv64-v256",
        triple: "riscv64gc-unknown-linux-gnu",
        cpu: Some("spacemit-x60"),
        compiler: RISCV64_GCC,
        rust: RUST_ON_LINUX,
        emulator: &["qemu-riscv64-static", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0"],
        emulator_version: QEMU_WITH_V,
        packages: RISCV64_PACKAGES,
    },
];

/// Where Debian has wine of 64 bits.
const WINE: &str = "/usr/lib/wine/wine64";
const WINE_SERVER: &str = "/usr/lib/wine/wineserver";
/// Errors, but not what wine lacks.
const WINE_MESSAGES: &str = "err+all,fixme-all";

/// The folder of wine's system, which runs. Programs that start at once each start a server where there is none, and one of these
/// servers, with its program, may fail at creating the folder of their sockets; so one process of tests after the other starts
/// the system, before any program. It ends 5 minutes after the last program, and keeps what it writes to, so that a pipe of the
/// tests' output would stay open: its messages go to a file.
fn wine_system() -> &'static Path {
    static SYSTEM: OnceLock<PathBuf> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let [system, lock, messages] = ["wine", "wine.lock", "wine.log"].map(|name| target_dir().join(name));
        fs::create_dir_all(&system).unwrap();
        let lock = File::create(lock).unwrap();
        lock.lock().unwrap();
        fs::write(&messages, "").unwrap();
        // A server that ends with 2 found one that runs.
        for (program, arguments, there) in [(WINE_SERVER, "-p300", Some(2)), (WINE, "wineboot --init", None)]
        {
            let mut command = Command::new(program);
            command.args(arguments.split(' ')).env("WINEPREFIX", &system).env("WINEDEBUG", WINE_MESSAGES);
            let messages_file = File::options().append(true).open(&messages).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages_file);
            let status = command.status().unwrap();
            let text = || fs::read_to_string(&messages).unwrap();
            assert!(status.success() || status.code() == there, "{command:?}: {status} {}", text());
        }
        system
    })
}

impl Machine {
    /// The machine of a name; the error lists all.
    pub fn named(name: &str) -> Result<&'static Machine, String> {
        MACHINES.iter().find(|machine| machine.name == name).ok_or_else(|| {
            let names: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
            format!("there is no machine `{name}`, but {}", names.join(", "))
        })
    }

    pub fn target(&self) -> Target {
        Target::parse(self.triple, self.cpu).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// A program for the machine as a command of this one. Wine has its system beneath the target folder.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(self.emulator[0]);
        if self.emulator[0] == WINE {
            command.env("WINEPREFIX", wine_system()).env("WINEDEBUG", WINE_MESSAGES);
        }
        command.args(&self.emulator[1..]).arg(program);
        command
    }

    /// Whether compiler and emulator are there. Where they are not, tests are left out, and `ONNXC_REQUIRE_QEMU=1` makes
    /// that a failure for machines of QEMU; but not of an emulator that is too old.
    pub fn is_there(&self) -> bool {
        let Machine { name, packages, emulator_version, .. } = self;
        let versions = [self.compiler[0], self.emulator[0]].map(version);
        let [Some(_), Some(version)] = versions else {
            let required = std::env::var_os("ONNXC_REQUIRE_QEMU").is_some_and(|value| value == "1")
                && self.emulator[0].starts_with("qemu");
            assert!(!required, "the machine {name} is required here (Debian: {packages}), and not installed");
            println!("skipped: the machine {name} (Debian: {packages}) is not installed");
            return false;
        };
        if version < *emulator_version {
            println!(
                "skipped: the machine {name} takes {} {emulator_version}, not {version}",
                self.emulator[0]
            );
        }
        version >= *emulator_version
    }
}

/// The first number of what a program calls its version; `None` where there is no such program.
fn version(program: &str) -> Option<u32> {
    let run = Command::new(program).arg("--version").output().ok().filter(|run| run.status.success())?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let numbers = text.split_whitespace().filter_map(|word| word.split('.').next()?.parse().ok());
    Some(numbers.into_iter().next().unwrap_or(0))
}
