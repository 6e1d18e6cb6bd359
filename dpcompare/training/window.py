"""The clock of the measured loop: steps that are timed together, written as events a few times per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpcompare.backends.base import Backend
from dpcompare.results.decisions import encoded
from dpcompare.results.events import Alive, EventLog, StepsTrained
from dpcompare.system.energy import EnergyMeter

SECONDS_BETWEEN_EVENTS = 0.25
SECONDS_BETWEEN_SIGNS = 5.0
"""Seconds between signs of progress, while there is no step to log."""


class NonFiniteError(ArithmeticError):
    """A loss or a weight is infinite or not a number."""


class StepLog:
    """Collects steps and reads their losses from the device in bulk, since reading waits for it."""

    def __init__(self, backend: Backend, events: EventLog) -> None:
        self._backend = backend
        self._events = events
        self._steps: list[MeasuredStep] = []
        self._written_at = float("-inf")  # the first step is written at once
        self.reading_seconds = 0.0
        """What reading losses has taken but for the first time, which waits for the device."""

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
        start = time.perf_counter()
        losses = self._backend.read([step.loss for step in self._steps]).tolist()
        if math.isfinite(self._written_at):  # the first time a GPU loads what reading takes
            self.reading_seconds += time.perf_counter() - start
        last_step = self._steps[-1].step
        apart = [step.apart_seconds for step in self._steps]
        joules = [step.joules for step in self._steps if step.joules is not None]
        decisions = [step.decisions() for step in self._steps]
        self._events.append(
            StepsTrained(
                step=last_step,
                losses=losses,
                global_counts=[step.global_count for step in self._steps],
                step_seconds=_to_nanoseconds(step.step_seconds for step in self._steps),
                data_seconds=_to_nanoseconds(step.data_seconds for step in self._steps),
                host_overhead_seconds=_to_nanoseconds(step.host_overhead_seconds for step in self._steps),
                compiled_steps=[step.step for step in self._steps if step.is_compiled] or None,
                apart_seconds=apart if any(apart) else None,
                joules=joules or None,
                are_timed=None if all(step.is_timed for step in self._steps) else False,
                decisions={what: encoded([of[what] for of in decisions]) for what in decisions[0]} or None,
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


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One step: what it computed, and what the clock said.

    Of a window of several steps the host measures only the whole, of whose joules each step has an equal share. Its
    seconds are those between the ends of the steps where the device has taken them, else an equal share too.
    """

    step: int
    loss: Any
    """The backend's handle of it: the number may not be computed yet."""
    global_count: int
    """Samples of the global batch."""
    data_seconds: float
    """The part of `step_seconds` spent waiting for the batches."""
    decisions: Callable[[], Mapping[str, int]] = dict
    """Returns what the host decided -> a digest, see `dpcompare.training.decisions`; called when no clock runs."""
    is_compiled: bool = False
    """Whether the framework traced or compiled something for it."""
    step_seconds: float = 0.0
    is_timed: bool = True
    """Whether these are the step's own, and no share of a window's."""
    host_overhead_seconds: float = 0.0
    """Between the end of the window before and the start of this one; its first step has it."""
    apart_seconds: float = 0.0
    """Evaluations, checkpoints and the writing of a trace in that time, which are left out of it."""
    joules: float | None = None
    """Energy of the metered devices; None where they have no counter."""


@dataclass
class Window:
    """Steps that are measured together; `close` waits for the device."""

    backend: Backend
    energy: EnergyMeter
    previous_end: float
    """When the last window, evaluation or checkpoint ended, by `time.perf_counter`."""
    apart_seconds: float = 0.0
    """Left out since the last window."""
    steps: list[MeasuredStep] = field(default_factory=list)

    def leave_out(self) -> None:
        """Count what has passed since the last window as neither a step nor the time between two."""
        now = time.perf_counter()
        self.apart_seconds += now - self.previous_end
        self.previous_end = now

    def begin_step(self) -> float:
        """Now; the first step begins the window."""
        if not self.steps:
            self._joules_before = self.energy.joules()
            self._start = time.perf_counter()
            return self._start
        return time.perf_counter()

    def close(self, *, drain: bool) -> list[MeasuredStep]:
        """The steps since the last time, with their shares of the time until the device has finished them all."""
        self.backend.synchronize(drain=drain)
        end = time.perf_counter()
        seconds = self._seconds_of_steps(end - self._start)
        joules = _difference(self._joules_before, self.energy.joules())
        count = len(self.steps)
        waited = sum(step.data_seconds for step in self.steps)
        measured = [
            replace(
                step,
                step_seconds=(end - self._start) / count if seconds is None else seconds[number],
                is_timed=seconds is not None,
                data_seconds=waited / count,
                host_overhead_seconds=self._start - self.previous_end if number == 0 else 0.0,
                apart_seconds=self.apart_seconds if number == 0 else 0.0,
                joules=None if joules is None else joules / count,
            )
            for number, step in enumerate(self.steps)
        ]
        self.steps.clear()
        self.previous_end, self.apart_seconds = end, 0.0
        return measured

    def _seconds_of_steps(self, whole: float) -> list[float] | None:
        """What each step took, together as long as the window; None where only that is known.

        The first step has what is left of it: the device began with nothing to do, so that there is no end before.
        """
        between = self.backend.seconds_between_steps()
        if len(self.steps) == 1:
            return [whole]
        if between is None or len(between) != len(self.steps) - 1 or sum(between) >= whole:
            return None
        return [whole - sum(between), *between]


def _to_nanoseconds(seconds: Iterable[float]) -> list[float]:
    """Without the digits that the clock does not have, which would make half of what is written."""
    return [round(value, 9) for value in seconds]


def _difference(before: float | None, after: float | None) -> float | None:
    """Joules between two readings; None where there is no counter."""
    return None if before is None or after is None else after - before
