//! Operators that pick or replace elements by index.

use super::dynamic::true_positions;
use super::row::*;
use onnxc_ir::graph::Op;
use onnxc_ir::graph::claim::Operand;
use onnxc_ir::graph::dim::{product, row_major_strides};

pub const ROWS: &[OpDef] = &[
    GATHER,
    GATHER.since(11),
    GATHER.since(13).types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    GATHER_ELEMENTS,
    GATHER_ELEMENTS.since(13).types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    GATHER_ND,
    GATHER_ND.since(12).attributes(&[int("batch_dims", 0)]).shapes(GATHER_ND_SHAPES_12),
    GATHER_ND
        .since(13)
        .attributes(&[int("batch_dims", 0)])
        .types(&[("T", ALL_BF16)])
        .shapes(GATHER_ND_SHAPES_12),
    SCATTER,
    SCATTER.since(11),
    SCATTER_ELEMENTS,
    SCATTER_ELEMENTS.since(13).types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    SCATTER_ELEMENTS
        .since(16)
        .attributes(&[int("axis", 0), string("reduction", "none")])
        .types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    SCATTER_ELEMENTS
        .since(18)
        .attributes(&[int("axis", 0), string("reduction", "none")])
        .types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    SCATTER_ND,
    SCATTER_ND.since(13).types(&[("T", ALL_BF16)]),
    SCATTER_ND.since(16).attributes(&[string("reduction", "none")]).types(&[("T", ALL_BF16)]),
    SCATTER_ND.since(18).attributes(&[string("reduction", "none")]).types(&[("T", ALL_BF16)]),
    op("TensorScatter", 24, tensor_scatter)
        .inputs(&[req("past_cache", "T"), req("update", "T"), opt("write_indices", "tensor(int64)")])
        .outputs(&[req("present_cache", "T")])
        .attributes(&[int("axis", -2), string("mode", "linear")])
        .types(&[("T", ALL_24)])
        .shapes(TENSOR_SCATTER_SHAPES)
        .doc("A cache with an update written at an index per batch entry"),
    REVERSE_SEQUENCE,
    REVERSE_SEQUENCE.since(28).types(&[("T", ALL_BF16)]),
    ONE_HOT,
    ONE_HOT.since(11),
    ONE_HOT.since(28).types(&[("T1", NUMERIC_NO_BF16), ("T2", NUMERIC_NO_BF16), ("T3", ALL_BF16)]),
    COMPRESS,
    COMPRESS.since(11),
    COMPRESS.since(28).types(&[("T", ALL_BF16), ("T1", BOOL)]),
    NON_ZERO,
    NON_ZERO.since(13).types(&[("T", ALL_BF16)]),
    op("Trilu", 14, trilu)
        .inputs(&[req("input", "T"), opt("k", "tensor(int64)")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("upper", 1)])
        .types(&[("T", ALL_BF16)])
        .shapes(TRILU_SHAPES)
        .doc("Upper or lower triangle of matrices"),
];

const GATHER: OpDef = op("Gather", 1, gather)
    .inputs(&[req("data", "T"), req("indices", "Tind")])
    .outputs(&[req("output", "T")])
    .attributes(&[int("axis", 0)])
    .types(&[("T", ALL), ("Tind", INDICES)])
    .shapes(GATHER_SHAPES)
    .doc("Slices along an axis, picked by index");

const GATHER_ELEMENTS: OpDef = op("GatherElements", 11, gather_elements)
    .inputs(&[req("data", "T"), req("indices", "Tind")])
    .outputs(&[req("output", "T")])
    .attributes(&[int("axis", 0)])
    .types(&[("T", ALL), ("Tind", INDICES)])
    .shapes(GATHER_ELEMENTS_SHAPES)
    .doc("Elements along an axis, picked by index");

const GATHER_ND: OpDef = op("GatherND", 11, gather_nd)
    .inputs(&[req("data", "T"), req("indices", "tensor(int64)")])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL)])
    .shapes(GATHER_ND_SHAPES_11)
    .doc("Slices picked by index vectors");

