//! Functions as machine code, by QEMU, against what the interpreter of the vector IR computes; the words of instructions
//! against a disassembler.

use super::inst;
use onnxc_machine::testing::runner::Runner;
use onnxc_machine::vector::interp;
use onnxc_machine::vector::ir::*;
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::op::{LaneKind, MemUse, SPELLINGS};
use onnxc_machine::vector::parse::parse;
use onnxc_machine::vector::verify;

/// With all that processors have for narrow types.
const NARROW: Isa = Isa { dot: Some(Signs::SIGNED), has_bf16: true, ..Isa::NEON };

fn compile(func: &Func, isa: Isa) -> Vec<u8> {
    let allocated = crate::leaf::alloc::allocate(func, isa, &super::registers::REGISTERS).unwrap();
    allocated.check().unwrap();
    super::compile(func, isa).unwrap().bytes
}

/// Assembly of the words of a function, by an independent disassembler.
fn listing(words: &[u32]) -> Vec<String> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let target = onnxc_machine::target::Target::parse("aarch64-unknown-linux-gnu", None).unwrap();
    let isa = crate::codegen::isa::isa(&target, crate::codegen::isa::Opt::None).unwrap();
    let capstone = isa.to_capstone().unwrap();
    let insts = capstone.disasm_all(&bytes, 0).unwrap();
    let text = |inst: &_| {
        let text = format!("{inst}");
        text.split_once(": ").map_or(text.clone(), |(_, text)| text.to_string())
    };
    insts.iter().map(text).collect()
}

