//! What a function does to the stack, and what it leaves behind.

use super::inst::{self, FP, SP, X16, XZR};
use super::{MEMORY_ALIGN, Word};
use crate::leaf::alloc::{Allocated, SLOT_BYTES};
use onnxc_machine::unwind::{Does, PrologueStep};
use onnxc_machine::vector::ir::Func;

const PAGE: u32 = 4096;

/// Unwind codes: registers from x19 and from d8 on, at an offset from the stack pointer in words of 8 bytes.
const SAVE_PAIR: u16 = 0xc800;
const SAVE_ONE: u16 = 0xd000;
const SAVE_VECTORS: u16 = 0xd800;
const SAVE_VECTOR: u16 = 0xdc00;
const PUSH_FRAME: u8 = 0x80;
const SET_FRAME: u8 = 0xe1;

/// The first general register that a function has to restore.
const FIRST_SAVED: u8 = 19;

/// From the stack pointer up: slots of spilled values, the function's own memory, what aligns it; where the frame pointer
/// points, the caller's frame pointer and the address to return to, and the registers that are saved.
pub(super) struct Frame {
    saved: Vec<u8>,
    saved_vectors: Vec<u8>,
    /// Bytes of slots and memory.
    size: u32,
    /// Whether there is memory, which is aligned.
    aligned: bool,
}

impl Frame {
    pub(super) fn new(func: &Func, allocated: &Allocated) -> Frame {
        let slots = allocated.slots() * SLOT_BYTES;
        let size = match func.frame {
            0 => slots.next_multiple_of(16),
            memory => slots.next_multiple_of(MEMORY_ALIGN) + memory,
        };
        let (saved, saved_vectors) = (allocated.callee_saved(), allocated.callee_saved_vectors());
        Frame { saved, saved_vectors, size: size as u32, aligned: func.frame > 0 }
    }

    /// Bytes of the frame pointer, the address to return to and the registers that are saved; none if nothing is.
    fn saved_bytes(&self) -> u32 {
        match self.size == 0 && self.saved.is_empty() && self.saved_vectors.is_empty() {
            true => 0,
            false => {
                let pairs = 1 + self.saved.len().div_ceil(2) + self.saved_vectors.len().div_ceil(2);
                16 * pairs as u32
            }
        }
    }

    /// Bytes of stack at most.
    pub(super) fn stack(&self) -> u32 {
        self.saved_bytes() + self.size + if self.aligned { MEMORY_ALIGN as u32 } else { 0 }
    }

    /// Stores or loads the registers that are saved, in pairs; a register without another one goes twice.
    fn saves(&self, load: bool) -> Vec<Word> {
        let mut words = vec![];
        let mut at = 16;
        for (vector, registers) in [(false, &self.saved), (true, &self.saved_vectors)] {
            for pair in registers.chunks(2) {
                let (one, two) = match (pair, vector) {
                    (&[one, two], _) => (one, two),
                    // Two places would be loaded to one register: the other one is for nothing.
                    (&[one], false) => (one, XZR),
                    (&[one], true) => {
                        let access = inst::Access::vector(8, load);
                        words.extend(access.at(one, SP, at).map(Word::Code));
                        at += 16;
                        continue;
                    }
                    _ => continue,
                };
                words.push(Word::Code(inst::stack_pair(load, vector, one, two, at as u32)));
                at += 16;
            }
        }
        words
    }

    pub(super) fn prologue(&self) -> Vec<Word> {
        if self.saved_bytes() == 0 {
            return vec![];
        }
        let mut words = vec![Word::Code(inst::push_frame(self.saved_bytes()))];
        words.extend(self.saves(false));
        words.push(Word::Code(inst::immediate(inst::ADD_IMM, FP, SP, 0, false)));
        if self.size > 0 {
            // Every page is touched, so that none is jumped over that guards the stack.
            for page in 1..=(self.stack() - self.saved_bytes()) / PAGE {
                words.push(Word::Code(inst::immediate(inst::SUB_IMM, X16, SP, page, true)));
                words.extend(inst::LOAD_W.at(XZR, X16, 0).map(Word::Code));
            }
            let (low, high) = (self.size % PAGE, self.size / PAGE);
            words.push(Word::Code(inst::immediate(inst::SUB_IMM, X16, SP, low, false)));
            if high > 0 {
                words.push(Word::Code(inst::immediate(inst::SUB_IMM, X16, X16, high, true)));
            }
            words.push(Word::Code(match self.aligned {
                true => inst::aligned_64(SP, X16),
                false => inst::immediate(inst::ADD_IMM, SP, X16, 0, false),
            }));
        }
        words
    }

