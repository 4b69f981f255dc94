"""What the judge of results accepts, and what not: results of stored graphs, right and wrong ones."""

import os
import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "differential"))

from types import SimpleNamespace

import items
import oracle
import program
import quantized_models
import store
import values
from case import Node, Skip
from compare import Judge
from freedom import undefined
from graph import Graph, Vertex, find, schema_since
from model import Dress
from trial import Inputs, Trial

GRAPHS = Path(__file__).parents[2] / "graphs"


def accepted(graph, result, wide):
    trial = store.load(GRAPHS / f"{graph}.json")
    return not Judge(trial, trial.sets[0], wide).difference(trial.graph.outputs[0], result)


def vertex_of(op, since, arrays, types, **attributes):
    """A node that reads these arrays, and them by name."""
    names = [f"x{at}" if array is not None else "" for at, array in enumerate(arrays)]
    node = Node(schema_since(op, since), types, np.random.default_rng(0))
    node.attributes = attributes
    return Vertex(node, names, ["y"]), {name: array for name, array in zip(names, arrays) if name}


def is_open(op, since, *arrays, **attributes):
    return undefined(*vertex_of(op, since, arrays, {}, **attributes))


def result(op, since, types, *arrays, **attributes):
    vertex, named = vertex_of(op, since, arrays, types, **attributes)
    return vertex.evaluate(named, since)[0]


def trial_of(opset, inputs, nodes, outputs, run=None):
    """A graph of these nodes, each `(op, inputs, attributes, types, outputs)` with a first result called after its place, and what the
    oracle makes of it; of other operands than those it was drawn with where `run` has them."""
    graph = Graph(opset, np.random.default_rng(0))
    names = {name: graph.leaf(array, False) for name, array in inputs.items()}
    for at, node in enumerate(nodes):
        op, given, attributes, types, count = (*node, *({}, {}, 1)[len(node) - 2:])
        given = [one if isinstance(one, np.ndarray) else names[one] for one in given]
        names[at] = graph.apply(op, given, attributes, count, types)
    graph.outputs = [names[name] for name in outputs]
    leaves = dict(graph.arrays) | {names[name]: array for name, array in (run or {}).items()}
    trial = Trial(graph, Dress(), [Inputs("plain", {name: leaves[name] for name in graph.leaves})])
    trial.prepare()
    return trial


def difference(trial, *results, wide=False):
    """How results differ from what the oracle gives."""
    judge = Judge(trial, trial.sets[0], wide)
    return "".join(judge.difference(name, got) for name, got in zip(trial.graph.outputs, results, strict=True))


