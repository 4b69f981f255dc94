//! One value per target: triple, instruction set, vector width, register tile and cache sizes. Adding a
//! target touches this folder; no other code matches on an architecture.

use target_lexicon::Triple;

/// Everything that lowering and code generation may know about a machine.
#[derive(Clone, Debug)]
pub struct Target {
    pub triple: Triple,
    /// Name given with `--mcpu`, `generic` when none was.
    pub cpu: String,
    /// Cranelift settings to enable, beyond the triple's baseline.
    pub features: Vec<&'static str>,
    /// Bytes of the vectors that Cranelift code uses.
    pub vector_bytes: usize,
    /// Vector registers.
    pub vector_registers: usize,
    /// Whether `a * b + c` is one instruction.
    pub has_fma: bool,
    /// Bytes of the first and second level data caches of one core.
    pub l1_bytes: usize,
    pub l2_bytes: usize,
}

impl Target {
    /// Lanes of a vector of elements of `size` bytes.
    pub fn lanes(&self, size: usize) -> usize {
        self.vector_bytes / size
    }
}
