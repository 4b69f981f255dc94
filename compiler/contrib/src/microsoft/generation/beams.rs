//! Beam search: several sequences of each row at a time, and the best ones that have ended.
//!
//! After Wolf et al., "Transformers: State-of-the-Art Natural Language Processing", 2020, whose library has this form of it: of
//! the `2 K` best continuations of `K` beams those that end a sequence are kept as hypotheses, if they are among the first `K`,
//! and the first `K` others are the beams of the next step. A row is done once it has `K` hypotheses that no beam can better.

use super::greedy::some_go_on;
use super::model::Model;
use super::scores::{LOWEST, Places, Scores, scalar_of};
use super::timestamps::Timestamps;
use super::{MOST_BEAMS, longest, requires_more};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, F32, I32, I64};
use onnxc_ir::graph::{Op, Requirement, Tensor};
use onnxc_ops::control::written::Written;
use onnxc_ops::row::*;
use onnxc_ops::softmax::{log_softmax_along, softmax_along};

/// What the search depends on. Each of `rows` sequences has `beams` beams.
struct Search {
    rows: Dim,
    beams: Dim,
    longest: Dim,
    eos: i64,
    pad: i64,
    early: bool,
    /// f32 scalar.
    penalty: ValueId,
}

/// Hypotheses of each row, best first, and beams. `R` rows, `K` beams, `M` tokens at most.
#[derive(Clone, Copy)]
struct State {
    /// Tokens of all beams, i32 `[R K, length]`.
    ids: ValueId,
    /// Sums of the scores of their tokens, f32 `[R, K]`.
    totals: ValueId,
    /// Scores of hypotheses, f32 `[R, K]`, and their tokens, i32 `[R, K, M]`.
    ratings: ValueId,
    finished: ValueId,
    /// Number of hypotheses, i64 `[R, 1]`.
    count: ValueId,
    /// Whether a row is done, bool `[R, 1]`.
    done: ValueId,
}

impl State {
    fn all(&self) -> [ValueId; 6] {
        [self.ids, self.totals, self.ratings, self.finished, self.count, self.done]
    }
}

/// What a step gives besides the next state.
struct BeamStep {
    state: State,
    /// The beam of all that each beam goes on from, i64 `[R K]`.
    parents: ValueId,
    /// Scores of all continuations, f32 `[R, K, vocabulary]`.
    told: ValueId,
}

/// A number that an input says, at most `most`.
fn number(cx: &mut NodeCx<'_, '_>, at: usize, most: &Dim) -> Result<Dim> {
    cx.with_count(at, Some(1))?;
    let found = cx.sizes_within(at, &|_| Some(most.clone()))?;
    let name = cx.def.inputs[at].name;
    let Some(found) = found.first().cloned() else { return malformed(format!("{name} has no element")) };
    cx.b.require(Requirement::at_most(Dim::ONE, found.clone()).says_at_least(name, 1))?;
    let rule = if at == 3 { "128" } else { "num_beams" };
    cx.b.require(Requirement::at_most(found.clone(), most.clone()).says(name, rule))?;
    Ok(found)
}

/// What differs between the operators of beam search.
pub(super) struct BeamSearch {
    /// 0 for a decoder alone, 1 for an encoder of tokens, 2 for one of features.
    pub model: i64,
    /// f32 scalar.
    pub temperature: Option<ValueId>,
    pub timestamps: Option<Timestamps>,
}

