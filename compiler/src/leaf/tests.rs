//! Runs generated functions, and compares what they compute with a model of the IR on scalars.

use super::alloc::allocate;
use super::encode;
use super::ir::*;
use cranelift_entity::{EntityRef, PrimaryMap};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, Mnemonic, OpKind, Register};

fn compile(func: &Func) -> Result<Vec<u8>, String> {
    encode::compile(func).map(|machine| machine.bytes)
}

const WIDTHS: [Lanes; 3] = [Lanes::X1, Lanes::X4, Lanes::X8];

/// Builds a function block by block.
struct Build {
    func: Func,
    at: BlockId,
}

impl Build {
    /// With the four arguments.
    fn new() -> (Build, [Reg; 4]) {
        let mut func = Func { regs: PrimaryMap::new(), blocks: PrimaryMap::new() };
        let args = [0; 4].map(|_| func.regs.push(Class::Int));
        let at = func.blocks.push(Block { params: args.to_vec(), insts: vec![], end: End::Return(0) });
        (Build { func, at }, args)
    }

    fn block(&mut self, params: &[Class]) -> (BlockId, Vec<Reg>) {
        let params: Vec<Reg> = params.iter().map(|&class| self.func.regs.push(class)).collect();
        let block = Block { params: params.clone(), insts: vec![], end: End::Return(0) };
        (self.func.blocks.push(block), params)
    }

    fn end(&mut self, end: End) {
        self.func.blocks[self.at].end = end;
    }

    fn push(&mut self, op: Op, dst: Option<Class>, uses: &[Reg], mem: Option<Mem>) -> Option<Reg> {
        let dst = dst.map(|class| self.func.regs.push(class));
        self.func.blocks[self.at].insts.push(Inst { op, dst, uses: uses.to_vec(), mem });
        dst
    }

    fn vec(&mut self, op: Op, uses: &[Reg]) -> Reg {
        self.push(op, Some(Class::Vec), uses, None).unwrap()
    }

    fn vec_mem(&mut self, op: Op, uses: &[Reg], base: Reg, disp: i32) -> Reg {
        self.push(op, Some(Class::Vec), uses, Some(Mem::At { base, disp })).unwrap()
    }

    fn int(&mut self, op: Op, uses: &[Reg]) -> Reg {
        self.push(op, Some(Class::Int), uses, None).unwrap()
    }

    fn load_int(&mut self, base: Reg, disp: i32) -> Reg {
        self.push(Op::LoadInt, Some(Class::Int), &[], Some(Mem::At { base, disp })).unwrap()
    }

    fn store(&mut self, lanes: Lanes, value: Reg, base: Reg, disp: i32) {
        self.push(Op::Store(lanes), None, &[value], Some(Mem::At { base, disp }));
    }
}

/// Compiled code that can be called.
struct Code(memmap2::Mmap);

impl Code {
    fn new(func: &Func) -> Code {
        allocate(func).unwrap().check().unwrap();
        let bytes = compile(func).unwrap();
        assert_eq!(bytes, compile(func).unwrap(), "the same code each time");
        let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(&bytes);
        Code(map.make_exec().unwrap())
    }

    /// Puts a canary in the registers that a function has to restore.
    fn call(&self, buffers: &[*mut u32], dims: &[i64], lo: i64, hi: i64) -> i32 {
        let result: u64;
        let [mut r12, mut r13, mut r14, mut r15] = [12u64, 13, 14, 15];
        let restored: u64;
        unsafe {
            std::arch::asm!(
                "push rbx", "push rbp",
                "mov rbx, 3333", "mov rbp, rsp",
                "and rsp, -16",
                "call r8",
                "mov rsp, rbp",
                "mov r8, rbx",
                "pop rbp", "pop rbx",
                inout("r8") self.0.as_ptr() as u64 => restored,
                in("rdi") buffers.as_ptr(), in("rsi") dims.as_ptr(), in("rdx") lo, in("rcx") hi,
                lateout("rax") result,
                inout("r12") r12, inout("r13") r13, inout("r14") r14, inout("r15") r15,
                clobber_abi("sysv64"),
            );
        }
        assert_eq!([r12, r13, r14, r15, restored], [12, 13, 14, 15, 3333]);
        result as i32
    }
}

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    let mut insts = vec![];
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    let mut end = 0;
    // The constants come after the last return.
    for inst in &mut decoder {
        if inst.is_invalid() {
            break;
        }
        insts.push(inst);
        if inst.mnemonic() == Mnemonic::Ret {
            end = insts.len();
        }
    }
    insts.truncate(end);
    assert!(end > 0);
    insts
}

