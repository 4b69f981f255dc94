//! How an operation is written for the machine: its instruction, what is in its immediate byte, and how its operands are
//! arranged.

use super::codes;
use super::codes64::{self, Codes64};
use iced_x86::Code;
use onnxc_machine::vector::ir::{Binary, Compare, Convert, Lanes, Logic, Unary};
use onnxc_machine::vector::isa::Isa;

/// An instruction and what is in its immediate byte, if it has one.
pub type Form = (Code, Option<u32>);

/// The instruction of a name, from the table for lanes of this width.
macro_rules! code {
    ($name:ident, $isa:expr, $lanes:expr) => {
        match $lanes.width() {
            8 => $crate::leaf::x86_64::codes64::$name.pick($isa, $lanes),
            _ => $crate::leaf::x86_64::codes::$name.pick($isa, $lanes),
        }
    };
}
pub(super) use code;

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
    let code = match op {
        Binary::Add => code!(ADD, isa, lanes),
        Binary::Sub => code!(SUB, isa, lanes),
        Binary::Mul => code!(MUL, isa, lanes),
        Binary::Div => code!(DIV, isa, lanes),
        Binary::Min => code!(MIN, isa, lanes),
        Binary::Max => code!(MAX, isa, lanes),
        Binary::And => code!(AND, isa, lanes),
        Binary::Or => code!(OR, isa, lanes),
        Binary::Xor => code!(XOR, isa, lanes),
        Binary::IntAdd => code!(INT_ADD, isa, lanes),
        Binary::IntSub => code!(INT_SUB, isa, lanes),
        Binary::IntMul => code!(INT_MUL, isa, lanes),
        Binary::IntMin => code!(INT_MIN, isa, lanes),
        Binary::IntMax => code!(INT_MAX, isa, lanes),
        Binary::LowMul => codes64::LOW_MUL.pick(isa, lanes),
        Binary::DotPairs => codes::DOT_PAIRS.pick(isa, lanes),
        Binary::DotBytes => codes::DOT_BYTES.pick(isa, lanes),
        Binary::ShlBy => codes::SHL_BY.pick(isa, lanes),
        // No instruction stands for these: `Isa::has`.
        Binary::Minimum
        | Binary::Maximum
        | Binary::Rem
        | Binary::IntDiv
        | Binary::UnsignedDiv
        | Binary::ShrBy
        | Binary::ShrArithBy
        | Binary::DotHalves
        | Binary::AddHalves => Code::INVALID,
    };
    (code, None)
}

pub fn compare(op: Compare, isa: Isa, lanes: Lanes) -> Form {
    let predicate = match op {
        Compare::Eq => EQUAL_ORDERED_QUIET,
        Compare::Ne => NOT_EQUAL_UNORDERED_QUIET,
        Compare::Lt => LESS_ORDERED_QUIET,
        Compare::Le => LESS_EQUAL_ORDERED_QUIET,
        Compare::IntEq => return (code!(INT_EQ, isa, lanes), None),
        Compare::IntGt => return (code!(INT_GT, isa, lanes), None),
    };
    (code!(COMPARE, isa, lanes), Some(predicate))
}

/// Of mask registers, or of vectors where masks are those.
pub fn logic(op: Logic, isa: Isa, lanes: Lanes) -> Form {
    let code = match (op, isa.evex()) {
        (Logic::And, true) => Code::VEX_Kandw_kr_kr_kr,
        (Logic::Or, true) => Code::VEX_Korw_kr_kr_kr,
        (Logic::Xor, true) => Code::VEX_Kxorw_kr_kr_kr,
        (Logic::And, false) => code!(AND, isa, lanes),
        (Logic::Or, false) => code!(OR, isa, lanes),
        (Logic::Xor, false) => code!(XOR, isa, lanes),
    };
    (code, None)
}

