"""Sizes of objects beside their model files (without external data), the time that compiling takes, and the compiler's peak memory.

Weights that Winograd's algorithm transforms beforehand have more elements than those of the model: how many bytes more is counted
apart, as `onnxc inspect` says it, and the ratio is without them.

    python object_sizes.py --onnxc ONNXC [--flags "--mcpu=native"] MODEL.onnx|FOLDER ...
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time


def compile(command, folder):
    """Seconds, and the peak memory in MiB, of a compiler's run."""
    start = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxc", required=True, type=pathlib.Path)
    parser.add_argument("--flags", default="--mcpu=native", help="of every compiler's run")
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    models = []
    for path in args.models:
        models += sorted(path.glob("*/model.onnx")) if path.is_dir() else [path]
    print("| model | file bytes | object bytes | more for Winograd | ratio | seconds | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for model in models:
        command = [str(args.onnxc.resolve()), *args.flags.split()]
        report = json.loads(subprocess.check_output([command[0], "inspect", "--json", *command[1:], str(model)]))
        winograd = report.get("winograd") or {"weight_bytes": 0, "plain_bytes": 0}
        more = winograd["weight_bytes"] - winograd["plain_bytes"]
        with tempfile.TemporaryDirectory() as folder:
            seconds, peak = compile([*command, str(model.resolve()), "-o", "m.o"], folder)
            size = pathlib.Path(folder, "m.o").stat().st_size
        file = model.stat().st_size
        name = model.parent.name if model.name == "model.onnx" else model.stem
        ratio = (size - more) / file
        print(f"| {name} | {file:,} | {size:,} | {more:,} | {ratio:.3f} | {seconds:.1f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
