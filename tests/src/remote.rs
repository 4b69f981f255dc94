//! Compiled models on another [`Machine`]: a program of their objects and `c/serve.c`, under the machine's emulator, that is
//! asked over pipes. It runs a model in guarded memory as `Model::run_guarded` does here, and once with its loops in parts.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use onnxc_ir::borders;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_runtime_support::abi::{DimKind, ValueInfo};
use target_lexicon::Endianness;

use crate::machine::Machine;
use crate::measure::Watch;
use crate::object::{include_dir, source};

/// Time of the processors that an answer may take. An emulator takes some fifty times as long as a processor.
const PATIENCE: Duration = Duration::from_secs(1200);

/// How often the time is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Requests of `c/serve.c`.
const DESCRIBE: i64 = 1;
const RUN: i64 = 2;

/// Its status beside those of the ABI.
const BROKEN_PROMISE: i64 = 1000;

/// How many runs in other memory and by other threads [`Program::run`] makes at most.
pub const ALL_RUNS: usize = 3;

/// Objects linked into a program for a machine.
pub struct Program {
    machine: &'static Machine,
    path: PathBuf,
    big_endian: bool,
    process: Option<Process>,
}

/// Links objects of models with these symbol prefixes, and the runtime library if they call it, into the program `path`; the
/// error is what the linker says.
pub fn link(
    machine: &'static Machine,
    models: &[(&str, &Path)],
    runtime: Option<&Path>,
    path: &Path,
) -> Result<Program, String> {
    // As Windows wants it, and others do not mind.
    let path = &path.with_extension("exe");
    let mut table = "#include <onnxc.h>\n".to_string();
    for (name, _) in models {
        let _ = writeln!(table, "const onnxc_model *{name}_model(void);");
    }
    let rows: Vec<String> = models.iter().map(|(name, _)| format!("{name}_model")).collect();
    let _ = writeln!(table, "const onnxc_model *(*const served_models[])(void) = {{ {} }};", rows.join(", "));
    let c = path.with_extension("c");
    fs::write(&c, table).map_err(|error| error.to_string())?;
    let mut command = Command::new(machine.compiler[0]);
    command.args(&machine.compiler[1..]).args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]);
    command.arg(include_dir()).args([&c, &source("serve.c")]);
    command.args(models.iter().map(|(_, object)| object));
    if let Some(runtime) = runtime {
        command.arg(runtime).args(machine.rust.libraries);
        for name in machine.rust.lacking {
            let mut shared = Command::new(machine.compiler[0]);
            shared.arg("-shared").arg(source(&format!("{name}.c"))).arg("-o");
            compile(shared.arg(path.with_file_name(format!("{name}.dll"))))?;
        }
    }
    compile(command.arg("-o").arg(path))?;
    let big_endian = machine.target().triple.endianness() == Ok(Endianness::Big);
    Ok(Program { machine, path: path.to_path_buf(), big_endian, process: None })
}

/// Runs a C compiler; the error is what it says, and so are warnings: a linker warns of objects that do not fit together.
fn compile(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let is_silent = output.status.success() && output.stderr.is_empty();
    is_silent.then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_string())
}

impl Program {
    /// Inputs and outputs of the model of a number, from its descriptor on the other side.
    pub fn describe(&mut self, model: usize) -> Result<[Vec<ValueInfo>; 2], String> {
        let mut request = vec![];
        [DESCRIBE, model as i64].iter().for_each(|&number| put(&mut request, number));
        let answer = self.ask(request, |input| {
            let [inputs, outputs] = [read_values(input)?, read_values(input)?];
            Ok(Answer::Described([inputs, outputs]))
        })?;
        match answer {
            Answer::Described(ports) => Ok(ports),
            Answer::Ran(_) => Err("the answer to another request".into()),
        }
    }

