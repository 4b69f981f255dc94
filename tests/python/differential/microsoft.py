"""Recipes of the operators of com.microsoft: `definitions_microsoft` says what they should give.

What is drawn stays away from ties that rounding in f32 decides: a definition skips such a case. Scales that are powers
of two have ties that are exact.
"""

from types import SimpleNamespace

import numpy as np

import values
from case import Skip
from vendor import DOMAIN, GELU_MAGNITUDE, RECIPES, recipe

#: Domains of ONNX Runtime.
DOMAINS = (DOMAIN, f"{DOMAIN}.nchwc")


class Schema:
    """A schema of ONNX Runtime, with the names that those of the ONNX package have. It copies what it needs: the objects of
    ONNX Runtime do not outlive their list."""

    def __init__(self, entry):
        self.domain, self.name, self.since_version, self.deprecated = entry.domain, entry.name, entry.since_version, False
        self.inputs = [SimpleNamespace(type_str=parameter.typeStr) for parameter in entry.inputs]
        self.outputs = [SimpleNamespace(type_str=parameter.typeStr) for parameter in entry.outputs]
        self.attributes = {name: SimpleNamespace(type=int(own.type)) for name, own in entry.attributes.items()}
        self.type_constraints = [
            SimpleNamespace(type_param_str=own.type_param_str, allowed_type_strs=list(own.allowed_type_strs))
            for own in entry.type_constraints
        ]


def schemas():
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    entries = get_all_operator_schema()
    return [Schema(entry) for entry in entries if entry.domain in DOMAINS and f"{entry.domain}.{entry.name}" in RECIPES]


#: Operators whose vector parameters ONNX Runtime refuses.
SCALARS = {"QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearReduceMean"}


def one(n):
    """Shape of a parameter of one element."""
    return () if n.chance(0.99 if n.op in SCALARS else 0.6) else (1,)


def scale(n, low=0.01, high=0.1, dims=None, kind=np.float32):
    """Scales: powers of two if `n.exact`, otherwise none of them."""
    dims = one(n) if dims is None else dims
    if not hasattr(n, "exact"):
        n.exact = n.chance(0.35)
    if n.exact:
        least, most = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
        array = np.exp2(n.rng.integers(least, most + 1, dims))
    else:
        array = n.rng.uniform(low, high, dims)
    return n.add(np.asarray(array).astype(kind), 0.6)


def small(n, dims, dtype, constant=0.12):
    """Integers of all their range, at times only extremes."""
    low, high = values.integer_range(values.NAMES[np.dtype(dtype)])
    array = n.rng.integers(low, high + 1, dims)
    if n.chance(0.15):
        array = np.where(n.rng.random(dims) < 0.5, low, high)
    return n.any_of(np.asarray(array).astype(dtype), low, high, constant)


def zero(n, dtype, dims=None):
    low, high = values.integer_range(values.NAMES[np.dtype(dtype)])
    dims = one(n) if dims is None else dims
    kind = n.rng.random()
    array = n.rng.integers(low, high + 1, dims)
    if kind < 0.45:
        array = np.full(dims, low if kind < 0.15 else high if kind < 0.3 else 0)
    return n.add(np.asarray(array).astype(dtype), 0.6)


def maybe_zero(n, dtype, probability=0.75):
    probability = max(probability, 0.93) if n.op in SCALARS else probability
    return zero(n, dtype) if n.chance(probability) else n.omit()


def start(n):
    n.ulps = 0
    if n.given is not None:
        raise Skip("shape")


@recipe("QuantizeLinear")
def quantize(n):
    start(n)
    dims = n.shape(1, 3, zeros=False)
    n.any_of(n.rng.uniform(-20, 20, dims).astype(n.dtype(0)))
    along = n.axis(len(dims)) if n.chance(0.5) else None
    own = one(n) if along is None else (dims[along],)
    if along is not None and not (along == 1 and n.chance(0.5)):
        n.attr("axis", along)
    scale(n, 0.05, 0.7, own, n.dtype(1))
    if n.out_type() != "uint8" or n.chance(0.7):
        zero(n, n.dtype(2), own)


