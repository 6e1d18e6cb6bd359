"""What a long training loses beside its steps: checkpoints, and the work that failures of nodes undo."""

from __future__ import annotations

from dataclasses import dataclass


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
