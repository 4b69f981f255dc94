"""A graph with its sets of inputs, run in every way and judged."""

import re
from dataclasses import dataclass, field

import numpy as np

import client
import halves
import items
import values
from case import Close, Skip
from compare import Judge, apart
from freedom import endless, undefined
from model import Dress, Writer, is_asked, unlike_results

#: Operators with rules for pairs of special values, which have to meet.
PAIRED = {"Pow", "Mod"}
#: Statuses that only the checks before a run give: outputs must be as they were. Sizes may overflow later, too.
CHECKED = range(1, 10)


#: Nodes that read no element of a tensor.
SIZES = {"Shape", "Size", "OptionalHasElement"}


def is_of_index(error):
    """Whether an operator fails as an index is beyond its axis."""
    text = str(error)
    return "index" in text and "out of bounds" in text or "non-empty take from an empty axes" in text


class GivesUp(Exception):
    """What the oracle does not compute, as it is too much."""


@dataclass
class Inputs:
    """Leaves of one run, and what the oracle makes of them; a value is absent where the oracle fails."""
    kind: str
    leaves: dict
    arrays: dict = field(default_factory=dict)
    #: Why values are absent.
    missing: str = ""
    #: Values that the specification leaves open.
    opened: set = field(default_factory=set)
    #: Whether they are absent because an operator refuses its operands, and not because the oracle does not know.
    refused: bool = False
    #: Where it refuses an index beyond its axis, the values that have elements to read by it.
    beyond: set | None = None
    #: Whether branches of unlike ranks are those that the oracle does not compute: ways are held against the interpreter.
    turned: bool = False


@dataclass
class Failure:
    way: str
    set: int
    #: crash, hang, panic, internal, broken, refused, wrong, accepted, disagree
    kind: str
    text: str

    def like(self, other):
        """Whether another failure is of the same cause, judging by its text."""
        if self.kind not in ("refused", "internal", "panic"):
            return self.kind == other.kind
        plain = lambda text: re.sub("[0-9]+", "", text)[:40]
        return self.kind == other.kind and plain(self.text) == plain(other.text)


