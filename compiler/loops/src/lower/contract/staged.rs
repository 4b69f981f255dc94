//! Right-hand sides that are narrower than the sums, for many rows: widened once for several tiles of rows.
//!
//! A panel that fits is widened into the kernel's own memory as a whole, and the tiles read it there. Of a larger one, a block, a number of
//! steps of the inner axes that stays in the first-level cache, is widened. All tiles of a group of rows are computed for
//! this block before the next one, with their sums in memory between blocks. Few rows are computed with weights that are widened
//! in registers, as each is read once or twice.

use super::Job;
use super::walk::{Ahead, RangePart};
use crate::lower::codes::Codes;
use crate::lower::runs::{Run, balanced};
use crate::lower::{Lowering, Override, internal};
use crate::nest::{Axis, Nest};
use crate::{Access, Buf, Buffer, Expr, Index, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_machine::vector::ir::{Op, Small};
use onnxc_machine::vector::isa::Isa;
use onnxc_tuning::Picker;
use onnxc_tuning::contract::{Blocks, Prefetch, Widening as Tuning};

/// Most lanes that are widened as they are loaded in one instruction of the processor.
const CHEAP_LANES: usize = 8;

/// How a panel is widened in blocks.
#[derive(Clone)]
pub(super) struct Widened {
    /// The inner axis that is cut into blocks of `chunk`; a block has all of those behind it.
    axis: usize,
    chunk: usize,
    tuning: Tuning,
    /// Tiles of a group.
    tiles: usize,
    /// `[steps, nr]`
    panel: Buf,
    /// `[rows of a group, nr]`; none where a block is a whole panel.
    sums: Option<Buf>,
}

/// Rows of a panel that are computed together, with their sums in memory: whole tiles, those of one group, and what is left behind
/// the last group.
struct PanelRows<'a> {
    batch: &'a [Index],
    panel: &'a Index,
    sums: Buf,
    lead: &'a [Index],
    main: &'a Run,
    rest: &'a [Run],
    /// The number of the group, and of all groups.
    part: RangePart,
}

/// Rows from which on the sums of a tile of two vectors do not wait for each other.
const FEW_ROWS: i64 = 4;

/// Codes of 4 bits in a word.
const CODES_IN_WORD: usize = 8;

/// A tile: its number in a run, and the first row of its sums.
struct TilePlace<'a> {
    run: &'a Run,
    tile: Index,
    slot: Index,
    /// Added to the number of a row. It is 0 and says which part of the rows, a thread's, stores the tile.
    part: Index,
}

impl Widened {
    pub(super) fn rows(&self, job: &Job) -> usize {
        self.tiles * job.tile.rows
    }
}

