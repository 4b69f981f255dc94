//! Offsets of blocks in one arena: blocks that are never live together may overlap.
//!
//! Constant sizes are packed by best fit in several orders. Symbolic sizes cannot be compared, so they are
//! packed among those that are multiples of one polynomial, in units of it, and otherwise take turns in
//! slots as large as the largest of their blocks. Two such plans are made; an estimate picks one.

use crate::{ALIGN, aligned, estimate};
use onnxc_ir::graph::Dim;
use std::collections::BTreeMap;

/// A block needs `bytes` from task `first` to task `last`, both included.
#[derive(Clone, Default, Debug)]
pub(super) struct ArenaSpan {
    pub bytes: Dim,
    pub first: usize,
    pub last: usize,
    /// First and last tasks of what is written there again, in the order of time.
    pub again: Vec<(usize, usize)>,
}

impl ArenaSpan {
    /// All that it needs memory for.
    pub(super) fn spans(&self) -> impl Iterator<Item = (usize, usize)> {
        std::iter::once((self.first, self.last)).chain(self.again.iter().copied())
    }

    fn meets(&self, other: &ArenaSpan) -> bool {
        self.spans().any(|(first, last)| other.spans().any(|other| first <= other.1 && other.0 <= last))
    }
}

/// Blocks that are multiples of one polynomial: their numbers and factors.
type Class = (Dim, Vec<(usize, i64)>);

/// Coefficients below this lose too much when they are rounded up to the alignment.
const MIN_UNIT: i64 = 4 * ALIGN;
/// Sizes that the largest size of a slot may be a maximum of, where they cannot be compared.
const MAX_FORMULAS: usize = 4;

/// (offset, size) of every block, and the arena's size; all multiples of [`ALIGN`].
pub(super) fn assign(blocks: &[ArenaSpan]) -> (Vec<(Dim, Dim)>, Dim) {
    let fine = assign_with(blocks, true);
    if blocks.iter().all(|block| block.bytes.is_const()) {
        return fine;
    }
    let coarse = assign_with(blocks, false);
    if estimate(&coarse.1) < estimate(&fine.1) { coarse } else { fine }
}

/// Constant blocks first, then (`classes`) the multiples of one polynomial, then slots.
fn assign_with(blocks: &[ArenaSpan], classes: bool) -> (Vec<(Dim, Dim)>, Dim) {
    let mut places = vec![(Dim::ZERO, Dim::ZERO); blocks.len()];
    let (mut groups, mut rest): (Vec<Class>, _) = (Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        match multiple(&block.bytes) {
            Some((polynomial, count)) if classes || polynomial == Dim::ONE => {
                match groups.iter_mut().find(|(own, _)| *own == polynomial) {
                    Some((_, members)) => members.push((at, count)),
                    None => groups.push((polynomial, vec![(at, count)])),
                }
            }
            _ => rest.push(at),
        }
    }
    groups.sort_by_key(|(polynomial, _)| !polynomial.is_const());
    let mut end = Dim::ZERO;
    for (polynomial, members) in groups {
        let sized: Vec<(i64, &ArenaSpan)> = members.iter().map(|&(at, count)| (count, &blocks[at])).collect();
        let (offsets, total) = pack(&sized);
        for (&(at, count), offset) in members.iter().zip(offsets) {
            let scaled = |by: i64| Dim::from(by) * polynomial.clone();
            places[at] = (end.clone() + scaled(offset), scaled(count));
        }
        end = end + Dim::from(total) * polynomial;
    }
    end = assign_slots(blocks, rest, end, &mut places);
    (places, end)
}

/// `bytes <= count * polynomial` as tightly as an aligned `count` can; `None` for what loses too much so.
fn multiple(bytes: &Dim) -> Option<(Dim, i64)> {
    if let Some(bytes) = bytes.as_const() {
        return Some((Dim::ONE, round_up(bytes.max(0))));
    }
    let gcd = bytes.terms().iter().fold(0u64, |gcd, term| greatest_divisor(gcd, term.1.unsigned_abs()));
    let gcd = i64::try_from(gcd).ok().filter(|&gcd| gcd >= MIN_UNIT)?;
    Some((bytes.exact_div(&Dim::from(gcd))?, round_up(gcd)))
}

