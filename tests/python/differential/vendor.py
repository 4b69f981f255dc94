"""Registries of the operators of com.microsoft: recipes, which draw nodes, and definitions, which say what they should give.

The families are in files of their own; each registers itself here.
"""

import numpy as np

DOMAIN = "com.microsoft"
# Far below zero the two terms of a GELU cancel: the rest of a rounded one does not measure an error. Ours is 4e-9 times the
# argument at most, that of ONNX Runtime ten times as much.
GELU_MAGNITUDE = 2.0**-6
RECIPES = {}
DEFINITIONS = {}


def _into(registry, names, domain):
    def add(function):
        registry.update((f"{domain}.{name}", function) for name in names)
        return function
    return add


def recipe(*names, domain=DOMAIN):
    return _into(RECIPES, names, domain)


def definition(*names, domain=DOMAIN):
    return _into(DEFINITIONS, names, domain)


def arrays(node):
    """The inputs, None where there is none."""
    count = len(node.schema.inputs)
    given = [array for array, _ in node.inputs]
    return given + [None] * (count - len(given))


def attribute(node, name, default=None):
    return node.attributes.get(name, default)


def score_factor(node, size):
    """What scores of heads of this size are multiplied by. Sums of no products are 0, which the infinite default is not."""
    return attribute(node, "scale", 0.0) or (1 / np.sqrt(size) if size else 0.0)


def wide(array):
    return None if array is None else array.astype(np.float64)


def single32(value):
    """A number as an attribute holds it."""
    return float(np.float32(value))


def floats(n, dims, low=-2.0, high=2.0, kind=np.float32, constant=0.12):
    """One more input of reals."""
    return n.any_of(np.asarray(n.rng.uniform(low, high, dims)).astype(kind), low, high, constant)
