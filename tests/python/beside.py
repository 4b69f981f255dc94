"""Times models on one thread as programs for two targets or with two sets of flags, in turn on this machine.

    python beside.py --onnxc ONNXC --windows MODEL.onnx ...          # for Linux, and for Windows under wine
    python beside.py --onnxc ONNXC --flags="--vector-width=128" MODEL.onnx ...   # for this processor, and with these flags besides

Each program is `tests/c/time_model.c` with one object. Rounds alternate between the two; the least time of all rounds counts.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
WINDOWS = ["--target", "x86_64-pc-windows-gnu"]


def program(folder, name, model, options, compiler, arguments):
    """The command of a timing program, and the bytes of its object."""
    model_object, path = folder / f"{name}.o", folder / f"{name}.exe"
    subprocess.run([arguments.onnxc, model, "-o", model_object, "--name", "net", *options], check=True)
    include = TESTS.parent / "runtime-support" / "include"
    source = TESTS / "c" / "time_model.c"
    subprocess.run([compiler, "-O2", "-std=c99", "-DMODEL=net_model", "-I", include, source, model_object, "-o", path],
                   check=True)
    return path, model_object.stat().st_size


def run(command, seconds):
    time, bits = subprocess.run([*command, str(seconds)], check=True, capture_output=True, text=True).stdout.split()
    return float(time) / 1000, bits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--flags", default="")
    parser.add_argument("--common", default="", help="flags of both")
    parser.add_argument("--wine", default="/usr/lib/wine/wine64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    common = arguments.common.split() or ([] if arguments.windows else ["--mcpu=native"])
    first, second = ("Linux", "Windows") if arguments.windows else ("as it is", arguments.flags)
    print(f"| model | {first} ms | {second} ms | ratio | same bits |\n|---|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.environ.setdefault("WINEPREFIX", str(folder / "wine"))
        os.environ.setdefault("WINEDEBUG", "-all")
        for model in arguments.models:
            name = model.stem if model.stem != "model" else model.parent.name
            options = WINDOWS if arguments.windows else arguments.flags.split()
            compiler = "x86_64-w64-mingw32-gcc" if arguments.windows else "cc"
            one, _ = program(folder, "one", model, common, "cc", arguments)
            both = [flag for flag in common if not (flag.startswith("--mcpu") and "--mcpu" in arguments.flags)]
            two, _ = program(folder, "two", model, [*both, *options], compiler, arguments)
            commands = [[one], [arguments.wine, two] if arguments.windows else [two]]
            run(commands[1], 0.01)
            times, bits = [1e9, 1e9], [None, None]
            for _ in range(arguments.rounds):
                for at, command in enumerate(commands):
                    time, bits[at] = run(command, arguments.seconds)
                    times[at] = min(times[at], time)
            same = "yes" if bits[0] == bits[1] else "no"
            print(f"| {name} | {times[0]:.4g} | {times[1]:.4g} | {times[1] / times[0]:.3f} | {same} |")
            sys.stdout.flush()


main()
