//! x86-64: the levels of the psABI, and processors by name. An object for no processor in particular holds its hot
//! code for several levels, [`UPGRADES`] besides the baseline; [`Requirement`] is what the processor must report for
//! one of them, and [`cpuid`] the code that asks it.

mod caches;
mod cpuid;

use target_lexicon::{CallingConvention, OperatingSystem, Triple};

use self::caches::Caches;
use super::{Core, LevelCode, Target, code_triple, internal, is_host, unknown_cpu};
use crate::vector::ir::Signs;
use crate::vector::isa::{Convention, Isa};
use onnxc_ir::error::Result;

/// What `cpuid` must report: bits of its registers by leaf, and the register states that the operating system must save, as XCR0 reports,
/// or must first be asked to save.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Requirement {
    leaf1_ecx: u32,
    leaf7_ebx: u32,
    leaf7_ecx: u32,
    leaf7_edx: u32,
    /// Of the second part of leaf 7.
    leaf7_1_eax: u32,
    extended_ecx: u32,
    xcr0: u32,
    /// A state that Linux saves for processes that have asked for it, by its number in XCR0.
    asks_for: Option<u32>,
}

impl Requirement {
    const NOTHING: Requirement = Requirement {
        leaf1_ecx: 0,
        leaf7_ebx: 0,
        leaf7_ecx: 0,
        leaf7_edx: 0,
        leaf7_1_eax: 0,
        extended_ecx: 0,
        xcr0: 0,
        asks_for: None,
    };

    /// All of both.
    const fn and(self, other: Requirement) -> Requirement {
        Requirement {
            leaf1_ecx: self.leaf1_ecx | other.leaf1_ecx,
            leaf7_ebx: self.leaf7_ebx | other.leaf7_ebx,
            leaf7_ecx: self.leaf7_ecx | other.leaf7_ecx,
            leaf7_edx: self.leaf7_edx | other.leaf7_edx,
            leaf7_1_eax: self.leaf7_1_eax | other.leaf7_1_eax,
            extended_ecx: self.extended_ecx | other.extended_ecx,
            xcr0: self.xcr0 | other.xcr0,
            asks_for: if other.asks_for.is_some() { other.asks_for } else { self.asks_for },
        }
    }
}

/// The psABI's x86-64-v3, with all of v2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT and LAHF; FMA, MOVBE,
/// OSXSAVE, AVX, F16C, BMI1, AVX2, BMI2 and LZCNT; XMM and YMM registers saved.
const REQUIRES_V3: Requirement = Requirement {
    leaf1_ecx: 1 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 7 << 27,
    leaf7_ebx: 1 << 3 | 1 << 5 | 1 << 8,
    extended_ecx: 1 | 1 << 5,
    xcr0: 0b110,
    ..Requirement::NOTHING
};

/// The psABI's x86-64-v4: AVX-512 F, DQ, CD, BW and VL besides, with their masks, the upper halves of 16 registers and the
/// 16 other registers saved.
const REQUIRES_V4: Requirement = Requirement {
    leaf7_ebx: REQUIRES_V3.leaf7_ebx | 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31,
    xcr0: REQUIRES_V3.xcr0 | 0b1110_0000,
    ..REQUIRES_V3
};

/// AVX-VNNI: products of bytes in vectors of 256 bits, also of processors without AVX-512.
const REQUIRES_AVX_VNNI: Requirement =
    REQUIRES_V3.and(Requirement { leaf7_1_eax: 1 << 4, ..Requirement::NOTHING });

/// AVX-512 VNNI: products of bytes. AVX-512 VBMI: any bytes of vectors.
const REQUIRES_VNNI: Requirement =
    REQUIRES_V4.and(Requirement { leaf7_ecx: 1 << 11, ..Requirement::NOTHING });
const REQUIRES_VBMI: Requirement =
    REQUIRES_VNNI.and(Requirement { leaf7_ecx: 1 << 1, ..Requirement::NOTHING });

/// AMX with products of bytes and of bf16: its tiles and their configuration saved, the tiles after the process has asked for it. For
/// objects whose other code is made for processors that have it.
const REQUIRES_AMX: Requirement = Requirement {
    leaf1_ecx: 1 << 27,
    leaf7_edx: 1 << 22 | 1 << 24 | 1 << 25,
    xcr0: 1 << 17 | 1 << 18,
    asks_for: Some(18),
    ..Requirement::NOTHING
};

/// A level above the baseline.
struct Upgrade {
    cpu: &'static str,
    requires: Requirement,
}

