//! Arithmetic of two or more broadcast operands.

use super::row::*;

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("Add", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        |cx| legacy(cx, BinaryFn::Add), "a + b"),
    row("Add", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        |cx| legacy(cx, BinaryFn::Add), "a + b"),
    row("Add", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Add", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Add", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Sub", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        |cx| legacy(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        |cx| legacy(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Mul", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        |cx| legacy(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        |cx| legacy(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Div", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        |cx| legacy(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        |cx| legacy(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Pow", 1, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", FLOATS_F16)], |cx| legacy(cx, BinaryFn::Pow),
        "a raised to b"),
    row("Pow", 7, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[], &[("T", FLOATS_F16)], pow,
        "a raised to b"),
    row("Pow", 12, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_12), ("T1", NUMERIC_NO_BF16)], pow, "a raised to b"),
    row("Pow", 13, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_13), ("T1", NUMERIC_NO_BF16)], pow, "a raised to b"),
    row("Pow", 15, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_13), ("T1", NUMERIC)], pow, "a raised to b"),
    row("Mod", 10, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)],
        &[("T", NUMERIC_NO_BF16)], modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("Mod", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)], &[("T", NUMERIC)],
        modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("Mod", 28, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)], &[("T", NUMERIC)],
        modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("BitShift", 11, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[required("direction", Str)],
        &[("T", UINTS)], bit_shift, "Bits shifted left or right"),
    row("BitShift", 28, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[required("direction", Str)],
        &[("T", INTS)], bit_shift, "Bits shifted left or right"),
    row("Max", 1, &[var("data_0", "T")], &[req("max", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 6, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 8, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 12, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 13, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", NUMERIC)],
        |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Min", 1, &[var("data_0", "T")], &[req("min", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 6, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 8, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 12, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 13, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", NUMERIC)],
        |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Sum", 1, &[var("data_0", "T")], &[req("sum", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 6, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 8, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS_F16)],
        |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 13, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS)],
        |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Mean", 1, &[var("data_0", "T")], &[req("mean", "T")], &[CONSUMED], &[("T", FLOATS_F16)], mean,
        "Mean of the inputs"),
    row("Mean", 6, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS_F16)], mean,
        "Mean of the inputs"),
    row("Mean", 8, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS_F16)], mean,
        "Mean of the inputs"),
    row("Mean", 13, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS)], mean,
        "Mean of the inputs"),
];

/// `function` over all inputs from the left.
fn fold(cx: &mut NodeCx<'_, '_>, function: BinaryFn) -> Result<Vec<ValueId>> {
    let inputs = cx.all_inputs()?;
    let Some((&first, rest)) = inputs.split_first() else { return malformed("no input") };
    let mut result = first;
    for &next in rest {
        result = cx.b.binary(function, result, next)?;
    }
    Ok(vec![result])
}

fn mean(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let sum = fold(cx, BinaryFn::Add)?[0];
    match cx.inputs.len() {
        1 => Ok(vec![sum]),
        count => Ok(vec![cx.b.binary_scalar(BinaryFn::Div, sum, count as f64)?]),
    }
}

fn modulo(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    match cx.int("fmod")? {
        0 => binary(cx, BinaryFn::Mod),
        1 => binary(cx, BinaryFn::Rem),
        other => malformed(format!("fmod is {other}, neither 0 nor 1")),
    }
}

/// The result has the base's type. Mixed types meet in the wider float, f64 where only one side is float
/// and it is the exponent.
fn pow(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (base, exponent) = (cx.input(0)?, cx.input(1)?);
    let (to, by) = (cx.b.dtype(base), cx.b.dtype(exponent));
    if cx.b.rank(exponent) == 0 && cx.b.known(exponent).is_some_and(|power| *power == [Dim::from(2i64)]) {
        return Ok(vec![cx.b.binary(BinaryFn::Mul, base, base)?]);
    }
    let work = match (to.is_float(), by.is_float()) {
        (_, false) => to,
        (false, true) => DType::F64,
        (true, true) if to == by || to.size() > by.size() => to,
        (true, true) if to.size() == by.size() => DType::F32,
        (true, true) => by,
    };
    let (base, exponent) = (cx.b.cast(base, work)?, cx.b.cast(exponent, work)?);
    let power = cx.b.binary(BinaryFn::Pow, base, exponent)?;
    Ok(vec![cx.b.cast(power, to)?])
}

/// A count outside `[0, bits)` leaves what sign extension fills in: `-1` for negative values shifted
/// right, else 0.
fn bit_shift(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, count) = (cx.input(0)?, cx.input(1)?);
    let (dtype, direction) = (cx.b.dtype(x), cx.str("direction")?);
    let function = match direction.as_str() {
        "LEFT" => BinaryFn::Shl,
        "RIGHT" => BinaryFn::Shr,
        other => return malformed(format!("direction is `{other}`, neither `LEFT` nor `RIGHT`")),
    };
    if dtype.is_unsigned_int() {
        return Ok(vec![cx.b.binary(function, x, count)?]);
    }
    let last = cx.b.scalar(dtype, f64::from(dtype.bits() - 1));
    let zero = cx.b.scalar(dtype, 0.0);
    let (negative, large) =
        (cx.b.compare(CompareFn::Lt, count, zero)?, cx.b.compare(CompareFn::Gt, count, last)?);
    let outside = cx.b.binary(BinaryFn::Or, negative, large)?;
    let count = cx.b.select(outside, last, count)?;
    let shifted = cx.b.binary(function, x, count)?;
    match function {
        BinaryFn::Shl => Ok(vec![cx.b.select(outside, zero, shifted)?]),
        _ => Ok(vec![shifted]),
    }
}
