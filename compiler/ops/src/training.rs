//! The operators of `ai.onnx.preview.training`: derivatives, and optimizers, one step of each for any number of tensors. A node of
//! these takes a learning rate `R`, a count of updates `T`, and then groups of inputs, each group one tensor for every optimized
//! one: `X_1, X_2, G_1, G_2, ..`.

use super::row::*;
use crate::gradient::gradients;
use onnxc_ir::graph::{Op, Requirement};

pub const DOMAIN: &str = "ai.onnx.preview.training";

/// The attribute of a Gradient node that holds what it differentiates: a body of its inputs with one output. No model has it: the
/// importer makes it.
pub const BODY: &str = "onnxc.body";

const GRADIENT: OpDef = op("Gradient", 1, gradient)
    .domain(DOMAIN)
    .inputs(&[super::mixed("Inputs", "T1")])
    .outputs(&[super::mixed("Outputs", "T2")])
    .attributes(&[required("xs", Strs), required("y", Str), optional("zs", Strs)])
    .types(&[("T1", ALL), ("T2", FLOATS_F16)])
    .doc("The derivatives of the sum of y's elements by each of xs");

pub const ROWS: &[OpDef] = &[
    GRADIENT,
    optimizer("Adagrad", adagrad)
        .attributes(&[float("decay_factor", 0.0), float("epsilon", 1e-6), float("norm_coefficient", 0.0)])
        .doc("A step by the gradient over the root of its accumulated squares"),
    optimizer("Adam", adam)
        .attributes(&[
            float("alpha", 0.9),
            float("beta", 0.999),
            float("epsilon", 1e-6),
            float("norm_coefficient", 0.0),
            float("norm_coefficient_post", 0.0),
        ])
        .doc("A step by the running mean of the gradient over the root of that of its squares"),
    optimizer("Momentum", momentum)
        .attributes(&[
            required("alpha", Float),
            required("beta", Float),
            required("mode", Str),
            required("norm_coefficient", Float),
        ])
        .doc("A step by the gradient with momentum, standard or Nesterov's"),
];

const fn optimizer(name: &'static str, lower: super::LowerFn) -> OpDef {
    const INPUTS: &[Param] = &[req("R", "T1"), req("T", "T2"), super::mixed("inputs", "T3")];
    const OUTPUTS: &[Param] = &[super::mixed("outputs", "T3")];
    op(name, 1, lower)
        .domain(DOMAIN)
        .inputs(INPUTS)
        .outputs(OUTPUTS)
        .types(&[("T1", F32_F64), ("T2", I64S), ("T3", F32_F64)])
        .shapes(&["count(R) = 1", "count(T) = 1"])
}

/// What the body computes from the inputs, and the derivatives of that. The inputs that these are by are values of their own
/// there: what is else computed from the same tensors does not depend on them.
fn gradient(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (body, given) = (cx.graph(BODY)?, cx.inputs.len());
    let count = cx.strs("xs")?.map_or(0, |xs| xs.len());
    if given != body.inputs() {
        return malformed(format!("xs and zs name {} values, and {given} are given", body.inputs()));
    }
    let named = cx.wanted.len();
    if named > count {
        return malformed(format!("{named} outputs are named, and xs names {count} values"));
    }
    let mut inputs = cx.all_inputs()?;
    let first = cx.b.graph.order.len();
    let names = body.input_names();
    for (x, name) in inputs[..count].iter_mut().zip(&names) {
        if !FLOATS_F16.contains(&cx.b.dtype(*x)) {
            let (ty, types) = (cx.b.ty(*x), "f16, f32 or f64");
            return malformed(format!(
                "there is no derivative by `{name}`, which is {ty}; it must be {types}"
            ));
        }
        *x = cx.b.unfolded(Op::Reshape { shape: cx.b.shape(*x) }, &[*x])?;
    }
    let items: Vec<Item> = inputs.iter().copied().map(Item::Tensor).collect();
    let Some(y) = cx.recompute(&body, &items)?.first().and_then(Item::tensor) else {
        return malformed("y is not a tensor");
    };
    if !FLOATS_F16.contains(&cx.b.dtype(y)) {
        return malformed(format!(
            "y is {}, which has no derivative; it must be f16, f32 or f64",
            cx.b.ty(y)
        ));
    }
    let wanted: Vec<ValueId> = (0..count).filter(|&at| cx.wants(at)).map(|at| inputs[at]).collect();
    let bodies = &mut *cx.bodies;
    let found = gradients(cx.b, y, &wanted, first, &mut |primitives| bodies.charge(primitives))?;
    let mut found = found.into_iter();
    // What nothing reads is dropped again.
    let result = |at: usize| if cx.wants(at) { found.next().unwrap_or(inputs[at]) } else { inputs[at] };
    Ok((0..named).map(result).collect())
}

