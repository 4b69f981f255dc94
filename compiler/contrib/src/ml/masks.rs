//! The leaves that rows reach, without walking: each test of a tree that sends a row to the right clears the leaves on its left
//! from a word of bits, one bit per leaf, and the first leaf that is left is the one.
//!
//! Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive ensembles of regression trees", SIGIR 2015. What
//! is here for many rows at once has neither branches on data nor elements from different places: rows are lanes.

use super::forest::Interval;
use super::steps::{Ask, Columns, Next, TreeStep};

/// Leaves of one tree that are worth it; with more, walking takes less.
const MAX_LEAVES: usize = 512;
/// Columns of a block of rows, which stand in a kernel's frame.
const MAX_COLUMNS: usize = 256;
/// Bits of a word.
const WORD: usize = 32;

/// A test that clears leaves: `low <= column <= high`.
struct Clear {
    place: usize,
    low: f64,
    high: f64,
    /// Leaves of the tree, from the left.
    first: usize,
    end: usize,
}

/// The lists that [`onnxc_ir::graph::Op::Leaves`] has for this.
#[derive(Default)]
pub(super) struct Masks {
    /// Whether tests have bounds from above, too.
    pub intervals: bool,
    pub trees: Vec<i32>,
    pub words: Vec<i32>,
    pub bases: Vec<i32>,
    pub order: Vec<i32>,
    pub places: Vec<i32>,
    pub bits: Vec<i32>,
    pub lows: Vec<f64>,
    pub highs: Vec<f64>,
}

impl Masks {
    /// `None` where a tree has too many leaves, or there are too many columns.
    pub(super) fn of(steps: &[TreeStep], columns: &Columns, roots: &[Next]) -> Option<Masks> {
        if columns.count() > MAX_COLUMNS {
            return None;
        }
        let intervals = columns.intervals || !columns.categories.is_empty();
        let mut masks = Masks { intervals, trees: vec![0], words: vec![0], ..Masks::default() };
        for &root in roots {
            let (mut leaves, mut clears) = (vec![], vec![]);
            walk(steps, columns, root, &mut leaves, &mut clears)?;
            let base = masks.order.len();
            // From the right, so that the first word that has a leaf left is the last one to be looked at. Bits beyond the last
            // leaf are never cleared: where they come first in the last word, all of its leaves are.
            for word in (0..leaves.len().div_ceil(WORD)).rev() {
                let (start, end) = (word * WORD, leaves.len().min((word + 1) * WORD));
                for clear in clears.iter().filter(|clear| clear.first < end && clear.end > start) {
                    let of = |leaf: usize| 1u32 << (leaf - start);
                    let bits = (clear.first.max(start)..clear.end.min(end)).map(of).sum::<u32>();
                    masks.places.push(clear.place as i32);
                    masks.bits.push(bits as i32);
                    masks.lows.push(clear.low);
                    masks.highs.push(clear.high);
                }
                masks.words.push(masks.places.len() as i32);
                masks.bases.push((base + start) as i32);
            }
            masks.trees.push(masks.bases.len() as i32);
            masks.order.extend(leaves.iter().map(|&leaf| leaf as i32));
        }
        Some(masks)
    }
}

/// Adds the leaves below a place, from the left, and what clears them.
fn walk(
    steps: &[TreeStep],
    columns: &Columns,
    at: Next,
    leaves: &mut Vec<u32>,
    clears: &mut Vec<Clear>,
) -> Option<()> {
    let step = match at {
        Next::Leaf(leaf) => {
            leaves.push(leaf);
            return (leaves.len() <= MAX_LEAVES).then_some(());
        }
        Next::Step(at) => &steps[at as usize],
    };
    let first = leaves.len();
    walk(steps, columns, step.left, leaves, clears)?;
    let (end, place) = (leaves.len(), columns.place(step));
    match &step.ask {
        Ask::Interval(interval) => {
            let Interval { low, high } = columns.bounds(*interval);
            clears.push(Clear { place, low, high, first, end });
        }
        // The column is the category: neighbours are one interval.
        Ask::Category(right) => {
            let right: Vec<bool> = (0..columns.entries(step.feature)).map(|index| right.of(index)).collect();
            let mut from = 0;
            for run in right.chunk_by(|a, b| a == b) {
                if run[0] {
                    let (low, high) = (from as f64, (from + run.len() - 1) as f64);
                    clears.push(Clear { place, low, high, first, end });
                }
                from += run.len();
            }
        }
    }
    walk(steps, columns, step.right, leaves, clears)
}
