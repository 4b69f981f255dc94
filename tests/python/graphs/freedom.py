"""What the specification leaves open: operands for which implementations give different results, and may. What depends on
such a result is not compared; it must only not crash, and be the same in every memory."""

import math
from fractions import Fraction

import numpy as np

import items
import microsoft
import values


def floats(vertex, arrays):
    """Float operands as f64, None for others."""
    given = [arrays[name] if name else None for name in vertex.inputs]
    is_float = lambda array: array is not None and not items.is_other(array) and values.NAMES[array.dtype] in values.FLOATS
    return [array.astype(np.float64) if is_float(array) else None for array in given]


def some(test):
    """Whether an element of any float operand passes."""
    def applies(vertex, arrays):
        return any(array is not None and bool(test(array).any()) for array in floats(vertex, arrays))
    return applies


nan = some(np.isnan)
not_finite = some(lambda array: ~np.isfinite(array))
#: Beyond it a result overflows in some order of the operations.
huge = some(lambda array: ~(np.abs(array) < 1e30))


def out_of_range(vertex, arrays):
    """A float that the integer type does not have."""
    to, operand = vertex.node.out_type(), floats(vertex, arrays)[0]
    if operand is None or to in values.FLOATS | values.COMPLEX | {"bool", values.STRING}:
        return False
    low, high = values.integer_range(to) if to in values.INTEGERS else (-200, 200)
    return not bool((np.isfinite(operand) & (operand > low - 1) & (operand < high + 1)).all())


def power_out_of_range(vertex, arrays):
    """A power of an integer by a float that is not an integer of the type."""
    base, exponent = (arrays[name] for name in vertex.inputs)
    if values.NAMES[base.dtype] not in values.INTEGERS:
        return False
    if values.NAMES[exponent.dtype] in values.INTEGERS:
        return bool((exponent < 0).any())
    if vertex.node.attributes.get("broadcast", 0):
        # Of the first versions, along an axis: each by each.
        base, exponent = base.reshape(-1, 1), exponent.reshape(1, -1)
    power = np.power(base.astype(np.float64), exponent.astype(np.float64))
    low, high = values.integer_range(values.NAMES[base.dtype])
    return not bool((np.isfinite(power) & (power > low - 1) & (power < high + 1)).all())


def unscalable(vertex, arrays):
    """NaN, and what the scale takes beyond 32 bits or beyond its own type: the reference converts without saturation."""
    x, scale = floats(vertex, arrays)[:2]
    if x is None or not bool((np.abs(x) < 1e6).all()):
        return True
    if scale is None:
        return False
    limit = 65504.0 if arrays[vertex.inputs[1]].dtype == np.float16 else 1e9
    return not bool(np.abs(x).max(initial=0) < limit * np.abs(scale).min(initial=np.inf))


def empty(vertex, arrays):
    """No element is the greatest of none."""
    return arrays[vertex.inputs[0]].size == 0


def flat(vertex, arrays):
    """Zeros alone have no scale."""
    x = floats(vertex, arrays)[0]
    return not_finite(vertex, arrays) or x.size == 0 or not x.any()


def integers(vertex, arrays):
    """Exponentials of integers are floats of an open width: what is almost 0 is lost beside their 1, or not."""
    return floats(vertex, arrays)[0] is None or not_finite(vertex, arrays) or tiny(vertex, arrays)


#: Operators of com.microsoft that divide by the scale of their result.
SCALED = {f"{microsoft.DOMAIN}.{name}" for name in (
    "QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul "
    "QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere").split()}


#: Only the kernels of operators of com.microsoft define their results for these.
beyond_millions = some(lambda array: ~(np.abs(array) < 1e6))


def huge_angle(vertex, arrays):
    """An angle whose rounding error is more than a period: its tangent is any number, where a sine is none beyond 1."""
    x = floats(vertex, arrays)[0]
    epsilon = values.epsilon(values.NAMES[arrays[vertex.inputs[0]].dtype])
    return bool((np.isfinite(x) & (np.abs(x) * epsilon > np.pi)).any())


#: Its square is zero in f32, or none in f64.
tiny = some(lambda array: (array != 0) & (np.abs(array) < 1e-18))


#: Its exponential, relative to that of another, is none in some precision.
steep = some(lambda array: ~(np.abs(array) < 40))


#: A power of it is infinite in f32.
steep_power = some(lambda array: np.abs(array) > 1e10)
#: Its square is infinite in f32, in which sums may be computed.
beyond_single = some(lambda array: np.abs(array) > 1e17)


