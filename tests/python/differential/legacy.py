"""Versions of operators that the reference does not implement, by the words of their schemas: most as a newer version
of the same operator on inputs and attributes rewritten to it."""

import numpy as np

import values
from definitions import parametric
from reference import modern

DEFINITIONS = {}


def version(op, *since):
    def add(function):
        DEFINITIONS.update(((op, number), function) for number in since)
        return function
    return add


def arrays(node):
    return [array for array, _ in node.inputs]


def broadcasting(node):
    """Before opset 7: "axis: If set, defines the broadcast dimensions", from which `b` has the axes of `a`."""
    a, b = arrays(node)
    if node.attributes.get("broadcast") and "axis" in node.attributes and b.ndim:
        b = b.reshape(b.shape + (1,) * (a.ndim - node.attributes["axis"] - b.ndim))
    return modern(node.op, [a, b])


for name, versions in {
    "Add": (1, 6), "Sub": (1, 6), "Mul": (1, 6), "Div": (1, 6), "Pow": (1,), "And": (1,), "Or": (1,), "Xor": (1,),
    "Equal": (1,), "Greater": (1,), "Less": (1,),
}.items():
    version(name, *versions)(broadcasting)


@version("RoiAlign", 10)
def roi_align(node):
    """"Use the value 'output_half_pixel' to omit the pixel shift for the input (use this for a backward-compatible
    behavior)", as version 16 has it. The reference shifts."""
    x, rois, images = arrays(node)
    wide = [array.astype(np.float32) if values.NAMES[array.dtype] in values.HALVES else array for array in (x, rois)]
    shift = {"coordinate_transformation_mode": "output_half_pixel"}
    results = modern("RoiAlign", wide + [images], **(node.attributes | shift))
    return [result.astype(x.dtype) for result in results]


@version("PRelu", 1, 6)
def prelu(node):
    """"slope: If Slope is of size 1, the value is shared across different channels"."""
    x, slope = arrays(node)
    if slope.size > 1:
        slope = slope.reshape(slope.shape + (1,) * (x.ndim - 2))
    return [parametric(x, slope)]


@version("BatchNormalization", 1, 6, 7, 9)
def batch_normalization(node):
    """Test mode; "Output case #2: Y (test mode)" holds where there is one output, for any momentum."""
    x, scale, bias, mean, var = (array.astype(np.float64) for array in arrays(node))
    wide = lambda array: array.reshape((-1,) + (1,) * (x.ndim - 2))
    epsilon = np.float64(np.float32(node.attributes.get("epsilon", 1e-5)))
    result = wide(scale) * (x - wide(mean)) / np.sqrt(wide(var) + epsilon) + wide(bias)
    return [result.astype(node.dtype())]


@version("Cast", 1)
def cast(node):
    """"to" is a name."""
    from onnx import TensorProto
    return modern("Cast", arrays(node), to=getattr(TensorProto, node.attributes["to"]))


@version("Scatter", 9, 11)
def scatter(node):
    """"This operator is deprecated. Please use ScatterElements, which provides the same functionality."""
    return modern("ScatterElements", arrays(node), axis=node.attributes.get("axis", 0))


@version("Split", 1)
def split(node):
    """"split: length of each output"."""
    x, *sizes = arrays(node)
    sizes = sizes[0].astype(np.int64) if sizes else node.attributes.get("split")
    axis = node.attributes.get("axis", 0)
    if sizes is None:
        return np.split(x, node.outputs, axis)
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@version("Tile", 1)
def tile(node):
    """"Repeat the elements of a tensor along an axis", `tiles` times."""
    x, tiles, axis = arrays(node)
    return [np.concatenate([x] * int(tiles.reshape(())), int(axis.reshape(())))]


def coerced(node):
    """Before opset 13: "The input does not need to explicitly be a 2D vector; rather, it will be coerced into one"."""
    (x,) = arrays(node)
    axis = node.attributes.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    flat = x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)
    wide = flat.astype(np.float32) if values.NAMES[x.dtype] in values.HALVES else flat
    return [modern(node.op, [wide], axis=1)[0].astype(x.dtype).reshape(x.shape)]


for name in ("Softmax", "LogSoftmax", "Hardmax"):
    version(name, 1, 11)(coerced)


def asymmetric(node, scales):
    """"nearest" takes the element at floor(index / scale), which is what Resize calls asymmetric."""
    x = arrays(node)[0]
    name = values.NAMES[x.dtype]
    wide = x if name in ("float", "double") else x.astype(np.float32)
    if name in values.COMPLEX or node.attributes["mode"] == "nearest":
        index = np.ix_(*[
            np.floor(np.arange(int(np.floor(size * scale))) / np.float64(scale)).astype(int)
            for size, scale in zip(x.shape, scales)
        ])
        return [x[index]]
    result = modern(
        "Resize", [wide, None, np.array(scales, np.float32)], mode="linear",
        coordinate_transformation_mode="asymmetric",
    )
    return [result[0].astype(x.dtype)]


@version("Upsample", 1)
def upsample_1(node):
    return asymmetric(node, [1, 1, node.attributes["height_scale"], node.attributes["width_scale"]])


@version("Upsample", 7)
def upsample_7(node):
    return asymmetric(node, node.attributes["scales"])


@version("Upsample", 9, 10)
def upsample_9(node):
    return asymmetric(node, arrays(node)[1])


@version("Resize", 10)
def resize(node):
    return asymmetric(node, arrays(node)[1])


@version("Dropout", 1, 6, 7, 10)
def dropout(node):
    """"when is_test is set, the output is the input"; from version 7 on always. The mask is all ones."""
    (x,) = arrays(node)
    return [x, np.ones(x.shape, node.out_type(1) if node.since == 10 else x.dtype)]


@version("Reshape", 1)
def reshape(node):
    return modern("Reshape", [arrays(node)[0], np.array(node.attributes["shape"], np.int64)])


@version("Pad", 1, 2)
def pad(node):
    """"pads" and "value" are attributes."""
    pads = node.attributes.get("pads", node.attributes.get("paddings"))
    x = arrays(node)[0]
    value = np.array(node.attributes.get("value", 0.0)).astype(x.dtype)
    return modern("Pad", [x, np.array(pads, np.int64), value], mode=node.attributes.get("mode", "constant"))


@version("TopK", 1)
def top_k(node):
    (x,) = arrays(node)
    return modern("TopK", [x, np.array([node.attributes["k"]], np.int64)], 2, axis=node.attributes.get("axis", -1))


@version("Gemm", 1, 6)
def gemm(node):
    """"broadcast: Whether C should be broadcasted"."""
    wide = [a.astype(np.float64 if a.dtype == np.float64 else np.float32) for a in arrays(node)]
    names = ("alpha", "beta", "transA", "transB")
    result = modern("Gemm", wide, opset=13, **{name: node.attributes.get(name) for name in names})
    return [result[0].astype(node.dtype())]


@version("Clip", 1)
def clip(node):
    """"min: Minimum value, under which element is replaced by min", both optional."""
    (x,) = arrays(node)
    bounds = (("min", -np.inf), ("max", np.inf))
    limits = (np.array(node.attributes.get(name, bound)).astype(x.dtype) for name, bound in bounds)
    return modern("Clip", [x, *limits])


@version("DequantizeLinear", 10, 13)
def dequantize(node):
    """"y = (x - x_zero_point) * x_scale", as in later versions."""
    return modern("DequantizeLinear", arrays(node), opset=19, **node.attributes)
