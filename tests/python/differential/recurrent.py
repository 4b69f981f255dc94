"""Recipes of recurrent layers."""

import numpy as np

from elementwise import recipe
from sums import sums

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@recipe("RNN", "GRU", "LSTM")
def recurrent(n):
    sums(n, 64)
    gates = GATES[n.op]
    steps, batch, width, hidden = n.integer(1, 4), n.integer(1, 3), n.integer(1, 5), n.integer(1, 5)
    direction = n.maybe("direction", n.pick("forward", "reverse", "bidirectional")) or "forward"
    count = 2 if direction == "bidirectional" else 1
    layout = n.maybe("layout", n.integer(0, 1), 0.4) or 0
    n.attr("hidden_size", hidden)
    n.shaped((batch, steps, width) if layout else (steps, batch, width))
    n.data((count, gates * hidden, width), -1, 1, at=1, constant=0.5)
    n.data((count, gates * hidden, hidden), -1, 1, at=2, constant=0.5)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    optional = [
        lambda: n.data((count, 2 * gates * hidden), -1, 1, at=3),
        lambda: n.add(n.rng.integers(1, steps + 1, batch).astype(np.int32)),
        lambda: n.data(state, -1, 1, at=5),
    ]
    if n.op == "LSTM":
        optional += [lambda: n.data(state, -1, 1, at=6), lambda: n.data((count, 3 * hidden), -1, 1, at=7)]
    given = [n.chance(0.4) for _ in optional]
    for at, add in enumerate(optional):
        if given[at]:
            add()
        elif any(given[at:]):
            n.omit()
    n.maybe("clip", 2.0, 0.2)
    n.maybe("linear_before_reset", n.integer(0, 1))
    n.maybe("input_forget", n.integer(0, 1), 0.2)
    if n.has("output_sequence"):
        n.attr("output_sequence", 1)
    n.outputs = n.integer(1, 3 if n.op == "LSTM" else 2)
