"""Times of a training step beside PyTorch's: train_bench.py --onnxc ONNXC [--batch 1,8,64] [--threads 1,2] [NETWORK ...]

For each network: a step is the forward pass, the cross entropy, all derivatives and an update by Adam. onnxc, PyTorch as it is (eager,
with its fused Adam) and `torch.compile` take turns, each in a process of its own that is forked behind the import, on the same weights and batch. Printed are the least
times of all rounds in ms, the ratio of the better one of PyTorch's to onnxc's, peaks of resident memory less what was resident before
the library was imported, what the shared library takes on disk, how long it takes to compile, and the least time of all rounds from the
import to the end of the first step, in which torch.compile compiles. The losses of the first two steps must agree within 1e-2. --cpu-time counts the time of the
processor in place of that on the wall, for machines that do other work at the same time.

onnxc runs by its Python package, for which $ONNXC_PREFIX names a folder with bin/onnxc and lib, as `make install` makes it; --onnxc
compiles. Needs torch, onnx and numpy.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_peer import memory, resident

ROOT = Path(__file__).resolve().parents[2]
RATE = 1e-3
# Those before and behind the first update; Adam makes what rounds otherwise grow fast from there on.
LOSSES = 2
TOLERANCE = 1e-2
ENGINES = ("onnxc", "eager", "compile")


def onnxc_step(request):
    """A step that gives the loss."""
    import numpy as np
    import onnxc

    model = onnxc.load(request["library"], threads=request["threads"])
    x, target = (np.load(request[name]) for name in ("x", "target"))
    state = model.state()
    step = model.entries["train_step"]
    return lambda: float(step(x, target, state=state)[-1])


def torch_step(request, compiled):
    import numpy as np
    import torch

    import train_networks

    torch.set_num_threads(request["threads"])
    net = train_networks.NETWORKS[request["network"]][0]()
    net.load_state_dict(torch.load(request["weights"]))
    net.train()
    x, target = (torch.from_numpy(np.load(request[name])) for name in ("x", "target"))
    optimizer = torch.optim.Adam(net.parameters(), RATE, fused=True)

    def loss_of(x, target):
        return torch.nn.functional.cross_entropy(net(x), target)

    if compiled:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad()
        loss = loss_of(x, target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def one(request, engine, before, imported):
    """What an engine does, in this process, whose library took `imported` seconds to import and is counted in memory from `before` on."""
    clock = clock_of(request["cpu"])
    start = clock()
    step = onnxc_step(request) if engine == "onnxc" else torch_step(request, engine == "compile")
    losses = [step()]
    first = clock() - start + imported
    while len(losses) < LOSSES:
        losses.append(step())
    times, end = [], time.perf_counter() + request["seconds"]
    while len(times) < 3 or time.perf_counter() < end:
        begin = clock()
        step()
        times.append(clock() - begin)
    return {"ms": min(times) * 1e3, "first_ms": first * 1e3, "bytes": memory("VmHWM") - before, "losses": losses}


def clock_of(cpu):
    return time.process_time if cpu else time.perf_counter


def serve(engine, cpu):
    """Imports the library of an engine once; a copy of this process for each request on standard input replies to it."""
    import numpy as np  # Not counted: all of them need it.

    sys.path.insert(0, str(ROOT / "runtime-support/python"))
    before, clock = resident(), clock_of(cpu)
    start = clock()
    __import__("onnxc" if engine == "onnxc" else "torch")
    imported = clock() - start
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = request["cache"]
            Path(request["reply"]).write_text(json.dumps(one(request, engine, before, imported)))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Engine:
    """A process that serves an engine."""

    def __init__(self, name, threads, cpu):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", name] + ["--cpu-time"] * cpu
        self.name = name
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request, folder):
        reply = folder / f"{self.name}.json"
        self.process.stdin.write(json.dumps({**request, "reply": str(reply), "cache": str(folder / "inductor")}) + "\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline().strip()
        if code != "0":
            sys.exit(f"{request['network']}, {self.name}: ended with {code}")
        return json.loads(reply.read_text())


def prepare(onnxc, folder, name, batch):
    """What the engines share: weights, a batch, and the compiled library."""
    import numpy as np
    import torch

    import train_networks

    torch.manual_seed(3)
    make, draw, shape, classes = train_networks.NETWORKS[name]
    net, x, target = make(), draw(batch), torch.randint(0, classes, shape(batch))
    torch.save(net.state_dict(), folder / "weights.pt")
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "target.npy", target.numpy())
    train_networks.export(net, x, folder / "net.onnx")
    run = lambda *arguments: subprocess.run([onnxc, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    options = ["--learning-rate", str(RATE), "--epsilon", "1e-8"]
    run("train-graph", "net.onnx", "--loss", "cross-entropy", "--optimizer", "adam", *options, "-o", "learner.onnx")
    start = time.perf_counter()
    run("--training", "learner.onnx", "--mcpu", "native", "-o", "learner.so")
    return time.perf_counter() - start


def measure(arguments, engines, name, threads, folder):
    request = {"network": name, "threads": threads, "seconds": arguments.seconds, "cpu": arguments.cpu_time}
    request["library"] = str(folder / "learner.so")
    request.update({what: str(folder / f"{what}.{kind}") for what, kind in [("x", "npy"), ("target", "npy"), ("weights", "pt")]})
    found = {}
    for _ in range(arguments.rounds):
        for engine in engines:
            own = engine.ask(request, folder)
            kept = found.setdefault(engine.name, own)
            for figure in ("ms", "first_ms"):
                kept[figure] = min(kept[figure], own[figure])
    return found


def main():
    parser = argparse.ArgumentParser()
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--onnxc")
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--serve")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.cpu_time)
        return
    import train_networks

    onnxc = os.path.abspath(arguments.onnxc)
    peers = [engine for engine in arguments.engines if engine != "onnxc"]
    heads = [f"{engine} ms" for engine in arguments.engines] + ["ratio"] + [f"{engine} MB" for engine in arguments.engines]
    heads += [f"{engine} first s" for engine in arguments.engines] + ["library MB", "compile s", "losses"]
    print("| network | batch | threads | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * (len(heads) + 2))
    cpu = arguments.cpu_time
    engines = {threads: [Engine(name, threads, cpu) for name in arguments.engines] for threads in arguments.threads}
    ratios, wrong = [], False
    for name in arguments.networks or list(train_networks.NETWORKS):
        for batch in arguments.batch:
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                compiling = prepare(onnxc, folder, name, batch)
                for threads in arguments.threads:
                    found = measure(arguments, engines[threads], name, threads, folder)
                    values = [found[engine] for engine in arguments.engines]
                    cells = [f"{own['ms']:.3g}" for own in values]
                    ratio, apart = math.nan, math.nan
                    if peers and "onnxc" in found:
                        ratio = min(found[engine]["ms"] for engine in peers) / found["onnxc"]["ms"]
                        ratios.append(ratio)
                        theirs = found[peers[0]]["losses"]
                        apart = max(abs(a - b) / abs(b) for a, b in zip(found["onnxc"]["losses"], theirs))
                        wrong |= not apart < TOLERANCE
                    cells += [f"{ratio:.2f}"] + [f"{own['bytes'] / 1e6:.1f}" for own in values]
                    cells += [f"{own['first_ms'] / 1e3:.3g}" for own in values]
                    cells += [f"{(folder / 'learner.so').stat().st_size / 1e6:.2f}", f"{compiling:.1f}", f"{apart:.0e}"]
                    print(f"| {name} | {batch} | {threads} | " + " | ".join(cells) + " |", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"\nratios: {mean:.2f} in the geometric mean, {min(ratios):.2f} the least")
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
