"""The diagnosis of `dpcompare doctor`: what would break a run on this machine, and what belongs in a bug report."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from dpcompare._version import __version__
from dpcompare.backends.availability import installed_versions, require_framework
from dpcompare.backends.cuda_wheels import Code, code_for, compiled_for, cuda_problem, cuda_wheels_of, gpus_seen
from dpcompare.backends.description import speed_variables, withheld_variables
from dpcompare.backends.other_variables import other_variables
from dpcompare.config.cluster import Cluster
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import MODES, frameworks_by_default, modes_of_each_framework
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, RunFailedError
from dpcompare.launch.run import run
from dpcompare.system.commands import run_command
from dpcompare.system.devices import available_cores, compute_capabilities, installed_gpus, visible_gpus
from dpcompare.system.machine import this_machine
from dpcompare.system.ports import free_ports
from dpcompare.system.signals import Deadline
from dpcompare.system.terminal_text import pluralize

Status = Literal["ok", "note", "problem"]

TESTED = {"python": ("3.11",)} | {
    name: versions for row in FRAMEWORKS.values() for name, versions in row.tested_versions.items()
}
"""MAJOR.MINOR of what the figures of the documentation were made with."""

LEAST_SHARED_MEMORY = 1 << 30
LEAST_OPEN_FILES = 1024
TRIAL_SECONDS = {"cpu": 180.0, "tpu": 900.0}
"""A mode that has not trained two steps of a tiny model by then counts as hanging; on GPUs, by the time in which a run
must have made its first step."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def diagnose(
    interpreters: Mapping[str, str],
    *,
    device: str,
    trials: bool,
    environments: Sequence[tuple[Environment, str | None]] = (),
    begins: Callable[[str], None] = lambda what: None,
) -> Iterator[Finding]:
    """Everything that can be found without a run, then a tiny run of every mode.

    Args:
        interpreters: framework -> interpreter of its environment, where it is not this one.
        device: `auto` or `cpu`, as for a run.
        trials: whether to run the modes.
        environments: environments with a name, each with its interpreter; None: the usual one of each framework.
        begins: called with what takes seconds, before it is done.
    """
    yield Finding(name="dpcompare", status="ok", found=__version__)
    yield Finding(name="system", status="ok", found=f"{this_machine().in_words}, Python {platform.python_version()}")
    yield _environment()
    yield _cores()
    yield from _limits()
    try:
        gpus = visible_gpus(installed_gpus()) if device != "cpu" else []
    except RequestError as error:
        yield Finding(name="GPUs", status="problem", found=str(error), remedy="fix that first; no mode is tried")
        gpus, trials = [], False
    else:
        yield from _gpus(gpus)
    usable = []
    by_default = frameworks_by_default()
    for framework in FRAMEWORKS:
        begins(f"looking at {framework}")
        findings = list(_framework(framework, interpreters.get(framework, sys.executable), gpus))
        if all(finding.status != "problem" for finding in findings):
            usable.append(framework)
        elif framework not in by_default | interpreters.keys():  # it was not asked for
            findings = [replace(finding, status="note") for finding in findings]
        yield from findings
    for environment, python in environments:
        begins(f"looking at env={environment.name}")
        chosen = interpreters if python is None else dict.fromkeys(FRAMEWORKS, python)
        yield from _named(environment, chosen, device, gpus, trials=trials, begins=begins)
    if trials:
        for framework, mode in modes_of_each_framework():
            if framework in usable:
                begins(f"trying {framework} {mode}")
                yield trial(framework, mode, _two_replicas(framework, mode, device, gpus), interpreters)
        if "torch" in usable:
            # Each pair by itself: two GPUs that cannot reach each other hang every run that has both.
            pairs = [pair for pair in combinations(gpus, 2) if not _why_apart(pair)] if len(gpus) > 2 else []
            for pair in pairs:
                name = f"all-reduce between GPUs {pair[0]} and {pair[1]}"
                begins(f"trying {name}")
                yield trial("torch", "ddp", Cluster.partition(1, 2, gpus=pair), interpreters, name=name)


def _named(
    environment: Environment,
    interpreters: Mapping[str, str],
    device: str,
    gpus: Sequence[str],
    *,
    trials: bool,
    begins: Callable[[str], None],
) -> Iterator[Finding]:
    """The frameworks that an environment holds, and its modes; one framework is enough."""
    suffix = f" in env={environment.name}"
    remedy = f"`dpcompare setup --env {environment.name} REQUIREMENT...` makes one, or name another interpreter"
    usable = []
    problems: dict[str, Finding] = {}
    for framework in FRAMEWORKS:
        python = interpreters.get(framework, sys.executable)
        findings = [
            replace(
                finding,
                name=f"{finding.name}{suffix}",
                remedy=remedy if finding.status == "problem" else finding.remedy,
            )
            for finding in _framework(framework, python, gpus)
        ]
        wrong = [finding for finding in findings if finding.status == "problem"]
        if not wrong:
            usable.append(framework)
        if not wrong or _holds(framework, python):
            yield from findings
        else:
            problems.update({finding.found: finding for finding in wrong})
    if not usable:
        yield from problems.values()
    for framework, mode in modes_of_each_framework():
        if trials and framework in usable:
            name = f"{framework} {mode}{suffix}"
            begins(f"trying {name}")
            cluster = _two_replicas(framework, mode, device, gpus)
            yield trial(framework, mode, cluster, interpreters, name=name, environment=environment)


