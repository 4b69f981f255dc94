"""Sessions: models compiled, kept in the cache and run, with the names and arguments that ONNX Runtime has."""

import hashlib
import itertools
import json
import mmap
import os
import re
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, TypedDict, Union

import numpy as np

from . import _abi, _compile, _custom, _files, _model, _options, _processor, _proto, _types, _values, cache
from ._errors import InvalidArgument, RunError, UnsupportedOption, near
from ._ortvalue import IOBinding, OrtValue
from ._state import State

_CPU = "CPUExecutionProvider"
_VERSION = "0.1.0"

# Statuses of a run that concern what it was given.
_OF_ARGUMENTS = {2, 3, 4, 5, 6, 7}


class NodeArg:
    """An input or output: its name, its type as ONNX Runtime writes it, and its shape.

    A shape is a list of sizes, names of symbols, and None. `dtype` is NumPy's.
    """

    def __init__(self, value: _values.Value) -> None:
        self.name = value.name
        self.type = _runtime_type(value)
        port = value.ports[-1]
        self.dtype: np.dtype[Any] = _types.numpy_type(port.dtype)
        self.shape: list[Union[int, str, None]] = []
        if value.is_tensor:
            self.shape = [_dim(port, axis) for axis in range(port.rank)]

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


def _dim(port: _abi.Port, axis: int) -> Union[int, str, None]:
    size = port.dims[axis]
    if size is not None:
        return size
    text = port.texts[axis]
    # `?1` is the compiler's name of a dim that has none in the model.
    return None if text is None or re.search(r"\?\d", text) else text


def _runtime_type(value: _values.Value) -> str:
    """`tensor(float)`, `seq(tensor(int64))`, `map(string,tensor(float))`, `optional(tensor(float))`"""
    parts = [port.part for port in value.ports]
    port = value.ports[-1]
    element = _types.runtime_name_of(port.dtype)
    if parts[0] == _abi.VALUES:
        return f"sparse_tensor({_types.runtime_name_of(value.ports[0].dtype)})"
    text = f"tensor({element})"
    if parts[0] == _abi.KEYS:
        text = f"map({_types.runtime_name_of(value.ports[0].dtype)},{text})"
        return text if port.rank == 1 else f"seq({text})"
    if _abi.SHAPES in parts:
        text = f"seq({text})"
    return f"optional({text})" if parts[0] == _abi.PRESENT else text


class ModelMetadata:
    """What the model says of itself."""

    def __init__(self, description: _proto.Description) -> None:
        self.producer_name: str = description.producer_name
        self.graph_name: str = description.graph_name
        self.graph_description: str = description.graph_doc_string
        self.domain: str = description.domain
        self.description: str = description.doc_string
        self.version: int = description.model_version
        self.custom_metadata_map: dict[str, str] = dict(description.properties)


class SessionKeywords(TypedDict, total=False):
    """Keywords of `InferenceSession` that go to the compiler; see `onnxc.compile`."""

    opt_level: Union[int, str]
    exact: bool
    precision: Optional[str]
    strict: bool
    cpu: Optional[str]
    vector_width: Optional[int]
    input_dims: _compile.Pairs
    input_shapes: Union[Mapping[str, _compile.Shape], Iterable[str]]
    outputs: Iterable[str]
    state: Union[str, _compile.Pairs]
    state_capacity: Optional[int]
    nchwc_block: Optional[int]
    overridable_defaults: bool
    external_data_root: Union[str, "os.PathLike[str]", None]
    custom_ops: _custom.Operators
    overrides: _custom.Operators
    custom_libraries: Iterable[Union[str, "os.PathLike[str]"]]


# Keywords of ONNX Runtime's class that have no influence on results.
_IGNORED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")


