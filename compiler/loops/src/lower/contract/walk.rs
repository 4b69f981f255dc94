//! The order of a contraction's tiles.
//!
//! A panel of the right-hand side is read once for every tile of rows, and the left-hand side once for every panel. Where
//! the left-hand side does not stay in the caches, rows come in blocks that do, and all panels are taken for one block
//! before the next. Where the right-hand side comes from memory, the tiles of a panel bring the next one nearer.
//!
//! Threads share the panels, or the blocks of rows of all panels. Where there are few panels, the tiles of each are cut
//! into parts that threads can share.

use super::tiles::TilePlan;
use super::{Job, Route, Tile};
use crate::lower::Lowering;
use crate::lower::runs;
use crate::lower::single::slabs;
use crate::{Buf, Buffer, Expr, Index, Kernel, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Node, Op};
use onnxc_ir::scalar::CompareFn;
use onnxc_tuning::contract::{Extents, PART_TILES, Prefetch, Walk};
use onnxc_tuning::{CACHE_LINE, Picker, shared_axes};

/// A part of a range: number `number` of `count`.
pub(in crate::lower) struct RangePart {
    pub number: Index,
    pub count: Dim,
}

impl RangePart {
    pub(crate) fn whole() -> RangePart {
        RangePart { number: Index::zero(), count: Dim::ONE }
    }
}

impl Job {
    /// Rows that are computed at once.
    fn block_rows(&self) -> usize {
        match &self.route {
            Route::Tiles(plan) => TilePlan::block(plan),
            Route::Widened(stage) => stage.rows(self),
            Route::Registers => self.register_rows(),
        }
    }

    /// The fewest rows that are worth a part of their own, which widens panels for itself.
    fn part_rows(&self) -> usize {
        match &self.route {
            Route::Widened(stage) => (stage.rows(self) / 3).max(1),
            Route::Tiles(_) | Route::Registers => PART_TILES * self.block_rows(),
        }
    }

    /// Rows of a tile of vector registers.
    fn register_rows(&self) -> usize {
        self.digits().map_or(self.tile.rows, |digits| digits.tile.rows)
    }

    /// Sizes of the row axes, of what is computed of them.
    pub(super) fn row_axes(&self, shape: &[Dim]) -> Vec<Dim> {
        match &self.block {
            Some(block) => vec![block.rows.clone()],
            None => shape[self.batch..self.batch + self.rows].to_vec(),
        }
    }
}

/// Tiles that prefetch the next panel where the number of tiles is not known: with more, some of it is asked for twice. A prompt of
/// 32 tokens of llama takes 13.9 ms on Zen 5 where each tile asks for as little as of a panel of many, 13.0 with this.
const FEW_TILES: i64 = 2;

/// What tiles bring nearer: together the panel after their own, or alone what comes next of their own.
#[derive(Clone)]
pub(super) struct Ahead {
    buf: Buf,
    /// Its first element.
    start: Index,
    /// Number of the tile in its panel, and of tiles where that is known before the run.
    number: Index,
    tiles: Option<i64>,
    /// Cache lines of a panel, and elements of a line.
    lines: i64,
    line: i64,
    /// Lines asked for per iteration, at most.
    most: i64,
}

impl Ahead {
    /// Elements of a constant in `buf`, from `start` on, while `tiles` tiles are computed; nothing where all of it is near.
    pub(super) fn of_block(
        kernel: &Kernel,
        buf: Buf,
        start: Index,
        elements: i64,
        tiles: i64,
        prefetch: &Prefetch,
    ) -> Option<Ahead> {
        let Buffer { dtype, len, .. } = &kernel.buffers[buf];
        let size = dtype.size() as i64;
        let far = len.as_const().is_some_and(|len| len.saturating_mul(size) > prefetch.above);
        let line = CACHE_LINE / size;
        let lines = elements / line;
        (far && prefetch.lines > 0).then(|| Ahead {
            buf,
            start,
            number: Index::zero(),
            tiles: Some(tiles),
            lines,
            line,
            most: prefetch.lines,
        })
    }

    /// As tile number `number` of its panel brings it nearer.
    pub(super) fn of_tile(self, number: Index) -> Ahead {
        Ahead { number, ..self }
    }

