//! Shared helpers of the test binaries.

pub mod object;
