"""Draws graphs: operators that fusion combines on values with several readers, idioms of real models, and now and then any
operator of the table or of com.microsoft. Some graphs have strings among their values, and some sequences and optionals."""

import numpy as np
from onnx import defs

import elementwise
import generate
import idioms
import items
import microsoft
import oracle
import sequences
import values
from case import Skip
from graph import RECIPES, TEXT_RECIPES, DrawnNode, Graph, schema_of

#: Operators that fusion combines or has to decide about, by how often they are drawn.
ELEMENTWISE = (
    "Abs Add Sub Mul Div Neg Relu LeakyRelu Sigmoid Tanh Softsign Erf Sin Cos Atan Elu Celu HardSigmoid HardSwish Selu Max "
    "Min Mean Sum Clip Where Sqrt Exp Log Pow PRelu Floor Round Sign Reciprocal Softplus Mish Gelu Swish Not And Or Xor Equal "
    "Greater Less GreaterOrEqual Cast Mod BitwiseAnd BitwiseXor BitShift IsNaN ThresholdedRelu Shrink Identity"
).split()
REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceSumSquare ReduceLogSumExp ArgMax ArgMin "
    "Softmax LogSoftmax Hardmax LayerNormalization RMSNormalization InstanceNormalization GroupNormalization "
    "LpNormalization MeanVarianceNormalization BatchNormalization CumSum GlobalAveragePool TopK"
).split()
MOVES = (
    "Transpose Reshape Flatten Squeeze Unsqueeze Expand Concat Slice Pad Gather Split Tile DepthToSpace SpaceToDepth Trilu "
    "GatherElements ReverseSequence"
).split()
PRODUCTS = "MatMul Gemm Conv Einsum AveragePool MaxPool MatMulInteger ConvTranspose Attention".split()
QUANTIZED = "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearMatMul QLinearConv ConvInteger".split()

#: What is done with strings, by how often it is drawn, and the operators that move them.
TEXTS = (
    "StringConcat StringConcat StringSplit StringSplit StringNormalizer RegexFullMatch RegexFullMatch Cast Cast Equal Where Unique "
    "ai.onnx.ml.LabelEncoder ai.onnx.ml.LabelEncoder TfIdfVectorizer Identity"
).split()
TEXT_MOVES = (
    "Transpose Reshape Flatten Squeeze Unsqueeze Expand Concat Slice Pad Gather Split Tile DepthToSpace SpaceToDepth GatherElements "
    "GatherND ReverseSequence Compress ScatterElements Scatter ScatterND CenterCropPad Shape Size TensorScatter OneHot"
).split()

#: Operators whose operands have to agree in ways of their own, which graphs of contradictions are mostly about.
AGREEING = (
    "ScatterElements Scatter ScatterND TensorScatter GatherElements GatherND Compress SoftmaxCrossEntropyLoss "
    "NegativeLogLikelihoodLoss Attention RotaryEmbedding LinearAttention CausalConvWithState DeformConv RoiAlign MaxRoiPool "
    "NonMaxSuppression LSTM GRU RNN QuantizeLinear DequantizeLinear QLinearConv QLinearMatMul Pad ReverseSequence OneHot "
    "GridSample AffineGrid MaxUnpool Col2Im BatchNormalization InstanceNormalization GroupNormalization LayerNormalization Conv "
    "ConvTranspose Gemm Resize Split"
).split()

#: What has a recipe, of ai.onnx and of com.microsoft; control flow is drawn around nodes later.
ANY = sorted(set(elementwise.RECIPES) - {"If", "Loop", "Scan"})
VENDOR = sorted(microsoft.RECIPES)
#: Shares: of nodes of any operator those of com.microsoft, of graphs those with strings and those with sequences.
SHARE_OF_VENDOR, SHARE_OF_TEXTS, SHARE_OF_SEQUENCES = 0.3, 0.08, 0.08

KINDS = ["float"] * 7 + "float16 double bfloat16 int32 int64 uint8 int8 bool".split()
ATTEMPTS = 400
NEWEST = defs.onnx_opset_version()


class Style:
    """What one graph prefers."""

    def __init__(self, rng, wild, kind=None):
        way = rng.random()
        low, high = (13, 24) if way < 0.55 else (24, NEWEST) if way < 0.75 else (7, NEWEST)
        #: Whether there are strings, and sequences and optionals.
        self.texts, self.sequences = rng.random() < SHARE_OF_TEXTS, rng.random() < SHARE_OF_SEQUENCES
        if kind:
            self.texts = self.sequences = False
        # Most versions with operators for them.
        low = max(low, 20 if self.texts and way < 0.65 else 15 if self.sequences else 7)
        self.opset = int(rng.integers(low, high + 1))
        self.kind = KINDS[int(rng.integers(0, len(KINDS)))]
        if self.texts and rng.random() < 0.6:
            self.kind = values.STRING
        self.kind = kind or self.kind
        usual = [6, 3, 3, 1, 0.3, 10 if wild else 2, 2, 12 * self.texts, 10 * self.sequences]
        weights = np.array(usual) * rng.uniform(0.3, 1.7, 9)
        self.weights = weights / weights.sum()
        self.others = AGREEING if wild and rng.random() < 0.6 else ANY
        self.length = int(rng.integers(2, 7)) if wild else min(60, 2 + int(rng.gamma(1.6, 6.0)))
        palette = [int(size) for size in rng.integers(1, 8, 3)]
        if rng.random() < 0.3:
            palette.append(int(rng.integers(8, 40)))
        if rng.random() < 0.04:
            palette.append(0)
        self.palette = palette


