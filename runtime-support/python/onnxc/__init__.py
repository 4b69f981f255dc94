"""ONNX models as native code: `compile` writes a library, an object or a header, `load` calls a library on NumPy arrays."""

from ._compile import CompileError, ModelWarning, compile
from ._files import PREFIX, Pool
from ._model import Cancel, Model, Outputs, RunError, State, compile_and_load, load

__all__ = [
    "PREFIX",
    "Cancel",
    "CompileError",
    "Model",
    "ModelWarning",
    "Outputs",
    "Pool",
    "RunError",
    "State",
    "compile",
    "compile_and_load",
    "load",
]
__version__ = "0.1.0"
