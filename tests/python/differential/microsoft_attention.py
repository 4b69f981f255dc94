"""Recipes of the attention family of com.microsoft: `definitions_attention` says what they should give."""

import numpy as np

from microsoft import recipe, start


def reals(n, dims, dtype, constant=0.0, high=1.0):
    return n.any_of(n.rng.uniform(-high, high, dims).astype(dtype), constant=constant)


def mostly_single(n):
    """Types that ONNX Runtime's kernels have, in most cases."""
    kind = "float" if n.chance(0.8) else n.pick("float16", "bfloat16")
    for variable in ("T", "QK"):
        if variable in n.types:
            n.types[variable] = kind
    return n.dtype(0)


def angles(n, count, half, dtype):
    """Cosines and sines of positions: any numbers do."""
    for _ in range(2):
        reals(n, (count, half), dtype, 0.6)


@recipe("RotaryEmbedding")
def rotary(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps = False, 16, 16
    kind = mostly_single(n)
    batch, steps, heads, half = n.integer(1, 3), n.integer(1, 6), n.integer(1, 3), n.integer(1, 8)
    size, whole = 2 * half, True
    if n.chance(0.3):
        whole, size = False, 2 * half + n.integer(0, 6)
        n.attr("rotary_embedding_dim", 2 * half)
    if not whole or n.chance(0.5):
        n.attr("num_heads", heads)
    n.maybe("interleaved", n.integer(0, 1))
    n.maybe("scale", 1.0, 0.2)
    n.maybe("is_packed_batching", 0, 0.2)
    most = steps + n.integer(0, 6)
    reals(n, (batch, heads, steps, size) if n.chance(0.4) else (batch, steps, heads * size), kind)
    if n.chance(0.4):
        n.add(np.array([n.integer(0, most - steps)], np.int64))
    else:
        n.add(n.rng.integers(0, most, (batch, steps)))
    angles(n, most, half, kind)


@recipe("SkipSimplifiedLayerNormalization")
def skip_simplified(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps = False, 32, 32
    kind = mostly_single(n)
    dims = (n.integer(1, 3), n.integer(1, 6), n.integer(2, 20))[n.integer(0, 1):]
    reals(n, dims, kind)
    reals(n, dims if len(dims) == 2 or n.chance(0.7) else n.pick(dims[1:], (1, *dims[1:])), kind)
    reals(n, dims[-1:], kind, 0.8)
    if n.chance(0.5):
        reals(n, dims[-1:], kind, 0.8)
    n.maybe("epsilon", float(np.float32(n.pick(1e-5, 1e-6, 0.1))))


@recipe("GroupQueryAttention")
def group_query(n):
    start(n)
    n.exact = False
    n.types["M"], n.outputs = "int32", 3
    kind = mostly_single(n)
    batch, groups, share = n.integer(1, 3), n.integer(1, 3), n.integer(1, 3)
    heads, size = groups * share, 8 * n.pick(1, 1, 2)
    rotates = n.chance(0.5)
    size = 16 if rotates else size
    form = n.pick("first", "first", "next", "next", "next", "chunk", "room")
    steps = 1 if form == "next" else n.integer(1, 6)
    batch = 1 if form == "chunk" and steps > 1 else batch
    behind = 0 if form == "first" else n.integer(1, 7)
    total, room = behind + steps, behind
    if form == "room":
        # A cache with room for more than there is.
        room = n.integer(1, 4) + steps
        total = steps if n.chance(0.5) else n.integer(steps, room)
        batch = 1 if steps > 1 and total != steps else batch
    last = np.full(batch, total - 1)
    if batch > 1 and n.chance(0.6):
        # Some rows are shorter; one is as long as all are said to be.
        least = 0 if total == steps else steps - 1
        last = n.rng.integers(least, total, batch)
        last[n.integer(0, batch - 1)] = total - 1
    n.attr("num_heads", heads)
    n.attr("kv_num_heads", groups)
    packed = n.chance(0.4)
    if packed:
        reals(n, (batch, steps, (heads + 2 * groups) * size), kind)
        n.omit()
        n.omit()
    else:
        for count in (heads, groups, groups):
            reals(n, (batch, steps, count * size), kind)
    n.types["T_CACHE"] = n.types["T"]
    for _ in range(2):
        if form != "first":
            reals(n, (batch, groups, room, size), kind)
        elif packed:
            # Nothing, or a cache of no tokens.
            reals(n, (batch, groups, 0, size), kind)
        else:
            n.omit()
    n.add(last.astype(np.int32))
    n.add(np.array([total] if n.chance(0.3) else total, np.int32), 1.0 if form == "room" else 0.3)
    if rotates:
        n.attr("do_rotary", 1)
        n.maybe("rotary_interleaved", n.integer(0, 1))
        most = max(total, room) + n.integer(0, 3)
        angles(n, most, 8, kind)
        if n.chance(0.4):
            n.add(n.rng.integers(0, most - steps + 1, (batch, steps)), 0.0)
        else:
            n.omit()
    else:
        for _ in range(3):
            n.omit()
    if n.chance(0.35):
        reals(n, (n.pick(1, batch), n.pick(1, heads), steps, total), kind, high=2.0)
    else:
        n.omit()
    if n.chance(0.2):
        reals(n, (heads,), kind, 0.8, high=2.0)
    else:
        n.omit()
        n.maybe("smooth_softmax", n.pick(0, 1, 1), 0.3)
    if n.chance(0.05):
        n.omit()
        n.omit()
        reals(n, (size,), kind, 0.8)
        reals(n, (size,), kind, 0.8)
        n.maybe("qk_norm_epsilon", float(np.float32(1e-5)))
        n.maybe("k_norm_epsilon", float(np.float32(1e-3)), 0.3)
    if n.chance(0.1):
        n.attr("causal", 0)
    elif n.chance(0.35):
        n.attr("local_window_size", n.integer(1, 6))
    n.maybe("softcap", float(np.float32(n.pick(0.0, 0.5, 3.0, 30.0))), 0.3)
    n.maybe("scale", float(np.float32(n.pick(0.0, 0.3, 1.0))), 0.3)
    if n.chance(0.3):
        n.attr("qk_output", n.integer(1, 2))
        n.outputs = 4


def padding(n, batch, steps, keys):
    """Which keys are seen: their number, or flags of keys or of queries and keys."""
    form = n.pick("", "", "", "length", "starts", "keys", "queries")
    if form in ("length", "starts"):
        lengths = n.rng.integers(1, keys + 1, batch)
        # What follows the lengths is of no use beside them.
        more = np.zeros(2 * batch + 2 if form == "starts" else 0, np.int64)
        n.add(np.concatenate([lengths, more]).astype(np.int32))
    elif form in ("keys", "queries"):
        flags = (n.rng.random((batch, keys) if form == "keys" else (batch, steps, keys)) < 0.7).astype(np.int32)
        flags[..., 0] = 1
        n.add(flags)
    else:
        n.omit()


@recipe("MultiHeadAttention")
def multi_head(n):
    start(n)
    n.exact = False
    n.types["M"], n.outputs = "int32", n.pick(1, 3, 3, 4)
    kind = mostly_single(n)
    batch, heads, size, steps = n.integer(1, 3), n.integer(1, 3), n.integer(1, 8), n.integer(1, 6)
    form = n.pick("apart", "apart", "apart", "self", "encoder", "pairs", "triples")
    keys = steps if form in ("self", "triples") else n.integer(1, 7)
    of_values = n.integer(1, 8) if form == "apart" and n.chance(0.3) else size
    n.attr("num_heads", heads)
    n.maybe("unidirectional", n.integer(0, 1), 0.5)
    n.maybe("scale", float(np.float32(n.rng.uniform(0.1, 1))), 0.2)
    n.maybe("mask_filter_value", n.pick(-10000.0, -1000.0), 0.2)
    behind = n.integer(0, 4) if form in ("apart", "self") and n.chance(0.5) else None
    if form == "triples":
        reals(n, (batch, steps, heads, 3, size), kind)
        n.omit()
        n.omit()
    else:
        reals(n, (batch, steps, heads * size), kind)
        if form == "pairs":
            reals(n, (batch, keys, heads, 2, size), kind)
            n.omit()
        elif form == "encoder":
            reals(n, (batch, heads, keys, size), kind)
            reals(n, (batch, heads, keys, size), kind)
        else:
            reals(n, (batch, keys, heads * size), kind)
            reals(n, (batch, keys, heads * of_values), kind)
    if form != "pairs" and n.chance(0.4):
        reals(n, (heads * (2 * size + of_values),), kind, 0.8)
    else:
        n.omit()
    total = keys + (behind or 0)
    padding(n, batch, steps, total)
    if n.chance(0.35):
        reals(n, (n.pick(1, batch), n.pick(1, heads), steps, total), kind, high=2.0)
    else:
        n.omit()
    if behind is not None:
        n.outputs = max(n.outputs, 3)
        reals(n, (batch, heads, behind, size), kind)
        reals(n, (batch, heads, behind, of_values), kind)
