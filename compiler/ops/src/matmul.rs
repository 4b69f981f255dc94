//! Matrix products.

use super::AttrDefault::{Float, Int};
use super::types::*;
use super::{NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{BF16, F16, F32, F64, I32, I64, U32, U64};
use onnxc_ir::graph::{Dim, Op, RhsLayout, ValueId};
use onnxc_ir::scalar::BinaryFn;

pub const ROWS: &[OpDef] = &[
    MAT_MUL,
    MAT_MUL_9,
    MAT_MUL_9.since(13).types(&[("T", &[F32, F64, F16, BF16, I32, I64, U32, U64])]),
    GEMM,
    GEMM.since(6),
    GEMM_7,
    GEMM_9,
    GEMM_11,
    GEMM_11.since(13).types(&[("T", &[F32, F64, F16, BF16, I32, I64, U32, U64])]),
];

const MAT_MUL: OpDef = op("MatMul", 1, mat_mul)
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .shapes(&["A[K] | [P.., M, K]", "B[K] | [Q.., K, N]", "broadcast(P, Q)"])
    .doc("matrix product as numpy.matmul");

const MAT_MUL_9: OpDef = MAT_MUL.since(9).types(&[("T", &[F32, F64, F16, I32, I64, U32, U64])]);

const GEMM: OpDef = op("Gemm", 1, gemm)
    .inputs(&[req("A", "T"), req("B", "T"), req("C", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("alpha", Float(1.0)),
        attr("beta", Float(1.0)),
        attr("broadcast", Int(0)),
        attr("transA", Int(0)),
        attr("transB", Int(0)),
    ])
    .types(&[("T", FLOATS_F16)])
    .shapes(&[
        "if transA = 0: A[M, K]",
        "if transA != 0: A[K, M]",
        "if transB = 0: B[K, N]",
        "if transB != 0: B[N, K]",
        "broadcast(C -> [M, N])",
    ])
    .doc("alpha * A * B + beta * C");

const GEMM_7: OpDef = GEMM.since(7).attributes(&[
    attr("alpha", Float(1.0)),
    attr("beta", Float(1.0)),
    attr("transA", Int(0)),
    attr("transB", Int(0)),
]);

const GEMM_9: OpDef = GEMM_7.since(9).types(&[("T", &[F32, F64, F16, I32, I64, U32, U64])]);

const GEMM_11: OpDef = GEMM_9.since(11).inputs(&[req("A", "T"), req("B", "T"), opt("C", "T")]);

fn mat_mul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("A")?, cx.input("B")?);
    Ok(vec![product(cx.b, x, y)?])
}

/// `numpy.matmul`. A right operand without batch axes stays one `[k, n]` matrix under all rows of the left.
pub fn product(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
    let (x_rank, y_rank) = (b.rank(x), b.rank(y));
    if x_rank == 0 || y_rank == 0 {
        return Err(Error::malformed(Stage::Infer, format!("matrix product of {} and {}", b.ty(x), b.ty(y))));
    }
    let lhs = if x_rank == 1 { b.unsqueeze(x, &[0])? } else { x };
    let rhs = if y_rank == 1 { b.unsqueeze(y, &[1])? } else { y };
    let out = batched(b, lhs, rhs)?;
    let rank = b.rank(out);
    let mut dropped = Vec::new();
    if x_rank == 1 {
        dropped.push(rank - 2);
    }
    if y_rank == 1 {
        dropped.push(rank - 1);
    }
    b.squeeze(out, &dropped)
}

fn batched(b: &mut Builder<'_>, lhs: ValueId, rhs: ValueId) -> Result<ValueId> {
    let (lhs_rank, rhs_rank) = (b.rank(lhs), b.rank(rhs));
    let rhs_shape = b.shape(rhs);
    let lead = &rhs_shape[..rhs_rank - 2];
    if lhs_rank >= rhs_rank && lead.iter().all(|dim| *dim == Dim::ONE) {
        let rhs = b.reshape(rhs, rhs_shape[rhs_rank - 2..].to_vec())?;
        let op = Op::Contract { batch: 0, m: lhs_rank - 1, k: 1, rhs: RhsLayout::Plain };
        return b.emit1(op, &[lhs, rhs]);
    }
    let rank = lhs_rank.max(rhs_rank);
    let lhs = b.unsqueeze(lhs, &vec![0; rank - lhs_rank])?;
    let rhs = b.unsqueeze(rhs, &vec![0; rank - rhs_rank])?;
    b.matmul(lhs, rhs)
}

