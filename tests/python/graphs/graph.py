"""A graph that is being drawn: nodes with the values that the oracle gives them."""

import functools

import numpy as np
from onnx import defs

import attention  # noqa: F401 (recipes register themselves)
import control  # noqa: F401
import elementwise
import items
import microsoft
import oracle
import quantized  # noqa: F401
import recurrent  # noqa: F401
import shapes  # noqa: F401
import signal_image  # noqa: F401
import sums  # noqa: F401
import texts
import values
from case import Node, Skip, domain_version

RECIPES = elementwise.RECIPES | microsoft.RECIPES
#: Recipes of nodes that read or give strings.
TEXT_RECIPES = RECIPES | texts.RECIPES
#: Elements of a value, beyond which it is not worth its time.
MOST_ELEMENTS = 4096
#: Magnitude beyond which floats say little any more.
MOST_MAGNITUDE = 1e4
#: Characters of a text, and elements of a sequence.
MOST_CHARACTERS, MOST_PARTS = 200, 12


@functools.cache
def vendor_schemas():
    return {schema.name: schema for schema in microsoft.schemas()}


def schema_of(key, opset):
    """The version of an operator, named after that of its domain, that holds in this opset of ai.onnx."""
    domain, _, name = key.rpartition(".")
    try:
        if domain == microsoft.DOMAIN:
            return vendor_schemas()[name]
        return defs.get_schema(name, domain_version(domain, opset), domain)
    except (defs.SchemaError, KeyError):
        raise Skip(f"{key} in opset {opset}") from None


def schema_since(key, since):
    """A version of an operator."""
    domain, _, name = key.rpartition(".")
    return vendor_schemas()[name] if domain == microsoft.DOMAIN else defs.get_schema(name, since, domain)


class Vertex:
    """A node of the graph: what a recipe drew, and the names of the values it reads and gives."""

    def __init__(self, node, inputs, outputs):
        self.node, self.inputs, self.outputs = node, inputs, outputs

    @property
    def op(self):
        return self.node.key

    def evaluate(self, arrays, opset):
        """Results for other arrays than those it was drawn with."""
        self.node.inputs = [(arrays[name] if name else None, False) for name in self.inputs]
        results, _ = oracle.evaluate(self.node, opset)
        whole = lambda array: np.ascontiguousarray(array).reshape(np.shape(array))
        return [items.mapped(whole, result) for result in results]

    def proto(self, rename=lambda name: name):
        return self.node.proto([rename(name) for name in self.inputs], [rename(name) for name in self.outputs])


class Graph:
    """Nodes in topological order, and the values of one set of inputs."""

    def __init__(self, opset, rng):
        self.opset, self.rng = opset, rng
        self.vertices = []
        #: Arrays, sequences and optionals by name: of leaves and of results.
        self.arrays = {}
        #: `input` or `constant` by the name of a leaf.
        self.leaves = {}
        self.outputs = []
        self.count = 0

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def checkpoint(self):
        return len(self.vertices), set(self.arrays)

    def rollback(self, checkpoint):
        count, names = checkpoint
        del self.vertices[count:]
        for name in set(self.arrays) - names:
            del self.arrays[name]
            self.leaves.pop(name, None)

    def leaf(self, array, constant):
        name = self.name("c" if constant else "x")
        self.arrays[name] = array if items.is_other(array) else np.asarray(array)
        self.leaves[name] = "constant" if constant else "input"
        return name

    def append(self, node, inputs):
        """Adds a node whose inputs are these values; gives the names of its results."""
        vertex = Vertex(node, inputs, [])
        results = vertex.evaluate(self.arrays, self.opset)
        if any(not usable(result) for result in results):
            raise Skip("values grew")
        vertex.outputs = [self.name("v") for _ in results]
        self.arrays.update(zip(vertex.outputs, results))
        self.vertices.append(vertex)
        return vertex.outputs

    def apply(self, op, inputs, attributes=None, outputs=1, types=None):
        """Adds a node of this operator on names or arrays, which become constants; gives its first result."""
        schema = schema_of(op, self.opset)
        names = [self.leaf(value, True) if isinstance(value, np.ndarray) else value for value in inputs]
        bound = dict(types or {})
        for at, name in enumerate(names):
            if name:
                formal = schema.inputs[min(at, len(schema.inputs) - 1)]
                bound.setdefault(formal.type_str, items.kind_of(self.arrays[name]))
        for at, name in enumerate(names):
            formal = schema.inputs[min(at, len(schema.inputs) - 1)]
            if name and items.type_text(self.arrays[name]) not in allowed_types(schema, formal):
                raise Skip("type")
        node = Node(schema, bound, self.rng)
        node.attributes, node.outputs, node.ulps, node.scale_ulps = dict(attributes or {}), outputs, 8, 8
        return self.append(node, names)[0]

    def candidates(self, test):
        """Names of dense values that pass, in the order they were made."""
        return [name for name, array in self.arrays.items() if not items.is_other(array) and test(array)]

    def others(self, kind):
        """Names of sequences or of optionals."""
        return [name for name, value in self.arrays.items() if isinstance(value, kind)]

    def recent(self, names):
        """One of the names, mostly a late one."""
        return names[-1 - int(len(names) * self.rng.random() ** 2.5)]

    def readers(self):
        count = {}
        for vertex in self.vertices:
            for name in vertex.inputs:
                count[name] = count.get(name, 0) + 1
        return count


