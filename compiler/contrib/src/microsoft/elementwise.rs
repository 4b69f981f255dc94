//! Conversions between integers and reals, and functions of quantised elements: reals in between.

use super::{BYTES, own, quantized, real, scalar, shifted};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{Bool, F16, F32, I4, I8, I16, I32, U4, U8, U16};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};
use onnxc_ops::AttrDefault::{Float, Int, Optional, Required};
use onnxc_ops::activation::leaky_relu_of;
use onnxc_ops::quantize::{dequantize_linear, quantize_linear, rescaled, saturated};
use onnxc_ops::softmax::{on_rows_of, softmax_along};
use onnxc_ops::{AttrKind, NodeCx, OpDef, Param, attr, mixed, normalize_axes, normalize_axis, opt, req};

pub const ROWS: &[OpDef] = &[
    own("DequantizeLinear", dequantize_linear)
        .inputs(&[req("x", "T1"), req("x_scale", "T2"), opt("x_zero_point", "T1")])
        .outputs(&[req("y", "T2")])
        .attributes(&[attr("axis", Optional(AttrKind::Int))])
        .types(&[("T1", &[I8, U8, I16, U16, I32, I4, U4]), ("T2", &[F16, F32])])
        .shapes(&["x[..axis else 1, N, ..] | [..]", "x_scale[] | [N|1]", "x_zero_point[] | [N|1]"])
        .doc("(x - zero_point) * scale"),
    own("QuantizeLinear", quantize_linear)
        .inputs(&[req("x", "T1"), req("y_scale", "T1"), opt("y_zero_point", "T2")])
        .outputs(&[req("y", "T2")])
        .attributes(&[attr("axis", Optional(AttrKind::Int))])
        .types(&[("T1", &[F16, F32]), ("T2", &[I8, U8, I16, U16, I4, U4])])
        .shapes(&["x[..axis else 1, N, ..] | [..]", "y_scale[] | [N|1]", "y_zero_point[] | [N|1]"])
        .doc("saturate(round(x / scale) + zero_point)"),
    QLINEAR_ADD,
    QLINEAR_ADD.name("QLinearMul").lower(qlinear_mul).doc("quantized product"),
    QLINEAR_SIGMOID
        .name("QLinearLeakyRelu")
        .attributes(&[attr("alpha", Float(0.01))])
        .lower(qlinear_leaky_relu)
        .doc("quantized x < 0 ? alpha * x : x"),
    QLINEAR_SIGMOID,
    own("QLinearWhere", qlinear_where)
        .inputs(&[
            req("condition", "B"),
            req("X", "T"),
            req("x_scale", "TF"),
            req("x_zero_point", "T"),
            req("Y", "T"),
            req("y_scale", "TF"),
            req("y_zero_point", "T"),
            req("z_scale", "TF"),
            req("z_zero_point", "T"),
        ])
        .outputs(&[req("Z", "T")])
        .types(&[("B", &[Bool]), ("TF", &[F32]), ("T", BYTES)])
        .shapes(&[
            "broadcast(condition, X, Y)",
            "count(x_scale) = 1",
            "count(x_zero_point) = 1",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
            "count(z_scale) = 1",
            "count(z_zero_point) = 1",
        ])
        .doc("quantized condition ? x : y"),
    own("QLinearConcat", qlinear_concat)
        .inputs(&[req("Y_scale", "TF"), req("Y_zero_point", "T8"), mixed("inputs", "TV")])
        .outputs(&[req("Y", "T8")])
        .attributes(&[attr("axis", Required(AttrKind::Int))])
        .types(&[("T8", BYTES), ("TF", &[F32]), ("TV", &[U8, I8, F32])])
        .shapes(&["count(Y_scale) = 1", "count(Y_zero_point) = 1"])
        .doc("quantized tensors, each with a scale and a zero point, joined along an axis"),
    own("QLinearSoftmax", qlinear_softmax)
        .inputs(&[
            req("X", "T"),
            req("X_scale", "tensor(float)"),
            opt("x_zero_point", "T"),
            req("y_scale", "tensor(float)"),
            req("y_zero_point", "T"),
        ])
        .outputs(&[req("Y", "T")])
        .attributes(&[attr("axis", Int(-1)), attr("opset", Required(AttrKind::Int))])
        .types(&[("T", BYTES)])
        .shapes(&[
            "count(X_scale) = 1",
            "count(x_zero_point) = 1",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
        ])
        .doc("quantized softmax, of a matrix where `opset` is below 13"),
    own("QLinearReduceMean", qlinear_reduce_mean)
        .inputs(&[
            req("data", "T"),
            req("data_scale", "tensor(float)"),
            opt("data_zero_point", "T"),
            req("reduced_scale", "tensor(float)"),
            opt("reduced_zero_point", "T"),
        ])
        .outputs(&[req("reduced", "T")])
        .attributes(&[attr("axes", Required(AttrKind::Ints)), attr("keepdims", Required(AttrKind::Int))])
        .types(&[("T", BYTES)])
        .shapes(&[
            "count(data_scale) = 1",
            "count(data_zero_point) = 1",
            "count(reduced_scale) = 1",
            "count(reduced_zero_point) = 1",
        ])
        .doc("quantized mean over axes"),
];

