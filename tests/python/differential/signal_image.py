"""Recipes of images and signals."""

from fractions import Fraction

import numpy as np

from case import Skip
from elementwise import recipe
from shapes import number
from sums import sums


#: Probability that what decides sizes is a constant: else kernels that find sizes when they run are tried.
KNOWN = 0.4


def image(n, low=1, high=7):
    return (n.integer(1, 2), n.integer(1, 3), n.integer(low, high), n.integer(low, high))


def on_edge(size, factor, nearest):
    """Whether, resized by half_pixel_symmetric, a position lies exactly where the nearest point changes, and is put together
    from fractions that no float is: rounding decides."""
    factor = Fraction(factor)
    length = int(size * factor)
    offset = Fraction(size, 2) * (1 - length / (size * factor))
    positions = [offset + (at + Fraction(1, 2)) / factor - Fraction(1, 2) for at in range(length)]
    edge = 0 if nearest in ("floor", "ceil") else Fraction(1, 2)
    return offset != 0 and any(position % 1 == edge for position in positions)


@recipe("Resize")
def resize(n):
    sums(n, 64)
    mode = n.pick("nearest", "linear", "cubic")
    if n.since == 10:
        mode = n.pick("nearest", "linear")
    integers = n.type() not in ("float", "double", "float16", "bfloat16")
    if integers:
        mode = "nearest"
    dims = image(n, 2)
    n.shaped(dims)
    n.attr("mode", mode)
    factors = [1.0, 1.0] + [n.pick(0.5, 1.0, 1.5, 2.0, 3.0) for _ in range(2)]
    if n.since >= 11:
        kinds = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
        kinds += ["half_pixel_symmetric"] if n.since >= 19 else []
        n.maybe("coordinate_transformation_mode", n.pick(*kinds))
        if mode == "nearest":
            n.maybe("nearest_mode", n.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
        if mode == "cubic":
            n.maybe("cubic_coeff_a", -0.5)
            n.maybe("exclude_outside", n.integer(0, 1))
        if n.since >= 13:
            n.omit()
        else:
            n.add(np.array([], n.dtype(1)))
    axes = None
    if n.has("axes") and n.chance(0.3):
        axes = n.pick([2, 3], [3, 2])
        n.attr("axes", axes)
    if n.has("antialias") and mode != "nearest":
        n.maybe("antialias", 1, 0.3)
    pick = lambda items: [items[axis] for axis in axes] if axes else list(items)
    if n.since == 10 or n.chance(0.6):
        resized = [size * factor for size, factor in zip(dims, factors)]
        if n.attributes.get("coordinate_transformation_mode") == "pytorch_half_pixel":
            # "length_resized > 1 ? [...] : 0": the reference takes the length before it is rounded down.
            if any(1 < size < 2 for size in resized):
                raise Skip("half a pixel of one")
        if mode == "nearest" and n.attributes.get("coordinate_transformation_mode") == "half_pixel_symmetric":
            if any(on_edge(size, factor, n.attributes.get("nearest_mode")) for size, factor in zip(dims, factors)):
                raise Skip("a position that rounding moves")
        n.decides(np.array(pick(factors), np.float32))
        return
    if n.since >= 13:
        n.omit()
    else:
        n.add(np.array([], np.float32), 1.0)
    sizes = [dims[0], dims[1], n.integer(1, 12), n.integer(1, 12)]
    if n.has("keep_aspect_ratio_policy") and axes:
        n.maybe("keep_aspect_ratio_policy", n.pick("stretch", "not_larger", "not_smaller"))
    n.decides_ints(pick(sizes))


@recipe("Upsample")
def upsample(n):
    sums(n, 64)
    n.shaped(image(n, 1))
    scales = [1.0, 1.0, float(n.integer(1, 3)), float(n.integer(1, 3))]
    n.attr("mode", "nearest")
    if n.has("height_scale"):
        n.attr("height_scale", scales[2])
        n.attr("width_scale", scales[3])
    elif n.has("scales"):
        n.attr("scales", scales)
    else:
        n.decides(np.array(scales, np.float32))


@recipe("GridSample")
def grid_sample(n):
    sums(n, 128)
    integers = n.type() not in ("float", "double", "float16", "bfloat16")
    modes = ("bilinear", "nearest", "bicubic") if n.since < 20 else ("linear", "nearest", "cubic")
    mode = "nearest" if integers else n.pick(*modes)
    n.attr("mode", mode)
    n.maybe("padding_mode", n.pick("zeros", "border", "reflection"))
    n.maybe("align_corners", n.integer(0, 1))
    dims = image(n, 2)
    if n.since >= 20 and mode != "cubic" and n.chance(0.3):
        dims += (n.integer(2, 4),)
    n.shaped(dims)
    rank = len(dims) - 2
    # Away from where the nearest pixel, or the border, is a matter of rounding.
    grid = n.rng.integers(-15, 16, (dims[0],) + tuple(n.integer(1, 4) for _ in range(rank)) + (rank,)) / 11.0 + 0.013
    n.add(grid.astype(n.dtype(1)))


@recipe("AffineGrid")
def affine_grid(n):
    sums(n, 32)
    rank = n.pick(2, 3)
    batch = n.integer(1, 2)
    n.shaped((batch, rank, rank + 1))
    n.decides_ints([batch, n.integer(1, 3)] + [n.integer(2, 5) for _ in range(rank)], probability=KNOWN)
    n.maybe("align_corners", n.integer(0, 1))


@recipe("RoiAlign")
def roi_align(n):
    sums(n, 128)
    dims = image(n, 4, 9)
    n.shaped(dims)
    count = n.integer(1, 3)
    corners = n.rng.uniform(0, 3, (count, 2))
    n.add(np.concatenate([corners, corners + n.rng.uniform(1, 4, (count, 2))], 1).astype(n.dtype(1)))
    n.add(n.rng.integers(0, dims[0], count).astype(np.int64))
    n.maybe("mode", n.pick("avg", "max"))
    n.maybe("output_height", n.integer(1, 3))
    n.maybe("output_width", n.integer(1, 3))
    n.maybe("sampling_ratio", n.integer(0, 2))
    n.maybe("spatial_scale", 0.8)
    n.maybe("coordinate_transformation_mode", n.pick("half_pixel", "output_half_pixel"))


@recipe("MaxRoiPool")
def max_roi_pool(n):
    dims = image(n, 4, 9)
    n.shaped(dims, edge=0)
    count = n.integer(1, 3)
    corners = n.rng.integers(0, 3, (count, 2))
    batch = n.rng.integers(0, dims[0], (count, 1))
    n.add(np.concatenate([batch, corners, corners + n.rng.integers(0, 4, (count, 2))], 1).astype(n.dtype(1)))
    n.attr("pooled_shape", [n.integer(1, 3), n.integer(1, 3)])


@recipe("DeformConv")
def deform_conv(n):
    sums(n, 64)
    groups = n.pick(1, 1, 2)
    channels, filters, kernel = groups * n.integer(1, 2), groups * n.integer(1, 2), n.integer(1, 2)
    batch, height, width = 1, n.integer(3, 5), n.integer(3, 5)
    n.shaped((batch, channels, height, width))
    n.data((filters, channels // groups, kernel, kernel), at=1)
    if groups > 1:
        n.attr("group", groups)
    out = (height - kernel + 1, width - kernel + 1)
    n.add((n.draw(2, (batch, 2 * kernel * kernel) + out, -1, 1)))
    if n.chance(0.5):
        n.data((filters,), at=3)
    else:
        n.omit()
    if n.chance(0.5):
        n.data((batch, kernel * kernel) + out, 0, 1, at=4)


@recipe("Col2Im")
def col2im(n):
    sums(n, 16)
    rank = n.pick(1, 2, 2, 2, 3)
    sizes, block = [n.integer(3, 6) for _ in range(rank)], [n.integer(1, 3) for _ in range(rank)]
    pads, strides = [n.integer(0, 2) for _ in range(2 * rank)], [n.integer(1, 2) for _ in range(rank)]
    dilations = [n.integer(1, 2) for _ in range(rank)]
    pads = n.maybe("pads", pads, 0.4) or [0] * (2 * rank)
    strides = n.maybe("strides", strides, 0.4) or [1] * rank
    dilations = n.maybe("dilations", dilations, 0.3) or [1] * rank
    spans = [
        size + pads[at] + pads[at + rank] - (block[at] - 1) * dilations[at] - 1 for at, size in enumerate(sizes)]
    if min(spans) < 0:
        raise Skip("blocks")
    blocks = int(np.prod([span // stride + 1 for span, stride in zip(spans, strides)]))
    if blocks > 200:
        raise Skip("many")
    n.shaped((n.integer(1, 2), n.integer(1, 2) * int(np.prod(block)), blocks))
    n.decides_ints(sizes, probability=KNOWN)
    n.decides_ints(block, probability=KNOWN)


@recipe("Det")
def det(n):
    sums(n, 64)
    size = n.integer(1, 4)
    n.shaped(n.shape(0, 2, zeros=False) + (size, size))


@recipe("DFT")
def dft(n):
    sums(n, 128)
    length = n.integer(1, 12)
    inverse = n.maybe("inverse", n.integer(0, 1)) or 0
    onesided = 0 if inverse else (n.maybe("onesided", n.integer(0, 1)) or 0)
    dims = (n.integer(1, 2), length, n.integer(1, 3), 1 if onesided or n.chance(0.4) else 2)
    n.shaped(dims)
    axis = n.pick(1, 1, 2)
    transformed = n.chance(0.5)
    if n.has("axis"):
        if axis == 2 or n.chance(0.5):
            n.attr("axis", axis)
        if transformed:
            n.decides(np.array(n.pick(dims[axis], n.integer(1, 14))).astype(n.dtype(1)), KNOWN)
        return
    if transformed:
        n.decides(np.array(n.pick(dims[axis], n.integer(1, 14))).astype(n.dtype(1)), KNOWN)
    else:
        n.omit()
    n.decides(np.array(n.pick(axis, axis, axis - 4), np.int64), KNOWN)


@recipe("STFT")
def stft(n):
    sums(n, 256)
    length, step = n.integer(2, 8), n.integer(1, 4)
    onesided = n.maybe("onesided", n.integer(0, 1))
    n.shaped((n.integer(1, 2), length + n.integer(0, 9), 1 if onesided in (None, 1) or n.chance(0.5) else 2))
    n.decides(np.array(step).astype(n.dtype(1)), KNOWN)
    if n.chance(0.5):
        n.data((length,), 0, 1, at=2)
        if n.chance(0.5):
            n.decides(np.array(length).astype(n.dtype(3)), KNOWN)
    else:
        n.omit()
        n.decides(np.array(length).astype(n.dtype(3)), KNOWN)


@recipe("MelWeightMatrix")
def mel(n):
    bins, length, rate = n.integer(2, 6), n.pick(16, 32), n.pick(8000, 16000)
    for at, value in enumerate((bins, length, rate)):
        if value > np.iinfo(n.dtype(at)).max:
            raise Skip("range")
        n.decides(np.array(value).astype(n.dtype(at)), KNOWN)
    n.decides(np.array(20.0).astype(n.dtype(3)), KNOWN)
    n.decides(np.array(2048.0 if n.type(3) == "bfloat16" else 3000.0).astype(n.dtype(4)), KNOWN)
    n.attr("output_datatype", number(n.out_type()))


@recipe("NonMaxSuppression")
def non_max_suppression(n):
    batch, boxes, classes = n.integer(1, 2), n.integer(0 if n.chance(0.1) else 1, 12), n.integer(1, 3)
    corners = n.rng.uniform(0, 1, (batch, boxes, 2))
    sizes = n.rng.uniform(0.1, 1, (batch, boxes, 2))
    centres = n.maybe("center_point_box", n.integer(0, 1), 0.3)
    pair = [corners, sizes] if centres else [corners, corners + sizes]
    if not centres and n.chance(0.3):
        # "(y1, x1) and (y2, x2) are the coordinates of any diagonal pair of box corners".
        pair = pair[::-1]
    n.add(np.concatenate(pair, 2).astype(np.float32))
    scores = n.rng.permutation(batch * classes * boxes).reshape(batch, classes, boxes) / 20
    if n.chance(0.2):
        # Of equal scores the first box is the first.
        scores = np.floor(scores * 2) / 2
    n.add(scores.astype(np.float32))
    shape = (1,) * n.integer(0, 1)
    rest = [np.full(shape, n.integer(0, 4), np.int64), np.full(shape, n.rng.uniform(0, 0.9), np.float32),
            np.full(shape, n.pick(0.1, 0.5), np.float32)]
    for array in rest[: n.pick(0, 1, 2, 3, 3, 3)]:
        n.decides(array, KNOWN)


@recipe("TfIdfVectorizer")
def tf_idf(n):
    n.attr("mode", n.pick("TF", "IDF", "TFIDF"))
    n.attr("min_gram_length", 1)
    n.attr("max_gram_length", 2)
    n.attr("max_skip_count", n.integer(0, 2))
    n.attr("ngram_counts", [0, 2])
    n.attr("ngram_indexes", [0, 1, 2, 3])
    n.attr("pool_int64s", [2, 3, 2, 3, 1, 2])
    if n.chance(0.5):
        n.attr("weights", [0.5, 1.0, 2.0, 0.25])
    n.shaped((n.integer(1, 8),) if n.chance(0.5) else (n.integer(1, 3), n.integer(1, 6)), low=1, high=4, edge=0)
