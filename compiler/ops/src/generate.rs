//! Operators that make tensors: constants, shapes, ranges, windows.

use super::convert::dtype_of;
use super::dynamic::valid_or_negative;
use super::row::*;
use onnxc_ir::graph::{Op, Tensor as Data};

pub const ROWS: &[OpDef] = &[
    CONSTANT,
    CONSTANT.since(9).types(&[("T", ALL)]),
    CONSTANT
        .since(11)
        .attributes(&[optional("sparse_value", SparseTensor), optional("value", Tensor)])
        .types(&[("T", ALL)]),
    CONSTANT
        .since(12)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL)]),
    CONSTANT
        .since(13)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_BF16)]),
    CONSTANT
        .since(19)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_19)]),
    CONSTANT
        .since(21)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_21)]),
    CONSTANT
        .since(23)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_23)]),
    CONSTANT
        .since(24)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_24)]),
    CONSTANT
        .since(25)
        .attributes(&[
            optional("sparse_value", SparseTensor),
            optional("value", Tensor),
            optional("value_float", Float),
            optional("value_floats", Floats),
            optional("value_int", Int),
            optional("value_ints", Ints),
            optional("value_string", Str),
            optional("value_strings", Strs),
        ])
        .types(&[("T", ALL_25)]),
    CONSTANT_OF_SHAPE,
    CONSTANT_OF_SHAPE.since(20).types(&[("T1", I64S), ("T2", FILL_20)]),
    CONSTANT_OF_SHAPE.since(21).types(&[("T1", I64S), ("T2", FILL_21)]),
    CONSTANT_OF_SHAPE.since(23).types(&[("T1", I64S), ("T2", FILL_23)]),
    CONSTANT_OF_SHAPE.since(24).types(&[("T1", I64S), ("T2", FILL_24)]),
    CONSTANT_OF_SHAPE.since(25).types(&[("T1", I64S), ("T2", FILL_25)]),
    SHAPE,
    SHAPE.since(13).types(&[("T", ALL_BF16), ("T1", I64S)]),
    SHAPE
        .since(15)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_BF16), ("T1", I64S)]),
    SHAPE
        .since(19)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_19), ("T1", I64S)]),
    SHAPE
        .since(21)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_21), ("T1", I64S)]),
    SHAPE
        .since(23)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_23), ("T1", I64S)]),
    SHAPE
        .since(24)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_24), ("T1", I64S)]),
    SHAPE
        .since(25)
        .attributes(&[optional("end", Int), int("start", 0)])
        .types(&[("T", ALL_25), ("T1", I64S)]),
    SIZE,
    SIZE.since(13).types(&[("T", ALL_BF16), ("T1", I64S)]),
    SIZE.since(19).types(&[("T", ALL_19), ("T1", I64S)]),
    SIZE.since(21).types(&[("T", ALL_21), ("T1", I64S)]),
    SIZE.since(23).types(&[("T", ALL_23), ("T1", I64S)]),
    SIZE.since(24).types(&[("T", ALL_24), ("T1", I64S)]),
    SIZE.since(25).types(&[("T", ALL_25), ("T1", I64S)]),
    EYE_LIKE,
    EYE_LIKE.since(22).types(&[("T1", NUMERIC_BOOL), ("T2", NUMERIC_BOOL)]),
    RANGE,
    RANGE.since(27).attributes(&[int("stash_type", 1)]).types(&[("T", RANGE_27)]),
    op("HannWindow", 17, |cx| window(cx, &[0.5, 0.5]))
        .inputs(&[req("size", "T1")])
        .outputs(&[req("output", "T2")])
        .attributes(&[int("output_datatype", 1), int("periodic", 1)])
        .types(&[("T1", INDICES), ("T2", NUMERIC)])
        .shapes(HANN_WINDOW_SHAPES)
        .doc("Hann window of a given size"),
    op("HammingWindow", 17, |cx| window(cx, &[25.0 / 46.0, 21.0 / 46.0]))
        .inputs(&[req("size", "T1")])
        .outputs(&[req("output", "T2")])
        .attributes(&[int("output_datatype", 1), int("periodic", 1)])
        .types(&[("T1", INDICES), ("T2", NUMERIC)])
        .shapes(HANN_WINDOW_SHAPES)
        .doc("Hamming window of a given size"),
    op("BlackmanWindow", 17, |cx| window(cx, &[0.42, 0.5, 0.08]))
        .inputs(&[req("size", "T1")])
        .outputs(&[req("output", "T2")])
        .attributes(&[int("output_datatype", 1), int("periodic", 1)])
        .types(&[("T1", INDICES), ("T2", NUMERIC)])
        .shapes(HANN_WINDOW_SHAPES)
        .doc("Blackman window of a given size"),
];

