//! What prologues do to the stack, and the unwind records of Windows: exceptions, debuggers and profilers find their way through a function
//! by them. Other systems get none.
//!
//! A back end lists the steps of a prologue, and this module writes them: on x86-64 as `UNWIND_INFO` (Microsoft, "x64 exception
//! handling"), on aarch64 as a record of `.xdata` ("ARM64 exception handling"). What a step saves lies where the prologue has
//! put it until the function returns.

use crate::target::Records;
use cranelift_codegen::CompiledCode;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::isa::unwind::{UnwindInfo, UnwindInfoKind, UnwindInst};

/// A step of a prologue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Bytes from the start of the function to the end of the instruction that does it.
    pub end: u32,
    pub does: Does,
}

/// Registers by their numbers in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// Pushes a general register.
    Push(u8),
    /// Lowers the stack pointer by this number of bytes.
    Allocate(u32),
    /// Sets the frame pointer to this number of bytes above the stack pointer, as it is after the steps before.
    Point(u32),
    /// Stores a general register at this offset from that stack pointer.
    Save(u8, u32),
    /// Likewise the lower 128 bits of a vector.
    SaveVector(u8, u32),
}

/// The frame pointer, `rbp`.
const FRAME_POINTER: u8 = 5;

/// Codes of `UNWIND_CODE`.
const PUSH_NONVOL: u8 = 0;
const ALLOC_LARGE: u8 = 1;
const ALLOC_SMALL: u8 = 2;
const SET_FPREG: u8 = 3;
const SAVE_NONVOL: u8 = 4;
const SAVE_XMM128: u8 = 8;

/// Most bytes of a small allocation.
const SMALL_BYTES: u32 = 128;

/// The record of a function with this prologue on x86-64. Errors: a step that the format has no room for.
pub fn x64(steps: &[Step]) -> Result<Vec<u8>, String> {
    let no_room = |step: &Step| format!("no record for unwinders holds {step:?}");
    let mut frame = 0;
    let mut codes = vec![];
    // The last step comes first.
    for step in steps.iter().rev() {
        let end = u8::try_from(step.end).map_err(|_| no_room(step))?;
        let mut code = |operation: u8, info: u8, operand: Option<u32>| {
            codes.extend([end, info << 4 | operation]);
            match operand.map(u16::try_from) {
                None => Ok(()),
                Some(Ok(operand)) => {
                    codes.extend(operand.to_le_bytes());
                    Ok(())
                }
                Some(Err(_)) => Err(no_room(step)),
            }
        };
        match step.does {
            Does::Push(register) => code(PUSH_NONVOL, register, None)?,
            Does::Allocate(bytes) if !bytes.is_multiple_of(8) || bytes == 0 => return Err(no_room(step)),
            Does::Allocate(bytes @ ..=SMALL_BYTES) => code(ALLOC_SMALL, (bytes / 8 - 1) as u8, None)?,
            Does::Allocate(bytes) => code(ALLOC_LARGE, 0, Some(bytes / 8))?,
            Does::Point(above) => {
                let sixteens = above / 16;
                if !above.is_multiple_of(16) || sixteens > 15 {
                    return Err(no_room(step));
                }
                frame = (sixteens as u8) << 4 | FRAME_POINTER;
                code(SET_FPREG, 0, None)?;
            }
            Does::Save(register, at) if at.is_multiple_of(8) => code(SAVE_NONVOL, register, Some(at / 8))?,
            Does::SaveVector(register, at) if at.is_multiple_of(16) => {
                code(SAVE_XMM128, register, Some(at / 16))?;
            }
            Does::Save(..) | Does::SaveVector(..) => return Err(no_room(step)),
        }
    }
    let words = u8::try_from(codes.len() / 2).map_err(|_| "too many steps for unwinders".to_string())?;
    let prologue = steps.last().map_or(0, |step| step.end as u8);
    // Version 1, without a handler.
    let mut record = vec![1, prologue, words, frame];
    record.extend(codes);
    record.resize(record.len().next_multiple_of(4), 0);
    Ok(record)
}

/// Ends the codes of aarch64.
const END: u8 = 0xe4;

