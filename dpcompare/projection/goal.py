"""The other direction: which link, which batch or how many nodes a training needs to reach a goal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.overheads import Surroundings
from dpcompare.projection.step import StepWork

FASTEST_LINK = 1e13
"""Bytes per second: where a faster link does not help, latency or the slowest process is what is left."""
LARGEST_BATCH_FACTOR = 4096
MOST_ASKED_FOR = 1_000_000
STRIDE = 1.05
"""By which the values that are tried grow: with failures, too large a batch or cluster is worse than a smaller one, so
that the largest being not enough says nothing of the others."""

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

    def enough(batch: float) -> bool:
        return surroundings.efficiency(work.with_batch(batch), interconnect) >= target

    found = _least(enough, 1.0, work.batch_per_device * LARGEST_BATCH_FACTOR, among=work.batch_per_device)
    return None if found is None else -int(-found // 1)


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

    low = least - 1
    high = least
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(most, max(high + 1, int(high * STRIDE)))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least(enough: Callable[[float], bool], least: float, most: float, *, among: float | None = None) -> float | None:
    """The least value that is enough, to a millionth; None where none of those that are tried is, `among` them."""
    low = least
    for high in _strides(least, most, among):
        if enough(high):
            break
        low = high
    else:
        return None
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _strides(least: float, most: float, among: float | None) -> Iterator[float]:
    value = least
    while value < most:
        yield value
        following = min(most, value * STRIDE)
        if among is not None and value < among < following:
            yield among
        value = following
    yield most
