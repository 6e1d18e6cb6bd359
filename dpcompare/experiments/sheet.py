"""The fairness sheet of whole arms: what must be equal between them, and what must stay the same over their rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpcompare.experiments import fairness
from dpcompare.experiments.collection import ArmRuns, label_of, rounds_of_seeds
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
    sheets = [{row.setting: row for row in sheet_of_arms(each, subject).rows} for each in sets]
    settings = dict.fromkeys(setting for sheet in sheets for setting in sheet)
    return fairness.Sheet(rows=[_joined([sheet.get(each) for sheet in sheets], sets, arms) for each in settings])


def _joined(
    found: Sequence[fairness.Row | None], sets: Sequence[Sequence[ArmRuns]], arms: Sequence[ArmRuns]
) -> fairness.Row:
    """A row of all sets, from the same row of each; a set without it has arms of one study."""
    values: dict[str, list[Any]] = {}
    for row, members in zip(found, sets, strict=True):
        left = iter(row.values) if row else None
        values |= {arm.name: [next(left) if left else arm.source for _ in arm.completed] for arm in members}
    rows = [row for row in found if row]
    reasons = [(label_of(each), row) for row, each in zip(found, sets, strict=True) if row and row.reason]
    return replace(
        rows[0],
        values=[value for arm in arms for value in values[arm.name]],
        # The first values suffice: within each set all are equal as that check has it, perhaps round by round.
        equal=all(row.equal for row in rows) and len({str(values[members[0].name][0]) for members in sets}) == 1,
        reason=bool(reasons),
        detail="; ".join(f"with {label}, {row.explained}" for label, row in reasons),
    )


def _rounds(arm: ArmRuns) -> ArmRounds:
    return ArmRounds(
        name=arm.name,
        numbers=arm.completed_rounds,
        runs=arm.completed,
        on_one_machine=arm.config.placement.row.simulated,
    )
