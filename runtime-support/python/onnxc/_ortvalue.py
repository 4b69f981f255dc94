"""Values and bindings, with the names that ONNX Runtime has. All of them lie in the memory of the CPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import numpy.typing as npt

from . import _dlpack, _memory, _types
from ._errors import InvalidArgument, near

if TYPE_CHECKING:
    from ._options import RunOptions
    from ._session import InferenceSession

Array = npt.NDArray[Any]


def _check_device(device: str) -> None:
    if device.lower() != "cpu":
        raise InvalidArgument(f"there is no device `{device}`, only `cpu`")


class OrtDevice:
    """A device: the CPU."""

    def __init__(self, device: str = "cpu", number: int = 0) -> None:
        _check_device(device)

    @staticmethod
    def make(device: str, number: int = 0) -> "OrtDevice":
        return OrtDevice(device, number)

    @staticmethod
    def cpu() -> int:
        return 0

    def device_type(self) -> str:
        return "cpu"

    def device_id(self) -> int:
        return 0


class OrtValue:
    """A value of a model: an array, or what ONNX has besides."""

    def __init__(self, value: Any) -> None:
        self._array = value

    @staticmethod
    def ortvalue_from_numpy(array: Array, device_type: str = "cpu", device_id: int = 0) -> "OrtValue":
        """The array itself: runs see what is written into it later."""
        _check_device(device_type)
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: Array, onnx_element_type: int) -> "OrtValue":
        """The array, whose elements are the bits of an ONNX type."""
        dtype = _types.numpy_type(onnx_element_type)
        if array.dtype.itemsize != dtype.itemsize:
            raise InvalidArgument(f"elements of {array.dtype} do not have the size of {_types.name_of(onnx_element_type)}")
        return OrtValue(array.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> "OrtValue":
        _check_device(device_type)
        dtype = _types.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        memory = _memory.aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return OrtValue(memory.view(dtype).reshape(tuple(shape)))

    @staticmethod
    def from_dlpack(tensor: Any, is_bool_tensor: bool = False) -> "OrtValue":
        """A view of a tensor of another package."""
        array = np.asarray(tensor) if isinstance(tensor, np.ndarray) else _dlpack.array_of(tensor, "the value")
        return OrtValue(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    def numpy(self) -> Any:
        return self._array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        array = np.asarray(self._array)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return _dlpack.Exported(self._array).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def update_inplace(self, array: Array) -> None:
        """Copies another array into this one."""
        self._array[...] = array

    def data_type(self) -> str:
        code = _types.code_of(self._array.dtype) if self.is_tensor() else None
        return f"tensor({_types.runtime_name_of(code)})" if code is not None else type(self._array).__name__

    def element_type(self) -> int:
        code = _types.code_of(self._array.dtype) if self.is_tensor() else None
        if code is None:
            raise InvalidArgument("the value is not a tensor")
        return code

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def tensor_size_in_bytes(self) -> int:
        return int(self._array.nbytes)

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._array is not None

    def is_tensor(self) -> bool:
        return isinstance(self._array, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._array, list)

    def is_sparse_tensor(self) -> bool:
        return False


class IOBinding:
    """Inputs and outputs that are bound once and used by several runs."""

    def __init__(self, session: "InferenceSession") -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        # None for an output that each run makes anew.
        self._outputs: dict[str, Optional[OrtValue]] = {}
        self._results: list[OrtValue] = []

    def _known(self, name: str, known: list[str], what: str) -> None:
        if name not in known:
            raise InvalidArgument(f"the model has no {what} `{name}`; {near(name, known)}")

    def _input(self, name: str, value: Any) -> None:
        self._known(name, [one.name for one in self._session.get_inputs()], "input")
        self._inputs[name] = value

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        self._input(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._input(name, ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds memory at an address, which stays as long as the binding does."""
        _check_device(device_type)
        self._input(name, _at(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._known(name, [one.name for one in self._session.get_outputs()], "output")
        self._outputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Optional[Sequence[int]] = None,
        buffer_ptr: Optional[int] = None,
    ) -> None:
        """Binds memory at an address; without one each run makes the output anew."""
        _check_device(device_type)
        self._known(name, [one.name for one in self._session.get_outputs()], "output")
        self._outputs[name] = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise InvalidArgument(f"output `{name}`: an address needs the type of its elements and the shape")
            self._outputs[name] = OrtValue(_at(buffer_ptr, element_type, shape))

    def synchronize_inputs(self) -> None:
        """Without effect: the CPU has nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Without effect."""

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    def get_outputs(self) -> list[OrtValue]:
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        return [value.numpy() for value in self._results]

    def _run(self, run_options: Optional["RunOptions"]) -> None:
        names = list(self._outputs)
        given = {name: value for name, value in self._outputs.items() if value is not None}
        if not names:
            raise InvalidArgument("no output is bound")
        found = self._session.run(names, self._inputs, run_options, outputs=given)
        self._results = [OrtValue(value) for value in found]


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    import ctypes

    dtype = _types.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(tuple(shape), dtype)
    memory = memoryview((ctypes.c_uint8 * size).from_address(address))
    array: Array = np.frombuffer(memory, dtype).reshape(tuple(shape))
    return array
