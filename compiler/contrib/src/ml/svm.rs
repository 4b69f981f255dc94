//! Support vector machines: SVMRegressor and SVMClassifier. Probabilities of more than two classes are LIBSVM's coupling of
//! those of pairs (Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, method 2).

use super::scores::Transform;
use super::{DOMAIN, Data, NUMBERS, class_labels, f32s, labels_at, matrix};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Op, TensorType};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    op("SVMRegressor", 1, regressor)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[
            optional("coefficients", Floats),
            optional("kernel_params", Floats),
            string("kernel_type", "LINEAR"),
            int("n_supports", 0),
            int("one_class", 0),
            string("post_transform", "NONE"),
            optional("rho", Floats),
            optional("support_vectors", Floats),
        ])
        .types(&[("T", NUMBERS)])
        .shapes(&["X[_, _] | [_]"])
        .doc("A sum of kernels at the support vectors"),
    op("SVMClassifier", 1, classifier)
        .domain(DOMAIN)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2"), req("Z", "tensor(float)")])
        .attributes(&[
            optional("classlabels_ints", Ints),
            optional("classlabels_strings", Strs),
            optional("coefficients", Floats),
            optional("kernel_params", Floats),
            string("kernel_type", "LINEAR"),
            string("post_transform", "NONE"),
            optional("prob_a", Floats),
            optional("prob_b", Floats),
            optional("rho", Floats),
            optional("support_vectors", Floats),
            optional("vectors_per_class", Ints),
        ])
        .types(&[("T1", NUMBERS), ("T2", &[DType::Str, DType::I64])])
        .shapes(&["X[_, _] | [_]"])
        .doc("The class with most votes of pairs of classes, and scores"),
];

/// Iterations that the coupling of probabilities takes at most.
const MAX_ITERATIONS: usize = 100;

fn given(cx: &NodeCx<'_, '_>, name: &str) -> Result<Vec<f32>> {
    Ok(cx.floats(name)?.unwrap_or_default())
}

/// The support vectors, `[count, features]`.
fn vectors(cx: &NodeCx<'_, '_>, count: usize) -> Result<(Vec<f32>, usize)> {
    let vectors = given(cx, "support_vectors")?;
    if vectors.is_empty() || !vectors.len().is_multiple_of(count) {
        return malformed(format!("{} numbers of support_vectors for {count} vectors", vectors.len()));
    }
    let features = vectors.len() / count;
    Ok((vectors, features))
}

/// The kernel of each row of `x: [N, F]` and each of the `count` vectors, `[N, count]`.
fn kernels(cx: &mut NodeCx<'_, '_>, x: ValueId, vectors: &[f32], count: usize) -> Result<ValueId> {
    let parameters = given(cx, "kernel_params")?;
    let parameter = |at: usize| parameters.get(at).copied().map_or(0.0, f64::from);
    let (gamma, offset, degree) = (parameter(0), parameter(1), parameter(2));
    let features = vectors.len() / count;
    let kind = cx.str("kernel_type")?;
    if kind == "RBF" {
        // exp(-gamma * |x - v|^2); the difference is taken first, as it may be far smaller than its parts.
        let vectors = f32s(cx, &[1, count, features], vectors);
        let x = cx.b.unsqueeze(x, &[1])?;
        let difference = cx.b.binary(BinaryFn::Sub, x, vectors)?;
        let squares = cx.b.binary(BinaryFn::Mul, difference, difference)?;
        let distance = cx.b.reduce(ReduceFn::Sum, squares, &[2])?;
        let distance = cx.b.squeeze(distance, &[2])?;
        let exponent = cx.b.binary_scalar(BinaryFn::Mul, distance, -gamma)?;
        return cx.b.unary(UnaryFn::Exp, exponent);
    }
    let vectors = f32s(cx, &[count, features], vectors);
    let vectors = cx.b.transpose(vectors, &[1, 0])?;
    let product = cx.b.matmul(x, vectors)?;
    let affine = |cx: &mut NodeCx<'_, '_>| {
        let scaled = cx.b.binary_scalar(BinaryFn::Mul, product, gamma)?;
        cx.b.binary_scalar(BinaryFn::Add, scaled, offset)
    };
    match kind.as_str() {
        "LINEAR" => Ok(product),
        "POLY" => {
            let base = affine(cx)?;
            cx.b.binary_scalar(BinaryFn::Pow, base, degree)
        }
        "SIGMOID" => {
            let argument = affine(cx)?;
            cx.b.unary(UnaryFn::Tanh, argument)
        }
        other => not_one_of("kernel_type", other, "LINEAR, POLY, RBF, SIGMOID"),
    }
}

