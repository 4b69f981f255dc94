"""Whether results are those of the oracle.

Integers, bools and everything that only moves must be equal, NaN and infinities in place. Floats may differ by rounding errors: where they
differ by more than a few units in the last place, the oracle computes the graph again and again,
with every float result of every node off by its rounding error or more, each time another way. How far an element moves is
how far one may be off; an element that becomes another whole number, NaN or infinity in one of these runs is not
compared, nor is an output whose size changes. Where the compiler need not round floats of 16 bits between nodes, see `halves`,
some of these runs round none, and some what part of the readers read. What the specification leaves open: see `freedom`.
"""

import numpy as np

import halves
import items
import values
from generate import SINGLE

#: Runs with rounding errors: first a few, and if these do not explain a difference more.
RUNS = (4, 16, 48, 144)
#: Shares of an element's movement that is allowed.
FACTOR = 4.0
#: One run per this number does not round floats of 16 bits between nodes, every other of them only those that some nodes read. Half of
#: them have no other errors, which in f32 are far less than those of 16 bits.
WIDE_EVERY = 4


def is_float(array):
    return not items.is_other(array) and values.epsilon(values.NAMES[array.dtype]) > 0


def wide(array):
    """As f64, complex numbers as pairs."""
    if np.iscomplexobj(array):
        return np.ascontiguousarray(array).view(np.float64 if array.dtype == np.complex128 else np.float32).astype(np.float64)
    return array.astype(np.float64)


def unit(vertex, result):
    """Rounding error of a node's result, relative."""
    epsilon = values.epsilon(values.NAMES[result.dtype])
    kinds = [values.NAMES[array.dtype] for array, _ in vertex.node.inputs if array is not None]
    narrow = vertex.op in SINGLE or any(kind in values.FLOATS - {"double"} for kind in kinds)
    return max(epsilon, 2.0**-23) if narrow else epsilon


#: Nodes that give an operand unchanged.
MOVES = set(
    "Identity Transpose Reshape Flatten Squeeze Unsqueeze Expand Concat Slice Gather Split Tile DepthToSpace SpaceToDepth "
    "Trilu GatherElements GatherND ReverseSequence Pad Compress Where Max Min Abs Neg Relu ReduceMax ReduceMin MaxPool "
    "GlobalMaxPool Floor Ceil Round Sign TopK Unique Constant ConstantOfShape EyeLike ScatterElements ScatterND Clip "
    "SequenceAt ConcatFromSequence OptionalGetElement".split()
)


#: Nodes that choose one of several numbers, as the greatest: of 0 and -0, which are equal, it may be either.
CHOICES = set("Max Min Relu Clip Celu ReduceMax ReduceMin MaxPool GlobalMaxPool".split())


def moves(vertex):
    """Whether a node's results are elements of its operands, unchanged."""
    return vertex.op in MOVES and vertex.node.attributes.get("reduction", "none") == "none"


def sloped(vertex):
    return vertex.node.attributes.get("alpha", 0.2)


#: Operators whose formula has a sum that cancels for some operands below zero, and how large its terms are, as a factor of the operand:
#: of 1 and nearly -1 in a GELU; of a multiple of the operand and a constant.
CANCELLING = {"HardSigmoid": sloped} | {
    op: lambda _: 1.0 for op in ("Gelu", "com.microsoft.Gelu", "com.microsoft.FastGelu", "HardSwish")}
#: The ones among them whose results are cut off at exactly 0.
CUT = {"HardSwish", "HardSigmoid"}
#: Operators that multiply their operand by a number of its type, which may be subnormal and is then a multiple of the least one.
GATED = {"Mish", "Swish", "com.microsoft.QuickGelu"}
#: Operators whose results are 0 where they would be subnormal, in f32 and what is computed in it.
FLUSHED = {"Sigmoid"}


#: What divides by how much its operand varies: where that is little, rounding errors of the mean decide.
NORMALIZATIONS = set(
    "MeanVarianceNormalization LayerNormalization InstanceNormalization GroupNormalization LpNormalization "
    "RMSNormalization BatchNormalization com.microsoft.SkipLayerNormalization".split()
)
#: Sums, whose terms may cancel each other in one order and not in another.
SUMS = set(
    "GlobalAveragePool AveragePool ReduceSum ReduceLogSum ReduceLogSumExp ReduceMean CumSum Sum Mean Einsum MatMul Gemm Conv "
    "ConvTranspose NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss".split()
)


def is_sum(vertex):
    interpolates = vertex.op in ("Resize", "Upsample") and vertex.node.attributes.get("mode", "nearest") != "nearest"
    return vertex.op in SUMS or interpolates


def unsteady(vertex, arrays, rng):
    """Operands of a sum or a normalization off by a rounding error, as its own sums are; others as they are."""
    names = vertex.inputs[:1] if vertex.op in NORMALIZATIONS or is_sum(vertex) else []
    names = vertex.inputs if vertex.op in ("Sum", "Mean") else names
    moved = dict(arrays)
    for name in dict.fromkeys(name for name in names if name and is_float(arrays[name])):
        exact = wide(arrays[name])
        off = exact * (1 + values.epsilon(values.NAMES[arrays[name].dtype]) * rng.uniform(-1, 1, exact.shape))
        moved[name] = narrow(off, arrays[name])
    return moved


