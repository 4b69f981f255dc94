//! Compiled models in this process: link an object into a shared library, load it, call it through the C ABI.
//!
//! The command line and the tests run models here, in the way any caller does. Everything a model is given is
//! allocated with guard bytes behind it, and what it left there is checked after every run.

pub mod kernel;

use std::collections::HashMap;
use std::ffi::{CStr, OsString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use bytes::Bytes;
use cranelift_entity::SecondaryMap;
use libloading::Library;
use onnxc_runtime_support::{AlignedBytes, Model as Descriptor, Options as RunOptions, Pool, Status, abi};

use crate::error::{Error, Kind, Result, Stage};
use crate::graph::{DType, Dim, Graph, Sym, Tensor, borders};

/// Bytes behind every buffer that a model may not touch, and what they hold. Outputs and the workspace are filled
/// with the same before the first run: as a float it is a large negative number, not one that hides a mistake.
const GUARD: usize = 64;
const POISON: u8 = 0xfb;

/// Links objects into the shared library `library` with the system's C compiler (`$CC`, or `cc`). Models need no
/// library but the C one (`memcpy` and its like): an object that refers to anything else is refused here.
pub fn link(objects: &[PathBuf], library: &Path) -> Result<()> {
    let driver =
        std::env::var_os("CC").filter(|name| !name.is_empty()).unwrap_or_else(|| OsString::from("cc"));
    let mut command = Command::new(&driver);
    command.arg("-shared");
    if cfg!(target_os = "linux") {
        command.arg("-Wl,-z,defs");
    }
    let output = command.arg("-o").arg(library).args(objects).output().map_err(|error| {
        let driver = driver.to_string_lossy();
        io(format!("cannot run the C compiler `{driver}`, which links models for this machine: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(io(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end())))
}

pub(crate) fn io(message: String) -> Error {
    Error::new(Stage::Io, Kind::Io, message)
}

fn usage(message: String) -> Error {
    Error::new(Stage::Run, Kind::Usage, message)
}

/// A loaded shared library of compiled models.
pub struct Models {
    library: Library,
}

impl Models {
    /// Loads a library that [`link`] made. Its code is trusted: it is the compiler's own.
    pub fn load(library: &Path) -> Result<Models> {
        // SAFETY: an object of the compiler has no initialisation code.
        let library = unsafe { Library::new(library) }
            .map_err(|error| io(format!("{}: {error}", library.display())))?;
        Ok(Models { library })
    }

    /// The model with this symbol prefix.
    pub fn get(&self, name: &str) -> Result<Model<'_>> {
        let symbol = format!("{name}_model");
        // SAFETY: the compiler gives every symbol of this name this type.
        let function = unsafe { self.library.get::<abi::ModelFn>(symbol.as_bytes()) }
            .map_err(|error| io(format!("{symbol}: {error}")))?;
        // SAFETY: the function takes nothing and gives a constant of the library, which `self` keeps loaded.
        let descriptor = unsafe { function().as_ref() }
            .ok_or_else(|| Error::internal(Stage::Run, format!("{symbol} gives no descriptor")))?;
        if descriptor.abi_version != abi::ABI_VERSION {
            let version = descriptor.abi_version;
            return Err(usage(format!(
                "`{name}` has version {version} of the C ABI, not {}",
                abi::ABI_VERSION
            )));
        }
        Ok(Model { descriptor })
    }
}

/// A model of a loaded library.
#[derive(Clone, Copy)]
pub struct Model<'l> {
    descriptor: &'l Descriptor,
}

impl<'l> Model<'l> {
    pub fn inputs(&self) -> Vec<abi::ValueInfo> {
        // SAFETY: the descriptor is what the model's function gave; likewise below.
        unsafe { self.descriptor.inputs() }
    }

    pub fn outputs(&self) -> Vec<abi::ValueInfo> {
        unsafe { self.descriptor.outputs() }
    }

    /// Buffers for runs on these inputs (`None`: the input's default) with outputs of these shapes. Where an output's
    /// size is symbolic, a larger shape than the actual one will do; without a shape each run allocates the output.
    pub fn prepare(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
    ) -> Result<Prepared<'l>> {
        let (input_infos, output_infos) = (self.inputs(), self.outputs());
        if inputs.len() != input_infos.len() || output_shapes.len() != output_infos.len() {
            return Err(usage(format!(
                "{} inputs and {} outputs, where the model has {} and {}",
                inputs.len(),
                output_shapes.len(),
                input_infos.len(),
                output_infos.len(),
            )));
        }
        let workspace = self.workspace_bytes(&input_infos, inputs)?;
        let inputs =
            inputs.iter().zip(&input_infos).map(|(tensor, info)| Buffer::input(tensor.as_ref(), info));
        let outputs = output_shapes
            .iter()
            .zip(&output_infos)
            .map(|(shape, info)| Buffer::output(shape.as_deref(), info));
        Ok(Prepared {
            // SAFETY: as above.
            run: unsafe { self.descriptor.run() },
            inputs: inputs.collect::<Result<_>>()?,
            outputs: outputs.collect::<Result<_>>()?,
            workspace: Guarded::new(workspace),
            heap: Heap::default(),
            model: *self,
        })
    }

    /// One run on these inputs.
    pub fn run(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
    ) -> Result<Vec<Tensor>> {
        let mut prepared = self.prepare(inputs, output_shapes)?;
        prepared.run(&Call::default())?;
        prepared.check_guards()?;
        prepared.outputs()
    }

    /// Bytes of workspace for inputs of these shapes; the first input that has a symbol as its dim decides it.
    fn workspace_bytes(&self, infos: &[abi::ValueInfo], inputs: &[Option<Tensor>]) -> Result<usize> {
        let mut symbols = vec![-1i64; self.descriptor.symbol_count as usize];
        for (info, tensor) in infos.iter().zip(inputs) {
            let Some(tensor) = tensor else { continue };
            if tensor.shape.len() != info.dims.len() {
                let message =
                    format!("`{}` has shape {:?}, not {} dims", info.name, tensor.shape, info.dims.len());
                return Err(usage(message));
            }
            for (symbol, &size) in info.symbols.iter().zip(&tensor.shape) {
                if let Some(symbol) = symbol
                    && symbols[*symbol] < 0
                {
                    symbols[*symbol] = size as i64;
                }
            }
        }
        // SAFETY: the function reads `symbol_count` values.
        let bytes = unsafe { self.descriptor.workspace()(symbols.as_ptr(), symbols.len()) };
        usize::try_from(bytes)
            .map_err(|_| usage(format!("no workspace for the sizes {symbols:?}: status {}", -bytes)))
    }
}

/// Memory that a model may write, with guard bytes behind it.
struct Guarded {
    memory: AlignedBytes,
    bytes: usize,
}

impl Guarded {
    fn new(bytes: usize) -> Guarded {
        let mut memory = AlignedBytes::new(bytes + GUARD);
        memory.fill(POISON);
        Guarded { memory, bytes }
    }

    fn intact(&self) -> bool {
        self.memory[self.bytes..].iter().all(|&byte| byte == POISON)
    }
}

/// What runs have allocated: blocks by their addresses.
#[derive(Default)]
struct Heap {
    blocks: Mutex<HashMap<usize, Guarded>>,
    /// The first fault of a caller.
    fault: Mutex<Option<String>>,
}

impl Heap {
    fn blocks(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Guarded>> {
        self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn blame(&self, message: String) {
        let mut fault = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        fault.get_or_insert(message);
    }

    /// An internal error if a run wrote behind a block, or kept one.
    fn check(&self) -> Result<()> {
        let mut fault = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let kept: usize = self.blocks().drain().map(|(_, block)| block.bytes).sum();
        match fault.take() {
            Some(message) => Err(Error::internal(Stage::Run, message)),
            None if kept > 0 => Err(Error::internal(Stage::Run, format!("a run kept {kept} bytes"))),
            None => Ok(()),
        }
    }
}

unsafe extern "C" fn allocate(heap: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: `Prepared::run` passes a reference that outlives the run.
    let heap = unsafe { &*heap.cast::<Heap>() };
    if alignment > 64 || bytes > isize::MAX as usize - 2 * GUARD {
        return std::ptr::null_mut();
    }
    let mut block = Guarded::new(bytes);
    let address = block.memory.as_mut_ptr();
    heap.blocks().insert(address.addr(), block);
    address.cast()
}

unsafe extern "C" fn release(heap: *mut c_void, memory: *mut c_void, bytes: usize, _alignment: usize) {
    // SAFETY: as above.
    let heap = unsafe { &*heap.cast::<Heap>() };
    match heap.blocks().remove(&memory.addr()) {
        Some(block) if block.bytes == bytes && block.intact() => {}
        Some(block) => heap.blame(format!("a run wrote behind {} bytes, given back as {bytes}", block.bytes)),
        None => heap.blame(format!("a run gave back {bytes} bytes that it did not have")),
    }
}

/// The data of one input or output.
struct Buffer {
    name: String,
    dtype: DType,
    dims: Vec<i64>,
    /// `None` for an input that is left to its default, and for an output that no run has allocated yet.
    data: Option<Guarded>,
    /// An output that every run allocates.
    late: bool,
}

impl Buffer {
    fn input(tensor: Option<&Tensor>, info: &abi::ValueInfo) -> Result<Buffer> {
        let mut buffer =
            Buffer { name: info.name.clone(), dtype: dtype(info)?, dims: vec![], data: None, late: false };
        match tensor {
            Some(tensor) => {
                let stored = borders::stored(tensor).data;
                let mut data = Guarded::new(stored.len());
                data.memory[..stored.len()].copy_from_slice(&stored);
                buffer.dtype = tensor.dtype;
                buffer.dims = tensor.shape.iter().map(|&size| size as i64).collect();
                buffer.data = Some(data);
            }
            None if info.has_default => buffer.dims = info.dims.iter().map(|dim| dim.unwrap_or(0)).collect(),
            None => return Err(usage(format!("input `{}` is missing", info.name))),
        }
        Ok(buffer)
    }

    fn output(shape: Option<&[usize]>, info: &abi::ValueInfo) -> Result<Buffer> {
        let Some(shape) = shape else {
            let dims = info.dims.iter().map(|dim| dim.unwrap_or(0)).collect();
            return Ok(Buffer { name: info.name.clone(), dtype: dtype(info)?, dims, data: None, late: true });
        };
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let dtype = dtype(info)?;
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits() as usize));
        let bytes = bits.map(|bits| bits.div_ceil(8));
        let Some(bytes) = bytes.filter(|&bytes| bytes <= isize::MAX as usize - 2 * GUARD) else {
            return Err(usage(format!("output `{}` of shape {shape:?} does not fit memory", info.name)));
        };
        Ok(Buffer {
            name: info.name.clone(),
            dtype,
            dims: shape.iter().map(|&size| size as i64).collect(),
            data: Some(Guarded::new(bytes)),
            late: false,
        })
    }

    fn descriptor(&mut self) -> abi::Tensor {
        let (data, bytes) = match &mut self.data {
            Some(data) => (data.memory.as_mut_ptr().cast(), data.bytes),
            None => (std::ptr::null_mut(), 0),
        };
        let (dtype, rank) = (self.dtype.to_onnx(), self.dims.len() as i32);
        abi::Tensor { data, bytes, dtype, rank, dims: self.dims.as_mut_ptr() }
    }
}

fn dtype(info: &abi::ValueInfo) -> Result<DType> {
    DType::from_onnx(info.dtype).ok_or_else(|| {
        Error::internal(Stage::Run, format!("`{}` has element type {}", info.name, info.dtype))
    })
}

/// What a run is given besides its tensors.
#[derive(Default)]
pub struct Call<'a> {
    /// Threads for the loops that are worth it; without, all runs on this one.
    pub pool: Option<&'a Pool>,
    /// Told the number of each step when it is done, by models compiled for profiling.
    pub step_done: Option<&'a StepObserver<'a>>,
}

/// See [`Call::step_done`].
pub type StepObserver<'a> = Mutex<dyn FnMut(usize) + Send + 'a>;

/// A model with buffers for any number of runs.
pub struct Prepared<'l> {
    run: abi::RunFn,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    workspace: Guarded,
    heap: Heap,
    #[expect(dead_code, reason = "ties the code that `run` points to to its library")]
    model: Model<'l>,
}

