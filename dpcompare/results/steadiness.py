"""The steadiness of a run: its speed without single stalls, and the steps that were far slower than the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpcompare.system.json_files import Count, Finite, Measured, Number, Rate

NUM_PARTS = 10
JITTER_SCALE = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""
SLOW_DEVIATIONS = 10
"""Scaled median absolute deviations above the median from which on a step is slow."""
LARGEST_LOSS = 0.05
"""Part of the measured time that slow steps may cost before anything is said."""
RUNNING = 5
"""Steps whose median is taken, so that a single slow one does not count as warming up."""
SETTLED_WITHIN, SETTLED_DEVIATIONS = 0.05, 2
"""How near the running median must come: a part of the median, and scaled median absolute deviations."""
LARGEST_LOSS_SECONDS = 0.25
"""What they may cost in any case: a few turns of other processes on a busy core are no stall of steps of some ms."""


def steady_images_per_second(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Images per second of the median of ten parts, equal in steps, into which consecutive steps are cut.

    A stall is in one part or two, which leaves the median alone. What comes again and again, such as waiting for data
    in every fourth step, or for the device where losses are read, is in all of them: the median step would not show it.

    Args:
        counts: images of each step.
        seconds: that each step took.
    """
    return median_of_parts(counts, seconds)


def median_of_parts(amounts: Sequence[float], seconds: Sequence[float]) -> float:
    """The median over ten parts, equal in steps, of their amounts per second."""
    num_parts = min(NUM_PARTS, len(seconds))
    starts = np.arange(num_parts) * len(seconds) // num_parts
    return float(np.median(np.add.reduceat(amounts, starts) / np.add.reduceat(seconds, starts)))


class SlowSteps(BaseModel):
    """What the slowest measured steps of the slowest process cost."""

    model_config = ConfigDict(frozen=True)

    largest_seconds: Measured
    """The largest duration of a step; in a window of several steps, an equal share of it."""
    first: Number
    """The step that took it, from 1, earlier attempts included."""
    last: Number
    """The last step of its window; the same step where each is measured by itself."""
    count: Count
    """Steps above the median by more than ten scaled median absolute deviations."""
    lost_seconds: Measured
    """What these took more than the median step."""
    images_per_second_without: Rate | None
    """The speed of all other steps together; None if none is slow."""

    @classmethod
    def of(
        cls,
        counts: Sequence[int],
        seconds: Sequence[float],
        *,
        steps_before: int,
        is_windowed: bool,
        own: Sequence[bool] | None = None,
    ) -> SlowSteps:
        """The slow ones of some measured steps.

        Args:
            counts: images of each step.
            seconds: that each step took.
            steps_before: steps that were made before these.
            is_windowed: whether steps are measured in windows of several, whose steps have the same seconds.
            own: as for `StepSeconds`: of the others none is called slow.
        """
        images, taken = np.asarray(counts, np.float64), np.asarray(seconds, np.float64)
        judged = np.ones(len(taken), bool) if own is None or not any(own) else np.asarray(own, bool)
        median = float(np.median(taken[judged]))
        deviation = float(np.median(np.abs(taken[judged] - median)))
        slow = judged & (taken > median + SLOW_DEVIATIONS * JITTER_SCALE * deviation)
        first = last = int(np.where(judged, taken, -1.0).argmax())
        while is_windowed and last + 1 < len(taken) and taken[last + 1] == taken[first]:
            last += 1
        return cls(
            largest_seconds=float(taken[first]),
            first=steps_before + first + 1,
            last=steps_before + last + 1,
            count=int(slow.sum()),
            lost_seconds=float((taken[slow] - median).sum()),
            images_per_second_without=float(images[~slow].sum() / taken[~slow].sum()) if slow.any() else None,
        )

    def stall(self, median_seconds: float, measured_seconds: float) -> str | None:
        """A sentence about slow steps that cost enough to be mentioned; None if there are none."""
        without = self.images_per_second_without
        if without is None or self.lost_seconds <= max(LARGEST_LOSS * measured_seconds, LARGEST_LOSS_SECONDS):
            return None
        took = f"took {_seconds(self.largest_seconds)}"
        alone = self.last - self.first + 1 == self.count
        slowest = (
            f"step {self.first} {took}" if self.first == self.last else f"steps {self.first} to {self.last} {took} each"
        )
        left_out = "it" if self.count == 1 else "them"
        return (
            f"{slowest if alone else f'{self.count} steps were slow: {slowest}'}, median {_seconds(median_seconds)}; "
            f"without {left_out} {without:.1f} images/s"
        )


class SlowStart(BaseModel):
    """The first measured steps, which were slower than those after them."""

    model_config = ConfigDict(frozen=True)

    count: Number
    median_seconds: Measured
    """The median of these steps."""
    settled_seconds: Measured
    """Median of the steps after them."""
    lost_seconds: Finite
    """What these took more than the same number of the others."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> SlowStart | None:
        """The slow start of some measured steps; None if they were as fast as the others from the beginning."""
        count = steps_to_settle(seconds)
        if count == 0:
            return None
        slow, settled = np.asarray(seconds[:count]), float(np.median(seconds[count:]))
        return cls(
            count=count,
            median_seconds=float(np.median(slow)),
            settled_seconds=settled,
            lost_seconds=float((slow - settled).sum()),
        )

    def trend(self, measured_seconds: float, first_step: int, steps_left_out: int) -> str | None:
        """A sentence about a start that cost enough to be mentioned; None if it did not.

        Args:
            measured_seconds: of all measured steps.
            first_step: steps made before this attempt.
            steps_left_out: first steps of this attempt that were not measured.
        """
        if self.lost_seconds <= max(LARGEST_LOSS * measured_seconds, LARGEST_LOSS_SECONDS):
            return None
        first, last = (first_step + steps_left_out + number for number in (1, self.count))
        return (
            f"still speeding up: steps {first} to {last} took {_seconds(self.median_seconds)}, later ones "
            f"{_seconds(self.settled_seconds)}; use more --warmup-steps, such as {steps_left_out + self.count}, or auto"
        )


def steps_to_settle(seconds: Sequence[float]) -> int:
    """How many of the first steps were made before the steps were as fast as they are in the last two thirds.

    They are from the first on whose running median, with the four after it, is within 5% and two scaled median absolute
    deviations of the median of the last two thirds. At most a third of the steps, and none of fewer than 15.
    """
    most = len(seconds) // 3
    if most < RUNNING:
        return 0
    taken = np.asarray(seconds, np.float64)
    settled = taken[most:]
    median = float(np.median(settled))
    limit = median * (1 + SETTLED_WITHIN) + SETTLED_DEVIATIONS * JITTER_SCALE * float(
        np.median(np.abs(settled - median))
    )
    running = np.median(np.lib.stride_tricks.sliding_window_view(taken, RUNNING), axis=1)
    for count in range(most):
        if running[count] <= limit and (count == 0 or taken[count] <= limit):
            return count
    return most


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"
