"""What repeated runs can claim, tried on simulated studies of which the truth is known."""

import numpy as np
import pytest

from dpcompare.experiments.statistics import (
    Plan,
    RatioOf,
    RatioPair,
    claims_of,
    holm,
    jitter,
    mean_speed,
    paired_ratio,
)
from stress import check_statistics as calibration


def simulated(rounds, ratio=1.0, noise=0.03, drift=0.3, seed=0):
    """Speeds of two arms that drift together from round to round."""
    rng = np.random.default_rng(seed)
    common = 100 * np.exp(drift * rng.standard_normal(rounds))
    first, second = (common * scale * np.exp(noise * rng.standard_normal(rounds)) for scale in (ratio, 1.0))
    return first.tolist(), second.tolist()


def claim(first, second, speeds, *, unequal=(), plan=Plan()):  # noqa: B008 (it is frozen)
    """The claim of a study of two arms."""
    return claims_of([RatioPair(first=first, second=second, ratio=paired_ratio(*speeds), unequal=unequal)], plan)[0]


@pytest.mark.parametrize("rounds", [5, 8, 12])
def test_the_interval_covers_the_truth_in_95_of_100_studies(rounds):
    covered = 0
    for seed in range(2000):
        found = paired_ratio(*simulated(rounds, ratio=1.1, seed=seed))
        low, high = found.interval(0.05)
        covered += low <= 1.1 <= high
    assert 0.935 < covered / 2000 < 0.965


def test_an_arm_against_itself_is_rarely_called_different():
    outcomes = [claim("a", "b", simulated(6, seed=seed)).outcome for seed in range(1000)]
    assert 0.03 < np.mean([outcome != "no difference shown" for outcome in outcomes]) < 0.06


def test_what_drifts_from_round_to_round_cancels():
    found = paired_ratio([100.0, 50.0, 200.0, 80.0, 120.0], [80.0, 40.0, 160.0, 64.0, 96.0])
    assert (found.value, *found.interval(0.05)) == pytest.approx((1.25, 1.25, 1.25))


def test_two_runs_of_twelve_that_were_slow_hide_no_difference():
    first, second = simulated(12, ratio=1.1)
    first[3] /= 5
    second[8] /= 5
    low, high = paired_ratio(first, second).interval(0.04)
    assert 1 < low < 1.1 < high < 1.2
    too_few = paired_ratio(first[:11], second[:11])
    assert too_few.interval(0.04)[0] < 0.7


def test_rounds_that_lack_an_arm_are_left_out():
    found = paired_ratio([100.0, None, 120.0], [50.0, 70.0, 60.0])
    assert (found.value, found.rounds, found.interval(0.05)) == (pytest.approx(2.0), 2, None)
    assert paired_ratio([None], [1.0]) is None


@pytest.mark.parametrize("rounds", [1, 6, 11])
def test_the_speeds_of_two_arms_have_their_ratio(rounds):
    speeds = np.random.default_rng(rounds).lognormal(5, 0.5, (2, rounds)).tolist()
    first, second = map(mean_speed, speeds)
    assert first.value == pytest.approx(np.exp(np.log(speeds[0]).mean()))
    assert first.value / second.value == pytest.approx(paired_ratio(*speeds).value)


def test_the_speed_of_many_rounds_is_trimmed():
    """A sixth at each end, as of ratios: runs that were slow as a whole do not move it."""
    assert mean_speed([100.0] * 10 + [1.0, 900.0]).value == pytest.approx(100)
    assert mean_speed([100.0] * 9 + [1.0, 900.0]).value == pytest.approx(100 * (0.01 * 9) ** (1 / 11))
    assert mean_speed([None, 90.0, None]).value == pytest.approx(90)
    assert mean_speed([None]) is None


def test_jitter_of_a_normal_sample_is_its_standard_deviation():
    values = np.random.default_rng(0).normal(100, 5, 20_000)
    assert jitter(values.tolist()) == pytest.approx(5, rel=0.03)


SIX = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
# Intervals by scipy.stats.ttest_1samp of the logarithms, another way to the same.
FASTER = [130.0, 129.0, 131.0, 130.5, 129.5, 130.0]
SLIGHTLY_OFF = [101.0, 99.5, 100.0, 99.0, 101.5, 100.0]


@pytest.mark.parametrize(
    ("speeds", "unequal", "plan", "sentence"),
    [
        (
            (FASTER, SIX),
            [],
            Plan(),
            "a is 1.300 times as fast as b in steady speed (96% interval 1.283 to 1.316, 6 rounds).",
        ),
        (
            (SIX, FASTER),
            [],
            Plan(),
            "b is 1.300 times as fast as a in steady speed (96% interval 1.283 to 1.316, 6 rounds).",
        ),
        (
            (FASTER, SIX),
            [],
            Plan(looks=1),
            "a is 1.300 times as fast as b in steady speed (99.2% interval 1.274 to 1.325, 6 rounds).",
        ),
        (
            (SLIGHTLY_OFF, SIX),
            [],
            Plan(),
            "a against b: no difference shown, ratio 1.001 of steady speed (96% interval 0.985 to 1.018, 6 rounds).",
        ),
        (
            (FASTER[:3], SIX[:3]),
            [],
            Plan(),
            "a against b: too few rounds to claim anything, 3 rounds of 6 (measured ratio 1.300).",
        ),
        (
            (FASTER, SIX),
            [],
            Plan(rounds=12),
            "a against b: too few rounds to claim anything, 6 rounds of 12 (measured ratio 1.300).",
        ),
        (
            (FASTER, SIX),
            [],
            Plan(adding=True),
            "a against b: too few rounds to claim anything, 6 rounds, and more are being added (measured ratio 1.300).",
        ),
        ((FASTER, SIX), ["precision"], Plan(), "a and b are NOT COMPARABLE. Settings that differ: precision."),
        (
            (FASTER, SIX),
            ["precision", "TF32"],
            Plan(),
            "a and b are NOT COMPARABLE. Settings that differ: precision, TF32.",
        ),
    ],
)
def test_the_five_sentences(speeds, unequal, plan, sentence):
    assert claim("a", "b", speeds, unequal=unequal, plan=plan).sentence == sentence