const SCATTER: OpDef = op("Scatter", 9, scatter_elements)
    .inputs(&[req("data", "T"), req("indices", "Tind"), req("updates", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[int("axis", 0)])
    .types(&[("T", ALL), ("Tind", INDICES)])
    .shapes(SCATTER_SHAPES)
    .doc("Elements along an axis replaced by index");

const SCATTER_ELEMENTS: OpDef = op("ScatterElements", 11, scatter_elements)
    .inputs(&[req("data", "T"), req("indices", "Tind"), req("updates", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[int("axis", 0)])
    .types(&[("T", ALL), ("Tind", INDICES)])
    .shapes(SCATTER_SHAPES)
    .doc("Elements along an axis replaced or combined by index");

const SCATTER_ND: OpDef = op("ScatterND", 11, scatter_nd)
    .inputs(&[req("data", "T"), req("indices", "tensor(int64)"), req("updates", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL)])
    .shapes(SCATTER_ND_SHAPES)
    .doc("Slices replaced or combined by index vectors");

const REVERSE_SEQUENCE: OpDef = op("ReverseSequence", 10, reverse_sequence)
    .inputs(&[req("input", "T"), req("sequence_lens", "tensor(int64)")])
    .outputs(&[req("Y", "T")])
    .attributes(&[int("batch_axis", 1), int("time_axis", 0)])
    .types(&[("T", ALL)])
    .shapes(REVERSE_SEQUENCE_SHAPES)
    .doc("Each batch entry reversed over its own length");

const ONE_HOT: OpDef = op("OneHot", 9, one_hot)
    .inputs(&[req("indices", "T1"), req("depth", "T2"), req("values", "T3")])
    .outputs(&[req("output", "T3")])
    .attributes(&[int("axis", -1)])
    .types(&[("T1", NUMERIC_NO_BF16), ("T2", NUMERIC_NO_BF16), ("T3", ALL)])
    .shapes(ONE_HOT_SHAPES)
    .doc("on where the index is the position along a new axis, else off");

const COMPRESS: OpDef = op("Compress", 9, compress)
    .inputs(&[req("input", "T"), req("condition", "T1")])
    .outputs(&[req("output", "T")])
    .attributes(&[optional("axis", Int)])
    .types(&[("T", ALL), ("T1", BOOL)])
    .shapes(COMPRESS_SHAPES)
    .doc("Slices along an axis where a condition holds");

const NON_ZERO: OpDef = op("NonZero", 9, non_zero)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "tensor(int64)")])
    .types(&[("T", ALL)])
    .doc("Indices of the elements that are not 0");

const GATHER_SHAPES: &[&str] = &["data[..axis, _, ..]"];

const GATHER_ELEMENTS_SHAPES: &[&str] =
    &["data[A..axis, _, B..]", "indices[I..axis, M, J..]", "I <= A", "J <= B"];

const GATHER_ND_SHAPES_11: &[&str] = &["indices[.., K]", "K <= rank(data)"];

const GATHER_ND_SHAPES_12: &[&str] =
    &["data[B..batch_dims, ..]", "indices[B..batch_dims, .., K]", "K <= rank(data) - batch_dims"];

const SCATTER_SHAPES: &[&str] =
    &["data[A..axis, _, B..]", "indices[I..axis, M, J..]", "I <= A", "J <= B", "updates[I..axis, M, J..]"];

const SCATTER_ND_SHAPES: &[&str] = &["indices[Q.., K]", "data[..K, T..]", "updates[Q.., T..]"];

const TENSOR_SCATTER_SHAPES: &[&str] = &[
    "past_cache[N, ..]",
    "past_cache[A..axis, M, D..]",
    "update[A..axis, L, D..]",
    "L <= M",
    "write_indices[N]",
];

const REVERSE_SEQUENCE_SHAPES: &[&str] =
    &["input[..batch_axis, N, ..]", "input[..time_axis, _, ..]", "sequence_lens[N]"];

const ONE_HOT_SHAPES: &[&str] = &["count(depth) = 1", "values[2]"];

const COMPRESS_SHAPES: &[&str] =
    &["condition[K]", "if axis: input[..axis, N, ..]", "if axis: K <= N", "if !axis: K <= count(input)"];

const TRILU_SHAPES: &[&str] = &["input[.., _, _]", "count(k) = 1"];

/// A single constant index of a constant axis is a slice, which costs nothing.
fn gather(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices) = (cx.input("data")?, cx.input("indices")?);
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    let size = cx.b.ty(x).shape[axis].as_const();
    let index = match cx.b.known(indices).as_deref() {
        Some([only]) => only.as_const(),
        _ => None,
    };
    if let (Some(size), Some(index)) = (size, index) {
        let wrapped = if index < 0 { index + size } else { index };
        if !(0..size).contains(&wrapped) {
            let place = vec!["0".to_string(); cx.b.rank(indices)];
            let operand = Operand::new(cx.operand_name("indices"));
            return malformed(operand.sentence(&place, [&index, &-size, &(size - 1)]));
        }
        let slice = cx.b.slice_axis(x, axis, Dim::from(wrapped), Dim::ONE)?;
        let mut shape = cx.b.shape(x);
        shape.splice(axis..=axis, cx.b.shape(indices));
        return Ok(vec![cx.b.reshape(slice, shape)?]);
    }
    Ok(vec![cx.b.emit1(Op::Gather { axis }, &[x, indices])?])
}