def graph_of(rng, wild=False, kind=None):
    """A drawn graph with its outputs chosen; a wild one is small and of any operators. With a `kind` most values are of that type."""
    style = Style(rng, wild, kind)
    graph = Graph(style.opset, rng)
    values.PALETTE = lambda low, high: palette(graph, style, low, high)
    try:
        seed(graph, style)
        for _ in range(ATTEMPTS):
            if len(graph.vertices) >= style.length:
                break
            step(graph, style)
    finally:
        values.PALETTE = None
    if len(graph.vertices) < 2:
        raise Skip("too short")
    choose_outputs(graph)
    return graph


def palette(graph, style, low, high):
    """A shape that the graph has already, or one of its sizes; None for any."""
    if graph.rng.random() < 0.6:
        known = graph.candidates(lambda array: low <= array.ndim <= high and array.size <= 1024)
        if known:
            return graph.arrays[graph.recent(known)].shape
    rank = int(graph.rng.integers(low, high + 1))
    dims = tuple(style.palette[int(graph.rng.integers(0, len(style.palette)))] for _ in range(rank))
    return dims if int(np.prod(dims)) <= 2048 else None


def seed(graph, style):
    """The first inputs."""
    for _ in range(int(graph.rng.integers(1, 4))):
        dims = palette(graph, style, 1, 4) or (4,)
        graph.leaf(values.draw(graph.rng, style.kind, dims), graph.rng.random() < 0.1)
    if style.texts and style.kind != values.STRING:
        graph.leaf(values.draw(graph.rng, values.STRING, palette(graph, style, 1, 3) or (4,)), graph.rng.random() < 0.3)
    if style.sequences and graph.opset >= sequences.FIRST_OPSET and graph.rng.random() < 0.4:
        sequences.leaf(graph)


def step(graph, style):
    """Adds a node, or some; or nothing where what was drawn does not fit."""
    kind = int(graph.rng.choice(9, p=style.weights))
    texts = TEXT_MOVES if graph.rng.random() < 0.4 else TEXTS
    others = VENDOR if kind == 5 and graph.rng.random() < SHARE_OF_VENDOR else style.others
    names = (ELEMENTWISE, REDUCTIONS, MOVES, PRODUCTS, QUANTIZED, others, [idioms], texts, [sequences])[kind]
    op = names[int(graph.rng.integers(0, len(names)))]
    # What is hard to draw is tried again, with operands of its own.
    for attempt in range(4 if kind == 5 else 1):
        before = graph.checkpoint()
        try:
            if op in (idioms, sequences):
                op.draw(graph)
            elif kind == 7:
                node(graph, op, style, 0.8, values.STRING)
            else:
                node(graph, op, style, 0.75 if kind < 5 else 0.4 if attempt == 0 and others is not VENDOR else 0.0)
            return
        except (Skip, oracle.NoOracle):
            graph.rollback(before)


def node(graph, op, style, chain, wanted=None):
    """Adds a node; its first operand is a value of the graph with the probability `chain`. With a `wanted` type its types are
    mostly that."""
    schema = schema_of(op, graph.opset)
    if schema.deprecated:
        raise Skip("deprecated")
    variable = schema.inputs[0].type_str if schema.inputs else ""
    constraint = next((c for c in schema.type_constraints if c.type_param_str == variable), None)
    choices = allowed(constraint, op, style) if constraint else []
    if wanted in choices and graph.rng.random() < 0.8:
        choices = [wanted]
    given = None
    if graph.rng.random() < chain and choices:
        names = graph.candidates(lambda array: values.NAMES[array.dtype] in choices)
        given = graph.recent(names) if names else None
    if given is not None:
        kind = values.NAMES[graph.arrays[given].dtype]
    elif style.kind in choices and graph.rng.random() < 0.7:
        kind = style.kind
    elif choices:
        kind = choices[int(graph.rng.integers(0, len(choices)))]
    else:
        kind = ""
    types = generate.bind(schema, variable, kind, graph.rng)
    prefer(graph, schema, types, variable, op, style)
    drawn = DrawnNode(graph, schema, types, given)
    (TEXT_RECIPES if style.texts else RECIPES)[op](drawn)
    if drawn.unnamed:
        raise Skip("outputs that are left out")
    # The edges of types are for the second set of inputs.
    graph.append(drawn, drawn.names())


def allowed(constraint, op, style):
    """Types of a variable; strings where the graph has them, and the operator's recipe draws them."""
    names = generate.allowed(constraint)
    takes = style.texts and op in TEXTS + TEXT_MOVES and "tensor(string)" in constraint.allowed_type_strs
    return names + [values.STRING] if takes else names


def prefer(graph, schema, types, variable, op, style):
    """Binds the other type variables to types that the graph has, mostly."""
    have = {items.kind_of(value) for value in graph.arrays.values()}
    for constraint in schema.type_constraints:
        if constraint.type_param_str == variable or graph.rng.random() < 0.4:
            continue
        known = sorted(have & set(allowed(constraint, op, style)))
        if op == "Cast":
            known = [name for name in known if name in values.FLOATS | {"int32", "int64", values.STRING}]
        if known:
            types[constraint.type_param_str] = known[int(graph.rng.integers(0, len(known)))]


def choose_outputs(graph):
    """What nobody reads, and some values that are read on."""
    readers = graph.readers()
    made = [name for vertex in graph.vertices for name in vertex.outputs]
    chosen = [name for name in made if name not in readers or graph.rng.random() < 0.15]
    if graph.rng.random() < 0.05:
        # A value that is an output twice is not allowed, an input that is one is.
        inputs = [name for name, how in graph.leaves.items() if how == "input" and name in readers]
        chosen += inputs[:1]
    graph.outputs = chosen
