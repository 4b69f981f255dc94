//! The graphs of a model that generates tokens: a decoder, and perhaps an encoder before it.

use std::sync::Arc;

use crate::graph::DType::{F32, I32, I64};
use crate::graph::{Builder, Op, Tensor};
use crate::import::Subgraph;
use crate::op::control::iterate::as_type;
use crate::op::control::written::{Written, tensors};
use crate::op::row::*;

/// A decoder, with what its first run gave. Rows are those of all beams, the beams of one sequence side by side.
pub struct Model {
    decoder: Arc<Subgraph>,
    /// Beams of each sequence.
    beams: Dim,
    /// Tokens before the first one that is generated, i32 `[rows, length]`.
    pub start: ValueId,
    /// Scores of all tokens after those, f32 `[rows, vocabulary]`.
    pub logits: ValueId,
    /// Keys and values of self-attention, whose rows are along the axis `row`, and whose length is that of `start`.
    caches: Vec<ValueId>,
    row: usize,
    /// Inputs between the tokens and the caches that stay as they are, and those behind the caches.
    before: Vec<ValueId>,
    after: Vec<ValueId>,
    /// Of a decoder without an encoder: tokens to see, and the position of the first one that is generated.
    places: Option<(ValueId, ValueId)>,
    /// Whether the decoder takes all tokens so far, and not the last one alone.
    whole: bool,
}

/// A model inside the loop.
pub struct Running {
    caches: Vec<ValueId>,
    mask: Option<ValueId>,
    /// What a step gives for the next one.
    presents: Vec<ValueId>,
    seen: Option<ValueId>,
}

/// Each row `beams` times along an axis.
pub fn spread(b: &mut Builder<'_>, x: ValueId, axis: usize, beams: &Dim) -> Result<ValueId> {
    if *beams == Dim::ONE {
        return Ok(x);
    }
    let mut shape = b.shape(x);
    let rows = shape[axis].clone();
    let x = b.unsqueeze(x, &[axis + 1])?;
    shape.insert(axis + 1, beams.clone());
    let x = b.expand(x, shape.clone())?;
    shape.remove(axis);
    shape[axis] = rows * beams.clone();
    b.reshape(x, shape)
}

/// Scores of the last token, f32 `[rows, vocabulary]`; a vocabulary of fewer tokens than there are scores is its first ones.
fn last_logits(b: &mut Builder<'_>, logits: ValueId, vocabulary: i64) -> Result<ValueId> {
    let [_, length, all] = <[Dim; 3]>::try_from(b.shape(logits))
        .or_else(|shape| malformed(format!("logits of shape {shape:?}; they must have 3 axes")))?;
    let last = b.slice_axis(logits, 1, length - Dim::ONE, Dim::ONE)?;
    let last = b.squeeze(last, &[1])?;
    let last = match vocabulary {
        1.. => b.slice_axis(last, 1, Dim::ZERO, Dim::from(vocabulary))?,
        _ => b.slice_axis(last, 1, Dim::ZERO, all)?,
    };
    b.cast(last, F32)
}

/// Whether tokens, i32, are not those that pad.
fn is_real(cx: &mut NodeCx<'_, '_>, ids: ValueId) -> Result<ValueId> {
    let pad = cx.int("pad_token_id")?;
    let pad = cx.b.constant(Tensor::scalar(pad as i32));
    cx.b.compare(CompareFn::Ne, ids, pad)
}

fn cumulated(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    b.emit1(Op::Cumulate { op: ReduceFn::Sum, axis: 1, exclusive: false, reverse: false }, &[x])
}

impl Model {
    /// The model of a node, after its first run on input 0; `mask` is the input with a mask of that one.
    pub fn new(cx: &mut NodeCx<'_, '_>, kind: i64, beams: &Dim, mask: Option<ValueId>) -> Result<Model> {
        match kind {
            0 => Model::of_tokens(cx, beams, mask),
            _ => Model::with_encoder(cx, kind == 2, beams, mask),
        }
    }

