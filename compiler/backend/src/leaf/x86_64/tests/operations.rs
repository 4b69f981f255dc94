//! Every operation at every width, on edge values.

use super::*;

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
        Binary::IntAdd => a.wrapping_add(b),
        Binary::IntSub => a.wrapping_sub(b),
        Binary::IntMul => a.wrapping_mul(b),
        Binary::IntMin => i.min(j) as u32,
        Binary::IntMax => i.max(j) as u32,
        Binary::ShlBy => a.checked_shl(b).unwrap_or(0),
        Binary::Minimum | Binary::Maximum | Binary::Rem => unreachable!("no leaf kernel has {op:?}"),
        Binary::IntDiv | Binary::UnsignedDiv | Binary::ShrBy | Binary::ShrArithBy => {
            unreachable!("no leaf kernel has {op:?}")
        }
        Binary::DotPairs => {
            let halves = |x: u32| [x as i16, (x >> 16) as i16].map(i32::from);
            let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
            (a0 * b0).wrapping_add(a1 * b1) as u32
        }
        Binary::DotBytes => {
            let product = |at: usize| i32::from(a.to_le_bytes()[at]) * i32::from(b.to_le_bytes()[at] as i8);
            let half = |sum: i32| sum.clamp(-0x8000, 0x7fff) as u16;
            u32::from(half(product(0) + product(1))) | u32::from(half(product(2) + product(3))) << 16
        }
        Binary::LowMul | Binary::DotHalves | Binary::AddHalves => panic!("{op:?} has no 32-bit form"),
    }
}

fn compare_model(op: Compare, a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    mask(match op {
        Compare::Eq => x == y,
        Compare::Ne => x != y,
        Compare::Lt => x < y,
        Compare::Le => x <= y,
        Compare::IntEq => a == b,
        Compare::IntGt => a as i32 > b as i32,
    })
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
        Unary::ToIntNearest => unary_model(Unary::ToInt, x.round_ties_even().to_bits()),
        Unary::FromInt => (a as i32 as f32).to_bits(),
        Unary::RoundBf16 => u32::from(half::bf16::from_f32(x).to_bits()) << 16,
        Unary::Shl(count) => a.checked_shl(count.into()).unwrap_or(0),
        Unary::ShrArith(count) => ((a as i32) >> count.min(31)) as u32,
        Unary::ShrArithHalves(count) => {
            let half = |bits: u32| u32::from((bits as i16 >> count.min(15)) as u16);
            half(a) | half(a >> 16) << 16
        }
        Unary::Shr(count) => a.checked_shr(count.into()).unwrap_or(0),
        Unary::ShrHalves(count) => {
            let half = |bits: u32| (bits & 0xffff).checked_shr(count.into()).unwrap_or(0);
            half(a) | half(a >> 16) << 16
        }
    }
}

const BINARY: [Binary; 17] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::IntAdd,
    Binary::IntSub,
    Binary::IntMul,
    Binary::IntMin,
    Binary::IntMax,
    Binary::ShlBy,
    Binary::DotPairs,
    Binary::DotBytes,
];

const COMPARE: [Compare; 6] =
    [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::IntEq, Compare::IntGt];

const UNARY: [Unary; 19] = [
    Unary::Sqrt,
    Unary::Floor,
    Unary::Ceil,
    Unary::Trunc,
    Unary::Nearest,
    Unary::ToInt,
    Unary::ToIntNearest,
    Unary::FromInt,
    Unary::Shl(0),
    Unary::Shl(23),
    Unary::ShrArith(1),
    Unary::ShrArith(31),
    Unary::ShrArith(77),
    Unary::Shr(16),
    Unary::Shr(40),
    Unary::ShrArithHalves(8),
    Unary::ShrArithHalves(77),
    Unary::ShrHalves(8),
    Unary::ShrHalves(16),
];

/// Bits that mean a result; which NaN it is does not matter, unless bits are what the operation is about.
fn same(found: u32, expected: u32) -> bool {
    found == expected || f32::from_bits(found).is_nan() && f32::from_bits(expected).is_nan()
}

/// Where the last operand is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Last {
    Register,
    Memory,
    /// One element for all lanes.
    Element,
}

