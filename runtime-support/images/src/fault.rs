//! Why a stream gives no image.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The stream is broken, or of a kind that is not read: the operator's result is empty.
    Undecodable,
    /// The image needs more memory than there is, or than [`LIMIT`](crate::image::LIMIT).
    Memory,
    /// The stream asks for more work than its bytes may: it goes over the same pixels again and again, or is cut into more
    /// parts than any encoder makes. Each decoder says how much it does.
    Work,
    /// The caller's `cancel` was set.
    Cancelled,
}

/// The stream contradicts itself or ends too soon.
pub fn broken() -> Fault {
    Fault::Undecodable
}

/// The stream may be good, but is of a kind that is not read.
pub fn unsupported() -> Fault {
    Fault::Undecodable
}
