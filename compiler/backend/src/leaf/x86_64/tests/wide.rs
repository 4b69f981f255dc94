//! Lanes of 64 bits, changes of width and small elements: every operation at every width, on edge values.

use super::*;

fn edges() -> Vec<u64> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        -2.5,
        3.7,
        -3.7,
        5e-324,
        -1e-310,
        1e10,
        -2147483648.0,
        2147483648.0,
        4294967295.5,
        1e300,
        9223372036854775808.0,
        -9223372036854775808.0,
        1e-40,
        65519.9,
        f64::MAX,
        f64::MIN_POSITIVE,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let ints = [1, 2, 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0001, u64::MAX, 12345, 0xdead_beef_dead_beef];
    floats.map(f64::to_bits).into_iter().chain(ints).collect()
}

/// Of 32 bits in pairs.
fn small_edges() -> Vec<u64> {
    let floats = [
        0.0f32,
        -0.0,
        1.0,
        -1.5,
        65504.0,
        65520.0,
        65519.996,
        6e-8,
        2.98e-8,
        2.99e-8,
        1e-40,
        -6.1e-5,
        1.0009766,
        1.0004883,
        3.3e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        2147483648.0,
    ];
    let ints = [1, 2, 255, 127, 0x8000, 0xffff_ff80, 0xffff_8000, 0xffff, 0xffff_ffff, 0x7f80_0001];
    let all: Vec<u32> = floats.map(f32::to_bits).into_iter().chain(ints).collect();
    (0..all.len()).map(|n| u64::from(all[n]) | u64::from(all[(n * 7 + 3) % all.len()]) << 32).collect()
}

fn wide_lanes(isa: Isa) -> impl Iterator<Item = Lanes> {
    [Lanes::D1, Lanes::D4, Lanes::D8].into_iter().filter(move |l| l.bytes() <= isa.vector_bytes)
}

fn every(condition: bool) -> u64 {
    if condition { u64::MAX } else { 0 }
}

/// Code of `op` on `count` buffers of 64 bytes and one for the result; `from` and `to` are the lanes that are loaded and
/// stored.
fn code(
    op: Op,
    (from, to): (Lanes, Lanes),
    last: Option<fn(Reg) -> Mem>,
    arity: usize,
    platform: Platform,
) -> Code {
    let (mut b, [buffers, ..]) = Build::new();
    let bases: Vec<Reg> = (0..=arity as i32).map(|n| b.load_int(buffers, n * 8)).collect();
    let loaded = arity - usize::from(last.is_some());
    let mut uses: Vec<Reg> = bases[..loaded].iter().map(|&p| b.vec_mem(Op::Load(from), &[], p, 0)).collect();
    let masks = match op {
        Op::Blend(_) => 1,
        Op::Mask(..) | Op::MaskNot(_) | Op::MaskWiden(_) | Op::MaskNarrow(_) => loaded,
        _ => 0,
    };
    for reg in uses.iter_mut().take(masks) {
        let zero = b.vec(Op::Splat(from, 0), &[]);
        let compare = Op::Compare(Compare::IntGt, from);
        let negative = b.push(compare, Some(Class::Mask), &[zero, *reg], None).unwrap();
        let bits = b.vec(Op::MaskBits(from), &[negative]);
        *reg = b.push(Op::MaskOf(from), Some(Class::Mask), &[bits], None).unwrap();
    }
    let mem = last.map(|mem| mem(bases[arity - 1]));
    let is_mask = masks > 1
        || matches!(
            op,
            Op::MaskNot(_) | Op::Compare(..) | Op::Mask(..) | Op::MaskWiden(_) | Op::MaskNarrow(_)
        );
    let result = match is_mask {
        true => {
            let mask = b.push(op, Some(Class::Mask), &uses, mem).unwrap();
            b.vec(Op::MaskBits(to), &[mask])
        }
        false => b.push(op, Some(Class::Vec), &uses, mem).unwrap(),
    };
    b.store(to, result, bases[arity], 0);
    Code::new(&b.func, platform)
}

fn run(code: &Code, operands: &[[u64; 8]]) -> [u64; 8] {
    let mut data = operands.to_vec();
    data.push([0x5555_5555_5555_5555; 8]);
    let pointers: Vec<*mut u32> = data.iter_mut().map(|d| d.as_mut_ptr().cast()).collect();
    code.call(&pointers, &[], 0, 0);
    data.pop().unwrap()
}

