"""Locks on folders, each held by one process at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpcompare.errors import RequestError

LOCK_FILE = "lock"
LOCK_ATTEMPTS = 5
LOCK_POLL_SECONDS = 0.1


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
                    time.sleep(LOCK_POLL_SECONDS)
            except OSError as error:  # a network file system without locks
                raise RequestError(
                    f"{str(folder)!r} cannot be locked ({error.strerror}), so that two processes might write into it; "
                    "choose a folder on another disk"
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
