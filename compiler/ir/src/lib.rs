//! The tensor IR of onnxc, and what every layer shares: errors, rules, scalar functions.

pub mod borders;
pub mod build;
pub mod digest;
pub mod error;
pub mod graph;
pub mod interp;
mod primitives;
pub mod rules;
pub mod scalar;
pub mod verify;
pub mod winograd;
pub mod words;

pub use primitives::{eval, infer};