#: Products of it leave the range of f32 in some order of the factors.
lopsided = some(lambda array: (np.abs(array) > 1e12) | (array != 0) & (np.abs(array) < 1e-12))


def reduced_axes(vertex, arrays):
    """Axes of a reduction; all where none are given."""
    given = vertex.inputs[1] if len(vertex.inputs) > 1 else ""
    axes = arrays[given].tolist() if given else vertex.node.attributes.get("axes")
    return tuple(axes) if axes else None


def many_factors(vertex, arrays):
    """Factors beyond 1, or those below, leave the range of the type by themselves, and others bring the product back:
    0, and NaN or another number in another order."""
    x = floats(vertex, arrays)[0]
    if x is None or lopsided(vertex, arrays):
        return x is not None
    limit = 1000 if arrays[vertex.inputs[0]].dtype == np.float64 else 120
    axes, digits = reduced_axes(vertex, arrays), np.log2(np.where(x == 0, 1, np.abs(x)))
    beyond, below = (part.sum(axes) for part in (np.maximum(digits, 0), np.minimum(digits, 0)))
    zeros = (x == 0).any(axes)
    return bool(((beyond > limit) & (zeros | (below < 0)) | (below < -limit) & (beyond > 0)).any())


def overflowing_squares(vertex, arrays):
    """Roots of squares of integers that overflow."""
    x = arrays[vertex.inputs[0]]
    return floats(vertex, arrays)[0] is None and bool(np.square(x.astype(np.float64)).sum() > np.iinfo(x.dtype).max)


def overflowing_sum(vertex, arrays):
    """A mean of numbers whose sum the type does not have: they may be divided before they are added."""
    kind = arrays[vertex.inputs[0]].dtype
    terms = [np.where(np.isfinite(array), np.abs(array), 0.0) for array in floats(vertex, arrays) if array is not None]
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.asarray(sum(terms)).astype(kind).astype(np.float64)).any())


def not_countable(vertex, arrays):
    """A float that is not an index, or a depth below zero."""
    return no_index(vertex, arrays) or bool((arrays[vertex.inputs[1]] < 0).any())


def beyond_scales(vertex, arrays):
    """A factor of a quantised result is infinite in f32: times 0 it is NaN, and so is the difference of two such terms."""
    scales = [np.abs(array) for array in floats(vertex, arrays) if array is not None and array.size]
    result = scales.pop(0 if vertex.op == "com.microsoft.QLinearConcat" else -1)
    with np.errstate(all="ignore"):
        each = [scale.max() for scale in scales]
        return not bool(np.max([*each, np.prod(each)]) / result.min() < 1e30)


def grows(vertex, arrays):
    """Exponentials of the decay that are infinite in f32."""
    decay = floats(vertex, arrays)[4] if len(vertex.inputs) > 4 else None
    return decay is not None and bool((decay > 80).any())


def vendor(vertex, arrays):
    """What operators of com.microsoft make of large numbers, and of scales by which the result of a quantised one is infinite."""
    if vertex.op == f"{microsoft.DOMAIN}.LinearAttention" and grows(vertex, arrays):
        return True
    return beyond_millions(vertex, arrays) or vertex.op in SCALED and beyond_scales(vertex, arrays)


#: Points along a side of a region.
MOST_POINTS = 1000


#: Infinite, or no index of 64 bits.
no_index = some(lambda array: ~(np.abs(array) < 2.0**62))


def far_rois(vertex, arrays):
    """Which of a number and NaN is the greater, and the place of a region with corners that are not integers."""
    return nan(vertex, arrays) or bool((~(np.abs(floats(vertex, arrays)[1]) < 1e9)).any())


def inexact_integers(vertex, arrays):
    """The mean of no integers, and of integers that f64 does not have."""
    x = arrays[vertex.inputs[0]]
    return floats(vertex, arrays)[0] is None and (x.size == 0 or bool((np.abs(x.astype(np.float64)) > 2.0**40).any()))


def extremes(vertex, arrays):
    """Which of a number and NaN is the greater."""
    return vertex.node.attributes.get("reduction") in ("min", "max") and nan(vertex, arrays)


def cut_and_repeated(vertex, arrays):
    """What is repeated around data that negative pads cut: all of it, or what they leave."""
    attributes = vertex.node.attributes
    pads = arrays[vertex.inputs[1]] if len(vertex.inputs) > 1 else np.array(attributes.get("pads", attributes.get("paddings")))
    return attributes.get("mode", "constant") != "constant" and bool((pads < 0).any())


