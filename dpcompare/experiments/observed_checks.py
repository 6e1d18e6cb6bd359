"""The fairness checks of what processes were seen to have: modules, threads, cores, switches, variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpcompare.backends.description import NOT_KNOWN
from dpcompare.config.setting import Changes
from dpcompare.experiments.agreement import Outcome, Values, as_asked
from dpcompare.experiments.check_row import FairnessCheck
from dpcompare.experiments.sheet_values import Read, owned_variables
from dpcompare.results.observed import Observed, OtherVariables
from dpcompare.results.result import RunResult

AS_AT_THE_START = "as at the start"
AS_BY_DEFAULT = "as by default"


def observed_count(name: str) -> Read:
    """A number that each process was seen to have, and what was asked for where that is another one."""

    def value(result: RunResult) -> Any:
        pairs = {(getattr(process, name), getattr(process, f"{name}_asked")) for process in result.observed}
        known = sorted((seen, asked) for seen, asked in pairs if seen is not None and asked is not None)
        if not known:
            return NOT_KNOWN
        wrong = [f"{seen} observed, {asked} asked" for seen, asked in known if seen != asked]
        return "; ".join(wrong) or known[-1][0]

    return value


def cores_at_end(result: RunResult) -> str:
    """Whether each process could still run on the cores that it had when it started."""
    known = [process for process in result.observed if process.cores_at_end is not None]
    return "; ".join(dict.fromkeys(map(_cores, known))) or NOT_KNOWN


def _cores(process: Observed) -> str:
    if process.cores_at_end == process.cores_at_start:
        return AS_AT_THE_START
    return f"cores {process.cores_at_end}, at the start {process.cores_at_start}"


def nothing_moved(results: Sequence[RunResult], cores: Sequence[Any], values: Values) -> Outcome:
    """One process that lost cores while it trained is enough."""
    moved = [value for value in cores if value not in (AS_AT_THE_START, NOT_KNOWN)]
    return Outcome(equal=not moved and len(set(cores)) == 1, is_reason=bool(moved))


def niceness(result: RunResult) -> Any:
    """That of its processes, each once."""
    found = sorted({process.niceness for process in result.observed})
    return NOT_KNOWN if not found else found[0] if len(found) == 1 else found


def switches(result: RunResult) -> str:
    """What any of its processes had otherwise than by default."""
    known = [process.switches for process in result.observed if process.switches is not None]
    if not known:
        return NOT_KNOWN
    return ", ".join(sorted({switch for each in known for switch in each})) or AS_BY_DEFAULT


def same_where_known(results: Sequence[RunResult], figures: Sequence[Any], values: Values) -> Outcome:
    """Compare what is known; results of older releases lack it."""
    known = {str(figure) for figure in figures if figure != NOT_KNOWN}
    return Outcome(equal=len(set(map(str, figures))) == 1, is_reason=len(known) > 1)


def other_variables(result: RunResult) -> Any:
    return NOT_KNOWN if result.variables is None else result.variables


def same_variables(results: Sequence[RunResult], found: Sequence[Any], values: Values) -> Outcome:
    """Compare the variables of all whose processes have looked, but for those of an arm's own environment."""
    differ = bool(set(_differing(found)) - owned_variables(results))
    return Outcome(equal=not differ and len({value == NOT_KNOWN for value in found}) == 1, is_reason=differ)


def _differing(found: Sequence[Any]) -> list[str]:
    """Names of variables that only some have, or that have several values under one key."""
    known = [value for value in found if isinstance(value, OtherVariables)]
    names = sorted({name for variables in known for name in variables.digests})
    return [name for name in names if _differs(name, known)]


def _differs(name: str, known: Sequence[OtherVariables]) -> bool:
    by_key: dict[str, set[str | None]] = {}
    for variables in known:
        by_key.setdefault(variables.key, set()).add(variables.digests.get(name))
    return any(len(values) > 1 for values in by_key.values()) or len({None in each for each in by_key.values()}) > 1


def shown_variables(found: Sequence[Any]) -> list[Any]:
    """The variables that differ, with the digests of their values."""
    names = _differing(found)

    def shown(value: Any) -> str:
        if not isinstance(value, OtherVariables):
            return NOT_KNOWN
        digests = ((name, value.digests.get(name)) for name in names)
        return ", ".join(f"{name} {f'({digest})' if digest else 'unset'}" for name, digest in digests) or "the same"

    return [shown(value) for value in found]


def model_modules(result: RunResult) -> Any:
    """File -> sha256 of the modules around a custom model; results of older releases have that of the model alone."""
    return (result.settings or {}).get("model_modules", NOT_KNOWN)


def same_modules(results: Sequence[RunResult], found: Sequence[Any], values: Values) -> Outcome:
    """Compare the files that several have: each framework may import files of its own."""
    differ = bool(_differing_files(found))
    return Outcome(equal=not differ and len({value == NOT_KNOWN for value in found}) == 1, is_reason=differ)


def _differing_files(found: Sequence[Any]) -> list[str]:
    known = [value for value in found if isinstance(value, dict)]
    files = sorted({file for digests in known for file in digests})
    return [file for file in files if len({digests[file] for digests in known if file in digests}) > 1]


def shown_modules(found: Sequence[Any]) -> list[Any]:
    """The files that differ, with their checksums."""
    files = _differing_files(found)

    def shown(value: Any) -> Any:
        if not isinstance(value, dict):
            return NOT_KNOWN
        return ", ".join(f"{file} {value[file][:12]}" for file in files if file in value) or "the same"

    return [shown(value) for value in found]


OBSERVED = {
    "modules of the model": FairnessCheck(
        model_modules,
        Changes.LEARNING,
        "use the same version of all files that the model imports from its folder",
        compare=same_modules,
        over_rounds=True,
        shown=shown_modules,
    ),
    "threads": FairnessCheck(
        observed_count("threads"),
        Changes.SPEED,
        "find what changes the framework's own number of threads, and leave it out",
        compare=as_asked,
    ),
    "affinity at the end": FairnessCheck(
        cores_at_end,
        Changes.SPEED,
        "find what binds the process to other cores while it trains, and leave it out",
        compare=nothing_moved,
    ),
    "niceness": FairnessCheck(
        niceness,
        Changes.SPEED,
        "start all of them with the same niceness: nice(1)",
        compare=same_where_known,
        over_rounds=True,
    ),
    "input threads observed": FairnessCheck(
        observed_count("input_threads"),
        Changes.SPEED,
        "find what ends or adds threads that read batches ahead, and leave it out",
        compare=as_asked,
    ),
    "switches": FairnessCheck(
        switches,
        Changes.SPEED,
        "find what switches them, and leave it out or have it in all of them",
        compare=same_where_known,
        over_rounds=True,
    ),
    "other environment variables": FairnessCheck(
        other_variables,
        Changes.LEARNING,
        "start all runs from one environment; the sheet has digests of values that no list knows",
        compare=same_variables,
        over_rounds=True,
        shown=shown_variables,
    ),
}
"""Rows of CHECKS."""
