"""What the hunter of cliffs draws, shrinks and calls a cliff."""
import dataclasses

import onnx
from draw import KINDS, MOST_OPERATIONS, Case, build, draw, fits, smaller
from main import LEAST_MS, Figures, Machine, hunt, outputs, shrink, table


def figures(ours, peer, bound):
    found = Figures(bound)
    found.ours, found.peer = ours, peer
    return found


def draws_are_models_and_repeat():
    for kind in KINDS:
        cases = [draw("7", at, [kind]) for at in range(4)]
        assert cases == [draw("7", at, [kind]) for at in range(4)], kind
        assert len(set(cases)) == 4, kind
        for case in cases:
            graph, model = build(case)
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
            assert graph.operations <= 2 * MOST_OPERATIONS, case
            assert bool(graph.sizes) == case.open, case
            assert graph.feeds.keys() == {value.name for value in model.graph.input}, case


def work_is_counted():
    conv = Case("conv", (2, 16, 32, 10, 12, 1), (3, 1, 1, 1, 2))
    graph, model = build(conv)
    assert graph.operations == 2 * 2 * 32 * 16 * 9 * 10 * 12
    assert graph.bytes == 4 * (2 * 16 * 120 + 32 * 16 * 9 + 32)
    assert outputs(model, {}) == 4 * 2 * 32 * 120
    product = Case("matmul", (1, 8, 64, 32), ("weight", False))
    assert build(product)[0].operations == 2 * 8 * 64 * 32
    # Sizes that symbols stand for count, too.
    graph, model = build(dataclasses.replace(product, open=True))
    assert (graph.sizes, outputs(model, {"d8": 8})) == ({8: "d8"}, 4 * 8 * 32)


def a_cliff_is_slow_by_bound_and_peer():
    assert figures(3.0, 1.0, 1.0).is_cliff()
    assert not figures(1.9, 1.0, 1.0).is_cliff()
    assert not figures(3.0, 2.9, 1.0).is_cliff()
    assert not figures(LEAST_MS / 2, LEAST_MS / 100, LEAST_MS / 100).is_cliff()
    assert figures(3.0, 1.0, 1.0).lost() == 1.0 and figures(3.0, 2.5, 0.1).lost() == 0.5


def cases_shrink_to_what_makes_them_slow():
    case = Case("softmax", (4, 64, 100, 777), (-2, True), "f16", 17, 2, True)
    small = shrink(case, lambda less: less.sizes[3] > 90 and less.choices[0] == -2, 1000)
    assert small.choices == (-2, False) and 90 < small.sizes[3] < 200 and small.sizes[:3] == (1, 1, 1), small
    assert (small.dtype, small.threads, small.open) == ("f32", 1, False)
    assert shrink(case, lambda less: False, 1000) == case
    tries = []
    shrink(case, lambda less: tries.append(less) or False, 3)
    assert len(tries) == 3
    assert all(fits(less) for less in smaller(case))


class Engines(Machine):
    """Times of a machine on which products of an odd number of columns are slow."""

    def __init__(self, folder):
        self.folder, self.seconds, self.call_ms = folder, 0, 0.0
        self.peaks = {threads: {"gbytes": 10, "cached_gbytes": 10, "cached_bytes": 0, "gflops": 100} for threads in (1, 2)}

    def peer(self, model, feeds, threads, seconds):
        return 10.0

    def bench(self, model, sizes, threads, seconds, *more):
        columns = onnx.load(model).graph.initializer[0].dims[-1]
        nodes = [{"refusal": "odd columns", "share": 0.9}, {"refusal": "seldom", "share": 0.01}]
        return {"min_ms": 50.0 if columns % 2 and columns > 8 else 1.0, "nodes": nodes}


def cliffs_are_found_and_listed(folder):
    slow = Case("linear", (64, 200, 301), ("matmul", "Relu"), threads=2)
    fast = dataclasses.replace(slow, sizes=(64, 200, 300))
    found, refused, timed = hunt(Engines(folder), [(0, fast), (1, slow), (2, slow)], say=lambda text: None)
    assert [entry[0] for entry in found] == [slow] and not refused and timed["linear"] == 3
    small = found[0][1]
    assert small.sizes[:2] == (1, 1) and small.sizes[2] % 2 and 8 < small.sizes[2] < 301 and small.choices == ("matmul", ""), small
    assert "odd columns" in table(found) and "seldom" not in table(found)


if __name__ == "__main__":
    import pathlib
    import tempfile

    draws_are_models_and_repeat()
    work_is_counted()
    a_cliff_is_slow_by_bound_and_peer()
    cases_shrink_to_what_makes_them_slow()
    with tempfile.TemporaryDirectory() as name:
        cliffs_are_found_and_listed(pathlib.Path(name))