@recipe("DequantizeLinear")
def dequantize(n):
    start(n)
    n.ulps = 2
    dims = n.shape(1, 3, zeros=False)
    low, high = (-500, 500) if n.type() == "int32" else (-70000, 70000)
    n.data(dims, low, high, at=0)
    along = n.axis(len(dims)) if n.chance(0.5) else None
    own = one(n) if along is None else (dims[along],)
    if along is not None and not (along == 1 and n.chance(0.5)):
        n.attr("axis", along)
    scale(n, 0.01, 0.5, own, n.dtype(1))
    if n.type() != "int32" and n.chance(0.7):
        zero(n, n.dtype(2), own)


@recipe("QLinearAdd", "QLinearMul")
def binary(n):
    start(n)
    left, right = values.broadcast_shapes(n.rng, 2)
    small(n, left, n.dtype())
    scale(n)
    maybe_zero(n, n.dtype())
    small(n, right, n.dtype(), 0.4)
    scale(n)
    maybe_zero(n, n.dtype())
    scale(n, 0.01, 0.3)
    maybe_zero(n, n.dtype())


@recipe("QLinearSigmoid", "QLinearLeakyRelu")
def unary(n):
    start(n)
    small(n, n.shape(0, 4), n.dtype())
    scale(n, 0.01, 0.3)
    maybe_zero(n, n.dtype())
    n.exact = False
    scale(n, 0.003, 0.01) if n.op == "QLinearSigmoid" else scale(n)
    maybe_zero(n, n.dtype())
    if n.op == "QLinearLeakyRelu":
        n.maybe("alpha", float(np.float32(n.rng.uniform(0.01, 1.5))))


@recipe("QLinearSoftmax")
def softmax(n):
    start(n)
    n.exact = False
    dims = n.shape(1, 4, zeros=False)
    small(n, dims, n.dtype())
    scale(n, 0.01, 0.2)
    maybe_zero(n, n.dtype())
    # ONNX Runtime takes the greatest integer below 1 / scale.
    n.add(np.asarray(1 / 256 if n.chance(0.8) else 1 / n.integer(100, 300), np.float32), 0.6)
    zero(n, n.dtype()) if n.chance(0.3) else n.add(np.asarray(values.integer_range(n.type())[0], n.dtype()), 0.6)
    n.attr("opset", n.pick(11, 12, 13, 17))
    if n.chance(0.7):
        n.attr("axis", n.axis(len(dims)))


@recipe("QLinearReduceMean")
def reduce_mean(n):
    start(n)
    dims = n.shape(1, 4, zeros=False)
    small(n, dims, n.dtype())
    scale(n)
    maybe_zero(n, n.dtype())
    scale(n)
    maybe_zero(n, n.dtype())
    count = n.integer(1, len(dims))
    axes = n.rng.choice(len(dims), count, replace=False)
    n.attr("axes", [int(axis) - (len(dims) if n.chance(0.3) else 0) for axis in axes])
    n.attr("keepdims", n.integer(0, 1))


@recipe("QLinearWhere")
def where(n):
    start(n)
    shapes = values.broadcast_shapes(n.rng, 3)
    n.add(np.asarray(n.rng.random(shapes[0]) < 0.5))
    for dims in shapes[1:]:
        small(n, dims, n.dtype(1), 0.3)
        scale(n)
        zero(n, n.dtype(1))
    scale(n)
    zero(n, n.dtype(1))
    # ONNX Runtime crashes if only some of the parameters are constants.
    constant = n.chance(0.9)
    n.inputs = [(array, constant if at not in (0, 1, 4) else known) for at, (array, known) in enumerate(n.inputs)]