    /// What the prologue does that an unwinder has to know, where its rules are those of DWARF.
    pub(super) fn steps(&self) -> Vec<PrologueStep> {
        let mut steps = vec![];
        if self.saved_bytes() == 0 {
            return steps;
        }
        const INSTRUCTION: u32 = 4;
        let mut end = INSTRUCTION;
        steps.push(PrologueStep { end, does: Does::PushFrame(self.saved_bytes()) });
        let mut at = 16;
        for (registers, save) in
            [(&self.saved, Does::Save as fn(u8, u32) -> Does), (&self.saved_vectors, Does::SaveVector)]
        {
            for pair in registers.chunks(2) {
                end += INSTRUCTION;
                let places = (at..).step_by(SLOT_BYTES);
                steps.extend(
                    pair.iter().zip(places).map(|(&one, at)| PrologueStep { end, does: save(one, at) }),
                );
                at += 16;
            }
        }
        steps.push(PrologueStep { end: end + INSTRUCTION, does: Does::Point(0) });
        steps
    }

    /// The unwind codes of the prologue on Windows, the last instruction first: the frame pointer is set, registers are
    /// saved by single ones or by pairs of neighbours, the frame pointer and the address to return to are pushed.
    pub(super) fn unwind_codes(&self) -> Vec<u8> {
        if self.saved_bytes() == 0 {
            return vec![];
        }
        let mut codes = vec![vec![PUSH_FRAME | (self.saved_bytes() / 8 - 1) as u8]];
        let mut slots = (2u16..).step_by(2);
        for (registers, first, pair_code, one_code) in [
            (&self.saved, FIRST_SAVED, SAVE_PAIR, SAVE_ONE),
            (&self.saved_vectors, 8, SAVE_VECTORS, SAVE_VECTOR),
        ] {
            for (pair, slot) in registers.chunks(2).zip(&mut slots) {
                let code = |code: u16, register: u8, slot: u16| {
                    (code | u16::from(register - first) << 6 | slot).to_be_bytes().to_vec()
                };
                match *pair {
                    [one, two] if two == one + 1 => codes.push(code(pair_code, one, slot)),
                    _ => {
                        let each = pair.iter().zip(slot..);
                        codes.push(each.flat_map(|(&one, slot)| code(one_code, one, slot)).collect());
                    }
                }
            }
        }
        codes.push(vec![SET_FRAME]);
        codes.reverse();
        codes.concat()
    }

    pub(super) fn epilogue(&self, code: i32) -> Vec<Word> {
        let mut words = vec![];
        if self.saved_bytes() > 0 {
            if self.size > 0 {
                words.push(Word::Code(inst::immediate(inst::ADD_IMM, SP, FP, 0, false)));
            }
            words.extend(self.saves(true));
            words.push(Word::Code(inst::pop_frame(self.saved_bytes())));
        }
        words.extend(inst::constant(0, code.into()).into_iter().map(Word::Code));
        words.push(Word::Code(inst::RET));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair of registers has 16 bytes, and so has one that is left; two more are above the frame pointer.
    #[test]
    fn registers_are_saved_in_pairs() {
        for (saved, vectors, pairs) in [(0, 0, 0), (1, 0, 1), (2, 0, 1), (3, 2, 3), (4, 3, 4), (10, 8, 9)] {
            let (saved, saved_vectors) = ((19..19 + saved).collect(), (8..8 + vectors).collect());
            let frame = Frame { saved, saved_vectors, size: 0, aligned: false };
            for load in [false, true] {
                assert_eq!(frame.saves(load).len(), pairs, "{load}");
            }
            let bytes = if pairs == 0 { 0 } else { 16 * (pairs as u32 + 1) };
            assert_eq!(frame.saved_bytes(), bytes);
            // Each register once, and each step at the end of an instruction of the prologue.
            let (steps, words) = (frame.steps(), frame.prologue().len() as u32);
            let registers = frame.saved.len() + frame.saved_vectors.len();
            assert_eq!(steps.len(), if pairs == 0 { 0 } else { registers + 2 });
            assert!(
                steps.is_sorted_by_key(|step| step.end)
                    && steps.last().is_none_or(|step| step.end == 4 * words)
            );
        }
    }
}
