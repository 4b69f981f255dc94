//! Attention and rotary position embedding.

use super::AttrDefault::{Float, Int, Optional};
use super::softmax::softmax_along;
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::rules::Rule;
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    ATTENTION,
    ATTENTION_24,
    ATTENTION_24.since(25).attributes(&[
        attr("is_causal", Int(0)),
        attr("kv_num_heads", Optional(AttrKind::Int)),
        attr("left_window_size", Int(-1)),
        attr("q_num_heads", Optional(AttrKind::Int)),
        attr("qk_matmul_output_mode", Int(0)),
        attr("right_window_size", Int(-1)),
        attr("scale", Optional(AttrKind::Float)),
        attr("softcap", Float(0.0)),
        attr("softmax_precision", Optional(AttrKind::Int)),
    ]),
    ROTARY_EMBEDDING,
];

const ATTENTION: OpDef = op("Attention", 23, attention)
    .inputs(&[
        req("Q", "T1"),
        req("K", "T1"),
        req("V", "T2"),
        opt("attn_mask", "U"),
        opt("past_key", "T1"),
        opt("past_value", "T2"),
    ])
    .outputs(&[
        req("Y", "T1"),
        opt("present_key", "T1"),
        opt("present_value", "T2"),
        opt("qk_matmul_output", "T1"),
    ])
    .attributes(&[
        attr("is_causal", Int(0)),
        attr("kv_num_heads", Optional(AttrKind::Int)),
        attr("q_num_heads", Optional(AttrKind::Int)),
        attr("qk_matmul_output_mode", Int(0)),
        attr("scale", Optional(AttrKind::Float)),
        attr("softcap", Float(0.0)),
        attr("softmax_precision", Optional(AttrKind::Int)),
    ])
    .types(&[
        ("T1", FLOATS),
        ("T2", FLOATS),
        ("U", &[F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, Bool]),
    ])
    .shapes(&[
        "Q[B, H, S, E] | [B, S, q_num_heads * E]",
        "K[B, G, T, E] | [B, T, kv_num_heads * E]",
        "V[B, G, T, F] | [B, T, kv_num_heads * F]",
        "(H else q_num_heads) % (G else kv_num_heads) = 0",
        "past_key[B, G else kv_num_heads, P, E]",
        "past_value[B, G else kv_num_heads, P, F]",
        "attn_mask[L..]",
        "broadcast(L -> [B, H else q_num_heads, S, T + (P else 0)])",
    ])
    .doc("softmax(Q * K^T * scale + mask) * V");

const ATTENTION_24: OpDef = ATTENTION
    .since(24)
    .inputs(&[
        req("Q", "T1"),
        req("K", "T1"),
        req("V", "T2"),
        opt("attn_mask", "U"),
        opt("past_key", "T1"),
        opt("past_value", "T2"),
        opt("nonpad_kv_seqlen", "tensor(int64)"),
    ])
    .types(&[
        ("T1", FLOATS),
        ("T2", FLOATS),
        ("U", &[F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, Bool]),
    ])
    .shapes(&[
        "Q[B, H, S, E] | [B, S, q_num_heads * E]",
        "K[B, G, T, E] | [B, T, kv_num_heads * E]",
        "V[B, G, T, F] | [B, T, kv_num_heads * F]",
        "(H else q_num_heads) % (G else kv_num_heads) = 0",
        "past_key[B, G else kv_num_heads, P, E]",
        "past_value[B, G else kv_num_heads, P, F]",
        "attn_mask[] | [L] | [S|1, L] | [H else q_num_heads|1, S|1, L] | [B|1, H else q_num_heads|1, S|1, L]",
        "L <= T + (P else 0)",
        "nonpad_kv_seqlen[B]",
    ]);

