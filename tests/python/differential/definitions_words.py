"""What operators of com.microsoft for words, tokens and paths should give, by the formulas of ONNX Runtime's kernels."""

import numpy as np

from case import Skip
from vendor import arrays, attribute, definition, wide


@definition("WordConvEmbedding")
def word_conv(node):
    words, weights, bias, table = arrays(node)
    filters, _, width, size = weights.shape
    lengths = np.where(words[:, 0] > 0, (words > 0).sum(1), 0)
    if (lengths == 0).any():
        # What ONNX Runtime gives for words of no characters is what was in memory.
        result = np.zeros((len(words), filters))
    else:
        result = np.zeros((len(words), filters))
    kernel = wide(weights).reshape(filters, width * size)
    for at, (word, length) in enumerate(zip(words, lengths)):
        if length == 0:
            continue
        length = max(length, width)
        embedded = np.zeros((words.shape[1], size))
        embedded[:length] = wide(table)[word[:length]]
        windows = np.stack([embedded[start: start + width].reshape(-1) for start in range(length - width + 1)])
        result[at] = np.tanh(windows @ kernel.T + wide(bias)).max(0)
    node.scale_ulps = 64
    return [result.astype(np.float32)]


@definition("MaxpoolWithMask")
def max_pool(node):
    x, mask = arrays(node)
    spatial = x.shape[2:]
    kernel = attribute(node, "kernel_shape")
    strides, pads = attribute(node, "strides", [1] * len(kernel)), attribute(node, "pads", [0] * 2 * len(kernel))
    mode = attribute(node, "auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        pads = []
        for size, extent, stride in zip(spatial, kernel, strides):
            total = max(0, (-(-size // stride) - 1) * stride + extent - size)
            pads.append((total // 2, total - total // 2)[:: 1 if mode == "SAME_UPPER" else -1])
        pads = [low for low, _ in pads] + [high for _, high in pads]
    sizes = [
        (size + pads[at] + pads[at + len(kernel)] - extent) // stride + 1
        for at, (size, extent, stride) in enumerate(zip(spatial, kernel, strides))]
    rows = x.reshape(-1, *spatial)
    masks = mask.reshape(-1, *spatial)
    result = np.full((len(rows), *sizes), np.finfo(np.float32).min, np.float32)
    for at, (row, seen) in enumerate(zip(rows, masks[np.arange(len(rows)) % len(masks)])):
        for place in np.ndindex(*sizes):
            starts = [p * s - pad for p, s, pad in zip(place, strides, pads)]
            outer = [range(max(a, 0), min(a + k, size)) for a, k, size in zip(starts, kernel, spatial)]
            for lead in np.ndindex(*[len(own) for own in outer[:-1]]):
                for last in outer[-1]:
                    index = (*[own[i] for own, i in zip(outer, lead)], last)
                    # Behind what is hidden a line is not looked at. The first element of several axes is always seen.
                    first = len(kernel) > 1 and not any(index)
                    if seen[index] == 0 and not first:
                        break
                    result[(at, *place)] = max(result[(at, *place)], row[index])
    return [result.reshape(*x.shape[:2], *sizes)]


@definition("BifurcationDetector")
def bifurcation(node):
    source, current, previous, predicted = arrays(node)
    tokens = current
    if predicted is not None:
        count = 0
        rest = source[previous.reshape(-1)[0]:]
        while count < len(rest) and predicted[count] == rest[count]:
            count += 1
        tokens = np.concatenate([current, predicted[: count + 1]])
    found = -1
    for size in range(attribute(node, "min_ngram_size", 1), attribute(node, "max_ngram_size", 3) + 1):
        if size > len(tokens):
            break
        suffix = tokens[len(tokens) - size:]
        places = [at for at in range(len(source) - size + 1) if np.array_equal(source[at: at + size], suffix)]
        if not places:
            break
        found = places[0] + size
        if found >= len(source):
            break
        if len(places) > 1:
            found = -1
    return [tokens, np.full(previous.shape, found, np.int64)]


@definition("DynamicTimeWarping")
def warping(node):
    costs = arrays(node)[0]
    costs = costs.reshape(costs.shape[-2:])
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    came = np.zeros((rows + 1, columns + 1), int)
    total[0, 0] = 0
    for j in range(1, columns + 1):
        for i in range(1, rows + 1):
            before = [total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]]
            choice = 2
            if before[0] < before[1] and before[0] < before[2]:
                choice = 0
            elif before[1] < before[0] and before[1] < before[2]:
                choice = 1
            total[i, j], came[i, j] = before[choice] + costs[i - 1, j - 1], choice
    i, j, path = rows, columns, []
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        i, j = ((i - 1, j - 1), (i - 1, j), (i, j - 1))[came[i, j]]
    return [np.array(path[::-1], np.int32).T.reshape(2, -1)]


@definition("RemovePadding")
def remove_padding(node):
    x, counts = arrays(node)
    batch, length, width = x.shape
    real = (np.arange(length) < counts[:, None]).reshape(-1)
    offsets = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(np.int32)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return [x.reshape(-1, width)[real], offsets.reshape(batch, length), ends, counts.max(keepdims=True)]


@definition("AttnLSTM")
def attended_lstm(node):
    x, w, r, bias, lengths, h0, c0, peep, queries, keys, v, memory, sizes, layer = map(wide, arrays(node))
    x0 = arrays(node)[0]
    directions, hidden = len(w), r.shape[2]
    steps, batch, size = x.shape
    clip, couples = attribute(node, "clip"), attribute(node, "input_forget", 0)
    limit = (lambda a: np.clip(a, -clip, clip)) if clip else (lambda a: a)
    sigmoid = lambda a: 1 / (1 + np.exp(-limit(a)))
    lengths = np.full(batch, steps) if lengths is None else lengths.astype(int)
    sizes = np.full(batch, memory.shape[1]) if sizes is None else sizes.astype(int)
    y = np.zeros((steps, directions, batch, hidden))
    last_h, last_c = np.zeros((2, directions, batch, hidden))
    for way in range(directions):
        reverse = attribute(node, "direction", "forward") == "reverse" or way == 1
        added = np.zeros(4 * hidden) if bias is None else bias[way].reshape(2, -1).sum(0)
        p = np.zeros((3, hidden)) if peep is None else peep[way].reshape(3, hidden)
        for row in range(batch):
            h = np.zeros(hidden) if h0 is None else h0[way, row]
            c = np.zeros(hidden) if c0 is None else c0[way, row]
            known = memory[row, : sizes[row]]
            seen = np.zeros(w.shape[2] - size)
            order = range(lengths[row])
            for step in reversed(order) if reverse else order:
                gates = w[way] @ np.concatenate([x[step, row], seen]) + r[way] @ h + added
                i, o, f, g = gates.reshape(4, hidden)
                i = sigmoid(i + p[0] * c)
                f = 1 - i if couples else sigmoid(f + p[2] * c)
                c = f * c + i * np.tanh(limit(g))
                h = sigmoid(o + p[1] * c) * np.tanh(c)
                energy = np.tanh(known @ keys[way] + h @ queries[way]) @ v[way]
                weights = np.exp(energy - energy.max())
                seen = (weights / weights.sum()) @ known
                if layer is not None:
                    seen = np.concatenate([h, seen]) @ layer[way]
                y[step, way, row] = h
            last_h[way, row], last_c[way, row] = h, c
    node.scale_ulps = 256
    return [one.astype(x0.dtype) for one in (y, last_h, last_c)][: node.outputs]
