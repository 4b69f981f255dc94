//! Displacements that no instruction has: those of a block from one register that are near each other share a sum.

use std::collections::HashMap;

use onnxc_machine::vector::ir::{Class, Func, Inst, Mem, Op, Reg};

/// Bytes from a sum on that displacements share it for: in reach of most instructions.
const WINDOW: i32 = 8000;

/// Bytes that a load or store reaches.
fn bytes(op: Op) -> i32 {
    let bytes = match op {
        Op::Broadcast(lanes) => lanes.width(),
        Op::LoadSmall(small, lanes) => small.bytes() * lanes.count(),
        Op::LoadHalves(small, lanes) => 2 * small.bytes() * lanes.count(),
        Op::LoadPart(small) | Op::StorePart(small) => small.bytes(),
        Op::BroadcastHalf => 2,
        Op::LoadInt32 => 4,
        op => op.lanes().map_or(8, |lanes| lanes.bytes()),
    };
    bytes as i32
}

/// Where an instruction reaches memory at a displacement that is neither small nor a multiple of what it reaches, below
/// `reach` times as much.
fn far(inst: &Inst, reach: i32) -> Option<(Reg, i32)> {
    let address = inst.mem.and_then(Mem::address).filter(|address| address.scaled.is_none())?;
    let (disp, bytes) = (address.disp, bytes(inst.op));
    let near = (-256..256).contains(&disp) || disp % bytes == 0 && (0..reach * bytes).contains(&disp);
    (!near).then_some((address.base, disp))
}

/// Rewrites what is far, of a machine that has displacements below `reach` times the bytes that an instruction reaches.
pub fn run(func: &mut Func, reach: i32) {
    let mut blocks = std::mem::take(&mut func.blocks);
    for block in blocks.values_mut() {
        let mut far: Vec<(Reg, i32)> = block.insts.iter().filter_map(|inst| self::far(inst, reach)).collect();
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
            if let Some((base, disp)) = self::far(&inst, reach)
                && let Some(Mem::At(address) | Mem::Each(address)) = &mut inst.mem
            {
                let first = windows[&(base, disp)];
                let sum = *sums.entry((base, first)).or_insert_with(|| {
                    let dst = func.regs.push(Class::Int);
                    insts.push(Inst { op: Op::AddInt(first), dst: Some(dst), uses: vec![base], mem: None });
                    dst
                });
                (address.base, address.disp) = (sum, disp - first);
            }
            insts.push(inst);
        }
        block.insts = insts;
    }
    func.blocks = blocks;
}

#[cfg(test)]
mod tests {
    use crate::vector::far;
    use onnxc_machine::vector::{parse, verify};

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
        far::run(&mut func, 4096);
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

    /// What is broadcast has two bytes, which an instruction reaches at even displacements.
    #[test]
    fn halves_are_near_at_even_displacements() {
        let text = "function {
block0(g0, g1):
  v2 = broadcast_f16 int [g0 + 8190]
  v3 = broadcast_f16 int [g0 + 301]
  v4 = broadcast_f16 int [g0 + 20000]
  store b32x4 v2, [g1]
  store b32x4 v3, [g1 + 16]
  store b32x4 v4, [g1 + 32]
  return 0
}
";
        let mut func = parse::parse(text).unwrap();
        far::run(&mut func, 4096);
        verify::verify(&func).unwrap();
        let found = func.to_string();
        for (line, is_near) in [("[g0 + 8190]", true), ("[g0 + 301]", false), ("[g0 + 20000]", false)] {
            assert_eq!(found.contains(line), is_near, "{found}");
        }
    }
}
