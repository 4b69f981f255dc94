//! Operators of `ai.onnx.ml` on numbers. What ONNX Runtime and the reference of the ONNX package compute unlike is listed in
//! `tests/conformance/ml.md`, with what is followed here.

mod forest;
pub mod labels;
pub mod linear;
pub mod maps;
mod masks;
mod scores;
mod steps;
pub mod svm;
pub mod trees;
mod walk;

use onnxc_ir::graph::claim::printable;
use onnxc_ir::graph::{Op, Tensor as Data};
use onnxc_ops::row::*;
use onnxc_ops::strings::{constant, distinct, find};

const DOMAIN: &str = "ai.onnx.ml";

/// Types that most operators of the domain take.
const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I64, DType::I32];

pub const ROWS: &[OpDef] = &[
    op("ArrayFeatureExtractor", 1, array_feature_extractor)
        .domain(DOMAIN)
        .inputs(&[req("X", "T"), req("Y", "tensor(int64)")])
        .outputs(&[req("Z", "T")])
        .types(&[("T", &[DType::F32, DType::F64, DType::I64, DType::I32, DType::Str])])
        .shapes(&["X[.., _]"])
        .doc("Elements of the last axis, picked by index"),
    op("Binarizer", 1, binarize)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("threshold", 0.0)])
        .types(&[("T", NUMBERS)])
        .doc("1 where x > threshold, else 0"),
    op("CategoryMapper", 1, labels::map_categories)
        .domain(DOMAIN)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2")])
        .attributes(&[
            optional("cats_int64s", Ints),
            optional("cats_strings", Strs),
            int("default_int64", -1),
            string("default_string", "_Unused"),
        ])
        .types(&[("T1", &[DType::Str, DType::I64]), ("T2", &[DType::Str, DType::I64])])
        .doc("Integers for strings, or strings for integers"),
    op("FeatureVectorizer", 1, vectorize)
        .domain(DOMAIN)
        .inputs(&[var("X", "T1")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[optional("inputdimensions", Ints)])
        .types(&[("T1", NUMBERS)])
        .shapes(&["X[_, ..]"])
        .doc("The columns of all inputs side by side"),
    op("Imputer", 1, impute)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[
            optional("imputed_value_floats", Floats),
            optional("imputed_value_int64s", Ints),
            float("replaced_value_float", 0.0),
            int("replaced_value_int64", 0),
        ])
        .types(&[("T", NUMBERS)])
        .shapes(&["X[_, _] | [_]"])
        .doc("Another value, per feature, in place of one"),
    op("Normalizer", 1, normalize)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[string("norm", "MAX")])
        .types(&[("T", NUMBERS)])
        .shapes(&["X[_, _] | [_]"])
        .doc("Rows divided by their greatest element or their norm"),
    op("OneHotEncoder", 1, one_hot)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[optional("cats_int64s", Ints), optional("cats_strings", Strs), int("zeros", 1)])
        .types(&[("T", &[DType::Str, DType::I64, DType::I32, DType::F32, DType::F64])])
        .doc("1 in the column of the category, else 0"),
    op("Scaler", 1, scale)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[optional("offset", Floats), optional("scale", Floats)])
        .types(&[("T", NUMBERS)])
        .shapes(&["X[_, _] | [_]"])
        .doc("(x - offset) * scale per feature"),
];

fn array_feature_extractor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, indices) = (cx.input("X")?, cx.input("Y")?);
    let Some(axis) = cx.b.rank(x).checked_sub(1) else {
        return malformed("features of a scalar".to_string());
    };
    let count = cx.b.ty(indices).elements();
    let flat = cx.b.reshape(indices, vec![count])?;
    let picked = cx.b.emit1(Op::Gather { axis }, &[x, flat])?;
    Ok(vec![if axis == 0 { cx.b.unsqueeze(picked, &[0])? } else { picked }])
}

