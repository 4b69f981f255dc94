//! Rules of reductions and contractions.

use super::Rule;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, RhsLayout, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn};

impl Rule<'_, '_> {
    pub(super) fn reduce(&mut self, op: ReduceFn, axes: &[usize], g: ValueId) -> Result<ValueId> {
        let x = self.operand(0);
        match op {
            ReduceFn::Sum => self.b.expand(g, self.b.shape(x)),
            ReduceFn::Max | ReduceFn::Min => {
                // Elements that are equally extreme have equal parts.
                let extreme = self.b.compare(CompareFn::Eq, x, self.node.outputs[0])?;
                let ones = self.b.cast(extreme, self.b.dtype(x))?;
                let count = self.b.reduce(ReduceFn::Sum, ones, axes)?;
                let part = self.b.binary(BinaryFn::Div, g, count)?;
                let zero = self.number(0.0, x);
                self.b.select(extreme, part, zero)
            }
            ReduceFn::Prod => self.reduce_product(axes, g),
            ReduceFn::And | ReduceFn::Or => self.unknown(),
        }
    }

    /// One axis at a time: by each element the product of those before and those behind it, which holds where some are 0.
    fn reduce_product(&mut self, axes: &[usize], g: ValueId) -> Result<ValueId> {
        let mut steps = vec![self.operand(0)];
        for &axis in axes {
            let of = steps[steps.len() - 1];
            steps.push(self.b.reduce(ReduceFn::Prod, of, &[axis])?);
        }
        let mut adjoint = g;
        for (&axis, &x) in axes.iter().zip(&steps).rev() {
            let mut others = |reverse: bool| {
                let op = Op::Cumulate { op: ReduceFn::Prod, axis, exclusive: true, reverse };
                self.b.emit1(op, &[x])
            };
            let (before, behind) = (others(false)?, others(true)?);
            let others = self.b.binary(BinaryFn::Mul, before, behind)?;
            adjoint = self.b.binary(BinaryFn::Mul, adjoint, others)?;
        }
        Ok(adjoint)
    }

    /// Of `y[b.., m.., n] = sum over k.. of l[b.., m.., k..] * r[b.., k.., n]`:
    /// `sum over n of g[b.., m.., n] * r[b.., k.., n]` and `sum over m.. of l[b.., m.., k..] * g[b.., m.., n]`.
    pub(super) fn contract(
        &mut self,
        (batch, m, k): (usize, usize, usize),
        g: ValueId,
    ) -> Result<Vec<Option<ValueId>>> {
        let (l, r) = (self.operand(0), self.operand(1));
        let mut adjoints = vec![None, None];
        if self.wanted[0] {
            // [b.., n, all of k..]
            let mut perm: Vec<usize> = (0..batch).collect();
            perm.push(batch + k);
            perm.extend(batch..batch + k);
            let columns = self.b.transpose(r, &perm)?;
            let mut shape = self.b.shape(columns);
            let inner = shape.split_off(batch + 1);
            shape.push(product(&inner));
            let columns = self.b.reshape(columns, shape)?;
            let op = Op::Contract { batch, m, k: 1, rhs: RhsLayout::Plain };
            let joined = self.b.emit1(op, &[g, columns])?;
            let mut shape = self.b.shape(joined);
            shape.truncate(batch + m);
            shape.extend(inner);
            let adjoint = self.b.reshape(joined, shape)?;
            let adjoint = self.summed(adjoint, l)?;
            adjoints[0] = Some(self.b.cast(adjoint, self.b.dtype(l))?);
        }
        if self.wanted[1] {
            // [b.., k.., m..]
            let perm: Vec<usize> =
                (0..batch).chain(batch + m..batch + m + k).chain(batch..batch + m).collect();
            let rows = self.b.transpose(l, &perm)?;
            let op = Op::Contract { batch, m: k, k: m, rhs: RhsLayout::Plain };
            let adjoint = self.b.emit1(op, &[rows, g])?;
            let adjoint = self.summed(adjoint, r)?;
            adjoints[1] = Some(self.b.cast(adjoint, self.b.dtype(r))?);
        }
        Ok(adjoints)
    }
}
