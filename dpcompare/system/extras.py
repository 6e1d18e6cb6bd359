"""Optional packages, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dpcompare.errors import RequestError


def import_extra(module: str, *, extra: str, needed_by: str) -> Any:
    """A module of a package that only an extra of dpcompare brings.

    Raises:
        RequestError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise RequestError(
            f"{needed_by} needs {missing}, which is not installed; install the extra with: python -m pip install "
            f"'dpcompare[{extra}]'"
        ) from None
