"""Recipes of operators of com.microsoft that join several steps: activations with biases, fused convolutions and products."""

import numpy as np

import values
from case import Skip
from microsoft import windows
from vendor import GELU_MAGNITUDE, floats, recipe, single32


def begin(n, ulps=32, floating="T"):
    """Tolerances; mostly f32, which ONNX Runtime has kernels for."""
    if n.given is not None:
        raise Skip("shape")
    n.ulps, n.scale_ulps, n.exact = ulps, ulps, False
    if n.types.get(floating) in values.FLOATS and n.chance(0.6):
        n.types[floating] = "float"


@recipe("Gelu", "QuickGelu")
def gelu(n):
    begin(n)
    n.magnitude = GELU_MAGNITUDE
    floats(n, n.shape(0, 4), -6, 6, n.dtype())
    if n.op == "QuickGelu":
        n.maybe("alpha", single32(n.rng.uniform(0.5, 2)))


@recipe("BiasGelu")
def bias_gelu(n):
    begin(n)
    n.magnitude = GELU_MAGNITUDE
    dims = n.shape(1, 4)
    floats(n, dims, -4, 4, n.dtype())
    floats(n, dims[-1:], -1, 1, n.dtype(), 0.8)


@recipe("BiasSplitGelu")
def bias_split_gelu(n):
    begin(n)
    half = n.integer(1, 20)
    floats(n, (n.integer(1, 3), n.integer(1, 5), 2 * half), -4, 4, n.dtype())
    floats(n, (2 * half,), -1, 1, n.dtype(), 0.8)


@recipe("GemmFastGelu")
def gemm_fast_gelu(n):
    begin(n)
    left, right = products(n)
    floats(n, left, -1, 1, n.dtype())
    floats(n, right, -1, 1, n.dtype(), 0.7)
    if n.chance(0.6):
        floats(n, right[-1:], -1, 1, n.dtype(), 0.8)


@recipe("BiasAdd")
def bias_add(n):
    begin(n, 4)
    dims = n.shape(3, 3)
    floats(n, dims, kind=n.dtype())
    floats(n, dims[-1:], kind=n.dtype(), constant=0.8)
    floats(n, dims, kind=n.dtype())


@recipe("BiasSoftmax")
def bias_softmax(n):
    begin(n)
    dims = n.shape(2, 4, zeros=False)
    axis = n.integer(1, len(dims) - 1)
    inner, cut = n.chance(0.5), n.integer(0, axis)
    own = dims[:cut] + (1,) * (axis - cut) + dims[axis:] if inner else (1,) * cut + dims[cut:]
    n.attr("is_inner_broadcast", int(inner))
    if axis != 1 or n.chance(0.5):
        n.attr("axis", axis - (len(dims) if n.chance(0.3) else 0))
    floats(n, dims, -4, 4, n.dtype())
    floats(n, own, -4, 4, n.dtype())


@recipe("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout")
def dropout(n):
    begin(n, 4)
    n.outputs = n.integer(1, 2)
    dims = n.shape(1, 4)
    floats(n, dims, kind=n.dtype())
    if n.op != "BitmaskDropout":
        floats(n, dims[-1:], kind=n.dtype(), constant=0.8)
        floats(n, dims, kind=n.dtype()) if n.chance(0.6) else n.omit()
    if n.chance(0.5):
        floats(n, (), 0.1, 0.9, n.dtype(len(n.inputs)), 0.8)
        if n.chance(0.5):
            n.add(np.array(False), 1.0)


@recipe("GatedAdd")
def gated_add(n):
    begin(n)
    dims = n.shape(1, 4)
    floats(n, dims, kind=n.dtype())
    floats(n, dims, kind=n.dtype())
    if n.chance(0.5):
        floats(n, (*dims[:-1], 1), kind=n.dtype())
    else:
        depth = n.integer(1, 8)
        floats(n, (*dims[:-1], depth), kind=n.dtype())
        floats(n, (depth, 1), kind=n.dtype(), constant=0.7)