/// `X: [.., n]`, indices of any shape taken in order: `[.., count]`, two axes at least.
fn gather_elements(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices) = (cx.input("data")?, cx.input("indices")?);
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    Ok(vec![cx.b.emit1(Op::GatherElements { axis }, &[x, indices])?])
}

/// Indices whose last axis, the number of axes that they index, is `depth` long where its size is a symbol. Without a depth it
/// is 1 where there is one axis to index, otherwise an error, as it decides the rank of the result.
fn with_depth(
    cx: &mut NodeCx<'_, '_>,
    indices: ValueId,
    depth: Option<usize>,
    axes: usize,
) -> Result<ValueId> {
    let mut shape = cx.b.shape(indices);
    let Some(last) = shape.last_mut().filter(|last| !last.is_const()) else { return Ok(indices) };
    let Some(depth) = depth.or((axes == 1).then_some(1)) else {
        return Err(Error::unsupported(
            Stage::Infer,
            format!(
                "the last size `{}` of indices {} says how many of {axes} axes they index, and so decides the rank of the \
                 result: pin the dim that it follows from (--input-dim), or declare the rank of the result",
                cx.b.graph.dim_words(last),
                cx.b.ty(indices)
            ),
        ));
    };
    let depth = Dim::from(depth);
    let name = format!("the last dimension of {}", cx.operand_name(1));
    let rule = "the number of axes that the ranks say are indexed";
    cx.b.assume(Requirement::equal(last.clone(), depth.clone()).says(name, rule));
    *last = depth;
    cx.b.reshape(indices, shape)
}

pub fn gather_nd(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let batch = if cx.has("batch_dims") { cx.int("batch_dims")? } else { 0 };
    let Ok(batch) = usize::try_from(batch) else { return malformed(format!("batch_dims is {batch}")) };
    // The ranks: result + depth = data + indices - 1 - batch.
    let ranks = cx.b.rank(x) + cx.b.rank(indices);
    let depth = cx.declared_rank(0).and_then(|rank| ranks.checked_sub(1 + batch + rank));
    let axes = cx.b.rank(x).saturating_sub(batch);
    let indices = with_depth(cx, indices, depth, axes)?;
    Ok(vec![cx.b.emit1(Op::GatherNd { batch }, &[x, indices])?])
}

/// How a scatter combines, by its `reduction` attribute in versions that have one.
fn combination(cx: &NodeCx<'_, '_>) -> Result<Option<BinaryFn>> {
    if !cx.has("reduction") {
        return Ok(None);
    }
    match (cx.str("reduction")?.as_str(), cx.def.since >= 18) {
        ("none", _) => Ok(None),
        ("add", _) => Ok(Some(BinaryFn::Add)),
        ("mul", _) => Ok(Some(BinaryFn::Mul)),
        ("max", true) => Ok(Some(BinaryFn::Max)),
        ("min", true) => Ok(Some(BinaryFn::Min)),
        (other, true) => not_one_of("reduction", other, "none, add, mul, max, min"),
        (other, false) => not_one_of("reduction", other, "none, add, mul"),
    }
}

fn scatter_elements(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices, updates) = (cx.input("data")?, cx.input("indices")?, cx.input("updates")?);
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    let combine = combination(cx)?;
    let op = Op::ScatterElements { axis, combine };
    Ok(vec![scatter(cx, op, combine, [x, indices, updates])?])
}

fn scatter_nd(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices, updates) = (cx.input("data")?, cx.input("indices")?, cx.input("updates")?);
    let combine = combination(cx)?;
    // The ranks: updates + depth = data + indices - 1.
    let ranks = cx.b.rank(x) + cx.b.rank(indices);
    let axes = cx.b.rank(x);
    let indices = with_depth(cx, indices, ranks.checked_sub(1 + cx.b.rank(updates)), axes)?;
    Ok(vec![scatter(cx, Op::ScatterNd { combine }, combine, [x, indices, updates])?])
}

