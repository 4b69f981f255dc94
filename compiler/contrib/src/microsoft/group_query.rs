//! GroupQueryAttention: attention of a decoder whose queries share keys, with a cache of keys and values.
//!
//! The rows of a batch may have caches of unlike length: the tokens of row `b` lie behind its `seqlens_k[b] + 1 - S`
//! cached ones, without a gap. Only where there is one row, or no cache, is the place of new tokens known from shapes, and
//! caches are joined by Concat.

use super::integer_cache::form;
use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{BF16, F8E4M3FN, F16, F32, I8, I32, I64, U8};
use onnxc_ir::graph::claim::V;
use onnxc_ir::graph::{Op, Requirement};
use onnxc_ops::AttrDefault::{Float, Int, Optional, Required, Str};
use onnxc_ops::attention::{cache, heads, merged_heads, rotated, scores, weighted};
use onnxc_ops::row::{
    BinaryFn, CompareFn, Dim, NodeCx, OpDef, ReduceFn, Result, UnaryFn, ValueId, malformed, not_one_of, opt,
    req, size_scalar, unsupported,
};
use onnxc_ops::softmax::softmax_along;
use onnxc_ops::{AttrKind, attr};

pub const ROWS: &[OpDef] = &[own("GroupQueryAttention", group_query_attention)
    .inputs(&[
        req("query", "T"),
        opt("key", "T"),
        opt("value", "T"),
        opt("past_key", "T_CACHE"),
        opt("past_value", "T_CACHE"),
        req("seqlens_k", "M"),
        req("total_sequence_length", "M"),
        opt("cos_cache", "T"),
        opt("sin_cache", "T"),
        opt("position_ids", "tensor(int64)"),
        opt("attention_bias", "T"),
        opt("head_sink", "T"),
        opt("k_scale", "T_KV_SCALE"),
        opt("v_scale", "T_KV_SCALE"),
        opt("q_norm_weight", "T"),
        opt("k_norm_weight", "T"),
        opt("query_seqlens", "M"),
    ])
    .outputs(&[
        req("output", "T"),
        opt("present_key", "T_CACHE"),
        opt("present_value", "T_CACHE"),
        opt("output_qk", "T"),
    ])
    .attributes(&[
        attr("causal", Int(1)),
        attr("do_rotary", Optional(AttrKind::Int)),
        attr("k_norm_epsilon", Optional(AttrKind::Float)),
        attr("k_quant_type", Str("NONE")),
        attr("kv_cache_bit_width", Optional(AttrKind::Int)),
        attr("kv_num_heads", Required(AttrKind::Int)),
        attr("local_window_size", Int(-1)),
        attr("num_heads", Required(AttrKind::Int)),
        attr("q_norm_epsilon", Optional(AttrKind::Float)),
        attr("qk_norm_epsilon", Float(1e-6)),
        attr("qk_output", Int(0)),
        attr("rotary_interleaved", Optional(AttrKind::Int)),
        attr("scale", Optional(AttrKind::Float)),
        attr("sliding_window_cache", Int(0)),
        attr("smooth_softmax", Int(-1)),
        attr("softcap", Optional(AttrKind::Float)),
        attr("v_quant_type", Str("NONE")),
    ])
    .types(&[
        ("T", FLOATS),
        ("T_CACHE", &[F32, F16, BF16, U8, I8, F8E4M3FN]),
        ("T_KV_SCALE", &[F32]),
        ("M", &[I32]),
    ])
    .shapes(&[
        "num_heads % kv_num_heads = 0",
        "if key: query[B, S, num_heads * E]",
        "if !key: query[B, S, (num_heads + 2 * kv_num_heads) * E]",
        "key[B, S, kv_num_heads * E]",
        "value[B, S, kv_num_heads * E]",
        "if kv_cache_bit_width != 4: past_key[B, kv_num_heads, P, E]",
        "if kv_cache_bit_width != 4: past_value[B, kv_num_heads, P, E]",
        "if kv_cache_bit_width = 4: past_key[B, kv_num_heads, P, E / 2]",
        "if kv_cache_bit_width = 4: past_value[B, kv_num_heads, P, E / 2]",
        "seqlens_k[B] | [B, 1]",
        "count(total_sequence_length) = 1",
        "cos_cache[M, C]",
        "sin_cache[M, C]",
        "2 * C <= E",
        "position_ids[B, S]",
        "attention_bias[B|1, num_heads|1, S, _]",
        "head_sink[num_heads]",
        "if k_quant_type = PER_TENSOR: count(k_scale) = 1",
        "if v_quant_type = PER_TENSOR: count(v_scale) = 1",
        "if k_quant_type = PER_CHANNEL: count(k_scale) = kv_num_heads * E",
        "if v_quant_type = PER_CHANNEL: count(v_scale) = kv_num_heads * E",
        "q_norm_weight[E]",
        "k_norm_weight[E]",
    ])
    .doc("attention of groups of queries with rotation, caches, windows and sinks")];

