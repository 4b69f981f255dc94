"""Draws models from the ONNX schemas, with the results they should have.

generate.py FOLDER --seed S (--first I --count N | --numbers I,J,..) [--operator NAME]: writes these cases of seed S as
FOLDER/c<number>/{model.onnx, meta.json, test_data_set_0/{input,output}_K.pb} and FOLDER/index.json, which describes
each. A case depends on the seed and its number only. Most are one node; of eight cases one is a chain of nodes.
Of these, every other is a program: nested If, Loop and Scan, see `program`; `--operator program` draws nothing else.
`--order` prints the order of the pairs that single nodes go through.

`--operator com.microsoft` draws the operators of that domain, `com.microsoft.QGemm` one of them; this needs ONNX Runtime.

Single nodes go through all pairs of an operator version of ai.onnx and a type that a variable of its signature allows,
in an order that the seed decides. Strings, sequences, optionals, random values and ImageDecoder are not drawn.
"""

import argparse
import json
import random
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

import attention  # noqa: F401 (recipes register themselves)
import control  # noqa: F401
import elementwise
import microsoft
import microsoft_attention  # noqa: F401
import microsoft_fused  # noqa: F401
import microsoft_generation  # noqa: F401
import microsoft_hybrid  # noqa: F401
import microsoft_moe  # noqa: F401
import microsoft_nchwc  # noqa: F401
import microsoft_packed  # noqa: F401
import microsoft_standard  # noqa: F401
import microsoft_words  # noqa: F401
import oracle
import program
import quantized  # noqa: F401
import recurrent  # noqa: F401
import shapes  # noqa: F401
import signal_image  # noqa: F401
import sums  # noqa: F401
import values
from case import Node, Skip, element_type, opset_imports

RECIPES = elementwise.RECIPES | microsoft.RECIPES
CHAIN_EVERY = 8
ATTEMPTS = 40
#: Operators that give about the magnitudes they are given, and do not jump: what chains are made of.
LINKS = (
    "Abs Add Sub Mul Neg Relu LeakyRelu Sigmoid Tanh Softsign Erf Sin Cos Atan Elu Celu HardSigmoid HardSwish Selu Max "
    "Min Mean Clip Identity Transpose Reshape Flatten Squeeze Unsqueeze Expand Concat Slice Pad Gather ReduceMax "
    "ReduceMin ReduceMean ReduceSum Softmax LayerNormalization MatMul Where Tile Cast CumSum DepthToSpace AveragePool "
    "MaxPool GlobalAveragePool BatchNormalization Gemm Conv Trilu BitwiseNot And Or Xor Not BitwiseAnd GatherElements"
).split()


def allowed(constraint):
    names = (text[len("tensor("):-1] for text in constraint.allowed_type_strs if text.startswith("tensor("))
    return [name for name in names if name in values.DENSE]


def key_of(schema):
    return f"{schema.domain}.{schema.name}" if schema.domain else schema.name


def all_pairs(operator=None):
    """Every (schema, variable, type); operators without a recipe, or without type variables, once."""
    pairs = []
    if operator and operator.startswith(microsoft.DOMAIN):
        schemas = [s for s in microsoft.schemas() if operator in (s.domain, f"{s.domain}.{s.name}")]
    else:
        schemas = [s for s in defs.get_all_schemas_with_history() if s.domain == "" and (not operator or s.name == operator)]
    for schema in schemas:
        if key_of(schema) not in RECIPES:
            continue
        found = [(schema, c.type_param_str, name) for c in schema.type_constraints for name in allowed(c)]
        pairs += found or [(schema, "", "")]
    return sorted(pairs, key=lambda pair: (pair[0].name, pair[0].since_version, pair[1], pair[2]))


def in_order(pairs, seed):
    """The order that the seed decides. New types come last, so that they change the numbers of no other pair's first case."""
    known = [pair for pair in pairs if pair[2] not in values.NEW]
    random.Random(seed).shuffle(known)
    return known + [pair for pair in pairs if pair[2] in values.NEW]


def bind(schema, variable, name, rng):
    """Types of all variables, one of them given."""
    types = {}
    for constraint in schema.type_constraints:
        choices = allowed(constraint)
        if constraint.type_param_str == variable:
            types[variable] = name
        elif choices:
            common = [choice for choice in choices if choice in ("float", "int64", "int32", "bool")]
            choices = common if common and rng.random() < 0.5 else choices
            types[constraint.type_param_str] = choices[int(rng.integers(0, len(choices)))]
        else:
            types[constraint.type_param_str] = "string"
    return types


