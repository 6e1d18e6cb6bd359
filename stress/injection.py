"""The injection of a fault into training processes from outside, so that dpcompare itself needs no entry point for it.

The fault is the source of a function `inject(module)`, called in a fresh interpreter right after that module was
imported. It travels as a sitecustomize module, which Python imports when it starts.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

_FINDER = """

import importlib.abc, importlib.util, sys

class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            inject(module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, _Finder())
"""


def injected(body: str) -> str:
    """The source of an `inject(module)` of these lines."""
    return "def inject(module):\n" + textwrap.indent(body.strip(), "    ") + "\n"


def write_sitecustomize(folder: Path, module: str, source: str) -> None:
    """Make `folder`, once it is in PYTHONPATH, inject a fault.

    Args:
        folder: gets the sitecustomize module.
        module: full name of the module that is broken.
        source: defines `inject(module)`.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(source + _FINDER.format(module=module))


def interpreter_with(folder: Path, module: str, source: str) -> str:
    """An interpreter for `--python` whose processes have the fault, for one arm of several."""
    write_sitecustomize(folder, module, source)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)
