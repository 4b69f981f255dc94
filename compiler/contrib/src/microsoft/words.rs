//! Operators of com.microsoft for words of characters, for tokens of drafts, and for paths through costs.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{Bool, F32, I32, I64};
use onnxc_ir::graph::{Op, Requirement, RhsLayout, Tensor};
use onnxc_ops::control::written::Written;
use onnxc_ops::pool::pool_geometry;
use onnxc_ops::row::*;
use onnxc_ops::spatial::{lowest, windows};

/// The longest run of tokens that is looked for.
const MOST_RUN: i64 = 64;

pub const ROWS: &[OpDef] = &[
    own("WordConvEmbedding", word_conv_embedding)
        .inputs(&[req("Sequence", "T"), req("W", "T1"), req("B", "T1"), req("C", "T1")])
        .outputs(&[req("Y", "T1")])
        .attributes(&[
            optional("char_embedding_size", Int),
            optional("conv_window_size", Int),
            optional("embedding_size", Int),
        ])
        .types(&[("T", &[I32]), ("T1", &[F32])])
        .shapes(&[
            "Sequence[_, _]",
            "W[F, 1, K, E]",
            "B[F]",
            "C[_, E]",
            "char_embedding_size = E",
            "conv_window_size = K",
            "embedding_size = F",
        ])
        .doc("vectors of words: a convolution over embedded characters, and its maxima"),
    own("MaxpoolWithMask", max_pool_with_mask)
        .inputs(&[req("X", "T"), req("M", "tensor(int32)")])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            string("auto_pad", "NOTSET"),
            optional("kernel_shape", Ints),
            optional("pads", Ints),
            int("storage_order", 0),
            optional("strides", Ints),
        ])
        .types(&[("T", &[F32])])
        .shapes(&["X[B, C, D..]", "M[B|1, C|1, D..]"])
        .doc("maxima of windows, whose lines end where the mask is 0"),
    own("BifurcationDetector", bifurcation_detector)
        .inputs(&[
            req("src_tokens", "T"),
            req("cur_tokens", "T"),
            req("prev_suffix_match_idx", "T"),
            opt("pred_tokens", "T"),
        ])
        .outputs(&[req("tokens", "T"), req("suffix_match_idx", "T")])
        .attributes(&[int("max_ngram_size", 3), int("min_ngram_size", 1)])
        .types(&[("T", &[I64])])
        .shapes(&["src_tokens[_]", "cur_tokens[_]", "count(prev_suffix_match_idx) = 1", "pred_tokens[_]"])
        .doc("tokens of a draft as far as they are those of a source, and where the source goes on"),
    own("DynamicTimeWarping", dynamic_time_warping)
        .inputs(&[req("input", "F")])
        .outputs(&[req("output", "I")])
        .types(&[("F", &[F32]), ("I", &[I32])])
        .shapes(&["input[_, _] | [1, _, _]"])
        .doc("the path of the least sum through a matrix of costs"),
    own("RemovePadding", remove_padding)
        .inputs(&[req("input", "T"), req("sequence_token_count", "M")])
        .outputs(&[
            req("output", "T"),
            req("token_offset", "M"),
            req("cumulated_seq_len", "M"),
            req("max_seq_len", "M"),
        ])
        .types(&[("T", &[F32, DType::F16]), ("M", &[I32])])
        .shapes(&["input[B, S, _]", "sequence_token_count[B]"])
        .doc("the tokens that do not pad, and their places"),
];

