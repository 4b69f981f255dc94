//! Memory for runs of generated code that ends, or begins, at a page that nothing may touch: an access outside of a buffer
//! ends the process at once. Buffers are filled with a poison, and what a run may leave alone is held against it.

use std::ffi::c_void;
use std::io;
use std::ops::Range;

/// Which end of a buffer is at the protected page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    Begin,
    End,
}

/// A buffer beside a protected page.
pub struct Guarded {
    map: *mut u8,
    map_bytes: usize,
    /// The pages that may be touched, as offsets in the map.
    open: Range<usize>,
    /// The buffer, as offsets in the map.
    buffer: Range<usize>,
    poison: u8,
}

// SAFETY: the map belongs to this value alone.
unsafe impl Send for Guarded {}

fn page() -> usize {
    // SAFETY: a query without side effects.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Guarded {
    /// `bytes` at a multiple of `alignment`, which is a power of two of at most a page. Where the end does not fall on a
    /// multiple, fewer than `alignment` bytes lie between it and the protected page, and hold the poison.
    pub fn new(bytes: usize, alignment: usize, edge: Edge, poison: u8) -> io::Result<Guarded> {
        let page = page();
        let pages = bytes.div_ceil(page) * page;
        let map_bytes = pages + page;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private map, wherever the system puts it.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), map_bytes, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (open, start, protected) = match edge {
            Edge::Begin => (page..map_bytes, page, 0),
            Edge::End => (0..pages, (pages - bytes) / alignment * alignment, pages),
        };
        let buffer = start..start + bytes;
        let mut guarded = Guarded { map: map.cast(), map_bytes, open: open.clone(), buffer, poison };
        guarded.slice_mut(open).fill(poison);
        // SAFETY: the last page of the map, or its first.
        match unsafe { libc::mprotect(guarded.map.add(protected).cast(), page, libc::PROT_NONE) } {
            0 => Ok(guarded),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(self.open.start <= range.start && range.end <= self.open.end);
        // SAFETY: the open part of the map may be read, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.map.add(range.start), range.len()) }
    }

    fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(self.open.start <= range.start && range.end <= self.open.end);
        // SAFETY: as above, and written; `&mut` keeps others out.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(range.start), range.len()) }
    }

    /// Where the buffer is; no pointer that may be followed if it is empty.
    pub fn pointer(&self) -> *mut c_void {
        self.map.wrapping_add(self.buffer.start).cast()
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        self.slice(self.buffer.clone())
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.slice_mut(self.buffer.clone()).copy_from_slice(bytes);
    }

    /// Whether nothing was written to the buffer.
    pub fn untouched(&self) -> bool {
        self.bytes().iter().all(|&byte| byte == self.poison)
    }

    /// Whether nothing was written around the buffer.
    pub fn intact(&self) -> bool {
        let (before, after) = (self.open.start..self.buffer.start, self.buffer.end..self.open.end);
        self.slice(before).iter().chain(self.slice(after)).all(|&byte| byte == self.poison)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the map is this value's own, and nothing borrows from it any more.
        unsafe { libc::munmap(self.map.cast(), self.map_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_at_the_protected_page() {
        for bytes in [0, 1, 60, 64, 4096, 5000] {
            let mut end = Guarded::new(bytes, 4, Edge::End, 0xab).unwrap();
            let mut begin = Guarded::new(bytes, 64, Edge::Begin, 0xab).unwrap();
            assert!(end.buffer.end + 4 > end.open.end && begin.buffer.start == begin.open.start);
            for buffer in [&mut end, &mut begin] {
                assert!(buffer.intact() && buffer.untouched() && buffer.len() == bytes);
                buffer.write(&vec![7; bytes]);
                assert!(buffer.intact() && (bytes == 0 || !buffer.untouched()));
            }
        }
    }

    #[test]
    fn writes_around_a_buffer_show() {
        let mut buffer = Guarded::new(60, 64, Edge::End, 0xab).unwrap();
        let behind = buffer.buffer.end;
        buffer.slice_mut(behind..behind + 1)[0] = 0;
        assert!(!buffer.intact());
    }
}
