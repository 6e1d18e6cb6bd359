"""What must stay the same over the rounds of an arm, since their ratios are taken together: versions and machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dpcompare.results.result import NodeRecord, RunResult
from dpcompare.system.terminal_text import joined

Facts: TypeAlias = dict[str, str]
"""Name of what must stay the same -> its value, where that is known."""


@dataclass(frozen=True, kw_only=True)
class ArmRounds:
    """The completed rounds of an arm."""

    name: str
    numbers: Sequence[int]
    """Of the rounds, from 1."""
    runs: Sequence[RunResult]
    """Per round."""
    on_one_machine: bool
    """Whether all nodes share the machine that runs the study; else a scheduler may choose other hosts each time."""


@dataclass(frozen=True)
class Constant:
    """One row of CONSTANTS."""

    facts: Callable[[ArmRounds], list[Facts]]
    """Of each round."""
    remedy: str


def versions_of(run: RunResult) -> Facts:
    """Package -> its version, or those of all nodes. Releases of dpcompare have a check of their own."""
    of_nodes = [node.versions for node in run.nodes] or [run.versions]
    packages = dict.fromkeys(package for versions in of_nodes for package in versions if package != "dpcompare")
    return {package: _together(versions.get(package) for versions in of_nodes) for package in packages}


def machine_of(node: NodeRecord) -> Facts:
    """What of a machine must stay the same; results of older releases have the host alone."""
    machine = node.machine
    known = {"host": node.host} | (
        {"CPU model": machine.cpu_model, "kernel": machine.kernel, "operating system": machine.operating_system}
        if machine
        else {}
    )
    return {name: value for name, value in known.items() if value is not None}


def _versions(arm: ArmRounds) -> list[Facts]:
    return [versions_of(run) | _own_source(run) for run in arm.runs]


def _own_source(run: RunResult) -> Facts:
    """The files of a user's backend: file -> the beginning of its checksum."""
    modules = run.settings.get("backend_modules") or {}
    files = modules if isinstance(modules, dict) else {}
    return {f"the file {name}": f"sha256 {str(digest)[:12]}" for name, digest in files.items()}


def _machines(arm: ArmRounds) -> list[Facts]:
    """Host, processor, kernel and operating system of each round, those of several nodes together."""
    rounds, first_host = [], dict[str, str]()
    for run in arm.runs:
        of_nodes = []
        for node in run.nodes:
            facts = machine_of(node)
            if not arm.on_one_machine:
                del facts["host"]
            elif node.machine and node.machine.boot_id:
                # Each container has a name of its own, on the same machine.
                facts["host"] = first_host.setdefault(node.machine.boot_id, node.host)
            of_nodes.append(facts)
        names = dict.fromkeys(name for facts in of_nodes for name in facts)
        rounds.append({name: _together(facts.get(name) for facts in of_nodes) for name in names})
    return rounds


def _together(values: Iterable[str | None]) -> str:
    return joined(sorted({value for value in values if value is not None}))


CONSTANTS = {
    "versions within an arm": Constant(
        _versions, "measure all rounds of an arm with the same versions: start a new study after an upgrade"
    ),
    "machine within an arm": Constant(
        _machines, "measure all rounds of an arm on the same machine, with the same kernel: start a new study"
    ),
}
"""Setting of the fairness sheet -> what it reads; speed and rounding alone depend on these."""


def changes_of(rounds: Sequence[Facts], numbers: Sequence[int]) -> list[str]:
    """What has not stayed the same: `torch 2.13.0 in rounds 1 to 3, 2.14.1 in rounds 4 to 6`.

    Args:
        rounds: the facts of each.
        numbers: of the rounds.
    """
    changes = []
    for name in dict.fromkeys(name for facts in rounds for name in facts):
        by_value: dict[str, list[int]] = {}
        for number, facts in zip(numbers, rounds, strict=True):
            if name in facts:
                by_value.setdefault(facts[name], []).append(number)
        if len(by_value) > 1:
            where = (f"{value} in {rounds_in_words(numbers)}" for value, numbers in by_value.items())
            changes.append(f"{name} {', '.join(where)}")
    return changes


def rounds_in_words(numbers: Sequence[int]) -> str:
    """`round 2`, `rounds 1 to 3`, `rounds 1, 2 and 5 to 7`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    words = [word for span in ranges for word in ([f"{span[0]} to {span[-1]}"] if len(span) > 2 else map(str, span))]
    return f"round{'s' if len(numbers) > 1 else ''} {joined(words)}"


def in_arms(changes: Mapping[str, Sequence[str]]) -> str:
    """What has changed in each arm, that of several once: `torch ddp 2x1 and torch single 1x1 had ...`."""
    arms: dict[str, list[str]] = {}
    for name, sentences in changes.items():
        if sentences:
            arms.setdefault("; ".join(sentences), []).append(name)
    return "; ".join(f"{joined(names)} had {text}" for text, names in arms.items())
