"""What guessing reaches on the validation split, and whether the accuracy of an arm is shown to be above it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpcompare.experiments.accuracy_statistics import spread
from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.statistics import FALSE_CLAIMS


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The accuracy of a model that has learned nothing of the images."""

    share: float
    """Of the samples, the part that the best constant prediction gets right."""
    num_classes: int


def chance_of(arm: ArmRuns) -> Chance | None:
    """The share of the largest class where it is known, else that of one of as many classes; None of no known classes.

    Results say the share since 0.2.0; kept predictions have the labels in any release.
    """
    inputs = arm.completed[0].config.get("inputs") if arm.completed else None
    num_classes = inputs.get("num_classes") if isinstance(inputs, dict) else None
    if not isinstance(num_classes, int) or num_classes < 1:
        return None
    recorded = arm.completed[0].settings.get("largest_class_share")
    shares = [1 / num_classes]
    if isinstance(recorded, float) and 0 < recorded <= 1:
        shares.append(recorded)
    shares += [float(np.bincount(kept.labels).max() / len(kept.labels)) for kept in arm.predictions if kept]
    return Chance(share=max(shares), num_classes=num_classes)


def is_above_chance(accuracies: Sequence[float], num_samples: int, chance: Chance) -> bool:
    """Whether accuracies of one arm are shown to be above chance, as a mean over rounds and on these samples.

    Both must say so: Student's interval of the mean over the rounds, where there are enough for one, and a binomial
    test of the mean, since all rounds share the samples: rounds that repeat one accuracy have an interval of no width.

    Args:
        accuracies: of the rounds.
        num_samples: validation samples of each round.
        chance: on these samples.
    """
    from scipy.special import bdtrc

    seeds = spread(accuracies)
    if seeds is None:
        return False
    if seeds.interval is not None and seeds.interval[0] <= chance.share:
        return False
    correct = math.floor(seeds.mean * num_samples + 1e-6)
    # One side of the interval, as of the rounds.
    return correct > 0 and float(bdtrc(correct - 1, num_samples, chance.share)) <= FALSE_CLAIMS / 2


def chance_in_words(first: ArmRuns, second: ArmRuns) -> str | None:
    """The accuracies of two arms and chance, where neither is shown to be above it; None otherwise."""
    chance = chance_of(first)
    means = []
    for arm in (first, second):
        last = [run.evaluations[-1] for run in arm.completed if run.evaluations]
        accuracies = [evaluation.accuracy for evaluation in last]
        if chance is None or not last or is_above_chance(accuracies, last[0].count, chance):
            return None
        means.append(float(np.mean(accuracies)))
    if chance is None:
        return None
    one, other = means
    return f"{one:.1%} and {other:.1%} on {chance.num_classes} classes, chance is {chance.share:.1%}"
