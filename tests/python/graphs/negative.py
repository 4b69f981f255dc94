"""Cases with something wrong: shapes that contradict each other, visible in the model or only in the run, and data that decide
another shape than the model declares."""

import numpy as np

import draw
import items
from case import Skip
from trial import Inputs, Trial

#: Operators with an operand that decides the result's shape, and its index.
DECIDERS = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0, "Slice": 2, "Pad": 1, "Range": 1, "TopK": 1, "Split": 1,
            "OneHot": 1, "CenterCropPad": 1, "Unsqueeze": 1, "Squeeze": 1, "Resize": 3, "SequenceAt": 1, "SequenceErase": 1,
            "SequenceInsert": 2, "SplitToSequence": 1}


def contradict(graph, dress, rng):
    """The graph with one operand of another size than its node expects."""
    places = [(vertex, at) for vertex in graph.vertices if len(vertex.inputs) > 1
              for at, name in enumerate(vertex.inputs) if name and not items.is_other(graph.arrays[name]) and graph.arrays[name].ndim]
    if not places:
        raise Skip("one operand each")
    # Of a negative axis the reference asks that all other axes and this one agree.
    places = [(vertex, at) for vertex, at in places
              if vertex.op != "GatherElements" or vertex.node.attributes.get("axis", 0) >= 0]
    if not places:
        raise Skip("the oracle refuses what is right")
    # Every operator alike, however often it is drawn.
    ops = sorted({vertex.op for vertex, _ in places})
    ops = [op for op in ops if op in draw.AGREEING] or ops
    op = ops[int(rng.integers(0, len(ops)))]
    places = [place for place in places if place[0].op == op]
    vertex, at = places[int(rng.integers(0, len(places)))]
    old = graph.arrays[vertex.inputs[at]]
    axis = int(rng.integers(0, old.ndim))
    choices = {0, 1, old.shape[axis] - 1, old.shape[axis] + 1, old.shape[axis] * 2, 3} - {old.shape[axis], -1}
    size = sorted(choices)[int(rng.integers(0, len(choices)))]
    if old.shape[axis] == 0:
        raise Skip("nothing to repeat")
    extra = rng.random() if rng.random() < 0.1 else None

    def changed(old):
        array = np.take(old, np.arange(size) % old.shape[axis], axis)
        if extra is None:
            return array
        return array.reshape(array.shape + (1,)) if extra < 0.5 else array.reshape(-1)

    # Operands of one shape change together, at times: they then contradict a third.
    same = [other for other, name in enumerate(vertex.inputs) if name and getattr(graph.arrays[name], "shape", None) == old.shape]
    chosen = same if rng.random() < 0.5 else [at]
    hide = rng.random() < 0.5
    constant = not hide and rng.random() < 0.2
    arrays = [changed(graph.arrays[vertex.inputs[place]]) for place in chosen]
    if arrays[0].size > 4096:
        raise Skip("too large")
    names = [graph.leaf(array, constant) for array in arrays]
    for place, name in zip(chosen, names):
        vertex.inputs[place] = name
    dress.blocks, dress.declared, dress.as_nodes = dress.blocks if rng.random() < 0.3 else [], False, set()
    if not hide:
        dress.symbols = {}
    leaves = {leaf: graph.arrays[leaf] for leaf in graph.leaves}
    trial = Trial(graph, dress, [Inputs("plain", leaves)])
    trial.negative = True
    if hide:
        trial.hidden = {(name, axis): f"h{axis}" for name, array in zip(names, arrays) for axis in range(array.ndim)}
    return trial


def decide(graph, dress, rng):
    """A graph whose outputs are declared, and data that decide otherwise; None if no operand decides a shape."""
    found = [(vertex, DECIDERS[vertex.op]) for vertex in graph.vertices
             if vertex.op in DECIDERS and len(vertex.inputs) > DECIDERS[vertex.op] and vertex.inputs[DECIDERS[vertex.op]] in graph.leaves]
    if not found:
        return None
    vertex, at = found[int(rng.integers(0, len(found)))]
    name = vertex.inputs[at]
    graph.leaves[name] = "input"
    dress.declared, dress.symbols, dress.blocks = True, {}, []
    dress.as_nodes.discard(name)
    leaves = {leaf: graph.arrays[leaf] for leaf in graph.leaves}
    other = np.array(leaves[name])
    flat = other.reshape(-1)
    if flat.size == 0:
        return None
    if rng.random() < 0.4:
        flat[:] = flat[::-1].copy()
    elif rng.random() < 0.5:
        # Of unsigned numbers, one below 0 is the greatest.
        flat[int(rng.integers(0, flat.size))] += np.int64(rng.integers(-2, 3)).astype(flat.dtype)
    else:
        flat[:] = rng.integers(-1, 6, flat.size)
    trial = Trial(graph, dress, [Inputs("plain", leaves), Inputs("decided", dict(leaves) | {name: other})])
    # What was declared of the results holds for the first set alone.
    return trial
