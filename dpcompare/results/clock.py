"""Whether the seconds of a run add up, what others took of its cores, and what is said of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dpcompare.errors import RequestError
from dpcompare.results.run_dir import watch_path
from dpcompare.results.series import ProcessSeries
from dpcompare.results.steadiness import median_of_parts
from dpcompare.system.cores import CoresUsed
from dpcompare.system.json_files import Count, Finite, Integer, Measured, Number, read_document, write_document
from dpcompare.system.terminal_text import pluralize

RunWarningKind = Literal["CLOCK", "STALLED", "RECOMPILED", "NOT WARM", "DISTURBED", "SLOWED DOWN", "LATE STEP"]
"""CLOCK: the seconds of the run contradict those of its launcher, or leave out much of the time.
STALLED: some steps were far slower than the others.
RECOMPILED: a framework traced or compiled something within the measured time.
NOT WARM: the first measured steps were slower than those after them.
DISTURBED: others took of the cores that the run was to have.
SLOWED DOWN: by heat or the supply of power."""

UNSTABLE: tuple[RunWarningKind, ...] = ("CLOCK", "STALLED", "RECOMPILED", "NOT WARM", "DISTURBED")
"""What `report --fail-if unstable` finds."""

DISTURBANCES: tuple[RunWarningKind, ...] = ("CLOCK", "STALLED", "DISTURBED")
"""What a study makes a run again for: what happened to the run alone, never how fast it was relative to others."""


class RunWarning(BaseModel):
    """A word that is easy to find, and a sentence with the figures."""

    model_config = ConfigDict(frozen=True)

    kind: RunWarningKind
    sentence: str


LARGEST_PART = 0.1
"""The part of what the run itself took that others may take before a warning."""
LARGEST_SECONDS = 0.5
"""The core-seconds that others may take in any case: the kernel counts in hundredths, and a short run is measured in
few."""


class MachineLoad(BaseModel):
    """Cores of one machine, on average over the measured steps and the evaluations between them."""

    model_config = ConfigDict(frozen=True)

    seconds: Measured
    cores: Number
    """The cores that the processes of the run may use."""
    planned_cores: Number
    """The cores that the run was to use."""
    run_cores: Measured
    """The cores that its training processes took."""
    other_cores: Measured
    """The cores that all other processes took, its launcher among them."""
    stolen_cores: Finite
    """The cores that the host of this virtual machine gave to others."""
    waiting_fraction: Finite | None
    """Part of the time in which some process waited for a core, be it one of the run; None where it is not counted."""
    heat_throttles: Integer | None
    """Times that a core or a package became too hot; None where that is not counted."""

    @classmethod
    def of(cls, used: Sequence[CoresUsed], *, planned_cores: int) -> MachineLoad:
        """The load of one machine, by its training processes; what all processes took is what the first one read."""
        first = used[0]
        own = sum(each.own_seconds for each in used) / first.seconds
        return cls(
            seconds=first.seconds,
            cores=first.cores,
            planned_cores=planned_cores,
            run_cores=own,
            other_cores=max(0.0, first.busy_seconds / first.seconds - own),
            stolen_cores=first.stolen_seconds / first.seconds,
            waiting_fraction=None if first.waiting_seconds is None else first.waiting_seconds / first.seconds,
            heat_throttles=first.heat_throttles,
        )

    @property
    def disturbance(self) -> str | None:
        """A sentence about others that the run had to share its cores with; None where it had enough all the same."""
        taken = self.other_cores + self.stolen_cores
        idle = self.cores - self.run_cores - taken
        missing = taken - max(idle, self.cores - self.planned_cores)
        if missing * self.seconds <= max(LARGEST_PART * self.run_cores * self.seconds, LARGEST_SECONDS):
            return None
        others = [
            f"{who} {cores:.1f}"
            for who, cores in (
                ("other processes took", self.other_cores),
                ("the host of this virtual machine took", self.stolen_cores),
            )
            if cores >= taken / 4
        ]
        return f"{' and '.join(others)} of {pluralize(self.cores, 'core')} while this run was measured"

    @property
    def slowdown(self) -> str | None:
        """A sentence about cores that became too hot."""
        return (
            f"cores were throttled {pluralize(self.heat_throttles, 'time')} for heat" if self.heat_throttles else None
        )


LARGEST_DIFFERENCE, LEAST_DIFFERENCE_SECONDS = 0.05, 0.1
"""Part by which a sum of seconds may lie outside the bounds that the launcher's looks set, and the seconds that
are always allowed.

Between the end of a step and its event losses are read, a line is written, and the process may wait for a core: on a
busy machine for more than 5% of a run of 0.2 s."""
LARGEST_BETWEEN, LEAST_BETWEEN_SECONDS, STEPS_TO_JUDGE = 0.05, 5e-4, 20
"""Part of the time that may pass between steps, seconds per step that are never too many, and steps that this takes.

The largest of 206 healthy runs, most of them on a busy machine, had 0.018; a forward pass is about a third."""
LARGEST_BETWEEN_FEW = 0.3
"""The same of fewer steps: of two on a busy machine it was 0.22. Nothing is claimed of such runs."""
LARGEST_BETWEEN_ON_GPUS = 0.2
"""The same on GPUs, whose energy is read between windows: how long that takes on eight of them is not measured."""
LARGEST_BACKLOG, LEAST_BACKLOG_SECONDS = 0.03, 0.3
"""Part of the measured time, and seconds, that a device may still compute when the last step's clock has stopped."""


