//! AArch64: Armv8-A with Advanced SIMD, which every processor of the architecture has, and processors by name. On Linux an
//! object for no processor in particular holds its hot code for a level above this as well, [`UPGRADES`]; [`level`] has the code
//! that asks the system for it. Without an operating system nothing is asked: whoever writes firmware knows its processor.

mod level;

use target_lexicon::{BinaryFormat, OperatingSystem, Triple};

use self::level::{BF16_CONVERSIONS, DOT_PRODUCTS, Requirement};
use super::{Core, LevelCode, Target, internal, is_host, unknown_cpu};
use crate::vector::ir::Signs;
use crate::vector::isa::{Convention, Isa};
use onnxc_ir::error::Result;

/// What processors have for narrow types, each with what comes before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Narrow {
    None,
    /// Products of bytes: FEAT_DotProd.
    Dot,
    /// Conversions from f32 to bf16: FEAT_BF16.
    Bf16,
}

use Narrow::{Bf16, Dot};

/// A processor, as gcc and clang name it: what it has for narrow types, kibibytes of the first-level data cache, its ways, and
/// kibibytes of the second level. Where a processor is made with several sizes, a common one.
///
/// Names and features come from gcc's `aarch64-cores.def` and LLVM's `AArch64Processors.td`, which agree except that only LLVM knows the
/// products of bytes of tsv110. Caches are common ones of the core, for Apple's of the large cores; only speed
/// depends on them.
type ArmCpu = (&'static str, Narrow, usize, usize, usize);

const CPUS: &[ArmCpu] = &[
    (BASELINE, Narrow::None, 32, 4, 512),
    (WITH_DOT, Dot, 32, 4, 512),
    (WITH_BF16, Bf16, 32, 4, 512),
    ("cortex-a53", Narrow::None, 32, 4, 512),
    ("cortex-a35", Narrow::None, 32, 4, 512),
    ("cortex-a57", Narrow::None, 32, 2, 1024),
    ("cortex-a72", Narrow::None, 32, 2, 1024),
    ("cortex-a73", Narrow::None, 64, 16, 1024),
    ("cortex-a55", Dot, 32, 4, 128),
    ("cortex-a75", Dot, 64, 16, 256),
    ("cortex-a76", Dot, 64, 4, 256),
    ("cortex-a77", Dot, 64, 4, 256),
    ("cortex-a78", Dot, 64, 4, 512),
    ("cortex-x1", Dot, 64, 4, 1024),
    ("cortex-a510", Bf16, 32, 4, 256),
    ("cortex-a710", Bf16, 64, 4, 512),
    ("cortex-a715", Bf16, 64, 4, 512),
    ("cortex-x2", Bf16, 64, 4, 1024),
    ("cortex-x3", Bf16, 64, 4, 1024),
    ("neoverse-e1", Dot, 32, 4, 256),
    ("neoverse-n1", Dot, 64, 4, 1024),
    ("neoverse-n2", Bf16, 64, 4, 1024),
    ("neoverse-v1", Bf16, 64, 4, 1024),
    ("neoverse-v2", Bf16, 64, 4, 2048),
    ("a64fx", Narrow::None, 64, 4, 8192),
    ("thunderx2t99", Narrow::None, 32, 8, 256),
    ("tsv110", Dot, 64, 4, 512),
    ("ampere1", Bf16, 64, 4, 2048),
    ("apple-a12", Narrow::None, 128, 8, 8192),
    ("apple-a13", Dot, 128, 8, 8192),
    ("apple-a14", Dot, 128, 8, 8192),
    (APPLE, Dot, 128, 8, 12288),
    ("apple-m2", Bf16, 128, 8, 16384),
    ("apple-m3", Bf16, 128, 8, 16384),
];

const BASELINE: &str = "generic";

/// Armv8.2-A with these, as gcc and clang write it.
const WITH_DOT: &str = "armv8.2-a+dotprod";
const WITH_BF16: &str = "armv8.2-a+dotprod+bf16";

/// The levels that an object for no processor in particular has code for, besides the baseline, from the least up, with what
/// the processor must have.
const UPGRADES: &[(&str, &[Requirement])] =
    &[(WITH_DOT, &[DOT_PRODUCTS]), (WITH_BF16, &[DOT_PRODUCTS, BF16_CONVERSIONS])];

/// The least processor of a Mac.
const APPLE: &str = "apple-m1";

pub(super) fn names() -> Vec<&'static str> {
    CPUS.iter().map(|row| row.0).collect()
}

/// Without a name, the baseline, which on macOS is the least processor that it runs on, and on Linux its upgrades.
pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    if let Some(cpu) = mcpu {
        return single(triple, cpu);
    }
    match triple.operating_system {
        OperatingSystem::Darwin(_) | OperatingSystem::MacOSX(_) => single(triple, APPLE),
        OperatingSystem::Linux => {
            let upgrades = UPGRADES.iter().map(|row| single(triple.clone(), row.0)).collect::<Result<_>>()?;
            Ok(Target { upgrades, ..single(triple, BASELINE)? })
        }
        _ => single(triple, BASELINE),
    }
}

/// Machine code of `int32_t level(void)`: which of these upgrades the processor it runs on is good for, each with the number of its
/// bit.
pub(super) fn level_code(upgrades: &[(usize, &Target)]) -> Result<LevelCode> {
    let requirement = |&(bit, target): &(usize, &Target)| {
        let row = UPGRADES.iter().find(|row| row.0 == target.cpu);
        row.map(|row| (bit, row.1)).ok_or_else(|| internal(format!("nothing tests for `{}`", target.cpu)))
    };
    let bytes = level::code(&upgrades.iter().map(requirement).collect::<Result<Vec<_>>>()?)?;
    Ok(LevelCode { bytes, stack: level::STACK })
}

fn single(triple: Triple, cpu: &str) -> Result<Target> {
    let native = cpu == "native" && is_host(&triple);
    let name = if native { BASELINE } else { cpu };
    let known = CPUS.iter().find(|row| row.0 == name);
    let &(_, has, l1, l1_ways, l2) = known.ok_or_else(|| unknown_cpu(cpu, &triple, &names()))?;
    let has = if native { of_host() } else { has };
    // Windows has the same registers, and unwinders.
    let convention = match triple.binary_format {
        BinaryFormat::Coff => Convention::Windows,
        _ => Convention::Standard,
    };
    let narrow = Isa {
        vector_registers: 32,
        has_fma: true,
        has_rounding: true,
        has_nan_extremes: true,
        has_byte_shuffle: true,
        ..Isa::CRANELIFT
    };
    Ok(Target {
        narrow,
        wide: Some(Isa {
            convention,
            dot: (has >= Dot).then_some(Signs::SIGNED),
            has_bf16: has >= Bf16,
            ..Isa::NEON
        }),
        core: Core { l1_bytes: l1 << 10, l2_bytes: l2 << 10, l1_ways, ..Core::BASE },
        ..Target::base(triple, cpu)
    })
}

fn of_host() -> Narrow {
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected;
        return match is_aarch64_feature_detected!("dotprod") {
            true if is_aarch64_feature_detected!("bf16") => Bf16,
            true => Dot,
            false => Narrow::None,
        };
    }
    #[cfg(not(target_arch = "aarch64"))]
    Narrow::None
}
