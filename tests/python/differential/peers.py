"""Why ONNX Runtime gives something else than what is expected.

Where a defect of its own is suspected in control flow, the model is written so that it does not meet it, and means the
same: if ONNX Runtime then gives what is expected, that is the cause. Other causes are listed by operator.
"""

import copy

import numpy as np
from onnx import TensorProto, helper, numpy_helper


#: Causes by operator, of models of one node.
BY_OPERATOR = {
    "QLinearMatMul": "u8 by i8: sums of two products saturate at 16 bits on processors without VNNI",
    "MatMulInteger": "u8 by i8: sums of two products saturate at 16 bits on processors without VNNI",
    "ReduceProd": "integers are multiplied as floats and saturate",
    "ReduceLogSumExp": "of integers: computed in f32, and cut off just below a whole number",
    "Mod": "fmod of i64 is computed in f64",
    "OneHot": "fractional indices match nothing: \"the values will be casted to int64 before use\"",
    "Constant": "float4e2m1 of an odd number of elements is unpacked from the wrong half",
    "Resize": "align_corners: the resized length is rounded, where the official tests take length times scale",
    "QuantizeLinear": "halves are divided as f32, where the type of the scale is that of the division",
    "Clip": "a bound that is absent is the greatest number, where the function's body has none",
    "Gelu": "f64 with constants of f32",
    "Sin": "less precise than the type",
    "Cos": "less precise than the type",
    "Tan": "less precise than the type",
    "Sigmoid": "less precise than the type: an approximation that is 0 for large negative numbers",
}

#: Of outputs of other sizes.
SIZES = {
    "MaxPool": "auto_pad does not count dilations, or ceil_mode leaves a window out that version 11 and 12 do not",
    "LpPool": "auto_pad does not count dilations",
    "AveragePool": "auto_pad does not count dilations, or ceil_mode leaves a window out",
}


def of_softmax(given, attributes):
    x, scale = given[0], given[3]
    axis = attributes.get("axis", -1) % x.ndim
    terms = int(np.prod(x.shape[axis:])) if attributes["opset"] < 13 else x.shape[axis]
    if terms == 1:
        return "the exponential of a row of one element overflows"
    if np.float32(1) / scale.reshape(()) % 1:
        return "the reciprocal of the result's scale is cut to an integer"
    if x.dtype == np.int8:
        return "i8 results above 127 wrap around to -128"
    return ""


