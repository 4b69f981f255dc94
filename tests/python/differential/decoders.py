"""Small decoders and encoders as graphs, in the forms that the operators of generation of com.microsoft take.

Each has embeddings, layers of attention with caches, and a product with the embeddings of the vocabulary. Weights are
random and large, so that the most likely token is clearly so.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


class Body:
    """A graph attribute that grows node by node."""

    def __init__(self, rng, name):
        self.rng, self.name = rng, name
        self.nodes, self.weights, self.inputs, self.outputs, self.count = [], [], [], [], 0

    def op(self, kind, *inputs, **attributes):
        self.count += 1
        result = f"v{self.count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def named(self, value, name):
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def constant(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def weight(self, *dims, scale=1.0):
        return self.constant((self.rng.standard_normal(dims) * scale).astype(np.float32))

    def input(self, name, kind, dims):
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def output(self, value, name, dims):
        self.named(value, name)
        self.outputs.append(helper.make_tensor_value_info(name, FLOAT, dims))

    def graph(self):
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)

    # Parts of networks.

    def heads(self, x, count, size):
        """[B, S, count * size] as [B, count, S, size]."""
        x = self.op("Reshape", x, self.ints(0, 0, count, size))
        return self.op("Transpose", x, perm=[0, 2, 1, 3])

    def merged(self, x, width):
        x = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return self.op("Reshape", x, self.ints(0, 0, width))

    def length(self, x, axis):
        """A scalar."""
        return self.op("Gather", self.op("Shape", x), self.constant(np.array(axis, np.int64)))

    def padding(self, mask):
        """What is added to scores of keys that the mask hides: [B, 1, 1, keys]."""
        hidden = self.op("Sub", self.constant(np.float32(1)), self.op("Cast", mask, to=FLOAT))
        hidden = self.op("Mul", hidden, self.constant(np.float32(-10000)))
        return self.op("Unsqueeze", hidden, self.ints(1, 2))

    def causal(self, ids, keys):
        """What is added to scores of keys behind their query: [S, keys]."""
        steps, total = self.length(ids, 1), self.length(keys, 2)
        one = self.constant(np.array(1, np.int64))
        row = self.op("Range", self.op("Sub", total, steps), total, one)
        column = self.op("Range", self.constant(np.array(0, np.int64)), total, one)
        later = self.op("Greater", column, self.op("Unsqueeze", row, self.ints(1)))
        return self.op("Mul", self.op("Cast", later, to=FLOAT), self.constant(np.float32(-10000)))

    def attended(self, query, key, value, size, *biases):
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(np.float32(size**-0.5)))
        for bias in biases:
            scores = self.op("Add", scores, bias)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), value)


class Sizes:
    def __init__(self, n):
        self.vocabulary, self.heads, self.size = n.integer(7, 24), n.integer(1, 2), n.integer(2, 4)
        self.layers = n.integer(1, 2)
        self.width = self.heads * self.size

    def scale(self):
        return 1.5 * self.width**-0.5


def embeddings(rng, sizes):
    """Weights that the graphs of one model share, as arrays."""
    return (rng.standard_normal((sizes.vocabulary, sizes.width)) * 1.5).astype(np.float32)


def gpt(rng, sizes, length, name="decoder", weights=None):
    """A decoder without an encoder: ids, positions, mask and caches to logits and caches."""
    body = Body(rng, name)
    ids = body.input("input_ids", INT32, ["batch", "steps"])
    positions = body.input("position_ids", INT32, ["batch", "steps"])
    mask = body.input("attention_mask", INT32, ["batch", "total"])
    past = [2, "batch", sizes.heads, "past", sizes.size]
    caches = [body.input(f"past_{layer}", FLOAT, past) for layer in range(sizes.layers)]
    words = body.constant(embeddings(rng, sizes))
    x = body.op("Add", body.op("Gather", words, ids), body.op("Gather", body.weight(length, sizes.width), positions))
    presents = []
    for layer in range(sizes.layers):
        query, key, value = (
            body.heads(body.op("MatMul", x, body.weight(sizes.width, sizes.width, scale=sizes.scale())), sizes.heads,
                       sizes.size) for _ in range(3))
        both = body.op("Concat", body.op("Unsqueeze", key, body.ints(0)), body.op("Unsqueeze", value, body.ints(0)), axis=0)
        present = body.op("Concat", caches[layer], both, axis=3)
        presents.append(present)
        key, value = (body.op("Gather", present, body.constant(np.array(at, np.int64)), axis=0) for at in range(2))
        seen = body.attended(query, key, value, sizes.size, body.padding(mask), body.causal(ids, key))
        x = body.op("Add", x, body.op("MatMul", body.merged(seen, sizes.width),
                                      body.weight(sizes.width, sizes.width, scale=sizes.scale())))
    logits = body.op("MatMul", x, body.op("Transpose", words, perm=[1, 0]))
    body.output(logits, "logits", ["batch", "steps", sizes.vocabulary])
    for layer, present in enumerate(presents):
        body.output(present, f"present_{layer}", [2, "batch", sizes.heads, "total", sizes.size])
    return body.graph()


def projections(rng, sizes):
    """Matrices of the decoder's layers, which both graphs of a model have."""
    square = lambda: (rng.standard_normal((sizes.width, sizes.width)) * sizes.scale()).astype(np.float32)
    return [[square() for _ in range(8)] for _ in range(sizes.layers)]