class _Profile:
    """The trace of a session, until it is written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.trace: Optional[_files.Trace] = _files.Trace()

    def end(self) -> str:
        with self._lock:
            trace, self.trace = self.trace, None
            if trace is not None:
                trace.write(self._path)
        return self._path


_PROFILES = itertools.count()


class InferenceSession:
    """A model that is ready to run. Any number of threads may call `run` at once.

    `path_or_bytes` is an ONNX file, its bytes, an `onnx.ModelProto`, or a shared library that `onnxc.compile` wrote. A model is compiled
    for this processor when it is met first, and comes from the cache after that, see `onnxc.cache`; `cache=False` leaves the cache
    alone. `providers` and `provider_options` are taken for what ONNX Runtime's class takes: models run on the CPU.

    Keywords of `onnxc.compile` may follow. `custom_ops` has functions in Python for operators that are not known, see `CustomOp`. `outputs` is
    a list of the outputs to compute: the work for others is left out. A model compiled with `state` has its tensors in `states`; `state_sizes` gives the sizes of symbols that they need.

    `trace` names a file in which runs are recorded on a timeline, step by step with their nodes, for https://ui.perfetto.dev. It is written
    by `end_profiling`, or when the session or the program ends. So does `SessionOptions.enable_profiling`.
    """

    def __init__(
        self,
        path_or_bytes: _compile.Model,
        sess_options: Optional[_options.SessionOptions] = None,
        providers: Optional[Sequence[Any]] = None,
        provider_options: Optional[Sequence[Mapping[str, Any]]] = None,
        *,
        cache: bool = True,
        state_sizes: Optional[Mapping[str, int]] = None,
        trace: Union[str, "os.PathLike[str]", None] = None,
        **keywords: Any,
    ) -> None:
        self._options = sess_options if sess_options is not None else _options.SessionOptions()
        if not isinstance(self._options, _options.SessionOptions):
            raise InvalidArgument(
                f"sess_options is of the type {type(sess_options).__module__}.{type(sess_options).__name__}; "
                "it takes an onnxc.SessionOptions"
            )
        _check_providers(providers)
        for name in _IGNORED:
            keywords.pop(name, None)
        known = list(SessionKeywords.__annotations__)
        for name in keywords:
            if name not in known:
                raise UnsupportedOption(f"InferenceSession has no option `{name}`; {near(name, [*known, 'cache', 'state_sizes', 'trace'])}")
        if self._options._input_dims:
            dims = keywords.get("input_dims", ())
            pins = dims if isinstance(dims, Mapping) else dict(pin.rsplit("=", 1) for pin in dims)
            keywords["input_dims"] = {**self._options._input_dims, **pins}
        self._source = _compile.source_of(path_or_bytes)
        self._keywords = keywords
        self._cache = cache
        self._digest: Optional[str] = None
        self._lock = threading.Lock()
        self._described: Optional[_proto.Description] = None
        self._parts: dict[frozenset[str], _model.Model] = {}
        #: Whether the compiled model was in the cache.
        self.from_cache = False
        self._model = self._load(keywords)
        self._inputs = [NodeArg(value) for value in self._model._inputs]
        self._outputs = [NodeArg(value) for value in self._model._outputs]
        self._output_names = [output.name for output in self._outputs]
        self._states: Optional[State] = None
        self._profile: Optional[_Profile] = None
        if trace is None and self._options.enable_profiling:
            trace = f"{self._options.profile_file_prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{next(_PROFILES)}.json"
        if trace is not None:
            self._profile = _Profile(os.path.abspath(trace))
            weakref.finalize(self, self._profile.end)
        if self._model.has_state and state_sizes is not None:
            self._states = self._model.state(**state_sizes)
        elif state_sizes is not None:
            raise InvalidArgument("`state_sizes` is given, and the model has no state; `state` says what becomes state")

    # -- Compilation --

    def _threads(self) -> int:
        threads = self._options.intra_op_num_threads
        if not isinstance(threads, (int, np.integer)) or threads < 0:
            raise UnsupportedOption(f"intra_op_num_threads is {threads!r}, not a number of threads; 0 is one per processor")
        return int(threads) or _processors()

    def _load(self, keywords: Mapping[str, Any]) -> _model.Model:
        functions = _custom.Functions(keywords.get("custom_ops", ()), keywords.get("overrides", ()))
        threads = self._threads()
        pool = _files.shared_pool(threads) if threads > 1 else None
        source = self._source
        if isinstance(source, Path):
            if not source.exists():
                raise FileNotFoundError(f"there is no model {source}")
            if source.suffix in (".so", ".dylib", ".dll"):
                others = [name for name in keywords if name not in ("custom_ops", "overrides")]
                if others or keywords and not functions:
                    raise UnsupportedOption(f"{source} is compiled already: `{[*others, *keywords][0]}` has no effect")
                return functions.given_to(_model.load(source, pool=pool))
        options = {"cpu": "native", **keywords, "name": "model"}
        if not isinstance(options.get("outputs", ()), str):
            options["outputs"] = list(options.get("outputs", ()))
        arguments = _compile.arguments(**options)
        suffix = _compile.shared_library_extension()

        def build(library: Path) -> list[str]:
            if isinstance(source, bytes):
                _compile.write(source, library, arguments)
                return []
            listed = library.with_suffix(".d")
            _compile.write(source, library, [*arguments, f"--depfile={listed}"])
            return _external(listed, source)

        def note(library: Path) -> dict[str, Any]:
            return {"runtime": _model.needs_runtime(library)}

        with _Folder() as own:
            if not self._cache:
                library = own.path() / f"model{suffix}"
                build(library)
                return functions.given_to(_model.load(library, name="model", pool=pool))
            if self._digest is None:
                self._digest = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else cache.digest_of(source)
            key = _key(self._digest, arguments, native=options.get("cpu") == "native")
            base, shown = (None, "") if isinstance(source, bytes) else (source.absolute().parent, str(source))
            for _ in range(3):
                found = cache.obtain(key, base, shown, build, note, suffix, own.path)
                self.from_cache = found.is_hit
                try:
                    model = _model.open_library(found.path, "model", 1, pool, bool(found.notes.get("runtime", True)))
                    return functions.given_to(model)
                except OSError:
                    # Another process removed it between the two.
                    if found.path.exists():
                        raise
            raise OSError(f"the cache {cache.folder()} loses its entries as soon as they are written")

    def _part(self, names: Sequence[str]) -> _model.Model:
        """The model that computes these outputs."""
        wanted = frozenset(names)
        if not self._options.compile_output_subsets or isinstance(self._source, Path) and self._source.suffix in (
            ".so",
            ".dylib",
            ".dll",
        ):
            return self._model
        if len(wanted) == len(self._output_names) or self._model.has_state or not wanted:
            return self._model
        with self._lock:
            if wanted not in self._parts:
                self._parts[wanted] = self._load({**self._keywords, "outputs": sorted(wanted)})
            return self._parts[wanted]

    # -- What the model is --

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers are constants, unless `overridable_defaults` makes inputs of those that the model lists as inputs."""
        return [arg for arg, value in zip(self._inputs, self._model._inputs) if value.ports[0].has_default]

    def get_modelmeta(self) -> ModelMetadata:
        if self._described is None:
            if isinstance(self._source, bytes):
                self._described = _proto.Description(self._source)
            elif self._source.suffix in (".so", ".dylib", ".dll"):
                self._described = _proto.Description(b"")
                self._described.graph_name = self._model.name
                self._described.properties = self._model.metadata
            else:
                with open(self._source, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    self._described = _proto.Description(content[:])
        return ModelMetadata(self._described)

    def get_providers(self) -> list[str]:
        return [_CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {_CPU: {}}

    def set_providers(
        self, providers: Optional[Sequence[Any]] = None, provider_options: Optional[Sequence[Mapping[str, Any]]] = None
    ) -> None:
        _check_providers(providers)

    def get_session_options(self) -> _options.SessionOptions:
        return self._options

    def enable_fallback(self) -> None:
        """Without effect."""

    def disable_fallback(self) -> None:
        """Without effect."""

    def end_profiling(self) -> str:
        """Writes the trace of the runs so far and ends it. Gives the name of the file."""
        if self._profile is None:
            raise InvalidArgument("the session keeps no profile: its option `trace`, or SessionOptions.enable_profiling, begins one")
        return self._profile.end()

    @property
    def states(self) -> State:
        """The tensors that stay from run to run, by name; see `State`. Runs of several threads take their turns."""
        with self._lock:
            return self._own_state()

    def _own_state(self) -> State:
        if self._states is None:
            if not self._model.has_state:
                raise InvalidArgument("the model has no state; `InferenceSession(model, state='auto')` finds what may become state")
            self._states = self._model.state()
        return self._states

    def new_states(self, **sizes: int) -> State:
        """Other tensors of the same model, for `run(..., state=...)`: each conversation has its own."""
        return self._model.state(**sizes)

    # -- Runs --

    def run(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        run_options: Optional[_options.RunOptions] = None,
        *,
        outputs: Optional[Mapping[str, Any]] = None,
        state: Optional[State] = None,
    ) -> list[Any]:
        """Runs the model on inputs by name; gives the outputs that `output_names` lists, all where it is None or empty.

        Inputs are arrays, tensors with `__dlpack__` (PyTorch's and others', which are not copied), `OrtValue`, numbers or lists.
        `outputs` is a dict of arrays or tensors that are written to. `state` takes the place of `states`.

        Raises InvalidArgument, which names the input, what it takes and what it was given, and RunError.
        """
        names = self._names(output_names)
        feeds = self._feeds(input_feed)
        model = self._part(names)
        cancel, seed = None, None
        if run_options is not None:
            if not isinstance(run_options, _options.RunOptions):
                raise InvalidArgument(f"run_options takes an onnxc.RunOptions, not a {type(run_options).__name__}")
            cancel, seed = run_options._cancel, run_options.seed
        if outputs:
            outputs = {name: value._array if isinstance(value, OrtValue) else value for name, value in outputs.items()}
        seed = _options.SEEDS.next() if seed is None else seed
        trace = None if self._profile is None else self._profile.trace
        try:
            if model.has_state and state is None:
                with self._lock:
                    own = self._own_state()
                    found = model.run(feeds, outputs=outputs, state=own, seed=seed, cancel=cancel, trace=trace)
            else:
                found = model.run(feeds, outputs=outputs, state=state, seed=seed, cancel=cancel, trace=trace)
        except RunError as error:
            raise self._explained(error, feeds) from error.__cause__
        if names is self._output_names:
            return list(found)
        return [found[name] for name in names]

    def run_with_ort_values(
        self,
        output_names: Optional[Sequence[str]],
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Optional[_options.RunOptions] = None,
    ) -> list[OrtValue]:
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Optional[_options.RunOptions] = None,
    ) -> None:
        """Runs on a thread of its own, which then calls `callback(results, user_data, error)`."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Optional[_options.RunOptions] = None) -> None:
        iobinding._run(run_options)

    def _names(self, given: Optional[Sequence[str]]) -> list[str]:
        if given is None or len(given) == 0:
            return self._output_names
        if isinstance(given, str):
            raise InvalidArgument(f"output_names takes a list of names; [{given!r}] is one")
        names = list(given)
        for name in names:
            if name not in self._output_names:
                raise InvalidArgument(f"the model has no output `{name}`; {near(str(name), self._output_names)}")
        return names

    def _feeds(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"input_feed takes a dict of inputs by name, not a {type(given).__name__}")
        feeds = {}
        for name, value in given.items():
            feeds[name] = value._array if isinstance(value, OrtValue) else value
        return feeds

    def _explained(self, error: RunError, feeds: Mapping[str, Any]) -> RunError:
        """The error with what the input takes and what it was given."""
        text = str(error)
        found = re.match(r"input (\d+) `", text)
        if error.status not in _OF_ARGUMENTS or found is None:
            return error
        at = int(found.group(1))
        for value in self._model._inputs:
            if value.first <= at < value.first + len(value.ports) and value.is_tensor:
                given = feeds.get(value.name)
                shape = list(np.shape(given)) if given is not None else None
                text += f"; `{value.name}` takes {_values.type_text(value)}, and was given the shape {shape}"
        return InvalidArgument(text, error.status)


class _Folder:
    """A temporary folder, made when it is needed. Libraries in it stay mapped when it goes; Windows keeps one that is loaded."""

    def __init__(self) -> None:
        self._path: Optional[Path] = None

    def path(self) -> Path:
        if self._path is None:
            import tempfile

            self._path = Path(tempfile.mkdtemp(prefix="onnxc-"))
        return self._path

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            import shutil

            shutil.rmtree(self._path, ignore_errors=True)


def _external(depfile: Path, model: Path) -> list[str]:
    """The files that the compiler read besides the model, as seen from the model's folder."""
    text = depfile.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", " ")
    _, _, rest = text.partition(": ")
    rest = rest.split("\n", 1)[0]
    found = [name.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$") for name in re.split(r"(?<!\\) +", rest.strip())]
    base = model.absolute().parent
    paths = [Path(name).absolute() for name in found if name]
    return [os.path.relpath(path, base) for path in paths if not _same(path, model)]


def _same(path: Path, model: Path) -> bool:
    try:
        return path.samefile(model)
    except OSError:
        return False


def _key(digest: str, arguments: list[str], native: bool) -> str:
    """The key of a compiled model: all that decides its bytes."""
    compiler = []
    try:
        status = _files.compiler_path().stat()
        compiler = [status.st_size, status.st_mtime_ns]
    except OSError:
        # Models that are in the cache need none.
        pass
    parts = [digest, arguments, _VERSION, _abi.ABI_VERSION, compiler, sys.platform]
    if native:
        parts.append(_processor.identity())
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_ALL_PROVIDERS = [
    "NvTensorRTRTXExecutionProvider",
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "QNNExecutionProvider",
    "XnnpackExecutionProvider",
    "CoreMLExecutionProvider",
    "DmlExecutionProvider",
    "WebGpuExecutionProvider",
    "AzureExecutionProvider",
    _CPU,
]


def _check_providers(providers: Optional[Sequence[Any]]) -> None:
    for provider in providers or ():
        name = provider[0] if isinstance(provider, (tuple, list)) else provider
        if not isinstance(name, str):
            raise InvalidArgument(f"a provider is a name, or a name and its options, not {provider!r}")
        if name not in _ALL_PROVIDERS:
            warnings.warn(f"no provider `{name}` is known; {near(name, [_CPU])}. Models run on the CPU", stacklevel=3)
        elif name != _CPU:
            warnings.warn(f"`{name}` is not available: models run on the CPU", stacklevel=3)


def get_available_providers() -> list[str]:
    return [_CPU]


def get_all_providers() -> list[str]:
    return [_CPU]


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return _VERSION


def get_build_info() -> str:
    return f"onnxc {_VERSION}"


def set_default_logger_severity(severity: int) -> None:
    """Without effect: nothing is logged."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Without effect."""


def enable_telemetry_events() -> None:
    """Without effect: there are none."""


def disable_telemetry_events() -> None:
    """Without effect."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Optional[str] = None) -> None:
    """Without effect: nothing needs loading."""
