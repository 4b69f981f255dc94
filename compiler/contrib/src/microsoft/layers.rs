//! Embeddings, layer normalization and Gelu as ONNX Runtime's optimizer writes them, in floats and quantized.

use super::{BYTES, FLOATS, own, real};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType::{BF16, F16, F32, F64, I32};
use onnxc_ir::graph::{Dim, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use onnxc_ops::AttrDefault::{Float, Optional, Str};
use onnxc_ops::activation::fast_gelu;
use onnxc_ops::norm::{by_root_mean_square, normalized};
use onnxc_ops::row::malformed;
use onnxc_ops::{AttrKind, NodeCx, OpDef, attr, not_one_of, opt, req};

pub const ROWS: &[OpDef] = &[
    own("EmbedLayerNormalization", embed_layer_normalization)
        .inputs(&[
            req("input_ids", "T1"),
            opt("segment_ids", "T1"),
            req("word_embedding", "T"),
            req("position_embedding", "T"),
            opt("segment_embedding", "T"),
            req("gamma", "T"),
            req("beta", "T"),
            opt("mask", "T1"),
            opt("position_ids", "T1"),
        ])
        .outputs(&[req("output", "T"), opt("mask_index", "T1"), opt("embedding_sum", "T")])
        .attributes(&[attr("epsilon", Float(1e-12)), attr("mask_index_type", Optional(AttrKind::Int))])
        .types(&[("T1", &[I32]), ("T", &[F32, F16])])
        .shapes(&[
            "input_ids[B, S]",
            "segment_ids[B, S]",
            "word_embedding[V, H]",
            "position_embedding[P, H]",
            "if !position_ids: S <= P",
            "segment_embedding[G, H]",
            "gamma[H]",
            "beta[H]",
            "mask[B, S]",
            "position_ids[B|1, S]",
        ])
        .doc("layer normalization of a sum of embeddings"),
    own("SkipLayerNormalization", skip_layer_normalization)
        .inputs(&[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("beta", "T"), opt("bias", "T")])
        .outputs(&[
            req("output", "T"),
            opt("mean", "U"),
            opt("inv_std_var", "U"),
            opt("input_skip_bias_sum", "T"),
        ])
        .attributes(&[attr("epsilon", Float(1e-12))])
        .types(&[("T", FLOATS), ("U", &[F32])])
        .shapes(&["input[B, S, H] | [S, H]", "broadcast(skip -> input)", "gamma[H]", "beta[H]", "bias[H]"])
        .doc("layer normalization of a sum of two tensors and a bias"),
    own("SkipSimplifiedLayerNormalization", skip_simplified_layer_normalization)
        .inputs(&[req("input", "T"), req("skip", "T"), req("gamma", "T"), opt("bias", "T")])
        .outputs(&[
            req("output", "T"),
            opt("mean", "U"),
            opt("inv_std_var", "U"),
            opt("input_skip_bias_sum", "T"),
        ])
        .attributes(&[attr("epsilon", Float(1e-12))])
        .types(&[("T", FLOATS), ("U", &[F32])])
        .shapes(&["input[B, S, H] | [S, H]", "broadcast(skip -> input)", "gamma[H]", "bias[H]"])
        .doc("division by the root mean square of a sum of two tensors and a bias"),
    own("GatedRMSNorm", gated_rms_norm)
        .inputs(&[req("X", "T"), req("scale", "T"), req("gate", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[attr("activation", Str("silu")), attr("epsilon", Float(1e-5))])
        .types(&[("T", FLOATS)])
        .shapes(&["X[D.., N * C]", "scale[C]", "gate[D.., N * C]"])
        .doc("division by the root mean square of groups of features, times an activated gate"),
    own("FastGelu", biased_gelu)
        .inputs(&[req("X", "T"), opt("bias", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", &[F32, F64, F16, BF16])])
        .shapes(&["X[.., N]", "bias[N]"])
        .doc("Gelu by tanh, of a sum with a bias"),
    own("QEmbedLayerNormalization", qembed_layer_normalization)
        .inputs(&[
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
        ])
        .outputs(&[req("layernorm_out", "T"), req("mask_index_out", "T1")])
        .attributes(&[attr("epsilon", Float(1e-12))])
        .types(&[("T1", &[I32]), ("T2", BYTES), ("T", &[F32])])
        .shapes(&[
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
        ])
        .doc("layer normalization of a sum of quantized embeddings"),
];

/// `normalized(x) * gamma + beta` along the last axis, the mean and the inverse deviation; all are f32.
fn layer(
    b: &mut Builder<'_>,
    x: ValueId,
    gamma: ValueId,
    beta: Option<ValueId>,
    epsilon: f32,
) -> Result<(ValueId, ValueId, ValueId)> {
    let axis = b.rank(x) - 1;
    let (y, mean, inverse) = normalized(b, x, &[axis], epsilon)?;
    let gamma = b.cast(gamma, F32)?;
    let mut y = b.binary(BinaryFn::Mul, y, gamma)?;
    if let Some(beta) = beta {
        let beta = b.cast(beta, F32)?;
        y = b.binary(BinaryFn::Add, y, beta)?;
    }
    Ok((y, mean, inverse))
}

fn embed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, segments, mask) = (cx.input("input_ids")?, cx.optional("segment_ids"), cx.optional("mask"));
    let (words, positions, kinds) =
        (cx.input("word_embedding")?, cx.input("position_embedding")?, cx.optional("segment_embedding"));
    let (gamma, beta, places) = (cx.input("gamma")?, cx.input("beta")?, cx.optional("position_ids"));
    let (epsilon, b) = (cx.float("epsilon")?, &mut *cx.b);
    let (rows, to) = (b.shape(ids), b.dtype(words));
    let words = b.emit1(Op::Gather { axis: 0 }, &[words, ids])?;
    let positions = match places {
        Some(places) => b.emit1(Op::Gather { axis: 0 }, &[positions, places])?,
        None => b.slice_axis(positions, 0, Dim::ZERO, rows[1].clone())?,
    };
    let (words, positions) = (b.cast(words, F32)?, b.cast(positions, F32)?);
    let mut sum = b.binary(BinaryFn::Add, words, positions)?;
    if let (Some(segments), Some(kinds)) = (segments, kinds) {
        let taken = b.emit1(Op::Gather { axis: 0 }, &[kinds, segments])?;
        let taken = b.cast(taken, F32)?;
        sum = b.binary(BinaryFn::Add, sum, taken)?;
    }
    let (y, ..) = layer(b, sum, gamma, Some(beta), epsilon)?;
    let counts = ones_in_rows(b, mask, &rows[0])?;
    Ok(vec![b.cast(y, to)?, counts, b.cast(sum, to)?])
}

fn skip_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, skip, gamma) = (cx.input("input")?, cx.input("skip")?, cx.input("gamma")?);
    let (beta, bias, epsilon) = (cx.optional("beta"), cx.optional("bias"), cx.float("epsilon")?);
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let (x, skip) = (b.cast(x, F32)?, b.cast(skip, F32)?);
    let mut sum = b.binary(BinaryFn::Add, x, skip)?;
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        sum = b.binary(BinaryFn::Add, sum, bias)?;
    }
    let (y, mean, inverse) = layer(b, sum, gamma, beta, epsilon)?;
    Ok(vec![b.cast(y, to)?, mean, inverse, b.cast(sum, to)?])
}

/// The mean is not part of the norm, and 0.
fn skip_simplified_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, skip, gamma) = (cx.input("input")?, cx.input("skip")?, cx.input("gamma")?);
    let (bias, epsilon) = (cx.optional("bias"), cx.float("epsilon")?);
    let b = &mut *cx.b;
    let (to, axis) = (b.dtype(x), b.rank(x) - 1);
    let (x, skip) = (b.cast(x, F32)?, b.cast(skip, F32)?);
    let mut sum = b.binary(BinaryFn::Add, x, skip)?;
    if let Some(bias) = bias {
        let bias = b.cast(bias, F32)?;
        sum = b.binary(BinaryFn::Add, sum, bias)?;
    }
    let (y, inverse) = by_root_mean_square(b, sum, &[axis], epsilon)?;
    let gamma = b.cast(gamma, F32)?;
    let y = b.binary(BinaryFn::Mul, y, gamma)?;
    let zero = b.scalar(F32, 0.0);
    let none = b.expand(zero, b.shape(inverse))?;
    Ok(vec![b.cast(y, to)?, none, inverse, b.cast(sum, to)?])
}

