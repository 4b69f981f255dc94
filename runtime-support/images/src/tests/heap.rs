//! How much memory a decoder takes at once.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has now, and had at most.
    static HEAP: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    let _ = HEAP.try_with(|heap| {
        let now = heap.get().0 + bytes;
        heap.set((now, heap.get().1.max(now)));
    });
}

// SAFETY: the system's allocator does it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's word.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's word.
        unsafe { System.alloc_zeroed(layout) }
    }
}

/// What `body` gives, and the bytes that it took at once on this thread. That there is memory is asked for by taking it, so a
/// decoder's own estimate counts.
pub(super) fn peak<T>(body: impl FnOnce() -> T) -> (T, usize) {
    let before = HEAP.get().0;
    HEAP.set((before, before));
    let result = body();
    (result, (HEAP.get().1 - before) as usize)
}
