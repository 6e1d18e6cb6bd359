"""What a training waits for beside its devices: storage, checkpoints, and the work that failures of nodes undo."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpcompare.projection.collectives import Interconnect
from dpcompare.projection.step import Step, StepWork, predict_step


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Checkpoints and failures; each is left out where its figures are None or 0."""

    checkpoint_every: int | None = None
    """Steps."""
    checkpoint_seconds: float = 0.0
    """Of writing one, in which no step is made."""
    node_mtbf_seconds: float | None = None
    """Mean time between failures of one node; those of several nodes are independent."""
    restart_seconds: float = 0.0
    """From a failure to the first step after it."""

    def fraction_training(self, step_seconds: float, nodes: int) -> float:
        """The part of the time in which steps are made that count; 0 where failures come faster than restarts.

        A failure costs the restart and, on average, half of what is made between two checkpoints (Young 1974, Daly
        2006).
        """
        fraction = 1.0
        between = 0.0
        if self.checkpoint_every:
            between = self.checkpoint_every * step_seconds
            fraction = between / (between + self.checkpoint_seconds)
        if self.node_mtbf_seconds:
            lost = (self.restart_seconds + between / 2) * nodes / self.node_mtbf_seconds
            fraction *= max(0.0, 1 - lost)
        return fraction


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The storage that all nodes read from, and the overheads."""

    storage_bytes_per_second: float | None = None
    """None: reading keeps up, as it was measured."""
    overheads: Overheads = field(default_factory=Overheads)

    def training(self, work: StepWork, interconnect: Interconnect) -> tuple[Step, float]:
        """A step, and the part of the time in which steps are made that count."""
        step = predict_step(work, interconnect, storage_bytes_per_second=self.storage_bytes_per_second)
        return step, self.overheads.fraction_training(step.seconds, interconnect.all_nodes)

    def images_per_second(self, work: StepWork, interconnect: Interconnect) -> float:
        """Of all devices, over the whole training."""
        step, fraction = self.training(work, interconnect)
        return step.images_per_second * fraction

    def efficiency(self, work: StepWork, interconnect: Interconnect) -> float:
        """Of the whole training; see `Step.efficiency`."""
        step, fraction = self.training(work, interconnect)
        return step.efficiency * fraction
