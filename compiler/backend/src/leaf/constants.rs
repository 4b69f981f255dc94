//! Constants in registers that are free wherever they would be kept.
//!
//! Selection leaves the constants of a vector operation in memory, where they take no register. In a loop each is then one more
//! load. A core has two per cycle, the same number as multiply-adds or products of bytes, which have their own loads to wait for. And the
//! instruction is longer. Where a register is free in all blocks between the entry and the last read in a
//! loop, the constant is loaded at the entry instead. Those that the innermost loops read most come first.

use std::collections::BTreeMap;

use super::alloc::Registers;
use super::live::{self, SPARE};
use cranelift_entity::{EntityRef, SecondaryMap};
use onnxc_machine::vector::ir::{BlockId, Class, Func, Inst, Lanes, Mem, Op, Reg};
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::verify::successors;

/// How many more times the body of a loop runs than what is around it, for the order of constants.
const TRIPS: u64 = 8;

/// A constant: its bits, and bytes of a lane.
type Key = (u64, usize);

/// Where a constant is read.
#[derive(Default)]
struct Reads {
    /// By loop depth.
    weight: u64,
    /// Of the reader with the most.
    lanes: Option<Lanes>,
    blocks: Vec<BlockId>,
}

/// Gives registers to constants of loops.
pub(super) fn run(func: &mut Func, isa: Isa, registers: &Registers) {
    let depth = depths(func);
    let mut found: BTreeMap<Key, Reads> = BTreeMap::new();
    for (id, block) in &func.blocks {
        for (key, lanes) in block.insts.iter().filter_map(constant) {
            let reads = found.entry(key).or_default();
            reads.weight += if depth[id] > 0 { TRIPS.pow(depth[id].min(8)) } else { 0 };
            reads.lanes = reads.lanes.filter(|most| most.bytes() >= lanes.bytes()).or(Some(lanes));
            reads.blocks.push(id);
        }
    }
    found.retain(|_, reads| reads.weight > 0);
    if found.is_empty() {
        return;
    }
    // Those that a function has to restore would cost more than they gain.
    let room = registers.vectors.len().saturating_sub(SPARE);
    let behind = live::behind(func, isa);
    let mut taken: SecondaryMap<BlockId, usize> = SecondaryMap::new();
    for (id, block) in &func.blocks {
        let own = live::taken(func, isa, registers, block, behind[id].clone());
        taken[id] = own.into_iter().max().unwrap_or(0).max(behind[id].len());
    }
    let mut found: Vec<(Key, Reads)> = found.into_iter().collect();
    found.sort_by_key(|(_, reads)| std::cmp::Reverse(reads.weight));
    let mut kept: BTreeMap<Key, Reg> = BTreeMap::new();
    let mut loads = Vec::new();
    for (key, reads) in found {
        let through = leads_to(func, &reads.blocks);
        let (Some(lanes), true) = (reads.lanes, through.iter().all(|&id| taken[id] < room)) else { continue };
        through.into_iter().for_each(|id| taken[id] += 1);
        let reg = func.regs.push(Class::Vec);
        loads.push(Inst { op: Op::Splat(lanes, key.0), dst: Some(reg), uses: vec![], mem: None });
        kept.insert(key, reg);
    }
    for block in func.blocks.values_mut() {
        for inst in &mut block.insts {
            if let Some(&reg) = constant(inst).and_then(|(key, _)| kept.get(&key)) {
                inst.mem = None;
                inst.uses.push(reg);
            }
        }
    }
    func.blocks[BlockId::new(0)].insts.splice(0..0, loads);
}

/// The constant that an operation on vectors has in memory.
fn constant(inst: &Inst) -> Option<(Key, Lanes)> {
    let lanes = inst.op.lanes().filter(|lanes| !lanes.is_scalar())?;
    match inst.mem {
        Some(Mem::Constant(bits)) if inst.op.reads_mem() => Some(((bits, lanes.width()), lanes)),
        _ => None,
    }
}

