//! x86-64: the levels of the psABI, and processors by name. The least is `x86-64-v2`: without SSE4.1,
//! rounding would need a libm.

use target_lexicon::{CallingConvention, Triple};

use super::{Target, is_host, unknown_cpu};
use crate::error::Result;

// Features are enabled one by one: Cranelift's own presets leave `has_avx` and others out, and then every
// vector FMA becomes four calls.
const V2: &[&str] = &["has_cmpxchg16b", "has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const V3: &[&str] = &["has_avx", "has_avx2", "has_fma", "has_bmi1", "has_bmi2", "has_lzcnt"];
const V4: &[&str] = &["has_avx512f", "has_avx512dq", "has_avx512vl"];
const ICELAKE: &[&str] = &["has_avx512bitalg", "has_avx512vbmi", "has_avx512vnni"];

/// A processor: name, feature sets, bytes of L1 and L2.
type Row = (&'static str, &'static [&'static [&'static str]], usize, usize);

const CPUS: &[Row] = &[
    ("generic", &[V2], 32 << 10, 256 << 10),
    ("x86-64-v2", &[V2], 32 << 10, 256 << 10),
    ("x86-64-v3", &[V2, V3], 32 << 10, 256 << 10),
    ("x86-64-v4", &[V2, V3, V4], 32 << 10, 1 << 20),
    ("haswell", &[V2, V3], 32 << 10, 256 << 10),
    ("broadwell", &[V2, V3], 32 << 10, 256 << 10),
    ("skylake", &[V2, V3], 32 << 10, 256 << 10),
    ("skylake-avx512", &[V2, V3, V4], 32 << 10, 1 << 20),
    ("cascadelake", &[V2, V3, V4, &["has_avx512vnni"]], 32 << 10, 1 << 20),
    ("icelake-server", &[V2, V3, V4, ICELAKE], 48 << 10, 1280 << 10),
    ("sapphirerapids", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("alderlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 1280 << 10),
    ("znver1", &[V2, V3], 32 << 10, 512 << 10),
    ("znver2", &[V2, V3], 32 << 10, 512 << 10),
    ("znver3", &[V2, V3], 32 << 10, 512 << 10),
    ("znver4", &[V2, V3, V4, ICELAKE], 32 << 10, 1 << 20),
    ("znver5", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 1 << 20),
];

pub(super) const DEFAULT: &str = "x86-64-v3";

pub(super) fn names() -> Vec<&'static str> {
    CPUS.iter().map(|row| row.0).collect()
}

pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    let cpu = mcpu.unwrap_or(DEFAULT);
    let (features, l1_bytes, l2_bytes) = if cpu == "native" && is_host(&triple) {
        (host_features(), 32 << 10, 512 << 10)
    } else {
        let row = CPUS.iter().find(|row| row.0 == cpu).ok_or_else(|| unknown_cpu(cpu, &triple, &names()))?;
        (row.1.concat(), row.2, row.3)
    };
    let has_fma = features.contains(&"has_fma");
    let has_all = |wanted: &[&str]| wanted.iter().all(|feature| features.contains(feature));
    // Leaf kernels follow the System V calling convention.
    let has_leaves = has_fma
        && has_all(&["has_avx2", "has_bmi2"])
        && triple.default_calling_convention() == Ok(CallingConvention::SystemV);
    // With AVX-512 there are twice as many registers, of which only its own instructions reach the upper half.
    let (leaf_bytes, leaf_registers) = if has_all(V4) { (64, 32) } else { (32, 16) };
    Ok(Target {
        triple,
        cpu: cpu.to_string(),
        vector_bytes: 16,
        leaf_bytes: has_leaves.then_some(leaf_bytes),
        vector_registers: 16,
        leaf_registers,
        has_fma,
        fma_overwrites_factor: true,
        has_nan_minmax: false,
        has_truncating_convert: true,
        features,
        l1_bytes,
        l2_bytes,
    })
}

#[cfg(target_arch = "x86_64")]
fn host_features() -> Vec<&'static str> {
    macro_rules! detect {
        ($($feature:tt => $setting:literal),* $(,)?) => {
            [$((std::arch::is_x86_feature_detected!($feature), $setting)),*]
        };
    }
    let detected = detect!(
        "cmpxchg16b" => "has_cmpxchg16b",
        "sse3" => "has_sse3",
        "ssse3" => "has_ssse3",
        "sse4.1" => "has_sse41",
        "sse4.2" => "has_sse42",
        "popcnt" => "has_popcnt",
        "avx" => "has_avx",
        "avx2" => "has_avx2",
        "fma" => "has_fma",
        "bmi1" => "has_bmi1",
        "bmi2" => "has_bmi2",
        "lzcnt" => "has_lzcnt",
        "avxvnni" => "has_avx_vnni",
        "avx512f" => "has_avx512f",
        "avx512dq" => "has_avx512dq",
        "avx512vl" => "has_avx512vl",
        "avx512bitalg" => "has_avx512bitalg",
        "avx512vbmi" => "has_avx512vbmi",
        "avx512vnni" => "has_avx512vnni",
    );
    detected.into_iter().filter_map(|(on, setting)| on.then_some(setting)).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn host_features() -> Vec<&'static str> {
    V2.to_vec()
}
