//! GatedDeltaNet: linear attention over tokens of several requests, with its gates. The recurrence is that of LinearAttention; here
//! tokens come first, states have values before keys, and requests may be of unlike lengths.

use super::branches::of_groups;
use super::linear::capacity;
use super::sequences::Sequences;
use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, I32};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, Requirement};
use onnxc_ops::activation::softplus_of;
use onnxc_ops::linear_attention::{Steps, held_to_rule, recurrence, scaled_queries};
use onnxc_ops::row::*;

pub const ROWS: &[OpDef] = &[own("GatedDeltaNet", gated_delta_net)
    .inputs(&[
        req("query", "T"),
        opt("key", "T"),
        opt("value", "T"),
        opt("cu_seqlens", "TI"),
        opt("decay", "TG"),
        opt("beta", "TG"),
        opt("initial_state", "TS"),
        opt("a_log", "TS"),
        opt("dt_bias", "TS"),
        opt("capture_count", "TI"),
        opt("state_update_active", "TI"),
    ])
    .outputs(&[req("output", "T"), opt("final_state", "TS"), opt("state_update", "TS")])
    .attributes(&[
        string("beta_activation", "none"),
        int("chunk_size", 64),
        string("gate_activation", "none"),
        float("gate_lower_bound", -5.0),
        int("qk_l2_norm", 0),
        float("scale", 0.0),
        int("state_update_capacity", 0),
        string("update_rule", "gated_delta"),
    ])
    .types(&[("T", FLOATS), ("TS", &[F32]), ("TG", FLOATS), ("TI", &[I32])])
    .shapes(&[
        "if key: query[D.., H, K]",
        "if !key: query[D.., _]",
        "key[D.., H, K]",
        "value[D.., N, V]",
        "initial_state[B, N, V, K]",
        "cu_seqlens[B + 1]",
        "decay[D.., N] | [D.., N, K]",
        "beta[D.., N]",
        "a_log[N]",
        "dt_bias[N * K|N] | [N, K]",
        "capture_count[B]",
        "count(state_update_active) = 1",
    ])
    .doc("attention by a matrix state that decays and is corrected at each token, of packed requests")];

/// What the operands say of their sizes: of each the constant that any of them has, where one has.
struct Sizes {
    /// The axes of tokens, one or two, and how many there are.
    lead: Vec<Dim>,
    tokens: Dim,
    /// Heads of queries and keys, and heads of values, a multiple of them.
    few: Dim,
    heads: Dim,
    key_size: Dim,
    value_size: Dim,
}

/// How tokens are the steps of requests.
enum Layout {
    /// Requests of the same number of tokens each.
    Even { batch: Dim, time: Dim },
    /// Requests of unlike lengths, padded to the longest: i64 `[time, batch]` with the token of each step, token 0 where there is
    /// none, and bool `[time, batch]`, whether there is one.
    Ragged { sequences: Sequences, time: Dim, tokens: ValueId, is_token: ValueId },
}

/// How decays are made of what comes in.
#[derive(Clone, Copy, PartialEq)]
enum Gate {
    Given,
    Softplus,
    Sigmoid,
}

impl Gate {
    fn new(cx: &NodeCx<'_, '_>) -> Result<Gate> {
        match cx.str("gate_activation")?.as_str() {
            "none" => Ok(Gate::Given),
            "softplus" | "qwen" => Ok(Gate::Softplus),
            "sigmoid" | "kda" => Ok(Gate::Sigmoid),
            other => not_one_of("gate_activation", other, "none, softplus, qwen, sigmoid, kda"),
        }
    }
}