/// The tensors that belong to one optimized tensor, for each: `groups` of them, of one shape and type.
fn tensors(cx: &mut NodeCx<'_, '_>, groups: usize) -> Result<Vec<Vec<ValueId>>> {
    let inputs = cx.all_inputs()?.split_off(2);
    if inputs.is_empty() || !inputs.len().is_multiple_of(groups) {
        return malformed(format!("{} tensors are not {groups} groups of equal size", inputs.len()));
    }
    let count = inputs.len() / groups;
    let of_tensor = |at: usize| inputs.iter().skip(at).step_by(count).copied().collect::<Vec<_>>();
    let all: Vec<Vec<ValueId>> = (0..count).map(of_tensor).collect();
    for (at, tensors) in all.iter().enumerate() {
        let (first, rest) = (tensors[0], &tensors[1..]);
        for (group, &other) in rest.iter().enumerate() {
            let (one, two) = (cx.b.ty(first).clone(), cx.b.ty(other).clone());
            let (here, there) = (2 + at, 2 + at + (group + 1) * count);
            if one.dtype != two.dtype || one.rank() != two.rank() {
                return malformed(format!(
                    "input {there} is {two}, and input {here}, which it belongs to, is {one}"
                ));
            }
            for (axis, (a, b)) in one.shape.iter().zip(&two.shape).enumerate() {
                let name = format!("dimension {axis} of input {there}");
                let requirement = Requirement::equal(b.clone(), a.clone());
                cx.b.require(requirement.says(name, format!("that of input {here}")))?;
            }
        }
    }
    Ok(all)
}

/// Results by tensor as outputs, which are by group.
fn by_group(results: Vec<Vec<ValueId>>) -> Vec<ValueId> {
    let groups = results.first().map_or(0, Vec::len);
    (0..groups).flat_map(|group| results.iter().map(move |of_tensor| of_tensor[group])).collect()
}

/// `x * factor`
fn times(cx: &mut NodeCx<'_, '_>, x: ValueId, factor: f64) -> Result<ValueId> {
    cx.b.binary_scalar(BinaryFn::Mul, x, factor)
}

/// Adds the gradient of the regularization: `norm_coefficient * x + g`. If the coefficient is 0, the result is `g`.
fn regularized(cx: &mut NodeCx<'_, '_>, x: ValueId, g: ValueId) -> Result<ValueId> {
    let term = f64::from(cx.float("norm_coefficient")?);
    if term == 0.0 {
        return Ok(g);
    }
    let term = times(cx, x, term)?;
    cx.b.binary(BinaryFn::Add, term, g)
}

/// `a * old + b * new`
fn blend(cx: &mut NodeCx<'_, '_>, (a, old): (f64, ValueId), (b, new): (f64, ValueId)) -> Result<ValueId> {
    let (old, new) = (times(cx, old, a)?, times(cx, new, b)?);
    cx.b.binary(BinaryFn::Add, old, new)
}

/// The learning rate and the count of updates as f64 scalars: coefficients such as `1 - beta^T` cancel in f32.
fn rate_and_count(cx: &mut NodeCx<'_, '_>) -> Result<(ValueId, ValueId)> {
    let (rate, count) = (cx.input(0)?, cx.input(1)?);
    let (rate, count) = (to_scalar(cx, rate)?, to_scalar(cx, count)?);
    Ok((cx.b.cast(rate, DType::F64)?, cx.b.cast(count, DType::F64)?))
}

/// Whether there were updates before.
fn has_begun(cx: &mut NodeCx<'_, '_>, count: ValueId) -> Result<ValueId> {
    let zero = cx.b.scalar(DType::F64, 0.0);
    cx.b.compare(CompareFn::Gt, count, zero)
}