/// A word ends with its last character above 0, and has windows from its start to that one. One of none gives zeros.
fn word_conv_embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (words, weights, bias, table) =
        (cx.input("Sequence")?, cx.input("W")?, cx.input("B")?, cx.input("C")?);
    let b = &mut *cx.b;
    let shape = b.shape(weights);
    let (filters, width) = (shape[0].clone(), shape[2].clone());
    let count = b.shape(words)[0].clone();
    let zero = b.scalar(I32, 0.0);
    let some = b.compare(CompareFn::Gt, words, zero)?;
    let first = b.slice_axis(some, 1, Dim::ZERO, Dim::ONE)?;
    let length = b.cast(some, I64)?;
    let length = b.reduce(ReduceFn::Sum, length, &[1])?;
    let least = b.dim_scalar(&width)?;
    let length = b.binary(BinaryFn::Max, length, least)?;

    let embedded = b.emit1(Op::Gather { axis: 0 }, &[table, words])?;
    let slices = windows(b, embedded, 1, &[width], &[1], &[1])?;
    let kernel = b.squeeze(weights, &[1])?;
    let kernel = b.transpose(kernel, &[1, 2, 0])?;
    let y = b.emit1(Op::Contract { batch: 0, m: 2, k: 2, rhs: RhsLayout::Plain }, &[slices, kernel])?;
    let y = b.binary(BinaryFn::Add, y, bias)?;
    let y = b.unary(UnaryFn::Tanh, y)?;
    let start = b.iota(vec![Dim::ONE, b.shape(y)[1].clone()], 1)?;
    let end = b.binary(BinaryFn::Add, start, least)?;
    let inside = b.compare(CompareFn::Le, end, length)?;
    let inside = b.unsqueeze(inside, &[2])?;
    let nothing = b.scalar(F32, f64::NEG_INFINITY);
    let y = b.select(inside, y, nothing)?;
    let y = b.reduce(ReduceFn::Max, y, &[1])?;
    let y = b.reshape(y, vec![count, filters])?;
    let zero = b.scalar(F32, 0.0);
    Ok(vec![b.select(first, y, zero)?])
}

/// Elements of a line of a window, along the last axis, count up to the first one that the mask hides. The first element of
/// all, where there are several axes, is never hidden.
fn max_pool_with_mask(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, mask) = (cx.input("X")?, cx.input("M")?);
    let geometry = pool_geometry(cx, x)?;
    let b = &mut *cx.b;
    let (rank, spatial) = (b.rank(x), geometry.kernel.len());
    let zero = b.scalar(I32, 0.0);
    let mut seen = b.compare(CompareFn::Ne, mask, zero)?;
    if spatial > 1 {
        let sizes = b.shape(mask)[2..].to_vec();
        let mut first = None;
        for axis in 0..spatial {
            let place = index_of(b, &sizes, axis)?;
            let origin = b.scalar(I64, 0.0);
            let is_first = b.compare(CompareFn::Eq, place, origin)?;
            first = Some(match first {
                Some(first) => b.binary(BinaryFn::And, first, is_first)?,
                None => is_first,
            });
        }
        if let Some(first) = first {
            seen = b.binary(BinaryFn::Or, seen, first)?;
        }
    }
    let seen = b.cast(seen, I32)?;
    // What pads hides nothing behind it, and is less than all else.
    let (one, least) = (b.scalar(I32, 1.0), b.scalar(F32, lowest(F32)));
    let seen = geometry.pad(b, seen, 2, one)?;
    let x = geometry.pad(b, x, 2, least)?;
    let (seen, x) = (geometry.windows(b, seen, 2)?, geometry.windows(b, x, 2)?);
    let line = rank + spatial - 1;
    let cumulate = Op::Cumulate { op: ReduceFn::Prod, axis: line, exclusive: false, reverse: false };
    let seen = b.emit1(cumulate, &[seen])?;
    let seen = b.cast(seen, Bool)?;
    let floor = b.scalar(F32, f64::from(f32::MIN));
    let x = b.select(seen, x, floor)?;
    let axes: Vec<usize> = (rank..rank + spatial).collect();
    let y = b.reduce(ReduceFn::Max, x, &axes)?;
    let y = b.squeeze(y, &axes)?;
    Ok(vec![b.binary(BinaryFn::Max, y, floor)?])
}

/// The index along an axis of a tensor of these sizes, all others of size 1.
fn index_of(b: &mut Builder<'_>, sizes: &[Dim], axis: usize) -> Result<ValueId> {
    let mut shape = vec![Dim::ONE; sizes.len()];
    shape[axis] = sizes[axis].clone();
    b.iota(shape, axis)
}

