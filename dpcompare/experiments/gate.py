"""A gate: whether one arm is slower than another by more than is allowed, judged after as few rounds as show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.comparison import GateOutcome, GateRow
from dpcompare.experiments.soundness import Doubt, doubt_of
from dpcompare.experiments.statistics import Ratio, confidence, paired_ratio
from dpcompare.experiments.study import Arm, Study
from dpcompare.system.terminal_text import pluralize

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Rounds after which a gate may end. Every look takes its chance of a wrong answer, so they are few and lie ever
further apart; the last one ends the gate."""
WRONG_PER_LOOK = 0.01
"""Probability of a wrong answer of one look, in either direction. All looks together are wrong in 4.4% of the gates
whose true ratio is exactly what is allowed, which is the worst case: a constant boundary (Pocock, Biometrika 64, 1977),
found by simulation for looks at these rounds (`stress/check_gates.py`)."""
DEFAULT_ALLOWED = 0.02


def gate_study(candidate: Arm, baseline: Arm, allowed: float, order_seed: int = 0) -> Study:
    """The study of a gate, before its first round.

    Args:
        candidate: is judged.
        baseline: the speed of this arm is what the candidate is to keep.
        allowed: the largest loss of speed that passes, as a part of the baseline's.
        order_seed: of the order of the arms within a round.
    """
    return Study(arms=(candidate, baseline), repeats=1, allowed_loss=allowed, adding=True, order_seed=order_seed)


def gate_row(candidate: ArmRuns, baseline: ArmRuns, allowed: float, inequality: str | None) -> GateRow:
    """What a gate says after the rounds that it has: the answer of the first look that gives one.

    It depends on nothing but the runs, so that it can be given again from a study's directory at any time.

    Args:
        candidate: is judged.
        baseline: its speed is that to keep.
        allowed: the largest loss of speed that passes, as a part of the baseline's.
        inequality: why the two are not comparable, in a sentence; None where they are.
    """
    gate = _Gate(candidate, baseline, allowed)
    rounds = min(len(candidate.runs), len(baseline.runs))
    look = None
    if inequality is None:
        for number in (number for number in LOOKS if number <= rounds):
            look = gate.look(number)
            if look.outcome != "undecided":
                break
    return gate.row(look, inequality)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What the first rounds show."""

    outcome: GateOutcome
    ratio: Ratio | None
    doubt: Doubt | None
    interval: tuple[float, float] | None
    """Each of its ends is one that the truth is beyond with probability WRONG_PER_LOOK."""


@dataclass(frozen=True)
class _Gate:
    candidate: ArmRuns
    baseline: ArmRuns
    allowed: float

    def look(self, rounds: int) -> _Look:
        """What this number of rounds shows."""
        first, second = self.candidate, self.baseline
        ratio = paired_ratio(first.steady_speeds[:rounds], second.steady_speeds[:rounds])
        interval = ratio.interval(2 * WRONG_PER_LOOK) if ratio else None
        doubt = doubt_of(first.runs[:rounds], second.runs[:rounds])
        outcome: GateOutcome = "undecided"
        if interval and not doubt:
            low, high = interval
            outcome = "slower" if high < self.boundary else "not slower" if low > self.boundary else "undecided"
        return _Look(outcome=outcome, ratio=ratio, doubt=doubt, interval=interval)

    @property
    def boundary(self) -> float:
        """The ratio of speeds that is just allowed."""
        return 1 - self.allowed

    def row(self, look: _Look | None, inequality: str | None) -> GateRow:
        ratio = look.ratio if look else None
        low, high = (look.interval if look and not look.doubt else None) or (None, None)
        return GateRow(
            candidate=self.candidate.name,
            baseline=self.baseline.name,
            allowed_loss=self.allowed,
            outcome=look.outcome if look else "undecided",
            ratio=ratio.value if ratio else None,
            low=low,
            high=high,
            rounds=ratio.rounds if ratio else 0,
            is_final=inequality is not None or bool(look and look.doubt and not look.doubt.may_pass),
            sentence=self._sentence(look, inequality),
        )

    def _sentence(self, look: _Look | None, inequality: str | None) -> str:
        first, second, allowed = self.candidate.name, self.baseline.name, f"{100 * self.allowed:.3g}%"
        undecided = f"UNDECIDED whether {first} is slower than {second} by more than {allowed}"
        if inequality is not None:
            return f"{undecided}: they are NOT COMPARABLE. {inequality}"
        if look is None or look.ratio is None:
            made, needed = len(self.candidate.completed), pluralize(LOOKS[0], "round")
            return f"{undecided}: a gate needs {needed}, and has {made}."
        ratio, shown = look.ratio, f"ratio {look.ratio.value:.3f} of steady speed"
        if look.doubt:
            return f"{undecided}: {look.doubt.reason}; {look.doubt.remedy}."
        if look.interval is None:
            return f"{undecided}: {shown}, {pluralize(ratio.rounds, 'round')}."
        (low, high), rounds = look.interval, pluralize(ratio.rounds, "round")
        one_sided = confidence(WRONG_PER_LOOK)
        if look.outcome == "slower":
            return (
                f"{first} is slower than {second} by more than {allowed}: {shown}, at most {high:.3f} with "
                f"{one_sided} confidence ({rounds})."
            )
        if look.outcome == "not slower":
            return (
                f"{first} is not slower than {second} by more than {allowed}: {shown}, at least {low:.3f} with "
                f"{one_sided} confidence ({rounds})."
            )
        return f"{undecided}: {shown}, {low:.3f} to {high:.3f} ({rounds}). {self._needed(ratio)}"

    def _needed(self, ratio: Ratio) -> str:
        """How many rounds would decide, if they were like these."""
        reach, distance = ratio.half_width(2 * WRONG_PER_LOOK), abs(math.log(ratio.value / self.boundary))
        if not reach or not distance:
            return f"No number of rounds like these would decide: the ratio is what is allowed, {self.boundary:g}."
        needed = math.ceil(ratio.rounds * (reach / distance) ** 2)
        about = f"About {pluralize(max(needed, ratio.rounds + 1), 'round')} like these would"
        if needed > LOOKS[-1]:
            return (
                f"{about} be needed, and a gate has at most {LOOKS[-1]}: use longer runs (--steps), a quieter machine "
                "or another --allow."
            )
        return f"{about} decide: give more time (--budget)."
