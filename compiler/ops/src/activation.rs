//! Activation functions.

use super::row::*;
use onnxc_ir::build::Builder;

pub const ROWS: &[OpDef] = &[
    RELU,
    RELU.since(6).attributes(&[]),
    RELU.since(13).attributes(&[]).types(&[("T", FLOATS)]),
    RELU.since(14).attributes(&[]).types(&[("T", SIGNED)]),
    LEAKY_RELU,
    LEAKY_RELU.since(6).attributes(&[float("alpha", 0.01)]),
    LEAKY_RELU.since(16).attributes(&[float("alpha", 0.01)]).types(&[("T", FLOATS)]),
    P_RELU,
    P_RELU.since(6).attributes(&[]),
    P_RELU.since(7).attributes(&[]).shapes(P_RELU_SHAPES_7).lower(prelu),
    P_RELU_9,
    P_RELU_9.since(16).types(&[("T", WIDE)]),
    THRESHOLDED_RELU,
    THRESHOLDED_RELU.since(22).types(&[("T", FLOATS)]),
    ELU,
    ELU.since(6).attributes(&[float("alpha", 1.0)]),
    ELU.since(22).attributes(&[float("alpha", 1.0)]).types(&[("T", FLOATS)]),
    CELU,
    CELU.since(28).types(&[("T", FLOATS)]),
    SELU,
    SELU.since(6).attributes(&[float("alpha", 1.6732632), float("gamma", 1.050701)]),
    SELU.since(22).attributes(&[float("alpha", 1.6732632), float("gamma", 1.050701)]).types(&[("T", FLOATS)]),
    SOFTPLUS,
    SOFTPLUS.since(22).types(&[("T", FLOATS)]),
    SOFTSIGN,
    SOFTSIGN.since(22).types(&[("T", FLOATS)]),
    HARD_SIGMOID,
    HARD_SIGMOID.since(6).attributes(&[float("alpha", 0.2), float("beta", 0.5)]),
    HARD_SIGMOID.since(22).attributes(&[float("alpha", 0.2), float("beta", 0.5)]).types(&[("T", FLOATS)]),
    HARD_SWISH,
    HARD_SWISH.since(22).types(&[("T", FLOATS)]),
    MISH,
    MISH.since(22).types(&[("T", FLOATS)]),
    op("Gelu", 20, gelu)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[string("approximate", "none")])
        .types(&[("T", FLOATS)])
        .doc("x times the normal distribution function of x, exact or by tanh"),
    op("Swish", 24, swish)
        .inputs(&[req("X", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("alpha", 1.0)])
        .types(&[("T", FLOATS)])
        .doc("x * sigmoid(alpha * x)"),
    op("SwiGLU", 28, swiglu)
        .inputs(&[req("A", "T"), req("B", "T")])
        .outputs(&[req("Y", "T")])
        .attributes(&[float("alpha", 1.0)])
        .types(&[("T", FLOATS)])
        .shapes(SWI_GLU_SHAPES)
        .doc("swish(A) * B"),
    op("Shrink", 9, shrink)
        .inputs(&[req("input", "T")])
        .outputs(&[req("output", "T")])
        .attributes(&[float("bias", 0.0), float("lambd", 0.5)])
        .types(&[("T", NUMERIC_NO_BF16)])
        .doc("x moved towards 0 by bias; 0 within lambd of it"),
    CLIP,
    CLIP.since(6).attributes(&[float("max", f32::MAX), float("min", f32::MIN)]),
    CLIP_11,
    CLIP_11.since(12).types(&[("T", NUMERIC_NO_BF16)]),
    CLIP_11.since(13).types(&[("T", NUMERIC)]),
];

const RELU: OpDef = op("Relu", 1, relu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("max(x, 0)");

const LEAKY_RELU: OpDef = op("LeakyRelu", 1, leaky_relu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 0.01), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("x, or alpha * x below zero");

const P_RELU: OpDef = op("PRelu", 1, prelu_channels)
    .inputs(&[req("X", "T"), req("slope", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .shapes(P_RELU_SHAPES_1)
    .doc("x, or slope * x below zero, with a learned slope");

const P_RELU_9: OpDef = op("PRelu", 9, prelu)
    .inputs(&[req("X", "T"), req("slope", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", WIDE_NO_BF16)])
    .shapes(P_RELU_SHAPES_7)
    .doc("x, or slope * x below zero, with a learned slope");

const THRESHOLDED_RELU: OpDef = op("ThresholdedRelu", 10, thresholded_relu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 1.0)])
    .types(&[("T", FLOATS_F16)])
    .doc("x above alpha, else 0");

const ELU: OpDef = op("Elu", 1, elu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 1.0), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("x, or alpha * (exp(x) - 1) below zero");

const CELU: OpDef = op("Celu", 12, celu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 1.0)])
    .types(&[("T", F32S)])
    .doc("max(0, x) + min(0, alpha * (exp(x / alpha) - 1))");

const SELU: OpDef = op("Selu", 1, selu)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 1.6732), CONSUMED, float("gamma", 1.0507)])
    .types(&[("T", FLOATS_F16)])
    .doc("gamma * x, or gamma * alpha * (exp(x) - 1) below zero");

