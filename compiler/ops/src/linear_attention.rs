//! LinearAttention and CausalConvWithState: the parts of recurrent language models that carry a state of fixed size.

use super::row::*;
use super::spatial::windows;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Op, RhsLayout, TensorType};

pub const ROWS: &[OpDef] = &[
    op("LinearAttention", 27, linear_attention)
        .inputs(&[
            req("query", "T"),
            req("key", "T"),
            req("value", "T"),
            opt("past_state", "S"),
            opt("decay", "T"),
            opt("beta", "T"),
        ])
        .outputs(&[req("output", "T"), req("present_state", "S")])
        .attributes(&[
            int("chunk_size", 64),
            required("kv_num_heads", Int),
            required("q_num_heads", Int),
            float("scale", 0.0),
            string("update_rule", "gated_delta"),
        ])
        .types(&[("T", HALVES_F32), ("S", HALVES_F32)])
        .shapes(LINEAR_ATTENTION_SHAPES)
        .doc("Attention by a matrix state that decays and is corrected at each step"),
    op("CausalConvWithState", 27, causal_conv)
        .inputs(&[req("input", "T"), req("weight", "T"), opt("bias", "T"), opt("past_state", "T")])
        .outputs(&[req("output", "T"), req("present_state", "T")])
        .attributes(&[string("activation", "none")])
        .types(&[("T", HALVES_F32)])
        .shapes(CAUSAL_CONV_WITH_STATE_SHAPES)
        .doc("Depthwise convolution along time, with what came before as state"),
];

pub const LINEAR_ATTENTION_SHAPES: &[&str] = &[
    "query[B, T, q_num_heads * K]",
    "key[B, T, kv_num_heads * K]",
    "value[B, T, kv_num_heads * V]",
    "past_state[B, kv_num_heads, K, V]",
    "decay[B, T, kv_num_heads * K | kv_num_heads]",
    "beta[B, T, kv_num_heads|1]",
];

const CAUSAL_CONV_WITH_STATE_SHAPES: &[&str] =
    &["input[B, C, L]", "weight[C, 1, K]", "bias[C]", "past_state[B, C, K - 1]"];

const HALVES_F32: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Heads and their sizes.
struct Heads {
    batch: Dim,
    time: Dim,
    queries: usize,
    key_size: Dim,
    value_size: Dim,
}

