"""Arms in several environments: which versions may differ, and a change-log of those that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpcompare.config.environment import USUAL
from dpcompare.experiments.constancy import ArmRounds, Facts, versions_of
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import pluralize


def in_words(result: RunResult) -> str:
    """The environment of a run: `old, with TORCH_X=0`."""
    variables = ", ".join(f"{name}={value}" for name, value in sorted(result.own_variables.items()))
    name = result.environment or USUAL
    return f"{name}, with {variables}" if variables else name


def unlike_versions(arms: Sequence[ArmRounds]) -> list[str]:
    """A sentence for each package of which arms of one framework, in environments of one name, have several versions.

    What changed within an arm has a row of its own. A mode may need a package that another one does not record.
    """
    found: dict[tuple[str, str | None], list[Facts]] = {}
    for arm in arms:
        of_rounds = [versions_of(run) for run in arm.runs]
        if of_rounds and all(facts == of_rounds[0] for facts in of_rounds):
            found.setdefault((arm.runs[0].framework, arm.runs[0].environment), []).append(of_rounds[0])
    return [
        f"arms of {framework}{f' in env={name}' if name else ''} ran with {sentence}"
        for (framework, name), of_arms in found.items()
        for sentence in _unlike(of_arms)
    ]


def _unlike(of_arms: Sequence[Facts]) -> Iterator[str]:
    """`torch 2.13.0 and 2.14.1` for each package that several arms have in several versions; a driver is the host's."""
    for package in dict.fromkeys(package for facts in of_arms for package in facts if package != "driver"):
        there = list(dict.fromkeys(facts[package] for facts in of_arms if package in facts))
        if len(there) > 1:
            yield f"{package} {' and '.join(there)}"


def change_logs(runs: Sequence[RunResult]) -> list[str]:
    """What each environment has otherwise than the usual one of its framework, or than the first; a line for each."""
    first: dict[str, RunResult] = {}
    for run in sorted(runs, key=lambda run: run.environment is not None):
        first.setdefault(run.framework, run)
    lines = (
        _change_log(first[run.framework], run) for run in runs if run.environment != first[run.framework].environment
    )
    return list(dict.fromkeys(lines))


def _change_log(one: RunResult, two: RunResult) -> str:
    """`torch in env=old, against the usual one: torch 2.13.0 (2.14.1), X=0 (unset), 2 packages in only one of them`.

    Packages that only one of them has are counted, unless they are among the versions that all results have.
    """
    versions = [versions_of(run) for run in (one, two)]
    before, after = (facts | run.own_variables for facts, run in zip(versions, (one, two), strict=True))
    changed = [
        f"{name}={_value(two, name)} ({_value(one, name)})"
        if name in one.own_variables or name in two.own_variables
        else f"{name} {after.get(name, 'none')} ({before.get(name, 'none')})"
        for name in dict.fromkeys([*after, *before])
        if before.get(name) != after.get(name)
    ]
    # Of what both list, `versions` say more: for which device a build is.
    others = [{name: run.packages[name] for name in run.packages if name not in before | after} for run in (one, two)]
    both = sorted(others[0].keys() & others[1].keys() - {"dpcompare"})
    pairs = ((name, others[1][name], others[0][name]) for name in both)
    changed += [f"{name} {new} ({old})" for name, new, old in pairs if new != old]
    if alone := len(others[0].keys() ^ others[1].keys()):
        changed.append(f"{pluralize(alone, 'package')} in only one of them")
    what = ", ".join(changed) or "no recorded difference"
    return f"{two.framework} in {_named(two)}, against {_named(one)}: {what}"


def _value(run: RunResult, name: str) -> str:
    """That of a variable, as far as it is recorded."""
    recorded = (run.settings.get("environment") or {}) | run.own_variables
    inherited = "inherited" if run.variables and name in run.variables.digests else "unset"
    return str(recorded.get(name, inherited))


def _named(run: RunResult) -> str:
    return f"env={run.environment}" if run.environment else USUAL
