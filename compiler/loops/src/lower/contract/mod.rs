//! Contractions: matrix products and convolutions on register tiles.
//!
//! The right-hand side lies in column panels of `nr` columns (`Op::Pack`). For each panel, tiles of a few rows
//! keep their results in registers while the inner axes run: per step one panel row is loaded, and each row
//! of the tile multiplies it by one broadcast element of the left-hand side. The left-hand side is read in
//! place, through any view (for a convolution, a window of the padded image). The epilogue runs on the
//! tile before it is stored. `walk.rs` orders the tiles.

mod codes;
mod digits;
mod staged;
mod taps;
mod tiles;
mod unpadded;
pub(super) mod walk;

use std::ops::Range;

use self::taps::LeftOut;
use self::walk::{Ahead, RangePart};
use crate::lower::{Lowering, Override, internal};
use crate::nest::{Axis, Nest, widths};
use crate::{Buf, Expr, Index, Local, LoopKind, Stmt, visit};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::{product, row_major_strides};
use onnxc_ir::graph::{DType, Dim, Node, Op, PanelLayout, RhsLayout, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_machine::target::Core;
use onnxc_tuning::Picker;
use onnxc_tuning::contract::{Facts, Prefetch, RegisterTile};

/// A contraction's parts.
struct Job {
    out: ValueId,
    lhs: ValueId,
    rhs: ValueId,
    batch: usize,
    rows: usize,
    inner: Vec<Dim>,
    /// How the right-hand side lies. The steps of one of its rows are added up at once; `inner` counts the last axis in these.
    panels: PanelLayout,
    /// The product of one element of either side, or of those of one row and column.
    product: BinaryFn,
    /// Type of the sums: f32 for the 16-bit floats.
    sum: DType,
    lanes: usize,
    /// Register tiles, and what is brought near for them.
    tile: RegisterTile,
    prefetch: Prefetch,
    /// The only row axis' part that is computed, where it is not all rows.
    block: Option<RowBlock>,
    /// Inner axes whose steps may read nothing but padding for a whole tile.
    left_out: LeftOut,
    terms: Terms,
    route: Route,
}

/// What the terms of a sum are.
enum Terms {
    /// Products of elements, or of those of a row.
    Products,
    /// Products of bytes; the first ones have short sums.
    Short(Short),
    /// Products with codes of few bits.
    Codes {
        /// Steps of the last inner axis in an element of the weights.
        per_word: usize,
        /// The left-hand side in the form in which these products are sums of bytes.
        digits: Option<digits::Digits>,
    },
}

/// How the rows of a panel are computed.
enum Route {
    /// On tiles of vector registers, from the panel as it lies.
    Registers,
    /// On the processor's tiles, where there are enough rows.
    Tiles(tiles::TilePlan),
    /// On tiles of vector registers, from panels that are widened for many rows at once, where there are enough.
    Widened(staged::Widened),
}

impl Job {
    /// Steps of the last inner axis in an element of the weights, where these are codes of few bits.
    fn codes(&self) -> Option<usize> {
        match self.terms {
            Terms::Codes { per_word, .. } => Some(per_word),
            Terms::Products | Terms::Short(_) => None,
        }
    }

    /// The left-hand side as digits, where that is given.
    fn digits(&self) -> Option<&digits::Digits> {
        match &self.terms {
            Terms::Codes { digits, .. } => digits.as_ref(),
            Terms::Products | Terms::Short(_) => None,
        }
    }
}

/// The steps of the last inner axis whose products are [`BinaryFn::DotShort`]: the first `steps` of each row of panels.
struct Short {
    steps: usize,
    /// Where these and the others are along that axis, if not in place.
    order: Option<ValueId>,
    /// Whether the rows of panels are there, too.
    stays: bool,
}

impl Short {
    /// None where rows that stay in place are best read one after the other.
    fn new(layout: &RhsLayout, order: Option<ValueId>, core: &Core) -> Option<Short> {
        match *layout {
            RhsLayout::Ordered { stays: true, .. } if !core.is_leaf() || core.has_byte_products() => None,
            RhsLayout::Ordered { short, stays, .. } => Some(Short { steps: short, order, stays }),
            _ => None,
        }
    }
}

/// `rows` rows from `first` on.
#[derive(Clone)]
pub(super) struct RowBlock {
    pub first: Index,
    pub rows: Dim,
}

/// What is needed of a contraction to look at the addresses of its rows.
struct Probe {
    out: ValueId,
    lhs: ValueId,
    batch: usize,
    rows: usize,
    /// Inner axes.
    inner: usize,
}

/// A step of the inner axes: where it is in either operand, and what multiplies their elements.
struct InnerStep {
    lhs: Vec<Index>,
    rhs: Vec<Index>,
    product: BinaryFn,
}

impl InnerStep {
    fn at(product: BinaryFn, inner: &[Index]) -> InnerStep {
        InnerStep { lhs: inner.to_vec(), rhs: inner.to_vec(), product }
    }
}

/// Where a tile stands.
struct Tile {
    batch: Vec<Index>,
    /// Per row of the tile: its index along every row axis.
    rows: Vec<Vec<Index>>,
    panel: Index,
    /// The panel in the type of the sums, `[steps, nr]`, where it was widened first.
    widened: Option<Buf>,
    /// The first of its columns among those of the panel.
    first: Index,
    ahead: Option<Ahead>,
}

impl Tile {
    fn columns(&self, job: &Job) -> usize {
        job.tile.columns(self.rows.len()).count
    }
}

/// Columns of a panel, from one on.
struct Columns<'a> {
    panel: &'a Index,
    first: &'a Index,
    count: usize,
}

