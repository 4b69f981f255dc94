//! Functions of one element.

use super::circular;
use super::row::*;

#[rustfmt::skip]
pub const ROWS: &[OpDef] = &[
    row("Abs", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Abs), "Absolute value"),
    row("Abs", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        ANY, |cx| unary(cx, UnaryFn::Abs), "Absolute value"),
    row("Abs", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", NUMERIC)],
        ANY, |cx| unary(cx, UnaryFn::Abs),
        "Absolute value"),
    row("Neg", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Neg), "Negation"),
    row("Neg", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", SIGNED_NO_BF16)],
        ANY, |cx| unary(cx, UnaryFn::Neg), "Negation"),
    row("Neg", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", SIGNED)],
        ANY, |cx| unary(cx, UnaryFn::Neg),
        "Negation"),
    row("Sign", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        ANY, |cx| unary(cx, UnaryFn::Sign), "-1, 0 or 1 by the sign"),
    row("Sign", 13, &[req("input", "T")], &[req("output", "T")], &[], &[("T", NUMERIC)],
        ANY, |cx| unary(cx, UnaryFn::Sign), "-1, 0 or 1 by the sign"),
    row("Ceil", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Ceil), "Rounding up"),
    row("Ceil", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Ceil), "Rounding up"),
    row("Ceil", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Ceil),
        "Rounding up"),
    row("Floor", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Floor), "Rounding down"),
    row("Floor", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Floor), "Rounding down"),
    row("Floor", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Floor), "Rounding down"),
    row("Round", 11, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Round), "Rounding to nearest, ties to even"),
    row("Round", 22, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Round), "Rounding to nearest, ties to even"),
    row("Sqrt", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Sqrt), "Square root"),
    row("Sqrt", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Sqrt), "Square root"),
    row("Sqrt", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Sqrt),
        "Square root"),
    row("Reciprocal", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Recip), "1 / x"),
    row("Reciprocal", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Recip), "1 / x"),
    row("Reciprocal", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Recip), "1 / x"),
    row("Exp", 1, &[req("input", "T")], &[req("output", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Exp), "Exponential"),
    row("Exp", 6, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Exp), "Exponential"),
    row("Exp", 13, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Exp), "Exponential"),
    row("Log", 1, &[req("input", "T")], &[req("output", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Log), "Natural logarithm"),
    row("Log", 6, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Log), "Natural logarithm"),
    row("Log", 13, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Log), "Natural logarithm"),
    row("Sin", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| circular::row(cx, UnaryFn::Sin), "Sine"),
    row("Sin", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| circular::row(cx, UnaryFn::Sin), "Sine"),
    row("Cos", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| circular::row(cx, UnaryFn::Cos), "Cosine"),
    row("Cos", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| circular::row(cx, UnaryFn::Cos), "Cosine"),
    row("Tan", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| circular::row(cx, UnaryFn::Tan), "Tangent"),
    row("Tan", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| circular::row(cx, UnaryFn::Tan), "Tangent"),
    row("Asin", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Asin), "Inverse sine"),
    row("Asin", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Asin), "Inverse sine"),
    row("Acos", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Acos), "Inverse cosine"),
    row("Acos", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Acos), "Inverse cosine"),
    row("Atan", 7, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Atan), "Inverse tangent"),
    row("Atan", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Atan), "Inverse tangent"),
    row("Sinh", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Sinh), "Hyperbolic sine"),
    row("Sinh", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Sinh), "Hyperbolic sine"),
    row("Cosh", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Cosh), "Hyperbolic cosine"),
    row("Cosh", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Cosh), "Hyperbolic cosine"),
    row("Tanh", 1, &[req("input", "T")], &[req("output", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Tanh), "Hyperbolic tangent"),
    row("Tanh", 6, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Tanh), "Hyperbolic tangent"),
    row("Tanh", 13, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Tanh), "Hyperbolic tangent"),
    row("Asinh", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Asinh), "Inverse hyperbolic sine"),
    row("Asinh", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Asinh), "Inverse hyperbolic sine"),
    row("Acosh", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Acosh), "Inverse hyperbolic cosine"),
    row("Acosh", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Acosh), "Inverse hyperbolic cosine"),
    row("Atanh", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Atanh), "Inverse hyperbolic tangent"),
    row("Atanh", 22, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Atanh), "Inverse hyperbolic tangent"),
    row("Erf", 9, &[req("input", "T")], &[req("output", "T")], &[], &[("T", NUMERIC_NO_BF16)],
        ANY, erf, "Gauss error function"),
    row("Erf", 13, &[req("input", "T")], &[req("output", "T")], &[], &[("T", FLOATS)],
        ANY, erf, "Gauss error function"),
    row("Sigmoid", 1, &[req("X", "T")], &[req("Y", "T")], &[CONSUMED], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Sigmoid), "1 / (1 + exp(-x))"),
    row("Sigmoid", 6, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS_F16)],
        ANY, |cx| unary(cx, UnaryFn::Sigmoid), "1 / (1 + exp(-x))"),
    row("Sigmoid", 13, &[req("X", "T")], &[req("Y", "T")], &[], &[("T", FLOATS)],
        ANY, |cx| unary(cx, UnaryFn::Sigmoid), "1 / (1 + exp(-x))"),
];

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
