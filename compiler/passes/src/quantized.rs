//! Products of reals that are integers times a scale, as products of the integers times both scales.
//!
//! What a model dequantizes is `(q - zero) * scale`. The scales are the same for all terms of a contraction, so they
//! come out of the sum: of `sum((a - za) sa (w - zw) sw)` remains `sa sw sum((a - za) (w - zw))`, a sum of i32 that is exact.
//! Each rounding of the real operands and of the sum falls away; one of the sum as a float and one of the product of the
//! scales are new. Views and paddings between the two operations move to the integers.
//!
//! Also sums over a map multiplication by constants, as depthwise convolutions are. Besides, what is quantized by a
//! known scale is multiplied by its reciprocal, which joins the scales of what it is a sum of where that is accurate enough (`steps`),
//! and bytes that are made of bytes by expensive functions are read from a table.

mod looked_up;
mod moved;

use crate::integers::{self, LOOKS, Range};
use crate::rewrite::{bodies, is_one, operation, reshaped, rewrite, splat, sum_of_products, with_rank};
use crate::{Options, PackPolicy, steps};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Node, NodeId, Op, RhsLayout, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// Operations between a product and what dequantizes its operand.
const MAX_STEPS: usize = 16;

/// Terms of a depthwise sum: as floats the integers are summed up exactly (`integers`).
const MOST_TAPS: i64 = 256;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact || options.pack.rates.bytes == 0.0 {
        return Ok(());
    }
    rewrite(graph, |b, id| match &b.graph.nodes[id].op {
        Op::Contract { .. } => contraction(b, id, &options.pack),
        Op::Reduce { op: ReduceFn::Sum, .. } => depthwise(b, id),
        Op::Map(MapFn::Cast { to: DType::I8 | DType::U8, .. }) => match moved::moved(b, id)? {
            Some(bytes) => Ok(Some(bytes)),
            None => match looked_up::looked_up(b, id)? {
                Some(bytes) => Ok(Some(bytes)),
                None => quantization(b, id),
            },
        },
        _ => Ok(None),
    })?;
    bodies(graph, options, run)
}

/// An f32 tensor is `integers * scale`.
struct Scaled {
    /// Of i32.
    integers: ValueId,
    /// Of f32: a scalar, or of the rank of the integers, each axis of the same size or 1.
    scale: ValueId,
}

fn contraction(b: &mut Builder, id: NodeId, policy: &PackPolicy) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
    let shape = &b.ty(lhs).shape;
    if b.dtype(lhs) != DType::F32 || !policy.in_bytes(&shape[batch + m..]) {
        return Ok(None);
    }
    let Some(x) = scaled(b, lhs)? else { return Ok(None) };
    let Some(y) = scaled(b, rhs)? else { return Ok(None) };
    let own = b.shape(y.scale);
    let same_for_all = |shape: &[Dim]| shape.iter().all(is_one);
    if !b.shape(x.scale).is_empty() || !own.is_empty() && !same_for_all(&own[batch..batch + k]) {
        return Ok(None);
    }
    let factor = match own.is_empty() {
        true => y.scale,
        false => {
            let mut aligned = own.clone();
            aligned.splice(batch..batch + k, vec![Dim::ONE; m]);
            b.reshape(y.scale, aligned)?
        }
    };
    let op = Op::Contract { batch, m, k, rhs: RhsLayout::Plain };
    let sum = b.emit1(op, &[x.integers, y.integers])?;
    let scale = b.binary(BinaryFn::Mul, x.scale, factor)?;
    times(b, sum, scale)
}

fn depthwise(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let (product, Some(([x, weights], axes))) = (node.inputs[0], sum_of_products(b.graph, node)) else {
        return Ok(None);
    };
    let axes = axes.to_vec();
    let shape = b.shape(product);
    let taps = axes.iter().try_fold(1i64, |taps, &axis| taps.checked_mul(shape[axis].as_const()?));
    let few = taps.is_some_and(|taps| taps <= MOST_TAPS);
    if b.dtype(x) != DType::F32 || !few || b.shape(x) != shape || !b.graph.is_constant(weights) {
        return Ok(None);
    }
    let Some(x) = scaled(b, x)? else { return Ok(None) };
    let Some(y) = scaled(b, weights)? else { return Ok(None) };
    let own = b.shape(y.scale);
    let lead = shape.len() - own.len();
    let same_for_all = axes.iter().all(|&axis| axis < lead || is_one(&own[axis - lead]));
    if !b.shape(x.scale).is_empty() || !same_for_all {
        return Ok(None);
    }
    let product = b.binary(BinaryFn::Mul, x.integers, y.integers)?;
    let sum = b.emit1(Op::Reduce { op: ReduceFn::Sum, axes }, &[product])?;
    let scale = b.binary(BinaryFn::Mul, x.scale, y.scale)?;
    times(b, sum, scale)
}

