"""Writes the official backend tests of the ONNX package into a folder.

export_suite.py FOLDER: makes FOLDER/<kind>/<name>/{model.onnx, meta.json, test_data_set_K/{input,output}_I.pb}.
meta.json holds the tolerances of the test, and for every data set what its files hold: `tensor`, `sequence`,
`optional` or `none` (no file). The kinds are node, simple, pytorch-converted, pytorch-operator and light (the real
architectures whose models come with the package; their inputs are made as the package's runner makes them).
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

PACKAGE = Path(onnx.__file__).parent.parent


def write_value(path, value, proto_type):
    """Writes one input or output; gives its kind."""
    if isinstance(value, onnx.TensorProto):
        proto, kind = value, "tensor"
    elif isinstance(value, onnx.SequenceProto):
        proto, kind = value, "sequence"
    elif isinstance(value, onnx.OptionalProto):
        proto, kind = value, "optional"
    elif proto_type.HasField("optional_type"):
        proto, kind = numpy_helper.from_optional(value), "optional"
    elif proto_type.HasField("sequence_type"):
        proto, kind = numpy_helper.from_list(list(value)), "sequence"
    elif value is None:
        return "none"
    else:
        proto, kind = numpy_helper.from_array(np.asarray(value)), "tensor"
    path.write_bytes(proto.SerializeToString())
    return kind


def write_set(folder, side, values, infos):
    return [write_value(folder / f"{side}_{at}.pb", value, infos[at].type) for at, value in enumerate(values)]


def stored_kind(info):
    return {"tensor_type": "tensor", "sequence_type": "sequence", "optional_type": "optional"}[
        info.type.WhichOneof("value")
    ]


def write_node_test(folder, test):
    graph = test.model.graph
    (folder / "model.onnx").write_bytes(test.model.SerializeToString())
    sets = []
    for at, (inputs, outputs) in enumerate(test.data_sets):
        data = folder / f"test_data_set_{at}"
        data.mkdir()
        sets.append([
            write_set(data, "input", inputs, graph.input),
            write_set(data, "output", outputs, graph.output),
        ])
    return sets


def copy_stored_test(folder, test):
    source = Path(test.model_dir)
    shutil.copy(source / "model.onnx", folder / "model.onnx")
    graph = onnx.load(folder / "model.onnx").graph
    sets = []
    for at, data in enumerate(sorted(source.glob("test_data_set_*"))):
        target = folder / f"test_data_set_{at}"
        shutil.copytree(data, target)
        sides = (("input", graph.input), ("output", graph.output))
        sets.append([
            [stored_kind(infos[i]) for i in range(len(list(target.glob(f"{side}_*.pb"))))] for side, infos in sides
        ])
    return sets


def write_light_test(folder, test):
    source = PACKAGE / test.url
    shutil.copy(source, folder / "model.onnx")
    graph = onnx.load(source).graph
    data = folder / "test_data_set_0"
    data.mkdir()
    initializers = {tensor.name for tensor in graph.initializer}
    infos = [info for info in graph.input if info.name not in initializers]
    inputs = [Runner.generate_dummy_data(info, name=test.model_name) for info in infos]
    kinds = write_set(data, "input", inputs, infos)
    for at in range(len(graph.output)):
        shutil.copy(source.with_name(f"{source.stem}_output_{at}.pb"), data / f"output_{at}.pb")
    return [[kinds, ["tensor"] * len(graph.output)]]


def export(folder, kind, test, write):
    target = folder / kind / test.name
    target.mkdir(parents=True)
    meta = {"rtol": test.rtol, "atol": test.atol, "data_sets": write(target, test)}
    (target / "meta.json").write_text(json.dumps(meta))


def main():
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    for test in load_model_tests(kind="node"):
        # Release 1.22 ships them as files.
        export(folder, "node", test, write_node_test if test.model else copy_stored_test)
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for test in load_model_tests(kind=kind):
            export(folder, kind, test, copy_stored_test)
    for test in load_model_tests(kind="real"):
        export(folder, "light", test, write_light_test)


main()
