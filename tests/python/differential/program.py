"""Small programs: graphs of nested If, Loop and Scan, whose sizes and numbers of iterations data decide.

Floats are multiples of 1/8 of small magnitude, so that every result is exact. What is known of a value's sizes while
drawing: a number, or a token, equal for equal sizes. `varies` are the loops in whose iterations a value or size is not
the same; what varies is not a scan output.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import flow
import values
from case import Skip

ELEMENTS = {"int64": TensorProto.INT64, "bool": TensorProto.BOOL, "float": TensorProto.FLOAT,
            "double": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}
DEEPEST = 3


@dataclass(frozen=True)
class Size:
    key: object
    varies: frozenset = frozenset()


@dataclass(frozen=True)
class Val:
    name: str
    kind: str
    dims: tuple
    varies: frozenset = frozenset()

    @property
    def rank(self):
        return len(self.dims)


class Scope:
    """A graph that is being drawn."""

    def __init__(self, program, outer=None, loop=None):
        self.program, self.outer, self.loop = program, outer, loop
        self.rng, self.nodes, self.values, self.constants = program.rng, [], [], []
        self.depth = outer.depth + 1 if outer else 0
        #: What all that is used here varies with.
        self.used = frozenset()

    def chance(self, probability):
        return self.rng.random() < probability

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def pick(self, items):
        return items[int(self.rng.integers(0, len(items)))]

    def visible(self):
        return self.values + (self.outer.visible() if self.outer else [])

    def find(self, test):
        """A value that passes, mostly one of the inner ones."""
        own = [value for value in self.values if test(value)]
        late = own and self.chance(0.7)
        found = own if late else [value for value in self.visible() if test(value)]
        if not found:
            return None
        # Among its own the latest, mostly, so that little is computed in vain.
        value = found[-1 - int(len(found) * self.rng.random() ** 3)] if late else self.pick(found)
        self.used |= value.varies
        return value

    def need(self, kind, rank=None):
        found = self.find(lambda value: value.kind == kind and (rank is None or value.rank == rank))
        return found or self.constant(kind, [self.integer(0, 3) for _ in range(rank or 0)])

    def constant(self, kind, dims, array=None):
        array = grid(self.rng, kind, dims) if array is None else np.asarray(array, values.DTYPES[kind])
        name = self.program.name("c")
        # Constant is for floats alone in the first operator sets.
        if self.chance(0.5) or self.opset < 9 and kind in ("int64", "bool"):
            self.constants.append(numpy_helper.from_array(array, name))
        else:
            tensor = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        value = Val(name, kind, tuple(Size(size) for size in array.shape))
        self.values.append(value)
        return value

    def ints(self, *numbers):
        return self.constant("int64", (), np.array(numbers, np.int64)).name

    def node(self, op, inputs, kind, dims, outputs=1, **attributes):
        """A node whose inputs are values or names; its one result, or the first."""
        names = [value.name if isinstance(value, Val) else value for value in inputs]
        varies = frozenset().union(*(value.varies for value in inputs if isinstance(value, Val)))
        results = [self.program.name("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, names, results, **attributes))
        # A size that data decide varies as they do.
        dims = tuple(dim if isinstance(dim, Size) else Size(self.program.name("s"), varies) for dim in dims)
        value = Val(results[0], kind, dims, varies)
        self.values.append(value)
        return value

    @property
    def opset(self):
        return self.program.opset


def grid(rng, kind, dims):
    if kind == "int64":
        return rng.integers(-2, 5, dims)
    if kind == "bool":
        return np.asarray(rng.random(dims) < 0.5)
    return np.asarray(rng.integers(-24, 25, dims) / 8).astype(values.DTYPES[kind])


NEW = None  # A size that no other value has.


# Steps: each adds a value, or none where nothing fits.

def clip(s, x):
    low, high = (s.constant(x.kind, (), bound).name for bound in (-32, 32))
    if s.opset >= 11:
        return s.node("Clip", [x, low, high], x.kind, x.dims)
    return s.node("Clip", [x], x.kind, x.dims, min=-32.0, max=32.0)


def elementwise(s):
    x = s.need(s.program.float)
    if s.chance(0.3):
        return s.node(s.pick(["Neg", "Abs", "Relu", "Identity", "Floor"]), [x], x.kind, x.dims)
    y = s.find(lambda v: v.kind == x.kind and (v.dims == x.dims or v.rank == 0)) or x
    return clip(s, s.node(s.pick(["Add", "Sub", "Max", "Min"]), [x, y], x.kind, x.dims))


def integer(s):
    x, y = s.need("int64", 0), s.need("int64", 0)
    return s.node(s.pick(["Add", "Sub"]), [x, y], "int64", ())


def concat(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64") and 1 <= v.rank <= 2)
    if x is None:
        return None
    axis = s.integer(0, x.rank - 1)
    fits = lambda v: v.kind == x.kind and v.rank == x.rank and all(
        a == b for at, (a, b) in enumerate(zip(v.dims, x.dims)) if at != axis)
    y = s.find(fits) or x
    if x.rank == 1 and s.chance(0.4):
        y = s.constant(x.kind, (s.integer(1, 2),))
    dims = [NEW if at == axis else dim for at, dim in enumerate(x.dims)]
    varying = frozenset().union(x.dims[axis].varies, y.dims[axis].varies)
    dims[axis] = Size(s.program.name("s"), varying)
    return s.node("Concat", [x, y], x.kind, dims, axis=axis)


def positive(s, x):
    """Which elements of a float or an int64 are greater than some constant."""
    limit = s.constant(x.kind, (), s.integer(-1, 2))
    return s.node("Greater", [x, limit], "bool", x.dims)


def compress(s):
    x = s.find(lambda v: v.kind == s.program.float and v.rank == 1)
    if s.opset < 9 or x is None:
        return None
    return s.node("Compress", [x, positive(s, x)], x.kind, [NEW], axis=0)


def nonzero(s):
    x = s.find(lambda v: v.kind == s.program.float and 1 <= v.rank <= 2)
    if s.opset < 9 or x is None:
        return None
    places = s.node("NonZero", [positive(s, x)], "int64", [Size(x.rank), NEW])
    if s.chance(0.5):
        return places
    places = s.node("Transpose", [places], "int64", places.dims[::-1], perm=[1, 0])
    if x.rank == 2 and s.chance(0.5):
        return s.node("GatherND", [x, places], x.kind, [places.dims[0]]) if s.opset >= 12 else places
    return places


def slice_(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64") and v.rank >= 1)
    if x is None:
        return None
    axis, start = s.integer(0, x.rank - 1), s.integer(-2, 1)
    dims = [NEW if at == axis else dim for at, dim in enumerate(x.dims)]
    end = s.pick([1, 2, 3, 2**31 - 1])
    if s.opset < 10:
        dims[axis] = Size(s.program.name("s"), x.dims[axis].varies)
        return s.node("Slice", [x], x.kind, dims, axes=[axis], starts=[start], ends=[end])
    if s.chance(0.3):
        ends = unsqueeze(s, s.need("int64", 0))
        return s.node("Slice", [x, s.ints(start), ends, s.ints(axis)], x.kind, dims)
    if s.chance(0.3):
        start, end, step = -1, -(2**31), -1
        return s.node("Slice", [x, s.ints(start), s.ints(end), s.ints(axis), s.ints(step)], x.kind, x.dims)
    dims[axis] = Size(s.program.name("s"), x.dims[axis].varies)
    return s.node("Slice", [x, s.ints(start), s.ints(end), s.ints(axis)], x.kind, dims)


def unsqueeze(s, x, axis=0):
    dims = x.dims[:axis] + (Size(1),) + x.dims[axis:]
    if s.opset >= 13:
        return s.node("Unsqueeze", [x, s.ints(axis)], x.kind, dims)
    return s.node("Unsqueeze", [x], x.kind, dims, axes=[axis])


def unsqueezed(s):
    x = s.find(lambda v: v.kind != "bool" and v.rank <= 2)
    return unsqueeze(s, x, s.integer(0, x.rank)) if x else None


def reduce_sum(s):
    kinds = ("float", "double", "int64") if s.opset >= 11 else ("float", "double")
    x = s.find(lambda v: v.kind in kinds and v.rank >= 1)
    if x is None:
        return None
    axis = s.integer(0, x.rank - 1)
    dims = [dim for at, dim in enumerate(x.dims) if at != axis]
    if s.opset >= 13:
        result = s.node("ReduceSum", [x, s.ints(axis)], x.kind, dims, keepdims=0)
    else:
        result = s.node("ReduceSum", [x], x.kind, dims, axes=[axis], keepdims=0)
    return result if x.kind == "int64" else clip(s, result)


def size_of(s):
    x = s.find(lambda v: v.kind != "bool" and v.rank >= 1)
    if x is None:
        return None
    if s.chance(0.5):
        return s.node("Size", [x], "int64", ())
    whole = s.node("Shape", [x], "int64", [Size(x.rank)])
    return s.node("Gather", [whole, s.constant("int64", (), s.integer(0, x.rank - 1))], "int64", ())


def small(s):
    """An int64 scalar from 0 to 3, that data decide."""
    x = s.need("int64", 0)
    if s.opset < 10:
        return s.constant("int64", (), s.integer(0, 3))
    return s.node("Mod", [x, s.constant("int64", (), 4)], "int64", ())


def range_(s):
    if s.opset < 11:
        return None
    zero, one = s.constant("int64", (), 0), s.constant("int64", (), 1)
    return s.node("Range", [zero, small(s), one], "int64", [NEW])


def filled(s):
    if s.opset < 9:
        return None
    dims = s.node("Concat", [unsqueeze(s, small(s)), s.ints(s.integer(1, 2))], "int64", [Size(2)], axis=0)
    value = numpy_helper.from_array(np.array([1.5], values.DTYPES[s.program.float]))
    return s.node("ConstantOfShape", [dims], s.program.float, [NEW, NEW], value=value)


def where(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64"))
    if s.opset < 9 or x is None:
        return None
    y = s.find(lambda v: v.kind == x.kind and (v.dims == x.dims or v.rank == 0)) or x
    return s.node("Where", [condition(s), x, y], x.kind, x.dims)


def unique(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64") and v.rank == 1 and v.kind != "float16")
    if s.opset < 11 or x is None:
        return None
    return s.node("Unique", [x], x.kind, [NEW])


def top_k(s):
    x = s.find(lambda v: v.kind == s.program.float and v.rank == 1)
    if s.opset < 12 or x is None:
        return None
    size = s.node("Size", [x], "int64", ())
    k = s.node("Min", [size, small(s)], "int64", ())
    return s.node("TopK", [x, unsqueeze(s, k)], x.kind, [NEW], 2)


def reshaped(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64") and v.rank != 1)
    if x is None:
        return None
    varying = frozenset().union(*(dim.varies for dim in x.dims))
    return s.node("Reshape", [x, s.ints(-1)], x.kind, [Size(s.program.name("s"), varying)])


def transposed(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64") and v.rank >= 2)
    if x is None:
        return None
    perm = [int(axis) for axis in s.rng.permutation(x.rank)]
    return s.node("Transpose", [x], x.kind, [x.dims[axis] for axis in perm], perm=perm)


def cast(s):
    x = s.find(lambda v: v.kind in (s.program.float, "int64"))
    if x is None:
        return None
    kind = s.program.float if x.kind == "int64" else "int64"
    result = s.node("Cast", [x], kind, x.dims, to=ELEMENTS[kind])
    return result if kind == "int64" else clip(s, result)


def padded(s):
    x = s.find(lambda v: v.kind == s.program.float and v.rank == 1)
    if s.opset < 11 or x is None:
        return None
    pads = s.node("Concat", [unsqueeze(s, small(s)), s.ints(s.integer(0, 1))], "int64", [Size(2)], axis=0)
    return s.node("Pad", [x, pads], x.kind, [NEW])


def non_max_suppression(s):
    if s.opset < 10:
        return None
    boxes = s.constant("float", (), [[[0, 0, 1, 1], [0, 0, 1.125, 1], [2, 2, 3, 3], [0, 2, 1, 3]]])
    x = s.find(lambda v: v.kind == "float" and v.rank == 0)
    scores = s.constant("float", (), [[[0.5, 0.75, 1.0, 0.25]]])
    if x is not None:
        scores = s.node("Add", [scores, x], "float", [Size(1), Size(1), Size(4)])
    most = unsqueeze(s, small(s))
    overlap = s.constant("float", (), [0.5])
    return s.node("NonMaxSuppression", [boxes, scores, most, overlap], "int64", [NEW, Size(3)])


def condition(s):
    """A bool scalar."""
    kind = s.rng.random()
    known = s.find(lambda v: v.kind == "bool" and v.rank == 0)
    if known and kind < 0.4:
        return known
    if kind < 0.5:
        return s.constant("bool", ())
    x = s.need("int64", 0) if kind < 0.75 and s.opset >= 9 else s.need(s.program.float, 0)
    if s.chance(0.2) and known:
        return s.node(s.pick(["And", "Or", "Xor"]), [known, positive(s, x)], "bool", ())
    return positive(s, x)


STEPS = [
    (elementwise, 4), (integer, 2), (concat, 3), (compress, 2), (nonzero, 2), (slice_, 3), (unsqueezed, 1),
    (reduce_sum, 3), (size_of, 2), (range_, 1), (filled, 1), (where, 1), (unique, 1), (top_k, 1), (reshaped, 1),
    (transposed, 1), (cast, 1), (padded, 1), (non_max_suppression, 1), (condition, 2),
]


def steps(s, count):
    weights = np.array([weight for _, weight in STEPS], float)
    for _ in range(count):
        if s.depth < DEEPEST and s.chance(0.6 if s.depth == 0 else 0.3):
            s.pick([if_, if_, loop, loop, loop, scan])(s)
        else:
            STEPS[int(s.rng.choice(len(STEPS), p=weights / weights.sum()))][0](s)


def info(s, value, shaped=None):
    """A body's input or output, with what may be declared of its sizes."""
    how = s.rng.random() if shaped is None else 0.3 + 0.7 * s.rng.random()
    dims = [dim.key if isinstance(dim.key, int) and not dim.varies else None for dim in value.dims]
    if how < 0.3 and value.dims != (Size(1),):
        return helper.make_empty_tensor_value_info(value.name) if s.chance(0.1) else helper.make_tensor_value_info(
            value.name, ELEMENTS[value.kind], None)
    return helper.make_tensor_value_info(value.name, ELEMENTS[value.kind], [None] * value.rank if how < 0.6 else dims)


