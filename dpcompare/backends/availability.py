"""The requirements of a mode on its environment: packages, compiler, devices."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dpcompare._version import __version__
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES
from dpcompare.config.tuning import COMPILE_MODES
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command
from dpcompare.system.terminal_text import pluralize


def missing_packages(framework: str, python: str = sys.executable) -> list[str]:
    """The packages of a framework that an interpreter cannot find; nothing is imported.

    Raises:
        RequestError: there is no such interpreter.
    """
    return _missing(framework, FRAMEWORKS[framework].packages, python)


def _missing(framework: str, packages: Sequence[str], python: str) -> list[str]:
    if python == sys.executable:
        return [package for package in packages if find_spec(package) is None]
    code = "import sys\nfrom importlib.util import find_spec\nprint(*[p for p in sys.argv[1:] if not find_spec(p)])"
    return _answer(framework, python, code, ["dpcompare", *packages]).split()


def _versions(framework: str, packages: Iterable[str], python: str) -> list[str]:
    if python == sys.executable:
        return [version(package) for package in packages]
    code = "import sys\nfrom importlib.metadata import version\nprint(*map(version, sys.argv[1:]))"
    return _answer(framework, python, code, packages).split()


# Runs in the interpreter of a framework: versions without importing it.
_ASK_VERSIONS = """
import json, sys
from importlib import metadata
versions = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        for other in metadata.packages_distributions().get(name, [])[:1]:
            versions[name] = metadata.version(other)
print(json.dumps(versions))
"""


def installed_versions(framework: str, packages: Sequence[str], python: str = sys.executable) -> dict[str, str]:
    """`python` and those of some packages that are installed for an interpreter -> their versions; nothing is imported.

    A package may come from a distribution of another name, such as tensorflow-cpu.

    Raises:
        RequestError: there is no such interpreter.
    """
    answer: dict[str, str] = json.loads(_answer(framework, python, _ASK_VERSIONS, packages))
    return answer


def _answer(framework: str, python: str, code: str, arguments: Iterable[str]) -> str:
    """What the interpreter of a framework prints."""
    try:
        # -P: a folder named like a framework in the current directory is not the framework.
        answer = run_command([python, "-P", "-c", code, *arguments], seconds=60)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestError(
            f"the interpreter {python!r} for {framework} cannot be used: {_in_a_line(error)}; expected the path of a "
            f"Python 3.11 or newer, in the environment that holds dpcompare[{framework}]"
        ) from None
    return answer.stdout


def _in_a_line(error: OSError | subprocess.SubprocessError) -> str:
    """Why a command failed, without the program that it was given."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it did not answer within {error.timeout:.0f} s"
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    lines = (error.stderr or "").strip().splitlines() or [f"it ended with exit status {error.returncode}"]
    return lines[0] if "option -P" in lines[0] or "option: -P" in lines[0] else lines[-1]  # the last names an exception


def require_compiler(tuning: Mapping[str, str]) -> None:
    """Raise RequestError where settings need a C++ compiler and there is none."""
    compiler = os.environ.get("CXX", "g++")  # as torch looks for it
    if tuning.get("compilation") in COMPILE_MODES and not shutil.which(compiler):
        raise RequestError(
            f"torch.compile needs a C++ compiler, and {compiler!r} is not found; install one (such as g++, with "
            "Python's headers), name it in CXX, or do without: --tune compilation=none"
        )


