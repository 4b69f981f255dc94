"""Sequences and optionals: makes them of values that a graph has, changes them, reads them again."""

import numpy as np
from onnx import TensorProto, helper

import items
import values
from case import Skip
from items import Optional, Sequence

FIRST_OPSET, OPTIONALS, MAPS = 11, 15, 17
#: Element types. Of floats of 16 bits a sequence would have to be rounded where values between nodes are not.
KINDS = {"float", "double", "int32", "int64", "uint8", "int8", "bool", values.STRING}


def draw(graph):
    STEPS[int(graph.rng.integers(0, len(STEPS)))](graph)


def leaf(graph):
    """A sequence that is an input, of elements of one rank, mostly."""
    kind = ("float", "int64", "float", "double", "int32")[int(graph.rng.integers(0, 5))]
    rank, elements = int(graph.rng.integers(0, 3)), []
    for _ in range(int(graph.rng.integers(0, 5))):
        dims = values.shape(graph.rng, rank, rank) if graph.rng.random() < 0.9 else values.shape(graph.rng, 0, 3)
        elements.append(values.draw(graph.rng, kind, dims))
    return graph.leaf(Sequence(kind, elements), False)


def chance(graph, probability):
    return graph.rng.random() < probability


def integer(graph, low, high):
    return int(graph.rng.integers(low, high + 1))


def tensor(graph, test=lambda array: True):
    """A dense value that a sequence may have."""
    names = graph.candidates(lambda array: values.NAMES[array.dtype] in KINDS and array.size <= 512 and test(array))
    if not names:
        raise Skip("no tensor")
    return graph.recent(names)


def sequence(graph, test=lambda value: True):
    names = [name for name in graph.others(Sequence) if test(graph.arrays[name])]
    if not names or chance(graph, 0.1):
        return construct(graph)
    return graph.recent(names)


def alike(graph, kind, rank):
    """A tensor for a sequence of this type, mostly of the rank of its elements."""
    fits = lambda array: values.NAMES[array.dtype] == kind and (rank is None or array.ndim == rank)
    try:
        return tensor(graph, fits)
    except Skip:
        rank = integer(graph, 0, 3) if rank is None else rank
        return graph.leaf(values.draw(graph.rng, kind, values.shape(graph.rng, rank, rank)), chance(graph, 0.3))


def rank_for(graph, value):
    return items.rank_of(value) if chance(graph, 0.85) else None


def position(graph, low, high):
    """An index, mostly known."""
    kind = np.int32 if chance(graph, 0.3) else np.int64
    return graph.leaf(np.array(integer(graph, low, high), kind), chance(graph, 0.6))


def construct(graph):
    first = tensor(graph)
    array = graph.arrays[first]
    names, kind, rank = [first], values.NAMES[array.dtype], array.ndim if chance(graph, 0.85) else None
    names += [alike(graph, kind, rank) for _ in range(integer(graph, 0, 3))]
    return graph.apply("SequenceConstruct", names)


def empty(graph):
    number = helper.np_dtype_to_tensor_dtype(graph.arrays[tensor(graph)].dtype)
    made = graph.apply("SequenceEmpty", [], {} if number == TensorProto.FLOAT and chance(graph, 0.5) else {"dtype": number})
    if chance(graph, 0.7):
        graph.apply("SequenceInsert", [made, alike(graph, graph.arrays[made].kind, None)])


def insert(graph):
    given = sequence(graph)
    value = graph.arrays[given]
    count = len(value.elements)
    at = [position(graph, -count, count)] if chance(graph, 0.6) else []
    graph.apply("SequenceInsert", [given, alike(graph, value.kind, rank_for(graph, value)), *at])


def erase(graph):
    given = sequence(graph, lambda value: value.elements)
    count = len(graph.arrays[given].elements)
    at = [position(graph, -count, count - 1)] if chance(graph, 0.7) else []
    graph.apply("SequenceErase", [given, *at])


def at(graph):
    given = sequence(graph, lambda value: value.elements)
    count = len(graph.arrays[given].elements)
    graph.apply("SequenceAt", [given, position(graph, -count, count - 1)])


def length(graph):
    graph.apply("SequenceLength", [sequence(graph)])


