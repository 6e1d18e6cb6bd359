"""Parameters of a test that get a mark more."""

from __future__ import annotations

from typing import Any

import pytest


def with_mark(parameters: Any, mark: pytest.MarkDecorator) -> Any:
    """What `pytest.param` gave, with the same id."""
    return pytest.param(*parameters.values, id=parameters.id, marks=[*parameters.marks, mark])
