//! How an operation is written for the machine: its instruction, what is in its immediate byte, and how its operands are
//! arranged. Then the table of instructions on lanes of 32 bits, at each width and in each encoding.
//!
//! Where an operation on one lane has no scalar form, it is the one on 128 bits.

use super::codes64::{self, Codes64};
use iced_x86::Code::{self, *};
use onnxc_machine::vector::ir::{Binary, Compare, Convert, Lanes, Logic, Unary};
use onnxc_machine::vector::isa::Isa;

/// With a VEX prefix for 8, 4 and 1 lanes; with an EVEX prefix for 16, 8, 4 and 1.
pub(super) struct Codes([Code; 3], [Code; 4]);

impl Codes {
    /// The vector IR has 16 lanes only where there is EVEX.
    pub(super) fn pick(&self, isa: Isa, lanes: Lanes) -> Code {
        let Codes(vex, evex) = self;
        match (isa.evex(), lanes) {
            (true, Lanes::X16) => evex[0],
            (true, Lanes::X8) => evex[1],
            (true, Lanes::X4) => evex[2],
            (true, Lanes::X1) => evex[3],
            (false, Lanes::X16) => INVALID,
            (false, Lanes::X8) => vex[0],
            (false, Lanes::X4) => vex[1],
            (false, Lanes::X1) => vex[2],
            (_, Lanes::X2 | Lanes::D1 | Lanes::D2 | Lanes::D4 | Lanes::D8) => INVALID,
        }
    }
}

/// An instruction and what is in its immediate byte, if it has one.
pub(super) type CodeForm = (Code, Option<u32>);

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

pub(super) fn binary(op: Binary, isa: Isa, lanes: Lanes) -> CodeForm {
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
        Binary::DotPairs => DOT_PAIRS.pick(isa, lanes),
        Binary::DotBytes => DOT_BYTES.pick(isa, lanes),
        Binary::ShlBy => SHL_BY.pick(isa, lanes),
        // `Isa::has` answers for each operation, and tests emit all that it has: no instruction stands for others.
        _ => Code::INVALID,
    };
    (code, None)
}

