"""The calibration of what is said of accuracies: simulated studies of which the truth is known, a seed per round.

    python -m stress.check_accuracy [--studies 2000] [--seed 1]

Prints, for each noise and for 6, 8 and 12 rounds, how often studies of equal arms claim a difference of accuracy or
loss, how often a true difference of 3 points is found, how often arms that differ by exactly the margin are called
equally accurate, and how often equal arms are. Exit code 3 where a claim is false in more than 5% of studies, beyond
what the number of studies explains. No training: the accuracy and the loss of every run are drawn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpcompare.experiments.accuracy_statistics import (
    DEFAULT_MARGIN,
    LearningClaim,
    LearningPair,
    learning_claims,
    paired_difference,
)
from dpcompare.experiments.statistics import FALSE_CLAIMS, Plan
from stress.check_statistics import SAME_QUARTILES

Array = npt.NDArray[np.float64]

NUM_ARMS = 6
ROUNDS = (6, 8, 12)
ACCURACY, LOSS = 0.8, 0.6
NUM_SAMPLES = 400
MARGIN = DEFAULT_MARGIN / 100
BETTER = 0.03
SEED_NOISE, RUN_NOISE = 0.015, 0.008
"""Standard deviations of accuracy: what a seed does to all arms alike, and what rounding does to each run."""
LOSS_PER_ACCURACY = -3.0
"""How the loss follows the accuracy; as much noise again is its own."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How the runs of a study differ; the default is normal noise."""

    heavy_tails: bool = False
    """Runs follow Student's t with 2 degrees of freedom."""
    collapsed: float = 0.0
    """Part of the runs that learn nothing."""
    run_noise: float = RUN_NOISE


NOISES = {
    "normal": Noise(),
    "little: runs differ by a sample or two": Noise(run_noise=0.002),
    "Student t, 2 degrees": Noise(heavy_tails=True),
    "1 run in 20 learns nothing": Noise(collapsed=0.05),
}


def simulated(
    noise: Noise, generator: np.random.Generator, *, studies: int, rounds: int, arms: int, better: float = 0.0
) -> tuple[Array, Array]:
    """Accuracies and losses (study, round, arm) of studies whose first arm is more accurate by a difference."""
    shape = (studies, rounds, arms)

    def draw() -> Array:
        if noise.heavy_tails:
            return SAME_QUARTILES * generator.standard_t(2, shape)
        return generator.standard_normal(shape)

    by_seed = SEED_NOISE * generator.standard_normal((studies, rounds, 1))
    learned = ACCURACY + by_seed + noise.run_noise * draw()
    learned[:, :, 0] += better
    learned = np.where(generator.random(shape) < noise.collapsed, 0.1, learned)
    losses = LOSS + LOSS_PER_ACCURACY * (learned - ACCURACY + noise.run_noise * draw())
    accuracies: Array = np.round(np.clip(learned, 0, 1) * NUM_SAMPLES) / NUM_SAMPLES
    return accuracies, losses


def claims(accuracies: Array, losses: Array) -> list[LearningClaim]:
    """The claims about all pairs of one study, by its figures (round, arm)."""
    pairs = [
        LearningPair(
            first=str(a),
            second=str(b),
            measure=measure,
            difference=paired_difference(figures[:, a].tolist(), figures[:, b].tolist()),
        )
        for a, b in combinations(range(accuracies.shape[1]), 2)
        for measure, figures in (("accuracy", accuracies), ("loss", losses))
    ]
    return learning_claims(pairs, Plan(rounds=len(accuracies)), MARGIN)


IsRight = Callable[[list[LearningClaim]], bool]


def claims_difference(made: list[LearningClaim]) -> bool:
    return any(claim.outcome in ("higher", "lower") for claim in made)


def finds_first_better(made: list[LearningClaim]) -> bool:
    return made[0].outcome == "higher"


def claims_sameness(made: list[LearningClaim]) -> bool:
    """Whether the first arm is equal to another within the margin, which is also said of a difference that is shown."""
    return any("within plus or minus" in claim.sentence for claim in made if claim.pair.first == "0")


def finds_first_same(made: list[LearningClaim]) -> bool:
    return made[0].outcome == "the same within the margin"


QUESTIONS: dict[str, tuple[int, float, IsRight, bool]] = {
    "false difference, 2 arms": (2, 0.0, claims_difference, True),
    "false difference, 6 arms": (NUM_ARMS, 0.0, claims_difference, True),
    "true 3 points, 2 arms": (2, BETTER, finds_first_better, False),
    "true 3 points, 1 pair of 15": (NUM_ARMS, BETTER, finds_first_better, False),
    "false sameness, 2 arms": (2, MARGIN, claims_sameness, True),
    "false sameness, 6 arms": (NUM_ARMS, MARGIN, claims_sameness, True),
    "equal, 2 arms": (2, 0.0, finds_first_same, False),
}
"""Column -> arms, by how much the first is more accurate, what is looked for, and whether that would be false."""


def part(noise: Noise, generator: np.random.Generator, question: str, *, studies: int, rounds: int) -> float:
    """The part of the simulated studies in which the answer is yes."""
    arms, better, judge, _ = QUESTIONS[question]
    accuracies, losses = simulated(noise, generator, studies=studies, rounds=rounds, arms=arms, better=better)
    return float(np.mean([judge(claims(*of_study)) for of_study in zip(accuracies, losses, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="of each kind, noise and number of rounds")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    print(f"{arguments.studies} studies each; {' / '.join(map(str, ROUNDS))} rounds.\n")
    print("| noise | " + " | ".join(QUESTIONS) + " |\n|---|" + "--:|" * len(QUESTIONS))
    allowed = FALSE_CLAIMS + 3 * math.sqrt(FALSE_CLAIMS * (1 - FALSE_CLAIMS) / arguments.studies)
    too_many = False
    for name, noise in NOISES.items():
        cells = []
        for question, (_, _, _, is_false) in QUESTIONS.items():
            parts = [part(noise, generator, question, studies=arguments.studies, rounds=rounds) for rounds in ROUNDS]
            cells.append(" / ".join(f"{each:.1%}" for each in parts))
            too_many |= is_false and max(parts) > allowed
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    sys.exit(3 if too_many else 0)


if __name__ == "__main__":
    main()