/// What is not computed.
fn refuse(cx: &NodeCx<'_, '_>) -> Result<()> {
    if cx.int("sliding_window_cache")? != 0 {
        return unsupported(format!("sliding_window_cache {}", cx.int("sliding_window_cache")?));
    }
    if cx.optional("query_seqlens").is_some() {
        return unsupported("the input query_seqlens".to_string());
    }
    Ok(())
}

/// A count of heads.
pub(super) fn count(cx: &NodeCx<'_, '_>, name: &str) -> Result<i64> {
    match cx.int(name)? {
        count @ 1..=0xff_ffff => Ok(count),
        other => malformed(format!("{name} is {other}; it must be from 1 to {}", 0xff_ffff)),
    }
}

/// Both of two inputs, or none.
pub(super) fn both(cx: &NodeCx<'_, '_>, first: &str, second: &str) -> Result<Option<[ValueId; 2]>> {
    match (cx.optional(first), cx.optional(second)) {
        (Some(one), Some(other)) => Ok(Some([one, other])),
        (None, None) => Ok(None),
        _ => malformed(format!("{first} and {second} come together")),
    }
}

/// Queries, keys and values, `[B, heads, S, E]`.
pub(super) fn operands(cx: &mut NodeCx<'_, '_>) -> Result<[ValueId; 3]> {
    let counts = [count(cx, "num_heads")?, count(cx, "kv_num_heads")?, count(cx, "kv_num_heads")?];
    let given = both(cx, "key", "value")?;
    let query = cx.input("query")?;
    let b = &mut *cx.b;
    let parts = match given {
        Some([key, value]) => [query, key, value],
        None => {
            let whole = counts.iter().sum::<i64>() as usize;
            let width = b.shape(query)[2].clone();
            let each =
                b.divided(&width, whole, "query must divide into heads of queries, keys and values")?;
            let (mut parts, mut start) = ([query; 3], Dim::ZERO);
            for (part, count) in parts.iter_mut().zip(counts) {
                let size = Dim::from(count) * each.clone();
                *part = b.slice_axis(query, 2, start.clone(), size.clone())?;
                start = start + size;
            }
            parts
        }
    };
    let mut split = parts;
    for (part, count) in split.iter_mut().zip(counts) {
        *part = heads(b, *part, Some(count))?;
    }
    Ok(split)
}

/// Where tokens lie in the caches.
struct Places {
    /// Tokens in the caches that this call gives.
    room: Dim,
    /// Of `total_sequence_length`.
    total: Dim,
    /// Whether `room` is the length of the past and the new tokens.
    grows: bool,
    /// Whether the tokens of every row lie behind all others of the past.
    aligned: bool,
    /// Where the first token of a row lies: `[B or 1, 1]`, i64.
    start: ValueId,
    /// The last token of a row, `seqlens_k`: `[B, 1]`, i64.
    last: ValueId,
    /// Whether no token came before: a scalar, where only the run knows.
    first: Option<ValueId>,
    /// What is known of it.
    is_first: bool,
}

