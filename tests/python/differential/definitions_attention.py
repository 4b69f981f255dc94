"""What the attention family of com.microsoft should give, in f64, by the formulas of ONNX Runtime's schemas and kernels."""

import numpy as np

from definitions_microsoft import arrays, attribute, definition, wide


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
    heads, groups = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    if key is None:
        each = x.shape[2] // (heads + 2 * groups)
        q, k, v = np.split(wide(x), [heads * each, (heads + groups) * each], 2)
    else:
        q, k, v = wide(x), wide(key), wide(value)
    q, k, v = split(q, heads), split(k, groups), split(v, groups)
    batch, _, steps, size = q.shape
    total, last = int(np.reshape(total, ())), lengths.reshape(-1).astype(np.int64)
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
    room = max(total, 0 if past_key is None else past_key.shape[2])
    caches = []
    for past, new in ((past_key, k), (past_value, v)):
        cache = np.zeros((batch, groups, room, size))
        for row in range(batch):
            if past is not None:
                cache[row, :, : behind[row]] = wide(past[row, :, : behind[row]])
            cache[row, :, behind[row]: behind[row] + steps] = new[row]
        caches.append(cache)
    k, v = (cache.repeat(heads // groups, 1) for cache in caches)
    raw = q @ k.transpose(0, 1, 3, 2) * (attribute(node, "scale") or 1 / np.sqrt(size))
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
    return [one.astype(x.dtype) for one in results][: node.outputs]


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
    scores = q @ k.transpose(0, 1, 3, 2) * (attribute(node, "scale") or 1 / np.sqrt(size))
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
