"""What must be proven, and what the official tests touch.

proof.py SUITE..: prints {"pairs": [..], "excepted": {operator: reason}, "tests": [{id: [pair, ..]}, ..]}, with one entry of
`tests` per suite folder (see export_suite.py). A pair is `operator-version variable=type`: each type of a tensor that a
variable of an operator's signature allows; an operator without variables has the pair `operator-version =`.
"""

import json
import sys
import warnings
from pathlib import Path

import onnx
from onnx import TensorProto, defs, shape_inference

EXCEPTED = {
    "strings": "StringConcat StringNormalizer StringSplit RegexFullMatch",
    "sequences": "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
    "ConcatFromSequence SplitToSequence",
    "optionals": "Optional OptionalGetElement OptionalHasElement",
    "random values, whose distributions are tested": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
}


def all_pairs():
    pairs = []
    for schema in defs.get_all_schemas_with_history():
        if schema.domain != "":
            continue
        found = [
            f"{schema.name}-{schema.since_version} {c.type_param_str}={text[len('tensor('):-1]}"
            for c in schema.type_constraints for text in c.allowed_type_strs
            if text.startswith("tensor(") and text != "tensor(string)"
        ]
        pairs += found or [f"{schema.name}-{schema.since_version} ="]
    return pairs


def element_types(graph, known):
    """Names of values with the numbers of their element types."""
    types = dict(known)
    for info in [*graph.input, *graph.output, *graph.value_info]:
        if info.type.HasField("tensor_type"):
            types[info.name] = info.type.tensor_type.elem_type
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    return types


def of_graph(graph, opsets, known, pairs):
    types = element_types(graph, known)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                of_graph(attribute.g, opsets, types, pairs)
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            schema = defs.get_schema(node.op_type, opsets[""], "")
        except (KeyError, defs.SchemaError):
            continue
        variables = {constraint.type_param_str for constraint in schema.type_constraints}
        key = f"{schema.name}-{schema.since_version}"
        if not variables:
            pairs.add(f"{key} =")
        for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
            for at, name in enumerate(names):
                formal = formals[min(at, len(formals) - 1)]
                if name and formal.type_str in variables and types.get(name):
                    pairs.add(f"{key} {formal.type_str}={TensorProto.DataType.Name(types[name]).lower()}")


def of_model(path):
    model = onnx.load(path)
    opsets = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    try:
        model = shape_inference.infer_shapes(model)
    except Exception:  # Types that only inference tells stay unknown.
        pass
    pairs = set()
    of_graph(model.graph, opsets, {}, pairs)
    return sorted(pairs)


def main():
    warnings.simplefilter("ignore")
    tests = []
    for suite in sys.argv[1:]:
        models = sorted(Path(suite).glob("*/*/model.onnx"))
        models = [path for path in models if path.parent.parent.name != "light"]
        tests.append({f"{path.parent.parent.name}/{path.parent.name}": of_model(path) for path in models})
    excepted = {name: reason for reason, names in EXCEPTED.items() for name in names.split()}
    print(json.dumps({"pairs": all_pairs(), "excepted": excepted, "tests": tests}))


main()