fn gated_delta_net(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (query, decay, beta, state) =
        (cx.input("query")?, cx.optional("decay"), cx.optional("beta"), cx.optional("initial_state"));
    held_to_rule(cx, decay, beta)?;
    let (gate, capacity) = (Gate::new(cx)?, capacity(cx, cx.optional("capture_count"))?);
    let normalizes = match cx.int("qk_l2_norm")? {
        0 => false,
        1 => true,
        other => return not_one_of("qk_l2_norm", other, "0, 1"),
    };
    let (to, scale) = (cx.b.dtype(query), cx.float("scale")?);
    let (sizes, [mut query, mut key, value]) = operands(cx)?;
    let layout = layout(cx, &sizes)?;
    let decay = decay.map(|decay| log_decay(cx, decay, gate, &sizes)).transpose()?;
    let rate = beta.map(|beta| update_rate(cx, beta, &sizes)).transpose()?;
    let captures = cx.wants(2);

    let b = &mut *cx.b;
    let Sizes { lead, few, heads, key_size, value_size, .. } = &sizes;
    if normalizes {
        // As the kernels have it, by the convention of the models that either gate is of.
        let epsilon = if gate == Gate::Sigmoid { 1e-6 } else { 1e-12 };
        query = unit(b, query, epsilon)?;
        key = unit(b, key, epsilon)?;
    }
    query = scaled_queries(b, query, key_size, scale)?;
    // Time first: [time, batch, heads, rows, size]
    let kept = layout.steps(b, key, true)?;
    let query = layout.steps(b, query, false)?;
    let value = layout.steps(b, value, true)?;
    let mut each = |x: ValueId| {
        let x = repeated(b, x, few, heads)?;
        b.unsqueeze(x, &[3])
    };
    let (query, key) = (each(query)?, each(kept)?);
    let mut steps = Steps { query, key, value: b.unsqueeze(value, &[3])?, decay: None, rate: None };
    if let Some(decay) = decay {
        let decay = layout.steps(b, decay, true)?;
        steps.decay = Some(b.unsqueeze(decay, &[4])?);
    }
    if let Some(rate) = rate {
        let rate = layout.steps(b, rate, true)?;
        steps.rate = Some(b.unsqueeze(rate, &[4])?);
    }
    let (batch, time) = layout.sizes();
    let whole = vec![batch.clone(), heads.clone(), key_size.clone(), value_size.clone()];
    let state = match state {
        Some(state) => {
            let state = b.transpose(state, &[0, 1, 3, 2])?;
            b.reshape(state, whole)?
        }
        None => {
            let zero = b.scalar(F32, 0.0);
            b.expand(zero, whole)?
        }
    };
    let found = recurrence(b, state, &steps, time.clone(), captures)?;
    let output = b.squeeze(found.output, &[3])?;
    let output = layout.tokens(b, output)?;
    let output = b.reshape(output, [lead.as_slice(), &[heads.clone(), value_size.clone()]].concat())?;
    let mut results = vec![b.cast(output, to)?, b.transpose(found.state, &[0, 1, 3, 2])?];
    if let Some(written) = found.written {
        let factors = factors(b, &steps, [&time, &batch, heads])?;
        results.push(captured(cx, &layout, [factors, kept, written], &capacity)?);
    }
    Ok(results)
}

/// The first constant among sizes that are the same, or the first of all.
fn told(sizes: impl IntoIterator<Item = Option<Dim>>) -> Option<Dim> {
    let mut found = None;
    for size in sizes.into_iter().flatten() {
        if size.is_const() {
            return Some(size);
        }
        found = found.or(Some(size));
    }
    found
}