def split(graph):
    x = tensor(graph, lambda array: array.ndim and array.size)
    array = graph.arrays[x]
    axis = integer(graph, 0, array.ndim - 1)
    size, attributes = array.shape[axis], {}
    if axis or chance(graph, 0.5):
        attributes["axis"] = axis - array.ndim if chance(graph, 0.3) else axis
    kind, how = np.int32 if chance(graph, 0.3) else np.int64, graph.rng.random()
    if how < 0.35:
        sizes = []
        if chance(graph, 0.5):
            attributes["keepdims"] = integer(graph, 0, 1)
    elif how < 0.6:
        sizes = [np.array(integer(graph, 1, size), kind)]
    else:
        cuts = sorted(integer(graph, 0, size) for _ in range(integer(graph, 0, 3)))
        sizes = [np.diff([0, *cuts, size]).astype(kind)]
    names = [graph.leaf(one, chance(graph, 0.7)) for one in sizes]
    return graph.apply("SplitToSequence", [x, *names], attributes)


def concat(graph):
    """The elements side by side, where they fit; of a tensor that was split they do."""
    def fits(value):
        shapes = {one.shape for one in value.elements}
        return len(shapes) == 1 and len(next(iter(shapes))) > 0
    try:
        given = graph.recent([name for name in graph.others(Sequence) if fits(graph.arrays[name])] or [split(graph)])
    except IndexError:
        raise Skip("no sequence") from None
    rank = items.rank_of(graph.arrays[given])
    if rank is None:
        raise Skip("ranks")
    if chance(graph, 0.35):
        axis, new = integer(graph, 0, rank), 1
    else:
        axis, new = integer(graph, 0, rank - 1) if rank else 0, 0
    if chance(graph, 0.3):
        axis -= rank + new
    graph.apply("ConcatFromSequence", [given], {"axis": axis, "new_axis": new} if new or chance(graph, 0.5) else {"axis": axis})


def sequence_map(graph):
    """An exact operator on each element, at times with a second sequence or a tensor."""
    if graph.opset < MAPS:
        raise Skip("opset")
    given = sequence(graph, lambda value: value.kind != values.STRING)
    value = graph.arrays[given]
    if value.kind in ("bool", values.STRING) or not value.elements:
        raise Skip("type")
    number = helper.np_dtype_to_tensor_dtype(values.DTYPES[value.kind])
    names, inputs, result = [given], ["x"], number
    how = integer(graph, 0, 4)
    if how == 0:
        nodes = [helper.make_node("Add", ["x", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])]
    elif how == 1:
        nodes, result = [helper.make_node("Shape", ["x"], ["y"])], TensorProto.INT64
    elif how == 2:
        nodes = [helper.make_node("Transpose", ["x"], ["y"])]
    elif how == 3:
        names.append(given)
        nodes, inputs = [helper.make_node("Max", ["x", "z"], ["y"])], ["x", "z"]
    else:
        names.append(graph.leaf(values.draw(graph.rng, value.kind, ()), chance(graph, 0.5)))
        nodes, inputs = [helper.make_node("Min", ["x", "z"], ["y"])], ["x", "z"]
    info = lambda name, kind: helper.make_tensor_value_info(name, kind, None)
    body = helper.make_graph(nodes, "element", [info(name, number) for name in inputs], [info("y", result)])
    graph.apply("SequenceMap", names, {"body": body})


def optional(graph):
    """An optional of a tensor or a sequence, or of nothing, and a value that depends on it."""
    if graph.opset < OPTIONALS:
        raise Skip("opset")
    of_sequence = bool(graph.others(Sequence)) and chance(graph, 0.3)
    name = sequence(graph) if of_sequence else tensor(graph)
    value = graph.arrays[name]
    if chance(graph, 0.75):
        made = graph.apply("Optional", [name])
    else:
        made = graph.apply("Optional", [], {"type": items.type_proto(value, [None] * (items.rank_of(value) or 0))})
    if chance(graph, 0.5):
        graph.apply("OptionalHasElement", [made])


def has_element(graph):
    if graph.opset < OPTIONALS:
        raise Skip("opset")
    names = graph.others(Optional)
    if graph.opset >= 18 and (not names or chance(graph, 0.2)):
        names = graph.others(Sequence) or [tensor(graph)]
    if not names:
        raise Skip("no optional")
    graph.apply("OptionalHasElement", [graph.recent(names)])


def get_element(graph):
    names = [name for name in graph.others(Optional) if graph.arrays[name].element is not None]
    if graph.opset >= 18 and (not names or chance(graph, 0.1)):
        names = [tensor(graph)]
    if not names or graph.opset < OPTIONALS:
        raise Skip("no optional")
    graph.apply("OptionalGetElement", [graph.recent(names)])


STEPS = [
    construct, construct, empty, insert, insert, erase, at, at, at, length, split, split, concat, concat, concat, sequence_map,
    optional, optional, has_element, get_element, get_element,
]