const BINARY_INPUTS: &[Param] = &[
    req("A", "T"),
    req("A_scale", "tensor(float)"),
    opt("A_zero_point", "T"),
    req("B", "T"),
    req("B_scale", "tensor(float)"),
    opt("B_zero_point", "T"),
    req("C_scale", "tensor(float)"),
    opt("C_zero_point", "T"),
];

const QLINEAR_ADD: OpDef = own("QLinearAdd", qlinear_add)
    .inputs(BINARY_INPUTS)
    .outputs(&[req("C", "T")])
    .types(&[("T", BYTES)])
    .shapes(&[
        "broadcast(A, B)",
        "count(A_scale) = 1",
        "count(A_zero_point) = 1",
        "count(B_scale) = 1",
        "count(B_zero_point) = 1",
        "count(C_scale) = 1",
        "count(C_zero_point) = 1",
    ])
    .doc("quantized sum");

const QLINEAR_SIGMOID: OpDef = own("QLinearSigmoid", qlinear_sigmoid)
    .inputs(&[
        req("X", "T"),
        req("X_scale", "tensor(float)"),
        opt("X_zero_point", "T"),
        req("Y_scale", "tensor(float)"),
        opt("Y_zero_point", "T"),
    ])
    .outputs(&[req("Y", "T")])
    .types(&[("T", BYTES)])
    .shapes(&[
        "count(X_scale) = 1",
        "count(X_zero_point) = 1",
        "count(Y_scale) = 1",
        "count(Y_zero_point) = 1",
    ])
    .doc("quantized 1 / (1 + exp(-x))");

fn qlinear_add(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, x_scale, x_zero) = (cx.input("A")?, cx.input("A_scale")?, cx.optional("A_zero_point"));
    let (y, y_scale, y_zero) = (cx.input("B")?, cx.input("B_scale")?, cx.optional("B_zero_point"));
    let (out_scale, out_zero) = (cx.input("C_scale")?, cx.optional("C_zero_point"));
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let out_scale = scalar(b, out_scale)?;
    // In steps of the result, by ratios of scales: where these are simple, ties stay ties.
    let mut terms = Vec::with_capacity(2);
    for (x, scale, zero_point) in [(x, x_scale, x_zero), (y, y_scale, y_zero)] {
        let scale = scalar(b, scale)?;
        let ratio = b.binary(BinaryFn::Div, scale, out_scale)?;
        let x = shifted(b, x, zero_point, F32)?;
        terms.push(b.binary(BinaryFn::Mul, x, ratio)?);
    }
    let sum = b.binary(BinaryFn::Add, terms[0], terms[1])?;
    Ok(vec![rounded_last(b, sum, out_zero, to)?])
}

fn qlinear_mul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, x_zero, y, y_zero) = (cx.input(0)?, cx.optional(2), cx.input(3)?, cx.optional(5));
    let (x_scale, y_scale, out_scale) = (cx.input(1)?, cx.input(4)?, cx.input(6)?);
    let out_zero = cx.optional(7);
    let b = &mut *cx.b;
    let to = b.dtype(x);
    // Products of these integers are exact in f32.
    let (left, right) = (shifted(b, x, x_zero, F32)?, shifted(b, y, y_zero, F32)?);
    let product = b.binary(BinaryFn::Mul, left, right)?;
    Ok(vec![rounded(b, product, &[x_scale, y_scale], out_scale, out_zero, to)?])
}

/// A number of exact integers times one scale each, quantised.
fn rounded(
    b: &mut Builder<'_>,
    x: ValueId,
    scales: &[ValueId],
    out_scale: ValueId,
    out_zero: Option<ValueId>,
    to: DType,
) -> Result<ValueId> {
    let scales = scales.iter().map(|&scale| scalar(b, scale)).collect::<Result<Vec<_>>>()?;
    let out_scale = scalar(b, out_scale)?;
    let y = rescaled(b, x, &scales, Some(out_scale))?;
    rounded_last(b, y, out_zero, to)
}

/// `saturate(round(x + zero_point))`, as these kernels of ONNX Runtime have it: QuantizeLinear rounds first, and gives another
/// result for a tie where the zero point is odd.
fn rounded_last(b: &mut Builder<'_>, x: ValueId, zero_point: Option<ValueId>, to: DType) -> Result<ValueId> {
    let mut x = x;
    if let Some(zero_point) = zero_point {
        let zero_point = scalar(b, zero_point)?;
        let zero_point = b.cast(zero_point, F32)?;
        x = b.binary(BinaryFn::Add, x, zero_point)?;
    }
    saturated(b, x, None, to, true)
}

