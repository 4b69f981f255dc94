//! Whole functions: loops, spills, calls, and those that are refused.

use super::*;
use cranelift_entity::EntityRef;

/// `c += a * b`: `rows` rows, two vectors of columns, `dims[0]` steps.
fn gemm(rows: i32, lanes: Lanes) -> Func {
    let (sums, bytes) = (2 * rows, 4 * lanes.count() as i32);
    let (mut b, [buffers, dims, ..]) = Build::new();
    let [pa, pb, pc] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
    let k = b.load_int(dims, 0);
    let mut args: Vec<Reg> = (0..sums).map(|n| b.vec_mem(Op::Load(lanes), &[], pc, n * bytes)).collect();
    args.extend([pa, pb, k]);
    let params: Vec<Class> = (0..sums + 3).map(|n| if n < sums { Class::Vec } else { Class::Int }).collect();
    let (body, inner) = b.block(&params);
    let (back, _) = b.block(&[]);
    let (exit, _) = b.block(&[]);
    b.end(End::Jump(body, args));
    b.at = body;
    let [row, col, left] = [0, 1, 2].map(|n| inner[sums as usize + n]);
    let cols = [0, bytes].map(|disp| b.vec_mem(Op::Load(lanes), &[], col, disp));
    let mut next = vec![];
    for i in 0..rows {
        let a = b.vec_mem(Op::Broadcast(lanes), &[], row, i * 4);
        for (j, &col) in cols.iter().enumerate() {
            next.push(b.vec(Op::Fma(lanes), &[inner[i as usize * 2 + j], a, col]));
        }
    }
    next.push(b.int(Op::AddInt(4 * rows), &[row]));
    next.push(b.int(Op::AddInt(2 * bytes), &[col]));
    let left = b.int(Op::AddInt(-1), &[left]);
    next.push(left);
    b.end(End::Branch { cond: Cond::Ne, a: left, b: Operand::Imm(0), then: back, otherwise: exit });
    b.at = back;
    b.end(End::Jump(body, next.clone()));
    b.at = exit;
    for (n, &acc) in next[..sums as usize].iter().enumerate() {
        b.store(lanes, acc, pc, n as i32 * bytes);
    }
    b.func
}

#[test]
fn gemm_kernel_is_right_and_tight() {
    for platform in platforms() {
        let (lanes, evex) = (widest(platform.isa), platform.isa.evex());
        let rows = if evex { 14 } else { 6 };
        let (mr, nr) = (rows as usize, 2 * lanes.count());
        let func = gemm(rows, lanes);
        let k = 37;
        let value = |n: usize| ((n * 7919) % 13) as f32 - 6.0;
        let a: Vec<f32> = (0..mr * k).map(value).collect();
        let b: Vec<f32> = (0..nr * k).map(|n| value(n + 5)).collect();
        let mut c: Vec<f32> = (0..mr * nr).map(|n| n as f32).collect();
        let product = |n: usize| (0..k).map(|p| a[p * mr + n / nr] * b[p * nr + n % nr]).sum::<f32>();
        let expected: Vec<f32> = (0..mr * nr).map(|n| n as f32 + product(n)).collect();
        let buffers = [a.as_ptr() as *mut u32, b.as_ptr() as *mut u32, c.as_mut_ptr() as *mut u32];
        assert_eq!(Code::new(&func, platform).call(&buffers, &[k as i64], 0, 0), 0);
        assert_eq!(c, expected);

        let insts = disassemble(&func, platform.isa);
        let body = last_loop(&insts);
        // 2 loads, a broadcast and 2 multiplications per row, 3 additions, and the jump with its test.
        assert_eq!(body.len(), 2 + 3 * mr + 5, "{}", text(body));
        let moves = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Vmovaps | Mnemonic::Mov);
        assert!(!body.iter().any(|i| uses_stack(i) || moves(i)), "{}", text(body));
        if platform.isa.convention == Convention::Standard {
            assert!(!insts.iter().any(|i| i.mnemonic() == Mnemonic::Push || uses_stack(i)));
        }
        let clears = insts.iter().any(|i| i.mnemonic() == Mnemonic::Vzeroupper);
        assert_eq!(clears, platform.isa.vector_bytes > 16);
    }
}

