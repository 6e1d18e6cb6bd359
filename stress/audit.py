"""What code does to its machine, as an audit hook sees it: what it executes, and changes outside of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

EXECUTES = frozenset({
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn",
    "pickle.find_class", "ctypes.dlopen", "socket.connect", "socket.bind", "urllib.Request",
})  # fmt: skip
CHANGES = frozenset({
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
})  # fmt: skip


def violation(event: str, arguments: Sequence[Any], folder: str) -> str | None:
    """What an audited event did that a reader may not: execute anything, or change what is outside of a folder."""
    if event in EXECUTES:
        if event == "pickle.find_class" and _is_between_threads(*arguments):
            return None
        return f"{event} {arguments!r:.300}"
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return f"open {path}" if writes and not _is_in(path, folder) else None
    if event in CHANGES and not _is_in(arguments[0], folder):
        return f"{event} {arguments!r:.300}"
    return None


def _is_between_threads(module: str, name: str) -> bool:
    """Whether it is what tensorboardX hands to a thread of its own."""
    return module.split(".")[0] == "tensorboardX" or (module, name) == ("builtins", "object")


def _is_in(path: Any, folder: str) -> bool:
    return str(path).startswith((folder, "/dev/null"))
