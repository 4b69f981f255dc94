//! Reductions over axes, extreme indices, and running combinations.

use super::dynamic::{about_axis, split_axes};
use super::row::*;
use onnxc_ir::graph::Op;
use onnxc_ir::graph::dim::product;

pub const ROWS: &[OpDef] = &[
    REDUCE_SUM,
    REDUCE_SUM.since(11),
    REDUCE_SUM_13,
    REDUCE_MEAN,
    REDUCE_MEAN.since(11),
    REDUCE_MEAN.since(13).types(&[("T", WIDE)]),
    REDUCE_MEAN_18,
    REDUCE_PROD,
    REDUCE_PROD.since(11),
    REDUCE_PROD.since(13).types(&[("T", WIDE)]),
    REDUCE_PROD_18,
    REDUCE_MAX,
    REDUCE_MAX.since(11),
    REDUCE_MAX.since(12).types(&[("T", WIDE_I8_NO_BF16)]),
    REDUCE_MAX.since(13).types(&[("T", WIDE_I8)]),
    REDUCE_MAX_18,
    REDUCE_MAX_18.since(20).types(&[("T", WIDE_I8_BOOL)]),
    REDUCE_MIN,
    REDUCE_MIN.since(11),
    REDUCE_MIN.since(12).types(&[("T", WIDE_I8_NO_BF16)]),
    REDUCE_MIN.since(13).types(&[("T", WIDE_I8)]),
    REDUCE_MIN_18,
    REDUCE_MIN_18.since(20).types(&[("T", WIDE_I8_BOOL)]),
    REDUCE_L1,
    REDUCE_L1.since(11),
    REDUCE_L1.since(13).types(&[("T", WIDE)]),
    REDUCE_L1_18,
    REDUCE_L2,
    REDUCE_L2.since(11),
    REDUCE_L2.since(13).types(&[("T", WIDE)]),
    REDUCE_L2_18,
    REDUCE_LOG_SUM,
    REDUCE_LOG_SUM.since(11),
    REDUCE_LOG_SUM.since(13).types(&[("T", WIDE)]),
    REDUCE_LOG_SUM_18,
    REDUCE_LOG_SUM_18.since(28).types(&[("T", FLOATS)]),
    REDUCE_LOG_SUM_EXP,
    REDUCE_LOG_SUM_EXP.since(11),
    REDUCE_LOG_SUM_EXP.since(13).types(&[("T", WIDE)]),
    REDUCE_LOG_SUM_EXP_18,
    REDUCE_LOG_SUM_EXP_18.since(28).types(&[("T", FLOATS)]),
    REDUCE_SUM_SQUARE,
    REDUCE_SUM_SQUARE.since(11),
    REDUCE_SUM_SQUARE.since(13).types(&[("T", WIDE)]),
    REDUCE_SUM_SQUARE_18,
    ARG_MAX,
    ARG_MAX.since(11),
    ARG_MAX.since(12).attributes(&[int("axis", 0), int("keepdims", 1), int("select_last_index", 0)]),
    ARG_MAX
        .since(13)
        .attributes(&[int("axis", 0), int("keepdims", 1), int("select_last_index", 0)])
        .types(&[("T", NUMERIC)]),
    ARG_MIN,
    ARG_MIN.since(11),
    ARG_MIN.since(12).attributes(&[int("axis", 0), int("keepdims", 1), int("select_last_index", 0)]),
    ARG_MIN
        .since(13)
        .attributes(&[int("axis", 0), int("keepdims", 1), int("select_last_index", 0)])
        .types(&[("T", NUMERIC)]),
    CUM_SUM,
    CUM_SUM.since(14).types(&[("T", WIDE), ("T2", INDICES)]),
    op("CumProd", 26, |cx| cumulate(cx, ReduceFn::Prod))
        .inputs(&[req("x", "T"), req("axis", "T2")])
        .outputs(&[req("y", "T")])
        .attributes(&[int("exclusive", 0), int("reverse", 0)])
        .types(&[("T", WIDE), ("T2", INDICES)])
        .shapes(CUM_SUM_SHAPES)
        .doc("Running product along an axis"),
];

