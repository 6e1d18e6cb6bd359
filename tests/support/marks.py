"""Parameters of a test that get more marks."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pytest


def with_mark(parameters: Any, *marks: pytest.MarkDecorator) -> Any:
    """What `pytest.param` gave, with the same id."""
    return pytest.param(*parameters.values, id=parameters.id, marks=[*parameters.marks, *marks])


def with_cuda_build() -> list[pytest.MarkDecorator]:
    """The mark of tests that replace C functions of CUDA's, which a build of torch for CPUs does not have."""
    is_for_cpus = find_spec("torch") is not None and "+cpu" in metadata.version("torch")
    return [pytest.mark.skipif(is_for_cpus, reason=CPU_BUILD)]


CPU_BUILD = "this torch is a build for CPUs, without the C functions of CUDA"

KERAS = pytest.mark.skipif(find_spec("keras") is None, reason="keras not installed (extra keras)")
"""For tests that need Keras and not TensorFlow."""


def in_each_framework_of_keras() -> list[Any]:
    """The frameworks that Keras computes with, as parameters."""
    return [pytest.param(name, marks=[getattr(pytest.mark, name), KERAS]) for name in ("torch", "tensorflow", "jax")]
