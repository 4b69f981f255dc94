//! Hashes of the last few tokens, by which models look embeddings of n-grams up: for n from 2 to `max_ngram_size`, what the last n
//! tokens come to, each times a number of its place, joined by exclusive or. Integers wrap around.

use super::linear::capacity;
use super::own;
use super::sequences::{Carried, Sequences};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{I32, I64};
use onnxc_ir::graph::{Op, Requirement, Tensor};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    own("NGramHashMapping", even)
        .inputs(&[
            req("input_ids", "M"),
            req("multipliers", "M"),
            req("vocab_sizes", "M"),
            opt("past_ids", "M"),
            opt("head_offsets", "M"),
            opt("eos_token_id", "M"),
            opt("segment_ids", "tensor(int32)"),
        ])
        .outputs(&[req("hash_ids", "M"), opt("present_ids", "M")])
        .attributes(&[
            required("max_ngram_size", Int),
            required("n_head_per_ngram", Int),
            required("pad_id", Int),
            int("reset_on_eos", 0),
        ])
        .types(&[("M", &[I32, I64])])
        .shapes(&[
            "input_ids[B, S]",
            "max_ngram_size <= count(multipliers)",
            "multipliers[_]",
            "vocab_sizes[(max_ngram_size - 1) * n_head_per_ngram]",
            "past_ids[B, max_ngram_size - 1]",
            "head_offsets[(max_ngram_size - 1) * n_head_per_ngram]",
            "eos_token_id[]",
            "segment_ids[B, S]",
        ])
        .doc("hashes of the n-grams that end with each token"),
    own("VarlenNGramHashMapping", packed)
        .inputs(&[
            req("input_ids", "M"),
            req("multipliers", "M"),
            req("vocab_sizes", "M"),
            req("cumulative_sequence_length", "S"),
            opt("past_ids", "M"),
            opt("head_offsets", "M"),
            opt("eos_token_id", "M"),
            opt("segment_ids", "tensor(int32)"),
            opt("past_segment_ids", "S"),
            opt("capture_count", "S"),
        ])
        .outputs(&[
            req("hash_ids", "M"),
            opt("present_ids", "M"),
            opt("present_segment_ids", "S"),
            opt("state_update", "M"),
        ])
        .attributes(&[
            required("max_ngram_size", Int),
            required("n_head_per_ngram", Int),
            required("pad_id", Int),
            int("reset_on_eos", 0),
            int("state_update_capacity", 0),
        ])
        .types(&[("M", &[I32, I64]), ("S", &[I32])])
        .shapes(&[
            "input_ids[N]",
            "max_ngram_size <= count(multipliers)",
            "multipliers[_]",
            "vocab_sizes[(max_ngram_size - 1) * n_head_per_ngram]",
            "past_ids[B, max_ngram_size - 1]",
            "head_offsets[(max_ngram_size - 1) * n_head_per_ngram]",
            "eos_token_id[]",
            "segment_ids[N]",
            "past_segment_ids[B, max_ngram_size - 1]",
            "cumulative_sequence_length[B + 1]",
            "capture_count[B]",
        ])
        .doc("NGramHashMapping of packed requests of unlike lengths"),
];

/// What both operators read beside tokens.
struct Hash {
    /// How many tokens before its last one an n-gram has at most.
    behind: usize,
    heads: Dim,
    multipliers: ValueId,
    vocabulary: ValueId,
    offsets: Option<ValueId>,
    /// In place of tokens that there are not, or that belong to what came before.
    filler: ValueId,
    pad: ValueId,
    /// The token after which another text begins, where that matters.
    end: Option<ValueId>,
}

