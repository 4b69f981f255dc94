//! Integers that are scaled, rounded and clamped to bytes, by a multiplication and a shift in place of floats.
//!
//! What a product of bytes adds up becomes bytes again by `clamp(round(x * scale + offset))`. A processor without a unit for floats
//! takes a hundred instructions and more for that. In integers it is `(x * factor + addend) >> shift`, with a factor of
//! `scale * 2^shift` and half of `2^shift` in the addend: of 64 bits, exact but for what the factor and the addend were rounded by. A
//! scale of f32 has 24 bits and a factor 31, so that mostly neither is rounded, and the result is that of the real number; what the
//! floats round to a tie may go to the other integer. Real ties go to the even integer, as the model says: where the floor of half a
//! step more gives them all to the odd one, the addend is less by one, and where some are right and some wrong, floats stay.

use crate::integers::{LOOKS, Range, range};
use crate::rewrite::{bodies, operation, rewrite, splat};
use crate::{Options, steps};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::eval::eval;
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Op, Tensor, TensorType, ValueId};
use onnxc_ir::infer::broadcast_shapes;
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// Bits of a factor.
const FACTOR_BITS: i32 = 31;
/// The largest shift, and the bits that an addend may have: a product of two integers of 32 bits and the addend fit 64.
const MOST_BITS: i32 = 62;
/// Operations between a rounding and the conversion to bytes.
const MAX_STEPS: usize = 8;
/// Elements of a scale, or of an offset.
const MOST_PARAMETERS: usize = 1 << 16;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact || !options.pack.integer_scales {
        return Ok(());
    }
    rewrite(graph, |b, id| {
        let node = &b.graph.nodes[id];
        match node.op {
            Op::Map(MapFn::Cast { to: DType::I8 | DType::U8, .. }) => {
                bytes(b, node.outputs[0], node.inputs[0])
            }
            _ => Ok(None),
        }
    })?;
    bodies(graph, options, run)
}

/// What lies between a rounding and bytes, in the order of the run.
struct Clamped {
    /// Operations with integers: a zero point is added, limits are applied.
    steps: Vec<(BinaryFn, i64)>,
    rounded: ValueId,
}

impl Clamped {
    fn of(graph: &Graph, mut value: ValueId) -> Option<Clamped> {
        let mut steps = vec![];
        for _ in 0..MAX_STEPS {
            match operation(graph, value)? {
                (Op::Map(MapFn::Unary(UnaryFn::Round)), &[rounded]) => {
                    steps.reverse();
                    return Some(Clamped { steps, rounded });
                }
                (
                    Op::Map(MapFn::Binary(op @ (BinaryFn::Add | BinaryFn::Max | BinaryFn::Min))),
                    &[x, number],
                ) => {
                    steps.push((*op, whole(graph, number)?));
                    value = x;
                }
                _ => return None,
            }
        }
        None
    }

    /// What the results of the rounding are that the steps leave apart: all below, and all above, become the same byte.
    fn limits(&self) -> Option<Range> {
        let (mut range, mut zero) = (Range { least: i64::MIN / 2, most: i64::MAX / 2 }, 0);
        for &(op, number) in &self.steps {
            match op {
                BinaryFn::Add => zero += number,
                BinaryFn::Max => range.least = range.least.max(number - zero),
                _ => range.most = range.most.min(number - zero),
            }
        }
        let few = range.least > i64::MIN / 2 && range.most < i64::MAX / 2 && range.least < range.most;
        (few && range.largest() <= 1 << 16).then_some(range)
    }
}

/// The integer that every element of a constant is, if it is small.
fn whole(graph: &Graph, value: ValueId) -> Option<i64> {
    splat(graph, value)
        .filter(|number| number.fract() == 0.0 && number.abs() <= 4096.0)
        .map(|number| number as i64)
}

/// A value of f32 as `(x - zero) * scale + offset`.
struct Scaled {
    /// Integers, of i32 or less.
    x: ValueId,
    zero: i64,
    scale: ValueId,
    offset: Option<ValueId>,
}

