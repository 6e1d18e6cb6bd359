"""Shared runs and shared time: what the tests of a session, in one process or several, make once or one by one."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dpcompare.config.run import RunConfig
from dpcompare.launch.outcome import LaunchOutcome
from dpcompare.launch.run import run
from dpcompare.results.result import RunResult
from dpcompare.results.run_dir import RESULT_FILE


class SharedRuns:
    """Completed runs by their config: whoever asks first makes a run, all others read it and must not change it."""

    def __init__(self, folder: Path, launch: Callable[..., LaunchOutcome]) -> None:
        """`launch` starts their processes, as `dpcompare.launch.local.launch` does."""
        self._folder = folder
        self._launch = launch
        folder.mkdir(exist_ok=True)

    def __call__(self, config: RunConfig) -> tuple[RunResult, Path]:
        """The result of a config and its run directory."""
        run_dir = self._folder / hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]
        with held(run_dir.with_suffix(".lock"), fcntl.LOCK_EX):
            if not (run_dir / RESULT_FILE).is_file() or RunResult.load(run_dir).status != "completed":
                shutil.rmtree(run_dir, ignore_errors=True)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("dpcompare.launch.attempt.launch", self._launch)
                    run(config, run_dir)
        return RunResult.load(run_dir), run_dir


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Hold the lock of a file, `fcntl.LOCK_EX` or `fcntl.LOCK_SH`; waits for it."""
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """A test's time: alongside those of other processes, or with none alongside it.

    All pass a turnstile, in which one that is to be alone waits for the others to end and lets none begin.
    """
    with ExitStack() as stack:
        with held(folder / "turnstile", fcntl.LOCK_EX):
            stack.enter_context(held(folder / "tests", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield
