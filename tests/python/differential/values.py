"""Random shapes and element values for generated models."""

import numpy as np
from onnx import TensorProto, helper

#: Names of element types as schemas spell them, with their NumPy types.
DTYPES = {
    name: np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name.upper())))
    for name in (
        "float double float16 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0 float6e2m3 "
        "float6e3m2 float4e2m1 int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64 bool complex64 complex128"
    ).split()
}
#: Types of numbers. Strings are objects, as NumPy's own have one width for all.
DENSE = set(DTYPES)
STRING = "string"
DTYPES[STRING] = np.dtype(object)
NAMES = {dtype: name for name, dtype in DTYPES.items()}

FLOATS = {"float", "double", "float16", "bfloat16"}
HALVES = {"float16", "bfloat16"}
#: Types that came after the cases of the seeds before them had been named.
NEW = {"float6e2m3", "float6e3m2"}
SMALL_FLOATS = {"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0", "float4e2m1"} | NEW
COMPLEX = {"complex64", "complex128"}
SIGNED = {"int2", "int4", "int8", "int16", "int32", "int64"}
UNSIGNED = {"uint2", "uint4", "uint8", "uint16", "uint32", "uint64"}
INTEGERS = SIGNED | UNSIGNED


def integer_range(name):
    """Least and greatest value of an integer type."""
    bits = int(name.lstrip("uint"))
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name in SIGNED else (0, (1 << bits) - 1)


def epsilon(name):
    """Distance of 1 and the next number of a float type, or that of a complex number's parts."""
    return {
        "float": 2.0**-23, "complex64": 2.0**-23, "double": 2.0**-52, "complex128": 2.0**-52, "float16": 2.0**-10,
        "bfloat16": 2.0**-7, "float8e4m3fn": 2.0**-3, "float8e4m3fnuz": 2.0**-3, "float8e5m2": 2.0**-2,
        "float8e5m2fnuz": 2.0**-2, "float8e8m0": 1.0, "float4e2m1": 0.5,
        "float6e2m3": 2.0**-3, "float6e3m2": 2.0**-2,
    }.get(name, 0.0)


def smallest_normal(name):
    """Least positive number of a float type that has all its digits."""
    return {"float": 2.0**-126, "bfloat16": 2.0**-126, "double": 2.0**-1022, "float16": 2.0**-14}[name]


def dim(rng, zeros=True):
    kind = rng.random()
    if zeros and kind < 0.03:
        return 0
    if kind < 0.15:
        return 1
    if kind > 0.93:
        return int(rng.integers(8, 40))
    return int(rng.integers(2, 6))


#: Where a graph is drawn: gives a preferred shape of this rank, or None.
PALETTE = None


def shape(rng, low=0, high=5, zeros=True):
    """A shape of `low` to `high` axes and not many elements."""
    preferred = PALETTE(low, high) if PALETTE else None
    if preferred is not None and (zeros or 0 not in preferred):
        return tuple(preferred)
    rank = int(rng.integers(low, high + 1))
    while True:
        dims = [dim(rng, zeros) for _ in range(rank)]
        if int(np.prod(dims)) <= 4096:
            return tuple(dims)


def broadcastable(rng, to):
    """A shape that broadcasts to `to`: leading axes left out, others of size 1."""
    dims = [1 if rng.random() < 0.3 else size for size in to]
    return tuple(dims[int(rng.integers(0, len(dims) + 1)):]) if rng.random() < 0.4 else tuple(dims)


def broadcast_shapes(rng, count, low=0, high=4):
    """Shapes that broadcast against each other."""
    common = shape(rng, low, high)
    return [broadcastable(rng, common) for _ in range(count)]


def float_edges(name):
    wide = DTYPES[name]
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-3, 100.0, -100.0, 1e5, -1e5]
    if name in FLOATS:
        largest = {"float": 3.4028234e38, "double": 1.7976931348623157e308, "float16": 65504.0, "bfloat16": 3.3895e38}
        tiny = {"float": 1e-40, "double": 5e-310, "float16": 1e-7, "bfloat16": 1e-40}
        values += [np.nan, np.inf, -np.inf, largest[name], -largest[name], tiny[name], -tiny[name]]
    elif name.startswith("float8e4m3") or name.startswith("float8e5m2"):
        values += [np.nan, 240.0, -240.0, 2.0**-9]
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(wide)


