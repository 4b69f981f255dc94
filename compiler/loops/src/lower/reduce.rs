//! Reductions: a window or an axis combined into one element, then an elementwise epilogue.
//!
//! Where the last axis stays (channels-last pooling, depthwise convolution) it is the vector axis, and a few
//! neighbouring positions of the axis before it are computed together, so that weights and overlapping
//! windows are loaded once. Otherwise the reduced axes themselves are run in vectors.

mod columns;
mod parts;
mod quads;

use crate::lower::contract::walk::RangePart;
use crate::lower::runs::{self, Run};
use crate::lower::{Lowering, Override, internal};
use crate::nest::{Axis, Nest, hoist, split_vector, vector_lanes, widths, with_hoisted};
use crate::{Buf, Expr, Index, Local, LoopKind, Stmt, Var, visit};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::volume;
use onnxc_ir::graph::{DType, Dim, MapFn, Node, Op, Tensor, ValueId};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn};
use onnxc_tuning::SHARED_TURNS;
use onnxc_tuning::reduce::{ChannelBlock, Facts, Partials, SharedRows, Terms};
use parts::Registers;

/// The element that changes nothing: what the reference evaluator gives for no elements at all.
pub(super) fn identity(op: ReduceFn, dtype: DType) -> Result<Expr> {
    let nothing = Tensor::new(dtype, vec![0], Default::default());
    let result = interp::eval(&Op::Reduce { op, axes: vec![0] }, &[&nothing])?.remove(0);
    let mut bits = [0u8; 8];
    bits[..result.data.len()].copy_from_slice(&result.data);
    Ok(Expr::Const { dtype, bits: u64::from_le_bytes(bits) })
}

/// Lanes of a vector that are combined one by one: those of 128 bits, because some machines have no vectors of half of that.
const LAST_LANES: usize = 4;

/// The axes of the result of a reduction that keeps the last one.
struct KeptAxes {
    /// Of the last axis.
    channels: Dim,
    /// The axis whose neighbours are computed together: the kept axis before the last. Without one there is one column.
    column: Option<usize>,
    columns: Dim,
    /// The kept axis before that one.
    row: Option<usize>,
    /// The axes around these two, as the result has them: with 1 in place of the two.
    outer: Vec<Dim>,
}

impl KeptAxes {
    fn of(shape: &[Dim]) -> KeptAxes {
        let (mut outer, last) = (shape.to_vec(), shape.len() - 1);
        let channels = std::mem::replace(&mut outer[last], Dim::ONE);
        let before_last = |dims: &[Dim]| (0..last).rev().find(|&axis| dims[axis] != Dim::ONE);
        let column = before_last(&outer);
        let columns = column.map_or(Dim::ONE, |axis| std::mem::replace(&mut outer[axis], Dim::ONE));
        KeptAxes { channels, column, columns, row: before_last(&outer), outer }
    }

    /// Whether the columns and channels are all there is.
    fn is_alone(&self) -> bool {
        self.outer.iter().all(|dim| *dim == Dim::ONE)
    }

    /// Where the columns, or the channels, are all there is, threads share a loop over them if it is the only one.
    fn shared(&self, only: bool) -> LoopKind {
        if only && self.is_alone() { LoopKind::Parallel } else { LoopKind::Serial }
    }

    /// The channels in blocks that are finished for all rows before the next ones, where there are rows and that is chosen.
    fn blocks(&self, block: &ChannelBlock) -> Result<Option<ChannelBlocks>> {
        let Some(row) = self.row.filter(|_| block.channels > 0) else { return Ok(None) };
        let size = Dim::from(block.channels);
        let Some(count) = self.channels.exact_div(&size) else {
            return internal("channels in uneven blocks");
        };
        Ok(Some(ChannelBlocks { row, count, size, parts: Dim::from(block.parts) }))
    }
}

/// How the two innermost kept axes of a reduction are dealt out to blocks that stay in registers.
struct KeptBlocks {
    /// The kept axis before the last, whose neighbours are computed together.
    column: Option<usize>,
    columns: Vec<Run>,
    channels: Vec<Run>,
    lanes: usize,
    column_kind: LoopKind,
    channel_kind: LoopKind,
}

