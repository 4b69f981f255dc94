//! Contractions: register tiles, partial sums, widened blocks of panels, the processor's tiles, the order of tiles.

use super::{Allowed, CACHE_LINE, Picker, kept_in_l2, sum_part, sum_terms};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::{product, volume};
use onnxc_ir::graph::{DType, Dim, PAIR_DEPTH};
use onnxc_machine::target::Core;
use onnxc_machine::vector::isa::{MAX_ROW_BYTES, MAX_ROWS};

/// Minimum bytes of a panel row for which tiles taller than latency requires pay off: a wide panel is read less often for more rows.
const WIDE_PANEL: usize = 64;

/// Most rows of a tile, of narrow panels and of wide ones.
const ROWS: [usize; 2] = [10, 14];

/// Extent of the last row axis from which on it is tiled on its own where its rows do not continue each other: shorter
/// ones would have tiles of few rows.
pub const LONG_AXIS: i64 = 12;

/// Steps of the innermost axis per iteration, so that the loop's own instructions are few beside theirs.
const UNROLL: i64 = 8;

/// Most rows of a tile of digits: with more, the parts in which one of them has none are more.
const DIGIT_ROWS: usize = 6;

/// Words of codes per iteration for digits: those of a block of 32 codes of 4 bits.
const DIGIT_UNROLL: i64 = 4;

/// Vectors that a product of bytes takes in between, where it is several instructions.
const PRODUCT_TEMPS: usize = 2;

/// Rows of a tile below which a part of a panel's columns is taken at a time: each vector of a panel would be loaded for too few
/// products.
const FEW_ROWS: usize = 3;

/// Vectors of a panel's row that all rows take before the next ones, where elements are lanes: those that one instruction
/// loads. The registers of the first ones are then free for those of the next step while the others are taken.
const GROUP: usize = 2;

/// Cache lines of the next panel asked for per iteration of a register tile's inner loop.
const PREFETCHES: i64 = 4;

/// The same for a step on the processor's tiles, or of a widened block: it takes this number of lines of a panel of 32 columns.
const BLOCK_PREFETCHES: i64 = 32;

/// Bytes of an operand from which on it is taken as far: until a constant is read again, all others of the model are. Products of
/// mobilenet_v2_f16 with 110 to 184 KB of weights take 0.93 of the time on Zen 5 where these are asked for.
const FAR: i64 = 64 << 10;

/// Bytes that a panel which a single tile of few rows reads is asked for ahead of its use. As measured from memory, on Zen 5: 54 MB
/// of f16 take 2.36 ms without, 1.91 with 4 KiB, 1.77 with 8, 1.92 with 16; f32 5% less; 4 bits 0.53 with 4 KiB, 0.47 with 8. On
/// Sapphire Rapids 85 MB of 4 bits take 24.9 ms without, 19.6 with 4 KiB, 19.9 with 8.
const STREAM_AHEAD: i64 = 8 << 10;

/// Most lines per iteration that are worth trying.
const MOST_PREFETCHES: i64 = 256;

/// Parts that a large contraction has for threads to share, panels times parts of their rows, for similar work in each of a few threads.
const PARTS: i64 = 12;

/// The rows of a panel are cut into a multiple of this many parts, so that a few threads begin with whole blocks of rows.
const PARTS_OF_ROWS: i64 = 4;

/// Least tiles of a part of a panel's rows: each part loads the panel anew.
pub const PART_TILES: usize = 3;

/// Least tiles of a block of rows that stays in the second-level cache: each block loads all panels anew.
const BLOCK_TILES: i64 = 4;

/// Multiplications below which a contraction needs no parts.
const SMALL: i64 = 1 << 16;

/// Rows that share a widened block of a panel, at least, where the kernel has room for their sums: widening costs about as much
/// as three rows. The 197 of vit_b_16 at once, in blocks of 24 KiB, take 0.96 of the time of two halves in blocks of 16 KiB on
/// Emerald Rapids.
const STAGE_ROWS: usize = 200;

