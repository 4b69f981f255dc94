//! What is done to the scores of next tokens before one is picked.

use super::timestamps::Timestamps;
use crate::microsoft::standard::without_repeats;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, F32, I64};
use onnxc_ir::graph::{Op, Requirement, Tensor};
use onnxc_ops::control::written::Written;
use onnxc_ops::row::*;

/// The score of what must not be picked.
pub(super) const LOWEST: f64 = f32::MIN as f64;

/// Inputs of a node that scores depend on, by number.
pub(super) struct Places {
    pub min_length: usize,
    pub repetition: usize,
    pub vocab_mask: usize,
    pub prefix_mask: usize,
}

/// Operations on scores, f32 `[rows, vocabulary]`, in the order in which they are done.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    /// f32 scalar.
    repetition: Option<ValueId>,
    ngram: usize,
    /// Tokens that may be picked, bool `[vocabulary]`.
    allowed: Option<ValueId>,
    /// The same of the first step, bool `[rows, vocabulary]`.
    prefix: Option<ValueId>,
    /// i64 scalar.
    min_length: Option<ValueId>,
    eos: i64,
    /// f32 scalar.
    pub temperature: Option<ValueId>,
    /// f32, broadcast to the scores.
    pub presence: Option<ValueId>,
    pub timestamps: Option<Timestamps>,
}

impl Scores {
    /// The operations that a node asks for; each sequence has `beams` rows.
    pub(super) fn new(cx: &mut NodeCx<'_, '_>, places: &Places, beams: &Dim) -> Result<Scores> {
        let ngram = match cx.int("no_repeat_ngram_size")? {
            size @ ..=0xffff => usize::try_from(size).unwrap_or(0),
            other => return malformed(format!("no_repeat_ngram_size is {other}; it may be at most 65535")),
        };
        let repetition = scalar_of(cx, places.repetition, F32)?;
        let repetition =
            repetition.filter(|&value| cx.b.known(value).is_none_or(|known| *known != [Dim::ONE]));
        if let Some(penalty) = repetition {
            requires_positive(cx.b, penalty, cx.def.inputs[places.repetition].name)?;
        }
        let min_length = scalar_of(cx, places.min_length, I64)?;
        let [allowed, prefix] = [places.vocab_mask, places.prefix_mask].map(|at| cx.optional(at));
        let b = &mut *cx.b;
        let allowed = allowed.map(|mask| b.cast(mask, Bool)).transpose()?;
        let prefix = prefix.map(|mask| {
            let mask = b.cast(mask, Bool)?;
            super::model::spread(b, mask, 0, beams)
        });
        let (prefix, eos) = (prefix.transpose()?, cx.int("eos_token_id")?);
        Ok(Scores {
            repetition,
            ngram,
            allowed,
            prefix,
            min_length,
            eos,
            temperature: None,
            presence: None,
            timestamps: None,
        })
    }

    /// The operations inside a loop, which has the steps after the first.
    pub(super) fn enter(&self, cx: &NodeCx<'_, '_>, turn: &mut Written) -> Scores {
        let mut take = |value: Option<ValueId>| value.map(|value| turn.take(cx, value));
        Scores {
            repetition: take(self.repetition),
            allowed: take(self.allowed),
            prefix: None,
            min_length: take(self.min_length),
            temperature: take(self.temperature),
            presence: take(self.presence),
            timestamps: self.timestamps.map(|own| own.applying(take(own.applies))),
            ..*self
        }
    }

    /// Scores after `ids`, i32 `[rows, length]`.
    pub(super) fn apply(&self, b: &mut Builder<'_>, scores: ValueId, ids: ValueId) -> Result<ValueId> {
        let (shape, length) = (b.shape(scores), b.shape(ids)[1].clone());
        let (mut scores, ids) = (scores, b.cast(ids, I64)?);
        let lowest = b.scalar(F32, LOWEST);
        if let Some(penalty) = self.repetition {
            let no = b.scalar(Bool, 0.0);
            let no = b.expand(no, shape.clone())?;
            let yes = b.scalar(Bool, 1.0);
            let yes = b.expand(yes, b.shape(ids))?;
            let seen = b.emit1(Op::ScatterElements { axis: 1, combine: None }, &[no, ids, yes])?;
            let zero = b.scalar(F32, 0.0);
            let negative = b.compare(CompareFn::Lt, scores, zero)?;
            let (more, less) =
                (b.binary(BinaryFn::Mul, scores, penalty)?, b.binary(BinaryFn::Div, scores, penalty)?);
            let lower = b.select(negative, more, less)?;
            scores = b.select(seen, lower, scores)?;
        }
        if self.ngram > 0 {
            scores = without_repeats(b, ids, scores, self.ngram, LOWEST)?;
        }
        for mask in [self.allowed, self.prefix].into_iter().flatten() {
            let columns = b.shape(mask).last().cloned().unwrap_or(Dim::ONE);
            let requirement = Requirement::equal(columns, shape[1].clone());
            b.require(
                requirement.says("the last dimension of a mask of the vocabulary", "the number of tokens"),
            )?;
            scores = b.select(mask, scores, lowest)?;
        }
        if let Some(least) = self.min_length {
            let length = b.dim_scalar(&length)?;
            let short = b.compare(CompareFn::Lt, length, least)?;
            let ends = is_token(b, &shape[1], self.eos)?;
            let hidden = b.binary(BinaryFn::And, short, ends)?;
            scores = b.select(hidden, lowest, scores)?;
        }
        if let Some(temperature) = self.temperature {
            scores = b.binary(BinaryFn::Div, scores, temperature)?;
        }
        if let Some(presence) = self.presence {
            scores = b.binary(BinaryFn::Sub, scores, presence)?;
        }
        if let Some(timestamps) = self.timestamps {
            scores = timestamps.apply(b, scores, ids)?;
        }
        Ok(scores)
    }
}

/// Has a run end in which an f32 scalar is not above 0: scores divided by it would be infinite, and their probabilities NaN.
fn requires_positive(b: &mut Builder<'_>, scalar: ValueId, name: &str) -> Result<()> {
    let zero = b.scalar(F32, 0.0);
    let positive = b.compare(CompareFn::Gt, scalar, zero)?;
    let positive = b.cast(positive, I64)?;
    let positive = b.sizes(positive, &|_| Some(Dim::ONE))?.remove(0);
    let text = format!("{name} is 0, negative or no number; it must be more than 0");
    b.require(Requirement::equal(positive, Dim::ONE).stated(text, &[]))
}

/// Whether each token of a vocabulary is this one, bool `[vocabulary]`.
pub(super) fn is_token(b: &mut Builder<'_>, vocabulary: &Dim, token: i64) -> Result<ValueId> {
    let all = b.iota(vec![vocabulary.clone()], 0)?;
    let token = b.constant(Tensor::scalar(token));
    b.compare(CompareFn::Eq, all, token)
}

/// An input of one element, as a scalar of a type.
pub(super) fn scalar_of(cx: &mut NodeCx<'_, '_>, at: usize, dtype: DType) -> Result<Option<ValueId>> {
    let Some(value) = cx.optional(at) else { return Ok(None) };
    let value = to_scalar(cx, value)?;
    cx.b.cast(value, dtype).map(Some)
}