fn same(found: u64, expected: u64) -> bool {
    found == expected || f64::from_bits(found).is_nan() && f64::from_bits(expected).is_nan()
}

/// Runs an operation on edge values from registers and, where that is possible, from memory. All platforms give the same
/// bits, whether they exist or are emulated.
fn compare(op: impl Fn(Lanes) -> Op, arity: usize, evex_only: bool, model: impl Fn(&[u64]) -> u64) {
    let edges = edges();
    let mut known: std::collections::HashMap<(Lanes, usize, usize), [u64; 8]> = Default::default();
    type Address = fn(Reg) -> Mem;
    let lasts: [Option<Address>; 3] = [None, Some(|base| Mem::at(base, 0)), Some(|base| Mem::each(base, 0))];
    for platform in platforms() {
        for lanes in wide_lanes(platform.isa) {
            let op = op(lanes);
            if evex_only && !platform.isa.evex() {
                assert!(!platform.isa.has(op), "{op:?}");
                continue;
            }
            for (form, last) in lasts.into_iter().enumerate() {
                let possible = match form {
                    0 => true,
                    1 => op.reads_mem(),
                    _ => op.reads_mem() && platform.isa.evex() && lanes != Lanes::D1,
                };
                if !possible {
                    continue;
                }
                let code = code(op, (lanes, lanes), last, arity, platform);
                for start in (0..edges.len().pow(2)).step_by(3) {
                    let at = |operand: usize, lane: usize| {
                        let scale = edges.len().pow(operand as u32 % 2);
                        start / scale + lane * (3 + operand) + operand / 2 * 11
                    };
                    let mut operands: Vec<[u64; 8]> = (0..arity)
                        .map(|n| std::array::from_fn(|lane| edges[at(n, lane) % edges.len()]))
                        .collect();
                    let found = run(&code, &operands);
                    if form == 2 {
                        operands[arity - 1] = [operands[arity - 1][0]; 8];
                    }
                    for lane in 0..lanes.count() {
                        let args: Vec<u64> = operands.iter().map(|operand| operand[lane]).collect();
                        let expected = model(&args);
                        assert!(
                            same(found[lane], expected),
                            "{op:?} of {args:x?} on {platform:?}: {:x}, not {expected:x}",
                            found[lane]
                        );
                    }
                    let first = *known.entry((lanes, form, start)).or_insert(found);
                    assert_eq!(first, found, "{op:?} of {operands:x?} on {platform:?}");
                }
            }
        }
    }
}

#[test]
fn binary_operations_of_64_bits() {
    use Binary::*;
    let f = f64::from_bits;
    type Row = (Binary, bool, fn(u64, u64) -> u64);
    let rows: [Row; 15] = [
        (Add, false, |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits()),
        (Sub, false, |a, b| (f64::from_bits(a) - f64::from_bits(b)).to_bits()),
        (Mul, false, |a, b| (f64::from_bits(a) * f64::from_bits(b)).to_bits()),
        (Div, false, |a, b| (f64::from_bits(a) / f64::from_bits(b)).to_bits()),
        (Min, false, |a, b| if f64::from_bits(a) < f64::from_bits(b) { a } else { b }),
        (Max, false, |a, b| if f64::from_bits(a) > f64::from_bits(b) { a } else { b }),
        (And, false, |a, b| a & b),
        (Or, false, |a, b| a | b),
        (Xor, false, |a, b| a ^ b),
        (IntAdd, false, u64::wrapping_add),
        (IntSub, false, u64::wrapping_sub),
        (LowMul, false, |a, b| (a & 0xffff_ffff) * (b & 0xffff_ffff)),
        (IntMul, true, u64::wrapping_mul),
        (IntMin, true, |a, b| (a as i64).min(b as i64) as u64),
        (IntMax, true, |a, b| (a as i64).max(b as i64) as u64),
    ];
    for (op, evex, model) in rows {
        compare(|lanes| Op::Binary(op, lanes), 2, evex, |a| model(a[0], a[1]));
    }
    compare(Op::Fma, 3, false, |a| f(a[1]).mul_add(f(a[2]), f(a[0])).to_bits());
    compare(Op::MulAdd, 3, false, |a| f(a[0]).mul_add(f(a[1]), f(a[2])).to_bits());
    compare(Op::FmaNeg, 3, false, |a| (-f(a[1])).mul_add(f(a[2]), f(a[0])).to_bits());
    compare(Op::Blend, 3, false, |a| if a[0] >> 63 == 1 { a[1] } else { a[2] });
}

