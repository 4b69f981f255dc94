//! Elements that are selected from a dequantized constant: their codes are selected, and dequantized then.
//!
//! An embedding of 8 bits is `Gather(table * scale, ids)`. Dequantized first, the table is stored as f32, four times the bytes of its
//! codes; `Gather(table, ids) * Gather(scale, ids)` has the same elements, each computed by the same operations, and the codes stay in the
//! object as they are. The scale and the zero point may be of the whole tensor, of an axis or of blocks, the dequantization that of
//! DequantizeLinear or written out as Cast, Sub and Mul.

use crate::Options;
use crate::rewrite::{bodies, is_one, operation, rewrite, with_rank};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, MapFn, NodeId, Op, ValueId};

/// Elements of a table that are fewer are dequantized by the compiler: less work in every run.
const FEW: i64 = 1 << 12;

/// Operations between the codes and the table, one reading the other.
const MAX_STEPS: usize = 16;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    rewrite(graph, selected)?;
    bodies(graph, options, run)
}

fn selected(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    if !matches!(node.op, Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. }) {
        return Ok(None);
    }
    let (op, table, indices) = (node.op.clone(), node.inputs[0], node.inputs[1]);
    let few = b.ty(table).elements().as_const().is_none_or(|elements| elements <= FEW);
    if few || !has_codes(b.graph, table, table, MAX_STEPS) {
        return Ok(None);
    }
    Selection { op, indices }.of(b, table).map(Some)
}

/// What selects elements of a tensor.
struct Selection {
    op: Op,
    indices: ValueId,
}

impl Selection {
    /// The selected elements of a value: computed from those of its operands, down to the codes.
    fn of(&self, b: &mut Builder, value: ValueId) -> Result<ValueId> {
        let has_codes = has_codes(b.graph, value, value, MAX_STEPS);
        let (function, operands) = match operation(b.graph, value) {
            Some((Op::Map(function), operands)) if has_codes => (*function, operands.to_vec()),
            _ => return b.emit1(self.op.clone(), &[value, self.indices]),
        };
        let shape = b.shape(value);
        let mut selected = Vec::with_capacity(operands.len());
        for operand in operands {
            selected.push(match self.op {
                _ if b.ty(operand).elements() == Dim::ONE => b.reshape(operand, vec![])?,
                Op::Gather { axis } => self.along(b, operand, axis, shape.len())?,
                _ => {
                    let whole = b.expand(operand, shape.clone())?;
                    self.of(b, whole)?
                }
            });
        }
        b.emit1(Op::Map(function), &selected)
    }

    /// The elements of an operand of a value with `rank` axes which are picked along one of them; it may have one for all.
    fn along(&self, b: &mut Builder, operand: ValueId, axis: usize, rank: usize) -> Result<ValueId> {
        let operand = with_rank(b, operand, rank)?;
        let mut shape = b.shape(operand);
        if !is_one(&shape[axis]) {
            return self.of(b, operand);
        }
        let places = b.rank(self.indices);
        shape.splice(axis..axis + 1, std::iter::repeat_n(Dim::ONE, places));
        b.reshape(operand, shape)
    }
}

/// Whether `value`, of the shape of `table`, is made element by element of a constant of integers of 8 bits or fewer, which takes fewer
/// bytes than the table.
fn has_codes(graph: &Graph, value: ValueId, table: ValueId, steps: usize) -> bool {
    let (own, whole) = (graph.ty(value), graph.ty(table));
    if own.shape != whole.shape || steps == 0 {
        return false;
    }
    let constant = graph.is_constant(value);
    if constant && own.dtype.is_int() && own.dtype.size() == 1 {
        return whole.dtype.size() > 1;
    }
    match operation(graph, value) {
        Some((Op::Map(MapFn::Cast { .. } | MapFn::Bitcast { .. } | MapFn::Binary(_)), operands)) => {
            let fixed = constant || operands.iter().all(|&operand| is_fixed(graph, operand, steps - 1));
            fixed && operands.iter().any(|&operand| has_codes(graph, operand, table, steps - 1))
        }
        _ => false,
    }
}

/// Whether a value is computed from constants alone, by few operations.
fn is_fixed(graph: &Graph, value: ValueId, steps: usize) -> bool {
    graph.is_constant(value)
        || steps > 0
            && operation(graph, value).is_some_and(|(op, operands)| {
                !op.is_control() && operands.iter().all(|&operand| is_fixed(graph, operand, steps - 1))
            })
}

#[cfg(test)]
mod tests;
