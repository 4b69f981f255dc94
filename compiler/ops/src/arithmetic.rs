//! Arithmetic of two or more broadcast operands.

use super::row::*;
use onnxc_ir::rules::Rule;

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("Add", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Add), "a + b"),
    row("Add", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Add), "a + b"),
    row("Add", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        BROADCAST, |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Add", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        BROADCAST, |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Add", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        BROADCAST, |cx| binary(cx, BinaryFn::Add), "a + b"),
    row("Sub", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        BROADCAST, |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        BROADCAST, |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Sub", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        BROADCAST, |cx| binary(cx, BinaryFn::Sub), "a - b"),
    row("Mul", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        BROADCAST, |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        BROADCAST, |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Mul", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        BROADCAST, |cx| binary(cx, BinaryFn::Mul), "a * b"),
    row("Div", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0), CONSUMED], &[("T", FLOATS_F16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 6, &[req("A", "T"), req("B", "T")], &[req("C", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", WIDE_NO_BF16)],
        LEGACY, |cx| legacy(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE_NO_BF16)],
        BROADCAST, |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", WIDE)],
        BROADCAST, |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Div", 14, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", NUMERIC)],
        BROADCAST, |cx| binary(cx, BinaryFn::Div), "a / b, truncated for integers"),
    row("Pow", 1, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", FLOATS_F16)],
        POW_SHAPES_1, |cx| legacy(cx, BinaryFn::Pow),
        "a raised to b"),
    row("Pow", 7, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[], &[("T", FLOATS_F16)],
        POW_SHAPES_7, pow,
        "a raised to b"),
    row("Pow", 12, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_12), ("T1", NUMERIC_NO_BF16)], POW_SHAPES_7, pow, "a raised to b"),
    row("Pow", 13, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_13), ("T1", NUMERIC_NO_BF16)], POW_SHAPES_7, pow, "a raised to b"),
    row("Pow", 15, &[req("X", "T"), req("Y", "T1")], &[req("Z", "T")], &[],
        &[("T", POW_13), ("T1", NUMERIC)], POW_SHAPES_7, pow, "a raised to b"),
    row("Mod", 10, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)],
        &[("T", NUMERIC_NO_BF16)],
        BROADCAST, modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("Mod", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)], &[("T", NUMERIC)],
        BROADCAST, modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("Mod", 28, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[int("fmod", 0)], &[("T", NUMERIC)],
        BROADCAST, modulo, "Remainder of a / b, of the sign of b, or of a with fmod"),
    row("BitShift", 11, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[required("direction", Str)],
        &[("T", UINTS)], POW_SHAPES_7, bit_shift, "Bits shifted left or right"),
    row("BitShift", 28, &[req("X", "T"), req("Y", "T")], &[req("Z", "T")], &[required("direction", Str)],
        &[("T", INTS)], POW_SHAPES_7, bit_shift, "Bits shifted left or right"),
    row("Max", 1, &[var("data_0", "T")], &[req("max", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 6, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 8, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 12, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Max", 13, &[var("data_0", "T")], &[req("max", "T")], &[], &[("T", NUMERIC)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Max), "Largest of the inputs"),
    row("Min", 1, &[var("data_0", "T")], &[req("min", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 6, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 8, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 12, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Min", 13, &[var("data_0", "T")], &[req("min", "T")], &[], &[("T", NUMERIC)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Min), "Smallest of the inputs"),
    row("Sum", 1, &[var("data_0", "T")], &[req("sum", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 6, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 8, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS_F16)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Sum", 13, &[var("data_0", "T")], &[req("sum", "T")], &[], &[("T", FLOATS)],
        MAX_SHAPES_8, |cx| fold(cx, BinaryFn::Add), "Sum of the inputs"),
    row("Mean", 1, &[var("data_0", "T")], &[req("mean", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        MAX_SHAPES_1, mean,
        "Mean of the inputs"),
    row("Mean", 6, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS_F16)], MAX_SHAPES_1, mean,
        "Mean of the inputs"),
    row("Mean", 8, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS_F16)], MAX_SHAPES_8, mean,
        "Mean of the inputs"),
    row("Mean", 13, &[var("data_0", "T")], &[req("mean", "T")], &[], &[("T", FLOATS)], MAX_SHAPES_8, mean,
        "Mean of the inputs"),
];

const POW_SHAPES_1: &[&str] = &[
    "if broadcast = 0: rank(X) = rank(Y)",
    "if broadcast = 0: broadcast(X, Y)",
    "if broadcast != 0 and !axis: broadcast(Y -> X)",
    "if broadcast != 0 and axis: X[..axis, T..rank(Y), ..]",
    "if broadcast != 0 and axis: broadcast(Y -> T)",
];

const POW_SHAPES_7: &[&str] = &["broadcast(X, Y)"];

const MAX_SHAPES_1: &[&str] = &["data_0[D..]"];

const MAX_SHAPES_8: &[&str] = &["broadcast(data_0)"];

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
        0 if cx.b.dtype(cx.input("A")?).is_float() => {
            let message = "fmod is 0, and must be 1 for floats; the remainder has the sign of the divisor";
            cx.tolerated.push((Rule::AttributeMeaning, message.to_string()));
            binary(cx, BinaryFn::Mod)
        }
        0 => binary(cx, BinaryFn::Mod),
        1 => binary(cx, BinaryFn::Rem),
        other => malformed(format!("fmod is {other}, neither 0 nor 1")),
    }
}

/// The result has the base's type. Mixed types meet in the wider float, f64 where only one side is float
/// and it is the exponent.
fn pow(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (base, exponent) = (cx.input("X")?, cx.input("Y")?);
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
    let (x, count) = (cx.input("X")?, cx.input("Y")?);
    let (dtype, direction) = (cx.b.dtype(x), cx.str("direction")?);
    let function = match direction.as_str() {
        "LEFT" => BinaryFn::Shl,
        "RIGHT" => BinaryFn::Shr,
        other => return not_one_of("direction", other, "LEFT, RIGHT"),
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

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;

    #[test]
    fn integers_divide_towards_zero() {
        let case = Case::new("Div", 14).input(&[4], &[7i32, -7, 7, -7]).input(&[4], &[2i32, 2, -2, -2]);
        case.gives(0, &[4], &[3., -3., -3., 3.]);
    }

    #[test]
    fn remainders_take_either_sign() {
        let case = || Case::new("Mod", 13).input(&[3], &[-7i64, 7, -6]).input(&[3], &[3i64, -3, 3]);
        case().gives(0, &[3], &[2., -2., 0.]);
        case().int("fmod", 1).gives(0, &[3], &[-1., 1., 0.]);
    }

    #[test]
    fn before_opset_7_broadcasting_is_asked_for() {
        let a: Vec<f32> = (0..12).map(|at| at as f32).collect();
        let case = || Case::new("Add", 6).input(&[2, 3, 2], &a).int("broadcast", 1);
        let wanted = [0., 1., 12., 13., 24., 25., 6., 7., 18., 19., 30., 31.];
        case().int("axis", 1).input(&[3], &[0f32, 10., 20.]).gives(0, &[2, 3, 2], &wanted);
        let wanted = [0., 11., 2., 13., 4., 15., 6., 17., 8., 19., 10., 21.];
        case().input(&[2], &[0f32, 10.]).gives(0, &[2, 3, 2], &wanted);
        case().input(&[], &[1f32]).gives(
            0,
            &[2, 3, 2],
            &a.iter().map(|x| f64::from(x + 1.)).collect::<Vec<_>>(),
        );
        let misfit = case().int("axis", 2).input(&[2, 1], &[1f32, 2.]);
        assert!(misfit.run().unwrap_err().message.contains("must be A[..axis, T..rank(B), ..]"));
        let silent = Case::new("Sub", 1).input(&[2, 1], &[1f32, 2.]).input(&[1], &[1f32]);
        assert!(
            silent
                .run()
                .unwrap_err()
                .message
                .contains("the rank of A is 2; it must be the rank of B, which is 1")
        );
    }

    #[test]
    fn powers_have_the_type_of_the_base() {
        let case = Case::new("Pow", 15).input(&[3], &[2i32, 9, 4]).input(&[3], &[3f32, 0.5, -1.]);
        case.gives(0, &[3], &[8., 3., 0.]);
        let case = Case::new("Pow", 15).input(&[2], &[4i32, 27]).input(&[2], &[1.5f32, 2.]);
        case.gives(0, &[2], &[8., 729.]);
        let case = Case::new("Pow", 15).input(&[2], &[2f32, 4.]).input(&[2], &[-1i64, 2]);
        case.gives(0, &[2], &[0.5, 16.]);
        Case::new("Pow", 13).input(&[2], &[-3f32, 4.]).constant(&[], &[2f32]).gives(0, &[2], &[9., 16.]);
    }

    #[test]
    fn variadic_operators_fold() {
        let three = |name| {
            let case = Case::new(name, 13).input(&[2], &[1f32, 5.]).input(&[1], &[3f32]);
            case.input(&[2, 1], &[2f32, 4.])
        };
        three("Max").gives(0, &[2, 2], &[3., 5., 4., 5.]);
        three("Min").gives(0, &[2, 2], &[1., 2., 1., 3.]);
        three("Sum").gives(0, &[2, 2], &[6., 10., 8., 12.]);
        three("Mean").gives(0, &[2, 2], &[2., 10. / 3., 8. / 3., 4.]);
        Case::new("Mean", 1).input(&[1], &[4f32]).gives(0, &[1], &[4.]);
    }

    #[test]
    fn shifts_beyond_the_width_leave_the_sign() {
        let x = [-8i8, 8, -8, 8];
        let by = [1i8, 9, -1, 2];
        let case = || Case::new("BitShift", 28).input(&[4], &x).input(&[4], &by);
        case().str("direction", "RIGHT").gives(0, &[4], &[-4., 0., -1., 2.]);
        case().str("direction", "LEFT").gives(0, &[4], &[-16., 0., 0., 32.]);
        let unsigned = Case::new("BitShift", 11).input(&[2], &[255u8, 1]).input(&[2], &[4u8, 7]);
        unsigned.str("direction", "LEFT").gives(0, &[2], &[240., 128.]);
    }
}