#[test]
fn comparisons_and_functions_of_64_bits() {
    let f = f64::from_bits;
    compare(|l| Op::Compare(Compare::Eq, l), 2, false, |a| every(f(a[0]) == f(a[1])));
    compare(|l| Op::Compare(Compare::Ne, l), 2, false, |a| every(f(a[0]) != f(a[1])));
    compare(|l| Op::Compare(Compare::Lt, l), 2, false, |a| every(f(a[0]) < f(a[1])));
    compare(|l| Op::Compare(Compare::Le, l), 2, false, |a| every(f(a[0]) <= f(a[1])));
    compare(|l| Op::Compare(Compare::IntEq, l), 2, false, |a| every(a[0] == a[1]));
    compare(|l| Op::Compare(Compare::IntGt, l), 2, false, |a| every(a[0] as i64 > a[1] as i64));
    compare(|l| Op::Mask(Logic::And, l), 2, false, |a| every((a[0] & a[1]) >> 63 == 1));
    compare(|l| Op::Mask(Logic::Xor, l), 2, false, |a| every((a[0] ^ a[1]) >> 63 == 1));
    compare(Op::MaskNot, 1, false, |a| every(a[0] >> 63 == 0));
    let unary = |op| move |lanes| Op::Unary(op, lanes);
    compare(unary(Unary::Sqrt), 1, false, |a| f(a[0]).sqrt().to_bits());
    compare(unary(Unary::Floor), 1, false, |a| f(a[0]).floor().to_bits());
    compare(unary(Unary::Ceil), 1, false, |a| f(a[0]).ceil().to_bits());
    compare(unary(Unary::Trunc), 1, false, |a| f(a[0]).trunc().to_bits());
    compare(unary(Unary::Nearest), 1, false, |a| f(a[0]).round_ties_even().to_bits());
    compare(unary(Unary::Shl(52)), 1, false, |a| a[0] << 52);
    compare(unary(Unary::Shr(12)), 1, false, |a| a[0] >> 12);
    compare(unary(Unary::ShrArith(33)), 1, true, |a| (a[0] as i64 >> 33) as u64);
    let convert = |op| move |lanes| Op::Convert(op, lanes);
    compare(convert(Convert::LongToDouble), 1, true, |a| (a[0] as i64 as f64).to_bits());
    compare(convert(Convert::DoubleToLong), 1, true, |a| match f(a[0]) {
        x if (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&x) => x as i64 as u64,
        _ => 1 << 63,
    });
}

/// 32-bit lane of a row.
fn lane(row: &[u64; 8], lane: usize) -> u32 {
    (row[lane / 2] >> (32 * (lane % 2))) as u32
}

fn same_single(found: u32, expected: u32) -> bool {
    found == expected || f32::from_bits(found).is_nan() && f32::from_bits(expected).is_nan()
}

#[test]
fn lanes_change_their_width() {
    let (wide, narrow) = (edges(), small_edges());
    let rows = |from: &[u64], start: usize| -> [u64; 8] {
        std::array::from_fn(|n| from[(start + n * 5) % from.len()])
    };
    for platform in platforms() {
        for lanes in wide_lanes(platform.isa) {
            let convert = |op| Op::Convert(op, lanes);
            let wideners = [
                convert(Convert::Widen),
                convert(Convert::IntToDouble),
                convert(Convert::Extend),
                Op::MaskWiden(lanes),
            ]
            .map(|op| code(op, (lanes.narrow(), lanes), None, 1, platform));
            let cutters = [
                convert(Convert::Narrow),
                convert(Convert::DoubleToInt),
                convert(Convert::Truncate),
                Op::MaskNarrow(lanes),
            ]
            .map(|op| code(op, (lanes, lanes.narrow()), None, 1, platform));
            for start in 0..40 {
                let (long, short) = (rows(&wide, start), rows(&narrow, start));
                let [doubles, from_ints, longs, widened] = [0, 1, 2, 3].map(|n| run(&wideners[n], &[short]));
                let [singles, ints, low, narrowed] = [0, 1, 2, 3].map(|n| run(&cutters[n], &[long]));
                for n in 0..lanes.count() {
                    let (x, y) = (lane(&short, n), long[n]);
                    let message = format!("{x:x} {y:x} {lanes:?} on {platform:?}");
                    assert!(same(doubles[n], f64::from(f32::from_bits(x)).to_bits()), "{message}");
                    assert_eq!(from_ints[n], f64::from(x as i32).to_bits(), "{message}");
                    assert_eq!(longs[n], x as i32 as i64 as u64, "{message}");
                    assert_eq!(widened[n], every(x >> 31 == 1), "{message}");
                    let value = f64::from_bits(y);
                    assert!(same_single(lane(&singles, n), (value as f32).to_bits()), "{message}");
                    let int = match value.trunc() {
                        whole if (-2147483648.0..2147483648.0).contains(&whole) => whole as i32,
                        _ => i32::MIN,
                    };
                    assert_eq!(lane(&ints, n), int as u32, "{message}");
                    assert_eq!(lane(&low, n), y as u32, "{message}");
                    assert_eq!(lane(&narrowed, n), every(y >> 63 == 1) as u32, "{message}");
                }
            }
        }
    }
}

