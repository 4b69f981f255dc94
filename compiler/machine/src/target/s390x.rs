//! s390x: IBM Z from z14 on, whose vectors hold f32 (vector-enhancements facility 1). It is big-endian.

use target_lexicon::Triple;

use super::{Core, Target, is_host, unknown_cpu};
use crate::vector::isa::Isa;
use onnxc_ir::error::Result;

/// What z15 has besides, and what z17 has besides that.
const Z15: &[&str] = &["has_mie3", "has_vxrs_ext2"];
const Z17: &[&str] = &["has_mie4", "has_vxrs_ext3"];

/// A processor as gcc names it, its number among the editions of the architecture, Cranelift's settings, and mebibytes of the
/// second-level data cache. The first level has 128 KiB in 8 ways since z13.
type S390xCpu = (&'static str, &'static str, &'static [&'static [&'static str]], usize);

const CPUS: &[S390xCpu] = &[
    (BASELINE, "arch12", &[], 4),
    ("z15", "arch13", &[Z15], 4),
    ("z16", "arch14", &[Z15], 32),
    ("z17", "arch15", &[Z15, Z17], 36),
];

/// The least processor whose instructions Cranelift takes for granted.
const BASELINE: &str = "z14";

pub(super) fn names() -> Vec<&'static str> {
    CPUS.iter().flat_map(|row| [row.0, row.1]).collect()
}

/// Without a name, and for `native`, the baseline.
pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    let cpu = mcpu.unwrap_or(BASELINE);
    let name = if cpu == "native" && is_host(&triple) { BASELINE } else { cpu };
    let known = CPUS.iter().find(|row| row.0 == name || row.1 == name);
    let &(_, _, features, l2) = known.ok_or_else(|| unknown_cpu(cpu, &triple, &names()))?;
    Ok(Target {
        features: features.concat(),
        extends_integers: true,
        narrow: Isa {
            vector_registers: 32,
            has_fma: true,
            has_rounding: true,
            has_nan_extremes: true,
            has_byte_shuffle: true,
            is_big_endian: true,
            ..Isa::CRANELIFT
        },
        core: Core { l1_bytes: 128 << 10, l2_bytes: l2 << 20, l1_ways: 8, ..Core::BASE },
        ..Target::base(triple, cpu)
    })
}
