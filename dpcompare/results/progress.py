"""The progress of a run, as its events show it."""

from __future__ import annotations

from collections import defaultdict

from dpcompare.results.events import Evaluated, Event, Ready, StepsTrained


class RunState:
    """How far a run is, from the events of its processes."""

    def __init__(self, num_processes: int) -> None:
        self.step = 0
        """Finished by every process."""
        self.num_steps: int | None = None
        self.loss: float | None = None
        """Of that step, over the global batch."""
        self.evaluated: list[tuple[int, float, float, int]] = []
        """(epoch, accuracy, loss, samples)"""
        # Steps of each process that the others have not all reported yet.
        self._losses: dict[int, list[float]] = {rank: [] for rank in range(num_processes)}
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
