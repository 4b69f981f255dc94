"""Results by the words of the specification, where the reference does something else or fails. Each quotes what it goes
by. A definition that gives None leaves the node to the reference."""

import functools
import math

import numpy as np
from onnx import helper

import flow
import values
from case import Close, Skip
from recurrent import GATES
from reference import modern
from shapes import number

DEFINITIONS = {}


def definition(*ops):
    def add(function):
        DEFINITIONS.update((op, function) for op in ops)
        return function
    return add


def arrays(node):
    return [array for array, _ in node.inputs]


@definition("If", "Loop", "Scan")
def control_flow(node):
    """As `flow` has it."""
    names = [f"x{at}" if array is not None else "" for at, (array, _) in enumerate(node.inputs)]
    results = [f"y{at}" for at in range(node.outputs)]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node.proto(names, results)], "one", [], outputs)
    runner = flow.Flow(8 if node.since == 8 else max(node.since, 9))
    return runner.graph(graph, dict(zip(names, arrays(node))))


@definition("AffineGrid")
def affine_grid(node):
    """"theta" times "the original grid", whose points are between -1 and 1, in the type of f64. The reference makes f32."""
    theta, size = arrays(node)
    if node.type() != "double":
        return None
    aligned = node.attributes.get("align_corners", 0)
    axes = []
    for count in (int(count) for count in size[2:]):
        step = 2.0 / (count - 1 if aligned else count)
        axes.append((-1.0 if aligned else -1.0 + step / 2) + step * np.arange(count))
    points = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*points[::-1], np.ones_like(points[0])], -1)
    return [np.einsum("nij,...j->n...i", theta, points)]


def erf(x):
    return np.vectorize(math.erf, otypes=["d"])(x.astype(np.float64)) if x.size else x.astype(np.float64)


@definition("Erf")
def erf_(node):
    """"Computes the error function of the given input tensor element-wise." The reference does so in f32."""
    (x,) = arrays(node)
    if node.type() in values.INTEGERS:
        return None
    return [erf(x).astype(x.dtype)]


@definition("Sign")
def sign(node):
    """"If input == 0, output 0": of -0 too, whose sign bfloat16 keeps in the reference."""
    (x,) = arrays(node)
    if node.type() in values.INTEGERS:
        return None
    return [(np.sign(x.astype(np.float64)) + 0.0).astype(x.dtype)]


@definition("Shrink")
def shrink(node):
    """"If x < -lambd, y = x + bias; If x > lambd, y = x - bias; Otherwise, y = 0", in the type of the elements where the bias is one:
    the reference makes f64 of integers of 64 bits."""
    (x,) = arrays(node)
    bias, lambd = (node.attributes.get(name, default) for name, default in (("bias", 0.0), ("lambd", 0.5)))
    if node.type() not in ("int64", "uint64") or bias < 0 or bias != int(bias):
        return None
    moved = x.dtype.type(int(bias))
    return [np.where(x < -lambd, x + moved, np.where(x > lambd, x - moved, x.dtype.type(0)))]


@definition("Gelu")
def gelu(node):
    """"y = 0.5 * x * (1 + Erf(x / Sqrt(2)))" and "y = 0.5 * x * (1 + Tanh(math.Sqrt(2 / math.Pi) * (x + 0.044715 * x * x
    * x)))". The reference has f32 constants, and an Erf in f32."""
    (x,) = arrays(node)
    wide = x.astype(np.float64)
    if node.attributes.get("approximate") == "tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
        return [(0.5 * wide * (1 + inner)).astype(x.dtype)]
    return [(0.5 * wide * (1 + erf(wide / math.sqrt(2)))).astype(x.dtype)]


@definition("PRelu")
def prelu(node):
    """"f(x) = slope * x for x < 0, f(x) = x for x >= 0": -0 stays, which the reference multiplies. "slope [...] should be
    unidirectional broadcastable to input tensor X"; the reference also takes slopes that are not."""
    return [parametric(*arrays(node))]


def parametric(x, slope):
    return np.where(x < 0, x * np.broadcast_to(slope, x.shape), x)


