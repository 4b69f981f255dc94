//! Rules of what takes elements by index, and puts them there.

use super::{Rule, zeros};
use onnxc_ir::error::Result;
use onnxc_ir::graph::op::ScatterFn;
use onnxc_ir::graph::{DType, Dim, Op, ValueId, inverse};
use onnxc_ir::scalar::{BinaryFn, CompareFn};

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

    /// `op` puts updates into data, and `gather` takes what is there.
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
            Some(BinaryFn::Mul) => return self.scatter_product(&gather, op, g),
            Some(BinaryFn::Max | BinaryFn::Min) => {
                return self.scatter_extreme(&gather, op, g);
            }
            Some(_) => return self.unknown(),
        };
        let of_updates = match self.wanted[2] {
            true => Some(self.b.emit1(gather, &[g, indices])?),
            false => None,
        };
        Ok(vec![Some(of_data), None, of_updates])
    }

    /// By each factor of an element the product of the others, which holds where some are 0: the product of those that are not
    /// 0, unless one of the others is 0.
    fn scatter_product(&mut self, gather: &Op, op: &Op, g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let (data, indices, updates) = (self.operand(0), self.operand(1), self.operand(2));
        let (zero, one) = (self.number(0.0, g), self.number(1.0, g));
        let whole = self.b.expand(one, self.b.shape(data))?;
        let factors = self.b.emit1(op.clone(), &[whole, indices, updates])?;
        let of_data = self.b.binary(BinaryFn::Mul, g, factors)?;
        if !self.wanted[2] {
            return Ok(vec![Some(of_data), None, None]);
        }
        let is_zero = self.b.compare(CompareFn::Eq, updates, zero)?;
        let zeros = self.b.cast(is_zero, self.b.dtype(g))?;
        let others = self.b.select(is_zero, one, updates)?;
        let count = match op {
            Op::ScatterElements { axis, .. } => Op::ScatterElements { axis: *axis, combine: ADD },
            _ => Op::ScatterNd { combine: ADD },
        };
        let none = self.b.binary(BinaryFn::Mul, whole, zero)?;
        let counts = self.b.emit1(count, &[none, indices, zeros])?;
        let products = self.b.emit1(op.clone(), &[data, indices, others])?;
        let mut at = |value: ValueId| self.b.emit1(gather.clone(), &[value, indices]);
        let (g, count, product) = (at(g)?, at(counts)?, at(products)?);
        let rest = self.b.binary(BinaryFn::Div, product, others)?;
        // Of the other factors, how many are 0.
        let left = self.b.binary(BinaryFn::Sub, count, zeros)?;
        let is_whole = self.b.compare(CompareFn::Eq, left, zero)?;
        let slope = self.b.select(is_whole, rest, zero)?;
        let of_updates = self.b.binary(BinaryFn::Mul, g, slope)?;
        Ok(vec![Some(of_data), None, Some(of_updates)])
    }

    /// Equal parts to all that are the extreme of an element.
    fn scatter_extreme(&mut self, gather: &Op, op: &Op, g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let (data, indices, updates) = (self.operand(0), self.operand(1), self.operand(2));
        let (y, zero) = (self.node.outputs[0], self.number(0.0, g));
        let count = match op {
            Op::ScatterElements { axis, .. } => Op::ScatterElements { axis: *axis, combine: ADD },
            _ => Op::ScatterNd { combine: ADD },
        };
        let stays = self.b.compare(CompareFn::Eq, data, y)?;
        let there = self.b.emit1(gather.clone(), &[y, indices])?;
        let wins = self.b.compare(CompareFn::Eq, updates, there)?;
        let (one, more) = (self.b.cast(stays, self.b.dtype(g))?, self.b.cast(wins, self.b.dtype(g))?);
        let winners = self.b.emit1(count, &[one, indices, more])?;
        let part = self.b.binary(BinaryFn::Div, g, winners)?;
        let of_data = self.b.select(stays, part, zero)?;
        let part = self.b.emit1(gather.clone(), &[part, indices])?;
        let of_updates = self.b.select(wins, part, zero)?;
        Ok(vec![Some(of_data), None, Some(of_updates)])
    }

    pub(super) fn sort(&mut self, axis: usize, g: ValueId) -> Result<ValueId> {
        self.added(axis, self.node.outputs[1], g)
    }
}