pub fn linear_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (query, key, value) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (past, decay, beta) = (cx.optional(3), cx.optional(4), cx.optional(5));
    held_to_rule(cx, decay, beta)?;
    let count = |name: &str| match cx.int(name)? {
        count @ 1..=0x7fff_ffff => Ok(count as usize),
        other => malformed(format!("{name} {other}")),
    };
    let (queries, keys) = (count("q_num_heads")?, count("kv_num_heads")?);
    let scale = cx.float("scale")?;
    let b = &mut *cx.b;
    let (q_shape, v_shape) = (b.shape(query), b.shape(value));
    let ([batch, time, q_width], [_, _, v_width], 3) = (q_shape.as_slice(), v_shape.as_slice(), b.rank(key))
    else {
        return malformed(format!("queries {}, keys {}, values {}", b.ty(query), b.ty(key), b.ty(value)));
    };
    // Any operand may determine a size that the symbols of others leave open.
    let own =
        |value: Option<ValueId>, axis: usize| value.and_then(|value| b.ty(value).shape.get(axis).cloned());
    let of_decay = own(decay, 2).filter(|width| *width != Dim::from(keys));
    let (keys_width, past_sizes) = (own(Some(key), 2), [own(past, 2), own(past, 3)]);
    let mut parts = |width: Option<Dim>, heads| match width {
        Some(width) => b.divided(&width, heads, "features must divide into heads").map(Some),
        None => Ok(None),
    };
    let told = |first: Option<Dim>, others: [Option<Dim>; 3]| match first {
        Some(size) if !size.is_const() => {
            Some(others.into_iter().flatten().find(Dim::is_const).unwrap_or(size))
        }
        first => first,
    };
    let of_key = [parts(keys_width, keys)?, past_sizes[0].clone(), parts(of_decay, keys)?];
    let of_value = [past_sizes[1].clone(), None, None];
    let sizes = (
        told(parts(Some(q_width.clone()), queries)?, of_key),
        told(parts(Some(v_width.clone()), keys)?, of_value),
    );
    let (Some(key_size), Some(value_size), 0) = (sizes.0, sizes.1, queries % keys) else {
        return malformed(format!("{queries} heads of {q_width} and {keys} of {v_width} features"));
    };
    let (batch, time) = (batch.clone(), time.clone());
    let heads = Heads { batch, time, queries, key_size, value_size };
    let (dtype, state_dtype) = (b.dtype(query), past.map_or(b.dtype(query), |past| b.dtype(past)));

    let state_shape =
        vec![heads.batch.clone(), Dim::from(keys), heads.key_size.clone(), heads.value_size.clone()];
    let state = match past {
        Some(past) => {
            let past = b.cast(past, DType::F32)?;
            b.reshape(past, state_shape)?
        }
        None => {
            let zero = b.scalar(DType::F32, 0.0);
            b.expand(zero, state_shape)?
        }
    };
    let scaled = scaled_queries(b, query, &heads.key_size, scale)?;
    let group = queries / keys;
    // Time first: [T, B, H_kv, rows, size]
    let mut steps = Steps {
        query: by_time(b, scaled, &heads, [keys, group], &heads.key_size)?,
        key: by_time(b, key, &heads, [keys, 1], &heads.key_size)?,
        value: by_time(b, value, &heads, [keys, 1], &heads.value_size)?,
        decay: None,
        rate: None,
    };
    if let Some(decay) = decay {
        // [T, B, H_kv, d_k or 1, 1]
        let shape = b.shape(decay);
        let Some(width) = shape.last() else { return malformed("decay is a scalar") };
        let size = b.divided(width, keys, "features of decay must divide into heads")?;
        let mut decay = by_time(b, decay, &heads, [keys, 1], &size)?;
        if !size.is_const() {
            // One for each key's element or one for all shows when the model runs.
            let whole =
                [heads.time.clone(), heads.batch.clone(), Dim::from(keys), Dim::ONE, heads.key_size.clone()];
            decay = b.expand(decay, whole.to_vec())?;
        }
        steps.decay = Some(b.transpose(decay, &[0, 1, 2, 4, 3])?);
    }
    if let Some(beta) = beta {
        let shared = b.ty(beta).shape.last() == Some(&Dim::ONE);
        let mut beta = beta;
        if b.ty(beta).shape.last().is_some_and(|width| !width.is_const()) {
            beta = b.expand(beta, vec![heads.batch.clone(), heads.time.clone(), Dim::from(keys)])?;
        }
        steps.rate = Some(by_time(b, beta, &heads, [if shared { 1 } else { keys }, 1], &Dim::ONE)?);
    }
    let found = recurrence(b, state, &steps, heads.time.clone(), false)?;
    // [T, B, H_kv, group, d_v] to [B, T, H_q * d_v]
    let y = b.transpose(found.output, &[1, 0, 2, 3, 4])?;
    let width = Dim::from(heads.queries) * heads.value_size.clone();
    let y = b.reshape(y, vec![heads.batch.clone(), heads.time.clone(), width])?;
    Ok(vec![b.cast(y, dtype)?, b.cast(found.state, state_dtype)?])
}

/// Refuses a decay or a rate that `update_rule` does not name, and the lack of one that it names.
pub fn held_to_rule(cx: &NodeCx<'_, '_>, decay: Option<ValueId>, beta: Option<ValueId>) -> Result<()> {
    let rule = cx.str("update_rule")?;
    let (gated, corrected) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return not_one_of("update_rule", other, "linear, gated, delta, gated_delta"),
    };
    if decay.is_some() != gated || beta.is_some() != corrected {
        return malformed(format!("update_rule `{rule}` with or without decay and beta"));
    }
    Ok(())
}

/// Queries in f32 times `scale`, or one over the root of a key's size.
pub fn scaled_queries(b: &mut Builder<'_>, query: ValueId, key_size: &Dim, scale: f32) -> Result<ValueId> {
    let query = b.cast(query, DType::F32)?;
    match key_size.as_const() {
        _ if scale != 0.0 => b.binary_scalar(BinaryFn::Mul, query, f64::from(scale)),
        Some(size) => b.binary_scalar(BinaryFn::Mul, query, 1.0 / (size.max(1) as f64).sqrt()),
        None => {
            let size = b.dim_scalar(key_size)?;
            let size = b.cast(size, DType::F32)?;
            let root = b.unary(UnaryFn::Sqrt, size)?;
            b.binary(BinaryFn::Div, query, root)
        }
    }
}

/// `[B, T, heads * rows * size]` in f32 as `[T, B, heads, rows, size]`.
fn by_time(
    b: &mut Builder<'_>,
    x: ValueId,
    heads: &Heads,
    [count, rows]: [usize; 2],
    size: &Dim,
) -> Result<ValueId> {
    let x = b.cast(x, DType::F32)?;
    let width = Dim::from(count * rows) * size.clone();
    let known = b.shape(x).last().filter(|own| own.is_const() && width.is_const()).cloned();
    if known.is_some_and(|own| own != width) {
        return malformed(format!("{} in {count} heads", b.ty(x)));
    }
    let split =
        vec![heads.batch.clone(), heads.time.clone(), Dim::from(count), Dim::from(rows), size.clone()];
    let x = b.reshape(x, split)?;
    b.transpose(x, &[1, 0, 2, 3, 4])
}