fn places(cx: &mut NodeCx<'_, '_>, past: Option<ValueId>, steps: &Dim) -> Result<Places> {
    let total = size_scalar(cx, "total_sequence_length")?;
    let lengths = cx.input("seqlens_k")?;
    let batch = cx.b.shape(cx.input("query")?)[0].clone();
    let behind = past.map_or(Dim::ZERO, |past| cx.b.shape(past)[2].clone());
    let grown = behind.clone() + steps.clone();
    // A cache of constant room keeps its size in the result, as the declared result or the sizes show.
    let declared = cx.declared.get(1).and_then(|ty| ty.as_ref()).and_then(|ty| ty.shape.get(2));
    let keeps = declared.is_some_and(|room| *room == behind && *room != grown);
    let room = match (total.as_const(), grown.as_const()) {
        _ if keeps => behind.clone(),
        (Some(_), None) => behind.max_dim(&total),
        (Some(known), Some(grown)) if known < grown => behind.clone(),
        _ => grown.clone(),
    };
    let grows = room == grown;
    let name = cx.operand_name("total_sequence_length");
    if grows {
        let rule = "the length of past_key and that of query together";
        cx.b.require(Requirement::equal(total.clone(), grown.clone()).says(&name, rule))?;
    } else {
        let requirement = Requirement::at_most(total.clone(), room.clone());
        cx.b.require(requirement.says(&name, "the length of present_key"))?;
        // All that came before this call is in the past, if not all of the cache is.
        let missing = total.clone() - behind.min_dim(&total);
        let text = format!(
            "{name} is {V}; it must be at most the length of past_key, which is {V}, or that and the length of query \
             together, which is {V}"
        );
        let requirement = Requirement::equal(missing * (grown.clone() - total.clone()), Dim::ZERO);
        cx.b.require(requirement.stated(text, &[&total, &behind, &grown]))?;
    }
    let is_first = if grows { behind == Dim::ZERO } else { total == *steps };
    // Of one row alone the cache is used to its end.
    let aligned = grows && (is_first || batch == Dim::ONE);
    if aligned && !is_first {
        cx.with_count("seqlens_k", Some(1))?;
        let last = cx.sizes_input("seqlens_k")?;
        let Some(last) = last.first() else {
            return malformed("seqlens_k has no element".to_string());
        };
        let apart = last.clone() + Dim::ONE - total.clone();
        let text = format!(
            "{} is {V}; it must be one less than {name}, which is {V}, where one row follows a cache",
            cx.operand_name("seqlens_k")
        );
        let requirement = Requirement::equal(apart * behind.min_dim(&Dim::ONE), Dim::ZERO);
        cx.b.require(requirement.stated(text, &[last, &total]))?;
    }
    let b = &mut *cx.b;
    let lengths = b.cast(lengths, I64)?;
    let last = b.reshape(lengths, vec![batch, Dim::ONE])?;
    let (mut start, mut first) = (b.scalar(I64, 0.0), None);
    if aligned {
        start = b.dim_scalar(&behind)?;
    } else if !is_first {
        let (zero, new) = (start, b.dim_scalar(steps)?);
        let after = b.binary_scalar(BinaryFn::Add, last, 1.0)?;
        start = b.binary(BinaryFn::Sub, after, new)?;
        let (one, other) = if grows { (&behind, &Dim::ZERO) } else { (&total, steps) };
        let (one, other) = (b.dim_scalar(one)?, b.dim_scalar(other)?);
        let nothing = b.compare(CompareFn::Eq, one, other)?;
        start = b.select(nothing, zero, start)?;
        first = Some(nothing);
    }
    if aligned && !is_first {
        let (one, zero) = (b.dim_scalar(&behind)?, b.scalar(I64, 0.0));
        first = Some(b.compare(CompareFn::Eq, one, zero)?);
    }
    if b.rank(start) == 0 {
        start = b.reshape(start, vec![Dim::ONE, Dim::ONE])?;
    }
    Ok(Places { room, total, grows, aligned, start, last, first, is_first })
}

