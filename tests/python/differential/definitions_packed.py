"""What attention of com.microsoft over packed tokens, sparse blocks and shared caches should give, in f64."""

import numpy as np

from case import Skip
from definitions_attention import merged, rotated, rounding, softmax, split
from definitions_microsoft import hidden_sizes
from vendor import arrays, attribute, definition, score_factor, wide


def attended(node, q, k, v, bias=None, seen=None, filter=-np.inf):
    """Of q: [B, N, S, E]; gives [B, S, N * F] and scores before the softmax."""
    scores = q @ k.transpose(0, 1, 3, 2) * score_factor(node, q.shape[-1])
    if bias is not None:
        scores = scores + wide(bias)
    if seen is not None:
        scores = np.where(seen, scores, scores + filter if np.isfinite(filter) else filter)
    rounding(node, np.abs(q) @ np.abs(k).transpose(0, 1, 3, 2))
    return merged(softmax(scores) @ v), scores


def packed(node, q, k, v, offsets, ends, bias):
    """Attention among the tokens of each sequence of [tokens, heads * size]."""
    heads, (batch, length) = attribute(node, "num_heads"), offsets.shape
    places = offsets.reshape(-1)[: len(q)]

    def rows(x):
        y = np.zeros((batch * length, x.shape[1]))
        y[places] = x
        return split(y.reshape(batch, length, -1), heads)

    seen = np.arange(length) < np.diff(ends)[:, None]
    y, _ = attended(node, rows(q), rows(k), rows(v), bias, seen[:, None, None])
    return y.reshape(batch * length, -1)[places]


@definition("PackedAttention")
def packed_attention(node):
    x, weights, own, offsets, ends, bias = arrays(node)
    sizes = hidden_sizes(node, weights)
    q, k, v = np.split(wide(x) @ wide(weights) + wide(own), np.cumsum(sizes)[:2], 1)
    return [packed(node, q, k, v, offsets, ends, bias).astype(x.dtype)]


@definition("PackedMultiHeadAttention")
def packed_multi_head(node):
    query, key, value, own, offsets, ends, bias = arrays(node)
    parts = [wide(query), wide(key), wide(value)]
    if query.ndim == 4:
        parts = [wide(query)[:, :, at].reshape(len(query), -1) for at in range(3)]
    if own is not None:
        parts = [part + b for part, b in zip(parts, np.split(wide(own), np.cumsum([p.shape[1] for p in parts])[:2]))]
    return [packed(node, *parts, offsets, ends, bias).astype(query.dtype)]


@definition("DecoderMaskedMultiHeadAttention")
def decoder_masked(node):
    query, key, value, mask, bias, past_key, past_value, past, beams, source, own = arrays(node)
    heads, filter = attribute(node, "num_heads"), attribute(node, "mask_filter_value", -10000.0)
    x = wide(query)
    parts = np.split(x, 3, 2) if key is None else [x, wide(key), wide(value)]
    if own is not None:
        for at, b in enumerate(np.split(wide(own), 3)):
            if parts[at].ndim == 3:
                parts[at] = parts[at] + b
    q, k, v = (split(part, heads) if part.ndim == 3 else part for part in parts)
    caches = []
    if past_key is not None:
        behind = int(past.reshape(-1)[0])
        for cache, new in ((past_key, k), (past_value, v)):
            cache = wide(cache).copy()
            cache[:, :, behind] = new[:, :, 0]
            caches.append(cache)
        k, v = (cache[:, :, : behind + 1] for cache in caches)
        if source is not None:
            # Token t of a beam is that of the beam which it came from.
            width = int(beams.reshape(-1)[0])
            row = np.arange(len(x))
            came = row[:, None] // width * width + source.reshape(len(x), -1)[:, :behind]
            came = np.concatenate([came, row[:, None]], 1)
            k, v = (np.stack([part[came[:, t], :, t] for t in range(behind + 1)], 2) for part in (k, v))
    seen = None if mask is None else (mask > 0)[:, None, None]
    y, scores = attended(node, q, k, v, bias, seen, filter)
    results = [y] + (caches or [k, v]) + [scores]
    return [one.astype(query.dtype) for one in results][: node.outputs]


@definition("SparseAttention")
def sparse(node):
    query, key, value, past_key, past_value, starts, columns, longest, totals, cos, sin = arrays(node)
    heads, groups, block = (attribute(node, name) for name in ("num_heads", "kv_num_heads", "sparse_block_size"))
    if key is None:
        each = query.shape[2] // (heads + 2 * groups)
        q, k, v = np.split(wide(query), [heads * each, (heads + groups) * each], 2)
    else:
        q, k, v = wide(query), wide(key), wide(value)
    q, k, v = split(q, heads), split(k, groups), split(v, groups)
    if (np.diff(starts) < 0).any() or (starts < 0).any() or (starts > columns.shape[1]).any():
        raise ValueError("rows of a layout that are not one after the other")
    batch, _, steps, _ = q.shape
    behind = np.zeros(batch, np.int64) if int(longest.reshape(-1)[0]) == steps else totals.astype(np.int64) - steps
    places = behind[:, None] + np.arange(steps)
    if attribute(node, "do_rotary", 0):
        q, k = (rotated(part, places, cos, sin, attribute(node, "rotary_interleaved", 0)) for part in (q, k))
    caches = []
    for cache, new in ((past_key, k), (past_value, v)):
        cache = wide(cache).copy()
        for row, start in enumerate(behind):
            cache[row, :, start: start + steps] = new[row]
        caches.append(cache)
    k, v = (cache.repeat(heads // groups, 1) for cache in caches)
    room = k.shape[2]
    layouts = np.zeros((len(starts), starts.shape[1] - 1, room // block + 1), bool)
    for layout, (own, of) in enumerate(zip(starts, columns)):
        for row in range(len(own) - 1):
            layouts[layout, row, of[own[row]: own[row + 1]]] = True
    token = np.arange(room)
    seen = np.zeros((batch, heads, steps, room), bool)
    for row in range(batch):
        for head in range(heads):
            layout = layouts[head % len(layouts)]
            seen[row, head] = layout[places[row] // block][:, token // block] & (token <= places[row][:, None])
    y, _ = attended(node, q, k, v, None, seen)
    return [one.astype(query.dtype) for one in (y, *caches)]
