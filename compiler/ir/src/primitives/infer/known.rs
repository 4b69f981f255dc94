//! Elements of small integer tensors that follow from those of the operands, as symbolic dims.

use std::sync::Arc;

use super::indices;
use crate::graph::{DType, Dim, MAX_KNOWN, MapFn, Op, TensorType};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Elements of the (single) result, where they follow from the operands' elements. `known[i]` belongs to `inputs[i]`;
/// `result` is the inferred type.
pub fn infer_known(
    op: &Op,
    inputs: &[&TensorType],
    known: &[Option<Arc<[Dim]>>],
    result: &TensorType,
) -> Option<Arc<[Dim]>> {
    if let Op::DimValues { dims } = op {
        return Some(dims.as_slice().into());
    }
    if result.dtype.is_float() && !matches!(result.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let shape = result.static_shape()?;
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
    if count > MAX_KNOWN {
        return None;
    }
    if let Op::Iota { axis, .. } = op {
        return Some(indices(&shape).map(|index| Dim::from(index[*axis])).collect());
    }
    let known: Option<Vec<&[Dim]>> = known.iter().map(|elements| elements.as_deref()).collect();
    let shapes: Option<Vec<Vec<usize>>> = inputs.iter().map(|ty| ty.static_shape()).collect();
    let operands = Operands { inputs, known: known?, shapes: shapes? };
    let elements = match op {
        Op::Map(function) => operands.mapped(*function, &shape)?,
        Op::Reshape { .. } => operands.known[0].to_vec(),
        Op::Expand { .. } => indices(&shape).map(|index| operands.at(0, &index)).collect(),
        Op::Transpose { perm } => indices(&shape)
            .map(|index| {
                let mut source = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(to, &from)| source[from] = index[to]);
                operands.at(0, &source)
            })
            .collect(),
        Op::Slice { starts, steps, .. } => {
            let starts: Vec<i64> = starts.iter().map(Dim::as_const).collect::<Option<_>>()?;
            let source = |index: Vec<usize>| -> Vec<usize> {
                let axes = index.iter().zip(starts.iter().zip(steps));
                axes.map(|(&index, (start, step))| (start + index as i64 * step) as usize).collect()
            };
            indices(&shape).map(|index| operands.at(0, &source(index))).collect()
        }
        Op::Concat { axis } => indices(&shape).map(|index| operands.joined(index, *axis)).collect(),
        Op::Gather { axis } => operands.gathered(&shape, *axis)?,
        Op::Pad { lo, .. } => {
            let small = |dim: &Dim| dim.as_const().and_then(|value| usize::try_from(value).ok());
            let lo: Vec<usize> = lo.iter().map(small).collect::<Option<_>>()?;
            indices(&shape).map(|index| operands.padded(&index, &lo)).collect()
        }
        Op::Reduce { op: function, .. } => operands.reduced(&shape, *function)?,
        _ => return None,
    };
    Some(elements.into())
}

/// Number of an element of a tensor that is broadcast to the axes of `index`.
fn offset(shape: &[usize], index: &[usize]) -> usize {
    let axes = shape.iter().zip(&index[index.len() - shape.len()..]);
    axes.fold(0, |offset, (&size, &index)| offset * size + if size == 1 { 0 } else { index })
}

/// Operands with known elements.
struct Operands<'k> {
    inputs: &'k [&'k TensorType],
    known: Vec<&'k [Dim]>,
    shapes: Vec<Vec<usize>>,
}

impl Operands<'_> {
    /// The element of an operand that is broadcast as NumPy does: trailing axes are aligned, and those of size 1 repeat.
    fn at(&self, input: usize, index: &[usize]) -> Dim {
        self.known[input][offset(&self.shapes[input], index)].clone()
    }

    fn mapped(&self, function: MapFn, shape: &[usize]) -> Option<Vec<Dim>> {
        let element = |index: Vec<usize>| {
            let arguments: Vec<Dim> = (0..self.inputs.len()).map(|input| self.at(input, &index)).collect();
            known_scalar(function, &arguments, self.inputs[0].dtype)
        };
        indices(shape).map(element).collect()
    }

    /// The element of operands that are joined along an axis.
    fn joined(&self, mut index: Vec<usize>, axis: usize) -> Dim {
        let mut input = 0;
        while index[axis] >= self.shapes[input][axis] {
            index[axis] -= self.shapes[input][axis];
            input += 1;
        }
        self.at(input, &index)
    }

    /// Elements of the first operand that those of the second one pick along an axis.
    fn gathered(&self, shape: &[usize], axis: usize) -> Option<Vec<Dim>> {
        let size = self.shapes[0][axis];
        let pick = |dim: &Dim| {
            let index = dim.as_const()?;
            let index = if index < 0 { index + size as i64 } else { index };
            usize::try_from(index).ok().filter(|&index| index < size)
        };
        let picks: Vec<usize> = self.known[1].iter().map(pick).collect::<Option<_>>()?;
        let rank = self.shapes[1].len();
        let element = |index: Vec<usize>| {
            let pick = picks[offset(&self.shapes[1], &index[axis..axis + rank])];
            self.at(0, &[&index[..axis], &[pick], &index[axis + rank..]].concat())
        };
        Some(indices(shape).map(element).collect())
    }

    /// The element of the first operand with a border of the second one, `lo` before it.
    fn padded(&self, index: &[usize], lo: &[usize]) -> Dim {
        let inner = |(axis, &index): (usize, &usize)| {
            index.checked_sub(lo[axis]).filter(|&inner| inner < self.shapes[0][axis])
        };
        match index.iter().enumerate().map(inner).collect::<Option<Vec<usize>>>() {
            Some(inner) => self.at(0, &inner),
            None => self.known[1][0].clone(),
        }
    }

    /// The first operand's elements, combined along the axes that have size 1 in the result.
    fn reduced(&self, shape: &[usize], function: ReduceFn) -> Option<Vec<Dim>> {
        let mut out: Vec<Option<Dim>> = vec![None; shape.iter().product()];
        for (element, index) in self.known[0].iter().zip(indices(&self.shapes[0])) {
            let to = offset(shape, &index);
            out[to] = Some(match out[to].take() {
                None => element.clone(),
                Some(sum) => {
                    let operands = [sum, element.clone()];
                    known_scalar(MapFn::Binary(function.combine()), &operands, self.inputs[0].dtype)?
                }
            });
        }
        let identity = match function {
            ReduceFn::Sum => Some(Dim::ZERO),
            ReduceFn::Prod => Some(Dim::ONE),
            _ => None,
        };
        out.into_iter().map(|element| element.or_else(|| identity.clone())).collect()
    }
}