@definition("Mean")
def mean(node):
    """"Element-wise mean of each of the input tensors (with Numpy-style broadcasting support)". The reference adds to its first
    operand in place, which must have the shape of the result then. Before version 8 "all inputs [...] must have the same
    shape"."""
    given = arrays(node)
    if node.since < 8 and len({array.shape for array in given}) > 1:
        raise ValueError("shapes that differ")
    # Of zeros below zero the sum is one, too, which it is not with a 0 ahead of them.
    total = functools.reduce(np.add, (array.astype(np.float64) for array in given))
    return [(total / len(given)).astype(given[0].dtype)]


@definition("BatchNormalization")
def batch_normalization(node):
    """Where it trains: "running_mean = input_mean * momentum + current_mean * (1 - momentum)" is of the type of `input_mean`. The
    reference rounds it to that of X."""
    if not node.attributes.get("training_mode"):
        return None
    x, scale, bias, mean, var = (array.astype(np.float64) for array in arrays(node))
    momentum, epsilon = (
        np.float64(np.float32(node.attributes.get(name, default))) for name, default in (("momentum", 0.9), ("epsilon", 1e-5)))
    channels = lambda array: array.reshape((-1,) + (1,) * (x.ndim - 2))
    axes = (0, *range(2, x.ndim))
    own_mean, own_var = x.mean(axis=axes), x.var(axis=axes)
    y = channels(scale) * (x - channels(own_mean)) / np.sqrt(channels(own_var) + epsilon) + channels(bias)
    running = (old * momentum + own * (1 - momentum) for old, own in ((mean, own_mean), (var, own_var)))
    return [result.astype(node.dtype(at)) for result, at in zip((y, *running), (0, 3, 4))]


@definition("GatherElements")
def gather_elements(node):
    """"out[i][j][k] = input[i][index[i][j][k]][k] if axis = 1", of indices that may be fewer than data along the other axes;
    "all index values are expected to be within bounds [-s, s-1]". The reference compares all other sizes, and the axis itself
    where it is counted from the end."""
    x, indices = arrays(node)
    axis = node.attributes.get("axis", 0) % x.ndim
    if any(own > size for at, (own, size) in enumerate(zip(indices.shape, x.shape, strict=True)) if at != axis):
        raise ValueError("more indices than data")
    if ((indices < -x.shape[axis]) | (indices >= x.shape[axis])).any():
        raise ValueError("an index out of bounds")
    within = tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))
    return [np.take_along_axis(x[within], indices.astype(np.int64), axis)]


@definition("ScatterND", "ScatterElements")
def scatter(node):
    """"updates.shape == indices.shape[:-1] + data.shape[indices.shape[-1]:]", and "updates" of ScatterElements have the shape of
    "indices". The reference takes the first ones of more."""
    data, indices, updates = arrays(node)
    each = indices.shape if node.op == "ScatterElements" else indices.shape[:-1] + data.shape[indices.shape[-1]:]
    if updates.shape != each:
        raise ValueError("updates of another shape than the indices ask for")
    return None


@definition("OneHot")
def one_hot(node):
    """"In case 'indices' is of non-integer type, the values will be casted to int64 before use." The reference compares
    fractions. "Any entries [...] outside the range [-depth, depth-1] will result in [...] all 'off_value'"; version 9
    has no negative ones. The reference also computes on - off, which overflows or makes NaN."""
    indices, depth, (off, on) = arrays(node)
    depth, indices = int(depth.reshape(())), indices.astype(np.int64)
    if node.since >= 11:
        indices = np.where(indices < 0, indices + depth, indices)
    axis = node.attributes.get("axis", -1)
    axis += indices.ndim + 1 if axis < 0 else 0
    hot = np.expand_dims(indices, axis) == np.arange(depth).reshape((-1,) + (1,) * (indices.ndim - axis))
    return [np.where(hot, on, off).astype(node.dtype(2))]


