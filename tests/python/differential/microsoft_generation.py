"""Recipes of the operators of generation of com.microsoft: `definitions_generation` says what they should give."""

import numpy as np

import decoders
from case import Skip
from vendor import recipe


def tokens(n, sizes, rows, length, pad):
    """Prompts, the shorter ones with padding before them."""
    ids = n.rng.integers(0, sizes.vocabulary, (rows, length)).astype(np.int32)
    ids[ids == pad] = (pad + 1) % sizes.vocabulary
    if n.chance(0.5):
        for row in ids:
            row[: n.integer(0, length - 1)] = pad
    return ids


def scalar(n, value, kind=np.int32, constant=0.5):
    n.add(np.asarray(value if n.chance(0.3) else [value], kind), constant)


def mask(n, dims, share=0.8):
    """A mask that leaves some tokens."""
    array = (n.rng.random(dims) < share).astype(np.int32)
    array[..., n.rng.integers(0, dims[-1], 4)] = 1
    return n.add(array)


def optional(n, probability, draw):
    if n.chance(probability):
        draw()
    else:
        n.omit()


def start(n):
    if n.given is not None:
        raise Skip("chain")
    n.edge, n.exact, n.ulps, n.scale_ulps, n.magnitude = 0.0, False, 64, 64, 10.0


def common(n, sizes):
    """The tokens that end and fill a sequence."""
    eos = n.integer(0, sizes.vocabulary - 1)
    pad = eos if n.chance(0.3) else n.integer(0, sizes.vocabulary - 1)
    n.attr("eos_token_id", eos)
    n.attr("pad_token_id", pad)
    n.maybe("no_repeat_ngram_size", n.integer(0, 3), 0.4)
    return pad


def bodies_of_gpt(n, sizes, longest):
    seed = n.integer(0, 2**31)
    body = lambda name: decoders.gpt(np.random.default_rng(seed), sizes, longest, name)
    n.attr("decoder", body("decoder"))
    if n.chance(0.2) and n.op != "Sampling":
        n.attr("init_decoder", body("first"))


@recipe("GreedySearch")
def greedy(n):
    start(n)
    sizes = decoders.Sizes(n)
    rows, length = n.integer(1, 3), n.integer(1, 5)
    longest = length + n.integer(1, 7)
    bodies_of_gpt(n, sizes, longest)
    pad = common(n, sizes)
    n.add(tokens(n, sizes, rows, length, pad))
    scalar(n, longest)
    optional(n, 0.5, lambda: scalar(n, n.integer(0, longest - 1)))
    optional(n, 0.5, lambda: scalar(n, n.pick(1.0, 1.5, 0.7, 3.0), np.float32))
    optional(n, 0.4, lambda: mask(n, (sizes.vocabulary,)))
    optional(n, 0.4, lambda: mask(n, (rows, sizes.vocabulary)))
    if n.chance(0.3):
        n.add((n.rng.random((rows, length)) < 0.8).astype(np.int32))


