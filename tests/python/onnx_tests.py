"""Holds onnxc against the ONNX package's own tests: the models that its checker must refuse, and the types that its shape
inference finds.

    python tests/python/onnx_tests.py --onnxc target/release/onnxc CHECKOUT [--keep DIR]

CHECKOUT is a checkout of the ONNX repository (the package from the registry has no tests) of about the version of the
installed package. Its tests run under pytest, with `onnx.checker.check_model`, `check_graph`, `check_node` and
`onnx.shape_inference.infer_shapes` replaced by functions that keep what they are called with:

- a model, or a graph or a node made into one, that the checker or strict inference refuses is to be refused by
  `onnxc check`, or compiled with a warning, which `--strict` refuses;
- a model that inference completes is compiled with every inferred value as an output, and `onnxc inspect` is to find the
  same types. Where one of the two knows a size and the other does not, that is counted apart.

Needs the packages onnx, numpy, ml_dtypes, parameterized and pytest. `onnx_tests.txt` lists what is chosen otherwise, and why. Exit
status 1 if a difference is not explained, or an explanation is not needed.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

import onnx
import onnx.checker
import onnx.shape_inference
import pytest

# Tests of what reads no model: documentation, text forms, the reference evaluator and others that take long.
FILES = ["checker_test", "shape_inference_test", "function_inference_test", "inference_function_test",
         "model_inference_test", "node_shape_inference_test", "data_propagation_test", "symbolic_shape_test",
         "function_test", "helper_test", "compose_test", "parser_test", "opaque_type_test", "inliner_test",
         "training_tool_test", "utils_test", "schema_test", "external_data_test", "model_container_test"]


class Recorder:
    """What the tests hand to the checker and to inference, each model once."""

    def __init__(self):
        self.invalid = {}
        self.inferred = {}
        self.test = ""

    def refused(self, model, error):
        self.keep(self.invalid, model, (str(error).strip().split("\n")[0], self.test))

    def keep(self, kept, model, what):
        data = model.SerializeToString(deterministic=True)
        kept.setdefault(hashlib.sha256(data).hexdigest()[:12], (data, *what))

    def pytest_runtest_setup(self, item):
        self.test = item.nodeid


def as_model(proto, context=None):
    """A model of a graph or a node, with the operator sets of a checker's context."""
    if isinstance(proto, onnx.ModelProto):
        return proto
    if isinstance(proto, onnx.NodeProto):
        given = [onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(proto.input) if name]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
        proto = onnx.helper.make_graph([proto], "node", given, results)
    sets = dict(context.opset_imports) if context is not None else {}
    sets = sets or {"": onnx.defs.onnx_opset_version()}
    model = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid(*pair) for pair in sets.items()])
    if context is not None:
        model.ir_version = context.ir_version
    return model


def record(recorder):
    """Replaces the functions of the package by ones that keep what they are called with."""
    checker, inference = onnx.checker, onnx.shape_inference
    check_model, infer = checker.check_model, inference.infer_shapes

    def checked(function, proto, context=None, **options):
        try:
            return function(proto) if context is None else function(proto, context, **options)
        except (checker.ValidationError, inference.InferenceError) as error:
            # Fields of a node that is not encoded as UTF-8 and the like cannot be kept.
            if isinstance(proto, (onnx.ModelProto, onnx.GraphProto, onnx.NodeProto)):
                recorder.refused(as_model(proto, context), error)
            raise

    def model_checked(model, full_check=False, **options):
        try:
            return check_model(model, full_check, **options)
        except (checker.ValidationError, inference.InferenceError) as error:
            if isinstance(model, bytes):
                model = onnx.load_model_from_string(model)
            if isinstance(model, onnx.ModelProto):
                recorder.refused(model, error)
            raise

    def inferred(model, check_type=False, strict_mode=False, data_prop=False):
        try:
            result = infer(model, check_type, strict_mode, data_prop)
        except inference.InferenceError as error:
            if strict_mode and isinstance(model, onnx.ModelProto):
                recorder.refused(model, error)
            raise
        if strict_mode and isinstance(model, onnx.ModelProto):
            recorder.keep(recorder.inferred, model, (result.SerializeToString(), recorder.test))
        return result

    checker.check_model = model_checked
    inference.infer_shapes = inferred
    for name in ["check_graph", "check_node"]:
        function = getattr(checker, name)
        default = checker.DEFAULT_CONTEXT
        setattr(checker, name, lambda proto, context=default, of=function: checked(of, proto, context))


