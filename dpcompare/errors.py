"""The two errors of dpcompare: a request that cannot be carried out (nothing was started) and a failed run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_OTHER_NAMES = {
    "pytorch": "torch",
    "tf": "tensorflow",
    "keras": "tensorflow",
    "dataparallel": "dp",
    "mirroredstrategy": "mirrored",
    "multiworkermirroredstrategy": "multiworker",
    "pjit": "jit",
    "gspmd": "jit",
    "namedsharding": "jit",
    "pmap": "spmd",
    "shard_map": "spmd",
    "shmap": "spmd",
}
"""What people type for names that are spelt otherwise here."""


class RequestError(ValueError):
    """The request cannot be carried out; nothing was started. The message says what to change."""


class OtherFormatError(RequestError):
    """A file is in a format that another version of dpcompare writes."""


class RunFailedError(RuntimeError):
    """A started run ended without its result; `run_dir` keeps its logs and what was measured until then."""

    def __init__(self, message: str, run_dir: str) -> None:
        super().__init__(message)
        self.run_dir = run_dir


def require_type(value: object, expected: type | tuple[type, ...], name: str) -> None:
    """Refuse an argument of Python that is something else.

    Raises:
        RequestError: it is; `name` it was given as.
    """
    kinds = expected if isinstance(expected, tuple) else (expected,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
        raise RequestError(f"{name}: received {value!r}, expected a value of the type {names}")


_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""With which Keras, among others, writes its messages."""


def in_words(error: BaseException) -> str:
    """`ValueError: its message`, also of an exception whose message cannot be had."""
    try:
        return f"{type(error).__name__}: {_COLORS.sub('', str(error))}"
    except Exception as own:  # of a user's own class
        return f"{type(error).__name__}, whose text cannot be had ({type(own).__name__})"


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty string when nothing is close."""
    close = closest(received, known, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _distance(received: str, known: str) -> int:
    """0 for a name that was cut short, 1 for one in which a letter is another, 2 for all others."""
    if known.startswith(received):
        return 0
    one_letter = len(received) == len(known) and sum(a != b for a, b in zip(received, known, strict=True)) == 1
    return 1 if one_letter else 2


def closest(received: str, known: Iterable[str], count: int) -> list[str]:
    """Up to `count` known names that are like the one received, whatever its case, the likest first."""
    by_lowered = {name.lower(): name for name in known}
    lowered = received.lower()
    meant = _OTHER_NAMES.get(lowered, lowered)
    near = difflib.get_close_matches(lowered, by_lowered, n=count + 2)
    near.sort(key=lambda name: _distance(lowered, name))  # dpp is ddp rather than dp
    return [by_lowered[name] for name in dict.fromkeys([meant, *near]) if name in by_lowered][:count]
