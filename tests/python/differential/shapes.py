"""Recipes of operators that move elements, choose them, or make them from sizes."""

import numpy as np
from onnx import TensorProto

import values
from case import Skip
from elementwise import recipe


@recipe("Concat")
def concat(n):
    x = n.main(low_rank=1)
    axis = n.axis(x.ndim, positive=n.since < 11)
    if n.since == 1 and x.ndim > 1 and n.chance(0.3):
        axis = 1
    else:
        n.attr("axis", axis)
    for _ in range(n.integer(0, 3)):
        dims = list(x.shape)
        dims[axis] = values.dim(n.rng)
        n.data(tuple(dims), at=0)


@recipe("Transpose")
def transpose(n):
    x = n.main(high_rank=5)
    if x.ndim and n.chance(0.8):
        n.attr("perm", [int(axis) for axis in n.rng.permutation(x.ndim)])


@recipe("Flatten")
def flatten(n):
    x = n.main(low_rank=0 if n.since >= 9 else 1)
    n.maybe("axis", n.integer(0 if n.since < 11 else -x.ndim, x.ndim), 0.6 if x.ndim else 1.0)


@recipe("Reshape")
def reshape(n):
    x = n.main()
    dims = list(x.shape)
    if n.chance(0.5) and x.ndim > 1:
        dims = [int(np.prod(dims[:2]))] + dims[2:]
    elif n.chance(0.5):
        dims = dims[:1] + [1] + dims[1:]
    else:
        dims = [int(size) for size in n.rng.permutation(dims)]
    if n.chance(0.3) and 0 not in dims and dims:
        dims[n.integer(0, len(dims) - 1)] = -1
    elif n.chance(0.3) and dims and x.ndim and dims[0] == x.shape[0]:
        dims[0] = 0
    if 0 in dims and any(size == 0 for size in x.shape):
        raise Skip("what 0 means")
    if n.has("shape"):
        n.attr("shape", dims)
    else:
        n.decides_ints(dims)


@recipe("Squeeze", "Unsqueeze")
def squeeze(n):
    squeezes = n.op == "Squeeze"
    if squeezes:
        dims = [1 if n.chance(0.5) else size for size in n.shape()]
        x = n.add(n.given) if n.given is not None else n.shaped(tuple(dims))
        axes = [axis for axis, size in enumerate(x.shape) if size == 1 and n.chance(0.7)]
        rank = x.ndim
        if not axes:
            if n.chance(0.8):
                raise Skip("no axes")
            return
    else:
        x = n.main(high_rank=3)
        added = n.integer(1, 2)
        rank = x.ndim + added
        axes = [int(axis) for axis in n.rng.choice(rank, added, replace=False)]
        if n.since == 1:
            axes = sorted(axes)
    if n.since >= 11:
        axes = [axis - rank if n.chance(0.3) else axis for axis in axes]
    if n.has("axes"):
        n.attr("axes", axes)
    else:
        n.decides_ints(axes)


@recipe("Expand")
def expand(n):
    x = n.main()
    dims = [values.dim(n.rng) if size == 1 else (1 if n.chance(0.2) else size) for size in x.shape]
    dims = [values.dim(n.rng) for _ in range(n.integer(0, 1))] + dims
    n.decides_ints(dims)


@recipe("Tile")
def tile(n):
    x = n.main(low_rank=1)
    if n.since == 1:
        n.decides(np.array([n.integer(1, 3)]).astype(n.dtype(1)), 0.9)
        n.decides(np.array([n.integer(0, x.ndim - 1)]).astype(n.dtype(2)), 0.9)
        return
    n.decides_ints([n.integer(0, 3) if n.chance(0.1) else n.integer(1, 3) for _ in x.shape])


@recipe("Slice")
def slice_(n):
    x = n.main(low_rank=1)
    axes = [int(axis) for axis in n.rng.permutation(x.ndim)[: n.integer(1, x.ndim)]]
    signs = n.since >= 10
    steps = [n.pick(1, 1, 2, 3, -1, -2) if signs else 1 for _ in axes]
    bound = lambda axis: n.integer(-x.shape[axis] - 2, x.shape[axis] + 2)
    starts, ends = [bound(axis) for axis in axes], [bound(axis) for axis in axes]
    if n.chance(0.2):
        ends[0] = 2**31 - 1 if steps[0] > 0 else -(2**31)
    if n.since >= 11:
        axes = [axis - x.ndim if n.chance(0.3) else axis for axis in axes]
    if not signs:
        n.attr("starts", starts)
        n.attr("ends", ends)
        n.attr("axes", axes)
        return
    kind = n.dtype(1)
    n.decides(np.array(starts).astype(kind))
    n.decides(np.array(ends).astype(kind))
    n.decides(np.array(axes).astype(kind))
    n.decides(np.array(steps).astype(kind))


