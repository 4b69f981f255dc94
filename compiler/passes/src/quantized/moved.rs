//! Bytes that are dequantized, moved or compared, and quantized again alike: the bytes are moved and compared.
//!
//! Quantizing keeps the order, so it may come before what only moves elements or picks the larger ones. What remains is what
//! both conversions do to a byte; where they give each byte back, both fall away. That is tried out for all bytes, in
//! the arithmetic that the model would use.

use super::MAX_STEPS;
use crate::rewrite::{operation, splat};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, MapFn, NodeId, Op, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// What happens to an element between the bytes that are read and those that are made.
enum ElementStep {
    /// A number keeps its order beside others.
    Number(Number),
    /// It moves.
    Move(Op),
    /// It moves, and elements of this value surround it.
    Surround(Op, f32),
    /// It is one of those that are compared.
    Pick(Op),
}

#[derive(Clone, Copy)]
enum Number {
    Add(f32),
    Sub(f32),
    /// By a positive number.
    Mul(f32),
    Div(f32),
    Min(f32),
    Max(f32),
    Round,
}

impl Number {
    fn of(op: MapFn, constant: Option<f32>) -> Option<Number> {
        let positive = constant.filter(|&constant| constant > 0.0 && constant.is_normal());
        match op {
            MapFn::Unary(UnaryFn::Round) => Some(Number::Round),
            MapFn::Binary(BinaryFn::Mul) => positive.map(Number::Mul),
            MapFn::Binary(BinaryFn::Div) => positive.map(Number::Div),
            MapFn::Binary(BinaryFn::Add) => constant.map(Number::Add),
            MapFn::Binary(BinaryFn::Sub) => constant.map(Number::Sub),
            MapFn::Binary(BinaryFn::Min) => constant.map(Number::Min),
            MapFn::Binary(BinaryFn::Max) => constant.map(Number::Max),
            _ => None,
        }
    }

    fn apply(self, x: f32) -> f32 {
        match self {
            Number::Add(by) => x + by,
            Number::Sub(by) => x - by,
            Number::Mul(by) => x * by,
            Number::Div(by) => x / by,
            Number::Min(limit) => x.min(limit),
            Number::Max(limit) => x.max(limit),
            Number::Round => x.round_ties_even(),
        }
    }
}

/// A conversion to bytes: the bytes that it reads, moved as the floats were in between.
pub(super) fn moved(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let (dtype, mut at) = (b.dtype(node.outputs[0]), node.inputs[0]);
    // From the conversion inwards.
    let mut steps = Vec::new();
    let bytes = loop {
        let Some((op, inputs)) = operation(b.graph, at).filter(|_| b.dtype(at) == DType::F32) else {
            return Ok(None);
        };
        let other = inputs.get(1).copied();
        let constant = other.and_then(|other| splat(b.graph, other)).map(|number| number as f32);
        let same_shape = b.ty(inputs[0]).shape == b.ty(at).shape;
        let step = match op {
            Op::Map(MapFn::Cast { .. }) => break inputs[0],
            Op::Map(function) if same_shape => Number::of(*function, constant).map(ElementStep::Number),
            Op::Pad { .. } => constant.map(|fill| ElementStep::Surround(op.clone(), fill)),
            Op::Reduce { op: ReduceFn::Max | ReduceFn::Min, .. } => Some(ElementStep::Pick(op.clone())),
            op if op.is_view() => Some(ElementStep::Move(op.clone())),
            _ => None,
        };
        let Some(step) = step.filter(|_| steps.len() < MAX_STEPS) else { return Ok(None) };
        steps.push(step);
        at = inputs[0];
    };
    let all = match dtype {
        DType::I8 => -128..128,
        _ => 0..256,
    };
    if b.dtype(bytes) != dtype || !all.clone().all(|byte| through(&steps, byte as f32) == byte as f32) {
        return Ok(None);
    }
    let mut value = bytes;
    for (at, step) in steps.iter().enumerate().rev() {
        value = match step {
            ElementStep::Number(_) => continue,
            ElementStep::Move(op) | ElementStep::Pick(op) => b.emit1(op.clone(), &[value])?,
            ElementStep::Surround(op, fill) => {
                let fill = through(&steps[..at], *fill).clamp(all.start as f32, (all.end - 1) as f32);
                let fill = match dtype {
                    DType::I8 => Tensor::scalar(fill as i8),
                    _ => Tensor::scalar(fill as u8),
                };
                let fill = b.constant(fill);
                b.emit1(op.clone(), &[value, fill])?
            }
        };
    }
    Ok(Some(value))
}

/// What becomes of a number, `steps` being in reverse.
fn through(steps: &[ElementStep], x: f32) -> f32 {
    steps.iter().rev().fold(x, |x, step| match step {
        ElementStep::Number(number) => number.apply(x),
        _ => x,
    })
}
