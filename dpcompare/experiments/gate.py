"""A gate: whether one arm is slower than another by more than is allowed, judged after as few rounds as show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpcompare.experiments.claim_rows import GateOutcome, GateRow
from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.soundness import Doubt, doubt_of
from dpcompare.experiments.statistics import Ratio, paired_ratio
from dpcompare.experiments.study import Arm, Study
from dpcompare.system.terminal_text import pluralize

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Rounds after which a gate may end. Every look takes its chance of a wrong answer, so they are few and lie ever
further apart; the last one ends the gate."""
WRONG_PER_LOOK = 0.01
"""Probability of a wrong answer of one look, in either direction, if rounds are independent. All looks together are
then wrong in 4.4% of the gates whose true ratio is exactly what is allowed, the worst case, and in 9% where rounds are
correlated by 0.2: a constant boundary (Pocock, Biometrika 64, 1977), found by simulation for looks at these rounds
(`stress/check_gates.py`)."""
OVER_ALL_LOOKS = "95% confidence over all looks"


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
    look = None
    if inequality is None:
        for number in (number for number in LOOKS if number <= gate.rounds):
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

    @property
    def rounds(self) -> int:
        """Those that were made."""
        return min(len(self.candidate.runs), len(self.baseline.runs))

    @property
    def is_unmeasured(self) -> bool:
        """Whether an arm has runs, and none of them a speed: more such runs would have none, too."""
        arms = (self.candidate, self.baseline)
        return any(arm.completed and not any(arm.steady_speeds) for arm in arms)

    def row(self, look: _Look | None, inequality: str | None) -> GateRow:
        ratio = look.ratio if look else None
        low, high = (look.interval if look and not look.doubt else None) or (None, None)
        is_decided, is_over = look is not None and look.outcome != "undecided", self.rounds >= LOOKS[-1]
        stays_short = bool(look and look.doubt and not look.doubt.may_pass)
        return GateRow(
            candidate=self.candidate.name,
            baseline=self.baseline.name,
            allowed_loss=self.allowed,
            outcome=look.outcome if look else "undecided",
            ratio=ratio.value if ratio else None,
            low=low,
            high=high,
            rounds=ratio.rounds if ratio else 0,
            is_final=is_decided or inequality is not None or stays_short or self.is_unmeasured or is_over,
            sentence=self._sentence(look, inequality),
            advice=self._advice(look, inequality),
        )

    def _sentence(self, look: _Look | None, inequality: str | None) -> str:
        first, second, allowed = self.candidate.name, self.baseline.name, f"{100 * self.allowed:.3g}%"
        undecided = f"UNDECIDED whether {first} is slower than {second} by more than {allowed}"
        if inequality is not None:
            return f"{undecided}: they are NOT COMPARABLE. {inequality}"
        if self.is_unmeasured:
            return f"{undecided}: no speed was measured."
        if look is None or look.ratio is None:
            made, needed = len(self.candidate.completed), pluralize(LOOKS[0], "round")
            return f"{undecided}: a gate needs {needed}, and has {made}."
        ratio, shown = look.ratio, f"ratio {look.ratio.value:.3f} of steady speed"
        rounds = pluralize(ratio.rounds, "round")
        if look.doubt:
            return f"{undecided}: {look.doubt.reason}."
        if look.interval is None:
            return f"{undecided}: {shown}, {rounds}."
        low, high = look.interval
        if look.outcome == "slower":
            return (
                f"{first} is slower than {second} by more than {allowed}: {shown}, at most {high:.3f} ({rounds}, "
                f"{OVER_ALL_LOOKS})."
            )
        if look.outcome == "not slower":
            return (
                f"{first} is not slower than {second} by more than {allowed}: {shown}, at least {low:.3f} ({rounds}, "
                f"{OVER_ALL_LOOKS})."
            )
        return f"{undecided}: {shown}, between {low:.3f} and {high:.3f} ({rounds}, {OVER_ALL_LOOKS})."

    def _advice(self, look: _Look | None, inequality: str | None) -> str:
        """What would decide a gate that has ended undecided; empty where it is decided, or nothing would."""
        if inequality is not None or (look and look.outcome != "undecided"):
            return ""
        if self.is_unmeasured:
            return "Use more steps (--steps): a speed is that of the steps after the warm-up."
        is_over = self.rounds >= LOOKS[-1]
        if look is None or look.ratio is None:
            return "" if is_over else "Give more time (--budget)."
        if look.doubt:
            return f"{look.doubt.remedy[0].upper()}{look.doubt.remedy[1:]}{', with another --out' if is_over else ''}."
        needed = self._needed(look.ratio)
        if is_over or needed is None or needed > LOOKS[-1]:
            rounds = "No number of rounds" if needed is None else f"About {pluralize(needed, 'round')}"
            return (
                f"{rounds} like these would decide, and a gate ends with {LOOKS[-1]}: use longer runs (--steps), a "
                "quieter machine or another --allow, with another --out."
            )
        at = next(number for number in LOOKS if number >= max(needed, self.rounds + 1))
        return f"Give more time (--budget): {pluralize(at, 'round')} like these would decide."

    def _needed(self, ratio: Ratio) -> int | None:
        """How many rounds like these would decide; None where none would, since the ratio is what is just allowed."""
        reach, distance = ratio.half_width(2 * WRONG_PER_LOOK), abs(math.log(ratio.value / self.boundary))
        if reach is None or distance == 0:
            return None
        return max(ratio.rounds + 1, math.ceil(ratio.rounds * (reach / distance) ** 2))
