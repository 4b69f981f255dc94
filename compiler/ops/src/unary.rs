//! Functions of one element.

use super::circular;
use super::row::*;

pub const ROWS: &[OpDef] = &[
    ABS,
    ABS.since(6).attributes(&[]).types(&[("T", NUMERIC_NO_BF16)]),
    ABS.since(13).attributes(&[]).types(&[("T", NUMERIC)]),
    NEG,
    NEG.since(6).attributes(&[]).types(&[("T", SIGNED_NO_BF16)]),
    NEG.since(13).attributes(&[]).types(&[("T", SIGNED)]),
    SIGN,
    SIGN.since(13).types(&[("T", NUMERIC)]),
    CEIL,
    CEIL.since(6).attributes(&[]),
    CEIL.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    FLOOR,
    FLOOR.since(6).attributes(&[]),
    FLOOR.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    ROUND,
    ROUND.since(22).types(&[("T", FLOATS)]),
    SQRT,
    SQRT.since(6).attributes(&[]),
    SQRT.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    RECIPROCAL,
    RECIPROCAL.since(6).attributes(&[]),
    RECIPROCAL.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    EXP,
    EXP.since(6).attributes(&[]),
    EXP.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    LOG,
    LOG.since(6).attributes(&[]),
    LOG.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    SIN,
    SIN.since(22).types(&[("T", FLOATS)]),
    COS,
    COS.since(22).types(&[("T", FLOATS)]),
    TAN,
    TAN.since(22).types(&[("T", FLOATS)]),
    ASIN,
    ASIN.since(22).types(&[("T", FLOATS)]),
    ACOS,
    ACOS.since(22).types(&[("T", FLOATS)]),
    ATAN,
    ATAN.since(22).types(&[("T", FLOATS)]),
    SINH,
    SINH.since(22).types(&[("T", FLOATS)]),
    COSH,
    COSH.since(22).types(&[("T", FLOATS)]),
    TANH,
    TANH.since(6).attributes(&[]),
    TANH.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    ASINH,
    ASINH.since(22).types(&[("T", FLOATS)]),
    ACOSH,
    ACOSH.since(22).types(&[("T", FLOATS)]),
    ATANH,
    ATANH.since(22).types(&[("T", FLOATS)]),
    ERF,
    ERF.since(13).types(&[("T", FLOATS)]),
    SIGMOID,
    SIGMOID.since(6).attributes(&[]),
    SIGMOID.since(13).attributes(&[]).types(&[("T", FLOATS)]),
];

const ABS: OpDef = op("Abs", 1, |cx| unary(cx, UnaryFn::Abs))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Absolute value");

const NEG: OpDef = op("Neg", 1, |cx| unary(cx, UnaryFn::Neg))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Negation");

const SIGN: OpDef = op("Sign", 9, |cx| unary(cx, UnaryFn::Sign))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", NUMERIC_NO_BF16)])
    .doc("-1, 0 or 1 by the sign");

const CEIL: OpDef = op("Ceil", 1, |cx| unary(cx, UnaryFn::Ceil))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Rounding up");

const FLOOR: OpDef = op("Floor", 1, |cx| unary(cx, UnaryFn::Floor))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Rounding down");

const ROUND: OpDef = op("Round", 11, |cx| unary(cx, UnaryFn::Round))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Rounding to nearest, ties to even");

const SQRT: OpDef = op("Sqrt", 1, |cx| unary(cx, UnaryFn::Sqrt))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Square root");

const RECIPROCAL: OpDef = op("Reciprocal", 1, |cx| unary(cx, UnaryFn::Recip))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("1 / x");

const EXP: OpDef = op("Exp", 1, |cx| unary(cx, UnaryFn::Exp))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Exponential");

const LOG: OpDef = op("Log", 1, |cx| unary(cx, UnaryFn::Log))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Natural logarithm");

const SIN: OpDef = op("Sin", 7, |cx| circular::row(cx, UnaryFn::Sin))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Sine");

