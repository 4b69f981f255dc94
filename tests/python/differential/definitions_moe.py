"""What mixtures of experts give, token by token."""

import numpy as np

from definitions_fused import fast_gelu_of, sigmoid
from definitions_microsoft import unpacked
from vendor import arrays, attribute, definition, wide


def gated(node, gate, up):
    alpha, beta = attribute(node, "activation_alpha", 1.0), attribute(node, "activation_beta", 0.0)
    limit = attribute(node, "swiglu_limit", np.inf)
    after = attribute(node, "swiglu_limit_after_activation", 0)
    gate = gate if after else np.minimum(gate, limit)
    gate = gate * sigmoid(alpha * gate)
    return (np.minimum(gate, limit) if after else gate) * (np.clip(up, -limit, limit) + beta)


PLAIN = {
    "relu": lambda x: np.maximum(x, 0), "relu2": lambda x: np.maximum(x, 0) ** 2, "gelu": fast_gelu_of,
    "silu": lambda x: x * sigmoid(x), "identity": lambda x: x,
}


def between(node, y, third):
    kind, fusion = attribute(node, "activation_type", "relu"), attribute(node, "swiglu_fusion", 0)
    if kind not in ("swiglu", "geglu"):
        return PLAIN[kind](y) * (1 if third is None else third)
    gate, up = (y, third) if fusion == 0 else (y[::2], y[1::2]) if fusion == 1 else np.split(y, 2)
    return fast_gelu_of(gate) * up if kind == "geglu" else gated(node, gate, up)


def mixed(node, x, logits, layers, router):
    dtype, shape = x.dtype, x.shape
    x, logits = wide(x).reshape(-1, shape[-1]), wide(logits)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    y = np.zeros_like(x)
    for at, token in enumerate(x):
        order = np.argsort(-chances[at], kind="stable")[: attribute(node, "k", 1)]
        shares = (chances if router is None else wide(router))[at, order]
        # Without weights of their own the picked experts of QMoE always share all.
        if attribute(node, "normalize_routing_weights", 0) or node.op == "QMoE" and router is None:
            shares = shares / shares.sum()
        for share, expert in zip(shares, order):
            of = lambda layer, own: layer[0][expert] @ own + (0 if layer[1] is None else wide(layer[1])[expert])
            inner = between(node, of(layers[0], token), of(layers[2], token) if len(layers) > 2 else None)
            y[at] += share * of(layers[1], inner)
    return [y.reshape(shape).astype(dtype)]


@definition("MoE")
def moe(node):
    x, logits, w1, b1, w2, b2, w3, b3 = arrays(node)
    layers = [(wide(w1), b1), (wide(w2), b2)] + ([] if w3 is None else [(wide(w3), b3)])
    return mixed(node, x, logits, layers, None)


@definition("QMoE")
def q_moe(node):
    given = arrays(node)
    bits, block = attribute(node, "expert_weight_bits", 4), attribute(node, "block_size", 0)
    layers = []
    for at in range(3):
        packed, scales, bias = given[2 + 3 * at:5 + 3 * at]
        if packed is None:
            continue
        codes = wide(unpacked(packed, bits))
        experts, rows, depth = codes.shape
        blocks = depth // block if block else 1
        zeros = given[11 + at]
        if zeros is None:
            zeros = np.full((experts, rows, blocks), 2.0 ** (bits - 1))
        else:
            zeros = wide(unpacked(zeros, bits))
            zeros = zeros[..., :blocks] if block else zeros[:, :rows, None]
        parts = codes.reshape(experts, rows, blocks, -1) - zeros[..., None]
        weights = parts * wide(scales).reshape(experts, rows, blocks, 1)
        layers.append((weights.reshape(codes.shape), bias))
    return mixed(node, given[0], given[1], layers, given[14])
