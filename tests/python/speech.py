"""Generates by a Whisper of any size that Optimum exported, with onnxc and with ONNX Runtime, and compares the tokens:

    optimum-cli export onnx --model openai/whisper-tiny --task automatic-speech-recognition-with-past FOLDER
    python tests/python/speech.py --onnxc target/release/onnxc FOLDER

The encoder runs once on seeded features, the decoder's first pass (decoder_model.onnx) on the first token, and decoder_with_past_model.onnx
on each token behind it. In onnxc the caches of the latter are state, those that the encoder's output gave set once; ONNX Runtime is given
all caches each time. Prints the tokens' number and the least times of a token of both, measured in turn. Exit status 1 where a token
differs. decoder_model_merged.onnx is compiled, too, and run in both branches.

Needs the packages onnxruntime and numpy.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime as ort

DTYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int64): 7, np.dtype(bool): 9}
ALIGNMENT = 64


class Tensor(ctypes.Structure):
    """`struct onnxc_tensor`"""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("dims", ctypes.POINTER(ctypes.c_int64))]


def described(array):
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    return Tensor(array.ctypes.data, array.nbytes, DTYPES[array.dtype], array.ndim, dims)


def aligned(count):
    """Bytes at a multiple of ALIGNMENT."""
    room = np.zeros(count + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start:start + count]


#: In C, what onnxc.h has as inline functions.
SHIM = """
#include "onnxc.h"
#include "{name}.h"
int32_t shim_symbol(const char *name) {{
    const onnxc_model *model = {name}_model();
    for (int32_t at = 0; at < model->symbol_count; at++) {{
        if (strcmp(onnxc_model_symbol(model, at), name) == 0) {{
            return at;
        }}
    }}
    return -1;
}}
int32_t shim_symbols(void) {{ return {name}_model()->symbol_count; }}
{state}
"""
STATE = """
int32_t shim_state(const char *name) {{ return onnxc_state_index({name}_model(), name); }}
void shim_set(void *state, int32_t index, const void *tensor) {{ onnxc_state_set({name}_model(), state, index, tensor); }}
void shim_size(void *state, int32_t symbol, int64_t size) {{ onnxc_state_set_symbol(state, symbol, size); }}
"""


class Model:
    """A model as a shared library."""

    def __init__(self, options, folder, path, *flags):
        name = path.stem
        files = {kind: folder / f"{name}.{kind}" for kind in ("o", "c", "so")}
        subprocess.run([options.onnxc, str(path), "--name", name, "--mcpu", "native", *flags, "-o", str(files["o"])], check=True)
        has_state = "--state" in flags
        files["c"].write_text(SHIM.format(name=name, state=STATE.format(name=name) if has_state else ""))
        include = pathlib.Path(__file__).parents[2] / "runtime-support/include"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", f"-I{include}", f"-I{folder}", str(files["c"]), str(files["o"]), "-o",
                        str(files["so"])], check=True)
        self.library, self.name = ctypes.CDLL(str(files["so"])), name
        self.run_function = getattr(self.library, f"{name}_run")
        self.workspace_function = self.of("workspace")
        self.workspace = aligned(0)

    def of(self, function, result=ctypes.c_int64):
        found = getattr(self.library, f"{self.name}_{function}")
        found.restype = result
        return found

    def symbols(self, values):
        array = (ctypes.c_int64 * self.library.shim_symbols())()
        for name, value in values.items():
            at = self.library.shim_symbol(name.encode())
            if at >= 0:
                array[at] = value
        return array

    def new_state(self, values):
        symbols = self.symbols(values)
        self.state = aligned(self.of("state_bytes")(symbols, len(symbols)))
        status = self.of("state_reset", ctypes.c_int32)(ctypes.c_void_p(self.state.ctypes.data), ctypes.c_size_t(self.state.size),
                                                        symbols, ctypes.c_size_t(len(symbols)))
        if status:
            sys.exit(f"{self.name}: the state cannot be reset: status {status}")

    def set_state(self, name, array):
        at = self.library.shim_state(name.encode())
        if at < 0:
            sys.exit(f"{self.name}: no state is {name}")
        self.library.shim_set(ctypes.c_void_p(self.state.ctypes.data), at, ctypes.c_void_p(array.ctypes.data))

    def set_size(self, name, size):
        at = self.library.shim_symbol(name.encode())
        self.library.shim_size(ctypes.c_void_p(self.state.ctypes.data), at, ctypes.c_int64(size))

    def run(self, inputs, outputs, values):
        """Inputs and outputs as arrays in the model's order; gives the seconds."""
        symbols = self.symbols(values)
        needed = self.workspace_function(symbols, ctypes.c_size_t(len(symbols)))
        if needed > self.workspace.size:
            self.workspace = aligned(needed)
        given, made = [(Tensor * len(own))(*map(described, own)) for own in (inputs, outputs)]
        start = time.perf_counter()
        status = self.run_function(given, ctypes.c_size_t(len(given)), made, ctypes.c_size_t(len(made)),
                                   ctypes.c_void_p(self.workspace.ctypes.data), ctypes.c_size_t(self.workspace.size), None)
        if status:
            sys.exit(f"{self.name}: status {status}")
        return time.perf_counter() - start


