"""What operators of com.microsoft give that resemble those of the standard: by NumPy, or by the reference of the standard."""

import numpy as np

from case import Close, Skip
from reference import modern
from vendor import arrays, attribute, definition, wide


@definition("Trilu")
def trilu(node):
    x, k = arrays(node)
    function = np.triu if attribute(node, "upper", 1) else np.tril
    return [function(x, 0 if k is None else int(k))]


@definition("Range")
def range_(node):
    start, limit, delta = (None if array is None else array.reshape(()) for array in arrays(node))
    dtype = start.dtype
    delta = dtype.type(1) if delta is None else delta
    count = max(int(np.ceil((float(limit) - float(start)) / float(delta))), 0)
    return [(float(start) + np.arange(count) * float(delta)).astype(dtype)]


@definition("Pad")
def pad(node):
    x, pads, value = arrays(node)
    pads = pads.reshape(2, -1).T
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        return [np.pad(x, pads, mode=mode)]
    cut = [slice(max(-low, 0), size + min(high, 0)) for (low, high), size in zip(pads, x.shape)]
    fill = 0 if value is None else value.reshape(())
    return [np.pad(x[tuple(cut)], np.maximum(pads, 0), constant_values=fill)]


@definition("Unique")
def unique(node):
    x = arrays(node)[0]
    if x.dtype.kind in "fc" and np.any(np.isnan(x)):
        raise Skip("what equals nothing")
    _, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    rank = np.argsort(order)
    return [x[first[order]], rank[inverse.reshape(-1)], counts[order]]


@definition("GatherND")
def gather_nd(node):
    data, indices = arrays(node)
    return [data[tuple(np.moveaxis(indices, -1, 0))]]


@definition("ExpandDims")
def expand_dims(node):
    x, axis = arrays(node)
    return [np.expand_dims(x, int(axis))]


def cubic_weights(t, a=-0.75):
    """Of the points at -1, 0, 1 and 2."""
    far = lambda d: a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    near = lambda d: (a + 2) * d**3 - (a + 3) * d**2 + 1
    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def cubic_to_border(x, place):
    """Points beyond the border are those on it."""
    _, _, height, width = x.shape
    y = np.zeros((x.shape[0], x.shape[1], *place.shape[1:3]))
    for n, i, j in np.ndindex(*place.shape[:3]):
        h, v = place[n, i, j]
        left, top = int(np.floor(h)), int(np.floor(v))
        for down, a in enumerate(cubic_weights(v - top)):
            for right, b in enumerate(cubic_weights(h - left)):
                at = np.clip(top - 1 + down, 0, height - 1), np.clip(left - 1 + right, 0, width - 1)
                y[n, :, i, j] += a * b * x[n, :, at[0], at[1]]
    return y


@definition("GridSample")
def grid_sample(node):
    x, grid = arrays(node)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attribute(node, "mode", "bilinear"), "nearest")
    padding, align = attribute(node, "padding_mode", "zeros"), attribute(node, "align_corners", 0)
    sizes = np.array(x.shape[:1:-1], np.float64)
    place = (wide(grid) + 1) / 2 * (sizes - 1) if align else ((wide(grid) + 1) * sizes - 1) / 2
    if mode == "nearest" and np.any(np.abs(place - np.floor(place) - 0.5) < 1e-2):
        raise Close("a tie")
    if (mode, padding) == ("cubic", "border"):
        # The reference of the standard weighs points beyond the border in another way.
        return [cubic_to_border(wide(x), place).astype(x.dtype)]
    found = modern("GridSample", [wide(x), wide(grid)], opset=20, mode=mode, padding_mode=padding, align_corners=align)
    return [found[0].astype(x.dtype)]


@definition("ConvTransposeWithDynamicPads")
def conv_transpose(node):
    x, w, pads, bias = arrays(node)
    rank = x.ndim - 2
    strides, dilations = attribute(node, "strides", [1] * rank), attribute(node, "dilations", [1] * rank)
    pads = [0] * 2 * rank if pads is None else pads
    groups, (depth, each, *kernel) = attribute(node, "group", 1), w.shape
    full = [(size - 1) * s + (k - 1) * d + 1 for size, s, k, d in zip(x.shape[2:], strides, kernel, dilations)]
    y = np.zeros((x.shape[0], groups * each, *full))
    for tap in np.ndindex(*kernel):
        place = [slice(t * d, t * d + (size - 1) * s + 1, s) for t, d, size, s in zip(tap, dilations, x.shape[2:], strides)]
        for group in range(groups):
            own = slice(group * depth // groups, (group + 1) * depth // groups)
            part = np.einsum("nc...,cm->nm...", wide(x)[:, own], wide(w)[own][(slice(None), slice(None), *tap)])
            y[(slice(None), slice(group * each, (group + 1) * each), *place)] += part
    cut = [slice(int(low), size - int(high)) for low, high, size in zip(pads[:rank], pads[rank:], full)]
    y = y[(slice(None), slice(None), *cut)]
    if 0 in y.shape:
        raise Skip("nothing")
    return [(y if bias is None else y + wide(bias).reshape((-1,) + (1,) * rank)).astype(x.dtype)]


@definition("TorchEmbedding")
def embedding(node):
    rows, indices, *_ = arrays(node)
    return [rows[indices]]


@definition("SampleOp")
def sample(node):
    return [arrays(node)[0]]


@definition("UnfoldTensor")
def unfold(node):
    x, axis = arrays(node)[0], attribute(node, "dim", -1)
    found = np.lib.stride_tricks.sliding_window_view(x, attribute(node, "size"), axis)
    return [np.ascontiguousarray(found.take(range(0, found.shape[axis % x.ndim], attribute(node, "step", 1)), axis % x.ndim))]


@definition("Rfft")
def rfft(node):
    found = np.fft.rfft(wide(arrays(node)[0]))
    return [np.stack([found.real, found.imag], -1).astype(node.dtype())]


@definition("Irfft")
def irfft(node):
    x = wide(arrays(node)[0])
    return [np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(node.dtype())]


@definition("NGramRepeatBlock")
def n_gram(node):
    ids, scores = arrays(node)
    size, y = attribute(node, "ngram_size"), scores.copy()
    for row, own in zip(ids, y):
        last = row[len(row) - size + 1:] if size > 1 else row[:0]
        for at in range(len(row) - size + 1):
            if np.array_equal(row[at:at + size - 1], last):
                own[row[at + size - 1]] = -np.inf
    return [y]


@definition("Inverse")
def inverse(node):
    x = arrays(node)[0]
    return [np.linalg.inv(wide(x)).astype(x.dtype)]


@definition("MulInteger")
def mul_integer(node):
    a, za, b, zb = arrays(node)
    shifted = lambda x, zero: x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32).reshape(()))
    return [shifted(a, za) * shifted(b, zb)]