fn bifurcation_detector(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (source, current, previous) =
        (cx.input("src_tokens")?, cx.input("cur_tokens")?, cx.input("prev_suffix_match_idx")?);
    let (least, most) = (cx.int("min_ngram_size")?, cx.int("max_ngram_size")?);
    if !(1..=most).contains(&least) {
        return malformed(format!(
            "min_ngram_size {least} and max_ngram_size {most}; the first must be from 1 to the second"
        ));
    }
    if most - least >= MOST_RUN {
        return unsupported(format!(
            "{} lengths of runs; at most {MOST_RUN} are looked for",
            most - least + 1
        ));
    }
    let length = cx.b.shape(source)[0].clone();
    let mut tokens = current;
    if let Some(predicted) = cx.optional("pred_tokens") {
        let start = size_scalar(cx, "prev_suffix_match_idx")?;
        let b = &mut *cx.b;
        let count = b.shape(predicted)[0].clone();
        let rest = length.clone() - start.clone();
        let rule = "one more than that of src_tokens from prev_suffix_match_idx on";
        let requirement = Requirement::equal(count.clone(), rest.clone() + Dim::ONE);
        b.require(requirement.says("the number of elements of pred_tokens", rule))?;
        let wanted = b.slice_axis(source, 0, start, rest.clone())?;
        let given = b.slice_axis(predicted, 0, Dim::ZERO, rest)?;
        let same = b.compare(CompareFn::Eq, given, wanted)?;
        let same = b.cast(same, I64)?;
        let cumulate = Op::Cumulate { op: ReduceFn::Prod, axis: 0, exclusive: false, reverse: false };
        let same = b.emit1(cumulate, &[same])?;
        let kept = b.reduce(ReduceFn::Sum, same, &[0])?;
        let kept = b.binary_scalar(BinaryFn::Add, kept, 1.0)?;
        let kept = b.sizes(kept, &|_| Some(count.clone()))?.remove(0);
        let predicted = b.slice_axis(predicted, 0, Dim::ZERO, kept)?;
        tokens = b.concat(&[current, predicted], 0)?;
    }
    let b = &mut *cx.b;
    let mut search = Search { found: b.scalar(I64, -1.0), over: b.scalar(Bool, 0.0) };
    for size in least..=most {
        search = search.with_runs(b, source, tokens, size as usize)?;
    }
    let shape = b.shape(previous);
    Ok(vec![tokens, b.reshape(search.found, shape)?])
}

/// Where the source goes on behind the last tokens, a scalar, and whether longer runs are not looked for.
struct Search {
    found: ValueId,
    over: ValueId,
}

impl Search {
    /// The next search, for the last `size` tokens. They are over if there are none, if the run is at the source's end, or if
    /// there are fewer tokens; of several places none counts.
    fn with_runs(self, b: &mut Builder<'_>, source: ValueId, tokens: ValueId, size: usize) -> Result<Search> {
        let (length, count) = (b.shape(source)[0].clone(), b.shape(tokens)[0].clone());
        let before = Dim::from(size - 1);
        let none = b.scalar(I64, 0.0);
        let padded = b.pad(source, none, vec![Dim::ZERO], vec![before.clone()])?;
        let runs = windows(b, padded, 0, &[Dim::from(size)], &[1], &[1])?;
        let text = b.pad(tokens, none, vec![before.clone()], vec![Dim::ZERO])?;
        let last = b.slice_axis(text, 0, count.clone() - Dim::ONE, Dim::from(size))?;
        let same = b.compare(CompareFn::Eq, runs, last)?;
        let same = b.reduce(ReduceFn::And, same, &[1])?;
        let same = b.squeeze(same, &[1])?;
        let place = b.iota(vec![length.clone()], 0)?;
        let end = b.dim_scalar(&(length.clone() - before))?;
        let whole = b.compare(CompareFn::Lt, place, end)?;
        let same = b.binary(BinaryFn::And, same, whole)?;
        let same = b.cast(same, I64)?;
        let times = b.reduce(ReduceFn::Sum, same, &[0])?;
        let times = b.squeeze(times, &[0])?;
        let first = b.emit1(Op::ArgReduce { max: true, axis: 0, last: false }, &[same])?;
        let first = b.squeeze(first, &[0])?;
        let next = b.binary_scalar(BinaryFn::Add, first, size as f64)?;

        let (tokens, all) = (b.dim_scalar(&count)?, b.dim_scalar(&length)?);
        let own = b.constant(Tensor::scalar(size as i64));
        let short = b.compare(CompareFn::Lt, tokens, own)?;
        let one = b.scalar(I64, 1.0);
        let missing = b.compare(CompareFn::Lt, times, one)?;
        let missing = b.binary(BinaryFn::Or, missing, short)?;
        let over = b.binary(BinaryFn::Or, self.over, missing)?;
        let at_end = b.compare(CompareFn::Ge, next, all)?;
        let several = b.compare(CompareFn::Gt, times, one)?;
        let inside = b.unary(UnaryFn::Not, at_end)?;
        let several = b.binary(BinaryFn::And, several, inside)?;
        let unknown = b.scalar(I64, -1.0);
        let next = b.select(several, unknown, next)?;
        let found = b.select(over, self.found, next)?;
        Ok(Search { found, over: b.binary(BinaryFn::Or, over, at_end)? })
    }
}

