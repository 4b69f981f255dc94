"""Recipes of operators of com.microsoft for hybrid language models."""

import numpy as np

from definitions_hybrid import PACKED
from microsoft_fused import begin
from vendor import floats, recipe, single32


def bounds_of(n, most=4, longest=4):
    """Where packed requests begin and end; some have no tokens."""
    lengths = n.rng.integers(0 if n.chance(0.3) else 1, longest + 1, n.integer(1, most))
    lengths[n.integer(0, len(lengths) - 1)] = n.integer(1, longest)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def capture(n, batch):
    """How many steps are asked for, of none to more than there are."""
    capacity = n.integer(1, 4)
    n.attr("state_update_capacity", capacity)
    return capacity, n.rng.integers(-1, capacity + 3, batch).astype(np.int32)


@recipe("LinearAttentionGate")
def linear_attention_gate(n):
    begin(n)
    kind, dims = n.dtype(), n.shape(1, 4, zeros=n.chance(0.1))
    floats(n, dims, -8, 8, kind)
    floats(n, dims[-1:], -2, 2, constant=0.8)
    floats(n, dims[-1:], -4, 0, constant=0.8)
    if n.chance(0.7):
        n.outputs = n.integer(1, 2)
        floats(n, dims, -8, 8, kind)


@recipe("GatedDeltaNet")
def gated_delta_net(n):
    begin(n, 64)
    n.scale_ulps = 128
    n.types["TS"], n.types["TI"] = "float", "int32"
    n.types["TG"] = n.pick("float", n.types["T"])
    kind, gate_kind, single = n.dtype(), n.dtype(4), np.float32
    few, share, size, values = n.integer(1, 3), n.integer(1, 3), n.integer(1, 6), n.integer(1, 6)
    heads, ragged = few * share, n.chance(0.5)
    bounds = bounds_of(n)
    if not ragged:
        bounds = (np.arange(n.integer(1, 4)) + 1) * n.integer(1, 4)
        bounds = np.concatenate([[0], bounds]).astype(np.int32)
    batch, tokens = len(bounds) - 1, int(bounds[-1])
    lead = (tokens,) if ragged or n.chance(0.5) else (batch, tokens // batch)
    packed = n.chance(0.3)
    has_state = packed or not ragged and len(lead) == 1 or n.chance(0.7)
    rule = n.pick("linear", "gated", "delta", "gated_delta", "gated_delta", "gated_delta")
    if rule != "gated_delta" or n.chance(0.5):
        n.attr("update_rule", rule)
    n.maybe("scale", single32(n.pick(0.0, 0.3, 1.0)), 0.3)
    n.maybe("chunk_size", n.pick(16, 32, 64), 0.2)
    n.maybe("qk_l2_norm", n.integer(0, 1), 0.6)
    if packed:
        floats(n, (*lead, 2 * few * size + heads * values), -1, 1, kind)
        n.omit()
        n.omit()
    else:
        for own in ((few, size), (few, size), (heads, values)):
            floats(n, (*lead, *own), -1, 1, kind)
    n.add(bounds, 0.2) if ragged else n.omit()
    gate, whole = n.pick("none", "softplus", "qwen", "sigmoid", "kda"), n.chance(0.5)
    if "gated" in rule:
        # Without a gate decays are logarithms of factors below 1.
        dims = (*lead, heads, size) if whole else (*lead, heads)
        floats(n, dims, -2, 0 if gate == "none" else 2, gate_kind)
    else:
        gate = "none"
        n.omit()
    floats(n, (*lead, heads), 0, 1, gate_kind) if "delta" in rule else n.omit()
    n.maybe("beta_activation", n.pick("none", "sigmoid"))
    floats(n, (batch, heads, values, size), -1, 1) if has_state else n.omit()
    if gate != "none":
        n.attr("gate_activation", gate)
        n.maybe("gate_lower_bound", single32(n.pick(-5.0, -1.5)), 0.4)
        floats(n, (heads,), -1, 1, constant=0.8)
        floats(n, n.pick((heads,), (heads, size), (heads * size,)) if whole else (heads,), -1, 1, constant=0.9)
    else:
        n.omit()
        n.omit()
    n.outputs = n.integer(1, 2)
    if n.chance(0.4):
        _, counts = capture(n, batch)
        n.outputs = 3
        n.add(counts, 0.2)
        if n.chance(0.4):
            n.add(np.array([n.integer(0, 1)], np.int32), 0.2)


@recipe("VarlenCausalConvWithState")
def packed_convolution(n):
    begin(n)
    n.types["M"], n.outputs = "int32", 2
    kind, bounds = n.dtype(), bounds_of(n)
    batch, tokens, channels, kernel = len(bounds) - 1, int(bounds[-1]), n.integer(1, 5), n.integer(1, 5)
    apart = n.maybe("dilation", n.integer(1, 3), 0.4) or 1
    n.maybe("activation", n.pick("none", "silu", "swish"))
    floats(n, (tokens, channels), -1, 1, kind)
    floats(n, (channels, 1, kernel), -1, 1, kind, 0.8)
    n.add(bounds, 0.2)
    floats(n, (channels,), -1, 1, kind, 0.8) if n.chance(0.6) else n.omit()
    floats(n, (batch, channels, (kernel - 1) * apart), -1, 1, kind)
    if n.chance(0.4):
        _, counts = capture(n, batch)
        n.outputs = 3
        n.add(counts, 0.2)


def streams(n, kind):
    """The axes before the streams, how many there are, and of how many features."""
    lead, count, size = n.shape(0, 2, zeros=n.chance(0.1)), n.integer(1, 4), n.integer(1, 20)
    flat = n.chance(0.5)
    if flat:
        n.attr("num_branches", count)
    floats(n, (*lead, count * size) if flat else (*lead, count, size), kind=kind)
    return lead, count, size, flat


@recipe("BranchwiseRMSNorm")
def branchwise_norm(n):
    begin(n)
    n.maybe("epsilon", single32(n.pick(1e-5, 1e-6, 0.1)))
    _, count, size, _ = streams(n, n.dtype())
    if n.chance(0.8):
        floats(n, n.pick((size,), (count, size), (count * size,)), kind=n.dtype(1), constant=0.9)


@recipe("HyperConnectionPreMix")
def pre_mix(n):
    begin(n)
    lead, count, size, flat = streams(n, n.dtype())
    own = n.pick((count,), (count, 1), (count, size), (count * size,) if flat else (count,))
    floats(n, (*lead, *own), -1, 1, n.dtype(1))
    n.maybe("reduction_scale", single32(n.pick(0.25, 0.7, 2.0)))


@recipe("HyperConnectionPostMix")
def post_mix(n):
    begin(n)
    lead, count, size, _ = streams(n, n.dtype())
    floats(n, (*lead, size), -1, 1, n.dtype())
    floats(n, (*lead, *n.pick((count,), (count, 1), (count, size))), -1, 1, n.dtype(2))
    if n.chance(0.7):
        floats(n, (*lead, count, count), -1, 1, n.dtype(2))


@recipe("EngramGate")
def engram_gate(n):
    begin(n)
    kind = n.dtype()
    batch, steps, count, size = n.integer(1, 3), n.integer(0 if n.chance(0.1) else 1, 5), n.integer(1, 4), n.integer(1, 20)
    for dims in ((batch, steps, count, size), (batch, steps, count, size), (batch, steps, size)):
        floats(n, dims, kind=kind)
    for _ in range(3 if n.chance(0.7) else 2):
        floats(n, (count, size), kind=kind, constant=0.8)
    n.outputs = n.integer(1, 2) if len(n.inputs) == 6 else 1
    n.maybe("epsilon", single32(n.pick(1e-5, 1e-6, 0.1)))


@recipe("MoEGroupRouter")
def group_router(n):
    begin(n)
    kind, groups, size = n.dtype(), n.integer(1, 4), n.integer(1, 5)
    full, lead = n.chance(0.25), n.shape(1, 2, zeros=False)
    groups = 1 if full else groups
    experts = groups * size
    n.attr("top_k", n.integer(1, experts))
    if full:
        n.outputs, n.unnamed = 3, {0}
        width = 256 * n.integer(1, 2) if n.chance(0.6) else None
        floats(n, lead + (experts,) if width is None else (n.integer(1, 4), width), -1, 1, kind)
        floats(n, (experts,), -0.5, 0.5, constant=0.8)
        if width is not None:
            floats(n, (experts, width), -0.2, 0.2, kind, 0.8)
        return
    if groups > 1 or n.chance(0.3):
        n.attr("n_group", groups)
        n.maybe("topk_group", n.integer(1, groups), 0.8)
    n.maybe("group_topk", n.integer(1, 3), 0.5)
    n.maybe("router_sentinel", single32(n.pick(-3.0, -50.5)), 0.4)
    floats(n, lead + (experts,), -4, 4, kind)
    floats(n, (experts,), -0.5, 0.5, constant=0.8)


def hashing(n, kind):
    """The longest n-gram, numbers of places and of heads' tables; ids are small, or of any size."""
    longest, heads = n.integer(2, 4), n.integer(1, 3)
    n.attr("max_ngram_size", longest)
    n.attr("n_head_per_ngram", heads)
    n.attr("pad_id", n.integer(0, 9))
    n.maybe("reset_on_eos", n.integer(0, 1), 0.7)
    most = 4 if n.chance(0.7) else np.iinfo(kind).max
    ids = lambda dims, constant=0.0: n.add(n.rng.integers(0, most, dims, kind), constant)
    tables = lambda: n.rng.integers(-most if most > 4 else 1, most if most > 4 else 999, longest + n.integer(0, 1), kind)
    sizes = lambda high=2000: n.rng.integers(1, high, (longest - 1) * heads, kind)
    return longest - 1, ids, tables, sizes


def hashing_options(n, kind, sizes):
    n.add(sizes(), 0.8) if n.chance(0.4) else n.omit()
    n.add(np.array(n.integer(0, 4), kind), 0.5) if n.chance(0.6) else n.omit()


@recipe("NGramHashMapping")
def n_gram_hashes(n):
    begin(n)
    kind = n.dtype()
    behind, ids, tables, sizes = hashing(n, kind)
    batch, steps = n.integer(1, 3), n.integer(0 if n.chance(0.1) else 1, 6)
    ids((batch, steps))
    n.add(tables(), 0.8)
    n.add(sizes(), 0.8)
    ids((batch, behind)) if n.chance(0.6) else n.omit()
    hashing_options(n, kind, sizes)
    n.outputs = n.integer(1, 2)
    if n.chance(0.4):
        n.add(np.sort(n.rng.integers(0, 3, (batch, steps)), 1).astype(np.int32))


@recipe("VarlenNGramHashMapping")
def packed_hashes(n):
    begin(n)
    kind, n.types["S"] = n.dtype(), "int32"
    behind, ids, tables, sizes = hashing(n, kind)
    bounds = np.concatenate([[0], np.cumsum(n.rng.integers(1, 5, n.integer(1, 4)))]).astype(np.int32)
    batch, tokens = len(bounds) - 1, int(bounds[-1])
    segmented = n.chance(0.5)
    segments = lambda dims: n.add(n.rng.integers(0, 2, dims).astype(np.int32))
    ids((tokens,))
    n.add(tables(), 0.8)
    n.add(sizes(), 0.8)
    n.add(bounds, 0.2)
    ids((batch, behind)) if n.chance(0.6) else n.omit()
    hashing_options(n, kind, sizes)
    segments((tokens,)) if segmented else n.omit()
    segments((batch, behind)) if segmented and n.chance(0.5) else n.omit()
    n.outputs = n.integer(1, 3 if segmented else 2)
    if n.chance(0.4):
        _, counts = capture(n, batch)
        n.add(counts, 0.2)
        n.outputs, n.unnamed = 4, set() if segmented else {2}


@recipe("GatherPacked")
def gather_packed(n):
    begin(n, 2, "T2")
    number = n.pick(*PACKED)
    size, bytes, scales, _ = PACKED[number]
    width, rows = size * n.integer(1, 3 if size > 1 else 20), n.integer(1, 5)
    n.attr("packed_type", number)
    n.attr("K", width)
    if n.types["T2"] != "bfloat16" or n.chance(0.5):
        n.attr("output_dtype", {"float": 1, "float16": 10, "bfloat16": 16}[n.types["T2"]])
    blocks = n.rng.integers(0, 256, (rows * width // size, bytes)).astype(np.uint8)
    for start in scales:
        blocks[:, start:start + 2] = n.rng.uniform(-0.2, 0.2, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if not scales:
        # Floats other than special ones.
        kind = {0: np.float32, 1: np.float16, 30: np.float32}[number]
        reals = n.rng.uniform(-2, 2, (len(blocks), 1)).astype(kind).view(np.uint8)
        blocks = reals[:, -bytes:]
    n.add(np.ascontiguousarray(blocks).reshape(rows, -1), 0.8)
    dims = n.shape(0, 3, zeros=n.chance(0.2))
    n.add(np.asarray(n.rng.integers(-2, rows + 2, dims)).astype(n.dtype(1)), 0.2)


@recipe("MatMulFpQ4")
def mat_mul_q4(n):
    begin(n, 32, "T1")
    lead, depth, columns, has_zeros = n.shape(1, 3, zeros=False), n.integer(1, 80), n.integer(1, 20), n.integer(0, 1)
    if not has_zeros or n.chance(0.5):
        n.attr("blk_quant_type", has_zeros)
    blocks = n.rng.integers(0, 256, (columns * -(-depth // 32), 20 + has_zeros)).astype(np.uint8)
    blocks[:, :4] = n.rng.uniform(-0.2, 0.2, (len(blocks), 1)).astype(np.float32).view(np.uint8)
    if has_zeros:
        blocks[:, 4] %= 16
    floats(n, (*lead, depth), -1, 1, n.dtype())
    n.add(blocks.reshape(-1), 0.9)
    n.add(np.array([depth, columns], np.int64), 1.0)