/// Bytes of a widened block, at most: of what a kernel has of the stack, and half of the first-level cache.
const STAGE_BYTES: usize = 24 << 10;

/// Bytes of the sums of its rows, at most.
const STAGE_SUM_BYTES: usize = 28 << 10;

/// Bytes of a widened panel, at most: it needs no room for sums.
const STAGE_PANEL_BYTES: usize = 32 << 10;

/// Least steps of a block that is not a whole panel: for each block, the sums of a tile are loaded and stored.
const STAGE_STEPS: usize = 32;

/// Tiles of rows from which on a panel is widened first.
const STAGE_TILES: usize = 2;

/// Rows whose epilogues are interleaved where sums come from the processor's tiles: enough to hide the latency of one.
const EPILOGUE_ROWS: usize = 4;

/// Share of the first-level cache that sums of several blocks of rows have, and most blocks. Each change from an epilogue's vectors to
/// tiles takes some 100 cycles besides, as measured on Sapphire Rapids' successors; with sums in half of the cache, the other data are
/// evicted from it.
const SUMS_SHARE: usize = 6;
const MAX_BLOCKS: usize = 8;

/// Cycles on Sapphire Rapids' successors, as measured: of a product of the processor's tiles at the least, besides those per row,
/// per row (16ths), and of a row of an accumulator that is stored and loaded again.
const LEAST_CYCLES: usize = 9;
const DOT_CYCLES: usize = 3;
const ROW_CYCLES_16THS: usize = 13;
const MOVE_CYCLES: usize = 3;

/// Bytes of the left-hand side's rows that are multiplied per cycle and column without the processor's tiles: integers, and pairs of
/// bf16, for which processors with tiles take two cycles an instruction.
const VECTOR_PRODUCTS: usize = 128;
const VECTOR_BF16_PRODUCTS: usize = 32;

/// What register tiles are chosen by.
pub struct Facts<'a> {
    pub core: &'a Core,
    /// Columns of a panel, and lanes of the vectors that hold them.
    pub panel: usize,
    pub lanes: usize,
    pub sum: DType,
    /// Steps of the inner axes that a product adds up at once: small integers of a word.
    pub depth: usize,
    /// Whether the weights are codes of few bits, which tiles of few rows widen in registers.
    pub codes: bool,
    /// Whether the right-hand side may be widened for several tiles at once.
    pub narrow: bool,
    /// Bytes between neighbouring rows of the left-hand side, where constant.
    pub row_distance: Option<i64>,
    /// Whether steps of the last inner axis are neighbours in the left-hand side, all those that the loop writes out.
    pub neighbours: bool,
    pub row_axes: usize,
    /// Whether there is one row, for certain.
    pub one_row: bool,
    /// Whether finding a row's place by its number among all rows takes divisions.
    pub divides: bool,
    /// Whether whole tiles may read nothing but padding.
    pub has_taps: bool,
    /// Row axes that must have loops, and no others.
    pub loops: Option<usize>,
    /// Extent of the last row axis, where constant.
    pub last_axis: Option<i64>,
}

/// How a tile takes the columns of a panel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileColumns {
    /// A divisor of the panel's columns.
    pub count: usize,
    /// Those that all rows take before they take the next ones.
    pub together: usize,
    /// Whether a row of the panel is loaded group by group, too, for want of registers.
    pub is_crowded: bool,
}

/// Register tiles and their inner loops.
#[derive(Clone, Debug)]
pub struct RegisterTile {
    /// Leading row axes with loops of their own; the others form one axis that is cut into tiles.
    pub row_loops: usize,
    pub rows: usize,
    /// Of tiles of several rows, and of those of a single one.
    many: TileColumns,
    lone: TileColumns,
    /// Steps per iteration of the innermost loop, or a divisor of its extent close to it.
    pub unroll: i64,
    /// Loops of fewer steps are written out.
    pub short: bool,
    /// Terms of a partial sum, at most, where sums are cut; for the exact ones of integers there is no limit.
    pub sum_terms: i64,
}

