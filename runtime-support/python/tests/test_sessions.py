"""Sessions with ONNX Runtime's names: what they are given and give, the cache behind them, tensors of other packages, states, threads."""

import ctypes
import gc
import json
import os
import pickle
import shutil
import subprocess
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

import onnxc
from onnxc import _dlpack, _session, cache
from onnxc._compile import shared_library_extension

FLOAT, INT64, STRING, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BFLOAT16


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, **attributes)


def model(nodes, inputs, outputs, opset=21, **more):
    graph = helper.make_graph(nodes, "test", inputs, outputs, **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def sums(size=3):
    """`sum = a + b` and `product = a * b`"""
    return model(
        [node("Add", ["a", "b"], ["sum"]), node("Mul", ["a", "b"], ["product"])],
        [tensor("a", FLOAT, ["batch", size]), tensor("b", FLOAT, ["batch", size])],
        [tensor("sum", FLOAT, ["batch", size]), tensor("product", FLOAT, ["batch", size])],
    )


def appending(size=3):
    """Appends rows, and sums all there are."""
    return model(
        [
            node("Concat", ["rows", "x"], ["more"], axis=0),
            node("ReduceSum", ["more", "axes"], ["y"], keepdims=0),
        ],
        [tensor("x", FLOAT, ["new", size]), tensor("rows", FLOAT, ["past", size])],
        [tensor("more", FLOAT, ["all", size]), tensor("y", FLOAT, [size])],
        initializer=[helper.make_tensor("axes", INT64, [1], [0])],
    )


def counting():
    """A counter that runs replace, and a table that they only read."""
    return model(
        [node("Add", ["count", "x"], ["next"]), node("Mul", ["next", "table"], ["y"])],
        [tensor("x", FLOAT, [2]), tensor("count", FLOAT, [2]), tensor("table", FLOAT, [2])],
        [tensor("next", FLOAT, [2]), tensor("y", FLOAT, [2])],
    )


def array(*rows):
    return np.array(rows, np.float32)


class WithCache(unittest.TestCase):
    """A cache of its own for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.cache = self.folder / "cache"
        environment = mock.patch.dict(os.environ, ONNXC_CACHE=str(self.cache))
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("ONNXC_CACHE_BYTES", None)

    def forbid_compiling(self):
        patch = mock.patch("onnxc._compile.call", side_effect=AssertionError("the compiler was called"))
        patch.start()
        self.addCleanup(patch.stop)
        return patch


class Sessions(WithCache):
    def test_runs_as_onnx_runtime_does(self):
        session = onnxc.InferenceSession(sums().SerializeToString(), None, ["CPUExecutionProvider"])
        a, b = array([1, 2, 3]), array([4, 5, 6])
        whole = session.run(None, {"a": a, "b": b})
        self.assertIsInstance(whole, list)
        np.testing.assert_array_equal(whole, [[[5, 7, 9]], [[4, 10, 18]]])
        np.testing.assert_array_equal(session.run([], {"a": a, "b": b}), whole)
        swapped = session.run(["product", "sum", "product"], {"b": b, "a": a})
        np.testing.assert_array_equal(swapped, [whole[1], whole[0], whole[1]])
        self.assertEqual(session.get_providers(), ["CPUExecutionProvider"])
        self.assertEqual(onnxc.get_available_providers(), ["CPUExecutionProvider"])
        self.assertEqual(onnxc.get_device(), "CPU")

    def test_inputs_and_outputs_are_described_as_values(self):
        made = model(
            [
                node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE),
                node("SequenceConstruct", ["x", "x"], ["list"]),
                node("NonZero", ["x"], ["found"]),
                node("StringConcat", ["t", "t"], ["tt"]),
            ],
            [tensor("x", FLOAT, ["n", None, 3]), tensor("t", STRING, [])],
            [
                tensor("y", TensorProto.DOUBLE, ["n", None, 3]),
                helper.make_tensor_sequence_value_info("list", FLOAT, None),
                tensor("found", INT64, [3, None]),
                tensor("tt", STRING, []),
            ],
        )
        session = onnxc.InferenceSession(made)
        x, t = session.get_inputs()
        self.assertEqual((x.name, x.type, x.shape, x.dtype), ("x", "tensor(float)", ["n", None, 3], np.dtype(np.float32)))
        self.assertEqual((t.type, t.shape, t.dtype), ("tensor(string)", [], np.dtype(object)))
        y, items, found, _ = session.get_outputs()
        self.assertEqual((y.type, y.shape, y.dtype), ("tensor(double)", ["n", None, 3], np.dtype(np.float64)))
        self.assertEqual(items.type, "seq(tensor(float))")
        self.assertEqual((found.type, found.shape[0]), ("tensor(int64)", 3))

    def test_metadata(self):
        made = sums()
        made.producer_name, made.domain, made.model_version, made.doc_string = "maker", "org.example", -7, "Two sums."
        made.graph.doc_string = "The graph."
        helper.set_model_props(made, {"labels": "a,b", "none": ""})
        path = self.folder / "m.onnx"
        onnx.save(made, path)
        for given in (path, str(path), made.SerializeToString(), made):
            meta = onnxc.InferenceSession(given).get_modelmeta()
            self.assertEqual((meta.producer_name, meta.domain, meta.version), ("maker", "org.example", -7))
            self.assertEqual((meta.description, meta.graph_name, meta.graph_description), ("Two sums.", "test", "The graph."))
            self.assertEqual(meta.custom_metadata_map, {"labels": "a,b", "none": ""})
        library = onnxc.compile(path, self.folder / f"m{shared_library_extension()}")
        self.assertEqual(onnxc.InferenceSession(library).get_modelmeta().custom_metadata_map, {"labels": "a,b", "none": ""})

    def test_compiled_libraries_are_run_as_they_are(self):
        library = onnxc.compile(sums(), self.folder / f"sums{shared_library_extension()}")
        self.forbid_compiling()
        session = onnxc.InferenceSession(library)
        np.testing.assert_array_equal(session.run(["sum"], {"a": array([1, 2, 3]), "b": array([1, 1, 1])})[0], [[2, 3, 4]])
        with self.assertRaisesRegex(onnxc.UnsupportedOption, "is compiled already: `exact`"):
            onnxc.InferenceSession(library, exact=True)

    def test_messages_about_inputs(self):
        session = onnxc.InferenceSession(sums())
        a = array([1, 2, 3])
        cases = [
            ({"a": a}, "input `b` .* is missing; it takes float32\\[batch, 3\\]"),
            ({"a": a, "B": a}, "no input `B`; did you mean `b`\\? There are `a`, `b`"),
            ({"a": a, "b": a.astype(np.float64)}, "`b` has elements of float64, not of float32; it takes float32\\[batch, 3\\]"),
            ({"a": a, "b": np.zeros((1, 4), np.float32)}, "dimension 1 is 4, must be 3.*takes float32\\[batch, 3\\].*shape \\[1, 4\\]"),
            ({"a": a, "b": np.zeros((2, 3), np.float32)}, "input 1 `b`: dimension 0 is 2, must be 1"),
            ({"a": a, "b": np.zeros(3, np.float32)}, "rank 1, must be 2"),
            ({"a": a, "b": [["x"]]}, "the list given is not an array"),
        ]
        for feeds, message in cases:
            with self.assertRaisesRegex(onnxc.InvalidArgument, message):
                session.run(None, feeds)
        with self.assertRaisesRegex(onnxc.InvalidArgument, "no output `sums`; did you mean `sum`"):
            session.run(["sums"], {"a": a, "b": a})
        with self.assertRaisesRegex(onnxc.InvalidArgument, "takes a list of names"):
            session.run("sum", {"a": a, "b": a})
        with self.assertRaisesRegex(onnxc.InvalidArgument, "takes a dict"):
            session.run(None, [a, a])
        for kind in (ValueError, TypeError, onnxc.RunError):
            with self.assertRaises(kind):
                session.run(None, {"a": a})
        try:
            session.run(None, {"a": a})
        except onnxc.InvalidArgument as error:
            self.assertEqual(str(pickle.loads(pickle.dumps(error))), str(error))

    def test_options(self):
        options = onnxc.SessionOptions()
        options.intra_op_num_threads = 2
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxc.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.execution_mode = onnxc.ExecutionMode.ORT_SEQUENTIAL
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.assertEqual(options.get_session_config_entry("session.intra_op.allow_spinning"), "0")
        options.add_free_dimension_override_by_name("batch", 2)
        session = onnxc.InferenceSession(sums(), sess_options=options, disabled_optimizers=["X"])
        self.assertEqual(session.get_inputs()[0].shape, [2, 3])
        self.assertIs(session.get_session_options(), options)
        with self.assertRaisesRegex(AttributeError, "no `intra_op_threads`; did you mean `intra_op_num_threads`"):
            options.intra_op_threads = 3
        with self.assertRaisesRegex(onnxc.UnsupportedOption, "no optimized ONNX model"):
            options.optimized_model_filepath = "x.onnx"
        with self.assertRaisesRegex(onnxc.UnsupportedOption, "custom operators"):
            options.register_custom_ops_library("x.so")
        with self.assertRaisesRegex(TypeError, "no option `exacts`; did you mean `exact`"):
            onnxc.InferenceSession(sums(), exacts=True)
        with self.assertRaisesRegex(onnxc.InvalidArgument, "takes an onnxc.SessionOptions"):
            onnxc.InferenceSession(sums(), {"threads": 1})
        options.intra_op_num_threads = -1
        with self.assertRaisesRegex(onnxc.UnsupportedOption, "-1, not a number of threads"):
            onnxc.InferenceSession(sums(), options)
        run_options = onnxc.RunOptions()
        run_options.log_severity_level = 2
        with self.assertRaisesRegex(AttributeError, "RunOptions has no `sed`; did you mean `seed`"):
            run_options.sed = 1

    def test_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            feeds = {"a": array([1, 2, 3]), "b": array([4, 5, 6])}
            session = onnxc.InferenceSession(sums(), trace=path)
            for _ in range(2):
                session.run(None, feeds)
            self.assertFalse(os.path.exists(path))
            self.assertEqual(session.end_profiling(), path)
            session.run(None, feeds)
            self.assertEqual(session.end_profiling(), path)
            with open(path) as file:
                slices = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
            self.assertEqual([one["args"]["status"] for one in slices if one["cat"] == "run"], [0, 0])
            self.assertTrue(any("(" in one["args"]["nodes"] for one in slices if one["cat"] == "step"), slices)
            # A session that ends writes its own; ONNX Runtime's option names the file by itself.
            options = onnxc.SessionOptions()
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(folder, "own_")
            session = onnxc.InferenceSession(sums(), options)
            session.run(None, feeds)
            del session
            gc.collect()
            (written,) = [name for name in os.listdir(folder) if name.startswith("own_")]
            with open(os.path.join(folder, written)) as file:
                self.assertGreaterEqual(len(json.load(file)["traceEvents"]), 3)
            # Several sessions and threads share a trace.
            trace = onnxc.Trace(events=2)
            compiled = onnxc.compile_and_load(sums())
            compiled.run(feeds, trace=trace)
            self.assertGreater(trace.lost, 0)
            with self.assertRaises(OSError):
                trace.write(os.path.join(folder, "none", "trace.json"))
        with self.assertRaisesRegex(onnxc.InvalidArgument, "keeps no profile: its option `trace`"):
            onnxc.InferenceSession(sums()).end_profiling()

    def test_providers(self):
        for providers, message in [
            (["CUDAExecutionProvider", "CPUExecutionProvider"], "`CUDAExecutionProvider` is not available"),
            ([("CPUExecutionProviders", {})], "did you mean `CPUExecutionProvider`"),
        ]:
            with self.assertWarnsRegex(UserWarning, message):
                session = onnxc.InferenceSession(sums(), providers=providers)
            self.assertEqual(session.get_providers(), ["CPUExecutionProvider"])
        with self.assertRaisesRegex(onnxc.InvalidArgument, "not 3"):
            onnxc.InferenceSession(sums(), providers=[3])

    def test_runs_that_are_ended(self):
        session = onnxc.InferenceSession(sums())
        options = onnxc.RunOptions()
        a = array([1, 2, 3])
        session.run(None, {"a": a, "b": a}, options)
        options.terminate = True
        with self.assertRaises(onnxc.RunError) as caught:
            session.run(None, {"a": a, "b": a}, options)
        self.assertEqual(caught.exception.status, 12)
        options.terminate = False
        session.run(None, {"a": a, "b": a}, options)

    def test_random_numbers(self):
        session = onnxc.InferenceSession(model([node("RandomUniform", [], ["y"], shape=[9])], [], [tensor("y", FLOAT, [9])]))
        draw = lambda options=None: session.run(None, {}, options)[0]
        self.assertFalse((draw() == draw()).all())
        options = onnxc.RunOptions()
        options.seed = 5
        np.testing.assert_array_equal(draw(options), draw(options))
        onnxc.set_seed(1)
        first = [draw(), draw()]
        onnxc.set_seed(1)
        np.testing.assert_array_equal(first, [draw(), draw()])

    def test_bindings_and_values(self):
        session = onnxc.InferenceSession(sums())
        binding = session.io_binding()
        a, out = array([1, 2, 3]), np.zeros((1, 3), np.float32)
        binding.bind_cpu_input("a", a)
        binding.bind_input("b", "cpu", 0, np.float32, a.shape, a.ctypes.data)
        binding.bind_output("sum", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        binding.bind_output("product")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, [[2, 4, 6]])
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], [[1, 4, 9]])
        value = onnxc.OrtValue.ortvalue_from_numpy(a)
        self.assertEqual((value.shape(), value.data_type(), value.device_name()), ([1, 3], "tensor(float)", "cpu"))
        results = session.run_with_ort_values(["sum"], {"a": value, "b": value})
        np.testing.assert_array_equal(results[0].numpy(), [[2, 4, 6]])
        bits = onnxc.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3FC0], np.uint16), BFLOAT16)
        self.assertEqual(bits.numpy().tolist(), [1.5])
        room = onnxc.OrtValue.ortvalue_from_shape_and_type([1, 3], np.float32)
        session.run(["sum"], {"a": value, "b": value}, outputs={"sum": room})
        np.testing.assert_array_equal(room.numpy(), [[2, 4, 6]])
        with self.assertRaisesRegex(onnxc.InvalidArgument, "no device `cuda`"):
            binding.bind_output("sum", "cuda")
        with self.assertRaisesRegex(onnxc.InvalidArgument, "no input `c`"):
            binding.bind_cpu_input("c", a)

    def test_runs_on_a_thread_of_their_own(self):
        session = onnxc.InferenceSession(sums())
        done, seen = threading.Event(), []

        def callback(results, data, error):
            seen.append((results, data, error))
            done.set()

        a = array([1, 2, 3])
        session.run_async(["sum"], {"a": a, "b": a}, callback, "mine")
        self.assertTrue(done.wait(60))
        np.testing.assert_array_equal(seen[0][0][0], [[2, 4, 6]])
        self.assertEqual(seen[0][1:], ("mine", ""))
        done.clear()
        session.run_async(["sum"], {"a": a}, callback, None)
        self.assertTrue(done.wait(60))
        self.assertIn("input `b`", seen[1][2])

    def test_missing_models(self):
        with self.assertRaisesRegex(FileNotFoundError, "no model .*nowhere.onnx"):
            onnxc.InferenceSession("nowhere.onnx")
        with self.assertRaises(onnxc.CompileError):
            onnxc.InferenceSession(b"no model")
        with self.assertRaisesRegex(TypeError, "not int"):
            onnxc.InferenceSession(3)


class Outputs(WithCache):
    def network(self):
        """`cheap`, and `dear`, a product of large matrices."""
        weights = np.random.default_rng(1).standard_normal((512, 512)).astype(np.float32)
        return model(
            [node("Neg", ["x"], ["cheap"]), node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["dear"])],
            [tensor("x", FLOAT, ["n", 512])],
            [tensor("cheap", FLOAT, ["n", 512]), tensor("dear", FLOAT, ["n", 512])],
            initializer=[onnx.numpy_helper.from_array(weights, "w")],
        )

    def test_outputs_that_are_left_out_are_not_compiled(self):
        session = onnxc.InferenceSession(self.network(), outputs=["cheap"])
        self.assertEqual([one.name for one in session.get_outputs()], ["cheap"])
        x = np.ones((2, 512), np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)
        # Without the weights.
        self.assertLess(sum(entry.bytes for entry in cache.entries()), 512 * 512 * 4)
        with self.assertRaisesRegex(onnxc.CompileError, "no output `cheep`; there are `cheap`, `dear`"):
            onnxc.InferenceSession(self.network(), outputs=["cheep"])

    def test_parts_are_compiled_when_they_are_asked_for(self):
        options = onnxc.SessionOptions()
        options.compile_output_subsets = True
        session = onnxc.InferenceSession(self.network(), options)
        x = np.ones((2, 512), np.float32)
        whole = session.run(None, {"x": x})
        self.assertEqual(len(cache.entries()), 1)
        for _ in range(2):
            np.testing.assert_array_equal(session.run(["cheap"], {"x": x})[0], whole[0])
        self.assertEqual(len(cache.entries()), 2)
        np.testing.assert_array_equal(session.run(["dear", "cheap"], {"x": x})[0], whole[1])
        self.assertEqual(len(cache.entries()), 2)

    def test_states_stay(self):
        session = onnxc.InferenceSession(appending(), outputs=["y"], state={"rows": "more"}, state_capacity=4)
        session.run(None, {"x": array([1, 2, 3])})
        np.testing.assert_array_equal(session.run(["y"], {"x": array([1, 2, 3])})[0], [2, 4, 6])


class Cache(WithCache):
    def start(self, made=None, **options):
        session = onnxc.InferenceSession(sums() if made is None else made, **options)
        a = array([1, 2, 3])
        np.testing.assert_array_equal(session.run(["sum"], {"a": a, "b": a})[0], [[2, 4, 6]])
        return session.from_cache

    def test_a_second_start_needs_no_compiler(self):
        path = self.folder / "m.onnx"
        onnx.save(sums(), path)
        self.assertFalse(self.start(path))
        self.forbid_compiling()
        self.assertTrue(self.start(path))
        # Under another name, and as bytes.
        os.rename(path, self.folder / "other.onnx")
        self.assertTrue(self.start(self.folder / "other.onnx"))
        self.assertTrue(self.start(sums()))
        with mock.patch.dict(os.environ, PATH="", CC="/no/such/compiler"):
            self.assertTrue(self.start())

    def test_what_decides_an_entry(self):
        self.assertFalse(self.start())
        self.assertFalse(self.start(exact=True))
        self.assertFalse(self.start(input_dims={"batch": 1}))
        with mock.patch("onnxc._processor.identity", return_value="another"):
            self.assertFalse(self.start())
            # Code for a processor by name is the same on every machine.
            self.assertFalse(self.start(cpu="x86-64-v2"))
        self.assertTrue(self.start(cpu="x86-64-v2"))
        with mock.patch("onnxc._session._VERSION", "9.9.9"):
            self.assertFalse(self.start())
        changed = sums()
        changed.graph.node[1].op_type = "Sub"
        self.assertFalse(self.start(changed))
        self.assertTrue(self.start())
        self.assertEqual(len(cache.entries()), 7)

    def test_external_data_decides(self):
        path = self.folder / "m.onnx"

        def save(value):
            # The package `onnx` appends to a file that is there.
            path.with_name("a b#$.bin").unlink(missing_ok=True)
            made = model(
                [node("Add", ["x", "w"], ["y"])],
                [tensor("x", FLOAT, [2])],
                [tensor("y", FLOAT, [2])],
                initializer=[onnx.numpy_helper.from_array(np.array([value, 1], np.float32), "w")],
            )
            onnx.save(made, path, save_as_external_data=True, location="a b#$.bin", size_threshold=0)

        def start():
            session = onnxc.InferenceSession(path)
            return session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist(), session.from_cache

        save(5)
        self.assertEqual(start(), ([5, 1], False))
        self.assertEqual(start(), ([5, 1], True))
        save(6)
        self.assertEqual(start(), ([6, 1], False))
        save(5)
        self.assertEqual(start(), ([5, 1], True))
        # At another place, with the compiler out of reach.
        shutil.copytree(self.folder, self.folder.parent / (self.folder.name + "-copy"), ignore=shutil.ignore_patterns("cache"))
        self.addCleanup(shutil.rmtree, self.folder.parent / (self.folder.name + "-copy"))
        path = self.folder.parent / (self.folder.name + "-copy") / "m.onnx"
        self.forbid_compiling()
        self.assertEqual(start(), ([5, 1], True))

    def test_broken_entries_are_made_again(self):
        def truncate(path):
            os.truncate(path, path.stat().st_size // 2)

        def empty(path):
            os.truncate(path, 0)

        def zero_end(path):
            size = path.stat().st_size
            with open(path, "r+b") as file:
                file.seek(size - 100)
                file.write(b"\0" * 100)

        def no_json(path):
            path.with_suffix(".json").write_text("{")

        def odd_json(path):
            path.with_suffix(".json").write_text(json.dumps({"file": 3}))

        self.start()
        for spoil in (truncate, empty, zero_end, os.unlink, no_json, odd_json, lambda path: os.unlink(path.with_suffix(".json"))):
            (entry,) = cache.entries()
            # The file may be loaded in this process: another one takes its place, as a crash would leave it.
            other = entry.path.with_suffix(".tmp")
            shutil.copyfile(entry.path, other)
            os.replace(other, entry.path)
            spoil(entry.path)
            self.assertFalse(self.start())
            self.assertTrue(self.start())

    def test_it_is_bounded(self):
        self.start(sums(3))
        size = cache.entries()[0].bytes
        os.environ["ONNXC_CACHE_BYTES"] = str(3 * size + size // 2)
        options = [{"opt_level": level} for level in (0, 1, "s")]
        for at, one in enumerate([{}, *options[:2]]):
            self.start(**one)
            for entry in cache.entries():
                # Starts may be less apart than the clock's step.
                status = entry.path.with_suffix(".json").stat()
                os.utime(entry.path.with_suffix(".json"), ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))
        self.assertEqual(len(cache.entries()), 3)
        self.assertTrue(self.start())
        self.start(**options[2])
        self.assertLessEqual(sum(entry.bytes for entry in cache.entries()), 3.5 * size)
        # The least recently used one has gone, which is not the first.
        self.assertTrue(self.start())
        self.assertTrue(self.start(**options[2]))
        self.assertFalse(self.start(**options[0]))

    def test_entries_larger_than_the_bound_are_not_kept(self):
        os.environ["ONNXC_CACHE_BYTES"] = "100"
        for _ in range(2):
            self.assertFalse(self.start())
        self.assertEqual(cache.entries(), [])
        os.environ["ONNXC_CACHE_BYTES"] = "much"
        with self.assertRaisesRegex(ValueError, "ONNXC_CACHE_BYTES=much"):
            self.start()

    def test_switched_off(self):
        self.assertFalse(self.start(cache=False))
        self.assertFalse(self.cache.exists())
        for off in ("off", "0", ""):
            with mock.patch.dict(os.environ, ONNXC_CACHE=off):
                self.assertFalse(self.start())
                self.assertIsNone(cache.folder())
                self.assertEqual((cache.entries(), cache.clear()), ([], 0))

    def test_cleared(self):
        self.start()
        (entry,) = cache.entries()
        self.assertGreater(entry.used, 0)
        self.assertEqual(cache.clear(), entry.bytes)
        self.assertEqual(cache.entries(), [])
        self.assertFalse(self.start())

    def test_read_only_folders(self):
        self.start()
        original = open

        def no_writing(file, mode="r", *rest, **more):
            if str(file).startswith(str(self.cache)) and any(letter in mode for letter in "wa+x"):
                raise PermissionError(13, "Permission denied", str(file))
            return original(file, mode, *rest, **more)

        # Root may write into folders that are read-only.
        with mock.patch("onnxc.cache.open", no_writing, create=True):
            with mock.patch("os.utime", side_effect=PermissionError):
                self.assertTrue(self.start())
            self.assertFalse(self.start(exact=True))
        self.assertEqual(len(cache.entries()), 1)

    def test_folders_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        with mock.patch.dict(os.environ, ONNXC_CACHE=str(self.folder / "file" / "cache")):
            with self.assertWarnsRegex(cache.CacheWarning, "no cache of compiled models"):
                self.assertFalse(self.start())

    @unittest.skipIf(sys.platform == "win32", "folders have no modes")
    def test_folders_are_the_users_alone(self):
        before = os.umask(0)
        try:
            self.start()
        finally:
            os.umask(before)
        self.assertEqual(self.cache.stat().st_mode & 0o777, 0o700)

    @unittest.skipIf(sys.platform == "win32", "folders have no modes")
    def test_folders_that_others_may_write_to(self):
        self.start()
        os.chmod(self.cache, 0o777)
        with self.assertWarnsRegex(cache.CacheWarning, "others may write to it"):
            self.assertFalse(self.start())
        os.chmod(self.cache, 0o700)
        self.assertTrue(self.start())

    def test_leftovers_go(self):
        self.start()
        inner = cache.entries()[0].path.parent
        (inner / "new-left").mkdir()
        (inner / "new-left" / "model.so").write_text("half")
        (inner / "lost.so").write_text("half")
        for name in ("new-left", "lost.so"):
            os.utime(inner / name, (1, 1))
        (inner / "fresh.tmp").write_text("")
        self.start(exact=True)
        left = {path.name for path in inner.iterdir()}
        self.assertFalse(left & {"new-left", "lost.so"}, left)
        self.assertIn("fresh.tmp", left)

    def test_two_processes_at_once(self):
        path = self.folder / "m.onnx"
        onnx.save(sums(), path)
        script = (
            "import sys, numpy, onnxc\n"
            "session = onnxc.InferenceSession(sys.argv[1])\n"
            "a = numpy.ones((1, 3), numpy.float32)\n"
            "print(session.from_cache, session.run(['sum'], {'a': a, 'b': a})[0].tolist())\n"
        )
        processes = [
            subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(4)
        ]
        printed = [process.communicate()[0].strip() for process in processes]
        # One compiles, the others wait for it.
        self.assertEqual(sorted(printed), ["False [[2.0, 2.0, 2.0]]"] + 3 * ["True [[2.0, 2.0, 2.0]]"])
        self.assertEqual(len(cache.entries()), 1)

    def test_an_entry_that_goes_while_it_is_found(self):
        self.start()
        original = onnxc._model.open_library
        gone = []

        def load(path, *rest):
            if not gone:
                gone.append(path)
                os.unlink(path)
            # The library may be loaded in this process, under the name of the file that is gone.
            if not path.exists():
                raise OSError(f"{path} is gone")
            return original(path, *rest)

        with mock.patch("onnxc._model.open_library", load):
            self.assertFalse(self.start())
        self.assertEqual(len(gone), 1)

    def test_places(self):
        with mock.patch.dict(os.environ, XDG_CACHE_HOME="/x"):
            del os.environ["ONNXC_CACHE"]
            if sys.platform == "linux":
                self.assertEqual(cache.folder(), Path("/x/onnxc"))
            os.environ["XDG_CACHE_HOME"] = "relative"
            self.assertTrue(cache.folder().is_absolute())


class Tensors(WithCache):
    """A package with tensors of its own: DLPack without NumPy's reader."""

    class Foreign:
        def __init__(self, array, device=1):
            self.array, self.device = array, device

        def __dlpack_device__(self):
            return (self.device, 0)

        def __dlpack__(self, **options):
            return _dlpack.Exported(self.array).__dlpack__(**options)

    def test_inputs_are_read_where_they_are(self):
        session = onnxc.InferenceSession(sums())
        a = array([1, 2, 3])
        view = _dlpack.array_of(self.Foreign(a), "input `a`")
        self.assertEqual((view.ctypes.data, view.dtype, view.shape), (a.ctypes.data, a.dtype, a.shape))
        del view
        np.testing.assert_array_equal(session.run(["sum"], {"a": self.Foreign(a), "b": a})[0], 2 * a)
        # Of strides.
        wide = np.arange(6, dtype=np.float32).reshape(1, 6)[:, ::2]
        np.testing.assert_array_equal(session.run(["sum"], {"a": self.Foreign(wide), "b": a})[0], wide + a)
        with self.assertRaisesRegex(TypeError, "input `a` is a tensor of another device"):
            session.run(None, {"a": self.Foreign(a, 2), "b": a})
        with self.assertRaisesRegex(TypeError, "elements of float64, not of float32"):
            session.run(None, {"a": self.Foreign(a.astype(np.float64)), "b": a})

    def test_types_that_numpy_lacks(self):
        session = onnxc.InferenceSession(
            model([node("Cast", ["x"], ["y"], to=BFLOAT16)], [tensor("x", BFLOAT16, [2])], [tensor("y", BFLOAT16, [2])])
        )
        x = np.array([1.5, -2], ml_dtypes.bfloat16)
        y = session.run(None, {"x": self.Foreign(x)})[0]
        self.assertEqual((y.dtype, y.tolist()), (x.dtype, [1.5, -2]))
        for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16):
            x = np.array([[1, 2], [3, 4]], kind)
            there = _dlpack.array_of(onnxc.Exported(x.T), "x")
            self.assertEqual((there.dtype, there.tolist()), (x.dtype, [[1, 3], [2, 4]]))

    def test_memory_goes_back(self):
        kept = len(_dlpack._exported)
        x = np.array([1, 2], ml_dtypes.bfloat16)
        view = _dlpack.array_of(onnxc.Exported(x), "x")
        self.assertEqual(len(_dlpack._exported), kept + 1)
        part = view[1:]
        del view
        self.assertEqual(len(_dlpack._exported), kept + 1)
        del part
        self.assertEqual(len(_dlpack._exported), kept)
        # A capsule that nobody takes.
        capsule = onnxc.Exported(x).__dlpack__()
        self.assertEqual(len(_dlpack._exported), kept + 1)
        del capsule
        self.assertEqual(len(_dlpack._exported), kept)

    def test_outputs_are_written_where_they_belong(self):
        session = onnxc.InferenceSession(sums())
        a, out = array([1, 2, 3]), np.zeros((1, 3), np.float32)
        session.run(None, {"a": a, "b": a}, outputs={"sum": self.Foreign(out)})
        np.testing.assert_array_equal(out, 2 * a)
        with self.assertRaisesRegex(onnxc.InvalidArgument, "output `sum` has shape \\(2, 3\\), not \\(1, 3\\)"):
            session.run(None, {"a": a, "b": a}, outputs={"sum": np.zeros((2, 3), np.float32)})
        with self.assertRaisesRegex(onnxc.InvalidArgument, "no output `sun`; did you mean `sum`"):
            session.run(None, {"a": a, "b": a}, outputs={"sun": out})

    def test_pytorch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        session = onnxc.InferenceSession(sums())
        a = torch.tensor([[1.0, 2.0, 3.0]])
        out = torch.zeros(1, 3)
        found = session.run(["sum"], {"a": a, "b": a.requires_grad_()}, outputs={"sum": out})
        self.assertEqual(out.tolist(), [[2, 4, 6]])
        self.assertEqual(torch.from_numpy(found[0]).data_ptr(), out.data_ptr())
        x = torch.tensor([1.5, -2], dtype=torch.bfloat16)
        there = _dlpack.array_of(x, "x")
        self.assertEqual((there.ctypes.data, there.tolist()), (x.data_ptr(), [1.5, -2]))
        back = torch.from_dlpack(onnxc.Exported(there))
        self.assertEqual((back.dtype, back.data_ptr()), (torch.bfloat16, x.data_ptr()))
        self.assertTrue(_dlpack.array_of(torch.tensor([True, False]), "x").dtype == np.bool_)


