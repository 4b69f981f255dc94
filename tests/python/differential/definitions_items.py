"""What operators on sequences and optionals should give, by Python's lists, and those on strings where the reference does not go by
the specification."""

import re

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

import items
import values
from case import Skip
from items import Optional, Sequence

DEFINITIONS = {}


def definition(*ops):
    def add(function):
        DEFINITIONS.update((op, function) for op in ops)
        return function
    return add


def operands(node, count=0):
    given = [value for value, _ in node.inputs]
    return given + [None] * (count - len(given))


def position(at, low, high):
    """An index from `low` to `high`, both included; others are refused."""
    at = int(np.reshape(at, ()))
    if not low <= at <= high:
        raise IndexError(f"position {at}")
    return at


@definition("SequenceEmpty")
def empty(node):
    number = node.attributes.get("dtype", 1)
    return [Sequence(values.NAMES[np.dtype(helper.tensor_dtype_to_np_dtype(number))])]


@definition("SequenceConstruct")
def construct(node):
    elements = operands(node)
    return [Sequence(items.kind_of(elements[0]), elements)]


@definition("SequenceInsert")
def insert(node):
    """"Accepted range for 'position' is in [-n, n]"; "If 'position' is not specified, 'tensor' is appended"."""
    sequence, tensor, at = operands(node, 3)
    count = len(sequence.elements)
    at = count if at is None else position(at, -count, count)
    rest = list(sequence.elements)
    rest.insert(at, tensor)
    return [Sequence(sequence.kind, rest)]


@definition("SequenceErase")
def erase(node):
    """"Accepted range for 'position' is in [-n, n - 1]"; "If 'position' is not specified, the last tensor is erased"."""
    sequence, at = operands(node, 2)
    count = len(sequence.elements)
    rest = list(sequence.elements)
    del rest[position(-1 if at is None else at, -count, count - 1)]
    return [Sequence(sequence.kind, rest)]


@definition("SequenceAt")
def at(node):
    sequence, at = operands(node)
    count = len(sequence.elements)
    return [sequence.elements[position(at, -count, count - 1)]]


@definition("SequenceLength")
def length(node):
    return [np.array(len(operands(node)[0].elements), np.int64)]


@definition("SplitToSequence")
def split(node):
    """"If the argument 'split' is not specified, a split of 1 is assumed"; "'keepdims' is ignored" where it is; a scalar gives
    "equally sized chunks", the last one smaller."""
    x, sizes = operands(node, 2)
    axis = node.attributes.get("axis", 0) % x.ndim
    total = x.shape[axis]
    if sizes is None or sizes.ndim == 0:
        size = 1 if sizes is None else int(sizes)
        if size < 1:
            raise ValueError("parts of no size")
        cuts = list(range(size, total, size))
        parts = np.split(x, cuts, axis) if total else []
        if sizes is None and not node.attributes.get("keepdims", 1):
            parts = [np.squeeze(part, axis) for part in parts]
    else:
        if (sizes < 0).any() or int(sizes.sum()) != total:
            raise ValueError("parts that are not the whole")
        parts = np.split(x, np.cumsum(sizes)[:-1], axis) if sizes.size else []
    return [Sequence(items.kind_of(x), [np.ascontiguousarray(part).reshape(part.shape) for part in parts])]


@definition("ConcatFromSequence")
def concat(node):
    (sequence,) = operands(node)
    axis = node.attributes["axis"]
    if node.attributes.get("new_axis", 0):
        return [np.stack(sequence.elements, axis)]
    return [np.concatenate(sequence.elements, axis)]


@definition("SequenceMap")
def sequence_map(node):
    """The body for the elements of all sequences at one position."""
    given, body = operands(node), node.attributes["body"]
    graph = helper.make_graph(body.node, "body", body.input, body.output, body.initializer)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)])
    runner, results = ReferenceEvaluator(model), []
    count = len(given[0].elements)
    if any(isinstance(one, Sequence) and len(one.elements) != count for one in given):
        raise ValueError("sequences of unlike lengths")
    for at in range(count):
        feeds = [one.elements[at] if isinstance(one, Sequence) else one for one in given]
        results.append(runner.run(None, {info.name: feed for info, feed in zip(body.input, feeds)}))
    kinds = [values.NAMES[np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))] for info in body.output]
    exact = lambda array, kind: np.array(array, values.DTYPES[kind])
    return [Sequence(kind, [exact(row[at], kind) for row in results]) for at, kind in enumerate(kinds)]