class Trial:
    def __init__(self, graph, dress, sets):
        self.graph, self.dress, self.sets = graph, dress, sets
        #: A negative case: shapes that contradict each other.
        self.negative = False
        #: Sizes that the model does not declare: symbols of their own, by input and axis.
        self.hidden = {}
        #: Whether loops that nobody reads are in the model.
        self.vain = True

    def evaluate(self, leaves, change=lambda _, results: results, before=lambda _, arrays: arrays, missing=None, opened=None,
                 wide=False):
        """All values for these leaves; without those that the oracle fails at and what depends on them. `before` and
        `change` may alter what a node reads and gives. With `wide`, floats of 16 bits are not rounded between nodes."""
        arrays = dict(leaves)
        for vertex in self.graph.vertices:
            if opened is not None and opened.intersection(vertex.inputs):
                opened.update(vertex.outputs)
            if any(name and name not in arrays for name in vertex.inputs):
                continue
            if opened is not None and undefined(vertex, arrays):
                opened.update(vertex.outputs)
            try:
                if endless(vertex, arrays):
                    raise GivesUp("endless")
                results = self.results(vertex, before(vertex, arrays), wide)
                if any(part.size > 1 << 16 for result in results for part in items.tensors(result)):
                    raise GivesUp("values grew")
            except Exception as error:  # The reference fails in many ways.
                if missing is not None:
                    missing.append((vertex, error))
                if opened is not None and isinstance(error, Close):
                    opened.update(vertex.outputs)
                continue
            arrays.update(zip(vertex.outputs, change(vertex, results)))
        return arrays

    def results(self, vertex, arrays, wide):
        if wide:
            try:
                return halves.evaluate(vertex, arrays, self.graph.opset)
            except Exception:  # No rule for wider operands: they are rounded.
                arrays = halves.rounded(arrays, self.graph.arrays)
        return vertex.evaluate(arrays, self.graph.opset)

    def prepare(self):
        """Has the oracle compute all sets; sets that ask for endless work are left out."""
        for one in self.sets:
            missing, one.opened = [], set()
            one.arrays = self.evaluate(one.leaves, missing=missing, opened=one.opened)
            for vertex, error in missing[:1]:
                one.missing = f"{vertex.op}: {type(error).__name__}: {str(error)[:80]}"
                one.refused = not isinstance(error, (GivesUp, Skip))
                one.beyond = self.dependent(vertex.outputs) if is_of_index(error) else None
            for name in unlike_results(self.graph, self.dress) if one.turned else ():
                one.arrays.pop(name, None)
        self.sets = [one for one in self.sets if not any(endless(vertex, one.arrays) for vertex in self.graph.vertices)]

    def dependent(self, names):
        """These values, and those whose elements depend on theirs."""
        found = set(names)
        for vertex in self.graph.vertices:
            if vertex.op not in SIZES and found.intersection(vertex.inputs):
                found.update(vertex.outputs)
        return found

    def spares(self, one, outputs):
        """Whether the oracle refuses an index beyond its axis that no element of these outputs depends on. It then need not be read."""
        has_elements = lambda value: any(part.size for part in items.tensors(value))
        return one.beyond is not None and not any(
            name in one.beyond and has_elements(got) for name, got in zip(self.graph.outputs, outputs))

    def writer(self):
        writer = Writer(self.graph, self.dress)
        writer.hidden, writer.vain = self.hidden, self.vain
        return writer, writer.model()

    def ways(self):
        every = list(range(len(self.sets)))
        # What has the sizes of the first set.
        sized = [at for at in every if self.sets[at].kind in ("plain", "special")]
        ways = [
            client.way("O3", "native", 3, every), client.way("128", "native", 3, every, width=128),
            client.way("baseline", "x86-64", 3, every), client.way("O0", "native", 0, every),
            client.way("interpreter", "interpreter", 0, every),
        ]
        if self.dress.symbols and not self.negative:
            pins = [(symbol, size) for size, symbol in self.dress.symbols.items()]
            ways.append(client.way("pinned", "native", 3, sized, pins=pins))
        if halves.reach(self.graph):
            ways.append(client.way("exact", "native", 3, every, exact=True))
        return ways

    def feeds(self, writer):
        """The inputs of each set: sequences and optionals as the tensors that they are made of."""
        parts = lambda one: [(name, part) for name in writer.inputs for part in items.packed(one.leaves[name], self.graph.arrays[name])]
        return [parts(one) + writer.conditions(one.turned) for one in self.sets]

    def run(self, worker, ways=None):
        """Failures, and what the worker says, None where its process ended."""
        writer, model = self.writer()
        ways = ways or self.ways()
        used = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
        for way in ways:
            way["pins"] = [pin for pin in way["pins"] if pin[0] in used]
        reply = worker.ask(model.SerializeToString(), ways, self.feeds(writer))
        if isinstance(reply, str):
            kind = reply.split(":")[0]
            return [Failure("", -1, kind, reply)], None
        for run in (run for answer in reply for run in answer["runs"] if "outputs" in run):
            given = iter(run["outputs"])
            run["outputs"] = [items.unpacked(given, self.graph.arrays[name]) for name in self.graph.outputs]
        return self.judge(ways, reply), reply

    def judge(self, ways, reply):
        wide = bool(halves.reach(self.graph))
        judges = {free: [Judge(self, one, free) for one in self.sets] for free in {False, wide}}
        failures = []
        for way, answer in zip(ways, reply):
            if answer.get("failure"):
                kind, text = answer["failure"]
                if kind == "panic" or "internal" in kind:
                    failures.append(Failure(way["name"], -1, kind.split()[0], text))
                elif not self.negative and "unsupported" not in kind:
                    failures.append(Failure(way["name"], -1, "refused", text))
                continue
            free = wide and way["level"] > 0 and not way["exact"]
            for at, run in zip(way["sets"], answer["runs"]):
                failure = self.judge_run(judges[free][at], run)
                if failure:
                    failures.append(Failure(way["name"], at, *failure))
        return failures or self.disagreements(ways, reply)

    def disagreements(self, ways, reply):
        """Where the oracle knows nothing, the ways are held against the interpreter's."""
        failures = []
        for at, one in enumerate(self.sets):
            runs = {way["name"]: answer["runs"][way["sets"].index(at)]
                    for way, answer in zip(ways, reply) if not answer.get("failure") and at in way["sets"]}
            other = runs.get("interpreter")
            for name, run in runs.items() if other else ():
                text = self.unlike(one, run, other)
                if text:
                    failures.append(Failure(name, at, "disagree", text))
        return failures

    def unlike(self, one, run, other):
        """How two runs end, where they end in unlike ways; how values differ that the oracle does not know."""
        if "outputs" not in run or "outputs" not in other:
            ends = [str(each.get("refused", "outputs")) for each in (run, other)]
            given = [each["outputs"] for each in (run, other) if "outputs" in each]
            return " and ".join(ends) if given and not self.spares(one, given[0]) else ""
        for name, got, wanted in zip(self.graph.outputs, run["outputs"], other["outputs"]):
            text = apart(got, wanted) if name not in one.arrays and name not in one.opened else ""
            if text:
                return f"{name} {text}"
        return ""

    def is_empty(self, one):
        """Whether a leaf has no elements, which the oracle does not expect of many operators."""
        return any(part.size == 0 for value in one.leaves.values() for part in items.tensors(value))

    def judge_run(self, judge, run):
        one = judge.set
        if "broken" in run:
            return "broken", run["broken"]
        if "refused" in run:
            refusal = run["refused"]
            text = f"status {refusal['status']}: {refusal['message']}"
            if not refusal["untouched"] and refusal["status"] in CHECKED:
                return "broken", f"outputs written, {text}"
            open_ = one.missing or one.kind in ("resized", "decided") or self.negative or one.opened
            return None if open_ else ("refused", text)
        refused = one.refused and self.negative and not self.is_empty(one) and not self.spares(one, run["outputs"])
        for name, got in zip(self.graph.outputs, run["outputs"]):
            if name in one.opened:
                continue
            if one.arrays.get(name) is None and refused:
                return "accepted", f"{name} where {one.missing}"
            text = judge.difference(name, got)
            if text:
                return "wrong", f"{name} {text}"
        return None


