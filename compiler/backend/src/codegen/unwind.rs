//! The unwind records of what Cranelift compiled.

use cranelift_codegen::CompiledCode;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::isa::unwind::{UnwindInfo, UnwindInfoKind, UnwindInst};
use onnxc_machine::target::{Dwarf, Records};
use onnxc_machine::unwind::{Does, END, FRAME_POINTER, PrologueStep, WORD, arm64, dwarf, x64};

/// The record of a function that Cranelift compiled, empty where the target has none.
pub fn of_compiled(
    compiled: &CompiledCode,
    isa: &dyn TargetIsa,
    form: Option<Records>,
) -> Result<Vec<u8>, String> {
    let bytes = compiled.code_buffer().len();
    match form {
        None => Ok(vec![]),
        Some(Records::X64) => x64(&steps(compiled, Does::Push(FRAME_POINTER))?),
        Some(Records::Dwarf(machine)) => {
            let push = match machine {
                Dwarf::X64 => Does::Push(FRAME_POINTER),
                Dwarf::Arm64 => Does::PushFrame(2 * WORD),
            };
            Ok(dwarf(&steps(compiled, push)?, machine))
        }
        Some(Records::Arm64) => {
            let info = compiled.create_unwind_info_of_kind(isa, UnwindInfoKind::Windows);
            let Some(UnwindInfo::WindowsArm64(info)) = info.map_err(|error| error.to_string())? else {
                return Err("Cranelift gave no unwind information".into());
            };
            // What is not written stays, as the end of the codes.
            let mut codes = vec![END; 4 * usize::from(info.code_words())];
            info.emit(&mut codes);
            arm64(codes, bytes)
        }
    }
}

/// Cranelift points the frame pointer at what it has pushed, and saves registers below: as if it had lowered the stack pointer to the
/// lowest of these first.
fn steps(compiled: &CompiledCode, push: Does) -> Result<Vec<PrologueStep>, String> {
    let mut steps: Vec<PrologueStep> = vec![];
    for &(end, ref inst) in &compiled.buffer.unwind_info {
        let is_pointed = steps.iter().any(|step| matches!(step.does, Does::Point(_)));
        let mut does = |does| steps.push(PrologueStep { end, does });
        match *inst {
            UnwindInst::PushFrameRegs { .. } => does(push),
            UnwindInst::DefineNewFrame { offset_downward_to_clobbers, .. } => {
                if offset_downward_to_clobbers > 0 {
                    does(Does::Allocate(offset_downward_to_clobbers));
                }
                does(Does::Point(offset_downward_to_clobbers));
            }
            UnwindInst::SaveReg { clobber_offset, reg } => {
                let number = reg.hw_enc();
                does(match reg.class() {
                    regalloc2::RegClass::Int => Does::Save(number, clobber_offset),
                    _ => Does::SaveVector(number, clobber_offset),
                });
            }
            // For Apple's systems: return addresses are as they are.
            UnwindInst::Aarch64SetPointerAuth { return_addresses: false } => {}
            // The frame pointer stays where it is.
            UnwindInst::StackAlloc { .. } if is_pointed => {}
            ref other => return Err(format!("a step of a prologue that is not known: {other:?}")),
        }
    }
    Ok(steps)
}
