"""Compares the verdicts of the clause table (tests/tests/clauses.rs) with those of onnx.checker.

    ONNXC_CLAUSES_DUMP=DIR cargo test -p onnxc-tests --test suite clauses::
    python tests/python/clauses.py DIR

Prints how many models both accept and both reject, how many one alone rejects, and each of the latter. What onnxc warns of counts as
accepted, as it is compiled, and is counted apart, as --strict rejects it.
"""

import collections
import os
import sys

import onnx


def verdict(path):
    """Whether the checker accepts a file, and what it says else."""
    try:
        onnx.checker.check_model(path)
        return "accepts", ""
    except Exception as error:  # The checker raises errors of many kinds.
        return "rejects", str(error).split("\n")[0]


def main(folder):
    counts = collections.Counter()
    differ = []
    with open(os.path.join(folder, "clauses.tsv"), encoding="utf-8") as table:
        rows = [line.rstrip("\n").split("\t") for line in table]
    for file, ours, clause, statement, reason in rows:
        theirs, why = verdict(os.path.join(folder, file))
        counts[ours, theirs] += 1
        if (ours == "rejects") != (theirs == "rejects"):
            differ.append((ours, file, clause, statement, why or reason))
    for ours, file, clause, statement, why in sorted(differ):
        print(f"onnxc {ours}, onnx.checker does not: {file} {clause}: {statement}; {why}")
    for mode, refusals in [("by default", ["rejects"]), ("--strict", ["rejects", "warns"])]:
        both = [0, 0]
        alone = [0, 0]
        for (ours, theirs), count in counts.items():
            rejects, checker_rejects = ours in refusals, theirs == "rejects"
            if rejects == checker_rejects:
                both[rejects] += count
            else:
                alone[checker_rejects] += count
        print(f"{mode}, of {len(rows)} models: both accept {both[0]}, both reject {both[1]}, "
              f"onnxc alone rejects {alone[0]}, onnx.checker alone rejects {alone[1]}")


if __name__ == "__main__":
    main(sys.argv[1])