def dims_of(value):
    """Dims of a tensor's type, None for a size that it does not give; None for a rank that it does not give."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]


def without_seeds(model, types):
    """A model whose inputs have the types that its tests mean: these hide them behind a Reshape to an unknown shape, from
    SEED_x and UNKNOWN_SHAPE_x to x, which has a type."""
    graph = model.graph
    seeds = {node.output[0]: list(node.input) for node in graph.node
             if node.op_type == "Reshape" and list(node.input) == [f"SEED_{node.output[0]}", f"UNKNOWN_SHAPE_{node.output[0]}"]}
    hidden = {name for pair in seeds.values() for name in pair}
    nodes = [node for node in graph.node if node.output[0] not in seeds] if seeds else list(graph.node)
    inputs = [value for value in graph.input if value.name not in hidden]
    for field, kept in [(graph.node, nodes), (graph.input, inputs + [types[name] for name in seeds])]:
        kept = [type(each).FromString(each.SerializeToString()) for each in kept]
        del field[:]
        field.extend(kept)


def with_outputs(model, result):
    """A model whose outputs are all tensors that inference found a type for, and these types by name."""
    model, result = onnx.load_model_from_string(model), onnx.load_model_from_string(result)
    types = {value.name: value for value in [*result.graph.value_info, *result.graph.output]}
    without_seeds(model, types)
    made = {name for node in model.graph.node for name in node.output if name}
    values = {name: value for name, value in types.items()
              if name in made and value.type.WhichOneof("value") == "tensor_type"}
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in values)
    del model.graph.value_info[:]
    if not model.HasField("ir_version"):
        model.ir_version = onnx.IR_VERSION
    return model, values


EXPLAINED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "onnx_tests.txt")

NAMES = {"u4": "UINT4", "i4": "INT4", "u2": "UINT2", "i2": "INT2", "f32": "FLOAT", "f64": "DOUBLE", "f16": "FLOAT16", "bf16": "BFLOAT16", "i8": "INT8", "u8": "UINT8", "i16": "INT16",
         "u16": "UINT16", "i32": "INT32", "u32": "UINT32", "i64": "INT64", "u64": "UINT64", "bool": "BOOL", "str": "STRING",
         "string": "STRING", "c64": "COMPLEX64", "c128": "COMPLEX128"}


def run(command):
    return subprocess.run(command, capture_output=True, text=True)


def judge_invalid(onnxc, path):
    """How `onnxc check` takes a model: refused, warned (refused by `--strict`), or accepted."""
    done = run([onnxc, "check", "--json", path])
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return "refused", (done.stderr.strip() or done.stdout.strip()).split("\n")[0]
    if report["problems"]:
        return "refused", report["problems"][0]["text"]
    if report["warnings"]:
        return "warned", report["warnings"][0]["text"]
    return "accepted", "; ".join(report["notes"])


def judge_inferred(onnxc, path, values):
    """How `onnxc inspect` types a model's outputs: the same, refused with a message, or what differs."""
    done = run([onnxc, "inspect", "--json", path])
    if done.returncode != 0:
        return "refused", done.stderr.strip().split("\n")[0]
    found = {output["name"]: output for output in json.loads(done.stdout)["outputs"]}
    more = less = 0
    for name, value in values.items():
        if name not in found:
            return "differs", f"{name}: no such output"
        dtype = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        ours = NAMES.get(found[name]["dtype"], found[name]["dtype"].upper())
        if dtype not in ("UNDEFINED", ours):
            return "differs", f"{name}: {ours}, inferred {dtype}"
        wanted, dims = dims_of(value), found[name]["dims"]
        if wanted is None:
            more += 1
            continue
        if len(wanted) != len(dims):
            return "differs", f"{name}: {dims}, inferred {wanted}"
        for want, dim in zip(wanted, dims):
            known = dim.isdigit()
            if isinstance(want, int) and known and want != int(dim):
                return "differs", f"{name}: {dims}, inferred {wanted}"
            more += known and not isinstance(want, int)
            less += isinstance(want, int) and not known
    return ("knows less", f"{less} sizes") if less else ("knows more" if more else "same", "")


def explanations():
    """Patterns of lines, and why they are as they are."""
    with open(EXPLAINED, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
    return [(re.compile(pattern), reason) for pattern, reason in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--keep", help="folder for the models")
    options = parser.parse_args()
    onnxc = os.path.abspath(options.onnxc)
    reasons, used = explanations(), set()

    recorder = Recorder()
    record(recorder)
    folder = next(path for path in (os.path.join(options.checkout, at) for at in ["tests/python", "onnx/test"])
                  if os.path.isdir(path))
    files = [path for path in (os.path.join(folder, f"{name}.py") for name in FILES) if os.path.exists(path)]
    sys.path.insert(0, folder)
    sys.stdout.flush()
    pytest.main(["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-rN", *files], plugins=[recorder])

    temporary = tempfile.TemporaryDirectory()
    keep = options.keep or temporary.name
    os.makedirs(keep, exist_ok=True)
    tasks = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for digest, (data, error, test) in recorder.invalid.items():
            path = os.path.join(keep, f"invalid_{digest}.onnx")
            with open(path, "wb") as file:
                file.write(data)
            tasks["invalid", digest] = pool.submit(judge_invalid, onnxc, path), f"{error} ({test})"
        for digest, (data, result, test) in recorder.inferred.items():
            model, values = with_outputs(data, result)
            if not values:
                continue
            path = os.path.join(keep, f"inferred_{digest}.onnx")
            with open(path, "wb") as file:
                file.write(model.SerializeToString())
            tasks["inferred", digest] = pool.submit(judge_inferred, onnxc, path, values), test
    counts = collections.Counter()
    unexplained = 0
    for (kind, digest), (task, origin) in tasks.items():
        verdict, detail = task.result()
        counts[kind, verdict] += 1
        if verdict in ("accepted", "differs", "knows less") or (kind, verdict) == ("inferred", "refused"):
            line = f"{kind} {verdict}: {detail} {origin}"
            reason = next((reason for pattern, reason in reasons if pattern.search(line)), None)
            if reason is not None:
                used.add(reason)
                counts[kind, f"{verdict}: {reason}"] += 1
                continue
            unexplained += 1
            print(f"{kind} {digest} {verdict}: {detail}\n    {origin}")
    for (kind, verdict), count in sorted(counts.items()):
        print(f"{count:5} {kind} {verdict}")
    unneeded = [reason for _, reason in reasons if reason not in used]
    for reason in unneeded:
        print(f"not needed: {reason}")
    return 1 if unexplained or unneeded else 0


if __name__ == "__main__":
    sys.exit(main())
