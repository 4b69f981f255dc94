//! Rotary position embedding as ONNX Runtime's exporters write it.

use super::{DOMAIN, FLOATS};
use crate::graph::Builder;
use crate::graph::DType::I64;
use crate::op::AttrDefault::Optional;
use crate::op::attention::{cache, heads, merged_heads, rotated};
use crate::op::row::{BinaryFn, Dim, NodeCx, OpDef, Result, ValueId, malformed, req, share, unsupported};
use crate::op::{AttrKind, attr};

pub const ROWS: &[OpDef] = &[OpDef {
    domain: DOMAIN,
    name: "RotaryEmbedding",
    since: 1,
    inputs: &[req("input", "T"), req("position_ids", "M"), req("cos_cache", "T"), req("sin_cache", "T")],
    outputs: &[req("output", "T")],
    attributes: &[
        attr("interleaved", Optional(AttrKind::Int)),
        attr("is_packed_batching", Optional(AttrKind::Int)),
        attr("num_heads", Optional(AttrKind::Int)),
        attr("rotary_embedding_dim", Optional(AttrKind::Int)),
        attr("scale", Optional(AttrKind::Float)),
    ],
    types: &[("T", FLOATS), ("M", &[I64])],
    shapes: &[
        "input[B, S, _] | [B, _, S, _]",
        "position_ids[1] | [B, S]",
        "cos_cache[M, C]",
        "sin_cache[M, C]",
        "if rotary_embedding_dim: rotary_embedding_dim <= 2 * C",
    ],
    lower: rotary_embedding,
    doc: "rotation of pairs of features by position",
}];

fn rotary_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, places, cos, sin) = (cx.input(0)?, cx.input(1)?, cx.input(2)?, cx.input(3)?);
    let (split, half) = operand(cx, x, cos)?;
    let interleaved = cx.optional_int("interleaved")?.unwrap_or(0) != 0;
    let b = &mut *cx.b;
    let steps = b.shape(split)[2].clone();
    let places = positions(b, places, &steps)?;
    let angles = [cache(b, cos, Some(places))?, cache(b, sin, Some(places))?];
    let y = rotated(b, split, angles, &half, interleaved)?;
    Ok(vec![if b.rank(x) == 3 { merged_heads(b, y)? } else { y }])
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
        return Ok((x, half_of(b, x, &size, turning, &own)?));
    }
    let width = b.shape(x)[2].clone();
    let count = match (count, turning) {
        (0, 0) => {
            // All features turn, so that the cache tells how many a head has.
            let each = own.clone() * Dim::from(2usize);
            let known = width.is_const() && each.is_const();
            let found = if known { width.exact_div(&each) } else { width.floor_div(&each) };
            match found.and_then(|count| count.as_const()).filter(|&count| count > 0) {
                Some(count) => count,
                None => {
                    return malformed(format!(
                        "num_heads is missing, and {} with a cache of {own} tells none",
                        b.ty(x)
                    ));
                }
            }
        }
        (0, _) => return malformed(format!("rotary_embedding_dim {turning} without num_heads")),
        (count, _) => count,
    };
    let split = heads(b, x, Some(count))?;
    let size = b.shape(split)[3].clone();
    let half = half_of(b, x, &size, turning, &own)?;
    Ok((split, half))
}

fn half_of(b: &mut Builder<'_>, x: ValueId, size: &Dim, turning: i64, own: &Dim) -> Result<Dim> {
    let whole = if turning > 0 { Dim::from(turning) } else { size.clone() };
    let Some(half) = share(&whole, 2) else {
        return malformed(format!("rotation of {whole} features of {}", b.ty(x)));
    };
    if size.as_const().is_some_and(|size| turning > size) {
        return malformed(format!("rotary_embedding_dim {turning} of heads of {size} features"));
    }
    let claim = "cos_cache and sin_cache must have half as many columns as there are features to turn";
    b.require(crate::graph::Requirement::equal(own.clone(), half.clone()), claim)?;
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