/// A constant of f32.
fn f32s(cx: &mut NodeCx<'_, '_>, shape: &[usize], values: &[f32]) -> ValueId {
    cx.b.constant(Data::from_slice(shape, values))
}

/// The input as f32 rows of `features` features; a vector is one row.
fn matrix(cx: &mut NodeCx<'_, '_>, features: usize) -> Result<ValueId> {
    let x = cx.input(0)?;
    let rows = match cx.b.shape(x).as_slice() {
        [rows, _] => rows.clone(),
        _ => Dim::ONE,
    };
    let x = cx.b.reshape(x, vec![rows, Dim::from(features)])?;
    cx.b.cast(x, DType::F32)
}

/// The labels of classes: strings, or integers by the attribute that holds those.
fn class_labels(cx: &NodeCx<'_, '_>, integers: &str) -> Result<Data> {
    match (cx.ints(integers)?, cx.strs("classlabels_strings")?) {
        (Some(labels), _) if !labels.is_empty() => Ok(Data::from_slice(&[labels.len()], &labels)),
        (_, Some(labels)) if !labels.is_empty() => Ok(Data::from_texts(&[labels.len()], &labels)),
        _ => malformed("no labels are given"),
    }
}

/// The label of each class number.
fn labels_at(cx: &mut NodeCx<'_, '_>, labels: &Data, classes: ValueId) -> Result<ValueId> {
    let labels = cx.b.constant(labels.clone());
    cx.b.emit1(Op::Gather { axis: 0 }, &[labels, classes])
}

/// The type that a float result of `dtype` is computed in.
fn work(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// Values of an attribute, one for each feature or one for all, as a constant that broadcasts to `x`.
fn per_feature(cx: &mut NodeCx<'_, '_>, name: &str, x: ValueId, values: Data) -> Result<ValueId> {
    let count = values.len();
    let features = cx.b.shape(x).last().cloned().unwrap_or(Dim::ONE);
    if count != 1 && features.as_const().is_some_and(|features| features != count as i64) {
        return malformed(format!("{name} has {count} elements for {features} features"));
    }
    let dtype = cx.b.dtype(x);
    let values = cx.b.constant(values);
    cx.b.cast(values, dtype)
}

fn scale(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let shape = cx.b.shape(x);
    let mut y = cx.b.cast(x, work(cx.b.dtype(x)))?;
    for (name, function) in [("offset", BinaryFn::Sub), ("scale", BinaryFn::Mul)] {
        if let Some(values) = cx.floats(name)?.filter(|values| !values.is_empty()) {
            let values = per_feature(cx, name, y, Data::from_slice(&[values.len()], &values))?;
            y = cx.b.binary(function, y, values)?;
        }
    }
    // Values for more features than there are would make some.
    let y = cx.b.reshape(y, shape)?;
    Ok(vec![cx.b.cast(y, DType::F32)?])
}

/// A row that would be divided by 0 stays as it is.
fn normalize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let x = cx.b.cast(x, work(cx.b.dtype(x)))?;
    let axis = cx.b.rank(x) - 1;
    let divisor = match cx.str("norm")?.as_str() {
        "MAX" => cx.b.reduce(ReduceFn::Max, x, &[axis])?,
        "L1" => {
            let magnitude = cx.b.unary(UnaryFn::Abs, x)?;
            cx.b.reduce(ReduceFn::Sum, magnitude, &[axis])?
        }
        "L2" => {
            let squares = cx.b.binary(BinaryFn::Mul, x, x)?;
            let sum = cx.b.reduce(ReduceFn::Sum, squares, &[axis])?;
            cx.b.unary(UnaryFn::Sqrt, sum)?
        }
        other => return not_one_of("norm", other, "MAX, L1, L2"),
    };
    let dtype = cx.b.dtype(x);
    let (zero, one) = (cx.b.scalar(dtype, 0.0), cx.b.scalar(dtype, 1.0));
    let vanishes = cx.b.compare(CompareFn::Eq, divisor, zero)?;
    let divisor = cx.b.select(vanishes, one, divisor)?;
    let y = cx.b.binary(BinaryFn::Div, x, divisor)?;
    Ok(vec![cx.b.cast(y, DType::F32)?])
}