def least_sum(vertex, epsilon):
    """A sum of a lesser magnitude may be 0: it is less than the rounding error of its largest term."""
    given = vertex.node.inputs if vertex.op in ("Sum", "Mean") else vertex.node.inputs[:1]
    terms = [np.abs(wide(array)) for array, _ in given if array is not None and is_float(array)]
    return epsilon * max((array[np.isfinite(array)].max(initial=0.0) for array in terms), default=0.0)


def cancelling_terms(vertex):
    """Magnitudes of the terms. An infinite one counts as 0: it has no rounding error, nor is one known where it is finite in f32."""
    terms = np.abs(CANCELLING[vertex.op](vertex) * wide(vertex.node.inputs[0][0]))
    return np.where(np.isfinite(terms), terms, 0.0)


def steps(vertex, dtype):
    """The operand times the least number of its type."""
    terms = np.abs(wide(vertex.node.inputs[0][0]))
    name = values.NAMES[dtype]
    return np.where(np.isfinite(terms), terms, 0.0) * values.smallest_normal(name) * values.epsilon(name)


def singular(vertex, exact, epsilon):
    """Determinants that are less than rounding errors of their terms (Hadamard's bound): they may be 0, of either sign."""
    matrices = wide(vertex.node.inputs[0][0])
    with np.errstate(all="ignore"):
        bound = np.prod(np.linalg.norm(matrices, axis=-1), axis=-1)
    return np.abs(exact) <= matrices.shape[-1] * epsilon * bound


def may_vanish(vertex, exact, epsilon):
    """Which results may be 0: less than a rounding error of what they are a sum of, by f32 at the coarsest in a formula that cancels."""
    if is_sum(vertex):
        return np.abs(exact) < least_sum(vertex, epsilon)
    if vertex.op == "Det":
        return singular(vertex, exact, epsilon)
    if vertex.op in CANCELLING:
        return np.abs(exact) < min(epsilon, 2.0**-23) * cancelling_terms(vertex)
    return np.zeros(exact.shape, bool)


def shaken(vertex, results, rng, share):
    """Results off by a share of what rounding errors may be."""
    moved = []
    for result in results:
        if is_float(result) and vertex.op in CHOICES:
            result = np.where((result == 0) & (rng.random(result.shape) < 0.5), -result, result)
        if not is_float(result) or moves(vertex) or result.size == 0:
            moved.append(result)
            continue
        epsilon, exact = unit(vertex, result), wide(result)
        finite = exact[np.isfinite(exact)]
        largest = np.abs(finite).max(initial=vertex.node.magnitude) if vertex.node.scale_ulps else 0.0
        error = (vertex.node.ulps + 1) * epsilon * np.abs(exact) + vertex.node.scale_ulps * epsilon * largest
        if vertex.op in CANCELLING:
            error = error + np.where((exact == 0) & (vertex.op in CUT), 0.0, epsilon * cancelling_terms(vertex))
        if vertex.op in GATED:
            error = error + steps(vertex, result.dtype)
        off = exact + share * error * rng.choice([-1.0, 1.0], exact.shape) * rng.uniform(0.5, 1.0, exact.shape)
        # No share of an infinite result is an error.
        off = np.where(np.isfinite(exact), off, exact)
        if share and (vanishing := may_vanish(vertex, exact, epsilon)).any():
            zero = rng.choice([-0.0, 0.0], off.shape) if vertex.op == "Det" else 0.0
            off = np.where(vanishing & (rng.random(off.shape) < 0.5), zero, off)
        if vertex.op in FLUSHED and values.NAMES[result.dtype] in ("float", "bfloat16"):
            least = values.smallest_normal("float")
            off = np.where((np.abs(off) < least) & (rng.random(off.shape) < 0.5), 0.0, off)
        if vertex.op in CHOICES:
            off = np.where(exact == 0, exact, off)
        moved.append(narrow(off, result))
    return moved


def narrow(exact, like):
    """f64 as elements like these."""
    with np.errstate(all="ignore"):
        if np.iscomplexobj(like):
            return np.ascontiguousarray(exact).view(np.complex128).astype(like.dtype).reshape(like.shape)
        return exact.astype(like.dtype).reshape(like.shape)


