"""Trials as text: JSON with one line per node and value, to be read, and to be run again."""

import json

import numpy as np
from onnx import defs

import values
from case import Node
from graph import Graph, Vertex
from model import Block, Dress
from trial import Inputs, Trial


def save(trial, path, more):
    graph, dress = trial.graph, trial.dress
    data = {
        **more,
        "opset": graph.opset,
        "nodes": [
            {"op": v.op, "since": v.node.since, "inputs": v.inputs, "outputs": v.outputs,
             "attributes": {key: plain(value) for key, value in v.node.attributes.items()}, "types": v.node.types,
             "ulps": v.node.ulps, "scale_ulps": v.node.scale_ulps, "magnitude": float(v.node.magnitude)}
            for v in graph.vertices
        ],
        "leaves": graph.leaves,
        "outputs": graph.outputs,
        "negative": trial.negative,
        "hidden": [[name, axis, symbol] for (name, axis), symbol in trial.hidden.items()],
        "symbols": [[size, symbol] for size, symbol in dress.symbols.items()],
        "blocks": [vars(block) for block in dress.blocks],
        "as_nodes": sorted(dress.as_nodes),
        "declared": dress.declared,
        "shapes": {name: tensor(graph.arrays[name]) for name in graph.leaves},
        # What results are where the oracle fails: negative cases declare their outputs as of before.
        "results": {name: [values.NAMES[graph.arrays[name].dtype], list(graph.arrays[name].shape)] for name in graph.outputs},
        "sets": [{"kind": one.kind, "leaves": {name: tensor(one.leaves[name]) for name in graph.leaves}} for one in trial.sets],
    }
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
        else:
            value = json.dumps(value)
        lines.append(f' "{key}": {value}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def plain(value):
    return {"tensor": tensor(value)} if isinstance(value, np.ndarray) else value


def tensor(array):
    """Type, shape and the elements' bytes in hexadecimal."""
    return [values.NAMES[array.dtype], list(array.shape), np.ascontiguousarray(array).tobytes().hex()]


def read_tensor(data):
    name, shape, text = data
    return np.frombuffer(bytes.fromhex(text), values.DTYPES[name]).reshape(shape).copy()


def load(path):
    data = json.loads(path.read_text())
    graph = Graph(data["opset"], np.random.default_rng(0))
    for item in data["nodes"]:
        node = Node(defs.get_schema(item["op"], item["since"]), item["types"], graph.rng)
        node.attributes = {
            key: read_tensor(value["tensor"]) if isinstance(value, dict) else value for key, value in item["attributes"].items()}
        node.outputs, node.ulps, node.scale_ulps = len(item["outputs"]), item["ulps"], item["scale_ulps"]
        node.magnitude = item["magnitude"]
        graph.vertices.append(Vertex(node, item["inputs"], item["outputs"]))
    graph.leaves, graph.outputs = data["leaves"], data["outputs"]
    graph.arrays = {name: read_tensor(value) for name, value in data["shapes"].items()}
    dress = Dress({size: symbol for size, symbol in data["symbols"]}, [Block(**block) for block in data["blocks"]],
                  set(data["as_nodes"]), data["declared"])
    sets = [Inputs(one["kind"], {name: read_tensor(value) for name, value in one["leaves"].items()}) for one in data["sets"]]
    trial = Trial(graph, dress, sets)
    trial.negative, trial.hidden = data["negative"], {(name, axis): symbol for name, axis, symbol in data["hidden"]}
    trial.prepare()
    graph.arrays = trial.evaluate(graph.arrays)
    for name, (kind, shape) in data["results"].items():
        graph.arrays.setdefault(name, np.zeros(shape, values.DTYPES[kind]))
    return trial
