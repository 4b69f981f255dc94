//! Attention among tokens that are packed without those that pad their sequences.

use super::attention::{Masked, Masks, hidden_sizes};
use super::group_query::count;
use super::own;
use super::relative::restored;
use onnxc_ir::graph::DType::{F16, F32, I32, I64};
use onnxc_ir::graph::Op;
use onnxc_ops::attention::heads;
use onnxc_ops::matmul::product;
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    own("PackedAttention", packed_attention)
        .inputs(&[
            req("input", "T"),
            req("weights", "T"),
            req("bias", "T"),
            req("token_offset", "M"),
            req("cumulative_sequence_length", "M"),
            opt("attention_bias", "T"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[
            required("num_heads", Int),
            optional("qkv_hidden_sizes", Ints),
            optional("scale", Float),
        ])
        .types(&[("T", &[F32, F16]), ("M", &[I32])])
        .shapes(&[
            "input[N, E]",
            "weights[E, W]",
            "bias[W]",
            "token_offset[B, S]",
            "N <= B * S",
            "cumulative_sequence_length[B + 1]",
            "attention_bias[B|1, num_heads|1, S, S]",
        ])
        .doc("self-attention of packed tokens"),
    own("PackedMultiHeadAttention", packed_multi_head)
        .inputs(&[
            req("query", "T"),
            opt("key", "T"),
            opt("value", "T"),
            opt("bias", "T"),
            req("token_offset", "M"),
            req("cumulative_sequence_length", "M"),
            opt("attention_bias", "T"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[
            optional("mask_filter_value", Float),
            required("num_heads", Int),
            optional("scale", Float),
        ])
        .types(&[("T", &[F32, F16]), ("M", &[I32])])
        .shapes(&[
            "query[N, num_heads * E] | [N, num_heads, 3, E]",
            "key[N, num_heads * E]",
            "value[N, num_heads * F]",
            "bias[num_heads * (2 * E + (F else E))]",
            "token_offset[B, S]",
            "N <= B * S",
            "cumulative_sequence_length[B + 1]",
            "attention_bias[B|1, num_heads|1, S, S]",
        ])
        .doc("attention of projected queries, keys and values of packed tokens"),
];

fn packed_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, weights, bias) = (cx.input("input")?, cx.input("weights")?, cx.input("bias")?);
    let to = cx.b.dtype(x);
    let (x, weights) = (cx.b.cast(x, F32)?, cx.b.cast(weights, F32)?);
    let all = product(cx.b, x, weights)?;
    let bias = cx.b.cast(bias, F32)?;
    let all = cx.b.binary(BinaryFn::Add, all, bias)?;
    let sizes = hidden_sizes(cx, all)?;
    let mut start = Dim::ZERO;
    let mut parts = [all; 3];
    for (part, size) in parts.iter_mut().zip(sizes) {
        *part = cx.b.slice_axis(all, 1, start.clone(), size.clone())?;
        start = start + size;
    }
    attended(cx, parts, [3, 4, 5], to)
}

fn packed_multi_head(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (query, bias) = (cx.input("query")?, cx.optional("bias"));
    let to = cx.b.dtype(query);
    let mut parts = match (cx.optional("key"), cx.optional("value")) {
        (Some(key), Some(value)) if cx.b.rank(query) == 2 => [query, key, value],
        (None, None) if cx.b.rank(query) == 4 => {
            let b = &mut *cx.b;
            let shape = b.shape(query);
            let mut parts = [query; 3];
            for (at, part) in parts.iter_mut().enumerate() {
                let own = b.slice_axis(query, 2, Dim::from(at), Dim::ONE)?;
                *part = b.reshape(own, vec![shape[0].clone(), shape[1].clone() * shape[3].clone()])?;
            }
            parts
        }
        _ => {
            return malformed(format!(
                "query {} with{} key and value; it has 2 axes with them, and 4 without",
                cx.b.ty(query),
                if cx.optional("key").is_some() { "" } else { "out" }
            ));
        }
    };
    let b = &mut *cx.b;
    let mut start = Dim::ZERO;
    for part in &mut parts {
        *part = b.cast(*part, F32)?;
        let Some(bias) = bias else { continue };
        let bias = b.cast(bias, F32)?;
        let width = b.shape(*part)[1].clone();
        let own = b.slice_axis(bias, 0, start.clone(), width.clone())?;
        *part = b.binary(BinaryFn::Add, *part, own)?;
        start = start + width;
    }
    attended(cx, parts, [4, 5, 6], to)
}

/// Attention of `[tokens, heads * size]`, f32; the inputs with offsets, ends of sequences and biases are numbered.
fn attended(
    cx: &mut NodeCx<'_, '_>,
    parts: [ValueId; 3],
    [offsets, ends, bias]: [usize; 3],
    to: DType,
) -> Result<Vec<ValueId>> {
    let number = count(cx, "num_heads")?;
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let (places, ends, bias) = (cx.input(offsets)?, cx.input(ends)?, cx.optional(bias));
    let b = &mut *cx.b;
    let outer = b.shape(places);
    let (batch, tokens) = (outer[0].clone(), b.shape(parts[0])[0].clone());
    let mut rows = parts;
    for part in &mut rows {
        let padded = restored(b, *part, places)?;
        *part = heads(b, padded, Some(number))?;
    }
    let before = b.slice_axis(ends, 0, Dim::ZERO, batch.clone())?;
    let after = b.slice_axis(ends, 0, Dim::ONE, batch.clone())?;
    let lengths = b.binary(BinaryFn::Sub, after, before)?;
    let masks = Masks { mask: Some(lengths), bias, past: None };
    let filter = f32::NEG_INFINITY;
    let masked = Masked { masks: &masks, batch: &batch, behind: &Dim::ZERO, scale, filter, causal: false };
    let [query, key, value] = rows;
    let (y, _) = masked.attended(b, query, key, value)?;
    let all = outer[0].clone() * outer[1].clone();
    let width = b.shape(y)[2].clone();
    let y = b.reshape(y, vec![all.clone(), width])?;
    let places = b.reshape(places, vec![all])?;
    let places = b.cast(places, I64)?;
    let places = b.slice_axis(places, 0, Dim::ZERO, tokens)?;
    let y = b.emit1(Op::Gather { axis: 0 }, &[y, places])?;
    Ok(vec![b.cast(y, to)?])
}