@definition("Slice")
def slice_(node):
    """Since 13: "start[axes[i]] is adjusted into the range [0, dims[axes[i]]] for positive stepping and [0,
    dims[axes[i]]-1] for negative stepping"; ends are "[0, dims[axes[i]]]" and "[-1, dims[axes[i]]-1]". Shape inference
    has it so for every version with steps. NumPy, in which the reference slices, has no element where a negative step
    starts before the first one."""
    if len(node.inputs) < 5:
        return None
    x, starts, ends, axes, steps = arrays(node)
    for start, end, axis, step in zip(*(array.tolist() for array in (starts, ends, axes, steps)), strict=True):
        size = x.shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start, end = (bound + size if bound < 0 else bound for bound in (start, end))
        start, end = min(max(start, 0), high), min(max(end, low), high)
        x = np.take(x, np.arange(start, end, step), axis)
    return [x]


@definition("Split")
def split(node):
    """"The sum of the values must be equal to the dim value at 'axis' specified": NumPy cuts what there is."""
    x, *sizes = arrays(node)
    sizes = sizes[0] if sizes else node.attributes.get("split")
    if sizes is not None and int(np.sum(sizes)) != x.shape[node.attributes.get("axis", 0)]:
        raise ValueError("sizes of parts that are not the whole")
    return None


@definition("Shape")
def shape(node):
    """"If the ending axis [...] is negative, r is added"; "axes are clamped to [0, r]". The reference hands what is
    still negative to a slice, which counts it from the end."""
    rank = arrays(node)[0].ndim
    clamp = lambda axis: min(max(axis + rank if axis < 0 else axis, 0), rank)
    start, end = clamp(node.attributes.get("start", 0)), clamp(node.attributes.get("end", rank))
    return [np.array(arrays(node)[0].shape[start:max(start, end)], np.int64)]


@definition("GlobalMaxPool")
def global_max_pool(node):
    """"(N x C x D1 x D2 ... Dn)": the reference takes axes other than these unless there are two."""
    (x,) = arrays(node)
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


@definition("GlobalLpPool")
def global_lp_pool(node):
    """"p value of the Lp norm used to pool over the input data"."""
    (x,) = arrays(node)
    p = node.attributes.get("p", 2)
    wide = np.abs(x.astype(np.float64)) ** p
    return [(wide.sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)).astype(x.dtype)]


@definition("ReduceLogSum", "ReduceLogSumExp")
def reduce_log_sum(node):
    """"Computes the log sum of the input tensor's elements along the provided axes", "the log sum exponent", which is infinite
    only where its result is."""
    x, *axes = arrays(node)
    axes = axes[0].tolist() if axes else node.attributes.get("axes")
    if not axes:
        if node.attributes.get("noop_with_empty_axes"):
            return None
        axes = range(x.ndim)
    wide = x.astype(np.float64)
    axes, shift = tuple(axes), 0.0
    if node.op == "ReduceLogSumExp":
        greatest = wide.max(axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(greatest), greatest, 0.0)
        wide = np.exp(wide - shift)
    result = np.log(wide.sum(axis=axes, keepdims=True)) + shift
    result = result if node.attributes.get("keepdims", 1) else np.squeeze(result, axes)
    if node.type() in values.INTEGERS and (np.abs(result - np.rint(result)) < 1e-3).any():
        raise Close("truncated at an integer")
    if node.type() in values.INTEGERS and not np.isfinite(result).all():
        # A logarithm of nothing, or of less: Cast says of such a number that the integer is undefined.
        raise Skip("no integer")
    return [result.astype(x.dtype)] if values.NAMES[x.dtype] in values.FLOATS else [truncated(result, x.dtype)]


def truncated(wide, dtype):
    limits = np.iinfo(dtype)
    return np.clip(np.trunc(wide), limits.min, limits.max).astype(dtype)


@definition("Resize")
def resize(node):
    """Of bools, which the reference refuses, by way of u8; of complex numbers, whose imaginary part it drops,
    by parts."""
    x, *rest = arrays(node)
    opset = {11: 11, 13: 13, 18: 18}.get(node.since, 19)
    if x.dtype == bool:
        return [modern("Resize", [x.astype(np.uint8), *rest], opset=opset, **node.attributes)[0].astype(bool)]
    if not np.iscomplexobj(x):
        return None
    real, imaginary = (
        modern("Resize", [np.ascontiguousarray(part), *rest], opset=opset, **node.attributes)[0]
        for part in (x.real, x.imag)
    )
    result = np.empty(real.shape, x.dtype)
    result.real, result.imag = real, imaginary
    return [result]