/// Sums of the least costs up to each element, column by column, and the way from the end back to the start (Sakoe and Chiba,
/// "Dynamic Programming Algorithm Optimization for Spoken Word Recognition", 1978). Of equal sums that to the left is taken.
fn dynamic_time_warping(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let x = if cx.b.rank(x) == 3 { cx.b.squeeze(x, &[0])? } else { x };
    let shape = cx.b.shape(x);
    let (rows, columns) = (shape[0].clone(), shape[1].clone());
    let by_column = cx.b.transpose(x, &[1, 0])?;

    // One element: the sum above it, to come and then gone; the sums to the left, above and beside; its cost.
    let (mut cell, origin) = cx.b.body();
    let mut b = Builder::new(&mut cell, origin);
    let scalar = || onnxc_ir::graph::TensorType::new(F32, vec![]);
    let [above, corner, left, cost] = [0; 4].map(|_| b.input("", scalar(), None));
    let less = |b: &mut Builder<'_>, x: ValueId, y: ValueId, z: ValueId| {
        let (x, y) = (b.compare(CompareFn::Lt, x, y)?, b.compare(CompareFn::Lt, x, z)?);
        b.binary(BinaryFn::And, x, y)
    };
    let from_corner = less(&mut b, corner, above, left)?;
    let from_above = less(&mut b, above, corner, left)?;
    let [zero, one, two] = [0i32, 1, 2].map(|number| b.constant(Tensor::scalar(number)));
    let came = b.select(from_above, one, two)?;
    let came = b.select(from_corner, zero, came)?;
    let least = b.select(from_above, above, left)?;
    let least = b.select(from_corner, corner, least)?;
    let sum = b.binary(BinaryFn::Add, least, cost)?;
    cell.outputs = [sum, sum, came].map(|value| (String::new(), value)).into();

    // One column: sums of the one before it, with one above the first row.
    let (mut line, origin) = cx.b.body();
    let mut b = Builder::new(&mut line, origin);
    let sums = b.input("", vector(F32, rows.clone() + Dim::ONE), None);
    let costs = b.input("", vector(F32, rows.clone()), None);
    let far = b.scalar(F32, f64::INFINITY);
    let corners = b.slice_axis(sums, 0, Dim::ZERO, rows.clone())?;
    let lefts = b.slice_axis(sums, 0, Dim::ONE, rows.clone())?;
    let scan = Op::scan(cell, rows.clone(), 1, 3, vec![false; 5]);
    let results = b.emit(scan, &[far, corners, lefts, costs])?;
    let far = b.reshape(far, vec![Dim::ONE])?;
    let next = b.concat(&[far, results[1]], 0)?;
    line.outputs = [next, results[2]].map(|value| (String::new(), value)).into();

    let start = cx.b.iota(vec![rows.clone() + Dim::ONE], 0)?;
    let nought = cx.b.scalar(I64, 0.0);
    let is_start = cx.b.compare(CompareFn::Eq, start, nought)?;
    let (zero, far) = (cx.b.scalar(F32, 0.0), cx.b.scalar(F32, f64::INFINITY));
    let start = cx.b.select(is_start, zero, far)?;
    let scan = Op::scan(line, columns.clone(), 1, 1, vec![false; 2]);
    let came = cx.b.emit(scan, &[start, by_column])?[1];

    // Back from the last element, `[column, row]`.
    let size = cx.b.emit1(Op::DimValues { dims: vec![columns.clone(), rows.clone()] }, &[])?;
    let last = cx.b.binary_scalar(BinaryFn::Sub, size, 1.0)?;
    let goes_on = is_inside(cx.b, last)?;
    let mut turn = Written::new(cx, goes_on, Dim::ZERO, rows + columns)?;
    let place = turn.state(cx, last, None);
    let came = turn.take(cx, came);
    let (goes_on, next) = turn.emit(cx, |b| {
        let step = b.emit1(Op::GatherNd { batch: 0 }, &[came, place])?;
        let [one, two] = [1i32, 2].map(|number| b.constant(Tensor::scalar(number)));
        // To the left but for a step from above, and up but for one from the left.
        let left = b.compare(CompareFn::Ne, step, one)?;
        let up = b.compare(CompareFn::Ne, step, two)?;
        let mut moves = vec![];
        for axis in [left, up] {
            let axis = b.cast(axis, I64)?;
            moves.push(b.reshape(axis, vec![Dim::ONE])?);
        }
        let moves = b.concat(&moves, 0)?;
        let next = b.binary(BinaryFn::Sub, place, moves)?;
        Ok((is_inside(b, next)?, next))
    })?;
    let results = turn.finish(cx, goes_on, &[next], &[place])?;
    let b = &mut *cx.b;
    let path = results.parts[0];
    let sizes = vec![results.counter.clone(), Dim::from(2usize)];
    // Rows first, from the start on.
    let starts = vec![results.counter - Dim::ONE, Dim::ONE];
    let path = b.emit1(Op::Slice { starts, steps: vec![-1, -1], sizes }, &[path])?;
    let path = b.transpose(path, &[1, 0])?;
    Ok(vec![b.cast(path, I32)?])
}

