//! The order of a contraction's tiles.
//!
//! A panel of the right-hand side is read once for every tile of rows, and the left-hand side once for every panel. Where
//! the left-hand side does not stay in the caches, rows come in blocks that do, and all panels are taken for one block
//! before the next. Where the right-hand side comes from memory, the tiles of a panel bring the next one nearer.
//!
//! Threads share the panels, or the blocks of rows of all panels. Where there are few panels, the tiles of each are cut
//! into parts that threads can share.

use super::tiles::Plan;
use super::{Job, Tile};
use crate::error::Result;
use crate::graph::dim::{product, row_major_strides};
use crate::graph::{Dim, Node, Op};
use crate::loops::lower::Lowering;
use crate::loops::lower::map::volume;
use crate::loops::lower::runs;
use crate::loops::lower::single::slabs;
use crate::loops::{Buf, Buffer, Expr, Index, Kernel, LoopKind, Stmt};
use crate::scalar::CompareFn;

const CACHE_LINE: i64 = 64;

/// Lines asked for per iteration of the inner loop.
const MAX_PREFETCHES: i64 = 4;

/// The same for a step of tiles, which takes as many lines of a panel of 32 columns.
const MAX_TILE_PREFETCHES: i64 = 32;

/// Parts that a contraction has for threads to share, at least, where it is large enough: so many that threads that are
/// not many have about as much to do each.
const PARTS: i64 = 12;

/// The rows of a panel are cut into a multiple of this many parts, so that a few threads begin with whole blocks of rows.
const BLOCKS: i64 = 4;

/// Tiles of a part, at least: its panel is loaded anew.
const LEAST_TILES: i64 = 3;

/// Tiles of a block of rows that stays in a cache, at least.
const BLOCK_TILES: i64 = 4;

/// Multiplications below which a contraction does not need parts.
const SMALL: i64 = 1 << 16;

/// A part of a range: number `number` of `count`.
pub(in crate::loops::lower) struct Part {
    pub number: Index,
    pub count: Dim,
}

impl Part {
    pub fn whole() -> Part {
        Part { number: Index::zero(), count: Dim::ONE }
    }
}

impl Job {
    /// Rows that are computed at once.
    fn block_rows(&self) -> usize {
        match (&self.tiles, &self.stage) {
            (Some(plan), _) => Plan::block(plan),
            (None, Some(stage)) => stage.rows(self),
            (None, None) => self.height,
        }
    }

    /// Sizes of the row axes, of what is computed of them.
    pub(super) fn row_axes(&self, shape: &[Dim]) -> Vec<Dim> {
        match &self.block {
            Some(block) => vec![block.rows.clone()],
            None => shape[self.batch..self.batch + self.rows].to_vec(),
        }
    }
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
    /// Lines asked for per iteration, at most.
    most: i64,
}

impl Ahead {
    /// Elements of a constant in `buf`, from `start` on, while `tiles` tiles are computed; nothing where all of it stays in
    /// a cache with so much room.
    pub fn of_block(
        kernel: &Kernel,
        buf: Buf,
        start: Index,
        elements: i64,
        tiles: i64,
        room: i64,
    ) -> Option<Ahead> {
        let Buffer { dtype, len, .. } = &kernel.buffers[buf];
        let size = dtype.size() as i64;
        let far = len.as_const().is_some_and(|len| len.saturating_mul(size) > room);
        let line = CACHE_LINE / size;
        let lines = elements / line;
        far.then(|| Ahead {
            buf,
            start,
            number: Index::zero(),
            tiles,
            lines,
            line,
            most: MAX_TILE_PREFETCHES,
        })
    }