def rules():
    """What the specification leaves open, and what it does not."""
    image = lambda *sizes: np.zeros((1, 1, *sizes), np.float32)
    resize = lambda x, sizes, **how: is_open("Resize", 19, x, None, None, np.array([1, 1, *sizes]), **how)
    by_scale = lambda x, scales, **how: is_open("Resize", 19, x, None, np.array([1, 1, *scales], np.float32), **how)
    floor = {"mode": "nearest", "nearest_mode": "floor"}
    # (4 + 1/2) * 7 / 9 - 1/2 is 3, and 2.9999999999999996 in f64.
    assert resize(image(7, 1), (9, 1), **floor)
    assert not resize(image(7, 1), (14, 1), **floor)
    # Whole positions that are exact in all numbers are not a reason.
    assert not by_scale(image(7, 3), (2, 2), coordinate_transformation_mode="asymmetric", **floor)
    assert not by_scale(image(7, 3), (2, 2), coordinate_transformation_mode="half_pixel_symmetric")
    assert by_scale(image(7, 3), (2, -1e-40)) and by_scale(image(7, 3), (0, 1)) and not by_scale(image(7, 3), (0.5, 1))
    # 1, and 1.0000000000000002 in f64.
    assert by_scale(image(7, 1), (0.5, 1), coordinate_transformation_mode="half_pixel_symmetric")
    # 2, and 1.9999999999999998 in f64: the reference takes the points of one and the weights of the other.
    symmetric = {"coordinate_transformation_mode": "half_pixel_symmetric"}
    assert by_scale(image(7, 1), (1.5, 3), mode="cubic", **symmetric)
    assert not by_scale(image(8, 1), (1.5, 3), mode="cubic", **symmetric)
    assert not by_scale(image(7, 3), (2, 2), mode="linear", coordinate_transformation_mode="align_corners")
    alone = {"coordinate_transformation_mode": "pytorch_half_pixel"}
    assert resize(image(4, 4), (1, 4), mode="cubic", **alone) and not resize(image(4, 4), (2, 4), mode="cubic", **alone)
    assert not resize(image(4, 4), (1, 4), mode="linear", **alone)
    assert resize(image(4, 4), (1, 4), mode="linear", antialias=1, **alone)

    quantize = lambda x, scale: is_open("QuantizeLinear", 24, x, scale, np.array(1, np.uint16))
    x, scale = np.array([-2.7]), np.array(-1.2e-7)
    assert quantize(x.astype(np.float16), scale.astype(np.float16)), "a quotient that f16 does not have"
    assert not quantize(x.astype(np.float32), scale.astype(np.float32))

    scores, labels = np.array([[0.2, 0.0035]], np.float32), np.array([1])
    loss = lambda *weights, **how: is_open(
        "NegativeLogLikelihoodLoss", 13, scores, labels, np.array(weights, np.float32), **how)
    assert loss(1.7, 1e-40) and not loss(1.7, 1e-30) and not loss(1.7, 0) and not loss(1.7, 1e-40, reduction="sum")
    assert not loss(1, 1, 1), "more weights than classes"

    mean = lambda *numbers: is_open("Mean", 13, *np.array(numbers, np.float16)[:, None])
    assert mean(6e4, 4e4) and mean(-6e4, 4e4) and not mean(3e4, 3e4) and not mean(np.inf, 3e4)

    mel = lambda low: is_open("MelWeightMatrix", 17, *map(np.array, (3, 16, 16000)), *np.array([[low], [8000]], np.float32))
    assert mel(-90) and not mel(0)

    ones = np.ones(1, np.float32)
    gated = lambda a, b: is_open("SwiGLU", 28, *np.array([[a], [b]], np.float32))
    assert gated(-1e-40, np.inf) and gated(-200, -np.inf) and not gated(0, np.inf) and not gated(1, np.inf) and not gated(-200, 1)
    normalize = lambda scale: is_open("BatchNormalization", 15, np.ones((1, 1), np.float16), ones * scale, ones, ones, ones)
    assert not normalize(1e15) and normalize(np.inf)

    hot = lambda depth: is_open("OneHot", 11, np.array([0]), np.array(depth, np.float32), np.array([0, 1]))
    assert hot(-1) and not hot(3)
    attend = lambda mask, **how: is_open("Attention", 23, *np.zeros((3, 1, 1, 2, 2), np.float32), np.ones((2, 2), mask), **how)
    assert attend(np.uint32, is_causal=1) and not attend(np.uint32) and not attend(bool, is_causal=1)
    short = lambda mask: is_open("Attention", 24, *np.zeros((3, 1, 1, 2, 2), np.float32), np.ones((2, 1), mask))
    assert short(np.int8) and not short(bool), "a mask that is padded with -inf"
    masked = lambda since, columns: is_open("Attention", since, *np.zeros((3, 1, 1, 3, 2), np.float32), np.ones((3, columns), np.float32))
    assert masked(23, 1) and not masked(24, 1) and not masked(23, 2), "two columns for three keys contradict each other"
    u8, f32 = np.zeros((1, 1), np.uint8), lambda number: np.array(number, np.float32)
    product = lambda scale: is_open("QLinearMatMul", 21, u8, f32(2), u8[0, 0], u8, f32(0.5), u8[0, 0], f32(scale), u8[0, 0])
    assert product(1e-40) and not product(0.5)
    i8 = np.array(1, np.int8)
    total = lambda scale: is_open("com.microsoft.QLinearAdd", 1, i8, f32(1), i8, i8, f32(0.1), i8, f32(scale), i8)
    assert total(1e-40) and total(0) and not total(0.1)
    joined = lambda scale: is_open("com.microsoft.QLinearConcat", 1, f32(scale), i8, i8, f32(0.1), i8)
    assert joined(1e-40) and not joined(0.1)
    angle = lambda x: is_open("Tan", 7, np.array([x], np.float32))
    assert angle(1e15) and not angle(1e5) and not angle(np.inf)
    factors = lambda *x, **how: is_open("ReduceProd", 13, np.array([x], np.float32), **how)
    assert factors(*[1e10] * 4, 0) and factors(*[1e10] * 4, 0, axes=[1]) and not factors(*[1e10] * 4, 0, axes=[0])
    assert not factors(*[1e10] * 4) and not factors(*[1e10] * 3, 0) and factors(*[1e-10] * 4, 1e5)
    half = np.ones((1, 1, 1), np.float16)
    decays = lambda op, since, decay: is_open(op, since, half, half, half, half[None], half * decay, half)
    for op, since in (("com.microsoft.LinearAttention", 1), ("LinearAttention", 27)):
        assert decays(op, since, 90) and not decays(op, since, 1)