impl RegisterTile {
    pub fn choose(facts: &Facts<'_>, pick: &mut Picker<'_>) -> Result<RegisterTile> {
        let &Facts { core, panel, lanes, sum, .. } = facts;
        let vectors = (1..=panel / lanes).filter(|vectors| (panel / lanes).is_multiple_of(*vectors));
        let allowed = match facts.codes || facts.narrow {
            true => Allowed::one_of(vec![panel as i64], "panels that are widened are taken whole"),
            false => Allowed::one_of(
                vectors.map(|vectors| (vectors * lanes) as i64).collect(),
                format!("multiples of {lanes} lanes that divide the {panel} columns of a panel"),
            ),
        };
        // A row of the panel, with codes those as well, and an element of the left-hand side; where products take lanes, a
        // vector of each row's elements.
        let own_products = match facts.depth {
            1 => true,
            PAIR_DEPTH if sum.is_float() => core.has_bf16_products(),
            PAIR_DEPTH => core.has_pair_products(),
            _ => core.has_byte_products(),
        };
        let by_lane = facts.neighbours && !facts.codes && own_products && core.has_element_products();
        let between = |vectors: usize| match own_products {
            true => 0,
            false if facts.depth == PAIR_DEPTH && !sum.is_float() || core.has_element_products() => {
                PRODUCT_TEMPS
            }
            // Both halves of operands that are otherwise one.
            false => PRODUCT_TEMPS + vectors,
        };
        // Registers of operands, those of each row, and the rows that fit.
        let fit = |vectors: usize| {
            let own = if by_lane { vectors + 1 } else { vectors };
            let codes = if facts.codes { vectors } else { 0 };
            let operands = vectors + codes + usize::from(!by_lane) + between(vectors);
            (operands, own, (core.vector_registers.saturating_sub(operands) / own).max(1))
        };
        // Panels for longer vectors are taken in parts: of one row, parts with sums that stay in registers beside a vector of the panel.
        let whole = facts.codes || facts.narrow || lanes == 1;
        let vectors = panel / lanes;
        let beside = |part: usize| fit(part).0 - part + 1;
        let holds = |part: usize, one_row: bool| match one_row {
            true => fit(part).1 + beside(part) <= core.vector_registers,
            false => fit(part).2 >= FEW_ROWS,
        };
        // Parts of whole cache lines: with others, each part reads lines for columns that it has not.
        let has_lines = |part: &usize| {
            *part == vectors || (part * lanes * sum.size()).is_multiple_of(CACHE_LINE as usize)
        };
        let part = |one_row: bool| {
            let divides = |part: &usize| vectors.is_multiple_of(*part) && holds(*part, one_row);
            let parts = || (1..=vectors).rev().filter(divides);
            parts().find(has_lines).or_else(|| parts().next()).filter(|_| !whole).unwrap_or(vectors)
        };
        let columns = pick.count("columns", part(facts.one_row) * lanes, &allowed)?;
        // A row that is alone waits for the panel, which it reads from the first byte to the last.
        let lone_columns = match part(true) * lanes {
            wider if !facts.one_row && wider > columns => pick.count("lone_columns", wider, &allowed)?,
            _ => columns,
        };
        let vectors = columns / lanes;
        let (operands, own, fit_rows) = fit(vectors);
        let registers = Allowed::between(
            1,
            fit_rows as i64,
            format!(
                "of {} vector registers, operands take {operands} and each row {own}",
                core.vector_registers
            ),
        );
        let rows = pick.count("rows", rows(facts, columns, fit_rows), &registers)?;
        let long = facts.has_taps || facts.last_axis.is_none_or(|extent| extent >= LONG_AXIS);
        let most = facts.row_axes.saturating_sub(1);
        let loops = match facts.loops {
            Some(axes) => {
                Allowed::one_of(vec![axes as i64], "those before the first that is padded without memory")
            }
            None => Allowed::between(0, most as i64, "all row axes but the last"),
        };
        let wanted = facts.loops.unwrap_or(if facts.divides && long { most } else { 0 });
        let row_loops = pick.count("row_loops", wanted, &loops)?;
        let unroll = pick.pick("unroll", UNROLL, &Allowed::between(1, 64, "steps are written out"))?;
        let sum_terms = match sum.is_float() {
            true => sum_terms(pick)?,
            false => i64::MAX,
        };
        let short = core.has_element_products() || sum.is_float();
        let groups = (1..=vectors).filter(|group| vectors.is_multiple_of(*group));
        let groups = Allowed::one_of(groups.map(|group| (group * lanes) as i64).collect(), "whole vectors");
        // Where the registers do not hold a row of the panel beside the sums, it comes in groups.
        let take = |columns: usize, rows: usize| {
            let vectors = columns / lanes;
            let (operands, own, _) = fit(vectors);
            let is_crowded = lanes > 1 && !by_lane && rows * own + operands > core.vector_registers;
            let room = (core.vector_registers + 1).saturating_sub(rows * own + beside(vectors)).max(1);
            let divisor = |most: usize| (1..=most).rev().find(|group| vectors.is_multiple_of(*group));
            let group = match is_crowded {
                true => divisor(vectors.min(room)).unwrap_or(1),
                false if by_lane && vectors.is_multiple_of(GROUP) => GROUP,
                false => vectors,
            };
            TileColumns { count: columns, together: group * lanes, is_crowded }
        };
        let many = take(columns, rows);
        let many = TileColumns { together: pick.count("together", many.together, &groups)?, ..many };
        let lone = if lone_columns == columns { many } else { take(lone_columns, 1) };
        Ok(RegisterTile { row_loops, rows, many, lone, unroll, short, sum_terms })
    }