/// A conversion to bytes of what is divided by a known scale, rounded and clamped, with the reciprocal of the scale: a
/// division takes many times as long. A zero point is added before or after it is rounded. Divisions that do not lead to
/// bytes stay as they are.
fn quantization(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let (cast, mut at) = (node.op.clone(), node.inputs[0]);
    let span =
        Range::of(b.dtype(node.outputs[0])).map_or(f64::INFINITY, |range| (range.most - range.least) as f64);
    // From the conversion inwards, each with its second operand.
    let mut steps: Vec<(Op, Vec<ValueId>)> = vec![(cast, vec![])];
    let scale = loop {
        let Some((op, inputs)) = operation(b.graph, at) else { return Ok(None) };
        let rounds = steps.iter().any(|(op, _)| *op == Op::Map(MapFn::Unary(UnaryFn::Round)));
        match op {
            Op::Map(MapFn::Binary(BinaryFn::Div)) if rounds => {
                at = inputs[0];
                break inputs[1];
            }
            Op::Map(MapFn::Unary(UnaryFn::Round)) if !rounds => {}
            Op::Map(MapFn::Binary(BinaryFn::Min | BinaryFn::Max)) if !rounds => {}
            Op::Map(MapFn::Binary(BinaryFn::Add)) => {}
            _ => return Ok(None),
        }
        if steps.len() > MAX_STEPS {
            return Ok(None);
        }
        steps.push((op.clone(), inputs[1..].to_vec()));
        at = inputs[0];
    };
    let scales = b.graph.constant_data(scale).filter(|_| b.dtype(scale) == DType::F32);
    let normal = |scale: &f64| (*scale as f32).is_normal() && (1.0 / *scale as f32).is_normal();
    if !scales.and_then(Tensor::to_f64s).is_some_and(|scales| scales.iter().all(normal)) {
        return Ok(None);
    }
    let reciprocal = b.unary(UnaryFn::Recip, scale)?;
    let mut x = scaled_sum(b, at, reciprocal, span)?;
    while let Some((op, others)) = steps.pop() {
        x = b.emit1(op, &[vec![x], others].concat())?;
    }
    Ok(Some(x))
}

/// A value by a scale, which joins those of the terms if it is a sum of two dequantized values. Of the result at most `span` steps are
/// not clamped: a term exceeds that by at most the steps that the other one can subtract.
fn scaled_sum(b: &mut Builder, x: ValueId, scale: ValueId, span: f64) -> Result<ValueId> {
    let of_one =
        |b: &Builder, value: ValueId| b.graph.is_constant(value) && b.ty(value).elements() == Dim::ONE;
    let term = |b: &Builder, value: ValueId| match operation(b.graph, value) {
        Some((Op::Map(MapFn::Binary(BinaryFn::Mul)), &[x, own])) if of_one(b, own) => Some((x, own)),
        _ => None,
    };
    let terms = match operation(b.graph, x) {
        Some((Op::Map(MapFn::Binary(BinaryFn::Add)), &[left, right])) if of_one(b, scale) => {
            term(b, left).zip(term(b, right))
        }
        _ => None,
    };
    let Some(((left, of_left), (right, of_right))) = terms else {
        return b.binary(BinaryFn::Mul, x, scale);
    };
    let (of_left, of_right) =
        (b.binary(BinaryFn::Mul, of_left, scale)?, b.binary(BinaryFn::Mul, of_right, scale)?);
    let least = reach(b, left, of_left).min(reach(b, right, of_right));
    if !steps::may_join(span + 2.0 * least) {
        return b.binary(BinaryFn::Mul, x, scale);
    }
    let (left, right) = (b.binary(BinaryFn::Mul, left, of_left)?, b.binary(BinaryFn::Mul, right, of_right)?);
    b.binary(BinaryFn::Add, left, right)
}

/// The greatest magnitude of integers by a scale, as far as it is known.
fn reach(b: &Builder, integers: ValueId, scale: ValueId) -> f64 {
    let range = integers::range(b.graph, integers, &mut { LOOKS });
    let factor = splat(b.graph, scale).map(f64::abs);
    range.zip(factor).map_or(f64::INFINITY, |(range, factor)| range.largest() as f64 * factor)
}

fn times(b: &mut Builder, sum: ValueId, scale: ValueId) -> Result<Option<ValueId>> {
    let sum = b.cast(sum, DType::F32)?;
    b.binary(BinaryFn::Mul, sum, scale).map(Some)
}

/// Integers and scale of a value.
fn scaled(b: &mut Builder, value: ValueId) -> Result<Option<Scaled>> {
    // Views and paddings, from the value inwards.
    let (mut steps, mut at) = (Vec::new(), value);
    for _ in 0..MAX_STEPS {
        let Some((op, inputs)) = operation(b.graph, at) else { return Ok(None) };
        match op {
            Op::Map(MapFn::Binary(BinaryFn::Mul)) => {
                let (x, scale) = (inputs[0], inputs[1]);
                let Some(mut found) = dequantized(b, x, scale, at)? else { return Ok(None) };
                while let Some(step) = steps.pop() {
                    match moved(b, found, step)? {
                        Some(next) => found = next,
                        None => return Ok(None),
                    }
                }
                return Ok(Some(found));
            }
            Op::Pad { .. } if splat(b.graph, inputs[1]) != Some(0.0) => return Ok(None),
            Op::Pad { .. } => {}
            op if op.is_view() => {}
            _ => return Ok(None),
        }
        let next = inputs[0];
        steps.push(op.clone());
        at = next;
    }
    Ok(None)
}

