"""The statistics of repeated runs: ratios of paired rounds, which of them may be claimed, and fixed sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpcompare.experiments.soundness import Doubt
from dpcompare.results.steadiness import JITTER_SCALE
from dpcompare.system.terminal_text import pluralize

FALSE_CLAIMS = 0.05
"""How likely a study of equal arms may claim any difference: all its pairs and all looks at it together."""
ALPHA_SPENT_PER_LOOK = 0.8
"""The part of what is left of FALSE_CLAIMS that a look spends: a study that never gets more rounds loses little, and
some is always left."""
STOPPING_CORRECTION = 0.7
"""Factor of the level where rounds are added until intervals are narrow: they end where noise happens to look small,
which raises false claims to 1.6 times the level under autocorrelation (`stress/check_statistics.py`)."""
ROUNDS_FOR_INTERVAL = 5
ROUNDS_FOR_CLAIM = 6
"""A sign test of 5 rounds cannot reach two-sided p < 0.05 (its least is 2 / 2^5 = 0.0625); one of 6 can."""
ROUNDS_TO_TRIM = 12
"""From which on the largest and the smallest sixth of the rounds' ratios are left out, so that runs that were slow as a
whole do not hide a difference. Of fewer rounds too little would be left to see small differences by."""
POWER = 0.8
"""Part of the studies that show a difference of the size that is called detectable."""
SUSPICIOUS_EFFICIENCY = 1.05

Outcome = Literal[
    "faster",
    "slower",
    "no difference shown",
    "too few rounds",
    "disturbed or too short",
    "exploratory",
    "NOT COMPARABLE",
]
UNMEASURED: tuple[Outcome, ...] = ("too few rounds", "disturbed or too short")
"""Of pairs that are comparable and of which nothing is known for want of rounds, or of sound ones."""


def jitter(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation, in the unit of the values."""
    array = np.asarray(values, np.float64)
    return float(JITTER_SCALE * np.median(np.abs(array - np.median(array))))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """When a study may claim something: claims that are read before more rounds are added each take their chance."""

    rounds: int = ROUNDS_FOR_CLAIM
    """The rounds that a claim needs: those that the study is to have."""
    looks: int = 0
    """How often its claims could be read before rounds were added."""
    adding: bool = False
    """Whether rounds are being added, so that how many there will be is not known."""
    until: bool = False
    """Whether rounds are, or were, added until intervals are narrow."""

    def allows_claim(self, num_rounds: int) -> bool:
        """Whether something may be claimed of a pair with so many rounds."""
        return not self.adding and num_rounds >= self._rounds_needed

    @property
    def awaited(self) -> str:
        """What follows a number of rounds that is too small for a claim."""
        return ", and more are being added" if self.adding else f" of {self._rounds_needed}"

    @property
    def _rounds_needed(self) -> int:
        return max(self.rounds, ROUNDS_FOR_CLAIM)

    @property
    def level(self) -> float:
        """The probability of a false claim that this look at the study may have."""
        spent = FALSE_CLAIMS * ALPHA_SPENT_PER_LOOK * (1 - ALPHA_SPENT_PER_LOOK) ** self.looks
        return spent * STOPPING_CORRECTION if self.until else spent


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster one arm is than another, over the rounds in which both ran."""

    value: float
    """exp of the mean log-ratio, a trimmed one from ROUNDS_TO_TRIM on: the geometric mean over the rounds."""
    standard_error: float | None
    """The standard error of the mean log-ratio; None with fewer than ROUNDS_FOR_INTERVAL rounds."""
    rounds: int
    trimmed: int = 0
    """Rounds that were left out at each end."""

    @property
    def degrees(self) -> int:
        """Degrees of freedom of Student's distribution.

        Where rounds are trimmed one fewer than Yuen has: at the levels of 15 pairs, 0.27%, hers misses 0.39% in 12.
        """
        return self.rounds - 2 * self.trimmed - 1 - bool(self.trimmed)

    def half_width(self, level: float) -> float | None:
        """Half the width of Student's interval of the mean log-ratio that misses the truth with probability `level`."""
        from scipy.special import stdtrit

        if self.standard_error is None:
            return None
        return float(-stdtrit(self.degrees, level / 2)) * self.standard_error

    def interval(self, level: float) -> tuple[float, float] | None:
        """Ends of the interval of the ratio."""
        reach = self.half_width(level)
        return None if reach is None else (self.value * math.exp(-reach), self.value * math.exp(reach))

    def detectable(self, level: float) -> float | None:
        """The smallest ratio, less 1, that studies of such rounds show at `level` with probability POWER.

        An interval of half width h = t s / sqrt(n) misses 1 in POWER of the studies when the truth is
        (t + t') s / sqrt(n) away, t and t' being Student's quantiles of the interval's end and of POWER.
        """
        from scipy.special import stdtrit

        reach = self.half_width(level)
        if reach is None:
            return None
        return math.expm1(reach * float(1 + stdtrit(self.degrees, POWER) / -stdtrit(self.degrees, level / 2)))

    @property
    def p_value(self) -> float:
        """The smallest level at which the interval leaves 1 out; 1 where there is none."""
        from scipy.special import stdtr

        distance = abs(math.log(self.value))
        if self.standard_error is None or distance == 0:
            return 1.0
        if self.standard_error == 0:
            return 0.0
        return float(2 * stdtr(self.degrees, -distance / self.standard_error))


