"""The loop of speech.c over ONNX Runtime:

    python reference.py FILE.wav ...                             prints the tokens of each recording
    python reference.py --record FILE FILE.wav ...               notes the tokens of each, moved and in several loudnesses
    python reference.py --program build/speech --count 24        compares the tokens of a program, for sentences that espeak-ng speaks

Exit status 1 where they differ.
"""
import argparse
import pathlib
import subprocess
import sys
import time
import wave

import numpy as np
import onnxruntime

HERE = pathlib.Path(__file__).parent
RATE, SAMPLES, MOST = 8000, 40000, 16
END, START = 0, 1
#: Zeros before the recording, and eighths of its loudness.
VARIANTS = [(0, 8), (640, 8), (1000, 5), (2345, 3), (4001, 8), (5000, 2), (6400, 6)]


def read(path):
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            sys.exit(f"{path}: must have one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(file.readframes(SAMPLES), "<i2")


def write(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.asarray(samples, "<i2").tobytes())


class Reference:
    def __init__(self):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        sessions = [onnxruntime.InferenceSession(str(HERE / f"{name}.onnx"), settings, providers=["CPUExecutionProvider"])
                    for name in ("encoder", "decoder")]
        self.encoder, self.decoder = sessions
        self.own = [cache for cache in self.decoder.get_inputs() if "_self_" in cache.name]
        self.seconds = [0.0, 0.0]
        #: Least distance of the greatest logit to the next one.
        self.distance = np.inf

    def run(self, at, session, names, feeds):
        start = time.perf_counter()
        results = session.run(names, feeds)
        self.seconds[at] += time.perf_counter() - start
        return results

    def tokens(self, samples):
        window = np.zeros((1, SAMPLES), np.float32)
        window[0, :len(samples)] = samples / np.float32(32768)
        names = [output.name for output in self.encoder.get_outputs()]
        heard = self.run(0, self.encoder, names, {"samples": window})
        caches = {name.replace("present", "past", 1): value for name, value in zip(names, heard)}
        caches |= {cache.name: np.zeros((1, cache.shape[1], 0, cache.shape[3]), np.float32) for cache in self.own}
        names = ["logits"] + [cache.name.replace("past", "present", 1) for cache in self.own]
        found = [START]
        while len(found) <= MOST and (len(found) == 1 or found[-1] != END):
            logits, *present = self.run(1, self.decoder, names, {"input_ids": np.array([found[-1:]], np.int64), **caches})
            caches |= {cache.name: value for cache, value in zip(self.own, present)}
            second, first = np.sort(logits[0, -1])[-2:]
            self.distance = min(self.distance, float(first - second))
            found.append(int(logits[0, -1].argmax()))
        return found[1:]


def record(path, files, reference):
    lines = []
    for name in files:
        for shift, loudness in VARIANTS:
            samples = np.concatenate([np.zeros(shift, np.int16), read(name) * np.int32(loudness) >> 3])
            lines.append(f"{pathlib.Path(name).name} {shift} {loudness}\t{' '.join(map(str, reference.tokens(samples)))}\n")
    path.write_text("".join(lines))


def compare(options, reference):
    # Needs espeak-ng, where this module is imported without.
    from voices import WORDS, utterances

    files, wanted, right = [], [], 0
    for at, (samples, words) in enumerate(utterances(options.count, 3, held_out=True)):
        files.append(str(options.folder / f"utterance{at}.wav"))
        write(files[-1], np.round(samples * 32767))
        wanted.append(reference.tokens(read(files[-1])))
        right += [WORDS[token - 2] for token in wanted[-1][:-1]] == words
    output = subprocess.run([options.program, "--ids", *files], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [[int(token) for token in line.split()] for line in output.splitlines()]
    for file, one, other in zip(files, found, wanted, strict=True):
        if one != other:
            sys.exit(f"{file}: {options.program} finds {one}, ONNX Runtime {other}")
    tokens = sum(map(len, wanted))
    print(f"{tokens} tokens of {len(files)} sentences equal those of ONNX Runtime; {right} sentences are what was said")
    print(f"the least distance of a token to the next best was {reference.distance:.1e}")
    print(f"ONNX Runtime takes {1e3 * reference.seconds[0] / len(files):.1f} ms for the encoder, "
          f"{1e3 * reference.seconds[1] / tokens:.2f} ms a token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--program")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--folder", type=pathlib.Path, default=HERE / "build")
    options = parser.parse_args()
    reference = Reference()
    if options.record is not None:
        record(options.record, options.files, reference)
    elif options.program is not None:
        compare(options, reference)
    else:
        for name in options.files:
            print(*reference.tokens(read(name)))


if __name__ == "__main__":
    main()
