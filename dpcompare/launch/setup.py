"""The environments of the frameworks: which interpreter each has here, and how one that is missing is made.

A framework that the interpreter which runs dpcompare can use stays there. Any other gets an environment of its own,
since the CUDA wheels of two frameworks overwrite each other's files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

from dpcompare._version import __version__
from dpcompare.backends.availability import missing_packages
from dpcompare.backends.cuda_wheels import cuda_problem, cuda_wheels_of, gpu_extras
from dpcompare.config.frameworks import FRAMEWORKS, Sizes, python_variable
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.system.cache import exclusive_lock
from dpcompare.system.files import expanded
from dpcompare.system.python_environment import PythonEnvironment
from dpcompare.system.secrets import without_passwords

DeviceType = Literal["cpu", "gpu"]


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a framework needs before it can be used here."""

    framework: str
    device: DeviceType
    python: str
    """Its interpreter: one that is there, or that of the environment to be made."""
    lacks: str = ""
    """Why no interpreter that is there can be used; empty where one can."""
    requirements: tuple[str, ...] = ()
    """What is to be installed, as pip takes it on its command line; nothing where no environment is to be made."""
    first: tuple[str, ...] = ()
    """What is installed before that: builds for CPUs, from an index of their own."""
    index: str = ""
    """The address of that index, also if it cannot be reached and nothing comes from it."""
    name: str | None = None
    """That of its environment, where it is not the usual one of the framework."""

    @property
    def is_met(self) -> bool:
        return not self.lacks


def environments_dir() -> Path:
    """DPCOMPARE_ENVIRONMENTS_DIR; or a folder of this virtual environment, which goes when that goes; or the user's."""
    from platformdirs import user_data_path

    if chosen := os.environ.get("DPCOMPARE_ENVIRONMENTS_DIR"):
        return expanded(chosen).absolute()
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "environments"
    try:
        return user_data_path("dpcompare", appauthor=False) / "environments"
    except RuntimeError:
        raise RequestError(
            "this user has no home directory (HOME is not set), and environments would be there; expected HOME, or "
            "DPCOMPARE_ENVIRONMENTS_DIR with a folder"
        ) from None


def environment_of(framework: str) -> PythonEnvironment:
    """The one that `dpcompare setup` makes, or has made, for a framework."""
    return PythonEnvironment(environments_dir() / framework)


def interpreter_made_for(framework: str) -> str | None:
    """The interpreter of the environment that `dpcompare setup` made for this dpcompare; None if it made none."""
    environment = environment_of(framework)
    if not environment.is_finished:
        return None
    made = any(_is_made(framework, device) for device in FRAMEWORKS[framework].extras)
    return environment.python if made else None


def usual_interpreter(framework: str) -> str:
    """What trains in a framework unless a run names another: of DPCOMPARE_X_PYTHON, else of `setup`, else this one."""
    named = os.environ.get(python_variable(framework))
    return named or interpreter_made_for(framework) or sys.executable


NAMED = "named"
"""The folder of the environments that have names of their own."""


def named_environment(name: str) -> PythonEnvironment:
    """The one that `dpcompare setup --env` makes, or has made, under a name."""
    return PythonEnvironment(environments_dir() / NAMED / name)


def interpreter_called(name: str) -> str | None:
    """The interpreter of a named environment that was made for this dpcompare; None if there is none."""
    environment = named_environment(name)
    is_ours = environment.is_finished and environment.has(environment.requirements, _origin())
    return environment.python if is_ours else None


def names_made() -> list[str]:
    """The names of all such environments, unfinished ones included."""
    return sorted(path.stem for path in (environments_dir() / NAMED).glob("*.json"))


def named_need(name: str, requirements: Sequence[str], frameworks: Sequence[str], device: DeviceType) -> Need:
    """What is to be installed for a named environment, which holds one framework; nothing where it is there.

    Args:
        name: of the environment.
        requirements: of the user, as pip takes them, in addition to those of dpcompare.
        frameworks: the framework that it is to have, where the requirements name none.
        device: what the framework is to use.

    Raises:
        RequestError: no framework is named, or several are.
    """
    asked = {_distribution_name(each): each for each in requirements}
    wanted = [framework for framework in FRAMEWORKS if framework in frameworks or asked.keys() & _names_of(framework)]
    if len(wanted) != 1:
        raise RequestError(
            f"--env: received {name!r} with {' and '.join(wanted) or 'no framework'}; expected one framework in each "
            "environment, by a requirement such as 'torch==2.13.*' or by --frameworks"
        )
    (framework,) = wanted
    environment, needed = named_environment(name), (*_requirements(_extras(framework, device)), *requirements)
    if environment.has(needed, _origin()):
        return Need(framework=framework, name=name, device=device, python=environment.python)
    index = _cpu_index(framework) if device == "cpu" else None
    is_taken = index and (_is_named(framework) or _answers(index))
    # In the versions that are asked for, or what comes after them would take other builds in their place.
    first = (asked.get(_distribution_name(each), each) for each in (_of_cpu_index(framework) if is_taken else ()))
    return Need(
        framework=framework,
        name=name,
        device=device,
        python=environment.python,
        lacks="its environment was not finished"
        if environment.is_unfinished
        else "it does not exist, or was made with other requirements",
        requirements=needed,
        first=tuple(first),
        index=index or "",
    )