/// The number at `at` of `rho`.
fn rho(cx: &NodeCx<'_, '_>, at: usize) -> Result<f64> {
    match given(cx, "rho")?.get(at) {
        Some(&rho) => Ok(f64::from(rho)),
        None => malformed(format!("rho has no element {at}")),
    }
}

/// Without support vectors the coefficients are those of the features. No transform is applied, as ONNX Runtime applies none.
fn regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    Transform::of(cx)?;
    let coefficients = given(cx, "coefficients")?;
    let y = match usize::try_from(cx.int("n_supports")?) {
        Ok(count) if count > 0 => {
            if coefficients.len() != count {
                return malformed(format!("{} coefficients for {count} support vectors", coefficients.len()));
            }
            let (vectors, features) = vectors(cx, count)?;
            let x = matrix(cx, features)?;
            let kernels = kernels(cx, x, &vectors, count)?;
            let coefficients = f32s(cx, &[count, 1], &coefficients);
            cx.b.matmul(kernels, coefficients)?
        }
        _ => linear(cx, &coefficients, 1)?,
    };
    let rho = rho(cx, 0)?;
    let mut y = cx.b.binary_scalar(BinaryFn::Add, y, rho)?;
    if cx.int("one_class")? != 0 {
        let (zero, one, minus) =
            (cx.b.scalar(DType::F32, 0.0), cx.b.scalar(DType::F32, 1.0), cx.b.scalar(DType::F32, -1.0));
        let inside = cx.b.compare(CompareFn::Gt, y, zero)?;
        y = cx.b.select(inside, one, minus)?;
    }
    Ok(vec![y])
}

/// The product of the input and the coefficients of each class: `[N, classes]`.
fn linear(cx: &mut NodeCx<'_, '_>, coefficients: &[f32], classes: usize) -> Result<ValueId> {
    if coefficients.is_empty() || !coefficients.len().is_multiple_of(classes) {
        return malformed(format!("{} coefficients for {classes} classes", coefficients.len()));
    }
    let features = coefficients.len() / classes;
    let x = matrix(cx, features)?;
    let weights = f32s(cx, &[classes, features], coefficients);
    let weights = cx.b.transpose(weights, &[1, 0])?;
    cx.b.matmul(x, weights)
}

fn classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = Transform::of(cx)?;
    let labels = class_labels(cx, "classlabels_ints")?;
    let counts = cx.ints("vectors_per_class")?.unwrap_or_default();
    if counts.iter().any(|&count| count > 0) {
        votes(cx, &labels, &counts, transform)
    } else {
        direct(cx, &labels, transform)
    }
}

/// One score for each class, without support vectors. All have the first `rho`.
fn direct(cx: &mut NodeCx<'_, '_>, labels: &Data, transform: Transform) -> Result<Vec<ValueId>> {
    let coefficients = given(cx, "coefficients")?;
    let scores = linear(cx, &coefficients, labels.len())?;
    let rho_0 = rho(cx, 0)?;
    let scores = cx.b.binary_scalar(BinaryFn::Add, scores, rho_0)?;
    let mut class = cx.b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[scores])?;
    class = cx.b.squeeze(class, &[1])?;
    if labels.len() == 2 && given(cx, "rho")?.len() == 1 {
        // ONNX Runtime takes the second class for a positive one.
        let bound = if coefficients.iter().all(|&weight| weight >= 0.0) { 0.5 } else { 0.0 };
        let function = if bound > 0.0 { CompareFn::Ge } else { CompareFn::Gt };
        let most = cx.b.reduce(ReduceFn::Max, scores, &[1])?;
        let most = cx.b.squeeze(most, &[1])?;
        let bound = cx.b.scalar(DType::F32, bound);
        let positive = cx.b.compare(function, most, bound)?;
        let second = cx.b.scalar(DType::I64, 1.0);
        class = cx.b.select(positive, second, class)?;
    }
    let scores = match labels.len() {
        1 => transform.apply_to_one(cx, scores)?,
        _ => transform.apply(cx, scores)?,
    };
    Ok(vec![labels_at(cx, labels, class)?, scores])
}

