"""What a projection is asked for, and the link, batch or nodes that a goal needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dpcompare.errors import RequestError
from dpcompare.projection.document import Conditions
from dpcompare.projection.link import Interconnect, Link, link_between_nodes
from dpcompare.projection.step import StepWork, TrainingOverheads


@dataclass(frozen=True, kw_only=True)
class ProjectionRequest:
    """What is to be predicted."""

    nodes: tuple[int, ...] = ()
    """Empty: from those measured on, doubled up to MOST_NODES."""
    devices_per_node: int | None = None
    between: Link = field(default_factory=lambda: link_between_nodes("100gbit"))
    within: Link | None = None
    """None: as fast as memory, whose copies are in the fitted constant."""
    overlap: bool = True
    """Whether what was measured to overlap does; without, every message waits for the backward pass."""
    measured_link: str | None = None
    """The rate of the link of the machines that were measured, where they were several."""
    arms: tuple[str, ...] = ()
    """Names of those to be predicted; empty: all."""
    dollars_per_device_hour: float | None = None
    overheads: TrainingOverheads = field(default_factory=TrainingOverheads)
    target_efficiency: float | None = None
    target_throughput: float | None = None
    extrapolate: bool = False
    """Whether to go beyond MOST_TIMES what was measured, and to show what misses the measurement itself."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def conditions(self) -> Conditions:
        """What was asked for in addition to nodes and links, as documents have it."""
        interruptions = self.overheads.interruptions
        mtbf = interruptions.node_mtbf_seconds
        return Conditions(
            latency=self.between.latency,
            storage_bytes_per_second=self.overheads.storage_bytes_per_second,
            checkpoint_every=interruptions.checkpoint_every,
            checkpoint_seconds=interruptions.checkpoint_seconds if interruptions.checkpoint_every else None,
            node_mtbf_hours=mtbf / 3600 if mtbf else None,
            restart_seconds=interruptions.restart_seconds if mtbf else None,
            dollars_per_device_hour=self.dollars_per_device_hour,
            target_efficiency=self.target_efficiency,
            target_throughput=self.target_throughput,
        )


def _check(request: ProjectionRequest) -> None:
    if wrong := [count for count in request.nodes if not 1 <= count <= MOST_ASKED_FOR]:
        raise RequestError(f"--nodes: received {wrong[0]}, expected numbers from 1 to {MOST_ASKED_FOR}, such as 2,4,8")
    if request.devices_per_node is not None and not 1 <= request.devices_per_node <= MOST_ASKED_FOR:
        raise RequestError(
            f"--devices-per-node: received {request.devices_per_node}, expected a number from 1 to {MOST_ASKED_FOR}"
        )
    if request.target_efficiency is not None and not 0 < request.target_efficiency < 1:
        raise RequestError(
            f"--target-efficiency: received {request.target_efficiency:g}, expected a number between 0 and 1, such as "
            "0.9"
        )
    if request.target_throughput is not None and not 0 < request.target_throughput < float("inf"):
        raise RequestError(
            f"--target-throughput: received {request.target_throughput:g}, expected images per second above 0"
        )


FASTEST_LINK = 1e13
"""Bytes per second: where a faster link does not help, latency or the slowest process is what is left."""
LARGEST_BATCH_FACTOR = 4096
MOST_ASKED_FOR = 1_000_000
MOST_TIMES = 4
"""The devices that are predicted without `extrapolate`, over those measured: the studies with which the model was
compared went no further."""
STRIDE = 1.05
"""The factor by which the numbers that are tried grow: with failures, a larger batch or cluster can be worse than a
smaller one, so the largest not being enough says nothing about the others."""

ALONE = TrainingOverheads()


def link_for_efficiency(
    work: StepWork, interconnect: Interconnect, target: float, overheads: TrainingOverheads = ALONE
) -> float | None:
    """Bytes per second that the link between nodes must have, nominal; None where no link is enough.

    Args:
        work: of each device.
        interconnect: its link between nodes is replaced.
        target: efficiency, from 0 to 1.
        overheads: storage, checkpoints and failures.
    """

    def enough(rate: float) -> bool:
        link = replace(interconnect.between, bytes_per_second=rate)
        return overheads.efficiency(work, replace(interconnect, between=link)) >= target

    return _least(enough, 1e3, FASTEST_LINK)


def batch_for_efficiency(
    work: StepWork, interconnect: Interconnect, target: float, overheads: TrainingOverheads = ALONE
) -> int | None:
    """Images per device and step with which the goal is reached; None where no batch is enough.

    What a device's memory can hold is not known here.
    """

    def enough(batch: int) -> bool:
        return overheads.efficiency(work.with_batch(batch), interconnect) >= target

    here = -int(-work.batch_per_device // 1)
    return _fewest(enough, 1, here * LARGEST_BATCH_FACTOR, also=here)


def nodes_for_throughput(
    work: StepWork,
    interconnect: Interconnect,
    target: float,
    overheads: TrainingOverheads = ALONE,
    *,
    least: int = 1,
    most: int = MOST_ASKED_FOR,
) -> int | None:
    """Nodes with which all devices together make so many images per second; None where no number is enough.

    Args:
        work: of each device.
        interconnect: its number of nodes is replaced.
        target: images per second.
        overheads: storage, checkpoints and failures.
        least: nodes, below which nothing is predicted.
        most: nodes, beyond which nothing is predicted.
    """

    def enough(nodes: int) -> bool:
        return overheads.images_per_second(work, interconnect.with_nodes(nodes)) >= target

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
