//! Rotary position embedding as ONNX Runtime's exporters write it.

use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F16, F32, I64};
use onnxc_ir::graph::{Requirement, Tensor};
use onnxc_ops::AttrDefault::{Optional, Required};
use onnxc_ops::attention::{cache, heads, merged_heads, rotated};
use onnxc_ops::row::{
    BinaryFn, Dim, NodeCx, OpDef, Result, UnaryFn, ValueId, malformed, not_one_of, req, unsupported,
};
use onnxc_ops::{AttrKind, attr};

pub const ROWS: &[OpDef] = &[
    ROTARY_EMBEDDING,
    ROTARY_EMBEDDING
        .name("MRotaryEmbedding")
        .attributes(&[
            attr("interleaved", Optional(AttrKind::Int)),
            attr("is_packed_batching", Optional(AttrKind::Int)),
            attr("mrope_layout", Optional(AttrKind::Int)),
            attr("mrope_section", Required(AttrKind::Ints)),
            attr("num_heads", Optional(AttrKind::Int)),
            attr("rotary_embedding_dim", Optional(AttrKind::Int)),
            attr("scale", Optional(AttrKind::Float)),
        ])
        .shapes(&[
            "input[B, S, _] | [B, _, S, _]",
            "position_ids[3, B, S]",
            "cos_cache[M, C]",
            "sin_cache[M, C]",
            "if rotary_embedding_dim: rotary_embedding_dim <= 2 * C",
        ])
        .lower(multimodal_rotary_embedding)
        .doc("rotation of pairs of features by one of three positions"),
    ROTARY_EMBEDDING
        .name("GemmaRotaryEmbedding")
        .inputs(&[req("emb", "U"), req("q", "T"), req("q_rot", "T"), req("k", "T"), req("k_rot", "T")])
        .outputs(&[req("output1", "T"), req("output2", "T")])
        .attributes(&[])
        .types(&[("T", &[F16]), ("U", &[F32])])
        .shapes(&["emb[B, S, E]", "q[B, H, S, E]", "q_rot[B, H, S, E]", "k[B, G, S, E]", "k_rot[B, G, S, E]"])
        .lower(gemma_rotary_embedding)
        .doc("x * cos(emb) + x_rot * sin(emb), of queries and keys"),
];

const ROTARY_EMBEDDING: OpDef = own("RotaryEmbedding", rotary_embedding)
    .inputs(&[req("input", "T"), req("position_ids", "M"), req("cos_cache", "T"), req("sin_cache", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[
        attr("interleaved", Optional(AttrKind::Int)),
        attr("is_packed_batching", Optional(AttrKind::Int)),
        attr("num_heads", Optional(AttrKind::Int)),
        attr("rotary_embedding_dim", Optional(AttrKind::Int)),
        attr("scale", Optional(AttrKind::Float)),
    ])
    .types(&[("T", FLOATS), ("M", &[I64])])
    .shapes(&[
        "input[B, S, _] | [B, _, S, _]",
        "position_ids[1] | [B, S]",
        "cos_cache[M, C]",
        "sin_cache[M, C]",
        "if rotary_embedding_dim: rotary_embedding_dim <= 2 * C",
    ])
    .doc("rotation of pairs of features by position");

fn rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, places, cos, sin) =
        (cx.input("input")?, cx.input("position_ids")?, cx.input("cos_cache")?, cx.input("sin_cache")?);
    let (split, half) = operand(cx, x, cos)?;
    let interleaved = cx.optional_int("interleaved")?.unwrap_or(0) != 0;
    let b = &mut *cx.b;
    let steps = b.shape(split)[2].clone();
    let places = positions(b, places, &steps)?;
    let angles = [cache(b, cos, Some(places))?, cache(b, sin, Some(places))?];
    let y = rotated(b, split, angles, &half, interleaved)?;
    given_form(b, x, y)
}

/// The operand as `[B, heads, S, size]`, and half of the features of a head that turn.
pub(super) fn operand(cx: &mut NodeCx<'_, '_>, x: ValueId, cos: ValueId) -> Result<(ValueId, Dim)> {
    let turning = cx.optional_int("rotary_embedding_dim")?.unwrap_or(0);
    let count = cx.optional_int("num_heads")?.unwrap_or(0);
    if turning < 0 || count < 0 || turning % 2 != 0 {
        return malformed(format!("rotary_embedding_dim {turning} of {count} heads"));
    }
    if cx.optional_float("scale")?.is_some_and(|scale| scale != 1.0) {
        return unsupported(format!("scale {}", cx.optional_float("scale")?.unwrap_or(1.0)));
    }
    let b = &mut *cx.b;
    let own = b.shape(cos)[1].clone();
    if b.rank(x) == 4 {
        let size = b.shape(x)[3].clone();
        return Ok((x, half_of(b, &size, turning, &own)?));
    }
    if count == 0 {
        if turning > 0 {
            return malformed(format!("rotary_embedding_dim {turning} without num_heads"));
        }
        // All features are rotated, so the cache determines how many a head has.
        let (width, each) = (b.shape(x)[2].clone(), own.clone() * Dim::from(2usize));
        let count =
            b.divided(&width, each.clone(), "features must divide into heads of the width of cos_cache")?;
        let mut split = b.shape(x);
        split.truncate(2);
        split.extend([count, each]);
        let split = b.reshape(x, split)?;
        return Ok((b.transpose(split, &[0, 2, 1, 3])?, own));
    }
    let split = heads(b, x, Some(count))?;
    let size = b.shape(split)[3].clone();
    let half = half_of(b, &size, turning, &own)?;
    Ok((split, half))
}

