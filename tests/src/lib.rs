//! Shared helpers of the test binaries.

pub mod abi;
pub mod bench;
pub mod compile;
pub mod cross;
pub mod differential;
pub mod drawn;
pub mod emulator;
pub mod expected;
pub mod fuzz;
pub mod graphs;
pub mod harness;
pub mod hostile;
pub mod interpreted;
pub mod machine;
pub mod measure;
pub mod misuse;
pub mod object;
pub mod onnx_env;
pub mod prefix;
pub mod proof;
pub mod remote;
pub mod sample_models;
pub mod scaling;
pub mod stack;
pub mod suite;
pub mod variant;