@recipe("ScaledSiLU")
def scaled_silu(n):
    begin(n)
    floats(n, n.shape(0, 4), -4, 4, n.dtype())
    n.maybe("alpha", single32(n.rng.uniform(0.1, 2)))
    if n.chance(0.5):
        floats(n, (), 0.1, 2, n.dtype(1), 0.5)


@recipe("SwiGLU")
def swiglu(n):
    begin(n)
    dims, apart = n.shape(1, 4), n.chance(0.5)
    floats(n, dims if apart else (*dims[:-1], 2 * dims[-1]), -6, 6, n.dtype())
    if apart:
        floats(n, dims, -6, 6, n.dtype())
    for name, value in (("activation_alpha", 1.702), ("activation_beta", 1.0), ("limit", n.pick(3.0, -1.0, 7.0))):
        n.maybe(name, single32(value), 0.4)
    n.maybe("round_activation", 1, 0.3)


CONV_ACTIVATIONS = {"Relu": 0, "Silu": 0, "Tanh": 0, "Sigmoid": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}


def conv_activation(n, probability=0.8):
    if not n.chance(probability):
        return
    name = n.pick(*CONV_ACTIVATIONS)
    n.attr("activation", name)
    params = {"LeakyRelu": [0.1], "Clip": [-0.5, 1.5], "HardSigmoid": [0.3, 0.4]}.get(name)
    if params:
        n.attr("activation_params", [single32(param) for param in params])


@recipe("FusedConv", "NhwcConv", "NhwcFusedConv")
def conv(n):
    begin(n)
    is_last = n.op != "FusedConv"
    kernel, sizes = windows(n, n.integer(1, 3) if not is_last or n.chance(0.3) else 2, True)
    groups = n.pick(1, 1, 1, 2, 3)
    each, filters = n.integer(1, 5) if n.chance(0.7) else 1, groups * n.integer(1, 4)
    if groups > 1 or n.chance(0.2):
        n.attr("group", groups)
    if n.chance(0.5):
        n.attr("kernel_shape", kernel)
    batch = n.integer(1, 2)
    dims = (batch, *sizes, groups * each) if is_last else (batch, groups * each, *sizes)
    floats(n, dims, -1, 1, n.dtype())
    floats(n, (filters, each, *kernel), -1, 1, n.dtype(), 0.8)
    fused = n.op != "NhwcConv"
    adds = fused and n.chance(0.4)
    if n.chance(0.6):
        floats(n, (filters,), -1, 1, n.dtype(), 0.8)
    elif adds:
        n.omit()
    if fused:
        conv_activation(n)
    if adds:
        from definitions_fused import conv_shape
        out = conv_shape(n, sizes, kernel)
        floats(n, (batch, *out, filters) if is_last else (batch, filters, *out), -1, 1, n.dtype())


@recipe("NhwcMaxPool")
def max_pool(n):
    begin(n)
    n.ulps = n.scale_ulps = 0
    kernel, sizes = windows(n, n.integer(1, 3), True)
    n.attr("kernel_shape", kernel)
    if "auto_pad" not in n.attributes:
        n.maybe("ceil_mode", 1, 0.3)
    n.data((n.integer(1, 2), *sizes, n.integer(1, 5)), -128, 255, at=0)


def products(n, low=2):
    """Shapes of two operands of a product."""
    lead = tuple(min(size, 4) for size in n.shape(0, 2, zeros=False))
    rows, depth, columns = n.integer(1, 6), n.integer(1, 20), n.integer(1, 9)
    return lead + (rows, depth), (lead if n.chance(0.3) else ()) + (depth, columns)


PRODUCT_ACTIVATIONS = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "Softsign": {}, "Softplus": {}, "LeakyRelu": {"alpha": 0.1},
    "ThresholdedRelu": {"alpha": 0.4}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "Elu": {"alpha": 0.7},
    "Celu": {"alpha": 0.7}, "Selu": {"alpha": 1.5, "gamma": 1.2},
}


