"""Operators that functions in Python compute: against the same functions in C, what they give wrongly, threads, sessions, memory."""

import ctypes
import gc
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnxc
from onnxc import _custom, backend
from onnxc._compile import shared_library_extension

FLOAT, INT64, STRING, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BFLOAT16
C_FUNCTIONS = Path(__file__).resolve().parents[3] / "tests" / "c" / "custom.c"


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, **attributes)


def mine(kind, inputs, outputs, name="it", **attributes):
    return helper.make_node(kind, inputs, outputs, name=name, domain="mine", **attributes)


def model(nodes, inputs, outputs, between=()):
    graph = helper.make_graph(nodes, "test", inputs, outputs, value_info=list(between))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def array(*values):
    return np.array(values, np.float32)


def shift():
    """`y = -mine.Shift(x)`"""
    nodes = [mine("Shift", ["x"], ["h"], by=2), node("Neg", ["h"], ["y"])]
    return model(nodes, [tensor("x", FLOAT, ["n"])], [tensor("y", FLOAT, ["n"])], [tensor("h", FLOAT, ["n"])])


def kept():
    """`z = exp(mine.Kept(x))` of a size that only data decide."""
    nodes = [mine("Kept", ["x"], ["y"]), node("Exp", ["y"], ["z"])]
    return model(nodes, [tensor("x", FLOAT, ["n"])], [tensor("z", FLOAT, ["m"])], [tensor("y", FLOAT, ["m"])])


def scale(x, absent, alpha, steps, ignored, offset):
    assert absent is None and ignored == "x" and offset.shape == (1,) and not offset.flags.writeable
    return x * np.float32(alpha) + (steps[-1] + offset)


def guarded(values):
    """An array with a page behind it that may not be read."""
    page = mmap.PAGESIZE
    count = (values.nbytes + page - 1) // page + 1
    memory = mmap.mmap(-1, count * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + (count - 1) * page), ctypes.c_size_t(page), 0) == 0
    start = (count - 1) * page - values.nbytes
    found = np.frombuffer(memory, values.dtype, values.size, start).reshape(values.shape)
    found[...] = values
    return found


