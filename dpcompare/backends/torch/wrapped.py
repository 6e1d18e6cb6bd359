"""A library's wrapper around DistributedDataParallel, which makes the backward pass and the optimizer's step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from dpcompare.backends.torch.ddp import DistributedDataParallel
from dpcompare.backends.torch.optimizer import Kernel


class WrappedDistributedDataParallel(DistributedDataParallel):
    """A mode makes `wrapper` where it joins the other processes, and says how that takes an optimizer."""

    wrapper: Any

    @abstractmethod
    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The wrapper's optimizer, whose step takes the place of this one's."""

    def build_optimizer(self) -> Kernel:
        optimizer = super().build_optimizer()
        self._wrapped = self.wrap_optimizer(optimizer)
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        self.wrapper.backward(loss)

    def step(self) -> None:
        self._wrapped.step()