/// Words that [`inst`] makes and what an independent disassembler reads in them.
#[test]
fn words_are_the_instructions_they_are_named_for() {
    use super::inst::*;
    let (x1, x2, x4, d2) = (Lanes::X1, Lanes::X2, Lanes::X4, Lanes::D2);
    let byte = |load| Access::vector(1, load);
    let cases: Vec<(u32, &str)> = vec![
        (FADD.three(x4, 1, 2, 3), "fadd v1.4s, v2.4s, v3.4s"),
        (FSUB.three(d2, 31, 30, 29), "fsub v31.2d, v30.2d, v29.2d"),
        (FMUL.three(x2, 1, 2, 3), "fmul v1.2s, v2.2s, v3.2s"),
        (FDIV.three(x4, 1, 2, 3), "fdiv v1.4s, v2.4s, v3.4s"),
        (FDIV_SCALAR.scalar(x1, 1, 2, 3), "fdiv s1, s2, s3"),
        (FSQRT_SCALAR.scalar(Lanes::D1, 1, 2, 0), "fsqrt d1, d2"),
        (FMLA.three(x4, 1, 2, 3), "fmla v1.4s, v2.4s, v3.4s"),
        (FMLS.three(d2, 1, 2, 3), "fmls v1.2d, v2.2d, v3.2d"),
        (FMLA_ELEMENT.element(x4, 8, 9, (31, 3)), "fmla v8.4s, v9.4s, v31.s[3]"),
        (FMLA_ELEMENT.element(x4, 8, 9, (10, 2)), "fmla v8.4s, v9.4s, v10.s[2]"),
        (FMLA_ELEMENT.element(d2, 8, 9, (10, 1)), "fmla v8.2d, v9.2d, v10.d[1]"),
        (FMAX.three(x4, 1, 2, 3), "fmax v1.4s, v2.4s, v3.4s"),
        (FMIN.three(x4, 1, 2, 3), "fmin v1.4s, v2.4s, v3.4s"),
        (FCMEQ.three(x4, 1, 2, 3), "fcmeq v1.4s, v2.4s, v3.4s"),
        (FCMGE.three(x4, 1, 2, 3), "fcmge v1.4s, v2.4s, v3.4s"),
        (FCMGT.three(d2, 1, 2, 3), "fcmgt v1.2d, v2.2d, v3.2d"),
        (FSQRT.two(x4, 1, 2), "fsqrt v1.4s, v2.4s"),
        (FRINTM.two(x4, 1, 2), "frintm v1.4s, v2.4s"),
        (FRINTP.two(x4, 1, 2), "frintp v1.4s, v2.4s"),
        (FRINTZ.two(x4, 1, 2), "frintz v1.4s, v2.4s"),
        (FRINTN.two(x4, 1, 2), "frintn v1.4s, v2.4s"),
        (FCVTZS.two(x4, 1, 2), "fcvtzs v1.4s, v2.4s"),
        (FCVTNS.two(x4, 1, 2), "fcvtns v1.4s, v2.4s"),
        (SCVTF.two(d2, 1, 2), "scvtf v1.2d, v2.2d"),
        (FCVTL.between(x4, 1, 2), "fcvtl v1.4s, v2.4h"),
        (FCVTN.between(d2, 1, 2), "fcvtn v1.2s, v2.2d"),
        (ADD.three(x4, 1, 2, 3), "add v1.4s, v2.4s, v3.4s"),
        (SUB.three(d2, 1, 2, 3), "sub v1.2d, v2.2d, v3.2d"),
        (MUL.three(x4, 1, 2, 3), "mul v1.4s, v2.4s, v3.4s"),
        (SMIN.three(x4, 1, 2, 3), "smin v1.4s, v2.4s, v3.4s"),
        (SMAX.three(x4, 1, 2, 3), "smax v1.4s, v2.4s, v3.4s"),
        (UMIN.three(x4, 1, 2, 3), "umin v1.4s, v2.4s, v3.4s"),
        (CMEQ.three(d2, 1, 2, 3), "cmeq v1.2d, v2.2d, v3.2d"),
        (CMGT.three(x4, 1, 2, 3), "cmgt v1.4s, v2.4s, v3.4s"),
        (SSHL.three(x4, 1, 2, 3), "sshl v1.4s, v2.4s, v3.4s"),
        (USHL.three(x4, 1, 2, 3), "ushl v1.4s, v2.4s, v3.4s"),
        (ADDP.three(x4, 1, 2, 3), "addp v1.4s, v2.4s, v3.4s"),
        (NEG.two(x4, 1, 2), "neg v1.4s, v2.4s"),
        (CMLT_ZERO.two(x4, 1, 2), "cmlt v1.4s, v2.4s, #0"),
        (XTN.sized(2, false, 1, 2, 0), "xtn v1.4h, v2.4s"),
        (SQXTN.sized(4, false, 1, 2, 0), "sqxtn v1.2s, v2.2d"),
        (SQXTN.sized(1, false, 1, 2, 0), "sqxtn v1.8b, v2.8h"),
        (SQXTUN.sized(2, false, 1, 2, 0), "sqxtun v1.4h, v2.4s"),
        (SQXTUN.sized(1, false, 1, 2, 0), "sqxtun v1.8b, v2.8h"),
        (SMULL.sized(2, true, 1, 2, 3), "smull2 v1.4s, v2.8h, v3.8h"),
        (UMULL.sized(4, false, 1, 2, 3), "umull v1.2d, v2.2s, v3.2s"),
        (SMULL.sized(1, true, 1, 2, 3), "smull2 v1.8h, v2.16b, v3.16b"),
        (SADDLP.sized(2, true, 1, 2, 0), "saddlp v1.4s, v2.8h"),
        (SADALP.sized(2, true, 1, 2, 0), "sadalp v1.4s, v2.8h"),
        (ADDP.sized(2, true, 1, 2, 3), "addp v1.8h, v2.8h, v3.8h"),
        (bits(AND, x4, 1, 2, 3), "and v1.16b, v2.16b, v3.16b"),
        (bits(EOR, x2, 1, 2, 3), "eor v1.8b, v2.8b, v3.8b"),
        (bits(ORR, x4, 1, 2, 3), "orr v1.16b, v2.16b, v3.16b"),
        (bits(BSL, x4, 1, 2, 3), "bsl v1.16b, v2.16b, v3.16b"),
        (bits(NOT, x4, 1, 2, 0), "mvn v1.16b, v2.16b"),
        (fields(BFCVTN, 1, 2, 0), "bfcvtn v1.4h, v2.4s"),
        (fields(SHLL, 1, 2, 0), "shll v1.4s, v2.4h, #16"),
        (bits(SDOT, x4, 1, 2, 3), "sdot v1.4s, v2.16b, v3.16b"),
        (dot_element(SDOT_ELEMENT, x4, 1, 2, (19, 3)), "sdot v1.4s, v2.16b, v19.4b[3]"),
        (shift_left(SHL, 4, true, 1, 2, 31), "shl v1.4s, v2.4s, #0x1f"),
        (shift_right(SSHR, 2, true, 1, 2, 8), "sshr v1.8h, v2.8h, #8"),
        (shift_right(USHR, 8, true, 1, 2, 32), "ushr v1.2d, v2.2d, #0x20"),
        (shift_left(SSHLL, 4, false, 1, 2, 0), "sshll v1.2d, v2.2s, #0"),
        (shift_left(USHLL, 1, false, 1, 2, 0), "ushll v1.8h, v2.8b, #0"),
        (lane(DUP, 4, true, 1, 2, 3), "dup v1.4s, v2.s[3]"),
        (lane(DUP, 2, true, 1, 2, 0), "dup v1.8h, v2.h[0]"),
        (lane(DUP_SCALAR, 8, false, 1, 2, 1), "mov d1, v2.d[1]"),
        (lane(UMOV, 8, true, 16, 2, 1), "mov x16, v2.d[1]"),
        (lane(INS_GENERAL, 8, false, 1, 16, 1), "mov v1.d[1], x16"),
        (insert(4, 1, 2, 3), "mov v1.s[2], v3.s[0]"),
        (fields(FMOV_W_S, 1, 2, 0), "fmov w1, s2"),
        (fields(FMOV_X_D, 1, 2, 0), "fmov x1, d2"),
        (fields(FMOV_S_W, 1, 2, 0), "fmov s1, w2"),
        (fields(FMOV_D_X, 1, 2, 0), "fmov d1, x2"),
        (modified(1, 64, 0, false, x4), "movi v1.4s, #0x40"),
        (modified(1, 0x70, 0b1111, false, x4), "fmov v1.4s, #1.00000000"),
        (fields(ADD_X, 1, 2, 3), "add x1, x2, x3"),
        (fields(SUB_X, 1, 2, 3), "sub x1, x2, x3"),
        (fields(MUL_X, 1, 2, 3), "mul x1, x2, x3"),
        (fields(UMULH, 1, 2, 3), "umulh x1, x2, x3"),
        (fields(SDIV_X, 1, 2, 3), "sdiv x1, x2, x3"),
        (fields(SDIV_W, 1, 2, 3), "sdiv w1, w2, w3"),
        (fields(UDIV_X, 1, 2, 3), "udiv x1, x2, x3"),
        (fields(UDIV_W, 1, 2, 3), "udiv w1, w2, w3"),
        (fields(CMP_X, 0, 2, 3) | 0x1f, "cmp x2, x3"),
        (copy(1, 2), "mov x1, x2"),
        (shift_int(true, 1, 2, 3), "lsl x1, x2, #3"),
        (shift_int(false, 1, 2, 63), "lsr x1, x2, #0x3f"),
        (shift_int(false, 1, 2, 0), "lsr x1, x2, #0"),
        (select(1, 2, 3, LT), "csel x1, x2, x3, lt"),
        (select(1, 2, 3, GT), "csel x1, x2, x3, gt"),
        (immediate(ADD_IMM, 1, 2, 4095, false), "add x1, x2, #0xfff"),
        (immediate(SUB_IMM, 1, 2, 1, true), "sub x1, x2, #1, lsl #12"),
        (immediate(CMP_IMM, 0, 2, 7, false), "cmp x2, #7"),
        (immediate(CMN_IMM, 0, 2, 7, false), "cmn x2, #7"),
        (aligned_64(SP, X16), "and sp, x16, #0xffffffffffffffc0"),
        (constant(1, -1)[0], "mov x1, #-1"),
        (LOAD_X.at(1, 2, 8).unwrap(), "ldr x1, [x2, #8]"),
        (LOAD_X.at(1, 2, -8).unwrap(), "ldur x1, [x2, #-8]"),
        (STORE_X.at(1, SP, 0).unwrap(), "str x1, [sp]"),
        (LOAD_SW.at(1, 2, 4).unwrap(), "ldrsw x1, [x2, #4]"),
        (LOAD_W.at(XZR, X16, 0).unwrap(), "ldr wzr, [x16]"),
        (PREFETCH.at(PREFETCH_L2, 2, 64).unwrap(), "prfm pldl2keep, [x2, #0x40]"),
        (Access::part(1, true, true).at(1, 2, 3).unwrap(), "ldrsb w1, [x2, #3]"),
        (Access::part(2, true, false).at(1, 2, 2).unwrap(), "ldrh w1, [x2, #2]"),
        (Access::part(1, false, false).at(1, 2, 0).unwrap(), "strb w1, [x2]"),
        (Access::vector(16, true).at(1, 2, 16).unwrap(), "ldr q1, [x2, #0x10]"),
        (Access::vector(16, false).at(1, 2, 1).unwrap(), "stur q1, [x2, #1]"),
        (Access::vector(8, true).at(1, 2, 8).unwrap(), "ldr d1, [x2, #8]"),
        (Access::vector(4, false).at(1, 2, 4).unwrap(), "str s1, [x2, #4]"),
        (Access::vector(2, true).at(1, 2, 2).unwrap(), "ldr h1, [x2, #2]"),
        (byte(true).at(1, 2, 0).unwrap(), "ldr b1, [x2]"),
        (Access::vector(16, true).indexed(1, 2, 3, 4), "ldr q1, [x2, x3, lsl #4]"),
        (Access::vector(4, true).indexed(1, 2, 3, 0), "ldr s1, [x2, x3]"),
        (load_pair(1, 2, 3, -32).unwrap(), "ldp q1, q2, [x3, #-0x20]"),
        (stack_pair(true, false, 19, 20, 16), "ldp x19, x20, [sp, #0x10]"),
        (stack_pair(false, true, 8, 9, 32), "stp d8, d9, [sp, #0x20]"),
        (push_frame(32), "stp x29, x30, [sp, #-0x20]!"),
        (pop_frame(32), "ldp x29, x30, [sp], #0x20"),
        (load_each(x4, 1, 2), "ld1r {v1.4s}, [x2]"),
        (load_literal(16, 1) | 2 << 5, "ldr q1, #0x"),
        (JUMP_IF | LT | 1 << 5, "b.lt #0x"),
        (compare_zero(true, 1), "cbz x1, #0x"),
        (compare_zero(false, 1), "cbnz x1, #0x"),
        (RET, "ret"),
    ];
    let words: Vec<u32> = cases.iter().map(|case| case.0).collect();
    let found = listing(&words);
    assert_eq!(found.len(), cases.len());
    for (found, (word, wanted)) in found.iter().zip(&cases) {
        let found = found.trim();
        assert!(
            found == *wanted || wanted.ends_with("0x") && found.starts_with(wanted),
            "{word:#x}: {found}, not {wanted}"
        );
    }
    assert!(Access::vector(16, true).at(1, 2, 65536).is_none() && load_pair(1, 2, 3, 1024).is_none());
}

