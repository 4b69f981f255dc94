//! Rules of what moves elements along axes.

use super::{Rule, zeros};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;

impl Rule<'_, '_> {
    /// A tensor with zeros around: along `axis` element `i` is put at `at + i * stride` of `size` places.
    fn placed(&mut self, x: ValueId, axis: usize, at: Dim, stride: usize, size: &Dim) -> Result<ValueId> {
        let shape = self.b.shape(x);
        let zero = self.number(0.0, x);
        let along = |amount: Dim, rank: usize, axis: usize| {
            let mut amounts = vec![Dim::ZERO; rank];
            amounts[axis] = amount;
            amounts
        };
        let rank = shape.len();
        if stride == 1 {
            let behind = size.clone() - at.clone() - shape[axis].clone();
            return self.b.pad(x, zero, along(at, rank, axis), along(behind, rank, axis));
        }
        // `stride - 1` zeros behind each, then enough of them; those beyond `size` are cut off.
        let spread = self.b.unsqueeze(x, &[axis + 1])?;
        let gap = Dim::from(stride - 1);
        let spread = self.b.pad(spread, zero, vec![Dim::ZERO; rank + 1], along(gap, rank + 1, axis + 1))?;
        let mut joined = shape.clone();
        joined[axis] = joined[axis].clone() * Dim::from(stride);
        let joined = self.b.reshape(spread, joined)?;
        let padded = self.b.pad(joined, zero, along(at, rank, axis), along(size.clone(), rank, axis))?;
        self.b.slice_axis(padded, axis, Dim::ZERO, size.clone())
    }

    pub(super) fn slice(&mut self, starts: &[Dim], steps: &[i64], g: ValueId) -> Result<ValueId> {
        let shape = self.b.shape(self.operand(0));
        if self.b.shape(g).contains(&Dim::ZERO) {
            return zeros(self.b, self.b.dtype(g), shape);
        }
        let mut adjoint = g;
        for (axis, size) in shape.iter().enumerate() {
            let count = self.b.shape(adjoint)[axis].clone();
            let (mut start, step) = (starts[axis].clone(), steps[axis]);
            if step < 0 {
                adjoint = self.reversed(adjoint, axis)?;
                start = start + (count - Dim::ONE) * Dim::from(step);
            }
            let whole = start == Dim::ZERO && self.b.shape(adjoint)[axis] == *size;
            if !whole {
                adjoint = self.placed(adjoint, axis, start, step.unsigned_abs() as usize, size)?;
            }
        }
        Ok(adjoint)
    }

    fn reversed(&mut self, x: ValueId, axis: usize) -> Result<ValueId> {
        let sizes = self.b.shape(x);
        let (mut starts, mut steps) = (vec![Dim::ZERO; sizes.len()], vec![1; sizes.len()]);
        (starts[axis], steps[axis]) = (sizes[axis].clone() - Dim::ONE, -1);
        self.b.emit1(Op::Slice { starts, steps, sizes }, &[x])
    }

    pub(super) fn pad(&mut self, lo: &[Dim], g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let (x, fill) = (self.operand(0), self.operand(1));
        let sizes = self.b.shape(x);
        let slice = Op::Slice { starts: lo.to_vec(), steps: vec![1; lo.len()], sizes };
        let inside = self.b.emit1(slice, &[g])?;
        let mut around = None;
        if self.wanted[1] {
            let (all, inside) = (self.summed(g, fill)?, self.summed(inside, fill)?);
            around = Some(self.b.binary(BinaryFn::Sub, all, inside)?);
        }
        Ok(vec![Some(inside), around])
    }

    pub(super) fn concat(&mut self, axis: usize, g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let mut start = Dim::ZERO;
        let mut adjoints = Vec::new();
        for (at, &operand) in self.node.inputs.iter().enumerate() {
            let size = self.b.shape(operand)[axis].clone();
            let part = match self.wanted[at] {
                true => Some(self.b.slice_axis(g, axis, start.clone(), size.clone())?),
                false => None,
            };
            adjoints.push(part);
            start = start + size;
        }
        Ok(adjoints)
    }

    /// Each element is in several windows: the sum of their adjoints, one axis at a time, so that the number of terms is the sum of the
    /// kernel's extents, not their product.
    pub(super) fn window(
        &mut self,
        first: usize,
        kernel: &[usize],
        strides: &[usize],
        dilations: &[usize],
        g: ValueId,
    ) -> Result<ValueId> {
        let shape = self.b.shape(self.operand(0));
        let mut adjoint = g;
        for at in (0..kernel.len()).rev() {
            // Window axes of the kernel's axes before this one lie in front of its own.
            let (axis, inner) = (first + at, first + kernel.len() + at);
            let mut sum = None;
            for place in 0..kernel[at] {
                let term = self.b.slice_axis(adjoint, inner, Dim::from(place), Dim::ONE)?;
                let term = self.b.squeeze(term, &[inner])?;
                let offset = Dim::from(place * dilations[at]);
                let term = self.placed(term, axis, offset, strides[at], &shape[axis])?;
                sum = Some(match sum {
                    Some(sum) => self.b.binary(BinaryFn::Add, sum, term)?,
                    None => term,
                });
            }
            adjoint = sum.unwrap_or(adjoint);
        }
        Ok(adjoint)
    }
}
