"""Compiled models loaded into this process."""

import ctypes
import mmap
import os
import re
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union, cast

import numpy as np
import numpy.typing as npt

from . import _abi, _compile, _custom, _dims, _dlpack, _files, _memory, _types, _values
from ._errors import InvalidArgument, RunError, near
from ._files import Trace
from ._state import State

Array = npt.NDArray[Any]


class Outputs(tuple[Any, ...]):
    """The outputs of a run in the model's order; a name is an index too."""

    names: tuple[str, ...]

    def __new__(cls, names: tuple[str, ...], values: Iterable[Any]) -> "Outputs":
        self = super().__new__(cls, tuple(values))
        self.names = names
        return self

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"no output `{key}`; {near(key, self.names)}")
        return super().__getitem__(self.names.index(key))

    def __reduce__(self) -> Any:
        return (Outputs, (self.names, tuple(self)))


class Cancel:
    """Ends runs from another thread: those that were given it fail with RunError once `set` is called."""

    def __init__(self) -> None:
        self._word = ctypes.c_int32(0)

    def set(self) -> None:
        self._word.value = 1

    def clear(self) -> None:
        self._word.value = 0

    @property
    def is_set(self) -> bool:
        return self._word.value != 0

    @property
    def address(self) -> int:
        return ctypes.addressof(self._word)


# Where a run describes a failure, bytes.
_MESSAGE = 1024


def load(
    path: Union[str, "os.PathLike[str]"],
    *,
    name: Optional[str] = None,
    threads: int = 1,
    pool: Optional[_files.Pool] = None,
    weights: Union[str, "os.PathLike[str]", None] = None,
    custom_ops: _custom.Operators = (),
    overrides: _custom.Operators = (),
) -> "Model":
    """Loads a shared library that `compile` made, or any other one with a compiled model.

    `name` is the prefix of the model's symbols, which need not be given where the library has one model. `threads` is how many
    threads a run may take, 0 for one per processor; a `Pool` may be shared by several models instead. `weights` is the file of a model
    that was compiled with `weights_file`, or one that `onnxc weights` made of another training of it. `custom_ops` and `overrides` have the
    functions in Python that `compile` was given.
    """
    path = Path(path).resolve()
    model = open_library(path, name, threads, pool, needs_runtime(path))
    model._functions = _custom.Functions(custom_ops, overrides)
    if weights is not None:
        model.use_weights(weights)
    return model


def needs_runtime(path: Path) -> bool:
    """Whether a library calls the runtime, as models of strings and images do."""
    return _symbols(path).find(b"onnxc_strings_") >= 0


# The type of a section with dynamic symbols, and that of the name table that goes with it, in an ELF file.
_DYNAMIC_SYMBOLS, _STRINGS = 11, 3


def _symbols(path: Path) -> Union[bytes, mmap.mmap]:
    """The part of a library with the names of its symbols. It is all of it but in ELF files of 64 bits, whose weights are long to search."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] == b"\x7fELF\2\1" and len(head) == 64:
            (at,), (size, count) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
            file.seek(at)
            table = file.read(size * count)
            sections = [struct.unpack_from("<IIQQQQI", table, begin) for begin in range(0, len(table) - 43, max(size, 44))]
            for section in sections:
                if section[1] == _DYNAMIC_SYMBOLS and section[6] < len(sections) and sections[section[6]][1] == _STRINGS:
                    file.seek(sections[section[6]][4])
                    return file.read(sections[section[6]][5])
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _names(path: Path, library: ctypes.CDLL) -> list[str]:
    """The models of a library: of the words in the file that look like symbols, those that are."""
    names = {match.group(1).decode() for match in re.finditer(rb"([A-Za-z][A-Za-z0-9_]*)_model\0", _symbols(path))}
    return sorted(name for name in names if hasattr(library, f"{name}_model") and hasattr(library, f"{name}_run"))


def open_library(
    path: Path, name: Optional[str], threads: int, pool: Optional[_files.Pool], with_runtime: bool
) -> "Model":
    """`load`; the caller knows whether the library calls the runtime."""
    if with_runtime:
        # Its functions have to be there before.
        _files.runtime()
    library = ctypes.CDLL(str(path))
    if name is None:
        found = _names(path, library)
        if len(found) != 1:
            what = f"several models: {', '.join(found)}; `name` selects one" if found else "no compiled model"
            raise ValueError(f"{path} has {what}")
        name = found[0]
    try:
        function = getattr(library, f"{name}_model")
    except AttributeError:
        known = ", ".join(_names(path, library)) or "none"
        raise ValueError(f"{path} has no model `{name}`; there are: {known}") from None
    function.restype = ctypes.c_void_p
    if pool is None and threads != 1:
        pool = _files.Pool(threads)
    return Model(library, _abi.Description(function()), pool)


def compile_and_load(
    model: _compile.Model,
    *,
    threads: int = 1,
    pool: Optional[_files.Pool] = None,
    cpu: Optional[str] = "native",
    **options: Any,
) -> "Model":
    """Compiles a model for this processor and loads it; the file is removed. Options are those of `compile`."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="onnxc-") as folder:
        file = Path(folder) / ("model" + _compile.shared_library_extension())
        options.setdefault("name", "model")
        library = _compile.compile(model, file, cpu=cpu, **options)
        weights = options.get("weights_file")
        functions = {key: options[key] for key in ("custom_ops", "overrides") if key in options}
        return load(library, name=options["name"], threads=threads, pool=pool, weights=weights, **functions)