impl KeptBlocks {
    /// `together`: channels that are finished before the next ones.
    fn deal(kept: &KeptAxes, block: &ChannelBlock, together: &Dim, lanes: usize) -> KeptBlocks {
        let columns = runs::greedy(&kept.columns, &block.runs(kept.columns.as_const()));
        let channels = channel_runs(together, lanes, block.vectors);
        let column_kind = kept.shared(columns.len() == 1);
        let channel_kind =
            kept.shared(columns.iter().all(|run| run.count == Dim::ONE) && channels.len() == 1);
        KeptBlocks { column: kept.column, columns, channels, lanes, column_kind, channel_kind }
    }

    /// The first element of each vector of a block, channel by channel, and the elements of a vector. Each run comes with the number of
    /// the block in it.
    fn places(
        &self,
        index: &[Index],
        (run, piece): (&Run, &Index),
        (part, chunk): (&Run, &Index),
    ) -> (usize, Vec<Vec<Index>>) {
        let width = part.size.min(self.lanes);
        let place = |channel: usize, at: usize| {
            let mut place = index.to_vec();
            if let Some(axis) = self.column {
                place[axis] = run.at(piece, at);
            }
            if let Some(last) = place.last_mut() {
                *last = last.add(&part.at(chunk, channel));
            }
            place
        };
        let channels = (0..part.size).step_by(width);
        let places = channels.flat_map(|channel| (0..run.size).map(move |at| (channel, at)));
        (width, places.map(|(channel, at)| place(channel, at)).collect())
    }
}

