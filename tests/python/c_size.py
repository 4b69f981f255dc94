"""Size of an object of `onnxc -Os` beside that of plain C loops for the same model, by `gcc -Os` for the same target.

The C is what generators such as onnx2c write for microcontrollers: one function of nested loops for each node, weights as constant
arrays, tensors between nodes as static arrays (which take no bytes of the object). It is run against ONNX Runtime first.

    python c_size.py --onnxc ONNXC [--cc CC --target TRIPLE] MODEL.onnx ...
"""

import argparse
import ctypes
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


class Unsupported(Exception):
    pass


class Writer:
    def __init__(self, model):
        model = onnx.shape_inference.infer_shapes(model)
        self.graph = model.graph
        values = list(self.graph.value_info) + list(self.graph.input) + list(self.graph.output)
        self.shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        if any(0 in shape for shape in self.shapes.values()):
            raise Unsupported("a dim is open")
        self.constants = {i.name: numpy_helper.to_array(i) for i in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.shapes.update({name: list(array.shape) for name, array in self.constants.items()})
        self.names, self.text, self.calls = {}, [], []

    def name(self, value):
        return self.names.setdefault(value, f"t{len(self.names)}")

    def dims(self, value):
        return "".join(f"[{size}]" for size in self.shapes[value]) or "[1]"

    def function(self, node, body, operands):
        output = node.output[0]
        parameters = [f"const float {x}{self.dims(v)}" for x, v in zip("abc", operands)]
        parameters.append(f"float y{self.dims(output)}")
        name = f"node{len(self.calls)}_{node.op_type}"
        self.text.append(f"static void {name}({', '.join(parameters)})\n{{\n{body}\n}}\n")
        self.calls.append(f"{name}({', '.join(map(self.name, list(operands) + [output]))});")

    def loops(self, shape, body):
        index = "".join(f"[i{axis}]" for axis in range(len(shape)))
        for axis in reversed(range(len(shape))):
            body = f"for (uint32_t i{axis} = 0; i{axis} < {shape[axis]}; i{axis}++) {{\n{body}\n}}"
        return body.replace("@", index)

    def node(self, node):
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        x, shape = node.input[0], self.shapes[node.output[0]]
        kind = node.op_type
        if kind in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"):
            count = math.prod(shape)
            body = f"float *data = (float *)a;\nfloat *out = (float *)y;\nfor (uint32_t i = 0; i < {count}; i++) out[i] = data[i];"
            return self.function(node, body, [x])
        if kind == "Relu":
            return self.function(node, self.loops(shape, "y@ = a@ > 0 ? a@ : 0;"), [x])
        if kind == "Add":
            def at(value):
                own = self.shapes[value]
                lead = len(shape) - len(own)
                return "".join(f"[{'0' if size == 1 else f'i{lead + axis}'}]" for axis, size in enumerate(own))
            body = self.loops(shape, f"y@ = a{at(node.input[0])} + b{at(node.input[1])};")
            return self.function(node, body, list(node.input))
        if kind == "Transpose":
            source = "".join(f"[i{attributes['perm'].index(axis)}]" for axis in range(len(shape)))
            return self.function(node, self.loops(shape, f"y@ = a{source};"), [x])
        if kind == "MatMul" and len(shape) == 2:
            inner = self.shapes[x][1]
            body = f"y@ = 0;\nfor (uint32_t k = 0; k < {inner}; k++) y@ += a[i0][k] * b[k][i1];"
            return self.function(node, self.loops(shape, body), list(node.input))
        plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA")
        if kind == "Gemm" and len(shape) == 2 and plain and len(node.input) == 3:
            inner = self.shapes[x][1]
            rhs = "b[i1][k]" if attributes.get("transB") else "b[k][i1]"
            body = f"y@ = c[i1];\nfor (uint32_t k = 0; k < {inner}; k++) y@ += a[i0][k] * {rhs};"
            return self.function(node, self.loops(shape, body), list(node.input))
        if kind == "Softmax" and len(shape) == 2:
            body = (
                f"for (uint32_t r = 0; r < {shape[0]}; r++) {{\nfloat max = -INFINITY;\n"
                f"for (uint32_t i = 0; i < {shape[1]}; i++) max = a[r][i] > max ? a[r][i] : max;\nfloat sum = 0;\n"
                f"for (uint32_t i = 0; i < {shape[1]}; i++) {{ y[r][i] = expf(a[r][i] - max); sum += y[r][i]; }}\n"
                f"for (uint32_t i = 0; i < {shape[1]}; i++) y[r][i] /= sum;\n}}"
            )
            return self.function(node, body, [x])
        if kind in ("Conv", "MaxPool", "AveragePool") and len(shape) == 4:
            return self.window(node, attributes, shape)
        raise Unsupported(f"{kind} of shape {shape}")

    def window(self, node, attributes, shape):
        x, kind = node.input[0], node.op_type
        kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
        pads, inner = attributes.get("pads", [0, 0, 0, 0])[:2], self.shapes[x]
        if attributes.get("auto_pad", b"NOTSET") == b"SAME_UPPER":
            wanted = [max((shape[2 + a] - 1) * strides[a] + kernel[a] - inner[2 + a], 0) for a in range(2)]
            pads = [size // 2 for size in wanted]
        elif attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            raise Unsupported(f"{kind} with {attributes['auto_pad']}")
        if attributes.get("group", 1) != 1 or any(d != 1 for d in attributes.get("dilations", [])):
            raise Unsupported(f"{kind} with {attributes}")
        place = "".join(
            f"int32_t p{axis} = (int32_t)i{axis + 2} * {strides[axis]} - {pads[axis]} + (int32_t)k{axis};\n"
            f"if (p{axis} < 0 || p{axis} >= {inner[axis + 2]}) continue;\n"
            for axis in range(2)
        )
        step = {
            "Conv": "y@ += a[i0][c][p0][p1] * b[i1][c][k0][k1];",
            "MaxPool": "y@ = a[i0][i1][p0][p1] > y@ ? a[i0][i1][p0][p1] : y@;",
            "AveragePool": "y@ += a[i0][i1][p0][p1]; count++;",
        }[kind]
        body = f"{place}{step}"
        for axis in (1, 0):
            body = f"for (uint32_t k{axis} = 0; k{axis} < {kernel[axis]}; k{axis}++) {{\n{body}\n}}"
        if kind == "Conv":
            body = f"for (uint32_t c = 0; c < {inner[1]}; c++) {{\n{body}\n}}"
            start = "y@ = c_bias[i1];" if len(node.input) > 2 else "y@ = 0;"
        else:
            start = "y@ = -INFINITY;" if kind == "MaxPool" else "y@ = 0;\nuint32_t count = 0;"
        body = f"{start}\n{body}" + ("\ny@ /= count;" if kind == "AveragePool" else "")
        body = self.loops(shape, body)
        # The operand `c` is the bias; the channel's loop has that name inside.
        if "c_bias" in body:
            body = "const float *c_bias = c;\n" + body
        return self.function(node, body, list(node.input))

    def source(self):
        for node in self.graph.node:
            if node.output[0] not in self.constants:
                self.node(node)
        lines = ["#include <math.h>", "#include <stdint.h>"]
        used = {value for node in self.graph.node for value in node.input}
        given = [v.name for v in self.graph.input if v.name not in self.constants]
        results = [v.name for v in self.graph.output]
        for value, name in self.names.items():
            if value in self.constants and value in used:
                elements = ", ".join(f"{float(e)!r}f" for e in self.constants[value].ravel())
                braces = f"static const float {name}_[{self.constants[value].size}] = {{{elements}}};"
                lines += [braces, f"#define {name} ((const void *){name}_)"]
            elif value not in given + results:
                lines.append(f"static float {name}{self.dims(value)};")
        lines += self.text
        ports = [f"const float {self.name(v)}{self.dims(v)}" for v in given]
        ports += [f"float {self.name(v)}{self.dims(v)}" for v in results]
        calls = "\n".join(self.calls)
        lines.append(f"void entry({', '.join(ports)})\n{{\n{calls}\n}}\n")
        return "\n".join(lines), given, results


def check(source, path, given, results, shapes, folder):
    """Fails where the C does not compute what ONNX Runtime does."""
    library = folder / "model.so"
    subprocess.run(["gcc", "-w", "-O2", "-shared", "-fPIC", source, "-lm", "-o", library], check=True)
    entry = ctypes.CDLL(str(library)).entry
    random = np.random.default_rng(1)
    inputs = {name: random.standard_normal(shapes[name]).astype(np.float32) for name in given}
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(results, inputs)
    outputs = [np.zeros(shapes[name], np.float32) for name in results]
    entry(*[array.ctypes.data_as(ctypes.c_void_p) for array in [*inputs.values(), *outputs]])
    for ours, theirs in zip(outputs, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def sections(path):
    """Bytes of code and constants, and of code alone."""
    lines = subprocess.run(["size", "-A", path], check=True, capture_output=True, text=True).stdout.splitlines()
    found = [line.split()[:2] for line in lines if line.startswith(".")]
    code = sum(int(size) for name, size in found if name.startswith(".text"))
    data = sum(int(size) for name, size in found if name.startswith((".rodata", ".data", ".lrodata")))
    return code + data, code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL.onnx")
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    arguments = parser.parse_args()
    print("| model | C, gcc -Os | of it code | onnxc -Os | of it code | onnxc -O3 | of it code | -Os to C |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for path in arguments.models:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            try:
                writer = Writer(onnx.load(path))
                text, given, results = writer.source()
                source = folder / "model.c"
                source.write_text(text)
                check(source, path, given, results, writer.shapes, folder)
                subprocess.run([arguments.cc, "-w", "-Os", "-c", source, "-o", folder / "c.o"], check=True)
                c_all, c_code = sections(folder / "c.o")
            except Unsupported as reason:
                print(f"{path}: no C: {reason}", file=sys.stderr)
                c_all = c_code = None
            own = []
            for level in ("-Os", "-O3"):
                command = [arguments.onnxc, path, level, "--target", arguments.target, "-o", folder / "m.o"]
                subprocess.run(command, check=True)
                own.append(sections(folder / "m.o"))
            (small, small_code), (fast, fast_code) = own
            ratio = f"{small / c_all:.2f}" if c_all else "-"
            label = path.stem if path.stem != "model" else path.parent.name
            row = [label, c_all or "-", c_code or "-", small, small_code, fast, fast_code, ratio]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


main()