@recipe("QLinearConcat")
def concat(n):
    start(n)
    own = np.dtype(n.out_type())
    scale(n)
    zero(n, own)
    dims = list(n.shape(1, 4, zeros=False))
    axis = n.axis(len(dims))
    n.attr("axis", axis)
    for _ in range(n.integer(1, 4)):
        dims[axis] = n.integer(1, 5)
        kind = own if n.chance(0.85) else np.dtype(n.pick("uint8", "int8"))
        small(n, tuple(dims), kind)
        if n.chance(0.3):
            # As the result's: elements are copied.
            n.add(n.inputs[0][0], 0.6)
            kind == own and n.add(n.inputs[1][0], 0.6) is not None or zero(n, kind)
        else:
            scale(n)
            zero(n, kind)


def windows(n, spatial, dilated):
    """Kernel, strides, dilations, pads, and sizes that they fit."""
    kernel = [n.integer(1, 3) for _ in range(spatial)]
    dilations = [n.integer(1, 2) if dilated and n.chance(0.3) else 1 for _ in range(spatial)]
    sizes = [(k - 1) * d + n.integer(1, 5) for k, d in zip(kernel, dilations)]
    if n.chance(0.5):
        n.attr("strides", [n.integer(1, 3) for _ in range(spatial)])
    if dilated and (max(dilations) > 1 or n.chance(0.3)):
        n.attr("dilations", dilations)
    kind = n.rng.random()
    if kind < 0.5:
        n.attr("pads", [n.integer(0, k - 1) for k in kernel + kernel])
    elif kind < 0.7 and max(dilations) == 1:
        n.attr("auto_pad", n.pick("SAME_UPPER", "SAME_LOWER", "VALID"))
    return kernel, sizes


def image(n, batch, channels, sizes):
    """Shape of an image, channels first or last."""
    if n.chance(0.4):
        n.attr("channels_last", 1)
        return (batch, *sizes, channels)
    return (batch, channels, *sizes)


@recipe("QLinearConv")
def conv(n):
    start(n)
    n.types["T3"] = n.types["T1"] if n.chance(0.9) else n.types["T3"]
    kernel, sizes = windows(n, n.integer(1, 3), True)
    groups = n.pick(1, 1, 1, 2, 3)
    each, filters = n.integer(1, 5) if n.chance(0.7) else 1, groups * n.integer(1, 4)
    if groups > 1 or n.chance(0.2):
        n.attr("group", groups)
    if n.chance(0.5):
        n.attr("kernel_shape", kernel)
    small(n, image(n, n.integer(1, 2), groups * each, sizes), n.dtype(0))
    scale(n)
    zero(n, n.dtype(2))
    small(n, (filters, each, *kernel), n.dtype(3), 0.8)
    per = (filters,) if n.chance(0.5) else one(n)
    scale(n, dims=per)
    zero_of_weights(n, n.dtype(5), per)
    scale(n, 0.05, 2.0)
    zero(n, n.dtype(7))
    if n.chance(0.5):
        n.add(n.rng.integers(-3000, 3000, filters).astype(np.int32), 0.8)


def zero_of_weights(n, dtype, dims):
    """Of one value, which ONNX Runtime's kernels take alone."""
    array = zero(n, dtype, ())
    _, constant = n.inputs.pop()
    if n.chance(0.1) and len(dims):
        return zero(n, dtype, dims)
    n.inputs.append((np.full(dims, array, dtype), constant))


@recipe("QLinearAveragePool")
def average_pool(n):
    start(n)
    kernel, sizes = windows(n, n.integer(1, 3), False)
    n.attr("kernel_shape", kernel)
    if "auto_pad" not in n.attributes:
        n.maybe("ceil_mode", 1, 0.3)
    n.maybe("count_include_pad", n.integer(0, 1))
    small(n, image(n, n.integer(1, 2), n.integer(1, 5), sizes), n.dtype())
    scale(n)
    maybe_zero(n, n.dtype())
    scale(n)
    maybe_zero(n, n.dtype())


