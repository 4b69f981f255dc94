//! The bits of an entropy-coded segment.

use crate::fault::{Fault, broken};

/// Reads bits from the highest of each byte on. A byte 0xff is followed by a 0 that is not data; any other byte behind it is a
/// marker, at which the segment ends.
pub(super) struct Bits<'s> {
    stream: &'s [u8],
    /// The next byte that is not in `buffer`.
    at: usize,
    /// Bits read ahead, the next one in bit `count - 1`.
    buffer: u64,
    count: u32,
}

impl<'s> Bits<'s> {
    pub(super) fn new(stream: &'s [u8], at: usize) -> Bits<'s> {
        Bits { stream, at, buffer: 0, count: 0 }
    }

    /// Where the segment ends: at a marker or the end of the stream. Bits left of the last byte are given up.
    pub(super) fn end(self) -> usize {
        self.at
    }

    fn fill(&mut self) {
        while self.count <= 48 {
            let Some(&byte) = self.stream.get(self.at) else { return };
            if byte == 0xff {
                match self.stream.get(self.at + 1) {
                    Some(0) => self.at += 1,
                    _ => return,
                }
            }
            self.at += 1;
            self.buffer = self.buffer << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    /// The next `count` bits, at most 16, with zeros for those behind the end.
    #[inline]
    pub(super) fn peek(&mut self, count: u32) -> u32 {
        if self.count < count {
            self.fill();
        }
        let mask = (1u64 << count) - 1;
        let bits = match self.count >= count {
            true => self.buffer >> (self.count - count),
            false => self.buffer << (count - self.count),
        };
        (bits & mask) as u32
    }

    /// Passes over bits that were looked at; fails if there are fewer.
    #[inline]
    pub(super) fn pass(&mut self, count: u32) -> Result<(), Fault> {
        self.count = self.count.checked_sub(count).ok_or_else(broken)?;
        Ok(())
    }

    /// The next `count` bits, at most 16.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> Result<u32, Fault> {
        let bits = self.peek(count);
        self.pass(count)?;
        Ok(bits)
    }

    /// A number of `size` bits, at most 16, as coefficients have them: those that begin with 0 are negative.
    #[inline]
    pub(super) fn signed(&mut self, size: u32) -> Result<i32, Fault> {
        if size == 0 {
            return Ok(0);
        }
        let bits = self.take(size)? as i32;
        Ok(if bits >> (size - 1) == 0 { bits - (1 << size) + 1 } else { bits })
    }

    /// Goes on behind the restart marker that must come now.
    pub(super) fn restart(&mut self, number: u8) -> Result<(), Fault> {
        // What is left of the last byte is less than 8 bits, unless the segment is too long.
        if self.count >= 8 {
            return Err(broken());
        }
        let mut at = self.at;
        while self.stream.get(at) == Some(&0xff) && self.stream.get(at + 1) == Some(&0xff) {
            at += 1;
        }
        match self.stream.get(at..at + 2) {
            Some([0xff, marker]) if *marker == 0xd0 + number % 8 => {}
            _ => return Err(broken()),
        }
        *self = Bits::new(self.stream, at + 2);
        Ok(())
    }
}