pub(super) fn compare(op: Compare, isa: Isa, lanes: Lanes) -> CodeForm {
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
pub(super) fn logic(op: Logic, isa: Isa, lanes: Lanes) -> CodeForm {
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
pub(super) fn mask_bits(lanes: Lanes) -> Code {
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
pub(super) fn mask_of(lanes: Lanes) -> Code {
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
pub(super) enum UnaryForm {
    /// `dst, a|mem`
    Two(CodeForm),
    /// `dst, upper, a|mem`: a scalar, the lanes above it from `upper`.
    Scalar(CodeForm),
    /// `dst, a, count`
    Shift(Code, u32),
}

pub(super) fn unary(op: Unary, isa: Isa, lanes: Lanes) -> UnaryForm {
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
        Unary::ToInt => UnaryForm::Two((TO_INT.pick(isa, lanes), None)),
        Unary::ToIntNearest => UnaryForm::Two((TO_INT_NEAREST.pick(isa, lanes), None)),
        Unary::FromInt => UnaryForm::Two((FROM_INT.pick(isa, lanes), None)),
        Unary::Shl(count) => UnaryForm::Shift(code!(SHL, isa, lanes), count.into()),
        Unary::ShrArith(count) => UnaryForm::Shift(code!(SHR_ARITH, isa, lanes), count.into()),
        Unary::ShrArithHalves(count) => UnaryForm::Shift(SHR_ARITH_HALVES.pick(isa, lanes), count.into()),
        Unary::Shr(count) => UnaryForm::Shift(code!(SHR, isa, lanes), count.into()),
        Unary::ShrHalves(count) => UnaryForm::Shift(SHR_HALVES.pick(isa, lanes), count.into()),
        // As in `binary`.
        _ => UnaryForm::Two((Code::INVALID, None)),
    }
}

/// What changes the width of lanes in one instruction, and the lanes of its operand and of its result.
pub(super) fn convert(op: Convert, isa: Isa, lanes: Lanes) -> (Code, Lanes, Lanes) {
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

pub(super) const LOAD: Codes = Codes(
    [VEX_Vmovups_ymm_ymmm256, VEX_Vmovups_xmm_xmmm128, VEX_Vmovss_xmm_m32],
    [
        EVEX_Vmovups_zmm_k1z_zmmm512,
        EVEX_Vmovups_ymm_k1z_ymmm256,
        EVEX_Vmovups_xmm_k1z_xmmm128,
        EVEX_Vmovss_xmm_k1z_m32,
    ],
);
pub(super) const STORE: Codes = Codes(
    [VEX_Vmovups_ymmm256_ymm, VEX_Vmovups_xmmm128_xmm, VEX_Vmovss_m32_xmm],
    [
        EVEX_Vmovups_zmmm512_k1z_zmm,
        EVEX_Vmovups_ymmm256_k1z_ymm,
        EVEX_Vmovups_xmmm128_k1z_xmm,
        EVEX_Vmovss_m32_k1_xmm,
    ],
);
pub(super) const MOVE: Codes = Codes(
    [VEX_Vmovaps_ymm_ymmm256, VEX_Vmovaps_xmm_xmmm128, VEX_Vmovaps_xmm_xmmm128],
    [
        EVEX_Vmovaps_zmm_k1z_zmmm512,
        EVEX_Vmovaps_ymm_k1z_ymmm256,
        EVEX_Vmovaps_xmm_k1z_xmmm128,
        EVEX_Vmovaps_xmm_k1z_xmmm128,
    ],
);
pub(super) const BROADCAST: Codes = Codes(
    [VEX_Vbroadcastss_ymm_m32, VEX_Vbroadcastss_xmm_m32, VEX_Vmovss_xmm_m32],
    [
        EVEX_Vbroadcastss_zmm_k1z_xmmm32,
        EVEX_Vbroadcastss_ymm_k1z_xmmm32,
        EVEX_Vbroadcastss_xmm_k1z_xmmm32,
        EVEX_Vmovss_xmm_k1z_m32,
    ],
);
pub(super) const SPLAT_LANE: Codes = Codes(
    [VEX_Vbroadcastss_ymm_xmm, VEX_Vbroadcastss_xmm_xmm, VEX_Vbroadcastss_xmm_xmm],
    [
        EVEX_Vbroadcastss_zmm_k1z_xmmm32,
        EVEX_Vbroadcastss_ymm_k1z_xmmm32,
        EVEX_Vbroadcastss_xmm_k1z_xmmm32,
        EVEX_Vbroadcastss_xmm_k1z_xmmm32,
    ],
);
pub(super) const BLEND: Codes = Codes(
    [VEX_Vblendvps_ymm_ymm_ymmm256_ymm, VEX_Vblendvps_xmm_xmm_xmmm128_xmm, VEX_Vblendvps_xmm_xmm_xmmm128_xmm],
    [
        EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vblendmps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const FMA: Codes = Codes(
    [VEX_Vfmadd231ps_ymm_ymm_ymmm256, VEX_Vfmadd231ps_xmm_xmm_xmmm128, VEX_Vfmadd231ss_xmm_xmm_xmmm32],
    [
        EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vfmadd231ss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const FMA_NEG: Codes = Codes(
    [VEX_Vfnmadd231ps_ymm_ymm_ymmm256, VEX_Vfnmadd231ps_xmm_xmm_xmmm128, VEX_Vfnmadd231ss_xmm_xmm_xmmm32],
    [
        EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vfnmadd231ps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vfnmadd231ps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vfnmadd231ss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const MUL_ADD: Codes = Codes(
    [VEX_Vfmadd213ps_ymm_ymm_ymmm256, VEX_Vfmadd213ps_xmm_xmm_xmmm128, VEX_Vfmadd213ss_xmm_xmm_xmmm32],
    [
        EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vfmadd213ss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const ADD: Codes = Codes(
    [VEX_Vaddps_ymm_ymm_ymmm256, VEX_Vaddps_xmm_xmm_xmmm128, VEX_Vaddss_xmm_xmm_xmmm32],
    [
        EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vaddss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const SUB: Codes = Codes(
    [VEX_Vsubps_ymm_ymm_ymmm256, VEX_Vsubps_xmm_xmm_xmmm128, VEX_Vsubss_xmm_xmm_xmmm32],
    [
        EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vsubss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const MUL: Codes = Codes(
    [VEX_Vmulps_ymm_ymm_ymmm256, VEX_Vmulps_xmm_xmm_xmmm128, VEX_Vmulss_xmm_xmm_xmmm32],
    [
        EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vmulss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const DIV: Codes = Codes(
    [VEX_Vdivps_ymm_ymm_ymmm256, VEX_Vdivps_xmm_xmm_xmmm128, VEX_Vdivss_xmm_xmm_xmmm32],
    [
        EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er,
        EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vdivss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const MIN: Codes = Codes(
    [VEX_Vminps_ymm_ymm_ymmm256, VEX_Vminps_xmm_xmm_xmmm128, VEX_Vminss_xmm_xmm_xmmm32],
    [
        EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae,
        EVEX_Vminps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vminps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vminss_xmm_k1z_xmm_xmmm32_sae,
    ],
);
pub(super) const MAX: Codes = Codes(
    [VEX_Vmaxps_ymm_ymm_ymmm256, VEX_Vmaxps_xmm_xmm_xmmm128, VEX_Vmaxss_xmm_xmm_xmmm32],
    [
        EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae,
        EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vmaxss_xmm_k1z_xmm_xmmm32_sae,
    ],
);
pub(super) const AND: Codes = Codes(
    [VEX_Vandps_ymm_ymm_ymmm256, VEX_Vandps_xmm_xmm_xmmm128, VEX_Vandps_xmm_xmm_xmmm128],
    [
        EVEX_Vandps_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vandps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vandps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vandps_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const OR: Codes = Codes(
    [VEX_Vorps_ymm_ymm_ymmm256, VEX_Vorps_xmm_xmm_xmmm128, VEX_Vorps_xmm_xmm_xmmm128],
    [
        EVEX_Vorps_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vorps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vorps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vorps_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const XOR: Codes = Codes(
    [VEX_Vxorps_ymm_ymm_ymmm256, VEX_Vxorps_xmm_xmm_xmmm128, VEX_Vxorps_xmm_xmm_xmmm128],
    [
        EVEX_Vxorps_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vxorps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vxorps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vxorps_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const INT_ADD: Codes = Codes(
    [VEX_Vpaddd_ymm_ymm_ymmm256, VEX_Vpaddd_xmm_xmm_xmmm128, VEX_Vpaddd_xmm_xmm_xmmm128],
    [
        EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const INT_SUB: Codes = Codes(
    [VEX_Vpsubd_ymm_ymm_ymmm256, VEX_Vpsubd_xmm_xmm_xmmm128, VEX_Vpsubd_xmm_xmm_xmmm128],
    [
        EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const INT_MUL: Codes = Codes(
    [VEX_Vpmulld_ymm_ymm_ymmm256, VEX_Vpmulld_xmm_xmm_xmmm128, VEX_Vpmulld_xmm_xmm_xmmm128],
    [
        EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const INT_MIN: Codes = Codes(
    [VEX_Vpminsd_ymm_ymm_ymmm256, VEX_Vpminsd_xmm_xmm_xmmm128, VEX_Vpminsd_xmm_xmm_xmmm128],
    [
        EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const INT_MAX: Codes = Codes(
    [VEX_Vpmaxsd_ymm_ymm_ymmm256, VEX_Vpmaxsd_xmm_xmm_xmmm128, VEX_Vpmaxsd_xmm_xmm_xmmm128],
    [
        EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const COMPARE: Codes = Codes(
    [VEX_Vcmpps_ymm_ymm_ymmm256_imm8, VEX_Vcmpps_xmm_xmm_xmmm128_imm8, VEX_Vcmpss_xmm_xmm_xmmm32_imm8],
    [
        EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae,
        EVEX_Vcmpps_kr_k1_ymm_ymmm256b32_imm8,
        EVEX_Vcmpps_kr_k1_xmm_xmmm128b32_imm8,
        EVEX_Vcmpss_kr_k1_xmm_xmmm32_imm8_sae,
    ],
);
pub(super) const INT_EQ: Codes = Codes(
    [VEX_Vpcmpeqd_ymm_ymm_ymmm256, VEX_Vpcmpeqd_xmm_xmm_xmmm128, VEX_Vpcmpeqd_xmm_xmm_xmmm128],
    [
        EVEX_Vpcmpeqd_kr_k1_zmm_zmmm512b32,
        EVEX_Vpcmpeqd_kr_k1_ymm_ymmm256b32,
        EVEX_Vpcmpeqd_kr_k1_xmm_xmmm128b32,
        EVEX_Vpcmpeqd_kr_k1_xmm_xmmm128b32,
    ],
);
pub(super) const INT_GT: Codes = Codes(
    [VEX_Vpcmpgtd_ymm_ymm_ymmm256, VEX_Vpcmpgtd_xmm_xmm_xmmm128, VEX_Vpcmpgtd_xmm_xmm_xmmm128],
    [
        EVEX_Vpcmpgtd_kr_k1_zmm_zmmm512b32,
        EVEX_Vpcmpgtd_kr_k1_ymm_ymmm256b32,
        EVEX_Vpcmpgtd_kr_k1_xmm_xmmm128b32,
        EVEX_Vpcmpgtd_kr_k1_xmm_xmmm128b32,
    ],
);
pub(super) const SQRT: Codes = Codes(
    [VEX_Vsqrtps_ymm_ymmm256, VEX_Vsqrtps_xmm_xmmm128, VEX_Vsqrtss_xmm_xmm_xmmm32],
    [
        EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er,
        EVEX_Vsqrtps_ymm_k1z_ymmm256b32,
        EVEX_Vsqrtps_xmm_k1z_xmmm128b32,
        EVEX_Vsqrtss_xmm_k1z_xmm_xmmm32_er,
    ],
);
pub(super) const ROUND: Codes = Codes(
    [VEX_Vroundps_ymm_ymmm256_imm8, VEX_Vroundps_xmm_xmmm128_imm8, VEX_Vroundss_xmm_xmm_xmmm32_imm8],
    [
        EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae,
        EVEX_Vrndscaleps_ymm_k1z_ymmm256b32_imm8,
        EVEX_Vrndscaleps_xmm_k1z_xmmm128b32_imm8,
        EVEX_Vrndscaless_xmm_k1z_xmm_xmmm32_imm8_sae,
    ],
);
pub(super) const TO_INT: Codes = Codes(
    [VEX_Vcvttps2dq_ymm_ymmm256, VEX_Vcvttps2dq_xmm_xmmm128, VEX_Vcvttps2dq_xmm_xmmm128],
    [
        EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae,
        EVEX_Vcvttps2dq_ymm_k1z_ymmm256b32,
        EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32,
        EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32,
    ],
);
pub(super) const TO_INT_NEAREST: Codes = Codes(
    [VEX_Vcvtps2dq_ymm_ymmm256, VEX_Vcvtps2dq_xmm_xmmm128, VEX_Vcvtps2dq_xmm_xmmm128],
    [
        EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er,
        EVEX_Vcvtps2dq_ymm_k1z_ymmm256b32,
        EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32,
        EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32,
    ],
);
pub(super) const FROM_INT: Codes = Codes(
    [VEX_Vcvtdq2ps_ymm_ymmm256, VEX_Vcvtdq2ps_xmm_xmmm128, VEX_Vcvtdq2ps_xmm_xmmm128],
    [
        EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er,
        EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32,
        EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32,
        EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32,
    ],
);
pub(super) const SHL: Codes = Codes(
    [VEX_Vpslld_ymm_ymm_imm8, VEX_Vpslld_xmm_xmm_imm8, VEX_Vpslld_xmm_xmm_imm8],
    [
        EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8,
        EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8,
        EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8,
        EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8,
    ],
);
pub(super) const SHR_ARITH: Codes = Codes(
    [VEX_Vpsrad_ymm_ymm_imm8, VEX_Vpsrad_xmm_xmm_imm8, VEX_Vpsrad_xmm_xmm_imm8],
    [
        EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8,
        EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8,
        EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8,
        EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8,
    ],
);
pub(super) const SHR_ARITH_HALVES: Codes = Codes(
    [VEX_Vpsraw_ymm_ymm_imm8, VEX_Vpsraw_xmm_xmm_imm8, VEX_Vpsraw_xmm_xmm_imm8],
    [
        EVEX_Vpsraw_zmm_k1z_zmmm512_imm8,
        EVEX_Vpsraw_ymm_k1z_ymmm256_imm8,
        EVEX_Vpsraw_xmm_k1z_xmmm128_imm8,
        EVEX_Vpsraw_xmm_k1z_xmmm128_imm8,
    ],
);
pub(super) const SHR_HALVES: Codes = Codes(
    [VEX_Vpsrlw_ymm_ymm_imm8, VEX_Vpsrlw_xmm_xmm_imm8, VEX_Vpsrlw_xmm_xmm_imm8],
    [
        EVEX_Vpsrlw_zmm_k1z_zmmm512_imm8,
        EVEX_Vpsrlw_ymm_k1z_ymmm256_imm8,
        EVEX_Vpsrlw_xmm_k1z_xmmm128_imm8,
        EVEX_Vpsrlw_xmm_k1z_xmmm128_imm8,
    ],
);
pub(super) const DOT_PAIRS: Codes = Codes(
    [VEX_Vpmaddwd_ymm_ymm_ymmm256, VEX_Vpmaddwd_xmm_xmm_xmmm128, VEX_Vpmaddwd_xmm_xmm_xmmm128],
    [
        EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512,
        EVEX_Vpmaddwd_ymm_k1z_ymm_ymmm256,
        EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128,
        EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128,
    ],
);
pub(super) const DOT_BYTES: Codes = Codes(
    [VEX_Vpmaddubsw_ymm_ymm_ymmm256, VEX_Vpmaddubsw_xmm_xmm_xmmm128, VEX_Vpmaddubsw_xmm_xmm_xmmm128],
    [
        EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512,
        EVEX_Vpmaddubsw_ymm_k1z_ymm_ymmm256,
        EVEX_Vpmaddubsw_xmm_k1z_xmm_xmmm128,
        EVEX_Vpmaddubsw_xmm_k1z_xmm_xmmm128,
    ],
);
/// Whose wider forms take a lane from anywhere.
pub(super) const PERMUTE: Codes =
    Codes([INVALID, INVALID, INVALID], [EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32, INVALID, INVALID, INVALID]);
/// Any order of bytes.
pub(super) const PERMUTE_BYTES: Code = EVEX_Vpermb_zmm_k1z_zmm_zmmm512;
pub(super) const INSERT_QUARTER: Code = EVEX_Vinsertf32x4_zmm_k1z_zmm_xmmm128_imm8;
pub(super) const DOT: Codes = Codes(
    [VEX_Vpdpbusd_ymm_ymm_ymmm256, VEX_Vpdpbusd_xmm_xmm_xmmm128, VEX_Vpdpbusd_xmm_xmm_xmmm128],
    [
        EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32,
    ],
);
/// With an EVEX prefix only: no machine with VEX alone has it.
pub(super) const DOT_BF16: Codes = Codes(
    [INVALID, INVALID, INVALID],
    [
        EVEX_Vdpbf16ps_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vdpbf16ps_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vdpbf16ps_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vdpbf16ps_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const ADD_DOT_PAIRS: Codes = Codes(
    [VEX_Vpdpwssd_ymm_ymm_ymmm256, VEX_Vpdpwssd_xmm_xmm_xmmm128, VEX_Vpdpwssd_xmm_xmm_xmmm128],
    [
        EVEX_Vpdpwssd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpdpwssd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpdpwssd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpdpwssd_xmm_k1z_xmm_xmmm128b32,
    ],
);
pub(super) const SHR: Codes = Codes(
    [VEX_Vpsrld_ymm_ymm_imm8, VEX_Vpsrld_xmm_xmm_imm8, VEX_Vpsrld_xmm_xmm_imm8],
    [
        EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8,
        EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8,
        EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8,
        EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8,
    ],
);
pub(super) const SHL_BY: Codes = Codes(
    [VEX_Vpsllvd_ymm_ymm_ymmm256, VEX_Vpsllvd_xmm_xmm_xmmm128, VEX_Vpsllvd_xmm_xmm_xmmm128],
    [
        EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32,
        EVEX_Vpsllvd_ymm_k1z_ymm_ymmm256b32,
        EVEX_Vpsllvd_xmm_k1z_xmm_xmmm128b32,
        EVEX_Vpsllvd_xmm_k1z_xmm_xmmm128b32,
    ],
);
