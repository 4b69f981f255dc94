//! What a run allocates.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use super::{ALIGNMENT, GuardedBlock, Memory};
use onnxc_ir::error::{Error, Result, Stage};

/// What runs have allocated: blocks by their addresses.
pub(super) struct Heap {
    memory: Memory,
    blocks: Mutex<HashMap<usize, GuardedBlock>>,
    /// The first fault of a caller.
    fault: Mutex<Option<String>>,
}

impl Heap {
    pub(super) fn new(memory: Memory) -> Heap {
        Heap { memory, blocks: Mutex::default(), fault: Mutex::default() }
    }

    pub(super) fn blocks(&self) -> MutexGuard<'_, HashMap<usize, GuardedBlock>> {
        self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn blame(&self, message: String) {
        let mut fault = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        fault.get_or_insert(message);
    }

    /// An internal error if a run wrote behind a block, or kept one.
    pub(super) fn check(&self) -> Result<()> {
        let mut fault = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let kept: usize = self.blocks().drain().map(|(_, block)| block.bytes()).sum();
        match fault.take() {
            Some(message) => Err(Error::internal(Stage::Run, message)),
            None if kept > 0 => Err(Error::internal(Stage::Run, format!("a run kept {kept} bytes"))),
            None => Ok(()),
        }
    }
}

pub(super) unsafe extern "C" fn allocate(heap: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: `Prepared::run` passes a reference that outlives the run.
    let heap = unsafe { &*heap.cast::<Heap>() };
    let block = Some(alignment).filter(|&alignment| alignment.is_power_of_two() && alignment <= ALIGNMENT);
    let Some(mut block) = block.and_then(|alignment| heap.memory.block(bytes, alignment)) else {
        return std::ptr::null_mut();
    };
    let address = block.as_mut_ptr();
    heap.blocks().insert(address.addr(), block);
    address.cast()
}

pub(super) unsafe extern "C" fn release(
    heap: *mut c_void,
    memory: *mut c_void,
    bytes: usize,
    _alignment: usize,
) {
    // SAFETY: as above.
    let heap = unsafe { &*heap.cast::<Heap>() };
    match heap.blocks().remove(&memory.addr()) {
        Some(block) if block.bytes() != bytes => {
            heap.blame(format!("a run gave back {} bytes as {bytes}", block.bytes()));
        }
        Some(block) if !block.is_intact() => {
            heap.blame(format!("a run wrote outside of the {bytes} bytes that it had allocated"));
        }
        Some(_) => {}
        None => heap.blame(format!("a run gave back {bytes} bytes that it did not have")),
    }
}
