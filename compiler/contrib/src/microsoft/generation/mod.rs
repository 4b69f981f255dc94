//! Loops that generate tokens: the decoder of a model is a body, and its caches are states of the loop. The first run, on all
//! tokens of the prompt, comes before the loop.
//!
//! The bodies are those that ONNX Runtime's tools write: `input_ids`, `position_ids` and `attention_mask`, caches of all layers,
//! to `logits` and caches; or an encoder that also starts the decoder, and a decoder with caches of self-attention and of
//! cross-attention. The meaning of an input follows from its name, see `bodies.rs`.

mod beams;
mod bodies;
mod draw;
mod greedy;
mod model;
mod scores;
mod timestamps;

use self::beams::BeamSearch;
use self::draw::Draw;
use self::greedy::Best;
use self::model::Model;
use self::scores::{Places, Scores, scalar_of};
use self::timestamps::Timestamps;
use super::own;
use onnxc_ir::graph::DType::{F16, F32, I32};
use onnxc_ir::graph::Requirement;
use onnxc_ops::row::*;

/// Tokens of a sequence, and beams, that data may ask for at most.
const MOST_TOKENS: usize = 4096;
const MOST_BEAMS: usize = 128;

const DECODER: AttrDef = required("decoder", Graph);
const ENCODER: AttrDef = optional("encoder", Graph);
const INIT_DECODER: AttrDef = optional("init_decoder", Graph);

