//! AArch64: NEON, whose 32 registers of 128 bits also serve as masks.
//!
//! Code can be put anywhere: what it refers to outside of the buffers are constants, which follow the code and are reached
//! relative to it. `registers.rs` has the calling convention, `inst.rs` the words of instructions, `emitter.rs` what an
//! instruction of the vector IR is, `frame.rs` the stack. This file puts blocks in a row and joins them with jumps.

mod emitter;
mod frame;
mod inst;
mod registers;
#[cfg(all(test, target_os = "linux"))]
mod tests;

use super::ahead;
use super::alloc::{Action, SLOT_BYTES, allocate};
use super::{Failure, LeafCode, MAX_FRAME};
use cranelift_entity::EntityRef;
use emitter::{Emitter, Pool, general};
use frame::Frame;
use onnxc_machine::target::Dwarf;
use onnxc_machine::unwind;
use onnxc_machine::vector::ir::{BlockId, Cond, End, Func, Operand};
use onnxc_machine::vector::isa::{Convention, Isa};
pub use registers::REGISTERS;

/// Of a function and of its constants, in bytes: that of the widest constant.
const ALIGN: u32 = 16;

/// Of a function's own memory.
const MEMORY_ALIGN: usize = 64;

/// What conditional jumps and constants can be away, in words.
const NEAR: usize = 1 << 18;

pub type Emitted = Result<(), String>;

/// An instruction, or one with a distance that is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    Code(u32),
    /// Loads this constant.
    Literal(u32, usize),
    /// Jumps to a block, if a condition holds, or a register is zero or not.
    Jump(BlockId),
    JumpIf(u32, BlockId),
    JumpByZero(u32, BlockId),
}

/// The instructions of a block without the jumps at its end, and how that is tested.
struct BlockCode<'a> {
    words: Vec<Word>,
    /// What is compared ahead of the jumps.
    test: Test,
    end: &'a End,
}

enum Test {
    None,
    /// Words that set the flags.
    Flags(Vec<Word>),
    /// A register is compared with zero.
    Zero(u8),
}

/// Machine code for a function.
pub fn compile(func: &Func, isa: Isa) -> Result<LeafCode, Failure> {
    let mut func = func.clone();
    ahead::run(&mut func, isa, &REGISTERS);
    let func = &func;
    let allocated = allocate(func, isa, &REGISTERS)?;
    let slots = allocated.slots() * SLOT_BYTES;
    if slots + func.frame > MAX_FRAME {
        return Err(format!("{slots} bytes of spilled values and {} of memory", func.frame).into());
    }
    let memory = slots.next_multiple_of(MEMORY_ALIGN);
    let mut pool = Pool::default();
    let blocks = func.blocks.iter().map(|(id, block)| {
        let mut code = Emitter { words: vec![], pool: &mut pool, frame: memory as i64, isa };
        let steps = allocated.steps(id)?;
        let (end, mut rest) = match steps.split_last() {
            Some((Action::End { places, .. }, rest)) => (places, rest),
            _ => return Err(format!("{id} does not end")),
        };
        while !rest.is_empty() {
            let count = code.steps(rest).map_err(|e| format!("{id}: {e}"))?;
            rest = &rest[count..];
        }
        let words = std::mem::take(&mut code.words);
        let test = match (&block.end, end.as_slice()) {
            (End::Branch { cond: Cond::Eq | Cond::Ne, b: Operand::Imm(0), .. }, &[a]) => {
                Test::Zero(general(a)?)
            }
            (End::Branch { .. }, _) => {
                code.compare(&block.end, end)?;
                Test::Flags(code.words)
            }
            _ => Test::None,
        };
        Ok(BlockCode { words, test, end: &block.end })
    });
    let blocks = blocks.collect::<Result<Vec<_>, String>>()?;
    let frame = Frame::new(func, &allocated);
    let words = lay_out(&blocks, &frame)?;
    let (bytes, instructions) = link(&words, &pool)?;
    let unwind = match isa.convention {
        Convention::Standard => unwind::dwarf(&frame.steps(), Dwarf::Arm64),
        Convention::Windows => unwind::arm64(frame.unwind_codes(), bytes.len())?,
    };
    Ok(LeafCode { bytes, instructions, align: ALIGN, stack: frame.stack(), unwind })
}

/// An instruction with its place, or the block that begins there.
enum Item {
    Word(Word),
    Block(BlockId),
}

