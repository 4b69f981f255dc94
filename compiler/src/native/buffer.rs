//! Memory of one input or output of a model.

use bytes::Bytes;
use onnxc_runtime_support::abi;

use super::{GuardedBlock, Memory, no_memory, usage};
use onnxc_ir::borders;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::{DType, Tensor};

/// The data of one input or output.
pub(super) struct Buffer {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<i64>,
    /// How many of the dims the last run has set, of an output whose rank it decides; else all.
    pub rank: usize,
    /// `None` for an input that is left to its default, for an output that no run has allocated yet, and where there
    /// are no elements and nothing else is said by NULL.
    pub data: Option<GuardedBlock>,
    /// An output that every run allocates.
    pub late: bool,
    /// What the data of an input refer to.
    texts: Option<GuardedBlock>,
}

impl Buffer {
    fn new(info: &abi::ValueInfo, late: bool) -> Result<Buffer> {
        let (name, dtype) = (info.name.clone(), dtype(info)?);
        Ok(Buffer { name, dtype, dims: vec![], rank: usize::MAX, data: None, late, texts: None })
    }

    pub(super) fn input(memory: Memory, tensor: Option<&Tensor>, info: &abi::ValueInfo) -> Result<Buffer> {
        let mut buffer = Buffer::new(info, false)?;
        match tensor {
            Some(tensor) => {
                let what = format!("input `{}`", info.name);
                let stored = match tensor.dtype {
                    DType::Str => buffer.keep_texts(memory, &what, tensor)?,
                    _ => borders::stored(tensor).data,
                };
                buffer.dtype = tensor.dtype;
                buffer.dims = tensor.shape.iter().map(|&size| size as i64).collect();
                if !stored.is_empty() || info.has_default {
                    let mut data = buffer.block(memory, &what, stored.len())?;
                    data.contents_mut().copy_from_slice(&stored);
                    data.forbid_writes();
                    buffer.data = Some(data);
                }
            }
            None if info.has_default => buffer.dims = info.dims.iter().map(|dim| dim.unwrap_or(0)).collect(),
            None => return Err(usage(format!("input `{}` is missing", info.name))),
        }
        Ok(buffer)
    }

    /// Texts in a block that ends with the last one; gives the addresses and lengths.
    fn keep_texts(&mut self, memory: Memory, what: &str, tensor: &Tensor) -> Result<Bytes> {
        let texts = tensor.texts();
        let bytes = texts.iter().map(Bytes::len).sum();
        let mut block = memory.block(bytes, 1).ok_or_else(|| no_memory(what, bytes))?;
        let (mut views, mut at, first) = (vec![], 0, block.as_mut_ptr() as u64);
        for text in &texts {
            block.contents_mut()[at..][..text.len()].copy_from_slice(text);
            views.extend([first + at as u64, text.len() as u64].map(u64::to_ne_bytes).as_flattened());
            at += text.len();
        }
        block.forbid_writes();
        self.texts = Some(block);
        Ok(views.into())
    }

    pub(super) fn output(memory: Memory, shape: Option<&[usize]>, info: &abi::ValueInfo) -> Result<Buffer> {
        let mut buffer = Buffer::new(info, true)?;
        buffer.dims = info.dims.iter().map(|dim| dim.unwrap_or(0)).collect();
        // Only the run knows the size of texts.
        let Some(shape) = shape.filter(|_| buffer.dtype != DType::Str) else { return Ok(buffer) };
        buffer.late = false;
        buffer.dims = shape.iter().map(|&size| size as i64).collect();
        // One whose rank the run decides has room for the highest.
        buffer.dims.resize(info.dims.len().max(shape.len()), 1);
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bits = elements.and_then(|elements| elements.checked_mul(buffer.dtype.bits() as usize));
        let what = format!("output `{}` of shape {shape:?}", info.name);
        let Some(bytes) = bits.map(|bits| bits.div_ceil(8)) else {
            return Err(Error::new(Stage::Run, Kind::Budget, format!("{what} exceeds the address space")));
        };
        // NULL would have the run allocate an output whose size turns out to be another.
        if bytes > 0 || info.dims.contains(&None) {
            buffer.data = Some(buffer.block(memory, &what, bytes)?);
        }
        Ok(buffer)
    }

    /// Memory for the data: only as aligned as the ABI asks for.
    fn block(&self, memory: Memory, what: &str, bytes: usize) -> Result<GuardedBlock> {
        let alignment = self.dtype.size().min(8);
        memory.block(bytes, alignment).ok_or_else(|| no_memory(what, bytes))
    }

    pub(super) fn descriptor(&mut self) -> abi::Tensor {
        let (data, bytes) = match &mut self.data {
            Some(data) => (data.as_mut_ptr().cast(), data.bytes()),
            None => (std::ptr::null_mut(), 0),
        };
        let (dtype, rank) = (self.dtype.to_onnx(), self.dims.len() as i32);
        abi::Tensor { data, bytes, dtype, rank, dims: self.dims.as_mut_ptr() }
    }

    /// What a run left here, as a tensor.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        let dims = self.dims.iter().take(self.rank);
        let sizes: Option<Vec<usize>> = dims.map(|&size| usize::try_from(size).ok()).collect();
        let data = self.data.as_ref().map_or(&[][..], GuardedBlock::contents);
        let bits = sizes.as_ref().and_then(|sizes| {
            let bits = self.dtype.bits() as usize;
            sizes.iter().try_fold(bits, |product, &size| product.checked_mul(size))
        });
        match (sizes, bits.map(|bits| bits.div_ceil(8))) {
            (Some(shape), Some(bytes)) if bytes <= data.len() => {
                // Texts lie behind their views.
                let end = if self.dtype == DType::Str { data.len() } else { bytes };
                Ok(borders::unstored(self.dtype, shape, &copy(&data[..end], &self.name)?))
            }
            _ => {
                let message = format!("`{}` came back with the sizes {:?}", self.name, self.dims);
                Err(Error::internal(Stage::Run, message))
            }
        }
    }
}

fn copy(data: &[u8], output: &str) -> Result<Bytes> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(data.len()).map_err(|_| no_memory(&format!("output `{output}`"), data.len()))?;
    copy.extend_from_slice(data);
    Ok(copy.into())
}

/// The element type of a port.
fn dtype(info: &abi::ValueInfo) -> Result<DType> {
    DType::from_onnx(info.dtype).ok_or_else(|| {
        Error::internal(Stage::Run, format!("`{}` has element type {}", info.name, info.dtype))
    })
}
