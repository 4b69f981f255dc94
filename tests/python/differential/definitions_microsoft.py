"""What operators of com.microsoft should give: exact sums of integers, reals in f64, one rounding to the nearest integer,
half to even.

A case in which rounding in f32 could decide a result is skipped.
"""

import numpy as np

import values
from case import Close
from vendor import DEFINITIONS, DOMAIN, arrays, attribute, definition, score_factor, wide  # noqa: F401

# Their kernels add the zero point before they round, which differs in ties.
ROUND_LAST = {f"{DOMAIN}.QLinear{name}" for name in ("Add", "Mul", "AveragePool", "ReduceMean")}


def saturated(node, reals, zero_point, dtype):
    """Integers of `dtype`; `reals` are in units of the result."""
    low, high = values.integer_range(values.NAMES[np.dtype(dtype)])
    zero_point = 0 if zero_point is None else wide(zero_point)
    if np.ndim(zero_point) and np.size(zero_point) == 1:
        zero_point = np.reshape(zero_point, ())
    reals = np.asarray(reals, np.float64)
    margin = 2e-6 * np.maximum(np.abs(reals), 50)
    distance = np.abs(np.abs(reals - np.floor(reals)) - 0.5)
    inside = (reals + zero_point > low - 1) & (reals + zero_point < high + 1)
    near = (distance < margin) & ~((distance == 0) & node.exact)
    if np.any(near & inside):
        raise Close("a tie")
    if node.key in ROUND_LAST:
        return np.clip(np.round(reals + zero_point), low, high).astype(dtype)
    return np.clip(np.round(reals) + zero_point, low, high).astype(dtype)


def single(parameter):
    """A parameter of one element, as a number."""
    return None if parameter is None else float(np.reshape(parameter.astype(np.float64), ()))


def shifted(x, zero_point):
    return wide(x) - (0 if zero_point is None else single(zero_point))


def along(parameter, rank, axis):
    """A parameter of one element, or along an axis."""
    if parameter is None or parameter.size == 1 and parameter.ndim < 2 and axis >= rank:
        return None if parameter is None else wide(parameter).reshape(())
    if parameter.ndim == 0:
        return wide(parameter)
    shape = [1] * rank
    shape[axis] = parameter.size
    return wide(parameter).reshape(shape)


@definition("QuantizeLinear")
def quantize(node):
    x, scale, zero = arrays(node)
    axis = attribute(node, "axis", 1)
    dtype = values.DTYPES[node.out_type()]
    return [saturated(node, wide(x) / along(scale, x.ndim, axis), along(zero, x.ndim, axis), dtype)]


@definition("DequantizeLinear")
def dequantize(node):
    x, scale, zero = arrays(node)
    axis = attribute(node, "axis", 1)
    zero = along(zero, x.ndim, axis)
    return [((wide(x) - (0 if zero is None else zero)) * along(scale, x.ndim, axis)).astype(scale.dtype)]


@definition("QLinearAdd")
def add(node):
    a, sa, za, b, sb, zb, sc, zc = arrays(node)
    left, right = shifted(a, za) * single(sa), shifted(b, zb) * single(sb)
    return [saturated(node, (left + right) / single(sc), zc, a.dtype)]


@definition("QLinearMul")
def multiply(node):
    a, sa, za, b, sb, zb, sc, zc = arrays(node)
    return [saturated(node, shifted(a, za) * shifted(b, zb) * single(sa) * single(sb) / single(sc), zc, a.dtype)]


@definition("QLinearSigmoid", "QLinearLeakyRelu")
def unary(node):
    x, sx, zx, sy, zy = arrays(node)
    y = shifted(x, zx) * single(sx)
    if node.op == "QLinearSigmoid":
        y = 1 / (1 + np.exp(-y))
    else:
        y = np.where(y < 0, y * attribute(node, "alpha", float(np.float32(0.01))), y)
    return [saturated(node, y / single(sy), zy, x.dtype)]


@definition("QLinearSoftmax")
def softmax(node):
    x, sx, _, sy, zy = arrays(node)
    axis, opset = attribute(node, "axis", -1), attribute(node, "opset")
    axis %= x.ndim
    y = wide(x) * single(sx)
    if opset < 13:
        y = y.reshape((int(np.prod(x.shape[:axis])), -1))
        axis = 1
    y = np.exp(y - y.max(axis, keepdims=True))
    y /= y.sum(axis, keepdims=True)
    return [saturated(node, y.reshape(x.shape) / single(sy), zy, x.dtype)]


