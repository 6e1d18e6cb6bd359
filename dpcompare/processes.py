"""Processes that never outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal

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