/// 24 or 40 vectors, more than there are registers, and 20 integers live through a loop that runs `hi` times and uses all of them.
fn pressure(count: i32, lanes: Lanes) -> Func {
    let bytes = 4 * lanes.count() as i32;
    let (mut b, [buffers, dims, _, hi]) = Build::new();
    let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
    let vecs: Vec<Reg> = (0..count).map(|n| b.vec_mem(Op::Load(lanes), &[], from, n * bytes)).collect();
    let ints: Vec<Reg> = (0..20).map(|n| b.load_int(dims, n * 8)).collect();
    let (head, params) = b.block(&[Class::Int, Class::Vec, Class::Int]);
    let (back, _) = b.block(&[]);
    let (exit, _) = b.block(&[]);
    let zero = b.int(Op::Int(0), &[]);
    b.end(End::Jump(head, vec![zero, vecs[0], ints[0]]));
    b.at = head;
    let (mut acc, mut sum) = (params[1], params[2]);
    for &v in &vecs {
        acc = b.vec(Op::Binary(Binary::Add, lanes), &[acc, v]);
    }
    for &i in &ints {
        sum = b.int(Op::Add, &[sum, i]);
    }
    let next = b.int(Op::AddInt(1), &[params[0]]);
    b.end(End::Branch { cond: Cond::Lt, a: next, b: Operand::Reg(hi), then: back, otherwise: exit });
    b.at = back;
    b.end(End::Jump(head, vec![next, acc, sum]));
    b.at = exit;
    b.store(lanes, acc, out, 0);
    for (n, &v) in vecs.iter().enumerate() {
        b.store(lanes, v, out, bytes + n as i32 * bytes);
    }
    // All integers once more, as offsets into the output.
    let mut address = out;
    for &i in &ints {
        address = b.int(Op::Add, &[address, i]);
    }
    let address = b.int(Op::Add, &[address, sum]);
    let one = b.vec(Op::Splat(Lanes::X1, 1), &[]);
    b.store(Lanes::X1, one, address, 0);
    b.func
}

#[test]
fn spilled_values_survive() {
    for platform in platforms() {
        let (lanes, count) = (widest(platform.isa), if platform.isa.evex() { 40 } else { 24 });
        let (n, size) = (lanes.count(), lanes.count() * count as usize);
        let func = pressure(count, lanes);
        let insts = disassemble(&func, platform.isa);
        assert!(insts.iter().any(uses_stack) && insts.iter().any(|i| i.mnemonic() == Mnemonic::Push));
        let code = Code::new(&func, platform);
        for times in [1, 5] {
            let from: Vec<f32> = (0..size).map(|n| (n % 17) as f32).collect();
            let dims: Vec<i64> = (0..20).map(|n| 4 * (n % 3) + 60 + 4 * (size as i64 / 20)).collect();
            let mut out = vec![0f32; 1 << 14];
            code.call(&[from.as_ptr() as *mut u32, out.as_mut_ptr() as *mut u32], &dims, 0, times);
            for lane in 0..n {
                let sum: f32 = (0..count as usize).map(|v| from[v * n + lane]).sum();
                assert_eq!(out[lane], from[lane] + times as f32 * sum);
            }
            assert_eq!(out[n..n + size], from);
            let total: i64 = dims.iter().sum();
            let mark = (total + dims[0] + total * times) as usize / 4;
            let marked: Vec<usize> = (n + size..out.len()).filter(|&at| out[at].to_bits() == 1).collect();
            assert_eq!(marked, [mark]);
        }
    }
}

