//! Wide-vector kernels for x86-64, beside Cranelift, whose vectors there have 128 bits.
//!
//! [`compile`] takes a kernel of the loop IR that was lowered for vectors of 256 or 512 bits: `vector` turns it into the
//! vector IR, `alloc` gives registers, `encode` makes machine code. What the processor has is an `Isa` value: either AVX2,
//! whose 16 registers also serve as masks, or AVX-512, with 32 registers and masks apart. Lanes have 32 or 64 bits; smaller
//! elements are widened when they are loaded and packed before they are stored, so that a kernel of mixed types has as
//! many lanes as a vector holds of the widest. What the vector IR refuses is compiled by Cranelift at its own width.

mod alloc;
mod codes;
mod codes64;
#[cfg(all(test, target_arch = "x86_64", unix))]
pub mod emulator;
mod encode;
mod forms;
mod small;
#[cfg(all(test, target_arch = "x86_64", unix))]
mod tests;

use crate::codegen::Code;
use crate::error::{Error, Result, Stage};
use crate::loops::Kernel;
use crate::target::Target;
use crate::vector;

/// Most stack of a kernel besides the memory that it asks for, bytes: what it spills beyond this is more than its vectors
/// gain.
const MAX_SPILLS: u32 = 16 << 10;

/// Machine code of a kernel that was lowered for `target` as leaf kernels see it ([`Target::leaf`]), or why it is left
/// to Cranelift. Errors are internal.
pub fn compile(kernel: &Kernel, target: &Target) -> Result<std::result::Result<Code, String>> {
    let Some(isa) = target.wide else { return Ok(Err("no wide vectors".to_string())) };
    let func = match vector::lower(kernel, isa) {
        Ok(func) => func,
        Err(reason) => return Ok(Err(reason)),
    };
    let encode::Machine { bytes, instructions, stack } = encode::compile(&func, isa)
        .map_err(|text| Error::internal(Stage::Codegen, format!("kernel `{}`: {text}", kernel.name)))?;
    let spills = stack.saturating_sub(func.frame as u32);
    if spills > MAX_SPILLS {
        return Ok(Err(format!("{spills} bytes of spills")));
    }
    Ok(Ok(Code { name: kernel.name.clone(), bytes, instructions, align: encode::ALIGN, stack }))
}
