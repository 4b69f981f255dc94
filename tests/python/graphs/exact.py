"""Graphs of f32 compiled with --exact at -O0 and at -O3, whose results must have the same bits: zeros their signs, which reciprocals
behind the outputs show, and what is infinite or NaN.

What depends on the order of a sum's terms, and what the specification leaves open, need not: the lines list the operators by which
outputs of a graph differ, and a graph fails where an output differs that depends on none of `EXPLAINED`.
"""

import numpy as np

import client
import draw
import halves
import items
import values
from case import Node, Skip
from compare import CHOICES, MOVES
from graph import Vertex, schema_of
from model import dress
from trial import Inputs, Trial, input_sets, with_edges

#: By operator: why its results may have other bits at another level.
EXPLAINED = {op: "the order of a sum" for op in (
    "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ReduceProd Softmax LogSoftmax "
    "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization LpNormalization MeanVarianceNormalization "
    "BatchNormalization CumSum CumProd GlobalAveragePool AveragePool GlobalLpPool LpPool MatMul Gemm Conv ConvTranspose Einsum "
    "Attention DeformConv LRN Resize Upsample GridSample RoiAlign MaxRoiPool AffineGrid DFT STFT MelWeightMatrix LSTM GRU RNN Det "
    "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss Col2Im LinearAttention CausalConvWithState RotaryEmbedding MatMulInteger "
    "ConvInteger QLinearMatMul QLinearConv DynamicQuantizeLinear Scan Loop ScatterElements ScatterND Scatter").split()}
EXPLAINED |= {op: "which of two zeros is chosen" for op in CHOICES}
#: Pairs that are computed at once where one kernel has both, with one rounding: 1 + tanh(x), x * sigmoid(y).
AT_ONCE = {("Add", "Tanh"), ("Add", "Erf"), ("Sum", "Tanh"), ("Sum", "Erf"), ("Mul", "Sigmoid")}
EXPLAINED |= {op: "two functions at once" for op in ("Gelu", "Swish")}
#: What the compiler and a run compute alike of constants; elementary functions may differ in the last bit.
ALIKE = MOVES | set("Add Sub Mul Div Sqrt Reciprocal Equal Greater Less GreaterOrEqual LessOrEqual Not And Or Xor Cast CastLike Shape "
                    "Size IsNaN IsInf Mod Sum Mean Where LeakyRelu PRelu ThresholdedRelu Shrink Hardmax ArgMax ArgMin NonZero "
                    "OneHot Compress BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Range".split())
ATTEMPTS = 20
#: Values whose signs count, behind a division at the latest.
SIGNED = np.array([0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-40, np.inf, -np.inf], np.float32)


def draw_trial(seed, number):
    rng = np.random.default_rng([seed, number, 9])
    for _ in range(ATTEMPTS):
        try:
            graph = draw.graph_of(rng, kind="float")
            add_reciprocals(graph)
            how = dress(graph, rng)
            return Trial(graph, how, input_sets(graph, how, rng) + [signed(graph, rng)])
        except Skip:
            continue
    raise Skip("nothing drawn")


def add_reciprocals(graph):
    """Outputs that differ where the zeros of others have other signs."""
    schema = schema_of("Reciprocal", graph.opset)
    for name in [name for name in graph.outputs if items.kind_of(graph.arrays[name]) == "float"]:
        vertex = Vertex(Node(schema, {"T": "float"}, graph.rng), [name], [graph.name("v")])
        graph.arrays[vertex.outputs[0]] = vertex.evaluate(graph.arrays, graph.opset)[0]
        graph.vertices.append(vertex)
        graph.outputs.append(vertex.outputs[0])


def signed(graph, rng):
    """Leaves with many zeros."""
    leaves = {name: graph.arrays[name] for name in graph.leaves}
    for name, how in graph.leaves.items():
        if how == "input" and items.kind_of(leaves[name]) == "float":
            leaves[name] = items.mapped(lambda array: with_edges(array, SIGNED, 0.6, rng), leaves[name])
    return Inputs("special", leaves)