/// The results of a node.
pub(super) fn search(cx: &mut NodeCx<'_, '_>, kind: BeamSearch) -> Result<Vec<ValueId>> {
    let longest = longest(cx)?;
    let beams = number(cx, 3, &Dim::from(MOST_BEAMS))?;
    let returned = number(cx, 4, &beams)?;
    let model = Model::new(cx, kind.model, &beams, cx.optional(9))?;
    let length = cx.b.shape(model.start)[1].clone();
    requires_more(cx, &longest, &length)?;
    let places = Places { min_length: 2, repetition: 6, vocab_mask: 7, prefix_mask: 8 };
    let mut scores = Scores::new(cx, &places, &beams)?;
    (scores.temperature, scores.timestamps) = (kind.temperature, kind.timestamps);
    let penalty = match scalar_of(cx, 5, F32)? {
        Some(penalty) => penalty,
        None => cx.b.scalar(F32, 1.0),
    };
    let rows = cx.b.shape(cx.input(0)?)[0].clone();
    let (eos, pad) = (cx.int("eos_token_id")?, cx.int("pad_token_id")?);
    let early = cx.int("early_stopping")? == 1;
    let own = Search { rows, beams, longest, eos, pad, early, penalty };

    let state = own.start(cx.b, model.start)?;
    let first = own.step(cx.b, &scores, model.logits, state)?;
    // With an encoder the first step is always taken.
    let goes_on = match kind.model {
        0 => some_rows_go_on(cx.b, first.state.done)?,
        _ => cx.b.scalar(Bool, 1.0),
    };
    let mut turn = Written::new(cx, goes_on, length.clone(), own.longest.clone() - Dim::ONE)?;
    let mut running = model.enter(cx, &mut turn, Some(first.parents))?;
    let [ids, totals, ratings, finished, count, done] = first.state.all();
    let state = State {
        ids: turn.state(cx, ids, Some(1)),
        totals: turn.state(cx, totals, None),
        ratings: turn.state(cx, ratings, None),
        finished: turn.state(cx, finished, None),
        count: turn.state(cx, count, None),
        done: turn.state(cx, done, None),
    };
    let scores = scores.enter(cx, &mut turn);
    let inside = Search { penalty: turn.take(cx, own.penalty), ..own };
    let logits = model.step(cx, &mut turn, &mut running, state.ids)?;
    let step = turn.emit(cx, |b| inside.step(b, &scores, logits, state))?;
    let goes_on = turn.emit(cx, |b| some_rows_go_on(b, step.state.done))?;
    let mut next = model.leave(cx, &mut turn, running, Some(step.parents))?;
    next.extend(step.state.all());
    let parts = if cx.wants(2) { vec![step.told] } else { vec![] };
    let results = turn.finish(cx, goes_on, &next, &parts)?;

    let last = results.states.len();
    let [ids, totals, ratings, finished, count, done] =
        <[ValueId; 6]>::try_from(&results.states[last - 6..]).expect("six states");
    let state = State { ids, totals, ratings, finished, count, done };
    let own = Search { penalty, ..inside };
    let (finished, ratings) = own.best(cx.b, state, &returned)?;
    let mut outputs = vec![finished, ratings];
    if let Some(&part) = results.parts.first() {
        // Steps that are not taken have scores of 0.
        let b = &mut *cx.b;
        let told = b.unsqueeze(first.told, &[0])?;
        let told = b.concat(&[told, part], 0)?;
        let zero = b.scalar(F32, 0.0);
        let mut missing = vec![Dim::ZERO; 4];
        missing[0] = own.longest.clone() - Dim::ONE - results.counter;
        let told = b.pad(told, zero, vec![Dim::ZERO; 4], missing)?;
        let mut shape = b.shape(told);
        shape[0] = own.longest.clone() - length;
        outputs.push(b.reshape(told, shape)?);
    }
    if cx.wants(4) {
        outputs.resize(4, ratings);
        outputs.push(silence(cx, model.logits, &own)?);
    }
    let to = ratings_type(cx);
    for value in &mut outputs[1..] {
        *value = cx.b.cast(*value, to)?;
    }
    Ok(outputs)
}

/// How likely the token that stands for no speech is at first, f32 `[R]`.
fn silence(cx: &mut NodeCx<'_, '_>, logits: ValueId, own: &Search) -> Result<ValueId> {
    let token = cx.optional_int("no_speech_token_id")?.unwrap_or(-1);
    let b = &mut *cx.b;
    let vocabulary = b.shape(logits)[1].clone();
    let text = format!("no_speech_token_id is {token}; it must be one of the {V} tokens");
    for (few, many) in [(Dim::ZERO, Dim::from(token)), (Dim::from(token) + Dim::ONE, vocabulary.clone())] {
        b.require(Requirement::at_most(few, many).stated(text.clone(), &[&vocabulary]))?;
    }
    let likely = softmax_along(b, logits, 1)?;
    let likely = b.reshape(likely, vec![own.rows.clone(), own.beams.clone(), vocabulary])?;
    let first = b.slice_axis(likely, 1, Dim::ZERO, Dim::ONE)?;
    let first = b.slice_axis(first, 2, Dim::from(token), Dim::ONE)?;
    b.reshape(first, vec![own.rows.clone()])
}

/// Type of scores, as inputs have it.
fn ratings_type(cx: &NodeCx<'_, '_>) -> DType {
    [5, 6, 14].into_iter().find_map(|at| cx.optional(at)).map_or(F32, |value| cx.b.dtype(value))
}

fn some_rows_go_on(b: &mut Builder<'_>, done: ValueId) -> Result<ValueId> {
    let done = b.squeeze(done, &[1])?;
    some_go_on(b, done)
}