def entered(s, kind, dims, loop):
    value = Val(s.program.name("x"), kind, tuple(dims), frozenset([loop]) if loop else frozenset())
    s.values.append(value)
    return value


def left(s, value):
    """What a body returns: a value of its own. One from around it passes through a node."""
    if value in s.values and value.name[0] == "v" and s.chance(0.9):
        return value
    if value in s.values and value.name[0] == "x" and s.chance(0.3):
        return value
    return s.node("Identity", [value], value.kind, value.dims)


def result_info(s, value):
    return helper.make_tensor_value_info(
        value.name, ELEMENTS[value.kind], None if s.chance(0.4) else [None] * value.rank)


def used(nodes):
    """Names that nodes and bodies in them mention."""
    names = set()
    for node in nodes:
        names.update(node.input)
        for graph in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            names |= used(graph.node) | {output.name for output in graph.output}
    return names


def finish(s, inputs, outputs, leading=0):
    """The body. Its first `leading` inputs always declare their rank."""
    names = used(s.nodes) | {value.name for value in outputs}
    constants = [tensor for tensor in s.constants if tensor.name in names]
    inputs = [info(s, value, at < leading or None) for at, value in enumerate(inputs)]
    return helper.make_graph(s.nodes, "body", inputs, [result_info(s, value) for value in outputs], constants)


