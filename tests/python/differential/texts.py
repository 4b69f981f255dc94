"""Recipes of operators on strings."""

import numpy as np
from onnx import TensorProto

import elementwise
import values
from case import Skip

RECIPES = {}


def recipe(*names):
    def add(function):
        RECIPES.update((name, function) for name in names)
        return function
    return add


@recipe("StringConcat")
def concat(n):
    elementwise.operands(n)


@recipe("StringSplit")
def split(n):
    n.main(high_rank=3)
    n.maybe("delimiter", n.pick("", "", " ", ",", "a", "b ", "\u00fc", "ss", "bytes", "\U0001f600"))
    n.maybe("maxsplit", n.integer(0, 3), 0.4)
    n.outputs = 2


@recipe("StringNormalizer")
def normalizer(n):
    if n.given is not None:
        if n.given.ndim not in (1, 2) or n.given.ndim == 2 and n.given.shape[0] != 1 or not n.given.size:
            raise Skip("shape")
        n.add(n.given)
    else:
        n.shaped((n.integer(1, 9),) if n.chance(0.6) else (1, n.integer(1, 7)))
    n.maybe("case_change_action", n.pick("LOWER", "UPPER", "NONE"), 0.8)
    n.maybe("is_case_sensitive", n.integer(0, 1))
    if n.chance(0.5):
        n.attr("stopwords", [str(word) for word in dict.fromkeys(values.texts(n.rng, values.WORDS, n.integer(1, 4)))])


#: Of the syntax of RE2, which has no references back and looks nowhere but where it is.
PATTERNS = (
    "[0-9]+", "[a-z ]*", "a?b*", "(a|ab)(c|bcd)?", ".*", ".", "", "\\w+", "\\s*[a-z]+\\s*", "[^a]*", "\u00fc|\u1e9e", "more than .* byte[sS]",
    "(?i)ab|stra\u00dfe", "[a-c]{1,3}", "(a|b|,)+", "\\d+[eE]?\\d*", "-?\\d{1,2}", "\\S{16,}", ".{2}", "[\u00e0-\u00ff]", "(?s).*b\n?",
)


@recipe("RegexFullMatch")
def match(n):
    n.main(high_rank=3)
    n.attr("pattern", n.pick(*PATTERNS))


@recipe("Cast")
def cast(n):
    """From strings that are numbers; else as of numbers."""
    if n.type() != values.STRING:
        return elementwise.RECIPES["Cast"](n)
    to = n.out_type()
    # What texts are true is not said.
    if to not in values.FLOATS | values.INTEGERS | {values.STRING} or to.endswith(("int4", "int2")):
        raise Skip("type")
    words = values.REALS if to in values.FLOATS else values.NUMERALS
    if n.given is not None:
        n.add(n.given)
    else:
        n.add(values.texts(n.rng, words, n.shape(0, 3)))
    n.attr("to", getattr(TensorProto, to.upper()))
    n.ulps = 0


@recipe("ai.onnx.ml.LabelEncoder")
def labels(n):
    """Strings, integers or floats for strings, or strings for integers."""
    pairs = [("string", "int64"), ("string", "string"), ("int64", "string"), ("string", "float")]
    pairs = [pair for pair in pairs if n.given is None or pair[0] == values.NAMES[n.given.dtype]]
    if not pairs:
        raise Skip("type")
    source, to = n.pick(*pairs)
    n.types["T1"], n.types["T2"] = source, to
    n.main(high_rank=3, low=-3, high=9, edge=0)
    count = n.integer(1, 6)
    keys = list(dict.fromkeys(values.WORDS)) if source == "string" else list(range(-3, 10))
    keys = [keys[int(at)] for at in n.rng.permutation(len(keys))[:count]]
    made = {"int64": lambda: n.integer(-5, 9), "string": lambda: n.pick(*values.WORDS), "float": lambda: n.integer(-8, 8) / 4}[to]
    suffix = {"int64": "int64s", "string": "strings", "float": "floats"}
    n.attr(f"keys_{suffix[source]}", keys)
    n.attr(f"values_{suffix[to]}", [made() for _ in keys])
    if n.chance(0.5):
        n.attr({"int64": "default_int64", "string": "default_string", "float": "default_float"}[to], made())
    n.ulps = 0


@recipe("TfIdfVectorizer")
def tf_idf(n):
    """Counts of words and of pairs of words."""
    if n.type() != values.STRING:
        raise Skip("type")
    n.attr("mode", n.pick("TF", "IDF", "TFIDF"))
    for name, value in (("min_gram_length", 1), ("max_gram_length", 2), ("max_skip_count", n.integer(0, 2))):
        n.attr(name, value)
    n.attr("ngram_counts", [0, 2])
    n.attr("ngram_indexes", [0, 1, 2, 3])
    n.attr("pool_strings", ["a", "\u00fc", "a", "b", "more than sixteen bytes", "a"])
    if n.chance(0.5):
        n.attr("weights", [0.5, 1.0, 2.0, 0.25])
    n.main(low_rank=1, high_rank=2, zeros=False)