impl Search {
    fn start(&self, b: &mut Builder<'_>, ids: ValueId) -> Result<State> {
        let pair = vec![self.rows.clone(), self.beams.clone()];
        // All beams of a row are the same at first: only one goes on.
        let beam = b.iota(pair.clone(), 1)?;
        let (zero, far) = (b.scalar(F32, 0.0), b.scalar(F32, -1e9));
        let nought = b.scalar(I64, 0.0);
        let is_first = b.compare(CompareFn::Eq, beam, nought)?;
        let totals = b.select(is_first, zero, far)?;
        let ratings = b.expand(zero, pair)?;
        let pad = b.constant(Tensor::scalar(self.pad as i32));
        let finished = b.expand(pad, vec![self.rows.clone(), self.beams.clone(), self.longest.clone()])?;
        let one = vec![self.rows.clone(), Dim::ONE];
        let count = b.expand(nought, one.clone())?;
        let no = b.scalar(Bool, 0.0);
        let done = b.expand(no, one)?;
        Ok(State { ids, totals, ratings, finished, count, done })
    }

    /// `total / length^penalty`
    fn rated(&self, b: &mut Builder<'_>, total: ValueId, length: &Dim) -> Result<ValueId> {
        let length = b.dim_scalar(length)?;
        let length = b.cast(length, F32)?;
        let weight = b.binary(BinaryFn::Pow, length, self.penalty)?;
        b.binary(BinaryFn::Div, total, weight)
    }

    /// Beams of `[R, K]`, i64, as those of all rows `[R K]`.
    fn of_all(&self, b: &mut Builder<'_>, beam: ValueId) -> Result<ValueId> {
        let row = b.iota(vec![self.rows.clone(), Dim::ONE], 0)?;
        let each = b.dim_scalar(&self.beams)?;
        let start = b.binary(BinaryFn::Mul, row, each)?;
        let beam = b.binary(BinaryFn::Add, start, beam)?;
        b.reshape(beam, vec![self.rows.clone() * self.beams.clone()])
    }

    fn step(&self, b: &mut Builder<'_>, scores: &Scores, logits: ValueId, state: State) -> Result<BeamStep> {
        let shape = b.shape(logits);
        let (vocabulary, length) = (shape[1].clone(), b.shape(state.ids)[1].clone());
        let (rows, beams) = (self.rows.clone(), self.beams.clone());
        let likely = log_softmax_along(b, logits, 1)?;
        let likely = scores.apply(b, likely, state.ids)?;
        let likely = b.reshape(likely, vec![rows.clone(), beams.clone(), vocabulary.clone()])?;
        let totals = b.unsqueeze(state.totals, &[2])?;
        let told = b.binary(BinaryFn::Add, likely, totals)?;
        let flat = b.reshape(told, vec![rows.clone(), beams.clone() * vocabulary.clone()])?;
        let (best, place) = b.sort(flat, 1, true, beams.clone() + beams.clone())?;
        let tokens = b.dim_scalar(&vocabulary)?;
        let beam = b.binary(BinaryFn::Div, place, tokens)?;
        let skipped = b.binary(BinaryFn::Mul, beam, tokens)?;
        let token = b.binary(BinaryFn::Sub, place, skipped)?;
        let eos = b.constant(Tensor::scalar(self.eos));
        let ends = b.compare(CompareFn::Eq, token, eos)?;

        // Hypotheses: continuations among the first K that end.
        let head = |b: &mut Builder<'_>, x: ValueId| b.slice_axis(x, 1, Dim::ZERO, beams.clone());
        let (ended, total, parent) = (head(b, ends)?, head(b, best)?, head(b, beam)?);
        let open = b.unary(UnaryFn::Not, state.done)?;
        let added = b.binary(BinaryFn::And, ended, open)?;
        let parent = self.of_all(b, parent)?;
        let texts = b.emit1(Op::Gather { axis: 0 }, &[state.ids, parent])?;
        let (ratings, finished, count) = self.with_hypotheses(b, state, texts, total, added)?;
        let full = b.dim_scalar(&beams)?;
        let full = b.compare(CompareFn::Eq, count, full)?;
        let mut settled = full;
        if !self.early {
            let most = b.slice_axis(best, 1, Dim::ZERO, Dim::ONE)?;
            let most = self.rated(b, most, &length)?;
            let worst = b.slice_axis(ratings, 1, beams.clone() - Dim::ONE, Dim::ONE)?;
            let betters = b.compare(CompareFn::Lt, worst, most)?;
            let kept = b.unary(UnaryFn::Not, betters)?;
            settled = b.binary(BinaryFn::And, full, kept)?;
        }

        // Beams: the first K that do not end. Of a row that was done before they no longer count.
        let late = b.cast(ends, I32)?;
        let (_, rank) = b.sort(late, 1, false, beams.clone())?;
        let pick = |b: &mut Builder<'_>, x: ValueId| b.emit1(Op::GatherElements { axis: 1 }, &[x, rank]);
        let (totals, token, beam) = (pick(b, best)?, pick(b, token)?, pick(b, beam)?);
        let (zero, pad) = (b.scalar(F32, 0.0), b.constant(Tensor::scalar(self.pad)));
        let totals = b.select(state.done, zero, totals)?;
        let token = b.select(state.done, pad, token)?;
        let parents = self.of_all(b, beam)?;
        let parents = b.reshape(parents, vec![rows.clone(), beams.clone()])?;
        let nought = b.scalar(I64, 0.0);
        let parents = b.select(state.done, nought, parents)?;
        let all = rows * beams;
        let parents = b.reshape(parents, vec![all.clone()])?;
        let ids = b.emit1(Op::Gather { axis: 0 }, &[state.ids, parents])?;
        let token = b.cast(token, I32)?;
        let token = b.reshape(token, vec![all, Dim::ONE])?;
        let ids = b.concat(&[ids, token], 1)?;
        let done = b.binary(BinaryFn::Or, state.done, settled)?;
        Ok(BeamStep { state: State { ids, totals, ratings, finished, count, done }, parents, told })
    }

