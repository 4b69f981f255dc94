"""The C ABI of compiled models, as `onnxc.h` declares it: its structs, and the description of a model read from them."""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Optional

ABI_VERSION = 3

# ONNXC_MODEL_POINTERS
_POINTERS = 40
# Of a workspace and of a state block, bytes.
ALIGNMENT = 64
# An onnxc_status with a meaning of its own here.
CANCELLED = 12
NEEDS_ALLOCATOR = 14
OVERLAP = 19
FUNCTION_FAILED = 20
NEEDS_FUNCTION = 30

# onnxc_part
WHOLE, SHAPES, DATA, PRESENT, ELEMENT, KEYS, VALUES, INDICES, STATE = range(9)

# What decides a dim that is neither static nor a symbol.
OPTIONAL, FORMULA, BY_DATA = -3, -2, -1


class Tensor(ctypes.Structure):
    """`onnxc_tensor`"""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("dims", c_void_p),
    ]


PARALLEL_FOR = c_void_p
ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t)


class Op(ctypes.Structure):
    """`onnxc_op`"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("inputs", c_void_p),
        ("input_count", c_size_t),
        ("outputs", c_void_p),
        ("output_count", c_size_t),
        ("scratch", c_void_p),
        ("scratch_bytes", c_size_t),
        ("options", c_void_p),
        ("attributes", c_void_p),
        ("texts", c_void_p),
    ]


FUNCTION = ctypes.CFUNCTYPE(c_int32, c_void_p, ctypes.c_char_p, ctypes.POINTER(Op))


class Options(ctypes.Structure):
    """`onnxc_options`"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_for", PARALLEL_FOR),
        ("pool", c_void_p),
        ("threads", c_int64),
        ("allocate", ALLOCATE),
        ("release", RELEASE),
        ("allocator", c_void_p),
        ("cancel", c_void_p),
        ("message", c_void_p),
        ("message_capacity", c_size_t),
        ("step_done", c_void_p),
        ("step_context", c_void_p),
        ("seed", c_uint64),
        ("communicator", c_void_p),
        ("trace", c_void_p),
        ("trace_context", c_void_p),
        ("weights", c_void_p),
        ("weights_bytes", c_size_t),
        ("function", FUNCTION),
        ("function_context", c_void_p),
    ]


class WeightsFile(ctypes.Structure):
    """`onnxc_weights`"""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("file", c_void_p)]


class _Model(ctypes.Structure):
    _fields_ = [("abi_version", c_uint32)] + [
        (name, c_int32)
        for name in (
            "name_at input_count output_count symbol_count metadata_count inputs_at outputs_at symbols_at metadata_at "
            "run_at workspace_at"
        ).split()
    ]
    _fields_ += [("workspace_bytes", c_int64), ("workspace_alignment", c_int64)]
    _fields_ += [
        (name, c_int32)
        for name in (
            "input_parts_at output_parts_at state_count states_at state_records_at state_bytes_at state_reset_at "
            "next_at"
        ).split()
    ]


class _Value(ctypes.Structure):
    _fields_ = [
        (name, c_int32)
        for name in "name_at dtype rank dims_at dim_texts_at dim_symbols_at has_default element_bytes".split()
    ]


class _State(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in "output_at axis size_symbol panel".split()]


class _Part(ctypes.Structure):
    _fields_ = [(name, c_int32) for name in "value_at part".split()]


_RUN = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, ctypes.POINTER(Options)
)
_SIZE = ctypes.CFUNCTYPE(c_int64, c_void_p, c_size_t)
_RESET = ctypes.CFUNCTYPE(c_int32, c_void_p, c_size_t, c_void_p, c_size_t)
_MODEL = ctypes.CFUNCTYPE(c_void_p)


@dataclass(frozen=True)
class Port:
    """An input or output of the C ABI: a tensor, or a part of an ONNX value that is none."""

    name: str
    # An onnxc_dtype, which is a TensorProto.DataType.
    dtype: int
    # Static sizes; `None` for others.
    dims: tuple[Optional[int], ...]
    # For each dim the number of its symbol, or FORMULA or BY_DATA where it is not static.
    symbols: tuple[int, ...]
    # Less than the number of dims where the run decides the rank of an output.
    least_rank: int
    # For each dim that is not static its text, such as `batch*2`; else `None`.
    texts: tuple[Optional[str], ...]
    has_default: bool
    # The ONNX value that it is a part of, and which.
    value: str
    part: int

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class StateTensor:
    """A tensor in the state block."""

    port: Port
    # The output that it was.
    output: str
    # The axis along which runs append, and the symbol that is the size there; -1 where runs replace it.
    axis: int
    size_symbol: int
    # Elements to a panel; 0 where it is row-major.
    panel: int


