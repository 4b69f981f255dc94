//! The order of a contraction's tiles.
//!
//! A panel of the right-hand side is read once for every tile of rows, and the left-hand side once for every panel. Where
//! the left-hand side does not stay in the caches, rows come in blocks that do, and all panels are taken for one block
//! before the next. Where the right-hand side comes from memory, the tiles of a panel bring the next one nearer.
//!
//! Threads share the panels, or the blocks of rows of all panels. Where there are few panels, the tiles of each are cut
//! into parts that threads can share.

use super::{Job, Tile};
use crate::error::Result;
use crate::graph::dim::{product, row_major_strides};
use crate::graph::{Dim, Node, Op};
use crate::loops::lower::Lowering;
use crate::loops::lower::map::volume;
use crate::loops::lower::single::slabs;
use crate::loops::{Buf, Expr, Index, LoopKind, Stmt};
use crate::scalar::CompareFn;

const CACHE_LINE: i64 = 64;

/// Lines asked for per iteration of the inner loop.
const MAX_PREFETCHES: i64 = 4;

/// Rows of a tile of which an unknown number of rows leaves too many for single rows, and of the tiles for those.
const TALL_TILE: usize = 10;
const SHORT_TILE: usize = 4;

/// Parts that a contraction has for threads to share, at least, where it is large enough: so many that threads that are
/// not many have about as much to do each.
const PARTS: i64 = 12;

/// The rows of a panel are cut into a multiple of this many parts, so that a few threads begin with whole blocks of rows.
const BLOCKS: i64 = 4;

/// Tiles of a part, at least: its panel is loaded anew.
const LEAST_TILES: i64 = 3;

/// Multiplications below which a contraction does not need parts.
const SMALL: i64 = 1 << 16;

/// A part of the rows of a panel: number `number` of `count`.
struct Part {
    number: Index,
    count: i64,
}

/// A run of tiles of one height: `count` tiles of `height` rows from row `start`.
struct Run {
    start: Dim,
    count: Dim,
    height: usize,
}

/// The panel after a tile's own, which the tiles of a panel bring nearer together.
#[derive(Clone)]
pub(super) struct Ahead {
    buf: Buf,
    /// Its first element.
    start: Index,
    /// Number of the tile in its panel, and of tiles.
    number: Index,
    tiles: i64,
    /// Cache lines of a panel, and elements of a line.
    lines: i64,
    line: i64,
}

