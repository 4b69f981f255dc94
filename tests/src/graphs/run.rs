//! Runs of loaded models through the C ABI, in guarded memory: every graph runs twice on each set of inputs, with buffers at
//! the other edge and another poison, and both runs must leave the same bits.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::Mutex;

use libloading::Library;
use onnxc::graph::{Tensor, borders};
use onnxc::native::{ALIGNMENT, Block, Memory, Placement};
use onnxc_runtime_support::{Model as Descriptor, Options as RunOptions, Status, abi};

/// How each of the two runs is made. As floats the poisons are a large negative number and a NaN.
const RUNS: [Memory; 2] = [
    Memory { placement: Placement::BeforeProtectedPage, poison: 0xfb },
    Memory { placement: Placement::AfterProtectedPage, poison: 0xff },
];

/// Bytes of an output, and its dims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    pub dtype: i32,
    pub dims: Vec<i64>,
    pub data: Vec<u8>,
}

/// How a run ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    Outputs(Vec<Output>),
    /// A status other than OK, the message, and whether outputs are as they were.
    Refused {
        status: i32,
        message: String,
        untouched: bool,
    },
    /// The ABI is broken; how.
    Broken(String),
}

/// The model `name` of a loaded library, on these inputs.
pub fn run(library: &Library, name: &str, inputs: &[Tensor], shapes: &[Option<Vec<usize>>]) -> Ending {
    let symbol = format!("{name}_model");
    // SAFETY: the compiler gives every symbol of this name this type, and the descriptor lives as long as the library.
    let descriptor =
        unsafe { library.get::<abi::ModelFn>(symbol.as_bytes()).ok().and_then(|model| model().as_ref()) };
    let Some(descriptor) = descriptor else { return Ending::Broken(format!("no `{symbol}`")) };
    let [first, second] = RUNS.map(|memory| run_once(descriptor, inputs, shapes, memory));
    match (first, second) {
        (Ending::Outputs(first), Ending::Outputs(second)) if first != second => {
            Ending::Broken("results depend on what the memory held".to_string())
        }
        (Ending::Broken(what), _) | (_, Ending::Broken(what)) => Ending::Broken(what),
        (first, second) if std::mem::discriminant(&first) != std::mem::discriminant(&second) => {
            Ending::Broken(format!("one run ends with {}, the other with {}", first.word(), second.word()))
        }
        (first, _) => first,
    }
}

impl Ending {
    fn word(&self) -> String {
        match self {
            Ending::Outputs(_) => "outputs".to_string(),
            Ending::Refused { status, message, .. } => format!("status {status}: {message}"),
            Ending::Broken(what) => what.clone(),
        }
    }
}

fn refused(status: i32, message: String) -> Ending {
    Ending::Refused { status, message, untouched: true }
}

/// What a run allocates.
struct Heap {
    memory: Memory,
    blocks: Mutex<HashMap<usize, Block>>,
    fault: Mutex<Option<String>>,
}

unsafe extern "C" fn allocate(heap: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: `run_once` passes a reference that outlives the run.
    let heap = unsafe { &*heap.cast::<Heap>() };
    if bytes > 1 << 30 || !alignment.is_power_of_two() || alignment > ALIGNMENT {
        return std::ptr::null_mut();
    }
    let Some(mut block) = heap.memory.block(bytes, alignment) else { return std::ptr::null_mut() };
    let address = block.as_mut_ptr();
    heap.blocks.lock().unwrap().insert(address.addr(), block);
    address.cast()
}

unsafe extern "C" fn release(heap: *mut c_void, memory: *mut c_void, bytes: usize, _alignment: usize) {
    // SAFETY: as above.
    let heap = unsafe { &*heap.cast::<Heap>() };
    let fault = match heap.blocks.lock().unwrap().remove(&memory.addr()) {
        Some(block) if block.bytes() == bytes && block.is_intact() => return,
        Some(block) => format!("a run wrote around a block of {} bytes, or gave back {bytes}", block.bytes()),
        None => format!("a run gave back {bytes} bytes that it did not have"),
    };
    heap.fault.lock().unwrap().get_or_insert(fault);
}

