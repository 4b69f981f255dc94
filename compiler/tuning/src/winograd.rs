//! The transforms of Winograd's convolutions: squares of vectors.

use super::{Allowed, Picker};
use onnxc_ir::error::Result;
use onnxc_machine::target::Core;

/// Passes over an input's square of `size` by `size` vectors, where each computes a part of the rows from all that they need: where a
/// square has more vectors than there are registers, and operations no operands in memory, loading twice is less
/// than storing what does not fit and loading it again.
pub fn passes(core: &Core, size: usize, pick: &mut Picker<'_>) -> Result<usize> {
    let chosen = if core.loads_apart() && size * size > core.vector_registers { 2 } else { 1 };
    let halves = [1, 2].into_iter().filter(|passes| size.is_multiple_of(*passes)).map(|passes| passes as i64);
    pick.count("passes", chosen, &Allowed::one_of(halves.collect(), format!("parts of the {size} rows")))
}
