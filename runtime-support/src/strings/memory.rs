//! Memory of the caller: blocks that come from `onnxc_options.allocate` and go back to `release`.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::abi::{Options, Status};

/// What every block is aligned to.
const ALIGNMENT: usize = 64;

/// The caller's allocator.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Memory {
    allocate: Option<unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void>,
    release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize)>,
    allocator: *mut c_void,
}

impl Memory {
    /// # Safety
    /// `options` is null, or has an allocator as `onnxc.h` describes it, which stays while this value is used. Nothing
    /// behind `allocator` is read here: callers of the first version have a shorter struct.
    pub(super) unsafe fn of(options: *const Options) -> Memory {
        if options.is_null() {
            return Memory { allocate: None, release: None, allocator: std::ptr::null_mut() };
        }
        // SAFETY: every version of the struct has these fields.
        unsafe {
            Memory {
                allocate: (&raw const (*options).allocate).read(),
                release: (&raw const (*options).release).read(),
                allocator: (&raw const (*options).allocator).read(),
            }
        }
    }

    /// A block of `bytes`, more than 0.
    pub(super) fn take(&self, bytes: usize) -> Result<NonNull<u8>, Status> {
        let (Some(allocate), Some(_)) = (self.allocate, self.release) else {
            return Err(Status::NEEDS_ALLOCATOR);
        };
        if bytes > isize::MAX as usize - ALIGNMENT {
            return Err(Status::OUT_OF_MEMORY);
        }
        // SAFETY: who made this value says that it is an allocator.
        let start = unsafe { allocate(self.allocator, bytes, ALIGNMENT) };
        NonNull::new(start.cast()).ok_or(Status::OUT_OF_MEMORY)
    }

    /// # Safety
    /// `start` is a block of this allocator with `bytes` bytes, and nothing uses it any more.
    pub(super) unsafe fn give_back(&self, start: NonNull<u8>, bytes: usize) {
        if let Some(release) = self.release {
            // SAFETY: the caller says so.
            unsafe { release(self.allocator, start.as_ptr().cast(), bytes, ALIGNMENT) };
        }
    }

    /// `count` elements equal to `value`, given back when they are dropped. No elements take no memory.
    pub(super) fn array<T: Copy>(&self, count: usize, value: T) -> Result<Array<'_, T>, Status> {
        const { assert!(align_of::<T>() <= ALIGNMENT && size_of::<T>() > 0) };
        let bytes = count.checked_mul(size_of::<T>()).ok_or(Status::OUT_OF_MEMORY)?;
        let start = if bytes == 0 { NonNull::<T>::dangling() } else { self.take(bytes)?.cast::<T>() };
        for at in 0..count {
            // SAFETY: the block has `count` elements, and is aligned to them.
            unsafe { start.add(at).write(value) };
        }
        Ok(Array { memory: self, start, count, elements: PhantomData })
    }
}

/// Elements in a block of the caller's memory.
pub(super) struct Array<'m, T: Copy> {
    memory: &'m Memory,
    start: NonNull<T>,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Copy> std::ops::Deref for Array<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `Memory::array` wrote all of them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Copy> std::ops::DerefMut for Array<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T: Copy> Drop for Array<'_, T> {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: the block came from this allocator, with these bytes.
            unsafe { self.memory.give_back(self.start.cast(), self.count * size_of::<T>()) };
        }
    }
}

/// Elements that become more, in the caller's memory.
pub(super) struct List<'m, T: Copy> {
    memory: &'m Memory,
    elements: Array<'m, T>,
    count: usize,
}

impl<'m, T: Copy> List<'m, T> {
    pub(super) fn new(memory: &'m Memory) -> List<'m, T> {
        let elements = Array { memory, start: NonNull::dangling(), count: 0, elements: PhantomData };
        List { memory, elements, count: 0 }
    }

    pub(super) fn push(&mut self, value: T) -> Result<(), Status> {
        if self.count == self.elements.len() {
            let mut larger = self.memory.array((2 * self.count).max(64), value)?;
            if let Some(start) = larger.get_mut(..self.count) {
                start.copy_from_slice(&self.elements);
            }
            self.elements = larger;
        }
        if let Some(place) = self.elements.get_mut(self.count) {
            *place = value;
        }
        self.count += 1;
        Ok(())
    }

    pub(super) fn extend(&mut self, values: &[T]) -> Result<(), Status> {
        values.iter().try_for_each(|&value| self.push(value))
    }

    /// Keeps the first `count` elements at most.
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// Removes the first `count` elements, or all.
    pub(super) fn drop_front(&mut self, count: usize) {
        let count = count.min(self.count);
        self.elements.copy_within(count..self.count, 0);
        self.count -= count;
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn memory(&self) -> &'m Memory {
        self.memory
    }
}

impl<T: Copy> std::ops::Deref for List<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.elements.get(..self.count).unwrap_or_default()
    }
}

impl<T: Copy> std::ops::DerefMut for List<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements.get_mut(..self.count).unwrap_or_default()
    }
}
