//! What exchanges and operations cost, seconds: rough figures of clusters, which only compare one way with another.

use onnxc_ir::graph::{Dim, Op, TensorType};

use crate::layout::{State, bounds};

/// Until the first byte of an exchange is there.
const LATENCY: f64 = 20e-6;
/// Bytes a second between ranks.
const LINK: f64 = 2e9;
/// Multiply-adds a second of a rank.
const PRODUCTS: f64 = 30e9;
/// Bytes a second that a rank reads and writes.
const MEMORY: f64 = 10e9;
/// What a symbol without a value counts as.
const SYMBOL: i64 = 64;

fn number(dim: &Dim) -> f64 {
    dim.eval(&|_| Some(SYMBOL)).unwrap_or(SYMBOL).max(0) as f64
}

pub(crate) fn bytes(ty: &TensorType) -> f64 {
    number(&ty.bytes())
}

/// To have a value in another state, along an axis of the mesh with this number of ranks.
pub(crate) fn conversion(ty: &TensorType, from: State, to: State, ranks: usize) -> f64 {
    let share = (ranks - 1) as f64 / ranks as f64;
    match (from, to) {
        _ if same(ty, from, to, ranks) => 0.0,
        (State::Whole, _) => 0.0,
        (State::Cut { axis, .. }, State::Cut { axis: other, .. }) if axis != other => {
            LATENCY + bytes(ty) * share / ranks as f64 / LINK
        }
        (State::Cut { .. }, _) => LATENCY + gathered(ty, ranks),
    }
}

/// To send what all ranks lack of a value, without waiting.
pub(crate) fn gathered(ty: &TensorType, ranks: usize) -> f64 {
    bytes(ty) * (ranks - 1) as f64 / ranks as f64 / LINK
}

/// To combine partial values.
pub(crate) fn combination(ty: &TensorType, to: State, ranks: usize) -> f64 {
    match to {
        State::Whole => LATENCY + 2.0 * gathered(ty, ranks),
        State::Cut { .. } => LATENCY + gathered(ty, ranks),
    }
}

/// To hold all of a constant that is to be cut.
pub(crate) fn held(ty: &TensorType) -> f64 {
    LATENCY + bytes(ty) / MEMORY
}

pub(crate) fn same(ty: &TensorType, a: State, b: State, ranks: usize) -> bool {
    match (a, b) {
        (State::Cut { axis, unit }, State::Cut { axis: other, unit: own }) if axis == other => {
            unit == own || bounds(&ty.shape[axis], unit, ranks) == bounds(&ty.shape[axis], own, ranks)
        }
        (a, b) => a == b,
    }
}

/// To compute all of an operation.
pub(crate) fn work(op: &Op, inputs: &[&TensorType], results: &[&TensorType]) -> f64 {
    let moved: f64 = inputs.iter().chain(results).map(|ty| bytes(ty)).sum::<f64>() / MEMORY;
    match op {
        Op::Contract { batch, m, k, .. } => {
            let inner: f64 = inputs[0].shape[batch + m..batch + m + k].iter().map(number).product();
            moved + results.iter().map(|ty| number(&ty.elements())).sum::<f64>() * inner / PRODUCTS
        }
        op if op.is_view() => 0.0,
        _ => moved,
    }
}

/// The largest share of these blocks.
pub(crate) fn share(blocks: &Dim, ranks: usize) -> f64 {
    let blocks = number(blocks);
    if blocks < 1.0 { 1.0 } else { (blocks / ranks as f64).ceil() / blocks }
}
