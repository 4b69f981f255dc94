//! Scores of classifiers and regressors: the transforms that `post_transform` names, as ONNX Runtime applies them.

use onnxc_ops::row::*;

/// What `post_transform` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn of(cx: &NodeCx<'_, '_>) -> Result<Transform> {
        Ok(match cx.str("post_transform")?.as_str() {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => {
                let allowed = "NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT";
                return not_one_of("post_transform", other, allowed);
            }
        })
    }

    /// Of scores `[N, E]` with E > 1.
    pub(super) fn apply(self, cx: &mut NodeCx<'_, '_>, scores: ValueId) -> Result<ValueId> {
        match self {
            Transform::None => Ok(scores),
            Transform::Logistic => cx.b.unary(UnaryFn::Sigmoid, scores),
            Transform::Softmax => softmax(cx, scores, false),
            Transform::SoftmaxZero => softmax(cx, scores, true),
            Transform::Probit => probit(cx, scores),
        }
    }

    /// Of one score per row, `[N, 1]`, which stays one. ONNX Runtime leaves it as it is but for PROBIT.
    pub(super) fn apply_to_one(self, cx: &mut NodeCx<'_, '_>, score: ValueId) -> Result<ValueId> {
        match self {
            Transform::Probit => probit(cx, score),
            _ => Ok(score),
        }
    }

    /// Of the score `[N, 1]` of the second of two classes: `[N, 2]`. Without a logistic function, the first class has what is
    /// left of 1, or, `mirrored`, the opposite.
    pub(super) fn apply_to_two(
        self,
        cx: &mut NodeCx<'_, '_>,
        score: ValueId,
        mirrored: bool,
    ) -> Result<ValueId> {
        let opposite = cx.b.unary(UnaryFn::Neg, score)?;
        let pair = match self {
            Transform::Logistic | Transform::Probit => {
                let both = cx.b.concat(&[opposite, score], 1)?;
                return self.apply(cx, both);
            }
            _ if mirrored => [opposite, score],
            _ => [cx.b.binary_scalar(BinaryFn::Add, opposite, 1.0)?, score],
        };
        cx.b.concat(&pair, 1)
    }
}

/// `exp(x - max) / sum` over the last axis. With `keep_zeros` a score that is nearly zero is taken for what its exponential is
/// multiplied by.
fn softmax(cx: &mut NodeCx<'_, '_>, x: ValueId, keep_zeros: bool) -> Result<ValueId> {
    let most = cx.b.reduce(ReduceFn::Max, x, &[1])?;
    let shifted = cx.b.binary(BinaryFn::Sub, x, most)?;
    let mut powers = cx.b.unary(UnaryFn::Exp, shifted)?;
    if keep_zeros {
        let magnitude = cx.b.unary(UnaryFn::Abs, x)?;
        let bound = cx.b.scalar(cx.b.dtype(x), 1e-7);
        let counts = cx.b.compare(CompareFn::Gt, magnitude, bound)?;
        let scale = cx.b.unary(UnaryFn::Neg, most)?;
        let scale = cx.b.unary(UnaryFn::Exp, scale)?;
        let kept = cx.b.binary(BinaryFn::Mul, x, scale)?;
        powers = cx.b.select(counts, powers, kept)?;
    }
    let sum = cx.b.reduce(ReduceFn::Sum, powers, &[1])?;
    let shares = cx.b.binary(BinaryFn::Div, powers, sum)?;
    if !keep_zeros {
        return Ok(shares);
    }
    let (zero, half) = (cx.b.scalar(cx.b.dtype(x), 0.0), cx.b.scalar(cx.b.dtype(x), 0.5));
    let vanishes = cx.b.compare(CompareFn::Eq, sum, zero)?;
    cx.b.select(vanishes, half, shares)
}

/// `sqrt(2) * erfinv(2 x - 1)`, with the approximation of the inverse error function by Winitzki (2008) that ONNX Runtime and
/// the reference have: with `l = log(1 - e^2)` and `v = 2 / (pi a) + l / 2`, `a = 0.147`, it is `sqrt(sqrt(v^2 - l / a) - v)`.
fn probit(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    const A: f64 = 0.147;
    let b = &mut *cx.b;
    let dtype = b.dtype(x);
    let e = b.binary_scalar(BinaryFn::Mul, x, 2.0)?;
    let e = b.binary_scalar(BinaryFn::Sub, e, 1.0)?;
    let (one, zero) = (b.scalar(dtype, 1.0), b.scalar(dtype, 0.0));
    let (low, high) = (b.binary(BinaryFn::Sub, one, e)?, b.binary(BinaryFn::Add, one, e)?);
    let product = b.binary(BinaryFn::Mul, low, high)?;
    let log = b.unary(UnaryFn::Log, product)?;
    let half = b.binary_scalar(BinaryFn::Mul, log, 0.5)?;
    let v = b.binary_scalar(BinaryFn::Add, half, 2.0 / (std::f64::consts::PI * A))?;
    let squares = b.binary(BinaryFn::Mul, v, v)?;
    let share = b.binary_scalar(BinaryFn::Div, log, A)?;
    let root = b.binary(BinaryFn::Sub, squares, share)?;
    let root = b.unary(UnaryFn::Sqrt, root)?;
    let root = b.binary(BinaryFn::Sub, root, v)?;
    let root = b.unary(UnaryFn::Sqrt, root)?;
    let y = b.binary_scalar(BinaryFn::Mul, root, std::f64::consts::SQRT_2)?;
    let opposite = b.unary(UnaryFn::Neg, y)?;
    let is_low = b.compare(CompareFn::Lt, e, zero)?;
    b.select(is_low, opposite, y)
}