def opset_of(schema, rng):
    """An opset in which this version holds; of ai.onnx for all operators of a vendor."""
    if schema.domain:
        return int(rng.integers(13, 22))
    later = [
        other.since_version for other in defs.get_all_schemas_with_history()
        if other.name == schema.name and other.domain == "" and other.since_version > schema.since_version
    ]
    last = min(later) - 1 if later else defs.onnx_opset_version()
    return int(rng.integers(schema.since_version, last + 1))


def unnamed(node, count, rng):
    """Numbers of the outputs that get no name, of `count`: in half of the cases some, in front, in the middle or at the end.

    In BatchNormalization before version 14, names decide whether it trains.
    """
    if count < 2 or rng.random() < 0.5 or node.op == "BatchNormalization" and node.since < 14:
        return set()
    kept = rng.integers(0, count)
    return {at for at in range(count) if at != kept and rng.random() < 0.6}


def untaken(nodes, outputs, rng):
    """Half of the results of control flow that nothing takes."""
    taken = program.used(nodes) | {name for name, _ in outputs}
    names = [name for node in nodes if node.op_type in program.flow_operators() for name in node.output]
    return {name for name in names if name not in taken and rng.random() < 0.5}


#: Operators whose attributes, coordinates or, in the reference, results are f32 for any type.
SINGLE = set(
    "Resize Attention LayerNormalization RMSNormalization GroupNormalization Shrink Celu Elu ThresholdedRelu Swish "
    "LeakyRelu HardSigmoid DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix RoiAlign GridSample "
    "DeformConv".split()
)


class Case:
    """A model, its inputs and expected outputs."""

    def __init__(self, opset, rng):
        self.opset, self.rng = opset, rng
        self.nodes, self.inputs, self.initializers, self.outputs = [], [], [], []
        self.pairs, self.oracles, self.rtol, self.atol = [], set(), 0.0, 0.0
        #: What was drawn for each node.
        self.drawn = []
        #: Results that have no name in the model which is compiled. ONNX Runtime, which may fault there, gets them named.
        self.hidden = set()
        #: Whether data decide sizes of results, which then are not always declared.
        self.late = False

    def append(self, node, first=None, unnames=False):
        """Adds a drawn node, whose first input is the value `first` if given; gives its results.

        `unnames`: some of several outputs may get an empty name. The oracle gives all of them.
        """
        results, whose = oracle.evaluate(node, self.opset)
        self.oracles.add(whose)
        self.drawn.append(node)
        at, names = len(self.nodes), []
        for index, (array, constant) in enumerate(node.inputs):
            if array is None:
                names.append("")
            elif index == 0 and first is not None:
                names.append(first)
            else:
                name = f"i{at}_{index}"
                names.append(name)
                (self.initializers if constant else self.inputs).append((name, array))
        outputs = ["" if index in node.unnamed else f"o{at}_{index}" for index in range(len(results))]
        self.nodes.append(node.proto(names, outputs))
        used = node.types or {"": ""}
        self.pairs += [f"{node.key}-{node.since} {variable}={name}" for variable, name in used.items()]
        if unnames and not node.unnamed:
            self.hidden |= {outputs[index] for index in unnamed(node, len(results), self.rng.spawn(1)[0])}
        named = [(name, result) for name, result in zip(outputs, results) if name and name not in self.hidden]
        self.tolerance(node, [result for _, result in named])
        return named

    def tolerance(self, node, results):
        # What an f32 or a narrower operand takes part in is no more exact than f32, nor are stashed statistics.
        kinds = [values.NAMES[array.dtype] for array, _ in node.inputs if array is not None]
        least = 2.0**-23 if node.op in SINGLE or any(kind in values.FLOATS - {"double"} for kind in kinds) else 0.0
        for result in results:
            epsilon = values.epsilon(values.NAMES[result.dtype])
            epsilon = max(epsilon, least) if epsilon else 0.0
            self.rtol = max(self.rtol, node.ulps * epsilon)
            # Subnormal f32 results may be 0.
            self.atol = max(self.atol, {"float": 2.0**-126, "bfloat16": 2.0**-126}.get(values.NAMES[result.dtype], 0.0))
            if result.size and node.scale_ulps and epsilon:
                wide = np.abs(result.astype(complex if np.iscomplexobj(result) else np.float64))
                finite = wide[np.isfinite(wide)]
                self.atol = max(self.atol, node.scale_ulps * epsilon * float(finite.max(initial=node.magnitude)))

    def model(self):
        sized, declared = {}, self.rng.random() < 0.5

        def info(name, array):
            dims = [self.dim(size, sized) for size in array.shape]
            return helper.make_tensor_value_info(name, element_type(array), dims)

        inputs = [info(name, array) for name, array in self.inputs]
        # Results are declared by type alone, as what their dims are called is for the compiler to find.
        outputs = []
        for name, array in self.outputs:
            outputs.append(onnx.ValueInfoProto(name=name))
            outputs[-1].type.tensor_type.elem_type = element_type(array)
            if not self.symbolic and (declared or not self.late):
                outputs[-1].CopyFrom(helper.make_tensor_value_info(name, element_type(array), array.shape))
        initializers = [numpy_helper.from_array(array, name) for name, array in self.initializers]
        if self.opset < 4:
            # Before IR version 4 an initializer is an input, too.
            inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, initializers)
        imports = opset_imports([node.domain for node in self.nodes], self.opset)
        version = 3 if self.opset < 4 else helper.find_min_ir_version_for(imports, ignore_unknown=True)
        if self.late:
            version = max(version, 4)
        return helper.make_model(graph, opset_imports=imports, ir_version=version)

    def dim(self, size, sized):
        """A size or, at times, a symbol for it: for the same size always the same."""
        if not self.symbolic or size < 2:
            return size
        if size not in sized:
            sized[size] = f"s{len(sized)}" if self.rng.random() < 0.5 else size
        return sized[size]