fn half_of(b: &mut Builder<'_>, size: &Dim, turning: i64, own: &Dim) -> Result<Dim> {
    let whole = if turning > 0 { Dim::from(turning) } else { size.clone() };
    let half = b.divided(&whole, 2usize, "features that turn must divide into pairs")?;
    if size.as_const().is_some_and(|size| turning > size) {
        return malformed(format!("rotary_embedding_dim {turning} of heads of {size} features"));
    }
    let (name, rule) = ("the number of columns of cos_cache and sin_cache", "half of the features to turn");
    b.require(Requirement::equal(own.clone(), half.clone()).says(name, rule))?;
    Ok(half)
}

/// Positions `[B or 1, S]`: as they are given, or counted from one.
pub(super) fn positions(b: &mut Builder<'_>, given: ValueId, steps: &Dim) -> Result<ValueId> {
    if b.rank(given) == 2 {
        return Ok(given);
    }
    let origin = b.reshape(given, vec![Dim::ONE, Dim::ONE])?;
    let step = b.iota(vec![Dim::ONE, steps.clone()], 1)?;
    b.binary(BinaryFn::Add, origin, step)
}

/// Each pair of features turns by the time, the height or the width of its token.
fn multimodal_rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, places, cos, sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.input(3)?);
    let (split, half) = operand(cx, x, cos)?;
    let interleaved = cx.optional_int("interleaved")?.unwrap_or(0) != 0;
    let sections = cx.ints("mrope_section")?.unwrap_or_default();
    let total = sections.iter().try_fold(0i64, |sum, &size| sum.checked_add(size));
    let ([_, high, wide], Some(total @ 0..=0xffff)) = (sections.as_slice(), total) else {
        return malformed(format!("mrope_section {sections:?}: three sizes"));
    };
    if sections.iter().any(|&size| size < 0) {
        return malformed(format!("mrope_section {sections:?}: no size is negative"));
    }
    let (high, wide) = (*high, *wide);
    let source: Vec<i64> = match cx.optional_int("mrope_layout")?.unwrap_or(0) {
        0 => {
            (0..total).map(|at| i64::from(at >= sections[0]) + i64::from(at >= sections[0] + high)).collect()
        }
        1 => (0..total)
            .map(|at| match at % 3 {
                1 if at / 3 < high => 1,
                2 if at / 3 < wide => 2,
                _ => 0,
            })
            .collect(),
        other => return not_one_of("mrope_layout", other, "0, 1"),
    };
    let b = &mut *cx.b;
    let rule = "the number of pairs of features that turn";
    b.require(Requirement::equal(Dim::from(total), half.clone()).says("the sum of mrope_section", rule))?;
    let mut angles = [cos, sin];
    for table in &mut angles {
        let own = *table;
        let mut found = None;
        for stream in 0..3usize {
            let positions = b.slice_axis(places, 0, Dim::from(stream), Dim::ONE)?;
            let positions = b.squeeze(positions, &[0])?;
            let taken = cache(b, own, Some(positions))?;
            let uses: Vec<bool> = source.iter().map(|&from| from == stream as i64).collect();
            found = Some(match found {
                None => taken,
                Some(others) => {
                    let uses = b.constant(Tensor::from_slice(&[source.len()], &uses));
                    b.select(uses, taken, others)?
                }
            });
        }
        *table = found.unwrap_or(own);
    }
    let y = rotated(b, split, angles, &half, interleaved)?;
    given_form(b, x, y)
}

/// Cosines and sines are rounded to the type of the operands, as where the operator was taken from.
fn gemma_rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let emb = cx.input("emb")?;
    let given = [[cx.input("q")?, cx.input("q_rot")?], [cx.input("k")?, cx.input("k_rot")?]];
    let b = &mut *cx.b;
    let mut angles = [emb; 2];
    for (angle, function) in angles.iter_mut().zip([UnaryFn::Cos, UnaryFn::Sin]) {
        let found = b.unary(function, emb)?;
        let found = b.cast(found, F16)?;
        *angle = b.unsqueeze(found, &[1])?;
    }
    let mut outputs = Vec::with_capacity(2);
    for [x, turned] in given {
        let x = b.binary(BinaryFn::Mul, x, angles[0])?;
        let turned = b.binary(BinaryFn::Mul, turned, angles[1])?;
        outputs.push(b.binary(BinaryFn::Add, x, turned)?);
    }
    Ok(outputs)
}

/// A result in the axes of the operand.
fn given_form(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<Vec<ValueId>> {
    if b.rank(x) == 4 {
        return Ok(vec![y]);
    }
    let merged = merged_heads(b, y)?;
    Ok(vec![b.reshape(merged, b.shape(x))?])
}