const REDUCE_SUM: OpDef = op("ReduceSum", 1, |cx| reduce(cx, Norm::Sum))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Sum over axes");

const REDUCE_SUM_13: OpDef = op("ReduceSum", 13, |cx| reduce(cx, Norm::Sum))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Sum over axes");

const REDUCE_MEAN: OpDef = op("ReduceMean", 1, |cx| reduce(cx, Norm::Mean))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Mean over axes");

const REDUCE_MEAN_18: OpDef = op("ReduceMean", 18, |cx| reduce(cx, Norm::Mean))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Mean over axes");

const REDUCE_PROD: OpDef = op("ReduceProd", 1, |cx| reduce(cx, Norm::Prod))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Product over axes");

const REDUCE_PROD_18: OpDef = op("ReduceProd", 18, |cx| reduce(cx, Norm::Prod))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Product over axes");

const REDUCE_MAX: OpDef = op("ReduceMax", 1, |cx| reduce(cx, Norm::Max))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Maximum over axes");

const REDUCE_MAX_18: OpDef = op("ReduceMax", 18, |cx| reduce(cx, Norm::Max))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE_I8)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Maximum over axes");

const REDUCE_MIN: OpDef = op("ReduceMin", 1, |cx| reduce(cx, Norm::Min))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Minimum over axes");

const REDUCE_MIN_18: OpDef = op("ReduceMin", 18, |cx| reduce(cx, Norm::Min))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE_I8)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Minimum over axes");

const REDUCE_L1: OpDef = op("ReduceL1", 1, |cx| reduce(cx, Norm::L1))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Sum of absolute values over axes");

const REDUCE_L1_18: OpDef = op("ReduceL1", 18, |cx| reduce(cx, Norm::L1))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Sum of absolute values over axes");

const REDUCE_L2: OpDef = op("ReduceL2", 1, |cx| reduce(cx, Norm::L2))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Root of the sum of squares over axes");

const REDUCE_L2_18: OpDef = op("ReduceL2", 18, |cx| reduce(cx, Norm::L2))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Root of the sum of squares over axes");

const REDUCE_LOG_SUM: OpDef = op("ReduceLogSum", 1, |cx| reduce(cx, Norm::LogSum))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Logarithm of the sum over axes");

const REDUCE_LOG_SUM_18: OpDef = op("ReduceLogSum", 18, |cx| reduce(cx, Norm::LogSum))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Logarithm of the sum over axes");

const REDUCE_LOG_SUM_EXP: OpDef = op("ReduceLogSumExp", 1, |cx| reduce(cx, Norm::LogSumExp))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Logarithm of the sum of exponentials over axes");

const REDUCE_LOG_SUM_EXP_18: OpDef = op("ReduceLogSumExp", 18, |cx| reduce(cx, Norm::LogSumExp))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Logarithm of the sum of exponentials over axes");

const REDUCE_SUM_SQUARE: OpDef = op("ReduceSumSquare", 1, |cx| reduce(cx, Norm::SumSquare))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[optional("axes", Ints), int("keepdims", 1)])
    .types(&[("T", WIDE_NO_BF16)])
    .doc("Sum of squares over axes");

const REDUCE_SUM_SQUARE_18: OpDef = op("ReduceSumSquare", 18, |cx| reduce(cx, Norm::SumSquare))
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("reduced", "T")])
    .attributes(&[int("keepdims", 1), int("noop_with_empty_axes", 0)])
    .types(&[("T", WIDE)])
    .shapes(REDUCE_SUM_SHAPES)
    .doc("Sum of squares over axes");

const ARG_MAX: OpDef = op("ArgMax", 1, |cx| arg_reduce(cx, true))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "tensor(int64)")])
    .attributes(&[int("axis", 0), int("keepdims", 1)])
    .types(&[("T", NUMERIC_NO_BF16)])
    .shapes(ARG_MAX_SHAPES)
    .doc("Index of the largest element along an axis");

