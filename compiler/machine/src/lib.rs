//! What onnxc knows of machines: targets, the vector IR, unwind records and the numbers in them. Nothing here makes code.

pub mod leb128;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod unwind;
pub mod vector;
