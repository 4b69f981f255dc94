//! Elementwise nests, and copies: what threads share of them.

use super::{Allowed, Picker, SHARED_TURNS, divisors, shared_axes};
use onnxc_ir::error::Result;
use onnxc_ir::graph::Dim;
use onnxc_ir::graph::dim::volume;

/// Elements from which on the outermost loop of a nest stays apart, so that threads can share it. Fewer are fused into as few
/// loops as can be.
const PARALLEL_ELEMENTS: i64 = 1 << 15;

/// Elements per iteration of a loop that threads share and that has no inner one: from the first to the second.
const BLOCK: [i64; 2] = [1 << 9, 1 << 13];

/// A block is a multiple of this many elements: whole vectors of any width.
const BLOCK_OF: i64 = 16;

/// Most elements of a block that are worth trying.
const MOST_BLOCK: i64 = 1 << 16;

/// Whether a result of `elements` elements, if known, is worth sharing between threads.
fn is_large(elements: Option<i64>) -> bool {
    elements.is_none_or(|count| count >= PARALLEL_ELEMENTS)
}

/// Outermost loops of a nest that become one which threads share, apart from those inside, where the result is large and they have
/// enough iterations: more than one where the first may have a single one, if enough elements are left inside.
pub fn outer_loops(elements: Option<i64>, extents: &[Dim], pick: &mut Picker<'_>) -> Result<usize> {
    let loops = extents.len();
    let apart = is_large(elements)
        && extents.first().is_some_and(|first| first.as_const().is_none_or(|extent| extent >= SHARED_TURNS));
    let chosen = if apart { outer_axes(extents) } else { 0 };
    let allowed = Allowed::between(0, loops as i64, format!("the nest has {loops} loops"));
    pick.count("outer_loops", chosen, &allowed)
}

/// The outermost of some axes that threads share together: more than the first one with a loop, where that may have a single
/// turn, if enough elements are left inside.
pub fn outer_axes(extents: &[Dim]) -> usize {
    let first = extents.iter().position(|extent| *extent != Dim::ONE).map_or(0, |first| first + 1);
    let several = shared_axes(extents, SHARED_TURNS).min(extents.len().max(1) - 1);
    let inside = volume(&extents[several..]).is_none_or(|elements| elements >= BLOCK[0]);
    if inside { several.max(first) } else { first }
}

/// Loops that threads share around the nests that write parts of one result, of `loops` that there can be.
pub fn shared_loops(elements: Option<i64>, loops: usize, pick: &mut Picker<'_>) -> Result<usize> {
    let chosen = if is_large(elements) { loops } else { 0 };
    let allowed = Allowed::between(0, loops as i64, "loops around all parts of the result");
    pick.count("outer_loops", chosen, &allowed)
}

/// Elements of a block of a nest's only loop, `extent` long, where it is cut into blocks for threads to share.
pub fn block(elements: Option<i64>, extent: i64, pick: &mut Picker<'_>) -> Result<Option<usize>> {
    let chosen = if is_large(elements) { block_of(extent).unwrap_or(0) } else { 0 };
    let divisors = [0].into_iter().chain(divisors(extent, MOST_BLOCK)).collect();
    let allowed = Allowed::one_of(divisors, format!("0 for none, or divisors of the loop's extent {extent}"));
    let block = pick.count("block", chosen as usize, &allowed)?;
    Ok((block > 0).then_some(block))
}

/// Elements of a block of a loop: the largest divisor of its extent that is not too large or too small.
fn block_of(extent: i64) -> Option<i64> {
    (BLOCK[0]..=BLOCK[1]).rev().find(|block| extent % block == 0 && block % BLOCK_OF == 0)
}

/// Extents from which on a transposing nest turns squares, which costs more than it brings where they are small.
const LEAST_SQUARED: i64 = 8;

/// Side of the squares that a transposing nest turns, of elements of `bytes` bytes, where it gains by them: the extents, if known, are
/// those of the axis that lies in memory and of the innermost loop. A row is a line of the cache, but for elements that are so small that
/// a square has many.
pub fn square(bytes: usize, outer: Option<i64>, inner: Option<i64>) -> Option<usize> {
    let is_long = |extent: Option<i64>| extent.is_none_or(|extent| extent >= LEAST_SQUARED);
    let side = (64 / bytes.max(1)).min(32);
    (is_long(outer) && is_long(inner) && side > 1).then_some(side)
}