/// The sizes of all, and queries and keys, `[tokens, few, key size]`, and values, `[tokens, heads, value size]`, in f32.
fn operands(cx: &mut NodeCx<'_, '_>) -> Result<(Sizes, [ValueId; 3])> {
    let inputs: Vec<Option<ValueId>> = (0..9).map(|at| cx.optional(at)).collect();
    let [query, key, value, bounds, decay, beta, state, slope, bias] = inputs[..] else {
        return malformed("nine inputs");
    };
    let query = match query {
        Some(query) => query,
        None => cx.input("query")?,
    };
    let b = &mut *cx.b;
    let mut lead = b.shape(query);
    let own_axes = if key.is_some() { 2 } else { 1 };
    let count = match (lead.len() as i64 - own_axes as i64, bounds) {
        (count @ 1, _) | (count @ 2, None) => count as usize,
        (_, None) => {
            return malformed(format!("query {} must have one axis of tokens, or two", b.ty(query)));
        }
        (_, Some(_)) => {
            let with = "as cu_seqlens is given";
            return malformed(format!("query {} must have one axis of tokens, {with}", b.ty(query)));
        }
    };
    let width = lead.pop().unwrap_or(Dim::ONE);
    lead.truncate(count);
    let size = |x: Option<ValueId>, axis: usize| x.and_then(|x| b.ty(x).shape.get(axis).cloned());
    // The last axes of a parameter that has one for each element of keys.
    let of_keys = |x: Option<ValueId>, rank: usize| size(x.filter(|&x| b.rank(x) == rank), rank - 1);
    let heads = told([
        size(value, count),
        size(state, 1),
        size(decay, count),
        size(beta, count),
        size(slope, 0),
        size(bias.filter(|&bias| b.rank(bias) == 2), 0),
    ]);
    let key_size = told([
        size(Some(query).filter(|_| key.is_some()), count + 1),
        size(key, count + 1),
        size(state, 3),
        of_keys(decay, count + 2),
        of_keys(bias, 2),
    ]);
    let value_size = told([size(value, count + 1), size(state, 2)]);
    let few = told([size(Some(query).filter(|_| key.is_some()), count), size(key, count)]);
    let (key, value) = match (key, value) {
        (Some(key), Some(value)) => (Some(key), Some(value)),
        (None, None) if state.is_some() => (None, None),
        (None, None) => {
            return malformed(
                "packed queries, keys and values without initial_state, which determines their heads",
            );
        }
        (key, _) => {
            let (given, missing) = if key.is_some() { ("key", "value") } else { ("value", "key") };
            return malformed(format!(
                "{given} without {missing}: both are given, or neither, where query has all three"
            ));
        }
    };
    let (Some(heads), Some(key_size), Some(value_size)) = (heads, key_size, value_size) else {
        return malformed(format!("query {}: no operand determines the number of heads", b.ty(query)));
    };
    let of_values = heads.clone() * value_size.clone();
    let (few, parts) = match (few, key, value) {
        (Some(few), Some(key), Some(value)) => (few, [query, key, value]),
        _ => {
            let rest = width.clone() - of_values.clone();
            if rest.as_const().is_some_and(|rest| rest < 0) {
                let message =
                    format!("packed query {} of fewer features than values have, {of_values}", b.ty(query));
                return malformed(message);
            }
            let claim =
                "features of packed queries and keys must divide into two times the heads of initial_state";
            let few = b.divided(&rest, key_size.clone() * Dim::from(2usize), claim)?;
            let of_keys = few.clone() * key_size.clone();
            let mut cut = |start: Dim, width: Dim| b.slice_axis(query, count, start, width);
            let query = cut(Dim::ZERO, of_keys.clone())?;
            let key = cut(of_keys.clone(), of_keys.clone())?;
            (few, [query, key, cut(of_keys.clone() + of_keys, of_values)?])
        }
    };
    let tokens = product(&lead);
    let mut part = |x: ValueId, heads: &Dim, size: &Dim| {
        let x = b.cast(x, F32)?;
        b.reshape(x, vec![tokens.clone(), heads.clone(), size.clone()])
    };
    let parts = [
        part(parts[0], &few, &key_size)?,
        part(parts[1], &few, &key_size)?,
        part(parts[2], &heads, &value_size)?,
    ];
    Ok((Sizes { lead, tokens, few, heads, key_size, value_size }, parts))
}