def allowed_types(schema, formal):
    for constraint in schema.type_constraints:
        if constraint.type_param_str == formal.type_str:
            return constraint.allowed_type_strs
    return [formal.type_str]


def usable(value):
    parts = items.tensors(value)
    return len(parts) <= MOST_PARTS and all(usable_tensor(part) for part in parts)


def usable_tensor(array):
    if array.size > MOST_ELEMENTS or array.dtype not in values.NAMES:
        return False
    if values.NAMES[array.dtype] == values.STRING:
        return all(len(text) <= MOST_CHARACTERS for text in array.flat)
    if values.NAMES[array.dtype] not in values.FLOATS | values.COMPLEX:
        return True
    wide = np.abs(array.astype(complex if np.iscomplexobj(array) else np.float64))
    return bool(np.isfinite(wide).all() and (wide < MOST_MAGNITUDE).all())


class DrawnNode(Node):
    """A node whose recipe takes operands from the graph where they fit."""

    def __init__(self, graph, schema, types, given=None, reuse=0.8):
        super().__init__(schema, types, graph.rng, None if given is None else graph.arrays[given])
        self.graph, self.given_name, self.reuse, self.edge = graph, given, reuse, 0.0
        #: Per input the value it is, or None for a new leaf.
        self.sources = []

    def add(self, array, constant=0.12):
        first = self.given is not None and not self.inputs
        super().add(array, constant)
        self.sources.append(self.given_name if first else None)
        return array

    def omit(self):
        super().omit()
        self.sources.append(None)

    def any_of(self, array, low=-10.0, high=10.0, constant=0.12):
        if self.chance(self.reuse):
            found = find(self.graph, values.NAMES[array.dtype], array.shape, low, high)
            if found:
                self.inputs.append((self.graph.arrays[found], False))
                self.sources.append(found)
                return self.graph.arrays[found]
        return self.add(array, constant)

    def data(self, dims, low=-3.0, high=3.0, at=None, edge=None, constant=0.12):
        name = self.type(len(self.inputs) if at is None else at)
        if self.chance(self.reuse):
            found = find(self.graph, name, tuple(dims), low, high)
            if found:
                self.inputs.append((self.graph.arrays[found], False))
                self.sources.append(found)
                return self.graph.arrays[found]
        return super().data(dims, low, high, at, edge, constant)

    def main(self, low_rank=0, high_rank=4, zeros=True, **options):
        if self.given is None:
            return self.data(self.shape(low_rank, high_rank, zeros), at=0, **options)
        return super().main(low_rank, high_rank, zeros, **options)

    def shaped(self, dims, **options):
        if self.given is not None:
            raise Skip("shape")
        return self.data(dims, at=0, **options)

    def names(self):
        """The values of its inputs; new leaves for what the graph does not have."""
        names = []
        for (array, constant), source in zip(self.inputs, self.sources):
            if array is None:
                names.append("")
            elif source is not None and self.graph.arrays[source] is array:
                names.append(source)
            else:
                names.append(self.graph.leaf(array, constant))
        return names


def find(graph, kind, dims, low, high):
    """A value of this type and shape within the bounds, perhaps a view of one of another shape."""
    dtype = values.DTYPES[kind]
    free = kind in ("bool", values.STRING) or kind in values.FLOATS and low <= -3 and high >= 3
    if kind in values.SIGNED | values.UNSIGNED:
        # The type may not have the bounds.
        low, high = np.float64(low), np.float64(high)
    fits = lambda array: free or array.size == 0 or bool((array >= low).all() and (array <= high).all())
    same = graph.candidates(lambda array: array.dtype == dtype and array.shape == dims and fits(array))
    if same and graph.rng.random() < 0.85:
        return graph.recent(same)
    if kind in values.SMALL_FLOATS | values.COMPLEX or kind.endswith(("int2", "int4")):
        return None
    near = graph.candidates(lambda array: array.dtype == dtype and array.ndim and array.size > 1 and fits(array))
    if not near or graph.rng.random() < 0.3:
        return None
    try:
        return view(graph, graph.recent(near), dims)
    except (Skip, oracle.NoOracle):
        return None


def view(graph, name, dims):
    """A view of a value, of another shape."""
    array = graph.arrays[name]
    if array.shape == dims:
        return name
    if array.size == int(np.prod(dims, dtype=np.int64)) and graph.opset >= 5 and array.size:
        if sorted(array.shape) == sorted(dims) and graph.rng.random() < 0.5:
            perm, left = [], list(range(array.ndim))
            for size in dims:
                axis = next(axis for axis in left if array.shape[axis] == size)
                left.remove(axis)
                perm.append(axis)
            return graph.apply("Transpose", [name], {"perm": perm})
        return graph.apply("Reshape", [name, np.array(dims, np.int64)])
    ranks = len(dims) - array.ndim
    if ranks >= 0 and graph.opset >= 8 and all(
            size in (1, wanted) for size, wanted in zip(array.shape, dims[ranks:])) and 0 not in dims:
        return graph.apply("Expand", [name, np.array(dims, np.int64)])
    if ranks == 0 and graph.opset >= 10 and all(size >= wanted for size, wanted in zip(array.shape, dims)):
        starts = [int(graph.rng.integers(0, size - wanted + 1)) for size, wanted in zip(array.shape, dims)]
        ends = [start + wanted for start, wanted in zip(starts, dims)]
        return graph.apply("Slice", [name, np.array(starts, np.int64), np.array(ends, np.int64)])
    raise Skip("no view")
