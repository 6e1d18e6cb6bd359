"""When gradients are ready: hooks in the backward pass of one warm-up step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from dpcompare.models.state import Gradients, ready_curve


class GradientTimes:
    """The shares of a step after which gradients are ready; observes one step, and costs the others nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._device = device
        self._start: Any = None
        self._backward_end: Any = None
        self._end: Any = None
        self._ready: dict[int, Any] = {}

    @contextmanager
    def observed(self) -> Iterator[Callable[[], None]]:
        """Around a training step; gives what is to be called after each of its backward passes, the last one counts."""
        with ExitStack() as hooks:
            for number, parameter in enumerate(self._parameters):
                hooks.callback(parameter.register_hook(partial(self._is_ready, number)).remove)
            self._start = self._now()
            yield self._backward_ended
            self._end = self._now()

    def _is_ready(self, number: int, gradient: torch.Tensor) -> None:
        self._ready[number] = self._now()  # of several micro-batches the last one counts

    def _backward_ended(self) -> None:
        self._backward_end = self._now()

    def _now(self) -> Any:
        """A moment: on a GPU one of its own, since the host runs ahead of it."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def found(self) -> Gradients:
        """What was observed; sizes alone where no step was."""
        sizes = [parameter.numel() * parameter.element_size() for parameter in self._parameters]
        if self._end is None or not self._ready:
            return Gradients(num_bytes=sum(sizes))
        whole = self._seconds_until(self._end)
        shares = {number: self._seconds_until(moment) / whole for number, moment in self._ready.items()}
        return Gradients(
            num_bytes=sum(sizes),
            ready=ready_curve(shares, dict(enumerate(sizes))),
            backward_ends=round(self._seconds_until(self._backward_end) / whole, 4),
        )

    def _seconds_until(self, moment: Any) -> float:
        if self._device.type == "cpu":
            return float(moment - self._start)
        moment.synchronize()
        return float(self._start.elapsed_time(moment)) / 1000