/// The unwind codes of Windows describe what the prologue does, instruction by instruction; and functions end as it expects.
#[test]
fn records_tell_the_prologue() {
    use Register::{RAX, RBP, RSP, XMM0};
    for isa in [AVX2, AVX512_256, AVX512].map(|isa| Isa { convention: Convention::Windows, ..isa }) {
        let lanes = widest(isa);
        let spills = if isa.evex() { 40 } else { 24 };
        // Without slots, with slots, and with nothing to save.
        let rows = if isa.evex() { 12 } else { 4 };
        let functions = [(gemm(rows, lanes), false), (pressure(spills, lanes), true)];
        let (nothing, _) = Build::new();
        assert_eq!(encode::compile(&nothing.func, isa).unwrap().unwind, [1, 0, 0, 0]);
        for (func, has_frame) in functions {
            let machine = encode::compile(&func, isa).unwrap();
            let insts = decode(&machine.bytes[..machine.instructions]);
            let mut wanted = vec![];
            let mut allocated = 0;
            for inst in &insts {
                let number = |first: Register, reg: Register| (reg as u32 - first as u32) as u8;
                let does = match (inst.mnemonic(), inst.op0_register(), inst.op1_register()) {
                    (Mnemonic::Push, reg, _) => vec![number(RAX, reg) << 4],
                    (Mnemonic::Sub, RSP, _) if allocated == 0 => {
                        allocated = inst.immediate32();
                        match allocated {
                            ..=128 => vec![2 | ((allocated / 8 - 1) as u8) << 4],
                            _ => vec![1, (allocated / 8) as u8, (allocated >> 11) as u8],
                        }
                    }
                    (Mnemonic::Mov, RBP, RSP) => vec![3],
                    (Mnemonic::Vmovaps, Register::None, vector) if uses_stack(inst) => {
                        vec![8 | number(XMM0, vector) << 4, (inst.memory_displacement64() / 16) as u8, 0]
                    }
                    _ => break,
                };
                wanted.push([vec![inst.next_ip() as u8], does].concat());
            }
            wanted.reverse();
            let mut codes = wanted.concat();
            let words = codes.len() / 2;
            codes.resize(codes.len().next_multiple_of(4), 0);
            let frame = if has_frame { 5 } else { 0 };
            let record = [vec![1, wanted[0][0], words as u8, frame], codes].concat();
            assert_eq!(machine.unwind, record, "{isa:?} {}", text(&insts));
            assert!(allocated > 0, "vectors are saved: {}", text(&insts));
            let end: Vec<Mnemonic> = insts.iter().rev().map(Instruction::mnemonic).collect();
            let pops = end[1..].iter().take_while(|&&mnemonic| mnemonic == Mnemonic::Pop).count();
            let release = if has_frame { Mnemonic::Lea } else { Mnemonic::Add };
            assert_eq!((end[0], end[pops + 1]), (Mnemonic::Ret, release), "{}", text(&insts));
        }
    }
}