const ROTARY_EMBEDDING: OpDef = op("RotaryEmbedding", 23, rotary_embedding)
    .inputs(&[req("X", "T"), req("cos_cache", "T"), req("sin_cache", "T"), opt("position_ids", "M")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("interleaved", Int(0)),
        attr("num_heads", Optional(AttrKind::Int)),
        attr("rotary_embedding_dim", Int(0)),
    ])
    .types(&[("T", &[F32, F16, BF16]), ("M", I64S)])
    .shapes(&[
        "X[B, H, S, E] | [B, S, num_heads * E]",
        "position_ids[B, S]",
        "if position_ids: cos_cache[P, C]",
        "if position_ids: sin_cache[P, C]",
        "if !position_ids: cos_cache[B, S, C]",
        "if !position_ids: sin_cache[B, S, C]",
        "if rotary_embedding_dim = 0: 2 * C = E",
        "if rotary_embedding_dim != 0: 2 * C = rotary_embedding_dim",
        "if rotary_embedding_dim != 0: rotary_embedding_dim <= E",
    ])
    .doc("rotation of pairs of features by position");

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// Keys and values of earlier calls, `[B, heads, S, d]`.
fn past(cx: &NodeCx<'_, '_>) -> Result<Option<(ValueId, ValueId)>> {
    match (cx.optional(4), cx.optional(5)) {
        (Some(key), Some(value)) => Ok(Some((key, value))),
        (None, None) => Ok(None),
        _ => malformed("past_key and past_value come together".to_string()),
    }
}

/// `[B, S, heads * d] -> [B, heads, S, d]`; four axes are taken as they are.
pub fn heads(b: &mut Builder<'_>, x: ValueId, count: Option<i64>) -> Result<ValueId> {
    let shape = b.shape(x);
    match (shape.len(), count) {
        (4, _) => Ok(x),
        (3, Some(count)) if count > 0 => {
            let each = b.divided(&shape[2], count, "features must divide into heads")?;
            let split = vec![shape[0].clone(), shape[1].clone(), Dim::from(count), each];
            let x = b.reshape(x, split)?;
            b.transpose(x, &[0, 2, 1, 3])
        }
        (3, Some(count)) => malformed(format!("{count} heads of {}; there must be 1 or more", b.ty(x))),
        (3, None) => malformed(format!("{}: the attribute with the number of its heads is missing", b.ty(x))),
        _ => malformed(format!("{} has neither 3 axes nor 4", b.ty(x))),
    }
}

/// Checks which inputs, outputs and attributes come together. What version 25 forbids, those before it advise against.
fn check_together(cx: &mut NodeCx<'_, '_>) -> Result<()> {
    let past = past(cx)?.is_some();
    let (key, value) = (cx.wants(1), cx.wants(2));
    let forbids = cx.def.since >= 25;
    let heads: Vec<String> = ["q_num_heads", "kv_num_heads"]
        .into_iter()
        .filter_map(|name| Some(format!("{name} {}", cx.optional_int(name).ok()??)))
        .collect();
    let mut faults = Vec::new();
    if key != value {
        let (given, missing) =
            if key { ("present_key", "present_value") } else { ("present_value", "present_key") };
        faults.push(format!("output {given} is named and {missing} is not: they come together"));
    }
    if cx.optional(6).is_some() && (past || key || value) {
        let with = if past { "past_key and past_value" } else { "present_key and present_value" };
        faults
            .push(format!("nonpad_kv_seqlen is given with {with}: it is for caches outside of the operator"));
    }
    if forbids && cx.b.rank(cx.input("Q")?) == 4 && !heads.is_empty() {
        faults.push(format!("{} with Q of 4 axes, which have the numbers of heads", heads.join(" and ")));
    }
    match (faults.first(), forbids) {
        (Some(fault), true) => malformed(fault.clone()),
        _ => {
            cx.tolerated.extend(faults.into_iter().map(|fault| (Rule::AttributeMeaning, fault)));
            Ok(())
        }
    }
}