/// A mask register as a vector.
pub fn mask_bits(lanes: Lanes) -> Code {
    match lanes {
        Lanes::D8 => Code::EVEX_Vpmovm2q_zmm_kr,
        Lanes::D4 => Code::EVEX_Vpmovm2q_ymm_kr,
        Lanes::D1 | Lanes::D2 => Code::EVEX_Vpmovm2q_xmm_kr,
        Lanes::X16 => Code::EVEX_Vpmovm2d_zmm_kr,
        Lanes::X8 => Code::EVEX_Vpmovm2d_ymm_kr,
        Lanes::X4 | Lanes::X2 | Lanes::X1 => Code::EVEX_Vpmovm2d_xmm_kr,
    }
}

/// The mask register of a vector.
pub fn mask_of(lanes: Lanes) -> Code {
    match lanes {
        Lanes::D8 => Code::EVEX_Vpmovq2m_kr_zmm,
        Lanes::D4 => Code::EVEX_Vpmovq2m_kr_ymm,
        Lanes::D1 | Lanes::D2 => Code::EVEX_Vpmovq2m_kr_xmm,
        Lanes::X16 => Code::EVEX_Vpmovd2m_kr_zmm,
        Lanes::X8 => Code::EVEX_Vpmovd2m_kr_ymm,
        Lanes::X4 | Lanes::X2 | Lanes::X1 => Code::EVEX_Vpmovd2m_kr_xmm,
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
    let float = |code: Code, imm| match lanes.is_scalar() {
        true => UnaryForm::Scalar((code, imm)),
        false => UnaryForm::Two((code, imm)),
    };
    match op {
        Unary::Sqrt => float(code!(SQRT, isa, lanes), None),
        Unary::Floor => float(code!(ROUND, isa, lanes), Some(ROUND_DOWN)),
        Unary::Ceil => float(code!(ROUND, isa, lanes), Some(ROUND_UP)),
        Unary::Trunc => float(code!(ROUND, isa, lanes), Some(ROUND_TRUNCATE)),
        Unary::Nearest => float(code!(ROUND, isa, lanes), Some(ROUND_NEAREST)),
        Unary::ToInt => UnaryForm::Two((codes::TO_INT.pick(isa, lanes), None)),
        Unary::ToIntNearest => UnaryForm::Two((codes::TO_INT_NEAREST.pick(isa, lanes), None)),
        Unary::FromInt => UnaryForm::Two((codes::FROM_INT.pick(isa, lanes), None)),
        // No instruction stands for this one, either.
        Unary::RoundBf16 => UnaryForm::Two((Code::INVALID, None)),
        Unary::Shl(count) => UnaryForm::Shift(code!(SHL, isa, lanes), count.into()),
        Unary::ShrArith(count) => UnaryForm::Shift(code!(SHR_ARITH, isa, lanes), count.into()),
        Unary::ShrArithHalves(count) => {
            UnaryForm::Shift(codes::SHR_ARITH_HALVES.pick(isa, lanes), count.into())
        }
        Unary::Shr(count) => UnaryForm::Shift(code!(SHR, isa, lanes), count.into()),
        Unary::ShrHalves(count) => UnaryForm::Shift(codes::SHR_HALVES.pick(isa, lanes), count.into()),
    }
}

/// What changes the width of lanes in one instruction, and the lanes of its operand and of its result.
pub fn convert(op: Convert, isa: Isa, lanes: Lanes) -> (Code, Lanes, Lanes) {
    let (codes, from, to): (Codes64, _, _) = match op {
        Convert::Widen => (codes64::WIDEN, lanes.narrow(), lanes),
        Convert::Narrow => (codes64::NARROW, lanes, lanes.narrow()),
        Convert::IntToDouble => (codes64::INT_TO_DOUBLE, lanes.narrow(), lanes),
        Convert::DoubleToInt => (codes64::DOUBLE_TO_INT, lanes, lanes.narrow()),
        Convert::Extend => (codes64::EXTEND, lanes.narrow(), lanes),
        Convert::Truncate => (codes64::TRUNCATE, lanes, lanes.narrow()),
        Convert::LongToDouble => (codes64::LONG_TO_DOUBLE, lanes, lanes),
        Convert::DoubleToLong | Convert::SaturateToLong => (codes64::DOUBLE_TO_LONG, lanes, lanes),
    };
    (codes.pick(isa, lanes), from, to)
}
