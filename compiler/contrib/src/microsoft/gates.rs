//! Elementwise functions with a bias, a gate or a residual, as ONNX Runtime's optimizers join them.

use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::Requirement;
use onnxc_ops::activation::{exact_gelu, fast_gelu, softplus_of, swish, swish_of};
use onnxc_ops::matmul::product;
use onnxc_ops::row::*;
use onnxc_ops::softmax::{on_rows_of, softmax_along};

const ALL_FLOATS: &[DType] = onnxc_ops::types::FLOATS;

pub const ROWS: &[OpDef] = &[
    own("Gelu", gelu)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", ALL_FLOATS)])
        .doc("x times the normal distribution function of x"),
    own("BiasGelu", bias_gelu)
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", ALL_FLOATS)])
        .shapes(&["A[.., N]", "B[N]"])
        .doc("Gelu of a sum with a bias"),
    own("QuickGelu", swish)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("alpha", 1.702)])
        .types(&[("T", ALL_FLOATS)])
        .doc("x * sigmoid(alpha * x)"),
    own("BiasSplitGelu", bias_split_gelu)
        .inputs(&[req("X", "T"), req("bias", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", HALF_OR_SINGLE)])
        .shapes(&["X[N, S, H * 2]", "bias[H * 2]"])
        .doc("of a sum with a bias, the first half times the Gelu of the second"),
    own("GemmFastGelu", gemm_fast_gelu)
        .inputs(&[req("X", "T"), req("W", "T"), opt("bias", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", FLOATS)])
        .shapes(&["X[K] | [P.., M, K]", "W[K] | [Q.., K, N]", "broadcast(P, Q)", "bias[N]"])
        .doc("Gelu by tanh of a matrix product plus bias"),
    own("BiasAdd", bias_add)
        .inputs(&[req("X", "T"), req("bias", "T"), req("skip", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", HALF_OR_SINGLE)])
        .shapes(&["X[N, S, C]", "bias[C]", "skip[N, S, C]"])
        .doc("x + bias + skip"),
    own("BiasSoftmax", bias_softmax)
        .inputs(&[req("data", "T"), req("bias", "T")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("axis", 1), required("is_inner_broadcast", Int)])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["broadcast(bias -> data)"])
        .doc("softmax of a sum with a bias, of a matrix whose rows are the axes before `axis`"),
    own("BiasDropout", |cx| dropout(cx, 1))
        .inputs(&[
            req("data", "T"),
            req("bias", "T"),
            opt("residual", "T"),
            opt("ratio", "T1"),
            opt("training_mode", "T2"),
        ])
        .outputs(&[req("output", "T"), opt("mask", "T2")])
        .attributes(&[optional("seed", Int)])
        .types(&[("T", ALL_FLOATS), ("T1", ALL_FLOATS), ("T2", BOOL)])
        .shapes(DROPOUT_SHAPES)
        .doc("data + bias + residual: dropout in inference"),
    own("BitmaskBiasDropout", |cx| dropout(cx, 1))
        .inputs(&[
            req("data", "T"),
            req("bias", "T"),
            opt("residual", "T"),
            opt("ratio", "T1"),
            opt("training_mode", "T2"),
        ])
        .outputs(&[req("output", "T"), opt("mask", "T3")])
        .attributes(&[optional("seed", Int)])
        .types(&[("T", ALL_FLOATS), ("T1", ALL_FLOATS), ("T2", BOOL), ("T3", &[DType::U32])])
        .shapes(DROPOUT_SHAPES)
        .doc("data + bias + residual: dropout in inference, with a mask of bits"),
    own("BitmaskDropout", |cx| dropout(cx, 0))
        .inputs(&[req("data", "T"), opt("ratio", "T1"), opt("training_mode", "T2")])
        .outputs(&[req("output", "T"), opt("mask", "T3")])
        .attributes(&[optional("seed", Int)])
        .types(&[("T", ALL_FLOATS), ("T1", ALL_FLOATS), ("T2", BOOL), ("T3", &[DType::U32])])
        .shapes(&["count(ratio) = 1", "count(training_mode) = 1"])
        .doc("data: dropout in inference, with a mask of bits"),
    own("GatedAdd", gated_add)
        .inputs(&[req("X", "T"), req("Y", "T"), req("gate", "T"), opt("gate_weight", "T")])
        .outputs(&[req("output", "T")])
        .types(&[("T", FLOATS)])
        .shapes(&[
            "X[D.., C]",
            "Y[D.., C]",
            "if !gate_weight: gate[D.., 1]",
            "if gate_weight: gate[D.., K]",
            "gate_weight[K, 1]",
        ])
        .doc("X + Y * gate; with weights the gate is a sigmoid of a product"),
    own("LinearAttentionGate", linear_attention_gate)
        .inputs(&[req("a", "T"), req("dt_bias", "TF"), req("decay_scale", "TF"), opt("b", "T")])
        .outputs(&[req("decay", "T"), opt("beta", "T")])
        .types(&[("T", FLOATS), ("TF", &[DType::F32])])
        .shapes(&["a[D.., H]", "dt_bias[H]", "decay_scale[H]", "b[D.., H]"])
        .doc("decay_scale * log(1 + exp(a + dt_bias)), and sigmoid(b): decays and rates of LinearAttention"),
    own("ScaledSiLU", scaled_silu)
        .inputs(&[req("X", "T"), opt("scale", "M")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("alpha", 1.0)])
        .types(&[("T", FLOATS), ("M", FLOATS)])
        .shapes(&["count(scale) = 1"])
        .doc("z * sigmoid(z) of z = scale * x"),
    own("SwiGLU", swiglu)
        .inputs(&[req("gate", "T"), opt("up", "T")])
        .outputs(&[req("output", "T")])
        .attributes(&[
            float("activation_alpha", 1.0),
            float("activation_beta", 0.0),
            float("limit", 0.0),
            int("round_activation", 0),
        ])
        .types(&[("T", FLOATS)])
        .shapes(&["if up: gate[D..]", "if !up: gate[.., H * 2]", "up[D..]"])
        .doc("g * sigmoid(alpha * g) * (u + beta), both limited; one tensor has g, then u"),
];

const HALF_OR_SINGLE: &[DType] = &[DType::F16, DType::F32];

const DROPOUT_SHAPES: &[&str] = &[
    "data[.., C]",
    "broadcast(bias -> data)",
    "broadcast(residual -> data)",
    "count(ratio) = 1",
    "count(training_mode) = 1",
];

/// The sum of `x` and an input that may be missing.
fn plus(cx: &mut NodeCx<'_, '_>, x: ValueId, at: usize) -> Result<ValueId> {
    match cx.optional(at) {
        Some(other) => cx.b.binary(BinaryFn::Add, x, other),
        None => Ok(x),
    }
}

fn gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    Ok(vec![exact_gelu(cx.b, x)?])
}

fn bias_gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("A")?;
    let x = plus(cx, x, 1)?;
    Ok(vec![exact_gelu(cx.b, x)?])
}

/// The halves of `x` along its last axis.
fn halves(b: &mut Builder<'_>, x: ValueId) -> Result<(ValueId, ValueId)> {
    let axis = b.rank(x) - 1;
    let width = b.ty(x).shape[axis].clone();
    let half = b.divided(&width, 2usize, "the last axis must divide into halves")?;
    let first = b.slice_axis(x, axis, Dim::ZERO, half.clone())?;
    Ok((first, b.slice_axis(x, axis, half.clone(), half)?))
}

fn bias_split_gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let x = plus(cx, x, 1)?;
    let (left, right) = halves(cx.b, x)?;
    let gate = exact_gelu(cx.b, right)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, left, gate)?])
}

fn gemm_fast_gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w) = (cx.input("X")?, cx.input("W")?);
    let y = product(cx.b, x, w)?;
    let y = plus(cx, y, 2)?;
    Ok(vec![fast_gelu(cx.b, y)?])
}