/// The levels that an object for no processor in particular has code for, besides the baseline; of two that a processor has it
/// takes the later one. They are sets of features, not a chain: Alder Lake has AVX-VNNI and no AVX-512, Ice Lake the reverse.
const UPGRADES: &[Upgrade] = &[
    Upgrade { cpu: "x86-64-v3", requires: REQUIRES_V3 },
    Upgrade { cpu: "x86-64-v3+vnni", requires: REQUIRES_AVX_VNNI },
    Upgrade { cpu: "x86-64-v4", requires: REQUIRES_V4 },
    Upgrade { cpu: "x86-64-v4+vnni", requires: REQUIRES_VNNI },
    Upgrade { cpu: WITH_VBMI, requires: REQUIRES_VBMI },
];

/// The level below that of the tiles, which is there where the system is asked for them.
const WITH_VBMI: &str = "x86-64-v4+vbmi";
const TILES: Upgrade = Upgrade { cpu: "x86-64-v4+amx", requires: REQUIRES_VBMI.and(REQUIRES_AMX) };

// Features are enabled one by one: Cranelift's own presets leave `has_avx` and others out, and then every
// vector FMA becomes four calls.
const V2: &[&str] = &["has_cmpxchg16b", "has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"];
const V3: &[&str] = &["has_avx", "has_avx2", "has_fma", "has_bmi1", "has_bmi2", "has_lzcnt"];
const V4: &[&str] = &["has_avx512f", "has_avx512dq", "has_avx512vl"];
const ICELAKE: &[&str] = &["has_avx512bitalg", "has_avx512vbmi", "has_avx512vnni"];

/// A processor: name, feature sets, bytes of L1 and L2.
type X64Cpu = (&'static str, &'static [&'static [&'static str]], usize, usize);

