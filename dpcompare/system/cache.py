"""The cache of this user, and locks by which processes take turns."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dpcompare.errors import RequestError
from dpcompare.system.files import expanded, no_link

LOCK_FILE = "lock"
LOCK_ATTEMPTS = 5
LOCK_POLL_SECONDS = 0.1


@contextmanager
def exclusive_lock(folder: Path, refusal: str) -> Iterator[None]:
    """Hold a folder for this process.

    Raises:
        RequestError: with `refusal`, where another process holds it; or it cannot be written, or its disk has no locks.
    """
    with _opened(folder) as lock:
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


def _opened(folder: Path) -> IO[str]:
    """The file to lock, which is never cut short: it may be another's."""
    try:
        return open(folder / LOCK_FILE, "a", opener=no_link)
    except OSError as error:
        raise RequestError(
            f"{str(folder)!r} cannot be written ({LOCK_FILE}: {error.strerror}); choose another folder, or have its "
            "owner do this"
        ) from None


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Hold a file, created if need be, as soon as no other process does.

    Where it cannot be written, or its disk has no locks, no process waits: only work is lost that is done twice.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path, "a", opener=no_link)  # noqa: SIM115 (closed below)
    except OSError:
        yield
        return
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_POLL_SECONDS)
            except OSError:
                break
            else:
                break
        yield


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder."""
    try:
        with open(folder / LOCK_FILE, opener=no_link) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a disk without locks, where no process can hold it
        return False
    return False


@contextmanager
def folder_held(folder: Path) -> Iterator[bool]:
    """Hold a folder while this lasts; yields False where another process does, or the disk has no locks."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_free = False
    else:
        is_free = True
    try:
        yield is_free
    finally:
        os.close(handle)


def cache_dir() -> Path:
    """DPCOMPARE_CACHE_DIR, or the user's cache folder.

    Raises:
        RequestError: neither is known.
    """
    from platformdirs import user_cache_path

    if chosen := os.environ.get("DPCOMPARE_CACHE_DIR"):
        return expanded(chosen)
    try:
        return user_cache_path("dpcompare", appauthor=False)
    except RuntimeError:
        raise RequestError(
            "this user has no home directory (HOME is not set), and the cache would be there; expected HOME, or "
            "DPCOMPARE_CACHE_DIR with a folder"
        ) from None
