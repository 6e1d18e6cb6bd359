"""What `doctor` finds of a machine and its frameworks without a run."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpcompare.backends.availability import installed_versions, require_framework
from dpcompare.backends.cuda_wheels import Code, code_for, compiled_for, cuda_problem, cuda_wheels_of, gpus_seen
from dpcompare.backends.description import speed_variables, withheld_variables
from dpcompare.backends.other_variables import other_variables
from dpcompare.config.cluster import Cluster
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command
from dpcompare.system.devices import available_cores, compute_capabilities
from dpcompare.system.ports import free_ports

Status = Literal["ok", "note", "problem"]

TESTED = {"python": ("3.11",)} | {
    name: versions for row in FRAMEWORKS.values() for name, versions in row.tested_versions.items()
}
"""MAJOR.MINOR of what the figures of the documentation were made with."""

LEAST_SHARED_MEMORY = 1 << 30
LEAST_OPEN_FILES = 1024


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def recorded_environment() -> Finding:
    """What result files and pages will hold of this environment."""
    set_here = speed_variables(threads=0)
    recorded = (
        ", ".join(f"{name}={value}" for name, value in set_here.items()) or "no variable that changes speed is set"
    )
    withheld = withheld_variables()
    not_recorded = f"; not recorded, since they look like secrets: {', '.join(withheld)}" if withheld else ""
    others = other_variables(os.environ, key="")
    by_digest = f"; by name and a digest of the value: {', '.join(others)}" if others else ""
    return Finding(name="environment, as recorded", status="ok", found=f"{recorded}{by_digest}{not_recorded}")


def cores() -> Finding:
    """How many there are for processes."""
    cores = available_cores()
    found = f"{cores} usable of {os.cpu_count()}, {max(1, cores // 2)} for each of 2 processes"
    if cores < 2:
        return Finding(
            name="cores", status="note", found=found, remedy="two processes will share one core: expect slow runs"
        )
    return Finding(name="cores", status="ok", found=found)


def limits() -> Iterator[Finding]:
    """What processes need to reach each other and the GPUs: ports, shared memory and open files."""
    try:
        ports = free_ports(2)
        yield Finding(name="ports", status="ok", found=f"loopback gives free ports such as {ports[0]}")
    except OSError as error:
        yield Finding(
            name="ports", status="problem", found=str(error), remedy="allow sockets on 127.0.0.1: processes meet there"
        )
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    yield Finding(
        name="/dev/shm",
        status="ok" if shared >= LEAST_SHARED_MEMORY else "note",
        found=f"{shared >> 20:,} MiB free",
        remedy="" if shared >= LEAST_SHARED_MEMORY else "NCCL uses it between GPUs: in a container give --shm-size=2g",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding(
        name="open files",
        status="ok" if soft >= LEAST_OPEN_FILES else "note",
        found=f"limit {soft}, at most {hard}",
        remedy="" if soft >= LEAST_OPEN_FILES else f"ulimit -n {min(hard, 65536)}",
    )


def of_framework(framework: str, python: str, gpus: Sequence[str]) -> Iterator[Finding]:
    """Whether an interpreter has a framework of known versions, that finds the GPUs and has code for them."""
    packages = FRAMEWORKS[framework].packages
    try:
        versions = installed_versions(framework, packages, python)
        wheels = cuda_wheels_of(python)
    except (ValueError, RequestError) as error:
        yield Finding(
            name=framework,
            status="problem",
            found=str(error),
            remedy=f"`dpcompare setup --frameworks {framework}` makes one, or name one that holds "
            f"dpcompare[{framework}] with --python {framework}=PATH",
        )
        return
    yield from judge_versions(framework, packages, versions, python)
    if versions.keys() >= set(packages):
        try:
            require_framework(framework, python)
        except RequestError as error:  # too old, or only a distribution's files are left
            yield Finding(name=framework, status="problem", found=str(error))
    name = f"{framework} CUDA wheels"
    if (wheels.claimed_twice or gpus) and (problem := cuda_problem(framework, python, wheels)):
        yield Finding(name=name, status="problem", found=problem.found, remedy=problem.remedy)
    elif gpus:
        listed = ", ".join(f"{wheel} {version}" for wheel, version in sorted(wheels.versions.items()))
        yield Finding(name=name, status="ok", found=listed or "none: its libraries are the system's")
    if gpus and framework in versions:
        yield from _gpu_code(framework, python, gpus)
        yield _gpus_seen(framework, python, gpus)


def _gpus_seen(framework: str, python: str, gpus: Sequence[str]) -> Finding:
    """Whether a framework finds the GPUs that the driver lists."""
    name = f"{framework} GPUs"
    try:
        seen, said = gpus_seen(framework, python)
    except RequestError as error:
        return Finding(name=name, status="problem", found=str(error), remedy=f"repair the environment of {python}")
    found = f"it finds {seen} of {len(gpus)}"
    if seen == len(gpus):
        return Finding(name=name, status="ok", found=found)
    if seen:
        return Finding(
            name=name, status="note", found=found, remedy="a process sees one MIG slice; where there are none, ask why"
        )
    return Finding(
        name=name,
        status="problem",
        found=f"{found}: {said or 'it does not say why'}",
        remedy=f"`dpcompare setup --frameworks {framework}` makes an environment for GPUs, or repair that of {python}",
    )


def _gpu_code(framework: str, python: str, gpus: Sequence[str]) -> Iterator[Finding]:
    """Whether a framework was compiled for each kind of GPU."""
    name = f"{framework} GPU code"
    capabilities = sorted(set(compute_capabilities(gpus).values()))
    if not capabilities:
        yield Finding(name=name, status="note", found="unknown: neither nvidia-smi nor NVML reports compute capability")
        return
    try:
        architectures = compiled_for(framework, python)
    except RequestError as error:
        yield Finding(name=name, status="problem", found=str(error), remedy=f"repair the environment of {python}")
        return
    if architectures is not None:
        yield from (judge_gpu_code(framework, capability, architectures) for capability in capabilities)


_JUDGED: dict[Code, tuple[Status, str]] = {
    "machine code": ("ok", ""),
    "PTX": (
        "note",
        "the driver compiles every kernel when it is first used: the first run takes minutes, and in a container each "
        "does unless CUDA_CACHE_PATH names a folder that is kept",
    ),
    "none": (
        "problem",
        "install a {framework} that was built for it: another release, or one for another version of CUDA",
    ),
}
"""What follows from the code that a build has for a GPU, and what is to be done."""


def judge_gpu_code(framework: str, capability: tuple[int, int], architectures: Sequence[str]) -> Finding:
    """What the code in a build says of a kind of GPU."""
    version = ".".join(map(str, capability))
    code = code_for(capability, architectures)
    status, remedy = _JUDGED[code]
    return Finding(
        name=f"{framework} GPU code",
        status=status,
        found=f"{code} for compute capability {version}, built for {' '.join(architectures) or 'no GPU'}",
        remedy=remedy.format(framework=framework),
    )


def judge_versions(
    framework: str, packages: Sequence[str], versions: Mapping[str, str], python: str
) -> Iterator[Finding]:
    """What the versions in an environment say of a framework."""
    if missing := [package for package in packages if package not in versions]:
        yield Finding(
            name=framework,
            status="problem",
            found=f"{', '.join(missing)} not installed for {python}",
            remedy=f"`dpcompare setup --frameworks {framework}`, or {python} -m pip install 'dpcompare[{framework}]'",
        )
        return
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    untested = [name for name, version in versions.items() if ".".join(version.split(".")[:2]) not in TESTED[name]]
    tested = ", ".join(f"{name} {' and '.join(TESTED[name])}" for name in untested)
    yield Finding(
        name=framework,
        status="note" if untested else "ok",
        found=f"{found} ({python})",
        remedy=f"tested with {tested}: run dpcompare verify" if untested else "",
    )


def of_gpus(gpus: Sequence[str]) -> Iterator[Finding]:
    """How many are visible, whether a run can have two of them, and who else uses them."""
    if not gpus:
        yield Finding(name="GPUs", status="ok", found="none visible or asked for: devices are simulated on the CPU")
        return
    yield Finding(name="GPUs", status="ok", found=f"{len(gpus)} visible: {', '.join(gpus)}")
    if apart := why_apart(gpus[:2]):
        yield Finding(name="GPUs together", status="note", found=apart, remedy="the modes are tried on one")
    command = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"]
    try:
        listing = run_command(command, seconds=30)
        listing.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(name="GPUs in use", status="note", found=f"unknown: {error}")
        return
    if answer := listing.stdout.strip():
        yield Finding(
            name="GPUs in use",
            status="note",
            found="; ".join(answer.splitlines()),
            remedy="other processes take memory and time: end them, or choose others with --gpus",
        )


def why_apart(gpus: Sequence[str]) -> str:
    """Why no run can have all of these GPUs; "" where it can."""
    try:
        Cluster.partition(1, gpus=gpus)
    except RequestError as error:
        return str(error)
    return ""
