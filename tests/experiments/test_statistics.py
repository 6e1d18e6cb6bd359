"""What repeated runs can claim, tried on simulated studies of which the truth is known."""

import numpy as np
import pytest

from dpcompare.experiments.statistics import claim, jitter, paired_ratio


def simulated(rounds, ratio=1.0, noise=0.03, drift=0.3, seed=0):
    """Speeds of two arms that drift together from round to round."""
    rng = np.random.default_rng(seed)
    common = 100 * np.exp(drift * rng.standard_normal(rounds))
    first, second = (common * scale * np.exp(noise * rng.standard_normal(rounds)) for scale in (ratio, 1.0))
    return first.tolist(), second.tolist()


@pytest.mark.parametrize("rounds", [5, 8])
def test_the_interval_covers_the_truth_in_95_of_100_studies(rounds):
    covered = 0
    for seed in range(2000):
        found = paired_ratio(*simulated(rounds, ratio=1.1, seed=seed))
        covered += found.low <= 1.1 <= found.high
    assert 0.935 < covered / 2000 < 0.965


def test_an_arm_against_itself_is_rarely_called_different():
    outcomes = [claim("a", "b", simulated(6, seed=seed), unequal=[]).outcome for seed in range(1000)]
    assert 0.03 < np.mean([outcome != "no difference shown" for outcome in outcomes]) < 0.07


def test_what_drifts_from_round_to_round_cancels():
    found = paired_ratio([100.0, 50.0, 200.0, 80.0, 120.0], [80.0, 40.0, 160.0, 64.0, 96.0])
    assert (found.value, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25))


def test_rounds_that_lack_an_arm_are_left_out():
    found = paired_ratio([100.0, None, 120.0], [50.0, 70.0, 60.0])
    assert (found.value, found.rounds, found.low) == (pytest.approx(2.0), 2, None)
    assert paired_ratio([None], [1.0]) is None


def test_jitter_of_a_normal_sample_is_its_standard_deviation():
    values = np.random.default_rng(0).normal(100, 5, 20_000)
    assert jitter(values.tolist()) == pytest.approx(5, rel=0.03)


SIX = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
# Intervals by scipy.stats.ttest_1samp of the logarithms, another way to the same.
FASTER = [130.0, 129.0, 131.0, 130.5, 129.5, 130.0]
SLIGHTLY_OFF = [101.0, 99.5, 100.0, 99.0, 101.5, 100.0]


@pytest.mark.parametrize(
    ("speeds", "unequal", "sentence"),
    [
        ((FASTER, SIX), [], "a is 1.300 times as fast as b: faster (95% interval 1.284 to 1.315, 6 rounds)."),
        ((SIX, FASTER), [], "a is 0.769 times as fast as b: slower (95% interval 0.760 to 0.779, 6 rounds)."),
        (
            (SLIGHTLY_OFF, SIX),
            [],
            "a against b: no difference shown, ratio 1.001 (95% interval 0.986 to 1.017, 6 rounds).",
        ),
        (
            (FASTER[:3], SIX[:3]),
            [],
            "a against b: too few rounds to claim anything, 3 rounds of 6 (measured ratio 1.300).",
        ),
        ((FASTER, SIX), ["precision"], "a and b are NOT COMPARABLE: precision differs."),
        ((FASTER, SIX), ["precision", "TF32"], "a and b are NOT COMPARABLE: precision, TF32 differ."),
    ],
)
def test_the_five_sentences(speeds, unequal, sentence):
    assert claim("a", "b", speeds, unequal=unequal).sentence == sentence


def test_five_rounds_have_an_interval_but_no_claim():
    made = claim("a", "b", (FASTER[:5], SIX[:5]), unequal=[])
    assert made.outcome == "too few rounds"
    assert made.ratio.low > 1
