//! Displacements that no instruction has: those of a block from one register that are near each other share a sum.

use std::collections::HashMap;

use crate::vector::ir::{Address, Class, Func, Inst, Mem, Op, Reg};

/// Bytes that are in reach of every load and store from a sum on, whatever their alignment but for single bytes.
const WINDOW: i32 = 8000;

/// Rewrites displacements outside of `0..reach` but for small negative ones.
pub fn run(func: &mut Func, reach: i32) {
    let mut blocks = std::mem::take(&mut func.blocks);
    for block in blocks.values_mut() {
        let is_far = |address: &Address| address.scaled.is_none() && !(-256..reach).contains(&address.disp);
        let mut far: Vec<(Reg, i32)> = vec![];
        for inst in &block.insts {
            let address = inst.mem.and_then(Mem::address).filter(is_far);
            far.extend(address.map(|Address { base, disp, .. }| (base, disp)));
        }
        if far.is_empty() {
            continue;
        }
        far.sort_unstable();
        far.dedup();
        // Where the window of each begins.
        let mut windows: HashMap<(Reg, i32), i32> = HashMap::new();
        let mut last: Option<(Reg, i32)> = None;
        for &(base, disp) in &far {
            let first = match last {
                Some((reg, first))
                    if reg == base && i64::from(disp) - i64::from(first) < i64::from(WINDOW) =>
                {
                    first
                }
                _ => disp,
            };
            last = Some((base, first));
            windows.insert((base, disp), first);
        }
        let mut sums: HashMap<(Reg, i32), Reg> = HashMap::new();
        let mut insts = Vec::with_capacity(block.insts.len());
        for mut inst in block.insts.drain(..) {
            if let Some(Mem::At(address) | Mem::Each(address)) = &mut inst.mem
                && let Some(&first) = windows.get(&(address.base, address.disp)).filter(|_| is_far(address))
            {
                let sum = *sums.entry((address.base, first)).or_insert_with(|| {
                    let dst = func.regs.push(Class::Int);
                    let (op, uses) = (Op::AddInt(first), vec![address.base]);
                    insts.push(Inst { op, dst: Some(dst), uses, mem: None });
                    dst
                });
                (address.base, address.disp) = (sum, address.disp - first);
            }
            insts.push(inst);
        }
        block.insts = insts;
    }
    func.blocks = blocks;
}

#[cfg(test)]
mod tests {
    use crate::vector::{far, parse, verify};

    #[test]
    fn neighbours_share_a_sum() {
        let text = "function {
block0(g0, g1, g2, g3):
  v4 = load b32x4 [g0 + 40]
  v5 = load b32x4 [g0 + 70000]
  v6 = load b32x4 [g0 + 70128]
  store b32x4 v5, [g1 - 4096]
  store b32x4 v6, [g0 + 90000]
  store b32x4 v4, [g1 - 16]
  return 0
}
";
        let mut func = parse::parse(text).unwrap();
        far::run(&mut func, 16384);
        verify::verify(&func).unwrap();
        let found = func.to_string();
        let lines: Vec<&str> = found.lines().map(str::trim).collect();
        let sum = |line: &str| line.split(' ').next().unwrap().to_string();
        let (a, b, c) = (sum(lines[3]), sum(lines[6]), sum(lines[8]));
        assert!(lines[3].ends_with("= add int 70000, g0"), "{found}");
        assert_eq!(lines[4], format!("v5 = load b32x4 [{a}]"));
        assert_eq!(lines[5], format!("v6 = load b32x4 [{a} + 128]"));
        assert!(lines[6].ends_with("= add int -4096, g1"), "{found}");
        assert_eq!(lines[7], format!("store b32x4 v5, [{b}]"));
        assert_eq!(lines[9], format!("store b32x4 v6, [{c}]"));
        assert_eq!(lines[10], "store b32x4 v4, [g1 - 16]");
    }
}
