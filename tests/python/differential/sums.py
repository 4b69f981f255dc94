"""Recipes of operators that add up, pick extremes, and normalize."""

import numpy as np

import values
from case import Skip
from elementwise import recipe


def sums(n, ulps=16):
    """Sums lose where terms cancel, and special values make them meaningless."""
    n.ulps, n.scale_ulps, n.edge = ulps, ulps, 0.0


@recipe("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare")
def reduce(n):
    sums(n)
    low, high = (0.5, 3) if n.op in ("ReduceLogSum", "ReduceProd") else (-3, 3)
    empty = n.op not in ("ReduceMean", "ReduceMax", "ReduceMin") and n.since >= 18
    x = n.main(low=low, high=high, zeros=empty)
    axes = [int(axis) for axis in n.rng.permutation(x.ndim)[: n.integer(0, x.ndim)]]
    axes = [axis - x.ndim if n.since >= 11 and n.chance(0.3) else axis for axis in axes]
    n.maybe("keepdims", n.integer(0, 1))
    if n.has("axes"):
        if axes:
            n.attr("axes", axes)
    elif axes or n.chance(0.3):
        n.maybe("noop_with_empty_axes", n.integer(0, 1), 0.3)
        n.decides_ints(axes)


@recipe("ArgMax", "ArgMin")
def arg(n):
    x = n.main(low_rank=1, zeros=False, edge=0)
    n.attr("axis", n.axis(x.ndim, positive=n.since < 11))
    n.maybe("keepdims", n.integer(0, 1))
    n.maybe("select_last_index", n.integer(0, 1))


@recipe("Softmax", "LogSoftmax", "Hardmax")
def softmax(n):
    x = n.main(low_rank=1, edge=0)
    if n.since < 13 and x.size == 0:
        raise Skip("empty")
    n.maybe("axis", n.axis(x.ndim, positive=n.since < 11), 0.8)
    n.ulps = 16
    n.scale_ulps = 4


@recipe("MatMul")
def matmul(n):
    sums(n)
    depth, lead = n.integer(1, 20), values.broadcast_shapes(n.rng, 2, 0, 2)
    if n.given is not None:
        x = n.main(low_rank=1)
        depth, rank = x.shape[-1], x.ndim
        n.data((depth, n.integer(1, 9)))
        return
    left = (depth,) if n.chance(0.15) else lead[0] + (n.integer(0, 9), depth)
    right = (depth,) if n.chance(0.15) else lead[1] + (depth, n.integer(1, 20))
    n.shaped(left)
    n.data(right)


@recipe("MatMulInteger")
def matmul_integer(n):
    rows, depth, columns = n.integer(1, 6), n.integer(1, 40), n.integer(1, 20)
    lead = n.shape(0, 1, zeros=False)
    n.shaped(lead + (rows, depth), low=-300, high=300)
    n.data((depth, columns) if n.chance(0.5) else lead + (depth, columns), -300, 300)
    if n.chance(0.6):
        n.data((), -10, 10, at=2)
        if n.chance(0.7):
            n.data((), -10, 10, at=3)


@recipe("Gemm")
def gemm(n):
    sums(n)
    rows, depth, columns = n.integer(1, 9), n.integer(1, 20), n.integer(1, 20)
    left = n.maybe("transA", n.integer(0, 1))
    if n.given is not None:
        x = n.main(2, 2, zeros=False)
        rows, depth = x.shape[::-1] if left else x.shape
    else:
        n.shaped((depth, rows) if left else (rows, depth))
    n.data((columns, depth) if n.maybe("transB", n.integer(0, 1)) else (depth, columns))
    integers = n.type() in values.INTEGERS
    n.maybe("alpha", float(n.pick(1, 2) if integers else np.float32(n.rng.uniform(-2, 2))))
    n.maybe("beta", float(n.pick(0, 1, 2) if integers else np.float32(n.rng.uniform(-2, 2))))
    if n.since < 11 or n.chance(0.7):
        dims = (rows, columns)
        if n.since < 7:
            n.attr("broadcast", 1)
            dims = n.pick(dims, (columns,), (1,))
        else:
            dims = values.broadcastable(n.rng, dims)
        n.data(dims)


