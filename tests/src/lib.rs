//! Shared helpers of the test binaries.

pub mod onnx_env;
pub mod object;