@definition("Cast")
def cast(node):
    """"Converting a string "100.5" to an integer may yield result 100": the whole part, also where it has an exponent. The reference
    and ONNX Runtime read less, and ONNX Runtime of "+4+4" the beginning, which is not a number."""
    (x,) = operands(node)
    to = node.out_type()
    if values.NAMES[x.dtype] == values.STRING and to in values.FLOATS:
        return [np.array([real(text) for text in x.flat], np.float64).astype(values.DTYPES[to]).reshape(x.shape)]
    if values.NAMES[x.dtype] != values.STRING or to not in values.INTEGERS:
        return None
    low, high = values.integer_range(to)
    numbers = [whole(text) for text in x.flat]
    if not all(low <= number <= high for number in numbers):
        raise ValueError("no number of the type")
    return [np.array(numbers, values.DTYPES[to]).reshape(x.shape)]


def real(text):
    """As Python reads it, but for underscores and digits of other scripts."""
    if "_" in text or not text.strip().isascii():
        raise ValueError(f"{text!r} as a number")
    return float(text.strip())


def whole(text):
    digits = text.strip()
    return int(digits) if re.fullmatch("[+-]?[0-9]+", digits) else int(real(text))


@definition("StringNormalizer")
def normalizer(node):
    """"Removes elements specified in "stopwords" attribute", and no others: the reference also drops empty texts, accents, and stop
    words inside of elements. "If all elements in X are dropped, the output will be the empty value"."""
    (x,) = operands(node)
    attributes = node.attributes
    plain = str if attributes.get("is_case_sensitive", 0) else str.lower
    stops = {plain(word) for word in attributes.get("stopwords", [])}
    change = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}[attributes.get("case_change_action", "NONE")]
    if x.ndim not in (1, 2) or x.ndim == 2 and x.shape[0] != 1:
        raise ValueError("no row of texts")
    kept = [change(text) for text in x.flat if plain(text) not in stops] or [""]
    return [np.array(kept, object).reshape((1,) * (x.ndim - 1) + (len(kept),))]


@definition("StringSplit")
def string_split(node):
    """"Consecutive delimiters are not grouped together and are deemed to delimit empty strings", so that an empty text is one part. The
    reference fails at scalars, in whose place ONNX Runtime has no part."""
    (x,) = operands(node)
    delimiter, most = node.attributes.get("delimiter") or None, node.attributes.get("maxsplit", -1)
    parts = [text.split(delimiter, most) for text in x.flat]
    width = max(map(len, parts), default=0)
    table = np.full((len(parts), width), "", object)
    for row, own in zip(table, parts):
        row[:len(own)] = own
    return [table.reshape((*x.shape, width)), np.array([len(own) for own in parts], np.int64).reshape(x.shape)]


#: Classes of RE2 and what they are to Python, whose own have letters of all languages.
CLASSES = {r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\s": r"[\t\n\f\r ]", r"\S": r"[^\t\n\f\r ]"}


@definition("RegexFullMatch")
def full_match(node):
    """"RE2 regex syntax is used"."""
    (x,) = operands(node)
    pattern = node.attributes["pattern"]
    for name, meaning in CLASSES.items():
        pattern = pattern.replace(name, meaning)
    return [np.array([re.fullmatch(pattern, text) is not None for text in x.flat], bool).reshape(x.shape)]


@definition("Optional")
def optional(node):
    element, = operands(node, 1)
    return [Optional(items.empty_like(element), element) if element is not None else Optional(items.of_type(node.attributes["type"]))]


@definition("OptionalHasElement")
def has_element(node):
    """Since version 18 a value is its own element, and nothing at all has none."""
    given, = operands(node, 1)
    return [np.array(given.element is not None if isinstance(given, Optional) else given is not None)]


@definition("OptionalGetElement")
def get_element(node):
    given, = operands(node)
    if isinstance(given, Optional) and given.element is None:
        raise ValueError("there is no element")
    return [given.element if isinstance(given, Optional) else given]
