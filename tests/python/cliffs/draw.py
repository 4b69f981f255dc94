"""Cases of the hunter of cliffs: a kind with its sizes and choices, drawn from a seed, and smaller cases of the same kind."""
import dataclasses
import math
import random

import numpy as np
from patterns import (BINARY, REDUCE, UNARY, Graph, attention, conv, group_norm, layer_norm, linear, quantized, quantized_weight,
                      recurrent, softmax, unary, volume)

OPSETS = [13, 17, 18, 21, 23]
# Elements of a tensor, and operations of a case, that a draw may have.
MOST_ELEMENTS, MOST_OPERATIONS = 1 << 21, 1 << 30


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    sizes: tuple
    choices: tuple
    dtype: str = "f32"
    opset: int = 21
    threads: int = 1
    open: bool = False

    def __str__(self):
        words = [self.kind, "x".join(map(str, self.sizes)), *map(str, self.choices)]
        words += [self.dtype] * (self.dtype != "f32") + ["open"] * self.open + [f"opset {self.opset}"]
        return " ".join(words) + f", {self.threads} thread" + "s" * (self.threads > 1)


class Kind:
    """How a kind is drawn and built. `sizes` are the bounds of each size, `choices` the values of each choice; the first value of a choice
    is the plainest, to which cases shrink. What `types` name may be the type of its inputs."""

    def __init__(self, build, sizes, choices=(), types=("f32", "f32", "f32", "f16"), opset=1):
        self.build, self.sizes, self.choices, self.types, self.opset = build, sizes, choices, types, opset


def shaped(g, sizes):
    """The last of four sizes: leading ones are left out, so that tensors of fewer axes are drawn, too."""
    shape = list(sizes)
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    return shape


def build_unary(g, sizes, choices):
    shape = shaped(g, sizes)
    return unary(g, g.input(shape), shape, choices[0])


def build_binary(g, sizes, choices):
    shape, (which, how) = shaped(g, sizes), choices
    other = {"same": shape, "last": shape[-1:], "scalar": [1], "column": [*shape[:-1], 1],
             "channel": [shape[1] if len(shape) > 2 else 1] + [1] * max(len(shape) - 2, 1)}[how]
    g.operations += volume(shape)
    return g.node(which, g.input(shape), g.weights_of(*other) if how != "same" else g.input(shape))


def build_softmax(g, sizes, choices):
    shape = shaped(g, sizes)
    return softmax(g, g.input(shape), shape, choices[0] if -len(shape) <= choices[0] else -1, choices[1])


def build_reduce(g, sizes, choices):
    shape, (which, axis) = shaped(g, sizes), choices
    axis = max(axis, -len(shape))
    g.operations += volume(shape)
    x = g.input(shape)
    if which == "ArgMax":
        return g.node(which, x, axis=axis, keepdims=0)
    by_input = g.case.opset >= 18 or which == "ReduceSum"
    return g.node(which, x, g.numbers(axis), keepdims=0) if by_input else g.node(which, x, axes=[axis], keepdims=0)


def build_layer_norm(g, sizes, choices):
    shape = shaped(g, sizes)
    return layer_norm(g, g.input(shape), shape, choices[0])


def build_group_norm(g, sizes, choices):
    n, c, h, w = sizes
    groups = math.gcd(c, choices[1])
    return group_norm(g, g.input([n, c, h, w], open_axes=[0, 2, 3]), [n, c, h, w], groups, choices[0])


def build_transpose(g, sizes, choices):
    shape = shaped(g, sizes)
    order = [axis for axis in choices[0] if axis < len(shape)]
    return g.node("Transpose", g.input(shape), perm=order)


def build_concat(g, sizes, choices):
    shape = shaped(g, sizes)
    axis = min(choices[0], len(shape) - 1)
    return g.node("Concat", *[g.input(shape) for _ in range(choices[1])], axis=axis)


