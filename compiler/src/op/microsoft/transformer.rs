//! Attention and embeddings of quantised transformers.

use super::matmul::scaled_product;
use super::{BYTES, DOMAIN, real};
use crate::error::{Error, Result, Stage};
use crate::graph::DType::{F16, F32, I32, I64};
use crate::graph::{Builder, Dim, Op, ValueId};
use crate::op::AttrDefault::{Float, Int, Optional, Required};
use crate::op::attention::{heads, merged_heads, scores, weighted};
use crate::op::norm::normalized;
use crate::op::softmax::softmax_along;
use crate::op::{AttrKind, NodeCx, OpDef, attr, opt, req};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn};

pub const ROWS: &[OpDef] = &[
    OpDef {
        domain: DOMAIN,
        name: "QAttention",
        since: 1,
        inputs: &[
            req("input", "T1"),
            req("weight", "T2"),
            req("bias", "T3"),
            req("input_scale", "T3"),
            req("weight_scale", "T3"),
            opt("mask_index", "T4"),
            opt("input_zero_point", "T1"),
            opt("weight_zero_point", "T2"),
            opt("past", "T3"),
        ],
        outputs: &[req("output", "T3"), opt("present", "T3")],
        attributes: &[
            attr("do_rotary", Optional(AttrKind::Int)),
            attr("mask_filter_value", Optional(AttrKind::Float)),
            attr("num_heads", Required(AttrKind::Int)),
            attr("past_present_share_buffer", Optional(AttrKind::Int)),
            attr("scale", Optional(AttrKind::Float)),
            attr("unidirectional", Int(0)),
        ],
        types: &[("T1", BYTES), ("T2", BYTES), ("T3", &[F32, F16]), ("T4", &[I32])],
        shapes: &[
            "input[B, S, E]",
            "weight[E, 3 * H]",
            "bias[3 * H]",
            "H % num_heads = 0",
            "count(input_scale) = 1",
            "count(input_zero_point) = 1",
            "weight_scale[] | [3 * H|1]",
            "weight_zero_point[] | [3 * H|1]",
            "past[2, B, num_heads, P, H / num_heads]",
            "mask_index[B|2 * B] | [B|1, S + (P else 0)|1] | [B, S, S + (P else 0)]",
        ],
        lower: qattention,
        doc: "self-attention with quantized input and weights",
    },
    OpDef {
        domain: DOMAIN,
        name: "QEmbedLayerNormalization",
        since: 1,
        inputs: &[
            req("input_ids", "T1"),
            opt("segment_ids", "T1"),
            req("word_embedding_quant", "T2"),
            req("position_embedding_quant", "T2"),
            opt("segment_embedding", "T2"),
            req("gamma_quant", "T2"),
            req("beta_quant", "T2"),
            opt("mask", "T1"),
            req("word_embedding_scale", "T"),
            req("position_embedding_scale", "T"),
            opt("segment_embedding_scale", "T"),
            req("gamma_scale", "T"),
            req("beta_scale", "T"),
            req("word_embedding_zero_point", "T2"),
            req("position_embedding_zero_point", "T2"),
            opt("segment_embedding_zero_point", "T2"),
            req("gamma_zero_point", "T2"),
            req("beta_zero_point", "T2"),
        ],
        outputs: &[req("layernorm_out", "T"), req("mask_index_out", "T1")],
        attributes: &[attr("epsilon", Float(1e-12))],
        types: &[("T1", &[I32]), ("T2", BYTES), ("T", &[F32])],
        shapes: &[
            "input_ids[B, S]",
            "segment_ids[B, S]",
            "word_embedding_quant[V, H]",
            "position_embedding_quant[P, H]",
            "S <= P",
            "segment_embedding[G, H]",
            "gamma_quant[H]",
            "beta_quant[H]",
            "mask[B, S]",
            "count(word_embedding_scale) = 1",
            "count(position_embedding_scale) = 1",
            "count(segment_embedding_scale) = 1",
            "count(gamma_scale) = 1",
            "count(beta_scale) = 1",
            "count(word_embedding_zero_point) = 1",
            "count(position_embedding_zero_point) = 1",
            "count(segment_embedding_zero_point) = 1",
            "count(gamma_zero_point) = 1",
            "count(beta_zero_point) = 1",
        ],
        lower: qembed_layer_normalization,
        doc: "layer normalization of a sum of quantized embeddings",
    },
];

