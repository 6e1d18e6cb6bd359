"""The statistics of what arms learn: differences of accuracy and loss, paired by seed, and fixed sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpcompare.experiments.statistics import (
    FALSE_CLAIMS,
    ROUNDS_FOR_INTERVAL,
    Pair,
    Plan,
    confidence,
    holm,
)
from dpcompare.system.terminal_text import pluralize

DEFAULT_MARGIN = 1.0
"""Points of accuracy within which two arms count as equally accurate."""

POINTS = " points"

Measure = Literal["accuracy", "loss"]
"""A measure of the last evaluation of a run."""

LearningOutcome = Literal[
    "higher",
    "lower",
    "the same within the margin",
    "no difference shown",
    "not above chance",
    "too few rounds",
    "exploratory",
    "NOT COMPARABLE",
]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much higher a figure of one arm is than that of another, over the rounds in which both have it."""

    mean: float
    standard_error: float | None
    """The standard error of the mean; None with fewer than ROUNDS_FOR_INTERVAL rounds."""
    rounds: int

    def interval(self, level: float) -> tuple[float, float] | None:
        """Ends of Student's interval of the mean, which misses the truth with probability `level`."""
        from scipy.special import stdtrit

        if self.standard_error is None:
            return None
        reach = float(-stdtrit(self.rounds - 1, level / 2)) * self.standard_error
        return self.mean - reach, self.mean + reach

    @property
    def p_value(self) -> float:
        """The smallest level at which the interval leaves 0 out; 1 where there is none."""
        return 1.0 if self.mean == 0 else min(1.0, 2 * self._tail(abs(self.mean)))

    def p_value_within(self, margin: float) -> float:
        """The larger p-value of two one-sided tests: the smallest level at which the mean is within +-`margin`."""
        return self._tail(margin - abs(self.mean))

    def _tail(self, distance: float) -> float:
        """How probable it is that the mean is as far as this from the truth, or farther, in one direction."""
        from scipy.special import stdtr

        if self.standard_error is None:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.rounds - 1, -distance / self.standard_error))


