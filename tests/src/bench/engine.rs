//! One engine in a process of its own: what it is asked and what it answers, both JSON files. The compiler and the
//! compiled model run in this same program, started anew; peers run in `tests/python/bench_peer.py`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use onnxc::Quiet;
use onnxc::cli::files;
use onnxc::cli::session::{Session, native_options};
use onnxc::native::{self, Call, Memory, Models};
use onnxc_ir::error;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_runtime_support::Pool;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::machine::Meter;
use super::peak::PeakTask;
use super::plan::{arguments, problems};
use super::{Result, peak, plan};
use crate::onnx_env;

/// Which engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Onnxc,
    OnnxRuntime,
    OpenVino,
}

impl Engine {
    pub const PEERS: [Engine; 2] = [Engine::OnnxRuntime, Engine::OpenVino];

    /// As in options, and as Python packages are called.
    pub fn key(self) -> &'static str {
        match self {
            Engine::Onnxc => "onnxc",
            Engine::OnnxRuntime => "onnxruntime",
            Engine::OpenVino => "openvino",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Engine::Onnxc => "onnxc",
            Engine::OnnxRuntime => "ONNX Runtime",
            Engine::OpenVino => "OpenVINO",
        }
    }
}

/// An input of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InputFile {
    pub name: String,
    /// None: the input's default.
    pub file: Option<PathBuf>,
    /// ONNX's number of the element type.
    pub dtype: i32,
}

/// A model to compile and link.
#[derive(Debug, Serialize, Deserialize)]
pub struct CompileTask {
    pub model: PathBuf,
    pub flags: Vec<String>,
    pub library: PathBuf,
    /// Inputs that output shapes are wanted for.
    pub cases: Vec<Vec<InputFile>>,
}

/// A compiled model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compiled {
    /// From the model's file to the object's.
    pub compile_ms: f64,
    /// The C compiler's time for the shared library.
    pub link_ms: f64,
    pub object_bytes: u64,
    pub code_bytes: u64,
    /// Peak of resident memory, less that of the program before it opened the model.
    pub bytes: Option<u64>,
    pub output_shapes: Vec<Vec<Option<Vec<usize>>>>,
}

/// A model to run.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunTask {
    pub engine: String,
    /// The model's file, or the library of a compiled one.
    pub model: PathBuf,
    pub inputs: Vec<InputFile>,
    /// For onnxc: shapes of the outputs; none where data decide it.
    pub output_shapes: Vec<Option<Vec<usize>>>,
    /// For peers: sizes of named dims.
    pub dims: BTreeMap<String, usize>,
    pub threads: usize,
    pub seconds: f64,
    pub least_runs: usize,
    /// Where the outputs of the last run go, as `0.npy` and so on.
    pub outputs: Option<PathBuf>,
}

/// Figures of a process that ran a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// From the engine's library being there, the inputs in memory, to the first result.
    pub first_ms: f64,
    pub min_ms: f64,
    pub median_ms: f64,
    pub runs: usize,
    /// Peak of resident memory, less that of the process before the engine and the model came.
    pub bytes: Option<u64>,
}

/// A process's words that make it an engine.
pub const COMPILE: &str = "engine-compile";
pub const RUN: &str = "engine-run";
pub const PEAK: &str = "engine-peak";

