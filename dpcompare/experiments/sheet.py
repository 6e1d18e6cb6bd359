"""The fairness sheet of whole arms: what must be equal between them, and what must stay the same over their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpcompare.experiments import fairness
from dpcompare.experiments.collection import ArmRuns, rounds_of_seeds
from dpcompare.experiments.constancy import ArmRounds


def sheet_of_arms(arms: Sequence[ArmRuns], subject: Sequence[str]) -> fairness.Sheet:
    """The fairness sheet of all completed runs: a check that changed between rounds makes arms not comparable as well.

    Arms of different studies did not run in the same rounds.
    """
    sheet = fairness.compare(
        [run for arm in arms for run in arm.completed], subject=subject, rounds=rounds_of_seeds(arms)
    )
    rounds = list(map(_rounds, arms))
    sheet.rows.extend(fairness.rows_within_arms(rounds))
    if "versions" not in subject:
        sheet.rows.append(fairness.row_between_arms(rounds))
    sources = [arm.source for arm in arms for _ in arm.completed]
    if len(set(sources)) > 1:
        sheet.rows.append(
            fairness.Row(
                setting="study",
                values=sources,
                equal=False,
                reason=True,
                remedy="what drifts between two studies would be taken for a difference; measure all arms in one",
            )
        )
    return sheet


def sheet_of_sets(sets: Sequence[Sequence[ArmRuns]], arms: Sequence[ArmRuns], subject: Sequence[str]) -> fairness.Sheet:
    """One sheet of arms that are judged within sets: a setting is a reason if it is one within a set.

    Args:
        sets: of `Collection.judged_together`.
        arms: the same arms in the order of the values.
        subject: settings in which they may differ.
    """
    if len(sets) == 1:
        return sheet_of_arms(arms, subject)
    sheets = [sheet_of_arms(each, subject) for each in sets]
    return fairness.Sheet(
        rows=[_joined(rows, sets, arms) for rows in zip(*(sheet.rows for sheet in sheets), strict=True)]
    )


def _joined(rows: Sequence[fairness.Row], sets: Sequence[Sequence[ArmRuns]], arms: Sequence[ArmRuns]) -> fairness.Row:
    """A row of all sets, from the same row of each."""
    values: dict[str, list[Any]] = {}
    for row, members in zip(rows, sets, strict=True):
        left = iter(row.values)
        values |= {arm.name: [next(left) for _ in arm.completed] for arm in members}
    reasons = {members[0].config.workload.model: row for row, members in zip(rows, sets, strict=True) if row.reason}
    all_values = [value for arm in arms for value in values[arm.name]]
    return replace(
        rows[0],
        values=all_values,
        equal=not reasons and all(value == all_values[0] for value in all_values),
        reason=bool(reasons),
        detail="; ".join(f"with {model}, {row.explained}" for model, row in reasons.items()),
    )


def _rounds(arm: ArmRuns) -> ArmRounds:
    return ArmRounds(
        name=arm.name,
        numbers=arm.completed_rounds,
        runs=arm.completed,
        on_one_machine=arm.config.placement.row.simulated,
    )
