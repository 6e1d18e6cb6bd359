"""A network namespace for one run: it has only loopback, so its ports cannot be reached from outside."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpcompare.errors import RequestError
from dpcompare.system.processes import die_with_parent
from dpcompare.system.signals import signals_held

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1  # netdevice(7)


@dataclass(frozen=True)
class Network:
    """A namespace that a process holds."""

    pid: int
    """The id of that process."""
    enter: Callable[[], None]
    """What a child process calls between fork and exec."""


@cache
def why_not_permitted() -> str | None:
    """Why this machine permits no namespace; None where it does. Tried once."""
    try:
        with isolated():
            return None
    except NotPermittedError as error:
        return error.reason


class NotPermittedError(RequestError):
    """This machine permits no network namespace."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@contextmanager
def isolated() -> Iterator[Network]:
    """Make the namespace; it is gone when its processes have ended.

    Raises:
        NotPermittedError: this machine does not permit it.
    """
    # A separate process holds it: a thread that entered would stay there, and user namespaces refuse threads.
    with signals_held(), ExitStack() as stack:
        holder = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "dpcompare.system.network_namespace"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is not for it
                preexec_fn=die_with_parent,
            )
        )
        stack.callback(holder.kill)
        assert holder.stdout is not None
        answer = holder.stdout.readline().strip()
        if answer != "ready":
            reason = answer or "no answer"
            raise NotPermittedError(
                f"this machine permits no network namespace ({reason}), which --isolate and --engine namespaces need; "
                "run as root, allow unprivileged user namespaces, or leave the option out",
                reason,
            )
        namespaces = [Path(f"/proc/{holder.pid}/ns/{kind}") for kind in ("user", "net")]
        # Those that this process is in already cannot be entered again.
        files = [
            os.open(path, os.O_RDONLY)
            for path in namespaces
            if path.stat().st_ino != Path(f"/proc/self/ns/{path.name}").stat().st_ino
        ]
        try:
            try:
                subprocess.run(["true"], preexec_fn=lambda: _enter(files), check=True)
            except subprocess.SubprocessError as error:
                raise NotPermittedError(
                    f"the network namespace that --isolate or --engine namespaces needs cannot be entered ({error}); "
                    "leave the option out",
                    str(error),
                ) from None
            yield Network(holder.pid, lambda: _enter(files))
        finally:
            for file in files:
                os.close(file)


def _enter(namespaces: list[int]) -> None:
    for file in namespaces:
        _call("setns", file, 0)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def leave_the_network() -> None:
    """Have this process in a namespace with loopback alone; as root, or as the only user of a user namespace.

    Raises:
        OSError: this machine does not permit it.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        _call("unshare", _CLONE_NEWNET)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    try:
        leave_the_network()
    except OSError as failure:
        print(failure.strerror)
        sys.exit(1)
    print("ready", flush=True)
    sys.stdin.read()  # until the launcher closes it, or is gone
