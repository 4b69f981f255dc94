//! DecoderMaskedMultiHeadAttention: one more token of a decoder, whose caches have room for later tokens, and may belong to other beams.

use super::attention::{Masked, Masks};
use super::group_query::{both, count, with_tokens};
use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F16, F32, I32, I64};
use onnxc_ir::graph::{Op, Requirement};
use onnxc_ops::attention::heads;
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[own("DecoderMaskedMultiHeadAttention", decoder_masked)
    .inputs(&[
        req("query", "T"),
        opt("key", "T"),
        opt("value", "T"),
        opt("mask_index", "M"),
        opt("attention_bias", "T"),
        opt("past_key", "T"),
        opt("past_value", "T"),
        opt("past_sequence_length", "M"),
        opt("beam_width", "M"),
        opt("cache_indirection", "M"),
        opt("bias", "T"),
    ])
    .outputs(&[req("output", "T"), opt("present_key", "T"), opt("present_value", "T"), opt("qk", "QK")])
    .attributes(&[
        optional("mask_filter_value", Float),
        required("num_heads", Int),
        optional("output_qk", Int),
        optional("past_present_share_buffer", Int),
        optional("scale", Float),
    ])
    .types(&[("T", &[F32, F16]), ("QK", &[F32, F16]), ("M", &[I32])])
    .shapes(&[
        "if key: query[B, 1, num_heads * E]",
        "if !key: query[B, 1, 3 * num_heads * E]",
        "key[B, 1, num_heads * E] | [B, num_heads, L, E]",
        "value[B, 1, num_heads * E] | [B, num_heads, L, E]",
        "mask_index[B, _]",
        "attention_bias[B|1, num_heads|1, 1, _]",
        "past_key[B, num_heads, P, E]",
        "past_value[B, num_heads, P, E]",
        "count(past_sequence_length) = 1",
        "count(beam_width) = 1",
        "cache_indirection[_, _, P]",
        "bias[3 * num_heads * E]",
    ])
    .doc("attention of one token with a cache that has room, or with keys and values of an encoder")];