/// The mean of quantised elements over `axes`, which stay with size 1.
pub fn quantized_mean(
    b: &mut Builder<'_>,
    x: ValueId,
    axes: &[usize],
    parameters: [ValueId; 2],
    zero_points: [Option<ValueId>; 2],
) -> Result<ValueId> {
    let to = b.dtype(x);
    let counts: Vec<Dim> = axes.iter().map(|&axis| b.ty(x).shape[axis].clone()).collect();
    // Sums of integers are exact.
    let x = shifted(b, x, zero_points[0], I32)?;
    let sum = b.reduce(ReduceFn::Sum, x, axes)?;
    let sum = b.cast(sum, F32)?;
    let count = match product(&counts) {
        count if count.is_const() => b.scalar(F32, count.as_const().unwrap_or(1) as f64),
        count => {
            let count = b.dim_scalar(&count)?;
            b.cast(count, F32)?
        }
    };
    let mean = b.binary(BinaryFn::Div, sum, count)?;
    rounded(b, mean, &parameters[..1], parameters[1], zero_points[1], to)
}

/// The operands of a function of one quantised tensor: `x`, its scale and zero point, those of the result.
fn unary(cx: &NodeCx<'_, '_>) -> Result<(ValueId, [ValueId; 2], [Option<ValueId>; 2])> {
    Ok((cx.input(0)?, [cx.input(1)?, cx.input(3)?], [cx.optional(2), cx.optional(4)]))
}

fn qlinear_sigmoid(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scales, zero_points) = unary(cx)?;
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let y = real(b, x, scales[0], zero_points[0])?;
    let y = b.unary(UnaryFn::Sigmoid, y)?;
    Ok(vec![quantized(b, y, scales[1], zero_points[1], to)?])
}

fn qlinear_leaky_relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scales, zero_points) = unary(cx)?;
    let to = cx.b.dtype(x);
    let y = real(cx.b, x, scales[0], zero_points[0])?;
    let y = leaky_relu_of(cx, y)?.remove(0);
    Ok(vec![quantized(cx.b, y, scales[1], zero_points[1], to)?])
}

fn qlinear_where(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (condition, x, y) = (cx.input("condition")?, cx.input("X")?, cx.input("Y")?);
    let (x_scale, x_zero) = (cx.input("x_scale")?, cx.input("x_zero_point")?);
    let (y_scale, y_zero) = (cx.input("y_scale")?, cx.input("y_zero_point")?);
    let (z_scale, z_zero) = (cx.input("z_scale")?, cx.input("z_zero_point")?);
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let x = real(b, x, x_scale, Some(x_zero))?;
    let y = real(b, y, y_scale, Some(y_zero))?;
    let z = b.select(condition, x, y)?;
    Ok(vec![quantized(b, z, z_scale, Some(z_zero), to)?])
}

fn qlinear_concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (y_scale, y_zero) = (cx.input("Y_scale")?, cx.input("Y_zero_point")?);
    let rest = cx.all_inputs()?.split_off(2);
    let axis = cx.int("axis")?;
    let b = &mut *cx.b;
    let to = b.dtype(y_zero);
    if rest.len() % 3 != 0 {
        let message = format!(
            "{} inputs after Y_zero_point: a tensor, its scale and its zero point are three",
            rest.len()
        );
        return Err(Error::malformed(Stage::Infer, message));
    }
    let mut parts = Vec::with_capacity(rest.len() / 3);
    for (number, operands) in rest.chunks_exact(3).enumerate() {
        let (x, scale, zero_point) = (operands[0], operands[1], operands[2]);
        let [of_x, of_scale, of_zero] = [x, scale, zero_point].map(|value| b.dtype(value));
        let single = [scale, zero_point].iter().all(|&value| {
            let elements = b.ty(value).elements();
            !elements.is_const() || elements == Dim::ONE
        });
        if of_x == F32 || of_scale != F32 || of_zero != of_x || !single {
            let message = format!(
                "tensor {number} is {} with scale {} and zero point {}; it must be i8 or u8, with one scale \
                 of f32 and one zero point of its own type",
                b.ty(x),
                b.ty(scale),
                b.ty(zero_point)
            );
            return Err(Error::malformed(Stage::Infer, message));
        }
        let x = real(b, x, scale, Some(zero_point))?;
        parts.push(quantized(b, x, y_scale, Some(y_zero), to)?);
    }
    let axis = normalize_axis(axis, b.rank(parts[0]))?;
    Ok(vec![b.concat(&parts, axis)?])
}

fn qlinear_softmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scales, zero_points) = unary(cx)?;
    let (axis, opset) = (cx.int("axis")?, cx.int("opset")?);
    let b = &mut *cx.b;
    let to = b.dtype(x);
    // What is added to all elements of a row changes nothing.
    let y = real(b, x, scales[0], None)?;
    let y = on_rows_of(b, y, axis, opset < 13, softmax_along)?;
    Ok(vec![quantized(b, y, scales[1], zero_points[1], to)?])
}

fn qlinear_reduce_mean(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scales, zero_points) = unary(cx)?;
    let (axes, keeps) = (cx.ints("axes")?.unwrap_or_default(), cx.int("keepdims")? != 0);
    let b = &mut *cx.b;
    let rank = b.rank(x);
    let axes = if axes.is_empty() { (0..rank).collect() } else { normalize_axes(&axes, rank)? };
    let y = quantized_mean(b, x, &axes, scales, zero_points)?;
    Ok(vec![if keeps { y } else { b.squeeze(y, &axes)? }])
}
