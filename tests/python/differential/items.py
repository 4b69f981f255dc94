"""Values other than dense tensors: sequences and optionals. Every function here takes dense ones, too.

A value has a type as schemas spell it, and consists of dense tensors. In the C ABI it is several tensors, one after the
other: of a sequence the sizes of all elements, -1 in place of axes that one has not, and all their elements; of an optional
whether it is there, and then its element.
"""

from dataclasses import dataclass, field

import numpy as np
from onnx import SequenceProto, TensorProto, helper, numpy_helper

import values


@dataclass
class Sequence:
    #: Name of the elements' type.
    kind: str
    elements: list = field(default_factory=list)


@dataclass
class Optional:
    #: What it is without an element: an empty one of its element's type.
    like: object
    element: object = None


def is_other(value):
    """Whether a value is not a dense tensor."""
    return isinstance(value, (Sequence, Optional))


def kind_of(value):
    """Name of the type of the elements."""
    if isinstance(value, Optional):
        return kind_of(value.like)
    return value.kind if isinstance(value, Sequence) else values.NAMES[value.dtype]


def type_text(value):
    if isinstance(value, Optional):
        return f"optional({type_text(value.like)})"
    return f"seq(tensor({value.kind}))" if isinstance(value, Sequence) else f"tensor({values.NAMES[value.dtype]})"


def type_name(value):
    """The type in short, for figures."""
    return type_text(value).replace("tensor(", "", 1).replace(")", "", 1)


def tensors(value):
    """The dense tensors of a value."""
    if isinstance(value, Optional):
        return [] if value.element is None else tensors(value.element)
    return value.elements if isinstance(value, Sequence) else [value]


def mapped(change, value):
    """The value with other dense tensors."""
    if isinstance(value, Optional):
        return Optional(value.like, None if value.element is None else mapped(change, value.element))
    return Sequence(value.kind, [change(one) for one in value.elements]) if isinstance(value, Sequence) else change(value)


def empty_like(value):
    """A value of the same type with nothing in it; a dense one of the same number of zeros."""
    if isinstance(value, Optional):
        return Optional(value.like)
    return Sequence(value.kind) if isinstance(value, Sequence) else values.zeros(values.NAMES[value.dtype], value.shape)


def rank_of(value):
    """Number of axes of all elements; None where they have unlike ones, or there is none."""
    ranks = {one.ndim for one in tensors(value)}
    return ranks.pop() if len(ranks) == 1 else None


def type_proto(value, dims=None):
    """The type, with these dims for a dense tensor; of a sequence one unknown dim per axis of its elements."""
    if isinstance(value, Optional):
        return helper.make_optional_type_proto(type_proto(value.like))
    element = getattr(TensorProto, kind_of(value).upper())
    if not isinstance(value, Sequence):
        return helper.make_tensor_type_proto(element, dims)
    rank = rank_of(value)
    return helper.make_sequence_type_proto(helper.make_tensor_type_proto(element, None if rank is None else [None] * rank))


def of_type(proto):
    """An empty value of this type, which is a dense one or a sequence."""
    in_sequence = proto.WhichOneof("value") == "sequence_type"
    element = (proto.sequence_type.elem_type if in_sequence else proto).tensor_type
    kind = values.NAMES[np.dtype(helper.tensor_dtype_to_np_dtype(element.elem_type))]
    return Sequence(kind) if in_sequence else values.zeros(kind, [0] * len(element.shape.dim))


def value_info(name, value, dims=None):
    return helper.make_value_info(name, type_proto(value, dims))


def unlike(got, wanted):
    """How the structures of two values differ, or an empty text."""
    if not is_other(wanted):
        return ""
    if type_text(got) != type_text(wanted):
        return f"is {type_text(got)}, not {type_text(wanted)}"
    if isinstance(wanted, Optional):
        if (got.element is None) != (wanted.element is None):
            return "is there" if wanted.element is None else "is not there"
        return "" if wanted.element is None else unlike(got.element, wanted.element)
    counts = len(got.elements), len(wanted.elements)
    return "" if counts[0] == counts[1] else f"has {counts[0]} elements, not {counts[1]}"


def packed(value, like=None):
    """What the C ABI takes. An empty sequence has elements of the rank of those of `like`, another value of the type."""
    if isinstance(value, Optional):
        inner = value.like if value.element is None else value.element
        return [np.array(value.element is not None), *packed(inner)]
    if not isinstance(value, Sequence):
        return [value]
    most = max((one.ndim for one in value.elements or (like.elements if like else ())), default=0)
    rows = [[*one.shape, *[-1] * (most - one.ndim)] for one in value.elements]
    flat = [one.reshape(-1) for one in value.elements] or [values.zeros(value.kind, (0,))]
    return [np.array(rows, np.int64).reshape(len(rows), most), np.concatenate(flat).astype(values.DTYPES[value.kind])]


def unpacked(given, like):
    """The value of this type that the C ABI gives as the next tensors of an iterator."""
    if isinstance(like, Optional):
        present = bool(next(given))
        element = unpacked(given, like.like)
        return Optional(like.like, element if present else None)
    if not isinstance(like, Sequence):
        return next(given)
    shapes, data = next(given), next(given)
    elements, at = [], 0
    for row in shapes:
        dims = tuple(int(size) for size in row if size >= 0)
        count = int(np.prod(dims, dtype=np.int64))
        elements.append(data[at:at + count].reshape(dims))
        at += count
    return Sequence(values.NAMES.get(data.dtype, str(data.dtype)), elements)


def proto(value, name):
    """As files of tests have it."""
    if isinstance(value, Sequence):
        return numpy_helper.from_list(value.elements, name, None if value.elements else SequenceProto.TENSOR)
    return numpy_helper.from_array(value, name)


def to_peer(value):
    """As ONNX Runtime takes it."""
    if isinstance(value, Optional):
        return None if value.element is None else to_peer(value.element)
    return list(value.elements) if isinstance(value, Sequence) else value


def of_peer(result, like):
    """What ONNX Runtime gives for a value of this type."""
    if isinstance(like, Optional):
        return Optional(like.like, None if result is None else of_peer(result, like.like))
    return Sequence(like.kind, [np.asarray(one) for one in result]) if isinstance(like, Sequence) else result
