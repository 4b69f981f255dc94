//! Contractions: matrix products and convolutions on register tiles.
//!
//! The right-hand side lies in column panels of `nr` columns (`Op::Pack`). For each panel, tiles of a few rows
//! keep their results in registers while the inner axes run: per step one panel row is loaded, and each row
//! of the tile multiplies it by one broadcast element of the left-hand side. The left-hand side is read in
//! place, through whatever view it is (for a convolution, a window of the padded image). The epilogue runs on the
//! tile before it is stored.

use crate::error::Result;
use crate::graph::dim::{product, row_major_strides};
use crate::graph::{DType, Dim, Op, RhsLayout, ValueId};
use crate::loops::lower::{Lowering, Override, internal};
use crate::loops::nest::Nest;
use crate::loops::{Expr, Index, Local, LoopKind, Stmt, Term, Var, visit};
use crate::scalar::{BinaryFn, CompareFn};

/// Steps of the innermost axis written out per iteration, where the extent does not suggest another number.
const UNROLL: i64 = 8;

/// Rows of the left-hand side this many bytes apart, or a multiple of it, meet in the same few cache lines.
const ALIAS_BYTES: i64 = 4096;

/// Rows of a tile whose elements fall on the same cache lines: fewer than the ways of a first-level cache, which
/// also holds the panel.
const ALIASED_ROWS: usize = 7;

/// From this extent on, the last row axis is tiled on its own when its rows do not continue each other.
const LONG_AXIS: i64 = 12;

/// Rows of a tile of which an unknown number of rows leaves too many for single rows, and of the tiles for those.
const TALL_TILE: usize = 10;
const SHORT_TILE: usize = 4;

/// A contraction's parts.
struct Job {
    out: ValueId,
    lhs: ValueId,
    rhs: ValueId,
    batch: usize,
    rows: usize,
    inner: Vec<Dim>,
    nr: usize,
    columns: Dim,
    /// Type of the sums: f32 for the 16-bit floats.
    sum: DType,
    lanes: usize,
    /// Leading row axes that have loops of their own; the others form one tiled axis.
    looped: usize,
    /// Rows of a register tile.
    height: usize,
}

/// Where a tile stands.
struct Tile {
    batch: Vec<Index>,
    /// Per row of the tile: its index along every row axis.
    rows: Vec<Vec<Index>>,
    panel: Index,
}

/// A run of tiles of one height: `count` tiles of `height` rows from row `start`.
struct Run {
    start: Dim,
    count: Dim,
    height: usize,
}