const CONSTANT: OpDef = op("Constant", 1, constant)
    .outputs(&[req("output", "T")])
    .attributes(&[required("value", Tensor)])
    .types(&[("T", FLOATS_F16)])
    .doc("A constant");

const CONSTANT_OF_SHAPE: OpDef = op("ConstantOfShape", 9, constant_of_shape)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[optional("value", Tensor)])
    .types(&[("T1", I64S), ("T2", NUMERIC_BOOL_NO_BF16)])
    .shapes(CONSTANT_OF_SHAPE_SHAPES)
    .doc("One value in a given shape");

const SHAPE: OpDef = op("Shape", 1, shape)
    .inputs(&[req("data", "T")])
    .outputs(&[req("shape", "T1")])
    .types(&[("T", ALL), ("T1", I64S)])
    .doc("The shape, or a range of its axes");

const SIZE: OpDef = op("Size", 1, size)
    .inputs(&[req("data", "T")])
    .outputs(&[req("size", "T1")])
    .types(&[("T", ALL), ("T1", I64S)])
    .doc("The number of elements");

const EYE_LIKE: OpDef = op("EyeLike", 9, eye_like)
    .inputs(&[req("input", "T1")])
    .outputs(&[req("output", "T2")])
    .attributes(&[optional("dtype", Int), int("k", 0)])
    .types(&[("T1", NUMERIC_BOOL_NO_BF16), ("T2", NUMERIC_BOOL_NO_BF16)])
    .shapes(EYE_LIKE_SHAPES)
    .doc("Ones on a diagonal");

