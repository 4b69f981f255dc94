//! What a function does to the stack and with the tiles, and what it leaves behind.

use super::tiles;
use super::{BlockCode, MEMORY_ALIGN, text};
use crate::leaf::alloc::{Allocated, SLOT_BYTES};
use crate::leaf::x86_64::registers::{RAX, frame_pointer};
use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};
use onnxc_machine::target::Dwarf;
use onnxc_machine::unwind::{self, Does, PrologueStep};
use onnxc_machine::vector::ir::{Func, TileShape};
use onnxc_machine::vector::isa::{Convention, Isa};

const PAGE: i32 = 4096;

/// Bytes that are saved of a vector.
const VECTOR_BYTES: i32 = 16;

/// From the stack pointer up: slots of spilled values, the stack pointer as it was before, the function's own memory, and what
/// aligns it; then vectors that are saved, general registers that are saved, the address to return to. With a frame pointer,
/// that points to the vectors, and the stack pointer as it was is not kept.
pub(super) struct Frame {
    convention: Convention,
    saved: Vec<u8>,
    saved_vectors: Vec<u8>,
    /// Bytes of saved vectors, and what aligns them.
    vectors: i32,
    /// Where an unwinder finds the frame, in functions that align their stack pointer.
    pointer: Option<u8>,
    /// Bytes of spill slots; above them is the stack pointer as it was before.
    slots: i32,
    /// Bytes of slots, that pointer, and the function's own memory above; zero without slots and memory.
    size: i32,
    /// Of the slots, so that vectors do not cross cache lines.
    align: i32,
    tiles: Vec<TileShape>,
    /// Whether the upper halves of vector registers were written, which slows down code without VEX after it.
    wide: bool,
}

/// An instruction of a prologue, and what an unwinder has to know of it.
type Noted = (Result<Instruction, IcedError>, Option<Does>);

impl Frame {
    pub(super) fn new(isa: Isa, func: &Func, allocated: &Allocated, blocks: &[BlockCode]) -> Frame {
        let slots = allocated.slots() * SLOT_BYTES;
        let (size, align) = match (slots, func.frame) {
            (0, 0) => (0, isa.vector_bytes),
            (_, 0) => (slots + SLOT_BYTES, isa.vector_bytes),
            (_, memory) => ((slots + SLOT_BYTES).next_multiple_of(MEMORY_ALIGN) + memory, MEMORY_ALIGN),
        };
        let wide = blocks.iter().flat_map(|block| &block.insts).any(writes_wide);
        let pointer = frame_pointer(isa).filter(|_| size > 0);
        let saved: Vec<u8> = pointer.into_iter().chain(allocated.callee_saved()).collect();
        let saved_vectors = allocated.callee_saved_vectors();
        // The address to return to is 8 bytes off a multiple of 16.
        let off = if saved.len().is_multiple_of(2) { SLOT_BYTES as i32 } else { 0 };
        let vectors = match saved_vectors.len() {
            0 => 0,
            count => VECTOR_BYTES * count as i32 + off,
        };
        Frame {
            convention: isa.convention,
            saved,
            saved_vectors,
            vectors,
            pointer,
            slots: slots as i32,
            size: size as i32,
            align: align as i32,
            tiles: func.tiles.clone(),
            wide,
        }
    }

    /// Bytes of stack at most: the address to return to, saved registers, and slots with what aligns them.
    pub(super) fn stack(&self) -> u32 {
        let size = if self.size > 0 { self.size + self.align } else { 0 };
        let config = if self.tiles.is_empty() { 0 } else { tiles::CONFIG_BYTES };
        8 * (1 + self.saved.len() as u32) + (self.vectors + size.max(config)) as u32
    }