    fn of_tokens(cx: &mut NodeCx<'_, '_>, beams: &Dim, mask: Option<ValueId>) -> Result<Model> {
        let (ids, decoder) = (cx.input(0)?, cx.graph("decoder")?);
        let first = match cx.attributes.contains_key("init_decoder") {
            true => cx.graph("init_decoder")?,
            false => decoder.clone(),
        };
        let layers = decoder.outputs().saturating_sub(1);
        if layers == 0 || decoder.inputs() != layers + 3 {
            return unsupported(format!(
                "a decoder with the inputs {:?} and {} outputs; it must take input_ids, position_ids, attention_mask and a \
                 cache for each output after the first",
                decoder.input_names(),
                decoder.outputs()
            ));
        }
        let real = is_real(cx, ids)?;
        let shape = cx.b.shape(ids);
        let counted = cx.b.cast(real, I64)?;
        let counted = cumulated(cx.b, counted)?;
        let positions = cx.b.binary_scalar(BinaryFn::Sub, counted, 1.0)?;
        let zero = cx.b.scalar(I64, 0.0);
        let positions = cx.b.select(real, positions, zero)?;
        let positions = cx.b.cast(positions, I32)?;
        let count = cx.b.slice_axis(counted, 1, shape[1].clone() - Dim::ONE, Dim::ONE)?;
        let mask = match mask {
            Some(mask) => mask,
            None => cx.b.cast(real, I32)?,
        };
        let mut inputs = vec![ids, positions, mask];
        for layer in 0..layers {
            inputs.push(empty_cache(cx, &first, 3 + layer, 1, &shape[0])?);
        }
        let results = run(cx, &first, &inputs)?;
        let logits = last_logits(cx.b, results[0], cx.int("vocab_size")?)?;
        let b = &mut *cx.b;
        let mut caches = vec![];
        for &present in &results[1..] {
            let mut wanted = b.shape(present);
            if wanted.len() != 5 {
                return malformed(format!("a cache {}; it must have 5 axes", b.ty(present)));
            }
            (wanted[1], wanted[3]) = (shape[0].clone(), shape[1].clone());
            let present = as_type(b, present, &wanted)?;
            caches.push(spread(b, present, 1, beams)?);
        }
        let places = Some((spread(b, mask, 0, beams)?, spread(b, count, 0, beams)?));
        Ok(Model {
            decoder,
            beams: beams.clone(),
            start: spread(b, ids, 0, beams)?,
            logits: spread(b, logits, 0, beams)?,
            caches,
            row: 1,
            before: vec![],
            after: vec![],
            places,
            whole: false,
        })
    }