const RANGE: OpDef = op("Range", 11, range)
    .inputs(&[req("start", "T"), req("limit", "T"), req("delta", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", RANGE_11)])
    .shapes(RANGE_SHAPES)
    .doc("start, start + delta, ... below limit");

const CONSTANT_OF_SHAPE_SHAPES: &[&str] = &["input[_]"];

const EYE_LIKE_SHAPES: &[&str] = &["input[_, _]"];

const RANGE_SHAPES: &[&str] = &["count(start) = 1", "count(limit) = 1", "count(delta) = 1"];

const HANN_WINDOW_SHAPES: &[&str] = &["count(size) = 1"];

/// The one value attribute that a node gives.
pub(super) fn constant(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tensor = if cx.attributes.contains_key("value") || !cx.has("sparse_value") {
        cx.tensor("value")?
    } else if cx.attributes.contains_key("sparse_value") {
        cx.tensor("sparse_value")?
    } else if !cx.has("value_int") {
        None
    } else if let Some(value) = cx.optional_float("value_float")? {
        Some(Data::scalar(value))
    } else if let Some(values) = cx.floats("value_floats")? {
        Some(Data::from_slice(&[values.len()], &values))
    } else if let Some(value) = cx.optional_int("value_int")? {
        Some(Data::scalar(value))
    } else if cx.attributes.contains_key("value_string") {
        Some(Data::from_texts(&[], &[cx.str("value_string")?]))
    } else if let Some(values) = cx.strs("value_strings")? {
        Some(Data::from_texts(&[values.len()], &values))
    } else {
        cx.ints("value_ints")?.map(|values| Data::from_slice(&[values.len()], &values))
    };
    match tensor {
        Some(tensor) => Ok(vec![cx.b.constant(tensor)]),
        None => {
            let mut given: Vec<&str> = cx.attributes.keys().map(String::as_str).collect();
            given.sort_unstable();
            unsupported(format!("a constant given by {}", given.join(", ")))
        }
    }
}

fn constant_of_shape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    cx.with_count("input", cx.declared_rank(0))?;
    let shape = cx.sizes_input("input")?;
    if shape.iter().any(|dim| dim.as_const().is_some_and(|size| size < 0)) {
        return malformed(format!("shape {shape:?} has a negative size"));
    }
    let value = cx.tensor("value")?.unwrap_or_else(|| Data::scalar(0f32));
    if value.len() != 1 {
        return malformed(format!("value has {} elements, not 1", value.len()));
    }
    let value = cx.b.constant(value);
    let value = to_scalar(cx, value)?;
    Ok(vec![cx.b.expand(value, shape)?])
}

/// A range of the axes from opset 15 on, clamped to the rank.
fn shape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let dims = cx.b.shape(cx.input(0)?);
    let rank = dims.len() as i64;
    let clamp = |axis: i64| (if axis < 0 { axis.saturating_add(rank) } else { axis }).clamp(0, rank) as usize;
    let (start, end) = match cx.has("start") {
        true => (clamp(cx.int("start")?), clamp(cx.optional_int("end")?.unwrap_or(rank))),
        false => (0, dims.len()),
    };
    let dims = dims.get(start..end).unwrap_or_default().to_vec();
    Ok(vec![cx.b.emit1(Op::DimValues { dims }, &[])?])
}

fn size(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let elements = cx.b.ty(cx.input(0)?).elements();
    Ok(vec![dim(cx, &elements)?])
}

/// Ones where `column - row == k`, in the shape of the input.
fn eye_like(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let shape = cx.b.shape(x);
    let [rows, columns] = shape.as_slice() else {
        return malformed(format!("{} is not a matrix", cx.b.ty(x)));
    };
    let dtype = match cx.optional_int("dtype")? {
        Some(number) => dtype_of(number)?,
        None => cx.b.dtype(x),
    };
    let row = index_along(cx, rows.clone(), 0, 2)?;
    let column = index_along(cx, columns.clone(), 1, 2)?;
    let diagonal = cx.b.binary(BinaryFn::Sub, column, row)?;
    let k = cx.b.constant(Data::scalar(cx.int("k")?));
    let on = cx.b.compare(CompareFn::Eq, diagonal, k)?;
    Ok(vec![cx.b.cast(on, dtype)?])
}

/// `max(ceil((limit - start) / delta), 0)`: the bounds must be known, or constant floats.
fn range_size(cx: &NodeCx<'_, '_>) -> Result<Dim> {
    let known = [0, 1, 2].map(|at| known_scalar(cx, at));
    if let [Ok(start), Ok(limit), Ok(delta)] = &known
        && let Some(step) = delta.as_const()
    {
        let (span, step) = match step {
            0 => return malformed("delta is 0"),
            1.. => (limit.clone() - start.clone(), step),
            _ => (start.clone() - limit.clone(), step.saturating_neg()),
        };
        let steps = span.ceil_div(&Dim::from(step)).expect("the step is positive");
        return Ok(steps.max_dim(&Dim::ZERO));
    }
    let float = |at: usize| match const_floats(cx, at)?.as_slice() {
        [only] => Ok(*only),
        many => malformed(format!("input {at} has {} elements, not 1", many.len())),
    };
    let (start, limit, delta) = (float(0)?, float(1)?, float(2)?);
    let count = ((limit - start) / delta).ceil().max(0.0);
    // The limit leaves room for byte counts of 8-byte elements.
    match delta != 0.0 && count < (i64::MAX / 16) as f64 {
        true => Ok(Dim::from(count as i64)),
        false => malformed(format!("range from {start} to {limit} by {delta}")),
    }
}

/// The same, computed when the model runs. A delta of 0 gives a negative size, which fails.
fn late_range_size(cx: &mut NodeCx<'_, '_>) -> Result<Dim> {
    let dtype = cx.b.dtype(cx.input(0)?);
    let work = if dtype.is_int() { DType::I64 } else { DType::F64 };
    let mut ends = Vec::new();
    for at in 0..3 {
        let end = cx.input(at)?;
        let end = to_scalar(cx, end)?;
        ends.push(cx.b.cast(end, work)?);
    }
    let [start, limit, delta] = ends[..] else { return malformed("a range has three inputs") };
    let span = cx.b.binary(BinaryFn::Sub, limit, start)?;
    let zero = cx.b.scalar(work, 0.0);
    let count = match work {
        DType::I64 => {
            // Rounded up: the quotient towards zero, and one more where it has a rest and is positive.
            let quotient = cx.b.binary(BinaryFn::Div, span, delta)?;
            let rest = cx.b.binary(BinaryFn::Rem, span, delta)?;
            let inexact = cx.b.compare(CompareFn::Ne, rest, zero)?;
            let down = cx.b.compare(CompareFn::Lt, delta, zero)?;
            let back = cx.b.compare(CompareFn::Lt, span, zero)?;
            let (down, back) = (cx.b.cast(down, DType::I64)?, cx.b.cast(back, DType::I64)?);
            let same = cx.b.compare(CompareFn::Eq, down, back)?;
            let more = cx.b.binary(BinaryFn::And, inexact, same)?;
            let more = cx.b.cast(more, DType::I64)?;
            cx.b.binary(BinaryFn::Add, quotient, more)?
        }
        _ => {
            let steps = cx.b.binary(BinaryFn::Div, span, delta)?;
            let steps = cx.b.unary(UnaryFn::Ceil, steps)?;
            // Far beyond what memory holds, and within i64.
            let steps = cx.b.binary_scalar(BinaryFn::Min, steps, (1i64 << 60) as f64)?;
            let steps = cx.b.binary_scalar(BinaryFn::Max, steps, 0.0)?;
            cx.b.cast(steps, DType::I64)?
        }
    };
    let count = cx.b.binary_scalar(BinaryFn::Max, count, 0.0)?;
    let moves = cx.b.compare(CompareFn::Ne, delta, zero)?;
    let count = valid_or_negative(cx, moves, count)?;
    let says = Says::Text(format!("{} is 0; it must not be 0", cx.operand_name(2)).into());
    Ok(cx.b.saying(says, |b| b.scalar_sizes(&[count], &|_| None))?.remove(0))
}

/// `start + i * delta`; 16-bit floats are computed as f32.
pub fn range(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let size = match range_size(cx) {
        Ok(size) => size,
        Err(error) if error.kind == onnxc_ir::error::Kind::Unsupported => late_range_size(cx)?,
        Err(error) => return Err(error),
    };
    let dtype = cx.b.dtype(cx.input(0)?);
    let work = match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        _ => dtype,
    };
    let (start, delta) = (cx.input(0)?, cx.input(2)?);
    let (start, delta) = (to_scalar(cx, start)?, to_scalar(cx, delta)?);
    let (start, delta) = (cx.b.cast(start, work)?, cx.b.cast(delta, work)?);
    let index = cx.b.iota(vec![size], 0)?;
    let mut y = cx.b.cast(index, work)?;
    let is = |cx: &NodeCx<'_, '_>, value: ValueId, what: Dim| cx.b.known(value).is_some_and(|v| *v == [what]);
    if !is(cx, delta, Dim::ONE) {
        y = cx.b.binary(BinaryFn::Mul, y, delta)?;
    }
    if !is(cx, start, Dim::ZERO) {
        y = cx.b.binary(BinaryFn::Add, y, start)?;
    }
    Ok(vec![cx.b.cast(y, dtype)?])
}

