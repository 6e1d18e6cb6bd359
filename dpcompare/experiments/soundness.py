"""The runs of a pair that carry no claim of speed: those that were disturbed, slowed down, too short or not watched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dpcompare.config.modes import MODES
from dpcompare.results.result import RunResult
from dpcompare.system.terminal_text import joined, pluralize

FEWEST_STEPS = 20
"""Measured steps that a claim of speed needs of each run: two in each of the ten parts whose median is taken."""
FEWEST_SECONDS = 1.0
"""Measured seconds that it needs of each run. In half a second the clock cannot be checked, and others are not found
to take cores below half a second of a core, so a shorter run could be disturbed without a word."""
LARGEST_FLAWED_SHARE = 0.5
"""Share of the paired rounds that may have a flawed run. Where more than half have one, the mean of the ratios is that
of the load, which harms two arms unequally: an interval shows how much it varies, and not that it is there."""
SPARE = 1.5
"""Times FEWEST_SECONDS that a longer run is advised to have, since steps differ from run to run."""

Flaw = Literal["TOO SHORT", "CLOCK", "DISTURBED", "SLOWED DOWN", "NOT WATCHED"]
"""What is wrong with a run: FEWEST_STEPS or FEWEST_SECONDS are missing, or the run has the warning of that name.
NOT WATCHED: neither the load of its machine nor a check of its clock is known, though both can be of such a run."""

_REPEAT = "repeat "
_REMEDIES: dict[Flaw, str] = {
    "CLOCK": "see the CLOCK warnings of its runs",
    "DISTURBED": "repeat when the machine is idle",
    "SLOWED DOWN": "repeat when the devices stay cool",
    "NOT WATCHED": "repeat with longer runs",
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How much of a run a figure was measured over."""

    steps: int
    seconds: float | None
    """None where a result of an older release does not say."""
    steps_advised: int | None = None
    """Of `--steps`, so that the run is long enough; None where more steps would not make it so."""

    @property
    def is_short(self) -> bool:
        """Whether it is too little for a claim."""
        return self.steps < FEWEST_STEPS or (self.seconds is not None and self.seconds < FEWEST_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Why nothing is claimed of the speed of two arms."""

    reason: str
    """Such as `DISTURBED in 4 of 6 rounds`."""
    remedy: str
    """What helps, in the imperative."""
    may_pass: bool
    """Whether more rounds of the same runs may be sound: those that are too short stay so."""


def measured_speed(run: RunResult) -> Measured | None:
    """What the speed of a run was measured over; None where it has none."""
    if run.compared_speed is None:
        return None
    if run.step_seconds is None:
        return Measured(steps=run.measured_steps, seconds=None)
    step_seconds = run.step_seconds.mean
    needed = max(FEWEST_STEPS, math.ceil(SPARE * FEWEST_SECONDS / step_seconds)) if step_seconds else FEWEST_STEPS
    return Measured(
        steps=run.measured_steps,
        seconds=step_seconds * run.measured_steps,
        steps_advised=10 * math.ceil(((run.steps_left_out or 0) + needed) / 10),
    )


def measured_time_to_target(run: RunResult) -> Measured | None:
    """What the training time to the target was measured over; None where it is not known."""
    cost = run.cost_of_target
    return None if cost is None or cost.seconds is None else Measured(steps=cost.step, seconds=cost.seconds)


def doubt_of(
    first: Sequence[RunResult | None],
    second: Sequence[RunResult | None],
    measured: Callable[[RunResult], Measured | None] = measured_speed,
) -> Doubt | None:
    """Why nothing may be claimed of two arms, whichever is faster; None where most of their rounds are sound.

    A round is flawed if either of its runs is. What is judged is the run alone, never how fast it was.

    Args:
        first, second: the run of each round; None where there is none.
        measured: what the figure of a run was measured over.
    """
    rounds = [
        [(run, amount) for run in pair if run is not None and (amount := measured(run)) is not None]
        for pair in zip(first, second, strict=False)
    ]
    paired = [runs for runs in rounds if len(runs) == 2]
    flaws = [{flaw for run, amount in runs for flaw in _flaws(run, amount)} for runs in paired]
    if sum(map(bool, flaws)) <= LARGEST_FLAWED_SHARE * len(paired):
        return None
    counts = Counter(flaw for of_round in flaws for flaw in sorted(of_round))
    kinds = [flaw for flaw, _ in counts.most_common()]
    short = [amount for runs in paired for _, amount in runs if amount.is_short]
    reasons = [f"{flaw} in {counts[flaw]}" for flaw in kinds]
    details = f" ({_shortest(short)})" if short else ""
    remedies = [_longer(short) if flaw == "TOO SHORT" else _REMEDIES[flaw] for flaw in kinds]
    return Doubt(
        reason=f"{joined(reasons)} of {pluralize(len(paired), 'round')}{details}",
        remedy=_together(dict.fromkeys(remedies)),
        may_pass=counts["TOO SHORT"] <= LARGEST_FLAWED_SHARE * len(paired),
    )


def _together(remedies: Iterable[str]) -> str:
    """`repeat when the machine is idle and with --steps 430`: what is said twice is said once."""
    to_see = [remedy for remedy in remedies if not remedy.startswith(_REPEAT)]
    how = [remedy.removeprefix(_REPEAT) for remedy in remedies if remedy.startswith(_REPEAT)]
    return joined([*to_see, *([f"{_REPEAT}{joined(how)}"] if how else [])])


def _flaws(run: RunResult, amount: Measured) -> list[Flaw]:
    warned = {warning.kind for warning in run.warnings}
    flaws: list[Flaw] = ["TOO SHORT"] if amount.is_short else []
    kinds: tuple[Literal["CLOCK", "DISTURBED", "SLOWED DOWN"], ...] = ("CLOCK", "DISTURBED", "SLOWED DOWN")
    flaws += [kind for kind in kinds if kind in warned]
    if not amount.is_short and _is_unwatched(run):
        flaws.append("NOT WATCHED")
    return flaws


def _is_unwatched(run: RunResult) -> bool:
    """Whether neither load nor clock is known of a run of which both could be.

    Processes that are bound to cores read no load, workers that do not wait for each other have no clock check, and
    results of 0.1.0 have neither.
    """
    mode = MODES.get((run.framework, run.mode))
    could_be_watched = (
        mode is not None
        and mode.steps_together
        and run.steady_images_per_second is not None
        and bool(run.nodes)
        and not any(node.bound_to_cores for node in run.nodes)
    )
    return could_be_watched and run.clock is None and all(node.load is None for node in run.nodes)


def _shortest(short: Sequence[Measured]) -> str:
    """How short they were, and what is needed."""
    least = min(short, key=lambda amount: (amount.seconds or 0.0, amount.steps))
    seconds = "" if least.seconds is None else f", {least.seconds:.2g} s"
    needed = f"{FEWEST_STEPS} steps and {FEWEST_SECONDS:g} s are needed"
    return f"{pluralize(least.steps, 'measured step')}{seconds} in the shortest run; {needed}"


def _longer(short: Sequence[Measured]) -> str:
    advised = [amount.steps_advised for amount in short if amount.steps_advised is not None]
    return f"repeat with --steps {max(advised)}" if advised else "repeat with runs that take longer"
