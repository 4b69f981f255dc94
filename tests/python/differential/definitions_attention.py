"""What the attention family of com.microsoft should give, in f64, by the formulas of ONNX Runtime's schemas and kernels."""

import numpy as np

from case import Close
from definitions_microsoft import arrays, attribute, definition, unpacked, wide
from vendor import score_factor


def split(x, heads):
    """[B, S, heads * size] as [B, heads, S, size]."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def merged(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def rounding(node, *magnitudes):
    """A rounding of a score is one of the weight, as large as the score is."""
    largest = max(float(np.abs(one[np.isfinite(one)]).max(initial=0)) for one in magnitudes)
    node.ulps = node.scale_ulps = 32 + 4 * largest


def softmax(x, sink=None):
    most = x.max(-1, keepdims=True)
    if sink is not None:
        most = np.maximum(most, sink)
    e = np.exp(x - most)
    return e / (e.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - most)))


def rotated(x, positions, cos, sin, interleaved):
    """x: [B, heads, S, size]; positions: [B or 1, S]."""
    cos, sin = (wide(cache)[positions][:, None] for cache in (cos, sin))
    half = cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half:]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning[..., :half], turning[..., half:]
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = np.stack([a, b], -1).reshape(turning.shape) if interleaved else np.concatenate([a, b], -1)
    return np.concatenate([turned, rest], -1)


def counted(positions, steps):
    """Positions of all tokens, where only the first one's is given."""
    return positions if positions.ndim == 2 else positions.reshape(1, 1) + np.arange(steps)