impl Places {
    /// Positions of tokens for the rotation, `[B or 1, S]`. Where no token came before, the first one given determines all.
    fn positions(&self, b: &mut Builder<'_>, given: Option<ValueId>, steps: &Dim) -> Result<ValueId> {
        let step = b.iota(vec![Dim::ONE, steps.clone()], 1)?;
        let Some(given) = given else { return b.binary(BinaryFn::Add, self.start, step) };
        if !self.is_first && self.first.is_none() {
            return Ok(given);
        }
        let origin = b.slice_axis(given, 0, Dim::ZERO, Dim::ONE)?;
        let origin = b.slice_axis(origin, 1, Dim::ZERO, Dim::ONE)?;
        let counted = b.binary(BinaryFn::Add, origin, step)?;
        match self.first {
            Some(first) => b.select(first, counted, given),
            None => Ok(counted),
        }
    }

    /// The cache with new tokens `[B, G, S, E]` behind those of the past: `[B, G, room, E]`, zeros after them.
    fn joined(&self, b: &mut Builder<'_>, past: Option<ValueId>, new: ValueId) -> Result<ValueId> {
        let shape = b.shape(new);
        if self.aligned {
            return match past {
                Some(past) => b.concat(&[past, new], 2),
                None => Ok(new),
            };
        }
        if shape.len() != 4 {
            return malformed(format!("keys {}", b.ty(new)));
        }
        with_tokens(b, past, new, self.start, &self.room, false)
    }

    /// Which keys a query sees, `[B or 1, 1, S or 1, room]`; `None` if all of them.
    fn visible(
        &self,
        b: &mut Builder<'_>,
        steps: &Dim,
        causal: bool,
        window: i64,
    ) -> Result<Option<ValueId>> {
        let single = self.aligned && *steps == Dim::ONE;
        if single && window < 0 {
            return Ok(None);
        }
        // Of keys behind a row's last one, which pad a first call, no query sees any.
        let mut limit = if single { self.start } else { self.last };
        if causal && !single {
            let step = b.iota(vec![Dim::ONE, steps.clone()], 1)?;
            let own = b.binary(BinaryFn::Add, self.start, step)?;
            limit = b.binary(BinaryFn::Min, own, limit)?;
        }
        let own = b.shape(limit);
        let limit = b.reshape(limit, vec![own[0].clone(), Dim::ONE, own[1].clone(), Dim::ONE])?;
        let token = b.iota(vec![self.room.clone()], 0)?;
        let mut seen = None;
        if !single {
            seen = Some(b.compare(CompareFn::Le, token, limit)?);
        }
        if window >= 0 {
            let from = b.binary_scalar(BinaryFn::Sub, limit, window as f64)?;
            let inside = b.compare(CompareFn::Gt, token, from)?;
            seen = Some(match seen {
                Some(seen) => b.binary(BinaryFn::And, seen, inside)?,
                None => inside,
            });
        }
        Ok(seen)
    }
}

/// The keys that a query sees, and what is given back beside the result.
struct Mode {
    causal: bool,
    /// Keys that a query sees, at most; -1 for all.
    window: i64,
    /// Of the third output: scores (1) or weights (2).
    exposed: i64,
}

impl Mode {
    fn of(cx: &NodeCx<'_, '_>) -> Result<Mode> {
        let causal = match cx.int("causal")? {
            0 => false,
            1 => true,
            other => return not_one_of("causal", other, "0, 1"),
        };
        let window = match cx.int("local_window_size")? {
            window if window == -1 || window > 0 && causal => window,
            other => {
                return malformed(format!(
                    "local_window_size {other}: it is above 0, or -1, also where causal is 0"
                ));
            }
        };
        let exposed = match cx.int("qk_output")? {
            mode @ 0..=2 => mode,
            other => return not_one_of("qk_output", other, "0, 1, 2"),
        };
        if exposed == 0 && cx.wants(3) {
            return malformed("output_qk is given where qk_output is 1 or 2".to_string());
        }
        Ok(Mode { causal, window, exposed })
    }
}