def build_split(g, sizes, choices):
    shape = shaped(g, sizes)
    axis = min(choices[0], len(shape) - 1)
    parts = min(choices[1], shape[axis])
    lengths = [shape[axis] // parts] * (parts - 1) + [shape[axis] - shape[axis] // parts * (parts - 1)]
    return g.node("Split", g.input(shape, open_axes=[at for at in range(len(shape)) if at != axis]), g.numbers(*lengths), outputs=parts, axis=axis)


def build_slice(g, sizes, choices):
    shape = shaped(g, sizes)
    axis, step = min(choices[0], len(shape) - 1), choices[1]
    first, last = (0, 1 << 40) if step > 0 else (-1, -(1 << 40))
    return g.node("Slice", g.input(shape), g.numbers(first), g.numbers(last), g.numbers(axis), g.numbers(step))


def build_pad(g, sizes, choices):
    shape = shaped(g, sizes)
    before = [0] * len(shape)
    before[-1] = min(2, shape[-1] - 1)
    return g.node("Pad", g.input(shape), g.numbers(*before, *before), mode=choices[0])


def build_gather(g, sizes, choices):
    shape = shaped(g, sizes)
    axis = min(choices[0], len(shape) - 1)
    index = g.input([choices[1]], "i64", 0, shape[axis], open_axes=[0])
    return g.node("Gather", g.input(shape), index, axis=axis)


def build_resize(g, sizes, choices):
    n, c, h, w = sizes
    mode, factor, how = choices
    g.operations += 8 * volume(sizes) * factor**2
    scales = g.scalar([1, 1, factor, factor], "f32")
    attributes = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    return g.node("Resize", g.input([n, c, h, w], open_axes=[0, 2, 3]), "", scales, **attributes)


def build_conv(g, sizes, choices):
    n, c, out, *spatial = sizes
    kernel, stride, group, dilation, axes = choices
    shape = [n, c, *spatial[:axes]]
    if group == "depthwise":
        group, out = c, c
    elif c % group or out % group:
        group = 1
    x = g.input(shape, open_axes=[0, *range(2, len(shape))])
    return conv(g, x, shape, out, kernel, stride, group, dilation)[0]


def build_conv_transpose(g, sizes, choices):
    n, c, out, h, w = sizes
    kernel, stride = choices
    g.operations += 2 * n * c * out * h * w * kernel**2
    return g.node("ConvTranspose", g.input([n, c, h, w], open_axes=[0, 2, 3]), g.weights_of(c, out, kernel, kernel), g.weights_of(out),
                  strides=[stride] * 2, kernel_shape=[kernel] * 2)


def build_pool(g, sizes, choices):
    n, c, h, w = sizes
    which, kernel, stride = choices
    x = g.input([n, c, h, w], open_axes=[0, 2, 3])
    if which.startswith("Global"):
        g.operations += volume(sizes)
        return g.node(which, x)
    pads = [kernel // 2] * 4
    g.operations += volume(sizes) // stride**2 * kernel**2
    return g.node(which, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)


def build_matmul(g, sizes, choices):
    batch, rows, inner, columns = sizes
    how, turned = choices
    g.operations += 2 * batch * rows * inner * columns
    left = [batch, rows, inner] if batch > 1 else [rows, inner]
    right = [inner, columns]
    if how == "weight":
        return g.node("MatMul", g.input(left, open_axes=range(len(left) - 1)), g.weights_of(*right))
    right = [batch, inner, columns] if batch > 1 else right
    if turned:
        right[-2:] = right[:-3:-1]
    b = g.input(right)
    if turned:
        b = g.node("Transpose", b, perm=[*range(len(right) - 2), len(right) - 1, len(right) - 2])
    return g.node("MatMul", g.input(left), b)


def build_linear(g, sizes, choices):
    rows, inner, columns = sizes
    how, after = choices
    y = linear(g, g.input([rows, inner], open_axes=[0]), rows, inner, columns, how)
    return unary(g, y, [rows, columns], after) if after else y


def build_mlp(g, sizes, choices):
    """A layer of a transformer without its attention: norm, product, activation, product, sum."""
    rows, inner, hidden = sizes
    x = g.input([1, rows, inner], open_axes=[1])
    y = layer_norm(g, x, [1, rows, inner], choices[0])
    y = linear(g, y, rows, inner, hidden, "matmul")
    if choices[1] == "erf":
        y = g.node("Mul", g.node("Mul", y, g.node("Add", g.node("Erf", g.node("Div", y, g.scalar(2**0.5))), g.scalar(1.0))), g.scalar(0.5))
    elif choices[1] == "tanh":
        cube = g.node("Mul", g.node("Pow", y, g.scalar(3.0)), g.scalar(0.044715))
        inside = g.node("Mul", g.node("Add", y, cube), g.scalar(0.7978845608))
        y = g.node("Mul", g.node("Mul", y, g.node("Add", g.node("Tanh", inside), g.scalar(1.0))), g.scalar(0.5))
    else:
        y = g.node("Mul", y, g.node("Sigmoid", y))
    g.operations += 8 * rows * hidden
    return g.node("Add", linear(g, y, rows, hidden, inner, "matmul"), x)


def build_attention(g, sizes, choices):
    b, h, n, d, keys = sizes
    return attention(g, [b, h, n, d], keys, choices[0])


def build_recurrent(g, sizes, choices):
    steps, batch, inner, hidden = sizes
    return recurrent(g, choices[0], steps, batch, inner, hidden, choices[1])


def build_block(g, sizes, choices):
    """A convolution, what follows it, and a residual sum or a pooling."""
    n, c, h, w = sizes
    kernel, norm, activation, last = choices
    x = g.input([n, c, h, w], open_axes=[0, 2, 3])
    y, shape = conv(g, x, [n, c, h, w], c, kernel, 1, 1)
    if norm == "batch":
        ones = g.weights_of(c)
        y = g.node("BatchNormalization", y, ones, g.weights_of(c), g.weights_of(c), g.weight(abs(g.values((c,), g.case.dtype)) + 1), epsilon=1e-3)
        g.operations += 2 * volume(shape)
    elif norm == "group":
        y = group_norm(g, y, shape, math.gcd(c, 8), 1)
    if activation == "silu":
        y = g.node("Mul", y, g.node("Sigmoid", y))
    elif activation == "prelu":
        y = g.node("PRelu", y, g.weights_of(c, 1, 1))
    elif activation:
        y = g.node(activation, y)
    g.operations += 4 * volume(shape)
    if last == "sum":
        return g.node("Add", y, x)
    if last == "pool":
        return g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    if last == "squeeze":
        s = g.node("Conv", g.node("GlobalAveragePool", y), g.weights_of(c, c, 1, 1))
        return g.node("Mul", y, g.node("Sigmoid", s))
    return y


def build_quantized_conv(g, sizes, choices):
    n, c, out, h, w = sizes
    kernel, stride, dtype, depthwise = choices
    out, group = (c, c) if depthwise else (out, 1)
    x = quantized(g, g.input([n, c, h, w], open_axes=[0, 2, 3]), dtype)
    weight = quantized_weight(g, [out, c // group, kernel, kernel], 0)
    y = g.node("Relu", g.node("Conv", x, weight, pads=[kernel // 2] * 4, strides=[stride] * 2, group=group))
    g.operations += 2 * n * out * (h // stride) * (w // stride) * (c // group) * kernel**2
    return quantized(g, y, dtype)


def build_quantized_matmul(g, sizes, choices):
    rows, inner, columns = sizes
    how, dtype = choices
    g.operations += 2 * rows * inner * columns
    if how == "dynamic":
        x, s, z = g.node("DynamicQuantizeLinear", g.input([rows, inner], open_axes=[0]), outputs=3)
        b = g.weight(g.values((inner, columns), "s8", -127, 128))
        y = g.node("Cast", g.node("MatMulInteger", x, b, z), to=1)
        return g.node("Mul", y, g.node("Mul", s, g.scalar(0.01)))
    x = quantized(g, g.input([rows, inner], open_axes=[0]), dtype)
    return quantized(g, g.node("MatMul", x, quantized_weight(g, [inner, columns], 1)), dtype)


def build_pair(g, sizes, choices):
    """Two operators after each other. The second may want another order of axes than the first gives."""
    shape = shaped(g, sizes)
    x = g.input(shape)
    for which in choices:
        if which == "softmax":
            x = softmax(g, x, shape, -1)
        elif which == "turn":
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2] if len(shape) > 1 else [0]
            shape = [shape[axis] for axis in order]
            x = g.node("Transpose", x, perm=order)
        elif which == "norm":
            x = layer_norm(g, x, shape, 1)
        elif which == "product":
            x = linear(g, x, volume(shape[:-1]), shape[-1], 32, "matmul")
            shape = [*shape[:-1], 32]
        elif which == "mean":
            y = g.node("ReduceMean", x, g.numbers(-1)) if g.case.opset >= 18 else g.node("ReduceMean", x, axes=[-1])
            x = g.node("Sub", x, y)
            g.operations += 2 * volume(shape)
        elif which == "flat":
            x = g.node("Flatten", x, axis=max(len(shape) - 1, 0))
            shape = [volume(shape[:-1]), shape[-1]]
        elif which == "cumsum":
            x = g.node("CumSum", x, g.weight(np.array(len(shape) - 1)))
            g.operations += volume(shape)
        else:
            x = unary(g, x, shape, which)
    return x


def build_indices(g, sizes, choices):
    """Operators whose results data or indices decide."""
    shape = shaped(g, sizes)
    x, which = g.input(shape), choices[0]
    g.operations += volume(shape)
    if which == "TopK":
        return g.node("TopK", x, g.numbers(min(8, shape[-1])), outputs=2)[0]
    if which == "CumSum":
        return g.node("CumSum", x, g.weight(np.array(len(shape) - 1)))
    if which == "NonZero":
        return g.node("NonZero", x)
    if which == "GatherElements":
        return g.node("GatherElements", x, g.input(shape, "i64", 0, shape[-1]), axis=-1)
    if which == "Where":
        return g.node("Where", g.input(shape, "bool"), x, g.input(shape))
    if which == "Cast":
        return g.node("Cast", x, to=7)
    if which == "Tile":
        return g.node("Tile", x, g.numbers(*[1] * (len(shape) - 1), 2))
    if which == "Expand":
        return g.node("Expand", x, g.numbers(2, *[1] * len(shape)))
    if which == "ScatterND":
        rows = g.input([max(shape[0] // 2, 1), 1], "i64", 0, 1, open_axes=[])
        return g.node("ScatterND", x, rows, g.input([max(shape[0] // 2, 1), *shape[1:]], open_axes=[]))
    return g.node("OneHot", g.node("Cast", g.node("Abs", x), to=7), g.numbers(16), g.scalar([0, 1]))


ANY = [(1, 8), (1, 1024), (1, 4096), (1, 262144)]
IMAGE = [(1, 8), (1, 512), (1, 256), (1, 256)]
ORDERS = [(1, 0, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 1, 2), (2, 1, 0, 3), (3, 2, 1, 0), (0, 1, 3, 2)]
STEPS = ["Relu", "softmax", "turn", "norm", "product", "mean", "flat", "cumsum", "Gelu", "Tanh", "Elu", "Sqrt"]
KINDS = {
    "unary": Kind(build_unary, ANY, [list(UNARY)]),
    "binary": Kind(build_binary, ANY, [BINARY, ["same", "last", "scalar", "column", "channel"]]),
    "softmax": Kind(build_softmax, ANY, [[-1, -2, -3], [False, True]]),
    "reduce": Kind(build_reduce, ANY, [REDUCE, [-1, -2, -3]]),
    "layer_norm": Kind(build_layer_norm, ANY, [[0, 1, 2]]),
    "group_norm": Kind(build_group_norm, IMAGE, [[0, 1], [8, 1, 4, 32]]),
    "transpose": Kind(build_transpose, ANY, [ORDERS], ("f32", "f32", "f16", "i64", "u8")),
    "concat": Kind(build_concat, ANY, [[0, 1, 2, 3], [2, 3, 7]], ("f32", "f32", "f16", "u8")),
    "split": Kind(build_split, ANY, [[0, 1, 2, 3], [2, 3, 5]], ("f32", "f32", "f16", "u8")),
    "slice": Kind(build_slice, ANY, [[0, 1, 2, 3], [1, 2, -1, 3]], ("f32", "f32", "f16", "u8", "i64")),
    "pad": Kind(build_pad, ANY, [["constant", "edge", "reflect"]]),
    "gather": Kind(build_gather, ANY, [[0, 1, 2, 3], [1, 16, 100]], ("f32", "f32", "f16", "s8", "i64")),
    "resize": Kind(build_resize, IMAGE, [["nearest", "linear", "cubic"], [2, 3], ["asymmetric", "half_pixel", "align_corners"]], ("f32",)),
    "conv": Kind(build_conv, [(1, 8), (1, 512), (1, 512), (1, 128), (1, 128), (1, 16)],
                 [[1, 3, 5, 7], [1, 2], [1, "depthwise", 4], [1, 2], [2, 1, 3]]),
    "conv_transpose": Kind(build_conv_transpose, [(1, 4), (1, 256), (1, 256), (1, 64), (1, 64)], [[2, 3, 4], [2, 1]], ("f32",)),
    "pool": Kind(build_pool, IMAGE, [["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"], [2, 3, 5], [2, 1]], ("f32",)),
    "matmul": Kind(build_matmul, [(1, 32), (1, 1024), (1, 1024), (1, 1024)], [["weight", "input"], [False, True]]),
    "linear": Kind(build_linear, [(1, 1024), (1, 2048), (1, 4096)], [["matmul", "gemm"], ["", "Relu", "Gelu", "Elu", "Sigmoid"]]),
    "mlp": Kind(build_mlp, [(1, 512), (1, 1024), (1, 2048)], [[0, 1, 2], ["erf", "tanh", "silu"]]),
    "attention": Kind(build_attention, [(1, 8), (1, 16), (1, 1024), (8, 128), (1, 1536)], [[False, True]]),
    "recurrent": Kind(build_recurrent, [(1, 100), (1, 16), (1, 512), (1, 384)], [["LSTM", "GRU", "RNN"], [False, True]], ("f32",)),
    "block": Kind(build_block, [(1, 8), (1, 256), (1, 128), (1, 128)],
                  [[3, 1, 5], ["batch", "group", ""], ["Relu", "silu", "prelu", "Elu", "HardSwish", ""], ["", "sum", "pool", "squeeze"]]),
    "quantized_conv": Kind(build_quantized_conv, [(1, 4), (1, 512), (1, 512), (1, 128), (1, 128)],
                           [[1, 3, 5], [1, 2], ["u8", "s8"], [False, True]], ("f32",)),
    "quantized_matmul": Kind(build_quantized_matmul, [(1, 512), (1, 2048), (1, 2048)], [["dynamic", "qdq"], ["u8", "s8"]], ("f32",)),
    "pair": Kind(build_pair, ANY, [STEPS, STEPS]),
    "indices": Kind(build_indices, ANY, [["TopK", "CumSum", "NonZero", "GatherElements", "Where", "Cast", "Tile", "Expand", "ScatterND", "OneHot"]],
                    ("f32",)),
}
PRIMES = [2, 3, 5, 7, 11, 13, 17, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191, 65521, 131071]


def draw_size(rng, low, high):
    """A power of two, an odd size, a prime, one, a long one or any."""
    kind = rng.choice(["power", "power", "odd", "prime", "one", "any", "round"])
    if kind == "power":
        return max(low, 1 << rng.randint(0, high.bit_length() - 1))
    if kind == "prime":
        return rng.choice([prime for prime in PRIMES if prime <= high] or [low])
    size = max(low, int(math.exp(rng.uniform(0, math.log(high)))))
    if kind == "one":
        return low
    if kind == "round":
        return max(low, size // 8 * 8)
    return size | 1 if kind == "odd" else size


def draw(seed, number, kinds=None):
    """Case `number` of a seed, and its graph with outputs."""
    rng = random.Random(f"{seed}/{number}")
    for _ in range(1000):
        name = rng.choice(sorted(kinds or KINDS))
        kind = KINDS[name]
        sizes = tuple(draw_size(rng, low, high) for low, high in kind.sizes)
        choices = tuple(rng.choice(values) for values in kind.choices)
        case = Case(name, sizes, choices, rng.choice(kind.types), rng.choice(OPSETS), rng.choice([1, 1, 2]), rng.random() < 0.25)
        if volume(sizes) > 1 << 16 and fits(case):
            return case
    raise ValueError(f"no case of {kinds} in 1000 draws")


def fits(case):
    """Whether a case has a graph of a fitting size."""
    if case.kind in ("unary",) and UNARY[case.choices[0]] > case.opset:
        return False
    if "Gelu" in case.choices and case.opset < 20 or "Mish" in case.choices and case.opset < 18:
        return False
    if case.kind in ("layer_norm", "mlp") and case.choices[0] == 0 and case.opset < 17:
        return False
    if case.kind == "group_norm" and case.choices[0] == 0 and case.opset < 21:
        return False
    if volume([max(size, 1) for size in case.sizes]) > 1 << 42:
        return False
    shapes = estimate(case)
    return shapes is not None and max(shapes) <= MOST_ELEMENTS


def estimate(case):
    """Elements of the tensors of a case that grow fastest; none where it has too much to compute."""
    s, kind = case.sizes, case.kind
    if kind in ("conv",):
        axes = case.choices[4]
        area = volume(s[3:3 + axes])
        out = s[1] if case.choices[2] == "depthwise" else s[2]
        per = 1 if case.choices[2] == "depthwise" else s[1]
        work = 2 * s[0] * out * per * area * case.choices[0]**axes
        tensors = [s[0] * s[1] * area, s[0] * out * area, out * per * case.choices[0]**axes]
    elif kind in ("conv_transpose", "quantized_conv"):
        work = 2 * volume(s) * case.choices[0]**2
        tensors = [s[0] * s[1] * s[3] * s[4], s[0] * s[2] * s[3] * s[4] * 4, s[1] * s[2] * case.choices[0]**2]
        if kind == "quantized_conv" and case.choices[3]:
            work, tensors[2] = work // s[2], s[1]
    elif kind == "block":
        work, tensors = 2 * volume(s) * s[1] * case.choices[0]**2, [volume(s), s[1]**2 * case.choices[0]**2]
    elif kind == "matmul":
        work, tensors = 2 * volume(s), [s[0] * s[1] * s[2], s[0] * s[2] * s[3], s[0] * s[1] * s[3]]
    elif kind in ("linear", "quantized_matmul", "mlp"):
        work, tensors = 4 * volume(s), [s[0] * s[1], s[1] * s[2], s[0] * s[2]]
    elif kind == "attention":
        work, tensors = 4 * volume(s), [volume(s[:4]), s[0] * s[1] * s[2] * s[4], s[0] * s[1] * s[3] * s[4]]
    elif kind == "recurrent":
        work, tensors = 16 * s[0] * s[1] * s[3] * (s[2] + s[3]), [s[0] * s[1] * max(s[2:]), 8 * s[3] * (s[2] + s[3])]
    elif kind == "resize":
        work, tensors = 0, [volume(s) * case.choices[1]**2]
    elif kind == "pair" and "product" in case.choices:
        work, tensors = 64 * volume(s), [volume(s), 32 * max(s)]
    elif kind == "indices":
        work, tensors = 0, [volume(s) * (16 if case.choices[0] == "OneHot" else 1)]
    elif kind == "gather":
        shape = shaped(None, s)
        axis = min(case.choices[0], len(shape) - 1)
        work, tensors = 0, [volume(s), volume(s) // shape[axis] * case.choices[1]]
    else:
        work, tensors = 0, [volume(s) * (case.choices[1] if kind == "concat" else 1)]
    return None if work > MOST_OPERATIONS else tensors


def build(case):
    """The graph of a case and its model."""
    g = Graph(case)
    model = g.model(KINDS[case.kind].build(g, case.sizes, case.choices))
    return g, model


def smaller(case):
    """Plainer cases that have a graph, the greatest steps first."""
    return filter(fits, plainer(case))


def plainer(case):
    if case.threads > 1:
        yield dataclasses.replace(case, threads=1)
    if case.open:
        yield dataclasses.replace(case, open=False)
    if case.dtype != "f32":
        yield dataclasses.replace(case, dtype="f32")
    for at, values in enumerate(KINDS[case.kind].choices):
        if case.choices[at] != values[0]:
            yield dataclasses.replace(case, choices=(*case.choices[:at], values[0], *case.choices[at + 1:]))
    for at, size in enumerate(case.sizes):
        low = KINDS[case.kind].sizes[at][0]
        for less in (low, size // 4, size // 2):
            if low <= less < size:
                yield dataclasses.replace(case, sizes=(*case.sizes[:at], less, *case.sizes[at + 1:]))
