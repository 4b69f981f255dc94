//! Calls of functions of the user's own, where they are in this process: the same records that compiled models make.

use std::ffi::c_void;

use bytes::Bytes;
use onnxc_runtime_support::Options;

use super::{Symbols, internal, movement};
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::external::{Address, Described, Role, layout};
use crate::graph::{Dim, External, Tensor, TensorType};

/// The results of a call.
pub fn call(external: &External, inputs: &[&Tensor], symbols: &Symbols) -> Result<Vec<Tensor>> {
    let Some(Address(address)) = external.address else {
        let message = format!(
            "the function `{}` is not in this process: --custom-library FILE names the shared library that has it",
            external.symbol
        );
        return Err(Error::new(Stage::Run, Kind::Usage, message));
    };
    let known = |dim: &Dim| match dim.eval(&|sym| symbols[sym]) {
        Some(size) => Ok(Dim::from(size)),
        None => internal(format!("a call of {} with a size {dim} that is unknown", external.symbol)),
    };
    let typed = |ty: &TensorType| {
        Ok(TensorType::new(ty.dtype, ty.shape.iter().map(known).collect::<Result<Vec<Dim>>>()?))
    };
    let external = External {
        operands: external
            .operands
            .iter()
            .map(|ty| ty.as_ref().map(typed).transpose())
            .collect::<Result<_>>()?,
        results: external.results.iter().map(typed).collect::<Result<_>>()?,
        scratch: known(&external.scratch)?,
        ..external.clone()
    };
    let types: Vec<TensorType> = inputs
        .iter()
        .map(|input| TensorType::new(input.dtype, input.shape.iter().map(|&size| Dim::from(size)).collect()))
        .collect();
    let types: Vec<&TensorType> = types.iter().collect();
    let zeros = |ty: &TensorType| -> Result<Buffer> {
        let shape = ty.static_shape().unwrap_or_default();
        Ok(Buffer::of(&movement::zeroed(ty.dtype, &shape)?))
    };
    let mut given: Vec<Buffer> = inputs.iter().map(|input| Buffer::of(&input.data)).collect();
    let all = external.infer(&types)?;
    let mut made = all.iter().map(zeros).collect::<Result<Vec<Buffer>>>()?;
    let status = invoke(address, &external, &types, &mut given, &mut made);
    if status != 0 {
        let message = format!("{} gave status {status}", external.symbol);
        return Err(Error::new(Stage::Run, Kind::Usage, message));
    }
    let tensor = |(ty, buffer): (&TensorType, Buffer)| {
        Tensor::new(ty.dtype, ty.static_shape().unwrap_or_default(), buffer.content())
    };
    Ok(all.iter().zip(made).map(tensor).collect())
}

/// Memory aligned as that of runs is, in words.
struct Buffer {
    words: Vec<u64>,
    /// The word that it begins at.
    first: usize,
    bytes: usize,
}

impl Buffer {
    fn of(bytes: &[u8]) -> Buffer {
        const LINE: usize = layout::ALIGNMENT / 8;
        let mut words: Vec<u64> = vec![0; bytes.len().div_ceil(8) + LINE];
        let first = words.as_ptr().align_offset(layout::ALIGNMENT) % LINE;
        for (word, bytes) in words[first..].iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        Buffer { words, first, bytes: bytes.len() }
    }

    fn address(&mut self) -> i64 {
        self.words[self.first..].as_mut_ptr() as i64
    }

    fn word(&mut self, offset: i64) -> &mut u64 {
        &mut self.words[self.first + offset as usize / 8]
    }

    /// The bytes where they are: others may have their addresses.
    fn content(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: words have no other bytes than these, and there are enough behind the first.
        unsafe { std::slice::from_raw_parts(self.words[self.first..].as_ptr().cast(), self.bytes) }
    }
}

/// Writes the record, which is the last of `made`, and calls the function with it.
fn invoke(
    address: usize,
    external: &External,
    types: &[&TensorType],
    given: &mut [Buffer],
    made: &mut [Buffer],
) -> i32 {
    let record = external.record(types);
    let Some((memory, made)) = made.split_last_mut() else { return 0 };
    let base = memory.address();
    let options = Options::default();
    let is_shapes = external.role == Role::Shapes;
    let sizes = made.first_mut().map_or(0, Buffer::address);
    let scratch = made.last_mut().filter(|_| !is_shapes);
    let (operands, first) = (external.given(), record.operands);
    let fields = [
        (layout::STRUCT_SIZE, layout::OP_BYTES),
        (layout::INPUTS, base + record.tensor(0)),
        (layout::INPUT_COUNT, external.operands.len() as i64),
        (layout::OUTPUTS, base + record.tensor(first)),
        (layout::OUTPUT_COUNT, external.results.len() as i64),
        (layout::SCRATCH, scratch.map_or(0, Buffer::address)),
        (layout::SCRATCH_BYTES, external.scratch.as_const().unwrap_or(0)),
        (layout::OPTIONS, &raw const options as i64),
        (layout::ATTRIBUTES, given[operands].address()),
        (layout::TEXTS, given[operands + 1].address()),
    ];
    let mut set = |at: i64, value: i64| *memory.word(at) = value as u64;
    fields.into_iter().for_each(|(at, value)| set(at, value));
    let mut open = 0;
    for (at, tensor) in record.tensors.iter().enumerate() {
        let (descriptor, mut dims) = (record.tensor(at), base + record.dims(at));
        let Some(ty) = tensor.ty() else { continue };
        let data = match *tensor {
            Described::Input(at, _) => given[at].address(),
            Described::Result(at, _) if !is_shapes => made[at].address(),
            _ => 0,
        };
        if let (Described::Result(..), true) = (tensor, is_shapes) {
            dims = sizes + 8 * open;
        }
        let bytes = if is_shapes && data == 0 { 0 } else { ty.bytes().as_const().unwrap_or(0) };
        set(descriptor + layout::DATA, data);
        set(descriptor + layout::BYTES, bytes);
        let (dtype, rank) = (i64::from(ty.dtype.to_onnx()), ty.rank() as i64);
        // Two numbers of 4 bytes; the host decides which is in the low ones.
        set(
            descriptor + layout::DTYPE,
            if cfg!(target_endian = "little") { dtype | rank << 32 } else { dtype << 32 | rank },
        );
        set(descriptor + layout::DIMS, dims);
        for (axis, dim) in ty.shape.iter().enumerate() {
            let size = dim.as_const().unwrap_or(-1);
            if let (Described::Result(..), true) = (tensor, is_shapes) {
                *made[0].word(8 * open) = size as u64;
                open += 1;
            } else {
                set(record.dims(at) + 8 * axis as i64, size);
            }
        }
    }
    // SAFETY: whoever gave the address says that a function of this type is there, and the record is what `onnxc.h` says of it.
    let status = unsafe {
        let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> i32>(address);
        function(memory.address() as *mut c_void)
    };
    if is_shapes {
        *made[0].word(8 * open) = *memory.word(layout::SCRATCH_BYTES);
    }
    status
}