/// A tensor of the caller.
struct Buffer {
    data: Option<Block>,
    dtype: i32,
    dims: Vec<i64>,
}

impl Buffer {
    fn descriptor(&mut self) -> abi::Tensor {
        let bytes = self.data.as_ref().map_or(0, Block::bytes);
        let data = self.data.as_mut().filter(|_| bytes > 0);
        abi::Tensor {
            data: data.map_or(std::ptr::null_mut(), |data| data.as_mut_ptr().cast()),
            bytes,
            dtype: self.dtype,
            rank: self.dims.len() as i32,
            dims: self.dims.as_mut_ptr(),
        }
    }
}

fn run_once(
    descriptor: &Descriptor,
    inputs: &[Tensor],
    shapes: &[Option<Vec<usize>>],
    memory: Memory,
) -> Ending {
    try_run(descriptor, inputs, shapes, memory)
        .unwrap_or_else(|| Ending::Broken("there is no memory for a buffer".to_string()))
}

fn try_run(
    descriptor: &Descriptor,
    inputs: &[Tensor],
    shapes: &[Option<Vec<usize>>],
    memory: Memory,
) -> Option<Ending> {
    // SAFETY: the descriptor is what the model's function gave; likewise below.
    let (input_infos, output_infos) = unsafe { (descriptor.inputs(), descriptor.outputs()) };
    let mut given = Vec::new();
    for tensor in inputs {
        let dtype = tensor.dtype;
        let bytes = match dtype.is_packed() {
            true => borders::pack_bits(dtype, &tensor.data),
            false => tensor.data.to_vec(),
        };
        // The end is at the page, which is aligned to every element.
        let mut data = memory.block(bytes.len(), 1)?;
        data.contents_mut().copy_from_slice(&bytes);
        let dims = tensor.shape.iter().map(|&size| size as i64).collect();
        given.push(Buffer { data: Some(data), dtype: dtype.to_onnx(), dims });
    }
    let mut outputs = Vec::new();
    for (info, shape) in output_infos.iter().zip(shapes) {
        let data = match shape {
            Some(shape) => Some(memory.block(output_bytes(info.dtype, shape), 1)?),
            None => None,
        };
        let dims = match shape {
            Some(shape) => shape.iter().map(|&size| size as i64).collect(),
            None => info.dims.iter().map(|dim| dim.unwrap_or(0)).collect(),
        };
        outputs.push(Buffer { data, dtype: info.dtype, dims });
    }
    let workspace = match workspace_bytes(descriptor, &input_infos, inputs) {
        Ok(bytes) if bytes > 1 << 30 => return Some(refused(-1, format!("a workspace of {bytes} bytes"))),
        Ok(bytes) => memory.block(bytes, ALIGNMENT)?,
        Err(status) => return Some(refused(status, "no workspace for these sizes".to_string())),
    };
    Some(call(descriptor, given, outputs, workspace, memory))
}

