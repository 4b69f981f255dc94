"""Operators that functions in Python compute.

A model that was compiled with `mine.Op=mine_Op,late` asks the options of a run for the function `mine_Op`, by name. So a compiled library
has no pointers of a process in it: the cache may give it to several sessions, each with functions of its own.
"""

import ctypes
import itertools
import re
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _abi, _dlpack, _memory, _types
from ._errors import RunError

if TYPE_CHECKING:
    from . import _model

Array = npt.NDArray[Any]

#: What computes an operator: it is given the inputs as arrays and the attributes as keywords, and gives an array or a tuple of arrays.
Function = Callable[..., Any]


class CustomOp:
    """A function for an operator, with options of the compiler: `custom_ops={"mine.Op": onnxc.CustomOp(function, like=0)}`.

    `function(*inputs, **attributes)` gets NumPy arrays, which are views of the run's memory and only read, None for an input that is left
    out, and the attributes of the node: numbers, texts, arrays and lists of them. It gives an array, or a tuple of arrays where the node
    has several outputs. Its results must follow from that alone: equal calls may be made once, and threads call it at the same time.

    `shapes`, of the same arguments, gives the shape of the output, or a list of the shapes of all, where sizes follow from no input.
    Without it `function` is called before memory for its results is there, and these are kept until then. `like`: outputs for which the
    model declares no type have that of this input.
    """

    def __init__(self, function: Function, *, shapes: Optional[Function] = None, like: Optional[int] = None) -> None:
        for one in (function, shapes):
            if one is not None and not callable(one):
                raise TypeError(f"a function for an operator is a callable, not {type(one).__name__}")
        self.function = function
        self.shapes = shapes
        self.like = like


Operators = Union[Mapping[str, Union[str, Function, CustomOp]], Iterable[str]]


def symbol_of(operator: str) -> str:
    """The name by which a model asks for the function of an operator: equal for equal ones, and a name in C."""
    name = re.sub(r"[^A-Za-z0-9]", "_", operator)
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9]*\.[A-Za-z0-9]+", operator)
    return name if is_plain else f"op_{name}_{zlib.crc32(operator.encode()):08x}"


def texts(operators: Operators) -> list[str]:
    """The operators as the command takes them."""
    if not isinstance(operators, Mapping):
        return list(operators)
    found = []
    for operator, function in operators.items():
        if isinstance(function, str):
            found.append(f"{operator}={function}")
            continue
        custom = _custom(operator, function)
        like = "" if custom.like is None else f",like={custom.like}"
        found.append(f"{operator}={symbol_of(operator)},late{like}")
    return found


def _custom(operator: str, function: Any) -> CustomOp:
    if isinstance(function, CustomOp):
        return function
    if not callable(function):
        raise TypeError(f"{operator}: a function is a callable, or the name of one in C, not {type(function).__name__}")
    return CustomOp(function)


class Functions:
    """The functions of a session, by the names that its model asks for."""

    def __init__(self, *operators: Operators) -> None:
        self._by_symbol: dict[str, tuple[str, CustomOp]] = {}
        for one in operators:
            for operator, function in one.items() if isinstance(one, Mapping) else ():
                if not isinstance(function, str):
                    self._by_symbol[symbol_of(operator)] = (operator, _custom(operator, function))

    def __bool__(self) -> bool:
        return bool(self._by_symbol)

    def given_to(self, model: "_model.Model") -> "_model.Model":
        model._functions = self
        return model

    def get(self, symbol: str) -> tuple[str, CustomOp, bool]:
        """The operator that a name stands for, its function, and whether sizes are asked for."""
        found = self._by_symbol.get(symbol)
        if found is not None:
            return (*found, False)
        found = self._by_symbol.get(symbol.removesuffix("_shapes"))
        if found is None or not symbol.endswith("_shapes"):
            known = ", ".join(operator for operator, _ in self._by_symbol.values())
            raise _Wrong(f"is missing: `custom_ops` has functions for {known}")
        return (*found, True)


class _Wrong(Exception):
    """What a function gave is not what its node takes."""


