//! What prologues do to the stack, as records: exceptions, debuggers and profilers find their way through a function by them.
//!
//! A back end lists the steps of a prologue, and this module writes them. In COFF objects they are `UNWIND_INFO` on x86-64 (Microsoft, "x64
//! exception handling") and a record of `.xdata` on aarch64 ("ARM64 exception handling"). In ELF and Mach-O objects they are the entries
//! of `.eh_frame` (DWARF 5, section 6.4, and the Linux Standard Base, section 10.6). What a step saves lies where the prologue has put it
//! until the function returns. Epilogues have no steps: within their few instructions, an unwinder of DWARF may lose its way.

use crate::leb128;
use crate::target::Dwarf;

/// A step of a prologue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrologueStep {
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
    /// Lowers the stack pointer by this number of bytes, and stores the frame pointer and the address to return to there, on aarch64.
    PushFrame(u32),
    /// Copies the stack pointer to a general register, which holds it while the stack pointer is aligned.
    Copy(u8),
    /// Stores that copy at this offset from the stack pointer, which keeps its value from here on.
    Keep(u32),
}

/// The frame pointer, `rbp`.
pub const FRAME_POINTER: u8 = 5;

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
pub fn x64(steps: &[PrologueStep]) -> Result<Vec<u8>, String> {
    let no_room = |step: &PrologueStep| format!("no record for unwinders holds {step:?}");
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
            Does::Save(..) | Does::SaveVector(..) | Does::PushFrame(_) | Does::Copy(_) | Does::Keep(_) => {
                return Err(no_room(step));
            }
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
pub const END: u8 = 0xe4;

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

/// Instructions of DWARF's rules for unwinders.
const ADVANCE: u8 = 0x40;
const ADVANCE_1: u8 = 0x02;
const ADVANCE_2: u8 = 0x03;
const ADVANCE_4: u8 = 0x04;
const OFFSET: u8 = 0x80;
const OFFSET_EXTENDED: u8 = 0x05;
const DEFINE_FRAME: u8 = 0x0c;
const DEFINE_FRAME_OFFSET: u8 = 0x0e;
const DEFINE_FRAME_EXPRESSION: u8 = 0x0f;
const NOP: u8 = 0;
/// Operations of its expressions.
const BASE_REGISTER: u8 = 0x70;
const DEREFERENCE: u8 = 0x06;
const PLUS: u8 = 0x23;

/// The encoding of addresses as distances of 64 bits from their place.
const RELATIVE: u8 = 0x10;

/// The encoding of addresses as distances of 32 bits from their place.
pub const RELATIVE_32: u8 = 0x1b;

/// Words in which places of saved registers are counted, downwards from the caller's stack pointer.
pub const WORD: u32 = 8;

impl Dwarf {
    /// Bytes of the smallest instruction.
    fn unit(self) -> u32 {
        match self {
            Dwarf::X64 => 1,
            Dwarf::Arm64 => 4,
        }
    }

    /// Bytes between the stack pointer and that of the caller at the start of a function.
    fn pushed(self) -> u32 {
        match self {
            Dwarf::X64 => WORD,
            Dwarf::Arm64 => 0,
        }
    }

    /// DWARF's numbers of the stack pointer, the frame pointer and the address to return to.
    fn frame(self) -> (u8, u8, u8) {
        match self {
            Dwarf::X64 => (7, 6, 16),
            Dwarf::Arm64 => (31, 29, 30),
        }
    }

    /// DWARF's number of a general register (System V ABI for AMD64, figure 3.36; "DWARF for the Arm 64-bit architecture").
    fn general(self, register: u8) -> u8 {
        match self {
            Dwarf::X64 => *[0, 2, 1, 3, 7, 6, 4, 5].get(usize::from(register)).unwrap_or(&register),
            Dwarf::Arm64 => register,
        }
    }

    fn vector(self, register: u8) -> u8 {
        match self {
            Dwarf::X64 => 17 + register,
            Dwarf::Arm64 => 64 + register,
        }
    }

    /// What entries of `.eh_frame` have in common: addresses are relative to their place.
    pub fn common(self, distances: Distances) -> Vec<u8> {
        let (stack, _, back) = self.frame();
        // Version 1, the augmentation, units of code and of places, the address to return to, bytes of augmentation.
        let mut entry = vec![
            1,
            b'z',
            b'R',
            0,
            self.unit() as u8,
            (-(WORD as i8)) as u8 & 0x7f,
            back,
            1,
            distances.encoding(),
        ];
        entry.extend([DEFINE_FRAME, stack, self.pushed() as u8]);
        if self == Dwarf::X64 {
            entry.extend([OFFSET | back, 1]);
        }
        entry
    }
}

/// The rules of a function with this prologue: the instructions of its entry in `.eh_frame`.
pub fn dwarf(steps: &[PrologueStep], machine: Dwarf) -> Vec<u8> {
    let (stack, frame, back) = machine.frame();
    let mut rules = Rules { bytes: vec![], at: 0, machine };
    // The register that the caller's stack pointer is found from, and how far below it the stack pointer is.
    let (mut base, mut depth) = (stack, machine.pushed());
    for step in steps {
        rules.advance(step.end);
        match step.does {
            Does::Push(register) => {
                depth += WORD;
                rules.lowered(base == stack, depth);
                rules.saved(machine.general(register), depth);
            }
            Does::PushFrame(bytes) => {
                depth += bytes;
                rules.lowered(base == stack, depth);
                rules.saved(frame, depth);
                rules.saved(back, depth - WORD);
            }
            Does::Allocate(bytes) => {
                depth += bytes;
                rules.lowered(base == stack, depth);
            }
            Does::Point(above) => {
                base = frame;
                rules.found_from(base, depth - above);
            }
            Does::Save(register, at) => rules.saved(machine.general(register), depth - at),
            Does::SaveVector(register, at) => rules.saved(machine.vector(register), depth - at),
            Does::Copy(register) => {
                base = machine.general(register);
                rules.found_from(base, depth);
            }
            Does::Keep(at) => rules.kept(stack, at, depth),
        }
    }
    rules.bytes
}

struct Rules {
    bytes: Vec<u8>,
    /// Bytes of code whose rules are written.
    at: u32,
    machine: Dwarf,
}

impl Rules {
    fn advance(&mut self, end: u32) {
        let units = (end - self.at) / self.machine.unit();
        self.at = end;
        match units {
            0 => {}
            1..64 => self.bytes.push(ADVANCE | units as u8),
            64..0x100 => self.bytes.extend([ADVANCE_1, units as u8]),
            0x100..0x1_0000 => {
                self.bytes.push(ADVANCE_2);
                self.bytes.extend((units as u16).to_le_bytes());
            }
            _ => {
                self.bytes.push(ADVANCE_4);
                self.bytes.extend(units.to_le_bytes());
            }
        }
    }

    /// The caller's stack pointer is `depth` bytes above a register.
    fn found_from(&mut self, register: u8, depth: u32) {
        self.bytes.extend([DEFINE_FRAME, register]);
        self.bytes.extend(leb128::unsigned(depth.into()));
    }

    fn lowered(&mut self, counts: bool, depth: u32) {
        if counts {
            self.bytes.push(DEFINE_FRAME_OFFSET);
            self.bytes.extend(leb128::unsigned(depth.into()));
        }
    }

    /// A register lies `below` bytes below the caller's stack pointer.
    fn saved(&mut self, register: u8, below: u32) {
        match register {
            0..64 => self.bytes.push(OFFSET | register),
            _ => self.bytes.extend([OFFSET_EXTENDED, register]),
        }
        self.bytes.extend(leb128::unsigned((below / WORD).into()));
    }

    /// The caller's stack pointer is `depth` bytes above what lies at `at` from the stack pointer.
    fn kept(&mut self, stack: u8, at: u32, depth: u32) {
        let mut expression = vec![BASE_REGISTER | stack];
        expression.extend(leb128::signed(at.into()));
        expression.extend([DEREFERENCE, PLUS]);
        expression.extend(leb128::unsigned(depth.into()));
        self.bytes.push(DEFINE_FRAME_EXPRESSION);
        self.bytes.extend(leb128::unsigned(expression.len() as u64));
        self.bytes.extend(expression);
    }
}

/// How entries of `.eh_frame` hold the distance to their function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distances {
    /// As in ELF objects.
    Bits32,
    /// As linkers for Mach-O expect them.
    Bits64,
}