def split_of(x, **how):
    return result("StringSplit", 20, {}, x, **how)


def definitions():
    """What the oracle says where the reference does not go by the specification."""
    zero = result("PRelu", 16, {"T": "float"}, np.array([-0.0, -2.0], np.float32), np.array([-3.0], np.float32))
    assert zero.tolist() == [0.0, 6.0] and np.signbit(zero[0])
    signs = [result("Sign", 13, {"T": kind}, np.array([-0.0, np.nan], values.DTYPES[kind])) for kind in ("float", "bfloat16")]
    assert not np.signbit([sign[0] for sign in signs]).any() and np.isnan(np.array([sign[1] for sign in signs], np.float64)).all()
    assert result("Shrink", 9, {"T": "uint64"}, np.array([2**64 - 3, 0], np.uint64)).tolist() == [2**64 - 3, 0]
    mean = result("Mean", 13, {"T": "float"}, np.ones((1, 2), np.float32), np.array([[2.0], [4.0]], np.float32))
    assert mean.tolist() == [[1.5, 1.5], [2.5, 2.5]]
    below = result("Mean", 13, {"T": "float"}, *np.full((2, 1), -0.0, np.float32))
    assert np.signbit(below).all()
    wrapped = result("ReduceSumSquare", 18, {"T": "int32"}, np.array([49740], np.int32), np.array([], np.int64),
                     noop_with_empty_axes=1)
    assert wrapped.tolist() == [-1820899696]
    vertex, named = vertex_of(
        "BatchNormalization", 15, [np.ones((2, 1), np.float16), *np.ones((2, 1), np.float32), np.array([-1e60]), np.ones(1)],
        {"T": "float16", "T1": "float", "T2": "double"}, training_mode=1)
    vertex.node.outputs = 3
    y, mean, _ = vertex.evaluate(named, 15)
    assert y.dtype == np.float16 and mean.dtype == np.float64 and abs(mean[0] / -9e59 - 1) < 1e-6
    texts = lambda *words: np.array(words, object)
    normalized = lambda *words, **how: result("StringNormalizer", 10, {}, texts(*words), **how).tolist()
    assert normalized("", "\u00fc b", "B", case_change_action="UPPER", stopwords=["b"]) == ["", "\u00dc B"]
    assert normalized("b", "B", is_case_sensitive=1, stopwords=["b"]) == ["B"] and normalized("b", stopwords=["B"]) == [""]
    parts, scalar = split_of(texts("a,b", ""), delimiter=","), split_of(np.array("", object), delimiter=",")
    assert parts.tolist() == [["a", "b"], ["", ""]] and scalar.tolist() == [""] and split_of(texts(" a  b ")).tolist() == [["a", "b"]]
    matches = result("RegexFullMatch", 20, {}, texts("a1", "\u00fc", ""), pattern="\\w+")
    assert matches.tolist() == [True, False, False]
    whole = result("Cast", 21, {"T1": "string", "T2": "int64"}, texts("1e1", " 5 ", "-7"), to=7)
    assert whole.tolist() == [10, 5, -7] and whole.dtype == np.int64
    reals = result("Cast", 21, {"T1": "string", "T2": "float"}, texts("0.5", " -2.25 ", "1e400"), to=1)
    assert reals.tolist() == [0.5, -2.25, np.inf] and reals.dtype == np.float32
    whole = lambda delta: result("Range", 11, {"T": "float"}, *np.array([[-2.0], [-10.0], [delta]], np.float32).reshape(3))
    assert whole(-np.inf).tolist() == [] and whole(-5).tolist() == [-2.0, -7.0]
    # The reference pads strings with numbers: nothing is known then, and nothing refused.
    crop = lambda size: result("CenterCropPad", 18, {"T": "string", "Tind": "int64"}, np.array(["a", "b"], object), np.array([size]))
    assert crop(1).tolist() == ["a"]
    try:
        raise AssertionError(crop(3))
    except Skip:
        pass
    product = lambda *whole, **how: result("Gemm", 13, {"T": "uint64"}, *np.array(whole, np.uint64).reshape(-1, 1, 1), **how).item()
    assert product(2**64 - 2, 3, 2, beta=0.0) == 2**64 - 6 and product(2**64 - 2, 3, 2) == 2**64 - 4
    empty = np.zeros((0, 1, 5, 3), np.float32), np.ones((1, 2, 3, 1), np.float32)
    spread = result("ConvTranspose", 11, {"T": "float"}, *empty, strides=[3, 3], auto_pad="SAME_LOWER", kernel_shape=[3, 1])
    assert spread.shape == (0, 2, 15, 9)
    # More updates than indices.
    at, ten = np.array([[1]]), np.array([10.0], np.float32)
    for op, indices in (("ScatterND", at), ("ScatterElements", at[0])):
        scattered = lambda updates: result(op, 18, {"T": "float", "Tind": "int64"}, np.zeros(3, np.float32), indices, updates)
        assert scattered(ten).tolist() == [0.0, 10.0, 0.0]
        try:
            raise AssertionError(scattered(ten.repeat(2)))
        except oracle.NoOracle:
            pass
    for text in ("+4+4", "1_0", "4x"):
        try:
            raise AssertionError(f"{text} is {result('Cast', 21, {'T1': 'string', 'T2': 'double'}, texts(text), to=11)}")
        except oracle.NoOracle:
            pass
    gathered = result("GatherElements", 13, {"T": "float", "Tind": "int64"}, np.arange(6, dtype=np.float32).reshape(2, 3),
                      np.array([[-1, 0]]), axis=-2)
    assert gathered.tolist() == [[3.0, 1.0]]
    # Scores of heads of no elements are 0, and not 0 times infinite: every value has the same weight.
    tokens = [np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32), np.array([[1], [2]], np.float32), None]
    places = [np.array([[0, 1]], np.int32), np.array([0, 2], np.int32)]
    kinds = {"T": "float", "M": "int32"}
    packed = result("com.microsoft.PackedMultiHeadAttention", 1, kinds, *tokens, *places, num_heads=1)
    assert packed.tolist() == [[1.5], [1.5]]