impl Lowering<'_> {
    pub(super) fn contract(&mut self) -> Result<()> {
        let job = self.contract_job()?;
        let shape = self.graph.ty(job.out).shape.clone();
        let panels = job.columns.ceil_div(&Dim::from(job.nr)).expect("nr is positive");
        let batch = shape[..job.batch].to_vec();
        let batched = batch.iter().any(|dim| *dim != Dim::ONE);
        let kind = if batched { LoopKind::Serial } else { LoopKind::Parallel };
        self.for_shape(&batch, LoopKind::Parallel, &mut |cx, batch| {
            cx.for_each("panel", &panels, kind, |cx, panel| cx.panel(&job, batch, panel))
        })?;
        self.finish();
        Ok(())
    }

    fn contract_job(&mut self) -> Result<Job> {
        let node = &self.graph.nodes[self.group.anchor];
        let Op::Contract { batch, m, k: _, rhs: RhsLayout::Panels { nr, n } } = &node.op else {
            return internal("a contraction whose right-hand side is not packed");
        };
        let (lhs, rhs, out) = (node.inputs[0], node.inputs[1], node.outputs[0]);
        let dtype = self.graph.ty(out).dtype;
        let sum = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let lanes = match dtype {
            DType::F32 | DType::I32 | DType::F64 => self.target.lanes(dtype.size()).min(*nr),
            _ => 1,
        };
        let lanes = if nr % lanes == 0 { lanes } else { 1 };
        let inner = self.graph.ty(lhs).shape[batch + m..].to_vec();
        let mut job = Job {
            out,
            lhs,
            rhs,
            batch: *batch,
            rows: *m,
            inner,
            nr: *nr,
            columns: n.clone(),
            sum,
            lanes,
            looped: 0,
            height: 1,
        };
        job.looped = self.looped_axes(&job)?;
        let vectors = job.nr / job.lanes;
        let free = self.target.vector_registers.saturating_sub(vectors + 1);
        // One vector of columns needs no more rows to hide the latency of its sums; wider panels are read less often
        // for more rows.
        let most = if vectors == 1 { 10 } else { 14 };
        job.height = (free / vectors).clamp(1, most);
        if self.rows_alias(&job)? {
            job.height = job.height.min(ALIASED_ROWS);
        }
        Ok(job)
    }

    /// How many leading row axes to loop over: none if all rows follow each other at one stride, all but the
    /// last if that one is long enough to tile well, else none (and rows are found by division).
    fn looped_axes(&mut self, job: &Job) -> Result<usize> {
        if job.rows < 2 {
            return Ok(0);
        }
        let shape = self.graph.ty(job.out).shape.clone();
        let row_axes = &shape[job.batch..job.batch + job.rows];
        let row = self.kernel.loop_var("probe");
        self.extents.insert(row, product(row_axes));
        let rows = self.split_rows(&Index::var(row), row_axes);
        let mut index = vec![Index::zero(); job.batch];
        index.extend(rows);
        index.extend(job.inner.iter().map(|_| Index::zero()));
        let mut divides = false;
        self.scope(|cx| {
            let expr = cx.expr_at(job.lhs, &index)?;
            let is_division = |term: &Term| !matches!(term, Term::Var(_));
            divides = match expr {
                Expr::Load { index, .. } => visit::any_term(&index, &is_division),
                _ => true,
            };
            Ok(())
        })?;
        let last = &row_axes[job.rows - 1];
        let long = last.as_const().is_none_or(|extent| extent >= LONG_AXIS);
        Ok(if divides && long { job.rows - 1 } else { 0 })
    }

    /// Whether neighbouring rows of the left-hand side are a multiple of [`ALIAS_BYTES`] apart.
    fn rows_alias(&mut self, job: &Job) -> Result<bool> {
        if job.rows == 0 {
            return Ok(false);
        }
        let row = self.kernel.loop_var("probe");
        let mut index = vec![Index::zero(); job.batch + job.rows - 1];
        index.push(Index::var(row));
        index.extend(job.inner.iter().map(|_| Index::zero()));
        let mut alias = false;
        self.scope(|cx| {
            if let Expr::Load { index, .. } = cx.expr_at(job.lhs, &index)? {
                let size = cx.graph.ty(job.lhs).dtype.size() as i64;
                let step = index.coefficient(row).and_then(|step| step.as_const()).unwrap_or(0);
                alias = step != 0 && step * size % ALIAS_BYTES == 0;
            }
            Ok(())
        })?;
        Ok(alias)
    }

    /// Row number `row` of the flattened `axes` as an index per axis.
    fn split_rows(&self, row: &Index, axes: &[Dim]) -> Vec<Index> {
        let extents = self.extent_fn();
        let mut rest = row.clone();
        row_major_strides(axes)
            .iter()
            .zip(axes)
            .map(|(stride, extent)| {
                if *extent == Dim::ONE {
                    return Index::zero();
                }
                let at = rest.floor_div(stride, &extents);
                rest = rest.modulo(stride, &extents);
                at
            })
            .collect()
    }

    /// All rows of one panel.
    fn panel(&mut self, job: &Job, batch: Vec<Index>, panel: Index) -> Result<()> {
        let shape = self.graph.ty(job.out).shape.clone();
        let row_axes = shape[job.batch..job.batch + job.rows].to_vec();
        let tiled = row_axes[job.looped..].to_vec();
        let outer = row_axes[..job.looped].to_vec();
        self.for_shape(&outer, LoopKind::Serial, &mut |cx, lead| {
            for run in runs(&product(&tiled), job.height) {
                cx.for_each("tile", &run.count, LoopKind::Serial, |cx, tile| {
                    let first = tile.scale(&Dim::from(run.height)).add_dim(&run.start);
                    let mut rows = Vec::with_capacity(run.height);
                    for row in 0..run.height {
                        let mut index = lead.clone();
                        for at in cx.split_rows(&first.add(&Index::int(row as i64)), &tiled) {
                            index.push(cx.named(at));
                        }
                        rows.push(index);
                    }
                    cx.tile(job, &Tile { batch: batch.clone(), rows, panel: panel.clone() })
                })?;
            }
            Ok(())
        })
    }

    /// An index that needs a division gets a name, so that it is computed once.
    fn named(&mut self, index: Index) -> Index {
        if !visit::any_term(&index, &|term| !matches!(term, Term::Var(_))) {
            return index;
        }
        let var = self.kernel.let_var("row", DType::I64);
        self.push(Stmt::Let { var, value: Expr::Index(index) });
        Index::var(var)
    }

    fn tile(&mut self, job: &Job, tile: &Tile) -> Result<()> {
        let acc = self.kernel.local("acc", job.sum, &[tile.rows.len(), job.nr], job.lanes);
        self.clear(job, acc, tile.rows.len());
        self.accumulate(job, tile, acc)?;
        self.epilogue(job, tile, acc)
    }

    /// Statements for every column of a panel: `fill` gets the column as an index of a register's last axis.
    fn for_columns(
        &mut self,
        job: &Job,
        columns: std::ops::Range<usize>,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        if job.lanes == 1 {
            return columns.into_iter().try_for_each(|column| fill(self, &Index::int(column as i64)));
        }
        for first in columns.step_by(job.lanes) {
            let lane = self.kernel.loop_var("v");
            self.extents.insert(lane, Dim::from(job.lanes));
            let body = self.scope(|cx| fill(cx, &Index::var(lane).add(&Index::int(first as i64))))?;
            self.push_lanes(lane, job.lanes, body);
        }
        Ok(())
    }

    fn clear(&mut self, job: &Job, acc: Local, rows: usize) {
        let zero = Expr::constant(job.sum, 0.0);
        let stmts = |cx: &mut Self, column: &Index| {
            for row in 0..rows {
                let at = vec![Index::int(row as i64), column.clone()];
                cx.push(Stmt::Set { local: acc, at, value: zero.clone() });
            }
            Ok(())
        };
        self.for_columns(job, 0..job.nr, &mut { stmts }).expect("setting registers cannot fail");
    }

    /// The inner axes: panel row times one element of each row of the tile.
    fn accumulate(&mut self, job: &Job, tile: &Tile, acc: Local) -> Result<()> {
        let (mut nest, index) = Nest::over(&mut self.kernel, &job.inner);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        nest.body = self.scope(|cx| cx.step(job, tile, acc, &index))?;
        nest.fuse_all(0);
        let Some(axis) = nest.axes.pop() else {
            nest.body.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(());
        };
        nest.body = self.unrolled(axis.var, &axis.extent, std::mem::take(&mut nest.body));
        nest.into_stmts().into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    /// One step of the inner axes, all lanes of all rows.
    fn step(&mut self, job: &Job, tile: &Tile, acc: Local, inner: &[Index]) -> Result<()> {
        let lane = self.kernel.loop_var("v");
        let body = self.scope(|cx| {
            let vectors = job.nr / job.lanes;
            let mut panel_row = Vec::with_capacity(vectors);
            for vector in 0..vectors {
                let column = Index::int((vector * job.lanes) as i64);
                let column = if job.lanes == 1 { column } else { column.add(&Index::var(lane)) };
                let mut index = cx.broadcast_batch(job.rhs, job, &tile.batch);
                index.push(tile.panel.clone());
                index.extend_from_slice(inner);
                index.push(column.clone());
                let value = cx.expr_at(job.rhs, &index)?;
                panel_row.push((column, cx.widened(job, "b", value)));
            }
            for (row, place) in tile.rows.iter().enumerate() {
                let mut index = cx.broadcast_batch(job.lhs, job, &tile.batch);
                index.extend_from_slice(place);
                index.extend_from_slice(inner);
                let value = cx.expr_at(job.lhs, &index)?;
                let element = cx.widened(job, "a", value);
                for (column, value) in &panel_row {
                    let at = vec![Index::int(row as i64), column.clone()];
                    let value = Expr::binary(BinaryFn::Mul, element.clone(), value.clone());
                    cx.push(Stmt::Accumulate { local: acc, at, op: BinaryFn::Add, value });
                }
            }
            Ok(())
        })?;
        self.push_lanes(lane, job.lanes, body);
        Ok(())
    }

    /// An operand in the type of the sums, bound to a name.
    fn widened(&mut self, job: &Job, name: &str, value: Expr) -> Expr {
        let value = if self.kernel.dtype(&value) == job.sum { value } else { Expr::cast(job.sum, value) };
        self.bind(name, value)
    }

    fn broadcast_batch(&self, value: ValueId, job: &Job, index: &[Index]) -> Vec<Index> {
        let own = &self.graph.ty(value).shape[..job.batch];
        let wanted = &self.graph.ty(job.out).shape[..job.batch];
        own.iter()
            .zip(wanted.iter().zip(index))
            .map(|(dim, (wanted, i))| match dim.as_const() {
                Some(1) => Index::zero(),
                _ if dim == wanted || dim.is_const() => i.clone(),
                _ => i.scale(&(dim.clone() - Dim::ONE).min_dim(&Dim::ONE)),
            })
            .collect()
    }

    /// The innermost inner loop, a few steps written out per iteration.
    fn unrolled(&mut self, var: Var, extent: &Dim, body: Vec<Stmt>) -> Vec<Stmt> {
        let count = unroll_factor(extent);
        let steps = Dim::from(count);
        let whole = extent.floor_div(&steps).expect("the unroll factor is positive");
        let mut out = Vec::new();
        if whole != Dim::ZERO {
            let (block, step) = (self.kernel.loop_var("kb"), self.kernel.loop_var("ku"));
            let mut copy = body.clone();
            crate::loops::nest::rename_lets(&mut self.kernel, &mut copy);
            let at = Index::var(block).scale(&steps).add(&Index::var(step));
            visit::substitute(&mut copy, var, &at);
            let inner = Stmt::For {
                var: step,
                lo: Index::zero(),
                hi: Index::int(count),
                step: 1,
                kind: LoopKind::Unrolled,
                body: copy,
            };
            let (lo, hi) = (Index::zero(), Index::dim(whole.clone()));
            out.push(Stmt::For { var: block, lo, hi, step: 1, kind: LoopKind::Serial, body: vec![inner] });
        }
        let done = whole * steps;
        if done != *extent {
            let (lo, hi) = (Index::dim(done), Index::dim(extent.clone()));
            out.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        }
        out
    }

    /// Stores the tile: whole panels in vectors, the last panel's missing columns left out.
    fn epilogue(&mut self, job: &Job, tile: &Tile, acc: Local) -> Result<()> {
        let width = Dim::from(job.nr);
        let whole = job.columns.floor_div(&width).expect("nr is positive");
        let rest = job.columns.clone() - whole.clone() * width;
        if rest == Dim::ZERO {
            return self.store_columns(job, tile, acc, 0..job.nr);
        }
        let last = |cx: &mut Self| match rest.as_const() {
            Some(rest) => {
                let vectors = rest as usize / job.lanes * job.lanes;
                cx.store_columns(job, tile, acc, 0..vectors)?;
                (vectors..rest as usize).try_for_each(|column| cx.store_column(job, tile, acc, column))
            }
            None => (0..job.nr).try_for_each(|column| {
                let condition = Expr::compare(
                    CompareFn::Lt,
                    Expr::Index(Index::int(column as i64)),
                    Expr::Index(Index::dim(rest.clone())),
                );
                let then = cx.scope(|cx| cx.store_column(job, tile, acc, column))?;
                cx.push(Stmt::If { condition, then, otherwise: vec![] });
                Ok(())
            }),
        };
        if whole == Dim::ZERO {
            return last(self);
        }
        let condition =
            Expr::compare(CompareFn::Lt, Expr::Index(tile.panel.clone()), Expr::Index(Index::dim(whole)));
        let then = self.scope(|cx| cx.store_columns(job, tile, acc, 0..job.nr))?;
        let otherwise = self.scope(last)?;
        self.push(Stmt::If { condition, then, otherwise });
        Ok(())
    }

    /// The columns of every row, in vectors.
    fn store_columns(
        &mut self,
        job: &Job,
        tile: &Tile,
        acc: Local,
        columns: std::ops::Range<usize>,
    ) -> Result<()> {
        self.for_columns(job, columns, &mut |cx, column| cx.store_rows(job, tile, acc, column))
    }

    fn store_column(&mut self, job: &Job, tile: &Tile, acc: Local, column: usize) -> Result<()> {
        self.store_rows(job, tile, acc, &Index::int(column as i64))
    }

    fn store_rows(&mut self, job: &Job, tile: &Tile, acc: Local, column: &Index) -> Result<()> {
        for (row, place) in tile.rows.iter().enumerate() {
            let sum = Expr::Get { local: acc, at: vec![Index::int(row as i64), column.clone()] };
            let dtype = self.graph.ty(job.out).dtype;
            let sum = if dtype == job.sum { sum } else { Expr::cast(dtype, sum) };
            self.overrides.insert(job.out, Override::Expr(sum));
            let mut index = tile.batch.clone();
            index.extend_from_slice(place);
            index.push(tile.panel.scale(&Dim::from(job.nr)).add(column));
            self.store_outputs(&index)?;
        }
        Ok(())
    }
}

