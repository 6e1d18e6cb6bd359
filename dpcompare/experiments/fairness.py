"""The fairness sheet: every check with its value on each side, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpcompare.backends.description import NOT_KNOWN
from dpcompare.config.setting import Changes
from dpcompare.config.workload import Workload
from dpcompare.errors import RequestError, closest
from dpcompare.experiments.agreement import Outcome, Values, has_one_order
from dpcompare.experiments.check_row import Differs, FairnessCheck
from dpcompare.experiments.constancy import CONSTANTS, ArmRounds, changes_of, in_arms
from dpcompare.experiments.environments import in_words as environment_in_words
from dpcompare.experiments.environments import unlike_versions
from dpcompare.experiments.fairness_checks import (
    CHECKS,
    changes_only_speed,
    names_that_change,
    names_that_differ,
)
from dpcompare.experiments.sheet_values import workload_value
from dpcompare.models.architectures import MODELS, may_have_batchnorm
from dpcompare.results.result import RunResult

Verdict = Literal["COMPARABLE", "NOT COMPARABLE"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check of the sheet, with its value in each result."""

    setting: str
    values: list[Any]
    """One per result, in their order."""
    equal: bool
    reason: bool
    """Whether it makes the results not comparable."""
    remedy: str
    """The remedy: `fix` of a FairnessCheck."""
    detail: str = ""
    """Where the results differ, in words, if the values do not say it."""

    @property
    def explained(self) -> str:
        """Where, or in which values."""
        return self.detail or _against(shown(self.values))


def shown(values: Sequence[Any]) -> list[str]:
    """Values as people read them: of a checksum only the beginning, of a figure as many digits as tell it apart."""
    distinct = len(set(map(str, values)))
    tried = [[_shown(value, digits) for value in values] for digits in (6, 8, 10, 12)]
    return next((short for short in tried if len(set(short)) == distinct), tried[1])


_IN_WORDS = {
    "None": NOT_KNOWN,
    "True": "yes",
    "False": "no",
    "of dpcompare": "built in",
    "of the model": "the model's own",
}
"""What results hold -> what a reader sees of it."""


def _shown(value: Any, digits: int) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each, digits)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(each, digits) for each in value) or "none"
    text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    return f"{text[:12]}..." if re.fullmatch(r"[0-9a-f]{64}", text) else _IN_WORDS.get(text, text)


def _against(values: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(values))
    return (" against " if len(distinct) == 2 else ", ").join(distinct)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """All checks of some results, and what follows from them."""

    rows: list[Row]

    @property
    def verdict(self) -> Verdict:
        return "NOT COMPARABLE" if self.reasons else "COMPARABLE"

    @property
    def reasons(self) -> list[str]:
        """One sentence per check that must be equal and is not, with what to do about it."""
        return [f"{row.setting}: {row.explained}; {row.remedy}" for row in self.rows if row.reason]

    @property
    def summary(self) -> str:
        wrong = len(self.reasons)
        do = "does" if wrong == 1 else "do"
        found = f"{wrong} must match and {do} not" if wrong else "all that must match do"
        return f"{self.verdict} (of {len(self.rows)} settings, {found})"


OF_WEIGHTS = frozenset({"origin of the weights", "initial weights"})

SUBJECTS: Mapping[str, frozenset[str]] = {
    **{check.field: frozenset({name}) for name, check in CHECKS.items() if check.field},
    **dict.fromkeys(
        ("batch", "batch_size", "global_batch_size"), names_that_differ(Differs.GLOBAL_BATCH | Differs.SPLIT_BATCH)
    ),
    "model": names_that_differ(Differs.MODELS),
    **dict.fromkeys(("weights", "initial weights"), OF_WEIGHTS),
}
"""Name of what a comparison is about, such as an option of its arms -> the checks that differ with it."""


def checks_named(subject: Iterable[str]) -> tuple[str, ...]:
    """The checks that a comparison is about, by their names or by a name of SUBJECTS.

    Raises:
        RequestError: one of the names is neither.
    """
    options = {name.replace("_", "-"): name for name in SUBJECTS}
    named = list(dict.fromkeys(options.get(name, name) for name in subject))
    if unknown := sorted(set(named) - {*CHECKS, *SUBJECTS}):
        near = closest(unknown[0], [*CHECKS, *SUBJECTS], 3) or ["precision", "profile", "batch"]
        raise RequestError(
            f"--subject: received {', '.join(unknown)}, expected an option in which arms differ, or a setting of the "
            f"fairness sheet, such as {', '.join(near)}; the page of `dpcompare report --html` lists all {len(CHECKS)}"
        )
    return tuple(dict.fromkeys(check for name in named for check in sorted(SUBJECTS.get(name, {name}))))


def fields_that_differ(workloads: Sequence[Workload], subject: Sequence[str]) -> list[str]:
    """The fields that must be equal, are not in workloads of equal devices, and are not what the comparison is about.

    Args:
        workloads: of arms that one would compare.
        subject: from `checks_named`.
    """
    return [
        check.field
        for name, check in CHECKS.items()
        if check.field and check.compare is None and name not in subject
        if len({repr(getattr(workload, check.field)) for workload in workloads}) > 1
    ]