/// A scatter of updates; sums of complex numbers are those of their parts.
fn scatter(
    cx: &mut NodeCx<'_, '_>,
    op: Op,
    combine: Option<BinaryFn>,
    [x, indices, updates]: [ValueId; 3],
) -> Result<ValueId> {
    let dtype = cx.b.dtype(x);
    match (combine, dtype.part()) {
        (Some(BinaryFn::Add), Some(_)) => {}
        (Some(_), Some(_)) => {
            let reduction = cx.str("reduction")?;
            return unsupported(format!("reduction `{reduction}` of {dtype}; complex numbers may be added"));
        }
        _ => return cx.b.emit1(op, &[x, indices, updates]),
    }
    let (Some(x), Some(updates)) = (cx.b.parts(x)?, cx.b.parts(updates)?) else {
        return malformed(format!("updates {} of {dtype}", cx.b.ty(updates)));
    };
    let real = cx.b.emit1(op.clone(), &[x.0, indices, updates.0])?;
    let imaginary = cx.b.emit1(op, &[x.1, indices, updates.1])?;
    cx.b.complex(dtype, real, imaginary)
}

/// Position `write_indices[batch] + i` of the sequence axis takes update `i`.
fn tensor_scatter(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (cache, update) = (cx.input("past_cache")?, cx.input("update")?);
    let rank = cx.b.rank(cache);
    let axis = normalize_axis(cx.int("axis")?, rank)?;
    if axis == 0 || cx.b.rank(update) != rank {
        return malformed(format!("axis {axis} of {} and {}", cx.b.ty(cache), cx.b.ty(update)));
    }
    let shape = cx.b.shape(update);
    let mut index = index_along(cx, shape[axis].clone(), axis, rank)?;
    if let Some(first) = cx.optional("write_indices") {
        let mut batch = vec![Dim::ONE; rank];
        batch[0] = shape[0].clone();
        let first = cx.b.reshape(first, batch)?;
        index = cx.b.binary(BinaryFn::Add, index, first)?;
    }
    match cx.str("mode")?.as_str() {
        "linear" => {}
        "circular" => {
            let size = cx.b.ty(cache).shape[axis].clone();
            let size = dim(cx, &size)?;
            index = cx.b.binary(BinaryFn::Mod, index, size)?;
        }
        other => return not_one_of("mode", other, "linear, circular"),
    }
    let index = cx.b.expand(index, shape)?;
    Ok(vec![cx.b.emit1(Op::ScatterElements { axis, combine: None }, &[cache, index, update])?])
}

/// Element `t` of a sequence of length `n` comes from `n - 1 - t` where `t < n`, else from `t`.
fn reverse_sequence(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, lengths) = (cx.input("input")?, cx.input("sequence_lens")?);
    let shape = cx.b.shape(x);
    let batch = normalize_axis(cx.int("batch_axis")?, shape.len())?;
    let time = normalize_axis(cx.int("time_axis")?, shape.len())?;
    if batch == time {
        return malformed(format!("batch_axis and time_axis are both {time}"));
    }
    let mut batches = vec![Dim::ONE; shape.len()];
    batches[batch] = shape[batch].clone();
    let lengths = cx.b.reshape(lengths, batches)?;
    let at = index_along(cx, shape[time].clone(), time, shape.len())?;
    let within = cx.b.compare(CompareFn::Lt, at, lengths)?;
    let mirrored = cx.b.binary(BinaryFn::Sub, lengths, at)?;
    let mirrored = cx.b.binary_scalar(BinaryFn::Sub, mirrored, 1.0)?;
    let index = cx.b.select(within, mirrored, at)?;
    let index = cx.b.expand(index, shape)?;
    Ok(vec![cx.b.emit1(Op::GatherElements { axis: time }, &[x, index])?])
}

