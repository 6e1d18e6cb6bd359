"""What the arms of a study have learned: from the evaluations of rounds with different seeds to what may be claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

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
from dpcompare.experiments.collection import ArmRuns, is_exploratory
from dpcompare.experiments.comparison import Learning, LearningRow, SpreadRow
from dpcompare.system.terminal_text import counted, joined

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


def learning_of(arms: Sequence[ArmRuns], sheet_of: SheetOf) -> Learning | None:
    """What may be claimed of the accuracy and the loss of arms; None where nothing may be asked.

    Rounds that repeat one training show how rounding moves an accuracy, and nothing of other weights and orders. All
    arms must be of one study, since seeds are paired within its rounds.
    """
    if len({arm.source for arm in arms}) != 1 or not all(arm.varies_seed for arm in arms):
        return None
    if any(arm.config.stop_at_target for arm in arms):  # their last accuracy is the one that they were to reach
        return None
    margin = arms[0].margin / 100
    pairs = [pair for first, second in combinations(arms, 2) for pair in _pairs(first, second, sheet_of(first, second))]
    claims = learning_claims(pairs, arms[0].plan, margin)
    return Learning(
        varied=varied_by_seed([run.config for arm in arms for run in arm.completed]),
        margin=margin,
        headline=_headline(claims, margin) if len(arms) > 1 else _of_one(arms[0]),
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
        )
        for measure in measures
    ]


def varied_by_seed(configs: Sequence[Mapping[str, Any]]) -> str:
    """What a seed per round decides, and what it does not, in one sentence or two.

    Args:
        configs: those of runs, by their fields; what any of them has is named.
    """
    workloads = [config["workload"] for config in configs]
    files = dict.fromkeys(source for workload in workloads if (source := workload.get("weights", "random")) != "random")
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
    if config["workload"].get("weights", "random") == "random":
        return "the initial weights"
    inputs = config.get("inputs")
    if inputs is None:  # the file is not read yet
        return "the classifier (where the weights file has none for these classes)"
    if inputs.get("classifier", "drawn") == "drawn":
        return "the classifier (the weights file has none for these classes)"
    return None


def _headline(claims: Sequence[LearningClaim], margin: float) -> str:
    """The sentence of the pair whose accuracies differ most, or what all pairs have in common."""
    of_accuracy = [claim for claim in claims if claim.pair.measure == "accuracy"]
    judged = [claim for claim in of_accuracy if claim.outcome not in ("NOT COMPARABLE", "exploratory")]
    if len(judged) == 1:
        return judged[0].sentence
    if not judged:
        return "The accuracies of no two arms may be compared."
    decided = [claim for claim in judged if claim.outcome in ("higher", "lower")]
    if decided:
        widest = max(decided, key=lambda claim: abs(claim.pair.difference.mean) if claim.pair.difference else 0.0)
        return f"{widest.sentence} This is the largest difference of {len(judged)} pairs that may be compared."
    same = sum(claim.outcome == "the same within the margin" for claim in judged)
    if same == len(judged):
        return f"All arms that may be compared are equally accurate within plus or minus {margin_in_words(margin)}."
    if all(claim.outcome == "too few rounds" for claim in judged):
        return "Too few rounds to claim anything about accuracy."
    are = "is" if same == 1 else "are"
    return (
        f"No difference in accuracy shown between any two arms that may be compared; {same} of their {len(judged)} "
        f"pairs {are} shown to be equally accurate within plus or minus {margin_in_words(margin)}."
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
        f"{counted(found.rounds, 'round')}."
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
