//! C source of models, through C compilers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use onnxc::{Compiled, native};
use onnxc_ir::borders;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_machine::target::Target;
use serde_json::json;
use target_lexicon::{Architecture, Triple};

use crate::compile::{Code, Failure};
use crate::expected::Outcome;
use crate::harness::{self, Outcomes};
use crate::machine::{Machine, Rust};
use crate::suite::{Batch, Case, Checks};

const I686: Machine = Machine {
    name: "i686",
    triple: "i686-unknown-linux-gnu",
    cpu: None,
    compiler: &["gcc", "-m32", "-static", "-msse2", "-mfpmath=sse"],
    rust: Rust { libraries: &[], lacking: &[] },
    // The processor is this one.
    emulator: &["env"],
    emulator_version: 0,
    packages: "gcc-12-multilib, or gcc-i686-linux-gnu beside cross compilers",
};

/// The compilers of 32 bits: cross compilers of other machines may exclude the first.
const I686_COMPILERS: &[Machine] =
    &[I686, Machine { compiler: &["i686-linux-gnu-gcc", "-static", "-msse2", "-mfpmath=sse"], ..I686 }];

const WASM32: &Machine = &Machine {
    name: "wasm32",
    triple: "wasm32-wasip1",
    cpu: None,
    compiler: &["clang", "--target=wasm32-wasi", "-msimd128", "-Wl,-z,stack-size=1048576"],
    rust: Rust { libraries: &[], lacking: &[] },
    emulator: &["node", "--no-warnings", concat!(env!("CARGO_MANIFEST_DIR"), "/web/wasi.mjs")],
    emulator_version: 0,
    packages: "clang lld wasi-libc libclang-rt-dev-wasm32 nodejs",
};

/// Machines that C is all for, with sizes and pointers of 32 bits. What is undefined ends a program there, without a library of sanitizers.
pub fn machines() -> [&'static Machine; 2] {
    static FOUND: OnceLock<&Machine> = OnceLock::new();
    let compiles = || I686_COMPILERS.iter().find(|machine| makes_programs(machine));
    [FOUND.get_or_init(|| compiles().unwrap_or(&I686_COMPILERS[0])), WASM32]
}

/// Whether a machine's compiler makes programs: compilers are there without the machine's libraries.
pub fn makes_programs(machine: &Machine) -> bool {
    let compiles = || -> std::io::Result<bool> {
        let probe = tempfile::tempdir()?;
        let (source, program) = (probe.path().join("probe.c"), probe.path().join("probe"));
        fs::write(&source, "#include <stdint.h>\nint main(void) { return (int)sizeof(void *) - 4; }\n")?;
        let mut compiler = Command::new(machine.compiler[0]);
        compiler.args(&machine.compiler[1..]).arg(&source).arg("-o").arg(&program);
        Ok(compiler.output()?.status.success() && machine.command(&program).output()?.status.success())
    };
    compiles().unwrap_or(false)
}

/// The target whose C is for this machine's architecture, as compilers take it without flags. Wider vectors than these have would be
/// taken apart, which takes them long.
pub fn plain_target() -> Target {
    let triple = Triple::host();
    let cpu = (triple.architecture == Architecture::X86_64).then_some("x86-64");
    Target::new(triple, cpu).expect("this machine is a target").for_source()
}

/// What only pointers of 64 bits serve is refused in these words.
const WIDE_ONLY: &str = "needs pointers of 64 bits";

/// Why a case has no place on a machine that it cannot be compiled for, if that is so.
pub fn left_out(failure: &Failure) -> Option<Outcome> {
    let wide = failure.to_string().contains(WIDE_ONLY);
    wide.then(|| Outcome::LeftOut("strings and images need pointers of 64 bits".into()))
}

/// A C compiler with its flags.
#[derive(Clone, Debug)]
pub struct Compiler {
    pub program: String,
    pub flags: Vec<String>,
}

/// What sanitizers look for, and that they end the process when they find it. With line tables gcc takes twice as long.
pub const SANITIZED: &[&str] =
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"];

/// What is undefined is an instruction that ends the program.
pub const TRAPPING: &[&str] = &["-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"];

/// What all sources are compiled with.
const STRICT: &[&str] = &["-std=gnu99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fPIC"];

impl Compiler {
    pub fn new(program: &str, flags: &[&str]) -> Compiler {
        let flags = flags.iter().map(ToString::to_string).collect();
        Compiler { program: program.to_string(), flags }
    }

    /// What compiles for a target.
    pub fn of(target: &Target) -> Compiler {
        match machines().into_iter().find(|machine| machine.target().triple == target.triple) {
            // Flags of the linker are for those who link.
            Some(machine) => {
                let own = machine.compiler[1..].iter().filter(|flag| !flag.starts_with("-Wl,")).copied();
                Compiler::new(machine.compiler[0], &[own.collect::<Vec<_>>().as_slice(), TRAPPING].concat())
            }
            None => Compiler::of_environment(),
        }
    }

    /// That of `ONNXC_SOURCE_CC`, a command with flags; otherwise gcc with sanitizers.
    pub fn of_environment() -> Compiler {
        match std::env::var("ONNXC_SOURCE_CC") {
            Ok(command) => {
                let mut words = command.split_whitespace();
                let program = words.next().unwrap_or("cc");
                Compiler::new(program, &words.collect::<Vec<_>>())
            }
            Err(_) => Compiler::new("gcc", SANITIZED),
        }
    }

