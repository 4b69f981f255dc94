//! The default allocator, and aligned memory for Rust callers.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;

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
    match Layout::from_size_align(bytes.max(1), alignment) {
        Ok(layout) => unsafe { alloc(layout) }.cast(),
        Err(_) => std::ptr::null_mut(),
    }
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
    if let Ok(layout) = Layout::from_size_align(bytes.max(1), alignment)
        && !memory.is_null()
    {
        unsafe { dealloc(memory.cast(), layout) };
    }
}

/// Zeroed bytes at a multiple of 64: a workspace, or the data of a tensor.
pub struct AlignedBytes {
    start: NonNull<u8>,
    bytes: usize,
}

unsafe impl Send for AlignedBytes {}
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `None` if there is no such memory.
    pub fn new(bytes: usize) -> Option<AlignedBytes> {
        let layout = AlignedBytes::layout(bytes)?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(AlignedBytes { start, bytes })
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), 64).ok()
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        let layout = AlignedBytes::layout(self.bytes).expect("the layout of `new`");
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}