/// Constants by the instructions that make them.
#[test]
fn constants_of_64_bits() {
    let Some(mut runner) = Runner::new("max") else { return };
    for value in
        [0, 1, -1, 65535, 65536, -65536, 0x1234_5678_9abc_def0, i64::MIN, i64::MAX, -2, 0xffff_0000_ffff]
    {
        let mut words = vec![inst::fields(0xf940_0000, 4, 0, 0)];
        words.extend(inst::constant(5, value));
        words.extend([inst::STORE_X.at(5, 4, 0).unwrap(), inst::RET]);
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut buffers = vec![vec![0; 8]];
        runner.call(&code, &mut buffers, &[], (0, 0));
        assert_eq!(buffers[0], value.to_le_bytes());
    }
}

/// Bits of numbers, to fill lanes of any width: small ones and large ones, edges, infinities, NaN.
fn numbers(seed: u64, width: usize) -> Vec<u8> {
    let singles = [0.0f32, -0.0, 1.0, -1.5, 2.5, 3e9, -3e9, 1e20, 1e-40, f32::INFINITY, f32::NAN, 65519.9];
    let ints =
        [0i64, 1, -1, 127, -128, 255, 32767, i64::from(i32::MAX), i64::from(i32::MIN), i64::MAX, i64::MIN];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut element = || match (next() % 3, width) {
        (0, 8) => f64::from(singles[next() % singles.len()]).to_bits(),
        (0, _) => singles[next() % singles.len()].to_bits().into(),
        (1, _) => ints[next() % ints.len()] as u64,
        _ => (next() as u64) << 32 ^ next() as u64,
    };
    (0..64 / width).flat_map(|_| element().to_le_bytes()[..width].to_vec()).collect()
}

