//! What the inputs and results of a model's graphs stand for. ONNX Runtime knows them by fixed names and places, in the order
//! that its tools write; here names alone decide, so that a graph in another order is right as well, and one that takes what the
//! operator does not have is refused.

use std::sync::Arc;

use onnxc_ops::Subgraph;
use onnxc_ops::row::*;

/// What an input stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// The decoder's newest tokens, or all so far; of an encoder, the tokens that the decoder starts with.
    Tokens,
    Positions,
    /// Tokens of the decoder to see.
    Mask,
    /// What the encoder is given: tokens, or features.
    EncoderTokens,
    /// Tokens of the encoder to see.
    EncoderMask,
    /// The encoder's hidden states.
    Hidden,
    /// A cache of self-attention, by the number of the cache that the decoder gives for it.
    Own(usize),
    /// A cache of cross-attention.
    Cross(usize),
}

/// Kinds of models, distinguished by the inputs of their decoders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelForm {
    /// A decoder alone. Keys and values are one cache `[2, rows, heads, length, size]`.
    Tokens,
    /// A decoder behind an encoder of tokens. Caches are `[rows, heads, length, size]`, as with features.
    Text,
    /// A decoder behind an encoder of features.
    Features,
}

impl ModelForm {
    fn slots(self) -> &'static [(&'static str, Slot)] {
        match self {
            ModelForm::Tokens => &[
                ("input_ids", Slot::Tokens),
                ("position_ids", Slot::Positions),
                ("attention_mask", Slot::Mask),
            ],
            ModelForm::Text => &[
                ("input_ids", Slot::Tokens),
                ("encoder_input_ids", Slot::EncoderTokens),
                ("encoder_attention_mask", Slot::EncoderMask),
                ("encoder_hidden_states", Slot::Hidden),
            ],
            ModelForm::Features => &[("input_ids", Slot::Tokens), ("encoder_hidden_states", Slot::Hidden)],
        }
    }

    /// Axes of a cache.
    fn axes(self) -> usize {
        if self == ModelForm::Tokens { 5 } else { 4 }
    }
}

/// Inputs that go with caches of a fixed room, which kernels for other devices fill in place.
const OF_FIXED_ROOM: &[&str] = &[
    "past_sequence_length",
    "past_seq_len",
    "beam_width",
    "num_beams",
    "cache_indirection",
    "cache_indir_id",
];

/// A decoder, whose outputs are logits and a cache for each that it takes of itself.
#[derive(Clone)]
pub(super) struct Decoder {
    pub body: Arc<Subgraph>,
    /// What each input stands for.
    pub slots: Vec<Slot>,
    /// Inputs that are caches of self-attention, in the order of the outputs that follow them, and of cross-attention.
    pub own: Vec<usize>,
    pub crosses: Vec<usize>,
    /// The output that is the logits.
    logits: usize,
}

impl Decoder {
    /// The decoder that the attribute `what` holds.
    pub(super) fn new(
        cx: &NodeCx<'_, '_>,
        what: &str,
        body: Arc<Subgraph>,
        form: ModelForm,
    ) -> Result<Decoder> {
        let names = body.input_names();
        let known = slots_by_name(cx, what, &body, form.slots(), Some(form.axes()))?;
        let caches: Vec<usize> = (0..names.len()).filter(|&at| known[at].is_none()).collect();
        let outputs = body.output_names();
        let logits = outputs.iter().position(|&name| name == "logits").unwrap_or(0);
        let presents: Vec<&str> =
            (0..outputs.len()).filter(|&at| at != logits).map(|at| outputs[at]).collect();
        let (count, of_each) = (presents.len(), if form == ModelForm::Tokens { 1 } else { 2 });
        if count == 0 || !count.is_multiple_of(of_each) || caches.len() != of_each * count {
            let others = if of_each == 1 { "" } else { ", and the same number of cross-attention" };
            return unsupported(format!(
                "the {what} of {} takes {} caches and gives {count}: inputs {names:?}, outputs {outputs:?}; it must give \
                 logits and the caches of self-attention, and take these{others}",
                cx.def.name,
                caches.len()
            ));
        }
        let taken: Vec<&str> = caches.iter().map(|&at| names[at]).collect();
        let own: Vec<usize> = pairing(&taken, &presents).into_iter().map(|at| caches[at]).collect();
        let crosses: Vec<usize> = caches.iter().copied().filter(|at| !own.contains(at)).collect();
        let place = |list: &[usize], at: usize| list.iter().position(|&other| other == at);
        let slot = |(at, known): (usize, &Option<Slot>)| {
            known.or_else(|| place(&own, at).map(Slot::Own)).or_else(|| place(&crosses, at).map(Slot::Cross))
        };
        let slots = known.iter().enumerate().filter_map(slot).collect();
        Ok(Decoder { body: body.clone(), slots, own, crosses, logits })
    }

