"""Text that came from outside, made safe to show."""

from __future__ import annotations


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
