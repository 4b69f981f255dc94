//! What each primitive is lowered to: an element of it as an expression, a loop nest of its own, or both. The lists have all primitives, so
//! that a new one does not compile until it is in them; those that are roots of larger groups, and those that the host program carries
//! out, are lowered elsewhere.

use crate::lower::codes::Codes;
use crate::lower::expr::{apply, pick};
use crate::lower::{Lowering, internal};
use crate::{Expr, Index};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Op, ValueId};

impl Lowering<'_> {
    /// An element of a value at `index`, as an expression.
    pub(super) fn compute(&mut self, value: ValueId, index: &[Index]) -> Result<Expr> {
        let Some(node) = self.graph.producer(value) else {
            return internal(format!("{value} is read but neither computed nor passed in"));
        };
        let node = &self.graph.nodes[node];
        let source = |at: usize| node.inputs[at];
        match &node.op {
            Op::Map(function) => {
                let mut arguments = Vec::with_capacity(node.inputs.len());
                for (operand, &input) in node.inputs.iter().enumerate() {
                    let at = self.index_into(node, operand, index, vec![])?;
                    arguments.push(self.expr_at(input, &at)?);
                }
                Ok(apply(*function, arguments))
            }
            Op::Dequantize { .. } => {
                let [lead @ .., step, column] = index else { return internal("a dequantized scalar") };
                match Codes::new(self.graph, node, lead, column) {
                    Some(codes) => self.dequantized(&codes, step),
                    None => internal(format!("{value} dequantizes nothing")),
                }
            }
            Op::Reshape { .. } => {
                let from = self.graph.ty(source(0)).shape.clone();
                let to = self.graph.ty(value).shape.clone();
                let at = self.reshape_index(&from, &to, index);
                self.expr_at(source(0), &at)
            }
            Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::Window { .. }
            | Op::ImplicitPad { .. } => {
                let at = self.index_into(node, 0, index, vec![])?;
                self.expr_at(source(0), &at)
            }
            Op::Pad { lo, hi } => {
                let at = self.index_into(node, 0, index, vec![])?;
                self.padded([source(0), source(1)], [lo, hi], &at)
            }
            Op::Iota { axis, .. } => Ok(Expr::Index(index[*axis].clone())),
            Op::DimValues { dims } => Ok(pick(dims, &index[0])),
            Op::Gather { axis } | Op::GatherElements { axis } => {
                let extent = self.graph.ty(source(0)).shape[*axis].clone();
                let place = self.index_into(node, 1, index, vec![])?;
                let pick = self.picked(source(1), &place, &extent)?;
                let at = self.index_into(node, 0, index, vec![pick])?;
                self.expr_at(source(0), &at)
            }
            Op::GatherNd { batch } => {
                let picks = self.graph.ty(source(1)).shape.clone();
                let Some(depth) = picks.last().and_then(Dim::as_const) else {
                    return internal("gather_nd with a symbolic index depth");
                };
                let lead = picks.len() - 1;
                let mut picked = Vec::with_capacity(depth as usize);
                for axis in 0..depth as usize {
                    let mut place = index[..lead].to_vec();
                    place.push(Index::int(axis as i64));
                    let pick = self.expr_at(source(1), &place)?;
                    let extent = self.graph.ty(source(0)).shape[batch + axis].clone();
                    picked.push(self.checked_index(pick, &extent));
                }
                let at = self.index_into(node, 0, index, picked)?;
                self.expr_at(source(0), &at)
            }
            Op::Concat { axis } => self.concatenated(&node.inputs, *axis, index),
            Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Contract { .. }
            | Op::Pack { .. }
            | Op::Append { .. }
            | Op::WinogradInput { .. }
            | Op::WinogradFilter { .. }
            | Op::WinogradOutput { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::Cumulate { .. }
            | Op::Sort { .. }
            | Op::Suppress { .. }
            | Op::Leaves(_)
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => internal(format!("{} cannot be an expression ({value})", node.op.name())),
        }
    }

    /// The kernel of a primitive that is alone in its group.
    pub(super) fn single(&mut self) -> Result<()> {
        let node = &self.graph.nodes[self.group.anchor];
        let (inputs, out) = (node.inputs.clone(), node.outputs[0]);
        match &node.op {
            Op::Concat { axis } => self.concat(&inputs, *axis, out)?,
            Op::WinogradInput { tile } => self.winograd_input(inputs[0], *tile, out)?,
            Op::WinogradFilter { tile } => self.winograd_filter(inputs[0], *tile, out)?,
            Op::Pad { lo, .. } => self.pad(inputs[0], inputs[1], lo, out)?,
            Op::Pack { batch, k, nr } => self.pack(inputs[0], *batch, *k, *nr, out)?,
            Op::ArgReduce { max, axis, last } => self.arg_reduce(inputs[0], *max, *axis, *last, out)?,
            Op::Sort { axis, descending, take } => {
                let results = [out, node.outputs[1]];
                self.sort(inputs[0], results, *axis, *descending, take)?;
            }
            Op::Append { axis, at, panel: None } => self.append(inputs[1], *axis, at, out)?,
            Op::Append { axis, at, panel: Some(panel) } => {
                self.append_to_panels(inputs[1], (*axis, at), *panel, out)?;
            }
            Op::Suppress { take } => self.suppress(&inputs, take, out)?,
            Op::Leaves(trees) => self.leaves(trees, &inputs, out)?,
            Op::Cumulate { op, axis, exclusive, reverse } => {
                self.cumulate(inputs[0], *op, *axis, *exclusive, *reverse, out)?;
            }
            Op::ScatterElements { axis, combine } => self.scatter_elements(&inputs, *axis, *combine, out)?,
            Op::ScatterNd { combine } => self.scatter_nd(&inputs, *combine, out)?,
            Op::Map(_)
            | Op::Reduce { .. }
            | Op::Contract { .. }
            | Op::Dequantize { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::ImplicitPad { .. }
            | Op::Window { .. }
            | Op::WinogradOutput { .. }
            | Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::Iota { .. }
            | Op::DimValues { .. }
            | Op::Scan { .. }
            | Op::If { .. }
            | Op::Call(_)
            | Op::External(_)
            | Op::Exchange(_) => return internal(format!("{} has no kernel of its own", node.op.name())),
        }
        self.finish();
        Ok(())
    }
}
