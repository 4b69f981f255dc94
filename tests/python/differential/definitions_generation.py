"""What the operators of generation of com.microsoft should give: sequential forms of the loops of ONNX Runtime's kernels over
their bodies, which the reference of the ONNX package runs.

A case in which rounding could pick another token is skipped.
"""

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from case import Close
from vendor import arrays, attribute, definition

LOWEST = np.finfo(np.float32).min
#: Scores that are as close as this, relative to their size, count as equal.
MARGIN = 2e-4


class Graph:
    """A body, as a function of arrays."""

    def __init__(self, graph, opset):
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        self.evaluator = ReferenceEvaluator(model)
        self.inputs = [info.name for info in graph.input]
        self.outputs = [info.name for info in graph.output]
        self.graph = graph

    def __call__(self, *values):
        return self.evaluator.run(None, dict(zip(self.inputs, values)))

    def dims(self, at):
        return [dim.dim_value for dim in self.graph.input[at].type.tensor_type.shape.dim]


def number(array, default):
    return default if array is None else array.reshape(-1)[0]


def apart(values, count):
    """Skips a row unless its `count` greatest values are far from each other and from the rest."""
    top = -np.sort(-values.astype(np.float64), axis=-1)[..., : count + 1]
    top = top[..., np.isfinite(top).all(tuple(range(top.ndim - 1)))]
    gaps = top[..., :-1] - top[..., 1:]
    # What is masked is all the same, and its order by number.
    exact = (top[..., :-1] < LOWEST / 2) & (top[..., 1:] < LOWEST / 2)
    if np.any((gaps < MARGIN * np.maximum(1, np.abs(top[..., 1:]))) & ~exact):
        raise Close("scores are too close")


class Scores:
    """Processors of the scores of next tokens, in their order."""

    def __init__(self, node, vocabulary, vocab_mask, prefix_mask, min_length, repetition):
        self.ngram = attribute(node, "no_repeat_ngram_size", 0)
        self.eos = attribute(node, "eos_token_id")
        self.vocab_mask, self.prefix_mask, self.vocabulary = vocab_mask, prefix_mask, vocabulary
        self.min_length = int(number(min_length, 0))
        self.repetition = np.float32(number(repetition, 1.0))
        if not self.repetition > 0:
            raise ValueError("a repetition penalty that is not above 0")
        self.temperature = np.float32(1)
        self.presence = None
        self.timestamps = None

    def process(self, scores, sequences, first):
        scores = scores.copy()
        length, beams = sequences.shape[1], 1
        for row, sequence in zip(scores, sequences):
            if self.repetition != 1:
                for token in set(sequence.tolist()):
                    row[token] = row[token] * self.repetition if row[token] < 0 else row[token] / self.repetition
            if self.ngram and length >= self.ngram:
                prefix = sequence[length - self.ngram + 1:]
                for at in range(length - self.ngram + 1):
                    if np.array_equal(sequence[at: at + self.ngram - 1], prefix):
                        row[sequence[at + self.ngram - 1]] = LOWEST
        if self.vocab_mask is not None:
            scores[:, self.vocab_mask == 0] = LOWEST
        if self.prefix_mask is not None and first:
            beams = len(scores) // len(self.prefix_mask)
            scores[self.prefix_mask.repeat(beams, 0) == 0] = LOWEST
        if length < self.min_length:
            scores[:, self.eos] = LOWEST
        if self.temperature > 0:
            scores = scores / self.temperature
        if self.presence is not None:
            scores -= self.presence
        if self.timestamps is not None:
            for row, sequence in zip(scores, sequences):
                self.timestamps(row, sequence)
        return scores


