"""Recipes of operators that work element by element."""

import numpy as np
from onnx import TensorProto

import values
from case import Skip

RECIPES = {}


def recipe(*names):
    def add(function):
        RECIPES.update((name, function) for name in names)
        return function
    return add


#: Ranges of operands; outside them a result is NaN, or not worth much.
DOMAINS = {
    "Acos": (-1, 1), "Asin": (-1, 1), "Atanh": (-0.99, 0.99), "Acosh": (1, 9), "Log": (0.01, 9), "Sqrt": (0, 9),
    "Sin": (-9, 9), "Cos": (-9, 9), "Tan": (-1.5, 1.5), "Round": (-9, 9), "Erf": (-4, 4),
}


@recipe(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "HardSwish",
    "Identity", "IsNaN", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "BitwiseNot",
)
def unary(n):
    low, high = DOMAINS.get(n.op, (-5, 5))
    n.main(low=low, high=high)
    n.ulps = 8
    if n.op in ("Mish", "Softplus", "HardSwish"):
        n.scale_ulps = 2


@recipe("IsInf")
def is_inf(n):
    n.main()
    n.maybe("detect_negative", n.integer(0, 1))
    n.maybe("detect_positive", n.integer(0, 1))


@recipe("Celu", "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Swish", "Gelu")
def activation(n):
    # Integers that overflow by the bias have no defined result.
    n.main(edge=n.edge if n.type() in values.FLOATS else 0)
    for name in ("alpha", "beta", "gamma", "lambd", "bias"):
        n.maybe(name, float(np.float32(n.rng.uniform(0.1, 2.0))))
    n.maybe("approximate", n.pick("none", "tanh"))
    n.ulps, n.scale_ulps = 16, 4


@recipe("PRelu")
def prelu(n):
    x = n.main(low_rank=1)
    if n.since >= 7:
        n.data(values.broadcastable(n.rng, x.shape)[-x.ndim:])
    else:
        n.data((x.shape[1],) if x.ndim > 1 and n.chance(0.7) else (1,))


def operands(n, **options):
    if n.given is None:
        left, right = values.broadcast_shapes(n.rng, 2)
        n.data(left, at=0, **options)
    else:
        n.main()
        right = values.broadcastable(n.rng, n.given.shape)
    n.data(right, **options)


@recipe("Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual",
        "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div")
def binary(n):
    n.ulps = 2
    options = {}
    if n.op in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        options = {"low": -2, "high": 2}
    if n.has("broadcast"):
        legacy_operands(n)
    else:
        operands(n, **options)
    if n.op == "Div" and n.type() in values.INTEGERS:
        no_zero(n, 1)


def no_zero(n, at):
    """Integer division by zero is undefined, as is MIN / -1."""
    array, constant = n.inputs[at]
    array = np.where(array == 0, np.ones((), array.dtype), array)
    if n.type() in values.SIGNED:
        least = n.inputs[0][0] == np.array(values.integer_range(n.type())[0], n.dtype())
        if least.any():
            array = np.where(array == np.array(-1, array.dtype), np.ones((), array.dtype), array)
    n.inputs[at] = (array.astype(n.dtype(at)), constant)


def legacy_operands(n):
    """Before opset 7: the second operand's axes are those of the first from `axis` on."""
    x = n.main()
    if n.chance(0.4):
        return n.data(x.shape)
    n.attr("broadcast", 1)
    if x.ndim == 0:
        return n.data(())
    first = n.integer(0, x.ndim)
    last = n.integer(first, x.ndim)
    if last < x.ndim or n.chance(0.3):
        n.attr("axis", min(first, x.ndim - 1))
        first = min(first, x.ndim - 1)
        last = max(last, first)
    return n.data(x.shape[first:last])


@recipe("Pow")
def power(n):
    n.ulps = 8
    if n.type() in values.INTEGERS or n.type(1) in values.INTEGERS:
        # A negative exponent of an integer has no defined result.
        # Nor has a root of a negative one.
        operands_of_power(n, -4 if n.type(1) in values.INTEGERS else 0, 4, 0, 3)
    else:
        operands_of_power(n, 0.1, 4, -2, 3)


def operands_of_power(n, low, high, least, most):
    if n.has("broadcast"):
        x = n.main(low=low, high=high, edge=0)
        n.data(x.shape, least, most, edge=0)
        return
    left, right = values.broadcast_shapes(n.rng, 2)
    n.shaped(left, low=low, high=high, edge=0)
    n.data(right, least, most, edge=0)


