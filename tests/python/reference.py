"""The reference of the accuracy table: a model evaluated in f64.

    python tests/python/reference.py REQUEST.json      {"model", "inputs": [{"name", "file"}], "extended", "outputs"}
    python tests/python/reference.py --self-test

Writes the model with its last product's operand as one more output to `extended`, and that model's outputs, evaluated by
`onnx.reference` with every f32, f16 and bf16 made f64, as .npy files into the folder `outputs`. Prints as JSON the outputs' names and
whether there is one more than the model's own.

Some operators of the package are too slow for real models, or round to f32, or keep to a definition of f32 constants;
those have classes of their own here, which `--self-test` holds against the package's on small cases.
"""
import itertools
import json
import math
import os
import sys

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as StockResize
from products import with_last_product


# Types that are f64 in the reference.
NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def doubled(tensor):
    """An f32, f16 or bf16 tensor as f64; others as they are."""
    if tensor.data_type not in NARROW:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def double_type(ty):
    if ty.tensor_type.elem_type in NARROW:
        ty.tensor_type.elem_type = TensorProto.DOUBLE


def double_node(node):
    """Makes f64 of what a node creates as f32."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(doubled(attribute.t))
        elif attribute.type == AttributeProto.GRAPH:
            double_graph(attribute.g)
        elif attribute.name in ("to", "dtype") and attribute.i in NARROW:
            attribute.i = TensorProto.DOUBLE
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            many = attribute.name == "value_floats"
            value = np.array(list(attribute.floats) if many else attribute.f, np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))


def double_graph(graph):
    del graph.value_info[:]
    for tensor in graph.initializer:
        if tensor.data_type in NARROW:
            tensor.CopyFrom(doubled(tensor))
    for value in [*graph.input, *graph.output]:
        double_type(value.type)
    for node in graph.node:
        double_node(node)


def double_model(model):
    double_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            double_node(node)
    return model


def window_pads(size, kernel, strides, dilations, pads, auto_pad):
    """Pads before and after each spatial axis."""
    rank = len(kernel)
    if auto_pad in (None, "", "NOTSET"):
        pads = pads or [0] * (2 * rank)
        return [(pads[at], pads[at + rank]) for at in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    result = []
    for at in range(rank):
        outputs = -(-size[at] // strides[at])
        total = max((outputs - 1) * strides[at] + (kernel[at] - 1) * dilations[at] + 1 - size[at], 0)
        less = total // 2
        result.append((less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less))
    return result


def taps(x, kernel, strides, dilations, pads, fill, ceil=False):
    """For each place of a kernel, the elements of x (N, C, spatial..) that it meets, and their shape."""
    counts, widths = [], []
    for size, length, stride, dilation, (before, after) in zip(x.shape[2:], kernel, strides, dilations, pads):
        free = size + before + after - (length - 1) * dilation - 1
        count = (-(-free // stride) if ceil else free // stride) + 1
        # A window that would begin in the pads behind the data does not count.
        if ceil and (count - 1) * stride >= size + before:
            count -= 1
        counts.append(count)
        widths.append((before, after + max((count - 1) * stride - free, 0)))
    padded = np.pad(x, [(0, 0), (0, 0), *widths], constant_values=fill)
    for place in itertools.product(*map(range, kernel)):
        starts = [at * dilation for at, dilation in zip(place, dilations)]
        spans = [slice(start, start + (count - 1) * stride + 1, stride)
                 for start, count, stride in zip(starts, counts, strides)]
        yield place, padded[(slice(None), slice(None), *spans)]


class Conv(OpRun):
    op_domain = ""

    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):
        kernel, group = w.shape[2:], group or 1
        strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
        pads = window_pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
        weights = w.reshape(group, w.shape[0] // group, w.shape[1], *kernel)
        y = 0
        for place, part in taps(x, kernel, strides, dilations, pads, 0):
            spatial = part.shape[2:]
            data = part.reshape(x.shape[0], group, w.shape[1], -1)
            tap = weights[(slice(None), slice(None), slice(None), *place)]
            depthwise = tap.shape[1:] == (1, 1)
            y = y + (data * tap if depthwise else np.matmul(tap, data))
        y = y.reshape(x.shape[0], w.shape[0], *spatial)
        return (y if b is None else y + b.reshape(1, -1, *[1] * len(kernel)),)


class MaxPool(OpRun):
    op_domain = ""

    def _run(self, x, auto_pad=None, ceil_mode=None, dilations=None, kernel_shape=None, pads=None, storage_order=None,
             strides=None):
        if len(self.onnx_node.output) != 1:
            raise NotImplementedError("MaxPool with indices")
        rank = len(kernel_shape)
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads = window_pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
        parts = (part for _, part in taps(x, kernel_shape, strides, dilations, pads, -np.inf, bool(ceil_mode)))
        y = next(parts).copy()
        for part in parts:
            np.maximum(y, part, out=y)
        return (y,)


class AveragePool(OpRun):
    op_domain = ""

    def _run(self, x, auto_pad=None, ceil_mode=None, count_include_pad=None, dilations=None, kernel_shape=None, pads=None,
             strides=None):
        rank = len(kernel_shape)
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads = window_pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
        counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
        outer = pads
        if count_include_pad:
            counted = np.pad(counted, [(0, 0), (0, 0), *pads], constant_values=1)
            outer = [(0, 0)] * rank
        how = (kernel_shape, strides, dilations)
        total = sum(part for _, part in taps(x, *how, pads, 0, bool(ceil_mode)))
        count = sum(part for _, part in taps(counted, *how, outer, 0, bool(ceil_mode)))
        spans = tuple(slice(0, size) for size in total.shape[2:])
        return (total / count[(slice(None), slice(None), *spans)],)


class BatchNormalization(OpRun):
    """Inference only: the package takes that of opset 9 with a momentum for training."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, var, epsilon=None, **_):
        if len(self.onnx_node.output) != 1:
            raise NotImplementedError("BatchNormalization in training")
        shape = (1, -1, *[1] * (x.ndim - 2))
        factor = scale / np.sqrt(var + (1e-5 if epsilon is None else epsilon))
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


