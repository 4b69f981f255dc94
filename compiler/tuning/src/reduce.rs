//! Reductions, alone or among those of a rows group.

use super::{Allowed, CACHE_LINE, Picker, SUM_TERMS, sum_terms};
use onnxc_ir::error::Result;
use onnxc_ir::graph::Dim;
use onnxc_machine::target::Core;

/// Share of the first-level cache that the rows of windows have: the results and what comes next pass through it. With all channels
/// of a row at once, depthwise convolutions of 14 x 14 x 384 and 576 (f32) take 1.7 of the time on Zen 5.
const ROWS_SHARE: usize = 2;

/// Parts of the rows of windows in blocks of channels, at least and at most: the thread that has a part of an image here reads the same
/// part in the product behind. Each part reads the rows again that it shares with the one before, so that its own are some.
const ROW_PARTS: [i64; 2] = [2, 4];
const PART_ROWS: i64 = 7;

/// Independent partial results of a reduction in vectors: enough to hide the latency of an addition.
const PARTIALS: usize = 4;

/// Vectors whose elements one vector has as halves of its lanes.
const HALVES: usize = 2;

/// Reductions over at most this many elements are written out where they keep the last axis; of larger windows, the innermost axes up to
/// that.
const WRITE_OUT: i64 = 32;

/// Most reduced elements that may be written out.
const MOST_WRITTEN: i64 = 1024;

/// Positions that are computed together, the best first: they share loads of weights and of overlapping windows, and their
/// sums fit the registers.
const POSITIONS: [i64; 6] = [4, 7, 5, 6, 3, 2];

/// Of positions of unknown number, or whose number none of [`POSITIONS`] divides.
const ODD_POSITIONS: i64 = 4;

/// Most registers of weights for windows in quads of bytes: beside these are the sums and what an epilogue needs.
const MOST_WORDS: i64 = 8;

/// Channels of a vector of quads.
const QUAD_CHANNELS: i64 = 16;

/// Whether windows with these taps along the reduced axes are added up in quads of bytes: a quad has a row of one window, of several
/// where rows are short, for each window that it can have there is a register of weights, and channels are whole vectors.
pub fn quads_hold<'d>(taps: impl Iterator<Item = &'d Dim>, channels: &Dim) -> bool {
    let taps: Option<Vec<i64>> = taps.map(Dim::as_const).collect();
    let Some((&row, rows)) = taps.as_deref().and_then(|taps| taps.split_last()) else { return false };
    let words = rows.iter().try_fold(5 - row, |words, &rows| words.checked_mul(rows));
    (1..=4).contains(&row)
        && words.is_some_and(|words| words <= MOST_WORDS)
        && channels.as_const().is_some_and(|channels| channels % QUAD_CHANNELS == 0)
}

/// Partial results of a reduction along the vector axis.
#[derive(Clone, Copy, Debug)]
pub struct Partials {
    /// Vectors of them: a power of two, as they are combined in a tree.
    vectors: usize,
    /// Terms of a partial sum of floats, at most; none where no sum is long.
    pub sum_terms: Option<i64>,
}

impl Partials {
    /// Where no group has a say, and no sum.
    pub const CHOSEN: Partials = Partials { vectors: PARTIALS, sum_terms: None };

    /// `terms`: those of the longest sum of floats.
    pub fn choose(core: &Core, terms: Terms, pick: &mut Picker<'_>) -> Result<Partials> {
        let powers = (0..8).map(|power| 1 << power).filter(|&count| count < core.vector_registers as i64);
        let why = format!("powers of two below the {} vector registers", core.vector_registers);
        let vectors = pick.count("partials", PARTIALS, &Allowed::one_of(powers.collect(), why))?;
        Ok(Partials { vectors, sum_terms: terms.of_part(pick)? })
    }

    /// Registers for a reduction of `vectors` vectors, if known: each has one vector, at least.
    pub fn of(self, vectors: Option<usize>) -> usize {
        vectors.map_or(self.vectors, |vectors| self.vectors.min(1 << vectors.max(1).ilog2()))
    }
}

/// Vectors of neighbouring columns whose rows are combined together, and the terms of a partial sum.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub vectors: usize,
    pub sum_terms: Option<i64>,
}