/// Every pair of classes votes by the sum of the kernels at their support vectors.
fn votes(
    cx: &mut NodeCx<'_, '_>,
    labels: &Data,
    counts: &[i64],
    transform: Transform,
) -> Result<Vec<ValueId>> {
    let classes = labels.len();
    let counts: Option<Vec<usize>> = counts.iter().map(|&count| usize::try_from(count).ok()).collect();
    let Some(counts) = counts.filter(|counts| counts.len() == classes && classes > 1) else {
        return malformed(format!("vectors_per_class does not fit {classes} labels"));
    };
    let total: usize = counts.iter().fold(0, |sum, &count| sum.saturating_add(count));
    let (vectors, features) = vectors(cx, total)?;
    let coefficients = given(cx, "coefficients")?;
    if coefficients.len() != (classes - 1).saturating_mul(total) {
        return malformed(format!(
            "{} coefficients for {total} support vectors of {classes} classes",
            coefficients.len()
        ));
    }
    let pairs: Vec<(usize, usize)> =
        (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j))).collect();
    let offsets = given(cx, "rho")?;
    if offsets.len() != pairs.len() {
        return malformed(format!("rho has {} elements for {} pairs of classes", offsets.len(), pairs.len()));
    }
    let starts: Vec<usize> = (0..classes).map(|class| counts[..class].iter().sum()).collect();
    // The score of each pair as a product with all kernels: those of its two classes have weights.
    let mut weights = vec![0f32; total * pairs.len()];
    for (at, &(i, j)) in pairs.iter().enumerate() {
        for (of, by) in [(i, j - 1), (j, i)] {
            for vector in starts[of]..starts[of] + counts[of] {
                weights[vector * pairs.len() + at] = coefficients[by * total + vector];
            }
        }
    }
    let x = matrix(cx, features)?;
    let kernels = kernels(cx, x, &vectors, total)?;
    let weights = f32s(cx, &[total, pairs.len()], &weights);
    let scores = cx.b.matmul(kernels, weights)?;
    let offsets = f32s(cx, &[pairs.len()], &offsets);
    let scores = cx.b.binary(BinaryFn::Add, scores, offsets)?;
    let class = winner(cx, scores, &pairs, classes)?;
    let labels = labels_at(cx, labels, class)?;
    if !given(cx, "prob_a")?.is_empty() {
        let probabilities = probabilities(cx, scores, &pairs, classes)?;
        return Ok(vec![labels, transform.apply(cx, probabilities)?]);
    }
    let scores = match classes {
        2 => transform.apply_to_two(cx, scores, transform == Transform::None)?,
        _ => transform.apply(cx, scores)?,
    };
    Ok(vec![labels, scores])
}

/// The class with most votes, the first of several, `[N]`.
fn winner(
    cx: &mut NodeCx<'_, '_>,
    scores: ValueId,
    pairs: &[(usize, usize)],
    classes: usize,
) -> Result<ValueId> {
    // Where a score is positive its first class has the vote, else the second one.
    let (mut first, mut second) = (vec![0f32; pairs.len() * classes], vec![0f32; pairs.len() * classes]);
    for (at, &(i, j)) in pairs.iter().enumerate() {
        first[at * classes + i] = 1.0;
        second[at * classes + j] = 1.0;
    }
    let zero = cx.b.scalar(DType::F32, 0.0);
    let positive = cx.b.compare(CompareFn::Gt, scores, zero)?;
    let other = cx.b.unary(UnaryFn::Not, positive)?;
    let mut votes = Vec::new();
    for (has, table) in [(positive, first), (other, second)] {
        let has = cx.b.cast(has, DType::F32)?;
        let table = f32s(cx, &[pairs.len(), classes], &table);
        votes.push(cx.b.matmul(has, table)?);
    }
    let votes = cx.b.binary(BinaryFn::Add, votes[0], votes[1])?;
    let class = cx.b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[votes])?;
    cx.b.squeeze(class, &[1])
}