const CPUS: &[X64Cpu] = &[
    ("x86-64", &[], 32 << 10, 256 << 10),
    ("generic", &[], 32 << 10, 256 << 10),
    ("nehalem", &[V2], 32 << 10, 256 << 10),
    ("westmere", &[V2], 32 << 10, 256 << 10),
    ("sandybridge", &[V2, &["has_avx"]], 32 << 10, 256 << 10),
    ("ivybridge", &[V2, &["has_avx"]], 32 << 10, 256 << 10),
    ("x86-64-v2", &[V2], 32 << 10, 256 << 10),
    ("x86-64-v3", &[V2, V3], 32 << 10, 256 << 10),
    ("x86-64-v4", &[V2, V3, V4], 32 << 10, 1 << 20),
    ("x86-64-v3+vnni", &[V2, V3, &["has_avx_vnni"]], 32 << 10, 256 << 10),
    ("x86-64-v4+vnni", &[V2, V3, V4, &["has_avx512vnni"]], 32 << 10, 1 << 20),
    (WITH_VBMI, &[V2, V3, V4, &["has_avx512vbmi", "has_avx512vnni"]], 32 << 10, 1 << 20),
    ("haswell", &[V2, V3], 32 << 10, 256 << 10),
    ("broadwell", &[V2, V3], 32 << 10, 256 << 10),
    ("skylake", &[V2, V3], 32 << 10, 256 << 10),
    ("skylake-avx512", &[V2, V3, V4], 32 << 10, 1 << 20),
    ("cannonlake", &[V2, V3, V4, &["has_avx512vbmi"]], 32 << 10, 256 << 10),
    ("cascadelake", &[V2, V3, V4, &["has_avx512vnni"]], 32 << 10, 1 << 20),
    ("cooperlake", &[V2, V3, V4, &["has_avx512vnni"]], 32 << 10, 1 << 20),
    ("icelake-client", &[V2, V3, V4, ICELAKE], 48 << 10, 512 << 10),
    ("icelake-server", &[V2, V3, V4, ICELAKE], 48 << 10, 1280 << 10),
    ("sapphirerapids", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("emeraldrapids", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("graniterapids", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("tigerlake", &[V2, V3, V4, ICELAKE], 48 << 10, 1280 << 10),
    ("rocketlake", &[V2, V3, V4, ICELAKE], 48 << 10, 512 << 10),
    ("alderlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 1280 << 10),
    ("raptorlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("meteorlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 2 << 20),
    ("arrowlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 3 << 20),
    ("lunarlake", &[V2, V3, &["has_avx_vnni"]], 48 << 10, 2560 << 10),
    ("sierraforest", &[V2, V3, &["has_avx_vnni"]], 32 << 10, 1 << 20),
    ("silvermont", &[V2], 24 << 10, 512 << 10),
    ("goldmont", &[V2], 24 << 10, 512 << 10),
    ("tremont", &[V2], 32 << 10, 1 << 20),
    ("gracemont", &[V2, V3, &["has_avx_vnni"]], 32 << 10, 1 << 20),
    ("k8", &[], 64 << 10, 512 << 10),
    ("amdfam10", &[&["has_sse3", "has_popcnt", "has_cmpxchg16b", "has_lzcnt"]], 64 << 10, 512 << 10),
    ("btver2", &[V2, &["has_avx", "has_bmi1", "has_lzcnt"]], 32 << 10, 512 << 10),
    ("bdver2", &[V2, &["has_avx", "has_fma", "has_bmi1", "has_lzcnt"]], 16 << 10, 1 << 20),
    ("znver1", &[V2, V3], 32 << 10, 512 << 10),
    ("znver2", &[V2, V3], 32 << 10, 512 << 10),
    ("znver3", &[V2, V3], 32 << 10, 512 << 10),
    ("znver4", &[V2, V3, V4, ICELAKE], 32 << 10, 1 << 20),
    ("znver5", &[V2, V3, V4, ICELAKE, &["has_avx_vnni"]], 48 << 10, 1 << 20),
];

/// Bytes of a way of the first-level cache: a page, so that the set of a line is known before its physical address is; but for
/// caches of two ways.
fn way_bytes(cpu: &str) -> usize {
    if TWO_WAYS.contains(&cpu) { 32 << 10 } else { 4 << 10 }
}

const TWO_WAYS: &[&str] = &["k8", "amdfam10"];

/// For processors that list no caches: what those of the last decade have at least.
const UNKNOWN: Caches = Caches { l1_bytes: 32 << 10, l1_ways: 8, l2_bytes: 256 << 10 };

const BASELINE: &str = "x86-64";

/// Processors with AMX.
const AMX_CPUS: &[&str] = &["sapphirerapids", "emeraldrapids", "graniterapids"];

/// Processors with AVX512-BF16, for which Cranelift has no setting.
const BF16_CPUS: &[&str] =
    &["cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "znver4", "znver5"];

/// What the name of a processor with its tiles ends with.
const WITH_AMX: &str = "+amx";

pub(super) fn names() -> Vec<&'static str> {
    CPUS.iter().map(|row| row.0).collect()
}

/// Without a name, the baseline and its upgrades.
pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    if let Some(cpu) = mcpu {
        let target = single(triple, cpu)?;
        return Ok(Target { upgrades: with_tiles(&target).into_iter().collect(), ..target });
    }
    let mut upgrades: Vec<Target> =
        UPGRADES.iter().map(|row| level(single(triple.clone(), row.cpu)?)).collect::<Result<_>>()?;
    if asks_system(&triple)
        && let Some(below) = upgrades.last()
    {
        upgrades.push(Target {
            cpu: TILES.cpu.into(),
            wide: below.wide.map(Isa::with_tiles),
            ..below.clone()
        });
    }
    Ok(Target { upgrades, ..single(triple, BASELINE)? })
}

/// A processor as one level of several. Cranelift's code is that of the psABI's level: what the others add is for leaf kernels.
fn level(target: Target) -> Result<Target> {
    let features = target.features.iter().filter(|feature| [V2, V3, V4].concat().contains(feature));
    Ok(Target { features: features.copied().collect(), ..target })
}

/// Whether the system saves tiles for those that ask.
fn asks_system(triple: &Triple) -> bool {
    matches!(triple.operating_system, OperatingSystem::Linux)
}

/// The same processor with its tiles, if it has them and the system saves them. Whether this process may use them shows at run
/// time only: the kernels without stay for those that may not.
fn with_tiles(target: &Target) -> Option<Target> {
    let here = target.cpu == "native" && is_host(&target.triple);
    let has = if here { host_has_amx() } else { AMX_CPUS.contains(&target.cpu.as_str()) };
    let asks = asks_system(&target.triple);
    let isa = target
        .wide
        .filter(|isa| has && asks && isa.dot.is_some() && isa.vector_bytes == Isa::AVX512.vector_bytes)?;
    let cpu = format!("{}{WITH_AMX}", target.cpu);
    Some(Target { cpu, wide: Some(isa.with_tiles()), upgrades: vec![], ..target.clone() })
}

/// Machine code of `int32_t level(void)`: which of these upgrades the processor it runs on is good for, each with the number of its
/// bit.
pub(super) fn level_code(upgrades: &[(usize, &Target)]) -> Result<LevelCode> {
    let requirement = |&(bit, target): &(usize, &Target)| {
        let row = UPGRADES.iter().chain([&TILES]).find(|row| row.cpu == target.cpu);
        let tiles = target.cpu.ends_with(WITH_AMX).then_some(REQUIRES_AMX);
        row.map(|row| row.requires)
            .or(tiles)
            .map(|requires| (bit, requires))
            .ok_or_else(|| internal(format!("nothing tests for `{}`", target.cpu)))
    };
    let bytes = cpuid::code(&upgrades.iter().map(requirement).collect::<Result<Vec<_>>>()?)?;
    Ok(LevelCode { bytes, stack: cpuid::STACK })
}

fn single(triple: Triple, cpu: &str) -> Result<Target> {
    let (features, caches) = if cpu == "native" && is_host(&triple) {
        (host_features(), Caches::of_host().unwrap_or(UNKNOWN))
    } else {
        let row = CPUS.iter().find(|row| row.0 == cpu).ok_or_else(|| unknown_cpu(cpu, &triple, &names()))?;
        (row.1.concat(), Caches { l1_bytes: row.2, l1_ways: row.2 / way_bytes(cpu), l2_bytes: row.3 })
    };
    let Caches { l1_bytes, l1_ways, l2_bytes } = caches;
    let has = |feature: &str| features.contains(&feature);
    let has_all = |wanted: &[&str]| wanted.iter().copied().all(has);
    let has_leaves = has_all(&["has_fma", "has_avx2", "has_bmi2"]);
    let convention = match code_triple(&triple).default_calling_convention() {
        Ok(CallingConvention::WindowsFastcall) => Convention::Windows,
        _ => Convention::Standard,
    };
    let dot = |feature: &str| has(feature).then_some(Signs::UNSIGNED_SIGNED);
    let has_f16c = has_f16c(cpu, &triple, has("has_avx2"));
    let has_byte_permute = has("has_avx512vbmi");
    let has_bf16_dot = has_bf16_dot(cpu, &triple);
    let wide = match has_all(V4) {
        true => {
            let dot = dot("has_avx512vnni");
            Isa { has_f16c, convention, dot, has_byte_permute, has_bf16_dot, ..Isa::AVX512 }
        }
        false => Isa { has_f16c, convention, dot: dot("has_avx_vnni"), ..Isa::AVX2 },
    };
    let narrow = Isa {
        has_fma: has("has_fma"),
        has_rounding: has("has_sse41"),
        has_byte_shuffle: has("has_ssse3"),
        has_truncating_convert: true,
        ..Isa::CRANELIFT
    };
    Ok(Target {
        features,
        narrow,
        wide: has_leaves.then_some(wide),
        core: Core { vector_registers: 16, l1_bytes, l2_bytes, l1_ways, ..Core::BASE },
        ..Target::base(triple, cpu)
    })
}

/// Cranelift has no setting for F16C. Processors with AVX2 have it, and x86-64-v3 requires both.
fn has_f16c(cpu: &str, triple: &Triple, has_avx2: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if cpu == "native" && is_host(triple) {
        return std::arch::is_x86_feature_detected!("f16c");
    }
    let _ = (cpu, triple);
    has_avx2
}

fn has_bf16_dot(cpu: &str, triple: &Triple) -> bool {
    #[cfg(target_arch = "x86_64")]
    if cpu == "native" && is_host(triple) {
        return std::arch::is_x86_feature_detected!("avx512bf16");
    }
    let _ = triple;
    BF16_CPUS.contains(&cpu)
}

/// Leaf 7 of `cpuid` is there where there is AVX2, and XCR0 where there is AVX.
#[cfg(target_arch = "x86_64")]
fn host_has_amx() -> bool {
    let wanted = REQUIRES_AMX;
    let features = is_x86_feature_detected!("avx2") && {
        std::arch::x86_64::__cpuid_count(7, 0).edx & wanted.leaf7_edx == wanted.leaf7_edx
    };
    features && host_saves(wanted.xcr0)
}

#[cfg(target_arch = "x86_64")]
fn host_saves(states: u32) -> bool {
    #[target_feature(enable = "xsave")]
    fn states_saved() -> u64 {
        // SAFETY: the feature is enabled; register 0 is XCR0.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    // SAFETY: where there is AVX, there is XSAVE, which the system has enabled.
    let saved = is_x86_feature_detected!("avx").then(|| unsafe { states_saved() });
    saved.is_some_and(|saved| saved as u32 & states == states)
}

#[cfg(not(target_arch = "x86_64"))]
fn host_has_amx() -> bool {
    false
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
    vec![]
}
