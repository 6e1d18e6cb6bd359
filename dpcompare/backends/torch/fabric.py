"""torch fabric: Lightning Fabric around DistributedDataParallel, to measure what the wrapper costs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

import torch
from lightning.fabric import Fabric as LightningFabric
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.ddp import BUFFERS_STAY, DistributedDataParallel


class Fabric(DistributedDataParallel):
    """Fabric joins the processes, wraps model and optimizer, and does the backward pass; the batches are ours."""

    def join(self, timeout: timedelta) -> None:
        cluster = self.config.cluster
        # On a shared GPU it would look for as many as there are processes.
        shared = [self.device] * cluster.devices_per_node if cluster.shared else None
        strategy = DDPStrategy(
            parallel_devices=shared, process_group_backend=self.process_group_backend, timeout=timeout, **BUFFERS_STAY
        )
        self.wrapper = LightningFabric(
            accelerator="cpu" if cluster.device_type == "cpu" else "cuda",
            strategy=strategy,
            devices=1 if shared else cluster.devices_per_node,
            num_nodes=cluster.num_nodes,
        )
        self.wrapper.launch()

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        return self.wrapper.setup_module(computation)

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return self.wrapper.setup_optimizers(optimizer)

    def backward(self, loss: torch.Tensor) -> None:
        self.wrapper.backward(loss)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        return self.wrapper.no_backward_sync(self.replicated, enabled=not (enabled and self.config.sync_gradients))


class FabricBackend(TorchBackend):
    """A backend whose replicas Fabric makes."""

    packages = (*TorchBackend.packages, "lightning")
    parallelism = Fabric
