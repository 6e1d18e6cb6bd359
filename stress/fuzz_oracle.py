"""The oracle of fuzzing: whatever a reader is given, it answers or refuses.

No other exception, no traceback, no control character on the terminal; nothing is executed or written elsewhere,
nothing lasts, and nothing takes the memory of the machine.
"""

from __future__ import annotations

import io
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dpcompare.cli import main
from stress.audit import violation
from stress.fuzz_mutations import Mutation

LONGEST_SECONDS = 10.0
"""Seconds of the processor, which others may use meanwhile."""
ANSWERS = (0, 2, 3)
"""Exit codes of commands that answer or refuse."""
MOST_MEMORY = 8 << 30
"""Bytes of addresses that may be added to those of the process."""


class ForbiddenError(BaseException):
    """A reader did what it may not: no `except` of its own hides it."""


class Captured(io.StringIO):
    """What a command writes to stderr. Atheris asks for its descriptor every half minute, and what fails there seems to
    fail in whatever is read at that moment."""

    def fileno(self) -> int:
        return 2


def answered(*arguments: object) -> int:
    """The exit code of a command, which must answer or refuse.

    Raises:
        ForbiddenError: it did neither, or what it says is not for a terminal.
    """
    stdout, stderr = io.StringIO(), Captured()
    code: object = None
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code
    said = stderr.getvalue()
    if code not in ANSWERS or (code == 2) != ("error: " in said) or "Traceback" in said:
        raise ForbiddenError(f"exit code {code}: {said[-1000:]}")
    shown = (said + stdout.getvalue()).replace("\r\n", "\n")  # as CSV ends its lines
    if found := {char for char in shown if ord(char) < 32 and char not in "\n\t"}:
        raise ForbiddenError(f"a terminal would obey {found}")
    return int(code)


@dataclass(frozen=True)
class Reader:
    """What is fuzzed."""

    read: Callable[[bytes], None]
    """Raises where the bytes have it do what no reader may."""
    seeds: tuple[bytes, ...]
    mutate: Mutation | None = None
    """Keeps the structure of the bytes; None: they have none."""


@dataclass(frozen=True)
class Finding:
    """Bytes for which a reader did what none may."""

    place: str
    """Which tells findings apart: what was raised, and where in dpcompare."""
    what: str


class Oracle:
    """Has a reader read, and says what it did that none may."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the only one in which anything may be changed."""
        self._folder = str(folder)
        self._is_watching = False
        sys.addaudithook(self._audit)  # for the rest of the process: there is no way back

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_watching and (found := violation(event, arguments, self._folder)):
            raise ForbiddenError(found)

    def finding(self, read: Callable[[bytes], None], content: bytes) -> Finding | None:
        """What a reader does wrong with this content, if anything."""
        with limited():
            try:
                self._is_watching = True
                read(content)
            except (Exception, ForbiddenError, SystemExit) as error:
                self._is_watching = False
                frames = traceback.extract_tb(error.__traceback__)
                there = [frame for frame in frames if frame.filename != __file__]
                ours = [frame for frame in there if "/dpcompare/" in frame.filename] or there
                where = f"{Path(ours[-1].filename).stem}-{ours[-1].name}"
                return Finding(f"{type(error).__name__}-{where}", "".join(traceback.format_exception(error)[-6:]))
            finally:
                self._is_watching = False
        return None


@contextmanager
def limited() -> Iterator[None]:
    """What takes too long is interrupted, and is a finding."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise ForbiddenError(f"it took more than {LONGEST_SECONDS:.0f} s")

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextmanager
def little_memory() -> Iterator[None]:
    """What would take the memory of the machine fails here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    # V8, which draws the plots of reports, has reserved tens of GB of addresses once it is loaded.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
