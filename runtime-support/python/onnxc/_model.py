"""Compiled models loaded into this process."""

import ctypes
import mmap
import re
import tempfile
from collections import deque
from pathlib import Path

import numpy as np

from . import _abi, _compile, _dims, _files, _memory, _types, _values


class RunError(Exception):
    """A run failed. `status` is the `onnxc_status` of `onnxc.h`; the message names the tensor and the dimension."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Outputs(tuple):
    """The outputs of a run in the model's order; a name is an index too."""

    names: tuple

    def __new__(cls, names, values):
        self = super().__new__(cls, values)
        self.names = names
        return self

    def __getitem__(self, key):
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"no output `{key}`; there are {', '.join(self.names)}")
        return super().__getitem__(self.names.index(key))

    def __reduce__(self):
        return (Outputs, (self.names, tuple(self)))


class Cancel:
    """Ends runs from another thread: those that were given it fail with RunError once `set` is called."""

    def __init__(self):
        self._word = ctypes.c_int32(0)

    def set(self):
        self._word.value = 1

    def clear(self):
        self._word.value = 0

    @property
    def address(self):
        return ctypes.addressof(self._word)


# Where a run describes a failure, bytes.
_MESSAGE = 1024


def load(path, *, name=None, threads=1, pool=None):
    """Loads a shared library that `compile` made, or any other one with a compiled model.

    `name` is the prefix of the model's symbols, which need not be given where the library has one model. `threads` is how many
    threads a run may take, 0 for one per processor; a `Pool` may be shared by several models instead.
    """
    path = Path(path).resolve()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"onnxc_strings_") >= 0:
            # The functions that models of strings and images call have to be there before.
            _files.runtime()
        names = {match.group(1).decode() for match in re.finditer(rb"([A-Za-z][A-Za-z0-9_]*)_model\0", content)}
    library = ctypes.CDLL(str(path))
    # Of the words in the file that look like symbols, those that are.
    found = sorted(name for name in names if hasattr(library, f"{name}_model") and hasattr(library, f"{name}_run"))
    if name is None:
        if len(found) != 1:
            what = f"several models: {', '.join(found)}; `name` says which" if found else "no compiled model"
            raise ValueError(f"{path} has {what}")
        name = found[0]
    try:
        function = getattr(library, f"{name}_model")
    except AttributeError:
        known = ", ".join(found) or "none"
        raise ValueError(f"{path} has no model `{name}`; there are: {known}") from None
    function.restype = ctypes.c_void_p
    if pool is None and threads != 1:
        pool = _files.Pool(threads)
    return Model(library, _abi.Description(function()), pool)


def compile_and_load(model, *, threads=1, pool=None, cpu="native", **options):
    """Compiles a model for this processor and loads it; the file is removed. Options are those of `compile`."""
    with tempfile.TemporaryDirectory(prefix="onnxc-") as folder:
        file = Path(folder) / ("model" + _compile.shared_library_extension())
        options.setdefault("name", "model")
        return load(_compile.compile(model, file, cpu=cpu, **options), name=options["name"], threads=threads, pool=pool)


