"""A guard of tests that start no process: whatever tries to start one meanwhile fails, and so does the test.

Python tells an audit hook of each start, before it. multiprocessing and joblib go below that, to the function that
`subprocess` calls too, so they are met there.
"""

from __future__ import annotations

import _posixsubprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system")
_attempts: list[list[str]] = []
"""What was tried under each guard that is up; the innermost is last."""


def _refuse(event: str, what: Any) -> None:
    if _attempts:
        _attempts[-1].append(f"{event} of {what}")
        pytest.fail(_sentence(_attempts[-1]))  # no Exception: what is tried does not take it for its own failure


def _sentence(attempts: list[str]) -> str:
    return (
        f"{attempts[0]}: a test without the mark `process` has tried to start a process; mark it with "
        "@pytest.mark.process, which takes it out of the tier `unit`, or replace what starts the process"
    )


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        _refuse(event, arguments[:2])


def _told(fork_exec: Callable[..., int]) -> Callable[..., int]:
    def telling(*arguments: Any) -> int:
        _refuse("fork_exec", arguments[0])
        return fork_exec(*arguments)

    return telling


sys.addaudithook(_hook)  # it cannot be removed, so it is there once and asks whether a guard is up


@contextmanager
def no_process() -> Iterator[None]:
    """Fail where a process is started within, even if whoever tried it has caught that failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_posixsubprocess, "fork_exec", _told(_posixsubprocess.fork_exec))
        _attempts.append([])
        try:
            yield
        finally:
            attempts = _attempts.pop()
    if attempts:
        pytest.fail(_sentence(attempts))