fn text(insts: &[Instruction]) -> String {
    let mut formatter = GasFormatter::new();
    let mut text = String::new();
    for inst in insts {
        formatter.format(inst, &mut text);
        text.push('\n');
    }
    text
}

/// The instructions from the target of the last jump backwards to that jump.
fn last_loop(insts: &[Instruction]) -> &[Instruction] {
    let back = |inst: &Instruction| inst.op0_kind() == OpKind::NearBranch64;
    let jump = insts.iter().rposition(|i| back(i) && i.near_branch_target() <= i.ip()).expect("a loop");
    let start = insts.iter().position(|i| i.ip() == insts[jump].near_branch_target()).unwrap();
    &insts[start..=jump]
}

fn uses_stack(inst: &Instruction) -> bool {
    inst.memory_base() == Register::RSP
}

/// `c += a * b`: 6 rows, 16 columns, as long as `dims[0]`.
fn gemm() -> Func {
    let (mut b, [buffers, dims, ..]) = Build::new();
    let [pa, pb, pc] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
    let k = b.load_int(dims, 0);
    let mut args: Vec<Reg> = (0..12).map(|n| b.vec_mem(Op::Load(Lanes::X8), &[], pc, n * 32)).collect();
    args.extend([pa, pb, k]);
    let params: Vec<Class> = (0..15).map(|n| if n < 12 { Class::Vec } else { Class::Int }).collect();
    let (body, inner) = b.block(&params);
    let (back, _) = b.block(&[]);
    let (exit, _) = b.block(&[]);
    b.end(End::Jump(body, args));
    b.at = body;
    let [row, col, left] = [inner[12], inner[13], inner[14]];
    let cols = [0, 32].map(|disp| b.vec_mem(Op::Load(Lanes::X8), &[], col, disp));
    let mut next = vec![];
    for i in 0..6 {
        let a = b.vec_mem(Op::Broadcast(Lanes::X8), &[], row, i * 4);
        for (j, &col) in cols.iter().enumerate() {
            next.push(b.vec(Op::Fma(Lanes::X8), &[inner[i as usize * 2 + j], a, col]));
        }
    }
    next.push(b.int(Op::AddInt(24), &[row]));
    next.push(b.int(Op::AddInt(64), &[col]));
    let left = b.int(Op::AddInt(-1), &[left]);
    next.push(left);
    b.end(End::Branch { cond: Cond::Ne, a: left, b: Operand::Imm(0), then: back, otherwise: exit });
    b.at = back;
    b.end(End::Jump(body, next.clone()));
    b.at = exit;
    for (n, &acc) in next[..12].iter().enumerate() {
        b.store(Lanes::X8, acc, pc, n as i32 * 32);
    }
    b.func
}