@definition("QLinearReduceMean")
def reduce_mean(node):
    x, sx, zx, sy, zy = arrays(node)
    y = shifted(x, zx).mean(tuple(attribute(node, "axes")), keepdims=bool(attribute(node, "keepdims")))
    node.exact = False
    return [saturated(node, y * single(sx) / single(sy), zy, x.dtype)]


@definition("QLinearWhere")
def where(node):
    condition, x, sx, zx, y, sy, zy, sz, zz = arrays(node)
    reals = np.where(condition, shifted(x, zx) * single(sx), shifted(y, zy) * single(sy))
    return [saturated(node, reals / single(sz), zz, x.dtype)]


@definition("QLinearConcat")
def concat(node):
    given = [array for array, _ in node.inputs]
    scale, zero = given[:2]
    parts = []
    for x, sx, zx in zip(given[2::3], given[3::3], given[4::3]):
        # Any scale changes nothing if it is the same.
        reals = shifted(x, zx) * (single(sx) / single(scale))
        parts.append(saturated(node, reals, zero, zero.dtype))
    return [np.concatenate(parts, attribute(node, "axis"))]


def pads(node, sizes, kernel, strides, dilations):
    """Before and after each axis."""
    rank = len(kernel)
    kind = attribute(node, "auto_pad", "NOTSET")
    if kind in ("NOTSET", "VALID"):
        flat = attribute(node, "pads", [0] * 2 * rank) if kind == "NOTSET" else [0] * 2 * rank
        return list(zip(flat[:rank], flat[rank:]))
    found = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations):
        total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if kind == "SAME_UPPER" else (large, small))
    return found


