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
from dpcompare.backends.torch.stages import StagedModel, seconds_of_layers
from dpcompare.models.architectures import IMAGE_CHANNELS, MODELS
from dpcompare.models.partition import balanced_cuts, seconds_of_stages

# Running statistics do not enter a training step; they are exchanged when they are read. (torch 2.15 renamed it.)
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
            self.device = self._own_devices()[0]
            torch.cuda.set_device(self.device)
        # Longer than the launcher waits, which can tell who hangs; its own default is half an hour.
        seconds = max(self.config.start_timeout, self.config.progress_timeout) + 60
        self.join(timedelta(seconds=seconds))
        self.process_rank = distributed.get_rank()
        self.num_processes = self.num_replicas = self.gradient_average_over = distributed.get_world_size()

    replicas_group: distributed.ProcessGroup | None = None
    """The processes that hold the same part of the model; None: all."""

    def _own_devices(self) -> list[torch.device]:
        """One, or one for each stage."""
        count = self.config.topology.devices_per_process
        if self.config.cluster.device_type == "cpu":
            return [torch.device("cpu")] * count
        first = int(os.environ["LOCAL_RANK"]) * count
        return [torch.device("cuda", first + number) for number in range(count)]

    @property
    def collective_of_mode(self) -> str:
        """What torch's process group is to be made of, also where it has one process."""
        return self.config.mode_row.collective[self.config.cluster.device_type]

    def join(self, timeout: timedelta) -> None:
        """Meet the other processes in a process group."""
        distributed.init_process_group(self.collective_of_mode, timeout=timeout)

    def split(self, model: nn.Module) -> nn.Module:
        if self.config.stages == 1:
            return model
        return StagedModel(model, MODELS[self.workload.model].layers, self.cuts_of(model), self._own_devices())

    def cuts_of(self, model: nn.Module) -> tuple[int, ...]:
        """Where a model is cut into stages, all of whose layers are on this device: as process 0 finds by measuring."""
        workload = self.workload
        rows = workload.global_batch_size // (self.config.topology.num_replicas * workload.accumulate)
        size = (rows, IMAGE_CHANNELS, workload.image_size, workload.image_size)
        images = torch.zeros(size, dtype=self._dtype, device=self.device)
        # On every process, so that one keeps another busy as in training; what counts is what process 0 found.
        measured = [seconds_of_layers(model, images, self.synchronize)]
        distributed.broadcast_object_list(measured, src=0)
        (seconds,) = measured
        cuts = balanced_cuts(seconds, self.config.stages)
        layers = MODELS[workload.model].layers
        self._stages = {
            "begin_with": [layers[cut][0] for cut in (0, *cuts)],
            "milliseconds": [round(1000 * each, 3) for each in seconds_of_stages(seconds, cuts)],
        }
        return cuts

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"stages": self._stages} if self.config.stages > 1 else {})

    def replicate(self, model: nn.Module) -> nn.Module:
        views = self.config.tuning["gradient_buckets"] != "copies"
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" and self.config.stages == 1 else None,
            **BUFFERS_STAY,
            gradient_as_bucket_view=views,
            # Not where the exchange is skipped at times.
            static_graph=views and self.workload.accumulate == 1 and self.config.sync_gradients,
        )

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return _AllReduce.apply(tensor, self.replicas_group)

    def gradient_sync(self, gradients: bool) -> AbstractContextManager[None]:
        return nullcontext() if gradients and self.config.sync_gradients else self.replicated.no_sync()

    def broadcast_buffers(self) -> None:
        for buffer in self.model.buffers():
            distributed.broadcast(buffer, src=0)

    def devices(self) -> list[str]:
        if self.device.type == "cpu":
            first = self.process_rank * self.config.topology.devices_per_process
            return list(self.config.cluster.devices[first : first + self.config.topology.devices_per_process])
        return [torch.cuda.get_device_name(device) for device in self._own_devices()]

    def peak_device_memory_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return sum(torch.cuda.max_memory_allocated(device) for device in self._own_devices())

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            for device in self._own_devices():
                torch.cuda.synchronize(device)

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
