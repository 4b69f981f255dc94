//! Compiled models in this process: link an object into a shared library, load it, call it through the C ABI.
//!
//! The command line and the tests run models here, in the way any caller does. All memory (`memory`) that a model is given shows
//! what is written outside of it.

mod buffer;
mod heap;
mod memory;
mod runtime;
mod state;

pub mod kernel;

use std::ffi::{CStr, OsString, c_void};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use cranelift_entity::SecondaryMap;
use libloading::Library;
use onnxc_runtime_support::ranks::Communicator;
use onnxc_runtime_support::weights::Weights;
use onnxc_runtime_support::{Model as Descriptor, Options as RunOptions, Pool, Status, abi};
use target_lexicon::Triple;

use onnxc_ir::error::{Error, Kind, Result, Stage, without};
use onnxc_ir::graph::{Dim, Graph, Input, Sym, Tensor};
use onnxc_object::emit::shared;

use onnxc_object::host::block::SPARE;

use buffer::Buffer;
use heap::{Heap, allocate, release};
pub use memory::{ALIGNMENT, GuardedBlock, Memory, Placement};
use state::States;

/// Links objects into the shared library `library`, for [`Models::load`]. One object of a dense model needs no linker on Linux,
/// macOS and Windows; other objects, and all where `$CC` names a C compiler, are linked by that or by `cc`. Dense models need no
/// library but the C one (`memcpy` and its like), others the runtime, which is that of this process: an object that refers to
/// anything else is refused, here or when the library is loaded.
pub fn link(objects: &[PathBuf], library: &Path) -> Result<()> {
    link_with(objects, &[], library)
}

/// [`link`] with the shared libraries that have functions which the objects call.
pub fn link_with(objects: &[PathBuf], libraries: &[PathBuf], library: &Path) -> Result<()> {
    let mut calls = false;
    for object in objects {
        let file = File::open(object).map_err(|error| io(format!("{}: {error}", object.display())))?;
        // SAFETY: the mapping is private and read-only, and the object is a file of this process.
        let object = unsafe { memmap2::Mmap::map(&file) }.map_err(|error| io(error.to_string()))?;
        calls |= calls_runtime(&object);
        if cfg!(not(any(test, feature = "images"))) && runtime::decodes_images(&object) {
            return Err(usage(format!(
                "the model decodes images, and {}",
                without("image decoders", "images")
            )));
        }
    }
    let source = if calls { runtime::source() } else { String::new() };
    let is_named = std::env::var_os("CC").is_some_and(|name| !name.is_empty());
    if let ([object], [], false, false) = (objects, libraries, calls, is_named)
        && shared::is_supported(&Triple::host())
    {
        return write_library(object, library);
    }
    run_linker(objects, libraries, library, &source)
}

fn write_library(object: &Path, library: &Path) -> Result<()> {
    let fail = |path: &Path, error: std::io::Error| io(format!("{}: {error}", path.display()));
    let file = File::open(object).map_err(|error| fail(object, error))?;
    // SAFETY: as in `link`.
    let content = unsafe { memmap2::Mmap::map(&file) }.map_err(|error| fail(object, error))?;
    let out = File::create(library).map_err(|error| fail(library, error))?;
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    shared::write(&content, &name, &mut BufWriter::new(out))
}

/// Whether an object may call the runtime's functions for strings and images.
pub fn calls_runtime(object: &[u8]) -> bool {
    runtime::is_called_by(object)
}

/// C code for a library of objects that call the runtime, where other means link it: it calls the runtime of this process.
pub fn runtime_calls() -> String {
    runtime::source()
}