#[test]
fn splats_and_lanes_of_64_bits() {
    for platform in platforms().into_iter().filter(|platform| platform.isa.lanes(8) > 2) {
        for lanes in wide_lanes(platform.isa) {
            let data: [u64; 8] = std::array::from_fn(|n| 0x1_0000_0000 * n as u64 + 77);
            let all = wide_lanes(platform.isa).last().unwrap();
            for bits in [0, 0x3ff0_0000_0000_0000, u64::MAX] {
                let (mut b, [buffers, ..]) = Build::new();
                let out = b.load_int(buffers, 0);
                let value = b.vec(Op::Splat(lanes, bits), &[]);
                let sum = b
                    .push(Op::Binary(Binary::Xor, all), Some(Class::Vec), &[value], Some(Mem::Constant(5)))
                    .unwrap();
                b.store(lanes, sum, out, 0);
                let mut found = [1u64; 8];
                Code::new(&b.func, platform).call(&[found.as_mut_ptr().cast()], &[], 0, 0);
                assert!(found[..lanes.count()].iter().all(|&lane| lane == bits ^ 5), "{found:x?}");
                assert!(found[lanes.count()..].iter().all(|&lane| lane == 1));
            }
            for at in 0..all.count() {
                let (mut b, [buffers, ..]) = Build::new();
                let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
                let value = b.vec_mem(Op::Load(all), &[], from, 0);
                let scalar = b.vec(Op::Extract(at as u8, Lanes::D1), &[value]);
                let each = b.vec_mem(Op::Broadcast(lanes), &[], from, 8);
                let splat = b.vec(Op::SplatLane(lanes), &[scalar]);
                let both = b.vec(Op::Binary(Binary::IntAdd, lanes), &[splat, each]);
                b.store(lanes, both, out, 0);
                let mut found = [1u64; 8];
                let buffers = [data.as_ptr() as *mut u32, found.as_mut_ptr().cast()];
                Code::new(&b.func, platform).call(&buffers, &[], 0, 0);
                assert_eq!(found[..lanes.count()], vec![data[at] + data[1]; lanes.count()], "{platform:?}");
            }
        }
    }
}

fn half(x: u32) -> u16 {
    half::f16::from_f32(f32::from_bits(x)).to_bits()
}

