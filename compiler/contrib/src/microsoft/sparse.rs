//! SparseAttention: attention of a decoder to some blocks of its past alone.

use super::group_query::{both, operands, with_tokens};
use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, I32, I64};
use onnxc_ir::graph::Op;
use onnxc_ops::attention::{cache, merged_heads, rotated, scores, weighted};
use onnxc_ops::row::*;
use onnxc_ops::softmax::softmax_along;

pub const ROWS: &[OpDef] = &[own("SparseAttention", sparse_attention)
    .inputs(&[
        req("query", "T"),
        opt("key", "T"),
        opt("value", "T"),
        req("past_key", "T"),
        req("past_value", "T"),
        req("block_row_indices", "M"),
        req("block_col_indices", "M"),
        req("total_sequence_length", "M"),
        req("key_total_sequence_lengths", "M"),
        opt("cos_cache", "T"),
        opt("sin_cache", "T"),
    ])
    .outputs(&[req("output", "T"), req("present_key", "T"), req("present_value", "T")])
    .attributes(&[
        optional("do_rotary", Int),
        required("kv_num_heads", Int),
        required("num_heads", Int),
        optional("rotary_interleaved", Int),
        optional("scale", Float),
        required("sparse_block_size", Int),
    ])
    .types(&[("T", FLOATS), ("M", &[I32])])
    .shapes(&[
        "num_heads % kv_num_heads = 0",
        "if key: query[B, S, num_heads * E]",
        "if !key: query[B, S, (num_heads + 2 * kv_num_heads) * E]",
        "key[B, S, kv_num_heads * E]",
        "value[B, S, kv_num_heads * E]",
        "past_key[B, kv_num_heads, P, E]",
        "past_value[B, kv_num_heads, P, E]",
        "block_row_indices[L, _]",
        "block_col_indices[L, _]",
        "num_heads % L = 0",
        "count(total_sequence_length) = 1",
        "key_total_sequence_lengths[B]",
        "cos_cache[M, C]",
        "sin_cache[M, C]",
        "2 * C <= E",
    ])
    .doc("attention of a decoder to blocks of its past that a layout of each head picks")];

fn sparse_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let [mut query, mut key, value] = operands(cx)?;
    let (past_key, past_value) = (cx.input("past_key")?, cx.input("past_value")?);
    let block = match cx.int("sparse_block_size")? {
        block @ 1.. => block,
        other => return malformed(format!("sparse_block_size is {other}; it must be 1 or more")),
    };
    let scale = cx.optional_float("scale")?.filter(|&scale| scale != 0.0);
    let (dtype, steps) = (cx.b.dtype(query), cx.b.shape(query)[2].clone());
    let room = cx.b.shape(past_key)[2].clone();
    let longest = cx.input("total_sequence_length")?;
    let longest = to_scalar(cx, longest)?;
    let totals = cx.input("key_total_sequence_lengths")?;
    let (rotates, turned) =
        (cx.optional_int("do_rotary")?.unwrap_or(0) != 0, both(cx, "cos_cache", "sin_cache")?);
    let interleaved = cx.optional_int("rotary_interleaved")?.unwrap_or(0) != 0;

    // In a first call the tokens are all that there are.
    let b = &mut *cx.b;
    let longest = b.cast(longest, I64)?;
    let (new, none) = (b.dim_scalar(&steps)?, b.scalar(I64, 0.0));
    let is_first = b.compare(CompareFn::Eq, longest, new)?;
    let totals = b.cast(totals, I64)?;
    let behind = b.binary(BinaryFn::Sub, totals, new)?;
    let behind = b.select(is_first, none, behind)?;
    let behind = b.unsqueeze(behind, &[1])?;
    let step = b.iota(vec![Dim::ONE, steps], 1)?;
    let places = b.binary(BinaryFn::Add, behind, step)?;
    if rotates {
        let Some([cos, sin]) = turned else {
            return malformed("do_rotary without cos_cache and sin_cache");
        };
        let half = b.shape(cos)[1].clone();
        let angles = [cache(b, cos, Some(places))?, cache(b, sin, Some(places))?];
        query = rotated(b, query, angles, &half, interleaved)?;
        key = rotated(b, key, angles, &half, interleaved)?;
    }
    let key = with_tokens(b, Some(past_key), key, behind, &room, true)?;
    let value = with_tokens(b, Some(past_value), value, behind, &room, true)?;
    let found = scores(b, query, key, scale)?;
    let (starts, columns) = (cx.input("block_row_indices")?, cx.input("block_col_indices")?);
    let b = &mut *cx.b;
    let seen = visible(b, [starts, columns], places, &room, block)?;
    // Layouts go round among the heads.
    let shape = b.shape(found);
    let kinds = b.shape(starts)[0].clone();
    let rounds = b.divided(&shape[1], kinds.clone(), "heads must divide into rounds of layouts")?;
    let mut split = shape.clone();
    split.splice(1..2, [rounds, kinds]);
    let found = b.reshape(found, split)?;
    let seen = b.unsqueeze(seen, &[1])?;
    let never = b.scalar(dtype, f64::NEG_INFINITY);
    let found = b.select(seen, found, never)?;
    let found = b.reshape(found, shape)?;
    let weights = softmax_along(b, found, 3)?;
    let y = weighted(b, weights, value, dtype)?;
    Ok(vec![merged_heads(b, y)?, key, value])
}

