"""What the arms predict, sample by sample: accuracy per class, confusion, and how often two arms agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.comparison import ArmPredictions, PredictionAgreement, PredictionRows
from dpcompare.results.predictions import Integers, Predictions
from dpcompare.system.terminal_text import counted, printable


def confusion(labels: Integers, predicted: Integers, num_classes: int) -> Integers:
    """(label, prediction): how many samples of a class were taken for which."""
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def predictions_of(arms: Sequence[ArmRuns]) -> PredictionRows | None:
    """The predictions of arms that were evaluated on the same samples; None where none were kept."""
    kept = {arm.name: found for arm in arms if (found := [each for each in arm.predictions if each])}
    if not kept:
        return None
    first = next(iter(kept.values()))[0]
    alike = [arm for arm in arms if arm.name in kept and all(_same_samples(each, first) for each in kept[arm.name])]
    rows = [_arm(arm.name, kept[arm.name]) for arm in alike]
    pairs = [_agreement(*pair) for pair in combinations(alike, 2)]
    return PredictionRows(
        classes=list(map(printable, first.classes)),
        samples=len(first.labels),
        arms=rows,
        agreements=[pair for pair in pairs if pair is not None],
    )


def _same_samples(one: Predictions, other: Predictions) -> bool:
    return one.classes == other.classes and np.array_equal(one.labels, other.labels)


def _arm(name: str, rounds: Sequence[Predictions]) -> ArmPredictions:
    num_classes = len(rounds[0].classes)
    counts = np.sum([confusion(each.labels, each.predicted, num_classes) for each in rounds], axis=0)
    samples, right = counts.sum(axis=1), counts.diagonal()
    between = [_part_alike(*pair) for pair in combinations(rounds, 2)]
    return ArmPredictions(
        name=name,
        rounds=len(rounds),
        class_accuracy=[float(hits / of) if of else None for hits, of in zip(right, samples, strict=True)],
        confusion=counts.tolist(),
        agreement_between_rounds=float(np.mean(between)) if between else None,
    )


def _part_alike(one: Predictions, other: Predictions) -> float:
    return float((one.predicted == other.predicted).mean())


def _agreement(first: ArmRuns, second: ArmRuns) -> PredictionAgreement | None:
    """Within rounds, whose seed both have; None where there is no such round."""
    both = [(one, other) for one, other in zip(first.predictions, second.predictions, strict=False) if one and other]
    if not both:
        return None
    parts = [_part_alike(*pair) for pair in both]
    mean, rounds = float(np.mean(parts)), counted(len(parts), "round")
    return PredictionAgreement(
        first=first.name,
        second=second.name,
        agreement=mean,
        rounds=len(parts),
        sentence=f"{first.name} and {second.name} predict the same class for {mean:.1%} of the "
        f"{len(both[0][0].labels)} validation samples (mean of {rounds}, {min(parts):.1%} to {max(parts):.1%}).",
    )
