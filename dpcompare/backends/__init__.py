"""Backends: the ways in which each framework trains, behind one entry point, `load_backend`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dpcompare.backends.availability import require_mode
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES, Mode
from dpcompare.errors import RequestError, did_you_mean
from dpcompare.system.python_environment import find_object
from dpcompare.system.terminal_text import joined

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


def load_backend(framework: str, mode: str, own: str | None = None) -> type[Backend]:
    """Import the framework and return the backend class of one of its modes.

    Args:
        framework: a row of FRAMEWORKS.
        mode: how its processes are started.
        own: `package.module:CLASS` of a user's backend, which is returned in the place of the mode's.

    Raises:
        RequestError: there is no such mode, the framework is not installed, or a user's class is no backend.
    """
    row = known_mode(framework, mode)
    require_mode(framework, mode)
    if own is not None:
        return _own_backend(own, framework)
    module, name = row.target.split(":")
    backend: type[Backend] = getattr(import_module(f"dpcompare.backends.{module}"), name)
    return backend


def _own_backend(name: str, framework: str) -> type[Backend]:
    from dpcompare.backends.base import Backend

    found = find_object(name, "backend")
    if not isinstance(found, type) or not issubclass(found, Backend):
        kind = "a class that is not a backend" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise RequestError(
            f"backend: {name!r} is {kind}; expected a subclass of dpcompare.backends.base.Backend, such as one of "
            "load_backend(framework, mode)"
        )
    modules = [kind.__module__ for kind in found.__mro__]
    of = {row for row in FRAMEWORKS if any(module.startswith(f"{__name__}.{row}.") for module in modules)}
    if of and framework not in of:
        theirs = joined(sorted(of))
        raise RequestError(f"backend: {name!r} is for {theirs}; expected one for {framework}, or a run of {theirs}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise RequestError(f"backend: {name!r} lacks {', '.join(missing)}; expected all methods of Backend")
    return found
