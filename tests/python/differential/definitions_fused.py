"""What joined operators of com.microsoft should give: each step in f64, one after the other."""

from math import erf

import numpy as np

import values
from case import Close, Skip
from definitions_microsoft import pads, taps
from vendor import arrays, attribute, definition, single32, wide


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_of(x):
    return x / 2 * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2)))


def fast_gelu_of(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def added(*parts):
    return sum(wide(part) for part in parts if part is not None)


@definition("Gelu", "BiasGelu")
def gelu(node):
    return [gelu_of(added(*arrays(node))).astype(node.dtype())]


@definition("QuickGelu")
def quick_gelu(node):
    x = wide(arrays(node)[0])
    return [(x * sigmoid(attribute(node, "alpha", single32(1.702)) * x)).astype(node.dtype())]


@definition("BiasSplitGelu")
def bias_split_gelu(node):
    left, right = np.split(added(*arrays(node)), 2, -1)
    return [(left * gelu_of(right)).astype(node.dtype())]


@definition("GemmFastGelu")
def gemm_fast_gelu(node):
    x, w, bias = arrays(node)
    y = wide(x) @ wide(w)
    return [fast_gelu_of(y if bias is None else y + wide(bias)).astype(node.dtype())]


@definition("BiasAdd")
def bias_add(node):
    return [added(*arrays(node)).astype(node.dtype())]


@definition("BiasSoftmax")
def bias_softmax(node):
    """As the kernels have it: rows of the bias repeat each, or all of them in turn. One element of a row stands for all."""
    x, bias = arrays(node)
    axis = attribute(node, "axis", 1) % x.ndim
    count = int(np.prod(x.shape[axis:]))
    rows, own = wide(x).reshape(-1, count), wide(bias)
    own = np.broadcast_to(own, own.shape[:axis] + x.shape[axis:]).reshape(-1, count)
    times = len(rows) // len(own)
    rows = rows + (np.repeat(own, times, 0) if attribute(node, "is_inner_broadcast") else np.tile(own, (times, 1)))
    y = np.exp(rows - rows.max(1, keepdims=True))
    return [(y / y.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype)]


@definition("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout")
def dropout(node):
    x, *rest = arrays(node)
    y = wide(x) if node.op == "BitmaskDropout" else added(x, *rest[:2])
    words = np.full(-(-x.size // 32), 2**32 - 1, np.uint32)
    return [y.astype(x.dtype), np.ones(x.shape, bool) if node.op == "BiasDropout" else words]


@definition("GatedAdd")
def gated_add(node):
    x, y, gate, weight = arrays(node)
    gate = wide(gate) if weight is None else sigmoid(wide(gate) @ wide(weight))
    return [(wide(x) + wide(y) * gate).astype(x.dtype)]


@definition("ScaledSiLU")
def scaled_silu(node):
    x, scale = arrays(node)
    z = (wide(x) * (attribute(node, "alpha", 1.0) if scale is None else wide(scale))).astype(x.dtype).astype(np.float64)
    return [(z * sigmoid(z)).astype(x.dtype)]


@definition("SwiGLU")
def swiglu(node):
    gate, up = arrays(node)
    dtype = gate.dtype
    gate, up = (wide(gate), wide(up)) if up is not None else np.split(wide(gate), 2, -1)
    limit = attribute(node, "limit", 0.0)
    if limit > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    gate = gate * sigmoid(attribute(node, "activation_alpha", 1.0) * gate)
    if attribute(node, "round_activation", 0):
        gate = gate.astype(dtype).astype(np.float64)
    return [(gate * (up + attribute(node, "activation_beta", 0.0))).astype(dtype)]


def leaky(x, alpha):
    return np.where(x < 0, alpha * x, x)


def elu(x, alpha):
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def thresholded(x, limit):
    if np.any(np.abs(x - limit) < 1e-4):
        raise Close("a threshold")
    return np.where(x > limit, x, 0)


ACTIVATIONS = {
    "Relu": lambda x: np.maximum(x, 0), "Tanh": np.tanh, "Sigmoid": sigmoid, "Silu": lambda x: x * sigmoid(x),
    "Softsign": lambda x: x / (1 + np.abs(x)), "Softplus": lambda x: np.logaddexp(x, 0), "LeakyRelu": leaky,
    "ThresholdedRelu": thresholded,
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1), "Elu": elu, "Clip": np.clip,
    "Celu": lambda x, a: np.maximum(x, 0) + np.minimum(0, a * np.expm1(x / a)),
    "Selu": lambda x, a, gamma: gamma * elu(x, a),
}


def conv_activated(node, y):
    name = attribute(node, "activation")
    return ACTIVATIONS[name](y, *attribute(node, "activation_params", [])) if name else y


def product_activated(node, y):
    name = attribute(node, "activation")
    names = [f"activation_{constant}" for constant in ("alpha", "beta", "gamma")]
    return ACTIVATIONS[name](y, *[attribute(node, own) for own in names if own in node.attributes]) if name else y


def window_plan(node, sizes, kernel):
    rank = len(kernel)
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    around = pads(node, sizes, kernel, strides, dilations)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    out = [(size + sum(pad) - r) // s + 1 for size, pad, r, s in zip(sizes, around, reach, strides)]
    return strides, dilations, around, out


def conv_shape(node, sizes, kernel):
    return window_plan(node, sizes, kernel)[3]


def convolved(node, x, w, groups):
    """Of reals, channels first."""
    rank = w.ndim - 2
    strides, dilations, around, out = window_plan(node, x.shape[2:], w.shape[2:])
    windows = taps(np.pad(x, [(0, 0), (0, 0), *around]), w.shape[2:], strides, dilations, out)
    per, each = w.shape[0] // groups, w.shape[1]
    parts = []
    for group in range(groups):
        own = windows[:, group * each:(group + 1) * each]
        axes = ([1, *range(2 + rank, 2 + 2 * rank)], list(range(1, 2 + rank)))
        parts.append(np.moveaxis(np.tensordot(own, w[group * per:(group + 1) * per], axes), -1, 1))
    return np.concatenate(parts, 1)


def by_channel(parameter, rank):
    return wide(parameter).reshape((-1,) + (1,) * (rank - 2))


@definition("FusedConv", "NhwcConv", "NhwcFusedConv")
def conv(node):
    x, w, bias, addend = (arrays(node) + [None])[:4]
    is_last = node.op != "FusedConv"
    first = lambda array: np.moveaxis(array, -1, 1) if is_last else array
    y = convolved(node, first(wide(x)), wide(w), attribute(node, "group", 1))
    if bias is not None:
        y = y + by_channel(bias, y.ndim)
    if addend is not None:
        y = y + first(wide(addend))
    y = conv_activated(node, y)
    return [(np.moveaxis(y, 1, -1) if is_last else y).astype(x.dtype)]


def pool_plan(node, sizes):
    """Kernel, strides, dilations, pads before and behind, and the number of windows."""
    kernel = attribute(node, "kernel_shape")
    strides, dilations, around, out = window_plan(node, sizes, kernel)
    if attribute(node, "ceil_mode", 0):
        for axis, size in enumerate(sizes):
            before, after = around[axis]
            reach = (kernel[axis] - 1) * dilations[axis] + 1
            count = -(-(size + before + after - reach) // strides[axis]) + 1
            # A window that begins behind the data is none.
            count -= (count - 1) * strides[axis] >= size + before
            out[axis] = count
            around[axis] = (before, max((count - 1) * strides[axis] + reach - size - before, after))
    return kernel, strides, dilations, around, out


def max_pooled(node, x):
    kernel, strides, dilations, around, out = pool_plan(node, x.shape[2:])
    padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=-np.inf)
    return taps(padded, kernel, strides, dilations, out).max(tuple(range(-len(kernel), 0)))


@definition("NhwcMaxPool")
def max_pool(node):
    x = arrays(node)[0]
    least, most = values.integer_range(values.NAMES[x.dtype])
    y = max_pooled(node, np.moveaxis(wide(x), -1, 1))
    return [np.moveaxis(np.clip(y, least, most), 1, -1).astype(x.dtype)]


@definition("FusedGemm")
def gemm(node):
    a, b, c = arrays(node)
    dtype = a.dtype
    work = (lambda array: array.astype(np.int64)) if dtype.kind in "iu" else wide
    a, b = work(a), work(b)
    a = a.T if attribute(node, "transA", 0) else a
    b = b.T if attribute(node, "transB", 0) else b
    number = int if dtype.kind in "iu" else float
    y = a @ b * number(attribute(node, "alpha", 1.0))
    if c is not None:
        y = y + work(c) * number(attribute(node, "beta", 1.0))
    if dtype.kind == "u" and np.any(y < 0):
        raise Skip("unsigned")
    return [product_activated(node, y).astype(dtype)]


@definition("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def mat_mul(node):
    operands = []
    for letter, array in zip("AB", arrays(node)):
        array = wide(array)
        if array.ndim > 1:
            if attribute(node, f"transBatch{letter}", 0):
                array = np.moveaxis(array, 0, -2)
            if attribute(node, f"trans{letter}", 0):
                array = np.swapaxes(array, -1, -2)
        operands.append(array)
    y = operands[0] @ operands[1] * attribute(node, "alpha", 1.0)
    return [np.asarray(product_activated(node, y)).astype(node.dtype())]


@definition("GroupNorm", "SkipGroupNorm")
def group_norm(node):
    x, gamma, beta, skip, bias = (arrays(node) + [None, None])[:5]
    is_last = attribute(node, "channels_last", 1)
    first = lambda array: np.moveaxis(array, -1, 1) if is_last else array
    y = first(wide(x))
    if skip is not None:
        y = y + (wide(skip)[:, :, None, None] if skip.ndim == 2 else first(wide(skip)))
    if bias is not None:
        y = y + by_channel(bias, 4)
    total = y
    y = y.reshape(y.shape[0], attribute(node, "groups"), -1)
    spread = y.var(-1, keepdims=True)
    if np.any(spread < 1e-2):
        raise Close("a group whose elements do not differ")
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(spread + attribute(node, "epsilon", single32(1e-5)))
    y = y.reshape(total.shape) * by_channel(gamma, 4) + by_channel(beta, 4)
    if attribute(node, "activation"):
        y = y * sigmoid(y)
    last = lambda array: np.moveaxis(array, 1, -1) if is_last else array
    return [last(y).astype(x.dtype), last(total).astype(x.dtype)]