def _holds(framework: str, python: str) -> bool:
    """Whether an environment has a framework, be it usable or not."""
    main_package, *_ = FRAMEWORKS[framework].packages
    try:
        return main_package in installed_versions(framework, (main_package,), python)
    except (ValueError, RequestError):
        return False


def _environment() -> Finding:
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


def _cores() -> Finding:
    cores = available_cores()
    found = f"{cores} usable of {os.cpu_count()}, {max(1, cores // 2)} for each of 2 processes"
    if cores < 2:
        return Finding(
            name="cores", status="note", found=found, remedy="two processes will share one core: expect slow runs"
        )
    return Finding(name="cores", status="ok", found=found)


def _limits() -> Iterator[Finding]:
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


def _framework(framework: str, python: str, gpus: Sequence[str]) -> Iterator[Finding]:
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


def _gpus(gpus: Sequence[str]) -> Iterator[Finding]:
    if not gpus:
        yield Finding(name="GPUs", status="ok", found="none visible or asked for: devices are simulated on the CPU")
        return
    yield Finding(name="GPUs", status="ok", found=f"{len(gpus)} visible: {', '.join(gpus)}")
    if apart := _why_apart(gpus[:2]):
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


def _why_apart(gpus: Sequence[str]) -> str:
    """Why no run can have all of these GPUs; "" where it can."""
    try:
        Cluster.partition(1, gpus=gpus)
    except RequestError as error:
        return str(error)
    return ""


def _two_replicas(framework: str, mode: str, device: str, gpus: Sequence[str]) -> Cluster:
    """The smallest cluster on which a mode communicates; one replica where two GPUs cannot be had, or for `single`."""
    row = MODES[framework, mode]
    has_two = not gpus or (len(gpus) > 1 and not _why_apart(gpus[:2]))
    replicas = 2 if row.multi_device and has_two else 1
    nodes = replicas if row.multi_node else 1
    return Cluster.partition(nodes, replicas // nodes, device=device)  # type: ignore[arg-type]


def trial(
    framework: str,
    mode: str,
    cluster: Cluster,
    interpreters: Mapping[str, str],
    *,
    name: str | None = None,
    environment: Environment | None = None,
) -> Finding:
    """Two steps of a tiny model, gradients synchronized where there are several replicas, with a time limit."""
    name = name or f"{framework} {mode}"
    chosen = {"python": interpreters[framework]} if framework in interpreters else {}
    seconds = TRIAL_SECONDS.get(cluster.device_type, FRAMEWORKS[framework].gpu_start_seconds)
    deadline = Deadline(seconds)
    too_long = f"no end after {seconds:.0f} s"
    with tempfile.TemporaryDirectory(prefix="dpcompare-doctor-") as folder:
        try:
            config = RunConfig(
                framework=framework,
                mode=mode,
                workload=Workload(model="mlp", dataset="synthetic-mini", image_size=8, steps=2, warmup_steps=0),
                cluster=cluster,
                environment=environment,
                **chosen,
            )
            said: list[str] = []
            result = run(
                config,
                Path(folder) / "run",
                remark=said.append,
                stopped_by=lambda: too_long if deadline.passed else None,
            )
        except (RunFailedError, RequestError) as error:
            if too_long in str(error):
                found = too_long
                remedy = "the processes start but do not reach each other: look for a firewall on 127.0.0.1"
            else:
                found = "; ".join(str(error).strip().splitlines()[-3:])
                remedy = (
                    f"dpcompare run --framework {framework} --mode {mode} --model mlp --image-size 8 --steps 2 "
                    f"--warmup-steps 0{f' --env {environment.name}' if environment else ''} keeps all logs"
                )
            return Finding(name=name, status="problem", found=found, remedy=remedy)
    how = " (emulated)" if result.emulated else ""
    took = "" if result.wall_seconds is None else f", {result.wall_seconds:.0f} s"
    return Finding(
        name=name,
        status="ok",
        found=f"works on {pluralize(result.num_replicas, f'{result.device_type} replica')}{how}, "
        f"collectives by {result.collective}{took}{''.join(f'; {line}' for line in said)}",
    )
