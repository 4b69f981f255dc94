"""Random graphs: draws them, has them compiled and run in every way, judges the results and makes failing graphs small.

main.py --worker PROGRAM --seed S --first N --count C: prints a JSON line per graph. A graph depends on the seed and its
number alone. Some have strings, sequences and optionals, and operators of com.microsoft: see `draw`. Of eight graphs one has
shapes that contradict each other, see `negative`; of 32 one is a program of nested control flow, see
`../differential/program.py`. With --quantized all are quantised models, see `quantized_models`; with --exact all are of f32, and
results are compared between levels bit for bit, see `exact`.
"""

import argparse
import copy
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parent.parent / "differential"))

import client
import draw
import exact
import generate
import items
import microsoft
import negative
import oracle
import quantized_models
import store
import values
from case import Skip
from client import Worker
from compare import Judge
from graph import Graph
from model import Dress, dress
from shrink import Shrinker
from trial import Failure, Inputs, Trial, input_sets

#: Places among eight and among 32 graphs.
NEGATIVE, PROGRAM = 7, 5
ATTEMPTS = 20
#: The newest operator set that ONNX Runtime takes.
PEER_OPSET = 25


def draw_trial(seed, number):
    """The trial of this number."""
    rng = np.random.default_rng([seed, number])
    for _ in range(ATTEMPTS):
        try:
            contradicts = number % 8 == NEGATIVE
            drawn = draw.graph_of(rng, wild=contradicts)
            how = dress(drawn, rng)
            if contradicts:
                return negative.contradict(drawn, how, rng)
            trial = negative.decide(drawn, how, rng) if rng.random() < 0.08 else None
            return trial or Trial(drawn, how, input_sets(drawn, how, rng))
        except Skip:
            continue
    raise Skip("nothing drawn")


def peer(trial):
    """What ONNX Runtime says of the first set: agrees, refuses, or differs, and how."""
    if trial.graph.opset > PEER_OPSET:
        return "refuses", ""
    if any(vertex.node.domain == microsoft.DOMAIN for vertex in trial.graph.vertices):
        # It does not survive all that its own operators are given.
        how, _, text = oracle.apart(lambda: "\n".join(opinion(trial))).partition("\n")
        return ("crashes", "") if how.startswith(oracle.ENDS) else (how, text)
    return opinion(trial)


def opinion(trial):
    writer, model = trial.writer()
    feeds = {name: items.to_peer(trial.sets[0].leaves[name]) for name in writer.inputs} | dict(writer.own_inputs)
    try:
        results = oracle.session(model).run(None, feeds)
    except Exception as error:  # It refuses in many ways.
        return "refuses", str(error)[:200]
    text = peer_difference(trial, trial.graph.outputs, results)
    return ("differs", f"{blame(trial)}: {text}") if text else ("agrees", "")


def peer_difference(trial, names, results):
    judge = Judge(trial, trial.sets[0])
    for name, got in zip(names, results):
        wanted = trial.sets[0].arrays.get(name)
        if wanted is None or name in trial.sets[0].opened or got is None and not items.is_other(wanted):
            continue
        got = items.of_peer(got, wanted)
        if not items.is_other(got) and got.dtype != wanted.dtype and got.dtype.itemsize == wanted.dtype.itemsize:
            got = got.view(wanted.dtype)
        text = judge.difference(name, got)
        if text:
            return f"{name} {text}"
    return ""


def blame(trial):
    """The first operator that ONNX Runtime computes otherwise, alone."""
    graph, arrays = trial.graph, trial.sets[0].arrays
    for vertex in graph.vertices:
        if any(name and name not in arrays for name in vertex.inputs + vertex.outputs):
            continue
        one = Graph(graph.opset, graph.rng)
        one.vertices, one.outputs, one.arrays = [vertex], vertex.outputs, arrays
        one.leaves = {name: "input" for name in dict.fromkeys(vertex.inputs) if name}
        alone = Trial(one, Dress(), [Inputs("plain", {name: arrays[name] for name in one.leaves}, arrays, "", trial.sets[0].opened)])
        try:
            feeds = {name: items.to_peer(value) for name, value in alone.sets[0].leaves.items()}
            results = oracle.session(alone.writer()[1]).run(None, feeds)
        except Exception:
            continue
        if peer_difference(alone, vertex.outputs, results):
            return vertex.op
    return "a graph"


def pairs(graph):
    """Neighbouring operators: one reads what the other gives."""
    makers = {name: vertex.op for vertex in graph.vertices for name in vertex.outputs}
    return sorted({f"{makers[name]} {vertex.op}" for vertex in graph.vertices for name in vertex.inputs if name in makers})


def examine(number, seed, worker, options):
    """Runs one graph; gives the line about it."""
    line = {"number": number}
    if number % 32 == PROGRAM:
        return line | program(number, seed, worker, options)
    try:
        trial = draw_trial(seed, number)
    except Skip as skip:
        return line | {"empty": str(skip)}
    graph = trial.graph
    trial.prepare()
    if not trial.sets:
        return line | {"empty": "endless"}
    failures, reply = trial.run(worker)
    line["nodes"], line["negative"] = len(graph.vertices), trial.negative
    line["opset"], line["symbolic"] = graph.opset, bool(trial.dress.symbols)
    line["blocks"] = sorted(block.kind for block in trial.dress.blocks)
    line["operators"] = sorted({vertex.op for vertex in graph.vertices})
    line["types"] = sorted({items.type_name(value) for value in graph.arrays.values()})
    line["pairs"] = pairs(graph)
    if reply:
        line["compiled"] = sum(1 for way in reply if not way.get("failure"))
        line["refused"] = sorted({way["failure"][1].split(";")[0] for way in reply if way.get("failure")})[:1]
        line["group"] = max(reply[0]["groups"], default=0)
        line["statuses"] = sum(1 for way in reply for run in way["runs"] if "refused" in run)
        line["runs"] = sum(len(way["runs"]) for way in reply)
        failures += needless(trial, reply, worker)
    missing = [one.missing for one in trial.sets if one.missing]
    line["oracle"] = missing[0] if missing else ""
    if options.peer and not trial.negative:
        line["peer"], line["peer_text"] = peer(trial)
    if any(failure.kind == "accepted" for failure in failures):
        how, text = peer(trial)
        if how != "refuses":
            failures = [failure for failure in failures if failure.kind != "accepted"]
            line["accepted"] = how
    if failures:
        line["failures"] = [vars(failure) for failure in failures[:8]]
        if options.keep:
            keep(trial, failures, number, worker, options, line)
    return line


