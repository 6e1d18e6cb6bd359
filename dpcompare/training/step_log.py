"""The log of trained steps: collected in memory, written as events a few times per second."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from dpcompare.backends.base import Backend
from dpcompare.results.events import Alive, EventLog, StepsTrained
from dpcompare.training.window import MeasuredStep

SECONDS_BETWEEN_EVENTS = 0.25
SECONDS_BETWEEN_SIGNS = 5.0
"""Of progress, while there is no step to log."""


class NonFiniteError(ArithmeticError):
    """A loss or a weight is infinite or not a number."""


class StepLog:
    """Collects steps and reads their losses from the device in bulk, since reading waits for it."""

    def __init__(self, backend: Backend, events: EventLog) -> None:
        self._backend = backend
        self._events = events
        self._steps: list[MeasuredStep] = []
        self._written_at = float("-inf")  # the first step is written at once

    def add(self, measured: Sequence[MeasuredStep]) -> None:
        """Log the steps of a window, which the device has finished."""
        self._steps += measured
        if time.monotonic() - self._written_at >= SECONDS_BETWEEN_EVENTS:
            self.write()

    def write(self) -> None:
        """Write the steps since the last call.

        Raises:
            NonFiniteError: a loss is not finite, and the run is to stop then.
        """
        if not self._steps:
            return
        losses = self._backend.read([step.loss for step in self._steps]).tolist()
        last_step = self._steps[-1].step
        apart = [step.apart_seconds for step in self._steps]
        joules = [step.joules for step in self._steps if step.joules is not None]
        self._events.append(
            StepsTrained(
                step=last_step,
                losses=losses,
                global_counts=[step.global_count for step in self._steps],
                step_seconds=[step.step_seconds for step in self._steps],
                data_seconds=[step.data_seconds for step in self._steps],
                host_overhead_seconds=[step.host_overhead_seconds for step in self._steps],
                compiled_steps=[step.step for step in self._steps if step.is_compiled] or None,
                apart_seconds=apart if any(apart) else None,
                joules=joules or None,
                are_timed=None if all(step.is_timed for step in self._steps) else False,
            )
        )
        self._steps.clear()
        self._written_at = time.monotonic()
        if self._backend.config.on_nan == "stop":
            self._require_finite(losses, last_step)

    def _require_finite(self, losses: Sequence[float], last_step: int) -> None:
        bad = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is not None:
            raise NonFiniteError(
                f"the loss of step {last_step - len(losses) + 1 + bad} is {losses[bad]} in process "
                f"{self._backend.process_rank}; lower the learning rate, or pass --on-nan continue"
            )

    def alive(self) -> None:
        """Log that there is progress where no step is made."""
        if time.monotonic() - self._written_at >= SECONDS_BETWEEN_SIGNS:
            self._events.append(Alive())
            self._written_at = time.monotonic()
