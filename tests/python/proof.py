"""What must be proven, and what the official tests touch.

proof.py SUITE..: prints {"pairs": [..], "tests": [{id: [pair, ..]}, ..]}, with one entry of
`tests` per suite folder (see export_suite.py). A pair is `operator-version variable=type`: each type of a tensor that a
variable of an operator's signature allows. An operator without variables has the pair `operator-version =`, and so have those
on other values than tensors of numbers, those that draw random numbers, and all of other domains, whose names begin with it.
"""

import json
import sys
import warnings
from pathlib import Path

import onnx
from onnx import TensorProto, defs, shape_inference

#: Of ai.onnx, with one pair for each version.
WHOLE = set(
    "StringConcat StringNormalizer StringSplit RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
    "SequenceLength SequenceMap ConcatFromSequence SplitToSequence Optional OptionalGetElement OptionalHasElement Bernoulli "
    "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)


def version_of(schema):
    return f"{schema.domain}.{schema.name}".lstrip(".") + f"-{schema.since_version}"


def is_whole(schema):
    return schema.domain != "" or schema.name in WHOLE


def all_pairs():
    pairs = []
    for schema in defs.get_all_schemas_with_history():
        found = [
            f"{schema.name}-{schema.since_version} {c.type_param_str}={text[len('tensor('):-1]}"
            for c in schema.type_constraints for text in c.allowed_type_strs
            if text.startswith("tensor(") and text != "tensor(string)" and not is_whole(schema)
        ]
        pairs += found or [f"{version_of(schema)} ="]
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
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            schema = defs.get_schema(node.op_type, opsets[domain], domain)
        except (KeyError, defs.SchemaError):
            continue
        variables = set() if is_whole(schema) else {c.type_param_str for c in schema.type_constraints}
        key = version_of(schema)
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
    except Exception:  # Types known only by inference stay unknown.
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
    print(json.dumps({"pairs": all_pairs(), "tests": tests}))


main()
