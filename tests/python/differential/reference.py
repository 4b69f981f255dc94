"""The reference evaluator of the ONNX package on one node."""

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from case import element_type

NEWEST = 24


def modern(op, inputs, outputs=1, opset=NEWEST, **attributes):
    """Results of a node of a newer operator set."""
    names = [f"x{at}" if array is not None else "" for at, array in enumerate(inputs)]
    results = [f"y{at}" for at in range(outputs)]
    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    node = helper.make_node(op, names, results, **{k: v for k, v in attributes.items() if v is not None})
    infos = [
        helper.make_tensor_value_info(name, element_type(array), array.shape)
        for name, array in zip(names, inputs) if name
    ]
    graph = helper.make_graph([node], "one", infos, [onnx.ValueInfoProto(name=name) for name in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = ReferenceEvaluator(model).run(None, {name: array for name, array in zip(names, inputs) if name})
    return [np.asarray(result) for result in found]