fn layout(cx: &mut NodeCx<'_, '_>, sizes: &Sizes) -> Result<Layout> {
    let (bounds, state, counts) = (cx.optional(3), cx.optional(6), cx.optional(9));
    let b = &mut *cx.b;
    let Sizes { lead, tokens, .. } = sizes;
    let own = |x: Option<ValueId>| x.map(|x| b.shape(x)[0].clone());
    let requests = told([own(state), own(counts).filter(|_| state.is_some())]);
    match (bounds, lead.as_slice(), requests) {
        (Some(bounds), _, requests) => {
            let mut sequences = Sequences::new(b, bounds, "cu_seqlens", tokens, 0)?;
            if let Some(requests) = requests.filter(Dim::is_const) {
                sequences.counted(b, requests)?;
            }
            let time = sequences.longest(b)?;
            let step = b.iota(vec![time.clone(), Dim::ONE], 0)?;
            let is_token = b.compare(CompareFn::Lt, step, sequences.lengths)?;
            let token = b.binary(BinaryFn::Add, sequences.starts, step)?;
            let none = b.scalar(DType::I64, 0.0);
            let tokens = b.select(is_token, token, none)?;
            Ok(Layout::Ragged { sequences, time, tokens, is_token })
        }
        (None, [batch, time], requests) => {
            if let Some(requests) = &requests {
                let requirement = Requirement::equal(requests.clone(), batch.clone());
                b.require(requirement.says("dimension 0 of initial_state", "that of query"))?;
            }
            let batch = told([Some(batch.clone()), requests]).unwrap_or(Dim::ONE);
            Ok(Layout::Even { batch, time: time.clone() })
        }
        (None, _, Some(batch)) => {
            let claim = "tokens must divide among the requests of initial_state";
            let time = b.divided(tokens, batch.clone(), claim)?;
            Ok(Layout::Even { batch, time })
        }
        (None, _, None) => {
            malformed("neither cu_seqlens nor initial_state, which determine the number of requests")
        }
    }
}

impl Layout {
    /// Requests, and the most steps of one.
    fn sizes(&self) -> (Dim, Dim) {
        match self {
            Layout::Even { batch, time } => (batch.clone(), time.clone()),
            Layout::Ragged { sequences, time, .. } => (sequences.count.clone(), time.clone()),
        }
    }

    /// `[tokens, heads, size]` as `[time, batch, heads, size]`. With `clears` steps without a token are 0: they decay by nothing
    /// and write nothing. What they read is of no use.
    fn steps(&self, b: &mut Builder<'_>, x: ValueId, clears: bool) -> Result<ValueId> {
        match self {
            Layout::Even { batch, time } => {
                let split = [&[batch.clone(), time.clone()], &b.shape(x)[1..]].concat();
                let x = b.reshape(x, split)?;
                b.transpose(x, &[1, 0, 2, 3])
            }
            Layout::Ragged { tokens, is_token, .. } => {
                let x = b.emit1(Op::Gather { axis: 0 }, &[x, *tokens])?;
                if !clears {
                    return Ok(x);
                }
                let zero = b.scalar(F32, 0.0);
                let is_token = b.unsqueeze(*is_token, &[2, 3])?;
                b.select(is_token, x, zero)
            }
        }
    }

    /// `[time, batch, heads, size]` as `[tokens, heads, size]`, or a shape of the same elements.
    fn tokens(&self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
        match self {
            Layout::Even { .. } => b.transpose(x, &[1, 0, 2, 3]),
            Layout::Ragged { sequences, time, .. } => {
                let sequence = sequences.of_tokens(b)?;
                let place = sequences.places(b, sequence)?;
                let count = b.dim_scalar(&sequences.count)?;
                let row = b.binary(BinaryFn::Mul, place, count)?;
                let row = b.binary(BinaryFn::Add, row, sequence)?;
                let rows = [&[time.clone() * sequences.count.clone()], &b.shape(x)[2..]].concat();
                let x = b.reshape(x, rows)?;
                b.emit1(Op::Gather { axis: 0 }, &[x, row])
            }
        }
    }
}