impl Lowering<'_> {
    /// Whether the right-hand side is widened where it is read, and can be for many rows at once.
    pub(super) fn is_narrow(&self, rhs: ValueId, sum: DType, lanes: usize, codes: Option<usize>) -> bool {
        let dtype = self.graph.ty(rhs).dtype;
        let widens = codes.is_some() || dtype != sum && !self.loads_widened(dtype, lanes);
        widens && sum == DType::F32 && lanes > 1
    }

    /// How the right-hand side is widened in blocks, where that pays.
    pub(super) fn stage_plan(&mut self, job: &Job, pick: &mut Picker<'_>) -> Result<Option<Widened>> {
        let narrow = job.panels.depth == 1 && self.is_narrow(job.rhs, job.sum, job.lanes, job.codes());
        if !narrow || !job.left_out.is_empty() {
            return Ok(None);
        }
        let inner = job.inner.iter().map(|dim| dim.as_const().filter(|&extent| extent > 0));
        let Some(inner) = inner.collect::<Option<Vec<i64>>>() else { return Ok(None) };
        let row_bytes = job.panels.nr * job.sum.size();
        // Of 8 bits, a row of a panel takes longer to come from the second-level cache than to multiply.
        let digits = job.digits().is_some()
            && self.core.has_byte_products()
            && job.codes().is_some_and(|per_word| per_word >= CODES_IN_WORD);
        let tuning = Tuning::choose(self.core, &job.tile, row_bytes, &inner, job.codes(), digits, pick)?;
        let rows = product(&job.row_axes(&self.graph.ty(job.out).shape)[job.tile.row_loops..]);
        let few = rows.bounds().1.is_some_and(|rows| rows < tuning.least_rows as i64);
        let Some(Blocks { axis, chunk, steps }) =
            Blocks::of(&inner, tuning.steps, job.codes()).filter(|_| tuning.steps > 0 && !few)
        else {
            return Ok(None);
        };
        let tiles = tuning.rows.div_ceil(job.tile.rows);
        // Behind the whole tiles there is room for what is left of one, or of two.
        let rows = (tiles + 1) * job.tile.rows + FEW_ROWS as usize - 1;
        // Contractions of one kernel follow each other.
        let mut buffer = |name: &str, rows: usize| {
            let (len, access) = (Dim::from(rows * job.panels.nr), Access::Frame);
            let buffers = &mut self.kernel.buffers;
            if let Some((known, own)) = buffers
                .iter_mut()
                .find(|(_, own)| own.access == access && own.name == name && own.dtype == job.sum)
            {
                own.len = own.len.max_dim(&len);
                return known;
            }
            buffers.push(Buffer { name: name.into(), dtype: job.sum, len, access })
        };
        let panel = buffer("panel", steps);
        let whole = product(&job.inner).as_const() == Some(steps as i64);
        let sums = (!whole).then(|| buffer("sums", rows));
        Ok(Some(Widened { axis, chunk, tuning, tiles, panel, sums }))
    }

    /// Whether the machine widens elements as it loads them, at no cost beside products of a tile's rows. Vectors of 512 bits
    /// cost as much as one of the 7 or 14 rows of a tile.
    fn loads_widened(&self, dtype: DType, lanes: usize) -> bool {
        let load = |isa: Isa| isa.lanes_of(lanes, 4).map(|lanes| Op::LoadSmall(Small::F16, lanes));
        let has = |isa: Isa| load(isa).is_some_and(|op| isa.has(op) && lanes <= CHEAP_LANES);
        dtype == DType::F16 && self.core.wide.is_some_and(has)
    }

    /// Whether the rows are enough; `None` where they are for certain.
    pub(super) fn enough_for_stage(&self, job: &Job, stage: &Widened) -> Option<Expr> {
        let rows = product(&job.row_axes(&self.graph.ty(job.out).shape)[job.tile.row_loops..]);
        let least = stage.tuning.least_rows as i64;
        match rows.bounds().0 {
            Some(rows) if rows >= least => None,
            _ => Some(Expr::compare(
                CompareFn::Ge,
                Expr::Index(Index::dim(rows)),
                Expr::Index(Index::int(least)),
            )),
        }
    }

    /// A part of the rows of one panel, as `register_panel`.
    pub(super) fn staged_panel(
        &mut self,
        job: &Job,
        stage: &Widened,
        batch: &[Index],
        panel: &Index,
        part: &RangePart,
    ) -> Result<()> {
        let Some(sums) = stage.sums else {
            self.widen_block(job, stage, (batch, panel), &[Index::zero()])?;
            return self.register_panel(job, batch, panel, part, Some(stage.panel));
        };
        let row_axes = job.row_axes(&self.graph.ty(job.out).shape);
        let (outer, tiled) = row_axes.split_at(job.tile.row_loops);
        let (rows, height) = (product(tiled), Dim::from(job.tile.rows));
        let count = rows.floor_div(&height).expect("tiles have rows");
        // A few rows alone would wait for each other's sums: they share those of a whole tile, in two tiles.
        let left = (rows.clone() - count.clone() * height.clone()).as_const();
        let shares = |left: i64| (1..FEW_ROWS).contains(&left) && left + job.tile.rows as i64 >= 2 * FEW_ROWS;
        let few = left.is_some_and(shares) && count.as_const() > Some(1);
        let count = if few { count - Dim::ONE } else { count };
        let main = Run { from: Dim::ZERO, count: count.clone(), size: job.tile.rows };
        let left = rows - count.clone() * height.clone();
        let rest: Vec<Run> = match left == Dim::ZERO {
            true => vec![],
            false => balanced(&left, if few { job.tile.rows } else { job.tile.rows - 1 }),
        };
        let behind = count.clone() * height;
        let rest: Vec<Run> =
            rest.into_iter().map(|run| Run { from: run.from + behind.clone(), ..run }).collect();
        let whole = RangePart::whole();
        let looped = outer.iter().any(|dim| *dim != Dim::ONE);
        let (by_loop, by_group) = if looped { (part, &whole) } else { (&whole, part) };
        // The same number for each part: a part without a group would leave its work to another thread.
        let fit = by_group.count.clone() * Dim::from(stage.tiles);
        let groups = count.ceil_div(&fit).expect("groups have tiles") * by_group.count.clone();
        self.for_part(outer, by_loop, &mut |cx, lead| {
            cx.for_part(std::slice::from_ref(&groups), by_group, &mut |cx, number| {
                let part = RangePart { number: number[0].clone(), count: groups.clone() };
                let (lead, main, rest) = (&lead[..], &main, &rest[..]);
                cx.staged_group(job, stage, &PanelRows { batch, panel, sums, lead, main, rest, part })
            })
        })
    }

    fn staged_group(&mut self, job: &Job, stage: &Widened, group: &PanelRows) -> Result<()> {
        self.for_tiles(job, stage, group, &mut |cx, place| {
            cx.for_sums(job, place, &mut |cx, index| {
                cx.push(Stmt::Store { buf: group.sums, index, value: Expr::constant(job.sum, 0.0) });
                Ok(())
            })
        })?;
        let blocks =
            job.inner.get(stage.axis).map_or(Some(Dim::ONE), |dim| dim.exact_div(&Dim::from(stage.chunk)));
        let Some(blocks) = blocks else { return internal("steps that do not divide into blocks") };
        let outer = [&job.inner[..stage.axis], &[blocks]].concat();
        self.for_shape(&outer, LoopKind::Serial, &mut |cx, mut block| {
            if let Some(last) = block.last_mut() {
                *last = last.scale(&Dim::from(stage.chunk));
            }
            cx.widen_block(job, stage, (group.batch, group.panel), &block)?;
            let ahead = cx.next_block(job, stage, group, &block)?;
            cx.for_tiles(job, stage, group, &mut |cx, place| {
                let ahead = ahead.clone().map(|ahead| ahead.of_tile(place.tile.clone()));
                cx.staged_tile(job, stage, group, place, &block, ahead)
            })
        })?;
        self.for_tiles(job, stage, group, &mut |cx, place| cx.staged_epilogue(job, group, place))
    }

    /// Statements for every tile of a group.
    fn for_tiles(
        &mut self,
        job: &Job,
        stage: &Widened,
        group: &PanelRows,
        fill: &mut dyn FnMut(&mut Self, &TilePlace) -> Result<()>,
    ) -> Result<()> {
        let PanelRows { main, part, .. } = group;
        let first = part.number.scale(&main.count).floor_div(&part.count, &self.extent_fn());
        // Of the last group.
        let last = part.number.add_dim(&(Dim::ONE - part.count.clone())).scale(&Dim::from(stage.rows(job)));
        self.for_part(std::slice::from_ref(&main.count), part, &mut |cx, tile| {
            let slot = tile[0].add(&first.scale(&Dim::from(-1i64))).scale(&Dim::from(job.tile.rows));
            let part = if part.count == Dim::ONE { last.clone() } else { Index::zero() };
            fill(cx, &TilePlace { run: main, tile: tile[0].clone(), slot, part })
        })?;
        if group.rest.is_empty() {
            return Ok(());
        }
        let behind = Dim::from(stage.rows(job)) - main.count.clone() * Dim::from(main.size);
        let rest = self.scope(|cx| {
            for run in group.rest {
                cx.for_each("tile", &run.count, LoopKind::Serial, |cx, tile| {
                    let slot = run.at(&tile, 0).add_dim(&behind);
                    fill(cx, &TilePlace { run, tile, slot, part: last.clone() })
                })?;
            }
            Ok(())
        })?;
        if part.count == Dim::ONE {
            rest.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(());
        }
        // What is left is the last group's.
        let last = Index::dim(part.count.clone() - Dim::ONE);
        let condition = Expr::compare(CompareFn::Eq, Expr::Index(part.number.clone()), Expr::Index(last));
        self.push(Stmt::If { condition, then: rest, otherwise: vec![] });
        Ok(())
    }

    /// Statements for the sums of a tile, by their index in memory.
    fn for_sums(
        &mut self,
        job: &Job,
        place: &TilePlace,
        fill: &mut dyn FnMut(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        self.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
            (0..place.run.size).try_for_each(|row| fill(cx, place.sum(job, row, column)))
        })
    }

    /// Widens a block of a panel, of one element of the batch; `block` is the index of its first step.
    fn widen_block(
        &mut self,
        job: &Job,
        stage: &Widened,
        (batch, panel): (&[Index], &Index),
        block: &[Index],
    ) -> Result<()> {
        let behind = &job.inner[(stage.axis + 1).min(job.inner.len())..];
        let mut shape = vec![Dim::from(stage.chunk)];
        shape.extend_from_slice(behind);
        let per_word = job.codes().unwrap_or(1);
        if let Some(last) = shape.last_mut() {
            *last = last.exact_div(&Dim::from(per_word)).unwrap_or(last.clone());
        }
        self.for_shape(&shape, LoopKind::Serial, &mut |cx, at| {
            let number = Index::row_major(&at, &shape);
            let first = number.scale(&Dim::from(per_word * job.panels.nr));
            let mut index = at;
            if let Some(last) = index.last_mut() {
                *last = last.scale(&Dim::from(per_word));
            }
            let index = inner_index(block, &index);
            cx.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
                let lead = cx.row_index(job, job.rhs, (batch, panel), &[]);
                let weights = cx.weights(job, lead, &index, column)?;
                for (step, value) in weights.into_iter().enumerate() {
                    let index = first.add(column).add(&Index::int((step * job.panels.nr) as i64));
                    cx.push(Stmt::Store { buf: stage.panel, index, value });
                }
                Ok(())
            })
        })
    }

    /// The block after this one, which the tiles bring nearer while they are computed: all blocks of all panels follow each
    /// other.
    fn next_block(
        &mut self,
        job: &Job,
        stage: &Widened,
        group: &PanelRows,
        block: &[Index],
    ) -> Result<Option<Ahead>> {
        let behind = &job.inner[(stage.axis + 1).min(job.inner.len())..];
        let steps = product(behind).as_const().unwrap_or(1) * stage.chunk as i64;
        let mut inner = block.to_vec();
        inner.resize(job.inner.len(), Index::zero());
        let mut lead = self.row_index(job, job.rhs, (group.batch, group.panel), &[]);
        let mut ahead = None;
        self.scope(|cx| {
            let first = match job.codes() {
                Some(_) => {
                    let (codes, word) = cx.codes_of(job, lead, &inner, &Index::zero())?;
                    cx.code_word(&codes, &word)?
                }
                None => {
                    lead.extend(inner);
                    lead.push(Index::zero());
                    cx.expr_at(job.rhs, &lead)?
                }
            };
            if let Expr::Load { buf, index } = first {
                let elements = steps * job.panels.nr as i64 / job.codes().unwrap_or(1) as i64;
                let start = index.add(&Index::int(elements));
                let (tiles, above) = (stage.tuning.tiles(&job.tile), job.prefetch.above);
                let prefetch = Prefetch { lines: stage.tuning.prefetch, above, stream: 0 };
                ahead = Ahead::of_block(&cx.kernel, buf, start, elements, tiles, &prefetch);
            }
            Ok(())
        })?;
        Ok(ahead)
    }

    /// The elements of a column of the right-hand side from an index of the inner axes on: one, or all of a word of codes.
    fn weights(
        &mut self,
        job: &Job,
        mut lead: Vec<Index>,
        inner: &[Index],
        column: &Index,
    ) -> Result<Vec<Expr>> {
        let Some(per_word) = job.codes() else {
            lead.extend_from_slice(inner);
            lead.push(column.clone());
            let value = self.expr_at(job.rhs, &lead)?;
            return Ok(vec![Expr::cast(job.sum, value)]);
        };
        let (codes, word) = self.codes_of(job, lead, inner, column)?;
        let word = self.code_word(&codes, &word)?;
        let (word, scale) = (self.bind("word", word), self.code_scale(&codes)?);
        let scale = self.bind("scale", scale);
        (0..per_word)
            .map(|place| {
                let code = self.code(&codes, word.clone(), place)?;
                Ok(Expr::binary(BinaryFn::Mul, code, scale.clone()))
            })
            .collect()
    }

    /// The codes of a column at an index of the inner axes, and the number of the element there.
    fn codes_of(
        &self,
        job: &Job,
        mut lead: Vec<Index>,
        inner: &[Index],
        column: &Index,
    ) -> Result<(Codes, Index)> {
        let Some((step, parts)) = inner.split_last() else { return internal("codes without steps") };
        lead.extend_from_slice(parts);
        let codes = self.codes_at(job, &lead, column)?;
        let word = step.floor_div(&Dim::from(codes.per_word), &self.extent_fn());
        Ok((codes, word))
    }

    /// The products of one block, added to a tile's sums.
    fn staged_tile(
        &mut self,
        job: &Job,
        stage: &Widened,
        group: &PanelRows,
        place: &TilePlace,
        block: &[Index],
        ahead: Option<Ahead>,
    ) -> Result<()> {
        let rows = self.staged_rows(job, group, place);
        let acc = self.kernel.local("acc", job.sum, &[rows.len(), job.panels.nr], job.lanes);
        self.clear(job, acc, rows.len())?;
        let mut shape = vec![Dim::from(stage.chunk)];
        shape.extend_from_slice(&job.inner[(stage.axis + 1).min(job.inner.len())..]);
        let (mut nest, at) = Nest::over(&mut self.kernel, &shape);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let number = Index::row_major(&at, &shape);
        let index = inner_index(block, &at);
        let lane = self.kernel.loop_var("v");
        nest.body = self.scope(|cx| {
            let body = cx.scope(|cx| {
                let mut panel_row = Vec::with_capacity(job.panels.nr / job.lanes);
                for first in (0..job.panels.nr).step_by(job.lanes) {
                    let column = Index::int(first as i64).add(&Index::var(lane));
                    let index = number.scale(&Dim::from(job.panels.nr)).add(&column);
                    panel_row.push((column, cx.bind("b", Expr::Load { buf: stage.panel, index })));
                }
                for (row, at) in rows.iter().enumerate() {
                    let mut place = cx.broadcast_batch(job.lhs, job, group.batch);
                    place.extend_from_slice(at);
                    place.extend_from_slice(&index);
                    let element = cx.expr_at(job.lhs, &place)?;
                    let element = cx.widened(job, "a", element);
                    for (column, weight) in &panel_row {
                        let at = vec![Index::int(row as i64), column.clone()];
                        let value = Expr::binary(BinaryFn::Mul, element.clone(), weight.clone());
                        cx.push(Stmt::Accumulate { local: acc, at, op: BinaryFn::Add, value });
                    }
                }
                Ok(())
            })?;
            cx.push_lanes(lane, job.lanes, body);
            Ok(())
        })?;
        nest.fuse_all(0);
        let Some(Axis { var, extent, kind }) = nest.axes.pop() else {
            return internal("a block of one step");
        };
        let body = std::mem::take(&mut nest.body);
        nest.body = self.unrolled(&job.tile, &Axis { var, extent, kind }, body, &nest.axes, ahead.as_ref());
        nest.into_stmts().into_iter().for_each(|stmt| self.push(stmt));
        self.for_columns(job, 0..job.panels.nr, &mut |cx, column| {
            for row in 0..rows.len() {
                let index = place.sum(job, row, column);
                let sum = Expr::Load { buf: group.sums, index: index.clone() };
                let own = Expr::Get { local: acc, at: vec![Index::int(row as i64), column.clone()] };
                cx.push(Stmt::Store { buf: group.sums, index, value: Expr::binary(BinaryFn::Add, sum, own) });
            }
            Ok(())
        })
    }

    /// The rows of a tile, by their index along every row axis.
    fn staged_rows(&mut self, job: &Job, group: &PanelRows, place: &TilePlace) -> Vec<Vec<Index>> {
        let row_axes = job.row_axes(&self.graph.ty(job.out).shape);
        let first = job.block.as_ref().map_or(Index::zero(), |block| block.first.clone());
        let mut rows = Vec::with_capacity(place.run.size);
        for row in 0..place.run.size {
            let mut index = group.lead.to_vec();
            let number = place.run.at(&place.tile, row).add(&place.part);
            for at in self.split_rows(&number, &row_axes[job.tile.row_loops..]) {
                let at = self.named_row(at);
                // Of a single axis, where there is a block.
                index.push(first.add(&at));
            }
            rows.push(index);
        }
        rows
    }

    fn staged_epilogue(&mut self, job: &Job, group: &PanelRows, place: &TilePlace) -> Result<()> {
        let rows = self.staged_rows(job, group, place);
        self.panel_columns(job, group.panel, &mut |cx, column| {
            for (row, at) in rows.iter().enumerate() {
                let sum = Expr::Load { buf: group.sums, index: place.sum(job, row, column) };
                let dtype = cx.graph.ty(job.out).dtype;
                let sum = if dtype == job.sum { sum } else { Expr::cast(dtype, sum) };
                cx.overrides.insert(job.out, Override::Expr(sum));
                let mut index = group.batch.to_vec();
                index.extend_from_slice(at);
                index.push(job.panels.column(group.panel, column));
                cx.store_outputs(&index)?;
            }
            Ok(())
        })
    }
}

impl TilePlace<'_> {
    /// The index of a sum in memory.
    fn sum(&self, job: &Job, row: usize, column: &Index) -> Index {
        self.slot.add(&Index::int(row as i64)).scale(&Dim::from(job.panels.nr)).add(column)
    }
}

/// The index of a step along all inner axes, from that of its block and that in the block.
fn inner_index(block: &[Index], at: &[Index]) -> Vec<Index> {
    let (last, lead) = block.split_last().expect("a block has an axis");
    let (first, rest) = at.split_first().expect("a block has an axis");
    lead.iter().cloned().chain([last.add(first)]).chain(rest.iter().cloned()).collect()
}
