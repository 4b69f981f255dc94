//! Arithmetic of two or more broadcast operands.

use super::row::*;
use onnxc_ir::rules::Rule;

pub const ROWS: &[OpDef] = &[
    ADD,
    ADD.since(6).attributes(&[optional("axis", Int), int("broadcast", 0)]).types(&[("T", WIDE_NO_BF16)]),
    ADD_7,
    ADD_7.since(13).types(&[("T", WIDE)]),
    ADD_7.since(14).types(&[("T", NUMERIC)]),
    SUB,
    SUB.since(6).attributes(&[optional("axis", Int), int("broadcast", 0)]).types(&[("T", WIDE_NO_BF16)]),
    SUB_7,
    SUB_7.since(13).types(&[("T", WIDE)]),
    SUB_7.since(14).types(&[("T", NUMERIC)]),
    MUL,
    MUL.since(6).attributes(&[optional("axis", Int), int("broadcast", 0)]).types(&[("T", WIDE_NO_BF16)]),
    MUL_7,
    MUL_7.since(13).types(&[("T", WIDE)]),
    MUL_7.since(14).types(&[("T", NUMERIC)]),
    DIV,
    DIV.since(6).attributes(&[optional("axis", Int), int("broadcast", 0)]).types(&[("T", WIDE_NO_BF16)]),
    DIV_7,
    DIV_7.since(13).types(&[("T", WIDE)]),
    DIV_7.since(14).types(&[("T", NUMERIC)]),
    POW,
    POW.since(7).attributes(&[]).shapes(POW_SHAPES_7).lower(pow),
    POW_12,
    POW_12.since(13).types(&[("T", POW_BASES_13), ("T1", NUMERIC_NO_BF16)]),
    POW_12.since(15).types(&[("T", POW_BASES_13), ("T1", NUMERIC)]),
    MOD,
    MOD.since(13).types(&[("T", NUMERIC)]),
    MOD.since(28).types(&[("T", NUMERIC)]),
    BIT_SHIFT,
    BIT_SHIFT.since(28).types(&[("T", INTS)]),
    MAX,
    MAX.since(6).attributes(&[]),
    MAX.since(8).attributes(&[]).shapes(MAX_SHAPES_8),
    MAX.since(12).attributes(&[]).types(&[("T", NUMERIC_NO_BF16)]).shapes(MAX_SHAPES_8),
    MAX.since(13).attributes(&[]).types(&[("T", NUMERIC)]).shapes(MAX_SHAPES_8),
    MIN,
    MIN.since(6).attributes(&[]),
    MIN.since(8).attributes(&[]).shapes(MAX_SHAPES_8),
    MIN.since(12).attributes(&[]).types(&[("T", NUMERIC_NO_BF16)]).shapes(MAX_SHAPES_8),
    MIN.since(13).attributes(&[]).types(&[("T", NUMERIC)]).shapes(MAX_SHAPES_8),
    SUM,
    SUM.since(6).attributes(&[]),
    SUM.since(8).attributes(&[]).shapes(MAX_SHAPES_8),
    SUM.since(13).attributes(&[]).types(&[("T", FLOATS)]).shapes(MAX_SHAPES_8),
    MEAN,
    MEAN.since(6).attributes(&[]),
    MEAN.since(8).attributes(&[]).shapes(MAX_SHAPES_8),
    MEAN.since(13).attributes(&[]).types(&[("T", FLOATS)]).shapes(MAX_SHAPES_8),
];