impl Lowering<'_> {
    fn reduction_of(&self, value: ValueId) -> Result<(ReduceFn, Vec<usize>, ValueId)> {
        let node = self.graph.producer(value).map(|node| &self.graph.nodes[node]);
        match node.map(|node| (&node.op, node.inputs.as_slice())) {
            Some((Op::Reduce { op, axes }, [x])) => Ok((*op, axes.clone(), *x)),
            _ => internal(format!("{value} is not a reduction")),
        }
    }

    pub(super) fn reduce(&mut self) -> Result<()> {
        let anchor = self.node_output(self.group.anchor);
        let (op, axes, x) = self.reduction_of(anchor)?;
        let shape = self.graph.ty(x).shape.clone();
        let last = shape.len().checked_sub(1);
        match last {
            Some(last) if !axes.contains(&last) && shape[last] != Dim::ONE => {
                self.reduce_keeping_last(op, &axes, x, anchor)?;
            }
            _ => self.reduce_rows(op, &axes, x, anchor)?,
        }
        self.finish();
        Ok(())
    }

    /// One output element at a time; the reduced axes are the inner loops.
    fn reduce_rows(&mut self, op: ReduceFn, axes: &[usize], x: ValueId, anchor: ValueId) -> Result<()> {
        let shape = self.graph.ty(x).shape.clone();
        let kept = self.graph.ty(anchor).shape.clone();
        let reduced: Vec<Dim> = axes.iter().map(|&axis| shape[axis].clone()).collect();
        let axes = axes.to_vec();
        let partials = self.row_partials(self.terms(op, x, &reduced))?;
        self.for_shared(&kept, &mut |cx, index| {
            let result = cx.reduction(op, x, &reduced, partials, None, &mut |_, inner| {
                let mut full = index.clone();
                axes.iter().zip(inner).for_each(|(&axis, i)| full[axis] = i.clone());
                full
            })?;
            cx.overrides.insert(anchor, Override::Expr(result));
            cx.store_outputs(&index)
        })
    }

    /// Writes the group's outputs at an index of the anchor's, the anchor's value being known. An output may lack
    /// axes of size 1 that the anchor has, or have more of them; it may be the anchor's value inside a border.
    pub(super) fn store_outputs(&mut self, index: &[Index]) -> Result<()> {
        let anchor = self.graph.ty(self.node_output(self.group.anchor)).shape.clone();
        for output in self.group.outputs.clone() {
            let (value, shift) = match self.group_producer(output) {
                Some(Node { op: Op::Pad { lo, .. }, inputs, .. }) => (inputs[0], lo.clone()),
                _ => (output, vec![]),
            };
            let shape = self.graph.ty(value).shape.clone();
            let mut at = self.reshape_index(&shape, &anchor, index);
            let expr = self.expr_at(value, &at)?;
            at.iter_mut().zip(&shift).for_each(|(i, shift)| *i = i.add_dim(shift));
            self.store(output, &at, expr);
        }
        Ok(())
    }

    /// Emits the combination of `x` over `reduced` axes into the open scope; `place` turns an index of these axes
    /// into one of `x`. Runs in vectors, several side by side, where the accesses allow. The elements of `x` are also stored to `keep`,
    /// a buffer of `x`'s type, if one is given.
    pub(super) fn reduction(
        &mut self,
        op: ReduceFn,
        x: ValueId,
        reduced: &[Dim],
        partials: Partials,
        keep: Option<Buf>,
        place: &mut dyn FnMut(&mut Self, &[Index]) -> Vec<Index>,
    ) -> Result<Expr> {
        let dtype = self.graph.ty(x).dtype;
        let total = self.kernel.local("acc", dtype, &[1], 1);
        let zero = vec![Index::zero()];
        self.push(Stmt::Set { local: total, at: zero.clone(), value: identity(op, dtype)? });
        let (mut nest, inner) = Nest::over(&mut self.kernel, reduced);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        nest.body = self.scope(|cx| {
            let index = place(cx, &inner);
            let mut value = cx.expr_at(x, &index)?;
            if let Some(buf) = keep {
                value = cx.bind("kept", value);
                let index = cx.address(x, &index);
                cx.push(Stmt::Store { buf, index, value: value.clone() });
                cx.holds.insert(buf, x);
                cx.reread(buf);
            }
            let value = cx.addend(op, x, value);
            cx.push(Stmt::Accumulate { local: total, at: zero.clone(), op: op.combine(), value });
            Ok(())
        })?;
        nest.split_divisions(&mut self.kernel, self.core, &mut self.extents);
        nest.fuse_all(0);
        let Some(axis) = nest.axes.pop() else {
            nest.body.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(Expr::Get { local: total, at: zero });
        };
        let (outer, body) = hoist(&mut self.kernel, axis.var, std::mem::take(&mut nest.body));
        let lanes = vector_lanes(&self.kernel, self.core, axis.var, &body);
        let lanes = fitting(lanes, axis.extent.as_const());
        let width = lanes * partials.of(axis.extent.as_const().map(|extent| extent as usize / lanes));
        let wide = lanes > 1 && axis.extent.as_const().is_none_or(|extent| extent >= lanes as i64);
        let whole = Registers { local: total, dtype, shape: vec![1], lanes: 1 };
        // Others of the group may be no sums.
        let limit = partials.sum_terms.filter(|_| self.terms(op, x, reduced) != Terms::Exact);
        if !wide {
            let mut level = self.parts_of(&whole, &axis.extent, 1, limit, &mut |cx, from, steps| {
                vec![cx.serial_from(axis.var, from, steps, &body)]
            })?;
            level.stmts = with_hoisted(&axis.extent, outer, level.stmts);
            let sums = self.level_loops(level, nest.axes, limit, &whole)?;
            return Ok(Expr::Get { local: sums.local, at: zero });
        }
        let partial = Registers {
            local: self.kernel.local("partial", dtype, &[width], lanes),
            dtype,
            shape: vec![width],
            lanes,
        };
        let clear = self.set_registers(&partial, &identity(op, dtype)?);
        clear.into_iter().for_each(|stmt| self.push(stmt));
        let rests = self.rest_registers(op, dtype, axis.extent.as_const(), lanes)?;
        let mut level = self.parts_of(&partial, &axis.extent, width, limit, &mut |cx, from, steps| {
            let Some(known) = steps.as_const().filter(|_| !rests.is_empty()) else {
                let mut loops = cx.vectors_from(axis.var, from, steps, [width, lanes], &body);
                retarget(&mut loops, total, partial.local);
                return loops;
            };
            let mut done = 0;
            let mut loops = vec![];
            for (registers, [width, lanes]) in std::iter::once((&partial, [width, lanes]))
                .chain(rests.iter().map(|own| (own, [own.lanes; 2])))
            {
                let steps = (known - done) / lanes as i64 * lanes as i64;
                if steps > 0 {
                    let from = from.add(&Index::int(done));
                    let mut own = cx.vectors_from(axis.var, &from, &Dim::from(steps), [width, lanes], &body);
                    retarget(&mut own, total, registers.local);
                    loops.extend(own);
                }
                done += steps;
            }
            if done < known {
                let (from, left) = (from.add(&Index::int(done)), Dim::from(known - done));
                loops.push(cx.serial_from(axis.var, &from, &left, &body));
            }
            loops
        })?;
        level.stmts = with_hoisted(&axis.extent, outer, level.stmts);
        let sums = self.level_loops(level, nest.axes, limit, &partial)?;
        self.combine_partials(op, sums.local, total, width, &rests);
        Ok(Expr::Get { local: total, at: zero })
    }

    /// Registers of fewer lanes for what the whole vectors of an axis leave: element by element, fifteen would take as long as a
    /// hundred in vectors.
    fn rest_registers(
        &mut self,
        op: ReduceFn,
        dtype: DType,
        extent: Option<i64>,
        lanes: usize,
    ) -> Result<Vec<Registers>> {
        let mut left = extent.map_or(0, |extent| extent as usize % lanes);
        let mut found = vec![];
        let narrower = if lanes == 2 * LAST_LANES { vec![LAST_LANES] } else { widths(lanes).split_off(1) };
        for lanes in narrower.into_iter().filter(|&lanes| lanes >= LAST_LANES) {
            if left < lanes {
                continue;
            }
            left -= lanes;
            let local = self.kernel.local("rest", dtype, &[lanes], lanes);
            let registers = Registers { local, dtype, shape: vec![lanes], lanes };
            let clear = self.set_registers(&registers, &identity(op, dtype)?);
            clear.into_iter().for_each(|stmt| self.push(stmt));
            found.push(registers);
        }
        Ok(found)
    }

    /// An element of `x` as it is combined. Sums take a product in with one rounding, where both belong to one node of the model, as
    /// those of a convolution do; the product of another node is rounded as that says.
    fn addend(&mut self, op: ReduceFn, x: ValueId, value: Expr) -> Expr {
        let is_product = matches!(value, Expr::Binary { op: BinaryFn::Mul, .. });
        if op != ReduceFn::Sum
            || !is_product
            || !self.kernel.dtype(&value).is_float()
            || self.is_own_product(x)
        {
            return value;
        }
        self.bind("product", value)
    }

    /// Whether what computes the elements of `x` belongs to the node of the model that reduces them.
    fn is_own_product(&self, x: ValueId) -> bool {
        let nodes = self.group.nodes.iter().map(|&node| &self.graph.nodes[node]);
        let mut sums = nodes.filter(|node| matches!(node.op, Op::Reduce { .. }) && node.inputs[0] == x);
        let Some(sum) = sums.next() else { return true };
        let mut product = self.group_producer(x);
        while let Some(view) = product.filter(|node| node.op.is_view()) {
            product = self.group_producer(view.inputs[0]);
        }
        product.is_some_and(|product| product.origin == sum.origin)
    }

    /// A loop over the elements of an axis from one of them on, in vectors of `width` elements, then of `lanes`.
    fn vectors_from(
        &mut self,
        var: Var,
        from: &Index,
        extent: &Dim,
        [width, lanes]: [usize; 2],
        body: &[Stmt],
    ) -> Vec<Stmt> {
        if *from == Index::zero() {
            return split_vector(&mut self.kernel, var, extent, width, lanes, body);
        }
        let own = self.kernel.loop_var("x");
        let mut body = body.to_vec();
        visit::substitute(&mut body, var, &from.add(&Index::var(own)));
        split_vector(&mut self.kernel, own, extent, width, lanes, &body)
    }

    /// The same, one element at a time.
    fn serial_from(&mut self, var: Var, from: &Index, extent: &Dim, body: &[Stmt]) -> Stmt {
        if *from == Index::zero() {
            return parts::over(Axis { var, extent: extent.clone(), kind: LoopKind::Serial }, body.to_vec());
        }
        self.turns(body, var, from, extent, LoopKind::Serial)
    }

    /// The terms of a reduction of `x` over axes of these sizes.
    pub(super) fn terms(&self, op: ReduceFn, x: ValueId, reduced: &[Dim]) -> Terms {
        if op != ReduceFn::Sum || !self.graph.ty(x).dtype.is_float() {
            return Terms::Exact;
        }
        volume(reduced).map_or(Terms::Unknown, Terms::Floats)
    }

    /// Adds the vectors of `partial` to its first one, halves of that one's lanes to each other, and to the registers of `rests`, then
    /// the last lanes to `total`: a tree, so that rounding stays small and the order is the same on every target of one width.
    fn combine_partials(
        &mut self,
        op: ReduceFn,
        partial: Local,
        total: Local,
        width: usize,
        rests: &[Registers],
    ) {
        let lanes = self.kernel.locals[partial].lanes;
        let mut half = width / lanes;
        while half > 1 {
            half /= 2;
            for vector in 0..half {
                let var = self.kernel.loop_var("v");
                let at = |vector: usize| vec![Index::var(var).add(&Index::int((vector * lanes) as i64))];
                let value = Expr::Get { local: partial, at: at(vector + half) };
                let body = vec![Stmt::Accumulate { local: partial, at: at(vector), op: op.combine(), value }];
                let (lo, hi) = (Index::zero(), Index::int(lanes as i64));
                self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body });
            }
        }
        let dtype = self.kernel.locals[partial].dtype;
        let (mut whole, mut lanes) = (partial, lanes);
        while lanes > LAST_LANES {
            lanes /= 2;
            let half = self.kernel.local("half", dtype, &[lanes], lanes);
            let var = self.kernel.loop_var("v");
            let at = |first: usize| vec![Index::var(var).add(&Index::int(first as i64))];
            let [lower, upper] = [0, lanes].map(|first| Expr::Get { local: whole, at: at(first) });
            let body =
                vec![Stmt::Set { local: half, at: at(0), value: Expr::binary(op.combine(), lower, upper) }];
            let (lo, hi) = (Index::zero(), Index::int(lanes as i64));
            self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body });
            if let Some(rest) = rests.iter().find(|rest| rest.lanes == lanes) {
                let var = self.kernel.loop_var("v");
                let at = vec![Index::var(var)];
                let value = Expr::Get { local: rest.local, at: at.clone() };
                let body = vec![Stmt::Accumulate { local: half, at, op: op.combine(), value }];
                let (lo, hi) = (Index::zero(), Index::int(lanes as i64));
                self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body });
            }
            whole = half;
        }
        for lane in 0..lanes {
            let value = Expr::Get { local: whole, at: vec![Index::int(lane as i64)] };
            self.push(Stmt::Accumulate { local: total, at: vec![Index::zero()], op: op.combine(), value });
        }
    }

    fn reduce_keeping_last(
        &mut self,
        op: ReduceFn,
        axes: &[usize],
        x: ValueId,
        anchor: ValueId,
    ) -> Result<()> {
        let shape = self.graph.ty(x).shape.clone();
        let dtype = self.graph.ty(x).dtype;
        let reduced: Vec<Dim> = axes.iter().map(|&axis| shape[axis].clone()).collect();
        let kept = KeptAxes::of(&self.graph.ty(anchor).shape);
        let block = self.channel_block(op, x, &reduced, &kept)?;
        let ChannelBlock { written_out, sum_terms, .. } = block;
        let job = Job { op, axes: axes.to_vec(), x, anchor, dtype, reduced, written_out, sum_terms };
        let blocks = kept.blocks(&block)?;
        let together = blocks.as_ref().map_or(&kept.channels, |blocks| &blocks.size);
        let dealt = KeptBlocks::deal(&kept, &block, together, self.core.lanes_of(dtype));
        let adds_quads = self.adds_quads(&job, &kept.channels)?;
        let fill = &mut |cx: &mut Self, index: Vec<Index>| match adds_quads {
            true => {
                let (columns, channels) = (&dealt.columns, &dealt.channels);
                cx.reduce_quads(&job, &index, dealt.column, columns, channels, kept.shared(true))
            }
            false => cx.reduce_kept(&job, &dealt, &index),
        };
        match blocks {
            Some(blocks) => self.for_channel_blocks(&kept.outer, &blocks, fill),
            None => self.for_shared(&kept.outer, fill),
        }
    }

    /// The block of results that is in registers at a time.
    fn channel_block(
        &mut self,
        op: ReduceFn,
        x: ValueId,
        reduced: &[Dim],
        kept: &KeptAxes,
    ) -> Result<ChannelBlock> {
        let window = self.window_of(x);
        let facts = Facts {
            core: self.core,
            lanes: self.core.lanes_of(self.graph.ty(x).dtype),
            reduced: reduced.iter().map(Dim::as_const).collect(),
            terms: self.terms(op, x, reduced),
            windows: window.is_some(),
            positions: kept.columns.as_const(),
            halves: self.multiplies_halves(op, x),
            alone: kept.is_alone(),
            shared: window.and_then(|window| self.shared_rows(window)),
            rows: kept.row.map(|row| kept.outer[row].clone()),
            channels: kept.channels.as_const(),
        };
        let mut pick = self.picker();
        let block = ChannelBlock::choose(&facts, &mut pick)?;
        self.tuned(pick)?;
        Ok(block)
    }

    /// The results at an index of the outer axes: each block of columns and channels in registers.
    fn reduce_kept(&mut self, job: &Job, kept: &KeptBlocks, index: &[Index]) -> Result<()> {
        for run in &kept.columns {
            self.for_each("x", &run.count, kept.column_kind, |cx, piece| {
                for part in &kept.channels {
                    cx.for_each("c", &part.count, kept.channel_kind, |cx, chunk| {
                        let (width, places) = kept.places(index, (run, &piece), (part, &chunk));
                        cx.reduce_block(job, places, width)
                    })?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// All rows of a block of channels before the next block; where images are not known to be many, of a part of the rows, which
    /// threads share. `fill` gets an index of `outer` and, at its end, the first channel.
    fn for_channel_blocks(
        &mut self,
        outer: &[Dim],
        blocks: &ChannelBlocks,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        let ChannelBlocks { row, count, size, parts } = blocks;
        let (lead, rows) = outer.split_at(*row);
        let many = volume(lead).is_some_and(|images| images >= SHARED_TURNS);
        let parts = if many { Dim::ONE } else { parts.clone() };
        self.for_shared(&[lead, &[parts.clone() * count.clone()]].concat(), &mut |cx, index| {
            let (turn, lead) = index.split_last().expect("the axis of the parts");
            let [number, block] = cx.split_pair(turn, [&parts, count]);
            let channel = block.scale(size);
            let part = RangePart { number, count: parts.clone() };
            cx.for_part(rows, &part, &mut |cx, at| {
                let mut index: Vec<Index> = lead.iter().cloned().chain(at).collect();
                if let Some(last) = index.last_mut() {
                    *last = channel.clone();
                }
                fill(cx, index)
            })
        })
    }

    /// The node that reads the windows which a value is one of, or an elementwise result of.
    fn window_of(&self, x: ValueId) -> Option<&Node> {
        let node = self.group_producer(x)?;
        match node.op {
            Op::Window { .. } => Some(node),
            Op::Map(_) => node.inputs.iter().find_map(|&input| self.window_of(input)),
            _ => None,
        }
    }

    /// The rows that one row of windows reads and the next one, too.
    fn shared_rows(&self, window: &Node) -> Option<SharedRows> {
        let Op::Window { first, kernel, strides, .. } = &window.op else { return None };
        let (&[rows, _], &[step, _]) = (&kernel[..], &strides[..]) else { return None };
        let ty = self.graph.ty(window.inputs[0]);
        let (size, columns) = (ty.dtype.size(), ty.shape.get(first + 1)?.as_const());
        let bytes = columns.map(|columns| rows.saturating_mul(columns as usize * size));
        (rows > step).then_some(SharedRows { size, bytes })
    }

    /// Whether a reduction adds up products of integers of at most 16 bits, which kernels have instructions for.
    fn multiplies_halves(&self, op: ReduceFn, x: ValueId) -> bool {
        let small = |value: &ValueId| match self.group_producer(*value) {
            Some(Node { op: Op::Map(MapFn::Cast { .. }), inputs, .. }) => {
                matches!(self.graph.ty(inputs[0]).dtype, DType::I8 | DType::U8 | DType::I16)
            }
            _ => false,
        };
        let is_i32 = self.graph.ty(x).dtype == DType::I32;
        let has = self.core.has_half_products() && op == ReduceFn::Sum && is_i32;
        let product = self.group_producer(x).filter(|_| has);
        product.is_some_and(|node| {
            node.op == Op::Map(MapFn::Binary(BinaryFn::Mul)) && node.inputs.iter().all(small)
        })
    }

    /// The outputs from each of `places`, `width` channels each, side by side in registers.
    fn reduce_block(&mut self, job: &Job, mut places: Vec<Vec<Index>>, width: usize) -> Result<()> {
        let lane = self.kernel.loop_var("v");
        self.extents.insert(lane, Dim::from(width));
        let lane_index = if width == 1 { Index::zero() } else { Index::var(lane) };
        for channel in places.iter_mut().filter_map(|place| place.last_mut()) {
            *channel = channel.add(&lane_index);
        }
        self.for_results(job, job.dtype, &places, lane, width, &mut |cx, acc| {
            cx.reduce_elements(job, &places, acc, lane, width, &[])
        })
    }

    /// Registers of a type for the results at `places`, in which channels have `lane`; `add` combines the elements in them, or in
    /// others that it gives, then they are stored.
    fn for_results(
        &mut self,
        job: &Job,
        sum: DType,
        places: &[Vec<Index>],
        lane: Var,
        width: usize,
        add: &mut dyn FnMut(&mut Self, Local) -> Result<Local>,
    ) -> Result<()> {
        let acc = self.kernel.local("acc", sum, &[places.len(), width], width);
        let at = |block: usize| sum_at(block, lane, width);
        let lanes = self.scope(|cx| {
            for block in 0..places.len() {
                cx.push(Stmt::Set { local: acc, at: at(block), value: identity(job.op, sum)? });
            }
            Ok(())
        })?;
        self.push_lanes(lane, width, lanes);
        let acc = add(self, acc)?;
        let stmts = self.scope(|cx| {
            for (block, place) in places.iter().enumerate() {
                let value = Expr::Get { local: acc, at: at(block) };
                let value = if sum == job.dtype { value } else { Expr::cast(job.dtype, value) };
                cx.overrides.insert(job.anchor, Override::Expr(value));
                cx.memo.last_mut().expect("a scope is open").clear();
                cx.store_outputs(place)?;
            }
            Ok(())
        })?;
        self.push_lanes(lane, width, stmts);
        Ok(())
    }

    /// The elements one by one, each in all places; of each place `known` has values that registers hold.
    fn reduce_elements(
        &mut self,
        job: &Job,
        places: &[Vec<Index>],
        acc: Local,
        lane: Var,
        width: usize,
        known: &[Known],
    ) -> Result<Local> {
        let combine = |cx: &mut Self, inner: &[Index]| -> Result<()> {
            for (block, place) in places.iter().enumerate() {
                if let Some(known) = known.get(block) {
                    cx.overrides.extend(known.clone());
                }
                let value = cx.expr_at(job.x, &job.element(place, inner))?;
                let value = cx.addend(job.op, job.x, value);
                let at = sum_at(block, lane, width);
                cx.push(Stmt::Accumulate { local: acc, at, op: job.op.combine(), value });
            }
            Ok(())
        };
        let (outer, inner) = job.reduced.split_at(job.reduced.len() - job.written_out);
        let sizes: Vec<usize> = inner.iter().map(|dim| dim.as_const().unwrap_or(1) as usize).collect();
        let (nest, head) = Nest::over(&mut self.kernel, outer);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let before = std::mem::replace(&mut self.share_loads, job.written_out > 0);
        let stmts = self.scope(|cx| {
            let stmts = cx.scope(|cx| {
                onnxc_ir::infer::indices(&sizes).try_for_each(|rest| {
                    let rest = rest.into_iter().map(|i| Index::int(i as i64));
                    combine(cx, &head.iter().cloned().chain(rest).collect::<Vec<_>>())
                })
            })?;
            cx.push_lanes(lane, width, stmts);
            Ok(())
        });
        self.share_loads = before;
        let registers =
            Registers { local: acc, dtype: job.dtype, shape: vec![places.len(), width], lanes: width };
        self.add_elements(&registers, nest.axes, stmts?, job)
    }

    /// Loops around statements that add elements, a term or a few of each result, up in registers. Gives those of the sums.
    fn add_elements(
        &mut self,
        acc: &Registers,
        mut axes: Vec<Axis>,
        body: Vec<Stmt>,
        job: &Job,
    ) -> Result<Local> {
        let written_out = job.reduced[job.reduced.len() - job.written_out..].iter();
        let terms = written_out.fold(Dim::ONE, |terms, extent| terms * extent.clone()).as_const();
        let limit = job.sum_terms.zip(terms).map(|(limit, terms)| (limit / terms.max(1)).max(1));
        let Some(Axis { var, extent, .. }) = axes.pop() else {
            body.into_iter().for_each(|stmt| self.push(stmt));
            return Ok(acc.local);
        };
        let level = self.parts_of(acc, &extent, 1, limit, &mut |cx, from, steps| {
            vec![cx.serial_from(var, from, steps, &body)]
        })?;
        Ok(self.level_loops(level, axes, limit, acc)?.local)
    }

    /// Statements as one vector loop over the lanes of a register, which `lane` stands for in them.
    pub(super) fn push_lanes(&mut self, lane: Var, width: usize, mut body: Vec<Stmt>) {
        if width == 1 {
            body.into_iter().for_each(|stmt| self.push(stmt));
            return;
        }
        // Several loops may be over the same lanes, each with a variable of its own.
        let var = self.kernel.loop_var("v");
        self.extents.insert(var, Dim::from(width));
        visit::substitute(&mut body, lane, &Index::var(var));
        let (lo, hi) = (Index::zero(), Index::int(width as i64));
        self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Vector, body });
    }
}

/// `count` blocks of `size` channels; rows along axis `row` are split into `parts`, each finished before the next.
struct ChannelBlocks {
    row: usize,
    count: Dim,
    size: Dim,
    parts: Dim,
}

/// Values of a place that registers hold.
type Known = Vec<(ValueId, Override)>;

/// What one block of a channels-last reduction needs to know.
struct Job {
    op: ReduceFn,
    axes: Vec<usize>,
    x: ValueId,
    anchor: ValueId,
    dtype: DType,
    reduced: Vec<Dim>,
    /// Innermost reduced axes whose elements are written out.
    written_out: usize,
    /// Terms of a partial sum of floats, at most, where sums are cut.
    sum_terms: Option<i64>,
}

impl Job {
    /// The index of an element that the result at `place` has, by its indices along the reduced axes.
    fn element(&self, place: &[Index], inner: &[Index]) -> Vec<Index> {
        let mut full = place.to_vec();
        self.axes.iter().zip(inner).for_each(|(&axis, i)| full[axis] = i.clone());
        full
    }
}

/// Where the result of a place is in the registers.
fn sum_at(block: usize, lane: Var, width: usize) -> Vec<Index> {
    vec![Index::int(block as i64), if width == 1 { Index::zero() } else { Index::var(lane) }]
}

/// Channels that are computed together: groups of `vectors` vectors, single vectors of the rest, narrower ones, single channels.
fn channel_runs(extent: &Dim, lanes: usize, vectors: usize) -> Vec<Run> {
    let mut sizes = vec![vectors * lanes];
    sizes.extend(widths(lanes));
    sizes.push(1);
    sizes.dedup();
    runs::greedy(extent, &sizes)
}

/// Lanes that leave few single elements behind whole vectors of a loop: up to a quarter of those that the values have.
fn fitting(lanes: usize, extent: Option<i64>) -> usize {
    let Some(extent) = extent else { return lanes };
    let steps = |lanes: &usize| extent / *lanes as i64 + extent % *lanes as i64;
    widths(lanes).into_iter().min_by_key(steps).unwrap_or(lanes)
}

/// Inside vector loops, accumulation into the scalar `total` becomes accumulation into the lanes of `partial`.
fn retarget(body: &mut [Stmt], total: Local, partial: Local) {
    for stmt in body {
        let Stmt::For { var, kind, body, .. } = stmt else { continue };
        if *kind != LoopKind::Vector {
            retarget(body, total, partial);
            continue;
        }
        for stmt in body {
            if let Stmt::Accumulate { local, at, .. } = stmt
                && *local == total
            {
                (*local, *at) = (partial, vec![Index::var(*var)]);
            }
        }
    }
}