def distinct(s, outputs):
    """The same value twice is for a node's inputs, not for a graph's outputs, in most cases."""
    seen, results = set(), []
    for value in outputs:
        again = value.name in seen and s.chance(0.9)
        results.append(s.node("Identity", [value], value.kind, value.dims) if again else value)
        seen.add(results[-1].name)
        if value.name in s.program.own:
            s.program.own.add(results[-1].name)
    return results


def if_(s):
    test = condition(s)
    if s.chance(0.1):
        test = unsqueeze(s, test)
    branches = [Scope(s.program, s), Scope(s.program, s)]
    for branch in branches:
        steps(branch, branch.integer(1, 4))
    results = [[], []]
    for _ in range(s.integer(1, 3)):
        one = left(branches[0], branches[0].need(s.pick([s.program.float, s.program.float, "int64", "bool"])))
        same = lambda v: v.kind == one.kind and v.dims == one.dims
        alike = lambda v: v.kind == one.kind and v.rank == one.rank
        other = branches[1].find(same if s.chance(0.5) else alike) or branches[1].need(one.kind, one.rank)
        results[0].append(one)
        results[1].append(left(branches[1], other))
    results = [distinct(branch, outputs) for branch, outputs in zip(branches, results)]
    bodies = [finish(branch, [], outputs) for branch, outputs in zip(branches, results)]
    around = frozenset().union(test.varies, branches[0].used, branches[1].used)
    s.used |= around
    names = []
    for one, other in zip(*results):
        name = s.program.name("v")
        names.append(name)
        dims = []
        for a, b in zip(one.dims, other.dims):
            dims.append(a if a == b else Size(s.program.name("s"), test.varies | a.varies | b.varies))
        s.values.append(Val(name, one.kind, tuple(dims), around))
    s.nodes.append(helper.make_node("If", [test.name], names, then_branch=bodies[0], else_branch=bodies[1]))