#[test]
fn gemm_kernel_is_right_and_tight() {
    let func = gemm();
    let k = 37;
    let value = |n: usize| ((n * 7919) % 13) as f32 - 6.0;
    let a: Vec<f32> = (0..6 * k).map(value).collect();
    let b: Vec<f32> = (0..16 * k).map(|n| value(n + 5)).collect();
    let mut c: Vec<f32> = (0..96).map(|n| n as f32).collect();
    let expected: Vec<f32> = (0..96)
        .map(|n| n as f32 + (0..k).map(|p| a[p * 6 + n / 16] * b[p * 16 + n % 16]).sum::<f32>())
        .collect();
    let buffers = [a.as_ptr() as *mut u32, b.as_ptr() as *mut u32, c.as_mut_ptr() as *mut u32];
    assert_eq!(Code::new(&func).call(&buffers, &[k as i64], 0, 0), 0);
    assert_eq!(c, expected);

    let insts = decode(&compile(&func).unwrap());
    let body = last_loop(&insts);
    // 2 loads, 6 broadcasts, 12 multiplications, 3 additions, and the jump with its test.
    assert_eq!(body.len(), 25, "{}", text(body));
    assert!(!body.iter().any(uses_stack), "{}", text(body));
    assert!(
        !body.iter().any(|i| matches!(i.mnemonic(), Mnemonic::Vmovaps | Mnemonic::Mov)),
        "{}",
        text(body)
    );
    assert!(!insts.iter().any(|i| i.mnemonic() == Mnemonic::Push || uses_stack(i)));
    assert!(insts.iter().any(|i| i.mnemonic() == Mnemonic::Vzeroupper));
}

/// Values at the edges: as floats and as integers.
fn edges() -> Vec<u32> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.7,
        -3.7,
        1e-40,
        -1e-40,
        1e10,
        -1e10,
        2147483648.0,
        3e38,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        8388609.0,
    ];
    let ints = [1, 2, 0x7fff_ffff, 0x8000_0001, 0xffff_ffff, 12345, 0xffff_0000, 0xdead_beef];
    floats.map(f32::to_bits).into_iter().chain(ints).collect()
}

fn mask(condition: bool) -> u32 {
    if condition { u32::MAX } else { 0 }
}

fn binary_model(op: Binary, a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    let (i, j) = (a as i32, b as i32);
    match op {
        Binary::Add => (x + y).to_bits(),
        Binary::Sub => (x - y).to_bits(),
        Binary::Mul => (x * y).to_bits(),
        Binary::Div => (x / y).to_bits(),
        Binary::Min => {
            if x < y {
                a
            } else {
                b
            }
        }
        Binary::Max => {
            if x > y {
                a
            } else {
                b
            }
        }
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Eq => mask(x == y),
        Binary::Ne => mask(x != y),
        Binary::Lt => mask(x < y),
        Binary::Le => mask(x <= y),
        Binary::IntAdd => a.wrapping_add(b),
        Binary::IntSub => a.wrapping_sub(b),
        Binary::IntMul => a.wrapping_mul(b),
        Binary::IntMin => i.min(j) as u32,
        Binary::IntMax => i.max(j) as u32,
        Binary::IntEq => mask(a == b),
        Binary::IntGt => mask(i > j),
    }
}

fn unary_model(op: Unary, a: u32) -> u32 {
    let x = f32::from_bits(a);
    match op {
        Unary::Sqrt => x.sqrt().to_bits(),
        Unary::Floor => x.floor().to_bits(),
        Unary::Ceil => x.ceil().to_bits(),
        Unary::Trunc => x.trunc().to_bits(),
        Unary::Nearest => x.round_ties_even().to_bits(),
        Unary::ToInt if (-2147483648.0..2147483648.0).contains(&x) => x as i32 as u32,
        Unary::ToInt => i32::MIN as u32,
        Unary::FromInt => (a as i32 as f32).to_bits(),
        Unary::Shl(count) => a.checked_shl(count.into()).unwrap_or(0),
        Unary::ShrArith(count) => ((a as i32) >> count.min(31)) as u32,
    }
}

const BINARY: [Binary; 20] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::Eq,
    Binary::Ne,
    Binary::Lt,
    Binary::Le,
    Binary::IntAdd,
    Binary::IntSub,
    Binary::IntMul,
    Binary::IntMin,
    Binary::IntMax,
    Binary::IntEq,
    Binary::IntGt,
];

const UNARY: [Unary; 12] = [
    Unary::Sqrt,
    Unary::Floor,
    Unary::Ceil,
    Unary::Trunc,
    Unary::Nearest,
    Unary::ToInt,
    Unary::FromInt,
    Unary::Shl(0),
    Unary::Shl(23),
    Unary::ShrArith(1),
    Unary::ShrArith(31),
    Unary::ShrArith(77),
];

