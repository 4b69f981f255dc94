"""The loop of main.c over ONNX Runtime, with the sampler of sampler.h:

    python reference.py [options] PROMPT ...                           prints the numbers of the tokens, one a line
    python reference.py [options] --record FILE PROMPT ...             notes the arguments and the tokens in a line of FILE
    python reference.py [options] --program build/chat PROMPT ...      compares the tokens of a program, and the time of both

Exit status 1 where they differ. The distance of draws to another token shows how much rounding could have changed.
"""
import argparse
import math
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
END = "<|endoftext|>"


class Sampler:
    def __init__(self, options):
        self.options, self.state = options, options.seed
        #: Least distance of a draw from where another token would have been taken, as a share of all weights.
        self.distance = 1.0

    def uniform(self):
        mask = (1 << 64) - 1
        self.state = z = (self.state + 0x9e3779b97f4a7c15) & mask
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & mask
        z = (z ^ z >> 27) * 0x94d049bb133111eb & mask
        return ((z ^ z >> 31) >> 11) * 2.0 ** -53

    def next(self, logits):
        options = self.options
        if options.temperature <= 0:
            return int(logits.argmax())
        # Stable: equal ones by number.
        tokens = np.argsort(-logits, kind="stable")[:options.top_k or None]
        greatest = float(logits[tokens[0]])
        weights = [math.exp((float(logits[token]) - greatest) / options.temperature) for token in tokens]
        # Not by `sum`, which rounds otherwise.
        total = 0.0
        for weight in weights:
            total += weight
        ends, reached = [], 0.0
        for weight in weights:
            reached += weight
            ends.append(reached)
            if reached >= options.top_p * total:
                break
        drawn = self.uniform() * reached
        at = next(at for at, end in enumerate(ends) if end > drawn)
        start = ends[at - 1] if at else 0.0
        inner = [ends[at] - drawn] * (at + 1 < len(ends)) + [drawn - start] * (at > 0)
        self.distance = min([self.distance, *(gap / reached for gap in inner)])
        return int(tokens[at])


class Session:
    """The model and its caches, of one text."""

    def __init__(self, options):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        self.session = onnxruntime.InferenceSession(options.model, settings, providers=["CPUExecutionProvider"])
        self.caches = self.session.get_inputs()[3:]
        self.outputs = ["logits"] + [cache.name.replace("past_key_values", "present") for cache in self.caches]
        self.context, self.seconds = options.context, 0.0
        self.forget()

    def forget(self):
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.past = {cache.name: np.zeros((1, cache.shape[1], 0, cache.shape[3]), kinds[cache.type]) for cache in self.caches}
        self.length = 0

    def feed(self, tokens):
        end = self.length + len(tokens)
        feeds = {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, end), np.int64),
                 "position_ids": np.arange(self.length, end, dtype=np.int64)[None], **self.past}
        start = time.perf_counter()
        logits, *present = self.session.run(self.outputs, feeds)
        self.seconds += time.perf_counter() - start
        self.past, self.length = dict(zip(self.past, present)), end
        return logits[0, -1]


def generate(options):
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    tokens = [end, *tokenizer.encode(" ".join(options.prompt)).ids]
    prompt, sampler, session = len(tokens), Sampler(options), Session(options)
    logits = session.feed(tokens[-options.context:])
    while len(tokens) < prompt + options.tokens:
        token = sampler.next(logits)
        tokens.append(token)
        if token == end and not options.endless:
            break
        if session.length < options.context:
            logits = session.feed(tokens[-1:])
        else:
            session.forget()
            logits = session.feed(tokens[-(options.context // 2):])
    return tokens[prompt:], session.seconds, sampler.distance


#: Options of both programs.
SHARED = ("temperature", "top_k", "top_p", "seed", "tokens", "context", "endless")


def compare(program, arguments, tokens):
    output = subprocess.run([program, "--ids", "1", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [int(line) for line in output.split()]
    if found != tokens:
        at = next((at for at, (a, b) in enumerate(zip(found, tokens)) if a != b), min(len(found), len(tokens)))
        sys.exit(f"token {at} differs: {program} has {found[at:at + 8]}, ONNX Runtime {tokens[at:at + 8]}")
    print(f"{len(tokens)} tokens equal those of ONNX Runtime")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="*")
    parser.add_argument("--model", default=str(HERE / "chat.onnx"))
    parser.add_argument("--program")
    parser.add_argument("--record")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--endless", type=int, default=0)
    options = parser.parse_args()
    tokens, seconds, distance = generate(options)
    shared = [text for name in SHARED for text in ("--" + name.replace("_", "-"), str(getattr(options, name)))]
    if options.record is not None:
        with open(options.record, "a") as file:
            print(" ".join([*shared, *options.prompt]), " ".join(map(str, tokens)), sep="\t", file=file)
    elif options.program is not None:
        compare(options.program, ["--threads", str(options.threads), *shared, *options.prompt], tokens)
        print(f"the nearest draw was {distance:.1e} away from another token")
        print(f"ONNX Runtime's runs took {seconds:.3f} s, {len(tokens) / seconds:.0f} tokens per second")
    else:
        print("\n".join(map(str, tokens)))


main()