def of_microsoft(node, inputs):
    """A cause of a difference in an operator of com.microsoft."""
    given = [inputs.get(name) for name in node.input]
    attributes = {own.name: helper.get_attribute_value(own) for own in node.attribute}
    has = lambda at: at < len(given) and given[at] is not None
    if node.op_type in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul"):
        scale, bias = (3, 6) if node.op_type == "MatMulIntegerToFloat" else (2, 4)
        if given[1].ndim > 2 and given[scale].size > 1 and has(bias):
            return "a bias is multiplied by the scales of columns where weights are batched"
    if node.op_type == "MatMulNBits":
        if has(4) and (has(3) or attributes.get("bits", 4) != 4):
            return "with g_idx, zero points of u8 are ignored, and bits other than 4"
        if attributes.get("accuracy_level") == 4:
            return "accuracy_level 4 rounds A to 8 bits"
    if node.op_type == "MatMulBnb4" and attributes.get("transB", 1) == 0:
        return "transB 0 is computed as transB 1, with other sizes"
    if node.op_type == "QLinearSoftmax":
        return of_softmax(given, attributes)
    if node.op_type in ("QLinearConv", "QLinearAveragePool") and attributes.get("auto_pad", b"").startswith(b"SAME"):
        kernel = given[3].shape[2:] if node.op_type == "QLinearConv" else attributes["kernel_shape"]
        if any(stride > extent for stride, extent in zip(attributes.get("strides", []), kernel)):
            return "auto_pad pads by less than nothing where strides are larger than kernels"
    if node.op_type == "QLinearAveragePool" and attributes.get("ceil_mode") and attributes.get("count_include_pad"):
        return "count_include_pad counts what lies behind the pads, too, which only ceil_mode reaches"
    if node.op_type == "MultiHeadAttention" and attributes.get("unidirectional") and has(1):
        if given[1].shape[2 if given[1].ndim == 4 else 1] != given[0].shape[1]:
            return "unidirectional hides nothing from the last query, where the numbers of queries and keys differ"
    if node.op_type == "QMoE" and attributes.get("block_size", 0) > 0 and attributes.get("expert_weight_bits", 4) != 4:
        return "tokens are rounded to 8 bits where weights in blocks have 8, or 2"
    if node.op_type == "GroupQueryAttention" and attributes.get("local_window_size", -1) > 0:
        if given[5].min() + 1 < given[0].shape[1]:
            return "a window of tokens that pad a row is not that of the row's last token, in some ways of computing it"
    if node.op_type == "DecoderMaskedMultiHeadAttention" and has(4) and has(9):
        return "the bias of a key is that of the beam which the key came from"
    if node.op_type == "SparseAttention" and given[8].min() < given[8].max():
        return "weights of rows of unlike lengths are read from other places than they are written to"
    if node.op_type == "MaxpoolWithMask" and given[1].shape[0] * given[1].shape[1] > 1:
        return "masks of channels after the first begin at other elements"
    if node.op_type == "Sampling" and has(7) and attributes.get("presence_penalty", 0):
        return "all that presence_mask takes off is taken off the first token's score of the first row"
    if node.op_type in ("GreedySearch", "Sampling"):
        return "what follows the step after which all rows have ended is not written"
    if node.op_type == "BeamSearch" and len(node.output) > 2:
        return "scores of steps that are not taken are not written"
    if node.op_type == "BeamSearch" and given[0].shape[0] > 1 and not attributes.get("early_stopping", 0):
        return "whether a row is done depends on the best scores of another row"
    if node.op_type == "DynamicQuantizeLSTM" and has(4):
        return "ranges include rows of sequences that have ended, as they are after the end"
    return ""


def bodies(graph):
    """Nodes of control flow with a body, from the inside out."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from bodies(attribute.g)
                yield node, attribute.g


def runs_on(node, body):
    """Whether it is a Loop with a number of iterations and no condition: what its body says of going on is ignored."""
    return node.op_type == "Loop" and len(node.input) > 1 and node.input[0] and not node.input[1]


def plainer(model):
    """The model without what ONNX Runtime is known to mistake: loops that run on have a condition that says so, and a
    body's outputs are values of their own, not inputs, constants, values from around or each other."""
    model = copy.deepcopy(model)
    for number, (node, body) in enumerate(bodies(model.graph)):
        always, nothing = f"always{number}", f"nothing{number}"
        body.initializer.append(numpy_helper.from_array(np.array(True), always))
        body.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), nothing))
        if runs_on(node, body):
            body.output[0].CopyFrom(helper.make_tensor_value_info(always, TensorProto.BOOL, []))
        for at, output in enumerate(body.output):
            body.node.append(helper.make_node("Expand", [output.name, nothing], [f"copied{number}_{at}"]))
            output.name = f"copied{number}_{at}"
    return model


def cause(model, case, difference, opinion):
    """A cause that is known, or an empty text. `opinion` is how ONNX Runtime differs from a model's results."""
    sizes = "(" in difference
    operators = {node.op_type for node in model.graph.node}
    if operators & {"If", "Loop", "Scan"}:
        if difference.startswith("ends with") and any(node.op_type == "Scan" for node, _ in bodies(model.graph)):
            return "Scan of no elements divides by zero"
        if opinion(plainer(model), case) == "agrees":
            return "a condition that is to be ignored is not, or what a body passes on is not copied"
        if sizes and any(array.size == 0 for _, array in case.outputs):
            return "scan outputs of no iteration have sizes 0 where its inference knows none"
        return ""
    if sizes:
        return next((SIZES[operator] for operator in sorted(operators & SIZES.keys())), "")
    if any(node.domain.startswith("com.microsoft") for node in model.graph.node):
        return of_microsoft(model.graph.node[0], dict(case.inputs) | dict(case.initializers))
    return BY_OPERATOR.get(*operators, "") if len(operators) == 1 else ""