def items_of_graphs():
    """Sequences and optionals: what operators make of them, what is like them, and that they are stored."""
    a, b = np.array([1, 2], np.int64), np.array([[3]], np.int64)
    pair = items.Sequence("int64", [a, b])
    kinds = {"S": "int64", "T": "int64", "I": "int64"}
    inserted = result("SequenceInsert", 11, kinds, pair, b, np.array(-1))
    assert [one.shape for one in inserted.elements] == [(2,), (1, 1), (1, 1)]
    erased = result("SequenceErase", 11, kinds, pair)
    assert len(erased.elements) == 1 and erased.elements[0].tolist() == [1, 2]
    parts = result("SplitToSequence", 24, kinds, np.arange(5).reshape(5, 1), np.array(2))
    assert [one.shape for one in parts.elements] == [(2, 1), (2, 1), (1, 1)]
    parts = result("SplitToSequence", 24, kinds, np.arange(2).reshape(2, 1), keepdims=0)
    assert [one.shape for one in parts.elements] == [(1,), (1,)]
    there = result("Optional", 15, {"V": "int64", "O": "int64"}, pair)
    assert result("OptionalHasElement", 18, {}, there) and not result("OptionalHasElement", 18, {}, items.Optional(there.like))

    for value in (pair, there, items.Optional(there.like), items.Sequence("string"), items.Sequence("string", [np.array("\u00fc", object)])):
        back = items.unpacked(iter(items.packed(value)), value)
        assert not items.unlike(back, value) and all(map(np.array_equal, items.tensors(back), items.tensors(value)))
        assert items.type_text(store.read_result(store.result(value))) == items.type_text(value)
    assert items.unlike(items.Sequence("int64", [a]), pair) and items.unlike(items.Sequence("int32", [a, b]), pair)
    assert items.unlike(items.Optional(there.like), there)
    again = store.read_tensor(store.tensor(pair))
    assert not items.unlike(again, pair) and np.array_equal(again.elements[1], b)


    # An empty sequence has elements of the rank of another value of its type.
    assert items.packed(items.Sequence("int64"), items.Sequence("int64", [b]))[0].shape == (0, 2)
    assert items.packed(items.Sequence("int64"))[0].shape == (0, 0)


