"""A user's backend, looked at in a separate process: `python -m dpcompare.backends.own_backend`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from dpcompare.backends import load_backend
from dpcompare.backends.keras import compute_with
from dpcompare.errors import RequestError, in_words
from dpcompare.system.commands import run_command

LONGEST_SECONDS = 600.0
"""What the import of a framework and of a user's module may take."""


@cache
def require_own_backend(name: str, framework: str, mode: str, python: str) -> None:
    """Raise RequestError unless an interpreter finds a user's backend, before any process trains with it.

    Args:
        name: `package.module:CLASS`.
        framework: that it trains with.
        mode: as which it is started.
        python: the interpreter whose environment holds the framework.
    """
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "problem")
        argv = [python, "-P", "-m", "dpcompare.backends.own_backend", framework, mode, name, str(answer)]
        try:
            done = run_command(argv, seconds=LONGEST_SECONDS, env=env, until_exit=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RequestError(f"backend: {name!r} cannot be checked with {python!r}: {error}") from None
        problem = answer.read_text() if answer.exists() else None
    if problem is None:  # killed, crashed, or ended by its own code
        said = done.stderr.rstrip()[-2000:] or "it printed nothing"
        raise RequestError(f"backend: the process that imported {name!r} ended with status {done.returncode}; {said}")
    if problem:
        raise RequestError(problem)


def _problem(framework: str, mode: str, name: str) -> str:
    compute_with(framework)
    try:
        load_backend(framework, mode, name)
    except RequestError as error:
        return str(error)
    except BaseException as error:  # whatever a user's module does
        return f"backend: {name!r} cannot be imported ({in_words(error)})"
    return ""


if __name__ == "__main__":
    problem = _problem(*sys.argv[1:4])
    # Under another name until it is whole, and the process ends at once: a module may have left threads.
    written = Path(f"{sys.argv[4]}.tmp")
    written.write_text(problem)
    written.replace(sys.argv[4])
    os._exit(0)
