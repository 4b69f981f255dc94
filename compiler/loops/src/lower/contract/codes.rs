//! Weights of few bits: the inner axes are parts and the steps of a part, and what all steps of a part share, its scale,
//! multiplies their sum.

use super::{Job, Tile};
use crate::lower::codes::Codes;
use crate::lower::{Lowering, internal};
use crate::nest::Axis;
use crate::{Buffer, Expr, Index, Local, LoopKind, Stmt, Var};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, ValueId};
use onnxc_ir::scalar::BinaryFn;
use onnxc_tuning::CACHE_LINE;

impl Lowering<'_> {
    /// Steps in an element of a right-hand side's codes, if it is made of codes.
    pub(super) fn codes_per_word(&self, rhs: ValueId) -> Option<usize> {
        let node = self.graph.producer(rhs).filter(|_| !self.inputs.contains(&rhs))?;
        Codes::new(self.graph, &self.graph.nodes[node], &[], &Index::zero()).map(|codes| codes.per_word)
    }

    /// As `accumulate`, of codes: gives the registers with the sums.
    pub(super) fn accumulate_codes(
        &mut self,
        job: &Job,
        tile: &Tile,
        acc: Local,
        per_word: usize,
    ) -> Result<Local> {
        let [parts, steps] = &job.inner[..] else { return internal("weights of few bits without parts") };
        let Some(extent) = steps.as_const() else { return internal("parts of a symbolic number of steps") };
        let part = job.tile.part_of(extent);
        let block = part.filter(|block| block.is_multiple_of(per_word)).unwrap_or(extent as usize);
        let (blocks, words) = (Dim::from(extent / block as i64), Dim::from(block / per_word));
        let sums = self.kernel.local("sums", job.sum, &[tile.rows.len(), job.panels.nr], job.lanes);
        self.clear(job, sums, tile.rows.len())?;
        let floats = |cx: &mut Self, part: &Index| {
            cx.for_each("block", &blocks, LoopKind::Serial, |cx, block| {
                cx.clear(job, acc, tile.rows.len())?;
                let axis =
                    Axis { var: cx.kernel.loop_var("word"), extent: words.clone(), kind: LoopKind::Serial };
                cx.extents.insert(axis.var, words.clone());
                let word = block.scale(&words).add(&Index::var(axis.var));
                let body = cx.scope(|cx| cx.code_steps(job, tile, acc, part, &word))?;
                let stmts = match per_word {
                    1 => cx.unrolled(&job.tile, &axis, body, &[], None),
                    _ => vec![Stmt::For {
                        var: axis.var,
                        lo: Index::zero(),
                        hi: Index::dim(words.clone()),
                        step: 1,
                        kind: LoopKind::Serial,
                        body,
                    }],
                };
                stmts.into_iter().for_each(|stmt| cx.push(stmt));
                cx.add_part(job, tile, acc, sums, part)
            })
        };
        self.for_each("part", parts, LoopKind::Serial, |cx, part| {
            cx.stream_codes(job, tile, &part, &(blocks.clone() * words.clone()))?;
            match job.digits() {
                Some(digits) => {
                    let condition = cx.has_digits(job, tile, digits, &part)?;
                    let then = cx.scope(|cx| cx.digit_part(job, tile, digits, sums, &part))?;
                    let otherwise = cx.scope(|cx| floats(cx, &part))?;
                    cx.push(Stmt::If { condition, then, otherwise });
                    Ok(())
                }
                None => floats(cx, &part),
            }
        })?;
        Ok(sums)
    }

    /// Asks for what a later part is made of, where a single tile reads the panel: the arithmetic on a part takes the place of
    /// the loads that would ask for the parts behind it.
    fn stream_codes(&mut self, job: &Job, tile: &Tile, part: &Index, words: &Dim) -> Result<()> {
        let Some(words) = words.as_const().filter(|_| job.prefetch.stream > 0 && tile.ahead.is_none()) else {
            return Ok(());
        };
        let here = self.codes(job, tile, part, &Index::zero())?;
        let word = self.graph.ty(here.codes).dtype.size() as i64;
        let later = job.prefetch.stream / (words * word * job.panels.nr as i64);
        let codes = self.codes(job, tile, &part.add(&Index::int(later.max(1))), &Index::zero())?;
        let first = codes.at(Some(&Index::zero()));
        let mut read = vec![(codes.codes, first, words), (codes.scale, codes.at(None), 1)];
        read.extend(codes.zero.map(|zero| (zero, codes.at(None), 1)));
        for (value, at, rows) in read {
            let Expr::Load { buf, index } = self.expr_at(value, &at)? else { continue };
            let Buffer { dtype, len, .. } = &self.kernel.buffers[buf];
            let size = dtype.size() as i64;
            if len.as_const().is_some_and(|len| len.saturating_mul(size) > job.prefetch.above) {
                for line in (0..rows * job.panels.nr as i64).step_by((CACHE_LINE / size) as usize) {
                    self.push(Stmt::Prefetch { buf, index: index.add(&Index::int(line)) });
                }
            }
        }
        Ok(())
    }

    /// One element of the codes of each column at `lane` of a panel, with where its codes are and the column.
    pub(super) fn code_words(
        &mut self,
        job: &Job,
        tile: &Tile,
        part: &Index,
        (word, lane): (&Index, Var),
    ) -> Result<Vec<(Expr, Codes, Index)>> {
        let mut columns = Vec::with_capacity(job.panels.nr / job.lanes);
        for first in (0..job.panels.nr).step_by(job.lanes) {
            let column = Index::int(first as i64);
            let column = if job.lanes == 1 { column } else { column.add(&Index::var(lane)) };
            let codes = self.codes(job, tile, part, &column)?;
            let element = self.code_word(&codes, word)?;
            columns.push((self.bind("word", element), codes, column));
        }
        Ok(columns)
    }

    /// The steps in one element of the codes, all lanes of all rows.
    fn code_steps(&mut self, job: &Job, tile: &Tile, acc: Local, part: &Index, word: &Index) -> Result<()> {
        let lane = self.kernel.loop_var("v");
        let body = self.scope(|cx| {
            let columns = cx.code_words(job, tile, part, (word, lane))?;
            for place in 0..columns.first().map_or(0, |(_, codes, _)| codes.per_word) {
                let mut panel_row = Vec::with_capacity(columns.len());
                for (word, codes, column) in &columns {
                    let weight = cx.code(codes, word.clone(), place)?;
                    panel_row.push((column, cx.bind("b", weight)));
                }
                let step = word.scale(&Dim::from(columns[0].1.per_word)).add(&Index::int(place as i64));
                for (row, at) in tile.rows.iter().enumerate() {
                    let mut index = cx.broadcast_batch(job.lhs, job, &tile.batch);
                    index.extend_from_slice(at);
                    index.extend([part.clone(), step.clone()]);
                    let element = cx.expr_at(job.lhs, &index)?;
                    let element = cx.widened(job, "a", element);
                    for (column, weight) in &panel_row {
                        let at = vec![Index::int(row as i64), (*column).clone()];
                        let value = Expr::binary(BinaryFn::Mul, element.clone(), weight.clone());
                        cx.push(Stmt::Accumulate { local: acc, at, op: BinaryFn::Add, value });
                    }
                }
            }
            Ok(())
        })?;
        self.push_lanes(lane, job.lanes, body);
        Ok(())
    }

    /// Adds the sums of a part, scaled.
    fn add_part(&mut self, job: &Job, tile: &Tile, acc: Local, sums: Local, part: &Index) -> Result<()> {
        self.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
            let codes = cx.codes(job, tile, part, column)?;
            let scale = cx.code_scale(&codes)?;
            let scale = cx.bind("scale", scale);
            for row in 0..tile.rows.len() {
                let at = vec![Index::int(row as i64), column.clone()];
                let sum = Expr::Get { local: acc, at: at.clone() };
                let value = Expr::binary(BinaryFn::Mul, sum, scale.clone());
                cx.push(Stmt::Accumulate { local: sums, at, op: BinaryFn::Add, value });
            }
            Ok(())
        })
    }

    /// The codes of a part of a tile's panel, in one column.
    pub(super) fn codes(&self, job: &Job, tile: &Tile, part: &Index, column: &Index) -> Result<Codes> {
        let lead = self.row_index(job, job.rhs, (&tile.batch, &tile.panel), std::slice::from_ref(part));
        self.codes_at(job, &lead, column)
    }

    /// The codes of the right-hand side at an index of all axes before the steps.
    pub(super) fn codes_at(&self, job: &Job, lead: &[Index], column: &Index) -> Result<Codes> {
        let node = self.graph.producer(job.rhs).map(|node| &self.graph.nodes[node]);
        match node.and_then(|node| Codes::new(self.graph, node, lead, column)) {
            Some(codes) => Ok(codes),
            None => internal(format!("{} is not dequantized", job.rhs)),
        }
    }
}