class Custom(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        environment = mock.patch.dict(os.environ, ONNXC_CACHE=str(self.folder / "cache"))
        environment.start()
        self.addCleanup(environment.stop)

    def library(self):
        """The functions in C, which are the measure of those here."""
        compiler = shutil.which("cc")
        if compiler is None or sys.platform == "win32" or not C_FUNCTIONS.exists():
            self.skipTest("no C compiler")
        path = self.folder / f"custom{shared_library_extension()}"
        include = onnxc.PREFIX / "include"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{include}", str(C_FUNCTIONS), "-o", str(path)], check=True)
        return path

    def same_as_in_c(self, proto, functions, feeds):
        """Runs a model with functions in Python and in C, of a dict of operators to both."""
        library = self.library()
        python = {operator: function for operator, (function, _) in functions.items()}
        in_c = {operator: text for operator, (_, text) in functions.items()}
        for level in (0, 2):
            found = onnxc.InferenceSession(proto, custom_ops=python, opt_level=level)
            wanted = onnxc.InferenceSession(proto, custom_ops=in_c, custom_libraries=[library], opt_level=level)
            for feed in feeds:
                for one, other in zip(found.run(None, feed), wanted.run(None, feed)):
                    self.assertEqual(one.dtype, other.dtype)
                    np.testing.assert_array_equal(one, other)

    def test_elements_and_attributes(self):
        offset = helper.make_tensor("", FLOAT, [1], [0.5])
        attributes = {"alpha": 2.5, "steps": [7, -3], "ignored": "x", "offset": offset}
        nodes = [node("Neg", ["x"], ["h"]), mine("Scale", ["h", ""], ["s"], **attributes), node("Relu", ["s"], ["y"])]
        outputs = [tensor(name, FLOAT, ["n", 3]) for name in "yhs"]
        proto = model(nodes, [tensor("x", FLOAT, ["n", 3])], outputs)
        feeds = [{"x": np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) - 4} for rows in (0, 1, 5000)]
        self.same_as_in_c(proto, {"mine.Scale": (scale, "test_scale")}, feeds)

    def test_reductions_with_two_results(self):
        def sums(x):
            total = np.zeros(len(x), np.float32)
            for column in x.T:
                total += column
            return total, np.array([x.shape[1]])

        outputs = [tensor("s", FLOAT, [2]), tensor("c", INT64, [1])]
        proto = model([mine("RowSums", ["x"], ["s", "c"])], [tensor("x", FLOAT, [2, "m"])], outputs)
        feeds = [{"x": np.arange(2 * columns, dtype=np.float32).reshape(2, columns)} for columns in (0, 1, 9)]
        self.same_as_in_c(proto, {"mine.RowSums": (sums, "test_row_sums")}, feeds)

    def test_memory_for_the_call(self):
        nodes = [mine("Reverse", ["x"], ["y"], name="a"), mine("Reverse", ["y"], ["z"], name="b"), node("Neg", ["z"], ["w"])]
        proto = model(nodes, [tensor("x", FLOAT, ["n"])], [tensor("w", FLOAT, ["n"])])
        functions = {"mine.Reverse": (onnxc.CustomOp(lambda x: x[::-1], like=0), "test_reverse,scratch=64,like=0")}
        self.same_as_in_c(proto, functions, [{"x": np.arange(41, dtype=np.float32)}])

    def test_sizes_that_data_decide(self):
        feeds = [{"x": array(*values)} for values in ([-1, 0, 2, 5, 3], [], [-1, -2], [1])]
        text = "test_positive,shapes=test_positive_shapes"
        calls = []

        def positive(x):
            calls.append(len(x))
            return x[x > 0]

        self.same_as_in_c(kept(), {"mine.Kept": (positive, text)}, feeds)
        # It is not called again for what it has given.
        self.assertEqual(calls, 2 * [5, 0, 2, 1])
        twice = onnxc.CustomOp(positive, shapes=lambda x: [np.count_nonzero(x > 0)])
        self.same_as_in_c(kept(), {"mine.Kept": (twice, text)}, feeds)

    def test_texts(self):
        nodes = [mine("Twice", ["x"], ["y"], between="+"), node("StringConcat", ["y", "x"], ["z"])]
        proto = model(nodes, [tensor("x", STRING, ["n"])], [tensor("z", STRING, ["n"]), tensor("y", STRING, ["n"])])
        feeds = [{"x": np.array(values, object)} for values in (["ab", "", "été", "ab"], [])]
        self.same_as_in_c(
            proto,
            {"mine.Twice": (lambda x, between: x + between + x, "test_twice,shapes=test_twice_shapes")},
            feeds,
        )
        session = onnxc.InferenceSession(proto, custom_ops={"mine.Twice": lambda x, between: np.array([1, "a"], object)})
        with self.assertRaisesRegex(onnxc.RunError, "`it` .*for mine.Twice gave an array for output 0 with another element than a text: 1 is"):
            session.run(None, {"x": feeds[0]["x"][:2]})

    def test_kinds_of_attributes(self):
        found = {}

        def look(x, **attributes):
            found.update(attributes)
            return x

        tensors = {"t": helper.make_tensor("", INT64, [2, 1], [5, -6])}
        attributes = {"i": -3, "f": 0.5, "s": "é\0b", "ints": [1, -2], "floats": [0.25, 4.0], "texts": ["a", "", "ü"], **tensors}
        proto = model([mine("Look", ["x"], ["y"], **attributes)], [tensor("x", FLOAT, [2])], [tensor("y", FLOAT, [2])])
        onnxc.InferenceSession(proto, custom_ops={"mine.Look": look}).run(None, {"x": array(1, 2)})
        self.assertEqual(found.pop("t").tolist(), [[5], [-6]])
        attributes.pop("t")
        self.assertEqual(found, attributes)

    def test_known_operators_and_single_nodes(self):
        nodes = [node("Exp", ["x"], ["y"]), node("Exp", ["y"], ["z"])]
        nodes[1].name = "second-one"
        proto = model(nodes, [tensor("x", FLOAT, [3])], [tensor("z", FLOAT, [3])])
        session = onnxc.InferenceSession(proto, overrides={"ai.onnx.Exp@second-one": lambda x: x - 1})
        np.testing.assert_array_equal(session.run(None, {"x": array(0, 0, 0)})[0], [0, 0, 0])

    def test_other_ways_to_compile(self):
        feed, wanted = {"x": array(1, 2)}, [-3, -4]
        operators = {"mine.Shift": lambda x, by: x + by}
        model = onnxc.compile_and_load(shift(), custom_ops=operators)
        np.testing.assert_array_equal(model(array(1, 2))[0], wanted)
        path = onnxc.compile(shift(), self.folder / f"shift{shared_library_extension()}", custom_ops=operators)
        np.testing.assert_array_equal(onnxc.load(path, custom_ops=operators)(array(1, 2))[0], wanted)
        np.testing.assert_array_equal(onnxc.InferenceSession(path, custom_ops=operators).run(None, feed)[0], wanted)
        with self.assertRaisesRegex(onnxc.RunError, "needs the function `mine_Shift`.*`load` takes it as `custom_ops`") as caught:
            onnxc.load(path)(array(1, 2))
        self.assertEqual(caught.exception.status, 30)
        with self.assertRaisesRegex(onnxc.RunError, "`it` .*function for mine_Shift is missing: `custom_ops` has .* mine.Other"):
            onnxc.load(path, custom_ops={"mine.Other": operators["mine.Shift"]})(array(1, 2))
        with self.assertRaisesRegex(onnxc.UnsupportedOption, "compiled already: `exact`"):
            onnxc.InferenceSession(path, custom_ops=operators, exact=True)
        prepared = backend.prepare(shift(), custom_ops=operators)
        np.testing.assert_array_equal(prepared.run([array(1, 2)])[0], wanted)

    def test_sessions_share_a_library_and_no_functions(self):
        sessions = [onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": lambda x, by, k=k: x + k}) for k in range(4)]
        self.assertEqual([session.from_cache for session in sessions], [False, True, True, True])
        problems, stop = [], threading.Event()

        def work(k):
            x = np.arange(100, dtype=np.float32)
            while not stop.is_set():
                if not np.array_equal(sessions[k].run(None, {"x": x})[0], -(x + k)):
                    problems.append(k)

        def come_and_go():
            for k in range(40):
                session = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": lambda x, by, k=k: x * k})
                if not np.array_equal(session.run(None, {"x": array(1, 2)})[0], [-k, -2 * k]):
                    problems.append(session)
                del session
                gc.collect()
            stop.set()

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)] + [threading.Thread(target=come_and_go)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        self.assertEqual(_custom._RUNS, {})

    def test_functions_may_run_models(self):
        inner = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": lambda x, by: x + by})
        outer = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": lambda x, by: inner.run(None, {"x": x})[0]})
        np.testing.assert_array_equal(outer.run(None, {"x": array(1, 2)})[0], [3, 4])

    def failure(self, function):
        """What a run says of a function, and the cause of that."""
        session = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": function})
        with self.assertRaises(onnxc.RunError) as caught:
            session.run(None, {"x": array(1, 2)})
        self.assertEqual(caught.exception.status, 20)
        text = str(caught.exception)
        self.assertTrue(text.startswith("node `it` (Shift): the function for mine.Shift "), text)
        return text[len("node `it` (Shift): the function for mine.Shift ") :], caught.exception.__cause__

    def test_what_functions_give_wrongly(self):
        cases = [
            (lambda x, by: None, "gave NoneType for output 0, not an array"),
            (lambda x, by: [1.0, 2.0], "gave list for output 0, not an array"),
            (lambda x, by: x.astype(np.float64), "gave an array of float64 for output 0, which is of float32"),
            (lambda x, by: x.astype(">f4"), "gave an array of >f4 for output 0, which is of float32"),
            (lambda x, by: np.array(["a", "b"]), "gave an array of <U1 for output 0, which is of float32"),
            (lambda x, by: x[:1], "gave an array of shape [1] for output 0, which is [2]"),
            (lambda x, by: x.reshape(1, 2), "gave an array of shape [1, 2] for output 0, which is [2]"),
            (lambda x, by: np.float32(1), "gave an array of shape [] for output 0, which is [2]"),
            (lambda x, by: (x, x), "gave 2 results, the node has 1 outputs"),
            (lambda x, by: (), "gave 0 results, the node has 1 outputs"),
        ]
        for function, text in cases:
            self.assertEqual(self.failure(function), (text, None))
        with self.assertRaisesRegex(TypeError, "mine.Shift: a function is a callable, or the name of one in C, not int"):
            onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": 5})
        with self.assertRaisesRegex(onnxc.CompileError, "no node of operator mine.Other"):
            onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": abs, "mine.Other": abs})

    def test_sizes_given_wrongly(self):
        cases = [
            (lambda x: [-4], r"gave the size -4 for output 0"),
            (lambda x: [1, 2], r"gave shape \[1, 2\] for output 0, which is \[\?\]"),
            (lambda x: None, r"gave None, which is not the shape of its output"),
            (lambda x: [[1], [2]], r"gave shapes of 2 outputs, the node has 1"),
            (lambda x: [1], r"gave an array of shape \[2\] for output 0, which is \[1\]"),
        ]
        for shapes, text in cases:
            session = onnxc.InferenceSession(kept(), custom_ops={"mine.Kept": onnxc.CustomOp(lambda x: x, shapes=shapes)})
            with self.assertRaisesRegex(onnxc.RunError, rf"^node `it` \(Kept\): the function for mine.Kept {text}$"):
                session.run(None, {"x": array(1, 2)})
        session = onnxc.InferenceSession(kept(), custom_ops={"mine.Kept": lambda x: x.reshape(1, 2)})
        with self.assertRaisesRegex(onnxc.RunError, r"gave shape \[1, 2\] for output 0, which is \[\?\]"):
            session.run(None, {"x": array(1, 2)})

    def test_exceptions(self):
        raised = KeyError("mine")

        def fail(x, by):
            raise raised

        text, cause = self.failure(fail)
        self.assertEqual(text, "raised KeyError: 'mine'")
        self.assertIs(cause, raised)
        self.assertIn("unexpected keyword argument 'by'", self.failure(lambda x: x)[0])

        def interrupt(x, by):
            raise KeyboardInterrupt

        session = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": interrupt})
        with self.assertRaises(KeyboardInterrupt):
            session.run(None, {"x": array(1, 2)})
        # The session is good after a failure.
        fails = [True]
        session = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": lambda x, by: None if fails else x})
        self.assertRaises(onnxc.RunError, session.run, None, {"x": array(1)})
        fails.clear()
        np.testing.assert_array_equal(session.run(None, {"x": array(1)})[0], [-1])

    def test_inputs_are_views_that_stay(self):
        views = []

        def look(x, by):
            views.append(x)
            return x

        x = np.arange(4096, dtype=np.float32)
        session = onnxc.InferenceSession(shift(), custom_ops={"mine.Shift": look})
        session.run(None, {"x": x})
        self.assertTrue(np.shares_memory(views[0], x))
        with self.assertRaisesRegex(ValueError, "read-only"):
            views[0][0] = 1
        # Memory of a run that has ended, of a session that is no more.
        nodes = [node("Exp", ["x"], ["a"]), mine("Kept", ["a"], ["b"]), mine("Kept", ["b"], ["c"], name="other")]
        proto = model(
            nodes, [tensor("x", FLOAT, ["n"])], [tensor("c", FLOAT, ["k"])], [tensor("b", FLOAT, ["m"])]
        )
        for _ in range(3):
            session = onnxc.InferenceSession(proto, custom_ops={"mine.Kept": lambda x: look(x, 0)})
            session.run(None, {"x": x})
        del session, x
        gc.collect()
        for view in views:
            self.assertIsNotNone(_owner(view).pin)
            # Other runs may have written there since; it is there.
            self.assertEqual(view.view(np.uint32).sum().shape, ())

    @unittest.skipUnless(sys.platform == "linux", "mprotect")
    def test_nothing_behind_the_end_is_touched(self):
        session = onnxc.InferenceSession(
            model([mine("Shift", ["x"], ["y"])], [tensor("x", FLOAT, ["n"])], [tensor("y", FLOAT, ["n"])]),
            custom_ops={"mine.Shift": lambda x: np.cumsum(x, dtype=np.float32)},
        )
        for count in (1, 3, 1000, 1025):
            x, y = guarded(np.ones(count, np.float32)), guarded(np.zeros(count, np.float32))
            session.run(None, {"x": x}, outputs={"y": y})
            np.testing.assert_array_equal(y, np.arange(1, count + 1))

    def test_types_of_other_packages(self):
        import ml_dtypes

        nodes = [mine("Shift", ["x"], ["y"])]
        proto = model(nodes, [tensor("x", BFLOAT16, [2])], [tensor("y", BFLOAT16, [2])])
        session = onnxc.InferenceSession(proto, custom_ops={"mine.Shift": lambda x: x + x})
        x = np.array([1.5, -2], ml_dtypes.bfloat16)
        found = session.run(None, {"x": x})[0]
        self.assertEqual((found.dtype, found.tolist()), (x.dtype, [3, -4]))

    def test_names(self):
        names = ["mine.Op", "mine_.Op", "a.b.C", "a_b.C", "a.b_C", "ai.onnx::Conv@a b"]
        symbols = [_custom.symbol_of(name) for name in names]
        self.assertEqual(len(set(symbols)), len(names))
        self.assertEqual(symbols[0], "mine_Op")
        self.assertTrue(all(symbol.isidentifier() for symbol in symbols), symbols)


def _owner(view):
    while isinstance(view, np.ndarray):
        view = view.base
    return view


if __name__ == "__main__":
    unittest.main()