def paired_ratio(first: Sequence[float | None], second: Sequence[float | None], *, trims: bool = True) -> Ratio | None:
    """The ratio first / second of two speeds, one per round; rounds that lack one of them are left out.

    The logarithms of the rounds' ratios are taken as normal, and the interval is Student's (a percentile bootstrap of 5
    rounds covers 85%, not 95%). What drifts from round to round cancels, since both ran in each. Many rounds
    are trimmed, by Yuen's test (Biometrika 61, 1974): the nearest that is kept takes the place of what is left out in
    their variance.

    Args:
        first, second: positive, one per round; None where there is none.
        trims: whether many rounds are trimmed: those of extreme ratios were disturbed, and are no outcome.
    """
    logs = np.sort(np.log([a / b for a, b in zip(first, second, strict=True) if a and b]))
    if not len(logs):
        return None
    trimmed = num_trimmed(len(logs)) if trims else 0
    kept = logs[trimmed : len(logs) - trimmed]
    error = None
    if len(logs) >= ROUNDS_FOR_INTERVAL:
        replaced = np.clip(logs, kept[0], kept[-1])
        error = math.sqrt(float(((replaced - replaced.mean()) ** 2).sum()) / (len(kept) * (len(kept) - 1)))
    return Ratio(value=math.exp(float(kept.mean())), standard_error=error, rounds=len(logs), trimmed=trimmed)


def mean_speed(speeds: Sequence[float | None]) -> Ratio | None:
    """The speed of one arm over its rounds, as its ratio to one image per second: the mean that `paired_ratio` takes.

    So what is shown of two arms has the ratio that is claimed of them. The two differ where one arm lacks rounds that
    the other has, and a little where rounds are trimmed: of each arm its own.

    Args:
        speeds: images per second, one per round; None where there is none.
    """
    return paired_ratio(speeds, [1.0] * len(speeds))


def num_trimmed(rounds: int) -> int:
    """Ratios of speeds that are left out at each end."""
    return rounds // 6 if rounds >= ROUNDS_TO_TRIM else 0


def holm(p_values: Sequence[float], level: float) -> list[float]:
    """The level at which each of several hypotheses is judged, so that all together keep `level`: Holm's procedure.

    It rejects those whose p-value is no larger than theirs.
    """
    levels = [0.0] * len(p_values)
    left, going_on = len(p_values), True
    for index in sorted(range(len(p_values)), key=p_values.__getitem__):
        levels[index] = level / left
        going_on = going_on and p_values[index] <= levels[index]
        left -= going_on
    return levels


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms of a study, of which something may be claimed or not."""

    first: str
    """Name of the arm that a claim is about."""
    second: str
    """Name of the arm that it is compared with."""
    unequal: Sequence[str] = ()
    """Settings of the fairness sheet that make them not comparable."""
    exploratory: bool = False
    """Whether their study named another pair beforehand: shown, and never claimed."""

    @property
    def is_judged(self) -> bool:
        """Whether it takes its part of the probability of a false claim."""
        return not (self.unequal or self.exploratory)

    @property
    def inequality(self) -> str:
        """What makes them not comparable, in a sentence."""
        return f"Settings that differ: {', '.join(self.unequal)}."


@dataclass(frozen=True, kw_only=True)
class RatioPair(Pair):
    """Two arms, and how many times faster the first one is."""

    ratio: Ratio | None
    doubt: Doubt | None = None
    """Why nothing is claimed of it, however narrow its interval is; None where most of its rounds are sound."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a study says of two arms; `sentence` is the same, to the digit, wherever it is shown."""

    first: str
    second: str
    outcome: Outcome
    ratio: Ratio | None
    level: float | None
    """Probability with which the interval misses the truth; an interval leaves 1 out where something is claimed."""
    interval: tuple[float, float] | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class RatioOf:
    """What ratios are of, in words."""

    name: str
    decided: str
    """The sentence that one arm is faster, with the fields `first`, `ratio`, `second` and `interval`."""


SPEED = RatioOf(
    name="steady speed", decided="{first} is {ratio} times as fast as {second} in steady speed ({interval})."
)
"""What a sentence need not say that it is of."""


