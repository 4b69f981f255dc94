//! What the functions of `calls.rs` are given, checked.

use crate::abi::Status;

use super::table::State;

pub(super) fn status(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::OK)
}

/// Bytes of elements, where their number is valid.
pub(super) fn bytes(elements: i64, each: usize) -> Result<usize, Status> {
    let bytes = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(each));
    bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or(Status::BAD_SIZE)
}

/// The state that a function uses, in which no element has failed yet.
///
/// # Safety
/// `state` is null, or points to a state that is open and that nobody else uses meanwhile.
pub(super) unsafe fn open<'a>(state: *mut State) -> Result<&'a State, Status> {
    // SAFETY: the caller says so.
    let state = unsafe { state.as_ref() }.ok_or(Status::NULL_POINTER)?;
    state.blame(None);
    Ok(state)
}

/// # Safety
/// `start` points to `n` elements that nobody writes meanwhile, if that is more than 0, or is null.
pub(super) unsafe fn input<'a, T>(start: *const T, n: i64) -> Result<&'a [T], Status> {
    bytes(n, size_of::<T>())?;
    match n {
        0 => Ok(&[]),
        _ if start.is_null() => Err(Status::NULL_POINTER),
        // SAFETY: the caller says so; they are not too many.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, n as usize) }),
    }
}

/// # Safety
/// `start` points to `n` elements that nobody else uses meanwhile, if that is more than 0, or is null.
pub(super) unsafe fn output<'a, T>(start: *mut T, n: i64) -> Result<&'a mut [T], Status> {
    bytes(n, size_of::<T>())?;
    match n {
        0 => Ok(&mut []),
        _ if start.is_null() => Err(Status::NULL_POINTER),
        // SAFETY: the caller says so; they are not too many.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start, n as usize) }),
    }
}