class Model:
    """A loaded model. Any number of threads may call it at once.

    `model(x, y)` runs it on inputs in the model's order, `model(x=.., y=..)` on inputs by name; see `run`.
    """

    def __init__(
        self, library: ctypes.CDLL, description: _abi.Description, pool: Optional[_files.Pool] = None
    ) -> None:
        # Keeps the code where it is.
        self._library = library
        self._description = description
        self._pool = pool
        self._inputs = _values.grouped(description.inputs)
        self._outputs = _values.grouped(description.outputs)
        self._output_names = tuple(value.name for value in self._outputs)
        # Scratch memory of runs that have ended.
        self._workspaces: deque[_memory.Block] = deque(maxlen=8)
        self._plan: Optional[_Plan] = None
        self._entries: Optional[dict[str, Model]] = None
        self._weights: Optional[_files.Weights] = None
        self._functions = _custom.Functions()

    @property
    def name(self) -> str:
        return self._description.name

    @property
    def metadata(self) -> dict[str, str]:
        """The properties that the ONNX model has, a dict of texts."""
        return dict(self._description.metadata)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes that inputs decide."""
        return self._description.symbols

    @property
    def inputs(self) -> dict[str, str]:
        """Names of the inputs with their types, such as `{"ids": "int64[batch, length]"}`."""
        return {value.name: _values.type_text(value) for value in self._inputs}

    @property
    def outputs(self) -> dict[str, str]:
        """Names of the outputs with their types."""
        return {value.name: _values.type_text(value) for value in self._outputs}

    @property
    def has_state(self) -> bool:
        return bool(self._description.states)

    @property
    def entries(self) -> dict[str, "Model"]:
        """What a model compiled with `training=True` does besides inferring, by name: `train_initialize` gives what is trained its first
        values, `train_step` trains on a batch; each has a number behind it where the model has several. They run on the same `State`.
        """
        if self._entries is None:
            begin = len(self.name) + 1
            entries = self._description.entries()
            self._entries = {own.name[begin:]: Model(self._library, own, self._pool) for own in entries}
        for own in self._entries.values():
            own._weights = self._weights
            own._functions = self._functions
        return dict(self._entries)

    def use_weights(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Has runs from here on use the weights of a file, of a model that was compiled with `weights_file`.

        Raises InvalidArgument where the file is not one of the model's, is damaged or cannot be read.
        """
        self._weights = _files.Weights(path, self._description)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}: {text}" for name, text in self.inputs.items())
        results = ", ".join(f"{name}: {text}" for name, text in self.outputs.items())
        return f"<onnxc model {self.name}({arguments}) -> ({results})>"

    def state(self, **sizes: int) -> State:
        """A new and empty block of the tensors that stay from run to run; see `State`."""
        return State(self._description, sizes)

    def __call__(self, *arguments: Any, **keywords: Any) -> Outputs:
        if keywords and not arguments:
            options = {key: keywords.pop(key) for key in ("state", "seed") if key in keywords and not self._is_input(key)}
            return self.run(keywords, **options)
        return self.run(arguments, **keywords)

    def _is_input(self, name: str) -> bool:
        return any(value.name == name for value in self._inputs)

    def run(
        self,
        inputs: Union[Mapping[str, Any], Iterable[Any]],
        *,
        outputs: Optional[Mapping[str, Any]] = None,
        state: Optional[State] = None,
        seed: int = 0,
        cancel: Optional[Cancel] = None,
        trace: Optional[Trace] = None,
    ) -> Outputs:
        """Runs the model; gives its outputs in their order, see `Outputs`.

        `inputs`: values in the model's order, or a dict of them by name. An array of the input's type that lies densely in memory
        is read where it is, any other one is copied; an array of another type is a TypeError. None, or nothing, takes the default
        of an input that has one, and is an optional without element.

        A tensor of another package with `__dlpack__`, such as PyTorch's, counts as an array.

        `outputs`: a dict of arrays or tensors to be written to, by name; the others are new. None may overlap an input, the state or
        another one. `state`: of a model that has one. `seed`: for random numbers. `cancel`: a `Cancel`. `trace`: a `Trace` that
        records the run.

        Raises RunError with the model's message where sizes or data are wrong, and InvalidArgument, which is one.
        """
        description = self._description
        ports = description.inputs
        tensors = (_abi.Tensor * len(ports))()
        kept: list[Any] = []
        shapes: list[Optional[tuple[int, ...]]] = [None] * len(ports)
        for value, given in zip(self._inputs, self._given(inputs)):
            for at, array in enumerate(_values.pack(value, given), value.first):
                shapes[at] = None if array is None else array.shape
                _fill_input(tensors[at], ports[at], array, kept)
        if self.has_state:
            if not isinstance(state, State):
                raise InvalidArgument(f"model `{self.name}` has state: the argument `state` takes what its method `state` gives")
            state._fill(tensors[len(ports) - 1], kept)
        elif state is not None:
            raise InvalidArgument(f"model `{self.name}` has no state")
        symbols = self._symbols(shapes, state)
        plan = self._plan
        if plan is None or plan.symbols != symbols:
            plan = self._plan = _Plan(description, symbols)
        results = (_abi.Tensor * len(description.outputs))()
        buffers = self._buffers(plan, results, outputs or {}, kept)
        heap = _memory.HEAP
        options = _abi.Options(struct_size=ctypes.sizeof(_abi.Options), allocate=heap.allocate, release=heap.release)
        options.seed = seed & (2**64 - 1)
        message = ctypes.create_string_buffer(_MESSAGE)
        options.message = ctypes.addressof(message)
        options.message_capacity = _MESSAGE
        if cancel is not None:
            options.cancel = cancel.address
        if self._pool is not None:
            self._pool.fill(options)
        weights = self._weights
        if weights is not None:
            weights.fill(options)
        workspace = self._workspace(plan.workspace)
        if outputs:
            self._check_apart(tensors, results)
        if trace is not None:
            trace._attach(options, self)
        arguments = (
            tensors, len(ports), results, len(description.outputs), workspace.ctypes.data, len(workspace), options
        )
        failure: Optional[BaseException] = None
        if self._functions:
            with _custom.Run(self._functions, (self, workspace, kept)) as own:
                own.fill(options)
                status = description.run(*arguments)
            if own.failure is not None:
                failure = own.error(message.value.decode("utf-8", "replace"), status)
        else:
            status = description.run(*arguments)
        self._workspaces.append(workspace)
        if failure is not None:
            raise failure
        if status != 0:
            text = message.value.decode("utf-8", "replace")
            if status == _abi.NEEDS_FUNCTION:
                text += "; `load` takes it as `custom_ops`, with those that `compile` was given"
            raise RunError(text or f"status {status} of a run of `{self.name}`", status)
        arrays = [
            _result(port, tensor, tuple(dims[: tensor.rank]), buffer)
            for port, tensor, (dims, buffer) in zip(description.outputs, results, buffers)
        ]
        values = [
            _values.unpack(value, arrays[value.first : value.first + len(value.ports)]) for value in self._outputs
        ]
        return Outputs(self._output_names, values)

    def _check_apart(self, tensors: Any, results: Any) -> None:
        """Fails where an array of the caller for an output overlaps another buffer of the run."""
        inputs, outputs = self._description.inputs, self._description.outputs
        ranges = [(tensor, f"input `{port.name}`", False) for tensor, port in zip(tensors, inputs)]
        ranges += [(tensor, f"output `{port.name}`", True) for tensor, port in zip(results, outputs)]
        spans = [(tensor.data, tensor.bytes, what, written) for tensor, what, written in ranges if tensor.bytes]
        for at, (start, count, what, written) in enumerate(spans):
            for other_start, other_count, other, other_written in spans[:at]:
                apart = start + count <= other_start or other_start + other_count <= start
                if (written or other_written) and not apart:
                    raise RunError(f"{other} and {what} overlap", _abi.OVERLAP)

    def _given(self, inputs: Union[Mapping[str, Any], Iterable[Any]]) -> list[Any]:
        """The values in their order."""
        if isinstance(inputs, Mapping):
            known = [value.name for value in self._inputs]
            unknown = [name for name in inputs if name not in known]
            if unknown:
                raise InvalidArgument(f"model `{self.name}` has no input `{unknown[0]}`; {near(str(unknown[0]), known)}")
            given = [inputs.get(value.name) for value in self._inputs]
        else:
            given = list(inputs)
            if len(given) > len(self._inputs):
                raise InvalidArgument(f"{len(given)} inputs given, model `{self.name}` has {len(self._inputs)}")
            given += [None] * (len(self._inputs) - len(given))
        for value, one in zip(self._inputs, given):
            if one is None and value.is_tensor and not value.ports[0].has_default:
                raise InvalidArgument(
                    f"input `{value.name}` of model `{self.name}` is missing; it takes {_values.type_text(value)}"
                )
        return given

    def _symbols(self, shapes: Sequence[Optional[tuple[int, ...]]], state: Optional[State]) -> tuple[int, ...]:
        """Values of the symbols: the state's, and sizes of inputs; -1 for one that nothing decides."""
        symbols = [-1] * len(self._description.symbols)
        if state is not None:
            state._set_symbols(symbols)
        for port, shape in zip(self._description.inputs, shapes):
            if shape is None or port.has_default or len(shape) != port.rank:
                continue
            for symbol, size in zip(port.symbols, shape):
                if symbol >= 0 and symbols[symbol] < 0:
                    symbols[symbol] = size
        return tuple(symbols)

    def _workspace(self, count: int) -> _memory.Block:
        while self._workspaces:
            try:
                workspace = self._workspaces.pop()
            except IndexError:
                break
            if len(workspace) >= count:
                return workspace
        return _memory.aligned(count)

    def _buffers(
        self, plan: "_Plan", results: Any, wanted: Mapping[str, Any], kept: list[Any]
    ) -> list[tuple[Any, Optional[Array]]]:
        """Sets up the outputs: new arrays, those of the caller, or nothing where the run allocates."""
        for name in wanted:
            if name not in self._output_names:
                raise InvalidArgument(f"model `{self.name}` has no output `{name}`; {near(name, self._output_names)}")
        buffers: list[tuple[Any, Optional[Array]]] = []
        for port, tensor, shape in zip(self._description.outputs, results, plan.shapes):
            dims = (ctypes.c_int64 * port.rank)(*[size or 0 for size in shape])
            kept.append(dims)
            buffer: Optional[Array] = None
            if port.part == _abi.WHOLE and port.name in wanted:
                buffer = _own_output(port, wanted[port.name], shape)
            elif port.dtype != _types.STRING and None not in shape:
                sizes = cast("list[int]", shape)
                count = 1
                for size in sizes:
                    count *= size
                if count >= 2**59:
                    # More than there can be: the run says so.
                    buffer = np.empty(0, np.uint8)
                elif _types.is_packed(port.dtype):
                    buffer = np.empty(_types.byte_count(port.dtype, count), np.uint8)
                else:
                    buffer = np.empty(sizes, _types.numpy_type(port.dtype))
            if buffer is not None:
                tensor.data = buffer.ctypes.data
                tensor.bytes = buffer.nbytes
            tensor.dtype = port.dtype
            tensor.rank = port.rank
            tensor.dims = ctypes.addressof(dims) if port.rank else None
            buffers.append((dims, buffer))
        return buffers


