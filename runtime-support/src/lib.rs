//! The tiny runtime of models compiled by `onnxc`: a thread pool and an allocator behind the C ABI of
//! `include/onnxc.h`, that ABI's types for Rust programs, limits for services, and what models of strings call. Other models link without
//! it; numerics are never here.

pub mod abi;
pub mod alloc;
pub mod custom;
pub mod limits;
pub mod pool;
pub mod ranks;
pub mod sha256;
pub mod strings;
pub mod trace;
pub mod weights;

pub use abi::{Model, Options, Status, StringView, Tensor, ValueInfo};
pub use alloc::AlignedBytes;
pub use pool::Pool;

/// The C header of models, `onnxc.h`.
pub const HEADER: &str = include_str!("../include/onnxc.h");
