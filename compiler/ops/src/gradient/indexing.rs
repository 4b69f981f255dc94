//! Rules of what takes elements by index, and puts them there.

use super::{Rule, zeros};
use onnxc_ir::error::Result;
use onnxc_ir::graph::op::ScatterFn;
use onnxc_ir::graph::{DType, Dim, Op, ValueId, inverse};
use onnxc_ir::scalar::BinaryFn;

const ADD: ScatterFn = Some(BinaryFn::Add);

impl Rule<'_, '_> {
    fn indices(&mut self) -> Result<ValueId> {
        self.b.cast(self.operand(1), DType::I64)
    }

    /// Rows are added where they were taken from, with the axis in front.
    pub(super) fn gather(&mut self, axis: usize, g: ValueId) -> Result<ValueId> {
        let (data, indices) = (self.operand(0), self.indices()?);
        let (rank, count) = (self.b.rank(data), self.b.rank(indices));
        let perm: Vec<usize> =
            (axis..axis + count).chain(0..axis).chain(axis + count..self.b.rank(g)).collect();
        let updates = self.b.transpose(g, &perm)?;
        let indices = self.b.unsqueeze(indices, &[count])?;
        let perm: Vec<usize> = [axis].into_iter().chain(0..axis).chain(axis + 1..rank).collect();
        let shape = self.b.shape(data);
        let shape = perm.iter().map(|&axis| shape[axis].clone()).collect();
        let zeros = zeros(self.b, self.b.dtype(g), shape)?;
        let sums = self.b.emit1(Op::ScatterNd { combine: ADD }, &[zeros, indices, updates])?;
        self.b.transpose(sums, &inverse(&perm))
    }

    pub(super) fn gather_elements(&mut self, axis: usize, g: ValueId) -> Result<ValueId> {
        let indices = self.indices()?;
        self.added(axis, indices, g)
    }

    /// Zeros of the shape of the first operand, to which `updates` are added at `indices` along an axis.
    fn added(&mut self, axis: usize, indices: ValueId, updates: ValueId) -> Result<ValueId> {
        let zeros = zeros(self.b, self.b.dtype(updates), self.b.shape(self.operand(0)))?;
        self.b.emit1(Op::ScatterElements { axis, combine: ADD }, &[zeros, indices, updates])
    }

    /// Batch axes become the first indices.
    pub(super) fn gather_nd(&mut self, batch: usize, g: ValueId) -> Result<ValueId> {
        let own = self.indices()?;
        let last = self.b.rank(own) - 1;
        let mut shape = self.b.shape(own);
        shape[last] = Dim::ONE;
        let mut parts = Vec::new();
        for axis in 0..batch {
            parts.push(self.b.iota(shape.clone(), axis)?);
        }
        parts.push(own);
        let indices = self.b.concat(&parts, last)?;
        let zeros = zeros(self.b, self.b.dtype(g), self.b.shape(self.operand(0)))?;
        self.b.emit1(Op::ScatterNd { combine: ADD }, &[zeros, indices, g])
    }

    /// `op` puts updates into data, in place of elements or added to them, and `gather` takes what is there.
    pub(super) fn scatter(
        &mut self,
        gather: Op,
        op: &Op,
        combine: ScatterFn,
        g: ValueId,
    ) -> Result<Vec<Option<ValueId>>> {
        let indices = self.operand(1);
        let of_data = match combine {
            Some(BinaryFn::Add) => g,
            None => {
                let zeros = zeros(self.b, self.b.dtype(g), self.b.shape(self.operand(2)))?;
                self.b.emit1(op.clone(), &[g, indices, zeros])?
            }
            Some(_) => return self.unknown(),
        };
        let of_updates = match self.wanted[2] {
            true => Some(self.b.emit1(gather, &[g, indices])?),
            false => None,
        };
        Ok(vec![Some(of_data), None, of_updates])
    }

    pub(super) fn sort(&mut self, axis: usize, g: ValueId) -> Result<ValueId> {
        self.added(axis, self.node.outputs[1], g)
    }
}