/// Floats take the attributes of floats, integers those of integers.
fn impute(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let dtype = cx.b.dtype(x);
    let (name, values, replaced) = match dtype.is_float() {
        true => {
            let values = cx.floats("imputed_value_floats")?.unwrap_or_default();
            let values = Data::from_slice(&[values.len()], &values);
            ("imputed_value_floats", values, Data::scalar(cx.float("replaced_value_float")?))
        }
        false => {
            let values = cx.ints("imputed_value_int64s")?.unwrap_or_default();
            let values = Data::from_slice(&[values.len()], &values);
            ("imputed_value_int64s", values, Data::scalar(cx.int("replaced_value_int64")?))
        }
    };
    if values.is_empty() {
        return malformed(format!("{name} is missing, and the input is {dtype}"));
    }
    let is_nan = replaced.to_f64s().is_some_and(|value| value[0].is_nan());
    let missing = if is_nan {
        cx.b.unary(UnaryFn::IsNan, x)?
    } else {
        let replaced = cx.b.constant(replaced);
        let replaced = cx.b.cast(replaced, dtype)?;
        cx.b.compare(CompareFn::Eq, x, replaced)?
    };
    let values = per_feature(cx, name, x, values)?;
    let y = cx.b.select(missing, values, x)?;
    let shape = cx.b.shape(x);
    Ok(vec![cx.b.reshape(y, shape)?])
}

/// Floats are truncated to integers first. Of equal categories the last one counts. With `zeros` 0, a run in which a value is not a
/// category fails.
fn one_hot(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut x = cx.input("X")?;
    let (given, shape) = (x, cx.b.shape(x));
    let categories = match (cx.ints("cats_int64s")?, cx.strs("cats_strings")?) {
        (Some(numbers), Some(texts)) if !numbers.is_empty() && !texts.is_empty() => {
            let (numbers, texts) = (numbers.len(), texts.len());
            return malformed(format!(
                "{numbers} cats_int64s and {texts} cats_strings: only one list may be given"
            ));
        }
        (Some(categories), _) if !categories.is_empty() && cx.b.dtype(x) != DType::Str => categories,
        (_, Some(categories)) if !categories.is_empty() && cx.b.dtype(x) == DType::Str => {
            let (keys, places) = distinct(&categories);
            let keys = constant(cx, &keys);
            x = find(cx.b, x, keys)?;
            places
        }
        _ => return malformed(format!("no categories are given for elements of {}", cx.b.dtype(x))),
    };
    let rank = cx.b.rank(x);
    let x = cx.b.cast(x, DType::I64)?;
    let x = cx.b.unsqueeze(x, &[rank])?;
    let columns = cx.b.i64s(&categories);
    let mut hot = cx.b.compare(CompareFn::Eq, x, columns)?;
    let is_last = |(at, category): (usize, &i64)| !categories[at + 1..].contains(category);
    let last: Vec<bool> = categories.iter().enumerate().map(is_last).collect();
    if last.contains(&false) {
        let last: Vec<i64> = last.into_iter().map(i64::from).collect();
        let last = cx.b.i64s(&last);
        let last = cx.b.cast(last, DType::Bool)?;
        hot = cx.b.binary(BinaryFn::And, hot, last)?;
    }
    let mut y = cx.b.cast(hot, DType::F32)?;
    if cx.int("zeros")? == 0 {
        // A value outside the categories becomes an index behind the only zero of a table, and the message names the value.
        let is_text = cx.b.dtype(given) == DType::Str;
        let known = cx.b.reduce(ReduceFn::Or, hot, &[rank])?;
        let (known, x) = (cx.b.reshape(known, shape.clone())?, cx.b.reshape(x, shape)?);
        let none = cx.b.scalar(DType::I64, 0.0);
        let rule = if is_text { "is not among" } else { "it must be one of" };
        let text = format!("{rule} the categories {}", listed_categories(cx, is_text)?);
        let says = (cx.operand_name("X"), text);
        let index = indices_or_fault(cx.b, [known, none, x], says, !is_text)?;
        let index = cx.b.unsqueeze(index, &[rank])?;
        let table = f32s(cx, &[1], &[0.0]);
        let checked = cx.b.emit1(Op::Gather { axis: 0 }, &[table, index])?;
        y = cx.b.binary(BinaryFn::Add, y, checked)?;
    }
    Ok(vec![y])
}