/// Makes the tile of the columns from the second argument on.
type PartFn<'a, L> = &'a mut dyn FnMut(&mut L, Index, Option<Ahead>) -> Result<()>;

fn less(a: Index, b: Index) -> Expr {
    Expr::compare(CompareFn::Lt, Expr::Index(a), Expr::Index(b))
}

impl Lowering<'_> {
    pub(super) fn contract(&mut self) -> Result<()> {
        let mut pick = self.picker();
        let job = self.contract_job(None, &mut pick)?;
        self.walk(&job, pick)?;
        self.finish();
        Ok(())
    }

    /// The contraction for a block of its rows and one element of its batch.
    pub(super) fn contract_block(&mut self, batch: &[Index], block: RowBlock) -> Result<()> {
        let mut pick = self.picker();
        let job = self.contract_job(Some(block), &mut pick)?;
        self.tuned(pick)?;
        if (job.rows, job.batch) != (1, batch.len()) {
            return internal("a block of rows of several axes");
        }
        let panels = job.panels.count();
        self.for_each("panel", &panels, LoopKind::Serial, |cx, panel| {
            cx.panel(&job, batch, &panel, &RangePart::whole())
        })
    }

    fn contract_job(&mut self, block: Option<RowBlock>, pick: &mut Picker<'_>) -> Result<Job> {
        let node = &self.graph.nodes[self.group.anchor];
        let Op::Contract { batch, m, k: _, rhs: layout } = &node.op else {
            return internal("no contraction");
        };
        let (lhs, rhs, out) = (node.inputs[0], node.inputs[1], node.outputs[0]);
        let Some(panels) = layout.of_packed(&self.graph.ty(rhs).shape, *batch) else {
            return internal("a contraction whose right-hand side is not packed");
        };
        let PanelLayout { nr, depth, .. } = panels;
        let dtype = self.graph.ty(out).dtype;
        let sum = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        if depth > 1 && self.graph.ty(lhs).dtype == DType::BF16 && sum != DType::F32 {
            return internal(format!("pairs of bf16 with sums of {sum}"));
        }
        // The widest vectors that panels are a multiple of: panels may be made for narrower ones.
        let mut lanes = self.core.lanes_of(sum).min(nr);
        while nr % lanes != 0 {
            lanes /= 2;
        }
        let mut inner = self.graph.ty(lhs).shape[batch + m..].to_vec();
        if let Some(last) = inner.last_mut() {
            *last = last.exact_div(&Dim::from(depth)).ok_or_else(|| uneven(last, depth))?;
        }
        let probe = Probe { out, lhs, batch: *batch, rows: *m, inner: inner.len() };
        let codes = self.codes_per_word(rhs);
        let narrow = depth == 1 && self.is_narrow(rhs, sum, lanes, codes);
        // Weights that are widened once for many rows serve them all alike.
        let left_out = self.left_out(lhs, (*batch, *m), rhs, !narrow)?;
        let facts = Facts {
            core: self.core,
            panel: nr,
            lanes,
            sum,
            depth,
            codes: codes.is_some() && node.inputs.len() == 2,
            narrow,
            row_distance: self.distance(&probe, true)?,
            neighbours: self.distance(&probe, false)? == Some(self.graph.ty(lhs).dtype.size() as i64),
            row_axes: *m,
            one_row: product(&self.graph.ty(out).shape[*batch..*batch + *m]) == Dim::ONE,
            divides: self.rows_divide(&probe)?,
            has_taps: !left_out.is_empty(),
            loops: left_out.first_axis(),
            last_axis: m.checked_sub(1).and_then(|last| self.graph.ty(out).shape[batch + last].as_const()),
        };
        let tile = RegisterTile::choose(&facts, pick)?;
        let order = node.inputs.get(2).copied();
        let ignores_order = matches!(layout, RhsLayout::Ordered { .. });
        let terms = match (Short::new(layout, order, self.core), codes) {
            (Some(short), _) => Terms::Short(short),
            (None, Some(per_word)) => Terms::Codes { per_word, digits: self.digits_of(node, &facts, pick)? },
            (None, None) if order.is_some() && !ignores_order => return internal("digits without codes"),
            (None, None) => Terms::Products,
        };
        let mut job = Job {
            out,
            lhs,
            rhs,
            batch: *batch,
            rows: *m,
            inner,
            panels,
            product: self.product(lhs, rhs, depth),
            sum,
            lanes,
            tile,
            prefetch: Prefetch { lines: 0, above: 0, stream: 0 },
            block,
            left_out,
            terms,
            route: Route::Registers,
        };
        job.route = self.route(&job, pick)?;
        let (constant, on_tiles) = (self.graph.is_constant(rhs), matches!(job.route, Route::Tiles(_)));
        job.prefetch = Prefetch::choose(self.core, constant, codes.is_some(), on_tiles, pick)?;
        Ok(job)
    }

    /// Tiles multiply several steps at once, and widened panels have one step after the other: no contraction may have both.
    fn route(&mut self, job: &Job, pick: &mut Picker<'_>) -> Result<Route> {
        if let Some(plan) = self.tile_plan(job, pick)? {
            return Ok(Route::Tiles(plan));
        }
        Ok(self.stage_plan(job, pick)?.map_or(Route::Registers, Route::Widened))
    }

    /// The product of an element of each operand, or of `depth` of them, which are small.
    fn product(&self, lhs: ValueId, rhs: ValueId, depth: usize) -> BinaryFn {
        let narrow = |tensor: &Tensor| tensor.dtype != DType::I8 || !tensor.data.contains(&(i8::MIN as u8));
        match self.graph.ty(lhs).dtype {
            _ if depth == 1 => BinaryFn::Mul,
            DType::I16 => BinaryFn::DotPairs,
            DType::BF16 => BinaryFn::DotBf16,
            DType::I8 if self.graph.is_made_of(rhs, &narrow) => BinaryFn::DotNarrow,
            DType::I8 => BinaryFn::DotSigned,
            _ => BinaryFn::Dot,
        }
    }

    /// Whether finding the place of a row in the operand or in the result by its number among all rows takes divisions: they
    /// do not follow each other at one stride.
    fn rows_divide(&mut self, job: &Probe) -> Result<bool> {
        if job.rows < 2 {
            return Ok(false);
        }
        let shape = self.graph.ty(job.out).shape.clone();
        let row_axes = &shape[job.batch..job.batch + job.rows];
        let row = self.kernel.loop_var("probe");
        self.extents.insert(row, product(row_axes));
        let rows = self.split_rows(&Index::var(row), row_axes);
        let mut index = vec![Index::zero(); job.batch];
        index.extend(rows);
        index.extend((0..job.inner).map(|_| Index::zero()));
        let mut divides = false;
        self.scope(|cx| {
            let expr = cx.expr_at(job.lhs, &index)?;
            divides = match expr {
                Expr::Load { index, .. } => index.divides(),
                _ => true,
            };
            Ok(())
        })?;
        let padded =
            |&output: &ValueId| matches!(self.group_producer(output), Some(Node { op: Op::Pad { .. }, .. }));
        Ok(divides || self.group.outputs.iter().any(padded))
    }

    /// Bytes between neighbouring rows of the left-hand side, or between neighbours along the last inner axis, where they
    /// are known.
    fn distance(&mut self, job: &Probe, rows: bool) -> Result<Option<i64>> {
        let axes = job.batch + job.rows + job.inner;
        let axis = if rows { job.batch + job.rows } else { axes };
        if if rows { job.rows == 0 } else { job.inner == 0 } {
            return Ok(None);
        }
        let step = self.kernel.loop_var("probe");
        let mut index = vec![Index::zero(); axes];
        index[axis - 1] = Index::var(step);
        let mut distance = None;
        self.scope(|cx| {
            if let Expr::Load { index, .. } = cx.expr_at(job.lhs, &index)? {
                let size = cx.graph.ty(job.lhs).dtype.size() as i64;
                distance = index.coefficient(step).and_then(|step| step.as_const()).map(|step| step * size);
            }
            Ok(())
        })?;
        Ok(distance)
    }

    /// Row number `row` of the flattened `axes` as an index per axis.
    pub(super) fn split_rows(&self, row: &Index, axes: &[Dim]) -> Vec<Index> {
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

    fn tile(&mut self, job: &Job, tile: &Tile) -> Result<()> {
        let acc = self.kernel.local("acc", job.sum, &[tile.rows.len(), tile.columns(job)], job.lanes);
        self.prefetch_results(job, tile);
        let sums = match &job.terms {
            Terms::Codes { per_word, .. } if tile.widened.is_none() => {
                self.accumulate_codes(job, tile, acc, *per_word)?
            }
            Terms::Short(short) => self.accumulate_short(job, short, tile, acc)?,
            Terms::Products | Terms::Codes { .. } => self.accumulate(job, tile, acc)?,
        };
        self.epilogue(job, tile, sums)
    }

    /// Brings the lines that a tile writes near while it is computed, where they come from memory.
    fn prefetch_results(&mut self, job: &Job, tile: &Tile) {
        let outputs = self.group.outputs.iter().copied();
        for out in outputs
            .filter(|&out| self.graph.ty(out).shape == self.graph.ty(job.out).shape)
            .collect::<Vec<_>>()
        {
            let bytes = self.graph.ty(out).bytes().as_const();
            let near = bytes.is_some_and(|bytes| bytes <= job.prefetch.above);
            if near {
                continue;
            }
            for place in &tile.rows {
                let mut index = tile.batch.clone();
                index.extend_from_slice(place);
                index.push(job.panels.column(&tile.panel, &tile.first));
                let index = self.address(out, &index);
                self.push(Stmt::Prefetch { buf: self.buffers[&out], index });
            }
        }
    }

    /// Statements for every column of a panel: `fill` gets the column as an index of a register's last axis.
    fn for_columns(
        &mut self,
        job: &Job,
        columns: Range<usize>,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        self.for_vectors(job.lanes, columns, fill)
    }

    /// The same in vectors of `lanes`.
    fn for_vectors(
        &mut self,
        lanes: usize,
        columns: Range<usize>,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        if lanes == 1 {
            return columns.into_iter().try_for_each(|column| fill(self, &Index::int(column as i64)));
        }
        for first in columns.step_by(lanes) {
            let lane = self.kernel.loop_var("v");
            self.extents.insert(lane, Dim::from(lanes));
            let body = self.scope(|cx| fill(cx, &Index::var(lane).add(&Index::int(first as i64))))?;
            self.push_lanes(lane, lanes, body);
        }
        Ok(())
    }

    /// A statement for every register of a tile.
    fn for_registers(&mut self, job: &Job, rows: usize, stmt: &dyn Fn(Vec<Index>) -> Stmt) -> Result<()> {
        self.for_columns(job, 0..job.tile.columns(rows).count, &mut |cx, column| {
            (0..rows).for_each(|row| cx.push(stmt(vec![Index::int(row as i64), column.clone()])));
            Ok(())
        })
    }

    fn clear(&mut self, job: &Job, local: Local, rows: usize) -> Result<()> {
        let zero = Expr::constant(job.sum, 0.0);
        self.for_registers(job, rows, &|at| Stmt::Set { local, at, value: zero.clone() })
    }

    /// The inner axes: panel row times one element of each row of the tile. Gives the registers with the sums.
    ///
    /// Long sums of floats are made of shorter ones, so that the rounding error grows with their number and not with that
    /// of all terms.
    fn accumulate(&mut self, job: &Job, tile: &Tile, acc: Local) -> Result<Local> {
        let rows = tile.rows.len();
        let (mut nest, index) = Nest::over(&mut self.kernel, &job.inner);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        nest.body = self.scope(|cx| cx.step(job, tile, acc, &InnerStep::at(job.product, &index)))?;
        // Steps that read padding have loops of their own.
        nest.fuse_all(if job.left_out.is_implicit { nest.axes.len() } else { 0 });
        let conditions = job.conditions(tile, &nest, &index)?;
        if let Some(last) = nest.axes.len().checked_sub(1)
            && let Some(part) = nest.axes[last].extent.as_const().and_then(|extent| job.tile.part_of(extent))
        {
            nest.split(&mut self.kernel, last, part);
        }
        let Some(axis) = nest.axes.pop() else {
            self.clear(job, acc, rows)?;
            nest.body.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(acc);
        };
        if job.left_out.is_implicit && conditions.contains_key(&axis.var) {
            return internal("steps that read padding without memory are the innermost");
        }
        let body = std::mem::take(&mut nest.body);
        let mut body = self.unrolled(&job.tile, &axis, body, &nest.axes, tile.ahead.as_ref());
        let mut steps = axis.extent;
        if conditions.is_empty() && steps.as_const() == Some(job.tile.unroll_of(steps.as_const())) {
            let few = |steps: Dim| steps.as_const().is_some_and(|steps| job.tile.writes_out(steps));
            while let Some(outer) = nest.axes.pop_if(|outer| few(outer.extent.clone() * steps.clone())) {
                steps = outer.extent.clone() * steps;
                let hi = Index::dim(outer.extent);
                let (var, lo, kind) = (outer.var, Index::zero(), LoopKind::Unrolled);
                body = vec![Stmt::For { var, lo, hi, step: 1, kind, body }];
            }
        }
        let parts = nest.axes.len() - short_axes(&nest.axes, &steps, job.tile.sum_terms);
        let inner = Nest { axes: nest.axes.split_off(parts), body };
        if nest.axes.is_empty() {
            self.clear(job, acc, rows)?;
            nest.body = taps::loops(inner, &conditions);
            taps::loops(nest, &conditions).into_iter().for_each(|stmt| self.push(stmt));
            return Ok(acc);
        }
        let sums = self.kernel.local("sums", job.sum, &[rows, tile.columns(job)], job.lanes);
        self.clear(job, sums, rows)?;
        nest.body = self.scope(|cx| {
            cx.clear(job, acc, rows)?;
            taps::loops(inner, &conditions).into_iter().for_each(|stmt| cx.push(stmt));
            cx.for_registers(job, rows, &|at| {
                let value = Expr::Get { local: acc, at: at.clone() };
                Stmt::Accumulate { local: sums, at, op: BinaryFn::Add, value }
            })
        })?;
        taps::loops(nest, &conditions).into_iter().for_each(|stmt| self.push(stmt));
        Ok(sums)
    }

    /// As `accumulate`, of bytes: first the steps whose products have short sums, then the others.
    fn accumulate_short(&mut self, job: &Job, short: &Short, tile: &Tile, acc: Local) -> Result<Local> {
        let Some((last, lead)) = job.inner.split_last() else {
            return internal("no short sums");
        };
        let Some(steps) = last.as_const() else {
            return internal("short sums of a symbolic number of steps");
        };
        let (mut nest, index) = Nest::over(&mut self.kernel, lead);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        for (steps, product) in
            [(0..short.steps as i64, BinaryFn::DotShort), (short.steps as i64..steps, BinaryFn::Dot)]
        {
            if steps.is_empty() {
                continue;
            }
            let extent = Dim::from(steps.end - steps.start);
            let axis =
                Axis { var: self.kernel.loop_var("word"), extent: extent.clone(), kind: LoopKind::Serial };
            self.extents.insert(axis.var, extent);
            let body = self.scope(|cx| {
                let mut at = index.clone();
                at.push(Index::var(axis.var).add(&Index::int(steps.start)));
                let mut step = InnerStep::at(product, &at);
                if let (Some(order), Some(own)) = (short.order, step.lhs.last_mut()) {
                    let place = cx.row_index(job, order, (&tile.batch, &tile.panel), &at);
                    let place = cx.expr_at(order, &place)?;
                    *own = cx.as_index(Expr::cast(DType::I64, place));
                    if let Some(row) = step.rhs.last_mut().filter(|_| short.stays) {
                        *row = own.clone();
                    }
                }
                cx.step(job, tile, acc, &step)
            })?;
            let ahead = tile.ahead.as_ref().filter(|_| steps.start == 0);
            nest.body.extend(self.unrolled(&job.tile, &axis, body, &nest.axes, ahead));
        }
        let conditions = job.conditions(tile, &nest, &index)?;
        self.clear(job, acc, tile.rows.len())?;
        taps::loops(nest, &conditions).into_iter().for_each(|stmt| self.push(stmt));
        Ok(acc)
    }

    /// The element, or the word of bytes, of the left-hand side that a row takes in a step.
    fn element(&mut self, job: &Job, tile: &Tile, row: &[Index], inner: &[Index]) -> Result<Expr> {
        let mut index = self.broadcast_batch(job.lhs, job, &tile.batch);
        index.extend_from_slice(row);
        index.extend_from_slice(inner);
        if let Some(last) = index.last_mut() {
            *last = last.scale(&Dim::from(job.panels.depth));
        }
        let value = self.operand_at(job, job.lhs, &index)?;
        Ok(self.widened(job, "a", value))
    }

    /// The element, or the word of bytes, of a panel's column in a step.
    fn weight(&mut self, job: &Job, tile: &Tile, inner: &[Index], column: &Index) -> Result<Expr> {
        if let Some(buf) = tile.widened {
            let step = Index::row_major(inner, &job.inner);
            return Ok(Expr::Load { buf, index: step.scale(&Dim::from(job.panels.nr)).add(column) });
        }
        let mut index = self.row_index(job, job.rhs, (&tile.batch, &tile.panel), inner);
        index.push(column.scale(&Dim::from(job.panels.depth)));
        self.operand_at(job, job.rhs, &index)
    }

    /// One step of the inner axes, all lanes of all rows.
    fn step(&mut self, job: &Job, tile: &Tile, acc: Local, step: &InnerStep) -> Result<()> {
        let lane = self.kernel.loop_var("v");
        let body = self.scope(|cx| {
            let taken = job.tile.columns(tile.rows.len());
            let (vectors, group) = (taken.count / job.lanes, taken.together / job.lanes);
            let mut panel_row = Vec::with_capacity(vectors);
            let mut elements = vec![];
            for first in (0..vectors).step_by(group) {
                let end = (first + group).min(vectors);
                let loaded = if taken.is_crowded { end } else { vectors };
                for vector in panel_row.len()..loaded {
                    let column = Index::int((vector * job.lanes) as i64);
                    let column = if job.lanes == 1 { column } else { column.add(&Index::var(lane)) };
                    let value = cx.weight(job, tile, &step.rhs, &tile.first.add(&column))?;
                    panel_row.push((column, cx.widened(job, "b", value)));
                }
                let columns = panel_row[first..end].to_vec();
                for (row, place) in tile.rows.iter().enumerate() {
                    if elements.len() == row {
                        elements.push(cx.element(job, tile, place, &step.lhs)?);
                    }
                    for (column, value) in &columns {
                        let at = vec![Index::int(row as i64), column.clone()];
                        let value = Expr::binary(step.product, elements[row].clone(), value.clone());
                        cx.push(Stmt::Accumulate { local: acc, at, op: BinaryFn::Add, value });
                    }
                }
            }
            Ok(())
        })?;
        self.push_lanes(lane, job.lanes, body);
        Ok(())
    }

    /// An element of an operand, or all those of one step of small numbers, as a word: of bf16 as the f32 of the same bits.
    fn operand_at(&mut self, job: &Job, value: ValueId, index: &[Index]) -> Result<Expr> {
        if job.panels.depth == 1 {
            return self.expr_at(value, index);
        }
        let mut parts = Vec::with_capacity(job.panels.depth);
        for step in 0..job.panels.depth {
            let mut index = index.to_vec();
            if let Some(last) = index.last_mut() {
                *last = last.add(&Index::int(step as i64));
            }
            parts.push(self.expr_at(value, &index)?);
        }
        let pairs = self.graph.ty(value).dtype == DType::BF16;
        let typed = |word: Expr| if pairs { Expr::bitcast(DType::F32, word) } else { word };
        if let Some(word) = word(&parts) {
            return Ok(typed(word));
        }
        // Read through a view that does not have them side by side.
        let bits = 32 / job.panels.depth as u64;
        let wide = parts.into_iter().zip(0..).map(|(part, at)| {
            let part = if pairs { Expr::bitcast(DType::U16, part) } else { part };
            let part = Expr::binary(BinaryFn::BitAnd, Expr::cast(DType::I32, part), int((1 << bits) - 1));
            if at == 0 { part } else { Expr::binary(BinaryFn::Shl, part, int(bits * at)) }
        });
        let joined = wide.reduce(|word, part| Expr::binary(BinaryFn::BitOr, word, part));
        joined.map_or_else(|| internal("no steps"), |word| Ok(typed(word)))
    }

    /// An operand in the type of the sums, bound to a name.
    fn widened(&mut self, job: &Job, name: &str, value: Expr) -> Expr {
        let value = if self.kernel.dtype(&value) == job.sum { value } else { Expr::cast(job.sum, value) };
        self.bind(name, value)
    }

    /// The index of a row of a panel, as far as `inner` goes, in what lies as the panels do.
    fn row_index(
        &self,
        job: &Job,
        value: ValueId,
        (batch, panel): (&[Index], &Index),
        inner: &[Index],
    ) -> Vec<Index> {
        let mut index = self.broadcast_batch(value, job, batch);
        index.push(panel.clone());
        index.extend_from_slice(inner);
        index
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
    fn unrolled(
        &mut self,
        tile: &RegisterTile,
        axis: &Axis,
        body: Vec<Stmt>,
        outer: &[Axis],
        ahead: Option<&Ahead>,
    ) -> Vec<Stmt> {
        let Axis { var, extent, .. } = axis;
        let count = tile.unroll_of(extent.as_const());
        let steps = Dim::from(count);
        let whole = extent.floor_div(&steps).expect("the unroll factor is positive");
        let mut out = Vec::new();
        if whole != Dim::ZERO {
            let (block, step) = (self.kernel.loop_var("kb"), self.kernel.loop_var("ku"));
            let mut copy = body.clone();
            crate::nest::rename_lets(&mut self.kernel, &mut copy);
            let at = Index::var(block).scale(&steps).add(&Index::var(step));
            visit::substitute(&mut copy, *var, &at);
            let inner = Stmt::For {
                var: step,
                lo: Index::zero(),
                hi: Index::int(count),
                step: 1,
                kind: LoopKind::Unrolled,
                body: copy,
            };
            let (lo, hi) = (Index::zero(), Index::dim(whole.clone()));
            if tile.short && steps == *extent && ahead.is_none() {
                let mut once = vec![inner];
                visit::substitute(&mut once, block, &Index::zero());
                return once;
            }
            let mut body = vec![inner];
            if let (Some(ahead), Some(each)) = (ahead, whole.as_const()) {
                let extents: Vec<Dim> = outer.iter().map(|axis| axis.extent.clone()).collect();
                let turns = outer.iter().zip(row_major_strides(&extents));
                let turn =
                    turns.fold(Index::zero(), |sum, (axis, by)| sum.add(&Index::var(axis.var).scale(&by)));
                let iterations = product(&extents).as_const().and_then(|turns| turns.checked_mul(each));
                let iteration = turn.scale(&whole).add(&Index::var(block));
                body.extend(self.prefetches(ahead, iterations.unwrap_or(0), &iteration));
            }
            out.push(Stmt::For { var: block, lo, hi, step: 1, kind: LoopKind::Serial, body });
        }
        let done = whole * steps;
        if done != *extent {
            let (lo, hi) = (Index::dim(done), Index::dim(extent.clone()));
            out.push(Stmt::For { var: *var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        }
        out
    }

    /// Stores the tile.
    fn epilogue(&mut self, job: &Job, tile: &Tile, sums: Local) -> Result<()> {
        let part = Columns { panel: &tile.panel, first: &tile.first, count: tile.columns(job) };
        self.columns_of_panel(job, &part, &mut |cx, column| cx.store_rows(job, tile, sums, column))
    }

    /// Statements for all columns of a panel, see [`Self::columns_of_panel`].
    fn panel_columns(
        &mut self,
        job: &Job,
        panel: &Index,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        self.columns_of_panel(job, &Columns { panel, first: &Index::zero(), count: job.panels.nr }, fill)
    }

    /// Statements for some columns of a panel: whole panels in vectors, the last panel's missing columns left out.
    /// `fill` gets the column's place among them.
    fn columns_of_panel(
        &mut self,
        job: &Job,
        columns: &Columns<'_>,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        let (whole, rest) = (job.panels.whole(), job.panels.rest());
        if rest == Dim::ZERO {
            return self.for_columns(job, 0..columns.count, fill);
        }
        if whole == Dim::ZERO {
            return self.last_columns(job, &rest, columns, fill);
        }
        let condition = less(columns.panel.clone(), Index::dim(whole));
        let then = self.scope(|cx| cx.for_columns(job, 0..columns.count, fill))?;
        let otherwise = self.scope(|cx| cx.last_columns(job, &rest, columns, fill))?;
        self.push(Stmt::If { condition, then, otherwise });
        Ok(())
    }

    /// Those of `columns` that are among the first `rest` columns of a panel.
    fn last_columns(
        &mut self,
        job: &Job,
        rest: &Dim,
        columns: &Columns<'_>,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        let &Columns { first, count, .. } = columns;
        let Some(rest) = rest.as_const().map(|rest| rest as usize) else {
            return (0..count).try_for_each(|column| {
                let column = Index::int(column as i64);
                let condition = less(first.add(&column), Index::dim(rest.clone()));
                let then = self.scope(|cx| fill(cx, &column))?;
                self.push(Stmt::If { condition, then, otherwise: vec![] });
                Ok(())
            });
        };
        if let Some(first) = first.as_int() {
            return self.narrowing_columns(job, rest.saturating_sub(first as usize).min(count), fill);
        }
        // A part of a loop over them all: whole, cut, or behind the last column.
        let (cut, after) = (rest / count * count, rest % count);
        let mut behind = vec![];
        if after > 0 {
            let condition = less(first.clone(), Index::int(rest as i64));
            let then = self.scope(|cx| cx.narrowing_columns(job, after, fill))?;
            behind.push(Stmt::If { condition, then, otherwise: vec![] });
        }
        if cut == 0 {
            behind.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(());
        }
        let condition = less(first.clone(), Index::int(cut as i64));
        let then = self.scope(|cx| cx.for_columns(job, 0..count, fill))?;
        self.push(Stmt::If { condition, then, otherwise: behind });
        Ok(())
    }

    /// The first `count` columns, in vectors that get narrower.
    fn narrowing_columns(
        &mut self,
        job: &Job,
        count: usize,
        fill: &mut dyn FnMut(&mut Self, &Index) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        for width in widths(job.lanes).into_iter().chain([1]) {
            let whole = start + (count - start) / width * width;
            self.for_vectors(width, start..whole, fill)?;
            start = whole;
        }
        Ok(())
    }

    /// A tile of some rows for each part of a panel's columns that is taken at a time. What comes next is asked for in the first; the
    /// others, whose code is the same, are a loop.
    fn for_parts_of_columns(
        &mut self,
        job: &Job,
        rows: usize,
        ahead: Option<Ahead>,
        fill: PartFn<'_, Self>,
    ) -> Result<()> {
        let columns = job.tile.columns(rows).count;
        // Of a single panel, those with columns.
        let parts = job.panels.first_columns().div_ceil(columns);
        let written = usize::from(ahead.is_some() || parts == 1);
        if written == 1 {
            fill(self, Index::zero(), ahead)?;
        }
        let first = |part: Index| part.scale(&Dim::from(columns));
        match parts - written {
            0 => Ok(()),
            1 => fill(self, first(Index::int(written as i64)), None),
            _ => {
                let var = self.kernel.loop_var("c");
                self.extents.insert(var, Dim::from(parts));
                let body = self.scope(|cx| fill(cx, first(Index::var(var)), None))?;
                let (lo, hi) = (Index::int(written as i64), Index::int(parts as i64));
                self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
                Ok(())
            }
        }
    }

    fn store_rows(&mut self, job: &Job, tile: &Tile, sums: Local, column: &Index) -> Result<()> {
        for (row, place) in tile.rows.iter().enumerate() {
            let sum = Expr::Get { local: sums, at: vec![Index::int(row as i64), column.clone()] };
            let dtype = self.graph.ty(job.out).dtype;
            let sum = if dtype == job.sum { sum } else { Expr::cast(dtype, sum) };
            self.overrides.insert(job.out, Override::Expr(sum));
            let mut index = tile.batch.clone();
            index.extend_from_slice(place);
            index.push(job.panels.column(&tile.panel, &tile.first.add(column)));
            self.store_outputs(&index)?;
        }
        Ok(())
    }
}

fn int(bits: u64) -> Expr {
    Expr::Const { dtype: DType::I32, bits }
}

/// Elements that lie side by side, as one word.
pub fn word(bytes: &[Expr]) -> Option<Expr> {
    let [Expr::Load { buf, index: first }, ..] = bytes else { return None };
    let follows = |(at, byte): (usize, &Expr)| match byte {
        Expr::Load { buf: own, index } => own == buf && *index == first.add(&Index::int(at as i64)),
        _ => false,
    };
    bytes.iter().enumerate().all(follows).then(|| Expr::Word { buf: *buf, index: first.clone() })
}

fn uneven(extent: &Dim, depth: usize) -> Error {
    Error::internal(Stage::Loops, format!("an inner axis of {extent} in steps of {depth}"))
}

/// How many of the innermost axes, around one of `extent`, make a sum of at most `limit` terms. An axis of unknown
/// extent counts as one term.
fn short_axes(axes: &[Axis], extent: &Dim, limit: i64) -> usize {
    let mut terms = extent.as_const().unwrap_or(1);
    let short = |axis: &&Axis| {
        terms = terms.saturating_mul(axis.extent.as_const().unwrap_or(1));
        terms <= limit
    };
    axes.iter().rev().take_while(short).count()
}