/// The record of a function of `bytes` bytes on aarch64; `codes` are those of its prologue, the last instruction first. Errors:
/// what the format has no room for.
pub fn arm64(mut codes: Vec<u8>, bytes: usize) -> Result<Vec<u8>, String> {
    codes.push(END);
    codes.resize(codes.len().next_multiple_of(4), END);
    let (words, length) = (codes.len() / 4, bytes / 4);
    if words >= 1 << 5 || length >= 1 << 18 {
        return Err(format!(
            "no record for unwinders holds {words} words of codes for {bytes} bytes of code"
        ));
    }
    // Version 0, without a handler and without epilogues.
    let header = (words as u32) << 27 | length as u32;
    Ok([header.to_le_bytes().to_vec(), codes].concat())
}

/// The record of a function that Cranelift compiled, empty where the target has none.
pub fn of_compiled(
    compiled: &CompiledCode,
    isa: &dyn TargetIsa,
    form: Option<Records>,
) -> Result<Vec<u8>, String> {
    let bytes = compiled.code_buffer().len();
    match form {
        None => Ok(vec![]),
        Some(Records::X64) => x64(&steps(compiled)?),
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

/// Cranelift points `rbp` at what it has pushed, and saves registers below: as if it had lowered the stack pointer to the
/// lowest of these first.
fn steps(compiled: &CompiledCode) -> Result<Vec<Step>, String> {
    let mut steps = vec![];
    for &(end, ref inst) in &compiled.buffer.unwind_info {
        let mut does = |does| steps.push(Step { end, does });
        match *inst {
            UnwindInst::PushFrameRegs { .. } => does(Does::Push(FRAME_POINTER)),
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
            ref other => return Err(format!("a step of a prologue that is not known: {other:?}")),
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Microsoft's documentation: a push, an allocation, a frame pointer and two saves.
    #[test]
    fn steps_are_written_from_the_last_one_on() {
        let steps = [
            Step { end: 2, does: Does::Push(15) },
            Step { end: 9, does: Does::Allocate(0x100) },
            Step { end: 13, does: Does::Point(0x20) },
            Step { end: 18, does: Does::SaveVector(7, 0x30) },
            Step { end: 23, does: Does::Save(6, 0x18) },
        ];
        let wanted =
            [[1, 23, 8, 0x25], [23, 0x64, 3, 0], [18, 0x78, 3, 0], [13, 0x03, 9, 0x01], [0x20, 0, 2, 0xf0]];
        assert_eq!(x64(&steps).unwrap(), wanted.concat());
        // An odd number of words is filled up.
        let push = Step { end: 1, does: Does::Push(3) };
        assert_eq!(x64(&[push]).unwrap(), [1, 1, 1, 0, 1, 0x30, 0, 0]);
        assert_eq!(x64(&[]).unwrap(), [1, 0, 0, 0]);
        let small = Step { end: 4, does: Does::Allocate(0x80) };
        assert_eq!(x64(&[small]).unwrap()[4..6], [4, 0xf2]);
    }

    #[test]
    fn codes_are_filled_up_behind_their_end() {
        assert_eq!(arm64(vec![], 8).unwrap(), [2, 0, 0, 8, END, END, END, END]);
        let record = arm64(vec![0xe1, 0xc8, 2, 0x81], 0x404).unwrap();
        assert_eq!(record, [1, 1, 0, 0x10, 0xe1, 0xc8, 2, 0x81, END, END, END, END]);
        assert!(arm64(vec![], 1 << 20).unwrap_err().contains("1048576 bytes"));
        assert!(arm64(vec![0xe3; 124], 8).is_err());
    }

    #[test]
    fn what_the_format_has_no_room_for_is_refused() {
        for (end, does) in [
            (256, Does::Push(3)),
            (4, Does::Allocate(12)),
            (4, Does::Allocate(0)),
            (4, Does::Allocate(1 << 20)),
            (4, Does::Point(256)),
            (4, Does::Point(8)),
            (4, Does::Save(3, 4)),
            (4, Does::SaveVector(6, 8)),
        ] {
            let error = x64(&[Step { end, does }]).unwrap_err();
            assert!(error.contains(&format!("{does:?}")), "{error}");
        }
    }
}