/// Negative indices count from `depth` from opset 11 on; before, they match nothing.
fn one_hot(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (indices, values) = (cx.input("indices")?, cx.input("values")?);
    let depth = match cx.known_input("depth") {
        Ok(known) if known.len() == 1 => known[0].clone(),
        Ok(known) => return malformed(format!("depth has {} elements, not 1", known.len())),
        Err(_) => match const_floats(cx, 1) {
            Ok(depth) if depth.len() == 1 => Dim::from(depth[0] as i64),
            _ => size_scalar(cx, 1)?,
        },
    };
    if depth.as_const().is_some_and(|depth| depth < 0) {
        return malformed(format!("depth is {depth}"));
    }
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(indices) + 1)?;
    let index = cx.b.cast(indices, DType::I64)?;
    let index = cx.b.unsqueeze(index, &[axis])?;
    let index = if cx.def.since >= 11 {
        let (depth, zero) = (dim(cx, &depth)?, cx.b.scalar(DType::I64, 0.0));
        let negative = cx.b.compare(CompareFn::Lt, index, zero)?;
        let wrapped = cx.b.binary(BinaryFn::Add, index, depth)?;
        cx.b.select(negative, wrapped, index)?
    } else {
        index
    };
    let rank = cx.b.rank(index);
    let place = index_along(cx, depth, axis, rank)?;
    let hot = cx.b.compare(CompareFn::Eq, index, place)?;
    let mut ends = [values; 2];
    for (at, end) in ends.iter_mut().enumerate() {
        *end = cx.b.slice_axis(values, 0, Dim::from(at), Dim::ONE)?;
        *end = to_scalar(cx, *end)?;
    }
    Ok(vec![cx.b.select(hot, ends[1], ends[0])?])
}

/// The number of elements kept is that of true conditions: where these are not constant, data decide it.
fn compress(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut x = cx.input("input")?;
    let condition = cx.input("condition")?;
    let axis = match cx.optional_int("axis")? {
        Some(axis) => normalize_axis(axis, cx.b.rank(x))?,
        None => {
            let elements = cx.b.ty(x).elements();
            x = cx.b.reshape(x, vec![elements])?;
            0
        }
    };
    let Some(constant) = cx.b.graph.constant_data(condition).and_then(|tensor| tensor.to_i64s()) else {
        let flat = cx.b.ty(condition).elements();
        let condition = cx.b.reshape(condition, vec![flat])?;
        let kept = true_positions(cx, condition)?;
        return Ok(vec![cx.b.emit1(Op::Gather { axis }, &[x, kept])?]);
    };
    let kept: Vec<i64> = (0..constant.len()).filter(|&at| constant[at] != 0).map(|at| at as i64).collect();
    let kept = cx.b.i64s(&kept);
    Ok(vec![cx.b.emit1(Op::Gather { axis }, &[x, kept])?])
}

/// Indices of the elements that are not 0, in row-major order: i64 `[rank, count]`.
fn non_zero(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let shape = cx.b.shape(x);
    let flat = cx.b.reshape(x, vec![product(&shape)])?;
    let (parts, is_bool) = (cx.b.parts(flat)?, cx.b.dtype(flat) == DType::Bool);
    let mut not_zero = |x: ValueId| {
        let zero = cx.b.scalar(cx.b.dtype(x), 0.0);
        cx.b.compare(CompareFn::Ne, x, zero)
    };
    let flags = match parts {
        Some((real, imaginary)) => {
            let (real, imaginary) = (not_zero(real)?, not_zero(imaginary)?);
            cx.b.binary(BinaryFn::Or, real, imaginary)?
        }
        None if is_bool => flat,
        None => not_zero(flat)?,
    };
    let places = true_positions(cx, flags)?;
    let count = cx.b.shape(places)[0].clone();
    let row = vec![Dim::ONE, count.clone()];
    let mut rows = Vec::with_capacity(shape.len());
    for (axis, stride) in row_major_strides(&shape).into_iter().enumerate() {
        let mut index = places;
        if stride != Dim::ONE {
            let stride = dim(cx, &stride)?;
            index = cx.b.binary(BinaryFn::Div, index, stride)?;
        }
        if axis > 0 {
            let size = dim(cx, &shape[axis])?;
            index = cx.b.binary(BinaryFn::Mod, index, size)?;
        }
        rows.push(cx.b.reshape(index, row.clone())?);
    }
    if rows.is_empty() {
        // A scalar has no axes to index.
        let zero = cx.b.scalar(DType::I64, 0.0);
        return Ok(vec![cx.b.expand(zero, vec![Dim::ZERO, count])?]);
    }
    Ok(vec![cx.b.concat(&rows, 0)?])
}