impl Scaled {
    fn of(graph: &Graph, value: ValueId) -> Option<Scaled> {
        let (product, offset) = match operation(graph, value)? {
            (Op::Map(MapFn::MulAdd), &[x, scale, offset]) => ([x, scale], Some(offset)),
            (Op::Map(MapFn::Binary(BinaryFn::Mul)), &[x, scale]) => ([x, scale], None),
            (Op::Map(MapFn::Binary(BinaryFn::Add)), &[product, offset]) => match operation(graph, product)? {
                (Op::Map(MapFn::Binary(BinaryFn::Mul)), &[x, scale]) => ([x, scale], Some(offset)),
                _ => return None,
            },
            _ => return None,
        };
        let [mut x, scale] = product;
        let mut zero = 0;
        if let Some((Op::Map(MapFn::Binary(BinaryFn::Sub)), &[from, number])) = operation(graph, x) {
            (x, zero) = (from, whole(graph, number)?);
        }
        let Some((Op::Map(MapFn::Cast { to: DType::F32, .. }), &[x])) = operation(graph, x) else {
            return None;
        };
        let is_int =
            |dtype: DType| matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32);
        // Code does not depend on the values of weights that are apart.
        let is_known = |value: ValueId| {
            let elements = graph.ty(value).elements().as_const();
            let few = elements.is_some_and(|elements| elements <= MOST_PARAMETERS as i64);
            graph.is_constant(value) && !graph.is_apart(value) && few
        };
        let all_known = is_known(scale) && offset.is_none_or(is_known);
        let same = graph.ty(x).shape == graph.ty(value).shape;
        (is_int(graph.ty(x).dtype) && all_known && same).then_some(Scaled { x, zero, scale, offset })
    }
}

/// The bytes of a conversion of `value`.
fn bytes(b: &mut Builder, result: ValueId, value: ValueId) -> Result<Option<ValueId>> {
    let Some(clamped) = Clamped::of(b.graph, value) else { return Ok(None) };
    let (Some(limits), Some(scaled)) = (clamped.limits(), Scaled::of(b.graph, clamped.rounded)) else {
        return Ok(None);
    };
    let all = Range { least: i32::MIN.into(), most: i32::MAX.into() };
    let x = range(b.graph, scaled.x, &mut { LOOKS }).unwrap_or(all);
    let Some(Parameters { factors, addends, shift }) = Parameters::of(b.graph, &scaled, x, limits)? else {
        return Ok(None);
    };
    let x = b.cast(scaled.x, DType::I32)?;
    let [factors, addends] = [factors, addends].map(|tensor| b.constant(tensor));
    let mut value = b.emit1(Op::Map(MapFn::Requantize { shift }), &[x, factors, addends])?;
    for (op, number) in clamped.steps {
        value = b.binary_scalar(op, value, number as f64)?;
    }
    let dtype = b.dtype(result);
    b.cast(value, dtype).map(Some)
}

/// What [`MapFn::Requantize`] takes beside the integers.
struct Parameters {
    factors: Tensor,
    addends: Tensor,
    shift: u8,
}

impl Parameters {
    /// `x` is what the integers lie between, `limits` where results of the rounding differ.
    fn of(graph: &Graph, scaled: &Scaled, x: Range, limits: Range) -> Result<Option<Parameters>> {
        let scale = interp::constant(graph, scaled.scale)?;
        let offset = match scaled.offset {
            Some(offset) => interp::constant(graph, offset)?,
            None => Tensor::scalar(0.0f32),
        };
        let dims = |tensor: &Tensor| tensor.shape.iter().copied().map(Dim::from).collect::<Vec<_>>();
        let ty = TensorType::new(DType::F32, broadcast_shapes(&[&dims(&scale), &dims(&offset)])?);
        let is_few = |elements: i64| (1..=MOST_PARAMETERS as i64).contains(&elements);
        if !ty.elements().as_const().is_some_and(is_few) {
            return Ok(None);
        }
        let scales = scale.values::<f32>();
        let Some(shift) = shift(&scales, &offset.values::<f32>(), scaled.zero, limits) else {
            return Ok(None);
        };
        let unit = f64::from(shift).exp2();
        let factor = |scale: f32| (f64::from(scale) * unit).round_ties_even() as i32;
        // Each addend is of one scale and one offset.
        let expand = Op::Expand { shape: ty.shape };
        let wide = |tensor: &Tensor| Ok(eval(&expand, &[tensor])?.remove(0));
        let [scale_of, offset_of] = [wide(&scale)?, wide(&offset)?];
        let mut addends = Vec::with_capacity(scale_of.len());
        for (scale, offset) in scale_of.values::<f32>().into_iter().zip(offset_of.values::<f32>()) {
            let factor = i64::from(factor(scale));
            let offset = (f64::from(offset) * unit).round_ties_even() as i128;
            let line = Line { factor, offset: offset - i128::from(scaled.zero) * i128::from(factor), shift };
            let off = line.error(scale.into(), limits);
            let Some(addend) = line.addend(x, limits).filter(|_| off <= steps::SHARE) else {
                return Ok(None);
            };
            addends.push(addend);
        }
        let factors: Vec<i32> = scales.into_iter().map(factor).collect();
        Ok(Some(Parameters {
            factors: Tensor::from_slice(&scale.shape, &factors),
            addends: Tensor::from_slice(&scale_of.shape, &addends),
            shift: shift as u8,
        }))
    }
}