def needless(trial, reply, worker):
    """A model that is not supported for the sake of loops that nobody reads."""
    reasons = [way["failure"][1] for way in reply if way.get("failure")]
    if not reasons or trial.negative or not any(block.kind in ("loop", "scan") for block in trial.dress.blocks):
        return []
    without = copy.copy(trial)
    without.vain = False
    _, other = without.run(worker)
    supported = other and not any(way.get("failure") for way in other)
    return [Failure("", -1, "refused", f"for a loop in vain: {reasons[0]}")] if supported else []


def replay(number, path, worker):
    """Runs a stored graph; gives the line about it."""
    trial = store.load(path)
    failures, _ = trial.run(worker)
    line = {"number": number, "small": path.stem, "negative": trial.negative, "nodes": len(trial.graph.vertices)}
    return line | {"failures": [vars(failure) for failure in failures]} if failures else line


def program(number, seed, worker, options):
    """Runs a program of control flow; gives the line about it. Its results are exact."""
    case, subject, reason = generate.draw_case([], seed, number)
    if case is None:
        return {"empty": reason}
    model = case.model()
    ways = [client.way("O3", "native", 3, [0]), client.way("128", "native", 3, [0], width=128),
            client.way("baseline", "x86-64", 3, [0]), client.way("O0", "native", 0, [0]),
            client.way("interpreter", "interpreter", 0, [0])]
    reply = worker.ask(model.SerializeToString(), ways, [case.inputs])
    operators = sorted({node.op_type for node in case.nodes})
    line = {"nodes": len(case.nodes), "operators": operators, "symbolic": bool(case.symbolic), "blocks": ["program"]}
    failures = []
    if isinstance(reply, str):
        failures.append({"way": "", "set": 0, "kind": reply.split(":")[0], "text": reply})
    else:
        line["runs"] = sum(len(answer["runs"]) for answer in reply)
        line["group"] = max(reply[0]["groups"], default=0)
        line["refused"] = [answer["failure"][1] for answer in reply if answer.get("failure")][:1]
        for way, answer in zip(ways, reply):
            failures += [{"way": way["name"], "set": 0} | failure for failure in differences(case, answer)]
    if failures:
        line["failures"] = failures[:8]
        if options.keep:
            generate.write(case, options.keep / f"{number}")
    return line


def differences(case, answer):
    """How a program's results in one way are not as they should."""
    if answer.get("failure"):
        kind, text = answer["failure"]
        return [] if "unsupported" in kind else [{"kind": "refused", "text": text}]
    run = answer["runs"][0]
    if "outputs" not in run:
        return [{"kind": next(iter(run)), "text": str(run)}]
    wrong = [name for (name, wanted), got in zip(case.outputs, run["outputs"])
             if got.shape != wanted.shape or got.dtype != wanted.dtype or not np.array_equal(got, wanted, equal_nan=True)]
    return [{"kind": "wrong", "text": f"{name} differs"} for name in wrong]


def keep(trial, failures, number, worker, options, line):
    """Saves the smallest trial that fails so, and what it is about."""
    small, text = trial, failures[0].text
    if options.shrink:
        shrinker = Shrinker(trial, failures[0], worker)
        small, text = shrinker.run(), shrinker.text
    options.keep.mkdir(parents=True, exist_ok=True)
    line["small"] = " ".join(vertex.op for vertex in small.graph.vertices)
    line["small_text"] = text
    store.save(small, options.keep / f"{number}.json", {"failure": vars(failures[0]) | {"text": text}})
    writer, model = small.writer()
    (options.keep / f"{number}.onnx").write_bytes(model.SerializeToString())
    (options.keep / f"{number}.txt").write_text(onnx.printer.to_text(model) + f"\n# {failures[0].kind} {failures[0].way}: {text}\n")
    for one in small.sets:
        folder = options.keep / f"{number}_{one.kind}{'_turned' if one.turned else ''}"
        folder.mkdir(exist_ok=True)
        feeds = [(name, one.leaves[name]) for name in writer.inputs] + writer.conditions(one.turned)
        for at, (name, value) in enumerate(feeds):
            (folder / f"input_{at}.pb").write_bytes(items.proto(value, name).SerializeToString())


def main():
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--quantized", action="store_true", help="draw quantised models")
    parser.add_argument("--exact", action="store_true", help="compare exact results between levels")
    parser.add_argument("--replay", type=Path, help="run the stored graphs of this folder")
    options = parser.parse_args()
    worker = Worker(options.worker)
    if options.replay:
        for number, path in enumerate(sorted(options.replay.glob("*.json"))):
            print(json.dumps(replay(number, path, worker)), flush=True)
        return
    look = quantized_models.examine if options.quantized else exact.examine if options.exact else examine
    for number in range(options.first, options.first + options.count):
        print(json.dumps(look(number, options.seed, worker, options)), flush=True)
    if worker.process:
        worker.stop()


if __name__ == "__main__":
    sys.exit(main())