/// Puts the blocks in a row and joins them with jumps. A jump to a block that only tests and jumps is that test: a loop
/// has one jump per iteration.
fn lay_out(blocks: &[BlockCode], frame: &Frame) -> Result<Vec<Item>, String> {
    let targets =
        (0..blocks.len()).map(|n| target(blocks, BlockId::new(n))).collect::<Result<Vec<_>, _>>()?;
    // Blocks that only jump on are jumped over.
    let kept: Vec<usize> = (0..blocks.len()).filter(|&n| n == 0 || targets[n].index() == n).collect();
    let mut items: Vec<Item> = frame.prologue().into_iter().map(Item::Word).collect();
    for (position, &index) in kept.iter().enumerate() {
        let next = kept.get(position + 1).map(|&n| BlockId::new(n));
        let block = &blocks[index];
        items.push(Item::Block(BlockId::new(index)));
        items.extend(block.words.iter().copied().map(Item::Word));
        match block.end {
            End::Jump(to, _) if Some(targets[to.index()]) == next => {}
            End::Jump(to, _) => {
                let to = targets[to.index()];
                match &blocks[to.index()] {
                    only @ BlockCode { words, end: End::Branch { .. }, .. } if words.is_empty() => {
                        branch(only, &targets, next, &mut items);
                    }
                    _ => items.push(Item::Word(Word::Jump(to))),
                }
            }
            End::Branch { .. } => branch(block, &targets, next, &mut items),
            End::Return(code) => items.extend(frame.epilogue(*code).into_iter().map(Item::Word)),
        }
    }
    Ok(items)
}

/// The test and the jumps at the end of a block.
fn branch(block: &BlockCode, targets: &[BlockId], next: Option<BlockId>, items: &mut Vec<Item>) {
    let End::Branch { cond, then, otherwise, .. } = *block.end else { return };
    let (then, otherwise) = (targets[then.index()], targets[otherwise.index()]);
    if let Test::Flags(words) = &block.test {
        items.extend(words.iter().copied().map(Item::Word));
    }
    let jump = |holds: bool, to: BlockId| match block.test {
        Test::Zero(register) => {
            let zero = (cond == Cond::Eq) == holds;
            Word::JumpByZero(inst::compare_zero(zero, register), to)
        }
        _ => Word::JumpIf(condition(cond) ^ u32::from(!holds), to),
    };
    if Some(then) == next {
        items.push(Item::Word(jump(false, otherwise)));
    } else {
        items.push(Item::Word(jump(true, then)));
        if Some(otherwise) != next {
            items.push(Item::Word(Word::Jump(otherwise)));
        }
    }
}

fn condition(cond: Cond) -> u32 {
    match cond {
        Cond::Lt => inst::LT,
        Cond::Ge => inst::GE,
        Cond::Eq => inst::EQ,
        Cond::Ne => inst::NE,
    }
}

/// Where a jump to a block ends up: past blocks in which nothing is left but a jump.
fn target(blocks: &[BlockCode], from: BlockId) -> Result<BlockId, String> {
    let mut block = from;
    for _ in 0..=blocks.len() {
        match &blocks[block.index()] {
            BlockCode { words, end: End::Jump(to, _), .. } if words.is_empty() => block = *to,
            _ => return Ok(block),
        }
    }
    Err(format!("an endless loop from {from}"))
}

/// The bytes of instructions and of the constants behind them, and how many are those of instructions.
fn link(items: &[Item], pool: &Pool) -> Result<(Vec<u8>, usize), Failure> {
    let mut starts = std::collections::HashMap::new();
    let mut count = 0usize;
    for item in items {
        match item {
            Item::Word(_) => count += 1,
            Item::Block(id) => drop(starts.insert(*id, count as i64)),
        }
    }
    let mut order: Vec<usize> = (0..pool.constants.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(pool.constants[index].len()));
    let first = (4 * count).next_multiple_of(ALIGN as usize);
    let (mut places, mut end) = (vec![0; pool.constants.len()], first);
    for &index in &order {
        places[index] = end;
        end += pool.constants[index].len();
    }
    if end > 4 * NEAR {
        return Err(Failure::Refused(format!("{end} bytes of code")));
    }
    let mut bytes = Vec::with_capacity(end);
    let words = items.iter().filter_map(|item| match item {
        Item::Word(word) => Some(*word),
        Item::Block(_) => None,
    });
    for (at, word) in words.enumerate() {
        let away = |to: &BlockId| starts.get(to).map(|&to: &i64| to - at as i64);
        let near = |word, distance: Option<i64>, bits, at| {
            distance.and_then(|distance| inst::with_distance(word, distance, bits, at))
        };
        let word = match word {
            Word::Code(word) => Some(word),
            Word::Literal(word, index) => near(word, Some(places[index] as i64 / 4 - at as i64), 19, 5),
            Word::Jump(to) => near(inst::JUMP, away(&to), 26, 0),
            Word::JumpIf(condition, to) => near(inst::JUMP_IF | condition, away(&to), 19, 5),
            Word::JumpByZero(word, to) => near(word, away(&to), 19, 5),
        };
        bytes.extend(word.ok_or("a jump to nowhere")?.to_le_bytes());
    }
    let instructions = bytes.len();
    if order.is_empty() {
        return Ok((bytes, instructions));
    }
    bytes.resize(first, 0);
    order.iter().for_each(|&index| bytes.extend(&pool.constants[index]));
    Ok((bytes, instructions))
}
