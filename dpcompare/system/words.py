"""Numbers with their nouns, and words in a row."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 processes`, `2 batches`, `2 epochs`, `1,000 images`."""
    is_hissed = noun.endswith(("s", "x", "ch")) and not noun.endswith("och")
    plural = f"{noun}es" if is_hissed else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def joined(words: Sequence[str]) -> str:
    """`one`, `one and two`, `one, two and three`."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])
