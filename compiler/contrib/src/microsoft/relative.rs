//! Biases of attention by relative position, and tokens without those that pad them.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F16, F32, I32, I64};
use onnxc_ir::graph::Op;
use onnxc_ops::AttrDefault::{Int, Required};
use onnxc_ops::attention::heads;
use onnxc_ops::matmul::product;
use onnxc_ops::row::{
    BinaryFn, CompareFn, DType, Dim, NodeCx, OpDef, ReduceFn, Result, UnaryFn, ValueId, malformed, opt, req,
    size_scalar, unsupported,
};
use onnxc_ops::{AttrKind, attr};

const HALVES: &[DType] = &[F32, F16];

pub const ROWS: &[OpDef] = &[
    own("RelativePositionBias", relative_position_bias)
        .inputs(&[req("bias_table", "T"), req("query_length", "U"), req("key_length", "U")])
        .outputs(&[req("output", "T")])
        .attributes(&[attr("is_bidirectional", Int(0)), attr("max_distance", Required(AttrKind::Int))])
        .types(&[("T", HALVES), ("U", &[I64])])
        .shapes(&["bias_table[N, H]", "count(query_length) = 1", "count(key_length) = 1"])
        .doc("biases of heads by buckets of distances"),
    own("GatedRelativePositionBias", gated_relative_position_bias)
        .inputs(&[
            req("query_layer", "T"),
            req("query_bias", "T"),
            req("rel_pos", "T"),
            req("weight", "T"),
            req("bias", "T"),
            req("eco_a", "T"),
            opt("token_offset", "M"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[attr("num_heads", Required(AttrKind::Int))])
        .types(&[("T", HALVES), ("M", &[I32])])
        .shapes(&[
            "query_layer[B, S, num_heads * E] | [S, num_heads * E]",
            "query_bias[num_heads * E]",
            "rel_pos[1, num_heads, S, S]",
            "weight[E, D]",
            "bias[D]",
            "D % 2 = 0",
            "eco_a[1, num_heads, 1, 1]",
        ])
        .doc("biases by relative position, times gates of queries"),
    own("RestorePadding", restore_padding)
        .inputs(&[req("input", "T"), req("token_offset", "M")])
        .outputs(&[req("output", "T")])
        .types(&[("T", HALVES), ("M", &[I32])])
        .shapes(&["input[N, H]", "token_offset[B, S]", "N <= B * S"])
        .doc("tokens at their places among zeros"),
];

/// Half of the buckets are of one distance each, the others of distances that grow by a factor up to `max_distance`.
fn relative_position_bias(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let table = cx.input("bias_table")?;
    let (queries, keys) = (size_scalar(cx, "query_length")?, size_scalar(cx, "key_length")?);
    let both_ways = cx.int("is_bidirectional")? != 0;
    let furthest = cx.int("max_distance")?;
    let b = &mut *cx.b;
    let Some(count) = b.shape(table)[0].as_const() else {
        return unsupported(format!("a number of buckets known only at run time, {}", b.ty(table)));
    };
    let buckets = if both_ways { count / 2 } else { count };
    let exact = buckets / 2;
    if exact < 1 || furthest <= exact {
        return malformed(format!("max_distance {furthest} of {count} buckets"));
    }
    let query = b.iota(vec![queries, Dim::ONE], 0)?;
    let key = b.iota(vec![Dim::ONE, keys], 1)?;
    let behind = b.binary(BinaryFn::Sub, query, key)?;
    let zero = b.scalar(I64, 0.0);
    let (distance, mut bucket) = if both_ways {
        let after = b.compare(CompareFn::Lt, behind, zero)?;
        let more = b.scalar(I64, buckets as f64);
        (b.unary(UnaryFn::Abs, behind)?, Some(b.select(after, more, zero)?))
    } else {
        (b.binary(BinaryFn::Max, behind, zero)?, None)
    };
    let near_limit = b.scalar(I64, exact as f64);
    let near = b.compare(CompareFn::Lt, distance, near_limit)?;
    let real = b.cast(distance, F32)?;
    let real = b.binary_scalar(BinaryFn::Max, real, 1.0)?;
    let real = b.binary_scalar(BinaryFn::Div, real, exact as f64)?;
    let logarithm = b.unary(UnaryFn::Log, real)?;
    let span = (furthest as f32 / exact as f32).ln();
    let part = b.binary_scalar(BinaryFn::Div, logarithm, f64::from(span))?;
    let part = b.binary_scalar(BinaryFn::Mul, part, (buckets - exact) as f64)?;
    let far = b.cast(part, I64)?;
    let far = b.binary_scalar(BinaryFn::Add, far, exact as f64)?;
    let most = b.scalar(I64, (buckets - 1) as f64);
    let far = b.binary(BinaryFn::Min, far, most)?;
    let own = b.select(near, distance, far)?;
    bucket = Some(match bucket {
        Some(more) => b.binary(BinaryFn::Add, own, more)?,
        None => own,
    });
    let taken = b.emit1(Op::Gather { axis: 0 }, &[table, bucket.unwrap_or(own)])?;
    let y = b.transpose(taken, &[2, 0, 1])?;
    Ok(vec![b.unsqueeze(y, &[0])?])
}

fn gated_relative_position_bias(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.optional("token_offset").is_some() || cx.b.rank(cx.input("query_layer")?) != 3 {
        return unsupported("token_offset: queries without those that pad them".to_string());
    }
    let count = super::group_query::count(cx, "num_heads")?;
    let mut given = [cx.input("query_layer")?; 6];
    for (at, slot) in given.iter_mut().enumerate() {
        *slot = cx.input(at)?;
    }
    let b = &mut *cx.b;
    let to = b.dtype(given[0]);
    for slot in &mut given {
        *slot = b.cast(*slot, F32)?;
    }
    let [query, query_bias, biases, weight, bias, scale] = given;
    let query = b.binary(BinaryFn::Add, query, query_bias)?;
    let query = heads(b, query, Some(count))?;
    let gates = product(b, query, weight)?;
    let gates = b.binary(BinaryFn::Add, gates, bias)?;
    let mut shape = b.shape(gates);
    let half = b.divided(&shape[3], 2usize, "gates must divide into halves")?;
    shape[3] = Dim::from(2usize);
    shape.push(half);
    let gates = b.reshape(gates, shape)?;
    let gates = b.reduce(ReduceFn::Sum, gates, &[4])?;
    let gates = b.squeeze(gates, &[4])?;
    let gates = b.unary(UnaryFn::Sigmoid, gates)?;
    let update = b.slice_axis(gates, 3, Dim::ZERO, Dim::ONE)?;
    let reset = b.slice_axis(gates, 3, Dim::ONE, Dim::ONE)?;
    let factor = b.binary(BinaryFn::Mul, reset, scale)?;
    let factor = b.binary_scalar(BinaryFn::Sub, factor, 1.0)?;
    let factor = b.binary(BinaryFn::Mul, update, factor)?;
    let factor = b.binary_scalar(BinaryFn::Add, factor, 2.0)?;
    let y = b.binary(BinaryFn::Mul, factor, biases)?;
    Ok(vec![b.cast(y, to)?])
}

/// `token_offset` names the places of all tokens, then those of what pads them.
fn restore_padding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, places) = (cx.input("input")?, cx.input("token_offset")?);
    Ok(vec![restored(cx.b, x, places)?])
}

/// Tokens `[N, H]` at the first of the places `[B, S]`, i32, among zeros: `[B, S, H]`.
pub(super) fn restored(b: &mut Builder<'_>, x: ValueId, places: ValueId) -> Result<ValueId> {
    let (dtype, shape, outer) = (b.dtype(x), b.shape(x), b.shape(places));
    let [count, width] = shape.as_slice() else { return malformed(format!("tokens {}", b.ty(x))) };
    let all = outer[0].clone() * outer[1].clone();
    let places = b.reshape(places, vec![all.clone()])?;
    let places = b.cast(places, I64)?;
    let own = b.slice_axis(places, 0, Dim::ZERO, count.clone())?;
    let own = b.unsqueeze(own, &[1])?;
    let zero = b.scalar(dtype, 0.0);
    let zeros = b.expand(zero, vec![all, width.clone()])?;
    let y = b.emit1(Op::ScatterNd { combine: None }, &[zeros, own, x])?;
    b.reshape(y, vec![outer[0].clone(), outer[1].clone(), width.clone()])
}