@definition("Range")
def range_(node):
    """"number_of_elements = max(ceil((limit - start) / delta), 0)": none of an infinite delta, where NumPy has one."""
    start, limit, delta = (array.reshape(()) for array in arrays(node))
    span = limit.astype(np.float64) - start.astype(np.float64)
    return [np.zeros(0, start.dtype)] if np.isinf(delta) and np.isfinite(span) else None


@definition("Gemm")
def gemm(node):
    """Of integers by whole factors: overflow wraps, as in Mul. The reference multiplies by floats."""
    factors = [node.attributes.get(name, 1.0) for name in ("alpha", "beta")]
    if node.type() not in values.INTEGERS or any(factor != int(factor) for factor in factors):
        return None
    a, b, *rest = arrays(node)
    a, b = (one.T if node.attributes.get(name) else one for one, name in ((a, "transA"), (b, "transB")))
    alpha, beta = (np.array(int(factor)).astype(a.dtype) for factor in factors)
    product = (a @ b) * alpha
    return [product + rest[0] * beta if rest and rest[0] is not None else product]


@definition("ReduceSumSquare")
def reduce_sum_square(node):
    """"T" is the type of the result, too: the reference widens integers. Overflow wraps, as in Mul."""
    if node.type() not in values.INTEGERS:
        return None
    x, *axes = arrays(node)
    axes = axes[0].tolist() if axes else node.attributes.get("axes")
    if not axes:
        if node.attributes.get("noop_with_empty_axes"):
            return [x * x]
        axes = range(x.ndim)
    return [(x * x).sum(axis=tuple(axes), keepdims=bool(node.attributes.get("keepdims", 1)), dtype=x.dtype)]


@definition("HardSwish")
def hard_swish(node):
    """"alpha = 1/6": the reference expands it into an attribute, which is an f32."""
    (x,) = arrays(node)
    wide = x.astype(np.float64)
    return [(wide * np.clip(wide / 6 + 0.5, 0, 1)).astype(x.dtype)]