/// How many loops each block is in: a jump back closes a loop of all blocks in between.
fn depths(func: &Func) -> SecondaryMap<BlockId, u32> {
    let mut depths: SecondaryMap<BlockId, u32> = SecondaryMap::new();
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    for (id, block) in &func.blocks {
        for to in successors(block).into_iter().filter(|to| to.index() <= id.index()) {
            let end = ends.entry(to.index()).or_default();
            *end = id.index().max(*end);
        }
    }
    for (first, last) in ends {
        (first..=last).for_each(|at| depths[BlockId::new(at)] += 1);
    }
    depths
}

/// The blocks from which a path leads to one of these, with them.
fn leads_to(func: &Func, blocks: &[BlockId]) -> Vec<BlockId> {
    let mut leads: SecondaryMap<BlockId, bool> = SecondaryMap::new();
    blocks.iter().for_each(|&id| leads[id] = true);
    let mut changed = true;
    while changed {
        changed = false;
        for (id, block) in func.blocks.iter().rev() {
            if !leads[id] && successors(block).into_iter().any(|to| leads[to]) {
                leads[id] = true;
                changed = true;
            }
        }
    }
    func.blocks.keys().filter(|&id| leads[id]).collect()
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::leaf::x86_64::registers::registers;
    use onnxc_machine::vector::isa::Isa;
    use onnxc_machine::vector::parse::parse;
    use onnxc_machine::vector::verify::{check, verify};

    /// A loop that reads each of `lines` with `beside` more vectors live, behind a block with constants.
    fn text(beside: usize, lines: &[&str]) -> String {
        let list = |line: &dyn Fn(usize) -> String| (0..beside).map(line).collect::<String>();
        format!(
            "function {{
block0(g0, g1, g2, g3):
{}  g4 = const int 0
  v900 = load b32x8 [g0]
  v901 = mul f32x8 v900, 0x40a00000
  store b32x8 v901, [g0]
  jump block1(g4)
block1(g5):
  branch lt g5, 8 then block2 else block3
block2:
  v100 = load b32x8 [g0]
{}  store b32x8 v{}, [g1]
  g6 = add int 1, g5
  jump block1(g6)
block3:
{}  return 0
}}
",
            list(&|at| format!("  v{} = load b32x8 [g2 + {}]\n", 300 + at, 32 * at)),
            lines.iter().map(|line| format!("  {line}\n")).collect::<String>(),
            100 + lines.len(),
            list(&|at| format!("  store b32x8 v{}, [g3 + {}]\n", 300 + at, 32 * at)),
        )
    }

    fn after(beside: usize, lines: &[&str]) -> Vec<String> {
        let mut func = parse(&text(beside, lines)).unwrap();
        verify(&func).unwrap();
        run(&mut func, Isa::AVX2, registers(Isa::AVX2));
        verify(&func).and_then(|()| check(&func, Isa::AVX2)).unwrap();
        func.to_string().lines().map(|line| line.trim().to_string()).collect()
    }

    const LINES: [&str; 4] = [
        "v101 = mul f32x8 v100, 0x40000000",
        "v102 = add f32x8 v101, 0x40400000",
        "v103 = mul f32x8 v102, 0x40000000",
        "v104 = add f32x8 v103, v102",
    ];

    #[test]
    fn constants_of_loops_are_loaded_once() {
        let found = after(0, &LINES);
        let splats: Vec<&String> = found.iter().filter(|line| line.contains("= splat")).collect();
        assert_eq!(splats.len(), 2, "{found:#?}");
        assert!(
            found.iter().position(|line| line.contains("= splat"))
                < found.iter().position(|line| line.contains("const int"))
        );
        // That of the block around the loop stays in memory.
        assert!(found.iter().any(|line| line.ends_with("0x40a00000")));
        assert!(!found.iter().any(|line| line.starts_with("v10") && line.contains("0x40")));
    }

    /// With 16 registers, two of them spared, and two or three that the loop takes itself.
    #[test]
    fn constants_that_would_be_spilled_stay_in_memory() {
        let in_registers =
            |beside: usize| after(beside, &LINES).iter().filter(|line| line.contains("= splat")).count();
        assert_eq!([0, 10, 11, 12, 16].map(in_registers), [2, 2, 1, 0, 0]);
        // The one that is read twice comes first.
        let found = after(11, &LINES);
        let splat = found.iter().find(|line| line.contains("= splat")).unwrap();
        assert!(splat.ends_with("0x40000000"), "{splat}");
    }
}
