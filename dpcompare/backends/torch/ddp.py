"""torch ddp: DistributedDataParallel under torchrun, one process per device."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from torch import distributed, nn

from dpcompare.backends.description import Description
from dpcompare.backends.torch.backend import TorchBackend
from dpcompare.backends.torch.stages import StagedModel, seconds_of_layers
from dpcompare.models.architectures import MODELS
from dpcompare.models.costs import balanced_cuts, seconds_of_stages
from dpcompare.models.state import Gradients

# Running statistics do not enter a training step; they are broadcast when they are read. (torch 2.15 renamed it.)
BUFFERS_STAY = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(nn.parallel.DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}


class DistributedDataParallel(TorchBackend):
    """Rank and world size come from torchrun's environment."""

    def connect(self) -> None:
        super().connect()
        if self.device.type == "cuda":
            self.device = self.local_devices()[0]
            torch.cuda.set_device(self.device)
        # Longer than the launcher waits, which knows how to name who hangs; torch's default is half an hour.
        seconds = max(self.config.seconds_to_start, self.config.progress_timeout) + 60
        self.join(timedelta(seconds=seconds))
        self.process_rank = distributed.get_rank()
        self.num_processes = self.num_replicas = self.gradient_average_over = distributed.get_world_size()

    replicas_group: distributed.ProcessGroup | None = None
    """The processes that hold the same part of the model; None: all."""

    def local_devices(self) -> list[torch.device]:
        count = self.config.topology.devices_per_process
        if self.device.type == "cpu":
            return [self.device] * count
        first = 0 if self.config.cluster.shared else int(os.environ["LOCAL_RANK"]) * count
        return [torch.device("cuda", first + number) for number in range(count)]

    @property
    def process_group_backend(self) -> str:
        """torch's name of what carries the collectives, also in a process group of one."""
        return self.config.collective

    def join(self, timeout: timedelta) -> None:
        """Join the process group of all processes."""
        # Told the GPU, NCCL connects here and not in the first step, and `barrier` need not guess it. With stages a
        # process has several GPUs, or sends between two processes, for which NCCL connects as they come.
        names_gpu = self.process_group_backend == "nccl" and self.config.stages == 1
        distributed.init_process_group(
            self.process_group_backend, timeout=timeout, device_id=self.device if names_gpu else None
        )

    def place_stages(self, model: nn.Module) -> nn.Module:
        if self.config.stages == 1:
            return model
        return StagedModel(model, MODELS[self.workload.model].layers, self.cuts_of(model), self.local_devices())

    def cuts_of(self, model: nn.Module) -> tuple[int, ...]:
        """Where to cut a model, all of whose layers are still on this device, into stages: measured by process 0."""
        images = self.blank_images(self.rows_trained_at_once)
        # On every process, so that one keeps another busy as in training; what counts is what process 0 found.
        measured = [seconds_of_layers(model, images, self.synchronize)]
        distributed.broadcast_object_list(measured, src=0)
        (seconds,) = measured
        cuts = balanced_cuts(seconds, self.config.stages)
        layers = MODELS[self.workload.model].layers
        self._stages = {
            "begin_with": [layers[cut][0] for cut in (0, *cuts)],
            "milliseconds": [round(1000 * each, 3) for each in seconds_of_stages(seconds, cuts)],
        }
        return cuts

    def describe(self) -> Description:
        description = super().describe()
        return description.with_settings(stages=self._stages) if self.config.stages > 1 else description

    def gradients(self) -> Gradients:
        wrapped = (each for each in self.replicated.modules() if isinstance(each, nn.parallel.DistributedDataParallel))
        ddp = next(wrapped, None) if self.config.sync_gradients else None
        # Rebuilt in the order in which gradients were ready, as soon as some were exchanged.
        sizes = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "") if ddp else ""
        return replace(super().gradients(), messages=tuple(int(size) for size in sizes.split(",") if size.strip()))

    def replicate(self, model: nn.Module) -> nn.Module:
        views = self.config.tuning["gradient_buckets"] != "copies"
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" and self.config.stages == 1 else None,
            **BUFFERS_STAY,
            gradient_as_bucket_view=views,
            # Not where some backward passes go without gradient sync.
            static_graph=views and self.workload.accumulate == 1 and self.config.sync_gradients,
        )

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return _AllReduce.apply(tensor, self.replicas_group)

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        return nullcontext() if enabled and self.config.sync_gradients else self.replicated.no_sync()

    def broadcast_buffers(self) -> None:
        for buffer in self.model.buffers():
            distributed.broadcast(buffer, src=0)

    @property
    def num_holders(self) -> int:
        return self.num_replicas

    def barrier(self) -> None:
        distributed.barrier()

    def teardown(self) -> None:
        self.barrier()
        distributed.destroy_process_group()


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