const ARG_MIN: OpDef = op("ArgMin", 1, |cx| arg_reduce(cx, false))
    .inputs(&[req("data", "T")])
    .outputs(&[req("reduced", "tensor(int64)")])
    .attributes(&[int("axis", 0), int("keepdims", 1)])
    .types(&[("T", NUMERIC_NO_BF16)])
    .shapes(ARG_MAX_SHAPES)
    .doc("Index of the smallest element along an axis");

const CUM_SUM: OpDef = op("CumSum", 11, |cx| cumulate(cx, ReduceFn::Sum))
    .inputs(&[req("x", "T"), req("axis", "T2")])
    .outputs(&[req("y", "T")])
    .attributes(&[int("exclusive", 0), int("reverse", 0)])
    .types(&[("T", WIDE_NO_16_BIT), ("T2", INDICES)])
    .shapes(CUM_SUM_SHAPES)
    .doc("Running sum along an axis");

const REDUCE_SUM_SHAPES: &[&str] = &["axes[] | [_]"];

const ARG_MAX_SHAPES: &[&str] = &["data[..axis, _, ..]"];

const CUM_SUM_SHAPES: &[&str] = &["count(axis) = 1"];

/// What a `Reduce*` operator computes of the elements it joins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Norm {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

/// With no axes given, all are reduced; with `noop_with_empty_axes` none is, and only the elementwise
/// part of the operator remains.
fn reduce(cx: &mut NodeCx<'_, '_>, norm: Norm) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let rank = cx.b.rank(x);
    let keeps_all = cx.has("noop_with_empty_axes") && cx.int("noop_with_empty_axes")? != 0;
    if let Some(axes) = late_axes(cx, 1) {
        return reduce_late(cx, norm, x, axes, !keeps_all);
    }
    let given = axes(cx, 1)?.unwrap_or_default();
    let axes = match (given.is_empty(), keeps_all) {
        (false, _) => normalize_axes(&given, rank)?,
        (true, true) => vec![],
        (true, false) => (0..rank).collect(),
    };
    let y = reduce_wide(cx, norm, x, &axes)?;
    match cx.int("keepdims")? {
        0 => Ok(vec![cx.b.squeeze(y, &axes)?]),
        _ => Ok(vec![y]),
    }
}

/// Reduction over axes that data decide: every axis is split into one that is kept and one that is reduced.
fn reduce_late(
    cx: &mut NodeCx<'_, '_>,
    norm: Norm,
    x: ValueId,
    axes: ValueId,
    all_by_default: bool,
) -> Result<Vec<ValueId>> {
    let shape = cx.b.shape(x);
    let late = split_axes(cx, x, axes, all_by_default)?;
    let y = reduce_wide(cx, norm, late.split, &late.reduced)?;
    let dims = match cx.int("keepdims")? {
        0 => {
            let count = cx.declared_rank(0).and_then(|rank| shape.len().checked_sub(rank));
            cx.with_count(1, count)?;
            let count = cx.input_count(1)?;
            late.squeezed(cx, &shape, count)?
        }
        _ => late.kept,
    };
    Ok(vec![cx.b.reshape(y, dims)?])
}

/// A reduction in the type it is computed in; the axes stay with size 1.
fn reduce_wide(cx: &mut NodeCx<'_, '_>, norm: Norm, x: ValueId, axes: &[usize]) -> Result<ValueId> {
    let dtype = cx.b.dtype(x);
    // Sums of 16-bit floats would overflow or lose the small terms before the last step; logarithms and
    // roots of integers are taken of floats.
    let work = match norm {
        Norm::Sum | Norm::Prod | Norm::Max | Norm::Min | Norm::L1 | Norm::SumSquare if dtype.is_int() => {
            dtype
        }
        Norm::Mean if dtype.is_int() => dtype,
        Norm::Max | Norm::Min => dtype,
        _ if dtype.is_int() => DType::F64,
        _ if matches!(dtype, DType::F16 | DType::BF16) => DType::F32,
        _ => dtype,
    };
    let wide = cx.b.cast(x, work)?;
    let y = reduce_axes(cx, norm, wide, axes)?;
    cx.b.cast(y, dtype)
}

