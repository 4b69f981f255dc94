"""Searches for graphs that show the defects of `../../conformance/replanted.md`, each put back into the compiler.

replanted.py --worker PROGRAM --seed S --count C: PROGRAM is `graphs` of a compiler with `replanted.patch`. For each defect
of the table "Found by random graphs" the first graph is sought that fails with it and passes without; prints the table with what was
found, and with --write puts it into the file. Only graphs that hold what a defect is about are run, see `ABOUT`.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "differential"))

import items
import main
import values
from case import Skip
from client import Worker

PAGE = Path(__file__).parent.parent.parent / "conformance" / "replanted.md"
#: Seconds that a graph may take until the process that looks at it is ended: the oracle can hang.
SILENCE = 120


def ops(trial):
    return {vertex.op for vertex in trial.graph.vertices}


def is_empty(trial):
    found = [*trial.graph.arrays.values(), *(value for one in trial.sets for value in one.leaves.values())]
    return any(array.size == 0 for value in found for array in items.tensors(value))


def has(*names):
    return lambda trial: not ops(trial).isdisjoint(names)


def both(*tests):
    return lambda trial: all(test(trial) for test in tests)


def reads_floats(op, trial):
    read = (trial.graph.arrays[vertex.inputs[0]] for vertex in trial.graph.vertices if vertex.op == op)
    return any(items.kind_of(value) in values.FLOATS for value in read)


def pads_a_pool(trial):
    pools = [vertex.node for vertex in trial.graph.vertices if vertex.op == "MaxPool" and len(vertex.outputs) > 1]
    return any(any(node.attributes.get("pads", [])) or "auto_pad" in node.attributes for node in pools)


def holds_loops(trial):
    return any(block.kind in ("loop", "scan") for block in trial.dress.blocks)


negative = lambda trial: trial.negative
#: What a graph that shows a defect holds, by the defect's name; any graph may show those that are missing here.
ABOUT = {
    "scatter": both(negative, has("ScatterElements", "Scatter", "TensorScatter")),
    "static-shapes": both(negative, lambda trial: not trial.hidden),
    "run-time-shapes": both(negative, lambda trial: bool(trial.hidden)),
    "best-of-nothing": both(is_empty, has("ArgMax", "ArgMin", "Hardmax")),
    "masked-reads": is_empty,
    "hoisted-loads": is_empty,
    "captured-size": lambda trial: bool(trial.dress.blocks),
    "dead-loop": holds_loops,
    "declared-shape": has("Reshape"),
    "max-pool-padding": pads_a_pool,
    "pow-minus-one": has("Pow"),
    "nan-extreme": lambda trial: reads_floats("ArgMax", trial) or reads_floats("ArgMin", trial),
    "tanh-one": has("Tanh", "Gelu", "com.microsoft.FastGelu", "LSTM", "GRU", "RNN"),
    "slice-start": has("Slice"),
    "reshape-zero": both(has("Reshape"), is_empty),
}
#: The ways of compiling that are enough to see a defect, by its name, where all others would take long.
WAYS = {"sse-comparisons": ["baseline"], "negative-division": ["O3"]}


def table():
    """Lines of the page, and by name of a defect the number of its row's line and the row's cells."""
    lines = PAGE.read_text().split("\n")
    rows = {}
    for at, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 5 and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = at, cells
    return lines, rows


def failures(trial, worker, names=None):
    """How a graph fails, as `main.examine` has it but for what ONNX Runtime is asked for; in the ways of these names, or in
    all."""
    ways = [way for way in trial.ways() if names is None or way["name"] in names]
    found, reply = trial.run(worker, ways)
    if reply:
        found += main.needless(trial, reply, worker)
    return [failure for failure in found if failure.kind != "accepted"]


def describe(failure):
    way = failure.way
    if failure.kind in ("crash", "hang"):
        # "crash: running baseline on set 0: signal 11"
        way = failure.text.split(": ")[1].split()[1]
    cause = ": only for a loop in vain" if failure.text.startswith("for a loop in vain") else ""
    return failure.kind + (f" of {way}" if way not in ("", "O3") else "") + cause


def look(options):
    """Runs graphs, and prints each number and each defect that a graph shows."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    names = options.names
    workers = {name: Worker(options.worker, ONNXC_REPLANT=name) for name in names + [""]}
    for number in range(options.first, options.last):
        if names and number % 32 != main.PROGRAM:
            shown = [(name, text) for name, text in show(number, options.seed, names, workers)]
            names = [name for name in names if name not in dict(shown)]
            print(json.dumps([number, shown]), flush=True)
    for worker in workers.values():
        if worker.process:
            worker.stop()


def show(number, seed, names, workers):
    """The defects that a graph shows, and how."""
    try:
        trial = main.draw_trial(seed, number)
    except Skip:
        return
    about = [name for name in names if name not in ABOUT or ABOUT[name](trial)]
    if about:
        trial.prepare()
    if not trial.sets:
        return
    passes = None
    for name in about:
        found = failures(trial, workers[name], WAYS.get(name))
        if not found:
            continue
        if passes is None:
            passes = not failures(trial, workers[""])
        if passes:
            yield name, describe(found[0])


def search(options, names, found):
    """Has a process look for these defects; where it ends early, as ONNX Runtime crashes at times, another goes on."""
    number = options.first
    while names and number < options.last:
        command = [sys.executable, __file__, "--worker", options.worker, "--seed", str(options.seed), "--look", *names]
        command += ["--first", str(number), "--count", str(options.last - number)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        heard = [0]
        threading.Thread(target=watch, args=(child, heard), daemon=True).start()
        for line in child.stdout:
            heard[0] = processor_time(child)
            at, shown = json.loads(line)
            number = at + 1
            for name, text in shown:
                found[name] = f"{at}, {text}"
                print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
            names = [name for name in names if name not in found]
            if number % 1000 == 0:
                print(f"{number}: {' '.join(names)} are left", file=sys.stderr, flush=True)
        if child.wait() == 0:
            break
        # The graph it was at is left out.
        number += 1


def watch(child, heard):
    while child.poll() is None:
        time.sleep(1)
        if processor_time(child) - heard[0] > SILENCE:
            child.kill()


def processor_time(child):
    """Seconds that a process has had of the processors; 0 where the system does not say."""
    try:
        with open(f"/proc/{child.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def run():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--names", nargs="*", help="defects, else all of the table")
    parser.add_argument("--write", action="store_true", help="put what was found into the table")
    parser.add_argument("--look", nargs="*", dest="look")
    options = parser.parse_args()
    options.last = options.first + options.count
    if options.look is not None:
        options.names = options.look
        return look(options)
    lines, rows = table()
    names = options.names or list(rows)
    found = {}
    # Each process draws all graphs, and looks for defects of its own.
    jobs = [threading.Thread(target=search, args=(options, names[job::options.jobs], found)) for job in range(options.jobs)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    for name in names:
        at, cells = rows[name]
        lines[at] = "| " + " | ".join(cells[:4] + [found.get(name, "not found")]) + " |"
        print(lines[at])
    if options.write:
        PAGE.write_text("\n".join(lines))
    return any(name not in found for name in names)


if __name__ == "__main__":
    sys.exit(run())