class Model:
    """A loaded model. Any number of threads may call it at once.

    `model(x, y)` runs it on inputs in the model's order, `model(x=.., y=..)` on inputs by name; see `run`.
    """

    def __init__(self, library, description, pool=None):
        # Keeps the code where it is.
        self._library = library
        self._description = description
        self._pool = pool
        self._inputs = _values.grouped(description.inputs)
        self._outputs = _values.grouped(description.outputs)
        self._output_names = tuple(value.name for value in self._outputs)
        # Scratch memory of runs that have ended.
        self._workspaces = deque(maxlen=8)
        self._plan = None

    @property
    def name(self):
        return self._description.name

    @property
    def metadata(self):
        """The properties that the ONNX model has, a dict of texts."""
        return dict(self._description.metadata)

    @property
    def symbols(self):
        """Names of the sizes that inputs decide."""
        return self._description.symbols

    @property
    def inputs(self):
        """Names of the inputs with their types, such as `{"ids": "int64[batch, length]"}`."""
        return {value.name: _type_text(value) for value in self._inputs}

    @property
    def outputs(self):
        """Names of the outputs with their types."""
        return {value.name: _type_text(value) for value in self._outputs}

    @property
    def has_state(self):
        return bool(self._description.states)

    def __repr__(self):
        arguments = ", ".join(f"{name}: {text}" for name, text in self.inputs.items())
        results = ", ".join(f"{name}: {text}" for name, text in self.outputs.items())
        return f"<onnxc model {self.name}({arguments}) -> ({results})>"

    def state(self, **sizes):
        """A new and empty block of the tensors that stay from run to run; see `State`."""
        return State(self._description, sizes)

    def __call__(self, *arguments, **keywords):
        if keywords and not arguments:
            options = {key: keywords.pop(key) for key in ("state", "seed") if key in keywords and not self._is_input(key)}
            return self.run(keywords, **options)
        return self.run(arguments, **keywords)

    def _is_input(self, name):
        return any(value.name == name for value in self._inputs)

    def run(self, inputs, *, outputs=None, state=None, seed=0, cancel=None):
        """Runs the model; gives its outputs in their order, see `Outputs`.

        `inputs`: values in the model's order, or a dict of them by name. An array of the input's type that lies densely in memory
        is read where it is, any other one is copied; an array of another type is a TypeError. None, or nothing, takes the default
        of an input that has one, and is an optional without element.

        `outputs`: a dict of arrays to be written to, by name; the others are new. None may overlap an input, the state or another
        one. `state`: of a model that has one. `seed`: for
        random numbers. `cancel`: a `Cancel`.

        Raises RunError with the model's message where sizes or data are wrong, and TypeError.
        """
        description = self._description
        ports = description.inputs
        tensors = (_abi.Tensor * len(ports))()
        kept = []
        shapes = [None] * len(ports)
        for value, given in zip(self._inputs, self._given(inputs)):
            for at, array in enumerate(_values.pack(value, given), value.first):
                shapes[at] = None if array is None else array.shape
                _fill_input(tensors[at], ports[at], array, kept)
        if self.has_state:
            if not isinstance(state, State):
                raise TypeError(f"model `{self.name}` has state: the argument `state` takes what its method `state` gives")
            state._fill(tensors[len(ports) - 1], kept)
        elif state is not None:
            raise TypeError(f"model `{self.name}` has no state")
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
        workspace = self._workspace(plan.workspace)
        if outputs:
            self._check_apart(tensors, results)
        status = description.run(
            tensors, len(ports), results, len(description.outputs), workspace.ctypes.data, len(workspace), options
        )
        self._workspaces.append(workspace)
        if status != 0:
            text = message.value.decode("utf-8", "replace")
            raise RunError(text or f"status {status} of a run of `{self.name}`", status)
        arrays = [
            _result(port, tensor, tuple(dims[: tensor.rank]), buffer)
            for port, tensor, (dims, buffer) in zip(description.outputs, results, buffers)
        ]
        values = [
            _values.unpack(value, arrays[value.first : value.first + len(value.ports)]) for value in self._outputs
        ]
        return Outputs(self._output_names, values)

    def _check_apart(self, tensors, results):
        """Fails where an array of the caller for an output overlaps another buffer of the run."""
        inputs, outputs = self._description.inputs, self._description.outputs
        ranges = [(tensor, f"input `{port.name}`", False) for tensor, port in zip(tensors, inputs)]
        ranges += [(tensor, f"output `{port.name}`", True) for tensor, port in zip(results, outputs)]
        ranges = [(tensor.data, tensor.bytes, what, written) for tensor, what, written in ranges if tensor.bytes]
        for at, (start, count, what, written) in enumerate(ranges):
            for other_start, other_count, other, other_written in ranges[:at]:
                apart = start + count <= other_start or other_start + other_count <= start
                if (written or other_written) and not apart:
                    raise RunError(f"{other} and {what} overlap", _abi.OVERLAP)

    def _given(self, inputs):
        """The values in their order."""
        if isinstance(inputs, dict):
            unknown = set(inputs) - {value.name for value in self._inputs}
            if unknown:
                known = ", ".join(value.name for value in self._inputs)
                raise TypeError(f"model `{self.name}` has no input `{sorted(unknown)[0]}`; there are {known}")
            given = [inputs.get(value.name) for value in self._inputs]
        else:
            given = list(inputs)
            if len(given) > len(self._inputs):
                raise TypeError(f"{len(given)} inputs given, model `{self.name}` has {len(self._inputs)}")
            given += [None] * (len(self._inputs) - len(given))
        for value, one in zip(self._inputs, given):
            if one is None and value.is_tensor and not value.ports[0].has_default:
                raise TypeError(f"input `{value.name}` of model `{self.name}` is missing")
        return given

    def _symbols(self, shapes, state):
        """Values of the symbols: the state's, and sizes of inputs; -1 for one that nothing decides."""
        symbols = [-1] * len(self._description.symbols)
        if state is not None:
            state._tell(symbols)
        for port, shape in zip(self._description.inputs, shapes):
            if shape is None or port.has_default or len(shape) != port.rank:
                continue
            for symbol, size in zip(port.symbols, shape):
                if symbol >= 0 and symbols[symbol] < 0:
                    symbols[symbol] = size
        return tuple(symbols)

    def _workspace(self, count):
        while self._workspaces:
            try:
                workspace = self._workspaces.pop()
            except IndexError:
                break
            if len(workspace) >= count:
                return workspace
        return _memory.aligned(count)

    def _buffers(self, plan, results, wanted, kept):
        """Sets up the outputs: new arrays, those of the caller, or nothing where the run allocates."""
        unknown = set(wanted) - set(self._output_names)
        if unknown:
            known = ", ".join(self._output_names)
            raise TypeError(f"model `{self.name}` has no output `{sorted(unknown)[0]}`; there are {known}")
        buffers = []
        for port, tensor, shape in zip(self._description.outputs, results, plan.shapes):
            dims = (ctypes.c_int64 * port.rank)(*[size or 0 for size in shape])
            kept.append(dims)
            buffer = None
            if port.part == _abi.WHOLE and port.name in wanted:
                buffer = _own_output(port, wanted[port.name], shape)
            elif port.dtype != _types.STRING and None not in shape:
                count = 1
                for size in shape:
                    count *= size
                if count >= 2**59:
                    # More than there can be: the run says so.
                    buffer = np.empty(0, np.uint8)
                elif _types.is_packed(port.dtype):
                    buffer = np.empty(_types.byte_count(port.dtype, count), np.uint8)
                else:
                    buffer = np.empty(shape, _types.numpy_type(port.dtype))
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

    def __init__(self, description, symbols):
        self.symbols = symbols
        words = (ctypes.c_int64 * max(len(symbols), 1))(*symbols)
        # Sizes without a workspace are refused by the run, which says why.
        self.workspace = max(description.workspace(words, len(symbols)), 0)
        values = dict(zip(description.symbols, symbols))
        self.shapes = [[_size(port, axis, symbols, values) for axis in range(port.rank)] for port in description.outputs]


