//! AArch64: Armv8-A with Advanced SIMD, which every processor of the architecture has.

use target_lexicon::Triple;

use super::{Target, is_host, unknown_cpu};
use crate::error::Result;
use crate::vector::isa::Isa;

pub(super) fn target(triple: Triple, mcpu: Option<&str>) -> Result<Target> {
    let cpu = mcpu.unwrap_or("generic");
    // What `native` could add, generated code has no use for: atomics, pointer authentication.
    if cpu != "generic" && !(cpu == "native" && is_host(&triple)) {
        return Err(unknown_cpu(cpu, &triple, &["generic"]));
    }
    Ok(Target {
        triple,
        cpu: cpu.to_string(),
        upgrades: vec![],
        features: vec![],
        vector_bytes: 16,
        narrow: Isa {
            vector_registers: 32,
            has_fma: true,
            has_rounding: true,
            has_nan_extremes: true,
            has_byte_shuffle: true,
            ..Isa::CRANELIFT
        },
        wide: Some(Isa::NEON),
        is_leaf: false,
        vector_registers: 32,
        l1_bytes: 64 << 10,
        l2_bytes: 512 << 10,
        l1_ways: 4,
    })
}