def states_of(s, count):
    return [s.need(s.pick([s.program.float, s.program.float, "int64", "bool"])) for _ in range(count)]


def next_states(body, states, grows):
    """Values that the body hands over: of a state's own sizes, or of any."""
    results = []
    for state, free in zip(states, grows):
        same = lambda v: v.kind == state.kind and v.dims == state.dims
        alike = lambda v: v.kind == state.kind and v.rank == state.rank
        found = body.find(alike if free else same)
        results.append(left(body, found or state))
    return results


def scanned(body, count, invariant):
    """Scan outputs, whose sizes are the same in all iterations."""
    results = []
    for _ in range(count):
        test = lambda v: v.rank <= 2 and all(body.loop not in dim.varies for dim in v.dims)
        found = body.find(lambda v: test(v) and v in body.values) or body.find(test)
        if found is None:
            continue
        results.append(left(body, found))
        outer = {dim for value in body.outer.visible() for dim in value.dims}
        if any(not isinstance(dim.key, int) and dim not in outer for dim in found.dims):
            body.program.own.add(results[-1].name)
    return results


def leave(s, body, bodys, stack_dims, states, outputs, stacks, grows):
    """Results of a Loop or Scan in the graph around."""
    around = body.used - {body.loop}
    s.used |= around
    names = []
    for initial, last, free in zip(states, outputs, grows):
        dims = initial.dims
        if free:
            dims = tuple(Size(s.program.name("s"), around | initial.varies) for _ in dims)
        names.append(Val(s.program.name("v"), initial.kind, dims, around | initial.varies))
    for value, place in zip(stacks, stack_dims):
        dims = [Size(dim.key, dim.varies - {body.loop}) for dim in value.dims]
        dims.insert(place[0], place[1])
        names.append(Val(s.program.name("v"), value.kind, tuple(dims), around))
    s.values += names
    return [value.name for value in names]