/// `x * scale`, where `x` is a tensor of bytes as floats, less a zero point.
fn dequantized(b: &mut Builder, x: ValueId, scale: ValueId, product: ValueId) -> Result<Option<Scaled>> {
    let shape = b.shape(x);
    if shape != b.shape(product) || b.dtype(x) != DType::F32 {
        return Ok(None);
    }
    let Some(integers) = integers(b, x)? else { return Ok(None) };
    let scale = match b.ty(scale).elements() == Dim::ONE {
        true => b.reshape(scale, vec![])?,
        false if !b.graph.is_constant(scale) => return Ok(None),
        false => with_rank(b, scale, shape.len())?,
    };
    Ok(Some(Scaled { integers, scale }))
}

fn integers(b: &mut Builder, x: ValueId) -> Result<Option<ValueId>> {
    let Some((bytes, zero)) = shifted_bytes(b.graph, x) else { return Ok(None) };
    let wide = b.cast(bytes, DType::I32)?;
    let Some(zero) = zero else { return Ok(Some(wide)) };
    let zero = match splat(b.graph, zero) {
        Some(number) if number.fract() == 0.0 && (-128.0..=255.0).contains(&number) => {
            b.constant(Tensor::scalar(number as i32))
        }
        Some(_) => return Ok(None),
        None => match bytes_of_one(b.graph, zero) {
            Some(bytes) => b.cast(bytes, DType::I32)?,
            None => return Ok(None),
        },
    };
    b.binary(BinaryFn::Sub, wide, zero).map(Some)
}

/// Bytes as floats, of the same shape, and what is subtracted from them, if anything is.
fn shifted_bytes(graph: &Graph, x: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    let (source, zero) = match operation(graph, x) {
        Some((Op::Map(MapFn::Binary(BinaryFn::Sub)), &[source, zero])) => (source, Some(zero)),
        _ => (x, None),
    };
    let bytes = bytes(graph, source)?;
    (graph.ty(bytes).shape == graph.ty(x).shape).then_some((bytes, zero))
}

/// The bytes that a float conversion reads.
fn bytes(graph: &Graph, value: ValueId) -> Option<ValueId> {
    match operation(graph, value)? {
        (Op::Map(MapFn::Cast { .. }), inputs) => {
            matches!(graph.ty(inputs[0]).dtype, DType::I8 | DType::U8).then_some(inputs[0])
        }
        _ => None,
    }
}

fn bytes_of_one(graph: &Graph, value: ValueId) -> Option<ValueId> {
    bytes(graph, value).filter(|&bytes| graph.ty(bytes).elements() == Dim::ONE)
}

/// A view or a padding by zeros, of the integers and of the scale.
fn moved(b: &mut Builder, x: Scaled, step: Op) -> Result<Option<Scaled>> {
    let before = b.shape(x.integers);
    let fill = b.constant(Tensor::scalar(0i32));
    let integers = match step {
        Op::Pad { .. } => b.emit1(step.clone(), &[x.integers, fill])?,
        _ => b.emit1(step.clone(), &[x.integers])?,
    };
    if b.shape(x.scale).is_empty() {
        return Ok(Some(Scaled { integers, ..x }));
    }
    let scale = match &step {
        Op::Transpose { perm } => b.transpose(x.scale, perm)?,
        Op::Reshape { shape } => match reshaped(b, x.scale, &before, shape)? {
            Some(scale) => scale,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(Scaled { integers, scale }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;
    use onnxc_ir::graph::{OriginId, TensorType};

    /// Sums that fit floats equal those of integers; sums of more terms do not.
    #[test]
    fn depthwise_sums_of_so_many_terms() {
        let becomes = |taps: i64| {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, OriginId::new(0));
            let shape = vec![Dim::from(taps), Dim::from(4i64)];
            let bytes = b.input("x", TensorType::new(DType::U8, shape), None);
            let x = b.cast(bytes, DType::F32).unwrap();
            let x = b.binary_scalar(BinaryFn::Mul, x, 0.5).unwrap();
            let codes = b.constant(Tensor::from_slice(&[taps as usize, 4], &vec![-3i8; 4 * taps as usize]));
            let weights = b.cast(codes, DType::F32).unwrap();
            let weights = b.binary_scalar(BinaryFn::Mul, weights, 0.25).unwrap();
            let product = b.binary(BinaryFn::Mul, x, weights).unwrap();
            let sum = b.reduce(ReduceFn::Sum, product, &[0]).unwrap();
            graph.outputs.push(("y".into(), sum));
            let mut found = graph.clone();
            run(&mut found, &Options { pack: PackPolicy::WIDE, ..Options::default() }).unwrap();
            found != graph
        };
        assert!(becomes(MOST_TAPS) && !becomes(MOST_TAPS + 1));
    }
}
