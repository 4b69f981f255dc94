"""Innermost loops of products in an object for aarch64, and how many of them use the stack.

    python spills.py [--objdump aarch64-linux-gnu-objdump] MODEL.o ...

Of the natural loops of each function, those with no loop inside and twelve products (FMLA, SDOT, UDOT, SMLAL, UMLAL) or more
count. What is kept between the parts of a long sum is not in them.
"""

import argparse
import re
import subprocess

INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+[0-9a-f]{8}\s+(.*)")
BRANCH = re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s+(?:\w+,\s*)?(?:#\d+,\s*)?([0-9a-f]+) <")
PRODUCT = re.compile(r"fmla|sdot|udot|smlal|umlal")
VECTOR = re.compile(r"(?:st|ld)[rp]\s+[qds]\d.*\[sp")
INTEGER = re.compile(r"(?:st|ld)[rp]\s+[xw]\d.*\[sp")
LEAST = 12


def functions(text):
    """The instructions of each function, as addresses and texts."""
    code = []
    for line in text.splitlines():
        if line.endswith(">:"):
            yield code
            code = []
        elif instruction := INSTRUCTION.match(line):
            code.append((int(instruction[1], 16), instruction[2]))
    yield code


def innermost(code):
    """The instructions of each natural loop that has no other one inside."""
    place = {address: at for at, (address, _) in enumerate(code)}
    before, back = [[] for _ in code], []
    for at, (_, text) in enumerate(code):
        branch = BRANCH.match(text)
        target = place.get(int(branch[1], 16)) if branch else None
        if target is not None:
            before[target].append(at)
            if target <= at:
                back.append((at, target))
        if not re.match(r"(?:b|br|ret|udf)(?:\s|$)", text) and at + 1 < len(code):
            before[at + 1].append(at)
    loops = {}
    for end, head in back:
        loop, open_ = loops.setdefault(head, {head}), [end]
        while open_:
            at = open_.pop()
            if at not in loop:
                loop.add(at)
                open_.extend(before[at])
    return [
        [code[at][1] for at in sorted(loop)]
        for head, loop in loops.items()
        if 0 not in loop and not any(other != head and other in loop for other in loops)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    print("| object | loops of products | with vectors on the stack | with integers |\n|---|--:|--:|--:|")
    for path in arguments.objects:
        text = subprocess.run([arguments.objdump, "-d", path], check=True, capture_output=True, text=True).stdout
        loops = [loop for code in functions(text) for loop in innermost(code)]
        hot = [loop for loop in loops if sum(bool(PRODUCT.match(text)) for text in loop) >= LEAST]
        having = [sum(any(what.match(text) for text in loop) for loop in hot) for what in (VECTOR, INTEGER)]
        print(f"| {path} | {len(hot)} | {having[0]} | {having[1]} |")


main()
