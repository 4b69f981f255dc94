//! The graphs of a model that generates tokens: a decoder, and perhaps an encoder before it.

use super::bodies::{self, Decoder, ModelForm, Slot, pairing};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, I32, I64};
use onnxc_ir::graph::{Op, Tensor};
use onnxc_ops::Subgraph;
use onnxc_ops::control::iterate::as_type;
use onnxc_ops::control::written::{Written, tensors};
use onnxc_ops::row::*;

/// A decoder, with what its first run gave. Rows are those of all beams, the beams of one sequence side by side.
pub(super) struct Model {
    decoder: Decoder,
    /// Beams of each sequence.
    beams: Dim,
    /// Tokens before the first one that is generated, i32 `[rows, length]`.
    pub start: ValueId,
    /// Scores of all tokens after those, f32 `[rows, vocabulary]`.
    pub logits: ValueId,
    /// Keys and values of self-attention, in the order in which the decoder gives them: rows along the axis `row`, of the length of
    /// `start`.
    caches: Vec<ValueId>,
    row: usize,
    /// What the encoder was given and gives.
    context: Context,
    /// Of a decoder without an encoder: tokens to see, and the position of the first one that is generated.
    places: Option<(ValueId, ValueId)>,
    /// Whether the decoder takes all tokens so far, and not the last one alone.
    whole: bool,
}

/// Values of the encoder that every step of the decoder may take.
#[derive(Default)]
struct Context {
    tokens: Option<ValueId>,
    mask: Option<ValueId>,
    hidden: Option<ValueId>,
    /// Keys and values of cross-attention.
    crosses: Vec<ValueId>,
}

impl Context {
    /// The same with each row `beams` times.
    fn spread(&self, b: &mut Builder<'_>, beams: &Dim) -> Result<Context> {
        let mut one = |value: Option<ValueId>| value.map(|value| spread(b, value, 0, beams)).transpose();
        let (tokens, mask, hidden) = (one(self.tokens)?, one(self.mask)?, one(self.hidden)?);
        Ok(Context { tokens, mask, hidden, crosses: spread_all(b, &self.crosses, beams)? })
    }

    fn get(&self, slot: Slot) -> Option<ValueId> {
        match slot {
            Slot::EncoderTokens => self.tokens,
            Slot::EncoderMask => self.mask,
            Slot::Hidden => self.hidden,
            Slot::Cross(at) => self.crosses.get(at).copied(),
            _ => None,
        }
    }
}

/// A model inside the loop.
pub(super) struct Running {
    caches: Vec<ValueId>,
    mask: Option<ValueId>,
    /// What a step gives for the next one.
    presents: Vec<ValueId>,
    seen: Option<ValueId>,
}