def loop(s):
    identity = s.program.name("loop")
    states = states_of(s, s.integer(0 if s.opset >= 11 else 1, 3))
    grows = [state.rank > 0 and s.chance(0.5) for state in states]
    body = Scope(s.program, s, identity)
    form = s.chance(0.05)
    number = entered(body, "int64", [Size(1)] if form else [], identity)
    keep = entered(body, "bool", [], identity)
    inside = []
    for state, free in zip(states, grows):
        dims = [Size(s.program.name("s"), frozenset([identity])) for _ in state.dims] if free else state.dims
        inside.append(entered(body, state.kind, dims, identity))
    endless = s.chance(0.3) and s.opset >= 9 and not form
    steps(body, body.integer(1, 5))
    how = s.rng.random()
    again = keep if how < 0.35 else body.constant("bool", (), True) if how < 0.6 else condition(body)
    if endless:
        few = body.node("Less", [number, body.constant("int64", (), s.integer(0, 3))], "bool", ())
        again = body.node("And", [again, few], "bool", ())
    outputs = next_states(body, inside, grows)
    stacks = scanned(body, s.integer(0 if states else 1, 2), True)
    if not outputs and not stacks:
        stacks = [left(body, number)]
    again = left(body, again)
    again, *rest = distinct(body, [again, *outputs, *stacks])
    outputs, stacks = rest[: len(states)], rest[len(states):]
    most, start = None, None
    if not endless:
        most = s.constant("int64", (), s.integer(0, 4)) if s.chance(0.5) else small(s)
        # The type of the counter is that of M.
        most = unsqueeze(s, most) if form else most
    if endless or s.chance(0.6):
        start = s.constant("bool", (), True) if s.chance(0.4) else condition(s)
    graph = finish(body, [number, keep, *inside], [again, *outputs, *stacks], 2)
    varies = frozenset().union(*(value.varies for value in (most, start) if value), body.used - {identity})
    body.used |= varies | frozenset().union(*(state.varies for state in states))
    length = Size(s.program.name("s"), varies)
    names = leave(s, body, graph, [(0, length)] * len(stacks), states, outputs, stacks, grows)
    inputs = [value.name if value else "" for value in (most, start)] + [state.name for state in states]
    s.nodes.append(helper.make_node("Loop", inputs, names, body=graph))