fn attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (q, k, v) = (cx.input("Q")?, cx.input("K")?, cx.input("V")?);
    check_together(cx)?;
    let past = past(cx)?;
    let (q_heads, kv_heads) = (cx.optional_int("q_num_heads")?, cx.optional_int("kv_num_heads")?);
    let scale = cx.optional_float("scale")?;
    let softcap = f64::from(cx.float("softcap")?);
    let mode = cx.int("qk_matmul_output_mode")?;
    let dtype = cx.b.dtype(q);
    let rank = cx.b.rank(q);
    let ranks = [q, k, v].map(|value| cx.b.rank(value));
    if ranks != [rank; 3] {
        let [q, k, v] = ranks;
        return malformed(format!("Q has {q} axes, K {k} and V {v}; all of them must have 3, or 4"));
    }
    let b = &mut *cx.b;
    let (q, k, v) = (heads(b, q, q_heads)?, heads(b, k, kv_heads)?, heads(b, v, kv_heads)?);
    let (mut key, mut value) = (k, v);
    if let Some((past_key, past_value)) = past {
        key = b.concat(&[past_key, k], 2)?;
        value = b.concat(&[past_value, v], 2)?;
    }
    let scores = scores(b, q, key, scale)?;
    let mut capped = scores;
    if softcap > 0.0 {
        capped = b.binary_scalar(BinaryFn::Div, capped, softcap)?;
        capped = b.unary(UnaryFn::Tanh, capped)?;
        capped = b.binary_scalar(BinaryFn::Mul, capped, softcap)?;
    }
    let bias = bias(cx, scores, dtype)?;
    let b = &mut *cx.b;
    let biased = match &bias {
        Some(bias) => b.binary(BinaryFn::Add, capped, bias.value)?,
        None => capped,
    };
    let mut weights = softmax_along(b, biased, 3)?;
    if let Some(bias) = bias.filter(|bias| bias.can_mask_rows) {
        // A query that may attend to nothing gets zeros, not NaN.
        let keys: Vec<usize> = b.rank(bias.value).checked_sub(1).into_iter().collect();
        let most = b.reduce(ReduceFn::Max, bias.value, &keys)?;
        let masked = b.unary(UnaryFn::IsNegInf, most)?;
        let zero = b.scalar(dtype, 0.0);
        weights = b.select(masked, zero, weights)?;
    }
    let y = weighted(b, weights, value, dtype)?;
    let y = if rank == 3 { merged_heads(b, y)? } else { y };
    let exposed = match mode {
        0 => scores,
        1 => capped,
        2 => biased,
        3 => weights,
        other => return super::not_one_of("qk_matmul_output_mode", other, "0, 1, 2, 3"),
    };
    Ok(vec![y, key, value, exposed])
}

/// `[B, heads, S, d] -> [B, S, heads * d]`
pub fn merged_heads(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let x = b.transpose(x, &[0, 2, 1, 3])?;
    let shape = b.shape(x);
    b.reshape(x, vec![shape[0].clone(), shape[1].clone(), shape[2].clone() * shape[3].clone()])
}

/// `x: [B, H, s, t]` as `[B, kv_heads, H / kv_heads * s, t]`: heads that share a key become rows of one
/// product, so that no key or value is repeated.
fn grouped_rows(b: &mut Builder<'_>, x: ValueId, kv_heads: &Dim) -> Result<ValueId> {
    let shape = b.shape(x);
    if shape[1] == *kv_heads {
        return Ok(x);
    }
    let group = b.divided(&shape[1], kv_heads.clone(), "heads of queries must divide into those of keys")?;
    b.reshape(x, vec![shape[0].clone(), kv_heads.clone(), group * shape[2].clone(), shape[3].clone()])
}

/// `Q * K^T * scale`, `[B, H, q, k]`.
pub fn scores(b: &mut Builder<'_>, q: ValueId, key: ValueId, scale: Option<f32>) -> Result<ValueId> {
    let (shape, key_shape, dtype) = (b.shape(q), b.shape(key), b.dtype(q));
    // The scale is f32: queries of half precision are rounded once they are scaled.
    let q = b.widened(q)?;
    let q = match (scale, shape[3].as_const()) {
        (Some(scale), _) => b.binary_scalar(BinaryFn::Mul, q, f64::from(scale))?,
        (None, Some(size)) => b.binary_scalar(BinaryFn::Mul, q, 1.0 / (size.max(1) as f64).sqrt())?,
        (None, None) => {
            let size = b.dim_scalar(&shape[3])?;
            let size = b.cast(size, b.dtype(q))?;
            let root = b.unary(UnaryFn::Sqrt, size)?;
            b.binary(BinaryFn::Div, q, root)?
        }
    };
    let q = b.cast(q, dtype)?;
    let rows = grouped_rows(b, q, &key_shape[1])?;
    let columns = b.transpose(key, &[0, 1, 3, 2])?;
    let product = b.matmul(rows, columns)?;
    b.reshape(product, vec![shape[0].clone(), shape[1].clone(), shape[2].clone(), key_shape[2].clone()])
}