def search(n, sizes, longest, batch):
    """Inputs from `max_length` to `prefix_vocab_mask`."""
    scalar(n, longest)
    # ONNX Runtime asks for the least length and for the penalty.
    optional(n, 0.95, lambda: scalar(n, n.pick(0, n.integer(0, longest - 1))))
    beams = n.integer(1, min(4, sizes.vocabulary // 2))
    scalar(n, beams)
    scalar(n, n.integer(1, beams))
    optional(n, 0.95, lambda: scalar(n, n.pick(1.0, 0.0, 2.0, 0.7, -1.0), np.float32))
    optional(n, 0.5, lambda: scalar(n, n.pick(1.0, 1.5, 0.7, 3.0), np.float32))
    optional(n, 0.3, lambda: mask(n, (sizes.vocabulary,)))
    optional(n, 0.3, lambda: mask(n, (batch, sizes.vocabulary)))


@recipe("BeamSearch")
def beams(n):
    start(n)
    n.types["T"] = "float"
    sizes = decoders.Sizes(n)
    rows, length = n.integer(1, 3), n.integer(1, 5)
    kind = n.pick(0, 0, 1, 1)
    longest = (1 if kind else length) + n.integer(2, 7)
    n.maybe("early_stopping", n.integer(0, 1))
    pad = common(n, sizes)
    if kind:
        n.attr("model_type", 1)
        n.attr("decoder_start_token_id", n.integer(0, sizes.vocabulary - 1))
        form = n.pick("plain", "hidden", "sequence", "cross")
        rng = np.random.default_rng(n.integer(0, 2**31))
        encoder, decoder = decoders.with_encoder(
            rng, sizes, hidden=form == "hidden", sequence=form == "sequence", cross_only=form == "cross",
            pointer=n.chance(0.3))
        n.attr("encoder", encoder)
        n.attr("decoder", decoder)
    else:
        bodies_of_gpt(n, sizes, longest)
    n.add(tokens(n, sizes, rows, length, pad))
    search(n, sizes, longest, rows)
    if n.chance(0.3):
        n.add((n.rng.random((rows, length)) < 0.8).astype(np.int32))
    n.outputs = n.pick(1, 2, 3)


@recipe("Sampling")
def sampling(n):
    start(n)
    sizes = decoders.Sizes(n)
    rows, length = n.integer(1, 3), n.integer(1, 5)
    longest = length + n.integer(1, 7)
    bodies_of_gpt(n, sizes, longest)
    pad = common(n, sizes)
    # One token is left to draw.
    n.attr("top_p", float(np.float32(n.pick(1e-6, 0.01))))
    if n.chance(0.5):
        n.attr("custom", 1)
        n.maybe("min_tokens_to_keep", n.integer(0, 2), 0.3)
    else:
        n.attr("min_tokens_to_keep", 1)
    n.maybe("temperature", float(np.float32(n.pick(1.0, 0.5, 2.0))), 0.5)
    n.maybe("filter_value", -1e10, 0.3)
    n.add(tokens(n, sizes, rows, length, pad))
    scalar(n, longest)
    optional(n, 0.5, lambda: scalar(n, n.integer(0, longest - 1)))
    optional(n, 0.5, lambda: scalar(n, n.pick(1.0, 1.5, 0.7, 3.0), np.float32))
    optional(n, 0.4, lambda: mask(n, (sizes.vocabulary,)))
    optional(n, 0.4, lambda: mask(n, (rows, sizes.vocabulary)))
    optional(n, 0.3, lambda: n.add((n.rng.random((rows, length)) < 0.8).astype(np.int32)))
    if n.chance(0.3):
        n.maybe("presence_penalty", float(np.float32(n.pick(0.5, 2.0))), 0.8)
        n.add((n.rng.random((rows, sizes.vocabulary)) < 0.3).astype(np.int32))
    else:
        n.omit()
    optional(n, 0.4, lambda: scalar(n, n.integer(0, 2**31 - 1)))


@recipe("WhisperBeamSearch")
def whisper(n):
    start(n)
    n.types["T"] = n.types["F"] = "float"
    sizes = decoders.Sizes(n)
    sizes.vocabulary = n.integer(12, 40)
    rows, features, frames = n.integer(1, 3), n.integer(2, 4), n.integer(2, 6)
    begin = n.integer(8, sizes.vocabulary - 3)
    names = ["eos", "decoder_start", "translate", "transcribe", "start_of_lm", "no_timestamps", "no_speech"]
    special = n.rng.permutation(begin)[: len(names)]
    if n.chance(0.7):
        # As in Whisper's vocabulary: text, then the end, then what is special.
        special = np.sort(special)
    n.attr("beginning_timestamp_token_id", begin)
    for name, token in zip(names, special):
        n.attr(f"{name}_token_id", int(token))
    n.attr("pad_token_id", n.attributes["eos_token_id"] if n.chance(0.6) else n.integer(0, sizes.vocabulary - 1))
    n.maybe("no_repeat_ngram_size", n.integer(0, 3), 0.3)
    n.maybe("early_stopping", n.integer(0, 1))
    n.maybe("model_type", 2)
    rng = np.random.default_rng(n.integer(0, 2**31))
    form = n.pick("plain", "hidden")
    encoder, decoder = decoders.with_encoder(rng, sizes, whisper=True, hidden=form == "hidden", features=features)
    n.attr("encoder", encoder)
    n.attr("decoder", decoder)
    origin = n.integer(1, 4)
    longest = origin + n.integer(2, 7)
    n.add(n.rng.uniform(-1, 1, (rows, features, frames)).astype(np.float32))
    if origin == 1 and n.chance(0.5):
        given = None
    else:
        given = n.rng.integers(0, begin, (rows, origin)).astype(np.int32)
        given[:, 0] = n.attributes["decoder_start_token_id"]
    search(n, sizes, longest, rows)
    n.omit()
    if given is None:
        n.omit()
    else:
        n.add(given)
    optional(n, 0.7, lambda: scalar(n, n.pick(0, 1, 1)))
    n.omit()
    n.omit()
    optional(n, 0.4, lambda: scalar(n, n.pick(1.0, 0.5, 2.0), np.float32))
    n.outputs = n.pick(1, 2, 3)