class Tokens:
    """Ids of the tokens that Whisper's timestamps depend on."""

    def __init__(self, node, vocabulary):
        name = lambda text: attribute(node, f"{text}_token_id", -1)
        self.eos, self.begin, self.none = name("eos"), name("beginning_timestamp"), name("no_timestamps")
        self.model, self.start = name("start_of_lm"), name("decoder_start")
        self.tasks = (name("translate"), name("transcribe"))
        self.vocabulary = vocabulary

    def __call__(self, row, sequence):
        begin, length = self.begin, len(sequence)
        stamps = np.flatnonzero(sequence >= begin)
        sample = stamps[0] + 1 if len(stamps) else length
        hidden = [self.none, self.model] + ([self.start, *self.tasks] if length > sample else [])
        row[[token for token in hidden if 0 <= token < self.vocabulary]] = LOWEST
        last = sequence[-1] >= begin
        before = length <= sample or sequence[-2] >= begin
        if last and before:
            row[begin:] = LOWEST
        elif last:
            row[: self.eos] = LOWEST
        if len(stamps):
            least = sequence[stamps[-1]] + (0 if last and not before else 1)
            row[begin: least] = LOWEST
        if length == sample:
            row[begin + 51:] = LOWEST
        stamped = row[begin:].astype(np.float64)
        stamped = stamped[stamped > LOWEST]
        total = np.log(np.exp(stamped - stamped.max()).sum()) + stamped.max() if len(stamped) else LOWEST
        best = row[:begin].max()
        if abs(total - best) < MARGIN * max(1, abs(best)):
            raise Close("timestamps and text are as likely")
        if total > best:
            row[:begin] = LOWEST


def log_softmax(logits):
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return (wide - np.log(np.exp(wide).sum(-1, keepdims=True))).astype(np.float32)


class Decoder:
    """A model without an encoder: what comes in at each step, one row per beam."""

    def __init__(self, node, opset, ids, pad, mask):
        self.body = Graph(attribute(node, "decoder"), opset)
        first = attribute(node, "init_decoder")
        self.first = Graph(first, opset) if first is not None and node.op != "Sampling" else self.body
        self.start = ids
        real = ids != pad
        self.positions = np.where(real, np.cumsum(real, 1) - 1, 0).astype(np.int32)
        self.mask = real.astype(np.int32) if mask is None else mask
        self.count = real.sum(1).astype(np.int32)[:, None]
        _, _, heads, _, size = self.body.dims(3)
        self.empty = np.zeros((2, len(ids), heads, 0, size), np.float32)

    def begin(self, beams):
        """Logits of the first step, `[rows * beams, vocabulary]`."""
        pasts = [self.empty] * (len(self.body.inputs) - 3)
        logits, *self.caches = self.first(self.start, self.positions, self.mask, *pasts)
        spread = lambda array, axis=0: array.repeat(beams, axis)
        self.caches = [spread(cache, 1) for cache in self.caches]
        self.mask, self.count = spread(self.mask), spread(self.count)
        return spread(logits[:, -1]), spread(self.start)

    def step(self, sequences, parents):
        self.mask = np.concatenate([self.mask, np.ones_like(self.mask[:, :1])], 1)
        caches = [cache[:, parents] for cache in self.caches]
        logits, *self.caches = self.body(sequences[:, -1:], self.count, self.mask, *caches)
        self.count = self.count + 1
        return logits[:, -1]


class EncoderDecoder:
    """A model with an encoder, of tokens or of features."""

    def __init__(self, node, opset, given, pad, mask, start):
        self.encoder, self.decoder = (Graph(attribute(node, name), opset) for name in ("encoder", "decoder"))
        self.given, self.start = given, start
        self.mask = mask
        if given.ndim == 2 and mask is None:
            self.mask = (np.cumsum(given != pad, 1) > 0).astype(np.int32)
        self.hidden = "encoder_hidden_states" in self.decoder.inputs
        self.tokens = [given] if "encoder_input_ids" in self.decoder.inputs else []
        self.layers = sum(name.startswith("present") for name in self.decoder.outputs)
        self.whole = self.decoder.dims(0)[1] != 1

    def begin(self, beams):
        masks = [] if self.given.ndim == 3 else [self.mask]
        spread = lambda array: array.repeat(beams, 0)
        if len(self.encoder.inputs) == 2 and self.given.ndim == 2:
            crosses = self.encoder(self.given, *masks)
            heads, size = crosses[0].shape[1], crosses[0].shape[3]
            empty = np.zeros((len(self.given), heads, 0, size), np.float32)
            self.context = [spread(array) for array in self.tokens + masks]
            self.crosses = [spread(array) for array in crosses]
            self.caches = [spread(empty)] * self.layers
            sequences = spread(self.start)
            return self.step(sequences, np.arange(len(sequences))), sequences
        logits, hidden, *caches = self.encoder(self.given, *masks, self.start)
        self.context = [spread(array) for array in self.tokens + masks + ([hidden] if self.hidden else [])]
        self.caches = [spread(array) for array in caches[: self.layers]]
        self.crosses = [spread(array) for array in caches[self.layers:]]
        return spread(logits[:, -1]), spread(self.start)

    def step(self, sequences, parents):
        ids = sequences if self.whole else sequences[:, -1:]
        caches = [cache[parents] for cache in self.caches]
        logits, *self.caches = self.decoder(ids, *self.context, *caches, *self.crosses)
        return logits[:, -1]