def claims_of(pairs: Sequence[RatioPair], plan: Plan, measure: RatioOf = SPEED) -> list[Claim]:
    """What a study says of its pairs, which are judged together: one of seven fixed sentences for each.

    A pair with too few rounds, or with too few sound ones, counts among those that are judged, so that it may be looked
    at later. The one that was named beforehand is judged alone.

    Args:
        pairs: of a study.
        plan: when it may claim something.
        measure: what the ratios are of.
    """
    p_values = [
        pair.ratio.p_value if pair.ratio and not pair.doubt and plan.allows_claim(pair.ratio.rounds) else 1.0
        for pair in pairs
        if pair.is_judged
    ]
    levels = iter(holm(p_values, plan.level))
    return [
        _not_comparable(pair, measure)
        if pair.unequal
        else _exploratory(pair, plan, measure)
        if pair.exploratory
        else _claim(pair, next(levels), plan, measure)
        for pair in pairs
    ]


def _not_comparable(pair: RatioPair, measure: RatioOf) -> Claim:
    measured_by = "" if measure == SPEED else f" in {measure.name}"
    return Claim(
        first=pair.first,
        second=pair.second,
        outcome="NOT COMPARABLE",
        ratio=None,
        level=None,
        interval=None,
        sentence=f"{pair.first} and {pair.second} are NOT COMPARABLE{measured_by}. {pair.inequality}",
    )


def _exploratory(pair: RatioPair, plan: Plan, measure: RatioOf) -> Claim:
    ratio = pair.ratio
    interval = ratio.interval(plan.level) if ratio and not pair.doubt else None
    figures = "never measured in the same round"
    if ratio is not None:
        shown = pair.doubt.reason if pair.doubt else interval_in_words(interval, plan.level, ratio.rounds)
        figures = f"measured ratio {ratio.value:.3f} of {measure.name} ({shown})"
    return Claim(
        first=pair.first,
        second=pair.second,
        outcome="exploratory",
        ratio=ratio,
        level=plan.level if interval else None,
        interval=interval,
        sentence=(
            f"{pair.first} against {pair.second}: exploratory, since another pair was named beforehand; nothing is "
            f"claimed, {figures}."
        ),
    )


def _claim(pair: RatioPair, level: float, plan: Plan, measure: RatioOf) -> Claim:
    ratio, both = pair.ratio, f"{pair.first} against {pair.second}"
    interval = ratio.interval(level) if ratio else None
    outcome: Outcome
    if ratio is None or interval is None or not plan.allows_claim(ratio.rounds):
        outcome = "too few rounds"
        rounds = pluralize(ratio.rounds if ratio else 0, "round")
        measured = f" (measured ratio {ratio.value:.3f})" if ratio else ""
        measured_by = "" if measure == SPEED else f", {measure.name}"
        sentence = f"{both}{measured_by}: too few rounds to claim anything, {rounds}{plan.awaited}{measured}."
    elif pair.doubt:
        outcome, interval = "disturbed or too short", None
        sentence = _doubted(pair, ratio, pair.doubt, measure)
    elif interval[0] <= 1 <= interval[1]:
        outcome = "no difference shown"
        shown = interval_in_words(interval, level, ratio.rounds)
        sentence = f"{both}: no difference shown, ratio {ratio.value:.3f} of {measure.name} ({shown})."
    else:
        outcome = "faster" if interval[0] > 1 else "slower"
        sentence = _faster_first(pair, ratio, level, measure)
    return Claim(
        first=pair.first,
        second=pair.second,
        outcome=outcome,
        ratio=ratio,
        level=level,
        interval=interval,
        sentence=sentence,
    )


def _doubted(pair: RatioPair, ratio: Ratio, doubt: Doubt, measure: RatioOf) -> str:
    """The sentence of a pair most of whose rounds are not sound: what was measured, and no word of an interval."""
    faster, slower, ratio = _in_order(pair, ratio)
    where = "in what was measured" if measure == SPEED else f"in {measure.name}, as far as was measured"
    return (
        f"{doubt.reason}: no claim. {faster} was {ratio.value:.3f} times as fast as {slower} {where}; {doubt.remedy}."
    )


def _in_order(pair: RatioPair, ratio: Ratio) -> tuple[str, str, Ratio]:
    """The faster arm, the slower one, and a ratio of at least 1."""
    if ratio.value < 1:
        return pair.second, pair.first, replace(ratio, value=1 / ratio.value)
    return pair.first, pair.second, ratio


def _faster_first(pair: RatioPair, ratio: Ratio, level: float, measure: RatioOf) -> str:
    faster, slower, ratio = _in_order(pair, ratio)
    shown = interval_in_words(ratio.interval(level), level, ratio.rounds)
    return measure.decided.format(first=faster, ratio=f"{ratio.value:.3f}", second=slower, interval=shown)


def interval_in_words(interval: tuple[float, float] | None, level: float, rounds: int) -> str:
    """The interval of a ratio, where it has one, and its rounds: `96% interval 1.010 to 1.040, 6 rounds`."""
    if interval is None:
        return pluralize(rounds, "round")
    low, high = interval
    return f"{confidence(level)} interval {low:.3f} to {high:.3f}, {pluralize(rounds, 'round')}"


def confidence(level: float) -> str:
    """The confidence of an interval that misses the truth with probability `level`, rounded down to at most 99.99%."""
    return f"{math.floor((1 - level) * 10_000 + 1e-6) / 100:g}%"
