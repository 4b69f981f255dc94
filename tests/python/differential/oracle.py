"""What a drawn node should give: by its definition written here, by the reference of the ONNX package, or by ONNX
Runtime.

The reference implements the newest versions. Older ones, and what it gets wrong, have definitions in `legacy` and
`definitions`.
"""

import os
import signal

import numpy as np
import onnx
from onnx import helper

import definitions
import definitions_attention  # noqa: F401 (definitions register themselves)
import definitions_items
import definitions_fused  # noqa: F401
import definitions_generation  # noqa: F401
import definitions_hybrid  # noqa: F401
import definitions_microsoft
import definitions_moe  # noqa: F401
import definitions_nchwc  # noqa: F401
import definitions_packed  # noqa: F401
import definitions_standard  # noqa: F401
import definitions_words  # noqa: F401
import items
import legacy
import peers
import values
from case import Skip, opset_imports
from reference import evaluator

try:
    import onnxruntime
    onnxruntime.set_default_logger_severity(4)
except ImportError:
    onnxruntime = None


class NoOracle(Exception):
    """Nobody knows what the node gives."""


class NoTexts(Exception):
    """The reference gives numbers for strings: that does not count as a refusal."""


#: Operators whose halves are computed in f32 and rounded once: what they sum up or pass through several functions.
#: NumPy, which the reference computes halves in, rounds after each step.
WIDE = set(
    "Softmax LogSoftmax ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare "
    "MatMul Gemm Conv ConvTranspose AveragePool GlobalAveragePool LpPool GlobalLpPool LRN LpNormalization "
    "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization RMSNormalization Mean Sum Einsum "
    "MeanVarianceNormalization RNN GRU LSTM Attention LinearAttention RotaryEmbedding Gelu Mish Celu Elu Selu Swish "
    "SwiGLU HardSigmoid HardSwish Softplus Softsign Shrink CumSum CumProd GridSample RoiAlign DeformConv Resize Upsample "
    "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss DFT STFT Det Col2Im AffineGrid CausalConvWithState MaxRoiPool "
    "Sigmoid Erf Tanh Pow ScatterElements ScatterND ThresholdedRelu LeakyRelu PRelu MelWeightMatrix".split()
)


def evaluate(node, opset):
    """Expected results and who says so."""
    node.opset = opset
    try:
        define = legacy.DEFINITIONS.get((node.key, node.since)) or definitions.DEFINITIONS.get(node.key)
        define = define or definitions_microsoft.DEFINITIONS.get(node.key) or definitions_items.DEFINITIONS.get(node.key)
        if define:
            results = define(node)
            if results is not None:
                plain = lambda one: one is None or items.is_other(one)
                return [one if plain(one) else np.asarray(one) for one in results][: node.outputs], "definition"
        return reference(node, opset), "reference"
    except Exception as error:  # The reference fails in many ways; each is reported.
        if isinstance(error, Skip):
            raise
        return runtime_only(node, opset, error), "runtime"


def arrays(node):
    return [array for array, _ in node.inputs]


def reference(node, opset):
    inputs = arrays(node)
    results = [values.DTYPES[node.out_type(at)] for at in range(node.outputs)]
    widened = node.op in WIDE and any(a is not None and values.NAMES[a.dtype] in values.HALVES for a in inputs)
    if widened:
        half = lambda a: a is not None and values.NAMES[a.dtype] in values.HALVES
        inputs = [a.astype(np.float32) if half(a) else a for a in inputs]
    found = run(node, opset, inputs)
    if widened:
        found = [f.astype(dtype) if f.dtype == np.float32 else f for f, dtype in zip(found, results)]
    found = [as_texts(f) if dtype == object else f for f, dtype in zip(found, results)]
    for value, dtype in zip(found, results):
        if value.dtype != dtype:
            raise TypeError(f"the reference gives {value.dtype} for {dtype}")
    return found


def as_texts(array):
    """Strings as objects; the reference makes them of one width at times, and fills with numbers."""
    texts = array.astype(object)
    for at, text in enumerate(texts.flat):
        if not isinstance(text, str):
            raise NoTexts(f"{text!r} as a string")
        texts.flat[at] = str(text)
    return texts


