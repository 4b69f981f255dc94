//! Memory that a model is given. Every buffer shows writes outside of it: by bytes around it that are checked after a
//! run, or by protected pages, where a read or a write outside of the buffer ends the process.

use onnxc_runtime_support::AlignedBytes;

/// Where the buffers of a run are, and what is in those that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    pub placement: Placement,
    /// Every byte of the workspace, of the outputs and of what a run allocates, before the run. The same bytes are
    /// between a buffer and the protected page that its alignment keeps it from.
    pub poison: u8,
}

/// See [`Memory`]. Where pages cannot be protected (on other systems than Unix), all are `Heap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// From the process's allocator, with bytes behind that are checked.
    Heap,
    /// Ends at a protected page, as near as the buffer's alignment allows.
    BeforeProtectedPage,
    /// Begins at the end of a protected page.
    AfterProtectedPage,
    /// As the process's allocator gives it, with nothing to check: what a program that links the model has.
    Plain,
}

impl Default for Memory {
    /// As a float the poison is a large negative number, not one that hides a mistake.
    fn default() -> Memory {
        Memory { placement: Placement::Heap, poison: 0xfb }
    }
}

impl Memory {
    /// Two ways of running a model that must give the same bits: reads and writes outside of the buffers fault at the
    /// end of all of them in one and before their start in the other, and what is read before it is written differs.
    pub const GUARDED: [Memory; 2] = [
        Memory { placement: Placement::BeforeProtectedPage, poison: 0xfb },
        Memory { placement: Placement::AfterProtectedPage, poison: 0x3e },
    ];

    /// For measurements.
    pub const PLAIN: Memory = Memory { placement: Placement::Plain, poison: 0 };

    /// `bytes` at a multiple of `alignment`, a power of two up to 64; `None` if the system has no such memory.
    pub fn block(self, bytes: usize, alignment: usize) -> Option<GuardedBlock> {
        debug_assert!(alignment.is_power_of_two() && alignment <= ALIGNMENT);
        let (mut whole, start) = match self.placement {
            Placement::Plain => {
                // SAFETY: a model reads of its buffers what it has written, and fills outputs before anyone reads them.
                let whole = Whole::Heap(unsafe { AlignedBytes::unset(bytes)? });
                return Some(GuardedBlock { whole, start: 0, bytes, poison: self.poison });
            }
            Placement::Heap => (Whole::Heap(AlignedBytes::new(bytes.checked_add(BEHIND)?)?), 0),
            placement => {
                let whole = Whole::guarded(bytes)?;
                let start = match placement {
                    Placement::BeforeProtectedPage => (whole.len() - bytes) / alignment * alignment,
                    _ => 0,
                };
                (whole, start)
            }
        };
        whole.fill(self.poison);
        Some(GuardedBlock { whole, start, bytes, poison: self.poison })
    }
}

/// Greatest alignment of a block.
pub const ALIGNMENT: usize = 64;

/// Bytes behind a block of the heap that a model may not touch.
const BEHIND: usize = 64;

/// One buffer.
pub struct GuardedBlock {
    whole: Whole,
    /// Where the buffer begins in `whole`.
    start: usize,
    bytes: usize,
    poison: u8,
}

impl GuardedBlock {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.whole[self.start..].as_mut_ptr()
    }

    pub fn contents(&self) -> &[u8] {
        &self.whole[self.start..self.start + self.bytes]
    }

    pub fn contents_mut(&mut self) -> &mut [u8] {
        &mut self.whole[self.start..self.start + self.bytes]
    }

    /// Whether what is around the buffer is as it was.
    pub fn is_intact(&self) -> bool {
        let (before, behind) = (&self.whole[..self.start], &self.whole[self.start + self.bytes..]);
        all_are(before, self.poison) && all_are(behind, self.poison)
    }

    /// Whether nothing was ever written to the buffer.
    pub fn is_untouched(&self) -> bool {
        all_are(&self.whole, self.poison)
    }

    /// Makes every later write to the buffer end the process, where pages can be protected.
    pub fn forbid_writes(&mut self) {
        #[cfg(unix)]
        if let Whole::Pages(pages) = &mut self.whole {
            pages.forbid_writes();
        }
    }
}

fn all_are(bytes: &[u8], value: u8) -> bool {
    // Each is like the one before: a comparison of memory, however many there are.
    bytes.first().is_none_or(|&first| first == value && bytes[1..] == bytes[..bytes.len() - 1])
}

/// All the memory around and in a buffer.
enum Whole {
    Heap(AlignedBytes),
    #[cfg(unix)]
    Pages(pages::Pages),
}

impl Whole {
    #[cfg(unix)]
    fn guarded(bytes: usize) -> Option<Whole> {
        Some(Whole::Pages(pages::Pages::new(bytes)?))
    }

