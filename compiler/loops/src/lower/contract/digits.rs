//! Left-hand sides as digits: the products of a part are sums of bytes, codes times digits. They are exact, and digits whose sums fit an
//! i32 together are joined as integers; at the end of the part they become floats.
//!
//! Tiles of several rows take one digit after the other, from the highest on: between two of them the sums are multiplied by 256,
//! so that one sum for each column is enough, and registers are left for more rows, which share the unpacked codes. A single row
//! takes all digits of an unpacked code at once, each with sums of its own.
//!
//! A part in which some row of the tile has no such form is computed in floats.

use std::ops::Range;

use super::{Job, Tile};
use crate::lower::{Lowering, internal};
use crate::nest::Axis;
use crate::{Expr, Index, Local, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Node, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_tuning::Picker;
use onnxc_tuning::contract::{DigitTile, Facts};

/// Bits of a digit, a byte.
const DIGIT_BITS: i32 = 8;

/// Digits that one total is for.
const PER_TOTAL: usize = 2;

/// The operands of a contraction that say its left-hand side as digits, see [`onnxc_ir::graph::Op::Contract`].
pub(super) struct Digits {
    unit: ValueId,
    /// For each [`PER_TOTAL`] digits.
    totals: Vec<ValueId>,
    /// From the lowest on.
    digits: Vec<ValueId>,
    /// Digits whose sums are joined as integers, from the lowest on.
    groups: Vec<Range<usize>>,
    pub tile: DigitTile,
}

impl Digits {
    /// The digits that each pass over the codes of a part takes, with the number of their sum.
    fn passes(&self, rows: usize) -> Vec<Vec<(usize, usize)>> {
        let own = |digit: usize| (digit, self.sum_of(rows, digit));
        if apart(rows) {
            return vec![(0..self.digits.len()).map(own).collect()];
        }
        let longest = self.groups.iter().map(Range::len).max().unwrap_or(0);
        let passes = (0..longest).rev().map(|place| {
            let with = self.groups.iter().filter(|group| place < group.len());
            with.map(|group| own(group.start + place)).collect()
        });
        passes.collect()
    }

    /// Sums of each row and column.
    fn sums(&self, rows: usize) -> usize {
        if apart(rows) { self.digits.len() } else { self.groups.len() }
    }

    /// The number of the sum of a digit.
    fn sum_of(&self, rows: usize, digit: usize) -> usize {
        let group = self.groups.iter().position(|group| group.contains(&digit));
        if apart(rows) { digit } else { group.unwrap_or(0) }
    }

    /// Where a sum of a row is kept.
    fn place(&self, rows: usize, row: usize, sum: usize, column: &Index) -> Vec<Index> {
        vec![Index::int((row * self.sums(rows) + sum) as i64), column.clone()]
    }
}

/// Whether each digit of a tile of `rows` rows has sums of its own.
fn apart(rows: usize) -> bool {
    rows == 1
}

/// How many of `count` digits have sums that fit an i32 together, for codes of `bits` bits and `steps` steps.
fn joined(count: usize, bits: usize, bias: usize, has_zero: bool, steps: u64) -> usize {
    let codes = (1u64 << bits) - 1;
    // Zeros are bytes.
    let distance =
        if has_zero { u8::MAX.into() } else { (bias as u64).max(codes.saturating_sub(bias as u64)) };
    let reach = 127 * ((1u64 << (DIGIT_BITS as usize * count)) - 1) / 255;
    match steps.saturating_mul(distance).saturating_mul(reach) <= i32::MAX as u64 {
        true => count,
        false => PER_TOTAL,
    }
}

/// The sum of a digit's products as one of the next lower digit's.
fn above(sum: Expr) -> Expr {
    Expr::binary(BinaryFn::Shl, sum, int(DIGIT_BITS))
}

/// An i32 constant.
fn int(value: i32) -> Expr {
    Expr::Const { dtype: DType::I32, bits: u64::from(value as u32) }
}

impl Lowering<'_> {
    pub(super) fn digits_of(
        &self,
        node: &Node,
        facts: &Facts,
        pick: &mut Picker<'_>,
    ) -> Result<Option<Digits>> {
        let &[_, _, unit, ref rest @ ..] = &node.inputs[..] else { return Ok(None) };
        let totals = rest.iter().take_while(|&&value| self.graph.ty(value).dtype == DType::I32).count();
        let (totals, digits) = rest.split_at(totals);
        let producer = self.graph.producer(node.inputs[1]).map(|rhs| &self.graph.nodes[rhs]);
        let Some(Node { op: Op::Dequantize { bits, bias }, inputs, .. }) = producer else {
            return internal("digits without codes");
        };
        let Some(steps) = self.graph.ty(node.inputs[0]).shape.last().and_then(Dim::as_const) else {
            return internal("parts of no known number of steps");
        };
        let joined = joined(digits.len(), *bits, *bias, inputs.len() > 2, steps as u64);
        let starts = (0..digits.len()).step_by(joined);
        let groups: Vec<_> = starts.map(|first| first..(first + joined).min(digits.len())).collect();
        let tile = DigitTile::choose(facts, groups.len(), pick)?;
        Ok(Some(Digits { unit, totals: totals.to_vec(), digits: digits.to_vec(), groups, tile }))
    }

    /// Whether all rows of a tile are digits in a part.
    pub(super) fn has_digits(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        part: &Index,
    ) -> Result<Expr> {
        let mut all: Option<Expr> = None;
        for row in 0..tile.rows.len() {
            let unit = self.row_of(job, tile, digits.unit, row, &[part])?;
            let own = Expr::compare(CompareFn::Lt, unit, Expr::constant(DType::F32, f64::INFINITY));
            all = Some(match all {
                Some(before) => Expr::binary(BinaryFn::And, before, own),
                None => own,
            });
        }
        all.map_or_else(|| internal("a tile without rows"), Ok)
    }

    /// An element of an operand with the row axes of the left-hand side.
    fn row_of(
        &mut self,
        job: &Job,
        tile: &Tile,
        value: ValueId,
        row: usize,
        inner: &[&Index],
    ) -> Result<Expr> {
        let mut index = self.broadcast_batch(value, job, &tile.batch);
        index.extend_from_slice(&tile.rows[row]);
        index.extend(inner.iter().map(|&index| index.clone()));
        self.expr_at(value, &index)
    }

    /// Adds the products of a part to `sums`.
    pub(super) fn digit_part(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        sums: Local,
        part: &Index,
    ) -> Result<()> {
        let rows = tile.rows.len();
        let dots =
            self.kernel.local("dots", DType::I32, &[rows * digits.sums(rows), job.panels.nr], job.lanes);
        let Some(per_word) = job.codes() else { return internal("digits without codes") };
        let words = match job.inner.last().and_then(Dim::as_const) {
            Some(steps) if (steps as usize).is_multiple_of(per_word) => Dim::from(steps as usize / per_word),
            _ => return internal("parts of no whole words"),
        };
        let mut tuned = job.tile.clone();
        tuned.unroll = digits.tile.unroll;
        let totals = self.group_totals(job, tile, digits, part)?;
        for pass in digits.passes(rows) {
            self.begin_pass(job, tile, digits, (dots, &pass), &totals, part)?;
            let var = self.kernel.loop_var("word");
            let axis = Axis { var, extent: words.clone(), kind: LoopKind::Serial };
            self.extents.insert(axis.var, words.clone());
            let word = Index::var(axis.var);
            let body = self.scope(|cx| cx.digit_word(job, tile, digits, (dots, &pass), part, &word))?;
            let stmts = match axis.extent.as_const() {
                Some(words) if words <= digits.tile.unroll => {
                    let (var, hi) = (axis.var, Index::int(words));
                    vec![Stmt::For { var, lo: Index::zero(), hi, step: 1, kind: LoopKind::Unrolled, body }]
                }
                _ => self.unrolled(&tuned, &axis, body, &[], None),
            };
            stmts.into_iter().for_each(|stmt| self.push(stmt));
        }
        let units: Result<Vec<Expr>> = (0..rows)
            .map(|row| {
                let unit = self.row_of(job, tile, digits.unit, row, &[part])?;
                Ok(self.bind("unit", unit))
            })
            .collect();
        let units = units?;
        self.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
            let codes = cx.codes(job, tile, part, column)?;
            let scale = cx.code_scale(&codes)?;
            let scale = cx.bind("scale", scale);
            for (row, unit) in units.iter().enumerate() {
                let get = |digit: usize| {
                    let at = digits.place(rows, row, digits.sum_of(rows, digit), column);
                    Expr::Get { local: dots, at }
                };
                let mut value: Option<Expr> = None;
                for group in digits.groups.iter().rev() {
                    let mut sum = get(group.end - 1);
                    if apart(rows) {
                        for digit in group.clone().rev().skip(1) {
                            sum = Expr::binary(BinaryFn::Add, above(sum), get(digit));
                        }
                    }
                    let sum = Expr::cast(DType::F32, sum);
                    let unit = f64::from(DIGIT_BITS * group.len() as i32).exp2();
                    value = Some(match value {
                        Some(value) => Expr::fma(value, Expr::constant(DType::F32, unit), sum),
                        None => sum,
                    });
                }
                let Some(value) = value else { return internal("no digits") };
                let value = Expr::binary(BinaryFn::Mul, value, unit.clone());
                let at = vec![Index::int(row as i64), column.clone()];
                let value = Expr::binary(BinaryFn::Mul, value, scale.clone());
                cx.push(Stmt::Accumulate { local: sums, at, op: BinaryFn::Add, value });
            }
            Ok(())
        })
    }

    /// For each row and group of digits, the sum of the numbers that these are; times minus what is subtracted from all codes,
    /// unless columns have zeros of their own.
    fn group_totals(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        part: &Index,
    ) -> Result<Vec<Vec<Expr>>> {
        let uniform = self.codes(job, tile, part, &Index::zero())?;
        let bias = int(-(uniform.bias as i32));
        let mut totals = Vec::with_capacity(tile.rows.len());
        for row in 0..tile.rows.len() {
            let mut own = Vec::with_capacity(digits.groups.len());
            for group in &digits.groups {
                let mut sum: Option<Expr> = None;
                for number in (group.start / PER_TOTAL..group.end.div_ceil(PER_TOTAL)).rev() {
                    let total = self.row_of(job, tile, digits.totals[number], row, &[part])?;
                    let shift = int(DIGIT_BITS * PER_TOTAL as i32);
                    sum = Some(match sum {
                        Some(above) => {
                            Expr::binary(BinaryFn::Add, Expr::binary(BinaryFn::Shl, above, shift), total)
                        }
                        None => total,
                    });
                }
                let Some(sum) = sum else { return internal("a group of no digits") };
                let sum = match uniform.has_zero() {
                    true => sum,
                    false => Expr::binary(BinaryFn::Mul, sum, bias.clone()),
                };
                own.push(self.bind("total", sum));
            }
            totals.push(own);
        }
        Ok(totals)
    }

    /// What the sums of a pass begin with: those of the digits above times 256, if there are any, and at the lowest digit of a
    /// group minus what is subtracted from the codes, times the group's total.
    fn begin_pass(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        (dots, pass): (Local, &[(usize, usize)]),
        totals: &[Vec<Expr>],
        part: &Index,
    ) -> Result<()> {
        let rows = tile.rows.len();
        self.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
            let codes = cx.codes(job, tile, part, column)?;
            let begins = |digit: usize| digits.groups.iter().position(|group| group.start == digit);
            let zero = match codes.has_zero() && pass.iter().any(|(digit, _)| begins(*digit).is_some()) {
                true => {
                    let zero = cx.code_zero(&codes)?;
                    let zero = Expr::binary(BinaryFn::Sub, int(0), zero);
                    Some(cx.bind("zero", zero))
                }
                false => None,
            };
            for (row, totals) in totals.iter().enumerate() {
                for &(digit, sum) in pass {
                    let at = digits.place(rows, row, sum, column);
                    let is_highest = digits.groups.iter().any(|group| group.end == digit + 1);
                    let higher = (!apart(rows) && !is_highest)
                        .then(|| above(Expr::Get { local: dots, at: at.clone() }));
                    let total = begins(digit).map(|group| match &zero {
                        Some(zero) => Expr::binary(BinaryFn::Mul, zero.clone(), totals[group].clone()),
                        None => totals[group].clone(),
                    });
                    let value = match (higher, total) {
                        (Some(higher), Some(total)) => Expr::binary(BinaryFn::Add, higher, total),
                        (Some(value), None) | (None, Some(value)) => value,
                        (None, None) => int(0),
                    };
                    cx.push(Stmt::Set { local: dots, at, value });
                }
            }
            Ok(())
        })
    }

    /// The products of the steps in one word of the codes, all lanes of all rows.
    fn digit_word(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        (dots, pass): (Local, &[(usize, usize)]),
        part: &Index,
        word: &Index,
    ) -> Result<()> {
        let rows = tile.rows.len();
        let lane = self.kernel.loop_var("v");
        let body = self.scope(|cx| {
            let columns = cx.code_words(job, tile, part, (word, lane))?;
            let per_word = columns.first().map_or(0, |(_, codes, _)| codes.per_word);
            for group in 0..per_word / DOT_DEPTH {
                let mut bytes = Vec::with_capacity(columns.len());
                for (word, codes, column) in &columns {
                    let own = cx.code_bytes(codes, word.clone(), group);
                    bytes.push((column, cx.bind("b", own)));
                }
                let step = word.scale(&Dim::from(per_word)).add(&Index::int((group * DOT_DEPTH) as i64));
                for row in 0..rows {
                    for &(digit, sum) in pass {
                        let first = cx.row_of(job, tile, digits.digits[digit], row, &[part, &step])?;
                        let Expr::Load { buf, index } = first else {
                            return internal("digits have a buffer");
                        };
                        let word = cx.bind("a", Expr::Word { buf, index });
                        for (column, bytes) in &bytes {
                            let at = digits.place(rows, row, sum, column);
                            let value = Expr::binary(BinaryFn::Dot, bytes.clone(), word.clone());
                            let op = BinaryFn::Add;
                            cx.push(Stmt::Accumulate { local: dots, at, op, value });
                        }
                    }
                }
            }
            Ok(())
        })?;
        self.push_lanes(lane, job.lanes, body);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn digits_are_joined_where_an_i32_holds_their_sums() {
        // Codes of 4 bits less 8: 32 of them times 127 (256^3 - 1) / 255 are 2139095040.
        assert_eq!(joined(3, 4, 8, false, 32), 3);
        assert_eq!(joined(3, 4, 8, false, 33), 2);
        assert_eq!(joined(3, 4, 0, true, 32), 2);
        assert_eq!(joined(3, 8, 128, false, 16), 2);
        assert_eq!(joined(4, 2, 2, false, 8), 2);
        assert_eq!(joined(2, 8, 128, false, 256), 2);
        assert_eq!(joined(1, 8, 128, false, 256), 1);
    }
}
