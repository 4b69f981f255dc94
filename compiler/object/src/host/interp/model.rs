//! Whole models in the interpreter, called as the C ABI has it. Somebody else runs the kernels: the interpreter of the loop IR,
//! or their machine code in this process (`native::kernel`).

use std::collections::BTreeMap;

use cranelift_entity::EntityRef;

use crate::host::abi::{options, status, tensor};
use crate::host::block::{SPARE, StateTensor};
use crate::host::interp::{HostRun, KernelCall, Memory};
use crate::host::ir::{FunctionKind, KernelId, Program, Type};
use crate::host::lower::layout::bound_symbols;
use crate::host::lower::state::StateLayout;
use crate::host::lower::{KernelUse, Lowered};
use onnxc_backend::codegen::kernels::KernelCode;
use onnxc_ir::borders::{stored, unstored};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Graph, State, Sym, Tensor, TensorType};
use onnxc_loops::Kernel;
use onnxc_loops::lower::explain::REPORT_WORDS;
use onnxc_machine::target::Core;
use onnxc_schedule::ALIGN;

/// Runs version number `.1` of a kernel on its buffers, given the words of the sizes and its range; gives its code.
pub type RunKernel<'k> = &'k dyn Fn((KernelId, usize), &mut [Vec<u8>], &[i64], (i64, i64)) -> Result<i32>;

/// A model that can be interpreted.
pub struct Model<'g> {
    graph: &'g Graph,
    pub program: Program,
    weights: Vec<u8>,
    kernels: Vec<KernelUse<'g>>,
}

impl KernelUse<'_> {
    /// Bytes of the kernel's buffers.
    fn buffers(&self) -> Vec<Dim> {
        if self.explains.is_some() {
            let inputs = self.group.inputs.iter().map(|&value| self.graph.ty(value).bytes());
            return inputs.chain([Dim::from(8 * REPORT_WORDS)]).collect();
        }
        let values = self.group.inputs.iter().chain(&self.group.outputs);
        let scratch = self.group.scratch_buffers(self.graph);
        values.map(|&value| self.graph.ty(value).bytes()).chain(scratch).collect()
    }
}

/// A caller's tensor. Addresses are the interpreter's.
#[derive(Clone, Debug)]
pub struct Given {
    pub data: u64,
    pub bytes: u64,
    pub dtype: i32,
    pub rank: i32,
    pub dims: u64,
}

/// What `run` is called with, to be changed before it is.
pub struct Arguments {
    pub memory: Memory,
    pub inputs: Vec<Given>,
    pub outputs: Vec<Given>,
    /// Whether the arrays of inputs and outputs are passed.
    pub arrays: [bool; 2],
    pub counts: [i64; 2],
    /// Values of the model's symbols.
    symbols: Vec<i64>,
    pub workspace: u64,
    pub workspace_bytes: i64,
    /// The fields of `onnxc_options` by their offsets; `None` for a caller without options.
    pub options: Option<BTreeMap<i64, i64>>,
    /// How many allocations are granted.
    pub grants: usize,
    /// The levels that the processor is good for, a bit each.
    pub levels: i64,
}

impl Arguments {
    /// Traces the run.
    pub fn trace(&mut self) {
        if let Some(fields) = &mut self.options {
            fields.insert(options::TRACE, CALLBACK);
        }
    }

    /// Gives the run a function that shares the range of a kernel.
    pub fn share_kernels(&mut self) {
        if let Some(fields) = &mut self.options {
            fields.insert(options::PARALLEL_FOR, CALLBACK);
        }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub status: i32,
    pub message: String,
    /// Of a run that succeeded.
    pub outputs: Vec<Tensor>,
    pub steps_done: Vec<i64>,
    /// Events of `onnxc_event` with their numbers, of a run that is traced.
    pub events: Vec<(i64, i64)>,
}

const MESSAGE_BYTES: usize = 512;

/// Anything but null: the interpreter calls no address.
const CALLBACK: i64 = 1;

fn internal(text: String) -> Error {
    Error::internal(Stage::Run, text)
}

impl<'g> Model<'g> {
    /// `weights` are the contents of the model's constants, little-endian.
    pub fn new(graph: &'g Graph, lowered: Lowered<'g>, weights: Vec<u8>) -> Model<'g> {
        Model { graph, program: lowered.program, weights, kernels: lowered.kernels }
    }

