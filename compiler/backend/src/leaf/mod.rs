//! Kernels in machine code of our own, beside Cranelift: wide vectors on x86-64, where those of Cranelift have 128 bits, and
//! on aarch64 all registers, and instructions that Cranelift has no word for.
//!
//! [`compile`] takes a kernel of the loop IR that was lowered for leaf kernels: `vector` turns it into the
//! vector IR, `ahead` moves loads up and `constants` gives registers to constants of loops where the machine wants it, `alloc` gives
//! registers to all other values, and the module of the architecture makes machine code. What the processor has is an `Isa` value.
//! Lanes have 32 or 64 bits; smaller elements are widened when they are loaded and packed before they are stored, so that the widest type
//! determines the lanes of a kernel of mixed types. What the vector IR refuses is compiled by Cranelift at its own width.

pub mod aarch64;
mod ahead;
mod alloc;
mod constants;
mod live;
pub mod x86_64;

use crate::codegen::Code;
use crate::vector;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_loops::Kernel;
use onnxc_machine::vector::ir::Func;
use onnxc_machine::vector::isa::{Encoding, Isa};

/// Most stack of a kernel besides the memory that it asks for, bytes: what it spills beyond this is more than its vectors
/// gain.
const MAX_SPILLS: u32 = 16 << 10;

/// Most bytes of spilled values and of a function's own memory.
const MAX_FRAME: usize = 1 << 20;

/// Machine code of a function.
pub struct LeafCode {
    /// Instructions, then the constants they refer to.
    pub bytes: Vec<u8>,
    /// Bytes of the instructions.
    pub instructions: usize,
    /// Of the function, in bytes.
    pub align: u32,
    /// Bytes of stack, with the address to return to.
    pub stack: u32,
    /// The record of its prologue for unwinders, where the target has those.
    pub unwind: Vec<u8>,
}

/// Why there is no machine code.
#[derive(Debug)]
pub enum Failure {
    /// The kernel is left to Cranelift.
    Refused(String),
    /// A fault of the compiler.
    Internal(String),
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Internal(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Failure {
        Failure::Internal(text.into())
    }
}

fn encode(func: &Func, isa: Isa) -> std::result::Result<LeafCode, Failure> {
    match isa.encoding {
        Encoding::Vex | Encoding::Evex => x86_64::encode::compile(func, isa),
        Encoding::Neon => aarch64::compile(func, isa),
        Encoding::Cranelift => Err("no machine of leaf kernels".into()),
    }
}

/// Machine code of a kernel that was lowered for a core with these instructions ([`Core::wide`](onnxc_machine::target::Core)), or why it
/// is left to Cranelift. Errors are internal.
pub fn compile(kernel: &Kernel, isa: Isa) -> Result<std::result::Result<Code, String>> {
    let func = match vector::lower(kernel, isa) {
        Ok(func) => func,
        Err(reason) => return Ok(Err(reason)),
    };
    let LeafCode { bytes, instructions, align, stack, unwind } = match encode(&func, isa) {
        Ok(machine) => machine,
        Err(Failure::Refused(reason)) => return Ok(Err(reason)),
        Err(Failure::Internal(text)) => {
            return Err(Error::internal(Stage::Codegen, format!("kernel `{}`: {text}", kernel.name)));
        }
    };
    let spills = stack.saturating_sub(func.frame as u32);
    if spills > MAX_SPILLS {
        return Ok(Err(format!("{spills} bytes of spills")));
    }
    Ok(Ok(Code { name: kernel.name.clone(), bytes, instructions, align, stack, unwind }))
}
