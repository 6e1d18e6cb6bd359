"""The calibration of a study's claims: simulated studies of which the truth is known, under noise as machines have it.

    python -m stress.check_statistics [--studies 2000] [--seed 1]

Prints, for each noise, how often the claims of 0.1.0 (mean speed, every pair and every look at 5%) and those of today
are false, and how often they find a true 10%. Exit code 3 where today's claim something false in more than 5% of
studies, beyond what the number of studies explains. No training: the steps of every run are drawn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from dpcompare.experiments.statistics import FALSE_CLAIMS, ROUNDS_FOR_CLAIM, Plan, RatioPair, claims_of, paired_ratio
from dpcompare.results.steadiness import steady_images_per_second

Array = npt.NDArray[np.float64]

NUM_ARMS = 6
NUM_STEPS = 40
SLOWER = 0.10
MOST_ROUNDS = 12
WIDTH = 0.02
"""Half width that rounds are added for."""
RUN_NOISE, STEP_NOISE, ROUND_DRIFT = 0.02, 0.05, 0.1
"""Standard deviations of the logarithms of seconds: from run to run, from step to step, from round to round."""
SAME_QUARTILES = 0.6745 / 0.8165
"""Makes a Student t with 2 degrees of freedom as wide as a normal distribution between its quartiles."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How the runs of a machine differ; the default is normal noise."""

    heavy_tails: bool = False
    """Runs and steps follow Student's t with 2 degrees of freedom."""
    stalled_runs: float = 0.0
    """Part of the runs in which one step takes so long that the mean speed is a fifth."""
    slow_runs: float = 0.0
    """Part of the runs of which every step takes five times as long."""
    slowing: float = 0.0
    """The part by which each run of a study is slower than the one before it."""
    correlation: float = 0.0
    """From run to run and from step to step, as they follow each other."""


NOISES = {
    "normal": Noise(),
    "stalls: 1 run in 10 at 0.2x by one step": Noise(stalled_runs=0.1),
    "Student t, 2 degrees": Noise(heavy_tails=True),
    "drift: every run 1% slower": Noise(slowing=0.01),
    "autocorrelation 0.8 of runs and steps": Noise(correlation=0.8),
    "whole runs: 1 in 10 at 0.2x in every step": Noise(slow_runs=0.1),
}


def simulated(
    noise: Noise, generator: np.random.Generator, *, studies: int, rounds: int, arms: int, slower: float = 0.0
) -> Array:
    """Seconds of the steps of studies whose first arm is slower by a factor: (study, round, arm, step)."""
    shape = (studies, rounds, arms)

    def draw(scale: float, of: Sequence[int]) -> Array:
        if noise.heavy_tails:
            return scale * SAME_QUARTILES * generator.standard_t(2, of)
        return scale * generator.standard_normal(of)

    order = np.argsort(generator.random(shape), axis=2)  # when each arm runs in its round
    in_time = _correlated(draw(RUN_NOISE, (studies, rounds * arms)), noise.correlation)
    in_time += math.log1p(noise.slowing) * np.arange(rounds * arms)
    logs = np.take_along_axis(in_time.reshape(shape), order, axis=2)
    logs += ROUND_DRIFT * generator.standard_normal((studies, rounds, 1))
    logs += math.log(5) * (generator.random(shape) < noise.slow_runs)
    logs[:, :, 0] += math.log1p(slower)
    seconds: Array = np.exp(logs[..., None] + _correlated(draw(STEP_NOISE, (*shape, NUM_STEPS)), noise.correlation))
    stalled = np.nonzero(generator.random(shape) < noise.stalled_runs)
    which = generator.integers(0, NUM_STEPS, len(stalled[0]))
    seconds[(*stalled, which)] += 4 * seconds[stalled].sum(axis=-1)
    return seconds


def _correlated(draws: Array, correlation: float) -> Array:
    """The same draws as a stationary process over their last axis."""
    found = draws.copy()
    for index in range(1, draws.shape[-1]):
        found[..., index] = correlation * found[..., index - 1] + math.sqrt(1 - correlation**2) * draws[..., index]
    return found


Speed = Callable[[Array], float]
Claims = Callable[[Array, Plan, bool], list[bool]]
"""Which pairs of a study, as `combinations` has them, are claimed to differ, by the speeds (round, arm) of its runs and
by whether the first of them was named beforehand."""


def mean_speed(seconds: Array) -> float:
    return 1 / float(seconds.mean())


def steady_speed(seconds: Array) -> float:
    return steady_images_per_second([1] * len(seconds), seconds.tolist())


def claims_before(speeds: Array, plan: Plan, named: bool = False) -> list[bool]:
    """Those of 0.1.0: every pair is judged alone, whatever was looked at before."""
    logs = [np.log(speeds[:, a] / speeds[:, b]) for a, b in _pairs(speeds)]
    return [bool(abs(each.mean()) > half_width_before(each, FALSE_CLAIMS)) for each in logs]


def half_width_before(logs: Array, level: float) -> float:
    """Half the width of Student's interval of all rounds."""
    return float(-stdtrit(len(logs) - 1, level / 2) * logs.std(ddof=1) / math.sqrt(len(logs)))


def half_width_now(logs: Array, level: float) -> float:
    ratio = paired_ratio(np.exp(logs).tolist(), [1.0] * len(logs))
    return (ratio.half_width(level) if ratio else None) or 0.0


def claims_now(speeds: Array, plan: Plan, named: bool = False) -> list[bool]:
    pairs = [
        RatioPair(
            first=str(a),
            second=str(b),
            ratio=paired_ratio(speeds[:, a].tolist(), speeds[:, b].tolist()),
            exploratory=named and (a, b) != (0, 1),
        )
        for a, b in _pairs(speeds)
    ]
    made = claims_of(pairs, plan)
    return [claim.outcome in ("faster", "slower") for claim in made]