/// A divisor of the extent near [`UNROLL`], so that no steps are left over, or `UNROLL`.
fn unroll_factor(extent: &Dim) -> i64 {
    let Some(extent) = extent.as_const() else { return UNROLL };
    [8, 9, 7, 10, 6, 12, 5].into_iter().find(|count| extent % count == 0).unwrap_or(UNROLL)
}

/// Splits `rows` rows into tiles of at most `height` rows that differ by one row at most; an unknown number into
/// full tiles, short ones where the full ones are tall, and single rows.
fn runs(rows: &Dim, height: usize) -> Vec<Run> {
    let Some(count) = rows.as_const() else {
        let size = Dim::from(height);
        let whole = rows.floor_div(&size).expect("tiles are not empty");
        let start = whole.clone() * size;
        let rest = rows.clone() - start.clone();
        let mut runs = vec![Run { start: Dim::ZERO, count: whole, height }];
        if height > 1 && rest != Dim::ZERO {
            let (mut start, mut rest) = (start, rest);
            // One by one, what a tall tile leaves would take longer than a tile.
            if height > TALL_TILE {
                let size = Dim::from(SHORT_TILE);
                let whole = rest.floor_div(&size).expect("tiles are not empty");
                let rows = whole.clone() * size;
                runs.push(Run { start: start.clone(), count: whole, height: SHORT_TILE });
                start = start + rows.clone();
                rest = rest - rows;
            }
            runs.push(Run { start, count: rest, height: 1 });
        }
        return runs;
    };
    let count = count.max(0) as usize;
    let tiles = count.div_ceil(height).max(1);
    let (small, tall) = (count / tiles, count % tiles);
    let run = |start: usize, count: usize, height: usize| Run {
        start: Dim::from(start),
        count: Dim::from(count),
        height,
    };
    [run(0, tall, small + 1), run(tall * (small + 1), tiles - tall, small)]
        .into_iter()
        .filter(|run| run.count != Dim::ZERO && run.height > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_balanced() {
        let split = |rows: i64| {
            let list: Vec<_> = runs(&Dim::from(rows), 6)
                .into_iter()
                .map(|run| (run.start.as_const().unwrap(), run.count.as_const().unwrap(), run.height))
                .collect();
            list
        };
        assert_eq!(split(49), [(0, 4, 6), (24, 5, 5)]);
        assert_eq!(split(12), [(0, 2, 6)]);
        assert_eq!(split(1), [(0, 1, 1)]);
        assert_eq!(split(0), []);
    }

    #[test]
    fn runs_of_unknown_rows_cover_them() {
        let rows = Dim::sym(crate::graph::Sym::from_u32(0));
        for height in [1, 6, 14] {
            for count in 0..60 {
                let value = |dim: &Dim| dim.eval(&|_| Some(count)).unwrap();
                let mut next = 0;
                let runs = runs(&rows, height);
                for run in &runs {
                    assert_eq!(value(&run.start), next);
                    next += value(&run.count) * run.height as i64;
                }
                assert_eq!(next, count);
                assert!(value(&runs.last().unwrap().count) < 10 || height == 1);
            }
        }
    }
}
