"""Calls of the compiler."""

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol, TypedDict, Union

from . import _custom, _files


class _Proto(Protocol):
    """An `onnx.ModelProto`."""

    def SerializeToString(self) -> bytes: ...


Model = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, _Proto]
Pairs = Union[Mapping[str, Any], Iterable[str]]
Shape = Union[str, Sequence[Union[int, str, None]]]


class Options(TypedDict, total=False):
    """Keywords of `compile`."""

    name: Optional[str]
    opt_level: Union[int, str]
    exact: bool
    precision: Optional[str]
    strict: bool
    target: Optional[str]
    cpu: Optional[str]
    vector_width: Optional[int]
    input_dims: Pairs
    input_shapes: Union[Mapping[str, Shape], Iterable[str]]
    outputs: Iterable[str]
    state: Union[str, Pairs]
    state_capacity: Optional[int]
    training: bool
    recompute: Union[bool, int]
    nchwc_block: Optional[int]
    overridable_defaults: bool
    external_data_root: Union[str, "os.PathLike[str]", None]
    custom_ops: _custom.Operators
    overrides: _custom.Operators
    custom_libraries: Iterable[Union[str, "os.PathLike[str]"]]
    weights_file: Union[str, "os.PathLike[str]", None]
    weights_from: Optional[int]


class CompileError(Exception):
    """The model or the options are wrong, or an output cannot be written. `problems` lists each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))

    def __reduce__(self) -> "tuple[type[CompileError], tuple[list[str]]]":
        return (type(self), (self.problems,))


class ModelWarning(UserWarning):
    """What a model breaks of the specification without harm."""


def shared_library_extension() -> str:
    """`.so`, or what this system calls it."""
    return {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def _pairs(given: Pairs) -> list[str]:
    return [f"{name}={value}" for name, value in given.items()] if isinstance(given, Mapping) else list(given)


def _shapes(given: Union[Mapping[str, Shape], Iterable[str]]) -> list[str]:
    def text(dims: Shape) -> str:
        if isinstance(dims, str):
            return dims
        return "[" + ",".join("?" if dim is None else str(dim) for dim in dims) + "]"

    return [f"{name}={text(dims)}" for name, dims in given.items()] if isinstance(given, Mapping) else list(given)


def arguments(
    *,
    name: Optional[str] = None,
    opt_level: Union[int, str] = 2,
    exact: bool = False,
    precision: Optional[str] = None,
    strict: bool = False,
    target: Optional[str] = None,
    cpu: Optional[str] = None,
    vector_width: Optional[int] = None,
    input_dims: Pairs = (),
    input_shapes: Union[Mapping[str, Shape], Iterable[str]] = (),
    outputs: Iterable[str] = (),
    state: Union[str, Pairs] = (),
    state_capacity: Optional[int] = None,
    training: bool = False,
    recompute: Union[bool, int] = False,
    nchwc_block: Optional[int] = None,
    overridable_defaults: bool = False,
    external_data_root: Union[str, "os.PathLike[str]", None] = None,
    custom_ops: _custom.Operators = (),
    overrides: _custom.Operators = (),
    custom_libraries: Iterable[Union[str, "os.PathLike[str]"]] = (),
    weights_file: Union[str, "os.PathLike[str]", None] = None,
    weights_from: Optional[int] = None,
) -> list[str]:
    """The options of `compile` as arguments of the command."""
    found = ["-O", str(opt_level)]
    given = [
        ("--name", name),
        ("--precision", precision),
        ("--target", target),
        ("--mcpu", cpu),
        ("--vector-width", vector_width),
        ("--state-capacity", state_capacity),
        ("--nchwc-block", nchwc_block),
        ("--weights-file", None if weights_file is None else os.fspath(weights_file)),
        ("--weights-from", weights_from),
        ("--external-data-root", None if external_data_root is None else os.fspath(external_data_root)),
    ]
    for flag, value in given:
        if value is not None:
            found += [flag, str(value)]
    switches = [("--exact", exact), ("--strict", strict), ("--overridable-defaults", overridable_defaults)]
    for flag, switch in [*switches, ("--training", training)]:
        if switch:
            found.append(flag)
    if recompute is True:
        found.append("--recompute")
    elif recompute is not False:
        found.append(f"--recompute={recompute}")
    for pin in _pairs(input_dims):
        found += ["--input-dim", pin]
    for shape in _shapes(input_shapes):
        found += ["--input-shape", shape]
    if isinstance(outputs, str):
        raise TypeError("`outputs` is a list of names")
    for output in outputs:
        found += ["--only-output", output]
    for operator in _custom.texts(custom_ops):
        found += ["--custom-op", operator]
    for operator in _custom.texts(overrides):
        found += ["--override", operator]
    if isinstance(custom_libraries, (str, os.PathLike)):
        raise TypeError("`custom_libraries` is a list of files")
    for library in custom_libraries:
        found += ["--custom-library", os.fspath(library)]
    for pair in [state] if isinstance(state, str) else _pairs(state):
        found += ["--state", pair]
    return found


def source_of(model: Model) -> Union[Path, bytes]:
    """A model's file, or its bytes."""
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")


