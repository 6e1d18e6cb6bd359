"""Commands: other programs, run to their end within a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from dpcompare.system.deadline import Deadline
from dpcompare.system.processes import PROCESS_POLL_SECONDS, kill_groups
from dpcompare.system.signals import signals_held


def run_command(
    argv: Sequence[str], *, seconds: float, text: str | None = None, interruptible: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit status and what it printed.

    Args:
        argv: the program and its arguments.
        seconds: after which it is killed.
        text: its standard input.
        interruptible: whether Ctrl-C kills it too, rather than waiting for its end.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has been killed after `seconds`.
        KeyboardInterrupt: it has been killed by Ctrl-C.
    """
    deadline = Deadline(seconds)
    with signals_held() as signals:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process
        )
        with process:
            try:
                while True:
                    try:
                        output, errors = process.communicate(text, timeout=PROCESS_POLL_SECONDS)
                        return subprocess.CompletedProcess(argv, process.returncode, output, errors)
                    except subprocess.TimeoutExpired:
                        text = None  # what is left of it is sent by the next call
                    if interruptible:
                        signals.deliver()
                    if deadline.passed:
                        raise subprocess.TimeoutExpired(argv, seconds)
            finally:
                if process.returncode is None:
                    kill_groups([process])