def test_five_rounds_have_an_interval_but_no_claim():
    made = claim("a", "b", (FASTER[:5], SIX[:5]))
    assert made.outcome == "too few rounds"
    assert made.interval[0] > 1


def test_holm_judges_the_clearest_first_and_stops_where_unclear():
    assert holm([0.001, 0.2, 0.014, 0.02], 0.04) == pytest.approx([0.04 / 4, 0.04 / 3, 0.04 / 3, 0.04 / 3])
    assert holm([0.001, 0.2, 0.011, 0.04], 0.04) == pytest.approx([0.04 / 4, 0.04 / 2, 0.04 / 3, 0.04 / 2])
    assert holm([0.5], 0.04) == [0.04]
    assert holm([], 0.04) == []


def test_all_looks_together_spend_what_is_allowed():
    levels = [Plan(looks=looks).level for looks in range(40)]
    assert levels[:3] == pytest.approx([0.04, 0.008, 0.0016])
    assert sum(levels) == pytest.approx(0.05)


def test_an_interval_leaves_1_out_where_something_is_claimed():
    generator = np.random.default_rng(0)
    for _ in range(50):
        speeds = 100 * np.exp(0.02 * generator.standard_normal((8, 6)) + np.linspace(0, 0.1, 6))
        pairs = [
            RatioPair(first=str(a), second=str(b), ratio=paired_ratio(speeds[:, a].tolist(), speeds[:, b].tolist()))
            for a in range(6)
            for b in range(a)
        ]
        for made in claims_of(pairs, Plan(rounds=8)):
            assert (made.outcome != "no difference shown") == (not made.interval[0] <= 1 <= made.interval[1])


@pytest.fixture(scope="module")
def calibrated():
    """Both rules on the same 100 simulated studies of each kind."""
    names = ("normal", "stalls: 1 run in 10 at 0.2x by one step")
    return [calibration.measured(calibration.NOISES[name], studies=100, seed=2) for name in names]


@pytest.mark.seconds
@pytest.mark.slow
def test_six_equal_arms_are_rarely_told_apart(calibrated):
    for found in calibrated:
        assert max(found["now"].false_of_six_arms) < 0.1  # 5%, and what 100 studies may have by chance
    assert min(calibrated[0]["before"].false_of_six_arms) > 0.25


@pytest.mark.slow
def test_a_round_added_until_a_claim_appears_does_not_make_one(calibrated):
    for found in calibrated:
        assert found["now"].false_by_hand < 0.1
    assert calibrated[0]["before"].false_by_hand > 0.1


@pytest.mark.slow
def test_a_pair_named_beforehand_is_found_among_six_arms(calibrated):
    for found in calibrated:
        assert min(found["now"].true_of_named) > 0.97
        assert max(found["now"].false_of_named) < 0.12
        assert found["now"].true_of_six_arms[0] < found["now"].true_of_named[0]


def test_pairs_beside_a_named_one_are_shown_and_not_claimed():
    ratio = paired_ratio(FASTER, SIX)
    pairs = [
        RatioPair(first="a", second="b", ratio=ratio),
        RatioPair(first="a", second="c", ratio=ratio, exploratory=True),
        RatioPair(first="b", second="c", ratio=paired_ratio(FASTER[:2], SIX[:2]), exploratory=True),
        RatioPair(first="a", second="d", ratio=ratio, exploratory=True, unequal=["precision"]),
    ]
    named, shown, few, unequal = claims_of(pairs, Plan())
    assert (named.outcome, named.level) == ("faster", Plan().level)  # as if it were alone
    assert shown.outcome == few.outcome == "exploratory"
    assert shown.sentence == (
        "a against c: exploratory, since another pair was named beforehand; nothing is claimed, measured ratio 1.300 "
        "of steady speed (96% interval 1.283 to 1.316, 6 rounds)."
    )
    assert few.sentence.endswith("nothing is claimed, measured ratio 1.289 of steady speed (2 rounds).")
    assert unequal.outcome == "NOT COMPARABLE"


def test_stalls_do_not_hide_ten_percent(calibrated):
    stalls = calibrated[1]
    assert min(stalls["now"].true_of_pair) > 0.95
    assert max(stalls["before"].true_of_pair) < 0.5


def test_what_is_not_speed_is_named_without_a_claim_too():
    pairs = [
        RatioPair(first="a", second="b", ratio=None),
        RatioPair(first="a", second="c", ratio=None, unequal=["data"]),
    ]
    measure = RatioOf(name="training time to an accuracy of 0.9", decided="")
    assert [made.sentence for made in claims_of(pairs, Plan(), measure)] == [
        "a against b, training time to an accuracy of 0.9: too few rounds to claim anything, 0 rounds of 6.",
        "a and c are NOT COMPARABLE in training time to an accuracy of 0.9. Settings that differ: data.",
    ]
    assert claims_of(pairs, Plan())[0].sentence == "a against b: too few rounds to claim anything, 0 rounds of 6."
