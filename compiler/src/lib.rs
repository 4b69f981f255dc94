//! onnxc: an ahead-of-time compiler from ONNX models to native object files.

pub mod cli;
pub mod codegen;
pub mod error;
pub mod graph;
pub mod import;
pub mod infer;
pub mod interp;
pub mod loops;
pub mod op;
pub mod pass;
pub mod scalar;
pub mod schedule;
pub mod target;