impl Prepared<'_> {
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes
    }

    /// Runs the model. Errors carry the model's own message.
    pub fn run(&mut self, call: &Call<'_>) -> Result<()> {
        let mut message = [0u8; 512];
        let mut options = RunOptions {
            message: message.as_mut_ptr().cast(),
            message_capacity: message.len(),
            allocate: Some(allocate),
            release: Some(release),
            allocator: std::ptr::from_ref(&self.heap).cast_mut().cast(),
            ..RunOptions::default()
        };
        self.outputs.iter_mut().filter(|buffer| buffer.late).for_each(|buffer| buffer.data = None);
        if let Some(pool) = call.pool {
            options.parallel_for = Some(onnxc_runtime_support::pool::onnxc_pool_parallel_for);
            options.pool = std::ptr::from_ref(pool).cast_mut().cast();
            options.threads = pool.threads() as i64;
        }
        if let Some(observer) = &call.step_done {
            options.step_done = Some(step_done);
            options.step_context = std::ptr::from_ref(observer).cast_mut().cast();
        }
        let inputs: Vec<abi::Tensor> = self.inputs.iter_mut().map(Buffer::descriptor).collect();
        let mut outputs: Vec<abi::Tensor> = self.outputs.iter_mut().map(Buffer::descriptor).collect();
        // SAFETY: all descriptors point to live buffers of their length, which do not overlap.
        let status = unsafe {
            (self.run)(
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                self.workspace.memory.as_mut_ptr().cast(),
                self.workspace.bytes,
                &options,
            )
        };
        for (buffer, tensor) in self.outputs.iter_mut().zip(&outputs).filter(|(buffer, _)| buffer.late) {
            buffer.data = self.heap.blocks().remove(&tensor.data.addr());
        }
        self.heap.check()?;
        if status == Status::OK {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        Err(usage(if text.is_empty() { format!("status {} of a run", status.0) } else { text.into_owned() }))
    }

    /// An internal error if a run wrote behind a buffer.
    pub fn check_guards(&self) -> Result<()> {
        let overrun = |what: String| Err(Error::internal(Stage::Run, format!("a run wrote behind {what}")));
        if !self.workspace.intact() {
            return overrun(format!("its workspace of {} bytes", self.workspace.bytes));
        }
        for buffer in self.inputs.iter().chain(&self.outputs) {
            if buffer.data.as_ref().is_some_and(|data| !data.intact()) {
                return overrun(format!("`{}` of shape {:?}", buffer.name, buffer.dims));
            }
        }
        Ok(())
    }

    /// The outputs of the last run.
    pub fn outputs(&self) -> Result<Vec<Tensor>> {
        self.outputs
            .iter()
            .map(|buffer| {
                let sizes: Option<Vec<usize>> =
                    buffer.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
                let data = buffer.data.as_ref().map_or(&[][..], |data| &data.memory[..data.bytes]);
                let bits = sizes.as_ref().and_then(|sizes| {
                    let bits = buffer.dtype.bits() as usize;
                    sizes.iter().try_fold(bits, |product, &size| product.checked_mul(size))
                });
                match (sizes, bits.map(|bits| bits.div_ceil(8))) {
                    (Some(shape), Some(bytes)) if bytes <= data.len() => {
                        let data = match buffer.dtype.is_packed() {
                            true => borders::unpack_bits(buffer.dtype, data, shape.iter().product()),
                            false => Bytes::copy_from_slice(&data[..bytes]),
                        };
                        Ok(Tensor::new(buffer.dtype, shape, data))
                    }
                    _ => {
                        let message = format!("`{}` came back with the sizes {:?}", buffer.name, buffer.dims);
                        Err(Error::internal(Stage::Run, message))
                    }
                }
            })
            .collect()
    }
}