@definition("LRN")
def lrn(node):
    """"square_sum[...] = sum(X[n, i, d1, ..., dk] ^ 2), where max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c +
    ceil((size - 1) / 2))". For even sizes the reference has one channel less."""
    (x,) = arrays(node)
    size = node.attributes["size"]
    alpha, beta, bias = (
        np.float64(np.float32(node.attributes.get(name, default)))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    wide = x.astype(np.float64)
    total = np.zeros_like(wide)
    for channel in range(x.shape[1]):
        low, high = max(0, channel - (size - 1) // 2), min(x.shape[1] - 1, channel + size // 2)
        total[:, channel] = (wide[:, low:high + 1] ** 2).sum(axis=1)
    return [(wide / (bias + alpha / size * total) ** beta).astype(x.dtype)]


@definition("LpNormalization")
def lp_normalization(node):
    """"Lp-normalization": L1 is by absolute values, as in ReduceL1; the reference adds up signed ones."""
    (x,) = arrays(node)
    wide, p = x.astype(np.float64), node.attributes.get("p", 2)
    norm = (np.abs(wide) ** p).sum(axis=node.attributes.get("axis", -1), keepdims=True) ** (1 / p)
    return [np.where(norm == 0, 0, wide / np.where(norm == 0, 1, norm)).astype(x.dtype)]


@definition("Selu")
def selu(node):
    """Versions have defaults of their own: 1.6732 and 1.0507 in version 1. The reference has the newest ones."""
    (x,) = arrays(node)
    defaults = (1.6732, 1.0507) if node.since == 1 else (1.67326319217681884765625, 1.05070102214813232421875)
    alpha, gamma = (
        np.float64(np.float32(node.attributes.get(name, default)))
        for name, default in zip(("alpha", "gamma"), defaults)
    )
    wide = x.astype(np.float64)
    return [(gamma * np.where(wide > 0, wide, alpha * np.expm1(np.minimum(wide, 0)))).astype(x.dtype)]


@definition("QuantizeLinear")
def quantize(node):
    """"precision: The precision of the division operation between x and y_scale. If not provided, it will be the same
    as the type of y_scale." The reference divides in the wider of both types."""
    x, scale, *rest = arrays(node)
    if scale.dtype == x.dtype or values.NAMES[scale.dtype] not in values.HALVES or node.attributes.get("precision"):
        return None
    opset = {23: 23, 24: 24}.get(node.since, 25)
    attributes = {name: value for name, value in node.attributes.items() if name != "precision"}
    return modern("QuantizeLinear", [x.astype(scale.dtype), scale, *rest], opset=opset, **attributes)


@definition("QLinearMatMul")
def quantized_matmul(node):
    """"y = saturate(round(...) + y_zero_point)" of the product of the reals; the reference fails on 8-bit floats."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (array.astype(np.float64) for array in arrays(node))
    real = (a - a_zero) @ (b - b_zero) * a_scale * b_scale / scale
    if node.out_type() not in values.INTEGERS:
        return [modern("Cast", [real.astype(np.float32)], to=number(node.out_type()), saturate=1)[0]]
    if (np.abs(real - np.floor(real) - 0.5) < 1e-3).any():
        raise Close("a tie")
    least, most = values.integer_range(node.out_type())
    return [np.clip(np.rint(real) + zero, least, most).astype(values.DTYPES[node.out_type()])]


@definition("QLinearConv")
def quantized_convolution(node):
    """As ConvInteger, with an i32 bias of scale x_scale * w_scale, then scaled; the reference adds an axis to
    1-D ones."""
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, *bias = (array.astype(np.float64) for array in arrays(node))
    aligned = lambda parameter, rank: parameter.reshape((-1,) + (1,) * rank) if parameter.ndim else parameter
    total = modern("Conv", [x - x_zero, w - aligned(w_zero, w.ndim - 1), *bias], **node.attributes)[0]
    real = total * (x_scale * aligned(w_scale, w.ndim - 2) / scale)
    if (np.abs(real - np.floor(real) - 0.5) < 1e-3).any():
        raise Close("a tie")
    least, most = values.integer_range(node.out_type())
    return [np.clip(np.rint(real) + zero, least, most).astype(values.DTYPES[node.out_type()])]


@definition("ConvTranspose")
def transposed_convolution(node):
    """Each group is a convolution of its own. "Optional 1D bias to be added to the convolution, has size of M." The reference
    mixes the groups of several images, and adds the first group's bias to all groups. Of no images, or to no channels, results
    have the sizes that others have: "output_shape[i] = input_shape[i] * strides[i]" where the padding is SAME. The reference fails
    there, and ONNX Runtime has fewer where the stride is larger than the kernel."""
    x, w, bias = (arrays(node) + [None])[:3]
    groups = node.attributes.get("group", 1)
    if 0 in (len(x), w.shape[1]) and 0 not in (*x.shape[1:], len(w), *w.shape[2:]):
        whole = [np.ones((1, 1, *x.shape[2:])), np.ones((1, 1, *w.shape[2:]))]
        sizes = modern("ConvTranspose", whole, **(node.attributes | {"group": 1}))[0].shape[2:]
        return [np.zeros((len(x), w.shape[1] * groups, *sizes), x.dtype)]
    if groups == 1:
        return None
    wide = [np.split(array.astype(np.float64), groups, axis) for array, axis in ((x, 1), (w, 0))]
    parts = [modern("ConvTranspose", list(pair), **(node.attributes | {"group": 1}))[0] for pair in zip(*wide)]
    total = np.concatenate(parts, 1)
    if bias is not None:
        total += bias.astype(np.float64).reshape((-1,) + (1,) * (x.ndim - 2))
    return [total.astype(x.dtype)]


@definition("ConvInteger")
def integer_convolution(node):
    """"w_zero_point [...] It could be a scalar or a 1-D tensor [...] its number of elements should be equal to the number of
    output channels (M)". The reference takes them for the input's channels."""
    x, w, x_zero, w_zero = (arrays(node) + [None, None])[:4]
    if w_zero is None or w_zero.ndim == 0:
        return None
    x = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64))
    w = w.astype(np.float64) - w_zero.astype(np.float64).reshape((-1,) + (1,) * (w.ndim - 1))
    return [modern("Conv", [x, w], **node.attributes)[0].astype(np.int32)]