    /// The columns that tiles of some rows take at a time.
    pub fn columns(&self, rows: usize) -> TileColumns {
        if rows == 1 { self.lone } else { self.many }
    }

    /// Parts of a sum over an axis of `extent`, where it is cut: the largest divisor that is not far below the limit.
    pub fn part_of(&self, extent: i64) -> Option<usize> {
        (extent > self.sum_terms).then(|| sum_part(extent, self.sum_terms))?.map(|part| part as usize)
    }

    /// Steps per iteration of a loop of `extent`: near the number wanted, and a divisor of the extent if possible.
    pub fn unroll_of(&self, extent: Option<i64>) -> i64 {
        let Some(extent) = extent else { return self.unroll };
        if self.short && (1..self.unroll).contains(&extent) {
            return extent;
        }
        let near = [0, 1, -1, 2, -2, 4, -3].map(|more| self.unroll + more);
        near.into_iter().find(|count| *count > 0 && extent % count == 0).unwrap_or(self.unroll)
    }

    /// Whether `steps` steps of several short axes, terms of one partial sum, are all written out.
    pub fn writes_out(&self, steps: i64) -> bool {
        steps <= (self.unroll + self.unroll / 2).min(self.sum_terms)
    }
}

/// Register tiles of a left-hand side that is digits.
#[derive(Clone, Debug)]
pub struct DigitTile {
    pub rows: usize,
    /// Words of codes per iteration of the innermost loop, or a divisor of their number close to it.
    pub unroll: i64,
}