/// More masks than there are registers for them.
#[test]
fn spilled_masks_survive() {
    for platform in platforms() {
        let lanes = widest(platform.isa);
        let (n, bytes) = (lanes.count(), 4 * lanes.count() as i32);
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let x = b.vec_mem(Op::Load(lanes), &[], from, 0);
        let masks: Vec<Reg> = (0..20u32)
            .map(|bound| {
                let bound = b.vec(Op::Splat(lanes, (bound as f32).to_bits().into()), &[]);
                b.push(Op::Compare(Compare::Lt, lanes), Some(Class::Mask), &[x, bound], None).unwrap()
            })
            .collect();
        for (at, &mask) in masks.iter().enumerate().rev() {
            let yes = b.vec(Op::Splat(lanes, 1), &[]);
            let no = b.vec(Op::Splat(lanes, 2), &[]);
            let value = b.vec(Op::Blend(lanes), &[mask, yes, no]);
            b.store(lanes, value, out, at as i32 * bytes);
        }
        let insts = disassemble(&b.func, platform.isa);
        assert!(insts.iter().any(uses_stack), "{}", text(&insts));
        let from: Vec<f32> = (0..n).map(|lane| lane as f32 * 1.25).collect();
        let mut out = vec![0u32; 20 * n];
        Code::new(&b.func, platform).call(&[from.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
        for (at, &found) in out.iter().enumerate() {
            assert_eq!(found, if from[at % n] < (at / n) as f32 { 1 } else { 2 }, "{at} on {platform:?}");
        }
    }
}

#[test]
fn large_frames_touch_every_page() {
    for platform in platforms() {
        let lanes = widest(platform.isa);
        let bytes = 4 * lanes.count() as i32;
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let vecs: Vec<Reg> = (0..600).map(|n| b.vec_mem(Op::Load(lanes), &[], from, n * bytes)).collect();
        for (n, &v) in vecs.iter().enumerate().rev() {
            b.store(lanes, v, out, n as i32 * bytes);
        }
        let insts = disassemble(&b.func, platform.isa);
        let pages = insts.iter().filter(|i| i.mnemonic() == Mnemonic::Test && uses_stack(i)).count();
        let in_memory = 600 - platform.isa.vector_registers as i32;
        assert!(pages as i32 >= in_memory * bytes / 4096);
        let from: Vec<u32> = (0..150 * bytes as u32).collect();
        let mut out = vec![0u32; from.len()];
        Code::new(&b.func, platform).call(&[from.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
        assert_eq!(out, from);
    }
}

/// A load is part of the operation that reads it, unless something is stored in between, or the operation has other lanes.
#[test]
fn loads_become_operands() {
    let vec = Some(Class::Vec);
    for (stores, other_width, folded) in [(false, false, 3), (true, false, 0), (false, true, 2)] {
        let (mut b, [buffers, ..]) = Build::new();
        let [p, q, out] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
        let v = b.vec_mem(Op::Load(Lanes::X16), &[], q, 0);
        let [x, y] = [0, 64].map(|disp| b.vec_mem(Op::Load(Lanes::X16), &[], p, disp));
        let each = b.vec_mem(Op::Broadcast(Lanes::X16), &[], p, 4);
        if stores {
            b.store(Lanes::X16, v, p, 0);
        }
        // First in a sum, a loaded value changes places; in a difference it is last already.
        let sum = b.push(Op::Binary(Binary::Add, Lanes::X16), vec, &[x, v], None).unwrap();
        let fused = b.vec(Op::Fma(Lanes::X16), &[sum, each, v]);
        let lanes = if other_width { Lanes::X8 } else { Lanes::X16 };
        let less = b.vec(Op::Binary(Binary::Sub, lanes), &[v, y]);
        b.store(Lanes::X16, fused, out, 0);
        b.store(lanes, less, out, 64);
        crate::vector::fold::run(&mut b.func);
        let insts = disassemble(&b.func, AVX512);
        let arithmetic = |i: &&Instruction| {
            matches!(i.mnemonic(), Mnemonic::Vaddps | Mnemonic::Vsubps | Mnemonic::Vfmadd231ps)
        };
        let in_memory = |i: &Instruction| (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        assert_eq!(
            insts.iter().filter(arithmetic).filter(|i| in_memory(i)).count(),
            folded,
            "{}",
            text(&insts)
        );
        let mut p: Vec<f32> = (0..32).map(|n| n as f32 * 0.5).collect();
        let q: Vec<f32> = (0..16).map(|n| 100.0 - n as f32).collect();
        let mut out = vec![0f32; 32];
        let pointers = [p.as_mut_ptr(), q.as_ptr() as *mut f32, out.as_mut_ptr()].map(|p| p.cast());
        Code::new(&b.func, Platform { isa: AVX512, emulated: true }).call(&pointers, &[], 0, 0);
        for n in 0..16 {
            assert_eq!(out[n], n as f32 * 0.5 + q[n] + 0.5 * q[n]);
        }
        for n in 0..lanes.count() {
            assert_eq!(out[16 + n], q[n] - p[16 + n]);
        }
    }
}

/// Every operand of a fused operation may be the same value, and `acc` may be needed later.
#[test]
fn fused_operations_with_equal_operands() {
    for (platform, uses) in platforms()
        .into_iter()
        .flat_map(|platform| [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]].map(|uses| (platform, uses)))
    {
        let (mut b, [buffers, ..]) = Build::new();
        let [p, q, out] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
        let x = b.vec_mem(Op::Load(Lanes::X4), &[], p, 0);
        let y = b.vec_mem(Op::Load(Lanes::X4), &[], q, 0);
        let result = b.vec(Op::Fma(Lanes::X4), &uses.map(|n| [x, y][n]));
        let sum = b.vec(Op::Binary(Binary::Add, Lanes::X4), &[result, x]);
        b.store(Lanes::X4, sum, out, 0);
        let mut buffers = [[3f32; 4], [5.0; 4], [0.0; 4]];
        let pointers = buffers.each_mut().map(|b| b.as_mut_ptr() as *mut u32);
        Code::new(&b.func, platform).call(&pointers, &[], 0, 0);
        let [acc, a, c] = uses.map(|n| [3.0, 5.0][n]);
        assert_eq!(buffers[2], [a * c + acc + 3.0; 4]);
    }
}

#[test]
fn return_codes_and_conditions() {
    platforms().into_iter().for_each(check_return_codes_and_conditions);
}

fn check_return_codes_and_conditions(platform: Platform) {
    for code in [0, 1, -1, i32::MIN, 77] {
        let (mut b, _) = Build::new();
        b.end(End::Return(code));
        assert_eq!(Code::new(&b.func, platform).call(&[], &[], 0, 0), code);
    }
    let holds = |cond, a: i64, b: i64| match cond {
        Cond::Lt => a < b,
        Cond::Ge => a >= b,
        Cond::Eq => a == b,
        Cond::Ne => a != b,
    };
    let values = [i64::MIN, -1000, -1, 0, 1, 1000, i64::MAX];
    for cond in [Cond::Lt, Cond::Ge, Cond::Eq, Cond::Ne] {
        for operand in [None, Some(0), Some(-1), Some(1000)] {
            // In either order after the branch, or with another block in between.
            for layout in 0..3 {
                let (mut b, [_, _, lo, hi]) = Build::new();
                let blocks: [BlockId; 3] = [0; 3].map(|_| b.block(&[]).0);
                let (then, otherwise, join) = match layout {
                    0 => (blocks[0], blocks[1], blocks[2]),
                    1 => (blocks[1], blocks[0], blocks[2]),
                    _ => (blocks[1], blocks[2], blocks[0]),
                };
                b.end(End::Branch {
                    cond,
                    a: lo,
                    b: operand.map_or(Operand::Reg(hi), Operand::Imm),
                    then,
                    otherwise,
                });
                b.func.blocks[then].end = End::Return(1);
                b.func.blocks[otherwise].end = End::Jump(join, vec![]);
                b.func.blocks[join].end = End::Return(2);
                let code = Code::new(&b.func, platform);
                for (x, y) in values.into_iter().flat_map(|x| values.map(|y| (x, y))) {
                    let expected = if holds(cond, x, operand.map_or(y, i64::from)) { 1 } else { 2 };
                    assert_eq!(code.call(&[], &[], x, y), expected, "{cond:?} {operand:?} {x} {y}");
                }
            }
        }
    }
}

#[test]
fn values_swapped_by_a_loop() {
    platforms().into_iter().for_each(check_swapped_values);
}

fn check_swapped_values(platform: Platform) {
    let (mut b, [buffers, _, lo, hi]) = Build::new();
    let [p, q, out] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
    let [x, y] = [p, q].map(|p| b.vec_mem(Op::Load(Lanes::X4), &[], p, 0));
    let (head, params) = b.block(&[Class::Int, Class::Vec, Class::Vec, Class::Int, Class::Int]);
    let (back, _) = b.block(&[]);
    let (exit, _) = b.block(&[]);
    b.end(End::Jump(head, vec![lo, x, y, out, q]));
    b.at = head;
    let next = b.int(Op::AddInt(1), &[params[0]]);
    b.end(End::Branch { cond: Cond::Ge, a: next, b: Operand::Reg(hi), then: exit, otherwise: back });
    b.at = back;
    b.end(End::Jump(head, vec![next, params[2], params[1], params[4], params[3]]));
    b.at = exit;
    b.store(Lanes::X4, params[1], params[3], 0);
    b.store(Lanes::X4, params[2], params[3], 16);
    let code = Code::new(&b.func, platform);
    for (times, expected) in [(1, [1, 2]), (2, [2, 1]), (3, [1, 2])] {
        let mut buffers = [[1u32; 8], [2; 8], [0; 8]];
        let pointers = buffers.each_mut().map(|b| b.as_mut_ptr());
        code.call(&pointers, &[], 0, times);
        let found = if times % 2 == 1 { buffers[2] } else { buffers[1] };
        assert_eq!([found[0], found[4]], expected);
    }
}

#[test]
fn bad_functions_are_errors() {
    fn error<R>(change: impl Fn(&mut Build, [Reg; 4]) -> R) {
        let (mut b, args) = Build::new();
        change(&mut b, args);
        for isa in [AVX2, AVX512_256, AVX512] {
            compile(&b.func, isa).expect_err("a bad function");
        }
    }
    assert!(compile(&Func::default(), AVX2).is_err());
    let mem = |base| Some(Mem::at(base, 0));
    let vec = Some(Class::Vec);
    let int = Some(Class::Int);
    // Operands that are missing, too many, or of the wrong kind.
    error(|b, _| b.push(Op::Load(Lanes::X8), vec, &[], None));
    error(|b, [p, ..]| b.push(Op::Load(Lanes::X8), vec, &[p], mem(p)));
    error(|b, [p, ..]| b.push(Op::Load(Lanes::X8), int, &[], mem(p)));
    error(|b, [p, ..]| b.push(Op::Load(Lanes::X8), None, &[], mem(p)));
    error(|b, [p, ..]| b.push(Op::Splat(Lanes::X8, 1), vec, &[], mem(p)));
    error(|b, [p, ..]| b.push(Op::Binary(Binary::Add, Lanes::X8), vec, &[p, p], None));
    error(|b, [p, ..]| b.push(Op::Add, int, &[p], mem(p)));
    error(|b, [p, ..]| b.push(Op::ShlInt(64), int, &[p], None));
    error(|b, _| {
        let v = b.vec(Op::Splat(Lanes::X8, 1), &[]);
        b.vec(Op::Extract(16, Lanes::X1), &[v]);
    });
    error(|b, _| {
        let v = b.vec(Op::Splat(Lanes::X8, 1), &[]);
        b.push(Op::Store(Lanes::X8), None, &[v], mem(v));
    });
    error(|b, [p, ..]| b.push(Op::Store(Lanes::X8), None, &[p], Some(Mem::each(p, 0))));
    error(|b, _| {
        let v = b.vec(Op::Splat(Lanes::X8, 1), &[]);
        b.vec(Op::Blend(Lanes::X8), &[v, v, v]);
    });
    error(|b, [p, ..]| {
        let v = b.vec(Op::Splat(Lanes::X1, 1), &[]);
        b.push(Op::Binary(Binary::Add, Lanes::X1), vec, &[v], Some(Mem::each(p, 0)));
    });
    // Registers that do not exist, are not defined yet, or twice.
    error(|b, _| b.int(Op::AddInt(1), &[Reg::new(99)]));
    error(|b, _| b.int(Op::AddInt(1), &[Reg::new(4)]));
    error(|b, [p, ..]| {
        let late = b.func.regs.push(Class::Int);
        b.int(Op::Add, &[p, late]);
    });
    error(|b, [p, q, ..]| {
        b.func.blocks[b.at].insts.push(Inst { op: Op::AddInt(1), dst: Some(p), uses: vec![q], mem: None });
    });
    error(|b, _| {
        let (to, _) = b.block(&[Class::Int]);
        let never = b.func.regs.push(Class::Int);
        b.end(End::Jump(to, vec![never]));
    });
    // Edges.
    error(|b, _| b.end(End::Jump(BlockId::new(7), vec![])));
    error(|b, [p, q, r, s]| b.end(End::Jump(b.at, vec![p, q, r, s])));
    error(|b, [p, ..]| {
        let (to, _) = b.block(&[]);
        b.end(End::Jump(to, vec![p]));
    });
    error(|b, _| {
        let (to, _) = b.block(&[Class::Int]);
        let v = b.vec(Op::Splat(Lanes::X8, 1), &[]);
        b.end(End::Jump(to, vec![v]));
    });
    error(|b, [p, ..]| {
        let (to, _) = b.block(&[]);
        b.end(End::Branch { cond: Cond::Eq, a: p, b: Operand::Imm(0), then: to, otherwise: to });
    });
    error(|b, _| b.block(&[]));
    error(|b, _| {
        let (to, _) = b.block(&[]);
        b.end(End::Jump(to, vec![]));
        b.func.blocks[to].end = End::Jump(to, vec![]);
    });
    // More arguments than registers for them.
    error(|b, _| {
        let fifth = b.func.regs.push(Class::Int);
        b.func.blocks[b.at].params.push(fifth);
    });
}