/// `[tokens, heads, size]` divided by the length of each head's vector, whose square is `epsilon` more.
fn unit(b: &mut Builder<'_>, x: ValueId, epsilon: f32) -> Result<ValueId> {
    let squares = b.binary(BinaryFn::Mul, x, x)?;
    let sum = b.reduce(ReduceFn::Sum, squares, &[2])?;
    let sum = b.binary_scalar(BinaryFn::Add, sum, f64::from(epsilon))?;
    let length = b.unary(UnaryFn::Sqrt, sum)?;
    b.binary(BinaryFn::Div, x, length)
}

/// `[time, batch, few, size]` with each of few heads as often as it takes for `heads`.
fn repeated(b: &mut Builder<'_>, x: ValueId, few: &Dim, heads: &Dim) -> Result<ValueId> {
    let times = b.divided(heads, few.clone(), "heads of values must divide among those of keys")?;
    let mut shape = b.shape(x);
    shape[2] = heads.clone();
    if times != Dim::ONE {
        let wide = b.unsqueeze(x, &[3])?;
        let mut all = b.shape(wide);
        all[3] = times;
        let wide = b.expand(wide, all)?;
        return b.reshape(wide, shape);
    }
    b.reshape(x, shape)
}

/// Logarithms of decays, f32 `[tokens, heads, key size or 1]`.
fn log_decay(cx: &mut NodeCx<'_, '_>, decay: ValueId, gate: Gate, sizes: &Sizes) -> Result<ValueId> {
    let (slope, bias, least) = (cx.optional("a_log"), cx.optional("dt_bias"), cx.float("gate_lower_bound")?);
    if least >= 0.0 || !least.is_finite() {
        return malformed(format!("gate_lower_bound is {least}; it must be negative"));
    }
    let b = &mut *cx.b;
    let is_whole = b.rank(decay) == sizes.lead.len() + 2;
    let size = if is_whole { sizes.key_size.clone() } else { Dim::ONE };
    let decay = b.cast(decay, F32)?;
    let decay = b.reshape(decay, vec![sizes.tokens.clone(), sizes.heads.clone(), size.clone()])?;
    let (slope, bias) = match (gate, slope, bias) {
        (Gate::Given, None, None) => return Ok(decay),
        (Gate::Given, ..) => {
            return malformed("a_log or dt_bias with gate_activation `none`, which has no use for them");
        }
        (_, Some(slope), Some(bias)) => (slope, bias),
        _ => return malformed("a gate_activation other than `none` without a_log or dt_bias"),
    };
    let slope = b.reshape(slope, vec![sizes.heads.clone(), Dim::ONE])?;
    let slope = b.unary(UnaryFn::Exp, slope)?;
    let bias = match b.shape(bias).as_slice() {
        [_, own] => {
            let rule = "the number of numbers that decay has for each head";
            b.require(Requirement::equal(own.clone(), size.clone()).says("dimension 1 of dt_bias", rule))?;
            b.reshape(bias, vec![sizes.heads.clone(), size])?
        }
        [own] if !is_whole => {
            let requirement = Requirement::equal(own.clone(), sizes.heads.clone());
            b.require(requirement.says("dimension 0 of dt_bias", "the number of heads of decay"))?;
            b.reshape(bias, vec![sizes.heads.clone(), Dim::ONE])?
        }
        _ => of_groups(b, bias, 0, &sizes.heads, &size)?,
    };
    let biased = b.binary(BinaryFn::Add, decay, bias)?;
    match gate {
        Gate::Sigmoid => {
            let steep = b.binary(BinaryFn::Mul, slope, biased)?;
            let share = b.unary(UnaryFn::Sigmoid, steep)?;
            b.binary_scalar(BinaryFn::Mul, share, f64::from(least))
        }
        _ => {
            let soft = softplus_of(b, biased)?;
            let slope = b.unary(UnaryFn::Neg, slope)?;
            b.binary(BinaryFn::Mul, slope, soft)
        }
    }
}