def product_activation(n):
    name = n.pick(*PRODUCT_ACTIVATIONS) if n.types["T"] in ("float", "double", "float16", "bfloat16") else "Relu"
    n.attr("activation", name)
    for constant, value in PRODUCT_ACTIVATIONS[name].items():
        n.attr(f"activation_{constant}", single32(value))


@recipe("FusedGemm")
def gemm(n):
    begin(n)
    if n.chance(0.6):
        n.types["T"] = "float"
    integers = n.types["T"] in ("int32", "int64", "uint32", "uint64")
    operand = lambda dims, known: (
        n.data(dims, 0 if n.types["T"].startswith("u") else -9, 9, at=0, edge=0, constant=known) if integers
        else floats(n, dims, -1, 1, n.dtype(), known))
    rows, depth, columns = n.integer(1, 6), n.integer(1, 20), n.integer(1, 9)
    over = lambda a, b, name: (b, a) if n.maybe(name, n.integer(0, 1), 0.5) else (a, b)
    operand(over(rows, depth, "transA"), 0.1)
    operand(over(depth, columns, "transB"), 0.7)
    if n.chance(0.7):
        operand(n.pick((rows, columns), (columns,), (1, columns), (rows, 1), (1,), ()), 0.8)
    n.maybe("alpha", 2.0 if integers else single32(n.rng.uniform(0.1, 2)), 0.5)
    n.maybe("beta", 3.0 if integers else single32(n.pick(0.0, 0.5, 2)), 0.5)
    if n.chance(0.95):
        product_activation(n)


@recipe("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def mat_mul(n):
    begin(n)
    rank = n.integer(2, 4)
    lead = tuple(n.integer(1, 3) for _ in range(rank - 2))
    rows, depth, columns = n.integer(1, 6), n.integer(1, 20), n.integer(1, 9)
    def laid_out(batch, a, b, letter):
        """Dims whose axes, transposed as attributes say, are batch, a and b."""
        last = [a, b]
        if n.maybe(f"trans{letter}", n.integer(0, 1), 0.5):
            last = [b, a]
        dims = [*batch, *last]
        if n.has(f"transBatch{letter}") and len(dims) > 2 and n.chance(0.4):
            n.attr(f"transBatch{letter}", 1)
            dims.insert(0, dims.pop(-2))
        return tuple(dims)
    if n.chance(0.08):
        floats(n, (depth,), -1, 1, n.dtype())
    else:
        floats(n, laid_out(lead, rows, depth, "A"), -1, 1, n.dtype())
    if n.chance(0.08):
        floats(n, (depth,), -1, 1, n.dtype())
    else:
        floats(n, laid_out(lead if n.chance(0.7) else (), depth, columns, "B"), -1, 1, n.dtype(), 0.5)
    n.maybe("alpha", single32(n.rng.uniform(0.1, 2)), 0.6)
    if n.op == "FusedMatMulActivation":
        product_activation(n)


@recipe("GroupNorm", "SkipGroupNorm")
def group_norm(n):
    begin(n)
    n.exact, n.ulps, n.scale_ulps = False, 64, 64
    groups, each = n.integer(1, 4), n.integer(1, 5)
    channels = groups * each
    batch, height, width = n.integer(1, 2), n.integer(2, 5), n.integer(1, 5)
    is_last = n.chance(0.6)
    if not is_last or n.chance(0.5):
        n.attr("channels_last", int(is_last))
    image = lambda h, w: (batch, h, w, channels) if is_last else (batch, channels, h, w)
    n.attr("activation", n.integer(0, 1))
    n.attr("groups", groups)
    n.maybe("epsilon", single32(n.pick(1e-5, 1e-3, 0.1)))
    floats(n, image(height, width), -2, 2, n.dtype())
    floats(n, (channels,), 0.5, 2, n.dtype(1), 0.8)
    floats(n, (channels,), -1, 1, n.dtype(1), 0.8)
    if n.op == "SkipGroupNorm":
        n.outputs = n.integer(1, 2)
        floats(n, n.pick(image(height, width), image(1, 1), (batch, channels)), -1, 1, n.dtype())
        if n.chance(0.6):
            floats(n, (channels,), -1, 1, n.dtype(), 0.8)