def require_framework(framework: str, python: str = sys.executable, environment: str | None = None) -> None:
    """Raise RequestError, naming the extra to install, unless `python` has the framework, as new as is needed.

    `environment` is the named environment that the interpreter belongs to; None: the framework's usual one.
    """
    if missing := missing_packages(framework, python):
        where = f" in env={environment}" if environment else ""
        options = f"--env NAME {framework}" if environment else f"--frameworks {framework}"
        raise RequestError(
            f"{framework} is not usable{where}: {', '.join(missing)} not installed for {python}; expected an "
            f"environment that has it: `dpcompare setup {options}` makes one, or: {python} -m pip install "
            f"'dpcompare[{framework}]'"
        )
    if least := FRAMEWORKS[framework].least_versions:
        for (package, first), found in zip(least.items(), _versions(framework, least, python), strict=True):
            if tuple(map(int, re.findall(r"\d+", found)[: len(first)])) < first:
                raise RequestError(
                    f"{framework} is not usable: {package} {found} is installed for {python}, expected "
                    f"{'.'.join(map(str, first))} or newer: {python} -m pip install --upgrade 'dpcompare[{framework}]'"
                )


def is_usable(framework: str, python: str = sys.executable) -> bool:
    """Whether `require_framework` finds nothing missing."""
    try:
        require_framework(framework, python)
    except RequestError:
        return False
    return True


# Not by the metadata, which an editable installation keeps from when it was made.
_ASK_DPCOMPARE = """
from pathlib import Path
try:
    from dpcompare import _version
except ImportError:
    print("none")
else:
    print(_version.__version__, Path(_version.__file__).parent, sep="\\n")
"""


def require_same_dpcompare(framework: str, python: str) -> None:
    """Raise RequestError where an interpreter has another dpcompare than this one, which may train otherwise."""
    if python == sys.executable:
        return
    found, *folder = _answer(framework, python, _ASK_DPCOMPARE, []).splitlines()
    if found != __version__:
        difference = f"has dpcompare {found}, and this is {__version__}"
    elif differing := _other_module(Path(folder[0])):
        difference = f"has another dpcompare {found} than this one: {differing}"
    else:
        return
    # The versions of what it depends on may be what is compared.
    options = "--force-reinstall --no-deps " if folder else ""
    raise RequestError(
        f"{python} {difference}; expected the same in every environment: {python} -m pip install {options}"
        f"'dpcompare=={__version__}', or from where this one was installed"
    )


def _other_module(folder: Path) -> str | None:
    """How the first module of another dpcompare that differs from this one's does; None if none does."""
    own = Path(__file__).parents[1]
    if folder.samefile(own):
        return None
    for module in sorted({path.relative_to(root) for root in (own, folder) for path in root.rglob("*.py")}):
        having = [root for root in (own, folder) if (root / module).is_file()]
        if len(having) == 1:
            return f"{module} is in {having[0]} alone"
        if not filecmp.cmp(own / module, folder / module, shallow=False):
            return f"{module} differs"
    return None


def require_devices(framework: str, device_type: str, count: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raise RequestError where a variable of the framework's own leaves a process fewer devices on the CPU."""
    variable = FRAMEWORKS[framework].devices_variable
    allowed = environ.get(variable, "")
    if device_type == "cpu" and allowed.isdecimal() and int(allowed) < count:
        raise RequestError(
            f"{variable} is {allowed}, and each process of the run is to have {pluralize(count, 'device')}; unset it, "
            f"or ask for at most {allowed} with --devices-per-node"
        )


def require_mode(framework: str, mode: str, python: str = sys.executable, environment: str | None = None) -> None:
    """Raise RequestError, as `require_framework`, unless `python` has all that a mode needs."""
    require_framework(framework, python, environment=environment)
    if (
        MODES[framework, mode].device_types == {"tpu"}
        and "TPU_NAME" not in os.environ
        and not any(Path("/dev").glob("accel*"))
    ):
        raise RequestError(
            f"{framework} {mode} is not usable: there is no TPU here (no /dev/accel*, and TPU_NAME is not set); "
            "expected a TPU machine, or the name of a TPU in TPU_NAME"
        )
    row = MODES[framework, mode]
    if missing := _missing(framework, row.packages, python):
        raise RequestError(
            f"{framework} {mode} is not usable: {', '.join(missing)} not installed for {python}; "
            f"install the extra with: {python} -m pip install 'dpcompare[{framework},{row.extra or mode}]'"
        )
