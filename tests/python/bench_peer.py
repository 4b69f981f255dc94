"""Runs a model on a peer of onnxc for the benchmark: `bench_peer.py REQUEST REPLY`, both JSON files.

The request names the engine, the model, its inputs (.npy files), threads, seconds and, where the outputs are wanted, a
folder for them. Times are in ms. `first_ms` counts from the imported library to the first result: reading the model,
compiling it, one run. `bytes` is the peak of resident memory less what was resident before the engine's library was
imported, with Python, NumPy and the inputs loaded; null where the system does not report it.
"""
import importlib
import importlib.metadata
import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np


def memory(field):
    """Bytes of a field of /proc/self/status, or nothing."""
    try:
        with open("/proc/self/status") as status:
            lines = [line for line in status if line.startswith(field + ":")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError):
        return None


def resident():
    """Bytes resident now; the peak counts from here."""
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
    except OSError:
        pass
    return memory("VmRSS")


def onnxruntime(request, feeds):
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = request["threads"], 1
    settings.log_severity_level = 3
    if request["outputs"]:
        # For its results, not its time: what its optimizer makes of quantised models rounds otherwise than these say.
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, size in request["dims"].items():
        settings.add_free_dimension_override_by_name(name, size)
    session = ort.InferenceSession(request["model"], settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def openvino(request, feeds):
    import openvino

    core = openvino.Core()
    model = core.read_model(request["model"])
    if any(port.partial_shape.is_dynamic for port in model.inputs):
        model.reshape({name: feed.shape for name, feed in feeds.items()})
    settings = {"INFERENCE_NUM_THREADS": request["threads"], "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    values = [next(feeds[name] for name in port.names if name in feeds) for port in model.inputs]
    return lambda: request.infer(values, share_inputs=True, share_outputs=True)


ENGINES = {"onnxruntime": onnxruntime, "openvino": openvino}


def measure(request):
    feeds = {value["name"]: np.load(value["file"]) for value in request["inputs"] if value["file"]}
    before = resident()
    importlib.import_module(request["engine"])
    start = time.perf_counter()
    run = ENGINES[request["engine"]](request, feeds)
    results = run()
    first = time.perf_counter() - start
    times, end = [], time.perf_counter() + request["seconds"]
    while len(times) < request["least_runs"] or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    peak = memory("VmHWM")
    if request["outputs"]:
        for at, result in enumerate(results):
            np.save(os.path.join(request["outputs"], f"{at}.npy"), result)
    times.sort()
    return {"first_ms": first * 1e3, "min_ms": times[0] * 1e3, "median_ms": times[len(times) // 2] * 1e3,
            "runs": len(times), "bytes": None if before is None or peak is None else max(peak - before, 0)}


def main():
    if sys.argv[1:2] == ["--versions"]:
        print(json.dumps({name: importlib.metadata.version(name) for name in ENGINES}))
        return
    with open(sys.argv[1]) as file:
        request = json.load(file)
    reply = measure(request)
    with open(sys.argv[2], "w") as file:
        json.dump(reply, file)


if __name__ == "__main__":
    main()