class _Plan:
    """What follows from the symbols' values: bytes of workspace, and the outputs' sizes, None where data decide one."""

    def __init__(self, description: _abi.Description, symbols: tuple[int, ...]) -> None:
        self.symbols = symbols
        words = (ctypes.c_int64 * max(len(symbols), 1))(*symbols)
        # Sizes without a workspace are refused by the run, which says why.
        self.workspace = max(description.workspace(words, len(symbols)), 0)
        values = dict(zip(description.symbols, symbols))
        self.shapes = [[_size(port, axis, symbols, values) for axis in range(port.rank)] for port in description.outputs]


def _size(port: _abi.Port, axis: int, symbols: Sequence[int], values: Mapping[str, int]) -> Optional[int]:
    """The size of an output's dim; None where data decide it."""
    symbol = port.symbols[axis]
    if port.dims[axis] is not None:
        return port.dims[axis]
    if symbol == _abi.BY_DATA:
        return None
    try:
        size = symbols[symbol] if symbol >= 0 else _dims.evaluate(port.texts[axis] or "", values)
    except ZeroDivisionError:
        size = 0
    # A negative size, or one of more than memory, is not what a run takes: it fails with the reason before it writes.
    return size if 0 <= size < 2**48 else 0


def _fill_input(tensor: Any, port: _abi.Port, array: Optional[Array], kept: list[Any]) -> None:
    tensor.dtype = port.dtype
    dims: Any
    if array is None:
        tensor.rank = port.rank
        dims = (ctypes.c_int64 * port.rank)(*[size or 0 for size in port.dims])
    else:
        tensor.rank = array.ndim
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        data = array
        if port.dtype == _types.STRING:
            try:
                data, joined = _memory.texts_in(array)
            except TypeError as error:
                raise TypeError(f"input `{port.name}`: {error}") from None
            kept.append(joined)
        elif _types.is_packed(port.dtype):
            data = _types.pack(array, port.dtype)
        tensor.data = data.ctypes.data
        tensor.bytes = data.nbytes
        kept.append(data)
    tensor.dims = ctypes.addressof(dims) if len(dims) else None
    kept.append(dims)