pub fn gemm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (mut x, mut y, addend) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let (alpha, beta) = (cx.float("alpha")?, cx.float("beta")?);
    let (transpose_x, transpose_y) = (cx.int("transA")? != 0, cx.int("transB")? != 0);
    let b = &mut *cx.b;
    if b.rank(x) != 2 || b.rank(y) != 2 {
        return Err(Error::malformed(Stage::Infer, format!("Gemm of {} and {}", b.ty(x), b.ty(y))));
    }
    if transpose_x {
        x = b.transpose(x, &[1, 0])?;
    }
    if transpose_y {
        y = b.transpose(y, &[1, 0])?;
    }
    x = scaled_product(b, x, y, alpha)?;
    match addend {
        Some(addend) if beta != 0.0 => {
            let shape = b.shape(x);
            let addend = scaled(b, addend, beta)?;
            let sum = b.binary(BinaryFn::Add, x, addend)?;
            if b.rank(sum) != shape.len() {
                return Err(Error::malformed(
                    Stage::Infer,
                    format!("C {} does not broadcast to {shape:?}", b.ty(addend)),
                ));
            }
            Ok(vec![sum])
        }
        _ => Ok(vec![x]),
    }
}

/// `alpha` times `numpy.matmul`.
pub fn scaled_product(b: &mut Builder<'_>, x: ValueId, y: ValueId, alpha: f32) -> Result<ValueId> {
    // A factor of a constant operand costs nothing at run time. One of 16 bits would be rounded again, by more than the sum is.
    let takes = matches!(b.dtype(x), F32 | F64);
    if b.graph.is_constant(y) && takes {
        let y = scaled(b, y, alpha)?;
        product(b, x, y)
    } else if b.graph.is_constant(x) && takes {
        let x = scaled(b, x, alpha)?;
        product(b, x, y)
    } else {
        let sum = product(b, x, y)?;
        scaled(b, sum, alpha)
    }
}

/// `x * factor`; integers take integer factors only.
fn scaled(b: &mut Builder<'_>, x: ValueId, factor: f32) -> Result<ValueId> {
    if factor == 1.0 {
        return Ok(x);
    }
    if b.dtype(x).is_int() && factor.fract() != 0.0 {
        return Err(Error::unsupported(Stage::Infer, format!("factor {factor} of the integers {}", b.ty(x))));
    }
    b.binary_scalar(BinaryFn::Mul, x, f64::from(factor))
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    #[test]
    fn vectors_matrices_and_batches() {
        let case = Case::new("MatMul", 13).ramp(&[3], 1).ramp(&[3], 2);
        case.gives(0, &[], &[-0.8125]);
        let case = Case::new("MatMul", 13).ramp(&[3], 1).ramp(&[3, 2], 2);
        case.gives(0, &[2], &[0.875, 0.5625]);
        let case = Case::new("MatMul", 13).ramp(&[2, 3], 1).ramp(&[3], 2);
        case.gives(0, &[2], &[-0.8125, -0.9375]);
        let case = Case::new("MatMul", 13).ramp(&[2, 2, 3], 1).ramp(&[3, 2], 2);
        case.gives(0, &[2, 2, 2], &[0.875, 0.5625, 0.8125, 0.5625, 0.75, 0.5625, 0.6875, 0.5625]);
        let case = Case::new("MatMul", 13).ramp(&[2, 1, 2, 3], 1).ramp(&[2, 3, 2], 2);
        case.gives(
            0,
            &[2, 2, 2, 2],
            &[
                0.875, 0.5625, 0.8125, 0.5625, 1.0625, 0.0625, 0.6875, 0.4375, 0.75, 0.5625, 0.6875, 0.5625,
                0.3125, 0.8125, -0.0625, 1.1875,
            ],
        );
        let case = Case::new("MatMul", 13).ramp(&[2, 3], 1).ramp(&[2, 3, 2], 2);
        case.gives(0, &[2, 2, 2], &[0.875, 0.5625, 0.8125, 0.5625, 1.0625, 0.0625, 0.6875, 0.4375]);
        let case = Case::new("MatMul", 13).ramp(&[3], 1).ramp(&[2, 3, 2], 2);
        case.gives(0, &[2, 2], &[0.875, 0.5625, 1.0625, 0.0625]);
        let case = Case::new("MatMul", 13).ramp(&[2, 2, 3], 1).ramp(&[1, 3, 2], 2);
        case.gives(0, &[2, 2, 2], &[0.875, 0.5625, 0.8125, 0.5625, 0.75, 0.5625, 0.6875, 0.5625]);
    }

    #[test]
    fn gemm_factors_transposes_and_broadcast() {
        let case = Case::new("Gemm", 13)
            .ramp(&[3, 2], 1)
            .constant_ramp(&[4, 3], 2)
            .constant_ramp(&[4], 3)
            .float("alpha", 0.5)
            .float("beta", 2.0)
            .int("transA", 1)
            .int("transB", 1);
        case.gives(0, &[2, 4], &[2.34375, 0.25, -1.84375, 1.90625, 2.4375, 0.375, -1.6875, 0.71875]);
        let case = Case::new("Gemm", 11).ramp(&[2, 3], 1).ramp(&[3, 2], 2).float("alpha", 2.0);
        case.gives(0, &[2, 2], &[1.75, 1.125, 1.625, 1.125]);
        let case = Case::new("Gemm", 7).ramp(&[2, 3], 1).ramp(&[3, 2], 2).ramp(&[2, 1], 3).float("beta", 0.5);
        case.gives(0, &[2, 2], &[1.375, 1.0625, 0.8125, 0.5625]);
    }
}
