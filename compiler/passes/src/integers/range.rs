//! Ranges of integers, which may be held as floats, derived from types, constants, conversions, sums, products and movements.

use crate::rewrite::operation;
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Op, RhsLayout, ValueId};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

/// A range within which i32 arithmetic is exact by far, and that of f32 is.
pub(super) const EXACT: u64 = 1 << 24;
/// Values that are looked at for the range of an operand.
pub(crate) const LOOKS: usize = 64;
/// Bytes of a constant from which on its elements are not looked at.
const MANY: usize = 1 << 16;

/// What integers lie between.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Range {
    pub least: i64,
    pub most: i64,
}

impl Range {
    pub(crate) fn of(dtype: DType) -> Option<Range> {
        let (least, most) = match dtype {
            DType::Bool => (0, 1),
            _ if !dtype.is_int() || dtype.bits() > 16 => return None,
            _ if dtype.is_signed_int() => (-(1 << (dtype.bits() - 1)), (1 << (dtype.bits() - 1)) - 1),
            _ => (0, (1 << dtype.bits()) - 1),
        };
        Some(Range { least, most })
    }

    /// The greatest magnitude.
    pub(crate) fn largest(self) -> u64 {
        self.least.unsigned_abs().max(self.most.unsigned_abs())
    }

    pub(crate) fn or(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    fn add(self, other: Range) -> Option<Range> {
        Some(Range { least: self.least.checked_add(other.least)?, most: self.most.checked_add(other.most)? })
    }

    fn mul(self, other: Range) -> Option<Range> {
        let corners = [(self.least, other.least), (self.least, other.most), (self.most, other.least)];
        let mut all = (self.most.checked_mul(other.most)?, self.most.checked_mul(other.most)?);
        for (a, b) in corners {
            let product = a.checked_mul(b)?;
            all = (all.0.min(product), all.1.max(product));
        }
        Some(Range { least: all.0, most: all.1 })
    }

    /// Of sums of `terms` integers of this range, and of their parts.
    fn times(self, terms: i64) -> Option<Range> {
        let zero = Range { least: 0, most: 0 };
        Some(zero.or(Range { least: self.least.checked_mul(terms)?, most: self.most.checked_mul(terms)? }))
    }

    fn sub(self, other: Range) -> Option<Range> {
        self.add(Range { least: other.most.checked_neg()?, most: other.least.checked_neg()? })
    }
}

/// The range of the elements of an integer tensor, derived from its type, constants, conversions, sums and movements.
pub(crate) fn range(graph: &Graph, value: ValueId, looks: &mut usize) -> Option<Range> {
    let dtype = graph.ty(value).dtype;
    let known = Range::of(dtype);
    if *looks == 0 {
        return known;
    }
    *looks -= 1;
    let found = match (operation(graph, value), graph.constant_data(value)) {
        (Some((op, inputs)), _) => of_operation(graph, op, inputs, dtype, looks),
        (None, Some(tensor)) if tensor.data.len() < MANY && dtype.is_float() => {
            let numbers = tensor.to_f64s()?;
            let whole = |number: &f64| number.fract() == 0.0 && number.abs() <= EXACT as f64;
            let fits = numbers.iter().all(whole) && !numbers.is_empty();
            let least = fits.then(|| numbers.iter().copied().fold(f64::INFINITY, f64::min))?;
            let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            Some(Range { least: least as i64, most: most as i64 })
        }
        (None, Some(tensor)) if tensor.data.len() < MANY => {
            let numbers = interp::cast(tensor, DType::I64, true).to_i64s()?;
            Some(Range { least: *numbers.iter().min()?, most: *numbers.iter().max()? })
        }
        (None, _) => None,
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
    let exact = matches!(dtype, DType::I32 | DType::F32);
    match op {
        Op::Map(MapFn::Cast { .. }) => {
            let from = of(0)?;
            // What a type does not hold becomes another number.
            match dtype {
                DType::F32 => small(from),
                DType::I64 => Some(from),
                DType::I32 => (from.largest() <= i32::MAX as u64).then_some(from),
                _ => Range::of(dtype).filter(|all| all.or(from) == *all).and(Some(from)),
            }
        }
        // Sums of small numbers do not wrap.
        Op::Map(MapFn::Binary(BinaryFn::Add)) if exact => small(of(0)?.add(of(1)?)?),
        Op::Map(MapFn::Binary(BinaryFn::Sub)) if exact => small(of(0)?.sub(of(1)?)?),
        Op::Map(MapFn::Binary(BinaryFn::Mul)) if exact => small(of(0)?.mul(of(1)?)?),
        Op::Reduce { op: ReduceFn::Sum, axes } if exact => {
            let shape = &graph.ty(inputs[0]).shape;
            small(of(0)?.times(terms(axes.iter().map(|&axis| &shape[axis]))?)?)
        }
        Op::Contract { batch, m, rhs: RhsLayout::Plain, .. } if exact => {
            let inner = &graph.ty(inputs[0]).shape[batch + m..];
            small(of(0)?.mul(of(1)?)?.times(terms(inner.iter())?)?)
        }
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

/// The elements along axes of known sizes.
fn terms<'d>(mut axes: impl Iterator<Item = &'d Dim>) -> Option<i64> {
    axes.try_fold(1i64, |terms, dim| terms.checked_mul(dim.as_const()?))
}

/// A range that is not large.
fn small(range: Range) -> Option<Range> {
    (range.largest() <= EXACT).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::build::Builder;
    use onnxc_ir::error::Result;
    use onnxc_ir::graph::Dim;

    #[test]
    fn ranges_of_operands() -> Result<()> {
        let mut graph = Graph::default();
        let origin = graph.origins.push(onnxc_ir::graph::Origin::new("test", "Test", 0));
        let mut b = Builder::new(&mut graph, origin);
        let vector = |dtype| onnxc_ir::graph::TensorType::new(dtype, vec![Dim::from(4usize)]);
        let (x, y) = (b.input("x", vector(DType::U8), None), b.input("y", vector(DType::I32), None));
        let wide = b.cast(x, DType::I32)?;
        let zero = b.constant(onnxc_ir::graph::Tensor::from_slice(&[1], &[138i32]));
        let shifted = b.binary(BinaryFn::Sub, wide, zero)?;
        let fill = b.constant(onnxc_ir::graph::Tensor::scalar(-300i32));
        let padded = b.pad(shifted, fill, vec![Dim::ONE], vec![Dim::ZERO])?;
        let joined = b.concat(&[shifted, wide, padded], 0)?;
        let unknown = b.concat(&[shifted, y], 0)?;
        let narrow = b.cast(shifted, DType::I8)?;
        let back = b.cast(narrow, DType::I32)?;
        let twice = b.binary(BinaryFn::Add, shifted, wide)?;
        let product = b.binary(BinaryFn::Mul, shifted, wide)?;
        let sum = b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: vec![0] }, &[product])?;
        let many = b.expand(product, vec![Dim::from(1000usize), Dim::from(4usize)])?;
        let long = b.emit1(Op::Reduce { op: ReduceFn::Sum, axes: vec![0] }, &[many])?;
        let real = b.cast(shifted, DType::F32)?;
        let half = b.constant(onnxc_ir::graph::Tensor::scalar(0.5f32));
        let halves = b.binary(BinaryFn::Mul, real, half)?;
        let found = |value| range(&graph, value, &mut { LOOKS }).map(|range| (range.least, range.most));
        assert_eq!(found(x), Some((0, 255)));
        assert_eq!(found(shifted), Some((-138, 117)));
        assert_eq!(found(padded), Some((-300, 117)));
        assert_eq!([found(joined), found(unknown)], [Some((-300, 255)), None]);
        assert_eq!(found(back), Some((-128, 127)));
        assert_eq!(found(twice), Some((-138, 372)));
        assert_eq!([found(y), found(product)], [None, Some((-35190, 29835))]);
        assert_eq!([found(sum), found(long)], [Some((-140_760, 119_340)), None]);
        assert_eq!([found(real), found(halves)], [Some((-138, 117)), None]);
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