const COS: OpDef = op("Cos", 7, |cx| circular::row(cx, UnaryFn::Cos))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Cosine");

const TAN: OpDef = op("Tan", 7, |cx| circular::row(cx, UnaryFn::Tan))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Tangent");

const ASIN: OpDef = op("Asin", 7, |cx| unary(cx, UnaryFn::Asin))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse sine");

const ACOS: OpDef = op("Acos", 7, |cx| unary(cx, UnaryFn::Acos))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse cosine");

const ATAN: OpDef = op("Atan", 7, |cx| unary(cx, UnaryFn::Atan))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse tangent");

const SINH: OpDef = op("Sinh", 9, |cx| unary(cx, UnaryFn::Sinh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Hyperbolic sine");

const COSH: OpDef = op("Cosh", 9, |cx| unary(cx, UnaryFn::Cosh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Hyperbolic cosine");

const TANH: OpDef = op("Tanh", 1, |cx| unary(cx, UnaryFn::Tanh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("Hyperbolic tangent");

const ASINH: OpDef = op("Asinh", 9, |cx| unary(cx, UnaryFn::Asinh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse hyperbolic sine");

const ACOSH: OpDef = op("Acosh", 9, |cx| unary(cx, UnaryFn::Acosh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse hyperbolic cosine");

const ATANH: OpDef = op("Atanh", 9, |cx| unary(cx, UnaryFn::Atanh))
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("Inverse hyperbolic tangent");

const ERF: OpDef = op("Erf", 9, erf)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", NUMERIC_NO_BF16)])
    .doc("Gauss error function");

const SIGMOID: OpDef = op("Sigmoid", 1, |cx| unary(cx, UnaryFn::Sigmoid))
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("1 / (1 + exp(-x))");

/// Integers are cast to floats and the results back, which truncates.
fn erf(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let dtype = cx.b.dtype(x);
    if !dtype.is_int() {
        return unary(cx, UnaryFn::Erf);
    }
    // By way of f64 the f32 is the nearest one, so that results above 1 - 2^-25 are 1.
    let wide = cx.b.cast(x, DType::F64)?;
    let y = cx.b.unary(UnaryFn::Erf, wide)?;
    let y = cx.b.cast(y, DType::F32)?;
    Ok(vec![cx.b.cast(y, dtype)?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;
    use super::*;

    #[test]
    fn values_of_floats_and_integers() {
        Case::new("Round", 11).input(&[5], &[0.5f32, 1.5, 2.5, -0.5, -1.6]).gives(
            0,
            &[5],
            &[0., 2., 2., 0., -2.],
        );
        Case::new("Sign", 13).input(&[3], &[-7i32, 0, 9]).gives(0, &[3], &[-1., 0., 1.]);
        Case::new("Neg", 6).input(&[2], &[5i8, -128]).gives(0, &[2], &[-5., -128.]);
        Case::new("Reciprocal", 1).input(&[2], &[4f32, -0.5]).gives(0, &[2], &[0.25, -2.]);
        let wanted = [0.0, 0.842701, -0.995322];
        Case::new("Erf", 13).input(&[3], &[0f32, 1., -2.]).gives(0, &[3], &wanted);
        Case::new("Erf", 9).input(&[4], &[0i32, 1, -3, 4]).gives(0, &[4], &[0., 0., 0., 1.]);
    }

    #[test]
    fn every_function_lowers_on_a_symbolic_shape() {
        let newest =
            ROWS.iter().filter(|row| ROWS.iter().all(|r| r.name != row.name || r.since <= row.since));
        for row in newest {
            let case =
                Case::new(row.name, row.since).symbolic(&["n", ""], &[2, 2], &[0.5f32, 1., 0.25, 0.75]);
            let outputs = case.run().unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_eq!((outputs[0].dtype, outputs[0].shape.as_slice()), (DType::F32, [2, 2].as_slice()));
        }
    }
}