ERF = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    op_domain = ""

    def _run(self, x):
        return (ERF(x) if x.size else x,)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x, approximate=None):
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + ERF(x / math.sqrt(2))),)


class HardSwish(OpRun):
    op_domain = ""

    def _run(self, x):
        return (x * np.clip(x / 6 + 0.5, 0, 1),)


class Resize(StockResize):
    """Whole-number nearest upsampling by repetition; all else as the package does."""

    op_domain = ""

    def _run(self, x, roi=None, scales=None, sizes=None, **how):
        wanted = (np.asarray(sizes) if sizes is not None and len(sizes) else np.asarray(scales) * x.shape)
        kind = [how.get(name) for name in ("mode", "coordinate_transformation_mode", "nearest_mode", "axes")]
        factors = wanted / x.shape if len(wanted) == x.ndim else wanted
        if kind == ["nearest", "asymmetric", "floor", None] and np.all(factors % 1 == 0) and np.all(factors >= 1):
            for axis, factor in enumerate(factors):
                x = x.repeat(int(factor), axis)
            return (x,)
        return StockResize._run(self, x, roi, scales, sizes, **how)


class GatherElements(OpRun):
    """The package's fails on data of one row."""

    op_domain = ""

    def _run(self, data, indices, axis=None):
        axis = (axis or 0) % data.ndim
        spans = tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))
        return (np.take_along_axis(data[spans], indices, axis),)


class OneHot(OpRun):
    """The package's takes no depth of one element."""

    op_domain = ""

    def _run(self, indices, depth, values, axis=None):
        axis = -1 if axis is None else axis
        depth, values = int(np.asarray(depth).reshape(())), np.asarray(values)
        places = np.arange(depth)
        hot = np.expand_dims(np.asarray(indices), -1).astype(np.int64)
        hot = (hot == places) | (hot + depth == places)
        return (np.moveaxis(np.where(hot, values[1], values[0]), -1, axis),)


def along(values, x, axis):
    """A scale or zero point of each index of an axis, or of all."""
    values = np.asarray(values)
    if values.size == 1:
        return values.reshape(())
    shape = [1] * x.ndim
    shape[1 if axis is None else axis] = -1
    return values.reshape(shape)


class DequantizeLinear(OpRun):
    """Of versions 10 and 13, which the package lacks."""

    op_domain = ""

    def _run(self, x, scale, zero=None, axis=None, **_):
        wide = x.astype(np.float64)
        if zero is not None:
            wide = wide - along(zero, x, axis)
        return (wide * along(scale, x, axis),)


class QuantizeLinear(OpRun):
    """Likewise."""

    op_domain = ""

    def _run(self, x, scale, zero=None, axis=None, **_):
        zero = np.zeros((), np.uint8) if zero is None else np.asarray(zero)
        limits = np.iinfo(zero.dtype)
        whole = np.rint(x / along(scale, x, axis)) + along(zero.astype(np.float64), x, axis)
        return (np.clip(whole, limits.min, limits.max).astype(zero.dtype),)


# Quantization before this version of the operator set.
OLD_QUANTIZATION = 19
OVERRIDES = [Conv, MaxPool, AveragePool, BatchNormalization, Erf, Gelu, HardSwish, Resize, GatherElements, OneHot]


def evaluate(model, feeds):
    """Outputs of a model in f64, by name; an error if anything in it is f32 still."""
    outputs = [value.name for value in model.graph.output]
    narrow = (np.float32, np.float16)
    feeds = {name: feed.astype(np.float64) if feed.dtype in narrow else feed for name, feed in feeds.items()}
    version = max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=1)
    quantization = [DequantizeLinear, QuantizeLinear] if version < OLD_QUANTIZATION else []
    evaluator = ReferenceEvaluator(double_model(model), new_ops=OVERRIDES + quantization)
    with np.errstate(all="ignore"):
        results = evaluator.run(None, feeds, intermediate=True)
    for name, result in results.items():
        if getattr(result, "dtype", None) in (np.float32, np.float16):
            raise ValueError(f"`{name}` is {result.dtype} in the reference")
    return {name: np.asarray(results[name]) for name in outputs}


def main():
    if sys.argv[1:] == ["--self-test"]:
        from reference_test import self_test
        return self_test()
    with open(sys.argv[1]) as file:
        request = json.load(file)
    model = onnx.load(request["model"])
    own = len(model.graph.output)
    model = with_last_product(model)
    onnx.save(model, request["extended"])
    feeds = {value["name"]: np.load(value["file"]) for value in request["inputs"] if value["file"]}
    outputs = evaluate(model, feeds)
    for at, output in enumerate(outputs.values()):
        np.save(os.path.join(request["outputs"], f"{at}.npy"), output)
    print(json.dumps({"names": list(outputs), "extended": len(outputs) > own}))


if __name__ == "__main__":
    main()