impl Columns {
    /// `results`: what a row gives for each column, in registers of its own.
    pub fn choose(core: &Core, results: usize, terms: Terms, pick: &mut Picker<'_>) -> Result<Columns> {
        let registers = core.vector_registers;
        let most = (registers / (results + 1)).max(1);
        let why = format!("of {registers} vector registers, each vector of columns takes {results}");
        let vectors = PARTIALS.min(most);
        let vectors = pick.count("vectors", vectors, &Allowed::between(1, most as i64, why))?;
        Ok(Columns { vectors, sum_terms: terms.of_part(pick)? })
    }
}

/// Terms of a reduction, as far as rounding counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Terms {
    /// Nothing is rounded: no sum, or one of integers.
    Exact,
    /// This number of floats, at most.
    Floats(i64),
    /// A number of floats known only at run time.
    Unknown,
}

impl Terms {
    /// Those of the longer of two reductions.
    pub fn or(self, other: Terms) -> Terms {
        match (self, other) {
            (Terms::Exact, terms) | (terms, Terms::Exact) => terms,
            (Terms::Floats(one), Terms::Floats(two)) => Terms::Floats(one.max(two)),
            _ => Terms::Unknown,
        }
    }

    /// The terms that a partial sum may have, where the whole may have more.
    fn of_part(self, pick: &mut Picker<'_>) -> Result<Option<i64>> {
        match self {
            Terms::Exact => Ok(None),
            Terms::Floats(terms) if terms <= SUM_TERMS => Ok(None),
            Terms::Floats(_) | Terms::Unknown => sum_terms(pick).map(Some),
        }
    }
}

/// What a reduction that keeps the last axis is chosen by.
pub struct Facts<'a> {
    pub core: &'a Core,
    pub lanes: usize,
    /// Sizes of the reduced axes, where they are known.
    pub reduced: Vec<Option<i64>>,
    pub terms: Terms,
    /// Whether the elements are those of windows, which neighbouring positions share.
    pub windows: bool,
    /// Positions along the kept axis before the last one, where their number is known.
    pub positions: Option<i64>,
    /// Whether it adds up products of small integers, of two neighbouring vectors by one that has their elements as halves.
    pub halves: bool,
    /// Whether threads can share nothing but these positions, or the channels.
    pub alone: bool,
    /// The rows that a row of windows shares with the next one, where it does.
    pub shared: Option<SharedRows>,
    /// Rows along the axis before that of the positions, where there are several.
    pub rows: Option<Dim>,
    /// Channels, where their number is known.
    pub channels: Option<i64>,
}

/// Rows that several rows of windows read.
#[derive(Clone, Copy, Debug)]
pub struct SharedRows {
    /// Bytes of an element.
    pub size: usize,
    /// Bytes of one channel of all rows that a window reaches, where they are known.
    pub bytes: Option<usize>,
}

/// A reduction that keeps the last axis: the block of results in registers.
#[derive(Clone, Debug)]
pub struct ChannelBlock {
    /// Innermost reduced axes whose elements are written out rather than in loops.
    pub written_out: usize,
    /// Neighbouring positions of the axis before the last one.
    pub positions: usize,
    /// Vectors of channels.
    pub vectors: usize,
    /// Channels for which all rows are computed before the next ones; 0 for all.
    pub channels: i64,
    /// Parts of these rows that have all channels before the next part.
    pub parts: i64,
    /// Terms of a partial sum of floats, at most; none where the sums are short.
    pub sum_terms: Option<i64>,
}

