"""Calls of the compiler."""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from . import _files


class CompileError(Exception):
    """The model or the options are wrong, or an output cannot be written. `problems` lists each."""

    def __init__(self, problems):
        self.problems = problems
        super().__init__("\n".join(problems))


class ModelWarning(UserWarning):
    """What a model breaks of the specification without harm."""


def shared_library_extension():
    """`.so`, or what this system calls it."""
    return {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def _pairs(given):
    return [f"{name}={value}" for name, value in given.items()] if isinstance(given, dict) else list(given)


def _shapes(given):
    def text(dims):
        if isinstance(dims, str):
            return dims
        return "[" + ",".join("?" if dim is None else str(dim) for dim in dims) + "]"

    return [f"{name}={text(dims)}" for name, dims in given.items()] if isinstance(given, dict) else list(given)


def arguments(
    *,
    name=None,
    opt_level=3,
    exact=False,
    precision=None,
    strict=False,
    target=None,
    cpu=None,
    vector_width=None,
    input_dims=(),
    input_shapes=(),
    state=(),
    state_capacity=None,
    nchwc_block=None,
    overridable_defaults=False,
    external_data_root=None,
):
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
        ("--external-data-root", external_data_root),
    ]
    for flag, value in given:
        if value is not None:
            found += [flag, str(value)]
    for flag, value in [("--exact", exact), ("--strict", strict), ("--overridable-defaults", overridable_defaults)]:
        if value:
            found.append(flag)
    for pin in _pairs(input_dims):
        found += ["--input-dim", pin]
    for shape in _shapes(input_shapes):
        found += ["--input-shape", shape]
    for pair in [state] if isinstance(state, str) else _pairs(state):
        found += ["--state", pair]
    return found


def compile(model, output=None, **options):
    """Compiles a model; gives the path of the file that was written, beside which lies its C header.

    `model` is the path of an ONNX file, an `onnx.ModelProto`, or a model's bytes. The extension of `output` says what to write:
    `.so` (`.dylib` on macOS) a shared library, which `load` takes, `.o` an object, `.a` a static library, `.h` the header alone.
    Without it a shared library is written into the current folder, with the name of the model's file.

    A shared library is linked by the C compiler `$CC` or `cc`; an object needs none.

    Options, as of the command `onnxc`: `name` (prefix of the symbols), `opt_level` (0 to 3), `exact`, `precision` ("f32", "bf16" or "auto"), `strict`,
    `target` (a triple), `cpu` (such as "x86-64-v3" or "native"), `vector_width` (bits), `input_dims` (a dict of symbols, or "input:axis", to
    sizes), `input_shapes` (a dict of inputs that the model declares without a shape, or with a wrong one, to their shapes: tuples of
    sizes, names of symbols, and None for dims without a name), `state` ("auto" or a dict of inputs to outputs), `state_capacity`, `nchwc_block` (8 or 16), `overridable_defaults` and
    `external_data_root` (a folder).

    Raises CompileError with every problem of the model; what it breaks without harm is a ModelWarning.
    """
    with tempfile.TemporaryDirectory(prefix="onnxc-") as folder:
        if isinstance(model, (str, os.PathLike)):
            path = Path(model)
        else:
            content = model if isinstance(model, (bytes, bytearray, memoryview)) else model.SerializeToString()
            if output is None:
                raise TypeError("a model that is not a file needs the argument `output`")
            path = Path(folder) / "model.onnx"
            path.write_bytes(content)
        output = Path(path.stem + shared_library_extension()) if output is None else Path(output)
        call([str(path), "-o", str(output)] + arguments(**options))
    return output


def call(command):
    """Runs the compiler with these arguments; gives its standard output."""
    done = subprocess.run([_files.compiler()] + command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    problems = []
    for line in done.stderr.splitlines():
        if line.startswith("warning: "):
            warnings.warn(line.removeprefix("warning: "), ModelWarning, stacklevel=3)
        elif line.startswith("error: "):
            problems.append(line.removeprefix("error: "))
        elif problems:
            problems[-1] += "\n" + line
    if done.returncode != 0:
        text = done.stderr.strip() or f"the compiler ended with code {done.returncode}"
        if "cannot run the C compiler" in text:
            problems.append("install a C compiler, let $CC name one, or write an object (`.o`), which needs none")
        raise CompileError(problems or [text])
    return done.stdout
