//! Rows groups and chains: rows that are taken together, and what their kernels keep besides their results.

use super::{Allowed, Picker};
use onnxc_ir::error::Result;

/// Rows of a block: register tiles are 6 rows high where vectors have 256 bits, which divides this. With 14 rows, those of 512 bits,
/// two tiles of 12.
const BLOCK_ROWS: i64 = 24;

/// The same where weights are bf16: two of the processor's tiles. Blocks of twice the rows take no less time on Sapphire Rapids.
const NARROW_BLOCK_ROWS: i64 = 32;

/// Parts that the blocks are dealt out to, each with rows of its own in the scratch. Threads share them.
const PARTS: i64 = 16;

/// Bytes of the rows that a rows group keeps besides its results, at most: they stay in the second-level cache.
pub const MOST_KEPT_ROWS: i64 = 1 << 18;

/// Bytes of scores, less those of keys, above which attention is one kernel that stores no scores: less stay in a
/// second-level cache between kernels.
pub const CHAIN_ABOVE: i64 = 1 << 18;

/// What each symbol is taken to be where it decides whether a chain pays: a sequence worth one.
pub const LONG_SEQUENCE: i64 = 1024;

/// How the rows of a chain are dealt out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainBlocks {
    pub block_rows: i64,
    /// Parts that the blocks are dealt out to, at most.
    pub parts: i64,
}

impl ChainBlocks {
    /// For any target: the schedule gives a chain memory for these blocks, which all levels of a target have. `narrow`: weights have
    /// 16 bits.
    pub fn chosen(narrow: bool) -> ChainBlocks {
        ChainBlocks { block_rows: if narrow { NARROW_BLOCK_ROWS } else { BLOCK_ROWS }, parts: PARTS }
    }

    /// Blocks that fit the memory for `scheduled` parts of the chosen ones.
    pub fn choose(narrow: bool, scheduled: i64, pick: &mut Picker<'_>) -> Result<ChainBlocks> {
        let why = |what: &str| format!("the scratch has room for that number of {what}");
        let most = ChainBlocks::chosen(narrow).block_rows;
        let rows = Allowed::between(1, most, why("rows of each part"));
        let block_rows = pick.pick("block_rows", most, &rows)?;
        let parts = pick.pick("parts", scheduled, &Allowed::between(1, scheduled, why("parts")))?;
        Ok(ChainBlocks { block_rows, parts })
    }
}
