"""The end of a training at its target: every process decides it by the whole evaluation, so all stop at one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dpcompare.config.run import RunConfig
from dpcompare.results.computed import is_reached
from dpcompare.results.events import Evaluated, EventTail

SECONDS_BETWEEN_LOOKS = 0.02


class Target:
    """The target of a run that ends where it is reached."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self._target = config.target_accuracy if config.stop_at_target else None
        self._num_trainers = config.topology.num_trainers
        self._tail = EventTail(run_dir, range(self._num_trainers))
        self._parts: dict[int, dict[int, Evaluated]] = {}
        """Step -> rank -> its part of the evaluation."""

    def is_reached(self, step: int, still_waiting: Callable[[], None]) -> bool:
        """Whether the evaluation after a step, which this process has logged, ends the training.

        Each process has evaluated its part of the split, and reads those of the others in their events: these are
        where every process of a run can read them, whatever its framework exchanges gradients with. No clock runs.

        Args:
            step: that was evaluated.
            still_waiting: called again and again until all have evaluated it.
        """
        if self._target is None:
            return False
        while len(parts := self._parts.get(step, {})) < self._num_trainers:
            self._read()
            still_waiting()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        accuracy = sum(part.correct for part in parts.values()) / sum(part.count for part in parts.values())
        return is_reached(accuracy, self._target)

    def _read(self) -> None:
        for event in self._tail.new_events():
            if isinstance(event, Evaluated):
                self._parts.setdefault(event.step, {})[event.process_rank] = event
        if self._tail.damaged:
            raise RuntimeError(
                f"the events of process {self._tail.damaged[0]} are damaged, so its part of an evaluation is not known"
            )