fn reduce_axes(cx: &mut NodeCx<'_, '_>, norm: Norm, x: ValueId, axes: &[usize]) -> Result<ValueId> {
    let is_bool = cx.b.dtype(x) == DType::Bool;
    match norm {
        Norm::Sum => cx.b.reduce(ReduceFn::Sum, x, axes),
        Norm::Prod => cx.b.reduce(ReduceFn::Prod, x, axes),
        Norm::Max => cx.b.reduce(if is_bool { ReduceFn::Or } else { ReduceFn::Max }, x, axes),
        Norm::Min => cx.b.reduce(if is_bool { ReduceFn::And } else { ReduceFn::Min }, x, axes),
        Norm::Mean if axes.is_empty() => Ok(x),
        Norm::Mean => cx.b.mean(x, axes),
        Norm::L1 => {
            let magnitude = cx.b.unary(UnaryFn::Abs, x)?;
            cx.b.reduce(ReduceFn::Sum, magnitude, axes)
        }
        Norm::L2 | Norm::SumSquare => {
            let square = cx.b.binary(BinaryFn::Mul, x, x)?;
            let sum = cx.b.reduce(ReduceFn::Sum, square, axes)?;
            if norm == Norm::L2 { cx.b.unary(UnaryFn::Sqrt, sum) } else { Ok(sum) }
        }
        Norm::LogSum => {
            let sum = cx.b.reduce(ReduceFn::Sum, x, axes)?;
            cx.b.unary(UnaryFn::Log, sum)
        }
        Norm::LogSumExp => log_sum_exp(cx, x, axes),
    }
}

/// `log(sum(exp(x - max))) + max`, which overflows only where the result does. An infinite maximum is
/// not subtracted: the sum is 0 or infinite without it.
fn log_sum_exp(cx: &mut NodeCx<'_, '_>, x: ValueId, axes: &[usize]) -> Result<ValueId> {
    let max = cx.b.reduce(ReduceFn::Max, x, axes)?;
    let (low, high) = (cx.b.unary(UnaryFn::IsNegInf, max)?, cx.b.unary(UnaryFn::IsPosInf, max)?);
    let infinite = cx.b.binary(BinaryFn::Or, low, high)?;
    let zero = cx.b.scalar(cx.b.dtype(x), 0.0);
    let shift = cx.b.select(infinite, zero, max)?;
    let shifted = cx.b.binary(BinaryFn::Sub, x, shift)?;
    let powers = cx.b.unary(UnaryFn::Exp, shifted)?;
    let sum = cx.b.reduce(ReduceFn::Sum, powers, axes)?;
    let log = cx.b.unary(UnaryFn::Log, sum)?;
    cx.b.binary(BinaryFn::Add, log, shift)
}

fn arg_reduce(cx: &mut NodeCx<'_, '_>, max: bool) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let axis = normalize_axis(cx.int("axis")?, cx.b.rank(x))?;
    let mut results = cx.b.shape(x);
    let extent = std::mem::replace(&mut results[axis], Dim::ONE);
    let results = product(&results);
    if extent == Dim::ZERO && results != Dim::ZERO {
        return malformed(format!("axis {axis} of {} has no extreme element", cx.b.ty(x)));
    }
    let requirement = Requirement::at_most(results.min_dim(&Dim::ONE), extent.clone());
    let text = format!(
        "dimension {axis} of {} is {V}, so that there is no extreme element; it must be 1 or more",
        cx.operand_name(0)
    );
    cx.b.assume(requirement.stated(text, &[&extent]));
    let last = cx.has("select_last_index") && cx.int("select_last_index")? != 0;
    let index = cx.b.emit1(Op::ArgReduce { max, axis, last }, &[x])?;
    match cx.int("keepdims")? {
        0 => Ok(vec![cx.b.squeeze(index, &[axis])?]),
        _ => Ok(vec![index]),
    }
}

