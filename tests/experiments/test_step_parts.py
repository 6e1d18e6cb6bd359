"""The parts of a step, from series of which the truth is known."""

import numpy as np
import pytest

from dpcompare.experiments.variants import JUDGED, StepParts
from tests.support.step_parts import STEPS, SYNCHRONOUS, constant


def rounds(*, num_rounds=6, **variants):
    names = {name: name.replace("_", " ") for name in variants}
    return [{names[name]: seconds for name, seconds in variants.items()} for _ in range(num_rounds)]


def of(seconds, *, alone="computing alone", waits_within=False):
    return StepParts.of(seconds, alone=alone, waits_within=waits_within)


def milliseconds(parts):
    return {part: round(1000 * share.value * parts.seconds, 6) for part, share in parts.shares.items()}


def test_every_part_of_a_synchronous_step_is_found_at_its_size():
    parts = of(rounds(**SYNCHRONOUS))
    assert milliseconds(parts) == {
        "input": 20.0,
        "exchange": 50.0,
        "waiting": 20.0,
        "launching": 50.0,
        "computing": 30.0,
        "sharing": 20.0,
        "together": 0.0,
    }
    assert sum(share.value for part, share in parts.shares.items() if part != "sharing") == pytest.approx(1)
    assert (parts.slowest, parts.is_always_slowest) == (1, True)
    assert parts.slowest_ratio == pytest.approx(1.25)


def test_input_and_exchange_hide_each_other_and_save_together():
    """Each takes 50 ms alongside 100 of computing, and the two run at once."""
    overlapping = {"as_it_is": constant(0.150), "no_exchange": constant(0.150), "no_input": constant(0.150)}
    alone = {"computing_alone": constant(0.100), "larger_batch": constant(0.400)}
    found = milliseconds(of(rounds(**overlapping, **alone)))
    assert (found["input"], found["exchange"], found["together"]) == (0.0, 0.0, 50.0)
    assert (found["launching"], found["computing"]) == (0.0, 100.0)
    assert of(rounds(**overlapping, **alone)).rounds[0].unhidden_input == pytest.approx(0.05)


def test_a_step_waits_for_whichever_process_is_slow_in_it():
    """Two processes take turns in being slow: neither is the slowest, and all steps are slow."""
    fast, slow = [0.100, 0.200] * (STEPS // 2), [0.200, 0.100] * (STEPS // 2)
    seconds = SYNCHRONOUS | {"computing_alone": [fast, slow], "as_it_is": constant(0.220, 0.220)}
    parts = of(rounds(**seconds))
    assert milliseconds(parts)["waiting"] == pytest.approx(50, rel=0.02)  # 200 ms instead of 150 on average
    assert not parts.is_always_slowest


def test_a_single_device_has_input_launching_and_computing():
    parts = of(rounds(as_it_is=constant(0.1), no_input=constant(0.04), larger_batch=constant(0.07)), alone="no input")
    assert milliseconds(parts) == {"input": 60.0, "launching": 30.0, "computing": 10.0}


def test_a_step_that_must_exchange_is_held_against_one_device():
    seconds = {"as_it_is": constant(0.1), "no_input": constant(0.09), "one_device": constant(0.05)}
    parts = of(rounds(**seconds, larger_batch=constant(0.14)), alone="one device")
    assert milliseconds(parts) == {"input": 10.0, "devices": 40.0, "launching": 20.0, "computing": 30.0}


def test_what_did_not_complete_is_left_out_unreplaced():
    left = {name: value for name, value in SYNCHRONOUS.items() if name not in ("one_device", "computing_alone")}
    found = of(rounds(**left)).shares
    assert found.keys() == {"input", "exchange"}
    with_synchronized_batchnorm = of(rounds(**SYNCHRONOUS), waits_within=True).shares
    assert "waiting" not in with_synchronized_batchnorm


def test_stalls_and_drift_from_round_to_round_change_no_share():
    stalled = [[0.170] * STEPS, [*[0.170] * (STEPS - 1), 9.0]]
    seconds = rounds(**SYNCHRONOUS)
    seconds[0] = seconds[0] | {"as it is": stalled}
    drifting = [
        {variant: [[value * factor for value in each] for each in series] for variant, series in of_round.items()}
        for of_round, factor in zip(seconds, (1, 3, 1, 2, 1, 5), strict=True)
    ]
    shares = of(drifting).shares
    assert shares["exchange"].value == pytest.approx(50 / 170)
    assert shares["exchange"].interval == pytest.approx((50 / 170, 50 / 170))


@pytest.mark.seconds
@pytest.mark.slow
def test_intervals_cover_the_truth_and_few_rounds_have_none():
    """150 studies whose runs differ by 3% each: all parts that are judged share 4% of misses."""
    assert of(rounds(num_rounds=4, **SYNCHRONOUS)).shares["input"].interval is None
    generator = np.random.default_rng(7)

    def noisy():
        return [
            {
                variant: [[each[0] * factor] * 2 for each in series]
                for variant, series in of_round.items()
                for factor in [float(np.exp(generator.normal(0, 0.03)))]
            }
            for of_round in rounds(**SYNCHRONOUS)
        ]

    truth = {"input": 20 / 170, "exchange": 50 / 170, "waiting": 20 / 170, "launching": 50 / 170}
    missed = 0
    for _ in range(150):
        shares = of(noisy()).shares
        intervals = {part: shares[part].interval for part in truth}
        missed += any(not low <= truth[part] <= high for part, (low, high) in intervals.items())
    assert set(truth) <= set(JUDGED)
    assert missed <= 150 * 0.04 + 2 * np.sqrt(150 * 0.04 * 0.96)
