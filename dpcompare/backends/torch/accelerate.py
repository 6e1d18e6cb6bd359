"""torch accelerate: Hugging Face Accelerate around DistributedDataParallel, to tell what the wrapper costs."""

from __future__ import annotations

from datetime import timedelta

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import nn

from dpcompare.backends.torch.ddp import DistributedDataParallel


class Accelerate(DistributedDataParallel):
    """Accelerate joins the processes, wraps model and optimizer, and does the backward pass; the batches are ours."""

    packages = (*DistributedDataParallel.packages, "accelerate")

    def join(self, timeout: timedelta) -> None:
        group = InitProcessGroupKwargs(backend=self.collective_of_mode, timeout=timeout)
        wrapping = DistributedDataParallelKwargs(broadcast_buffers=False)
        self._accelerator = Accelerator(cpu=self.config.cluster.device_type == "cpu", kwargs_handlers=[group, wrapping])

    def replicate(self, model: nn.Module) -> nn.Module:
        return self._accelerator.prepare_model(model)

    def build_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer()
        self._wrapped = self._accelerator.prepare_optimizer(optimizer)
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def step(self) -> None:
        self._wrapped.step()
