//! Linear models: LinearRegressor and LinearClassifier.

use super::scores::Transform;
use super::{DOMAIN, Data, NUMBERS, class_labels, f32s, labels_at, matrix};
use onnxc_ir::graph::Op;
use onnxc_ir::rules::Rule;
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[
    op("LinearRegressor", 1, regressor)
        .domain(DOMAIN)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "tensor(float)")])
        .attributes(&[
            optional("coefficients", Floats),
            optional("intercepts", Floats),
            string("post_transform", "NONE"),
            int("targets", 1),
        ])
        .types(&[("T", NUMBERS)])
        .shapes(&["X[_, _] | [_]"])
        .doc("Sums weighted by coefficients"),
    op("LinearClassifier", 1, classifier)
        .domain(DOMAIN)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2"), req("Z", "tensor(float)")])
        .attributes(&[
            optional("classlabels_ints", Ints),
            optional("classlabels_strings", Strs),
            required("coefficients", Floats),
            optional("intercepts", Floats),
            int("multi_class", 0),
            string("post_transform", "NONE"),
        ])
        .types(&[("T1", NUMBERS), ("T2", &[DType::Str, DType::I64])])
        .shapes(&["X[_, _] | [_]"])
        .doc("The class of the greatest weighted sum, and the sums"),
];

/// `X * coefficients^T + intercepts`, `[N, targets]`: the coefficients of a target lie side by side. As in ONNX Runtime, X
/// decides how many features there are, and coefficients beyond those are not read.
fn sums(cx: &mut NodeCx<'_, '_>, targets: usize) -> Result<ValueId> {
    let mut coefficients = cx.floats("coefficients")?.unwrap_or_default();
    let taken = features(cx).and_then(|features| targets.checked_mul(features)).unwrap_or(0);
    if (1..coefficients.len()).contains(&taken) {
        let message = format!(
            "{} coefficients are given, and {} features for each of {targets} targets take {taken}: the first are taken",
            coefficients.len(),
            taken / targets,
        );
        cx.tolerated.push((Rule::AttributeMeaning, message));
        coefficients.truncate(taken);
    }
    if targets == 0 || coefficients.is_empty() || !coefficients.len().is_multiple_of(targets) {
        return malformed(format!("{} coefficients for {targets} targets", coefficients.len()));
    }
    let features = coefficients.len() / targets;
    let x = matrix(cx, features)?;
    let weights = f32s(cx, &[targets, features], &coefficients);
    let weights = cx.b.transpose(weights, &[1, 0])?;
    let y = cx.b.matmul(x, weights)?;
    match cx.floats("intercepts")? {
        Some(intercepts) if !intercepts.is_empty() => {
            if intercepts.len() != targets {
                return malformed(format!("{} intercepts for {targets} targets", intercepts.len()));
            }
            let intercepts = f32s(cx, &[targets], &intercepts);
            cx.b.binary(BinaryFn::Add, y, intercepts)
        }
        _ => Ok(y),
    }
}

fn regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = Transform::of(cx)?;
    let targets = cx.int("targets")?;
    let y = sums(cx, usize::try_from(targets).unwrap_or(0))?;
    Ok(vec![if targets == 1 { transform.apply_to_one(cx, y)? } else { transform.apply(cx, y)? }])
}

/// With one score per row there are two classes, or one and what is not of it; the label is that of the untransformed score.
fn classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let transform = Transform::of(cx)?;
    let labels = class_labels(cx, "classlabels_ints")?;
    let coefficients = cx.floats("coefficients")?.unwrap_or_default();
    let intercepts = cx.floats("intercepts")?.unwrap_or_default().len();
    let targets = match intercepts {
        0 => features(cx).map_or(labels.len(), |features| coefficients.len() / features.max(1)),
        count => count,
    };
    let scores = sums(cx, targets)?;
    if targets > 1 {
        if labels.len() != targets {
            return malformed(format!("{} labels for {targets} classes", labels.len()));
        }
        let best = cx.b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[scores])?;
        let best = cx.b.squeeze(best, &[1])?;
        return Ok(vec![labels_at(cx, &labels, best)?, transform.apply(cx, scores)?]);
    }
    let bound = cx.b.scalar(DType::F32, 0.0);
    match labels.len() {
        2 => {
            let second = cx.b.compare(CompareFn::Gt, scores, bound)?;
            let second = cx.b.cast(second, DType::I64)?;
            let second = cx.b.squeeze(second, &[1])?;
            Ok(vec![labels_at(cx, &labels, second)?, transform.apply_to_two(cx, scores, false)?])
        }
        1 => {
            let scores = transform.apply(cx, scores)?;
            let bound = cx.b.scalar(DType::F32, if transform == Transform::None { 0.0 } else { 0.5 });
            let is_class = cx.b.compare(CompareFn::Ge, scores, bound)?;
            let is_class = cx.b.cast(is_class, DType::I64)?;
            let is_class = cx.b.squeeze(is_class, &[1])?;
            let Some(label) = labels.to_i64s() else {
                return unsupported("the label of one class that is a string: the other class has none");
            };
            let labels = Data::from_slice(&[2], &[0, label[0]]);
            Ok(vec![labels_at(cx, &labels, is_class)?, scores])
        }
        count => malformed(format!("{count} labels for one score")),
    }
}

/// The number of features, where the model gives it.
fn features(cx: &NodeCx<'_, '_>) -> Option<usize> {
    let shape = cx.b.shape(cx.input(0).ok()?);
    usize::try_from(shape.last()?.as_const()?).ok()
}

#[cfg(test)]
mod tests {

    /// One score for two labels: the second one is for more than 0.
    #[test]
    fn one_score_of_two_labels() {
        let case = crate::tests::case("ai.onnx.ml", "LinearClassifier", 1)
            .input::<f32>(&[3, 1], &[0.25, -0.25, 2.0]);
        let case = case.floats("coefficients", &[1.0]).floats("intercepts", &[0.0]);
        case.ints("classlabels_ints", &[7, 8]).outputs(2).gives(0, &[3], &[8.0, 7.0, 8.0]);
    }
}
