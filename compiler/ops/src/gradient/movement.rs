//! Rules of what moves elements along axes.

use std::ops::Range;

use super::{Rule, zeros};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, MapFn, Node, Op, RhsLayout, ValueId, inverse};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

/// Channels from which on the adjoint of a convolution's images is a convolution: fewer would leave most of a vector unused.
const LEAST_CHANNELS: i64 = 8;

/// Nodes between an adjoint and the windows that it is computed of, at most: a reshape, a sum, a product.
const NARROWED: usize = 4;

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
        let mut inside = g;
        for (axis, size) in self.b.shape(x).into_iter().enumerate() {
            inside = match self.narrowed(inside, (axis, NARROWED), &lo[axis], &size)? {
                Some(inside) => inside,
                None => self.b.slice_axis(inside, axis, lo[axis].clone(), size)?,
            };
        }
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
        if let Some(adjoint) = self.convolved(first, kernel, (strides, dilations), g)? {
            return Ok(adjoint);
        }
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

    /// The node that computes a value, behind reshapes that change nothing.
    fn computed_by(&self, mut value: ValueId) -> Option<Node> {
        loop {
            let node = &self.b.graph.nodes[self.b.graph.producer(value)?];
            match node.op {
                Op::Reshape { .. } if self.b.ty(node.inputs[0]).shape == self.b.ty(value).shape => {
                    value = node.inputs[0];
                }
                _ => return Some(node.clone()),
            }
        }
    }

    /// The adjoint of what windows are taken of, where that of the windows is made of a value for each place and one for each element of a
    /// kernel, as behind a convolution: a convolution with the kernel reversed, which never has the windows in memory.
    fn convolved(
        &mut self,
        first: usize,
        kernel: &[usize],
        (strides, dilations): (&[usize], &[usize]),
        g: ValueId,
    ) -> Result<Option<ValueId>> {
        let (count, shape) = (kernel.len(), self.b.shape(g));
        let (places, inner) = (first..first + count, first + count..first + 2 * count);
        let Some(node) = self.computed_by(g).filter(|_| kernel.iter().any(|&size| size > 1)) else {
            return Ok(None);
        };
        match &node.op {
            Op::Map(MapFn::Binary(BinaryFn::Mul)) => {
                let ones = |rule: &Self, value: ValueId, axes: &Range<usize>| {
                    let (own, lead) = (rule.b.shape(value), shape.len() - rule.b.rank(value));
                    axes.clone().all(|axis| axis < lead || own[axis - lead] == Dim::ONE)
                };
                let [a, b] = [self.before_expand(node.inputs[0]), self.before_expand(node.inputs[1])];
                let (of_places, of_kernel) = match (ones(self, a, &inner), ones(self, b, &inner)) {
                    (true, _) if ones(self, b, &places) => (a, b),
                    (_, true) if ones(self, a, &places) => (b, a),
                    _ => return Ok(None),
                };
                let mut spread = shape.clone();
                inner.clone().for_each(|axis| spread[axis] = Dim::ONE);
                let of_places = self.b.expand(of_places, spread.clone())?;
                spread.drain(inner.clone());
                let of_places = self.b.reshape(of_places, spread)?;
                let windows = self.windows_of_places(first, kernel, (strides, dilations), of_places)?;
                let mut own = vec![Dim::ONE; shape.len() - self.b.rank(of_kernel)];
                own.extend(self.b.shape(of_kernel));
                let mut of_kernel = self.b.reshape(of_kernel, own)?;
                for axis in inner.clone() {
                    of_kernel = self.reversed(of_kernel, axis)?;
                }
                let products = self.b.binary(BinaryFn::Mul, windows, of_kernel)?;
                let sum = self.b.reduce(ReduceFn::Sum, products, &inner.collect::<Vec<_>>())?;
                self.b.reshape(sum, self.b.shape(self.operand(0))).map(Some)
            }
            Op::Reshape { .. } => {
                let Some(product) = self.computed_by(node.inputs[0]) else { return Ok(None) };
                let Op::Contract { batch: 0, m, k: 1, rhs: RhsLayout::Plain } = product.op else {
                    return Ok(None);
                };
                let has_enough = |dim: &Dim| dim.as_const().is_none_or(|size| size >= LEAST_CHANNELS);
                let is_plain = m == places.end && shape.len() == inner.end + 1 && product.inputs.len() == 2;
                if !is_plain
                    || strides.iter().any(|&stride| stride > 1)
                    || !shape.last().is_some_and(has_enough)
                {
                    return Ok(None);
                }
                let (of_places, columns) = (product.inputs[0], product.inputs[1]);
                if self.b.shape(of_places)[..m] != shape[..m] {
                    return Ok(None);
                }
                let windows = self.windows_of_places(first, kernel, (strides, dilations), of_places)?;
                // [outputs, kernel.., channels] to [kernel.., outputs, channels].
                let mut own = vec![self.b.shape(columns)[0].clone()];
                own.extend(shape[inner.start..].iter().cloned());
                let mut weights = self.b.reshape(columns, own)?;
                for axis in 1..=count {
                    weights = self.reversed(weights, axis)?;
                }
                let perm: Vec<usize> = (1..=count).chain([0, count + 1]).collect();
                let weights = self.b.transpose(weights, &perm)?;
                let op = Op::Contract { batch: 0, m, k: count + 1, rhs: RhsLayout::Plain };
                self.b.emit1(op, &[windows, weights]).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn before_expand(&self, value: ValueId) -> ValueId {
        match self.computed_by(value) {
            Some(node) if matches!(node.op, Op::Expand { .. }) => node.inputs[0],
            _ => value,
        }
    }

    /// For each element of the operand of windows the places of the windows that hold it: element `j` of a window is the place whose
    /// kernel has the operand's element at its `j`th element from the end, or 0.
    fn windows_of_places(
        &mut self,
        first: usize,
        kernel: &[usize],
        (strides, dilations): (&[usize], &[usize]),
        mut places: ValueId,
    ) -> Result<ValueId> {
        let shape = self.b.shape(self.operand(0));
        for (at, &size) in kernel.iter().enumerate() {
            let reach = Dim::from((size - 1) * dilations[at]);
            let whole = shape[first + at].clone() + reach.clone();
            places = self.placed(places, first + at, reach, strides[at], &whole)?;
        }
        let (kernel, strides, dilations) = (kernel.to_vec(), vec![1; kernel.len()], dilations.to_vec());
        self.b.emit1(Op::Window { first, kernel, strides, dilations }, &[places])
    }

    /// The transpose of an adjoint. Of a product that has two axes it is a product as well, of the operands exchanged: weights
    /// that products read transposed.
    pub(super) fn transpose(&mut self, perm: &[usize], g: ValueId) -> Result<ValueId> {
        if perm == [1, 0]
            && let Some(product) = self.computed_by(g)
            && let Op::Contract { batch: 0, m: 1, k, rhs: RhsLayout::Plain } = product.op
            && let [l, r] = product.inputs[..]
        {
            let l = self.b.transpose(l, &(1..=k).chain([0]).collect::<Vec<_>>())?;
            let r = self.b.transpose(r, &[k].into_iter().chain(0..k).collect::<Vec<_>>())?;
            return self.b.emit1(Op::Contract { batch: 0, m: 1, k, rhs: RhsLayout::Plain }, &[r, l]);
        }
        self.b.transpose(g, &inverse(perm))
    }

    /// `size` elements from `start` on along an axis of what is computed of windows: windows of fewer places.
    fn narrowed(
        &mut self,
        value: ValueId,
        (axis, depth): (usize, usize),
        start: &Dim,
        size: &Dim,
    ) -> Result<Option<ValueId>> {
        let Some(node) = self.computed_by(value).filter(|_| depth > 0 && self.b.shape(value)[axis] != *size)
        else {
            return Ok(None);
        };
        let (mut operands, mut found) = (node.inputs.to_vec(), false);
        match &node.op {
            Op::Window { first, kernel, strides, dilations } => {
                let Some(at) = axis.checked_sub(*first).filter(|&at| at < kernel.len() && strides[at] == 1)
                else {
                    return Ok(None);
                };
                let size = size.clone() + Dim::from((kernel[at] - 1) * dilations[at]);
                operands[0] = self.b.slice_axis(operands[0], axis, start.clone(), size)?;
                found = true;
            }
            Op::Contract { batch: 0, m, .. } if axis < *m && operands.len() == 2 => {
                found = self.narrow(&mut operands[0], (axis, depth - 1), start, size)?;
            }
            Op::Reduce { axes, .. } if !axes.contains(&axis) => {
                found = self.narrow(&mut operands[0], (axis, depth - 1), start, size)?;
            }
            // What is before the axis, and the axis, are as they were.
            Op::Reshape { shape } if self.b.shape(operands[0]).get(..=axis) == Some(&shape[..=axis]) => {
                found = self.narrow(&mut operands[0], (axis, depth - 1), start, size)?;
                if found {
                    let mut shape = shape.clone();
                    shape[axis] = size.clone();
                    return self.b.reshape(operands[0], shape).map(Some);
                }
            }
            Op::Map(_) => {
                for operand in &mut operands {
                    let lead = self.b.rank(value) - self.b.rank(*operand);
                    let Some(own) = axis.checked_sub(lead) else { continue };
                    if self.b.shape(*operand)[own] == Dim::ONE {
                        continue;
                    }
                    match self.narrow(operand, (own, depth - 1), start, size)? {
                        true => found = true,
                        false => *operand = self.b.slice_axis(*operand, own, start.clone(), size.clone())?,
                    }
                }
            }
            _ => {}
        }
        if found { self.b.emit1(node.op.clone(), &operands).map(Some) } else { Ok(None) }
    }

    /// Puts fewer places in place of a value, where that is possible.
    fn narrow(
        &mut self,
        value: &mut ValueId,
        (axis, depth): (usize, usize),
        start: &Dim,
        size: &Dim,
    ) -> Result<bool> {
        let found = self.narrowed(*value, (axis, depth), start, size)?;
        *value = found.unwrap_or(*value);
        Ok(found.is_some())
    }
}
