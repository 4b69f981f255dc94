"""Writes what RE2 makes of random patterns, for the test in lists.rs: `python patterns.py [COUNT [SEED]]`, with google-re2.

A line is a pattern, a text and whether the text matches as a whole, or that the pattern is refused."""

import random
import sys

import re2

count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
random.seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
options = re2.Options()
options.log_errors = False

LETTERS = list("aabbcC.|()()[]^$*+?-{},:<>\u00e9\u65e5 \nk#")
ESCAPES = r"\d \D \w \W \s \S \b \B \A \z \pL \PL \p{Lu} \p{^Lu} \p{Greek} \pN \p{C} \Q \E \x41 \x{e9} \07 \101 \1 \n \. \- \_ \] \C \Z".split()
ESCAPES += ["\\\u00e9"]
CLASSES = "[a-c] [^a] [[:alpha:]] [[:^digit:]] [: [:word:] [^ [] [^] && -- ~~ a-".split()
GROUPS = "(?i) (?i: (?s) (?s: (?m) (?m: (?U) (?-i) (?i-s: (?: (?P<n> (?<m> (?".split()
COUNTS = "{2} {1,2} {,2} {2,} {0} {01} {3,1} {1001} *? +? ??".split()
PARTS = LETTERS + ESCAPES + CLASSES + GROUPS + COUNTS
ATOMS = [part for part in PARTS if part not in list("()[]|*+?{")]
INSIDE = ["a", "b", "C", "\u00e9", "a-c", r"\d", r"\W", r"\s", "-", "[:alpha:]", "[:^word:]", r"\pL", r"\PL", "[", "&&", r"\]", r"\n", "k"]
TEXTS = "aabbcCk\u212a\u017f\u00e9\u65e5 \n1_-.A]\\^[:{}2,\u03c3\u03a3"


def pattern(depth):
    if depth == 0:
        return random.choice(ATOMS)
    kind, inner = random.randrange(6), pattern(depth - 1)
    if kind == 0:
        return inner + "|" + pattern(depth - 1)
    if kind == 1:
        return "(" + inner + ")" + random.choice(["*", "+", "?", "{2}", "{0,2}", "*?"])
    if kind == 2:
        return random.choice(["(?i:", "(?s:", "(?m:", "(", "(?:", "(?i-s:"]) + inner + ")"
    if kind == 3:
        letters = "".join(random.choice(INSIDE) for _ in range(random.randint(1, 4)))
        return "[" + random.choice(["", "^"]) + letters + "]"
    return inner + pattern(depth - 1)


def text(value):
    return value.encode().hex() or "-"


for _ in range(count):
    soup = "".join(random.choice(PARTS) for _ in range(random.randint(0, 8)))
    expression = soup if random.random() < 0.5 else pattern(random.randint(0, 4))
    try:
        compiled = re2.compile(expression, options)
    except re2.error:
        print("match", text(expression), "-", "bad")
        continue
    for _ in range(4):
        value = "".join(random.choice(TEXTS) for _ in range(random.choice((0, 1, 1, 2, 3, 5))))
        print("match", text(expression), text(value), int(compiled.fullmatch(value) is not None))
