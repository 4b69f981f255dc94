"""Holds decoders with key-value caches against ONNX Runtime, with `onnxc verify`.

    python tests/python/decoders.py --onnxc target/release/onnxc MODEL.onnx ...

A model takes `input_ids`, `attention_mask` and the caches `past_key_values.N.key`, `past_key_values.N.value`, perhaps
`position_ids`. It is run on one token after 63, a prompt of 32 without a cache, and 2 tokens after 7 in a batch of 3. ONNX
Runtime runs it without optimizations, and computes the model itself: `accuracy_level` of MatMulNBits, by which it may round
activations to 8 bits, is left out, and a model of bf16, for which it has no kernels, is made one of f32 with the same
weights. A model of f16 or bf16 has to agree up to the rounding of its type, all others in every element.

Needs the packages onnx, onnxruntime and numpy. Exit status 1 if a model disagrees.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

#: Tokens, tokens before them, and sequences.
RUNS = [(1, 63, 1), (32, 0, 1), (2, 7, 3)]
#: GroupQueryAttention of ONNX Runtime takes several tokens after others from one sequence only.
GROUPED_RUNS = [(1, 63, 1), (32, 0, 1), (1, 7, 3)]
KINDS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: np.float32}


def heads_of(graph):
    """Heads of keys and their size, where only GroupQueryAttention has them: its attribute, and the table of its rotations."""
    node = next((own for own in graph.node if own.op_type == "GroupQueryAttention"), None)
    if node is None:
        return 0, 0
    heads = next(own.i for own in node.attribute if own.name == "kv_num_heads")
    table = next(own for own in graph.initializer if own.name == node.input[7])
    return heads, 2 * table.dims[1]


def feeds(graph, tokens, past, batch, vocabulary):
    """Inputs by name; caches of bf16 as f32."""
    random, arrays = np.random.RandomState(7), {}
    for value in graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        if value.name == "input_ids":
            arrays[value.name] = random.randint(3, vocabulary, (batch, tokens))
        elif value.name == "attention_mask":
            arrays[value.name] = np.ones((batch, past + tokens), np.int64)
        elif value.name == "position_ids":
            arrays[value.name] = np.tile(np.arange(past, past + tokens), (batch, 1))
        else:
            heads, size = heads_of(graph)
            shape = (batch, dims[1].dim_value or heads, past, dims[3].dim_value or size)
            arrays[value.name] = (random.randn(*shape) * 0.5).astype(KINDS[kind])
    return {name: array.astype(np.int64) if array.dtype.kind == "i" else array for name, array in arrays.items()}


def in_f32(model):
    """A model of bf16 as one of f32: weights are widened, and so is every declared type."""
    model, wide = onnx.ModelProto.FromString(model.SerializeToString()), TensorProto.FLOAT
    graph = model.graph
    del graph.value_info[:]
    for tensor in [own for own in graph.initializer if own.data_type == TensorProto.BFLOAT16]:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = wide
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16:
                attribute.i = wide
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.BFLOAT16:
                widened = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(widened, attribute.t.name))
    return model


def reference(model):
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), settings)


def tensor(name, array, kind):
    """As the model has it: f32 may stand for bf16."""
    if kind == TensorProto.BFLOAT16:
        bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
        # To the nearest, half to even.
        bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return helper.make_tensor(name, kind, array.shape, bits.tobytes(), raw=True)
    return numpy_helper.from_array(array, name)


def write(folder, kind, tensors):
    for at, own in enumerate(tensors):
        with open(os.path.join(folder, f"{kind}_{at}.pb"), "wb") as file:
            file.write(own.SerializeToString())


def agrees(path, onnxc):
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [own for own in node.attribute if own.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
    declared = {own.name: own.type.tensor_type.elem_type for own in [*model.graph.input, *model.graph.output]}
    narrow = bool({TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(declared.values()))
    session = reference(in_f32(model) if TensorProto.BFLOAT16 in declared.values() else model)
    vocabulary = next(own for own in session.get_outputs() if own.name == "logits").shape[-1]
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, os.path.join(folder, "model.onnx"))
        runs = GROUPED_RUNS if any(own.op_type == "GroupQueryAttention" for own in model.graph.node) else RUNS
        for number, run in enumerate(runs):
            inputs = feeds(model.graph, *run, vocabulary)
            # Elements that the model's type holds, on both sides.
            stored = {name: tensor(name, array, declared[name]) for name, array in inputs.items()}
            given = {name: np.asarray(numpy_helper.to_array(own), inputs[name].dtype) for name, own in stored.items()}
            data = os.path.join(folder, f"test_data_set_{number}")
            os.mkdir(data)
            write(data, "input", stored.values())
            names = [own.name for own in session.get_outputs()]
            results = session.run(names, given)
            write(data, "output", [tensor(name, own, declared[name]) for name, own in zip(names, results)])
        done = subprocess.run([onnxc, "verify", os.path.join(folder, "model.onnx")], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("test_data_set_")]
    wanted = len(RUNS) * len(declared) - len(RUNS) * len(model.graph.input)
    bad = [line for line in lines if ": WRONG" in line or ": noise" in line and not narrow]
    complete = len(lines) == wanted
    print(f"{path}: {len(lines)} outputs of {len(RUNS)} runs,", "agree" if complete and not bad else "DISAGREE")
    print("\n".join(bad) if complete else done.stdout + done.stderr, end="\n" if bad or not complete else "")
    return complete and not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx")
    options = parser.parse_args()
    results = [agrees(path, options.onnxc) for path in options.models]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
