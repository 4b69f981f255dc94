"""What the judge of results accepts, and what not: results of stored graphs, right and wrong ones."""

import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "differential"))

import quantized_models
import store
from compare import Judge

GRAPHS = Path(__file__).parents[2] / "graphs"


def accepted(graph, result, wide):
    trial = store.load(GRAPHS / f"{graph}.json")
    return not Judge(trial, trial.sets[0], wide).difference(trial.graph.outputs[0], result)


def main():
    half = lambda number: np.array(number, np.float16)
    # Cos(Pow(x, y)), whose power is beyond f16, and Log(Mul(x, x)), whose product is 0 in f16.
    for graph, exact, wide in (("pow_beyond_half", half(np.nan), half(0.523)), ("product_below_half", half(-np.inf), half(-18.42))):
        assert accepted(graph, exact, wide=False) and accepted(graph, exact, wide=True)
        assert accepted(graph, wide, wide=True) and not accepted(graph, wide, wide=False)
    # Cos(Pow(x, y)) whose power f16 has: free to be rounded, not to be another.
    trial = store.load(GRAPHS / "pow_beyond_half.json")
    trial.sets[0].leaves = {name: half(1.5) for name in trial.sets[0].leaves}
    trial.prepare()
    right, = (trial.sets[0].arrays[name] for name in trial.graph.outputs)
    for wide in (False, True):
        judge = Judge(trial, trial.sets[0], wide)
        assert not judge.difference(trial.graph.outputs[0], right)
        assert judge.difference(trial.graph.outputs[0], half(right + 0.5)), "an error that rounding does not explain"
        assert judge.difference(trial.graph.outputs[0], half(np.nan))
    steps = np.array([3, 250], np.uint8)
    assert not quantized_models.steps_off(steps, np.array([4, 249], np.uint8))
    assert quantized_models.steps_off(steps, np.array([3, 252], np.uint8))
    assert quantized_models.steps_off(steps, np.array([3, 0], np.uint8)), "a step is none around the end of the type"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    main()
