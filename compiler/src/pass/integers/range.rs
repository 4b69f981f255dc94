//! What integers lie between, as far as types, constants, conversions, sums and movements tell.

use crate::graph::{DType, Graph, MapFn, Op, ValueId};
use crate::interp;
use crate::pass::rewrite::operation;
use crate::scalar::BinaryFn;

/// A range within which i32 arithmetic is exact by far.
const SMALL: u64 = 1 << 24;
/// Values that are looked at for the range of an operand.
pub const LOOKS: usize = 64;
/// Bytes of a constant from which on its elements are not looked at.
const MANY: usize = 1 << 16;

/// What integers lie between.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Range {
    pub least: i64,
    pub most: i64,
}

impl Range {
    pub fn of(dtype: DType) -> Option<Range> {
        let (least, most) = match dtype {
            DType::Bool => (0, 1),
            _ if !dtype.is_int() || dtype.bits() > 16 => return None,
            _ if dtype.is_signed_int() => (-(1 << (dtype.bits() - 1)), (1 << (dtype.bits() - 1)) - 1),
            _ => (0, (1 << dtype.bits()) - 1),
        };
        Some(Range { least, most })
    }

    /// The greatest magnitude.
    pub fn largest(self) -> u64 {
        self.least.unsigned_abs().max(self.most.unsigned_abs())
    }

    pub fn or(self, other: Range) -> Range {
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
pub fn range(graph: &Graph, value: ValueId, looks: &mut usize) -> Option<Range> {
    let dtype = graph.ty(value).dtype;
    let known = Range::of(dtype);
    if *looks == 0 {
        return known;
    }
    *looks -= 1;
    let found = match (operation(graph, value), graph.constant_data(value)) {
        (Some((op, inputs)), _) => of_operation(graph, op, inputs, dtype, looks),
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

/// A range that is not large.
fn small(range: Range) -> Option<Range> {
    (range.largest() <= SMALL).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::graph::{Builder, Dim};

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
