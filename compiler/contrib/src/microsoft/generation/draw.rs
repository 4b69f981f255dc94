//! Tokens that are drawn from the likely ones.

use super::greedy::Pick;
use super::scores::scalar_of;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, F32, F64, I64};
use onnxc_ir::graph::Op;
use onnxc_ops::control::written::Written;
use onnxc_ops::random::{Generator, drawn};
use onnxc_ops::row::*;
use onnxc_ops::softmax::softmax_along;

/// Draws from the tokens that are left when the least likely ones are filtered out.
pub(super) struct Draw {
    /// Numbers below 1 for all steps, f64 `[steps, rows]`.
    uniform: ValueId,
    /// Number of tokens before the first step.
    start: Dim,
    filter: Filter,
}

/// Which tokens stay, by the sum of the probabilities of those that are more likely, or that are less.
#[derive(Clone, Copy)]
struct Filter {
    top_p: f32,
    /// Tokens that stay in any case, where sums are those of less likely ones.
    keep: usize,
    /// Sums of more likely ones: the first one after which they exceed `top_p` is the last one to stay.
    custom: bool,
    /// Score of what is filtered out.
    value: f32,
}

impl Draw {
    pub(super) fn new(cx: &mut NodeCx<'_, '_>, start: &Dim, longest: &Dim) -> Result<Draw> {
        let seed = scalar_of(cx, 8, I64)?;
        let rows = cx.b.shape(cx.input(0)?)[0].clone();
        let steps = longest.clone() - start.clone();
        let uniform = Generator::of_input(cx, seed)?.below_one(cx, vec![steps, rows], F64)?;
        let keep = usize::try_from(cx.int("min_tokens_to_keep")?).unwrap_or(0);
        let (top_p, value) = (cx.float("top_p")?, cx.float("filter_value")?);
        let filter = Filter { top_p, keep, custom: cx.int("custom")? != 0, value };
        Ok(Draw { uniform, start: start.clone(), filter })
    }
}

impl Pick for Draw {
    fn first(&mut self, cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId> {
        let number = cx.b.slice_axis(self.uniform, 0, Dim::ZERO, Dim::ONE)?;
        self.filter.drawn(cx.b, scores, number)
    }

    fn next(&mut self, cx: &mut NodeCx<'_, '_>, turn: &mut Written, scores: ValueId) -> Result<ValueId> {
        let uniform = turn.take(cx, self.uniform);
        let step = turn.counter() - self.start.clone() + Dim::ONE;
        let filter = self.filter;
        turn.emit(cx, |b| {
            let number = b.slice_axis(uniform, 0, step, Dim::ONE)?;
            filter.drawn(b, scores, number)
        })
    }
}

impl Filter {
    /// A token of each row, i64 `[rows]`, of scores `[rows, vocabulary]` and numbers below 1, `[1, rows]`.
    fn drawn(self, b: &mut Builder<'_>, scores: ValueId, number: ValueId) -> Result<ValueId> {
        let shape = b.shape(scores);
        let (sorted, order) = b.sort(scores, 1, self.custom, shape[1].clone())?;
        let likely = softmax_along(b, sorted, 1)?;
        let cumulate = Op::Cumulate { op: ReduceFn::Sum, axis: 1, exclusive: self.custom, reverse: false };
        let sums = b.emit1(cumulate, &[likely])?;
        let rank = b.iota(vec![Dim::ONE, shape[1].clone()], 1)?;
        let dropped = if self.custom {
            let top = b.scalar(F32, f64::from(self.top_p));
            let above = b.compare(CompareFn::Gt, sums, top)?;
            let zero = b.scalar(I64, 0.0);
            let behind = b.compare(CompareFn::Gt, rank, zero)?;
            b.binary(BinaryFn::And, above, behind)?
        } else {
            let rest = b.scalar(F32, f64::from(1.0 - self.top_p));
            let below = b.compare(CompareFn::Le, sums, rest)?;
            let count = b.dim_scalar(&shape[1])?;
            let end = b.binary_scalar(BinaryFn::Sub, count, self.keep as f64)?;
            let end = b.binary_scalar(BinaryFn::Max, end, 1.0)?;
            let before = b.compare(CompareFn::Lt, rank, end)?;
            b.binary(BinaryFn::And, below, before)?
        };
        let no = b.scalar(Bool, 0.0);
        let no = b.expand(no, shape.clone())?;
        let dropped = b.emit1(Op::ScatterElements { axis: 1, combine: None }, &[no, order, dropped])?;
        let value = b.scalar(F32, f64::from(self.value));
        let scores = b.select(dropped, value, scores)?;
        let number = b.reshape(number, vec![shape[0].clone(), Dim::ONE])?;
        let token = drawn(b, scores, number)?;
        b.squeeze(token, &[1])
    }
}