/// The next multiple of the alignment; the greatest one where that overflows.
fn round_up(bytes: i64) -> i64 {
    bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}

fn greatest_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Rounds of improvement of an order, and the largest number of blocks for which an order is improved.
const ROUNDS: usize = 64;
const MAX_IMPROVED: usize = 1000;

/// Offsets of blocks of constant sizes, and their end: the best of several orders of best fit, improved by
/// moving the block that ends last to the front.
fn pack(blocks: &[(i64, &ArenaSpan)]) -> (Vec<i64>, i64) {
    let live = live_bytes(blocks);
    let target = live.iter().copied().max().unwrap_or(0);
    let mut best: Option<(Vec<i64>, i64)> = None;
    for mut order in orders(blocks, &live) {
        let rounds = if blocks.len() > MAX_IMPROVED { 1 } else { ROUNDS };
        for _ in 0..rounds {
            let plan = best_fit(blocks, &order);
            let end = |at: usize| plan.0[at].saturating_add(blocks[at].0);
            let last = (0..order.len()).find(|&place| end(order[place]) == plan.1);
            if best.as_ref().is_none_or(|best| plan.1 < best.1) {
                best = Some(plan);
            }
            match last {
                Some(last) if last > 0 && best.as_ref().is_some_and(|best| best.1 > target) => {
                    order[..=last].rotate_right(1);
                }
                _ => break,
            }
        }
    }
    best.unwrap_or_default()
}

/// Bytes live at each task.
fn live_bytes(blocks: &[(i64, &ArenaSpan)]) -> Vec<i64> {
    let ends = blocks.iter().flat_map(|(_, block)| block.spans());
    let tasks = ends.map(|(_, last)| last + 1).max().unwrap_or(0);
    let mut live = vec![0i64; tasks];
    for (size, block) in blocks {
        for (first, last) in block.spans() {
            live[first..=last].iter_mut().for_each(|sum| *sum = sum.saturating_add(*size));
        }
    }
    live
}

/// Orders to place blocks in: the largest, the longest-lived, the two combined, those of the fullest task
/// first, and by time.
fn orders(blocks: &[(i64, &ArenaSpan)], live: &[i64]) -> [Vec<usize>; 5] {
    let size = |at: usize| blocks[at].0;
    let length = |at: usize| (blocks[at].1.last - blocks[at].1.first + 1) as i64;
    let fullest = |at: usize| live[blocks[at].1.first..=blocks[at].1.last].iter().copied().max();
    let by = |key: &dyn Fn(usize) -> (i64, i64)| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|&at| key(at));
        order
    };
    [
        by(&|at| (-size(at), -length(at))),
        by(&|at| (-length(at), -size(at))),
        by(&|at| (-size(at).saturating_mul(length(at)), -size(at))),
        by(&|at| (-fullest(at).unwrap_or(0), -size(at))),
        by(&|at| (blocks[at].1.first as i64, -size(at))),
    ]
}

/// Places blocks in `order`, each in the smallest gap between those placed that are live with it.
fn best_fit(blocks: &[(i64, &ArenaSpan)], order: &[usize]) -> (Vec<i64>, i64) {
    let mut offsets = vec![0i64; blocks.len()];
    // Placed blocks, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut total = 0;
    for &at in order {
        let (size, block) = blocks[at];
        if size == 0 {
            continue;
        }
        let (mut free, mut best): (i64, Option<(i64, i64)>) = (0, None);
        for &other in placed.iter().filter(|&&other| blocks[other].1.meets(block)) {
            let gap = offsets[other] - free;
            if gap >= size && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, free));
            }
            free = free.max(offsets[other].saturating_add(blocks[other].0));
        }
        offsets[at] = best.map_or(free, |(_, offset)| offset);
        total = total.max(offsets[at].saturating_add(size));
        let slot = placed.partition_point(|&other| offsets[other] <= offsets[at]);
        placed.insert(slot, at);
    }
    (offsets, total)
}