fn cumulate(cx: &mut NodeCx<'_, '_>, op: ReduceFn) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let dtype = cx.b.dtype(x);
    let x = cx.b.widened(x)?;
    let (exclusive, reverse) = (cx.int("exclusive")? != 0, cx.int("reverse")? != 0);
    let late = cx.input(1)?;
    if cx.b.known(late).is_none() {
        let shape = cx.b.shape(x);
        let about = about_axis(cx, x, late)?;
        let y = cx.b.emit1(Op::Cumulate { op, axis: 1, exclusive, reverse }, &[about])?;
        let y = cx.b.reshape(y, shape)?;
        return Ok(vec![cx.b.cast(y, dtype)?]);
    }
    let axis = match cx.const_input(1)?.as_slice() {
        [axis] => normalize_axis(*axis, cx.b.rank(x))?,
        many => return malformed(format!("axis has {} elements, not 1", many.len())),
    };
    let y = cx.b.emit1(Op::Cumulate { op, axis, exclusive, reverse }, &[x])?;
    Ok(vec![cx.b.cast(y, dtype)?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;
    use super::*;

    fn matrix(name: &'static str, opset: u32) -> Case {
        Case::new(name, opset).symbolic(&["n", ""], &[2, 3], &[1f32, 2., 3., 4., 5., -6.])
    }

    #[test]
    fn each_norm_along_an_axis_given_as_attribute_or_input() {
        let table: [(&'static str, [f64; 2]); 8] = [
            ("ReduceMean", [2., 1.]),
            ("ReduceProd", [6., -120.]),
            ("ReduceMax", [3., 5.]),
            ("ReduceMin", [1., -6.]),
            ("ReduceL1", [6., 15.]),
            ("ReduceL2", [3.741657, 8.774964]),
            ("ReduceSumSquare", [14., 77.]),
            ("ReduceLogSumExp", [3.407606, 5.313278]),
        ];
        for (name, wanted) in table {
            matrix(name, 13).ints("axes", &[-1]).gives(0, &[2, 1], &wanted);
            matrix(name, 18).constant(&[1], &[1i64]).int("keepdims", 0).gives(0, &[2], &wanted);
        }
        matrix("ReduceLogSum", 11).ints("axes", &[1]).gives(0, &[2, 1], &[1.791759, 1.098612]);
    }

    #[test]
    fn missing_axes_mean_all_or_none() {
        matrix("ReduceSum", 11).gives(0, &[1, 1], &[9.]);
        matrix("ReduceSum", 13).int("keepdims", 0).gives(0, &[], &[9.]);
        let none = || matrix("ReduceSumSquare", 18).int("noop_with_empty_axes", 1);
        none().gives(0, &[2, 3], &[1., 4., 9., 16., 25., 36.]);
        none().constant::<i64>(&[0], &[]).gives(0, &[2, 3], &[1., 4., 9., 16., 25., 36.]);
        assert!(matrix("ReduceSum", 11).ints("axes", &[0, -2]).run().unwrap_err().message.contains("repeat"));
    }

    #[test]
    fn axes_that_data_decide() {
        let late = |axes: &[i64]| matrix("ReduceSum", 13).input(&[axes.len()], axes);
        late(&[1]).gives(0, &[2, 1], &[6., 3.]);
        late(&[-2]).gives(0, &[1, 3], &[5., 7., -3.]);
        late(&[1, 0]).gives(0, &[1, 1], &[9.]);
        late(&[-2]).int("keepdims", 0).gives(0, &[3], &[5., 7., -3.]);
        late(&[0, 1]).int("keepdims", 0).gives(0, &[], &[9.]);
        for wrong in [&[2][..], &[-3], &[1, 1]] {
            assert!(late(wrong).run().is_err(), "{wrong:?}");
            assert!(late(wrong).int("keepdims", 0).run().is_err(), "{wrong:?}");
        }
        let some = |axes: &[i64]| matrix("ReduceMean", 18).symbolic(&["k"], &[axes.len()], axes);
        some(&[1]).gives(0, &[2, 1], &[2., 1.]);
        some(&[]).gives(0, &[1, 1], &[1.5]);
        some(&[]).int("noop_with_empty_axes", 1).gives(0, &[2, 3], &[1., 2., 3., 4., 5., -6.]);
        assert!(some(&[1]).int("keepdims", 0).run().unwrap_err().message.contains("rank"));
        some(&[1]).int("keepdims", 0).of_rank(1).gives(0, &[2], &[2., 1.]);
        assert!(some(&[1, 0]).int("keepdims", 0).of_rank(1).run().is_err());
        let running = |axis: i32| {
            Case::new("CumSum", 14).symbolic(&["", "n"], &[2, 2], &[1f32, 2., 3., 4.]).input(&[], &[axis])
        };
        running(0).gives(0, &[2, 2], &[1., 2., 4., 6.]);
        running(-1).int("exclusive", 1).gives(0, &[2, 2], &[0., 1., 0., 3.]);
        assert!(running(2).run().is_err());
    }

    #[test]
    fn reductions_of_bools_integers_and_narrow_floats() {
        let bools = || Case::new("ReduceMax", 20).input(&[2, 2], &[true, false, false, false]);
        bools().constant(&[1], &[1i64]).int("keepdims", 0).gives(0, &[2], &[1., 0.]);
        let bools = Case::new("ReduceMin", 20).input(&[2], &[true, false]);
        bools.gives(0, &[1], &[0.]);
        Case::new("ReduceMean", 13).input(&[2], &[1i32, 4]).gives(0, &[1], &[2.]);
        Case::new("ReduceL2", 13).input(&[2], &[3i32, 4]).gives(0, &[1], &[5.]);
        // The sum of squares overflows f16; its root does not.
        let half = [half::f16::from_f32(300.), half::f16::from_f32(400.)];
        Case::new("ReduceL2", 13).input(&[2], &half).gives(0, &[1], &[500.]);
    }

    #[test]
    fn log_sum_exp_overflows_nowhere() {
        let case = |values: &[f32]| Case::new("ReduceLogSumExp", 13).input(&[2], values);
        case(&[1000., 1000.]).gives(0, &[1], &[1000.693147]);
        case(&[f32::NEG_INFINITY; 2]).gives(0, &[1], &[f64::NEG_INFINITY]);
        case(&[f32::INFINITY, 0.]).gives(0, &[1], &[f64::INFINITY]);
    }

    #[test]
    fn extreme_indices() {
        let case = |name, opset| Case::new(name, opset).input(&[2, 3], &[1f32, 3., 3., 5., 5., 6.]);
        case("ArgMax", 13).int("axis", -1).int("keepdims", 0).gives(0, &[2], &[1., 2.]);
        case("ArgMax", 12).int("axis", 1).int("select_last_index", 1).gives(0, &[2, 1], &[2., 2.]);
        case("ArgMin", 1).gives(0, &[1, 3], &[0., 0., 0.]);
        assert!(case("ArgMin", 1).int("axis", 2).run().unwrap_err().message.contains("axis 2"));
    }

    #[test]
    fn running_combinations() {
        let case = |name, opset| Case::new(name, opset).input(&[3], &[1f32, 2., 4.]).constant(&[], &[0i32]);
        case("CumSum", 14).gives(0, &[3], &[1., 3., 7.]);
        // Halves are rounded when they are stored, and not what goes on: 2048 + 1 is 2048 in f16.
        let half = [2048., 1., 1.].map(half::f16::from_f32);
        Case::new("CumSum", 14).input(&[3], &half).constant(&[], &[0i32]).gives(
            0,
            &[3],
            &[2048., 2048., 2050.],
        );
        case("CumSum", 11).int("exclusive", 1).int("reverse", 1).gives(0, &[3], &[6., 4., 0.]);
        case("CumProd", 26).int("exclusive", 1).gives(0, &[3], &[1., 1., 2.]);
    }

    #[test]
    fn symbolic_extents_stay_symbolic() {
        let (graph, _) = matrix("ReduceSum", 13).constant(&[1], &[1i64]).lower().unwrap();
        let shape = &graph.ty(graph.outputs[0].1).shape;
        assert!(!shape[0].is_const() && shape[1] == Dim::ONE);
    }
}
