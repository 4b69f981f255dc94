"""Quantised models as tools write them: operators of f32 between DequantizeLinear and QuantizeLinear, one after the other.

Every quantised value is an output. Each operator is judged by itself: ONNX Runtime, without optimizations, computes it from what
our code gave for its operands, so that a step by which one result is off does not count twice. No result may be off by more
than one step: scales are joined by default, and sums of floats have no order.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

import client
import oracle

OPSET = 21


class Stage:
    """An operator, what it dequantises, and what its result is quantised to."""

    def __init__(self, op, nodes, inputs, constants, output):
        self.op, self.nodes, self.inputs, self.output = op, nodes, inputs, output
        self.constants = dict(constants)


class Drawing:
    """A model that grows stage by stage, with the values that ONNX Runtime gives."""

    def __init__(self, rng):
        self.rng, self.count = rng, 0
        #: Floats that the model is given, and quantised values, by name.
        self.floats, self.arrays = {}, {}
        #: Scale and zero point by the name of a quantised value.
        self.steps = {}
        self.stages = []

    def pick(self, *choices):
        return choices[int(self.rng.integers(0, len(choices)))]

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def zero_point(self, dtype):
        return dtype(self.pick(0, 1, 100, 128, 255) if dtype == np.uint8 else self.pick(-128, -7, 0, 3, 127))

    def input(self, shape):
        """A float input, quantised."""
        name = self.name("x")
        self.floats[name] = self.rng.normal(0, 2, shape).astype(np.float32)
        return self.quantize("Identity", [helper.make_node("Identity", [name], [name + "_y"])], [name], {}, name + "_y")

    def dequantize(self, name):
        """Nodes and constants that read a quantised value, and the float's name."""
        scale, zero = self.steps[name]
        own = self.name("d")
        node = helper.make_node("DequantizeLinear", [name, own + "_s", own + "_z"], [own])
        return [node], {own + "_s": scale, own + "_z": zero}, own

    def weights(self, shape, axis, scale):
        """Weights of 8 bits, with a scale for all or one for each entry of an axis, dequantised."""
        dtype, own = self.pick(np.int8, np.int8, np.uint8), self.name("w")
        limits = np.iinfo(dtype)
        array = self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        if self.rng.random() < 0.5:
            scales = (self.rng.uniform(0.3, 1.0, shape[axis]) * scale).astype(np.float32)
            zeros = np.zeros(shape[axis], dtype) if dtype == np.int8 else np.full(shape[axis], 128, dtype)
            attributes = {"axis": axis}
        else:
            scales, zeros, attributes = np.float32(scale), dtype(self.pick(0, 0, 5) if dtype == np.int8 else self.pick(0, 128, 131)), {}
        node = helper.make_node("DequantizeLinear", [own, own + "_s", own + "_z"], [own + "_d"], **attributes)
        return [node], {own: array, own + "_s": np.asarray(scales), own + "_z": np.asarray(zeros)}, own + "_d"

    def bias(self, count):
        own = self.name("b")
        return {own: self.rng.normal(0, 0.5, count).astype(np.float32)}, own

    def quantize(self, op, nodes, inputs, constants, result):
        """Ends a stage: its float result in steps that about fit it."""
        stage = Stage(op, nodes, inputs, constants, result)
        exact = self.run(stage, self.arrays | self.floats)
        name, dtype = self.name("q"), self.pick(np.uint8, np.int8)
        # Results of ONNX Runtime's Sigmoid that are below 3e-8 are 0: steps of such size would show it.
        largest = max(float(np.abs(exact).max(initial=0.0)), 2.0**-8) if np.any(exact) else 1.0
        scale = np.float32(largest / self.rng.uniform(60, 250))
        zero = self.zero_point(dtype)
        stage.nodes = nodes + [helper.make_node("QuantizeLinear", [result, name + "_s", name + "_z"], [name])]
        stage.constants |= {name + "_s": np.asarray(scale), name + "_z": np.asarray(zero)}
        stage.output = name
        self.steps[name] = (np.asarray(scale), np.asarray(zero))
        self.arrays[name] = self.run(stage, self.arrays | self.floats)
        self.stages.append(stage)
        return name

    def run(self, stage, arrays):
        """What ONNX Runtime computes of one stage."""
        given = {name: arrays[name] for name in stage.inputs}
        result = oracle.session(model_of([stage], given, [stage.output])).run(None, given)[0]
        return result

    def operator(self, op, name, *more, **attributes):
        """A stage of one operator on quantised values and dequantised weights; sometimes with an activation behind it."""
        names = [name, *(other for other in more if isinstance(other, str))]
        nodes, constants, reads = [], {}, []
        for other in (name, *more):
            part = self.dequantize(other) if isinstance(other, str) else other
            nodes, constants = nodes + part[0], constants | part[1]
            reads.append(part[2])
        result = self.name("y")
        nodes.append(helper.make_node(op, reads, [result], **attributes))
        if op in ("Conv", "Gemm", "MatMul", "Add") and self.rng.random() < 0.5:
            activation, own = self.pick("Relu", "Sigmoid", "LeakyRelu", "HardSwish", "Tanh"), self.name("y")
            nodes.append(helper.make_node(activation, [result], [own]))
            result = own
        return self.quantize(op, nodes, names, constants, result)