/// Computes `op` of the first operands in buffers to the last buffer. Masks are read from signs, and written as the bits
/// of lanes.
fn lanewise(op: Op, lanes: Lanes, arity: usize, last: Last) -> Func {
    let (mut b, [buffers, ..]) = Build::new();
    let bases: Vec<Reg> = (0..=arity as i32).map(|n| b.load_int(buffers, n * 8)).collect();
    let loaded = arity - usize::from(last != Last::Register);
    let mut uses: Vec<Reg> = bases[..loaded].iter().map(|&p| b.vec_mem(Op::Load(lanes), &[], p, 0)).collect();
    let masks = match op {
        Op::Blend(_) => 1,
        Op::Mask(..) | Op::MaskNot(_) => arity,
        _ => 0,
    };
    for reg in uses.iter_mut().take(masks) {
        let zero = b.vec(Op::Splat(lanes, 0), &[]);
        let negative =
            b.push(Op::Compare(Compare::IntGt, lanes), Some(Class::Mask), &[zero, *reg], None).unwrap();
        let bits = b.vec(Op::MaskBits(lanes), &[negative]);
        *reg = b.push(Op::MaskOf(lanes), Some(Class::Mask), &[bits], None).unwrap();
    }
    let mem = match (last, bases[arity - 1]) {
        (Last::Register, _) => None,
        (Last::Memory, base) => Some(Mem::at(base, 0)),
        (Last::Element, base) => Some(Mem::each(base, 0)),
    };
    let result = match op {
        Op::Compare(..) | Op::Mask(..) | Op::MaskNot(_) => {
            let mask = b.push(op, Some(Class::Mask), &uses, mem).unwrap();
            b.vec(Op::MaskBits(lanes), &[mask])
        }
        _ => b.push(op, Some(Class::Vec), &uses, mem).unwrap(),
    };
    b.store(lanes, result, bases[arity], 0);
    b.func
}

/// Runs an operation on all combinations of edge values, from registers and from memory where that is possible. All
/// platforms give the same bits.
fn compare(
    op: impl Fn(Lanes) -> Op,
    arity: usize,
    in_memory: impl Fn(Lanes) -> bool,
    model: impl Fn(&[u32]) -> u32,
) {
    let edges = edges();
    let mut known: std::collections::HashMap<(Lanes, Last, usize), Vec<u32>> = Default::default();
    for platform in platforms() {
        for (lanes, last) in widths(platform.isa)
            .flat_map(|lanes| [Last::Register, Last::Memory, Last::Element].map(|last| (lanes, last)))
        {
            let op = op(lanes);
            let func = lanewise(op, lanes, arity, last);
            let possible = match last {
                _ if !platform.isa.has(op) => false,
                Last::Register => true,
                Last::Memory => in_memory(lanes),
                Last::Element => in_memory(lanes) && platform.isa.evex() && lanes != Lanes::X1,
            };
            if !possible {
                assert!(compile(&func, platform.isa).is_err(), "{op:?} {last:?}");
                continue;
            }
            let code = Code::new(&func, platform);
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
                if last == Last::Element {
                    let element = data[arity - 1][0];
                    data[arity - 1].fill(element);
                }
                for lane in 0..n {
                    let args: Vec<u32> = data[..arity].iter().map(|d| d[lane]).collect();
                    let (found, expected) = (data[arity][lane], model(&args));
                    assert!(
                        same(found, expected),
                        "{op:?} {last:?} of {args:x?} on {platform:?}: {found:x}, not {expected:x}"
                    );
                }
                let found = &data[arity];
                let first = known.entry((lanes, last, start)).or_insert_with(|| found.clone());
                // Which NaN products of bf16 give is not documented.
                let alike = |(a, b): (&u32, &u32)| a == b || matches!(op, Op::DotBf16(_)) && same(*a, *b);
                let operands = &data[..arity];
                assert!(
                    first.iter().zip(found).all(alike),
                    "{op:?} {last:?} of {operands:x?} on {platform:?}: {found:x?}, not {first:x?}"
                );
            }
        }
    }
}

#[test]
fn binary_operations() {
    for (n, op) in BINARY.into_iter().enumerate() {
        let in_memory =
            |lanes| !matches!(op, Binary::DotPairs | Binary::DotBytes) && (lanes != Lanes::X1 || n < 6);
        compare(|lanes| Op::Binary(op, lanes), 2, in_memory, |a| binary_model(op, a[0], a[1]));
    }
}