def window_geometry(node, sizes):
    """Per spatial axis: output size, pads before and after, stride and dilation."""
    rank, attributes = len(sizes), node.attributes
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    pads, mode = attributes.get("pads", [0] * (2 * rank)), attributes.get("auto_pad", "NOTSET")
    axes = []
    for axis, size in enumerate(sizes):
        extent, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        before, after = pads[axis], pads[axis + rank]
        if mode.startswith("SAME"):
            count = -(-size // stride)
            total = max(0, (count - 1) * stride + extent - size)
            before = total // 2 if mode == "SAME_UPPER" else -(-total // 2)
            after = total - before
        else:
            span = size + before + after - extent
            count = (-(-span // stride) if attributes.get("ceil_mode") else span // stride) + 1
            # "Sliding windows that would start in the right padded region are ignored."
            if (count - 1) * stride >= size + before:
                count -= 1
        axes.append((count, before, after, stride, dilations[axis]))
    return kernel, axes


@definition("MaxPool", "AveragePool", "LpPool")
def pool(node):
    """"pad_shape[i] = (output_spatial_shape[i] - 1) * strides[i] + ((kernel_spatial_shape[i] - 1) * dilations[i] + 1) -
    input_spatial_shape[i]", and "pads [...] should be greater than or equal to 0". The reference ignores dilations when
    it pads by itself, takes negative pads, and gives indices in the padded tensor."""
    (x,) = arrays(node)
    kernel, axes = window_geometry(node, x.shape[2:])
    low = node.op == "MaxPool" and node.type() in values.INTEGERS
    wide = x.astype(np.int64) if low else x.astype(np.float64)
    lead, counts = x.shape[:2], tuple(axis[0] for axis in axes)
    best = np.full(lead + counts, np.iinfo(np.int64).min if low else -np.inf, wide.dtype)
    place, total = np.full(lead + counts, -1, np.int64), np.zeros(lead + counts)
    inside, padded = np.zeros(counts), np.zeros(counts)
    strides = node_strides(node, x.shape[2:])
    p = node.attributes.get("p", 2)
    for tap in np.ndindex(*kernel):
        at = [np.arange(count) * stride + k * dilation - before
              for (count, before, _, stride, dilation), k in zip(axes, tap)]
        grid = np.meshgrid(*at, indexing="ij")
        real = np.all([(g >= 0) & (g < size) for g, size in zip(grid, x.shape[2:])], axis=0)
        edges = zip(grid, x.shape[2:], axes)
        near = np.all([(g >= -axis[1]) & (g < size + axis[2]) for g, size, axis in edges], axis=0)
        inside, padded = inside + real, padded + near
        picked = wide[(slice(None), slice(None), *[np.clip(g, 0, s - 1) for g, s in zip(grid, x.shape[2:])])]
        better = real & ((picked > best) | ((place < 0) & (picked >= best)))
        best = np.where(better, picked, best)
        flat = sum(g * stride for g, stride in zip(grid, strides))
        place = np.where(better, np.broadcast_to(flat, better.shape), place)
        total = total + np.where(real, np.abs(picked) ** p if node.op == "LpPool" else picked, 0)
    if (inside == 0).any():
        raise Skip("a window without elements")
    if node.op == "MaxPool":
        base = np.arange(lead[0] * lead[1]).reshape(lead + (1,) * len(counts)) * int(np.prod(x.shape[2:]))
        return [best.astype(x.dtype), place + base]
    if node.op == "LpPool":
        return [(total ** (1 / p)).astype(x.dtype)]
    return [(total / (padded if node.attributes.get("count_include_pad") else inside)).astype(x.dtype)]


def node_strides(node, sizes):
    """Distances of the elements that indices count: row-major, or the other way round."""
    order = range(len(sizes)) if node.attributes.get("storage_order") else reversed(range(len(sizes)))
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis], step = step, step * sizes[axis]
    return strides


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@definition("RNN", "GRU", "LSTM")
def recurrent(node):
    """"sequence_lens: Optional tensor specifying lengths of the sequences in a batch"; "clip: [...] applied to the
    input of activations"; "input_forget: Couple the input and forget gates if 1"; peepholes per direction. The reference
    ignores the first three."""
    inputs = arrays(node) + [None] * (8 - len(node.inputs))
    attributes, kind, gates = node.attributes, node.dtype(), GATES[node.op]
    wide = lambda array: None if array is None else array.astype(np.float64)
    x, weights, recurrence, bias, lengths, hidden, cell, peepholes = (
        array if at == 4 else wide(array) for at, array in enumerate(inputs)
    )
    if attributes.get("layout"):
        x = x.swapaxes(0, 1)
        hidden, cell = (None if a is None else a.swapaxes(0, 1) for a in (hidden, cell))
    steps, batch, _ = x.shape
    directions, size = weights.shape[0], attributes["hidden_size"]
    lengths = np.full(batch, steps) if lengths is None else lengths
    output = np.zeros((steps, directions, batch, size))
    last, last_cell = np.zeros((directions, batch, size)), np.zeros((directions, batch, size))
    for side in range(directions):
        backwards = side == 1 or attributes.get("direction") == "reverse"
        both = np.zeros(2 * gates * size) if bias is None else bias[side]
        for row in range(batch):
            h = np.zeros(size) if hidden is None else hidden[side, row]
            c = np.zeros(size) if cell is None else cell[side, row]
            count = int(lengths[row])
            for step in reversed(range(count)) if backwards else range(count):
                peep = np.zeros(3 * size) if peepholes is None else peepholes[side]
                h, c = CELLS[node.op](node, x[step, row], h, c, weights[side], recurrence[side], both, peep, size)
                output[step, side, row] = h
            last[side, row], last_cell[side, row] = h, c
    if attributes.get("layout"):
        output, last, last_cell = output.transpose(2, 0, 1, 3), last.swapaxes(0, 1), last_cell.swapaxes(0, 1)
    return [result.astype(kind) for result in (output, last, last_cell)]


def clipped(node, x):
    bound = node.attributes.get("clip")
    return x if bound is None else np.clip(x, -bound, bound)


def rnn_cell(node, x, h, c, w, r, b, _peepholes, size):
    return np.tanh(clipped(node, w @ x + r @ h + b[:size] + b[size:])), c


def gru_cell(node, x, h, c, w, r, b, _peepholes, size):
    wb, rb = b[: 3 * size], b[3 * size:]
    of = lambda array, gate: array[gate * size:(gate + 1) * size]
    z = sigmoid(clipped(node, of(w, 0) @ x + of(r, 0) @ h + of(wb, 0) + of(rb, 0)))
    reset = sigmoid(clipped(node, of(w, 1) @ x + of(r, 1) @ h + of(wb, 1) + of(rb, 1)))
    if node.attributes.get("linear_before_reset"):
        new = of(w, 2) @ x + reset * (of(r, 2) @ h + of(rb, 2)) + of(wb, 2)
    else:
        new = of(w, 2) @ x + of(r, 2) @ (reset * h) + of(rb, 2) + of(wb, 2)
    return (1 - z) * np.tanh(clipped(node, new)) + z * h, c


def lstm_cell(node, x, h, c, w, r, b, peepholes, size):
    i, o, f, g = np.split(w @ x + r @ h + b[: 4 * size] + b[4 * size:], 4)
    pi, po, pf = np.split(peepholes, 3)
    i = sigmoid(clipped(node, i + pi * c))
    f = 1 - i if node.attributes.get("input_forget") else sigmoid(clipped(node, f + pf * c))
    c = f * c + i * np.tanh(clipped(node, g))
    return sigmoid(clipped(node, o + po * c)) * np.tanh(c), c


CELLS = {"RNN": rnn_cell, "GRU": gru_cell, "LSTM": lstm_cell}


@definition("MeanVarianceNormalization")
def mean_variance(node):
    """"(X-EX)/sqrt(E(X-EX)^2)". The body of the function has f32 constants, which f64 operands do not meet."""
    (x,) = arrays(node)
    axes = tuple(node.attributes.get("axes", [0, 2, 3]))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=axes, keepdims=True))
    return [(centred / (deviation + 1e-9)).astype(x.dtype)]


