//! The bytes of a function: its instructions, with the places that they were allocated, as x86-64 machine
//! code.
//!
//! `frame.rs` has the stack. Code can be put anywhere: what it refers to outside of the buffers are constants, which follow
//! the code and are reached relative to it.

mod emitter;
mod frame;
mod operand;
mod tiles;
mod width;

use super::registers::registers;
use crate::leaf::alloc::{SLOT_BYTES, allocate};
use crate::leaf::{Failure, LeafCode, MAX_FRAME, constants};
use cranelift_entity::EntityRef;
use emitter::Emitter;
use frame::Frame;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, MemoryOperand,
    Register,
};
use onnxc_machine::vector::ir::{BlockId, Cond, End, Func, Lanes};
use onnxc_machine::vector::isa::Isa;

/// What is to be jumped to or loaded has a made-up address until the block encoder has placed it.
const BLOCK_ADDRESS: u64 = 1 << 32;
const POOL_ADDRESS: u64 = 1 << 33;

/// Of a function and of its constants, in bytes: that of the widest constant.
const ALIGN: u32 = 32;
const INT3: u8 = 0xcc;

/// Of a function's own memory.
const MEMORY_ALIGN: usize = 64;

/// Machine code for a function.
pub fn compile(func: &Func, isa: Isa) -> Result<LeafCode, Failure> {
    let mut func = func.clone();
    constants::run(&mut func, isa, registers(isa));
    let func = &func;
    let allocated = allocate(func, isa, registers(isa))?;
    let slots = allocated.slots() * SLOT_BYTES;
    if slots + func.frame > MAX_FRAME {
        return Err(format!("{slots} bytes of spilled values and {} of memory", func.frame).into());
    }
    let memory = (slots + SLOT_BYTES).next_multiple_of(MEMORY_ALIGN);
    let mut pool = Pool::default();
    let blocks = func.blocks.iter().map(|(id, block)| {
        let mut code = Emitter::new(isa, &mut pool, memory as i32);
        for step in allocated.steps(id)? {
            code.step(step).map_err(|e| format!("{id}: {e}"))?;
        }
        Ok(BlockCode { insts: code.insts, end: &block.end })
    });
    let blocks = blocks.collect::<Result<Vec<_>, String>>()?;
    let frame = Frame::new(isa, func, &allocated, &blocks);
    let (mut insts, stack, unwind) = (lay_out(&blocks, &frame)?, frame.stack(), frame.unwind()?);
    let constants = pool.insts()?;
    let pool_bytes = pool.bytes();
    let code = insts.len();
    insts.extend(constants);
    let unaligned = encode(&insts)?;
    let instructions = unaligned.len().saturating_sub(pool_bytes);
    let padding = instructions.next_multiple_of(ALIGN as usize) - instructions;
    if pool_bytes == 0 || padding == 0 {
        return Ok(LeafCode { bytes: unaligned, instructions, align: ALIGN, stack, unwind });
    }
    // Padding moves the constants, and with them what refers to them; jumps keep their lengths.
    let fill = (0..padding).map(|_| Instruction::with_declare_byte_1(INT3));
    insts.splice(code..code, fill);
    Ok(LeafCode { bytes: encode(&insts)?, instructions, align: ALIGN, stack, unwind })
}

fn encode(insts: &[Instruction]) -> Result<Vec<u8>, String> {
    let block = InstructionBlock::new(insts, 0);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).map_err(text)?;
    Ok(encoded.code_buffer)
}

fn text(error: IcedError) -> String {
    error.to_string()
}

/// The instructions of a block without the jumps at its end.
struct BlockCode<'a> {
    insts: Vec<Instruction>,
    end: &'a End,
}

/// Puts the blocks in a row and joins them with jumps.
fn lay_out(blocks: &[BlockCode], frame: &Frame) -> Result<Vec<Instruction>, String> {
    let targets =
        (0..blocks.len()).map(|n| target(blocks, BlockId::new(n))).collect::<Result<Vec<_>, _>>()?;
    // Blocks that only jump on are jumped over.
    let kept: Vec<usize> = (0..blocks.len()).filter(|&n| n == 0 || targets[n].index() == n).collect();
    let mut insts = frame.prologue()?;
    for (position, &index) in kept.iter().enumerate() {
        let next = kept.get(position + 1).map(|&n| BlockId::new(n));
        let start = insts.len();
        insts.extend(&blocks[index].insts);
        match *blocks[index].end {
            End::Jump(to, _) => jump(&mut insts, targets[to.index()], next)?,
            End::Branch { cond, then, otherwise, .. } => {
                let (then, otherwise) = (targets[then.index()], targets[otherwise.index()]);
                match Some(then) == next {
                    true => insts.push(branch(jump_unless(cond), otherwise)?),
                    false => {
                        insts.push(branch(jump_if(cond), then)?);
                        jump(&mut insts, otherwise, next)?;
                    }
                }
            }
            End::Return(code) => insts.extend(frame.epilogue(code)?),
        }
        if index != 0 {
            insts[start].set_ip(BLOCK_ADDRESS + index as u64);
        }
    }
    Ok(insts)
}

