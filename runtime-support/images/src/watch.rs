//! What stops a decoder: the caller's `cancel`, polled while it works.

use std::cell::Cell;
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::fault::Fault;

/// Looks at the caller's flag. Decoders of this crate poll it for each row of pixels or of blocks, and what libraries read
/// comes through a [`Watched`], which polls it for each piece.
pub struct Watch<'c> {
    cancel: Option<&'c AtomicI32>,
    polls: Cell<u64>,
}

impl<'c> Watch<'c> {
    /// Stops where `cancel` is there and not 0.
    pub fn new(cancel: Option<&'c AtomicI32>) -> Watch<'c> {
        Watch { cancel, polls: Cell::new(0) }
    }

    /// Fails once the flag is set.
    pub fn poll(&self) -> Result<(), Fault> {
        self.polls.set(self.polls.get() + 1);
        if self.is_cancelled() { Err(Fault::Cancelled) } else { Ok(()) }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
    }

    /// How often a decoder has looked.
    pub fn polls(&self) -> u64 {
        self.polls.get()
    }
}

/// A stream that libraries read: after the flag is set, reading fails.
pub struct Watched<'a> {
    stream: Cursor<&'a [u8]>,
    watch: &'a Watch<'a>,
}

/// Bytes that a library gets at once: the most that one can inflate to is a few MB.
const PIECE: usize = 4096;

impl<'a> Watched<'a> {
    pub fn new(stream: &'a [u8], watch: &'a Watch<'a>) -> Watched<'a> {
        Watched { stream: Cursor::new(stream), watch }
    }

    fn poll(&self) -> io::Result<()> {
        self.watch.poll().map_err(|_| io::Error::other("the run is cancelled"))
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.poll()?;
        let piece = out.len().min(PIECE);
        self.stream.read(&mut out[..piece])
    }
}

impl BufRead for Watched<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.poll()?;
        let left = self.stream.fill_buf()?;
        Ok(&left[..left.len().min(PIECE)])
    }

    fn consume(&mut self, bytes: usize) {
        self.stream.consume(bytes);
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.stream.seek(to)
    }
}