def draw_node(pair, rng):
    schema, variable, name = pair
    node = Node(schema, bind(schema, variable, name, rng), rng)
    RECIPES[node.key](node)
    return node


def single(pair, rng):
    """One node; its graph has symbolic dims at times."""
    case = Case(opset_of(pair[0], rng), rng)
    case.outputs = case.append(draw_node(pair, rng), unnames=True)
    return case


def chain(rng):
    opset = int(rng.integers(7, defs.onnx_opset_version() + 1))
    case, value = Case(opset, rng), None
    length = int(rng.integers(2, 7))
    kinds = ["float", "float", "float", "float16", "double", "bfloat16", "int32", "int64", "bool"]
    name = kinds[int(rng.integers(0, 9))]
    for _ in range(60):
        op = LINKS[int(rng.integers(0, len(LINKS)))]
        try:
            schema = defs.get_schema(op, opset)
        except defs.SchemaError:
            continue
        given = None if value is None else value[1]
        of = name if given is None else values.NAMES[given.dtype]
        variable = schema.inputs[0].type_str
        try:
            types = bind(schema, variable, of, rng)
            if of not in next(allowed(c) for c in schema.type_constraints if c.type_param_str == variable):
                continue
            node = Node(schema, types, rng, given)
            node.edge = 0.0
            if op == "Cast" and given is not None and values.NAMES[given.dtype] in values.FLOATS:
                node.types["T2"] = ["float", "double", "float16"][int(rng.integers(0, 3))]
            RECIPES[op](node)
            results = case.append(node, None if value is None else value[0])
        except (Skip, StopIteration, oracle.NoOracle):
            continue
        if any(not usable(result) for _, result in results):
            raise Skip("values grew")
        value = results[0]
        if len(case.nodes) == length:
            break
    if len(case.nodes) < 2:
        raise Skip("too short")
    case.outputs = [value]
    # Errors add up, and halves are rounded at other steps when nodes are fused.
    case.rtol, case.atol = chain_tolerance(case, value[1])
    return case


def drawn_program(rng):
    newest = defs.onnx_opset_version() + 1
    opset = 8 if rng.random() < 0.06 else int(rng.integers(9, 25 if rng.random() < 0.8 else newest))
    case = Case(opset, rng)
    case.symbolic, case.late = rng.random() < 0.4, True
    drawn = program.Program(opset, rng, case.symbolic)
    case.outputs = drawn.run()
    case.nodes, case.inputs, case.oracles = drawn.scope.nodes, drawn.inputs, {"definition"}
    case.hidden = untaken(case.nodes, case.outputs, rng.spawn(1)[0])
    names = program.used(case.nodes)
    case.initializers = [
        (tensor.name, numpy_helper.to_array(tensor)) for tensor in drawn.scope.constants if tensor.name in names]
    return case