fn vector(dtype: DType, size: Dim) -> onnxc_ir::graph::TensorType {
    onnxc_ir::graph::TensorType::new(dtype, vec![size])
}

/// Whether no index of a vector is negative: a bool scalar.
fn is_inside(b: &mut Builder<'_>, place: ValueId) -> Result<ValueId> {
    let zero = b.scalar(I64, 0.0);
    let inside = b.compare(CompareFn::Ge, place, zero)?;
    let inside = b.reduce(ReduceFn::And, inside, &[0])?;
    b.squeeze(inside, &[0])
}

fn remove_padding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, counts) = (cx.input("input")?, cx.input("sequence_token_count")?);
    let b = &mut *cx.b;
    let shape = b.shape(x);
    let (rows, length, width) = (shape[0].clone(), shape[1].clone(), shape[2].clone());
    let all = rows.clone() * length.clone();
    let counts = b.cast(counts, I64)?;
    let each = b.unsqueeze(counts, &[1])?;
    let place = b.iota(vec![Dim::ONE, length.clone()], 1)?;
    let pads = b.compare(CompareFn::Ge, place, each)?;
    let pads = b.cast(pads, I32)?;
    let pads = b.reshape(pads, vec![all.clone()])?;
    let (_, order) = b.sort(pads, 0, false, all.clone())?;
    let ends =
        b.emit1(Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false }, &[counts])?;
    let zero = b.i64s(&[0]);
    let ends = b.concat(&[zero, ends], 0)?;
    let total = b.reduce(ReduceFn::Sum, counts, &[0])?;
    let total = b.sizes(total, &|_| Some(all.clone()))?.remove(0);
    let tokens = b.reshape(x, vec![all, width])?;
    let real = b.slice_axis(order, 0, Dim::ZERO, total)?;
    let tokens = b.emit1(Op::Gather { axis: 0 }, &[tokens, real])?;
    let order = b.reshape(order, vec![rows, length])?;
    let most = b.reduce(ReduceFn::Max, counts, &[0])?;
    Ok(vec![tokens, b.cast(order, I32)?, b.cast(ends, I32)?, b.cast(most, I32)?])
}