class States(WithCache):
    def test_a_session_has_its_states(self):
        session = onnxc.InferenceSession(appending(), state={"rows": "more"}, state_capacity=5)
        first = session.run(["y"], {"x": array([1, 2, 3], [10, 20, 30])})[0]
        np.testing.assert_array_equal(first, [11, 22, 33])
        states = session.states
        self.assertEqual((list(states), len(states)), (["rows"], 1))
        np.testing.assert_array_equal(states["rows"], [[1, 2, 3], [10, 20, 30]])
        saved = states.copy()
        session.run(None, {"x": array([5, 5, 5])})
        self.assertEqual(states.sizes, {"past": 3})
        states.restore(saved)
        self.assertEqual(states.sizes, {"past": 2})
        states["rows"] = array([7, 8, 9])
        np.testing.assert_array_equal(session.run(["y"], {"x": np.zeros((0, 3), np.float32)})[0], [7, 8, 9])
        states["rows"] = np.zeros((0, 3), np.float32)
        self.assertEqual(states["rows"].shape, (0, 3))
        # A copy, not the state itself.
        states["rows"] = array([1, 1, 1])
        states["rows"][:] = 9
        np.testing.assert_array_equal(states["rows"], [[1, 1, 1]])
        with self.assertRaisesRegex(onnxc.InvalidArgument, "at most 5 along axis 0"):
            states["rows"] = np.zeros((6, 3), np.float32)
        with self.assertRaisesRegex(onnxc.InvalidArgument, "elements of float64"):
            states["rows"] = np.zeros((1, 3))
        with self.assertRaisesRegex(KeyError, "no state `row`; did you mean `rows`"):
            states["row"]
        with self.assertRaisesRegex(TypeError, "cannot be removed"):
            del states["rows"]
        other = session.new_states()
        np.testing.assert_array_equal(session.run(["y"], {"x": array([2, 2, 2])}, state=other)[0], [2, 2, 2])
        np.testing.assert_array_equal(states["rows"], [[1, 1, 1]])
        states.clear()
        self.assertEqual(states.sizes, {"past": 0})

    def test_sizes_of_states(self):
        session = onnxc.InferenceSession(appending(), state={"rows": "more"}, state_sizes={"past.capacity": 2})
        session.run(None, {"x": array([1, 2, 3])})
        with self.assertRaisesRegex(onnxc.RunError, "state is full"):
            session.run(None, {"x": array([1, 2, 3], [1, 2, 3])})
        with self.assertRaisesRegex(onnxc.InvalidArgument, "no symbol `past.capacitie`; did you mean `past.capacity`"):
            onnxc.InferenceSession(appending(), state={"rows": "more"}, state_sizes={"past.capacitie": 2})
        with self.assertRaisesRegex(onnxc.InvalidArgument, "the model has no state"):
            onnxc.InferenceSession(sums()).states
        with self.assertRaisesRegex(onnxc.InvalidArgument, "the model has no state"):
            onnxc.InferenceSession(sums(), state_sizes={"n": 2})

    def test_states_that_are_replaced_or_read(self):
        session = onnxc.InferenceSession(counting(), state=["count=next", "table"])
        session.states.update(table=np.array([2, 3], np.float32), count=np.array([10, 20], np.float32))
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], [22, 63])
        np.testing.assert_array_equal(session.states["count"], [11, 21])
        np.testing.assert_array_equal(session.states["table"], [2, 3])
        with self.assertRaisesRegex(onnxc.InvalidArgument, "has the shape \\(2,\\), not \\(3,\\)"):
            session.states["count"] = np.ones(3, np.float32)

    def test_states_that_grow_together(self):
        made = model(
            [
                node("Concat", ["k", "x"], ["k2"], axis=1),
                node("Concat", ["v", "x"], ["v2"], axis=1),
                node("Add", ["k2", "v2"], ["s"]),
                node("ReduceSum", ["s", "axes"], ["y"], keepdims=0),
            ],
            [tensor("x", FLOAT, [2, "new", 3]), tensor("k", FLOAT, [2, "past", 3]), tensor("v", FLOAT, [2, "past", 3])],
            [tensor("k2", FLOAT, [2, "all", 3]), tensor("v2", FLOAT, [2, "all", 3]), tensor("y", FLOAT, None)],
            initializer=[helper.make_tensor("axes", INT64, [1], [1])],
        )
        session = onnxc.InferenceSession(made, state={"k": "k2", "v": "v2"}, state_capacity=4)
        values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
        with self.assertRaisesRegex(onnxc.InvalidArgument, "`past` is 0 and would become 2; state `v` grows with it"):
            session.states["k"] = values
        with self.assertRaisesRegex(onnxc.InvalidArgument, "others have 2"):
            session.states.update(k=values, v=values[:, :1])
        session.states.update(k=values, v=10 * values)
        np.testing.assert_array_equal(session.states["k"], values)
        np.testing.assert_array_equal(session.states["v"], 10 * values)
        session.states["k"] = -values
        x = np.ones((2, 1, 3), np.float32)
        y = session.run(["y"], {"x": x})[0]
        np.testing.assert_array_equal(y, (9 * values).sum(1) + 2)
        np.testing.assert_array_equal(session.states["k"], np.concatenate([-values, x], 1))