const SOFTPLUS: OpDef = op("Softplus", 1, softplus)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("log(1 + exp(x))");

const SOFTSIGN: OpDef = op("Softsign", 1, softsign)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("x / (1 + |x|)");

const HARD_SIGMOID: OpDef = op("HardSigmoid", 1, hard_sigmoid)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[float("alpha", 0.2), float("beta", 0.5), CONSUMED])
    .types(&[("T", FLOATS_F16)])
    .doc("max(0, min(1, alpha * x + beta))");

const HARD_SWISH: OpDef = op("HardSwish", 14, hard_swish)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("x * max(0, min(1, x / 6 + 1 / 2))");

const MISH: OpDef = op("Mish", 18, mish)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .types(&[("T", FLOATS_F16)])
    .doc("x * tanh(softplus(x))");

const CLIP: OpDef = op("Clip", 1, clip_attributes)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[CONSUMED, optional("max", Float), optional("min", Float)])
    .types(&[("T", FLOATS_F16)])
    .doc("x limited to [min, max]");

const CLIP_11: OpDef = op("Clip", 11, clip)
    .inputs(&[req("input", "T"), opt("min", "T"), opt("max", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16)])
    .shapes(CLIP_SHAPES)
    .doc("x limited to [min, max]");

const P_RELU_SHAPES_1: &[&str] = &["X[] | [C] | [_, C, ..]", "slope[] | [C|1] | [F..]", "broadcast(F -> X)"];

const P_RELU_SHAPES_7: &[&str] = &["broadcast(slope -> X)"];

const SWI_GLU_SHAPES: &[&str] = &["A[D..]", "B[D..]"];

const CLIP_SHAPES: &[&str] = &["count(min) = 1", "count(max) = 1"];

/// `condition(x, 0) ? x : otherwise`, with the comparison `x < 0`.
fn below_zero(cx: &mut NodeCx<'_, '_>, x: ValueId, below: ValueId) -> Result<Vec<ValueId>> {
    let zero = cx.b.scalar(cx.b.dtype(x), 0.0);
    let negative = cx.b.compare(CompareFn::Lt, x, zero)?;
    Ok(vec![cx.b.select(negative, below, x)?])
}

fn relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Max, x, 0.0)?])
}

fn leaky_relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    leaky_relu_of(cx, x)
}

/// `x`, times the attribute `alpha` where it is negative.
pub fn leaky_relu_of(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<Vec<ValueId>> {
    let scaled = cx.b.binary_scalar(BinaryFn::Mul, x, f64::from(cx.float("alpha")?))?;
    below_zero(cx, x, scaled)
}

/// The slope broadcasts to `x` and never the other way.
fn prelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, slope) = (cx.input("X")?, cx.input("slope")?);
    prelu_with(cx, x, slope)
}

/// Before opset 7 a slope vector belongs to the channels, axis 1.
fn prelu_channels(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, slope) = (cx.input("X")?, cx.input("slope")?);
    let (rank, shape) = (cx.b.rank(x), cx.b.shape(slope));
    let slope = match shape.as_slice() {
        [count] if *count != Dim::ONE && rank > 2 => {
            let mut shape = vec![Dim::ONE; rank - 1];
            shape[0] = count.clone();
            cx.b.reshape(slope, shape)?
        }
        _ => slope,
    };
    prelu_with(cx, x, slope)
}

fn prelu_with(cx: &mut NodeCx<'_, '_>, x: ValueId, slope: ValueId) -> Result<Vec<ValueId>> {
    let scaled = cx.b.binary(BinaryFn::Mul, x, slope)?;
    below_zero(cx, x, scaled)
}

pub(super) fn thresholded_relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let dtype = cx.b.dtype(x);
    let (alpha, zero) = (cx.b.scalar(dtype, f64::from(cx.float("alpha")?)), cx.b.scalar(dtype, 0.0));
    let above = cx.b.compare(CompareFn::Gt, x, alpha)?;
    Ok(vec![cx.b.select(above, x, zero)?])
}

