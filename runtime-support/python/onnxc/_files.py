"""Where the files of this package lie: the compiler, the header, the runtime, and what build systems need of them."""

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any, Union

from . import _abi
from ._errors import InvalidArgument

# As `make install` fills it: bin, include, lib. $ONNXC_PREFIX names another folder.
PREFIX: Path = Path(os.environ.get("ONNXC_PREFIX") or Path(__file__).resolve().parent / "prefix")

_RUNTIMES = {"darwin": "libonnxc_runtime_images.dylib", "win32": "onnxc_runtime_images.dll"}


def compiler_path() -> Path:
    """Where the command `onnxc` should be."""
    return PREFIX / "bin" / ("onnxc.exe" if sys.platform == "win32" else "onnxc")


def compiler() -> str:
    """Path of the command `onnxc`."""
    path = compiler_path()
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this package was not installed from a wheel; $ONNXC_PREFIX may name a folder that has it"
        )
    return str(path)


def runtime_path() -> Path:
    """Path of the runtime as a shared library: the thread pool, the functions of strings, decoders of images."""
    return PREFIX / "lib" / _RUNTIMES.get(sys.platform, "libonnxc_runtime_images.so")


_loaded: list[ctypes.CDLL] = []


def runtime() -> ctypes.CDLL:
    """The runtime, loaded once per process so that models find its functions."""
    if not _loaded:
        library = ctypes.CDLL(str(runtime_path()), mode=ctypes.RTLD_GLOBAL)
        library.onnxc_pool_create.restype = ctypes.c_void_p
        library.onnxc_pool_create.argtypes = [ctypes.c_int64]
        library.onnxc_pool_destroy.argtypes = [ctypes.c_void_p]
        library.onnxc_pool_threads.restype = ctypes.c_int64
        library.onnxc_pool_threads.argtypes = [ctypes.c_void_p]
        library.onnxc_trace_create.restype = ctypes.c_void_p
        library.onnxc_trace_create.argtypes = [ctypes.c_size_t]
        library.onnxc_trace_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.onnxc_trace_write.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.onnxc_trace_lost.restype = ctypes.c_size_t
        library.onnxc_trace_lost.argtypes = [ctypes.c_void_p]
        library.onnxc_trace_destroy.argtypes = [ctypes.c_void_p]
        library.onnxc_weights_map.argtypes = [ctypes.c_char_p] + 3 * [ctypes.c_void_p] + [ctypes.c_size_t]
        library.onnxc_weights_unmap.argtypes = [ctypes.c_void_p]
        _loaded.append(library)
    return _loaded[0]


class Pool:
    """Threads for the loops of runs. Several models may share one."""

    def __init__(self, threads: int) -> None:
        self._library: Any = runtime()
        self._pool = self._library.onnxc_pool_create(threads)
        if not self._pool:
            raise OSError(f"the system refuses a pool of {threads} threads")
        self.threads: int = self._library.onnxc_pool_threads(self._pool)

    def fill(self, options: _abi.Options) -> None:
        options.parallel_for = ctypes.cast(self._library.onnxc_pool_parallel_for, ctypes.c_void_p)
        options.pool = self._pool
        options.threads = self.threads

    def __del__(self) -> None:
        if getattr(self, "_pool", None):
            self._library.onnxc_pool_destroy(self._pool)


class Trace:
    """A record of runs on a timeline, which `write` writes as JSON for https://ui.perfetto.dev. Several models and threads may share one.

    `events` is how many steps and parts of kernels there is room for, a million by default; later ones are left out.
    """

    def __init__(self, events: int = 0) -> None:
        self._library: Any = runtime()
        self._trace = self._library.onnxc_trace_create(events)
        if not self._trace:
            raise MemoryError(f"no memory for a trace of {events} events")
        # Names in a trace are those of models, which must stay.
        self._models: list[Any] = []

    def _attach(self, options: _abi.Options, model: Any) -> None:
        """Has a run with these options recorded."""
        if not any(known is model for known in self._models):
            self._models.append(model)
        self._library.onnxc_trace_attach(self._trace, ctypes.byref(options))

    @property
    def lost(self) -> int:
        """Events that found no room."""
        return int(self._library.onnxc_trace_lost(self._trace))

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes what is recorded so far."""
        error = self._library.onnxc_trace_write(self._trace, os.fsencode(path))
        if error:
            raise OSError(error, os.strerror(error), os.fspath(path))

    def __del__(self) -> None:
        if getattr(self, "_trace", None):
            self._library.onnxc_trace_destroy(self._trace)


class Weights:
    """A file of weights of a model that has them apart, mapped and shared with other processes."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], description: _abi.Description) -> None:
        self._library: Any = runtime()
        self._file = _abi.WeightsFile()
        message = ctypes.create_string_buffer(1024)
        status = self._library.onnxc_weights_map(
            os.fsencode(path), description.address, ctypes.byref(self._file), message, len(message)
        )
        if status != 0:
            raise InvalidArgument(message.value.decode("utf-8", "replace"), status)

    def fill(self, options: _abi.Options) -> None:
        options.weights = self._file.data
        options.weights_bytes = self._file.bytes

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._library.onnxc_weights_unmap(ctypes.byref(self._file))


_pools: dict[int, Pool] = {}
_pools_lock = threading.Lock()


def shared_pool(threads: int) -> Pool:
    """The pool of this number of threads that all sessions share."""
    with _pools_lock:
        if threads not in _pools:
            _pools[threads] = Pool(threads)
        return _pools[threads]


def main() -> int:
    """The command `onnxc`. `onnxc prefix` prints the folder for CMAKE_PREFIX_PATH and PKG_CONFIG_PATH."""
    if sys.argv[1:] == ["prefix"]:
        print(PREFIX)
        return 0
    program = compiler()
    if sys.platform == "win32":
        import subprocess

        return subprocess.call([program] + sys.argv[1:])
    os.execv(program, [program] + sys.argv[1:])
