"""The command line: in a process of its own, or called here where no process is the point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest

from dpcompare.cli import main


@dataclass(frozen=True)
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def with_default_signals() -> None:
    """In the child: tests may run under nohup or in the background of a shell, where signals are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dpcompare", *map(str, arguments)],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_default_signals,
    )


def python(*arguments: str) -> None:
    """Run Python in a process of its own: a framework must not be loaded into the process of the tests."""
    done = subprocess.run([sys.executable, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def dpcompare(*arguments: str, **environment: str) -> Finished:
    process = start(*arguments, **environment)
    try:
        stdout, stderr = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends what it has started
        print(*process.communicate(timeout=600), sep="\n")
        raise
    return Finished(process.returncode, stdout, stderr)


def invoke(*arguments: object, **environment: str) -> Finished:
    """The command line called in this process: refusals, plans and tables; with the fixture `warm`, runs too."""
    stdout, stderr = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return Finished(ended.value.code, stdout.getvalue(), stderr.getvalue())