/// Loads of small elements, and stores of values that fit, of vectors and of one.
#[test]
fn small_elements() {
    let data: Vec<u8> = (0..64u32).map(|n| (n * 91 + n / 3 * 130) as u8).collect();
    for platform in platforms() {
        for lanes in widths(platform.isa) {
            for small in [Small::I8, Small::U8, Small::I16, Small::U16, Small::F16] {
                let (mut b, [buffers, ..]) = Build::new();
                let [from, out, back] = [0, 8, 16].map(|disp| b.load_int(buffers, disp));
                let value = if lanes == Lanes::X1 {
                    let mem = Some(Mem::at(from, 3));
                    let general = b.push(Op::LoadPart(small), Some(Class::Int), &[], mem).unwrap();
                    let scalar = b.vec(Op::FromGeneral(Lanes::X1), &[general]);
                    if small == Small::F16 { b.vec(Op::Unpack(lanes), &[scalar]) } else { scalar }
                } else {
                    b.vec_mem(Op::LoadSmall(small, lanes), &[], from, 3)
                };
                b.store(lanes, value, out, 0);
                let bytes = small.bytes() * lanes.count();
                if lanes == Lanes::X1 {
                    let packed = match small {
                        Small::F16 => b.vec(Op::Pack(small, lanes), &[value]),
                        _ => value,
                    };
                    // In every general register in turn, those with odd names for their bytes among them.
                    let general: Vec<Reg> =
                        (0..12).map(|_| b.int(Op::ToGeneral(Lanes::X1), &[packed])).collect();
                    for (n, general) in general.into_iter().enumerate() {
                        let mem = Some(Mem::at(back, (bytes * n) as i32));
                        b.push(Op::StorePart(small), None, &[general], mem);
                    }
                } else {
                    let packed = b.vec(Op::Pack(small, lanes), &[value]);
                    let whole =
                        [Lanes::X1, Lanes::D1, Lanes::X4, Lanes::X8].into_iter().find(|l| l.bytes() == bytes);
                    b.store(whole.unwrap(), packed, back, 0);
                }
                let (mut found, mut stored) = ([0u32; 16], [0xaau8; 64]);
                let buffers = [data.as_ptr() as *mut u32, found.as_mut_ptr(), stored.as_mut_ptr().cast()];
                Code::new(&b.func, platform).call(&buffers, &[], 0, 0);
                for (n, &found) in found[..lanes.count()].iter().enumerate() {
                    let at = 3 + n * small.bytes();
                    let word = u16::from_le_bytes([data[at], data[at + 1]]);
                    let expected = match small {
                        Small::I8 => data[at] as i8 as i32 as u32,
                        Small::U8 => data[at].into(),
                        Small::I16 => word as i16 as i32 as u32,
                        Small::U16 => word.into(),
                        Small::F16 => half::f16::from_bits(word).to_f32().to_bits(),
                    };
                    assert!(
                        found == expected || small == Small::F16 && same_single(found, expected),
                        "{small:?} {n} {lanes:?} on {platform:?}: {found:x}, not {expected:x}"
                    );
                    if small == Small::F16 {
                        let stored = u16::from_le_bytes([stored[2 * n], stored[2 * n + 1]]);
                        assert!(stored == half(found) || half::f16::from_bits(stored).is_nan());
                    }
                }
                let copies = if lanes == Lanes::X1 { 12 } else { 1 };
                for copy in (0..copies).filter(|_| small != Small::F16) {
                    assert_eq!(
                        stored[copy * bytes..][..bytes],
                        data[3..3 + bytes],
                        "{small:?} {lanes:?} {platform:?}"
                    );
                }
                assert!(stored[copies * bytes..].iter().all(|&byte| byte == 0xaa), "{small:?} {lanes:?}");
            }
        }
    }
}

/// To the nearest f16, ties to even, and back; an f16 in every lane.
#[test]
fn halves() {
    let edges = small_edges();
    for platform in platforms() {
        for lanes in widths(platform.isa) {
            let (mut b, [buffers, ..]) = Build::new();
            let [from, out] = [0, 8].map(|disp| b.load_int(buffers, disp));
            let value = b.vec_mem(Op::Load(lanes), &[], from, 0);
            let packed = b.vec(Op::Pack(Small::F16, lanes), &[value]);
            let rounded = b.vec(Op::Unpack(lanes), &[packed]);
            b.store(lanes, rounded, out, 0);
            if !platform.isa.evex() {
                let half = b.vec_mem(Op::BroadcastHalf, &[], from, 2);
                let each = b.vec(Op::Unpack(lanes), &[half]);
                b.store(lanes, each, out, 64);
            }
            let code = Code::new(&b.func, platform);
            for start in 0..30 {
                let row: [u64; 8] = std::array::from_fn(|n| edges[(start + 3 * n) % edges.len()]);
                let mut found = [0u32; 32];
                let buffers = [row.as_ptr() as *mut u32, found.as_mut_ptr()];
                code.call(&buffers, &[], 0, 0);
                for n in 0..lanes.count() {
                    let x = lane(&row, n);
                    let expected = half::f16::from_f32(f32::from_bits(x)).to_f32().to_bits();
                    assert!(same_single(found[n], expected), "{x:x} on {platform:?}: {:x}", found[n]);
                    let each = half::f16::from_bits((row[0] >> 16) as u16).to_f32().to_bits();
                    assert!(platform.isa.evex() || same_single(found[16 + n], each));
                }
            }
        }
    }
}

