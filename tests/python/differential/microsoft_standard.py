"""Recipes of operators of com.microsoft that resemble those of the standard, and of its arithmetic."""

import numpy as np

import values
from case import Skip
from microsoft import small, windows
from microsoft_fused import begin, products
from vendor import floats, recipe, single32


def exactly(n, floating="T"):
    begin(n, 0, floating)
    # Of all types, those that ONNX Runtime has kernels for.
    choices = {kind for own in n.schema.type_constraints if own.type_param_str == "T" for kind in own.allowed_type_strs}
    if {"tensor(float)", "tensor(int64)"} <= choices and n.chance(0.5):
        n.types["T"] = n.pick("float", "int64")


@recipe("Trilu")
def trilu(n):
    exactly(n)
    n.data(n.shape(2, 4), at=0)
    n.maybe("upper", n.integer(0, 1))
    if n.chance(0.6):
        n.add(np.asarray(n.integer(-5, 5), np.int64), 0.7)


@recipe("Range")
def range_(n):
    begin(n, 4)
    dtype = n.dtype()
    delta = n.pick(1, 2, 3, -1, -2)
    start = n.integer(-9, 9)
    limit = start + delta * n.integer(0, 12) + (n.pick(0, 1) if delta > 0 else 0)
    if dtype.kind == "f" and n.chance(0.5):
        # Bounds between two steps.
        start, limit = start + 0.25, limit + 0.375
    # A vector of one element is refused by its inference.
    one = lambda value: n.add(np.asarray(value, dtype), 0.7)
    one(start)
    one(limit)
    if delta != 1 or n.chance(0.5):
        one(delta)


@recipe("Pad")
def pad(n):
    exactly(n)
    dims = n.shape(1, 4, zeros=False)
    mode = n.maybe("mode", n.pick("constant", "reflect", "edge"))
    pads = np.array([n.integer(0, size - 1 if mode == "reflect" else 3) for size in dims + dims], np.int64)
    if mode in (None, "constant") and n.chance(0.2):
        pads[n.integer(0, len(dims) - 1)] = -1
    floats(n, dims, kind=n.dtype())
    n.add(pads if n.chance(0.7) else pads[None], 0.8)
    if n.chance(0.5):
        floats(n, n.pick((), (1,)), kind=n.dtype(), constant=0.7)


@recipe("Unique")
def unique(n):
    exactly(n)
    n.outputs = 3
    n.data((n.integer(1, 20),), -4, 4, at=0)
    array, known = n.inputs[0]
    if array.dtype.kind == "f":
        n.inputs[0] = (np.round(array), known)


@recipe("GatherND")
def gather_nd(n):
    exactly(n)
    dims = n.shape(1, 4, zeros=False)
    n.data(dims, at=0)
    depth = n.integer(1, len(dims))
    lead = tuple(min(size, 5) for size in n.shape(0, 2, zeros=False))
    parts = [n.rng.integers(-size, size, lead) for size in dims[:depth]]
    # The number of indices decides the rank of the result.
    n.add(np.stack(parts, -1).astype(n.dtype(1)), 0.4 if depth == 1 else 1.0)


@recipe("ExpandDims")
def expand_dims(n):
    exactly(n)
    dims = n.shape(0, 3)
    n.data(dims, at=0)
    n.add(np.asarray(n.integer(-len(dims) - 1, len(dims)), np.int32), 1.0)


@recipe("GridSample")
def grid_sample(n):
    begin(n, 64)
    if n.types["T1"] not in values.FLOATS:
        n.types["T1"] = "float"
    n.types["T2"] = n.types["T1"]
    batch, channels, height, width = n.integer(1, 2), n.integer(1, 3), n.integer(2, 6), n.integer(2, 6)
    n.maybe("mode", n.pick("bilinear", "nearest", "bicubic"))
    n.maybe("padding_mode", n.pick("zeros", "border", "reflection"))
    n.maybe("align_corners", n.integer(0, 1))
    floats(n, (batch, channels, height, width), kind=n.dtype())
    floats(n, (batch, n.integer(1, 5), n.integer(1, 5), 2), -1.3, 1.3, n.dtype())


