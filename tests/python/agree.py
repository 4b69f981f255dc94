"""Holds compiled models against ONNX Runtime on seeded inputs, with `onnxc verify`.

    python tests/python/agree.py --onnxc target/release/onnxc [--sizes 1,128 [--sizes 2,33 ..]] MODEL.onnx ...

Needs the packages onnx, onnxruntime and numpy. Symbolic dims take the sizes in the order in which the inputs name them; a
model is compiled once, and verified with all sizes. Beside the model's own outputs the data that its last product (Gemm,
MatMul or Conv) takes is compared, and the absolute tolerance is at most the relative one times the largest element of
each output: a classifier with untrained weights may give next to nothing, and then any result would be within the
tolerance. Exit status 1 if a model disagrees.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from inputs import seeded
from onnx import numpy_helper
from products import with_last_product


def in_order(sizes):
    """Sizes of symbolic dims: each name, or each dim without one, takes the next; the last one serves all others."""
    named = {}
    return lambda value, axis, dim: named.setdefault(
        dim or (value.name, axis), sizes[min(len(named), len(sizes) - 1)])


def write(folder, kind, arrays):
    for at, array in enumerate(arrays):
        with open(os.path.join(folder, f"{kind}_{at}.pb"), "wb") as file:
            file.write(numpy_helper.from_array(array).SerializeToString())


def agrees(path, options):
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model.onnx")
        onnx.save(with_last_product(onnx.load(path)), model)
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        symbolic = any(not isinstance(dim, int) for value in session.get_inputs() for dim in value.shape)
        atol = options.atol
        all_sizes = [[int(size) for size in text.split(",")] for text in options.sizes or ["1,128"]]
        for at, sizes in enumerate(all_sizes if symbolic else all_sizes[:1]):
            data = os.path.join(folder, f"test_data_set_{at}")
            os.mkdir(data)
            feeds = seeded(session, at, in_order(sizes))
            outputs = session.run(None, feeds)
            write(data, "input", feeds.values())
            write(data, "output", outputs)
            # An output of zeros has to be met exactly: nothing is relative to it.
            largest = [float(np.abs(output).max()) for output in outputs]
            atol = min([atol, *(options.rtol * size for size in largest if size > 0)])
            print(f"{path}: {f'sizes {sizes}' if symbolic else 'static'}, absolute tolerance {atol:.1e}", flush=True)
        tolerances = ["--rtol", str(options.rtol), "--atol", str(atol)]
        verify = [options.onnxc, "verify", model, "--mcpu", options.mcpu, *tolerances]
        return subprocess.run(verify).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--onnxc", default="target/release/onnxc")
    parser.add_argument("--mcpu", default="native")
    parser.add_argument("--sizes", action="append")
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--atol", type=float, default=1e-4)
    options = parser.parse_args()
    wrong = [path for path in options.models if not agrees(path, options)]
    print(f"{len(options.models) - len(wrong)} of {len(options.models)} models agree")
    sys.exit(f"disagree: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
