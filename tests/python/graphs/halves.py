"""Floats of 16 bits that are not rounded between nodes: what the compiler's pass `half` may do without --exact. A node then
reads what the one before computed, in f32: a result that overflows in 16 bits, or is 0 there, does not in f32."""

import copy

import numpy as np
from onnx import TensorProto

import values

#: What the model converts is rounded.
CONVERSIONS = {"Cast", "CastLike"}
HALF_CODES = {TensorProto.FLOAT16, TensorProto.BFLOAT16}


def is_half(array):
    return isinstance(array, np.ndarray) and values.NAMES.get(array.dtype) in values.HALVES


def reach(graph):
    """Names of values of 16 bits that one node gives and another reads: results do not depend on rounding without any."""
    given = {name for vertex in graph.vertices for name in vertex.outputs}
    return {name for vertex in graph.vertices for name in vertex.inputs if name in given and is_half(graph.arrays.get(name))}


def rounded(arrays, like):
    """Values of these types."""
    narrow = lambda name, array: array.astype(like[name].dtype) if name in like and is_half(like[name]) else array
    return {name: narrow(name, array) for name, array in arrays.items()}


def some_rounded(vertex, arrays, like, rng):
    """Operands of a node, some of them rounded to these types: what is kept in 16 bits for one reader is not for all."""
    return arrays | {name: rounded({name: arrays[name]}, like)[name]
                     for name in dict.fromkeys(vertex.inputs) if name and rng.random() < 0.5}


def evaluate(vertex, arrays, opset):
    """Results of a node whose operands of 16 bits are f32, as are its results of 16 bits."""
    widened = {}
    for at, name in enumerate(vertex.inputs):
        if name and is_half(arrays[name]) and not (vertex.op in CONVERSIONS and at > 0):
            widened[name] = arrays[name].astype(np.float32)
    given = {name: widened.get(name, arrays[name]) for name in vertex.inputs if name}
    wide = copy.copy(vertex)
    wide.node = copy.copy(vertex.node)
    formals = vertex.node.schema.inputs
    read = {formals[min(at, len(formals) - 1)].type_str for at, name in enumerate(vertex.inputs)
            if name and given[name].dtype == np.float32}
    wide.node.types = {variable: "float" if variable in read and kind in values.HALVES else kind
                       for variable, kind in vertex.node.types.items()}
    if wide.node.attributes.get("output_dtype") in HALF_CODES:
        wide.node.attributes = wide.node.attributes | {"output_dtype": TensorProto.FLOAT}
        wide.node.types = wide.node.types | {"T3": "float"}
    half = [kind for kind in vertex.node.types.values() if kind in values.HALVES]
    schema = vertex.node.schema
    if half and (schema.has_function or schema.has_context_dependent_function):
        # The functions that define operators cast what attributes say to the type of the operands.
        kind = values.DTYPES[half[0]]
        narrow = lambda value: float(np.float32(value).astype(kind)) if isinstance(value, float) else value
        wide.node.attributes = {name: narrow(value) for name, value in wide.node.attributes.items()}
    return wide.evaluate(given, opset)