impl DigitTile {
    /// `sums`: those of integers that each row and column of a tile of several rows has.
    pub fn choose(facts: &Facts<'_>, sums: usize, pick: &mut Picker<'_>) -> Result<DigitTile> {
        let vectors = facts.panel / facts.lanes;
        // Words and the codes in them, a digit of each row, the mask.
        let operands = 2 * vectors + 2;
        let each = vectors * (sums + 1);
        let fit = (facts.core.vector_registers.saturating_sub(operands) / each).max(1);
        let why = format!("each row takes {each} of {} vector registers", facts.core.vector_registers);
        let rows = pick.count("digit_rows", fit.min(DIGIT_ROWS), &Allowed::between(1, fit as i64, why))?;
        let words = Allowed::between(1, 64, "words are written out");
        Ok(DigitTile { rows, unroll: pick.pick("digit_unroll", DIGIT_UNROLL, &words)? })
    }
}

fn rows(facts: &Facts<'_>, columns: usize, fit: usize) -> usize {
    let most = ROWS[usize::from(columns * facts.sum.size() >= WIDE_PANEL)];
    // Rows a multiple of the size of a way apart meet in the same lines of each way; the panel takes one way.
    let way = (facts.core.l1_bytes / facts.core.l1_ways) as i64;
    let aliased = facts.row_distance.is_some_and(|bytes| bytes != 0 && bytes % way == 0);
    let most = if aliased { most.min(facts.core.l1_ways.saturating_sub(1).max(1)) } else { most };
    fit.clamp(1, most)
}

/// How panels of narrow elements are widened in blocks, for many rows.
#[derive(Clone, Debug)]
pub struct Widening {
    /// Steps of a block, at most; 0 for none.
    pub steps: usize,
    /// Rows that share a block, at least.
    pub rows: usize,
    /// Rows from which on it is done.
    pub least_rows: usize,
    /// Cache lines of the next block asked for per iteration.
    pub prefetch: i64,
}

/// The inner axes in blocks: the axis that is cut, the part of it that a block has, and the steps of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    pub axis: usize,
    pub chunk: usize,
    pub steps: usize,
}

impl Widening {
    /// For inner axes of these extents; `per_word` steps of the last one are in a word of codes. `digits`: products of digits with codes
    /// of 4 bits take an instruction each, which is faster for any number of rows: of 32, 128 and 400 tokens of a prompt of llama_q4
    /// by 10%, 8% and 7% on Zen 5.
    pub fn choose(
        core: &Core,
        tile: &RegisterTile,
        row_bytes: usize,
        inner: &[i64],
        per_word: Option<usize>,
        digits: bool,
        pick: &mut Picker<'_>,
    ) -> Result<Widening> {
        let fit = STAGE_BYTES.min(core.l1_bytes / 2) / row_bytes;
        let all = inner.iter().fold(1, |all: usize, &extent| all.saturating_mul(extent as usize));
        let whole = !inner.is_empty() && all <= STAGE_PANEL_BYTES / row_bytes;
        let most = if whole { all } else { fit.min(usize::try_from(tile.sum_terms).unwrap_or(usize::MAX)) };
        let blocks = Blocks::of(inner, most, per_word);
        let worth = !digits && blocks.is_some_and(|blocks| whole || blocks.steps >= STAGE_STEPS);
        let allowed = Allowed::between(0, most as i64, "0 for none, or what fits the kernel's frame");
        let steps = pick.count("stage_steps", if worth { most } else { 0 }, &allowed)?;
        if steps == 0 {
            return Ok(Widening { steps, rows: 0, least_rows: 0, prefetch: 0 });
        }
        let fit = (STAGE_SUM_BYTES / row_bytes) as i64;
        let allowed =
            Allowed::between(1, fit, format!("the kernel's frame has room for the sums of {fit} rows"));
        let rows = pick.count("stage_rows", STAGE_ROWS.min(fit as usize), &allowed)?;
        let allowed = Allowed::between(tile.rows as i64, 1 << 20, "whole tiles share a block");
        let least_rows = pick.count("stage_from", STAGE_TILES * tile.rows, &allowed)?;
        let prefetch = pick.pick("stage_prefetch", BLOCK_PREFETCHES, &prefetches())?;
        Ok(Widening { steps, rows, least_rows, prefetch })
    }