/// Bits that mean a result; which NaN it is does not matter, unless bits are what the operation is about.
fn same(found: u32, expected: u32) -> bool {
    found == expected || f32::from_bits(found).is_nan() && f32::from_bits(expected).is_nan()
}

/// Computes `op` of the first operands in buffers to the last buffer, with the last operand in memory if
/// `mem`.
fn lanewise(op: Op, lanes: Lanes, arity: usize, mem: bool) -> Func {
    let (mut b, [buffers, ..]) = Build::new();
    let bases: Vec<Reg> = (0..=arity as i32).map(|n| b.load_int(buffers, n * 8)).collect();
    let loaded = arity - usize::from(mem);
    let uses: Vec<Reg> = bases[..loaded].iter().map(|&p| b.vec_mem(Op::Load(lanes), &[], p, 0)).collect();
    let result = match mem {
        true => b.vec_mem(op, &uses, bases[arity - 1], 0),
        false => b.vec(op, &uses),
    };
    b.store(lanes, result, bases[arity], 0);
    b.func
}

/// Runs an operation on all combinations of edge values, from registers and from memory where that is
/// possible.
fn compare(op: Op, lanes: Lanes, arity: usize, in_memory: bool, model: impl Fn(&[u32]) -> u32) {
    let edges = edges();
    for mem in [false, true] {
        let func = lanewise(op, lanes, arity, mem);
        if mem && !in_memory {
            assert!(compile(&func).is_err(), "{op:?} {lanes:?} with memory");
            continue;
        }
        let code = Code::new(&func);
        let n = lanes.count();
        for start in 0..edges.len().pow(2) {
            let value = |operand: usize, lane: usize| {
                let index =
                    start / edges.len().pow(operand as u32 % 2) + lane * (3 + operand) + operand / 2 * 11;
                edges[index % edges.len()]
            };
            let mut data = vec![vec![0u32; n]; arity + 1];
            for (operand, data) in data[..arity].iter_mut().enumerate() {
                data.iter_mut().enumerate().for_each(|(lane, v)| *v = value(operand, lane));
            }
            let pointers: Vec<*mut u32> = data.iter_mut().map(|d| d.as_mut_ptr()).collect();
            code.call(&pointers, &[], 0, 0);
            for lane in 0..n {
                let args: Vec<u32> = data[..arity].iter().map(|d| d[lane]).collect();
                let (found, expected) = (data[arity][lane], model(&args));
                assert!(same(found, expected), "{op:?} {lanes:?} of {args:x?}: {found:x}, not {expected:x}");
            }
        }
    }
}

#[test]
fn binary_operations() {
    for lanes in WIDTHS {
        for (n, op) in BINARY.into_iter().enumerate() {
            let scalar = n < 6 || (9..13).contains(&n);
            let in_memory = lanes != Lanes::X1 || scalar;
            compare(Op::Binary(op, lanes), lanes, 2, in_memory, |a| binary_model(op, a[0], a[1]));
        }
    }
}