/// `weights * V`, `[B, H, q, d]`.
pub fn weighted(b: &mut Builder<'_>, weights: ValueId, value: ValueId, dtype: DType) -> Result<ValueId> {
    let (shape, value_shape) = (b.shape(weights), b.shape(value));
    let value = b.cast(value, dtype)?;
    let rows = grouped_rows(b, weights, &value_shape[1])?;
    let product = b.matmul(rows, value)?;
    b.reshape(product, vec![shape[0].clone(), shape[1].clone(), shape[2].clone(), value_shape[3].clone()])
}

/// What is added to the scores.
struct Bias {
    /// Broadcasts against `[B, H, q, k]`; minus infinity where a query must not attend.
    value: ValueId,
    /// Whether all keys of a query can be masked.
    can_mask_rows: bool,
}

/// The sum of mask, causal mask, sliding window and padding of keys.
fn bias(cx: &mut NodeCx<'_, '_>, scores: ValueId, dtype: DType) -> Result<Option<Bias>> {
    let mask = cx.optional("attn_mask");
    let past = past(cx)?.map(|(key, _)| key);
    let lengths = cx.optional(6);
    let causal = cx.int("is_causal")? != 0;
    let mut window = [-1; 2];
    for (slot, name) in window.iter_mut().zip(["left_window_size", "right_window_size"]) {
        *slot = if cx.has(name) { cx.int(name)? } else { -1 };
        if *slot < -1 {
            return malformed(format!("{name} {slot}"));
        }
    }
    let b = &mut *cx.b;
    let shape = b.shape(scores);
    let (mut allowed, mut additive) = (None, None);
    if let Some(mask) = mask {
        let mask = if b.dtype(mask) == Bool { mask } else { b.cast(mask, dtype)? };
        let mask = widened_mask(b, mask, &shape[3])?;
        if b.dtype(mask) == Bool {
            allowed = Some(mask);
        } else {
            additive = Some(mask);
        }
    }
    if causal || window != [-1; 2] {
        let behind = distance(b, &shape, past, lengths)?;
        let limits = [
            (causal, CompareFn::Ge, 0),
            (window[0] >= 0, CompareFn::Le, window[0]),
            (window[1] >= 0, CompareFn::Ge, -window[1]),
        ];
        for (_, compare, limit) in limits.into_iter().filter(|limit| limit.0) {
            let limit = b.scalar(I64, limit as f64);
            let inside = b.compare(compare, behind, limit)?;
            allowed = Some(both(b, allowed, inside)?);
        }
    }
    if let Some(lengths) = lengths {
        let key = b.iota(vec![shape[3].clone()], 0)?;
        let lengths = b.reshape(lengths, vec![shape[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE])?;
        let real = b.compare(CompareFn::Lt, key, lengths)?;
        allowed = Some(both(b, allowed, real)?);
    }
    let can_mask_rows = mask.is_some() || lengths.is_some() || window != [-1; 2];
    let value = match (allowed, additive) {
        (None, None) => return Ok(None),
        (None, Some(additive)) => additive,
        (Some(allowed), additive) => {
            let (zero, never) = (b.scalar(dtype, 0.0), b.scalar(dtype, f64::NEG_INFINITY));
            b.select(allowed, additive.unwrap_or(zero), never)?
        }
    };
    Ok(Some(Bias { value, can_mask_rows }))
}

fn both(b: &mut Builder<'_>, allowed: Option<ValueId>, also: ValueId) -> Result<ValueId> {
    match allowed {
        Some(allowed) => b.binary(BinaryFn::And, allowed, also),
        None => Ok(also),
    }
}

/// A mask over fewer keys than there are masks the rest.
fn widened_mask(b: &mut Builder<'_>, mask: ValueId, keys: &Dim) -> Result<ValueId> {
    let shape = b.shape(mask);
    let Some(last) = shape.last() else { return Ok(mask) };
    if last == keys || *last == Dim::ONE {
        return Ok(mask);
    }
    let missing = keys.clone() - last.clone();
    if missing.as_const().is_some_and(|missing| missing < 0) {
        return malformed(format!("mask {} over {keys} keys", b.ty(mask)));
    }
    let fill = b.scalar(b.dtype(mask), if b.dtype(mask) == Bool { 0.0 } else { f64::NEG_INFINITY });
    let mut hi = vec![Dim::ZERO; shape.len()];
    hi[shape.len() - 1] = missing.max_dim(&Dim::ZERO);
    b.pad(mask, fill, vec![Dim::ZERO; shape.len()], hi)
}

/// How far each key lies behind its query: `[q, k]`, or `[B, 1, q, k]` where `lengths` has each row's count of keys. Keys of the past come
/// before all queries.
fn distance(
    b: &mut Builder<'_>,
    shape: &[Dim],
    past: Option<ValueId>,
    lengths: Option<ValueId>,
) -> Result<ValueId> {
    let query = b.iota(vec![shape[2].clone(), Dim::ONE], 0)?;
    let key = b.iota(vec![Dim::ONE, shape[3].clone()], 1)?;
    let position = match (past, lengths) {
        (Some(past), _) => {
            let offset = b.shape(past)[2].clone();
            let offset = b.dim_scalar(&offset)?;
            b.binary(BinaryFn::Add, query, offset)?
        }
        (None, Some(lengths)) => {
            let lengths = b.reshape(lengths, vec![shape[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE])?;
            let queries = b.dim_scalar(&shape[2])?;
            let offset = b.binary(BinaryFn::Sub, lengths, queries)?;
            b.binary(BinaryFn::Add, query, offset)?
        }
        (None, None) => query,
    };
    b.binary(BinaryFn::Sub, position, key)
}

fn rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, cos, sin, positions) =
        (cx.input("X")?, cx.input("cos_cache")?, cx.input("sin_cache")?, cx.optional("position_ids"));
    let count = cx.optional_int("num_heads")?.filter(|&count| count > 0);
    let turning = cx.int("rotary_embedding_dim")?;
    let interleaved = cx.int("interleaved")? != 0;
    let b = &mut *cx.b;
    let rank = b.rank(x);
    let x = heads(b, x, count)?;
    let size = b.shape(x)[3].clone();
    let extent = if turning > 0 { Dim::from(turning) } else { size.clone() };
    let half = b.divided(&extent, 2usize, "features that turn must divide into pairs")?;
    let (cos, sin) = (cache(b, cos, positions)?, cache(b, sin, positions)?);
    let y = rotated(b, x, [cos, sin], &half, interleaved)?;
    Ok(vec![if rank == 3 { merged_heads(b, y)? } else { y }])
}

