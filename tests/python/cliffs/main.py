"""A hunter of cliffs: draws operators, pairs of them and exporters' patterns over shapes, types, opsets and threads, and times each beside its
bound and ONNX Runtime. What is slower than both is shrunk to the smallest case that still is, and listed by the time lost.

    python cliffs/main.py --onnxc ONNXC [--cases 5000] [--seed 1] [--kinds conv,softmax] [--keep DIR] [--out cliffs.md]

The bound of a case is the larger of two times: the bytes of its inputs, outputs and weights at the bandwidth, and its operations at the
peak. Its figures are the least of short measurements, taken again where they look bad; ONNX Runtime's are less what a call of it takes.
It prints, and fails where onnxc refuses a case that ONNX Runtime runs.
"""
import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np
import onnx
import onnxruntime as ort
from draw import KINDS, build, draw, smaller

# A cliff: more than this many times the bound, and of ONNX Runtime's time; and the milliseconds below which calls weigh more than kernels.
OF_BOUND, OF_PEER, LEAST_MS = 2.0, 1.15, 0.02
# Seconds after which a run of onnxc hangs, on a machine of any speed.
HANG = 45 * 60


class Refused(Exception):
    pass


class Machine:
    """This machine's rates and the two engines on it."""

    def __init__(self, onnxc, folder, flags, seconds):
        self.onnxc, self.folder, self.flags, self.seconds = onnxc, pathlib.Path(folder), flags, seconds
        relu = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 17]> g (float[8] x) => (float[8] y) { y = Relu(x) }')
        onnx.save(relu, self.folder / "relu.onnx")
        self.peaks = {}
        for threads in (1, 2):
            report = self.bench(self.folder / "relu.onnx", {}, threads, 0.05, "--per-node")
            self.peaks[threads] = report["peak"]
        self.call_ms = self.peer(self.folder / "relu.onnx", {"x": np.zeros(8, np.float32)}, 1, 0.05)

    def bench(self, model, sizes, threads, seconds, *more):
        command = [str(self.onnxc), "bench", str(model), "--json", "--seconds", str(seconds), "--threads", str(threads), *self.flags, *more]
        for name, size in sizes.items():
            command += ["--size", f"{name}={size}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
        if done.returncode:
            raise Refused((done.stderr.strip().splitlines() or ["no message"])[0])
        return json.loads(done.stdout)

    def peer(self, model, feeds, threads, seconds):
        settings = ort.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads, settings.log_severity_level = threads, 1, 4
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1")
        session = ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
        least, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end or least == float("inf"):
            start = time.perf_counter()
            session.run(None, feeds)
            least = min(least, time.perf_counter() - start)
        return least * 1e3

    def bound(self, graph, threads):
        peak = self.peaks[threads]
        rate = peak["cached_gbytes"] if graph.bytes <= peak["cached_bytes"] else peak["gbytes"]
        return max(graph.bytes / rate, graph.operations / peak["gflops"]) / 1e6


class Figures:
    """Least times of a case in ms, of all its measurements."""

    def __init__(self, bound):
        self.bound, self.ours, self.peer = bound, float("inf"), float("inf")

    def is_cliff(self):
        return self.ours > max(OF_BOUND * self.bound, OF_PEER * self.peer, LEAST_MS)

    def lost(self):
        """Milliseconds that the peer, or twice the bound, would not have taken."""
        return self.ours - max(self.peer, OF_BOUND * self.bound)


def measure(machine, case):
    """Figures of a case; none where ONNX Runtime does not run it."""
    graph, model = build(case)
    path = machine.folder / "case.onnx"
    onnx.save(model, path)
    sizes = {name: size for size, name in graph.sizes.items()}
    try:
        peer = machine.peer(path, graph.feeds, case.threads, machine.seconds)
    except Exception:
        return None
    figures = Figures(0)
    figures.peer = max(peer - machine.call_ms, 1e-4)
    figures.ours = machine.bench(path, sizes, case.threads, machine.seconds)["min_ms"]
    graph.bytes += outputs(model, sizes)
    figures.bound = machine.bound(graph, case.threads)
    for _ in range(2):
        if not figures.is_cliff():
            break
        figures.ours = min(figures.ours, machine.bench(path, sizes, case.threads, 4 * machine.seconds)["min_ms"])
        figures.peer = min(figures.peer, max(machine.peer(path, graph.feeds, case.threads, machine.seconds) - machine.call_ms, 1e-4))
    return figures


def outputs(model, sizes):
    """Bytes of the outputs whose shapes are known."""
    total = 0
    for output in model.graph.output:
        kind = output.type.tensor_type
        if not kind.elem_type or not kind.HasField("shape"):
            continue
        dims = [sizes.get(dim.dim_param, 0) if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        total += int(np.prod(dims)) * onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    return total


def shrink(case, is_cliff, steps=24):
    """The smallest case that still is a cliff, found within a number of tries."""
    tried = {case}
    while steps > 0:
        for less in smaller(case):
            if less in tried:
                continue
            tried.add(less)
            steps -= 1
            if is_cliff(less):
                case = less
                break
            if steps <= 0:
                return case
        else:
            return case
    return case


def refusals(machine, case):
    """Why kernels that take a twentieth of the time or more are not leaf kernels."""
    graph, model = build(case)
    onnx.save(model, machine.folder / "case.onnx")
    sizes = {name: size for size, name in graph.sizes.items()}
    nodes = machine.bench(machine.folder / "case.onnx", sizes, case.threads, machine.seconds, "--per-node")["nodes"]
    return sorted({node["refusal"] for node in nodes if node.get("refusal") and node["share"] > 0.05})


def table(found):
    """Cliffs by lost time, the worst first."""
    lines = ["| case | smallest | onnxc ms | ONNX Runtime ms | bound ms | lost ms | no leaf kernel |", "|---|---|--:|--:|--:|--:|---|"]
    for case, small, figures, why in sorted(found, key=lambda entry: -entry[2].lost()):
        lines.append(f"| {case} | {small} | {figures.ours:.3f} | {figures.peer:.3f} | {figures.bound:.3f} | {figures.lost():.3f} | {'; '.join(why)} |")
    return "\n".join(lines)


def hunt(machine, cases, keep=None, say=print, shrinking=True):
    """Cliffs of some cases, what onnxc refuses, and how many cases were timed by kind."""
    found, refused, timed, seen = [], [], collections.Counter(), set()
    for at, case in cases:
        try:
            figures = measure(machine, case)
        except Refused as error:
            refused.append((case, str(error)))
            say(f"{at}: refused: {case}: {error}")
            continue
        if figures is None:
            continue
        timed[case.kind] += 1
        if not figures.is_cliff():
            continue

        def still(less):
            try:
                figures = measure(machine, less)
            except (Refused, subprocess.TimeoutExpired):
                return False
            return figures is not None and figures.is_cliff()

        small = shrink(case, still) if shrinking else case
        if small in seen:
            continue
        seen.add(small)
        why = refusals(machine, case)
        found.append((case, small, figures, why))
        say(f"{at}: {case}: {figures.ours:.3f} ms, ONNX Runtime {figures.peer:.3f}, bound {figures.bound:.3f}; smallest {small}; {'; '.join(why)}")
        if keep:
            onnx.save(build(small)[1], pathlib.Path(keep) / f"{at}.onnx")
    return found, refused, timed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxc", required=True, type=pathlib.Path)
    parser.add_argument("--flags", default="", help="of onnxc")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a measurement")
    parser.add_argument("--kinds", help="some of " + ", ".join(KINDS))
    parser.add_argument("--no-shrinking", action="store_true", help="list cases as they were drawn")
    parser.add_argument("--keep", help="folder for the smallest models")
    parser.add_argument("--out", help="file for the table")
    args = parser.parse_args()
    kinds = args.kinds.split(",") if args.kinds else None
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(args.onnxc.resolve(), folder, args.flags.split(), args.seconds)
        cases = ((at, draw(args.seed, at, kinds)) for at in range(args.first, args.first + args.cases))
        found, refused, timed = hunt(machine, cases, args.keep, lambda text: print(text, file=sys.stderr, flush=True), not args.no_shrinking)
    text = table(found)
    text += f"\n\n{sum(timed.values())} cases timed, {len(found)} cliffs, {len(refused)} refused: "
    text += ", ".join(f"{name} {count}" for name, count in sorted(timed.items())) + "\n"
    text += "".join(f"- refused: {case}: {why}\n" for case, why in refused)
    print(text)
    if args.out:
        pathlib.Path(args.out).write_text(text)
    sys.exit(bool(refused))


if __name__ == "__main__":
    main()
