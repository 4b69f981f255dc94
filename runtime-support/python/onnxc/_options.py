"""Options of sessions and runs, with the names that ONNX Runtime has.

What has no influence on results is taken and ignored, as memory patterns and levels of logging are. What asks for something that this
package does not do is an error.
"""

import enum
import itertools
import os
import threading
from collections.abc import Mapping
from typing import Any, Optional

from ._errors import UnsupportedOption, near
from ._model import Cancel


class GraphOptimizationLevel(enum.IntEnum):
    """Taken and ignored: code is always optimized."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken and ignored: nodes run one after the other, each on all threads of the session."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Taken and ignored."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Checked:
    """Refuses attributes that it does not have, so that a mistyped one does not go unseen."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name) and name not in self.__dict__:
            known = sorted(
                one for one in {*dir(type(self)), *self.__dict__} if not one.startswith("_") and not callable(getattr(self, one))
            )
            raise UnsupportedOption(f"{type(self).__name__} has no `{name}`; {near(name, known)}")
        refused = getattr(type(self), "_REFUSED", {}).get(name)
        if refused is not None and value:
            raise UnsupportedOption(f"{type(self).__name__}.{name} = {value!r}: {refused}")
        super().__setattr__(name, value)


class SessionOptions(_Checked):
    """Options of a session, as ONNX Runtime's.

    `intra_op_num_threads` is how many threads a run takes: 0, the default, is one per processor. Sessions with equal numbers share
    their threads. `enable_profiling` records runs in a file for https://ui.perfetto.dev, whose name begins with `profile_file_prefix`;
    `InferenceSession.end_profiling` writes it. Of ONNX Runtime's own, `add_free_dimension_override_by_name` gives a symbolic dim a size, which makes faster code.

    `compile_output_subsets` is this package's own: where it is True, a `run` that asks for some of the outputs compiles the part of
    the model that these need, once per choice. It is False by default, as a run then takes as long as a compilation.
    """

    intra_op_num_threads: int = 0
    compile_output_subsets: bool = False

    # Without influence on results.
    inter_op_num_threads: int = 0
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = ExecutionOrder.DEFAULT
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    profile_file_prefix: str = "onnxruntime_profile_"
    enable_profiling: bool = False

    optimized_model_filepath: str = ""
    _REFUSED = {
        "optimized_model_filepath": "there is no optimized ONNX model; `onnxc.compile` writes the compiled one",
    }

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._input_dims: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Entries are kept, for `get_session_config_entry`, and have no other effect."""
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise KeyError(f"no session config entry `{key}`; {near(key, self._entries)}")
        return self._entries[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives the symbolic dim `name` of inputs a size."""
        self._input_dims[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        raise UnsupportedOption(
            f"denotations of dims, such as `{denotation}`, are not read: add_free_dimension_override_by_name takes a dim's name"
        )

    def add_initializer(self, name: str, value: Any) -> None:
        raise UnsupportedOption(f"initializer `{name}`: weights are part of the compiled model and cannot be given")

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        raise UnsupportedOption("weights are part of the compiled model and cannot be given")

    def register_custom_ops_library(self, path: str) -> None:
        raise UnsupportedOption(f"{path}: custom operators are those of the compiler (`onnxc ops` lists them)")

    def add_provider(self, provider: str, options: Optional[Mapping[str, str]] = None) -> None:
        """Taken and ignored: models run on the CPU."""

    def has_providers(self) -> bool:
        return False


class RunOptions(_Checked):
    """Options of a run, as ONNX Runtime's. Setting `terminate` ends the runs that were given it, from any thread.

    `seed` is this package's own: runs with equal seeds draw equal random numbers. Without one each run draws others.
    """

    seed: Optional[int] = None

    # Without influence on results.
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False

    training_mode: bool = False
    _REFUSED = {"training_mode": "a model computes what it was compiled for; the guide on training says how to compile a step"}

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}
        self._cancel = Cancel()

    @property
    def terminate(self) -> bool:
        return self._cancel.is_set

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self._cancel.set()
        else:
            self._cancel.clear()

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[str(key)] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise KeyError(f"no run config entry `{key}`; {near(key, self._entries)}")
        return self._entries[key]


class _Seeds:
    """Seeds of runs that are given none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(int.from_bytes(os.urandom(7), "little"))

    def set(self, seed: int) -> None:
        with self._lock:
            self._numbers = itertools.count(seed & (2**63 - 1))

    def next(self) -> int:
        with self._lock:
            return next(self._numbers)


SEEDS = _Seeds()


def set_seed(seed: int) -> None:
    """The random numbers of all runs from here on follow from `seed` and their order."""
    SEEDS.set(seed)