impl Hash {
    /// Offsets of heads are input `at`, the token of an end is the one behind them.
    fn new(cx: &mut NodeCx<'_, '_>, at: usize) -> Result<Hash> {
        let (multipliers, vocabulary) = (cx.input("multipliers")?, cx.input("vocab_sizes")?);
        let (offsets, end) = (cx.optional(at), cx.optional(at + 1));
        let count = |name: &str, least: i64| match cx.int(name)? {
            count if (least..=0xffff).contains(&count) => Ok(count as usize),
            other => malformed(format!("{name} is {other}; it must be from {least} to 65535")),
        };
        let (longest, heads) = (count("max_ngram_size", 2)?, count("n_head_per_ngram", 1)?);
        let (pad, resets) = (cx.int("pad_id")?, cx.int("reset_on_eos")? != 0);
        let b = &mut *cx.b;
        let kind = b.dtype(multipliers);
        let pad = match kind {
            I32 => match i32::try_from(pad) {
                Ok(pad) => Tensor::scalar(pad),
                Err(_) => return malformed(format!("pad_id is {pad}, which does not fit 32 bits")),
            },
            _ => Tensor::scalar(pad),
        };
        let pad = b.constant(pad);
        // What the least lacks: that of a size of 1 is nothing.
        let least = b.reduce(ReduceFn::Min, vocabulary, &[0])?;
        let least = b.cast(least, I64)?;
        let least = b.binary_scalar(BinaryFn::Min, least, 1.0)?;
        let one = b.scalar(I64, 1.0);
        let lack = b.binary(BinaryFn::Sub, one, least)?;
        let lack = b.scalar_sizes(&[lack], &|_| None)?.remove(0);
        let text = format!("the least of vocab_sizes is {V}; it must be 1 or more");
        b.require(Requirement::equal(lack.clone(), Dim::ZERO).stated(text, &[&(Dim::ONE - lack)]))?;
        let filler = end.unwrap_or(pad);
        let (heads, behind) = (Dim::from(heads), longest - 1);
        let end = end.filter(|_| resets);
        Ok(Hash { behind, heads, multipliers, vocabulary, offsets, filler, pad, end })
    }

    /// Hashes `[lead.., behind * heads]` of n-grams, whose tokens, `[lead..]` each, come from the last one on. `segments` are those
    /// of the tokens: an n-gram begins where they change.
    fn hashed(&self, b: &mut Builder<'_>, tokens: &[ValueId], segments: &[ValueId]) -> Result<ValueId> {
        let mut lead = b.shape(tokens[0]);
        let axis = lead.len();
        let (mut mixed, mut mixes, mut is_cut) = (None, Vec::new(), None);
        for (at, &token) in tokens.iter().enumerate() {
            let mut token = token;
            if at > 0 {
                let mut cut = |b: &mut Builder<'_>, own: ValueId, other: ValueId, how: CompareFn| {
                    let here = b.compare(how, own, other)?;
                    is_cut = Some(match is_cut {
                        Some(before) => b.binary(BinaryFn::Or, before, here)?,
                        None => here,
                    });
                    Ok(())
                };
                if let Some(end) = self.end {
                    cut(b, token, end, CompareFn::Eq)?;
                }
                if let (Some(&later), Some(&own)) = (segments.get(at - 1), segments.get(at)) {
                    cut(b, own, later, CompareFn::Ne)?;
                }
                if let Some(is_cut) = is_cut {
                    token = b.select(is_cut, self.filler, token)?;
                }
            }
            let factor = b.slice_axis(self.multipliers, 0, Dim::from(at), Dim::ONE)?;
            let factor = b.reshape(factor, vec![])?;
            let product = b.binary(BinaryFn::Mul, token, factor)?;
            let own = match mixed {
                Some(mixed) => b.binary(BinaryFn::BitXor, mixed, product)?,
                None => product,
            };
            if at > 0 {
                mixes.push(b.unsqueeze(own, &[axis])?);
            }
            mixed = Some(own);
        }
        let mixes = b.concat(&mixes, axis)?;
        let mixes = b.unsqueeze(mixes, &[axis + 1])?;
        let count = Dim::from(self.behind);
        let table = vec![count.clone(), self.heads.clone()];
        let vocabulary = b.reshape(self.vocabulary, table.clone())?;
        let mut y = b.binary(BinaryFn::Mod, mixes, vocabulary)?;
        if let Some(offsets) = self.offsets {
            let offsets = b.reshape(offsets, table)?;
            y = b.binary(BinaryFn::Add, y, offsets)?;
        }
        lead.push(count * self.heads.clone());
        b.reshape(y, lead)
    }
}

/// Sequences of one length, `[B, S]`. Segments are those of the tokens that are given: what came before them is of the first one's.
fn even(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, past, segments) = (cx.input("input_ids")?, cx.optional("past_ids"), cx.optional("segment_ids"));
    let hash = Hash::new(cx, 4)?;
    let b = &mut *cx.b;
    let shape = b.shape(ids);
    let ([batch, time], behind) = (shape.as_slice(), Dim::from(hash.behind)) else {
        return malformed(format!("input_ids {}", b.ty(ids)));
    };
    let past = match past {
        Some(past) => past,
        None => b.expand(hash.filler, vec![batch.clone(), behind.clone()])?,
    };
    let all = b.concat(&[past, ids], 1)?;
    let steps = 0..=hash.behind;
    let shifted = |back: usize| Dim::from(hash.behind - back);
    let tokens = steps.clone().map(|back| b.slice_axis(all, 1, shifted(back), time.clone()));
    let tokens = tokens.collect::<Result<Vec<_>>>()?;
    let mut own = Vec::new();
    if let Some(segments) = segments {
        let step = b.iota(vec![time.clone()], 0)?;
        for back in steps {
            let step = b.binary_scalar(BinaryFn::Sub, step, back as f64)?;
            let step = b.binary_scalar(BinaryFn::Max, step, 0.0)?;
            own.push(b.emit1(Op::Gather { axis: 1 }, &[segments, step])?);
        }
    }
    let y = hash.hashed(b, &tokens, &own)?;
    Ok(vec![y, b.slice_axis(all, 1, time.clone(), behind)?])
}