    /// Tiles that the next block is prefetched by.
    pub fn tiles(&self, tile: &RegisterTile) -> i64 {
        (self.least_rows / tile.rows) as i64
    }
}

impl Blocks {
    /// Blocks of at most `most` steps, alike, whole axes from the last one on and a part of one before them.
    pub fn of(inner: &[i64], most: usize, per_word: Option<usize>) -> Option<Blocks> {
        let (mut axis, mut steps) = (inner.len(), 1);
        while axis > 0 && steps * inner[axis - 1] as usize <= most {
            axis -= 1;
            steps *= inner[axis] as usize;
        }
        let mut chunk = 1;
        if axis > 0 {
            axis -= 1;
            let fits = |chunk: &usize| (inner[axis] as usize).is_multiple_of(*chunk);
            let per_word = per_word.filter(|_| axis + 1 == inner.len()).unwrap_or(1);
            chunk = (1..=most / steps).rev().filter(|chunk| chunk.is_multiple_of(per_word)).find(fits)?;
        } else if let Some(first) = inner.first() {
            (chunk, steps) = (*first as usize, steps / *first as usize);
        }
        Some(Blocks { axis, chunk, steps: steps * chunk })
    }
}

/// A contraction on the processor's tiles.
#[derive(Clone, Debug)]
pub struct ProcessorTile {
    /// Rows of a tile, at most; 0 for none.
    pub rows: usize,
    /// Tiles of rows that have their sums at once: 2 beside both halves of a panel's columns, 4 beside one of them.
    pub side: usize,
    /// Blocks of rows that have their sums before the first of their epilogues.
    pub blocks: usize,
    /// Rows whose epilogues are interleaved.
    pub epilogue_rows: usize,
}

/// Steps of a contraction on tiles.
pub struct TileWork {
    /// Rows of a tile.
    pub rows: usize,
    /// Steps with a product of tiles each, and bytes of the inner axes, for one tile of rows.
    pub dots: usize,
    pub bytes: usize,
    /// Tiles that cut the rows, and bytes of the left-hand side, where known.
    pub tiles: Option<usize>,
    pub lhs_bytes: Option<usize>,
    /// Halves of a panel's columns.
    pub halves: usize,
    /// Whether elements are bf16 rather than bytes.
    pub bf16: bool,
}

impl ProcessorTile {
    pub fn choose(core: &Core, work: &TileWork, pick: &mut Picker<'_>) -> Result<ProcessorTile> {
        let most = MAX_ROWS as i64;
        let allowed = Allowed::between(0, most, "0 for none, or rows of the processor's tiles");
        let rows = pick.count("tile_rows", if work.pays() { MAX_ROWS } else { 0 }, &allowed)?;
        let allowed = Allowed::between(1, most, "rows of a tile");
        if rows == 0 {
            return Ok(ProcessorTile { rows, side: 0, blocks: 0, epilogue_rows: 0 });
        }
        let epilogue_rows = pick.count("epilogue_rows", EPILOGUE_ROWS, &allowed)?;
        let sides = SIDES.map(|side| side as i64).to_vec();
        let allowed = Allowed::one_of(sides, "tiles of rows that have their sums at once");
        let side = pick.count("tile_side", work.side(core), &allowed)?;
        let block_bytes = side * work.rows * work.halves * MAX_ROW_BYTES;
        let blocks = (core.l1_bytes / SUMS_SHARE / block_bytes.max(1)).clamp(1, MAX_BLOCKS);
        let allowed = Allowed::between(1, MAX_BLOCKS as i64, "blocks of rows");
        let blocks = pick.count("tile_blocks", blocks, &allowed)?;
        Ok(ProcessorTile { rows, side, blocks, epilogue_rows })
    }

    /// Rows of the tiles that cut `rows` rows evenly, where their number is known.
    pub fn height(most: usize, rows: Option<i64>) -> usize {
        rows.map_or(most, |rows| (rows as usize).div_ceil((rows as usize).div_ceil(most)))
    }
}

