//! The registers of the procedure call standard (AAPCS64), and what instructions of A64 want of them.
//!
//! Not given to values are x16 and x17, which serve single instructions of the vector IR, x18, which some systems keep for
//! themselves, the frame pointer x29 and the address to return to, x30.

use crate::leaf::alloc::{Needs, Registers};
use onnxc_machine::vector::ir::{Binary, Inst, Lanes, Op};
use onnxc_machine::vector::isa::Isa;

pub const REGISTERS: Registers = Registers {
    args: [0, 1, 2, 3],
    caller_saved: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    callee_saved: &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28],
    vectors: &[0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31],
    // Their lower halves; values of a caller are in no others.
    callee_saved_vectors: &[8, 9, 10, 11, 12, 13, 14, 15],
    masks: &[],
    needs,
};

fn needs(inst: &Inst, isa: Isa) -> Needs {
    let replaces = |at: usize| Needs { replaces: Some(at), ..Needs::default() };
    let early = |temps: usize| Needs { early_result: true, temps, ..Needs::default() };
    let needs = match inst.op {
        Op::Fma(_) | Op::FmaNeg(_) | Op::FmaLane(..) | Op::DotLane(..) | Op::MulAddHalves(..) => replaces(0),
        Op::Dot(..) => Needs { temps: dot_temps(isa), ..replaces(0) },
        Op::Binary(Binary::AddHalves, _) => replaces(0),
        // The sum is read first, unless it is loaded, to where the result is to be.
        Op::MulAdd(_) if inst.mem.is_none() => replaces(2),
        Op::MulAdd(_) => return early(0),
        Op::QuantizePair(..) => return early(1),
        // The mask becomes the result.
        Op::Blend(_) | Op::Insert(..) => replaces(0),
        Op::Extract(0, _) | Op::MaskBits(_) => replaces(0),
        Op::SplatLane(lanes) if lanes.is_scalar() => replaces(0),
        Op::Binary(op, lanes) if two_steps(op, lanes) => early(own_temps(op)),
        _ => Needs::default(),
    };
    // Any other operand in memory that is not all that is loaded goes to a register of its own.
    let loaded = matches!(inst.op, Op::Binary(..) | Op::Compare(..) | Op::Unary(..))
        || matches!(inst.op, Op::Fma(_) | Op::FmaNeg(_) | Op::Dot(..));
    Needs { temps: needs.temps + usize::from(loaded && inst.mem.is_some()), ..needs }
}

/// Operations of several instructions; the first ones write the result.
fn two_steps(op: Binary, lanes: Lanes) -> bool {
    let wide = lanes.width() == 8;
    match op {
        Binary::Min | Binary::Max | Binary::LowMul | Binary::DotPairs | Binary::DotHalves => true,
        Binary::ShlBy | Binary::ShrBy | Binary::ShrArithBy => true,
        Binary::IntMin | Binary::IntMax | Binary::IntMul => wide,
        _ => false,
    }
}

/// Vectors that a product of bytes needs in between, besides that for an operand in memory, which is the last one.
pub(super) fn dot_temps(isa: Isa) -> usize {
    if isa.dot.is_some() { 0 } else { 2 }
}

/// Vectors that an operation needs in between, besides that for an operand in memory, which is the last one.
pub(super) fn own_temps(op: Binary) -> usize {
    match op {
        Binary::LowMul
        | Binary::DotPairs
        | Binary::DotHalves
        | Binary::ShlBy
        | Binary::ShrBy
        | Binary::ShrArithBy => 1,
        _ => 0,
    }
}