    fn noted(&self) -> Vec<Noted> {
        let mut noted: Vec<Noted> = vec![];
        for &reg in &self.saved {
            noted.push((Instruction::with1(Code::Push_r64, general(reg)), Some(Does::Push(reg))));
        }
        if self.vectors > 0 {
            let lowered = Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, self.vectors);
            noted.push((lowered, Some(Does::Allocate(self.vectors as u32))));
        }
        if let Some(pointer) = self.pointer {
            let points = Instruction::with2(Code::Mov_r64_rm64, general(pointer), Register::RSP);
            noted.push((points, Some(Does::Point(0))));
        }
        for (at, &vector) in (0..).step_by(VECTOR_BYTES as usize).zip(&self.saved_vectors) {
            let place = MemoryOperand::with_base_displ(Register::RSP, at);
            let stores = Instruction::with2(Code::VEX_Vmovaps_xmmm128_xmm, place, xmm(vector));
            noted.push((stores, Some(Does::SaveVector(vector, at as u32))));
        }
        if !self.tiles.is_empty() {
            noted.extend(tiles::configure(&self.tiles).into_iter().map(|inst| (inst, None)));
        }
        if self.size > 0 {
            let size = self.size;
            // No argument is in rax. Every page is touched, so that none is jumped over that guards the
            // stack.
            for page in 1..=(size + self.align) / PAGE {
                let touched = MemoryOperand::with_base_displ(Register::RSP, (-page * PAGE).into());
                noted.push((Instruction::with2(Code::Test_rm64_r64, touched, Register::RAX), None));
            }
            if self.pointer.is_none() {
                let copies = Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::RSP);
                noted.push((copies, Some(Does::Copy(RAX))));
            }
            noted.push((Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, size), None));
            noted.push((Instruction::with2(Code::And_rm64_imm8, Register::RSP, -self.align), None));
            if self.pointer.is_none() {
                let keeps = Instruction::with2(Code::Mov_rm64_r64, self.saved_stack_pointer(), Register::RAX);
                noted.push((keeps, Some(Does::Keep(self.slots as u32))));
            }
        }
        noted
    }

    pub(super) fn prologue(&self) -> Result<Vec<Instruction>, String> {
        self.noted().into_iter().map(|(inst, _)| inst.map_err(text)).collect()
    }

    /// The stack is given back by the last instructions, as unwinders want it.
    pub(super) fn epilogue(&self, code: i32) -> Result<Vec<Instruction>, String> {
        let mut insts = vec![];
        if !self.tiles.is_empty() {
            insts.push(Ok(tiles::release()));
        }
        if self.wide {
            insts.push(Ok(Instruction::with(Code::VEX_Vzeroupper)));
        }
        let base = self.pointer.map_or(Register::RSP, general);
        for (at, &vector) in (0..).step_by(VECTOR_BYTES as usize).zip(&self.saved_vectors) {
            let place = MemoryOperand::with_base_displ(base, at);
            insts.push(Instruction::with2(Code::VEX_Vmovaps_xmm_xmmm128, xmm(vector), place));
        }
        insts.push(match code {
            0 => Instruction::with2(Code::Xor_r32_rm32, Register::EAX, Register::EAX),
            _ => Instruction::with2(Code::Mov_r32_imm32, Register::EAX, code),
        });
        match self.pointer {
            Some(pointer) => {
                let end = MemoryOperand::with_base_displ(general(pointer), self.vectors.into());
                insts.push(Instruction::with2(Code::Lea_r64_m, Register::RSP, end));
            }
            None if self.size > 0 => {
                let saved = self.saved_stack_pointer();
                insts.push(Instruction::with2(Code::Mov_r64_rm64, Register::RSP, saved));
            }
            None => {}
        }
        if self.pointer.is_none() && self.vectors > 0 {
            insts.push(Instruction::with2(Code::Add_rm64_imm32, Register::RSP, self.vectors));
        }
        for &reg in self.saved.iter().rev() {
            insts.push(Instruction::with1(Code::Pop_r64, general(reg)));
        }
        insts.push(Ok(Instruction::with(Code::Retnq)));
        insts.into_iter().map(|inst| inst.map_err(text)).collect()
    }

    /// The record of the prologue for unwinders.
    pub(super) fn unwind(&self) -> Result<Vec<u8>, String> {
        let (mut encoder, mut steps, mut end) = (Encoder::new(64), vec![], 0);
        for (inst, does) in self.noted() {
            end += encoder.encode(&inst.map_err(text)?, end as u64).map_err(text)? as u32;
            steps.extend(does.map(|does| PrologueStep { end, does }));
        }
        match self.convention {
            Convention::Windows => unwind::x64(&steps),
            Convention::Standard => Ok(unwind::dwarf(&steps, Dwarf::X64)),
        }
    }

    fn saved_stack_pointer(&self) -> MemoryOperand {
        MemoryOperand::with_base_displ(Register::RSP, self.slots.into())
    }
}

fn general(number: u8) -> Register {
    Register::RAX + u32::from(number)
}

fn xmm(number: u8) -> Register {
    Register::XMM0 + u32::from(number)
}

fn writes_wide(inst: &Instruction) -> bool {
    (0..inst.op_count()).any(|n| (Register::YMM0..=Register::ZMM31).contains(&inst.op_register(n)))
}