/// The cosine series `c[0] - c[1] cos(2 pi i / n) + c[2] cos(4 pi i / n) - ...`, where a symmetric window
/// has `n = size - 1` (1 for a single element) and a periodic one `n = size`.
fn window(cx: &mut NodeCx<'_, '_>, coefficients: &[f64]) -> Result<Vec<ValueId>> {
    let size = size_scalar(cx, 0)?;
    if size.as_const().is_some_and(|size| size < 0) {
        return malformed(format!("a window of size {size}"));
    }
    let dtype = dtype_of(cx.int("output_datatype")?)?;
    let period = match cx.int("periodic")? {
        0 => (size.clone() - Dim::ONE).max_dim(&Dim::ONE),
        _ => size.clone(),
    };
    let work = if matches!(dtype, DType::F32 | DType::F16 | DType::BF16) { DType::F32 } else { DType::F64 };
    let index = cx.b.iota(vec![size], 0)?;
    let index = cx.b.cast(index, work)?;
    let period = dim(cx, &period)?;
    let period = cx.b.cast(period, work)?;
    let turn = cx.b.binary(BinaryFn::Div, index, period)?;
    let mut y = cx.b.binary_scalar(BinaryFn::Mul, turn, 0.0)?;
    for (order, &coefficient) in coefficients.iter().enumerate() {
        let angle = cx.b.binary_scalar(BinaryFn::Mul, turn, std::f64::consts::TAU * order as f64)?;
        let term = cx.b.unary(UnaryFn::Cos, angle)?;
        let term = cx.b.binary_scalar(BinaryFn::Mul, term, coefficient)?;
        let function = if order % 2 == 0 { BinaryFn::Add } else { BinaryFn::Sub };
        y = cx.b.binary(function, y, term)?;
    }
    Ok(vec![cx.b.cast(y, dtype)?])
}

