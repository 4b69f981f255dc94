"""The interface `onnx.backend` of the package `onnx`, which this module needs: `prepare`, `run_model`, `run_node`."""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict
from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info, np_dtype_to_tensor_dtype

from . import _model


class OnnxcBackendRep(BackendRep):
    """A model that `prepare` compiled."""

    def __init__(self, model: _model.Model) -> None:
        self.model = model
        self._outputs = namedtupledict("Outputs", list(model.outputs))

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Runs it on a list of inputs in the model's order, or a dict by name; one array is a list of itself."""
        if not isinstance(inputs, (list, tuple, dict)):
            inputs = [inputs]
        return self._outputs(*self.model.run(inputs, **kwargs))


class OnnxcBackend(Backend):
    """Compiles models for this processor. Keywords that `onnxc.compile` does not have belong to others and are ignored."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnnxcBackendRep:
        """Raises CompileError where the model is wrong or has operators that are not supported."""
        if not cls.supports_device(device):
            raise ValueError(f"device {device} is not supported, only CPU")
        known = {
            "opt_level",
            "exact",
            "precision",
            "strict",
            "cpu",
            "vector_width",
            "input_dims",
            "input_shapes",
            "threads",
            "overridable_defaults",
            "custom_ops",
            "overrides",
            "custom_libraries",
        }
        return OnnxcBackendRep(
            _model.compile_and_load(model, **{key: value for key, value in kwargs.items() if key in known})
        )

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: "Sequence[tuple[Any, tuple[int, ...]]] | None" = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one node on arrays. `opset_version` is the version of the node's domain; else the newest is taken."""
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        version = kwargs.pop("opset_version", None)
        domains = {"": onnx.defs.onnx_opset_version()}
        if node.domain or version is not None:
            domains[node.domain] = version or max(
                (schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == node.domain),
                default=1,
            )
        given = [name for name in node.input if name]
        named = dict(zip(given, inputs))
        graph_inputs = [
            make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in named.items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = make_graph([node], "node", graph_inputs, results)
        opsets = [make_opsetid(domain, number) for domain, number in domains.items()]
        return cls.run_model(make_model(graph, opset_imports=opsets), list(named.values()), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return bool(Device(device).type == DeviceType.CPU)


is_compatible = OnnxcBackend.is_compatible
prepare = OnnxcBackend.prepare
run_model = OnnxcBackend.run_model
run_node = OnnxcBackend.run_node
supports_device = OnnxcBackend.supports_device
