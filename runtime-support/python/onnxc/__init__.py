"""ONNX models as native code.

`InferenceSession` runs a model as ONNX Runtime's class of that name does: `import onnxc as ort`. `compile` writes a library, an object or
a header, and `load` calls a library on NumPy arrays.
"""

from . import cache
from ._compile import CompileError, ModelWarning, compile, train_graph
from ._custom import CustomOp
from ._dlpack import Exported
from ._errors import InvalidArgument, RunError, UnsupportedOption
from ._files import PREFIX, Pool, Trace
from ._model import Cancel, Model, Outputs, compile_and_load, load
from ._options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions, set_seed
from ._ortvalue import IOBinding, OrtDevice, OrtValue
from ._session import (
    InferenceSession,
    ModelMetadata,
    NodeArg,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from ._state import State

__all__ = [
    "PREFIX",
    "Cancel",
    "CompileError",
    "CustomOp",
    "ExecutionMode",
    "ExecutionOrder",
    "Exported",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "Model",
    "ModelMetadata",
    "ModelWarning",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "Outputs",
    "Pool",
    "RunError",
    "RunOptions",
    "SessionOptions",
    "State",
    "Trace",
    "UnsupportedOption",
    "cache",
    "compile",
    "compile_and_load",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "train_graph",
]
__version__ = "0.1.0"