#[test]
fn comparisons() {
    for (n, op) in COMPARE.into_iter().enumerate() {
        let in_memory = |lanes| lanes != Lanes::X1 || n < 4;
        compare(|lanes| Op::Compare(op, lanes), 2, in_memory, |a| compare_model(op, a[0], a[1]));
    }
}

#[test]
fn operations_on_masks() {
    let model = |op, a: u32, b: u32| match op {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    };
    for op in [Logic::And, Logic::Or, Logic::Xor] {
        compare(|lanes| Op::Mask(op, lanes), 2, |_| false, |a| mask(model(op, a[0], a[1]) >> 31 == 1));
    }
    compare(Op::MaskNot, 1, |_| false, |a| mask(a[0] >> 31 == 0));
}

#[test]
fn unary_operations() {
    for (n, op) in UNARY.into_iter().enumerate() {
        let in_memory = |lanes| n < 5 || n < 8 && lanes != Lanes::X1;
        compare(|lanes| Op::Unary(op, lanes), 1, in_memory, |a| unary_model(op, a[0]));
    }
}

#[test]
fn fused_operations_and_blends() {
    let f = f32::from_bits;
    compare(Op::Fma, 3, |_| true, |a| f(a[1]).mul_add(f(a[2]), f(a[0])).to_bits());
    compare(Op::MulAdd, 3, |_| true, |a| f(a[0]).mul_add(f(a[1]), f(a[2])).to_bits());
    compare(Op::FmaNeg, 3, |_| true, |a| (-f(a[1])).mul_add(f(a[2]), f(a[0])).to_bits());
    let dot = |a: u32, b: u32| onnxc_ir::scalar::dot(a as i32, b as i32);
    let dot_op = |lanes| Op::Dot(Signs::UNSIGNED_SIGNED, lanes);
    compare(dot_op, 3, |lanes| lanes != Lanes::X1, |a| a[0].wrapping_add(dot(a[1], a[2]) as u32));
    let pairs = |a: u32, b: u32| onnxc_ir::scalar::dot_pairs(a as i32, b as i32) as u32;
    let no_scalar = |lanes| lanes != Lanes::X1;
    compare(Op::AddDotPairs, 3, no_scalar, |a| a[0].wrapping_add(pairs(a[1], a[2])));
    let bf16 = |sum: u32, a: u32, b: u32| {
        let ([a0, a1], [b0, b1]) = (onnxc_ir::scalar::bf16_pair(a), onnxc_ir::scalar::bf16_pair(b));
        let add = onnxc_ir::scalar::add_bf16_product;
        add(add(f(sum), a1, b1), a0, b0).to_bits()
    };
    compare(Op::DotBf16, 3, no_scalar, |a| bf16(a[0], a[1], a[2]));
    compare(Op::Blend, 3, |_| false, |a| if a[0] >> 31 == 1 { a[1] } else { a[2] });
}

