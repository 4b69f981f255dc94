//! What onnxc knows of machines: targets, the vector IR, and unwind records. Nothing here makes code.

pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unwind;
pub mod vector;
