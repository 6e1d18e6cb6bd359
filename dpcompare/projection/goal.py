"""The other direction: which link, which batch or how many nodes a training needs to reach a goal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.overheads import Surroundings
from dpcompare.projection.step import StepWork

FASTEST_LINK = 1e13
"""Bytes per second: where a faster link does not help, latency or the slowest process is what is left."""
LARGEST_BATCH_FACTOR = 4096
MOST_ASKED_FOR = 1_000_000
STRIDE = 1.05
"""By which the numbers that are tried grow: with failures, a larger batch or cluster can be worse than a smaller one,
so the largest not being enough says nothing about the others."""

ALONE = Surroundings()


def link_for_efficiency(
    work: StepWork, interconnect: Interconnect, target: float, surroundings: Surroundings = ALONE
) -> float | None:
    """Bytes per second that the link between nodes must have, nominal; None where no link is enough.

    Args:
        work: of each device.
        interconnect: its link between nodes is replaced.
        target: efficiency, from 0 to 1.
        surroundings: storage, checkpoints and failures.
    """

    def enough(rate: float) -> bool:
        link = replace(interconnect.between, bytes_per_second=rate)
        return surroundings.efficiency(work, replace(interconnect, between=link)) >= target

    return _least(enough, 1e3, FASTEST_LINK)


def batch_for_efficiency(
    work: StepWork, interconnect: Interconnect, target: float, surroundings: Surroundings = ALONE
) -> int | None:
    """Images per device and step with which the goal is reached; None where no batch is enough.

    What a device's memory can hold is not known here.
    """

    def enough(batch: int) -> bool:
        return surroundings.efficiency(work.with_batch(batch), interconnect) >= target

    here = -int(-work.batch_per_device // 1)
    return _fewest(enough, 1, here * LARGEST_BATCH_FACTOR, also=here)


def nodes_for_throughput(
    work: StepWork,
    interconnect: Interconnect,
    target: float,
    surroundings: Surroundings = ALONE,
    *,
    least: int = 1,
    most: int = MOST_ASKED_FOR,
) -> int | None:
    """Nodes with which all devices together make so many images per second; None where no number is enough.

    Args:
        work: of each device.
        interconnect: its number of nodes is replaced.
        target: images per second.
        surroundings: storage, checkpoints and failures.
        least: nodes, below which nothing is predicted.
        most: nodes, beyond which nothing is predicted.
    """

    def enough(nodes: int) -> bool:
        return surroundings.images_per_second(work, interconnect.with_nodes(nodes)) >= target

    return _fewest(enough, least, most)


def _least(enough: Callable[[float], bool], low: float, high: float) -> float | None:
    """The least value that is enough, to a thousandth; None where the largest is not."""
    if not enough(high):
        return None
    if enough(low):
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _fewest(enough: Callable[[int], bool], least: int, most: int, *, also: int | None = None) -> int | None:
    """The least number that is enough, as far as strides find it; None where none that is tried is.

    Args:
        enough: whether a number is; with failures, also a larger one may not be.
        least: from which on numbers are tried.
        most: up to which.
        also: one that is tried in any case.
    """
    below = least - 1
    for number in _strides(least, most, also):
        if enough(number):
            break
        below = number
    else:
        return None
    while number - below > 1:
        middle = (below + number) // 2
        below, number = (below, middle) if enough(middle) else (middle, number)
    return number


def _strides(least: int, most: int, also: int | None) -> list[int]:
    found = {most} if also is None else {most, also}
    number = least
    while number < most:
        found.add(number)
        number = max(number + 1, int(number * STRIDE))
    return sorted(found)
