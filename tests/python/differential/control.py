"""Recipes of control flow, with small bodies."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import values
from case import Skip
from elementwise import recipe


def number(name):
    return getattr(TensorProto, name.upper())


def info(name, element, rank=None):
    dims = None if rank is None else [None] * rank
    return helper.make_tensor_value_info(name, element, dims)


def body(nodes, inputs, outputs, constants=()):
    tensors = [numpy_helper.from_array(array, name) for name, array in constants]
    return helper.make_graph(nodes, "body", inputs, outputs, tensors)


def plain(n, variable):
    """An element type that `variable` has, and on which Identity and Concat are defined in all these versions."""
    name = n.types.get(variable)
    if name not in values.DTYPES:
        raise Skip(f"type {name}")
    return name


def defined(n):
    """Types that all of the bodies' nodes have in the operator set."""
    name = plain(n, "V")
    if n.since < 7 and name not in ("float", "double", "float16"):
        # Concat and Add of the first operator sets are for floats alone.
        return name, False
    return name, name in ("float", "double", "int32", "int64")


@recipe("If")
def if_(n):
    name = plain(n, "V")
    dims = n.shape(0, 3)
    n.add(np.array(n.chance(0.5)).reshape((1,) * n.integer(0, 1)), 0.2)
    n.outputs = n.integer(1, 2)
    unlike = n.chance(0.4)
    for branch in ("then", "else"):
        nodes, results, constants = [], [], []
        for at in range(n.outputs):
            sizes = [values.dim(n.rng) if unlike and n.chance(0.5) else size for size in dims]
            sizes = sizes if np.prod(sizes) <= 4096 else dims
            constants.append((f"{branch}_c{at}", values.draw(n.rng, name, tuple(sizes))))
            results.append(info(f"{branch}_y{at}", number(name), len(dims)))
            nodes.append(helper.make_node("Identity", [f"{branch}_c{at}"], [f"{branch}_y{at}"]))
        n.attr(f"{branch}_branch", body(nodes, [], results, constants))


@recipe("Loop")
def loop(n):
    name, sums = defined(n)
    kind = number(name)
    states = [values.draw(n.rng, name, n.shape(0, 2)) for _ in range(n.integer(1, 3))]
    endless = n.chance(0.25) and n.since >= 11
    if endless:
        n.omit()
    else:
        n.add(np.array(n.integer(-1, 4), np.int64), 0.3)
    condition = n.chance(0.6) or endless
    if condition:
        n.add(np.array(n.chance(0.8)), 0.3)
    else:
        n.omit()
    inputs = [info("i", TensorProto.INT64, 0), info("keep", TensorProto.BOOL, 0)]
    constants, nodes = [("few", np.array(n.integer(0, 4), np.int64))], []
    if endless or n.chance(0.4) and n.since >= 11:
        nodes.append(helper.make_node("Less", ["i", "few"], ["keep_on"]))
    else:
        nodes.append(helper.make_node("Identity", ["keep"], ["keep_on"]))
    nexts, scanned = [], []
    for at, state in enumerate(states):
        n.add(state)
        inputs.append(info(f"state{at}", kind, state.ndim))
        how = n.rng.random()
        source = f"state{at}"
        alike = [other for other, array in enumerate(states) if array.shape == state.shape]
        if how < 0.3:
            # States that take each other's place.
            source = f"state{n.pick(*alike)}"
            nodes.append(helper.make_node("Identity", [source], [f"next{at}"]))
        elif how < 0.6 and state.ndim and n.since >= 7:
            part = values.draw(n.rng, name, (n.integer(0, 2),) + state.shape[1:])
            constants.append((f"part{at}", part))
            nodes.append(helper.make_node("Concat", [source, f"part{at}"], [f"next{at}"], axis=0))
            source = None
        elif sums and how < 0.8:
            constants.append((f"one{at}", np.ones(state.shape, state.dtype)))
            nodes.append(helper.make_node("Add", [source, f"one{at}"], [f"next{at}"]))
        else:
            nodes.append(helper.make_node("Identity", [source], [f"next{at}"]))
        nexts.append(info(f"next{at}", kind, state.ndim))
        # What grows is not a scan output.
        if source == f"state{at}" and n.chance(0.6):
            nodes.append(helper.make_node("Identity", [source], [f"scanned{at}"]))
            scanned.append(info(f"scanned{at}", kind, state.ndim))
    outputs = [info("keep_on", TensorProto.BOOL, 0)] + nexts + scanned
    n.attr("body", body(nodes, inputs, outputs, constants))
    n.outputs = len(nexts) + len(scanned)


@recipe("Scan")
def scan(n):
    name = plain(n, "V")
    kind, length, dims = number(name), n.integer(0 if n.chance(0.1) else 1, 4), n.shape(1, 2, zeros=False)
    # Concat takes no floats of 8 bits and fewer, and no integers of 4 and 2.
    small = name in values.SMALL_FLOATS | {"int2", "int4", "uint2", "uint4"}
    join = helper.make_node("Concat", ["state", "x"], ["joined"], axis=0)
    nodes = [
        helper.make_node("Identity", ["x"], ["next"]),
        helper.make_node("Identity", ["x"], ["joined"]) if small else join,
        helper.make_node("Identity", ["state"], ["before"]),
    ]
    inputs = [info("state", kind, len(dims)), info("x", kind, len(dims))]
    outputs = [info("next", kind, len(dims)), info("joined", kind, len(dims)), info("before", kind, len(dims))]
    n.outputs = n.integer(1, 3)
    n.attr("body", body(nodes[: n.outputs] if n.chance(0.8) else nodes, inputs, outputs[: n.outputs]))
    n.attr("num_scan_inputs", 1)
    batch = (n.integer(1, 3),) if n.since == 8 else ()
    if batch and n.chance(0.6):
        n.add(n.rng.integers(0, length + 1, batch), 0.3)
    elif batch:
        n.omit()
    n.add(values.draw(n.rng, name, batch + dims))
    axis = 0 if batch else n.pick(0, n.integer(0, len(dims)))
    n.add(values.draw(n.rng, name, batch + dims[:axis] + (length,) + dims[axis:]))
    if n.since == 8:
        n.maybe("directions", [n.integer(0, 1)])
        return
    if axis or n.chance(0.2):
        n.attr("scan_input_axes", [axis - len(dims) - 1 if n.since >= 11 and n.chance(0.3) else axis])
    n.maybe("scan_input_directions", [n.integer(0, 1)])
    if n.outputs > 1:
        n.maybe("scan_output_directions", [n.integer(0, 1) for _ in range(n.outputs - 1)])
        axes = [n.integer(0, len(dims)) for _ in range(n.outputs - 1)]
        axes = [axis - len(dims) - 1 if n.since >= 11 and n.chance(0.3) else axis for axis in axes]
        n.maybe("scan_output_axes", axes)