    /// Values for its inputs.
    pub(super) fn inputs(&self, mut value: impl FnMut(Slot) -> Option<ValueId>) -> Result<Vec<ValueId>> {
        let names = self.body.input_names();
        let of_slot = |(&slot, name): (&Slot, &&str)| match value(slot) {
            Some(value) => Ok(value),
            None => unsupported(format!("the input `{name}` of the decoder has no value")),
        };
        self.slots.iter().zip(&names).map(of_slot).collect()
    }

    /// Logits and caches of its results.
    pub(super) fn split(&self, mut results: Vec<ValueId>) -> (ValueId, Vec<ValueId>) {
        let logits = results.remove(self.logits);
        (logits, results)
    }

    /// Names of some of its inputs.
    pub(super) fn names(&self, inputs: &[usize]) -> Vec<&str> {
        let names = self.body.input_names();
        inputs.iter().map(|&at| names[at]).collect()
    }

    /// Whether it takes all tokens so far: it does not say that there is one.
    pub(super) fn takes_all_tokens(&self) -> bool {
        let at = self.slots.iter().position(|&slot| slot == Slot::Tokens);
        let ty = at.and_then(|at| self.body.input_type(at));
        ty.is_some_and(|(_, dims)| dims.get(1) != Some(&Some(Dim::ONE)))
    }

    /// Caches of no tokens, with `rows` along the axis `row`.
    pub(super) fn empty_caches(
        &self,
        cx: &mut NodeCx<'_, '_>,
        row: usize,
        rows: &Dim,
    ) -> Result<Vec<ValueId>> {
        self.own.iter().map(|&at| empty_cache(cx, &self.body, at, row, rows)).collect()
    }
}

/// What each input of a body stands for; `None` is a cache.
fn slots_by_name(
    cx: &NodeCx<'_, '_>,
    what: &str,
    body: &Subgraph,
    known: &[(&str, Slot)],
    axes: Option<usize>,
) -> Result<Vec<Option<Slot>>> {
    let names = body.input_names();
    let mut slots = Vec::with_capacity(names.len());
    for (at, &name) in names.iter().enumerate() {
        let slot = known.iter().find(|(own, _)| *own == name).map(|&(_, slot)| slot);
        let is_cache = axes.is_some_and(|axes| body.input_rank(at).is_none_or(|rank| rank == axes));
        if OF_FIXED_ROOM.contains(&name) {
            return unsupported(format!(
                "the input `{name}` of the {what} of {}, which goes with caches of a fixed room; caches grow here",
                cx.def.name
            ));
        }
        if slot.is_none() && !is_cache {
            let names: Vec<&str> = known.iter().map(|&(name, _)| name).collect();
            let caches = axes.map_or(String::new(), |axes| format!(" and caches of {axes} axes"));
            return unsupported(format!(
                "the input `{name}` of the {what}; one of {} takes {}{caches}",
                cx.def.name,
                names.join(", ")
            ));
        }
        if slot.is_some() && slots.contains(&slot) {
            return malformed(format!("the {what} has two inputs for `{name}`: {names:?}"));
        }
        slots.push(slot);
    }
    if !slots.contains(&Some(known[0].1)) {
        return malformed(format!("the {what} must take {}; its inputs are {names:?}", known[0].0));
    }
    Ok(slots)
}