/// What the steps of a recurrence read, f32, time first.
pub struct Steps {
    /// `[T, B, H, rows, K]`, scaled.
    pub query: ValueId,
    /// `[T, B, H, 1, K]`
    pub key: ValueId,
    /// `[T, B, H, 1, V]`
    pub value: ValueId,
    /// Logarithms of what the state is multiplied by, `[T, B, H, K or 1, 1]`.
    pub decay: Option<ValueId>,
    /// How much of the error is corrected, `[T, B, H or 1, 1, 1]`; without it values are written as they are.
    pub rate: Option<ValueId>,
}

/// What comes of a recurrence.
pub struct Recurrence {
    /// The last state, `[B, H, K, V]`.
    pub state: ValueId,
    /// `[T, B, H, rows, V]`
    pub output: ValueId,
    /// What each step wrote at its key, `[T, B, H, 1, V]`, where it was asked for.
    pub written: Option<ValueId>,
}

/// The states and outputs of `trip` steps of linear attention, from the state `[B, H, K, V]` on:
/// `S = exp(decay) * S`, `w = rate * (value - key S)`, `S = S + key^T w`, `output = query S`; see the schema of LinearAttention.
/// `keeps` asks for what is written.
pub fn recurrence(
    b: &mut Builder<'_>,
    state: ValueId,
    steps: &Steps,
    trip: Dim,
    keeps: bool,
) -> Result<Recurrence> {
    let Steps { query, key, value, decay, rate } = *steps;
    let scans: Vec<ValueId> =
        [Some(query), Some(key), Some(value), decay, rate].into_iter().flatten().collect();
    let (mut body, origin) = b.body();
    {
        let inner = &mut Builder::new(&mut body, origin);
        let state = inner.input("state", b.ty(state).clone(), None);
        let mut step = |scan: ValueId| {
            let ty = b.ty(scan);
            inner.input("step", TensorType::new(ty.dtype, ty.shape[1..].to_vec()), None)
        };
        let [query, key, value] = [query, key, value].map(&mut step);
        let [decay, rate] = [decay, rate].map(|scan| scan.map(&mut step));
        let own = Steps { query, key, value, decay, rate };
        let (state, output, written) = one_step(inner, state, &own)?;
        let results = [state, output].into_iter().chain(keeps.then_some(written));
        body.outputs = results.map(|value| (String::new(), value)).collect();
    }
    let stacked = body.outputs.len() - 1;
    let op = Op::scan(body, trip, 1, scans.len(), vec![false; scans.len() + stacked]);
    let results = b.emit(op, &[vec![state], scans].concat())?;
    Ok(Recurrence { state: results[0], output: results[1], written: results.get(2).copied() })
}

/// The next state, the output and what was written, of one step, whose operands have no axis of time.
fn one_step(b: &mut Builder<'_>, mut state: ValueId, step: &Steps) -> Result<(ValueId, ValueId, ValueId)> {
    if let Some(decay) = step.decay {
        let factor = b.unary(UnaryFn::Exp, decay)?;
        state = b.binary(BinaryFn::Mul, state, factor)?;
    }
    let product = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
    let column = b.transpose(step.key, &[0, 1, 3, 2])?;
    let mut value = step.value;
    if let Some(rate) = step.rate {
        let seen = b.emit1(product.clone(), &[step.key, state])?;
        let error = b.binary(BinaryFn::Sub, value, seen)?;
        value = b.binary(BinaryFn::Mul, rate, error)?;
    }
    let written = b.binary(BinaryFn::Mul, column, value)?;
    let state = b.binary(BinaryFn::Add, state, written)?;
    Ok((state, b.emit1(product, &[step.query, state])?, value))
}

fn causal_conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    causal_convolution(cx, 1)
}

/// Whether a convolution has the activation SiLU.
pub fn is_swish(cx: &NodeCx<'_, '_>) -> Result<bool> {
    match cx.str("activation")?.as_str() {
        "none" => Ok(false),
        "silu" | "swish" => Ok(true),
        other => not_one_of("activation", other, "none, silu, swish"),
    }
}