def _own_output(port: _abi.Port, array: Any, shape: Sequence[Optional[int]]) -> Array:
    """An array of the caller for an output."""
    wanted = _types.numpy_type(port.dtype)
    if port.dtype == _types.STRING or _types.is_packed(port.dtype):
        raise InvalidArgument(f"output `{port.name}` of {_types.name_of(port.dtype)} is always a new array")
    if _dlpack.is_tensor(array):
        array = _dlpack.array_of(array, f"output `{port.name}`")
    if not isinstance(array, np.ndarray) or array.dtype != wanted:
        found = getattr(array, "dtype", type(array).__name__)
        raise InvalidArgument(f"the array for output `{port.name}` has elements of {found}, not of {wanted}")
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise InvalidArgument(f"the array for output `{port.name}` is not dense in memory, or read-only")
    if None not in shape and array.shape != tuple(shape):
        raise InvalidArgument(f"the array for output `{port.name}` has shape {array.shape}, not {tuple(shape)}")
    return array


def _result(port: _abi.Port, tensor: Any, shape: tuple[int, ...], buffer: Optional[Array]) -> Array:
    """The array of an output; what a run allocated for it becomes the array's memory."""
    late = _memory.HEAP.take(tensor.data) if buffer is None else _memory.NOTHING
    if port.dtype == _types.STRING:
        return _memory.texts_out(tensor.data, shape)
    count = 1
    for size in shape:
        count *= size
    if _types.is_packed(port.dtype):
        return _types.unpack(late if buffer is None else buffer, port.dtype, shape)
    if buffer is None:
        buffer = late[: _types.byte_count(port.dtype, count)].view(_types.numpy_type(port.dtype))
    return buffer if buffer.shape == shape else buffer.reshape(-1)[:count].reshape(shape)