@recipe("QLinearGlobalAveragePool")
def global_average_pool(n):
    start(n)
    sizes = [n.integer(1, 9) for _ in range(n.integer(1, 3))]
    small(n, image(n, n.integer(1, 3), n.integer(1, 20), sizes), n.dtype())
    scale(n)
    zero(n, n.dtype())
    scale(n)
    zero(n, n.dtype())


def extents(n):
    return n.integer(1, 6), n.integer(1, 70) if n.chance(0.3) else n.integer(1, 12), n.integer(1, 20)


@recipe("QGemm")
def gemm(n):
    start(n)
    rows, depth, columns = extents(n)
    if n.chance(0.8):
        n.types["TYZ"] = n.types["TA"]
        n.types["TB"] = n.types["TB"] if n.types["TA"] == "uint8" else "int8"
    over = lambda a, b, name: (b, a) if n.maybe(name, n.integer(0, 1), 0.5) else (a, b)
    small(n, over(rows, depth, "transA"), n.dtype(0))
    scale(n)
    zero(n, n.dtype(2))
    small(n, over(depth, columns, "transB"), n.dtype(3), 0.8)
    per = (columns,) if n.chance(0.5) else one(n)
    scale(n, dims=per)
    zero_of_weights(n, n.dtype(5), per)
    n.maybe("alpha", float(np.float32(n.pick(0.5, 2.0, 1.0) if n.exact else n.rng.uniform(0.1, 2))), 0.4)
    if n.chance(0.6):
        dims = n.pick((rows, columns), (columns,), (1, columns), (rows, 1), (1,), ())
        n.add(n.rng.integers(-3000, 3000, dims).astype(np.int32), 0.8)
    elif n.chance(0.8):
        n.omit()
    if n.chance(0.6):
        while len(n.inputs) < 7:
            n.omit()
        scale(n, 0.05, 3.0)
        zero(n, n.dtype(8))
        n.types["TY"] = n.types["TYZ"]
    else:
        n.types["TY"] = "float"
        n.ulps, n.scale_ulps = 4, 4


def operands(n, float_first):
    """Shapes of a product, and where its columns are."""
    rows, depth, columns = extents(n)
    lead = n.shape(0, 2, zeros=False)[:2]
    lead = tuple(min(size, 4) for size in lead)
    left = lead + (rows, depth)
    right = (lead if n.chance(0.25) else ()) + (depth, columns)
    return left, right, columns


@recipe("MatMulIntegerToFloat")
def integer_to_float(n):
    start(n)
    n.ulps, n.scale_ulps = 4, 4
    if n.chance(0.6):
        n.types["T1"], n.types["T3"] = "uint8", "float"
    left, right, columns = operands(n, False)
    small(n, left, n.dtype(0))
    small(n, right, n.dtype(1), 0.8)
    kind = n.dtype(2)
    n.exact = False
    scale(n, 0.001, 0.02, kind=kind)
    per = (columns,) if n.chance(0.4) else one(n)
    scale(n, 0.001, 0.02, per, kind)
    maybe_zero(n, n.dtype(4), 0.6)
    zero(n, n.dtype(5), per) if n.chance(0.6) else n.omit()
    if n.chance(0.5):
        n.add(n.rng.uniform(-3, 3, columns).astype(kind), 0.8)


@recipe("DynamicQuantizeMatMul")
def dynamic_matmul(n):
    start(n)
    n.ulps, n.scale_ulps = 8, 8
    left, right, columns = operands(n, True)
    sign = n.pick((-3, 3), (0.5, 4), (-4, -0.5), (-0.01, 9))
    n.any_of(n.rng.uniform(*sign, left).astype(np.float32))
    small(n, right, n.dtype(1), 0.8)
    n.exact = False
    per = (columns,) if n.chance(0.4) else one(n)
    scale(n, 0.001, 0.1, per)
    zero(n, n.dtype(3), per) if n.chance(0.6) else n.omit()
    if n.chance(0.5):
        n.add(n.rng.uniform(-3, 3, columns).astype(np.float32), 0.8)


