"""The log of trained steps: collected in memory, written as events a few times per second."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpcompare.backends.base import Backend
from dpcompare.results.events import Alive, EventLog, StepsTrained

SECONDS_BETWEEN_EVENTS = 0.25
SECONDS_BETWEEN_SIGNS = 5.0
"""Of progress, while there is no step to log."""


class NonFiniteError(ArithmeticError):
    """A loss or a weight is infinite or not a number."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One step: what it computed, and what the clock said."""

    loss: Any
    """The backend's handle of it: the number may not be computed yet."""
    global_count: int
    """Samples of the global batch."""
    step_seconds: float
    data_seconds: float
    """The part of `step_seconds` spent waiting for the batches."""
    host_overhead_seconds: float
    """Between the end of the step before and the start of this one."""


class StepLog:
    """Collects steps and reads their losses from the device in bulk, since reading waits for it."""

    def __init__(self, backend: Backend, events: EventLog) -> None:
        self._backend = backend
        self._events = events
        self._steps: list[MeasuredStep] = []
        self._joules: list[float] = []
        self._last_step = 0
        self._written_at = float("-inf")  # the first step is written at once

    def add(self, step: int, measured: MeasuredStep, joules: float | None) -> None:
        """Log step number `step`; `joules` is None where devices have no counter."""
        self._last_step = step
        self._steps.append(measured)
        if joules is not None:
            self._joules.append(joules)
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
        self._events.append(
            StepsTrained(
                step=self._last_step,
                losses=losses,
                global_counts=[step.global_count for step in self._steps],
                step_seconds=[step.step_seconds for step in self._steps],
                data_seconds=[step.data_seconds for step in self._steps],
                host_overhead_seconds=[step.host_overhead_seconds for step in self._steps],
                joules=list(self._joules) or None,
            )
        )
        self._steps.clear()
        self._joules.clear()
        self._written_at = time.monotonic()
        if self._backend.config.on_nan == "stop":
            self._require_finite(losses)

    def _require_finite(self, losses: Sequence[float]) -> None:
        bad = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is not None:
            raise NonFiniteError(
                f"the loss of step {self._last_step - len(losses) + 1 + bad} is {losses[bad]} in process "
                f"{self._backend.process_rank}; lower the learning rate, or pass --on-nan continue"
            )

    def alive(self) -> None:
        """Log that there is progress where no step is made."""
        if time.monotonic() - self._written_at >= SECONDS_BETWEEN_SIGNS:
            self._events.append(Alive())
            self._written_at = time.monotonic()