fn call(
    descriptor: &Descriptor,
    mut inputs: Vec<Buffer>,
    mut outputs: Vec<Buffer>,
    mut workspace: Block,
    memory: Memory,
) -> Ending {
    let heap = Heap { memory, blocks: Mutex::default(), fault: Mutex::default() };
    let mut message = [0u8; 512];
    let options = RunOptions {
        message: message.as_mut_ptr().cast(),
        message_capacity: message.len(),
        allocate: Some(allocate),
        release: Some(release),
        allocator: std::ptr::from_ref(&heap).cast_mut().cast(),
        ..RunOptions::default()
    };
    let given: Vec<abi::Tensor> = inputs.iter_mut().map(Buffer::descriptor).collect();
    let mut results: Vec<abi::Tensor> = outputs.iter_mut().map(Buffer::descriptor).collect();
    let scratch = if workspace.bytes() == 0 { std::ptr::null_mut() } else { workspace.as_mut_ptr().cast() };
    let before: Vec<Vec<u8>> =
        inputs.iter().map(|input| input.data.as_ref().map_or(vec![], |d| d.contents().to_vec())).collect();
    // SAFETY: all descriptors point to live buffers of their length, which do not overlap.
    let status = unsafe {
        (descriptor.run())(
            given.as_ptr(),
            given.len(),
            results.as_mut_ptr(),
            results.len(),
            scratch,
            workspace.bytes(),
            &options,
        )
    };
    for (buffer, tensor) in outputs.iter_mut().zip(&results).filter(|(buffer, _)| buffer.data.is_none()) {
        buffer.data = heap.blocks.lock().unwrap().remove(&tensor.data.addr());
    }
    if let Some(fault) = heap.fault.lock().unwrap().take() {
        return Ending::Broken(fault);
    }
    if !heap.blocks.lock().unwrap().is_empty() {
        return Ending::Broken("a run kept a block".to_string());
    }
    let changed = |(input, before): (&Buffer, &Vec<u8>)| {
        input.data.as_ref().is_some_and(|data| data.contents() != before)
    };
    if inputs.iter().zip(&before).any(changed) {
        return Ending::Broken("a run wrote to an input".to_string());
    }
    let around = inputs.iter().chain(&outputs).filter_map(|buffer| buffer.data.as_ref());
    if !around.chain([&workspace]).all(Block::is_intact) {
        return Ending::Broken("a run wrote around a buffer".to_string());
    }
    if status != Status::OK {
        let untouched = outputs.iter().filter_map(|output| output.data.as_ref()).all(Block::is_untouched);
        return Ending::Refused { status: status.0, message: text(&message), untouched };
    }
    let result = |buffer: &Buffer| {
        let shape: Option<Vec<usize>> = buffer.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
        let bytes = output_bytes(buffer.dtype, &shape?);
        let data = buffer.data.as_ref().map_or(&[][..], Block::contents);
        (bytes <= data.len()).then(|| Output {
            dtype: buffer.dtype,
            dims: buffer.dims.clone(),
            data: data[..bytes].to_vec(),
        })
    };
    match outputs.iter().map(result).collect::<Option<Vec<Output>>>() {
        Some(outputs) => Ending::Outputs(outputs),
        None => Ending::Broken("an output came back with sizes that its bytes do not hold".to_string()),
    }
}

fn text(message: &[u8]) -> String {
    CStr::from_bytes_until_nul(message).unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes of an output of this shape, packed as the ABI has them.
fn output_bytes(dtype: i32, shape: &[usize]) -> usize {
    let bits = onnxc::graph::DType::from_onnx(dtype).map_or(0, |dtype| dtype.bits() as usize);
    let bits = shape.iter().try_fold(bits, |product, &size| product.checked_mul(size));
    bits.map_or(usize::MAX >> 1, |bits| bits.div_ceil(8))
}

/// Bytes of workspace for inputs of these shapes: the first input that has a symbol as its dim decides it. Else the
/// status.
fn workspace_bytes(
    descriptor: &Descriptor,
    infos: &[abi::ValueInfo],
    inputs: &[Tensor],
) -> Result<usize, i32> {
    let mut symbols = vec![-1i64; descriptor.symbol_count as usize];
    for (info, tensor) in infos.iter().zip(inputs) {
        for (symbol, &size) in info.symbols.iter().zip(&tensor.shape) {
            if let Some(symbol) = symbol
                && symbols[*symbol] < 0
            {
                symbols[*symbol] = size as i64;
            }
        }
    }
    // SAFETY: the function reads `symbol_count` values.
    let bytes = unsafe { descriptor.workspace()(symbols.as_ptr(), symbols.len()) };
    usize::try_from(bytes).map_err(|_| -bytes as i32)
}