fn bias_add(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let x = plus(cx, x, 1)?;
    Ok(vec![plus(cx, x, 2)?])
}

/// The bias broadcasts as NumPy's do; `is_inner_broadcast` says on which side of its own axes, as its shape does.
fn bias_softmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, bias, axis) = (cx.input("data")?, cx.input("bias")?, cx.int("axis")?);
    let is_inner = cx.int("is_inner_broadcast")? != 0;
    let (shape, mut own) = (cx.b.shape(x), cx.b.shape(bias));
    let before = normalize_axis(axis, shape.len())?;
    while own.len() < shape.len() {
        own.insert(0, Dim::ONE);
    }
    let text = format!(
        "is_inner_broadcast is {}, which the bias of shape {} and the data of shape {} contradict",
        u8::from(is_inner),
        claim::list(own.len()),
        claim::list(shape.len())
    );
    let values: Vec<Dim> = own.iter().chain(&shape).cloned().collect();
    let values: Vec<&Dim> = values.iter().collect();
    // 0 for a size of 1, else 1.
    let many = |size: &Dim| {
        let above = size.clone() - Dim::ONE;
        (above.clone() * above).min_dim(&Dim::ONE)
    };
    for (first, second) in (0..before).flat_map(|second| (0..second).map(move |first| (first, second))) {
        let (kept, repeated) = if is_inner { (second, first) } else { (first, second) };
        // Axes of size 1 in both do not matter.
        let repeats = (Dim::ONE - many(&own[repeated])) * many(&shape[repeated]);
        let requirement = Requirement::equal(many(&own[kept]) * repeats, Dim::ZERO);
        cx.b.require(requirement.stated(text.clone(), &values))?;
    }
    let sum = cx.b.binary(BinaryFn::Add, x, bias)?;
    Ok(vec![on_rows_of(cx.b, sum, axis, true, softmax_along)?])
}