@recipe("MatMulNBits")
def n_bits(n):
    start(n)
    n.ulps, n.scale_ulps = 8, 32
    if n.chance(0.7):
        n.types["T1"] = n.pick("float", "float", "float", "float16")
    kind = n.dtype(0)
    bits, block = n.pick(2, 4, 4, 8), n.pick(16, 16, 32, 64, 128)
    if n.chance(0.05):
        block = n.pick(4, 8, 12, 24)
    k, columns = n.pick(block, 2 * block, n.integer(1, 150)), n.integer(1, 20)
    if n.chance(0.3):
        # Enough elements for the weights to stay in their few bits.
        k, columns = block * n.integer(2, 6) - n.pick(0, 0, 0, 1), n.integer(40, 140)
    blocks = -(-k // block)
    n.attr("K", k)
    n.attr("N", columns)
    n.attr("block_size", block)
    if bits != 4 or n.chance(0.5):
        n.attr("bits", bits)
    n.maybe("accuracy_level", n.pick(0, 1, 2, 3) if n.chance(0.85) else 4, 0.4)
    lead = n.shape(0, 2, zeros=False)
    n.any_of(n.rng.uniform(-2, 2, tuple(min(size, 6) for size in lead) + (n.integer(1, 5), k)).astype(kind))
    small(n, (columns, blocks, block * bits // 8), np.uint8, 0.8)
    table = (columns, blocks) if n.chance(0.6) else (columns * blocks,)
    n.add(n.rng.uniform(-0.1 if n.chance(0.3) else 0.01, 0.1, table).astype(kind), 0.8)
    zeros, group, bias = n.rng.random(), n.chance(0.2), n.chance(0.3)
    if zeros < 0.45:
        row = -(-blocks * bits // 8)
        n.types["T3"] = "uint8"
        small(n, (columns, row) if n.chance(0.6) else (columns * row,), np.uint8, 0.8)
    elif zeros < 0.6:
        n.types["T3"] = n.types["T1"]
        n.add(n.rng.uniform(0, 2**bits, table).astype(kind), 0.8)
    elif group or bias:
        n.omit()
    if group:
        count = k if n.chance(0.6) else blocks * block
        # By element, or by block, which ONNX Runtime reads alone.
        own = n.rng.integers(0, blocks, count) if n.chance(0.4) else n.rng.permutation(blocks).repeat(block)[:count]
        n.add(own.astype(np.int32), 0.8)
    elif bias:
        while len(n.inputs) < 5:
            n.omit()
    if bias:
        n.add(n.rng.uniform(-3, 3, columns).astype(kind), 0.8)


@recipe("MatMulBnb4")
def bnb4(n):
    start(n)
    n.ulps, n.scale_ulps = 8, 32
    if n.chance(0.7):
        n.types["T1"] = "float"
    kind = n.dtype(0)
    block = n.pick(16, 32, 64, 128, 256)
    k, columns = n.integer(1, 80), n.integer(1, 20)
    for name, value in (("K", k), ("N", columns), ("block_size", block), ("quant_type", n.integer(0, 1))):
        n.attr(name, value)
    if n.chance(0.1):
        n.attr("transB", 0)
    n.maybe("training_mode", n.integer(0, 1), 0.2)
    lead = tuple(min(size, 6) for size in n.shape(0, 2, zeros=False))
    inner = columns if n.attributes.get("transB") == 0 else k
    n.any_of(n.rng.uniform(-2, 2, lead + (n.integer(1, 5), inner)).astype(kind))
    small(n, (-(-k * columns // 2),), np.uint8, 0.8)
    n.add(n.rng.uniform(0.1, 3, -(-k * columns // block)).astype(kind), 0.8)


@recipe("GatherBlockQuantized")
def gather(n):
    start(n)
    n.ulps = 2
    if n.chance(0.6):
        n.types["T1"] = n.pick("uint8", "uint4", "int4")
    if n.chance(0.8):
        n.types["T2"] = n.pick("float", "float16")
    kind = n.types["T1"]
    floats, packs = kind.startswith("float"), kind == "uint8"
    rank = n.integer(2, 4)
    dims = [n.integer(1, 5) for _ in range(rank)]
    axis = rank - 1 if packs else n.integer(0, rank - 1)
    picked = 0 if packs else n.integer(0, rank - 1)
    if picked == axis and (packs or n.chance(0.7)):
        picked = (axis + 1) % rank if not packs else 0
    bits = n.pick(2, 4, 8) if packs else 4
    block = n.pick(16, 32, 64)
    if floats and n.chance(0.3):
        block = 0
    dims[axis] = n.integer(1, 40)
    per = 8 // bits if packs else 1
    n.attr("block_size", block)
    if bits != 4 or n.chance(0.3):
        n.attr("bits", bits)
    if axis != 1 or n.chance(0.3):
        n.attr("quantize_axis", axis - (rank if n.chance(0.3) else 0))
    if picked != 0 or n.chance(0.3):
        n.attr("gather_axis", picked - (rank if n.chance(0.3) else 0))
    if floats:
        n.data(tuple(dims), -6, 6, at=0, edge=0, constant=0.8)
    else:
        small(n, tuple(dims), n.dtype(0), 0.8)
    indices = n.rng.integers(-dims[picked], dims[picked], n.shape(0, 2, zeros=False))
    n.add(np.asarray(indices).astype(n.dtype(1)), 0.3)
    counts = list(dims)
    counts[axis] = 1 if block == 0 else -(-dims[axis] * per // block)
    if floats and n.chance(0.3):
        at = n.integer(0, rank - 1)
        counts[at] = 1 if at != axis else counts[at]
    n.add(n.rng.uniform(-0.1 if n.chance(0.3) else 0.01, 0.1, counts).astype(n.dtype(2)), 0.8)
    if not floats and n.chance(0.6):
        counts[axis] = -(-counts[axis] // per)
        small(n, tuple(counts), n.dtype(0), 0.8)


def mask(n, batch, steps, keys):
    """Which keys are seen: their number, their end and start, or flags of keys or of queries and keys."""
    form = n.pick("", "", "length", "ends", "keys", "queries", "dummy")
    lengths = n.rng.integers(1, keys + 1, batch)
    if form == "length":
        n.add(lengths.astype(np.int32))
    elif form == "ends":
        n.add(np.concatenate([lengths, n.rng.integers(0, lengths)]).astype(np.int32))
    elif form in ("keys", "queries"):
        flags = (n.rng.random((batch, keys) if form == "keys" else (batch, steps, keys)) < 0.7).astype(np.int32)
        flags[..., 0] = 1
        n.add(flags)
    elif form == "dummy":
        n.add(np.ones((n.pick(batch, 1), 1), np.int32))
    else:
        n.omit()


@recipe("QAttention")
def attention(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps, n.outputs = False, 32, 32, n.integer(1, 2)
    if n.chance(0.7):
        n.types["T1"], n.types["T3"] = "uint8", "float"
    kind = n.dtype(2)
    batch, steps, width = n.integer(1, 3), n.integer(1, 6), n.integer(1, 12)
    heads, each = n.integer(1, 3), n.integer(1, 6)
    hidden = heads * each
    n.attr("num_heads", heads)
    n.maybe("unidirectional", n.integer(0, 1), 0.5)
    n.maybe("scale", float(np.float32(n.rng.uniform(0.1, 1))), 0.2)
    n.maybe("mask_filter_value", n.pick(-10000.0, -1000.0), 0.2)
    small(n, (batch, steps, width), n.dtype(0))
    small(n, (width, 3 * hidden), n.dtype(1), 0.8)
    n.add(n.rng.uniform(-1, 1, 3 * hidden).astype(kind), 0.8)
    scale(n, 0.001, 0.02, kind=kind)
    per = (3 * hidden,) if n.chance(0.4) else one(n)
    scale(n, 0.001, 0.02, per, kind)
    past = n.integer(0, 4) if n.chance(0.4) else None
    mask(n, batch, steps, steps + (past or 0))
    maybe_zero(n, n.dtype(6), 0.6)
    zero(n, n.dtype(7), per) if n.chance(0.6) else n.omit()
    if past is not None:
        n.outputs = 2
        n.add(n.rng.uniform(-1, 1, (2, batch, heads, past, each)).astype(kind))


@recipe("Attention")
def float_attention(n):
    n.exact, n.ulps, n.scale_ulps, n.outputs = False, 32, 32, n.integer(1, 2)
    n.types["T"], n.types["M"] = "float", "int32"
    batch, steps, width = n.integer(1, 3), n.integer(1, 6), n.integer(1, 12)
    heads, each = n.integer(1, 3), n.integer(1, 6)
    sizes = [heads * each] * 3
    past = n.integer(0, 4) if n.chance(0.4) else None
    if past is None and n.chance(0.2):
        sizes[2], n.outputs = heads * n.integer(1, 6), 1
        n.attr("qkv_hidden_sizes", sizes)
    n.attr("num_heads", heads)
    n.maybe("unidirectional", n.integer(0, 1), 0.5)
    n.maybe("scale", float(np.float32(n.rng.uniform(0.1, 1))), 0.2)
    n.maybe("mask_filter_value", n.pick(-10000.0, -1000.0), 0.2)
    reals = lambda dims, known=0.0: n.any_of(n.rng.uniform(-1, 1, dims).astype(np.float32), constant=known)
    reals((batch, steps, width))
    reals((width, sum(sizes)), 0.8)
    # ONNX Runtime does not survive a missing bias.
    reals((sum(sizes),), 0.8)
    keys = steps + (past or 0)
    mask(n, batch, steps, keys)
    if past is not None:
        n.outputs = 2
        reals((2, batch, heads, past, each))
    else:
        n.omit()
    if n.chance(0.3):
        reals((n.pick(1, batch), n.pick(1, heads), steps, keys))


@recipe("EmbedLayerNormalization")
def float_embed(n):
    n.exact, n.ulps, n.scale_ulps, n.outputs = False, 32, 32, n.integer(2, 3)
    n.types["T"], n.types["T1"] = "float", "int32"
    batch, steps, hidden = n.integer(1, 3), n.integer(1, 6), n.integer(2, 20)
    words, places, kinds = n.integer(1, 30), steps + n.integer(0, 4), n.integer(1, 3)
    segments = n.chance(0.6)
    ids = lambda most, rows=batch: n.add(n.rng.integers(0, most, (rows, steps)).astype(np.int32))
    reals = lambda dims: n.add(n.rng.uniform(-1, 1, dims).astype(np.float32), 0.8)
    ids(words)
    ids(kinds) if segments else n.omit()
    reals((words, hidden))
    reals((places, hidden))
    reals((kinds, hidden)) if segments else n.omit()
    reals((hidden,))
    reals((hidden,))
    n.add((n.rng.random((batch, steps)) < 0.7).astype(np.int32)) if n.chance(0.6) else n.omit()
    if n.chance(0.4):
        ids(places, n.pick(1, batch))
    n.maybe("epsilon", float(np.float32(n.pick(1e-5, 1e-12, 0.1))))


@recipe("SkipLayerNormalization")
def skip_layer(n):
    n.exact, n.ulps, n.scale_ulps = False, 32, 32
    n.types["T"] = "float"
    dims = (n.integer(1, 3), n.integer(1, 6), n.integer(2, 20))[n.integer(0, 1):]
    reals = lambda dims, known=0.0: n.any_of(n.rng.uniform(-1, 1, dims).astype(np.float32), constant=known)
    reals(dims)
    reals(dims if len(dims) == 2 or n.chance(0.7) else n.pick(dims[1:], (1, *dims[1:])))
    reals(dims[-1:], 0.8)
    reals(dims[-1:], 0.8) if n.chance(0.8) else n.omit()
    if n.chance(0.6):
        reals(dims[-1:], 0.8)
    n.maybe("epsilon", float(np.float32(n.pick(1e-5, 1e-12, 0.1))))


@recipe("FastGelu")
def fast_gelu(n):
    n.exact, n.ulps, n.scale_ulps, n.magnitude = False, 32, 32, GELU_MAGNITUDE
    n.types["T"] = "float"
    dims = n.shape(1, 3, zeros=False)
    n.any_of(n.rng.uniform(-4, 4, dims).astype(np.float32))
    if n.chance(0.6):
        n.add(n.rng.uniform(-1, 1, dims[-1:]).astype(np.float32), 0.8)


@recipe("QEmbedLayerNormalization")
def embed(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps, n.outputs = False, 32, 32, 2
    batch, steps, hidden = n.integer(1, 3), n.integer(1, 6), n.integer(2, 20)
    words, places, kinds = n.integer(1, 30), steps + n.integer(0, 4), n.integer(1, 3)
    kind, segments = n.dtype(2), n.chance(0.6)
    ids = lambda most: n.add(n.rng.integers(0, most, (batch, steps)).astype(np.int32))
    ids(words)
    ids(kinds) if segments else n.omit()
    small(n, (words, hidden), kind, 0.8)
    small(n, (places, hidden), kind, 0.8)
    small(n, (kinds, hidden), kind, 0.8) if segments else n.omit()
    small(n, (hidden,), kind, 0.8)
    small(n, (hidden,), kind, 0.8)
    n.add((n.rng.random((batch, steps)) < 0.7).astype(np.int32)) if n.chance(0.6) else n.omit()
    for present in (True, True, segments, True, True):
        scale(n) if present else n.omit()
    for present in (True, True, segments, True, True):
        zero(n, kind) if present else n.omit()
    n.maybe("epsilon", float(np.float32(n.pick(1e-5, 1e-12, 0.1))))


@recipe("DynamicQuantizeLSTM")
def lstm(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps, n.outputs = False, 64, 256, 3
    steps, batch, width, hidden = n.integer(1, 4), n.integer(1, 3), n.integer(1, 6), n.integer(1, 5)
    n.attr("hidden_size", hidden)
    direction = n.maybe("direction", n.pick("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1
    n.maybe("input_forget", 1, 0.15)
    n.maybe("clip", 0.9, 0.15)
    n.any_of(n.rng.uniform(-2, 2, (steps, batch, width)).astype(np.float32))
    small(n, (count, width, 4 * hidden), n.dtype(1), 0.8)
    small(n, (count, hidden, 4 * hidden), n.dtype(2), 0.8)
    optional = lambda dims, p: n.add(n.rng.uniform(-1, 1, dims).astype(np.float32), 0.5) if n.chance(p) else n.omit()
    optional((count, 8 * hidden), 0.6)
    if n.chance(0.25):
        n.add(np.full(batch, steps, np.int32) if n.chance(0.5) else n.rng.integers(1, steps + 1, batch).astype(np.int32))
    else:
        n.omit()
    optional((count, batch, hidden), 0.5)
    optional((count, batch, hidden), 0.5)
    optional((count, 3 * hidden), 0.3)
    for at in (9, 11):
        per = (count, 4 * hidden) if n.chance(0.4) else (count,)
        scale(n, 0.001, 0.02, per)
        # Of weights by column: i8 around 0, or u8 around one number.
        if len(per) == 1 and n.chance(0.5):
            zero(n, n.dtype(at), per)
        else:
            n.add(np.full(per, 0 if n.type(at) == "int8" else n.integer(0, 255), n.dtype(at)), 0.6)