/// `H' = H + g^2`, `X' = X - R / (1 + T * decay_factor) * g / (sqrt(H') + epsilon)` with the regularized gradient `g`.
fn adagrad(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tensors = tensors(cx, 3)?;
    let (rate, count) = rate_and_count(cx)?;
    let decay = f64::from(cx.float("decay_factor")?);
    let decay = times(cx, count, decay)?;
    let decay = cx.b.binary_scalar(BinaryFn::Add, decay, 1.0)?;
    let rate = cx.b.binary(BinaryFn::Div, rate, decay)?;
    let epsilon = f64::from(cx.float("epsilon")?);
    let mut results = Vec::new();
    for of_tensor in tensors {
        let (x, g, h) = (of_tensor[0], of_tensor[1], of_tensor[2]);
        let g = regularized(cx, x, g)?;
        let squares = cx.b.binary(BinaryFn::Mul, g, g)?;
        let h = cx.b.binary(BinaryFn::Add, h, squares)?;
        let root = cx.b.unary(UnaryFn::Sqrt, h)?;
        let root = cx.b.binary_scalar(BinaryFn::Add, root, epsilon)?;
        let rate = cx.b.cast(rate, cx.b.dtype(x))?;
        let step = cx.b.binary(BinaryFn::Mul, rate, g)?;
        let step = cx.b.binary(BinaryFn::Div, step, root)?;
        results.push(vec![cx.b.binary(BinaryFn::Sub, x, step)?, h]);
    }
    Ok(by_group(results))
}

/// `V' = alpha * V + (1 - alpha) * g`, `H' = beta * H + (1 - beta) * g^2`,
/// `X' = (1 - norm_coefficient_post) * (X - r * V' / (sqrt(H') + epsilon))`, where `g` is the regularized gradient and `r` is
/// `R * sqrt(1 - beta^T) / (1 - alpha^T)`, or `R` where `T` is 0 (Kingma and Ba, "Adam", 2014, section 2).
fn adam(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tensors = tensors(cx, 4)?;
    let (alpha, beta) = (f64::from(cx.float("alpha")?), f64::from(cx.float("beta")?));
    let epsilon = f64::from(cx.float("epsilon")?);
    let shrink = 1.0 - f64::from(cx.float("norm_coefficient_post")?);
    let (rate, count) = rate_and_count(cx)?;
    let one = cx.b.scalar(DType::F64, 1.0);
    let mut corrections = Vec::new();
    for base in [alpha, beta] {
        let base = cx.b.scalar(DType::F64, base);
        let power = cx.b.binary(BinaryFn::Pow, base, count)?;
        corrections.push(cx.b.binary(BinaryFn::Sub, one, power)?);
    }
    let root = cx.b.unary(UnaryFn::Sqrt, corrections[1])?;
    let corrected = cx.b.binary(BinaryFn::Mul, rate, root)?;
    let corrected = cx.b.binary(BinaryFn::Div, corrected, corrections[0])?;
    let begun = has_begun(cx, count)?;
    let rate = cx.b.select(begun, corrected, rate)?;
    let mut results = Vec::new();
    for of_tensor in tensors {
        let (x, g, v, h) = (of_tensor[0], of_tensor[1], of_tensor[2], of_tensor[3]);
        let g = regularized(cx, x, g)?;
        let v = blend(cx, (alpha, v), (1.0 - alpha, g))?;
        let squares = cx.b.binary(BinaryFn::Mul, g, g)?;
        let h = blend(cx, (beta, h), (1.0 - beta, squares))?;
        let root = cx.b.unary(UnaryFn::Sqrt, h)?;
        let root = cx.b.binary_scalar(BinaryFn::Add, root, epsilon)?;
        let step = cx.b.binary(BinaryFn::Div, v, root)?;
        let rate = cx.b.cast(rate, cx.b.dtype(x))?;
        let step = cx.b.binary(BinaryFn::Mul, rate, step)?;
        let x = cx.b.binary(BinaryFn::Sub, x, step)?;
        results.push(vec![times(cx, x, shrink)?, v, h]);
    }
    Ok(by_group(results))
}

/// `V' = alpha * V + b * g`, where `b` is `beta`, or 1 where `T` is 0, and `X' = X - R * V'`, or, Nesterov's,
/// `X' = X - R * (g + alpha * V')`, with the regularized gradient `g`.
fn momentum(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tensors = tensors(cx, 3)?;
    let (alpha, beta) = (f64::from(cx.float("alpha")?), f64::from(cx.float("beta")?));
    let nesterov = match cx.str("mode")?.as_str() {
        "standard" => false,
        "nesterov" => true,
        other => return not_one_of("mode", other, "standard, nesterov"),
    };
    let (rate, count) = rate_and_count(cx)?;
    let begun = has_begun(cx, count)?;
    let (beta, one) = (cx.b.scalar(DType::F64, beta), cx.b.scalar(DType::F64, 1.0));
    let beta = cx.b.select(begun, beta, one)?;
    let mut results = Vec::new();
    for of_tensor in tensors {
        let (x, g, v) = (of_tensor[0], of_tensor[1], of_tensor[2]);
        let dtype = cx.b.dtype(x);
        let (rate, beta) = (cx.b.cast(rate, dtype)?, cx.b.cast(beta, dtype)?);
        let g = regularized(cx, x, g)?;
        let (old, new) = (times(cx, v, alpha)?, cx.b.binary(BinaryFn::Mul, beta, g)?);
        let v = cx.b.binary(BinaryFn::Add, old, new)?;
        let mut direction = v;
        if nesterov {
            let ahead = times(cx, v, alpha)?;
            direction = cx.b.binary(BinaryFn::Add, g, ahead)?;
        }
        let step = cx.b.binary(BinaryFn::Mul, rate, direction)?;
        results.push(vec![cx.b.binary(BinaryFn::Sub, x, step)?, v]);
    }
    Ok(by_group(results))
}

