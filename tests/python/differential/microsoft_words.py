"""Recipes of operators of com.microsoft for words, tokens and paths: `definitions_words` says what they should give."""

import numpy as np

from case import Skip
from vendor import floats, recipe


def start(n):
    if n.given is not None:
        raise Skip("chain")
    n.edge, n.exact, n.ulps = 0.0, False, 64


@recipe("WordConvEmbedding")
def word_conv(n):
    start(n)
    width, size, filters, letters = n.integer(1, 4), n.integer(1, 5), n.integer(1, 6), n.integer(3, 20)
    words, length = n.integer(1, 5), width + n.integer(0, 5)
    array = n.rng.integers(1, letters, (words, length)).astype(np.int32)
    for row in array:
        row[n.integer(1, length):] = 0
    # Characters of no number within a word count less.
    if n.chance(0.2):
        array[0, n.integer(0 if n.chance(0.1) else 1, length):][:1] = 0
    n.add(array)
    floats(n, (filters, 1, width, size))
    floats(n, (filters,))
    floats(n, (letters, size))
    n.maybe("embedding_size", filters, 0.4)
    n.maybe("conv_window_size", width, 0.4)
    n.maybe("char_embedding_size", size, 0.4)


@recipe("MaxpoolWithMask")
def max_pool(n):
    start(n)
    n.exact, n.ulps = True, 0
    rank = n.pick(1, 1, 2, 2, 3)
    spatial = tuple(n.integer(2, 6) for _ in range(rank))
    kernel = [n.integer(1, min(3, size)) for size in spatial]
    n.attr("kernel_shape", kernel)
    n.maybe("strides", [n.integer(1, 3) for _ in range(rank)], 0.5)
    mode = n.pick("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode == "NOTSET":
        n.maybe("pads", [n.integer(0, kernel[at % rank] - 1) for at in range(2 * rank)], 0.5)
    else:
        n.attr("auto_pad", mode)
    n.maybe("storage_order", 0, 0.2)
    batch, channels = n.integer(1, 2), n.integer(1, 3)
    floats(n, (batch, channels, *spatial))
    lead = n.pick((batch, channels), (1, channels), (1, 1))
    n.add((n.rng.random((*lead, *spatial)) < n.pick(0.6, 0.9)).astype(np.int32))


@recipe("BifurcationDetector")
def bifurcation(n):
    start(n)
    kinds = n.integer(2, 6)
    source = n.rng.integers(0, kinds, n.integer(1, 9))
    current = n.rng.integers(0, kinds, n.integer(1, 6))
    if n.chance(0.6):
        # An end that the source has, too.
        at = n.integer(0, len(source) - 1)
        current = np.concatenate([current, source[at: at + n.integer(1, 3)]])
    previous = n.integer(0, len(source))
    n.add(source)
    n.add(current)
    n.add(np.array(previous if n.chance(0.5) else [previous]))
    if n.chance(0.7):
        predicted = np.append(source[previous:], n.integer(0, kinds - 1))
        if n.chance(0.7):
            predicted[n.integer(0, len(predicted) - 1)] = n.integer(0, kinds - 1)
        n.add(predicted)
    least = n.integer(1, 3)
    n.attr("min_ngram_size", least)
    n.attr("max_ngram_size", least + n.integer(0, 3))
    n.outputs = 2


@recipe("DynamicTimeWarping")
def warping(n):
    start(n)
    dims = (n.integer(1, 8), n.integer(1, 8))
    costs = n.rng.integers(-4, 5, dims) if n.chance(0.3) else n.rng.uniform(-3, 3, dims)
    n.add((costs if n.chance(0.6) else costs[None]).astype(np.float32))


@recipe("RemovePadding")
def remove_padding(n):
    start(n)
    batch, length = n.integer(1, 4), n.integer(1, 6)
    n.data((batch, length, n.integer(1, 5)))
    counts = n.rng.integers(0 if n.chance(0.2) else 1, length + 1, batch).astype(np.int32)
    n.add(counts)
    n.outputs = 4


@recipe("AttnLSTM")
def attended_lstm(n):
    start(n)
    kind = np.float64 if n.types["T"] == "double" and n.chance(0.3) else np.float32
    n.types["T"] = "double" if kind == np.float64 else "float"
    way = n.pick("forward", "reverse", "bidirectional")
    directions, hidden = 2 if way == "bidirectional" else 1, n.integer(1, 4)
    steps, batch, size = n.integer(1, 4), n.integer(1, 3), n.integer(1, 4)
    places, depth, wide, of_layer = n.integer(1, 4), n.integer(1, 3), n.integer(1, 4), n.integer(1, 4)
    layered = n.chance(0.5)
    of = lambda *dims: floats(n, dims, -1.0, 1.0, kind)
    maybe = lambda draw: draw() if n.chance(0.5) else n.omit()
    of(steps, batch, size)
    of(directions, 4 * hidden, size + (of_layer if layered else depth))
    of(directions, 4 * hidden, hidden)
    maybe(lambda: of(directions, 8 * hidden))
    maybe(lambda: n.add(n.rng.integers(1, steps + 1, batch).astype(np.int32)))
    maybe(lambda: of(directions, batch, hidden))
    maybe(lambda: of(directions, batch, hidden))
    maybe(lambda: of(directions, 3 * hidden))
    of(directions, hidden, wide)
    of(directions, depth, wide)
    of(directions, wide)
    of(batch, places, depth)
    maybe(lambda: n.add(n.rng.integers(1, places + 1, batch).astype(np.int32)))
    if layered:
        of(directions, depth + hidden, of_layer)
    n.attr("hidden_size", hidden)
    n.attr("direction", way)
    n.attr("activations", ["sigmoid", "tanh", "tanh"] * directions)
    n.maybe("input_forget", 1, 0.2)
    n.maybe("clip", 0.5, 0.2)
    n.outputs = 3
