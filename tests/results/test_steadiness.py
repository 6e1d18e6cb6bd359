"""The speed without stalls and the sentence about them, with planted step times."""

import numpy as np
import pytest

from dpcompare.results.steadiness import SlowSteps, steady_images_per_second

QUIET = [0.29 + 0.004 * (-1) ** step for step in range(20)]


def said(seconds, *, steps_before=5, is_windowed=False):
    slow = SlowSteps.of([32] * len(seconds), seconds, steps_before=steps_before, is_windowed=is_windowed)
    return slow.stall(float(np.median(seconds)), sum(seconds))


def with_steps(planted, seconds=QUIET):
    return [planted.get(number, each) for number, each in enumerate(seconds, start=1)]


def test_one_step_of_20_seconds_is_named_and_does_not_change_the_steady_speed():
    stalled = with_steps({10: 20.3})
    assert said(stalled) == "step 15 took 20.3 s, median 0.29 s; without it 110.3 images/s"
    steady = steady_images_per_second([32] * 20, stalled)
    assert steady == pytest.approx(steady_images_per_second([32] * 20, QUIET), rel=0.01)
    assert 20 * 32 / sum(stalled) < 0.3 * steady


def test_several_slow_steps_are_counted():
    assert said(with_steps({2: 3.0, 11: 5.5})) == (
        "2 steps were slow: step 16 took 5.5 s, median 0.29 s; without them 110.3 images/s"
    )


def test_a_slow_window_is_named_by_its_steps():
    windows = [seconds for seconds in (0.29, 0.294, 2.03, 0.291, 0.289, 0.292) for _ in range(10)]
    assert said(windows, steps_before=30, is_windowed=True) == (
        "steps 51 to 60 took 2.0 s each, median 0.29 s; without them 109.9 images/s"
    )


@pytest.mark.parametrize(
    "seconds",
    [
        QUIET,
        with_steps({4: 0.4}),  # 10 deviations away, and 2% of the time
        [0.003] * 40,
        with_steps({7: 0.05, 30: 0.08}, [0.003] * 40),  # half of the time of a run that short: two turns of others
        [0.29],
        list(np.random.default_rng(0).lognormal(-3, 0.5, 200)),
    ],
)
def test_a_healthy_run_says_nothing(seconds):
    assert said(seconds) is None


def test_what_comes_again_and_again_stays_in_the_steady_speed():
    """The median step would be 1 s of a mean of 2."""
    waiting = [1.0, 1.0, 1.0, 5.0] * 20
    assert steady_images_per_second([8] * 80, waiting) == pytest.approx(4.0)


def test_the_steady_speed_counts_the_images_of_smaller_batches():
    assert steady_images_per_second([8, 8, 4], [1.0, 1.0, 0.5]) == pytest.approx(8.0)


def test_a_stall_is_counted_from_the_first_step_of_the_run_with_what_it_lost():
    slow = SlowSteps.of([8] * 4, [0.2, 0.2, 4.0, 0.2], steps_before=30, is_windowed=False)
    assert (slow.first, slow.last, slow.count, slow.largest_seconds) == (33, 33, 1, 4.0)
    assert slow.lost_seconds == pytest.approx(3.8)
    assert slow.images_per_second_without == pytest.approx(40.0)
