//! What a cell attends to: places of a memory, weighed by its state (Bahdanau, Cho and Bengio, "Neural Machine Translation by
//! Jointly Learning to Align and Translate", 2014). What it sees is part of its input in the next step.

use super::{Layer, part};
use crate::matmul::product;
use crate::row::*;
use crate::softmax::softmax_along;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Op, RhsLayout};

/// Numbers of the inputs; QW is the first.
const FIRST: usize = 8;

/// A memory for one direction, as the values that a step needs. `D` is the size of an element, `K` that of what is compared.
pub(super) struct Memory {
    /// In this order: weights `[A, 4 * H]` of what is seen, keys `[B, M, K]`, elements `[B, M, D]`, weights of the state `[H, K]`
    /// and of the sum `[K]`, and the optional ones.
    pub values: Vec<ValueId>,
    /// Whether places beyond the end of a row are masked, by a bool `[B, M]`.
    masked: bool,
    /// Whether the state and what is seen go through a layer, of weights `[H, A]` and `[D, A]`.
    layered: bool,
    /// `A`: what a step hands to the next one.
    pub size: Dim,
}

impl Memory {
    pub(super) fn new(cx: &mut NodeCx<'_, '_>, layer: &Layer, direction: usize) -> Result<Memory> {
        let w = cx.input(1)?;
        let [queries, keys, sums, memory] =
            [cx.input(FIRST)?, cx.input(FIRST + 1)?, cx.input(FIRST + 2)?, cx.input(FIRST + 3)?];
        let (lengths, wrapper) = (cx.optional(FIRST + 4), cx.optional(FIRST + 5));
        let b = &mut *cx.b;
        let own = b.shape(layer.x)[2].clone();
        let depth = b.shape(memory)[2].clone();
        let size = match wrapper {
            Some(wrapper) => b.shape(wrapper)[2].clone(),
            None => depth.clone(),
        };
        let w = part(b, w, 0, direction)?;
        let w = b.slice_axis(w, 1, own, size.clone())?;
        let w = b.transpose(w, &[1, 0])?;
        let keys = part(b, keys, 0, direction)?;
        let keys = product(b, memory, keys)?;
        let mut values = vec![w, keys, memory, part(b, queries, 0, direction)?, part(b, sums, 0, direction)?];
        if let Some(lengths) = lengths {
            let places = b.iota(vec![b.shape(memory)[1].clone()], 0)?;
            let lengths = b.cast(lengths, DType::I64)?;
            let lengths = b.unsqueeze(lengths, &[1])?;
            values.push(b.compare(CompareFn::Lt, places, lengths)?);
        }
        if let Some(wrapper) = wrapper {
            let wrapper = part(b, wrapper, 0, direction)?;
            let hidden = Dim::from(layer.hidden);
            values.push(b.slice_axis(wrapper, 0, Dim::ZERO, hidden.clone())?);
            values.push(b.slice_axis(wrapper, 0, hidden, depth)?);
        }
        Ok(Memory { values, masked: lengths.is_some(), layered: wrapper.is_some(), size })
    }

    /// What a state sees, `[B, A]`; `values` are those of the memory in the body.
    pub(super) fn seen(&self, b: &mut Builder<'_>, values: &[ValueId], state: ValueId) -> Result<ValueId> {
        let [_, keys, memory, queries, sums] = [0, 1, 2, 3, 4].map(|at| values[at]);
        let query = b.matmul(state, queries)?;
        let query = b.unsqueeze(query, &[1])?;
        let energy = b.binary(BinaryFn::Add, keys, query)?;
        let energy = b.unary(UnaryFn::Tanh, energy)?;
        let energy = b.binary(BinaryFn::Mul, energy, sums)?;
        let energy = b.reduce(ReduceFn::Sum, energy, &[2])?;
        let mut energy = b.squeeze(energy, &[2])?;
        if let (true, Some(known)) = (self.masked, values.get(5).copied()) {
            let never = b.scalar(b.dtype(energy), f64::NEG_INFINITY);
            energy = b.select(known, energy, never)?;
        }
        let weights = softmax_along(b, energy, 1)?;
        let weights = b.unsqueeze(weights, &[1])?;
        let seen =
            b.emit1(Op::Contract { batch: 1, m: 1, k: 1, rhs: RhsLayout::Plain }, &[weights, memory])?;
        let seen = b.squeeze(seen, &[1])?;
        let seen = match (self.layered, values) {
            (true, &[.., of_state, of_seen]) => {
                let one = b.matmul(state, of_state)?;
                let other = b.matmul(seen, of_seen)?;
                b.binary(BinaryFn::Add, one, other)?
            }
            _ => seen,
        };
        // The memory may have another dim for the rows of the batch, and a loop keeps the shapes of its states.
        let shape = vec![b.shape(state)[0].clone(), b.shape(seen)[1].clone()];
        if b.shape(seen) == shape { Ok(seen) } else { b.reshape(seen, shape) }
    }
}