/// Each row `beams` times along an axis.
pub(super) fn spread(b: &mut Builder<'_>, x: ValueId, axis: usize, beams: &Dim) -> Result<ValueId> {
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

fn spread_all(b: &mut Builder<'_>, values: &[ValueId], beams: &Dim) -> Result<Vec<ValueId>> {
    values.iter().map(|&value| spread(b, value, 0, beams)).collect()
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
    pub(super) fn new(
        cx: &mut NodeCx<'_, '_>,
        kind: i64,
        beams: &Dim,
        mask: Option<ValueId>,
    ) -> Result<Model> {
        match kind {
            0 => Model::of_tokens(cx, beams, mask),
            _ => Model::with_encoder(cx, kind == 2, beams, mask),
        }
    }

    fn of_tokens(cx: &mut NodeCx<'_, '_>, beams: &Dim, mask: Option<ValueId>) -> Result<Model> {
        let (ids, body) = (cx.input(0)?, cx.graph("decoder")?);
        let decoder = Decoder::new(cx, "decoder", body, ModelForm::Tokens)?;
        let first = match cx.attributes.contains_key("init_decoder") {
            true => Decoder::new(cx, "init_decoder", cx.graph("init_decoder")?, ModelForm::Tokens)?,
            false => decoder.clone(),
        };
        if first.own.len() != decoder.own.len() {
            let (first, later) = (first.own.len(), decoder.own.len());
            return malformed(format!("init_decoder takes {first} caches, and decoder {later}"));
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
        let empty = first.empty_caches(cx, 1, &shape[0])?;
        let inputs = first.inputs(|slot| match slot {
            Slot::Tokens => Some(ids),
            Slot::Positions => Some(positions),
            Slot::Mask => Some(mask),
            Slot::Own(at) => empty.get(at).copied(),
            _ => None,
        })?;
        let results = run(cx, &first.body, &inputs)?;
        let (logits, presents) = first.split(results);
        let logits = last_logits(cx.b, logits, cx.int("vocab_size")?)?;
        // Caches in the order of the decoder of the loop.
        let order = pairing(&decoder.names(&decoder.own), &first.names(&first.own));
        let b = &mut *cx.b;
        let mut caches = vec![logits; presents.len()];
        for (&present, at) in presents.iter().zip(order) {
            let mut wanted = b.shape(present);
            if wanted.len() != 5 {
                return malformed(format!("a cache {}; it must have 5 axes", b.ty(present)));
            }
            (wanted[1], wanted[3]) = (shape[0].clone(), shape[1].clone());
            let present = as_type(b, present, &wanted)?;
            caches[at] = spread(b, present, 1, beams)?;
        }
        let places = Some((spread(b, mask, 0, beams)?, spread(b, count, 0, beams)?));
        Ok(Model {
            decoder,
            beams: beams.clone(),
            start: spread(b, ids, 0, beams)?,
            logits: spread(b, logits, 0, beams)?,
            caches,
            row: 1,
            context: Context::default(),
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
        let given = cx.input(0)?;
        let form = if whisper { ModelForm::Features } else { ModelForm::Text };
        let decoder = Decoder::new(cx, "decoder", cx.graph("decoder")?, form)?;
        let rows = cx.b.shape(given)[0].clone();
        let start = start_tokens(cx, whisper, &rows)?;
        let mask = match whisper {
            true => None,
            false => Some(encoder_mask(cx, given, mask)?),
        };
        let encoded = encode(cx, &decoder, given, mask, start)?;
        let context = encoded.context.spread(cx.b, beams)?;
        let start = spread(cx.b, start, 0, beams)?;
        let vocabulary = cx.int("vocab_size")?;
        let (logits, caches) = match encoded.started {
            Some((logits, caches)) => {
                let logits = last_logits(cx.b, logits, vocabulary)?;
                (spread(cx.b, logits, 0, beams)?, spread_all(cx.b, &caches, beams)?)
            }
            None => {
                let empty = decoder.empty_caches(cx, 0, &(rows * beams.clone()))?;
                let inputs = decoder.inputs(|slot| match slot {
                    Slot::Tokens => Some(start),
                    Slot::Own(at) => empty.get(at).copied(),
                    other => context.get(other),
                })?;
                let results = run(cx, &decoder.body, &inputs)?;
                let (logits, presents) = decoder.split(results);
                (last_logits(cx.b, logits, vocabulary)?, presents)
            }
        };
        let caches = with_length(cx.b, &caches, start)?;
        let whole = decoder.takes_all_tokens();
        Ok(Model {
            decoder,
            beams: beams.clone(),
            start,
            logits,
            caches,
            row: 0,
            context,
            places: None,
            whole,
        })
    }

    /// The model inside a loop, after tokens were picked: `parents` says which row each row goes on from, i64 `[rows]`.
    pub(super) fn enter(
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
    pub(super) fn step(
        &self,
        cx: &mut NodeCx<'_, '_>,
        turn: &mut Written,
        running: &mut Running,
        ids: ValueId,
    ) -> Result<ValueId> {
        let (count, length) = (turn.counter(), turn.count());
        let last = turn.emit(cx, |b| b.slice_axis(ids, 1, count, Dim::ONE))?;
        let mut position = None;
        if let (Some((_, first)), Some(mask)) = (self.places, running.mask) {
            // The number of steps so far is the number of tokens added after the start.
            let (first, start) = (turn.take(cx, first), turn.take(cx, self.start));
            let (place, seen) = turn.emit(cx, |b| {
                let start = b.shape(start)[1].clone();
                let start = b.dim_scalar(&start)?;
                let steps = b.binary(BinaryFn::Sub, length, start)?;
                let position = b.binary(BinaryFn::Add, first, steps)?;
                let one = b.constant(Tensor::scalar(1i32));
                let rows = b.shape(mask)[0].clone();
                let one = b.expand(one, vec![rows, Dim::ONE])?;
                Ok((b.cast(position, I32)?, b.concat(&[mask, one], 1)?))
            })?;
            (position, running.seen) = (Some(place), Some(seen));
        }
        let inputs = self.decoder.inputs(|slot| match slot {
            Slot::Tokens => Some(if self.whole { ids } else { last }),
            Slot::Positions => position,
            Slot::Mask => running.seen,
            Slot::Own(at) => running.caches.get(at).copied(),
            other => self.context.get(other).map(|value| turn.take(cx, value)),
        })?;
        let vocabulary = cx.int("vocab_size")?;
        let results = turn.inline(cx, &self.decoder.body, &inputs)?;
        let (logits, presents) = self.decoder.split(results);
        running.presents = presents;
        turn.emit(cx, |b| last_logits(b, logits, vocabulary))
    }

    /// States of the next iteration, in the order of [`Model::enter`].
    pub(super) fn leave(
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

/// Caches `[rows, heads, length, size]` of the number of tokens in `start`.
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

/// The tokens that the decoder starts with, i32 `[rows, length]`.
fn start_tokens(cx: &mut NodeCx<'_, '_>, whisper: bool, rows: &Dim) -> Result<ValueId> {
    if let Some(start) = cx.optional(10).filter(|_| whisper) {
        return Ok(start);
    }
    let token = cx.int("decoder_start_token_id")?;
    let token = cx.b.constant(Tensor::scalar(token as i32));
    cx.b.expand(token, vec![rows.clone(), Dim::ONE])
}

/// The mask of an encoder's tokens, where none is given: those are seen that pad within a sequence, or behind it.
fn encoder_mask(cx: &mut NodeCx<'_, '_>, tokens: ValueId, mask: Option<ValueId>) -> Result<ValueId> {
    if let Some(mask) = mask {
        return Ok(mask);
    }
    let real = is_real(cx, tokens)?;
    let real = cx.b.cast(real, I64)?;
    let counted = cumulated(cx.b, real)?;
    let counted = cx.b.binary_scalar(BinaryFn::Min, counted, 1.0)?;
    cx.b.cast(counted, I32)
}

/// What an encoder gives.
struct Encoded {
    context: Context,
    /// Of an encoder that runs the decoder on its start: logits, and the decoder's own caches.
    started: Option<(ValueId, Vec<ValueId>)>,
}

/// Runs the encoder of a node. Its results are known by their names where these are those of the decoder's inputs, otherwise by their
/// order.
fn encode(
    cx: &mut NodeCx<'_, '_>,
    decoder: &Decoder,
    given: ValueId,
    mask: Option<ValueId>,
    start: ValueId,
) -> Result<Encoded> {
    let encoder = cx.graph("encoder")?;
    let slots = bodies::encoder_slots(cx, &encoder, mask.is_some())?;
    let of_slot = |slot: &Slot| match slot {
        Slot::EncoderMask => mask.unwrap_or(given),
        Slot::Tokens => start,
        _ => given,
    };
    let inputs: Vec<ValueId> = slots.iter().map(of_slot).collect();
    let starts = slots.contains(&Slot::Tokens);
    let names = encoder.output_names();
    let place = |name: &str| names.iter().position(|&other| other == name);
    let logits = starts.then(|| place("logits").unwrap_or(0));
    let hidden = place("encoder_hidden_states").or(starts.then_some(1));
    let caches: Vec<usize> = (0..names.len()).filter(|at| ![logits, hidden].contains(&Some(*at))).collect();
    let own = if starts { decoder.own.as_slice() } else { &[] };
    let taken = decoder.names(&[own, &decoder.crosses].concat());
    if caches.len() != taken.len() || decoder.slots.contains(&Slot::Hidden) && hidden.is_none() {
        return unsupported(format!(
            "an encoder that gives {names:?} for a decoder that takes {:?}; with decoder_input_ids it must give logits, \
             encoder_hidden_states and all caches, without it those of cross-attention",
            decoder.body.input_names()
        ));
    }
    let gives: Vec<&str> = caches.iter().map(|&at| names[at]).collect();
    let order = pairing(&taken, &gives);
    let results = run(cx, &encoder, &inputs)?;
    let mut sorted = vec![given; taken.len()];
    for (&at, to) in caches.iter().zip(order) {
        sorted[to] = results[at];
    }
    let crosses = sorted.split_off(own.len());
    let hidden = hidden.map(|at| results[at]);
    let context = Context { tokens: Some(given), mask, hidden, crosses };
    Ok(Encoded { context, started: logits.map(|at| (results[at], sorted)) })
}

/// Emits a body here.
fn run(cx: &mut NodeCx<'_, '_>, body: &Subgraph, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
    let inputs: Vec<Item> = inputs.iter().copied().map(Item::Tensor).collect();
    tensors(&cx.inline(body, &inputs)?)
}
