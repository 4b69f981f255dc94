//! Which machine instruction an operation is, at each width.
//!
//! All vector instructions are those with a VEX prefix. Where an operation on one lane has no scalar form, it
//! is the one on 128 bits.

use super::ir::{Binary, Lanes, Unary};
use iced_x86::Code::{self, *};

/// An instruction and what is in its immediate byte, if it has one.
pub type Form = (Code, Option<u32>);

/// Predicates of `vcmpps`. Ordered ones are false for NaN; those named quiet raise no exception for it.
const EQUAL_ORDERED_QUIET: u32 = 0;
const NOT_EQUAL_UNORDERED_QUIET: u32 = 4;
const LESS_ORDERED_QUIET: u32 = 17;
const LESS_EQUAL_ORDERED_QUIET: u32 = 18;

/// Rounding modes of `vroundps`. A mode of its own, and without an exception for what is not exact.
const ROUND_NEAREST: u32 = 8;
const ROUND_DOWN: u32 = 9;
const ROUND_UP: u32 = 10;
const ROUND_TRUNCATE: u32 = 11;

fn pick(lanes: Lanes, x8: Code, x4: Code, x1: Code) -> Code {
    match lanes {
        Lanes::X8 => x8,
        Lanes::X4 => x4,
        Lanes::X1 => x1,
    }
}

pub fn load(lanes: Lanes) -> Code {
    pick(lanes, VEX_Vmovups_ymm_ymmm256, VEX_Vmovups_xmm_xmmm128, VEX_Vmovss_xmm_m32)
}

pub fn store(lanes: Lanes) -> Code {
    pick(lanes, VEX_Vmovups_ymmm256_ymm, VEX_Vmovups_xmmm128_xmm, VEX_Vmovss_m32_xmm)
}

/// From memory. A scalar is only loaded.
pub fn broadcast(lanes: Lanes) -> Code {
    pick(lanes, VEX_Vbroadcastss_ymm_m32, VEX_Vbroadcastss_xmm_m32, VEX_Vmovss_xmm_m32)
}

pub fn blend(lanes: Lanes) -> Code {
    let x4 = VEX_Vblendvps_xmm_xmm_xmmm128_xmm;
    pick(lanes, VEX_Vblendvps_ymm_ymm_ymmm256_ymm, x4, x4)
}

pub fn fma(lanes: Lanes) -> Code {
    pick(
        lanes,
        VEX_Vfmadd231ps_ymm_ymm_ymmm256,
        VEX_Vfmadd231ps_xmm_xmm_xmmm128,
        VEX_Vfmadd231ss_xmm_xmm_xmmm32,
    )
}

pub fn mul_add(lanes: Lanes) -> Code {
    pick(
        lanes,
        VEX_Vfmadd213ps_ymm_ymm_ymmm256,
        VEX_Vfmadd213ps_xmm_xmm_xmmm128,
        VEX_Vfmadd213ss_xmm_xmm_xmmm32,
    )
}

pub fn fma_neg(lanes: Lanes) -> Code {
    pick(
        lanes,
        VEX_Vfnmadd231ps_ymm_ymm_ymmm256,
        VEX_Vfnmadd231ps_xmm_xmm_xmmm128,
        VEX_Vfnmadd231ss_xmm_xmm_xmmm32,
    )
}

pub fn binary(op: Binary, lanes: Lanes) -> Form {
    match op {
        Binary::Eq => (compare(lanes), Some(EQUAL_ORDERED_QUIET)),
        Binary::Ne => (compare(lanes), Some(NOT_EQUAL_UNORDERED_QUIET)),
        Binary::Lt => (compare(lanes), Some(LESS_ORDERED_QUIET)),
        Binary::Le => (compare(lanes), Some(LESS_EQUAL_ORDERED_QUIET)),
        _ => (arithmetic(op, lanes).unwrap_or_else(|| bits_or_integers(op, lanes)), None),
    }
}

fn compare(lanes: Lanes) -> Code {
    pick(
        lanes,
        VEX_Vcmpps_ymm_ymm_ymmm256_imm8,
        VEX_Vcmpps_xmm_xmm_xmmm128_imm8,
        VEX_Vcmpss_xmm_xmm_xmmm32_imm8,
    )
}