/// `x: [B, H, S, d]` whose first `2 * half` features turn by the angles with these cosines and sines,
/// `[B or 1, 1, S, half]`.
pub fn rotated(
    b: &mut Builder<'_>,
    x: ValueId,
    [cos, sin]: [ValueId; 2],
    half: &Dim,
    interleaved: bool,
) -> Result<ValueId> {
    let size = b.shape(x)[3].clone();
    let extent = half.clone() * Dim::from(2usize);
    // Whether a symbolic size is even shows when the model runs: the reshape or slice has it checked.
    let halved = size.floor_div(&Dim::from(2usize)).as_ref() == Some(half);
    let whole = extent == size || halved && !size.is_const();
    let turning = if whole { x } else { b.slice_axis(x, 3, Dim::ZERO, extent.clone())? };
    let (first, second) = pairs(b, turning, half, interleaved)?;
    let product = |b: &mut Builder<'_>, x, y| b.binary(BinaryFn::Mul, x, y);
    let (a, c) = (product(b, cos, first)?, product(b, sin, second)?);
    let real = b.binary(BinaryFn::Sub, a, c)?;
    let (a, c) = (product(b, sin, first)?, product(b, cos, second)?);
    let imaginary = b.binary(BinaryFn::Add, a, c)?;
    let turned = if interleaved {
        let shape = b.shape(turning);
        let (real, imaginary) = (b.unsqueeze(real, &[4])?, b.unsqueeze(imaginary, &[4])?);
        let joined = b.concat(&[real, imaginary], 4)?;
        b.reshape(joined, shape)?
    } else {
        b.concat(&[real, imaginary], 3)?
    };
    if whole {
        return Ok(turned);
    }
    let rest = b.slice_axis(x, 3, extent.clone(), size - extent)?;
    b.concat(&[turned, rest], 3)
}

