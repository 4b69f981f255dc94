//! Products of small integers as products of floats, which processors add up faster, where every sum is exact.
//!
//! A float of 32 bits holds every integer up to 2^24. As long as the largest product of two elements, times the number of
//! terms, does not exceed that, no order of the additions rounds: with operands of 8 bits and their zero points, that
//! is 257 terms at least. Longer sums are made of parts, which are added up as integers.

use super::bytes::bytes;
use super::range::{EXACT, LOOKS, Range, range};
use crate::PackPolicy;
use crate::rewrite::{operation, sum_of_products, with_rank};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Constant, DType, Def, Dim, MapFn, Node, NodeId, Op, RhsLayout, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};
use onnxc_tuning::reduce::quads_hold;

/// Shorter parts are not worth the additions of integers between them.
const LEAST_PART: u64 = 64;
/// What a kernel writes out at once; parts are a multiple of it.
const STEP: u64 = 8;
/// Each part is a kernel of its own: sums of more stay integers.
const MOST_PARTS: u64 = 64;
/// Integers that are added to a sum one after the other, and views in between.
const MOST_STEPS: usize = 8;
/// Parts of all sums of a graph together, so that a small model does not become a large one.
pub(super) const MOST_OF_ALL: u64 = 4096;

pub(super) fn in_floats(b: &mut Builder, id: NodeId, left: &mut u64) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, outputs, .. } =
        &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
    if [b.dtype(outputs[0]), b.dtype(lhs)] != [DType::I32; 2] {
        return Ok(None);
    }
    let size = |dim: &Dim| dim.as_const().and_then(|size| u64::try_from(size).ok());
    let inner: Option<Vec<u64>> = b.shape(lhs)[batch + m..].iter().map(size).collect();
    let ranges = range(b.graph, lhs, &mut { LOOKS }).zip(range(b.graph, rhs, &mut { LOOKS }));
    let Some((inner, (a, c))) = inner.zip(ranges) else { return Ok(None) };
    let largest = a.largest().saturating_mul(c.largest()).max(1);
    let Some((axis, part)) = parts(&inner, EXACT / largest) else { return Ok(None) };
    match left.checked_sub(inner[axis].div_ceil(part)) {
        Some(rest) => *left = rest,
        None => return Ok(None),
    }
    let wide = b.cast(lhs, DType::F32)?;
    let op = Op::Contract { batch, m, k, rhs: RhsLayout::Plain };
    let mut sum = None;
    for first in (0..inner[axis]).step_by(part as usize) {
        let size = part.min(inner[axis] - first);
        let (first, size) = (Dim::from(first as usize), Dim::from(size as usize));
        let a = b.slice_axis(wide, batch + m + axis, first.clone(), size.clone())?;
        let c = cut(b, rhs, batch + axis, &first, &size)?;
        let c = b.cast(c, DType::F32)?;
        let exact = b.emit1(op.clone(), &[a, c])?;
        let exact = b.cast(exact, DType::I32)?;
        sum = Some(match sum {
            None => exact,
            Some(sum) => b.binary(BinaryFn::Add, sum, exact)?,
        });
    }
    Ok(sum)
}

/// Whether kernels add up such products of unsigned bytes in quads: windows of few taps and whole vectors of channels, with weights
/// that are signed bytes.
fn in_quads(shape: &[Dim], axes: &[usize], weights: Range) -> bool {
    let bytes = Range::of(DType::I8).is_some_and(|all| all.or(weights) == all);
    let channels = shape.last().filter(|_| !axes.contains(&(shape.len() - 1)));
    bytes && channels.is_some_and(|channels| quads_hold(axes.iter().map(|&axis| &shape[axis]), channels))
}

/// Sums over a map multiplication, as depthwise convolutions are. Those of bytes read them as they are: what their zero
/// point adds is the same for all sums of the same weights. Where kernels multiply halves they stay integers.
pub(super) fn depthwise(b: &mut Builder, id: NodeId, policy: &PackPolicy) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let (product, output) = (node.inputs.first().copied(), node.outputs[0]);
    let (Some(product), Some(([x, weights], axes))) = (product, sum_of_products(b.graph, node)) else {
        return Ok(None);
    };
    let axes = axes.to_vec();
    let shape = b.shape(product);
    let taps = axes.iter().try_fold(1i64, |taps, &axis| taps.checked_mul(shape[axis].as_const()?));
    let fits = b.dtype(output) == DType::I32 && b.shape(x) == shape && b.graph.is_constant(weights);
    let (Some(taps), Some(factor), true) = (taps, range(b.graph, weights, &mut { LOOKS }), fits) else {
        return Ok(None);
    };
    let Some(x) = bytes(b, x, None, &mut { LOOKS })? else { return Ok(None) };
    let most = Range::of(b.dtype(x.value)).map_or(u64::MAX, Range::largest);
    let largest = most.saturating_mul(factor.largest()).saturating_mul(taps.unsigned_abs());
    if largest > EXACT {
        return Ok(None);
    }
    let joined = policy.joined_bytes && b.dtype(x.value) == DType::U8 && in_quads(&shape, &axes, factor);
    let dtype = if policy.half_products || joined { DType::I32 } else { DType::F32 };
    let (wide, factor) = (b.cast(x.value, dtype)?, b.cast(weights, dtype)?);
    let product = b.binary(BinaryFn::Mul, wide, factor)?;
    let sum = b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: axes.clone() }, &[product])?;
    let sum = b.cast(sum, DType::I32)?;
    let Some(zero) = x.zero else { return Ok(Some(sum)) };
    // Weights that are the same along an axis count once for each of its elements.
    let weights = with_rank(b, weights, shape.len())?;
    let mut whole = b.shape(weights);
    axes.iter().for_each(|&axis| whole[axis] = shape[axis].clone());
    let weights = b.expand(weights, whole)?;
    let weights = b.emit1(Op::Reduce { op: ReduceFn::Sum, axes }, &[weights])?;
    let more = b.binary(BinaryFn::Mul, weights, zero)?;
    b.binary(BinaryFn::Sub, sum, more).map(Some)
}

