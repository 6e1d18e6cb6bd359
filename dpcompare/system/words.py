"""Numbers with their nouns."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 processes`, `1,000 images`."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
