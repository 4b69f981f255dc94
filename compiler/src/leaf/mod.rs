//! Wide-vector kernels for x86-64, beside Cranelift, whose vectors there have 128 bits.
//!
//! [`compile`] takes a kernel of the loop IR that was lowered for vectors of 256 bits: `select` turns it into the
//! vector IR of [`ir`], `alloc` gives that registers, `encode` makes machine code of it. A kernel that holds anything
//! the vector IR has no form for is refused, and is compiled by Cranelift at its own width.

mod address;
mod alloc;
mod encode;
mod forms;
pub mod ir;
mod select;
#[cfg(all(test, target_arch = "x86_64", unix))]
mod tests;
mod value;
mod verify;

use crate::codegen::Code;
use crate::error::{Error, Result, Stage};
use crate::loops::Kernel;

/// Machine code of a kernel, or why it is left to Cranelift. Errors are internal.
pub fn compile(kernel: &Kernel) -> Result<std::result::Result<Code, String>> {
    let func = match select::select(kernel) {
        Ok(func) => func,
        Err(select::Refusal(reason)) => return Ok(Err(reason)),
    };
    let encode::Machine { bytes, instructions } = encode::compile(&func)
        .map_err(|text| Error::internal(Stage::Codegen, format!("kernel `{}`: {text}", kernel.name)))?;
    Ok(Ok(Code { name: kernel.name.clone(), bytes, instructions, align: encode::ALIGN }))
}