    /// The loop nest of a kernel.
    pub fn nest(&self, kernel: KernelId, core: &Core) -> Result<Kernel> {
        self.kernels[kernel.index()].nest(&kernel.to_string(), core)
    }

    /// The code of a kernel, and how many buffers it has.
    pub fn code(&self, kernel: KernelId) -> (&'g KernelCode, usize) {
        let used = &self.kernels[kernel.index()];
        (used.code, used.buffers().len())
    }

    /// Values of the symbols for these inputs and states; -1 for those that nothing decides.
    fn symbols(&self, inputs: &[Option<Tensor>]) -> Vec<i64> {
        let mut symbols = BTreeMap::new();
        for (at, tensor) in inputs.iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            for (dim, &size) in self.graph.found_shape(at).iter().zip(&tensor.shape) {
                if let Some(sym) = dim.as_sym() {
                    symbols.entry(sym).or_insert(size as i64);
                }
            }
        }
        for growth in self.graph.states.iter().filter_map(|state| state.growth.as_ref()) {
            symbols.entry(growth.size).or_insert(0);
            if let Some(capacity) = growth.capacity.as_sym() {
                let next = growth.next.eval(&|sym| symbols.get(&sym).copied());
                symbols.entry(capacity).or_insert(next.unwrap_or(0) + SPARE as i64);
            }
        }
        bound_symbols(self.graph).iter().map(|sym| symbols.get(sym).copied().unwrap_or(-1)).collect()
    }

    /// The state block of a run that finds these tensors (`None`: nothing, or zeros).
    fn block(&self, found: &[Option<Tensor>], symbols: &[i64]) -> Result<Vec<u8>> {
        let mut nothing = |_: &mut Memory, _: &KernelCall<'_>| Ok(0);
        let mut machine = HostRun::new(&self.program, Memory::default(), vec![], &mut nothing);
        let count = symbols.len() as i64;
        let array = machine.memory.with(symbols.iter().flat_map(|dim| dim.to_le_bytes()).collect());
        let bytes = machine.call(FunctionKind::StateBytes, &[array as i64, count])?;
        let Ok(length) = usize::try_from(bytes) else {
            return Err(internal(format!("no state: status {}", -bytes)));
        };
        let block = machine.memory.block(length);
        let status = machine.call(FunctionKind::StateReset, &[block as i64, bytes, array as i64, count])?;
        if status != i64::from(status::OK) {
            return Err(internal(format!("the state cannot be reset: status {status}")));
        }
        let mut contents = machine.memory.read(block, length).map_err(internal)?.to_vec();
        for (state, tensor) in self.state_tensors(symbols)?.iter().zip(found) {
            if let Some(tensor) = tensor {
                state.put(tensor, &mut contents)?;
            }
        }
        Ok(contents)
    }

    fn state_tensors(&self, symbols: &[i64]) -> Result<Vec<StateTensor>> {
        let graph = self.graph;
        let Some(layout) = StateLayout::new(graph) else { return Ok(vec![]) };
        let number = |sym: Sym| layout.symbols.iter().position(|&own| own == sym);
        let size = |dim: &Dim| {
            let value = dim.eval(&|sym| symbols.get(number(sym)?).copied());
            value.and_then(|value| usize::try_from(value).ok())
        };
        let tensor = |(at, state): (usize, &State)| {
            let dims = state.ty.shape.iter().map(size).collect::<Option<Vec<usize>>>();
            let (Some(dims), Some(offset)) = (dims, size(&layout.offsets[at])) else {
                return Err(internal(format!("state {at} has no sizes")));
            };
            let growth = state.growth.as_ref();
            Ok(StateTensor {
                name: graph.inputs[graph.given_inputs() + at].name.clone(),
                dtype: state.ty.dtype,
                dims,
                growth: growth.and_then(|growth| Some((growth.axis, 1 + number(growth.size)?))),
                panels: state.panels.as_ref().map(|panels| (panels.axis, panels.width)),
                offset,
            })
        };
        graph.states.iter().enumerate().map(tensor).collect()
    }

    /// Bytes of workspace for the sizes of these inputs, by the program's own function; minus a status without.
    pub fn workspace(&self, inputs: &[Option<Tensor>]) -> Result<i64> {
        let dims = self.symbols(inputs);
        let mut nothing = |_: &mut Memory, _: &KernelCall<'_>| Ok(0);
        let mut machine = HostRun::new(&self.program, Memory::default(), vec![], &mut nothing);
        let count = dims.len() as i64;
        let array = machine.memory.with(dims.iter().flat_map(|dim| dim.to_le_bytes()).collect());
        machine.call(FunctionKind::Workspace, &[array as i64, count])
    }

    /// The arguments of a run on these inputs (`None`: the input's default) with outputs of these shapes, or such that the
    /// run allocates them; with an allocator and a buffer for the message, on one thread.
    pub fn arguments(&self, inputs: &[Option<Tensor>], shapes: &[Option<Vec<usize>>]) -> Result<Arguments> {
        let mut memory = Memory::default();
        let workspace_bytes = self.workspace(inputs)?;
        if workspace_bytes < 0 {
            return Err(internal(format!("no workspace: status {}", -workspace_bytes)));
        }
        let workspace = memory.block(workspace_bytes as usize);
        let descriptor = |memory: &mut Memory, ty: &TensorType, dims: &[usize], data: u64, bytes: usize| {
            let dims = memory.with(dims.iter().flat_map(|&dim| (dim as i64).to_le_bytes()).collect());
            let (dtype, rank) = (ty.dtype.to_onnx(), ty.rank() as i32);
            Given { data, bytes: bytes as u64, dtype, rank, dims }
        };
        let (given, found) = inputs.split_at(self.graph.given_inputs());
        let symbols = self.symbols(inputs);
        let state = match found.is_empty() {
            true => None,
            false => Some(self.block(found, &symbols)?),
        };
        let given_inputs = given.iter().enumerate().map(|(at, input)| {
            let ty = self.graph.input_ty(at);
            match input {
                Some(input) => {
                    let bytes = given_bytes(&mut memory, input);
                    let (length, data) = (bytes.len(), memory.constant(bytes));
                    descriptor(&mut memory, ty, &input.shape, data, length)
                }
                None => descriptor(&mut memory, ty, &vec![0; ty.rank()], 0, 0),
            }
        });
        let mut given_inputs: Vec<Given> = given_inputs.collect();
        if let Some(contents) = state {
            let length = contents.len();
            let data = memory.with(contents);
            let ty = TensorType::new(DType::U8, vec![Dim::from(length)]);
            given_inputs.push(descriptor(&mut memory, &ty, &[length], data, length));
        }
        let given_outputs = shapes.iter().take(self.graph.given_outputs()).enumerate().map(|(at, shape)| {
            let ty = self.graph.output_ty(at);
            let static_dims = || ty.shape.iter().map(|dim| dim.as_const().unwrap_or(0) as usize);
            match shape {
                Some(shape) if ty.dtype != DType::Str => {
                    let bytes = data_bytes(ty.dtype, shape);
                    let data = memory.block(bytes);
                    // One whose rank the run decides has room for the highest.
                    let behind = vec![1; ty.rank().saturating_sub(shape.len())];
                    descriptor(&mut memory, ty, &[shape.as_slice(), &behind].concat(), data, bytes)
                }
                // What texts need shows in the run.
                _ => descriptor(&mut memory, ty, &static_dims().collect::<Vec<_>>(), 0, 0),
            }
        });
        let outputs: Vec<Given> = given_outputs.collect();
        let counts = [given_inputs.len() as i64, outputs.len() as i64];
        let message = memory.with(vec![0; MESSAGE_BYTES]);
        let fields = BTreeMap::from([
            (options::STRUCT_SIZE, options::SIZE),
            (options::ALLOCATE, CALLBACK),
            (options::RELEASE, CALLBACK),
            (options::MESSAGE, message as i64),
            (options::MESSAGE_CAPACITY, MESSAGE_BYTES as i64),
        ]);
        Ok(Arguments {
            memory,
            inputs: given_inputs,
            outputs,
            arrays: [true; 2],
            counts,
            symbols,
            workspace,
            workspace_bytes,
            options: Some(fields),
            grants: usize::MAX,
            levels: 1,
        })
    }

    /// Calls `run`. An error is a fault of the program: memory that is none, blocks that are kept.
    pub fn call(&self, arguments: Arguments, run: RunKernel<'_>) -> Result<Outcome> {
        let Arguments { mut memory, inputs, outputs, arrays, counts, options: fields, .. } = arguments;
        let message = fields.as_ref().and_then(|fields| fields.get(&options::MESSAGE)).copied();
        let mut arguments_of = |given: &[Given]| {
            let record = |given: &Given| {
                let mut bytes = vec![0; tensor::SIZE as usize];
                let mut put =
                    |at: i64, field: &[u8]| bytes[at as usize..][..field.len()].copy_from_slice(field);
                put(tensor::DATA, &given.data.to_le_bytes());
                put(tensor::BYTES, &given.bytes.to_le_bytes());
                put(tensor::DTYPE, &given.dtype.to_le_bytes());
                put(tensor::RANK, &given.rank.to_le_bytes());
                put(tensor::DIMS, &given.dims.to_le_bytes());
                bytes
            };
            memory.with(given.iter().flat_map(record).collect())
        };
        let tensors = [arguments_of(&inputs), arguments_of(&outputs)];
        let given_options = fields.map_or(0, |fields| {
            let mut bytes = vec![0; options::SIZE as usize];
            for (at, value) in fields {
                bytes[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
            memory.with(bytes)
        });
        let mut execute = |memory: &mut Memory, call: &KernelCall<'_>| self.kernel(memory, call, run);
        let mut machine = HostRun::new(&self.program, memory, self.weights.clone(), &mut execute);
        (machine.grants, machine.levels) = (arguments.grants, arguments.levels);
        let array = |at: usize| if arrays[at] { tensors[at] as i64 } else { 0 };
        let parameters = [
            array(0),
            counts[0],
            array(1),
            counts[1],
            arguments.workspace as i64,
            arguments.workspace_bytes,
            given_options as i64,
        ];
        let status = machine.call(FunctionKind::Run, &parameters)? as i32;
        let mut results = vec![];
        if status == status::OK {
            for at in 0..outputs.len() {
                results.push(self.output(&mut machine, tensors[1] + at as u64 * tensor::SIZE as u64, at)?);
            }
        }
        if status == status::OK
            && let Some(block) = inputs.get(self.graph.given_inputs())
        {
            let contents = machine.memory.read(block.data, block.bytes as usize).map_err(internal)?;
            for state in self.state_tensors(&arguments.symbols)? {
                results.push(state.tensor(contents)?);
            }
        }
        let kept: usize = machine.blocks.values().sum();
        if kept > 0 {
            return Err(internal(format!("a run kept {kept} bytes")));
        }
        let message = match message {
            Some(message) if message != 0 => {
                let bytes = machine.memory.read(message as u64, MESSAGE_BYTES).map_err(internal)?;
                let text: Vec<u8> = bytes.iter().copied().take_while(|&byte| byte != 0).collect();
                String::from_utf8_lossy(&text).into_owned()
            }
            _ => String::new(),
        };
        let (steps_done, events) =
            (std::mem::take(&mut machine.steps_done), std::mem::take(&mut machine.events));
        Ok(Outcome { status, message, outputs: results, steps_done, events })
    }

    /// An output as the run left it; a block that the run allocated for it is given back.
    fn output(&self, machine: &mut HostRun<'_, '_>, at: u64, number: usize) -> Result<Tensor> {
        let ty = self.graph.output_ty(number);
        let word = |machine: &HostRun<'_, '_>, at: u64| machine.memory.load(Type::I64, at).map_err(internal);
        let (data, dims) = (
            word(machine, at + tensor::DATA as u64)? as u64,
            word(machine, at + tensor::DIMS as u64)? as u64,
        );
        let rank = machine.memory.load(Type::I32, at + tensor::RANK as u64).map_err(internal)?;
        if self.graph.any_rank.get(&number).map_or(ty.rank(), |own| own.least) as i64 > rank
            || rank > ty.rank() as i64
        {
            return Err(internal(format!("output {number} of type {ty} came back with rank {rank}")));
        }
        let mut shape = vec![];
        for axis in 0..rank as u64 {
            shape.push(word(machine, dims + 8 * axis)? as usize);
        }
        let length = match ty.dtype {
            DType::Str => word(machine, at + tensor::BYTES as u64)? as usize,
            dtype => data_bytes(dtype, &shape),
        };
        let bytes = machine.memory.read(data, length).map_err(internal)?.to_vec();
        machine.blocks.remove(&data);
        Ok(unstored(ty.dtype, shape, &bytes.into()))
    }

    /// Copies a kernel's buffers out of memory and what it has written back.
    fn kernel(
        &self,
        memory: &mut Memory,
        call: &KernelCall<'_>,
        run: RunKernel<'_>,
    ) -> std::result::Result<i32, String> {
        let kernel = &self.kernels[call.kernel.index()];
        let words = memory.read(call.sizes, 8 * self.program.sizes.len())?;
        let words: Vec<i64> = words.as_chunks::<8>().0.iter().map(|&word| i64::from_le_bytes(word)).collect();
        let symbol = |sym: Sym| words.get(sym.index()).copied();
        let mut buffers = vec![];
        for (dim, &address) in kernel.buffers().iter().zip(call.buffers) {
            let bytes = dim.eval(&symbol).and_then(|bytes| usize::try_from(bytes).ok());
            let bytes = bytes.ok_or_else(|| format!("the size {dim} of a buffer is not known"))?;
            buffers.push(memory.read(address, bytes)?.to_vec());
        }
        let code = run((call.kernel, call.version), &mut buffers, &words, call.range);
        let code = code.map_err(|error| error.to_string())?;
        for (buffer, &address) in buffers.iter().zip(call.buffers).skip(kernel.group.inputs.len()) {
            memory.write(address, buffer)?;
        }
        Ok(code)
    }
}

/// An input as its caller has it.
fn given_bytes(memory: &mut Memory, input: &Tensor) -> Vec<u8> {
    if input.dtype != DType::Str {
        return stored(input).data.to_vec();
    }
    let mut view = |text: bytes::Bytes| {
        let length = text.len() as u64;
        [memory.constant(text.to_vec()), length].map(u64::to_le_bytes).concat()
    };
    input.texts().into_iter().flat_map(&mut view).collect()
}

fn data_bytes(dtype: DType, shape: &[usize]) -> usize {
    (shape.iter().product::<usize>() * dtype.bits() as usize).div_ceil(8)
}

const _: () = assert!(ALIGN == 64, "blocks of the interpreter lie at multiples of 64");