class Judge:
    """What may be said of results for one set of inputs; `wide` if floats of 16 bits need not be rounded between nodes."""

    def __init__(self, case, set_, wide=False):
        self.case, self.set, self.wide = case, set_, wide
        self.runs = []

    def difference(self, name, got):
        """How a result differs from what the oracle gives, or an empty text."""
        wanted = self.set.arrays.get(name)
        if wanted is None:
            return ""
        if not items.is_other(wanted):
            return self.part(name, lambda value: value, got, wanted)
        text = items.unlike(got, wanted)
        for at, parts in enumerate(zip(items.tensors(got), items.tensors(wanted)) if not text else ()):
            text = self.part(name, lambda value: dict(enumerate(items.tensors(value))).get(at), *parts)
            if text:
                return f"element {at} {text}"
        return text

    def part(self, name, pick, got, wanted):
        """The same of a dense tensor that `pick` gives of a value."""
        if got.dtype != wanted.dtype:
            return f"is {got.dtype}, not {wanted.dtype}"
        if got.shape == wanted.shape and same(got, wanted):
            return ""
        for count in RUNS:
            self.shake(count)
            others = [pick(run[name]) if name in run else None for run in self.runs]
            if any(other is None or other.shape != wanted.shape for other in others):
                return ""
            if got.shape != wanted.shape:
                text = f"has shape {list(got.shape)}, not {list(wanted.shape)}"
                continue
            text = beyond(got, wanted, others, self.case.graph, name)
            if not text:
                return ""
        return text

    def shake(self, count):
        for at in range(len(self.runs), count):
            rng = np.random.default_rng([at, 77])
            # Small errors, too: they make equal what is nearly.
            share = (1.0, 0.15, 0.03)[at % 3]
            kind, rest = divmod(at, WIDE_EVERY)
            wide = self.wide and rest == WIDE_EVERY - 1
            share = 0.0 if wide and kind % 4 < 2 else share

            def before(vertex, arrays):
                if wide and kind % 2:
                    arrays = halves.some_rounded(vertex, arrays, self.set.arrays, rng)
                return unsteady(vertex, arrays, rng) if share else arrays

            # What is open where operands are a little off, such as the scale of zeros alone, is not compared.
            opened = set()
            run = self.case.evaluate(
                self.set.leaves, lambda vertex, results: shaken(vertex, results, rng, share), before, opened=opened, wide=wide)
            run = {name: value for name, value in run.items() if name not in opened}
            self.runs.append(halves.rounded(run, self.set.arrays))


def same(got, wanted):
    """Equal, or by no more than a few units in the last place."""
    if not is_float(wanted):
        return bool(np.array_equal(got, wanted))
    a, b = wide(got), wide(wanted)
    epsilon = values.epsilon(values.NAMES[wanted.dtype])
    with np.errstate(all="ignore"):
        near = (a == b) | (np.isnan(a) & np.isnan(b)) | np.isfinite(b) & (np.abs(a - b) <= 4 * epsilon * np.abs(b))
    return bool(near.all())


#: Results smaller than this may be 0: subnormal numbers.
TINY = {"float": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24, "complex64": 2.0**-126}


def beyond(got, wanted, others, graph, name):
    """Where a result differs by more than rounding errors explain."""
    if not is_float(wanted):
        steady = np.ones(wanted.shape, bool)
        for other in others:
            steady &= np.asarray(other == wanted)
        wrong = steady & np.asarray(got != wanted)
        return place(wrong, got, wanted) if wrong.any() else ""
    a, b = wide(got), wide(wanted)
    spread, steady = np.zeros(b.shape), np.ones(b.shape, bool)
    with np.errstate(all="ignore"):
        for other in others:
            c = wide(other)
            steady &= (np.isfinite(c) & np.isfinite(b)) | (c == b) | (np.isnan(c) & np.isnan(b))
            spread = np.fmax(spread, np.where(np.isfinite(c - b), np.abs(c - b), 0))
        epsilon = values.epsilon(values.NAMES[wanted.dtype])
        allowed = FACTOR * spread + 8 * epsilon * np.abs(b) + 2 * TINY.get(values.NAMES[wanted.dtype], 0.0)
        finite = spread[np.isfinite(b)]
        # An element that moved in none of the few runs is off as others are.
        allowed += FACTOR * (np.median(finite) if finite.size else 0)
        # Of an infinite result no tolerance is a share.
        near = (a == b) | (np.isnan(a) & np.isnan(b)) | np.isfinite(b) & (np.abs(a - b) <= allowed)
    wrong = steady & ~near
    return place(wrong, a, b) if wrong.any() else ""


def apart(got, wanted):
    """How results without known rounding errors differ by more than many of them."""
    pairs = zip(items.tensors(got), items.tensors(wanted))
    return items.unlike(got, wanted) or next((text for pair in pairs if (text := tensors_apart(*pair))), "")


def tensors_apart(got, wanted):
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"is {got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if not is_float(wanted):
        wrong = np.asarray(got != wanted)
        return place(wrong, got, wanted) if wrong.any() else ""
    a, b = wide(got), wide(wanted)
    with np.errstate(all="ignore"):
        largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        allowed = 256 * values.epsilon(values.NAMES[wanted.dtype]) * largest
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed))
    return place(wrong, a, b) if wrong.any() else ""


def place(wrong, got, wanted):
    where = tuple(int(at) for at in np.argwhere(np.atleast_1d(wrong))[0])
    pick = lambda array: np.atleast_1d(array)[where]
    return f"is {pick(got)!r}, not {pick(wanted)!r} at {list(where)} ({int(wrong.sum())} of {wrong.size} elements)"
