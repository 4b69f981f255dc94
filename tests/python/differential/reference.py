"""The reference evaluator of the ONNX package on one node."""

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_grid_sample import GridSample as StockGridSample

from case import element_type

NEWEST = 24


class GridSample(StockGridSample):
    """The package's, which rounds coordinates to f32 and knows the modes by their names since version 20 alone: with
    coordinates in f64, and the older names."""

    op_domain = ""

    def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
        mode = mode or self.mode
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        return super()._run(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)

    def _gs_denormalize_coordinates(self, n, dims, align_corners):
        return np.array([self._gs_denormalize(v, dim, align_corners) for v, dim in zip(n, dims)], np.float64)


def evaluator(model):
    """The package's evaluator, with operators of ours where its own round what they need not."""
    return ReferenceEvaluator(model, new_ops=[GridSample])


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
    found = evaluator(model).run(None, {name: array for name, array in zip(names, inputs) if name})
    return [np.asarray(result) for result in found]
