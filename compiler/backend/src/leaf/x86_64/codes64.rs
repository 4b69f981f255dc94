//! Which machine instruction an operation on lanes of 64 bits is: the table. The one of 32 bits is in `codes`.
//!
//! Where an operation on one lane has no scalar form, it is the one on 128 bits.

use iced_x86::Code::{self, *};
use onnxc_machine::vector::ir::Lanes;
use onnxc_machine::vector::isa::Isa;

/// With a VEX prefix for 4 lanes and 1; with an EVEX prefix for 8, 4 and 1.
pub(super) struct Codes64([Code; 2], [Code; 3]);

impl Codes64 {
    /// The vector IR has 8 lanes only where there is EVEX.
    pub(super) fn pick(&self, isa: Isa, lanes: Lanes) -> Code {
        let Codes64(vex, evex) = self;
        match (isa.evex(), lanes) {
            (true, Lanes::D8) => evex[0],
            (true, Lanes::D4) => evex[1],
            (true, Lanes::D1) => evex[2],
            (false, Lanes::D4) => vex[0],
            (false, Lanes::D1) => vex[1],
            _ => INVALID,
        }
    }
}

pub(super) const LOAD: Codes64 = Codes64(
    [VEX_Vmovupd_ymm_ymmm256, VEX_Vmovsd_xmm_m64],
    [EVEX_Vmovupd_zmm_k1z_zmmm512, EVEX_Vmovupd_ymm_k1z_ymmm256, EVEX_Vmovsd_xmm_k1z_m64],
);
pub(super) const STORE: Codes64 = Codes64(
    [VEX_Vmovupd_ymmm256_ymm, VEX_Vmovsd_m64_xmm],
    [EVEX_Vmovupd_zmmm512_k1z_zmm, EVEX_Vmovupd_ymmm256_k1z_ymm, EVEX_Vmovsd_m64_k1_xmm],
);
pub(super) const BROADCAST: Codes64 = Codes64(
    [VEX_Vbroadcastsd_ymm_m64, VEX_Vmovsd_xmm_m64],
    [EVEX_Vbroadcastsd_zmm_k1z_xmmm64, EVEX_Vbroadcastsd_ymm_k1z_xmmm64, EVEX_Vmovsd_xmm_k1z_m64],
);
pub(super) const SPLAT_LANE: Codes64 = Codes64(
    [VEX_Vbroadcastsd_ymm_xmm, INVALID],
    [EVEX_Vbroadcastsd_zmm_k1z_xmmm64, EVEX_Vbroadcastsd_ymm_k1z_xmmm64, INVALID],
);
pub(super) const BLEND: Codes64 = Codes64(
    [VEX_Vblendvpd_ymm_ymm_ymmm256_ymm, VEX_Vblendvpd_xmm_xmm_xmmm128_xmm],
    [
        EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vblendmpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vblendmpd_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const FMA: Codes64 = Codes64(
    [VEX_Vfmadd231pd_ymm_ymm_ymmm256, VEX_Vfmadd231sd_xmm_xmm_xmmm64],
    [
        EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vfmadd231pd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vfmadd231sd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const FMA_NEG: Codes64 = Codes64(
    [VEX_Vfnmadd231pd_ymm_ymm_ymmm256, VEX_Vfnmadd231sd_xmm_xmm_xmmm64],
    [
        EVEX_Vfnmadd231pd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vfnmadd231pd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vfnmadd231sd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const MUL_ADD: Codes64 = Codes64(
    [VEX_Vfmadd213pd_ymm_ymm_ymmm256, VEX_Vfmadd213sd_xmm_xmm_xmmm64],
    [
        EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vfmadd213pd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vfmadd213sd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const ADD: Codes64 = Codes64(
    [VEX_Vaddpd_ymm_ymm_ymmm256, VEX_Vaddsd_xmm_xmm_xmmm64],
    [
        EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vaddpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vaddsd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const SUB: Codes64 = Codes64(
    [VEX_Vsubpd_ymm_ymm_ymmm256, VEX_Vsubsd_xmm_xmm_xmmm64],
    [
        EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vsubpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vsubsd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const MUL: Codes64 = Codes64(
    [VEX_Vmulpd_ymm_ymm_ymmm256, VEX_Vmulsd_xmm_xmm_xmmm64],
    [
        EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vmulpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vmulsd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const DIV: Codes64 = Codes64(
    [VEX_Vdivpd_ymm_ymm_ymmm256, VEX_Vdivsd_xmm_xmm_xmmm64],
    [
        EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er,
        EVEX_Vdivpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vdivsd_xmm_k1z_xmm_xmmm64_er,
    ],
);
pub(super) const MIN: Codes64 = Codes64(
    [VEX_Vminpd_ymm_ymm_ymmm256, VEX_Vminsd_xmm_xmm_xmmm64],
    [
        EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae,
        EVEX_Vminpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vminsd_xmm_k1z_xmm_xmmm64_sae,
    ],
);
pub(super) const MAX: Codes64 = Codes64(
    [VEX_Vmaxpd_ymm_ymm_ymmm256, VEX_Vmaxsd_xmm_xmm_xmmm64],
    [
        EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae,
        EVEX_Vmaxpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vmaxsd_xmm_k1z_xmm_xmmm64_sae,
    ],
);
pub(super) const AND: Codes64 = Codes64(
    [VEX_Vandpd_ymm_ymm_ymmm256, VEX_Vandpd_xmm_xmm_xmmm128],
    [
        EVEX_Vandpd_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vandpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vandpd_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const OR: Codes64 = Codes64(
    [VEX_Vorpd_ymm_ymm_ymmm256, VEX_Vorpd_xmm_xmm_xmmm128],
    [EVEX_Vorpd_zmm_k1z_zmm_zmmm512b64, EVEX_Vorpd_ymm_k1z_ymm_ymmm256b64, EVEX_Vorpd_xmm_k1z_xmm_xmmm128b64],
);
pub(super) const XOR: Codes64 = Codes64(
    [VEX_Vxorpd_ymm_ymm_ymmm256, VEX_Vxorpd_xmm_xmm_xmmm128],
    [
        EVEX_Vxorpd_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vxorpd_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vxorpd_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const INT_ADD: Codes64 = Codes64(
    [VEX_Vpaddq_ymm_ymm_ymmm256, VEX_Vpaddq_xmm_xmm_xmmm128],
    [
        EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpaddq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpaddq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const INT_SUB: Codes64 = Codes64(
    [VEX_Vpsubq_ymm_ymm_ymmm256, VEX_Vpsubq_xmm_xmm_xmmm128],
    [
        EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const LOW_MUL: Codes64 = Codes64(
    [VEX_Vpmuludq_ymm_ymm_ymmm256, VEX_Vpmuludq_xmm_xmm_xmmm128],
    [
        EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpmuludq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpmuludq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const INT_MUL: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpmullq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpmullq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const INT_MIN: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vpminsq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpminsq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpminsq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const INT_MAX: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vpmaxsq_zmm_k1z_zmm_zmmm512b64,
        EVEX_Vpmaxsq_ymm_k1z_ymm_ymmm256b64,
        EVEX_Vpmaxsq_xmm_k1z_xmm_xmmm128b64,
    ],
);
pub(super) const COMPARE: Codes64 = Codes64(
    [VEX_Vcmppd_ymm_ymm_ymmm256_imm8, VEX_Vcmpsd_xmm_xmm_xmmm64_imm8],
    [
        EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae,
        EVEX_Vcmppd_kr_k1_ymm_ymmm256b64_imm8,
        EVEX_Vcmpsd_kr_k1_xmm_xmmm64_imm8_sae,
    ],
);
pub(super) const INT_EQ: Codes64 = Codes64(
    [VEX_Vpcmpeqq_ymm_ymm_ymmm256, VEX_Vpcmpeqq_xmm_xmm_xmmm128],
    [
        EVEX_Vpcmpeqq_kr_k1_zmm_zmmm512b64,
        EVEX_Vpcmpeqq_kr_k1_ymm_ymmm256b64,
        EVEX_Vpcmpeqq_kr_k1_xmm_xmmm128b64,
    ],
);
pub(super) const INT_GT: Codes64 = Codes64(
    [VEX_Vpcmpgtq_ymm_ymm_ymmm256, VEX_Vpcmpgtq_xmm_xmm_xmmm128],
    [
        EVEX_Vpcmpgtq_kr_k1_zmm_zmmm512b64,
        EVEX_Vpcmpgtq_kr_k1_ymm_ymmm256b64,
        EVEX_Vpcmpgtq_kr_k1_xmm_xmmm128b64,
    ],
);
pub(super) const SQRT: Codes64 = Codes64(
    [VEX_Vsqrtpd_ymm_ymmm256, VEX_Vsqrtsd_xmm_xmm_xmmm64],
    [EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er, EVEX_Vsqrtpd_ymm_k1z_ymmm256b64, EVEX_Vsqrtsd_xmm_k1z_xmm_xmmm64_er],
);
pub(super) const ROUND: Codes64 = Codes64(
    [VEX_Vroundpd_ymm_ymmm256_imm8, VEX_Vroundsd_xmm_xmm_xmmm64_imm8],
    [
        EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae,
        EVEX_Vrndscalepd_ymm_k1z_ymmm256b64_imm8,
        EVEX_Vrndscalesd_xmm_k1z_xmm_xmmm64_imm8_sae,
    ],
);
pub(super) const SHL: Codes64 = Codes64(
    [VEX_Vpsllq_ymm_ymm_imm8, VEX_Vpsllq_xmm_xmm_imm8],
    [
        EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8,
        EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8,
        EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8,
    ],
);
pub(super) const SHR: Codes64 = Codes64(
    [VEX_Vpsrlq_ymm_ymm_imm8, VEX_Vpsrlq_xmm_xmm_imm8],
    [
        EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8,
        EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8,
        EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8,
    ],
);
pub(super) const SHR_ARITH: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vpsraq_zmm_k1z_zmmm512b64_imm8,
        EVEX_Vpsraq_ymm_k1z_ymmm256b64_imm8,
        EVEX_Vpsraq_xmm_k1z_xmmm128b64_imm8,
    ],
);

// Between widths, by the lanes of 64 bits.

pub(super) const WIDEN: Codes64 = Codes64(
    [VEX_Vcvtps2pd_ymm_xmmm128, VEX_Vcvtps2pd_xmm_xmmm64],
    [
        EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae,
        EVEX_Vcvtps2pd_ymm_k1z_xmmm128b32,
        EVEX_Vcvtps2pd_xmm_k1z_xmmm64b32,
    ],
);
pub(super) const NARROW: Codes64 = Codes64(
    [VEX_Vcvtpd2ps_xmm_ymmm256, VEX_Vcvtpd2ps_xmm_xmmm128],
    [
        EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er,
        EVEX_Vcvtpd2ps_xmm_k1z_ymmm256b64,
        EVEX_Vcvtpd2ps_xmm_k1z_xmmm128b64,
    ],
);
pub(super) const INT_TO_DOUBLE: Codes64 = Codes64(
    [VEX_Vcvtdq2pd_ymm_xmmm128, VEX_Vcvtdq2pd_xmm_xmmm64],
    [
        EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er,
        EVEX_Vcvtdq2pd_ymm_k1z_xmmm128b32,
        EVEX_Vcvtdq2pd_xmm_k1z_xmmm64b32,
    ],
);
pub(super) const DOUBLE_TO_INT: Codes64 = Codes64(
    [VEX_Vcvttpd2dq_xmm_ymmm256, VEX_Vcvttpd2dq_xmm_xmmm128],
    [
        EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae,
        EVEX_Vcvttpd2dq_xmm_k1z_ymmm256b64,
        EVEX_Vcvttpd2dq_xmm_k1z_xmmm128b64,
    ],
);
pub(super) const EXTEND: Codes64 = Codes64(
    [VEX_Vpmovsxdq_ymm_xmmm128, VEX_Vpmovsxdq_xmm_xmmm64],
    [EVEX_Vpmovsxdq_zmm_k1z_ymmm256, EVEX_Vpmovsxdq_ymm_k1z_xmmm128, EVEX_Vpmovsxdq_xmm_k1z_xmmm64],
);
pub(super) const TRUNCATE: Codes64 =
    Codes64([INVALID, INVALID], [EVEX_Vpmovqd_ymmm256_k1z_zmm, EVEX_Vpmovqd_xmmm128_k1z_ymm, INVALID]);
pub(super) const LONG_TO_DOUBLE: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er,
        EVEX_Vcvtqq2pd_ymm_k1z_ymmm256b64,
        EVEX_Vcvtqq2pd_xmm_k1z_xmmm128b64,
    ],
);
pub(super) const DOUBLE_TO_LONG: Codes64 = Codes64(
    [INVALID, INVALID],
    [
        EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae,
        EVEX_Vcvttpd2qq_ymm_k1z_ymmm256b64,
        EVEX_Vcvttpd2qq_xmm_k1z_xmmm128b64,
    ],
);