@recipe("Einsum")
def einsum(n):
    sums(n)
    equation, shapes = n.pick(
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij->ji", [(3, 4)]),
        ("ii->i", [(4, 4)]), ("i,j->ij", [(3,), (4,)]), ("...ij->...ji", [(2, 3, 4)]), ("ij,ij->", [(3, 4)] * 2),
        ("ij,jk", [(3, 4), (4, 5)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]), ("bhid,bhjd->bhij", [(1, 2, 3, 4)] * 2),
        ("ijk->", [(2, 3, 4)]), ("...i,...i->...", [(2, 3), (2, 3)]),
    )
    n.attr("equation", equation)
    n.shaped(shapes[0])
    for dims in shapes[1:]:
        n.data(dims, at=0)


def window(n, rank, sizes, kernel, wide=False):
    """Attributes of a sliding window; gives nothing if it does not fit. With `wide`, gaps and pads may be larger than the window."""
    dilations = [1] * rank
    if n.has("dilations") and n.chance(0.4):
        gaps = (1, 2, 7, 9) if wide else (1, 2)
        dilations = [n.pick(*gaps) for _ in range(rank)]
        n.attr("dilations", dilations)
    if n.chance(0.6):
        n.attr("strides", [n.integer(1, 3) for _ in range(rank)])
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if n.chance(0.25):
        n.attr("auto_pad", n.pick("SAME_UPPER", "SAME_LOWER", "VALID"))
        if n.attributes["auto_pad"] != "VALID":
            return
    elif n.chance(0.6):
        most = [size - 1 for size in (extent if wide else kernel)]
        # Those that keep the size are what models have.
        same = wide and n.chance(0.5)
        n.attr("pads", [size // 2 for size in most] * 2 if same else [n.integer(0, size) for size in most * 2])
    pads = n.attributes.get("pads", [0] * (2 * rank))
    if any(size + pads[at] + pads[at + rank] < extent[at] for at, size in enumerate(sizes)):
        raise Skip("the window is too large")


@recipe("Conv", "ConvInteger", "QLinearConv")
def conv(n):
    sums(n)
    rank = n.pick(1, 2, 2, 2, 3)
    if n.given is not None:
        x = n.main(3, 5, zeros=False)
        rank, channels, sizes, groups = x.ndim - 2, x.shape[1], x.shape[2:], 1
    else:
        groups = n.pick(1, 1, 1, 2, 3)
        channels = groups * n.pick(1, 1, 2, 5)
        sizes = tuple(n.integer(3, 9) for _ in range(rank))
        n.shaped((n.integer(1, 2), channels) + sizes)
    filters = groups * n.pick(1, 2, 4, 9)
    kernel = tuple(n.integer(1, 3) for _ in range(rank))
    window(n, rank, sizes, kernel, wide=True)
    n.maybe("kernel_shape", list(kernel))
    if groups > 1:
        n.attr("group", groups)
    weights = (filters, channels // groups) + kernel
    if n.op == "Conv":
        n.data(weights, constant=0.6)
        if n.chance(0.6):
            n.data((filters,))
        return
    if n.op == "ConvInteger":
        n.data(weights, -200, 200, constant=0.5)
        if n.chance(0.6):
            n.data((), -5, 5, at=2)
            if n.chance(0.6):
                n.data((filters,) if n.chance(0.5) else (), -5, 5, at=3)
        return
    scale = lambda dims: np.abs(values.draw(n.rng, "float", dims, 0.01, 0.1))
    n.add(scale(()))
    n.data((), -5, 5, at=2)
    n.data(weights, -200, 200, at=3, constant=0.5)
    per = (filters,) if n.chance(0.5) else ()
    n.add(scale(per))
    n.data(per, 0, 0, at=5)
    n.add(scale(()) * 10)
    n.data((), -5, 5, at=7)
    if n.chance(0.5):
        n.add(n.rng.integers(-100, 100, filters).astype(np.int32))


@recipe("ConvTranspose")
def conv_transpose(n):
    sums(n)
    rank = n.pick(1, 2, 2, 3)
    groups = n.pick(1, 1, 2)
    channels, filters = groups * n.integer(1, 3), n.integer(1, 3)
    sizes = tuple(n.integer(1, 5) for _ in range(rank))
    n.shaped((n.integer(1, 2), channels) + sizes)
    kernel = tuple(n.integer(1, 3) for _ in range(rank))
    strides = [n.integer(1, 3) for _ in range(rank)]
    if n.chance(0.6):
        n.attr("strides", strides)
    else:
        strides = [1] * rank
    dilations = [n.integer(1, 2) for _ in range(rank)] if n.chance(0.3) else [1] * rank
    n.attr("dilations", dilations)
    if n.chance(0.4):
        n.attr("pads", [0] * rank + [n.integer(0, min(1, k - 1)) for k in kernel])
    if n.chance(0.3):
        n.attr("output_padding", [n.integer(0, max(s, d) - 1) for s, d in zip(strides, dilations)])
    elif n.chance(0.2) and "pads" not in n.attributes:
        n.attr("auto_pad", n.pick("SAME_UPPER", "SAME_LOWER", "VALID"))
    n.maybe("kernel_shape", list(kernel))
    if groups > 1:
        n.attr("group", groups)
    n.data((channels, filters) + kernel)
    if n.chance(0.5):
        n.data((filters * groups,))


@recipe("AveragePool", "MaxPool", "LpPool")
def pool(n):
    sums(n)
    rank = n.pick(1, 2, 2, 2, 3)
    if n.given is not None:
        x = n.main(3, 5, zeros=False)
        rank, sizes = x.ndim - 2, x.shape[2:]
    else:
        sizes = tuple(n.integer(3, 9) for _ in range(rank))
        n.shaped((n.integer(1, 2), n.integer(1, 4)) + sizes)
    if n.op == "LpPool" and n.since == 1 and rank != 2:
        raise Skip("rank")
    kernel = tuple(n.integer(1, 3) for _ in range(rank))
    n.attr("kernel_shape", list(kernel))
    window(n, rank, sizes, kernel)
    n.maybe("count_include_pad", n.integer(0, 1))
    if n.attributes.get("auto_pad", "NOTSET") == "NOTSET":
        n.maybe("ceil_mode", n.integer(0, 1), 0.3)
    if n.op == "LpPool":
        n.maybe("p", float(n.integer(1, 3)) if n.since == 1 else n.integer(1, 3))
    if n.op == "MaxPool" and n.since >= 8 and n.chance(0.3):
        n.outputs = 2
        n.maybe("storage_order", n.integer(0, 1))


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(n):
    sums(n)
    n.main(3, 5, zeros=False)
    n.maybe("p", float(n.integer(1, 3)) if n.since == 1 else n.integer(1, 3))


@recipe("MaxUnpool")
def max_unpool(n):
    rank, size, kernel, channels = n.pick(1, 2, 2, 3), n.integer(1, 3), 2, n.integer(1, 2)
    dims = (n.integer(1, 2), channels) + (size,) * rank
    n.shaped(dims)
    n.attr("kernel_shape", [kernel] * rank)
    n.attr("strides", [kernel] * rank)
    place = np.zeros(dims, np.int64)
    for at in np.ndindex(*dims):
        inside = [kernel * place + n.integer(0, kernel - 1) for place in at[2:]]
        flat = int(np.ravel_multi_index(inside, (kernel * size,) * rank))
        place[at] = (at[0] * channels + at[1]) * (kernel * size) ** rank + flat
    n.add(place)
    if n.chance(0.4):
        # Indices count in a tensor without pads; an output of the same number of places is another shape of it.
        whole = [dims[0], channels] + [kernel * size] * rank
        n.decides_ints(whole, probability=0.4)


@recipe("LRN")
def lrn(n):
    sums(n)
    n.shaped((n.integer(1, 2), n.integer(1, 7)) + n.shape(1, 2, zeros=False))
    n.attr("size", n.integer(1, 5))
    n.maybe("alpha", 0.01)
    n.maybe("beta", 0.6)
    n.maybe("bias", 1.5)


@recipe("LpNormalization")
def lp_normalization(n):
    sums(n)
    x = n.main(low_rank=1, zeros=False)
    n.maybe("axis", n.axis(x.ndim))
    n.maybe("p", n.integer(1, 2))


@recipe("BatchNormalization")
def batch_normalization(n):
    sums(n, 32)
    x = n.main(2 if n.since < 9 else 2, 5, zeros=False)
    channels = (x.shape[1],)
    n.maybe("epsilon", 1e-3)
    if n.has("is_test"):
        n.attr("is_test", 1)
    if n.since == 1:
        n.attr("consumed_inputs", [0, 0, 0, 1, 1])
    n.data(channels, at=1)
    n.data(channels, at=2)
    n.data(channels, at=3)
    n.data(channels, 0.2, 2, at=4)
    if n.has("training_mode") and n.given is None and n.chance(0.3):
        n.attr("training_mode", 1)
        n.maybe("momentum", 0.7)
        n.outputs = 3


@recipe("InstanceNormalization", "GroupNormalization")
def instance_normalization(n):
    sums(n, 64)
    groups = n.integer(1, 3)
    channels = groups * n.integer(1, 3)
    n.shaped((n.integer(1, 2), channels) + tuple(n.integer(2, 6) for _ in range(n.integer(1, 2))))
    if n.op == "GroupNormalization":
        n.attr("num_groups", groups)
    count = groups if n.since == 18 else channels
    n.data((count,), at=1)
    n.data((count,), at=2)
    n.maybe("epsilon", 1e-3)


@recipe("LayerNormalization", "RMSNormalization")
def layer_normalization(n):
    sums(n, 64)
    x = n.main(low_rank=1, zeros=False)
    axis = n.axis(x.ndim)
    n.attr("axis", axis)
    dims = x.shape[axis % x.ndim:]
    if int(np.prod(dims)) < 2:
        raise Skip("no variance")
    n.maybe("epsilon", 1e-3)
    n.data(dims, at=1)
    if n.op == "LayerNormalization":
        if n.chance(0.6):
            n.data(dims, at=2)
        if n.type() == "float" and n.given is None:
            n.outputs = n.integer(1, 3)


@recipe("MeanVarianceNormalization")
def mean_variance(n):
    sums(n, 64)
    x = n.shaped(tuple(n.integer(2, 5) for _ in range(4)))
    n.maybe("axes", [0, 2, 3] if n.chance(0.5) else [1, 2])


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(n):
    sums(n)
    classes = n.integer(2, 5)
    rest = n.shape(0, 2, zeros=False)
    batch = n.integer(1, 4)
    n.shaped((batch, classes) + rest)
    labels = n.rng.integers(0, classes, (batch,) + rest)
    if n.chance(0.3):
        n.attr("ignore_index", n.pick(-1, 1))
        labels = np.where(n.rng.random(labels.shape) < 0.2, n.attributes["ignore_index"], labels)
        if (labels == n.attributes["ignore_index"]).all():
            raise Skip("nothing left")
    n.add(labels.astype(n.dtype(1)))
    n.maybe("reduction", n.pick("none", "mean", "sum"))
    if n.chance(0.5):
        n.data((classes,), 0.1, 2, at=2)
    if n.op == "SoftmaxCrossEntropyLoss":
        n.outputs = n.integer(1, 2)


@recipe("SwiGLU")
def swiglu(n):
    sums(n)
    x = n.main(low_rank=1, zeros=False)
    n.maybe("alpha", 1.5)
    n.data(x.shape)