impl ChannelBlock {
    pub fn choose(facts: &Facts<'_>, pick: &mut Picker<'_>) -> Result<ChannelBlock> {
        let choices = facts.written_out();
        let allowed = choices.iter().map(|choice| choice.1).collect();
        let why = "1 for loops over the reduced elements, or those of the innermost axes, written out";
        let few = choices
            .iter()
            .rev()
            .find(|(axes, count)| *count <= WRITE_OUT && (*axes == facts.reduced.len() || facts.windows));
        let chosen = few.map_or(1, |choice| choice.1);
        let unroll = pick.pick("unroll", chosen, &Allowed::one_of(allowed, why))?;
        let written_out = choices.iter().rev().find(|choice| choice.1 == unroll).map_or(0, |choice| choice.0);
        let registers = facts.core.vector_registers;
        // Where results are short chains of operations, several positions keep the units busy, else several vectors.
        let allowed = match facts.lanes {
            1 => Allowed::between(1, 1, "channels are not in vectors"),
            _ => Allowed::between(1, registers as i64, format!("there are {registers} vector registers")),
        };
        let vectors = match facts.lanes {
            1 => 1,
            _ if written_out > 0 && facts.halves => HALVES,
            _ if written_out > 0 => 1,
            _ => PARTIALS,
        };
        let vectors = pick.count("vectors", vectors, &allowed)?;
        let fit = (registers / vectors) as i64;
        let why = format!("of {registers} vector registers, each position takes {vectors}");
        let chosen = if written_out > 0 { facts.chosen_positions() } else { 1 };
        let positions = pick.count("positions", chosen as usize, &Allowed::between(1, fit, why))?;
        let (channels, parts) = facts.channel_blocks(vectors, pick)?;
        // What is written out is short enough.
        let terms = if written_out == facts.reduced.len() { Terms::Exact } else { facts.terms };
        let sum_terms = terms.of_part(pick)?;
        Ok(ChannelBlock { written_out, positions, vectors, channels, parts, sum_terms })
    }

    /// Numbers of positions that are computed together, in turn, each as often as there is room for.
    pub fn runs(&self, positions: Option<i64>) -> Vec<usize> {
        match positions {
            Some(extent) if extent % self.positions as i64 == 0 => vec![self.positions],
            Some(_) => (1..=self.positions).rev().collect(),
            None if self.positions == 1 => vec![1],
            None => vec![self.positions, 1],
        }
    }
}

impl Facts<'_> {
    /// How many of the innermost axes may be written out, and their elements; of none, 1.
    fn written_out(&self) -> Vec<(usize, i64)> {
        let mut choices = vec![(0, 1i64)];
        for (at, size) in self.reduced.iter().rev().enumerate() {
            let Some(count) = size.and_then(|size| size.checked_mul(choices[at].1)) else { break };
            if count > MOST_WRITTEN {
                break;
            }
            choices.push((at + 1, count));
        }
        choices
    }

    /// Channels of a block, the most whose windows' rows stay in the first-level cache until the next row reads them again, and parts of
    /// the rows.
    fn channel_blocks(&self, vectors: usize, pick: &mut Picker<'_>) -> Result<(i64, i64)> {
        let (Some(shared), Some(rows), Some(channels)) = (&self.shared, &self.rows, self.channels) else {
            return Ok((0, 1));
        };
        let step = (vectors * self.lanes) as i64;
        let blocks = (1..=channels / step).map(|count| count * step).filter(|size| channels % size == 0);
        let choices: Vec<i64> = [0].into_iter().chain(blocks).collect();
        let line = CACHE_LINE / shared.size as i64;
        let fit = shared.bytes.map_or(line, |bytes| (self.core.l1_bytes / ROWS_SHARE / bytes.max(1)) as i64);
        let chosen = choices.iter().copied().filter(|size| (line..=fit).contains(size)).max();
        let chosen = chosen.filter(|&size| size < channels).unwrap_or(0);
        let why = format!("0 for all, or a part of the {channels} channels in steps of {step}");
        let size = pick.pick("channels", chosen, &Allowed::one_of(choices, why))?;
        if size == 0 {
            return Ok((0, 1));
        }
        let [least, most] = ROW_PARTS;
        let parts = rows.as_const().map_or(most, |rows| (rows / PART_ROWS).clamp(least, most));
        Ok((size, pick.pick("parts", parts, &Allowed::between(1, 1 << 10, "parts of the rows"))?))
    }

    fn chosen_positions(&self) -> i64 {
        let even = self.positions.and_then(|extent| POSITIONS.into_iter().find(|size| extent % size == 0));
        match even {
            Some(size) => size,
            // All alike, so that there is one loop, which threads share.
            None if self.alone => 1,
            None => ODD_POSITIONS,
        }
    }
}