def reasons(graph):
    """By value: why its bits may differ. The operators of `EXPLAINED` that it depends on and those of com.microsoft, functions of
    constants, floats of 16 bits."""
    found, fixed = {}, {name for name, how in graph.leaves.items() if how == "constant"}
    makers = {name: vertex.op for vertex in graph.vertices for name in vertex.outputs}
    for vertex in graph.vertices:
        own = {vertex.op} & EXPLAINED.keys() | ({vertex.op} if "." in vertex.op else set())
        own |= {" ".join(pair) for pair in AT_ONCE & {(vertex.op, makers.get(name)) for name in vertex.inputs}}
        # What is rounded to 16 bits within a node is open.
        if any(halves.is_half(graph.arrays.get(name)) for name in vertex.inputs + vertex.outputs):
            own |= {"16 bits"}
        if fixed.issuperset(filter(None, vertex.inputs)):
            fixed.update(vertex.outputs)
            own |= {f"{vertex.op} of constants"} if vertex.op not in ALIKE else set()
        of_inputs = set().union(*(found.get(name, set()) for name in vertex.inputs))
        found.update({name: own | of_inputs for name in vertex.outputs})
    return found


def unlike(got, wanted):
    """Where the bits of two results differ, or an empty text. Which NaN a NaN is does not count."""
    if items.is_other(got) or items.is_other(wanted):
        return items.unlike(got, wanted)
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"is {got.dtype}{list(got.shape)} and {wanted.dtype}{list(wanted.shape)}"
    if values.NAMES.get(got.dtype) not in values.FLOATS:
        differ = np.atleast_1d(got != wanted)
    else:
        bits = f"u{got.dtype.itemsize}"
        a, b = (np.atleast_1d(np.ascontiguousarray(array)) for array in (got, wanted))
        differ = (a.view(bits) != b.view(bits)) & ~(np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
    if not differ.any():
        return ""
    where = tuple(int(at) for at in np.argwhere(differ)[0])
    pick = lambda array: np.atleast_1d(array)[where]
    return f"is {pick(got)!r} and {pick(wanted)!r} at {list(where)} ({int(differ.sum())} of {differ.size} elements)"


def examine(number, seed, worker, options):
    """Draws a graph, runs it at both levels, and gives the line about it."""
    line = {"number": number}
    try:
        trial = draw_trial(seed, number)
    except Skip as skip:
        return line | {"empty": str(skip)}
    trial.prepare()
    every = list(range(len(trial.sets)))
    ways = [client.way("O0", "native", 0, every, exact=True), client.way("O3", "native", 3, every, exact=True)]
    writer, model = trial.writer()
    reply = worker.ask(model.SerializeToString(), ways, trial.feeds(writer))
    line |= {"nodes": len(trial.graph.vertices), "runs": 2 * len(every), "symbolic": bool(trial.dress.symbols),
             "operators": sorted({vertex.op for vertex in trial.graph.vertices})}
    if isinstance(reply, str):
        return line | {"failures": [{"way": "", "set": -1, "kind": reply.split(":")[0], "text": reply}]}
    if any(answer.get("failure") for answer in reply):
        line["refused"] = [answer["failure"][1] for answer in reply if answer.get("failure")][:1]
        return line
    line["group"], line["compiled"] = max(reply[1]["groups"], default=0), 2
    failures, explained = [], set()
    known = reasons(trial.graph)
    for at, one in enumerate(trial.sets):
        low, high = (answer["runs"][at] for answer in reply)
        if "outputs" not in low or "outputs" not in high:
            if low.keys() != high.keys():
                failures.append({"way": "O3", "set": at, "kind": "disagree", "text": f"{low.keys()} and {high.keys()}"})
            continue
        for name, got, wanted in zip(trial.graph.outputs, high["outputs"], low["outputs"]):
            text = unlike(got, wanted) if name not in one.opened else ""
            if text and known.get(name):
                explained |= known[name]
            elif text:
                failures.append({"way": "O3", "set": at, "kind": "wrong", "text": f"{name} {text}"})
    line["explained"] = sorted(explained)
    if failures:
        line["failures"] = failures[:8]
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number}.onnx").write_bytes(model.SerializeToString())
    return line
