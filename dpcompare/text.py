"""Text that came from outside, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters, which a terminal would obey, as visible ones."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """The same line by line."""
    return "\n".join(map(printable, text.splitlines()))
