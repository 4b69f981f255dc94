//! Elementwise nests, and copies: what threads share of them.

use super::{Allowed, Picker, divisors};
use crate::error::Result;

/// Elements from which on the outermost loop of a nest stays apart, so that threads can share it. Fewer are fused into as few
/// loops as can be.
const PARALLEL_ELEMENTS: i64 = 1 << 15;

/// Iterations of a loop that threads would not share evenly.
const FEW: i64 = 8;

/// Elements per iteration of a loop that threads share and that has no inner one: from the first to the second.
const BLOCK: [i64; 2] = [1 << 9, 1 << 13];

/// A block is a multiple of this many elements: whole vectors of any width.
const BLOCK_OF: i64 = 16;

/// Most elements of a block that are worth trying.
const MOST_BLOCK: i64 = 1 << 16;

/// Whether a result of so many elements, where known, is worth sharing between threads.
fn is_large(elements: Option<i64>) -> bool {
    elements.is_none_or(|count| count >= PARALLEL_ELEMENTS)
}

/// Outermost loops of a nest that are not fused with those inside: one that threads share, where the result is large and
/// that loop has enough iterations. `loops` is their number, `outermost` the extent of the first where known.
pub fn outer_loops(
    elements: Option<i64>,
    loops: usize,
    outermost: Option<i64>,
    pick: &mut Picker<'_>,
) -> Result<usize> {
    let apart = loops > 0 && is_large(elements) && outermost.is_none_or(|extent| extent >= FEW);
    let allowed = Allowed::between(0, loops as i64, format!("the nest has {loops} loops"));
    pick.count("outer_loops", usize::from(apart), &allowed)
}

/// Loops that threads share around the nests that write parts of one result, of `loops` that there can be.
pub fn shared_loops(elements: Option<i64>, loops: usize, pick: &mut Picker<'_>) -> Result<usize> {
    let chosen = if is_large(elements) { loops } else { 0 };
    let allowed = Allowed::between(0, loops as i64, "loops around all parts of the result");
    pick.count("outer_loops", chosen, &allowed)
}

/// Elements of a block of a nest's only loop, `extent` long, where it is cut into such for threads to share.
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