@recipe("ConvTransposeWithDynamicPads")
def conv_transpose(n):
    begin(n, 64)
    rank = n.integer(1, 2)
    kernel = [n.integer(1, 3) for _ in range(rank)]
    sizes = [n.integer(2, 5) for _ in range(rank)]
    groups = n.pick(1, 1, 2)
    if groups > 1:
        n.attr("group", groups)
    n.maybe("strides", [n.integer(1, 2) for _ in range(rank)])
    n.maybe("dilations", [n.integer(1, 2) for _ in range(rank)], 0.3)
    n.maybe("kernel_shape", kernel, 0.4)
    floats(n, (n.integer(1, 2), groups * 2, *sizes), -1, 1, n.dtype())
    each = n.integer(1, 3)
    floats(n, (groups * 2, each, *kernel), -1, 1, n.dtype(), 0.8)
    n.add(np.array([n.integer(0, k // 2) for k in kernel + kernel], np.int64), 0.7) if n.chance(0.7) else n.omit()
    if n.chance(0.5):
        floats(n, (groups * each,), -1, 1, n.dtype(), 0.8)


@recipe("TorchEmbedding")
def embedding(n):
    exactly(n)
    rows = n.integer(1, 9)
    n.data((rows, n.integer(1, 6)), at=0)
    n.add(n.rng.integers(0, rows, n.shape(0, 3)).astype(np.int64), 0.3)
    if n.chance(0.4):
        n.add(np.asarray(0, np.int64), 0.8)
        if n.chance(0.5):
            n.add(np.asarray(False), 0.8)


@recipe("SampleOp")
def sample(n):
    exactly(n)
    n.data(n.shape(0, 4), at=0)


@recipe("UnfoldTensor")
def unfold(n):
    exactly(n)
    dims = n.shape(1, 4, zeros=False)
    axis = n.axis(len(dims))
    n.data(dims, at=0)
    n.attr("size", n.integer(1, dims[axis]))
    if axis != -1 or n.chance(0.5):
        n.attr("dim", axis)
    n.maybe("step", n.integer(1, 3))


@recipe("Rfft")
def rfft(n):
    begin(n, 64)
    dims = n.shape(0, 2, zeros=False)
    floats(n, (*dims, n.integer(1, 20)), kind=n.dtype())
    n.maybe("signal_ndim", 1)
    n.maybe("onesided", 1, 0.3)


@recipe("Irfft")
def irfft(n):
    begin(n, 64)
    dims = n.shape(0, 2, zeros=False)
    floats(n, (*dims, n.integer(2, 12), 2), kind=n.dtype())
    n.attr("signal_ndim", 1)
    n.maybe("normalized", 0, 0.3)


@recipe("NGramRepeatBlock")
def n_gram(n):
    exactly(n)
    batch, count, words = n.integer(1, 3), n.integer(1, 12), n.integer(1, 5)
    n.add(n.rng.integers(0, words, (batch, count)).astype(np.int64))
    floats(n, (batch, words))
    n.attr("ngram_size", n.integer(1, 4))


@recipe("Inverse")
def inverse(n):
    begin(n, 256)
    size = n.integer(1, 5)
    lead = tuple(min(own, 3) for own in n.shape(0, 2, zeros=False))
    matrix = n.rng.uniform(-1, 1, (*lead, size, size)) + size * np.eye(size)[n.rng.permutation(size)]
    n.add(matrix.astype(n.dtype()))


@recipe("MulInteger")
def mul_integer(n):
    exactly(n)
    left, right = values.broadcast_shapes(n.rng, 2)
    for dims in (left, right):
        small(n, dims, n.dtype())
        if n.chance(0.6):
            small(n, n.pick((), (1,)), n.dtype(), 0.7)
        else:
            n.omit()


@recipe("MatMulInteger16")
def mat_mul_integer_16(n):
    exactly(n)
    if n.chance(0.6):
        n.types["T1"] = n.types["T2"] = "int16"
    n.types["T3"] = "uint32" if n.types["T1"] == n.types["T2"] == "uint16" else "int32"
    left, right = products(n)
    for at, dims in enumerate((left, right)):
        n.data(dims, -30000, 30000, at=at, edge=0)


@recipe("ReduceSumInteger")
def reduce_sum_integer(n):
    exactly(n)
    n.types["T2"] = "uint32" if n.types["T1"] == "uint8" else "int32"
    dims = n.shape(1, 4)
    small(n, dims, n.dtype())
    n.attr("axes", [int(axis) for axis in n.rng.choice(len(dims), n.integer(1, len(dims)), replace=False)])
    n.attr("keepdims", n.integer(0, 1))


@recipe("CDist")
def distances(n):
    # Through a product of matrices ONNX Runtime rounds to a share of the squares.
    begin(n, 64)
    n.ulps = 256
    depth = n.integer(1, 20)
    floats(n, (n.integer(1, 9), depth), kind=n.dtype())
    floats(n, (n.integer(1, 9), depth), kind=n.dtype())
    n.maybe("metric", n.pick("sqeuclidean", "euclidean"))


@recipe("ComplexMul", "ComplexMulConj")
def complex_mul(n):
    begin(n, 8)
    left, right = values.broadcast_shapes(n.rng, 2, 0, 3)
    floats(n, (*left, 2), kind=n.dtype())
    floats(n, (*right, 2), kind=n.dtype())


@recipe("IsAllFinite")
def is_all_finite(n):
    exactly(n, "V")
    n.edge = n.pick(0.0, 0.02)
    for _ in range(n.integer(1, 3)):
        n.data(n.shape(0, 3), at=0)
    n.maybe(n.pick("isinf_only", "isnan_only"), 1, 0.5)


@recipe("MurmurHash3")
def murmur(n):
    exactly(n)
    if n.types["T1"] == "string":
        raise Skip("texts")
    positive = n.maybe("positive", n.integer(0, 1))
    n.types["T2"] = "int32" if positive == 0 else "uint32"
    n.maybe("seed", n.integer(0, 100))
    n.data(n.shape(0, 3), -2**31, 2**31 - 1, at=0)


@recipe("CropAndResize")
def crop_and_resize(n):
    begin(n, 64, "T1")
    batch, regions = n.integer(1, 3), n.integer(1, 4)
    n.maybe("mode", n.pick("bilinear", "nearest"))
    n.maybe("extrapolation_value", 0.5, 0.5)
    floats(n, (batch, n.integer(1, 3), n.integer(1, 6), n.integer(1, 6)), kind=n.dtype())
    floats(n, (regions, 4), -0.2, 1.2, n.dtype())
    n.add(n.rng.integers(0, batch, regions).astype(np.int32))
    n.add(np.array([n.integer(1, 5), n.integer(1, 5)], np.int32), 0.7)