/// The bytes are those of the instructions that are meant.
#[test]
fn operations_of_64_bits_are_the_expected_instructions() {
    use Mnemonic::*;
    for isa in [AVX2, AVX512_256, AVX512] {
        for lanes in wide_lanes(isa) {
            let packed = lanes != Lanes::D1;
            let names = |op: Op, from: Lanes, to: Lanes, arity: i32| -> Vec<Mnemonic> {
                let (mut b, [buffers, ..]) = Build::new();
                let bases: Vec<Reg> = (0..=arity).map(|n| b.load_int(buffers, n * 8)).collect();
                let uses: Vec<Reg> =
                    bases[..arity as usize].iter().map(|&p| b.vec_mem(Op::Load(from), &[], p, 0)).collect();
                let result = b.vec(op, &uses);
                b.store(to, result, bases[arity as usize], 0);
                let insts = disassemble(&b.func, isa);
                let prefix = if isa.evex() { "EVEX_" } else { "VEX_" };
                let vectors = insts.iter().filter(|inst| {
                    (0..inst.op_count())
                        .any(|n| (Register::XMM0..=Register::ZMM31).contains(&inst.op_register(n)))
                });
                let codes: Vec<Instruction> = vectors.copied().collect();
                assert!(
                    codes.iter().all(|inst| format!("{:?}", inst.code()).starts_with(prefix)),
                    "{}",
                    text(&insts)
                );
                codes[arity as usize..codes.len() - 1].iter().map(|inst| inst.mnemonic()).collect()
            };
            let pick = |name, scalar| vec![if packed { name } else { scalar }];
            let binary = [
                (Binary::Add, Vaddpd, Vaddsd),
                (Binary::Sub, Vsubpd, Vsubsd),
                (Binary::Mul, Vmulpd, Vmulsd),
                (Binary::Div, Vdivpd, Vdivsd),
                (Binary::Min, Vminpd, Vminsd),
                (Binary::Max, Vmaxpd, Vmaxsd),
                (Binary::And, Vandpd, Vandpd),
                (Binary::Or, Vorpd, Vorpd),
                (Binary::Xor, Vxorpd, Vxorpd),
                (Binary::IntAdd, Vpaddq, Vpaddq),
                (Binary::IntSub, Vpsubq, Vpsubq),
                (Binary::LowMul, Vpmuludq, Vpmuludq),
            ];
            for (op, name, scalar) in binary {
                assert_eq!(names(Op::Binary(op, lanes), lanes, lanes, 2), pick(name, scalar));
            }
            let fused = [
                (Op::Fma(lanes), Vfmadd231pd, Vfmadd231sd),
                (Op::FmaNeg(lanes), Vfnmadd231pd, Vfnmadd231sd),
                (Op::MulAdd(lanes), Vfmadd213pd, Vfmadd213sd),
            ];
            for (op, name, scalar) in fused {
                assert_eq!(names(op, lanes, lanes, 3), pick(name, scalar));
            }
            let round = if isa.evex() { (Vrndscalepd, Vrndscalesd) } else { (Vroundpd, Vroundsd) };
            for (op, (name, scalar)) in [
                (Unary::Sqrt, (Vsqrtpd, Vsqrtsd)),
                (Unary::Floor, round),
                (Unary::Nearest, round),
                (Unary::Shl(3), (Vpsllq, Vpsllq)),
                (Unary::Shr(3), (Vpsrlq, Vpsrlq)),
            ] {
                assert_eq!(names(Op::Unary(op, lanes), lanes, lanes, 1), pick(name, scalar));
            }
            let narrow = lanes.narrow();
            for (op, from, to, name) in [
                (Convert::Widen, narrow, lanes, Vcvtps2pd),
                (Convert::Narrow, lanes, narrow, Vcvtpd2ps),
                (Convert::IntToDouble, narrow, lanes, Vcvtdq2pd),
                (Convert::DoubleToInt, lanes, narrow, Vcvttpd2dq),
                (Convert::Extend, narrow, lanes, Vpmovsxdq),
            ] {
                assert_eq!(names(Op::Convert(op, lanes), from, to, 1), [name]);
            }
            let cut = names(Op::Convert(Convert::Truncate, lanes), lanes, narrow, 1);
            match (packed, isa.evex()) {
                (false, _) => assert!(cut.is_empty(), "{cut:?}"),
                (true, true) => assert_eq!(cut, [Vpmovqd]),
                (true, false) => assert_eq!(cut, [Vshufps, Vpermq]),
            }
        }
    }
}
