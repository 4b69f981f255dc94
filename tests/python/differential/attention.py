"""Recipes of attention and what comes with it."""

import numpy as np

import values
from case import Skip
from elementwise import recipe
from sums import sums


@recipe("Attention")
def attention(n):
    sums(n, 64)
    batch, groups, shared = n.integer(1, 2), n.integer(1, 2), n.integer(1, 2)
    queries, keys, width, value_width = (n.integer(1, 5) for _ in range(4))
    heads = groups * shared
    if n.chance(0.5):
        n.shaped((batch, heads, queries, width))
        n.data((batch, groups, keys, width), at=1)
        n.data((batch, groups, keys, value_width), at=2)
    else:
        n.attr("q_num_heads", heads)
        n.attr("kv_num_heads", groups)
        n.shaped((batch, queries, heads * width))
        n.data((batch, keys, groups * width), at=1)
        n.data((batch, keys, groups * value_width), at=2)
    past = n.integer(1, 3) if n.chance(0.3) else 0
    if n.chance(0.4):
        dims = values.broadcastable(n.rng, (batch, heads, queries, keys + past))
        dims = dims if len(dims) >= 2 and dims[-1] > 1 else (queries, keys + past)
        mask = n.draw(3, dims, -2, 2)
        if n.type(3) == "bool":
            mask[..., 0] = True
        n.add(mask)
    elif past:
        n.omit()
    if past:
        n.data((batch, groups, past, width), at=4)
        n.data((batch, groups, past, value_width), at=5)
    causal = n.maybe("is_causal", n.integer(0, 1))
    mask = n.inputs[3][0] if len(n.inputs) > 3 else None
    if causal and mask is not None and mask.shape[-2] == 1 < queries:
        # The reference makes the triangle of the mask's rows, and not of the queries.
        raise Skip("a causal mask of one row")
    n.maybe("scale", 0.5)
    n.maybe("softcap", 2.0, 0.3)
    n.outputs = 3 if past else 1


@recipe("RotaryEmbedding")
def rotary(n):
    sums(n, 8)
    batch, length, heads, half = n.integer(1, 2), n.integer(1, 4), n.integer(1, 3), n.integer(1, 3)
    width = 2 * half
    turned = half
    if n.chance(0.4):
        turned = n.integer(1, half)
        n.attr("rotary_embedding_dim", 2 * turned)
    if n.chance(0.5):
        n.shaped((batch, heads, length, width))
    else:
        n.attr("num_heads", heads)
        n.shaped((batch, length, heads * width))
    n.maybe("interleaved", n.integer(0, 1))
    if n.chance(0.5):
        most = n.integer(length, 8)
        n.data((most, turned), at=1)
        n.data((most, turned), at=2)
        n.add(n.rng.integers(0, most, (batch, length)).astype(np.int64))
    else:
        n.data((batch, length, turned), at=1)
        n.data((batch, length, turned), at=2)


@recipe("LinearAttention")
def linear_attention(n):
    sums(n, 128)
    batch, length, groups, shared = n.integer(1, 2), n.integer(1, 4), n.integer(1, 2), n.integer(1, 2)
    width, value_width, heads = n.integer(1, 4), n.integer(1, 4), groups * shared
    rule = n.maybe("update_rule", n.pick("linear", "gated", "delta", "gated_delta")) or "gated_delta"
    n.attr("q_num_heads", heads)
    n.attr("kv_num_heads", groups)
    n.maybe("scale", 0.4)
    n.shaped((batch, length, heads * width), low=-1, high=1)
    n.data((batch, length, groups * width), -1, 1, at=1)
    n.data((batch, length, groups * value_width), -1, 1, at=2)
    if n.chance(0.5):
        n.data((batch, groups, width, value_width), -1, 1, at=3)
    else:
        # Without a state the type of the next one is unknown, and the reference gives it the query's.
        n.types["S"] = n.types["T"]
        n.omit()
    if rule.startswith("gated"):
        n.data((batch, length, groups if n.chance(0.5) else groups * width), -1, 0, at=4)
    elif rule.endswith("delta"):
        n.omit()
    if rule.endswith("delta"):
        n.data((batch, length, groups), 0, 1, at=5)
    n.outputs = 2


@recipe("CausalConvWithState")
def causal_conv(n):
    sums(n)
    batch, channels, length, kernel = n.integer(1, 2), n.integer(1, 4), n.integer(1, 6), n.integer(2, 4)
    n.shaped((batch, channels, length))
    n.data((channels, 1, kernel), at=1)
    if n.chance(0.5):
        n.data((channels,), at=2)
    else:
        n.omit()
    if n.chance(0.5):
        n.data((batch, channels, kernel - 1), at=3)
    n.maybe("activation", n.pick("none", "silu", "swish"))
    n.outputs = 2
