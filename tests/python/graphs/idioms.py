"""What exporters write for one thing that they mean: groups that fusion should find, with readers at odd places."""

import numpy as np

import values
from case import Skip


def draw(graph):
    IDIOMS[int(graph.rng.integers(0, len(IDIOMS)))](graph)


def floats(graph, low=1, high=4):
    """A float value of this many axes, none of them empty."""
    names = graph.candidates(
        lambda a: values.NAMES[a.dtype] in ("float", "double", "float16") and low <= a.ndim <= high and a.size > 1)
    if not names:
        raise Skip("no floats")
    return graph.recent(names)


def scalar(graph, name, value):
    return np.array(value, graph.arrays[name].dtype)


def reduce(graph, op, name, axis, keep=1):
    by_input = graph.opset >= (13 if op == "ReduceSum" else 18)
    if by_input:
        return graph.apply(op, [name, np.array([axis], np.int64)], {"keepdims": keep})
    return graph.apply(op, [name], {"axes": [axis], "keepdims": keep})


def any_axis(graph, name):
    return int(graph.rng.integers(0, graph.arrays[name].ndim))


def softmax(graph):
    """exp(x - max) / sum, and what reads its parts again."""
    x = floats(graph)
    axis = any_axis(graph, x)
    centred = graph.apply("Sub", [x, reduce(graph, "ReduceMax", x, axis)])
    powers = graph.apply("Exp", [centred])
    share = graph.apply("Div", [powers, reduce(graph, "ReduceSum", powers, axis)])
    if graph.rng.random() < 0.5:
        graph.apply("Mul", [share, centred])


def softmax_read_on(graph):
    """A softmax that several nodes read."""
    x = floats(graph)
    y = graph.apply("Softmax", [x], {"axis": graph.arrays[x].ndim - 1 if graph.rng.random() < 0.7 else 0})
    graph.apply(["Neg", "Exp", "Sqrt", "Abs"][int(graph.rng.integers(0, 4))], [y])
    if graph.rng.random() < 0.5:
        graph.apply("Add", [x, y])


def normalization(graph):
    """A layer normalization written out."""
    x = floats(graph)
    axis = graph.arrays[x].ndim - 1 if graph.rng.random() < 0.7 else any_axis(graph, x)
    centred = graph.apply("Sub", [x, reduce(graph, "ReduceMean", x, axis)])
    squares = graph.apply("Mul", [centred, centred])
    spread = graph.apply("Add", [reduce(graph, "ReduceMean", squares, axis), scalar(graph, x, 0.01)])
    y = graph.apply("Div", [centred, graph.apply("Sqrt", [spread])])
    size = graph.arrays[x].shape[-1:]
    graph.apply("Mul", [y, graph.rng.uniform(-2, 2, size).astype(graph.arrays[x].dtype)])


def gelu(graph):
    x = floats(graph)
    inner = graph.apply("Erf", [graph.apply("Div", [x, scalar(graph, x, 1.4142135)])])
    graph.apply("Mul", [graph.apply("Mul", [x, graph.apply("Add", [inner, scalar(graph, x, 1)])]), scalar(graph, x, 0.5)])


def attention(graph):
    """softmax(q kT) v of one value with itself."""
    x = floats(graph, 2, 4)
    array = graph.arrays[x]
    perm = list(range(array.ndim - 2)) + [array.ndim - 1, array.ndim - 2]
    scores = graph.apply("MatMul", [x, graph.apply("Transpose", [x], {"perm": perm})])
    scaled = graph.apply("Mul", [scores, scalar(graph, x, 0.25)])
    graph.apply("MatMul", [graph.apply("Softmax", [scaled], {"axis": array.ndim - 1}), x])


def dense(graph):
    """A product, a bias, an activation and what goes around them."""
    x = floats(graph, 2, 4)
    array = graph.arrays[x]
    width = array.shape[-1] if graph.rng.random() < 0.5 else int(graph.rng.integers(1, 20))
    weights = graph.rng.uniform(-1, 1, (array.shape[-1], width)).astype(array.dtype)
    y = graph.apply("MatMul", [x, graph.leaf(weights, graph.rng.random() < 0.7)])
    y = graph.apply("Add", [y, graph.leaf(graph.rng.uniform(-1, 1, width).astype(array.dtype), graph.rng.random() < 0.7)])
    y = graph.apply(["Relu", "Sigmoid", "Tanh"][int(graph.rng.integers(0, 3))], [y])
    if width == array.shape[-1]:
        graph.apply("Add", [x, y])