#[cfg(test)]
mod tests {
    use super::DOMAIN;
    use crate::node_case::Case;

    fn case(name: &'static str, count: i64) -> Case {
        Case::of(crate::FAMILIES, DOMAIN, name, 1).input(&[], &[0.5f32]).input(&[], &[count])
    }

    #[test]
    fn adagrad_divides_by_the_accumulated_gradient() {
        let case = case("Adagrad", 3)
            .float("decay_factor", 0.5)
            .float("norm_coefficient", 0.25)
            .float("epsilon", 1.0);
        let case =
            case.input(&[2], &[2f32, -4.]).input(&[2], &[2.5f32, 1.]).input(&[2], &[7f32, 4.]).outputs(2);
        // g = [3, 0], H' = [16, 4], r = 0.5 / 2.5 = 0.2
        case.gives(0, &[2], &[2. - 0.2 * 3. / 5., -4.]);
        case.gives(1, &[2], &[16., 4.]);
    }

    #[test]
    fn adam_corrects_its_bias_from_the_second_update_on() {
        let of = |count| {
            let case = case("Adam", count).float("alpha", 0.5).float("beta", 0.75).float("epsilon", 0.25);
            let case =
                case.input(&[1], &[1f32]).input(&[1], &[2f32]).input(&[1], &[4f32]).input(&[1], &[1f32]);
            case.float("norm_coefficient_post", 0.5).outputs(3)
        };
        // V' = 3, H' = 1.75
        let step = 3. / (1.75f64.sqrt() + 0.25);
        of(0).gives(0, &[1], &[0.5 * (1. - 0.5 * step)]);
        let rate = 0.5 * (1. - 0.75f64 * 0.75).sqrt() / (1. - 0.25);
        of(2).gives(0, &[1], &[0.5 * (1. - rate * step)]);
        of(2).gives(1, &[1], &[3.]);
        of(2).gives(2, &[1], &[1.75]);
    }

    #[test]
    fn momentum_of_two_tensors_of_unlike_types() {
        let of = |mode: &str, count| {
            let case = case("Momentum", count).str("mode", mode).float("alpha", 0.5).float("beta", 0.25);
            let case = case.float("norm_coefficient", 1.0).outputs(4);
            let case = case.input(&[1], &[1f32]).input(&[2], &[2f64, 3.]);
            let case = case.input(&[1], &[3f32]).input(&[2], &[0f64, 1.]);
            case.input(&[1], &[8f32]).input(&[2], &[2f64, 4.])
        };
        // g = [4], [2, 4]; V' = [4 + 1], [1 + 0.5, 2 + 1]
        of("standard", 1).gives(0, &[1], &[1. - 0.5 * 5.]);
        of("standard", 1).gives(1, &[2], &[2. - 0.5 * 1.5, 3. - 0.5 * 3.]);
        of("standard", 1).gives(3, &[2], &[1.5, 3.]);
        of("standard", 0).gives(2, &[1], &[8.]);
        of("nesterov", 1).gives(0, &[1], &[1. - 0.5 * (4. + 2.5)]);
        assert!(of("other", 1).run().unwrap_err().message.contains("standard, nesterov"));
    }

    #[test]
    fn tensors_that_do_not_belong_together_are_refused() {
        let two = |g: &[usize], values: &[f32]| {
            case("Adagrad", 0).input(&[2], &[1f32, 2.]).input(g, values).input(&[2], &[0f32, 0.]).outputs(2)
        };
        let message = two(&[1], &[1.]).run().unwrap_err().message;
        assert!(
            message.contains("dimension 0 of input 3 is 1; it must be that of input 2, which is 2"),
            "{message}"
        );
        assert!(two(&[1, 2], &[1., 2.]).run().unwrap_err().message.contains("which it belongs to"));
        let odd = case("Adagrad", 0).input(&[1], &[1f32]).input(&[1], &[1f32]);
        assert!(odd.run().unwrap_err().message.contains("2 tensors are not 3 groups"));
    }
}
