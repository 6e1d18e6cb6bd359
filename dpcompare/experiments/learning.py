"""What the arms learned, under a seed per round, and what they needed to reach a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpcompare.config.setting import Changes
from dpcompare.experiments import fairness
from dpcompare.experiments.accuracy_statistics import (
    LearningClaim,
    LearningPair,
    Measure,
    Spread,
    learning_claims,
    margin_in_words,
    paired_difference,
    spread,
)
from dpcompare.experiments.arm_rows import AccuracyPoint, SpreadRow, TargetRow
from dpcompare.experiments.chance import chance_in_words
from dpcompare.experiments.check_row import Differs
from dpcompare.experiments.claim_rows import Learning, LearningRow, TimeClaimRow, TimeToAccuracy
from dpcompare.experiments.collection import (
    ANOTHER_PAIR,
    ArmRuns,
    is_exploratory,
    is_pair_elsewhere,
    of_each_set,
    pairs_within,
)
from dpcompare.experiments.fairness_checks import names_that_change, names_that_differ
from dpcompare.experiments.sentences import time_headline_of
from dpcompare.experiments.soundness import doubt_of, measured_time_to_target
from dpcompare.experiments.statistics import RatioOf, RatioPair, claims_of, paired_ratio
from dpcompare.models.spec import ARE_DRAWN, DRAWN
from dpcompare.results.computed import TrainingCost
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import joined, pluralize

SheetOf = Callable[[ArmRuns, ArmRuns], fairness.Sheet]
"""The fairness sheet of two arms."""


def figures_of(arm: ArmRuns, measure: Measure) -> list[float | None]:
    """Accuracy or loss of the last evaluation of each round; None where there is none, or it is not finite."""
    return [getattr(run.evaluations[-1], measure) if run and run.evaluations else None for run in arm.runs]


def spread_of(arm: ArmRuns, measure: Measure) -> SpreadRow | None:
    """A figure over the seeds of the rounds; None where they repeat one training."""
    found: Spread | None = spread([value for value in figures_of(arm, measure) if value is not None])
    if found is None or not arm.varies_seed:
        return None
    low, high = found.interval or (None, None)
    return SpreadRow(
        mean=found.mean, standard_deviation=found.standard_deviation, low=low, high=high, rounds=found.rounds
    )


def learning_of(sets: Sequence[Sequence[ArmRuns]], sheet_of: SheetOf) -> Learning | None:
    """What may be claimed of the accuracy and the loss of arms within their sets; None where nothing may be asked.

    Rounds that repeat one training show how rounding moves an accuracy, and nothing of other weights and orders. All
    arms must be of one study, since seeds are paired within its rounds.
    """
    arms = [arm for each in sets for arm in each]
    if len({arm.source for arm in arms}) != 1 or not all(arm.varies_seed for arm in arms):
        return None
    if any(arm.config.stop_at_target for arm in arms):  # their last accuracy is the one that they were to reach
        return None
    margin = arms[0].margin / 100
    pairs = [pair for first, second in pairs_within(sets) for pair in _pairs(first, second, sheet_of(first, second))]
    claims = learning_claims(pairs, arms[0].plan, margin)
    return Learning(
        varied=varied_by_seed([run.config for arm in arms for run in arm.completed]),
        margin=margin,
        headline=of_each_set(sets, lambda each: _headline(each, claims, margin)),
        claims=[_row(claim) for claim in claims],
    )


def not_judged(arms: Sequence[ArmRuns]) -> list[str]:
    """Why nothing is claimed of accuracies, or of times to accuracy, that one may expect to be compared."""
    sentences = []
    if len(arms) > 1 and any(arm.config.stop_at_target for arm in arms):
        sentences.append(
            "Runs that stop at the target all end near the same accuracy, so their final accuracies are not compared."
        )
    if len({arm.source for arm in arms}) > 1 and any(arm.varies_seed for arm in arms):
        sentences.append(
            "Accuracies and times to accuracy are compared within one study, whose arms share the seed of each round: "
            "report each study alone."
        )
    return sentences


def _pairs(first: ArmRuns, second: ArmRuns, sheet: fairness.Sheet) -> list[LearningPair]:
    unequal = fairness.learning_differs_by(sheet, [*first.completed, *second.completed])
    measures: tuple[Measure, ...] = ("accuracy", "loss")
    return [
        LearningPair(
            first=first.name,
            second=second.name,
            measure=measure,
            difference=paired_difference(figures_of(first, measure), figures_of(second, measure)),
            unequal=unequal,
            exploratory=is_exploratory(first, second),
            at_chance=chance_in_words(first, second) if measure == "accuracy" else None,
        )
        for measure in measures
    ]


def varied_by_seed(configs: Sequence[Mapping[str, Any]]) -> str:
    """What a seed per round decides, and what it does not, in one sentence or two.

    Args:
        configs: those of runs, by their fields; what any of them has is named.
    """
    workloads = [config["workload"] for config in configs]
    files = dict.fromkeys(
        source for workload in workloads if (source := workload.get("weights", DRAWN)) not in ARE_DRAWN
    )
    varied = list(dict.fromkeys(filter(None, map(_weights_of_seed, configs))))
    varied.append("the sample order")
    if any(workload.get("augment") for workload in workloads):
        varied.append("the augmentation")
    if any(workload.get("regularization") == "shared" for workload in workloads):
        varied.append("the regularization")
    sentence = f"Each round uses its own seed, shared by all arms; it determines {joined(varied)}."
    return f"{sentence} Every round starts from the weights of {joined(list(files))}." if files else sentence


def _weights_of_seed(config: Mapping[str, Any]) -> str | None:
    """The weights that a seed draws; None where a file has them all."""
    if config["workload"].get("weights", DRAWN) in ARE_DRAWN:
        return "the initial weights"
    inputs = config.get("inputs")
    if inputs is None:  # the file is not read yet
        return "the classifier (where the weights file has none for these classes)"
    if inputs.get("classifier", "drawn") == "drawn":
        return "the classifier (the weights file has none for these classes)"
    return None


def _headline(arms: Sequence[ArmRuns], claims: Sequence[LearningClaim], margin: float) -> str:
    """The sentence of the pair of arms whose accuracies differ most, or what all pairs have in common."""
    if len(arms) == 1:
        return _of_one(arms[0])
    names = {arm.name for arm in arms}
    accuracy_claims = [claim for claim in claims if claim.pair.measure == "accuracy" and claim.pair.first in names]
    judged = [claim for claim in accuracy_claims if claim.outcome not in ("NOT COMPARABLE", "exploratory")]
    if len(judged) == 1:
        return judged[0].sentence
    if not judged:
        return ANOTHER_PAIR if is_pair_elsewhere(arms) else "The accuracies of no two arms are comparable."
    decided = [claim for claim in judged if claim.outcome in ("higher", "lower")]
    if decided:
        widest = max(decided, key=lambda claim: abs(claim.pair.difference.mean) if claim.pair.difference else 0.0)
        return f"{widest.sentence} This is the largest difference of {len(judged)} comparable pairs."
    same = sum(claim.outcome == "the same within the margin" for claim in judged)
    if same == len(judged):
        return f"All comparable arms are equally accurate within plus or minus {margin_in_words(margin)}."
    if all(claim.outcome == "too few rounds" for claim in judged):
        return "Too few rounds to claim anything about accuracy."
    at_chance = sum(claim.outcome == "not above chance" for claim in judged)
    if at_chance == len(judged):
        return "Accuracy not judged: no comparable arm is shown to be above chance."
    are = "is" if same == 1 else "are"
    noted = f"; of {at_chance} neither arm is shown to be above chance" if at_chance else ""
    return (
        f"No comparable pair shows a difference in accuracy; {same} of the {len(judged)} "
        f"pairs {are} shown to be equally accurate within plus or minus {margin_in_words(margin)}{noted}."
    )


def _of_one(arm: ArmRuns) -> str:
    """The accuracy of the only arm."""
    found = spread_of(arm, "accuracy")
    if found is None:
        return "Only one arm, so there is nothing to compare."
    deviation = found.standard_deviation
    spread = "" if deviation is None else f", standard deviation {deviation * 100:.2f} points"
    return (
        f"Only one arm, so there is nothing to compare. Its accuracy: mean {found.mean:.1%}{spread}, "
        f"{pluralize(found.rounds, 'round')}."
    )


def _row(claim: LearningClaim) -> LearningRow:
    difference = claim.pair.difference if claim.outcome != "NOT COMPARABLE" else None
    low, high = claim.interval or (None, None)
    return LearningRow(
        first=claim.pair.first,
        second=claim.pair.second,
        measure=claim.pair.measure,
        outcome=claim.outcome,
        difference=difference.mean if difference else None,
        low=low,
        high=high,
        confidence=None if claim.level is None or claim.interval is None else 1 - claim.level,
        standard_error=difference.standard_error if difference else None,
        rounds=difference.rounds if difference else 0,
        sentence=claim.sentence,
    )


def target_row(arm: ArmRuns) -> TargetRow | None:
    """What an arm needed; None where it was to reach nothing."""
    target = arm.config.target_accuracy
    runs = arm.completed
    if target is None or not runs:
        return None
    costs = [cost for run in runs if (cost := run.cost_of_target)]
    # Of the rounds that reached it alone, medians would be those of the luckier seeds.
    reached = costs if len(costs) == len(runs) else []
    row = TargetRow(
        accuracy=target,
        rounds=len(runs),
        reached=len(costs),
        timed=sum(cost.seconds is not None for cost in reached),
        steps=_low_median([cost.step for cost in reached]),
        images=_low_median([cost.images for cost in reached]),
        seconds=_median([cost.seconds for cost in reached]),
        joules=_median([cost.joules for cost in reached]),
        sentence="",
    )
    return row.model_copy(update={"sentence": _reached(arm.name, row) if reached else _censored(arm.name, row, runs)})


def _reached(name: str, row: TargetRow) -> str:
    assert row.steps is not None
    needed = [
        pluralize(round(row.steps), "step"),
        *([] if row.seconds is None else [f"{row.seconds:.1f} s of training"]),
    ]
    rounds = pluralize(row.rounds, "round")
    source = rounds if row.rounds == 1 else f"medians of {rounds}"
    sentence = f"{name} reaches an accuracy of {row.accuracy:g} after {joined(needed)} ({source})."
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
        f"{name} missed the target accuracy of {row.accuracy:g} in {len(missed)} of {pluralize(row.rounds, 'round')} "
        f"(best in those: {best:.3f}), so its time to target is censored and left out of the ratios."
    )


def _low_median(values: Sequence[int]) -> float | None:
    """The least value that half of them do not exceed: of steps one after which a round was evaluated."""
    return float(np.percentile(values, 50, method="inverted_cdf")) if values else None


def _median(values: Sequence[float | None]) -> float | None:
    """The median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def accuracy_curve(arm: ArmRuns) -> list[AccuracyPoint]:
    """The accuracy over the steps, with the band of the rounds: after each step at which all rounds were evaluated.

    Where rounds end at their target, those that continue are of the slower seeds: their mean would go down.
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
    sets: Sequence[Sequence[ArmRuns]], reached: Mapping[str, TargetRow | None], sheet_of: SheetOf
) -> TimeToAccuracy | None:
    """Which of the arms reach their target first; None where they have not the same one, or are of several studies.

    Nothing is claimed of rounds that repeat one training: how many steps it takes is luck of its seed.

    Args:
        sets: arms with completed runs, in the sets within which they are judged.
        reached: what each arm needed, by its name.
        sheet_of: the fairness sheet of two of them.
    """
    arms = [arm for each in sets for arm in each]
    targets = {arm.config.target_accuracy for arm in arms}
    target = next(iter(targets)) if len(targets) == 1 else None
    if target is None or len({arm.source for arm in arms}) != 1:
        return None
    pairs = []
    if all(arm.varies_seed for arm in arms):
        uncensored = {name for name, row in reached.items() if row and row.reached == row.rounds}
        pairs = [
            _pair(first, second, sheet_of(first, second))
            for first, second in pairs_within(sets)
            if {first.name, second.name} <= uncensored
        ]
    measure = RatioOf(
        name=f"training time to an accuracy of {target:g}",
        decided=f"{{first}} reaches an accuracy of {target:g} {{ratio}} times as fast as {{second}} (training time; "
        "{interval}).",
    )
    claims = [TimeClaimRow.of(claim) for claim in claims_of(pairs, arms[0].plan, measure)]

    def headline(of: Sequence[ArmRuns]) -> str:
        names = {arm.name for arm in of}
        needed = [row for name, row in reached.items() if row and name in names]
        return time_headline_of(needed, [claim for claim in claims if claim.first in names], target)

    return TimeToAccuracy(target=target, headline=of_each_set(sets, headline), claims=claims)


def _pair(first: ArmRuns, second: ArmRuns, sheet: fairness.Sheet) -> RatioPair:
    learned = fairness.learning_differs_by(sheet, [*first.completed, *second.completed])
    unequal = [
        row.setting for row in sheet.rows if row.reason and (row.setting in learned or row.setting not in _MAY_DIFFER)
    ]
    return RatioPair(
        first=first.name,
        second=second.name,
        # The arm that needs less time is faster. A seed that takes long is an outcome and no stall.
        ratio=paired_ratio(_seconds(second), _seconds(first), trims=False),
        doubt=doubt_of(first.runs, second.runs, measured_time_to_target),
        unequal=unequal,
        exploratory=is_exploratory(first, second),
    )


_MAY_DIFFER = names_that_differ(Differs.DEVICES) | names_that_change(Changes.NORMALISATION)
"""Checks that may differ where both learn the same: more devices are a way to be there first."""


def _seconds(arm: ArmRuns) -> list[float | None]:
    costs = [run.cost_of_target if run else None for run in arm.runs]
    return [cost.seconds if cost else None for cost in costs]