    /// What tile number `number` of a run of tiles of `size` rows brings nearer. `looped`: an outer loop repeats the runs.
    fn of_run(self, job: &Job, size: usize, looped: bool, number: Index) -> Option<Ahead> {
        let maybe_alone = self.tiles == Some(1) || self.tiles.is_none() && !looped;
        // A tile of many rows computes for longer than its panel takes to come; one row never does, however wide the panel is.
        let is_short = 2 * size <= job.tile.rows || size == 1;
        if maybe_alone && job.prefetch.stream > 0 && is_short {
            return Some(self.of_own_panel(job.prefetch.stream));
        }
        let alone = self.tiles == Some(1) && !matches!(job.route, Route::Tiles(_));
        (!alone).then(|| self.of_tile(number))
    }

    /// Instead of the next panel, each line of the tile's own `bytes` ahead of its use.
    fn of_own_panel(self, bytes: i64) -> Ahead {
        let elements = bytes * self.line / CACHE_LINE - self.lines * self.line;
        let start = self.start.add(&Index::int(elements));
        Ahead { start, number: Index::zero(), tiles: Some(1), most: self.lines, ..self }
    }
}

impl<'a> Lowering<'a> {
    /// All tiles of a contraction.
    pub(super) fn walk(&mut self, job: &Job, mut pick: Picker<'a>) -> Result<()> {
        let shape = self.graph.ty(job.out).shape.clone();
        let panels = job.panels.count();
        let batch = shape[..job.batch].to_vec();
        let row_axes = &shape[job.batch..job.batch + job.rows];
        let (looped, tiled) = row_axes.split_at(job.tile.row_loops);
        let bytes = |value| self.graph.ty(value).bytes().as_const();
        let facts = Extents {
            core: self.core,
            batch: product(&batch),
            panels: panels.clone(),
            columns: &job.panels.n,
            panel: job.panels.nr,
            looped,
            tiled,
            block_rows: job.block_rows(),
            part_rows: job.part_rows(),
            inner: &job.inner,
            step_bytes: (self.graph.ty(job.lhs).dtype.size() * job.panels.depth) as i64,
            operands: [bytes(job.lhs), bytes(job.rhs)],
        };
        let order = Walk::choose(&facts, &mut pick)?;
        self.tuned(pick)?;
        let blocks = match order.block {
            0 => Dim::ONE,
            block => product(row_axes).ceil_div(&Dim::from(block)).expect("blocks are not empty"),
        };
        let parts = blocks.max_dim(&Dim::ONE).max_dim(&Dim::from(order.parts));
        self.for_shared(&[&batch[..], &[parts.clone() * panels.clone()]].concat(), &mut |cx, index| {
            let (turn, batch) = index.split_last().expect("the axis of the parts");
            let [number, panel] = cx.split_pair(turn, [&parts, &panels]);
            cx.border(job, &number, &panel)?;
            cx.panel(job, batch, &panel, &RangePart { number, count: parts.clone() })
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
                        index.push(job.panels.column(panel, column));
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

    /// A part of the rows of one panel.
    pub(super) fn panel(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        part: &RangePart,
    ) -> Result<()> {
        let condition = match &job.route {
            Route::Tiles(plan) => self.enough_for_tiles(job, plan),
            Route::Widened(stage) => self.enough_for_stage(job, stage),
            Route::Registers => None,
        };
        let many = |cx: &mut Self| match &job.route {
            Route::Tiles(plan) => cx.tile_panel(job, plan, batch, panel, part),
            Route::Widened(stage) => cx.staged_panel(job, stage, batch, panel, part),
            Route::Registers => cx.register_panel(job, batch, panel, part, None),
        };
        let Some(condition) = condition else { return many(self) };
        let then = self.scope(many)?;
        let otherwise = self.scope(|cx| cx.register_panel(job, batch, panel, part, None))?;
        self.push(Stmt::If { condition, then, otherwise });
        Ok(())
    }

    /// A part of the rows of one panel, on tiles of vector registers. `widened`: the panel in the type of the sums.
    pub(super) fn register_panel(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        part: &RangePart,
        widened: Option<Buf>,
    ) -> Result<()> {
        if job.left_out.is_implicit {
            return self.unpadded_panel(job, batch, panel, part);
        }
        let row_axes = job.row_axes(&self.graph.ty(job.out).shape);
        let first = job.block.as_ref().map_or(Index::zero(), |block| block.first.clone());
        let (outer, tiled) = row_axes.split_at(job.tile.row_loops);
        let rows = if widened.is_some() { job.tile.rows } else { job.register_rows() };
        let runs = runs::balanced(&product(tiled), rows);
        let tiles = runs.iter().fold(Dim::ZERO, |sum, run| sum + run.count.clone());
        let all = product(outer) * tiles.clone();
        let own = all.floor_div(&part.count).expect("there are parts");
        let ahead = self.ahead(job, batch, panel, &own)?;
        let whole = RangePart::whole();
        let looped = outer.iter().any(|dim| *dim != Dim::ONE);
        let (by_loop, by_tile) = if looped { (part, &whole) } else { (&whole, part) };
        self.for_part(outer, by_loop, &mut |cx, lead| {
            let mut before = Index::row_major(&lead, outer).scale(&tiles);
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
                    let number = before.add(tile);
                    let ahead = ahead.clone().and_then(|ahead| ahead.of_run(job, run.size, looped, number));
                    cx.for_parts_of_columns(job, run.size, ahead, &mut |cx, first, ahead| {
                        let (batch, rows, panel) = (batch.to_vec(), rows.clone(), panel.clone());
                        cx.tile(job, &Tile { batch, rows, panel, widened, first, ahead })
                    })
                })?;
                before = before.add_dim(&run.count);
            }
            Ok(())
        })
    }