/// How much of the error each head corrects, f32 `[tokens, heads, 1]`.
fn update_rate(cx: &mut NodeCx<'_, '_>, beta: ValueId, sizes: &Sizes) -> Result<ValueId> {
    let squashes = match cx.str("beta_activation")?.as_str() {
        "none" => false,
        "sigmoid" => true,
        other => return not_one_of("beta_activation", other, "none, sigmoid"),
    };
    let b = &mut *cx.b;
    let beta = b.cast(beta, F32)?;
    let beta = b.reshape(beta, vec![sizes.tokens.clone(), sizes.heads.clone(), Dim::ONE])?;
    if squashes { b.unary(UnaryFn::Sigmoid, beta) } else { Ok(beta) }
}

/// What each step multiplies the state by, `[time, batch, heads, K or 1]`: 1 without decays.
fn factors(b: &mut Builder<'_>, steps: &Steps, [time, batch, heads]: [&Dim; 3]) -> Result<ValueId> {
    match steps.decay {
        Some(decay) => {
            let decay = b.squeeze(decay, &[4])?;
            b.unary(UnaryFn::Exp, decay)
        }
        None => {
            let one = b.scalar(F32, 1.0);
            b.expand(one, vec![time.clone(), batch.clone(), heads.clone(), Dim::ONE])
        }
    }
}

