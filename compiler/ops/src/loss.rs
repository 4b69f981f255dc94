//! Losses of classification, as training graphs export them.

use super::AttrDefault::{Optional, Str};
use super::softmax::log_softmax_along;
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    SOFTMAX_CROSS_ENTROPY_LOSS,
    SOFTMAX_CROSS_ENTROPY_LOSS.since(13).types(&[("T", FLOATS), ("Tind", INDICES)]),
    NEGATIVE_LOG_LIKELIHOOD_LOSS,
    NEGATIVE_LOG_LIKELIHOOD_LOSS.since(13),
    NEGATIVE_LOG_LIKELIHOOD_LOSS.since(22).types(&[("T", FLOATS), ("Tind", INDICES)]),
];

const SOFTMAX_CROSS_ENTROPY_LOSS: OpDef = op("SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy_loss)
    .inputs(&[req("scores", "T"), req("labels", "Tind"), opt("weights", "T")])
    .outputs(&[req("output", "T"), opt("log_prob", "T")])
    .attributes(&[attr("ignore_index", Optional(AttrKind::Int)), attr("reduction", Str("mean"))])
    .types(&[("T", FLOATS_F16), ("Tind", INDICES)])
    .shapes(&["scores[N, C, D..]", "labels[N, D..]", "weights[C]"])
    .doc("negative log likelihood of softmax(scores)");

const NEGATIVE_LOG_LIKELIHOOD_LOSS: OpDef = op("NegativeLogLikelihoodLoss", 12, negative_log_likelihood_loss)
    .inputs(&[req("input", "T"), req("target", "Tind"), opt("weight", "T")])
    .outputs(&[req("loss", "T")])
    .attributes(&[attr("ignore_index", Optional(AttrKind::Int)), attr("reduction", Str("mean"))])
    .types(&[("T", FLOATS_F16), ("Tind", INDICES)])
    .shapes(&["input[N, C, D..]", "target[N, D..]", "weight[C]"])
    .doc("negative (weighted) input at the target class");

fn softmax_cross_entropy_loss(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let scores = cx.input("scores")?;
    if cx.b.rank(scores) < 2 {
        return Err(Error::malformed(Stage::Infer, format!("scores {} have no classes", cx.b.ty(scores))));
    }
    let log_probabilities = log_softmax_along(cx.b, scores, 1)?;
    let (labels, weights, ignored) =
        (cx.input("labels")?, cx.optional("weights"), cx.optional_int("ignore_index")?);
    Ok(vec![likelihood_loss(cx, log_probabilities, labels, weights, ignored)?, log_probabilities])
}

fn negative_log_likelihood_loss(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (input, target) = (cx.input("input")?, cx.input("target")?);
    let (weights, ignored) = (cx.optional("weight"), cx.optional_int("ignore_index")?);
    Ok(vec![likelihood_loss(cx, input, target, weights, ignored)?])
}

/// `-weight[t] * input[n, t, d..]` at the target class `t`, reduced. Ignored targets weigh nothing.
pub fn likelihood_loss(
    cx: &mut NodeCx<'_, '_>,
    input: ValueId,
    target: ValueId,
    weights: Option<ValueId>,
    ignored_class: Option<i64>,
) -> Result<ValueId> {
    let reduction = cx.str("reduction")?;
    let b = &mut *cx.b;
    if b.rank(input) < 2 || b.rank(target) + 1 != b.rank(input) {
        return Err(Error::malformed(Stage::Infer, format!("loss of {} at {}", b.ty(input), b.ty(target))));
    }
    let dtype = b.dtype(input);
    let (mut class, mut ignored) = (target, None);
    if let Some(index) = ignored_class {
        let (index, zero) = (integer(b, b.dtype(target), index)?, b.scalar(b.dtype(target), 0.0));
        let is_ignored = b.compare(CompareFn::Eq, target, index)?;
        class = b.select(is_ignored, zero, target)?;
        ignored = Some(is_ignored);
    }
    if let Some(operand) = b.operand(target).cloned() {
        b.operands.push((class, operand));
    }
    let index = b.unsqueeze(class, &[1])?;
    let picked = b.emit1(Op::GatherElements { axis: 1 }, &[input, index])?;
    let picked = b.squeeze(picked, &[1])?;
    let mut loss = b.unary(UnaryFn::Neg, picked)?;
    let mut weight = match weights {
        Some(weights) => Some(b.emit1(Op::Gather { axis: 0 }, &[weights, class])?),
        None => None,
    };
    if let Some(ignored) = ignored {
        let (zero, one) = (b.scalar(dtype, 0.0), b.scalar(dtype, 1.0));
        weight = Some(b.select(ignored, zero, weight.unwrap_or(one))?);
    }
    if let Some(weight) = weight {
        loss = b.binary(BinaryFn::Mul, loss, weight)?;
    }
    let axes: Vec<usize> = (0..b.rank(loss)).collect();
    match (reduction.as_str(), weight) {
        ("none", _) => Ok(loss),
        ("sum", _) => total(b, loss),
        ("mean", None) => {
            let mean = b.mean(loss, &axes)?;
            b.reshape(mean, vec![])
        }
        ("mean", Some(weight)) => {
            let (sum, weights) = (total(b, loss)?, total(b, weight)?);
            b.binary(BinaryFn::Div, sum, weights)
        }
        (other, _) => super::not_one_of("reduction", other, "none, sum, mean"),
    }
}

/// The sum of all elements, a scalar.
fn total(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let axes: Vec<usize> = (0..b.rank(x)).collect();
    let sum = b.reduce(ReduceFn::Sum, x, &axes)?;
    b.reshape(sum, vec![])
}

/// An integer scalar, exact for all of i64.
fn integer(b: &mut Builder<'_>, dtype: DType, value: i64) -> Result<ValueId> {
    let vector = b.i64s(&[value]);
    let vector = b.cast(vector, dtype)?;
    b.reshape(vector, vec![])
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    #[test]
    fn reductions_weights_and_ignored_classes() {
        let case = Case::new("NegativeLogLikelihoodLoss", 13)
            .ramp(&[2, 3, 2], 1)
            .input::<i64>(&[2, 2], &[0, 2, 1, 1])
            .constant_ramp(&[3], 2)
            .int("ignore_index", 1)
            .str("reduction", "none");
        case.gives(0, &[2, 2], &[0.125, -0.0, 0.0, 0.0]);
        let case = Case::new("NegativeLogLikelihoodLoss", 13)
            .ramp(&[2, 3, 2], 1)
            .input::<i64>(&[2, 2], &[0, 2, 1, 1])
            .constant_ramp(&[3], 2)
            .int("ignore_index", 1)
            .str("reduction", "sum");
        case.gives(0, &[], &[0.125]);
        let case = Case::new("NegativeLogLikelihoodLoss", 13)
            .ramp(&[2, 3, 2], 1)
            .input::<i64>(&[2, 2], &[0, 2, 1, 1])
            .constant_ramp(&[3], 2)
            .int("ignore_index", 1)
            .str("reduction", "mean");
        case.gives(0, &[], &[0.1]);
        let case =
            Case::new("SoftmaxCrossEntropyLoss", 13).ramp(&[2, 3], 1).input::<i64>(&[2], &[0, 2]).outputs(2);
        case.gives(0, &[], &[1.807855]);
        case.gives(1, &[2, 3], &[-2.182855, -0.432856, -1.432856, -2.182855, -0.432856, -1.432856]);
    }
}
