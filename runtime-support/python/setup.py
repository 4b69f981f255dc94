"""A wheel of the Python package with the compiler inside.

`make install` of the repository fills the folder `onnxc/prefix`; $ONNXC_PREFIX may name one that was filled before.
The code of the package is Python's alone, so that one wheel per system serves every version of Python.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent.parent.parent


class BuildWithCompiler(build_py):
    def run(self):
        super().run()
        prefix = Path(self.build_lib).resolve() / "onnxc" / "prefix"
        if prefix.exists():
            shutil.rmtree(prefix)
        given = os.environ.get("ONNXC_PREFIX")
        if given:
            shutil.copytree(given, prefix)
        else:
            subprocess.run(["make", "-C", str(ROOT), "install", f"PREFIX={prefix}"], check=True)


class Binary(Distribution):
    """With machine code, so that the wheel is of one system."""

    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


def repository():
    """The address of the repository: $ONNXC_REPOSITORY, that of the workflow that builds, or where the sources were cloned from."""
    given = os.environ.get("ONNXC_REPOSITORY")
    if not given and os.environ.get("GITHUB_REPOSITORY"):
        given = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}"
    if not given:
        try:
            command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
            given = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError:
            given = ""
    given = given.removesuffix(".git")
    return given if given.startswith("https://") else ""


def urls():
    source = repository()
    if not source:
        return {}
    pages = {"Documentation": "tree/main/book/src", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
    return {"Source": source, **{name: f"{source}/{page}" for name, page in pages.items()}}


setup(
    cmdclass={"build_py": BuildWithCompiler, "bdist_wheel": AnyPython},
    distclass=Binary,
    project_urls=urls(),
)
