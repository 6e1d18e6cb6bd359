"""torch fabric: Lightning Fabric around DistributedDataParallel, to tell what the wrapper costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from lightning.fabric import Fabric as LightningFabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from dpcompare.backends.torch.ddp import BUFFERS_STAY, DistributedDataParallel


class Fabric(DistributedDataParallel):
    """Fabric joins the processes, wraps model and optimizer, and does the backward pass; the batches are ours."""

    packages = (*DistributedDataParallel.packages, "lightning")

    def join(self, timeout: timedelta) -> None:
        cluster = self.config.cluster
        strategy = DDPStrategy(process_group_backend=self.collective_of_mode, timeout=timeout, **BUFFERS_STAY)
        self._fabric = LightningFabric(
            accelerator="cpu" if cluster.device_type == "cpu" else "cuda",
            strategy=strategy,
            devices=cluster.devices_per_node,
            num_nodes=cluster.num_nodes,
        )
        self._fabric.launch()

    def replicate(self, model: nn.Module) -> nn.Module:
        return self._fabric.setup_module(model)

    def build_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer()
        self._wrapped = self._fabric.setup_optimizers(optimizer)
        return optimizer

    def backward(self, loss: torch.Tensor) -> None:
        self._fabric.backward(loss)

    def step(self) -> None:
        self._wrapped.step()

    def exchanging(self, gradients: bool) -> Any:
        return self._fabric.no_backward_sync(
            self.replicated, enabled=not (gradients and self.config.exchange_gradients)
        )