const ADD: OpDef = op("Add", 1, |cx| legacy(cx, BinaryFn::Add))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .attributes(&[optional("axis", Int), int("broadcast", 0), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(LEGACY)
    .doc("a + b");

const ADD_7: OpDef = op("Add", 7, |cx| binary(cx, BinaryFn::Add))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .types(&[("T", WIDE_NO_BF16)])
    .shapes(BROADCAST)
    .doc("a + b");

const SUB: OpDef = op("Sub", 1, |cx| legacy(cx, BinaryFn::Sub))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .attributes(&[optional("axis", Int), int("broadcast", 0), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(LEGACY)
    .doc("a - b");

const SUB_7: OpDef = op("Sub", 7, |cx| binary(cx, BinaryFn::Sub))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .types(&[("T", WIDE_NO_BF16)])
    .shapes(BROADCAST)
    .doc("a - b");

const MUL: OpDef = op("Mul", 1, |cx| legacy(cx, BinaryFn::Mul))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .attributes(&[optional("axis", Int), int("broadcast", 0), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(LEGACY)
    .doc("a * b");

const MUL_7: OpDef = op("Mul", 7, |cx| binary(cx, BinaryFn::Mul))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .types(&[("T", WIDE_NO_BF16)])
    .shapes(BROADCAST)
    .doc("a * b");

const DIV: OpDef = op("Div", 1, |cx| legacy(cx, BinaryFn::Div))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .attributes(&[optional("axis", Int), int("broadcast", 0), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(LEGACY)
    .doc("a / b, truncated for integers");

const DIV_7: OpDef = op("Div", 7, |cx| binary(cx, BinaryFn::Div))
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .types(&[("T", WIDE_NO_BF16)])
    .shapes(BROADCAST)
    .doc("a / b, truncated for integers");

const POW: OpDef = op("Pow", 1, |cx| legacy(cx, BinaryFn::Pow))
    .inputs(&[req("X", "T"), req("Y", "T")])
    .outputs(&[req("Z", "T")])
    .attributes(&[optional("axis", Int), int("broadcast", 0)])
    .types(&[("T", FLOATS_F16)])
    .shapes(POW_SHAPES_1)
    .doc("a raised to b");

const POW_12: OpDef = op("Pow", 12, pow)
    .inputs(&[req("X", "T"), req("Y", "T1")])
    .outputs(&[req("Z", "T")])
    .types(&[("T", POW_BASES_12), ("T1", NUMERIC_NO_BF16)])
    .shapes(POW_SHAPES_7)
    .doc("a raised to b");

const MOD: OpDef = op("Mod", 10, modulo)
    .inputs(&[req("A", "T"), req("B", "T")])
    .outputs(&[req("C", "T")])
    .attributes(&[int("fmod", 0)])
    .types(&[("T", NUMERIC_NO_BF16)])
    .shapes(BROADCAST)
    .doc("Remainder of a / b, of the sign of b, or of a with fmod");

const BIT_SHIFT: OpDef = op("BitShift", 11, bit_shift)
    .inputs(&[req("X", "T"), req("Y", "T")])
    .outputs(&[req("Z", "T")])
    .attributes(&[required("direction", Str)])
    .types(&[("T", UINTS)])
    .shapes(POW_SHAPES_7)
    .doc("Bits shifted left or right");

const MAX: OpDef = op("Max", 1, |cx| fold(cx, BinaryFn::Max))
    .inputs(&[var("data_0", "T")])
    .outputs(&[req("max", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(MAX_SHAPES_1)
    .doc("Largest of the inputs");

const MIN: OpDef = op("Min", 1, |cx| fold(cx, BinaryFn::Min))
    .inputs(&[var("data_0", "T")])
    .outputs(&[req("min", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(MAX_SHAPES_1)
    .doc("Smallest of the inputs");

const SUM: OpDef = op("Sum", 1, |cx| fold(cx, BinaryFn::Add))
    .inputs(&[var("data_0", "T")])
    .outputs(&[req("sum", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(MAX_SHAPES_1)
    .doc("Sum of the inputs");

const MEAN: OpDef = op("Mean", 1, mean)
    .inputs(&[var("data_0", "T")])
    .outputs(&[req("mean", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(MAX_SHAPES_1)
    .doc("Mean of the inputs");

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