#[cfg(test)]
mod tests {
    use super::super::Attr;
    use super::super::node_case::Case;
    use super::*;

    #[test]
    fn constants_of_every_form() {
        let of = |name: &str, value: Attr<'static>| Case::new("Constant", 13).attr(name, value);
        of("value", Attr::Tensor(Data::from_slice(&[2], &[1u8, 2]))).gives(0, &[2], &[1., 2.]);
        of("value_int", Attr::Int(-3)).gives(0, &[], &[-3.]);
        of("value_ints", Attr::Ints(vec![4, 5].into())).gives(0, &[2], &[4., 5.]);
        of("value_float", Attr::Float(0.5)).gives(0, &[], &[0.5]);
        of("value_floats", Attr::Floats(vec![0.5].into())).gives(0, &[1], &[0.5]);
        of("value_string", Attr::Str("ä".into())).gives_texts(0, &[], &["ä"]);
        of("value_strings", Attr::Strs(vec!["a".into(), String::new()].into())).gives_texts(
            0,
            &[2],
            &["a", ""],
        );
        // A sparse tensor is dense once it is decoded.
        for opset in [11, 13, 25] {
            let sparse = Attr::Tensor(Data::from_slice(&[2], &[0f32, 3.]));
            Case::new("Constant", opset).attr("sparse_value", sparse).gives(0, &[2], &[0., 3.]);
        }
        assert!(Case::new("Constant", 1).run().unwrap_err().message.contains("value"));
    }

    #[test]
    fn shapes_are_known() {
        let case = |opset| Case::new("Shape", opset).symbolic(&["n", "", ""], &[2, 3, 1], &[0f32; 6]);
        case(13).gives(0, &[3], &[2., 3., 1.]);
        case(15).int("start", -2).gives(0, &[2], &[3., 1.]);
        case(15).int("start", 2).int("end", 1).gives(0, &[0], &[]);
        case(15).int("start", -9).int("end", 1).gives(0, &[1], &[2.]);
        let (graph, _) = case(15).int("start", 1).lower().unwrap();
        assert!(graph.is_constant(graph.outputs[0].1));
        Case::new("Size", 13).symbolic(&["n", ""], &[2, 3], &[0f32; 6]).gives(0, &[], &[6.]);
    }

    #[test]
    fn filled_shapes() {
        Case::new("ConstantOfShape", 9).constant(&[2], &[2i64, 1]).gives(0, &[2, 1], &[0., 0.]);
        let value = Attr::Tensor(Data::from_slice(&[1], &[7i64]));
        Case::new("ConstantOfShape", 9).attr("value", value).constant::<i64>(&[0], &[]).gives(0, &[], &[7.]);
        assert!(Case::new("ConstantOfShape", 9).constant(&[1], &[-1i64]).run().is_err());
        let value = Attr::Tensor(Data::from_slice(&[2], &[7i64, 8]));
        assert!(Case::new("ConstantOfShape", 9).attr("value", value).constant(&[1], &[1i64]).run().is_err());
    }

