//! Logical, bitwise and comparison operators, and selection.

use super::row::*;

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("And", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", BOOL), ("T1", BOOL)],
        LEGACY, |cx| legacy(cx, BinaryFn::And), "Logical and"),
    row("And", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[], &[("T", BOOL), ("T1", BOOL)],
        BROADCAST, |cx| binary(cx, BinaryFn::And), "Logical and"),
    row("Or", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", BOOL), ("T1", BOOL)],
        LEGACY, |cx| legacy(cx, BinaryFn::Or), "Logical or"),
    row("Or", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[], &[("T", BOOL), ("T1", BOOL)],
        BROADCAST, |cx| binary(cx, BinaryFn::Or), "Logical or"),
    row("Xor", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", BOOL), ("T1", BOOL)],
        LEGACY, |cx| legacy(cx, BinaryFn::Xor), "Logical exclusive or"),
    row("Xor", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[], &[("T", BOOL), ("T1", BOOL)],
        BROADCAST, |cx| binary(cx, BinaryFn::Xor), "Logical exclusive or"),
    row("BitwiseAnd", 18, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", INTS)],
        BROADCAST, |cx| binary(cx, BinaryFn::BitAnd), "Bitwise and"),
    row("BitwiseOr", 18, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", INTS)],
        BROADCAST, |cx| binary(cx, BinaryFn::BitOr), "Bitwise or"),
    row("BitwiseXor", 18, &[req("A", "T"), req("B", "T")], &[req("C", "T")], &[], &[("T", INTS)],
        BROADCAST, |cx| binary(cx, BinaryFn::BitXor), "Bitwise exclusive or"),
    row("Not", 1, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", BOOL)], ANY, |cx| unary(cx, UnaryFn::Not),
        "Logical not"),
    row("BitwiseNot", 18, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", INTS)],
        ANY, |cx| unary(cx, UnaryFn::BitNot), "Bitwise not"),
    row("IsNaN", 9, &[req("X", "T1")], &[req("Y", "T2")], &[], &[("T1", FLOATS_F16), ("T2", BOOL)],
        ANY, |cx| unary(cx, UnaryFn::IsNan), "Whether x is NaN"),
    row("IsNaN", 13, &[req("X", "T1")], &[req("Y", "T2")], &[], &[("T1", FLOATS), ("T2", BOOL)],
        ANY, |cx| unary(cx, UnaryFn::IsNan), "Whether x is NaN"),
    row("IsNaN", 20, &[req("X", "T1")], &[req("Y", "T2")], &[], &[("T1", FLOATS_F8), ("T2", BOOL)],
        ANY, |cx| unary(cx, UnaryFn::IsNan), "Whether x is NaN"),
    row("IsInf", 10, &[req("X", "T1")], &[req("Y", "T2")],
        &[int("detect_negative", 1), int("detect_positive", 1)], &[("T1", F32_F64), ("T2", BOOL)],
        ANY, is_inf,
        "Whether x is infinite, of either or one sign"),
    row("IsInf", 20, &[req("X", "T1")], &[req("Y", "T2")],
        &[int("detect_negative", 1), int("detect_positive", 1)], &[("T1", FLOATS_F8), ("T2", BOOL)],
        ANY, is_inf,
        "Whether x is infinite, of either or one sign"),
    row("Equal", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", INDICES_BOOL), ("T1", BOOL)],
        LEGACY, |cx| legacy_compare(cx, CompareFn::Eq), "a == b"),
    row("Equal", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", INDICES_BOOL), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Eq), "a == b"),
    row("Equal", 11, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_BOOL_NO_BF16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Eq), "a == b"),
    row("Equal", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_BOOL), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Eq), "a == b"),
    row("Equal", 19, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", CAST_13), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Eq), "a == b"),
    row("Less", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", FLOATS_F16), ("T1", BOOL)],
        LEGACY, |cx| legacy_compare(cx, CompareFn::Lt), "a < b"),
    row("Less", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", FLOATS_F16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Lt), "a < b"),
    row("Less", 9, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_NO_BF16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Lt), "a < b"),
    row("Less", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[], &[("T", NUMERIC), ("T1", BOOL)],
        BROADCAST, |cx| compare(cx, CompareFn::Lt), "a < b"),
    row("Greater", 1, &[req("A", "T"), req("B", "T")], &[req("C", "T1")],
        &[optional("axis", Int), int("broadcast", 0)], &[("T", FLOATS_F16), ("T1", BOOL)],
        LEGACY, |cx| legacy_compare(cx, CompareFn::Gt), "a > b"),
    row("Greater", 7, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", FLOATS_F16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Gt), "a > b"),
    row("Greater", 9, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_NO_BF16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Gt), "a > b"),
    row("Greater", 13, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Gt), "a > b"),
    row("LessOrEqual", 12, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_NO_BF16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Le), "a <= b"),
    row("LessOrEqual", 16, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Le), "a <= b"),
    row("GreaterOrEqual", 12, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC_NO_BF16), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Ge), "a >= b"),
    row("GreaterOrEqual", 16, &[req("A", "T"), req("B", "T")], &[req("C", "T1")], &[],
        &[("T", NUMERIC), ("T1", BOOL)], BROADCAST, |cx| compare(cx, CompareFn::Ge), "a >= b"),
    row("Where", 9, &[req("condition", "B"), req("X", "T"), req("Y", "T")], &[req("output", "T")], &[],
        &[("B", BOOL), ("T", ALL)], WHERE_SHAPES, select, "X where the condition holds, else Y"),
    row("Where", 16, &[req("condition", "B"), req("X", "T"), req("Y", "T")], &[req("output", "T")], &[],
        &[("B", BOOL), ("T", ALL_BF16)], WHERE_SHAPES, select, "X where the condition holds, else Y"),
];

