"""Time to accuracy: what each arm needed until it first reached the target, and which of them is there first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from dpcompare.config.setting import Changes
from dpcompare.experiments import fairness
from dpcompare.experiments.collection import ArmRuns, is_exploratory
from dpcompare.experiments.comparison import AccuracyPoint, TargetRow, TimeClaimRow, TimeToAccuracy
from dpcompare.experiments.fairness_checks import Differs, names_that_change, names_that_differ
from dpcompare.experiments.learning import SheetOf
from dpcompare.experiments.statistics import RatioOf, RatioPair, claims_of, paired_ratio
from dpcompare.results.computed import TrainingCost
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import counted, joined


def target_row(arm: ArmRuns) -> TargetRow | None:
    """What an arm needed; None where it was to reach nothing."""
    target = arm.config.target_accuracy
    runs = arm.completed
    if target is None or not runs:
        return None
    costs = [cost for run in runs if (cost := run.cost_of_target)]
    # Of the rounds that reached it alone, medians would be those of the luckier seeds.
    of_all = costs if len(costs) == len(runs) else []
    row = TargetRow(
        accuracy=target,
        rounds=len(runs),
        reached=len(costs),
        timed=sum(cost.seconds is not None for cost in of_all),
        steps=_median([cost.step for cost in of_all]),
        images=_median([cost.images for cost in of_all]),
        seconds=_median([cost.seconds for cost in of_all]),
        joules=_median([cost.joules for cost in of_all]),
        sentence="",
    )
    return row.model_copy(update={"sentence": _reached(arm.name, row) if of_all else _censored(arm.name, row, runs)})


def _reached(name: str, row: TargetRow) -> str:
    assert row.steps is not None
    needed = [counted(round(row.steps), "step"), *([] if row.seconds is None else [f"{row.seconds:.1f} s of training"])]
    rounds = counted(row.rounds, "round")
    of_rounds = rounds if row.rounds == 1 else f"medians of {rounds}"
    sentence = f"{name} reaches an accuracy of {row.accuracy:g} after {joined(needed)} ({of_rounds})."
    if untimed := row.rounds - row.timed:
        sentence += (
            f" Its training time is not known in {untimed} of {rounds}, because the run was resumed; neither the "
            "median nor a ratio uses such a round."
        )
    return sentence


def _censored(name: str, row: TargetRow, runs: Sequence[RunResult]) -> str:
    missed = [run for run in runs if run.cost_of_target is None]
    best = max((evaluation.accuracy for run in missed for evaluation in run.evaluations), default=0.0)
    return (
        f"{name} missed the target accuracy of {row.accuracy:g} in {len(missed)} of {counted(row.rounds, 'round')} "
        f"(best in those: {best:.3f}), so its time to target is censored and left out of the ratios."
    )


def _median(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def accuracy_curve(arm: ArmRuns) -> list[AccuracyPoint]:
    """The accuracy over the steps, with the band of the rounds: after each step at which all rounds were evaluated.

    Where rounds end at their target, those that go on are of the slower seeds: their mean would go down.
    """
    found: dict[int, list[tuple[float, TrainingCost]]] = {}
    for run in arm.completed:
        for evaluation, cost in zip(run.evaluations, run.evaluation_costs, strict=False):
            found.setdefault(evaluation.step, []).append((evaluation.accuracy, cost))
    return [
        AccuracyPoint(
            step=step,
            seconds=_median([cost.seconds for _, cost in rounds]),
            timed=sum(cost.seconds is not None for _, cost in rounds),
            mean=float(np.mean([accuracy for accuracy, _ in rounds])),
            low=min(accuracy for accuracy, _ in rounds),
            high=max(accuracy for accuracy, _ in rounds),
            rounds=len(rounds),
        )
        for step, rounds in sorted(found.items())
        if len(rounds) == len(arm.completed)
    ]


def time_to_accuracy(
    arms: Sequence[ArmRuns], reached: Mapping[str, TargetRow | None], sheet_of: SheetOf
) -> TimeToAccuracy | None:
    """Which of the arms reach their target first; None where they have not the same one, or are of several studies.

    Nothing is claimed of rounds that repeat one training: how many steps it takes is luck of its seed.

    Args:
        arms: with completed runs.
        reached: what each arm needed, by its name.
        sheet_of: the fairness sheet of two of them.
    """
    targets = {arm.config.target_accuracy for arm in arms}
    target = next(iter(targets)) if len(targets) == 1 else None
    if target is None or len({arm.source for arm in arms}) != 1:
        return None
    pairs = []
    if all(arm.varies_seed for arm in arms):
        uncensored = [arm for arm in arms if (row := reached[arm.name]) and row.reached == row.rounds]
        pairs = [_pair(first, second, sheet_of(first, second)) for first, second in combinations(uncensored, 2)]
    measure = RatioOf(
        name=f"training time to an accuracy of {target:g}",
        decided=f"{{first}} reaches an accuracy of {target:g} {{ratio}} times as fast as {{second}} (training time; "
        "{interval}).",
    )
    return TimeToAccuracy(
        target=target, claims=[TimeClaimRow.of(claim) for claim in claims_of(pairs, arms[0].plan, measure)]
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


_MAY_DIFFER = names_that_differ(Differs.DEVICES) | names_that_change(Changes.NORMALISATION)
"""Checks that may differ where both learn the same: more devices are a way to be there first."""


def _seconds(arm: ArmRuns) -> list[float | None]:
    costs = [run.cost_of_target if run else None for run in arm.runs]
    return [cost.seconds if cost else None for cost in costs]
