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


@recipe("If")
def if_(n):
    name = plain(n, "V")
    dims = n.shape(0, 3)
    n.add(np.array(n.chance(0.5)), 0.2)
    branches = []
    for branch in ("then", "else"):
        array = values.draw(n.rng, name, dims)
        result = info(f"{branch}_y", number(name), len(dims))
        nodes = [helper.make_node("Identity", [f"{branch}_c"], [f"{branch}_y"])]
        branches.append(body(nodes, [], [result], [(f"{branch}_c", array)]))
    n.attr("then_branch", branches[0])
    n.attr("else_branch", branches[1])


@recipe("Loop")
def loop(n):
    name = plain(n, "V")
    dims = n.shape(0, 2)
    kind = number(name)
    n.add(np.array(n.integer(0, 4), np.int64), 0.5)
    n.add(np.array(True), 0.5)
    n.add(values.draw(n.rng, name, dims))
    nodes = [
        helper.make_node("Identity", ["keep"], ["keep_on"]),
        helper.make_node("Identity", ["state"], ["next"]),
        helper.make_node("Identity", ["state"], ["scanned"]),
    ]
    if name in ("float", "double", "int32", "int64"):
        nodes[1] = helper.make_node("Add", ["state", "one"], ["next"])
    inputs = [info("i", TensorProto.INT64, 0), info("keep", TensorProto.BOOL, 0), info("state", kind, len(dims))]
    outputs = [info("keep_on", TensorProto.BOOL, 0), info("next", kind, len(dims)), info("scanned", kind, len(dims))]
    n.attr("body", body(nodes, inputs, outputs, [("one", np.ones(dims, values.DTYPES[name]))]))
    n.outputs = 2


@recipe("Scan")
def scan(n):
    name = plain(n, "V")
    kind, length, dims = number(name), n.integer(1, 4), n.shape(1, 2, zeros=False)
    nodes = [
        helper.make_node("Identity", ["x"], ["next"]),
        helper.make_node("Concat", ["state", "x"], ["joined"], axis=0),
    ]
    inputs = [info("state", kind, len(dims)), info("x", kind, len(dims))]
    outputs = [info("next", kind, len(dims)), info("joined", kind, len(dims))]
    n.attr("body", body(nodes, inputs, outputs))
    n.attr("num_scan_inputs", 1)
    batch = (n.integer(1, 2),) if n.since == 8 else ()
    if batch:
        n.omit()
    n.add(values.draw(n.rng, name, batch + dims))
    n.add(values.draw(n.rng, name, batch + (length,) + dims))
    if n.since == 8:
        n.maybe("directions", [n.integer(0, 1)])
    else:
        n.maybe("scan_input_directions", [n.integer(0, 1)])
        n.maybe("scan_output_directions", [n.integer(0, 1)])
    n.outputs = 2
