//! Convolutions and matrix products with what ONNX Runtime's optimizer joins to them: an activation, an addend, transposes,
//! a factor; and those on images whose channels come last.

use super::gates::shaped_as;
use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F16, F32, F64, I8, I32, I64, U8, U32, U64};
use onnxc_ops::activation::swish_of;
use onnxc_ops::conv::{self, biased};
use onnxc_ops::matmul::{gemm, scaled_product};
use onnxc_ops::pool::max_pool_of;
use onnxc_ops::recurrent::Activation;
use onnxc_ops::row::*;
use onnxc_ops::spatial::{channels_first, channels_last};

pub const ROWS: &[OpDef] = &[
    own("FusedConv", |cx| fused_conv(cx, false))
        .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T"), opt("Z", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(FUSED_CONV_ATTRIBUTES)
        .types(&[("T", &[F16, F32, F64])])
        .shapes(&[
            "X[N, C, D..]",
            "W[M, G, K..]",
            "W[_, _, kernel_shape..]",
            "len(K) = len(D)",
            "C = G * group",
            "M % group = 0",
            "B[M]",
            "Z[N, M, ..]",
            "rank(Z) = rank(X)",
        ])
        .doc("activation of a convolution plus bias plus Z"),
    NHWC_CONV
        .name("NhwcFusedConv")
        .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T"), opt("Z", "T")])
        .attributes(FUSED_CONV_ATTRIBUTES)
        .types(&[("T", &[F16, F32])])
        .shapes(&[
            "X[N, D.., C]",
            "W[M, G, K..]",
            "W[_, _, kernel_shape..]",
            "len(K) = len(D)",
            "C = G * group",
            "M % group = 0",
            "B[M]",
            "Z[N, .., M]",
            "rank(Z) = rank(X)",
        ])
        .doc("activation of a convolution plus bias plus Z, channels last"),
    NHWC_CONV,
    own("NhwcMaxPool", nhwc_max_pool)
        .inputs(&[req("x", "T")])
        .outputs(&[req("y", "T")])
        .attributes(&[
            string("auto_pad", "NOTSET"),
            int("ceil_mode", 0),
            optional("dilations", Ints),
            required("kernel_shape", Ints),
            optional("pads", Ints),
            optional("strides", Ints),
        ])
        .types(&[("T", &[I8, U8])])
        .shapes(&["x[_, D.., _]", "len(kernel_shape) = len(D)"])
        .doc("maximum over sliding windows, channels last"),
    own("FusedGemm", fused_gemm)
        .inputs(&[req("A", "T"), req("B", "T"), opt("C", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            optional("activation", Str),
            optional("activation_alpha", Float),
            optional("activation_beta", Float),
            optional("activation_gamma", Float),
            float("alpha", 1.0),
            float("beta", 1.0),
            int("transA", 0),
            int("transB", 0),
        ])
        .types(&[("T", &[F16, F32, F64, U32, U64, I32, I64])])
        .shapes(&[
            "if transA = 0: A[M, K]",
            "if transA != 0: A[K, M]",
            "if transB = 0: B[K, N]",
            "if transB != 0: B[N, K]",
            "broadcast(C -> [M, N])",
        ])
        .doc("activation of alpha * A * B + beta * C"),
    own("TransposeMatMul", fused_mat_mul)
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", onnxc_ops::types::FLOATS)])
        .doc("alpha times the matrix product of operands that may be transposed")
        .attributes(&[float("alpha", 1.0), int("transA", 0), int("transB", 0)])
        .shapes(TRANSPOSED_SHAPES),
    FUSED_MAT_MUL,
    FUSED_MAT_MUL
        .name("FusedMatMulActivation")
        .attributes(&[
            required("activation", Str),
            optional("activation_alpha", Float),
            optional("activation_axis", Int),
            optional("activation_beta", Float),
            optional("activation_gamma", Float),
            float("alpha", 1.0),
            int("transA", 0),
            int("transB", 0),
            int("transBatchA", 0),
            int("transBatchB", 0),
        ])
        .lower(fused_mat_mul_activation)
        .doc("activation of the result of FusedMatMul"),
];

const FUSED_CONV_ATTRIBUTES: &[AttrDef] = &[
    optional("activation", Str),
    optional("activation_params", Floats),
    string("auto_pad", "NOTSET"),
    optional("dilations", Ints),
    int("group", 1),
    optional("kernel_shape", Ints),
    optional("pads", Ints),
    optional("strides", Ints),
];

const NHWC_CONV: OpDef = own("NhwcConv", |cx| fused_conv(cx, true))
    .inputs(&[req("X", "T"), req("W", "T"), opt("B", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(conv::ATTRIBUTES)
    .types(&[("T", &[F16, F32, F64])])
    .shapes(&[
        "X[_, D.., C]",
        "W[M, G, K..]",
        "W[_, _, kernel_shape..]",
        "len(K) = len(D)",
        "C = G * group",
        "M % group = 0",
        "B[M]",
    ])
    .doc("convolution plus bias, channels last");

const TRANSPOSED_SHAPES: &[&str] = &[
    "if transA = 0: A[K] | [P.., M, K]",
    "if transA != 0: A[K] | [P.., K, M]",
    "if transB = 0: B[K] | [Q.., K, N]",
    "if transB != 0: B[K] | [Q.., N, K]",
    "broadcast(P, Q)",
];

const FUSED_MAT_MUL: OpDef = own("FusedMatMul", fused_mat_mul)
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        float("alpha", 1.0),
        int("transA", 0),
        int("transB", 0),
        int("transBatchA", 0),
        int("transBatchB", 0),
    ])
    .types(&[("T", onnxc_ops::types::FLOATS)])
    .shapes(&[
        "if transBatchA = 0 and transA = 0: A[K] | [P.., M, K]",
        "if transBatchA = 0 and transA != 0: A[K] | [P.., K, M]",
        "if transBatchA != 0 and transA = 0: A[K] | [M, P.., K]",
        "if transBatchA != 0 and transA != 0: A[K] | [K, P.., M]",
        "if transBatchB = 0 and transB = 0: B[K] | [Q.., K, N]",
        "if transBatchB = 0 and transB != 0: B[K] | [Q.., N, K]",
        "if transBatchB != 0 and transB = 0: B[K] | [K, Q.., N]",
        "if transBatchB != 0 and transB != 0: B[K] | [N, Q.., K]",
        "broadcast(P, Q)",
    ])
    .doc("alpha times the matrix product of operands whose axes may be transposed");

/// An activation and its constants, in the order in which `params` has them.
fn activated(b: &mut Builder<'_>, x: ValueId, name: &str, params: &[Option<f32>]) -> Result<ValueId> {
    let param = |at: usize| params.get(at).copied().flatten();
    match name {
        "Clip" => {
            let (Some(low), Some(high)) = (param(0), param(1)) else {
                return malformed("activation Clip without its two bounds");
            };
            let x = b.binary_scalar(BinaryFn::Max, x, f64::from(low))?;
            b.binary_scalar(BinaryFn::Min, x, f64::from(high))
        }
        "Silu" => swish_of(b, x, 1.0),
        _ => match Activation::named(&name.to_ascii_lowercase(), param(0), param(1)) {
            Some(known) => known.apply(b, x),
            None => unsupported(format!("activation `{name}`")),
        },
    }
}

/// The activations of convolutions, each with the number of its constants.
const OF_CONV: &[(&str, usize)] = &[
    ("Relu", 0),
    ("Silu", 0),
    ("Tanh", 0),
    ("Sigmoid", 0),
    ("LeakyRelu", 1),
    ("Clip", 2),
    ("HardSigmoid", 2),
];

/// The activation of a convolution, if there is one.
pub fn conv_activation(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    if !cx.has("activation") || !cx.attributes.contains_key("activation") {
        return Ok(x);
    }
    let (name, params) = (cx.str("activation")?, cx.floats("activation_params")?.unwrap_or_default());
    if name.is_empty() {
        return Ok(x);
    }
    let Some(&(_, count)) = OF_CONV.iter().find(|row| row.0 == name) else {
        let known: Vec<&str> = OF_CONV.iter().map(|row| row.0).collect();
        return not_one_of("activation", name, &known.join(", "));
    };
    if params.len() != count && count > 0 {
        return malformed(format!("activation_params is {params:?}; activation {name} takes {count}"));
    }
    let params: Vec<Option<f32>> = params.into_iter().map(Some).collect();
    activated(cx.b, x, &name, &params)
}

fn fused_conv(cx: &mut NodeCx<'_, '_>, is_last: bool) -> Result<Vec<ValueId>> {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let x = if is_last { channels_first(cx.b, x)? } else { x };
    let mut y = biased(cx, x, w)?;
    if let Some(addend) = cx.optional(3) {
        let addend = if is_last { addend } else { channels_last(cx.b, addend)? };
        shaped_as(cx, "Z", addend, y)?;
        y = cx.b.binary(BinaryFn::Add, y, addend)?;
    }
    let y = conv_activation(cx, y)?;
    Ok(vec![if is_last { y } else { channels_first(cx.b, y)? }])
}

fn nhwc_max_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("x")?;
    let x = channels_first(cx.b, x)?;
    let y = max_pool_of(cx, x)?.remove(0);
    Ok(vec![channels_last(cx.b, y)?])
}

/// The activations of products; the constants are alpha and beta, or alpha and gamma of Selu.
const OF_PRODUCT: &str =
    "Relu, Tanh, Sigmoid, LeakyRelu, ThresholdedRelu, HardSigmoid, Elu, Celu, Selu, Softsign, Softplus";

/// The activation of a product, if there is one.
fn product_activation(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    if !cx.attributes.contains_key("activation") {
        return Ok(x);
    }
    let name = cx.str("activation")?;
    let [alpha, beta, gamma] = ["activation_alpha", "activation_beta", "activation_gamma"];
    let (alpha, beta, gamma) =
        (cx.optional_float(alpha)?, cx.optional_float(beta)?, cx.optional_float(gamma)?);
    match name.as_str() {
        "" => Ok(x),
        "Relu" | "Tanh" | "Sigmoid" | "LeakyRelu" | "ThresholdedRelu" | "HardSigmoid" | "Elu"
        | "Softsign" | "Softplus" => activated(cx.b, x, &name, &[alpha, beta]),
        "Selu" => {
            let curve = activated(cx.b, x, "Elu", &[Some(alpha.unwrap_or(1.673_263_2))])?;
            cx.b.binary_scalar(BinaryFn::Mul, curve, f64::from(gamma.unwrap_or(1.050_701)))
        }
        "Celu" => {
            let alpha = f64::from(alpha.unwrap_or(1.0));
            let scaled = cx.b.binary_scalar(BinaryFn::Div, x, alpha)?;
            let curve = activated(cx.b, scaled, "Elu", &[])?;
            cx.b.binary_scalar(BinaryFn::Mul, curve, alpha)
        }
        other => unsupported(format!("activation `{other}`: those of products are {OF_PRODUCT}")),
    }
}

fn fused_gemm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let y = gemm(cx)?.remove(0);
    if !cx.b.dtype(y).is_float() && cx.attributes.contains_key("activation") {
        let name = cx.str("activation")?;
        if !matches!(name.as_str(), "" | "Relu") {
            return unsupported(format!("activation {name} of the integers {}", cx.b.ty(y)));
        }
    }
    Ok(vec![product_activation(cx, y)?])
}

/// An operand with its first axis moved before the last, and then its last two axes exchanged, as attributes say. A
/// vector has nothing to transpose.
fn operand(cx: &mut NodeCx<'_, '_>, at: usize, letter: char) -> Result<ValueId> {
    let x = cx.input(at)?;
    let rank = cx.b.rank(x);
    if rank < 2 {
        return Ok(x);
    }
    let batch = format!("transBatch{letter}");
    let mut perm: Vec<usize> = (0..rank).collect();
    if cx.has(&batch) && cx.int(&batch)? != 0 {
        perm.remove(0);
        perm.insert(rank - 2, 0);
    }
    if cx.int(&format!("trans{letter}"))? != 0 {
        perm.swap(rank - 2, rank - 1);
    }
    cx.b.transpose(x, &perm)
}

fn fused_mat_mul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (operand(cx, 0, 'A')?, operand(cx, 1, 'B')?);
    let alpha = cx.float("alpha")?;
    Ok(vec![scaled_product(cx.b, x, y, alpha)?])
}

fn fused_mat_mul_activation(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let y = fused_mat_mul(cx)?.remove(0);
    Ok(vec![product_activation(cx, y)?])
}