/// `source`: C code to be part of the library.
fn run_linker(objects: &[PathBuf], libraries: &[PathBuf], library: &Path, source: &str) -> Result<()> {
    let driver =
        std::env::var_os("CC").filter(|name| !name.is_empty()).unwrap_or_else(|| OsString::from("cc"));
    let mut command = Command::new(&driver);
    command.arg("-shared");
    if cfg!(target_os = "linux") {
        command.arg("-Wl,-z,defs");
    }
    command.arg("-o").arg(library).args(objects);
    if !source.is_empty() {
        command.args(["-O1", "-fPIC", "-x", "c", "-", "-x", "none"]);
    }
    command.args(libraries);
    let output = run_with_input(&mut command, source).map_err(|error| {
        let driver = driver.to_string_lossy();
        io(format!("cannot run the C compiler `{driver}`, which links models for this machine: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).trim_end().to_string();
    // The files have names of their own for as long as this takes.
    for (file, shown) in
        objects.iter().map(|object| (object, "the model")).chain([(&library.to_path_buf(), "the library")])
    {
        text = text.replace(&*file.to_string_lossy(), shown);
    }
    let driver = driver.to_string_lossy();
    Err(io(format!(
        "the C compiler `{driver}`, which links models for this machine, failed ({})\n{text}",
        output.status
    )))
}

fn run_with_input(command: &mut Command, input: &str) -> std::io::Result<Output> {
    let [stdout, stderr] = [Stdio::piped(), Stdio::piped()];
    let mut child = command.stdin(Stdio::piped()).stdout(stdout).stderr(stderr).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A compiler that does not read to the end says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

pub(crate) fn io(message: String) -> Error {
    Error::new(Stage::Io, Kind::Io, message)
}

fn usage(message: String) -> Error {
    Error::new(Stage::Run, Kind::Usage, message)
}

fn no_memory(what: &str, bytes: usize) -> Error {
    Error::new(Stage::Run, Kind::Budget, format!("no memory for {what}: {bytes} bytes"))
}

/// A copy of an output's data.
/// A loaded shared library of compiled models.
pub struct Models {
    library: Library,
    /// The functions of the runtime, to which the library refers.
    _functions: Vec<*const c_void>,
    /// Those of models that have them apart.
    weights: Option<Weights>,
}

// SAFETY: the addresses are those of functions.
unsafe impl Send for Models {}
// SAFETY: as above.
unsafe impl Sync for Models {}

impl Models {
    /// Loads a library that [`link`] made. Its code is trusted: it is the compiler's own.
    pub fn load(library: &Path) -> Result<Models> {
        // SAFETY: an object of the compiler has no initialisation code.
        let library = unsafe { Library::new(library) }
            .map_err(|error| io(format!("{}: {error}", library.display())))?;
        let functions = runtime::table();
        // SAFETY: only [`link`] makes a function of this name, which has this type.
        if let Ok(bind) = unsafe { library.get::<runtime::Bind>(runtime::BIND) } {
            // SAFETY: the addresses are those of the functions that the library calls, in their order, and are kept with it.
            unsafe { bind(functions.as_ptr()) };
        }
        Ok(Models { library, _functions: functions, weights: None })
    }

    /// Has the runs of models use the weights of a file, which must fit the model of this name.
    pub fn use_weights(&mut self, name: &str, file: &Path) -> Result<()> {
        let weights =
            Weights::open(file, self.get(name)?.descriptor).map_err(|refusal| usage(refusal.message))?;
        self.weights = Some(weights);
        Ok(())
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
        Ok(Model { descriptor, weights: self.weights.as_ref() })
    }
}

/// A model of a loaded library.
#[derive(Clone, Copy)]
pub struct Model<'l> {
    descriptor: &'l Descriptor,
    weights: Option<&'l Weights>,
}

impl<'l> Model<'l> {
    pub fn inputs(&self) -> Vec<abi::ValueInfo> {
        // SAFETY: the descriptor is what the model's function gave.
        unsafe { self.descriptor.inputs() }
    }

    pub fn outputs(&self) -> Vec<abi::ValueInfo> {
        // SAFETY: as for the inputs.
        unsafe { self.descriptor.outputs() }
    }

    /// The model's `<name>_run`.
    pub fn run_function(&self) -> abi::RunFn {
        // SAFETY: as for the inputs.
        unsafe { self.descriptor.run() }
    }

    /// The model's `<name>_workspace`.
    pub fn workspace_function(&self) -> abi::WorkspaceFn {
        // SAFETY: as for the inputs.
        unsafe { self.descriptor.workspace() }
    }

    /// The tensors in the model's state block.
    pub fn states(&self) -> Vec<abi::StateInfo> {
        // SAFETY: as for the inputs.
        unsafe { self.descriptor.states() }
    }

    /// Fails where buffers of a call overlap that must lie apart. The arguments are those of a [`Prepared`], which may have been
    /// moved, but for the elements of strings.
    pub fn check_overlap(
        &self,
        arguments: &Arguments,
    ) -> std::result::Result<(), onnxc_runtime_support::limits::Refusal> {
        let Arguments { inputs, outputs, workspace, workspace_bytes, .. } = arguments;
        // SAFETY: the descriptor is what the model's function gave, and tensors of strings have elements.
        unsafe { self.descriptor.check_overlap(inputs, outputs, *workspace, *workspace_bytes) }
    }

    /// Names of the symbols, in the order of their numbers.
    pub fn symbols(&self) -> Vec<String> {
        // SAFETY: as for the inputs.
        unsafe { self.descriptor.symbols() }
    }

    /// [`Model::prepare_in`] memory of the heap.
    pub fn prepare(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
    ) -> Result<Prepared<'l>> {
        self.prepare_in(Memory::default(), inputs, output_shapes)
    }

    /// Buffers for runs on these inputs (`None`: the input's default) with outputs of these shapes. Where an output's
    /// size is symbolic, a larger shape than the actual one will do; without a shape each run allocates the output.
    ///
    /// Behind the inputs and outputs come the states, as tensors: those that a run finds (`None`: no elements where it grows, else
    /// zeros), and the shapes of those that it leaves.
    pub fn prepare_in(
        &self,
        memory: Memory,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
    ) -> Result<Prepared<'l>> {
        let (mut input_infos, output_infos, states) = (self.inputs(), self.outputs(), self.states());
        if !states.is_empty() {
            // The block is made of the states.
            input_infos.pop();
        }
        if inputs.len() != input_infos.len() + states.len()
            || output_shapes.len() != output_infos.len() + states.len()
        {
            return Err(usage(format!(
                "{} inputs and {} outputs, where the model has {} and {}, and {} states",
                inputs.len(),
                output_shapes.len(),
                input_infos.len(),
                output_infos.len(),
                states.len(),
            )));
        }
        let (inputs, found) = inputs.split_at(input_infos.len());
        let (output_shapes, left) = output_shapes.split_at(output_infos.len());
        let symbols = self.symbol_values(&input_infos, inputs, &states, (found, left))?;
        let workspace = self.workspace_bytes(&symbols)?;
        let states = match states.is_empty() {
            true => None,
            false => Some(States::new(self, memory, states, found, symbols)?),
        };
        let inputs = inputs
            .iter()
            .zip(&input_infos)
            .map(|(tensor, info)| Buffer::input(memory, tensor.as_ref(), info));
        let outputs = output_shapes
            .iter()
            .zip(&output_infos)
            .map(|(shape, info)| Buffer::output(memory, shape.as_deref(), info));
        Ok(Prepared {
            inputs: inputs.collect::<Result<_>>()?,
            outputs: outputs.collect::<Result<_>>()?,
            states,
            workspace: memory
                .block(workspace, ALIGNMENT)
                .ok_or_else(|| no_memory("the workspace", workspace))?,
            heap: Heap::new(memory),
            model: *self,
        })
    }

    /// One run on these inputs.
    pub fn run(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
    ) -> Result<Vec<Tensor>> {
        self.run_with(inputs, output_shapes, &Call::default())
    }

    /// As [`Model::run`], with the options of a run.
    pub fn run_with(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
        call: &Call<'_>,
    ) -> Result<Vec<Tensor>> {
        let mut prepared = self.prepare(inputs, output_shapes)?;
        prepared.run(call)?;
        prepared.check_guards()?;
        prepared.outputs()
    }

    /// One run in each memory of [`Memory::GUARDED`]: a read or a write outside of a buffer ends the process, and results
    /// that depend on what a buffer held before are an error.
    pub fn run_guarded(
        &self,
        inputs: &[Option<Tensor>],
        output_shapes: &[Option<Vec<usize>>],
        call: &Call<'_>,
    ) -> Result<Vec<Tensor>> {
        let run = |memory| {
            let mut prepared = self.prepare_in(memory, inputs, output_shapes)?;
            prepared.run(call)?;
            prepared.check_guards()?;
            prepared.outputs()
        };
        let [one, other] = Memory::GUARDED.map(run);
        let (one, other) = (one?, other?);
        let outputs = self.outputs().into_iter().map(|info| info.name);
        let states = self.states().into_iter().map(|state| state.output);
        for ((one, other), name) in one.iter().zip(&other).zip(outputs.chain(states)) {
            if one != other {
                let element = one.data.iter().zip(&other.data).position(|(one, other)| one != other);
                let element = element.map(|at| at / one.dtype.size());
                return Err(Error::internal(
                    Stage::Run,
                    format!(
                        "output `{name}` depends on what memory held before the run: {} in one memory and {} in the \
                             other, first at element {element:?}",
                        shape_text(one),
                        shape_text(other)
                    ),
                ));
            }
        }
        Ok(one)
    }

    /// Values of the symbols for inputs of these shapes, the first input that has a symbol as its dim deciding it, and for
    /// states; -1 for those that nothing decides.
    fn symbol_values(
        &self,
        infos: &[abi::ValueInfo],
        inputs: &[Option<Tensor>],
        states: &[abi::StateInfo],
        (found, left): (&[Option<Tensor>], &[Option<Vec<usize>>]),
    ) -> Result<Vec<i64>> {
        let mut symbols = vec![-1i64; self.descriptor.symbol_count as usize];
        let mut decide = |symbol: Option<usize>, size: usize| {
            if let Some(symbol) = symbol
                && symbols[symbol] < 0
            {
                symbols[symbol] = size as i64;
            }
        };
        let check_rank = |info: &abi::ValueInfo, tensor: &Tensor| match tensor.shape.len() == info.dims.len()
        {
            true => Ok(()),
            false => Err(usage(format!(
                "`{}` has shape {:?}, not {} dims",
                info.name,
                tensor.shape,
                info.dims.len()
            ))),
        };
        for (info, tensor) in infos.iter().zip(inputs) {
            let Some(tensor) = tensor else { continue };
            check_rank(info, tensor)?;
            info.symbols.iter().zip(&tensor.shape).for_each(|(symbol, &size)| decide(*symbol, size));
        }
        for ((state, tensor), left) in states.iter().zip(found).zip(left) {
            if let Some(tensor) = tensor {
                check_rank(&state.tensor, tensor)?;
            }
            for (axis, symbol) in state.tensor.symbols.iter().enumerate() {
                let size = tensor.as_ref().map(|tensor| tensor.shape[axis]);
                match state.growth {
                    Some((own, number)) if own == axis => {
                        decide(Some(number), size.unwrap_or(0));
                        let least = left.as_ref().and_then(|shape| shape.get(axis));
                        decide(*symbol, least.copied().unwrap_or(0) + SPARE);
                    }
                    _ => drop(size.map(|size| decide(*symbol, size))),
                }
            }
        }
        Ok(symbols)
    }

    /// Bytes of the state block for these values of the model's symbols. Errors: sizes that there is no block for, a model
    /// without states.
    pub fn state_bytes(&self, symbols: &[i64]) -> Result<usize> {
        // SAFETY: the descriptor is what the model's function gave.
        let Some(function) = (unsafe { self.descriptor.state_bytes() }) else {
            return Err(usage("the model has no state".to_string()));
        };
        // SAFETY: the function reads `symbols.len()` values.
        let bytes = unsafe { function(symbols.as_ptr(), symbols.len()) };
        usize::try_from(bytes)
            .map_err(|_| usage(format!("no state for the sizes {symbols:?}: status {}", -bytes)))
    }

    /// Makes a block empty, by the model's `<name>_state_reset`.
    pub fn reset_state(&self, block: &mut [u8], symbols: &[i64]) -> Status {
        // SAFETY: the descriptor is what the model's function gave.
        let Some(function) = (unsafe { self.descriptor.state_reset() }) else { return Status::BAD_STATE };
        // SAFETY: the function gets the lengths of the block and of the symbols.
        unsafe { function(block.as_mut_ptr().cast(), block.len(), symbols.as_ptr(), symbols.len()) }
    }

    /// Bytes of workspace for these values of the model's symbols.
    pub fn workspace_bytes(&self, symbols: &[i64]) -> Result<usize> {
        // SAFETY: the function reads `symbol_count` values.
        let bytes = unsafe { self.descriptor.workspace()(symbols.as_ptr(), symbols.len()) };
        usize::try_from(bytes)
            .map_err(|_| usage(format!("no workspace for the sizes {symbols:?}: status {}", -bytes)))
    }
}

fn shape_text(tensor: &Tensor) -> String {
    format!("{}{:?}", tensor.dtype, tensor.shape)
}

/// What a run is given besides its tensors.
#[derive(Default)]
pub struct Call<'a> {
    /// Threads for the loops that are worth it; without, all runs on this one.
    pub pool: Option<&'a Pool>,
    /// Called with the number of each step when it is done, by models compiled for profiling.
    pub step_done: Option<&'a StepObserver<'a>>,
    /// For random numbers.
    pub seed: u64,
    /// The other ranks, of a model that is one.
    pub communicator: Option<&'a Communicator>,
    /// What computes functions of the caller, and its context.
    pub function: Option<(abi::FunctionFn, *mut c_void)>,
}

/// See [`Call::step_done`].
pub type StepObserver<'a> = Mutex<dyn FnMut(usize) + Send + 'a>;

/// A model with buffers for any number of runs.
pub struct Prepared<'l> {
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    states: Option<States>,
    workspace: GuardedBlock,
    heap: Heap,
    model: Model<'l>,
}