def programs():
    """A result of a body whose size only a run determines is recognized under its other name, too."""
    own = {"v1"}
    node = lambda op, inputs, kind, dims: program.Val("v2", kind, dims)
    scope = SimpleNamespace(program=SimpleNamespace(own=own), chance=lambda probability: True, node=node)
    value = program.Val("v1", "int64", (program.Size("s1"),))
    assert [one.name for one in program.distinct(scope, [value, value])] == ["v1", "v2"] and own == {"v1", "v2"}


def indices():
    """An index beyond its axis is refused where an element of the results is read by it."""
    inputs, beyond = {"x": np.zeros((2, 3), np.float32), "at": np.array(0)}, {"at": np.array(-6)}
    gather, some = ("Gather", ["x", "at"]), np.array([3.0], np.float32)
    for nodes, outputs, got, spares in (
            ([gather, ("Neg", [0])], [1], some, False),
            ([gather, ("Size", [0], {}, {"T1": "int64"})], [1], np.array(3), True),
            ([gather, ("OptionalHasElement", [0])], [1], np.array(True), True),
            ([gather, ("Slice", [0, np.array([3]), np.array([4])])], [1], some[:0], True)):
        trial = trial_of(20, inputs, nodes, outputs, beyond)
        one, = trial.sets
        assert one.refused and trial.spares(one, [got]) == spares
        run = {"outputs": [got]}
        trial.negative = True
        judged = trial.judge_run(Judge(trial, one), run)
        assert judged is None if spares else judged[0] == "accepted"
        refusal = {"refused": {"status": 11}}
        assert (not trial.unlike(one, run, refusal) and not trial.unlike(one, refusal, run)) == spares
    contradicts = trial_of(20, {"x": some, "y": some}, [("Add", ["x", "y"]), ("Size", [0], {}, {"T1": "int64"})], [1],
                           {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})
    assert not contradicts.spares(contradicts.sets[0], [np.array(1)]), "sizes are read"


def ties():
    """What rounding decides is open, and so is what follows."""
    one, zero, scale = np.array([[1]], np.uint8), np.array(0, np.uint8), lambda number: np.array(number, np.float32)
    product = ("QLinearMatMul", [one, scale(1), zero, one, scale(1), zero, "scale", zero], {}, {"TS": "float"})
    for number, tied in ((4, False), (2, True)):
        trial = trial_of(20, {"scale": scale(3)}, [product, ("Identity", [0])], [0, 1], {"scale": scale(number)})
        assert trial.sets[0].opened == (set(trial.graph.outputs) if tied else set())