def taps(x, kernel, strides, dilations, out):
    """[N, C, out.., kernel..] of a padded image."""
    rank = len(kernel)
    index = []
    for axis in range(rank):
        places = np.arange(out[axis])[:, None] * strides[axis] + np.arange(kernel[axis])[None, :] * dilations[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = out[axis], kernel[axis]
        index.append(places.reshape(shape))
    return x[(slice(None), slice(None), *index)]


def first(node, x):
    return np.moveaxis(x, -1, 1) if attribute(node, "channels_last", 0) else x


def last(node, y):
    return np.moveaxis(y, 1, -1) if attribute(node, "channels_last", 0) else y


@definition("QLinearConv")
def conv(node):
    x, sx, zx, w, sw, zw, sy, zy, bias = arrays(node)
    x, kernel = first(node, shifted(x, zx)), w.shape[2:]
    rank = len(kernel)
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    around = pads(node, x.shape[2:], kernel, strides, dilations)
    x = np.pad(x, [(0, 0), (0, 0), *around])
    out = [(size - (k - 1) * d - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations)]
    windows = taps(x, kernel, strides, dilations, out)
    groups = attribute(node, "group", 1)
    w = wide(w) - along(zw, w.ndim, 0)
    per, each = w.shape[0] // groups, w.shape[1]
    parts = []
    for group in range(groups):
        own = windows[:, group * each:(group + 1) * each]
        axes = [1, *range(2 + rank, 2 + 2 * rank)]
        parts.append(np.moveaxis(np.tensordot(own, w[group * per:(group + 1) * per], (axes, list(range(1, 2 + rank)))), -1, 1))
    y = np.concatenate(parts, 1)
    if bias is not None:
        y += along(bias, y.ndim, 1)
    y = y * along(sw, y.ndim, 1) * single(sx) / single(sy)
    return [last(node, saturated(node, y, zy, node.dtype(7)))]


@definition("QLinearAveragePool")
def average_pool(node):
    x, sx, zx, sy, zy = arrays(node)
    dtype, kernel = x.dtype, attribute(node, "kernel_shape")
    x, rank = first(node, shifted(x, zx)), len(kernel)
    strides = attribute(node, "strides", [1] * rank)
    sizes = x.shape[2:]
    around = pads(node, sizes, kernel, strides, [1] * rank)
    out, extra = [], []
    for axis in range(rank):
        (before, after), size, k, s = around[axis], sizes[axis], kernel[axis], strides[axis]
        room = size + before + after - k
        count = room // s + 1
        if attribute(node, "ceil_mode", 0):
            count = -(-room // s) + 1
            # A window that begins behind the data is none.
            count -= (count - 1) * s >= size + before
        out.append(count)
        extra.append(max((count - 1) * s + k - size - before - after, 0))
    ends = [(before, after + more) for (before, after), more in zip(around, extra)]
    sums = taps(np.pad(x, [(0, 0), (0, 0), *ends]), kernel, strides, [1] * rank, out)
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    ones = np.ones((1, 1, *sizes))
    if attribute(node, "count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *around], constant_values=1)
        ones = np.pad(ones, [(0, 0), (0, 0), *[(0, more) for more in extra]])
    else:
        ones = np.pad(ones, [(0, 0), (0, 0), *ends])
    counts = taps(ones, kernel, strides, [1] * rank, out).sum(axes)
    node.exact = False
    y = sums.sum(axes) / counts * single(sx) / single(sy)
    return [last(node, saturated(node, y, zy, dtype))]


@definition("QLinearGlobalAveragePool")
def global_average_pool(node):
    x, sx, zx, sy, zy = arrays(node)
    is_last = attribute(node, "channels_last", 0)
    axes = tuple(range(1, x.ndim - 1) if is_last else range(2, x.ndim))
    node.exact = False
    y = shifted(x, zx).mean(axes, keepdims=True) * single(sx) / single(sy)
    return [saturated(node, y, zy, x.dtype)]


def columns(parameter):
    """A parameter of one element, or along the last axis."""
    if parameter is None:
        return 0
    return wide(parameter).reshape(()) if parameter.size == 1 and parameter.ndim == 1 else wide(parameter)


@definition("QGemm")
def gemm(node):
    a, sa, za, b, sb, zb, c, sy, zy = arrays(node)
    a, b = shifted(a, za), wide(b)
    a = a.T if attribute(node, "transA", 0) else a
    b = (b.T if attribute(node, "transB", 0) else b) - columns(zb)
    y = a @ b
    if c is not None:
        y = y + wide(c)
    y = y * columns(sb) * single(sa) * attribute(node, "alpha", 1.0)
    if sy is not None:
        y = y / single(sy)
    return [y.astype(np.float32) if zy is None else saturated(node, y, zy, zy.dtype)]


@definition("MatMulIntegerToFloat")
def integer_to_float(node):
    a, b, sa, sb, za, zb, bias = arrays(node)
    y = (wide(a) - columns(za)) @ (wide(b) - columns(zb)) * columns(sa) * columns(sb)
    return [(y + (0 if bias is None else wide(bias))).astype(sa.dtype)]


def dynamic(node, x, margin=1e-3):
    """Integers around their zero point, and the scale, of what is quantised by its range."""
    x = x.astype(np.float32)
    low, high = min(np.float32(0), x.min(initial=0)), max(np.float32(0), x.max(initial=0))
    scale = np.float32(high - low) / np.float32(255) if high != low else np.float32(1)
    zero, steps = wide(-low) / wide(scale), wide(x) / wide(scale)
    for reals in (zero, steps):
        if np.any(np.abs(np.abs(reals - np.floor(reals)) - 0.5) < margin):
            raise Close("a tie")
    zero = np.clip(np.round(zero), 0, 255)
    return np.clip(np.round(steps) + zero, 0, 255) - zero, wide(scale)


@definition("DynamicQuantizeMatMul")
def dynamic_matmul(node):
    a, b, sb, zb, bias = arrays(node)
    a, scale = dynamic(node, a, 2e-4)
    y = a @ (wide(b) - columns(zb)) * scale * columns(sb)
    return [(y + (0 if bias is None else wide(bias))).astype(np.float32)]


def unpacked(x, bits):
    """Elements of `bits` bits along the last axis, the first in the lowest bits."""
    parts = [(x >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*x.shape[:-1], -1)


@definition("MatMulNBits")
def n_bits(node):
    a, b, scales, zeros, group, bias = arrays(node)
    k, count, block = (attribute(node, name) for name in ("K", "N", "block_size"))
    bits, blocks = attribute(node, "bits", 4), -(-k // block)
    weights = wide(unpacked(b, bits).reshape(count, -1))[:, :k]
    scales = wide(scales).reshape(count, blocks)
    if zeros is None:
        zeros = np.full((count, blocks), 2.0 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = wide(unpacked(zeros.reshape(count, -1), bits)[:, :blocks])
    else:
        zeros = wide(zeros).reshape(count, blocks)
    of = np.arange(k) // block if group is None else group[:k]
    weights = (weights - zeros[:, of]) * scales[:, of]
    y = wide(a) @ weights.T + (0 if bias is None else wide(bias))
    node.magnitude = float((np.abs(wide(a)) @ np.abs(weights.T)).max(initial=0))
    return [y.astype(a.dtype)]


FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]


@definition("MatMulBnb4")
def bnb4(node):
    a, b, scales = arrays(node)
    k, count, block = (attribute(node, name) for name in ("K", "N", "block_size"))
    table = np.array(NF4 if attribute(node, "quant_type") else FP4 + [-value for value in FP4])
    codes = np.stack([b >> 4, b & 15], -1).reshape(-1)[: k * count]
    weights = table[codes] * wide(scales)[np.arange(k * count) // block]
    weights = weights.reshape(count, k)
    weights = weights.T if attribute(node, "transB", 1) else weights
    node.magnitude = float((np.abs(wide(a)) @ np.abs(weights)).max(initial=0))
    return [(wide(a) @ weights).astype(a.dtype)]


@definition("GatherBlockQuantized")
def gather(node):
    data, indices, scales, zeros = arrays(node)
    axis, picked = attribute(node, "quantize_axis", 1) % data.ndim, attribute(node, "gather_axis", 0) % data.ndim
    block, bits = attribute(node, "block_size", 128), attribute(node, "bits", 4)
    packs = data.dtype == np.uint8
    y = wide(unpacked(data, bits) if packs else data)
    block = block or y.shape[axis]
    spread = lambda parameter: np.repeat(parameter, block, axis).take(range(y.shape[axis]), axis)
    if zeros is not None:
        own = unpacked(zeros, bits) if packs else zeros
        y = y - spread(wide(own.take(range(scales.shape[axis]), axis)))
    elif packs:
        y = y - 2 ** (bits - 1)
    y = y * spread(wide(scales))
    return [y.take(indices, picked).astype(scales.dtype)]


@definition("QAttention")
def attention(node):
    x, w, bias, sx, sw, mask, zx, zw, past = arrays(node)
    y = shifted(x, zx) @ (wide(w) - columns(zw)) * single(sx) * columns(sw) + wide(bias)
    results = attended(node, y, [w.shape[1] // 3] * 3, mask, past)
    return [result.astype(bias.dtype) for result in results]


def hidden_sizes(node, weights):
    """Columns of the weights of queries, keys and values."""
    sizes = attribute(node, "qkv_hidden_sizes") or [weights.shape[1] // 3] * 3
    if sum(sizes) != weights.shape[1]:
        raise ValueError("qkv_hidden_sizes of other weights")
    return sizes


@definition("Attention")
def float_attention(node):
    x, w, bias, mask, past, added, _ = arrays(node)
    y = wide(x) @ wide(w) + (0 if bias is None else wide(bias))
    sizes = hidden_sizes(node, w)
    results = attended(node, y, sizes, mask, past, 0 if added is None else wide(added))
    return [result.astype(x.dtype) for result in results][:node.outputs]


def attended(node, y, sizes, mask, past, added=0):
    """The result, and keys and values, of queries, keys and values of these sizes side by side."""
    batch, steps, _ = y.shape
    heads = attribute(node, "num_heads")
    split = lambda part: part.reshape(batch, steps, heads, -1).transpose(0, 2, 1, 3)
    q, k, v = (split(part) for part in np.split(y, np.cumsum(sizes)[:2], 2))
    behind = 0
    if past is not None:
        behind = past.shape[3]
        k, v = (np.concatenate([wide(old), new], 2) for old, new in zip(past, (k, v)))
    keys = k.shape[2]
    scores = q @ k.transpose(0, 1, 3, 2) * score_factor(node, q.shape[3])
    if mask is not None:
        place = np.arange(keys)
        if mask.ndim == 1:
            allowed = place < mask[:batch, None]
            if len(mask) == 2 * batch:
                allowed &= place >= mask[batch:, None]
            allowed = allowed[:, None, None, :]
        elif mask.ndim == 2:
            allowed = (mask > 0)[:, None, None, :] if mask.shape[1] == keys else np.array(True)
        else:
            allowed = (mask > 0)[:, None]
        scores = scores + np.where(allowed, 0, attribute(node, "mask_filter_value", -10000.0))
    if attribute(node, "unidirectional", 0):
        scores = np.where(np.arange(keys) <= np.arange(steps)[:, None] + behind, scores, -np.inf)
    scores = scores + added
    # A rounding of a score is one of the weight, as large as the score is: also where all keys are masked.
    terms = np.abs(q) @ np.abs(k).transpose(0, 1, 3, 2)
    node.ulps = 32 + 4 * float(max(terms.max(), np.abs(scores.max(-1)).max()))
    node.scale_ulps = node.ulps
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, steps, -1)
    return [y] if sizes[1] != sizes[2] else [y, np.stack([k, v])]


@definition("QEmbedLayerNormalization")
def embed(node):
    ids, segments, words, places, kinds, gamma, beta, mask, *rest = arrays(node)
    real = lambda at, x: shifted(x, rest[5 + at]) * single(rest[at])
    y = real(0, words)[ids] + real(1, places)[: ids.shape[1]]
    if segments is not None:
        y = y + real(2, kinds)[segments]
    y = layer(node, y) * real(3, gamma) + real(4, beta)
    counts = np.zeros(len(ids)) if mask is None else (mask == 1).sum(1)
    return [y.astype(np.float32), counts.astype(np.int32)]


def layer(node, y):
    y = y - y.mean(-1, keepdims=True)
    deviation = np.sqrt((y * y).mean(-1, keepdims=True) + attribute(node, "epsilon", float(np.float32(1e-12))))
    if np.any(deviation < 1e-3):
        raise Close("a row whose elements do not differ")
    return y / deviation


@definition("EmbedLayerNormalization")
def float_embed(node):
    ids, segments, words, places, kinds, gamma, beta, mask, at = arrays(node)
    y = wide(words)[ids] + (wide(places)[: ids.shape[1]] if at is None else wide(places)[at])
    if segments is not None:
        y = y + wide(kinds)[segments]
    counts = np.zeros(len(ids)) if mask is None else (mask == 1).sum(1)
    result = layer(node, y) * wide(gamma) + wide(beta)
    return [result.astype(np.float32), counts.astype(np.int32), y.astype(np.float32)][:node.outputs]


@definition("SkipLayerNormalization")
def skip_layer(node):
    x, skip, gamma, beta, bias = arrays(node)
    y = wide(x) + wide(skip) + (0 if bias is None else wide(bias))
    return [(layer(node, y) * wide(gamma) + (0 if beta is None else wide(beta))).astype(x.dtype)]


@definition("FastGelu")
def fast_gelu(node):
    x, bias = arrays(node)
    y = wide(x) + (0 if bias is None else wide(bias))
    return [(y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y ** 3)))).astype(x.dtype)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@definition("DynamicQuantizeLSTM")
def lstm(node):
    x, w, r, bias, lengths, h0, c0, peep, sw, zw, sr, zr = arrays(node)
    steps, batch, _ = x.shape
    count, hidden = w.shape[0], r.shape[1]
    lengths = np.full(batch, steps) if lengths is None else lengths
    clip = attribute(node, "clip")
    limited = lambda gate: gate if clip is None else np.clip(gate, -clip, clip)
    all_steps = np.zeros((steps, count, batch, hidden))
    finals = [np.zeros((count, batch, hidden)) for _ in range(2)]
    direction = attribute(node, "direction", "forward")
    own_x, scale_x = dynamic(node, x)
    for at in range(count):
        backwards = direction == "reverse" or at == 1
        gates_x = own_x @ (wide(w[at]) - wide(zw[at])) * scale_x * wide(sw[at])
        if bias is not None:
            gates_x = gates_x + wide(bias[at][: 4 * hidden]) + wide(bias[at][4 * hidden:])
        h, c = (np.zeros((batch, hidden)) if state is None else wide(state[at]) for state in (h0, c0))
        p = np.zeros((3, hidden)) if peep is None else wide(peep[at]).reshape(3, hidden)
        for t in reversed(range(steps)) if backwards else range(steps):
            own_h, scale_h = dynamic(node, h)
            gates = gates_x[t] + own_h @ (wide(r[at]) - wide(zr[at])) * scale_h * wide(sr[at])
            i, o, f, g = np.split(gates, 4, 1)
            i = sigmoid(limited(i + p[0] * c))
            f = 1 - i if attribute(node, "input_forget", 0) else sigmoid(limited(f + p[2] * c))
            new = f * c + i * np.tanh(limited(g))
            o = sigmoid(limited(o + p[1] * new))
            live = (t < lengths)[:, None]
            all_steps[t, at] = np.where(live, o * np.tanh(new), 0)
            h, c = np.where(live, o * np.tanh(new), h), np.where(live, new, c)
        finals[0][at], finals[1][at] = h, c
    return [array.astype(np.float32) for array in (all_steps, *finals)]