@recipe("Mod")
def mod(n):
    if n.type() in values.FLOATS or n.chance(0.4):
        n.attr("fmod", 1)
    operands(n, low=-20, high=20)
    if n.type() in values.INTEGERS:
        no_zero(n, 1)


@recipe("BitShift")
def bit_shift(n):
    n.attr("direction", n.pick("LEFT", "RIGHT"))
    left, right = values.broadcast_shapes(n.rng, 2)
    n.shaped(left, low=0, high=200)
    # A count of the width or more is undefined.
    n.data(right, 0, values.integer_range(n.type())[1].bit_length() - 1, edge=0)


@recipe("Max", "Min", "Mean", "Sum")
def variadic(n):
    count = n.integer(1, 4)
    if n.since >= 8:
        if n.given is None:
            shapes = values.broadcast_shapes(n.rng, count)
        else:
            shapes = [n.given.shape] + [values.broadcastable(n.rng, n.given.shape) for _ in range(count - 1)]
    else:
        shapes = [n.given.shape if n.given is not None else n.shape()] * count
    n.add(n.given) if n.given is not None else n.data(shapes[0], at=0)
    for dims in shapes[1:]:
        n.data(dims, at=0)
    n.ulps, n.scale_ulps = 8, 4


@recipe("Where")
def where(n):
    condition, left, right = values.broadcast_shapes(n.rng, 3)
    n.shaped(condition)
    n.data(left)
    n.data(right)


@recipe("Clip")
def clip(n):
    n.main()
    low, high = sorted(n.rng.uniform(-2, 2, 2))
    if n.has("min"):
        n.maybe("min", float(np.float32(low)))
        n.maybe("max", float(np.float32(high)))
        return
    if n.chance(0.7):
        n.add(values.draw(n.rng, n.type(), (), low, low))
    elif n.chance(0.5):
        n.omit()
    else:
        return
    if n.chance(0.7):
        n.add(values.draw(n.rng, n.type(), (), high, high))


@recipe("Cast", "CastLike")
def cast(n):
    to = n.out_type()
    source, edge = n.type(), n.edge
    low, high = -20, 20
    if to in values.UNSIGNED | values.SIGNED and source not in values.INTEGERS | {"bool"}:
        # Out of range is undefined, which NaN and infinity are too.
        least, most = values.integer_range(to)
        low, high, edge = max(low, least), min(high, most), 0
    if to == "float8e8m0":
        # "x < 0: Unspecified", and so is 0 but for one way of rounding. The reference makes NaN of infinity, which is
        # "E8M0_MAX" where it saturates.
        low, edge = 1, 0
    n.main(low=low, high=high, edge=edge)
    if n.op == "Cast":
        number = getattr(TensorProto, to.upper())
        n.attr("to", to.upper() if n.since == 1 else number)
    else:
        n.data(n.shape(0, 2), edge=0)
    if to.startswith(("float8", "float6")) or n.chance(0.2):
        n.maybe("saturate", n.integer(0, 1))
        if to == "float8e8m0":
            n.maybe("round_mode", n.pick("up", "down", "nearest"))
    n.ulps = 0


@recipe("BitCast")
def bit_cast(n):
    to = n.out_type()
    if values.DTYPES[to].itemsize != n.dtype().itemsize:
        raise Skip("size")
    if to == "bool" and n.type() not in ("uint8", "int8", "bool"):
        raise Skip("more than 0 and 1")
    small = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4e2m1": 4}
    if small.get(to) != small.get(n.type()):
        raise Skip("size")
    n.attr("to", getattr(TensorProto, to.upper()))
    # A bool is 0 or 1.
    n.main(edge=0, low=0 if to == "bool" else -20, high=1 if to == "bool" else 20)
    n.ulps = 0


@recipe("Dropout")
def dropout(n):
    n.main()
    if n.has("is_test"):
        n.attr("is_test", 1)
    n.maybe("ratio", 0.25)
    n.maybe("seed", 3)
    if n.since >= 12 and n.chance(0.5):
        n.add(np.array(0.3).astype(n.dtype(1)))
        if n.chance(0.5):
            n.add(np.array(False), 1.0)
    # What an older version's mask is without training, the specification leaves open.
    n.outputs = n.integer(1, 2) if n.since >= 12 else 1