def paired_difference(first: Sequence[float | None], second: Sequence[float | None]) -> Difference | None:
    """The difference first - second of two figures, one per round; rounds that lack one of them are left out.

    Both arms of a round have its seed, so what weights and order do to both alike cancels. Nothing is trimmed: a seed
    with which a training goes wrong is part of what is asked.
    """
    differences = np.array([a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None])
    rounds = len(differences)
    if not rounds:
        return None
    error = float(differences.std(ddof=1)) / math.sqrt(rounds) if rounds >= ROUNDS_FOR_INTERVAL else None
    return Difference(mean=float(differences.mean()), standard_error=error, rounds=rounds)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure of one arm over its rounds."""

    mean: float
    standard_deviation: float | None
    """Over the rounds, with n - 1; None of one round."""
    interval: tuple[float, float] | None
    """The interval of the mean, at 95%; None with fewer than ROUNDS_FOR_INTERVAL rounds."""
    rounds: int


def spread(values: Sequence[float]) -> Spread | None:
    """Mean, standard deviation and interval of one figure per round; None of no rounds."""
    found = paired_difference(values, [0.0] * len(values))
    if found is None:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(
        mean=found.mean, standard_deviation=deviation, interval=found.interval(FALSE_CLAIMS), rounds=len(values)
    )


@dataclass(frozen=True, kw_only=True)
class LearningPair(Pair):
    """Two arms, and how a figure of what they learned differs.

    Settings make them not comparable only where they decide what is learned.
    """

    measure: Measure
    difference: Difference | None
    at_chance: str | None = None
    """Their accuracies and chance, in words, where neither is shown to be above it."""


@dataclass(frozen=True, kw_only=True)
class LearningClaim:
    """What a study says of a figure of two arms; `sentence` is the same, to the digit, wherever it is shown."""

    pair: LearningPair
    outcome: LearningOutcome
    level: float | None
    """Probability with which the interval misses the truth."""
    interval: tuple[float, float] | None
    """Leaves 0 out where a difference is claimed, and lies within the margin where sameness is."""
    sentence: str


def learning_claims(pairs: Sequence[LearningPair], plan: Plan, margin: float) -> list[LearningClaim]:
    """What a study says of its pairs, which are judged together: one of six fixed sentences for each that may be.

    Differences of accuracy and of loss share one level, by Holm's procedure, as those of speed share another: a study
    of equal arms claims any of them in at most 5 of 100 cases. Sameness, of accuracy alone, is judged by two one-sided
    tests; all of these share a level too. Two arms that are not above chance are not called the same.

    Args:
        pairs: each pair of arms once per measure.
        plan: when the study may claim something.
        margin: of accuracy, as a fraction of the samples.
    """
    judged = [pair for pair in pairs if pair.is_judged]
    accuracies = [pair for pair in judged if pair.measure == "accuracy"]
    ready = {
        id(pair): pair.difference for pair in judged if pair.difference and plan.allows_claim(pair.difference.rounds)
    }
    different = [found.p_value if (found := ready.get(id(pair))) else 1.0 for pair in judged]
    same = [
        found.p_value_within(margin) if (found := ready.get(id(pair))) and not pair.at_chance else 1.0
        for pair in accuracies
    ]
    levels = {id(pair): level for pair, level in zip(judged, holm(different, plan.level), strict=True)}
    equivalence_levels = {id(pair): level for pair, level in zip(accuracies, holm(same, plan.level), strict=True)}
    return [
        _not_comparable(pair)
        if pair.unequal
        else _shown(pair, plan.level)
        if pair.exploratory
        else _claim(pair, levels[id(pair)], equivalence_levels.get(id(pair)), plan, margin)
        for pair in pairs
    ]


def margin_in_words(margin: float) -> str:
    """A fraction of the samples as `1 point`, `0.5 points`."""
    points = f"{margin * 100:g}"
    return f"{points} point{'' if points == '1' else 's'}"


def _not_comparable(pair: LearningPair) -> LearningClaim:
    return LearningClaim(
        pair=pair,
        outcome="NOT COMPARABLE",
        level=None,
        interval=None,
        sentence=f"{pair.first} and {pair.second} are NOT COMPARABLE in {pair.measure}. {pair.inequality}",
    )


def _shown(pair: LearningPair, level: float) -> LearningClaim:
    """A pair of which nothing is claimed, since another was named beforehand."""
    interval = pair.difference.interval(level) if pair.difference else None
    figures = _figures(pair, interval, level) if pair.difference else "never evaluated in the same round"
    return LearningClaim(
        pair=pair,
        outcome="exploratory",
        level=level if interval else None,
        interval=interval,
        sentence=f"{pair.first} against {pair.second}, {pair.measure}: exploratory, since another pair was named "
        f"beforehand; nothing is claimed, {figures}.",
    )


def _claim(
    pair: LearningPair, level: float, level_of_sameness: float | None, plan: Plan, margin: float
) -> LearningClaim:
    difference = pair.difference
    both = f"{pair.first} against {pair.second}, {pair.measure}"
    if difference is None or not plan.allows_claim(difference.rounds):
        rounds = pluralize(difference.rounds if difference else 0, "round")
        measured = f" (measured difference {_amount(pair.measure, difference.mean)})" if difference else ""
        return LearningClaim(
            pair=pair,
            outcome="too few rounds",
            level=level if difference and difference.interval(level) else None,
            interval=difference.interval(level) if difference else None,
            sentence=f"{both}: too few rounds to claim anything, {rounds}{plan.awaited}{measured}.",
        )
    is_same = level_of_sameness is not None and difference.p_value_within(margin) <= level_of_sameness
    within = f"within plus or minus {margin_in_words(margin)}"
    outcome: LearningOutcome
    if difference.p_value <= level:
        outcome = "higher" if difference.mean > 0 else "lower"
        noted = f" That is {within}." if is_same else ""
        sentence = f"{_decided(_better_first(pair), level)}.{noted}"
    elif pair.at_chance:
        outcome = "not above chance"
        sentence = (
            f"Accuracy not judged: neither {pair.first} nor {pair.second} is shown to be above chance "
            f"({pair.at_chance})."
        )
    elif is_same and level_of_sameness is not None:
        # Two one-sided tests at a level are the interval that misses the truth with twice that probability.
        outcome, level = "the same within the margin", 2 * level_of_sameness
        figures = _figures(pair, difference.interval(level), level)
        sentence = f"{pair.first} and {pair.second} are equally accurate {within} ({figures})."
    else:
        outcome = "no difference shown"
        sentence = f"{both}: no difference shown ({_figures(pair, difference.interval(level), level)})."
    return LearningClaim(
        pair=pair, outcome=outcome, level=level, interval=difference.interval(level), sentence=sentence
    )


def _better_first(pair: LearningPair) -> LearningPair:
    """The same, begun with the arm that is more accurate, or has the lower loss."""
    assert pair.difference is not None
    if (pair.difference.mean > 0) == (pair.measure == "accuracy"):
        return pair
    difference = replace(pair.difference, mean=-pair.difference.mean)
    return replace(pair, first=pair.second, second=pair.first, difference=difference)


def _decided(pair: LearningPair, level: float) -> str:
    """The sentence that the first arm is better, and by how much."""
    assert pair.difference is not None
    size, figures = abs(pair.difference.mean), _figures(pair, pair.difference.interval(level), level)
    if pair.measure == "accuracy":
        return f"{pair.first} is {size * 100:.2f} points more accurate than {pair.second} ({figures})"
    return f"{pair.first} has an evaluation loss {size:.4f} lower than {pair.second} ({figures})"


def _figures(pair: LearningPair, interval: tuple[float, float] | None, level: float) -> str:
    """The difference first - second, with its interval."""
    assert pair.difference is not None
    rounds = pluralize(pair.difference.rounds, "round")
    shown = f"difference {_amount(pair.measure, pair.difference.mean)}"
    if interval is None:
        return f"{shown}, {rounds}"
    low, high = (_amount(pair.measure, end) for end in interval)
    return f"{shown}, {confidence(level)} interval {low.removesuffix(POINTS)} to {high}, {rounds}"


def _amount(measure: Measure, value: float) -> str:
    """A difference of accuracy in points."""
    return f"{value * 100:+.2f}{POINTS}" if measure == "accuracy" else f"{value:+.4f}"