/// Probabilities of the classes from those of pairs, `[N, classes]`.
fn probabilities(
    cx: &mut NodeCx<'_, '_>,
    scores: ValueId,
    pairs: &[(usize, usize)],
    classes: usize,
) -> Result<ValueId> {
    let (a, b) = (given(cx, "prob_a")?, given(cx, "prob_b")?);
    if [a.len(), b.len()] != [pairs.len(); 2] {
        return malformed(format!(
            "{} prob_a and {} prob_b for {} pairs of classes",
            a.len(),
            b.len(),
            pairs.len()
        ));
    }
    // That a pair's first class is the right one of the two.
    let (a, b) = (f32s(cx, &[pairs.len()], &a), f32s(cx, &[pairs.len()], &b));
    let exponent = cx.b.binary(BinaryFn::Mul, scores, a)?;
    let exponent = cx.b.binary(BinaryFn::Add, exponent, b)?;
    let exponent = cx.b.unary(UnaryFn::Neg, exponent)?;
    let first = cx.b.unary(UnaryFn::Sigmoid, exponent)?;
    let first = cx.b.binary_scalar(BinaryFn::Max, first, 1e-7)?;
    let first = cx.b.binary_scalar(BinaryFn::Min, first, f64::from(1.0 - 1e-7f32))?;
    let column = |cx: &mut NodeCx<'_, '_>, at: usize| cx.b.slice_axis(first, 1, Dim::from(at), Dim::ONE);
    // r[i][j]: that the class is i, if it is one of i and j; [N, 1] each.
    let mut r: Vec<Vec<Option<ValueId>>> = vec![vec![None; classes]; classes];
    for (at, &(i, j)) in pairs.iter().enumerate() {
        let value = column(cx, at)?;
        let opposite = cx.b.unary(UnaryFn::Neg, value)?;
        r[i][j] = Some(value);
        r[j][i] = Some(cx.b.binary_scalar(BinaryFn::Add, opposite, 1.0)?);
    }
    let at = |i: usize, j: usize| r[i][j].expect("two different classes are a pair");
    // Q[t][t] is the sum of r[j][t]^2, and Q[t][j] is -r[j][t] r[t][j].
    let mut entries = Vec::with_capacity(classes * classes);
    for t in 0..classes {
        for j in 0..classes {
            let mut entry = None;
            for other in (0..classes).filter(|&other| other != t && (j == t || other == j)) {
                let factor = if j == t { at(other, t) } else { at(t, other) };
                let product = cx.b.binary(BinaryFn::Mul, at(other, t), factor)?;
                entry = Some(match entry {
                    Some(sum) => cx.b.binary(BinaryFn::Add, sum, product)?,
                    None => product,
                });
            }
            let entry = entry.expect("there are two classes or more");
            entries.push(if j == t { entry } else { cx.b.unary(UnaryFn::Neg, entry)? });
        }
    }
    let q = cx.b.concat(&entries, 1)?;
    let rows = cx.b.shape(scores)[0].clone();
    let shape = vec![rows.clone(), Dim::from(classes)];
    let q = cx.b.reshape(q, vec![rows.clone(), Dim::from(classes), Dim::from(classes)])?;
    let even = cx.b.scalar(DType::F32, 1.0 / classes as f64);
    let even = cx.b.expand(even, shape)?;
    let open = cx.b.scalar(DType::Bool, 1.0);
    let open = cx.b.expand(open, vec![rows, Dim::ONE])?;
    let types = [even, open, q].map(|value| cx.b.ty(value).clone());
    let body = coupling(cx.b, &types, classes)?;
    let steps = Dim::from(MAX_ITERATIONS.max(classes));
    Ok(cx.b.emit(Op::scan(body, steps, 2, 0, vec![]), &[even, open, q])?[0])
}

