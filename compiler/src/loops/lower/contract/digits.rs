//! Left-hand sides as digits: the products of a part are sums of bytes, codes times digits, one sum for each digit. They are
//! exact; they are joined, two digits at a time, to floats at the end of the part.
//!
//! A part in which some row of the tile has no such form is computed in floats.

use super::{Job, Tile};
use crate::error::Result;
use crate::graph::{DOT_DEPTH, DType, Dim, Node, ValueId};
use crate::loops::lower::{Lowering, internal};
use crate::loops::nest::Axis;
use crate::loops::{Expr, Index, Local, LoopKind, Stmt};
use crate::scalar::{BinaryFn, CompareFn};
use crate::tuning::Picker;
use crate::tuning::contract::{DigitTile, Facts, RegisterTile};

/// The operands of a contraction that say its left-hand side as digits, see [`crate::graph::Op::Contract`].
pub(super) struct Digits {
    unit: ValueId,
    totals: Vec<ValueId>,
    /// From the lowest on.
    digits: Vec<ValueId>,
    pub tile: DigitTile,
}

impl Digits {
    pub fn count(&self) -> usize {
        self.digits.len()
    }

    /// Where the sum of a digit of a row is kept, among those of all digits of a tile's rows.
    fn place(&self, row: usize, digit: usize, column: &Index) -> Vec<Index> {
        vec![Index::int((row * self.count() + digit) as i64), column.clone()]
    }
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
        let tile = DigitTile::choose(facts, digits.len(), pick)?;
        Ok(Some(Digits { unit, totals: totals.to_vec(), digits: digits.to_vec(), tile }))
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
        let (rows, count) = (tile.rows.len(), digits.count());
        let dots = self.kernel.local("dots", DType::I32, &[rows * count, job.nr], job.lanes);
        self.digit_zeros(job, tile, digits, dots, part)?;
        let Some(per_word) = job.codes else { return internal("digits without codes") };
        let words = match job.inner.last().and_then(Dim::as_const) {
            Some(steps) if (steps as usize).is_multiple_of(per_word) => Dim::from(steps as usize / per_word),
            _ => return internal("parts of no whole words"),
        };
        let axis = Axis { var: self.kernel.loop_var("word"), extent: words.clone(), kind: LoopKind::Serial };
        self.extents.insert(axis.var, words);
        let body = self.scope(|cx| cx.digit_word(job, tile, digits, dots, part, &Index::var(axis.var)))?;
        let tuned = RegisterTile { unroll: digits.tile.unroll, ..job.tile.clone() };
        let stmts = match axis.extent.as_const() {
            Some(words) if words <= digits.tile.unroll => {
                let (var, hi) = (axis.var, Index::int(words));
                vec![Stmt::For { var, lo: Index::zero(), hi, step: 1, kind: LoopKind::Unrolled, body }]
            }
            _ => self.unrolled(&tuned, &axis, body, &[], None),
        };
        stmts.into_iter().for_each(|stmt| self.push(stmt));
        let units: Result<Vec<Expr>> = (0..rows)
            .map(|row| {
                let unit = self.row_of(job, tile, digits.unit, row, &[part])?;
                Ok(self.bind("unit", unit))
            })
            .collect();
        let units = units?;
        self.for_columns(job, 0..job.nr, &mut |cx, column| {
            let codes = cx.codes(job, tile, part, column)?;
            let scale = cx.code_scale(&codes)?;
            let scale = cx.bind("scale", scale);
            for (row, unit) in units.iter().enumerate() {
                let get = |digit: usize| Expr::Get { local: dots, at: digits.place(row, digit, column) };
                let mut value: Option<Expr> = None;
                for pair in (0..count).step_by(2).rev() {
                    let mut sum = get(pair);
                    if pair + 1 < count {
                        sum = Expr::binary(
                            BinaryFn::Add,
                            Expr::binary(BinaryFn::Shl, get(pair + 1), int(8)),
                            sum,
                        );
                    }
                    let sum = Expr::cast(DType::F32, sum);
                    value = Some(match value {
                        Some(above) => Expr::fma(above, Expr::constant(DType::F32, 65536.0), sum),
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

    /// What the sums of bytes begin with: minus what is subtracted from the codes, times the sum of the digits.
    fn digit_zeros(
        &mut self,
        job: &Job,
        tile: &Tile,
        digits: &Digits,
        dots: Local,
        part: &Index,
    ) -> Result<()> {
        let (rows, count) = (tile.rows.len(), digits.count());
        let uniform = self.codes(job, tile, part, &Index::zero())?;
        let bias = int(-(uniform.bias as i32));
        let mut totals = Vec::with_capacity(rows * digits.totals.len());
        for row in 0..rows {
            for &total in &digits.totals {
                let total = self.row_of(job, tile, total, row, &[part])?;
                let total = match uniform.has_zero() {
                    true => total,
                    false => Expr::binary(BinaryFn::Mul, total, bias.clone()),
                };
                totals.push(self.bind("total", total));
            }
        }
        self.for_columns(job, 0..job.nr, &mut |cx, column| {
            let codes = cx.codes(job, tile, part, column)?;
            let zero = match codes.has_zero() {
                true => {
                    let zero = cx.code_zero(&codes)?;
                    let zero = Expr::binary(BinaryFn::Sub, int(0), zero);
                    Some(cx.bind("zero", zero))
                }
                false => None,
            };
            for row in 0..rows {
                for digit in 0..count {
                    let value = match (digit % 2, &zero) {
                        (0, None) => totals[row * digits.totals.len() + digit / 2].clone(),
                        (0, Some(zero)) => {
                            let total = totals[row * digits.totals.len() + digit / 2].clone();
                            Expr::binary(BinaryFn::Mul, zero.clone(), total)
                        }
                        _ => int(0),
                    };
                    let at = digits.place(row, digit, column);
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
        dots: Local,
        part: &Index,
        word: &Index,
    ) -> Result<()> {
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
                for row in 0..tile.rows.len() {
                    for (digit, &value) in digits.digits.iter().enumerate() {
                        let first = cx.row_of(job, tile, value, row, &[part, &step])?;
                        let Expr::Load { buf, index } = first else {
                            return internal("digits have a buffer");
                        };
                        let word = cx.bind("a", Expr::Word { buf, index });
                        for (column, bytes) in &bytes {
                            let at = digits.place(row, digit, column);
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
