"""Time to accuracy: what each arm needed until it first reached the target, and which of them is there first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from dpcompare.experiments import fairness
from dpcompare.experiments.collection import ArmRuns, is_exploratory
from dpcompare.experiments.comparison import AccuracyPoint, TargetRow, TimeClaimRow, TimeToAccuracy
from dpcompare.experiments.knobs import OF_NORMALISATION
from dpcompare.experiments.learning import SheetOf
from dpcompare.experiments.scaling import OF_SCALING
from dpcompare.experiments.statistics import RatioPair, claims_of, paired_ratio
from dpcompare.results.target import TrainingCost
from dpcompare.system.words import counted


def target_row(arm: ArmRuns) -> TargetRow | None:
    """What an arm needed; None where it was to reach nothing."""
    target = arm.config.target_accuracy
    runs = arm.completed
    if target is None or not runs:
        return None
    costs = [cost for run in runs if (cost := run.cost_of_target)]
    is_censored = len(costs) < len(runs)
    untimed = sum(cost.seconds is None for cost in costs)
    highest = max((evaluation.accuracy for run in runs for evaluation in run.evaluations), default=0.0)
    sentence = None
    if is_censored:
        sentence = (
            f"{arm.name} did not reach an accuracy of {target:g} in {len(runs) - len(costs)} of "
            f"{counted(len(runs), 'round')} (the highest was {highest:.3f}): it is censored, so it makes no ratio."
        )
    elif untimed:
        sentence = (
            f"The training time of {arm.name} to an accuracy of {target:g} is not known in {untimed} of "
            f"{counted(len(runs), 'round')}, because the run was resumed; no ratio uses such a round."
        )
    return TargetRow(
        accuracy=target,
        rounds=len(runs),
        reached=len(costs),
        # Of the rounds that reached it alone they would be those of the luckier seeds.
        steps=None if is_censored else _median([cost.step for cost in costs]),
        images=None if is_censored else _median([cost.images for cost in costs]),
        seconds=None if is_censored else _median([cost.seconds for cost in costs]),
        joules=None if is_censored else _median([cost.joules for cost in costs]),
        sentence=sentence,
    )


def _median(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known and len(known) == len(values) else None


def accuracy_curve(arm: ArmRuns) -> list[AccuracyPoint]:
    """The accuracy over the steps, with the band of the rounds that were evaluated after each."""
    found: dict[int, list[tuple[float, TrainingCost]]] = {}
    for run in arm.completed:
        for evaluation, cost in zip(run.evaluations, run.evaluation_costs, strict=False):
            found.setdefault(evaluation.step, []).append((evaluation.accuracy, cost))
    return [
        AccuracyPoint(
            step=step,
            seconds=_median([cost.seconds for _, cost in rounds]),
            mean=float(np.mean([accuracy for accuracy, _ in rounds])),
            low=min(accuracy for accuracy, _ in rounds),
            high=max(accuracy for accuracy, _ in rounds),
            rounds=len(rounds),
        )
        for step, rounds in sorted(found.items())
    ]


def time_to_accuracy(arms: Sequence[ArmRuns], sheet_of: SheetOf) -> TimeToAccuracy | None:
    """Which of the arms reach their target first; None where they had none, or are of several studies.

    Nothing is claimed of rounds that repeat one training: how many steps it takes is luck of its seed.
    """
    targets = {arm.config.target_accuracy for arm in arms}
    target = next(iter(targets)) if len(targets) == 1 else None
    if target is None or len({arm.source for arm in arms}) != 1:
        return None
    measure = f"training time to an accuracy of {target:g}"
    left_out = [row.sentence for arm in arms if (row := target_row(arm)) and row.sentence]
    pairs = []
    if all(arm.varies_seed for arm in arms):
        timed = [arm for arm in arms if (row := target_row(arm)) and row.reached == row.rounds]
        pairs = [_pair(first, second, sheet_of([first, second])) for first, second in combinations(timed, 2)]
    return TimeToAccuracy(
        target=target,
        left_out=left_out,
        claims=[TimeClaimRow.of(claim) for claim in claims_of(pairs, arms[0].plan, measure=measure)],
    )


def _pair(first: ArmRuns, second: ArmRuns, sheet: fairness.Sheet) -> RatioPair:
    learned = fairness.learning_differs_by(sheet, [*first.completed, *second.completed])
    unequal = [row.knob for row in sheet.rows if row.reason and (row.knob in learned or row.knob not in _MAY_DIFFER)]
    return RatioPair(
        first=first.name,
        second=second.name,
        # The arm that needs less time is faster. A seed that takes long is an outcome and no stall.
        ratio=paired_ratio(_seconds(second), _seconds(first), trims=False),
        unequal=unequal,
        exploratory=is_exploratory(first, second),
    )


_MAY_DIFFER = (OF_SCALING - {"emulation"}) | OF_NORMALISATION
"""Knobs that may differ where both learn the same: more devices are a way to be there first."""


def _seconds(arm: ArmRuns) -> list[float | None]:
    costs = [run.cost_of_target if run else None for run in arm.runs]
    return [cost.seconds if cost else None for cost in costs]