@definition("RotaryEmbedding")
def rotary(node):
    x, positions, cos, sin = arrays(node)
    heads = attribute(node, "num_heads", 0)
    y = wide(x)
    if x.ndim == 3:
        y = split(y, heads or x.shape[2] // (2 * cos.shape[1]))
    y = rotated(y, counted(positions, y.shape[2]), cos, sin, attribute(node, "interleaved", 0))
    return [(y if x.ndim == 4 else merged(y)).astype(x.dtype)]


@definition("SkipSimplifiedLayerNormalization")
def skip_simplified(node):
    x, skip, gamma, bias = arrays(node)
    y = wide(x) + wide(skip) + (0 if bias is None else wide(bias))
    inverse = 1 / np.sqrt((y * y).mean(-1, keepdims=True) + attribute(node, "epsilon", float(np.float32(1e-12))))
    return [(y * inverse * wide(gamma)).astype(x.dtype)]


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * wide(weight)


@definition("GroupQueryAttention")
def group_query(node):
    (x, key, value, past_key, past_value, lengths, total, cos, sin, positions, bias, sinks, _, _, q_norm, k_norm,
     _) = arrays(node)
    scales, kinds = arrays(node)[12:14], [attribute(node, f"{part}_quant_type", "NONE") for part in "kv"]
    heads, groups = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    if key is None:
        each = x.shape[2] // (heads + 2 * groups)
        q, k, v = np.split(wide(x), [heads * each, (heads + groups) * each], 2)
    else:
        q, k, v = wide(x), wide(key), wide(value)
    q, k, v = split(q, heads), split(k, groups), split(v, groups)
    batch, _, steps, size = q.shape
    total, last = int(np.reshape(total, ())), lengths.reshape(-1).astype(np.int64)
    past_length = 0 if past_key is None else past_key.shape[2]
    if past_length < total != past_length + steps:
        raise ValueError("more tokens than those of the past and new ones")
    first = total == steps
    behind = np.zeros(batch, np.int64) if first else last + 1 - steps
    if q_norm is not None:
        common = attribute(node, "qk_norm_epsilon", float(np.float32(1e-6)))
        q = norm(q, q_norm, attribute(node, "q_norm_epsilon", common))
        k = norm(k, k_norm, attribute(node, "k_norm_epsilon", common))
    if attribute(node, "do_rotary", 0):
        own = behind[:, None] + np.arange(steps)
        if positions is not None:
            own = positions[0, 0] + np.arange(steps)[None] if first else positions
        q, k = (rotated(part, own, cos, sin, attribute(node, "rotary_interleaved", 0)) for part in (q, k))
    room = max(total, past_length)
    caches, reals = [], []
    for past, new, scale, kind in zip((past_key, past_value), (k, v), scales, kinds):
        form = x.dtype
        if kind != "NONE":
            scale = wide(scale).reshape((groups, 1, size) if kind == "PER_CHANNEL" else ())
            new = integers(new / scale, attribute(node, "kv_cache_bit_width"))
            form = new.dtype
        cache = np.zeros((batch, groups, room, new.shape[3]), form if kind != "NONE" else np.float64)
        for row in range(batch):
            if past is not None:
                cache[row, :, : behind[row]] = past[row, :, : behind[row]]
            cache[row, :, behind[row]: behind[row] + steps] = new[row]
        caches.append(cache.astype(form))
        if form == np.uint8:
            cache = unpacked(cache, 4).astype(np.float64) - 8
        reals.append(cache if kind == "NONE" else cache * scale)
    k, v = (cache.repeat(heads // groups, 1) for cache in reals)
    raw = q @ k.transpose(0, 1, 3, 2) * score_factor(node, size)
    scores = raw
    if attribute(node, "softcap", 0):
        scores = attribute(node, "softcap") * np.tanh(scores / attribute(node, "softcap"))
    if bias is not None:
        scores = scores + np.pad(wide(bias), [(0, 0)] * 3 + [(0, room - bias.shape[3])])
    # Rows of a first call that pad it see what the last token of their row sees.
    limit = last[:, None] + np.zeros((1, steps), np.int64)
    if attribute(node, "causal", 1):
        limit = np.minimum(behind[:, None] + np.arange(steps), limit)
    limit, place = limit[:, None, :, None], np.arange(room)
    seen = np.broadcast_to(place <= limit, scores.shape)
    if attribute(node, "local_window_size", -1) > 0:
        seen = seen & (place > limit - attribute(node, "local_window_size"))
    sink = None
    if sinks is not None:
        sink = wide(sinks)[:, None, None]
    elif attribute(node, "smooth_softmax", -1) == 1:
        sink = 0.0
    weights = softmax(np.where(seen, scores, -np.inf), sink)
    y = merged(weights @ v)
    rounding(node, np.abs(q) @ np.abs(k).transpose(0, 1, 3, 2), scores)
    shown = np.where(seen, scores, 0) if attribute(node, "qk_output", 0) == 1 else weights
    results = [y, *caches, shown[..., :total]]
    return [one if one.dtype in (np.int8, np.uint8) else one.astype(x.dtype) for one in results][: node.outputs]


def integers(x, bits):
    """Whole numbers of 8 bits, or two of 4 in a byte. Rounding in the type must decide none."""
    if np.any(np.abs(np.abs(x - np.floor(x)) - 0.5) < 1e-3 * (1 + np.abs(x) / 10)):
        raise Close("a tie")
    if bits == 8:
        return np.clip(np.round(x), -128, 127).astype(np.int8)
    x = (np.clip(np.round(x), -8, 7) + 8).astype(np.uint8)
    return x[..., 0::2] | x[..., 1::2] << 4


@definition("MultiHeadAttention")
def multi_head(node):
    query, key, value, bias, mask, added, past_key, past_value, _, _ = arrays(node)
    heads, form = attribute(node, "num_heads"), query.dtype
    if query.ndim == 5:
        parts = [wide(query[..., at, :]).reshape(*query.shape[:2], -1) for at in range(3)]
    elif key.ndim == 5:
        parts = [wide(query)] + [wide(key[..., at, :]).reshape(*key.shape[:2], -1) for at in range(2)]
    else:
        parts = [wide(query), wide(key), wide(value)]
    if bias is not None:
        widths = [part.shape[2] if part.ndim == 3 else part.shape[1] * part.shape[3] for part in parts]
        biases = np.split(wide(bias), np.cumsum(widths)[:2])
        parts = [part + own if part.ndim == 3 else part for part, own in zip(parts, biases)]
    q, k, v = (split(part, heads) if part.ndim == 3 else part for part in parts)
    behind = 0
    if past_key is not None:
        behind = past_key.shape[2]
        k, v = np.concatenate([wide(past_key), k], 2), np.concatenate([wide(past_value), v], 2)
    batch, _, steps, size = q.shape
    keys = k.shape[2]
    scores = q @ k.transpose(0, 1, 3, 2) * score_factor(node, size)
    if mask is not None:
        if mask.ndim == 1:
            allowed = (np.arange(keys) < mask[:batch, None])[:, None, None, :]
        else:
            allowed = (mask > 0).reshape(batch, 1, -1, keys)
        scores = scores + np.where(allowed, 0, attribute(node, "mask_filter_value", -10000.0))
    if attribute(node, "unidirectional", 0):
        lowest = float(np.finfo(np.float32).min)
        scores = np.where(np.arange(keys) <= np.arange(steps)[:, None] + behind, scores, lowest)
    if added is not None:
        scores = scores + wide(added)
    rounding(node, np.abs(q) @ np.abs(k).transpose(0, 1, 3, 2), scores.max(-1))
    y = merged(softmax(scores) @ v)
    return [one.astype(form) for one in (y, k, v, scores)][: node.outputs]


@definition("MRotaryEmbedding")
def multimodal_rotary(node):
    x, positions, cos, sin = arrays(node)
    heads, sections = attribute(node, "num_heads", 0), attribute(node, "mrope_section")
    y = wide(x)
    if x.ndim == 3:
        y = split(y, heads or x.shape[2] // (2 * cos.shape[1]))
    half = sum(sections)
    if attribute(node, "mrope_layout", 0):
        source = np.zeros(half, np.int64)
        source[1: 3 * sections[1]: 3], source[2: 3 * sections[2]: 3] = 1, 2
    else:
        source = np.arange(3).repeat(sections)
    # Each column of the tables by its own positions, of one row after the other.
    tables = [wide(table)[positions[source].transpose(1, 2, 0), np.arange(half)] for table in (cos, sin)]
    batch, steps = positions.shape[1:]
    flat = [table.reshape(batch * steps, half) for table in tables]
    y = rotated(y, np.arange(batch * steps).reshape(batch, steps), *flat, attribute(node, "interleaved", 0))
    return [(y if x.ndim == 4 else merged(y)).astype(x.dtype)]


@definition("GemmaRotaryEmbedding")
def gemma_rotary(node):
    emb, *given = arrays(node)
    cos, sin = (wide(function(wide(emb)).astype(np.float16))[:, None] for function in (np.cos, np.sin))
    q, q_rot, k, k_rot = (wide(one) for one in given)
    node.magnitude = 2.0
    return [(one * cos + other * sin).astype(given[0].dtype) for one, other in ((q, q_rot), (k, k_rot))]


@definition("GatedRMSNorm")
def gated_norm(node):
    x, scale, gate = arrays(node)
    y = wide(x).reshape(*x.shape[:-1], -1, len(scale))
    y = norm(y, scale, attribute(node, "epsilon", float(np.float32(1e-5)))).reshape(x.shape)
    factor = 1 / (1 + np.exp(-wide(gate)))
    if attribute(node, "activation", "silu") != "sigmoid":
        factor = factor * wide(gate)
    return [(y * factor).astype(x.dtype)]


@definition("LinearAttention")
def linear(node):
    query, key, value, past, decay, beta = arrays(node)
    heads, groups = attribute(node, "q_num_heads"), attribute(node, "kv_num_heads")
    rule = attribute(node, "update_rule", "gated_delta")
    q, k, v = split(wide(query), heads), split(wide(key), groups), split(wide(value), groups)
    batch, _, steps, size = q.shape
    state = np.zeros((batch, groups, size, v.shape[3])) if past is None else wide(past)
    q = q * score_factor(node, size)
    y = np.zeros((batch, heads, steps, v.shape[3]))
    for t in range(steps):
        if "gated" in rule:
            state = state * np.exp(split(wide(decay), groups)[:, :, t])[..., None]
        new = v[:, :, t]
        if "delta" in rule:
            rate = wide(beta)[:, t][..., None]
            new = rate * (new - np.einsum("bgk,bgkv->bgv", k[:, :, t], state))
        state = state + k[:, :, t, :, None] * new[:, :, None]
        y[:, :, t] = np.einsum("bhk,bhkv->bhv", q[:, :, t], state.repeat(heads // groups, 1))
    return [merged(y).astype(query.dtype), state.astype(query.dtype if past is None else past.dtype)]


@definition("CausalConvWithState")
def causal_conv(node):
    x, weight, bias, past = arrays(node)
    kernel, apart = weight.shape[2], attribute(node, "dilation", 1)
    before = (kernel - 1) * apart
    seen = np.concatenate([np.zeros((*x.shape[:2], before)) if past is None else wide(past), wide(x)], 2)
    y = sum(seen[:, :, at * apart: at * apart + x.shape[2]] * wide(weight)[:, 0, at, None] for at in range(kernel))
    y = y + (0 if bias is None else wide(bias)[:, None])
    if attribute(node, "activation", "none") != "none":
        y = y / (1 + np.exp(-y))
    return [y.astype(x.dtype), seen[:, :, x.shape[2]:].astype(x.dtype)]


@definition("RelativePositionBias")
def relative_bias(node):
    table, queries, keys = arrays(node)
    count, furthest = len(table), attribute(node, "max_distance")
    behind = np.arange(int(queries.reshape(())))[:, None] - np.arange(int(keys.reshape(())))
    bucket = np.zeros_like(behind)
    if attribute(node, "is_bidirectional", 0):
        count //= 2
        bucket = np.where(behind < 0, count, 0)
        behind = np.abs(behind)
    behind = np.maximum(behind, 0)
    exact = count // 2
    far = np.log(np.maximum(behind, 1) / exact) / np.log(furthest / exact) * (count - exact)
    if np.any((behind >= exact) & (np.abs(far - np.round(far)) < 1e-4) & (behind != exact) & (far < count - exact)):
        raise Close("a distance between two buckets")
    far = np.minimum(exact + np.where(behind == exact, 0, far).astype(np.int64), count - 1)
    bucket = bucket + np.where(behind < exact, behind, far)
    return [table[bucket].transpose(2, 0, 1)[None]]


@definition("GatedRelativePositionBias")
def gated_bias(node):
    query, query_bias, biases, weight, bias, scale, _ = arrays(node)
    gates = split(wide(query) + wide(query_bias), attribute(node, "num_heads")) @ wide(weight) + wide(bias)
    gates = 1 / (1 + np.exp(-gates.reshape(*gates.shape[:3], 2, -1).sum(-1)))
    update, reset = gates[..., :1], gates[..., 1:]
    return [((update * (reset * wide(scale) - 1) + 2) * wide(biases)).astype(query.dtype)]


@definition("RestorePadding")
def restore_padding(node):
    x, places = arrays(node)
    y = np.zeros((places.size, x.shape[1]), x.dtype)
    y[places.reshape(-1)[: len(x)]] = x
    return [y.reshape(*places.shape, -1)]