def _names_of(framework: str) -> set[str]:
    """The distributions by which a framework is known."""
    index = FRAMEWORKS[framework].cpu_index
    return {framework, *FRAMEWORKS[framework].packages, *(index.distributions if index else ())}


def _distribution_name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def _is_made(framework: str, device: DeviceType) -> bool:
    """Whether it is made with the extras that would be taken now, or those that were while the driver was older."""
    row = FRAMEWORKS[framework]
    if device == "gpu" and environment_of(framework).first:
        return False  # builds for CPUs
    # Releases before 0.2 made that of TensorFlow for CPUs with the extra of the framework's name.
    possible = [row.extras[device], *(row.extras_of_cuda.values() if device == "gpu" else [(framework,)])]
    # Those of torch and JAX were made without Keras once.
    possible += [tuple(extra for extra in extras if extra != "keras") for extras in possible]
    return any(environment_of(framework).has(_requirements(extras), _origin()) for extras in possible)


def needs(frameworks: Sequence[str], device: DeviceType) -> list[Need]:
    """What each framework needs here.

    Args:
        frameworks: rows of FRAMEWORKS.
        device: what the frameworks are to use.

    Raises:
        RequestError: an interpreter that the user has named cannot be used.
    """
    return [_need(framework, device) for framework in frameworks]


def _need(framework: str, device: DeviceType) -> Need:
    variable = python_variable(framework)
    if named := os.environ.get(variable):
        if lack := _lack(framework, named, device):
            raise RequestError(f"{variable}: received {named!r}, but {lack.text}; install what it lacks, or unset it")
        return Need(framework=framework, device=device, python=named)
    python = interpreter_made_for(framework) or sys.executable  # as all other commands choose
    lack = _lack(framework, python, device)
    if lack is None:
        return Need(framework=framework, device=device, python=python)
    if lack.is_final or (_is_made(framework, device) and not _missing(framework, python)):
        return Need(framework=framework, device=device, python=python, lacks=lack.text)
    environment = environment_of(framework)
    index = _cpu_index(framework) if device == "cpu" else None
    return Need(
        framework=framework,
        device=device,
        python=environment.python,
        lacks="its environment was not finished" if environment.is_unfinished else lack.text,
        requirements=_requirements(_extras(framework, device)),
        first=_of_cpu_index(framework) if index and (_is_named(framework) or _answers(index)) else (),
        index=index or "",
    )


REACHED_SECONDS = 10.0


def _cpu_index(framework: str) -> str | None:
    """The address of the index with a framework's builds for CPUs; None: the usual one is taken."""
    row = FRAMEWORKS[framework].cpu_index
    return os.environ.get(row.variable, row.url).rstrip("/") or None if row else None


def _is_named(framework: str) -> bool:
    """Whether the user has named the index: it may need what only the installer has, such as a password."""
    row = FRAMEWORKS[framework].cpu_index
    return row is not None and row.variable in os.environ


def _answers(index: str) -> bool:
    """Whether an index can be reached; what it has is seen when it is installed from."""
    try:
        with urlopen(f"{index}/", timeout=REACHED_SECONDS):
            return True
    except (OSError, HTTPException, ValueError):  # no network, no such host, refused by a proxy, no address at all
        return False


def _of_cpu_index(framework: str) -> tuple[str, ...]:
    """What is taken from it, as pip takes it, in the versions that dpcompare's extra asks for."""
    row = FRAMEWORKS[framework].cpu_index
    assert row is not None
    wanted = (requirement.partition(";")[0].strip() for requirement in _distribution().requires or ())
    named = {_distribution_name(requirement): requirement for requirement in wanted}
    return tuple(named.get(name, name) for name in row.distributions)


class _Lack(NamedTuple):
    """Why an interpreter cannot be used for a framework."""

    text: str
    is_final: bool = False
    """Whether an environment of the same distributions would lack it too."""


