//! What a function has computed beside its result, kept in the caller's memory for one that needs it next.
//!
//! It saves work and decides nothing: where it is missing, it is computed again.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::abi::Status;

use super::memory::Memory;
use super::table::State;

#[repr(C)]
pub(super) struct Kept {
    block: Cell<*mut u8>,
    bytes: Cell<usize>,
}

impl Kept {
    pub(super) const fn new() -> Kept {
        Kept { block: Cell::new(std::ptr::null_mut()), bytes: Cell::new(0) }
    }

    pub(super) fn close(&self, memory: &Memory) {
        let (block, bytes) = (self.block.replace(std::ptr::null_mut()), self.bytes.replace(0));
        if let Some(block) = NonNull::new(block) {
            // SAFETY: `keep` took it with `bytes` bytes, and nothing refers to it: `kept` lends it to a function only
            // while this field has none.
            unsafe { memory.give_back(block, bytes) };
        }
    }
}

impl State {
    /// Keeps `bytes`, more than 0, that `write` fills from zeros on, and nothing that was kept before. Without an allocator
    /// nothing is kept.
    pub fn keep(&self, bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<(), Status> {
        self.kept.close(self.memory());
        let block = match self.memory().take(bytes) {
            Err(Status::NEEDS_ALLOCATOR) => return Ok(()),
            block => block?,
        };
        // SAFETY: the block has `bytes` bytes and is nobody else's; they are written before they are read.
        let content = unsafe {
            block.as_ptr().write_bytes(0, bytes);
            std::slice::from_raw_parts_mut(block.as_ptr(), bytes)
        };
        write(content);
        self.kept.block.set(block.as_ptr());
        self.kept.bytes.set(bytes);
        Ok(())
    }

    /// Lends what is kept, if anything is, to `read`. It is given back if that says so.
    pub fn kept(&self, read: impl FnOnce(&[u8]) -> bool) -> bool {
        let (block, bytes) = (self.kept.block.replace(std::ptr::null_mut()), self.kept.bytes.get());
        if block.is_null() {
            return false;
        }
        // SAFETY: `keep` has written `bytes` bytes there, and nobody else finds the block meanwhile.
        let used = read(unsafe { std::slice::from_raw_parts(block, bytes) });
        self.kept.block.set(block);
        if used {
            self.kept.close(self.memory());
        }
        used
    }
}
