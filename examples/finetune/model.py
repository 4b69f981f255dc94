"""Makes the model that this example fine-tunes, reader.onnx: python model.py. Needs the packages `onnx` and `onnxc`.

A small convolutional network is trained on the digits 0 to 5 of ../train/digits.bin. Then its last layer is replaced by one of zeros for
other classes, which the layers before it have never seen.
"""

import pathlib

import numpy as np
import onnx
import onnxc
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
KNOWN, CLASSES = 6, 4
SHAPES = {"conv.weight": [8, 1, 3, 3], "conv.bias": [8], "body.weight": [128, 32], "body.bias": [32]}


def model(classes, weights):
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    shapes = {**SHAPES, "head.weight": [32, classes], "head.bias": [classes]}
    initial = [numpy_helper.from_array(weights.get(name, np.zeros(shape, np.float32)), name) for name, shape in shapes.items()]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "body.weight", "body.bias"], ["b"]),
            helper.make_node("Relu", ["b"], ["features"]),
            helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"]),
        ],
        "reader", [value("images", ["n", 1, 8, 8])], [value("probabilities", ["n", classes])], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main():
    records = np.frombuffer((HERE / "../train/digits.bin").read_bytes(), np.uint8).reshape(-1, 33)
    records = records[records[:, 0] < KNOWN]
    images = np.stack([records[:, 1:] & 15, records[:, 1:] >> 4], axis=2).reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(15)
    labels = records[:, 0].astype(np.int64)
    learner = HERE / "learner.onnx"
    onnxc.train_graph(model(KNOWN, {}), learner, loss="cross-entropy", optimizer="adam", learning_rate=0.003, initialize=True)
    trained = onnxc.compile_and_load(learner, training=True)
    learner.unlink()
    state = trained.state()
    trained.entries["train_initialize"](state=state, seed=1)
    random = np.random.default_rng(1)
    for _ in range(600):
        batch = random.choice(len(images), 32, replace=False)
        loss = trained.entries["train_step"](images[batch], labels[batch], state=state)[-1]
    found = np.argmax(trained(images, state=state)[0], axis=1)
    print(f"loss {float(loss):.4f}, {100 * np.mean(found == labels):.1f}% of its own images")
    result = model(CLASSES, {name: state[name] for name in SHAPES})
    onnx.checker.check_model(result)
    onnx.save(result, HERE / "reader.onnx")


if __name__ == "__main__":
    main()
