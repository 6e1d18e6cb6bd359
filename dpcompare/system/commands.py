"""Commands: other programs, run to their end within a time limit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO

from dpcompare.system.deadline import Deadline
from dpcompare.system.processes import PROCESS_POLL_SECONDS, die_with_parent, kill_groups
from dpcompare.system.signals import signals_held

_STDERR = 2


def run_command(
    argv: Sequence[str],
    *,
    seconds: float,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    interruptible: bool = True,
    shown: bool = False,
    tied: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit status and what it printed.

    Args:
        argv: the program and its arguments.
        seconds: after which it is killed.
        text: its standard input.
        env: its environment; default: that of this process.
        interruptible: whether Ctrl-C kills it too, rather than waiting for its end.
        shown: whether what it prints goes to our stderr instead of being returned.
        tied: whether the kernel kills it where this process is killed, which has no time to.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has been killed after `seconds`.
        KeyboardInterrupt: it has been killed by Ctrl-C.
    """
    deadline = Deadline(seconds)
    with ExitStack() as stack:
        signals = stack.enter_context(signals_held())
        process = stack.enter_context(
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if text is None else stack.enter_context(_file_of(text)),
                stdout=_STDERR if shown else subprocess.PIPE,
                stderr=_STDERR if shown else subprocess.PIPE,
                text=True,
                errors="replace",  # such as the name of a device, in any encoding
                env=env,
                start_new_session=True,  # Ctrl-C is for this process
                preexec_fn=partial(die_with_parent, os.getpid()) if tied else None,
            )
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    output, errors = process.communicate(timeout=PROCESS_POLL_SECONDS)
                    return subprocess.CompletedProcess(argv, process.returncode, output, errors)
                if interruptible:
                    signals.deliver()
                if deadline.passed:
                    raise subprocess.TimeoutExpired(argv, seconds)
        finally:
            if process.returncode is None:
                kill_groups([process])


@contextmanager
def _file_of(text: str) -> Iterator[IO[str]]:
    """A file to read a text from: a `communicate` that continues after a time-out writes no more into a pipe."""
    with tempfile.TemporaryFile("w+") as file:
        file.write(text)
        file.seek(0)
        yield file