fn elu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let curve = cx.b.unary(UnaryFn::Expm1, x)?;
    let curve = cx.b.binary_scalar(BinaryFn::Mul, curve, f64::from(cx.float("alpha")?))?;
    below_zero(cx, x, curve)
}

fn celu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, alpha) = (cx.input("X")?, f64::from(cx.float("alpha")?));
    let curve = cx.b.binary_scalar(BinaryFn::Div, x, alpha)?;
    let curve = cx.b.unary(UnaryFn::Expm1, curve)?;
    let curve = cx.b.binary_scalar(BinaryFn::Mul, curve, alpha)?;
    let below = cx.b.binary_scalar(BinaryFn::Min, curve, 0.0)?;
    let above = cx.b.binary_scalar(BinaryFn::Max, x, 0.0)?;
    Ok(vec![cx.b.binary(BinaryFn::Add, above, below)?])
}

fn selu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let curve = cx.b.unary(UnaryFn::Expm1, x)?;
    let curve = cx.b.binary_scalar(BinaryFn::Mul, curve, f64::from(cx.float("alpha")?))?;
    let y = below_zero(cx, x, curve)?[0];
    Ok(vec![cx.b.binary_scalar(BinaryFn::Mul, y, f64::from(cx.float("gamma")?))?])
}

/// `max(x, 0) + log1p(exp(-|x|))`: equal to `log(1 + exp(x))`, and finite wherever that is.
pub fn softplus_of(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let magnitude = b.unary(UnaryFn::Abs, x)?;
    let tail = b.unary(UnaryFn::Neg, magnitude)?;
    let tail = b.unary(UnaryFn::Exp, tail)?;
    let tail = b.unary(UnaryFn::Log1p, tail)?;
    let linear = b.binary_scalar(BinaryFn::Max, x, 0.0)?;
    b.binary(BinaryFn::Add, linear, tail)
}

fn softplus(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    Ok(vec![softplus_of(cx.b, x)?])
}

/// `tanh(log(1 + e))` is `n / (n + 2)` with `n = e (e + 2)`, for `e = exp(x)`.
fn mish(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    // From here on the quotient rounds to 1, and in f16 the product is not infinite.
    let most = if cx.b.dtype(x) == DType::F16 { 5.4 } else { 20.0 };
    let power = cx.b.binary_scalar(BinaryFn::Min, x, most)?;
    let power = cx.b.unary(UnaryFn::Exp, power)?;
    let more = cx.b.binary_scalar(BinaryFn::Add, power, 2.0)?;
    let product = cx.b.binary(BinaryFn::Mul, power, more)?;
    let divisor = cx.b.binary_scalar(BinaryFn::Add, product, 2.0)?;
    let gate = cx.b.binary(BinaryFn::Div, product, divisor)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, x, gate)?])
}

fn softsign(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let magnitude = cx.b.unary(UnaryFn::Abs, x)?;
    let divisor = cx.b.binary_scalar(BinaryFn::Add, magnitude, 1.0)?;
    Ok(vec![cx.b.binary(BinaryFn::Div, x, divisor)?])
}

/// `max(0, min(1, alpha * x + beta))`
fn hard_sigmoid_of(cx: &mut NodeCx<'_, '_>, x: ValueId, alpha: f64, beta: f64) -> Result<ValueId> {
    let line = cx.b.binary_scalar(BinaryFn::Mul, x, alpha)?;
    let line = cx.b.binary_scalar(BinaryFn::Add, line, beta)?;
    let line = cx.b.binary_scalar(BinaryFn::Min, line, 1.0)?;
    cx.b.binary_scalar(BinaryFn::Max, line, 0.0)
}

fn hard_sigmoid(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, alpha, beta) = (cx.input("X")?, cx.float("alpha")?, cx.float("beta")?);
    Ok(vec![hard_sigmoid_of(cx, x, f64::from(alpha), f64::from(beta))?])
}

fn hard_swish(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let gate = hard_sigmoid_of(cx, x, 1.0 / 6.0, 0.5)?;
    Ok(vec![cx.b.binary(BinaryFn::Mul, x, gate)?])
}

fn gelu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let y = match cx.str("approximate")?.as_str() {
        "none" => exact_gelu(cx.b, x)?,
        "tanh" => fast_gelu(cx.b, x)?,
        other => return not_one_of("approximate", other, "none, tanh"),
    };
    Ok(vec![y])
}