fn unsupported<T>(message: String) -> Result<T> {
    Err(Error::unsupported(Stage::Infer, message))
}

fn qattention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let lhs = (cx.input(0)?, cx.input(3)?, cx.optional(6));
    let rhs = (cx.input(1)?, cx.input(4)?, cx.optional(7));
    let (bias, mask, past) = (cx.input(2)?, cx.optional(5), cx.optional(8));
    let count = cx.int("num_heads")?;
    for name in ["do_rotary", "past_present_share_buffer"] {
        if let Some(value) = cx.optional_int(name)?.filter(|&value| value != 0) {
            return unsupported(format!("{name} {value}"));
        }
    }
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let filter = cx.optional_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = cx.int("unidirectional")? != 0;
    let b = &mut *cx.b;
    let to = b.dtype(bias);
    let all = scaled_product(b, lhs, rhs, Some(bias))?;
    let shape = b.shape(all);
    let Some(hidden) = shape[2].floor_div(&Dim::from(3usize)) else {
        return unsupported(format!("{} as queries, keys and values", b.ty(all)));
    };
    let mut parts = Vec::with_capacity(3);
    for part in 0..3usize {
        let start = hidden.clone() * Dim::from(part);
        let part = b.slice_axis(all, 2, start, hidden.clone())?;
        parts.push(heads(b, part, Some(count))?);
    }
    let (q, mut key, mut value) = (parts[0], parts[1], parts[2]);
    let mut behind = Dim::ZERO;
    if let Some(past) = past {
        behind = b.shape(past)[3].clone();
        let past = b.cast(past, F32)?;
        for (at, present) in [&mut key, &mut value].into_iter().enumerate() {
            let old = b.slice_axis(past, 0, Dim::from(at), Dim::ONE)?;
            let old = b.squeeze(old, &[0])?;
            *present = b.concat(&[old, *present], 2)?;
        }
    }
    let mut weights = scores(b, q, key, scale)?;
    // A mask of one column masks nothing.
    let masks = |b: &Builder<'_>, mask: ValueId| b.rank(mask) != 2 || b.shape(mask)[1] != Dim::ONE;
    if let Some(mask) = mask.filter(|&mask| masks(b, mask)) {
        let keys = b.shape(key)[2].clone();
        let allowed = allowed(b, mask, &shape[0], &keys)?;
        let (zero, filter) = (b.scalar(F32, 0.0), b.scalar(F32, f64::from(filter)));
        let mask = b.select(allowed, zero, filter)?;
        weights = b.binary(BinaryFn::Add, weights, mask)?;
    }
    if causal {
        let never = b.scalar(F32, f64::from(f32::MIN));
        let query = b.iota(vec![shape[1].clone(), Dim::ONE], 0)?;
        let offset = b.dim_scalar(&behind)?;
        let query = b.binary(BinaryFn::Add, query, offset)?;
        let keys = b.shape(key)[2].clone();
        let position = b.iota(vec![keys], 0)?;
        let seen = b.compare(CompareFn::Le, position, query)?;
        weights = b.select(seen, weights, never)?;
    }
    let weights = softmax_along(b, weights, 3)?;
    let y = weighted(b, weights, value, F32)?;
    let y = merged_heads(b, y)?;
    let (key, value) = (b.unsqueeze(key, &[0])?, b.unsqueeze(value, &[0])?);
    let present = b.concat(&[key, value], 0)?;
    Ok(vec![b.cast(y, to)?, b.cast(present, to)?])
}

