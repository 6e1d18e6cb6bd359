"""A file system as nodes share it over a network: slow to write, and late in showing a node what another one has made.

    python -m stress.shared_files BACKING MOUNTPOINT [--write-seconds S] [--late-seconds S --node-variable NAME]

Serves what lies in a folder (FUSE, needs root) until it is unmounted. Processes are of the node that a variable of
their environment names; those without it are together on another one, as the command is on a login node.
"""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

STARTING_SECONDS = 20.0
NOW = 0x3FFFFFFF
"""UTIME_NOW (utimensat(2))."""


class SharedFiles:
    """The calls of a file system, by path below its root; what is not delayed is passed on to the folder behind it.

    A node remembers for `late_seconds` what it was told of a name, also that there was none, and which names a folder
    has; what it changes itself it knows, and of a file that it opens it asks again: NFS's caches of attributes and of
    folders, with their close-to-open consistency (nfs(5), "Data and metadata coherence").
    """

    use_ns = True

    def __init__(self, backing: Path, *, write_seconds: float, late_seconds: float, node_variable: str) -> None:
        self._backing = backing
        self._write_seconds = write_seconds
        self._late_seconds = late_seconds
        self._named = f"{node_variable}=".encode()
        self._told: dict[tuple[bytes, str, str], tuple[float, Any]] = {}
        """(node, call, path) -> when it was answered, and the answer."""
        self._lock = Lock()
        """Calls come on several threads; an answer that is older than a change must not be remembered after it."""

    def _real(self, path: str) -> Path:
        return self._backing / path[1:]

    def _node(self) -> bytes:
        """The node of the process that asks; read each time, since a process that executes gets another environment."""
        from mfusepy import fuse_get_context

        *_, pid = fuse_get_context()
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            return b""
        return next((each for each in variables if each.startswith(self._named)), b"")

    def _remembered(self, call: str, path: str, ask: Callable[[Path], Any]) -> Any:
        with self._lock:
            try:
                now = ask(self._real(path))
            except FileNotFoundError as error:
                now = error
            if not self._late_seconds:
                answer = now
            else:
                key = (self._node(), call, path)
                when, answer = self._told.get(key, (float("-inf"), None))
                if time.monotonic() - when >= self._late_seconds:
                    self._told[key] = time.monotonic(), now
                    answer = now
                elif _content(answer) != _content(now):
                    late_answers(self._backing).touch()
        if isinstance(answer, OSError):
            raise answer
        return answer

    @contextmanager
    def _changing(self, *paths: str, names: bool = False) -> Iterator[None]:
        """The node that asks knows what it does itself: it forgets what it was told of files, and of their folders
        where it changes which `names` there are.
        """
        with self._lock:
            try:
                yield
            finally:  # a client that is told that a name exists asks for it again, too
                node = self._node()
                for path in paths:
                    self._told.pop((node, "attributes", path), None)
                    if names:
                        self._told.pop((node, "names", str(Path(path).parent)), None)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = self._remembered("attributes", path, os.lstat)
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks")
        times = ("st_atime", "st_mtime", "st_ctime")
        return {name: getattr(status, name) for name in names} | {name: getattr(status, f"{name}_ns") for name in times}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._remembered("names", path, os.listdir)]

    def access(self, path: str, mode: int) -> int:
        return 0 if os.access(self._real(path), mode) else -errno.EACCES

    def create(self, path: str, mode: int, flags: int) -> int:
        with self._changing(path, names=True):
            return os.open(self._real(path), flags | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        with self._changing(path):  # of what is opened the server is asked again
            return os.open(self._real(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        known: int = self._remembered("attributes", path, os.lstat).st_size
        return os.pread(fh, max(0, min(size, known - offset)), offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        time.sleep(self._write_seconds)
        with self._changing(path):
            # What is appended goes to the end whatever the offset, which follows from a size that a node was told.
            return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        time.sleep(self._write_seconds)
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        with self._changing(path):
            os.truncate(self._real(path), length)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._changing(old, new, names=True):
            self._real(old).replace(self._real(new))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        with self._changing(path, names=True):
            self._real(path).mkdir(mode)
        return 0

    def unlink(self, path: str) -> int:
        with self._changing(path, names=True):
            self._real(path).unlink()
        return 0

    def rmdir(self, path: str) -> int:
        with self._changing(path, names=True):
            self._real(path).rmdir()
        return 0

    def symlink(self, target: str, source: str) -> int:
        with self._changing(target, names=True):
            self._real(target).symlink_to(source)
        return 0

    def readlink(self, path: str) -> str:
        return str(self._real(path).readlink())

    def link(self, target: str, source: str) -> int:
        with self._changing(target, names=True):
            self._real(target).hardlink_to(self._real(source))
        return 0

    def chmod(self, path: str, mode: int, fh: int | None = None) -> int:
        with self._changing(path):
            self._real(path).chmod(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int, fh: int | None = None) -> int:
        with self._changing(path):
            os.chown(self._real(path), uid, gid)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None, fh: int | None = None) -> int:
        # mfusepy hands on "now" (UTIME_NOW) as if it were a number of nanoseconds.
        is_now = times is not None and NOW in times
        with self._changing(path):
            if is_now:
                os.utime(self._real(path))
            else:
                os.utime(self._real(path), ns=times)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        names = (
            "f_bavail",
            "f_bfree",
            "f_blocks",
            "f_bsize",
            "f_favail",
            "f_ffree",
            "f_files",
            "f_frsize",
            "f_namemax",
        )
        return {name: getattr(found, name) for name in names}


def _content(answer: Any) -> Any:
    """The part of an answer that differs in a late one: names, a size, or that there is nothing."""
    if isinstance(answer, os.stat_result):
        return answer.st_size, answer.st_mtime_ns
    return "nothing" if isinstance(answer, OSError) else sorted(answer)


def behind(mountpoint: Path) -> Path:
    """The folder in which lies what the file system shows."""
    return mountpoint.with_name(f"{mountpoint.name}-behind")


def late_answers(backing: Path) -> Path:
    """The file that is there if some answer was late."""
    return backing.with_name(f"{backing.name}.late")


@contextmanager
def shared_files(
    mountpoint: Path, *, write_seconds: float = 0.0, late_seconds: float = 0.0, node_variable: str = ""
) -> Iterator[None]:
    """The file system over a folder, with another one behind it, for as long as the context lasts."""
    backing = behind(mountpoint)
    backing.mkdir()
    command = [sys.executable, "-m", "stress.shared_files", str(backing), str(mountpoint)]
    command += ["--write-seconds", str(write_seconds), "--late-seconds", str(late_seconds)]
    command += ["--node-variable", node_variable]
    server = subprocess.Popen(command, cwd=Path(__file__).parents[1], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + STARTING_SECONDS
    while not os.path.ismount(mountpoint):
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise RuntimeError(f"no file system at {mountpoint}: {server.communicate()[1]}")
        time.sleep(0.02)
    try:
        yield
    finally:
        try:
            subprocess.run(["umount", "--lazy", mountpoint], check=True)  # what still writes there is ended, or counted
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
        finally:
            server.kill()
            server.communicate()


def main() -> None:
    """Serve until unmounted."""
    from mfusepy import FUSE

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backing", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--write-seconds", type=float, default=0.0, help="seconds that each write and fsync takes")
    parser.add_argument(
        "--late-seconds", type=float, default=0.0, help="seconds until a node sees what another one has made"
    )
    parser.add_argument("--node-variable", default="", help="tells nodes apart, such as SLURM_NODEID")
    asked = parser.parse_args()
    served = SharedFiles(
        asked.backing,
        write_seconds=asked.write_seconds,
        late_seconds=asked.late_seconds,
        node_variable=asked.node_variable,
    )
    caches = dict.fromkeys(("entry_timeout", "attr_timeout", "negative_timeout"), 0.0)  # or nodes would share answers
    FUSE(served, str(asked.mountpoint), foreground=True, allow_other=True, direct_io=True, **caches)


if __name__ == "__main__":
    main()
