//! Products of bytes and of bf16 on the processor's tiles.
//!
//! Two tiles of rows meet the two halves of a panel row's columns: four accumulators, which take four loads per step of up to 64
//! bytes of the inner axes. Or four tiles of rows meet one half after the other, so that short tiles load a large panel less
//! often. A row of a panel, as `Op::Pack` has it, is a row of the second operand. The rows of a tile are equally spaced in memory: rows of
//! a matrix, or neighbours in a row of an image, so that windows need no copy. The
//! accumulators go to the kernel's own memory, and the epilogue reads them from there in vectors. Several blocks have their sums
//! before the first epilogue, as changes between tiles and vectors take time.
//!
//! All tiles of a kernel have one height, which divides the rows evenly: the time of a product follows the height. Where it
//! does not divide them, the last tile begins so early that it ends with them, and the rows that two tiles have are stored
//! once: elements that an epilogue reads may lie where it stores.

use super::Job;
use super::walk::{Ahead, RangePart};
use crate::lower::runs::greedy;
use crate::lower::{Lowering, Override, internal};
use crate::tiles::{MAX_ROW_BYTES, MAX_ROWS, MAX_TILES, Tile, TileDecl, TileStmt};
use crate::{Access, Buf, Buffer, Expr, Index, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::{product, row_major_strides};
use onnxc_ir::graph::{DType, Dim, PAIR_DEPTH};
use onnxc_ir::scalar::CompareFn;
use onnxc_machine::vector::ir::Op;
use onnxc_tuning::Picker;
use onnxc_tuning::contract::{ProcessorTile, TileWork};

/// Columns of a tile: the sums of a row, of 32 bits each.
const COLUMNS: usize = MAX_ROW_BYTES / 4;

/// Most halves of a panel's columns.
const HALVES: usize = 2;

/// How a contraction is computed on tiles.
#[derive(Clone)]
pub(super) struct TilePlan {
    /// Leading row axes that are not part of a line: the rows of a tile follow each other along the others.
    looped: usize,
    /// Rows of a tile.
    pub height: usize,
    /// Tiles of rows at once, and halves of columns.
    side: usize,
    halves: usize,
    /// Blocks that have their sums before the first epilogue.
    blocks: usize,
    /// Rows whose epilogues are interleaved.
    epilogue_rows: usize,
    /// Distance of the rows in memory, elements.
    stride: i64,
    /// Leading inner axes with loops of their own.
    outer: usize,
    /// Elements that follow each other in memory, in `steps` whole steps and a rest.
    steps: i64,
    step: usize,
    rest: usize,
    registers: Registers,
    sums: Buf,
}

#[derive(Clone)]
struct Registers {
    /// By row, then by column.
    sums: Vec<Tile>,
    lhs: Vec<Tile>,
    rhs: Vec<Tile>,
    /// For the last step.
    lhs_rest: Option<Tile>,
    rhs_rest: Option<Tile>,
}

/// Where the rows of the left-hand side lie.
struct Layout {
    looped: usize,
    stride: i64,
    outer: usize,
    run: i64,
    /// Bytes of all of it, where known.
    bytes: Option<usize>,
}

/// The first row of a tile: its index along the axes with loops, and along the line.
struct Start {
    lead: Vec<Index>,
    at: Index,
    /// Rows, from this one on, that the tile before has too.
    known: Dim,
}

/// Tiles of rows and all columns of a panel.
struct TileBlock<'a> {
    batch: &'a [Index],
    panel: &'a Index,
    starts: Vec<Start>,
    ahead: Option<Ahead>,
    /// Where its sums begin.
    sums: Index,
}

impl TilePlan {
    /// Rows of a block of accumulators.
    pub(super) fn block(&self) -> usize {
        self.side * self.height
    }
}