    /// Whether it is there.
    pub fn is_installed(&self) -> bool {
        Command::new(&self.program).arg("--version").output().is_ok_and(|output| output.status.success())
    }

    pub fn is_sanitized(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("-fsanitize=address"))
    }

    /// The environment that a process needs which loads what was compiled.
    pub fn environment(&self) -> Vec<String> {
        if !self.is_sanitized() {
            return vec![];
        }
        let library = |name: &str| {
            let output = Command::new(&self.program).arg(format!("-print-file-name={name}")).output();
            output
                .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
                .unwrap_or_default()
        };
        let preload = format!("LD_PRELOAD={} {}", library("libasan.so"), library("libubsan.so"));
        // Models lie in memory of Rust's allocator, which the process keeps.
        vec!["env".into(), preload, "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0".into()]
    }

    /// Compiles a source to an object.
    pub fn compile(&self, source: &Path, object: &Path) -> std::result::Result<(), String> {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime-support/include");
        let mut command = Command::new(&self.program);
        command
            .args(STRICT)
            .args(&self.flags)
            .arg("-I")
            .arg(include)
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(object);
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// Compiles cases by way of C for this machine and links them into a library in the empty folder; gives the outcomes of those that do not
/// get so far.
pub fn link_batch(cases: &[Case], code: &Code, compiler: &Compiler, folder: &Path) -> (Batch, Outcomes) {
    let (linked, outcomes) = harness::compile_batch(cases, code, folder);
    let (cases, objects): (Vec<Case>, Vec<PathBuf>) = linked.into_iter().unzip();
    let calls = objects.iter().any(|object| native::calls_runtime(&fs::read(object).unwrap_or_default()));
    let library = folder.join("batch.so");
    if !cases.is_empty() {
        let mut command = Command::new(&compiler.program);
        command.args(&compiler.flags).args(["-shared", "-fPIC"]).args(&objects);
        if calls {
            let path = folder.join("runtime.c");
            fs::write(&path, native::runtime_calls()).expect("the folder is writable");
            command.arg(path);
        }
        let output = command.arg("-o").arg(&library).output().expect("the compiler runs");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Sanitizers watch the heap, and take stack for themselves.
    let checks = if compiler.is_sanitized() { Checks::None } else { Checks::Abi };
    (Batch { library, cases, checks }, outcomes)
}

/// Writes the source and the header of a model into a folder; gives the path of the source.
pub fn write(compiled: &Compiled, folder: &Path) -> Result<PathBuf> {
    let outline = compiled.outline()?;
    let io = |error: std::io::Error| Error::internal(Stage::Emit, error.to_string());
    fs::write(folder.join(format!("{}.h", outline.name)), &outline.header).map_err(io)?;
    let path = folder.join(format!("{}.c", outline.name));
    compiled.write_source(&outline, &mut File::create(&path).map_err(io)?)?;
    Ok(path)
}

/// A model as a module of WebAssembly, which Node runs.
pub struct Module<'f> {
    folder: &'f Path,
    inputs: Vec<String>,
    outputs: Vec<(String, DType)>,
}

impl Module<'_> {
    /// Makes a module in an empty folder by the command `onnxc`; the error is its message.
    pub fn new<'f>(
        onnxc: &str,
        model: &Path,
        compiled: &Compiled,
        folder: &'f Path,
    ) -> std::result::Result<Module<'f>, String> {
        let mut command = Command::new(onnxc);
        command.arg(model).args(["--nchwc-block", "16", "-q", "-o", "model.wasm"]).current_dir(folder);
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let graph = &compiled.graph;
        let outputs = graph.outputs.iter().enumerate();
        Ok(Module {
            folder,
            inputs: graph.inputs.iter().map(|input| input.name.clone()).collect(),
            outputs: outputs.map(|(at, (name, _))| (name.clone(), graph.output_ty(at).dtype)).collect(),
        })
    }

    /// Runs it in a process of its own.
    pub fn run(&self, inputs: &[Option<Tensor>]) -> std::result::Result<Vec<Tensor>, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut given = serde_json::Map::new();
        for (at, (name, input)) in self.inputs.iter().zip(inputs).enumerate() {
            let Some(input) = input else { continue };
            let file = format!("input{at}.bin");
            fs::write(self.folder.join(&file), &borders::stored(input).data).map_err(text)?;
            given.insert(name.clone(), json!({ "dims": input.shape, "file": file }));
        }
        fs::write(self.folder.join("given.json"), json!(given).to_string()).map_err(text)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("web/official.mjs");
        let output =
            Command::new("node").arg(script).current_dir(self.folder.canonicalize().map_err(text)?).output();
        let output = output.map_err(text)?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let dims: BTreeMap<String, Vec<usize>> =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let outputs = self.outputs.iter().enumerate().map(|(at, (name, dtype))| {
            let data = fs::read(self.folder.join(format!("output{at}.bin"))).map_err(text)?;
            let shape = dims.get(name).ok_or_else(|| format!("there is no output `{name}`"))?;
            Ok(borders::unstored(*dtype, shape.clone(), &data.into()))
        });
        outputs.collect()
    }
}

/// An object of a model by way of its source.
pub fn object(compiled: &Compiled, compiler: &Compiler, object: &Path) -> Result<()> {
    let folder = object.parent().unwrap_or(Path::new("."));
    let source = write(compiled, folder)?;
    compiler.compile(&source, object).map_err(|text| Error::internal(Stage::Emit, text))
}