def rounding():
    """Sums that cancel are off by a rounding error of their terms, and by no more."""
    # A softplus of f16 is 0 or a few of the least numbers, times the operand.
    gate = trial_of(22, {"x": np.array([-17.48, -15.0], np.float16)}, [("Mish", ["x"], {}, {"T": "float16"})], [0])
    assert not difference(gate, np.array([-0.0, -4.47e-6], np.float16))
    assert difference(gate, np.array([-0.0, -2e-5], np.float16)) and difference(gate, np.array([1e-4, -4.6e-6], np.float16))
    # A determinant of equal rows is 0 of either sign, and one of others is not.
    for rows, is_free in (([[0.3, 0.7], [0.3, 0.7]], True), ([[0.3, 0.7], [0.7, 0.3]], False)):
        drawn = {"x": np.eye(2, dtype=np.float32)}
        trial = trial_of(22, drawn, [("Det", ["x"]), ("Reciprocal", [0])], [1], {"x": np.array(rows, np.float32)})
        assert all((not difference(trial, np.float32(sign * np.inf))) == is_free for sign in (1, -1))
    for graph, got, off in (("einsum_that_cancels", -0.002721183664274651, 1e-13),
                            ("log_sum_exp_near_zero", -2.491474151611328e-05, 5e-6)):
        trial = store.load(GRAPHS / f"{graph}.json")
        name, = trial.graph.outputs
        kind = trial.sets[0].arrays[name].dtype
        assert not Judge(trial, trial.sets[0]).difference(name, np.array(got, kind)), graph
        assert Judge(trial, trial.sets[0]).difference(name, np.array(got + off, kind)), graph
    # x / 6 + 1/2 cancels near -3, and x / 5 + 1/2 near -2.5.
    # 1 + erf(x) is 0 in f64 here, and x / 2 times what is left is not; at 0 there is nothing to be left.
    for x, got, equal in ((-9.2912245, -2.1490100615339374e-20, True), (0.0, 1e-20, False)):
        trial = trial_of(20, {"x": np.array([x], np.float32)}, [("Gelu", ["x"])], [0])
        assert bool(difference(trial, np.array([got], np.float32))) != equal, x
    # What f32 may cancel to nothing, and so false, and what it may not; in f64 less may.
    bfloat16 = values.DTYPES["bfloat16"]
    for x, kind, free in ((-5.75, bfloat16, True), (-5.75, np.float64, False), (-3.0, bfloat16, False)):
        trial = trial_of(28, {"x": np.array([x], kind)}, [("com.microsoft.Gelu", ["x"]), ("Cast", [0], {"to": 9}, {"T2": "bool"})], [1])
        assert not difference(trial, np.array([True])) and (not difference(trial, np.array([False]))) == free, x
    for op, x, got, off in (("HardSwish", -2.9993136, -0.00034306541783735156, 1e-5), ("HardSigmoid", -2.4999, 1.9997358e-05, 1e-6)):
        trial = trial_of(22, {"x": np.array([x], np.float32)}, [(op, ["x"])], [0])
        assert not difference(trial, np.array([got], np.float32)), op
        assert difference(trial, np.array([got + off], np.float32)), op
    # An interpolation between numbers of either sign is off by a rounding error of them; the nearest one is itself.
    scales = np.array([1.0, 1.0, 1.0, 0.5], np.float32)
    cancels = [1e15, -1e15]
    for mode, x, off, free in (("linear", cancels, 1e6, True), ("linear", cancels, 1e11, False), ("nearest", [1, 1e15], -1, False)):
        x = np.array([[[x]]], np.float32)
        nodes = [("Resize", ["x", np.array([], np.float32), scales], {"mode": mode})]
        trial = trial_of(19, {"x": np.ones(x.shape, np.float32)}, nodes, [0], {"x": x})
        got = trial.sets[0].arrays[trial.graph.outputs[0]] + np.float32(off)
        assert (not difference(trial, got)) == free, (mode, off)
    # The logarithm of a sum of nearly 1 may be 0, which has no scale; that of 2 is not.
    for x, free in ((9.2e-9, True), (0.7, False)):
        nodes = [("ReduceLogSumExp", ["x"], {"keepdims": 0}), ("DynamicQuantizeLinear", [0], {}, {"T2": "uint8"}, 3)]
        trial = trial_of(18, {"x": np.array([1.0, 2.0], np.float32)}, nodes, [1], {"x": np.array([x, -30], np.float32)})
        trial.graph.outputs = [trial.graph.vertices[1].outputs[1]]
        assert (not difference(trial, np.array(1, np.float32))) == free, x
    # The sign of a result that is subnormal, or 0, and of others.
    for x, kind, free in ((-90, np.float32, True), (-80, np.float32, False), (-90, np.float64, False)):
        trial = trial_of(22, {"x": np.array([x], kind)}, [("Sigmoid", ["x"]), ("Sign", [0])], [1])
        assert not difference(trial, np.array([1], kind)) and (not difference(trial, np.array([0], kind))) == free
    # The reciprocal of a sum that is less than the rounding error of its terms, and of one that is not.
    for huge, free in ((1e60, True), (1e5, False)):
        nodes = [("GlobalAveragePool", ["x"]), ("Reciprocal", [0])]
        trial = trial_of(22, {"x": np.ones((1, 1, 3))}, nodes, [1], {"x": np.array([[[0.3, huge, -huge]]])})
        assert (not difference(trial, np.array([[[np.inf]]]))) == free
    # A sum of numbers and of their negatives, which are rounded to f16, of numbers that are not; no more than the rounding error.
    x = np.array([0.3, 1.7, -2.1], np.float16)
    trial = trial_of(22, {"x": x}, [("Mul", ["x", "x"]), ("Neg", [0]), ("Add", [0, 1])], [2])
    square = x.astype(np.float32) ** 2
    rest = (square - square.astype(np.float16)).astype(np.float16)
    assert rest.all() and not difference(trial, rest, wide=True) and difference(trial, rest)
    assert difference(trial, 16 * rest, wide=True)
    # Infinite in f16, and far from each other in f32: the softmax of NaN, or of numbers whose differences are exact.
    x = np.array([[-300.0, 600.0]], np.float16)
    nodes = [("Mul", ["x", "x"]), ("Mul", [0, 0]), ("ReduceMax", [1], {"axes": [1]}), ("Sub", [1, 2]), ("Exp", [3])]
    trial = trial_of(17, {"x": np.ones((1, 2), np.float16)}, nodes, [4], {"x": x})
    wide = np.array([[0, 1]], np.float16)
    assert np.isnan(trial.sets[0].arrays[trial.graph.outputs[0]]).any()
    assert not difference(trial, wide, wide=True) and difference(trial, wide)
    # A GELU of what is NaN in f16, and finite in f32 until the result is of f16.
    trial = store.load(GRAPHS / "gelu_of_infinite_halves.json")
    name, = trial.graph.outputs
    got = trial.sets[0].arrays[name].copy()
    assert np.isnan(got[0, 0, 0, 1])
    got[0, 0, 0, 1] = np.inf
    assert not difference(trial, got, wide=True) and difference(trial, got)
    # Softmax of reciprocals of zeros, which Celu gives either sign: inf, and NaN, or -inf.
    trial = store.load(GRAPHS / "celu_of_zeros.json")
    name, = trial.graph.outputs
    x, = trial.sets[0].leaves.values()
    right = trial.sets[0].arrays[name]
    rows = np.broadcast_to((x == 0).any(-1, keepdims=True), right.shape)
    assert rows.any() and not Judge(trial, trial.sets[0]).difference(name, np.where(rows, np.float32(np.nan), right))
    assert Judge(trial, trial.sets[0]).difference(name, np.where(rows, right, np.float32(np.nan)))


