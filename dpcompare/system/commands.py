"""Commands: other programs, run to their end within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO

from dpcompare.system.processes import PROCESS_POLL_SECONDS, die_with_parent, kill_groups, signal_group
from dpcompare.system.signals import Deadline, signals_held

_STDERR = 2


def run_command(
    argv: Sequence[str],
    *,
    seconds: float,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    interruptible: bool = True,
    shown: bool = False,
    until_exit: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit status and what it printed.

    Args:
        argv: the program and its arguments.
        seconds: after which it is killed.
        text: its standard input.
        env: its environment; default: that of this process.
        interruptible: whether Ctrl-C kills it too, rather than waiting for its end.
        shown: whether what it prints goes to our stderr instead of being returned.
        until_exit: whether its own end counts, rather than that of all that inherit its output; they are killed.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has been killed after `seconds`.
        KeyboardInterrupt: it has been killed by Ctrl-C.
    """
    deadline = Deadline(seconds)
    with ExitStack() as stack:
        signals = stack.enter_context(signals_held())
        # Of pipes the end comes when the last process that has them ends.
        files = [stack.enter_context(_file_of("")) for _ in range(2)] if until_exit else []
        # Not as a context, whose end waits without a limit: one that waits for a broken device cannot be killed.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if text is None else stack.enter_context(_file_of(text)),
            stdout=_STDERR if shown else files[0] if files else subprocess.PIPE,
            stderr=_STDERR if shown else files[1] if files else subprocess.PIPE,
            text=True,
            errors="replace",  # such as the name of a device, in any encoding
            env=env,
            start_new_session=True,  # Ctrl-C is for this process
            preexec_fn=partial(die_with_parent, os.getpid()),  # or an installer would continue when we are killed
        )
        for pipe in filter(None, (process.stdout, process.stderr)):
            stack.enter_context(pipe)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    output, errors = process.communicate(timeout=PROCESS_POLL_SECONDS)
                    if files:
                        signal_group(process.pid, signal.SIGKILL)
                        output, errors = map(_content, files)
                    return subprocess.CompletedProcess(argv, process.returncode, output, errors)
                if interruptible:
                    signals.deliver()
                if deadline.passed:
                    raise subprocess.TimeoutExpired(argv, seconds)
        finally:
            if process.returncode is None:
                kill_groups([process])


def _content(file: IO[str]) -> str:
    """The end of what was written."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_BYTES))
    return file.read()


MOST_BYTES = 1_000_000
"""Read of what a command has printed that was only waited for until it exits."""


@contextmanager
def _file_of(text: str) -> Iterator[IO[str]]:
    """A file to read a text from: a `communicate` that continues after a time-out writes no more into a pipe."""
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        file.write(text)
        file.seek(0)
        yield file