    #[cfg(not(unix))]
    fn guarded(bytes: usize) -> Option<Whole> {
        Some(Whole::Heap(AlignedBytes::new(bytes)?))
    }
}

impl std::ops::Deref for Whole {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Whole::Heap(memory) => memory,
            #[cfg(unix)]
            Whole::Pages(pages) => pages,
        }
    }
}

impl std::ops::DerefMut for Whole {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Whole::Heap(memory) => memory,
            #[cfg(unix)]
            Whole::Pages(pages) => pages,
        }
    }
}

#[cfg(unix)]
mod pages {
    use std::ptr::NonNull;

    /// Zeroed pages between two that can neither be read nor written.
    pub(super) struct Pages {
        /// Start of the first protected page.
        start: NonNull<u8>,
        /// Bytes between the protected pages: a multiple of [`page`].
        bytes: usize,
    }

    // SAFETY: the mapping belongs to this value alone, and memory does not care which thread uses it.
    unsafe impl Send for Pages {}
    // SAFETY: as above; shared references only read.
    unsafe impl Sync for Pages {}

    /// Bytes of a page.
    fn page() -> usize {
        // SAFETY: `sysconf` reads nothing of this program.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).expect("every system reports the size of its pages")
    }

    impl Pages {
        /// At least `bytes` between protected pages; `None` if the system refuses.
        pub(super) fn new(bytes: usize) -> Option<Pages> {
            let bytes = bytes.checked_next_multiple_of(page())?;
            let all = bytes.checked_add(2 * page()).filter(|&all| all <= isize::MAX as usize)?;
            // SAFETY: a new private mapping, at an address of the system's choice, changes no memory in use.
            let start = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0)
            };
            if start == libc::MAP_FAILED {
                return None;
            }
            let pages = Pages { start: NonNull::new(start.cast())?, bytes };
            pages.protect(libc::PROT_READ | libc::PROT_WRITE).then_some(pages)
        }

        fn inner(&self) -> *mut u8 {
            // SAFETY: the mapping has a page before the inner ones.
            unsafe { self.start.as_ptr().add(page()) }
        }

        /// Whether the inner pages could be given these rights. They are always readable.
        fn protect(&self, rights: i32) -> bool {
            // SAFETY: these pages are this value's own; who holds a slice of them needs rights that they keep.
            self.bytes == 0 || unsafe { libc::mprotect(self.inner().cast(), self.bytes, rights) } == 0
        }

        pub(super) fn forbid_writes(&mut self) {
            assert!(self.protect(libc::PROT_READ), "a page's rights can be taken away");
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: this is the mapping of `new`, and nothing borrows it any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes + 2 * page()) };
        }
    }

    impl std::ops::Deref for Pages {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            // SAFETY: `self.bytes` bytes are mapped, readable and initialised by the system.
            unsafe { std::slice::from_raw_parts(self.inner(), self.bytes) }
        }
    }

    impl std::ops::DerefMut for Pages {
        fn deref_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, and borrowed alone.
            unsafe { std::slice::from_raw_parts_mut(self.inner(), self.bytes) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_aligned_poisoned_and_watched() {
        for memory in [Memory::default()].into_iter().chain(Memory::GUARDED) {
            for (bytes, alignment) in [(0, 1), (1, 1), (12, 4), (4096, 64), (4097, 64), (100_003, 1)] {
                let mut block = memory.block(bytes, alignment).unwrap();
                assert_eq!(block.as_mut_ptr().addr() % alignment, 0);
                assert_eq!(block.contents().len(), bytes);
                assert!(block.is_untouched() && block.is_intact());
                block.contents_mut().fill(1);
                assert!(block.is_intact() && block.is_untouched() == (bytes == 0));
            }
        }
        assert!(Memory::GUARDED[0].block(usize::MAX, 1).is_none());
        assert!(Memory::default().block(usize::MAX, 1).is_none());
    }

    #[cfg(unix)]
    #[test]
    fn a_block_ends_or_begins_at_a_protected_page() {
        let [mut ending, mut beginning] = Memory::GUARDED.map(|memory| memory.block(100, 4).unwrap());
        assert_eq!((ending.as_mut_ptr().addr() + 100) % 4096, 0);
        assert_eq!(beginning.as_mut_ptr().addr() % 4096, 0);
        // Bytes that the alignment puts between the block and the page are watched.
        let mut block = Memory::GUARDED[0].block(100, 64).unwrap();
        assert_eq!((block.as_mut_ptr().addr() + 128) % 4096, 0);
        let behind = block.start + 100;
        block.whole[behind] = 0;
        assert!(!block.is_intact());
    }
}
