//! MultiHeadAttention: attention of queries, keys and values that are projected already, in all layouts.

use super::attention::{Masked, Masks};
use super::group_query::{both, count};
use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, I32};
use onnxc_ops::AttrDefault::{Int, Optional, Required};
use onnxc_ops::attention::heads;
use onnxc_ops::row::{BinaryFn, Dim, NodeCx, OpDef, Result, ValueId, malformed, opt, req, unsupported};
use onnxc_ops::{AttrKind, attr};

pub const ROWS: &[OpDef] = &[own("MultiHeadAttention", multi_head_attention)
    .inputs(&[
        req("query", "T"),
        opt("key", "T"),
        opt("value", "T"),
        opt("bias", "T"),
        opt("key_padding_mask", "M"),
        opt("attention_bias", "T"),
        opt("past_key", "T"),
        opt("past_value", "T"),
        opt("past_sequence_length", "M"),
        opt("cache_indirection", "M"),
    ])
    .outputs(&[req("output", "T"), opt("present_key", "T"), opt("present_value", "T"), opt("qk", "QK")])
    .attributes(&[
        attr("mask_filter_value", Optional(AttrKind::Float)),
        attr("num_heads", Required(AttrKind::Int)),
        attr("scale", Optional(AttrKind::Float)),
        attr("unidirectional", Int(0)),
    ])
    .types(&[("T", FLOATS), ("QK", FLOATS), ("M", &[I32])])
    .shapes(&[
        "query[B, S, num_heads * E] | [B, S, num_heads, 3, E]",
        "key[B, L, num_heads * E] | [B, num_heads, L, E] | [B, L, num_heads, 2, E]",
        "value[B, L, num_heads * F] | [B, num_heads, L, F]",
        "past_key[B, num_heads, P, E]",
        "past_value[B, num_heads, P, F else E]",
        "bias[num_heads * (2 * E + (F else E))]",
        "key_padding_mask[B|3 * B + 2] | [B, (L else S) + (P else 0)] | [B, S, (L else S) + (P else 0)]",
        "attention_bias[B|1, num_heads|1, S, (L else S) + (P else 0)]",
    ])
    .doc("attention of projected queries, keys and values")];

fn multi_head_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if let Some(at) = [8, 9].into_iter().find(|&at| cx.optional(at).is_some()) {
        return unsupported(format!("the input {}", cx.def.inputs[at].name));
    }
    let past = both(cx, "past_key", "past_value")?;
    let to = cx.b.dtype(cx.input("query")?);
    let [query, mut key, mut value] = operands(cx)?;
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let filter = cx.optional_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = cx.int("unidirectional")? != 0;
    let masks =
        Masks { mask: cx.optional("key_padding_mask"), bias: cx.optional("attention_bias"), past: None };
    let b = &mut *cx.b;
    let mut behind = Dim::ZERO;
    if let Some([past_key, past_value]) = past {
        behind = b.shape(past_key)[2].clone();
        let (past_key, past_value) = (b.cast(past_key, F32)?, b.cast(past_value, F32)?);
        key = b.concat(&[past_key, key], 2)?;
        value = b.concat(&[past_value, value], 2)?;
    }
    let batch = b.shape(query)[0].clone();
    let masked = Masked { masks: &masks, batch: &batch, behind: &behind, scale, filter, causal };
    let (y, found) = masked.attended(b, query, key, value)?;
    Ok(vec![b.cast(y, to)?, b.cast(key, to)?, b.cast(value, to)?, b.cast(found, to)?])
}

/// Queries, keys and values with their biases, f32 `[B, heads, length, size]`. Keys and values that come in this form are
/// those of an encoder, which have their biases.
pub(super) fn operands(cx: &mut NodeCx<'_, '_>) -> Result<[ValueId; 3]> {
    let number = count(cx, "num_heads")?;
    let (query, key, value, bias) =
        (cx.input("query")?, cx.optional("key"), cx.optional("value"), cx.optional("bias"));
    let b = &mut *cx.b;
    let query = b.cast(query, F32)?;
    let rank = |b: &Builder<'_>, value: Option<ValueId>| value.map(|value| b.rank(value));
    let [mut query, mut key, mut value] = match (b.rank(query), rank(b, key), rank(b, value)) {
        (5, None, None) => [part(b, query, 0)?, part(b, query, 1)?, part(b, query, 2)?],
        (3, Some(5), None) => {
            let both = b.cast(key.unwrap_or(query), F32)?;
            [query, part(b, both, 0)?, part(b, both, 1)?]
        }
        (3, Some(3), Some(3)) | (3, Some(4), Some(4)) => {
            let (key, value) = (key.unwrap_or(query), value.unwrap_or(query));
            [query, b.cast(key, F32)?, b.cast(value, F32)?]
        }
        (own, of_keys, of_values) => {
            let text = |rank: Option<usize>| rank.map_or("none".to_string(), |rank| format!("{rank} axes"));
            return malformed(format!(
                "query has {own} axes, key {}, value {}; they may have 3 each, 3 and 4 and 4, 3 and 5 and none, or 5 and none",
                text(of_keys),
                text(of_values)
            ));
        }
    };
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        let size = |b: &Builder<'_>, x: ValueId| match b.shape(x).as_slice() {
            [_, _, width] => width.clone(),
            [_, of_heads, _, size] => of_heads.clone() * size.clone(),
            _ => Dim::ZERO,
        };
        let mut start = Dim::ZERO;
        for part in [&mut query, &mut key, &mut value] {
            let own = size(b, *part);
            if b.rank(*part) == 3 {
                let bias = b.slice_axis(bias, 0, start.clone(), own.clone())?;
                *part = b.binary(BinaryFn::Add, *part, bias)?;
            }
            start = start + own;
        }
    }
    for part in [&mut query, &mut key, &mut value] {
        *part = heads(b, *part, Some(number))?;
    }
    Ok([query, key, value])
}

/// One of the tensors packed in `[B, S, heads, parts, size]`, as `[B, S, heads * size]`.
fn part(b: &mut Builder<'_>, packed: ValueId, at: usize) -> Result<ValueId> {
    let part = b.slice_axis(packed, 3, Dim::from(at), Dim::ONE)?;
    let shape = b.shape(packed);
    b.reshape(part, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[4].clone()])
}
