"""How torch was built, as far as a build says so: its compiler, its libraries, and what it was built with."""

from __future__ import annotations

import re

import torch

_SAID = {
    "gcc": r"^  - GCC ([\d.]+)",  # clang passes for one, too
    "clang": r"^  - clang ([\d.]+)",
    "mkl": r"Math Kernel Library Version ([\d.]+)",
    "onednn": r"(?:MKL-DNN|oneDNN) v([\d.]+)",
    "blas": r"BLAS_INFO=(\w+)",
}
"""Name -> where torch says it."""
_USED = re.compile(r"\bUSE_(\w+)=(?:ON|1)\b")
"""A library or a feature that is in the build."""


def build_of_torch() -> dict[str, str]:
    """Name -> version or name of what this torch was built with, of those that it names.

    Two builds of one version differ in these: those of a package index, of conda, of a vendor and your own.
    """
    text = torch.__config__.show()
    found = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _SAID.items()}
    build = {name: match[1] for name, match in found.items() if match}
    if used := sorted(set(_USED.findall(text))):
        build["built with"] = " ".join(used)
    return build
