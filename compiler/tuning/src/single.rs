//! Primitives with a loop nest of their own: sorts and decision trees.

use super::{Allowed, Picker};
use onnxc_ir::error::Result;

/// Elements of a block of a long row that is skipped if none of them enters the heap.
const BLOCK: i64 = 128;

/// How many times as long as the result a row is whose blocks are mostly skipped.
const SPARSE: i64 = 256;

/// A sort by a heap.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    /// Elements of a block whose extreme is compared before they are.
    pub block: i64,
    /// Least elements of a row for each of its result from which on rows are in blocks.
    pub sparse: i64,
}

impl Sort {
    pub fn choose(pick: &mut Picker<'_>) -> Result<Sort> {
        let block = pick.pick("block", BLOCK, &Allowed::between(1, 1 << 16, "elements of a block"))?;
        let sparse =
            pick.pick("sparse", SPARSE, &Allowed::between(1, 1 << 40, "elements for each result"))?;
        Ok(Sort { block, sparse })
    }
}

/// Operations of a test of many rows at once: to find its operands, and for each vector of rows with bounds from one side or from
/// both.
const TEST: u64 = 14;
const TEST_VECTOR: [u64; 2] = [3, 5];

/// Operations for a row that has found its leaf, and of a step of a row that is walked.
const FOUND: u64 = 8;
const STEP: u64 = 12;

/// Bytes of a kernel's frame for the columns of a block of rows.
const BLOCK_BYTES: i64 = 32 << 10;

/// What trees are like.
#[derive(Clone, Copy, Debug)]
pub struct Forest {
    pub trees: u64,
    /// Steps of a row through all of them.
    pub steps: u64,
    /// Tests of a vector of rows, and whether these have bounds from both sides.
    pub tests: u64,
    pub intervals: bool,
    pub columns: u64,
}

/// How rows go through decision trees.
#[derive(Clone, Copy, Debug)]
pub struct Leaves {
    /// Vectors of rows that take all tests at once; 0: each row is walked.
    pub vectors: usize,
}

impl Leaves {
    /// For vectors of `lanes` lanes of 32 bits.
    pub fn choose(forest: &Forest, lanes: usize, pick: &mut Picker<'_>) -> Result<Leaves> {
        let bytes = (forest.columns as i64).saturating_mul(4 * lanes as i64).max(1);
        let most = match BLOCK_BYTES / bytes {
            _ if lanes < 2 => 0,
            room => room.clamp(1, 4),
        };
        let pays = most > 0 && Self::masked(forest, lanes, most as u64) < STEP * forest.steps;
        let allowed = Allowed::between(0, most, format!("vectors of {bytes} bytes of columns"));
        Ok(Leaves { vectors: pick.count("vectors", if pays { most as usize } else { 0 }, &allowed)? })
    }

    /// Operations per row that takes all tests.
    fn masked(forest: &Forest, lanes: usize, vectors: u64) -> u64 {
        let test = TEST + TEST_VECTOR[usize::from(forest.intervals)] * vectors;
        forest.tests * test / (vectors * lanes as u64) + FOUND * forest.trees
    }

    /// Whether tests of vectors may pay on some machine.
    pub fn may_pay(forest: &Forest) -> bool {
        Self::masked(forest, 16, 4) < STEP * forest.steps
    }
}