pub const ROWS: &[OpDef] = &[
    own("GreedySearch", greedy_search)
        .inputs(&[
            req("input_ids", "I"),
            req("max_length", "I"),
            opt("min_length", "I"),
            opt("repetition_penalty", "T"),
            opt("vocab_mask", "I"),
            opt("prefix_vocab_mask", "I"),
            opt("attention_mask", "I"),
        ])
        .outputs(&[req("sequences", "I")])
        .attributes(&[
            DECODER,
            int("decoder_start_token_id", -1),
            ENCODER,
            required("eos_token_id", Int),
            INIT_DECODER,
            int("model_type", 0),
            int("no_repeat_ngram_size", 0),
            required("pad_token_id", Int),
            int("vocab_size", -1),
        ])
        .types(&[("T", &[F32]), ("I", &[I32])])
        .shapes(&[
            "input_ids[B, S]",
            "count(max_length) = 1",
            "count(min_length) = 1",
            "count(repetition_penalty) = 1",
            "vocab_mask[V]",
            "prefix_vocab_mask[B, V]",
            "attention_mask[B, S]",
        ])
        .doc("tokens after a prompt, the most likely one at each step"),
    own("BeamSearch", beam_search)
        .inputs(&[
            req("input_ids", "F"),
            req("max_length", "I"),
            opt("min_length", "I"),
            req("num_beams", "I"),
            req("num_return_sequences", "I"),
            opt("length_penalty", "T"),
            opt("repetition_penalty", "T"),
            opt("vocab_mask", "M"),
            opt("prefix_vocab_mask", "M"),
            opt("attention_mask", "I"),
            opt("decoder_input_ids", "I"),
            opt("logits_processor", "I"),
        ])
        .outputs(&[req("sequences", "I"), opt("sequences_scores", "T"), opt("scores", "T")])
        .attributes(&[
            DECODER,
            int("decoder_start_token_id", -1),
            int("early_stopping", 0),
            ENCODER,
            required("eos_token_id", Int),
            INIT_DECODER,
            int("model_type", 0),
            int("no_repeat_ngram_size", 0),
            required("pad_token_id", Int),
            int("vocab_size", -1),
        ])
        .types(&[("T", &[F32, F16]), ("F", &[F32, I32, F16]), ("I", &[I32]), ("M", &[I32])])
        .shapes(&[
            "input_ids[B, S] | [B, D, S]",
            "count(max_length) = 1",
            "count(min_length) = 1",
            "count(num_beams) = 1",
            "count(num_return_sequences) = 1",
            "count(length_penalty) = 1",
            "count(repetition_penalty) = 1",
            "vocab_mask[V]",
            "prefix_vocab_mask[B, V]",
            "attention_mask[B, S]",
            "decoder_input_ids[B, _]",
            "count(logits_processor) = 1",
        ])
        .doc("the most likely sequences after a prompt, found by a search with several beams"),
    own("Sampling", sampling)
        .inputs(&[
            req("input_ids", "I"),
            req("max_length", "I"),
            opt("min_length", "I"),
            opt("repetition_penalty", "T"),
            opt("vocab_mask", "I"),
            opt("prefix_vocab_mask", "I"),
            opt("attention_mask", "I"),
            opt("presence_mask", "I"),
            opt("seed", "I"),
        ])
        .outputs(&[req("sequences", "I"), opt("filtered_logits", "T")])
        .attributes(&[
            int("custom", 0),
            DECODER,
            int("decoder_start_token_id", -1),
            ENCODER,
            required("eos_token_id", Int),
            float("filter_value", -1e20),
            INIT_DECODER,
            int("min_tokens_to_keep", 0),
            int("model_type", 0),
            int("no_repeat_ngram_size", 0),
            required("pad_token_id", Int),
            float("presence_penalty", 0.0),
            float("temperature", 1.0),
            float("top_p", 0.0),
            int("vocab_size", -1),
        ])
        .types(&[("T", &[F32]), ("I", &[I32])])
        .shapes(&[
            "input_ids[B, S]",
            "count(max_length) = 1",
            "count(min_length) = 1",
            "count(repetition_penalty) = 1",
            "vocab_mask[V]",
            "prefix_vocab_mask[B, V]",
            "attention_mask[B, S]",
            "presence_mask[B, V]",
            "count(seed) = 1",
        ])
        .doc("tokens after a prompt, drawn from the likely ones at each step"),
    own("WhisperBeamSearch", whisper_beam_search)
        .inputs(&[
            req("input_ids", "F"),
            req("max_length", "I"),
            opt("min_length", "I"),
            req("num_beams", "I"),
            req("num_return_sequences", "I"),
            opt("length_penalty", "T"),
            opt("repetition_penalty", "T"),
            opt("vocab_mask", "M"),
            opt("prefix_vocab_mask", "M"),
            opt("attention_mask", "I"),
            opt("decoder_input_ids", "I"),
            opt("logits_processor", "I"),
            opt("cross_qk_layer_head", "I"),
            opt("extra_decoding_ids", "I"),
            opt("temperature", "T"),
        ])
        .outputs(&[
            req("sequences", "I"),
            opt("sequences_scores", "T"),
            opt("scores", "T"),
            opt("cross_qk", "V"),
            opt("non_speech_probs", "T"),
        ])
        .attributes(&[
            optional("beginning_timestamp_token_id", Int),
            DECODER,
            optional("decoder_output_cross_qk", Int),
            int("decoder_start_token_id", -1),
            int("early_stopping", 0),
            ENCODER,
            required("eos_token_id", Int),
            INIT_DECODER,
            int("model_type", 2),
            int("no_repeat_ngram_size", 0),
            optional("no_speech_token_id", Int),
            optional("no_timestamps_token_id", Int),
            required("pad_token_id", Int),
            optional("start_of_lm_token_id", Int),
            optional("transcribe_token_id", Int),
            optional("translate_token_id", Int),
            int("vocab_size", -1),
        ])
        .types(&[("T", &[F32, F16]), ("F", &[F32, I32, F16]), ("I", &[I32]), ("M", &[I32]), ("V", &[F32])])
        .shapes(&[
            "input_ids[B, D, S]",
            "count(max_length) = 1",
            "count(min_length) = 1",
            "count(num_beams) = 1",
            "count(num_return_sequences) = 1",
            "count(length_penalty) = 1",
            "count(repetition_penalty) = 1",
            "vocab_mask[V]",
            "prefix_vocab_mask[B, V]",
            "decoder_input_ids[B, _]",
            "count(logits_processor) = 1",
            "count(temperature) = 1",
        ])
        .doc("as BeamSearch, of a model that writes down speech, with its rules for timestamps"),
];

/// The most tokens of a sequence.
fn longest(cx: &mut NodeCx<'_, '_>) -> Result<Dim> {
    cx.with_count(1, Some(1))?;
    let longest = cx.sizes_within(1, &|_| Some(Dim::from(MOST_TOKENS)))?;
    longest.first().cloned().map_or_else(|| malformed("max_length has no element"), Ok)
}