/// A conversion to f32 of integers that were sums of floats before: neither conversion is of use.
pub(super) fn back(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { op: Op::Map(MapFn::Cast { to: DType::F32, .. }), inputs, .. } = &b.graph.nodes[id] else {
        return Ok(None);
    };
    let integers = inputs[0];
    if b.dtype(integers) != DType::I32 || range(b.graph, integers, &mut { LOOKS }).is_none() {
        return Ok(None);
    }
    let (mut steps, mut at) = (Vec::new(), integers);
    let mut x = loop {
        match operation(b.graph, at) {
            Some((op @ Op::Map(MapFn::Binary(BinaryFn::Add | BinaryFn::Sub)), &[x, term]))
                if b.graph.is_constant(term) && b.ty(x).shape == b.ty(at).shape =>
            {
                steps.push((op.clone(), Some(term)));
                at = x;
            }
            Some((op @ (Op::Reshape { .. } | Op::Transpose { .. }), &[x])) => {
                steps.push((op.clone(), None));
                at = x;
            }
            Some((Op::Map(MapFn::Cast { .. }), &[x])) if b.dtype(x) == DType::F32 => break x,
            _ => return Ok(None),
        }
        if steps.len() > MOST_STEPS {
            return Ok(None);
        }
    };
    // A sum starts at 0, so it is never negative zero, which integers do not have.
    let sum = matches!(operation(b.graph, x), Some((Op::Reduce { .. } | Op::Contract { .. }, _)));
    if !sum || range(b.graph, x, &mut { LOOKS }).is_none() {
        return Ok(None);
    }
    while let Some((op, term)) = steps.pop() {
        let term = term.map(|term| b.cast(term, DType::F32)).transpose()?;
        let operands: Vec<ValueId> = [x].into_iter().chain(term).collect();
        x = b.emit1(op, &operands)?;
    }
    Ok(Some(x))
}

/// A part of a tensor along an axis. Constants that are computed when the object is written are cut before they are
/// computed, lest the whole be computed for each part.
fn cut(b: &mut Builder, value: ValueId, axis: usize, first: &Dim, size: &Dim) -> Result<ValueId> {
    let Def::Const(Constant::Deferred { op, inputs }) = &b.graph.values[value].def else {
        return b.slice_axis(value, axis, first.clone(), size.clone());
    };
    let (op, mut inputs) = (op.clone(), inputs.clone());
    match &*op {
        Op::Map(_) => {
            let behind = b.rank(value) - axis;
            for input in &mut inputs {
                let shape = b.shape(*input);
                if let Some(own) = shape.len().checked_sub(behind)
                    && shape[own] != Dim::ONE
                {
                    *input = cut(b, *input, own, first, size)?;
                }
            }
        }
        Op::Transpose { perm } => inputs[0] = cut(b, inputs[0], perm[axis], first, size)?,
        _ => return b.slice_axis(value, axis, first.clone(), size.clone()),
    }
    b.emit1((*op).clone(), &inputs)
}

/// The inner axis that a sum of at most `most` terms is cut along, and into parts of how many; the whole axis where that is
/// short enough.
fn parts(inner: &[u64], most: u64) -> Option<(usize, u64)> {
    let terms = inner.iter().try_fold(1u64, |terms, &extent| terms.checked_mul(extent))?;
    let (axis, &extent) = inner.iter().enumerate().max_by_key(|(_, extent)| **extent)?;
    if terms == 0 {
        return None;
    }
    if terms <= most {
        return Some((axis, extent));
    }
    let others = terms / extent;
    let longest = most / others;
    // Parts of about one size.
    let part = extent.div_ceil(extent.div_ceil(longest.max(1)));
    let part = part.next_multiple_of(STEP).min(longest);
    let worth = part * others >= LEAST_PART && extent.div_ceil(part) <= MOST_PARTS;
    worth.then_some((axis, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sums() {
        // 255 * 127 and less: 518 terms.
        assert_eq!(parts(&[384], 518), Some((0, 384)));
        assert_eq!(parts(&[1536], 518), Some((0, 512)));
        assert_eq!(parts(&[1536], 258), Some((0, 256)));
        assert_eq!(parts(&[1030], 258), Some((0, 258)));
        // Along the channels of a convolution.
        assert_eq!(parts(&[3, 3, 64], 518), Some((2, 32)));
        assert_eq!(parts(&[3, 3, 64], 258), Some((2, 24)));
        assert_eq!(parts(&[7, 7, 3], 518), Some((1, 7)));
        assert_eq!(parts(&[7, 7, 64], 40), None);
        assert_eq!((parts(&[64 * 256], 256), parts(&[65 * 256], 256)), (Some((0, 256)), None));
        assert_eq!(parts(&[1 << 40], 1 << 24), None);
        assert_eq!((parts(&[16], 0), parts(&[0], 9), parts(&[], 9)), (None, None, None));
    }
}
