"""What operators of com.microsoft for hybrid language models should give, in f64, token by token: recurrences over packed
requests, streams of features in place of one residual, routers of groups of experts, hashes of n-grams, and packed
tables of embeddings."""

import numpy as np

import values
from case import Close
from definitions_fused import sigmoid
from definitions_microsoft import unpacked
from vendor import arrays, attribute, definition, score_factor, single32, wide

#: Of differences that decide a choice, those that f32 may lose.
NEAR = 1e-5


def softplus(x):
    return np.logaddexp(0, x)


def by_root_mean_square(x, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) if x.size else x


@definition("LinearAttentionGate")
def linear_attention_gate(node):
    a, bias, factor, rate = arrays(node)
    decay = (wide(factor) * softplus(wide(a) + wide(bias))).astype(a.dtype)
    return [decay] + ([] if rate is None else [sigmoid(wide(rate)).astype(a.dtype)])


def gdn_parts(node):
    """Queries, keys and values, [tokens, heads, size], and the axes of tokens."""
    query, key, value, _, _, _, state = arrays(node)[:7]
    if key is not None:
        lead = query.shape[:-2]
        return lead, [wide(x).reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    lead, (_, heads, size, key_size) = query.shape[:-1], state.shape
    packed = wide(query).reshape(-1, query.shape[-1])
    width = (packed.shape[1] - heads * size) // 2
    parts = np.split(packed, [width, 2 * width], 1)
    return lead, [part.reshape(len(part), -1, each) for part, each in zip(parts, (key_size, key_size, size))]


def gdn_decay(node, decay, slope, bias):
    """Logarithms, [tokens, heads, 1 or size of a key]."""
    kind = attribute(node, "gate_activation", "none")
    if kind == "none":
        return decay
    slope, biased = np.exp(wide(slope))[:, None], decay + wide(bias).reshape(len(slope), -1)
    if kind in ("softplus", "qwen"):
        return -slope * softplus(biased)
    return attribute(node, "gate_lower_bound", -5.0) * sigmoid(slope * biased)


@definition("GatedDeltaNet")
def gated_delta_net(node):
    query, _, _, bounds, decay, beta, state, slope, bias, counts, active = arrays(node)
    lead, (q, k, v) = gdn_parts(node)
    tokens, (heads, size), share = len(q), v.shape[1:], v.shape[1] // q.shape[1]
    if attribute(node, "qk_l2_norm", 0):
        # The kernels differ between the gates, by the convention of the models that these are of.
        epsilon = 1e-6 if attribute(node, "gate_activation", "none") in ("sigmoid", "kda") else 1e-12
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + epsilon) for x in (q, k))
    q = q * score_factor(node, q.shape[-1])
    if bounds is None:
        batch = lead[0] if len(lead) == 2 else len(state)
        bounds = np.arange(batch + 1) * (tokens // batch)
    batch = len(bounds) - 1
    final = np.zeros((batch, heads, size, q.shape[2])) if state is None else wide(state)
    g = np.zeros((tokens, heads, 1)) if decay is None else gdn_decay(node, wide(decay).reshape(tokens, heads, -1), slope, bias)
    rate = None
    if beta is not None:
        rate = wide(beta).reshape(tokens, heads)
        rate = sigmoid(rate) if attribute(node, "beta_activation", "none") == "sigmoid" else rate
    y, deltas = np.zeros((tokens, heads, size)), np.zeros((tokens, heads, size))
    for request in range(batch):
        for t in range(bounds[request], bounds[request + 1]):
            own = final[request] * np.exp(g[t])[:, None]
            key, asked = k[t].repeat(share, 0), q[t].repeat(share, 0)
            deltas[t] = v[t]
            if rate is not None:
                deltas[t] = rate[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", own, key))
            final[request] = own + deltas[t][:, :, None] * key[:, None]
            y[t] = np.einsum("hvk,hk->hv", final[request], asked)
    capacity = attribute(node, "state_update_capacity", 0)
    kinds = [x.reshape(tokens, -1) for x in (np.exp(g), k, deltas)]
    update = [np.zeros((batch, capacity, kind.shape[1])) for kind in kinds]
    for request in range(batch if capacity and (active is None or active[0]) else 0):
        first, length = bounds[request], bounds[request + 1] - bounds[request]
        count = max(0, min(counts[request], capacity, length))
        for kind, own in zip(kinds, update):
            own[request, :count] = kind[first:first + count]
    update = np.concatenate([own.reshape(batch, -1) for own in update], 1)
    y = y.reshape(*lead, heads, size).astype(query.dtype)
    return [y, final.astype(np.float32), update.astype(np.float32)]


@definition("VarlenCausalConvWithState")
def packed_convolution(node):
    x, weight, bounds, bias, state, counts = arrays(node)[:6]
    kernel, apart = weight.shape[2], attribute(node, "dilation", 1)
    capacity = attribute(node, "state_update_capacity", 0)
    y, final = np.zeros(x.shape), np.zeros(state.shape)
    update = np.zeros((len(state), capacity, x.shape[1]))
    for request, (first, end) in enumerate(zip(bounds, bounds[1:])):
        length, own = end - first, wide(x[first:end])
        seen = np.concatenate([wide(state[request]).T, own])
        for tap in range(kernel):
            y[first:end] += seen[tap * apart:tap * apart + length] * wide(weight)[:, 0, tap]
        final[request] = seen[length:].T
        if capacity:
            count = max(0, min(counts[request], capacity, length))
            update[request, :count] = own[:count]
    y = y + (0 if bias is None else wide(bias))
    if attribute(node, "activation", "none") != "none":
        y = y * sigmoid(y)
    return [one.astype(x.dtype) for one in (y, final, update)]


def streams(node, x):
    """[.., C, H]"""
    count = attribute(node, "num_branches", 0)
    return wide(x).reshape(*x.shape[:-1], count, x.shape[-1] // count) if count else wide(x)


@definition("BranchwiseRMSNorm")
def branchwise_norm(node):
    x, scale = arrays(node)
    y = streams(node, x)
    count, size = y.shape[-2:]
    y = by_root_mean_square(y, attribute(node, "epsilon", single32(1e-5)))
    if scale is not None:
        y = y * (wide(scale) if scale.shape == (size,) else wide(scale).reshape(count, size))
    return [y.reshape(x.shape).astype(x.dtype)]


def stream_weights(weights, y):
    """[.., C, 1 or H]"""
    each = 1 if weights.size == y[..., 0].size else y.shape[-1]
    return wide(weights).reshape(*y.shape[:-1], each)


@definition("HyperConnectionPreMix")
def pre_mix(node):
    x, mix = arrays(node)
    y = streams(node, x)
    y = (y * stream_weights(mix, y)).sum(-2) * attribute(node, "reduction_scale", 1.0)
    return [y.astype(x.dtype)]


@definition("HyperConnectionPostMix")
def post_mix(node):
    x, result, weights, mix = arrays(node)
    own = streams(node, x)
    y = own if mix is None else np.einsum("...ck,...ch->...kh", wide(mix), own)
    y = y + stream_weights(weights, own) * wide(result)[..., None, :]
    return [y.reshape(x.shape).astype(x.dtype)]


@definition("EngramGate")
def engram_gate(node):
    key, query, value, key_scale, query_scale, scale = arrays(node)
    epsilon = attribute(node, "epsilon", single32(1e-5))
    normed = lambda x, own: by_root_mean_square(wide(x), epsilon) * wide(own)
    alike = (normed(key, key_scale) * normed(query, query_scale)).sum(-1, keepdims=True)
    alike = alike / np.sqrt(max(key.shape[-1], 1))
    if np.any((np.abs(alike) < NEAR) & (alike != 0)):
        raise Close("a gate between two signs")
    y = sigmoid(np.sign(alike) * np.sqrt(np.maximum(np.abs(alike), 1e-6))) * wide(value)[:, :, None]
    results = [y] if scale is None else [y, normed(y, scale)]
    return [one.astype(key.dtype) for one in results]


def greatest(scores, count):
    """The numbers of the greatest; of equals the first."""
    order = np.argsort(-scores, kind="stable")
    if count < len(order) and abs(scores[order[count - 1]] - scores[order[count]]) < NEAR:
        raise Close("a choice between scores that are near")
    return order[:count]


@definition("MoEGroupRouter")
def group_router(node):
    x, bias, weight = arrays(node)
    logits = wide(x) if weight is None else wide(x) @ wide(weight).T
    share = sigmoid(logits.reshape(-1, len(bias)))
    compared = share + wide(bias)
    if node.unnamed:
        return [None, compared.astype(np.float32), share.astype(np.float32)]
    groups, picked = attribute(node, "n_group", 1), attribute(node, "top_k")
    y = np.full(share.shape, attribute(node, "router_sentinel", -10000.0))
    for token, own in enumerate(compared):
        grouped = own.reshape(groups, -1)
        sums = -np.sort(-grouped, 1)[:, : attribute(node, "group_topk", 2)].sum(1)
        seen = np.zeros(grouped.shape, bool)
        seen[greatest(sums, attribute(node, "topk_group", 1))] = True
        candidates = np.flatnonzero(seen)
        chosen = candidates[greatest(own[candidates], min(picked, len(candidates)))]
        y[token, chosen] = np.log(np.maximum(share[token, chosen], 1e-20))
    return [y.astype(x.dtype)]


def wrapped(number, kind):
    """An integer as one of this type, without the bits that it has no room for."""
    bits = np.dtype(kind).itemsize * 8
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def hashes(node, tokens, changes, offsets, end):
    """Of the n-grams that end with the last of `tokens`; `changes` marks where another segment begins."""
    _, multipliers, vocabulary = arrays(node)[:3]
    kind, heads = tokens.dtype, attribute(node, "n_head_per_ngram")
    filler = attribute(node, "pad_id") if end is None else int(end)
    ends = end is not None and attribute(node, "reset_on_eos", 0)
    mixed, is_cut, results = 0, False, []
    for back in range(attribute(node, "max_ngram_size")):
        token = int(tokens[-1 - back])
        if back:
            is_cut = is_cut or bool(ends and token == int(end)) or bool(changes[len(changes) - back])
            token = filler if is_cut else token
        mixed ^= wrapped(token * int(multipliers[back]), kind)
        for at in range((back - 1) * heads, back * heads) if back else ():
            hashed = wrapped(mixed, kind) % int(vocabulary[at])
            results.append(wrapped(hashed + (0 if offsets is None else int(offsets[at])), kind))
    return results


def hashed_sequence(node, own, past, segments, past_segments, offsets, end):
    """Hashes of each of a sequence's tokens, and the tokens and segments with those before."""
    behind = attribute(node, "max_ngram_size") - 1
    filler = attribute(node, "pad_id") if end is None else int(end)
    tokens = np.concatenate([np.full(behind, filler, own.dtype) if past is None else past, own])
    if segments is None:
        segments = np.zeros(len(own), np.int32)
    if past_segments is None:
        past_segments = np.full(behind, segments[0] if len(own) else 0, np.int32)
    segments = np.concatenate([past_segments, segments])
    changes = np.concatenate([[False], segments[1:] != segments[:-1]])
    rows = [
        hashes(node, tokens[at:at + behind + 1], changes[at:at + behind + 1], offsets, end) for at in range(len(own))
    ]
    return np.array(rows, own.dtype).reshape(len(own), -1), tokens, segments


@definition("NGramHashMapping")
def n_gram_hashes(node):
    ids, _, vocabulary, past, offsets, end, segments = arrays(node)
    behind = attribute(node, "max_ngram_size") - 1
    y = np.zeros((*ids.shape, len(vocabulary)), ids.dtype)
    present = np.zeros((len(ids), behind), ids.dtype)
    for at, own in enumerate(ids):
        of = lambda array: None if array is None else array[at]
        y[at], tokens, _ = hashed_sequence(node, own, of(past), of(segments), None, offsets, end)
        present[at] = tokens[len(own):]
    return [y, present]


@definition("VarlenNGramHashMapping")
def packed_hashes(node):
    ids, _, vocabulary, bounds, past, offsets, end, segments, past_segments, counts = arrays(node)
    behind, capacity = attribute(node, "max_ngram_size") - 1, attribute(node, "state_update_capacity", 0)
    batch = len(bounds) - 1
    y = np.zeros((len(ids), len(vocabulary)), ids.dtype)
    present, last = np.zeros((batch, behind), ids.dtype), np.zeros((batch, behind), np.int32)
    update = np.full((batch, capacity, behind), attribute(node, "pad_id"), ids.dtype)
    for at, (first, after) in enumerate(zip(bounds, bounds[1:])):
        of = lambda array: None if array is None else array[at]
        own = None if segments is None else segments[first:after]
        y[first:after], tokens, all_segments = hashed_sequence(
            node, ids[first:after], of(past), own, of(past_segments), offsets, end)
        present[at], last[at] = tokens[after - first:], all_segments[after - first:]
        for step in range(min(capacity, after - first, counts[at]) if capacity else 0):
            update[at, step] = tokens[step + 1:step + 1 + behind]
    return [y, present, None if 2 in node.unnamed else last, update]


def f16_of(blocks, start):
    return blocks[:, start:start + 2].copy().view(np.float16).astype(np.float64)


def planes(codes, bits):
    """Codes of `bits` bits from the bytes of the last axis: the lowest of all bytes, then the next ones of all."""
    parts = [(codes >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.concatenate(parts, -1).astype(np.float64)


LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def levels(codes):
    return LEVELS[planes(codes, 4).astype(int)]


def q5_k(blocks):
    packed = blocks[:, 4:16]
    above = lambda part: (part >> 6).astype(np.float64) * 16
    scales = np.concatenate([packed[:, :4] & 63, (packed[:, 8:] & 15) + above(packed[:, :4])], 1)
    least = np.concatenate([packed[:, 4:8] & 63, (packed[:, 8:] >> 4) + above(packed[:, 4:8])], 1)
    codes = planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    codes = codes + 16 * planes(blocks[:, 16:48], 1).reshape(-1, 8, 32)
    return (f16_of(blocks, 0) * scales)[..., None] * codes - (f16_of(blocks, 2) * least)[..., None]


def q6_k(blocks):
    codes = planes(blocks[:, :128].reshape(-1, 2, 64), 4) + 16 * planes(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    scales = f16_of(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (codes.reshape(-1, 16, 16) - 32) * scales[..., None]


def iq4_xs(blocks):
    scales = unpacked(blocks[:, 4:8], 4).astype(np.float64) + 16.0 * unpacked(blocks[:, 2:4], 2)
    scales = f16_of(blocks, 0) * (scales - 32)
    return scales[..., None] * levels(blocks[:, 8:].reshape(-1, 8, 16))


def bf16_of(blocks):
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


#: By the number of the format: numbers of a block, its bytes, where its scales are, and what its bytes stand for.
PACKED = {
    0: (1, 4, (), lambda blocks: blocks.copy().view(np.float32)),
    1: (1, 2, (), lambda blocks: f16_of(blocks, 0)),
    2: (32, 18, (0,), lambda blocks: f16_of(blocks, 0) * (planes(blocks[:, 2:], 4) - 8)),
    6: (32, 22, (0,), lambda blocks: f16_of(blocks, 0) * (planes(blocks[:, 6:], 4) + 16.0 * unpacked(blocks[:, 2:6], 1) - 16)),
    8: (32, 34, (0,), lambda blocks: f16_of(blocks, 0) * blocks[:, 2:].view(np.int8)),
    13: (256, 176, (0, 2), q5_k),
    14: (256, 210, (208,), q6_k),
    20: (32, 18, (0,), lambda blocks: f16_of(blocks, 0) * levels(blocks[:, 2:])),
    23: (256, 136, (0,), iq4_xs),
    30: (1, 2, (), bf16_of),
    42: (64, 18, (0,), lambda blocks: f16_of(blocks, 0) * (unpacked(blocks[:, 2:], 2).astype(np.float64) - 1)),
}


@definition("GatherPacked")
def gather_packed(node):
    data, indices = arrays(node)
    _, size, _, numbers = PACKED[attribute(node, "packed_type")]
    table = numbers(data.reshape(-1, size)).reshape(len(data), -1)
    rows = np.where((indices < 0) | (indices >= len(data)), 0, indices)
    return [table[rows].astype(values.DTYPES[node.types["T2"]])]


@definition("MatMulFpQ4")
def mat_mul_q4(node):
    x, packed, (depth, columns) = arrays(node)
    has_zeros = attribute(node, "blk_quant_type", 1)
    blocks = packed.reshape(columns, -(-depth // 32), 21 if has_zeros else 20)
    scales = blocks[..., :4].copy().view(np.float32).astype(np.float64)
    codes = planes(blocks[..., -16:], 4) - (blocks[..., 4:5] if has_zeros else 8.0)
    weights = (codes * scales).reshape(columns, -1)[:, :depth]
    return [(wide(x) @ weights.T).astype(x.dtype)]
