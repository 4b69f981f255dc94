"""What the hunter of cliffs draws: operators, pairs of them, and what exporters write for a layer, each with the work that it cannot do without."""
import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "i64": TensorProto.INT64, "i32": TensorProto.INT32, "u8": TensorProto.UINT8,
         "s8": TensorProto.INT8, "bool": TensorProto.BOOL}
BYTES = {"f32": 4, "f16": 2, "i64": 8, "i32": 4, "u8": 1, "s8": 1, "bool": 1}


class Graph:
    """A model as it grows, and the operations that it needs; its inputs, outputs and weights give the bytes."""

    def __init__(self, case):
        self.case, self.nodes, self.inputs, self.weights, self.feeds = case, [], [], [], {}
        self.operations, self.bytes, self.sizes = 0, 0, {}
        self.random = np.random.default_rng(0)

    def input(self, shape, dtype=None, low=None, high=None, open_axes=None):
        """An input, with seeded values; in an open case its axes are symbols, or those of `open_axes`."""
        dtype, name, dims = dtype or self.case.dtype, f"x{len(self.inputs)}", list(shape)
        if self.case.open:
            for axis in range(len(shape)) if open_axes is None else open_axes:
                dims[axis] = self.symbol(shape[axis])
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], dims))
        self.feeds[name] = self.values(shape, dtype, low, high)
        self.bytes += math.prod(shape) * BYTES[dtype]
        return name

    def symbol(self, size):
        """The symbol of a size: equal sizes have one, as in an exporter's model."""
        return self.sizes.setdefault(size, f"d{size}")

    def values(self, shape, dtype, low=None, high=None):
        if dtype in ("f32", "f16"):
            kind = {"f32": np.float32, "f16": np.float16}[dtype]
            return (self.random.standard_normal(shape) * 0.5).astype(kind)
        kind = {"i64": np.int64, "i32": np.int32, "u8": np.uint8, "s8": np.int8, "bool": np.bool_}[dtype]
        span = {"u8": (0, 256), "s8": (-128, 128), "bool": (0, 2)}.get(dtype, (0, 100))
        return self.random.integers(span[0] if low is None else low, span[1] if high is None else high, shape).astype(kind)

    def weight(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self.bytes += array.nbytes
        return name

    def weights_of(self, *shape):
        return self.weight(self.values(shape, self.case.dtype) * self.values((), self.case.dtype).dtype.type(0.1))

    def numbers(self, *numbers):
        return self.weight(np.array(numbers, np.int64))

    def scalar(self, number, dtype=None):
        kind = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "s8": np.int8}[dtype or self.case.dtype]
        return self.weight(np.array(number, kind))

    def node(self, operator, *inputs, outputs=1, **attributes):
        names = [f"t{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def model(self, outputs):
        outputs = [outputs] if isinstance(outputs, str) else outputs
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "cliff", self.inputs, infos, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.case.opset)], ir_version=10)
        # Of operators that are functions, inference may know nothing.
        for output, known in zip(model.graph.output, onnx.shape_inference.infer_shapes(model).graph.output):
            if known.type.tensor_type.HasField("shape"):
                output.CopyFrom(known)
        return model


def volume(sizes):
    return math.prod(sizes)


# What takes one tensor and gives one of the same shape: the name, the first opset, operator and attributes.
UNARY = {
    "Relu": 13, "LeakyRelu": 16, "Elu": 6, "Celu": 12, "Selu": 6, "Sigmoid": 13, "HardSigmoid": 6, "HardSwish": 14, "Tanh": 13, "Erf": 13,
    "Exp": 13, "Softplus": 1, "Softsign": 1, "Mish": 18, "Gelu": 20, "Sqrt": 13, "Neg": 13, "Abs": 13, "Floor": 13, "Round": 11, "Sin": 7,
    "Cos": 7, "Reciprocal": 13, "ThresholdedRelu": 10, "Sign": 13, "Atan": 7,
}
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Greater", "Equal"]
REDUCE = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceProd", "ReduceLogSumExp", "ArgMax"]


def unary(g, x, shape, which):
    g.operations += volume(shape)
    return g.node(which, x)


def softmax(g, x, shape, axis, log=False):
    g.operations += 4 * volume(shape)
    return g.node("LogSoftmax" if log else "Softmax", x, axis=axis)


