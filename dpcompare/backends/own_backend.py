"""A user's backend, looked at in a separate process: `python -m dpcompare.backends.own_backend`."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from dpcompare.backends import load_backend
from dpcompare.errors import RequestError, in_words
from dpcompare.system.commands import run_command

LONGEST_SECONDS = 600.0
"""What the import of a framework and of a user's module may take."""
REFUSED = 3
"""Exit status where there is no such backend."""


@cache
def require_own_backend(name: str, framework: str, mode: str, python: str) -> None:
    """Raise RequestError unless an interpreter finds a user's backend, before any process trains with it.

    Args:
        name: `package.module:CLASS`.
        framework: that it trains with.
        mode: as which it is started.
        python: the interpreter whose environment holds the framework.
    """
    argv = [python, "-P", "-m", "dpcompare.backends.own_backend", framework, mode, name]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = run_command(argv, seconds=LONGEST_SECONDS, env=env, until_exit=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"backend: {name!r} cannot be looked at with {python!r}: {error}") from None
    if done.returncode == REFUSED:
        raise RequestError(done.stdout.strip())
    if done.returncode:
        said = done.stderr.rstrip()[-2000:] or "it printed nothing"
        raise RequestError(f"backend: importing {name!r} ended with exit status {done.returncode}; {said}")


def _problem(framework: str, mode: str, name: str) -> str | None:
    try:
        load_backend(framework, mode, name)
    except RequestError as error:
        return str(error)
    except BaseException as error:  # whatever a user's module does
        return f"backend: {name!r} cannot be imported ({in_words(error)})"
    return None


if __name__ == "__main__":
    problem = _problem(*sys.argv[1:])
    if problem is not None:
        print(problem)
    sys.stdout.flush()
    os._exit(0 if problem is None else REFUSED)  # a module may have left threads
