"""Makes a failing trial small: fewer outputs, nodes, blocks, symbols and elements, as long as it fails in the same way."""

import copy

import numpy as np

import items
from graph import Graph
from model import Dress
from trial import Inputs, Trial, resized

#: Runs of the failing way that a shrink may take.
MOST_RUNS = 400


class Shrinker:
    def __init__(self, trial, failure, worker):
        self.best, self.failure, self.worker, self.left = trial, failure, worker, MOST_RUNS
        self.text = failure.text

    def fails(self, trial):
        """Whether a smaller trial fails as the whole did."""
        if self.left <= 0:
            return False
        self.left -= 1
        ways = [way for way in trial.ways() if self.failure.way in ("", way["name"])]
        if not ways:
            return False
        try:
            failures, _ = trial.run(self.worker, ways)
        except Exception:  # A model that cannot be written is no smaller one.
            return False
        found = next((failure for failure in failures if failure.like(self.failure)), None)
        if found:
            self.text = found.text
        return found is not None

    def attempt(self, trial):
        if trial is not None and self.fails(trial):
            self.best = trial
            return True
        return False

    def run(self):
        self.one_set()
        self.attempt(self.dressed(Dress()))
        self.attempt(self.dressed(Dress(self.best.dress.symbols, [], set(), False)))
        self.attempt(self.dressed(Dress({}, self.best.dress.blocks, self.best.dress.as_nodes, self.best.dress.declared)))
        self.outputs()
        before = None
        while before != self.measure() and self.left > 0:
            before = self.measure()
            if not self.best.dress.blocks:
                self.nodes()
            self.outputs()
        self.sizes()
        return self.best

    def measure(self):
        graph = self.best.graph
        return len(graph.vertices), len(graph.outputs), len(graph.leaves)

    def one_set(self):
        if self.failure.set < 0:
            return
        one = self.best.sets[self.failure.set]
        self.attempt(self.copy(self.best.graph, self.best.dress, [one]))

    def copy(self, graph, dress, sets):
        trial = Trial(graph, dress, sets)
        trial.negative, trial.hidden = self.best.negative, self.best.hidden
        return trial

    def dressed(self, dress):
        return self.copy(self.best.graph, dress, self.best.sets)

    def part(self, vertices, outputs):
        """The trial of these nodes alone; values that no node gives any more are inputs."""
        old = self.best.graph
        graph = Graph(old.opset, old.rng)
        needed, kept = set(outputs), []
        for vertex in reversed(vertices):
            if needed.intersection(vertex.outputs):
                kept.append(vertex)
                needed.update(name for name in vertex.inputs if name)
        graph.vertices, graph.outputs, graph.arrays, graph.count = kept[::-1], outputs, dict(old.arrays), old.count
        made = {name for vertex in graph.vertices for name in vertex.outputs}
        for name in old.arrays:
            if name in needed and name not in made:
                graph.leaves[name] = old.leaves.get(name, "input")
        sets = []
        for one in self.best.sets:
            if any(name not in one.arrays for name in graph.leaves):
                return None
            leaves = {name: one.arrays[name] for name in graph.leaves}
            sets.append(Inputs(one.kind, leaves, one.arrays, one.missing, one.opened, one.refused, one.beyond, one.turned))
        return self.copy(graph, self.best.dress, sets) if graph.vertices else None

    def outputs(self):
        graph = self.best.graph
        made = [name for vertex in graph.vertices for name in vertex.outputs]
        if self.best.dress.blocks:
            made = graph.outputs
        for name in dict.fromkeys([*made, *graph.outputs]):
            if [name] != graph.outputs and self.attempt(self.part_with(graph.vertices, [name])):
                return
        for name in list(graph.outputs):
            rest = [other for other in self.best.graph.outputs if other != name]
            if rest:
                self.attempt(self.part_with(self.best.graph.vertices, rest))

    def part_with(self, vertices, outputs):
        if self.best.dress.blocks:
            # Blocks count vertices: all of them stay.
            old = self.best.graph
            graph = copy.copy(old)
            graph.outputs = outputs
            return self.copy(graph, self.best.dress, self.best.sets)
        return self.part(vertices, outputs)

    def nodes(self):
        """Takes out nodes, many at once at first; what they gave becomes inputs."""
        width = max(1, len(self.best.graph.vertices) // 2)
        while width:
            at = 0
            while at < len(self.best.graph.vertices):
                vertices = self.best.graph.vertices
                rest = vertices[:at] + vertices[at + width:]
                made = {name for vertex in rest for name in vertex.outputs}
                outputs = [name for name in self.best.graph.outputs if name in made]
                if not (rest and outputs and self.attempt(self.part(rest, outputs))):
                    at += width
            width //= 2

    def sizes(self):
        """Smaller sizes, each wherever it occurs."""
        for size in sorted({size for value in self.best.graph.arrays.values() for array in items.tensors(value)
                            for size in array.shape}, reverse=True):
            for smaller in (1, 2, size // 2):
                if 0 < smaller < size and self.attempt(self.sized(size, smaller)):
                    break

    def sized(self, size, smaller):
        if self.best.dress.symbols or self.best.negative:
            return None
        old, symbols = self.best.graph, {size: "n"}
        cut = lambda value: items.mapped(lambda array: resized(array, symbols, {"n": smaller}), value)
        graph = copy.copy(old)
        graph.arrays = {name: cut(array) if name in old.leaves else array for name, array in old.arrays.items()}
        sets = [Inputs(one.kind, {name: cut(array) for name, array in one.leaves.items()}, turned=one.turned) for one in self.best.sets]
        trial = self.copy(graph, self.best.dress, sets)
        trial.prepare()
        if any(one.missing for one in sets):
            return None
        graph.arrays.update(sets[0].arrays)
        return trial
