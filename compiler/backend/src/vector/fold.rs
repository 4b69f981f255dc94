//! Operands in memory: a load with one reader becomes part of the operation that reads it, and takes no register and no
//! instruction.
//!
//! Only within a block, and only where nothing is stored between the two, as the element may be the one that is loaded.
//! AVX2 kernels do without: one operand in memory there is a whole vector, and broadcasts are most of what there is.

use std::collections::HashMap;

use onnxc_machine::vector::ir::{Binary, Compare, Func, Inst, Lanes, Mem, Op, Reg};
use onnxc_machine::vector::verify::{end_reads, reads};

pub fn run(func: &mut Func) {
    let readers = readers(func);
    for block in func.blocks.values_mut() {
        // Loads whose register may yet be left out, and where they are.
        let mut loads: HashMap<Reg, (usize, Lanes, Mem)> = HashMap::new();
        let mut folded = Vec::new();
        for at in 0..block.insts.len() {
            let inst = &mut block.insts[at];
            match (inst.op, inst.mem, inst.dst) {
                (Op::Load(lanes), Some(mem), Some(dst)) if readers[&dst] == 1 => {
                    loads.insert(dst, (at, lanes, mem));
                }
                (Op::Broadcast(lanes), Some(Mem::At(address)), Some(dst))
                    if !lanes.is_scalar() && readers[&dst] == 1 =>
                {
                    loads.insert(dst, (at, lanes, Mem::Each(address)));
                }
                (Op::Store(_) | Op::StorePart(_) | Op::TileStore(_), ..) => loads.clear(),
                _ => folded.extend(fold(inst, &loads)),
            }
        }
        let mut at = 0;
        folded.sort_unstable();
        block.insts.retain(|_| {
            at += 1;
            folded.binary_search(&(at - 1)).is_err()
        });
    }
}

/// How often each register is read.
pub fn readers(func: &Func) -> HashMap<Reg, u32> {
    let mut readers: HashMap<Reg, u32> = func.regs.keys().map(|reg| (reg, 0)).collect();
    let mut read = |reg: Reg| *readers.entry(reg).or_default() += 1;
    for block in func.blocks.values() {
        block.insts.iter().flat_map(reads).for_each(&mut read);
        end_reads(&block.end).into_iter().for_each(&mut read);
    }
    readers
}

/// Puts a load in the place of the last operand, and says which one.
fn fold(inst: &mut Inst, loads: &HashMap<Reg, (usize, Lanes, Mem)>) -> Option<usize> {
    if inst.mem.is_some() || !inst.op.reads_mem() {
        return None;
    }
    let fits = |reg: &Reg| loads.get(reg).filter(|(_, width, _)| Some(*width) == inst.op.lanes());
    let last = inst.uses.len() - 1;
    let other = swappable(inst.op)
        .filter(|&other| fits(&inst.uses[last]).is_none() && fits(&inst.uses[other]).is_some());
    if let Some(other) = other {
        inst.uses.swap(other, last);
    }
    let &(at, _, mem) = fits(&inst.uses[last])?;
    inst.uses.pop();
    inst.mem = Some(mem);
    Some(at)
}

/// The operand that may change places with the last one.
fn swappable(op: Op) -> Option<usize> {
    match op {
        Op::Binary(Binary::Add | Binary::Mul | Binary::And | Binary::Or | Binary::Xor, _) => Some(0),
        Op::Binary(Binary::IntAdd | Binary::IntMul | Binary::IntMin | Binary::IntMax | Binary::LowMul, _) => {
            Some(0)
        }
        Op::Compare(Compare::Eq | Compare::Ne | Compare::IntEq, _) => Some(0),
        Op::Fma(_) | Op::FmaNeg(_) => Some(1),
        _ => None,
    }
}
