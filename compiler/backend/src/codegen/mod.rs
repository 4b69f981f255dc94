//! Kernels to machine code by way of Cranelift: one self-contained function per kernel, on every target.
//!
//! A kernel's code calls nothing and refers to nothing outside itself, so kernels compile independently
//! of each other, in parallel, and their bytes go into an object as they are. `vector` selects instructions for the
//! target's [`Isa`](onnxc_machine::vector::isa::Isa) of Cranelift, `clif` writes them as Cranelift IR; `onnxc_object::emit` makes
//! the object file and the C header around the kernels.

mod clif;
pub mod isa;
pub mod kernels;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod unwind;

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::{CompiledCode, Context};

use crate::vector;
use onnxc_ir::error::{Error, Result, Stage};
#[cfg(not(any(test, feature = "disasm")))]
use onnxc_ir::error::{Kind, without};
use onnxc_ir::graph::dim::overgrown;
use onnxc_loops::{Kernel, LoopKind, Stmt};
use onnxc_machine::target::Target;
use onnxc_machine::vector::verify;

/// Machine code of one kernel. It has no relocations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    pub name: String,
    /// Instructions, followed by the constants they refer to.
    pub bytes: Vec<u8>,
    /// Bytes of the instructions.
    pub instructions: usize,
    /// Bytes, a power of two.
    pub align: u32,
    /// Bytes of stack, with the address to return to.
    pub stack: u32,
    /// The record of its prologue for unwinders, where the target has those.
    pub unwind: Vec<u8>,
}

/// Compiles a kernel for `isa`, one of `target.isa(..)`; [`prefers_speed`] says which serves it best.
///
/// Errors are internal: a kernel that breaks the loop IR's rules, or a transcendental function that
/// should have been expanded before.
pub fn compile(kernel: &Kernel, isa: &dyn TargetIsa, target: &Target) -> Result<Code> {
    let context = compile_context(kernel, isa, target)?;
    let compiled = context.compiled_code().ok_or_else(|| fail(kernel, "no code was made"))?;
    if let Some(relocation) = compiled.buffer.relocs().first() {
        return Err(fail(kernel, &format!("refers to {:?}", relocation.target)));
    }
    let bytes = compiled.code_buffer().to_vec();
    Ok(Code {
        name: kernel.name.clone(),
        // Cranelift does not report where its constants begin.
        instructions: bytes.len(),
        bytes,
        align: compiled.buffer.alignment.max(16),
        stack: stack_bytes(compiled),
        unwind: unwind::of_compiled(compiled, isa, target.unwind_records())
            .map_err(|text| fail(kernel, &text))?,
    })
}

/// Bytes of stack of a compiled function: its frame, and the address to return to and the frame pointer above it.
pub fn stack_bytes(compiled: &CompiledCode) -> u32 {
    let frame = compiled.buffer.frame_layout().map_or(0, |layout| layout.frame_to_fp_offset);
    frame.saturating_add(16)
}

/// Assembly of a kernel's code with the offset of each instruction.
#[cfg(any(test, feature = "disasm"))]
pub fn disassemble(code: &Code, isa: &dyn TargetIsa) -> Result<String> {
    let failed = |error: String| Error::internal(Stage::Codegen, format!("kernel `{}`: {error}", code.name));
    let capstone = isa.to_capstone().map_err(|error| failed(error.to_string()))?;
    let bytes = &code.bytes[..code.instructions];
    let listing = capstone.disasm_all(bytes, 0).map_err(|error| failed(error.to_string()))?;
    Ok(listing.iter().map(|instruction| format!("{instruction}\n")).collect())
}

/// There is no disassembler in this build.
#[cfg(not(any(test, feature = "disasm")))]
pub fn disassemble(_: &Code, _: &dyn TargetIsa) -> Result<String> {
    Err(Error::new(Stage::Codegen, Kind::Usage, without("disassembler", "disasm")))
}

/// Cranelift IR of a kernel as text.
pub fn clif(kernel: &Kernel, isa: &dyn TargetIsa, target: &Target) -> Result<String> {
    Ok(function(kernel, isa, target)?.display().to_string())
}

/// Whether a kernel gains from Cranelift's optimizer. It does unless the kernel holds vector loops, whose
/// order of instructions is chosen here: the optimizer moves pure instructions and spills accumulators.
pub fn prefers_speed(kernel: &Kernel) -> bool {
    fn has_vectors(body: &[Stmt]) -> bool {
        body.iter().any(|stmt| match stmt {
            Stmt::For { kind: LoopKind::Vector, .. } => true,
            Stmt::For { body, .. } => has_vectors(body),
            Stmt::If { then, otherwise, .. } => has_vectors(then) || has_vectors(otherwise),
            _ => false,
        })
    }
    !has_vectors(&kernel.body)
}

/// Cranelift IR of a kernel.
pub fn function(kernel: &Kernel, isa: &dyn TargetIsa, target: &Target) -> Result<Function> {
    let machine = target.narrow;
    let func = vector::lower(kernel, machine).map_err(|reason| refused(kernel, &reason))?;
    if cfg!(debug_assertions) {
        let checked = verify::verify(&func).and_then(|()| verify::check(&func, machine));
        checked.map_err(|text| fail(kernel, &text))?;
    }
    clif::function(&func, machine, isa).map_err(|text| fail(kernel, &text))
}

fn compile_context(kernel: &Kernel, isa: &dyn TargetIsa, target: &Target) -> Result<Context> {
    let func: Function = function(kernel, isa, target)?;
    let mut context = Context::for_function(func);
    context
        .compile(isa, &mut ControlPlane::default())
        .map_err(|e| fail(kernel, &format!("{:?}", e.inner)))?;
    Ok(context)
}

/// Selection for Cranelift refuses nothing but sizes that were given up.
fn refused(kernel: &Kernel, reason: &str) -> Error {
    match reason {
        vector::OVERGROWN => overgrown(Stage::Codegen, "an index of a kernel"),
        _ => fail(kernel, reason),
    }
}

fn fail(kernel: &Kernel, message: &str) -> Error {
    Error::internal(Stage::Codegen, format!("kernel `{}`: {message}", kernel.name))
}
