//! Loads of vectors ahead of what reads them, for processors that execute instructions in their order: these wait at the first
//! reader of what is not there yet.
//!
//! Within a block a load moves up past instructions that it does not depend on, until [`AHEAD`] operations on vectors are
//! between it and its first reader, or until more values of the block would be needed at once than there are registers: what a block
//! neither reads nor writes, such as sums that wait for the end of a loop, is spilled around it. Neighbours that one
//! instruction loads stay together, loads keep their order, and none passes a store, which may write what it reads. The function
//! computes the same with the same instructions; processors that reorder these themselves are as fast as before.

use std::collections::HashSet;

use super::alloc::Registers;
use super::live::{self, Live, SPARE};
use onnxc_machine::vector::ir::{Block, Class, Func, Inst, Mem, Op, Reg};
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::verify::reads;

/// Operations on vectors between a load and its first reader: the latency of loads from the first-level cache, 4 to 5 cycles
/// on Cortex-A53 and A55, at up to two instructions per cycle.
const AHEAD: usize = 10;

/// Moves the loads of a function.
pub(super) fn run(func: &mut Func, isa: Isa, registers: &Registers) {
    let room = registers.vectors.len() + registers.callee_saved_vectors.len() - SPARE;
    let live = live::behind(func, isa);
    let mut blocks = std::mem::take(&mut func.blocks);
    for (id, block) in &mut blocks {
        move_loads(func, isa, registers, block, &live[id], room);
    }
    func.blocks = blocks;
}

fn move_loads(func: &Func, isa: Isa, registers: &Registers, block: &mut Block, behind: &Live, room: usize) {
    // Registers that each instruction takes for values of the block's own.
    let own = block.insts.iter().flat_map(|inst| reads(inst).chain(inst.dst)).collect::<HashSet<_>>();
    let mut live = behind.clone();
    live.retain(|reg| own.contains(reg));
    let mut taken = live::taken(func, isa, registers, block, live);
    let mut at = 0;
    while at < block.insts.len() {
        let count = unit(&block.insts[at..]);
        if count > 0 {
            let to = place(func, &block.insts, &taken, at..at + count, room);
            // What they pass has their results beside its own values; they take as much as what they come before.
            let before = taken.get(to).copied().unwrap_or_default();
            taken[to..at].iter_mut().for_each(|taken| *taken += count);
            block.insts[to..at + count].rotate_right(count);
            taken[to..at + count].rotate_right(count);
            taken[to..to + count].iter_mut().for_each(|taken| *taken = before + count);
        }
        at += count.max(1);
    }
}

/// How many instructions from the first one on are a load that may move, or two that become one.
fn unit(insts: &[Inst]) -> usize {
    let address = |inst: &Inst| match (inst.op, inst.mem) {
        (Op::Load(lanes), Some(Mem::At(address))) => Some((lanes, address)),
        _ => None,
    };
    let Some((lanes, one)) = insts.first().and_then(address) else { return 0 };
    match insts.get(1).and_then(address) {
        Some((other, two)) if lanes == other && lanes.bytes() == 16 => {
            let beside = one.base == two.base && one.scaled.is_none() && two.scaled.is_none();
            let apart = (i64::from(one.disp) - i64::from(two.disp)).abs();
            if beside && apart == 16 { 2 } else { 1 }
        }
        _ => 1,
    }
}