unsafe extern "C" fn step_done(context: *mut c_void, step: i64) {
    // SAFETY: `Prepared::run` passes a reference that outlives the run.
    let observer = unsafe { &*context.cast::<&StepObserver<'_>>() };
    let mut observer = observer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    (*observer)(step as usize);
}

/// Shapes of a graph's outputs for inputs of these shapes (`None`: the input's default); `None` for one that data
/// decide.
pub fn output_shapes(graph: &Graph, inputs: &[Option<Tensor>]) -> Result<Vec<Option<Vec<usize>>>> {
    let mut symbols: SecondaryMap<Sym, Option<i64>> = SecondaryMap::new();
    for (at, (input, tensor)) in graph.inputs.iter().zip(inputs).enumerate() {
        let Some(tensor) = tensor.as_ref().or(input.default.as_ref()) else { continue };
        for (dim, &size) in graph.input_ty(at).shape.iter().zip(&tensor.shape) {
            if let Some(symbol) = dim.as_sym() {
                symbols[symbol].get_or_insert(size as i64);
            } else if dim.as_const().is_some_and(|wanted| wanted != size as i64) {
                return Err(usage(format!("input `{}`: a dim is {size}, must be {dim}", input.name)));
            }
        }
    }
    let size = |name: &str, dim: &Dim| {
        dim.eval(&|symbol| symbols[symbol])
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| usage(format!("output `{name}`: the inputs do not give its dim {dim} a size")))
    };
    let shape = |(at, (name, _)): (usize, &(String, _))| {
        let shape = &graph.output_ty(at).shape;
        match shape.iter().any(|dim| graph.is_data_dim(dim)) {
            true => Ok(None),
            false => shape.iter().map(|dim| size(name, dim)).collect::<Result<Vec<usize>>>().map(Some),
        }
    };
    graph.outputs.iter().enumerate().map(shape).collect()
}