/// `x` times the normal distribution function of `x`.
pub fn exact_gelu(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let scaled = b.binary_scalar(BinaryFn::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
    let gate = b.unary(UnaryFn::Erf, scaled)?;
    half_gated(b, x, gate)
}

/// `x / 2 * (1 + gate)`
fn half_gated(b: &mut Builder<'_>, x: ValueId, gate: ValueId) -> Result<ValueId> {
    let gate = b.binary_scalar(BinaryFn::Add, gate, 1.0)?;
    let half = b.binary_scalar(BinaryFn::Mul, x, 0.5)?;
    b.binary(BinaryFn::Mul, half, gate)
}

/// Gelu by tanh (Hendrycks and Gimpel 2016).
pub fn fast_gelu(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let square = b.binary(BinaryFn::Mul, x, x)?;
    let factor = b.binary_scalar(BinaryFn::Mul, square, 0.044715)?;
    let factor = b.binary_scalar(BinaryFn::Add, factor, 1.0)?;
    let inner = b.binary(BinaryFn::Mul, x, factor)?;
    let inner = b.binary_scalar(BinaryFn::Mul, inner, (2.0 / std::f64::consts::PI).sqrt())?;
    let gate = b.unary(UnaryFn::Tanh, inner)?;
    half_gated(b, x, gate)
}

pub fn swish(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, alpha) = (cx.input(0)?, cx.float("alpha")?);
    Ok(vec![swish_of(cx.b, x, alpha)?])
}

/// `x * sigmoid(alpha * x)`
pub fn swish_of(b: &mut Builder<'_>, x: ValueId, alpha: f32) -> Result<ValueId> {
    let gate = match alpha == 1.0 {
        true => x,
        false => b.binary_scalar(BinaryFn::Mul, x, f64::from(alpha))?,
    };
    let gate = b.unary(UnaryFn::Sigmoid, gate)?;
    b.binary(BinaryFn::Mul, x, gate)
}

fn swiglu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let linear = cx.input("B")?;
    let gate = swish(cx)?[0];
    Ok(vec![cx.b.binary(BinaryFn::Mul, gate, linear)?])
}

/// Integers go through f64: bias and lambd are floats.
fn shrink(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let (bias, lambd) = (f64::from(cx.float("bias")?), f64::from(cx.float("lambd")?));
    let dtype = cx.b.dtype(x);
    let work = if dtype.is_float() { dtype } else { DType::F64 };
    let real = cx.b.cast(x, work)?;
    let (low, high) = (cx.b.scalar(work, -lambd), cx.b.scalar(work, lambd));
    let (below, above) = (cx.b.compare(CompareFn::Lt, real, low)?, cx.b.compare(CompareFn::Gt, real, high)?);
    // Integers of 64 bits are not all numbers of f64.
    let is_exact = matches!(dtype, DType::I64 | DType::U64) && bias >= 0.0 && bias.fract() == 0.0;
    let moved = if is_exact { x } else { real };
    let zero = cx.b.scalar(cx.b.dtype(moved), 0.0);
    let raised = cx.b.binary_scalar(BinaryFn::Add, moved, bias)?;
    let lowered = cx.b.binary_scalar(BinaryFn::Sub, moved, bias)?;
    let y = cx.b.select(above, lowered, zero)?;
    let y = cx.b.select(below, raised, y)?;
    Ok(vec![cx.b.cast(y, dtype)?])
}

/// Before opset 11 the limits are attributes. In version 1 one that is missing limits nothing; in version 6 it is the
/// least or the greatest f32, which infinities exceed.
fn clip_attributes(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut y = cx.input("input")?;
    let limit = |cx: &NodeCx<'_, '_>, name: &str| match cx.def.since {
        1 => cx.optional_float(name),
        _ => cx.float(name).map(Some),
    };
    if let Some(low) = limit(cx, "min")? {
        y = cx.b.binary_scalar(BinaryFn::Max, y, f64::from(low))?;
    }
    if let Some(high) = limit(cx, "max")? {
        y = cx.b.binary_scalar(BinaryFn::Min, y, f64::from(high))?;
    }
    Ok(vec![y])
}

