//! Operators that came to com.microsoft before, or beside, those of the standard which they resemble: moves, choices,
//! transforms.

use super::own;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Op, Requirement, TensorType};
use onnxc_ops::conv::transposed::conv_transpose;
use onnxc_ops::det::Pivot;
use onnxc_ops::fourier::of_reals;
use onnxc_ops::generate::range;
use onnxc_ops::grid::grid_sample;
use onnxc_ops::indexing::{gather_nd, trilu};
use onnxc_ops::row::*;
use onnxc_ops::slicing::pad;
use onnxc_ops::spatial::windows;
use onnxc_ops::types::{ALL, ALL_BF16, FLOATS_F16, INDICES, NUMERIC};
use onnxc_ops::unique::unique_along;

pub const ROWS: &[OpDef] = &[
    own("Trilu", trilu)
        .inputs(&[req("X", "T"), opt("k", "tensor(int64)")])
        .outputs(&[req("Y", "T")])
        .attributes(&[int("upper", 1)])
        .types(&[("T", NUMERIC_BOOL)])
        .shapes(&["X[.., _, _]", "count(k) = 1"])
        .doc("upper or lower triangle of matrices"),
    own("Range", range_by_one)
        .inputs(&[req("start", "T"), req("limit", "T"), opt("delta", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", RANGE_11)])
        .shapes(&["count(start) = 1", "count(limit) = 1", "count(delta) = 1"])
        .doc("start, start + delta, ... below limit"),
    own("Pad", pad_flat)
        .inputs(&[req("data", "T"), req("pads", "tensor(int64)"), opt("value", "T")])
        .outputs(&[req("output", "T")])
        .attributes(&[string("mode", "constant")])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["pads[_] | [1, _]", "count(value) = 1"])
        .doc("elements added around a tensor, or removed"),
    own("Unique", unique)
        .inputs(&[req("x", "T")])
        .outputs(&[req("y", "T"), req("idx", "tensor(int64)"), req("counts", "tensor(int64)")])
        .types(&[("T", ALL)])
        .shapes(&["x[_]"])
        .doc("the distinct elements as they come, where each is, and how often"),
    own("GatherND", gather_nd)
        .inputs(&[req("data", "T"), req("indices", "Tind")])
        .outputs(&[req("output", "T")])
        .types(&[("T", ALL), ("Tind", INDICES)])
        .shapes(&["data[_, ..]", "indices[.., _]"])
        .doc("slices picked by index vectors"),
    own("ExpandDims", expand_dims)
        .inputs(&[req("X", "T"), req("axis", "tensor(int32)")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", ALL)])
        .shapes(&["count(axis) = 1"])
        .doc("an axis of size 1 put in"),
    own("GridSample", sample_grid)
        .inputs(&[req("X", "T1"), req("Grid", "T1")])
        .outputs(&[req("Y", "T2")])
        .attributes(&[int("align_corners", 0), string("mode", "bilinear"), string("padding_mode", "zeros")])
        .types(&[("T1", ALL), ("T2", FLOATS_F16)])
        .shapes(&["X[N, _, _, _]", "Grid[N, _, _, 2]"])
        .doc("an image sampled at the positions of a grid"),
    own("ConvTransposeWithDynamicPads", conv_transpose)
        .inputs(&[req("X", "T"), req("W", "T"), opt("Pads", "tensor(int64)"), opt("B", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            string("auto_pad", "NOTSET"),
            optional("dilations", Ints),
            int("group", 1),
            optional("kernel_shape", Ints),
            optional("output_padding", Ints),
            optional("strides", Ints),
        ])
        .types(&[("T", FLOATS_F16)])
        .shapes(&[
            "X[N, C, D..]",
            "W[C, G, K..]",
            "W[_, _, kernel_shape..]",
            "len(K) = len(D)",
            "C % group = 0",
            "Pads[2 * len(D)]",
            "B[G * group]",
        ])
        .doc("transposed convolution, its pads an input"),
    own("TorchEmbedding", embedding)
        .inputs(&[
            req("weight", "T"),
            req("indices", "tensor(int64)"),
            opt("padding_idx", "tensor(int64)"),
            opt("scale_grad_by_freq", "tensor(bool)"),
        ])
        .outputs(&[req("Y", "T")])
        .types(&[("T", NUMERIC)])
        .shapes(&["weight[_, _]", "count(padding_idx) = 1", "count(scale_grad_by_freq) = 1"])
        .doc("rows picked by index; what is for training alone means nothing"),
    own("SampleOp", |cx| Ok(vec![cx.input(0)?]))
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", WIDE_NO_BF16)])
        .doc("x"),
    own("UnfoldTensor", unfold)
        .inputs(&[req("input", "T")])
        .outputs(&[req("output", "T")])
        .attributes(&[int("dim", -1), required("size", Int), int("step", 1)])
        .types(&[("T", ALL_BF16)])
        .shapes(&["input[_, ..]"])
        .doc("all slices of a size along an axis, as a last axis"),
    own("Rfft", |cx| fourier(cx, false))
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(FOURIER_ATTRIBUTES)
        .types(&[("T", FLOATS_F16)])
        .shapes(&["X[.., _]"])
        .doc("spectrum of real numbers"),
    own("Irfft", |cx| fourier(cx, true))
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[int("normalized", 0), int("onesided", 1), required("signal_ndim", Int)])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["X[.., _, 2]"])
        .doc("real numbers of a spectrum"),
    own("NGramRepeatBlock", n_gram_repeat_block)
        .inputs(&[req("input_ids", "Tid"), req("scores", "T")])
        .outputs(&[req("scores_out", "T")])
        .attributes(&[required("ngram_size", Int)])
        .types(&[("Tid", I64S), ("T", F32S)])
        .shapes(&["input_ids[B, _]", "scores[B, _]"])
        .doc("scores, minus infinity for tokens that would repeat a run of tokens"),
    own("Inverse", inverse)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", FLOATS_F16)])
        .shapes(&["X[.., N, N]"])
        .doc("inverses of square matrices"),
];

const FOURIER_ATTRIBUTES: &[AttrDef] = &[int("normalized", 0), int("onesided", 1), int("signal_ndim", 1)];

fn range_by_one(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    if cx.optional("delta").is_none() {
        let one = cx.b.scalar(cx.b.dtype(cx.input("start")?), 1.0);
        cx.inputs.resize(3, None);
        cx.inputs[2] = Some(one);
    }
    range(cx)
}

/// The grid has the type of the image.
fn sample_grid(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    match cx.b.dtype(x) {
        DType::F16 | DType::F32 | DType::F64 => grid_sample(cx),
        _ => unsupported(format!("positions as {}: f16, f32 and f64 are supported", cx.b.ty(x))),
    }
}

/// Pads may be a row of a matrix.
fn pad_flat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let pads = cx.input("pads")?;
    let count = cx.b.ty(pads).elements();
    cx.inputs[1] = Some(cx.b.reshape(pads, vec![count])?);
    pad(cx)
}

fn unique(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let found = unique_along(cx, None, false)?;
    Ok(vec![found[0], found[2], found[3]])
}

fn expand_dims(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let axis = known_scalar(cx, 1)?;
    let Some(axis) = axis.as_const() else { return unsupported(format!("an axis that is the dim {axis}")) };
    let axis = normalize_axis(axis, cx.b.rank(x) + 1)?;
    Ok(vec![cx.b.unsqueeze(x, &[axis])?])
}

fn embedding(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (rows, indices) = (cx.input("weight")?, cx.input("indices")?);
    Ok(vec![cx.b.emit1(Op::Gather { axis: 0 }, &[rows, indices])?])
}

fn unfold(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let rank = cx.b.rank(x);
    let axis = normalize_axis(cx.int("dim")?, rank)?;
    let mut sizes = Vec::new();
    for name in ["size", "step"] {
        match cx.int(name)? {
            size @ 1..=0x7fff_ffff => sizes.push(size as usize),
            other => return malformed(format!("{name} is {other}; it must be at least 1")),
        }
    }
    let extent = cx.b.ty(x).shape[axis].clone();
    let name = format!("dimension {axis} of {}", cx.operand_name("input"));
    cx.b.require(Requirement::at_most(Dim::from(sizes[0]), extent).says_at_least(name, "size"))?;
    let found = windows(cx.b, x, axis, &[Dim::from(sizes[0])], &[sizes[1]], &[1])?;
    // The window's own axis goes last.
    let mut perm: Vec<usize> = (0..=rank).collect();
    perm.remove(axis + 1);
    perm.push(axis + 1);
    Ok(vec![cx.b.transpose(found, &perm)?])
}

fn fourier(cx: &mut NodeCx<'_, '_>, inverse: bool) -> Result<Vec<ValueId>> {
    for (name, only) in [("onesided", 1), ("normalized", 0), ("signal_ndim", 1)] {
        if cx.int(name)? != only {
            return unsupported(format!("{name} {}: {only} is supported", cx.int(name)?));
        }
    }
    let x = cx.input(0)?;
    let axis = cx.b.rank(x) - 1 - usize::from(inverse);
    let least = if inverse { 2usize } else { 1 };
    let size = cx.b.shape(x)[axis].clone();
    let name = format!("dimension {axis} of {}, along which the transform goes,", cx.operand_name(0));
    cx.b.require(Requirement::at_most(Dim::from(least), size).says_at_least(name, least))?;
    Ok(vec![of_reals(cx.b, x, inverse)?])
}

fn n_gram_repeat_block(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, scores) = (cx.input("input_ids")?, cx.input("scores")?);
    let size = match cx.int("ngram_size")? {
        size @ 1..=0xffff => size as usize,
        other => return malformed(format!("ngram_size is {other}; it must be from 1 to 65535")),
    };
    Ok(vec![without_repeats(cx.b, ids, scores, size, f64::NEG_INFINITY)?])
}

/// Scores `[B, V]`, at most `low` for each token that would complete a run of `size` tokens which `ids`, i64 `[B, L]`, has
/// already. The tokens are preceded by `size - 1` that equal no token, so that short rows have windows as well.
pub(super) fn without_repeats(
    b: &mut Builder<'_>,
    ids: ValueId,
    scores: ValueId,
    size: usize,
    low: f64,
) -> Result<ValueId> {
    let (none, before) = (b.scalar(DType::I64, -1.0), Dim::from(size - 1));
    let padded = b.pad(ids, none, vec![Dim::ZERO, before.clone()], vec![Dim::ZERO; 2])?;
    let count = b.ty(ids).shape[1].clone();
    let runs = windows(b, padded, 1, &[Dim::from(size)], &[1], &[1])?;
    let next = b.slice_axis(runs, 2, before.clone(), Dim::ONE)?;
    let next = b.squeeze(next, &[2])?;
    let place = b.iota(vec![Dim::ONE, count.clone()], 1)?;
    let first = b.scalar(DType::I64, (size - 1) as f64);
    let mut repeats = b.compare(CompareFn::Ge, place, first)?;
    if size > 1 {
        let runs = b.slice_axis(runs, 2, Dim::ZERO, before.clone())?;
        let last = b.slice_axis(padded, 1, count, before)?;
        let last = b.unsqueeze(last, &[1])?;
        let same = b.compare(CompareFn::Eq, runs, last)?;
        let same = b.reduce(ReduceFn::And, same, &[2])?;
        let same = b.squeeze(same, &[2])?;
        repeats = b.binary(BinaryFn::And, repeats, same)?;
    }
    let (low, high) = (b.scalar(DType::F32, low), b.scalar(DType::F32, f64::INFINITY));
    let bound = b.select(repeats, low, high)?;
    // What is of no kind must be an index, and blocks nothing.
    let next = b.binary_scalar(BinaryFn::Max, next, 0.0)?;
    let (shape, rows) = (b.shape(next), b.shape(bound));
    let bound = if shape == rows { bound } else { b.expand(bound, shape)? };
    let op = Op::ScatterElements { axis: 1, combine: Some(BinaryFn::Min) };
    b.emit1(op, &[scores, next, bound])
}

/// `[.., n, n]`, each beside the identity, by elimination of one column at a step; half types compute in f32.
fn inverse(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    let (lead, n) = (shape[..shape.len() - 2].to_vec(), shape[shape.len() - 1].clone());
    let batch = onnxc_ir::graph::dim::product(&lead);
    let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = b.cast(x, work)?;
    let square = vec![batch.clone(), n.clone(), n.clone()];
    let x = b.reshape(x, square.clone())?;
    let (row, column) = (b.iota(vec![n.clone(), Dim::ONE], 0)?, b.iota(vec![Dim::ONE, n.clone()], 1)?);
    let unit = b.compare(CompareFn::Eq, row, column)?;
    let unit = b.cast(unit, work)?;
    let unit = b.expand(unit, square)?;
    let both = b.concat(&[x, unit], 2)?;
    let step = b.iota(vec![n.clone()], 0)?;
    let body = elimination(b, &batch, &n, work)?;
    let both = b.emit(Op::scan(body, n.clone(), 1, 1, vec![false]), &[both, step])?[0];
    let y = b.slice_axis(both, 2, n.clone(), n)?;
    let y = b.cast(y, dtype)?;
    Ok(vec![b.reshape(y, shape)?])
}

/// State: matrices `[B, n, 2n]`; scanned: the number of the column. The pivot is the greatest of its column.
fn elimination(outer: &Builder<'_>, batch: &Dim, n: &Dim, dtype: DType) -> Result<Graph> {
    let (mut body, origin) = outer.body();
    let mut builder = Builder::new(&mut body, origin);
    let b = &mut builder;
    let width = n.clone() * Dim::from(2usize);
    let a = b.input("matrix", TensorType::new(dtype, vec![batch.clone(), n.clone(), width.clone()]), None);
    let step = b.input("step", TensorType::new(DType::I64, vec![]), None);
    // The step's row takes the place of the pivot's, which is put here.
    let Pivot { pivot, pivot_row, swapped, column, .. } = Pivot::of(b, a, step, dtype)?;
    let scaled = b.binary(BinaryFn::Div, pivot_row, pivot)?;
    let product = b.binary(BinaryFn::Mul, column, scaled)?;
    let others = b.binary(BinaryFn::Sub, swapped, product)?;
    let row = b.iota(vec![n.clone(), Dim::ONE], 0)?;
    let own = b.compare(CompareFn::Eq, row, step)?;
    let next = b.select(own, scaled, others)?;
    body.outputs = vec![(String::new(), next)];
    Ok(body)
}