fn group_query_attention(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    refuse(cx)?;
    let past = both(cx, "past_key", "past_value")?;
    let norms = both(cx, "q_norm_weight", "k_norm_weight")?;
    let caches = both(cx, "cos_cache", "sin_cache")?;
    let mode = Mode::of(cx)?;
    let integers = form(cx)?;
    let [query, key, mut value] = operands(cx)?;
    let (dtype, steps) = (cx.b.dtype(query), cx.b.shape(query)[2].clone());
    let places = places(cx, past.map(|[key, _]| key), &steps)?;
    let [query, key] = with_norms(cx, [query, key], norms)?;
    let [query, mut key] = turned(cx, [query, key], caches, &places)?;
    let weighing = Weighing::of(cx)?;
    let b = &mut *cx.b;
    if let Some(integers) = &integers {
        key = integers.kept(b, key, integers.scales[0])?;
        value = integers.kept(b, value, integers.scales[1])?;
    }
    key = places.joined(b, past.map(|[key, _]| key), key)?;
    value = places.joined(b, past.map(|[_, value]| value), value)?;
    let present = [key, value];
    if let Some(integers) = &integers {
        key = integers.real(b, key, integers.scales[0], dtype)?;
        value = integers.real(b, value, integers.scales[1], dtype)?;
    }
    let found = weighing.scores(b, [query, key], &places)?;
    let seen = places.visible(b, &steps, mode.causal, mode.window)?;
    let weights = weighing.weights(b, found, seen)?;
    let y = weighted(b, weights, value, dtype)?;
    let y = merged_heads(b, y)?;
    let mut outputs = vec![y, present[0], present[1]];
    if cx.wants(3) {
        let b = &mut *cx.b;
        let mut shown = if mode.exposed == 2 { weights } else { found };
        if let Some(seen) = seen.filter(|_| mode.exposed == 1) {
            let zero = b.scalar(dtype, 0.0);
            shown = b.select(seen, found, zero)?;
        }
        let total = if places.grows { places.room } else { places.total };
        outputs.push(b.slice_axis(shown, 3, Dim::ZERO, total)?);
    }
    Ok(outputs)
}

/// Queries and keys divided by the size of their heads, where weights for that are given.
fn with_norms(
    cx: &mut NodeCx<'_, '_>,
    [query, key]: [ValueId; 2],
    norms: Option<[ValueId; 2]>,
) -> Result<[ValueId; 2]> {
    let Some([of_queries, of_keys]) = norms else { return Ok([query, key]) };
    let common = cx.float("qk_norm_epsilon")?;
    let epsilon = cx.optional_float("q_norm_epsilon")?.unwrap_or(common);
    let query = normalized(cx.b, query, of_queries, epsilon)?;
    let epsilon = cx.optional_float("k_norm_epsilon")?.unwrap_or(common);
    Ok([query, normalized(cx.b, key, of_keys, epsilon)?])
}

/// Queries and keys turned by the angles of their positions, if the node wants that.
fn turned(
    cx: &mut NodeCx<'_, '_>,
    [query, key]: [ValueId; 2],
    caches: Option<[ValueId; 2]>,
    places: &Places,
) -> Result<[ValueId; 2]> {
    if cx.optional_int("do_rotary")?.unwrap_or(0) == 0 {
        return Ok([query, key]);
    }
    let Some([cos, sin]) = caches else {
        return malformed("do_rotary without cos_cache and sin_cache".to_string());
    };
    let interleaved = cx.optional_int("rotary_interleaved")?.unwrap_or(0) != 0;
    let given = cx.optional("position_ids");
    let b = &mut *cx.b;
    let steps = b.shape(query)[2].clone();
    let positions = places.positions(b, given, &steps)?;
    let half = b.shape(cos)[1].clone();
    let angles = [cache(b, cos, Some(positions))?, cache(b, sin, Some(positions))?];
    let query = rotated(b, query, angles, &half, interleaved)?;
    Ok([query, rotated(b, key, angles, &half, interleaved)?])
}

