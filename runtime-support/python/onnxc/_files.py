"""Where the files of this package lie: the compiler, the header, the runtime, and what build systems need of them."""

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Any

from . import _abi

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
