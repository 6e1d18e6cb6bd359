"""The statistics of repeated runs: medians, ratios of paired rounds with their intervals, and five fixed sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
ROUNDS_FOR_INTERVAL = 5
ROUNDS_FOR_CLAIM = 6
"""A sign test of 5 rounds cannot reach two-sided p < 0.05 (its least is 2 / 2^5 = 0.0625); one of 6 can."""
JITTER_SCALE = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""
SUSPICIOUS_EFFICIENCY = 1.05

Outcome = Literal["faster", "slower", "no difference shown", "too few rounds", "NOT COMPARABLE"]


def jitter(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation, in the unit of the values."""
    array = np.asarray(values, np.float64)
    return float(JITTER_SCALE * np.median(np.abs(array - np.median(array))))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster one arm is than another, over the rounds in which both ran."""

    value: float
    """exp of the mean log-ratio: the geometric mean over the rounds."""
    low: float | None
    high: float | None
    """Ends of the 95% interval; None with fewer than ROUNDS_FOR_INTERVAL rounds."""
    rounds: int


def paired_ratio(first: Sequence[float | None], second: Sequence[float | None]) -> Ratio | None:
    """The ratio first / second of two speeds, one per round; rounds that lack one of them are left out.

    The logarithms of the rounds' ratios are taken as normal, and the interval is Student's (a percentile bootstrap of 5
    rounds covers 85%, not 95%). What drifts from round to round cancels, since both ran in each.
    """
    from scipy.stats import t

    logs = np.log([a / b for a, b in zip(first, second, strict=True) if a and b])
    if not len(logs):
        return None
    mean = float(logs.mean())
    if len(logs) < ROUNDS_FOR_INTERVAL:
        return Ratio(value=math.exp(mean), low=None, high=None, rounds=len(logs))
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return Ratio(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach), rounds=len(logs))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a study says of two arms; `sentence` is the same, to the digit, wherever it is shown."""

    first: str
    second: str
    outcome: Outcome
    ratio: Ratio | None
    sentence: str


def claim(
    first: str, second: str, speeds: tuple[Sequence[float | None], Sequence[float | None]], *, unequal: Sequence[str]
) -> Claim:
    """One of five fixed sentences.

    Args:
        first: name of the arm that the sentence is about.
        second: name of the arm that it is compared with.
        speeds: images per second of both, one per round; None where the run failed.
        unequal: knobs of the fairness sheet that make them not comparable.
    """
    ratio = paired_ratio(*speeds)
    outcome = _outcome(ratio, unequal)
    if outcome == "NOT COMPARABLE":
        sentence = f"{first} and {second} are NOT COMPARABLE: {', '.join(unequal)} differ."
        if len(unequal) == 1:
            sentence = f"{first} and {second} are NOT COMPARABLE: {unequal[0]} differs."
        return Claim(first=first, second=second, outcome=outcome, ratio=None, sentence=sentence)
    rounds = ratio.rounds if ratio else 0
    counted = f"{rounds} round{'' if rounds == 1 else 's'}"
    if outcome == "too few rounds":
        measured = f" (measured ratio {ratio.value:.3f})" if ratio else ""
        sentence = (
            f"{first} against {second}: too few rounds to claim anything, {counted} of {ROUNDS_FOR_CLAIM}{measured}."
        )
    else:
        assert ratio is not None
        interval = f"95% interval {ratio.low:.3f} to {ratio.high:.3f}, {counted}"
        if outcome == "no difference shown":
            sentence = f"{first} against {second}: no difference shown, ratio {ratio.value:.3f} ({interval})."
        elif outcome == "faster":
            sentence = f"{first} is {ratio.value:.3f} times as fast as {second}: faster ({interval})."
        else:
            sentence = f"{first} is {ratio.value:.3f} times as fast as {second}: slower ({interval})."
    return Claim(first=first, second=second, outcome=outcome, ratio=ratio, sentence=sentence)


def _outcome(ratio: Ratio | None, unequal: Sequence[str]) -> Outcome:
    if unequal:
        return "NOT COMPARABLE"
    if ratio is None or ratio.low is None or ratio.high is None or ratio.rounds < ROUNDS_FOR_CLAIM:
        return "too few rounds"
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "no difference shown"
