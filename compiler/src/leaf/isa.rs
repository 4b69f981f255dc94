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
    /// Whether f16 is converted to and from f32.
    pub has_f16c: bool,
}

impl Isa {
    /// Of a target as leaf kernels see it ([`Target::leaf`]).
    pub fn new(target: &Target) -> Isa {
        let Target { vector_bytes, vector_registers, has_f16c, .. } = *target;
        // A VEX prefix has no room for the numbers of more registers.
        Isa { vector_bytes, vector_registers, evex: vector_registers > 16, has_f16c }
    }

    /// Lanes of the widest vector of elements of `width` bytes.
    pub fn lanes(self, width: usize) -> usize {
        self.vector_bytes / width
    }
}