def scan(s):
    batches = s.opset == 8
    first = s.find(lambda v: v.rank >= (2 if batches else 1) and v.rank <= 3)
    if first is None:
        return
    identity, lead = s.program.name("loop"), first.dims[:1] if batches else ()
    axis = 1 if batches else s.integer(0, first.rank - 1)
    length = first.dims[axis]
    given, axes = [first], [axis]
    if s.chance(0.5):
        fits = lambda v: v.rank > axis and v.dims[axis] == length and v.dims[: len(lead)] == lead
        given.append(s.find(fits) or first)
        axes.append(axis)
    if batches:
        states = [state for state in [s.find(lambda v: v.dims[:1] == lead)] if state and s.chance(0.7)]
    else:
        states = states_of(s, s.integer(0, 2))
    body = Scope(s.program, s, identity)
    inside = [entered(body, state.kind, state.dims[len(lead):], identity) for state in states]
    for value, at in zip(given, axes):
        dims = [dim for place, dim in enumerate(value.dims) if place != at]
        entered(body, value.kind, dims[len(lead):], identity)
    inputs = list(body.values)
    steps(body, body.integer(1, 4))
    outputs = next_states(body, inside, [False] * len(inside))
    stacks = scanned(body, s.integer(0 if states else 1, 2), True)
    if not outputs and not stacks:
        stacks = [left(body, body.constant("int64", ()))]
    rest = distinct(body, [*outputs, *stacks])
    outputs, stacks = rest[: len(states)], rest[len(states):]
    graph = finish(body, inputs, outputs + stacks)
    if batches:
        # The loop over sequences hides what varies from one to the other.
        lengths = ""
        if isinstance(lead[0].key, int) and isinstance(length.key, int) and s.chance(0.6):
            lengths = s.constant("int64", (), s.rng.integers(0, length.key + 1, lead[0].key)).name
        attributes = {"directions": [s.integer(0, 1) for _ in given]} if s.chance(0.5) else {}
        places = [(0, length)] * len(stacks)
        names = leave(s, body, graph, places, inside, outputs, stacks, [False] * len(states))
        for at, name in enumerate(names):
            place = next(i for i, value in enumerate(s.values) if value.name == name)
            value = s.values[place]
            s.values[place] = Val(name, value.kind, lead + value.dims, value.varies)
        inputs = [lengths] + [value.name for value in states + given]
        s.nodes.append(helper.make_node(
            "Scan", inputs, names, body=graph, num_scan_inputs=len(given), **attributes))
        return
    attributes = {}
    if any(axes) or s.chance(0.3):
        attributes["scan_input_axes"] = [
            at - value.rank if s.opset >= 11 and s.chance(0.3) else at for at, value in zip(axes, given)]
    if s.chance(0.5):
        attributes["scan_input_directions"] = [s.integer(0, 1) for _ in given]
    places = [(0, length)] * len(stacks)
    if stacks and s.chance(0.5):
        places = [(s.integer(0, value.rank), length) for value in stacks]
        attributes["scan_output_axes"] = [
            at - value.rank - 1 if s.opset >= 11 and s.chance(0.3) else at for (at, _), value in zip(places, stacks)]
    if stacks and s.chance(0.5):
        attributes["scan_output_directions"] = [s.integer(0, 1) for _ in stacks]
    body.used |= frozenset().union(*(value.varies for value in states + given))
    names = leave(s, body, graph, places, states, outputs, stacks, [False] * len(states))
    s.nodes.append(helper.make_node(
        "Scan", [value.name for value in states + given], names, body=graph, num_scan_inputs=len(given), **attributes))