/// What `<name>_run` is called with, but for the counts, which are those of the vectors. The pointers are to buffers of
/// the [`Prepared`] that gave it and of its [`Call`].
#[derive(Clone)]
pub struct Arguments {
    pub inputs: Vec<abi::Tensor>,
    pub outputs: Vec<abi::Tensor>,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
    pub options: RunOptions,
}

impl Arguments {
    /// Has the run find and leave its states in another block, of a model that has states. `dims` gets the block's one size.
    pub fn use_state(&mut self, block: &mut GuardedBlock, dims: &mut [i64; 1]) {
        dims[0] = block.bytes() as i64;
        if let Some(port) = self.inputs.last_mut() {
            (port.data, port.bytes, port.dims) =
                (block.as_mut_ptr().cast(), block.bytes(), dims.as_mut_ptr());
        }
    }

    /// Calls the model's function; gives how the run ends.
    ///
    /// # Safety
    /// What the arguments point to lives, has its length and does not overlap, as `onnxc_run_fn` asks; where it does not, `run` must refuse
    /// it.
    pub unsafe fn run(&mut self, model: &Model<'_>) -> Status {
        // SAFETY: the caller says so.
        unsafe {
            model.run_function()(
                self.inputs.as_ptr(),
                self.inputs.len(),
                self.outputs.as_mut_ptr(),
                self.outputs.len(),
                self.workspace,
                self.workspace_bytes,
                &self.options,
            )
        }
    }
}