/// Where min exceeds max, max wins.
fn clip(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut y = cx.input("input")?;
    for (at, function) in [(1, BinaryFn::Max), (2, BinaryFn::Min)] {
        if let Some(limit) = cx.optional(at) {
            let limit = to_scalar(cx, limit)?;
            y = cx.b.binary(function, y, limit)?;
        }
    }
    Ok(vec![y])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;

    const X: [f32; 4] = [-2.0, -0.5, 0.0, 3.0];

    fn of_x(name: &'static str, opset: u32) -> Case {
        Case::new(name, opset).input(&[4], &X)
    }

    #[test]
    fn piecewise_functions() {
        of_x("Relu", 14).gives(0, &[4], &[0., 0., 0., 3.]);
        Case::new("Relu", 14).input(&[2], &[-3i8, 4]).gives(0, &[2], &[0., 4.]);
        of_x("LeakyRelu", 16).float("alpha", 0.1).gives(0, &[4], &[-0.2, -0.05, 0., 3.]);
        of_x("ThresholdedRelu", 10).gives(0, &[4], &[0., 0., 0., 3.]);
        of_x("HardSigmoid", 6).gives(0, &[4], &[0.1, 0.4, 0.5, 1.]);
        of_x("HardSwish", 14).gives(0, &[4], &[-1. / 3., -5. / 24., 0., 3.]);
        of_x("Softsign", 1).gives(0, &[4], &[-2. / 3., -1. / 3., 0., 0.75]);
        of_x("Shrink", 9).float("bias", 1.0).float("lambd", 1.0).gives(0, &[4], &[-1., 0., 0., 2.]);
        Case::new("Shrink", 9).float("bias", 1.5).input(&[2], &[-3i32, 1]).gives(0, &[2], &[-1., 0.]);
        let far =
            Case::new("Shrink", 9).float("bias", 2.0).input(&[3], &[i64::MAX, i64::MIN, 0]).run().unwrap();
        assert_eq!(far[0].to_i64s().unwrap(), [i64::MAX - 2, i64::MIN + 2, 0]);
    }

    #[test]
    fn smooth_functions() {
        of_x("Elu", 6).float("alpha", 2.0).gives(0, &[4], &[-1.729329, -0.786939, 0., 3.]);
        of_x("Celu", 12).float("alpha", 2.0).gives(0, &[4], &[-1.264241, -0.442398, 0., 3.]);
        of_x("Selu", 6).gives(0, &[4], &[-1.520167, -0.691758, 0., 3.152103]);
        of_x("Mish", 18).gives(0, &[4], &[-0.252501, -0.220740, 0., 2.986535]);
        of_x("Gelu", 20).gives(0, &[4], &[-0.045500, -0.154269, 0., 2.995950]);
        of_x("Gelu", 20).str("approximate", "tanh").gives(0, &[4], &[-0.045402, -0.154286, 0., 2.996363]);
        of_x("Swish", 24).float("alpha", 2.0).gives(0, &[4], &[-0.035972, -0.134471, 0., 2.992582]);
        let gated = of_x("SwiGLU", 28).input(&[4], &[2f32, 2., 2., 2.]);
        gated.gives(0, &[4], &[-0.476812, -0.377541, 0., 5.715445]);
    }

    #[test]
    fn softplus_overflows_nowhere() {
        let x = [-200f32, 0., 200.];
        Case::new("Softplus", 1).input(&[3], &x).gives(0, &[3], &[0., std::f64::consts::LN_2, 200.]);
    }

    #[test]
    fn slopes_broadcast_by_version() {
        let x = [-1f32, 1., -1., -1., -1., -1., -1., -1.];
        let wanted = [-2., 1., -2., -2., -3., -3., -3., -3.];
        let case = Case::new("PRelu", 6).input(&[1, 2, 2, 2], &x).input(&[2], &[2f32, 3.]);
        case.gives(0, &[1, 2, 2, 2], &wanted);
        let case = Case::new("PRelu", 16).input(&[1, 2, 2, 2], &x).input(&[2, 1, 1], &[2f32, 3.]);
        case.gives(0, &[1, 2, 2, 2], &wanted);
        let wider = Case::new("PRelu", 16).input(&[2], &[1f32, 2.]).input(&[1, 2], &[1f32, 2.]);
        assert!(wider.run().unwrap_err().message.contains("does not broadcast"));
    }

    #[test]
    fn limits_are_attributes_then_inputs() {
        of_x("Clip", 6).float("min", -1.0).gives(0, &[4], &[-1., -0.5, 0., 3.]);
        of_x("Clip", 13).missing().input(&[], &[1f32]).gives(0, &[4], &[-2., -0.5, 0., 1.]);
        of_x("Clip", 13).input(&[], &[2f32]).input(&[], &[1f32]).gives(0, &[4], &[1.; 4]);
    }
}
