//! Which values are in vector registers where, before registers are given.

use std::collections::HashSet;

use super::alloc::Registers;
use cranelift_entity::{EntityRef, SecondaryMap};
use onnxc_machine::vector::ir::{Block, BlockId, Class, Func, Inst, Reg};
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::verify::{end_reads, reads, successors};

pub(super) type Live = HashSet<Reg>;

/// Registers that passes before the allocator leave free: with fewer, it spills in some loops that it did not spill in before.
pub(super) const SPARE: usize = 2;

/// Whether a value takes a vector register: vectors, and masks where these have no registers of their own.
fn is_vector(func: &Func, isa: Isa, reg: Reg) -> bool {
    match func.regs[reg] {
        Class::Int => false,
        Class::Vec => true,
        Class::Mask => !isa.has_mask_registers,
    }
}

/// The values that are read behind the instructions of each block.
pub(super) fn behind(func: &Func, isa: Isa) -> SecondaryMap<BlockId, Live> {
    let mut behind: SecondaryMap<BlockId, Live> = SecondaryMap::new();
    let mut before: SecondaryMap<BlockId, Live> = SecondaryMap::new();
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..func.blocks.len()).rev() {
            let id = BlockId::new(index);
            let block = &func.blocks[id];
            let mut live: Live =
                successors(block).into_iter().flat_map(|to| before[to].iter().copied()).collect();
            live.extend(end_reads(&block.end).into_iter().filter(|&reg| is_vector(func, isa, reg)));
            behind[id] = live.clone();
            for inst in block.insts.iter().rev() {
                step_back(func, isa, inst, &mut live);
            }
            live.retain(|reg| !block.params.contains(reg));
            changed |= live != before[id];
            before[id] = live;
        }
    }
    behind
}

/// What is live before an instruction, from what is live behind it.
fn step_back(func: &Func, isa: Isa, inst: &Inst, live: &mut Live) {
    if let Some(dst) = inst.dst {
        live.remove(&dst);
    }
    live.extend(reads(inst).filter(|&reg| is_vector(func, isa, reg)));
}

/// Vector registers that each instruction of a block takes, with `live` behind all of them: for what is live before it, for that
/// behind it with its result, and for what is in between.
pub(super) fn taken(
    func: &Func,
    isa: Isa,
    registers: &Registers,
    block: &Block,
    mut live: Live,
) -> Vec<usize> {
    let mut taken = vec![0; block.insts.len()];
    for (at, inst) in block.insts.iter().enumerate().rev() {
        let result = inst.dst.filter(|&dst| is_vector(func, isa, dst) && !live.contains(&dst));
        let behind = live.len() + usize::from(result.is_some());
        step_back(func, isa, inst, &mut live);
        taken[at] = behind.max(live.len()) + (registers.needs)(inst, isa).temps;
    }
    taken
}