fn requires_more(cx: &mut NodeCx<'_, '_>, longest: &Dim, start: &Dim) -> Result<()> {
    let text =
        format!("max_length is {V}; it must be more than the number of tokens to begin with, which is {V}");
    let requirement = Requirement::at_most(start.clone() + Dim::ONE, longest.clone());
    cx.b.require(requirement.stated(text, &[longest, start]))
}

fn greedy_search(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.int("model_type")? != 0 {
        return unsupported(format!("model_type {} of {}", cx.int("model_type")?, cx.def.name));
    }
    let longest = longest(cx)?;
    let length = cx.b.shape(cx.input("input_ids")?)[1].clone();
    requires_more(cx, &longest, &length)?;
    let model = Model::new(cx, 0, &Dim::ONE, cx.optional("attention_mask"))?;
    let places = Places { min_length: 2, repetition: 3, vocab_mask: 4, prefix_mask: 5 };
    let scores = Scores::new(cx, &places, &Dim::ONE)?;
    Ok(vec![greedy::sequences(cx, &model, &scores, &longest, &mut Best)?])
}

fn beam_search(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let kind = match cx.int("model_type")? {
        kind @ 0..=2 => kind,
        other => return not_one_of("model_type", other, "0, 1, 2"),
    };
    if let Some(processor) = cx.optional("logits_processor")
        && cx.b.known(processor).is_none_or(|known| *known != [Dim::ZERO])
    {
        return unsupported("logits_processor, which is not known to be 0");
    }
    beams::search(cx, BeamSearch { model: kind, temperature: None, timestamps: None })
}

fn whisper_beam_search(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.int("model_type")? != 2 {
        return not_one_of("model_type", cx.int("model_type")?, "2");
    }
    if let Some(at) = [9, 12, 13].into_iter().find(|&at| cx.optional(at).is_some()) {
        return unsupported(format!("the input {}", cx.def.inputs[at].name));
    }
    if cx.wants(3) || cx.optional_int("decoder_output_cross_qk")?.unwrap_or(0) != 0 {
        return unsupported("cross_qk, which only decoders for other devices give");
    }
    let temperature = match scalar_of(cx, 14, F32)? {
        // What is not above 0 leaves the scores as they are.
        Some(temperature) => {
            let (zero, one) = (cx.b.scalar(F32, 0.0), cx.b.scalar(F32, 1.0));
            let positive = cx.b.compare(CompareFn::Gt, temperature, zero)?;
            Some(cx.b.select(positive, temperature, one)?)
        }
        None => None,
    };
    let timestamps = Timestamps::new(cx, 11)?;
    beams::search(cx, BeamSearch { model: 2, temperature, timestamps })
}

fn sampling(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.int("model_type")? != 0 {
        return unsupported(format!("model_type {} of {}", cx.int("model_type")?, cx.def.name));
    }
    if cx.wants(1) {
        return unsupported("the output filtered_logits");
    }
    let longest = longest(cx)?;
    let length = cx.b.shape(cx.input("input_ids")?)[1].clone();
    requires_more(cx, &longest, &length)?;
    let model = Model::new(cx, 0, &Dim::ONE, cx.optional("attention_mask"))?;
    let places = Places { min_length: 2, repetition: 3, vocab_mask: 4, prefix_mask: 5 };
    let mut scores = Scores::new(cx, &places, &Dim::ONE)?;
    let temperature = cx.float("temperature")?;
    if temperature > 0.0 && temperature != 1.0 {
        scores.temperature = Some(cx.b.scalar(F32, f64::from(temperature)));
    }
    let penalty = cx.float("presence_penalty")?;
    if let Some(presence) = cx.optional("presence_mask").filter(|_| penalty != 0.0) {
        let presence = cx.b.cast(presence, F32)?;
        scores.presence = Some(cx.b.binary_scalar(BinaryFn::Mul, presence, f64::from(penalty))?);
    }
    let mut draw = Draw::new(cx, &length, &longest)?;
    Ok(vec![greedy::sequences(cx, &model, &scores, &longest, &mut draw)?])
}
