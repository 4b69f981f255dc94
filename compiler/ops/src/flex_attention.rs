//! FlexAttention: attention whose scores and weights pass through graphs of the model's own.

use super::attention::{scores, weighted};
use super::row::*;
use super::softmax::softmax_along;

pub const ROWS: &[OpDef] = &[op("FlexAttention", 1, flex_attention)
    .domain("ai.onnx.preview")
    .inputs(&[req("Q", "T1"), req("K", "T1"), req("V", "T1")])
    .outputs(&[req("Y", "T1")])
    .attributes(&[
        optional("prob_mod", Graph),
        optional("scale", Float),
        optional("score_mod", Graph),
        optional("softmax_precision", Int),
    ])
    .types(&[("T1", FLOATS)])
    .shapes(FLEX_ATTENTION_SHAPES)
    .doc("Scaled dot-product attention with graphs that modify scores and weights")];

const FLEX_ATTENTION_SHAPES: &[&str] = &["Q[B, H, _, E]", "K[B, G, S, E]", "V[B, G, S, _]", "H % G = 0"];

/// `Q: [B, H, L, d]`, `K: [B, H_kv, S, d]`, `V: [B, H_kv, S, d_v]` gives `[B, H, L, d_v]`.
fn flex_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (q, k, v) = (cx.input("Q")?, cx.input("K")?, cx.input("V")?);
    if [q, k, v].iter().any(|&value| cx.b.rank(value) != 4) {
        return malformed(format!("queries {}, keys {}, values {}", cx.b.ty(q), cx.b.ty(k), cx.b.ty(v)));
    }
    let dtype = cx.b.dtype(q);
    let precision = match cx.optional_int("softmax_precision")? {
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
        Some(number) => match i32::try_from(number).ok().and_then(DType::from_onnx) {
            Some(precision) if FLOATS.contains(&precision) => precision,
            _ => return malformed(format!("softmax_precision {number}")),
        },
    };
    let scale = cx.optional_float("scale")?;
    let product = scores(cx.b, q, k, scale)?;
    let product = cx.b.cast(product, precision)?;
    let product = modified(cx, "score_mod", product)?;
    let weights = softmax_along(cx.b, product, 3)?;
    let weights = modified(cx, "prob_mod", weights)?;
    let y = weighted(cx.b, weights, v, precision)?;
    Ok(vec![cx.b.cast(y, dtype)?])
}

/// `x` passed through the graph of an attribute, if it is given.
fn modified(cx: &mut NodeCx<'_, '_>, name: &str, x: ValueId) -> Result<ValueId> {
    if !cx.attributes.contains_key(name) {
        return Ok(x);
    }
    let body = cx.graph(name)?;
    let results = cx.inline(&body, &[Item::Tensor(x)])?;
    match results.as_slice() {
        &[Item::Tensor(y)] if cx.b.ty(y).dtype == cx.b.dtype(x) && cx.b.rank(y) == cx.b.rank(x) => Ok(y),
        results => {
            let types: Vec<String> = results.iter().map(|result| result.text(cx.b)).collect();
            malformed(format!("{name} turns {} into {}", cx.b.ty(x), types.join(", ")))
        }
    }
}
