//! Attention as ONNX Runtime's optimizer writes it, in floats and quantized.

use super::{BYTES, FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{F16, F32, I32, I64};
use onnxc_ir::graph::{DType, Dim, Requirement, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_ops::AttrDefault::{Int, Optional, Required};
use onnxc_ops::attention::{heads, merged_heads, scores, weighted};
use onnxc_ops::matmul::product;
use onnxc_ops::quantize::scaled_product;
use onnxc_ops::row::unsupported;
use onnxc_ops::softmax::softmax_along;
use onnxc_ops::{AttrKind, NodeCx, OpDef, attr, opt, req};

pub const ROWS: &[OpDef] = &[
    own("Attention", attention)
        .inputs(&[
            req("input", "T"),
            req("weights", "T"),
            opt("bias", "T"),
            opt("mask_index", "M"),
            opt("past", "T"),
            opt("attention_bias", "T"),
            opt("past_sequence_length", "M"),
        ])
        .outputs(&[req("output", "T"), opt("present", "T")])
        .attributes(&[
            attr("do_rotary", Optional(AttrKind::Int)),
            attr("mask_filter_value", Optional(AttrKind::Float)),
            attr("num_heads", Required(AttrKind::Int)),
            attr("past_present_share_buffer", Optional(AttrKind::Int)),
            attr("qkv_hidden_sizes", Optional(AttrKind::Ints)),
            attr("rotary_embedding_dim", Optional(AttrKind::Int)),
            attr("scale", Optional(AttrKind::Float)),
            attr("unidirectional", Int(0)),
        ])
        .types(&[("T", FLOATS), ("M", &[I32])])
        .shapes(&[
            "input[B, S, E]",
            "weights[E, W]",
            "bias[W]",
            "past[2, B, num_heads, P, D]",
            "mask_index[B|2 * B] | [B|1, S + (P else 0)|1] | [B, S, S + (P else 0)]",
            "attention_bias[B|1, num_heads|1, S, S + (P else 0)]",
        ])
        .doc("self-attention of projected inputs"),
    own("QAttention", qattention)
        .inputs(&[
            req("input", "T1"),
            req("weight", "T2"),
            req("bias", "T3"),
            req("input_scale", "T3"),
            req("weight_scale", "T3"),
            opt("mask_index", "T4"),
            opt("input_zero_point", "T1"),
            opt("weight_zero_point", "T2"),
            opt("past", "T3"),
        ])
        .outputs(&[req("output", "T3"), opt("present", "T3")])
        .attributes(&[
            attr("do_rotary", Optional(AttrKind::Int)),
            attr("mask_filter_value", Optional(AttrKind::Float)),
            attr("num_heads", Required(AttrKind::Int)),
            attr("past_present_share_buffer", Optional(AttrKind::Int)),
            attr("scale", Optional(AttrKind::Float)),
            attr("unidirectional", Int(0)),
        ])
        .types(&[("T1", BYTES), ("T2", BYTES), ("T3", &[F32, F16]), ("T4", &[I32])])
        .shapes(&[
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
        ])
        .doc("self-attention with quantized input and weights"),
];

/// Attributes that ask for what only other engines than that of CPUs do.
fn refuse_services(cx: &NodeCx<'_, '_>) -> Result<()> {
    for name in ["do_rotary", "past_present_share_buffer"] {
        if let Some(value) = cx.optional_int(name)?.filter(|&value| value != 0) {
            return unsupported(format!("{name} {value}"));
        }
    }
    Ok(())
}

/// What queries may see, and what is added to scores.
pub(super) struct Masks {
    pub mask: Option<ValueId>,
    pub bias: Option<ValueId>,
    pub past: Option<ValueId>,
}

fn attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    refuse_services(cx)?;
    if cx.optional("past_sequence_length").is_some() {
        return unsupported("past_sequence_length".to_string());
    }
    let (x, weights, bias) = (cx.input("input")?, cx.input("weights")?, cx.optional("bias"));
    let to = cx.b.dtype(x);
    let (x, weights) = (cx.b.cast(x, F32)?, cx.b.cast(weights, F32)?);
    let mut all = product(cx.b, x, weights)?;
    if let Some(bias) = bias {
        let bias = cx.b.cast(bias, F32)?;
        all = cx.b.binary(BinaryFn::Add, all, bias)?;
    }
    let sizes = hidden_sizes(cx, all)?;
    if sizes[0] != sizes[1] {
        let message = format!("qkv_hidden_sizes {sizes:?}: queries and keys must be of one size");
        return Err(Error::malformed(Stage::Infer, message));
    }
    if sizes[0] != sizes[2] && (cx.wants(1) || cx.optional("past").is_some()) {
        return unsupported(format!("keys and values of unlike sizes {sizes:?} in one tensor"));
    }
    let masks = Masks {
        mask: cx.optional("mask_index"),
        bias: cx.optional("attention_bias"),
        past: cx.optional("past"),
    };
    attend(cx, all, [&sizes[0], &sizes[1], &sizes[2]], &masks, to)
}

fn qattention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    refuse_services(cx)?;
    let lhs = (cx.input("input")?, cx.input("input_scale")?, cx.optional("input_zero_point"));
    let rhs = (cx.input("weight")?, cx.input("weight_scale")?, cx.optional("weight_zero_point"));
    let bias = cx.input("bias")?;
    let to = cx.b.dtype(bias);
    let all = scaled_product(cx.b, lhs, rhs, Some(bias))?;
    let hidden = third(cx.b, all)?;
    let masks = Masks { mask: cx.optional("mask_index"), bias: None, past: cx.optional("past") };
    attend(cx, all, [&hidden; 3], &masks, to)
}

