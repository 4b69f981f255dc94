//! The default allocator, and aligned memory for Rust callers.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Bytes of a huge page on most processors.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes from which on memory is asked for in huge pages. The system zeroes what it gives a run anew, and takes as long again for
/// each page of 4 KiB that is touched first: a Mask R-CNN, whose blocks have up to 40 MB, takes 0.78 s on Zen 5 where it was 1.0.
const LARGE: usize = 2 * HUGE_PAGE;

/// What the allocator is asked for; `None` if there is no such memory.
fn layout(bytes: usize, alignment: usize) -> Option<Layout> {
    let alignment = if bytes < LARGE { alignment } else { alignment.max(HUGE_PAGE) };
    Layout::from_size_align(bytes.max(1), alignment).ok()
}

/// Advises the system to use huge pages for memory of [`layout`] that was not touched yet. It need not comply.
#[cfg(target_os = "linux")]
fn advise(memory: *mut u8, bytes: usize) {
    unsafe extern "C" {
        // <sys/mman.h>
        fn madvise(start: *mut c_void, bytes: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    if bytes >= LARGE && !memory.is_null() {
        let whole = bytes / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: these pages are part of what the allocator gave, and the advice changes nothing in them.
        unsafe { madvise(memory.cast(), whole, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_memory: *mut u8, _bytes: usize) {}

/// `onnxc_allocate`: memory of `bytes` at a multiple of `alignment`, or null.
///
/// # Safety
/// None; `allocator` is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_allocate(
    _allocator: *mut c_void,
    bytes: usize,
    alignment: usize,
) -> *mut c_void {
    let Some(layout) = layout(bytes, alignment) else { return std::ptr::null_mut() };
    // SAFETY: the layout has at least one byte.
    let memory = unsafe { alloc(layout) };
    advise(memory, bytes);
    memory.cast()
}

/// `onnxc_release`: gives back memory of [`onnxc_allocate`].
///
/// # Safety
/// `memory` is null or came from `onnxc_allocate` with these sizes, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_release(
    _allocator: *mut c_void,
    memory: *mut c_void,
    bytes: usize,
    alignment: usize,
) {
    if let Some(layout) = layout(bytes, alignment)
        && !memory.is_null()
    {
        // SAFETY: the caller says that it came from `onnxc_allocate`, which made this very layout of these sizes.
        unsafe { dealloc(memory.cast(), layout) };
    }
}

/// Zeroed bytes at a multiple of 64: a workspace, or the data of a tensor.
pub struct AlignedBytes {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and the allocator takes it back on any thread.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` if there is no such memory.
    pub fn new(bytes: usize) -> Option<AlignedBytes> {
        // SAFETY: all of them are written right here.
        let zeroed = unsafe { AlignedBytes::unset(bytes)? };
        // SAFETY: `bytes` bytes were allocated.
        unsafe { zeroed.start.as_ptr().write_bytes(0, bytes) };
        Some(zeroed)
    }

    /// The same as [`onnxc_allocate`] gives them, in no time.
    ///
    /// # Safety
    /// Nobody reads a byte before it is written.
    pub unsafe fn unset(bytes: usize) -> Option<AlignedBytes> {
        // SAFETY: it has none.
        let start = unsafe { onnxc_allocate(std::ptr::null_mut(), bytes, 64) };
        Some(AlignedBytes { start: NonNull::new(start.cast())?, bytes })
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: `unset` had it of `onnxc_allocate` with these sizes.
        unsafe { onnxc_release(std::ptr::null_mut(), self.start.as_ptr().cast(), self.bytes, 64) };
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `self.bytes` bytes were allocated, and zeroed, or the caller of `unset` vouches for them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Flags of the mapping that an address is in.
    fn flags(memory: *mut c_void) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = range.map(|(start, end)| [start, end].map(|end| usize::from_str_radix(end, 16)));
            if let Some([Ok(start), Ok(end)]) = ends {
                inside = (start..end).contains(&memory.addr());
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_string();
            }
        }
        panic!("no mapping has {memory:?}");
    }

    #[test]
    fn large_blocks_are_in_huge_pages() {
        for (bytes, huge) in [(0, false), (LARGE - 1, false), (LARGE, true), (5 * LARGE + 1, true)] {
            // SAFETY: `bytes` bytes are written, and given back once.
            unsafe {
                let memory = onnxc_allocate(std::ptr::null_mut(), bytes, 64);
                let alignment = if huge { HUGE_PAGE } else { 64 };
                assert!(!memory.is_null() && memory.addr().is_multiple_of(alignment), "{bytes}");
                memory.cast::<u8>().write_bytes(7, bytes);
                if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
                    assert_eq!(flags(memory).split_whitespace().any(|flag| flag == "hg"), huge, "{bytes}");
                }
                onnxc_release(std::ptr::null_mut(), memory, bytes, 64);
            }
        }
    }
}