    /// Ratings, tokens and number of the best K hypotheses of those that are known and those of `texts`, i32 `[R K, length]`,
    /// with `total`, f32 `[R, K]`, where `added`. Of equal ones that which was first comes first.
    fn with_hypotheses(
        &self,
        b: &mut Builder<'_>,
        state: State,
        texts: ValueId,
        total: ValueId,
        added: ValueId,
    ) -> Result<(ValueId, ValueId, ValueId)> {
        let length = b.shape(texts)[1].clone();
        let rating = self.rated(b, total, &length)?;
        let ratings = b.concat(&[state.ratings, rating], 1)?;
        let rank = b.iota(vec![self.rows.clone(), self.beams.clone()], 1)?;
        let known = b.compare(CompareFn::Lt, rank, state.count)?;
        let there = b.concat(&[known, added], 1)?;
        // What is there comes before what is not, be its rating minus infinity.
        let (lowest, nothing) = (b.scalar(F32, LOWEST), b.scalar(F32, f64::NEG_INFINITY));
        let key = b.binary(BinaryFn::Max, ratings, lowest)?;
        let key = b.select(there, key, nothing)?;
        let (_, order) = b.sort(key, 1, true, self.beams.clone())?;
        let ratings = b.emit1(Op::GatherElements { axis: 1 }, &[ratings, order])?;
        let pad = b.constant(Tensor::scalar(self.pad as i32));
        let missing = vec![Dim::ZERO, self.longest.clone() - length];
        let texts = b.pad(texts, pad, vec![Dim::ZERO; 2], missing)?;
        let form = vec![self.rows.clone(), self.beams.clone(), self.longest.clone()];
        let texts = b.reshape(texts, form)?;
        let all = b.concat(&[state.finished, texts], 1)?;
        let order = b.unsqueeze(order, &[2])?;
        let finished = b.emit1(Op::GatherNd { batch: 1 }, &[all, order])?;
        let added = b.cast(added, I64)?;
        let more = b.reduce(ReduceFn::Sum, added, &[1])?;
        let count = b.binary(BinaryFn::Add, state.count, more)?;
        let full = b.dim_scalar(&self.beams)?;
        Ok((ratings, finished, b.binary(BinaryFn::Min, count, full)?))
    }

    /// The best hypotheses `[R, returned, M]` and their ratings; beams of rows that are not done are among them.
    fn best(&self, b: &mut Builder<'_>, state: State, returned: &Dim) -> Result<(ValueId, ValueId)> {
        let open = b.unary(UnaryFn::Not, state.done)?;
        let added = b.expand(open, vec![self.rows.clone(), self.beams.clone()])?;
        let (ratings, finished, _) = self.with_hypotheses(b, state, state.ids, state.totals, added)?;
        let finished = b.slice_axis(finished, 1, Dim::ZERO, returned.clone())?;
        Ok((finished, b.slice_axis(ratings, 1, Dim::ZERO, returned.clone())?))
    }
}