/// The first categories, for messages.
fn listed_categories(cx: &NodeCx<'_, '_>, is_text: bool) -> Result<String> {
    const SHOWN: usize = 8;
    let texts: Vec<String> = match is_text {
        true => {
            let names = cx.strs("cats_strings")?.unwrap_or_default();
            names.iter().take(SHOWN + 1).map(|name| format!("`{}`", printable(name))).collect()
        }
        false => {
            let numbers = cx.ints("cats_int64s")?.unwrap_or_default();
            numbers.iter().take(SHOWN + 1).map(i64::to_string).collect()
        }
    };
    let more = if texts.len() > SHOWN { ", ..." } else { "" };
    Ok(texts[..texts.len().min(SHOWN)].join(", ") + more)
}

/// A vector is one row. Columns beyond the stated number are left out, and missing ones are 0.
fn vectorize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let inputs = cx.all_inputs()?;
    let counts = cx.ints("inputdimensions")?.unwrap_or_default();
    if !counts.is_empty() && counts.len() != inputs.len() || counts.iter().any(|&count| count < 0) {
        return malformed(format!("inputdimensions {counts:?} of {} inputs", inputs.len()));
    }
    let mut columns = Vec::with_capacity(inputs.len());
    for (at, &x) in inputs.iter().enumerate() {
        let shape = cx.b.shape(x);
        let (rows, width) = match shape.split_first() {
            Some((rows, rest)) if !rest.is_empty() => (rows.clone(), onnxc_ir::graph::dim::product(rest)),
            _ => (Dim::ONE, cx.b.ty(x).elements()),
        };
        let x = cx.b.reshape(x, vec![rows, width.clone()])?;
        let mut x = cx.b.cast(x, DType::F32)?;
        if let Some(&count) = counts.get(at) {
            let kept = width.min_dim(&Dim::from(count));
            x = cx.b.slice_axis(x, 1, Dim::ZERO, kept.clone())?;
            let zero = cx.b.scalar(DType::F32, 0.0);
            let missing = Dim::from(count) - kept;
            x = cx.b.pad(x, zero, vec![Dim::ZERO; 2], vec![Dim::ZERO, missing])?;
        }
        columns.push(x);
    }
    Ok(vec![cx.b.concat(&columns, 1)?])
}

fn binarize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let dtype = cx.b.dtype(x);
    let threshold = f64::from(cx.float("threshold")?);
    let above = match dtype {
        DType::I32 => above_integer(cx, x, threshold, 31)?,
        DType::I64 => above_integer(cx, x, threshold, 63)?,
        _ => {
            let threshold = cx.b.scalar(dtype, threshold);
            cx.b.compare(CompareFn::Gt, x, threshold)?
        }
    };
    Ok(vec![cx.b.cast(above, dtype)?])
}

