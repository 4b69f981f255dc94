"""Writes what Python and numpy make of texts and numbers, for the test in lists.rs: `python python.py [COUNT [SEED]]`.

A line is the name of a function, its arguments and its result. Texts and elements are in hexadecimal."""

import random
import re
import struct
import sys
import unicodedata

import numpy as np

count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)


def text(value):
    return value.encode().hex() or "-"


def line(*words):
    print(*words)


def format_all(dtype, number, values):
    values = np.asarray(values, dtype)
    for value, result in zip(values, values.astype(np.str_)):
        line("format", number, value.tobytes().hex(), text(str(result)))


floats = [0.0, -0.0, 1.0, -1.5, 0.1, 1e-4, 9.999e-5, 1e-5, 123456.0, 1e6, 999999.94, 1e15, 1e16, 9999999999999998.0, 1e22, 1e23]
floats += [float("nan"), float("inf"), float("-inf"), 2.0**-24, 2.0**-149, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
floats += [2.0**power for power in range(-30, 60, 1 if count > 1000 else 7)] + [10.0**power for power in range(-20, 25, 1 if count > 1000 else 4)]
with np.errstate(all="ignore"):
    for dtype, number, bits in (np.float64, 11, np.uint64), (np.float32, 1, np.uint32), (np.float16, 10, np.uint16):
        format_all(dtype, number, floats)
        top = 1 << (8 * np.dtype(bits).itemsize)
        patterns = range(top) if top <= count else [random.randrange(top) for _ in range(count)]
        format_all(dtype, number, np.array(list(patterns), bits).view(dtype))
        format_all(dtype, number, [random.uniform(-1, 1) * 10 ** random.uniform(-7, 20) for _ in range(count)])
for dtype, number in (np.uint8, 2), (np.int8, 3), (np.uint16, 4), (np.int16, 5), (np.int32, 6), (np.int64, 7), (np.uint32, 12), (np.uint64, 13):
    info = np.iinfo(dtype)
    format_all(dtype, number, [info.min, info.max, 0, 1] + [random.randint(int(info.min), int(info.max)) for _ in range(count // 10)])
format_all(np.bool_, 9, [False, True])


def parse(dtype, number, value):
    try:
        with np.errstate(all="ignore"):
            result = np.array([value]).astype(dtype).tobytes().hex()
    except (ValueError, OverflowError):
        result = "bad"
    line("parse", number, text(value), result)


for _ in range(count):
    digits = "".join(random.choice("0123456789") for _ in range(random.randint(0, 25)))
    at = random.randint(0, len(digits))
    value = random.choice(["", "+", "-"]) + digits[:at] + random.choice(["", ".", "."]) + digits[at:]
    value += random.choice(["", "", "e", "E"]) + random.choice(["", "", "-", "+"]) + random.choice(["", "7", "20", "308", "012"])
    value = random.choice(["", " ", "\t\u3000"]) + value + random.choice(["", "\n", "  "])
    parse(np.float64, 11, value)
    value = str(random.randint(-(2 ** random.randint(1, 70)), 2 ** random.randint(1, 70)))
    for dtype, number in (np.int8, 3), (np.uint8, 2), (np.int32, 6), (np.int64, 7), (np.uint64, 13):
        parse(dtype, number, value)
for value in "inf", "-INF", "+Infinity", "NaN", "", ".", "e", "1e", "0x1", "1 2", "i", "nano", "1.e1", ".e1":
    parse(np.float64, 11, value)

# Letters that this Python knows, but for those whose case changed later.
letters = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
changing = [letter for letter in letters if letter.lower() != letter or letter.upper() != letter]
later = set("\u019b\u0264\ua7d3\ua7d5")
some = "aZ\u03a3\u03a3\u03a3.'\u00b7\u0301\u00ad 1\u00df\u0130\u0149\ufb03\u1f88\u01c5"
for _ in range(count):
    value = "".join(random.choice(random.choice((letters, changing, some))) for _ in range(random.randint(0, 12)))
    if not later & set(value):
        line("case", 1, text(value), text(value.lower()))
        line("case", 2, text(value), text(value.upper()))
if count > 1000:
    for letter in letters:
        if letter not in later:
            line("case", 1, text(letter), text(letter.lower()))
            line("case", 2, text(letter), text(letter.upper()))

pieces = "ab, \t\u3000\u00a0\u00e9"
for _ in range(count):
    value = "".join(random.choice(pieces) for _ in range(random.randint(0, 12)))
    delimiter = "".join(random.choice(pieces) for _ in range(random.choice((0, 1, 1, 2))))
    most = random.randint(-2, 4)
    result = value.split(delimiter or None, most)
    line("split", text(value), text(delimiter), most, ",".join(map(text, result)) or "none")


def pattern(depth):
    if depth == 0:
        return random.choice([*"abc.", "\u00e9", r"\d", r"\W", r"\s", "[a-c]", "[^a\u00e9]", r"[\w-]", "^", "$", r"\b", r"\B", r"\.", ""])
    inner = pattern(depth - 1)
    kind = random.randrange(6)
    if kind == 0:
        return inner + "|" + pattern(depth - 1)
    if kind == 1:
        repeat = random.choice(["*", "+", "?", "{2}", "{1,}", "{0,3}", "*?", "+?"])
        return "(?:" + inner + ")" + repeat
    if kind == 2:
        return "(" + inner + ")"
    if kind == 3:
        return "(?" + random.choice(["i", "s", "m", "i-s", "ims"]) + ":" + inner + ")"
    return inner + pattern(depth - 1)


for _ in range(count):
    expression = pattern(random.randint(0, 4))
    compiled = re.compile(expression, re.ASCII)
    for _ in range(4):
        value = "".join(random.choice("aabBcC\u00e9 \n1.-") for _ in range(random.randint(0, 6)))
        # There, $ also matches before a last line feed, \B not in the empty text, and only ASCII is folded.
        if (value or "\\B" not in expression) and not value.endswith("\n") and not ("(?i" in expression and "\u00e9" in value):
            line("match", text(expression), text(value), int(compiled.fullmatch(value) is not None))