@recipe("Split")
def split(n):
    x = n.main(low_rank=1, zeros=False)
    axis = n.axis(x.ndim, positive=n.since < 11)
    size = x.shape[axis]
    n.outputs = n.integer(1, min(3, size))
    cuts = sorted(int(cut) for cut in n.rng.integers(0, size + 1, n.outputs - 1))
    sizes = [int(part) for part in np.diff([0, *cuts, size])]
    n.attr("axis", axis)
    if n.since == 1 and n.chance(0.3):
        n.decides(np.array(sizes).astype(n.dtype(1)), 1.0)
    elif n.since < 13:
        if n.chance(0.7) or size % n.outputs:
            n.attr("split", sizes)
    elif n.since >= 18 and n.chance(0.4):
        n.attr("num_outputs", n.outputs)
        if size % n.outputs and -(-size // n.outputs) * (n.outputs - 1) >= size:
            raise Skip("an empty last part")
    else:
        n.decides_ints(sizes)


@recipe("Pad")
def pad(n):
    x = n.main(low_rank=1, zeros=False)
    modes = ["constant", "reflect", "edge"] + (["wrap"] if n.since >= 19 else [])
    mode = n.maybe("mode", n.pick(*modes)) or "constant"
    axes = list(range(x.ndim))
    if n.since >= 18 and n.chance(0.4):
        axes = [int(axis) for axis in n.rng.permutation(x.ndim)[: n.integer(1, x.ndim)]]
    most = lambda axis: {"constant": 3, "edge": 3, "wrap": x.shape[axis]}.get(mode, x.shape[axis] - 1)
    least = lambda axis: -1 if mode == "constant" and x.shape[axis] > 2 and n.chance(0.2) else 0
    pads = [n.integer(least(axis), max(0, min(3, most(axis)))) for axis in axes + axes]
    if n.has("pads"):
        n.attr("pads", pads)
    elif n.has("paddings"):
        n.attr("paddings", pads)
    else:
        n.decides_ints(pads)
    if n.has("value"):
        n.maybe("value", float(np.float32(n.rng.uniform(-2, 2))))
        return
    # float8e8m0 has no 0.
    if mode == "constant" and (n.chance(0.6) or n.type() == "float8e8m0"):
        n.add(n.draw(0, ()))
    if n.since >= 18 and len(axes) < x.ndim or axes != sorted(axes):
        if len(n.inputs) == 2:
            n.omit()
        n.decides(np.array([axis - x.ndim if n.chance(0.3) else axis for axis in axes]).astype(n.dtype(3)))


@recipe("Gather")
def gather(n):
    x = n.main(low_rank=1, zeros=False)
    axis = n.axis(x.ndim, positive=n.since < 11)
    n.maybe("axis", axis, 1.0 if axis else 0.5)
    size = x.shape[axis]
    low = -size if n.since >= 11 else 0
    n.data(n.shape(0, 2), low, size - 1, edge=0)


@recipe("GatherElements")
def gather_elements(n):
    x = n.main(low_rank=1, zeros=False)
    axis = n.axis(x.ndim)
    n.attr("axis", axis)
    dims = [n.integer(1, size) for size in x.shape]
    dims[axis] = n.integer(1, 5)
    n.data(tuple(dims), -x.shape[axis], x.shape[axis] - 1, edge=0)


def indices_nd(n, dims, lead, unique=False):
    rows = int(np.prod(lead))
    if unique:
        flat = n.rng.permutation(int(np.prod(dims)))[:rows]
        if len(flat) < rows:
            raise Skip("too few rows")
        table = np.stack(np.unravel_index(flat, dims), -1)
    else:
        table = np.stack([n.rng.integers(-size, size, rows) for size in dims], -1)
    return table.reshape(*lead, len(dims)).astype(np.int64)


@recipe("GatherND")
def gather_nd(n):
    x = n.main(low_rank=1, zeros=False)
    batch = n.integer(0, x.ndim - 1) if n.has("batch_dims") and n.chance(0.5) else 0
    if batch:
        n.attr("batch_dims", batch)
    depth = n.integer(1, x.ndim - batch)
    lead = x.shape[:batch] + n.shape(0 if batch else 1, 2, zeros=False)
    n.add(indices_nd(n, x.shape[batch:batch + depth], lead))


@recipe("ScatterElements", "Scatter")
def scatter_elements(n):
    x = n.main(low_rank=1, zeros=False)
    axis = n.axis(x.ndim, positive=n.op == "Scatter" and n.since < 11)
    n.attr("axis", axis)
    dims = [n.integer(1, size) for size in x.shape]
    # No element is written twice, as then the order is undefined; a reduction may meet one again.
    reduction = scatter_reduction(n)
    count = dims[axis]
    lines = np.moveaxis(np.empty(dims, np.int64), axis, -1)
    for at in np.ndindex(lines.shape[:-1]):
        lines[at] = n.rng.integers(0, x.shape[axis], count) if reduction else n.rng.permutation(x.shape[axis])[:count]
    indices = np.moveaxis(lines, -1, axis)
    if n.chance(0.4) and n.since >= 11:
        indices = indices - x.shape[axis] * (n.rng.random(indices.shape) < 0.5)
    n.add(np.ascontiguousarray(indices).astype(n.dtype(1)))
    n.data(tuple(dims), at=2)
    n.ulps, n.scale_ulps = 8, 8


def scatter_reduction(n):
    kinds = {16: ("add", "mul"), 18: ("add", "mul", "max", "min")}.get(n.since)
    if kinds is None or n.chance(0.4) or n.type() in values.COMPLEX | {"bool", "string"}:
        return None
    n.attr("reduction", n.pick(*kinds))
    n.edge = 0.0
    return n.attributes["reduction"]


@recipe("ScatterND")
def scatter_nd(n):
    x = n.main(low_rank=1, zeros=False)
    reduction = scatter_reduction(n)
    depth = n.integer(1, x.ndim)
    lead = n.shape(1, 2, zeros=False)
    n.add(indices_nd(n, x.shape[:depth], lead, unique=reduction is None))
    n.data(lead + x.shape[depth:], at=2)
    n.ulps, n.scale_ulps = 8, 8


@recipe("TensorScatter")
def tensor_scatter(n):
    batch, length, width = n.integer(1, 3), n.integer(3, 6), n.integer(1, 4)
    dims = (batch, n.integer(1, 3), length, width) if n.chance(0.5) else (batch, length, width)
    axis = len(dims) - 2
    n.shaped(dims)
    count = n.integer(1, length)
    n.data(dims[:axis] + (count,) + dims[axis + 1:], at=1)
    mode = n.maybe("mode", n.pick("linear", "circular")) or "linear"
    n.maybe("axis", -2)
    if n.chance(0.7):
        most = length - count if mode == "linear" else length - 1
        n.add(n.rng.integers(0, most + 1, batch).astype(np.int64))


@recipe("Compress")
def compress(n):
    x = n.main(low_rank=1, zeros=False)
    size = x.size
    if n.chance(0.6):
        axis = n.axis(x.ndim, positive=n.since < 11)
        n.attr("axis", axis)
        size = x.shape[axis]
    n.decides(n.rng.random(n.integer(1, size)) < 0.5)


@recipe("NonZero")
def non_zero(n):
    n.main(low_rank=1, low=-1, high=1)


@recipe("Unique")
def unique(n):
    x = n.main(low_rank=1, zeros=False, low=-2, high=2, edge=0)
    if n.given is None and n.chance(0.7):
        # Mostly with something that is there twice.
        x = x.astype(np.float64).round().astype(x.dtype) if n.type() in values.FLOATS else x
        if n.chance(0.5):
            axis = n.integer(0, x.ndim - 1)
            x = np.take(x, n.rng.integers(0, x.shape[axis], n.integer(1, 7)), axis)
        n.inputs[0] = (x, n.inputs[0][1])
    if n.chance(0.5):
        n.attr("axis", n.axis(x.ndim))
    n.maybe("sorted", n.integer(0, 1))
    n.outputs = n.integer(1, 4)


@recipe("TopK")
def top_k(n):
    x = n.main(low_rank=1, zeros=False, edge=0)
    axis = n.axis(x.ndim, positive=n.since < 11)
    n.attr("axis", axis)
    k = n.integer(1, x.shape[axis])
    if n.has("k"):
        n.attr("k", k)
    else:
        n.decides_ints([k], probability=0.5)
    n.maybe("largest", n.integer(0, 1))
    n.outputs = 2


@recipe("OneHot")
def one_hot(n):
    depth = n.integer(1, 5)
    dims = n.shape(1, 3)
    n.shaped(dims, low=-depth if n.since >= 11 else 0, high=depth - 1 + n.integer(0, 1), edge=0)
    shape = () if n.chance(0.5) else (1,)
    n.decides(np.full(shape, depth).astype(n.dtype(1)))
    n.add(values.draw(n.rng, n.type(2), (2,)))
    n.maybe("axis", n.integer(-1, len(dims)))


@recipe("ReverseSequence")
def reverse_sequence(n):
    dims = n.shape(2, 4, zeros=False)
    n.shaped(dims)
    batch = n.pick(0, 1)
    n.attr("batch_axis", batch)
    n.attr("time_axis", 1 - batch)
    n.add(n.rng.integers(1, dims[1 - batch] + 1, dims[batch]).astype(np.int64))


@recipe("DepthToSpace", "SpaceToDepth")
def depth_space(n):
    block = n.integer(1, 3)
    batch, channels, height, width = (n.integer(1, 3) for _ in range(4))
    n.attr("blocksize", block)
    if n.op == "DepthToSpace":
        n.shaped((batch, channels * block * block, height, width))
        n.maybe("mode", n.pick("DCR", "CRD"))
    else:
        n.shaped((batch, channels, height * block, width * block))
        n.maybe("mode", n.pick("DCR", "CRD"))


@recipe("Trilu")
def trilu(n):
    n.main(low_rank=2)
    n.maybe("upper", n.integer(0, 1))
    if n.chance(0.6):
        n.decides(np.array(n.integer(-4, 4), np.int64), 0.5)


@recipe("Shape", "Size")
def sizes(n):
    x = n.main()
    n.maybe("start", n.integer(-x.ndim - 1, x.ndim))
    n.maybe("end", n.integer(-x.ndim - 1, x.ndim))


@recipe("EyeLike")
def eye_like(n):
    n.main(2, 2)
    n.attr("dtype", number(n.out_type()))
    n.maybe("k", n.integer(-3, 3))


def number(name):
    return getattr(TensorProto, name.upper())


@recipe("Constant")
def constant(n):
    name = n.out_type()
    forms = ["value"]
    if n.has("value_float"):
        forms += {"float": ["value_float", "value_floats"], "int64": ["value_int", "value_ints"]}.get(name, [])
    form = n.pick(*forms)
    array = values.draw(n.rng, name, n.shape() if form == "value" else (n.integer(1, 4),), edge=n.edge)
    if form == "value":
        n.attr(form, array)
    elif form.endswith("s"):
        n.attr(form, array.tolist())
    else:
        n.attr(form, array.tolist()[0])


@recipe("ConstantOfShape")
def constant_of_shape(n):
    name = n.out_type()
    dims = n.shape()
    n.decides_ints(dims)
    if name != "float" or n.chance(0.5):
        n.attr("value", values.draw(n.rng, name, (1,)))


@recipe("Range")
def range_(n):
    name = n.type()
    start, delta = n.integer(-5, 5), n.pick(1, 2, 3, -1, -2)
    limit = start + delta * n.integer(0, 9) + n.integer(-1, 1)
    for value in (start, limit, delta):
        n.decides(np.array(value).astype(n.dtype()))


@recipe("CenterCropPad")
def center_crop_pad(n):
    x = n.main(low_rank=1, zeros=False)
    axes = list(range(x.ndim))
    if n.chance(0.5):
        axes = [int(axis) for axis in n.rng.permutation(x.ndim)[: n.integer(1, x.ndim)]]
        n.attr("axes", [axis - x.ndim if n.chance(0.3) else axis for axis in axes])
    n.decides(np.array([n.integer(1, 7) for _ in axes]).astype(n.dtype(1)))


@recipe("CumSum", "CumProd")
def cumulate(n):
    x = n.main(low_rank=1)
    n.decides(np.array(n.axis(x.ndim)).astype(n.dtype(1)))
    n.maybe("exclusive", n.integer(0, 1))
    n.maybe("reverse", n.integer(0, 1))
    n.ulps, n.scale_ulps, n.edge = 16, 16, 0.0


@recipe("HannWindow", "HammingWindow", "BlackmanWindow")
def window(n):
    periodic = n.maybe("periodic", n.integer(0, 1))
    # As integers, windows without the place where they are 1 but for rounding.
    size = 2 * n.integer(1, 10) + (0 if periodic == 0 else 1)
    n.decides(np.array(size).astype(n.dtype()))
    n.attr("output_datatype", number(n.out_type()))
    n.ulps, n.scale_ulps, n.magnitude = 8, 8, 1.0
