"""Breaks valid models, one rule of the specification at a time, and compares who notices.

    python tests/python/broken_models.py --onnxc target/release/onnxc [--count 2000] [--seed 1] [--keep DIR] MODEL.onnx|DIR ...

Each case takes one of the models, applies one of the changes below at a drawn place (the main graph, a body or a function),
and asks `onnx.checker.check_model` with full_check and `onnxc check`. Changes that leave a model valid by chance are known by
both accepting it. Prints a table, change by change: both refuse, both accept, one alone refuses, onnxc warns (`--strict`
refuses); then each kind of model that the checker refuses and onnxc accepts without a warning, and each that onnxc refuses and
the checker accepts, with one example. Exit status 1 if onnxc ends otherwise than by its verdict: a crash.

Needs the packages onnx and numpy.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile

import onnx
import onnx.checker
from onnx import AttributeProto, TensorProto, helper

CHANGES = {}


class DoesNotApply(Exception):
    """The model has no node, attribute or tensor of the wanted kind."""


def change(function):
    """Registers a change: a function of a source of random numbers and a model, which gives False, or raises DoesNotApply, where the
    model has no place for it."""
    CHANGES[function.__name__] = function
    return function


def one_of(draw, things):
    if not things:
        raise DoesNotApply
    return draw.choice(things)


def graphs(model):
    """The main graph and all bodies, those of functions too."""
    found = [model.graph]
    nodes = [model.graph.node, *(function.node for function in model.functions)]
    while nodes:
        for node in nodes.pop():
            for attribute in node.attribute:
                for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                    found.append(graph)
                    nodes.append(graph.node)
    return found


def some_graph(draw, model):
    return draw.choice(graphs(model))


def some_node(draw, model, wanted=lambda node: True):
    places = [graph.node for graph in graphs(model)] + [function.node for function in model.functions]
    nodes = [node for nodes in places for node in nodes if wanted(node)]
    return one_of(draw, nodes)


def some_tensor(draw, model):
    tensors = [tensor for graph in graphs(model) for tensor in graph.initializer]
    tensors += [attribute.t for graph in graphs(model) for node in graph.node for attribute in node.attribute
                if attribute.HasField("t")]
    return one_of(draw, tensors)


@change
def no_ir_version(draw, model):
    model.ClearField("ir_version")


@change
def ir_version_zero(draw, model):
    model.ir_version = 0


@change
def no_opset_import(draw, model):
    del model.opset_import[:]


@change
def opset_import_twice(draw, model):
    model.opset_import.append(model.opset_import[0])


@change
def opset_version_zero(draw, model):
    model.opset_import[0].version = 0


@change
def no_graph(draw, model):
    model.ClearField("graph")


@change
def graph_without_name(draw, model):
    some_graph(draw, model).ClearField("name")


@change
def input_twice(draw, model):
    if not model.graph.input:
        return False
    model.graph.input.append(draw.choice(model.graph.input))


@change
def output_twice(draw, model):
    model.graph.output.append(draw.choice(model.graph.output))


@change
def output_that_nothing_makes(draw, model):
    draw.choice(some_graph(draw, model).output or model.graph.output).name = "made_by_nothing"


@change
def output_without_type(draw, model):
    draw.choice(model.graph.output).ClearField("type")


@change
def input_without_type(draw, model):
    if not model.graph.input:
        return False
    draw.choice(model.graph.input).ClearField("type")


@change
def input_of_undefined_element_type(draw, model):
    tensors = [value for value in model.graph.input if value.type.HasField("tensor_type")]
    if not tensors:
        return False
    draw.choice(tensors).type.tensor_type.elem_type = TensorProto.UNDEFINED


@change
def input_of_another_type(draw, model):
    tensors = [value for value in model.graph.input if value.type.HasField("tensor_type")]
    if not tensors:
        return False
    draw.choice(tensors).type.tensor_type.elem_type = draw.choice([1, 3, 7, 8, 9, 10, 14, 16])


@change
def input_of_another_rank(draw, model):
    tensors = [value for value in model.graph.input if value.type.tensor_type.HasField("shape")]
    if not tensors:
        return False
    draw.choice(tensors).type.tensor_type.shape.dim.add().dim_value = 3


@change
def input_of_another_size(draw, model):
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    if not dims:
        return False
    draw.choice(dims).dim_value = draw.choice([0, 1, 5, 7])


@change
def output_declared_of_another_size(draw, model):
    dims = [dim for value in model.graph.output for dim in value.type.tensor_type.shape.dim]
    if not dims:
        return False
    draw.choice(dims).dim_value += 1


@change
def output_declared_of_another_type(draw, model):
    tensors = [value for value in model.graph.output if value.type.HasField("tensor_type")]
    if not tensors:
        return False
    tensor = draw.choice(tensors).type.tensor_type
    tensor.elem_type = TensorProto.INT16 if tensor.elem_type != TensorProto.INT16 else TensorProto.FLOAT


@change
def output_declared_of_another_rank(draw, model):
    tensors = [value for value in model.graph.output if value.type.tensor_type.HasField("shape")]
    if not tensors:
        return False
    draw.choice(tensors).type.tensor_type.shape.dim.add().dim_value = 3


@change
def value_made_twice(draw, model):
    nodes = some_graph(draw, model).node
    if not nodes:
        return False
    nodes.append(draw.choice(nodes))


@change
def value_named_as_an_input(draw, model):
    node = some_node(draw, model, lambda node: node.output)
    if not model.graph.input:
        return False
    node.output[0] = draw.choice(model.graph.input).name


@change
def nodes_out_of_order(draw, model):
    nodes = some_graph(draw, model).node
    if len(nodes) < 2:
        return False
    nodes.append(nodes[0])
    del nodes[0]


@change
def node_that_reads_itself(draw, model):
    node = some_node(draw, model, lambda node: node.output and node.input)
    node.input[0] = node.output[0]


@change
def input_from_nowhere(draw, model):
    node = some_node(draw, model, lambda node: node.input)
    node.input[draw.randrange(len(node.input))] = "from_nowhere"


@change
def input_too_many(draw, model):
    node = some_node(draw, model, lambda node: node.input)
    node.input.append(node.input[0])


@change
def input_too_few(draw, model):
    node = some_node(draw, model, lambda node: node.input)
    del node.input[-1]


@change
def input_unnamed(draw, model):
    node = some_node(draw, model, lambda node: node.input)
    node.input[draw.randrange(len(node.input))] = ""


@change
def output_too_many(draw, model):
    node = some_node(draw, model)
    node.output.append("one_more")


@change
def outputs_none(draw, model):
    node = some_node(draw, model)
    del node.output[:]


@change
def operator_misspelt(draw, model):
    node = some_node(draw, model)
    node.op_type = draw.choice([node.op_type.lower(), node.op_type + "X", ""])


@change
def operator_of_an_unknown_domain(draw, model):
    node = some_node(draw, model)
    node.domain = "com.nobody"


@change
def operator_of_another_kind(draw, model):
    node = some_node(draw, model)
    node.op_type = draw.choice(["Relu", "Add", "Conv", "Reshape", "Concat", "MatMul", "Cast", "Split", "If", "Gather"])


@change
def attribute_unknown(draw, model):
    node = some_node(draw, model)
    node.attribute.append(helper.make_attribute("no_such_attribute", 1))


def some_attribute(draw, model):
    return draw.choice(some_node(draw, model, lambda node: node.attribute).attribute)


@change
def attribute_missing(draw, model):
    node = some_node(draw, model, lambda node: node.attribute)
    del node.attribute[draw.randrange(len(node.attribute))]


@change
def attribute_twice(draw, model):
    node = some_node(draw, model, lambda node: node.attribute)
    node.attribute.append(draw.choice(node.attribute))


@change
def attribute_without_name(draw, model):
    attribute = some_attribute(draw, model)
    attribute.name = ""


@change
def attribute_without_type(draw, model):
    attribute = some_attribute(draw, model)
    attribute.ClearField("type")


@change
def attribute_of_another_type(draw, model):
    attribute = some_attribute(draw, model)
    name = attribute.name
    attribute.CopyFrom(helper.make_attribute(name, draw.choice([1, 1.5, "text", [1, 2], [1.5], ["a", "b"]])))


@change
def attribute_whose_type_is_not_its_fields(draw, model):
    attribute = some_attribute(draw, model)
    attribute.type = draw.choice([kind for kind in [1, 2, 3, 4, 6, 7, 8] if kind != attribute.type])


@change
def attribute_of_two_values(draw, model):
    attribute = some_attribute(draw, model)
    if attribute.type == AttributeProto.INT:
        attribute.f = 1.0
    else:
        attribute.i = 1


@change
def attribute_out_of_range(draw, model):
    node = some_node(draw, model, lambda node: any(a.type in (AttributeProto.INT, AttributeProto.INTS) for a in node.attribute))
    attribute = draw.choice([a for a in node.attribute if a.type in (AttributeProto.INT, AttributeProto.INTS)])
    value = draw.choice([-100, -1, 0, 100, 2**31, -2**63])
    if attribute.type == AttributeProto.INT:
        attribute.i = value
    elif attribute.ints:
        attribute.ints[draw.randrange(len(attribute.ints))] = value


@change
def attribute_of_another_length(draw, model):
    node = some_node(draw, model, lambda node: any(a.type == AttributeProto.INTS for a in node.attribute))
    attribute = draw.choice([a for a in node.attribute if a.type == AttributeProto.INTS])
    attribute.ints.append(1)


@change
def attribute_with_other_text(draw, model):
    node = some_node(draw, model, lambda node: any(a.type == AttributeProto.STRING for a in node.attribute))
    draw.choice([a for a in node.attribute if a.type == AttributeProto.STRING]).s = b"no_such_mode"


@change
def attribute_that_refers_to_nothing(draw, model):
    attribute = some_attribute(draw, model)
    kind, name = attribute.type, attribute.name
    attribute.Clear()
    attribute.type, attribute.name, attribute.ref_attr_name = kind, name, "nothing"


@change
def tensor_too_short(draw, model):
    tensor = some_tensor(draw, model)
    if not tensor.raw_data:
        return False
    tensor.raw_data = tensor.raw_data[:-1]


@change
def tensor_too_long(draw, model):
    tensor = some_tensor(draw, model)
    if not tensor.raw_data:
        return False
    tensor.raw_data += b"\0\0\0\0\0\0\0\0"


@change
def tensor_of_two_data_fields(draw, model):
    tensor = some_tensor(draw, model)
    tensor.raw_data = tensor.raw_data or b"\0\0\0\0"
    tensor.float_data.append(1.0)


@change
def tensor_of_negative_dim(draw, model):
    tensor = some_tensor(draw, model)
    if not tensor.dims:
        return False
    tensor.dims[0] = -tensor.dims[0] - 1


@change
def tensor_of_undefined_type(draw, model):
    tensor = some_tensor(draw, model)
    tensor.data_type = TensorProto.UNDEFINED


@change
def initializer_without_name(draw, model):
    if not model.graph.initializer:
        return False
    draw.choice(model.graph.initializer).ClearField("name")


@change
def initializer_twice(draw, model):
    if not model.graph.initializer:
        return False
    model.graph.initializer.append(draw.choice(model.graph.initializer))


@change
def initializer_named_as_a_result(draw, model):
    node = some_node(draw, model, lambda node: node.output)
    model.graph.initializer.append(helper.make_tensor(node.output[0], TensorProto.FLOAT, [1], [1.0]))


@change
def function_without_a_name(draw, model):
    if not model.functions:
        return False
    draw.choice(model.functions).ClearField("name")


@change
def function_twice(draw, model):
    if not model.functions:
        return False
    model.functions.append(draw.choice(model.functions))


@change
def function_whose_input_is_twice(draw, model):
    functions = [function for function in model.functions if function.input]
    if not functions:
        return False
    function = draw.choice(functions)
    function.input.append(function.input[0])


@change
def function_whose_output_nothing_makes(draw, model):
    functions = [function for function in model.functions if function.output]
    if not functions:
        return False
    draw.choice(functions).output[0] = "made_by_nothing"


@change
def function_without_imports(draw, model):
    if not model.functions:
        return False
    del draw.choice(model.functions).opset_import[:]


def files(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, _, names in sorted(os.walk(path)):
                yield from (os.path.join(folder, name) for name in sorted(names) if name.endswith(".onnx"))
        else:
            yield path


def checker(model):
    """Why the ONNX checker refuses a model, or None."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # of several kinds, those of protobuf among them
        return str(error).strip().split("\n")[0] or type(error).__name__
    return None


