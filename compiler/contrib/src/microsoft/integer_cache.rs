//! Caches of keys and values in integers of 8 or 4 bits, with one scale, or one for each feature of a head.

use super::blockwise::unpacked;
use super::group_query::both;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, I8, U8};
use onnxc_ops::quantize::saturated;
use onnxc_ops::row::{
    BinaryFn, DType, Dim, NodeCx, Result, UnaryFn, ValueId, malformed, not_one_of, unsupported,
};

/// How elements are kept.
pub(super) struct Integers {
    /// In 4 bits two lie in a byte, the first in its lower half, each more by 8.
    bits: i64,
    /// Of keys and of values, to broadcast against `[B, heads, S, size]`.
    pub scales: [ValueId; 2],
}

/// The form of a node's caches; `None` where they are floats.
pub(super) fn form(cx: &mut NodeCx<'_, '_>) -> Result<Option<Integers>> {
    let mut per_channel = [false; 2];
    let mut quantized = [false; 2];
    for (at, name) in ["k_quant_type", "v_quant_type"].into_iter().enumerate() {
        (quantized[at], per_channel[at]) = match cx.str(name)?.as_str() {
            "NONE" | "" => (false, false),
            "PER_TENSOR" => (true, false),
            "PER_CHANNEL" => (true, true),
            other => return not_one_of(name, other, "NONE, PER_TENSOR, PER_CHANNEL"),
        };
    }
    let bits = cx.optional_int("kv_cache_bit_width")?.unwrap_or(0);
    let dtype = match (quantized, bits) {
        ([false, false], _) => cx.b.dtype(cx.input("query")?),
        ([true, true], 8) => I8,
        ([true, true], 4) => U8,
        ([true, true], other) => return not_one_of("kv_cache_bit_width", other, "8, 4"),
        _ => return unsupported("keys and values if only one of the two is quantized".to_string()),
    };
    for name in ["past_key", "past_value"] {
        if let Some(past) = cx.optional(name).filter(|&past| cx.b.dtype(past) != dtype) {
            return unsupported(format!("{name} {}, where {dtype} is kept", cx.b.ty(past)));
        }
    }
    let scales = both(cx, "k_scale", "v_scale")?;
    let Some(mut scales) = scales.filter(|_| quantized[0]) else {
        return match quantized[0] {
            true => malformed("caches are quantized, and k_scale and v_scale are missing".to_string()),
            false => Ok(None),
        };
    };
    let heads = usize::try_from(cx.int("kv_num_heads")?).unwrap_or(1);
    let b = &mut *cx.b;
    for (scale, per_channel) in scales.iter_mut().zip(per_channel) {
        let shape = match per_channel {
            false => vec![],
            true => {
                let count = b.ty(*scale).elements();
                vec![Dim::from(heads), Dim::ONE, b.divided(&count, heads, "scales must divide into heads")?]
            }
        };
        *scale = b.reshape(*scale, shape)?;
    }
    Ok(Some(Integers { bits, scales }))
}

impl Integers {
    /// New elements as they are kept.
    pub(super) fn kept(&self, b: &mut Builder<'_>, x: ValueId, scale: ValueId) -> Result<ValueId> {
        let x = b.cast(x, F32)?;
        let x = b.binary(BinaryFn::Div, x, scale)?;
        if self.bits == 8 {
            return saturated(b, x, None, I8, true);
        }
        let x = b.unary(UnaryFn::Round, x)?;
        let x = b.binary_scalar(BinaryFn::Max, x, -8.0)?;
        let x = b.binary_scalar(BinaryFn::Min, x, 7.0)?;
        let x = b.binary_scalar(BinaryFn::Add, x, 8.0)?;
        let mut shape = b.shape(x);
        shape[3] = b.divided(&shape[3], 2usize, "features of a head must divide into pairs")?;
        shape.push(Dim::from(2usize));
        let pairs = b.reshape(x, shape)?;
        let low = b.slice_axis(pairs, 4, Dim::ZERO, Dim::ONE)?;
        let high = b.slice_axis(pairs, 4, Dim::ONE, Dim::ONE)?;
        let high = b.binary_scalar(BinaryFn::Mul, high, 16.0)?;
        let bytes = b.binary(BinaryFn::Add, low, high)?;
        let bytes = b.squeeze(bytes, &[4])?;
        b.cast(bytes, U8)
    }

    /// What is kept as numbers of `dtype`.
    pub(super) fn real(
        &self,
        b: &mut Builder<'_>,
        x: ValueId,
        scale: ValueId,
        dtype: DType,
    ) -> Result<ValueId> {
        let mut x = x;
        if self.bits == 4 {
            x = unpacked(b, x, 4, &[0, 4])?;
        }
        let mut x = b.cast(x, F32)?;
        if self.bits == 4 {
            x = b.binary_scalar(BinaryFn::Sub, x, 8.0)?;
        }
        let y = b.binary(BinaryFn::Mul, x, scale)?;
        b.cast(y, dtype)
    }
}
