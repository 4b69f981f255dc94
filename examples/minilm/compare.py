"""Compares the cosine similarity of build/minilm with ONNX Runtime's: compare.py MODEL (after make)."""
import pathlib
import re
import subprocess
import sys

import numpy
import onnxruntime

FOLDER = pathlib.Path(__file__).resolve().parent
TOLERANCE = 1e-5


def embed(session, tokens):
    ids, mask = numpy.zeros((1, 128), numpy.int64), numpy.zeros((1, 128), numpy.int64)
    ids[0, :len(tokens)], mask[0, :len(tokens)] = tokens, 1
    hidden, = session.run(["h"], {"ids": ids, "mask": mask})
    return hidden[0, :len(tokens)].astype(numpy.float64).mean(0)


def main():
    source = (FOLDER / "main.c").read_text()
    sentences = re.findall(r"static const int64_t \w+\[\] = \{([^}]*)\}", source)
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    a, b = (embed(session, [int(token) for token in tokens.split(",")]) for tokens in sentences)
    want = a @ b / numpy.sqrt((a @ a) * (b @ b))
    output = subprocess.run([FOLDER / "build" / "minilm"], check=True, capture_output=True, text=True).stdout
    got = float(output.split()[-1])
    print(f"onnxc {got:.7f}, ONNX Runtime {want:.7f}, difference {abs(got - want):.1e}")
    sys.exit(0 if abs(got - want) <= TOLERANCE else f"the difference exceeds {TOLERANCE}")


main()
