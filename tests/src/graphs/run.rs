//! Runs of loaded models through the C ABI, in guarded memory: every graph runs twice on each set of inputs, with buffers at
//! the other edge and another poison, and both runs must leave the same bits.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::Mutex;

use onnxc::native::{ALIGNMENT, GuardedBlock, Memory, Model, Models, Placement};
use onnxc_ir::borders;
use onnxc_ir::graph::{DType, Tensor};
use onnxc_runtime_support::{Options as RunOptions, Status, abi};

/// How each of the two runs is made. As floats the poisons are a large negative number and a NaN.
const RUNS: [Memory; 2] = [
    Memory { placement: Placement::BeforeProtectedPage, poison: 0xfb },
    Memory { placement: Placement::AfterProtectedPage, poison: 0xff },
];

/// An output: its bytes as the ABI has them, of a text its length as u32 and its bytes, and its dims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Output {
    pub dtype: i32,
    pub dims: Vec<i64>,
    pub data: Vec<u8>,
}

impl Output {
    pub(super) fn of(tensor: &Tensor) -> Output {
        let dims = tensor.shape.iter().map(|&size| size as i64).collect();
        let data = match tensor.dtype {
            DType::Str => framed(tensor.texts().iter().map(|text| &text[..])),
            dtype if dtype.is_packed() => borders::pack_bits(dtype, &tensor.data),
            _ => tensor.data.to_vec(),
        };
        Output { dtype: tensor.dtype.to_onnx(), dims, data }
    }
}

/// Texts, each behind its length.
fn framed<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<u8> {
    texts.flat_map(|text| (text.len() as u32).to_le_bytes().into_iter().chain(text.iter().copied())).collect()
}

/// How a run ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ending {
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
pub(super) fn run(library: &Models, name: &str, inputs: &[Tensor], shapes: &[Option<Vec<usize>>]) -> Ending {
    let model = match library.get(name) {
        Ok(model) => model,
        Err(error) => return Ending::Broken(error.to_string()),
    };
    let [first, second] = RUNS.map(|memory| run_once(model, inputs, shapes, memory));
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
    blocks: Mutex<HashMap<usize, GuardedBlock>>,
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
    data: Option<GuardedBlock>,
    /// What the elements of an input of strings refer to.
    texts: Option<GuardedBlock>,
    dtype: i32,
    dims: Vec<i64>,
}

impl Buffer {
    fn input(tensor: &Tensor, memory: Memory) -> Option<Buffer> {
        let (dtype, mut texts) = (tensor.dtype, None);
        let bytes = match dtype {
            DType::Str => views(tensor, texts.insert(memory.block(text_bytes(tensor), 1)?)),
            dtype if dtype.is_packed() => borders::pack_bits(dtype, &tensor.data),
            _ => tensor.data.to_vec(),
        };
        // The end is at the page, which is aligned to every element.
        let mut data = memory.block(bytes.len(), 1)?;
        data.contents_mut().copy_from_slice(&bytes);
        let dims = tensor.shape.iter().map(|&size| size as i64).collect();
        Some(Buffer { data: Some(data), texts, dtype: dtype.to_onnx(), dims })
    }

    fn output(info: &abi::ValueInfo, shape: Option<&[usize]>, memory: Memory) -> Option<Buffer> {
        let dims = match shape {
            Some(shape) => shape.iter().map(|&size| size as i64).collect(),
            None => info.dims.iter().map(|dim| dim.unwrap_or(0)).collect(),
        };
        // Only the run knows the size of texts.
        let sized = shape.filter(|_| info.dtype != DType::Str.to_onnx());
        let data = match sized {
            Some(shape) => Some(memory.block(output_bytes(info.dtype, shape), 1)?),
            None => None,
        };
        Some(Buffer { data, texts: None, dtype: info.dtype, dims })
    }

    fn blocks(&self) -> impl Iterator<Item = &GuardedBlock> {
        self.data.iter().chain(&self.texts)
    }

    /// What a run left; `None` where the sizes and the bytes do not agree.
    fn result(&self) -> Option<Output> {
        let shape: Option<Vec<usize>> = self.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
        let bytes = output_bytes(self.dtype, &shape?);
        let data = self.data.as_ref().map_or(&[][..], GuardedBlock::contents);
        let own = data.get(..bytes)?;
        let data = match self.dtype == DType::Str.to_onnx() {
            true => framed(
                own.chunks_exact(16).map(|view| text_of(view, data)).collect::<Option<Vec<_>>>()?.into_iter(),
            ),
            false => own.to_vec(),
        };
        Some(Output { dtype: self.dtype, dims: self.dims.clone(), data })
    }

