//! Loops whose bodies rows write, one state after the other.

use std::sync::Arc;

use super::iterate::as_type;
use crate::Subgraph;
use crate::inner::Inner;
use crate::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::op::Shapes;
use onnxc_ir::graph::{DataSymbol, Op, Sym, TensorType};

/// A loop with a condition, and a counter that is a size: states may have an axis that grows by one in each iteration.
pub struct Written {
    inner: Inner,
    /// Condition, counter, then what the row carries.
    initial: Vec<ValueId>,
    inputs: Vec<ValueId>,
    /// The axis that grows, and how much longer it is than the counter.
    growing: Vec<Option<(usize, Dim)>>,
    counter: Sym,
    first: Dim,
    most: Dim,
}

/// What a loop gives.
pub struct Results {
    pub states: Vec<ValueId>,
    /// A part for each iteration, `[counter - first, ..]`.
    pub parts: Vec<ValueId>,
    pub counter: Dim,
}

impl Written {
    /// A loop that runs while a condition holds, and the counter, which begins with `first`, is less than `most`.
    pub fn new(cx: &mut NodeCx<'_, '_>, condition: ValueId, first: Dim, most: Dim) -> Result<Written> {
        let counter = cx.b.fresh_symbol();
        let mut inner = Inner::new(cx.b);
        let start = cx.b.dim_scalar(&first)?;
        let types = [condition, start].map(|value| cx.b.ty(value).clone());
        let inputs = types.map(|ty| inner.builder().input("", ty, None));
        let bound = Some(most.clone());
        inner.graph.data.insert(counter, DataSymbol::new(inputs[1], 0, bound));
        let (initial, inputs) = (vec![condition, start], inputs.to_vec());
        Ok(Written { inner, initial, inputs, growing: vec![None; 2], counter, first, most })
    }

    /// The counter inside.
    pub fn counter(&self) -> Dim {
        Dim::sym(self.counter)
    }

    /// The counter inside, an i64 scalar.
    pub fn count(&self) -> ValueId {
        self.inputs[1]
    }

    /// One more state; gives its value at the start of an iteration.
    pub fn state(&mut self, cx: &mut NodeCx<'_, '_>, initial: ValueId, grows: Option<usize>) -> ValueId {
        let TensorType { dtype, mut shape } = cx.b.ty(initial).clone();
        let grows = grows.map(|axis| {
            let more = shape[axis].clone() - self.first.clone();
            shape[axis] = self.counter() + more.clone();
            (axis, more)
        });
        self.initial.push(initial);
        self.growing.push(grows);
        let input = self.inner.builder().input("", TensorType::new(dtype, shape), None);
        self.inputs.push(input);
        input
    }

    /// What a value outside is inside.
    pub fn take(&mut self, cx: &NodeCx<'_, '_>, value: ValueId) -> ValueId {
        self.inner.take(cx.b.graph, value)
    }

    /// Emits into the body.
    pub fn emit<T>(
        &mut self,
        cx: &mut NodeCx<'_, '_>,
        emit: impl FnOnce(&mut Builder<'_>) -> Result<T>,
    ) -> Result<T> {
        self.inner.graph.adopt_symbols(cx.b.graph);
        let result = emit(&mut self.inner.builder());
        cx.b.graph.adopt_symbols(&self.inner.graph);
        result
    }

    /// Emits a body of the node into the loop's.
    pub fn inline(
        &mut self,
        cx: &mut NodeCx<'_, '_>,
        body: &Subgraph,
        inputs: &[ValueId],
    ) -> Result<Vec<ValueId>> {
        self.inner.graph.adopt_symbols(cx.b.graph);
        let inputs: Vec<Item> = inputs.iter().copied().map(Item::Tensor).collect();
        let results = cx.bodies.repeat(cx.b.graph, &mut self.inner, body, &inputs, self.counter);
        cx.b.graph.adopt_symbols(&self.inner.graph);
        tensors(&results?)
    }

    /// The loop, with the condition of the next iteration, the next states, and parts that are stacked.
    pub fn finish(
        mut self,
        cx: &mut NodeCx<'_, '_>,
        condition: ValueId,
        next: &[ValueId],
        parts: &[ValueId],
    ) -> Result<Results> {
        let (counter, inputs, growing) = (self.count(), self.inputs.clone(), self.growing.clone());
        let step = self.counter() + Dim::ONE;
        let outputs = self.emit(cx, |b| {
            let following = b.binary_scalar(BinaryFn::Add, counter, 1.0)?;
            let all: Vec<ValueId> = [condition, following].into_iter().chain(next.iter().copied()).collect();
            let mut outputs = vec![];
            for ((value, &input), grows) in all.into_iter().zip(&inputs).zip(&growing) {
                let mut shape = b.shape(input);
                if let Some((axis, more)) = grows {
                    shape[*axis] = step.clone() + more.clone();
                }
                outputs.push(as_type(b, value, &shape)?);
            }
            outputs.extend(parts);
            Ok(outputs)
        })?;
        let states = self.inputs.len();
        let last = cx.b.fresh_symbol();
        let mut shapes = Shapes::new();
        for (at, grows) in self.growing.iter().enumerate() {
            if let Some((axis, more)) = grows {
                let mut shape = cx.b.shape(self.initial[at]);
                shape[*axis] = Dim::sym(last) + more.clone();
                shapes.insert(at, shape);
            }
        }
        for (at, &part) in parts.iter().enumerate() {
            let length = Dim::sym(last) - self.first.clone();
            let shape = std::iter::once(length).chain(self.inner.graph.ty(part).shape.iter().cloned());
            shapes.insert(states + at, shape.collect());
        }
        self.inner.graph.outputs = outputs.into_iter().map(|value| (String::new(), value)).collect();
        let items: Vec<Item> = self.inner.graph.outputs.iter().map(|output| Item::Tensor(output.1)).collect();
        let body = self.inner.finish(&self.inputs, &items);
        let operands: Vec<ValueId> = self.initial.iter().copied().chain(body.captures).collect();
        let op = Op::Scan {
            body: Arc::new(body.graph),
            trip: self.most.clone() - self.first,
            conditional: true,
            states,
            scans: 0,
            reverse: vec![false; parts.len()],
            shapes,
        };
        let mut results = cx.b.emit(op, &operands)?;
        // No bound: a state whose size changes lies in a block that is handed from one iteration to the next.
        cx.b.graph.data.insert(last, DataSymbol::new(results[1], 0, None));
        let parts = results.split_off(states);
        Ok(Results { states: results.split_off(2), parts, counter: Dim::sym(last) })
    }
}

/// Values that are all tensors.
pub fn tensors(items: &[Item]) -> Result<Vec<ValueId>> {
    items
        .iter()
        .map(|item| match item.tensor() {
            Some(value) => Ok(value),
            None => malformed(format!("a body gives {} where a tensor is due", item.kind())),
        })
        .collect()
}
