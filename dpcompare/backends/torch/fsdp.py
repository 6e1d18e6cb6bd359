"""torch fsdp: fully_shard (FSDP2) under torchrun, with shards of parameters, gradients and slots in each process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.ddp import DistributedDataParallel
from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.system.type_names import Array


class FullyShardedDataParallel(DistributedDataParallel):
    """A layer's parameters are gathered only while it computes, forward and backward."""

    def connect(self) -> None:
        super().connect()
        self.replication_factor = 1

    def parameter_layout(self, features: torch.memory_format) -> torch.memory_format:
        return torch.contiguous_format  # fully_shard takes no other; what layers compute follows the images' layout

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (self.num_processes,))
        for layer in _layers(model):
            fully_shard(layer, mesh=mesh)
        # The last layers' too, which it would otherwise leave gathered: what reads the model expects shards.
        sharded: nn.Module = fully_shard(computation, mesh=mesh, reshard_after_forward=True)  # type: ignore[assignment]
        return sharded  # the class of the module and FSDPModule in one

    @property
    def optimizer_kernels(self) -> str:
        chosen = super().optimizer_kernels
        has_fused = OPTIMIZERS[self.config.workload.optimizer].fused_for_shards
        return "foreach" if chosen == "fused" and not has_fused else chosen

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "optimizer_kernels": self.optimizer_kernels, "parameter_layout": "NCHW"}

    def messages(self, model: nn.Module) -> tuple[int, ...]:
        layers = list(_layers(model))
        in_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
        own = [_num_bytes(parameter) for parameter in model.parameters() if id(parameter) not in in_layers]
        of_layers = [sum(map(_num_bytes, layer.parameters())) for layer in layers]
        return (sum(own), *of_layers) if own else tuple(of_layers)

    @contextmanager
    def gradient_sync(self, *, enabled: bool) -> Iterator[None]:
        self.replicated.set_requires_gradient_sync(enabled)  # type: ignore[operator]  # an FSDPModule
        yield

    def full_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else super().full_tensor(tensor)

    def local_shard(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def all_reduce_shards(self, tensor: torch.Tensor) -> torch.Tensor:
        distributed.all_reduce(tensor)
        return tensor

    def copy_into(self, tensor: torch.Tensor, values: Array) -> None:
        if not isinstance(tensor, DTensor):
            return super().copy_into(tensor, values)
        full = torch.from_numpy(values).to(tensor.device, tensor.dtype)
        # Every process has the same values, so none has to send them.
        sharded = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
        with torch.no_grad():
            tensor.copy_(sharded)
        return None


class FsdpBackend(TorchBackend):
    """A backend whose replicas are processes, which hold a shard of the model each."""

    parallelism = FullyShardedDataParallel


def _num_bytes(parameter: nn.Parameter) -> int:
    """Bytes of the whole parameter, however it is sharded."""
    return parameter.numel() * parameter.element_size()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """What is gathered at once: the children of a model, or each layer of those that are sequences of layers.

    None of a model of Keras, whose layers are not called as modules: it is gathered as a whole.
    """
    if getattr(model, "computes_as_one", False):
        return
    for child in model.children():
        if isinstance(child, nn.Sequential):
            yield from _layers(child)
        elif any(True for _ in child.parameters()):
            yield child
