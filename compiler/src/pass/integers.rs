//! Products of small integers as products of floats, which processors add up faster, where every sum is exact.
//!
//! A float of 32 bits holds every integer up to 2^24. As long as the largest product of two elements, times the number of
//! terms, does not exceed that, no order of the additions rounds: with operands of 8 bits and their zero points, that
//! is 257 terms at least. Longer sums are made of parts, which are added up as integers.

use crate::error::Result;
use crate::graph::{Builder, Constant, DType, Def, Dim, Graph, MapFn, Node, NodeId, Op, RhsLayout, ValueId};
use crate::interp;
use crate::pass::Options;
use crate::pass::rewrite::{bodies, rewrite};
use crate::scalar::BinaryFn;

/// The largest of the integers that an f32 holds without gaps.
const EXACT: u64 = 1 << 24;
/// Shorter parts are not worth the additions of integers between them.
const LEAST_PART: u64 = 64;
/// What a kernel writes out at once; parts are a multiple of it.
const STEP: u64 = 8;
/// Each part is a kernel of its own: sums of more stay integers.
const MOST_PARTS: u64 = 64;
/// Parts of all sums of a graph together, so that a small model does not become a large one.
const MOST_OF_ALL: u64 = 4096;
/// Values that are looked at for the range of an operand.
const LOOKS: usize = 64;
/// Bytes of a constant from which on its elements are not looked at.
const MANY: usize = 1 << 16;

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let mut left = MOST_OF_ALL;
    rewrite(graph, |b, id| in_floats(b, id, &mut left))?;
    bodies(graph, options, run)
}

fn in_floats(b: &mut Builder, id: NodeId, left: &mut u64) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, outputs, .. } =
        &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
    if b.dtype(outputs[0]) != DType::I32 {
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

/// What integers lie between.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Range {
    least: i64,
    most: i64,
}

impl Range {
    fn of(dtype: DType) -> Option<Range> {
        let (least, most) = match dtype {
            DType::Bool => (0, 1),
            _ if !dtype.is_int() || dtype.bits() > 16 => return None,
            _ if dtype.is_signed_int() => (-(1 << (dtype.bits() - 1)), (1 << (dtype.bits() - 1)) - 1),
            _ => (0, (1 << dtype.bits()) - 1),
        };
        Some(Range { least, most })
    }

    /// The greatest magnitude.
    fn largest(self) -> u64 {
        self.least.unsigned_abs().max(self.most.unsigned_abs())
    }

    fn or(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    fn add(self, other: Range) -> Option<Range> {
        Some(Range { least: self.least.checked_add(other.least)?, most: self.most.checked_add(other.most)? })
    }

    fn sub(self, other: Range) -> Option<Range> {
        self.add(Range { least: other.most.checked_neg()?, most: other.least.checked_neg()? })
    }
}

/// What the elements of an integer tensor lie between, as far as its type, constants, conversions, sums and movements tell.
fn range(graph: &Graph, value: ValueId, looks: &mut usize) -> Option<Range> {
    let dtype = graph.ty(value).dtype;
    let known = Range::of(dtype);
    if *looks == 0 {
        return known;
    }
    *looks -= 1;
    let found = match &graph.values[value].def {
        Def::Const(Constant::Data(tensor)) if tensor.data.len() < MANY => {
            let numbers = interp::cast(tensor, DType::I64, true).to_i64s()?;
            Some(Range { least: *numbers.iter().min()?, most: *numbers.iter().max()? })
        }
        Def::Input(_) | Def::Const(Constant::Data(_)) => None,
        Def::Const(Constant::Deferred { op, inputs }) => of_operation(graph, op, inputs, dtype, looks),
        Def::Node(id, _) => {
            let Node { op, inputs, .. } = &graph.nodes[*id];
            of_operation(graph, op, inputs, dtype, looks)
        }
    };
    found.or(known)
}

fn of_operation(
    graph: &Graph,
    op: &Op,
    inputs: &[ValueId],
    dtype: DType,
    looks: &mut usize,
) -> Option<Range> {
    let mut of = |at: usize| range(graph, *inputs.get(at)?, looks);
    match op {
        Op::Map(MapFn::Cast { .. }) => {
            let from = of(0)?;
            // What a type does not hold becomes another number.
            let fits = Range::of(dtype).is_none_or(|all| all.or(from) == all);
            (fits && (dtype == DType::I32 || dtype == DType::I64 || Range::of(dtype).is_some()))
                .then_some(from)
        }
        // Sums of small numbers do not wrap.
        Op::Map(MapFn::Binary(BinaryFn::Add)) if dtype == DType::I32 => small(of(0)?.add(of(1)?)?),
        Op::Map(MapFn::Binary(BinaryFn::Sub)) if dtype == DType::I32 => small(of(0)?.sub(of(1)?)?),
        Op::Pad { .. } => Some(of(0)?.or(of(1)?)),
        Op::Concat { .. } => (1..inputs.len()).try_fold(of(0)?, |all, at| Some(all.or(of(at)?))),
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Window { .. } => of(0),
        _ => None,
    }
}

/// A range within which i32 arithmetic is exact by far.
fn small(range: Range) -> Option<Range> {
    (range.largest() <= EXACT).then_some(range)
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

    #[test]
    fn ranges_of_operands() -> Result<()> {
        let mut graph = Graph::default();
        let origin = graph.origins.push(crate::graph::Origin {
            name: "test".into(),
            op_type: "Test".into(),
            index: 0,
        });
        let mut b = Builder::new(&mut graph, origin);
        let vector = |dtype| crate::graph::TensorType::new(dtype, vec![Dim::from(4usize)]);
        let (x, y) = (b.input("x", vector(DType::U8), None), b.input("y", vector(DType::I32), None));
        let wide = b.cast(x, DType::I32)?;
        let zero = b.constant(crate::graph::Tensor::from_slice(&[1], &[138i32]));
        let shifted = b.binary(BinaryFn::Sub, wide, zero)?;
        let fill = b.constant(crate::graph::Tensor::scalar(-300i32));
        let padded = b.pad(shifted, fill, vec![Dim::ONE], vec![Dim::ZERO])?;
        let narrow = b.cast(shifted, DType::I8)?;
        let back = b.cast(narrow, DType::I32)?;
        let twice = b.binary(BinaryFn::Add, shifted, wide)?;
        let product = b.binary(BinaryFn::Mul, shifted, wide)?;
        let found = |value| range(&graph, value, &mut { LOOKS }).map(|range| (range.least, range.most));
        assert_eq!(found(x), Some((0, 255)));
        assert_eq!(found(shifted), Some((-138, 117)));
        assert_eq!(found(padded), Some((-300, 117)));
        assert_eq!(found(back), Some((-128, 127)));
        assert_eq!(found(twice), Some((-138, 372)));
        assert_eq!([found(y), found(product)], [None, None]);
        // Looked at so often that it would never end.
        let mut b = Builder::new(&mut graph, origin);
        let mut sum = shifted;
        for _ in 0..60 {
            sum = b.binary(BinaryFn::Add, sum, sum)?;
        }
        assert_eq!(range(&graph, sum, &mut { LOOKS }), None);
        Ok(())
    }
}