    #[test]
    fn diagonals() {
        let case = || Case::new("EyeLike", 9).symbolic(&["n", ""], &[2, 3], &[0f32; 6]);
        case().gives(0, &[2, 3], &[1., 0., 0., 0., 1., 0.]);
        let shifted = case().int("k", 1).int("dtype", 7);
        shifted.gives(0, &[2, 3], &[0., 1., 0., 0., 0., 1.]);
        assert_eq!(shifted.run().unwrap()[0].dtype, DType::I64);
    }

    #[test]
    fn ranges_of_integers_and_floats() {
        let of = |a: i64, b: i64, c: i64| {
            Case::new("Range", 11).constant(&[], &[a]).constant(&[], &[b]).constant(&[], &[c])
        };
        of(3, 9, 3).gives(0, &[2], &[3., 6.]);
        of(10, 4, -2).gives(0, &[3], &[10., 8., 6.]);
        of(0, -5, 1).gives(0, &[0], &[]);
        assert!(of(0, 1, 0).run().unwrap_err().message.contains("delta"));
        let case =
            Case::new("Range", 11).constant(&[], &[0f32]).constant(&[], &[1f32]).constant(&[], &[0.3f32]);
        case.gives(0, &[4], &[0., 0.3, 0.6, 0.9]);
        let endless = Case::new("Range", 11).constant(&[], &[0f32]).constant(&[], &[f32::INFINITY]);
        assert!(endless.constant(&[], &[1f32]).run().is_err());
    }

    #[test]
    fn ranges_that_data_decide() {
        let of = |a: i64, b: i64, c: i64| {
            Case::new("Range", 11).input(&[], &[a]).input(&[], &[b]).input(&[], &[c])
        };
        of(3, 9, 3).gives(0, &[2], &[3., 6.]);
        of(3, 10, 3).gives(0, &[3], &[3., 6., 9.]);
        of(10, 4, -2).gives(0, &[3], &[10., 8., 6.]);
        of(10, 3, -2).gives(0, &[4], &[10., 8., 6., 4.]);
        of(0, -5, 1).gives(0, &[0], &[]);
        assert!(of(0, 1, 0).run().unwrap_err().message.contains("is 0; it must not be 0"));
        let floats = |limit: f32| {
            Case::new("Range", 11).constant(&[], &[0f32]).input(&[], &[limit]).constant(&[], &[0.3f32])
        };
        floats(1.).gives(0, &[4], &[0., 0.3, 0.6, 0.9]);
        floats(-1.).gives(0, &[0], &[]);
    }

    #[test]
    fn sizes_that_data_decide() {
        Case::new("ConstantOfShape", 9).input(&[2], &[2i64, 1]).gives(0, &[2, 1], &[0., 0.]);
        assert!(Case::new("ConstantOfShape", 9).input(&[1], &[-1i64]).run().is_err());
        Case::new("HannWindow", 17).input(&[], &[4i32]).gives(0, &[4], &[0., 0.5, 1., 0.5]);
        Case::new("HannWindow", 17).input(&[], &[1i64]).int("periodic", 0).gives(0, &[1], &[0.]);
    }

    #[test]
    fn windows() {
        let of = |name, size: i64| Case::new(name, 17).constant(&[], &[size]);
        of("HannWindow", 4).gives(0, &[4], &[0., 0.5, 1., 0.5]);
        of("HannWindow", 3).int("periodic", 0).gives(0, &[3], &[0., 1., 0.]);
        of("HammingWindow", 2).gives(0, &[2], &[4. / 46., 1.]);
        of("BlackmanWindow", 4).int("output_datatype", 11).gives(0, &[4], &[0., 0.34, 1., 0.34]);
        of("HannWindow", 1).int("periodic", 0).gives(0, &[1], &[0.]);
        assert!(of("HannWindow", -1).run().unwrap_err().message.contains("size -1"));
    }
}