/// How many slots, full ones and others, a block's size is compared with, those of the nearest estimates first: with all of them time
/// would be quadratic, as each is a polynomial.
const MAX_COMPARED: usize = 32;

/// Blocks that take turns.
struct Slot {
    size: Dim,
    /// Of the size.
    estimate: i64,
    formulas: usize,
    members: Vec<usize>,
    /// The last tasks of the members by their first ones; no two overlap.
    taken: BTreeMap<usize, usize>,
}

impl Slot {
    fn is_free(&self, block: &ArenaSpan) -> bool {
        let is_free = |(first, last): (usize, usize)| {
            self.taken.range(..=last).next_back().is_none_or(|(_, &other)| other < first)
        };
        block.spans().all(is_free)
    }

    fn add(&mut self, at: usize, block: &ArenaSpan) {
        self.members.push(at);
        self.taken.extend(block.spans());
    }
}

/// Places the blocks numbered `rest` in slots from `end` on; gives the new end.
fn assign_slots(blocks: &[ArenaSpan], mut rest: Vec<usize>, mut end: Dim, places: &mut [(Dim, Dim)]) -> Dim {
    rest.sort_by_cached_key(|&at| (std::cmp::Reverse(estimate(&blocks[at].bytes)), blocks[at].first));
    let mut slots: Vec<Slot> = Vec::new();
    for at in rest {
        let size = aligned(&blocks[at].bytes);
        places[at].1 = size.clone();
        let own = estimate(&size);
        let mut near: Vec<(i64, usize)> = Vec::new();
        for (number, slot) in slots.iter().enumerate() {
            if slot.is_free(&blocks[at]) {
                // A slot of exactly this size is best, then one whose size stays simple and is near.
                near.push((if slot.size == size { -1 } else { slot.estimate - own }, number));
            }
        }
        near.sort_unstable();
        let mut best: Option<(i64, usize, Dim, usize)> = None;
        let mut compared_with = [0; 2];
        for (cost, number) in near {
            let slot = &slots[number];
            // A full slot takes only what compares with it, and must not keep the others from being looked at.
            let count = &mut compared_with[usize::from(slot.formulas == MAX_FORMULAS)];
            if *count == MAX_COMPARED {
                continue;
            }
            *count += 1;
            let largest = slot.size.max_dim(&size);
            let compared = largest == slot.size || largest == size;
            let formulas = slot.formulas + usize::from(!compared);
            if formulas > MAX_FORMULAS {
                continue;
            }
            let cost = if compared { cost } else { cost.saturating_add(i64::MAX / 2) };
            if best.as_ref().is_none_or(|best| cost < best.0) {
                best = Some((cost, number, largest, formulas));
            }
            // The others cost as much or more.
            if compared {
                break;
            }
        }
        let number = match best {
            Some((_, number, size, formulas)) => {
                let slot = &mut slots[number];
                (slot.estimate, slot.formulas) = (estimate(&size), formulas);
                slot.size = size;
                number
            }
            None => {
                let (members, taken) = (vec![], BTreeMap::new());
                slots.push(Slot { size, estimate: own, formulas: 1, members, taken });
                slots.len() - 1
            }
        };
        slots[number].add(at, &blocks[at]);
    }
    for slot in slots {
        for at in slot.members {
            places[at].0 = end.clone();
        }
        end = end + slot.size;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;
    use onnxc_ir::graph::Sym;
    use proptest::prelude::*;

    fn block(bytes: impl Into<Dim>, first: usize, last: usize) -> ArenaSpan {
        ArenaSpan { bytes: bytes.into(), first, last, ..Default::default() }
    }

    /// Sizes suffice, places are aligned and inside, and blocks that meet do not overlap.
    fn assert_valid(blocks: &[ArenaSpan], (places, arena): &(Vec<(Dim, Dim)>, Dim), symbol: i64) {
        let eval = |dim: &Dim| dim.eval(&|_| Some(symbol)).unwrap();
        for (at, (offset, size)) in places.iter().enumerate() {
            assert!(eval(size) >= eval(&blocks[at].bytes));
            assert_eq!(eval(offset) % ALIGN, 0);
            assert!(eval(offset) + eval(size) <= eval(arena));
            for (other, (other_offset, other_size)) in places[..at].iter().enumerate() {
                let apart = eval(offset) + eval(size) <= eval(other_offset)
                    || eval(other_offset) + eval(other_size) <= eval(offset);
                assert!(apart || !blocks[at].meets(&blocks[other]), "{at} and {other}");
            }
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let blocks: Vec<ArenaSpan> = (0..10usize).map(|at| block(1000i64, at, at + 1)).collect();
        let plan = assign(&blocks);
        assert_valid(&blocks, &plan, 1);
        assert_eq!(plan.1, Dim::from(2048i64));
    }

    #[test]
    fn symbolic_chains_reuse_their_bytes() {
        let s = Dim::sym(Sym::new(0));
        let blocks: Vec<ArenaSpan> =
            (0..8usize).map(|at| block(s.clone() * Dim::from(4096i64 << (at % 2)), at, at + 1)).collect();
        let plan = assign(&blocks);
        assert_valid(&blocks, &plan, 7);
        assert_eq!(plan.1, s.clone() * Dim::from(12288i64));
        // Small multiples are not rounded up to the alignment for every unit of the symbol.
        let blocks: Vec<ArenaSpan> =
            (0..8usize).map(|at| block(s.clone() * Dim::from(4i64), at, at + 1)).collect();
        let plan = assign(&blocks);
        assert_valid(&blocks, &plan, 7);
        assert_eq!(plan.1.eval(&|_| Some(64)), Some(512));
    }

    /// Sizes that cannot be compared, in more slots than are looked at: blocks share one up to the limit of its formula.
    #[test]
    fn sizes_of_their_own_take_turns() {
        for live in [2usize, 100] {
            let size = |at: usize| Dim::sym(Sym::new(at)) * Dim::from(8i64);
            let blocks: Vec<ArenaSpan> = (0..200).map(|at| block(size(at), at, at + live)).collect();
            let plan = assign(&blocks);
            assert_valid(&blocks, &plan, 7);
            let slots = plan.1.eval(&|_| Some(7)).unwrap() / ALIGN;
            let least = (blocks.len() / MAX_FORMULAS).max(live + 1) as i64;
            assert!((least..=least + 2).contains(&slots), "{slots} slots of {live}");
        }
    }

    proptest! {
        #[test]
        fn plans_are_valid_and_near_the_bound(
            spec in prop::collection::vec((0i64..5000, 0usize..30, 0usize..6, 0u8..3), 1..40),
        ) {
            let s = Dim::sym(Sym::new(0));
            let blocks: Vec<ArenaSpan> = spec
                .iter()
                .map(|&(size, first, length, kind)| match kind {
                    0 => block(size, first, first + length),
                    1 => block(s.clone() * Dim::from(size), first, first + length),
                    _ => block((s.clone() + Dim::from(3i64)) * Dim::from(size / 512), first, first + length),
                })
                .collect();
            let plan = assign(&blocks);
            for symbol in [1, 2, 7, 64] {
                assert_valid(&blocks, &plan, symbol);
            }
            let fixed: Vec<ArenaSpan> = blocks.into_iter().filter(|block| block.bytes.is_const()).collect();
            let plan = assign(&fixed);
            let live = |at: usize| -> i64 {
                let at_once = fixed.iter().filter(|block| block.first <= at && at <= block.last);
                at_once.map(|block| aligned(&block.bytes).as_const().unwrap()).sum()
            };
            let bound = (0..40).map(live).max().unwrap();
            prop_assert!(plan.1.as_const().unwrap() as f64 <= 1.25 * bound as f64);
        }
    }
}
