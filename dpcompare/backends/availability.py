"""The requirements of a mode on its environment: packages, compiler, devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from dpcompare.config.modes import FRAMEWORKS, MODES
from dpcompare.config.tuning import COMPILE_MODES
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command


def missing_packages(framework: str, python: str = sys.executable) -> list[str]:
    """The packages of a framework that an interpreter cannot find; nothing is imported.

    Raises:
        RequestError: there is no such interpreter.
    """
    return _missing(framework, FRAMEWORKS[framework].packages, python)


def _missing(framework: str, packages: Sequence[str], python: str) -> list[str]:
    if python == sys.executable:
        return [package for package in packages if find_spec(package) is None]
    packages = ("dpcompare", *packages)
    code = "import sys\nfrom importlib.util import find_spec\nprint(*[p for p in sys.argv[1:] if not find_spec(p)])"
    try:
        # -P: a folder named like a framework in the current directory is not the framework.
        answer = run_command([python, "-P", "-c", code, *packages], seconds=60)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestError(
            f"the interpreter {python!r} for {framework} cannot be used: {error}; expected the path of a Python 3.11 "
            f"or newer, in the environment that holds dpcompare[{framework}]"
        ) from None
    return answer.stdout.split()


def require_compiler(tuning: Mapping[str, str]) -> None:
    """Raise RequestError where settings need a C++ compiler and there is none."""
    compiler = os.environ.get("CXX", "g++")  # as torch looks for it
    if tuning.get("compilation") in COMPILE_MODES and not shutil.which(compiler):
        raise RequestError(
            f"torch.compile needs a C++ compiler, and {compiler!r} is not found; install one (such as g++, with "
            "Python's headers), name it in CXX, or do without: --tune compilation=none"
        )


def require_framework(framework: str, python: str = sys.executable) -> None:
    """Raise RequestError, naming the extra to install, unless `python` has the framework."""
    if missing := missing_packages(framework, python):
        raise RequestError(
            f"{framework} is not usable: {', '.join(missing)} not installed for {python}; "
            f"`dpcompare setup` makes an environment for it, or: {python} -m pip install 'dpcompare[{framework}]'"
        )


def require_mode(framework: str, mode: str, python: str = sys.executable) -> None:
    """Raise RequestError, naming the extra to install, unless `python` has all that a mode needs."""
    require_framework(framework, python)
    if (
        MODES[framework, mode].device_types == {"tpu"}
        and "TPU_NAME" not in os.environ
        and not any(Path("/dev").glob("accel*"))
    ):
        raise RequestError(
            f"{framework} {mode} is not usable: there is no TPU here (no /dev/accel*, and TPU_NAME is not set); "
            "expected a TPU machine, or the name of a TPU in TPU_NAME"
        )
    if missing := _missing(framework, MODES[framework, mode].packages, python):
        raise RequestError(
            f"{framework} {mode} is not usable: {', '.join(missing)} not installed for {python}; "
            f"install the extra with: {python} -m pip install 'dpcompare[{framework},{mode}]'"
        )
