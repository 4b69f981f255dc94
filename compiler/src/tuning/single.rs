//! Primitives with a loop nest of their own: sorts.

use super::{Allowed, Picker};
use crate::error::Result;

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
