"""The standard streams of a command, which can be lost at any moment: a terminal that goes, a pipe, a full disk."""

from __future__ import annotations

import os
import sys
from typing import Any


class UnfailingStream:
    """A text stream that drops what cannot be written: what is shown is never worth what it tells of."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as much as there is still somebody to read."""
        try:
            self._stream.write(text)
        except OSError:
            return len(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, unless that is lost too."""
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_stderr_from_failing() -> None:
    """Have no writer to stderr fail from now on: progress, warnings, tracebacks, and Python's own flush at the end.

    For the start of a command. One that was started without stderr gets the null device.
    """
    if sys.stderr is None:
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # or a log would be what others write to as stderr
            continue
        sys.stderr = os.fdopen(number, "w")
    if not isinstance(sys.stderr, UnfailingStream):
        sys.stderr = UnfailingStream(sys.stderr)


def give_up_stdout() -> None:
    """Send what is still to come on stdout, whose reader has gone, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