impl Prepared<'_> {
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes()
    }

    /// The arguments of a run, which finds its states as they were at first. Its failure is not described anywhere.
    pub fn arguments(&mut self, call: &Call<'_>) -> Arguments {
        let mut options = RunOptions {
            allocate: Some(allocate),
            release: Some(release),
            allocator: std::ptr::from_ref(&self.heap).cast_mut().cast(),
            seed: call.seed,
            ..RunOptions::default()
        };
        if let Some(pool) = call.pool {
            options.parallel_for = Some(onnxc_runtime_support::pool::onnxc_pool_parallel_for);
            options.pool = std::ptr::from_ref(pool).cast_mut().cast();
            options.threads = pool.threads() as i64;
        }
        if let Some(observer) = &call.step_done {
            options.step_done = Some(step_done);
            options.step_context = std::ptr::from_ref(observer).cast_mut().cast();
        }
        if let Some(weights) = self.model.weights {
            weights.bind(&mut options);
        }
        if let Some(communicator) = call.communicator {
            options.communicator = communicator;
        }
        if let Some((function, context)) = call.function {
            (options.function, options.function_context) = (Some(function), context);
        }
        self.outputs.iter_mut().filter(|buffer| buffer.late).for_each(|buffer| buffer.data = None);
        self.states.iter_mut().for_each(States::rewind);
        let block = self.states.as_mut().map(States::descriptor);
        Arguments {
            inputs: self.inputs.iter_mut().map(Buffer::descriptor).chain(block).collect(),
            outputs: self.outputs.iter_mut().map(Buffer::descriptor).collect(),
            workspace: self.workspace.as_mut_ptr().cast(),
            workspace_bytes: self.workspace.bytes(),
            options,
        }
    }

    /// Runs the model. Errors carry the model's own message.
    pub fn run(&mut self, call: &Call<'_>) -> Result<()> {
        self.run_on(None, call)
    }

    /// As [`Prepared::run`], on the states of a block of the caller's, which the run changes.
    pub fn run_on(&mut self, block: Option<&mut GuardedBlock>, call: &Call<'_>) -> Result<()> {
        let mut message = [0u8; 512];
        let mut arguments = self.arguments(call);
        let mut dims = [0];
        if let (Some(block), Some(_)) = (block, &self.states) {
            arguments.use_state(block, &mut dims);
        }
        arguments.options.message = message.as_mut_ptr().cast();
        arguments.options.message_capacity = message.len();
        // SAFETY: all descriptors point to live buffers of their length, which do not overlap.
        let status = unsafe { arguments.run(&self.model) };
        for (buffer, tensor) in self.outputs.iter_mut().zip(&arguments.outputs) {
            buffer.rank = usize::try_from(tensor.rank).unwrap_or(0);
            if buffer.late {
                buffer.data = self.heap.blocks().remove(&tensor.data.addr());
            }
        }
        self.heap.check()?;
        if status == Status::OK {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
        Err(usage(if text.is_empty() { format!("status {} of a run", status.0) } else { text.into_owned() }))
    }

    /// An internal error if a run wrote outside of a buffer.
    pub fn check_guards(&self) -> Result<()> {
        let overrun =
            |what: String| Err(Error::internal(Stage::Run, format!("a run wrote outside of {what}")));
        if !self.workspace.is_intact() {
            return overrun(format!("its workspace of {} bytes", self.workspace.bytes()));
        }
        if self.states.as_ref().is_some_and(|states| !states.block().is_intact()) {
            return overrun("its states".to_string());
        }
        for buffer in self.inputs.iter().chain(&self.outputs) {
            if buffer.data.as_ref().is_some_and(|data| !data.is_intact()) {
                return overrun(format!("`{}` of shape {:?}", buffer.name, buffer.dims));
            }
        }
        Ok(())
    }

    /// An internal error if a run wrote outside of a buffer, or kept what it had allocated.
    pub fn check_memory(&self) -> Result<()> {
        self.heap.check()?;
        self.check_guards()
    }

    /// Whether no run has written to an output, a state or the workspace.
    pub fn is_untouched(&self) -> bool {
        if self.states.as_ref().is_some_and(|states| !states.is_untouched()) {
            return false;
        }
        let mut outputs = self.outputs.iter().filter_map(|buffer| buffer.data.as_ref());
        self.workspace.is_untouched() && outputs.all(GuardedBlock::is_untouched)
    }

    /// The outputs of the last run, without states.
    pub fn given_outputs(&self) -> Result<Vec<Tensor>> {
        self.outputs.iter().map(Buffer::tensor).collect()
    }

    /// The outputs of the last run, then the states that it left.
    pub fn outputs(&self) -> Result<Vec<Tensor>> {
        let states = self.states.iter().flat_map(States::tensors);
        self.outputs.iter().map(Buffer::tensor).chain(states).collect()
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
        for (axis, &size) in tensor.shape.iter().enumerate().take(graph.input_ty(at).rank()) {
            let dim = graph.found_dim(at, axis);
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
            .ok_or_else(|| usage(without_size(graph, inputs, name, dim)))
    };
    let shape = |(at, (name, _)): (usize, &(String, _))| {
        let mut shape = graph.output_ty(at).shape.clone();
        if let Some(growth) = graph.state_of_output(at).and_then(|state| state.growth.as_ref()) {
            shape[growth.axis] = growth.next.clone();
        }
        match graph.any_rank.contains_key(&at) || shape.iter().any(|dim| graph.is_data_dim(dim)) {
            true => Ok(None),
            false => shape.iter().map(|dim| size(name, dim)).collect::<Result<Vec<usize>>>().map(Some),
        }
    };
    graph.outputs.iter().enumerate().map(shape).collect()
}

/// The error for a dim of an output whose size is unknown because the input that determines it is missing.
fn without_size(graph: &Graph, inputs: &[Option<Tensor>], output: &str, dim: &Dim) -> String {
    let text = graph.dim_words(dim);
    let is_missing = |(at, input): &(usize, &Input)| {
        inputs.get(*at).is_none_or(Option::is_none) && input.default.is_none()
    };
    match graph.inputs.iter().enumerate().find(is_missing) {
        Some((_, input)) => format!(
            "input `{}` is missing, and without it the size `{text}` of output `{output}` is not known: give --input, or \
             --size {text}=N for random numbers",
            input.name
        ),
        None => format!("output `{output}`: the inputs do not give its dim `{text}` a size"),
    }
}