def session(path, threads=1):
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def timed(own, names, feeds):
    start = time.perf_counter()
    results = own.run(names, feeds)
    return results, time.perf_counter() - start


def compare(options, folder):
    paths = {name: options.folder / f"{name}.onnx" for name in
             ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")}
    peers = {name: session(path) for name, path in paths.items()}
    encoder, first = Model(options, folder, paths["encoder_model"]), Model(options, folder, paths["decoder_model"])
    later = Model(options, folder, paths["decoder_with_past_model"], "--state", "auto")
    merged = Model(options, folder, paths["decoder_model_merged"])

    bands, frames = peers["encoder_model"].get_inputs()[0].shape[1:]
    features = np.random.RandomState(1).randn(1, bands, frames).astype(np.float32)
    (hidden,), slow = timed(peers["encoder_model"], None, {"input_features": features})
    heard = np.empty_like(hidden)
    sizes = {"batch_size": 1, "encoder_sequence_length": hidden.shape[1], "decoder_sequence_length": 1}
    fast = encoder.run([features], [heard], sizes)
    print(f"encoder: off by {np.abs(heard - hidden).max():.1e}, {1e3 * fast:.1f} ms, ONNX Runtime {1e3 * slow:.1f} ms")

    # Both are given what their own encoder made.
    token = np.full((1, 1), options.start, np.int64)
    names = [output.name for output in peers["decoder_model"].get_outputs()]
    wanted, _ = timed(peers["decoder_model"], names, {"input_ids": token, "encoder_hidden_states": hidden})
    made = [np.empty_like(array) for array in wanted]
    first.run([token, heard], made, sizes)
    caches = {name.replace("present", "past_key_values"): array for name, array in zip(names[1:], wanted[1:])}
    later.new_state({**sizes, "past_decoder_sequence_length.capacity": options.tokens + 1})
    later.set_size("past_decoder_sequence_length", 1)
    for name, array in zip(names[1:], made[1:]):
        later.set_state(name.replace("present", "past_key_values"), array)

    past = [output.name for output in peers["decoder_with_past_model"].get_outputs()]
    logits, found, least = made[0], [[], []], [np.inf, np.inf]
    theirs, distance = wanted[0], np.inf
    for length in range(1, options.tokens + 1):
        for own, array in zip(found, (logits, theirs)):
            own.append(int(array[0, -1].argmax()))
        if found[0][-1] != found[1][-1]:
            sys.exit(f"token {length - 1} differs: {found[0][-1]}, ONNX Runtime {found[1][-1]}")
        second, greatest = np.sort(theirs[0, -1])[-2:]
        distance = min(distance, greatest - second)
        if length == options.tokens:
            break
        token = np.full((1, 1), found[0][-1], np.int64)
        seconds = later.run([token, later.state], [logits], {**sizes, "past_decoder_sequence_length": length,
                                                             "past_decoder_sequence_length.capacity": options.tokens + 1})
        results, slow = timed(peers["decoder_with_past_model"], past, {"input_ids": token, **caches})
        theirs = results[0]
        caches |= {name.replace("present", "past_key_values"): array for name, array in zip(past[1:], results[1:])}
        least = [min(least[0], seconds), min(least[1], slow)]
    print(f"{options.tokens} tokens equal those of ONNX Runtime ({len(set(found[0]))} different ones, the nearest {distance:.1e} before "
          f"the next best); a token {1e3 * least[0]:.2f} ms, ONNX Runtime {1e3 * least[1]:.2f} ms")
    branches(merged, peers["decoder_model_merged"], hidden, caches, sizes, options)


def branches(merged, peer, hidden, caches, sizes, options):
    """The merged decoder, with caches and without."""
    names = [output.name for output in peer.get_outputs()]
    for used in (True, False):
        feeds = {"input_ids": np.full((1, 1), options.start, np.int64), "encoder_hidden_states": hidden,
                 "use_cache_branch": np.array([used]), **caches}
        feeds = {own.name: np.ascontiguousarray(feeds[own.name]) for own in peer.get_inputs()}
        wanted = peer.run(names, feeds)
        made = [np.empty_like(array) for array in wanted]
        past = next(array.shape[2] for name, array in caches.items() if ".decoder." in name)
        merged.run(list(feeds.values()), made, {**sizes, "past_decoder_sequence_length": past})
        off = max(np.abs(one - other).max(initial=0) for one, other in zip(made, wanted))
        print(f"merged decoder {'with' if used else 'without'} caches: off by {off:.1e}")
        if off > 1e-2:
            sys.exit("the merged decoder differs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()