/// Which keys queries may attend to, in a shape that broadcasts to `[B, heads, S, T]`: by the length of each row, by its
/// end and its start, or by a mask over keys, or over queries and keys.
fn allowed(b: &mut Builder<'_>, mask: ValueId, batch: &Dim, keys: &Dim) -> Result<ValueId> {
    let shape = b.shape(mask);
    if shape.len() > 1 {
        let mut wide = shape.clone();
        wide.insert(1, Dim::ONE);
        if shape.len() == 2 {
            wide.insert(1, Dim::ONE);
        }
        let mask = b.reshape(mask, wide)?;
        let zero = b.scalar(I32, 0.0);
        return b.compare(CompareFn::Gt, mask, zero);
    }
    let mask = b.cast(mask, I64)?;
    let position = b.iota(vec![keys.clone()], 0)?;
    let column = vec![batch.clone(), Dim::ONE, Dim::ONE, Dim::ONE];
    let end = b.slice_axis(mask, 0, Dim::ZERO, batch.clone())?;
    let end = b.reshape(end, column.clone())?;
    let before = b.compare(CompareFn::Lt, position, end)?;
    if shape[0] == *batch {
        return Ok(before);
    }
    // Where there are no starts, zeros are in their place.
    let zero = b.scalar(I64, 0.0);
    let mask = b.pad(mask, zero, vec![Dim::ZERO], vec![batch.clone()])?;
    let start = b.slice_axis(mask, 0, batch.clone(), batch.clone())?;
    let start = b.reshape(start, column)?;
    let after = b.compare(CompareFn::Ge, position, start)?;
    b.binary(BinaryFn::And, before, after)
}

fn qembed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, segments, mask) = (cx.input(0)?, cx.optional(1), cx.optional(7));
    let epsilon = cx.float("epsilon")?;
    let rows = cx.b.shape(ids);
    let positions = cx.input(3)?;
    let words = cx.b.emit1(Op::Gather { axis: 0 }, &[cx.input(2)?, ids])?;
    let words = real(cx.b, words, cx.input(8)?, Some(cx.input(13)?))?;
    let positions = cx.b.slice_axis(positions, 0, Dim::ZERO, rows[1].clone())?;
    let positions = real(cx.b, positions, cx.input(9)?, Some(cx.input(14)?))?;
    let mut sum = cx.b.binary(BinaryFn::Add, words, positions)?;
    if let Some(segments) = segments {
        let taken = cx.b.emit1(Op::Gather { axis: 0 }, &[cx.input(4)?, segments])?;
        let taken = real(cx.b, taken, cx.input(10)?, Some(cx.input(15)?))?;
        sum = cx.b.binary(BinaryFn::Add, sum, taken)?;
    }
    let (gamma, beta) = (cx.input(5)?, cx.input(6)?);
    let gamma = real(cx.b, gamma, cx.input(11)?, Some(cx.input(16)?))?;
    let beta = real(cx.b, beta, cx.input(12)?, Some(cx.input(17)?))?;
    let b = &mut *cx.b;
    let (y, _, _) = normalized(b, sum, &[2], epsilon)?;
    let y = b.binary(BinaryFn::Mul, y, gamma)?;
    let y = b.binary(BinaryFn::Add, y, beta)?;
    let counts = match mask {
        Some(mask) => {
            let one = b.scalar(I32, 1.0);
            let ones = b.compare(CompareFn::Eq, mask, one)?;
            let ones = b.cast(ones, I32)?;
            let counts = b.reduce(ReduceFn::Sum, ones, &[1])?;
            b.reshape(counts, vec![rows[0].clone()])?
        }
        None => {
            let zero = b.scalar(I32, 0.0);
            b.expand(zero, vec![rows[0].clone()])?
        }
    };
    Ok(vec![y, counts])
}