    /// Runs the model of a number on these inputs (`None`: the input's default) with outputs of these shapes, which the run
    /// allocates where there is none; `outputs` are those that it describes.
    pub fn run(
        &mut self,
        model: usize,
        runs: usize,
        outputs: &[ValueInfo],
        inputs: &[Option<Tensor>],
        shapes: &[Option<Vec<usize>>],
    ) -> Result<Vec<Tensor>, String> {
        let dtype = |info: &ValueInfo| {
            DType::from_onnx(info.dtype)
                .ok_or_else(|| format!("`{}` has element type {}", info.name, info.dtype))
        };
        let dtypes = outputs.iter().map(dtype).collect::<Result<Vec<DType>, _>>()?;
        let mut request = vec![];
        [RUN, model as i64, runs as i64].iter().for_each(|&number| put(&mut request, number));
        for input in inputs {
            put(&mut request, input.is_some().into());
            if let Some(tensor) = input {
                put(&mut request, tensor.dtype.to_onnx().into());
                put_dims(&mut request, &tensor.shape);
                let data = self.sent(tensor);
                put(&mut request, data.len() as i64);
                request.extend(data);
            }
        }
        for (shape, &dtype) in shapes.iter().zip(&dtypes) {
            // Only the run knows how long texts are.
            let shape = shape.as_ref().filter(|_| dtype != DType::Str);
            put(&mut request, shape.is_some().into());
            if let Some(shape) = shape {
                put_dims(&mut request, shape);
                let bits = shape.iter().product::<usize>() * dtype.bits() as usize;
                put(&mut request, bits.div_ceil(8) as i64);
            }
        }
        let count = outputs.len();
        let answer = self.ask(request, move |input| {
            let (status, message) = (get(input)?, get_text(input)?);
            match status {
                0 => {}
                BROKEN_PROMISE => return Ok(Answer::Ran(Err(message))),
                _ => return Ok(Answer::Ran(Err(format!("status {status}: {message}")))),
            }
            let mut outputs = vec![];
            for _ in 0..count {
                let dims = get_dims(input)?;
                let bytes = get(input)?;
                outputs.push((dims, get_bytes(input, bytes)?));
            }
            Ok(Answer::Ran(Ok(outputs)))
        })?;
        let Answer::Ran(ran) = answer else { return Err("the answer to another request".into()) };
        let tensor = |((dims, data), &dtype): (Output, &DType)| {
            let shape: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
            self.received(dtype, shape, &data)
                .ok_or_else(|| format!("{} bytes came back for the sizes {dims:?}", data.len()))
        };
        ran?.into_iter().zip(&dtypes).map(tensor).collect()
    }

    /// The data of a tensor as `c/serve.c` reads them.
    fn sent(&self, tensor: &Tensor) -> Vec<u8> {
        if tensor.dtype != DType::Str {
            return self.swapped(tensor.dtype, &borders::stored(tensor).data);
        }
        let (texts, mut data) = (tensor.texts(), vec![]);
        texts.iter().for_each(|text| put(&mut data, text.len() as i64));
        texts.iter().for_each(|text| data.extend_from_slice(text));
        data
    }

    /// A tensor of such data; `None` if they are too few.
    fn received(&self, dtype: DType, shape: Vec<usize>, data: &[u8]) -> Option<Tensor> {
        let count = shape.iter().product::<usize>();
        if dtype != DType::Str {
            let data = data.get(..(count * dtype.bits() as usize).div_ceil(8))?;
            return Some(borders::unstored(dtype, shape, &self.swapped(dtype, data).into()));
        }
        let (lengths, mut rest) = data.split_at_checked(8 * count)?;
        let mut texts = vec![];
        for length in lengths.as_chunks().0 {
            let (text, behind) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            texts.push(text);
            rest = behind;
        }
        Some(Tensor::from_texts(&shape, &texts))
    }

    /// Elements in the order of bytes of the other of the two machines.
    fn swapped(&self, dtype: DType, data: &[u8]) -> Vec<u8> {
        let part = dtype.part().unwrap_or(dtype).size();
        let mut data = data.to_vec();
        if self.big_endian && !dtype.is_packed() {
            data.chunks_exact_mut(part).for_each(<[u8]>::reverse);
        }
        data
    }

    /// An answer. A process that ends or takes too long is an error that says so, and the next request starts another.
    fn ask(
        &mut self,
        request: Vec<u8>,
        read: impl Fn(&mut dyn Read) -> io::Result<Answer> + Send + 'static,
    ) -> Result<Answer, String> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Process::start(self.machine, &self.path)?,
        };
        match process.ask(request, Box::new(read)) {
            Ok(answer) => {
                self.process = Some(process);
                Ok(answer)
            }
            Err(RecvTimeoutError::Timeout) => {
                process.kill();
                Err("the run hangs".to_string())
            }
            Err(RecvTimeoutError::Disconnected) => Err(process.end()),
        }
    }
}