def onnxc_says(onnxc, path):
    """The verdict of `onnxc check` and its first line: refused, warned or accepted; None where it crashed."""
    done = subprocess.run([onnxc, "check", "--json", path], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return None, done.stderr.strip()[:200]
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return "refused", (done.stderr.strip() or done.stdout.strip()).split("\n")[0]
    for kind, verdict in [("problems", "refused"), ("warnings", "warned")]:
        if report[kind]:
            return verdict, report[kind][0]["text"]
    return "accepted", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="folder for the models")
    parser.add_argument("--change", action="append", choices=sorted(CHANGES), help="only these")
    options = parser.parse_args()
    temporary = tempfile.TemporaryDirectory()
    keep = options.keep or temporary.name
    os.makedirs(keep, exist_ok=True)
    names, draw = list(files(options.models)), random.Random(options.seed)
    changes = options.change or sorted(CHANGES)

    def case(at):
        own = random.Random(f"{options.seed} {at}")
        name = changes[at % len(changes)]
        for _ in range(50):
            source = own.choice(names)
            with open(source, "rb") as file:
                model = onnx.load_model_from_string(file.read())
            try:
                applies = CHANGES[name](own, model) is not False
            except DoesNotApply:
                applies = False
            if applies:
                break
        else:
            return None
        path = os.path.join(keep, f"{name}_{at}.onnx")
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
        verdict, words = onnxc_says(options.onnxc, path)
        return name, path, source, checker(model), verdict, words

    draw.shuffle(changes)
    rows, crashes = collections.defaultdict(collections.Counter), 0
    gaps, alone = {}, {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(case, range(options.count)):
            if result is None:
                continue
            name, path, source, refused, verdict, words = result
            where = f"{os.path.basename(path)} ({os.path.relpath(source)})"
            if verdict is None:
                crashes += 1
                print(f"CRASH {where}: {words}")
                continue
            rows[name][("checker refuses" if refused else "checker accepts", verdict)] += 1
            if refused and verdict == "accepted":
                gaps.setdefault((name, refused[:60]), f"{where}\n    checker: {refused[:200]}")
            if not refused and verdict == "refused":
                alone.setdefault((name, words[:40]), f"{where}\n    onnxc: {words[:200]}")
    columns = [(side, verdict) for side in ["checker refuses", "checker accepts"]
               for verdict in ["refused", "warned", "accepted"]]
    print(f"{'change':42} " + " ".join(f"{side[8:11]}/{verdict[:6]:6}" for side, verdict in columns))
    for name, counts in sorted(rows.items()):
        print(f"{name:42} " + " ".join(f"{counts[column]:10}" for column in columns))
    for title, kinds in [("the checker refuses, onnxc accepts", gaps), ("onnxc refuses, the checker accepts", alone)]:
        print(f"\n{title}: {len(kinds)} kinds")
        for (name, _), text in sorted(kinds.items()):
            print(f"  {name}: {text}")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
