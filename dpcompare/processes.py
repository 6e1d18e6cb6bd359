"""Processes: ended together with their parent, asked to end, and told apart from those that were."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux).

    The setting belongs to one process only: it is cleared by fork, so every child asks for itself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group that `pid` leads; nothing happens when it is gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; ignored ones (nohup) stay so."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, interrupt) for number in wanted}
    except ValueError:  # not the main thread, which alone may set handlers; its owner deals with signals
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