@definition("MaxRoiPool")
def max_roi_pool(node):
    """"Rois [...] given as [[batch_id, x1, y1, x2, y2], ...]", both ends included; each is cut into `pooled_shape` bins
    of floor and ceiling edges, as in Fast R-CNN, which the operator is named after. An empty bin gives 0."""
    x, rois = arrays(node)
    rows, columns = node.attributes["pooled_shape"]
    scale = np.float64(np.float32(node.attributes.get("spatial_scale", 1.0)))
    result = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    half_up = lambda value: int(np.floor(value + 0.5))
    for at, roi in enumerate(rois.astype(np.float64)):
        left, top, right, bottom = (half_up(value * scale) for value in roi[1:])
        height, width = max(bottom - top + 1, 1) / rows, max(right - left + 1, 1) / columns
        for row, column in np.ndindex(rows, columns):
            bounds = lambda first, size, index, limit: (
                min(max(first + int(np.floor(index * size)), 0), limit),
                min(max(first + int(np.ceil((index + 1) * size)), 0), limit),
            )
            low, high = bounds(top, height, row, x.shape[2])
            start, end = bounds(left, width, column, x.shape[3])
            if low < high and start < end:
                result[at, :, row, column] = x[int(roi[0]), :, low:high, start:end].max(axis=(1, 2))
    return [result]


