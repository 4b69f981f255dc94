//! RISC-V of 64 bits: RV64GC, and processors by name, with the extension V those that have it.
//!
//! Without V there are no vectors: Cranelift has none there, and all loops are of single elements, with fused multiply-adds. With
//! V its vectors are of 128 bits, which any length of the processor's registers holds.

use target_lexicon::Triple;

use super::{Core, Target, is_host, unknown_cpu};
use crate::vector::isa::Isa;
use onnxc_ir::error::Result;

/// A processor: name, extensions beyond RV64GC, kibibytes of the first-level data cache, its ways, and kibibytes of the second
/// level. Names are those of gcc and clang; profiles and `rv64gcv` are processors with just that.
type RiscvCpu = (&'static str, &'static [&'static [&'static str]], usize, usize, usize);

/// What all have, code around the kernels too: compressed instructions.
const BASELINE_FEATURES: &[&str] = &["has_zca", "has_zcd"];

/// Address arithmetic and simple bit manipulation.
const ZBA_ZBB: &[&str] = &["has_zba", "has_zbb"];
const ZBS: &[&str] = &["has_zbs"];

/// V requires registers of at least 128 bits.
const V: &[&str] = &["has_v", "has_zvl32b", "has_zvl64b", "has_zvl128b"];

const CPUS: &[RiscvCpu] = &[
    (BASELINE, &[], 32, 8, 256),
    ("rv64gcv", &[V], 32, 8, 256),
    ("rva22u64", &[ZBA_ZBB, ZBS], 32, 8, 256),
    ("rva23u64", &[ZBA_ZBB, ZBS, V], 32, 8, 256),
    ("sifive-u54", &[], 32, 8, 256),
    ("sifive-u74", &[], 32, 8, 512),
    ("sifive-s76", &[], 32, 8, 512),
    ("sifive-x280", &[ZBA_ZBB, V], 32, 8, 512),
    ("sifive-p450", &[ZBA_ZBB, ZBS], 32, 8, 512),
    ("sifive-p470", &[ZBA_ZBB, ZBS, V], 32, 8, 512),
    ("sifive-p550", &[ZBA_ZBB], 32, 8, 256),
    ("sifive-p670", &[ZBA_ZBB, ZBS, V], 32, 8, 512),
    ("spacemit-x60", &[ZBA_ZBB, ZBS, V], 32, 4, 256),
    // Their vectors are of an older version of V, with other encodings.
    ("thead-c906", &[], 32, 4, 256),
    ("veyron-v1", &[ZBA_ZBB, ZBS], 64, 4, 512),
    ("xiangshan-nanhu", &[ZBA_ZBB, ZBS], 64, 4, 512),
];

const BASELINE: &str = "generic-rv64";

pub(super) fn names() -> Vec<&'static str> {
    CPUS.iter().map(|row| row.0).collect()
}

/// Without a name, the baseline; so is this machine's own processor, which is not queried.
pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    let cpu = mcpu.unwrap_or(BASELINE);
    let name = if cpu == "native" && is_host(&triple) { BASELINE } else { cpu };
    let known = CPUS.iter().find(|row| row.0 == name);
    let &(_, extensions, l1, l1_ways, l2) = known.ok_or_else(|| unknown_cpu(cpu, &triple, &names()))?;
    let features = [BASELINE_FEATURES, &extensions.concat()].concat();
    let vectors = if features.contains(&"has_v") { Isa::CRANELIFT } else { Isa::SCALAR };
    Ok(Target {
        features,
        baseline: BASELINE_FEATURES,
        extends_integers: true,
        narrow: Isa {
            vector_registers: 32,
            has_fma: true,
            has_rounding: true,
            has_nan_extremes: true,
            has_byte_shuffle: true,
            ..vectors
        },
        core: Core {
            vector_bytes: vectors.vector_bytes,
            l1_bytes: l1 << 10,
            l2_bytes: l2 << 10,
            l1_ways,
            ..Core::BASE
        },
        ..Target::base(triple, cpu)
    })
}
