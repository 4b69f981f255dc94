//! The state block of a model in this process.

use onnxc_runtime_support::{Status, abi};

use super::{ALIGNMENT, GuardedBlock, Memory, Model, no_memory, usage};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_object::host::block::StateTensor;

/// A state block, and what it held at first.
pub(super) struct States {
    block: GuardedBlock,
    dims: [i64; 1],
    states: Vec<StateTensor>,
    first: Vec<u8>,
}

impl States {
    /// A block with these tensors (`None`: no elements of one that grows, else zeros), for these values of the symbols.
    pub(super) fn new(
        model: &Model<'_>,
        memory: Memory,
        infos: Vec<abi::StateInfo>,
        found: &[Option<Tensor>],
        symbols: Vec<i64>,
    ) -> Result<States> {
        let bytes = model.state_bytes(&symbols)?;
        let mut block = memory.block(bytes, ALIGNMENT).ok_or_else(|| no_memory("the states", bytes))?;
        let status = model.reset_state(block.contents_mut(), &symbols);
        if status != Status::OK {
            return Err(usage(format!("the state cannot be reset: status {}", status.0)));
        }
        let mut states = vec![];
        let mut offset = (8 * (1 + symbols.len())).next_multiple_of(ALIGNMENT);
        for info in infos {
            let dims = info.tensor.dims.iter().zip(&info.tensor.symbols).map(|(dim, symbol)| {
                let size = dim.or_else(|| symbol.map(|symbol| symbols[symbol]));
                size.and_then(|size| usize::try_from(size).ok())
            });
            let name = info.tensor.name.clone();
            let (Some(dims), Some(dtype)) =
                (dims.collect::<Option<Vec<usize>>>(), DType::from_onnx(info.tensor.dtype))
            else {
                return Err(usage(format!("state `{name}`: the inputs do not give its dims a size")));
            };
            let growth = info.growth.map(|(axis, symbol)| (axis, 1 + symbol));
            let state = StateTensor { name, dtype, dims, growth, panels: info.panels, offset };
            offset += state.bytes().next_multiple_of(ALIGNMENT);
            states.push(state);
        }
        if offset != bytes {
            return Err(Error::internal(Stage::Run, format!("the states have {offset} bytes, not {bytes}")));
        }
        let mut all = States { block, dims: [bytes as i64], states, first: vec![] };
        for (state, tensor) in all.states.iter().zip(found) {
            if let Some(tensor) = tensor {
                state.put(tensor, all.block.contents_mut())?;
            }
        }
        all.first = all.block.contents().to_vec();
        Ok(all)
    }

    pub(super) fn block(&self) -> &GuardedBlock {
        &self.block
    }

    /// Puts back what the block held at first.
    pub(super) fn rewind(&mut self) {
        let words = self.states.first().map_or(0, |state| state.offset);
        let replaced = self.states.iter().filter(|state| state.growth.is_none());
        let ranges = replaced.map(|state| state.offset..state.offset + state.bytes());
        let contents = self.block.contents_mut();
        contents[..words].copy_from_slice(&self.first[..words]);
        for range in ranges {
            contents[range.clone()].copy_from_slice(&self.first[range]);
        }
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.block.contents() == self.first
    }

    pub(super) fn descriptor(&mut self) -> abi::Tensor {
        abi::Tensor {
            data: self.block.as_mut_ptr().cast(),
            bytes: self.block.bytes(),
            dtype: DType::U8.to_onnx(),
            rank: 1,
            dims: self.dims.as_mut_ptr(),
        }
    }

    /// The tensors that the last run left.
    pub(super) fn tensors(&self) -> Vec<Result<Tensor>> {
        self.states.iter().map(|state| state.tensor(self.block.contents())).collect()
    }
}
