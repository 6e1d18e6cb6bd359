"""The speed without stalls and the sentence about them, with planted step times."""

import numpy as np
import pytest

from dpcompare.results.steadiness import SlowStart, SlowSteps, steady_images_per_second, steps_to_settle

QUIET = [0.29 + 0.004 * (-1) ** step for step in range(20)]


def said(seconds, *, steps_before=5, is_windowed=False):
    slow = SlowSteps.of([32] * len(seconds), seconds, steps_before=steps_before, is_windowed=is_windowed)
    return slow.stall(float(np.median(seconds)), sum(seconds))


def with_steps(planted, seconds=QUIET):
    return [planted.get(number, each) for number, each in enumerate(seconds, start=1)]


def test_a_step_of_20_seconds_does_not_change_the_steady_speed():
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


def test_a_stall_counts_from_the_first_step_with_what_it_lost():
    slow = SlowSteps.of([8] * 4, [0.2, 0.2, 4.0, 0.2], steps_before=30, is_windowed=False)
    assert (slow.first, slow.last, slow.count, slow.largest_seconds) == (33, 33, 1, 4.0)
    assert slow.lost_seconds == pytest.approx(3.8)
    assert slow.images_per_second_without == pytest.approx(40.0)


def trend(seconds, *, first_step=0, steps_left_out=5):
    slow = SlowStart.of(seconds)
    return slow.trend(sum(seconds), first_step, steps_left_out) if slow else None


def test_30_slow_first_steps_are_named_with_what_to_do():
    warming = [0.42 + 0.004 * (-1) ** step for step in range(25)] + QUIET * 2
    assert steps_to_settle(warming) == 21  # a third, at most
    assert trend(warming[5:]) == (
        "still speeding up: steps 6 to 25 took 0.42 s, later ones 0.29 s; use more --warmup-steps, such as 25, or auto"
    )
    assert trend(warming[5:], first_step=100).startswith("still speeding up: steps 106 to 125 took")


def test_steps_that_become_faster_have_settled_near_their_end():
    falling = [0.3 * (1 + 0.8 * 0.93**step) for step in range(90)]
    count = steps_to_settle(falling)
    assert 20 <= count <= 30
    assert falling[count] < 1.1 * falling[-1]
    assert trend(falling).startswith("still speeding up: steps 6 to")


@pytest.mark.parametrize(
    "seconds",
    [
        QUIET,
        [*QUIET[:3], 4.0, *QUIET],  # a stall, which is reported as one
        [9.0, *QUIET * 3],
        [0.3 - 0.0002 * step for step in range(60)],  # 4% in all
        [0.2] * 20 + [0.4] * 40,  # slower and slower is no warming up
        [0.5] * 5 + [0.3] * 9,  # too few to tell
    ],
)
def test_a_run_that_had_settled_says_nothing_of_a_trend(seconds):
    assert trend(seconds) is None


def test_noise_is_hardly_ever_taken_for_a_trend():
    """Normal, Student's t with 2 degrees, and autocorrelated by 0.8: 5% each, 200 runs of 40 steps."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(200, 40))
    correlated = normal.copy()
    for step in range(1, 40):
        correlated[:, step] = 0.8 * correlated[:, step - 1] + 0.6 * normal[:, step]
    noises = np.concatenate([normal, rng.standard_t(2, size=(200, 40)), correlated])
    runs = 0.3 * np.exp(0.05 * noises)
    assert sum(trend(list(run)) is not None for run in runs) == 0
    assert np.mean([steps_to_settle(list(run)) > 0 for run in runs]) < 0.02