impl Lowering<'_> {
    /// All tiles of a contraction.
    pub(super) fn walk(&mut self, job: &Job) -> Result<()> {
        let shape = self.graph.ty(job.out).shape.clone();
        let panels = job.columns.ceil_div(&Dim::from(job.nr)).expect("nr is positive");
        let batch = shape[..job.batch].to_vec();
        let batched = batch.iter().any(|dim| *dim != Dim::ONE);
        let kind = if batched { LoopKind::Serial } else { LoopKind::Parallel };
        let rows = product(&shape[job.batch..job.batch + job.rows]);
        let block = self.block_rows(job, &rows);
        let parts = self.row_parts(job, &batch, &panels);
        self.for_shape(&batch, LoopKind::Parallel, &mut |cx, batch| {
            let size = block.map(Dim::from);
            let pieces = match &size {
                Some(size) => rows.floor_div(size).expect("blocks are not empty"),
                None => Dim::from(parts),
            };
            cx.for_each("part", &(pieces.clone() * panels.clone()), kind, |cx, part| {
                let (mut number, mut panel) = (Index::zero(), part.clone());
                if pieces != Dim::ONE {
                    number = part.floor_div(&panels, &cx.extent_fn());
                    panel = part.modulo(&panels, &cx.extent_fn());
                    (number, panel) = (cx.named(number), cx.named(panel));
                }
                cx.border(job, &number, &panel)?;
                match &size {
                    Some(size) => {
                        let all = Part { number: Index::zero(), count: 1 };
                        cx.panel(job, &batch, &panel, &number.scale(size), size, &all)
                    }
                    None => {
                        let part = Part { number, count: parts };
                        cx.panel(job, &batch, &panel, &Index::zero(), &rows, &part)
                    }
                }
            })
        })
    }

    /// The columns of one panel of the border, where the result goes into the middle of a padded one: the task of the
    /// first part of the panel's rows.
    fn border(&mut self, job: &Job, part: &Index, panel: &Index) -> Result<()> {
        let &[output] = self.group.outputs.as_slice() else { return Ok(()) };
        let Some(Node { op: Op::Pad { lo, .. }, inputs, .. }) = self.group_producer(output) else {
            return Ok(());
        };
        let (lo, x, fill) = (lo.clone(), inputs[0], inputs[1]);
        let (inside, whole) = (self.graph.ty(x).shape.clone(), self.graph.ty(output).shape.clone());
        let last = whole.len() - 1;
        let fills = self.scope(|cx| {
            for (slab, at) in
                (0..last).flat_map(|axis| slabs(&inside[..last], &whole[..last], &lo[..last], axis))
            {
                cx.for_shape(&slab, LoopKind::Serial, &mut |cx, index| {
                    let index: Vec<Index> = index.iter().zip(&at).map(|(i, at)| i.add_dim(at)).collect();
                    cx.panel_columns(job, panel, &mut |cx, column| {
                        let value = cx.expr_at(fill, &[])?;
                        let mut index = index.clone();
                        index.push(panel.scale(&Dim::from(job.nr)).add(column));
                        cx.store(output, &index, value);
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })?;
        if part.as_int() == Some(0) {
            fills.into_iter().for_each(|stmt| self.push(stmt));
        } else if !fills.is_empty() {
            let condition =
                Expr::compare(CompareFn::Eq, Expr::Index(part.clone()), Expr::Index(Index::zero()));
            self.push(Stmt::If { condition, then: fills, otherwise: vec![] });
        }
        Ok(())
    }

    /// Parts of the rows of a panel.
    fn row_parts(&self, job: &Job, batch: &[Dim], panels: &Dim) -> i64 {
        let (Some(batch), Some(panels)) = (product(batch).as_const(), panels.as_const()) else { return 1 };
        let row_axes = &self.graph.ty(job.out).shape[job.batch..job.batch + job.rows];
        let (outer, tiled) = row_axes.split_at(job.looped);
        // What is cut: the outermost loop over rows.
        let most = match outer.iter().find(|dim| **dim != Dim::ONE) {
            Some(dim) => dim.as_const(),
            None => product(tiled).as_const().map(|rows| rows / job.height as i64 / LEAST_TILES),
        };
        let work = [row_axes, &job.inner, std::slice::from_ref(&job.columns)].concat();
        if batch != 1 || panels < 1 || volume(&work).is_some_and(|work| work < SMALL) {
            return 1;
        }
        // Two thirds of the parts are enough. Blocks of rows are best for convolutions too: the neighbours that read them
        // are split by rows, and what a thread wrote is in its own cache.
        let few = if panels * 3 < PARTS * 2 { (PARTS + panels - 1) / panels } else { 1 };
        let wanted =
            if few > 1 || self.rows_outweigh(job) { (few + BLOCKS - 1) / BLOCKS * BLOCKS } else { 1 };
        wanted.min(most.unwrap_or(i64::MAX)).max(1)
    }

    /// Bytes of one operand that stay in the second-level cache beside the other.
    fn room(&self) -> i64 {
        self.target.l2_bytes as i64 / 2
    }

    /// Whether the left-hand side is larger than the right-hand side, which stays in the second-level cache.
    fn rows_outweigh(&self, job: &Job) -> bool {
        let bytes = |value| self.graph.ty(value).bytes().as_const();
        match (bytes(job.lhs), bytes(job.rhs)) {
            (Some(left), Some(right)) => right <= self.room() && left >= right,
            _ => false,
        }
    }

    /// Rows of a block, where blocks pay: the left-hand side is larger than the second-level cache holds beside
    /// the panels, all of which stay there.
    fn block_rows(&self, job: &Job, rows: &Dim) -> Option<i64> {
        let size = self.graph.ty(job.lhs).dtype.size() as i64;
        let inner = product(&job.inner).as_const()?;
        let (rows, columns) = (rows.as_const()?, job.columns.as_const()?);
        let room = self.room();
        let row_bytes = inner.checked_mul(size)?;
        let (left, right) = (rows.checked_mul(row_bytes)?, columns.checked_mul(row_bytes)?);
        if job.looped > 0 || columns <= job.nr as i64 || left <= room || (right > room && left <= 4 * room) {
            return None;
        }
        let most = (room / row_bytes.max(1)).min(rows);
        let least = (most / 2).max(4 * job.height as i64);
        (least..=most).rev().find(|block| rows % block == 0)
    }

    /// A part of the tiles of `count` rows from row `first` on of one panel.
    fn panel(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        first: &Index,
        count: &Dim,
        part: &Part,
    ) -> Result<()> {
        let shape = self.graph.ty(job.out).shape.clone();
        let row_axes = shape[job.batch..job.batch + job.rows].to_vec();
        let (outer, tiled) = row_axes.split_at(job.looped);
        let tiled_rows = if job.looped > 0 { product(tiled) } else { count.clone() };
        let runs = runs(&tiled_rows, job.height);
        let tiles = runs.iter().fold(Dim::ZERO, |sum, run| sum + run.count.clone());
        let all = product(outer) * tiles.clone();
        let own = all.floor_div(&Dim::from(part.count)).expect("there are parts");
        let ahead = self.ahead(job, batch, panel, &own)?;
        let strides = row_major_strides(outer);
        let whole = Part { number: Index::zero(), count: 1 };
        let looped = outer.iter().any(|dim| *dim != Dim::ONE);
        let (by_loop, by_tile) = if looped { (part, &whole) } else { (&whole, part) };
        self.for_part(outer, by_loop, &mut |cx, lead| {
            let turn = lead.iter().zip(&strides).fold(Index::zero(), |sum, (i, by)| sum.add(&i.scale(by)));
            let mut before = turn.scale(&tiles);
            for run in &runs {
                cx.for_part(std::slice::from_ref(&run.count), by_tile, &mut |cx, tile| {
                    let tile = &tile[0];
                    let start = first.add(&tile.scale(&Dim::from(run.height))).add_dim(&run.start);
                    let mut rows = Vec::with_capacity(run.height);
                    for row in 0..run.height {
                        let mut index = lead.clone();
                        for at in cx.split_rows(&start.add(&Index::int(row as i64)), tiled) {
                            index.push(cx.named(at));
                        }
                        rows.push(index);
                    }
                    let ahead = ahead.clone().map(|ahead| Ahead { number: before.add(tile), ..ahead });
                    cx.tile(job, &Tile { batch: batch.to_vec(), rows, panel: panel.clone(), ahead })
                })?;
                before = before.add_dim(&run.count);
            }
            Ok(())
        })
    }

    /// Nested serial loops over a shape, or a part of the outermost one.
    fn for_part(
        &mut self,
        shape: &[Dim],
        part: &Part,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        if part.count == 1 {
            return self.for_shape(shape, LoopKind::Serial, fill);
        }
        // A single iteration too is only one part's.
        let first = shape.iter().position(|dim| *dim != Dim::ONE).unwrap_or(0);
        let (var, extent) = (self.kernel.loop_var("t"), shape[first].clone());
        let end = |number: &Index, cx: &Self| {
            number.scale(&extent).floor_div(&Dim::from(part.count), &cx.extent_fn())
        };
        let (lo, hi) = (end(&part.number, self), end(&part.number.add(&Index::int(1)), self));
        self.extents.insert(var, extent);
        let body = self.scope(|cx| {
            cx.for_shape(&shape[first + 1..], LoopKind::Serial, &mut |cx, rest| {
                let mut index = vec![Index::zero(); first];
                index.push(Index::var(var));
                index.extend(rest);
                fill(cx, index)
            })
        })?;
        self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// The panel after `panel`, where the panels are more than the second-level cache keeps.
    fn ahead(&mut self, job: &Job, batch: &[Index], panel: &Index, tiles: &Dim) -> Result<Option<Ahead>> {
        let ty = self.graph.ty(job.rhs);
        let size = ty.dtype.size() as i64;
        let far = ty.bytes().as_const().is_some_and(|bytes| bytes > self.room());
        let (true, Some(inner)) = (far && self.graph.is_constant(job.rhs), product(&job.inner).as_const())
        else {
            return Ok(None);
        };
        let mut index = self.broadcast_batch(job.rhs, job, batch);
        index.push(panel.add(&Index::int(1)));
        index.extend(job.inner.iter().map(|_| Index::zero()));
        index.push(Index::zero());
        let mut ahead = None;
        self.scope(|cx| {
            if let Expr::Load { buf, index: start } = cx.expr_at(job.rhs, &index)? {
                let line = CACHE_LINE / size;
                let lines = inner.saturating_mul(job.nr as i64) / line;
                let tiles = tiles.as_const().unwrap_or(i64::MAX);
                ahead = Some(Ahead { buf, start, number: Index::zero(), tiles, lines, line });
            }
            Ok(())
        })?;
        Ok(ahead)
    }

    /// Prefetches for each of `iterations` iterations of a tile's inner loops; `iteration` is their number.
    pub(super) fn prefetches(&mut self, ahead: &Ahead, iterations: i64, iteration: &Index) -> Vec<Stmt> {
        if iterations < 1 || ahead.tiles < 2 {
            return vec![];
        }
        // Each tile takes a part of the panel. When there are more tiles than parts, they start again.
        let turns = ahead.tiles.saturating_mul(iterations);
        let each = (ahead.lines as u64).div_ceil(turns as u64).clamp(1, MAX_PREFETCHES as u64) as i64;
        let parts = (ahead.lines as u64).div_ceil((each * iterations) as u64) as i64;
        let part = ahead.number.modulo(&Dim::from(parts), &self.extent_fn());
        let part = self.named(part);
        let first = part.scale(&Dim::from(iterations)).add(iteration).scale(&Dim::from(each));
        let place = |line: i64| first.add(&Index::int(line)).scale(&Dim::from(ahead.line));
        (0..each)
            .map(|line| Stmt::Prefetch { buf: ahead.buf, index: ahead.start.add(&place(line)) })
            .collect()
    }
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