/// Bytes of the result that an operation specifies.
fn specified(op: Op, lanes: Lanes) -> usize {
    match op {
        Op::Convert(Convert::Narrow | Convert::DoubleToInt | Convert::Truncate, _) => 4 * lanes.count(),
        Op::Pack(small, _) | Op::Quantize(small, _) => small.bytes() * lanes.count(),
        Op::QuantizePair(small, _, _) => 2 * small.bytes() * lanes.count(),
        Op::BroadcastHalf => 16,
        Op::FromGeneral(one) => one.width(),
        _ => lanes.bytes(),
    }
}

/// Whether a conversion may give any integer for what does not fit.
fn any_of_what_does_not_fit(op: Op) -> bool {
    matches!(op, Op::Unary(Unary::ToInt | Unary::ToIntNearest, _) | Op::Convert(Convert::DoubleToInt, _))
}

/// The text of a function that loads the operands of `op` from the first buffers, and stores its result to the last.
fn function(op: Op, lanes: Lanes, in_memory: bool) -> Func {
    let mut func = Func::default();
    let args: Vec<Reg> = (0..4).map(|_| func.regs.push(Class::Int)).collect();
    let mut insts = vec![];
    let mut push = |func: &mut Func, op, class: Option<Class>, uses: &[Reg], mem| {
        let dst = class.map(|class| func.regs.push(class));
        insts.push(Inst { op, dst, uses: uses.to_vec(), mem });
        dst
    };
    let pointers: Vec<Reg> = (0..5)
        .map(|at| {
            push(&mut func, Op::LoadInt, Some(Class::Int), &[], Some(Mem::at(args[0], 8 * at))).unwrap()
        })
        .collect();
    let shape = op.shape();
    let mut uses = vec![];
    for (at, class) in shape.uses.iter().enumerate() {
        let from = Some(Mem::at(pointers[at], 0));
        uses.push(match class {
            Class::Int => {
                push(&mut func, Op::LoadInt, Some(Class::Int), &[], Some(Mem::at(pointers[at], 8))).unwrap()
            }
            // Integers that fit.
            Class::Vec => {
                let load = match op {
                    Op::Pack(small, lanes) if small != Small::F16 && lanes.count() > 1 => {
                        Op::LoadSmall(small, lanes)
                    }
                    _ => Op::Load(Lanes::X4),
                };
                push(&mut func, load, Some(Class::Vec), &[], from).unwrap()
            }
            Class::Mask => {
                let lanes = if let Op::MaskWiden(lanes) = op { lanes.narrow() } else { lanes };
                let value = push(&mut func, Op::Load(Lanes::X4), Some(Class::Vec), &[], from).unwrap();
                let zero = push(&mut func, Op::Splat(lanes, 0), Some(Class::Vec), &[], None).unwrap();
                let greater = Op::Compare(Compare::IntGt, lanes);
                push(&mut func, greater, Some(Class::Mask), &[value, zero], None).unwrap()
            }
        });
    }
    let out = pointers[4];
    let mem = match shape.mem {
        MemUse::Always if shape.dst.is_none() => Some(Mem::at(out, 0)),
        MemUse::Always => Some(Mem::at(pointers[3], 0)),
        MemUse::Last if in_memory => {
            uses.pop();
            Some(Mem::at(pointers[shape.uses.len() - 1], 0))
        }
        _ => None,
    };
    match (shape.dst, push(&mut func, op, shape.dst, &uses, mem)) {
        (Some(Class::Mask), Some(mask)) => {
            let lanes = if let Op::MaskNarrow(lanes) = op { lanes.narrow() } else { lanes };
            let bits = push(&mut func, Op::MaskBits(lanes), Some(Class::Vec), &[mask], None).unwrap();
            push(&mut func, Op::Store(lanes), None, &[bits], Some(Mem::at(out, 0)));
        }
        (Some(Class::Int), Some(value)) => {
            let whole =
                push(&mut func, Op::FromGeneral(Lanes::D1), Some(Class::Vec), &[value], None).unwrap();
            push(&mut func, Op::Store(Lanes::D1), None, &[whole], Some(Mem::at(out, 0)));
        }
        (_, Some(value)) => {
            push(&mut func, Op::Store(Lanes::X4), None, &[value], Some(Mem::at(out, 0)));
        }
        (_, None) => {}
    }
    func.blocks.push(Block { params: args, insts, end: End::Return(0) });
    func
}

