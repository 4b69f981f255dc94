"""Recipes of the attention family of com.microsoft: `definitions_attention` says what they should give."""

import numpy as np

import microsoft
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
    # Caches of floats, or of integers of `bits` bits.
    bits = n.pick(4, 8) if n.types["T"] == "float" and n.chance(0.2) else None
    n.types["T_CACHE"] = {None: n.types["T"], 8: "int8", 4: "uint8"}[bits]
    for _ in range(2):
        of = (batch, groups, room if form != "first" else 0, size // 2 if bits == 4 else size)
        if form == "first" and not packed and not bits:
            # Nothing, or a cache of no tokens.
            n.omit()
        elif bits:
            microsoft.small(n, of, n.dtype(3), 0.0)
        else:
            reals(n, of, kind)
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
    if bits:
        n.attr("kv_cache_bit_width", bits)
        both = n.pick("PER_TENSOR", "PER_CHANNEL")
        for part in "kv":
            # ONNX Runtime takes one for both.
            per = both if n.chance(0.95) else "PER_TENSOR"
            n.attr(f"{part}_quant_type", per)
            dims = (1,) if per == "PER_TENSOR" else n.pick((1, groups, 1, size), (groups * size,))
            low = 0.005 if bits == 8 else 0.08
            n.add(n.rng.uniform(low, 2 * low, dims).astype(np.float32), 0.8)
    elif n.chance(0.05):
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


@recipe("MRotaryEmbedding")
def multimodal_rotary(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps = False, 16, 16
    kind = mostly_single(n)
    batch, steps, heads = n.integer(1, 3), n.integer(1, 6), n.integer(1, 3)
    layout = n.maybe("mrope_layout", n.integer(0, 1))
    # Where they alternate, time has the most.
    sections = [n.integer(1, 4) for _ in range(3)]
    if layout:
        sections[0] = max(sections) + n.integer(0, 1)
    n.attr("mrope_section", sections)
    half = sum(sections)
    size = 2 * half
    if n.chance(0.3):
        size += n.integer(0, 6)
        n.attr("rotary_embedding_dim", 2 * half)
        n.attr("num_heads", heads)
    elif n.chance(0.85):
        n.attr("num_heads", heads)
    n.maybe("interleaved", n.integer(0, 1))
    most = steps + n.integer(0, 6)
    reals(n, (batch, heads, steps, size) if n.chance(0.4) else (batch, steps, heads * size), kind)
    n.add(n.rng.integers(0, most, (3, batch, steps)))
    angles(n, most, half, kind)


@recipe("GemmaRotaryEmbedding")
def gemma_rotary(n):
    start(n)
    n.exact, n.outputs, n.ulps, n.scale_ulps = False, 2, 8, 8
    batch, steps, size = n.integer(1, 3), n.integer(1, 6), n.integer(1, 9)
    reals(n, (batch, steps, size), np.float32, high=6.0)
    for heads in (n.integer(1, 4), n.integer(1, 4)):
        for _ in range(2):
            reals(n, (batch, heads, steps, size), np.float16)


@recipe("GatedRMSNorm")
def gated_norm(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps = False, 32, 32
    kind = mostly_single(n)
    each = n.integer(1, 9)
    dims = (*n.shape(0, 2, zeros=False), each * n.integer(1, 4))
    reals(n, dims, kind)
    reals(n, (each,), kind, 0.8)
    reals(n, dims, kind, high=3.0)
    n.maybe("activation", n.pick("silu", "swish", "sigmoid"))
    n.maybe("epsilon", float(np.float32(n.pick(1e-5, 1e-6, 0.1))))


@recipe("LinearAttention")
def linear(n):
    start(n)
    n.exact, n.outputs, n.ulps, n.scale_ulps = False, 2, 64, 128
    kind = mostly_single(n)
    n.types["S"] = n.types["T"]
    groups = n.integer(1, 3)
    heads = groups * n.integer(1, 3)
    batch, steps, size, wide = n.integer(1, 3), n.integer(1, 6), n.integer(1, 6), n.integer(1, 6)
    n.attr("q_num_heads", heads)
    n.attr("kv_num_heads", groups)
    rule = n.pick("linear", "gated", "delta", "gated_delta")
    if rule != "gated_delta" or n.chance(0.5):
        n.attr("update_rule", rule)
    n.maybe("scale", float(np.float32(n.pick(0.0, 0.3, 1.0))), 0.4)
    n.maybe("chunk_size", n.pick(1, 2, 64), 0.3)
    n.maybe("state_window", 0, 0.1)
    for width in (heads * size, groups * size, groups * wide):
        reals(n, (batch, steps, width), kind)
    reals(n, (batch, groups, size, wide), kind) if n.chance(0.6) else n.omit()
    if "gated" in rule:
        n.add(n.rng.uniform(-2, 0, (batch, steps, groups * n.pick(1, size))).astype(kind))
    else:
        n.omit()
    if "delta" in rule:
        n.add(n.rng.uniform(0, 1, (batch, steps, n.pick(1, groups))).astype(kind))


@recipe("CausalConvWithState")
def causal_conv(n):
    start(n)
    n.exact, n.outputs, n.ulps, n.scale_ulps = False, 2, 32, 32
    kind = mostly_single(n)
    batch, channels, length, kernel = n.integer(1, 3), n.integer(1, 5), n.integer(1, 8), n.integer(1, 5)
    apart = n.maybe("dilation", n.integer(1, 3), 0.4) or 1
    n.maybe("activation", n.pick("none", "silu", "swish"))
    n.maybe("ndim", 1, 0.2)
    reals(n, (batch, channels, length), kind)
    reals(n, (channels, 1, kernel), kind, 0.8)
    reals(n, (channels,), kind, 0.8) if n.chance(0.6) else n.omit()
    if n.chance(0.6):
        reals(n, (batch, channels, (kernel - 1) * apart), kind)


@recipe("RelativePositionBias")
def relative_bias(n):
    start(n)
    n.ulps = 0
    both_ways = n.maybe("is_bidirectional", n.integer(0, 1)) or 0
    count = n.integer(2, 12) * (1 + both_ways)
    n.attr("max_distance", count + n.integer(0, 20))
    reals(n, (count, n.integer(1, 4)), n.dtype(0), 1.0)
    length = n.integer(1, 24)
    for size in (length, length if n.chance(0.6) else n.integer(1, 24)):
        n.add(np.array([size], np.int64), 0.5)


@recipe("GatedRelativePositionBias")
def gated_bias(n):
    start(n)
    n.exact, n.ulps, n.scale_ulps = False, 32, 32
    kind = n.dtype(0)
    batch, steps, heads, size, gates = n.integer(1, 3), n.integer(1, 5), n.integer(1, 3), n.integer(1, 6), 2 * n.integer(1, 4)
    n.attr("num_heads", heads)
    for dims in ((batch, steps, heads * size), (heads * size,), (1, heads, steps, steps), (size, gates), (gates,), (1, heads, 1, 1)):
        reals(n, dims, kind, 0.3)


@recipe("RestorePadding")
def restore_padding(n):
    start(n)
    batch, steps = n.integer(1, 4), n.integer(1, 6)
    lengths = n.rng.integers(0 if batch > 1 else 1, steps + 1, batch)
    lengths[0] = max(lengths[0], 1)
    place = np.arange(batch * steps).reshape(batch, steps)
    real = np.arange(steps) < lengths[:, None]
    reals(n, (int(lengths.sum()), n.integer(1, 6)), n.dtype(0))
    n.add(np.concatenate([place[real], place[~real]]).reshape(batch, steps).astype(np.int32))