impl Lowering<'_> {
    /// How a contraction is computed on tiles, where that pays.
    pub(super) fn tile_plan(&mut self, job: &Job, pick: &mut Picker<'_>) -> Result<Option<TilePlan>> {
        let halves = job.panels.nr / COLUMNS;
        let has_tiles = self.core.wide.is_some_and(|isa| isa.has(Op::TileZero(0)));
        let fits =
            job.lanes == COLUMNS && job.panels.nr.is_multiple_of(COLUMNS) && (1..=HALVES).contains(&halves);
        if !has_tiles || job.panels.depth == 1 || !fits || job.rows == 0 {
            return Ok(None);
        }
        let mut layout = None;
        for looped in [0, job.rows - 1] {
            if layout.is_none() {
                layout = self.tile_layout(job, looped)?;
            }
        }
        let Some(Layout { looped, stride, outer, run, bytes }) = layout else { return Ok(None) };
        let line = product(&self.tile_axes(job)[looped..]);
        if line.as_const().is_some_and(|rows| rows < 1) {
            return Ok(None);
        }
        let size = MAX_ROW_BYTES / job.row_elements();
        let (steps, step, rest) = steps_of(run as usize, job.row_elements(), job.panels.depth);
        let turns = job.inner[..outer]
            .iter()
            .map(|dim| dim.as_const().unwrap_or(1).max(1) as usize)
            .product::<usize>();
        let height = self.tile_height(job, MAX_ROWS, &line);
        let tiles = line.as_const().zip(product(&self.tile_axes(job)[..looped]).as_const());
        let work = TileWork {
            rows: height,
            tiles: tiles.map(|(line, lines)| lines as usize * (line as usize).div_ceil(height)),
            lhs_bytes: bytes,
            halves,
            dots: turns * (steps + usize::from(rest > 0)),
            bytes: turns * run as usize * size,
            bf16: job.panels.depth == PAIR_DEPTH,
        };
        let ProcessorTile { rows, side, blocks, epilogue_rows } =
            ProcessorTile::choose(self.core, &work, pick)?;
        if rows == 0 {
            return Ok(None);
        }
        let height = self.tile_height(job, rows, &line);
        let at_once = if side > HALVES { 1 } else { halves };
        let Some(registers) = self.registers(job, [side, at_once], height, [step, rest]) else {
            return Ok(None);
        };
        let sums = self.tile_memory(job, Dim::from(side * height * job.panels.nr));
        let steps = steps as i64;
        Ok(Some(TilePlan {
            looped,
            height,
            side,
            halves: at_once,
            blocks,
            epilogue_rows,
            stride,
            outer,
            steps,
            step,
            rest,
            registers,
            sums,
        }))
    }

    /// Rows of the tiles of a line. The blocks of a chain, whole ones and the last one, have tiles of one height.
    fn tile_height(&self, job: &Job, most: usize, line: &Dim) -> usize {
        match (job.block.is_some(), line.as_const()) {
            (true, Some(rows)) => most.min(rows as usize),
            (_, rows) => ProcessorTile::height(most, rows),
        }
    }

    /// Memory for sums; contractions of one kernel follow each other.
    fn tile_memory(&mut self, job: &Job, len: Dim) -> Buf {
        let (name, access) = ("sums", Access::Frame);
        let known = (self.kernel.buffers.iter_mut())
            .find(|(_, own)| own.access == access && own.name == name && own.dtype == job.sum);
        if let Some((known, own)) = known {
            own.len = own.len.max_dim(&len);
            return known;
        }
        self.kernel.buffers.push(Buffer { name: name.into(), dtype: job.sum, len, access })
    }

    fn tile_axes(&self, job: &Job) -> Vec<Dim> {
        job.row_axes(&self.graph.ty(job.out).shape)
    }

    /// The distances in memory of the left-hand side's elements, with `looped` row axes outside of a line, if they are equally spaced.
    fn tile_layout(&mut self, job: &Job, looped: usize) -> Result<Option<Layout>> {
        let axes = self.graph.ty(job.out).shape[job.batch..job.batch + job.rows].to_vec();
        let row = self.kernel.loop_var("probe");
        self.extents.insert(row, product(&axes[looped..]));
        let mut index = vec![Index::zero(); job.batch + looped];
        index.extend(self.split_rows(&Index::var(row), &axes[looped..]));
        let mut inner = Vec::new();
        for (at, extent) in job.inner.iter().enumerate() {
            let depth = if at + 1 == job.inner.len() { job.panels.depth } else { 1 };
            let Some(extent) = extent.as_const() else { return Ok(None) };
            let (var, extent) = (self.kernel.loop_var("probe"), extent * depth as i64);
            self.extents.insert(var, Dim::from(extent));
            index.push(Index::var(var));
            inner.push((var, extent));
        }
        let mut place = None;
        self.scope(|cx| {
            if let Expr::Load { buf, index } = cx.expr_at(job.lhs, &index)? {
                place = Some((buf, index));
            }
            Ok(())
        })?;
        let Some((buf, index)) = place.filter(|(_, index)| !index.divides()) else { return Ok(None) };
        let buffer = &self.kernel.buffers[buf];
        let fits = match job.panels.depth {
            PAIR_DEPTH => buffer.dtype == DType::BF16,
            _ => matches!(buffer.dtype, DType::U8 | DType::I8),
        };
        let step = |var| index.coefficient(var).and_then(|step| step.as_const());
        let (Some(stride), true) = (step(row), fits) else { return Ok(None) };
        let (mut run, mut outer) = (1, inner.len());
        while let Some(&(var, extent)) = outer.checked_sub(1).and_then(|last| inner.get(last)) {
            match step(var) {
                Some(step) if step == run || extent == 1 => run *= extent,
                Some(_) => break,
                None => return Ok(None),
            }
            outer -= 1;
        }
        let whole = outer < inner.len() && run % job.panels.depth as i64 == 0 && run > 0;
        let buffer = &self.kernel.buffers[buf];
        let bytes = buffer.len.as_const().map(|elements| elements as usize * buffer.dtype.size());
        Ok(whole.then_some(Layout { looped, stride, outer, run, bytes }))
    }

    /// The tiles of a kernel; contractions of one kernel share those that are alike.
    fn registers(
        &mut self,
        job: &Job,
        [side, halves]: [usize; 2],
        height: usize,
        [step, rest]: [usize; 2],
    ) -> Option<Registers> {
        let dtype = |value| self.graph.ty(value).dtype;
        let (lhs, rhs) = (dtype(job.lhs), dtype(job.rhs));
        let mut wanted: Vec<(&str, usize, DType, usize, usize)> = Vec::new();
        let columns = COLUMNS * job.panels.depth;
        wanted.extend((0..side * halves).map(|at| ("sum", at, job.sum, height, COLUMNS)));
        // Without a rest there are tiles for both operands' halves.
        let alike = if rest > 0 { 1 } else { 2 };
        wanted.extend((0..alike).map(|at| ("a", at, lhs, height, step)));
        wanted.extend((0..alike.min(halves)).map(|at| ("b", at, rhs, step / job.panels.depth, columns)));
        if rest > 0 {
            wanted.push(("a_rest", 0, lhs, height, rest));
            wanted.push(("b_rest", 0, rhs, rest / job.panels.depth, columns));
        }
        let mut tiles: Vec<(String, TileDecl, Option<Tile>)> = Vec::new();
        let mut missing = 0;
        for (kind, at, dtype, rows, columns) in wanted {
            let name = format!("{kind}{at}");
            let decl = TileDecl { name: name.clone(), dtype, rows, columns };
            let known = self.kernel.tiles.iter().find(|(_, known)| **known == decl).map(|(tile, _)| tile);
            missing += usize::from(known.is_none());
            tiles.push((kind.to_string(), decl, known));
        }
        if self.kernel.tiles.len() + missing > MAX_TILES {
            return None;
        }
        let mut found = Registers { sums: vec![], lhs: vec![], rhs: vec![], lhs_rest: None, rhs_rest: None };
        for (kind, decl, known) in tiles {
            let tile = known.unwrap_or_else(|| self.kernel.tiles.push(decl));
            match kind.as_str() {
                "sum" => found.sums.push(tile),
                "a" => found.lhs.push(tile),
                "b" => found.rhs.push(tile),
                "a_rest" => found.lhs_rest = Some(tile),
                _ => found.rhs_rest = Some(tile),
            }
        }
        Some(found)
    }

    /// A part of the rows of one panel.
    pub(super) fn tile_panel(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        batch: &[Index],
        panel: &Index,
        part: &RangePart,
    ) -> Result<()> {
        let axes = self.tile_axes(job);
        let (outer, tiled) = axes.split_at(plan.looped);
        let line = product(tiled);
        let height = plan.height as i64;
        // Rounded: that some lines are asked for twice, or not at all, changes no result.
        let blocks =
            (product(outer) * line.clone()).ceil_div(&Dim::from(plan.block())).expect("there are rows");
        let own = blocks.ceil_div(&part.count).expect("there are parts");
        let ahead = self.ahead(job, batch, panel, &own)?;
        let block = |starts: Vec<Start>, number: Index| {
            let ahead = ahead.clone().map(|ahead| ahead.of_tile(number));
            TileBlock { batch, panel, starts, ahead, sums: Index::zero() }
        };
        let whole = RangePart::whole();
        let looped = outer.iter().any(|dim| *dim != Dim::ONE);
        let (by_loop, by_block) = if looped { (part, &whole) } else { (&whole, part) };
        let starts_from = |lead: &[Index], first: &Index, count: usize| -> Vec<Start> {
            let at = |tile: usize| first.add(&Index::int(tile as i64 * height));
            (0..count).map(|tile| Start { lead: lead.to_vec(), at: at(tile), known: Dim::ZERO }).collect()
        };
        let Some(rows) = line.as_const() else {
            return self.for_part(outer, by_loop, &mut |cx, lead| {
                let size = Dim::from(plan.block());
                let blocks = line.floor_div(&size).expect("blocks are not empty");
                let done = blocks.clone() * size.clone();
                cx.tile_blocks(job, plan, &blocks, by_block, &|_, number| {
                    block(starts_from(&lead, &number.scale(&size), plan.side), number.clone())
                })?;
                let left = line.clone() - done;
                let one = left.min_dim(&Dim::ONE);
                cx.for_part(std::slice::from_ref(&one), by_block, &mut |cx, number| {
                    let first = number[0].scale(&size).add_dim(&(line.clone() - size.clone()));
                    let mut starts = starts_from(&lead, &first, plan.side);
                    let mut known = size.clone() - left.clone();
                    for start in &mut starts {
                        start.known = known.min_dim(&Dim::from(height));
                        known = (known - Dim::from(height)).max_dim(&Dim::ZERO);
                    }
                    cx.tile_block(job, plan, &block(starts, Index::dim(blocks.clone())))
                })
            });
        };
        let tiles = (rows + height - 1) / height;
        if tiles * height == rows {
            // Groups of tiles, of any lines.
            let grid = [outer, &[Dim::from(tiles)]].concat();
            let (all, side) = (product(&grid), Dim::from(plan.side));
            let groups = all.floor_div(&side).expect("a group is not empty");
            let left = all - groups.clone() * side.clone();
            let start = |cx: &mut Self, tile: Index| {
                let mut index: Vec<Index> =
                    cx.split_rows(&tile, &grid).into_iter().map(|at| cx.named(at)).collect();
                let tile = index.pop().unwrap_or_else(Index::zero);
                Start { lead: index, at: tile.scale(&Dim::from(height)), known: Dim::ZERO }
            };
            let starts = |cx: &mut Self, first: Index, count: usize| -> Vec<Start> {
                (0..count).map(|tile| start(cx, first.add(&Index::int(tile as i64)))).collect()
            };
            self.tile_blocks(job, plan, &groups, part, &|cx: &mut Self, group: &Index| {
                block(starts(cx, group.scale(&side), plan.side), group.clone())
            })?;
            // The rest at once, or one by one where only the run knows how many.
            let (turns, at_once) = match left.as_const() {
                Some(left) => (Dim::from(left.min(1)), left.max(1) as usize),
                None => (left, 1),
            };
            return self.for_part(std::slice::from_ref(&turns), part, &mut |cx, turn| {
                let first = turn[0].add_dim(&(groups.clone() * side.clone()));
                let starts = starts(cx, first, at_once);
                cx.tile_block(job, plan, &block(starts, Index::dim(groups.clone())))
            });
        }
        let groups = (tiles - 1) / plan.side as i64;
        self.for_part(outer, by_loop, &mut |cx, lead| {
            cx.tile_blocks(job, plan, &Dim::from(groups), by_block, &|_, group| {
                block(starts_from(&lead, &group.scale(&Dim::from(plan.block())), plan.side), group.clone())
            })?;
            cx.for_part(&[Dim::ONE], by_block, &mut |cx, number| {
                let from = |row: i64| number[0].scale(&Dim::from(plan.block())).add(&Index::int(row));
                let left = (tiles - groups * plan.side as i64) as usize;
                let mut starts = starts_from(&lead, &from(groups * plan.block() as i64), left);
                if let Some(last) = starts.last_mut() {
                    (last.at, last.known) = (from(rows - height), Dim::from(tiles * height - rows));
                }
                cx.tile_block(job, plan, &block(starts, Index::int(groups)))
            })
        })
    }

    /// Whether there are rows enough for tiles of this height, where their number is known only at run time.
    pub(super) fn enough_for_tiles(&self, job: &Job, plan: &TilePlan) -> Option<Expr> {
        let line = product(&self.tile_axes(job)[plan.looped..]);
        let least = Dim::from(plan.block());
        match line.as_const() {
            Some(_) => None,
            None => Some(Expr::compare(
                CompareFn::Ge,
                Expr::Index(Index::dim(line)),
                Expr::Index(Index::dim(least)),
            )),
        }
    }

    /// All blocks, or a part of them: the sums of some, then their epilogues.
    fn tile_blocks<'b>(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        count: &Dim,
        part: &RangePart,
        make: &dyn Fn(&mut Self, &Index) -> TileBlock<'b>,
    ) -> Result<()> {
        let own = count.ceil_div(&part.count).expect("there are parts");
        let at_once = own.as_const().map_or(plan.blocks, |own| plan.blocks.min(own.max(1) as usize));
        if at_once == 1 {
            return self.for_part(std::slice::from_ref(count), part, &mut |cx, number| {
                let block = make(cx, &number[0]);
                cx.tile_block_sums(job, plan, &block)?;
                cx.tile_epilogue(job, plan, &block)
            });
        }
        let (step, room) = (Dim::from(at_once), Dim::from(plan.block() * job.panels.nr));
        let sums = &mut self.kernel.buffers[plan.sums];
        sums.len = sums.len.max_dim(&(room.clone() * step.clone()));
        let (lo, hi) = self.part_of(count, part);
        let whole = part.count == Dim::ONE && count.exact_div(&step).is_some();
        let var = self.kernel.loop_var("t");
        self.extents.insert(var, count.clone());
        let body = self.scope(|cx| {
            for with in [Self::tile_block_sums, Self::tile_epilogue] {
                cx.for_each("b", &step, LoopKind::Serial, |cx, number| {
                    let (at, sums) = (Index::var(var).add(&number), number.scale(&room));
                    let then = cx.scope(|cx| {
                        let block = TileBlock { sums, ..make(cx, &at) };
                        with(cx, job, plan, &block)
                    })?;
                    if whole {
                        then.into_iter().for_each(|stmt| cx.push(stmt));
                        return Ok(());
                    }
                    let condition =
                        Expr::compare(CompareFn::Lt, Expr::Index(at.clone()), Expr::Index(hi.clone()));
                    cx.push(Stmt::If { condition, then, otherwise: vec![] });
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let step = at_once as i64;
        self.push(Stmt::For { var, lo, hi, step, kind: LoopKind::Serial, body });
        Ok(())
    }

    fn tile_block(&mut self, job: &Job, plan: &TilePlan, block: &TileBlock) -> Result<()> {
        self.tile_block_sums(job, plan, block)?;
        self.tile_epilogue(job, plan, block)
    }

    fn tile_block_sums(&mut self, job: &Job, plan: &TilePlan, block: &TileBlock) -> Result<()> {
        let starts = &block.starts;
        let axes = self.tile_axes(job);
        let mut rows = Vec::with_capacity(starts.len());
        for start in starts {
            let place = self.tile_row(job, plan, &axes, start, &Index::zero());
            rows.push(place);
        }
        let halves = job.panels.nr / COLUMNS;
        for first in (0..halves).step_by(plan.halves) {
            self.tile_sums(job, plan, block, &rows, first)?;
        }
        Ok(())
    }

    /// The sums of a block of rows for some halves of the columns, from `first` on, in the kernel's memory.
    fn tile_sums(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        block: &TileBlock,
        rows: &[Vec<Index>],
        first: usize,
    ) -> Result<()> {
        let all = (0..rows.len()).flat_map(|tile| (0..plan.halves).map(move |half| (tile, half)));
        let own = |tile: usize, half: usize| plan.registers.sums[tile * plan.halves + half];
        for (tile, half) in all.clone() {
            self.push(Stmt::Tile(TileStmt::Zero { tile: own(tile, half) }));
        }
        let turns = product(&job.inner[..plan.outer]).as_const().unwrap_or(1);
        let strides = row_major_strides(&job.inner[..plan.outer]);
        let passes = (job.panels.nr / COLUMNS / plan.halves) as i64;
        self.for_shape(&job.inner[..plan.outer], LoopKind::Serial, &mut |cx, outer| {
            let (mut lhs, rhs) = (Vec::new(), cx.tile_rhs(job, plan, block, &outer)?);
            let rhs = (rhs.0, rhs.1.add(&Index::int((first * job.row_elements()) as i64)));
            for row in rows {
                lhs.push(cx.tile_lhs(job, plan, block.batch, row, &outer)?);
            }
            let TilePlan { registers, step, rest, steps, .. } = plan;
            cx.for_each("k", &Dim::from(*steps), LoopKind::Serial, |cx, number| {
                let at = number.scale(&Dim::from(*step));
                cx.tile_dots(job, plan, (&lhs, &registers.lhs), (&rhs, &registers.rhs), &at);
                if let Some(ahead) = &block.ahead {
                    let pass = Index::int(first as i64 / plan.halves as i64 * turns);
                    let turn = outer.iter().zip(&strides).fold(pass, |sum, (i, by)| sum.add(&i.scale(by)));
                    let iteration = turn.scale(&Dim::from(*steps)).add(&number);
                    let iterations = turns.saturating_mul(*steps).saturating_mul(passes);
                    let stmts = cx.prefetches(ahead, iterations, &iteration);
                    stmts.into_iter().for_each(|stmt| cx.push(stmt));
                }
                Ok(())
            })?;
            if let (Some(a), Some(b)) = (registers.lhs_rest, registers.rhs_rest) {
                let at = Index::int(steps * *step as i64);
                debug_assert!(*rest > 0);
                cx.tile_dots(job, plan, (&lhs, &[a]), (&rhs, &[b]), &at);
            }
            Ok(())
        })?;
        let direct = self.direct_rows(job);
        let stride = job.panels.nr as i64;
        for (tile, half) in all {
            if let Some(stride) = direct {
                let mut index = block.batch.to_vec();
                index.extend_from_slice(&rows[tile]);
                let column = Index::int(((first + half) * COLUMNS) as i64);
                index.push(job.panels.column(block.panel, &column));
                let (buf, index) = (self.buffers[&job.out], self.address(job.out, &index));
                self.holds.insert(buf, job.out);
                self.push(Stmt::Tile(TileStmt::Store { tile: own(tile, half), buf, index, stride }));
                continue;
            }
            let index = Index::int((tile * plan.height * job.panels.nr + (first + half) * COLUMNS) as i64);
            let index = block.sums.add(&index);
            self.push(Stmt::Tile(TileStmt::Store { tile: own(tile, half), buf: plan.sums, index, stride }));
        }
        Ok(())
    }

    /// The index of a row along every row axis.
    fn tile_row(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        axes: &[Dim],
        start: &Start,
        row: &Index,
    ) -> Vec<Index> {
        let first = job.block.as_ref().map_or(Index::zero(), |block| block.first.clone());
        let mut index = start.lead.clone();
        for at in self.split_rows(&start.at.add(row), &axes[plan.looped..]) {
            let at = self.named_row(at);
            index.push(first.add(&at));
        }
        index
    }

    fn tile_lhs(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        batch: &[Index],
        row: &[Index],
        outer: &[Index],
    ) -> Result<(Buf, Index)> {
        let mut index = self.broadcast_batch(job.lhs, job, batch);
        index.extend_from_slice(row);
        index.extend_from_slice(outer);
        index.resize(index.len() + job.inner.len() - plan.outer, Index::zero());
        match self.expr_at(job.lhs, &index)? {
            Expr::Load { buf, index } => Ok((buf, index)),
            other => internal(format!("rows of a tile at {other}")),
        }
    }

    fn tile_rhs(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        block: &TileBlock,
        outer: &[Index],
    ) -> Result<(Buf, Index)> {
        let mut index = self.row_index(job, job.rhs, (block.batch, block.panel), outer);
        index.resize(index.len() + job.inner.len() - plan.outer + 1, Index::zero());
        match self.expr_at(job.rhs, &index)? {
            Expr::Load { buf, index } => Ok((buf, index)),
            other => internal(format!("a panel at {other}")),
        }
    }

    /// The products of one step, `at` elements behind the first.
    fn tile_dots(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        (rows, a): (&[(Buf, Index)], &[Tile]),
        ((panel, first), b): (&(Buf, Index), &[Tile]),
        at: &Index,
    ) {
        let halves = plan.halves;
        let stride = job.panels.row() as i64;
        let columns = |half: usize| TileStmt::Load {
            tile: b[half % b.len()],
            buf: *panel,
            index: first
                .add(&at.scale(&Dim::from(job.panels.nr)))
                .add(&Index::int((half * job.row_elements()) as i64)),
            stride,
        };
        let mut loaded = vec![None; b.len()];
        for (tile, (buf, index)) in rows.iter().enumerate() {
            let lhs = a[tile % a.len()];
            self.push(Stmt::Tile(TileStmt::Load {
                tile: lhs,
                buf: *buf,
                index: index.add(at),
                stride: plan.stride,
            }));
            // Back and forth, so that what was loaded last is used first.
            for turn in 0..halves {
                let half = if tile % 2 == 0 { turn } else { halves - 1 - turn };
                if loaded[half % b.len()] != Some(half) {
                    self.push(Stmt::Tile(columns(half)));
                    loaded[half % b.len()] = Some(half);
                }
                let acc = plan.registers.sums[tile * halves + half];
                self.push(Stmt::Tile(TileStmt::Dot { acc, a: lhs, b: b[half % b.len()] }));
            }
        }
    }

    /// The distance of rows of the scratch that takes the sums as they are, with room for whole panels of columns.
    fn direct_rows(&self, job: &Job) -> Option<i64> {
        let slot = self.slot.as_ref().filter(|slot| slot.values.contains(&job.out))?;
        let stride = slot.stride.as_const()?;
        let fits = self.group.outputs == [job.out]
            && self.graph.ty(job.out).dtype == job.sum
            && job.panels.room()? as i64 <= stride;
        fits.then_some(stride)
    }

    /// Stores the rows of a block.
    fn tile_epilogue(&mut self, job: &Job, plan: &TilePlan, block: &TileBlock) -> Result<()> {
        if self.direct_rows(job).is_some() {
            return Ok(());
        }
        let axes = self.tile_axes(job);
        let height = Dim::from(plan.height);
        for (tile, start) in block.starts.iter().enumerate() {
            let from = Index::int((tile * plan.height) as i64);
            let Some(first) = start.known.as_const() else {
                let row = self.kernel.loop_var("m");
                let body = self.scope(|cx| {
                    let place = cx.tile_row(job, plan, &axes, start, &Index::var(row));
                    cx.tile_rows(job, plan, block, &[(from.add(&Index::var(row)), place)])
                })?;
                let (lo, hi) = (Index::dim(start.known.clone()), Index::dim(height.clone()));
                self.push(Stmt::For { var: row, lo, hi, step: 1, kind: LoopKind::Serial, body });
                continue;
            };
            for run in greedy(&Dim::from(plan.height as i64 - first), &[plan.epilogue_rows, 1]) {
                self.for_each("m", &run.count, LoopKind::Serial, |cx, piece| {
                    let rows: Vec<_> = (0..run.size)
                        .map(|at| {
                            let row = run.at(&piece, at).add(&Index::int(first));
                            let place = cx.tile_row(job, plan, &axes, start, &row);
                            (from.add(&row), place)
                        })
                        .collect();
                    cx.tile_rows(job, plan, block, &rows)
                })?;
            }
        }
        Ok(())
    }

    /// Stores rows, which are given by their number among the sums and their index.
    fn tile_rows(
        &mut self,
        job: &Job,
        plan: &TilePlan,
        block: &TileBlock,
        rows: &[(Index, Vec<Index>)],
    ) -> Result<()> {
        self.panel_columns(job, block.panel, &mut |cx, column| {
            for (row, place) in rows {
                let index = block.sums.add(&row.scale(&Dim::from(job.panels.nr))).add(column);
                cx.overrides.insert(job.out, Override::Expr(Expr::Load { buf: plan.sums, index }));
                let mut index = block.batch.to_vec();
                index.extend_from_slice(place);
                index.push(job.panels.column(block.panel, column));
                cx.store_outputs(&index)?;
            }
            Ok(())
        })
    }
}

impl Job {
    /// Elements of a row of a tile: those of one column are a word.
    fn row_elements(&self) -> usize {
        COLUMNS * self.panels.depth
    }
}

/// (whole steps, elements of each, elements of a last one): the fewest steps of at most `most` elements, of equal size where possible.
fn steps_of(run: usize, most: usize, depth: usize) -> (usize, usize, usize) {
    let least = run.div_ceil(most);
    match run.is_multiple_of(least * depth) {
        true => (least, run / least, 0),
        false => (run / most, most, run % most),
    }
}
