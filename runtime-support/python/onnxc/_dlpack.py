"""Tensors of other packages without copies, by the protocol DLPack: PyTorch, JAX, CuPy and others have `__dlpack__`.

They are read here, not by `numpy.from_dlpack`, which knows neither bfloat16 nor floats of 8 bits, and gives arrays that cannot be
written. `Exported` is the way back for arrays of `ml_dtypes`, which NumPy does not export.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _types

_CPU = 1
# Kind and bits of ONNX types that NumPy has no dtype for, and of those that it has.
_NARROW = {16: (4, 16), 17: (10, 8), 18: (11, 8), 19: (12, 8), 20: (13, 8), 24: (14, 8)}
_PLAIN = {1: (2, 32), 2: (1, 8), 3: (0, 8), 4: (1, 16), 5: (0, 16), 6: (0, 32), 7: (0, 64), 9: (6, 8), 10: (2, 16)}
_WIDE = {11: (2, 64), 12: (1, 32), 13: (1, 64), 14: (5, 64), 15: (5, 128)}
_CODES = {pair: code for code, pair in {**_PLAIN, **_WIDE, **_NARROW}.items()}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


# Functions of the interpreter, which take objects.
_api = ctypes.pythonapi
_pointer = _api.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype = ctypes.c_int
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new = _api.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_FRESH, _USED = b"dltensor", b"used_dltensor"


class _Owner:
    """Gives a tensor back to the package that exported it when no array needs it any more."""

    def __init__(self, managed: _Managed, address: int, interface: dict[str, Any]) -> None:
        self._managed = managed
        self._address = address
        self.__array_interface__ = interface

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(self._address)


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of another package."""
    return hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, np.generic))


def array_of(value: Any, what: str) -> npt.NDArray[Any]:
    """A view of a tensor. Raises TypeError for one that is not in the memory of this processor or of an unknown type."""
    kind, _ = value.__dlpack_device__()
    if int(kind) != _CPU:
        raise TypeError(f"{what} is a tensor of another device; move it to the CPU first (for PyTorch `.cpu()`)")
    if getattr(value, "requires_grad", False) is True:
        # PyTorch refuses to export it, as gradients would be lost; runs have none.
        value = value.detach()
    capsule = value.__dlpack__()
    address = int(_pointer(capsule, _FRESH))
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    dtype = tensor.dtype
    code = _CODES.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    if code is None:
        # The capsule, which is not taken, gives the tensor back.
        raise TypeError(
            f"{what} is a tensor of {dtype.lanes} times {dtype.bits} bits of the kind {dtype.code} of DLPack; ONNX has no such type"
        )
    wanted = _types.numpy_type(code)
    plain = _types.plain_type(code)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    strides = tuple(tensor.strides[axis] * plain.itemsize for axis in range(tensor.rank)) if tensor.strides else None
    interface = {
        "version": 3,
        "typestr": plain.str,
        "shape": shape,
        "strides": strides,
        "data": ((tensor.data or 0) + tensor.byte_offset, False),
    }
    _rename(capsule, _USED)
    return np.asarray(_Owner(managed, address, interface)).view(wanted)


# What exported tensors need until they are given back, by the address of each.
_exported: dict[int, tuple[Any, ...]] = {}


def _give_back(address: int) -> None:
    _exported.pop(address, None)


_GIVE_BACK = _DELETER(_give_back)


def _discard(capsule: int) -> None:
    """The end of a capsule, which nobody may have taken."""
    # The object is at its end, so that it is named by its address.
    fresh = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
    if fresh(capsule, _FRESH):
        _give_back(pointer(capsule, _FRESH))


_DISCARD = _DELETER(_discard)


class Exported:
    """An array of any type for `from_dlpack` of other packages: `torch.from_dlpack(onnxc.Exported(array))`.

    Arrays of NumPy's own types need none: they have `__dlpack__` themselves.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)

    def __dlpack__(self, **options: Any) -> Any:
        array = self.array
        code = _types.code_of(array.dtype)
        if code not in _NARROW:
            return array.__dlpack__(**options)
        stream = options.get("stream")
        if stream is not None:
            raise BufferError("the array is in the memory of the CPU, which has no streams")
        if options.get("copy"):
            array = array.copy()
        sizes = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        strides = (ctypes.c_int64 * max(array.ndim, 1))(*(step // array.itemsize for step in array.strides))
        managed = _Managed()
        tensor = managed.tensor
        tensor.data = array.ctypes.data
        tensor.device = _Device(_CPU, 0)
        tensor.rank = array.ndim
        tensor.dtype = _DataType(*_NARROW[code], 1)
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _GIVE_BACK
        address = ctypes.addressof(managed)
        _exported[address] = (array, sizes, strides, managed)
        return _new(address, _FRESH, ctypes.cast(_DISCARD, ctypes.c_void_p))