class Description:
    """What `<name>_model()` describes. `address` is what it gave, in a library that stays loaded."""

    def __init__(self, address: int) -> None:
        self._address = self.address = address
        raw = _Model.from_address(address)
        if raw.abi_version != ABI_VERSION:
            raise ValueError(
                f"the model has version {raw.abi_version} of the C ABI, this package version {ABI_VERSION}: "
                "compile it again"
            )
        self.name = self._text(raw.name_at)
        self.symbols = tuple(self._strings(raw.symbols_at, raw.symbol_count))
        pairs = self._strings(raw.metadata_at, 2 * raw.metadata_count)
        self.metadata = dict(zip(pairs[::2], pairs[1::2]))
        self.inputs = self._ports(raw.inputs_at, raw.input_parts_at, raw.input_count)
        self.outputs = self._ports(raw.outputs_at, raw.output_parts_at, raw.output_count)
        self.states = tuple(self._states(raw))
        # C functions, which take what `onnxc.h` says.
        self.run: Any = _RUN(self._function(raw.run_at))
        self.workspace: Any = _SIZE(self._function(raw.workspace_at))
        self.state_bytes: Any = _SIZE(self._function(raw.state_bytes_at)) if raw.state_count else None
        self.state_reset: Any = _RESET(self._function(raw.state_reset_at)) if raw.state_count else None
        self._next: Any = _MODEL(self._function(raw.next_at)) if raw.next_at else None

    def entries(self) -> Iterator["Description"]:
        """The further programs of the object, such as the one that trains on a batch."""
        description: Description = self
        while description._next is not None:
            description = Description(description._next())
            yield description

    def _function(self, at: int) -> int:
        """The address of a function. A distance right behind the struct is that of a pointer to it."""
        if not 0 <= at - ctypes.sizeof(_Model) < _POINTERS:
            return self._address + at
        return ctypes.c_size_t.from_address(self._address + at).value

    def _text(self, at: int) -> str:
        return ctypes.string_at(self._address + at).decode("utf-8", "replace")

    def _strings(self, at: int, count: int) -> list[str]:
        array = (c_int32 * count).from_address(self._address + at) if count else ()
        return [self._text(distance) for distance in array]

    def _port(self, record: "_Value", value: str, part: int) -> Port:
        rank = record.rank
        dims: Sequence[int]
        symbols: Sequence[int]
        texts: Sequence[int]
        if rank:
            dims = (c_int64 * rank).from_address(self._address + record.dims_at)
            symbols = (c_int32 * rank).from_address(self._address + record.dim_symbols_at)
            texts = (c_int32 * rank).from_address(self._address + record.dim_texts_at)
        else:
            dims = symbols = texts = ()
        return Port(
            name=self._text(record.name_at),
            dtype=record.dtype,
            dims=tuple(size if size >= 0 else None for size in dims),
            symbols=tuple(BY_DATA if symbol == OPTIONAL else symbol for symbol in symbols),
            least_rank=sum(symbol != OPTIONAL for symbol in symbols),
            texts=tuple(self._text(text) if size < 0 else None for size, text in zip(dims, texts)),
            has_default=record.has_default != 0,
            value=value,
            part=part,
        )

    def _ports(self, values_at: int, parts_at: int, count: int) -> tuple[Port, ...]:
        if not count:
            return ()
        values = (_Value * count).from_address(self._address + values_at)
        parts = (_Part * count).from_address(self._address + parts_at)
        return tuple(self._port(value, self._text(part.value_at), part.part) for value, part in zip(values, parts))

    def _states(self, raw: _Model) -> Iterator[StateTensor]:
        if not raw.state_count:
            return
        values = (_Value * raw.state_count).from_address(self._address + raw.states_at)
        records = (_State * raw.state_count).from_address(self._address + raw.state_records_at)
        for value, record in zip(values, records):
            port = self._port(value, self._text(value.name_at), WHOLE)
            yield StateTensor(port, self._text(record.output_at), record.axis, record.size_symbol, record.panel)