impl TileWork {
    /// The side that loads fewer rows of tiles, those from the second-level cache weighed.
    fn side(&self, core: &Core) -> usize {
        let (Some(tiles), Some(lhs_bytes)) = (self.tiles, self.lhs_bytes) else { return SIDES[0] };
        let row = |near: bool| if near { NEAR_ROW } else { FAR_ROW };
        let a = self.rows * row(lhs_bytes <= core.l1_bytes);
        let near = self.bytes * self.halves * (MAX_ROW_BYTES / 4) <= core.l1_bytes / 2;
        let b = MAX_ROWS * row(near);
        let loads = |side: usize| {
            let (groups, passes) = (tiles.div_ceil(side), if side > SIDES[0] { self.halves } else { 1 });
            groups * (passes * side.min(tiles) * a + self.halves * b)
        };
        if !near && loads(SIDES[1]) < loads(SIDES[0]) { SIDES[1] } else { SIDES[0] }
    }

    /// Whether tiles are faster than products of bytes in vectors.
    fn pays(&self) -> bool {
        let dot = (DOT_CYCLES + (ROW_CYCLES_16THS * self.rows).div_ceil(16)).max(LEAST_CYCLES);
        let tiles = self.dots * dot + MOVE_CYCLES * self.rows;
        let products = if self.bf16 { VECTOR_BF16_PRODUCTS } else { VECTOR_PRODUCTS };
        tiles < self.bytes * self.rows * (MAX_ROW_BYTES / 4) / products
    }
}

/// The sides to choose from.
const SIDES: [usize; 2] = [2, 4];

/// Half cycles that a row of a tile takes to load, from the first-level cache and from the second.
const NEAR_ROW: usize = 1;
const FAR_ROW: usize = 4;

/// What is brought near before it is used.
#[derive(Clone, Debug)]
pub struct Prefetch {
    /// Cache lines of the next panel asked for per iteration.
    pub lines: i64,
    /// Bytes of a panel's buffer, or of a result, above which it is taken to come from memory.
    pub above: i64,
    /// Bytes that a panel which a single tile of few rows reads is asked for ahead of its use; 0 for not at all.
    pub stream: i64,
}

impl Prefetch {
    /// `constant`: the right-hand side is one, so that its panels follow each other in memory; `codes`: it is made of codes.
    pub fn choose(
        core: &Core,
        constant: bool,
        codes: bool,
        on_tiles: bool,
        pick: &mut Picker<'_>,
    ) -> Result<Prefetch> {
        let chosen = if on_tiles { BLOCK_PREFETCHES } else { PREFETCHES };
        // Code that takes few lanes at a time is slower than what processors prefetch themselves.
        let chosen = if core.is_leaf() { chosen } else { 0 };
        let lines = if constant { pick.pick("prefetch", chosen, &prefetches())? } else { 0 };
        let above = Allowed::between(0, i64::MAX, "bytes of a buffer");
        let above = pick.pick("prefetch_above", kept_in_l2(core).min(FAR), &above)?;
        let ahead = Allowed::between(0, 1 << 20, "bytes ahead of their use, 0 for none");
        let stream = if constant || codes { pick.pick("prefetch_stream", STREAM_AHEAD, &ahead)? } else { 0 };
        Ok(Prefetch { lines, above, stream })
    }
}

fn prefetches() -> Allowed {
    Allowed::between(0, MOST_PREFETCHES, "cache lines per iteration")
}

