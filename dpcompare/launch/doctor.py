"""The diagnosis of `dpcompare doctor`: what would break a run on this machine, and what belongs in a bug report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from dpcompare._version import __version__
from dpcompare.backends.availability import installed_versions
from dpcompare.config.cluster import Cluster
from dpcompare.config.environment import Environment
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.config.modes import frameworks_by_default, modes_of_each_framework
from dpcompare.errors import RequestError
from dpcompare.launch.findings import Finding, cores, limits, of_framework, of_gpus, recorded_environment, why_apart
from dpcompare.launch.trial import trial, two_replicas
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.machine import this_machine


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
    yield recorded_environment()
    yield cores()
    yield from limits()
    try:
        gpus = visible_gpus(installed_gpus()) if device != "cpu" else []
    except RequestError as error:
        yield Finding(name="GPUs", status="problem", found=str(error), remedy="fix that first; no mode is tried")
        gpus, trials = [], False
    else:
        yield from of_gpus(gpus)
    usable = []
    by_default = frameworks_by_default()
    for framework in FRAMEWORKS:
        begins(f"looking at {framework}")
        findings = list(of_framework(framework, interpreters.get(framework, sys.executable), gpus))
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
                yield trial(framework, mode, two_replicas(framework, mode, device, gpus), interpreters)
        if "torch" in usable:
            # Each pair by itself: two GPUs that cannot reach each other hang every run that has both.
            pairs = [pair for pair in combinations(gpus, 2) if not why_apart(pair)] if len(gpus) > 2 else []
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
            for finding in of_framework(framework, python, gpus)
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
            cluster = two_replicas(framework, mode, device, gpus)
            yield trial(framework, mode, cluster, interpreters, name=name, environment=environment)


def _holds(framework: str, python: str) -> bool:
    """Whether an environment has a framework, be it usable or not."""
    main_package, *_ = FRAMEWORKS[framework].packages
    try:
        return main_package in installed_versions(framework, (main_package,), python)
    except (ValueError, RequestError):
        return False