/// One iteration for all rows: probabilities `p: [N, K]`, whether a row still changes `[N, 1]`, and `Q: [N, K, K]`.
fn coupling(b: &mut Builder<'_>, types: &[TensorType; 3], classes: usize) -> Result<Graph> {
    let (mut graph, origin) = b.body();
    let mut inner = Builder::new(&mut graph, origin);
    let b = &mut inner;
    let [p, open, q] =
        [("p", 0), ("open", 1), ("q", 2)].map(|(name, at)| b.input(name, types[at].clone(), None));
    let dot = |b: &mut Builder<'_>, x: ValueId, y: ValueId| {
        let product = b.binary(BinaryFn::Mul, x, y)?;
        let axis = b.rank(product) - 1;
        b.reduce(ReduceFn::Sum, product, &[axis])
    };
    let row = b.unsqueeze(p, &[1])?;
    let qp = dot(b, q, row)?;
    let mut qp = b.squeeze(qp, &[2])?;
    let mut pqp = dot(b, p, qp)?;
    // A row is done once Q p is the same for all classes.
    let error = b.binary(BinaryFn::Sub, qp, pqp)?;
    let error = b.unary(UnaryFn::Abs, error)?;
    let error = b.reduce(ReduceFn::Max, error, &[1])?;
    let bound = b.scalar(DType::F32, 0.005 / classes as f64);
    let far = b.compare(CompareFn::Ge, error, bound)?;
    let open = b.binary(BinaryFn::And, open, far)?;
    let mut next = p;
    for t in 0..classes {
        let start = Dim::from(t);
        let column = b.slice_axis(q, 1, start.clone(), Dim::ONE)?;
        let column = b.squeeze(column, &[1])?;
        let diagonal = b.slice_axis(column, 1, start.clone(), Dim::ONE)?;
        let of_t = b.slice_axis(qp, 1, start, Dim::ONE)?;
        let step = b.binary(BinaryFn::Sub, pqp, of_t)?;
        let step = b.binary(BinaryFn::Div, step, diagonal)?;
        // (pqp + step * (step * Q[t][t] + 2 Qp[t])) / (1 + step)^2
        let total = b.binary_scalar(BinaryFn::Add, step, 1.0)?;
        let change = b.binary(BinaryFn::Mul, step, diagonal)?;
        let twice = b.binary_scalar(BinaryFn::Mul, of_t, 2.0)?;
        let change = b.binary(BinaryFn::Add, change, twice)?;
        let change = b.binary(BinaryFn::Mul, step, change)?;
        let sum = b.binary(BinaryFn::Add, pqp, change)?;
        let sum = b.binary(BinaryFn::Div, sum, total)?;
        pqp = b.binary(BinaryFn::Div, sum, total)?;
        let moved = b.binary(BinaryFn::Mul, step, column)?;
        let moved = b.binary(BinaryFn::Add, qp, moved)?;
        qp = b.binary(BinaryFn::Div, moved, total)?;
        let mut unit = vec![0f32; classes];
        unit[t] = 1.0;
        let unit = b.constant(onnxc_ir::graph::Tensor::from_slice(&[1, classes], &unit));
        let added = b.binary(BinaryFn::Mul, step, unit)?;
        let added = b.binary(BinaryFn::Add, next, added)?;
        next = b.binary(BinaryFn::Div, added, total)?;
    }
    let p = b.select(open, next, p)?;
    graph.outputs = vec![("p".to_string(), p), ("open".to_string(), open)];
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    fn ml(name: &'static str) -> Case {
        crate::tests::case("ai.onnx.ml", name, 1)
    }

    #[test]
    fn a_regressor_without_support_vectors() {
        let case = ml("SVMRegressor").input::<f32>(&[2, 3], &[1.0, 2.0, 3.0, 0.0, -1.0, 4.0]);
        let case = case.floats("coefficients", &[1.0, 2.0, -1.0]).floats("rho", &[0.5]);
        case.gives(0, &[2, 1], &[2.5, -5.5]);
    }

    #[test]
    fn features_have_coefficients() {
        let case = ml("SVMRegressor").input::<f32>(&[1, 1], &[0.5]).floats("rho", &[0.5]);
        let message = case.floats("coefficients", &[]).run().unwrap_err().message;
        assert!(message.contains("0 coefficients for 1 classes"), "{message}");
    }

    #[test]
    fn each_support_vector_has_a_coefficient() {
        let case = ml("SVMRegressor").input::<f32>(&[1, 1], &[0.5]).floats("support_vectors", &[1.0, 2.0]);
        let case = case.floats("coefficients", &[1.0, 2.0, 3.0]).floats("rho", &[0.5]).int("n_supports", 2);
        let message = case.run().unwrap_err().message;
        assert!(message.contains("3 coefficients for 2 support vectors"), "{message}");
    }

    #[test]
    fn one_class_has_no_pairs() {
        let case = ml("SVMClassifier").input::<f32>(&[1, 1], &[0.5]).ints("classlabels_ints", &[7]);
        let case = case.ints("vectors_per_class", &[1]).floats("support_vectors", &[1.0]);
        let message =
            case.floats("coefficients", &[]).floats("rho", &[0.25]).outputs(2).run().unwrap_err().message;
        assert!(message.contains("vectors_per_class does not fit 1 labels"), "{message}");
    }

    /// Labels are those of ONNX Runtime: the second one is for a positive score, or one of a half where no coefficient is
    /// negative.
    #[test]
    fn two_classes_without_support_vectors() {
        let case = |coefficients: &[f32]| {
            let x = [0.1, 0.1, 0.5, 0.5, 2.0, 1.0, -1.0, -1.0];
            let case = ml("SVMClassifier").input::<f32>(&[4, 2], &x).ints("classlabels_ints", &[10, 20]);
            case.floats("coefficients", coefficients).floats("rho", &[0.1]).outputs(2)
        };
        let positive = case(&[0.5, 0.25, 0.25, 0.125]);
        positive.gives(0, &[4], &[10.0, 10.0, 20.0, 20.0]);
        positive.gives(1, &[4, 2], &[0.175, 0.1375, 0.475, 0.2875, 1.35, 0.725, -0.65, -0.275]);
        let mixed = case(&[0.5, -0.25, 0.25, -0.125]);
        mixed.gives(0, &[4], &[20.0; 4]);
        mixed.gives(1, &[4, 2], &[0.125, 0.1125, 0.225, 0.1625, 0.85, 0.475, -0.15, -0.025]);
    }

    /// Probabilities are those of LIBSVM's `multiclass_probability` in f64.
    #[test]
    fn probabilities_of_three_classes() {
        let case = |b: &[f32]| {
            ml("SVMClassifier")
                .symbolic::<f32>(&["n", ""], &[2, 1], &[0.75, -2.0])
                .ints("classlabels_ints", &[7, 8, 9])
                .ints("vectors_per_class", &[1, 1, 1])
                .floats("support_vectors", &[1.0, -1.0, 2.0])
                .floats("coefficients", &[1.0, -0.5, 0.25, 0.5, 1.0, -1.0])
                .floats("rho", &[0.25, -0.5, 0.1])
                .floats("prob_a", &[-1.0, -2.0, -0.5])
                .floats("prob_b", b)
                .outputs(2)
        };
        let whole = case(&[0.1, 0.0, -0.2]);
        whole.gives(0, &[2], &[7.0, 8.0]);
        whole.gives(1, &[2, 3], &[0.531305, 0.142681, 0.326013, 0.026457, 0.935604, 0.037939]);
        // More iterations than classes: after three it is 0.174481, 0.266411, 0.559108.
        let slow = ml("SVMClassifier").symbolic::<f32>(&["n", ""], &[1, 1], &[0.75]);
        let slow = slow.ints("classlabels_ints", &[7, 8, 9]).ints("vectors_per_class", &[1, 1, 1]);
        let slow = slow.floats("support_vectors", &[1.0, -1.0, 2.0]).floats("coefficients", &[0.0; 6]);
        let slow =
            slow.floats("rho", &[0.0; 3]).floats("prob_a", &[0.0; 3]).floats("prob_b", &[-7.2, 7.8, -0.6]);
        slow.outputs(2).gives(1, &[1, 3], &[0.172983, 0.267166, 0.559851]);
        let message = case(&[0.1, 0.0]).run().unwrap_err().message;
        assert!(message.contains("3 prob_a and 2 prob_b for 3 pairs of classes"), "{message}");
    }
}
