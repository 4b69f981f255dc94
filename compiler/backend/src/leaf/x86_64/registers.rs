//! The registers of the calling conventions, and what instructions of x86-64 want of them.

use crate::leaf::alloc::{Needs, Registers};
use onnxc_machine::vector::ir::{Convert, Inst, Lanes, Op};
use onnxc_machine::vector::isa::{Convention, Isa};

pub(crate) const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;

const VECTORS: [u8; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
];

/// In place of k0, instructions that obey a mask obey none.
const MASKS: &[u8] = &[1, 2, 3, 4, 5, 6, 7];

const SYSTEM_V_VEX: Registers = Registers {
    args: [RDI, RSI, RDX, RCX],
    // rax, rcx, rdx, rsi, rdi, r8 to r11, and rbx, rbp, r12 to r15.
    caller_saved: &[RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11],
    callee_saved: &[RBX, RBP, 12, 13, 14, 15],
    vectors: VECTORS.split_at(16).0,
    callee_saved_vectors: &[],
    masks: &[],
    needs,
};

const SYSTEM_V_EVEX: Registers = Registers { vectors: &VECTORS, masks: MASKS, ..SYSTEM_V_VEX };

/// Of vectors the lower 128 bits are the caller's. rbp is kept for the frame, see [`frame_pointer`].
const WINDOWS_VEX: Registers = Registers {
    args: [RCX, RDX, 8, 9],
    caller_saved: &[RAX, RCX, RDX, 8, 9, 10, 11],
    callee_saved: &[RBX, RSI, RDI, 12, 13, 14, 15],
    vectors: VECTORS.split_at(6).0,
    callee_saved_vectors: VECTORS.split_at(16).0.split_at(6).1,
    ..SYSTEM_V_VEX
};

const WINDOWS_EVEX: Registers = Registers {
    vectors: &[0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31],
    masks: MASKS,
    ..WINDOWS_VEX
};

pub(crate) fn registers(isa: Isa) -> &'static Registers {
    match (isa.convention, isa.evex()) {
        (Convention::Standard, false) => &SYSTEM_V_VEX,
        (Convention::Standard, true) => &SYSTEM_V_EVEX,
        (Convention::Windows, false) => &WINDOWS_VEX,
        (Convention::Windows, true) => &WINDOWS_EVEX,
    }
}

/// The register by which an unwinder finds the frame of a function that aligns its stack pointer, where there are unwinders:
/// the caller's, and never one of [`registers`].
pub(crate) fn frame_pointer(isa: Isa) -> Option<u8> {
    match isa.convention {
        Convention::Standard => None,
        Convention::Windows => Some(RBP),
    }
}

fn needs(inst: &Inst, isa: Isa) -> Needs {
    match inst.op {
        Op::MulHigh => Needs { fixed_use: Some((0, RDX)), ..Needs::default() },
        // The vector is read after the result is written.
        Op::Insert(..) => Needs { late: Some(0), ..Needs::default() },
        Op::Interleave(_) => Needs { early_result: true, ..Needs::default() },
        Op::QuantizePair(..) => Needs { early_result: true, temps: 1, ..Needs::default() },
        // The divisor is read after rdx, the dividend's upper half, is overwritten.
        Op::DivInt => Needs {
            fixed_use: Some((0, RAX)),
            fixed_result: Some(RAX),
            late: Some(1),
            clobbers: Some(RDX),
            ..Needs::default()
        },
        op => Needs { replaces: replaces_first_use(op, isa).then_some(0), ..Needs::default() },
    }
}

/// Whether the result is in the register of the first operand: where the machine has two operands only, and
/// for copies, which are then no instruction unless the original lives on.
fn replaces_first_use(op: Op, isa: Isa) -> bool {
    match op {
        Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) | Op::Dot(..) | Op::AddDotPairs(_) | Op::DotBf16(_) => {
            true
        }
        Op::Sub | Op::Mul | Op::MinInt | Op::MaxInt => true,
        Op::ShrInt(_) | Op::Extract(0, _) => true,
        Op::SplatLane(lanes) => lanes.is_scalar(),
        Op::Convert(Convert::Truncate, Lanes::D1) => true,
        Op::MaskBits(_) | Op::MaskOf(_) => !isa.evex(),
        Op::MaskWiden(_) => isa.evex(),
        Op::MaskNarrow(lanes) => isa.evex() || lanes.is_scalar(),
        // For the small ones there is `lea`.
        Op::ShlInt(count) => !(1..=3).contains(&count),
        _ => false,
    }
}
