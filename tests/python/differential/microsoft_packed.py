"""Recipes of attention of com.microsoft over packed tokens, sparse blocks and shared caches: `definitions_packed` says what
they should give."""

import numpy as np

from case import Skip
from microsoft_attention import angles, reals
from vendor import recipe


def start(n):
    if n.given is not None:
        raise Skip("chain")
    n.edge, n.exact = 0.0, False
    kind = "float" if n.chance(0.85) else n.pick("float16", "float16" if n.op != "SparseAttention" else "bfloat16")
    for variable in ("T", "QK"):
        if variable in n.types:
            n.types[variable] = kind
    return n.dtype(0)


def padded(n):
    """Offsets and ends of sequences; gives the number of tokens, and the shape with padding."""
    batch, length = n.integer(1, 4), n.integer(1, 6)
    counts = n.rng.integers(1, length + 1, batch)
    real = (np.arange(length) < counts[:, None]).reshape(-1)
    offsets = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).reshape(batch, length).astype(np.int32)
    return offsets, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), int(counts.sum())


def bias(n, kind, offsets, heads):
    if n.chance(0.4):
        batch, length = offsets.shape
        reals(n, (n.pick(1, batch), n.pick(1, heads), length, length), kind, high=2.0)


@recipe("PackedAttention")
def packed(n):
    kind = start(n)
    offsets, ends, count = padded(n)
    heads, size, of_values, width = n.integer(1, 3), n.integer(1, 5), n.integer(1, 5), n.integer(1, 8)
    if n.chance(0.4):
        n.attr("qkv_hidden_sizes", [heads * size, heads * size, heads * of_values])
    else:
        of_values = size
    n.attr("num_heads", heads)
    n.maybe("scale", 0.5, 0.3)
    wide = heads * (2 * size + of_values)
    reals(n, (count, width), kind)
    reals(n, (width, wide), kind, 0.6)
    reals(n, (wide,), kind, 0.6)
    n.add(offsets)
    n.add(ends)
    bias(n, kind, offsets, heads)


@recipe("PackedMultiHeadAttention")
def packed_multi_head(n):
    kind = start(n)
    offsets, ends, count = padded(n)
    heads, size, of_values = n.integer(1, 3), n.integer(1, 5), n.integer(1, 5)
    n.attr("num_heads", heads)
    n.maybe("scale", 0.5, 0.3)
    n.maybe("mask_filter_value", -5000.0, 0.2)
    if n.chance(0.4):
        of_values = size
        reals(n, (count, heads, 3, size), kind)
        n.omit()
        n.omit()
    else:
        for each in (size, size, of_values):
            reals(n, (count, heads * each), kind)
    if n.chance(0.5):
        reals(n, (heads * (2 * size + of_values),), kind, 0.6)
    else:
        n.omit()
    n.add(offsets)
    n.add(ends)
    bias(n, kind, offsets, heads)


@recipe("DecoderMaskedMultiHeadAttention")
def decoder_masked(n):
    kind = start(n)
    batch, heads, size = n.integer(1, 4), n.integer(1, 3), n.integer(1, 6)
    n.attr("num_heads", heads)
    n.maybe("scale", 0.5, 0.3)
    n.maybe("mask_filter_value", -50.0, 0.3)
    crosses = n.chance(0.5)
    own = n.chance(0.5)
    if crosses:
        keys = n.integer(1, 6)
        reals(n, (batch, 1, heads * size), kind)
        for _ in range(2):
            reals(n, (batch, heads, keys, size), kind)
        if n.chance(0.5):
            mask = (n.rng.random((batch, keys)) < 0.7).astype(np.int32)
            mask[:, n.integer(0, keys - 1)] = 1
            n.add(mask)
        else:
            n.omit()
        for _ in range(6):
            n.omit()
        n.outputs = 1
        if n.chance(0.3):
            n.maybe("past_present_share_buffer", 1, 0.5)
    else:
        n.attr("past_present_share_buffer", 1)
        behind = n.integer(0, 5)
        room = behind + 1 + n.integer(0, 3)
        if n.chance(0.4):
            reals(n, (batch, 1, 3 * heads * size), kind)
            n.omit()
            n.omit()
        else:
            for _ in range(3):
                reals(n, (batch, 1, heads * size), kind)
        if n.chance(0.4):
            mask = (n.rng.random((batch, behind + 1)) < 0.7).astype(np.int32)
            mask[:, -1] = 1
            n.add(mask)
        else:
            n.omit()
        if n.chance(0.4):
            reals(n, (n.pick(1, batch), n.pick(1, heads), 1, behind + 1), kind, high=2.0)
        else:
            n.omit()
        for _ in range(2):
            reals(n, (batch, heads, room, size), kind)
        n.add(np.array([behind], np.int32), 0.3)
        width = n.pick(1, batch)
        if n.chance(0.4):
            n.add(np.array([width], np.int32), 0.5)
            n.add(n.rng.integers(0, width, (batch // width, width, room)).astype(np.int32))
        else:
            n.omit()
            n.omit()
        n.outputs = 3
    if own:
        reals(n, (3 * heads * size,), kind, 0.6)


@recipe("SparseAttention")
def sparse(n):
    kind = start(n)
    batch, groups, share, size = n.integer(1, 3), n.integer(1, 2), n.integer(1, 2), 16
    heads, block = groups * share, 16
    blocks = n.integer(1, 3)
    room = blocks * block
    steps = 1 if n.chance(0.4) else n.integer(1, room)
    first = steps > 1 or n.chance(0.3)
    total = steps if first else n.integer(steps, room)
    totals = np.full(batch, total, np.int32)
    if batch > 1 and n.chance(0.5):
        totals = n.rng.integers(1 if first else steps, total + 1, batch).astype(np.int32)
        totals[0] = total
    if first:
        # Rows that are shorter have tokens that pad, whose results are of no use.
        totals[:] = total
    n.attr("num_heads", heads)
    n.attr("kv_num_heads", groups)
    n.attr("sparse_block_size", block)
    n.maybe("scale", 0.5, 0.3)
    if n.chance(0.4):
        reals(n, (batch, steps, (heads + 2 * groups) * size), kind)
        n.omit()
        n.omit()
    else:
        for count in (heads, groups, groups):
            reals(n, (batch, steps, count * size), kind)
    for _ in range(2):
        reals(n, (batch, groups, room, size), kind, 0.0)
    kinds = n.pick(*[count for count in (1, 2) if heads % count == 0])
    layouts = np.tril(n.rng.random((kinds, blocks, blocks)) < n.pick(0.6, 1.0))
    layouts[:, np.arange(blocks), np.arange(blocks)] = True
    rows = [np.concatenate([[0], np.cumsum(layout.sum(1))]) for layout in layouts]
    columns = [np.nonzero(layout)[1] for layout in layouts]
    most = max(len(one) for one in columns)
    n.add(np.array(rows, np.int32), 0.5)
    n.add(np.array([np.pad(one, (0, most - len(one)), constant_values=-1) for one in columns], np.int32), 0.5)
    n.add(np.array([total] if n.chance(0.5) else total, np.int32), 0.3)
    n.add(totals)
    if n.chance(0.4):
        n.attr("do_rotary", 1)
        n.maybe("rotary_interleaved", n.integer(0, 1))
        angles(n, room + n.integer(0, 3), 8, kind)
    n.outputs = 3