    fn with_encoder(
        cx: &mut NodeCx<'_, '_>,
        whisper: bool,
        beams: &Dim,
        mask: Option<ValueId>,
    ) -> Result<Model> {
        let (given, decoder, encoder) = (cx.input(0)?, cx.graph("decoder")?, cx.graph("encoder")?);
        let rows = cx.b.shape(given)[0].clone();
        let start = match cx.optional(10).filter(|_| whisper) {
            Some(start) => start,
            None => {
                let token = cx.int("decoder_start_token_id")?;
                let token = cx.b.constant(Tensor::scalar(token as i32));
                cx.b.expand(token, vec![rows.clone(), Dim::ONE])?
            }
        };
        let mut context = vec![];
        if !whisper {
            context.push(match mask {
                Some(mask) => mask,
                None => {
                    // Tokens that pad within a sequence, or behind it, are seen.
                    let real = is_real(cx, given)?;
                    let real = cx.b.cast(real, I64)?;
                    let counted = cumulated(cx.b, real)?;
                    let counted = cx.b.binary_scalar(BinaryFn::Min, counted, 1.0)?;
                    cx.b.cast(counted, I32)?
                }
            });
        }
        // A decoder has two caches of its own for each layer, and two of the encoder.
        let layers = decoder.outputs().saturating_sub(1) / 2;
        let others = decoder.inputs().checked_sub(1 + context.len() + 4 * layers);
        let (true, Some(hidden @ (0 | 1))) = (layers > 0 && decoder.outputs() == 1 + 2 * layers, others)
        else {
            return unsupported(format!(
                "a decoder with the inputs {:?} and {} outputs; it must take input_ids, {}perhaps encoder_hidden_states, and for \
                 each layer two caches of self-attention, which it gives behind the logits, and two of cross-attention",
                decoder.input_names(),
                decoder.outputs(),
                if whisper { "" } else { "encoder_attention_mask, " }
            ));
        };
        let whole = decoder.input_type(0).is_some_and(|(_, dims)| dims.get(1) != Some(&Some(Dim::ONE)));
        let starts = encoder.inputs() == context.len() + 2;
        let mut inputs = vec![given];
        inputs.extend(&context);
        inputs.extend(starts.then_some(start));
        let mut results = run(cx, &encoder, &inputs)?;
        let expected = if starts { 2 + 4 * layers } else { 2 * layers };
        if results.len() != expected || !starts && hidden == 1 {
            return unsupported(format!(
                "an encoder with the inputs {:?} that gives {} results; with the start of the decoder's tokens it must give \
                 logits, its hidden states and 4 caches for each of {layers} layers, without it 2 caches for each",
                encoder.input_names(),
                results.len()
            ));
        }
        let spread_all = |b: &mut Builder<'_>, values: &[ValueId]| {
            values.iter().map(|&value| spread(b, value, 0, beams)).collect::<Result<Vec<_>>>()
        };
        let start = spread(cx.b, start, 0, beams)?;
        if !starts {
            let crosses = spread_all(cx.b, &results)?;
            let context = spread_all(cx.b, &context)?;
            let rows = rows * beams.clone();
            let mut inputs = vec![start];
            inputs.extend(&context);
            for at in 0..2 * layers {
                inputs.push(empty_cache(cx, &decoder, 1 + context.len() + at, 0, &rows)?);
            }
            inputs.extend(&crosses);
            let results = run(cx, &decoder, &inputs)?;
            let logits = last_logits(cx.b, results[0], cx.int("vocab_size")?)?;
            let caches = with_length(cx.b, &results[1..], start)?;
            let (beams, before) = (beams.clone(), context);
            let model = Model {
                decoder,
                beams,
                start,
                logits,
                caches,
                row: 0,
                before,
                after: crosses,
                places: None,
                whole,
            };
            return Ok(model);
        }
        let crosses = results.split_off(2 + 2 * layers);
        let caches = results.split_off(2);
        let logits = last_logits(cx.b, results[0], cx.int("vocab_size")?)?;
        context.extend((hidden == 1).then_some(results[1]));
        let b = &mut *cx.b;
        let caches = spread_all(b, &caches)?;
        Ok(Model {
            decoder,
            beams: beams.clone(),
            start,
            logits: spread(b, logits, 0, beams)?,
            caches: with_length(b, &caches, start)?,
            row: 0,
            before: spread_all(b, &context)?,
            after: spread_all(b, &crosses)?,
            places: None,
            whole,
        })
    }

    /// The model inside a loop, after tokens were picked: `parents` says which row each row goes on from, i64 `[rows]`.
    pub fn enter(
        &self,
        cx: &mut NodeCx<'_, '_>,
        turn: &mut Written,
        parents: Option<ValueId>,
    ) -> Result<Running> {
        let mut caches = vec![];
        for &cache in &self.caches {
            let cache = self.reordered(cx.b, cache, parents)?;
            caches.push(turn.state(cx, cache, Some(self.row + 2)));
        }
        let mask = self.places.map(|(mask, _)| turn.state(cx, mask, Some(1)));
        Ok(Running { caches, mask, presents: vec![], seen: None })
    }

    fn reordered(&self, b: &mut Builder<'_>, cache: ValueId, parents: Option<ValueId>) -> Result<ValueId> {
        match parents.filter(|_| self.beams != Dim::ONE) {
            Some(parents) => b.emit1(Op::Gather { axis: self.row }, &[cache, parents]),
            None => Ok(cache),
        }
    }

    /// Scores after one more token, f32 `[rows, vocabulary]`; `ids` are all tokens, i32 `[rows, counter + 1]`.
    pub fn step(
        &self,
        cx: &mut NodeCx<'_, '_>,
        turn: &mut Written,
        running: &mut Running,
        ids: ValueId,
    ) -> Result<ValueId> {
        let (count, length) = (turn.counter(), turn.count());
        let last = turn.emit(cx, |b| b.slice_axis(ids, 1, count, Dim::ONE))?;
        let mut inputs = vec![if self.whole { ids } else { last }];
        if let (Some((_, first)), Some(mask)) = (self.places, running.mask) {
            // As many steps were taken before as tokens were added to those of the start.
            let (first, start) = (turn.take(cx, first), turn.take(cx, self.start));
            let (position, seen) = turn.emit(cx, |b| {
                let start = b.shape(start)[1].clone();
                let start = b.dim_scalar(&start)?;
                let steps = b.binary(BinaryFn::Sub, length, start)?;
                let position = b.binary(BinaryFn::Add, first, steps)?;
                let one = b.constant(Tensor::scalar(1i32));
                let rows = b.shape(mask)[0].clone();
                let one = b.expand(one, vec![rows, Dim::ONE])?;
                Ok((b.cast(position, I32)?, b.concat(&[mask, one], 1)?))
            })?;
            inputs.extend([position, seen]);
            running.seen = Some(seen);
        }
        inputs.extend(self.before.iter().map(|&value| turn.take(cx, value)));
        inputs.extend(&running.caches);
        inputs.extend(self.after.iter().map(|&value| turn.take(cx, value)));
        let vocabulary = cx.int("vocab_size")?;
        let mut results = turn.inline(cx, &self.decoder, &inputs)?;
        running.presents = results.split_off(1);
        turn.emit(cx, |b| last_logits(b, results[0], vocabulary))
    }

    /// States of the next iteration, in the order of [`Model::enter`].
    pub fn leave(
        &self,
        cx: &mut NodeCx<'_, '_>,
        turn: &mut Written,
        running: Running,
        parents: Option<ValueId>,
    ) -> Result<Vec<ValueId>> {
        let mut next = vec![];
        for &present in &running.presents {
            next.push(turn.emit(cx, |b| self.reordered(b, present, parents))?);
        }
        next.extend(running.seen);
        Ok(next)
    }
}