/// What the order of the tiles of a contraction is chosen by.
pub struct Extents<'a> {
    pub core: &'a Core,
    /// Elements of the batch, panels, columns.
    pub batch: Dim,
    pub panels: Dim,
    pub columns: &'a Dim,
    /// Columns of a panel.
    pub panel: usize,
    /// Row axes with loops of their own, and those that are tiled.
    pub looped: &'a [Dim],
    pub tiled: &'a [Dim],
    /// Rows that are computed at once.
    pub block_rows: usize,
    /// The fewest rows that are worth a part of their own.
    pub part_rows: usize,
    pub inner: &'a [Dim],
    /// Bytes of a step of the left-hand side, and of both operands where known.
    pub step_bytes: i64,
    pub operands: [Option<i64>; 2],
}

/// The order of tiles: in which parts and blocks the rows of panels are taken.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Parts of the rows of each panel, which threads share.
    pub parts: i64,
    /// Rows of a block for which all panels are taken before the next one; 0 where rows are not in blocks.
    pub block: i64,
}

impl Walk {
    pub fn choose(facts: &Extents<'_>, pick: &mut Picker<'_>) -> Result<Walk> {
        let parts = pick.pick("parts", facts.parts(), &Allowed::between(1, 1 << 16, "parts of the rows"))?;
        let allowed = Allowed::between(0, 1 << 40, "0 for none, or rows of a block");
        let block = pick.pick("block", facts.block(), &allowed)?;
        Ok(Walk { parts, block })
    }
}

impl Extents<'_> {
    fn parts(&self) -> i64 {
        let (Some(batch), Some(panels)) = (self.batch.as_const(), self.panels.as_const()) else { return 1 };
        // What is cut: the outer loops over rows.
        let most = match self.looped.iter().any(|dim| *dim != Dim::ONE) {
            true => volume(self.looped),
            false => volume(self.tiled).map(|rows| rows / self.part_rows as i64),
        };
        let work = [self.looped, self.tiled, self.inner, std::slice::from_ref(self.columns)].concat();
        if batch != 1 || panels < 1 || volume(&work).is_some_and(|work| work < SMALL) {
            return 1;
        }
        // Two thirds of the parts are enough. Blocks of rows are best for convolutions too: the neighbours that read them
        // are split by rows, and what a thread wrote is in its own cache.
        let few = if panels * 3 < PARTS * 2 { (PARTS + panels - 1) / panels } else { 1 };
        let wanted = if few > 1 || self.rows_outweigh() {
            (few + PARTS_OF_ROWS - 1) / PARTS_OF_ROWS * PARTS_OF_ROWS
        } else {
            1
        };
        match most.filter(|most| *most < wanted) {
            // With fewer rows than parts: an even number, so that two threads get equal work.
            Some(most) if most >= PARTS_OF_ROWS => most / PARTS_OF_ROWS * PARTS_OF_ROWS,
            Some(most) => (most / 2 * 2).max(1),
            None => wanted,
        }
    }

    /// Whether the left-hand side is larger than the right-hand side, which stays in the second-level cache.
    fn rows_outweigh(&self) -> bool {
        match self.operands {
            [Some(left), Some(right)] => right <= kept_in_l2(self.core) && left >= right,
            _ => false,
        }
    }

    /// Rows that stay in the second-level cache beside a panel or, where they fit, beside all panels; 0 where there is but
    /// one panel, or few rows would fit.
    fn block(&self) -> i64 {
        let room = kept_in_l2(self.core);
        let row_bytes = product(self.inner).as_const().and_then(|inner| inner.checked_mul(self.step_bytes));
        let Some(row_bytes) = row_bytes.filter(|_| self.looped.is_empty()) else { return 0 };
        let Some(columns) = self.columns.as_const().filter(|columns| *columns > self.panel as i64) else {
            return 0;
        };
        let panels = row_bytes.saturating_mul(columns);
        let beside = if panels <= room { panels } else { row_bytes.saturating_mul(2 * self.panel as i64) };
        let fit = (room - beside) / row_bytes.max(1);
        // Of rows so long that few of them fit, each block would load the panels anew too often.
        if fit < BLOCK_TILES * self.block_rows as i64 { 0 } else { fit }
    }
}