class Program:
    """A model of nested control flow, and what its results should be."""

    def __init__(self, opset, rng, symbolic):
        self.opset, self.rng, self.names, self.own, self.symbolic = opset, rng, 0, set(), symbolic
        self.float = ["float", "float", "float", "float", "double", "float16"][int(rng.integers(0, 6))]
        if opset < 13 and self.float == "float16":
            self.float = "float"
        self.scope = Scope(self)
        self.inputs = []
        for kind, most in ((self.float, 2), (self.float, 1), ("int64", 1), ("int64", 0), ("bool", 0)):
            if rng.random() < 0.75 or not self.inputs:
                self.input(kind, int(rng.integers(min(most, 1), most + 1)))
        if opset == 8:
            self.input(self.float, 3)
        steps(self.scope, int(rng.integers(2, 7)))
        self.results = self.outputs()
        if not self.results:
            raise Skip("nothing computed")

    def name(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    def input(self, kind, rank):
        array = grid(self.rng, kind, [values.dim(self.rng) % 7 for _ in range(rank)])
        # A size that the model has a symbol for is one that it does not know.
        sizes = [f"n{size}" if self.symbolic and size >= 2 else size for size in array.shape]
        value = Val(self.name("i"), kind, tuple(Size(size) for size in sizes))
        self.scope.values.append(value)
        self.inputs.append((value.name, array))

    def outputs(self):
        made = {name for node in self.scope.nodes for name in node.output if node.op_type in flow_operators()}
        rest = [value for value in self.scope.values if value.name[0] == "v"]
        chosen = [value for value in rest if value.name in made][-6:]
        return chosen or rest[-2:]

    def run(self):
        graph = helper.make_graph(
            self.scope.nodes, "drawn", [], [helper.make_empty_tensor_value_info(value.name) for value in self.results],
            self.scope.constants)
        runner = flow.Flow(self.opset, frozenset(self.own))
        return list(zip((value.name for value in self.results), runner.graph(graph, dict(self.inputs))))


def flow_operators():
    return ("If", "Loop", "Scan")
