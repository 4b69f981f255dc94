//! Shared helpers of the test binaries.

pub mod object;
pub mod onnx_env;
