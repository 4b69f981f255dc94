//! Operators of the domain `com.microsoft`, which ONNX Runtime defines: those of its quantised models, and what its optimizer
//! and its exporters write. They are made of the same parts as the quantised operators of `ai.onnx`. Sums of integer products
//! are exact, and a result is rounded once, to the nearest integer, half to even.

pub mod attention;
pub mod blockwise;
pub mod branches;
pub mod byte_blocks;
pub mod crops;
pub mod elementwise;
pub mod fused;
pub mod gated_delta;
pub mod gates;
pub mod generation;
pub mod group_query;
pub mod groups;
mod integer_cache;
pub mod layers;
pub mod linear;
pub mod masked_decoder;
pub mod matmul;
pub mod moe;
pub mod multi_head;
pub mod nchwc;
pub mod ngrams;
pub mod numbers;
pub mod packed;
pub mod recurrent;
pub mod relative;
pub mod rotary;
mod sequences;
pub mod sparse;
pub mod standard;
pub mod text;
pub mod training;
pub mod windows;
pub mod words;

use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType::{BF16, F16, F32, I8, U8};
use onnxc_ir::graph::{DType, ValueId};
use onnxc_ir::scalar::BinaryFn;
use onnxc_ops::quantize::{is_zero, saturated};
use onnxc_ops::{LowerFn, OpDef, op};

const DOMAIN: &str = "com.microsoft";

/// A row of the domain, in its only version.
const fn own(name: &'static str, lower: LowerFn) -> OpDef {
    op(name, 1, lower).domain(DOMAIN)
}

const BYTES: &[DType] = &[I8, U8];
const FLOATS: &[DType] = &[F32, F16, BF16];

/// A parameter of one element, as a scalar.
fn scalar(b: &mut Builder<'_>, value: ValueId) -> Result<ValueId> {
    b.reshape(value, vec![])
}

/// `x - zero_point` as `dtype`, with one zero point.
fn shifted(b: &mut Builder<'_>, x: ValueId, zero_point: Option<ValueId>, dtype: DType) -> Result<ValueId> {
    let x = b.cast(x, dtype)?;
    match zero_point.filter(|&value| !is_zero(b, value)) {
        None => Ok(x),
        Some(zero_point) => {
            let zero_point = b.cast(zero_point, dtype)?;
            let zero_point = scalar(b, zero_point)?;
            b.binary(BinaryFn::Sub, x, zero_point)
        }
    }
}

/// `(x - zero_point) * scale`, with one scale and zero point.
fn real(b: &mut Builder<'_>, x: ValueId, scale: ValueId, zero_point: Option<ValueId>) -> Result<ValueId> {
    let x = shifted(b, x, zero_point, F32)?;
    let scale = scalar(b, scale)?;
    b.binary(BinaryFn::Mul, x, scale)
}

/// `saturate(round(x / scale) + zero_point)` of an f32 `x`, with one scale and zero point.
fn quantized(
    b: &mut Builder<'_>,
    x: ValueId,
    scale: ValueId,
    zero_point: Option<ValueId>,
    to: DType,
) -> Result<ValueId> {
    let scale = scalar(b, scale)?;
    let quotient = b.binary(BinaryFn::Div, x, scale)?;
    let zero_point = match zero_point {
        Some(value) => Some(scalar(b, value)?),
        None => None,
    };
    saturated(b, quotient, zero_point, to, true)
}

#[cfg(test)]
mod tests;