def convolution(graph):
    """A convolution, a batch normalization, an activation, perhaps the residual."""
    x = floats(graph, 4, 4)
    array = graph.arrays[x]
    channels, kernel = array.shape[1], int(graph.rng.integers(1, 4))
    out = channels if graph.rng.random() < 0.6 else int(graph.rng.integers(1, 10))
    group = channels if out == channels and graph.rng.random() < 0.3 else 1
    weights = graph.rng.uniform(-1, 1, (out, channels // group, kernel, kernel)).astype(array.dtype)
    y = graph.apply("Conv", [x, weights], {"pads": [kernel // 2] * 4, "group": group})
    if array.dtype == np.float32 and graph.rng.random() < 0.6:
        parameters = [graph.rng.uniform(0.5, 2, out).astype(array.dtype) for _ in range(4)]
        y = graph.apply("BatchNormalization", [y, *parameters])
    y = graph.apply("Relu", [y])
    if graph.arrays[y].shape == array.shape:
        graph.apply("Add", [x, y])


def reductions(graph):
    """Reductions of one value over different axes, spread out again."""
    x = floats(graph, 2, 4)
    first, second = any_axis(graph, x), any_axis(graph, x)
    kinds = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]
    pick = lambda: kinds[int(graph.rng.integers(0, 4))]
    a = reduce(graph, pick(), x, first)
    b = reduce(graph, pick(), x, second)
    y = graph.apply("Sub", [graph.apply("Add", [x, a]), b])
    reduce(graph, pick(), y, any_axis(graph, y), keep=int(graph.rng.integers(0, 2)))


def diamond(graph):
    """Two ways from one value to another."""
    x = floats(graph, 0)
    one = graph.apply(["Sigmoid", "Tanh", "Abs", "Neg"][int(graph.rng.integers(0, 4))], [x])
    two = graph.apply(["Relu", "Sin", "Exp"][int(graph.rng.integers(0, 3))], [x])
    y = graph.apply(["Add", "Mul", "Sub", "Max"][int(graph.rng.integers(0, 4))], [one, two])
    graph.apply("Mul", [y, one])


def shared_view(graph):
    """A view that several nodes read in different ways."""
    x = floats(graph, 2, 4)
    array = graph.arrays[x]
    v = graph.apply("Transpose", [x], {"perm": [int(axis) for axis in graph.rng.permutation(array.ndim)]})
    y = graph.apply("Add", [v, graph.apply("Neg", [v])])
    graph.apply("Sub", [graph.apply("Exp", [reduce(graph, "ReduceMin", v, any_axis(graph, v))]), y])


def reshape_by_shape(graph):
    """Sizes that are computed: products and quotients of the input's."""
    names = graph.candidates(lambda a: 1 <= a.ndim <= 4 and a.size and values.NAMES[a.dtype] in ("float", "int64", "double"))
    if not names:
        raise Skip("no values")
    x = graph.recent(names)
    array = graph.arrays[x]
    axis = any_axis(graph, x)
    how = int(graph.rng.integers(0, 4))
    if how == 0 and graph.opset >= 13:
        size = graph.apply("Gather", [graph.apply("Shape", [x]), np.array([axis], np.int64)])
        y = graph.apply("Reshape", [x, graph.apply("Concat", [size, np.array([-1], np.int64)], {"axis": 0})])
    elif how == 1:
        y = graph.apply("Reshape", [x, np.array([0] * axis + [-1], np.int64)])
    elif how == 2:
        last = array.shape[-1]
        divisors = [k for k in range(1, last + 1) if last % k == 0]
        y = graph.apply("Reshape", [x, np.array([-1, divisors[int(graph.rng.integers(0, len(divisors)))]], np.int64)])
    else:
        y = graph.apply("Flatten", [x], {"axis": axis})
    graph.apply("Add", [y, y] if graph.rng.random() < 0.5 else [y, scalar(graph, y, 1)])


def double_and_halve(graph):
    """A value put beside itself, and every other element of one."""
    x = floats(graph, 1, 4)
    axis = any_axis(graph, x)
    y = graph.apply("Concat", [x, x], {"axis": axis})
    if graph.opset >= 10:
        ints = lambda *numbers: np.array(numbers, np.int64)
        graph.apply("Slice", [y, ints(0), ints(2**31 - 1), ints(axis), ints(2)])


def fill_like(graph):
    """A constant of another value's shape, and a range as long as an axis."""
    if graph.opset < 13:
        raise Skip("opset")
    x = floats(graph, 1, 3)
    shape = graph.apply("Shape", [x])
    ones = graph.apply("Expand", [scalar(graph, x, 1.5), shape])
    graph.apply("Add", [x, ones])
    size = graph.apply("Gather", [shape, np.array(any_axis(graph, x), np.int64)])
    steps = graph.apply("Range", [np.array(0, np.int64), size, np.array(1, np.int64)])
    graph.apply("Cast", [steps], {"to": 1}, types={"T2": "float"})


def quantize(graph):
    """What a quantised model does between its layers."""
    names = graph.candidates(lambda a: a.dtype == np.float32 and a.ndim)
    if not names or graph.opset < 13:
        raise Skip("no floats")
    x = graph.recent(names)
    scale, zero = np.array(0.0625, np.float32), np.array(int(graph.rng.integers(0, 200)), np.uint8)
    q = graph.apply("QuantizeLinear", [x, scale, zero], types={"T3": "uint8"})
    graph.apply("Relu", [graph.apply("DequantizeLinear", [q, scale, zero], types={"T3": "float"})])


def sign_of_zero(graph):
    """The reciprocal of what an identity of algebra may give back, which shows the sign of a zero."""
    x = floats(graph, 0)
    if not graph.arrays[x].all():
        raise Skip("zeros")
    steps = int(graph.rng.integers(1, 3))
    y = x
    for _ in range(steps):
        op, number = [("Add", 0.0), ("Add", -0.0), ("Sub", 0.0), ("Sub", -0.0), ("Mul", 1.0), ("Mul", -1.0), ("Div", 1.0),
                      ("Neg", None), ("Sum", 0.0), ("Identity", None)][int(graph.rng.integers(0, 10))]
        if number is None:
            y = graph.apply(op, [y])
            continue
        # Before version 8 the terms of a Sum have one shape.
        one = graph.rng.random() < 0.6 and (op != "Sum" or graph.opset >= 8)
        of = scalar(graph, y, number) if one else np.full_like(graph.arrays[y], number)
        first = op != "Div" and graph.rng.random() < 0.4
        y = graph.apply(op, [of, y] if first else [y, of])
    graph.apply("Reciprocal", [y])


IDIOMS = [
    softmax, softmax_read_on, softmax_read_on, normalization, gelu, attention, dense, dense, convolution, reductions, reductions,
    diamond, diamond, shared_view, reshape_by_shape, reshape_by_shape, double_and_halve, fill_like, quantize, sign_of_zero,
]