#[test]
fn constants_take_no_register() {
    for (platform, lanes) in platforms()
        .into_iter()
        .flat_map(|platform| widths(platform.isa).skip(1).map(move |lanes| (platform, lanes)))
    {
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let x = b.vec_mem(Op::Load(lanes), &[], from, 0);
        let constant = |value: f32| Some(Mem::Constant(value.to_bits().into()));
        let vec = Some(Class::Vec);
        let sum = b.push(Op::Binary(Binary::Add, lanes), vec, &[x], constant(0.5)).unwrap();
        let product = b.push(Op::MulAdd(lanes), vec, &[sum, x], constant(-3.0)).unwrap();
        let result = b.push(Op::Binary(Binary::Mul, lanes), vec, &[product], constant(0.5)).unwrap();
        b.store(lanes, result, out, 0);
        let data: Vec<u32> = (0..16).map(|n| (n as f32 - 2.25).to_bits()).collect();
        let mut out = [0u32; 16];
        let code = Code::new(&b.func, platform);
        code.call(&[data.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
        for (lane, bits) in out[..lanes.count()].iter().enumerate() {
            let x = lane as f32 - 2.25;
            assert_eq!(f32::from_bits(*bits), ((x + 0.5) * x - 3.0) * 0.5, "{lanes:?}");
        }
        let machine = encode::compile(&b.func, platform.isa).unwrap();
        // One element for all lanes is enough where an operand can be that.
        let size = if platform.isa.evex() { 4 } else { 4 * lanes.count() };
        assert_eq!(machine.bytes.len() - machine.instructions.next_multiple_of(32), 2 * size);
    }
}

#[test]
fn splats_broadcasts_and_lanes() {
    let data: Vec<u32> = (0..16).map(|n| 100 + n).collect();
    for (platform, lanes) in platforms().into_iter().flat_map(|p| widths(p.isa).map(move |lanes| (p, lanes)))
    {
        let run = |func: &Func| {
            let mut out = [7u32; 16];
            Code::new(func, platform).call(&[data.as_ptr() as *mut u32, out.as_mut_ptr()], &[], 0, 0);
            out
        };
        let (all, count) = (widest(platform.isa), platform.isa.lanes(4));
        let n = lanes.count();
        for bits in [0, 0x3f80_0000, u32::MAX] {
            let constant = u64::from(bits);
            let (mut b, [buffers, ..]) = Build::new();
            let out = b.load_int(buffers, 8);
            // Twice, as constants are shared.
            let [one, two] = [0, 0].map(|_| b.vec(Op::Splat(lanes, constant), &[]));
            let both = b.vec(Op::Binary(Binary::And, lanes), &[one, two]);
            b.store(lanes, both, out, 0);
            assert_eq!(run(&b.func)[..n], vec![bits; n]);
        }
        let (mut b, [buffers, ..]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let value = b.vec_mem(Op::Broadcast(lanes), &[], from, 12);
        b.store(lanes, value, out, 0);
        assert_eq!(run(&b.func)[..n], vec![103; n]);
        for lane in 0..count as u8 {
            let (mut b, [buffers, ..]) = Build::new();
            let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
            let value = b.vec_mem(Op::Load(all), &[], from, 0);
            let scalar = b.vec(Op::Extract(lane, Lanes::X1), &[value]);
            let splat = b.vec(Op::SplatLane(lanes), &[scalar]);
            b.store(all, value, out, 0);
            b.store(lanes, splat, out, 0);
            let expected: Vec<u32> =
                (0..count).map(|i| if i < n { 100 + u32::from(lane) } else { data[i] }).collect();
            assert_eq!(run(&b.func)[..count], expected);
        }
    }
}

/// Lanes that are taken by number, from rising numbers or from memory.
#[test]
fn lanes_by_number() {
    let data: Vec<u32> = (0..16).map(|n| n * 0x0123_4567 + 5).collect();
    for platform in platforms().into_iter().filter(|p| p.isa.has(Op::Permute(Lanes::X16))) {
        for bias in [0.0f32, 8.0] {
            let first = u64::from((-bias).to_bits());
            let (mut b, [buffers, ..]) = Build::new();
            let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
            let numbers = b.vec_mem(Op::Load(Lanes::X16), &[], from, 0);
            let table = b.vec(Op::Ramp(Lanes::X16, first), &[]);
            let taken = b.vec(Op::Permute(Lanes::X16), &[numbers, table]);
            b.store(Lanes::X16, taken, out, 0);
            let lanes = b.vec_mem(Op::Permute(Lanes::X16), &[numbers], from, 0);
            b.store(Lanes::X16, lanes, out, 64);
            let mut found = [0u32; 32];
            let buffers = [data.as_ptr() as *mut u32, found.as_mut_ptr()];
            Code::new(&b.func, platform).call(&buffers, &[], 0, 0);
            for (lane, &number) in data.iter().enumerate() {
                assert_eq!(f32::from_bits(found[lane]), (number % 16) as f32 - bias, "lane {lane}");
                assert_eq!(found[16 + lane], data[number as usize % 16], "lane {lane}");
            }
        }
    }
}

/// A prefetch changes nothing and reads nothing: invalid addresses do no harm. Loads cross it when they become
/// operands.
#[test]
fn prefetches() {
    for platform in platforms() {
        let (mut b, [buffers, _, lo, _]) = Build::new();
        let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
        let vec = Some(Class::Vec);
        let lanes = widest(platform.isa);
        let x = b.vec_mem(Op::Load(lanes), &[], from, 0);
        let y = b.vec_mem(Op::Load(lanes), &[], from, 64);
        for (base, disp) in [(from, 0), (from, 1 << 20), (lo, 0), (lo, -192)] {
            assert!(b.push(Op::Prefetch, None, &[], Some(Mem::at(base, disp))).is_none());
        }
        let sum = b.push(Op::Binary(Binary::Add, lanes), vec, &[x, y], None).unwrap();
        b.store(lanes, sum, out, 0);
        let data: Vec<f32> = (0..32).map(|n| n as f32).collect();
        let mut sums = [0f32; 16];
        let buffers = [data.as_ptr() as *mut u32, sums.as_mut_ptr().cast()];
        for address in [0, i64::MAX, i64::MIN, -1] {
            Code::new(&b.func, platform).call(&buffers, &[], address, 0);
            for (lane, sum) in sums[..lanes.count()].iter_mut().enumerate() {
                assert_eq!(std::mem::take(sum), (2 * lane + 16) as f32, "{platform:?}");
            }
        }
        let places: Vec<(Register, u64)> = disassemble(&b.func, platform.isa)
            .iter()
            .filter(|inst| inst.mnemonic() == Mnemonic::Prefetcht1)
            .map(|inst| (inst.memory_base(), inst.memory_displacement64()))
            .collect();
        assert_eq!(places.iter().map(|place| place.1 as i64).collect::<Vec<_>>(), [0, 1 << 20, 0, -192]);
        let third = Register::RAX + u32::from(registers(platform.isa).args[2]);
        assert!(places[0].0 == places[1].0 && places[2].0 == third, "{places:?}");
        for mem in [None, Some(Mem::Constant(0)), Some(Mem::each(from, 0))] {
            let mut wrong = b.func.clone();
            let entry = wrong.blocks.keys().next().unwrap();
            wrong.blocks[entry].insts.push(Inst { op: Op::Prefetch, dst: None, uses: vec![], mem });
            assert!(compile(&wrong, platform.isa).is_err(), "{mem:?}");
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
            // Only vectors can be stored, so the result is read bit by bit.
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
            let codes = platforms().into_iter().step_by(2).map(|p| Code::new(&b.func, p)).collect::<Vec<_>>();
            for (x, y) in [(0, 0), (3, -4), (-1, i64::MAX), (i64::MIN, 9), (0x1234_5678_9abc, -77)] {
                if op == Op::DivInt && y == 0 {
                    continue;
                }
                let found = codes.iter().map(|code| {
                    let mut bits = [0u32; 64];
                    code.call(&[bits.as_mut_ptr()], &[], x, y);
                    bits.iter().enumerate().fold(0, |sum, (n, &bit)| sum | i64::from(bit) << n)
                });
                let found: Vec<i64> = found.collect();
                let mut expected = model(x, y);
                for (other, _) in [x, y].into_iter().zip(live).filter(|(_, live)| *live) {
                    expected = expected.wrapping_add(other);
                }
                assert_eq!(found, vec![expected; codes.len()], "{op:?} of {x} and {y}, {live:?}");
            }
        }
    }
}

/// The one instruction of vectors between loads and stores, or the last of several.
fn mnemonic(op: Op, lanes: Lanes, arity: usize, last: Last, isa: Isa) -> Mnemonic {
    let insts = disassemble(&lanewise(op, lanes, arity, last), isa);
    let is_vector = |reg: Register| (Register::XMM0..=Register::ZMM31).contains(&reg);
    let wide = match lanes {
        Lanes::X16 | Lanes::D8 => Register::ZMM0,
        Lanes::X8 | Lanes::D4 => Register::YMM0,
        Lanes::X4 | Lanes::X2 | Lanes::X1 | Lanes::D2 | Lanes::D1 => Register::XMM0,
    };
    for inst in &insts {
        let prefix = if isa.evex() { "EVEX_" } else { "VEX_" };
        let first = (0..inst.op_count()).map(|n| inst.op_register(n)).find(|&reg| is_vector(reg));
        if let Some(first) = first {
            assert!(format!("{:?}", inst.code()).starts_with(prefix), "{}", text(&insts));
            // Zero is written to the lower lanes, and clears the others.
            let zero = inst.mnemonic() == Mnemonic::Vxorps && inst.op1_register() == inst.op2_register();
            let width = (first as usize).checked_sub(wide as usize);
            assert!(zero || width.is_some_and(|n| n < 32), "{lanes:?} in {}", text(&insts));
        }
    }
    let result = |i: &Instruction| {
        matches!(i.mnemonic(), Mnemonic::Vmovups | Mnemonic::Vmovss | Mnemonic::Vpmovm2d)
            || isa.evex() && i.mnemonic() == Mnemonic::Kmovw
    };
    let store =
        insts.iter().rposition(|i| !result(i) && i.op_count() > 1 && i.op0_register() != Register::EAX);
    let inst = insts[store.unwrap()];
    assert_eq!(inst.is_broadcast(), last == Last::Element, "{}", text(&insts));
    assert_eq!((0..inst.op_count()).any(|n| inst.op_kind(n) == OpKind::Memory), last != Last::Register);
    inst.mnemonic()
}

#[test]
fn operations_are_the_expected_instructions() {
    use Mnemonic::*;
    let binary = [
        (Vaddps, Vaddss),
        (Vsubps, Vsubss),
        (Vmulps, Vmulss),
        (Vdivps, Vdivss),
        (Vminps, Vminss),
        (Vmaxps, Vmaxss),
        (Vandps, Vandps),
        (Vorps, Vorps),
        (Vxorps, Vxorps),
        (Vpaddd, Vpaddd),
        (Vpsubd, Vpsubd),
        (Vpmulld, Vpmulld),
        (Vpminsd, Vpminsd),
        (Vpmaxsd, Vpmaxsd),
        (Vpsllvd, Vpsllvd),
    ];
    let compare = [(Vcmpps, Vcmpss); 4].into_iter().chain([(Vpcmpeqd, Vpcmpeqd), (Vpcmpgtd, Vpcmpgtd)]);
    let compare: Vec<_> = compare.collect();
    let unary = |isa: Isa| {
        let round = if isa.evex() { (Vrndscaleps, Vrndscaless) } else { (Vroundps, Vroundss) };
        let shifts = [Vpslld, Vpslld, Vpsrad, Vpsrad, Vpsrad, Vpsrld, Vpsrld].map(|shift| (shift, shift));
        let convert = [Vcvttps2dq, Vcvtps2dq, Vcvtdq2ps].map(|convert| (convert, convert));
        [(Vsqrtps, Vsqrtss), round, round, round, round].into_iter().chain(convert).chain(shifts)
    };
    for isa in [AVX2, AVX512_256, AVX512] {
        for lanes in widths(isa) {
            let pick = |(packed, scalar)| if lanes == Lanes::X1 { scalar } else { packed };
            let lasts = |scalar_form: bool| {
                let mut lasts = vec![Last::Register];
                lasts.extend((lanes != Lanes::X1 || scalar_form).then_some(Last::Memory));
                lasts.extend((lanes != Lanes::X1 && isa.evex()).then_some(Last::Element));
                lasts
            };
            for (op, names) in BINARY.into_iter().zip(binary) {
                for last in lasts(names.0 != names.1) {
                    assert_eq!(mnemonic(Op::Binary(op, lanes), lanes, 2, last, isa), pick(names));
                }
            }
            for (op, &names) in COMPARE.into_iter().zip(&compare) {
                for last in lasts(names.0 != names.1) {
                    assert_eq!(mnemonic(Op::Compare(op, lanes), lanes, 2, last, isa), pick(names));
                }
            }
            for (op, names) in UNARY.into_iter().zip(unary(isa)) {
                assert_eq!(mnemonic(Op::Unary(op, lanes), lanes, 1, Last::Register, isa), pick(names));
            }
            for last in lasts(true) {
                let names =
                    [(Vfmadd231ps, Vfmadd231ss), (Vfnmadd231ps, Vfnmadd231ss), (Vfmadd213ps, Vfmadd213ss)];
                for (op, names) in
                    [Op::Fma(lanes), Op::FmaNeg(lanes), Op::MulAdd(lanes)].into_iter().zip(names)
                {
                    assert_eq!(mnemonic(op, lanes, 3, last, isa), pick(names));
                }
            }
            let named = |op, arity| mnemonic(op, lanes, arity, Last::Register, isa);
            let [blend, and, or, xor, not] = match isa.evex() {
                true => [Vblendmps, Kandw, Korw, Kxorw, Knotw],
                false => [Vblendvps, Vandps, Vorps, Vxorps, Vxorps],
            };
            assert_eq!(named(Op::Blend(lanes), 3), blend);
            for (op, name) in [(Logic::And, and), (Logic::Or, or), (Logic::Xor, xor)] {
                assert_eq!(named(Op::Mask(op, lanes), 2), name);
            }
            if isa.evex() {
                assert_eq!(named(Op::MaskNot(lanes), 1), not);
            }
        }
        let all = widest(isa);
        let named = |op| mnemonic(op, all, 1, Last::Register, isa);
        assert_eq!(named(Op::SplatLane(all)), Vbroadcastss);
    }
}