def compare(results: Sequence[RunResult], *, subject: Sequence[str] = (), rounds: Sequence[int] | None = None) -> Sheet:
    """The sheet of two or more results.

    Args:
        results: what is to be compared.
        subject: checks that the comparison is about, which may therefore differ.
        rounds: of each result its round, where each round has a seed of its own; None where all have one.

    Raises:
        RequestError: `subject` names no check.
    """
    subject = checks_named(subject)
    rows = []
    all_values = {name: [check.read(result) for result in results] for name, check in CHECKS.items()}
    for name, check in CHECKS.items():
        values = all_values[name]
        if check.compare is None:
            equal = _equal(values, rounds if Differs.SEEDS in check.differs else None)
            outcome = Outcome(equal=equal, is_reason=not equal)
        else:
            outcome = _outcome(name, check, results, all_values, None if check.over_rounds else rounds)
        # A value that was not recorded, or a run that did not complete, cannot be called equal.
        unknown_value = None in values or (name == "status" and set(values) != {"completed"})
        reason = bool(check.fix) and (outcome.is_reason or unknown_value) and name not in subject
        rows.append(
            Row(
                setting=name,
                values=check.shown(values) if check.shown else values,
                equal=outcome.equal and not reason,
                reason=reason,
                remedy=check.fix,
                detail=outcome.detail,
            )
        )
    return Sheet(rows=rows)


def rows_within_arms(arms: Sequence[ArmRounds]) -> list[Row]:
    """A row for each of CONSTANTS: what has not stayed the same over the rounds of an arm is a reason.

    Args:
        arms: with their completed rounds, in the order of the results of the sheet.
    """
    rows = []
    for setting, constant in CONSTANTS.items():
        changes = {arm.name: changes_of(constant.facts(arm), arm.numbers) for arm in arms}
        same = not any(changes.values())
        rows.append(
            Row(
                setting=setting,
                values=["; ".join(changes[arm.name]) or SAME_IN_ALL_ROUNDS for arm in arms for _ in arm.runs],
                equal=same,
                reason=not same,
                remedy=constant.remedy,
                detail=in_arms(changes),
            )
        )
    return rows


VERSIONS_BETWEEN = "versions between arms"


def row_between_arms(arms: Sequence[ArmRounds]) -> Row:
    """Whether arms of one framework have the same versions, unless an environment of their own has a name.

    Args:
        arms: with their completed rounds, in the order of the results of the sheet.
    """
    unlike = unlike_versions(arms)
    return Row(
        setting=VERSIONS_BETWEEN,
        values=[environment_in_words(run) for arm in arms for run in arm.runs],
        equal=not unlike,
        reason=bool(unlike),
        remedy="use one environment for all arms of a framework, or give the other one a name (--env, env=NAME)",
        detail="; ".join(unlike),
    )


SAME_IN_ALL_ROUNDS = "the same in all rounds"


def _outcome(
    name: str, check: FairnessCheck, results: Sequence[RunResult], all_values: Values, rounds: Sequence[int] | None
) -> Outcome:
    """What a check's own rule finds in all results, or in those of each round, since another seed has other figures."""
    assert check.compare is not None
    numbers = rounds or [0] * len(results)
    needed = names_that_change(check.depends_on)
    outcomes = []
    for number in dict.fromkeys(numbers):
        round_indices = [index for index, each in enumerate(numbers) if each == number]
        values = {name: [all_values[name][index] for index in round_indices] for name in needed}
        own = [all_values[name][index] for index in round_indices]
        outcomes.append(check.compare([results[index] for index in round_indices], own, values))
    return Outcome(
        equal=all(outcome.equal for outcome in outcomes),
        is_reason=any(outcome.is_reason for outcome in outcomes),
        detail=next((outcome.detail for outcome in outcomes if outcome.detail), ""),
    )


def _equal(values: Sequence[Any], rounds: Sequence[int] | None) -> bool:
    """Whether values are the same, all of them or those of each round."""
    first: dict[int, Any] = {}
    numbers = rounds or [0] * len(values)
    return all(value == first.setdefault(number, value) for number, value in zip(numbers, values, strict=True))


def learning_differs_by(sheet: Sheet, results: Sequence[RunResult]) -> list[str]:
    """Checks of a sheet by which its results learn something else, other than by rounding."""
    harmless = names_that_change(Changes.NORMALISATION) if _normalised_alike(results) else frozenset()
    reasons = [row.setting for row in sheet.rows if row.reason and row.setting not in (*CONSTANTS, VERSIONS_BETWEEN)]
    return [name for name in reasons if name not in harmless and not changes_only_speed(name)]


def _normalised_alike(results: Sequence[RunResult]) -> bool:
    """Whether BatchNorm does the same in all results, or there is none.

    Replicas that do not make a step together learn otherwise by their number alone.
    """
    found = {_normalisation(result) for result in results}
    return len(found) == 1 and None not in found


def _normalisation(result: RunResult) -> tuple[float, int] | None:
    """Images of which BatchNorm takes its statistics, and how often a step moves the running ones.

    Both are 0 without BatchNorm; None where that is not known.
    """
    if result.model not in MODELS or not has_one_order(result):
        return None
    if not may_have_batchnorm(result.model):
        return 0.0, 0
    replicas = 1 if workload_value("batchnorm")(result) == "sync" else result.num_replicas
    micro_batches = int(workload_value("accumulate")(result) or 1)
    # Those that are recomputed before an evaluation do not depend on how long training took to move them.
    moved = 0 if workload_value("batchnorm_recompute")(result) else micro_batches
    return result.global_batch_size / (replicas * micro_batches), moved
