//! What is in a register already: within a block, an element that a kernel only reads is loaded once for neighbouring operations,
//! such as the scale of a column for all rows of a tile, and so are constants and packed vectors made once.

use std::collections::HashMap;

use super::memory::Buffers;
use onnxc_machine::vector::ir::{Address, End, Func, Inst, Mem, Op, Operand, Reg};

/// Instructions for which a register is kept after its last read: if it is kept longer, other values may be spilled for it.
const NEAR: usize = 40;

/// What an instruction computes: the operation, its operands and the address that it reads.
type Key = (Op, Vec<Reg>, Option<(Reg, Option<(Reg, u8)>, i32)>);

pub fn run(func: &mut Func, buffers: &Buffers<'_>) {
    // Registers whose value another one has.
    let mut same: HashMap<Reg, Reg> = HashMap::new();
    for block in func.blocks.values_mut() {
        // By the computed value: the register, and where it was read last.
        let mut known: HashMap<Key, (Reg, usize)> = HashMap::new();
        let mut at = 0;
        block.insts.retain_mut(|inst| {
            at += 1;
            rename(inst, &same);
            let (Some(key), Some(dst)) = (key(inst, buffers), inst.dst) else { return true };
            match known.get_mut(&key) {
                Some((reg, last)) if at - *last <= NEAR => {
                    same.insert(dst, *reg);
                    *last = at;
                    false
                }
                _ => {
                    known.insert(key, (dst, at));
                    true
                }
            }
        });
    }
    if same.is_empty() {
        return;
    }
    let now = |reg: &mut Reg| *reg = *same.get(reg).unwrap_or(reg);
    for block in func.blocks.values_mut() {
        // Blocks that come before one in the layout may be behind it.
        block.insts.iter_mut().for_each(|inst| rename(inst, &same));
        match &mut block.end {
            End::Jump(_, args) => args.iter_mut().for_each(now),
            End::Branch { a, b, .. } => {
                now(a);
                if let Operand::Reg(b) = b {
                    now(b);
                }
            }
            End::Return(_) => {}
        }
    }
}

fn rename(inst: &mut Inst, same: &HashMap<Reg, Reg>) {
    let now = |reg: &mut Reg| *reg = *same.get(reg).unwrap_or(reg);
    inst.uses.iter_mut().for_each(now);
    if let Some(Mem::At(Address { base, scaled, .. }) | Mem::Each(Address { base, scaled, .. })) =
        &mut inst.mem
    {
        now(base);
        scaled.iter_mut().for_each(|(reg, _)| now(reg));
    }
}

/// What is worth a register: elements of what the kernel only reads, and what takes several instructions.
fn key(inst: &Inst, buffers: &Buffers<'_>) -> Option<Key> {
    match (inst.op, inst.mem) {
        (Op::Load(_) | Op::Broadcast(_), Some(Mem::At(Address { base, scaled, disp }))) => {
            buffers.only_read(inst.mem).then(|| (inst.op, vec![], Some((base, scaled, disp))))
        }
        (Op::Int(_) | Op::Pack(..) | Op::PackBf16(_), None) => Some((inst.op, inst.uses.clone(), None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::vector::memory::Buffers;
    use crate::vector::reuse;
    use crate::vector::tests::after;
    use onnxc_loops::parse::parse as kernel;
    use onnxc_machine::vector::ir::Func;

    const KERNEL: &str = "kernel \"k\" {
  buffer b0 \"x\" : read f32[64]
  buffer b1 \"y\" : write f32[64]
}
";

    /// The addresses of the buffers, and one behind the first.
    const START: [&str; 3] = ["g4 = load int [g0]", "g5 = load int [g0 + 8]", "g6 = add int 64, g4"];

    fn reused(body: &[&str]) -> Vec<String> {
        let (kernel, body) = (kernel(KERNEL).unwrap(), [&START, body].concat());
        let pass = |func: &mut Func| {
            let buffers = Buffers::new(func, &kernel);
            reuse::run(func, &buffers);
        };
        after(&body, pass).split_off(START.len())
    }

    #[test]
    fn what_is_only_read_is_loaded_once() {
        let found = reused(&[
            "v7 = load b32x4 [g6 + 16]",
            "store b32x4 v7, [g5]",
            "v8 = load b32x4 [g6 + 16]",
            "v9 = load b32x4 [g6]",
            "v10 = add f32x4 v8, v9",
            "store b32x4 v10, [g5 + 16]",
        ]);
        let wanted = [
            "v7 = load b32x4 [g6 + 16]",
            "store b32x4 v7, [g5]",
            "v9 = load b32x4 [g6]",
            "v10 = add f32x4 v7, v9",
            "store b32x4 v10, [g5 + 16]",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn constants_and_packed_vectors_are_made_once() {
        let found = reused(&[
            "g7 = const int 123456789",
            "g8 = mul_high int g2, g7",
            "g9 = const int 123456789",
            "g10 = mul_high int g3, g9",
            "v11 = splat b32x4 0x7",
            "v12 = pack_u8 i32x4 v11",
            "v13 = pack_u8 i32x4 v11",
            "g14 = add int g5, g8",
            "g15 = add int g5, g10",
            "store b32 v12, [g14]",
            "store b32 v13, [g15]",
        ]);
        let text = found.join("\n");
        assert!(text.contains("mul_high int g3, g7") && text.contains("store b32 v12, [g15]"), "{text}");
        assert!(!text.contains("g9") && !text.contains("v13"), "{text}");
    }

    /// Of what the kernel writes, of other lanes, and a long time after.
    #[test]
    fn others_are_loaded_again() {
        let body =
            ["v7 = load b32x4 [g5]", "store b32x4 v7, [g5]", "v8 = load b32x4 [g5]", "store b32x4 v8, [g5]"];
        assert_eq!(reused(&body), body);
        let body =
            ["v7 = load b32x4 [g4]", "v8 = load b32 [g4]", "store b32x4 v7, [g5]", "store b32 v8, [g5 + 16]"];
        assert_eq!(reused(&body), body);
        let mut body = vec!["v7 = load b32x4 [g4]"];
        body.extend(["store b32x4 v7, [g5]"; reuse::NEAR + 1]);
        body.extend(["v8 = load b32x4 [g4]", "store b32x4 v8, [g5]"]);
        assert_eq!(reused(&body), body);
    }

    /// What another register has is read from it in blocks that come before it in the layout, too, and where blocks end.
    #[test]
    fn blocks_before_and_their_ends_read_the_one_that_is_kept() {
        let text = "function {
block0(g0, g1, g2, g3):
  g4 = load int [g0]
  g5 = load int [g0 + 8]
  jump block2
block1:
  g6 = add int g4, g8
  v7 = load b32 [g6]
  store b32 v7, [g5]
  branch lt g8, g2 then block3 else block4
block2:
  g9 = const int 123456789
  g8 = const int 123456789
  g10 = add int g9, g2
  branch lt g10, g8 then block1 else block4
block3:
  branch lt g2, g8 then block1 else block4
block4:
  return 0
}
";
        let mut func = onnxc_machine::vector::parse::parse(text).unwrap();
        let kernel = kernel(KERNEL).unwrap();
        let buffers = Buffers::new(&func, &kernel);
        reuse::run(&mut func, &buffers);
        assert_eq!(func.to_string(), text.replace("  g8 = const int 123456789\n", "").replace("g8", "g9"));
    }
}
