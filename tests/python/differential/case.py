"""A node that is being drawn: operator version, types, inputs and attributes."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import values


class Skip(Exception):
    """These types, or this tensor as the first input, are none for the recipe."""


class Close(Skip):
    """Rounding decides what a node gives: implementations may differ in more than its rounding error."""


class Node:
    """One node of a generated model. A recipe fills it in."""

    def __init__(self, schema, types, rng, given=None):
        self.schema, self.types, self.rng = schema, dict(types), rng
        self.op, self.since, self.domain = schema.name, schema.since_version, schema.domain
        #: The operator's name, after that of its domain where it is not of ai.onnx.
        self.key = f"{self.domain}.{self.op}" if self.domain else self.op
        #: Array of the first input, in a chain of nodes.
        self.given = given
        #: (array or None, whether it is a constant); the given array is always the first.
        self.inputs = []
        self.attributes = {}
        #: What attributes mean to the oracle, where it differs from their spelling.
        self.outputs = 1
        #: Numbers of outputs that have no name.
        self.unnamed = set()
        #: Units in the last place of the result type that rounding may make.
        self.ulps = 4
        #: Absolute tolerance, as a share of the greatest magnitude in the results.
        self.scale_ulps = 0
        #: Greatest magnitude of intermediate values, where results may be smaller.
        self.magnitude = 0.0
        #: Share of special values.
        self.edge = 0.12 if given is None and rng.random() < 0.5 else 0.0

    def chance(self, probability):
        return self.rng.random() < probability

    def pick(self, *choices):
        return choices[int(self.rng.integers(0, len(choices)))]

    def integer(self, low, high):
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def has(self, attribute):
        return attribute in self.schema.attributes

    def type_of(self, parameter):
        """Name of the element type of a formal input or output."""
        text = self.types.get(parameter.type_str, parameter.type_str)
        if text.startswith("tensor("):
            text = text[len("tensor("):-1]
        if text not in values.DTYPES:
            raise Skip(f"type {text}")
        return text

    def type(self, at=0):
        return self.type_of(self.schema.inputs[min(at, len(self.schema.inputs) - 1)])

    def out_type(self, at=0):
        return self.type_of(self.schema.outputs[min(at, len(self.schema.outputs) - 1)])

    def dtype(self, at=0):
        return values.DTYPES[self.type(at)]

    def any_of(self, array, low=-10.0, high=10.0, constant=0.12):
        """As `add`, where any values of this type and shape from `low` to `high` do as well."""
        return self.add(array, constant)

    def shape(self, low=0, high=4, zeros=True):
        return values.shape(self.rng, low, high, zeros)

    def add(self, array, constant=0.12):
        """One more input; `constant` is the probability that it is one."""
        first_of_chain = self.given is not None and not self.inputs
        self.inputs.append((array, not first_of_chain and self.chance(constant)))
        return array

    def draw(self, at, dims, low=-3.0, high=3.0, edge=None):
        return values.draw(self.rng, self.type(at), dims, low, high, self.edge if edge is None else edge)

    def data(self, dims, low=-3.0, high=3.0, at=None, edge=None, constant=0.12):
        """One more input of random values."""
        at = len(self.inputs) if at is None else at
        return self.add(self.draw(at, dims, low, high, edge), constant)

    def main(self, low_rank=0, high_rank=4, zeros=True, **options):
        """The first input: the chain's tensor, or one of random shape and values."""
        if self.given is not None:
            rank = self.given.ndim
            if not low_rank <= rank <= high_rank or (not zeros and self.given.size == 0):
                raise Skip("rank")
            return self.add(self.given)
        return self.data(self.shape(low_rank, high_rank, zeros), at=0, **options)

    def shaped(self, dims, **options):
        """The first input, of these dims; none in the middle of a chain."""
        if self.given is not None:
            raise Skip("shape")
        return self.data(dims, at=0, **options)

    def decides(self, array, probability=0.8):
        """An input that decides the result's shape: mostly a constant."""
        return self.add(np.asarray(array), probability)

    def decides_ints(self, array, **options):
        return self.decides(np.asarray(array, np.int64), **options)

    def omit(self):
        self.inputs.append((None, False))

    def attr(self, name, value):
        self.attributes[name] = value

    def maybe(self, name, value, probability=0.6):
        """An attribute, where the version has it, at times."""
        if self.has(name) and self.chance(probability):
            self.attributes[name] = value
            return value
        return None

    def axis(self, rank, positive=False):
        """An axis, at times counted from the end."""
        if rank == 0:
            raise Skip("rank")
        axis = self.integer(0, rank - 1)
        return axis - rank if not positive and self.chance(0.3) else axis

    def proto(self, inputs, outputs):
        node = helper.make_node(self.op, inputs, outputs, domain=self.domain or None)
        for name, value in self.attributes.items():
            kind = self.schema.attributes[name].type
            if isinstance(value, np.ndarray):
                value = numpy_helper.from_array(value)
            node.attribute.append(helper.make_attribute(name, value, attr_type=int(kind)))
        return node


#: Versions of ai.onnx.ml, by the version of ai.onnx from which on they are used beside it.
ML_VERSIONS = ((21, 5), (18, 4), (15, 3), (0, 2))


def domain_version(domain, opset):
    """Version of a domain that models of this version of ai.onnx import."""
    if domain == "ai.onnx.ml":
        return next(version for first, version in ML_VERSIONS if opset >= first)
    return 1 if domain else opset


def opset_imports(domains, opset):
    """Of ai.onnx, and of other domains."""
    return [helper.make_opsetid(name, domain_version(name, opset)) for name in ["", *sorted(set(domains) - {""})]]


def element_type(array):
    return getattr(TensorProto, values.NAMES[array.dtype].upper())