fn gated_rms_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, gate, epsilon) =
        (cx.input("X")?, cx.input("scale")?, cx.input("gate")?, cx.float("epsilon")?);
    let weighs = match cx.str("activation")?.as_str() {
        "silu" | "swish" => true,
        "sigmoid" => false,
        other => return not_one_of("activation", other, "silu, swish, sigmoid"),
    };
    let b = &mut *cx.b;
    let (to, shape, each) = (b.dtype(x), b.shape(x), b.shape(scale)[0].clone());
    let mut grouped = shape.clone();
    let Some(width) = grouped.pop() else { return malformed(format!("X {} has no axis", b.ty(x))) };
    let groups = b.divided(&width, each.clone(), "features must divide into groups as large as scale")?;
    grouped.extend([groups, each]);
    let axis = grouped.len() - 1;
    let x = b.cast(x, F32)?;
    let x = b.reshape(x, grouped)?;
    let (y, _) = by_root_mean_square(b, x, &[axis], epsilon)?;
    let scale = b.cast(scale, F32)?;
    let y = b.binary(BinaryFn::Mul, y, scale)?;
    let y = b.reshape(y, shape)?;
    let gate = b.cast(gate, F32)?;
    let mut factor = b.unary(UnaryFn::Sigmoid, gate)?;
    if weighs {
        factor = b.binary(BinaryFn::Mul, gate, factor)?;
    }
    let y = b.binary(BinaryFn::Mul, y, factor)?;
    Ok(vec![b.cast(y, to)?])
}

