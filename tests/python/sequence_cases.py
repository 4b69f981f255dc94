"""Writes random programs on sequences with their results, which Python's lists and NumPy compute.

sequence_cases.py FOLDER COUNT: makes FOLDER/<number>/{model.onnx, meta.json, test_data_set_0/..} as export_suite.py does.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from onnx import SequenceProto, TensorProto, helper, numpy_helper

INT = TensorProto.INT64
SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(INT, [None, None]))


class Program:
    """A model of matrices with equally many columns, and what its values are."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.columns = self.random.randint(1, 3)
        self.names = 0
        self.nodes, self.inputs, self.constants, self.outputs = [], [], [], []
        self.data = {}
        self.sequences = [self.source()]
        for _ in range(self.random.randint(1, 6)):
            self.step()
        known = {info.name for info in self.inputs}
        self.outputs += [(name, value) for name, value in self.sequences[-2:] if name not in known]

    def name(self):
        self.names += 1
        return f"v{self.names}"

    def emit(self, op, inputs, **attributes):
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def array(self, shape):
        count = int(np.prod(shape))
        return np.array([self.random.randrange(100) for _ in range(count)], np.int64).reshape(shape)

    def matrix(self, rows=None):
        """The name of an input matrix, whose dims may be symbols, and its value."""
        value = self.array([self.random.randint(0, 3) if rows is None else rows, self.columns])
        return self.input(value, [dim if self.random.random() < 0.5 else self.name() for dim in value.shape]), value

    def input(self, value, dims, dtype=INT):
        name = self.name()
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        self.data[name] = value
        return name

    def number(self, value):
        """The name of a constant or an input."""
        value = np.array(value, np.int64)
        if self.random.random() < 0.5:
            return self.input(value, [])
        name = self.name()
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def flag(self):
        value = self.random.random() < 0.5
        return self.input(np.array(value), [], TensorProto.BOOL), value

    def source(self):
        kind = self.random.choice(["given", "constructed", "singles", "equal", "sized"])
        if kind == "given":
            name = self.name()
            self.inputs.append(helper.make_value_info(name, SEQUENCE))
            value = [self.array([self.random.randint(0, 3), self.columns]) for _ in range(self.random.randint(0, 4))]
            self.data[name] = value
            return name, value
        if kind == "constructed":
            pairs = [self.matrix() for _ in range(self.random.randint(1, 4))]
            return self.emit("SequenceConstruct", [name for name, _ in pairs]), [value for _, value in pairs]
        rows = self.random.randint(1, 6)
        x, value = self.matrix(rows)
        if kind == "singles":
            return self.emit("SplitToSequence", [x]), np.split(value, rows)
        if kind == "equal":
            size = self.random.randint(1, rows)
            parts = [value[start : start + size] for start in range(0, rows, size)]
            return self.emit("SplitToSequence", [x, self.number(size)]), parts
        cuts = sorted(self.random.randint(0, rows) for _ in range(2))
        sizes = np.diff([0, *cuts, rows]).astype(np.int64)
        given = self.input(sizes, [self.random.choice([3, "parts"])])
        return self.emit("SplitToSequence", [x, given]), np.split(value, cuts)

    def step(self):
        name, value = self.random.choice(self.sequences)
        steps = [self.insert, self.length, self.choose, self.loop, self.map]
        if value:
            steps += [self.erase, self.at, self.concat]
        self.random.choice(steps)(name, value)

    def insert(self, name, value):
        x, element = self.matrix()
        at = self.random.randint(-len(value), len(value))
        given = self.random.random() < 0.7
        result = list(value)
        result.insert(at if given else len(value), element)
        inputs = [name, x, self.number(at)] if given else [name, x]
        self.sequences.append((self.emit("SequenceInsert", inputs), result))

    def erase(self, name, value):
        at = self.random.randint(-len(value), len(value) - 1)
        given = self.random.random() < 0.7
        result = list(value)
        result.pop(at if given else -1)
        self.sequences.append((self.emit("SequenceErase", [name, self.number(at)] if given else [name]), result))

    def at(self, name, value):
        at = self.random.randint(-len(value), len(value) - 1)
        self.outputs.append((self.emit("SequenceAt", [name, self.number(at)]), value[at]))

    def length(self, name, value):
        self.outputs.append((self.emit("SequenceLength", [name]), np.array(len(value), np.int64)))

    def concat(self, name, value):
        axes = [0, -2]
        if len({element.shape for element in value}) == 1:
            axes += [1, -1]
        axis = self.random.choice(axes)
        result = np.concatenate(value, axis)
        self.outputs.append((self.emit("ConcatFromSequence", [name], axis=axis), result))
        if len(axes) > 2:
            axis = self.random.randint(-3, 2)
            self.outputs.append((self.emit("ConcatFromSequence", [name], axis=axis, new_axis=1), np.stack(value, axis)))

    def body(self, inputs, nodes, outputs):
        return helper.make_graph(nodes, "body", inputs, [helper.make_value_info(name, ty) for name, ty in outputs])

    def choose(self, name, value):
        condition, taken = self.flag()
        x, element = self.matrix()
        then, otherwise = self.name(), self.name()
        branches = {
            "then_branch": self.body([], [helper.make_node("SequenceInsert", [name, x], [then])], [(then, SEQUENCE)]),
            "else_branch": self.body([], [helper.make_node("Identity", [name], [otherwise])], [(otherwise, SEQUENCE)]),
        }
        self.sequences.append((self.emit("If", [condition], **branches), [*value, element] if taken else value))

    def loop(self, name, value):
        turns = self.random.randint(0, 3)
        x, element = self.matrix()
        turn, more, state, go, grown, added = (self.name() for _ in range(6))
        inputs = [
            helper.make_tensor_value_info(turn, INT, []),
            helper.make_tensor_value_info(more, TensorProto.BOOL, []),
            helper.make_value_info(state, SEQUENCE),
        ]
        nodes = [
            helper.make_node("Identity", [more], [go]),
            helper.make_node("Add", [x, turn], [added]),
            helper.make_node("SequenceInsert", [state, added], [grown]),
        ]
        boolean = helper.make_tensor_type_proto(TensorProto.BOOL, [])
        body = self.body(inputs, nodes, [(go, boolean), (grown, SEQUENCE)])
        result = [*value, *(element + at for at in range(turns))]
        self.sequences.append((self.emit("Loop", [self.number(turns), "", name], body=body), result))

    def map(self, name, value):
        addend = self.random.randrange(10)
        own, other, total = self.name(), self.name(), self.name()
        matrix = helper.make_tensor_type_proto(INT, [None, None])
        inputs = [helper.make_value_info(own, matrix), helper.make_tensor_value_info(other, INT, [])]
        body = self.body(inputs, [helper.make_node("Add", [own, other], [total])], [(total, matrix)])
        result = [element + addend for element in value]
        self.sequences.append((self.emit("SequenceMap", [name, self.number(addend)], body=body), result))

    def write(self, folder):
        infos = [
            helper.make_value_info(name, SEQUENCE) if isinstance(value, list)
            else helper.make_tensor_value_info(name, INT, [None] * value.ndim)
            for name, value in self.outputs
        ]
        graph = helper.make_graph(self.nodes, "program", self.inputs, infos, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        data = folder / "test_data_set_0"
        data.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        sides = ("input", [self.data[info.name] for info in self.inputs]), ("output", [v for _, v in self.outputs])
        for side, values in sides:
            for at, value in enumerate(values):
                (data / f"{side}_{at}.pb").write_bytes(proto(value).SerializeToString())
        kinds = [["sequence" if isinstance(v, list) else "tensor" for v in values] for _, values in sides]
        (folder / "meta.json").write_text(json.dumps({"rtol": 0, "atol": 0, "data_sets": [kinds]}))


def proto(value):
    if isinstance(value, list):
        # A list without elements has no type that the package would find.
        return numpy_helper.from_list(value) if value else SequenceProto(elem_type=SequenceProto.TENSOR)
    return numpy_helper.from_array(np.array(value, order="C"))


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for seed in range(count):
        program = Program(seed)
        if program.outputs:
            program.write(folder / str(seed))


main()
