//! For services that run models on inputs of strangers: memory that has a limit, runs that have a deadline, sizes that are checked
//! before anything is allocated for them, and buffers that are checked to lie apart. Documented in `onnxc.h`; nothing here is
//! needed to run a model.

mod cap;
mod overlap;
mod sizes;
mod watchdog;

pub use cap::*;
pub use overlap::*;
pub use sizes::*;
pub use watchdog::*;

use std::ffi::c_char;

use crate::abi::Status;

/// What is wrong with the arguments of a run, as a run would say it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub status: Status,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// The status of a check; describes a failure as a run does, zero-terminated and cut.
///
/// # Safety
/// `message` is null, or has `capacity` bytes.
pub(crate) unsafe fn report(result: Result<(), Refusal>, message: *mut c_char, capacity: usize) -> Status {
    let Err(refusal) = result else { return Status::OK };
    if !message.is_null() && capacity > 0 {
        let text = refusal.message.as_bytes();
        let length = text.len().min(capacity - 1);
        // SAFETY: the caller says so, and one byte is left for the end.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), message.cast(), length);
            message.add(length).write(0);
        }
    }
    refusal.status
}