fn biased_gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut x = cx.input("X")?;
    if let Some(bias) = cx.optional("bias") {
        x = cx.b.binary(BinaryFn::Add, x, bias)?;
    }
    Ok(vec![fast_gelu(cx.b, x)?])
}

/// How many ones each row of a mask has; none without a mask.
fn ones_in_rows(b: &mut Builder<'_>, mask: Option<ValueId>, rows: &Dim) -> Result<ValueId> {
    let Some(mask) = mask else {
        let zero = b.scalar(I32, 0.0);
        return b.expand(zero, vec![rows.clone()]);
    };
    let one = b.scalar(I32, 1.0);
    let ones = b.compare(CompareFn::Eq, mask, one)?;
    let ones = b.cast(ones, I32)?;
    let counts = b.reduce(ReduceFn::Sum, ones, &[1])?;
    b.reshape(counts, vec![rows.clone()])
}

fn qembed_layer_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, segments, mask) = (cx.input("input_ids")?, cx.optional("segment_ids"), cx.optional("mask"));
    let epsilon = cx.float("epsilon")?;
    let rows = cx.b.shape(ids);
    let positions = cx.input("position_embedding_quant")?;
    let words = cx.b.emit1(Op::Gather { axis: 0 }, &[cx.input("word_embedding_quant")?, ids])?;
    let words =
        real(cx.b, words, cx.input("word_embedding_scale")?, Some(cx.input("word_embedding_zero_point")?))?;
    let positions = cx.b.slice_axis(positions, 0, Dim::ZERO, rows[1].clone())?;
    let positions = real(
        cx.b,
        positions,
        cx.input("position_embedding_scale")?,
        Some(cx.input("position_embedding_zero_point")?),
    )?;
    let mut sum = cx.b.binary(BinaryFn::Add, words, positions)?;
    if let Some(segments) = segments {
        let taken = cx.b.emit1(Op::Gather { axis: 0 }, &[cx.input("segment_embedding")?, segments])?;
        let taken = real(
            cx.b,
            taken,
            cx.input("segment_embedding_scale")?,
            Some(cx.input("segment_embedding_zero_point")?),
        )?;
        sum = cx.b.binary(BinaryFn::Add, sum, taken)?;
    }
    let (gamma, beta) = (cx.input("gamma_quant")?, cx.input("beta_quant")?);
    let gamma = real(cx.b, gamma, cx.input("gamma_scale")?, Some(cx.input("gamma_zero_point")?))?;
    let beta = real(cx.b, beta, cx.input("beta_scale")?, Some(cx.input("beta_zero_point")?))?;
    let (y, ..) = layer(cx.b, sum, gamma, Some(beta), epsilon)?;
    let counts = ones_in_rows(cx.b, mask, &rows[0])?;
    Ok(vec![y, counts])
}