def rooted(vertex, arrays):
    """Powers of -inf, which are infinite in C and NaN in some of NumPy's vectors; and those that the type does not have."""
    base = floats(vertex, arrays)[0]
    return power_out_of_range(vertex, arrays) or base is not None and bool(np.isneginf(base).any())


def attended(vertex, arrays):
    """The reference broadcasts the causal mask of one row to all queries, and casts values of another type late. Of a mask of
    integers it cannot make -inf, and ONNX Runtime, asked in its place, sees the keys behind the first query, and those behind a mask
    that is too short. A mask of one column is one for all keys before version 24, which pads it; the reference pads always."""
    names = [*vertex.inputs, "", "", ""]
    query, key, value, mask, past = (arrays.get(name) for name in names[:5])
    causal = vertex.node.attributes.get("is_causal", 0)
    rows = causal and mask is not None and mask.ndim > 1 and mask.shape[-2] == 1
    keys = key.shape[-2] + (0 if past is None else past.shape[-2])
    integers = mask is not None and mask.dtype.kind in "iu" and bool(causal or mask.shape[-1] < keys)
    column = mask is not None and vertex.node.schema.since_version < 24 and mask.shape[-1] == 1 < keys
    return bool(rows or integers or column) or not_finite(vertex, arrays) or value.dtype != query.dtype and bool((np.abs(value) > 6e4).any())


#: Sizes of an image away from it, beyond which the precision of coordinates decides where their reflection lies.
MOST_REFLECTIONS = 1e4


def at_threshold(vertex, arrays):
    """The threshold as the type has it, which is not the attribute: "CastLike(Alpha, X)" says the function body."""
    x = arrays[vertex.inputs[0]]
    name, default = ("alpha", 1.0) if vertex.op == "ThresholdedRelu" else ("lambd", 0.5)
    threshold = vertex.node.attributes.get(name, default)
    own = np.array(threshold).astype(x.dtype)
    return float(own) != threshold and bool((np.abs(x) == np.abs(own)).any())


def beyond_border(vertex, arrays):
    """Of cubic samples beyond the border, the reference moves the sample, others each tap. Reflections of what is far away are
    somewhere."""
    attributes = vertex.node.attributes
    cubic = attributes.get("mode") in ("cubic", "bicubic") and attributes.get("padding_mode") == "border"
    far = attributes.get("padding_mode") == "reflection" and bool((np.abs(floats(vertex, arrays)[1]) > MOST_REFLECTIONS).any())
    return cubic or far or not_finite(vertex, arrays)


def zero_times_infinite(vertex, arrays):
    """Products of a zero and what is not finite: NaN, or left out by libraries of matrix products."""
    a, b = floats(vertex, arrays)[:2]
    if a is None or b is None:
        return False
    return any(bool((one == 0).any()) and not bool(np.isfinite(other).all()) for one, other in ((a, b), (b, a)))


def closed_gate(vertex, arrays):
    """An infinite factor of a gate that may be 0 in the type of the elements: "Y = Swish_alpha(A) * B", where Swish is that operator."""
    a, b = floats(vertex, arrays)
    with np.errstate(over="ignore"):
        gate = np.abs(a) / (1 + np.exp(-vertex.node.attributes.get("alpha", 1.0) * a))
    tiny_gate = (a != 0) & (gate < values.smallest_normal(values.NAMES[arrays[vertex.inputs[0]].dtype]))
    return bool((tiny_gate & np.isinf(b)).any())


def infinite_statistics(vertex, arrays):
    """Whether the mean is subtracted first, or the scale and the mean made one term: where these, or their product, are not finite
    in f32."""
    scale, _, mean, variance = floats(vertex, arrays)[1:5]
    term = scale * mean / np.sqrt(variance + vertex.node.attributes.get("epsilon", 1e-5))
    return any(not bool((np.abs(array) <= np.finfo(np.float32).max).all()) for array in (scale, mean, variance, term))


def subnormal_terms(vertex, arrays):
    """Products of scores and weights that are subnormal have lost digits, before they are divided by the weights again."""
    x, _, weights = (floats(vertex, arrays) + [None])[:3]
    if x is None or weights is None or vertex.node.attributes.get("reduction", "mean") != "mean":
        return False
    terms = np.abs(x * weights.reshape((1, -1) + (1,) * (x.ndim - 2)))
    return bool(((terms > 0) & (terms < values.smallest_normal(values.NAMES[arrays[vertex.inputs[0]].dtype]))).any())


