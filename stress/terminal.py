"""What a command writes on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

ROWS = 50


def on_terminal(
    command: Sequence[str], columns: int, *, environment: Mapping[str, str] | None = None, stdout: int | None = None
) -> str:
    """What a command writes on a terminal of so many columns, with its control sequences.

    Args:
        environment: of the command; default: that of this process.
        stdout: where it goes, if not to the terminal.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    with subprocess.Popen(
        command, stdin=its, stdout=its if stdout is None else stdout, stderr=its, env=environment
    ) as process:
        os.close(its)
        written = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other side has closed it
        return b""
