"""Outcomes: how the processes of one node, and of a whole launch, ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from dpcompare.results.events import Event
from dpcompare.system.terminal_text import printable

Observer = Callable[[Event], None]
"""Called with every event of the training processes, soon after it was written."""

Report = Callable[[str], None]
"""Called with a line for a person, without a line break: what happens, in a terminal or a log."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What is called while a run is made."""

    observe: Observer = lambda event: None
    report: Report = lambda line: None
    stopped_by: Callable[[], str | None] = lambda: None
    """Asked several times a second; a reason that it returns ends the run, which then has failed."""
    interpreter_of: Callable[[str], str]
    """Asked for the interpreter of another framework, which makes the late step."""

    def expendable(self) -> Callbacks:
        """The same, but what only shows the run can fail without ending it."""
        return replace(self, observe=expendable(self.observe), report=expendable(self.report))


T = TypeVar("T")


def expendable(show: Callable[[T], None]) -> Callable[[T], None]:
    """`show` as far as it works: its first error is logged, and from then on nothing is shown.

    But for a want of memory, which is one of the whole process.
    """
    has_failed = False

    def shown(what: T) -> None:
        nonlocal has_failed
        if has_failed:
            return
        try:
            show(what)
        except MemoryError:
            raise
        except Exception as error:
            has_failed = True
            reason = printable(f"{type(error).__name__}: {error}")
            logging.getLogger(__name__).warning(
                "the progress display was turned off after an error (%s); the run continues", reason
            )

    return shown


@dataclass
class LaunchOutcome:
    """How the processes of a launch ended by themselves; those that were stopped are left out. Filled as it happens."""

    nodes: dict[int, int] = field(default_factory=dict)
    """node_rank -> exit status (negative: the signal) of its node process."""
    vanished: list[int] = field(default_factory=list)
    """Ranks of training processes that ended without a last event: killed, or crashed in native code."""
    stalled: list[Stall] = field(default_factory=list)
    """Training processes that showed no progress for too long."""
    out_of_memory: set[int] = field(default_factory=set)
    """Nodes on whose machine the kernel killed a process for want of memory at about the time of the end."""
    started_at: float | None = None
    """When all nodes had joined, seconds since the epoch; None where they share a machine and need not wait."""
    ended_at: float | None = None
    """When the nodes were seen to have ended, seconds since the epoch; None where that is now."""
    reasons: list[str] = field(default_factory=list)
    """What ended it from outside: another machine, the engine, or `stopped_by`."""
    cause: str | None = None
    """What ended it from outside and explains all else, whatever the processes say; None where nothing did."""

    @property
    def failed(self) -> bool:
        """Whether anything has gone wrong so far."""
        return any(self.nodes.values()) or bool(self.stalled) or bool(self.reasons) or bool(self.cause)


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A training process that showed no progress within its deadline."""

    process_rank: int
    seconds: float
    """How long it had shown none."""
    state: str
    """What it was doing then, in words, see `dpcompare.system.processes.process_state`."""


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds without progress of a training process after which the launch is stopped."""

    start: float
    """From the launch until the process has made its first step."""
    progress: float
    """Between two events of the process after that."""


class NodeOutcome(BaseModel):
    """outcome-<rank>.json: how the processes of one node ended."""

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
    """Whether the kernel killed a process of its machine for want of memory at about the time of the end."""
    message: str | None = None
    """Why it was never started."""
    stopped: bool = False
    """Whether it was stopped because of another node, or from outside."""

    @property
    def failed(self) -> bool:
        """Whether it went wrong on this node, rather than being stopped."""
        return bool(self.status or self.stalled or self.message)

    @property
    def succeeded(self) -> bool:
        """Whether its node process ran to its end."""
        return self.status == 0 and not self.failed


def merge_outcomes(outcomes: Sequence[NodeOutcome]) -> LaunchOutcome:
    """How the processes of all nodes ended, as if they had been started on one machine; the earliest first."""
    merged = LaunchOutcome()
    for outcome in sorted(outcomes, key=lambda each: each.time):
        if outcome.status is not None:
            merged.nodes[outcome.node_rank] = outcome.status
        merged.vanished += outcome.vanished
        merged.stalled += outcome.stalled
        if outcome.out_of_memory:
            merged.out_of_memory.add(outcome.node_rank)
        if outcome.message and outcome.message not in merged.reasons:
            merged.reasons.append(outcome.message)
    return merged
