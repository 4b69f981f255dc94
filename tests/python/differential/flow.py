"""If, Loop and Scan by the words of the specification, around bodies whose other nodes the reference computes.

The reference runs no Loop without a condition, stacks scan outputs of other ranks than 1 along the wrong axis, has no
directions and no axes of Scan, and none of the Scan of operator set 8.
"""

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from case import Skip, element_type

#: Elements of a value, and iterations of one loop, beyond which a case is not worth its time.
MOST_ELEMENTS, MOST_ITERATIONS = 6000, 40


class Flow:
    """Runs graphs of one operator set. `own` names the results whose size only a run of their body determines."""

    def __init__(self, opset, own=frozenset()):
        self.opset, self.own, self.evaluators = opset, own, {}
        self.control = {"If": self.choose, "Loop": self.repeat, "Scan": self.scan}

    def graph(self, graph, scope):
        """Results of a graph; `scope` has its inputs and what is visible around it."""
        scope = dict(scope)
        for tensor in graph.initializer:
            scope[tensor.name] = numpy_helper.to_array(tensor)
        for node in graph.node:
            inputs = [scope[name] if name else None for name in node.input]
            compute = self.control.get(node.op_type, self.plain)
            for name, value in zip(node.output, compute(node, inputs, scope)):
                if value.size > MOST_ELEMENTS:
                    raise Skip("values grew")
                scope[name] = value
        return [scope[output.name] for output in graph.output]

    def plain(self, node, inputs, _scope):
        key = (tuple(node.output), tuple(None if value is None else (value.dtype, value.ndim) for value in inputs))
        if key not in self.evaluators:
            names = dict(zip(node.input, inputs))
            infos = [
                helper.make_tensor_value_info(name, element_type(value), [None] * value.ndim)
                for name, value in names.items() if name
            ]
            outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
            graph = helper.make_graph([node], "one", infos, outputs)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
            self.evaluators[key] = ReferenceEvaluator(model)
        feeds = {name: value for name, value in zip(node.input, inputs) if name}
        return [np.asarray(value) for value in self.evaluators[key].run(None, feeds)]

    def choose(self, node, inputs, scope):
        taken = "then_branch" if inputs[0].item() else "else_branch"
        return self.graph(attribute(node, taken), scope)

    def repeat(self, node, inputs, scope):
        """"("", ""): for (int i=0; ; ++i) { cond = ... // Note this value is ignored, but is required in the body }",
        "("", cond): bool cond = ...; for (int i=0; cond; ++i) { cond = ...; }", "(trip_count, ""): [...] cond = ...; //
        ignored", "(trip_count, cond): for (int i=0; i < trip_count && cond; ++i) { cond = ...; }"."""
        most, condition = (inputs + [None, None])[:2]
        states, body = inputs[2:], attribute(node, "body")
        goes_on = True if condition is None else bool(condition.item())
        count, stacks = 0, []
        form = lambda at, value: np.array(value).reshape(form_of(body.input[at]))
        enter = lambda: dict(scope) | dict(zip(
            [value.name for value in body.input], [form(0, np.int64(count)), form(1, goes_on), *states]
        ))
        while goes_on and (most is None or count < most.item()):
            keep, *results = self.graph(body, enter())
            if condition is not None:
                goes_on = bool(keep.item())
            states, scanned = results[: len(states)], results[len(states):]
            stacks.append(scanned)
            count += 1
            if count > MOST_ITERATIONS:
                raise Skip("iterations")
        if not stacks:
            empty = self.empty(body, len(states) + 1, enter())
            return [*states, *empty]
        return [*states, *(stack(parts, 0) for parts in zip(*stacks))]

    def empty(self, body, first, scope):
        """Scan outputs of no iteration, of the sizes that one would have."""
        if any(output.name in self.own for output in body.output[first:]):
            raise Skip("no iteration determines a size")
        return [np.zeros((0,) + part.shape, part.dtype) for part in self.graph(body, scope)[first:]]

    def scan(self, node, inputs, scope):
        body, count = attribute(node, "body"), attribute(node, "num_scan_inputs")
        if self.opset == 8:
            return self.scan_batches(node, inputs, scope)
        states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count:]
        outputs = len(body.output) - len(states)
        axes = attribute(node, "scan_input_axes", [0] * count)
        scanned = [np.moveaxis(value, axis, 0) for value, axis in zip(scanned, axes)]
        ways = attribute(node, "scan_input_directions", [0] * count)
        scanned = [value[::-1] if way else value for value, way in zip(scanned, ways)]
        states, stacks = self.slices(body, states, scanned, scanned[0].shape[0], scope)
        results = []
        axes = attribute(node, "scan_output_axes", [0] * outputs)
        ways = attribute(node, "scan_output_directions", [0] * outputs)
        for value, axis, way in zip(stacks, axes, ways):
            # "0 indicates that the value should be appended, 1 that it should be prepended."
            results.append(np.ascontiguousarray(np.moveaxis(value[::-1] if way else value, 0, axis)))
        return [*states, *results]

    def slices(self, body, states, scanned, length, scope):
        names, stacks = [value.name for value in body.input], []
        for at in range(length):
            results = self.graph(body, scope | dict(zip(names, [*states, *(value[at] for value in scanned)])))
            stacks.append(results[len(states):])
            states = results[: len(states)]
        if not stacks:
            parts = [np.zeros(value.shape[1:], value.dtype) for value in scanned]
            return states, self.empty(body, len(states), scope | dict(zip(names, [*states, *parts])))
        return states, [stack(parts, 0) for parts in zip(*stacks)]

    def scan_batches(self, node, inputs, scope):
        """"sequence_lens: Optional tensor specifying lengths of the sequences in a batch. If this input is not
        specified, all sequences are assumed to be of the maximum sequence length." Beyond, scan outputs are zero."""
        body, count = attribute(node, "body"), attribute(node, "num_scan_inputs")
        lengths, *values = inputs
        states, scanned = values[: len(values) - count], values[len(values) - count:]
        batch, most = scanned[0].shape[:2]
        if batch == 0:
            raise Skip("no sequence determines a size")
        ways, rows = attribute(node, "directions", [0] * count), []
        for row in range(batch):
            length = most if lengths is None else int(lengths[row])
            # "reverse" is from the end of the sequence itself.
            own = [value[row][:length][::-1] if way else value[row][:length] for value, way in zip(scanned, ways)]
            last, stacks = self.slices(body, [value[row] for value in states], own, length, scope)
            padded = [np.zeros((most,) + value.shape[1:], value.dtype) for value in stacks]
            for whole, value in zip(padded, stacks):
                whole[:length] = value
            rows.append([*last, *padded])
        return [stack(parts, 0) for parts in zip(*rows)]


def stack(parts, axis):
    if len({part.shape for part in parts}) > 1:
        raise Skip("iterations of unlike sizes")
    return np.stack(parts, axis)


def form_of(value):
    """Scalars of a body are at times tensors of one element."""
    return (1,) * len(value.type.tensor_type.shape.dim) if value.type.tensor_type.HasField("shape") else ()


def attribute(node, name, default=None):
    found = next((a for a in node.attribute if a.name == name), None)
    if found is None:
        return default
    value = helper.get_attribute_value(found)
    return list(value) if isinstance(default, list) else value