def decoded(body, sizes, x, ids, layers, selfs, crosses, mask):
    """Layers of self-attention and cross-attention; gives the hidden states and the caches of the former."""
    presents = []
    for matrices, past, cross in zip(layers, selfs, crosses):
        query, key, value = (
            body.heads(body.op("MatMul", x, body.constant(matrix)), sizes.heads, sizes.size) for matrix in matrices[:3])
        if past is not None:
            key, value = (body.op("Concat", old, new, axis=2) for old, new in zip(past, (key, value)))
        presents.append((key, value))
        seen = body.attended(query, key, value, sizes.size, body.causal(ids, key))
        x = body.op("Add", x, body.op("MatMul", body.merged(seen, sizes.width), body.constant(matrices[3])))
        query = body.heads(body.op("MatMul", x, body.constant(matrices[4])), sizes.heads, sizes.size)
        seen = body.attended(query, *cross, sizes.size, *([] if mask is None else [body.padding(mask)]))
        x = body.op("Add", x, body.op("MatMul", body.merged(seen, sizes.width), body.constant(matrices[5])))
    return x, presents


def cache_names(layer, kind, prefix):
    return [f"{prefix}_{part}_{kind}_{layer}" for part in ("key", "value")]


def with_encoder(rng, sizes, whisper=False, hidden=False, sequence=False, cross_only=False, pointer=False, features=3):
    """The graphs `encoder` and `decoder` of a model with both.

    `hidden`: the decoder takes the encoder's hidden states, and ignores them. `sequence`: it takes all tokens, and needs the last.
    `cross_only`: the encoder does not start the decoder. `pointer`: the decoder also takes the encoder's tokens.
    """
    words, layers = embeddings(rng, sizes), projections(rng, sizes)
    body = Body(rng, "encoder")
    first = ["batch", features, "frames"] if whisper else ["batch", "length"]
    given = body.input("encoder_input_ids", FLOAT if whisper else INT32, first)
    mask = None if whisper else body.input("encoder_attention_mask", INT32, ["batch", "length"])
    ids = None if cross_only else body.input("decoder_input_ids", INT32, ["batch", "start"])
    if whisper:
        x = body.op("MatMul", body.op("Transpose", given, perm=[0, 2, 1]), body.weight(features, sizes.width))
    else:
        x = body.op("Gather", body.constant(words), given)
        query = body.heads(x, sizes.heads, sizes.size)
        x = body.op("Add", x, body.merged(body.attended(query, query, query, sizes.size, body.padding(mask)), sizes.width))
    crosses = [
        tuple(body.heads(body.op("MatMul", x, body.constant(matrix)), sizes.heads, sizes.size) for matrix in matrices[6:])
        for matrices in layers]
    if ids is not None:
        y, presents = decoded(body, sizes, body.op("Gather", body.constant(words), ids), ids, layers,
                              [None] * sizes.layers, crosses, mask)
        body.output(body.op("MatMul", y, body.constant(words.T.copy())), "logits", ["batch", "start", sizes.vocabulary])
        body.output(x, "encoder_hidden_states", ["batch", "frames", sizes.width])
        for layer, caches in enumerate(presents):
            for name, value in zip(cache_names(layer, "self", "present"), caches):
                body.output(value, name, ["batch", sizes.heads, "start", sizes.size])
    for layer, caches in enumerate(crosses):
        for name, value in zip(cache_names(layer, "cross", "present"), caches):
            body.output(value, name, ["batch", sizes.heads, "frames", sizes.size])
    encoder = body.graph()

    body = Body(rng, "decoder")
    ids = body.input("input_ids", INT32, ["batch", "steps" if sequence else 1])
    tokens = body.input("encoder_input_ids", INT32, ["batch", "length"]) if pointer else None
    mask = None if whisper else body.input("encoder_attention_mask", INT32, ["batch", "length"])
    if hidden:
        body.input("encoder_hidden_states", FLOAT, ["batch", "frames", sizes.width])
    pasts = {}
    for kind, size in (("self", "past"), ("cross", "frames")):
        dims = ["batch", sizes.heads, size, sizes.size]
        pasts[kind] = [
            [body.input(name, FLOAT, dims) for name in cache_names(layer, kind, "past")] for layer in range(sizes.layers)]
    last = body.op("Slice", ids, body.ints(-1), body.ints(2**31 - 1), body.ints(1))
    x = body.op("Gather", body.constant(words), last)
    if pointer:
        first = body.op("Gather", tokens, body.ints(0), axis=1)
        x = body.op("Add", x, body.op("Gather", body.constant(words), first))
    y, presents = decoded(body, sizes, x, last, layers, pasts["self"], pasts["cross"], mask)
    body.output(body.op("MatMul", y, body.constant(words.T.copy())), "logits", ["batch", 1, sizes.vocabulary])
    for layer, caches in enumerate(presents):
        for name, value in zip(cache_names(layer, "self", "present"), caches):
            body.output(value, name, ["batch", sizes.heads, "total", sizes.size])
    return encoder, body.graph()
