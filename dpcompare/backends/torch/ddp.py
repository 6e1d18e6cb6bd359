"""torch ddp: DistributedDataParallel under torchrun, one process per device."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from torch import distributed, nn

from dpcompare.backends.torch.backend import TorchBackend

# torch 2.15 renamed it.
_BUFFER_ARGUMENT = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(nn.parallel.DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)


class DistributedDataParallel(TorchBackend):
    """Rank and world size come from torchrun's environment."""

    def connect(self) -> None:
        super().connect()
        if self.device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        # Longer than the launcher waits, which can tell who hangs; its own default is half an hour.
        seconds = max(self.config.start_timeout, self.config.progress_timeout) + 60
        distributed.init_process_group(
            self.config.mode_row.collective[self.config.cluster.device_type], timeout=timedelta(seconds=seconds)
        )
        self.process_rank = distributed.get_rank()
        self.num_processes = self.num_replicas = self.gradient_average_over = distributed.get_world_size()

    def replicate(self, model: nn.Module) -> nn.Module:
        views = self.config.tuning["gradient_buckets"] != "copies"
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # Running statistics do not enter a training step; they are exchanged when they are read.
            **{_BUFFER_ARGUMENT: False},
            gradient_as_bucket_view=views,
            # Not where the exchange is skipped at times.
            static_graph=views and self.workload.accumulate == 1 and self.config.exchange_gradients,
        )

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        return _AllReduce.apply(tensor)

    def exchanging(self, gradients: bool) -> AbstractContextManager[None]:
        return nullcontext() if gradients and self.config.exchange_gradients else self.replicated.no_sync()

    def broadcast_buffers(self) -> None:
        for buffer in self.model.buffers():
            distributed.broadcast(buffer, src=0)

    def devices(self) -> list[str]:
        if self.device.type == "cpu":
            return [self.config.cluster.devices[self.process_rank]]
        return [torch.cuda.get_device_name(self.device)]

    def peak_device_memory_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        distributed.barrier()

    def teardown(self) -> None:
        self.barrier()
        distributed.destroy_process_group()


class _AllReduce(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.contiguous().clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        return total