/// Caches `[rows, heads, length, size]` of as many tokens as `start` has.
fn with_length(b: &mut Builder<'_>, caches: &[ValueId], start: ValueId) -> Result<Vec<ValueId>> {
    let start = b.shape(start);
    let mut sized = vec![];
    for &cache in caches {
        let mut shape = b.shape(cache);
        if shape.len() != 4 {
            return malformed(format!("a cache {}; it must have 4 axes", b.ty(cache)));
        }
        (shape[0], shape[2]) = (start[0].clone(), start[1].clone());
        sized.push(as_type(b, cache, &shape)?);
    }
    Ok(sized)
}

/// A cache of no tokens, for input `at` of a decoder, with `rows` along the axis `row`.
fn empty_cache(
    cx: &mut NodeCx<'_, '_>,
    decoder: &Subgraph,
    at: usize,
    row: usize,
    rows: &Dim,
) -> Result<ValueId> {
    let declared = decoder.input_type(at).filter(|(_, dims)| dims.len() == row + 4);
    let Some((dtype, dims)) = declared else {
        let names = decoder.input_names();
        let name = names.get(at).copied().unwrap_or_default();
        return malformed(format!(
            "the input `{name}` of the decoder must be declared with {} axes",
            row + 4
        ));
    };
    let mut shape = vec![];
    for (axis, dim) in dims.into_iter().enumerate() {
        shape.push(match dim {
            _ if axis == row => rows.clone(),
            _ if axis == row + 2 => Dim::ZERO,
            Some(dim) => dim,
            None => {
                return malformed(format!(
                    "dimension {axis} of the input `{}` of the decoder must be declared as a number",
                    decoder.input_names()[at]
                ));
            }
        });
    }
    let zero = cx.b.scalar(dtype, 0.0);
    cx.b.expand(zero, shape)
}

/// Emits a body here.
fn run(cx: &mut NodeCx<'_, '_>, body: &Subgraph, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
    let inputs: Vec<Item> = inputs.iter().copied().map(Item::Tensor).collect();
    tensors(&cx.inline(body, &inputs)?)
}