/// How the products of queries with keys become weights.
struct Weighing {
    scale: Option<f32>,
    /// What scores are bounded by; 0 for no bound.
    softcap: f32,
    bias: Option<ValueId>,
    /// A score of each head beside those of the keys, or one of 0.
    sinks: Option<ValueId>,
    smooth: bool,
}

impl Weighing {
    fn of(cx: &NodeCx<'_, '_>) -> Result<Weighing> {
        Ok(Weighing {
            scale: cx.optional_float("scale")?.filter(|&scale| scale != 0.0),
            softcap: cx.optional_float("softcap")?.unwrap_or(0.0),
            bias: cx.optional("attention_bias"),
            sinks: cx.optional("head_sink"),
            smooth: cx.int("smooth_softmax")? == 1,
        })
    }

    fn scores(&self, b: &mut Builder<'_>, [query, key]: [ValueId; 2], places: &Places) -> Result<ValueId> {
        let mut found = scores(b, query, key, self.scale)?;
        if self.softcap > 0.0 {
            found = b.binary_scalar(BinaryFn::Div, found, f64::from(self.softcap))?;
            found = b.unary(UnaryFn::Tanh, found)?;
            found = b.binary_scalar(BinaryFn::Mul, found, f64::from(self.softcap))?;
        }
        match self.bias {
            Some(bias) => {
                let bias = over_keys(b, bias, places)?;
                b.binary(BinaryFn::Add, found, bias)
            }
            None => Ok(found),
        }
    }

    /// The weights of the keys that are seen, for their scores.
    fn weights(&self, b: &mut Builder<'_>, scores: ValueId, seen: Option<ValueId>) -> Result<ValueId> {
        let masked = match seen {
            Some(seen) => {
                let never = b.scalar(b.dtype(scores), f64::NEG_INFINITY);
                b.select(seen, scores, never)?
            }
            None => scores,
        };
        match self.sinks {
            Some(sinks) => {
                let count = b.shape(sinks)[0].clone();
                let sinks = b.reshape(sinks, vec![count, Dim::ONE, Dim::ONE])?;
                softmax_beside(b, masked, sinks)
            }
            None if self.smooth => {
                let zero = b.scalar(b.dtype(scores), 0.0);
                softmax_beside(b, masked, zero)
            }
            None => softmax_along(b, masked, 3),
        }
    }
}

/// A bias over `total_sequence_length` keys, with zeros over those that the cache has room for beyond.
fn over_keys(b: &mut Builder<'_>, bias: ValueId, places: &Places) -> Result<ValueId> {
    let keys = b.shape(bias)[3].clone();
    if keys == places.room {
        return Ok(bias);
    }
    let (name, rule) = ("dimension 3 of attention_bias", "total_sequence_length");
    if places.grows {
        b.require(Requirement::equal(keys, places.room.clone()).says(name, rule))?;
        let mut shape = b.shape(bias);
        shape[3] = places.room.clone();
        return b.reshape(bias, shape);
    }
    b.require(Requirement::equal(keys.clone(), places.total.clone()).says(name, rule))?;
    let zero = b.scalar(b.dtype(bias), 0.0);
    let mut more = vec![Dim::ZERO; 4];
    more[3] = places.room.clone() - keys;
    b.pad(bias, zero, vec![Dim::ZERO; 4], more)
}

/// The root mean square norm of each head, times `weight`.
fn normalized(b: &mut Builder<'_>, x: ValueId, weight: ValueId, epsilon: f32) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let x = b.cast(x, F32)?;
    let squares = b.binary(BinaryFn::Mul, x, x)?;
    let mean = b.mean(squares, &[3])?;
    let shifted = b.binary_scalar(BinaryFn::Add, mean, f64::from(epsilon))?;
    let root = b.unary(UnaryFn::Sqrt, shifted)?;
    let y = b.binary(BinaryFn::Div, x, root)?;
    let weight = b.cast(weight, F32)?;
    let y = b.binary(BinaryFn::Mul, y, weight)?;
    b.cast(y, dtype)
}

