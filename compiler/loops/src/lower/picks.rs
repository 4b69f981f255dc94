//! What is known of the indices of a gather, so that not each of them is checked when it is used.

use crate::lower::Lowering;
use crate::lower::expr::INDEX_OUT_OF_RANGE;
use crate::{Expr, Index, Stmt};
use onnxc_ir::graph::{Dim, Graph, MapFn, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};

/// Where the elements of a tensor of indices lie.
#[derive(PartialEq, Debug)]
pub(super) enum Range {
    /// In `0..extent`.
    Inside,
    /// There too, unless that is empty: they were clamped.
    Clamped,
    Unknown,
}

impl Lowering<'_> {
    /// An element of the tensor `picks`, as an index along an axis of this extent.
    pub(super) fn picked(
        &mut self,
        picks: ValueId,
        at: &[Index],
        extent: &Dim,
    ) -> onnxc_ir::error::Result<Index> {
        let pick = self.expr_at(picks, at)?;
        match range(self.graph, picks, extent) {
            Range::Unknown => return Ok(self.checked_index(pick, extent)),
            Range::Clamped if extent.bounds().0.is_none_or(|least| least < 1) => {
                // Of all indices at once: the check does not depend on them.
                let (zero, extent) = (Expr::Index(Index::zero()), Expr::Index(Index::dim(extent.clone())));
                let condition = Expr::compare(CompareFn::Lt, zero, extent);
                self.push(Stmt::Check { condition, code: INDEX_OUT_OF_RANGE });
            }
            Range::Inside | Range::Clamped => {}
        }
        let dtype = self.kernel.dtype(&pick);
        let pick = if dtype == onnxc_ir::graph::DType::I64 {
            pick
        } else {
            Expr::cast(onnxc_ir::graph::DType::I64, pick)
        };
        Ok(self.as_index(pick))
    }
}

pub(super) fn range(graph: &Graph, mut picks: ValueId, extent: &Dim) -> Range {
    let inside = |constant: ValueId| {
        let values = graph.constant_data(constant).and_then(|data| data.to_i64s());
        let known = values.zip(extent.as_const());
        known.is_some_and(|(values, extent)| values.iter().all(|value| (0..extent).contains(value)))
    };
    if graph.constant_data(picks).is_some() {
        return if inside(picks) { Range::Inside } else { Range::Unknown };
    }
    while let Some((node, Op::Reshape { .. })) = produced(graph, picks) {
        picks = node[0];
    }
    if let Some((inputs, Op::Leaves(trees))) = produced(graph, picks)
        && let Some(operands) = trees.operands(inputs)
        && inside(operands.leaves)
        && operands.masks.is_none_or(|masks| inside(masks.order))
    {
        return Range::Inside;
    }
    let last = extent.clone() - Dim::ONE;
    let clamped = other_operand(graph, picks, BinaryFn::Min, &last)
        .and_then(|above| other_operand(graph, above, BinaryFn::Max, &Dim::ZERO));
    if clamped.is_some() { Range::Clamped } else { Range::Unknown }
}

fn produced(graph: &Graph, value: ValueId) -> Option<(&[ValueId], &Op)> {
    let node = &graph.nodes[graph.producer(value)?];
    Some((&node.inputs, &node.op))
}

/// `x`, where `value` is `function(x, bound)` of integers, in either order.
fn other_operand(graph: &Graph, value: ValueId, function: BinaryFn, bound: &Dim) -> Option<ValueId> {
    let (&[a, b], Op::Map(MapFn::Binary(own))) = produced(graph, value)? else { return None };
    let is_bound = |x: ValueId| graph.ty(x).dtype.is_int() && is_all(graph, x, bound);
    match (is_bound(a), is_bound(b)) {
        _ if *own != function => None,
        (_, true) => Some(a),
        (true, _) => Some(b),
        _ => None,
    }
}

/// Whether a value is known to have one element, of this size.
fn is_all(graph: &Graph, value: ValueId, size: &Dim) -> bool {
    if let Some(tensor) = graph.constant_data(value) {
        return tensor
            .to_i64s()
            .is_some_and(|values| matches!(values[..], [only] if Dim::from(only) == *size));
    }
    graph.values[value].known.as_ref().is_some_and(|known| matches!(&known[..], [only] if only == size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::build::Builder;
    use onnxc_ir::graph::{DType, Origin, OriginId, Tensor, TensorType};

    #[test]
    fn clamped_indices_are_inside() {
        let mut graph = Graph::default();
        graph.origins.push(Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let extent = Dim::sym(b.fresh_symbol());
        let x = b.input("x", TensorType::new(DType::I64, vec![Dim::from(5i64)]), None);
        let last = b.dim_scalar(&(extent.clone() - Dim::ONE)).unwrap();
        let above = b.binary_scalar(BinaryFn::Max, x, 0.0).unwrap();
        let inside = b.binary(BinaryFn::Min, last, above).unwrap();
        let column = b.reshape(inside, vec![Dim::from(5i64), Dim::ONE]).unwrap();
        let other = b.dim_scalar(&extent).unwrap();
        let beyond = b.binary(BinaryFn::Min, above, other).unwrap();
        let below = b.binary(BinaryFn::Min, x, last).unwrap();
        let known = b.constant(Tensor::from_slice(&[2], &[0i64, 6]));
        let negative = b.constant(Tensor::from_slice(&[2], &[-1i64, 6]));
        for (picks, extent, wanted) in [
            (inside, &extent, Range::Clamped),
            (column, &extent, Range::Clamped),
            (beyond, &extent, Range::Unknown),
            (below, &extent, Range::Unknown),
            (inside, &Dim::from(3i64), Range::Unknown),
            (known, &Dim::from(7i64), Range::Inside),
            (known, &Dim::from(6i64), Range::Unknown),
            (known, &extent, Range::Unknown),
            (negative, &Dim::from(7i64), Range::Unknown),
        ] {
            assert_eq!(range(&graph, picks, extent), wanted, "{picks} along {extent}");
        }
    }
}
