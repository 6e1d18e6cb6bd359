"""What rounds of different seeds can claim of accuracies, tried on simulated studies of which the truth is known."""

import numpy as np
import pytest

from dpcompare.experiments.accuracy_statistics import LearningPair, learning_claims, paired_difference, spread
from dpcompare.experiments.statistics import Plan
from stress import check_accuracy as calibration
from tests.support.learning import BETTER, NEARLY, NOISY, SEEDS


def claim(first, second, *, measure="accuracy", plan=Plan(rounds=8), margin=0.01, **changes):  # noqa: B008 (it is frozen)
    pair = LearningPair(first="a", second="b", measure=measure, difference=paired_difference(first, second), **changes)
    return learning_claims([pair], plan, margin)[0]


# Figures by scipy.stats.ttest_rel and ttest_1samp, another way to the same.
@pytest.mark.parametrize(
    ("figures", "changes", "outcome", "sentence"),
    [
        (
            (BETTER, SEEDS),
            {},
            "higher",
            "a is 2.87 points more accurate than b (difference +2.87 points, 96% interval +2.13 to +3.62 points, "
            "8 rounds).",
        ),
        (
            (SEEDS, BETTER),
            {},
            "lower",
            "b is 2.87 points more accurate than a (difference +2.87 points, 96% interval +2.13 to +3.62 points, "
            "8 rounds).",
        ),
        (
            (NEARLY, SEEDS),
            {},
            "the same within the margin",
            "a and b are equally accurate within plus or minus 1 point (difference +0.03 points, 92% interval -0.06 to "
            "+0.11 points, 8 rounds).",
        ),
        (
            (NOISY, SEEDS),
            {},
            "no difference shown",
            "a against b, accuracy: no difference shown (difference +0.62 points, 96% interval -2.23 to +3.48 points, "
            "8 rounds).",
        ),
        (
            (BETTER[:5], SEEDS[:5]),
            {},
            "too few rounds",
            "a against b, accuracy: too few rounds to claim anything, 5 rounds of 8 (measured difference +2.80 "
            "points).",
        ),
        (
            (BETTER, SEEDS),
            {"margin": 0.05},
            "higher",
            "a is 2.87 points more accurate than b (difference +2.87 points, 96% interval +2.13 to +3.62 points, "
            "8 rounds). That is within plus or minus 5 points.",
        ),
        (
            (BETTER, SEEDS),
            {"measure": "loss"},
            "higher",
            "b has an evaluation loss 0.0287 lower than a (difference -0.0287, 96% interval -0.0362 to -0.0213, "
            "8 rounds).",
        ),
        (
            (NEARLY, SEEDS),
            {"measure": "loss"},
            "no difference shown",  # the margin is one of accuracy
            "a against b, loss: no difference shown (difference +0.0003, 96% interval -0.0008 to +0.0013, 8 rounds).",
        ),
        (
            (BETTER, SEEDS),
            {"exploratory": True},
            "exploratory",
            "a against b, accuracy: exploratory, since another pair was named beforehand; nothing is claimed, "
            "difference +2.87 points, 96% interval +2.13 to +3.62 points, 8 rounds.",
        ),
        (
            (BETTER, SEEDS),
            {"unequal": ["optimizer", "schedule"]},
            "NOT COMPARABLE",
            "a and b are NOT COMPARABLE in accuracy. Settings that differ: optimizer, schedule.",
        ),
    ],
)
def test_the_sentences(figures, changes, outcome, sentence):
    made = claim(*figures, **changes)
    assert (made.outcome, made.sentence) == (outcome, sentence)


def test_each_look_is_stricter_and_none_claims_before_the_end():
    assert claim(BETTER, SEEDS, plan=Plan(rounds=8, adding=True)).outcome == "too few rounds"
    first, second = (claim(BETTER, SEEDS, plan=Plan(rounds=8, looks=looks)) for looks in (0, 1))
    assert (first.level, second.level) == (pytest.approx(0.04), pytest.approx(0.008))


def test_rounds_that_lack_a_figure_are_left_out():
    found = paired_difference([0.5, None, 0.7], [0.4, 0.5, 0.5])
    assert (found.mean, found.rounds, found.interval(0.05)) == (pytest.approx(0.15), 2, None)
    assert paired_difference([None], [0.5]) is None


def test_figures_that_agree_in_every_round_are_the_same():
    made = claim(SEEDS, SEEDS)
    assert made.outcome == "the same within the margin"
    assert made.interval == (0.0, 0.0)
    shifted = claim([each + 0.02 for each in SEEDS], SEEDS)
    assert shifted.outcome == "higher"


def test_a_spread_is_that_of_the_rounds():
    found = spread(SEEDS)
    assert (found.mean, found.standard_deviation) == (pytest.approx(0.805), pytest.approx(0.0160357, rel=1e-4))
    assert found.interval == pytest.approx((0.7915938, 0.8184062), rel=1e-5)
    assert spread([0.5]).standard_deviation is None
    assert spread([]) is None


def part(question, noise="normal", rounds=6):
    generator = np.random.default_rng(1)
    return calibration.part(calibration.NOISES[noise], generator, question, studies=200, rounds=rounds)


@pytest.mark.seconds
@pytest.mark.parametrize("noise", calibration.NOISES)
def test_equal_arms_of_other_seeds_are_rarely_called_different(noise):
    assert part("false difference, 2 arms", noise) <= 0.05
    assert part("false difference, 6 arms", noise, rounds=8) <= 0.07  # 1,000: docs/evidence/accuracy.md


def test_a_planted_difference_is_found():
    assert part("true 3 points, 2 arms", rounds=8) > 0.9


def test_arms_the_margin_apart_are_rarely_called_the_same():
    assert part("false sameness, 2 arms", "little: runs differ by a sample or two", rounds=8) <= 0.05
    assert part("equal, 2 arms", "little: runs differ by a sample or two", rounds=8) > 0.9
