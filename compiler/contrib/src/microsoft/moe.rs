//! Mixtures of experts: a router picks a few pairs of layers for each token. A loop over the tokens gathers the weights of
//! those that it picked, so that no other weights are read.

use super::blockwise::{ascending, unpacked};
use super::gates::limited;
use super::{FLOATS, own};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{BF16, F8E4M3FN, F8E8M0, F16, F32, U8};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Graph, Op, TensorType};
use onnxc_ops::activation::{fast_gelu, swish_of};
use onnxc_ops::row::*;
use onnxc_ops::softmax::softmax_along;

pub const ROWS: &[OpDef] = &[
    own("MoE", moe)
        .inputs(&[
            req("input", "T"),
            req("router_probs", "T"),
            req("fc1_experts_weights", "T"),
            opt("fc1_experts_bias", "T"),
            req("fc2_experts_weights", "T"),
            opt("fc2_experts_bias", "T"),
            opt("fc3_experts_weights", "T"),
            opt("fc3_experts_bias", "T"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[
            float("activation_alpha", 1.0),
            float("activation_beta", 0.0),
            string("activation_type", "relu"),
            int("k", 1),
            int("normalize_routing_weights", 0),
            int("swiglu_fusion", 0),
            optional("swiglu_limit", Float),
            int("swiglu_limit_after_activation", 0),
            int("use_sparse_mixer", 0),
        ])
        .types(&[("T", FLOATS)])
        .shapes(&[
            "input[T, H] | [A, S, H]",
            "router_probs[R, E]",
            "k <= E",
            "fc1_experts_weights[E, F, H]",
            "fc1_experts_bias[E, F]",
            "fc2_experts_weights[E, H, I]",
            "fc2_experts_bias[E, H]",
            "fc3_experts_weights[E, I, H]",
            "fc3_experts_bias[E, I]",
        ])
        .doc("for each token a weighted sum of the layers that its router picks"),
    own("QMoE", q_moe)
        .inputs(&[
            req("input", "T"),
            req("router_probs", "T"),
            req("fc1_experts_weights", "T1"),
            opt("fc1_scales", "T2"),
            opt("fc1_experts_bias", "T"),
            req("fc2_experts_weights", "T1"),
            opt("fc2_scales", "T2"),
            opt("fc2_experts_bias", "T"),
            opt("fc3_experts_weights", "T1"),
            opt("fc3_scales", "T2"),
            opt("fc3_experts_bias", "T"),
            opt("fc1_zero_points", "T1"),
            opt("fc2_zero_points", "T1"),
            opt("fc3_zero_points", "T1"),
            opt("router_weights", "T"),
            opt("fc1_global_scale", "T4"),
            opt("fc2_global_scale", "T4"),
            opt("fc1_act_scale", "T4"),
            opt("fc2_act_scale", "T4"),
            opt("fc1_act_block_scale", "T2"),
            opt("fc2_act_block_scale", "T2"),
        ])
        .outputs(&[req("output", "T")])
        .attributes(&[
            int("accuracy_level", 0),
            float("activation_alpha", 1.0),
            float("activation_beta", 0.0),
            string("activation_type", "relu"),
            optional("block_size", Int),
            int("expert_weight_bits", 4),
            optional("fc1_expert_weight_bits", Int),
            optional("fc2_expert_weight_bits", Int),
            optional("fc3_expert_weight_bits", Int),
            int("k", 1),
            int("normalize_routing_weights", 0),
            string("quant_type", "int"),
            int("swiglu_fusion", 0),
            optional("swiglu_limit", Float),
            int("swiglu_limit_after_activation", 0),
            int("use_sparse_mixer", 0),
            int("weights_prepacked", -1),
        ])
        .types(&[
            ("T", FLOATS),
            ("T1", &[U8, F8E4M3FN]),
            ("T2", &[F32, F16, BF16, F8E8M0, F8E4M3FN]),
            ("T4", F32S),
        ])
        .shapes(&[
            "input[T, H] | [A, S, H]",
            "router_probs[R, E]",
            "router_weights[R, E]",
            "k <= E",
            "fc1_experts_weights[E, F, _]",
            "fc1_experts_bias[E, F]",
            "fc2_experts_weights[E, H, _]",
            "fc2_experts_bias[E, H]",
            "fc3_experts_weights[E, I, _]",
            "fc3_experts_bias[E, I]",
            "fc1_scales[E, F] | [E, F, _]",
            "fc2_scales[E, H] | [E, H, _]",
            "fc3_scales[E, I] | [E, I, _]",
            "fc1_zero_points[E, _] | [E, F, _]",
            "fc2_zero_points[E, _] | [E, H, _]",
            "fc3_zero_points[E, _] | [E, I, _]",
        ])
        .doc("as MoE, with weights of 2, 4 or 8 bits"),
    own("MoEGroupRouter", group_router)
        .inputs(&[req("logits", "T"), req("expert_bias", "TF"), opt("projection_weight", "T")])
        .outputs(&[opt("router_probs", "T"), opt("selection_scores", "TF"), opt("router_weights", "TF")])
        .attributes(&[
            int("group_topk", 2),
            int("n_group", 1),
            float("router_sentinel", -10000.0),
            required("top_k", Int),
            int("topk_group", 1),
        ])
        .types(&[("T", FLOATS), ("TF", F32S)])
        .shapes(&[
            "if !projection_weight: logits[.., _, E]",
            "if projection_weight: logits[N, W]",
            "projection_weight[E, W]",
            "expert_bias[E]",
            "E % n_group = 0",
            "top_k <= E",
            "topk_group <= n_group",
        ])
        .doc("log(sigmoid(x)) of the best experts of the best groups, for MoE; or the scores of all"),
];

/// What a layer computes with, of all experts; in the body of the loop, of those that a token has.
#[derive(Clone)]
struct Layer {
    weights: ValueId,
    /// Scales and zero points of weights of few bits.
    scales: Option<ValueId>,
    zeros: Option<ValueId>,
    bias: Option<ValueId>,
    /// What the weights of few bits are.
    form: Option<CodeForm>,
    /// Number of columns, which does not follow from packed weights.
    depth: Dim,
}

#[derive(Clone, Copy)]
struct CodeForm {
    bits: i64,
    block: Option<i64>,
}

/// The activation between two layers.
struct Between {
    kind: ExpertFn,
    alpha: f32,
    beta: f32,
    limit: Option<f32>,
    limits_after: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ExpertFn {
    Relu,
    Relu2,
    Gelu,
    Silu,
    Identity,
    SwiGlu,
    GeGlu,
}

/// Where the two halves of a gated layer are.
#[derive(Clone, Copy, PartialEq)]
enum Halves {
    Apart,
    Interleaved,
    Joined,
}

fn moe(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let layer = |cx: &NodeCx<'_, '_>, weights: ValueId, bias: usize| Layer {
        weights,
        scales: None,
        zeros: None,
        bias: cx.optional(bias),
        form: None,
        depth: cx.b.shape(weights)[2].clone(),
    };
    let layers =
        [layer(cx, cx.input("fc1_experts_weights")?, 3), layer(cx, cx.input("fc2_experts_weights")?, 5)];
    let third = cx.optional("fc3_experts_weights").map(|weights| layer(cx, weights, 7));
    mixture(cx, layers, third, None)
}

fn q_moe(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let kind = cx.str("quant_type")?;
    if kind != "int" {
        return unsupported(format!("quant_type `{kind}`: int is supported"));
    }
    for at in 15..21 {
        if cx.optional(at).is_some() {
            return unsupported(format!("{}, which is not of quant_type int", cx.def.inputs[at].name));
        }
    }
    match cx.int("weights_prepacked")? {
        -1 | 0 => {}
        other => {
            return unsupported(format!(
                "weights_prepacked {other}: weights in the order of one vendor's kernels"
            ));
        }
    }
    let block = cx.optional_int("block_size")?.filter(|&block| block > 0);
    let depth = {
        let shape = cx.b.shape(cx.input("input")?);
        shape[shape.len() - 1].clone()
    };
    let mut layers = Vec::new();
    for (number, [weights, scales, bias, zeros]) in
        [[2, 3, 4, 11], [5, 6, 7, 12], [8, 9, 10, 13]].into_iter().enumerate()
    {
        let Some(packed) = cx.optional(weights) else { continue };
        let name = format!("fc{}_expert_weight_bits", number + 1);
        let bits = match cx.optional_int(&name)? {
            Some(bits) => bits,
            None => cx.int("expert_weight_bits")?,
        };
        if !matches!(bits, 2 | 4 | 8) {
            return unsupported(format!("weights of {bits} bits: 2, 4 and 8 are supported"));
        }
        let Some(scales) = cx.optional(scales) else {
            return malformed(format!("input {scales} ({}) is missing", cx.def.inputs[scales].name));
        };
        if cx.b.dtype(packed) != U8 || matches!(cx.b.dtype(scales), F8E8M0 | F8E4M3FN) {
            let message = format!(
                "weights {} with scales {}: of quant_type int, weights are u8 and scales f32, f16 or bf16",
                cx.b.ty(packed),
                cx.b.ty(scales)
            );
            return unsupported(message);
        }
        let own = cx.b.shape(packed)[2].clone() * Dim::from(8 / bits);
        if number != 1 {
            let name = format!("the number of columns of {}", cx.operand_name(weights));
            let requirement = Requirement::equal(own.clone(), depth.clone());
            cx.b.require(requirement.says(name, "that of input"))?;
        }
        if let Some(block) = block
            && own.as_const().is_some_and(|own| own % block != 0)
        {
            return malformed(format!("{own} columns of fc{} are not whole blocks of {block}", number + 1));
        }
        if (cx.b.rank(scales) == 3) != block.is_some() {
            return malformed(format!(
                "scales of fc{} are {}, with block_size {}",
                number + 1,
                cx.b.ty(scales),
                block.unwrap_or(0)
            ));
        }
        let zeros = cx.optional(zeros);
        if let Some(zeros) = zeros
            && (cx.b.rank(zeros) == 3) != block.is_some()
        {
            return malformed(format!(
                "zero points of fc{} are {}, with block_size {}",
                number + 1,
                cx.b.ty(zeros),
                block.unwrap_or(0)
            ));
        }
        layers.push(Layer {
            weights: packed,
            scales: Some(scales),
            zeros,
            bias: cx.optional(bias),
            form: Some(CodeForm { bits, block }),
            depth: own,
        });
    }
    let mut layers = layers.into_iter();
    let (Some(first), Some(second)) = (layers.next(), layers.next()) else {
        return malformed("two layers are needed");
    };
    let router = cx.optional("router_weights");
    mixture(cx, [first, second], layers.next(), router)
}

fn between(cx: &NodeCx<'_, '_>) -> Result<Between> {
    let kind = match cx.str("activation_type")?.as_str() {
        "relu" => ExpertFn::Relu,
        "relu2" => ExpertFn::Relu2,
        "gelu" => ExpertFn::Gelu,
        "silu" => ExpertFn::Silu,
        "identity" => ExpertFn::Identity,
        "swiglu" => ExpertFn::SwiGlu,
        "geglu" => ExpertFn::GeGlu,
        other => {
            return not_one_of("activation_type", other, "relu, relu2, gelu, silu, identity, swiglu, geglu");
        }
    };
    Ok(Between {
        kind,
        alpha: cx.float("activation_alpha")?,
        beta: cx.float("activation_beta")?,
        limit: cx.optional_float("swiglu_limit")?.filter(|limit| limit.is_finite()),
        limits_after: cx.int("swiglu_limit_after_activation")? != 0,
    })
}

fn mixture(
    cx: &mut NodeCx<'_, '_>,
    layers: [Layer; 2],
    third: Option<Layer>,
    router: Option<ValueId>,
) -> Result<Vec<ValueId>> {
    let (x, logits) = (cx.input("input")?, cx.input("router_probs")?);
    if cx.int("use_sparse_mixer")? != 0 {
        return unsupported("use_sparse_mixer 1");
    }
    let between = between(cx)?;
    let is_gated = matches!(between.kind, ExpertFn::SwiGlu | ExpertFn::GeGlu);
    let halves = match (cx.int("swiglu_fusion")?, is_gated) {
        (_, false) | (0, true) => Halves::Apart,
        (1, true) => Halves::Interleaved,
        (2, true) => Halves::Joined,
        (other, _) => return not_one_of("swiglu_fusion", other, "0, 1, 2"),
    };
    if is_gated && (halves == Halves::Apart) != third.is_some() {
        let given = if third.is_some() { "" } else { " no" };
        return malformed(format!("swiglu_fusion {} with{given} weights of fc3", cx.int("swiglu_fusion")?));
    }
    let factor = if halves == Halves::Apart { 1usize } else { 2 };
    let rows = cx.b.shape(layers[0].weights)[1].clone();
    let rule = format!("{factor} times the columns of fc2_experts_weights");
    let wanted = layers[1].depth.clone() * Dim::from(factor);
    cx.b.require(Requirement::equal(rows, wanted).says("the number of rows of fc1_experts_weights", rule))?;
    let count = match cx.int("k")? {
        count @ 1..=0xffff => Dim::from(count),
        other => return malformed(format!("k is {other}; it must be at least 1")),
    };
    // Experts of weights of few bits share all of the result, as ONNX Runtime's kernel has it, unless they have shares of
    // their own.
    let shares_all = layers[0].form.is_some() && router.is_none();
    let normalizes = shares_all || cx.int("normalize_routing_weights")? != 0;
    let b = &mut *cx.b;
    let (shape, dtype) = (b.shape(x), b.dtype(x));
    let (tokens, hidden) = (b.shape(logits)[0].clone(), shape[shape.len() - 1].clone());
    let x = b.reshape(x, vec![tokens.clone(), hidden.clone()])?;
    let x = b.cast(x, F32)?;
    let logits = b.cast(logits, F32)?;
    let chances = softmax_along(b, logits, 1)?;
    let (mut weights, experts) = b.sort(chances, 1, true, count.clone())?;
    if let Some(router) = router {
        let router = b.cast(router, F32)?;
        weights = b.emit1(Op::GatherElements { axis: 1 }, &[router, experts])?;
    }
    if normalizes {
        let sum = b.reduce(ReduceFn::Sum, weights, &[1])?;
        let (zero, one) = (b.scalar(F32, 0.0), b.scalar(F32, 1.0));
        let none = b.compare(CompareFn::Eq, sum, zero)?;
        let sum = b.select(none, one, sum)?;
        weights = b.binary(BinaryFn::Div, weights, sum)?;
    }
    let mut inputs = vec![x, experts, weights];
    let all: Vec<&Layer> = layers.iter().chain(third.as_ref()).collect();
    for layer in &all {
        inputs.extend(captures(layer));
    }
    let body = one_token(b, &all, &between, halves, &count, &hidden)?;
    let y = b.emit1(Op::scan(body, tokens, 0, 3, vec![false; 4]), &inputs)?;
    let y = b.cast(y, dtype)?;
    Ok(vec![b.reshape(y, shape)?])
}

/// Scores are `s = sigmoid(logits)`, experts are compared by `c = s + expert_bias`. Groups of experts with the greatest sums of their
/// `group_topk` greatest `c` are picked, and of these the `top_k` experts with the greatest `c`.
fn group_router(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, bias, weight) = (cx.input("logits")?, cx.input("expert_bias")?, cx.optional("projection_weight"));
    let (probs, scores, weights) = (cx.wants(0), cx.wants(1), cx.wants(2));
    let count = |name: &str| match cx.int(name)? {
        count @ 1..=0xffff => Ok(count),
        other => malformed(format!("{name} is {other}; it must be at least 1")),
    };
    let (groups, of_group) = (count("n_group")?, count("group_topk")?);
    let (picked_groups, picked) = (count("topk_group")?, count("top_k")?);
    let sentinel = cx.float("router_sentinel")?;
    if scores != weights {
        return malformed("one of selection_scores and router_weights: both are given, or neither");
    }
    if scores && (probs || groups != 1) {
        let other = if probs { "with router_probs".to_string() } else { format!("of {groups} groups") };
        return malformed(format!("selection_scores and router_weights {other}"));
    }
    if weight.is_some() && !scores {
        return malformed("projection_weight without selection_scores and router_weights");
    }
    let b = &mut *cx.b;
    let to = b.dtype(x);
    let experts = b.shape(bias)[0].clone();
    let mut logits = b.cast(x, F32)?;
    match weight {
        Some(weight) => {
            let width = b.shape(weight)[1].clone();
            if width.as_const().is_some_and(|width| width < 1 || width % 256 != 0) {
                return malformed(format!(
                    "projection_weight of width {width}; it must be a multiple of 256"
                ));
            }
            let weight = b.cast(weight, F32)?;
            let columns = b.transpose(weight, &[1, 0])?;
            logits = b.matmul(logits, columns)?;
        }
        None => {
            let mut lead = b.shape(x);
            lead.pop();
            logits = b.reshape(logits, vec![product(&lead), experts.clone()])?;
        }
    }
    let tokens = b.shape(logits)[0].clone();
    let share = b.unary(UnaryFn::Sigmoid, logits)?;
    let compared = b.binary(BinaryFn::Add, share, bias)?;
    if scores {
        // The first is not named, and of no use.
        return Ok(vec![b.cast(share, to)?, compared, share]);
    }
    let never = b.scalar(F32, f64::NEG_INFINITY);
    let mut seen = compared;
    let mut is_picked = None;
    if picked_groups < groups {
        let size = b.divided(&experts, groups, "experts must divide into n_group groups")?;
        let grouped = b.reshape(compared, vec![tokens.clone(), Dim::from(groups), size.clone()])?;
        let (best, _) = b.sort(grouped, 2, true, Dim::from(of_group).min_dim(&size))?;
        let sums = b.reduce(ReduceFn::Sum, best, &[2])?;
        let sums = b.squeeze(sums, &[2])?;
        let (_, best) = b.sort(sums, 1, true, Dim::from(picked_groups))?;
        let group = among(b, best, &Dim::from(groups))?;
        let group = b.unsqueeze(group, &[2])?;
        let group = b.expand(group, vec![tokens.clone(), Dim::from(groups), size])?;
        let group = b.reshape(group, vec![tokens, experts.clone()])?;
        seen = b.select(group, compared, never)?;
        is_picked = Some(group);
    }
    let (_, best) = b.sort(seen, 1, true, Dim::from(picked))?;
    let mut chosen = among(b, best, &experts)?;
    if let Some(group) = is_picked {
        // Groups may have fewer experts than are picked.
        chosen = b.binary(BinaryFn::And, chosen, group)?;
    }
    let share = b.binary_scalar(BinaryFn::Max, share, f64::from(1e-20f32))?;
    let share = b.unary(UnaryFn::Log, share)?;
    let sentinel = b.scalar(F32, f64::from(sentinel));
    let y = b.select(chosen, share, sentinel)?;
    Ok(vec![b.cast(y, to)?])
}

/// Which of the numbers below `count` are among those of each row of `[rows, k]`: bool `[rows, count]`.
fn among(b: &mut Builder<'_>, numbers: ValueId, count: &Dim) -> Result<ValueId> {
    let numbers = b.unsqueeze(numbers, &[2])?;
    let own = b.iota(vec![Dim::ONE, Dim::ONE, count.clone()], 2)?;
    let is_one = b.compare(CompareFn::Eq, numbers, own)?;
    let is_any = b.reduce(ReduceFn::Or, is_one, &[1])?;
    b.squeeze(is_any, &[1])
}

fn captures(layer: &Layer) -> Vec<ValueId> {
    [Some(layer.weights), layer.scales, layer.zeros, layer.bias].into_iter().flatten().collect()
}

/// Scanned: a token `[H]`, the numbers of its experts and their weights, `[k]` both.
fn one_token(
    outer: &Builder<'_>,
    layers: &[&Layer],
    between: &Between,
    halves: Halves,
    count: &Dim,
    hidden: &Dim,
) -> Result<Graph> {
    let types: Vec<Vec<TensorType>> = layers
        .iter()
        .map(|layer| captures(layer).iter().map(|&value| outer.ty(value).clone()).collect())
        .collect();
    let (mut body, origin) = outer.body();
    let mut builder = Builder::new(&mut body, origin);
    let b = &mut builder;
    let x = b.input("token", TensorType::new(F32, vec![hidden.clone()]), None);
    let experts = b.input("experts", TensorType::new(DType::I64, vec![count.clone()]), None);
    let shares = b.input("shares", TensorType::new(F32, vec![count.clone()]), None);
    let mut own = Vec::new();
    for (layer, types) in layers.iter().zip(types) {
        let mut given =
            types.into_iter().map(|ty| b.input("captured", ty, None)).collect::<Vec<_>>().into_iter();
        let mut next = |is: bool| if is { given.next() } else { None };
        let weights = next(true).expect("a layer has weights");
        let (scales, zeros) = (next(layer.scales.is_some()), next(layer.zeros.is_some()));
        own.push(Layer { weights, scales, zeros, bias: next(layer.bias.is_some()), ..(*layer).clone() });
    }
    let x = b.reshape(x, vec![Dim::ONE, Dim::ONE, hidden.clone()])?;
    let first = applied(b, &own[0], experts, x)?;
    let third = match own.get(2) {
        Some(layer) => Some(applied(b, layer, experts, x)?),
        None => None,
    };
    let y = activated(b, first, third, between, halves)?;
    let y = applied(b, &own[1], experts, y)?;
    let shares = b.reshape(shares, vec![count.clone(), Dim::ONE, Dim::ONE])?;
    let y = b.binary(BinaryFn::Mul, y, shares)?;
    let y = b.reduce(ReduceFn::Sum, y, &[0])?;
    let y = b.reshape(y, vec![hidden.clone()])?;
    body.outputs = vec![(String::new(), y)];
    Ok(body)
}

/// `x: [k|1, 1, depth]` times the weights of `k` experts plus bias: `[k, 1, rows]`.
fn applied(b: &mut Builder<'_>, layer: &Layer, experts: ValueId, x: ValueId) -> Result<ValueId> {
    let weights = b.emit1(Op::Gather { axis: 0 }, &[layer.weights, experts])?;
    let weights = match layer.form {
        Some(form) => dequantized(b, layer, form, experts, weights)?,
        None => b.cast(weights, F32)?,
    };
    let weights = b.transpose(weights, &[0, 2, 1])?;
    let y = b.matmul(x, weights)?;
    match layer.bias {
        Some(bias) => {
            let bias = b.emit1(Op::Gather { axis: 0 }, &[bias, experts])?;
            let bias = b.cast(bias, F32)?;
            let bias = b.unsqueeze(bias, &[1])?;
            b.binary(BinaryFn::Add, y, bias)
        }
        None => Ok(y),
    }
}

/// `(code - zero) * scale` of packed weights `[k, rows, _]`, by row or by block of columns.
fn dequantized(
    b: &mut Builder<'_>,
    layer: &Layer,
    form: CodeForm,
    experts: ValueId,
    packed: ValueId,
) -> Result<ValueId> {
    let shifts = ascending(form.bits);
    let codes = unpacked(b, packed, form.bits, &shifts)?;
    let shape = b.shape(codes);
    let block = form.block.map_or(shape[2].clone(), Dim::from);
    let blocks = match form.block {
        Some(block) => b.divided(&shape[2], block, "codes must divide into blocks")?,
        None => Dim::ONE,
    };
    let codes = b.reshape(codes, vec![shape[0].clone(), shape[1].clone(), blocks.clone(), block])?;
    let codes = b.cast(codes, F32)?;
    let by_block = vec![shape[0].clone(), shape[1].clone(), blocks.clone(), Dim::ONE];
    let centred = match layer.zeros {
        Some(zeros) => {
            let zeros = b.emit1(Op::Gather { axis: 0 }, &[zeros, experts])?;
            let zeros = unpacked(b, zeros, form.bits, &shifts)?;
            let last = b.rank(zeros) - 1;
            let count = if form.block.is_some() { blocks } else { shape[1].clone() };
            let zeros = super::blockwise::first(b, zeros, last, count)?;
            let zeros = b.cast(zeros, F32)?;
            let zeros = b.reshape(zeros, by_block.clone())?;
            b.binary(BinaryFn::Sub, codes, zeros)?
        }
        None => b.binary_scalar(BinaryFn::Sub, codes, f64::from(1u32 << (form.bits - 1)))?,
    };
    let Some(scales) = layer.scales else { return malformed("weights of few bits without scales") };
    let scales = b.emit1(Op::Gather { axis: 0 }, &[scales, experts])?;
    let scales = b.cast(scales, F32)?;
    let scales = b.reshape(scales, by_block)?;
    let reals = b.binary(BinaryFn::Mul, centred, scales)?;
    b.reshape(reals, shape)
}

/// The activation of a layer `[k, 1, rows]`; what a third layer gives is multiplied by it.
fn activated(
    b: &mut Builder<'_>,
    x: ValueId,
    third: Option<ValueId>,
    between: &Between,
    halves: Halves,
) -> Result<ValueId> {
    let (gate, up) = match halves {
        Halves::Apart => (x, third),
        Halves::Joined => {
            let shape = b.shape(x);
            let half = b.divided(&shape[2], 2usize, "rows of fc1 must divide into gates and values")?;
            let gate = b.slice_axis(x, 2, Dim::ZERO, half.clone())?;
            (gate, Some(b.slice_axis(x, 2, half.clone(), half)?))
        }
        Halves::Interleaved => {
            let shape = b.shape(x);
            let half = b.divided(&shape[2], 2usize, "rows of fc1 must divide into gates and values")?;
            let pairs = b.reshape(x, vec![shape[0].clone(), shape[1].clone(), half, Dim::from(2usize)])?;
            let gate = b.slice_axis(pairs, 3, Dim::ZERO, Dim::ONE)?;
            let up = b.slice_axis(pairs, 3, Dim::ONE, Dim::ONE)?;
            (b.squeeze(gate, &[3])?, Some(b.squeeze(up, &[3])?))
        }
    };
    if let (ExpertFn::SwiGlu, Some(up)) = (between.kind, up) {
        let (gate, up) = match between.limit {
            Some(limit) if between.limits_after => {
                let gate = swish_of(b, gate, between.alpha)?;
                limited(b, gate, up, limit)?
            }
            Some(limit) => {
                let (gate, up) = limited(b, gate, up, limit)?;
                (swish_of(b, gate, between.alpha)?, up)
            }
            None => (swish_of(b, gate, between.alpha)?, up),
        };
        let up = b.binary_scalar(BinaryFn::Add, up, f64::from(between.beta))?;
        return b.binary(BinaryFn::Mul, gate, up);
    }
    let y = match between.kind {
        ExpertFn::Relu => b.binary_scalar(BinaryFn::Max, gate, 0.0)?,
        ExpertFn::Relu2 => {
            let y = b.binary_scalar(BinaryFn::Max, gate, 0.0)?;
            b.binary(BinaryFn::Mul, y, y)?
        }
        ExpertFn::Gelu | ExpertFn::GeGlu => fast_gelu(b, gate)?,
        ExpertFn::Silu | ExpertFn::SwiGlu => swish_of(b, gate, 1.0)?,
        ExpertFn::Identity => gate,
    };
    match up {
        Some(up) => b.binary(BinaryFn::Mul, y, up),
        None => Ok(y),
    }
}

#[cfg(test)]
mod tests {
    use super::super::DOMAIN;
    use onnxc_ops::node_case::ramp;

    /// The best of three groups has two experts, though three are to be picked. Numbers of ONNX Runtime 1.32.
    #[test]
    fn a_router_picks_groups_first() {
        let bias: Vec<f32> = ramp(6, 4).iter().map(|bias| bias * 0.3).collect();
        let case = |groups: i64| {
            let case =
                crate::tests::case(DOMAIN, "MoEGroupRouter", 1).symbolic(&["n", ""], &[2, 6], &ramp(12, 1));
            let case = case.input::<f32>(&[6], &bias).int("top_k", 3).int("n_group", groups);
            case.float("router_sentinel", -9.0)
        };
        let none = -9.0;
        let wanted = [
            none,
            none,
            none,
            none,
            -0.313262,
            -std::f64::consts::LN_2,
            none,
            none,
            none,
            none,
            -0.474077,
            -0.974077,
        ];
        case(3).gives(0, &[2, 6], &wanted);
        let message = case(4).lower().unwrap_err().message;
        assert!(message.contains("n_group"), "{message}");
        let message = case(3).int("top_k", 7).lower().unwrap_err().message;
        assert!(message.contains("top_k"), "{message}");
        let message = case(3).int("topk_group", 4).lower().unwrap_err().message;
        assert!(message.contains("topk_group"), "{message}");
        let message = case(3).int("group_topk", 0).lower().unwrap_err().message;
        assert!(message.contains("group_topk is 0; it must be at least 1"), "{message}");
        let message = case(1).outputs(3).lower().unwrap_err().message;
        assert!(message.contains("with router_probs"), "{message}");
    }
}
