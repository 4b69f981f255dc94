//! Memory for the texts that functions make: chunks that grow, and are given back all at once.
//!
//! A text is written at the end of the newest chunk, as a [`Draft`]. What turns out to have a number already is
//! forgotten, and its memory used for the next.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::abi::Status;

use super::memory::Memory;

/// Bytes of the first chunk, and those that the growth of chunks ends at.
const FIRST: usize = 4 << 10;
const MOST: usize = 1 << 20;

/// The start of a chunk.
#[derive(Clone, Copy)]
struct Header {
    previous: *mut Header,
    bytes: usize,
}

/// Room that holds no text yet. Null where there is none.
#[derive(Clone, Copy)]
#[repr(C)]
struct Room {
    start: *mut u8,
    bytes: usize,
}

const NO_ROOM: Room = Room { start: std::ptr::null_mut(), bytes: 0 };

#[repr(C)]
pub(super) struct Chunks {
    newest: Cell<*mut Header>,
    room: Cell<Room>,
}

impl Chunks {
    pub(super) const fn new() -> Chunks {
        Chunks { newest: Cell::new(std::ptr::null_mut()), room: Cell::new(NO_ROOM) }
    }

    /// A new chunk with room for at least `bytes`.
    fn add(&self, memory: &Memory, bytes: usize) -> Result<Room, Status> {
        let previous = self.newest.get();
        // SAFETY: a chunk starts with its header.
        let usual = if previous.is_null() { FIRST } else { unsafe { (*previous).bytes }.saturating_mul(2) };
        let needed = bytes.checked_add(size_of::<Header>()).ok_or(Status::OUT_OF_MEMORY)?;
        let bytes = usual.min(MOST).max(needed);
        let chunk = memory.take(bytes)?.cast::<Header>();
        // SAFETY: the chunk has more bytes than the header, and is aligned to it.
        let start = unsafe {
            chunk.write(Header { previous, bytes });
            chunk.add(1).cast::<u8>().as_ptr()
        };
        self.newest.set(chunk.as_ptr());
        Ok(Room { start, bytes: bytes - size_of::<Header>() })
    }

    /// Begins a text. Several at once are each in a chunk of its own.
    pub(super) fn draft<'c>(&'c self, memory: &'c Memory) -> Draft<'c> {
        Draft { chunks: self, memory, room: self.room.replace(NO_ROOM), size: 0 }
    }

    /// Gives all chunks back.
    pub(super) fn close(&mut self, memory: &Memory) {
        let mut newest = NonNull::new(self.newest.get());
        while let Some(chunk) = newest {
            // SAFETY: a chunk starts with its header.
            let header = unsafe { chunk.read() };
            // SAFETY: `add` took it with these bytes, and nobody borrows a text any more.
            unsafe { memory.give_back(chunk.cast(), header.bytes) };
            newest = NonNull::new(header.previous);
        }
        *self = Chunks::new();
    }
}

/// A text that is being written.
pub(super) struct Draft<'c> {
    chunks: &'c Chunks,
    memory: &'c Memory,
    room: Room,
    /// Bytes written, at the start of the room.
    size: usize,
}

impl<'c> Draft<'c> {
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if bytes.len() > self.room.bytes - self.size {
            self.grow(bytes.len())?;
        }
        if !bytes.is_empty() {
            // SAFETY: there is room, which holds no text: nothing else refers to it.
            unsafe {
                self.room.start.add(self.size).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            self.size += bytes.len();
        }
        Ok(())
    }

    pub(super) fn push_char(&mut self, letter: char) -> Result<(), Status> {
        self.push(letter.encode_utf8(&mut [0; 4]).as_bytes())
    }

    /// Moves to a new chunk, with room for `more` bytes and then some.
    fn grow(&mut self, more: usize) -> Result<(), Status> {
        let needed = self.size.checked_add(more).ok_or(Status::OUT_OF_MEMORY)?;
        let spare = if self.size == 0 { 0 } else { needed };
        let room = self.chunks.add(self.memory, needed.checked_add(spare).ok_or(Status::OUT_OF_MEMORY)?)?;
        if self.size > 0 {
            // SAFETY: both rooms have `self.size` bytes, the old one has written them, and they are in different chunks.
            unsafe { room.start.copy_from_nonoverlapping(self.room.start, self.size) };
        }
        self.room = room;
        Ok(())
    }

    pub(super) fn written(&mut self) -> &mut [u8] {
        if self.size == 0 {
            return &mut [];
        }
        // SAFETY: `self.size` bytes are written, and the draft has them alone.
        unsafe { std::slice::from_raw_parts_mut(self.room.start, self.size) }
    }

    /// Ends the text: it stays until the chunks are closed.
    pub(super) fn keep(mut self) -> &'c [u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: `self.size` bytes are written, and no longer room.
        unsafe {
            let text = std::slice::from_raw_parts(self.room.start, self.size);
            self.room = Room { start: self.room.start.add(self.size), bytes: self.room.bytes - self.size };
            text
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // Of several drafts, the most room stays.
        if self.room.bytes >= self.chunks.room.get().bytes {
            self.chunks.room.set(self.room);
        }
    }
}
