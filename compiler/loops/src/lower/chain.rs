//! Chains: contraction, rows and contraction in blocks of rows.
//!
//! The blocks are dealt out to a fixed number of parts, which threads share. A part has a slot of the scratch. For each of
//! its blocks it computes the scores there, turns each row of them into weights in place, and multiplies these. Tiles,
//! sums and rows are those of three kernels of their own, and so is every bit of the result, unless the processor's tiles have
//! sums of their own and some rows are too few for them.
//!
//! Weights of bf16 have slots of their own. Zeros behind their rows are stored once: every row of a chain has the same length.

use super::contract::RowBlock;
use super::contract::walk::RangePart;
use crate::lower::{Lowering, Override, internal, uses};
use crate::{Access, Buffer, Expr, Index, LoopKind, Stmt, Term};
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Op, ValueId};
use onnxc_schedule::{Blocks, Group, Slots, is_split};
use onnxc_tuning::chain::ChainBlocks;
use onnxc_tuning::reduce::{Partials, Terms};

/// The place of the rows of a block: values that share the rows, with one of them alive at a time.
pub(super) struct Slot {
    pub values: Vec<ValueId>,
    /// First element.
    base: Index,
    /// The block's first row, or the number in the block of the row that all is about.
    row: RowIndex,
    /// Elements from a row to the next.
    pub stride: Dim,
}

#[derive(Clone)]
enum RowIndex {
    From(Index),
    At(Index),
}

impl Slot {
    /// The row at `row`, of rows of `elements` each.
    pub(super) fn of_row(value: ValueId, row: Index, elements: i64) -> Slot {
        let stride = Dim::from(elements);
        Slot { values: vec![value], base: Index::zero(), row: RowIndex::At(row), stride }
    }

    /// Address of an element, given its index in one of the values.
    pub(super) fn address(&self, index: &[Index]) -> Index {
        let [.., row, column] = index else { return self.base.clone() };
        let row = match &self.row {
            RowIndex::From(first) => row.add(&first.scale(&Dim::from(-1i64))),
            RowIndex::At(row) => row.clone(),
        };
        self.base.add(&row.scale(&self.stride)).add(column)
    }
}

/// The stages of a chain, and how it deals out its rows.
struct Stages<'a> {
    stages: [&'a Group; 3],
    /// What the stages hand on: scores, written and read, and weights, written and read.
    scores: ValueId,
    read: ValueId,
    weights: ValueId,
    lhs: ValueId,
    blocks: Blocks,
}

/// A block of rows of one element of the batch, and the part that computes it.
struct BlockPlace {
    batch: Vec<Index>,
    block: RowBlock,
    part: Index,
}

impl<'a> Lowering<'a> {
    pub(super) fn chain(&mut self) -> Result<()> {
        let chain = self.chain_parts()?;
        let blocks = &chain.blocks;
        let whole = blocks.rows.clone();
        let runs = [
            (Dim::ZERO, blocks.whole.clone(), whole.clone()),
            (blocks.whole.clone() * whole, Dim::ONE, blocks.rest.clone()),
        ];
        self.for_each("part", &blocks.parts, LoopKind::Parallel, |cx, part| {
            cx.zeros_behind(&chain, &part)?;
            for (first, count, rows) in &runs {
                if *count != Dim::ZERO && *rows != Dim::ZERO {
                    cx.chain_run(&chain, &part, first, count, rows)?;
                }
            }
            Ok(())
        })?;
        self.finish();
        Ok(())
    }