/// The largest shift with which factors and addends have no more bits than they may.
fn shift(scales: &[f32], offsets: &[f32], zero: i64, limits: Range) -> Option<i32> {
    let largest = scales.iter().copied().fold(0.0, f32::max).into();
    let usable = |scale: &f32| scale.is_finite() && *scale >= 0.0;
    if largest == 0.0 || !scales.iter().all(usable) || !offsets.iter().all(|offset| offset.is_finite()) {
        return None;
    }
    // The power of two above a number.
    let above = |number: f64| number.log2().floor() as i32 + 1;
    let offset = offsets.iter().map(|offset| f64::from(offset.abs())).fold(0.0, f64::max);
    let reach = offset + zero.unsigned_abs() as f64 * largest + limits.largest() as f64 + 1.0;
    let shift = (FACTOR_BITS - above(largest)).min(MOST_BITS - 1 - above(reach)).min(MOST_BITS);
    (shift >= 1).then_some(shift)
}

/// `x * factor + offset`, in units of `2^-shift`.
struct Line {
    factor: i64,
    offset: i128,
    shift: i32,
}

impl Line {
    /// How far it is from the real line, in steps of the result, where results lie within the limits.
    fn error(&self, scale: f64, limits: Range) -> f64 {
        let unit = f64::from(self.shift).exp2();
        let rounded = (self.factor as f64 - scale * unit).abs();
        let reach = (limits.most - limits.least) as f64 + self.offset.unsigned_abs() as f64 / unit;
        let of_factor = if rounded == 0.0 { 0.0 } else { rounded * (reach / scale) };
        (of_factor + 0.5) / unit
    }

    /// What is added to the product so that its floor is the rounded value; `None` if some results would not fit i32, or not all ties can
    /// go to the even integer.
    fn addend(&self, x: Range, limits: Range) -> Option<i64> {
        let half = 1i128 << (self.shift - 1);
        let addend = self.offset + half;
        for x in [x.least, x.most] {
            let sum = i128::from(x) * i128::from(self.factor) + addend;
            // One bit is left for the steps behind it.
            if i64::try_from(sum).is_err() || (sum >> self.shift).unsigned_abs() > 1 << 30 {
                return None;
            }
        }
        let [mut right, mut wrong] = [false; 2];
        if self.factor != 0 {
            for above in limits.least + 1..=limits.most {
                // Half a step below this result.
                let product = (i128::from(above) << self.shift) - half - self.offset;
                let at = product / i128::from(self.factor);
                let is_tie = at * i128::from(self.factor) == product;
                if is_tie && (i128::from(x.least)..=i128::from(x.most)).contains(&at) {
                    *(if above % 2 == 0 { &mut right } else { &mut wrong }) = true;
                }
            }
        }
        let addend = i64::try_from(addend).ok()?;
        match (right, wrong) {
            (true, true) => None,
            (_, wrong) => Some(addend - i64::from(wrong)),
        }
    }
}

#[cfg(test)]
mod tests;