    /// Nested serial loops over a shape, or a part of the outer ones, where the outer ones are those that together have a turn for each
    /// part. If only a run knows the number of images, rows are cut too: most runs have a single image.
    pub(in crate::lower) fn for_part(
        &mut self,
        shape: &[Dim],
        part: &RangePart,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        if part.count == Dim::ONE {
            return self.for_shape(shape, LoopKind::Serial, fill);
        }
        // A single iteration too is only one part's.
        let (cut, rest) = shape.split_at(shared_axes(shape, part.count.as_const().unwrap_or(1)));
        let (var, extent) = (self.kernel.loop_var("t"), product(cut));
        let (lo, hi) = self.part_of(&extent, part);
        self.extents.insert(var, extent);
        let body = self.scope(|cx| {
            let outer = match cut {
                // Of a single iteration too the index depends on the part.
                [_] => vec![Index::var(var)],
                _ => cx.split_axes(&Index::var(var), cut),
            };
            cx.for_shape(rest, LoopKind::Serial, &mut |cx, inner| fill(cx, [outer.clone(), inner].concat()))
        })?;
        self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// The iterations of a loop that are a part's.
    pub(super) fn part_of(&self, extent: &Dim, part: &RangePart) -> (Index, Index) {
        let end = |number: &Index| number.scale(extent).floor_div(&part.count, &self.extent_fn());
        (end(&part.number), end(&part.number.add(&Index::int(1))))
    }

    /// The panel after `panel`, where the panels come from memory.
    pub(super) fn ahead(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        tiles: &Dim,
    ) -> Result<Option<Ahead>> {
        let ty = self.graph.ty(job.rhs);
        let size = ty.dtype.size() as i64;
        let far = ty.bytes().as_const().is_some_and(|bytes| bytes > job.prefetch.above);
        let tiles = tiles.as_const();
        let far = far && job.prefetch.lines > 0;
        let (true, Some(inner)) = (far && self.graph.is_constant(job.rhs), product(&job.inner).as_const())
        else {
            return Ok(None);
        };
        let next = panel.add(&Index::int(1));
        let mut index = self.row_index(job, job.rhs, (batch, &next), &vec![Index::zero(); job.inner.len()]);
        index.push(Index::zero());
        let mut ahead = None;
        self.scope(|cx| {
            if let Expr::Load { buf, index: start } = cx.expr_at(job.rhs, &index)? {
                let line = CACHE_LINE / size;
                let lines = inner.saturating_mul(job.panels.row() as i64) / line;
                let most = job.prefetch.lines;
                let number = Index::zero();
                ahead = Some(Ahead { buf, start, number, tiles, lines, line, most });
            }
            Ok(())
        })?;
        Ok(ahead)
    }

    /// Prefetches for each of `iterations` iterations of a tile's inner loops; `iteration` is their number.
    pub(super) fn prefetches(&mut self, ahead: &Ahead, iterations: i64, iteration: &Index) -> Vec<Stmt> {
        if iterations < 1 {
            return vec![];
        }
        // Each tile takes a part of the panel. When there are more tiles than parts, they start again.
        let turns = ahead.tiles.unwrap_or(FEW_TILES).saturating_mul(iterations);
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