def layer_norm(g, x, shape, spelled):
    """Over the last axis; as one operator, as nine, or as a root mean square."""
    g.operations += 8 * volume(shape)
    scale = g.weights_of(shape[-1])
    if spelled == 0 and g.case.opset >= 17:
        return g.node("LayerNormalization", x, scale, g.weights_of(shape[-1]), axis=-1)
    axes = g.numbers(-1)

    def mean(value):
        if g.case.opset >= 18:
            return g.node("ReduceMean", value, axes)
        return g.node("ReduceMean", value, axes=[-1])

    centred = x if spelled == 2 else g.node("Sub", x, mean(x))
    square = g.node("Pow", centred, g.scalar(2.0)) if spelled == 1 else g.node("Mul", centred, centred)
    root = g.node("Sqrt", g.node("Add", mean(square), g.scalar(1e-3)))
    return g.node("Mul", g.node("Div", centred, root), scale)


def group_norm(g, x, shape, groups, spelled):
    """Over [n, c, h, w]; as exporters write it before opset 21, or as the operator."""
    g.operations += 8 * volume(shape)
    n, c = shape[:2]
    if spelled == 0 and g.case.opset >= 21:
        return g.node("GroupNormalization", x, g.weights_of(c), g.weights_of(c), num_groups=groups)
    ones = g.weight(np.ones(groups, g.values((), g.case.dtype).dtype))
    split = g.node("Reshape", x, g.numbers(0, groups, -1))
    norm = g.node("InstanceNormalization", split, ones, g.weight(np.zeros_like(g.values((groups,), g.case.dtype))))
    back = g.node("Reshape", norm, g.node("Shape", x) if g.case.open else g.numbers(*shape))
    return g.node("Add", g.node("Mul", back, g.weights_of(c, 1, 1)), g.weights_of(c, 1, 1))


def conv(g, x, shape, out, kernel, stride, group, dilation=1):
    """Over [n, c, spatial...], padded so that a stride of 1 keeps the size."""
    spatial, c = len(shape) - 2, shape[1]
    pad = dilation * (kernel - 1) // 2
    w = g.weights_of(out, c // group, *[kernel] * spatial)
    y = g.node("Conv", x, w, g.weights_of(out), pads=[pad] * 2 * spatial, strides=[stride] * spatial, group=group,
               dilations=[dilation] * spatial, kernel_shape=[kernel] * spatial)
    size = [(d + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for d in shape[2:]]
    g.operations += 2 * shape[0] * out * volume(size) * (c // group) * kernel**spatial
    return y, [shape[0], out, *size]


def attention(g, q_shape, keys, causal):
    """Over [b, h, n, d] with `keys` keys, as products and a softmax."""
    b, h, n, d = q_shape
    q, k, v = g.input(q_shape), g.input([b, h, d, keys]), g.input([b, h, keys, d])
    scores = g.node("MatMul", g.node("Mul", q, g.scalar(d**-0.5)), k)
    if causal:
        scores = g.node("Add", scores, g.input([1, 1, n, keys]))
    g.operations += 4 * b * h * n * keys * d + 4 * b * h * n * keys
    return g.node("MatMul", g.node("Softmax", scores, axis=-1), v)


def linear(g, x, rows, inner, columns, how):
    """`rows` x `inner` by a weight: a product and a sum, or Gemm of two axes with the weight as trained or transposed."""
    g.operations += 2 * rows * inner * columns
    if how == "gemm":
        return g.node("Gemm", x, g.weights_of(columns, inner), g.weights_of(columns), transB=1)
    return g.node("Add", g.node("MatMul", x, g.weights_of(inner, columns)), g.weights_of(columns))


def quantized(g, x, dtype, scale=0.02):
    """A pair of QuantizeLinear and DequantizeLinear."""
    s, z = g.scalar(scale, "f32"), g.scalar(128 if dtype == "u8" else 0, dtype)
    return g.node("DequantizeLinear", g.node("QuantizeLinear", x, s, z), s, z)


def quantized_weight(g, shape, axis):
    """Weights of 8 bits with a scale per output."""
    q = g.weight(g.values(shape, "s8", -127, 128))
    scales = g.weight(np.full(shape[axis], 0.01, np.float32))
    zeros = g.weight(np.zeros(shape[axis], np.int8))
    return g.node("DequantizeLinear", q, scales, zeros, axis=axis)


def recurrent(g, which, steps, batch, inner, hidden, both):
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[which], 2 if both else 1
    x = g.input([steps, batch, inner])
    w, r = g.weights_of(ways, gates * hidden, inner), g.weights_of(ways, gates * hidden, hidden)
    g.operations += 2 * ways * steps * batch * gates * hidden * (inner + hidden)
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
    if which == "GRU":
        attributes["linear_before_reset"] = 1
    return g.node(which, x, w, r, g.weights_of(ways, 2 * gates * hidden), outputs=2, **attributes)[0]
