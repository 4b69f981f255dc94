//! Statistics of the rows of an image that lies channels-last: several reductions along the axis before the last one. Each may read
//! the results of those before. A row of pixels is read from memory once and from the cache after that; channels are vectors.

use super::{Job, Known, channel_runs, identity, sum_at};
use crate::lower::{Lowering, Override};
use crate::{Expr, Index, LoopKind, Stmt, Var};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, NodeId, Op};
use onnxc_tuning::reduce::{Columns, Terms};

impl Lowering<'_> {
    /// A rows group whose reductions keep the last axis. All its results are of single rows.
    pub(in crate::lower) fn columns(&mut self, axis: usize) -> Result<()> {
        let x = self.graph.nodes[self.group.anchor].inputs[0];
        let shape = self.graph.ty(x).shape.clone();
        let last = shape.len() - 1;
        let lanes = self.core.lanes_of(self.graph.ty(x).dtype);
        let terms = self.longest_sum(&shape[axis..=axis]);
        let results = self.group.nodes.iter().filter(|&&node| self.gives_row(node, axis)).count();
        let mut pick = self.picker();
        let block = Columns::choose(self.core, results, terms, &mut pick)?;
        self.tuned(pick)?;
        let mut lead = shape.clone();
        (lead[axis], lead[last]) = (Dim::ONE, Dim::ONE);
        let parts = channel_runs(&shape[last], lanes, block.vectors);
        // Where the channels are all there is, threads share them.
        let kind = match parts.len() == 1 && lead.iter().all(|dim| *dim == Dim::ONE) {
            true => LoopKind::Parallel,
            false => LoopKind::Serial,
        };
        self.for_shared(&lead, &mut |cx, index| {
            for part in &parts {
                cx.for_each("c", &part.count, kind, |cx, chunk| {
                    let width = part.size.min(lanes);
                    let place = |channel: usize| {
                        let mut place = index.clone();
                        place[last] = place[last].add(&part.at(&chunk, channel));
                        place
                    };
                    let places = (0..part.size).step_by(width).map(place).collect();
                    cx.column_block(axis, places, width, block.sum_terms)
                })?;
            }
            Ok(())
        })?;
        self.finish();
        Ok(())
    }

    /// Whether a node gives an element for each row, of the type of all that a row gives. What is only evaluated where it is read, such
    /// as a size as a float, may have other shapes.
    fn gives_row(&self, node: NodeId, axis: usize) -> bool {
        let anchor = self.graph.ty(self.node_output(self.group.anchor));
        let computes = match &self.graph.nodes[node].op {
            Op::Reduce { axes, .. } => axes.as_slice() == [axis],
            op => matches!(op, Op::Map(_)),
        };
        computes && self.graph.ty(self.node_output(node)) == anchor
    }

    /// The results of a row at `places`, `width` channels each: every reduction in turn, and what is computed of its result.
    fn column_block(
        &mut self,
        axis: usize,
        mut places: Vec<Vec<Index>>,
        width: usize,
        sum_terms: Option<i64>,
    ) -> Result<()> {
        let lane = self.kernel.loop_var("v");
        self.extents.insert(lane, Dim::from(width));
        let lane_index = if width == 1 { Index::zero() } else { Index::var(lane) };
        for channel in places.iter_mut().filter_map(|place| place.last_mut()) {
            *channel = channel.add(&lane_index);
        }
        let mut known: Vec<Known> = vec![vec![]; places.len()];
        for &node in &self.group.nodes {
            let result = self.node_output(node);
            if !self.gives_row(node, axis) {
                continue;
            }
            let dtype = self.graph.ty(result).dtype;
            let mut local = self.kernel.local("row", dtype, &[places.len(), width], width);
            match &self.graph.nodes[node].op {
                Op::Reduce { op, axes } => {
                    let x = self.graph.nodes[node].inputs[0];
                    let reduced = vec![self.graph.ty(x).shape[axis].clone()];
                    let limit = sum_terms.filter(|_| self.terms(*op, x, &reduced) != Terms::Exact);
                    let (op, axes, written_out) = (*op, axes.clone(), 0);
                    let nothing = identity(op, dtype)?;
                    self.set_places(lane, width, places.len(), &mut |_, block| {
                        Ok(Stmt::Set { local, at: sum_at(block, lane, width), value: nothing.clone() })
                    })?;
                    let job =
                        Job { op, axes, x, anchor: result, dtype, reduced, written_out, sum_terms: limit };
                    local = self.reduce_elements(&job, &places, local, lane, width, &known)?;
                }
                _ => self.set_places(lane, width, places.len(), &mut |cx, block| {
                    cx.overrides.extend(known[block].clone());
                    let value = cx.expr_at(result, &places[block])?;
                    Ok(Stmt::Set { local, at: sum_at(block, lane, width), value })
                })?,
            }
            for (block, known) in known.iter_mut().enumerate() {
                let at = sum_at(block, lane, width);
                known.push((result, Override::Expr(Expr::Get { local, at })));
            }
        }
        let stmts = self.scope(|cx| {
            for (place, known) in places.iter().zip(known) {
                cx.overrides.extend(known);
                cx.store_all(cx.group.outputs.iter().map(|&output| (output, place.clone())).collect())?;
            }
            Ok(())
        })?;
        self.push_lanes(lane, width, stmts);
        let group = self.group;
        group.nodes.iter().for_each(|&node| {
            self.overrides.remove(&self.graph.nodes[node].outputs[0]);
        });
        Ok(())
    }

    /// A statement for each place.
    fn set_places(
        &mut self,
        lane: Var,
        width: usize,
        count: usize,
        stmt: &mut dyn FnMut(&mut Self, usize) -> Result<Stmt>,
    ) -> Result<()> {
        let stmts = self.scope(|cx| {
            for block in 0..count {
                let stmt = stmt(cx, block)?;
                cx.push(stmt);
            }
            Ok(())
        })?;
        self.push_lanes(lane, width, stmts);
        Ok(())
    }
}
