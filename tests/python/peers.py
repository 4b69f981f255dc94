"""Times onnxc and ONNX Runtime on the same models in turn, one thread each, and prints a table of minima and ratios.

    python tests/python/peers.py --onnxc target/release/onnxc [--rounds 3] [--seconds 2] MODEL.onnx ...

Needs the packages onnx, onnxruntime and numpy. The two run as processes of their own, A B A B, so that a drift of the
machine's speed meets both; each figure is the least over all rounds. Both take the inputs of a `test_data_set_0` beside
the model. Where there is none inputs are seeded: ones for masks, small non-negative integers for ids, normal values
else; a symbolic dim is 1 on the first axis and 128 elsewhere.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import time


def peer(path, seconds):
    """Runs ONNX Runtime on one model; prints its minimum in ms."""
    import onnxruntime as ort
    from inputs import seeded

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    feeds = data_set(path, session) or seeded(session, 0, lambda _, axis, __: size(axis))
    session.run(None, feeds)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feeds)
        best = min(best, time.perf_counter() - start)
    print(json.dumps({"min_ms": best * 1e3}))


def first_data_set(path):
    """Files of the first data set beside a model, one per input."""
    folder = os.path.join(os.path.dirname(path), "test_data_set_0")
    files = glob.glob(os.path.join(folder, "input_*.pb"))
    return sorted(files, key=lambda file: int(os.path.basename(file)[6:-3]))


def data_set(path, session):
    """The inputs of the first data set beside a model, or nothing."""
    import onnx
    from onnx import numpy_helper

    feeds = {}
    for value, file in zip(session.get_inputs(), first_data_set(path)):
        feeds[value.name] = numpy_helper.to_array(onnx.load_tensor(file))
    return feeds


def size(axis):
    """Of a symbolic dim."""
    return 1 if axis == 0 else 128


def dims(path):
    """Pins of symbolic dims, as the peer's inputs have them."""
    import onnx

    if first_data_set(path):
        return []
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    pins = []
    for value in graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if value.name not in constants and not dim.HasField("dim_value"):
                pins += ["--input-dim", f"{value.name}:{axis}={size(axis)}"]
    return pins


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--onnxc", default="target/release/onnxc")
    parser.add_argument("--mcpu", default="native")
    parser.add_argument("--vector-width", help="as of onnxc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.models[0], options.seconds)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    print("| model | onnxc ms | ONNX Runtime ms | onnxc / ONNX Runtime |\n|---|---|---|---|")
    for path in options.models:
        ours = [options.onnxc, "bench", path, "--mcpu", options.mcpu, "--threads", "1", "--json", "--seconds",
                str(options.seconds), *dims(path)]
        if options.vector_width:
            ours += ["--vector-width", options.vector_width]
        theirs = [sys.executable, __file__, "--peer", "--seconds", str(options.seconds), path]
        least = [float("inf"), float("inf")]
        for _ in range(options.rounds):
            for side, command in enumerate([ours, theirs]):
                output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
                least[side] = min(least[side], json.loads(output)["min_ms"])
        name = os.path.basename(path).removesuffix(".onnx")
        if name == "model":
            name = os.path.basename(os.path.dirname(path))
        print(f"| {name} | {least[0]:.4f} | {least[1]:.4f} | {least[0] / least[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