def below_zero_hertz(vertex, arrays):
    """Edges below 0 Hz, whose bins are before the first: NumPy takes them for the last ones."""
    return any(not bool((array >= 0).all()) for array in floats(vertex, arrays)[3:])


#: Elements of a result along one axis, beyond which the oracle gives up.
MOST_RESIZED = 1 << 16


def resized_axes(vertex, arrays):
    """Per axis that Resize is given: the operand's size, the result's, the scale, and start and end of the region. None
    where these do not fit each other, or are too large."""
    x, roi, scales, sizes = (arrays[name] if name else None for name in [*vertex.inputs, "", "", ""][:4])
    axes = vertex.node.attributes.get("axes") or list(range(x.ndim))
    lengths, by_scale = [x.shape[axis] for axis in axes], scales is not None and scales.size > 0
    given = scales if by_scale else sizes
    regions = [(0.0, 1.0)] * len(axes) if roi is None or roi.size == 0 else list(zip(*roi.reshape(2, -1).tolist()))
    if given is None or not len(given) == len(axes) == len(regions):
        return None
    if by_scale:
        factors = [Fraction(scale) for scale in scales.tolist()]
        results = [int(length * factor) for length, factor in zip(lengths, factors)]
    else:
        results = sizes.tolist()
        factors = [Fraction(size, max(length, 1)) for size, length in zip(results, lengths)]
        choose = {"not_larger": min, "not_smaller": max}.get(vertex.node.attributes.get("keep_aspect_ratio_policy"))
        if choose:
            factors = [choose(factors)] * len(axes)
            results = [int(length * factor + Fraction(1, 2)) for length, factor in zip(lengths, factors)]
    return list(zip(lengths, results, factors, regions)) if max(results, default=0) <= MOST_RESIZED else None


def position(mode, at, length, result, scale, region, kind):
    """Where in the operand element `at` of the result lies, computed with numbers of this kind."""
    at, length, result, scale, half = kind(at), kind(length), kind(result), kind(scale), kind(0.5)
    one = kind(1)
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_half_pixel_for_nn":
        return (at + half) / scale
    if mode == "align_corners":
        extent = length * scale
        return kind(0) if extent == one else at * (length - one) / (extent - one)
    if mode == "tf_crop_and_resize":
        start, end = kind(region[0]), kind(region[1])
        if result == one:
            return (start + end) * half * (length - one)
        return start * (length - one) + at * ((end - start) * (length - one) / (result - one))
    shift = length * half * (one - result / (length * scale)) if mode == "half_pixel_symmetric" else kind(0)
    if mode == "pytorch_half_pixel" and result == one:
        return kind(0)
    return shift + (at + half) / scale - half


def point(vertex, at, axis, kind):
    """Whether a position is one of an element, and the element that the nearest mode takes, None in smooth modes. None outside
    of a region that is cropped."""
    length, attributes = axis[0], vertex.node.attributes
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    where = position(mode, at, *axis, kind)
    if mode == "tf_crop_and_resize" and not 0 <= where <= length - 1:
        return None
    whole = where == math.floor(where)
    if attributes.get("mode", "nearest") != "nearest":
        return whole, None
    half = kind(0.5)
    index = {"floor": lambda: math.floor(where), "ceil": lambda: math.ceil(where),
             "round_prefer_ceil": lambda: math.floor(where + half),
             "round_prefer_floor": lambda: math.ceil(where - half)}[attributes.get("nearest_mode", "round_prefer_floor")]()
    return whole, min(max(index, 0), length - 1)


def between_points(vertex, arrays):
    """Scales that are none: "It takes value greater than 0". Positions that rounding moves from one point to the next, so
    that exactly, in f64 and in f32 they are not of one point. Whole positions that f64 does not have: the reference
    takes the points by the rounded position and their weights by the position rounded once more. And where a single
    element of `pytorch_half_pixel` is: at 0 by the text; in the reference at -0.5, which is the same point but for cubic samples
    and filters, and somewhere else where scale times length is more than 1 and rounded to it."""
    if not_finite(vertex, arrays) or vertex.node.since < 11:
        return not_finite(vertex, arrays)
    scales = floats(vertex, arrays)[2] if len(vertex.inputs) > 2 else None
    if scales is not None and bool((scales <= 0).any()):
        return True
    attributes, axes = vertex.node.attributes, resized_axes(vertex, arrays)
    if axes is None:
        return False
    mode, transformation = (attributes.get(name) for name in ("mode", "coordinate_transformation_mode"))
    filtered = mode == "cubic" or mode == "linear" and attributes.get("antialias", 0)
    if transformation == "pytorch_half_pixel":
        if any(one == 1 and (filtered and length > 1 or length * scale != 1) for length, one, scale, _ in axes):
            return True

    def differs(at, axis):
        exact, double, single = (point(vertex, at, axis, kind) for kind in (Fraction, np.float64, np.float32))
        return exact != double or (exact and exact[1]) != (single and single[1])

    return any(differs(at, axis) for axis in set(axes) if axis[0] > 1 for at in range(axis[1]))


