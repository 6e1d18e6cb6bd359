"""The smallest difference that a study would show, from the interval of an A/A study."""

import math

import pytest

from dpcompare.experiments.noise import detectable


def test_with_many_rounds_it_is_that_of_the_normal_distribution():
    found = detectable(math.exp(-0.02), math.exp(0.02), confidence=0.95, rounds=100_000)
    assert found == pytest.approx(math.expm1(0.02 * (1 + 0.84162 / 1.95996)), rel=1e-4)


def test_a_wider_interval_shows_less():
    narrow, wide = (detectable(1 / high, high, confidence=0.95, rounds=6) for high in (1.01, 1.1))
    assert 0.01 < narrow < wide
