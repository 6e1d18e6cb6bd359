"""What processes measured step by step, and how far a run has come, from their events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dpcompare.config.run import RunConfig
from dpcompare.results.decisions import decoded
from dpcompare.results.events import Evaluated, Event, Ready, StepsTrained


class ProcessSeries:
    """What one process measured in the present attempt; every list has one entry per step."""

    def __init__(self, events: Iterable[Event], *, steps_together: bool = True) -> None:
        self.steps_together = steps_together
        """Whether all processes make a step together, as the mode has it."""
        self.losses: list[float] = []
        """Sums over the samples of this process."""
        self.global_counts: list[int] = []
        self.step_seconds: list[float] = []
        self.data_seconds: list[float] = []
        self.host_overhead_seconds: list[float] = []
        self.compiled_steps: list[int] = []
        """Numbers of the steps for which the framework traced or compiled something."""
        self.apart_seconds: list[float] = []
        """Evaluations, checkpoints and the writing of traces before each step."""
        self.joules: list[float] = []
        """Fewer entries than steps where devices have no counter."""
        self.are_timed = True
        """Whether each step has seconds of its own, and none an equal share of a window's."""
        self.decisions: dict[str, list[int]] = {}
        """What the host decided -> its digest of each step; empty in results before 0.2.0."""
        self.data_parallel_rank = 0
        """Which part of every global batch the process reads."""
        self.evaluations: list[Evaluated] = []
        """One entry per evaluation."""
        self.first_step = 0
        """Steps trained before this attempt."""
        self.num_steps = 0
        """Steps trained in all attempts together."""
        self.first_step_at: float | None = None
        """When the first step of this attempt was logged, seconds since the epoch."""
        for event in events:
            match event:
                case Ready():
                    self.first_step = self.num_steps = event.first_step
                    self.data_parallel_rank = event.data_parallel_rank
                case StepsTrained():
                    self._add(event)
                case Evaluated():
                    self.evaluations.append(event)

    def _add(self, event: StepsTrained) -> None:
        self.first_step_at = self.first_step_at or event.time
        self.num_steps = event.step
        self.losses += event.losses
        self.global_counts += event.global_counts
        self.step_seconds += event.step_seconds
        self.data_seconds += event.data_seconds
        self.host_overhead_seconds += event.host_overhead_seconds
        self.compiled_steps += event.compiled_steps or ()
        self.apart_seconds += event.apart_seconds or [0.0] * len(event.step_seconds)
        self.joules += event.joules or ()
        self.are_timed = self.are_timed and event.are_timed is not False
        for what, digests in (event.decisions or {}).items():
            self.decisions.setdefault(what, []).extend(decoded(digests).tolist())

    @property
    def has_energy(self) -> bool:
        """Whether the energy of every step was counted."""
        return len(self.joules) == len(self.step_seconds)

    def durations(self, steps: slice) -> list[float]:
        """The seconds that each of some steps took.

        Where replicas do not step together, a step returns before it is made, and its time is spent between two steps,
        where losses are read: so the time before a step counts as its part.
        """
        seconds = self.step_seconds[steps]
        if self.steps_together:
            return seconds
        return [sum(pair) for pair in zip(seconds, self.host_overhead_seconds[steps], strict=True)]


def series_of_trainers(config: RunConfig, events: Iterable[Event]) -> list[ProcessSeries]:
    """The series of every process that trains."""
    by_rank: dict[int, list[Event]] = {rank: [] for rank in range(config.topology.num_processes)}
    for event in events:
        by_rank[event.process_rank].append(event)
    steps_together = config.mode_row.steps_together
    return [ProcessSeries(by_rank[rank], steps_together=steps_together) for rank in config.topology.trainers]


class RunState:
    """How far a run is, from the events of its processes."""

    def __init__(self, trainers: Iterable[int]) -> None:
        """Args:
        trainers: ranks of the processes that train.
        """
        self.step = 0
        """Finished by every process."""
        self.num_steps: int | None = None
        self.loss: float | None = None
        """The loss of that step, over the global batch."""
        self.evaluated: list[tuple[int, float, float, int]] = []
        """(epoch, accuracy, loss, samples)"""
        # Steps of each process that the others have not all reported yet.
        self._losses: dict[int, list[float]] = {rank: [] for rank in trainers}
        self._counts: list[int] = []
        self._evaluations: defaultdict[int, list[Evaluated]] = defaultdict(list)
        self._speeds: dict[int, float] = {}

    def add(self, event: Event) -> None:
        if event.process_rank not in self._losses:  # of one that only serves the others
            return
        match event:
            case Ready():
                self._start(event)
            case StepsTrained():
                self._train(event)
            case Evaluated():
                self._evaluate(event)

    @property
    def figures(self) -> str:
        """Loss, and images per second of the slowest process; empty before the first step."""
        return "" if self.loss is None else f"loss {self.loss:.4f}, {min(self._speeds.values()):.1f} images/s"

    def _start(self, event: Ready) -> None:
        """At the start, and where all processes start again from a checkpoint."""
        self.num_steps, self.step = event.steps, event.first_step
        self._losses[event.process_rank].clear()
        if event.process_rank == 0:
            self._counts.clear()
            self._evaluations.clear()

    def _train(self, event: StepsTrained) -> None:
        rank = event.process_rank
        self._losses[rank] += event.losses
        if rank == 0:
            self._counts += event.global_counts
        self._speeds[rank] = sum(event.global_counts) / sum(event.step_seconds)
        complete = min(len(self._counts), *map(len, self._losses.values()))
        if complete == 0:
            return
        self.loss = sum(losses[complete - 1] for losses in self._losses.values()) / self._counts[complete - 1]
        for losses in self._losses.values():
            del losses[:complete]
        del self._counts[:complete]
        self.step += complete

    def _evaluate(self, event: Evaluated) -> None:
        parts = self._evaluations[event.epoch]
        parts.append(event)
        if len(parts) == len(self._losses) and (count := sum(part.count for part in parts)):
            accuracy = sum(part.correct for part in parts) / count
            self.evaluated.append((event.epoch, accuracy, sum(part.loss_sum for part in parts) / count, count))
