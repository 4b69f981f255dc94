//! Logical, bitwise and comparison operators, and selection.

use super::row::*;

pub const ROWS: &[OpDef] = &[
    AND,
    AND.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| binary(cx, BinaryFn::And)),
    OR,
    OR.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| binary(cx, BinaryFn::Or)),
    XOR,
    XOR.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| binary(cx, BinaryFn::Xor)),
    op("BitwiseAnd", 18, |cx| binary(cx, BinaryFn::BitAnd))
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", INTS)])
        .shapes(BROADCAST)
        .doc("Bitwise and"),
    op("BitwiseOr", 18, |cx| binary(cx, BinaryFn::BitOr))
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", INTS)])
        .shapes(BROADCAST)
        .doc("Bitwise or"),
    op("BitwiseXor", 18, |cx| binary(cx, BinaryFn::BitXor))
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("C", "T")])
        .types(&[("T", INTS)])
        .shapes(BROADCAST)
        .doc("Bitwise exclusive or"),
    op("Not", 1, |cx| unary(cx, UnaryFn::Not))
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", BOOL)])
        .doc("Logical not"),
    op("BitwiseNot", 18, |cx| unary(cx, UnaryFn::BitNot))
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .types(&[("T", INTS)])
        .doc("Bitwise not"),
    IS_NA_N,
    IS_NA_N.since(13).types(&[("T1", FLOATS), ("T2", BOOL)]),
    IS_NA_N.since(20).types(&[("T1", FLOATS_F8), ("T2", BOOL)]),
    IS_INF,
    IS_INF.since(20).types(&[("T1", FLOATS_F8), ("T2", BOOL)]),
    EQUAL,
    EQUAL.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| compare(cx, CompareFn::Eq)),
    EQUAL_11,
    EQUAL_11.since(13).types(&[("T", NUMERIC_BOOL), ("T1", BOOL)]),
    EQUAL_11.since(19).types(&[("T", CAST_13), ("T1", BOOL)]),
    LESS,
    LESS.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| compare(cx, CompareFn::Lt)),
    LESS_9,
    LESS_9.since(13).types(&[("T", NUMERIC), ("T1", BOOL)]),
    GREATER,
    GREATER.since(7).attributes(&[]).shapes(BROADCAST).lower(|cx| compare(cx, CompareFn::Gt)),
    GREATER_9,
    GREATER_9.since(13).types(&[("T", NUMERIC), ("T1", BOOL)]),
    LESS_OR_EQUAL,
    LESS_OR_EQUAL.since(16).types(&[("T", NUMERIC), ("T1", BOOL)]),
    GREATER_OR_EQUAL,
    GREATER_OR_EQUAL.since(16).types(&[("T", NUMERIC), ("T1", BOOL)]),
    WHERE,
    WHERE.since(16).types(&[("B", BOOL), ("T", ALL_BF16)]),
];

const AND: OpDef = op("And", 1, |cx| legacy(cx, BinaryFn::And))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", BOOL), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("Logical and");

const OR: OpDef = op("Or", 1, |cx| legacy(cx, BinaryFn::Or))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", BOOL), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("Logical or");

const XOR: OpDef = op("Xor", 1, |cx| legacy(cx, BinaryFn::Xor))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", BOOL), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("Logical exclusive or");

const IS_NA_N: OpDef = op("IsNaN", 9, |cx| unary(cx, UnaryFn::IsNan))
    .inputs(&[req("X", "T1")])
    .outputs(&[req("Y", "T2")])
    .types(&[("T1", FLOATS_F16), ("T2", BOOL)])
    .doc("Whether x is NaN");

const IS_INF: OpDef = op("IsInf", 10, is_inf)
    .inputs(&[req("X", "T1")])
    .outputs(&[req("Y", "T2")])
    .attributes(&[int("detect_negative", 1), int("detect_positive", 1)])
    .types(&[("T1", F32_F64), ("T2", BOOL)])
    .doc("Whether x is infinite, of either or one sign");

const EQUAL: OpDef = op("Equal", 1, |cx| legacy_compare(cx, CompareFn::Eq))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", INDICES_BOOL), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("a == b");

const EQUAL_11: OpDef = op("Equal", 11, |cx| compare(cx, CompareFn::Eq))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .types(&[("T", NUMERIC_BOOL_NO_BF16), ("T1", BOOL)])
    .shapes(BROADCAST)
    .doc("a == b");

const LESS: OpDef = op("Less", 1, |cx| legacy_compare(cx, CompareFn::Lt))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", FLOATS_F16), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("a < b");

const LESS_9: OpDef = op("Less", 9, |cx| compare(cx, CompareFn::Lt))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .types(&[("T", NUMERIC_NO_BF16), ("T1", BOOL)])
    .shapes(BROADCAST)
    .doc("a < b");

const GREATER: OpDef = op("Greater", 1, |cx| legacy_compare(cx, CompareFn::Gt))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", FLOATS_F16), ("T1", BOOL)])
    .shapes(LEGACY)
    .doc("a > b");

const GREATER_9: OpDef = op("Greater", 9, |cx| compare(cx, CompareFn::Gt))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .types(&[("T", NUMERIC_NO_BF16), ("T1", BOOL)])
    .shapes(BROADCAST)
    .doc("a > b");

const LESS_OR_EQUAL: OpDef = op("LessOrEqual", 12, |cx| compare(cx, CompareFn::Le))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .types(&[("T", NUMERIC_NO_BF16), ("T1", BOOL)])
    .shapes(BROADCAST)
    .doc("a <= b");

const GREATER_OR_EQUAL: OpDef = op("GreaterOrEqual", 12, |cx| compare(cx, CompareFn::Ge))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T1")])
    .types(&[("T", NUMERIC_NO_BF16), ("T1", BOOL)])
    .shapes(BROADCAST)
    .doc("a >= b");

const WHERE: OpDef = op("Where", 9, select)
    .inputs(&[req("condition", "B"), req("X", "T"), req("Y", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("B", BOOL), ("T", ALL)])
    .shapes(WHERE_SHAPES)
    .doc("X where the condition holds, else Y");

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