class _Memory:
    """Memory of a run under arrays. `pin` keeps it where views outlive the call."""

    def __init__(self, address: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> None:
        self.__array_interface__: dict[str, Any] = {"data": (address, True), "typestr": dtype.str, "shape": shape, "version": 3}
        self.pin: Any = None


class Run:
    """What calls of functions know of the run that they are of."""

    def __init__(self, functions: Functions, kept: Any) -> None:
        self._functions = functions
        # What the memory of the run is, beside what it allocates.
        self._kept = kept
        # Results of functions that were called for their sizes, with copies of what they were called with.
        self._early: dict[tuple[str, int], tuple[list[Any], list[Array]]] = {}
        # Texts of results.
        self._texts: list[Any] = []
        self.failure: Optional[BaseException] = None
        self._failed = ("", "")
        self._number = next(_NUMBERS)

    def fill(self, options: _abi.Options) -> None:
        options.function = CALL
        options.function_context = self._number

    def __enter__(self) -> "Run":
        _RUNS[self._number] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _RUNS[self._number]

    def error(self, text: str, status: int) -> BaseException:
        """The exception for a run that failed in a function, of its message."""
        failure = self.failure
        assert failure is not None
        if not isinstance(failure, Exception):
            # Such as KeyboardInterrupt.
            return failure
        symbol, operator = self._failed
        place = text.partition(f": the function `{symbol}` failed")[0]
        what = str(failure) if isinstance(failure, _Wrong) else f"raised {type(failure).__name__}: {failure}"
        error = RunError(f"{place}: the function for {operator} {what}", status)
        error.__cause__ = None if isinstance(failure, _Wrong) else failure
        return error

    def call(self, symbol: str, op: _abi.Op) -> None:
        self._failed = (symbol, symbol)
        operator, custom, is_sizes = self._functions.get(symbol)
        self._failed = (symbol, operator)
        memories: "list[weakref.ref[_Memory]]" = []
        arrays = [_input(tensor, memories) for tensor in _tensors(op.inputs, op.input_count)]
        attributes = _attributes(op, memories)
        outputs = list(_tensors(op.outputs, op.output_count))
        try:
            if is_sizes:
                self._sizes(symbol, op, custom, arrays, attributes, outputs)
            else:
                results = self._take(symbol, op, arrays)
                if results is None:
                    results = _results(custom.function(*arrays, **attributes), outputs)
                for at, (result, tensor) in enumerate(zip(results, outputs)):
                    self._give(at, result, tensor)
                del results
        finally:
            del arrays, attributes
            for reference in memories:
                memory = reference()
                if memory is not None:
                    address = memory.__array_interface__["data"][0]
                    memory.pin = (self._kept, _memory.HEAP.block_with(address))

    def _sizes(
        self, symbol: str, op: _abi.Op, custom: CustomOp, arrays: list[Any], attributes: dict[str, Any], outputs: list[Any]
    ) -> None:
        if custom.shapes is not None:
            shapes = _shapes(custom.shapes(*arrays, **attributes), len(outputs))
        else:
            results = _results(custom.function(*arrays, **attributes), outputs)
            # They may be views of the inputs, whose memory is the run's.
            results = [result.copy() for result in results]
            shapes = [result.shape for result in results]
            copies = [None if array is None else array.copy() for array in arrays]
            self._early[symbol.removesuffix("_shapes"), op.attributes] = (copies, results)
        for at, (shape, tensor) in enumerate(zip(shapes, outputs)):
            wanted = _dims(tensor)
            if len(shape) != len(wanted) or any(size not in (given, -1) for given, size in zip(shape, wanted)):
                raise _Wrong(f"gave shape {_shape_text(shape)} for output {at}, which is {_shape_text(wanted)}")
            for axis, size in enumerate(shape):
                if size < 0:
                    raise _Wrong(f"gave the size {size} for output {at}")
                ctypes.c_int64.from_address(tensor.dims + 8 * axis).value = size

    def _take(self, symbol: str, op: _abi.Op, arrays: list[Any]) -> Optional[list[Array]]:
        """What a call for the sizes of these inputs has given."""
        found = self._early.pop((symbol, op.attributes), None)
        if found is None or not all(map(_same, found[0], arrays)):
            return None
        return found[1]

    def _give(self, at: int, result: Array, tensor: Any) -> None:
        shape = _dims(tensor)
        if result.shape != shape:
            raise _Wrong(f"gave an array of shape {_shape_text(result.shape)} for output {at}, which is {_shape_text(shape)}")
        if not result.size:
            return
        if tensor.dtype == _types.STRING:
            try:
                data, joined = _memory.texts_in(result)
            except TypeError as error:
                raise _Wrong(f"gave an array for output {at} with another element than a text: {error}") from None
            # They are copied later than here.
            self._texts.append(joined)
        else:
            data = np.ascontiguousarray(result)
        ctypes.memmove(tensor.data, data.ctypes.data, data.nbytes)


def _same(before: Any, now: Any) -> bool:
    if before is None or now is None:
        return before is now
    if before.dtype != now.dtype or before.shape != now.shape:
        return False
    if before.dtype == object:
        return bool((before == now).all())
    # Bits: a NaN is itself.
    return bool(np.array_equal(before.reshape(-1).view(np.uint8), now.reshape(-1).view(np.uint8)))


def _shape_text(shape: Sequence[int]) -> str:
    return "[" + ", ".join("?" if size == -1 else str(size) for size in shape) + "]"


def _shapes(given: Any, count: int) -> list[tuple[int, ...]]:
    try:
        if all(isinstance(size, (int, np.integer)) for size in given) and count == 1:
            given = [given]
        shapes = [tuple(int(size) for size in shape) for shape in given]
    except TypeError:
        raise _Wrong(f"gave {given!r}, which is not the shape of its output") from None
    if len(shapes) != count:
        raise _Wrong(f"gave shapes of {len(shapes)} outputs, the node has {count}")
    return shapes


def _results(given: Any, outputs: Sequence[Any]) -> list[Array]:
    """What a function gave as arrays with the types of the node's outputs."""
    values = list(given) if isinstance(given, tuple) else [given]
    if len(values) != len(outputs):
        of = f"{len(values)} results" if isinstance(given, tuple) else f"one result ({type(given).__name__})"
        raise _Wrong(f"gave {of}, the node has {len(outputs)} outputs")
    results = []
    for at, (value, tensor) in enumerate(zip(values, outputs)):
        if _dlpack.is_tensor(value):
            value = _dlpack.array_of(value, f"result {at}")
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            raise _Wrong(f"gave {type(value).__name__} for output {at}, not an array")
        name = _types.name_of(tensor.dtype)
        is_text = value.dtype.kind in "USO"
        fits = value.dtype in (_types.numpy_type(tensor.dtype), _types.plain_type(tensor.dtype))
        if is_text != (tensor.dtype == _types.STRING) or not (is_text or fits):
            raise _Wrong(f"gave an array of {value.dtype} for output {at}, which is of {name}")
        results.append(value)
    return results


def _tensors(address: Optional[int], count: int) -> Iterator[Any]:
    yield from (_abi.Tensor * count).from_address(address) if address and count else ()


def _dims(tensor: Any) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * tensor.rank).from_address(tensor.dims)) if tensor.rank else ()