def _size(port, axis, symbols, values):
    """The size of an output's dim; None where data decide it."""
    symbol = port.symbols[axis]
    if port.dims[axis] is not None:
        return port.dims[axis]
    if symbol == _abi.BY_DATA:
        return None
    try:
        size = symbols[symbol] if symbol >= 0 else _dims.evaluate(port.texts[axis], values)
    except ZeroDivisionError:
        size = 0
    # A negative size, or one of more than memory, is not what a run takes: it fails with the reason before it writes.
    return size if 0 <= size < 2**48 else 0


def _fill_input(tensor, port, array, kept):
    tensor.dtype = port.dtype
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


def _own_output(port, array, shape):
    """An array of the caller for an output."""
    wanted = _types.numpy_type(port.dtype)
    if port.dtype == _types.STRING or _types.is_packed(port.dtype):
        raise TypeError(f"output `{port.name}` of {_types.name_of(port.dtype)} is always a new array")
    if not isinstance(array, np.ndarray) or array.dtype != wanted:
        found = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"the array for output `{port.name}` has elements of {found}, not of {wanted}")
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise TypeError(f"the array for output `{port.name}` is not dense in memory, or read-only")
    if None not in shape and array.shape != tuple(shape):
        raise TypeError(f"the array for output `{port.name}` has shape {array.shape}, not {tuple(shape)}")
    return array


