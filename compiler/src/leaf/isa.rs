//! What leaf kernels may use of a processor.

use crate::target::Target;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    /// Of the widest vector: 32 or 64.
    pub vector_bytes: usize,
    pub vector_registers: usize,
    /// Whether vector instructions have an EVEX prefix, for all widths (AVX-512 F, DQ and VL). Masks then have
    /// registers of their own, and operands in memory can be one element for every lane.
    pub evex: bool,
}

impl Isa {
    /// Of a target as leaf kernels see it ([`Target::leaf`]).
    pub fn new(target: &Target) -> Isa {
        let Target { vector_bytes, vector_registers, .. } = *target;
        // A VEX prefix has no room for the numbers of more registers.
        Isa { vector_bytes, vector_registers, evex: vector_registers > 16 }
    }

    /// Lanes of the widest vector.
    pub fn lanes(self) -> usize {
        self.vector_bytes / 4
    }
}