/// Where these loads go.
fn place(func: &Func, insts: &[Inst], taken: &[usize], loads: std::ops::Range<usize>, room: usize) -> usize {
    let own: Vec<Reg> = insts[loads.clone()].iter().flat_map(reads).collect();
    let is_operation = |inst: &Inst| inst.dst.is_some_and(|dst| func.regs[dst] != Class::Int);
    let results: Vec<Reg> = insts[loads.clone()].iter().filter_map(|inst| inst.dst).collect();
    let readers = insts[loads.end..].iter().take_while(|inst| !reads(inst).any(|reg| results.contains(&reg)));
    let (mut to, mut passed) = (loads.start, readers.filter(|inst| is_operation(inst)).count());
    while to > 0 && passed < AHEAD {
        let inst = &insts[to - 1];
        let fixed = matches!(inst.op, Op::Store(_) | Op::StorePart(_) | Op::TileStore(_))
            || matches!(inst.op, Op::Load(_) | Op::Broadcast(_) | Op::LoadSmall(..))
            || matches!(inst.op, Op::LoadHalves(..) | Op::BroadcastHalf);
        let needed = inst.dst.is_some_and(|dst| own.contains(&dst));
        if fixed || needed || taken[to - 1] + loads.len() > room {
            break;
        }
        passed += usize::from(is_operation(inst));
        to -= 1;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::aarch64::REGISTERS;

    fn moved(body: &[String]) -> Vec<String> {
        crate::vector::tests::after(body, |func| run(func, Isa::NEON, &REGISTERS))
    }

    /// A chain of `count` operations on `v100` up to `v{100 + count}`.
    fn chain(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("v{} = mul f32x4 v{}, v100", 101 + at, 100 + at)).collect()
    }

    fn body(before: &[&str], count: usize, after: &[&str]) -> Vec<String> {
        let own = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
        [own(before), chain(count), own(after)].concat()
    }

    #[test]
    fn loads_move_up_by_the_latency_of_one() {
        let last = ["v401 = load b32x4 [g1]", "v402 = add f32x4 v401, v120", "store b32x4 v402, [g2]"];
        let found = moved(&body(&["v100 = load b32x4 [g0]"], 20, &last));
        assert_eq!(found.iter().position(|line| line == last[0]), Some(1 + 20 - AHEAD));
        // A pair stays one, in its order, behind another load and behind what its address is made of.
        let pair = ["v401 = load b32x4 [g4]", "v402 = load b32x4 [g4 + 16]"];
        let rest = ["v403 = add f32x4 v401, v402", "v404 = add f32x4 v403, v104", "store b32x4 v404, [g2]"];
        let first = ["v100 = load b32x4 [g0]", "g4 = add int 64, g1"];
        let found = moved(&body(&first, 4, &[&pair[..], &rest[..]].concat()));
        assert_eq!(found[..4], [first[0], first[1], pair[0], pair[1]]);
    }

    /// What is read late enough stays where it is.
    #[test]
    fn loads_that_are_ahead_already_stay() {
        let first = ["v100 = load b32x4 [g0]", "v200 = mul f32x4 v100, v100", "v401 = load b32x4 [g1]"];
        let last = ["v402 = add f32x4 v401, v112", "v403 = add f32x4 v402, v200", "store b32x4 v403, [g2]"];
        let lines = body(&first, 12, &last);
        assert_eq!(moved(&lines), lines);
    }

    #[test]
    fn stores_stay_before_loads() {
        let last = ["v401 = load b32x4 [g1]", "v402 = add f32x4 v401, v104", "store b32x4 v402, [g2]"];
        let written = ["v100 = load b32x4 [g0]", "store b32x4 v100, [g2]"];
        let found = moved(&body(&written, 4, &last));
        assert_eq!(found[..3], [written[0], written[1], last[0]]);
    }

    /// Live values beside the chain fill all registers: a load stays where it was.
    #[test]
    fn no_more_values_at_once_than_registers() {
        for (others, moves) in [(0, true), (20, true), (32, false)] {
            let loads: Vec<String> =
                (0..others).map(|at| format!("v{} = load b32x4 [g3 + {}]", 300 + at, 32 * at)).collect();
            let stores: Vec<String> =
                (0..others).map(|at| format!("store b32x4 v{}, [g2 + {}]", 300 + at, 32 * at)).collect();
            let last = ["v401 = load b32x4 [g1]", "v402 = add f32x4 v401, v108", "store b32x4 v402, [g2]"];
            let lines = [loads, body(&["v100 = load b32x4 [g0]"], 8, &last), stores].concat();
            let found = moved(&lines);
            let at = |lines: &[String]| lines.iter().position(|line| line == last[0]);
            assert_eq!(at(&found) != at(&lines), moves, "{others} others: {found:#?}");
        }
    }
}