/// The same bits, but for those of NaNs of an operation on floats, and of zeros where either will do.
fn same(a: &[u8], b: &[u8], op: Op, float: bool, width: usize) -> bool {
    let value = |bytes: &[u8]| match width {
        8 => f64::from_le_bytes(bytes.try_into().unwrap()),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
    };
    let any_zero = matches!(op, Op::Binary(Binary::Minimum | Binary::Maximum, _));
    let number = |a: f64, b: f64| a.is_nan() && b.is_nan() || any_zero && a == b;
    let alike = |(a, b): (&[u8], &[u8])| a == b || a.len() == width && number(value(a), value(b));
    a == b || float && a.chunks(width).zip(b.chunks(width)).all(alike)
}

#[test]
fn every_operation_as_the_machine_does_it() {
    let Some(mut runner) = Runner::new("max") else { return };
    let mut count = 0;
    let ops = SPELLINGS.iter().flat_map(|one| {
        // With a number there are several.
        let numbers: &[u64] = if one.number { &[0, 1, 3, 7, 40, 0x1234, 0x3fc0_0000] } else { &[0] };
        numbers.iter().flat_map(move |&number| Lanes::ALL.map(|lanes| (one.kind, (one.op)(lanes, number))))
    });
    for (kind, op) in ops {
        let lanes = op.written_lanes();
        // Its divisor is neither 0 nor -1: below.
        if op == Op::DivInt {
            continue;
        }
        for (in_memory, isa) in [(false, NARROW), (true, NARROW), (false, Isa::NEON), (true, Isa::NEON)] {
            let func = function(op, lanes, in_memory);
            if verify::verify(&func).and_then(|()| verify::check(&func, isa)).is_err() {
                continue;
            }
            let code = compile(&func, isa);
            // What has nothing to do with narrow types is the same.
            if isa == Isa::NEON && code == compile(&func, NARROW) {
                continue;
            }
            for seed in 1..=8 {
                let mut buffers: Vec<Vec<u8>> =
                    (0..4).map(|at| numbers(seed * 5 + at, lanes.width())).collect();
                buffers.push(vec![0; 64]);
                if any_of_what_does_not_fit(op) {
                    let fits = |at: usize| ((at * 7919 + seed as usize) % 4001) as f64 * 1e5 - 2e8 + 0.5;
                    buffers[0] = (0..64 / lanes.width())
                        .flat_map(|at| match lanes.width() {
                            8 => fits(at).to_le_bytes().to_vec(),
                            _ => (fits(at) as f32 / 64.0).to_le_bytes().to_vec(),
                        })
                        .collect();
                }
                let mut others = buffers.clone();
                let code_of = interp::run(&func, &mut buffers, &[0; 8], (0, 0)).unwrap();
                assert_eq!(runner.call(&code, &mut others, &[0; 8], (0, 0)), code_of, "{op:?}");
                let bytes = specified(op, lanes);
                let width = if let Op::Convert(Convert::Narrow, _) = op { 4 } else { lanes.width() };
                let float = kind == LaneKind::Float
                    && !matches!(op, Op::Pack(..) | Op::Quantize(..) | Op::QuantizePair(..));
                assert!(
                    same(&buffers[4][..bytes], &others[4][..bytes], op, float, width),
                    "{op:?}, seed {seed}\n{func}{:x?}\n{:x?}",
                    &buffers[4][..bytes],
                    &others[4][..bytes]
                );
                count += 1;
            }
        }
    }
    assert!(count > 2000, "{count} runs");
}

