"""torch ddp: DistributedDataParallel under torchrun, one process per device."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from torch import distributed, nn

from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.parallel import Parallel
from dpcompare.backends.torch.stages import StagedModel, seconds_of_layers
from dpcompare.models.architectures import MODELS
from dpcompare.models.costs import balanced_cuts, seconds_of_stages

# Running statistics do not enter a training step; they are broadcast when they are read. (torch 2.15 renamed it.)
BUFFERS_STAY: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(nn.parallel.DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}


class DistributedDataParallel(Parallel):
    """Rank and world size come from torchrun's environment."""

    replicas_group: distributed.ProcessGroup | None = None
    """The processes that hold the same part of the model; None: all."""
    _stages: dict[str, Any] | None = None
    """Where a model was cut, and why."""

    def connect(self) -> None:
        super().connect()
        if self.device.type == "cuda":
            self.device = self.local_devices()[0]
            torch.cuda.set_device(self.device)
        # Longer than the launcher waits, which knows how to name who hangs; torch's default is half an hour.
        seconds = max(self.config.seconds_to_start, self.config.progress_timeout) + 60
        self.join(timedelta(seconds=seconds))
        self.process_rank = distributed.get_rank()
        self.num_processes = self.num_replicas = self.replication_factor = distributed.get_world_size()
        self.gradient_average_over = self.num_processes

    def local_devices(self) -> list[torch.device]:
        count = self.config.topology.devices_per_process
        if self.device.type == "cpu":
            return [self.device] * count
        first = 0 if self.config.cluster.shared else int(os.environ["LOCAL_RANK"]) * count
        return [torch.device("cuda", first + number) for number in range(count)]

    @property
    def process_group_backend(self) -> str:
        """torch's name of what carries the collectives, also in a process group of one."""
        # Since 2.15 torch's `nccl` takes one GPU per process, that of its local rank.
        takes_one = hasattr(distributed.distributed_c10d, "ProcessGroupNCCL2")
        if self.config.collective == "nccl" and self.config.topology.devices_per_process > 1 and takes_one:
            return "nccl-legacy"
        return self.config.collective

    def join(self, timeout: timedelta) -> None:
        """Join the process group of all processes."""
        # Told the GPU, NCCL connects here and not in the first step, and `barrier` need not guess it. With stages a
        # process has several GPUs, or sends between two processes, for which NCCL connects as they come.
        names_gpu = self.config.collective == "nccl" and self.config.stages == 1
        distributed.init_process_group(
            self.process_group_backend, timeout=timeout, device_id=self.device if names_gpu else None
        )

    def place_stages(self, model: nn.Module, micro_batch: Callable[[], torch.Tensor]) -> nn.Module:
        if self.config.stages == 1:
            return model
        cuts = self.cuts_of(model, micro_batch())
        return StagedModel(model, MODELS[self.config.workload.model].layers, cuts, self.local_devices())

    def cuts_of(self, model: nn.Module, images: torch.Tensor) -> tuple[int, ...]:
        """Where to cut a model, all of whose layers are still on this device, into stages: measured by process 0."""
        # On every process, so that one keeps another busy as in training; what counts is what process 0 found.
        measured = [seconds_of_layers(model, images, self.synchronize)]
        distributed.broadcast_object_list(measured, src=0)
        (seconds,) = measured
        cuts = balanced_cuts(seconds, self.config.stages)
        layers = MODELS[self.config.workload.model].layers
        self._stages = {
            "begin_with": [layers[cut][0] for cut in (0, *cuts)],
            "milliseconds": [round(1000 * each, 3) for each in seconds_of_stages(seconds, cuts)],
        }
        return cuts

    def settings(self) -> dict[str, Any]:
        return {} if self._stages is None else {"stages": self._stages}

    def messages(self, model: nn.Module) -> tuple[int, ...]:
        wrapped = (each for each in self.replicated.modules() if isinstance(each, nn.parallel.DistributedDataParallel))
        ddp = next(wrapped, None) if self.config.sync_gradients else None
        # Rebuilt in the order in which gradients were ready, as soon as some were exchanged.
        sizes = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "") if ddp else ""
        return tuple(int(size) for size in sizes.split(",") if size.strip())

    def replicate(self, computation: nn.Module, model: nn.Module) -> nn.Module:
        views = self.config.tuning["gradient_buckets"] != "copies"
        return nn.parallel.DistributedDataParallel(
            computation,
            device_ids=[self.device] if self.device.type == "cuda" and self.config.stages == 1 else None,
            **BUFFERS_STAY,
            gradient_as_bucket_view=views,
            # Not where some backward passes go without gradient sync.
            static_graph=views and self.config.workload.accumulate == 1 and self.config.sync_gradients,
        )

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return _AllReduce.apply(tensor, self.replicas_group)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        if enabled and self.config.sync_gradients:
            return nullcontext()
        return self.replicated.no_sync()  # type: ignore[operator]  # torch's wrapper has it, other modules do not

    def broadcast_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)

    def barrier(self) -> None:
        distributed.barrier()

    def leave(self) -> None:
        self.barrier()
        distributed.destroy_process_group()


class DdpBackend(TorchBackend):
    """A backend whose replicas are processes, which exchange gradients."""

    parallelism = DistributedDataParallel


class _AllReduce(torch.autograd.Function):
    """The sum over the processes of a group; its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, group: distributed.ProcessGroup | None) -> torch.Tensor:
        context.group = group
        total = tensor.contiguous().clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.contiguous().clone()
        distributed.all_reduce(total, group=context.group)
        return total, None
