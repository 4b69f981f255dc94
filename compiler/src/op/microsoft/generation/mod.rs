//! Loops that generate tokens: the decoder of a model is a body, and its caches are states of the loop. The first run, on all
//! tokens of the prompt, comes before the loop.
//!
//! The bodies are those that ONNX Runtime's tools write: `input_ids`, `position_ids` and `attention_mask`, caches of all layers,
//! to `logits` and caches; or an encoder that also starts the decoder, and a decoder with caches of self-attention and of
//! cross-attention.

mod beams;
mod greedy;
mod model;
mod scores;

use self::greedy::Best;
use self::model::Model;
use self::scores::{Places, Scores};
use super::own;
use crate::graph::DType::{F16, F32, I32};
use crate::graph::Requirement;
use crate::op::row::*;

/// Tokens of a sequence, and beams, that data may ask for at most.
const MOST_TOKENS: usize = 4096;
const MOST_BEAMS: usize = 128;

const DECODER: AttrDef = required("decoder", Graph);
const ENCODER: AttrDef = optional("encoder", Graph);
const INIT_DECODER: AttrDef = optional("init_decoder", Graph);

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    own("GreedySearch", &[req("input_ids", "I"), req("max_length", "I"), opt("min_length", "I"), opt("repetition_penalty", "T"),
            opt("vocab_mask", "I"), opt("prefix_vocab_mask", "I"), opt("attention_mask", "I")],
        &[req("sequences", "I")],
        &[DECODER, int("decoder_start_token_id", -1), ENCODER, required("eos_token_id", Int), INIT_DECODER, int("model_type", 0),
          int("no_repeat_ngram_size", 0), required("pad_token_id", Int), int("vocab_size", -1)],
        &[("T", &[F32]), ("I", &[I32])],
        &["input_ids[B, S]", "count(max_length) = 1", "count(min_length) = 1", "count(repetition_penalty) = 1", "vocab_mask[V]",
          "prefix_vocab_mask[B, V]", "attention_mask[B, S]"],
        greedy_search, "tokens after a prompt, the most likely one at each step"),
    own("BeamSearch", &[req("input_ids", "F"), req("max_length", "I"), opt("min_length", "I"), req("num_beams", "I"),
            req("num_return_sequences", "I"), opt("length_penalty", "T"), opt("repetition_penalty", "T"), opt("vocab_mask", "M"),
            opt("prefix_vocab_mask", "M"), opt("attention_mask", "I"), opt("decoder_input_ids", "I"), opt("logits_processor", "I")],
        &[req("sequences", "I"), opt("sequences_scores", "T"), opt("scores", "T")],
        &[DECODER, int("decoder_start_token_id", -1), int("early_stopping", 0), ENCODER, required("eos_token_id", Int),
          INIT_DECODER, int("model_type", 0), int("no_repeat_ngram_size", 0), required("pad_token_id", Int), int("vocab_size", -1)],
        &[("T", &[F32, F16]), ("F", &[F32, I32, F16]), ("I", &[I32]), ("M", &[I32])],
        &["input_ids[B, S] | [B, D, S]", "count(max_length) = 1", "count(min_length) = 1", "count(num_beams) = 1",
          "count(num_return_sequences) = 1", "count(length_penalty) = 1", "count(repetition_penalty) = 1", "vocab_mask[V]",
          "prefix_vocab_mask[B, V]", "attention_mask[B, S]", "decoder_input_ids[B, _]", "count(logits_processor) = 1"],
        beam_search, "the most likely sequences after a prompt, as far as several at a time tell"),
];

/// The most tokens of a sequence.
fn longest(cx: &mut NodeCx<'_, '_>) -> Result<Dim> {
    cx.with_count(1, Some(1))?;
    let longest = cx.sizes_within(1, &|_| Some(Dim::from(MOST_TOKENS)))?;
    longest.first().cloned().map_or_else(|| malformed("max_length has no element"), Ok)
}

fn requires_more(cx: &mut NodeCx<'_, '_>, longest: &Dim, start: &Dim) -> Result<()> {
    let claim = "max_length must be more than the number of tokens to begin with";
    cx.b.require(Requirement::at_most(start.clone() + Dim::ONE, longest.clone()), claim)
}

fn greedy_search(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.int("model_type")? != 0 {
        return unsupported(format!("model_type {} of {}", cx.int("model_type")?, cx.def.name));
    }
    let longest = longest(cx)?;
    let length = cx.b.shape(cx.input(0)?)[1].clone();
    requires_more(cx, &longest, &length)?;
    let model = Model::new(cx, 0, &Dim::ONE, cx.optional(6))?;
    let places = Places { min_length: 2, repetition: 3, vocab_mask: 4, prefix_mask: 5 };
    let scores = Scores::new(cx, &places, &Dim::ONE)?;
    Ok(vec![greedy::sequences(cx, &model, &scores, &longest, &mut Best)?])
}

fn beam_search(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let kind = match cx.int("model_type")? {
        kind @ 0..=2 => kind,
        other => return not_one_of("model_type", other, "0, 1, 2"),
    };
    beams::search(cx, kind)
}