class Seen(BaseModel):
    """An event about trained steps, as the launcher came across it."""

    model_config = ConfigDict(frozen=True)

    step: Number
    """The last step that it reports."""
    after: Finite
    """It was not there yet at this moment, in seconds of the launcher's steady clock..."""
    by: Finite
    """...and was at this one."""


class Watched(BaseModel):
    """Two events of a process between which its clock can be checked."""

    model_config = ConfigDict(frozen=True)

    first: Seen
    """The second one: what is done for the first time delays the event of the first step."""
    last: Seen

    def save(self, run_dir: Path, process_rank: int) -> None:
        write_document(self, watch_path(run_dir, process_rank))

    @classmethod
    def load(cls, run_dir: Path, process_rank: int) -> Watched | None:
        """The clock of a process in the present attempt; None if it was not watched long enough, or not to its end."""
        try:
            return read_document(cls, watch_path(run_dir, process_rank), kind="what was watched", expected="a run")
        except RequestError:
            return None


class ClockCheck(BaseModel):
    """The clock of one process compared with that of the launcher."""

    model_config = ConfigDict(frozen=True)

    process_rank: Count
    own_seconds: Measured
    """Steps, what lies between them, evaluations and checkpoints, added up from one event to another."""
    least_seconds: Measured
    """The least seconds that passed between these events for the launcher, which looks several times a second."""
    most_seconds: Measured
    """The most seconds that passed between them."""

    @property
    def difference(self) -> float:
        """How far the sum lies outside the bounds, as a part of the nearest one; 0 inside them."""
        return abs(self.own_seconds - self._nearest) / self._nearest if self._nearest else 0.0

    @property
    def _nearest(self) -> float:
        """The seconds within the bounds that are nearest to the sum."""
        return min(max(self.own_seconds, self.least_seconds), self.most_seconds)

    @property
    def contradiction(self) -> str | None:
        """A sentence about a clock that contradicts the launcher's; None where they agree."""
        if abs(self.own_seconds - self._nearest) <= max(LARGEST_DIFFERENCE * self._nearest, LEAST_DIFFERENCE_SECONDS):
            return None
        return (
            f"by the clock of process {self.process_rank} its steps, evaluations and checkpoints took "
            f"{self.own_seconds:.1f} s, by that of the launcher {self.least_seconds:.1f} to {self.most_seconds:.1f} s"
        )


def check_clocks(run_dir: Path, processes: Sequence[ProcessSeries]) -> ClockCheck | None:
    """The check of the process whose clock differs most from the launcher's, where one that contradicts it comes
    first; None where none can be checked."""
    checks = [
        _check(rank, series, watched)
        for rank, series in enumerate(processes)
        if (watched := Watched.load(run_dir, rank)) and watched.last.step <= series.num_steps
    ]
    return max(checks, key=lambda check: (check.contradiction is not None, check.difference), default=None)


def _check(process_rank: int, series: ProcessSeries, watched: Watched) -> ClockCheck:
    steps = slice(watched.first.step - series.first_step, watched.last.step - series.first_step)
    parts = (series.step_seconds, series.host_overhead_seconds, series.apart_seconds)
    return ClockCheck(
        process_rank=process_rank,
        own_seconds=sum(sum(part[steps]) for part in parts),
        least_seconds=max(0.0, watched.last.after - watched.first.by),
        most_seconds=watched.last.by - watched.first.after,
    )


def much_between_steps(
    fraction: float, step_seconds: float | None, *, num_steps: int = STEPS_TO_JUDGE, on_gpu: bool = False
) -> str | None:
    """A sentence about steps whose own seconds leave out much of the time; None where they do not.

    Args:
        fraction: part of the time that passes between steps.
        step_seconds: mean seconds of a step; None where that is not known.
        num_steps: that were measured.
        on_gpu: whether the devices are GPUs.
    """
    per_step = math.inf if step_seconds is None or fraction >= 1 else step_seconds * fraction / (1 - fraction)
    most = LARGEST_BETWEEN_ON_GPUS if on_gpu else LARGEST_BETWEEN
    if fraction <= (most if num_steps >= STEPS_TO_JUDGE else LARGEST_BETWEEN_FEW) or per_step <= LEAST_BETWEEN_SECONDS:
        return None
    return f"{fraction:.0%} of the time passes between steps, which images per second leave out"


def long_backlog(backlog_seconds: float, measured_seconds: float) -> str | None:
    """A sentence about a device that computed on when the clock had stopped; None where it did not.

    Args:
        backlog_seconds: that reading losses took, once their steps were said to be done.
        measured_seconds: of all measured steps.
    """
    if backlog_seconds <= max(LARGEST_BACKLOG * measured_seconds, LEAST_BACKLOG_SECONDS):
        return None
    return (
        f"the devices computed for another {backlog_seconds:.1f} s after the clock had stopped, "
        f"with {measured_seconds:.1f} s measured"
    )


def fraction_between_steps(step_seconds: Sequence[float], between_seconds: Sequence[float]) -> float:
    """Part of the time that passes between steps, in the median of ten parts of a run: a stall there does not count."""
    total = [sum(pair) for pair in zip(step_seconds, between_seconds, strict=True)]
    return median_of_parts(between_seconds, total)