/// Keeps `column - row >= k` (upper) or `<= k`; the rest is 0.
pub fn trilu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let shape = cx.b.shape(x);
    let [.., rows, columns] = shape.as_slice() else {
        return malformed(format!("{} is not a matrix", cx.b.ty(x)));
    };
    let row = index_along(cx, rows.clone(), 0, 2)?;
    let column = index_along(cx, columns.clone(), 1, 2)?;
    let diagonal = cx.b.binary(BinaryFn::Sub, column, row)?;
    let k = match cx.optional(1) {
        Some(k) => to_scalar(cx, k)?,
        None => cx.b.scalar(DType::I64, 0.0),
    };
    let function = if cx.int("upper")? != 0 { CompareFn::Ge } else { CompareFn::Le };
    let kept = cx.b.compare(function, diagonal, k)?;
    let zero = cx.b.scalar(cx.b.dtype(x), 0.0);
    Ok(vec![cx.b.select(kept, x, zero)?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::{Case, parts};

    fn matrix(name: &'static str, opset: u32) -> Case {
        Case::new(name, opset).input(&[2, 3], &[1f32, 2., 3., 4., 5., 6.])
    }

    /// Two of three updates meet at one element.
    #[test]
    fn complex_numbers_are_added_by_parts() {
        let data = [1f32, -1.0, 2.0, -2.0, 3.0, -3.0];
        let updates = [10f32, 1.0, 20.0, 2.0, 40.0, 4.0];
        let scattered = |name: &'static str, opset: u32, reduction: &str| {
            let indices: &[usize] = if name == "ScatterND" { &[3, 1] } else { &[3] };
            let case = Case::new(name, opset).complex(&[3], &data).input(indices, &[1i64, 2, 1]);
            case.complex(&[3], &updates).str("reduction", reduction)
        };
        for name in ["ScatterElements", "ScatterND"] {
            for opset in [16, 18] {
                let found = scattered(name, opset, "add").run().unwrap().remove(0);
                assert_eq!(parts(&found), [1.0, -1.0, 52.0, 3.0, 23.0, -1.0], "{name}-{opset}");
                let message = scattered(name, opset, "mul").lower().unwrap_err().message;
                assert!(
                    message.contains("reduction `mul` of c64; complex numbers may be added"),
                    "{message}"
                );
            }
            assert!(scattered(name, 18, "max").lower().is_err());
        }
    }

    #[test]
    fn picks() {
        matrix("Gather", 13).int("axis", 1).input(&[2], &[-1i64, 0]).gives(0, &[2, 2], &[3., 1., 6., 4.]);
        matrix("Gather", 1).constant(&[], &[-1i32]).gives(0, &[3], &[4., 5., 6.]);
        matrix("Gather", 13).int("axis", 1).constant(&[1, 1], &[1i64]).gives(0, &[2, 1, 1], &[2., 5.]);
        let outside = matrix("Gather", 13).constant(&[], &[2i64]).run();
        assert!(outside.unwrap_err().message.contains("is 2; it must be between -2 and 1"));
        let case = matrix("GatherElements", 13).int("axis", 1).input(&[2, 1], &[2i64, 0]);
        case.gives(0, &[2, 1], &[3., 4.]);
        matrix("GatherND", 13).input(&[1, 2], &[1i64, 1]).gives(0, &[1], &[5.]);
        let case = matrix("GatherND", 12).int("batch_dims", 1).input(&[2, 1], &[1i64, 2]);
        case.gives(0, &[2], &[2., 6.]);
        assert!(matrix("GatherND", 12).int("batch_dims", -1).input(&[2, 1], &[1i64, 2]).run().is_err());
    }

    #[test]
    fn scatters() {
        let case = |name, opset| {
            matrix(name, opset).int("axis", 1).input(&[2, 1], &[0i64, -1]).input(&[2, 1], &[9f32, 2.])
        };
        case("Scatter", 9).gives(0, &[2, 3], &[9., 2., 3., 4., 5., 2.]);
        case("ScatterElements", 16).str("reduction", "add").gives(0, &[2, 3], &[10., 2., 3., 4., 5., 8.]);
        case("ScatterElements", 18).str("reduction", "max").gives(0, &[2, 3], &[9., 2., 3., 4., 5., 6.]);
        let early = case("ScatterElements", 16).str("reduction", "max").run();
        assert!(early.unwrap_err().message.contains("max"));
        let case = matrix("ScatterND", 16).input(&[2, 1], &[1i64, 1]).input(&[2, 3], &[2f32; 6]);
        case.str("reduction", "mul").gives(0, &[2, 3], &[1., 2., 3., 16., 20., 24.]);
    }

    #[test]
    fn caches_take_updates_from_each_index() {
        let cache = || {
            Case::new("TensorScatter", 24)
                .input(&[2, 3, 1], &[0f32; 6])
                .input(&[2, 2, 1], &[1f32, 2., 3., 4.])
        };
        cache().gives(0, &[2, 3, 1], &[1., 2., 0., 3., 4., 0.]);
        let circular = cache().str("mode", "circular").input(&[2], &[1i64, 2]);
        circular.gives(0, &[2, 3, 1], &[0., 1., 2., 4., 0., 3.]);
        let rows = Case::new("TensorScatter", 24).input(&[2, 3, 1], &[0f32; 6]).input(&[1, 3, 1], &[1f32; 3]);
        let message = rows.int("axis", 0).run().unwrap_err().message;
        assert!(message.contains("axis 0 of f32[2, 3, 1]"), "{message}");
    }

    #[test]
    fn sequences_reverse_within_their_length() {
        let case =
            Case::new("ReverseSequence", 10).symbolic(&["b", "t"], &[2, 3], &[1f32, 2., 3., 4., 5., 6.]);
        let case = case.int("batch_axis", 0).int("time_axis", 1).symbolic(&["b"], &[2], &[2i64, 3]);
        case.gives(0, &[2, 3], &[2., 1., 3., 6., 5., 4.]);
    }

    #[test]
    fn one_hot_by_version() {
        let case = |opset| {
            let indices = Case::new("OneHot", opset).symbolic(&["n"], &[3], &[1i64, -1, 5]);
            indices.constant(&[], &[2f32]).input(&[2], &[7i32, 8])
        };
        case(9).gives(0, &[3, 2], &[7., 8., 7., 7., 7., 7.]);
        case(11).gives(0, &[3, 2], &[7., 8., 7., 8., 7., 7.]);
        case(11).int("axis", 0).gives(0, &[2, 3], &[7., 7., 7., 8., 8., 7.]);
    }

    #[test]
    fn constant_conditions_compress() {
        let case = matrix("Compress", 11).int("axis", 1).constant(&[2], &[false, true]);
        case.gives(0, &[2, 1], &[2., 5.]);
        matrix("Compress", 9).constant(&[4], &[true, false, false, true]).gives(0, &[2], &[1., 4.]);
        matrix("Compress", 11).input(&[2], &[false, true]).int("axis", 0).gives(0, &[1, 3], &[4., 5., 6.]);
        matrix("Compress", 11).input(&[5], &[false, true, false, false, true]).gives(0, &[2], &[2., 5.]);
        matrix("Compress", 11).input(&[2], &[false, false]).int("axis", 1).gives(0, &[2, 0], &[]);
    }

    #[test]
    fn indices_of_what_is_not_zero() {
        let case = Case::new("NonZero", 13).symbolic(&["n", ""], &[2, 3], &[0f32, 1., 0., f32::NAN, 0., -2.]);
        case.gives(0, &[2, 3], &[0., 1., 1., 1., 0., 2.]);
        Case::new("NonZero", 9).input(&[2], &[false, false]).gives(0, &[1, 0], &[]);
        let complex = Case::new("NonZero", 9).complex(&[4], &[0., 1., 0., -0., f32::NAN, 0., 2., 0.]);
        complex.gives(0, &[1, 3], &[0., 2., 3.]);
        Case::new("NonZero", 9).input(&[], &[3i32]).gives(0, &[0, 1], &[]);
        let long = matrix("Compress", 11).int("axis", 0).constant(&[3], &[false, false, true]).run();
        assert!(long.unwrap_err().message.contains("is 3; it must be at most"));
    }

    #[test]
    fn triangles() {
        let square = || Case::new("Trilu", 14).symbolic(&["n", "n"], &[2, 2], &[1i64, 2, 3, 4]);
        square().gives(0, &[2, 2], &[1., 2., 0., 4.]);
        square().int("upper", 0).gives(0, &[2, 2], &[1., 0., 3., 4.]);
        square().input(&[], &[1i64]).gives(0, &[2, 2], &[0., 2., 0., 0.]);
        assert!(Case::new("Trilu", 14).input(&[2], &[1i64, 2]).run().is_err());
    }
}
