"""The calibration of gates: simulated gates of which the truth is known, under noise as machines have it.

    python -m stress.check_gates [--gates 2000] [--seed 1] [--write [FOLDER]]

Prints for each noise how many gates fail, pass and stay undecided, and after how many rounds: of equal arms, of arms
whose loss is what is allowed (2%, the worst case for a wrong answer), and of a loss of 5%. Exit code 3 where equal arms
fail in more than 5% of gates or a loss of 5% passes in more than 5%, where independent normal rounds are answered
wrongly in more than 5% of the worst cases, beyond what the number of gates explains, or where a loss of 5% is caught in
less than 95% of gates whose rounds vary by 3% at most. No training: the speeds of all runs are drawn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from benchmarks.evidence import Keeper, number, table, text
from dpcompare import Cluster, RunConfig
from dpcompare.experiments.claim_rows import GateOutcome
from dpcompare.experiments.collection import ArmRuns
from dpcompare.experiments.gate import LOOKS, gate_row

Array = npt.NDArray[np.float64]

ALLOWED, LOSS = 0.02, 0.05
LEAST_CAUGHT, CAUGHT_UP_TO = 0.95, 0.03
"""Of gates with a loss of 5%, where rounds vary by this much at most."""
MOST_WRONG = 0.05
UNLIKELY = 0.001
"""A number of wrong answers that is reached less often than this, at MOST_WRONG each, is too many."""
CORRELATION = 0.2


def normal(generator: np.random.Generator, width: float) -> Array:
    """Independent logarithms of the rounds' ratios."""
    return generator.normal(0, width, LOOKS[-1])


def heavy(generator: np.random.Generator, width: float) -> Array:
    """Student's t with 3 degrees of freedom, of the same standard deviation."""
    return generator.standard_t(3, LOOKS[-1]) * width / math.sqrt(3)


def slow_runs(generator: np.random.Generator, width: float) -> Array:
    """Normal, and 15% of the runs of both arms are 30% slower."""
    slow = generator.random((2, LOOKS[-1])) < 0.15
    return normal(generator, width) + 0.3 * (slow[0].astype(float) - slow[1])


def resembling(generator: np.random.Generator, width: float) -> Array:
    """Each round resembles the one before it, more than random orders within rounds leave."""
    values = normal(generator, width)
    for index in range(1, len(values)):
        values[index] = CORRELATION * values[index - 1] + math.sqrt(1 - CORRELATION**2) * values[index]
    return values


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One row of NOISES."""

    draw: Callable[[np.random.Generator, float], Array]
    width: float
    """Standard deviation of the logarithm of a round's ratio."""
    is_independent: bool = False
    """Whether the rounds are what the rule takes them for."""


NOISES = {
    "normal, 1%": Noise(draw=normal, width=0.01, is_independent=True),
    "normal, 2%": Noise(draw=normal, width=0.02, is_independent=True),
    "normal, 3%": Noise(draw=normal, width=0.03, is_independent=True),
    "normal, 5%": Noise(draw=normal, width=0.05, is_independent=True),
    "Student t, 3 degrees, 2%": Noise(draw=heavy, width=0.02),
    "15% of runs 30% slower, 2%": Noise(draw=slow_runs, width=0.02),
    "correlated by 0.2, 2%": Noise(draw=resembling, width=0.02),
}
WRONG_WORDS: tuple[GateOutcome, ...] = ("slower", "not slower")
"""What no gate should say where the loss is exactly what is allowed."""
TRUTHS = {"equal": 1.0, "2% slower": 1 - ALLOWED, "5% slower": 1 - LOSS}


class Drawn(ArmRuns):
    """An arm whose speeds are drawn."""

    speeds: list[float | None]

    @property
    def steady_speeds(self) -> list[float | None]:
        return self.speeds


CONFIG = RunConfig(framework="torch", mode="single", cluster=Cluster.partition(1, 1, device="cpu", num_cores=1))


def arm(name: str, speeds: list[float | None]) -> Drawn:
    found = Drawn(name=name, config=CONFIG, runs=[None] * len(speeds))
    found.speeds = speeds
    return found