def crashes():
    """A node that ONNX Runtime does not survive, where the reference fails, has no known result; the process goes on."""
    session = oracle.session
    oracle.session = lambda model: SimpleNamespace(run=lambda names, feeds: os.abort())
    try:
        node = Node(schema_since("Neg", 13), {"T": "float"}, np.random.default_rng(0))
        node.inputs = [(np.ones(2, np.float32), False)]
        oracle.runtime_only(node, 13, ValueError("the reference fails"))
    except oracle.NoOracle as error:
        assert "crashes" in str(error), error
    else:
        raise AssertionError("a result is known")
    finally:
        oracle.session = session


def bounds():
    """Types of a few bits are found by bounds that they do not have."""
    drawn = Graph(21, np.random.default_rng(0))
    few = drawn.leaf(np.array([-8, 7], values.DTYPES["int4"]), False)
    found = {find(drawn, "int4", (2,), -200, 200) for _ in range(20)}
    assert few in found and not found - {few, None}, found
    assert {find(drawn, "int4", (2,), -200, 5) for _ in range(20)} == {None}


def main():
    rules()
    definitions()
    crashes()
    bounds()
    items_of_graphs()
    programs()
    indices()
    ties()
    rounding()
    half = lambda number: np.array(number, np.float16)
    # Cos(Pow(x, y)) with a power beyond f16, and Log(Mul(x, x)) with a product that is 0 in f16.
    for graph, exact, wide in (("pow_beyond_half", half(np.nan), half(0.523)), ("product_below_half", half(-np.inf), half(-18.42))):
        assert accepted(graph, exact, wide=False) and accepted(graph, exact, wide=True)
        assert accepted(graph, wide, wide=True) and not accepted(graph, wide, wide=False)
    # Cos(Pow(x, y)) whose power f16 has: free to be rounded, not to be another.
    trial = store.load(GRAPHS / "pow_beyond_half.json")
    trial.sets[0].leaves = {name: half(1.5) for name in trial.sets[0].leaves}
    trial.prepare()
    right, = (trial.sets[0].arrays[name] for name in trial.graph.outputs)
    for wide in (False, True):
        judge = Judge(trial, trial.sets[0], wide)
        assert not judge.difference(trial.graph.outputs[0], right)
        assert judge.difference(trial.graph.outputs[0], half(right + 0.5)), "an error that rounding does not explain"
        assert judge.difference(trial.graph.outputs[0], half(np.nan))
    steps = np.array([3, 250], np.uint8)
    assert not quantized_models.steps_off(steps, np.array([4, 249], np.uint8))
    assert quantized_models.steps_off(steps, np.array([3, 252], np.uint8))
    assert quantized_models.steps_off(steps, np.array([3, 0], np.uint8)), "a step is none around the end of the type"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    main()
