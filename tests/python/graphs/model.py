"""How a drawn graph is written as a model: symbolic dims, and nodes put into bodies of If, Loop and Scan and into functions of the model.
None of it changes what the graph computes, so that its nodes one by one give the expected results."""

from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

import items
import values
from case import element_type, opset_imports
from graph import schema_since

#: Types that results of blocks have: those that Identity, Gather and Neg take in every version from 13 on.
PLAIN = {"float", "double", "float16", "int32", "int64", "int8", "uint8", "bool", values.STRING}
#: Versions from which on Identity, If and Loop take sequences, and optionals.
SEQUENCES_FROM, OPTIONALS_FROM = 14, 16
NEGATED = {"float", "double", "float16", "int32", "int64", "int8"}


@dataclass
class Block:
    """Nodes `first` to `last`, not included, inside a body or a function."""
    kind: str
    first: int
    last: int
    identity: int
    #: Iterations, or which branch is taken.
    count: int = 1
    #: Whether constants that only these nodes read are initializers of the body.
    inner_constants: bool = False
    #: Whether the branch of an If that is not taken gives tensors of other ranks.
    unlike: bool = False


@dataclass
class Dress:
    #: Symbol by size, of inputs' dims.
    symbols: dict = field(default_factory=dict)
    blocks: list = field(default_factory=list)
    #: Constants that are nodes.
    as_nodes: set = field(default_factory=set)
    #: Whether outputs declare their dims.
    declared: bool = False
    #: Whether results that nobody reads have no name, where the operator lets them go without.
    unnamed: bool = False


def dress(graph, rng):
    """How to write a graph, drawn."""
    chosen = Dress(declared=rng.random() < 0.3)
    if rng.random() < 0.5:
        inputs = [graph.arrays[name] for name, how in graph.leaves.items() if how == "input"]
        sizes = sorted({size for value in inputs if not items.is_other(value) for size in value.shape})
        for size in sizes:
            if size >= 2 and rng.random() < 0.6:
                chosen.symbols[size] = f"s{len(chosen.symbols)}"
    if graph.opset >= 13:
        count = int(rng.choice(4, p=[0.6, 0.25, 0.1, 0.05]))
        chosen.blocks = blocks(graph, rng, 0, len(graph.vertices), count)
    constants = [name for name, how in graph.leaves.items() if how == "constant"]
    chosen.as_nodes = {name for name in constants if graph.opset >= 9 and rng.random() < 0.15}
    # From numbers of its own, so that what is drawn behind it stays as it was.
    chosen.unnamed = bool(rng.spawn(1)[0].random() < 0.3)
    if chosen.unnamed:
        spare = nameless(graph, set())
        kept = [name for name in graph.outputs if name not in spare]
        graph.outputs = kept or graph.outputs
    unlike = rng.spawn(1)[0].random() < 0.7
    for block in chosen.blocks:
        block.unlike = unlike and may_be_unlike(graph, block, chosen.blocks)
    return chosen


def may_be_unlike(graph, block, blocks):
    """Whether the branches of an If may give tensors of unlike ranks: outputs that no node reads, so that the run decides their ranks."""
    around = any(other is not block and other.first <= block.first and block.last <= other.last for other in blocks)
    read = {name for vertex in graph.vertices for name in vertex.inputs}
    free = all(name not in read and not items.is_other(graph.arrays[name]) for name in results(graph, block))
    return block.kind == "if" and not around and free


# Results that an operator gives both of or neither, by their places: the key and the value of a cache.
TOGETHER = {"Attention": (1, 2)}


def nameless(graph, outputs):
    """Results that no node reads, that are not among these outputs and may go without a name."""
    read = {name for vertex in graph.vertices for name in vertex.inputs} | outputs
    found, single = set(), OpSchema.FormalParameterOption.Single
    for vertex in graph.vertices:
        formals = schema_since(vertex.op, vertex.node.since).outputs
        for at, name in enumerate(vertex.outputs):
            # Rows of com.microsoft do not say which of their results may go without.
            option = getattr(formals[min(at, len(formals) - 1)], "option", single)
            needed = option == single
            if name not in read and not needed:
                found.add(name)
        pair = [vertex.outputs[at] for at in TOGETHER.get(vertex.op, ()) if at < len(vertex.outputs)]
        if not found.issuperset(pair):
            found.difference_update(pair)
        # A node keeps at least one name: without any it computes nothing.
        if found.issuperset(vertex.outputs):
            found.discard(vertex.outputs[0])
    return found


