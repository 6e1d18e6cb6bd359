"""The fairness sheet of whole arms: what must be equal between them, and what must stay the same over their rounds."""

from __future__ import annotations

from collections.abc import Sequence

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


def _rounds(arm: ArmRuns) -> ArmRounds:
    return ArmRounds(
        name=arm.name,
        numbers=arm.completed_rounds,
        runs=arm.completed,
        on_one_machine=arm.config.placement.row.simulated,
    )