def chain_tolerance(case, result):
    arrays = [result] + [array for _, array in case.inputs + case.initializers]
    epsilon = max(values.epsilon(values.NAMES[array.dtype]) for array in arrays)
    largest = 0.0
    if values.NAMES[result.dtype] in values.FLOATS:
        largest = float(np.abs(result.astype(np.float64)).max(initial=0.0))
    return 64 * epsilon, 64 * epsilon * max(1.0, largest)


def usable(array):
    if values.NAMES[array.dtype] not in values.FLOATS:
        return True
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and (np.abs(wide) < 1e3).all())


def number_of(seed, number):
    return np.random.default_rng([seed, number])


def draw_case(pairs, seed, number):
    """The case and what it is about, or the reason why there is none."""
    rng = number_of(seed, number)
    round_, place = divmod(number, CHAIN_EVERY)
    of_program = not pairs or place == CHAIN_EVERY - 1 and len(pairs) > 1000 and round_ % 2 == 1
    of_chain = place == CHAIN_EVERY - 1 and len(pairs) > 1000 and not of_program
    if of_program:
        return draw_program(rng)
    pair = pairs[(round_ * (CHAIN_EVERY - 1) + place) % len(pairs)]
    subject = "chain" if of_chain else f"{key_of(pair[0])}-{pair[0].since_version} {pair[1]}={pair[2]}"
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            case = chain(rng) if of_chain else single(pair, rng)
        except Skip as skip:
            reason = f"{'chain' if of_chain else pair[0].name}: {skip}"
            continue
        except oracle.NoOracle as error:
            reason = f"{pair[0].name}-{pair[0].since_version}: no oracle: {error}"
            continue
        case.symbolic = rng.random() < 0.3
        if of_chain:
            subject = "chain " + " ".join(node.op_type for node in case.nodes) + f" opset {case.opset}"
        return case, subject, ""
    return None, subject, reason


def draw_program(rng):
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            case = drawn_program(rng)
        except Skip as skip:
            reason = f"program: {skip}"
            continue
        return case, "program " + " ".join(node.op_type for node in case.nodes) + f" opset {case.opset}", ""
    return None, "program", reason


def write(case, folder):
    """Writes the model that is compiled, and its data; gives the model with names for all results."""
    model = case.model()
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    compiled = onnx.ModelProto()
    compiled.CopyFrom(model)
    for node in compiled.graph.node:
        node.output[:] = ["" if name in case.hidden else name for name in node.output]
    (folder / "model.onnx").write_bytes(compiled.SerializeToString())
    for side, arrays in (("input", case.inputs), ("output", case.outputs)):
        for at, (name, array) in enumerate(arrays):
            (data / f"{side}_{at}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    kinds = [["tensor"] * len(case.inputs), ["tensor"] * len(case.outputs)]
    meta = {"rtol": case.rtol, "atol": case.atol, "data_sets": [kinds]}
    (folder / "meta.json").write_text(json.dumps(meta))
    return model


def main():
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--numbers", help="these cases, separated by commas")
    parser.add_argument("--operator")
    parser.add_argument("--order", action="store_true", help="print the order of the pairs, and draw nothing")
    arguments = parser.parse_args()
    pairs = [] if arguments.operator == "program" else in_order(all_pairs(arguments.operator), arguments.seed)
    if arguments.order:
        names = [f"{schema.name}-{schema.since_version} {variable}={name}" for schema, variable, name in pairs]
        return print(json.dumps({"pairs": names, "chain_every": CHAIN_EVERY}))
    index = []
    numbers = range(arguments.first, arguments.first + arguments.count)
    if arguments.numbers:
        numbers = [int(number) for number in arguments.numbers.split(",")]
    for number in numbers:
        case, subject, reason = draw_case(pairs, arguments.seed, number)
        entry = {"number": number, "folder": None, "subject": subject, "pairs": [], "reason": reason}
        if case is not None:
            entry["folder"] = f"c{number}"
            entry["pairs"] = case.pairs
            entry["oracle"] = "+".join(sorted(case.oracles))
            model = write(case, arguments.folder / entry["folder"])
            entry["peer"] = oracle.peer(model, case)
        index.append(entry)
    (arguments.folder / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
