"""Element types: those of ONNX as NumPy dtypes, and arrays of elements that share bytes.

Types that NumPy does not have are those of the package `ml_dtypes`, where it is installed. Without it, types of 8 and 16 bits are
their bits (uint8, uint16), and those of fewer bits small integers: values of int2, int4, uint2 and uint4, codes of floats.
"""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

ml_dtypes: Any
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

STRING = 8

# TensorProto.DataType: name, NumPy's dtype, or that of ml_dtypes and the one to take without it.
_TYPES: dict[int, tuple[str, Any]] = {
    1: ("float32", np.float32),
    2: ("uint8", np.uint8),
    3: ("int8", np.int8),
    4: ("uint16", np.uint16),
    5: ("int16", np.int16),
    6: ("int32", np.int32),
    7: ("int64", np.int64),
    8: ("string", object),
    9: ("bool", np.bool_),
    10: ("float16", np.float16),
    11: ("float64", np.float64),
    12: ("uint32", np.uint32),
    13: ("uint64", np.uint64),
    14: ("complex64", np.complex64),
    15: ("complex128", np.complex128),
    16: ("bfloat16", np.uint16),
    17: ("float8_e4m3fn", np.uint8),
    18: ("float8_e4m3fnuz", np.uint8),
    19: ("float8_e5m2", np.uint8),
    20: ("float8_e5m2fnuz", np.uint8),
    21: ("uint4", np.uint8),
    22: ("int4", np.int8),
    23: ("float4_e2m1fn", np.uint8),
    24: ("float8_e8m0fnu", np.uint8),
    25: ("uint2", np.uint8),
    26: ("int2", np.int8),
    27: ("float6_e2m3fn", np.uint8),
    28: ("float6_e3m2fn", np.uint8),
}

# Names as ONNX Runtime has them, where they differ.
_RUNTIME_NAMES = {
    1: "float",
    11: "double",
    24: "float8e8m0",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    23: "float4e2m1",
    27: "float6e2m3",
    28: "float6e3m2",
}

# Bits of the types whose elements share bytes.
_PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}


def name_of(dtype: int) -> str:
    """Name of an element type, such as `float32`."""
    return _TYPES[dtype][0]


def runtime_name_of(dtype: int) -> str:
    """The name that ONNX Runtime has, such as `float`."""
    return _RUNTIME_NAMES.get(dtype) or name_of(dtype)


def _numpy_type(dtype: int) -> "np.dtype[Any]":
    name, plain = _TYPES[dtype]
    own = getattr(ml_dtypes, name, None) if dtype >= 16 and ml_dtypes is not None else None
    found: np.dtype[Any] = np.dtype(plain if own is None else own)
    return found


# Found once, as every run asks for them.
_NUMPY = {dtype: _numpy_type(dtype) for dtype in _TYPES}
_PLAIN: dict[int, "np.dtype[Any]"] = {dtype: np.dtype(plain) for dtype, (_, plain) in _TYPES.items()}


def numpy_type(dtype: int) -> "np.dtype[Any]":
    """The NumPy dtype of arrays of an element type."""
    return _NUMPY[dtype]


def plain_type(dtype: int) -> "np.dtype[Any]":
    """The dtype that stands for it where `ml_dtypes` is not installed. Arrays of it are taken in any case."""
    return _PLAIN[dtype]


def code_of(dtype: "np.dtype[Any]") -> Optional[int]:
    """The element type of arrays of this dtype; None where no tensor has it."""
    if dtype.kind in "US":
        return STRING
    return next((code for code, known in _NUMPY.items() if known == dtype), None)


def is_packed(dtype: int) -> bool:
    return dtype in _PACKED


def byte_count(dtype: int, elements: int) -> int:
    """Bytes of `elements` elements."""
    if dtype in _PACKED:
        return (elements * _PACKED[dtype] + 7) // 8
    return elements * (16 if dtype == STRING else numpy_type(dtype).itemsize)


def pack(array: npt.NDArray[Any], dtype: int) -> npt.NDArray[np.uint8]:
    """The bytes of an array of a packed type, which has a byte for each element: the first element in the lowest bits."""
    bits = _PACKED[dtype]
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    places = np.arange(bits, dtype=np.uint8)
    ones = ((codes[:, None] >> places) & 1).astype(np.uint8)
    return np.packbits(ones.reshape(-1), bitorder="little")


def unpack(data: npt.NDArray[np.uint8], dtype: int, shape: Sequence[int]) -> npt.NDArray[Any]:
    """The inverse: an array of this shape."""
    bits = _PACKED[dtype]
    count = int(np.prod(shape, dtype=np.int64))
    ones = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    codes = (ones << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    if dtype in (22, 26):
        # The sign fills the byte.
        shift = 8 - bits
        codes = ((codes << shift).view(np.int8) >> shift).view(np.uint8)
    array: npt.NDArray[Any] = codes.view(numpy_type(dtype)).reshape(shape)
    return array
