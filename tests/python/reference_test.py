"""Holds the operator classes of `reference.py` against the package's, and a doubled model against its own f32."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from reference import OVERRIDES, evaluate


def model_of(nodes, inputs, initializers=(), opset=20):
    values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
              for name, array in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "case", values, [output], list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def cases(rng):
    """Operator, inputs by name and attributes."""
    def data(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    # The package's own pooling takes unequal pads of its axes in another order than the specification.
    windows = [{}, {"strides": [2, 1]}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "strides": [2, 2]}]
    for how in [*windows, {"pads": [1, 0, 2, 1]}, {"dilations": [2, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
                {"auto_pad": "SAME_LOWER", "strides": [2, 2]}]:
        yield "Conv", {"x": data(2, 4, 9, 8), "w": data(6, 4, 3, 2), "b": data(6)}, how
        yield "Conv", {"x": data(1, 4, 9, 8), "w": data(8, 2, 3, 2)}, {"group": 2, **how}
    yield "Conv", {"x": data(2, 4, 9, 8), "w": data(4, 1, 3, 3), "b": data(4)}, {"group": 4, "pads": [1, 1, 1, 1]}
    yield "Conv", {"x": data(2, 3, 20), "w": data(5, 3, 4)}, {"strides": [3]}
    for how in [*windows, {"ceil_mode": 1, "strides": [2, 2]}, {"ceil_mode": 1, "strides": [3, 2]}]:
        yield "MaxPool", {"x": data(2, 3, 10, 9)}, {"kernel_shape": [3, 2], **how}
        # Its averages pad before the data as well to complete the last window.
        if how.get("strides") != [3, 2]:
            yield "AveragePool", {"x": data(2, 3, 10, 9)}, {"kernel_shape": [3, 2], **how}
        if "ceil_mode" not in how:
            yield "AveragePool", {"x": data(2, 3, 10, 9)}, {"kernel_shape": [3, 2], "count_include_pad": 1, **how}
    variance = np.abs(data(3)) + 0.5
    yield "BatchNormalization", {"x": data(2, 3, 4, 5), "s": data(3), "b": data(3), "m": data(3), "v": variance}, {}
    yield "Erf", {"x": data(40)}, {}
    yield "Gelu", {"x": data(40)}, {}
    yield "Gelu", {"x": data(40)}, {"approximate": "tanh"}
    yield "HardSwish", {"x": 4 * data(40)}, {}
    for axis, shape in [(0, (2, 5)), (1, (4, 7))]:
        indices = rng.integers(-4, 4, size=shape)
        yield "GatherElements", {"x": data(4, 5), "i": indices}, {"axis": axis}
    for axis in (0, 1, -1):
        hot = {"i": rng.integers(-6, 6, size=(3, 4)), "d": np.array(5), "v": np.array([0.25, 3], np.float32)}
        yield "OneHot", hot, {"axis": axis}
    yield "Resize", {"x": data(1, 2, 3, 4), "": None, "s": np.array([1, 1, 2, 3], np.float32)}, {
        "mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def close(what, found, wanted):
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-5, atol=1e-5):
        raise SystemExit(f"{what}: {found.shape} {found.ravel()[:8]}, not {wanted.shape} {wanted.ravel()[:8]}")


def self_test():
    rng = np.random.default_rng(0)
    met = set()
    for op, inputs, attributes in cases(rng):
        node = helper.make_node(op, list(inputs), ["y"], **attributes)
        feeds = {name: array for name, array in inputs.items() if name}
        model = model_of([node], feeds)
        stock = ReferenceEvaluator(model).run(None, feeds)[0]
        output = evaluate(model, feeds)["y"]
        if output.dtype != np.float64:
            raise SystemExit(f"{op}: {output.dtype}")
        close(f"{op} {attributes}", output, stock)
        met.add(op)
    missing = {cls.__name__ for cls in OVERRIDES} - met
    if missing:
        raise SystemExit(f"no case of {missing}")
    created_values()
    old_quantization(rng)
    print(f"{len(met)} operators agree")


def old_quantization(rng):
    """Classes of operator set 13 against the package's of 19."""
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    for axis, count in [(1, 3), (-1, 4), (1, 1)]:
        shape = [count] if count > 1 else []
        inputs = {"x": x, "scale": rng.uniform(0.1, 0.2, shape).astype(np.float32),
                  "zero": rng.integers(-9, 9, shape).astype(np.int8)}
        nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=axis),
                 helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=axis)]
        stock = ReferenceEvaluator(model_of(nodes, inputs, opset=19)).run(None, inputs)[0]
        close(f"quantization along {axis}", evaluate(model_of(nodes, inputs, opset=13), inputs)["y"], stock)


def created_values():
    """A model that makes floats in every way; a third is not a float, so f32 anywhere shows."""
    third = numpy_helper.from_array(np.array([1 / 3], np.float32), "third")
    nodes = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Constant", [], ["seven"], value_floats=[7.0]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["size"], to=TensorProto.FLOAT),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Div", ["one", "seven"], ["seventh"]),
        helper.make_node("Sum", ["x", "third", "zeros", "seventh", "size"], ["y"]),
    ]
    feeds = {"x": np.array([0.5], np.float32)}
    model = model_of(nodes, feeds, [third])
    output = evaluate(model, feeds)["y"]
    wanted = 0.5 + np.float64(np.float32(1 / 3)) + 1 / 7 + 1
    if abs(output[0] - wanted) > 1e-15:
        raise SystemExit(f"created values: {output}, not {wanted}")