def _input(tensor: Any, memories: "list[weakref.ref[_Memory]]") -> Optional[Array]:
    """A view of a tensor that is only read; None where it is left out."""
    if tensor.dtype == 0:
        return None
    shape, dtype = _dims(tensor), _types.numpy_type(tensor.dtype)
    array: Array
    if tensor.dtype == _types.STRING:
        array = _memory.texts_out(tensor.data, shape)
    elif not tensor.data or 0 in shape:
        array = np.empty(shape, dtype)
    else:
        # Types of other packages have no name that NumPy knows.
        plain = _types.plain_type(tensor.dtype)
        memory = _Memory(tensor.data, plain, shape)
        memories.append(weakref.ref(memory))
        array = np.asarray(memory).view(dtype)
    array.flags.writeable = False
    return array


def _attributes(op: _abi.Op, memories: "list[weakref.ref[_Memory]]") -> dict[str, Any]:
    """The attributes: `import/external.rs` of the compiler says how they lie."""
    words = op.attributes

    def text(at: int) -> str:
        return ctypes.string_at(op.texts + at).decode("utf-8", "replace")

    def text_of(at: int, size: int) -> str:
        return ctypes.string_at(op.texts + at, size).decode("utf-8", "replace")

    def ints(at: int, count: int) -> list[int]:
        return list((ctypes.c_int64 * count).from_address(words + 8 * at)) if count else []

    def floats(at: int, count: int) -> list[float]:
        return list((ctypes.c_double * count).from_address(words + 8 * at)) if count else []

    found: dict[str, Any] = {}
    (entries,) = ints(0, 1)
    for entry in range(entries):
        name_at, kind, count, value = ints(1 + 4 * entry, 4)
        made: Any
        if kind == 1:
            (made,) = floats(1 + 4 * entry + 3, 1)
        elif kind == 2:
            made = value
        elif kind == 3:
            made = text_of(value, count)
        elif kind == 4:
            address = op.inputs + ctypes.sizeof(_abi.Tensor) * (op.input_count + value)
            made = _input(_abi.Tensor.from_address(address), memories)
        elif kind == 6:
            made = floats(value, count)
        elif kind == 7:
            made = ints(value, count)
        elif kind == 8:
            places = ints(value, 2 * count)
            made = [text_of(at, size) for at, size in zip(places[::2], places[1::2])]
        else:
            continue
        found[text(name_at)] = made
    return found


_NUMBERS = itertools.count(1)
_RUNS: dict[int, Run] = {}


def _call(context: int, name: bytes, op: Any) -> int:
    try:
        run = _RUNS[context]
        try:
            run.call(name.decode(), op.contents)
            return 0
        except BaseException as failure:
            run.failure = failure
    except BaseException:
        # Of a signal. What leaves this function counts as 0 for ctypes, so that the run would go on.
        pass
    return -1


CALL = _abi.FUNCTION(_call)