def _pairs(speeds: Array) -> list[tuple[int, int]]:
    return list(combinations(range(speeds.shape[1]), 2))


def by_hand(claims: Claims, speeds: Array) -> bool:
    """Whether somebody who adds a round until a claim appears gets one."""
    return any(
        claims(speeds[:rounds], Plan(rounds=rounds, looks=rounds - ROUNDS_FOR_CLAIM), False)[0]
        for rounds in range(ROUNDS_FOR_CLAIM, len(speeds) + 1)
    )


def until_narrow(rule: Rule, speeds: Array) -> bool:
    """Whether rounds that are added until the interval is narrow end in a claim."""
    for rounds in range(ROUNDS_FOR_CLAIM, len(speeds) + 1):
        logs = np.log(speeds[:rounds, 0] / speeds[:rounds, 1])
        if math.expm1(rule.half_width(logs, rule.level)) <= WIDTH:
            break
    return rule.claims(speeds[:rounds], Plan(rounds=rounds, until=True), False)[0]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """From the steps of a study's runs to what it claims."""

    speed: Speed
    claims: Claims
    half_width: Callable[[Array, float], float]
    """From the log-ratios of the rounds and a level to that of an interval."""
    level: float
    """The level of the interval that rounds are added for."""

    def speeds(self, seconds: Array) -> Array:
        """(study, round, arm)"""
        return np.apply_along_axis(self.speed, -1, seconds)


BEFORE = Rule(speed=mean_speed, claims=claims_before, half_width=half_width_before, level=FALSE_CLAIMS)
NOW = Rule(speed=steady_speed, claims=claims_now, half_width=half_width_now, level=Plan(until=True).level)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Parts of the studies that claim something, for numbers of rounds 6 and 12."""

    false_of_pair: tuple[float, float]
    false_of_six_arms: tuple[float, float]
    """False claims about equal arms: any of their 15 pairs."""
    true_of_pair: tuple[float, float]
    """A true 10%, two arms alone."""
    true_of_six_arms: tuple[float, float]
    """The same for one pair of 15."""
    false_of_named: tuple[float, float]
    """False claims about six equal arms: the pair that was named beforehand."""
    true_of_named: tuple[float, float]
    false_by_hand: float
    false_until_narrow: float

    @property
    def false(self) -> list[float]:
        return [
            *self.false_of_pair,
            *self.false_of_six_arms,
            *self.false_of_named,
            self.false_by_hand,
            self.false_until_narrow,
        ]


def measured(noise: Noise, studies: int, seed: int) -> dict[str, Found]:
    """What both rules find in the same simulated studies."""
    generator = np.random.default_rng(seed)
    draws = {
        (arms, slower): simulated(noise, generator, studies=studies, rounds=MOST_ROUNDS, arms=arms, slower=slower)
        for arms in (2, NUM_ARMS)
        for slower in (0.0, SLOWER)
    }
    return {name: _found(rule, draws) for name, rule in (("before", BEFORE), ("now", NOW))}


def _found(rule: Rule, draws: dict[tuple[int, float], Array]) -> Found:
    speeds = {key: rule.speeds(seconds) for key, seconds in draws.items()}

    def part(
        arms: int, slower: float, holds: Callable[[list[bool]], bool], *, named: bool = False
    ) -> tuple[float, float]:
        few, many = (
            float(
                np.mean(
                    [holds(rule.claims(each[:rounds], Plan(rounds=rounds), named)) for each in speeds[arms, slower]]
                )
            )
            for rounds in (ROUNDS_FOR_CLAIM, MOST_ROUNDS)
        )
        return few, many

    def first(claimed: list[bool]) -> bool:
        return claimed[0]

    equal = speeds[2, 0.0]
    return Found(
        false_of_pair=part(2, 0.0, any),
        false_of_six_arms=part(NUM_ARMS, 0.0, any),
        true_of_pair=part(2, SLOWER, any),
        true_of_six_arms=part(NUM_ARMS, SLOWER, first),
        false_of_named=part(NUM_ARMS, 0.0, first, named=True),
        true_of_named=part(NUM_ARMS, SLOWER, first, named=True),
        false_by_hand=float(np.mean([by_hand(rule.claims, each) for each in equal])),
        false_until_narrow=float(np.mean([until_narrow(rule, each) for each in equal])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="of each kind and noise")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{arguments.studies} studies each; 6 rounds / 12 rounds.\n")
    print("| noise | rule | false, 2 arms | false, 6 equal arms | true 10%, 2 arms | true 10%, 1 pair of 15 |", end="")
    print(" false, named pair of 15 | true 10%, named pair of 15 | false, a round added until a claim |", end="")
    print(" false, --until 2% |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    allowed = FALSE_CLAIMS + 3 * math.sqrt(FALSE_CLAIMS * (1 - FALSE_CLAIMS) / arguments.studies)
    too_many = False
    for name, noise in NOISES.items():
        for rule, found in measured(noise, arguments.studies, arguments.seed).items():
            pairs = (
                found.false_of_pair,
                found.false_of_six_arms,
                found.true_of_pair,
                found.true_of_six_arms,
                found.false_of_named,
                found.true_of_named,
            )
            cells = [f"{few:.1%} / {many:.1%}" for few, many in pairs]
            cells += [f"{part:.1%}" for part in (found.false_by_hand, found.false_until_narrow)]
            print(f"| {name} | {rule} | " + " | ".join(cells) + " |", flush=True)
            too_many |= rule == "now" and max(found.false) > allowed
    sys.exit(3 if too_many else 0)


if __name__ == "__main__":
    main()
