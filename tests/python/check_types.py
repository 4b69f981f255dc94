"""Type hints of the Python package: mypy --strict and pyright on the package and on the samples of the book's page.

    python tests/python/check_types.py

Needs the packages of tests/python/requirements-types.txt, and Node for pyright. Exits with 1 where one of the two finds a problem.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "runtime-support" / "python" / "onnxc"
PAGE = ROOT / "book" / "src" / "python.md"


def samples(folder):
    """The page's files, and its other blocks of Python as modules of their own."""
    text = PAGE.read_text(encoding="utf-8")
    found = []
    for at, (words, block) in enumerate(re.findall(r"^```(python[^\n]*)\n(.*?)^```$", text, re.M | re.S)):
        name = re.search(r"file=(\S+\.py)", words)
        if name is None:
            continue
        path = folder / name.group(1)
        path.write_text(block, encoding="utf-8")
        found.append(path)
    if not found:
        sys.exit(f"{PAGE} has no samples")
    return found


def main():
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = samples(folder)
        environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
        # pyright takes files below its own folder only.
        shutil.copytree(PACKAGE, folder / "onnxc", ignore=shutil.ignore_patterns("prefix", "__pycache__"))
        config = folder / "pyrightconfig.json"
        config.write_text('{"include": ["."], "pythonVersion": "3.%d"}' % sys.version_info.minor)
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "mypy"), str(PACKAGE)]
        pyright = [sys.executable, "-m", "pyright", "--project", str(config), "--pythonpath", sys.executable]
        # Each sample is a program of its own.
        programs = [[*mypy[:-1], str(file)] for file in files]
        for command in [mypy, *programs, pyright]:
            done = subprocess.run(command, env=environment, cwd=folder)
            failed |= done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
