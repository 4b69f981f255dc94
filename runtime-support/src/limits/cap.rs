//! An allocator with a limit on the bytes in use.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::alloc::{onnxc_allocate, onnxc_release};

/// `onnxc_cap`: memory of [`onnxc_allocate`], at most `limit` bytes at a time, for any number of threads. A cap that is part of another
/// one counts there too: a service has one for each run, and one for all runs.
pub struct Cap<'w> {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    whole: Option<&'w Cap<'w>>,
}

impl<'w> Cap<'w> {
    pub const fn new(limit: usize) -> Cap<'w> {
        Cap::part(None, limit)
    }

    /// A part of `whole`, if there is one.
    pub const fn part(whole: Option<&'w Cap<'w>>, limit: usize) -> Cap<'w> {
        Cap { limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0), whole }
    }

    /// Bytes that are in use now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that were in use at once, at most.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// What `onnxc_options.allocator` is, for [`onnxc_cap_allocate`] and [`onnxc_cap_release`].
    pub fn as_allocator(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    /// Counts bytes as in use, here and where it is part of; changes nothing where they are too many.
    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= self.limit);
        let Ok(before) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            return false;
        };
        if self.whole.is_some_and(|whole| !whole.take(bytes)) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        true
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = self.whole {
            whole.give_back(bytes);
        }
    }
}

/// `onnxc_cap_create`
///
/// # Safety
/// `whole` is null or a cap that outlives the new one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_create(whole: *mut Cap<'static>, limit: usize) -> *mut Cap<'static> {
    // SAFETY: the caller says so.
    let whole = unsafe { whole.as_ref() };
    Box::into_raw(Box::new(Cap::part(whole, limit)))
}

/// `onnxc_cap_destroy`
///
/// # Safety
/// `cap` is null or came from `onnxc_cap_create`, and nothing of its memory is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_destroy(cap: *mut Cap<'static>) {
    if !cap.is_null() {
        // SAFETY: the caller says so.
        drop(unsafe { Box::from_raw(cap) });
    }
}

/// `onnxc_cap_used`
///
/// # Safety
/// `cap` is null or a cap; likewise below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_used(cap: *const Cap<'static>) -> usize {
    // SAFETY: the caller says so.
    unsafe { cap.as_ref() }.map_or(0, Cap::used)
}

/// `onnxc_cap_peak`
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_peak(cap: *const Cap<'static>) -> usize {
    // SAFETY: the caller says so.
    unsafe { cap.as_ref() }.map_or(0, Cap::peak)
}

/// `onnxc_cap_allocate`: for `onnxc_options.allocate`.
///
/// # Safety
/// `cap` is null, or a cap that stays until the memory is given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_allocate(cap: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: the caller says so.
    let Some(cap) = (unsafe { cap.cast::<Cap<'_>>().as_ref() }) else { return null_mut() };
    if !cap.take(bytes) {
        return null_mut();
    }
    // SAFETY: it has none.
    let memory = unsafe { onnxc_allocate(null_mut(), bytes, alignment) };
    if memory.is_null() {
        cap.give_back(bytes);
    }
    memory
}

/// `onnxc_cap_release`: for `onnxc_options.release`.
///
/// # Safety
/// `memory` is null or came from `onnxc_cap_allocate` with this cap and these sizes, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_cap_release(
    cap: *mut c_void,
    memory: *mut c_void,
    bytes: usize,
    alignment: usize,
) {
    // SAFETY: the caller says so.
    if let Some(cap) = unsafe { cap.cast::<Cap<'_>>().as_ref() }.filter(|_| !memory.is_null()) {
        // SAFETY: likewise.
        unsafe { onnxc_release(null_mut(), memory, bytes, alignment) };
        cap.give_back(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(cap: &Cap<'_>, bytes: usize) -> *mut c_void {
        // SAFETY: the cap stays, and every block is given back below.
        unsafe { onnxc_cap_allocate(cap.as_allocator(), bytes, 64) }
    }

    fn release(cap: &Cap<'_>, memory: *mut c_void, bytes: usize) {
        // SAFETY: as above.
        unsafe { onnxc_cap_release(cap.as_allocator(), memory, bytes, 64) };
    }

    #[test]
    fn parts_and_the_whole_have_limits() {
        let whole = Cap::new(1000);
        let (a, b) = (Cap::part(Some(&whole), 600), Cap::part(Some(&whole), 600));
        let first = allocate(&a, 600);
        assert!(!first.is_null() && allocate(&a, 1).is_null());
        let second = allocate(&b, 400);
        assert!(!second.is_null() && allocate(&b, 1).is_null(), "the whole is full");
        assert!(allocate(&b, usize::MAX).is_null());
        assert_eq!((a.used(), b.used(), whole.used()), (600, 400, 1000));
        release(&a, first, 600);
        release(&b, std::ptr::null_mut(), 7);
        assert_eq!((a.used(), whole.used(), whole.peak()), (0, 400, 1000));
        release(&b, second, 400);
        assert_eq!((b.used(), whole.used(), b.peak()), (0, 0, 400));
    }

    #[test]
    fn threads_never_exceed_it() {
        let cap = Cap::new(64 * 10);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let memory = [(); 4].map(|()| allocate(&cap, 64));
                        assert!(cap.used() <= 640);
                        memory.into_iter().for_each(|memory| release(&cap, memory, 64));
                    }
                });
            }
        });
        assert!(cap.used() == 0 && cap.peak() <= 640);
    }
}
