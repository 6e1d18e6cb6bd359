"""torch accelerate: Hugging Face Accelerate around DistributedDataParallel, to measure what the wrapper costs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import nn

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.ddp import DistributedDataParallel


class Accelerate(DistributedDataParallel):
    """Accelerate joins the processes, wraps model and optimizer, and does the backward pass; the batches are ours."""

    def join(self, timeout: timedelta) -> None:
        group = InitProcessGroupKwargs(backend=self.process_group_backend, timeout=timeout)
        if self.config.cluster.shared:
            os.environ["LOCAL_RANK"] = "0"  # by which it chooses the GPU of a process
        wrapping = DistributedDataParallelKwargs(broadcast_buffers=False)
        # "no": the precision is that of the model's computation, and never that of ACCELERATE_MIXED_PRECISION.
        self.wrapper = Accelerator(
            cpu=self.config.cluster.device_type == "cpu", mixed_precision="no", kwargs_handlers=[group, wrapping]
        )

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        return self.wrapper.prepare_model(computation)

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return self.wrapper.prepare_optimizer(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        self.wrapper.backward(loss)


class AccelerateBackend(TorchBackend):
    """A backend whose replicas Accelerate makes."""

    packages = (*TorchBackend.packages, "accelerate")
    parallelism = Accelerate