/// The first steps of each request, at most `capture_count` and at most `capacity`, one kind of number behind the
/// other: f32 `[batch, capacity * (size of a step of each kind)]`, 0 behind those.
fn captured(
    cx: &mut NodeCx<'_, '_>,
    layout: &Layout,
    kinds: [ValueId; 3],
    capacity: &Dim,
) -> Result<ValueId> {
    let (counts, active) = (cx.optional("capture_count"), cx.optional("state_update_active"));
    let (batch, time) = layout.sizes();
    let b = &mut *cx.b;
    let Some(counts) = counts else {
        let zero = b.scalar(F32, 0.0);
        return b.expand(zero, vec![batch, Dim::ZERO]);
    };
    let slot = b.iota(vec![capacity.clone(), Dim::ONE], 0)?;
    let lengths = match layout {
        Layout::Even { time, .. } => b.dim_scalar(time)?,
        Layout::Ragged { sequences, .. } => sequences.lengths,
    };
    let counts = b.cast(counts, DType::I64)?;
    let counts = b.binary(BinaryFn::Min, counts, lengths)?;
    let mut is_asked = b.compare(CompareFn::Lt, slot, counts)?;
    if let Some(active) = active {
        let active = b.reshape(active, vec![])?;
        let zero = b.scalar(I32, 0.0);
        let active = b.compare(CompareFn::Ne, active, zero)?;
        is_asked = b.binary(BinaryFn::And, is_asked, active)?;
    }
    let is_asked = b.unsqueeze(is_asked, &[2])?;
    let there = time.min_dim(capacity);
    let zero = b.scalar(F32, 0.0);
    let mut parts = Vec::new();
    for kind in kinds {
        let shape = b.shape(kind);
        let width = product(&shape[2..]);
        let kind = b.reshape(kind, vec![time.clone(), batch.clone(), width.clone()])?;
        let kind = b.slice_axis(kind, 0, Dim::ZERO, there.clone())?;
        let room = vec![capacity.clone() - there.clone(), Dim::ZERO, Dim::ZERO];
        let kind = b.pad(kind, zero, vec![Dim::ZERO; 3], room)?;
        let kind = b.select(is_asked, kind, zero)?;
        let kind = b.transpose(kind, &[1, 0, 2])?;
        parts.push(b.reshape(kind, vec![batch.clone(), capacity.clone() * width])?);
    }
    b.concat(&parts, 1)
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;
    use onnxc_ops::node_case::{Case, ramp};

    fn case() -> Case {
        crate::tests::case(DOMAIN, "GatedDeltaNet", 1)
    }

    /// Two heads of values share one of keys; the second of three requests has no tokens. Numbers of ONNX Runtime 1.32.
    fn ragged(bounds: &[i32], symbols: &[&str]) -> Case {
        let [n, b] = symbols else { panic!("two symbols") };
        case()
            .symbolic(&[n, "", ""], &[3, 1, 2], &ramp(6, 1))
            .symbolic(&[n, "", ""], &[3, 1, 2], &ramp(6, 2))
            .symbolic(&[n, "", ""], &[3, 2, 2], &ramp(12, 3))
            .input::<i32>(&[4], bounds)
            .symbolic(&[n, ""], &[3, 2], &ramp(6, 4))
            .symbolic(&[n, ""], &[3, 2], &ramp(6, 5))
            .symbolic(&[b, "", "", ""], &[3, 2, 2, 2], &ramp(24, 6))
            .ramp(&[2], 7)
            .ramp(&[2], 8)
            .symbolic::<i32>(&[b], &[3], &[1, 4, 2])
            .str("gate_activation", "softplus")
            .str("beta_activation", "sigmoid")
            .int("qk_l2_norm", 1)
            .int("state_update_capacity", 2)
            .outputs(3)
    }

    #[test]
    fn requests_of_unlike_lengths() {
        for symbols in [["", ""], ["n", "b"]] {
            let case = ragged(&[0, 2, 2, 3], &symbols);
            case.gives(
                0,
                &[3, 2, 2],
                &[
                    -0.460031, -0.065892, 0.214606, -0.161565, 0.0996439, -0.194685, -0.0545826, 0.0336882,
                    -0.502033, -0.131022, 0.137826, -0.280527,
                ],
            );
            case.gives(
                1,
                &[3, 2, 2, 2],
                &[
                    -0.108274, -0.184632, -0.689262, 0.060466, 0.150804, 0.131635, -0.174785, -0.108481,
                    0.75, -0.25, -1.25, 0.5, -0.5, 1.25, 0.25, -0.75, -0.709982, 0.632955, -0.185293,
                    0.138969, 0.194916, -0.557733, -0.396725, 0.261757,
                ],
            );
            // One of two steps was asked for, none is there, and one of two is there: factors, keys, what was written.
            let mut update = vec![0.0; 48];
            update[..2].copy_from_slice(&[0.571645, 0.0860543]);
            update[4..6].copy_from_slice(&[0.316228, -0.948683]);
            update[8..12].copy_from_slice(&[0.279533, -0.0395727, -0.199974, 0.148844]);
            update[32..34].copy_from_slice(&[0.133958, 0.286293]);
            update[36..38].copy_from_slice(&[-0.8, 0.6]);
            update[40..44].copy_from_slice(&[1.05493, 0.0641677, -0.333111, 0.67484]);
            case.gives(2, &[3, 16], &update);
        }
    }

    #[test]
    fn nothing_is_captured_where_it_is_not_active() {
        ragged(&[0, 2, 2, 3], &["", ""]).input::<i32>(&[1], &[0]).gives(2, &[3, 16], &[0.0; 48]);
    }

    /// Numbers of ONNX Runtime 1.32.
    #[test]
    fn packed_operands_and_a_decay_of_each_element() {
        let case = case()
            .ramp(&[4, 8], 1)
            .missing()
            .missing()
            .missing()
            .ramp(&[4, 2, 2], 4)
            .ramp(&[4, 2], 5)
            .ramp(&[2, 2, 2, 2], 6)
            .ramp(&[2], 7)
            .ramp(&[4], 8)
            .str("gate_activation", "kda")
            .float("gate_lower_bound", -2.0)
            .float("scale", 0.5)
            .outputs(2);
        case.gives(
            0,
            &[4, 2, 2],
            &[
                -0.0574126, -0.32781, 0.481228, -0.512661, 0.100963, -0.0980191, -0.168837, 0.203517,
                -0.266653, 0.191817, -0.544866, 0.357038, -0.0144741, -0.0385541, -0.236304, -0.0218826,
            ],
        );
        case.gives(
            1,
            &[2, 2, 2, 2],
            &[
                0.531043, -0.267749, 0.67467, 0.0218966, 0.0866331, 0.252813, -0.195308, -0.286566, 0.132278,
                0.0826904, -0.486884, -0.0594836, -0.25, 0.546811, -1.25, -0.358313,
            ],
        );
    }

    /// `S = k^T v` of each step, from nothing on: `o = q S / sqrt(2)`.
    #[test]
    fn two_axes_of_tokens() {
        let case = case()
            .ramp(&[1, 2, 1, 2], 1)
            .ramp(&[1, 2, 1, 2], 2)
            .ramp(&[1, 2, 1, 2], 3)
            .str("update_rule", "linear");
        case.outputs(2).gives(0, &[1, 2, 1, 2], &[-0.751301, 0.0, 0.265165, 0.132583]);
    }

    #[test]
    fn bounds_that_are_none_fail() {
        for (bounds, wanted) in [
            ([0, 2, 1, 3], "cu_seqlens is 1 too small; it must be at least 0 above the one before"),
            ([1, 2, 2, 3], "the first element of cu_seqlens is 1; it must be 0"),
            ([0, 1, 2, 2], "it must be the number of tokens, which is 3"),
            ([0, 1, 2, 4], "it must be the number of tokens, which is 3"),
        ] {
            let message = ragged(&bounds, &["", ""]).run().unwrap_err().message;
            assert!(message.contains(wanted), "{bounds:?}: {message}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let linear = |state: bool| {
            let case = case()
                .ramp(&[3, 1, 2], 1)
                .ramp(&[3, 1, 2], 2)
                .ramp(&[3, 1, 2], 3)
                .str("update_rule", "linear");
            if state { case.missing().missing().missing().ramp(&[2, 1, 2, 2], 4) } else { case }
        };
        let of = |case: Case| case.lower().unwrap_err().message;
        for (message, wanted) in [
            (of(linear(false)), "neither cu_seqlens nor initial_state"),
            (
                of(linear(true)),
                "tokens must divide among the requests of initial_state: 3 is not a multiple of 2",
            ),
            (
                of(linear(false).str("update_rule", "gated")),
                "update_rule `gated` with or without decay and beta",
            ),
            (
                of(case().ramp(&[3, 1, 2], 1).ramp(&[3, 1, 2], 2).str("update_rule", "linear")),
                "key without value",
            ),
            (of(case().ramp(&[3, 6], 1).str("update_rule", "linear")), "without initial_state"),
            (
                of(case()
                    .ramp(&[1, 3, 1, 2], 1)
                    .ramp(&[1, 3, 1, 2], 2)
                    .ramp(&[1, 3, 1, 2], 3)
                    .input::<i32>(&[2], &[0, 3])),
                "update_rule `gated_delta`",
            ),
            (
                of(linear(false).int("state_update_capacity", 2)),
                "state_update_capacity 2 without capture_count",
            ),
            (of(linear(false).int("qk_l2_norm", 2)), "qk_l2_norm is `2`"),
            (
                of(case()
                    .ramp(&[3, 2, 2], 1)
                    .ramp(&[3, 2, 2], 2)
                    .ramp(&[3, 3, 2], 3)
                    .input::<i32>(&[2], &[0, 3])
                    .str("update_rule", "linear")),
                "heads of values must divide among those of keys",
            ),
            (
                of(case()
                    .ramp(&[1, 3, 1, 2], 1)
                    .ramp(&[1, 3, 1, 2], 2)
                    .ramp(&[1, 3, 1, 2], 3)
                    .input::<i32>(&[2], &[0, 3])
                    .str("update_rule", "linear")),
                "must have one axis of tokens, as cu_seqlens is given",
            ),
        ] {
            assert!(message.contains(wanted), "{message}\nwanted {wanted}");
        }
    }
}