def compile(model: Model, output: Union[str, "os.PathLike[str]", None] = None, **options: Any) -> Path:
    """Compiles a model; gives the path of the file that was written, beside which lies its C header.

    `model` is the path of an ONNX file, an `onnx.ModelProto`, or a model's bytes. The extension of `output` says what to write:
    `.so` (`.dylib` on macOS) a shared library, which `load` takes, `.o` an object, `.a` a static library, `.h` the header alone.
    Without it a shared library is written into the current folder, with the name of the model's file.

    A shared library for Linux, macOS or Windows needs no linker; others are linked by the C compiler `$CC` or `cc`.

    Options, as of the command `onnxc`: `name` (prefix of the symbols), `opt_level` (0, 1, 2 or "s"), `exact`, `precision` ("f32", "bf16" or
    "auto"), `strict`, `target` (a triple), `cpu` (such as "x86-64-v3" or "native"), `vector_width` (bits), `input_dims` (a dict of
    symbols, or "input:axis", to sizes), `input_shapes` (a dict of inputs that the model declares without a shape, or with a wrong one,
    to their shapes: tuples of sizes, names of symbols, and None for dims without a name), `outputs` (names of those to compute; without
    it all), `state` ("auto" or a dict of inputs to outputs), `state_capacity`, `training` (compile the model's `training_info`, see
    `Model.entries`), `recompute` (True, or a number of bytes: a step computes values again in place of keeping them), `nchwc_block` (8 or 16), `overridable_defaults`, `external_data_root` (a folder), `custom_ops` (a dict of operators
    that are not known, "mine.Op", to names of C functions, or to functions in Python, see `CustomOp`), `overrides` (the same for known
    ones) and `custom_libraries` (shared libraries with the C functions; those in Python are given to `load` again), `weights_file` (a file that has the weights in place of the library; `load` takes it) and `weights_from` (the
    least bytes of a weight in that file).

    Raises CompileError with every problem of the model; what it breaks without harm is a ModelWarning.
    """
    source = source_of(model)
    if output is None:
        if isinstance(source, bytes):
            raise TypeError("a model that is not a file needs the argument `output`")
        output = Path(source.stem + shared_library_extension())
    output = Path(output)
    write(source, output, arguments(**options))
    return output


def train_graph(
    model: Model,
    output: Union[str, "os.PathLike[str]"],
    *,
    loss: str,
    optimizer: str,
    learn: Iterable[str] = (),
    freeze: Iterable[str] = (),
    lora_for: Iterable[str] = (),
    **options: Any,
) -> Path:
    """Writes what trains a model into it, as `training_info`; gives the path of the model that was written, for `compile` with
    `training=True`.

    `loss` is "cross-entropy", "mse" or "bce", `optimizer` "sgd", "momentum", "adam", "adamw" or "adagrad". `learn` and `freeze` are
    patterns of initializers, `lora_for` of weights. Options, as of the command `onnxc train-graph`: `learning_rate` (a number, or
    "input"), `weight_decay`, `momentum`, `nesterov` (True), `betas` (two numbers), `epsilon`, `rate_decay`, `output_name` (what
    learns, of several outputs), `label_type`, `class_axis`, `lora` (a rank, or "8,alpha=16"), `initialize` (True), `seed`,
    `external_data_root`.
    """
    known = {"learning_rate", "weight_decay", "momentum", "nesterov", "betas", "epsilon", "rate_decay", "output_name", "label_type"}
    known |= {"class_axis", "lora", "initialize", "seed", "external_data_root"}
    found = ["--loss", loss, "--optimizer", optimizer]
    for name, patterns in [("learn", learn), ("freeze", freeze), ("lora-for", lora_for)]:
        if isinstance(patterns, str):
            raise TypeError(f"`{name.replace('-', '_')}` is a list of patterns")
        found += [f"--{name}={pattern}" for pattern in patterns]
    for option, value in options.items():
        if option not in known:
            raise TypeError(f"train_graph() got an unexpected keyword argument '{option}'")
        flag = "--output" if option == "output_name" else "--" + option.replace("_", "-")
        if value is True:
            found.append(flag)
        elif value is not None and value is not False:
            found.append(f"{flag}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
    source = source_of(model)
    output = Path(output)
    command = ["train-graph", _argument(source), "-o", str(output)] + found
    call(command, source if isinstance(source, bytes) else None)
    return output


def _argument(source: Union[Path, bytes]) -> str:
    if isinstance(source, bytes):
        return "-"
    # So that the compiler does not take the name of a file for one of its commands.
    return str(source) if source.is_absolute() else os.path.join(os.curdir, source)


def write(source: Union[Path, bytes], output: Path, arguments: list[str]) -> None:
    """Compiles a model into a file."""
    call([_argument(source), "-o", str(output)] + arguments, source if isinstance(source, bytes) else None)


def call(command: list[str], content: Optional[bytes] = None) -> str:
    """Runs the compiler with these arguments on bytes, if any; gives its standard output."""
    # Starts from the cache do without.
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as given:
        # A file, as a pipe's reader may end before it has read all.
        if content is not None:
            given.write(content)
            given.seek(0)
        done = subprocess.run(
            [_files.compiler()] + command,
            stdin=subprocess.DEVNULL if content is None else given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    problems: list[str] = []
    for line in done.stderr.splitlines():
        if line.startswith("warning: "):
            warnings.warn(line[len("warning: ") :], ModelWarning, stacklevel=3)
        elif line.startswith("error: "):
            problems.append(line[len("error: ") :])
        elif problems:
            problems[-1] += "\n" + line
    if done.returncode != 0:
        text = done.stderr.strip() or f"the compiler ended with code {done.returncode}"
        if "cannot run the C compiler" in text:
            problems.append("install a C compiler, let $CC name one, or write an object (`.o`), which needs none")
        raise CompileError(problems or [text])
    return done.stdout