/// Sizes of the queries, keys and values that lie side by side in the last axis of `all`.
pub(super) fn hidden_sizes(cx: &mut NodeCx<'_, '_>, all: ValueId) -> Result<[Dim; 3]> {
    let Some(sizes) = cx.ints("qkv_hidden_sizes")?.filter(|sizes| !sizes.is_empty()) else {
        let third = third(cx.b, all)?;
        return Ok([third.clone(), third.clone(), third]);
    };
    let Ok(sizes) = <[i64; 3]>::try_from(sizes.as_slice()) else {
        let message = format!("qkv_hidden_sizes {sizes:?}: there must be three sizes");
        return Err(Error::malformed(Stage::Infer, message));
    };
    let sizes = sizes.map(Dim::from);
    for size in &sizes {
        let requirement = Requirement::at_most(Dim::ZERO, size.clone());
        cx.b.require(requirement.says_at_least("a size of qkv_hidden_sizes", 0))?;
    }
    let total = sizes.iter().fold(Dim::ZERO, |sum, size| sum + size.clone());
    let width = last_dim(cx.b, all);
    let name = "the number of columns of weights";
    cx.b.require(Requirement::equal(width, total).says(name, "the sum of qkv_hidden_sizes"))?;
    Ok(sizes)
}

fn last_dim(b: &Builder<'_>, x: ValueId) -> Dim {
    b.shape(x).last().cloned().unwrap_or(Dim::ONE)
}

fn third(b: &mut Builder<'_>, all: ValueId) -> Result<Dim> {
    let width = last_dim(b, all);
    b.divided(&width, 3usize, "features must divide into queries, keys and values")
}

/// Attention of `all: [B, S, q + k + v]`, f32: queries, keys and values of these sizes side by side. Gives the result, and keys
/// and values so far where these are of one size.
fn attend(
    cx: &mut NodeCx<'_, '_>,
    all: ValueId,
    sizes: [&Dim; 3],
    masks: &Masks,
    to: DType,
) -> Result<Vec<ValueId>> {
    let count = cx.int("num_heads")?;
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let filter = cx.optional_float("mask_filter_value")?.unwrap_or(-10000.0);
    let causal = cx.int("unidirectional")? != 0;
    let b = &mut *cx.b;
    let shape = b.shape(all);
    let (mut parts, mut start) = (Vec::with_capacity(3), Dim::ZERO);
    for size in sizes {
        let part = b.slice_axis(all, 2, start.clone(), size.clone())?;
        parts.push(heads(b, part, Some(count))?);
        start = start + size.clone();
    }
    let (q, mut key, mut value) = (parts[0], parts[1], parts[2]);
    let mut behind = Dim::ZERO;
    if let Some(past) = masks.past {
        behind = b.shape(past)[3].clone();
        let past = b.cast(past, F32)?;
        for (at, present) in [&mut key, &mut value].into_iter().enumerate() {
            let old = b.slice_axis(past, 0, Dim::from(at), Dim::ONE)?;
            let old = b.squeeze(old, &[0])?;
            *present = b.concat(&[old, *present], 2)?;
        }
    }
    let masked = Masked { masks, batch: &shape[0], behind: &behind, scale, filter, causal };
    let (y, _) = masked.attended(b, q, key, value)?;
    let y = b.cast(y, to)?;
    if sizes[1] != sizes[2] {
        return Ok(vec![y]);
    }
    let (key, value) = (b.unsqueeze(key, &[0])?, b.unsqueeze(value, &[0])?);
    let present = b.concat(&[key, value], 0)?;
    Ok(vec![y, b.cast(present, to)?])
}

/// Attention of queries to keys that masks may hide.
pub(super) struct Masked<'m> {
    pub masks: &'m Masks,
    pub batch: &'m Dim,
    /// Keys of the past, which lie before those of the first query.
    pub behind: &'m Dim,
    pub scale: Option<f32>,
    /// Added to the scores of keys that are masked.
    pub filter: f32,
    pub causal: bool,
}

impl Masked<'_> {
    /// Of `[B, heads, length, size]`, f32: the result `[B, S, heads * size]`, and the scores.
    pub(super) fn attended(
        &self,
        b: &mut Builder<'_>,
        query: ValueId,
        key: ValueId,
        value: ValueId,
    ) -> Result<(ValueId, ValueId)> {
        let mut found = scores(b, query, key, self.scale)?;
        let (steps, keys) = (b.shape(query)[2].clone(), b.shape(key)[2].clone());
        // A mask of one column masks nothing.
        let hides = |b: &Builder<'_>, mask: ValueId| b.rank(mask) != 2 || b.shape(mask)[1] != Dim::ONE;
        if let Some(mask) = self.masks.mask.filter(|&mask| hides(b, mask)) {
            let allowed = allowed(b, mask, self.batch, &keys)?;
            let (zero, filter) = (b.scalar(F32, 0.0), b.scalar(F32, f64::from(self.filter)));
            let mask = b.select(allowed, zero, filter)?;
            found = b.binary(BinaryFn::Add, found, mask)?;
        }
        if self.causal {
            let never = b.scalar(F32, f64::from(f32::MIN));
            let query = b.iota(vec![steps, Dim::ONE], 0)?;
            let offset = b.dim_scalar(self.behind)?;
            let query = b.binary(BinaryFn::Add, query, offset)?;
            let position = b.iota(vec![keys], 0)?;
            let seen = b.compare(CompareFn::Le, position, query)?;
            found = b.select(seen, found, never)?;
        }
        if let Some(bias) = self.masks.bias {
            let bias = b.cast(bias, F32)?;
            found = b.binary(BinaryFn::Add, found, bias)?;
        }
        let weights = softmax_along(b, found, 3)?;
        let y = weighted(b, weights, value, F32)?;
        Ok((merged_heads(b, y)?, found))
    }
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