def _lack(framework: str, python: str, device: DeviceType) -> _Lack | None:
    if missing := _missing(framework, python):
        return _Lack(missing)
    problem = cuda_problem(framework, python, cuda_wheels_of(python)) if device == "gpu" else None
    if problem is None:
        return None
    if problem.is_of_driver:
        return _Lack(f"{problem.found}; {problem.remedy}", is_final=True)
    return _Lack(problem.found)


def _missing(framework: str, python: str) -> str:
    try:
        missing = missing_packages(framework, python)
    except RequestError as error:
        return str(error)
    return f"{python} has no {' and no '.join(missing)}" if missing else ""


def _extras(framework: str, device: DeviceType) -> tuple[str, ...]:
    return gpu_extras(framework) if device == "gpu" else FRAMEWORKS[framework].extras[device]


def _requirements(named: Sequence[str]) -> tuple[str, ...]:
    """dpcompare from where this one was installed, with these extras (PEP 610, direct_url.json)."""
    extras = ",".join(named)
    installed_from = _direct_url(_distribution())
    if not installed_from:
        return (f"dpcompare[{extras}]=={__version__}",)
    url = installed_from["url"]
    if _is_editable(installed_from):
        return ("--editable", f"{unquote(urlsplit(url).path)}[{extras}]")
    if vcs := installed_from.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return (f"dpcompare[{extras}] @ {url}",)


def _origin() -> str:
    """A checksum of the dpcompare that the environments have a copy of; nothing where they share its files."""
    distribution = _distribution()
    if _is_editable(_direct_url(distribution)):
        return ""
    return hashlib.sha256((distribution.read_text("RECORD") or "").encode()).hexdigest()


def _direct_url(distribution: metadata.Distribution) -> dict[str, Any]:
    """What the installer wrote of an installation that is not from an index."""
    found: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    return found


def _is_editable(installed_from: dict[str, Any]) -> bool:
    return bool(installed_from.get("dir_info", {}).get("editable"))


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("dpcompare")
    except metadata.PackageNotFoundError:
        raise RequestError(
            f"dpcompare is not installed for {sys.executable}, only its folder is found, so no environment can get the "
            "same: pip install it, or name your interpreters with --python FRAMEWORK=PATH"
        ) from None


def sizes_of(wanted: Sequence[Need]) -> Sizes:
    """The sizes of the environments that are to be made, together."""
    rows = [(FRAMEWORKS[need.framework], need) for need in wanted]
    each = [row.cpu_index.sizes if row.cpu_index and need.first else row.sizes[need.device] for row, need in rows]
    return Sizes(download=sum(size.download for size in each), on_disk=sum(size.on_disk for size in each))


def require_space(wanted: Sequence[Need]) -> None:
    """Raise RequestError unless the disk has room for the environments to be made."""
    folder = environments_dir()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free, needed = shutil.disk_usage(there).free / 1e9, sizes_of(wanted).on_disk
    if free < needed:
        raise RequestError(
            f"{str(folder)!r} is on a disk with {free:.1f} GB free, expected about {needed:.0f} GB for the "
            "environments; name a folder on another disk with DPCOMPARE_ENVIRONMENTS_DIR"
        )


def remove(name: str) -> None:
    """Delete a named environment.

    Raises:
        RequestError: its folder holds something else, or another process makes environments there.
    """
    folder = environments_dir()
    with exclusive_lock(folder, f"another `dpcompare setup` works in {str(folder)!r}; wait for its end"):
        named_environment(name).remove()


def make(need: Need) -> Need:
    """Make the environment of a framework; returns what the framework lacks now, if anything.

    Raises:
        RequestError: its folder holds something else, or another process makes environments there.
        RunFailedError: the installer failed.
    """
    folder = environments_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{str(folder)!r} cannot be made ({error.strerror}); name another folder with DPCOMPARE_ENVIRONMENTS_DIR"
        ) from None
    with exclusive_lock(folder, f"another `dpcompare setup` works in {str(folder)!r}; wait for its end"):
        try:
            environment = environment_of(need.framework) if need.name is None else named_environment(need.name)
            environment.make(need.requirements, _origin(), first=need.first, index=need.index)
        except RunFailedError as error:
            row = FRAMEWORKS[need.framework].cpu_index
            if not need.first or row is None:
                raise
            raise RunFailedError(
                f"{error}; if {without_passwords(need.index)} is the reason, take the usual builds: {row.variable}= "
                "dpcompare setup",
                error.run_dir,
            ) from None
    cuda_wheels_of.cache_clear()
    lack = _lack(need.framework, need.python, need.device)
    return replace(need, lacks=lack.text if lack else "", requirements=(), first=(), index="")