/// Where a jump to a block ends up: past blocks in which nothing is left but a jump.
fn target(blocks: &[BlockCode], from: BlockId) -> Result<BlockId, String> {
    let mut block = from;
    for _ in 0..=blocks.len() {
        match &blocks[block.index()] {
            BlockCode { insts, end: End::Jump(to, _) } if insts.is_empty() => block = *to,
            _ => return Ok(block),
        }
    }
    Err(format!("an endless loop from {from}"))
}

fn jump(insts: &mut Vec<Instruction>, to: BlockId, next: Option<BlockId>) -> Result<(), String> {
    if Some(to) != next {
        insts.push(branch(Code::Jmp_rel32_64, to)?);
    }
    Ok(())
}

fn branch(code: Code, to: BlockId) -> Result<Instruction, String> {
    Instruction::with_branch(code, BLOCK_ADDRESS + to.index() as u64).map_err(text)
}

fn jump_if(cond: Cond) -> Code {
    match cond {
        Cond::Lt => Code::Jl_rel32_64,
        Cond::Ge => Code::Jge_rel32_64,
        Cond::Eq => Code::Je_rel32_64,
        Cond::Ne => Code::Jne_rel32_64,
    }
}

fn jump_unless(cond: Cond) -> Code {
    jump_if(match cond {
        Cond::Lt => Cond::Ge,
        Cond::Ge => Cond::Lt,
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
    })
}

/// Constants, in the order of their first use.
#[derive(Default)]
struct Pool {
    constants: Vec<Lasting>,
}

/// What a constant's lanes hold.
#[derive(Clone, Copy, PartialEq)]
enum Lasting {
    /// These bits in each lane.
    Same(u64, Lanes),
    /// f32 that rise by 1, from the one with these bits on.
    Ramp(u64, Lanes),
    /// For each byte, the number of the one that comes there when those of four quarters are interleaved.
    Interleaved(Lanes),
}

impl Lasting {
    fn lanes(self) -> Lanes {
        match self {
            Lasting::Same(_, lanes) | Lasting::Ramp(_, lanes) | Lasting::Interleaved(lanes) => lanes,
        }
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Lasting::Same(bits, lanes) => bits.to_le_bytes()[..lanes.width()].repeat(lanes.count()),
            Lasting::Ramp(first, lanes) => {
                let lane = |at: usize| (f32::from_bits(first as u32) + at as f32).to_le_bytes();
                (0..lanes.count()).flat_map(lane).collect()
            }
            Lasting::Interleaved(lanes) => {
                let count = lanes.count();
                (0..count)
                    .flat_map(|lane| [0, 1, 2, 3].map(|quarter| (count * quarter + lane) as u8))
                    .collect()
            }
        }
    }
}

impl Pool {
    /// A constant as an operand of `lanes`.
    fn operand(&mut self, bits: u64, isa: Isa, lanes: Lanes) -> MemoryOperand {
        let each = isa.evex() && !lanes.is_scalar();
        let address = self.address(Lasting::Same(bits, if each { lanes.one() } else { lanes }));
        MemoryOperand::new(Register::RIP, Register::None, 1, address, 1, each, Register::None)
    }

    /// Rising numbers as an operand.
    fn ramp(&mut self, first: u64, lanes: Lanes) -> MemoryOperand {
        self.whole(Lasting::Ramp(first, lanes))
    }

    fn interleaved(&mut self, lanes: Lanes) -> MemoryOperand {
        self.whole(Lasting::Interleaved(lanes))
    }

    fn whole(&mut self, constant: Lasting) -> MemoryOperand {
        let address = self.address(constant);
        MemoryOperand::new(Register::RIP, Register::None, 1, address, 1, false, Register::None)
    }

    /// Where a constant is.
    fn address(&mut self, constant: Lasting) -> i64 {
        let known = self.constants.iter().position(|&own| own == constant);
        let index = known.unwrap_or_else(|| {
            self.constants.push(constant);
            self.constants.len() - 1
        });
        (POOL_ADDRESS + index as u64) as i64
    }

    fn bytes(&self) -> usize {
        self.constants.iter().map(|constant| constant.lanes().bytes()).sum()
    }

    /// The constants, widest first: with the pool, each is then aligned to its own size.
    fn insts(&self) -> Result<Vec<Instruction>, String> {
        let mut order: Vec<usize> = (0..self.constants.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.constants[index].lanes().bytes()));
        let mut insts = Vec::new();
        for index in order {
            // One declaration holds 16 bytes.
            for (part, declared) in self.constants[index].bytes().chunks(16).enumerate() {
                let mut inst = Instruction::with_declare_byte(declared).map_err(text)?;
                if part == 0 {
                    inst.set_ip(POOL_ADDRESS + index as u64);
                }
                insts.push(inst);
            }
        }
        Ok(insts)
    }
}