def blocks(graph, rng, first, last, count):
    """Blocks beside and inside each other."""
    if count == 0 or last <= first:
        return []
    start = int(rng.integers(first, last))
    end = int(rng.integers(start + 1, min(last, start + 10) + 1))
    kind = ["if", "if", "loop", "scan", "function"][int(rng.integers(0, 5))]
    block = Block(kind, start, end, start * 100 + end * 10 + count, int(rng.integers(1, 4)), bool(rng.random() < 0.5))
    inside = blocks(graph, rng, start, end, count // 2) if count > 1 else []
    beside = blocks(graph, rng, end, last, count - 1 - count // 2) if count > 1 else []
    good = all(leaves_block(graph.arrays[name], graph.opset) for name in results(graph, block))
    return ([block] if good and results(graph, block) else []) + inside + beside


def leaves_block(value, opset):
    """Whether a value can be the result of a block."""
    least = OPTIONALS_FROM if isinstance(value, items.Optional) else SEQUENCES_FROM if items.is_other(value) else 0
    return opset >= least and items.kind_of(value) in PLAIN


def made(graph, block):
    return [name for vertex in graph.vertices[block.first:block.last] for name in vertex.outputs]


def results(graph, block):
    """Values that a block's nodes give and others read."""
    outside = graph.vertices[: block.first] + graph.vertices[block.last:]
    read = {name for vertex in outside for name in vertex.inputs} | set(graph.outputs)
    return [name for name in made(graph, block) if name in read]


def is_asked(block):
    """Whether an input decides which branch is taken, or how often; else the compiler knows."""
    return bool(block.identity % 3)


def unlike_results(graph, dressed):
    """Outputs whose rank the run decides."""
    return {name for block in dressed.blocks if block.unlike for name in results(graph, block)}


def captured(graph, block):
    """Values from around that a block's nodes read, each once."""
    own = set(made(graph, block))
    names = [name for vertex in graph.vertices[block.first:block.last] for name in vertex.inputs]
    return list(dict.fromkeys(name for name in names if name and name not in own))


class Writer:
    def __init__(self, graph, dressed):
        self.graph, self.dress = graph, dressed
        self.functions, self.extra = [], []
        #: Symbols of their own, by input and axis.
        self.hidden = {}
        #: Inputs of blocks' own, conditions and counts: (name, array).
        self.own_inputs = []
        #: Conditions of blocks whose branches give unlike ranks.
        self.turning = set()
        #: Constants that are in a body.
        self.placed = set()
        #: Whether some loops are written once more, with results that nobody reads.
        self.vain = True
        #: Whether nodes are written once more, elsewhere.
        self.repeated = False
        #: Results without a name.
        self.nameless = nameless(graph, set(graph.outputs)) if dressed.unnamed else set()

    def model(self):
        graph = self.graph
        read = {name for vertex in graph.vertices for name in vertex.inputs} | set(graph.outputs)
        nodes = self.emit(0, len(graph.vertices), self.dress.blocks, {})
        leaves = [name for name in graph.leaves if name in read]
        infos = [self.info(name) for name in leaves if graph.leaves[name] == "input"]
        initializers, first = list(self.extra), []
        for name in leaves:
            if graph.leaves[name] == "constant" and name not in self.placed:
                tensor = numpy_helper.from_array(graph.arrays[name], name)
                if name in self.dress.as_nodes:
                    first.append(helper.make_node("Constant", [], [name], value=tensor))
                else:
                    initializers.append(tensor)
        infos += [helper.make_tensor_value_info(name, element_type(array), array.shape) for name, array in self.own_inputs]
        #: Names of drawn inputs in the model's order, before `own_inputs`.
        self.inputs = [name for name in leaves if graph.leaves[name] == "input"]
        if graph.opset < 4:
            infos += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
        outputs = [self.declared(name) for name in graph.outputs]
        proto = helper.make_graph(first + nodes, "drawn", infos, outputs, initializers)
        imports = opset_imports(self.domains(0, len(graph.vertices)), graph.opset)
        version = 3 if graph.opset < 4 else helper.find_min_ir_version_for(imports, ignore_unknown=True)
        if self.functions:
            imports.append(helper.make_opsetid("local", 1))
            version = max(version, 8)
        return helper.make_model(proto, opset_imports=imports, ir_version=version, functions=self.functions)

    def domains(self, first, last):
        return [vertex.node.domain for vertex in self.graph.vertices[first:last]]

    def info(self, name):
        array = self.graph.arrays[name]
        if items.is_other(array):
            return items.value_info(name, array)
        dims = [self.hidden.get((name, axis)) or self.dress.symbols.get(size, size) for axis, size in enumerate(array.shape)]
        return helper.make_tensor_value_info(name, element_type(array), dims)

    def declared(self, name):
        array = self.graph.arrays[name]
        if self.graph.leaves.get(name) == "input":
            return self.info(name)
        open_ = self.dress.symbols or self.hidden or items.is_other(array) or name in unlike_results(self.graph, self.dress)
        declared = self.dress.declared and not open_
        return items.value_info(name, array, list(array.shape) if declared else None)

    def emit(self, first, last, blocks, rename):
        """Nodes of vertices, with blocks around some of them."""
        nodes, at = [], first
        while at < last:
            block = next((b for b in blocks if b.first == at and b.last <= last), None)
            if block is None:
                named = lambda name: "" if name in self.nameless else rename.get(name, name)
                nodes.append(self.graph.vertices[at].proto(named))
                at += 1
                continue
            inner = [b for b in blocks if b is not block and block.first <= b.first and b.last <= block.last]
            nodes += getattr(self, block.kind)(block, inner, rename)
            at = block.last
        return nodes

    def inside(self, block, inner, rename, suffix, more=()):
        """Nodes of a block under names of their own, those of its results, and constants that go with them."""
        own = dict(rename)
        own.update((name, f"{name}_{suffix}") for name in made(self.graph, block))
        own.update(more)
        constants = []
        if block.inner_constants and not self.repeated and suffix[0] not in "fe":
            for name in captured(self.graph, block):
                if self.only(name, block) and name not in self.placed and name not in dict(more):
                    self.placed.add(name)
                    own[name] = f"{name}_{suffix}"
                    constants.append(numpy_helper.from_array(self.graph.arrays[name], own[name]))
        return self.emit(block.first, block.last, inner, own), own, constants

    def only(self, name, block):
        """Whether only a block's nodes read a constant."""
        if self.graph.leaves.get(name) != "constant" or name in self.dress.as_nodes or name in self.graph.outputs:
            return False
        outside = self.graph.vertices[: block.first] + self.graph.vertices[block.last:]
        return all(name not in vertex.inputs for vertex in outside)

    def body(self, nodes, inputs, names, values_, constants=()):
        infos = [items.value_info(name, self.graph.arrays[value]) for name, value in zip(names, values_)]
        return helper.make_graph(nodes, "body", inputs, infos, list(constants))

    def constant(self, name, array):
        self.extra.append(numpy_helper.from_array(array, name))
        return name

    def if_(self, block, inner, rename):
        tag, outs = block.identity, results(self.graph, block)
        # What only the other branch's body has is not visible in this one.
        repeated, self.repeated = self.repeated, self.repeated or block.count != 1
        nodes, own, constants = self.inside(block, inner, rename, f"b{tag}")
        self.repeated = repeated
        taken = self.body(nodes, [], [own[name] for name in outs], outs, constants)
        if block.count == 1:
            names = [f"{name}_z{tag}" for name in outs]
            nodes = [self.nothing(name, to) for name, to in zip(outs, names)]
        else:
            nodes, own, _ = self.inside(block, [], rename, f"e{tag}")
            names = [f"{name}_n{tag}" for name in outs]
            for name, to in zip(outs, names):
                value = self.graph.arrays[name]
                op = "Neg" if not items.is_other(value) and items.kind_of(value) in NEGATED else "Identity"
                nodes.append(helper.make_node(op, [own[name]], [to]))
        if block.unlike:
            nodes += [self.reranked(name, f"{name}_r", self.graph.arrays[out].ndim, tag) for name, out in zip(names, outs)]
            names = [f"{name}_r" for name in names]
            self.turning.add(f"cond{tag}")
        other = self.body(nodes, [], names, outs)
        condition = f"cond{tag}"
        first = block.count != 3
        self.decide(condition, np.array(first), block)
        branches = {"then_branch": taken, "else_branch": other} if first else {"then_branch": other, "else_branch": taken}
        return [helper.make_node("If", [condition], [rename.get(name, name) for name in outs], **branches)]

    def nothing(self, name, to):
        """A node that gives zeros, or an empty value of the same type."""
        empty = items.empty_like(self.graph.arrays[name])
        if isinstance(empty, items.Optional):
            return helper.make_node("Optional", [], [to], type=items.type_proto(empty.like, [None] * (items.rank_of(empty.like) or 0)))
        if isinstance(empty, items.Sequence):
            return helper.make_node("SequenceEmpty", [], [to], dtype=getattr(TensorProto, empty.kind.upper()))
        return helper.make_node("Constant", [], [to], value=numpy_helper.from_array(empty))

    def conditions(self, turned):
        """The inputs of blocks' own; with `turned`, those that choose between unlike ranks choose the other branch."""
        return [(name, np.logical_not(array) if turned and name in self.turning else array) for name, array in self.own_inputs]

    def reranked(self, name, to, rank, tag):
        """A node that gives the same elements with another rank: flat, or with one axis more."""
        op, value = ("Reshape", -1) if rank != 1 and tag % 2 else ("Unsqueeze", 0)
        operand = self.constant(f"{to}_by", np.array([value], np.int64))
        return helper.make_node(op, [name, operand], [to])

    def decide(self, name, array, block):
        """A value that decides the control flow: an input, or known to the compiler."""
        if is_asked(block):
            self.own_inputs.append((name, array))
        else:
            self.constant(name, array)
        return name

    def stacked(self, block, outs, rename):
        """The last iteration's results out of those of all."""
        tag = block.identity
        index = self.constant(f"last{tag}", np.array(block.count - 1, np.int64))
        return [helper.make_node("Gather", [f"{name}_all{tag}", index], [rename.get(name, name)], axis=0) for name in outs]

    def loop(self, block, inner, rename):
        tag, outs = block.identity, results(self.graph, block)
        nodes, own, constants = self.inside(block, inner, rename, f"b{tag}")
        nodes.append(helper.make_node("Identity", [f"keep{tag}"], [f"on{tag}"]))
        # What cannot be stacked is a state, which the last iteration gives.
        states = [name for name in outs if items.is_other(self.graph.arrays[name])]
        outs = [name for name in outs if name not in states]
        inputs = [helper.make_tensor_value_info(f"i{tag}", TensorProto.INT64, []),
                  helper.make_tensor_value_info(f"keep{tag}", TensorProto.BOOL, []),
                  *[items.value_info(f"{name}_s{tag}", self.graph.arrays[name]) for name in states]]
        body = self.body(nodes, inputs, [own[name] for name in states + outs], states + outs, constants)
        body.output.insert(0, helper.make_tensor_value_info(f"on{tag}", TensorProto.BOOL, []))
        initial = [f"{name}_0{tag}" for name in states]
        before = [self.nothing(name, to) for name, to in zip(states, initial)]
        last = [rename.get(name, name) for name in states]
        count = self.decide(f"count{tag}", np.array(block.count, np.int64), block)
        keep = self.constant(f"true{tag}", np.array(True))
        whole = [f"{name}_all{tag}" for name in outs]
        loops = [*before, helper.make_node("Loop", [count, keep, *initial], last + whole, body=body)]
        if self.vain and block.last % 2:
            # The same in vain: nobody reads what it gives.
            vain = [f"{name}_vain{tag}" for name in states + outs]
            loops.append(helper.make_node("Loop", [count, keep, *initial], vain, body=body))
        return [*loops, *self.stacked(block, outs, rename)]

    def scan(self, block, inner, rename):
        """The first value from around comes as slices, all alike."""
        slices = lambda name: (
            not items.is_other(self.graph.arrays[name]) and items.kind_of(self.graph.arrays[name]) in PLAIN
            and self.graph.leaves.get(name) != "constant")
        around = [name for name in captured(self.graph, block) if slices(name)]
        tag, outs = block.identity, results(self.graph, block)
        if not around or any(items.is_other(self.graph.arrays[name]) for name in outs):
            return self.loop(block, inner, rename)
        x = around[0]
        nodes, own, constants = self.inside(block, inner, rename, f"b{tag}", [(x, f"{x}_in{tag}")])
        inputs = [helper.make_tensor_value_info(f"{x}_in{tag}", element_type(self.graph.arrays[x]), None)]
        body = self.body(nodes, inputs, [own[name] for name in outs], outs, constants)
        axis = self.constant(f"axis{tag}", np.array([0], np.int64))
        before = [helper.make_node("Unsqueeze", [rename.get(x, x), axis], [f"{x}_one{tag}"]),
                  helper.make_node("Concat", [f"{x}_one{tag}"] * block.count, [f"{x}_all{tag}"], axis=0)]
        whole = [f"{name}_all{tag}" for name in outs]
        return [*before, helper.make_node("Scan", [f"{x}_all{tag}"], whole, body=body, num_scan_inputs=1),
                *self.stacked(block, outs, rename)]

    def function(self, block, inner, rename):
        tag, outs, around = block.identity, results(self.graph, block), captured(self.graph, block)
        held = Writer(self.graph, Dress(unnamed=self.dress.unnamed))
        parameters = {name: f"{name}_p{tag}" for name in around}
        nodes, own, _ = held.inside(block, [], {}, f"f{tag}", parameters.items())
        imports = opset_imports(self.domains(block.first, block.last), self.graph.opset)
        self.functions.append(helper.make_function(
            "local", f"F{tag}", list(parameters.values()), [own[name] for name in outs], nodes, imports))
        to = [rename.get(name, name) for name in outs]
        return [helper.make_node(f"F{tag}", [rename.get(name, name) for name in around], to, domain="local")]


setattr(Writer, "if", Writer.if_)