def vocabulary(node, logits):
    own = attribute(node, "vocab_size", -1)
    return own if own > 0 else logits.shape[-1]


def continued(node, ids, model, scores, begun, longest, restrict):
    """Texts to which the token of the greatest score is appended until all have ended, of scores that `restrict` has changed."""
    pad, eos = attribute(node, "pad_token_id"), attribute(node, "eos_token_id")
    logits, sequences = begun
    count, done = logits.shape[-1], np.zeros(len(ids), bool)
    while True:
        found = scores.process(logits[:, :count], sequences, sequences.shape[1] == ids.shape[1])
        restrict(found)
        tokens = found.argmax(1).astype(np.int32)
        done |= tokens == eos
        tokens[done] = pad
        sequences = np.concatenate([sequences, tokens[:, None]], 1)
        if done.all() or sequences.shape[1] == longest:
            break
        logits = model.step(sequences, np.arange(len(ids)))
    return [np.pad(sequences, ((0, 0), (0, longest - sequences.shape[1])), constant_values=pad)]


@definition("GreedySearch")
def greedy(node):
    ids, longest, least, repetition, vocab_mask, prefix_mask, mask = arrays(node)
    longest = int(number(longest, 0))
    model = Decoder(node, node.opset, ids, attribute(node, "pad_token_id"), mask)
    logits, sequences = model.begin(1)
    count = vocabulary(node, logits)
    scores = Scores(node, count, vocab_mask, prefix_mask, least, repetition)
    return continued(node, ids, model, scores, (logits[:, :count], sequences), longest, lambda found: apart(found, 1))


class Hypotheses:
    """The best finished sequences of one row, best first."""

    def __init__(self, beams, penalty):
        self.beams, self.penalty, self.kept, self.done = beams, np.float32(penalty), [], False

    def rated(self, total, length):
        return np.float32(total / np.float32(length) ** self.penalty)

    def add(self, sequence, total):
        score = self.rated(total, len(sequence))
        if any(abs(score - other) < MARGIN * max(1, abs(score)) for other, _ in self.kept if other > LOWEST / 2):
            raise Close("hypotheses are too close")
        self.kept.append((score, sequence))
        self.kept = sorted(self.kept, key=lambda pair: -pair[0])[: self.beams]


