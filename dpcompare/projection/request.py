"""What a projection is asked for: clusters, links, prices, what goes wrong, and goals."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpcompare.errors import RequestError
from dpcompare.projection.document import Conditions
from dpcompare.projection.goal import MOST_ASKED_FOR
from dpcompare.projection.link import Link, link_between_nodes
from dpcompare.projection.overheads import Surroundings


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
    surroundings: Surroundings = field(default_factory=Surroundings)
    target_efficiency: float | None = None
    target_throughput: float | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def conditions(self) -> Conditions:
        """What was asked for beside nodes and links, as documents have it."""
        overheads = self.surroundings.overheads
        mtbf = overheads.node_mtbf_seconds
        return Conditions(
            latency=self.between.latency,
            storage_bytes_per_second=self.surroundings.storage_bytes_per_second,
            checkpoint_every=overheads.checkpoint_every,
            checkpoint_seconds=overheads.checkpoint_seconds if overheads.checkpoint_every else None,
            node_mtbf_hours=mtbf / 3600 if mtbf else None,
            restart_seconds=overheads.restart_seconds if mtbf else None,
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