/// Of the inference alone; `addends` is 1 where a bias and a residual come before the ratio.
fn dropout(cx: &mut NodeCx<'_, '_>, addends: usize) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let mut y = x;
    for at in 1..=2 * addends {
        y = plus(cx, y, at)?;
    }
    let (ratio, mode) = (cx.optional(1 + 2 * addends), cx.optional(2 + 2 * addends));
    let is_zero = |cx: &NodeCx<'_, '_>, value: ValueId| {
        cx.b.known(value).is_some_and(|elements| *elements == [Dim::ZERO])
            || cx
                .b
                .graph
                .constant_data(value)
                .and_then(|data| data.to_f64s())
                .is_some_and(|data| data == [0.0])
    };
    let trains =
        mode.is_some_and(|mode| !is_zero(cx, mode)) && !ratio.is_some_and(|ratio| is_zero(cx, ratio));
    if trains {
        return unsupported("training_mode, which is not known to be false");
    }
    if !cx.wants(1) {
        return Ok(vec![y]);
    }
    let (shape, count) = (cx.b.shape(x), cx.b.ty(x).elements());
    let mask = if cx.def.name == "BiasDropout" {
        let one = cx.b.scalar(DType::Bool, 1.0);
        cx.b.expand(one, shape)?
    } else {
        let ones = cx.b.scalar(DType::U32, f64::from(u32::MAX));
        let words = count.ceil_div(&Dim::from(32usize)).unwrap_or(Dim::ZERO);
        cx.b.expand(ones, vec![words])?
    };
    Ok(vec![y, mask])
}

fn gated_add(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y, mut gate) = (cx.input("X")?, cx.input("Y")?, cx.input("gate")?);
    if let Some(weight) = cx.optional("gate_weight") {
        gate = product(cx.b, gate, weight)?;
        gate = cx.b.unary(UnaryFn::Sigmoid, gate)?;
    }
    let gated = cx.b.binary(BinaryFn::Mul, y, gate)?;
    Ok(vec![cx.b.binary(BinaryFn::Add, x, gated)?])
}

