//! Matrix products of quantised operands whose results are reals, or integers again.

use super::{BYTES, own, scalar};
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType::{F16, F32, I8, I32, U8};
use onnxc_ir::graph::ValueId;
use onnxc_ir::scalar::BinaryFn;
use onnxc_ops::AttrDefault::{Float, Int};
use onnxc_ops::quantize::{
    Side, beside, centred, dynamically_quantized, rescaled, saturated, scaled_product,
};
use onnxc_ops::{NodeCx, OpDef, attr, opt, req};

pub const ROWS: &[OpDef] = &[
    own("QGemm", qgemm)
        .inputs(&[
            req("A", "TA"),
            req("a_scale", "T"),
            req("a_zero_point", "TA"),
            req("B", "TB"),
            req("b_scale", "T"),
            req("b_zero_point", "TB"),
            opt("C", "TC"),
            opt("y_scale", "T"),
            opt("y_zero_point", "TYZ"),
        ])
        .outputs(&[req("Y", "TY")])
        .attributes(&[attr("alpha", Float(1.0)), attr("transA", Int(0)), attr("transB", Int(0))])
        .types(&[
            ("T", &[F32]),
            ("TA", BYTES),
            ("TB", BYTES),
            ("TC", &[I32]),
            ("TYZ", BYTES),
            ("TY", &[F32, U8, I8]),
        ])
        .shapes(&[
            "if transA = 0: A[M, K]",
            "if transA != 0: A[K, M]",
            "if transB = 0: B[K, N]",
            "if transB != 0: B[N, K]",
            "broadcast(C -> [M, N])",
            "count(a_scale) = 1",
            "count(a_zero_point) = 1",
            "b_scale[] | [N|1]",
            "b_zero_point[] | [N|1]",
            "count(y_scale) = 1",
            "count(y_zero_point) = 1",
        ])
        .doc("quantized alpha * (A * B + C); reals without a zero point of the result"),
    own("MatMulIntegerToFloat", mat_mul_integer_to_float)
        .inputs(&[
            req("A", "T1"),
            req("B", "T2"),
            req("a_scale", "T3"),
            req("b_scale", "T3"),
            opt("a_zero_point", "T1"),
            opt("b_zero_point", "T2"),
            opt("bias", "T3"),
        ])
        .outputs(&[req("Y", "T3")])
        .types(&[("T1", BYTES), ("T2", BYTES), ("T3", &[F32, F16])])
        .shapes(&[
            "A[K] | [P.., M, K]",
            "B[K] | [Q.., K, N]",
            "broadcast(P, Q)",
            "a_scale[] | [M|1] | [.., M|1, 1]",
            "b_scale[] | [N|1] | [.., 1, N|1]",
            "a_zero_point[] | [M|1] | [.., M|1, 1]",
            "b_zero_point[] | [N|1] | [.., 1, N|1]",
            "bias[N]",
        ])
        .doc("matrix product of 8-bit operands as reals, plus bias"),
    own("DynamicQuantizeMatMul", dynamic_quantize_mat_mul)
        .inputs(&[
            req("A", "T1"),
            req("B", "T2"),
            req("b_scale", "T1"),
            opt("b_zero_point", "T2"),
            opt("bias", "T1"),
        ])
        .outputs(&[req("Y", "T1")])
        .types(&[("T1", &[F32]), ("T2", BYTES)])
        .shapes(&[
            "A[K] | [P.., M, K]",
            "B[K] | [Q.., K, N]",
            "broadcast(P, Q)",
            "b_scale[] | [N|1] | [.., 1, N|1]",
            "b_zero_point[] | [N|1] | [.., 1, N|1]",
            "bias[N]",
        ])
        .doc("matrix product of A, quantized by its range, and 8-bit weights, plus bias"),
];

fn qgemm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (mut x, x_scale, x_zero) = (cx.input("A")?, cx.input("a_scale")?, cx.input("a_zero_point")?);
    let (mut y, y_scale, y_zero) = (cx.input("B")?, cx.input("b_scale")?, cx.input("b_zero_point")?);
    let (addend, out_scale, out_zero) =
        (cx.optional("C"), cx.optional("y_scale"), cx.optional("y_zero_point"));
    let alpha = f64::from(cx.float("alpha")?);
    let transposes = [cx.int("transA")? != 0, cx.int("transB")? != 0];
    let b = &mut *cx.b;
    for (operand, transposed) in [&mut x, &mut y].into_iter().zip(transposes) {
        if transposed {
            *operand = b.transpose(*operand, &[1, 0])?;
        }
    }
    let x_zero = scalar(b, x_zero)?;
    let x = centred(b, x, Some(x_zero), Side::Rows, I32)?;
    let y = centred(b, y, Some(y_zero), Side::Columns, I32)?;
    let mut sum = b.matmul(x, y)?;
    if let Some(addend) = addend {
        sum = b.binary(BinaryFn::Add, sum, addend)?;
    }
    let mut x_scale = scalar(b, x_scale)?;
    if alpha != 1.0 {
        x_scale = b.binary_scalar(BinaryFn::Mul, x_scale, alpha)?;
    }
    let y_scale = beside(b, y_scale, 2, Side::Columns)?;
    let out_scale = match out_scale {
        Some(scale) => Some(scalar(b, scale)?),
        None => None,
    };
    let reals = rescaled(b, sum, &[x_scale, y_scale], out_scale)?;
    let Some(out_zero) = out_zero else { return Ok(vec![reals]) };
    let to = b.dtype(out_zero);
    let out_zero = scalar(b, out_zero)?;
    Ok(vec![saturated(b, reals, Some(out_zero), to, true)?])
}

fn mat_mul_integer_to_float(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let lhs = (cx.input("A")?, cx.input("a_scale")?, cx.optional("a_zero_point"));
    let rhs = (cx.input("B")?, cx.input("b_scale")?, cx.optional("b_zero_point"));
    let bias = cx.optional("bias");
    let b = &mut *cx.b;
    let to = b.dtype(lhs.1);
    let y = scaled_product(b, lhs, rhs, bias)?;
    Ok(vec![b.cast(y, to)?])
}

fn dynamic_quantize_mat_mul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("A")?;
    let rhs = (cx.input("B")?, cx.input("b_scale")?, cx.optional("b_zero_point"));
    let bias = cx.optional("bias");
    let b = &mut *cx.b;
    let [x, scale, zero_point] = dynamically_quantized(b, x)?;
    Ok(vec![scaled_product(b, (x, scale, Some(zero_point)), rhs, bias)?])
}
