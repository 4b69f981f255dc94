"""ONNX values as Python has them, and as the tensors of the C ABI that they are.

A tensor is an array; a sequence a list of arrays; an optional its element or None; a map a dict; a sequence of maps a list of
dicts; a sparse tensor the pair of its values and its indices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from . import _abi, _dlpack, _types
from ._errors import InvalidArgument

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Value:
    """An input or output of the ONNX model: its name, and its ports in the C ABI with the number of the first."""

    name: str
    ports: tuple[_abi.Port, ...]
    first: int

    @property
    def is_tensor(self) -> bool:
        return self.ports[0].part == _abi.WHOLE


def grouped(ports: Iterable[_abi.Port]) -> list[Value]:
    """The values that these ports are. The state block is none."""
    values: list[Value] = []
    for at, port in enumerate(ports):
        if port.part == _abi.STATE:
            continue
        if values and values[-1].name == port.value and port.part != _abi.WHOLE:
            last = values[-1]
            values[-1] = Value(last.name, last.ports + (port,), last.first)
        else:
            values.append(Value(port.value, (port,), at))
    return values


def type_text(value: Value) -> str:
    """`float32[batch, 4]`, `optional(sequence(float32))`"""
    parts = [port.part for port in value.ports]
    port = value.ports[-1]
    element = _types.name_of(port.dtype)
    if parts[0] == _abi.WHOLE:
        dims = [str(size) if size is not None else str(text) for size, text in zip(port.dims, port.texts)]
        rank = f" of rank {port.least_rank} to {port.rank}" if port.least_rank < port.rank else ""
        return f"{element}[{', '.join(dims)}]{rank}"
    text = element
    if _abi.SHAPES in parts:
        text = f"sequence({text})"
    if parts[0] == _abi.PRESENT:
        return f"optional({text})"
    if parts[0] == _abi.VALUES:
        return f"sparse({text})"
    if parts[0] == _abi.KEYS:
        text = f"map({_types.name_of(value.ports[0].dtype)}, {element})"
        return text if port.rank == 1 else f"sequence({text})"
    return text


def _given_text(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def array_of(port: _abi.Port, value: Any) -> Array:
    """`value` as an array of the port's type: itself, or a view of a tensor's memory, where it lies densely."""
    wanted = _types.numpy_type(port.dtype)
    if port.dtype == _types.STRING:
        array = np.asarray(value)
        if array.dtype != object:
            array = array.astype(object)
        return array
    if _dlpack.is_tensor(value):
        value = _dlpack.array_of(value, f"input `{port.name}`")
    if isinstance(value, (np.ndarray, np.generic)):
        plain = _types.plain_type(port.dtype)
        if value.dtype != wanted and value.dtype != plain:
            text = f"input `{port.name}` has elements of {value.dtype}, not of {wanted}"
            if port.part == _abi.WHOLE:
                takes = type_text(Value(port.name, (port,), 0))
                text += f"; it takes {takes}, and was given {_given_text(value)}"
            raise InvalidArgument(text)
        return np.require(value, requirements=["C", "A"]).reshape(value.shape)
    try:
        return np.asarray(value, wanted, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        takes = type_text(Value(port.name, (port,), 0))
        what = type(value).__name__
        raise InvalidArgument(f"input `{port.name}` takes {takes}; the {what} given is not an array of these: {error}") from None


def pack(value: Value, given: Any) -> Sequence[Optional[Array]]:
    """The array of each port, or None for a default that is taken.

    Raises InvalidArgument where `given` is not of the value's type.
    """
    ports = value.ports
    kind = ports[0].part
    if kind == _abi.WHOLE:
        return [None if given is None else array_of(ports[0], given)]
    if kind == _abi.PRESENT:
        return _pack_optional(ports, given)
    if given is None:
        if all(port.has_default for port in ports):
            return [None] * len(ports)
        raise InvalidArgument(f"input `{value.name}` is missing")
    if kind == _abi.SHAPES:
        return _pack_sequence(ports, given)
    if kind == _abi.KEYS:
        return _pack_maps(value, given)
    if kind == _abi.VALUES:
        values, indices = given
        return [array_of(ports[0], values), array_of(ports[1], indices)]
    raise InvalidArgument(f"input `{value.name}` is of a kind that this package does not know (part {kind})")


def _pack_optional(ports: tuple[_abi.Port, ...], given: Any) -> list[Array]:
    present = np.array(given is not None)
    inner = ports[1:]
    if inner[0].part == _abi.SHAPES:
        return [present] + _pack_sequence(inner, [] if given is None else given)
    if given is None:
        # Static sizes, otherwise 0; the data is undefined.
        element = np.zeros([size or 0 for size in inner[0].dims], _types.numpy_type(inner[0].dtype))
        if inner[0].dtype == _types.STRING:
            element.fill("")
        return [present, element]
    return [present, array_of(inner[0], given)]


def _pack_sequence(ports: tuple[_abi.Port, ...], given: Iterable[Any]) -> list[Array]:
    shapes, data = ports
    elements = [array_of(data, element) for element in given]
    axes = shapes.dims[1]
    if axes is None:
        axes = max((element.ndim for element in elements), default=0)
    table = np.full((len(elements), axes), -1, np.int64)
    for row, element in zip(table, elements):
        if element.ndim > axes:
            raise InvalidArgument(
                f"input `{data.value}` has an element of {element.ndim} dims, where at most {axes} may be"
            )
        row[: element.ndim] = element.shape
    flat = [element.reshape(-1) for element in elements]
    joined = np.concatenate(flat) if flat else np.zeros(0, _types.numpy_type(data.dtype))
    return [table, joined]


def _pack_maps(value: Value, given: Any) -> list[Array]:
    keys, values = value.ports
    if values.rank == 1:
        return [array_of(keys, list(given.keys())), array_of(values, list(given.values()))]
    order = list(given[0]) if given else []
    if any(list(one) != order and set(one) != set(order) for one in given):
        raise InvalidArgument(f"input `{value.name}`: the maps of a sequence must have equal keys")
    rows = [[one[key] for key in order] for one in given]
    table = np.asarray(rows, _types.numpy_type(values.dtype)).reshape(len(given), len(order))
    return [array_of(keys, order), table]


def unpack(value: Value, arrays: Sequence[Array]) -> Any:
    """The value that these arrays of its ports are."""
    kind = value.ports[0].part
    if kind == _abi.WHOLE:
        return arrays[0]
    if kind == _abi.PRESENT:
        if not arrays[0]:
            return None
        return arrays[1] if len(arrays) == 2 else _unpack_sequence(arrays[1], arrays[2])
    if kind == _abi.SHAPES:
        return _unpack_sequence(arrays[0], arrays[1])
    if kind == _abi.KEYS:
        keys, values = arrays[0].tolist(), arrays[1]
        if values.ndim == 1:
            return dict(zip(keys, values.tolist()))
        return [dict(zip(keys, row)) for row in values.tolist()]
    raise TypeError(f"output `{value.name}` is of a kind that this package does not know (part {kind})")


def _unpack_sequence(shapes: Array, data: Array) -> list[Array]:
    elements = []
    start = 0
    for row in shapes.tolist():
        shape = [size for size in row if size >= 0]
        count = int(np.prod(shape, dtype=np.int64))
        elements.append(data[start : start + count].reshape(shape))
        start += count
    return elements