#: By operator: for which operands its result is open.
RULES = {
    # "In the case of out of range, behaviour is undefined".
    "Cast": out_of_range, "CastLike": out_of_range, "Pow": rooted, "Tan": huge_angle,
    "QuantizeLinear": unscalable, "DynamicQuantizeLinear": flat,
    # Elements in the padding are multiplied by zero, or left out.
    "Conv": not_finite, "ConvTranspose": not_finite, "DeformConv": not_finite, "CausalConvWithState": not_finite,
    "Col2Im": not_finite,
    "ArgMax": empty, "ArgMin": empty, "ScatterElements": extremes, "ScatterND": extremes, "Pad": cut_and_repeated,
    "OneHot": not_countable, "QLinearConv": beyond_scales, "QLinearMatMul": beyond_scales,
    # IEEE 754 leaves the sign of a NaN open that an operation gives.
    "BitCast": nan,
    # Which of a number and NaN is the greater.
    "MaxPool": nan, "GlobalMaxPool": nan, "MaxRoiPool": far_rois, "TopK": nan, "Unique": nan, "Hardmax": nan,
    "SwiGLU": closed_gate, "BatchNormalization": infinite_statistics, "MatMul": zero_times_infinite, "Gemm": zero_times_infinite,
    "ReduceProd": many_factors, "CumProd": lopsided, "ReduceL2": overflowing_squares,
    "Mean": overflowing_sum, "ReduceMean": inexact_integers, "LpNormalization": lambda vertex, arrays: tiny(vertex, arrays) or beyond_single(vertex, arrays),
    "GroupNormalization": beyond_single, "LayerNormalization": beyond_single, "RMSNormalization": beyond_single,
    # Its power is infinite in f32.
    "LpPool": steep_power, "GlobalLpPool": steep_power,
    "ThresholdedRelu": at_threshold, "Shrink": at_threshold,
    # By its definition, or as the logarithm of a softmax, which may be 0.
    "LogSoftmax": steep,
    # Shifted by the maximum or not.
    "ReduceLogSumExp": integers,
    # Of no positive sum, as an integer.
    "ReduceLogSum": lambda vertex, arrays: floats(vertex, arrays)[0] is None,
    # Coordinates.
    "Resize": between_points, "Upsample": not_finite, "GridSample": beyond_border, "RoiAlign": not_finite, "AffineGrid": not_finite,
    "NonMaxSuppression": not_finite,
    # Masks are added as -inf or chosen, sums are split into parts.
    "Attention": attended, "LinearAttention": lambda vertex, arrays: not_finite(vertex, arrays) or grows(vertex, arrays), "RNN": not_finite, "GRU": not_finite, "LSTM": not_finite,
    "DFT": not_finite, "STFT": not_finite, "Einsum": not_finite, "Det": huge,
    # As of LogSoftmax.
    "SoftmaxCrossEntropyLoss": steep, "MelWeightMatrix": below_zero_hertz,
    "NegativeLogLikelihoodLoss": lambda vertex, arrays: not_finite(vertex, arrays) or subnormal_terms(vertex, arrays),
}


def undefined(vertex, arrays):
    """Whether the specification leaves a node's results open for these operands. Nothing is open for operands that contradict each other,
    which a rule cannot see."""
    rule = RULES.get(vertex.op, vendor if vertex.node.domain == microsoft.DOMAIN else None)
    try:
        return rule is not None and rule(vertex, arrays)
    except (IndexError, ValueError):
        return False


def endless(vertex, arrays):
    """Whether the operands ask for more work than anybody waits for: without a ratio, regions have one sample per point."""
    if vertex.op != "RoiAlign" or vertex.node.attributes.get("sampling_ratio", 0) or vertex.inputs[1] not in arrays:
        return False
    rois = arrays[vertex.inputs[1]].astype(np.float64)
    sides = np.abs(rois[np.isfinite(rois)]) * vertex.node.attributes.get("spatial_scale", 1.0)
    return bool((sides > MOST_POINTS).any())
