"""Outcomes: how the processes of a launch ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from dpcompare.results.events import Event

Observer = Callable[[Event], None]


@dataclass
class LaunchOutcome:
    """How the processes of a run ended by themselves; those that were stopped are left out."""

    nodes: dict[int, int] = field(default_factory=dict)
    """node_rank -> exit status (negative: the signal) of its node process."""
    vanished: list[int] = field(default_factory=list)
    """Ranks of training processes that ended without a last word: killed, or crashed in native code."""
    stalled: list[Stall] = field(default_factory=list)
    """Training processes that showed no progress for too long."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of this machine for want of memory meanwhile."""
    began_at: float | None = None
    """Where the nodes had to meet first: when they had, seconds since the epoch."""
    others: list[str] = field(default_factory=list)
    """What ended it from outside: another machine, or who started the nodes."""

    @property
    def failed(self) -> bool:
        return any(self.nodes.values()) or bool(self.stalled) or bool(self.others)


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A process that showed no progress."""

    process_rank: int
    seconds: float
    """For which it had shown none."""
    state: str
    """What it was doing then, as the kernel says."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds without a sign of life after which a run is stopped."""

    start: float
    """From the launch until a process has made its first step."""
    progress: float
    """Between two signs of progress after that."""


class NodeOutcome(BaseModel):
    """outcome-<rank>.json: how the part of a node ended."""

    model_config = ConfigDict(frozen=True)

    node_rank: int
    host: str
    time: float
    """Seconds since the epoch."""
    status: int | None
    """Exit status (negative: the signal) of its node process; None where it was stopped, or never started."""
    vanished: list[int] = []
    stalled: list[Stall] = []
    out_of_memory: bool = False
    message: str | None = None
    """Why it was never started."""
    stopped: bool = False
    """Whether it was stopped for another's sake."""

    @property
    def failed(self) -> bool:
        return bool(self.status or self.stalled or self.message)

    @property
    def well(self) -> bool:
        return self.status == 0 and not self.failed


def merge_outcomes(ends: Sequence[NodeOutcome]) -> LaunchOutcome:
    """How the processes of all nodes ended, as if they had been started on one machine."""
    ended = LaunchOutcome()
    for end in sorted(ends, key=lambda each: each.time):
        if end.status is not None:
            ended.nodes[end.node_rank] = end.status
        ended.vanished += end.vanished
        ended.stalled += end.stalled
        ended.out_of_memory |= end.out_of_memory
        if end.message and end.message not in ended.others:
            ended.others.append(end.message)
    return ended
