"""Processes: ended together with their parent, asked to end, told apart from those that were, and alone in a folder."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dpcompare.errors import RequestError

LOCK_FILE = "lock"
LOCK_ATTEMPTS = 5
SECONDS_BETWEEN_ATTEMPTS = 0.1

AGENT_PID = "DPCOMPARE_AGENT_PID"
"""Set by our torchrun agents for their training processes, which start them much later than they are started."""

SIGNALED = 128
"""What our torchrun agents add to the number of the signal that ended a training process, for their own exit status."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux).

    The setting belongs to one process only: it is cleared by fork, so every child asks for itself. Where the pid of the
    parent is given, a parent that ended before this was asked for is noticed too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group that `pid` leads; nothing happens when it is gone."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    return _state(pid) not in ("", "Z", "X")


def process_state(pid: int | None) -> str:
    """What a process is doing, in words."""
    words = {"R": "running", "S": "waiting", "D": "waiting for a device", "T": "stopped by a signal", "t": "traced"}
    return "not started" if pid is None else words.get(_state(pid), "ended")


def _state(pid: int) -> str:
    """The letter of proc(5); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def oom_kills() -> int:
    """Processes of this machine that the kernel has killed for want of memory, in a control group or at all."""
    counters = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return next((int(count) for name, count in counters if name == "oom_kill"), 0)


@contextmanager
def only_one(folder: Path, refusal: str) -> Iterator[None]:
    """Hold a folder for this process.

    Raises:
        RequestError: with `refusal`, where another process holds it; or its disk has no locks.
    """
    with (folder / LOCK_FILE).open("w") as lock:
        for attempt in reversed(range(LOCK_ATTEMPTS)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # `is_held` may have it for a moment
                if attempt:
                    time.sleep(SECONDS_BETWEEN_ATTEMPTS)
            except OSError as error:  # a network file system without locks
                raise RequestError(
                    f"{str(folder)!r} cannot be locked ({error.strerror}), so that two processes might write into it; choose a "
                    "folder on another disk"
                ) from None
        else:
            raise RequestError(refusal)
        yield


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder."""
    try:
        with (folder / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a disk without locks, where nobody can hold it
        return False
    return False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within this context signals that end a process wait; afterwards one that came raises KeyboardInterrupt."""
    came: list[int] = []
    try:
        with _handled_by(lambda number, frame: came.append(number), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            yield
    finally:  # also where what waited has failed
        if came:
            raise KeyboardInterrupt


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within this context SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; ignored ones (nohup) stay so."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Handle signals in this context; those that are ignored stay so."""
    wanted = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    try:
        previous = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:  # not the main thread, which alone may set handlers; its owner deals with signals
        previous = {}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