@definition("Unsqueeze")
def unsqueeze(node):
    """"The order of values in axes does not matter and can come in any order." To the reference of version 11 it
    does."""
    x, *axes = arrays(node)
    axes = axes[0].tolist() if axes else node.attributes["axes"]
    rank = x.ndim + len(axes)
    return [np.expand_dims(x, tuple(sorted(axis % rank for axis in axes)))]


@definition("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node):
    """"If ignore_index given in input, it doesn't contribute to input gradient", and "for reduction = mean, [...] the
    loss is divided by the sum of the applied weights"; the reference divides by the count of all where there are no weights."""
    x, target, *weights = arrays(node)
    ignore = node.attributes.get("ignore_index")
    wide = x.astype(np.float64)
    kept = np.ones(target.shape, bool) if ignore is None else target != ignore
    label = np.where(kept, target, 0)
    applied = np.where(kept, weights[0].astype(np.float64)[label] if weights else 1.0, 0.0)
    loss = -np.take_along_axis(wide, np.expand_dims(label, 1), 1).squeeze(1) * applied
    reduction = node.attributes.get("reduction", "mean")
    result = {"none": lambda: loss, "sum": loss.sum, "mean": lambda: loss.sum() / applied.sum()}[reduction]()
    return [np.asarray(result).astype(x.dtype)]


@definition("Unique")
def unique(node):
    """"If 'axis' is not specified, the input tensor is flattened and unique values of the flattened tensor are
    returned"; not sorted ones are "in the same order as they occur in X". The reference takes those along axis 0."""
    (x,) = arrays(node)
    axis = node.attributes.get("axis")
    slices = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    wide = slices.astype(np.float64) if values.NAMES[x.dtype] in values.HALVES else slices
    part = lambda value: (value.real, value.imag) if np.iscomplexobj(value) else (value,)
    keys = [tuple(number for value in row.tolist() for number in part(value)) for row in wide]
    first = {}
    for at, key in enumerate(keys):
        first.setdefault(key, at)
    order = list(first) if node.attributes.get("sorted") == 0 else sorted(first)
    indices = np.array([first[key] for key in order], np.int64)
    rank = {key: at for at, key in enumerate(order)}
    inverse = np.array([rank[key] for key in keys], np.int64)
    counts = np.bincount(inverse, minlength=len(order)).astype(np.int64)
    picked = x.reshape(-1)[indices] if axis is None else np.take(x, indices, axis)
    return [picked, indices, inverse, counts]


@definition("Expand")
def expand(node):
    """"Broadcast the input tensor following the given shape and the broadcast rule". The reference multiplies by ones,
    which makes NaN of complex infinities."""
    x, shape = arrays(node)
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape))).copy()]