fn arithmetic(op: Binary, lanes: Lanes) -> Option<Code> {
    let (x8, x4, x1) = match op {
        Binary::Add => (VEX_Vaddps_ymm_ymm_ymmm256, VEX_Vaddps_xmm_xmm_xmmm128, VEX_Vaddss_xmm_xmm_xmmm32),
        Binary::Sub => (VEX_Vsubps_ymm_ymm_ymmm256, VEX_Vsubps_xmm_xmm_xmmm128, VEX_Vsubss_xmm_xmm_xmmm32),
        Binary::Mul => (VEX_Vmulps_ymm_ymm_ymmm256, VEX_Vmulps_xmm_xmm_xmmm128, VEX_Vmulss_xmm_xmm_xmmm32),
        Binary::Div => (VEX_Vdivps_ymm_ymm_ymmm256, VEX_Vdivps_xmm_xmm_xmmm128, VEX_Vdivss_xmm_xmm_xmmm32),
        Binary::Min => (VEX_Vminps_ymm_ymm_ymmm256, VEX_Vminps_xmm_xmm_xmmm128, VEX_Vminss_xmm_xmm_xmmm32),
        Binary::Max => (VEX_Vmaxps_ymm_ymm_ymmm256, VEX_Vmaxps_xmm_xmm_xmmm128, VEX_Vmaxss_xmm_xmm_xmmm32),
        _ => return None,
    };
    Some(pick(lanes, x8, x4, x1))
}

fn bits_or_integers(op: Binary, lanes: Lanes) -> Code {
    let (x8, x4) = match op {
        Binary::And => (VEX_Vandps_ymm_ymm_ymmm256, VEX_Vandps_xmm_xmm_xmmm128),
        Binary::Or => (VEX_Vorps_ymm_ymm_ymmm256, VEX_Vorps_xmm_xmm_xmmm128),
        Binary::Xor => (VEX_Vxorps_ymm_ymm_ymmm256, VEX_Vxorps_xmm_xmm_xmmm128),
        Binary::IntAdd => (VEX_Vpaddd_ymm_ymm_ymmm256, VEX_Vpaddd_xmm_xmm_xmmm128),
        Binary::IntSub => (VEX_Vpsubd_ymm_ymm_ymmm256, VEX_Vpsubd_xmm_xmm_xmmm128),
        Binary::IntMul => (VEX_Vpmulld_ymm_ymm_ymmm256, VEX_Vpmulld_xmm_xmm_xmmm128),
        Binary::IntMin => (VEX_Vpminsd_ymm_ymm_ymmm256, VEX_Vpminsd_xmm_xmm_xmmm128),
        Binary::IntMax => (VEX_Vpmaxsd_ymm_ymm_ymmm256, VEX_Vpmaxsd_xmm_xmm_xmmm128),
        Binary::IntEq => (VEX_Vpcmpeqd_ymm_ymm_ymmm256, VEX_Vpcmpeqd_xmm_xmm_xmmm128),
        Binary::IntGt => (VEX_Vpcmpgtd_ymm_ymm_ymmm256, VEX_Vpcmpgtd_xmm_xmm_xmmm128),
        // Those with a scalar form, which are not asked for here.
        _ => (INVALID, INVALID),
    };
    pick(lanes, x8, x4, x4)
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

pub fn unary(op: Unary, lanes: Lanes) -> UnaryForm {
    match op {
        Unary::Sqrt => match lanes {
            Lanes::X8 => UnaryForm::Two((VEX_Vsqrtps_ymm_ymmm256, None)),
            Lanes::X4 => UnaryForm::Two((VEX_Vsqrtps_xmm_xmmm128, None)),
            Lanes::X1 => UnaryForm::Scalar((VEX_Vsqrtss_xmm_xmm_xmmm32, None)),
        },
        Unary::Floor => round(lanes, ROUND_DOWN),
        Unary::Ceil => round(lanes, ROUND_UP),
        Unary::Trunc => round(lanes, ROUND_TRUNCATE),
        Unary::Nearest => round(lanes, ROUND_NEAREST),
        Unary::ToInt => packed(lanes, VEX_Vcvttps2dq_ymm_ymmm256, VEX_Vcvttps2dq_xmm_xmmm128),
        Unary::FromInt => packed(lanes, VEX_Vcvtdq2ps_ymm_ymmm256, VEX_Vcvtdq2ps_xmm_xmmm128),
        Unary::Shl(count) => shift(lanes, VEX_Vpslld_ymm_ymm_imm8, VEX_Vpslld_xmm_xmm_imm8, count),
        Unary::ShrArith(count) => shift(lanes, VEX_Vpsrad_ymm_ymm_imm8, VEX_Vpsrad_xmm_xmm_imm8, count),
    }
}

fn round(lanes: Lanes, mode: u32) -> UnaryForm {
    match lanes {
        Lanes::X8 => UnaryForm::Two((VEX_Vroundps_ymm_ymmm256_imm8, Some(mode))),
        Lanes::X4 => UnaryForm::Two((VEX_Vroundps_xmm_xmmm128_imm8, Some(mode))),
        Lanes::X1 => UnaryForm::Scalar((VEX_Vroundss_xmm_xmm_xmmm32_imm8, Some(mode))),
    }
}

fn packed(lanes: Lanes, x8: Code, x4: Code) -> UnaryForm {
    UnaryForm::Two((pick(lanes, x8, x4, x4), None))
}

fn shift(lanes: Lanes, x8: Code, x4: Code, count: u8) -> UnaryForm {
    UnaryForm::Shift(pick(lanes, x8, x4, x4), count.into())
}