#[test]
fn constants_take_no_register() {
    for lanes in [Lanes::X4, Lanes::X8] {
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let x = b.vec_mem(Op::Load(lanes), &[], from, 0);
        let constant = |value: f32| Some(Mem::Constant(value.to_bits()));
        let vec = Some(Class::Vec);
        let sum = b.push(Op::Binary(Binary::Add, lanes), vec, &[x], constant(0.5)).unwrap();
        let product = b.push(Op::MulAdd(lanes), vec, &[sum, x], constant(-3.0)).unwrap();
        let result = b.push(Op::Binary(Binary::Mul, lanes), vec, &[product], constant(0.5)).unwrap();
        b.store(lanes, result, out, 0);
        let data: Vec<u32> = (0..8).map(|n| (n as f32 - 2.25).to_bits()).collect();
        let mut out = [0u32; 8];
        let code = Code::new(&b.func);
        code.call(&[data.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
        for (lane, bits) in out[..lanes.count()].iter().enumerate() {
            let x = lane as f32 - 2.25;
            assert_eq!(f32::from_bits(*bits), ((x + 0.5) * x - 3.0) * 0.5, "{lanes:?}");
        }
        let machine = encode::compile(&b.func).unwrap();
        assert_eq!(machine.bytes.len() - machine.instructions.next_multiple_of(32), 2 * 4 * lanes.count());
    }
}

#[test]
fn unary_operations() {
    for lanes in WIDTHS {
        for (n, op) in UNARY.into_iter().enumerate() {
            let in_memory = n < 5 || n < 7 && lanes != Lanes::X1;
            compare(Op::Unary(op, lanes), lanes, 1, in_memory, |a| unary_model(op, a[0]));
        }
    }
}

#[test]
fn fused_operations_and_blends() {
    let f = f32::from_bits;
    for lanes in WIDTHS {
        compare(Op::Fma(lanes), lanes, 3, true, |a| f(a[1]).mul_add(f(a[2]), f(a[0])).to_bits());
        compare(Op::MulAdd(lanes), lanes, 3, true, |a| f(a[0]).mul_add(f(a[1]), f(a[2])).to_bits());
        compare(Op::FmaNeg(lanes), lanes, 3, true, |a| (-f(a[1])).mul_add(f(a[2]), f(a[0])).to_bits());
        compare(Op::Blend(lanes), lanes, 3, false, |a| if a[0] >> 31 == 1 { a[1] } else { a[2] });
    }
}

#[test]
fn splats_broadcasts_and_lanes() {
    let data: Vec<u32> = (0..8).map(|n| 100 + n).collect();
    let run = |func: &Func| {
        let mut out = [7u32; 8];
        Code::new(func).call(&[data.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
        out
    };
    for lanes in WIDTHS {
        let n = lanes.count();
        for bits in [0, 0x3f80_0000, u32::MAX] {
            let (mut b, [buffers, ..]) = Build::new();
            let out = b.load_int(buffers, 8);
            // Twice, as constants are shared.
            let [one, two] = [0, 0].map(|_| b.vec(Op::Splat(lanes, bits), &[]));
            let both = b.vec(Op::Binary(Binary::And, lanes), &[one, two]);
            b.store(lanes, both, out, 0);
            assert_eq!(run(&b.func)[..n], vec![bits; n]);
        }
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let value = b.vec_mem(Op::Broadcast(lanes), &[], from, 12);
        b.store(lanes, value, out, 0);
        assert_eq!(run(&b.func)[..n], vec![103; n]);
        for lane in 0..8 {
            let (mut b, [buffers, ..]) = Build::new();
            let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
            let value = b.vec_mem(Op::Load(Lanes::X8), &[], from, 0);
            let scalar = b.vec(Op::Extract(lane), &[value]);
            let all = b.vec(Op::SplatLane(lanes), &[scalar]);
            b.store(Lanes::X8, value, out, 0);
            b.store(lanes, all, out, 0);
            let expected: Vec<u32> =
                (0..8).map(|i| if i < n { 100 + u32::from(lane) } else { data[i] }).collect();
            assert_eq!(run(&b.func)[..], expected);
        }
    }
}

#[test]
fn integer_operations() {
    type Case = (Op, fn(i64, i64) -> i64);
    let cases: &[Case] = &[
        (Op::Add, |a, b| a.wrapping_add(b)),
        (Op::Sub, |a, b| a.wrapping_sub(b)),
        (Op::Mul, |a, b| a.wrapping_mul(b)),
        (Op::MulHigh, |a, b| ((a as u64 as u128 * b as u64 as u128) >> 64) as i64),
        (Op::DivInt, |a, b| a.wrapping_div(b)),
        (Op::MinInt, |a, b| a.min(b)),
        (Op::MaxInt, |a, b| a.max(b)),
        (Op::AddInt(0), |a, _| a),
        (Op::AddInt(5), |a, _| a.wrapping_add(5)),
        (Op::AddInt(-1000), |a, _| a.wrapping_sub(1000)),
        (Op::MulInt(24), |a, _| a.wrapping_mul(24)),
        (Op::MulInt(-100_000), |a, _| a.wrapping_mul(-100_000)),
        (Op::ShlInt(0), |a, _| a),
        (Op::ShlInt(1), |a, _| a << 1),
        (Op::ShlInt(3), |a, _| a << 3),
        (Op::ShlInt(40), |a, _| a << 40),
        (Op::ShrInt(0), |a, _| a),
        (Op::ShrInt(7), |a, _| (a as u64 >> 7) as i64),
        (Op::Int(0), |_, _| 0),
        (Op::Int(-7), |_, _| -7),
        (Op::Int(0xffff_ffff), |_, _| 0xffff_ffff),
        (Op::Int(i64::MIN + 3), |_, _| i64::MIN + 3),
    ];
    for &(op, model) in cases {
        // As the last use of the operands, and while one of them is still needed.
        for live in [[false, false], [true, false], [false, true], [true, true]] {
            let (mut b, [buffers, _, lo, hi]) = Build::new();
            let uses: &[Reg] = match op {
                Op::Add | Op::Sub | Op::Mul | Op::MulHigh | Op::DivInt | Op::MinInt | Op::MaxInt => &[lo, hi],
                Op::Int(_) => &[],
                _ => &[lo],
            };
            let mut result = b.int(op, uses);
            for (other, _) in [lo, hi].into_iter().zip(live).filter(|(_, live)| *live) {
                result = b.int(Op::Add, &[result, other]);
            }
            // What there is to store are vectors only, so the result is told bit by bit.
            for bit in 0..64 {
                let top = b.int(Op::ShlInt(63 - bit), &[result]);
                let [yes, no, join] = [0; 3].map(|_| b.block(&[]).0);
                b.end(End::Branch { cond: Cond::Lt, a: top, b: Operand::Imm(0), then: yes, otherwise: no });
                b.func.blocks[no].end = End::Jump(join, vec![]);
                b.func.blocks[yes].end = End::Jump(join, vec![]);
                b.at = yes;
                let out = b.load_int(buffers, 0);
                let one = b.vec(Op::Splat(Lanes::X1, 1), &[]);
                b.store(Lanes::X1, one, out, i32::from(bit) * 4);
                b.at = join;
            }
            let code = Code::new(&b.func);
            for (x, y) in [(0, 0), (3, -4), (-1, i64::MAX), (i64::MIN, 9), (0x1234_5678_9abc, -77)] {
                if op == Op::DivInt && y == 0 {
                    continue;
                }
                let mut bits = [0u32; 64];
                code.call(&[bits.as_mut_ptr()], &[], x, y);
                let found = bits.iter().enumerate().fold(0, |sum, (n, &bit)| sum | i64::from(bit) << n);
                let mut expected = model(x, y);
                for (other, _) in [x, y].into_iter().zip(live).filter(|(_, live)| *live) {
                    expected = expected.wrapping_add(other);
                }
                assert_eq!(found, expected, "{op:?} of {x} and {y}, {live:?}");
            }
        }
    }
}

/// 24 vectors and 20 integers live through a loop that runs `hi` times and uses all of them.
fn pressure() -> Func {
    let (mut b, [buffers, dims, _, hi]) = Build::new();
    let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
    let vecs: Vec<Reg> = (0..24).map(|n| b.vec_mem(Op::Load(Lanes::X8), &[], from, n * 32)).collect();
    let ints: Vec<Reg> = (0..20).map(|n| b.load_int(dims, n * 8)).collect();
    let (head, params) = b.block(&[Class::Int, Class::Vec, Class::Int]);
    let (back, _) = b.block(&[]);
    let (exit, _) = b.block(&[]);
    let zero = b.int(Op::Int(0), &[]);
    b.end(End::Jump(head, vec![zero, vecs[0], ints[0]]));
    b.at = head;
    let (mut acc, mut sum) = (params[1], params[2]);
    for &v in &vecs {
        acc = b.vec(Op::Binary(Binary::Add, Lanes::X8), &[acc, v]);
    }
    for &i in &ints {
        sum = b.int(Op::Add, &[sum, i]);
    }
    let next = b.int(Op::AddInt(1), &[params[0]]);
    b.end(End::Branch { cond: Cond::Lt, a: next, b: Operand::Reg(hi), then: back, otherwise: exit });
    b.at = back;
    b.end(End::Jump(head, vec![next, acc, sum]));
    b.at = exit;
    b.store(Lanes::X8, acc, out, 0);
    for (n, &v) in vecs.iter().enumerate() {
        b.store(Lanes::X8, v, out, 32 + n as i32 * 32);
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
    let func = pressure();
    let insts = decode(&compile(&func).unwrap());
    assert!(insts.iter().any(uses_stack) && insts.iter().any(|i| i.mnemonic() == Mnemonic::Push));
    let code = Code::new(&func);
    for times in [1, 5] {
        let from: Vec<f32> = (0..192).map(|n| (n % 17) as f32).collect();
        let dims: Vec<i64> = (0..20).map(|n| 4 * (n % 3) + 60).collect();
        let mut out = vec![0f32; 4096];
        code.call(&[from.as_ptr() as *mut u32, out.as_mut_ptr() as *mut u32], &dims, 0, times);
        for lane in 0..8 {
            let sum: f32 = (0..24).map(|n| from[n * 8 + lane]).sum();
            assert_eq!(out[lane], from[lane] + times as f32 * sum);
        }
        assert_eq!(out[8..200], from);
        let total: i64 = dims.iter().sum();
        let mark = (total + dims[0] + total * times) as usize / 4;
        let marked: Vec<usize> = (200..4096).filter(|&n| out[n].to_bits() == 1).collect();
        assert_eq!(marked, [mark]);
    }
}

#[test]
fn large_frames_touch_every_page() {
    let (mut b, [buffers, ..]) = Build::new();
    let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
    let vecs: Vec<Reg> = (0..600).map(|n| b.vec_mem(Op::Load(Lanes::X8), &[], from, n * 32)).collect();
    for (n, &v) in vecs.iter().enumerate().rev() {
        b.store(Lanes::X8, v, out, n as i32 * 32);
    }
    let insts = decode(&compile(&b.func).unwrap());
    assert!(insts.iter().filter(|i| i.mnemonic() == Mnemonic::Test && uses_stack(i)).count() >= 4);
    let from: Vec<u32> = (0..4800).collect();
    let mut out = vec![0u32; 4800];
    Code::new(&b.func).call(&[from.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
    assert_eq!(out, from);
}

/// The one instruction of vectors between loads and stores, or the last of several.
fn mnemonic(op: Op, lanes: Lanes, arity: usize, mem: bool) -> Mnemonic {
    let insts = decode(&compile(&lanewise(op, lanes, arity, mem)).unwrap());
    for inst in &insts {
        let vector = (0..inst.op_count()).any(|n| {
            let reg = inst.op_register(n);
            (Register::XMM0..=Register::XMM15).contains(&reg)
                || (Register::YMM0..=Register::YMM15).contains(&reg)
        });
        assert!(!vector || format!("{:?}", inst.code()).starts_with("VEX_"), "{}", text(&insts));
    }
    let store =
        insts.iter().rposition(|i| matches!(i.mnemonic(), Mnemonic::Vmovups | Mnemonic::Vmovss)).unwrap();
    insts[store - 1].mnemonic()
}

#[test]
fn operations_are_the_expected_instructions() {
    use Mnemonic::*;
    let packed = [
        Vaddps, Vsubps, Vmulps, Vdivps, Vminps, Vmaxps, Vandps, Vorps, Vxorps, Vcmpps, Vcmpps, Vcmpps,
        Vcmpps, Vpaddd, Vpsubd, Vpmulld, Vpminsd, Vpmaxsd, Vpcmpeqd, Vpcmpgtd,
    ];
    let scalar = [
        Vaddss, Vsubss, Vmulss, Vdivss, Vminss, Vmaxss, Vandps, Vorps, Vxorps, Vcmpss, Vcmpss, Vcmpss,
        Vcmpss, Vpaddd, Vpsubd, Vpmulld, Vpminsd, Vpmaxsd, Vpcmpeqd, Vpcmpgtd,
    ];
    let unary = [
        (Vsqrtps, Vsqrtss),
        (Vroundps, Vroundss),
        (Vroundps, Vroundss),
        (Vroundps, Vroundss),
        (Vroundps, Vroundss),
        (Vcvttps2dq, Vcvttps2dq),
        (Vcvtdq2ps, Vcvtdq2ps),
        (Vpslld, Vpslld),
        (Vpslld, Vpslld),
        (Vpsrad, Vpsrad),
        (Vpsrad, Vpsrad),
        (Vpsrad, Vpsrad),
    ];
    for lanes in WIDTHS {
        let one = lanes == Lanes::X1;
        for (n, op) in BINARY.into_iter().enumerate() {
            let expected = if one { scalar[n] } else { packed[n] };
            assert_eq!(mnemonic(Op::Binary(op, lanes), lanes, 2, false), expected);
            if !one || expected != packed[n] {
                assert_eq!(mnemonic(Op::Binary(op, lanes), lanes, 2, true), expected);
            }
        }
        for (op, (packed, scalar)) in UNARY.into_iter().zip(unary) {
            assert_eq!(mnemonic(Op::Unary(op, lanes), lanes, 1, false), if one { scalar } else { packed });
        }
        for mem in [false, true] {
            let (fma, neg) = if one { (Vfmadd231ss, Vfnmadd231ss) } else { (Vfmadd231ps, Vfnmadd231ps) };
            assert_eq!(mnemonic(Op::Fma(lanes), lanes, 3, mem), fma);
            assert_eq!(mnemonic(Op::FmaNeg(lanes), lanes, 3, mem), neg);
        }
        assert_eq!(mnemonic(Op::Blend(lanes), lanes, 3, false), Vblendvps);
    }
    assert_eq!(mnemonic(Op::SplatLane(Lanes::X8), Lanes::X8, 1, false), Vbroadcastss);
    assert_eq!(mnemonic(Op::Extract(3), Lanes::X8, 1, false), Vpermilps);
    assert_eq!(mnemonic(Op::Extract(4), Lanes::X8, 1, false), Vextractf128);
    assert_eq!(mnemonic(Op::Extract(7), Lanes::X8, 1, false), Vpermilps);
}

/// Every operand of a fused operation may be the same value, and `acc` may be needed later.
#[test]
fn fused_operations_with_equal_operands() {
    for uses in [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]] {
        let (mut b, [buffers, ..]) = Build::new();
        let [p, q, out] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
        let x = b.vec_mem(Op::Load(Lanes::X8), &[], p, 0);
        let y = b.vec_mem(Op::Load(Lanes::X8), &[], q, 0);
        let result = b.vec(Op::Fma(Lanes::X8), &uses.map(|n| [x, y][n]));
        let sum = b.vec(Op::Binary(Binary::Add, Lanes::X8), &[result, x]);
        b.store(Lanes::X8, sum, out, 0);
        let mut buffers = [[3f32; 8], [5.0; 8], [0.0; 8]];
        let pointers = buffers.each_mut().map(|b| b.as_mut_ptr() as *mut u32);
        Code::new(&b.func).call(&pointers, &[], 0, 0);
        let [acc, a, c] = uses.map(|n| [3.0, 5.0][n]);
        assert_eq!(buffers[2], [a * c + acc + 3.0; 8]);
    }
}

#[test]
fn return_codes_and_conditions() {
    for code in [0, 1, -1, i32::MIN, 77] {
        let (mut b, _) = Build::new();
        b.end(End::Return(code));
        assert_eq!(Code::new(&b.func).call(&[], &[], 0, 0), code);
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
                let code = Code::new(&b.func);
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
    let code = Code::new(&b.func);
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
        compile(&b.func).expect_err("a bad function");
    }
    assert!(compile(&Func::default()).is_err());
    let mem = |base| Some(Mem::At { base, disp: 0 });
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
        b.vec(Op::Extract(8), &[v]);
    });
    error(|b, _| {
        let v = b.vec(Op::Splat(Lanes::X8, 1), &[]);
        b.push(Op::Store(Lanes::X8), None, &[v], mem(v));
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
