"""Words and text as a terminal shows them, and the streams that they are written to."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, TextIO


def pluralize(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 processes`, `2 batches`, `2 epochs`, `2 studies`, `2 days`, `1,000 images`."""
    takes_es = noun.endswith(("s", "x", "ch")) and not noun.endswith("och")
    plural = f"{noun}es" if takes_es else re.sub("(?<=[^aeou])y$", "ie", noun) + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def about(seconds: float) -> str:
    """`about 3 min`, of an estimate: whole minutes, begun ones too."""
    return f"about {math.ceil(seconds / 60)} min"


def joined(words: Sequence[str], conjunction: str = "and") -> str:
    """`one`, `one and two`, `one, two and three`."""
    return f" {conjunction} ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def hint(command: str, *arguments: object) -> str:
    """A command of ours as one types it."""
    return shlex.join(["dpcompare", command, *map(str, arguments)])


def printable(text: str) -> str:
    """Control characters, which a terminal would obey, as visible ones."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def in_one_line(error: str | None) -> str:
    """The cause of a failure, from its whole description: the first line, or the end of the traceback below it."""
    lines = (error or "").strip().splitlines() or [""]
    if lines[0].endswith(":"):
        causes = (line for line in lines[1:] if not line.startswith((" ", "last steps:", "Traceback")))
        return next(filter(None, causes), lines[0])
    return lines[0]


def printable_lines(text: str) -> str:
    """The same line by line."""
    return "\n".join(map(printable, text.splitlines()))


class UnfailingStream:
    """A text stream that drops what cannot be written: a failure to show is never worth a failure of the work."""

    def __init__(self, stream: TextIO) -> None:
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
