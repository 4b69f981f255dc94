//! The texts that a run gave numbers, and the hash table that finds them: one block that doubles.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::abi::{Status, StringView};

use super::memory::Memory;
use super::probe::{Probe, probe, slot};

/// Slots of the first block.
const SLOTS: usize = 64;

/// Bytes of a slot, and of its share of the texts: there is room for three texts per four slots.
const SLOT: usize = 8 + TEXT / 4 * 3;
const TEXT: usize = size_of::<StringView>();

/// The block has `slots` words and behind them `capacity(slots)` texts, the first `count` are written.
#[repr(C)]
pub(super) struct Index {
    block: Cell<*mut u8>,
    slots: Cell<usize>,
    count: Cell<usize>,
}

fn capacity(slots: usize) -> usize {
    slots / 4 * 3
}

impl Index {
    pub(super) const fn new() -> Index {
        Index { block: Cell::new(std::ptr::null_mut()), slots: Cell::new(0), count: Cell::new(0) }
    }

    pub(super) fn count(&self) -> usize {
        self.count.get()
    }

    fn slot(&self, at: usize) -> *mut u64 {
        debug_assert!(at < self.slots.get());
        // SAFETY: the words come first in the block, and callers have an index below the number of slots.
        unsafe { self.block.get().cast::<u64>().add(at) }
    }

    fn entry(&self, at: usize) -> *mut StringView {
        debug_assert!(at < capacity(self.slots.get()));
        // SAFETY: the texts come behind the words, and callers have an index below the number that has room.
        unsafe { self.block.get().cast::<u64>().add(self.slots.get()).cast::<StringView>().add(at) }
    }

    pub(super) fn text(&self, index: usize) -> Option<&[u8]> {
        if index >= self.count.get() {
            return None;
        }
        // SAFETY: `count` texts are written, and the caller that added them keeps them in place while this index has them, which is while
        // it is borrowed.
        unsafe {
            let view = self.entry(index).read();
            Some(std::slice::from_raw_parts(view.data, view.size))
        }
    }

    pub(super) fn find(&self, hash: u32, text: &[u8]) -> Option<u32> {
        // SAFETY: `probe` asks for slots below their number; all have been written.
        let slot = |at| unsafe { self.slot(at).read() };
        match probe(hash, self.slots.get(), slot, |index| self.text(index as usize) == Some(text)) {
            Probe::Found(index) => Some(index),
            Probe::Vacant(_) | Probe::Full => None,
        }
    }

    /// Adds a text that is not here yet, and returns its index.
    ///
    /// # Safety
    /// The text stays where it is and as it is until [`Index::close`].
    pub(super) unsafe fn add(&self, memory: &Memory, hash: u32, text: &[u8]) -> Result<u32, Status> {
        let count = self.count.get();
        if count >= capacity(self.slots.get()) {
            self.grow(memory)?;
        }
        let index = u32::try_from(count).map_err(|_| Status::OUT_OF_MEMORY)?;
        // SAFETY: after growth there is room for one more text, and an empty slot.
        unsafe { self.entry(count).write(StringView { data: text.as_ptr(), size: text.len() }) };
        self.place(hash, slot(hash, index));
        self.count.set(count + 1);
        Ok(index)
    }

    /// Writes the word of a text that is not here yet into its slot.
    fn place(&self, hash: u32, word: u64) {
        // SAFETY: `probe` asks for slots below their number; all have been written.
        let slot = |at| unsafe { self.slot(at).read() };
        if let Probe::Vacant(at) = probe(hash, self.slots.get(), slot, |_| false) {
            // SAFETY: as above.
            unsafe { self.slot(at).write(word) };
        }
    }

    /// Moves to a block of twice the slots. Nothing changes if there is no memory.
    fn grow(&self, memory: &Memory) -> Result<(), Status> {
        let (old, count) = (self.slots.get(), self.count.get());
        // An index takes half of a word, and so do the hashes that choose slots.
        let slots = if old == 0 { SLOTS } else { old * 2 };
        if slots as u64 > 1 << 32 {
            return Err(Status::OUT_OF_MEMORY);
        }
        let bytes = slots.checked_mul(SLOT).ok_or(Status::OUT_OF_MEMORY)?;
        let block = memory.take(bytes)?;
        let before =
            Index { block: self.block.clone(), slots: self.slots.clone(), count: self.count.clone() };
        // SAFETY: the block has room for `slots` words.
        unsafe { block.cast::<u64>().write_bytes(0, slots) };
        self.block.set(block.as_ptr());
        self.slots.set(slots);
        if count > 0 {
            // SAFETY: both blocks have room for `count` texts, which the old one has written, and do not overlap.
            unsafe { self.entry(0).copy_from_nonoverlapping(before.entry(0), count) };
        }
        for at in 0..old {
            // SAFETY: the old block has more than `at` words.
            let word = unsafe { before.slot(at).read() };
            if word != 0 {
                self.place((word >> 32) as u32, word);
            }
        }
        before.free(memory);
        Ok(())
    }

    /// Gives the block back.
    fn free(&self, memory: &Memory) {
        if let Some(block) = NonNull::new(self.block.get()) {
            // SAFETY: `grow` took it with these bytes; who calls this uses it no more.
            unsafe { memory.give_back(block, self.slots.get() * SLOT) };
        }
    }

    /// Forgets all texts, and gives the memory back.
    pub(super) fn close(&mut self, memory: &Memory) {
        self.free(memory);
        *self = Index::new();
    }
}
