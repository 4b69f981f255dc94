//! The default allocator, and aligned memory for Rust callers.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
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
    /// # Panics
    /// If `bytes` exceeds the address space.
    pub fn new(bytes: usize) -> AlignedBytes {
        let layout = AlignedBytes::layout(bytes);
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBytes { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(1), 64).expect("a size within the address space")
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        unsafe { dealloc(self.start.as_ptr(), AlignedBytes::layout(self.bytes)) };
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