@dataclass(frozen=True, kw_only=True)
class Gates:
    """The answers of many gates of one kind."""

    noise: str
    truth: str
    answers: list[tuple[GateOutcome, int]]
    """The outcome, and after how many rounds."""

    def part(self, outcome: GateOutcome) -> float:
        return self.count(outcome) / len(self.answers)

    def count(self, outcome: GateOutcome) -> int:
        return sum(answer == outcome for answer, _ in self.answers)

    @property
    def is_wrong(self) -> bool:
        """Whether too many answers are."""
        wrong = {"equal": ["slower"], "5% slower": ["not slower"]}.get(self.truth, [])
        if self.truth == "2% slower" and NOISES[self.noise].is_independent:
            wrong = [*WRONG_WORDS]
        gates = len(self.answers)
        row = NOISES[self.noise]
        if self.truth == "5% slower" and row.is_independent and row.width <= CAUGHT_UP_TO:
            missed = gates - self.count("slower")
            if binom.sf(missed - 1, gates, 1 - LEAST_CAUGHT) < UNLIKELY:
                return True
        return any(binom.sf(self.count(outcome) - 1, gates, MOST_WRONG) < UNLIKELY for outcome in wrong)  # type: ignore[arg-type]

    def rounds_until(self, outcome: GateOutcome, part: float) -> float:
        """After how many rounds this part of all gates has this outcome; infinite where fewer have it."""
        rounds = sorted(rounds if found == outcome else math.inf for found, rounds in self.answers)
        return rounds[math.ceil(part * len(rounds)) - 1]

    @property
    def row(self) -> tuple[str | float, ...]:
        rounds = np.sort([rounds for _, rounds in self.answers])
        median, most = (float(np.quantile(rounds, part, method="higher")) for part in (0.5, 0.95))
        parts = (self.part("slower"), self.part("not slower"), self.part("undecided"))
        return self.noise, self.truth, *parts, median, most


def simulated(gates: int, seed: int) -> Iterator[Gates]:
    generator = np.random.default_rng(seed)
    for noise, row in NOISES.items():
        for truth, ratio in TRUTHS.items():
            answers = []
            for _ in range(gates):
                speeds = list(100 * ratio * np.exp(row.draw(generator, row.width)))
                found = gate_row(arm("new", speeds), arm("old", [100.0] * len(speeds)), ALLOWED, None)
                answers.append((found.outcome, found.rounds))
            yield Gates(noise=noise, truth=truth, answers=answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    keeper = Keeper(parser, "stress.check_gates")
    arguments = parser.parse_args()
    found = list(simulated(arguments.gates, arguments.seed))
    columns = [
        *text("noise of a round", "the arm is"),
        *(number(title, ".1%") for title in ("slower", "not slower", "undecided")),
        number("rounds, median", "g"),
        number("in 95%", "g"),
    ]
    (correlated,) = (each for each in found if each.truth == "2% slower" and each.noise.startswith("correlated"))
    worst = [each for each in found if each.truth == "2% slower" and NOISES[each.noise].is_independent]
    caught = [each for each in found if each.truth == "5% slower" and each.noise == "normal, 3%"]
    figures = {
        "gates": arguments.gates,
        "worst_wrong": f"{max(each.part(outcome) for each in worst for outcome in WRONG_WORDS):.1%}",
        "equal_failed": f"{max(each.part('slower') for each in found if each.truth == 'equal'):.1%}",
        "caught_at_3_percent": f"{caught[0].part('slower'):.1%}",
        "rounds_at_3_percent": f"{caught[0].rounds_until('slower', LEAST_CAUGHT):g}",
        "worst_correlated": f"{max(correlated.part(outcome) for outcome in WRONG_WORDS):.1%}",
    }
    wrong = any(each.is_wrong for each in found)
    tables = [table(columns, [each.row for each in found])]
    keeper.keep(arguments.write, "gates", "failed" if wrong else "passed", tables=tables, figures=figures)
    sys.exit(3 if wrong else 0)


if __name__ == "__main__":
    main()