@definition("MatMulInteger16")
def mat_mul_integer_16(node):
    a, b = (array.astype(np.int64) for array in arrays(node))
    return [(a @ b).astype(np.dtype(node.out_type()))]


@definition("ReduceSumInteger")
def reduce_sum_integer(node):
    x, keep = arrays(node)[0], bool(attribute(node, "keepdims"))
    return [x.astype(np.int64).sum(tuple(attribute(node, "axes")), keepdims=keep).astype(np.dtype(node.out_type()))]


@definition("CDist")
def distances(node):
    a, b = arrays(node)
    squares = ((wide(a)[:, None] - wide(b)[None]) ** 2).sum(-1)
    node.magnitude = float(max((wide(a) ** 2).sum(-1).max(), (wide(b) ** 2).sum(-1).max()))
    if attribute(node, "metric", "sqeuclidean") == "sqeuclidean":
        return [squares.astype(a.dtype)]
    if np.any(squares < 0.05 * node.magnitude):
        raise Close("points next to each other")
    return [np.sqrt(squares).astype(a.dtype)]


@definition("ComplexMul", "ComplexMulConj")
def complex_mul(node):
    a, b = (wide(array)[..., 0] + 1j * wide(array)[..., 1] for array in arrays(node))
    y = a * (b.conj() if node.op == "ComplexMulConj" else b)
    node.magnitude = float(np.abs(y).max(initial=0))
    return [np.stack([y.real, y.imag], -1).astype(node.dtype())]


@definition("IsAllFinite")
def is_all_finite(node):
    given = [wide(array) for array, _ in node.inputs]
    bad = np.isinf if attribute(node, "isinf_only", 0) else np.isnan if attribute(node, "isnan_only", 0) else lambda x: ~np.isfinite(x)
    return [np.array(not any(np.any(bad(x)) for x in given))]


@definition("MurmurHash3")
def murmur(node):
    x = arrays(node)[0]
    words = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint32)
    with np.errstate(over="ignore"):
        u = np.uint32
        turned = lambda k, count: (k << u(count)) | (k >> u(32 - count))
        h = np.full(x.size, attribute(node, "seed", 0), u)
        for at in range(words.shape[1]):
            k = turned(words[:, at] * u(0xCC9E2D51), 15) * u(0x1B873593)
            h = turned(h ^ k, 13) * u(5) + u(0xE6546B64)
        h ^= u(4 * words.shape[1])
        h = (h ^ (h >> u(16))) * u(0x85EBCA6B)
        h = (h ^ (h >> u(13))) * u(0xC2B2AE35)
        h ^= h >> u(16)
    return [(h if attribute(node, "positive", 1) else h.view(np.int32)).reshape(x.shape)]


@definition("CropAndResize")
def crop_and_resize(node):
    x, rois, images, counts = arrays(node)
    dtype, x, rois = x.dtype, wide(x), wide(rois)
    y = np.empty((len(rois), x.shape[1], *counts))
    for at, (roi, image) in enumerate(zip(rois, images)):
        places = []
        for axis, count in enumerate(counts):
            start, end, last = roi[axis], roi[axis + 2], x.shape[2 + axis] - 1
            place = np.array([(start + end) / 2 * last]) if count == 1 else np.linspace(start, end, count) * last
            edges = np.abs(place[:, None] - np.array([0, last]))
            if np.any(edges < 1e-3) or np.any(np.abs(place - np.floor(place) - 0.5) < 1e-3):
                raise Close("a tie")
            places.append(place)
        for i, j in np.ndindex(*counts):
            v, h = places[0][i], places[1][j]
            if not (0 <= v <= x.shape[2] - 1 and 0 <= h <= x.shape[3] - 1):
                y[at, :, i, j] = attribute(node, "extrapolation_value", 0.0)
            elif attribute(node, "mode", "bilinear") == "nearest":
                y[at, :, i, j] = x[image, :, int(np.floor(v + 0.5)), int(np.floor(h + 0.5))]
            else:
                top, left = int(np.floor(v)), int(np.floor(h))
                square = x[image, :, top:top + 2, left:left + 2]
                y[at, :, i, j] = np.einsum("cij,i,j->c", square, [top + 1 - v, v - top], [left + 1 - h, h - left])
    return [y.astype(dtype)]