def graph_of(node, opset, inputs):
    names = [f"x{at}" if array is not None else "" for at, array in enumerate(inputs)]
    infos = [
        items.value_info(name, array, getattr(array, "shape", None)) for name, array in zip(names, inputs) if name]
    outputs = []
    for at in range(node.outputs):
        outputs.append(onnx.ValueInfoProto(name=f"y{at}"))
        outputs[-1].type.tensor_type.elem_type = getattr(onnx.TensorProto, node.out_type(at).upper())
    graph = helper.make_graph([node.proto(names, [f"y{at}" for at in range(node.outputs)])], "one", infos, outputs)
    imports = opset_imports([node.domain], opset)
    version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(version, 3))
    return model, {name: array for name, array in zip(names, inputs) if name}


def run(node, opset, inputs):
    model, feeds = graph_of(node, opset, inputs)
    results = evaluator(model).run(None, feeds)
    return [np.ascontiguousarray(result).reshape(np.shape(result)) for result in results]


def runtime_only(node, opset, error):
    # Of its own operators it does not survive all operands. Of texts it reads the beginning alone.
    reads = node.op == "Cast" and arrays(node)[0].dtype == object
    if onnxruntime is None or node.domain or reads:
        raise NoOracle(f"{type(error).__name__}: {str(error)[:100]}")
    model, feeds = graph_of(node, opset, arrays(node))
    run = lambda: session(model).run(None, feeds)
    if apart(lambda: "runs" if run() else "").startswith(ENDS):
        raise NoOracle("ONNX Runtime crashes")
    try:
        return run()
    except Exception:
        if isinstance(error, NoTexts):
            raise Skip(str(error)) from None
        raise NoOracle(f"{type(error).__name__}: {str(error)[:100]}") from None


def session(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def peer(model, case):
    """What ONNX Runtime says of the expected results, if it is installed."""
    if onnxruntime is None:
        return ""
    # Models of control flow and of its own operators in a process of their own: ONNX Runtime does not survive each Scan of
    # nothing, and not each of those.
    fragile = any(node.domain or node.op_type in ("If", "Loop", "Scan") for node in model.graph.node)
    ask = (lambda model, case: apart(lambda: opinion(model, case))) if fragile else opinion
    text = ask(model, case)
    if text in ("agrees", "refuses"):
        return text
    because = peers.cause(model, case, text, ask)
    return f"{text}; {because}" if because else text


#: How the text of a process begins that did not give one.
ENDS = "ends with status"


def apart(compute):
    """A text from a process of its own, which may crash, and does not end where a Loop does not: then the system ends it by the
    time that it has had of the processors."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, 60)
        try:
            os.write(writer, compute().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"{ENDS} {status}"


#: Operators whose cache ONNX Runtime takes only if it may overwrite it: inputs and outputs in one buffer.
SHARED = {"SparseAttention": {1: 3, 2: 4}}


def results_of(model, feeds):
    own, node = session(model), model.graph.node[0]
    shared = SHARED.get(node.op_type)
    if not shared:
        return own.run(None, feeds)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in feeds.items()}
    binding = own.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for at, name in enumerate(node.output):
        if at in shared:
            binding.bind_ortvalue_output(name, values[node.input[shared[at]]])
        else:
            binding.bind_output(name, "cpu")
    own.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def opinion(model, case):
    try:
        got = results_of(model, dict(case.inputs))
    except Exception:
        return "refuses"
    for at, (result, (_, wanted)) in enumerate(zip(got, case.outputs)):
        if result is None:
            return f"output {at}: nothing"
        if result.dtype == np.uint8 and wanted.dtype.itemsize == 1:
            result = result.view(wanted.dtype)
        if result.dtype != wanted.dtype or result.shape != wanted.shape:
            return f"output {at}: {result.dtype}{result.shape} for {wanted.dtype}{wanted.shape}"
        exact = values.epsilon(values.NAMES[wanted.dtype]) == 0
        wide = (lambda a: a) if exact or np.iscomplexobj(wanted) else (lambda a: a.astype(np.float64))
        same = result == wanted
        if not exact:
            same = np.isclose(wide(result), wide(wanted), case.rtol * 4, case.atol * 4, equal_nan=True)
        if not np.all(same):
            where = np.argwhere(~np.atleast_1d(same))[0]
            got_one, wanted_one = (np.atleast_1d(array)[tuple(where)] for array in (result, wanted))
            return f"output {at}: {got_one} for {wanted_one} at {where.tolist()}"
    return "agrees"
