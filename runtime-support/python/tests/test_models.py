"""Models called from Python: every kind of value against what ONNX says, memory that is shared, and messages of failures."""

import os
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import onnxc
from onnxc import _dims, _types
from onnxc._compile import shared_library_extension

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, opset=21, domains=(), **more):
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(*domain) for domain in domains]
    graph = helper.make_graph(nodes, "test", inputs, outputs, **more)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, **attributes)


def load(*arguments, **keywords):
    return onnxc.compile_and_load(model(*arguments), **keywords)


def untyped(name):
    return onnx.ValueInfoProto(name=name)


def twice(shape=("n", 3)):
    """`y = concat(x, -x)` along the first axis."""
    return model(
        [node("Neg", ["x"], ["minus"]), node("Concat", ["x", "minus"], ["y"], axis=0)],
        [tensor("x", FLOAT, shape)],
        [tensor("y", FLOAT, None)],
    )


class Tensors(unittest.TestCase):
    def test_sizes_that_follow_from_inputs(self):
        loaded = onnxc.compile_and_load(twice())
        self.assertEqual(loaded.inputs, {"x": "float32[n, 3]"})
        self.assertEqual(loaded.outputs, {"y": "float32[n*2, 3]"})
        for count in (2, 0, 5):
            x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
            outputs = loaded(x)
            np.testing.assert_array_equal(outputs["y"], np.concatenate([x, -x]))
            self.assertIs(outputs[0], outputs["y"])
            np.testing.assert_array_equal(loaded(x=x)[0], outputs[0])

    def test_ranks_that_the_run_decides(self):
        branches = {
            "then_branch": helper.make_graph([node("Squeeze", ["x", "one"], ["t"])], "t", [], [untyped("t")]),
            "else_branch": helper.make_graph([node("Identity", ["x"], ["e"])], "e", [], [untyped("e")]),
        }
        nodes = [
            node("Shape", ["x"], ["sizes"]),
            node("Gather", ["sizes", "one"], ["size"]),
            node("Equal", ["size", "one"], ["is_one"]),
            node("If", ["is_one"], ["y"], **branches),
        ]
        one = helper.make_tensor("one", INT64, [1], [1])
        squeezed = model(nodes, [tensor("x", FLOAT, [2, "n", 3])], [tensor("y", FLOAT, None)], initializer=[one])
        loaded = onnxc.compile_and_load(squeezed)
        self.assertTrue(loaded.outputs["y"].endswith("] of rank 2 to 3"), loaded.outputs)
        for count in (1, 2, 0):
            x = np.arange(6 * count, dtype=np.float32).reshape(2, count, 3)
            y = x[:, 0] if count == 1 else x
            for _ in range(2):
                np.testing.assert_array_equal(loaded(x)[0], y)
                self.assertEqual(loaded(x)[0].shape, y.shape)
        own = np.zeros(12, np.float32)
        x = np.ones((2, 1, 3), np.float32)
        given = loaded.run([x], outputs={"y": own})[0]
        self.assertEqual(given.shape, (2, 3))
        self.assertTrue(np.shares_memory(given, own))
        with self.assertRaises(onnxc.RunError):
            loaded.run([np.ones((2, 4, 3), np.float32)], outputs={"y": own})

    def test_shapes_of_inputs_that_the_model_does_not_declare(self):
        nodes = [node("Abs", ["x"], ["y"])]
        open_model = model(nodes, [tensor("x", FLOAT, None)], [untyped("y")])
        with self.assertRaisesRegex(onnxc.CompileError, "--input-shape x=DIM"):
            onnxc.compile_and_load(open_model)
        for shapes, text in [
            ({"x": (2, "n", None)}, "float32[2, n, "),
            ({"x": ()}, "float32[]"),
            ({"x": "n,3"}, "float32[n, 3]"),
            (["x=[2]"], "float32[2]"),
        ]:
            loaded = onnxc.compile_and_load(open_model, input_shapes=shapes)
            self.assertTrue(loaded.inputs["x"].startswith(text), loaded.inputs)

    def test_inputs_are_read_where_they_are(self):
        loaded = load([node("Identity", ["x"], ["y"])], [tensor("x", FLOAT, [4])], [tensor("y", FLOAT, [4])])
        x = np.ones(4, np.float32)
        seen = []
        original = loaded._description.run

        def run(inputs, *rest):
            seen.append(inputs[0].data)
            return original(inputs, *rest)

        loaded._description.run = run
        loaded(x)
        read_only = x.copy()
        read_only.flags.writeable = False
        loaded(read_only)
        self.assertEqual(seen, [x.ctypes.data, read_only.ctypes.data])
        # One that does not lie densely is copied.
        np.testing.assert_array_equal(loaded(np.arange(8, dtype=np.float32)[::2])[0], [0, 2, 4, 6])

    def test_outputs_in_arrays_of_the_caller(self):
        loaded = onnxc.compile_and_load(twice())
        x = np.ones((1, 3), np.float32)
        y = np.zeros((2, 3), np.float32)
        outputs = loaded.run([x], outputs={"y": y})
        self.assertTrue(np.shares_memory(outputs["y"], y))
        np.testing.assert_array_equal(y, [[1, 1, 1], [-1, -1, -1]])
        for wrong in (np.zeros((3, 3), np.float32), np.zeros((2, 3)), np.zeros((2, 6), np.float32)[:, ::2], [0.0]):
            with self.assertRaisesRegex(TypeError, "output `y`"):
                loaded.run([x], outputs={"y": wrong})

    def test_outputs_lie_apart(self):
        loaded = onnxc.compile_and_load(twice())
        memory = np.ones(12, np.float32)
        x, y = memory[:3].reshape(1, 3), memory[3:9].reshape(2, 3)
        loaded.run([x], outputs={"y": y})
        with self.assertRaisesRegex(onnxc.RunError, "input `x` and output `y` overlap") as caught:
            loaded.run([x], outputs={"y": memory[2:8].reshape(2, 3)})
        self.assertEqual(caught.exception.status, 19)

    def test_outputs_of_a_run_stay(self):
        loaded = onnxc.compile_and_load(twice())
        first = loaded(np.ones((1, 3), np.float32))["y"]
        loaded(np.zeros((1, 3), np.float32))
        np.testing.assert_array_equal(first, [[1, 1, 1], [-1, -1, -1]])

    def test_sizes_that_data_decide(self):
        loaded = load(
            [node("NonZero", ["x"], ["y"])], [tensor("x", FLOAT, ["n"])], [tensor("y", INT64, [1, "found"])]
        )
        for x in ([0, 2, 0, 3], [0, 0], [1] * 1000):
            x = np.array(x, np.float32)
            np.testing.assert_array_equal(loaded(x)["y"], np.stack(np.nonzero(x)))
        room = np.zeros((1, 4), np.int64)
        found = loaded.run([np.array([0, 2, 0, 3], np.float32)], outputs={"y": room})["y"]
        np.testing.assert_array_equal(found, [[1, 3]])
        self.assertTrue(np.shares_memory(found, room))

    def test_plain_numbers_and_lists(self):
        loaded = load(
            [node("Mul", ["x", "k"], ["y"])],
            [tensor("x", FLOAT, ["n"]), tensor("k", FLOAT, [])],
            [tensor("y", FLOAT, ["n"])],
        )
        np.testing.assert_array_equal(loaded([1, 2], 3)["y"], np.array([3, 6], np.float32))

    def test_defaults(self):
        made = model(
            [node("Add", ["x", "b"], ["y"])],
            [tensor("x", FLOAT, [2]), tensor("b", FLOAT, [2])],
            [tensor("y", FLOAT, [2])],
            initializer=[helper.make_tensor("b", FLOAT, [2], [1, 2])],
        )
        loaded = onnxc.compile_and_load(made, overridable_defaults=True)
        x = np.zeros(2, np.float32)
        np.testing.assert_array_equal(loaded(x)[0], [1, 2])
        np.testing.assert_array_equal(loaded(x, np.array([5, 6], np.float32))[0], [5, 6])
        self.assertEqual(list(onnxc.compile_and_load(made).inputs), ["x"])

    def test_every_element_type(self):
        for code in range(1, 27):
            if code == STRING:
                continue
            wanted = _types.numpy_type(code)
            loaded = load(
                [node("Reshape", ["x", "s"], ["y"])],
                [tensor("x", code, [5]), tensor("s", INT64, [2])],
                [tensor("y", code, ["a", "b"])],
                onnx.defs.onnx_opset_version(),
            )
            x = np.array([1, 0, 1, 0, 1]).astype(wanted)
            y = loaded(x, np.array([5, 1]))["y"]
            self.assertEqual((y.dtype, y.shape), (wanted, (5, 1)), _types.name_of(code))
            self.assertEqual(y.tobytes(), x.tobytes(), _types.name_of(code))

    def test_packed_elements(self):
        random = np.random.default_rng(1)
        for code, bits in _types._PACKED.items():
            wanted = _types.numpy_type(code)
            codes = random.integers(0, 2**bits, 13, np.uint8)
            packed = np.zeros((13 * bits + 7) // 8, np.uint8)
            for at, value in enumerate(codes.tolist()):
                for bit in range(bits):
                    place = at * bits + bit
                    packed[place // 8] |= ((value >> bit) & 1) << place % 8
            unpacked = _types.unpack(packed, code, (13,))
            self.assertEqual(unpacked.dtype, wanted)
            np.testing.assert_array_equal(unpacked.view(np.uint8) & (2**bits - 1), codes)
            np.testing.assert_array_equal(_types.pack(unpacked, code), packed)
        signed = np.array([-8, 7, -1, 0, 3]).astype(ml_dtypes.int4)
        loaded = load(
            [node("Cast", ["x"], ["y"], to=FLOAT), node("Cast", ["y"], ["z"], to=TensorProto.INT4)],
            [tensor("x", TensorProto.INT4, [5])],
            [tensor("y", FLOAT, [5]), tensor("z", TensorProto.INT4, [5])],
        )
        outputs = loaded(signed)
        np.testing.assert_array_equal(outputs["y"], [-8, 7, -1, 0, 3])
        np.testing.assert_array_equal(outputs["z"].astype(np.int8), [-8, 7, -1, 0, 3])
        self.assertEqual(outputs["z"].dtype, ml_dtypes.int4)
        np.testing.assert_array_equal(loaded(signed.astype(np.int8))["y"], [-8, 7, -1, 0, 3])

    def test_bits_of_bfloat16(self):
        loaded = load(
            [node("Cast", ["x"], ["y"], to=FLOAT)],
            [tensor("x", TensorProto.BFLOAT16, [2])],
            [tensor("y", FLOAT, [2])],
        )
        x = np.array([1.5, -2], ml_dtypes.bfloat16)
        np.testing.assert_array_equal(loaded(x)["y"], [1.5, -2])
        np.testing.assert_array_equal(loaded(x.view(np.uint16))["y"], [1.5, -2])

    def test_random_numbers_follow_the_seed(self):
        loaded = load(
            [node("RandomUniform", [], ["y"], shape=[16])], [], [tensor("y", FLOAT, [16])]
        )
        first, again, other = (loaded.run([], seed=seed)["y"] for seed in (7, 7, 8))
        np.testing.assert_array_equal(first, again)
        self.assertFalse((first == other).all())


class Values(unittest.TestCase):
    def test_texts(self):
        loaded = load(
            [node("StringConcat", ["a", "b"], ["y"])],
            [tensor("a", STRING, ["n", 1]), tensor("b", STRING, [])],
            [tensor("y", STRING, ["n", 1])],
        )
        a = np.array([["é"], [""], ["a text of more than sixteen bytes"]])
        y = loaded(a, "!")["y"]
        self.assertEqual((y.dtype, y.tolist()), (object, [["é!"], ["!"], ["a text of more than sixteen bytes!"]]))
        self.assertEqual(loaded(a.astype(object), np.array("?", object))["y"][1, 0], "?")
        self.assertEqual(loaded([[b"x"]], "y")["y"].tolist(), [["xy"]])
        with self.assertRaisesRegex(TypeError, "input `a`: 3 is not a text"):
            loaded(np.array([[3]], object), "!")

    def test_sequences(self):
        loaded = load(
            [
                node("SequenceConstruct", ["a", "b"], ["s"]),
                node("SequenceInsert", ["s", "c"], ["all"]),
                node("SequenceLength", ["given"], ["count"]),
                node("ConcatFromSequence", ["given"], ["joined"], axis=0),
            ],
            [
                tensor("a", FLOAT, ["n"]),
                tensor("b", FLOAT, ["m"]),
                tensor("c", FLOAT, ["k"]),
                helper.make_tensor_sequence_value_info("given", INT64, [None]),
            ],
            [untyped("all"), tensor("count", INT64, []), tensor("joined", INT64, [None])],
        )
        self.assertEqual(loaded.inputs["given"], "sequence(int64)")
        a, b, c = (np.arange(size, dtype=np.float32) for size in (2, 0, 3))
        outputs = loaded(a, b, c, [np.array([1, 2]), np.array([], np.int64), np.array([3])])
        for found, wanted in zip(outputs["all"], (a, b, c), strict=True):
            np.testing.assert_array_equal(found, wanted)
        self.assertEqual(outputs["count"], 3)
        np.testing.assert_array_equal(outputs["joined"], [1, 2, 3])
        with self.assertRaisesRegex(TypeError, "`given`"):
            loaded(a, b, c, None)

    def test_optionals(self):
        element = helper.make_tensor_type_proto(FLOAT, [2])
        loaded = load(
            [node("OptionalHasElement", ["o"], ["has"])],
            [helper.make_value_info("o", helper.make_optional_type_proto(element))],
            [tensor("has", TensorProto.BOOL, [])],
        )
        self.assertTrue(loaded(np.zeros(2, np.float32))["has"])
        self.assertFalse(loaded(None)["has"])
        made = load(
            [node("Optional", ["x"], ["o"])],
            [tensor("x", FLOAT, [2])],
            [helper.make_value_info("o", helper.make_optional_type_proto(element))],
        )
        np.testing.assert_array_equal(made([3, 4])["o"], [3, 4])

    def test_maps(self):
        loaded = load(
            [node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog"])],
            [tensor("x", FLOAT, ["n", 2])],
            [untyped("y")],
            21,
            [("ai.onnx.ml", 3)],
        )
        self.assertEqual(
            loaded([[1, 2], [3, 4]])["y"], [{"cat": 1.0, "dog": 2.0}, {"cat": 3.0, "dog": 4.0}]
        )
        kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
        vector = load(
            [node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", cast_to="TO_FLOAT", map_form="SPARSE", max_map=5)],
            [helper.make_value_info("m", kind)],
            [tensor("y", FLOAT, None)],
            21,
            [("ai.onnx.ml", 3)],
        )
        np.testing.assert_array_equal(vector({3: 1.5, 0: 2.5})["y"].reshape(-1), [2.5, 0, 0, 1.5, 0])


class States(unittest.TestCase):
    def sums(self):
        """Appends rows, and sums all there are."""
        return model(
            [
                node("Concat", ["rows", "x"], ["more"], axis=0),
                node("ReduceSum", ["more", "axes"], ["y"], keepdims=0),
            ],
            [tensor("x", FLOAT, ["new", 3]), tensor("rows", FLOAT, ["past", 3])],
            [tensor("more", FLOAT, ["all", 3]), tensor("y", FLOAT, [3])],
            initializer=[helper.make_tensor("axes", INT64, [1], [0])],
        )

    def test_training_changes_what_inference_reads(self):
        """A step of gradient descent on a linear layer, against numpy."""
        network = model(
            [node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", FLOAT, ["n", 3])],
            [tensor("y", FLOAT, ["n", 2])],
            domains=[("ai.onnx.preview.training", 1)],
            initializer=[helper.make_tensor("w", FLOAT, [3, 2], [1, 2, 3, 4, 5, 6])],
        )
        step = helper.make_graph(
            [
                node("Sub", ["y", "t"], ["e"]),
                node("Mul", ["e", "e"], ["s"]),
                node("ReduceSum", ["s"], ["loss"], keepdims=0),
                helper.make_node(
                    "Gradient", ["w", "x", "t"], ["g"], domain="ai.onnx.preview.training", xs=["w"], zs=["x", "t"], y="loss"
                ),
                node("Mul", ["g", "rate"], ["d"]),
                node("Sub", ["w", "d"], ["w_next"]),
            ],
            "step",
            [tensor("t", FLOAT, ["n", 2])],
            [tensor("loss", FLOAT, []), tensor("w_next", FLOAT, [3, 2])],
            initializer=[helper.make_tensor("rate", FLOAT, [], [0.01])],
        )
        first = helper.make_graph(
            [node("Constant", [], ["nought"], value=helper.make_tensor("", FLOAT, [3, 2], [0] * 6))],
            "first", [], [tensor("nought", FLOAT, [3, 2])],
        )
        info = network.training_info.add()
        info.algorithm.CopyFrom(step)
        info.initialization.CopyFrom(first)
        for bindings, value in [(info.update_binding, "w_next"), (info.initialization_binding, "nought")]:
            binding = bindings.add()
            binding.key, binding.value = "w", value
        loaded = onnxc.compile_and_load(network, training=True)
        self.assertEqual(list(loaded.entries), ["train_initialize", "train_step"])
        state = loaded.state()
        w = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
        np.testing.assert_array_equal(state["w"], w)
        x, t = np.eye(3, dtype=np.float32)[:2], np.ones((2, 2), np.float32)
        for _ in range(5):
            outputs = loaded.entries["train_step"](x, t, state=state)
            error = x @ w - t
            np.testing.assert_allclose(outputs["loss"], (error**2).sum(), rtol=1e-5)
            w = w - np.float32(0.01) * 2 * x.T @ error
            np.testing.assert_allclose(state["w"], w, rtol=1e-5)
            np.testing.assert_allclose(loaded(x, state=state)["y"], x @ w, rtol=1e-5)
        saved = state.copy()
        self.assertEqual(loaded.entries["train_initialize"](state=state), ())
        np.testing.assert_array_equal(loaded(x, state=state)["y"], np.zeros((2, 2)))
        state["w"] = w
        np.testing.assert_allclose(loaded(x, state=state)["y"], x @ w, rtol=1e-5)
        state.reset()
        np.testing.assert_array_equal(state["w"], np.arange(1, 7).reshape(3, 2))
        state.restore(saved)
        np.testing.assert_allclose(state["w"], w, rtol=1e-5)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "learnt.npz"
            state.save(path)
            with np.load(path) as arrays:
                self.assertEqual(list(arrays), list(state))
                np.testing.assert_array_equal(arrays["w"], state["w"])
            other = loaded.state()
            other.load(path)
            np.testing.assert_array_equal(other.bytes, state.bytes)
            np.savez(path, w=-w)
            other.load(path)
            np.testing.assert_array_equal(other["w"], -w)
            np.savez(path, w=np.zeros((2, 3), np.float32))
            with self.assertRaisesRegex(onnxc.InvalidArgument, r"state `w` has the shape \(3, 2\), not \(2, 3\)"):
                other.load(path)
            np.savez(path, v=w)
            with self.assertRaisesRegex(KeyError, "no state `v`"):
                other.load(path)
            np.testing.assert_array_equal(other["w"], -w)
        self.assertEqual(onnxc.compile_and_load(network).entries, {})

    def test_a_model_that_infers_learns(self):
        network = model(
            [node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", FLOAT, ["n", 3])],
            [tensor("y", FLOAT, ["n", 2])],
            initializer=[helper.make_tensor("w", FLOAT, [3, 2], [1, 2, 3, 4, 5, 6])],
        )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "learner.onnx")
            written = onnxc.train_graph(network, path, loss="mse", optimizer="adamw", betas=(0.8, 0.9), learn=["w*"], nesterov=False)
            self.assertEqual(str(written), path)
            onnx.checker.check_model(onnx.load(path))
            loaded = onnxc.compile_and_load(path, training=True)
            with self.assertRaisesRegex(onnxc.CompileError, "--learn v: no initializer"):
                onnxc.train_graph(network, path, loss="mse", optimizer="sgd", learn=["v"])
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'lr'"):
            onnxc.train_graph(network, path, loss="mse", optimizer="sgd", lr=1)
        state = loaded.state()
        state["learning_rate"] = np.float32(0.1)
        x, t = np.eye(3, dtype=np.float32), np.ones((3, 2), np.float32)
        losses = [float(loaded.entries["train_step"](x, t, state=state)["loss"]) for _ in range(50)]
        self.assertAlmostEqual(losses[0], ((np.arange(6)) ** 2).mean(), places=5)
        self.assertLess(losses[-1], losses[0] / 4)

    def test_runs_append(self):
        loaded = onnxc.compile_and_load(self.sums(), state={"rows": "more"})
        self.assertTrue(loaded.has_state)
        self.assertEqual((list(loaded.inputs), list(loaded.outputs)), (["x"], ["y"]))
        capacity = next(symbol for symbol in loaded.symbols if "capacity" in symbol)
        state = loaded.state(**{capacity: 5})
        first = loaded(np.array([[1, 2, 3], [10, 20, 30]], np.float32), state=state)
        np.testing.assert_array_equal(first["y"], [11, 22, 33])
        other, saved = state.copy(), state.bytes.copy()
        np.testing.assert_array_equal(loaded([[100, 0, 0]], state=state)["y"], [111, 22, 33])
        np.testing.assert_array_equal(loaded([[0, 0, 7]], state=other)["y"], [11, 22, 40])
        self.assertEqual(state.sizes, {"past": 3})
        state.truncate("past", 1)
        np.testing.assert_array_equal(loaded(np.zeros((0, 3), np.float32), state=state)["y"], [1, 2, 3])
        state.bytes[:] = saved
        with self.assertRaisesRegex(onnxc.RunError, "state is full: `past` would become 6") as caught:
            loaded(np.zeros((4, 3), np.float32), state=state)
        self.assertEqual(caught.exception.status, 18)
        state.reset()
        self.assertEqual(state.sizes, {"past": 0})

    def test_misuse(self):
        loaded = onnxc.compile_and_load(self.sums(), state="rows=more")
        x = np.zeros((1, 3), np.float32)
        with self.assertRaisesRegex(TypeError, "has state"):
            loaded(x)
        with self.assertRaisesRegex(TypeError, "no symbol `nothing`"):
            loaded.state(nothing=3)
        with self.assertRaisesRegex(onnxc.RunError, "no state for the sizes"):
            loaded.state(**{next(s for s in loaded.symbols if "capacity" in s): 2**62})
        with self.assertRaisesRegex(TypeError, "no state"):
            onnxc.compile_and_load(twice()).state()


class Failures(unittest.TestCase):
    def test_runs_say_what_is_wrong(self):
        loaded = onnxc.compile_and_load(twice())
        with self.assertRaisesRegex(onnxc.RunError, "input 0 `x`: dimension 1 is 4, must be 3") as caught:
            loaded(np.zeros((2, 4), np.float32))
        self.assertEqual(caught.exception.status, 5)
        with self.assertRaisesRegex(onnxc.RunError, "rank 1, must be 2"):
            loaded(np.zeros(3, np.float32))
        with self.assertRaisesRegex(TypeError, "input `x` has elements of float64, not of float32"):
            loaded(np.zeros((2, 3)))
        with self.assertRaisesRegex(TypeError, "has no input `z`; there are `x`"):
            loaded(z=np.zeros((2, 3), np.float32))
        with self.assertRaisesRegex(TypeError, "input `x` of model `model` is missing"):
            loaded()
        with self.assertRaisesRegex(TypeError, "2 inputs given"):
            loaded(1, 2)
        with self.assertRaisesRegex(KeyError, "no output `z`; there are `y`"):
            loaded(np.zeros((2, 3), np.float32))["z"]

    def test_models_that_do_not_compile(self):
        with self.assertRaises(onnxc.CompileError) as caught:
            load([node("Nothing", ["x"], ["y"])], [tensor("x", FLOAT, [2])], [tensor("y", FLOAT, [2])])
        self.assertIn("operator Nothing", caught.exception.problems[0])
        with self.assertRaisesRegex(onnxc.CompileError, "nowhere.onnx"):
            onnxc.compile("nowhere.onnx")
        with self.assertRaisesRegex(onnxc.CompileError, "z80"):
            onnxc.compile_and_load(twice(), cpu="z80")
        with self.assertRaisesRegex(TypeError, "needs the argument `output`"):
            onnxc.compile(twice())
        with self.assertRaises(TypeError):
            onnxc.compile_and_load(twice(), no_option=True)

    def test_warnings(self):
        wrong = model([node("Neg", ["x"], ["y"])], [tensor("x", FLOAT, [2])], [tensor("y", FLOAT, [3])])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            onnxc.compile_and_load(wrong)
        self.assertEqual([one.category for one in caught], [onnxc.ModelWarning])
        with self.assertRaises(onnxc.CompileError):
            onnxc.compile_and_load(wrong, strict=True)

    def test_without_a_linker(self):
        linked = "aarch64-apple-ios"
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CC_aarch64_apple_ios="/no/such/compiler"):
            for target in ("aarch64-apple-darwin", "x86_64-apple-darwin"):
                path = onnxc.compile(twice(), f"{folder}/mac.dylib", target=target)
                self.assertEqual(path.read_bytes()[:4], b"\xcf\xfa\xed\xfe")
            for path in Path(folder).iterdir():
                path.unlink()
            with self.assertRaisesRegex(onnxc.CompileError, r"(?s)/no/such/compiler.*an object \(`\.o`\), which needs none"):
                onnxc.compile(twice(), f"{folder}/m.dylib", target=linked)
            onnxc.compile(twice(), f"{folder}/m.o", target=linked)
            self.assertEqual(sorted(path.name for path in Path(folder).iterdir()), ["m.h", "m.o"])

    def test_libraries_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            path = onnxc.compile(twice(), f"{folder}/first{shared_library_extension()}")
            self.assertEqual(onnxc.load(path).name, "first")
            with self.assertRaisesRegex(ValueError, "has no model `second`; there are: first"):
                onnxc.load(path, name="second")
            with self.assertRaises(OSError):
                onnxc.load(f"{folder}/none.so")

    def test_cancelled(self):
        loaded = onnxc.compile_and_load(twice())
        cancel = onnxc.Cancel()
        x = np.zeros((2, 3), np.float32)
        loaded.run([x], cancel=cancel)
        cancel.set()
        with self.assertRaises(onnxc.RunError) as caught:
            loaded.run([x], cancel=cancel)
        self.assertEqual(caught.exception.status, 12)


class Threads(unittest.TestCase):
    def network(self):
        random = np.random.default_rng(2)
        weights = [random.standard_normal((256, 256)).astype(np.float32) for _ in range(3)]
        names = ["x", "a", "b", "y"]
        return model(
            [node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(3)],
            [tensor("x", FLOAT, ["n", 256])],
            [tensor("y", FLOAT, ["n", 256])],
            initializer=[onnx.numpy_helper.from_array(weight, f"w{at}") for at, weight in enumerate(weights)],
        )

    def test_threads_give_the_same_bits(self):
        made = self.network()
        one, several = onnxc.compile_and_load(made), onnxc.compile_and_load(made, threads=3)
        x = np.random.default_rng(3).standard_normal((200, 256)).astype(np.float32)
        np.testing.assert_array_equal(one(x)["y"], several(x)["y"])
        wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
        np.testing.assert_allclose(one(x)["y"], wanted, rtol=1e-3, atol=1e-1)

    def test_one_model_on_many_threads(self):
        loaded = onnxc.compile_and_load(self.network())
        inputs = [np.full((count, 256), count, np.float32) for count in range(1, 9)]
        wanted = [loaded(x)["y"] for x in inputs]
        found = [None] * len(inputs)

        def work(at):
            for _ in range(20):
                found[at] = loaded(inputs[at])["y"]

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one, other in zip(found, wanted):
            np.testing.assert_array_equal(one, other)


class Dims(unittest.TestCase):
    def test_texts_of_dims(self):
        values = {"n": 7, "n2": 100, "a b": 3, "past + new": 5}
        for text, size in [
            ("n*2", 14),
            ("n2", 100),
            ("3 - n", -4),
            ("-n + 9", 2),
            ("floordiv(n + 1, 3)*a b*2", 12),
            ("mod(n2, n)", 2),
            ("min(n, max(a b, 4)) + 1", 5),
            ("past + new", 5),
            ("broadcast(n, min(n2, 1)) + broadcast(n, a b - 3)", 7),
            ("floordiv(1 - n, 4)", -2),
        ]:
            self.assertEqual(_dims.evaluate(text, values), size, text)
        for text in ("x", "n +", "min(n)", "n n2"):
            with self.assertRaises(ValueError):
                _dims.evaluate(text, values)


class Backend(unittest.TestCase):
    def test_interface(self):
        from onnxc import backend

        self.assertTrue(backend.supports_device("CPU"))
        self.assertFalse(backend.supports_device("CUDA"))
        x = np.array([1, -2], np.float32)
        outputs = backend.run_node(node("Relu", ["x"], ["y"]), [x])
        np.testing.assert_array_equal(outputs.y, [1, 0])
        np.testing.assert_array_equal(outputs["y"], [1, 0])
        older = backend.run_node(node("Clip", ["x"], ["y"], min=-1.0, max=0.5), [x], opset_version=6)
        np.testing.assert_array_equal(older[0], [0.5, -1])
        self.assertEqual(backend.run_model(twice(), [np.zeros((1, 3), np.float32)])[0].shape, (2, 3))
        with self.assertRaisesRegex(ValueError, "CUDA"):
            backend.prepare(twice(), "CUDA")


if __name__ == "__main__":
    unittest.main()
