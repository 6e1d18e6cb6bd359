"""The partition of a model into stages that take the same time, by the measured seconds of its layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from statistics import median

ROUNDS = 5
WARMUP_ROUNDS = 2


def seconds_of(calls: Sequence[Callable[[], object]], synchronize: Callable[[], None]) -> list[float]:
    """Seconds that each call takes, the median of some rounds through all of them in their order."""
    rounds = []
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        taken = []
        for call in calls:
            synchronize()
            begin = time.perf_counter()
            call()
            synchronize()
            taken.append(time.perf_counter() - begin)
        rounds.append(taken)
    return [median(column) for column in zip(*rounds[WARMUP_ROUNDS:], strict=True)]


def balanced_cuts(seconds: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The layers with which the second and all later stages start, so that the slowest stage is as fast as can be.

    Args:
        seconds: of each layer, in their order.
        num_stages: at most as many as there are layers.

    Returns:
        num_stages - 1 ascending indices of layers.
    """
    if not 1 <= num_stages <= len(seconds):
        raise ValueError(f"received {num_stages} stages for {len(seconds)} layers, expected 1 to {len(seconds)}")

    @cache
    def best(first: int, stages: int) -> tuple[float, tuple[int, ...]]:
        """Seconds of the slowest stage of the layers from `first` on, and their cuts."""
        if stages == 1:
            return sum(seconds[first:]), ()
        choices = []
        for cut in range(first + 1, len(seconds) - stages + 2):
            slowest, cuts = best(cut, stages - 1)
            choices.append((max(sum(seconds[first:cut]), slowest), (cut, *cuts)))
        return min(choices)

    return best(0, num_stages)[1]


def seconds_of_stages(seconds: Sequence[float], cuts: Sequence[int]) -> list[float]:
    """Seconds of each stage: the sum of those of the layers between one cut and the next."""
    return [sum(seconds[begin:end]) for begin, end in pairwise([0, *cuts, len(seconds)])]
