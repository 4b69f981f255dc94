//! How an operation is written for the machine: its instruction, what is in its immediate byte, and how its operands are
//! arranged.

use super::codes::{self, Codes};
use super::ir::{Binary, Compare, Lanes, Logic, Unary};
use super::isa::Isa;
use iced_x86::Code;

/// An instruction and what is in its immediate byte, if it has one.
pub type Form = (Code, Option<u32>);

/// Predicates of `vcmpps`. Ordered ones are false for NaN; those named quiet raise no exception for it.
const EQUAL_ORDERED_QUIET: u32 = 0;
const NOT_EQUAL_UNORDERED_QUIET: u32 = 4;
const LESS_ORDERED_QUIET: u32 = 17;
const LESS_EQUAL_ORDERED_QUIET: u32 = 18;

/// Rounding modes of `vroundps`, and of `vrndscaleps` to whole numbers. A mode of its own, and without an exception for
/// what is not exact.
const ROUND_NEAREST: u32 = 8;
const ROUND_DOWN: u32 = 9;
const ROUND_UP: u32 = 10;
const ROUND_TRUNCATE: u32 = 11;

pub fn binary(op: Binary, isa: Isa, lanes: Lanes) -> Form {
    let codes = match op {
        Binary::Add => codes::ADD,
        Binary::Sub => codes::SUB,
        Binary::Mul => codes::MUL,
        Binary::Div => codes::DIV,
        Binary::Min => codes::MIN,
        Binary::Max => codes::MAX,
        Binary::And => codes::AND,
        Binary::Or => codes::OR,
        Binary::Xor => codes::XOR,
        Binary::IntAdd => codes::INT_ADD,
        Binary::IntSub => codes::INT_SUB,
        Binary::IntMul => codes::INT_MUL,
        Binary::IntMin => codes::INT_MIN,
        Binary::IntMax => codes::INT_MAX,
    };
    (codes.pick(isa, lanes), None)
}

pub fn compare(op: Compare, isa: Isa, lanes: Lanes) -> Form {
    let (codes, predicate) = match op {
        Compare::Eq => (codes::COMPARE, Some(EQUAL_ORDERED_QUIET)),
        Compare::Ne => (codes::COMPARE, Some(NOT_EQUAL_UNORDERED_QUIET)),
        Compare::Lt => (codes::COMPARE, Some(LESS_ORDERED_QUIET)),
        Compare::Le => (codes::COMPARE, Some(LESS_EQUAL_ORDERED_QUIET)),
        Compare::IntEq => (codes::INT_EQ, None),
        Compare::IntGt => (codes::INT_GT, None),
    };
    (codes.pick(isa, lanes), predicate)
}

/// Of mask registers, or of vectors where masks are those.
pub fn logic(op: Logic, isa: Isa, lanes: Lanes) -> Form {
    let code = match (op, isa.evex) {
        (Logic::And, true) => Code::VEX_Kandw_kr_kr_kr,
        (Logic::Or, true) => Code::VEX_Korw_kr_kr_kr,
        (Logic::Xor, true) => Code::VEX_Kxorw_kr_kr_kr,
        (Logic::And, false) => codes::AND.pick(isa, lanes),
        (Logic::Or, false) => codes::OR.pick(isa, lanes),
        (Logic::Xor, false) => codes::XOR.pick(isa, lanes),
    };
    (code, None)
}

/// A mask register as a vector.
pub fn mask_bits(lanes: Lanes) -> Code {
    match lanes {
        Lanes::X16 => Code::EVEX_Vpmovm2d_zmm_kr,
        Lanes::X8 => Code::EVEX_Vpmovm2d_ymm_kr,
        Lanes::X4 | Lanes::X1 => Code::EVEX_Vpmovm2d_xmm_kr,
    }
}

/// The mask register of a vector.
pub fn mask_of(lanes: Lanes) -> Code {
    match lanes {
        Lanes::X16 => Code::EVEX_Vpmovd2m_kr_zmm,
        Lanes::X8 => Code::EVEX_Vpmovd2m_kr_ymm,
        Lanes::X4 | Lanes::X1 => Code::EVEX_Vpmovd2m_kr_xmm,
    }
}

/// How the operands of a unary operation are written.
pub enum UnaryForm {
    /// `dst, a|mem`
    Two(Form),
    /// `dst, upper, a|mem`: a scalar, the lanes above it from `upper`.
    Scalar(Form),
    /// `dst, a, count`
    Shift(Code, u32),
}

pub fn unary(op: Unary, isa: Isa, lanes: Lanes) -> UnaryForm {
    // With a form of their own for scalars.
    let float = |codes: Codes, imm| match lanes {
        Lanes::X1 => UnaryForm::Scalar((codes.pick(isa, lanes), imm)),
        _ => UnaryForm::Two((codes.pick(isa, lanes), imm)),
    };
    match op {
        Unary::Sqrt => float(codes::SQRT, None),
        Unary::Floor => float(codes::ROUND, Some(ROUND_DOWN)),
        Unary::Ceil => float(codes::ROUND, Some(ROUND_UP)),
        Unary::Trunc => float(codes::ROUND, Some(ROUND_TRUNCATE)),
        Unary::Nearest => float(codes::ROUND, Some(ROUND_NEAREST)),
        Unary::ToInt => UnaryForm::Two((codes::TO_INT.pick(isa, lanes), None)),
        Unary::FromInt => UnaryForm::Two((codes::FROM_INT.pick(isa, lanes), None)),
        Unary::Shl(count) => UnaryForm::Shift(codes::SHL.pick(isa, lanes), count.into()),
        Unary::ShrArith(count) => UnaryForm::Shift(codes::SHR_ARITH.pick(isa, lanes), count.into()),
    }
}
