"""Backends: the ways in which each framework trains, behind one entry point, `load_backend`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpcompare.backends.availability import require_mode
from dpcompare.config.modes import MODES, Mode
from dpcompare.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from dpcompare.backends.base import Backend


def known_mode(framework: str, mode: str) -> Mode:
    """The row of a mode.

    Raises:
        RequestError: there is no such mode.
    """
    if (framework, mode) not in MODES:
        known = [f"{known_framework} {name}" for known_framework, name in MODES]
        received = f"{framework} {mode}"
        raise RequestError(
            f"unknown mode {received!r}; expected one of {', '.join(known)}.{did_you_mean(received, known)}"
        )
    return MODES[framework, mode]


def load_backend(framework: str, mode: str) -> type[Backend]:
    """Import the framework and return the backend class of one of its modes.

    Raises:
        RequestError: there is no such mode, or the framework is not installed.
    """
    row = known_mode(framework, mode)
    require_mode(framework, mode)
    module, name = row.target.split(":")
    backend: type[Backend] = getattr(import_module(f"dpcompare.backends.{module}"), name)
    return backend
