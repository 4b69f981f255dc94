"""Trials as text: JSON with one line per node and value, to be read, and to be run again."""

import json

import numpy as np
from onnx import GraphProto, TypeProto

import items
import values
from case import Node
from graph import Graph, Vertex, schema_since
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
             "ulps": v.node.ulps, "scale_ulps": v.node.scale_ulps, "magnitude": float(v.node.magnitude),
             **({"exact": v.node.exact} if getattr(v.node, "exact", False) else {})}
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
        "unnamed": dress.unnamed,
        "shapes": {name: tensor(graph.arrays[name]) for name in graph.leaves},
        # What results are where the oracle fails: negative cases declare their outputs as of before.
        "results": {name: result(graph.arrays[name]) for name in graph.outputs},
        "sets": [{"kind": one.kind, **({"turned": True} if one.turned else {}),
                  "leaves": {name: tensor(one.leaves[name]) for name in graph.leaves}} for one in trial.sets],
    }
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
        else:
            value = json.dumps(value)
        lines.append(f' "{key}": {value}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


#: Attributes other than numbers, texts and tensors: bodies, and types of optionals.
PROTOS = {"graph": GraphProto, "type": TypeProto}


def plain(value):
    for name, kind in PROTOS.items():
        if isinstance(value, kind):
            return {name: value.SerializeToString().hex()}
    return {"tensor": tensor(value)} if isinstance(value, np.ndarray) else value


def read_attribute(value):
    if not isinstance(value, dict):
        return value
    (name, data), = value.items()
    return read_tensor(data) if name == "tensor" else PROTOS[name].FromString(bytes.fromhex(data))


def tensor(value):
    """Type, shape and the elements' bytes in hexadecimal; texts as they are; of a sequence its type and its elements."""
    if isinstance(value, items.Sequence):
        return ["sequence", value.kind, [tensor(element) for element in value.elements]]
    kind = values.NAMES[value.dtype]
    data = value.reshape(-1).tolist() if kind == values.STRING else np.ascontiguousarray(value).tobytes().hex()
    return [kind, list(value.shape), data]


def read_tensor(data):
    name, shape, content = data
    if name == "sequence":
        return items.Sequence(shape, [read_tensor(element) for element in content])
    if name == values.STRING:
        return np.array(content, object).reshape(shape)
    return np.frombuffer(bytes.fromhex(content), values.DTYPES[name]).reshape(shape).copy()


def result(value):
    """What a result is, without its elements."""
    if isinstance(value, items.Optional):
        return ["optional", result(value.like)]
    empty = items.Sequence(value.kind) if isinstance(value, items.Sequence) else value
    return tensor(empty) if items.is_other(empty) else [values.NAMES[value.dtype], list(value.shape)]


def read_result(data):
    if data[0] == "optional":
        return items.Optional(read_result(data[1]))
    return read_tensor(data) if data[0] == "sequence" else values.zeros(*data)


def load(path):
    data = json.loads(path.read_text())
    graph = Graph(data["opset"], np.random.default_rng(0))
    for item in data["nodes"]:
        node = Node(schema_since(item["op"], item["since"]), item["types"], graph.rng)
        node.attributes = {key: read_attribute(value) for key, value in item["attributes"].items()}
        # Whether scales are powers of two, which the definitions of quantised operators ask.
        node.exact = item.get("exact", False)
        node.outputs, node.ulps, node.scale_ulps = len(item["outputs"]), item["ulps"], item["scale_ulps"]
        node.magnitude = item["magnitude"]
        graph.vertices.append(Vertex(node, item["inputs"], item["outputs"]))
    graph.leaves, graph.outputs = data["leaves"], data["outputs"]
    graph.arrays = {name: read_tensor(value) for name, value in data["shapes"].items()}
    dress = Dress({size: symbol for size, symbol in data["symbols"]}, [Block(**block) for block in data["blocks"]],
                  set(data["as_nodes"]), data["declared"], data.get("unnamed", False))
    sets = [Inputs(one["kind"], {name: read_tensor(value) for name, value in one["leaves"].items()}, turned=one.get("turned", False))
            for one in data["sets"]]
    trial = Trial(graph, dress, sets)
    trial.negative, trial.hidden = data["negative"], {(name, axis): symbol for name, axis, symbol in data["hidden"]}
    trial.prepare()
    graph.arrays = trial.evaluate(graph.arrays)
    for name, what in data["results"].items():
        graph.arrays.setdefault(name, read_result(what))
    return trial
