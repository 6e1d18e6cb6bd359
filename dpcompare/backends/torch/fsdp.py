"""torch fsdp: fully_shard (FSDP2) under torchrun; every process keeps its part of each parameter, gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dpcompare.backends.torch.ddp import DistributedDataParallel


class FullyShardedDataParallel(DistributedDataParallel):
    """A layer's parameters are whole only while it computes, forward and backward."""

    @property
    def parameter_layout(self) -> torch.memory_format:
        return torch.contiguous_format  # fully_shard takes no other; what layers compute follows the images' layout

    def replicate(self, model: nn.Module) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (self.num_processes,))
        for layer in _layers(self.model):
            fully_shard(layer, mesh=mesh)
        # The last layers' too, which it would otherwise leave whole: what reads the model expects parts.
        return fully_shard(model, mesh=mesh, reshard_after_forward=True)

    @property
    def optimizer_kernels(self) -> str:
        # torch has no fused kernel of SGD for tensors that are shared out.
        fused = super().optimizer_kernels
        return "foreach" if fused == "fused" and self.workload.optimizer == "sgd" else fused

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"optimizer_kernels": self.optimizer_kernels, "parameter_layout": "NCHW"}

    @contextmanager
    def gradient_sync(self, gradients: bool) -> Iterator[None]:
        self.replicated.set_requires_gradient_sync(gradients)
        yield

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else super().whole(tensor)

    def fill(self, tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
        if not isinstance(tensor, DTensor):
            return super().fill(tensor, values)
        everything = torch.from_numpy(values).to(tensor.device, tensor.dtype)
        # Every process has the same values, so none has to send them.
        own = distribute_tensor(everything, tensor.device_mesh, tensor.placements, src_data_rank=None)
        with torch.no_grad():
            tensor.copy_(own)
        return None


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """What is gathered together: the children of a model, and of those that are sequences of layers each layer."""
    for child in model.children():
        if isinstance(child, nn.Sequential):
            yield from _layers(child)
        elif any(True for _ in child.parameters()):
            yield child