/// Where integers between `-2^bits` and `2^bits` are above `threshold`: where they are above its floor.
fn above_integer(cx: &mut NodeCx<'_, '_>, x: ValueId, threshold: f64, bits: i32) -> Result<ValueId> {
    let (floor, limit) = (threshold.floor(), 2f64.powi(bits));
    if floor >= -limit && floor < limit {
        let floor = cx.b.constant(onnxc_ir::graph::Tensor::scalar(floor as i64));
        let floor = cx.b.cast(floor, cx.b.dtype(x))?;
        return cx.b.compare(CompareFn::Gt, x, floor);
    }
    let all = cx.b.scalar(DType::Bool, f64::from(u8::from(floor < 0.0)));
    let shape = cx.b.shape(x);
    cx.b.expand(all, shape)
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn binarizer() -> Case {
        crate::tests::case("ai.onnx.ml", "Binarizer", 1)
    }

    #[test]
    fn above_the_threshold() {
        let values = [0.9f32, 1.0, 1.1, f32::NAN];
        binarizer().float("threshold", 1.0).symbolic(&["n"], &[4], &values).gives(0, &[4], &[0., 0., 1., 0.]);
        binarizer().input(&[3], &[-1.0f64, 0.0, 1e-300]).gives(0, &[3], &[0., 0., 1.]);
    }

    #[test]
    fn integers_are_compared_exactly() {
        let of = |threshold: f32| binarizer().float("threshold", threshold);
        let large = 1i64 << 60;
        of(large as f32).input(&[3], &[large - 1, large, large + 1]).gives(0, &[3], &[0., 0., 1.]);
        let values = [i32::MIN, -2, -1, 0, i32::MAX];
        of(-1.5).input(&[5], &values).gives(0, &[5], &[0., 0., 1., 1., 1.]);
        of(-1e10).input(&[5], &values).gives(0, &[5], &[1.; 5]);
        of(1e10).input(&[5], &values).gives(0, &[5], &[0.; 5]);
        of(f32::INFINITY).input(&[1], &[i64::MAX]).gives(0, &[1], &[0.]);
        of(f32::NAN).input(&[1], &[i64::MAX]).gives(0, &[1], &[0.]);
    }

    fn ml(name: &'static str) -> Case {
        crate::tests::case("ai.onnx.ml", name, 1)
    }

    fn message(case: Case) -> String {
        case.run().unwrap_err().message
    }

    /// The first of equal keys counts, in any order.
    #[test]
    fn keys_in_any_order() {
        let case = ml("LabelEncoder").at(4).symbolic::<i64>(&["n"], &[5], &[1, 3, 5, 2, 6]);
        let case = case.ints("keys_int64s", &[5, 1, 3, 1]).floats("values_floats", &[50., 10., 30., 11.]);
        case.float("default_float", -1.).gives(0, &[5], &[10., 30., 50., -1., -1.]);
    }

    /// The quantile of the normal distribution, by Winitzki's approximation of the inverse error function.
    #[test]
    fn scores_as_quantiles() {
        let case = ml("LinearRegressor").symbolic::<f32>(&["n", ""], &[3, 1], &[0.2, 0.5, 0.9]);
        let outputs = case.floats("coefficients", &[1.]).str("post_transform", "PROBIT").run().unwrap();
        let found = onnxc_ops::node_case::elements(&outputs[0]);
        for (found, wanted) in found.iter().zip([-0.841621, 0., 1.281552]) {
            assert!((found - wanted).abs() < 5e-3, "{found} and not {wanted}");
        }
    }

    #[test]
    fn scaling_per_feature() {
        let x = || ml("Scaler").symbolic(&["n", ""], &[2, 2], &[1f32, -2., 3., 4.]);
        x().floats("offset", &[1., 0.5]).floats("scale", &[2., 10.]).gives(0, &[2, 2], &[0., -25., 4., 35.]);
        x().floats("scale", &[2.]).gives(0, &[2, 2], &[2., -4., 6., 8.]);
        x().gives(0, &[2, 2], &[1., -2., 3., 4.]);
        let wide = ml("Scaler").input(&[1], &[16777217.0f64]).floats("offset", &[16777216.0]);
        wide.gives(0, &[1], &[1.]);
        assert!(message(x().floats("offset", &[1.; 3])).contains("offset has 3 elements for 2 features"));
    }

    #[test]
    fn rows_divided_by_a_norm() {
        let x = |norm: &str| {
            let values = [1f32, -2., 2., 0., 0., 0., -3., -4., 0.];
            ml("Normalizer").str("norm", norm).symbolic(&["n", ""], &[3, 3], &values)
        };
        x("MAX").gives(0, &[3, 3], &[0.5, -1., 1., 0., 0., 0., -3., -4., 0.]);
        x("L1").gives(0, &[3, 3], &[0.2, -0.4, 0.4, 0., 0., 0., -3. / 7., -4. / 7., 0.]);
        x("L2").gives(0, &[3, 3], &[1. / 3., -2. / 3., 2. / 3., 0., 0., 0., -0.6, -0.8, 0.]);
        ml("Normalizer").str("norm", "L1").input(&[2], &[3i64, -1]).gives(0, &[2], &[0.75, -0.25]);
        assert!(message(x("L3")).contains("MAX, L1, L2"));
    }

    #[test]
    fn missing_values_are_replaced() {
        let nan = f32::NAN;
        let x = || ml("Imputer").input(&[2, 2], &[nan, 0., 0., nan]);
        let by = |case: Case, of: f32| {
            case.floats("imputed_value_floats", &[7., 8.]).float("replaced_value_float", of)
        };
        by(x(), nan).gives(0, &[2, 2], &[7., 0., 0., 8.]);
        by(x(), 0.0).gives(0, &[2, 2], &[f64::NAN, 8., 7., f64::NAN]);
        let integers = |values: &[i64]| {
            let large = (1i64 << 53) + 1;
            let case = ml("Imputer").input(&[3], &[large, large - 1, 5]).ints("imputed_value_int64s", values);
            case.int("replaced_value_int64", large)
        };
        integers(&[4]).gives(0, &[3], &[4., (1i64 << 53) as f64, 5.]);
        assert!(message(integers(&[4, 5])).contains("has 2 elements for 3 features"));
        assert!(message(x().ints("imputed_value_int64s", &[1])).contains("imputed_value_floats is missing"));
    }

    #[test]
    fn categories_become_columns() {
        let of = |case: Case| case.ints("cats_int64s", &[3, 1, 3]);
        let wanted = [0., 1., 0., 0., 0., 0., 0., 0., 1.];
        of(ml("OneHotEncoder").input(&[3], &[1i64, 2, 3])).gives(0, &[3, 3], &wanted);
        of(ml("OneHotEncoder").input(&[3, 1], &[1.5f32, -2., 3.])).gives(0, &[3, 1, 3], &wanted);
        let strict = |x: i64| of(ml("OneHotEncoder").int("zeros", 0).input(&[1], &[x]));
        strict(1).gives(0, &[1, 3], &[0., 1., 0.]);
        assert!(strict(2).run().is_err());
        assert!(message(ml("OneHotEncoder").input(&[1], &[1i64])).contains("no categories"));
    }

    #[test]
    fn columns_are_cut_and_filled() {
        let x = || ml("FeatureVectorizer").symbolic(&["n", ""], &[2, 2], &[1f32, 2., 3., 4.]);
        let two = || x().symbolic(&["n", ""], &[2, 1], &[5f32, 6.]);
        two().ints("inputdimensions", &[1, 2]).gives(0, &[2, 3], &[1., 5., 0., 3., 6., 0.]);
        two().gives(0, &[2, 3], &[1., 2., 5., 3., 4., 6.]);
        let vectors = ml("FeatureVectorizer").input(&[2], &[1i64, 2]).input(&[1], &[3i64]);
        vectors.ints("inputdimensions", &[2, 1]).gives(0, &[1, 3], &[1., 2., 3.]);
        assert!(message(two().ints("inputdimensions", &[1])).contains("of 2 inputs"));
    }
}