fn decoder_masked(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (query, bias, past) = (cx.input("query")?, cx.optional("bias"), both(cx, "past_key", "past_value")?);
    let (given, number) = (both(cx, "key", "value")?, count(cx, "num_heads")?);
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let filter = cx.optional_float("mask_filter_value")?.unwrap_or(-10000.0);
    let to = cx.b.dtype(query);
    let width = match (given, cx.b.shape(query)[2].clone()) {
        (Some(_), width) => width,
        (None, width) => cx.b.divided(&width, 3usize, "query must divide into queries, keys and values")?,
    };
    let b = &mut *cx.b;
    let mut parts = match given {
        Some([key, value]) => vec![query, key, value],
        None => {
            let part = |at: usize| Dim::from(at) * width.clone();
            (0..3).map(|at| b.slice_axis(query, 2, part(at), width.clone())).collect::<Result<Vec<_>>>()?
        }
    };
    for (at, part) in parts.iter_mut().enumerate() {
        *part = b.cast(*part, F32)?;
        // Keys and values of an encoder have their biases.
        if let Some(bias) = bias.filter(|_| b.rank(*part) == 3) {
            let bias = b.cast(bias, F32)?;
            let own = b.slice_axis(bias, 0, Dim::from(at) * width.clone(), width.clone())?;
            *part = b.binary(BinaryFn::Add, *part, own)?;
        }
        *part = heads(b, *part, Some(number))?;
    }
    let (query, mut key, mut value) = (parts[0], parts[1], parts[2]);
    let mut presents = vec![];
    if let Some([past_key, past_value]) = past {
        if cx.optional_int("past_present_share_buffer")?.unwrap_or(0) == 0 {
            return malformed("past_key without past_present_share_buffer");
        }
        if given.is_some_and(|[key, _]| cx.b.rank(key) != 3) {
            return malformed("past_key with keys and values of an encoder");
        }
        let behind = size_scalar(cx, "past_sequence_length")?;
        let keys = behind.clone() + Dim::ONE;
        let room = cx.b.shape(past_key)[2].clone();
        let text =
            format!("past_sequence_length is {V}; it must be less than the length of past_key, which is {V}");
        cx.b.require(Requirement::at_most(keys.clone(), room.clone()).stated(text, &[&behind, &room]))?;
        let sources = beams(cx, &keys, &room)?;
        for (part, past) in [(&mut key, past_key), (&mut value, past_value)] {
            let b = &mut *cx.b;
            let past = b.cast(past, F32)?;
            let start = b.dim_scalar(&behind)?;
            let start = b.reshape(start, vec![Dim::ONE, Dim::ONE])?;
            let present = with_tokens(b, Some(past), *part, start, &room, true)?;
            presents.push(present);
            *part = match sources {
                Some(sources) => {
                    let rows = b.transpose(present, &[0, 2, 1, 3])?;
                    let taken = b.emit1(Op::GatherNd { batch: 0 }, &[rows, sources])?;
                    b.transpose(taken, &[0, 2, 1, 3])?
                }
                None => b.slice_axis(present, 2, Dim::ZERO, keys.clone())?,
            };
        }
    } else if given.is_none_or(|[key, _]| cx.b.rank(key) != 4) {
        return malformed("without past_key, keys and values must be those of an encoder, with 4 axes");
    }
    let keys = cx.b.shape(key)[2].clone();
    for (at, axis) in [(3, 1), (4, 3)] {
        let Some(own) = cx.optional(at) else { continue };
        let name = format!("dimension {axis} of {}", cx.operand_name(at));
        let columns = cx.b.shape(own)[axis].clone();
        cx.b.require(Requirement::equal(columns, keys.clone()).says(name, "the number of keys"))?;
    }
    let masks = Masks { mask: cx.optional("mask_index"), bias: cx.optional("attention_bias"), past: None };
    let b = &mut *cx.b;
    let batch = b.shape(query)[0].clone();
    let masked = Masked { masks: &masks, batch: &batch, behind: &Dim::ZERO, scale, filter, causal: false };
    let (y, found) = masked.attended(b, query, key, value)?;
    let mut outputs = vec![b.cast(y, to)?];
    if presents.is_empty() {
        presents = vec![key, value];
    }
    for present in presents {
        outputs.push(b.cast(present, to)?);
    }
    outputs.push(b.cast(found, to)?);
    Ok(outputs)
}

/// Which row and which place each key of each row is of, i64 `[B, keys, 2]`, where the beams of a sequence share caches: token
/// `t` of a beam is that of the beam which `cache_indirection` names, and the last one its own.
fn beams(cx: &mut NodeCx<'_, '_>, keys: &Dim, room: &Dim) -> Result<Option<ValueId>> {
    let Some(source) = cx.optional("cache_indirection") else { return Ok(None) };
    let Some(width) = cx.optional("beam_width") else {
        return malformed("cache_indirection without beam_width");
    };
    let width = to_scalar(cx, width)?;
    let b = &mut *cx.b;
    let shape = b.shape(source);
    let batch = shape[0].clone() * shape[1].clone();
    let width = b.cast(width, I64)?;
    let source = b.reshape(source, vec![batch.clone(), room.clone()])?;
    let source = b.slice_axis(source, 1, Dim::ZERO, keys.clone())?;
    let source = b.cast(source, I64)?;
    let row = b.iota(vec![batch.clone(), Dim::ONE], 0)?;
    let beam = b.binary(BinaryFn::Mod, row, width)?;
    let first = b.binary(BinaryFn::Sub, row, beam)?;
    let came = b.binary(BinaryFn::Add, first, source)?;
    let place = b.iota(vec![Dim::ONE, keys.clone()], 1)?;
    let last = b.dim_scalar(&(keys.clone() - Dim::ONE))?;
    let is_last = b.compare(CompareFn::Eq, place, last)?;
    let came = b.select(is_last, row, came)?;
    Ok(Some(pairs(b, came, place)?))
}

/// Two tensors that broadcast to `[rows, columns]`, the first one of that shape, side by side in a last axis.
fn pairs(b: &mut Builder<'_>, one: ValueId, other: ValueId) -> Result<ValueId> {
    let shape = b.shape(one);
    let other = b.expand(other, shape)?;
    let (one, other) = (b.unsqueeze(one, &[2])?, b.unsqueeze(other, &[2])?);
    b.concat(&[one, other], 2)
}