fn packed(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, bounds, past) =
        (cx.input("input_ids")?, cx.input("cumulative_sequence_length")?, cx.optional("past_ids"));
    let (segments, past_segments, counts) =
        (cx.optional("segment_ids"), cx.optional("past_segment_ids"), cx.optional("capture_count"));
    let (capacity, captures) = (capacity(cx, counts)?, cx.wants(3));
    if segments.is_none() && (past_segments.is_some() || cx.wants(2)) {
        let which =
            if past_segments.is_some() { "past_segment_ids" } else { "the output present_segment_ids" };
        return malformed(format!("{which} without segment_ids"));
    }
    let hash = Hash::new(cx, 5)?;
    let b = &mut *cx.b;
    let (tokens, behind) = (b.shape(ids)[0].clone(), Dim::from(hash.behind));
    let sequences = Sequences::new(b, bounds, "cumulative_sequence_length", &tokens, 1)?;
    let rows = Carried { sequences: &sequences, behind: behind.clone() };
    let before = sequences.count.clone() * behind.clone();
    let joined = |b: &mut Builder<'_>, past: ValueId, own: ValueId| {
        let past = b.reshape(past, vec![before.clone()])?;
        b.concat(&[past, own], 0)
    };
    let past = match past {
        Some(past) => past,
        None => b.expand(hash.filler, vec![before.clone()])?,
    };
    let all = joined(b, past, ids)?;
    let all_segments = match (segments, past_segments) {
        (Some(segments), Some(past)) => Some(joined(b, past, segments)?),
        _ => segments,
    };
    // Without segments of their own the tokens of a state are of the first one's.
    let segment_row = |b: &mut Builder<'_>, sequence: ValueId, start: ValueId, place: ValueId| {
        if past_segments.is_some() {
            return rows.row(b, sequence, start, place);
        }
        let place = b.binary_scalar(BinaryFn::Max, place, 0.0)?;
        b.binary(BinaryFn::Add, start, place)
    };
    let take =
        |b: &mut Builder<'_>, from: ValueId, row: ValueId| b.emit1(Op::Gather { axis: 0 }, &[from, row]);
    let sequence = sequences.of_tokens(b)?;
    let place = sequences.places(b, sequence)?;
    let start = take(b, sequences.starts, sequence)?;
    let (mut own, mut own_segments) = (Vec::new(), Vec::new());
    for back in 0..=hash.behind {
        let place = b.binary_scalar(BinaryFn::Sub, place, back as f64)?;
        let row = rows.row(b, sequence, start, place)?;
        own.push(take(b, all, row)?);
        if let Some(segments) = all_segments {
            let row = segment_row(b, sequence, start, place)?;
            own_segments.push(take(b, segments, row)?);
        }
    }
    let hashes = hash.hashed(b, &own, &own_segments)?;
    let last = rows.last(b)?;
    let mut results = vec![hashes, take(b, all, last)?];
    let (number, starts) = rows.numbers(b)?;
    let lengths = b.unsqueeze(sequences.lengths, &[1])?;
    let slot = b.iota(vec![Dim::ONE, behind.clone()], 1)?;
    results.push(match all_segments {
        Some(segments) => {
            let place = b.binary(BinaryFn::Add, lengths, slot)?;
            let place = b.binary_scalar(BinaryFn::Sub, place, hash.behind as f64)?;
            let row = segment_row(b, number, starts, place)?;
            take(b, segments, row)?
        }
        // Nothing reads it.
        None => b.scalar(I32, 0.0),
    });
    if captures {
        let shape = vec![sequences.count.clone(), capacity.clone(), behind];
        results.push(match counts {
            Some(counts) => {
                // The state behind token i of a sequence ends with it.
                let token = b.iota(vec![Dim::ONE, capacity.clone(), Dim::ONE], 1)?;
                let place = b.binary(BinaryFn::Add, token, slot)?;
                let place = b.binary_scalar(BinaryFn::Sub, place, hash.behind as f64 - 1.0)?;
                let is_asked = sequences.asked(b, counts, &capacity)?;
                let is_asked = b.unsqueeze(is_asked, &[2])?;
                let [number, starts] = [number, starts].map(|each| b.unsqueeze(each, &[2]));
                let row = rows.row(b, number?, starts?, place)?;
                let none = b.scalar(I64, 0.0);
                let row = b.select(is_asked, row, none)?;
                let states = take(b, all, row)?;
                b.select(is_asked, states, hash.pad)?
            }
            None => b.expand(hash.pad, shape)?,
        });
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;
    use onnxc_ops::node_case::Case;

    fn case(name: &'static str, ids: &[usize]) -> Case {
        let tokens: &[i64] = &[3, 1, 4, 1, 5];
        let symbols: &[&str] = if ids.len() == 2 { &["", "s"] } else { &["s"] };
        let case = crate::tests::case(DOMAIN, name, 1).symbolic::<i64>(symbols, ids, tokens);
        let case = case.input::<i64>(&[3], &[3, 5, 7]).input::<i64>(&[4], &[11, 13, 101, 103]);
        case.int("max_ngram_size", 3).int("n_head_per_ngram", 2)
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn hashes_of_two_and_three_tokens() {
        let ended = case("NGramHashMapping", &[1, 5]).input::<i64>(&[1, 2], &[2, 9]).int("pad_id", 0);
        let ended =
            ended.input::<i64>(&[4], &[0, 11, 24, 125]).input::<i64>(&[], &[1]).int("reset_on_eos", 1);
        let wanted = [3, 21, 66, 167, 1, 23, 75, 176, 9, 20, 38, 139, 1, 21, 40, 141, 10, 21, 37, 138];
        ended.gives(0, &[1, 5, 4], &wanted.map(f64::from));
        ended.outputs(2).gives(1, &[1, 2], &[1.0, 5.0]);
        let parted = case("NGramHashMapping", &[1, 5]).missing().missing().missing();
        let parted = parted.input::<i32>(&[1, 5], &[0, 0, 1, 1, 1]).int("pad_id", 6);
        let wanted = [1, 10, 61, 61, 1, 12, 38, 38, 7, 5, 56, 56, 1, 10, 61, 61, 10, 10, 22, 22];
        parted.gives(0, &[1, 5, 4], &wanted.map(f64::from));
    }

    /// Requests of two tokens and of three: the hashes are those of each alone.
    #[test]
    fn packed_requests_do_not_see_each_other() {
        let of = |bounds: &[i32]| {
            let case = case("VarlenNGramHashMapping", &[5]).input::<i32>(&[3], bounds).int("pad_id", 6);
            let case = case.missing().missing().missing().input::<i32>(&[5], &[0, 0, 1, 1, 1]).missing();
            case.input::<i32>(&[2], &[1, 5]).int("state_update_capacity", 2).outputs(4)
        };
        let packed = of(&[0, 2, 5]);
        // The requests are the segments of the case above.
        let wanted = [1, 10, 61, 61, 1, 12, 38, 38, 7, 5, 56, 56, 1, 10, 61, 61, 10, 10, 22, 22];
        packed.gives(0, &[5, 4], &wanted.map(f64::from));
        packed.gives(1, &[2, 2], &[3.0, 1.0, 1.0, 5.0]);
        packed.gives(2, &[2, 2], &[0.0, 0.0, 1.0, 1.0]);
        packed.gives(3, &[2, 2, 2], &[6.0, 3.0, 6.0, 6.0, 6.0, 4.0, 4.0, 1.0]);
        let message = of(&[0, 5, 5]).run().unwrap_err().message;
        assert!(message.contains("it must be at least 1 above the one before"), "{message}");
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        let one = |sizes: [i64; 2], name: &'static str, value: i64| {
            let case = crate::tests::case(DOMAIN, "NGramHashMapping", 1).input::<i64>(&[1, 1], &[3]);
            let case = case.input::<i64>(&[2], &[3, 5]).input::<i64>(&[2], &sizes);
            let case = case.int("max_ngram_size", 2).int("n_head_per_ngram", 2).int("pad_id", 0);
            case.int(name, value).run().unwrap_err().message
        };
        let message = one([5, 0], "pad_id", 0);
        assert!(message.contains("the least of vocab_sizes is"), "{message}");
        let message = one([5, 5], "max_ngram_size", 1);
        assert!(message.contains("max_ngram_size is 1"), "{message}");
        let message = one([5, 5], "max_ngram_size", 3);
        assert!(message.contains("it must be at most the number of elements of multipliers"), "{message}");
    }
}
