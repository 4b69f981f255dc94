//! Addresses of two registers: a sum that nothing but one operand in memory reads, and a shift in it, are computed by the
//! instruction that reaches the memory.
//!
//! Only within a block: what a loop around it adds up once stays in one register.

use std::collections::HashMap;

use super::fold::readers;
use onnxc_machine::vector::ir::{Address, Block, Func, Inst, Mem, Op, Reg};
use onnxc_machine::vector::verify::reads;

pub fn run(func: &mut Func) {
    let mut readers = readers(func);
    for block in func.blocks.values_mut() {
        scale(block, &mut readers);
        drop_unread(block, &mut readers);
    }
}

fn scale(block: &mut Block, readers: &mut HashMap<Reg, u32>) {
    let mut sums: HashMap<Reg, [Reg; 2]> = HashMap::new();
    let mut shifts: HashMap<Reg, (Reg, u8)> = HashMap::new();
    for inst in &mut block.insts {
        match (inst.op, inst.uses.as_slice(), inst.dst) {
            (Op::Add, &[a, b], Some(dst)) => drop(sums.insert(dst, [a, b])),
            (Op::ShlInt(log @ 0..=3), &[a], Some(dst)) => drop(shifts.insert(dst, (a, log))),
            _ => {}
        }
        let Some(address) = address(inst).filter(|address| address.scaled.is_none()) else { continue };
        let Some(&[a, b]) = sums.get(&address.base).filter(|_| readers[&address.base] == 1) else { continue };
        let (base, scaled) = match (shifts.get(&a), shifts.get(&b)) {
            (_, Some(&scaled)) => (a, scaled),
            (Some(&scaled), None) => (b, scaled),
            (None, None) => (a, (b, 0)),
        };
        *readers.entry(address.base).or_default() -= 1;
        for reg in [base, scaled.0] {
            *readers.entry(reg).or_default() += 1;
        }
        (address.base, address.scaled) = (base, Some(scaled));
    }
}

/// The address of an operand that may have two registers. A tile's second one is its stride.
fn address(inst: &mut Inst) -> Option<&mut Address> {
    match (inst.op, &mut inst.mem) {
        (Op::TileLoad(_) | Op::TileStore(_), _) => None,
        (_, Some(Mem::At(address) | Mem::Each(address))) => Some(address),
        _ => None,
    }
}

/// Drops sums and shifts that addresses have taken in.
fn drop_unread(block: &mut Block, readers: &mut HashMap<Reg, u32>) {
    let mut kept = Vec::with_capacity(block.insts.len());
    for inst in block.insts.drain(..).rev() {
        let is_unread = inst.dst.is_some_and(|dst| readers[&dst] == 0);
        if is_unread && matches!(inst.op, Op::Add | Op::ShlInt(_)) {
            reads(&inst).for_each(|reg| *readers.entry(reg).or_default() -= 1);
        } else {
            kept.push(inst);
        }
    }
    kept.reverse();
    block.insts = kept;
}

#[cfg(test)]
mod tests {
    use crate::vector::scaled;
    use onnxc_machine::vector::{parse, verify};

    /// A block of these instructions after a sum that it did not compute itself.
    fn scaled(body: &[&str]) -> Vec<String> {
        let lines: String = body.iter().map(|line| format!("  {line}\n")).collect();
        let text = format!(
            "function {{\nblock0(g0, g1, g2, g3):\n  g4 = add int g0, g3\n  jump block1(g3)\nblock1(g5):\n{lines}  return 0\n}}\n"
        );
        let mut func = parse::parse(&text).unwrap();
        verify::verify(&func).unwrap();
        scaled::run(&mut func);
        verify::verify(&func).unwrap();
        let after = func.to_string();
        assert_eq!(parse::parse(&after).unwrap().to_string(), after);
        let lines = after.lines().skip_while(|line| !line.starts_with("block1(")).skip(1);
        lines.map(|line| line.trim().to_string()).take_while(|line| line != "return 0").collect()
    }

    #[test]
    fn sums_with_one_reader_become_addresses() {
        let body =
            ["g6 = shl int 2, g5", "g7 = add int g1, g6", "v8 = load b32 [g7 + 8]", "store b32 v8, [g2]"];
        assert_eq!(scaled(&body), ["v8 = load b32 [g1 + g5 * 4 + 8]", "store b32 v8, [g2]"]);
        // The shift comes first, is too large, or is none.
        let swapped = ["g6 = shl int 3, g5", "g7 = add int g6, g1", "g8 = load int [g7 - 8]"];
        assert_eq!(scaled(&swapped)[0], "g8 = load int [g1 + g5 * 8 - 8]");
        let large = ["g6 = shl int 4, g5", "g7 = add int g1, g6", "v8 = load b32 [g7]", "store b32 v8, [g2]"];
        assert_eq!(scaled(&large)[..2], ["g6 = shl int 4, g5", "v8 = load b32 [g1 + g6 * 1]"]);
    }

    #[test]
    fn what_others_read_stays() {
        let twice =
            ["g6 = shl int 2, g5", "g7 = add int g1, g6", "v8 = load b32 [g7]", "store b32 v8, [g7 + 4]"];
        assert_eq!(scaled(&twice), twice);
        // A shift that two addresses read is part of both.
        let both = [
            "g6 = shl int 2, g5",
            "g7 = add int g1, g6",
            "g8 = add int g2, g6",
            "v9 = load b32x8 [g7]",
            "store b32x8 v9, [g8]",
        ];
        assert_eq!(scaled(&both), ["v9 = load b32x8 [g1 + g5 * 4]", "store b32x8 v9, [g2 + g5 * 4]"]);
        // One that something else reads stays; a sum of another block, too.
        let kept = ["g6 = shl int 2, g5", "g7 = add int g1, g6", "v8 = load b32 [g7]", "g9 = mul int g6, g4"];
        assert_eq!(
            scaled(&kept),
            ["g6 = shl int 2, g5", "v8 = load b32 [g1 + g5 * 4]", "g9 = mul int g6, g4"]
        );
    }
}