impl Distances {
    fn encoding(self) -> u8 {
        match self {
            Distances::Bits32 => RELATIVE_32,
            Distances::Bits64 => RELATIVE,
        }
    }

    fn bytes(self, number: u64) -> Vec<u8> {
        match self {
            Distances::Bits32 => (number as u32).to_le_bytes().to_vec(),
            Distances::Bits64 => number.to_le_bytes().to_vec(),
        }
    }
}

/// The section `.eh_frame` of functions with these rules: each with its length in bytes and its rules. Gives its bytes, and the offset of
/// the field in each entry that holds the distance from there to the function.
pub fn eh_frame(
    machine: Dwarf,
    distances: Distances,
    functions: &[(u64, Vec<u8>)],
) -> Result<(Vec<u8>, Vec<u64>), String> {
    let mut section = vec![];
    let mut entry = |head: &[u8], body: &[u8]| {
        let length = (4 + head.len() + body.len()).next_multiple_of(WORD as usize);
        section.extend((length as u32 - 4).to_le_bytes());
        section.extend_from_slice(head);
        section.extend_from_slice(body);
        section.resize(section.len() + length - 4 - head.len() - body.len(), NOP);
        section.len()
    };
    let mut next = entry(&[0; 4], &machine.common(distances));
    let mut fields = vec![];
    for (length, rules) in functions {
        let length = u32::try_from(*length).map_err(|_| format!("a function of {length} bytes"))?;
        // From this field to the common entry, which is the first; the address; the length; no augmentation.
        let own = [distances.bytes(0), distances.bytes(length.into()), vec![0]].concat();
        let head = [(next as u32 + 4).to_le_bytes().to_vec(), own].concat();
        fields.push(next as u64 + 8);
        next = entry(&head, rules);
    }
    Ok((section, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Microsoft's documentation: a push, an allocation, a frame pointer and two saves.
    #[test]
    fn steps_are_written_from_the_last_one_on() {
        let steps = [
            PrologueStep { end: 2, does: Does::Push(15) },
            PrologueStep { end: 9, does: Does::Allocate(0x100) },
            PrologueStep { end: 13, does: Does::Point(0x20) },
            PrologueStep { end: 18, does: Does::SaveVector(7, 0x30) },
            PrologueStep { end: 23, does: Does::Save(6, 0x18) },
        ];
        let wanted =
            [[1, 23, 8, 0x25], [23, 0x64, 3, 0], [18, 0x78, 3, 0], [13, 0x03, 9, 0x01], [0x20, 0, 2, 0xf0]];
        assert_eq!(x64(&steps).unwrap(), wanted.concat());
        // An odd number of words is filled up.
        let push = PrologueStep { end: 1, does: Does::Push(3) };
        assert_eq!(x64(&[push]).unwrap(), [1, 1, 1, 0, 1, 0x30, 0, 0]);
        assert_eq!(x64(&[]).unwrap(), [1, 0, 0, 0]);
        let small = PrologueStep { end: 4, does: Does::Allocate(0x80) };
        assert_eq!(x64(&[small]).unwrap()[4..6], [4, 0xf2]);
    }

    /// Push rbp, point it, save rbx: the rules as `readelf --debug-dump=frames` prints them for such code of GCC.
    #[test]
    fn rules_follow_the_stack_pointer() {
        let push = PrologueStep { end: 1, does: Does::Push(5) };
        let point = PrologueStep { end: 4, does: Does::Point(0) };
        let below = [
            PrologueStep { end: 8, does: Does::Allocate(16) },
            PrologueStep { end: 12, does: Does::Save(3, 8) },
        ];
        let rules = dwarf(&[&[push, point][..], &below[..]].concat(), Dwarf::X64);
        // Advance 1, frame at 16, rbp at -16; advance 3, frame from rbp + 16; advance 4; advance 4, rbx at -24.
        assert_eq!(rules, [0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0c, 6, 16, 0x44, 0x44, 0x83, 3]);
        // A function that aligns its stack pointer by way of rax.
        let steps =
            [PrologueStep { end: 3, does: Does::Copy(0) }, PrologueStep { end: 100, does: Does::Keep(0x40) }];
        let rules = dwarf(&steps, Dwarf::X64);
        let keep = [0x0f, 6, 0x77, 0xc0, 0, 0x06, 0x23, 8];
        assert_eq!(rules, [&[0x43, 0x0c, 0, 8, 0x02, 97][..], &keep[..]].concat());
        // The pair of the frame, a pair of vectors, and the frame pointer.
        let steps = [
            PrologueStep { end: 4, does: Does::PushFrame(48) },
            PrologueStep { end: 8, does: Does::SaveVector(8, 16) },
            PrologueStep { end: 12, does: Does::Point(0) },
        ];
        let rules = dwarf(&steps, Dwarf::Arm64);
        let push = [0x41, 0x0e, 48, 0x9d, 6, 0x9e, 5];
        assert_eq!(rules, [&push[..], &[0x41, 0x05, 72, 4, 0x41, 0x0c, 29, 48]].concat());
    }

    #[test]
    fn entries_lead_to_the_common_one() {
        let (section, fields) =
            eh_frame(Dwarf::X64, Distances::Bits32, &[(5, vec![0x41]), (300, vec![])]).unwrap();
        assert_eq!((section.len() % 8, fields.as_slice()), (0, &[32u64, 56][..]));
        let word = |at: usize| u32::from_le_bytes(section[at..at + 4].try_into().unwrap());
        // Lengths lead from entry to entry, and distances back to the first.
        assert_eq!((word(0), word(4)), (20, 0));
        assert_eq!((word(24), word(28), word(36)), (20, 28, 5));
        assert_eq!((word(48), word(52), word(60)), (20, 52, 300));
        assert_eq!(
            [0x3f, 0x40, 0x3fff].map(leb128::signed),
            [vec![0x3f], vec![0xc0, 0], vec![0xff, 0xff, 0]]
        );
        assert!(eh_frame(Dwarf::X64, Distances::Bits32, &[(1 << 32, vec![])]).is_err());
        let (section, fields) = eh_frame(Dwarf::X64, Distances::Bits64, &[(5, vec![0x41])]).unwrap();
        assert_eq!(
            (section[16], fields.as_slice(), &section[40..50]),
            (0x10, &[32u64][..], &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0x41][..])
        );
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
            let error = x64(&[PrologueStep { end, does }]).unwrap_err();
            assert!(error.contains(&format!("{does:?}")), "{error}");
        }
    }
}