class Threads(WithCache):
    def test_one_session_on_many_threads(self):
        options = onnxc.SessionOptions()
        options.intra_op_num_threads = 2
        weights = np.random.default_rng(2).standard_normal((256, 256)).astype(np.float32)
        made = model(
            [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
            [tensor("x", FLOAT, ["n", 256])],
            [tensor("y", FLOAT, ["n", 256])],
            initializer=[onnx.numpy_helper.from_array(weights, "w")],
        )
        session = onnxc.InferenceSession(made, options)
        inputs = [np.full((count, 256), count, np.float32) for count in range(1, 9)]
        wanted = [session.run(None, {"x": x})[0] for x in inputs]
        one = onnxc.SessionOptions()
        one.intra_op_num_threads = 1
        alone = onnxc.InferenceSession(made, one)
        wrong = []

        def work(at):
            for _ in range(20):
                for runner in (session, alone):
                    if not np.array_equal(runner.run(None, {"x": inputs[at]})[0], wanted[at]):
                        wrong.append(at)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_states_take_turns(self):
        session = onnxc.InferenceSession(appending(), state={"rows": "more"}, state_capacity=200)

        def work():
            for _ in range(25):
                session.run(None, {"x": array([1, 1, 1])})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(session.states.sizes, {"past": 100})

    def test_sessions_share_threads(self):
        options = onnxc.SessionOptions()
        options.intra_op_num_threads = 3
        first, second = (onnxc.InferenceSession(sums(size), options) for size in (3, 4))
        self.assertIs(first._model._pool, second._model._pool)
        self.assertEqual(first._model._pool.threads, 3)


class Libraries(WithCache):
    @unittest.skipIf(sys.platform == "win32", "the process needs its PATH")
    def test_no_linker_is_needed(self):
        with mock.patch.dict(os.environ, PATH="", CC="/no/such/compiler"):
            session = onnxc.InferenceSession(sums())
            a = array([1, 2, 3])
            np.testing.assert_array_equal(session.run(["sum"], {"a": a, "b": a})[0], 2 * a)
            # One that calls the runtime, and the C library.
            texts = model(
                [node("StringConcat", ["a", "b"], ["y"])],
                [tensor("a", STRING, ["n"]), tensor("b", STRING, [])],
                [tensor("y", STRING, ["n"])],
            )
            found = onnxc.InferenceSession(texts).run(None, {"a": np.array(["x", "é"]), "b": "!"})[0]
            self.assertEqual(found.tolist(), ["x!", "é!"])
            copied = model(
                [node("Concat", ["x", "x"], ["y"], axis=0)], [tensor("x", FLOAT, ["n", 100])], [tensor("y", FLOAT, None)]
            )
            x = np.random.default_rng(1).standard_normal((50, 100)).astype(np.float32)
            found = onnxc.InferenceSession(copied).run(None, {"x": x})[0]
            np.testing.assert_array_equal(found, np.concatenate([x, x]))

    def test_libraries_load_in_every_way(self):
        library = onnxc.compile(sums(), self.folder / f"sums{shared_library_extension()}")
        for mode in (os.RTLD_NOW, os.RTLD_LAZY, os.RTLD_NOW | os.RTLD_GLOBAL):
            loaded = ctypes.CDLL(str(library), mode=mode)
            self.assertTrue(loaded.sums_model and loaded.sums_run and loaded.sums_workspace)
            with self.assertRaises(AttributeError):
                loaded.sums_nothing


if __name__ == "__main__":
    # The package's own warnings are compared where they are meant.
    warnings.simplefilter("ignore", onnxc.ModelWarning)
    assert _session is not None
    unittest.main()