/// Which keys the queries at `places`, i64 `[B, S]`, see: those of no later place, in the blocks of their row of a layout; bool
/// `[B, layouts, S, room]`. Rows of layouts are in compressed form: where the columns of each begin, and the columns. A run in which
/// rows begin before those ahead of them, or outside of the columns, or in which a row has a column that there is not, fails.
fn visible(
    b: &mut Builder<'_>,
    [starts, columns]: [ValueId; 2],
    places: ValueId,
    room: &Dim,
    block: i64,
) -> Result<ValueId> {
    let (kinds, rows) = (b.shape(starts)[0].clone(), b.shape(starts)[1].clone() - Dim::ONE);
    let count = b.shape(columns)[1].clone();
    let (starts, columns) = (b.cast(starts, I64)?, b.cast(columns, I64)?);
    // The row of an entry is the number of ends that are not after it.
    let ends = b.slice_axis(starts, 1, Dim::ONE, rows.clone())?;
    let ends = b.unsqueeze(ends, &[1])?;
    let entry = b.iota(vec![Dim::ONE, count.clone(), Dim::ONE], 1)?;
    let passed = b.compare(CompareFn::Le, ends, entry)?;
    let passed = b.cast(passed, I64)?;
    let row = b.reduce(ReduceFn::Sum, passed, &[2])?;
    let row = b.squeeze(row, &[2])?;
    let (width, all) = (b.dim_scalar(&rows)?, b.dim_scalar(&(rows.clone() * rows.clone()))?);
    let place = b.binary(BinaryFn::Mul, row, width)?;
    let place = b.binary(BinaryFn::Add, place, columns)?;
    let is_column = within(b, columns, width)?;
    // A place that there is not: storing there fails, as by any index that is outside.
    let outside = b.binary_scalar(BinaryFn::Add, all, 1.0)?;
    let place = b.select(is_column, place, outside)?;
    // Entries behind the last row go to one more place.
    let inside = b.compare(CompareFn::Lt, row, width)?;
    let place = b.select(inside, place, all)?;
    let first = b.slice_axis(starts, 1, Dim::ZERO, rows.clone())?;
    let next = b.slice_axis(starts, 1, Dim::ONE, rows.clone())?;
    let follows = b.compare(CompareFn::Le, first, next)?;
    let limit = b.dim_scalar(&(count.clone() + Dim::ONE))?;
    let begins = within(b, starts, limit)?;
    let [follows, begins] = [follows, begins].map(|each| b.reduce(ReduceFn::And, each, &[1]));
    let in_order = b.binary(BinaryFn::And, follows?, begins?)?;
    let place = b.select(in_order, place, outside)?;
    let (no, yes) = (b.scalar(Bool, 0.0), b.scalar(Bool, 1.0));
    let area = rows.clone() * rows.clone();
    let no = b.expand(no, vec![kinds.clone(), area.clone() + Dim::ONE])?;
    let yes = b.expand(yes, vec![kinds.clone(), count])?;
    let layout = b.emit1(Op::ScatterElements { axis: 1, combine: None }, &[no, place, yes])?;
    let layout = b.slice_axis(layout, 1, Dim::ZERO, area)?;
    let layout = b.reshape(layout, vec![kinds, rows.clone(), rows])?;

    let token = b.iota(vec![room.clone()], 0)?;
    let of_key = b.binary_scalar(BinaryFn::Div, token, block as f64)?;
    let of_query = b.binary_scalar(BinaryFn::Div, places, block as f64)?;
    let layout = b.emit1(Op::Gather { axis: 2 }, &[layout, of_key])?;
    let layout = b.emit1(Op::Gather { axis: 1 }, &[layout, of_query])?;
    let layout = b.transpose(layout, &[1, 0, 2, 3])?;
    let shape = b.shape(places);
    let places = b.reshape(places, vec![shape[0].clone(), Dim::ONE, shape[1].clone(), Dim::ONE])?;
    let before = b.compare(CompareFn::Le, token, places)?;
    b.binary(BinaryFn::And, layout, before)
}

