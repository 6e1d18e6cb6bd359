"""How many GPUs a framework finds: fewer than the driver lists, where its build or its libraries do not fit."""

from __future__ import annotations

import subprocess

from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command

START_SECONDS = 120.0


def gpus_seen(framework: str, python: str) -> tuple[int, str]:
    """How many of the visible GPUs a framework can use, and the end of what it said about them.

    Raises:
        RequestError: the interpreter, or the framework in it, cannot be used.
    """
    try:
        answer = run_command([python, "-P", "-c", FRAMEWORKS[framework].count_gpus], seconds=START_SECONDS)
        answer.check_returncode()
        return int(answer.stdout), " ".join(answer.stderr.split())[-300:]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RequestError(f"the {framework} of {python!r} cannot be asked which GPUs it finds: {error}") from None