/// Whether a function of floats may be -0 or NaN where that of the integers that they hold is 0 or another constant.
fn is_other_zero(function: MapFn, arguments: &[Dim], result: &Dim) -> bool {
    let least = |at: usize| arguments[at].bounds().0;
    match function {
        MapFn::Unary(UnaryFn::Neg) => *result == Dim::ZERO,
        MapFn::Binary(BinaryFn::Mul) => {
            *result == Dim::ZERO && (0..2).any(|at| least(at).is_none_or(|least| least < 0))
        }
        // 0 divided by 0 is NaN, by a negative number -0.
        MapFn::Binary(BinaryFn::Div) => result.is_const() && least(1).is_none_or(|least| least < 1),
        _ => false,
    }
}

/// A scalar function of dims. Float operands hold integers; a result that might not be one gives `None`.
fn known_scalar(function: MapFn, arguments: &[Dim], dtype: DType) -> Option<Dim> {
    let result = known_integer(function, arguments, dtype)?;
    let is_other = dtype.is_float() && is_other_zero(function, arguments, &result);
    (!is_other).then_some(result)
}

/// The same of integers.
fn known_integer(function: MapFn, arguments: &[Dim], dtype: DType) -> Option<Dim> {
    let constant = |at: usize| arguments[at].as_const();
    let (first, second) = (&arguments[0], arguments.get(1));
    match function {
        MapFn::Cast { to, .. } => match to {
            DType::Bool => first.as_const().map(|value| Dim::from(i64::from(value != 0))),
            DType::I64 | DType::F64 | DType::F32 => Some(first.clone()),
            DType::I32 => match first.as_const() {
                Some(value) => i32::try_from(value).ok().map(|_| first.clone()),
                None => Some(first.clone()),
            },
            _ => None,
        },
        MapFn::Unary(UnaryFn::Neg) => Some(-first.clone()),
        MapFn::Unary(UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc) => Some(first.clone()),
        MapFn::Unary(UnaryFn::Abs) => match first.bounds() {
            (Some(low), _) if low >= 0 => Some(first.clone()),
            _ => constant(0).map(|value| Dim::from(value.saturating_abs())),
        },
        MapFn::Unary(UnaryFn::Not) => constant(0).map(|value| Dim::from(1 - value)),
        MapFn::Binary(function) => {
            let second = second?;
            match function {
                BinaryFn::Add => Some(first.clone() + second.clone()),
                BinaryFn::Sub => Some(first.clone() - second.clone()),
                BinaryFn::Mul => Some(first.clone() * second.clone()),
                BinaryFn::Min => Some(first.min_dim(second)),
                BinaryFn::Max => Some(first.max_dim(second)),
                BinaryFn::Div if dtype.is_float() => first.exact_div(second),
                // Truncation equals flooring while neither side is negative.
                BinaryFn::Div if first.bounds().0? >= 0 && second.bounds().0? >= 0 => first.floor_div(second),
                BinaryFn::Div => match (constant(0)?, constant(1)?) {
                    (_, 0) => None,
                    (a, b) => Some(Dim::from(a.wrapping_div(b))),
                },
                BinaryFn::Mod if second.bounds().0? > 0 => first.modulo(second),
                BinaryFn::And => Some(Dim::from(i64::from(constant(0)? != 0 && constant(1)? != 0))),
                BinaryFn::Or => Some(Dim::from(i64::from(constant(0)? != 0 || constant(1)? != 0))),
                _ => None,
            }
        }
        MapFn::Compare(function) => {
            let difference = (first.clone() - second?.clone()).bounds();
            let (below, above) =
                (difference.1.is_some_and(|high| high < 0), difference.0.is_some_and(|low| low > 0));
            let equal = first == second?;
            let truth = match function {
                CompareFn::Eq if equal => true,
                CompareFn::Eq if below || above => false,
                CompareFn::Ne if equal => false,
                CompareFn::Ne if below || above => true,
                CompareFn::Lt if below => true,
                CompareFn::Lt if equal || above => false,
                CompareFn::Le if below || equal => true,
                CompareFn::Le if above => false,
                CompareFn::Gt if above => true,
                CompareFn::Gt if equal || below => false,
                CompareFn::Ge if above || equal => true,
                CompareFn::Ge if below => false,
                _ => return None,
            };
            Some(Dim::from(i64::from(truth)))
        }
        MapFn::Select => match constant(0)? {
            0 => arguments.get(2).cloned(),
            _ => second.cloned(),
        },
        _ => None,
    }
}