#[test]
fn quotients_of_integers() {
    let Some(mut runner) = Runner::new("max") else { return };
    let mut func = function(Op::DivInt, Lanes::X1, false);
    let code = compile(&func, NARROW);
    for (value, by) in [(7i64, 2i64), (-7, 2), (i64::MIN, 3), (1 << 60, -5)] {
        let buffer = |value: i64| [[0; 8], value.to_le_bytes()].concat();
        let mut buffers = vec![buffer(value), buffer(by), vec![], vec![], vec![0; 64]];
        runner.call(&code, &mut buffers, &[], (0, 0));
        assert_eq!(buffers[4][..8], (value / by).to_le_bytes());
    }
    func.blocks.values_mut().for_each(|block| block.insts.clear());
    assert_eq!(compile(&func, NARROW), [inst::constant(0, 0)[0], inst::RET].map(u32::to_le_bytes).concat());
}

/// Loops, calls of all registers, spilled values, memory of the function, offsets of every length.
#[test]
fn functions_with_loops_and_frames() {
    let Some(mut runner) = Runner::new("max") else { return };
    for (frame, values, steps) in [(0, 4, 3), (0, 30, 7), (128, 45, 5), (20_480, 45, 2), (0, 60, 1)] {
        let mut text = String::from("function {\n");
        if frame > 0 {
            text += &format!("frame {frame}\n");
        }
        text += "block0(g0, g1, g2, g3):\n  g4 = load int [g0]\n  g5 = load int [g0 + 8]\n";
        if frame > 0 {
            text += "  g6 = frame int 64\n";
        } else {
            text += "  g6 = add int 0, g5\n";
        }
        text += "  g7 = const int 0\n";
        let regs =
            |from: usize| (0..values).map(|at| format!("v{}", from + at)).collect::<Vec<_>>().join(", ");
        for at in 0..values {
            text += &format!("  v{} = load f32x4 [g4 + {}]\n", 100 + at, 16 * at).replace("f32x4", "b32x4");
        }
        text += &format!("  jump block1(g7, {})\n", regs(100));
        text += &format!("block1(g8, {}):\n", regs(200));
        text += "  branch lt g8, g3 then block2 else block3\nblock2:\n";
        for at in 0..values {
            text += &format!(
                "  v{} = fma f32x4 v{}, v{}, v{}\n",
                300 + at,
                200 + at,
                200 + (at + 1) % values,
                200 + (at + 7) % values
            );
        }
        text += &format!(
            "  store b32x4 v{}, [g6]\n  g9 = add int 1, g8\n  jump block1(g9, {})\n",
            300,
            regs(300)
        );
        text += "block3:\n  v400 = load b32x4 [g6]\n  store b32x4 v400, [g5 + 8192]\n";
        for at in 0..values {
            text += &format!("  store b32x4 v{}, [g5 + {}]\n", 200 + at, 16 * at);
        }
        text += "  return 7\n}\n";
        let func = parse(&text).unwrap();
        verify::verify(&func).unwrap();
        let code = compile(&func, NARROW);
        // Loads and stores by the stack pointer fault where it is not a multiple of 16; the emulator does not look. Memory is aligned
        // besides.
        let words: Vec<u32> =
            code.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let size = listing(&words).into_iter().find_map(|line| {
            let bytes = line.trim().strip_prefix("sub x16, sp, #0x")?;
            i64::from_str_radix(bytes, 16).ok()
        });
        if frame == 0 {
            assert!(size.is_none_or(|size| size % 16 == 0), "{size:?} bytes");
            assert_eq!(size.is_some(), values >= 30, "{values} values");
        }
        let input: Vec<u8> =
            (0..4 * values).flat_map(|at| ((at % 13) as f32 * 0.1 - 0.6).to_le_bytes()).collect();
        let mut buffers = vec![input, vec![0; 8208]];
        let mut others = buffers.clone();
        let range = (0, steps);
        assert_eq!(interp::run(&func, &mut buffers, &[], range).unwrap(), 7);
        assert_eq!(runner.call(&code, &mut others, &[], range), 7);
        assert!(buffers == others, "{frame} bytes of memory, {values} values");
    }
}
