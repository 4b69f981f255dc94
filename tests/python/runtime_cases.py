"""Models that ONNX Runtime is the oracle of, with its results: what it takes beyond the standard, and ai.onnx.ml.

    python tests/python/runtime_cases.py FOLDER GROUP

Writes a folder per case (model.onnx, meta.json, test_data_set_0) and index.json: a list of {"name", "warning"}, where the
warning is a part of what the compiler says of the model, or null. GROUP is `tolerances`, `ml` or `training`; the optimizers
of `training` do not exist in ONNX Runtime, and their results are the reference's of the ONNX package.
"""
import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = np.float32


def info(name, array_or_type, shape=None):
    if isinstance(array_or_type, np.ndarray):
        array = array_or_type
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    return helper.make_tensor_value_info(name, array_or_type, shape)


def untyped(name):
    return onnx.ValueInfoProto(name=name)


def model(nodes, inputs, outputs, opset, ml=None, constants=(), values=(), domain="ai.onnx.ml"):
    """`inputs` are arrays by name, `outputs` names or declared values, `constants` arrays by name."""
    declared = [untyped(output) if isinstance(output, str) else output for output in outputs]
    graph = helper.make_graph(
        nodes, "g", [info(name, array) for name, array in inputs.items()], declared,
        [numpy_helper.from_array(array, name) for name, array in dict(constants).items()], value_info=list(values),
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, ml)] if ml else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def runtime(proto, inputs):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def reference(proto, inputs):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto).run(None, inputs)


class Cases:
    def __init__(self, folder):
        self.folder, self.index = folder, []

    def add(self, name, proto, inputs, warning=None, oracle=None, wanted=None, run=runtime, rtol=1e-5, atol=1e-6):
        """`oracle` is the model that is run in place of `proto`, where that one is refused."""
        if wanted is None:
            wanted = run(oracle or proto, inputs)
        case = self.folder / name
        data = case / "test_data_set_0"
        data.mkdir(parents=True)
        onnx.save(proto, case / "model.onnx")
        for prefix, arrays in (("input", inputs.values()), ("output", wanted)):
            for at, array in enumerate(arrays):
                (data / f"{prefix}_{at}.pb").write_bytes(numpy_helper.from_array(np.asarray(array)).SerializeToString())
        kinds = [["tensor"] * len(inputs), ["tensor"] * len(wanted)]
        (case / "meta.json").write_text(json.dumps({"rtol": rtol, "atol": atol, "data_sets": [kinds]}))
        self.index.append({"name": name, "warning": warning})