/// Does what a process was started for: one of the words above, then the request and the reply.
pub fn serve(arguments: &[String]) -> Option<Result<()>> {
    let [what, request, reply] = arguments else { return None };
    let (request, reply) = (Path::new(request), Path::new(reply));
    match what.as_str() {
        COMPILE => Some(read(request).and_then(|task| write(reply, &compile(&task)?))),
        RUN => Some(read(request).and_then(|task| write(reply, &run(&task)?))),
        PEAK => Some(read(request).and_then(|task| write(reply, &peak::measure(&task)?))),
        _ => None,
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn text(error: error::Error) -> String {
    error.to_string()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn compile(task: &CompileTask) -> Result<Compiled> {
    let meter = Meter::start();
    let start = Instant::now();
    let arguments = arguments(&task.model, &task.flags)?;
    let session = Session::open(&arguments.model).map_err(text)?;
    let options = native_options(&session, &arguments.code).map_err(text)?;
    let compiled = session.compile(&options, &mut Quiet).map_err(|errors| problems(&errors))?;
    let object = task.library.with_extension("o");
    let mut file = File::create(&object).map_err(|error| format!("{}: {error}", object.display()))?;
    let artifact = compiled.artifact().map_err(text)?;
    let code_bytes = artifact.stats.code_bytes;
    artifact.write_object(&mut file).map_err(text)?;
    let compile_time = start.elapsed();
    let bytes = meter.peak();
    let start = Instant::now();
    native::link(std::slice::from_ref(&object), &task.library).map_err(text)?;
    let link_time = start.elapsed();
    let output_shapes = task
        .cases
        .iter()
        .map(|inputs| native::output_shapes(&compiled.graph, &tensors(inputs)?).map_err(text));
    Ok(Compiled {
        compile_ms: milliseconds(compile_time),
        link_ms: milliseconds(link_time),
        object_bytes: file.metadata().map_err(|error| error.to_string())?.len(),
        code_bytes,
        bytes,
        output_shapes: output_shapes.collect::<Result<_>>()?,
    })
}

fn tensors(inputs: &[InputFile]) -> Result<Vec<Option<Tensor>>> {
    let read = |input: &InputFile| {
        let file = input.file.as_ref();
        file.map(|file| files::read_tensor(file, DType::from_onnx(input.dtype))).transpose().map_err(text)
    };
    inputs.iter().map(read).collect()
}

fn run(task: &RunTask) -> Result<Timing> {
    let inputs = tensors(&task.inputs)?;
    let meter = Meter::start();
    let start = Instant::now();
    let models = Models::load(&task.model).map_err(text)?;
    let prepared =
        models.get("model").and_then(|model| model.prepare_in(Memory::PLAIN, &inputs, &task.output_shapes));
    let mut prepared = prepared.map_err(text)?;
    let pool = match task.threads {
        1 => None,
        threads => Some(Pool::new(threads).map_err(|error| format!("{threads} threads: {error}"))?),
    };
    let call = Call { pool: pool.as_ref(), ..Call::default() };
    prepared.run(&call).map_err(text)?;
    let first_ms = milliseconds(start.elapsed());
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < task.least_runs || start.elapsed().as_secs_f64() < task.seconds {
        let start = Instant::now();
        prepared.run(&call).map_err(text)?;
        times.push(milliseconds(start.elapsed()));
    }
    let bytes = meter.peak();
    if let Some(folder) = &task.outputs {
        for (at, tensor) in prepared.outputs().map_err(text)?.iter().enumerate() {
            files::write_npy(&folder.join(format!("{at}.npy")), tensor).map_err(text)?;
        }
    }
    times.sort_by(f64::total_cmp);
    let (Some(&min_ms), Some(&median_ms)) = (times.first(), times.get(times.len() / 2)) else {
        return Err("no run was asked for".to_string());
    };
    Ok(Timing { first_ms, min_ms, median_ms, runs: times.len(), bytes })
}

/// Starts processes of engines.
pub struct Starter {
    /// Of the peers; without, there are none.
    pub python: Option<PathBuf>,
    /// Longest time of a process.
    pub timeout: Duration,
    /// For requests and replies.
    pub folder: PathBuf,
}

impl Starter {
    pub fn compile(&self, task: &CompileTask) -> Result<Compiled> {
        self.exchange(self.own(COMPILE)?, task)
    }

    pub fn peak(&self, task: &PeakTask) -> Result<f64> {
        self.exchange(self.own(PEAK)?, task)
    }

    pub fn run(&self, engine: Engine, task: &RunTask) -> Result<Timing> {
        let command = match engine {
            Engine::Onnxc => self.own(RUN)?,
            _ => {
                let mut command = self.python()?;
                command.arg(onnx_env::script("bench_peer.py"));
                command
            }
        };
        self.exchange(command, task)
    }

    /// The interpreter, to be given a script.
    pub fn python(&self) -> Result<Command> {
        self.python.as_ref().map(Command::new).ok_or_else(|| "there is no Python interpreter".to_string())
    }

    fn own(&self, what: &str) -> Result<Command> {
        let program = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
        let mut command = Command::new(program);
        command.arg(what);
        Ok(command)
    }

    fn exchange<T: DeserializeOwned>(&self, mut command: Command, task: &impl Serialize) -> Result<T> {
        let (request, reply) = (self.folder.join("request.json"), self.folder.join("reply.json"));
        write(&request, task)?;
        // A reply of an earlier process may not be taken for this one's.
        let _ = fs::remove_file(&reply);
        self.finish(command.arg(&request).arg(&reply))?;
        read(&reply)
    }

    /// Standard output of a process that must succeed in time. What it prints goes through files: a pipe that nobody
    /// reads would stop it.
    pub fn finish(&self, command: &mut Command) -> Result<String> {
        let (out, err) = (self.folder.join("stdout.txt"), self.folder.join("stderr.txt"));
        let create = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            if start.elapsed() > self.timeout {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no result within {} s", self.timeout.as_secs_f64()));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if status.success() {
            return fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()));
        }
        // The last lines say what is wrong, in Python as well as here; some there only point at the line above.
        let text = String::from_utf8_lossy(&fs::read(&err).unwrap_or_default()).into_owned();
        let tells = |line: &&str| line.contains(|letter| !matches!(letter, '^' | '~'));
        let lines: Vec<&str> = text.lines().map(str::trim).filter(tells).collect();
        let last = lines[lines.len().saturating_sub(3)..].join(" / ");
        Err(if last.is_empty() { status.to_string() } else { last })
    }
}

/// Compiles a plan's model into `folder`.
pub fn compile_plan(starter: &Starter, plan: &plan::Plan, folder: &Path) -> Result<(PathBuf, Compiled)> {
    let library = folder.join("model.so");
    let task = CompileTask {
        model: plan.model.clone(),
        flags: plan.flags.clone(),
        library: library.clone(),
        cases: plan.cases.iter().map(|case| case.inputs.clone()).collect(),
    };
    Ok((library, starter.compile(&task)?))
}
