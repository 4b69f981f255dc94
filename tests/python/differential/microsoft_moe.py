"""Recipes of mixtures of experts."""

import numpy as np

from microsoft import small
from microsoft_fused import begin
from vendor import floats, recipe, single32

GATED = ("swiglu", "geglu")


@recipe("MoE", "QMoE")
def mixture(n):
    begin(n, 64)
    kind, packs = n.dtype(), n.op == "QMoE"
    bits = n.pick(4, 8, 4, 8, 2) if packs else 0
    block = n.pick(16, 32) if packs and n.chance(0.6) else 0
    hidden = block * n.integer(1, 3) if block else 8 * n.integer(1, 4)
    inner = block * n.integer(1, 2) if block else 8 * n.integer(1, 3)
    experts, tokens = n.integer(1, 6), n.integer(1, 5)
    picked = n.integer(1, min(experts, 3))
    activation = n.pick("relu", "gelu", "silu", "identity", "swiglu", "swiglu", "relu2", "geglu")
    fusion = n.pick(1, 1, 2, 0) if activation == "swiglu" else n.pick(1, 2) if activation == "geglu" else 0
    third = activation == "swiglu" and fusion == 0 or activation not in GATED and n.chance(0.15)
    rows = 2 * inner if fusion else inner
    if activation != "relu" or n.chance(0.5):
        n.attr("activation_type", activation)
    if fusion:
        n.attr("swiglu_fusion", fusion)
    if activation == "swiglu":
        n.maybe("activation_alpha", single32(1.702), 0.5)
        n.maybe("activation_beta", 1.0, 0.5)
        if n.maybe("swiglu_limit", n.pick(0.5, 7.0), 0.5):
            n.maybe("swiglu_limit_after_activation", 1, 0.15)
    if picked > 1 or n.chance(0.5):
        n.attr("k", picked)
    n.maybe("normalize_routing_weights", n.integer(0, 1))
    floats(n, (1, tokens, hidden) if n.chance(0.4) else (tokens, hidden), -1, 1, kind)
    # Apart from each other, so that rounding decides no choice.
    logits = np.stack([n.rng.permutation(experts) for _ in range(tokens)]) * 0.5
    n.add((logits + n.rng.uniform(-0.1, 0.1, logits.shape)).astype(kind))
    bias = lambda count: floats(n, (experts, count), -0.5, 0.5, kind, 0.8) if n.chance(0.5) else n.omit()
    sizes = [(rows, hidden), (hidden, inner), (inner, hidden)][: 3 if third else 2]
    if not packs:
        for count, depth in sizes:
            floats(n, (experts, count, depth), -0.5, 0.5, kind, 0.8)
            bias(count)
        return
    if bits != 4 or n.chance(0.4):
        n.attr("expert_weight_bits", bits)
    if block:
        n.attr("block_size", block)
    n.maybe("weights_prepacked", 0, 0.3)
    n.types["T1"], n.types["T2"] = "uint8", n.types["T"]
    n.types["T4"] = "float"
    for count, depth in sizes:
        small(n, (experts, count, depth * bits // 8), np.uint8, 0.8)
        floats(n, (experts, count, depth // block) if block else (experts, count), 0.5 / 2**bits, 1.0 / 2**bits, kind, 0.8)
        bias(count)
    if not n.chance(0.5):
        return zeros_and_router(n, experts, tokens, sizes, bits, block, False)
    zeros_and_router(n, experts, tokens, sizes, bits, block, True)


def zeros_and_router(n, experts, tokens, sizes, bits, block, zeros):
    router = n.chance(0.25)
    if not zeros and not router:
        return
    while len(n.inputs) < 11:
        n.omit()
    for at in range(3):
        if not zeros or at >= len(sizes):
            n.omit()
            continue
        count, depth = sizes[at]
        dims = (experts, count, -(-(depth // block) * bits // 8)) if block else (experts, -(-count * bits // 8))
        small(n, dims, np.uint8, 0.8)
    if router:
        floats(n, (tokens, experts), 0.1, 1, n.dtype())