    fn descriptor(&mut self) -> abi::Tensor {
        let bytes = self.data.as_ref().map_or(0, GuardedBlock::bytes);
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

fn text_bytes(tensor: &Tensor) -> usize {
    tensor.texts().iter().map(|text| text.len()).sum()
}

/// The texts of a tensor put into `block`; gives the address and the length of each.
fn views(tensor: &Tensor, block: &mut GuardedBlock) -> Vec<u8> {
    let (mut views, mut at, first) = (Vec::new(), 0, block.as_mut_ptr().addr());
    for text in tensor.texts() {
        block.contents_mut()[at..][..text.len()].copy_from_slice(&text);
        views.extend([first + at, text.len()].map(usize::to_ne_bytes).as_flattened());
        at += text.len();
    }
    views
}

/// The text that an element of an output refers to, which lies in the output's block.
fn text_of<'b>(view: &[u8], block: &'b [u8]) -> Option<&'b [u8]> {
    let number = |at: usize| Some(usize::from_ne_bytes(view.get(at..at + 8)?.try_into().ok()?));
    let (address, length) = (number(0)?, number(8)?);
    if length == 0 {
        return Some(&[]);
    }
    let first = address.checked_sub(block.as_ptr().addr())?;
    block.get(first..first.checked_add(length)?)
}

fn run_once(model: Model<'_>, inputs: &[Tensor], shapes: &[Option<Vec<usize>>], memory: Memory) -> Ending {
    try_run(model, inputs, shapes, memory)
        .unwrap_or_else(|| Ending::Broken("there is no memory for a buffer".to_string()))
}

fn try_run(
    model: Model<'_>,
    inputs: &[Tensor],
    shapes: &[Option<Vec<usize>>],
    memory: Memory,
) -> Option<Ending> {
    let given = inputs.iter().map(|tensor| Buffer::input(tensor, memory)).collect::<Option<Vec<_>>>()?;
    let outputs = model.outputs();
    let outputs =
        outputs.iter().zip(shapes).map(|(info, shape)| Buffer::output(info, shape.as_deref(), memory));
    let outputs = outputs.collect::<Option<Vec<_>>>()?;
    let workspace = match workspace_bytes(model, inputs) {
        Ok(bytes) if bytes > 1 << 30 => return Some(refused(-1, format!("a workspace of {bytes} bytes"))),
        Ok(bytes) => memory.block(bytes, ALIGNMENT)?,
        Err(status) => return Some(refused(status, "no workspace for these sizes".to_string())),
    };
    Some(call(model, given, outputs, workspace, memory))
}

fn call(
    model: Model<'_>,
    mut inputs: Vec<Buffer>,
    mut outputs: Vec<Buffer>,
    mut workspace: GuardedBlock,
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
    let contents = |inputs: &[Buffer]| -> Vec<Vec<u8>> {
        inputs.iter().flat_map(Buffer::blocks).map(|block| block.contents().to_vec()).collect()
    };
    let before = contents(&inputs);
    // SAFETY: all descriptors point to live buffers of their length, which do not overlap.
    let status = unsafe {
        model.run_function()(
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
    for (buffer, tensor) in outputs.iter_mut().zip(&results) {
        // Fewer where the run decides the rank.
        buffer.dims.truncate(usize::try_from(tensor.rank).unwrap_or(0));
    }
    if let Some(fault) = heap.fault.lock().unwrap().take() {
        return Ending::Broken(fault);
    }
    if !heap.blocks.lock().unwrap().is_empty() {
        return Ending::Broken("a run kept a block".to_string());
    }
    if contents(&inputs) != before {
        return Ending::Broken("a run wrote to an input".to_string());
    }
    let mut around = inputs.iter().chain(&outputs).flat_map(Buffer::blocks);
    if !around.all(GuardedBlock::is_intact) || !workspace.is_intact() {
        return Ending::Broken("a run wrote around a buffer".to_string());
    }
    if status != Status::OK {
        let untouched =
            outputs.iter().filter_map(|output| output.data.as_ref()).all(GuardedBlock::is_untouched);
        return Ending::Refused { status: status.0, message: text(&message), untouched };
    }
    match outputs.iter().map(Buffer::result).collect::<Option<Vec<Output>>>() {
        Some(outputs) => Ending::Outputs(outputs),
        None => Ending::Broken("an output came back with sizes that its bytes do not hold".to_string()),
    }
}

fn text(message: &[u8]) -> String {
    CStr::from_bytes_until_nul(message).unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes of an output of this shape, packed as the ABI has them.
fn output_bytes(dtype: i32, shape: &[usize]) -> usize {
    let bits = onnxc_ir::graph::DType::from_onnx(dtype).map_or(0, |dtype| dtype.bits() as usize);
    let bits = shape.iter().try_fold(bits, |product, &size| product.checked_mul(size));
    bits.map_or(usize::MAX >> 1, |bits| bits.div_ceil(8))
}

/// Bytes of workspace for inputs of these shapes: the first input that has a symbol as its dim decides it. Else the
/// status.
fn workspace_bytes(model: Model<'_>, inputs: &[Tensor]) -> Result<usize, i32> {
    let mut symbols = vec![-1i64; model.symbols().len()];
    for (info, tensor) in model.inputs().iter().zip(inputs) {
        for (symbol, &size) in info.symbols.iter().zip(&tensor.shape) {
            if let Some(symbol) = symbol
                && symbols[*symbol] < 0
            {
                symbols[*symbol] = size as i64;
            }
        }
    }
    // SAFETY: the function reads one value per symbol.
    let bytes = unsafe { model.workspace_function()(symbols.as_ptr(), symbols.len()) };
    usize::try_from(bytes).map_err(|_| -bytes as i32)
}
