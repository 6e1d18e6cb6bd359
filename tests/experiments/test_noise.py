"""The smallest difference that a study would show, from the interval of an A/A study."""

import math

import pytest

from dpcompare.experiments.noise import interval_of
from dpcompare.experiments.statistics import Plan, Ratio, paired_ratio
from tests.support.arms import FAST, SLOW, compared, runs


def ratio_within(reach, rounds):
    """A ratio whose interval at 95% reaches so far, as a logarithm."""
    unit = Ratio(value=1.0, standard_error=1.0, rounds=rounds)
    return Ratio(value=1.0, standard_error=reach / unit.half_width(0.05), rounds=rounds)


@pytest.mark.slow
def test_with_many_rounds_it_is_that_of_the_normal_distribution():
    found = ratio_within(0.02, 100_000).detectable(0.05)
    assert found == pytest.approx(math.expm1(0.02 * (1 + 0.84162 / 1.95996)), rel=1e-4)


def test_a_wider_interval_shows_less():
    narrow, wide = (ratio_within(math.log(high), 6).detectable(0.05) for high in (1.01, 1.1))
    assert 0.01 < narrow < wide
    assert Ratio(value=1.0, standard_error=None, rounds=3).detectable(0.05) is None


def test_runs_too_short_for_a_claim_show_how_much_they_differ():
    """The noise is that of the runs, whether or not anything may be claimed by them."""
    short = {"measured_steps": 10}
    (claim,) = compared(runs("torch", "ddp", FAST, **short), runs("tensorflow", "multiworker", SLOW, **short)).claims
    assert (claim.outcome, claim.low) == ("disturbed or too short", None)
    assert interval_of(claim) == pytest.approx(paired_ratio(FAST, SLOW).interval(Plan().level))
    (few,) = compared(runs("torch", "ddp", FAST[:3]), runs("tensorflow", "multiworker", SLOW[:3]), repeats=3).claims
    assert interval_of(few) is None