/// Whether indices are from 0 to `size`, without it.
fn within(b: &mut Builder<'_>, index: ValueId, size: ValueId) -> Result<ValueId> {
    let zero = b.scalar(I64, 0.0);
    let (low, high) = (b.compare(CompareFn::Le, zero, index)?, b.compare(CompareFn::Lt, index, size)?);
    b.binary(BinaryFn::And, low, high)
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;

    /// Two rows of blocks of one key: the first sees itself, the second what the layout says.
    #[test]
    fn rows_of_a_layout_follow_each_other() {
        let of = |starts: &[i32], columns: &[i32]| {
            let tokens = |first: f32| [first, first + 1.0];
            let sparse = crate::tests::case(DOMAIN, "SparseAttention", 1)
                .outputs(3)
                .int("num_heads", 1)
                .int("kv_num_heads", 1)
                .int("sparse_block_size", 1);
            let sparse = sparse.float("scale", 1.0).input::<f32>(&[1, 2, 1], &[0.0, 0.0]);
            let sparse = sparse.input::<f32>(&[1, 2, 1], &tokens(1.0)).input::<f32>(&[1, 2, 1], &tokens(3.0));
            let sparse = sparse.input::<f32>(&[1, 1, 2, 1], &[0.0; 2]).input::<f32>(&[1, 1, 2, 1], &[0.0; 2]);
            let sparse = sparse.input::<i32>(&[1, 3], starts).input::<i32>(&[1, columns.len()], columns);
            sparse.input::<i32>(&[1], &[2]).input::<i32>(&[1], &[2])
        };
        of(&[0, 1, 3], &[0, 0, 1]).gives(0, &[1, 2, 1], &[3.0, 3.5]);
        of(&[0, 1, 2], &[0, 1, -1]).gives(0, &[1, 2, 1], &[3.0, 4.0]);
        for (starts, columns) in
            [([0, 2, 1], [0, 0, 1]), ([0, 1, 4], [0, 0, 1]), ([-1, 1, 3], [0, 0, 1]), ([0, 1, 3], [0, 0, 2])]
        {
            let message = of(&starts, &columns).run().unwrap_err().message;
            assert!(message.contains("the indices that follow from"), "{starts:?} {columns:?}: {message}");
        }
    }
}