    fn chain_parts(&mut self) -> Result<Stages<'a>> {
        let (graph, group) = (self.graph, self.group);
        let [first, rows, last] = group.stages.as_slice() else { return internal("a chain without stages") };
        let handed = |stage: &Group| stage.inputs.iter().find(|input| !group.inputs.contains(input)).copied();
        let (&[scores], &[weights]) = (first.outputs.as_slice(), rows.outputs.as_slice()) else {
            return internal("a chain that hands on several values");
        };
        let (Some(read), Some(lhs)) = (handed(rows), handed(last)) else {
            return internal("a chain whose stages do not follow each other");
        };
        let of = |chain: ChainBlocks| Blocks::of(graph.ty(scores), graph.ty(lhs), chain);
        let split = is_split(graph.ty(scores), graph.ty(lhs));
        let Some(scheduled) = of(ChainBlocks::chosen(split)).and_then(|blocks| blocks.parts.as_const())
        else {
            return internal("a chain without rows");
        };
        let mut pick = self.picker();
        let tuning = ChainBlocks::choose(split, scheduled, &mut pick)?;
        self.tuned(pick)?;
        let Some(blocks) = of(tuning) else { return internal("a chain without rows") };
        let mut buffer = |name: &str, value: ValueId, slots: &Slots| {
            let (dtype, len) = (graph.ty(value).dtype, blocks.elements(slots));
            self.kernel.buffers.push(Buffer { name: name.into(), dtype, len, access: Access::ReadWrite })
        };
        let wide = buffer("scratch", scores, &blocks.scores);
        let narrow = blocks.weights.as_ref().map_or(wide, |slots| buffer("weights", lhs, slots));
        for (value, buf) in [(scores, wide), (read, wide), (weights, narrow), (lhs, narrow)] {
            self.buffers.insert(value, buf);
        }
        Ok(Stages { stages: [first, rows, last], scores, read, weights, lhs, blocks })
    }

    /// A part of the blocks of one size: for each element of the batch, `count` blocks of `rows` rows from row `first`.
    fn chain_run(
        &mut self,
        chain: &Stages<'a>,
        part: &Index,
        first: &Dim,
        count: &Dim,
        rows: &Dim,
    ) -> Result<()> {
        let shape = &self.graph.ty(chain.scores).shape;
        let mut axes = shape[..shape.len() - 2].to_vec();
        axes.push(count.clone());
        let (all, own) = (product(&axes), part);
        let part = RangePart { number: part.clone(), count: chain.blocks.parts.clone() };
        self.for_part(std::slice::from_ref(&all), &part, &mut |cx, turn| {
            let mut batch: Vec<Index> = cx
                .split_rows(&turn[0], &axes)
                .into_iter()
                .zip(&axes)
                .map(|(at, size)| cx.axis(at, size))
                .collect();
            let mut block = batch.pop().unwrap_or_else(Index::zero);
            if all == Dim::ONE {
                // One part's: the others have no iteration, which shows where all that it stores depends on the loop.
                block = turn[0].clone();
            }
            let first = block.scale(rows).add_dim(first);
            let block = RowBlock { first, rows: rows.clone() };
            cx.chain_block(chain, &BlockPlace { batch, block, part: own.clone() })
        })
    }

    /// Zeros behind the weights of each row of a part's slot, where they are padded.
    fn zeros_behind(&mut self, chain: &Stages<'a>, part: &Index) -> Result<()> {
        let last = |value: ValueId| self.graph.ty(value).shape.last().cloned().unwrap_or(Dim::ZERO);
        let (from, to) = (last(chain.weights), last(chain.lhs));
        let (Some(slots), true) = (&chain.blocks.weights, from != to) else { return Ok(()) };
        let (buf, dtype) = (self.buffers[&chain.lhs], self.graph.ty(chain.lhs).dtype);
        let (base, stride) = (part.scale(&slots.slot), slots.stride.clone());
        self.for_shape(&[chain.blocks.room.clone(), to - from.clone()], LoopKind::Serial, &mut |cx, at| {
            let index = base.add(&at[0].scale(&stride)).add(&at[1].add_dim(&from));
            cx.push(Stmt::Store { buf, index, value: Expr::constant(dtype, 0.0) });
            Ok(())
        })
    }

    /// An index along an axis, named where it takes a division.
    fn axis(&mut self, at: Index, size: &Dim) -> Index {
        let named = self.named(at);
        if let [(Term::Var(var), by)] = named.terms.as_slice()
            && *by == Dim::ONE
            && named.constant == Dim::ZERO
        {
            self.extents.entry(*var).or_insert_with(|| size.clone());
        }
        named
    }

    fn chain_block(&mut self, chain: &Stages<'a>, place: &BlockPlace) -> Result<()> {
        let from = || RowIndex::From(place.block.first.clone());
        self.stage(chain, 0, place, from(), vec![chain.scores]);
        self.contract_block(&place.batch, place.block.clone())?;
        self.for_each("row", &place.block.rows, LoopKind::Serial, |cx, row| {
            cx.stage(chain, 1, place, RowIndex::At(row.clone()), vec![chain.read, chain.weights]);
            // Of rows of scores, as long as a context, each of the partial results has few.
            let partials = cx.row_partials(Terms::Exact)?;
            cx.chain_row(chain, place, &row, partials)
        })?;
        self.stage(chain, 2, place, from(), vec![chain.lhs]);
        self.contract_block(&place.batch, place.block.clone())
    }

    /// Goes on with stage number `number` of a chain; `values` are those it has in the scratch. Narrow weights have a slot of their own.
    fn stage(
        &mut self,
        chain: &Stages<'a>,
        number: usize,
        place: &BlockPlace,
        row: RowIndex,
        values: Vec<ValueId>,
    ) {
        let group = chain.stages[number];
        self.group = group;
        self.stage = Some(number);
        self.inputs = group.inputs.iter().copied().collect();
        self.uses = uses(self.graph, group);
        self.overrides.clear();
        self.holds.insert(self.buffers[&values[0]], values[0]);
        let slot = |slots: &Slots, values: Vec<ValueId>| {
            let (base, stride) = (place.part.scale(&slots.slot), slots.stride.clone());
            Slot { values, base, row: row.clone(), stride }
        };
        let is_narrow = |value: &ValueId| [chain.weights, chain.lhs].contains(value);
        let (scores, weights) = (&chain.blocks.scores, &chain.blocks.weights);
        (self.slot, self.narrow_slot) = match weights {
            None => (Some(slot(scores, values)), None),
            Some(own) => {
                let (narrow, wide): (Vec<_>, Vec<_>) = values.into_iter().partition(is_narrow);
                let some =
                    |slots: &Slots, values: Vec<ValueId>| (!values.is_empty()).then(|| slot(slots, values));
                (some(scores, wide), some(own, narrow))
            }
        };
    }

    /// Row number `row` of the block.
    fn chain_row(
        &mut self,
        chain: &Stages<'a>,
        place: &BlockPlace,
        row: &Index,
        partials: Partials,
    ) -> Result<()> {
        let node = &self.graph.nodes[self.group.anchor];
        let Op::Reduce { axes, .. } = &node.op else { return internal("a row group without a reduction") };
        let (shape, scores) = (&self.graph.ty(node.inputs[0]).shape, &self.graph.ty(chain.scores).shape);
        let (Some((length, lead)), Some((_, rows))) = (shape.split_last(), scores.split_last()) else {
            return internal("rows of a scalar");
        };
        let mut at = place.batch.clone();
        at.push(place.block.first.add(row));
        let at = self.reshape_index(lead, rows, &at);
        let mut index: Vec<Index> = at.into_iter().zip(lead).map(|(at, size)| self.axis(at, size)).collect();
        index.push(Index::zero());
        self.row(axes, std::slice::from_ref(length), &index, partials)
    }

    /// Whether a row of `x` may be kept where the result's row will be. In a chain the operand's row is there too, which
    /// must not be needed any more then.
    pub(super) fn may_keep(&self, x: ValueId) -> bool {
        let operand = self.slot.as_ref().and_then(|slot| slot.values.first());
        operand.is_none_or(|&operand| !self.is_read_later(operand, x))
    }

    /// Whether what the group still has to compute, its outputs and the operands of reductions, reads `value` other than
    /// through `kept`, which is to be computed next and kept.
    pub(super) fn is_read_later(&self, value: ValueId, kept: ValueId) -> bool {
        let later = self.group.nodes.iter().filter_map(|&node| {
            let data = &self.graph.nodes[node];
            let reduces = matches!(data.op, Op::Reduce { .. });
            (reduces && !self.overrides.contains_key(&data.outputs[0])).then(|| data.inputs[0])
        });
        let mut pending: Vec<ValueId> = later.chain(self.group.outputs.iter().copied()).collect();
        let mut seen = std::collections::HashSet::new();
        while let Some(read) = pending.pop() {
            if read == value {
                return true;
            }
            if read == kept
                || matches!(self.overrides.get(&read), Some(Override::Expr(_)))
                || !seen.insert(read)
            {
                continue;
            }
            if let Some(node) = self.group_producer(read) {
                pending.extend(&node.inputs);
            }
        }
        false
    }
}
