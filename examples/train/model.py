"""Writes the model that this example trains, digits.onnx, and its data, digits.bin: python model.py

The model is a small convolutional network with all that trains it in `training_info`: an initialization of random numbers, and a step of
Adam on the cross entropy. It needs the package `onnx`.

Data: the 8x8 handwritten digits of scikit-learn, which are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, CC BY 4.0): 1,797 images with grey levels 0 to 16. In digits.bin each is 33 bytes: the label,
then 64 pixels of 4 bits, the first in the low ones, with 16 as 15. Without scikit-learn digits.bin is left as it is.
"""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).parent
TRAINING = "ai.onnx.preview.training"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

# Name, shape, and how many values each sum of the layer has.
PARAMETERS = [
    ("conv.weight", [8, 1, 3, 3], 9), ("conv.bias", [8], 0),
    ("hidden.weight", [128, 32], 128), ("hidden.bias", [32], 0),
    ("last.weight", [32, 10], 32), ("last.bias", [10], 0),
]
NAMES = [name for name, _, _ in PARAMETERS]


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def zeros(name, shape):
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


network = helper.make_graph(
    [
        helper.make_node("Conv", ["images", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "hidden.weight", "hidden.bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["g"]),
        helper.make_node("Gemm", ["g", "last.weight", "last.bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"]),
    ],
    "digits",
    [value("images", ["n", 1, 8, 8])],
    [value("probabilities", ["n", 10])],
    [zeros(name, shape) for name, shape, _ in PARAMETERS],
)

# Random weights by the seed of the call, biases and optimizer from nothing.
nodes, outputs, bindings = [], [], {}
for name, shape, fan in PARAMETERS:
    if fan:
        scale = float(np.sqrt(2 / fan))
        nodes.append(helper.make_node("RandomNormal", [], [name + ".first"], shape=shape, scale=scale))
        outputs.append(value(name + ".first", shape))
        bindings[name] = name + ".first"
    nought = numpy_helper.from_array(np.zeros(1, np.float32))
    for variable in ([] if fan else [name]) + [name + ".mean", name + ".square"]:
        size = numpy_helper.from_array(np.array(shape, np.int64))
        nodes.append(helper.make_node("Constant", [], [variable + ".shape"], value=size))
        nodes.append(helper.make_node("ConstantOfShape", [variable + ".shape"], [variable + ".first"], value=nought))
        outputs.append(value(variable + ".first", shape))
        bindings[variable] = variable + ".first"
nodes.append(helper.make_node("Constant", [], ["steps.first"], value=numpy_helper.from_array(np.array(0, np.int64))))
outputs.append(value("steps.first", [], INT64))
bindings["steps"] = "steps.first"
initialization = helper.make_graph(nodes, "initialization", [], outputs)

parts = lambda suffix: [name + suffix for name in NAMES]
algorithm = helper.make_graph(
    [
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
        helper.make_node(
            "Gradient", NAMES + ["images", "labels"], parts(".gradient"), domain=TRAINING,
            xs=NAMES, zs=["images", "labels"], y="loss",
        ),
        helper.make_node(
            "Adam",
            ["rate", "steps"] + NAMES + parts(".gradient") + parts(".mean") + parts(".square"),
            parts(".next") + parts(".mean.next") + parts(".square.next"),
            domain=TRAINING, alpha=0.9, beta=0.999, epsilon=1e-7, norm_coefficient=1e-4,
        ),
        helper.make_node("Add", ["steps", "one"], ["steps.next"]),
    ],
    "step",
    [value("labels", ["n"], INT64), value("rate", [])],
    [value("loss", [])]
    + [value(name + kind + ".next", shape) for kind in ("", ".mean", ".square") for name, shape, _ in PARAMETERS]
    + [value("steps.next", [], INT64)],
    [zeros(name + kind, shape) for kind in (".mean", ".square") for name, shape, _ in PARAMETERS]
    + [numpy_helper.from_array(np.array(0, np.int64), "steps"), numpy_helper.from_array(np.array(1, np.int64), "one")],
)

model = helper.make_model(
    network, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1)], ir_version=10
)
variables = NAMES + parts(".mean") + parts(".square") + ["steps"]
helper.set_model_props(model, {"data": "digits.bin"})
info = model.training_info.add()
info.initialization.CopyFrom(initialization)
info.algorithm.CopyFrom(algorithm)
for list_, pairs in [
    (info.initialization_binding, bindings), (info.update_binding, {name: name + ".next" for name in variables}),
]:
    for key, bound in pairs.items():
        entry = list_.add()
        entry.key, entry.value = key, bound
onnx.checker.check_model(model)
onnx.save(model, str(HERE / "digits.onnx"))

try:
    from sklearn.datasets import load_digits
except ImportError:
    pass
else:
    data = load_digits()
    pixels = np.minimum(data.images.reshape(len(data.images), 64), 15).astype(np.uint8)
    packed = pixels[:, ::2] | pixels[:, 1::2] << 4
    (HERE / "digits.bin").write_bytes(np.hstack([data.target[:, None].astype(np.uint8), packed]).tobytes())
