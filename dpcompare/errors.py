"""The two errors of dpcompare: a request that cannot be carried out (nothing was started) and a failed run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """The request cannot be carried out; nothing was started. The message says what to change."""


class OtherFormatError(RequestError):
    """A file is in a format that another version of dpcompare writes."""


class RunFailedError(RuntimeError):
    """A started run ended without its result; `run_dir` keeps its logs and what was measured until then."""

    def __init__(self, message: str, run_dir: str) -> None:
        super().__init__(message)
        self.run_dir = run_dir


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty string when nothing is close."""
    close = difflib.get_close_matches(received, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