/// All in f32: a recurrence exponentiates and accumulates the decays.
fn linear_attention_gate(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (a, bias, factor, rate) =
        (cx.input("a")?, cx.input("dt_bias")?, cx.input("decay_scale")?, cx.optional("b"));
    let wants_rate = cx.wants(1);
    let b = &mut *cx.b;
    let dtype = b.dtype(a);
    let a = b.cast(a, DType::F32)?;
    let biased = b.binary(BinaryFn::Add, a, bias)?;
    let soft = softplus_of(b, biased)?;
    let decay = b.binary(BinaryFn::Mul, soft, factor)?;
    let mut results = vec![b.cast(decay, dtype)?];
    match rate {
        Some(rate) => {
            let rate = b.cast(rate, DType::F32)?;
            let rate = b.unary(UnaryFn::Sigmoid, rate)?;
            results.push(b.cast(rate, dtype)?);
        }
        None if wants_rate => return malformed("the output beta without the input b, whose sigmoid it is"),
        None => {}
    }
    Ok(results)
}

fn scaled_silu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, alpha) = (cx.input("X")?, cx.optional("scale"), cx.float("alpha")?);
    let dtype = cx.b.dtype(x);
    let wide = cx.b.cast(x, DType::F32)?;
    let scaled = match scale {
        Some(scale) => {
            let scale = to_scalar(cx, scale)?;
            let scale = cx.b.cast(scale, DType::F32)?;
            cx.b.binary(BinaryFn::Mul, wide, scale)?
        }
        None => cx.b.binary_scalar(BinaryFn::Mul, wide, f64::from(alpha))?,
    };
    let scaled = cx.b.cast(scaled, dtype)?;
    Ok(vec![swish_of(cx.b, scaled, 1.0)?])
}

fn swiglu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("gate")?;
    let (alpha, beta) = (cx.float("activation_alpha")?, cx.float("activation_beta")?);
    let (limit, rounds) = (cx.float("limit")?, cx.int("round_activation")? != 0);
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let (gate, up) = match cx.inputs.get(1).copied().flatten() {
        Some(up) => (x, up),
        None => halves(b, x)?,
    };
    let (mut gate, mut up) = (b.cast(gate, DType::F32)?, b.cast(up, DType::F32)?);
    if limit > 0.0 {
        (gate, up) = limited(b, gate, up, limit)?;
    }
    let mut gate = swish_of(b, gate, alpha)?;
    if rounds {
        gate = b.cast(gate, dtype)?;
        gate = b.cast(gate, DType::F32)?;
    }
    let up = if beta == 0.0 { up } else { b.binary_scalar(BinaryFn::Add, up, f64::from(beta))? };
    let y = b.binary(BinaryFn::Mul, gate, up)?;
    Ok(vec![b.cast(y, dtype)?])
}

/// The gate at most `limit`, and what it multiplies from `-limit` to `limit`.
pub fn limited(b: &mut Builder<'_>, gate: ValueId, up: ValueId, limit: f32) -> Result<(ValueId, ValueId)> {
    let limit = f64::from(limit);
    let gate = b.binary_scalar(BinaryFn::Min, gate, limit)?;
    let up = b.binary_scalar(BinaryFn::Min, up, limit)?;
    Ok((gate, b.binary_scalar(BinaryFn::Max, up, -limit)?))
}

/// Holds the shape of an input against that of a result.
pub fn shaped_as(cx: &mut NodeCx<'_, '_>, name: &str, value: ValueId, result: ValueId) -> Result<()> {
    let (own, wanted) = (cx.b.shape(value), cx.b.shape(result));
    if own.len() != wanted.len() {
        return malformed(format!("{name} is {}; the result has shape {wanted:?}", cx.b.ty(value)));
    }
    for (axis, (own, wanted)) in own.into_iter().zip(wanted).enumerate() {
        let name = format!("dimension {axis} of {name}");
        cx.b.require(Requirement::equal(own, wanted).says(name, "that of the result"))?;
    }
    Ok(())
}