/// Softmax along the last axis, with one more score, `sink`, that has no weight of its own.
fn softmax_beside(b: &mut Builder<'_>, x: ValueId, sink: ValueId) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let (x, sink) = (b.widened(x)?, b.widened(sink)?);
    let most = b.reduce(ReduceFn::Max, x, &[3])?;
    let most = b.binary(BinaryFn::Max, most, sink)?;
    let shifted = b.binary(BinaryFn::Sub, x, most)?;
    let exp = b.unary(UnaryFn::Exp, shifted)?;
    let sum = b.reduce(ReduceFn::Sum, exp, &[3])?;
    let beside = b.binary(BinaryFn::Sub, sink, most)?;
    let beside = b.unary(UnaryFn::Exp, beside)?;
    let sum = b.binary(BinaryFn::Add, sum, beside)?;
    let y = b.binary(BinaryFn::Div, exp, sum)?;
    b.cast(y, dtype)
}

/// A cache of `room` tokens, with those of the past, and new ones `[B, G, S, E]` from the places `start` on, i64 `[B or 1, 1]`;
/// after them zeros or, if it `keeps`, what the past has there.
pub(super) fn with_tokens(
    b: &mut Builder<'_>,
    past: Option<ValueId>,
    new: ValueId,
    start: ValueId,
    room: &Dim,
    keeps: bool,
) -> Result<ValueId> {
    let shape = b.shape(new);
    let [batch, count, steps, size] = shape.as_slice() else {
        return malformed(format!("keys {}", b.ty(new)));
    };
    let zero = b.scalar(b.dtype(new), 0.0);
    let token = b.iota(vec![Dim::ONE, room.clone()], 1)?;
    let offset = b.binary(BinaryFn::Sub, token, start)?;
    let placed = if *steps == Dim::ONE {
        new
    } else {
        // Which token of its row lies at each place.
        let (none, most) = (b.scalar(I64, 0.0), b.dim_scalar(&(steps.clone() - Dim::ONE))?);
        let at = b.binary(BinaryFn::Max, offset, none)?;
        let at = b.binary(BinaryFn::Min, at, most)?;
        let row = b.iota(vec![batch.clone(), Dim::ONE], 0)?;
        let each = b.dim_scalar(steps)?;
        let row = b.binary(BinaryFn::Mul, row, each)?;
        let at = b.binary(BinaryFn::Add, row, at)?;
        let rows = b.transpose(new, &[0, 2, 1, 3])?;
        let rows = b.reshape(rows, vec![batch.clone() * steps.clone(), count.clone(), size.clone()])?;
        let placed = b.emit1(Op::Gather { axis: 0 }, &[rows, at])?;
        b.transpose(placed, &[0, 2, 1, 3])?
    };
    let own = b.shape(offset);
    let offset = b.reshape(offset, vec![own[0].clone(), Dim::ONE, own[1].clone(), Dim::ONE])?;
    let (begin, end) = (b.scalar(I64, 0.0), b.dim_scalar(steps)?);
    let before_end = b.compare(CompareFn::Lt, offset, end)?;
    let past = match past {
        Some(past) => {
            let mut more = vec![Dim::ZERO; 4];
            more[2] = room.clone() - b.shape(past)[2].clone();
            Some(b.pad(past, zero, vec![Dim::ZERO; 4], more)?)
        }
        None => None,
    };
    let after = past.filter(|_| keeps).unwrap_or(zero);
    let mut present = b.select(before_end, placed, after)?;
    if let Some(past) = past {
        let old = b.compare(CompareFn::Lt, offset, begin)?;
        present = b.select(old, past, present)?;
    }
    b.expand(present, vec![batch.clone(), count.clone(), room.clone(), size.clone()])
}