/// What the inputs of an encoder stand for. One of tokens has a mask, one of features has none.
pub(super) fn encoder_slots(cx: &NodeCx<'_, '_>, encoder: &Subgraph, of_tokens: bool) -> Result<Vec<Slot>> {
    let known: &[(&str, Slot)] = match of_tokens {
        true => &[
            ("encoder_input_ids", Slot::EncoderTokens),
            ("encoder_attention_mask", Slot::EncoderMask),
            ("decoder_input_ids", Slot::Tokens),
        ],
        false => &[
            ("encoder_input_ids", Slot::EncoderTokens),
            ("encoder_input_features", Slot::EncoderTokens),
            ("audio_features", Slot::EncoderTokens),
            ("decoder_input_ids", Slot::Tokens),
        ],
    };
    Ok(slots_by_name(cx, "encoder", encoder, known, None)?.into_iter().flatten().collect())
}

/// For each of the values that are given, the one that is taken and has a name of the same words, as `past_self_key_0` and
/// `present_key_self_0` have. Where that is not one for each, the ones of the same places.
pub(super) fn pairing(taken: &[&str], given: &[&str]) -> Vec<usize> {
    let words_taken: Vec<Vec<&str>> = taken.iter().map(|name| words(name)).collect();
    let mut order = Vec::with_capacity(given.len());
    for name in given {
        let own = words(name);
        let mut fitting = words_taken.iter().enumerate().filter(|(_, words)| **words == own);
        match (fitting.next(), fitting.next()) {
            (Some((at, _)), None) if !order.contains(&at) => order.push(at),
            _ => return (0..given.len()).collect(),
        }
    }
    order
}

/// Words of a cache's name, sorted, without those that say whether it is taken or given.
fn words(name: &str) -> Vec<&str> {
    let name = name.strip_prefix("past_key_values").unwrap_or(name);
    let is_own = |word: &&str| !["", "past", "present"].contains(word);
    let mut words: Vec<&str> = name.split(['_', '.']).filter(is_own).collect();
    words.sort_unstable();
    words
}

/// A cache of no tokens, for input `at` of a decoder, with `rows` along the axis `row`.
fn empty_cache(
    cx: &mut NodeCx<'_, '_>,
    decoder: &Subgraph,
    at: usize,
    row: usize,
    rows: &Dim,
) -> Result<ValueId> {
    let name = decoder.input_names()[at].to_string();
    let declared = decoder.input_type(at).filter(|(_, dims)| dims.len() == row + 4);
    let Some((dtype, dims)) = declared else {
        let axes = row + 4;
        return malformed(format!("the input `{name}` of the decoder must be declared with {axes} axes"));
    };
    let mut shape = vec![];
    for (axis, dim) in dims.into_iter().enumerate() {
        shape.push(match dim {
            _ if axis == row => rows.clone(),
            _ if axis == row + 2 => Dim::ZERO,
            Some(dim) => dim,
            None => {
                return malformed(format!(
                    "dimension {axis} of the input `{name}` of the decoder must be declared as a number"
                ));
            }
        });
    }
    let zero = cx.b.scalar(dtype, 0.0);
    cx.b.expand(zero, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_paired_by_the_words_of_their_names() {
        let taken = ["past_key_self_0", "past_value_self_0", "past_key_cross_0", "past_value_cross_0"];
        assert_eq!(pairing(&taken, &["present_self_value_0", "present_self_key_0"]), [1, 0]);
        assert_eq!(pairing(&taken, &["present_key_cross_0", "present_value_cross_0"]), [2, 3]);
        assert_eq!(pairing(&["past_key_values.0.key", "past_key_values.1.key"], &["present.1.key"]), [1]);
        // Names that say nothing, or the same twice.
        assert_eq!(pairing(&["a", "b"], &["c", "d"]), [0, 1]);
        assert_eq!(pairing(&["past_0", "past_1"], &["present_1", "present_1"]), [0, 1]);
    }
}