const WHERE_SHAPES: &[&str] = &["broadcast(condition, X, Y)"];

fn compare(cx: &mut NodeCx<'_, '_>, function: CompareFn) -> Result<Vec<ValueId>> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![cx.b.compare(function, a, b)?])
}

fn legacy_compare(cx: &mut NodeCx<'_, '_>, function: CompareFn) -> Result<Vec<ValueId>> {
    let (a, b) = legacy_operands(cx)?;
    Ok(vec![cx.b.compare(function, a, b)?])
}

fn select(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (condition, then, otherwise) = (cx.input("condition")?, cx.input("X")?, cx.input("Y")?);
    Ok(vec![cx.b.select(condition, then, otherwise)?])
}

fn is_inf(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let wanted = (cx.int("detect_negative")? != 0, cx.int("detect_positive")? != 0);
    let result = match wanted {
        (true, true) => {
            let (low, high) = (cx.b.unary(UnaryFn::IsNegInf, x)?, cx.b.unary(UnaryFn::IsPosInf, x)?);
            cx.b.binary(BinaryFn::Or, low, high)?
        }
        (true, false) => cx.b.unary(UnaryFn::IsNegInf, x)?,
        (false, true) => cx.b.unary(UnaryFn::IsPosInf, x)?,
        (false, false) => {
            let (never, shape) = (cx.b.scalar(DType::Bool, 0.0), cx.b.shape(x));
            cx.b.expand(never, shape)?
        }
    };
    Ok(vec![result])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;

    #[test]
    fn comparisons_are_false_on_nan() {
        let pair =
            |name, opset| Case::new(name, opset).input(&[3], &[1f32, f32::NAN, 3.]).input(&[1], &[1f32]);
        pair("Equal", 13).gives(0, &[3], &[1., 0., 0.]);
        pair("Less", 13).gives(0, &[3], &[0., 0., 0.]);
        pair("GreaterOrEqual", 16).gives(0, &[3], &[1., 0., 1.]);
        pair("LessOrEqual", 12).gives(0, &[3], &[1., 0., 0.]);
        Case::new("IsNaN", 13).input(&[2], &[f32::NAN, 1.]).gives(0, &[2], &[1., 0.]);
    }

    #[test]
    fn infinities_of_the_wanted_signs() {
        let case = || Case::new("IsInf", 20).symbolic(&["n"], &[3], &[f32::INFINITY, f32::NEG_INFINITY, 1.]);
        case().gives(0, &[3], &[1., 1., 0.]);
        case().int("detect_negative", 0).gives(0, &[3], &[1., 0., 0.]);
        case().int("detect_positive", 0).gives(0, &[3], &[0., 1., 0.]);
        case().int("detect_positive", 0).int("detect_negative", 0).gives(0, &[3], &[0., 0., 0.]);
    }

    #[test]
    fn logic_and_bits() {
        let bools = |name, opset| Case::new(name, opset).input(&[2, 2], &[false, true, false, true]);
        bools("Xor", 7).input(&[2], &[true, false]).gives(0, &[2, 2], &[1., 1., 1., 1.]);
        let legacy = bools("And", 1).int("broadcast", 1).int("axis", 0);
        legacy.input(&[2], &[true, false]).gives(0, &[2, 2], &[0., 1., 0., 0.]);
        bools("Not", 1).gives(0, &[2, 2], &[1., 0., 1., 0.]);
        let case = Case::new("BitwiseXor", 18).input(&[2], &[12u8, 10]).input(&[2], &[10u8, 10]);
        case.gives(0, &[2], &[6., 0.]);
        Case::new("BitwiseNot", 18).input(&[2], &[0i16, 5]).gives(0, &[2], &[-1., -6.]);
    }

    #[test]
    fn legacy_comparison_broadcasts_from_an_axis() {
        let case = Case::new("Greater", 1).input(&[2, 2], &[1f32, 2., 3., 4.]).input(&[2], &[1f32, 3.]);
        case.int("broadcast", 1).int("axis", 0).gives(0, &[2, 2], &[0., 1., 0., 1.]);
    }

    #[test]
    fn where_broadcasts_all_three() {
        let case = Case::new("Where", 16).input(&[2, 1], &[true, false]).input(&[2], &[1i64, 2]);
        case.input(&[], &[9i64]).gives(0, &[2, 2], &[1., 2., 9., 9.]);
    }
}