def resized(array, symbols, sizes):
    """An array with other sizes: cut, or repeated."""
    for axis, size in enumerate(array.shape):
        wanted = sizes.get(symbols.get(size), size)
        if wanted != size:
            array = np.take(array, np.arange(wanted) % max(size, 1), axis) if size else array
    return array


def special_values(kind):
    """Texts; or elements of a float type that rules are made for. None is so large that a sum of a few overflows: it would depend on
    the order of the terms."""
    if kind == values.STRING:
        return np.array(values.WORDS + ("0.1", "1e-40", "-inf", "2.5", "a" * 300, "\u0301", "\U0001f1e9\U0001f1ea"), object)
    large = {"float": 1e15, "double": 1e60, "float16": 90.0, "bfloat16": 1e15}[kind]
    tiny = {"float": 1e-40, "double": 5e-310, "float16": 1e-7, "bfloat16": 1e-40}[kind]
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, large, -large, 1.0, -1.0, 0.5, 2.5]
    return np.array(edges, np.float64).astype(values.DTYPES[kind])


def with_edges(array, edges, share, rng):
    marked = rng.random(array.shape) < share
    return np.where(marked, edges[rng.integers(0, len(edges), array.shape)], array).astype(array.dtype)


def relisted(sequence, rng):
    """A sequence with fewer elements or more, at times. Where ranks are unlike, positions keep theirs, which results may declare."""
    elements = list(sequence.elements)
    alike = len({np.ndim(element) for element in elements}) <= 1
    if rng.random() < 0.3 and alike:
        elements = elements[:-1] if rng.random() < 0.5 else elements + elements[:1]
    return items.Sequence(sequence.kind, elements)


def input_sets(graph, dress, rng):
    """The values it was drawn with, special ones, and other sizes where it has symbols."""
    leaves = {name: graph.arrays[name] for name in graph.leaves}
    sets = [Inputs("plain", leaves)]
    special = dict(leaves)
    paired = {name for vertex in graph.vertices if vertex.op in PAIRED for name in vertex.inputs}
    for name, how in graph.leaves.items():
        kind = items.kind_of(leaves[name])
        if how == "input" and (kind in values.FLOATS or kind == values.STRING):
            share = 0.7 if name in paired else 0.15
            special[name] = items.mapped(lambda array: with_edges(array, special_values(kind), share, rng), leaves[name])
        if how == "input" and items.is_other(leaves[name]):
            special[name] = relisted(special[name], rng)
    sets.append(Inputs("special", special))
    if any(block.unlike and is_asked(block) for block in dress.blocks):
        sets.append(Inputs("plain", leaves, turned=True))
    if dress.symbols:
        choices = [0, 0, 1, 2, 3, 5, 7, 9, 17]
        sizes = {symbol: choices[int(rng.integers(0, len(choices)))] for symbol in dress.symbols.values()}
        if rng.random() < 0.5:
            # One symbol empty, the others as they were.
            sizes = {list(sizes)[int(rng.integers(0, len(sizes)))]: 0}
        other = {
            name: items.mapped(lambda array: resized(array, dress.symbols, sizes), value) if graph.leaves[name] == "input" else value
            for name, value in leaves.items()
        }
        sets.append(Inputs("resized", other))
    return sets