def _result(port, tensor, shape, buffer):
    """The array of an output; what a run allocated for it becomes the array's memory."""
    late = _memory.HEAP.take(tensor.data) if buffer is None else None
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


class State:
    """Tensors that stay from one run to the next, such as caches of keys and values, in one block of memory.

    `Model.state` makes one from the sizes of symbols, such as `model.state(batch=1, capacity=4096)`; a symbol whose name is not a Python
    identifier is given by `**{"past.capacity": 4096}`, and one that is not given is 0.
    """

    def __init__(self, description, sizes):
        if not description.states:
            raise TypeError(f"model `{description.name}` has no state")
        unknown = set(sizes) - set(description.symbols)
        if unknown:
            known = ", ".join(description.symbols)
            raise TypeError(f"model `{description.name}` has no symbol `{sorted(unknown)[0]}`; there are {known}")
        self._description = description
        self._symbols = (ctypes.c_int64 * max(len(description.symbols), 1))(
            *[sizes.get(name, 0) for name in description.symbols]
        )
        count = description.state_bytes(self._symbols, len(description.symbols))
        if count < 0:
            raise RunError(f"model `{description.name}` has no state for the sizes {sizes}", -count)
        self._block = _memory.aligned(count)
        self.reset()

    def reset(self):
        """Makes it empty again."""
        block = self._block
        status = self._description.state_reset(
            block.ctypes.data, len(block), self._symbols, len(self._description.symbols)
        )
        if status != 0:
            raise RunError(f"the state cannot be reset: status {status}", status)

    @property
    def bytes(self):
        """The whole block as an array of bytes: a copy of it saves the state, and writing that back restores it."""
        return self._block

    def copy(self):
        """A state that goes on by itself from here."""
        other = object.__new__(State)
        other._description = self._description
        other._symbols = self._symbols
        other._block = _memory.aligned(len(self._block))
        other._block[:] = self._block
        return other

    @property
    def _words(self):
        return self._block[8 : 8 * (1 + len(self._description.symbols))].view(np.int64)

    @property
    def sizes(self):
        """Sizes that the runs have reached, by the names of their symbols."""
        names = self._description.symbols
        grown = sorted({state.size_symbol for state in self._description.states if state.size_symbol >= 0})
        return {names[symbol]: int(self._words[symbol]) for symbol in grown}

    def truncate(self, name, size):
        """Takes back what runs appended beyond a size of the symbol `name`."""
        if name not in self.sizes:
            raise KeyError(f"no size `{name}` that grows; there are {', '.join(self.sizes) or 'none'}")
        if not 0 <= size <= self.sizes[name]:
            raise ValueError(f"`{name}` is {self.sizes[name]}, it cannot become {size}")
        self._words[self._description.symbols.index(name)] = size

    def _tell(self, symbols):
        words = self._words.tolist()
        for state in self._description.states:
            told = [state.size_symbol] + list(state.port.symbols)
            for symbol in told:
                if symbol >= 0:
                    symbols[symbol] = words[symbol]

    def _fill(self, tensor, kept):
        dims = (ctypes.c_int64 * 1)(len(self._block))
        kept.append(dims)
        tensor.data = self._block.ctypes.data
        tensor.bytes = len(self._block)
        tensor.dtype = 2
        tensor.rank = 1
        tensor.dims = ctypes.addressof(dims)


def _type_text(value):
    """`float32[batch, 4]`, `optional(sequence(float32))`"""
    parts = [port.part for port in value.ports]
    port = value.ports[-1]
    element = _types.name_of(port.dtype)
    if parts[0] == _abi.WHOLE:
        dims = [str(size) if size is not None else text for size, text in zip(port.dims, port.texts)]
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