#: Texts that differ in what code for strings looks at: no bytes, more than fit beside a length, letters of several bytes, with
#: a mark of their own, without a small or capital letter of one character, white space and what delimits.
WORDS = (
    "", "", "a", "b", "a", "ab", "abc", "a b", " a  b ", "a,b", ",", "a,,b,", "Ab", "AB", "\u00fc", "u\u0308", "\u1e9e", "\u00df", "Stra\u00dfe",
    "\u0130", "\u03a3\u0391\u03a3", "\ufb01n", "\U0001f600", "\U0001f469\u200d\U0001f4bb b", "\u65e5\u672c", "a\u00a0b", "a\tb\n",
    "sixteen bytes...", "more than sixteen bytes", "more than sixteen byteS", "more than sixteen bytes, with \u00fc and more",
    "12", "0", "-7", "3", "1e3", "nan", "True", "a1", "x2y3", "#",
)
#: Texts that Cast reads as numbers of every type.
NUMERALS = ("0", "1", "2", "3", "7", "12", " 5 ", "007", "+4", "1e1", "100")
#: Texts that Cast reads as floats.
REALS = NUMERALS + ("-1", "0.5", "-2.25", "1e-3", "3.14159", ".5", "2.", "-0", "1E+2", "nan", "inf", "-inf", "Infinity", "1e400", "16777217")


def texts(rng, words, dims):
    """A tensor of strings, at times with a few that come again and again."""
    words = [words[int(at)] for at in rng.integers(0, len(words), 4)] if rng.random() < 0.4 else words
    array = np.empty(dims, object)
    for at in np.ndindex(*array.shape):
        array[at] = words[int(rng.integers(0, len(words)))]
    return array


def zeros(name, dims):
    """Zeros, or empty strings."""
    return np.full(dims, "", object) if name == STRING else np.zeros(dims, DTYPES[name])


def draw(rng, name, dims, low=-3.0, high=3.0, edge=0.0):
    """An array of type `name`; `edge` is the share of elements that are special values."""
    dtype, count = DTYPES[name], int(np.prod(dims, dtype=np.int64))
    if name == STRING:
        return texts(rng, WORDS, dims)
    if name == "bool":
        return (rng.random(dims) < 0.5).astype(bool) if dims else np.array(rng.random() < 0.5)
    if name in INTEGERS:
        least, most = integer_range(name)
        low, high = max(least, int(np.ceil(low))), min(most, int(np.floor(high)))
        flat = [int(rng.integers(low, high + 1)) if low <= high else max(least, min(most, low)) for _ in range(count)]
        if edge:
            edges = [least, most, max(least, -1), 0, 1, most // 2 + 1]
            flat = [edges[int(rng.integers(0, 6))] if rng.random() < edge else value for value in flat]
        wide = np.uint64 if name == "uint64" else np.int64
        return np.array(flat, wide).astype(dtype).reshape(dims)
    if name in COMPLEX:
        part = "float" if name == "complex64" else "double"
        real, imaginary = (draw(rng, part, dims, low, high, edge) for _ in range(2))
        # Put together part by part: multiplying by 1j makes NaN of infinities.
        value = np.empty(dims, dtype)
        value.real, value.imag = real, imaginary
        return value
    flat = rng.uniform(low, high, count)
    if name == "float8e8m0":
        flat = np.exp2(np.round(rng.uniform(-6, 6, count)))
    flat = flat.astype(dtype)
    if edge:
        edges = float_edges(name)
        with np.errstate(all="ignore"):
            for at in range(count):
                if rng.random() < edge:
                    flat[at] = edges[int(rng.integers(0, len(edges)))]
    return flat.reshape(dims)