    /// As tile number `number` of its panel brings it nearer.
    pub fn of_tile(self, number: Index) -> Ahead {
        Ahead { number, ..self }
    }
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
        let threads = self.row_parts(job, &batch, &panels);
        let parts = self.row_blocks(job, &rows).max_dim(&Dim::from(threads));
        self.for_shape(&batch, LoopKind::Parallel, &mut |cx, batch| {
            cx.for_each("part", &(parts.clone() * panels.clone()), kind, |cx, part| {
                let (mut number, mut panel) = (Index::zero(), part.clone());
                if parts != Dim::ONE {
                    number = part.floor_div(&panels, &cx.extent_fn());
                    panel = part.modulo(&panels, &cx.extent_fn());
                    (number, panel) = (cx.named(number), cx.named(panel));
                }
                cx.border(job, &number, &panel)?;
                cx.panel(job, &batch, &panel, &Part { number, count: parts.clone() })
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
            None => product(tiled).as_const().map(|rows| rows / job.block_rows() as i64 / LEAST_TILES),
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

    /// Bytes that stay in the second-level cache while others pass through it. A cache is never used in full: which of its
    /// sets a page meets is chance.
    pub(super) fn room(&self) -> i64 {
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

    /// Parts of the rows such that the rows of each stay in the second-level cache beside a panel or, where they fit, beside
    /// all panels.
    fn row_blocks(&self, job: &Job, rows: &Dim) -> Dim {
        let size = self.graph.ty(job.lhs).dtype.size() as i64;
        let step_bytes = size * job.depth as i64;
        let row_bytes = product(&job.inner).as_const().and_then(|inner| inner.checked_mul(step_bytes));
        let Some(row_bytes) = row_bytes.filter(|_| job.looped == 0) else { return Dim::ONE };
        let Some(columns) = job.columns.as_const().filter(|columns| *columns > job.nr as i64) else {
            return Dim::ONE;
        };
        let panels = row_bytes.saturating_mul(columns);
        let beside = if panels <= self.room() { panels } else { row_bytes.saturating_mul(2 * job.nr as i64) };
        let fit = (self.room() - beside) / row_bytes.max(1);
        // Rows so long that few of them fit would have the panels loaded too often.
        if fit < BLOCK_TILES * job.block_rows() as i64 {
            return Dim::ONE;
        }
        let block = Dim::from(fit);
        rows.ceil_div(&block).expect("blocks are not empty").max_dim(&Dim::ONE)
    }

    /// A part of the rows of one panel.
    pub(super) fn panel(&mut self, job: &Job, batch: &[Index], panel: &Index, part: &Part) -> Result<()> {
        let condition = match (&job.tiles, &job.stage) {
            (Some(plan), _) => self.enough_for_tiles(job, plan),
            (None, Some(_)) => self.enough_for_stage(job),
            (None, None) => return self.register_panel(job, batch, panel, part),
        };
        let many = |cx: &mut Self| match (&job.tiles, &job.stage) {
            (Some(plan), _) => cx.tile_panel(job, plan, batch, panel, part),
            (None, Some(stage)) => cx.staged_panel(job, stage, batch, panel, part),
            (None, None) => Ok(()),
        };
        let Some(condition) = condition else { return many(self) };
        let then = self.scope(many)?;
        let otherwise = self.scope(|cx| cx.register_panel(job, batch, panel, part))?;
        self.push(Stmt::If { condition, then, otherwise });
        Ok(())
    }

    /// A part of the rows of one panel, on tiles of vector registers.
    fn register_panel(&mut self, job: &Job, batch: &[Index], panel: &Index, part: &Part) -> Result<()> {
        let row_axes = job.row_axes(&self.graph.ty(job.out).shape);
        let first = job.block.as_ref().map_or(Index::zero(), |block| block.first.clone());
        let (outer, tiled) = row_axes.split_at(job.looped);
        let runs = runs::balanced(&product(tiled), job.height);
        let tiles = runs.iter().fold(Dim::ZERO, |sum, run| sum + run.count.clone());
        let all = product(outer) * tiles.clone();
        let own = all.floor_div(&part.count).expect("there are parts");
        let ahead = self.ahead(job, batch, panel, &own)?;
        let strides = row_major_strides(outer);
        let whole = Part::whole();
        let looped = outer.iter().any(|dim| *dim != Dim::ONE);
        let (by_loop, by_tile) = if looped { (part, &whole) } else { (&whole, part) };
        self.for_part(outer, by_loop, &mut |cx, lead| {
            let turn = lead.iter().zip(&strides).fold(Index::zero(), |sum, (i, by)| sum.add(&i.scale(by)));
            let mut before = turn.scale(&tiles);
            for run in &runs {
                cx.for_part(std::slice::from_ref(&run.count), by_tile, &mut |cx, tile| {
                    let tile = &tile[0];
                    let mut rows = Vec::with_capacity(run.size);
                    for row in 0..run.size {
                        let mut index = lead.clone();
                        for at in cx.split_rows(&run.at(tile, row), tiled) {
                            let at = cx.named_row(at);
                            // Of a single axis, where there is a block.
                            index.push(first.add(&at));
                        }
                        rows.push(index);
                    }
                    let ahead = ahead.clone().map(|ahead| ahead.of_tile(before.add(tile)));
                    cx.tile(job, &Tile { batch: batch.to_vec(), rows, panel: panel.clone(), ahead })
                })?;
                before = before.add_dim(&run.count);
            }
            Ok(())
        })
    }

    /// Nested serial loops over a shape, or a part of the outermost one.
    pub(in crate::loops::lower) fn for_part(
        &mut self,
        shape: &[Dim],
        part: &Part,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        if part.count == Dim::ONE {
            return self.for_shape(shape, LoopKind::Serial, fill);
        }
        // A single iteration too is only one part's.
        let first = shape.iter().position(|dim| *dim != Dim::ONE).unwrap_or(0);
        let (var, extent) = (self.kernel.loop_var("t"), shape[first].clone());
        let end = |number: &Index, cx: &Self| number.scale(&extent).floor_div(&part.count, &cx.extent_fn());
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
    pub(super) fn ahead(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        tiles: &Dim,
    ) -> Result<Option<Ahead>> {
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
                let lines = inner.saturating_mul((job.nr * job.depth) as i64) / line;
                let tiles = tiles.as_const().unwrap_or(i64::MAX);
                let most = if job.tiles.is_some() { MAX_TILE_PREFETCHES } else { MAX_PREFETCHES };
                ahead = Some(Ahead { buf, start, number: Index::zero(), tiles, lines, line, most });
            }
            Ok(())
        })?;
        Ok(ahead)
    }

    /// Prefetches for each of `iterations` iterations of a tile's inner loops; `iteration` is their number.
    pub(super) fn prefetches(&mut self, ahead: &Ahead, iterations: i64, iteration: &Index) -> Vec<Stmt> {
        if iterations < 1 || ahead.tiles < 2 && ahead.most == MAX_PREFETCHES {
            return vec![];
        }
        // Each tile takes a part of the panel. When there are more tiles than parts, they start again.
        let turns = ahead.tiles.saturating_mul(iterations);
        let each = (ahead.lines as u64).div_ceil(turns as u64).clamp(1, ahead.most as u64) as i64;
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
