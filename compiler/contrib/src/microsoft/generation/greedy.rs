//! The most likely token at each step, or one that is drawn.

use super::model::Model;
use super::scores::Scores;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, I32};
use onnxc_ir::graph::{Op, Tensor};
use onnxc_ops::control::written::Written;
use onnxc_ops::row::*;

/// How a token of each row is picked from scores `[rows, vocabulary]`; i64 `[rows]`.
pub(super) trait Pick {
    fn first(&mut self, cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId>;

    /// The same inside the loop.
    fn next(&mut self, cx: &mut NodeCx<'_, '_>, turn: &mut Written, scores: ValueId) -> Result<ValueId>;
}

/// The most likely token.
pub(super) struct Best;

fn best(b: &mut Builder<'_>, scores: ValueId) -> Result<ValueId> {
    let best = b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[scores])?;
    b.squeeze(best, &[1])
}

impl Pick for Best {
    fn first(&mut self, cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId> {
        best(cx.b, scores)
    }

    fn next(&mut self, cx: &mut NodeCx<'_, '_>, turn: &mut Written, scores: ValueId) -> Result<ValueId> {
        turn.emit(cx, |b| best(b, scores))
    }
}

/// Tokens that end and fill a sequence.
#[derive(Clone, Copy)]
struct Ends {
    eos: i64,
    pad: i64,
}

impl Ends {
    /// Tokens with one more, which pads rows that have ended, and which rows have ended.
    fn joined(
        self,
        b: &mut Builder<'_>,
        ids: ValueId,
        token: ValueId,
        done: ValueId,
    ) -> Result<(ValueId, ValueId)> {
        let (eos, pad) = (b.constant(Tensor::scalar(self.eos)), b.constant(Tensor::scalar(self.pad)));
        let ends = b.compare(CompareFn::Eq, token, eos)?;
        let done = b.binary(BinaryFn::Or, done, ends)?;
        let token = b.select(done, pad, token)?;
        let token = b.cast(token, I32)?;
        let token = b.unsqueeze(token, &[1])?;
        Ok((b.concat(&[ids, token], 1)?, done))
    }
}

/// Whether some row goes on: a bool scalar.
pub(super) fn some_go_on(b: &mut Builder<'_>, done: ValueId) -> Result<ValueId> {
    let all = b.reduce(ReduceFn::And, done, &[0])?;
    let all = b.squeeze(all, &[0])?;
    b.unary(UnaryFn::Not, all)
}

/// Sequences of `longest` tokens, i32 `[rows, longest]`.
pub(super) fn sequences(
    cx: &mut NodeCx<'_, '_>,
    model: &Model,
    scores: &Scores,
    longest: &Dim,
    pick: &mut dyn Pick,
) -> Result<ValueId> {
    let ends = Ends { eos: cx.int("eos_token_id")?, pad: cx.int("pad_token_id")? };
    let first = scores.apply(cx.b, model.logits, model.start)?;
    let token = pick.first(cx, first)?;
    let none = cx.b.scalar(Bool, 0.0);
    let none = cx.b.expand(none, cx.b.shape(token))?;
    let (ids, done) = ends.joined(cx.b, model.start, token, none)?;
    let goes_on = some_go_on(cx.b, done)?;

    let length = cx.b.shape(model.start)[1].clone();
    let mut turn = Written::new(cx, goes_on, length, longest.clone() - Dim::ONE)?;
    let mut running = model.enter(cx, &mut turn, None)?;
    let (known, ended) = (turn.state(cx, ids, Some(1)), turn.state(cx, done, None));
    let scores = scores.enter(cx, &mut turn);
    let logits = model.step(cx, &mut turn, &mut running, known)?;
    let found = turn.emit(cx, |b| scores.apply(b, logits, known))?;
    let token = pick.next(cx, &mut turn, found)?;
    let (ids, done) = turn.emit(cx, |b| ends.joined(b, known, token, ended))?;
    let goes_on = turn.emit(cx, |b| some_go_on(b, done))?;
    let mut next = model.leave(cx, &mut turn, running, None)?;
    next.extend([ids, done]);
    let results = turn.finish(cx, goes_on, &next, &[])?;
    let ids = results.states[results.states.len() - 2];
    let pad = cx.b.constant(Tensor::scalar(ends.pad as i32));
    let missing = longest.clone() - Dim::ONE - results.counter;
    let ids = cx.b.pad(ids, pad, vec![Dim::ZERO; 2], vec![Dim::ZERO, missing])?;
    let rows = cx.b.shape(ids)[0].clone();
    cx.b.reshape(ids, vec![rows, longest.clone()])
}