@definition("BeamSearch", "WhisperBeamSearch")
def beam_search(node):
    whisper = node.op == "WhisperBeamSearch"
    given = arrays(node) + [None] * 15
    ids, longest, least, beams, returned, penalty, repetition, vocab_mask, prefix_mask, mask, start, processor = given[:12]
    temperature = given[14] if whisper else None
    pad, eos, longest = attribute(node, "pad_token_id"), attribute(node, "eos_token_id"), int(number(longest, 0))
    beams, returned = int(number(beams, 1)), int(number(returned, 1))
    early = attribute(node, "early_stopping", 0) == 1
    kind = attribute(node, "model_type", 2 if whisper else 0)
    if kind == 0:
        model = Decoder(node, node.opset, ids, pad, mask)
    else:
        if start is None or kind == 1:
            start = np.full((len(ids), 1), attribute(node, "decoder_start_token_id"), np.int32)
        model = EncoderDecoder(node, node.opset, ids, pad, mask, start)
    logits, sequences = model.begin(beams)
    count, rows, origin = vocabulary(node, logits), len(ids), sequences.shape[1]
    if node.schema.outputs and len(node.schema.outputs) > 4 and node.outputs > 4:
        e = np.exp(log_softmax(logits[::beams, :count]).astype(np.float64))
        silence = e[:, attribute(node, "no_speech_token_id")].astype(np.float32)
    scores = Scores(node, count, vocab_mask, prefix_mask, least, repetition)
    scores.temperature = np.float32(number(temperature, 1.0))
    if whisper and int(number(processor, 0)) == 1:
        scores.timestamps = Tokens(node, count)
    hypotheses = [Hypotheses(beams, number(penalty, 1.0)) for _ in range(rows)]
    totals = np.zeros((rows, beams), np.float32)
    totals[:, 1:] = -1e9
    told = []
    while True:
        first, length = sequences.shape[1] == origin, sequences.shape[1]
        found = scores.process(log_softmax(logits[:, :count]), sequences, first)
        found = (found + totals.reshape(-1, 1)).reshape(rows, -1)
        told.append(found.reshape(rows, beams, count))
        parents, tokens, following = (np.zeros((rows, beams), kind) for kind in (np.int64, np.int32, np.float32))
        for row, own in enumerate(hypotheses):
            if own.done:
                tokens[row] = pad
                continue
            apart(found[row], 2 * beams)
            order = np.argsort(-found[row], kind="stable")[: 2 * beams]
            beam = 0
            for rank, place in enumerate(order):
                parent, token = row * beams + place // count, place % count
                if token == eos:
                    if rank < beams:
                        own.add(sequences[parent], found[row, place])
                    continue
                parents[row, beam], tokens[row, beam], following[row, beam] = parent, token, found[row, place]
                beam += 1
                if beam == beams:
                    break
            if len(own.kept) == beams:
                best, worst = own.rated(found[row, order[0]], length), own.kept[-1][0]
                if abs(best - worst) < MARGIN * max(1, abs(best)) and not early:
                    raise Close("whether a row is done is too close")
                own.done = early or worst >= best
        totals, parents = following, parents.reshape(-1)
        sequences = np.concatenate([sequences[parents], tokens.reshape(-1, 1)], 1)
        # Of a model with an encoder the first step is not asked.
        done = all(own.done for own in hypotheses) and not (kind and first)
        if done or sequences.shape[1] == longest:
            break
        logits = model.step(sequences, parents)
    result = np.full((rows, returned, longest), pad, np.int32)
    rated = np.zeros((rows, returned), np.float32)
    for row, own in enumerate(hypotheses):
        if not own.done:
            for beam in range(beams):
                own.add(sequences[row * beams + beam], totals[row, beam])
        for at in range(returned):
            rated[row, at], sequence = own.kept[at]
            result[row, at, : len(sequence)] = sequence
    if node.outputs > 2:
        steps = longest - origin - len(told)
        told = np.concatenate([np.stack(told), np.zeros((steps, rows, beams, count), np.float32)])
    results = [result, rated, told]
    if node.outputs > 4:
        results += [np.zeros(0, np.float32), silence]
    return results


@definition("Sampling")
def sampling(node):
    ids, longest, least, repetition, vocab_mask, prefix_mask, mask, presence, _ = arrays(node)
    longest = int(number(longest, 0))
    top, keep = attribute(node, "top_p", 0.0), attribute(node, "min_tokens_to_keep", 0)
    custom, low = attribute(node, "custom", 0), attribute(node, "filter_value", float(np.float32(-1e20)))
    model = Decoder(node, node.opset, ids, attribute(node, "pad_token_id"), mask)
    logits, sequences = model.begin(1)
    count = vocabulary(node, logits)
    scores = Scores(node, count, vocab_mask, prefix_mask, least, repetition)
    scores.temperature = np.float32(attribute(node, "temperature", 1.0))
    if presence is not None:
        scores.presence = presence * np.float32(attribute(node, "presence_penalty", 0.0))

    def restrict(found):
        apart(found, count)
        for row in found:
            order = np.argsort(-row if custom else row, kind="stable")
            wide = row[order].astype(np.float64)
            weights = np.exp(wide - wide.max())
            total = np.cumsum(weights / weights.sum())
            if custom:
                dropped = order[1:][total[:-1] > top]
                if np.any(np.abs(total[:-1] - top) < MARGIN):
                    raise Close("too close to top_p")
            else:
                last = max(1, count - keep)
                dropped = order[:last][total[:last] <= 1 - top]
                if np.any(np.abs(total[: count - 1] - (1 - top)) < 1e-7):
                    raise Close("too close to top_p")
            row[dropped] = low
            if (row >= row.max() - 60).sum() > 1:
                raise Close("several tokens may be drawn")

    return continued(node, ids, model, scores, (logits[:, :count], sequences), longest, restrict)