/// `input: [B, C, L]`, `weight: [C, 1, k]`; the state is the last `(k - 1) * dilation` points of what was seen.
pub fn causal_convolution(cx: &mut NodeCx<'_, '_>, dilation: usize) -> Result<Vec<ValueId>> {
    let (x, weight) = (cx.input(0)?, cx.input(1)?);
    let (bias, past) = (cx.optional(2), cx.optional(3));
    let swish = is_swish(cx)?;
    let b = &mut *cx.b;
    let (shape, w_shape, dtype) = (b.shape(x), b.shape(weight), b.dtype(x));
    let ([_, channels, length], [filters, _, kernel]) = (shape.as_slice(), w_shape.as_slice()) else {
        return malformed(format!("convolution of {} with {}", b.ty(x), b.ty(weight)));
    };
    if channels.is_const() && filters.is_const() && channels != filters {
        return malformed(format!("convolution of {} with {}", b.ty(x), b.ty(weight)));
    }
    if kernel.as_const().is_some_and(|kernel| kernel < 1) {
        return malformed(format!("a kernel of {kernel} points"));
    }
    let before = (kernel.clone() - Dim::ONE) * Dim::from(dilation);
    let seen = match past {
        Some(past) => b.concat(&[past, x], 2)?,
        None => {
            let zero = b.scalar(dtype, 0.0);
            b.pad(x, zero, vec![Dim::ZERO, Dim::ZERO, before.clone()], vec![Dim::ZERO; 3])?
        }
    };
    let present = b.slice_axis(seen, 2, length.clone(), before)?;
    let windows = windows(b, seen, 2, std::slice::from_ref(kernel), &[1], &[dilation])?;
    let windows = b.cast(windows, DType::F32)?;
    let weight = b.cast(weight, DType::F32)?;
    let weight = b.reshape(weight, vec![channels.clone(), Dim::ONE, kernel.clone()])?;
    let products = b.binary(BinaryFn::Mul, windows, weight)?;
    let sum = b.reduce(ReduceFn::Sum, products, &[3])?;
    let mut y = b.squeeze(sum, &[3])?;
    if let Some(bias) = bias {
        let bias = b.cast(bias, DType::F32)?;
        let bias = b.unsqueeze(bias, &[1])?;
        y = b.binary(BinaryFn::Add, y, bias)?;
    }
    y = b.cast(y, dtype)?;
    if swish {
        // The convolution is rounded first, as in the operator's function.
        let wide = b.cast(y, DType::F32)?;
        let sigmoid = b.unary(UnaryFn::Sigmoid, wide)?;
        let product = b.binary(BinaryFn::Mul, wide, sigmoid)?;
        y = b.cast(product, dtype)?;
    }
    Ok(vec![y, present])
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;

    #[test]
    fn a_state_that_decays_and_is_corrected() {
        let case = Case::new("LinearAttention", 27)
            .ramp(&[1, 2, 8], 1)
            .ramp(&[1, 2, 2], 2)
            .ramp(&[1, 2, 3], 3)
            .ramp(&[1, 1, 2, 3], 4)
            .ramp(&[1, 2, 1], 5)
            .ramp(&[1, 2, 1], 6)
            .int("q_num_heads", 4)
            .int("kv_num_heads", 1)
            .outputs(2);
        case.gives(
            0,
            &[1, 2, 12],
            &[
                -0.759631, 0.082819, 0.191727, 0.48126, -0.070988, -0.102657, -0.509632, 0.425928, -0.247574,
                -0.099036, -0.248458, 0.288338, 0.41169, -0.152602, -0.103351, -0.125834, 0.10182, 0.159987,
                -0.663358, 0.356241, 0.423324, 0.130622, -0.135781, -0.236087,
            ],
        );
        case.gives(1, &[1, 1, 2, 3], &[-0.684738, 0.383866, 0.474533, -0.328826, 0.095876, 0.022022]);
    }

    #[test]
    fn rules_say_which_operands_there_are() {
        let case = Case::new("LinearAttention", 27)
            .ramp(&[1, 2, 8], 1)
            .ramp(&[1, 2, 8], 2)
            .ramp(&[1, 2, 8], 3)
            .int("q_num_heads", 1)
            .int("kv_num_heads", 1);
        assert!(case.lower().unwrap_err().message.contains("decay and beta"));
    }

    #[test]
    fn a_convolution_that_remembers() {
        let case = Case::new("CausalConvWithState", 27)
            .symbolic(&["b", "c", "t"], &[1, 2, 3], &crate::node_case::ramp(6, 1))
            .ramp(&[2, 1, 3], 2)
            .ramp(&[2], 3)
            .ramp(&[1, 2, 2], 4)
            .str("activation", "silu")
            .outputs(2);
        case.gives(0, &[1, 2, 3], &[-0.132033, 2.653165, 0.102513, 0.45747, 1.226362, -0.268941]);
        case.gives(1, &[1, 2, 2], &[1.25, 0.25, 1.0, 0.0]);
    }
}
