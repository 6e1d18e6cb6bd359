"""Studies drawn from the rounds of real runs, and how many of their claims are true: with the rule that withholds some,
and without it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import ArmRuns, Collection
from dpcompare.experiments.soundness import Flaw, doubt_of
from dpcompare.experiments.statistics import ROUNDS_FOR_CLAIM, Outcome, Plan, RatioPair, claims_of, paired_ratio

LEAST_RIGHT = 0.975
"""The part of the claims of two unequal arms whose sign must be right."""
CLAIMS: tuple[Outcome, ...] = ("faster", "slower")
WITHHELD: Outcome = "disturbed or too short"

Arms = tuple[ArmRuns, ArmRuns]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a study says of its first arm, with the rule and without."""

    outcome: Outcome
    without_rule: Outcome
    """What it would say if its runs were taken for sound."""
    flaws: frozenset[Flaw] = frozenset()
    """Why it claims nothing, where the rule withholds it."""


def verdict_of(arms: Arms) -> Verdict:
    """What `compare` and `report` say of a study of two arms, and would say without the rule."""
    first, second = arms
    (claim,) = analyse(Collection(arms=[first, second], repeats=first.plan.rounds)).claims
    if claim.outcome == "NOT COMPARABLE":  # with the rule and without
        return Verdict(outcome=claim.outcome, without_rule=claim.outcome)
    pair = RatioPair(
        first=first.name, second=second.name, ratio=paired_ratio(first.steady_speeds, second.steady_speeds)
    )
    (without_rule,) = claims_of([pair], first.plan)
    doubt = doubt_of(first.runs, second.runs)
    reason = doubt.reason if doubt and claim.outcome == WITHHELD else ""
    return Verdict(
        outcome=claim.outcome,
        without_rule=without_rule.outcome,
        # A reason reads as `DISTURBED in 6 and CLOCK in 4 of 6 rounds`.
        flaws=frozenset(flaw for flaw in get_args(Flaw) if f"{flaw} in " in reason),
    )


def rounds_as_run(num_rounds: int, generator: random.Random) -> tuple[list[int], list[int]]:
    """Rounds whose two runs were made one right after the other, as those of a study are; none is drawn twice."""
    rounds = generator.sample(range(num_rounds), ROUNDS_FOR_CLAIM)
    return rounds, rounds


def runs_apart(num_rounds: int, generator: random.Random) -> tuple[list[int], list[int]]:
    """Runs of each arm that are drawn by themselves, so that the two of a round share no drift of the machine."""
    first, second = (generator.sample(range(num_rounds), ROUNDS_FOR_CLAIM) for _ in range(2))
    return first, second


Draw = Callable[[int, random.Random], tuple[list[int], list[int]]]
"""From a number of rounds to the indices of those that a study takes the runs of its first and its second arm from."""
DRAWS: Mapping[str, Draw] = {"drawn, rounds as they were run": rounds_as_run, "drawn, runs apart": runs_apart}
"""How the runs of a study are drawn, by what a table calls it."""


def drawn(arms: Arms, draw: Draw, *, studies: int, seed: int) -> Iterator[Verdict]:
    """The verdicts of studies that are drawn from all rounds of two arms, the same ones for the same seed.

    Args:
        arms: with a run of each in every round.
        draw: one of DRAWS.
        studies: how many.
        seed: of the draws.

    Raises:
        ValueError: there are fewer rounds than a study has.
    """
    num_rounds = len(arms[0].runs)
    if num_rounds < ROUNDS_FOR_CLAIM:
        raise ValueError(f"rounds: received {num_rounds}, expected at least {ROUNDS_FOR_CLAIM} to draw studies from")
    generator = random.Random(seed)
    for _ in range(studies):
        first, second = draw(num_rounds, generator)
        yield verdict_of((with_runs_of(arms[0], first), with_runs_of(arms[1], second)))


def one_after_the_other(arms: Arms) -> Iterator[Verdict]:
    """The verdicts of studies of rounds that followed each other; what is left at the end makes none."""
    for first in range(0, len(arms[0].runs) - ROUNDS_FOR_CLAIM + 1, ROUNDS_FOR_CLAIM):
        rounds = range(first, first + ROUNDS_FOR_CLAIM)
        yield verdict_of((with_runs_of(arms[0], rounds), with_runs_of(arms[1], rounds)))


def with_runs_of(arm: ArmRuns, rounds: Sequence[int]) -> ArmRuns:
    """The same arm in a study that has these of its rounds, by their indices."""
    return replace(
        arm,
        plan=Plan(rounds=len(rounds)),
        runs=[arm.runs[index] for index in rounds],
        run_dirs=[arm.run_dirs[index] for index in rounds],
        positions=[arm.positions[index] for index in rounds],
    )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many studies of one load claim something, and how many of them rightly."""

    studies: int
    claims: int
    right: int
    withheld: int
    flaws: dict[Flaw, int]
    """In how many of those that are withheld each is a reason; one study may have several."""
    not_comparable: int
    """Those that the fairness sheet refuses, such as where a clock was wrong."""
    claims_without_rule: int
    right_without_rule: int

    @property
    def is_right(self) -> bool:
        """Whether as many claims are right as must be; where there are no claims, none is wrong."""
        return self.right >= LEAST_RIGHT * self.claims

    @property
    def power(self) -> float:
        """The part of the studies that make a right claim."""
        return self.right / self.studies

    @property
    def power_without_rule(self) -> float:
        """The part that would if nothing were withheld."""
        return self.right_without_rule / self.studies

    @property
    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**vars(self), "power": self.power, "power_without_rule": self.power_without_rule}


def counted(verdicts: Iterable[Verdict], truth: Outcome) -> Counts:
    """Count studies whose true answer is known.

    Args:
        verdicts: of at least one study.
        truth: `faster` or `slower`, of the first arm when the machine is left alone.
    """
    studies = list(verdicts)
    return Counts(
        studies=len(studies),
        claims=sum(study.outcome in CLAIMS for study in studies),
        right=sum(study.outcome == truth for study in studies),
        withheld=sum(study.outcome == WITHHELD for study in studies),
        flaws=dict(Counter(flaw for study in studies for flaw in sorted(study.flaws)).most_common()),
        not_comparable=sum(study.outcome == "NOT COMPARABLE" for study in studies),
        claims_without_rule=sum(study.without_rule in CLAIMS for study in studies),
        right_without_rule=sum(study.without_rule == truth for study in studies),
    )