/// Sizes and bytes of an output.
type Output = (Vec<i64>, Vec<u8>);

enum Answer {
    Described([Vec<ValueInfo>; 2]),
    Ran(Result<Vec<Output>, String>),
}

type Reading = Box<dyn Fn(&mut dyn Read) -> io::Result<Answer> + Send>;

/// A running program, and a thread that reads what it writes.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    wanted: Sender<Reading>,
    answers: Receiver<Answer>,
}

impl Process {
    fn start(machine: &Machine, program: &Path) -> Result<Process, String> {
        let mut command = machine.command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", machine.emulator[0]))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("the program has no standard output")?;
        let (wanted, readings) = channel::<Reading>();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            for read in readings {
                let Ok(answer) = read(&mut stdout) else { return };
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, stdin, wanted, answers })
    }

    fn ask(&mut self, request: Vec<u8>, read: Reading) -> Result<Answer, RecvTimeoutError> {
        let sent = self.stdin.as_mut().map(|stdin| stdin.write_all(&request).and_then(|()| stdin.flush()));
        if !matches!(sent, Some(Ok(()))) || self.wanted.send(read).is_err() {
            return Err(RecvTimeoutError::Disconnected);
        }
        let watch = Watch::new(&self.child);
        loop {
            match self.answers.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if !watch.hangs(PATIENCE) => {}
                answer => return answer,
            }
        }
    }

    fn kill(&mut self) {
        // One that has ended meanwhile is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// How a process ended that no longer answers.
    fn end(mut self) -> String {
        drop(self.stdin.take());
        match self.child.wait_with_output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
                format!("the run ended with {} {text}", output.status)
            }
            Err(error) => format!("the run ended: {error}"),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }
}

fn put(to: &mut Vec<u8>, number: i64) {
    to.extend(number.to_le_bytes());
}

fn put_dims(to: &mut Vec<u8>, shape: &[usize]) {
    put(to, shape.len() as i64);
    shape.iter().for_each(|&dim| put(to, dim as i64));
}

fn get(from: &mut dyn Read) -> io::Result<i64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(i64::from_le_bytes(bytes))
}

fn get_bytes(from: &mut dyn Read, count: i64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn get_text(from: &mut dyn Read) -> io::Result<String> {
    let count = get(from)?;
    Ok(String::from_utf8_lossy(&get_bytes(from, count)?).into_owned())
}

fn get_dims(from: &mut dyn Read) -> io::Result<Vec<i64>> {
    (0..get(from)?).map(|_| get(from)).collect()
}

fn read_values(from: &mut dyn Read) -> io::Result<Vec<ValueInfo>> {
    (0..get(from)?).map(|_| read_value(from)).collect()
}

/// The symbol of an axis that an output whose rank the run decides may lack.
const OPTIONAL: i64 = -3;

fn read_value(from: &mut dyn Read) -> io::Result<ValueInfo> {
    let (name, value) = (get_text(from)?, get_text(from)?);
    let [part, dtype, has_default, element_bytes] = [get(from)?, get(from)?, get(from)?, get(from)?];
    let mut info = ValueInfo {
        name,
        dtype: dtype as i32,
        dims: vec![],
        least_rank: 0,
        kinds: vec![],
        symbols: vec![],
        texts: vec![],
        has_default: has_default != 0,
        element_bytes: element_bytes as usize,
        value,
        part: part as i32,
    };
    for _ in 0..get(from)? {
        let [dim, kind, symbol] = [get(from)?, get(from)?, get(from)?];
        let text = get_text(from)?;
        info.dims.push((dim >= 0).then_some(dim));
        info.kinds.push(match kind {
            0 => DimKind::Static,
            1 => DimKind::Symbol,
            2 => DimKind::Formula,
            _ => DimKind::Data,
        });
        info.symbols.push(usize::try_from(symbol).ok());
        info.texts.push(Some(text).filter(|text| !text.is_empty()));
        if symbol != OPTIONAL {
            info.least_rank = info.dims.len();
        }
    }
    Ok(info)
}