/// A cache `[P, d]` at the positions `[B, S]`, or given per position, as `[B, 1, S, d]`.
pub fn cache(b: &mut Builder<'_>, cache: ValueId, positions: Option<ValueId>) -> Result<ValueId> {
    let taken = match positions {
        Some(positions) => b.emit1(onnxc_ir::graph::Op::Gather { axis: 0 }, &[cache, positions])?,
        None => cache,
    };
    match b.rank(taken) {
        3 => b.unsqueeze(taken, &[1]),
        _ => malformed(format!("cosines or sines {}", b.ty(taken))),
    }
}

/// The pairs that rotate together: neighbours, or halves.
fn pairs(b: &mut Builder<'_>, x: ValueId, half: &Dim, interleaved: bool) -> Result<(ValueId, ValueId)> {
    if !interleaved {
        let first = b.slice_axis(x, 3, Dim::ZERO, half.clone())?;
        return Ok((first, b.slice_axis(x, 3, half.clone(), half.clone())?));
    }
    let mut shape = b.shape(x);
    shape[3] = half.clone();
    shape.push(Dim::from(2usize));
    let split = b.reshape(x, shape)?;
    let (first, second) =
        (b.slice_axis(split, 4, Dim::ZERO, Dim::ONE)?, b.slice_axis(split, 4, Dim::ONE, Dim::ONE)?);
    Ok((b.squeeze(first, &[4])?, b.squeeze(second, &[4])?))
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, elements};

    #[test]
    fn grouped_heads_causal_and_masked() {
        let case = Case::new("Attention", 23)
            .ramp(&[1, 4, 2, 2], 1)
            .ramp(&[1, 2, 3, 2], 2)
            .ramp(&[1, 2, 3, 2], 3)
            .int("is_causal", 1);
        case.gives(
            0,
            &[1, 4, 2, 2],
            &[
                1.0, 0.0, 0.131811, 0.325571, 1.0, 0.0, 0.066194, 0.350177, 0.5, -0.5, 0.875, -0.125, 0.5,
                -0.5, 0.899823, -0.100177,
            ],
        );
        let case = Case::new("Attention", 23)
            .ramp(&[1, 2, 4], 1)
            .ramp(&[1, 3, 4], 2)
            .ramp(&[1, 3, 4], 3)
            .ramp(&[2, 3], 4)
            .int("kv_num_heads", 2)
            .int("q_num_heads", 2)
            .float("scale", 0.5)
            .float("softcap", 1.5);
        case.gives(
            0,
            &[1, 2, 4],
            &[-0.036125, -1.036125, 0.129616, -0.106639, 0.491332, -0.508669, 0.080365, -0.053095],
        );
    }

    /// Nothing but the key beside a query, and what lies before or behind it.
    #[test]
    fn windows_of_no_keys() {
        let case = || {
            let case = Case::new("Attention", 25).ramp(&[1, 1, 3, 2], 1).ramp(&[1, 1, 3, 2], 2);
            case.ramp(&[1, 1, 3, 2], 3)
        };
        let masked = |mask: [bool; 9]| elements(&case().input(&[3, 3], &mask).run().unwrap()[0]);
        let (y, n) = (true, false);
        let (behind, before) = (masked([y, y, y, n, y, y, n, n, y]), masked([y, n, n, y, y, n, y, y, y]));
        case().int("left_window_size", 0).gives(0, &[1, 1, 3, 2], &behind);
        case().int("right_window_size", 0).gives(0, &[1, 1, 3, 2], &before);
        let alone = masked([y, n, n, n, y, n, n, n, y]);
        let both = case().int("left_window_size", 0).int("right_window_size", 0);
        both.gives(0, &[1, 1, 3, 2], &alone);
    }

    #[test]
    fn a_mask_may_be_a_scalar() {
        let case = || {
            Case::new("Attention", 23).ramp(&[1, 1, 1, 2], 1).ramp(&[1, 1, 3, 2], 2).ramp(&[1, 1, 3, 2], 3)
        };
        let plain = elements(&case().run().unwrap()[0]);
        case().input::<f32>(&[], &[2.5]).gives(0, &[1, 1, 1, 2], &plain);
        case().input::<bool>(&[], &[false]).gives(0, &[1, 1, 1, 2], &[0.0, 0.0]);
    }

    #[test]
    fn operands_have_as_many_axes() {
        let case = Case::new("Attention", 23).ramp(&[1, 1, 3], 1).ramp(&[1, 5, 3], 2).ramp(&[1, 1, 5, 1], 3);
        let error = case.int("q_num_heads", 1).int("kv_num_heads", 1).run().unwrap_err();
        assert_eq!(error.message, "Q has 3 axes, K 3 and V 4; all of them must have 3, or 4");
    }

    #[test]
    fn caches_come_in_pairs() {
        let case = || {
            Case::new("Attention", 23).ramp(&[1, 1, 2, 2], 1).ramp(&[1, 1, 3, 2], 2).ramp(&[1, 1, 3, 2], 3)
        };
        let refusal = |case: Case| case.int("is_causal", 1).lower().unwrap_err().message;
        let alone = case().missing().ramp(&[1, 1, 2, 2], 4);
        assert_eq!(refusal(alone), "past_key and past_value come together");
        let flat = case().missing().ramp(&[1, 2], 4).ramp(&[1, 2], 5);
        assert!(refusal(flat).starts_with("past_key is f32[1, 2], must be past_key[B, "));
    }

    #[test]
    fn rotation_of_halves_and_neighbours() {
        let case = Case::new("RotaryEmbedding", 23)
            .ramp(&[1, 1, 2, 4], 1)
            .ramp(&[3, 2], 2)
            .ramp(&[3, 2], 3)
            .input::<i64>(&[1, 2], &[2, 0])
            .int("interleaved", 0)
            .int("rotary_embedding_dim", 0);
        case.gives(0, &[1, 1, 2, 4], &[0.5625, 0.0, -0.125, -2.125, 1.25, -0.0, 0.75, -0.5625]);
        let case = Case::new("RotaryEmbedding", 23)
            .ramp(&[1, 1, 2, 4], 1)
            .ramp(&[3, 2], 2)
            .ramp(&[3, 2], 3)
            .input::<i64>(&[1, 2], &[2, 0])
            .int("interleaved", 1)
            .int("rotary_embedding_dim", 0);
        case.gives(0, &[1, 1, 2, 4], &[0.8125, -1.125, -0.75, -0.875, 0.25, 1.0, 0.75, -0.5625]);
        let case = Case::new("RotaryEmbedding", 23)
            .ramp(&[1, 1, 2, 4], 1)
            .ramp(&[3, 1], 2)
            .ramp(&[3, 1], 3)
            .input::<i64>(&[1, 2], &[2, 0])
            .int("interleaved", 0)
            .int("rotary_embedding_dim", 2);
        case.gives(0, &[1, 1, 2, 4], &[0.75, 1.75, 0.25, -0.75, 0.25, 1.0, -1.0, 0.75]);
    }
}
