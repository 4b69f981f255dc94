"""Element types: those of ONNX as NumPy dtypes, and arrays of elements that share bytes.

Types that NumPy does not have are those of the package `ml_dtypes`, where it is installed. Without it, types of 8 and 16 bits are
their bits (uint8, uint16), and those of fewer bits small integers: values of int2, int4, uint2 and uint4, codes of floats.
"""

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

STRING = 8

# TensorProto.DataType: name, NumPy's dtype, or that of ml_dtypes and the one to take without it.
_TYPES = {
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

# Bits of the types whose elements share bytes.
_PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2, 27: 6, 28: 6}


def name_of(dtype):
    """Name of an element type, such as `float32`."""
    return _TYPES[dtype][0]


def numpy_type(dtype):
    """The NumPy dtype of arrays of an element type."""
    name, plain = _TYPES[dtype]
    if 16 <= dtype and ml_dtypes is not None and hasattr(ml_dtypes, name):
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(plain)


def plain_type(dtype):
    """The dtype that stands for it where `ml_dtypes` is not installed. Arrays of it are taken in any case."""
    return np.dtype(_TYPES[dtype][1])


def is_packed(dtype):
    return dtype in _PACKED


def byte_count(dtype, elements):
    """Bytes of `elements` elements."""
    if dtype in _PACKED:
        return (elements * _PACKED[dtype] + 7) // 8
    return elements * (16 if dtype == STRING else numpy_type(dtype).itemsize)


def pack(array, dtype):
    """The bytes of an array of a packed type, which has a byte for each element: the first element in the lowest bits."""
    bits = _PACKED[dtype]
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    places = np.arange(bits, dtype=np.uint8)
    ones = ((codes[:, None] >> places) & 1).astype(np.uint8)
    return np.packbits(ones.reshape(-1), bitorder="little")


def unpack(data, dtype, shape):
    """The inverse: an array of this shape."""
    bits = _PACKED[dtype]
    count = int(np.prod(shape, dtype=np.int64))
    ones = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    codes = (ones << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
    if dtype in (22, 26):
        # The sign fills the byte.
        shift = 8 - bits
        codes = ((codes << shift).view(np.int8) >> shift).view(np.uint8)
    return codes.view(numpy_type(dtype)).reshape(shape)