def tolerances(cases):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 4)).astype(FLOAT)
    flat, image = {"x": x}, {"x": rng.normal(size=(2, 3, 5, 6)).astype(FLOAT)}
    node = helper.make_node

    two = [node("Abs", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    good = model(two, flat, ["y"], 13)
    for name, values in [
        ("shape", [info("t", TensorProto.FLOAT, [3, 4])]),
        ("rank", [info("t", TensorProto.FLOAT, [8])]),
    ]:
        text = f"`t` is declared as f32[{', '.join(map(str, [3, 4] if name == 'shape' else [8]))}]"
        cases.add(f"declared_{name}", model(two, flat, ["y"], 13, values=values), flat, text)
    wrong = model(two, flat, ["y"], 13, values=[info("t", TensorProto.INT64, [2, 4])])
    cases.add("declared_type", wrong, flat, "`t` is declared as i64[2, 4], and its type is f32[2, 4]", oracle=good)
    for name, ty, dims, text in [
        ("shape", TensorProto.FLOAT, [3, 4], "f32[3, 4]"),
        ("rank", TensorProto.FLOAT, [8], "f32[8]"),
        ("type", TensorProto.INT64, [2, 4], "i64[2, 4]"),
    ]:
        proto = model(two, flat, [info("y", ty, dims)], 13)
        cases.add(f"output_{name}", proto, flat, f"`y` is declared as {text}", oracle=good)
    weights = {"w": np.arange(4, dtype=FLOAT)}
    add = [node("Add", ["x", "w"], ["y"])]
    proto = model(add, flat, ["y"], 13, constants=weights)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(proto)
    wrong.graph.input.append(info("w", TensorProto.FLOAT, [5]))
    cases.add("initializer_shape", wrong, flat, "`w` is declared as f32[5], and its type is f32[4]", oracle=proto)
    # Data decide the shape: what is declared is wrong, and is not believed.
    shape = {"s": np.array([4, 2], np.int64)}
    inputs = {**flat, **shape}
    proto = model([node("Reshape", ["x", "s"], ["t"]), node("Neg", ["t"], ["y"])], inputs, ["y"], 13)
    del proto.graph.input[1]
    proto.graph.initializer.append(numpy_helper.from_array(shape["s"], "s"))
    proto.graph.value_info.append(info("t", TensorProto.FLOAT, [2, 4]))
    cases.add("declared_reshape", proto, flat, "`t` is declared as f32[2, 4], and its type is f32[4, 2]")

    unsorted = [node("Add", ["a", "b"], ["y"]), node("Neg", ["x"], ["b"]), node("Exp", ["c"], ["a"]), node("Abs", ["x"], ["c"])]
    cases.add("unsorted", model(unsorted, flat, ["y"], 13), flat, "input `a` is used before node 2 `Exp_2` defines it")
    branch = lambda op: helper.make_graph([node(op, ["late"], ["v"])], op, [], [info("v", TensorProto.FLOAT, [2, 4])])
    choice = node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp"))
    inputs = {**flat, "c": np.array(True)}
    proto = model([choice, node("Abs", ["x"], ["late"])], inputs, ["y"], 13)
    cases.add("unsorted_capture", proto, inputs, "input `late` is used before node 1 `Abs_1` defines it")

    def operator(name, op, opset, given=flat, constants=(), outputs=1, types=(FLOAT,), **attributes):
        constants = dict(constants)
        names = list(given) + list(constants)
        text = f"operator {op} "
        outs = [f"y{at}" for at in range(outputs)]
        proto = model([node(op, names, outs, **attributes)], given, outs, opset, constants=constants)
        cases.add(name, proto, given, text)
        for dtype in types:
            if dtype == FLOAT:
                continue
            wide = {key: array.astype(dtype).astype(FLOAT) for key, array in given.items()}
            other = {key: array.astype(dtype) for key, array in given.items()}
            floats = {key: array.astype(dtype) if array.dtype == FLOAT else array for key, array in constants.items()}
            wanted = [array.astype(dtype) for array in runtime(proto, wide)]
            changed = model([node(op, names, outs, **attributes)], other, outs, opset, constants=floats)
            tolerance = 2e-3 if dtype == np.float16 else 1e-5
            cases.add(f"{name}_{dtype.__name__}", changed, other, text, wanted=wanted, rtol=tolerance, atol=tolerance)

    all_floats = (FLOAT, np.float16, np.float64)
    operator("affine", "Affine", 9, types=all_floats, alpha=2.5, beta=-1.0)
    operator("affine_defaults", "Affine", 7)
    operator("scale", "Scale", 9, types=all_floats, scale=-3.0)
    operator("parametric_softplus", "ParametricSoftplus", 8, types=all_floats, alpha=0.5, beta=2.0)
    operator("scaled_tanh", "ScaledTanh", 8, types=all_floats, alpha=0.5, beta=2.0)
    operator("thresholded_relu", "ThresholdedRelu", 9, types=all_floats, alpha=0.25)
    operator("thresholded_relu_default", "ThresholdedRelu", 1)
    operator("image_scaler", "ImageScaler", 8, image, types=all_floats, scale=2.0, bias=[1.0, -2.0, 0.5])
    operator("crop", "Crop", 8, image, types=all_floats, border=[1, 0, 2, 1])
    operator("crop_to_size", "Crop", 8, image, border=[1, 2, 0, 0], scale=[2, 3])
    for across in (0, 1):
        for variance in (0, 1):
            operator(f"mean_variance_{across}{variance}", "MeanVarianceNormalization", 8, image,
                     across_channels=across, normalize_variance=variance)
    ints = lambda *values: np.array(values, np.int64)
    operator("dynamic_slice", "DynamicSlice", 9, image, {"s": ints(1, 0, -2), "e": ints(2, 99, -1)})
    operator("dynamic_slice_axes", "DynamicSlice", 7, image, {"s": ints(-3).astype(np.int32), "e": ints(4).astype(np.int32),
                                                               "a": ints(-1).astype(np.int32)})
    scale, bias = rng.normal(size=4).astype(FLOAT), rng.normal(size=4).astype(FLOAT)
    for opset in (1, 9, 16):
        operator(f"layer_normalization_{opset}", "LayerNormalization", opset, constants={"s": scale, "b": bias}, outputs=3)
    whole = rng.normal(size=(2, 4)).astype(FLOAT)
    operator("layer_normalization_axis", "LayerNormalization", 12, constants={"s": whole}, axis=0, epsilon=0.01)
    for opset in (1, 17, 21):
        operator(f"simplified_{opset}", "SimplifiedLayerNormalization", opset, constants={"s": scale}, outputs=2)
    operator("simplified_axis", "SimplifiedLayerNormalization", 13, constants={"s": whole}, axis=0, epsilon=0.01)

    for dtype in (np.int64, np.int32, np.uint8, np.bool_, np.int8, np.uint16):
        for opset in (1, 8):
            value = numpy_helper.from_array(np.array([1, 0, 3]).astype(dtype))
            proto = model([node("Constant", [], ["y"], value=value)], flat, ["y"], opset)
            cases.add(f"constant_{dtype.__name__}_{opset}", proto, flat, "it is taken as ONNX Runtime takes it")


def ml(cases):
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(size=(6, 3)), np.zeros((1, 3)), -np.abs(rng.normal(size=(2, 3)))]).astype(FLOAT)
    count = {}

    def add(op, arrays, version=1, outputs=1, **attributes):
        arrays = arrays if isinstance(arrays, list) else [arrays]
        inputs = {f"x{at}": array for at, array in enumerate(arrays)}
        outs = [f"y{at}" for at in range(outputs)]
        node = helper.make_node(op, list(inputs), outs, domain="ai.onnx.ml", **attributes)
        count[op] = count.get(op, 0) + 1
        proto = model([node], inputs, outs, 15, ml=version)
        cases.add(f"{op}_{count[op]}", proto, inputs, rtol=2e-5, atol=2e-6)

    numbers = [x, x.astype(np.float64), (x * 4).astype(np.int64), (x * 4).astype(np.int32)]
    for typed in numbers:
        add("Scaler", typed, offset=[1.0, 0.5, 0.0], scale=[2.0, 1.0, 0.1])
        for norm in ("MAX", "L1", "L2"):
            if typed.dtype != np.int32 or norm != "MAX":
                add("Normalizer", typed, norm=norm)
    add("Scaler", x, offset=[1.0], scale=[2.0])
    add("Scaler", x[0], offset=[1.0, 0.5, 0.0], scale=[2.0, 1.0, 0.1])

    add("Normalizer", x[0], norm="L2")
    holes = np.where(rng.random(x.shape) < 0.3, np.nan, x).astype(FLOAT)
    add("Imputer", holes, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    add("Imputer", holes, imputed_value_floats=[7.0], replaced_value_float=0.0)
    add("Imputer", numbers[2], imputed_value_int64s=[7, 8, 9], replaced_value_int64=0)
    add("Imputer", holes[0], imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    for shape in ((5,), (2, 3), (2, 1, 3)):
        values = rng.integers(-1, 5, shape)
        for dtype in (np.int64, FLOAT, np.float64):
            add("OneHotEncoder", values.astype(dtype), cats_int64s=[3, 1, 0])
    add("OneHotEncoder", np.array([1.5, -1.5, 0.9], FLOAT), cats_int64s=[3, 1, 0, -1])
    add("OneHotEncoder", np.array([1, 2]), cats_int64s=[1, 2, 1])
    add("OneHotEncoder", np.array([1, 2]), cats_int64s=[1, 2], zeros=0)
    add("FeatureVectorizer", [x, x[:, :2]], inputdimensions=[3, 2])
    add("FeatureVectorizer", [x, x[:, :1]], inputdimensions=[2, 3])
    add("FeatureVectorizer", [numbers[2], numbers[2][:, :1]], inputdimensions=[3, 1])
    add("FeatureVectorizer", [numbers[3], numbers[3][:, :1]], inputdimensions=[3, 1])
    add("FeatureVectorizer", [x[0], x[0, :2]], inputdimensions=[3, 2])

    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    small = (np.abs(x) * 0.04 + 0.01).astype(FLOAT)
    for transform in transforms:
        data = small if transform == "PROBIT" else x
        add("LinearRegressor", data, coefficients=[1.0, 2.0, 3.0, 0.4, 0.5, 0.6], intercepts=[0.1, 0.2], targets=2,
            post_transform=transform)
        add("LinearRegressor", data, coefficients=[1.0, 2.0, 3.0], intercepts=[0.1], post_transform=transform)
        three = [1.0, 2.0, 3.0, 0.4, 0.5, 0.6, 0.1, 0.3, 0.2]
        add("LinearClassifier", data, outputs=2, coefficients=three, intercepts=[0.1, 0.2, 0.15],
            classlabels_ints=[5, -6, 7], post_transform=transform)
        if transform != "PROBIT":
            # ONNX Runtime writes the two scores of PROBIT to wrong places.
            add("LinearClassifier", data, outputs=2, coefficients=[1.0, -2.0, 3.0], intercepts=[0.1],
                classlabels_ints=[5, 6], post_transform=transform)
    # Coefficients beyond those of the input's features are not read.
    add("LinearClassifier", x[:, :2], outputs=2, coefficients=three, intercepts=[0.1, 0.2, 0.15], classlabels_ints=[5, -6, 7])
    add("LinearRegressor", x[:, :2], coefficients=three, targets=3)
    add("LinearRegressor", x, coefficients=[1.0, 2.0, 3.0])
    add("LinearRegressor", x[0], coefficients=[1.0, 2.0, 3.0])
    for typed in numbers[1:]:
        add("LinearClassifier", typed, outputs=2, coefficients=three, intercepts=[0.1, 0.2, 0.15], classlabels_ints=[5, 6, 7])
    add("LinearClassifier", x * 0, outputs=2, coefficients=three, intercepts=[1.0, 1.0, 1.0], classlabels_ints=[5, 6, 7])

    parameters = {"kernel_params": [0.5, 0.25, 3.0]}
    vectors = rng.normal(size=(5, 3)).astype(FLOAT)
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for one_class in (0, 1):
            add("SVMRegressor", x, kernel_type=kernel, coefficients=[1.0, -0.5, 0.25, 0.3, -0.7], n_supports=5, rho=[0.1],
                support_vectors=vectors.ravel().tolist(), one_class=one_class, **parameters)
    for transform in transforms:
        add("SVMRegressor", x, coefficients=[1.0, -0.5, 0.25], rho=[0.1], post_transform=transform, **parameters)

    def machine(classes, transform, probable, kernel, dtype=FLOAT):
        counts = [int(size) for size in rng.integers(1, 4, classes)]
        pairs = classes * (classes - 1) // 2
        attributes = dict(
            kernel_type=kernel, vectors_per_class=counts, classlabels_ints=list(range(10, 10 + classes)),
            coefficients=rng.normal(size=(classes - 1) * sum(counts)).tolist(),
            support_vectors=rng.normal(size=3 * sum(counts)).tolist(), rho=rng.normal(size=pairs).tolist(),
            post_transform=transform, **parameters)
        if probable:
            attributes.update(prob_a=(-2 * rng.random(pairs)).tolist(), prob_b=rng.normal(size=pairs).tolist())
        add("SVMClassifier", x.astype(dtype), outputs=2, **attributes)

    for classes in (2, 3, 4, 6):
        for probable in (False, True):
            for transform in transforms[:4]:
                machine(classes, transform, probable, "RBF")
    for kernel in ("LINEAR", "POLY", "SIGMOID"):
        machine(3, "NONE", True, kernel)
    machine(3, "NONE", True, "RBF", np.float64)
    machine(3, "NONE", True, "RBF", np.int64)
    for classes in (1, 2, 3):
        for transform in transforms[:4]:
            for positive in (False, True):
                weights = rng.normal(size=3 * classes)
                weights = np.abs(weights) if positive else weights
                add("SVMClassifier", x, outputs=2, coefficients=weights.tolist(), rho=[0.1],
                    classlabels_ints=list(range(10, 10 + classes)), post_transform=transform, **parameters)

    trees(rng, add)

    labels = rng.integers(-3, 12, 40)
    for keys in ([5], [4, -2, 7], [1, 2, 1, 9], list(range(11))):
        of = dict(keys_int64s=keys, values_int64s=[10 * key + 1 for key in range(len(keys))])
        add("LabelEncoder", labels, 2, **of)
        add("LabelEncoder", labels.reshape(4, 10), 4, default_int64=-7, **of)
    floats = np.array([1, np.nan, -0.0, 0.0, np.inf, -2.5, 3], FLOAT)
    keys = [1.0, float("nan"), 0.0, -2.5]
    for version in (2, 4):
        add("LabelEncoder", floats, version, keys_floats=keys, values_floats=[10.0, 20.0, 30.0, 40.0])
        add("LabelEncoder", floats, version, keys_floats=keys, values_int64s=[10, 20, 30, 40], default_int64=3)
        add("LabelEncoder", labels, version, keys_int64s=[1, 2, 3], values_floats=[10.0, 20.0, 30.0], default_float=0.5)
    for one, two in [(np.int64, np.int64), (np.float64, np.int64), (np.int64, np.float64), (FLOAT, FLOAT),
                     (np.float64, np.float64), (np.int64, FLOAT), (FLOAT, np.int64)]:
        tensor = lambda values, dtype: numpy_helper.from_array(np.array(values, dtype))
        add("LabelEncoder", labels.astype(one), 4, keys_tensor=tensor([1, 5, 3], one), values_tensor=tensor([7, 8, 9], two),
            default_tensor=tensor([-5], two))


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def tree(rng, features, depth, modes, steps):
    """(mode, feature, value, NaN passes, pass, fail), or None for a leaf. Values lie on a grid, as those of the rows do. For ONNX
    Runtime NaN passes BRANCH_NEQ, which the attribute does not change."""
    if depth == 0 or rng.random() < 0.15:
        return None
    below = [tree(rng, features, depth - 1, modes, steps) for _ in range(2)]
    value = float(rng.integers(-steps, steps + 1)) / 2
    mode, feature, nan = str(rng.choice(modes)), int(rng.integers(features)), int(rng.integers(2))
    return (mode, feature, value, 1 if mode == "BRANCH_NEQ" else nan, *below)


def attributes(rng, forest, votes, targets, weight, tensors, all_targets=False):
    """The attributes of the operators of version 1 and 3; with `all_targets`, a leaf votes for each."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")
    nodes = {name: [] for name in names}
    ballots = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for number, root in enumerate(forest):
        queue, ids = [root], [0]
        at = 0
        while at < len(queue):
            node = queue[at]
            mode, feature, value, nan, yes, no = node or ("LEAF", 0, 0.0, 0, None, None)
            row = [number, at, feature, value, mode, 0, 0, nan]
            if node:
                row[5:7] = len(queue), len(queue) + 1
                queue += [yes, no]
            else:
                chosen = range(targets) if all_targets else [int(rng.integers(targets))]
                for target in chosen:
                    for name, entry in zip(ballots, (number, at, target, weight())):
                        ballots[name].append(entry)
            for name, entry in zip(names, row):
                nodes[name].append(entry)
            at += 1
    result = {f"nodes_{name}": entries for name, entries in nodes.items()}
    result.update({f"{votes}_{name}": entries for name, entries in ballots.items()})
    for name in ("nodes_values", f"{votes}_weights") if tensors else ():
        result[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(result.pop(name), np.float64))
    return result | ({"n_targets": targets} if votes == "target" else {})


def trees(rng, add):
    # Blocks of several vectors of rows, vectors, and rows by themselves.
    features, rows = 4, 101
    x = (rng.integers(-6, 7, (rows, features)) / 2).astype(FLOAT)
    holes = np.where(rng.random(x.shape) < 0.2, np.nan, x).astype(FLOAT)
    holes[0, 0], holes[1, 1] = np.inf, -np.inf
    normal = lambda: float(rng.normal())
    positive = lambda: float(rng.random())
    grow = lambda count, modes=MODES, depth=5: [tree(rng, features, depth, modes, 6) for _ in range(count)]

    for modes in [[mode] for mode in MODES] + [MODES]:
        for data in (x, holes):
            add("TreeEnsembleRegressor", data, **attributes(rng, grow(5, modes), "target", 1, normal, False))
    for data in (x.astype(np.float64), holes.astype(np.float64)):
        for tensors in (False, True):
            add("TreeEnsembleRegressor", data, 3, **attributes(rng, grow(5), "target", 1, normal, tensors))
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for targets in (1, 3):
            for every in (False, True):
                of = attributes(rng, grow(6), "target", targets, normal, False, every)
                add("TreeEnsembleRegressor", holes, aggregate_function=aggregate, **of)
                base = [0.5, -0.25, 1.0][:targets]
                # ONNX Runtime does not add the base value of a target that no leaf votes for.
                if every or targets == 1:
                    add("TreeEnsembleRegressor", holes, aggregate_function=aggregate, base_values=base, **of)
    for transform in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        of = attributes(rng, grow(6), "target", 3, normal, False)
        add("TreeEnsembleRegressor", holes, post_transform=transform, **of)
    of = attributes(rng, grow(6), "target", 1, lambda: positive() / 7, False)
    add("TreeEnsembleRegressor", holes, post_transform="PROBIT", **of)
    # Categories, few different leaves: parts of trees are equal, and chains of equalities are sets.
    def whole(node):
        mode, feature, value, nan, *after = node
        return (mode, feature, float(abs(round(value))), nan, *(next and whole(next) for next in after))

    for modes in (["BRANCH_EQ"], ["BRANCH_NEQ"], ["BRANCH_EQ"] * 3 + ["BRANCH_LEQ", "BRANCH_GT"]):
        for data in (x, holes):
            forest = [root and whole(root) for root in grow(20, modes, 9)]
            few = lambda: float(rng.integers(3))
            add("TreeEnsembleRegressor", data, **attributes(rng, forest, "target", 1, few, False))
    # Leaves only; one row; many rows and trees.
    add("TreeEnsembleRegressor", x, **attributes(rng, [None, None], "target", 1, normal, False))
    add("TreeEnsembleRegressor", x[:1], **attributes(rng, grow(50), "target", 1, normal, False))
    many = (rng.integers(-6, 7, (1001, features)) / 2).astype(FLOAT)
    add("TreeEnsembleRegressor", many, **attributes(rng, grow(40, MODES[:1], 8), "target", 1, normal, False))
    add("TreeEnsembleRegressor", many, **attributes(rng, grow(40, MODES[:1], 8), "target", 3, normal, False, True))

    # Trees that vote for one class each, as boosting makes them.
    def boosted(classes, weight):
        parts = [attributes(rng, grow(1), "class", 1, weight, False) for _ in range(3 * classes)]
        whole = {name: [] for name in parts[0]}
        for number, part in enumerate(parts):
            for name, entries in part.items():
                fixed = {"class_ids": number % classes, "class_treeids": number, "nodes_treeids": number}.get(name)
                whole[name] += entries if fixed is None else [fixed] * len(entries)
        return whole

    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        for weight in (normal, positive):
            labels = [12, -3, 5]
            for of in (boosted(3, weight), attributes(rng, grow(6), "class", 3, weight, False, True)):
                add("TreeEnsembleClassifier", holes, outputs=2, classlabels_int64s=labels, post_transform=transform, **of)
                add("TreeEnsembleClassifier", holes, 3, 2, classlabels_int64s=labels, post_transform=transform,
                    base_values=[0.5, 0.25, 0.125], **of)
            for base in ({}, {"base_values": [0.25]}):
                of = attributes(rng, grow(6), "class", 1, weight, False)
                add("TreeEnsembleClassifier", holes, outputs=2, classlabels_int64s=[7, 9], post_transform=transform, **base, **of)
                add("TreeEnsembleClassifier", holes, outputs=2, classlabels_int64s=[7], post_transform=transform, **base, **of)
                of["class_ids"] = [1] * len(of["class_ids"])
                add("TreeEnsembleClassifier", holes, outputs=2, classlabels_int64s=[7, 9], post_transform=transform, **base, **of)
    for data, tensors in ((x.astype(np.float64), True), (x.astype(np.int64), False), (x.astype(np.int32), False)):
        of = attributes(rng, grow(6), "class", 3, normal, tensors, True)
        add("TreeEnsembleClassifier", data, 3, 2, classlabels_int64s=[1, 2, 3], **of)

    def flat(forest, dtype, targets, weight):
        """The attributes of TreeEnsemble."""
        rows, leaves, sets, roots = [], [], [], []

        def place(node):
            if node is None:
                leaves.append((int(rng.integers(targets)), weight()))
                return len(leaves) - 1, 1
            at = len(rows)
            rows.append(None)
            mode, feature, value, nan, yes, no = node
            rows[at] = [(MODES + ["BRANCH_MEMBER"]).index(mode), feature, value, nan, *place(yes), *place(no)]
            return at, 0

        for root in forest:
            root = root or (MODES[0], 0, 0.0, 0, None, None)
            roots.append(place(root)[0])
        for row in rows:
            if row[0] == 6:
                # ONNX Runtime takes integers only.
                sets += [float(member) for member in rng.integers(1, 7, rng.integers(1, 6))] + [float("nan")]
        columns = list(zip(*rows))
        array = lambda values, dtype: numpy_helper.from_array(np.array(values, dtype))
        of = dict(nodes_modes=array(columns[0], np.uint8), nodes_featureids=columns[1], nodes_splits=array(columns[2], dtype),
                  nodes_missing_value_tracks_true=columns[3], nodes_truenodeids=columns[4], nodes_trueleafs=columns[5],
                  nodes_falsenodeids=columns[6], nodes_falseleafs=columns[7], tree_roots=roots, n_targets=targets,
                  leaf_targetids=[leaf[0] for leaf in leaves], leaf_weights=array([leaf[1] for leaf in leaves], dtype))
        return of | ({"membership_values": array(sets, dtype)} if sets else {})

    for dtype in (FLOAT, np.float64):
        for aggregate in range(4):
            for targets in (1, 3):
                modes = MODES + ["BRANCH_MEMBER"] * 3
                of = flat(grow(5, modes), dtype, targets, normal)
                add("TreeEnsemble", holes.astype(dtype), 5, aggregate_function=aggregate, **of)
        # Number 1 is SOFTMAX, and 2 LOGISTIC; ONNX Runtime has them the other way round.
        add("TreeEnsemble", x.astype(dtype), 5, post_transform=3, **flat(grow(5), dtype, 3, normal))


def training(cases):
    rng = np.random.default_rng(3)
    groups = {"Adagrad": 3, "Adam": 4, "Momentum": 3}

    def add(op, at, shapes, dtype, count, **attributes):
        inputs = {"r": np.array(0.1, dtype), "t": np.array(count, np.int64)}
        for group in range(groups[op]):
            for tensor, shape in enumerate(shapes):
                # What accumulates squares is not negative.
                inputs[f"v{group}_{tensor}"] = np.abs(rng.normal(size=shape)).astype(dtype)
        outs = [f"y{number}" for number in range((groups[op] - 1) * len(shapes))]
        domain = "ai.onnx.preview.training"
        node = helper.make_node(op, list(inputs), outs, domain=domain, **attributes)
        proto = model([node], inputs, outs, 15, ml=1, domain=domain)
        wanted = [array.astype(dtype) for array in reference(proto, inputs)]
        tolerance = 1e-5 if dtype == FLOAT or op == "Adam" else 1e-7
        cases.add(f"{op}_{at}", proto, inputs, wanted=wanted, rtol=tolerance, atol=tolerance)

    at = 0
    for dtype in (FLOAT, np.float64):
        for shapes in ([(5,)], [(2, 3), (1,)]):
            for count in (0, 1, 7):
                at += 1
                common = dict(norm_coefficient=0.01)
                add("Adagrad", at, shapes, dtype, count, decay_factor=0.1, epsilon=1e-3, **common)
                add("Adam", at, shapes, dtype, count, norm_coefficient_post=0.02, **common)
                for mode in ("standard", "nesterov"):
                    at += 1
                    add("Momentum", at, shapes, dtype, count, alpha=0.9, beta=0.2, mode=mode, **common)


def main():
    folder = Path(sys.argv[1])
    cases = Cases(folder)
    {"tolerances": tolerances, "ml": ml, "training": training}[sys.argv[2]](cases)
    (folder / "index.json").write_text(json.dumps(cases.index))


main()
