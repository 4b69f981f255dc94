//! The host program: an IR for everything that a model does outside of its kernels, between schedule and machine code.
//!
//! [`lower`] makes it of a schedule: sizes and checks, blocks that a run allocates and gives back, calls of kernels, loops
//! and choices, the entry points of the C ABI. A program prints ([`mod@print`]), is read ([`parse`]), verified ([`verify`])
//! and interpreted ([`interp`]); [`emit`](crate::emit) writes it as Cranelift IR.

pub mod abi;
pub mod block;
pub mod interp;
pub mod ir;
pub mod lower;
pub mod message;
pub mod parse;
pub mod print;
#[cfg(test)]
mod tests;
pub mod verify;

use onnxc_ir::graph::Dim;

/// What one step of the compiled program does; its number is passed to `step_done`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepInfo {
    /// Name of the kernel, or `copy` or `scan`.
    pub kernel: String,
    /// The ONNX nodes computed, as `name (OpType)`.
    pub nodes: Vec<String>,
    /// Their operators, of a kernel each run of the same once.
    pub operators: Vec<String>,
    /// Type of the first result of a kernel.
    pub result: Option<String>,
    /// Operations of a kernel, and the bytes that it reads and writes at the least.
    pub flops: Dim,
    pub bytes: Dim,
    /// 0 for the model's own steps, else the number of the scan body.
    pub scope: usize,
    /// Why the kernel for the best processors is not a leaf kernel, where it could be one.
    pub refusal: Option<String>,
}
