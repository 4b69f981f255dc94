"""The backend tests of the package `onnx`, by its own runner, on `onnxc.backend`.

run_backend_tests.py [--parts N --part K] [--only TEXT]: prints a line `PASS name`, `FAIL name: reason` or `SKIP name` for every
test on the CPU, and the counts. With parts it runs every N-th test, so that several processes share them.
"""

import argparse
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import numpy as np
from onnx.backend.test.runner import Runner

import onnxc.backend


class Lines(unittest.TestResult):
    """A line for each test."""

    def __init__(self):
        super().__init__()
        self.counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}

    def say(self, word, test, reason=""):
        self.counts[word] += 1
        name = test.id().split(".")[-1].removesuffix("_cpu")
        kind = type(test).__name__.removeprefix("OnnxBackend").removesuffix("ModelTest")
        print(f"{word} {kind}/{name}{reason}", flush=True)

    def addSuccess(self, test):
        self.say("PASS", test)

    def addFailure(self, test, error):
        self.say("FAIL", test, ": " + " ".join(str(error[1]).split())[:300])

    def addError(self, test, error):
        self.say("FAIL", test, f": {error[0].__name__}: " + " ".join(str(error[1]).split())[:300])

    def addSkip(self, test, reason):
        self.say("SKIP", test)


def tests_of(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        elif one.id().endswith("_cpu"):
            yield one


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        # Where the runner keeps the data of the models that come with the package.
        os.environ["ONNX_HOME"] = folder
        suite = Runner(onnxc.backend, __name__).test_suite
        result = Lines()
        chosen = sorted(tests_of(suite), key=lambda test: test.id())[arguments.part :: arguments.parts]
        for test in chosen:
            if arguments.only in test.id():
                test.run(result)
    counts = ", ".join(f"{count} {word}" for word, count in result.counts.items())
    print(f"{counts}, with onnxc of {Path(onnxc.__file__).parent}", file=sys.stderr)


if __name__ == "__main__":
    main()
