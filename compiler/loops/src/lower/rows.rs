//! Row groups: reductions over the trailing axes and the elementwise work between them, one row at a time with
//! the row hot in cache. Softmax and the normalisations are such groups.

use std::collections::HashSet;

use crate::lower::chain::Slot;
use crate::lower::{Lowering, Override, internal};
use crate::nest::Nest;
use crate::{Access, Buf, Buffer, Index, LoopKind};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, MapFn, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;
use onnxc_schedule::{KeptRow, keeps_columns};
use onnxc_tuning::reduce::{Partials, Terms};

impl Lowering<'_> {
    pub(super) fn rows(&mut self) -> Result<()> {
        let Op::Reduce { axes, .. } = &self.graph.nodes[self.group.anchor].op else {
            return internal("a row group without a reduction");
        };
        let axes = axes.clone();
        let shape = self.graph.ty(self.graph.nodes[self.group.anchor].inputs[0]).shape.clone();
        if keeps_columns(&shape, &axes) {
            return self.columns(axes[0]);
        }
        let mut lead = shape.clone();
        axes.iter().for_each(|&axis| lead[axis] = Dim::ONE);
        let row: Vec<Dim> = axes.iter().map(|&axis| shape[axis].clone()).collect();
        let kept = KeptRow::of(self.graph, self.group).filter(|_| self.group.has_scratch()).map(|kept| {
            let (dtype, len) = (self.graph.ty(kept.value).dtype, Dim::from(kept.rows * kept.elements));
            let buffer = Buffer { name: "scratch".into(), dtype, len, access: Access::ReadWrite };
            (self.kernel.buffers.push(buffer), kept)
        });
        let partials = self.row_partials(self.longest_sum(&row))?;
        let rows = &mut |cx: &mut Self, index: Vec<Index>| {
            if let Some((buf, kept)) = &kept {
                let slot = Slot::of_row(kept.value, index[kept.axis].clone(), kept.elements);
                cx.kept = Some((slot, *buf));
            }
            cx.row(&axes, &row, &index, partials)
        };
        match kept {
            // It has a place for each row of one axis: no others may run at the same time.
            Some(_) => self.for_shape(&lead, LoopKind::Parallel, rows)?,
            None => self.for_shared(&lead, rows)?,
        }
        self.finish();
        Ok(())
    }

    /// The terms of the longest sum of a rows group whose rows have this shape.
    pub(super) fn longest_sum(&self, row: &[Dim]) -> Terms {
        let nodes = self.group.nodes.iter().map(|&node| &self.graph.nodes[node]);
        nodes.fold(Terms::Exact, |terms, node| match node.op {
            Op::Reduce { op, .. } => terms.or(self.terms(op, node.inputs[0], row)),
            _ => terms,
        })
    }

    /// How reductions of these terms are split into partial sums.
    pub(super) fn row_partials(&mut self, terms: Terms) -> Result<Partials> {
        let mut pick = self.picker();
        let partials = Partials::choose(self.core, terms, &mut pick)?;
        self.tuned(pick)?;
        Ok(partials)
    }

    /// The row over `axes`, of sizes `row`, at an index that is 0 along them.
    pub(super) fn row(
        &mut self,
        axes: &[usize],
        row: &[Dim],
        index: &[Index],
        partials: Partials,
    ) -> Result<()> {
        let place = |inner: &[Index]| {
            let mut full = index.to_vec();
            axes.iter().zip(inner).for_each(|(&axis, i)| full[axis] = i.clone());
            full
        };
        self.row_reductions(row, partials, &place)?;
        self.row_outputs(row, &place, index)
    }

    /// Every reduction of the group in turn; each result is then known by name.
    fn row_reductions(
        &mut self,
        row: &[Dim],
        partials: Partials,
        place: &dyn Fn(&[Index]) -> Vec<Index>,
    ) -> Result<()> {
        for &node in &self.group.nodes {
            let Op::Reduce { op, .. } = &self.graph.nodes[node].op else { continue };
            let x = self.graph.nodes[node].inputs[0];
            self.outputs_before(x, row, place)?;
            let keep = self.row_cache(x, row);
            if let Some(slot) = self.slot.as_mut().filter(|_| keep.is_some()) {
                slot.values.push(x);
            }
            let result = self.reduction(*op, x, row, partials, keep, &mut |_, inner| place(inner))?;
            let result = self.bind("row", result);
            self.overrides.insert(self.node_output(node), Override::Expr(result));
            if let Some(buf) = keep {
                self.overrides.insert(x, Override::Buffer(buf));
            }
        }
        Ok(())
    }

    /// Stores the rows of outputs that a reduction of `x` reads through others: they are computed once then.
    fn outputs_before(
        &mut self,
        x: ValueId,
        row: &[Dim],
        place: &dyn Fn(&[Index]) -> Vec<Index>,
    ) -> Result<()> {
        // The rows of a chain have one place, which takes turns.
        if self.slot.is_some() {
            return Ok(());
        }
        let full = self.graph.ty(x).shape.clone();
        let outputs = self.group.outputs.clone();
        let fits = |output: &ValueId| *output != x && self.graph.ty(*output).shape == full;
        for output in outputs.into_iter().filter(fits) {
            let buf = self.buffers[&output];
            // What is kept in the output's place until now.
            let mut there = self.overrides.iter().filter_map(|(&value, known)| {
                matches!(known, Override::Buffer(other) if *other == buf).then_some(value)
            });
            if self.overrides.contains_key(&output)
                || !self.is_made_of(x, output)
                || there.any(|value| self.is_read_later(value, output))
            {
                continue;
            }
            self.store_rows_of(vec![output], row, place)?;
            self.reread(buf);
            self.overrides.insert(output, Override::Buffer(buf));
        }
        Ok(())
    }

    /// Whether the group computes `value` from `part`, element by element.
    fn is_made_of(&self, value: ValueId, part: ValueId) -> bool {
        let (mut pending, mut seen) = (vec![value], HashSet::new());
        while let Some(value) = pending.pop() {
            if value == part {
                return true;
            }
            let node = self.group_producer(value).filter(|node| matches!(node.op, Op::Map(_)));
            if let Some(node) = node.filter(|_| seen.insert(value)) {
                pending.extend(&node.inputs);
            }
        }
        false
    }

    /// Where to keep a row that is costly to compute and read again after its reduction: in its own place if it is an
    /// output, else in that of an output, which is overwritten last, element by element.
    fn row_cache(&self, x: ValueId, row: &[Dim]) -> Option<Buf> {
        let ty = self.graph.ty(x);
        let reused = self.uses.get(&x).is_some_and(|&uses| uses > 1) && !self.overrides.contains_key(&x);
        if !reused || self.inputs.contains(&x) || !self.is_costly(x) {
            return None;
        }
        let taken = |buf: Buf| {
            self.overrides.values().any(|known| matches!(known, Override::Buffer(other) if *other == buf))
        };
        let readers_are_elementwise = self.group.nodes.iter().all(|&node| {
            let node = &self.graph.nodes[node];
            !node.inputs.contains(&x) || matches!(node.op, Op::Map(_) | Op::Reduce { .. })
        });
        let full = ty.shape.len() >= row.len() && ty.shape[ty.shape.len() - row.len()..] == *row;
        let outputs = &self.group.outputs;
        let free = |output: &&ValueId| self.graph.ty(**output) == ty && !taken(self.buffers[*output]);
        let own = outputs.iter().find(|output| **output == x && free(output));
        let place = own.or_else(|| outputs.iter().find(free)).map(|output| self.buffers[output]);
        let kept = self.kept.as_ref().filter(|(slot, _)| slot.values.contains(&x)).map(|(_, buf)| *buf);
        // Where results are narrower, the row of the operand has no other use.
        let operand = self.slot.as_ref().filter(|_| self.narrow_slot.is_some()).map(|slot| slot.values[0]);
        let kept = kept.or(operand
            .filter(|&operand| self.graph.ty(operand) == ty)
            .map(|operand| self.buffers[&operand])
            .filter(|&buf| !taken(buf)));
        kept.or(place).filter(|_| readers_are_elementwise && full && self.may_keep(x))
    }

    /// Whether the elements of an output are in its buffer already.
    fn is_in_place(&self, output: ValueId) -> bool {
        matches!(self.overrides.get(&output), Some(Override::Buffer(buf)) if *buf == self.buffers[&output])
    }

    fn is_costly(&self, value: ValueId) -> bool {
        let Some(node) = self.graph.producer(value) else { return false };
        match self.graph.nodes[node].op {
            Op::Map(MapFn::Unary(_)) => true,
            Op::Map(MapFn::Binary(function)) => matches!(function, BinaryFn::Pow | BinaryFn::Div),
            _ => false,
        }
    }

    fn row_outputs(
        &mut self,
        row: &[Dim],
        place: &dyn Fn(&[Index]) -> Vec<Index>,
        index: &[Index],
    ) -> Result<()> {
        let (scalars, rows): (Vec<ValueId>, Vec<ValueId>) = self.group.outputs.iter().partition(|&&output| {
            let shape = &self.graph.ty(output).shape;
            shape.len() < row.len() || shape[shape.len() - row.len()..] != *row
        });
        self.store_all(scalars.into_iter().map(|output| (output, index.to_vec())).collect())?;
        // What was kept in its own place is there.
        let rows: Vec<ValueId> = rows.into_iter().filter(|output| !self.is_in_place(*output)).collect();
        match rows.is_empty() {
            true => Ok(()),
            false => self.store_rows_of(rows, row, place),
        }
    }

    /// A loop over the row that stores the elements of outputs.
    fn store_rows_of(
        &mut self,
        rows: Vec<ValueId>,
        row: &[Dim],
        place: &dyn Fn(&[Index]) -> Vec<Index>,
    ) -> Result<()> {
        let (mut nest, inner) = Nest::over(&mut self.kernel, row);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let full = place(&inner);
        nest.body =
            self.scope(|cx| cx.store_all(rows.into_iter().map(|output| (output, full.clone())).collect()))?;
        nest.split_divisions(&mut self.kernel, self.core, &mut self.extents);
        nest.fuse_all(0);
        let stmts = nest.vectorize(&mut self.kernel, self.core, self.group.settings.goal);
        stmts.into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    /// Marks an output buffer as read back by its own kernel.
    pub(super) fn reread(&mut self, buf: Buf) {
        self.kernel.buffers[buf].access = Access::ReadWrite;
    }
}