def model_of(stages, inputs, outputs):
    nodes = [node for stage in stages for node in stage.nodes]
    constants = {name: array for stage in stages for name, array in stage.constants.items()}
    info = lambda name, array: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    graph = helper.make_graph(
        nodes, "quantized", [info(name, array) for name, array in inputs.items()], [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def square(d, name):
    """A convolution that minimal filtering serves: 3x3, stride 1, channels in pairs, and more than a few of all."""
    channels, results = d.arrays[name].shape[1], d.pick(8, 16, 20, 32)
    pads = [int(d.rng.integers(0, 3)) for _ in range(4)]
    weights = d.weights((results, channels, 3, 3), 0, 0.01)
    constants, bias = d.bias(results)
    return d.operator("Conv", name, weights, ([], constants, bias), kernel_shape=[3, 3], pads=pads)


def convolution(d, name):
    batch, channels, *sizes = d.arrays[name].shape
    if channels >= 8 and channels % 2 == 0 and min(sizes) > 4 and d.rng.random() < 0.5:
        return square(d, name)
    groups = channels if d.rng.random() < 0.25 else d.pick(*[g for g in (1, 1, 1, 2, 4) if channels % g == 0])
    results = groups * d.pick(1, 2, 3, 7, 16) if groups < channels or channels == 1 else channels * d.pick(1, 1, 2)
    kernel = [int(d.pick(1, 3, 3, 2, min(5, size))) for size in sizes]
    kernel = [min(taps, size) for taps, size in zip(kernel, sizes)]
    attributes = {"kernel_shape": kernel, "group": groups, "strides": [d.pick(1, 1, 2)] * 2,
                  "pads": [int(d.rng.integers(0, min(3, taps + 1))) for taps in kernel * 2]}
    weights = d.weights((results, channels // groups, *kernel), 0, 0.01)
    if d.rng.random() < 0.6:
        constants, bias = d.bias(results)
        return d.operator("Conv", name, weights, ([], constants, bias), **attributes)
    return d.operator("Conv", name, weights, **attributes)


def matrix(d, name):
    """A product with constant weights, or with another value."""
    array = d.arrays[name]
    inner, columns = array.shape[-1], d.pick(1, 3, 8, 16, 33)
    if array.ndim == 2 and d.rng.random() < 0.5:
        turned = bool(d.rng.random() < 0.5)
        weights = d.weights((columns, inner) if turned else (inner, columns), 0 if turned else 1, 0.01)
        constants, bias = d.bias(columns)
        return d.operator("Gemm", name, weights, ([], constants, bias), transB=int(turned))
    if d.rng.random() < 0.25:
        other = d.input((*array.shape[:-2], inner, columns))
        return d.operator("MatMul", name, other)
    return d.operator("MatMul", name, d.weights((inner, columns), 1, 0.01))


def simple(d, name):
    array = d.arrays[name]
    alike = [other for other, value in d.arrays.items() if value.shape == array.shape]
    kind = d.pick("Add", "Add", "Mul", "Concat", "pool", "Transpose", "Softmax")
    if kind in ("Add", "Mul"):
        return d.operator(kind, name, d.pick(*alike) if d.rng.random() < 0.5 else d.input(array.shape))
    if kind == "Concat":
        return d.operator("Concat", name, d.pick(*alike), axis=min(1, array.ndim - 1))
    if kind == "pool" and array.ndim == 4:
        op = d.pick("MaxPool", "AveragePool", "GlobalAveragePool")
        if op == "GlobalAveragePool":
            return d.operator(op, name)
        taps = [min(d.pick(2, 3), size) for size in array.shape[2:]]
        return d.operator(op, name, kernel_shape=taps, strides=[d.pick(1, 2)] * 2)
    if kind == "Softmax":
        return d.operator("Softmax", name, axis=-1)
    return d.operator("Transpose", name, perm=[*range(array.ndim - 2), array.ndim - 1, array.ndim - 2])


def draw(seed, number):
    d = Drawing(np.random.default_rng([seed, number, 8]))
    image = d.rng.random() < 0.6
    if image:
        name = d.input((d.pick(1, 1, 2), d.pick(1, 2, 3, 4, 5, 8, 16, 32), d.pick(4, 5, 9, 14), d.pick(4, 6, 11, 17)))
    else:
        name = d.input((*d.pick((), (), (2,)), d.pick(1, 1, 2, 9, 33), d.pick(3, 4, 7, 16, 30, 64)))
    for _ in range(d.pick(1, 1, 2, 3, 4)):
        product = convolution if image and min(d.arrays[name].shape[2:]) > 1 else matrix
        name = (product if d.rng.random() < 0.7 else simple)(d, name)
    return d


def examine(number, seed, worker, options):
    """Draws a model, runs it in every way, and gives the line about it."""
    d = draw(seed, number)
    outputs = [stage.output for stage in d.stages]
    model = model_of(d.stages, d.floats, outputs)
    wide = {name: (array * 20).astype(np.float32) for name, array in d.floats.items()}
    ways = [
        client.way("O3", "native", 3, [0, 1]), client.way("exact", "native", 3, [0, 1], exact=True),
        client.way("v3", "x86-64-v3", 3, [0, 1]), client.way("baseline", "x86-64", 3, [0, 1]),
    ]
    reply = worker.ask(model.SerializeToString(), ways, [list(d.floats.items()), list(wide.items())])
    line = {"number": number, "nodes": len(model.graph.node), "runs": 8,
            "operators": sorted({node.op_type for node in model.graph.node})}
    failures = []
    if isinstance(reply, str):
        failures.append({"way": "", "set": -1, "kind": reply.split(":")[0], "text": reply})
    else:
        line["group"] = max(reply[0]["groups"], default=0)
        line["compiled"] = sum(1 for way in reply if not way.get("failure"))
        for way, answer in zip(ways, reply):
            failures += [{"way": way["name"]} | failure for failure in judge(d, answer, (d.floats, wide))]
    if failures:
        line["failures"] = failures[:8]
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number}.onnx").write_bytes(model.SerializeToString())
    return line


def judge(d, answer, feeds):
    if answer.get("failure"):
        kind, text = answer["failure"]
        return [{"set": -1, "kind": "refused", "text": f"{kind}: {text}"}]
    failures = []
    for at, (run, floats) in enumerate(zip(answer["runs"], feeds)):
        if "outputs" not in run:
            failures.append({"set": at, "kind": next(iter(run)), "text": str(run)})
            continue
        found = dict(zip([stage.output for stage in d.stages], run["outputs"]))
        for stage in d.stages:
            text = steps_off(found[stage.output], d.run(stage, found | floats))
            if text:
                failures.append({"set": at, "kind": "wrong", "text": f"{stage.op}: {stage.output} {text}"})
    return failures


def steps_off(got, wanted):
    """How a result is off by more than a step, or an empty text."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"is {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
    off = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
    return f"is off by {off.max()} steps, {(off > 1).sum()} of {off.size} elements" if off.size and off.max() > 1 else ""
