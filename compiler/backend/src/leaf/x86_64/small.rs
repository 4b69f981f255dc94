//! Instructions for elements of less than 32 bits: how they are widened when loaded, and packed before they are stored.

use iced_x86::Code::{self, *};
use onnxc_machine::vector::ir::{Lanes, Small};
use onnxc_machine::vector::isa::Isa;

/// Loads small elements into lanes of 32 bits.
pub(super) fn load(small: Small, isa: Isa, lanes: Lanes) -> Code {
    let codes = match small {
        Small::F16 => return half_to_single(isa, lanes),
        Small::I8 => [
            VEX_Vpmovsxbd_ymm_xmmm64,
            VEX_Vpmovsxbd_xmm_xmmm32,
            EVEX_Vpmovsxbd_zmm_k1z_xmmm128,
            EVEX_Vpmovsxbd_ymm_k1z_xmmm64,
            EVEX_Vpmovsxbd_xmm_k1z_xmmm32,
        ],
        Small::U8 => [
            VEX_Vpmovzxbd_ymm_xmmm64,
            VEX_Vpmovzxbd_xmm_xmmm32,
            EVEX_Vpmovzxbd_zmm_k1z_xmmm128,
            EVEX_Vpmovzxbd_ymm_k1z_xmmm64,
            EVEX_Vpmovzxbd_xmm_k1z_xmmm32,
        ],
        Small::I16 => [
            VEX_Vpmovsxwd_ymm_xmmm128,
            VEX_Vpmovsxwd_xmm_xmmm64,
            EVEX_Vpmovsxwd_zmm_k1z_ymmm256,
            EVEX_Vpmovsxwd_ymm_k1z_xmmm128,
            EVEX_Vpmovsxwd_xmm_k1z_xmmm64,
        ],
        Small::U16 => [
            VEX_Vpmovzxwd_ymm_xmmm128,
            VEX_Vpmovzxwd_xmm_xmmm64,
            EVEX_Vpmovzxwd_zmm_k1z_ymmm256,
            EVEX_Vpmovzxwd_ymm_k1z_xmmm128,
            EVEX_Vpmovzxwd_xmm_k1z_xmmm64,
        ],
    };
    match (isa.evex(), lanes) {
        (false, Lanes::X8) => codes[0],
        (false, Lanes::X4) => codes[1],
        (true, Lanes::X16) => codes[2],
        (true, Lanes::X8) => codes[3],
        (true, Lanes::X4) => codes[4],
        _ => INVALID,
    }
}

/// f16 in the lower part of a vector, or in memory, to f32.
pub(super) fn half_to_single(isa: Isa, lanes: Lanes) -> Code {
    match (isa.evex(), lanes) {
        (false, Lanes::X8) => VEX_Vcvtph2ps_ymm_xmmm128,
        (false, Lanes::X4 | Lanes::X1) => VEX_Vcvtph2ps_xmm_xmmm64,
        (true, Lanes::X16) => EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae,
        (true, Lanes::X8) => EVEX_Vcvtph2ps_ymm_k1z_xmmm128,
        (true, Lanes::X4 | Lanes::X1) => EVEX_Vcvtph2ps_xmm_k1z_xmmm64,
        _ => INVALID,
    }
}

/// f32 to f16 in the lower part of a vector; the immediate byte says how to round.
pub(super) fn single_to_half(isa: Isa, lanes: Lanes) -> Code {
    match (isa.evex(), lanes) {
        (false, Lanes::X8) => VEX_Vcvtps2ph_xmmm128_ymm_imm8,
        (false, Lanes::X4 | Lanes::X1) => VEX_Vcvtps2ph_xmmm64_xmm_imm8,
        (true, Lanes::X16) => EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae,
        (true, Lanes::X8) => EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8,
        (true, Lanes::X4 | Lanes::X1) => EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8,
        _ => INVALID,
    }
}

/// With EVEX, one instruction packs integers.
pub(super) fn truncate(small: Small, lanes: Lanes) -> Code {
    match (small.bytes(), lanes) {
        (1, Lanes::X16) => EVEX_Vpmovdb_xmmm128_k1z_zmm,
        (1, Lanes::X8) => EVEX_Vpmovdb_xmmm64_k1z_ymm,
        (1, Lanes::X4) => EVEX_Vpmovdb_xmmm32_k1z_xmm,
        (_, Lanes::X16) => EVEX_Vpmovdw_ymmm256_k1z_zmm,
        (_, Lanes::X8) => EVEX_Vpmovdw_xmmm128_k1z_ymm,
        (_, Lanes::X4) => EVEX_Vpmovdw_xmmm64_k1z_xmm,
        _ => INVALID,
    }
}

/// With EVEX, one instruction packs integers to bytes, those to u8 without a sign, the nearest for what does not fit.
pub(super) fn cut_to_byte(small: Small, lanes: Lanes) -> Code {
    match (small, lanes) {
        (Small::U8, Lanes::X16) => EVEX_Vpmovusdb_xmmm128_k1z_zmm,
        (Small::U8, Lanes::X8) => EVEX_Vpmovusdb_xmmm64_k1z_ymm,
        (Small::U8, Lanes::X4) => EVEX_Vpmovusdb_xmmm32_k1z_xmm,
        (Small::I8, Lanes::X16) => EVEX_Vpmovsdb_xmmm128_k1z_zmm,
        (Small::I8, Lanes::X8) => EVEX_Vpmovsdb_xmmm64_k1z_ymm,
        (Small::I8, Lanes::X4) => EVEX_Vpmovsdb_xmmm32_k1z_xmm,
        _ => INVALID,
    }
}

pub(super) fn single_to_bf16(lanes: Lanes) -> Code {
    match lanes {
        Lanes::X16 => EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32,
        Lanes::X8 => EVEX_Vcvtneps2bf16_xmm_k1z_ymmm256b32,
        Lanes::X4 => EVEX_Vcvtneps2bf16_xmm_k1z_xmmm128b32,
        _ => INVALID,
    }
}

/// Packs 32 bits to 16, in each half of 256 bits; of integers that fit.
pub(super) fn to_words(small: Small, lanes: Lanes) -> Code {
    match (small, lanes) {
        (Small::U16, Lanes::X8) => VEX_Vpackusdw_ymm_ymm_ymmm256,
        (Small::U16, _) => VEX_Vpackusdw_xmm_xmm_xmmm128,
        (_, Lanes::X8) => VEX_Vpackssdw_ymm_ymm_ymmm256,
        _ => VEX_Vpackssdw_xmm_xmm_xmmm128,
    }
}

/// Packs 16 bits to 8.
pub(super) fn to_bytes(small: Small) -> Code {
    match small {
        Small::I8 => VEX_Vpacksswb_xmm_xmm_xmmm128,
        _ => VEX_Vpackuswb_xmm_xmm_xmmm128,
    }
}
